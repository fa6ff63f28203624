//! Tests of `owners`.

use std::task::Context;
use std::time::Instant;

use super::*;
use crate::wait::poll_schedule::Turn;
use crate::wait::wait_queue::{Ending, Manner};

#[test]
fn owner_waiters_poll_in_order() {
    let (mut waiters, now) = (WaitQueue::default(), Instant::now());
    let [other, first, second] = [waiters.join(1), waiters.join(1), waiters.join(1)];
    for (ticket, owner) in [(other, None), (first, Some(7)), (second, Some(7))] {
        waiters.set_manner(ticket, Manner { owner, ..Manner::default() });
    }
    let ask = |waiters: &mut WaitQueue, ticket| {
        let mut cx = Context::from_waker(Waker::noop());
        matches!(waiters.turn(ticket, false, now, &mut cx), Turn::Ask { .. })
    };
    assert!(ask(&mut waiters, other));
    waiters.on_held(now, None);
    assert!(!ask(&mut waiters, first) && !ask(&mut waiters, second));
    assert!(waiters.allow_owner_poll(7).is_some() && waiters.allow_owner_poll(8).is_none());
    assert!(ask(&mut waiters, first) && !ask(&mut waiters, second));
    assert!(waiters.allow_owner_poll(7).is_some(), "the first one is asking");
    assert!(ask(&mut waiters, second));
    waiters.leave(first, Ending::InVain, now);
    assert!(waiters.is_wanted_by(7) && !waiters.is_wanted_by(8));
    waiters.leave(second, Ending::InVain, now);
    assert!(!waiters.is_wanted_by(7));
}
