//! Failover benchmarks: time to resume, lost locks and double holders.
//!
//! They also count the locks that stay held without a holder because their releases were lost.
//!
//! `failover [--rounds N] [words]` runs the scenes whose names, followed by the durability, contain the words. Each round is one fault
//! under load, and the topology is healed before the next. The load has three parts. Some tasks contend for a few locks. Some tasks take a
//! new lock about every millisecond and keep it. A second manager, as of a second process, tries to take locks that the first holds.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use wheellock::{Attempt, Durability, Fleet, Guard, LockManager, LockManagerBuilder, LostReason};
use wheellock_benches::Report;
use wheellock_tests::topology::{Cluster, SentinelSet, Settings};
use wheellock_tests::{Cli, RedisServer, Reply, poll_until};

fn main() -> Result<()> {
    let mut report = Report::new("failover");
    for keeping in [Keeping::By(Durability::Primary), Keeping::By(Durability::Replicas(1)), Keeping::Reclaim]
    {
        let subject = keeping.name();
        for behind in [Duration::ZERO, LAG, LONG_LAG] {
            for fault in [Fault::Kill(behind), Fault::Split(behind)] {
                let bench = format!("sentinel {fault}");
                if report.wants(&format!("{bench} {subject}")) {
                    sentinel(&mut report, &bench, subject, keeping, fault)?;
                }
            }
            let bench = format!("cluster {}", Fault::Kill(behind));
            if report.wants(&format!("{bench} {subject}")) {
                cluster_kills(&mut report, &bench, subject, keeping, behind)?;
            }
        }
    }
    let bench = format!("sentinel {}", Fault::KillTwo);
    if report.wants(&format!("{bench} {}", Keeping::Reclaim.name())) {
        sentinel(&mut report, &bench, Keeping::Reclaim.name(), Keeping::Reclaim, Fault::KillTwo)?;
    }
    if report.wants("cluster slot moves") {
        slot_moves(&mut report)?;
    }
    report.finish()
}

/// How locks are kept across a failover.
#[derive(Clone, Copy)]
enum Keeping {
    By(Durability),
    /// The holders write their locks into the new primary.
    Reclaim,
}

impl Keeping {
    fn name(self) -> &'static str {
        match self {
            Self::By(Durability::Primary) => "Primary",
            Self::By(_) => "Replicas(1)",
            Self::Reclaim => "reclaim",
        }
    }

    /// Returns the number of replicas of each shard of a cluster. All but [`Durability::Primary`] need a replica of the new primary.
    fn replicas(self) -> usize {
        match self {
            Self::By(Durability::Primary) => 1,
            Self::By(_) | Self::Reclaim => 2,
        }
    }

    fn apply(self, builder: LockManagerBuilder) -> LockManagerBuilder {
        match self {
            Self::By(durability) => builder.durability(durability),
            Self::Reclaim => {
                let mut fleet = Fleet::of_servers(3);
                fleet.may_be_new = true;
                builder.keep_locks_across_failovers(fleet)
            }
        }
    }
}

/// A fault of the primary, after its replicas were cut off for this duration: the lag of a busy network.
#[derive(Clone, Copy)]
enum Fault {
    /// SIGKILL.
    Kill(Duration),
    /// SIGSTOP, and SIGCONT once a replica was promoted. For a moment there are two primaries.
    Split(Duration),
    /// SIGKILL, and a third process of the fleet ends at the same time.
    KillTwo,
}

impl Fault {
    /// Returns the lag of the replicas.
    fn behind(self) -> Duration {
        match self {
            Self::Kill(behind) | Self::Split(behind) => behind,
            Self::KillTwo => Duration::ZERO,
        }
    }

    /// Returns the lease of the load's locks. Without one of the processes, the grace lasts for longer than a short lease.
    fn lease(self) -> Duration {
        match self {
            Self::Kill(_) | Self::Split(_) => LEASE,
            Self::KillTwo => 2 * LEASE,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Kill(_) => "kill",
            Self::Split(_) => "split",
            Self::KillTwo => "kill with a process",
        };
        match self.behind() {
            Duration::ZERO => f.write_str(name),
            behind => write!(f, "{name} {} s behind", behind.as_secs_f64()),
        }
    }
}

