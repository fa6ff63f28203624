//! The watchdog of one manager's leases.
//!
//! The watchdog is a single task. It renews leases, notices lost leases, and repeats failed releases. Guards queue their own renewals
//! here, too. The replies to them are handled as those to any other renewal.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use wheellock_client::layer::{ChangedKeys, ConnectionId, Detached, Flush, Retry, error_code};
use wheellock_client::{Change, Outcome, Timer, Value};

use crate::base::clock::BootInstant;
use crate::base::durability::Wanted;
use crate::base::request_tag::{About, RequestTag, retry};
use crate::request::context::Context;
use crate::request::hand_over;
use crate::table::holds::{
    CallerIndex, Due, Effects, Failed, Hold, HoldIndex, Holds, Reconcile, Refused, Renewal, RenewalReply,
    Renewed, State, Unreconciled, Want,
};
use crate::wait::name::Name;
use crate::wait::turns::Contenders;
use crate::wire;

/// Locks per renewal script. The limit keeps a script well below a millisecond on the server.
const BATCH: usize = 100;

/// Runs until the manager is dropped.
pub(crate) async fn keep(manager: Weak<Context>, timer: Timer) {
    let mut sleep = timer.sleep_until(timer.now());
    std::future::poll_fn(move |cx| {
        loop {
            let Some(context) = manager.upgrade() else { return Poll::Ready(()) };
            let next = turn(&context, cx.waker());
            let Some(next) = next else { return Poll::Pending };
            let mut left = next.saturating_duration_since(context.clock.now());
            if context.clock.outruns_timers() {
                left = left.min(LONGEST_SLEEP);
            }
            // A sleeping watchdog must not keep its manager alive.
            drop(context);
            if left.is_zero() {
                // More work is due. Other tasks run first.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            // Leases have another clock than the timer, so only the time that is left counts.
            sleep.reset(timer.now() + left);
            if Pin::new(&mut sleep).poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    })
    .await;
}

/// Longest sleep on a clock that may outrun the timer. While the machine is suspended, the clock runs and the timer does not. Without
/// this limit, a lease that expired meanwhile would be reported only when the timer fires.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// Does all work that is due. Returns when the watchdog must run again.
fn turn(context: &Context, waker: &Waker) -> Option<BootInstant> {
    let (next, quiet, handing_over, flushes) = context.transact(|holds, now, effects| {
        let unsent = || {
            let tokens = context.client.unsent().into_iter();
            tokens.map(|token| RequestTag::from(token).about).collect::<Vec<_>>()
        };
        let mut due = Due::new(effects, &unsent);
        let unreported = holds.failures.unreported();
        holds.due(now, &mut due);
        let Due { mut renew, quiet, handing_over, effects, .. } = due;
        if holds.failures.unreported() > unreported {
            // Leases have ended with their renewals pending.
            let is_waiting = unsent().iter().any(|about| matches!(about, About::Renewal { .. }));
            let outcome = if is_waiting { Outcome::NotSent } else { Outcome::MaybeExecuted };
            effects.renewal_failed(&Err(outcome), holds.failures.tell(now));
        }
        let flushes = queue_renewals(context, holds, &mut renew, now, effects);
        effects.look_at_the_backlog();
        let next = holds.next_due();
        holds.alarms.watchdog_leaves(next, waker);
        (next, quiet, handing_over, flushes)
    });
    // A flush writes to the socket when it is dropped, so the table is unlocked first.
    drop(flushes);
    handing_over.iter().for_each(|name| hand_over::look_after(context, name));
    for name in quiet {
        let mut waiting = name.waiting();
        let subscription = waiting.queue.as_mut().and_then(|waiters| waiters.stop_listening());
        waiting.drop_unused();
        drop(waiting);
        // The drop may wake the connection's task, so the queue is unlocked first.
        drop(subscription);
    }
    next
}

/// Queues renewals under the table's lock. A release from now on is written after these renewals. A hold that was released before is not
/// among these renewals.
fn queue_renewals<'a>(
    context: &'a Context,
    holds: &mut Holds,
    renewals: &mut [Renewal],
    now: BootInstant,
    effects: &mut Effects,
) -> Vec<Flush<'a>> {
    let mut flushes = Vec::new();
    let slot_of = |renewal: &Renewal| context.client.slot_of(renewal.name.key().as_bytes());
    for group in batches(renewals, slot_of) {
        let retry = retry(group.iter().any(|renewal| renewal.with_source));
        let node = group.first().map(|renewal| context.node_of(&renewal.name));
        flushes.extend(queue_renewal(context, holds, (group, node), &retry, now, effects));
    }
    flushes
}

