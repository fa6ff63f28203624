//! Tests of `connection`.

use super::*;

/// What TLS has encrypted and the socket has not taken is in no queue: a driver that flushed before a caller left it there flushes again
/// before it waits, and so waits for the socket, too.
#[test]
fn a_driver_does_not_wait_while_a_caller_has_left_it_something() {
    let config: Config = "redis://in.memory".parse().unwrap();
    let shared = Shared::new(config, Role::Primary, 0, Box::new(|_| {}));
    let mut state = shared.lock();
    (state.armed, state.driver) = (Some(Instant::now()), Some(Waker::noop().clone()));
    assert!(state.park(), "nothing is left to do");
    assert!(state.leave_to_driver().is_some(), "it waits, and is woken");
    assert!(state.leave_to_driver().is_none(), "it is awake");
    assert!(!state.park(), "it looks once more,");
    assert!(state.park(), "and once is enough");
}
