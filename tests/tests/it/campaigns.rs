//! Short runs of all campaigns.
//!
//! Each run has a few processes and lasts two seconds. docs/reliability/campaigns.md describes long runs.
//!
//! The campaigns run in parallel, one per core. A campaign needs about a tenth of a core.

use std::io::Write as _;
use std::process::Command;
use std::time::Duration;

use wheellock_tests::campaign::{self, Options, Report};
use wheellock_tests::interop;
use wheellock_tests::network::Network;

fn run(name: &str, seconds: f64) -> Report {
    run_with(name, seconds, SEED)
}

fn run_with(name: &str, seconds: f64, seed: u64) -> Report {
    let longest = 4.0 * seconds;
    let mut seconds = seconds;
    loop {
        let mut options = Options::new(name, Duration::from_secs_f64(seconds), seed);
        if name != "power-cut-everysec" {
            // The positive control needs more locks to lose.
            (options.processes, options.tasks) = (3, 4);
        }
        let report = campaign::run(&options, || Command::new(env!("CARGO_BIN_EXE_campaign_worker"))).unwrap();
        println!("{}", report.text());
        let violates = report.verdicts.iter().any(|verdict| verdict.excuse.is_none());
        // On a very busy machine a short run may not show the event that it must show, and has then tried nothing. A longer run does.
        if report.missed.is_none() || violates || seconds >= longest {
            assert!(report.passed(), "{name}: {}", report.text());
            return report;
        }
        seconds *= 2.0;
    }
}

const SEED: u64 = 7;

#[test]
fn every_campaign_has_a_test() {
    let this = include_str!("campaigns.rs");
    for (name, _) in campaign::names() {
        let runs = ["run", "run_with_redisson", "run_in_network"].map(|run| format!("{run}(\"{name}\""));
        assert!(runs.iter().any(|runs| this.contains(runs)), "{name} has no test");
    }
}

#[test]
fn calm() {
    let report = run("calm", 1.5);
    assert!(report.verdicts.is_empty());
}

#[test]
fn rechecked_history_gives_same_verdict() {
    // A separate seed, because the directory's name contains the seed.
    let report = run_with("calm", 0.5, SEED + 1);
    let again = campaign::recheck(&report.directory).unwrap();
    assert_eq!(report.figures.json(), again.figures.json());
    assert!(again.passed());
}

#[test]
fn kill_always() {
    run("kill-always", 3.0);
}

#[test]
fn kill_everysec() {
    run("kill-everysec", 1.5);
}

#[test]
fn fenced_failover() {
    run("fenced-failover", 1.0);
}

#[test]
fn hot_failover() {
    run("hot-failover", 1.5);
}

#[test]
fn surviving() {
    run("surviving", 2.0);
}

#[test]
fn surviving_hot() {
    run("surviving-hot", 2.0);
}

#[test]
fn surviving_fenced() {
    run("surviving-fenced", 2.0);
}

#[test]
fn surviving_twice() {
    run("surviving-twice", 2.0);
}

#[test]
fn surviving_restarts() {
    run("surviving-restarts", 2.0);
}

/// Runs a campaign in network namespaces, if this machine lets us make them.
fn run_in_network(name: &str, seconds: f64) {
    match Network::make(1) {
        Ok(_) => _ = run(name, seconds),
        // Written directly, because the test harness would swallow the output of a macro.
        Err(why) => _ = writeln!(std::io::stderr(), "skipped: {name}: {why}"),
    }
}

#[test]
fn surviving_split() {
    // Long enough for a split that outlasts the new primary's grace.
    run_in_network("surviving-split", 8.0);
}

#[test]
fn kill_none() {
    run("kill-none", 1.5);
}

#[test]
fn l15_stop_holders() {
    run("stop-holders", 2.0);
}

#[test]
fn stop_waiters() {
    run("stop-waiters", 1.5);
}

#[test]
fn l17_l18_clock_jumps() {
    run("clock-jumps", 2.5);
}

#[test]
fn pushes_lost() {
    run("pushes-lost", 2.0);
}

#[test]
fn script_flush() {
    run("script-flush", 1.0);
}

#[test]
fn client_kill() {
    run("client-kill", 1.5);
}

#[test]
fn client_pause() {
    run("client-pause", 2.0);
}

#[test]
fn output_buffer() {
    run("output-buffer", 1.5);
}

#[test]
fn flushed() {
    run("flushed", 2.5);
}

#[test]
fn eviction() {
    run("eviction", 2.5);
}

#[test]
fn power_cut() {
    run("power-cut", 3.0);
}

#[test]
fn power_cut_everysec() {
    // Long enough for several cuts. Each cut loses only grants of the second before it; on a busy machine, there may be no such grant.
    run("power-cut-everysec", 8.0);
}

#[test]
fn silent_drop() {
    run("silent-drop", 2.0);
}

#[test]
fn slow_server() {
    run("slow-server", 2.0);
}

#[test]
fn o08_worker_kill() {
    run("worker-kill", 1.5);
}

#[test]
fn o07_starve() {
    run("starve", 1.5);
}

#[test]
fn spin() {
    run("spin", 1.5);
}

#[test]
fn simple() {
    run("simple", 1.5);
}

#[test]
fn read_write_9_1() {
    run("read-write-9-1", 2.5);
}

#[test]
fn read_write_1_1() {
    run("read-write-1-1", 2.5);
}

#[test]
fn read_write_faults() {
    run("read-write-faults", 3.0);
}

#[test]
fn fair() {
    run("fair", 3.0);
}

#[test]
fn fair_faults() {
    run("fair-faults", 3.0);
}

#[test]
fn fair_forgets() {
    run("fair-forgets", 3.0);
}

#[test]
fn fenced() {
    run("fenced", 3.0);
}

#[test]
fn hot() {
    run("hot", 4.0);
}

#[test]
fn hot_contenders() {
    run("hot-contenders", 4.0);
}

#[test]
fn hot_clock() {
    run("hot-clock", 2.5);
}

#[test]
fn hot_forgets() {
    run("hot-forgets", 2.5);
}

#[test]
fn hot_force() {
    run("hot-force", 2.5);
}

/// Runs a campaign with JVMs among its workers. A JVM starts slowly, and the campaign's clock runs meanwhile.
fn run_with_redisson(name: &str) {
    if interop::missing_tools().is_empty() {
        run(name, 6.0);
    } else {
        assert!(std::env::var_os("CI").is_none(), "there is no Java");
    }
}

#[test]
fn read_write_9_1_redisson() {
    run_with_redisson("read-write-9-1-redisson");
}

#[test]
fn read_write_1_1_redisson() {
    run_with_redisson("read-write-1-1-redisson");
}

#[test]
fn permits_redisson() {
    run_with_redisson("permits-redisson");
}

#[test]
fn semaphore_redisson() {
    run_with_redisson("semaphore-redisson");
}

#[test]
fn permits() {
    run("permits", 3.5);
}

#[test]
fn semaphore() {
    run("semaphore", 3.5);
}

#[test]
fn redlock() {
    run("redlock", 2.5);
}

#[test]
fn cluster() {
    run("cluster", 2.5);
}