/// Queues a guard's request to renew or check its hold now. Returns the guard's caller, or `None` if the hold is lost.
pub(crate) fn wish(context: &Context, hold: HoldIndex, want: Want, waker: &Waker) -> Option<CallerIndex> {
    let (caller, flush) = context.transact(|holds, now, effects| {
        let until = now + context.client.config().response_timeout;
        let (caller, renewal) = holds.wish(hold, want, (now, until), waker)?;
        let flush = renewal.and_then(|renewal| {
            let (node, retry) = (Some(context.node_of(&renewal.name)), retry(renewal.with_source));
            queue_renewal(context, holds, (std::slice::from_ref(&renewal), node), &retry, now, effects)
        });
        Some((caller, flush))
    })?;
    drop(flush);
    Some(caller)
}

/// Divides renewals among scripts. The locks of one script share a slot and a kind. All or none of them are written into a new server, and
/// the server is to remember all or none of their keys. The order does not change if all renewals are alike.
fn batches(renewals: &mut [Renewal], slot_of: impl Fn(&Renewal) -> u16) -> impl Iterator<Item = &[Renewal]> {
    for renewal in &mut *renewals {
        renewal.slot = slot_of(renewal);
    }
    let place = |renewal: &Renewal| {
        let Renewal { alone, slot, remembers, reclaim, .. } = renewal;
        let server = reclaim.map(|reclaim| reclaim.number);
        (*alone, *slot, renewal.name.kind().address(), *remembers, server)
    };
    if !renewals.is_sorted_by_key(place) {
        renewals.sort_by_key(place);
    }
    let together = move |one: &Renewal, next: &Renewal| !one.alone && place(one) == place(next);
    renewals.chunk_by(together).flat_map(|group| group.chunks(BATCH))
}

/// Queues the script that renews a group. `node` is the server, if the server is certain.
///
/// The connection may lack room, or its end may prevent a reply. Then waiting guards fail with the error now, or later if no renewal
/// succeeds in time.
fn queue_renewal<'a>(
    context: &'a Context,
    holds: &mut Holds,
    (group, node): (&[Renewal], Option<u32>),
    retry: &Retry,
    now: BootInstant,
    effects: &mut Effects,
) -> Option<Flush<'a>> {
    let owners: Vec<_> =
        group.iter().map(|renewal| context.holder_text(&renewal.name, renewal.owner)).collect();
    let keys: Vec<_> = group.iter().map(|renewal| wire::holders_key(&renewal.name)).collect();
    let first = group.first()?;
    let target = first.reclaim.map(|reclaim| {
        let (fleet, incarnation) = holds.target(&reclaim);
        (fleet.to_owned(), incarnation.to_owned())
    });
    let (params, script) = match &target {
        Some((fleet, incarnation)) => {
            (wire::reclaim(group, &owners, (fleet, incarnation)), first.name.kind().reclaim.as_ref()?)
        }
        None => (wire::renew(group, &keys, &owners), first.name.kind().renew.as_ref()?),
    };
    // `now` precedes the send, because the lease counts from before it.
    let batch = holds.begin_renewal(group.to_vec(), node, now);
    let token = RequestTag { about: About::Renewal { batch }, with_source: retry.is_in_full() };
    let remembers = group.first()?.remembers;
    let flush = context.client.queue_eval(script, group.len(), &params, retry, token.into(), remembers);
    if !flush.as_ref().is_some_and(Flush::is_answered) {
        let wishing = holds.wishing(batch);
        let key = group.first()?.name.key();
        let refusal = || context.client.refusal(key.as_bytes(), wire::verb(retry));
        if let Some(error) = (!wishing.is_empty()).then(refusal).flatten() {
            let may_serve_soon = Retry::default().after(&error).is_some();
            for index in &wishing {
                if may_serve_soon {
                    holds.remember_failure(*index, Want::Renew, &error, now);
                } else {
                    holds.tell_failure(*index, Want::Renew, &Failed::Error(error.clone()), effects);
                }
            }
        }
        if flush.is_none() {
            // No result will arrive for a script that was not queued.
            holds.end_renewal(batch, None, now, |name| context.node_of(name), effects);
            effects.renewal_failed(&Err(Outcome::NotSent), holds.failures.tell(now));
        }
        wishing.iter().for_each(|index| holds.renew_for_wishes(*index, now + WISH_PAUSE));
    }
    flush
}

