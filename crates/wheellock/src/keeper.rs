//! The watchdog: the one task that renews leases, notices lost ones, and makes good on releases that failed. Besides it only
//! [`Guard::renew`](crate::Guard::renew) renews, at its holder's wish.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use wheellock_client::{Arg, Change, Detached, Flush, Outcome, Retry, Timer, Value};

use crate::clock::BootInstant;
use crate::durability::Wanted;
use crate::events;
use crate::holds::{Due, Holds, Refused, Renewal, Renewed, Settle, State};
use crate::kind;
use crate::manager::Inner;
use crate::name::Name;

/// Locks renewed by one script. Keeps a script well below a millisecond on the server.
const BATCH: usize = 100;

/// Runs until the manager is gone.
pub(crate) async fn keep(manager: Weak<Inner>, timer: Timer) {
    let mut sleep = timer.sleep_until(timer.now());
    std::future::poll_fn(move |cx| {
        loop {
            let Some(inner) = manager.upgrade() else { return Poll::Ready(()) };
            let next = turn(&inner, cx.waker());
            let Some(next) = next else { return Poll::Pending };
            let left = next.saturating_duration_since(inner.clock.now());
            drop(inner);
            if left.is_zero() {
                // There is more to do; others first.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            sleep.reset(timer.now() + left);
            if Pin::new(&mut sleep).poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    })
    .await;
}

/// Does everything that is due; returns when to come back.
fn turn(inner: &Inner, waker: &Waker) -> Option<BootInstant> {
    let now = inner.clock.now();
    let mut due = Due::default();
    let mut flushes = Vec::new();
    let mut holds = inner.holds();
    holds.due(now, &mut due);
    // Queued under the lock: whatever is released from now on comes after these on the wire, and what was released
    // before is not among them.
    for settle in due.settle {
        flushes.extend(queue_settle(inner, &mut holds, &settle, &Retry::default(), &mut due.wake));
    }
    let slot_of = |renewal: &Renewal| inner.client.slot_of(renewal.name.key().as_bytes());
    for group in batches(&mut due.renew, slot_of) {
        let in_full = group.iter().any(|renewal| renewal.in_full);
        let retry = if in_full { Retry::in_full() } else { Retry::default() };
        let node = group.first().map(|renewal| inner.node_of(&renewal.name));
        flushes.extend(queue_renewal(inner, &mut holds, (group, node), &retry, now, &mut due.wake));
    }
    queue_backlog(inner, &mut holds, now, &mut flushes, &mut due.wake);
    let next = holds.keeper_leaves(waker);
    drop(holds);
    drop(flushes);
    due.wake.into_iter().for_each(Waker::wake);
    for name in due.quiet {
        let mut crowd = name.crowd();
        let subscription = crowd.as_mut().and_then(|waiters| waiters.stop_listening());
        if crowd.as_ref().is_some_and(|waiters| waiters.is_over()) {
            *crowd = None;
        }
        drop(crowd);
        drop(subscription);
    }
    next
}

/// Divides renewals among scripts: the keys of one must be in one slot. Where there are no slots, nothing changes places.
fn batches(renewals: &mut [Renewal], slot_of: impl Fn(&Renewal) -> u16) -> impl Iterator<Item = &[Renewal]> {
    for renewal in &mut *renewals {
        renewal.slot = slot_of(renewal);
    }
    let place = |renewal: &Renewal| (renewal.alone, renewal.slot);
    if !renewals.is_sorted_by_key(place) {
        renewals.sort_by_key(place);
    }
    let together = move |one: &Renewal, next: &Renewal| !one.alone && place(one) == place(next);
    renewals.chunk_by(together).flat_map(|group| group.chunks(BATCH))
}

/// Queues what found no room before, as far as there is some now.
pub(crate) fn queue_backlog<'a>(
    inner: &'a Inner,
    holds: &mut Holds,
    now: BootInstant,
    flushes: &mut Vec<Flush<'a>>,
    wake: &mut Vec<Waker>,
) {
    while let Some(settle) = holds.next_postponed(now, wake) {
        let Some(flush) = queue_settle(inner, holds, &settle, &Retry::default(), wake) else { return };
        flushes.push(flush);
    }
}

/// Queues a release, or postpones it if there is no room. `retry` is what earlier attempts have taught.
pub(crate) fn queue_settle<'a>(
    inner: &'a Inner,
    holds: &mut Holds,
    settle: &Settle,
    retry: &Retry,
    wake: &mut Vec<Waker>,
) -> Option<Flush<'a>> {
    let owner = inner.owner_text(settle.owner);
    let name = &settle.name;
    let params = [
        name.key().into(),
        name.channel().into(),
        owner.as_bytes().into(),
        settle.count.into(),
        inner.client.publish_verb().into(),
    ];
    let token = Token { about: About::Settle { hold: settle.hold }, in_full: retry.is_in_full() };
    let flush = inner.client.queue_eval(&name.kind().release, 1, &params, retry, token.into());
    if flush.is_none() {
        holds.postpone(settle.hold, inner.clock.now(), wake);
    }
    flush
}

