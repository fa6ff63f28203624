//! Scenes of the demo: one function per property.
//!
//! Each scene judges by the observed state, not by the intended state.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::runtime::Runtime;
use wheellock_tests::topology::{Replicas, Settings};
use wheellock_tests::worker::{Outcome, Request, Worker, connect};
use wheellock_tests::{RedisServer, eventually, poll_until};

use super::{Finding, Latency, Stage};
use wheellock::{Error, Fleet, Guard, LockManager};

pub(super) struct Scene {
    pub(super) claim: &'static str,
    pub(super) show: fn(&Stage, &Runtime) -> Result<Finding>,
}

/// The scenes, in the order of the table.
pub(super) const ALL: &[Scene] = &[
    Scene { claim: "(a) one holder at a time: 4 processes lose no update", show: no_update_is_lost },
    Scene { claim: "(b) the watchdog keeps a hold of three leases alive", show: a_long_hold_survives },
    Scene {
        claim: "(c) a SIGKILLed holder is succeeded within one lease",
        show: a_killed_holder_is_succeeded,
    },
    Scene { claim: "(d) a waiter is woken by the release, it does not poll", show: a_waiter_is_woken },
    Scene { claim: "(e) reentrant to depth 3 and back, counted in Redis", show: holds_are_counted },
    Scene { claim: "(f) try_acquire_for gives up on time", show: a_wait_ends_on_time },
    Scene { claim: "(g) a fixed lease ends by itself, and release says so", show: a_fixed_lease_ends },
    Scene { claim: "(h) a free lock costs one round trip each way", show: a_free_lock_is_quick },
    Scene { claim: "(i) readers share, a writer is alone and goes first", show: readers_and_a_writer },
    Scene { claim: "(j) fencing tokens rise, also when the counter is lost", show: tokens_rise },
    Scene { claim: "(k) a pool of 3 keeps its size, also after a crash", show: a_pool_keeps_its_size },
    Scene { claim: "(l) a cron job on two hosts runs on one of them", show: a_cron_job_runs_once },
    Scene { claim: "(m) a holder learns of its deleted lock at once", show: a_deleted_lock_is_told },
    Scene { claim: "(n) locks survive a failover that loses their grants", show: locks_survive_a_failover },
];

/// (a) Workers read a file, add one, and write it back. Without the lock, updates get lost.
fn no_update_is_lost(stage: &Stage, _: &Runtime) -> Result<Finding> {
    const WORKERS: u32 = 4;
    const TIMES: u32 = 250;
    let file = stage.server.directory().join("counter");
    let mut workers =
        (0..WORKERS).map(|_| stage.worker("demo:counter", LEASE)).collect::<Result<Vec<_>>>()?;
    let mut count = |request: Request<'_>| -> Result<u32> {
        fs::write(&file, "0")?;
        for worker in &mut workers {
            worker.request(&request)?;
        }
        for worker in &mut workers {
            expect(worker, Outcome::Done)?;
        }
        // Two unlocked writers can leave the file empty.
        Ok(fs::read_to_string(&file)?.trim().parse().unwrap_or(0))
    };
    let unlocked = count(Request::IncrementUnlocked(TIMES, &file))?;
    let start = Instant::now();
    let locked = count(Request::Increment(TIMES, &file))?;
    let took = start.elapsed();
    let all = WORKERS * TIMES;
    Ok(Finding {
        held: locked == all,
        seen: format!("{locked} of {all} increments in {} ms; without the lock {unlocked}", took.as_millis()),
        latency: None,
    })
}

