//! Waits that could be too long, or endless.
//!
//! Another caller must not cause the loss of a request or a message. The tests use tokio's paused time, which only moves while tasks wait
//! for it.

use std::future::poll_fn;
use std::num::NonZeroU32;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use wheellock::client::Command;
use wheellock::testing::{Double, Outage};
use wheellock::{Attempt, Error, LockManager, RedLockManager, multi_lock};

/// Longer than any round trip here, and shorter than the time after which a head polls without a message.
const SOON: Duration = Duration::from_secs(1);
const TRIP: Duration = Duration::from_millis(6);
/// Time that the server has to answer a call that does not wait.
const FIRST_ANSWER: Duration = Duration::from_millis(300);

/// Returns two processes and one server at some distance.
async fn two() -> (Double, LockManager, LockManager) {
    let double = Double::new();
    let (here, there) = (double.manager().await.unwrap(), double.manager().await.unwrap());
    double.delay(TRIP);
    (double, here, there)
}

/// Waits until all pending requests and replies have arrived.
async fn arrives() {
    sleep(4 * TRIP).await;
}

/// Polls a future once, which sends its request.
macro_rules! asks {
    ($future:ident) => {
        let polled = poll_fn(|cx| Poll::Ready($future.as_mut().poll(cx).is_pending())).await;
        assert!(polled, "it has no answer yet");
    };
}

