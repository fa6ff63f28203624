//! The faults of each campaign.
//!
//! A campaign is one row and one function of this module.

use std::time::Duration;

use anyhow::{Context, Result};

use super::figures::Figures;
use super::fleet::{Locks, Style};
use super::servers::Topology;
use super::stage::Stage;
use crate::fault::{Direction, Fault as Wire, Gate, Proxy};
use crate::history::{Fault, Reason, Told};

/// A campaign.
pub(super) struct Plan {
    pub(super) name: &'static str,
    /// The description of the campaign's faults and of its promises.
    pub(super) what: &'static str,
    /// The server's settings.
    pub(super) server: &'static [(&'static str, &'static str)],
    pub(super) topology: Topology,
    /// True if the workers connect through a fault proxy before each server.
    pub(super) proxy: bool,
    /// True if the campaign can fake the server's clock and disk.
    pub(super) shim: bool,
    /// The watchdog's lease.
    pub(super) lease: Duration,
    pub(super) style: fn(u32, u32) -> Style,
    pub(super) locks: Locks,
    /// True if the locks survive a failover.
    pub(super) survives: bool,
    /// Strikes once; the stage calls it repeatedly.
    pub(super) round: fn(&mut Stage) -> Result<()>,
    /// Returns the required event that the figures do not show, if any. Without that event, the campaign has tested too little.
    pub(super) shows: fn(&Figures) -> Option<String>,
}

const PLAIN: Plan = Plan {
    name: "calm",
    what: "nothing strikes: no error, no loss, no violation at all",
    server: &[],
    topology: Topology::One,
    proxy: false,
    shim: false,
    lease: Duration::from_millis(600),
    style: |_, _| Style::Mixed,
    locks: Locks::Plain,
    survives: false,
    round: |stage| {
        stage.rest(Duration::from_millis(500));
        Ok(())
    },
    shows: grants,
};

const SURVIVING: Plan = Plan {
    name: "surviving",
    what: "locks that survive a failover, while the primary is killed or stopped and a replica promoted, and processes are killed and stopped: nothing is granted twice",
    topology: Topology::Watched,
    // A hold survives a failover for sure if the window and a response timeout are left when the new primary has a replica.
    lease: Duration::from_secs(5),
    survives: true,
    round: |stage| match stage.round % 6 {
        2 => stop_holders(stage),
        5 => kill_workers(stage),
        _ => fail_over_survivably(stage),
    },
    shows: survived,
    ..PLAIN
};

/// Makes a grace short.
const SHORT: Duration = Duration::from_millis(1500);

const ALWAYS: &[(&str, &str)] = &[("appendonly", "yes"), ("appendfsync", "always")];
const EVERYSEC: &[(&str, &str)] = &[("appendonly", "yes"), ("appendfsync", "everysec")];
const ALWAYS_ONE_FILE: &[(&str, &str)] =
    &[("appendonly", "yes"), ("appendfsync", "always"), ("auto-aof-rewrite-percentage", "0")];
const EVERYSEC_ONE_FILE: &[(&str, &str)] =
    &[("appendonly", "yes"), ("appendfsync", "everysec"), ("auto-aof-rewrite-percentage", "0")];

/// Enough for servers that are killed: the kernel keeps what a process has written. Five servers that sync would wait for their disk.
const UNSYNCED: &[(&str, &str)] =
    &[("appendonly", "yes"), ("appendfsync", "no"), ("auto-aof-rewrite-percentage", "0")];