/// (b) A worker holds the lock for three leases, and the scene polls Redis meanwhile.
fn a_long_hold_survives(stage: &Stage, runtime: &Runtime) -> Result<Finding> {
    const NAME: &str = "demo:watchdog";
    let mut worker = stage.worker(NAME, SHORT_LEASE)?;
    expect_of(&mut worker, &Request::Acquire, Outcome::Acquired)?;
    let start = Instant::now();
    let mut least = i64::MAX;
    let lapsed = poll_until(3 * SHORT_LEASE + SHORT_LEASE / 4, || {
        let ttl = stage.redis(&["PTTL", NAME]).parse().unwrap_or(-2);
        least = least.min(ttl);
        ttl < 0
    });
    let held_for = start.elapsed();
    let excluded = runtime.block_on(async {
        let lock = connect(&stage.server.url(), LEASE).await?.lock(NAME);
        anyhow::Ok(!lock.try_acquire().await?.is_acquired())
    })?;
    let released = worker.ask(&Request::Release)?.what;
    Ok(Finding {
        held: !lapsed && excluded && released == Outcome::Released,
        seen: format!(
            "held {:.1} s on a lease of {:.1} s; never under {least} ms left",
            held_for.as_secs_f64(),
            SHORT_LEASE.as_secs_f64()
        ),
        latency: None,
    })
}

/// (c) The holder is killed. A waiting worker gets the lock when the lease expires.
fn a_killed_holder_is_succeeded(stage: &Stage, _: &Runtime) -> Result<Finding> {
    const NAME: &str = "demo:crash";
    let mut holder = stage.worker(NAME, CRASH_LEASE)?;
    let mut waiter = stage.worker(NAME, CRASH_LEASE)?;
    expect_of(&mut holder, &Request::Acquire, Outcome::Acquired)?;
    request_and_wait_until_it_waits(stage, &mut waiter, NAME)?;
    // Kill between two renewals, so that the time of death differs from the time of a renewal.
    let whole = i64::try_from(CRASH_LEASE.as_millis())?;
    let aged = poll_until(2 * CRASH_LEASE, || {
        stage.redis(&["PTTL", NAME]).parse::<i64>().is_ok_and(|left| left < whole * 9 / 10)
    });
    ensure!(aged, "the lease never ages: it is renewed far more often than every third of it");
    let killed = wheellock_tests::worker::monotonic();
    holder.kill()?;
    let answer = waiter.answer()?;
    let waited = answer.at.saturating_sub(killed);
    Ok(Finding {
        held: answer.what == Outcome::Acquired && waited <= CRASH_LEASE,
        seen: format!("{} ms after SIGKILL; the lease is {} ms", waited.as_millis(), CRASH_LEASE.as_millis()),
        latency: None,
    })
}

/// (d) Two workers hand a lock over to each other. While one waits, the server gets no requests.
fn a_waiter_is_woken(stage: &Stage, _: &Runtime) -> Result<Finding> {
    const NAME: &str = "demo:handoff";
    const ROUNDS: usize = 100;
    const QUIET: Duration = Duration::from_millis(250);
    let mut holder = stage.worker(NAME, LEASE)?;
    let mut waiter = stage.worker(NAME, LEASE)?;
    expect_of(&mut holder, &Request::Acquire, Outcome::Acquired)?;

    let mut heard = None;
    let mut handoffs = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        request_and_wait_until_it_waits(stage, &mut waiter, NAME)?;
        if heard.is_none() {
            let monitor = stage.server.monitor();
            std::thread::sleep(QUIET);
            heard = Some(monitor.stop()?.len());
        }
        let released = expect_of(&mut holder, &Request::Release, Outcome::Released)?;
        let acquired = expect(&mut waiter, Outcome::Acquired)?;
        handoffs.push(acquired.saturating_sub(released));
        std::mem::swap(&mut holder, &mut waiter);
    }
    let heard = heard.context("no round was played")?;
    let latency = Latency::of("handoff: release returned here -> acquire there", handoffs);
    Ok(Finding {
        held: latency.p50 < Duration::from_millis(2) && heard == 0,
        seen: format!(
            "median {:.2} ms; {heard} commands while waiting {} ms",
            latency.p50.as_secs_f64() * 1e3,
            QUIET.as_millis()
        ),
        latency: Some(latency),
    })
}

