//! Tests of `connection`.

use super::*;

/// TLS bytes that are encrypted and not yet taken by the socket are not in any queue. A driver that flushed before a
/// caller left such bytes must flush again before it waits. Then it also waits for the socket.
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