/// Pause before a renewal that a guard waits for is repeated.
const WISH_PAUSE: Duration = Duration::from_millis(20);

/// Handles the results of requests without a waiting task. Runs on the connection's task.
pub(crate) fn on_results(context: &Arc<Context>, results: &mut Vec<Detached>) {
    let (flushes, given_back, unknown, unexpected) = context.transact(|holds, now, effects| {
        effects.reuse(std::mem::take(&mut holds.room));
        let (flushes, given_back, unknown, unexpected) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut table = Answered { context, holds, now, effects, flushes, given_back, unknown, unexpected };
        for detached in results.drain(..) {
            let RequestTag { about, with_source } = detached.token.into();
            let mut retry = retry(with_source);
            let verb = if matches!(about, About::Wait { .. }) { "WAIT" } else { wire::verb(&retry) };
            let pause = pause_before_repeating(context, &mut retry, &detached).or_else(|| {
                // A failed renewal has a schedule of its own for the next attempt.
                let is_release = matches!(about, About::Reconcile { .. });
                let text = detached.result.as_ref().ok().and_then(Value::as_error).filter(|_| is_release)?;
                retry.after_refused_write(error_code(text))
            });
            let answer = Answer { detached: &detached, verb, retry, pause };
            match about {
                About::Reconcile { hold } => table.reconciled(hold, &answer),
                About::Renewal { batch } => table.renewed(batch, &answer),
                About::Wait { batch } => table.acknowledged(batch, &answer),
                About::Nothing => {}
            }
        }
        table.effects.look_at_the_backlog();
        (table.flushes, table.given_back, table.unknown, table.unexpected)
    });
    drop(flushes);
    // The order of locks puts a wait queue before the table, so this follows the transaction.
    for (name, contenders, is_planned) in &given_back {
        hand_over::released(context, name, *contenders, *is_planned);
    }
    unknown.iter().for_each(|name| context.let_waiters_ask(name));
    unexpected.iter().for_each(|name| context.distrust(name));
}

/// The result of one request, and the plan for the next attempt.
struct Answer<'a> {
    detached: &'a Detached,
    /// The command that was sent, for messages.
    verb: &'static str,
    /// State of the retries, which has learnt from this result.
    retry: Retry,
    /// Pause before the next attempt. `None` if this attempt may have had an effect, or if a next attempt cannot succeed.
    pause: Option<Duration>,
}

/// The table of holds while results are entered.
struct Answered<'a, 't> {
    context: &'a Context,
    holds: &'t mut Holds,
    now: BootInstant,
    effects: &'t mut Effects,
    flushes: Vec<Flush<'a>>,
    /// Released locks with other contenders, and whether their releases were planned to let those have the lock.
    given_back: Vec<(Arc<Name>, Contenders, bool)>,
    /// Locks that the server does not know any more. No message announced their release.
    unknown: Vec<Arc<Name>>,
    /// Locks whose scripts were answered with a reply that they never return.
    unexpected: Vec<Arc<Name>>,
}