fn sentinel(report: &mut Report, bench: &str, subject: &str, keeping: Keeping, fault: Fault) -> Result<()> {
    let mut set = SentinelSet::start(&Settings::default());
    let load = Load::start(&set.url(), keeping, fault.lease())?;
    let mut figures = Figures::default();
    for _ in 0..report.rounds() {
        load.settle(&addresses(set.servers()))?;
        let third = matches!(fault, Fault::KillTwo).then(|| Third::start(&set.url(), keeping)).transpose()?;
        let old = set.primary_index();
        let replicas: Vec<usize> = (0..set.servers().len()).filter(|index| *index != old).collect();
        let others: Vec<_> = replicas.iter().map(|index| set.servers()[*index].addr()).collect();
        fall_behind(set.servers(), old, &replicas, fault.behind());
        let held = load.held_now();
        let struck = Instant::now();
        match fault {
            Fault::Kill(_) | Fault::KillTwo => set.servers_mut()[old].kill(),
            Fault::Split(_) => set.servers()[old].pause(),
        }
        third.into_iter().for_each(Third::kill);
        catch_up(set.servers(), &replicas, fault.behind());
        let writable = first_writable(&others)?;
        if matches!(keeping, Keeping::Reclaim) {
            figures.attached.push(first_replica_after(&writable)?);
        }
        let resumed = load.first_grant_after(struck + Duration::from_millis(100))?;
        if matches!(fault, Fault::Split(_)) {
            set.servers()[old].resume();
        }
        figures.round(&load, &held, struck, &writable, resumed)?;
        set.heal();
    }
    figures.report(report, bench, subject, &load.end()?);
    Ok(())
}

fn cluster_kills(
    report: &mut Report,
    bench: &str,
    subject: &str,
    keeping: Keeping,
    behind: Duration,
) -> Result<()> {
    let mut cluster = Cluster::start(3, keeping.replicas(), &Settings::default());
    let load = Load::start(&cluster.url(), keeping, LEASE)?;
    let mut figures = Figures::default();
    for _ in 0..report.rounds() {
        load.settle(&addresses(cluster.nodes()))?;
        let victim = cluster.owner_of_key(CONTENDED);
        let heirs = cluster.replicas_of(victim);
        let others: Vec<_> = heirs.iter().map(|index| cluster.nodes()[*index].addr()).collect();
        fall_behind(cluster.nodes(), victim, &heirs, behind);
        let held = load.held_now();
        let struck = Instant::now();
        cluster.nodes_mut()[victim].kill();
        catch_up(cluster.nodes(), &heirs, behind);
        let writable = first_writable(&others)?;
        if matches!(keeping, Keeping::Reclaim) {
            figures.attached.push(first_replica_after(&writable)?);
        }
        let resumed = load.first_grant_after(struck + Duration::from_millis(100))?;
        let of_shard = first_after(&load.shared.contended, struck + Duration::from_millis(100))?;
        let later = of_shard.saturating_duration_since(writable.since).as_secs_f64() * 1e3;
        figures.first_of_shard.push(later);
        figures.round(&load, &held, struck, &writable, resumed)?;
        cluster.heal();
    }
    figures.report(report, bench, subject, &load.end()?);
    Ok(())
}

fn addresses(servers: &[RedisServer]) -> Vec<SocketAddr> {
    servers.iter().map(RedisServer::addr).collect()
}

/// Cuts the replicas off. Returns after `behind`.
fn fall_behind(servers: &[RedisServer], primary: usize, replicas: &[usize], behind: Duration) {
    if behind.is_zero() {
        return;
    }
    replicas.iter().for_each(|index| servers[*index].pause());
    // The replicas will still read the bytes in their sockets, but receive no more from here on.
    let _cut = servers[primary].cli(&["CLIENT", "KILL", "TYPE", "replica"]);
    std::thread::sleep(behind);
}

/// Resumes the paused replicas.
fn catch_up(servers: &[RedisServer], replicas: &[usize], behind: Duration) {
    if !behind.is_zero() {
        replicas.iter().for_each(|index| servers[*index].resume());
    }
}

