//! The in-memory server for tests of services.
//!
//! The tests cover every kind of lock, several runtimes, threads, and the faults that a test can cause. They use tokio's paused time,
//! which only moves while tasks wait for it.

use std::future::poll_fn;
use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, advance, sleep, timeout};
use wheellock::client::{Command, Config};
use wheellock::testing::{Double, Outage};
use wheellock::{
    Attempt, Durability, Error, FencedLock, Finding, Lock, LockManager, LostReason, Outcome, RedLockManager,
    multi_lock,
};

const NAME: &str = "orders:42";
/// The default lease of the watchdog.
const LEASE: Duration = Duration::from_secs(30);

/// Returns a server with two processes.
async fn two() -> (Double, LockManager, LockManager) {
    let double = Double::new();
    let (here, there) = (double.manager().await.unwrap(), double.manager().await.unwrap());
    (double, here, there)
}

/// Polls a future up to `times` times, whenever it is woken, and then drops it.
async fn polled<T>(times: usize, future: impl Future<Output = T>) -> Option<T> {
    let (mut future, mut left) = (pin!(future), times);
    poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        future.as_mut().poll(cx).map(Some)
    })
    .await
}

/// Returns the kinds whose handle is a `Lock`.
fn exclusive(locks: &LockManager) -> [Lock; 6] {
    [
        locks.lock(NAME),
        locks.fair_lock(NAME),
        locks.fenced_lock(NAME).as_lock().clone(),
        locks.spin_lock(NAME),
        locks.simple_lock(NAME),
        locks.read_write_lock(NAME).write(),
    ]
}