fn queue_renewal<'a>(
    inner: &'a Inner,
    holds: &mut Holds,
    (group, node): (&[Renewal], Option<u32>),
    retry: &Retry,
    now: BootInstant,
    wake: &mut Vec<Waker>,
) -> Option<Flush<'a>> {
    let owners: Vec<_> = group.iter().map(|renewal| inner.owner_text(renewal.owner)).collect();
    let keys = group.iter().map(|renewal| Arg::from(renewal.name.key()));
    let args = group
        .iter()
        .zip(&owners)
        .flat_map(|(renewal, owner)| [renewal.lease_to_set().into(), owner.as_bytes().into()]);
    let params: Vec<Arg<'_>> = keys.chain(args).collect();
    let batch = holds.begin_renewal(group.to_vec(), node, now);
    let token = Token { about: About::Renewal { batch }, in_full: retry.is_in_full() };
    let flush = inner.client.queue_eval(&kind::RENEW, group.len(), &params, retry, token.into());
    if flush.is_none() {
        holds.end_renewal(batch, None, now, |name| inner.node_of(name), wake);
    }
    flush
}

/// Takes the results of requests that nobody waited for. Runs on the connection's task.
pub(crate) fn on_results(inner: &Arc<Inner>, results: &mut Vec<Detached>) {
    let now = inner.clock.now();
    let mut wake = Vec::new();
    let (mut settles, mut renewals, mut waits) = (Vec::new(), Vec::new(), Vec::new());
    // Locks of which the server knows nothing any more: no release was published.
    let mut unknown = Vec::new();
    let mut flushes = Vec::new();
    let mut holds = inner.holds();
    for Detached { token, result, connection, .. } in results.drain(..) {
        let Token { about, in_full } = token.into();
        let mut retry = if in_full { Retry::in_full() } else { Retry::default() };
        let pause = pause_before_repeating(&mut retry, &result);
        match about {
            About::Settle { hold } => {
                let settle = match (&result, pause) {
                    (_, Some(pause)) => holds.settle_refused(hold, pause, now, &mut wake),
                    // It waits in the queue for the next connection, if there is to be one.
                    (Err(Outcome::MaybeExecuted), None) if !inner.client.has_ended(connection) => {
                        holds.repeat_settle(hold, now, &mut wake)
                    }
                    (Ok(reply), None) if !reply.is_error() => {
                        if reply.is_null() {
                            let held = holds.get(hold).filter(|hold| hold.state == State::Held);
                            unknown.extend(held.map(|hold| Arc::clone(&hold.name)));
                        }
                        holds.settled(hold, !reply.is_null(), connection.node(), now, &mut wake)
                    }
                    (Ok(_) | Err(_), None) => {
                        holds.unsettled(hold, now, &mut wake);
                        None
                    }
                };
                settles.extend(settle.map(|settle| (settle, retry)));
            }
            About::Renewal { batch } => {
                let failures = holds.tally.failed_renewals;
                if let Some(pause) = pause {
                    let at_once = holds.renewal_refused(batch, refused(&result), pause, now);
                    renewals.extend(at_once.into_iter().map(|renewal| (renewal, retry.clone())));
                } else {
                    let reply = result.as_ref().ok().and_then(RenewalReply::parse);
                    let node_of = |name: &Name| inner.node_of(name);
                    let jump = match (&reply, inner.wanted) {
                        (Some(reply), Some(wanted)) => {
                            let (any, jump) = holds.await_acks(batch, reply, now, node_of, &mut wake);
                            waits.extend(any.then_some((batch, connection, wanted)));
                            jump
                        }
                        (reply, _) => holds.end_renewal(batch, reply.as_ref(), now, node_of, &mut wake),
                    };
                    if let Some(jump) = jump {
                        events::server_clock_jumped(&inner.client.server_address(), jump);
                    }
                }
                if holds.tally.failed_renewals > failures {
                    events::renewal_failed(&inner.client.server_address(), &result);
                }
            }
            About::Wait { batch } => {
                let wanted = inner.wanted.filter(|_| result.is_ok());
                let kept = wanted.is_some_and(|wanted| wanted.shortfall(result.as_ref().ok()).is_none());
                holds.end_wait(batch, kept, now, &mut wake);
                if !kept {
                    events::renewal_failed(&inner.client.server_address(), &result);
                }
            }
        }
    }
    for (settle, retry) in settles {
        flushes.extend(queue_settle(inner, &mut holds, &settle, &retry, &mut wake));
    }
    for (renewal, retry) in renewals {
        // Which node that is, only the connection knows.
        let alone = (std::slice::from_ref(&renewal), None);
        flushes.extend(queue_renewal(inner, &mut holds, alone, &retry, now, &mut wake));
    }
    for (batch, connection, Wanted { acks, timeout }) in waits {
        let token = Token { about: About::Wait { batch }, in_full: false };
        match inner.client.queue_wait(connection, acks, timeout, token.into()) {
            Some(flush) => flushes.push(flush),
            None => holds.end_wait(batch, false, now, &mut wake),
        }
    }
    queue_backlog(inner, &mut holds, now, &mut flushes, &mut wake);
    let keeper = holds.keeper_to_wake();
    drop(holds);
    drop(flushes);
    wake.into_iter().chain(keeper).for_each(Waker::wake);
    unknown.iter().for_each(|name| inner.let_waiters_look(name));
}

