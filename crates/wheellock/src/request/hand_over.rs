//! Hand-over of a guard's hold within this process.
//!
//! A hold goes to a waiter or is released. Unclaimed hand-overs are checked. The table of holds decides whether a hold may be handed
//! over. The wait queue decides which waiter gets the hold.

use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use crate::request::context::Context;
use crate::table::holds::{GiveBack, HoldIndex, Share};
use crate::wait::name::{Name, Waiting};
use crate::wait::turns::Contenders;

/// Ends a guard for which no task waits. Hands its hold over to a waiter of this process, or releases its share.
pub(crate) fn end(context: &Context, name: &Arc<Name>, hold: HoldIndex, share: Share) {
    if !hand_over(context, name, hold, share) {
        context.transact(|holds, now, effects| effects.request_all(holds.release(hold, share, now)));
    }
}

/// Hands a guard's hold over to the head, and wakes the head. Does so only if this is the hold's last guard and the head can accept the
/// hold as it is. If it returns false, the caller must release the guard's share. The queue is then prepared for the release: other
/// processes may have to come before this process' next caller.
pub(crate) fn hand_over(context: &Context, name: &Arc<Name>, hold: HoldIndex, share: Share) -> bool {
    if !name.kind().stands_back() {
        return false;
    }
    let mut waiting = name.waiting();
    let Some(waiters) = &mut waiting.queue else { return false };
    let at = context.client.config().timer.now();
    let may_take_over = name.kind().may_be_handed_over() && !context.hand_over.is_zero();
    // `transact` could wake waiters, and would lock this queue again. A hand-over has no effects.
    let handed = if may_take_over && waiters.head_takes_over() {
        let limit = waiters.turn_limit(context.hand_over, at);
        context.change(|holds, clock| holds.hand_over(hold, share, limit, clock.now()))
    } else {
        // No waiter accepts the hold as it is.
        Err(GiveBack::Unfit)
    };
    let (waker, must_plan_check) = match handed {
        Ok(handed) => (waiters.hand_over(hold, handed, at), waiters.must_plan_check()),
        Err(why) => (begin_release(context, &mut waiting, (hold, share), why, at), false),
    };
    drop(waiting);
    if must_plan_check {
        look_soon(context, name);
    }
    waker.into_iter().for_each(Waker::wake);
    handed.is_ok()
}

/// Prepares the queue for a release of the guard's share to the server in any case, and wakes the head if it has a next step.
pub(crate) fn tell_head(context: &Context, name: &Name, hold: HoldIndex, share: Share) {
    if !name.kind().stands_back() {
        return;
    }
    let mut waiting = name.waiting();
    if waiting.queue.is_none() {
        return;
    }
    let at = context.client.config().timer.now();
    let head = begin_release(context, &mut waiting, (hold, share), GiveBack::Unfit, at);
    drop(waiting);
    head.into_iter().for_each(Waker::wake);
}

/// Prepares the queue for the release of this share of a hold. Returns the head's waker if the head has a next step. A head polls by itself
/// if it is not subscribed, or was not woken when it became head.
fn begin_release(
    context: &Context,
    waiting: &mut Waiting,
    (hold, share): (HoldIndex, Share),
    why: GiveBack,
    at: Instant,
) -> Option<Waker> {
    let is_polled = waiting.is_polled_often(|| context.clock.now());
    let waiters = waiting.queue.as_mut()?;
    let frees = || context.change(|holds, clock| holds.let_others(hold, share, clock.now()));
    // A process that hands the lock over learns of all pollers by the reply to its release.
    if why == GiveBack::OutOfTime || (is_polled && waiters.opens_for_pollers(at) && frees()) {
        waiters.give_back(true, at)
    } else if waiters.may_let_others(at) && frees() {
        waiters.let_others(at)
    } else if waiters.is_empty() {
        None
    } else {
        waiters.give_back(false, at)
    }
}

fn look_soon(context: &Context, name: &Arc<Name>) {
    context.change(|holds, clock| holds.alarms.look_after(Arc::clone(name), clock.now()));
}

/// Checks the hand-overs of a lock after a while. Takes a hold back from a waiter that has not accepted it in time. Notifies the head
/// that it is the head, because otherwise no task polls when the lease ends.
pub(crate) fn look_after(context: &Context, name: &Arc<Name>) {
    let now = context.client.config().timer.now();
    let mut waiting = name.waiting();
    let Some(waiters) = &mut waiting.queue else { return };
    let (unclaimed, head, again) = waiters.look_after(now);
    drop(waiting);
    head.into_iter().for_each(Waker::wake);
    if again {
        look_soon(context, name);
    }
    if let Some(hold) = unclaimed {
        end(context, name, hold, HANDED);
    }
}

/// Records the other contenders that a release by this process found. `is_planned` is true if the release let them have the lock.
pub(crate) fn released(context: &Context, name: &Arc<Name>, contenders: Contenders, is_planned: bool) {
    let now = context.client.config().timer.now();
    // This locks the table of names, which the order of locks puts before the queue.
    let contenders = contenders.and_beside(context.waited_for_beside(name));
    let mut waiting = name.waiting();
    let waiters = waiting.queue();
    let head = if is_planned {
        waiters.released(contenders, now)
    } else {
        waiters.released_unaware(contenders, now)
    };
    let quiet = waiters.begin_lingering();
    waiting.drop_unused();
    drop(waiting);
    head.into_iter().for_each(Waker::wake);
    if quiet {
        context.change(|holds, clock| holds.alarms.quiet(Arc::clone(name), clock.now()));
    }
}

/// The share that is handed over: one count, and a lease that the watchdog renews.
pub(crate) const HANDED: Share = Share { count: 1, renew: true };
