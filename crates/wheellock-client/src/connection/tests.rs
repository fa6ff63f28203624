//! Tests of `connection`.

use super::*;

/// TLS bytes that are encrypted and not yet taken by the socket are not in any queue. A driver that flushed before a
/// caller left such bytes must flush again before it waits. Then it also waits for the socket.
#[test]
fn driver_flushes_again_before_parking() {
    let config: Config = "redis://in.memory".parse().unwrap();
    let shared = Shared::new(config, Role::Primary, 0, Box::new(|_| {}));
    let mut state = shared.lock();
    state.alarm = Alarm::Set(Instant::now());
    assert!(state.park(Waker::noop()), "nothing is left to do");
    assert!(state.driver.wake_or_repeat().is_some(), "it waits, and is woken");
    assert!(state.driver.wake_or_repeat().is_none(), "it is awake");
    assert!(!state.park(Waker::noop()), "it looks once more,");
    assert!(state.park(Waker::noop()), "and once is enough");
}