/// Moves every slot that the load uses around the nodes.
fn slot_moves(report: &mut Report) -> Result<()> {
    let cluster = Cluster::start(3, 0, &Settings::default());
    let load = Load::start(&cluster.url(), Keeping::By(Durability::Primary), LEASE)?;
    load.settle(&addresses(cluster.nodes()))?;
    let moves = 10 * report.rounds();
    let mut gaps = Vec::new();
    for _ in 0..moves {
        let slot = cluster.slot_of(CONTENDED);
        load.longest_gap.store(0, SeqCst);
        cluster.move_slot(slot, (cluster.owner_of(slot) + 1) % 3);
        // The gap of the contended lock, on its current node.
        ensure!(poll_until(NO_HANG, || load.longest_gap.load(SeqCst) > 0), "no grant after a move");
        gaps.push(Duration::from_nanos(load.longest_gap.load(SeqCst)).as_secs_f64() * 1e3);
    }
    let lost = load.runtime.block_on(load.lost());
    report.row("cluster slot moves", "Primary", "longest pause of a contended lock", "ms", &gaps);
    figure(report, "cluster slot moves", "Primary", "moves", "", moves);
    figure(report, "cluster slot moves", "Primary", "locks lost", "", lost.not_owner + lost.expired);
    let end = load.end()?;
    figure(report, "cluster slot moves", "Primary", "errors", "", end.errors.values().sum::<usize>());
    end.complain("cluster slot moves");
    Ok(())
}

/// A server that accepts writes.
struct Writable {
    server: SocketAddr,
    since: Instant,
}

/// Returns the first of these servers to accept a write. It polls a thousand times per second.
fn first_writable(servers: &[SocketAddr]) -> Result<Writable> {
    let mut writable = None;
    let took = poll_until(NO_HANG, || {
        let takes = |addr: &&SocketAddr| {
            let mut cli = Cli::connect_tcp(**addr).ok()?;
            let reply = cli.query(&["EVAL", "#!lua\nreturn 1", "0"]).ok()?;
            (reply.to_string() == "1").then_some(())
        };
        let server = servers.iter().find(|addr| takes(addr).is_some());
        writable = server.map(|server| Writable { server: *server, since: Instant::now() });
        writable.is_some()
    });
    writable.filter(|_| took).context("no server took a write")
}

/// Returns the milliseconds until this new primary has a replica that receives its writes. No fleet grants before. It polls a thousand
/// times per second.
fn first_replica_after(primary: &Writable) -> Result<f64> {
    let has_replica = || {
        let mut cli = Cli::connect_tcp(primary.server).ok()?;
        cli.query(&["INFO", "replication"]).ok()?.to_string().contains("state=online").then_some(())
    };
    ensure!(poll_until(NO_HANG, || has_replica().is_some()), "{} has no replica", primary.server);
    Ok(primary.since.elapsed().as_secs_f64() * 1e3)
}

/// Returns every lock on a server with its holder. Returns an empty set if the server is down or a replica.
fn locks_on(server: SocketAddr) -> Result<BTreeSet<(String, String)>> {
    let Ok(mut cli) = Cli::connect_tcp(server) else { return Ok(BTreeSet::new()) };
    let Reply::Array(role) = cli.query(&["ROLE"])? else { bail!("{server} does not know its role") };
    if role.first().is_none_or(|role| role.to_string() != "master") {
        return Ok(BTreeSet::new());
    }
    match cli.query(&["EVAL", LOCKS, "0"])? {
        Reply::Array(names) => {
            ensure!(names.len() % 2 == 0, "{server}: a lock without a holder");
            let pairs = names.chunks_exact(2);
            Ok(pairs.map(|pair| (pair[0].to_string(), pair[1].to_string())).collect())
        }
        other => bail!("{server} says of its locks: {other}"),
    }
}

#[derive(Default)]
struct Figures {
    /// Time from the fault until a server accepted writes.
    failover: Vec<f64>,
    /// Time from then until the new primary has a replica. Measured for fleets only.
    attached: Vec<f64>,
    /// Time from when a server accepted writes until the load's first grant.
    first: Vec<f64>,
    /// The same until the first grant of the shard that failed over, in a cluster.
    first_of_shard: Vec<f64>,
    /// Locks that were granted before the fault and were not held any more afterwards.
    lost: Vec<f64>,
    held: Vec<f64>,
    doubles: Vec<f64>,
    /// Time during which two holders both considered themselves holders.
    believed: Vec<f64>,
    /// Locks on the new primary without a living holder, a little later.
    orphans: Vec<f64>,
}

