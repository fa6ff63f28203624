//! Tests of the effects of a change.

use super::*;

fn request(owner: u64) -> Reconcile {
    let name = Arc::new(Name::new("n", &kind::REENTRANT, false));
    Reconcile { hold: 0, name, owner, count: 0, min: None, retry: Retry::default() }
}

#[test]
fn effects_keep_order_of_requests() {
    let mut effects = Effects::default();
    assert!(!effects.has_more_requests());
    effects.request(request(1));
    assert!(!effects.has_more_requests());
    effects.request_all([request(2), request(3)]);
    assert!(effects.has_more_requests());
    let mut owners = vec![effects.next_request().unwrap().owner];
    effects.request(request(4));
    owners.extend(std::iter::from_fn(|| effects.next_request()).map(|request| request.owner));
    assert_eq!(owners, [1, 2, 3, 4]);
    assert!(!effects.has_more_requests());
}

#[test]
fn finished_effects_wake_and_report() {
    let (tasks, name) = ([Arc::<Task>::default(), Arc::default()], request(1).name);
    let mut effects = Effects::default();
    effects.reuse(Vec::with_capacity(100));
    effects.wake_one(tasks[0].waker());
    effects.wake_one(tasks[1].waker());
    effects.wake([tasks[0].waker()]);
    effects.lost(&name, LostReason::Expired);
    let failing = Failing { locks: 1, failures: 2, failing: LEASE };
    effects.renewal_failed(&Err(wheellock_client::Outcome::NotSent), None);
    effects.renewed_again(None);
    effects.jumped(None);
    effects.renewal_failed(&Err(wheellock_client::Outcome::NotSent), Some(failing));
    effects.renewed_again(Some(LEASE));
    effects.renewed_again(None);
    effects.jumped(Some(Jump::Forward(LEASE)));
    effects.wake_all();
    let Effects { rest, wake: room, .. } = effects;
    assert_eq!(tasks.map(|task| task.woken()), [2, 1]);
    assert!(room.is_empty() && room.capacity() >= 100);
    let rest = rest.unwrap();
    assert!(matches!(&rest.lost[..], [(lost, LostReason::Expired)] if Arc::ptr_eq(lost, &name)));
    assert_eq!(rest.failed_renewals.map(|(_, failing)| failing), Some(failing));
    assert_eq!((rest.renewed_again, rest.jumps), (Some(LEASE), vec![Jump::Forward(LEASE)]));
    let mut none = Effects::default();
    none.wake_all();
    assert!(none.rest.is_none() && none.wake.capacity() == 0);
}