/// Other libraries send no message. The server tells of the release one trip after it, and replies to the poll one trip later.
#[tokio::test(start_paused = true)]
async fn foreign_release_wakes_at_once() {
    let (_double, here, there) = two().await;
    for round in 0..50 {
        let put = async |words: &[&str]| {
            let command = Command::new(words[0]).args(words[1..].iter().copied());
            there.client().call(&command).await.unwrap();
        };
        put(&["SET", "k", "foreign", "PX", "30000"]).await;
        let lock = here.simple_lock("k");
        let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
        sleep(Duration::from_millis(500 + 7 * round)).await;
        let released = Instant::now();
        put(&["DEL", "k"]).await;
        let guard = waiter.await.unwrap();
        // A poll by the schedule may have left before the deletion, and the news follow its reply.
        assert!(released.elapsed() <= 3 * TRIP, "round {round}: {:?}", released.elapsed());
        guard.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn other_poll_never_hides_release() {
    for is_set in [false, true] {
        let (_double, here, there) = two().await;
        let (lock, other) = (here.lock("k"), there.lock("other").acquire().await.unwrap());
        let held = there.lock("k").acquire().await.unwrap();
        assert!(
            !lock.try_acquire_for(2 * TRIP).await.unwrap().is_acquired(),
            "from now on this process listens"
        );
        let set = multi_lock([lock.clone(), here.lock("l")]).unwrap();
        let mut waiter = pin!(async {
            if is_set { set.acquire().await.map(drop) } else { lock.acquire().await.map(drop) }
        });
        asks!(waiter);
        arrives().await;
        held.release().await.unwrap();
        arrives().await;
        // Only now the waiter runs and finds its reply, which says that the lock was held.
        let set = multi_lock([here.lock("k"), here.lock("other")]).unwrap();
        assert!(!set.try_acquire().await.unwrap().is_acquired());
        timeout(SOON, waiter).await.expect("it is free").unwrap();
        drop(other);
    }
}

#[tokio::test(start_paused = true)]
async fn other_poll_never_hides_permit() {
    let (_double, here, there) = two().await;
    let (permits, theirs) = (here.semaphore("s"), there.semaphore("s"));
    assert!(theirs.try_set_permits(2).await.unwrap());
    let held = theirs.acquire(2).await.unwrap();
    assert!(
        !permits.try_acquire_for(1, 2 * TRIP).await.unwrap().is_acquired(),
        "from now on this process listens"
    );
    let mut waiter = pin!(permits.acquire(1));
    asks!(waiter);
    arrives().await;
    held.release().await.unwrap();
    arrives().await;
    let other = permits.acquire(1).await.unwrap();
    drop(timeout(SOON, waiter).await.expect("one is free").unwrap());
    drop(other);
}

#[tokio::test(start_paused = true)]
async fn other_poll_never_hides_opening() {
    let (_double, here, there) = two().await;
    let (latch, theirs) = (here.count_down_latch("l"), there.count_down_latch("l"));
    assert!(theirs.try_set_count(NonZeroU32::MIN).await.unwrap());
    assert!(!latch.wait_for(2 * TRIP).await.unwrap(), "from now on this process listens");
    let mut waiter = pin!(latch.wait());
    asks!(waiter);
    arrives().await;
    theirs.count_down().await.unwrap();
    arrives().await;
    latch.wait().await.unwrap();
    timeout(SOON, waiter).await.expect("it is open").unwrap();
}

/// Three permits are free. The first waiter wants five permits, and stands before a waiter that wants one.
#[tokio::test(start_paused = true)]
async fn small_request_succeeds_after_large_leaves() {
    let (_double, here, there) = two().await;
    assert!(there.semaphore("s").try_set_permits(3).await.unwrap());
    let (many, few) = (here.semaphore("s"), here.semaphore("s"));
    let first = tokio::spawn(async move { many.try_acquire_for(5, SOON).await });
    arrives().await;
    let granted = few.try_acquire_for(1, 2 * SOON).await.unwrap();
    assert!(!first.await.unwrap().unwrap().is_acquired());
    assert!(granted.is_acquired(), "three were free");
}

/// Three permits are free. Each waiter keeps its position until its wait ends. A caller that does not wait takes free permits.
#[tokio::test(start_paused = true)]
async fn short_wait_never_passes_large_request() {
    let (_double, here, there) = two().await;
    assert!(there.semaphore("s").try_set_permits(3).await.unwrap());
    let (many, few) = (here.semaphore("s"), here.semaphore("s"));
    let first = tokio::spawn(async move { many.try_acquire_for(5, 2 * SOON).await });
    arrives().await;
    for wait in [TRIP, SOON] {
        assert!(!few.try_acquire_for(1, wait).await.unwrap().is_acquired(), "{wait:?}");
    }
    assert!(few.try_acquire_for(1, Duration::ZERO).await.unwrap().is_acquired());
    assert!(few.try_acquire(1).await.unwrap().is_acquired());
    assert!(!first.await.unwrap().unwrap().is_acquired());
}

/// Another process' permit becomes free when its lease ends, whatever was granted meanwhile. That process has died.
#[tokio::test(start_paused = true)]
async fn expired_lease_is_found_despite_grants() {
    let (double, here, there) = two().await;
    let (permits, theirs) = (here.permit_semaphore("s"), there.permit_semaphore("s"));
    assert!(theirs.try_set_permits(2).await.unwrap());
    let held = theirs.acquire().await.unwrap();
    let ended = double.manager().await.unwrap();
    let lease = SOON / 2;
    let forgotten = ended.permit_semaphore("s").with_lease(lease).acquire().await.unwrap();
    let spawn = || {
        let permits = permits.clone();
        tokio::spawn(async move { permits.acquire().await })
    };
    let first = spawn();
    arrives().await;
    let second = spawn();
    arrives().await;
    held.release().await.unwrap();
    let first = timeout(lease / 2, first).await.expect("one is free").unwrap().unwrap();
    let second = timeout(SOON, second).await.expect("the lease is over").unwrap().unwrap();
    drop((first, second, forgotten));
}

/// Both leases have expired before the reply of the other server arrives.
#[tokio::test(start_paused = true)]
async fn set_with_expired_leases_returns_error() {
    let (near, far) = (Double::new(), Double::new());
    let locks = [near.manager().await.unwrap().lock("a"), far.manager().await.unwrap().lock("b")];
    near.delay(TRIP);
    far.delay(TRIP);
    let set = multi_lock(locks).unwrap().with_lease(10 * TRIP / 6);
    let began = Instant::now();
    let too_late = |error: Error| assert!(matches!(error, Error::GrantedTooLate { .. }), "{error}");
    too_late(timeout(SOON, set.try_acquire()).await.expect("it ends").unwrap_err());
    let waited = timeout(2 * SOON, set.try_acquire_for(SOON)).await.expect("it ends with its wait");
    assert!(waited.is_err() && Instant::now() >= began + SOON);
    let waiting = tokio::spawn(async move { set.acquire().await });
    sleep(SOON).await;
    assert!(!waiting.is_finished(), "a wait without a limit goes on");
    near.delay(TRIP / 8);
    far.delay(TRIP / 8);
    drop(timeout(SOON, waiting).await.expect("they are fast enough").unwrap().unwrap());
}

/// L7: a wait without a limit outlasts answers that take longer than the lease. A limited wait ends at its limit.
#[tokio::test(start_paused = true)]
async fn waits_outlast_answers_slower_than_lease() {
    let double = Double::new();
    let locks = double.manager().await.unwrap();
    assert!(locks.permit_semaphore("permits").try_set_permits(1).await.unwrap());
    let sides = locks.read_write_lock("sides");
    let lease = 2 * TRIP;
    let kinds = [
        locks.lock("lock"),
        locks.spin_lock("spin"),
        locks.fair_lock("fair"),
        locks.fenced_lock("fenced").as_lock().clone(),
        locks.simple_lock("simple"),
        sides.read(),
        sides.write(),
    ];
    for lock in kinds.map(|lock| lock.with_lease(lease)) {
        for lock in [lock.clone(), lock.with_owner(locks.owner())] {
            double.delay(2 * lease);
            let error = lock.try_acquire().await.unwrap_err();
            assert!(matches!(error, Error::GrantedTooLate { .. }), "{error}");
            let began = Instant::now();
            let ended = timeout(SOON, lock.try_acquire_for(20 * lease)).await.expect("it ends with its wait");
            assert!(ended.is_err() && began.elapsed() >= 20 * lease, "{:?} {ended:?}", began.elapsed());
            let waiting = tokio::spawn({
                let lock = lock.clone();
                async move { lock.acquire().await }
            });
            sleep(20 * lease).await;
            assert!(!waiting.is_finished(), "{lock:?}");
            double.delay(Duration::ZERO);
            let guard = timeout(SOON, waiting).await.expect("it is fast enough").unwrap().unwrap();
            assert!(guard.is_valid());
            guard.release().await.unwrap();
            assert!(!lock.is_locked().await.unwrap(), "{lock:?}");
        }
    }
    let permits = locks.permit_semaphore("permits").with_lease(lease);
    double.delay(2 * lease);
    let waiting = tokio::spawn(async move { permits.acquire().await });
    sleep(20 * lease).await;
    assert!(!waiting.is_finished());
    double.delay(Duration::ZERO);
    drop(timeout(SOON, waiting).await.expect("it is fast enough").unwrap().unwrap());
}

/// L12: calls without a wait behave like calls with a wait of zero. That holds for all kinds, for a dead server and for a silent server.
#[tokio::test(start_paused = true)]
async fn outage_ends_calls_without_wait_soon() {
    for outage in [Outage::Down, Outage::Silent] {
        let double = Double::new();
        let locks = double.manager().await.unwrap();
        let quorum = RedLockManager::new([locks.clone()]).await.unwrap().lock("quorum");
        assert!(locks.lock("lock").try_acquire().await.unwrap().is_acquired());
        arrives().await;
        double.outage(outage);
        sleep(TRIP).await;
        let sides = locks.read_write_lock("sides");
        let (semaphore, permits) = (locks.semaphore("semaphore"), locks.permit_semaphore("permits"));
        let set = multi_lock([locks.lock("first"), locks.lock("second")]).unwrap();
        macro_rules! ends_soon {
            ($($call:expr),*) => {$(
                let began = Instant::now();
                let error = $call.await.map(drop).unwrap_err();
                assert!(error.is_unavailable(), "{error}");
                let elapsed = began.elapsed();
                assert!(elapsed >= FIRST_ANSWER && elapsed < FIRST_ANSWER + 2 * TRIP, "{elapsed:?}: {error}");
            )*};
        }
        for lock in [
            locks.lock("lock"),
            locks.spin_lock("spin"),
            locks.fair_lock("fair"),
            locks.simple_lock("simple"),
            sides.read(),
            sides.write(),
        ] {
            ends_soon!(lock.try_acquire(), lock.try_acquire_for(Duration::ZERO));
        }
        ends_soon!(
            locks.fenced_lock("fenced").try_acquire(),
            locks.fenced_lock("fenced").try_acquire_for(Duration::ZERO)
        );
        ends_soon!(semaphore.try_acquire(1), semaphore.try_acquire_for(1, Duration::ZERO));
        ends_soon!(permits.try_acquire(), permits.try_acquire_for(Duration::ZERO));
        ends_soon!(set.try_acquire(), set.try_acquire_for(Duration::ZERO));
        ends_soon!(quorum.try_acquire(), quorum.try_acquire_for(Duration::ZERO));
    }
}

/// A caller that joins the queue sends no request while an earlier caller's request is unanswered. Its wait ends at its limit nevertheless.
#[tokio::test(start_paused = true)]
async fn silent_server_delays_no_end_of_wait() {
    let double = Double::new();
    let locks = double.manager().await.unwrap();
    double.outage(Outage::Silent);
    for (round, limit) in
        [FIRST_ANSWER / 2, FIRST_ANSWER - TRIP, FIRST_ANSWER, 2 * FIRST_ANSWER].into_iter().enumerate()
    {
        let lock = locks.lock(&format!("k{round}"));
        let earlier = lock.clone();
        let earlier = tokio::spawn(async move { earlier.acquire().await.map(drop) });
        sleep(TRIP).await;
        let began = Instant::now();
        lock.try_acquire_for(limit).await.unwrap_err();
        let (elapsed, limit) = (began.elapsed(), limit.max(FIRST_ANSWER));
        assert!(elapsed >= limit && elapsed < limit + 2 * TRIP, "{elapsed:?} of {limit:?}");
        earlier.abort();
    }
}

/// A grant comes after its lease, and the caller begins anew behind another waiter. It has had its time for a first reply.
#[tokio::test(start_paused = true)]
async fn late_grant_prolongs_no_wait() {
    const DELAY: Duration = Duration::from_millis(200);
    let double = Double::new();
    let locks = double.manager().await.unwrap();
    double.delay(DELAY);
    let lock = locks.lock("k");
    let waiter = lock.clone();
    let waiter = tokio::spawn(async move {
        sleep(TRIP).await;
        waiter.acquire().await.map(drop)
    });
    let began = Instant::now();
    let late = lock.with_lease(DELAY).try_acquire_for(FIRST_ANSWER - TRIP).await;
    let elapsed = began.elapsed();
    assert!(elapsed <= FIRST_ANSWER + TRIP, "{elapsed:?}: {late:?}");
    waiter.abort();
}

/// An earlier waiter was refused, or had the lock. A later caller joins behind a request without a reply. An old reply says nothing to it.
#[tokio::test(start_paused = true)]
async fn earlier_reply_hides_no_silent_server() {
    for was_granted in [false, true] {
        for limit in [FIRST_ANSWER / 2, 2 * FIRST_ANSWER] {
            let double = Double::new();
            let (here, there) = (double.manager().await.unwrap(), double.manager().await.unwrap());
            let (lock, earlier) = (here.lock("k"), here.lock("k"));
            let held = there.lock("k").acquire().await.unwrap();
            if was_granted {
                let waiter = lock.clone();
                let waiter = tokio::spawn(async move { waiter.acquire().await.unwrap() });
                sleep(TRIP).await;
                held.release().await.unwrap();
                waiter.await.unwrap().release().await.unwrap();
            } else {
                assert!(!lock.try_acquire_for(TRIP).await.unwrap().is_acquired());
            }
            double.outage(Outage::Silent);
            let earlier = tokio::spawn(async move { earlier.acquire().await.map(drop) });
            sleep(TRIP).await;
            let end = lock.try_acquire_for(limit).await;
            assert!(end.is_err(), "{limit:?}, {was_granted}: {end:?}");
            earlier.abort();
        }
    }
}

/// The first connection has the response timeout, because there is no sign yet that its server is down.
#[tokio::test(start_paused = true)]
async fn first_connection_outlasts_first_answer() {
    let double = Double::new();
    let locks = double.lazy_manager_with(|settings| settings).unwrap();
    double.delay(FIRST_ANSWER / 2);
    assert!(locks.lock("k").try_acquire().await.unwrap().is_acquired());
}

/// A manager that has not connected yet does not know which server it belongs to.
#[tokio::test(start_paused = true)]
async fn duplicate_set_member_returns_error() {
    let double = Double::new();
    let one = double.lazy_manager_with(|settings| settings).unwrap();
    let other = double.lazy_manager_with(|_| LockManager::builder("redis://another-name")).unwrap();
    let set = multi_lock([one.lock("k"), other.lock("k")]).unwrap();
    let twice = |error: Error| assert!(matches!(error, Error::DuplicateMember { .. }), "{error}");
    twice(timeout(SOON, set.acquire()).await.expect("it ends").unwrap_err());
    twice(set.try_acquire().await.unwrap_err());
    arrives().await;
    assert!(one.lock("k").try_acquire().await.unwrap().is_acquired(), "nothing is held");
}

/// Several tasks share an owner. Some of them came before the owner had the lock.
#[tokio::test(start_paused = true)]
async fn nobody_waits_for_its_own_owner() {
    for is_fair in [false, true] {
        let (_double, here, there) = two().await;
        let lock = |locks: &LockManager| if is_fair { locks.fair_lock("k") } else { locks.lock("k") };
        let held = lock(&there).acquire().await.unwrap();
        let shared = lock(&here).with_owner(here.owner());
        let mut waiting = Vec::new();
        for lock in [shared.clone(), lock(&here), shared] {
            waiting.push(tokio::spawn(async move { lock.acquire().await }));
            arrives().await;
        }
        let [first, stranger, second] = waiting.try_into().unwrap();
        held.release().await.unwrap();
        let first = timeout(SOON, first).await.expect("it is its turn").unwrap().unwrap();
        let second = timeout(SOON, second).await.expect("its owner has it").unwrap().unwrap();
        assert!(first.owner() == second.owner() && !stranger.is_finished());
        drop((first, second));
        timeout(SOON, stranger).await.expect("it is free").unwrap().unwrap().release().await.unwrap();
    }
}

/// The waiters are granted the lock one after the other, even if one of them gives up at its turn.
#[tokio::test(start_paused = true)]
async fn grant_reaches_all_waiters_of_owner() {
    let (_double, here, there) = two().await;
    let held = there.lock("k").acquire().await.unwrap();
    let shared = here.lock("k").with_owner(here.owner());
    let mut waiting = Vec::new();
    for _ in 0..50 {
        let lock = shared.clone();
        waiting.push(tokio::spawn(async move { lock.acquire().await }));
        arrives().await;
    }
    held.release().await.unwrap();
    let mut guards = vec![timeout(SOON, waiting.remove(0)).await.expect("it is its turn").unwrap().unwrap()];
    waiting.remove(0).abort();
    for waiting in waiting {
        guards.push(timeout(SOON, waiting).await.expect("its owner has it").unwrap().unwrap());
    }
    drop(guards);
    assert!(there.lock("k").try_acquire_for(SOON).await.unwrap().is_acquired());
}

/// A lock that is granted only once says so to its holder, which polls again. It does not say so to a waiter that came earlier.
#[tokio::test(start_paused = true)]
async fn simple_lock_owner_waits_for_release() {
    let (_double, here, there) = two().await;
    let held = there.simple_lock("k").acquire().await.unwrap();
    let shared = here.simple_lock("k").with_owner(here.owner());
    let mut waiting = Vec::new();
    for lock in [shared.clone(), shared] {
        waiting.push(tokio::spawn(async move { lock.acquire().await }));
        arrives().await;
    }
    let [first, second] = waiting.try_into().unwrap();
    held.release().await.unwrap();
    let first = timeout(SOON, first).await.expect("it is its turn").unwrap().unwrap();
    arrives().await;
    assert!(!second.is_finished());
    first.release().await.unwrap();
    timeout(SOON, second).await.expect("it is free").unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn leaving_waiter_passes_on_owner_position() {
    let (_double, here, there) = two().await;
    let held = there.fair_lock("k").acquire().await.unwrap();
    let shared = here.fair_lock("k").with_owner(here.owner());
    let (first, second, other) = (shared.clone(), shared, there.fair_lock("k"));
    let first = tokio::spawn(async move { first.try_acquire_for(SOON / 2).await });
    arrives().await;
    let second = tokio::spawn(async move { second.acquire().await });
    arrives().await;
    let other = tokio::spawn(async move { other.acquire().await });
    assert!(!first.await.unwrap().unwrap().is_acquired());
    arrives().await;
    held.release().await.unwrap();
    let second = timeout(SOON, second).await.expect("it is its turn").unwrap().unwrap();
    assert!(!other.is_finished());
    drop(second);
    drop(timeout(SOON, other).await.expect("it is free").unwrap().unwrap());
}

/// Returns the name and the remaining lease of a refusal, in milliseconds.
fn refusal<G: std::fmt::Debug>(attempt: Attempt<G>) -> (String, Option<u128>) {
    let Attempt::Held { lock, lease_left, .. } = attempt else { panic!("granted: {attempt:?}") };
    (lock, lease_left.map(|left| left.as_millis()))
}

/// P1: a refusal tells the lock and the holder's remaining lease. At the end of a wait, the lease counts from the last reply.
#[tokio::test(start_paused = true)]
async fn refusal_tells_remaining_lease() {
    let (_double, here, there) = two().await;
    let held = there.lock("k").with_lease(4 * SOON).acquire().await.unwrap();
    let lock = here.lock("k");
    let refused = lock.try_acquire().await.unwrap().or_held();
    let Err(Error::Held { lock: name, lease_left: Some(left) }) = refused else { panic!("{refused:?}") };
    assert!(name == "k" && (3900..4000).contains(&left.as_millis()), "{left:?}");
    // The first waiter has a reply of its own. The second waiter relies on it.
    let (first, second) = (lock.clone(), lock.clone());
    let first = tokio::spawn(async move { first.try_acquire_for(SOON).await.unwrap() });
    arrives().await;
    let second = tokio::spawn(async move { second.try_acquire_for(SOON).await.unwrap() });
    for waiter in [first, second] {
        let left = refusal(waiter.await.unwrap()).1.unwrap();
        assert!((2800..3000).contains(&left), "{left}");
    }
    // A set names the member that another holder has.
    let set = multi_lock([here.lock("free"), lock]).unwrap();
    let (name, left) = refusal(set.try_acquire_for(SOON / 2).await.unwrap());
    assert!(name == "k" && left.is_some_and(|left| (2200..2500).contains(&left)), "{left:?}");
    let elected = refusal(here.election("k").try_campaign().await.unwrap());
    assert!(elected.0 == "k" && elected.1.is_some());
    held.release().await.unwrap();
}

/// P1: of permits, a refusal tells the lease that ends first. A counted semaphore has no leases.
#[tokio::test(start_paused = true)]
async fn refused_permits_tell_first_lease() {
    let (_double, here, there) = two().await;
    let (leased, counted) = (there.permit_semaphore("p"), there.semaphore("s"));
    leased.set_permits(2).await.unwrap();
    counted.try_set_permits(1).await.unwrap();
    let short = leased.with_lease(2 * SOON).acquire().await.unwrap();
    let long = leased.with_lease(4 * SOON).acquire().await.unwrap();
    let left = refusal(here.permit_semaphore("p").try_acquire().await.unwrap()).1.unwrap();
    assert!((1900..2000).contains(&left), "{left}");
    let left = refusal(here.permit_semaphore("p").try_acquire_many(2).await.unwrap()).1;
    assert!(left.is_some());
    let taken = counted.acquire(1).await.unwrap();
    assert_eq!(refusal(here.semaphore("s").try_acquire(1).await.unwrap()), ("s".to_owned(), None));
    drop((short, long, taken));
}

/// P1: a refused quorum tells when enough leases will have ended.
#[tokio::test(start_paused = true)]
async fn refused_quorum_tells_lease_of_majority() {
    let doubles = [Double::new(), Double::new(), Double::new()];
    let mut managers = Vec::new();
    for double in &doubles {
        managers.push(double.manager().await.unwrap());
    }
    for (double, lease) in doubles.iter().zip([2, 4, 6]) {
        let other = double.manager().await.unwrap();
        std::mem::forget(other.lock("q").with_lease(lease * SOON).acquire().await.unwrap());
    }
    let red = RedLockManager::new(managers).await.unwrap();
    let (name, left) = refusal(red.lock("q").try_acquire().await.unwrap());
    assert!(name == "q" && left.is_some_and(|left| (3900..=4000).contains(&left)), "{left:?}");
}
