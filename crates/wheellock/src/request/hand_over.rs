//! What a guard has of a hold passes to a waiter of this process, or is given back; and what was handed over is looked after. Whether a
//! hold may be handed over is for the table of holds to say, and to whom for the wait queue.

use std::sync::Arc;
use std::task::Waker;

use crate::request::context::Context;
use crate::table::holds::{GiveBack, HoldIndex, Share};
use crate::wait::name::Name;
use crate::wait::turns::Contenders;

/// A guard goes, and nobody waits for what becomes of its share: a waiter of this process has it, or the server is told.
pub(crate) fn end(context: &Context, name: &Arc<Name>, hold: HoldIndex, share: Share) {
    if !hand_over(context, name, hold, share) {
        context.transact(|holds, now, effects| effects.request_all(holds.release(hold, share, now)));
    }
}

/// A guard goes. If it is the last one of its hold, and the first of this process' waiters can have that as it is, it does, and is
/// woken: then nothing is left to do. Otherwise the guard's share is to be given back.
pub(crate) fn hand_over(context: &Context, name: &Arc<Name>, hold: HoldIndex, share: Share) -> bool {
    name.is_waited_for() && name.kind().may_be_handed_over() && hand_over_to_head(context, name, hold, share)
}

/// A guard goes whose hold others of this process have joined: it stays with them. If there are none, nothing happens.
pub(crate) fn leave_to_others(context: &Context, name: &Name, hold: HoldIndex, share: Share) -> bool {
    name.kind().may_be_joined() && context.transact(|holds, now, _| holds.leave_to_others(hold, share, now))
}

/// A guard's share is to be given back in any case. The head of the queue has to look by itself, if it was not told so before.
pub(crate) fn tell_head(context: &Context, name: &Arc<Name>) {
    if name.is_waited_for() && name.kind().may_be_handed_over() {
        let now = context.client.config().timer.now();
        let head = name.wait_queue().as_mut().and_then(|waiters| waiters.give_back(false, now));
        head.into_iter().for_each(Waker::wake);
    }
}

fn hand_over_to_head(context: &Context, name: &Arc<Name>, hold: HoldIndex, share: Share) -> bool {
    let (timer, budget) = (&context.client.config().timer, context.hand_over);
    let mut queue = name.wait_queue();
    let Some(waiters) = &mut *queue else { return false };
    let at = timer.now();
    let handed = if !budget.is_zero() && waiters.head_takes_over() {
        let time = waiters.time(budget, at);
        context.transact(|holds, now, _| holds.hand_over(hold, share, time, now))
    } else {
        // No waiter takes it as it is.
        Err(GiveBack::Unfit)
    };
    let (waker, is_first) = match handed {
        Ok(handed) => (waiters.hand_over(hold, handed, at), waiters.begin_looking_after()),
        Err(why) => (waiters.give_back(why == GiveBack::OutOfTime, at), false),
    };
    drop(queue);
    if is_first {
        look_soon(context, name);
    }
    waker.into_iter().for_each(Waker::wake);
    handed.is_ok()
}

fn look_soon(context: &Context, name: &Arc<Name>) {
    context.transact(|holds, now, _| holds.look_after(Arc::clone(name), now));
}

/// A lock was handed over a little while ago. A waiter that has not taken it in all that time does not get it, and the head of the
/// queue is told that it is one, for nobody else would look when the lease ends.
pub(crate) fn look_after(context: &Context, name: &Arc<Name>) {
    let now = context.client.config().timer.now();
    let mut queue = name.wait_queue();
    let Some(waiters) = &mut *queue else { return };
    let (untaken, head, again) = waiters.look_after(now);
    drop(queue);
    head.into_iter().for_each(Waker::wake);
    if again {
        look_soon(context, name);
    }
    if let Some(hold) = untaken {
        end(context, name, hold, HANDED);
    }
}

/// Enters which other contenders a release by this process has found.
pub(crate) fn released(context: &Context, name: &Name, contenders: Contenders) {
    let now = context.client.config().timer.now();
    let contenders = contenders.and_beside(context.waited_for_beside(name));
    let head = name.wait_queue().as_mut().and_then(|waiters| waiters.released(contenders, now));
    head.into_iter().for_each(Waker::wake);
}

/// The share that is handed over: the lock is held once, and the watchdog keeps it.
pub(crate) const HANDED: Share = Share { count: 1, renew: true };