/// (e) One owner acquires three times, and the scene reads the count from Redis after each step.
fn holds_are_counted(stage: &Stage, runtime: &Runtime) -> Result<Finding> {
    const NAME: &str = "demo:reentrant";
    runtime.block_on(async {
        let locks = connect(&stage.server.url(), LEASE).await?;
        let owner = locks.owner();
        let lock = locks.lock(NAME).with_owner(owner.clone());
        let field = owner.to_string();
        let count = || stage.redis(&["HGET", NAME, &field]);
        let mut counts = Vec::new();
        let mut guards = Vec::new();
        for _ in 0..3 {
            guards.push(lock.try_acquire().await?.acquired().context("the owner was refused its own lock")?);
            counts.push(count());
        }
        while let Some(guard) = guards.pop() {
            guard.release().await?;
            counts.push(count());
        }
        let seen = counts.join(", ");
        Ok(Finding { held: seen == "1, 2, 3, 2, 1, (nil)", seen: format!("HGET says {seen}"), latency: None })
    })
}

/// (f) Another owner holds the lock throughout.
fn a_wait_ends_on_time(stage: &Stage, runtime: &Runtime) -> Result<Finding> {
    const NAME: &str = "demo:patience";
    const WAIT: Duration = Duration::from_millis(500);
    /// Tolerance for the scheduler of a busy machine; the wait itself is exact.
    const SLACK: Duration = Duration::from_millis(100);
    let mut holder = stage.worker(NAME, LEASE)?;
    expect_of(&mut holder, &Request::Acquire, Outcome::Acquired)?;
    runtime.block_on(async {
        let lock = connect(&stage.server.url(), LEASE).await?.lock(NAME);
        let start = Instant::now();
        let guard = lock.try_acquire_for(WAIT).await?;
        let took = start.elapsed();
        Ok(Finding {
            held: !guard.is_acquired() && took + SLACK >= WAIT && took <= WAIT + SLACK,
            seen: format!(
                "asked for {} ms, gave up after {:.1} ms",
                WAIT.as_millis(),
                took.as_secs_f64() * 1e3
            ),
            latency: None,
        })
    })
}

/// (g) A fixed lease is not renewed. The guard knows the end first, then the key expires in Redis, then the release reports it.
fn a_fixed_lease_ends(stage: &Stage, runtime: &Runtime) -> Result<Finding> {
    const NAME: &str = "demo:fixed";
    const FIXED: Duration = Duration::from_millis(400);
    runtime.block_on(async {
        let lock = connect(&stage.server.url(), LEASE).await?.lock(NAME).with_lease(FIXED);
        let start = Instant::now();
        let guard = lock.acquire().await?;
        let lost = tokio::time::timeout(2 * FIXED, guard.lost()).await;
        let lost_after = start.elapsed();
        let expired = poll_until(2 * FIXED, || stage.redis(&["EXISTS", NAME]) == "0");
        let expired_after = start.elapsed();
        let released = guard.release().await;
        Ok(Finding {
            held: lost.is_ok() && expired && matches!(released, Err(Error::Lost { .. })),
            seen: format!(
                "lost() after {} ms, expired after {} ms, {released:?}",
                lost_after.as_millis(),
                expired_after.as_millis()
            ),
            latency: None,
        })
    })
}

/// (h) The cost of a lock without contention.
fn a_free_lock_is_quick(stage: &Stage, runtime: &Runtime) -> Result<Finding> {
    const NAME: &str = "demo:free";
    const WARM_UP: usize = 200;
    const PAIRS: usize = 5_000;
    const WATCHED: usize = 10;
    runtime.block_on(async {
        let lock = connect(&stage.server.url(), LEASE).await?.lock(NAME);
        let pair = async || -> Result<Duration> {
            let start = Instant::now();
            lock.acquire().await?.release().await?;
            Ok(start.elapsed())
        };
        for _ in 0..WARM_UP {
            pair().await?;
        }
        let monitor = stage.server.monitor();
        for _ in 0..WATCHED {
            pair().await?;
        }
        let sent: Vec<_> = monitor.stop()?.into_iter().filter(|command| !command.from_script()).collect();
        let mut samples = Vec::with_capacity(PAIRS);
        for _ in 0..PAIRS {
            samples.push(pair().await?);
        }
        let only_scripts = sent.iter().all(|command| command.name() == "EVALSHA");
        Ok(Finding {
            held: only_scripts && sent.len() == 2 * WATCHED,
            seen: format!(
                "{WATCHED} acquires and releases: {} commands, all EVALSHA: {only_scripts}",
                sent.len()
            ),
            latency: Some(Latency::of("acquire + release, nobody else wants it", samples)),
        })
    })
}

