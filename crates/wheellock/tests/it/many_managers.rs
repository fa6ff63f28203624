//! Many processes and one server, in virtual time.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use wheellock::Health;
use wheellock::testing::{Double, Outage};

const OUTAGE: Duration = Duration::from_secs(5);
/// Time between two looks at the server and the managers.
const LOOK: Duration = Duration::from_millis(10);
/// All managers are connected this long after the server is back.
const CONNECTED: Duration = Duration::from_secs(2);

/// After an outage the managers come back spread over time, and each has its lock still. `WHEELLOCK_MANAGERS` sets their number.
#[tokio::test(start_paused = true)]
async fn reconnects_of_many_managers_spread() {
    let count = std::env::var("WHEELLOCK_MANAGERS").ok().and_then(|number| number.parse().ok());
    let count: usize = count.unwrap_or(300);
    let double = Double::new();
    let (mut managers, mut guards) = (Vec::new(), Vec::new());
    for number in 0..count {
        let locks = double.manager().await.unwrap();
        guards.push(locks.lock(&format!("lock:{number}")).acquire().await.unwrap());
        managers.push(locks);
    }
    double.outage(Outage::Down);
    sleep(OUTAGE).await;
    assert!(managers.iter().all(|locks| matches!(locks.health(), Health::NotConnected { .. })));
    let before = double.commands();
    double.come_back();
    let back = Instant::now();
    let (mut said, mut busiest, mut half) = (before, 0, None);
    let all = loop {
        sleep(LOOK).await;
        let connected = managers.iter().filter(|locks| matches!(locks.health(), Health::Healthy)).count();
        let commands = double.commands();
        busiest = busiest.max(commands - said);
        said = commands;
        if connected * 2 >= count {
            half.get_or_insert(back.elapsed());
        }
        if connected == count {
            break back.elapsed();
        }
        assert!(back.elapsed() < CONNECTED, "{connected} of {count} are connected");
    };
    let each = (said - before) / count as u64;
    println!("{count} managers: half connected after {half:?}, all after {all:?}");
    println!("{each} commands each, {busiest} at most within {LOOK:?}");
    // Without jitter all managers would come back within one look.
    assert!(busiest * 4 < said - before, "{busiest} of {} commands came at once", said - before);
    assert!(guards.iter().all(wheellock::Guard::is_valid));
}