/// Every campaign.
pub(super) const ALL: &[Plan] = &[
    PLAIN,
    Plan {
        name: "kill-always",
        what: "the server is killed every 2 s and keeps everything (appendfsync always): no violation",
        server: ALWAYS,
        lease: Duration::from_millis(1000),
        round: |stage| kill_every_2_seconds(stage, false),
        shows: |figures| figures.lacks(Fault::Down).or_else(|| grants(figures)),
        ..PLAIN
    },
    Plan {
        name: "kill-everysec",
        what: "the same with appendfsync everysec: a killed process loses nothing unless its disk is slow, so no violation",
        server: EVERYSEC,
        lease: Duration::from_millis(1000),
        round: |stage| kill_every_2_seconds(stage, false),
        shows: |figures| figures.lacks(Fault::Down).or_else(|| grants(figures)),
        ..PLAIN
    },
    Plan {
        name: "kill-none",
        what: "the same without persistence: locks are granted twice after a restart; counted, and each loss is told within a renewal",
        lease: Duration::from_millis(1000),
        style: |place, _| if place == 0 { Style::Holding } else { Style::Mixed },
        round: |stage| kill_every_2_seconds(stage, true),
        shows: |figures| {
            let told = figures.lost(Reason::NotOwner) + figures.excused;
            (told == 0)
                .then(|| "the server forgot everything, and nobody lost a lock: nothing was tried".to_owned())
        },
        ..PLAIN
    },
    Plan {
        name: "stop-holders",
        what: "processes are stopped for 0.5, 1 and 3 leases: no guard claims the lock past its deadline, no stale write is accepted",
        lease: Duration::from_millis(300),
        round: stop_holders,
        shows: |figures| figures.lacks_stops().or_else(|| grants(figures)),
        ..PLAIN
    },
    Plan {
        name: "stop-waiters",
        what: "a process that mostly waits is stopped for 0.5, 1 and 3 leases: nobody else waits for it for longer than a lease",
        lease: Duration::from_millis(300),
        style: |place, processes| if place + 1 == processes { Style::Waiting } else { Style::Mixed },
        round: stop_waiters,
        shows: |figures| figures.lacks_stops().or_else(|| grants(figures)),
        ..PLAIN
    },
    Plan {
        name: "starve",
        what: "a process runs for 5 ms of every 100: its guards claim nothing past their deadlines",
        lease: Duration::from_millis(150),
        round: |stage| {
            stage.rest(Duration::from_millis(5));
            stage.stop_worker(0, Duration::from_millis(95));
            Ok(())
        },
        shows: |figures| figures.lacks_stops().or_else(|| grants(figures)),
        ..PLAIN
    },
    Plan {
        name: "clock-jumps",
        what: "the server's clock jumps 31 s ahead and an hour back: seen by the next renewal; double grants counted",
        shim: true,
        lease: Duration::from_millis(600),
        style: |place, _| if place == 0 { Style::Holding } else { Style::Mixed },
        round: clock_jumps,
        shows: |figures| {
            figures
                .lacks(Fault::Clock)
                .or_else(|| (figures.clock_jumps == 0).then(|| "no jump of the clock was noticed".to_owned()))
        },
        ..PLAIN
    },
    Plan {
        name: "pushes-lost",
        what: "messages of releases are lost or late: waiters find out by asking",
        proxy: true,
        lease: Duration::from_millis(500),
        round: lose_pushes,
        shows: |figures| figures.lacks(Fault::Deaf).or_else(|| grants(figures)),
        ..PLAIN
    },
    Plan {
        name: "script-flush",
        what: "the server forgets its scripts every few milliseconds: nobody notices",
        round: |stage| {
            stage.rest_between(1, 40);
            stage.strikes(Fault::Flushed, "", || _ = stage.command(&["SCRIPT", "FLUSH", "SYNC"]));
            Ok(())
        },
        shows: |figures| figures.lacks(Fault::Flushed).or_else(|| grants(figures)),
        ..PLAIN
    },
    Plan {
        name: "client-kill",
        what: "the server cuts connections every few hundred milliseconds: no violation, nothing left behind",
        round: client_kill,
        shows: |figures| figures.lacks(Fault::Cut).or_else(|| grants(figures)),
        ..PLAIN
    },
    Plan {
        name: "client-pause",
        what: "the server pauses its clients for 50 to 900 ms: holders lose locks honestly",
        lease: Duration::from_millis(500),
        round: client_pause,
        shows: |figures| figures.lacks(Fault::Slow).or_else(|| grants(figures)),
        ..PLAIN
    },
    Plan {
        name: "output-buffer",
        what: "connections are cut for their output buffers, by messages too large for them",
        round: output_buffer,
        shows: |figures| figures.lacks(Fault::Cut).or_else(|| grants(figures)),
        ..PLAIN
    },
    Plan {
        name: "eviction",
        what: "the server's memory is full and it evicts locks: double grants counted, and holders are told before the next grant",
        server: &[("maxmemory-policy", "volatile-ttl")],
        style: |place, _| if place == 0 { Style::Holding } else { Style::Mixed },
        round: evict,
        shows: told_in_time,
        ..PLAIN
    },
    Plan {
        name: "flushed",
        what: "the server is flushed while locks are held for long: double grants counted, and holders are told before the next grant",
        style: |_, _| Style::Holding,
        round: |stage| {
            stage.rest_between(300, 900);
            stage.strikes(Fault::Forgot, "flushed", || _ = stage.command(&["FLUSHALL"]));
            Ok(())
        },
        shows: told_in_time,
        ..PLAIN
    },
    Plan {
        name: "power-cut",
        what: "the server is killed and its file cut to what was synced (appendfsync always): no granted lock is lost",
        server: ALWAYS_ONE_FILE,
        shim: true,
        lease: Duration::from_millis(1000),
        style: |place, _| if place == 0 { Style::Holding } else { Style::Mixed },
        round: |stage| cut_power(stage, false),
        shows: |figures| figures.lacks(Fault::Down).or_else(|| grants(figures)),
        ..PLAIN
    },
    Plan {
        name: "power-cut-everysec",
        what: "the same with appendfsync everysec, the positive control: granted locks must be lost",
        server: EVERYSEC_ONE_FILE,
        shim: true,
        lease: Duration::from_millis(1000),
        // Only a held lock that was granted within the last second can be lost in a power cut.
        style: |_, _| Style::Holding,
        round: |stage| cut_power(stage, true),
        shows: |figures| {
            let lost = figures.lost(Reason::NotOwner) + figures.excused;
            (lost == 0)
                .then(|| "no granted lock was lost: this campaign would not notice if one were".to_owned())
        },
        ..PLAIN
    },
    Plan {
        name: "silent-drop",
        what: "the network goes silent for up to a second, and nobody is told",
        proxy: true,
        lease: Duration::from_millis(500),
        round: drop_silently,
        shows: |figures| figures.lacks(Fault::Silent).or_else(|| grants(figures)),
        ..PLAIN
    },
    Plan {
        name: "slow-server",
        what: "the server sleeps for up to 600 ms, and the network delays by up to 100 ms",
        proxy: true,
        lease: Duration::from_millis(500),
        round: slow_down,
        shows: |figures| figures.lacks(Fault::Slow).or_else(|| grants(figures)),
        ..PLAIN
    },
    Plan {
        name: "worker-kill",
        what: "processes are killed: their locks go to others within one lease",
        lease: Duration::from_millis(400),
        round: kill_workers,
        shows: kills,
        ..PLAIN
    },
    Plan {
        name: "spin",
        what: "the same with waiters that ask again and again instead of listening",
        lease: Duration::from_millis(400),
        locks: Locks::Spin,
        round: kill_workers,
        shows: kills,
        ..PLAIN
    },
    Plan {
        name: "simple",
        what: "the same with the lock of a single instance",
        lease: Duration::from_millis(400),
        locks: Locks::Simple,
        round: kill_workers,
        shows: kills,
        ..PLAIN
    },
    Plan {
        name: "read-write-9-1",
        what: "processes that read and write 9:1 are killed: a writer is alone, and readers and writers have their turns",
        lease: Duration::from_millis(400),
        style: |_, _| Style::Even,
        locks: Locks::ReadWrite(90),
        round: kill_workers,
        shows: kills,
        ..PLAIN
    },
    Plan {
        name: "read-write-1-1",
        what: "the same with as many writes as reads",
        lease: Duration::from_millis(400),
        style: |_, _| Style::Even,
        locks: Locks::ReadWrite(50),
        round: kill_workers,
        shows: kills,
        ..PLAIN
    },
    Plan {
        name: "read-write-9-1-redisson",
        what: "the same 9:1, every other process a JVM with Redisson: a writer is alone",
        lease: Duration::from_millis(1000),
        style: with_redisson,
        locks: Locks::ReadWrite(90),
        round: kill_workers,
        shows: both_sides,
        ..PLAIN
    },
    Plan {
        name: "read-write-1-1-redisson",
        what: "the same with as many writes as reads",
        lease: Duration::from_millis(1000),
        style: with_redisson,
        locks: Locks::ReadWrite(50),
        round: kill_workers,
        shows: both_sides,
        ..PLAIN
    },
    Plan {
        name: "read-write-faults",
        what: "long and short reads and writes while processes are killed and stopped, connections cut, and the server is killed, which keeps everything",
        server: ALWAYS,
        lease: Duration::from_millis(500),
        style: |place, _| if place == 0 { Style::Holding } else { Style::Mixed },
        locks: Locks::ReadWrite(60),
        round: |stage| match stage.round % 4 {
            1 => kill_workers(stage),
            2 => client_kill(stage),
            3 => kill_every_2_seconds(stage, false),
            _ => stop_holders(stage),
        },
        shows: kills,
        ..PLAIN
    },
    Plan {
        name: "fenced",
        what: "holders of fenced locks are killed and stopped, and the server is killed and forgets everything: tokens rise, and no stale write is accepted",
        // Longer than the server takes to restart beside other tests. A hold that expires before the restart shows no loss.
        lease: Duration::from_millis(1000),
        style: |place, _| if place == 0 { Style::Holding } else { Style::Mixed },
        locks: Locks::Fenced,
        round: |stage| match stage.round % 3 {
            1 => {
                stage.rest_between(300, 900);
                stage.kill_server(true, |_| Ok(()))
            }
            2 => kill_workers(stage),
            _ => stop_holders(stage),
        },
        shows: |figures| {
            let told = figures.lost(Reason::NotOwner) + figures.excused;
            (told == 0)
                .then(|| "the server forgot everything, and nobody lost a lock: nothing was tried".to_owned())
        },
        ..PLAIN
    },
    Plan {
        name: "fenced-failover",
        what: "the primary is killed or stopped and a replica promoted, holders are killed and stopped: tokens rise, and no stale write is accepted",
        topology: Topology::Watched,
        lease: Duration::from_millis(1000),
        style: |place, _| if place == 0 { Style::Holding } else { Style::Mixed },
        locks: Locks::Fenced,
        round: |stage| match stage.round % 3 {
            1 => fail_over(stage),
            2 => kill_workers(stage),
            _ => stop_holders(stage),
        },
        shows: |figures| figures.lacks(Fault::Forgot).or_else(|| grants(figures)),
        ..PLAIN
    },
    Plan {
        name: "fair",
        what: "processes that wait for fair locks are killed: grants follow arrival, and whoever died is passed",
        lease: Duration::from_millis(400),
        style: |_, _| Style::Even,
        locks: Locks::Fair,
        round: kill_workers_rarely,
        shows: |figures| kills(figures).or_else(|| queued(figures)),
        ..PLAIN
    },
    Plan {
        name: "fair-faults",
        what: "the same while processes are stopped, connections cut, and the server is killed, which keeps everything",
        server: ALWAYS,
        lease: Duration::from_millis(500),
        locks: Locks::Fair,
        round: |stage| match stage.round % 4 {
            1 => kill_workers_rarely(stage),
            2 => client_kill(stage),
            3 => kill_every_2_seconds(stage, false),
            _ => stop_holders(stage),
        },
        shows: |figures| kills(figures).or_else(|| queued(figures)),
        ..PLAIN
    },
    Plan {
        name: "fair-forgets",
        what: "the server is killed every 2 s and forgets the queue: those who wait stand in it anew, and everybody is served",
        lease: Duration::from_millis(1000),
        style: |_, _| Style::Even,
        locks: Locks::Fair,
        round: |stage| kill_every_2_seconds(stage, true),
        shows: |figures| figures.lacks(Fault::Forgot).or_else(|| queued(figures)),
        ..PLAIN
    },
    Plan {
        name: "hot",
        what: "one lock that every task wants, handed over and taken in turns, while processes are killed and stopped, connections cut, and the server is killed, which keeps everything: no violation",
        server: ALWAYS,
        lease: Duration::from_millis(500),
        style: |_, _| Style::Hot,
        round: |stage| match stage.round % 4 {
            1 => kill_workers(stage),
            2 => client_kill(stage),
            3 => kill_every_2_seconds(stage, false),
            _ => stop_holders(stage),
        },
        shows: |figures| handed_over(figures).or_else(|| kills(figures)),
        ..PLAIN
    },
    Plan {
        name: "hot-contenders",
        what: "one process that never stops wanting a lock, beside others that poll for it, or listen: each of them has its turns, and nothing overlaps",
        lease: Duration::from_millis(1000),
        style: |place, _| match place % 3 {
            0 => Style::Hot,
            1 => Style::Polling,
            _ => Style::Visiting,
        },
        shows: |figures| handed_over(figures).or_else(|| starved(figures)),
        ..PLAIN
    },
    Plan {
        name: "hot-clock",
        what: "the same while the server's clock jumps: seen by the next renewal; double grants counted",
        shim: true,
        lease: Duration::from_millis(600),
        style: |_, _| Style::Hot,
        round: clock_jumps,
        shows: |figures| handed_over(figures).or_else(|| figures.lacks(Fault::Clock)),
        ..PLAIN
    },
    Plan {
        name: "hot-forgets",
        what: "the same while the server is killed and forgets everything: double grants counted, and each loss is told",
        lease: Duration::from_millis(1000),
        style: |_, _| Style::Hot,
        round: |stage| kill_every_2_seconds(stage, true),
        shows: |figures| handed_over(figures).or_else(|| figures.lacks(Fault::Forgot)),
        ..PLAIN
    },
    Plan {
        name: "hot-force",
        what: "the same while locks are released by force: double grants counted, and watched holders are told before the next grant",
        lease: Duration::from_millis(1000),
        // Only a renewed hold is watched, and a hot process renews none.
        style: |place, _| if place == 0 { Style::Holding } else { Style::Hot },
        round: |stage| {
            stage.rest_between(100, 900);
            stage.release_by_force("lock:0")?;
            stage.release_by_force("lock:1")
        },
        shows: |figures| {
            let missing = handed_over(figures).or_else(|| figures.lacks(Fault::Forgot));
            // A short campaign may free no watched hold.
            let Told { in_time, late } = figures.told;
            missing.or_else(|| told_in_time(figures).filter(|_| in_time + late > 0))
        },
        ..PLAIN
    },
    Plan {
        name: "hot-failover",
        what: "the same while the primary is killed or stopped and a replica promoted: double grants counted, and each loss is told",
        topology: Topology::Watched,
        lease: Duration::from_millis(1000),
        style: |_, _| Style::Hot,
        round: fail_over,
        shows: |figures| handed_over(figures).or_else(|| figures.lacks(Fault::Forgot)),
        ..PLAIN
    },
    SURVIVING,
    Plan {
        name: "surviving-hot",
        what: "the same with one lock that every task wants, handed over and taken in turns: nothing is granted twice",
        lease: SHORT,
        style: |_, _| Style::Hot,
        shows: |figures| handed_over(figures).or_else(|| survived(figures)),
        ..SURVIVING
    },
    Plan {
        name: "surviving-fenced",
        what: "the same with fenced locks: tokens rise, no stale write is accepted, and nothing is granted twice",
        locks: Locks::Fenced,
        ..SURVIVING
    },
    Plan {
        name: "surviving-twice",
        what: "the same with two failovers in a row, while a process is killed or stopped: nothing is granted twice",
        round: fail_over_twice,
        ..SURVIVING
    },
    Plan {
        name: "surviving-split",
        what: "the same with networks that part the primary or a replica from the other servers, and workers on both sides: nothing is granted twice",
        topology: Topology::Split,
        lease: SHORT,
        round: split,
        shows: |figures| figures.lacks(Fault::Silent).or_else(|| survived(figures)),
        ..SURVIVING
    },
    Plan {
        name: "surviving-restarts",
        what: "the same with primaries and replicas that restart without data, before failovers and without them: nothing is granted twice",
        round: restart_without_data,
        ..SURVIVING
    },
    Plan {
        name: "permits",
        what: "a pool of 10 permits with leases, while processes are killed, connections cut, and the server is killed, which keeps everything: never more than 10 inside, and all 10 free in the end",
        server: ALWAYS,
        lease: Duration::from_millis(1000),
        locks: Locks::Permits,
        round: strike_a_pool,
        shows: kills,
        ..PLAIN
    },
    Plan {
        name: "permits-redisson",
        what: "the same, every other process a JVM with Redisson",
        server: ALWAYS,
        lease: Duration::from_millis(1000),
        style: with_redisson,
        locks: Locks::Permits,
        round: strike_a_pool,
        shows: both_sides,
        ..PLAIN
    },
    Plan {
        name: "semaphore",
        what: "the same with counted permits: what the killed had is missing in the end, and nothing else",
        server: ALWAYS,
        lease: Duration::from_millis(1000),
        locks: Locks::Semaphore,
        round: strike_a_pool,
        shows: kills,
        ..PLAIN
    },
    Plan {
        name: "semaphore-redisson",
        what: "the same, every other process a JVM with Redisson, whose requests count as often as they are sent: kills only",
        server: ALWAYS,
        lease: Duration::from_millis(1000),
        style: with_redisson,
        locks: Locks::Semaphore,
        round: kill_workers,
        shows: both_sides,
        ..PLAIN
    },
    Plan {
        name: "redlock",
        what: "locks of five servers: at most two are dead (with their data kept), paused or silent, connections to any of them are cut, and processes are killed and stopped: no violation, and every process is granted locks",
        server: UNSYNCED,
        topology: Topology::Quorum,
        proxy: true,
        style: |place, _| if place == 0 { Style::Holding } else { Style::Mixed },
        locks: Locks::Quorum,
        round: strike_a_minority,
        shows: |figures| {
            let faults = [Fault::Down, Fault::Cut, Fault::Slow, Fault::Silent];
            let lacks = faults.into_iter().find_map(|fault| figures.lacks(fault));
            lacks.or_else(|| figures.lacks_stops()).or_else(|| kills(figures)).or_else(|| excluded(figures))
        },
        ..PLAIN
    },
    Plan {
        name: "cluster",
        what: "a cluster: slots move with held locks, replicas take over with all data, connections are cut, and processes are killed and stopped: no violation, and every process is granted locks. No primary is killed, because its replica may lack the last grants",
        topology: Topology::Cluster,
        style: |place, _| if place == 0 { Style::Holding } else { Style::Mixed },
        round: strike_a_cluster,
        shows: |figures| {
            let faults = [Fault::Moving, Fault::Down, Fault::Cut];
            let lacks = faults.into_iter().find_map(|fault| figures.lacks(fault));
            lacks.or_else(|| figures.lacks_stops()).or_else(|| kills(figures)).or_else(|| excluded(figures))
        },
        ..PLAIN
    },
];

