//! The additional cost of TLS and of replicas.
//!
//! TLS protects against eavesdroppers; replicas protect a lock against a failover. One task runs, with server and client on one vCPU.

use anyhow::Result;
use wheellock::{Durability, LockManager, LockManagerBuilder};
use wheellock_benches::Report;
use wheellock_client::TlsConfig;
use wheellock_tests::RedisServer;
use wheellock_tests::certificates::{Authority, leaf};
use wheellock_tests::topology::{Replicas, Settings};

use crate::placement::Placement;
use crate::rig::Rig;
use crate::{Pairs, ROUND, runtime};

/// Measures each way to the servers, round by round.
pub(crate) fn bench(report: &mut Report, placement: &Placement, server: &RedisServer) -> Result<()> {
    const BENCH: &str = "the price of TLS and replicas, 1 task";
    if !report.wants(BENCH) {
        return Ok(());
    }
    let authority = Authority::new("bench");
    let identity = authority.issue(&leaf(&["localhost"]));
    let secret = RedisServer::builder().tls(&identity, authority.pem()).arg("tls-auth-clients", "no").start();
    let tls = TlsConfig::new().trust_pem(authority.pem().as_bytes()).build()?;
    let secret_url = format!("rediss://localhost:{}", secret.addr().port());
    let [one, two] = [1, 2].map(|replicas| Replicas::start(replicas, &Settings::default()));
    for server in [server, &secret].into_iter().chain(one.servers()).chain(two.servers()) {
        placement.together(server)?;
    }
    let ways: [(&str, LockManagerBuilder); 5] = [
        ("wheellock, unix socket", LockManager::builder(&server.unix_url())),
        ("wheellock, TCP", LockManager::builder(&server.tcp_url())),
        ("wheellock, TLS", LockManager::builder(&secret_url).configure(|config| config.tls = Some(tls))),
        ("wheellock, 1 replica", replicated(&one, 1)),
        ("wheellock, 2 replicas", replicated(&two, 2)),
    ];
    let mut rigs = Vec::new();
    for (name, builder) in ways {
        let runtime = runtime()?;
        let locks = runtime.block_on(builder.connect())?;
        let rig = Rig::new(name, runtime, vec![Pairs(locks.lock("priced"))]);
        let units = rig.units_within(ROUND)?;
        rigs.push((rig, units, Vec::new()));
    }
    for _ in 0..report.rounds() {
        for (rig, units, rounds) in &mut rigs {
            rounds.push(rig.run(*units)?);
        }
    }
    for (rig, _, rounds) in &rigs {
        let mut row = |metric: &str, unit: &str, of: &dyn Fn(&crate::rig::Round) -> f64| {
            report.row(BENCH, rig.name(), metric, unit, &rounds.iter().map(of).collect::<Vec<_>>());
        };
        row("p50", "us", &|round| round.p50_us);
        row("p99", "us", &|round| round.p99_us);
        row("cpu", "us/pair", &|round| round.cpu_us);
    }
    Ok(())
}

fn replicated(servers: &Replicas, replicas: u32) -> LockManagerBuilder {
    LockManager::builder(&servers.url()).durability(Durability::Replicas(replicas))
}
