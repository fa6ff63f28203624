//! Locks that travel to another process as tickets.

use std::time::Duration;

use wheellock::testing::{Double, Outage};
use wheellock::{Error, Guard, Lock, LockManager, Ticket};

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

/// The server counts further holds of the owner that the ticket names.
#[tokio::test(start_paused = true)]
async fn ticket_of_reading_writer_is_refused() {
    let double = Double::new();
    let [giver, taker] = managers(&double).await;
    let sides = giver.read_write_lock("n");
    let writer = sides.write().acquire().await.unwrap();
    let reader = sides.read().with_owner(writer.owner()).acquire().await.unwrap();
    let ticket = send(writer).await;
    assert!(matches!(taker.adopt(&ticket).await, Err(Error::TicketEnded { .. })));
    assert!(reader.is_valid());
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