/// Strikes with each fault once, in a random order.
fn strike_a_minority(stage: &mut Stage) -> Result<()> {
    let mut faults = [0, 1, 2, 3, 4, 5];
    stage.random.shuffle(&mut faults);
    for fault in faults {
        stage.rest_between(50, 300);
        let minority = stage.some_servers(2);
        let either = stage.random.below(2) == 0;
        match fault {
            0 => {
                let pause = Duration::from_millis(stage.random.below(900));
                stage.kill_servers(&minority, pause);
            }
            1 => {
                // A cut lasts for a moment, so all servers may be cut off.
                let servers = stage.some_servers(5);
                cut(stage, &servers);
            }
            2 => pause(stage, &minority, if either { "ALL" } else { "WRITE" }),
            3 => silence(stage, &minority, either),
            4 => stop_a_worker(stage),
            _ => replace_a_worker(stage)?,
        }
    }
    stage.rest_between(0, CALM);
    Ok(())
}

/// Strikes with each fault once, and moves two slots, in a random order.
fn strike_a_cluster(stage: &mut Stage) -> Result<()> {
    let mut faults = [0, 1, 2, 3, 4, 4];
    stage.random.shuffle(&mut faults);
    for fault in faults {
        stage.rest_between(50, 300);
        match fault {
            0 => {
                let servers = stage.some_servers(6);
                cut(stage, &servers);
            }
            1 => stop_a_worker(stage),
            2 => replace_a_worker(stage)?,
            3 => stage.fail_over_a_node()?,
            _ => {
                let most = stage.random.below(2) * 100;
                let pause = Duration::from_millis(stage.random.below(most));
                stage.move_slot(pause)?;
            }
        }
    }
    stage.rest_between(0, CALM);
    Ok(())
}