impl Figures {
    fn round(
        &mut self,
        load: &Load,
        held: &[(Instant, Guard)],
        struck: Instant,
        writable: &Writable,
        resumed: Instant,
    ) -> Result<()> {
        let failover = (writable.since - struck).as_secs_f64() * 1e3;
        let later = resumed.saturating_duration_since(writable.since).as_secs_f64() * 1e3;
        self.failover.push(failover);
        self.first.push(later);
        let after = load.runtime.block_on(load.after_the_fault(held))?;
        let orphans = load.orphans(&[writable.server], held, SETTLED)?;
        let After { lost, doubles, .. } = after;
        eprintln!(
            "round {}: {failover:.0} ms, {lost} lost, {doubles} held twice, {orphans} held by nobody",
            self.failover.len()
        );
        self.orphans.push(orphans as f64);
        self.lost.push(after.lost as f64);
        self.held.push(after.held as f64);
        self.doubles.push(after.doubles as f64);
        self.believed.push(after.believed.as_secs_f64() * 1e3);
        Ok(())
    }

    fn report(&self, report: &mut Report, bench: &str, subject: &str, end: &End) {
        report.row(bench, subject, "until a server takes writes", "ms", &self.failover);
        if !self.attached.is_empty() {
            report.row(bench, subject, "until it has a replica after that", "ms", &self.attached);
        }
        report.row(bench, subject, "first grant after it takes writes", "ms", &self.first);
        if !self.first_of_shard.is_empty() {
            report.row(
                bench,
                subject,
                "first grant of its shard after it takes writes",
                "ms",
                &self.first_of_shard,
            );
        }
        report.row(bench, subject, "locks held at the fault", "", &self.held);
        report.row(bench, subject, "of these lost", "", &self.lost);
        report.row(bench, subject, "held twice", "", &self.doubles);
        report.row(bench, subject, "longest while held twice", "ms", &self.believed);
        report.row(bench, subject, "held by nobody afterwards", "", &self.orphans);
        figure(report, bench, subject, "errors", "", end.errors.values().sum::<usize>());
        figure(report, bench, subject, "calls that hung", "", end.hangs);
        end.complain(bench);
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of a few thousand")]
fn figure(report: &mut Report, bench: &str, subject: &str, metric: &str, unit: &str, figure: usize) {
    report.row(bench, subject, metric, unit, &[figure as f64]);
}

/// A manager of a third process, which has no locks.
struct Third {
    runtime: tokio::runtime::Runtime,
    _locks: LockManager,
}

impl Third {
    /// Starts the process. Returns when the fleet knows it.
    fn start(url: &str, keeping: Keeping) -> Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let locks = runtime.block_on(async {
            let locks = keeping.apply(LockManager::builder(url)).connect().await?;
            locks.lock("third").acquire().await?.release().await?;
            anyhow::Ok(locks)
        })?;
        Ok(Self { runtime, _locks: locks })
    }

    /// Ends the process without a further message to its servers.
    fn kill(self) {
        self.runtime.shutdown_background();
    }
}

/// Two managers, as of two processes, and the tasks that use them.
struct Load {
    runtime: tokio::runtime::Runtime,
    shared: Arc<Shared>,
    longest_gap: Arc<AtomicU64>,
    tasks: Mutex<JoinSet<()>>,
    there: LockManager,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// The times of all grants.
    grants: Mutex<Vec<Instant>>,
    /// The times of the grants of the contended lock.
    contended: Mutex<Vec<Instant>>,
    /// The kept locks, with the times of their grants.
    kept: Mutex<VecDeque<(Instant, Guard)>>,
    errors: Mutex<BTreeMap<String, usize>>,
    hangs: AtomicU64,
}

struct After {
    held: usize,
    lost: usize,
    doubles: usize,
    believed: Duration,
}

struct Lost {
    not_owner: usize,
    expired: usize,
}

struct End {
    errors: BTreeMap<String, usize>,
    hangs: usize,
}

impl End {
    fn complain(&self, bench: &str) {
        for (error, count) in &self.errors {
            eprintln!("{bench}: {count} x {error}");
        }
    }
}

impl Load {
    fn start(url: &str, keeping: Keeping, lease: Duration) -> Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let connect = || async {
            let builder = keeping.apply(LockManager::builder(url).watchdog_lease(lease));
            anyhow::Ok(builder.connect().await?)
        };
        let (here, there) = runtime.block_on(async { anyhow::Ok((connect().await?, connect().await?)) })?;
        let shared = Arc::new(Shared::default());
        let longest_gap = Arc::new(AtomicU64::new(0));
        let mut tasks = JoinSet::new();
        let _guard = runtime.enter();
        for task in 0..CONTENDERS {
            let locks = if task % 2 == 0 { here.clone() } else { there.clone() };
            tasks.spawn(contend(locks, Arc::clone(&shared), Arc::clone(&longest_gap)));
        }
        for task in 0..KEEPERS {
            tasks.spawn(keep(here.clone(), Arc::clone(&shared), task));
        }
        drop(_guard);
        Ok(Self { runtime, shared, longest_gap, tasks: Mutex::new(tasks), there })
    }