/// (i) Ten readers of two managers, and a writer that arrives while they read.
fn readers_and_a_writer(stage: &Stage, runtime: &Runtime) -> Result<Finding> {
    const NAME: &str = "demo:prices";
    const READERS: usize = 10;
    runtime.block_on(async {
        let (one, other) =
            (connect(&stage.server.url(), LEASE).await?, connect(&stage.server.url(), LEASE).await?);
        let prices = [one.read_write_lock(NAME), other.read_write_lock(NAME)];
        let mut reading = Vec::new();
        for number in 0..READERS {
            reading.extend(prices[number % 2].read().try_acquire().await?.acquired());
        }
        let together = reading.len();
        let write = prices[0].write();
        let writer = tokio::spawn(async move { write.acquire().await });
        let waits = || stage.redis(&["EXISTS", "{demo:prices}:wheellock_writer"]) == "1";
        let mut late_readers = 0;
        if eventually(LEASE, async || waits()).await {
            for lock in &prices {
                late_readers += usize::from(lock.read().try_acquire().await?.is_acquired());
            }
        }
        for guard in reading {
            guard.release().await?;
        }
        let writing = writer.await??;
        let beside = prices[1].read().try_acquire().await?.is_acquired();
        writing.release().await?;
        Ok(Finding {
            held: together == READERS && late_readers == 0 && !beside,
            seen: format!(
                "{together} read at once; {late_readers} of 2 who came after the writer passed it; beside it {}",
                usize::from(beside)
            ),
            latency: None,
        })
    })
}

/// (j) Tokens of successive grants, while the scene deletes the counter and the server's data.
fn tokens_rise(stage: &Stage, runtime: &Runtime) -> Result<Finding> {
    const NAME: &str = "demo:ledger";
    const GRANTS: usize = 300;
    runtime.block_on(async {
        let ledger = connect(&stage.server.url(), LEASE).await?.fenced_lock(NAME);
        let mut tokens = Vec::with_capacity(GRANTS);
        for grant in 0..GRANTS {
            if grant % 100 == 99 {
                let _answer = stage.redis(&["DEL", "redisson_lock_token:{demo:ledger}"]);
            }
            let guard = ledger.acquire().await?;
            tokens.push(guard.token());
            guard.release().await?;
        }
        let rising = tokens.windows(2).filter(|pair| pair[0] < pair[1]).count() + 1;
        Ok(Finding {
            held: rising == GRANTS,
            seen: format!("{rising} of {GRANTS} greater than all before; the counter was deleted 3 times"),
            latency: None,
        })
    })
}

