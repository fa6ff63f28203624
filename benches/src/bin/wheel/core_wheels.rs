//! Single-owner wheels, without clocks and locks.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::Result;
use bitwheel::timer::BitWheelWithFailover;
use hierarchical_hash_wheel_timer::IdOnlyTimerEntry;
use hierarchical_hash_wheel_timer::wheels::cancellable::QuadWheelWithOverflow;
use tokio_util::time::DelayQueue;
use wheellock_benches::{Bench, Report, process_cpu};
use wheellock_wheel::{Cohorts, Wheel};

/// Ticks per wheel, as in `Timer`; a tick is 1 ms, as in the peers.
const TICKS: usize = 4096;
const THIRTY_SECONDS: u64 = 30_000;

pub(crate) fn run(report: &mut Report) -> Result<()> {
    for (live, name) in [(0, "0"), (10_000, "10k"), (1_000_000, "1M")] {
        pair(report, live, name)?;
    }
    in_flight(report)?;
    random_cancel(report)?;
    postpone(report)?;
    for (name, count, spread) in [
        ("core: fire 1M due at once", 1_000_000, 1),
        ("core: fire 100k over 30 s", 100_000, THIRTY_SECONDS),
        ("core: fire 1M over 30 s", 1_000_000, THIRTY_SECONDS),
    ] {
        fire(report, name, count, spread)?;
    }
    catch_up(report)?;
    cohorts(report)
}

/// Returns a scattered number below the bound, the same for every contender.
pub(crate) fn scatter(index: u64, below: u64) -> u64 {
    ((index.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) * below) >> 32
}

pub(crate) fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Returns a request's deadline: 0.1 to 2.1 s.
pub(crate) fn request(id: u64) -> u64 {
    100 + (id & 2047)
}

struct Id(u64);

impl bitwheel::timer::Timer for Id {
    type Context = u64;

    fn fire(&mut self, fired: &mut u64) {
        *fired += black_box(self.0) | 1;
    }
}

fn pair(report: &mut Report, live: u64, live_name: &str) -> Result<()> {
    let name = format!("core: schedule+cancel, {live_name} live");
    if !report.wants(&name) {
        return Ok(());
    }
    let now = Instant::now();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let _entered = runtime.enter();

    let mut ours = Wheel::new(TICKS);
    let mut nexus = nexus_timer::Wheel::<u64>::unbounded(4096, now);
    let mut bit = BitWheelWithFailover::<Id>::boxed_with_epoch(now);
    let mut quad = QuadWheelWithOverflow::<IdOnlyTimerEntry<u64>>::new();
    let mut queue = DelayQueue::<u64>::new();
    for id in 0..live {
        let ahead = 1 + scatter(id, THIRTY_SECONDS);
        ours.insert(ahead, id);
        nexus.schedule_forget(now + millis(ahead), id);
        bit.insert(now + millis(ahead), Id(id));
        let _ = quad.insert(IdOnlyTimerEntry::new(u64::MAX - id, millis(ahead)));
        queue.insert_at(id, (now + millis(ahead)).into());
    }
    Bench::new(&name, "pair")
        .no_op()
        .subject("wheellock Wheel", |times| {
            let mut done = 0;
            for id in 0..times {
                let key = black_box(ours.insert(black_box(request(id)), id));
                done += u64::from(ours.remove(key) == Some(id));
            }
            done
        })
        .subject("nexus-timer", |times| {
            let mut done = 0;
            for id in 0..times {
                let handle = black_box(nexus.schedule(black_box(now + millis(request(id))), id));
                done += u64::from(nexus.cancel(handle) == Some(id));
            }
            done
        })
        .subject("bitwheel", |times| {
            let mut done = 0;
            for id in 0..times {
                let handle = black_box(bit.insert(black_box(now + millis(request(id))), Id(id)));
                done += u64::from(bit.cancel(handle).is_some_and(|got| got.0 == id));
            }
            done
        })
        .subject("hierarchical_hash_wheel_timer", |times| {
            let mut done = 0;
            for id in 0..times {
                let entry = IdOnlyTimerEntry::new(black_box(id), black_box(millis(request(id))));
                let inserted = quad.insert(entry).is_ok();
                done += u64::from(inserted && quad.cancel(&id).is_ok());
                // A cancelled entry stays until its tick is reached, so ticks must pass. 3 s of requests are in flight at a time.
                if live == 0 && id % 64 == 0 {
                    black_box(quad.tick());
                }
            }
            done
        })
        .subject("tokio_util DelayQueue", |times| {
            let mut done = 0;
            for id in 0..times {
                let key = black_box(queue.insert_at(id, black_box(now + millis(request(id))).into()));
                done += u64::from(queue.remove(&key).into_inner() == id);
            }
            done
        })
        .run(report)
}