    /// Waits until the load runs at full speed, and earlier faults have no effect any more.
    fn settle(&self, servers: &[SocketAddr]) -> Result<()> {
        let now = Instant::now();
        for wait in [Duration::ZERO, Duration::from_millis(500)] {
            self.first_grant_after(now + wait)?;
        }
        let left = self.orphans(servers, &[], 2 * LEASE)?;
        ensure!(left == 0, "{left} locks are held by nobody, and do not end");
        Ok(())
    }

    /// Counts the locks on these servers that the load's guards do not hold. Retries until there are none, or until `patience` has passed.
    fn orphans(
        &self,
        servers: &[SocketAddr],
        held: &[(Instant, Guard)],
        patience: Duration,
    ) -> Result<usize> {
        let deadline = Instant::now() + patience;
        let mut suspects = BTreeSet::new();
        loop {
            let mut locks = BTreeSet::new();
            for server in servers {
                locks.extend(locks_on(*server)?);
            }
            // Read `kept` after the servers, because a lock that a server listed may enter `kept` only now. Only a lock found twice counts,
            // so a lock that was just granted or released does not.
            let owner = |(_, guard): &(Instant, Guard)| guard.owner().to_string();
            let mut owners: BTreeSet<String> = held.iter().map(owner).collect();
            owners.extend(self.shared.kept.lock().expect("no panic").iter().map(owner));
            locks.retain(|(_, holder)| !owners.contains(holder));
            let orphans: Vec<_> = locks.intersection(&suspects).collect();
            let is_over = Instant::now() >= deadline;
            if locks.is_empty() || orphans.is_empty() && !suspects.is_empty() || is_over {
                orphans.iter().take(3).for_each(|(lock, holder)| eprintln!("{lock} is held by {holder}"));
                return Ok(orphans.len());
            }
            suspects = locks;
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    fn first_grant_after(&self, after: Instant) -> Result<Instant> {
        first_after(&self.shared.grants, after)
    }

    /// Checks every lock that was kept when the fault struck, by acquiring it from a second process. Such a grant is a double hold while
    /// the first holder still considers itself the holder. It may last only until the first holder is notified.
    async fn after_the_fault(&self, kept: &[(Instant, Guard)]) -> Result<After> {
        let mut after = After { held: kept.len(), lost: 0, doubles: 0, believed: Duration::ZERO };
        let mut taken = Vec::new();
        for (_, guard) in kept {
            if let Ok(Attempt::Acquired(second)) = self.there.lock(guard.name()).try_acquire().await {
                let since = Instant::now();
                if guard.is_valid() {
                    after.doubles += 1;
                    let told = tokio::time::timeout(LEASE, guard.lost()).await;
                    after.believed = after.believed.max(since.elapsed());
                    told.context("a lock that is held twice is not told")?;
                }
                taken.push(second);
            }
        }
        for (_, guard) in kept {
            if !guard.is_valid() {
                after.lost += 1;
            }
        }
        Ok(after)
    }

    /// Takes the currently kept locks out, so that the load does not release them any more.
    fn held_now(&self) -> Vec<(Instant, Guard)> {
        self.shared.kept.lock().expect("no panic").drain(..).collect()
    }

    async fn lost(&self) -> Lost {
        let mut lost = Lost { not_owner: 0, expired: 0 };
        let kept: Vec<_> = self.shared.kept.lock().expect("no panic").drain(..).collect();
        for (_, guard) in kept {
            if !guard.is_valid() {
                match guard.lost().await {
                    LostReason::NotOwner => lost.not_owner += 1,
                    _ => lost.expired += 1,
                }
            }
        }
        lost
    }

    fn end(self) -> Result<End> {
        self.shared.stop.store(true, SeqCst);
        let mut tasks = self.tasks.into_inner().expect("no panic");
        self.runtime.block_on(async {
            while let Some(ended) = tasks.join_next().await {
                ended?;
            }
            anyhow::Ok(())
        })?;
        self.shared.kept.lock().expect("no panic").clear();
        let errors = std::mem::take(&mut *self.shared.errors.lock().expect("no panic"));
        let hangs = usize::try_from(self.shared.hangs.load(SeqCst))?;
        Ok(End { errors, hangs })
    }
}

impl Shared {
    fn failed(&self, error: &wheellock::Error) {
        let text = format!("{error:?}");
        let kind = text.split("kind: ").nth(1).and_then(|rest| rest.split(',').next()).unwrap_or(&text);
        // The rest of the error of a grace names its progress.
        let kind = kind.split(" {").next().unwrap_or(kind);
        let outcome = error.outcome();
        *self.errors.lock().expect("no panic").entry(format!("{kind}, {outcome}")).or_insert(0) += 1;
    }
}

/// Waits for a grant that was made at `after` or later. Returns the time of the first of them.
fn first_after(grants: &Mutex<Vec<Instant>>, after: Instant) -> Result<Instant> {
    let mut first = None;
    let found = poll_until(NO_HANG, || {
        let mut grants = grants.lock().expect("no panic");
        grants.retain(|granted| *granted >= after);
        first = grants.first().copied();
        first.is_some()
    });
    first.filter(|_| found).context("no grant")
}

/// Acquires and releases one lock for which many tasks contend.
async fn contend(locks: LockManager, shared: Arc<Shared>, longest_gap: Arc<AtomicU64>) {
    let lock = locks.lock(CONTENDED);
    let mut last = Instant::now();
    while !shared.stop.load(SeqCst) {
        match tokio::time::timeout(NO_HANG, lock.try_acquire_for(PATIENCE)).await {
            Err(_) => drop(shared.hangs.fetch_add(1, SeqCst)),
            Ok(Ok(Attempt::Held { .. })) => {}
            Ok(Err(error)) => shared.failed(&error),
            Ok(Ok(Attempt::Acquired(guard))) => {
                let now = Instant::now();
                shared.grants.lock().expect("no panic").push(now);
                shared.contended.lock().expect("no panic").push(now);
                longest_gap.fetch_max(u64::try_from((now - last).as_nanos()).unwrap_or(u64::MAX), SeqCst);
                last = now;
                if let Err(error) = guard.release().await {
                    shared.failed(&error);
                }
            }
        }
    }
}

/// Acquires new locks and keeps the latest of them.
async fn keep(locks: LockManager, shared: Arc<Shared>, task: usize) {
    for number in 0_u64.. {
        if shared.stop.load(SeqCst) {
            return;
        }
        match tokio::time::timeout(NO_HANG, locks.lock(&format!("kept:{task}:{number}")).acquire()).await {
            Err(_) => drop(shared.hangs.fetch_add(1, SeqCst)),
            Ok(Err(error)) => shared.failed(&error),
            Ok(Ok(guard)) => {
                shared.grants.lock().expect("no panic").push(Instant::now());
                let mut kept = shared.kept.lock().expect("no panic");
                kept.push_back((Instant::now(), guard));
                let old = if kept.len() > KEPT { kept.pop_front() } else { None };
                drop(kept);
                drop(old);
            }
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

const CONTENDED: &str = "contended";
const CONTENDERS: usize = 16;
const KEEPERS: usize = 16;
/// Number of locks kept at a time.
const KEPT: usize = 2000;
/// The lease, renewed every 5 s. A loss found before a renewal was found because of the failover.
const LEASE: Duration = Duration::from_secs(15);
const PATIENCE: Duration = Duration::from_secs(2);
/// Time after a fault before a lock without a holder counts as an orphan: a fifth of the lease.
const SETTLED: Duration = Duration::from_secs(3);
/// Time in which every pending operation has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
const LAG: Duration = Duration::from_millis(50);
const LONG_LAG: Duration = Duration::from_millis(300);
/// A script that returns every lock with its holder.
const LOCKS: &str = "local all = {}
for _, key in ipairs(redis.call('keys', '*')) do
    local is_lock = string.sub(key, 1, 10) ~= 'wheellock:'
    for _, holder in ipairs(is_lock and redis.call('hkeys', key) or {}) do
        all[#all + 1] = key
        all[#all + 1] = holder
    end
end
return all";
const NO_HANG: Duration = Duration::from_secs(60);
