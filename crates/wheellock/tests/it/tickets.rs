//! Locks that travel to another process as tickets.

use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use wheellock::testing::{Double, Outage};
use wheellock::{Error, Guard, Lock, LockManager, LostReason, Ticket};

const LEASE: Duration = Duration::from_secs(30);

/// The kinds of locks that have tickets.
const KINDS: [fn(&LockManager) -> Lock; 6] = [
    |locks| locks.lock("plain"),
    |locks| locks.spin_lock("spin"),
    |locks| locks.fair_lock("fair"),
    |locks| locks.simple_lock("simple"),
    |locks| locks.read_write_lock("write").write(),
    |locks| locks.lock("fixed").with_lease(LEASE),
];

async fn managers<const N: usize>(double: &Double) -> [LockManager; N] {
    let mut managers = Vec::new();
    for _ in 0..N {
        managers.push(double.manager().await.unwrap());
    }
    managers.try_into().unwrap()
}

/// Turns the guard into a ticket, and sends it through its text.
async fn send(guard: Guard) -> Ticket {
    guard.into_ticket().await.unwrap().to_string().parse().unwrap()
}

async fn is_held(lock: &Lock) -> bool {
    !lock.try_acquire().await.unwrap().is_acquired()
}

#[tokio::test(start_paused = true)]
async fn adopted_lock_belongs_to_adopter() {
    let double = Double::new();
    let [giver, taker, others] = managers(&double).await;
    for lock_of in KINDS {
        let guard = lock_of(&giver).acquire().await.unwrap();
        let (name, before) = (guard.name().to_owned(), guard.owner());
        let ticket = send(guard).await;
        assert_eq!((ticket.lock(), ticket.lease()), (&*name, LEASE));
        assert!(is_held(&lock_of(&others)).await, "{name} travels");
        assert!(is_held(&lock_of(&giver)).await, "{name} left");
        let adopted = taker.adopt(&ticket).await.unwrap();
        assert!(adopted.is_valid() && adopted.owner() != before && adopted.name() == name);
        assert_eq!(lock_of(&others).holder().await.unwrap().unwrap().owner, adopted.owner().to_string());
        tokio::time::sleep(3 * LEASE).await;
        assert!(adopted.is_valid() && is_held(&lock_of(&others)).await, "{name} is renewed");
        adopted.release().await.unwrap();
        assert!(!is_held(&lock_of(&others)).await, "{name} is free");
    }
}

#[tokio::test(start_paused = true)]
async fn ticket_is_adopted_only_once() {
    let double = Double::new();
    let [giver, one, other] = managers(&double).await;
    for lock_of in KINDS {
        let ticket = send(lock_of(&giver).acquire().await.unwrap()).await;
        let both = tokio::join!(one.adopt(&ticket), other.adopt(&ticket));
        let ended = match both {
            (Ok(_guard), Err(error)) | (Err(error), Ok(_guard)) => error,
            both => panic!("{both:?}"),
        };
        assert!(matches!(ended, Error::TicketEnded { .. }), "{ended}");
        assert!(!giver.release_ticket(&ticket).await.unwrap());
    }
}