impl Answered<'_, '_> {
    fn reconciled(&mut self, hold: u32, answer: &Answer<'_>) {
        let Answer { detached, retry, pause, .. } = answer;
        let (now, connection) = (self.now, detached.connection);
        let request = match (&detached.result, *pause) {
            (_, Some(pause)) => {
                self.will_be_repeated(hold, answer);
                self.holds.reconcile_again(hold, Unreconciled::Refused(pause), now, self.effects)
            }
            // The request waits in the queue for the next connection, if there will be one.
            (Err(Outcome::MaybeExecuted), None) if !self.context.client.has_ended(connection) => {
                self.will_be_repeated(hold, answer);
                self.holds.reconcile_again(hold, Unreconciled::Unanswered, now, self.effects)
            }
            (Ok(reply), None) if !reply.is_error() => match wire::read_release(reply) {
                Some(known) => {
                    let known = known || !self.holds.may_end_hold(hold, connection);
                    // These steps read the hold, which `reconciled` may free.
                    if !known {
                        self.server_knows_nothing(hold);
                    }
                    let contenders = wire::read_contenders(reply);
                    let stands_back = self.holds.stands_back_after(hold, contenders);
                    self.given_back.extend(
                        stands_back.map(|(name, is_planned)| (Arc::clone(name), contenders, is_planned)),
                    );
                    self.holds.reconciled(hold, known, connection.node(), now, self.effects)
                }
                None => {
                    self.unexpected.extend(self.holds.get(hold).map(|hold| Arc::clone(&hold.name)));
                    self.failed(hold, Some(Failed::Unexpected(reply.type_name())))
                }
            },
            (Ok(_) | Err(_), None) => {
                let error = self.error_for_callers(hold, answer);
                self.failed(hold, error.map(Failed::Error))
            }
        };
        if let Some(request) = request {
            // The retry keeps the node that an ASK named. Without it, the release would return to the node that the slot leaves.
            self.effects.request(Reconcile { retry: retry.clone(), ..request });
        }
    }

    /// Records that the server did not know a released hold. If it was a guard's last hold, no message has told the waiters that the lock
    /// is free.
    fn server_knows_nothing(&mut self, hold: u32) {
        let had = |hold: &&Hold| matches!(hold.state, State::Held | State::Lost(_));
        self.unknown.extend(self.holds.get(hold).filter(had).map(|hold| Arc::clone(&hold.name)));
    }

    /// Records the error of a release that will be repeated. Waiting callers get this error if the next release has no reply in time.
    fn will_be_repeated(&mut self, hold: u32, answer: &Answer<'_>) {
        if let Some(error) = self.error_for_callers(hold, answer) {
            self.holds.remember_failure(hold, Want::Release, &error, self.now);
        }
    }

    /// Fails the callers that wait for a release that cannot succeed now. The watchdog repeats the release later.
    fn failed(&mut self, hold: u32, why: Option<Failed>) -> Option<Reconcile> {
        if let Some(why) = why {
            self.holds.tell_failure(hold, Want::Release, &why, self.effects);
        }
        self.holds.reconcile_again(hold, Unreconciled::Failed, self.now, self.effects)
    }

    /// Returns the error of a request, if a caller waits for the request.
    fn error_for_callers(&self, hold: u32, answer: &Answer<'_>) -> Option<wheellock_client::Error> {
        let awaited = self.holds.is_awaited(hold);
        awaited.then(|| self.context.client.error_of(answer.detached, answer.verb)).flatten()
    }