/// The longest time without a fault after each round, in milliseconds. Without it, the faults would excuse every late wake-up.
const CALM: u64 = 5000;

/// Names a process that often wanted a lock and never had it.
fn excluded(figures: &Figures) -> Option<String> {
    let wanted = figures.operations_by_process.iter().filter(|(_, operations)| **operations >= 20);
    let mut had = wanted.map(|(process, _)| (process, figures.grants_by_process.get(process)));
    had.find(|(_, grants)| grants.is_none_or(|grants| *grants == 0))
        .map(|(process, _)| format!("process {process} was never granted a lock"))
}

/// Kills workers rarely. A waiter that dies in a queue blocks it for seconds, and violations in these seconds are excused.
fn kill_workers_rarely(stage: &mut Stage) -> Result<()> {
    let least = if stage.round == 1 { 300 } else { 3000 };
    stage.rest_between(least, 2 * least);
    replace_a_worker(stage)
}

fn with_redisson(place: u32, _: u32) -> Style {
    if place.is_multiple_of(2) { Style::Even } else { Style::Redisson }
}

fn both_sides(figures: &Figures) -> Option<String> {
    let redisson = figures.grants_of_others;
    (redisson == 0).then(|| "Redisson was never granted anything".to_owned()).or_else(|| kills(figures))
}