/// No process renews a ticket.
#[tokio::test(start_paused = true)]
async fn unused_ticket_ends_with_lease() {
    let double = Double::new();
    let [giver, taker] = managers(&double).await;
    for lock_of in KINDS {
        let held = lock_of(&giver).acquire().await.unwrap();
        // The ticket begins with a whole lease.
        tokio::time::sleep(LEASE / 4).await;
        let ticket = send(held).await;
        tokio::time::sleep(LEASE - Duration::from_millis(10)).await;
        assert!(is_held(&lock_of(&taker)).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
        let ended = taker.adopt(&ticket).await.unwrap_err();
        assert!(matches!(ended, Error::TicketEnded { .. }), "{ended}");
        assert!(!is_held(&lock_of(&taker)).await);
    }
}

#[tokio::test(start_paused = true)]
async fn released_ticket_wakes_waiter() {
    let double = Double::new();
    let [giver, waiters] = managers(&double).await;
    for lock_of in KINDS {
        let ticket = send(lock_of(&giver).acquire().await.unwrap()).await;
        let lock = lock_of(&waiters);
        let waiting = tokio::spawn(async move { lock.acquire().await });
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(giver.release_ticket(&ticket).await.unwrap());
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(waiting.is_finished());
        waiting.await.unwrap().unwrap().release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn fenced_adopter_gets_greater_token() {
    let double = Double::new();
    let [giver, taker] = managers(&double).await;
    let guard = giver.fenced_lock("ledger").acquire().await.unwrap();
    let before = guard.token();
    let ticket = guard.into_ticket().await.unwrap();
    let adopted = taker.adopt_fenced(&ticket).await.unwrap();
    assert!(adopted.token() > before);
    let plain = send(giver.lock("n").acquire().await.unwrap()).await;
    assert!(matches!(taker.adopt_fenced(&plain).await, Err(Error::NoTicket { .. })));
}

/// A thread, or a caller with the owner, would enter again beside the process that adopts the lock.
#[tokio::test(start_paused = true)]
async fn known_owner_waits_for_travelling_lock() {
    let double = Double::new();
    let [giver, taker] = managers(&double).await;
    let owner = giver.owner();
    for lock_of in KINDS {
        let lock = lock_of(&giver).with_owner(owner.clone());
        let ticket = send(lock.acquire().await.unwrap()).await;
        assert!(is_held(&lock).await, "{} left", lock.name());
        let adopted = taker.adopt(&ticket).await.unwrap();
        assert!(is_held(&lock).await && adopted.is_valid());
        adopted.release().await.unwrap();
        assert!(!is_held(&lock).await, "{} is free", lock.name());
    }
    let ticket = send(giver.lock("n").with_owner(owner.clone()).acquire().await.unwrap()).await;
    assert!(is_held(giver.fenced_lock("n").with_owner(owner).as_lock()).await, "by no other kind");
    assert!(giver.release_ticket(&ticket).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn shared_hold_has_no_ticket() {
    let double = Double::new();
    let [locks] = managers(&double).await;
    let outer = locks.lock("n").acquire().await.unwrap();
    let inner = locks.lock("n").with_owner(outer.owner()).acquire().await.unwrap();
    assert!(matches!(inner.into_ticket().await, Err(Error::NoTicket { .. })));
    assert!(outer.is_valid(), "the other guard stays");
    // The refused guard was released, so this guard is the only one.
    outer.renew().await.unwrap();
    let ticket = send(outer).await;
    assert!(locks.release_ticket(&ticket).await.unwrap());
    let reader = locks.read_write_lock("rw").read().acquire().await.unwrap();
    assert!(matches!(reader.into_ticket().await, Err(Error::NoTicket { .. })));
}

/// The error names the loss, although a lost hold cannot travel either.
#[tokio::test(start_paused = true)]
async fn lost_guard_makes_no_ticket() {
    let double = Double::new();
    let [locks] = managers(&double).await;
    let max = Duration::from_secs(1);
    let guard = locks.lock("n").with_max_hold(max).acquire().await.unwrap();
    tokio::time::sleep(2 * max).await;
    let error = guard.into_ticket().await.unwrap_err();
    assert!(matches!(error, Error::Lost { reason: LostReason::HeldTooLong, .. }), "{error}");
}

/// No process renews a ticket, so the maximum of the hold ends it.
#[tokio::test(start_paused = true)]
async fn maximum_ends_ticket() {
    let double = Double::new();
    let [giver, taker] = managers(&double).await;
    let max = LEASE + LEASE / 2;
    let guard = giver.lock("n").with_max_hold(max).acquire().await.unwrap();
    tokio::time::sleep(LEASE).await;
    let ticket = send(guard).await;
    tokio::time::sleep(LEASE / 2 - Duration::from_secs(1)).await;
    assert!(is_held(&taker.lock("n")).await);
    tokio::time::sleep(Duration::from_secs(1) + Duration::from_millis(10)).await;
    assert!(matches!(taker.adopt(&ticket).await, Err(Error::TicketEnded { .. })));
}

/// The server counts further holds of the owner.
#[tokio::test(start_paused = true)]
async fn reading_writer_makes_no_ticket() {
    let double = Double::new();
    let [giver] = managers(&double).await;
    let sides = giver.read_write_lock("n");
    let writer = sides.write().acquire().await.unwrap();
    let reader = sides.read().with_owner(writer.owner()).acquire().await.unwrap();
    assert!(matches!(writer.into_ticket().await, Err(Error::NoTicket { .. })));
    reader.renew().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn failed_ticket_releases_lock() {
    let double = Double::new();
    let [giver, others] = managers(&double).await;
    let guard = giver.lock("n").acquire().await.unwrap();
    double.outage(Outage::Down);
    let error = guard.into_ticket().await.unwrap_err();
    assert!(matches!(error, Error::Server { .. } | Error::Lost { .. }), "{error}");
    double.come_back();
    tokio::time::sleep(LEASE + Duration::from_secs(1)).await;
    assert!(!is_held(&others.lock("n")).await);
}

/// Polls a future this often at most. Returns `None` if it was dropped then.
async fn polled<F: Future>(future: F, polls: usize) -> Option<F::Output> {
    let (mut future, mut left) = (pin!(future), polls);
    std::future::poll_fn(|cx| {
        if left > 0
            && let Poll::Ready(output) = future.as_mut().poll(cx)
        {
            return Poll::Ready(Some(output));
        }
        left = left.saturating_sub(1);
        if left == 0 { Poll::Ready(None) } else { Poll::Pending }
    })
    .await
}

async fn free_within(time: Duration, lock: &Lock) {
    let acquired = tokio::time::timeout(time, lock.acquire()).await;
    acquired.unwrap_or_else(|_| panic!("{} stays held", lock.name())).unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn ticket_dropped_in_making_releases() {
    let double = Double::new();
    let [giver, others] = managers(&double).await;
    let known = giver.owner();
    for (lock_of, is_known) in KINDS.into_iter().flat_map(|lock_of| [(lock_of, false), (lock_of, true)]) {
        for polls in 0.. {
            let lock = lock_of(&giver);
            let lock = if is_known { lock.with_owner(known.clone()) } else { lock };
            let guard = lock.acquire().await.unwrap();
            if let Some(ticket) = polled(guard.into_ticket(), polls).await {
                assert!(giver.release_ticket(&ticket.unwrap()).await.unwrap() && polls > 1);
                break;
            }
            free_within(Duration::from_secs(1), &lock_of(&others)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn dropped_adoption_costs_one_lease() {
    let double = Double::new();
    let [giver, taker, others] = managers(&double).await;
    for lock_of in KINDS {
        for polls in 0.. {
            let ticket = send(lock_of(&giver).acquire().await.unwrap()).await;
            if let Some(adopted) = polled(taker.adopt(&ticket), polls).await {
                assert!(polls > 1);
                adopted.unwrap().release().await.unwrap();
                break;
            }
            free_within(LEASE + Duration::from_millis(50), &lock_of(&others)).await;
            assert!(!giver.release_ticket(&ticket).await.unwrap());
        }
    }
}

/// A lock that travels is never free and never held twice, whatever is dropped. `WHEELLOCK_TRANSFERS` sets the number of transfers.
#[tokio::test(start_paused = true)]
async fn random_transfers_leave_no_gap() {
    let double = Double::new();
    let [one, other, others] = managers(&double).await;
    let transfers = std::env::var("WHEELLOCK_TRANSFERS").ok().and_then(|number| number.parse().ok());
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = |bound: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(random >> 33).unwrap() % bound
    };
    let (mut made, mut held): (u32, Option<Guard>) = (0, None);
    while made < transfers.unwrap_or(3000) {
        let lock_of = KINDS[below(KINDS.len())];
        let (giver, taker) = if below(2) == 0 { (&one, &other) } else { (&other, &one) };
        let guard = match held.take() {
            Some(guard) => guard,
            None => tokio::time::timeout(LEASE * 2, lock_of(giver).acquire()).await.unwrap().unwrap(),
        };
        let name = guard.name().to_owned();
        let lock_of = KINDS.into_iter().find(|lock_of| lock_of(&others).name() == name).unwrap();
        let Some(ticket) = polled(guard.into_ticket(), 1 + below(30)).await else { continue };
        let ticket = ticket.unwrap();
        assert!(is_held(&lock_of(&others)).await, "{name} was free");
        // The first adoption may be dropped before or after its effect.
        let adopted = match polled(taker.adopt(&ticket), below(30)).await {
            Some(adopted) => Some(adopted.unwrap()),
            None => giver.adopt(&ticket).await.ok(),
        };
        made += 1;
        if let Some(guard) = &adopted {
            assert!(guard.is_valid() && is_held(&lock_of(&others)).await, "{name} is held");
            assert!(matches!(others.adopt(&ticket).await, Err(Error::TicketEnded { .. })));
        }
        held = adopted;
    }
}