/// (k) Many tasks for few permits; one holder is lost with its permit.
fn a_pool_keeps_its_size(stage: &Stage, runtime: &Runtime) -> Result<Finding> {
    const NAME: &str = "demo:pool";
    const PERMITS: u32 = 3;
    const TASKS: u32 = 60;
    runtime.block_on(async {
        let pools = [
            connect(&stage.server.url(), LEASE).await?.permit_semaphore(NAME),
            connect(&stage.server.url(), LEASE).await?.permit_semaphore(NAME),
        ];
        let _free = pools[0].set_permits(PERMITS).await?;
        let (inside, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let work = |task: u32| {
            let (pool, inside, most) =
                (pools[task as usize % 2].clone(), Arc::clone(&inside), Arc::clone(&most));
            tokio::spawn(async move {
                let permit = pool.acquire().await?;
                most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                permit.release().await
            })
        };
        // This permit is never released: its holder is gone.
        std::mem::forget(pools[1].with_lease(SHORT_LEASE).acquire().await?);
        for task in (0..TASKS).map(work).collect::<Vec<_>>() {
            task.await??;
        }
        let all_free = eventually(LEASE, async || {
            pools[0].available().await.is_ok_and(|free| free == i64::from(PERMITS))
        });
        let (all_free, most) = (all_free.await, most.load(Ordering::SeqCst));
        Ok(Finding {
            held: all_free && most <= PERMITS,
            seen: format!(
                "{TASKS} were inside, at most {most} at once; {} free at the end",
                pools[0].available().await?
            ),
            latency: None,
        })
    })
}

/// (l) Two command lines start the same job at once. One runs it, and the other is told the holder.
fn a_cron_job_runs_once(stage: &Stage, _: &Runtime) -> Result<Finding> {
    const NAME: &str = "demo:nightly";
    let [ran, go] = ["ran", "go"].map(|name| stage.server.directory().join(name));
    let script = format!(
        "echo ran >> {0}; while [ -e {0} ] && ! [ -e {1} ]; do sleep 0.01; done",
        ran.display(),
        go.display()
    );
    let mut first = stage.cron_job(NAME, &script).spawn()?;
    let begun = poll_until(LEASE, || ran.exists());
    let second = stage.cron_job(NAME, &script).output()?;
    let told = String::from_utf8_lossy(&second.stderr).into_owned();
    fs::write(&go, "")?;
    let first = first.wait()?;
    let times = fs::read_to_string(&ran)?.lines().count();
    let told_who = told.contains("is taken: ") && told.contains("/sh [");
    let free = stage.redis(&["EXISTS", NAME]) == "0";
    Ok(Finding {
        held: begun && first.success() && second.status.code() == Some(1) && times == 1 && told_who && free,
        seen: format!(
            "ran {times} time; the other ended with {:?}: {}",
            second.status.code().unwrap_or(-1),
            told.split(" [").next().unwrap_or_default().trim_start_matches("wheellock: ")
        ),
        latency: None,
    })
}

/// (m) An operator deletes locks between two renewals. The server tells their holder, because it has renewed them once.
fn a_deleted_lock_is_told(stage: &Stage, runtime: &Runtime) -> Result<Finding> {
    const COUNT: usize = 50;
    let name = |number| format!("demo:deleted:{number}");
    let mut told = runtime.block_on(async {
        let locks = connect(&stage.server.url(), TOLD_LEASE).await?;
        let mut guards = Vec::new();
        for number in 0..COUNT {
            guards.push(locks.lock(name(number)).acquire().await?);
        }
        let remembers = || {
            let stats = stage.redis(&["INFO", "stats"]);
            let keys = stats.lines().find_map(|line| line.strip_prefix("tracking_total_keys:"));
            keys.and_then(|keys| keys.trim().parse().ok()).unwrap_or(0)
        };
        ensure!(
            eventually(TOLD_LEASE, async || remembers() >= COUNT).await,
            "the server tells of no changes"
        );
        let mut told = Vec::new();
        for (number, guard) in guards.iter().enumerate() {
            let start = Instant::now();
            stage.redis(&["DEL", &name(number)]);
            guard.lost().await;
            told.push(start.elapsed());
        }
        anyhow::Ok(told)
    })?;
    told.sort_unstable();
    let latest = told.last().copied().unwrap_or_default();
    Ok(Finding {
        held: latest < TOLD_LEASE / 6,
        seen: format!(
            "{COUNT} deletions, told after {:.1} ms at most; the next renewal is {:.1} s away",
            latest.as_secs_f64() * 1e3,
            (TOLD_LEASE / 3).as_secs_f64()
        ),
        latency: Some(Latency::of("a key deleted by another client -> lost() here", told)),
    })
}

/// (n) The replicas lack the latest grants when the primary is killed. Some managers keep their locks across failovers, and one does not.
fn locks_survive_a_failover(_: &Stage, runtime: &Runtime) -> Result<Finding> {
    const COUNT: usize = 100;
    let mut set = Replicas::try_start(2, &Settings::default())?;
    let url = set.url();
    let mut fleet = Fleet::of_servers(3);
    fleet.may_be_new = true;
    runtime.block_on(async {
        let member = || LockManager::builder(&url).keep_locks_across_failovers(fleet.clone()).connect();
        let (holder, contender, plain) = (member().await?, member().await?, connect(&url, LEASE).await?);
        for locks in [&holder, &contender] {
            // A process acquires locks once the replicas know it.
            locks.lock("demo:known").acquire().await?.release().await?;
        }
        set.replicas().for_each(RedisServer::pause);
        let _cut = set.primary().cli(&["CLIENT", "KILL", "TYPE", "replica"]);
        let mut guards = Vec::new();
        for (locks, kind) in [(&holder, "kept"), (&plain, "plain")] {
            for number in 0..COUNT {
                guards.push(locks.lock(format!("demo:{kind}:{number}")).acquire().await?);
            }
        }
        set.servers_mut()[0].kill();
        set.replicas().for_each(RedisServer::resume);
        ensure!(set.servers()[1].cli(&["REPLICAOF", "NO", "ONE"]) == "OK", "the replica is not promoted");
        let promoted = Instant::now();
        let free = contender.lock("demo:free").acquire().await?;
        let first_grant = promoted.elapsed();
        let mut held_twice = [0, 0];
        for (kind, count) in ["kept", "plain"].into_iter().zip(&mut held_twice) {
            for number in 0..COUNT {
                let lock = contender.lock(format!("demo:{kind}:{number}"));
                *count += usize::from(lock.try_acquire().await?.is_acquired());
            }
        }
        let is_kept = free.is_valid() && guards[..COUNT].iter().all(Guard::is_valid);
        Ok(Finding {
            held: is_kept && held_twice[0] == 0,
            seen: format!(
                "{} of {COUNT} taken by others, {} without the setting; grants resume after {} ms",
                held_twice[0],
                held_twice[1],
                first_grant.as_millis()
            ),
            latency: None,
        })
    })
}

/// Requests a held lock through a worker. Returns once the attempt was rejected and the worker has subscribed.
fn request_and_wait_until_it_waits(stage: &Stage, waiter: &mut Worker, name: &str) -> Result<()> {
    let channel = format!("redisson_lock__channel:{{{name}}}");
    let attempts = || {
        let stats = stage.redis(&["INFO", "commandstats"]);
        let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        calls.and_then(|rest| rest.split(',').next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    let before = attempts();
    waiter.request(&Request::Acquire)?;
    let waits = poll_until(LEASE, || {
        attempts() > before && !stage.redis(&["PUBSUB", "NUMSUB", &channel]).ends_with("\n0")
    });
    ensure!(waits, "the waiter does not listen on {channel}");
    // The worker's second attempt, in the same write as SUBSCRIBE, may still be on its way.
    std::thread::sleep(SETTLE);
    Ok(())
}

/// Sends a request and insists on the outcome. Returns the instant at which it happened.
fn expect_of(worker: &mut Worker, request: &Request<'_>, outcome: Outcome) -> Result<Duration> {
    worker.request(request)?;
    expect(worker, outcome)
}

fn expect(worker: &mut Worker, outcome: Outcome) -> Result<Duration> {
    let answer = worker.answer()?;
    ensure!(answer.what == outcome, "a worker answered {:?} instead of {outcome:?}", answer.what);
    Ok(answer.at)
}

/// Redisson's default.
const LEASE: Duration = Duration::from_secs(30);
/// Short, so that three leases fit into the demo.
const SHORT_LEASE: Duration = Duration::from_millis(900);
const CRASH_LEASE: Duration = Duration::from_millis(1500);
/// The watchdog renews after a third of it, which is longer than the deletions take.
const TOLD_LEASE: Duration = Duration::from_secs(6);
const SETTLE: Duration = Duration::from_millis(3);