fn handed_over(figures: &Figures) -> Option<String> {
    (figures.hand_overs == 0).then(|| "nothing was handed over".to_owned())
}

/// Names a process without enough turns. A contender for a hot lock has a turn every second, if it is subscribed or leaves a mark.
fn starved(figures: &Figures) -> Option<String> {
    let least = figures.grants_by_process.iter().min_by_key(|(_, grants)| **grants);
    least
        .filter(|(_, grants)| **grants < 2)
        .map(|(process, grants)| format!("process {process} had {grants} turns"))
}

fn queued(figures: &Figures) -> Option<String> {
    (figures.queued_grants == 0).then(|| "nobody was served who had stood in a queue".to_owned())
}

fn strike_a_pool(stage: &mut Stage) -> Result<()> {
    match stage.round % 3 {
        1 => kill_workers(stage),
        2 => client_kill(stage),
        _ => {
            stage.rest_between(300, 900);
            stage.kill_server(false, |_| Ok(()))
        }
    }
}

fn kill_workers(stage: &mut Stage) -> Result<()> {
    // Far enough apart to see the fate of each victim's locks. The first kill is early, for short campaigns.
    let least = if stage.round == 1 { 300 } else { 1500 };
    stage.rest_between(least, least + 600);
    replace_a_worker(stage)
}

