//! Redlock benchmarks on five servers, beside a lock on one.
//!
//! The servers are all healthy, or two are dead, or two reply after 2 s.
//!
//! `redlock [--rounds N] [word]` runs the benches. Every fleet has its own servers and managers. The fleets take turns within a round, and
//! ratios are computed inside a round.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use tokio::runtime::{Builder, Runtime};
use wheellock::{LockManager, RedLock, RedLockManager};
use wheellock_benches::Report;
use wheellock_tests::RedisServer;
use wheellock_tests::fault::{Direction, Fault, Proxy};

fn main() -> Result<()> {
    let mut report = Report::new("redlock");
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let mut fleets = Vec::new();
    for state in [State::One, State::Healthy, State::TwoDead, State::TwoSlow] {
        fleets.push((runtime.block_on(Fleet::start(state))?, Vec::new()));
    }
    for _ in 0..report.rounds() {
        for (fleet, samples) in &mut fleets {
            samples.push(fleet.round(&runtime)?);
        }
    }
    let healthy: Vec<f64> =
        fleets.get(1).iter().flat_map(|(_, samples)| samples).map(|sample| sample.acquire_p50).collect();
    for (fleet, samples) in &fleets {
        let mut row = |metric: &str, unit: &str, of: &dyn Fn(&Sample) -> f64| {
            report.row(BENCH, fleet.state.name(), metric, unit, &samples.iter().map(of).collect::<Vec<_>>());
        };
        row("acquire p50", "us", &|sample| sample.acquire_p50);
        row("acquire p99", "us", &|sample| sample.acquire_p99);
        row("release p50", "us", &|sample| sample.release_p50);
        let ratios: Vec<f64> =
            samples.iter().zip(&healthy).map(|(sample, healthy)| sample.acquire_p50 / healthy).collect();
        report.row(BENCH, fleet.state.name(), "p50 to healthy", "x", &ratios);
    }
    report.finish()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    One,
    Healthy,
    TwoDead,
    TwoSlow,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            Self::One => "1 server",
            Self::Healthy => "5 healthy",
            Self::TwoDead => "2 of 5 dead",
            Self::TwoSlow => "2 of 5 slowed to 2 s",
        }
    }
}

/// Servers in one state, and a lock on them.
struct Fleet {
    state: State,
    lock: RedLock,
    _servers: Vec<RedisServer>,
    _proxies: Vec<Proxy>,
}

struct Sample {
    acquire_p50: f64,
    acquire_p99: f64,
    release_p50: f64,
}

impl Fleet {
    async fn start(state: State) -> Result<Self> {
        let count = if state == State::One { 1 } else { 5 };
        let mut servers: Vec<_> = (0..count).map(|_| RedisServer::builder().tcp().start()).collect();
        let mut proxies = Vec::new();
        let mut managers = Vec::new();
        for (place, server) in servers.iter().enumerate() {
            let slow = state == State::TwoSlow && place >= 3;
            if slow {
                proxies.push(Proxy::before(server));
            }
            let url = proxies.last().filter(|_| slow).map_or_else(|| server.tcp_url(), Proxy::url);
            managers.push(LockManager::connect(&url).await?);
        }
        let lock = RedLockManager::new(managers).await?.lock("bench");
        // After this pair every manager is connected and identified.
        lock.acquire().await?.release().await?;
        if state == State::TwoDead {
            servers.iter_mut().skip(3).for_each(RedisServer::kill);
        }
        for proxy in &proxies {
            proxy.strike(Direction::ToClient, Fault::Delay(SLOW, Duration::from_nanos(1)));
        }
        Ok(Self { state, lock, _servers: servers, _proxies: proxies })
    }

    /// Acquires and releases the lock, at a pace that lets slow servers catch up.
    fn round(&self, runtime: &Runtime) -> Result<Sample> {
        let lock = self.lock.clone();
        let (mut acquires, mut releases) = runtime.block_on(async {
            // In a task, not in the root future.
            tokio::spawn(async move {
                let (mut acquires, mut releases) = (Vec::new(), Vec::new());
                for _ in 0..PAIRS {
                    let began = Instant::now();
                    let guard = lock.acquire().await?;
                    acquires.push(began.elapsed());
                    ensure!(guard.is_valid(), "a guard was lost");
                    let began = Instant::now();
                    guard.release().await?;
                    releases.push(began.elapsed());
                    tokio::time::sleep(PACE).await;
                }
                Ok((acquires, releases))
            })
            .await
            .context("the task panicked")?
        })?;
        acquires.sort_unstable();
        releases.sort_unstable();
        let at = |samples: &[Duration], percent: usize| {
            samples.get(samples.len() * percent / 100).map_or(0.0, |took| took.as_secs_f64() * 1e6)
        };
        Ok(Sample {
            acquire_p50: at(&acquires, 50),
            acquire_p99: at(&acquires, 99),
            release_p50: at(&releases, 50),
        })
    }
}

const BENCH: &str = "a lock on several servers";

const SLOW: Duration = Duration::from_secs(2);

const PAIRS: usize = 500;

/// Long compared with a pair.
const PACE: Duration = Duration::from_millis(1);