/// Measures requests on a pipelined connection: 256 in flight, cancelled in the order of their creation.
fn in_flight(report: &mut Report) -> Result<()> {
    const WINDOW: usize = 256;
    let now = Instant::now();
    let mut ours = Wheel::new(TICKS);
    let mut keys: Vec<_> = (0..WINDOW as u64).map(|id| ours.insert(3_000, id)).collect();
    let mut nexus = nexus_timer::Wheel::<u64>::unbounded(4096, now);
    let mut handles: Vec<_> =
        (0..WINDOW as u64).map(|id| Some(nexus.schedule(now + millis(3_000), id))).collect();
    let result = Bench::new("core: 256 in flight, FIFO", "pair")
        .subject("wheellock Wheel", |times| {
            let mut done = 0;
            for id in 0..times {
                let place = &mut keys[id as usize % WINDOW];
                done += u64::from(ours.remove(*place).is_some());
                *place = ours.insert(black_box(3_000), id);
            }
            done
        })
        .subject("nexus-timer", |times| {
            let mut done = 0;
            for id in 0..times {
                let place = &mut handles[id as usize % WINDOW];
                done += u64::from(place.take().and_then(|handle| nexus.cancel(handle)).is_some());
                *place = Some(nexus.schedule(black_box(now + millis(3_000)), id));
            }
            done
        })
        .run(report);
    for handle in handles.into_iter().flatten() {
        nexus.cancel(handle);
    }
    result
}

/// Measures memory access: a million timers are pending, scattered in memory, and each operation replaces one of them.
fn random_cancel(report: &mut Report) -> Result<()> {
    const LIVE: u64 = 1_000_000;
    let name = "core: replace one of 1M at random";
    if !report.wants(name) {
        return Ok(());
    }
    let now = Instant::now();
    let mut ours = Wheel::new(TICKS);
    let mut keys: Vec<_> = (0..LIVE).map(|id| ours.insert(1 + scatter(id, THIRTY_SECONDS), id)).collect();
    let mut nexus = nexus_timer::Wheel::<u64>::unbounded(4096, now);
    let mut handles: Vec<_> =
        (0..LIVE).map(|id| Some(nexus.schedule(now + millis(1 + scatter(id, THIRTY_SECONDS)), id))).collect();
    let (mut turn, mut other_turn) = (0, 0);
    let result = Bench::new(name, "pair")
        .subject("wheellock Wheel", |times| {
            let mut done = 0;
            for _ in 0..times {
                turn += 1;
                let place = &mut keys[scatter(turn, LIVE) as usize];
                done += u64::from(ours.remove(*place).is_some());
                *place = ours.insert(1 + scatter(turn, THIRTY_SECONDS), turn);
            }
            done
        })
        .subject("nexus-timer", |times| {
            let mut done = 0;
            for _ in 0..times {
                other_turn += 1;
                let place = &mut handles[scatter(other_turn, LIVE) as usize];
                done += u64::from(place.take().and_then(|handle| nexus.cancel(handle)).is_some());
                *place =
                    Some(nexus.schedule(now + millis(1 + scatter(other_turn, THIRTY_SECONDS)), other_turn));
            }
            done
        })
        .run(report);
    for handle in handles.into_iter().flatten() {
        nexus.cancel(handle);
    }
    result
}

/// Measures a deadline that is postponed repeatedly, as a connection's is.
fn postpone(report: &mut Report) -> Result<()> {
    let mut wheel = Wheel::new(TICKS);
    let key = wheel.insert(3_000, 0_u64);
    let mut lazy = Wheel::new(TICKS);
    let lazy_key = lazy.insert(3_000, 0_u64);
    let (mut at, mut lazily_at) = (3_000_u64, 3_000_u64);
    Bench::new("core: push a deadline back", "op")
        .subject("wheellock Wheel::defer", |times| {
            (0..times)
                .map(|_| {
                    lazily_at += 1;
                    u64::from(lazy.defer(black_box(lazy_key), lazily_at))
                })
                .sum()
        })
        .subject("wheellock Wheel::reschedule", |times| {
            (0..times)
                .map(|_| {
                    at += 1;
                    u64::from(wheel.reschedule(black_box(key), at))
                })
                .sum()
        })
        .run(report)
}