    fn renewed(&mut self, batch: u32, answer: &Answer<'_>) {
        let Answer { detached: Detached { result, connection, .. }, retry, pause, .. } = answer;
        let (context, now) = (self.context, self.now);
        let unreported = self.holds.failures.unreported();
        // The callers are found before the batch ends with its result.
        let wishing = self.holds.wishing(batch);
        if let Some(pause) = *pause {
            self.wishes_wait(&wishing, answer, false);
            for renewal in self.holds.renewal_refused(batch, refused(result), pause, now) {
                // Only the connection knows which node that is.
                let alone = (std::slice::from_ref(&renewal), None);
                self.flushes.extend(queue_renewal(context, self.holds, alone, retry, now, self.effects));
            }
        } else {
            let reply = result.as_ref().ok();
            let reply = reply.and_then(|reply| wire::read_renewal(reply, self.holds.batch(batch)));
            let extends = self.holds.batch(batch).iter().any(|renewal| renewal.extend);
            match (result, &reply) {
                (Ok(_), Some(reply)) => self.tell_of_odd_words(batch, reply),
                (Ok(odd), None) if !odd.is_error() => {
                    let name = self.holds.batch(batch).first().map(|renewal| Arc::clone(&renewal.name));
                    self.unexpected.extend(name);
                    self.tell_wishes(&wishing, &Failed::Unexpected(odd.type_name()));
                }
                (Err(Outcome::MaybeExecuted), _) if !context.client.has_ended(*connection) => {
                    self.wishes_wait(&wishing, answer, true);
                }
                _ => self.wishes_fail(&wishing, answer),
            }
            let reply = reply.map(|reply| self.holds.believed(batch, reply, *connection));
            let node_of = |name: &Name| context.node_of(name);
            let jump = match (reply, context.wanted) {
                (Some(reply), Some(wanted)) => {
                    let (any, jump) = self.holds.await_acks(batch, &reply, now, node_of, self.effects);
                    if any {
                        self.wait_for_acks(batch, *connection, wanted);
                    }
                    jump
                }
                (reply, _) => self.holds.end_renewal(batch, reply.as_ref(), now, node_of, self.effects),
            };
            self.effects.jumped(jump);
            // In a grace, the same extension would be refused again at once.
            let again = if extends { now + WISH_PAUSE } else { now };
            wishing.iter().for_each(|index| self.holds.renew_for_wishes(*index, again));
        }
        if self.holds.failures.unreported() > unreported {
            self.effects.renewal_failed(result, self.holds.failures.tell(now));
        }
    }

    /// Asks the server for acknowledgements. An extension counts only when other servers have acknowledged it.
    fn wait_for_acks(&mut self, batch: u32, connection: ConnectionId, Wanted { acks, timeout }: Wanted) {
        let token = RequestTag { about: About::Wait { batch }, with_source: false };
        match self.context.client.queue_wait(connection, acks, timeout, token.into()) {
            Some(flush) => self.flushes.push(flush),
            None => {
                let wishing = self.holds.wishing(batch);
                self.holds.end_wait(batch, false, self.now, self.effects);
                let soon = self.now + WISH_PAUSE;
                wishing.iter().for_each(|index| self.holds.renew_for_wishes(*index, soon));
            }
        }
    }

    fn acknowledged(&mut self, batch: u32, answer: &Answer<'_>) {
        let Detached { result, connection, .. } = answer.detached;
        let wishing = self.holds.wishing(batch);
        let wanted = self.context.wanted.filter(|_| result.is_ok());
        let shortfall = wanted.map(|wanted| wanted.shortfall(result.as_ref().ok()));
        match (result, shortfall) {
            (Ok(reply), Some(Some(by))) if !reply.is_error() => {
                wishing.iter().for_each(|index| self.holds.wishes_fell_short(*index, by, self.effects));
            }
            (Ok(_), Some(None)) => {}
            (Err(_), _) if !self.context.client.has_ended(*connection) => {
                self.wishes_wait(&wishing, answer, true);
            }
            _ => self.wishes_fail(&wishing, answer),
        }
        let kept = shortfall == Some(None);
        self.holds.end_wait(batch, kept, self.now, self.effects);
        if !kept {
            self.effects.renewal_failed(result, self.holds.failures.tell(self.now));
        }
        wishing.iter().for_each(|index| self.holds.renew_for_wishes(*index, self.now));
    }

