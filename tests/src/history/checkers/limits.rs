//! Checker of holds with limits, and of locks that travel as tickets.
//!
//! A minimum keeps others out, a maximum ends the hold, and one operation at most adopts a ticket.

use super::super::event::{Fault, Kind, What};
use super::super::operations::{Answer, Ending, Operation};
use super::{Case, Checker, MILLISECOND, SCHEDULING, Verdict};

pub(super) fn check(case: &Case<'_>) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for lock in case.by_lock() {
        let lock: Vec<&Operation> = lock.iter().map(|of| &case.operations[*of]).collect();
        for operation in &lock {
            verdicts.extend(minimum(case, operation, &lock));
            verdicts.extend(maximum(case, operation));
            verdicts.extend(journey(case, operation, &lock));
        }
    }
    verdicts
}

fn verdict(checker: Checker, text: String, excuse: Option<Fault>, of: &[&Operation]) -> Verdict {
    let events = of.iter().flat_map(|operation| operation.events.iter().copied()).collect();
    Verdict { checker, text, excuse, events }
}

/// Returns the first grant of another owner in this time.
fn rival<'a>(of: &Operation, from: u64, to: u64, lock: &[&'a Operation]) -> Option<(&'a Operation, u64)> {
    let grants = lock.iter().filter(|other| other.owner != of.owner).filter_map(|other| {
        let granted = other.belief?.from;
        (from < granted && granted < to).then_some((*other, granted))
    });
    grants.min_by_key(|(_, granted)| *granted)
}

/// Returns when the request of a granted hold was sent at the earliest. The server's grant was not before that.
fn earliest_grant(case: &Case<'_>, operation: &Operation) -> Option<u64> {
    let lease = operation.max.map_or(operation.lease, |max| max.min(operation.lease));
    let mut events = operation.events.iter().map(|place| &case.events[*place]);
    events.find_map(|event| match event.what {
        What::Granted { valid_until, .. } => Some(event.at.min(valid_until.saturating_sub(lease))),
        _ => None,
    })
}

/// Checks that no other owner gets the lock between a release and the end of the minimum.
fn minimum(case: &Case<'_>, operation: &Operation, lock: &[&Operation]) -> Option<Verdict> {
    let (min, ended, (at, ending)) = (operation.min?, operation.ended?, operation.ending?);
    let end = (earliest_grant(case, operation)? + min).saturating_sub(2 * MILLISECOND);
    // The minimum of an inner hold keeps the lock after the release of the outer hold.
    if operation.lost.is_some() || operation.belief?.to != ended || operation.kind == Kind::Again {
        return None;
    }
    let (other, granted) = rival(operation, ended, end, lock)?;
    // The release of a dropped guard may not arrive before the process dies. A late release finds the lease ended.
    let process = operation.id.0;
    let has_arrived = match ending {
        Ending::Released => at <= operation.valid_until || !case.hindered(process, ended, at),
        Ending::Dropped => {
            let is_gone = case.gone.get(&process).is_some_and(|gone| *gone <= at + SCHEDULING);
            !is_gone && !case.hindered(process, ended, granted)
        }
        _ => false,
    };
    (has_arrived && !case.was_replaced(operation.invoked, granted)).then(|| {
        let text = format!(
            "{} got {:?} {} ms before the minimum of {} ended",
            other.owner,
            operation.lock,
            (end - granted) / MILLISECOND,
            operation.owner
        );
        verdict(Checker::Exclusion, text, case.lost_by(operation.since, granted), &[operation, other])
    })
}

/// Checks that no guard claims the lock beyond its maximum.
fn maximum(case: &Case<'_>, operation: &Operation) -> Option<Verdict> {
    let over = operation.over_at()?;
    let promised = operation.events.iter().filter_map(|place| match case.events[*place].what {
        What::Granted { valid_until, .. } | What::Moved { valid_until } => Some(valid_until),
        _ => None,
    });
    let until = promised.chain(operation.belief.map(|belief| belief.to)).max()?;
    (until > over).then(|| {
        let by = (until - over) / 1000;
        let text = format!("{} promised {:?} {by} us beyond its maximum", operation.owner, operation.lock);
        verdict(Checker::Validity, text, None, &[operation])
    })
}

