//! Tests of `finder`.

use super::*;

fn finder() -> Finder {
    Finder::new(&Sentinels { addresses: vec![at(1), at(2)], ..Sentinels::default() })
}

fn at(port: u16) -> Address {
    Address::Tcp { host: "h".to_owned(), port }
}

fn says(suspect: bool, promoted: Option<Address>) -> Result<Answer, Error> {
    Ok(Answer { address: at(6379), epoch: 1, suspect, promoted })
}

const SECOND: Duration = Duration::from_secs(1);

/// A server that is not a Sentinel is a different mistake than a wrong password.
#[test]
fn unanimous_refusal_reports_last_kind() {
    let failed = |kind| Err(Error::step(kind, "connect to", "h", String::new()));
    for (first, second, told) in [
        (ErrorKind::Unsupported, ErrorKind::Unsupported, Some(ErrorKind::Unsupported)),
        (ErrorKind::Auth, ErrorKind::Auth, Some(ErrorKind::Auth)),
        (ErrorKind::Auth, ErrorKind::Unsupported, Some(ErrorKind::Unsupported)),
        (ErrorKind::Unsupported, ErrorKind::Auth, Some(ErrorKind::Auth)),
        (ErrorKind::Connect, ErrorKind::Auth, None),
        (ErrorKind::Unsupported, ErrorKind::Connect, None),
    ] {
        let (finder, (timer, _clock)) = (finder(), Timer::manual(Duration::from_millis(1)));
        finder.received(0, failed(first));
        finder.received(1, failed(second));
        let mut address = std::pin::pin!(finder.address(&timer));
        let polled = address.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        let refusal = match polled {
            Poll::Ready(found) => Some(found.expect_err("nobody named an address")),
            Poll::Pending => None,
        };
        assert_eq!(refusal, told, "{first:?}, {second:?}");
    }
}

#[test]
fn absent_primary_slows_polling() {
    let (finder, began) = (finder(), Instant::now());
    for round in 0..2 {
        let began = began + 1000 * SECOND * round;
        assert_eq!(finder.interval(began, false), HURRIED_INTERVAL);
        assert_eq!(finder.interval(began + 9 * SECOND, false), HURRIED_INTERVAL);
        assert_eq!(finder.interval(began + 10 * SECOND, false), TROUBLED_INTERVAL);
        assert_eq!(finder.interval(began + 900 * SECOND, false), TROUBLED_INTERVAL);
        // With or without a query in between, the next fault starts a new hurried phase.
        finder.connected(true);
        if round == 0 {
            assert_eq!(finder.interval(began + 900 * SECOND, true), INTERVAL);
        }
        finder.connected(false);
    }
}

#[test]
fn sentinel_alarm_is_ignored_while_connected() {
    let (finder, now) = (finder(), Instant::now());
    finder.connected(true);
    finder.received(0, says(true, None));
    assert_eq!(finder.interval(now, true), INTERVAL, "it answers us");
    assert_eq!(finder.interval(now, false), HURRIED_INTERVAL, "it is silent to us, too");
    assert_eq!(finder.interval(now + 10 * SECOND, false), TROUBLED_INTERVAL);
    finder.received(0, says(false, None));
    assert_eq!(finder.interval(now + 10 * SECOND, false), INTERVAL);
    finder.received(0, says(true, Some(at(6380))));
    assert_eq!(finder.interval(now + 11 * SECOND, true), HURRIED_INTERVAL, "it is being replaced");
}