fn kills(figures: &Figures) -> Option<String> {
    (figures.kills == 0).then(|| "no process was killed".to_owned()).or_else(|| grants(figures))
}

fn grants(figures: &Figures) -> Option<String> {
    (figures.grants == 0).then(|| "no lock was ever granted".to_owned())
}

fn kill_every_2_seconds(stage: &mut Stage, forgets: bool) -> Result<()> {
    // The first kill is early, so that a short campaign has one.
    let pause = if stage.round == 1 { Duration::from_millis(700) } else { Duration::from_millis(1900) };
    stage.rest(pause);
    if !forgets {
        stage.wait_for_the_disk()?;
    }
    stage.kill_server(forgets, |_| Ok(()))
}

fn fail_over(stage: &mut Stage) -> Result<()> {
    stage.rest_between(300, 1200);
    // Alternates, whatever other faults strike in between.
    let stops = stage.round.is_multiple_of(2);
    stage.fail_over(stops)
}

/// As [`fail_over`]. No lock may be lost because of it.
fn fail_over_survivably(stage: &mut Stage) -> Result<()> {
    stage.rest_between(300, 4000);
    let stops = stage.round.is_multiple_of(2);
    stage.strike_survivably(if stops { "stopped" } else { "killed" }, |stage| stage.replace_primary(stops))
}

/// Replaces the new primary within the grace of the first failover. The grace is longer if a process is missing.
fn fail_over_twice(stage: &mut Stage) -> Result<()> {
    stage.rest_between(300, 2000);
    let stops = [stage.random.below(2) == 0, stage.random.below(2) == 0];
    stage.strike_survivably(&format!("two failovers, stopped {stops:?}"), |stage| {
        stage.replace_primary(stops[0])?;
        strike_a_process(stage, 2000)?;
        stage.replace_primary(stops[1])
    })
}