#[tokio::test(start_paused = true)]
async fn nothing_is_wrong_with_it() {
    let locks = LockManager::in_memory().await.unwrap();
    assert_eq!(locks.diagnostics(), []);
    assert!(locks.shutdown(LEASE).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn managers_exclude_and_wake_each_other() {
    for kind in 0..6 {
        let double = Double::new();
        let here = double.manager_with(|settings| settings.label("here")).await.unwrap();
        let (here_id, there) = (here.id().to_owned(), double.manager().await.unwrap());
        let (here, there) = (&exclusive(&here)[kind], &exclusive(&there)[kind]);
        let guard = here.acquire().await.unwrap();
        assert!(here.is_locked().await.unwrap(), "kind {kind}");
        let holder = there.holder().await.unwrap().expect("held");
        let who = (holder.owner.clone(), holder.process(), holder.hold_count, holder.label.as_deref());
        let wanted = (guard.owner().to_string(), Some(&*here_id), 1, Some("here"));
        assert_eq!(who, wanted, "kind {kind}");
        assert!(there.is_held_by(&guard.owner()).await.unwrap(), "kind {kind}");
        assert!(there.remaining_lease().await.unwrap().unwrap() <= LEASE, "kind {kind}");
        assert!(!there.try_acquire().await.unwrap().is_acquired(), "kind {kind}");
        let there = there.clone();
        let waiter = tokio::spawn(async move { there.acquire().await });
        sleep(Duration::from_secs(1)).await;
        let released = Instant::now();
        assert!(matches!(guard.release().await, Ok(())), "kind {kind}");
        let next = waiter.await.unwrap().unwrap();
        // A spin lock polls from time to time.
        assert!(released.elapsed() <= Duration::from_millis(200), "kind {kind}: {:?}", released.elapsed());
        assert!(next.is_valid(), "kind {kind}");
        assert!(here.force_release().await.unwrap(), "kind {kind}");
        assert!(!here.is_locked().await.unwrap(), "kind {kind}");
    }
}

#[tokio::test(start_paused = true)]
async fn watchdog_lock_outlasts_fixed_lease() {
    let (_double, here, there) = two().await;
    let kept = here.lock("kept").acquire().await.unwrap();
    let fixed = here.lock("fixed").with_lease(LEASE).acquire().await.unwrap();
    let began = std::time::Instant::now();
    sleep(100 * LEASE).await;
    assert!(kept.is_valid() && !there.lock("kept").try_acquire().await.unwrap().is_acquired());
    assert_eq!(fixed.lost().await, LostReason::Expired);
    assert!(there.lock("fixed").try_acquire().await.unwrap().is_acquired());
    assert!(began.elapsed() < LEASE, "virtual time is not waited for");
}

#[tokio::test(start_paused = true)]
async fn stalled_process_loses_locks() {
    let (_double, here, there) = two().await;
    let guard = here.lock(NAME).acquire().await.unwrap();
    advance(LEASE + Duration::from_secs(1)).await;
    assert!(!guard.is_valid());
    assert_eq!(guard.lost().await, LostReason::Expired);
    assert!(there.lock(NAME).try_acquire().await.unwrap().is_acquired());
}

/// The clock moves on while no other task runs, not even the watchdog.
/// The server goes away. The warning comes a third of the lease before the loss, and a renewal ends the danger.
#[tokio::test(start_paused = true)]
async fn endangered_resolves_a_third_before_loss() {
    let (double, here, _) = two().await;
    let guard = here.lock(NAME).acquire().await.unwrap();
    assert!(timeout(20 * LEASE, guard.endangered()).await.is_err(), "the watchdog renews it");
    double.outage(Outage::Down);
    guard.endangered().await;
    assert!(guard.is_endangered() && guard.is_valid());
    let warned = Instant::now();
    double.come_back();
    while guard.is_endangered() {
        sleep(Duration::from_millis(100)).await;
    }
    assert!(guard.is_valid() && warned.elapsed() < LEASE / 3);
    double.outage(Outage::Down);
    guard.endangered().await;
    let warned = Instant::now();
    assert_eq!(guard.lost().await, LostReason::Expired);
    let before = warned.elapsed();
    assert!(before > LEASE.mul_f32(0.32) && before < LEASE.mul_f32(0.34), "{before:?}");
    // A lost lock is endangered.
    guard.endangered().await;
    assert!(guard.is_endangered());
}

#[tokio::test(start_paused = true)]
async fn endangered_follows_fixed_lease_and_loss() {
    let (double, here, _) = two().await;
    let began = Instant::now();
    let guard = here.lock(NAME).with_lease(LEASE).acquire().await.unwrap();
    guard.endangered().await;
    let after = began.elapsed();
    assert!(after > LEASE.mul_f32(0.65) && after < LEASE.mul_f32(0.67), "{after:?}");
    guard.renew().await.unwrap();
    assert!(!guard.is_endangered());
    guard.release().await.unwrap();

    let guard = here.lock(NAME).acquire().await.unwrap();
    assert!(double.lose(NAME));
    guard.endangered().await;
    assert_eq!(guard.lost().await, LostReason::NotOwner);
}

#[tokio::test(start_paused = true)]
async fn every_guard_is_endangered_in_outage() {
    let doubles = [Double::new(), Double::new(), Double::new()];
    let locks = doubles[0].manager().await.unwrap();
    let mut members = Vec::new();
    for double in &doubles {
        members.push(double.manager().await.unwrap());
    }
    let red = RedLockManager::new(members).await.unwrap();
    let quorum = red.lock("quorum").acquire().await.unwrap();
    let set = multi_lock([locks.lock("one"), locks.lock("two")]).unwrap().acquire().await.unwrap();
    let reader = locks.read_write_lock("rw").read().acquire().await.unwrap();
    assert!(locks.permit_semaphore("permits").try_set_permits(1).await.unwrap());
    let permit = locks.permit_semaphore("permits").acquire().await.unwrap();
    let leadership = locks.election("leader").campaign().await.unwrap();
    let fair = locks.fair_lock("fair").acquire().await.unwrap();
    sleep(2 * LEASE).await;
    let endangered = || {
        [
            set.is_endangered(),
            reader.is_endangered(),
            permit.is_endangered(),
            leadership.is_endangered(),
            fair.is_endangered(),
        ]
    };
    assert_eq!((endangered(), quorum.is_endangered()), ([false; 5], false));
    doubles[0].outage(Outage::Down);
    tokio::join!(
        set.endangered(),
        reader.endangered(),
        permit.endangered(),
        leadership.endangered(),
        fair.endangered()
    );
    assert_eq!(endangered(), [true; 5]);
    assert!(set.is_valid() && leadership.is_leader());
    assert!(!quorum.is_endangered(), "a majority is renewed");
    doubles[1].outage(Outage::Down);
    quorum.endangered().await;
    assert!(quorum.is_endangered() && quorum.is_valid());
}

#[tokio::test(start_paused = true)]
async fn unnoticed_expiry_releases_nothing() {
    let (_double, here, _there) = two().await;
    let guard = here.lock(NAME).acquire().await.unwrap();
    let mut stood_still = pin!(advance(LEASE + Duration::from_secs(1)));
    assert!(poll_fn(|cx| Poll::Ready(stood_still.as_mut().poll(cx))).await.is_pending());
    assert_eq!(guard.lost().await, LostReason::Expired);
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
}

#[tokio::test(start_paused = true)]
async fn fair_locks_keep_the_order() {
    let (_double, here, there) = two().await;
    let first = here.fair_lock(NAME).acquire().await.unwrap();
    let served = Arc::new(AtomicU32::new(0));
    let mut waiters = Vec::new();
    for number in 0..6 {
        let lock = if number % 2 == 0 { there.fair_lock(NAME) } else { here.fair_lock(NAME) };
        let served = Arc::clone(&served);
        waiters.push(tokio::spawn(async move {
            let guard = lock.acquire().await.unwrap();
            assert_eq!(served.fetch_add(1, Ordering::SeqCst), number, "out of turn");
            guard.release().await.unwrap();
        }));
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(here.fair_lock(NAME).queue_length().await.unwrap(), Some(6));
    first.release().await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn readers_enter_together_and_tokens_rise() {
    let (_double, here, there) = two().await;
    let reads = [here.read_write_lock(NAME).read(), there.read_write_lock(NAME).read()];
    let guards = [reads[0].acquire().await.unwrap(), reads[1].acquire().await.unwrap()];
    assert!(reads[0].is_locked().await.unwrap());
    assert!(!there.read_write_lock(NAME).write().try_acquire().await.unwrap().is_acquired());
    drop(guards);
    let fenced: [FencedLock; 2] = [here.fenced_lock("ledger"), there.fenced_lock("ledger")];
    let first = fenced[0].acquire().await.unwrap();
    let token = first.token();
    first.release().await.unwrap();
    assert!(fenced[1].acquire().await.unwrap().token() > token);
}

#[tokio::test(start_paused = true)]
async fn permits_and_latches() {
    let (double, here, there) = two().await;
    let pool = (here.semaphore("pool"), there.semaphore("pool"));
    assert!(pool.0.try_set_permits(3).await.unwrap());
    let two = pool.0.acquire(2).await.unwrap();
    assert!(!pool.1.try_acquire(2).await.unwrap().is_acquired());
    two.release().await.unwrap();
    assert_eq!(pool.1.available().await.unwrap(), 3);

    let leased = (here.permit_semaphore("leased"), there.permit_semaphore("leased"));
    leased.0.try_set_permits(1).await.unwrap();
    leased.0.add_permits(1).await.unwrap();
    let both = leased.0.acquire_many(2).await.unwrap();
    assert!(!leased.1.try_acquire_many(1).await.unwrap().is_acquired());
    assert!(leased.1.extend(both[1].id(), 10 * LEASE).await.unwrap());
    assert!(leased.1.remaining_lease(both[1].id()).await.unwrap() > Some(9 * LEASE));
    let ids: Vec<_> = both.iter().map(|permit| permit.id()).collect();
    assert!(leased.1.release_many(&ids).await.unwrap() && !leased.1.release_many(&ids).await.unwrap());
    leased.0.set_permits(1).await.unwrap();
    let permit = leased.0.acquire().await.unwrap();
    assert!(!leased.1.try_acquire().await.unwrap().is_acquired());
    assert!(double.lose("leased"));
    assert_eq!(permit.lost().await, LostReason::NotOwner);
    let next = leased.1.try_acquire().await.unwrap().acquired().expect("it is free");
    sleep(2 * LEASE).await;
    assert!(next.is_valid(), "renewed");

    let latch = (here.count_down_latch("ready"), there.count_down_latch("ready"));
    assert!(latch.0.try_set_count(NonZeroU32::MIN).await.unwrap());
    let waits = tokio::spawn(async move { latch.1.wait().await });
    sleep(LEASE).await;
    latch.0.count_down().await.unwrap();
    waits.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn leaders_are_elected_and_observed() {
    let (double, here, there) = two().await;
    let mut observer = there.election("scheduler").observe();
    assert_eq!(observer.changed().await.unwrap(), None);
    let first = here.election("scheduler").with_announcement("here").campaign().await.unwrap();
    let leader = observer.changed().await.unwrap().expect("one leads");
    assert_eq!((leader.announcement(), leader.token()), ("here", first.token()));
    let election = there.election("scheduler").with_announcement("there");
    let campaign = tokio::spawn(async move { election.campaign().await });
    sleep(10 * LEASE).await;
    assert!(first.is_leader() && !campaign.is_finished());
    assert!(double.lose("scheduler"));
    assert_eq!(first.lost().await, LostReason::NotOwner);
    let second = campaign.await.unwrap().unwrap();
    assert!(second.token() > first.token());
    assert!(matches!(first.announce("still here").await, Err(Error::Lost { .. })));
    while observer.changed().await.unwrap().is_none_or(|leader| leader.announcement() != "there") {}
    // A process that is cut off does not lead any more. No message says so, so observers see it when the lease has expired.
    double.outage(Outage::Silent);
    assert_eq!(second.lost().await, LostReason::Expired);
    assert!(observer.changed().await.is_err());
    sleep(LEASE).await;
    double.come_back();
    drop(second);
    while observer.changed().await.unwrap().is_some() {}
}

#[tokio::test(start_paused = true)]
async fn cancelled_campaign_leaves_nothing() {
    for contended in [false, true] {
        let mut elected = false;
        for polls in 1.. {
            let (_double, here, there) = two().await;
            let first = there.election(NAME).campaign().await.unwrap();
            let resigns = tokio::spawn(async move {
                sleep(Duration::from_secs(u64::from(contended))).await;
                first.resign().await
            });
            if !contended {
                resigns.await.unwrap().unwrap();
            }
            let election = here.election(NAME).with_announcement("here");
            elected = timeout(LEASE, polled(polls, election.campaign())).await.is_ok_and(|end| end.is_some());
            // After the campaign there is no leader, and no process becomes the leader later.
            sleep(Duration::from_secs(2)).await;
            assert!(there.election(NAME).leader().await.unwrap().is_none(), "{polls} polls");
            let next = timeout(Duration::from_millis(100), there.election(NAME).campaign()).await;
            assert!(next.expect("nobody is in the way").unwrap().is_leader(), "{polls} polls");
            if elected {
                break;
            }
        }
        assert!(elected);
    }
}

#[tokio::test(start_paused = true)]
async fn cancelled_observation_loses_no_change() {
    let (_double, here, there) = two().await;
    let mut observer = there.election(NAME).observe();
    for polls in 0..20 {
        let place = format!("place {polls}");
        let leadership = here.election(NAME).with_announcement(&place).campaign().await.unwrap();
        let dropped = timeout(Duration::from_secs(1), polled(polls % 5, observer.changed())).await;
        let mut seen = dropped.ok().flatten().map(Result::unwrap);
        while !matches!(&seen, Some(Some(leader)) if leader.announcement() == place) {
            seen = Some(timeout(Duration::from_secs(1), observer.changed()).await.unwrap().unwrap());
        }
        leadership.resign().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn answers_to_a_campaign_get_lost() {
    for lost in 1..6 {
        let (double, here, there) = two().await;
        double.lose_answers(lost);
        let leadership = here.election(NAME).with_announcement("here").campaign().await.unwrap();
        let leader = there.election(NAME).leader().await.unwrap().unwrap();
        assert_eq!((leader.announcement(), leader.token()), ("here", leadership.token()), "{lost} lost");
        assert_eq!(here.lock(NAME).hold_count(&leadership.owner()).await.unwrap(), 1, "{lost} lost");
    }
}

#[tokio::test(start_paused = true)]
async fn doubles_support_sets_and_quorums() {
    let (_double, here, there) = two().await;
    let both = multi_lock([here.lock("a"), here.lock("b")]).unwrap();
    let guard = both.acquire().await.unwrap();
    assert!(!there.lock("b").try_acquire().await.unwrap().is_acquired());
    guard.release().await.unwrap();

    let doubles = [Double::new(), Double::new(), Double::new()];
    let mut managers = Vec::new();
    for double in &doubles {
        managers.push(double.manager().await.unwrap());
    }
    let red = RedLockManager::new(managers).await.unwrap();
    doubles[1].outage(Outage::Down);
    let guard = red.lock(NAME).acquire().await.unwrap();
    assert!(guard.is_valid());
    doubles[2].outage(Outage::Down);
    guard.lost().await;
    assert!(matches!(red.lock(NAME).try_acquire().await, Err(Error::NoQuorum { .. })));
}

/// With the response timeout of 3 s, the lease ends before the only renewal times out. With a short timeout, another renewal follows.
#[tokio::test(start_paused = true)]
async fn unanswered_renewal_at_expiry_counts() {
    for (timeout, is_repeated) in [(3000, false), (500, true)] {
        let double = Double::new();
        let locks = double
            .manager_with(|settings| {
                settings
                    .watchdog_lease(Duration::from_secs(3))
                    .configure(|config| config.response_timeout = Duration::from_millis(timeout))
            })
            .await
            .unwrap();
        let guard = locks.lock(NAME).acquire().await.unwrap();
        double.outage(Outage::Silent);
        assert_eq!(guard.lost().await, LostReason::Expired);
        let metrics = locks.metrics();
        assert_eq!((metrics.lost_expired, metrics.failing), (1, 0));
        let failed = metrics.failed_renewals;
        assert_eq!((failed > 0, failed > 1), (true, is_repeated), "{timeout} ms: {failed}");
    }
}

#[tokio::test(start_paused = true)]
async fn unidentified_servers_cannot_form_majority() {
    let doubles = [Double::new(), Double::new(), Double::new()];
    let mut managers = Vec::new();
    for double in &doubles {
        managers.push(double.manager().await.unwrap());
    }
    doubles[1..].iter().for_each(|double| double.outage(Outage::Silent));
    let error = RedLockManager::new(managers.clone()).await.unwrap_err();
    let Error::NoQuorum { granted: 1, wanted: 2, failures, .. } = &error else { panic!("{error}") };
    let line = error.to_string();
    let begin = "no majority of the servers could be asked who it is: 1 answered, 2 are needed; ";
    assert!(line.starts_with(begin), "{line}");
    assert!(
        failures.len() == 2 && failures.iter().all(|failure| line.contains(&failure.to_string())),
        "{line}"
    );
    assert!(failures.iter().all(|failure| failure.error.outcome() == Outcome::MaybeExecuted), "{line}");
    assert_eq!(error.outcome(), Outcome::NotSent);
    assert!(error.is_unavailable());
    doubles[1].come_back();
    RedLockManager::new(managers).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn every_kind_reports_loss_at_once() {
    for kind in 0..6 {
        let (double, here, there) = two().await;
        let guard = exclusive(&here)[kind].acquire().await.unwrap();
        let waiter = exclusive(&there)[kind].clone();
        let waiter = tokio::spawn(async move { waiter.acquire().await });
        sleep(Duration::from_secs(1)).await;
        let lost_at = Instant::now();
        assert!(double.lose(NAME), "kind {kind}");
        assert_eq!(guard.lost().await, LostReason::NotOwner, "kind {kind}");
        assert!(lost_at.elapsed() < Duration::from_millis(100), "kind {kind}: {:?}", lost_at.elapsed());
        assert!(matches!(guard.release().await, Err(Error::Lost { .. })), "kind {kind}");
        drop(
            timeout(Duration::from_millis(200), waiter)
                .await
                .expect("the next one is woken")
                .unwrap()
                .unwrap(),
        );
    }
    let double = Double::new();
    assert!(!double.lose(NAME), "nobody has it");
    let locks = double.manager().await.unwrap();
    locks.count_down_latch(NAME).try_set_count(NonZeroU32::MIN).await.unwrap();
    assert!(!double.lose(NAME), "a latch is not held");
    assert_eq!(locks.count_down_latch(NAME).count().await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn readers_lose_theirs_too() {
    let (double, here, there) = two().await;
    let guards = [
        here.read_write_lock(NAME).read().acquire().await.unwrap(),
        there.read_write_lock(NAME).read().acquire().await.unwrap(),
    ];
    assert!(double.lose(NAME));
    for guard in &guards {
        assert_eq!(guard.lost().await, LostReason::NotOwner);
    }
    assert!(there.read_write_lock(NAME).write().try_acquire().await.unwrap().is_acquired());
}

#[tokio::test(start_paused = true)]
async fn outage_errors_end_with_outage() {
    let (double, here, there) = two().await;
    let lock = here.lock(NAME);
    let guard = lock.acquire().await.unwrap();
    double.outage(Outage::Down);
    let error = there.lock(NAME).try_acquire().await.unwrap_err();
    assert_eq!(error.outcome(), Outcome::NotSent, "{error}");
    assert!(double.manager().await.is_err());
    assert!(guard.is_valid(), "a short outage costs nothing");
    double.come_back();
    guard.renew().await.unwrap();
    assert!(!there.lock(NAME).try_acquire().await.unwrap().is_acquired(), "it has kept its data");

    double.outage(Outage::Silent);
    let error = there.lock("other").try_acquire().await.unwrap_err();
    assert_eq!(error.outcome(), Outcome::MaybeExecuted, "{error}");
    assert_eq!(guard.lost().await, LostReason::Expired);
    double.come_back();
    // Requests from the outage are granted afterwards and taken back.
    drop(timeout(LEASE, here.lock("other").acquire()).await.unwrap().unwrap());
    // The guard's renewals were late, too.
    drop(guard);
    drop(timeout(LEASE, lock.acquire()).await.unwrap().unwrap());
}

#[tokio::test(start_paused = true)]
async fn double_simulates_lost_replies_and_data() {
    let (double, here, there) = two().await;
    double.lose_answers(1);
    let guard = here.lock(NAME).acquire().await.unwrap();
    assert_eq!(here.lock(NAME).hold_count(&guard.owner()).await.unwrap(), 1, "repeated, and counted once");
    double.forget_everything();
    assert!(there.lock(NAME).try_acquire().await.unwrap().is_acquired());
    assert_eq!(timeout(LEASE / 2, guard.lost()).await.unwrap(), LostReason::NotOwner);
}

#[tokio::test(start_paused = true)]
async fn answers_that_take_longer() {
    let (double, here, _) = two().await;
    double.delay(Duration::from_millis(250));
    let began = Instant::now();
    let guard = here.lock(NAME).acquire().await.unwrap();
    assert!((250..260).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
    let error = here.lock(NAME).try_acquire_for(Duration::from_millis(10)).await;
    assert!(!matches!(error, Ok(Attempt::Acquired(_))));
    double.delay(Duration::ZERO);
    guard.release().await.unwrap();
    let began = Instant::now();
    drop(here.lock(NAME).acquire().await.unwrap());
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn settings_are_those_of_a_manager() {
    let double = Double::new();
    let lease = Duration::from_secs(3);
    let adjust = |settings: wheellock::LockManagerBuilder| {
        settings.watchdog_lease(lease).durability(Durability::Replicas(1))
    };
    let locks = double.manager_with(adjust).await.unwrap();
    let guard = locks.lock(NAME).acquire().await.unwrap();
    assert!(locks.lock(NAME).remaining_lease().await.unwrap().unwrap() <= lease);
    drop(guard);
}

#[tokio::test]
async fn unknown_command_returns_error() {
    let double = Double::new();
    let locks = double.manager().await.unwrap();
    let error = locks.client().call(&Command::new("FLUSHALL")).await.unwrap_err();
    assert!(error.to_string().contains("FLUSHALL"), "{error}");
    assert!(locks.lock(NAME).try_acquire().await.unwrap().is_acquired(), "it goes on");
}

/// Hand-written commands get the same replies as from a server. They never end the test that sends them.
#[tokio::test(start_paused = true)]
async fn foreign_data_under_key_returns_error() {
    let (_double, locks, _) = two().await;
    let put = async |words: &[&str]| {
        let command = Command::new(words[0]).args(words[1..].iter().copied());
        locks.client().call(&command).await.unwrap();
    };
    let is_told = |refused: Result<Attempt<()>, Error>| {
        let error = refused.unwrap_err();
        assert!(matches!(error, Error::OtherData { .. }), "{error}");
    };
    put(&["SET", NAME, "no lock"]).await;
    for lock in exclusive(&locks).iter().take(4) {
        is_told(lock.try_acquire().await.map(|guard| guard.map(drop)));
    }
    is_told(locks.permit_semaphore(NAME).try_acquire().await.map(|permit| permit.map(drop)));
    put(&["DEL", NAME]).await;
    put(&["HSET", NAME, "mode", "neither"]).await;
    for lock in exclusive(&locks) {
        is_told(lock.try_acquire().await.map(|guard| guard.map(drop)));
    }
    put(&["DEL", NAME]).await;
    put(&["SET", "redisson_lock_token:{orders:42}", "no number"]).await;
    is_told(locks.fenced_lock(NAME).try_acquire().await.map(|guard| guard.map(drop)));
    put(&["SET", "redisson_lock_queue:{orders:42}", "no queue"]).await;
    is_told(locks.fair_lock(NAME).try_acquire().await.map(|guard| guard.map(drop)));
    drop(locks.lock(NAME).acquire().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn commands_that_cannot_be_are_errors() {
    let double = Double::new();
    let locks = double.manager().await.unwrap();
    let guard = locks.lock(NAME).acquire().await.unwrap();
    let sha = "0".repeat(40);
    for (words, wrong) in [
        (&["PEXPIRE", NAME, "soon"][..], "not an integer"),
        (&["SET", "other", "text", "PX", "soon"], "not an integer"),
        (&["ZADD", "leases", "soon", "permit"], "not a valid float"),
        (&["EVALSHA", &sha, "some", "key"], "NOSCRIPT"),
        (&["EVAL", "#!lua\nreturn 2", "1", "key"], "does not know"),
    ] {
        let (verb, args) = words.split_first().unwrap();
        let command = args.iter().fold(Command::new(verb), |command, word| command.arg(*word));
        let error = locks.client().call(&command).await.unwrap_err();
        assert!(error.to_string().contains(wrong), "{words:?}: {error}");
    }
    let odd = Command::new("HSET").arg(NAME).arg("00000000-0000-4000-8000-000000000000:1").arg("7");
    locks.client().call(&odd).await.unwrap();
    assert_eq!(locks.lock(NAME).holders().await.unwrap().holders.len(), 2);
    guard.release().await.unwrap();
}

/// Threads really run at the same time here. The lock must still be exclusive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn threads_of_two_managers_stay_exclusive() {
    let (_double, here, there) = two().await;
    let inside = Arc::new(AtomicU32::new(0));
    let tasks: Vec<_> = (0..32)
        .map(|number| {
            let (lock, inside) = ([&here, &there][number % 2].lock(NAME), Arc::clone(&inside));
            tokio::spawn(async move {
                for _ in 0..20 {
                    let guard = lock.acquire().await.unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    drop(guard);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

#[test]
fn for_threads() {
    let double = Double::new();
    let locks = double.blocking_manager().unwrap();
    let other = double.blocking_manager().unwrap();
    let guard = locks.lock(NAME).acquire().unwrap();
    assert!(!other.lock(NAME).try_acquire().unwrap().is_acquired());
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| other.lock(NAME).acquire().unwrap().release().unwrap());
        guard.release().unwrap();
        waits.join().unwrap();
    });
}

/// The server does not reply, so only the clock ends the permit.
#[test]
fn work_under_lost_permit_returns_error() {
    let double = Double::new();
    let settings = |config: &mut Config| config.response_timeout = Duration::from_millis(100);
    let locks = double.blocking_manager_with(|locks| locks.configure(settings)).unwrap();
    let permits = locks.permit_semaphore("licences").with_lease(Duration::from_millis(200));
    permits.set_permits(1).unwrap();
    let ended = permits.run(|permit| {
        double.outage(Outage::Silent);
        Ok(permit.lost())
    });
    assert!(matches!(ended, Err(Error::Lost { reason: LostReason::Expired, .. })), "{ended:?}");
    double.come_back();
}

/// The server lives as long as one of its handles or managers. A manager does not need a handle.
#[tokio::test(start_paused = true)]
async fn a_manager_keeps_its_server() {
    let locks = LockManager::in_memory().await.unwrap();
    let guard = locks.lock(NAME).acquire().await.unwrap();
    sleep(2 * LEASE).await;
    assert!(guard.is_valid());
    let double = Double::new();
    let kept = double.manager().await.unwrap();
    drop(double);
    assert!(kept.lock(NAME).try_acquire().await.unwrap().is_acquired());
}

/// Stand-ins for Redis in other languages' tests behave like that.
#[tokio::test(start_paused = true)]
async fn deaf_subscriptions_are_found_at_connect() {
    let double = Double::new();
    assert_eq!(double.manager().await.unwrap().diagnostics(), []);
    for confirms_by_push in [true, false] {
        double.block_subscribers(confirms_by_push);
        let locks = double.manager().await.unwrap();
        let [finding @ Finding::SubscriptionBlocksCommands { .. }] = locks.diagnostics() else {
            panic!("{:?}", locks.diagnostics())
        };
        assert!(finding.to_string().contains("no caller can wait"), "{finding}");
    }
}

/// The server pauses for longer than a silent waiter counts as alive. The lease expires meanwhile.
#[tokio::test(start_paused = true)]
async fn fair_order_survives_server_stall() {
    for stall in [4, 8, 12] {
        let double = Double::new();
        let mut managers = Vec::new();
        for _ in 0..6 {
            let patient = |config: &mut Config| config.response_timeout = Duration::from_secs(30);
            let locks = double.manager_with(|settings| settings.configure(patient)).await;
            managers.push(locks.unwrap());
        }
        let held = managers[0].fair_lock(NAME).with_lease(Duration::from_secs(3)).acquire().await.unwrap();
        let order = Arc::new(std::sync::Mutex::new(Vec::new()));
        let mut waiting = Vec::new();
        for (place, locks) in managers.iter().enumerate().skip(1) {
            let (lock, order) = (locks.fair_lock(NAME), Arc::clone(&order));
            waiting.push(tokio::spawn(async move {
                let guard = lock.acquire().await.unwrap();
                order.lock().unwrap().push(place);
                guard.release().await.unwrap();
            }));
            sleep(Duration::from_millis(130)).await;
        }
        double.outage(Outage::Silent);
        sleep(Duration::from_secs(stall)).await;
        double.come_back();
        for waiter in waiting {
            timeout(Duration::from_secs(60), waiter).await.expect("all have their turn").unwrap();
        }
        assert_eq!(*order.lock().unwrap(), [1, 2, 3, 4, 5], "after {stall} s");
        drop(held);
    }
}