    /// Records the error of a renewal that will be repeated. Waiting guards get this error if the next renewal has no reply in time.
    /// `executed` is true if the server may have executed the renewal.
    fn wishes_wait(&mut self, wishing: &[HoldIndex], answer: &Answer<'_>, executed: bool) {
        if let Some(error) = self.error_for_wishes(wishing, answer) {
            for index in wishing {
                if executed {
                    self.holds.may_be_renewed(*index);
                }
                self.holds.remember_failure(*index, Want::Renew, &error, self.now);
            }
        }
    }

    fn wishes_fail(&mut self, wishing: &[HoldIndex], answer: &Answer<'_>) {
        if let Some(error) = self.error_for_wishes(wishing, answer) {
            self.tell_wishes(wishing, &Failed::Error(error));
        }
    }

    fn tell_wishes(&mut self, wishing: &[HoldIndex], why: &Failed) {
        wishing.iter().for_each(|index| self.holds.tell_failure(*index, Want::Renew, why, self.effects));
    }

    fn error_for_wishes(
        &self,
        wishing: &[HoldIndex],
        answer: &Answer<'_>,
    ) -> Option<wheellock_client::Error> {
        let wanted = !wishing.is_empty();
        wanted.then(|| self.context.client.error_of(answer.detached, answer.verb)).flatten()
    }

    /// Fails the guards of locks for which the script returned an unknown status.
    fn tell_of_odd_words(&mut self, batch: u32, reply: &RenewalReply) {
        let odd = |(place, hold): (usize, u32)| (reply.lock(place) == Renewed::Failed).then_some(hold);
        let holds = self.holds.batch(batch).iter().map(|renewal| renewal.hold).enumerate();
        let odd: Vec<_> = holds.filter_map(odd).collect();
        self.tell_wishes(&odd, &Failed::Unexpected("array"));
    }
}

/// Records that another server may now be responsible for some locks. Runs on the connection's task.
pub(crate) fn on_change(context: &Context, change: &Change) {
    context.change(|holds, clock| holds.changed(change, clock.now()));
}

/// Checks the holds of keys that other clients changed, and lets the waiters for such locks poll. Runs on the connection's task, and does not
/// wait for the watchdog's next turn.
pub(crate) fn on_changed_keys(context: &Context, keys: &ChangedKeys) {
    match keys {
        ChangedKeys::Any(change) => {
            context.change(|holds, clock| holds.any_key_changed(change, clock.now()));
            context.wake_after_flush(change);
        }
        ChangedKeys::These(keys) => {
            let names = context.locks_of(keys.iter().filter_map(Value::as_str));
            let flushes = context.transact(|holds, now, effects| {
                let mut due = Due::new(effects, &Vec::new);
                holds.keys_changed(&names, now, &mut due);
                let Due { mut renew, effects, .. } = due;
                queue_renewals(context, holds, &mut renew, now, effects)
            });
            drop(flushes);
            context.wake_after_change(&names);
        }
    }
}

/// Returns the pause before the request is repeated. Returns `None` if the request may have had an effect, or if a repetition cannot
/// succeed.
fn pause_before_repeating(context: &Context, retry: &mut Retry, detached: &Detached) -> Option<Duration> {
    match &detached.result {
        Ok(reply) => retry.after_reply(reply, || context.client.host_of(detached.connection)),
        // The node was given up before the request was written. Another node may be responsible now.
        Err(Outcome::NotSent) => Some(Duration::ZERO),
        Err(_) => None,
    }
}

fn refused(result: &Result<Value, Outcome>) -> Refused {
    let text = result.as_ref().ok().and_then(Value::as_error).unwrap_or_default();
    match error_code(text) {
        // Without an error text no part of the script was sent.
        _ if text.is_empty() => Refused::Elsewhere,
        "MOVED" => Refused::Elsewhere,
        "TRYAGAIN" => Refused::OnItsWay,
        "ASK" => Refused::Arrived,
        "NOSCRIPT" => Refused::NoScript,
        _ => Refused::Unserved,
    }
}

#[cfg(test)]
mod tests;