/// Splits the servers. Every other pair of splits lasts until a replica has taken over.
fn split(stage: &mut Stage) -> Result<()> {
    stage.rest_between(300, 2000);
    let is_whole = !stage.round.is_multiple_of(2);
    let is_long = matches!(stage.round % 4, 1 | 2);
    stage.strike_survivably("split", |stage| {
        stage.split(is_long, is_whole, |stage| {
            if is_long {
                stage.await_new_primary()?;
                // Some splits outlast the new primary's grace. Then both sides would grant locks without the window.
                return strike_a_process(stage, 6000);
            }
            stage.rest_between(100, 1500);
            Ok(())
        })
    })
}

/// Restarts a server in its place without its data. Then the primary is replaced, too, in two of three rounds.
fn restart_without_data(stage: &mut Stage) -> Result<()> {
    stage.rest_between(300, 2000);
    let (round, stops) = (stage.round % 3, stage.random.below(2) == 0);
    stage.strike_survivably(&format!("restarted without data, case {round}"), |stage| {
        stage.restart_without_data(round > 0)?;
        match round {
            // A replica is promoted only after its sync.
            0 => stage.settle()?,
            1 => strike_a_process(stage, 2000)?,
            _ => return strike_a_process(stage, 2000),
        }
        stage.replace_primary(stops)
    })
}

/// Kills a process, stops a process, or does neither. Then waits for at most `most` milliseconds.
fn strike_a_process(stage: &mut Stage, most: u64) -> Result<()> {
    match stage.random.below(3) {
        0 => replace_a_worker(stage)?,
        1 => stop_a_worker(stage),
        _ => {}
    }
    stage.rest_between(0, most);
    Ok(())
}

fn survived(figures: &Figures) -> Option<String> {
    figures.lacks_failovers().or_else(|| grants(figures))
}

fn stop_holders(stage: &mut Stage) -> Result<()> {
    stage.rest_between(50, 200);
    stop_a_worker(stage);
    Ok(())
}

fn stop_a_worker(stage: &mut Stage) {
    let victim = stage.any_worker();
    stop(stage, victim);
}

fn replace_a_worker(stage: &mut Stage) -> Result<()> {
    let victim = stage.any_worker();
    stage.replace_worker(victim)
}

fn stop_waiters(stage: &mut Stage) -> Result<()> {
    stage.rest_between(50, 200);
    let victim = stage.workers.iter().position(|worker| worker.style == Style::Waiting);
    stop(stage, victim.context("a worker that waits")?);
    Ok(())
}

fn stop(stage: &mut Stage, victim: usize) {
    let lease = stage.lease;
    let duration = [lease / 2, lease, 3 * lease][usize::try_from(stage.random.below(3)).unwrap_or_default()];
    stage.stop_worker(victim, duration);
}

fn clock_jumps(stage: &mut Stage) -> Result<()> {
    stage.rest_between(500, 900);
    let (offset, detail) = match stage.round % 3 {
        1 => (31_000_000, "31 s ahead"),
        2 => (31_000_000 - 3_600_000_000, "an hour back"),
        _ => (0, "back to the true time, 3569 s ahead"),
    };
    stage.set_clock(offset, detail)
}

fn lose_pushes(stage: &mut Stage) -> Result<()> {
    stage.rest_between(200, 900);
    let Some(proxy) = stage.proxies.first() else { return Ok(()) };
    if stage.round.is_multiple_of(2) {
        stage.begins(Fault::Slow, "everything is late");
        proxy.strike(Direction::ToClient, Wire::Delay(Duration::from_millis(5), Duration::from_millis(60)));
        stage.rest(Duration::from_millis(400));
        proxy.heal();
        stage.ends(Fault::Slow);
    } else {
        stage.begins(Fault::Deaf, "messages are lost");
        proxy.strike(Direction::ToClient, Wire::Deafen);
        stage.rest(Duration::from_millis(700));
        proxy.heal();
        stage.ends(Fault::Deaf);
    }
    Ok(())
}

fn client_kill(stage: &mut Stage) -> Result<()> {
    stage.rest_between(100, 500);
    cut(stage, &[0]);
    Ok(())
}

fn cut(stage: &Stage, servers: &[usize]) {
    stage.strikes(Fault::Cut, &format!("CLIENT KILL on {servers:?}"), || {
        for (server, kind) in servers.iter().flat_map(|server| [(server, "normal"), (server, "pubsub")]) {
            let _dead = stage.command_to(*server, &["CLIENT", "KILL", "TYPE", kind]);
        }
    });
}

fn client_pause(stage: &mut Stage) -> Result<()> {
    stage.rest_between(200, 800);
    let mode = if stage.round.is_multiple_of(2) { "ALL" } else { "WRITE" };
    pause(stage, &[0], mode);
    Ok(())
}

fn pause(stage: &mut Stage, servers: &[usize], mode: &str) {
    let millis = 50 + stage.random.below(850);
    stage.begins(Fault::Slow, &format!("CLIENT PAUSE {millis} {mode} on {servers:?}"));
    for server in servers {
        let _dead = stage.command_to(*server, &["CLIENT", "PAUSE", &millis.to_string(), mode]);
    }
    std::thread::sleep(Duration::from_millis(millis));
    stage.ends(Fault::Slow);
}