/// Another server than before may answer for some locks. Runs on the connection's task.
pub(crate) fn on_change(inner: &Inner, change: &Change) {
    let mut holds = inner.holds();
    holds.changed(change, inner.clock.now());
    let keeper = holds.keeper_to_wake();
    drop(holds);
    if let Some(keeper) = keeper {
        keeper.wake();
    }
}

/// How long to wait before a request has a chance that certainly had no effect; `None` if it has none, or may have had one.
fn pause_before_repeating(retry: &mut Retry, result: &Result<Value, Outcome>) -> Option<Duration> {
    match result {
        Ok(reply) => retry.after_reply(reply),
        // The node was given up before it was written: another one may be responsible now.
        Err(Outcome::NotSent) => Some(Duration::ZERO),
        Err(_) => None,
    }
}

fn refused(result: &Result<Value, Outcome>) -> Refused {
    let text = result.as_ref().ok().and_then(Value::as_error).unwrap_or_default();
    match text.split(|byte| *byte == b' ').next() {
        Some(b"" | b"MOVED") | None => Refused::Elsewhere,
        Some(b"TRYAGAIN") => Refused::OnItsWay,
        Some(b"ASK") => Refused::Arrived,
        Some(b"NOSCRIPT") => Refused::NoScript,
        Some(_) => Refused::Unserved,
    }
}

/// What the renewal script returns.
pub(crate) struct RenewalReply<'a> {
    /// The server's clock, since the Unix epoch.
    pub(crate) server: Duration,
    pub(crate) locks: &'a [Value],
}