fn fire(report: &mut Report, name: &str, count: u64, spread: u64) -> Result<()> {
    if !report.wants(name) {
        return Ok(());
    }
    let (mut ours, mut nexus, mut quad) = (Vec::new(), Vec::new(), Vec::new());
    // The first round is untimed: the system, not the wheel, causes the cost of memory that was never touched.
    for round in 0..=report.rounds() {
        let mut wheel = Wheel::new(TICKS);
        for id in 0..count {
            wheel.insert(3_000 + scatter(id, spread), id);
        }
        let mut fired = 0;
        let mut sum = 0;
        let before = process_cpu();
        wheel.advance(3_000 + spread, |_, id| {
            fired += 1;
            sum ^= id;
        });
        let elapsed = process_cpu() - before;
        black_box(sum);
        anyhow::ensure!(fired == count, "{fired} of {count} fired");
        push(&mut ours, round, elapsed, count);

        if count * spread < 10_000_000_000 {
            // This wheel searches coarse slots repeatedly: 14 us for each of a million scattered timers, which would be minutes per round.
            let now = Instant::now();
            let mut wheel = nexus_timer::Wheel::<u64>::unbounded(4096, now);
            for id in 0..count {
                wheel.schedule_forget(now + millis(3_000 + scatter(id, spread)), id);
            }
            let mut due = Vec::with_capacity(1024);
            let mut fired = 0;
            let before = process_cpu();
            for tick in (0..=64).map(|step| 3_000 + spread * step / 64 + 2) {
                while wheel.poll_with_limit(now + millis(tick), 1024, &mut due) > 0 {
                    fired += due.len() as u64;
                    black_box(&due);
                    due.clear();
                }
            }
            let elapsed = process_cpu() - before;
            anyhow::ensure!(fired == count, "nexus-timer: {fired} of {count} fired");
            push(&mut nexus, round, elapsed, count);
        }

        let mut wheel = QuadWheelWithOverflow::<IdOnlyTimerEntry<u64>>::new();
        for id in 0..count {
            let _ = wheel.insert(IdOnlyTimerEntry::new(id, millis(3_000 + scatter(id, spread))));
        }
        let mut fired = 0;
        let before = process_cpu();
        for _ in 0..3_000 + spread + 1 {
            fired += wheel.tick().len() as u64;
        }
        let elapsed = process_cpu() - before;
        anyhow::ensure!(fired == count, "hierarchical_hash_wheel_timer: {fired} of {count} fired");
        push(&mut quad, round, elapsed, count);
    }
    report.row(name, "wheellock Wheel", "cpu", "ns/timer", &ours);
    if !nexus.is_empty() {
        report.row(name, "nexus-timer", "cpu", "ns/timer", &nexus);
    }
    report.row(name, "hierarchical_hash_wheel_timer", "cpu", "ns/timer", &quad);
    Ok(())
}

fn push(samples: &mut Vec<f64>, round: usize, elapsed: Duration, count: u64) {
    if round > 0 {
        samples.push(elapsed.as_secs_f64() * 1e9 / count as f64);
    }
}

/// Advances by an hour at 1 ms ticks, with ten timers in it.
fn catch_up(report: &mut Report) -> Result<()> {
    let mut wheel = Wheel::new(TICKS);
    let mut now = 0;
    Bench::new("core: 1 h at once, 10 timers", "hour")
        .subject("wheellock Wheel", |times| {
            let mut fired = 0;
            for _ in 0..times {
                for timer in 0..10 {
                    wheel.insert(now + 1 + scatter(timer, 3_600_000), timer);
                }
                now += 3_600_000;
                wheel.advance(now, |_, _| fired += 1);
            }
            fired / 10
        })
        .run(report)
}

/// Measures the timekeeping of a million leases, each renewed every 10 s, at 10 ms ticks.
fn cohorts(report: &mut Report) -> Result<()> {
    const MEMBERS: u64 = 1_000_000;
    let name = "1M watchdogs, period 10 s";
    if !report.wants(name) {
        return Ok(());
    }
    let mut cohorts = Cohorts::new(1_000, 0);
    for tick in 0..1_000 {
        for member in 0..MEMBERS / 1_000 {
            let _ = cohorts.join(tick * 1_000 + member, tick);
        }
    }
    let mut wheel = Wheel::new(TICKS);
    for member in 0..MEMBERS {
        wheel.insert(1_000 + scatter(member, 1_000), member);
    }
    let (mut cohort_ns, mut wheel_ns) = (Vec::new(), Vec::new());
    let (mut cohort_now, mut wheel_now, mut again) = (999, 1_000, Vec::new());
    for _ in 0..report.rounds() {
        let (mut visited, mut sum) = (0, 0_u64);
        let before = process_cpu();
        for _ in 0..1_000 {
            cohort_now += 1;
            cohorts.visit(cohort_now, |_, group| {
                visited += group.len() as u64;
                sum = group.iter().fold(sum, |sum, member| sum ^ member);
            });
        }
        let elapsed = process_cpu() - before;
        black_box(sum);
        anyhow::ensure!(visited == MEMBERS, "{visited} visited");
        push(&mut cohort_ns, 1, elapsed, MEMBERS);

        let mut visited = 0;
        let before = process_cpu();
        for _ in 0..1_000 {
            wheel_now += 1;
            wheel.advance(wheel_now, |deadline, member| again.push((deadline, member)));
            visited += again.len() as u64;
            for (deadline, member) in again.drain(..) {
                wheel.insert(deadline + 1_000, member);
            }
        }
        let elapsed = process_cpu() - before;
        anyhow::ensure!(visited.abs_diff(MEMBERS) < MEMBERS / 100, "{visited} visited");
        push(&mut wheel_ns, 1, elapsed, visited);
    }
    report.row(name, "wheellock Cohorts", "cpu", "ns/visit", &cohort_ns);
    report.row(name, "wheellock Wheel", "cpu", "ns/visit", &wheel_ns);
    // 100 000 visits a second; 1 ns each is 0.01 % of a core.
    let share = |samples: &[f64]| samples.iter().map(|ns| ns * 1e5 / 1e9 * 100.0).collect::<Vec<_>>();
    report.row(name, "wheellock Cohorts", "core", "%", &share(&cohort_ns));
    report.row(name, "wheellock Wheel", "core", "%", &share(&wheel_ns));
    Ok(())
}