fn output_buffer(stage: &mut Stage) -> Result<()> {
    stage.rest_between(200, 600);
    stage.strikes(Fault::Cut, "a message beyond the limit", || {
        let _dead = stage.command(&["CONFIG", "SET", "client-output-buffer-limit", "pubsub 50000 0 0"]);
        let message = "x".repeat(256 << 10);
        for lock in 0..3 {
            let channel = format!("redisson_lock__channel:{{lock:{lock}}}");
            let _dead = stage.command(&["PUBLISH", &channel, &message]);
        }
    });
    Ok(())
}

/// Returns an error if more than one holder in a hundred learned of a loss after the next grant. One such holder is always excused: a
/// busy machine may run the next owner first.
fn told_in_time(figures: &Figures) -> Option<String> {
    let Told { in_time, late } = figures.told;
    let total = in_time + late;
    match total {
        0 => Some("no watched hold was deleted: nothing was tried".to_owned()),
        _ if late > 1 + total / 100 => {
            Some(format!("{late} of {total} holders were told after the next grant"))
        }
        _ => None,
    }
}

fn evict(stage: &mut Stage) -> Result<()> {
    stage.rest_between(400, 900);
    stage.begins(Fault::Evicting, "");
    for _ in 0..10 {
        let _dead = stage.command(&["CONFIG", "SET", "maxmemory", "1"]);
        // The server rejects the command, but first evicts as many keys as it can, and so every lock.
        let _refused = stage.command(&["SET", "filler", "x"]);
        stage.rest(Duration::from_millis(2));
    }
    let _dead = stage.command(&["CONFIG", "SET", "maxmemory", "0"]);
    stage.ends(Fault::Evicting);
    Ok(())
}

fn cut_power(stage: &mut Stage, forgets: bool) -> Result<()> {
    stage.rest_between(600, 1600);
    stage.kill_server(forgets, |stage| {
        let shim = stage.shim.as_ref().context("this campaign has a shim")?;
        shim.cut_power(stage.directory()).map(drop)
    })
}

fn drop_silently(stage: &mut Stage) -> Result<()> {
    stage.rest_between(200, 700);
    let loses = !stage.round.is_multiple_of(2);
    silence(stage, &[0], loses);
    Ok(())
}

/// Silences the network before these servers. If it `loses` bytes, the connections end; otherwise the bytes arrive late.
fn silence(stage: &mut Stage, servers: &[usize], loses: bool) {
    let millis = 100 + stage.random.below(900);
    stage.begins(Fault::Silent, &format!("{millis} ms before {servers:?}"));
    let proxies = || servers.iter().filter_map(|server| stage.proxies.get(*server));
    let directions = [Direction::ToServer, Direction::ToClient];
    let strike = |wire: &dyn Fn() -> Wire| {
        for (proxy, direction) in proxies().flat_map(|proxy| directions.map(|direction| (proxy, direction))) {
            proxy.strike(direction, wire());
        }
    };
    if loses {
        strike(&|| Wire::Blackhole);
        proxies().for_each(|proxy| proxy.gate(Gate::Silent));
        stage.rest(Duration::from_millis(millis));
        // The stream has lost bytes, so it must not continue.
        strike(&|| Wire::Rst);
        proxies().for_each(|proxy| proxy.gate(Gate::Open));
    } else {
        // All bytes arrive late, as after a retransmission.
        strike(&|| Wire::Stall);
        stage.rest(Duration::from_millis(millis));
    }
    proxies().for_each(Proxy::heal);
    stage.ends(Fault::Silent);
}

fn slow_down(stage: &mut Stage) -> Result<()> {
    stage.rest_between(200, 600);
    if stage.round.is_multiple_of(2) {
        let millis = 20 + stage.random.below(580);
        stage.begins(Fault::Slow, &format!("the server sleeps for {millis} ms"));
        let _dead = stage.command(&["DEBUG", "SLEEP", &format!("0.{millis:03}")]);
        stage.ends(Fault::Slow);
    } else if let Some(proxy) = stage.proxies.first() {
        stage.begins(Fault::Slow, "the network delays");
        for direction in [Direction::ToServer, Direction::ToClient] {
            proxy.strike(direction, Wire::Delay(Duration::ZERO, Duration::from_millis(50)));
        }
        stage.rest(Duration::from_millis(500));
        proxy.heal();
        stage.ends(Fault::Slow);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_without_grants_is_named() {
        let mut figures = Figures::default();
        figures.operations_by_process.extend([(1, 40), (2, 40), (3, 3)]);
        figures.grants_by_process.extend([(1, 7), (2, 1), (3, 0)]);
        assert_eq!(excluded(&figures), None, "process 3 had hardly begun");
        figures.grants_by_process.insert(2, 0);
        assert_eq!(excluded(&figures).as_deref(), Some("process 2 was never granted a lock"));
    }
}