impl<'a> RenewalReply<'a> {
    pub(crate) fn parse(reply: &'a Value) -> Option<Self> {
        let [seconds, micros, locks @ ..] = reply.as_array()? else { return None };
        let number = |value: &Value| value.as_i64().and_then(|number| u64::try_from(number).ok());
        let server = Duration::from_secs(number(seconds)?) + Duration::from_micros(number(micros)?);
        Some(Self { server, locks })
    }

    /// What became of the lock at `place`, which was asked for by `renewal`.
    pub(crate) fn lock(&self, place: usize, renewal: &Renewal) -> Renewed {
        let Some(number) = self.locks.get(place).and_then(Value::as_i64) else { return Renewed::Failed };
        match (number, renewal.extend) {
            (0, _) => Renewed::NotOwner,
            (1, true) => Renewed::Extended,
            (-1, false) => Renewed::StillHeld { left: Duration::MAX },
            (left @ 1.., false) => Renewed::StillHeld { left: Duration::from_millis(left.unsigned_abs()) },
            _ => Renewed::Failed,
        }
    }
}

/// What is known of a detached request, packed into the number that comes back with its result.
struct Token {
    about: About,
    /// The script's text was sent.
    in_full: bool,
}

enum About {
    Settle {
        hold: u32,
    },
    Renewal {
        batch: u32,
    },
    /// Other servers are to acknowledge what a renewal has extended.
    Wait {
        batch: u32,
    },
}

const RENEWAL: u64 = 1 << 63;
const WAIT: u64 = 1 << 62;
const IN_FULL: u64 = 1 << 61;

impl From<Token> for u64 {
    fn from(token: Token) -> Self {
        let about = match token.about {
            About::Settle { hold } => Self::from(hold),
            About::Renewal { batch } => RENEWAL | Self::from(batch),
            About::Wait { batch } => WAIT | Self::from(batch),
        };
        if token.in_full { about | IN_FULL } else { about }
    }
}

impl From<u64> for Token {
    #[expect(clippy::cast_possible_truncation, reason = "takes apart what was put together above")]
    fn from(token: u64) -> Self {
        let number = token as u32;
        let about = match token & (RENEWAL | WAIT) {
            RENEWAL => About::Renewal { batch: number },
            WAIT => About::Wait { batch: number },
            _ => About::Settle { hold: number },
        };
        Self { about, in_full: token & IN_FULL != 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::Lease;

    fn renewals(slots: &[(u16, bool)]) -> Vec<Renewal> {
        let named = |(number, &(slot, alone)): (usize, &(u16, bool))| Renewal {
            hold: u32::try_from(number).unwrap(),
            serial: 0,
            name: Arc::new(Name::new(&format!("{slot}"), &kind::REENTRANT)),
            owner: 0,
            lease: Lease::DEFAULT,
            extend: true,
            in_full: false,
            alone,
            slot: 0,
        };
        slots.iter().enumerate().map(named).collect()
    }

    fn grouped(slots: &[(u16, bool)]) -> Vec<Vec<u32>> {
        let mut renewals = renewals(slots);
        let slot_of = |renewal: &Renewal| renewal.name.key().parse().unwrap();
        let numbers = |group: &[Renewal]| group.iter().map(|renewal| renewal.hold).collect();
        batches(&mut renewals, slot_of).map(numbers).collect()
    }

    #[test]
    fn no_script_has_keys_of_two_slots_and_what_goes_alone_goes_alone() {
        assert_eq!(grouped(&[]), [[0; 0]; 0]);
        assert_eq!(grouped(&[(0, false); 3]), [[0, 1, 2]]);
        assert_eq!(grouped(&[(7, false), (3, false), (7, false), (3, false)]), [[1, 3], [0, 2]]);
        let alone = grouped(&[(7, true), (7, false), (7, true), (7, false), (3, false)]);
        assert_eq!(alone, [vec![4], vec![1, 3], vec![0], vec![2]]);
        let many = grouped(&vec![(9, false); 2 * BATCH + 1]);
        assert_eq!(many.iter().map(Vec::len).collect::<Vec<_>>(), [BATCH, BATCH, 1]);
    }
}