/// Checks a ticket from the request that made it until its lease has ended.
fn journey(case: &Case<'_>, sent: &Operation, lock: &[&Operation]) -> Vec<Verdict> {
    let (Some(from), Some((made, Ending::Sent))) = (sent.ended, sent.ending) else { return Vec::new() };
    let takers: Vec<&Operation> =
        lock.iter().filter(|taker| taker.adopts.as_ref() == Some(&sent.owner)).copied().collect();
    // The lease may have been renewed as late as the ticket's arrival. The maximum of the hold ends it, too.
    let earliest_over = earliest_grant(case, sent).zip(sent.max).map(|(granted, max)| granted + max);
    let certain = (from + sent.lease).min(earliest_over.unwrap_or(u64::MAX)) - 2 * MILLISECOND;
    let mut verdicts = Vec::new();
    // An adoption without an answer may have taken effect, and its manager then releases the lock.
    let ends = takers.iter().filter_map(|taker| match taker.answer {
        Some((at, Answer::Granted)) => Some(at),
        Some((_, Answer::NotGranted)) => None,
        _ => Some(taker.invoked),
    });
    let to = ends.min().unwrap_or(certain).min(certain);
    let others: Vec<&Operation> = lock.iter().filter(|other| other.adopts.is_none()).copied().collect();
    if let Some((other, granted)) = rival(sent, from, to, &others) {
        let text =
            format!("{} got {:?} while the ticket of {} travelled", other.owner, sent.lock, sent.owner);
        let excuse = case.lost_by(sent.since, granted);
        verdicts.push(verdict(Checker::Exclusion, text, excuse, &[sent, other]));
    }
    let mut adopted: Vec<(u64, &Operation)> =
        takers.iter().filter_map(|taker| Some((taker.belief?.from, *taker))).collect();
    adopted.sort_by_key(|(at, _)| *at);
    for pair in adopted.windows(2) {
        let [(_, one), (at, other)] = pair else { continue };
        let text = format!("the ticket of {} for {:?} was adopted twice", sent.owner, sent.lock);
        verdicts.push(verdict(Checker::Exclusion, text, case.lost_by(sent.since, *at), &[sent, one, other]));
    }
    for taker in &takers {
        let Some((at, answer)) = taker.answer else { continue };
        let excuse = case.lost_by(sent.since, at);
        let is_first = takers.iter().all(|other| other.id == taker.id || other.invoked > at);
        let calm = !case.hindered(sent.id.0, from, at) && !case.hindered(taker.id.0, from, at);
        let text = match answer {
            Answer::NotGranted if is_first && at < certain && !case.was_replaced(sent.invoked, at) => {
                format!("the ticket of {} for {:?} was called ended, and it travelled", sent.owner, sent.lock)
            }
            Answer::Granted if taker.invoked > made + sent.lease + 2 * MILLISECOND && calm => {
                format!("the ticket of {} for {:?} was adopted after its lease", sent.owner, sent.lock)
            }
            _ => continue,
        };
        verdicts.push(verdict(Checker::Honesty, text, excuse, &[sent, taker]));
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use crate::history::{History, check};

    /// Returns the complaints about a history in which the text is a time in milliseconds at each line's begin.
    fn complaints(text: &str) -> Vec<String> {
        let lines = format!("0 0 0 0 - setup 100000000 50000000 20000000\n{text}");
        let events = lines.lines().map(|line| {
            let (at, rest) = line.split_once(' ').unwrap();
            format!("{}000000 {rest}\n", at)
        });
        let verdicts = check(&History::merge(History::parse(&events.collect::<String>()).unwrap()));
        verdicts.into_iter().filter(|verdict| verdict.excuse.is_none()).map(|verdict| verdict.text).collect()
    }

    const OTHER: &str = "2 1 1 a invoked acquire true 100000000 - -\n";

    fn taken(at: u64) -> String {
        let (valid, dropped) = (at + 100, at + 5);
        format!("12 {OTHER}{at} 2 1 1 a granted you:1 {valid}000000\n{dropped} 2 1 1 a dropped\n")
    }

    #[test]
    fn minimum_keeps_others_out() {
        let held = "10 1 1 1 a invoked acquire true 100000000 - -\n10 1 1 1 a limits 60000000 -\n\
                    11 1 1 1 a granted me:1 110000000\n20 1 1 1 a releasing\n21 1 1 1 a released\n";
        assert_eq!(complaints(&format!("{held}{}", taken(75))), [""; 0]);
        let early = complaints(&format!("{held}{}", taken(60)));
        assert_eq!(early, ["you:1 got \"a\" 8 ms before the minimum of me:1 ended"]);
    }

    #[test]
    fn maximum_ends_hold() {
        let held = "10 1 1 1 a invoked acquire true 100000000 - -\n10 1 1 1 a limits - 150000000\n\
                    11 1 1 1 a granted me:1 110000000\n60 1 1 1 a moved";
        let rest = "150 1 1 1 a dropped\n";
        assert_eq!(complaints(&format!("{held} 160000000\n{rest}")), [""; 0]);
        let late = complaints(&format!("{held} 163000000\n{rest}"));
        assert_eq!(late, ["me:1 promised \"a\" 2000 us beyond its maximum"]);
    }

    #[test]
    fn ticket_is_adopted_once() {
        let sent = "10 1 1 1 a invoked acquire true 100000000 - -\n11 1 1 1 a granted me:1 110000000\n\
                    20 1 1 1 a releasing\n21 1 1 1 a sent\n";
        let adopt = |process: u64, at: u64, answer: &str| {
            format!(
                "{at} {process} 1 9 a invoked adopt true 100000000 - -\n{at} {process} 1 9 a adopts me:1\n\
                 {at} {process} 1 9 a {answer}\n"
            )
        };
        let granted = |process: u64, at: u64| {
            let answer = format!("granted them:{process} {}000000", at + 100);
            adopt(process, at, &format!("{answer}\n{} {process} 1 9 a dropped", at + 5))
        };
        for (rest, wrong) in [
            (granted(3, 50), ""),
            (format!("{}{}", granted(3, 50), adopt(4, 60, "not-granted")), ""),
            (adopt(4, 130, "not-granted"), ""),
            (adopt(4, 60, "not-granted"), "the ticket of me:1 for \"a\" was called ended, and it travelled"),
            (
                format!("{}{}", granted(3, 50), granted(4, 60)),
                "the ticket of me:1 for \"a\" was adopted twice",
            ),
            (granted(3, 130), "the ticket of me:1 for \"a\" was adopted after its lease"),
            (taken(60), "you:1 got \"a\" while the ticket of me:1 travelled"),
        ] {
            assert_eq!(complaints(&format!("{sent}{rest}")).join(", "), wrong, "{rest}");
        }
    }
}
