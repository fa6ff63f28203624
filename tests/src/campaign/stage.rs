//! The stage of a campaign: server, proxy, workers and history.
//!
//! Implements all actions that several plans share.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use wheellock::LockManager;

use super::Options;
use super::books::Books;
use super::cpus::Cpus;
use super::fleet::{Locks, Orders, SEPARATOR, Style, Worker};
use super::plans::Plan;
use super::pool;
use super::sampler::Sampler;
use super::servers::{SITES, Servers, Topology};
use super::shim::Shim;
use super::worker::WINDOW;
use crate::cli::{Cli, Reply};
use crate::fault::{Gate, Proxy, Random};
use crate::history::{Fault, OTHERS, Recorder, What};
use crate::network::{Network, Site};
use crate::topology::Cluster;
use crate::{RedisServer, poll_until};

/// The tools of a plan.
pub(super) struct Stage {
    servers: Servers,
    /// The network with the sites of servers and workers, if the plan splits it.
    network: Option<Network>,
    /// Replicas that took over.
    failovers: u64,
    /// A proxy before each server, if the plan needs them.
    pub(super) proxies: Vec<Proxy>,
    pub(super) shim: Option<Shim>,
    pub(super) random: Random,
    pub(super) lease: Duration,
    pub(super) workers: Vec<Worker>,
    kind: Locks,
    /// True if the locks survive a failover.
    survives: bool,
    /// The time of the last kill of a worker.
    killed: Option<Instant>,
    /// The number of the plan's round.
    pub(super) round: u32,
    clock_was_set: bool,
    pool: pool::Books,
    recorder: Arc<Recorder>,
    worker: fn() -> Command,
    options: Options,
    until: Instant,
    started: u32,
    samplers: Vec<Sampler>,
    _cpus: Cpus,
    books: Option<Books>,
    scratch: Scratch,
}

impl Stage {
    pub(super) fn set(
        plan: &Plan,
        options: &Options,
        worker: fn() -> Command,
        directory: &Path,
    ) -> Result<Self> {
        let scratch = Scratch::make(directory)?;
        let shim = if plan.shim { Some(Shim::compile(&scratch.path)?) } else { None };
        let beside_redisson =
            (0..options.processes).any(|place| (plan.style)(place, options.processes) == Style::Redisson);
        let shimmed = shim.iter().flat_map(Shim::environment);
        let environment: Vec<_> =
            shimmed.map(|(name, value)| (name, value.to_string_lossy().into_owned())).collect();
        let network = if plan.topology == Topology::Split { Some(Network::make(SITES)?) } else { None };
        // Redisson does not support unix sockets.
        let servers = Servers::start(plan, beside_redisson, &environment, network.as_ref())?;
        let proxies = servers.all().iter().filter(|_| plan.proxy).map(Proxy::before).collect();
        let recorder = Arc::new(Recorder::create(&scratch.path, 0)?);
        let in_the_way = if plan.locks == Locks::Fair { DEAD_HEAD } else { Duration::ZERO };
        let longest = in_the_way.max(2 * plan.lease);
        recorder.now(
            0,
            0,
            "",
            What::Setup { longest: nanos(longest), patience: nanos(PATIENCE), wake: nanos(WAKE) },
        );
        if plan.topology == Topology::Quorum {
            recorder.now(0, 0, "", What::Majority);
        }
        let socket = servers.serving().socket_path();
        let books = (plan.locks == Locks::Fair).then(|| Books::read(socket, Arc::clone(&recorder)));
        let sample = |server: &RedisServer| Sampler::start(server.socket_path(), Arc::clone(&recorder));
        let samplers = servers.all().iter().map(sample).collect();
        let cpus = Cpus::watch(&recorder)?;
        let mut stage = Self {
            servers,
            network,
            failovers: 0,
            proxies,
            shim,
            random: Random::new(options.seed),
            lease: plan.lease,
            workers: Vec::new(),
            kind: plan.locks,
            survives: plan.survives,
            killed: None,
            round: 0,
            clock_was_set: false,
            pool: pool::Books::new(beside_redisson),
            recorder,
            worker,
            options: options.clone(),
            until: Instant::now(),
            started: 0,
            samplers,
            _cpus: cpus,
            books,
            scratch,
        };
        if plan.locks.is_pool() {
            stage.pool.open(stage.servers.serving(), &stage.recorder)?;
        }
        if plan.survives {
            stage.begins(Fault::Down, "no lock is granted by a server that may have lost its data");
        }
        // Even of two workers, one reaches all servers, and one is beside the first primary.
        let sites = stage.network.as_ref().map_or(Vec::new(), |network| network.sites().to_vec());
        let mut sites = sites.iter().cycle().skip(sites.len().saturating_sub(1));
        for place in 0..options.processes {
            stage.start_worker((plan.style)(place, options.processes), sites.next().cloned())?;
        }
        if plan.survives {
            stage.wait_for_end_of_grace()?;
            stage.ends(Fault::Down);
        }
        // The workers are running. Redisson's worker may have been built first, and has had its first grant.
        stage.until = Instant::now() + options.duration;
        Ok(stage)
    }

    /// Starts a further worker process with a new number.
    fn start_worker(&mut self, style: Style, site: Option<Site>) -> Result<()> {
        self.started += 1;
        let others = if style == Style::Redisson { OTHERS } else { 0 };
        let orders = Orders {
            url: self.url(),
            directory: self.scratch.path.to_string_lossy().into_owned(),
            process: others + self.started,
            seed: self.options.seed,
            tasks: self.options.tasks,
            locks: self.locks(),
            lease: self.lease,
            patience: PATIENCE,
            style,
            kind: self.kind,
            survives: self.survives,
        };
        let worker = Worker::start(self.worker, &orders, site)?;
        if style == Style::Redisson {
            // A JVM takes long until its first grant. Killing it earlier would not show anything.
            let deadline = Instant::now() + AT_WORK_WITHIN;
            while !worker.answers("at work", deadline.min(Instant::now() + LONG_AFTER_ANY_VISIT)) {
                ensure!(Instant::now() < deadline, "Redisson was granted nothing within {AT_WORK_WITHIN:?}");
                if self.kind == Locks::Semaphore {
                    self.pool.refill_if_nobody_moves(self.servers.serving())?;
                }
            }
        }
        self.workers.push(worker);
        Ok(())
    }

    /// Returns the URL for workers.
    fn url(&self) -> String {
        if self.proxies.is_empty() {
            return self.servers.url();
        }
        let urls: Vec<String> = self.proxies.iter().map(Proxy::url).collect();
        urls.join(&SEPARATOR.to_string())
    }

    pub(super) fn locks(&self) -> u64 {
        u64::from((self.options.processes * self.options.tasks / 4).max(2))
    }

    /// Returns true while faults have to strike.
    pub(super) fn goes_on(&mut self) -> bool {
        self.round += 1;
        Instant::now() < self.until
    }

    /// Sleeps for `duration`, but not beyond the campaign's end.
    pub(super) fn rest(&self, duration: Duration) {
        let left = self.until.saturating_duration_since(Instant::now());
        std::thread::sleep(duration.min(left));
    }

    /// Sleeps for a random time.
    pub(super) fn rest_between(&mut self, least: u64, most: u64) {
        let millis = least + self.random.below(most - least);
        self.rest(Duration::from_millis(millis));
    }

    pub(super) fn begins(&self, fault: Fault, detail: &str) {
        self.recorder.now(0, 0, "", What::Begins { fault, detail: detail.to_owned() });
    }

    pub(super) fn ends(&self, fault: Fault) {
        self.recorder.now(0, 0, "", What::Ends { fault });
    }

    /// Strikes with a fault that ends at once.
    pub(super) fn strikes(&self, fault: Fault, detail: &str, strike: impl FnOnce()) {
        self.begins(fault, detail);
        strike();
        self.ends(fault);
    }

    /// Waits until the server does not run an fsync. With `everysec`, the server replies during an fsync and delays its writes for up to
    /// two seconds. These writes would be lost with the process (source: Redis, `flushAppendOnlyFile`; seen where a disk was busy).
    pub(super) fn wait_for_the_disk(&self) -> Result<()> {
        let is_done = || {
            // The server may be silent for seconds while the disk is busy.
            let info = self.command(&["INFO", "persistence"]);
            info.is_some_and(|info| info.to_string().contains("aof_pending_bio_fsync:0"))
        };
        ensure!(poll_until(WRITTEN_WITHIN, is_done), "an fsync takes longer than {WRITTEN_WITHIN:?}");
        Ok(())
    }

    /// Kills the server, runs `meanwhile` on its files, and starts the server again.
    pub(super) fn kill_server(
        &mut self,
        forgets: bool,
        meanwhile: impl FnOnce(&Self) -> Result<()>,
    ) -> Result<()> {
        if forgets {
            self.begins(Fault::Forgot, "");
        }
        self.begins(Fault::Down, "");
        self.servers.server_mut(0).kill();
        meanwhile(self)?;
        self.servers.server_mut(0).restart();
        self.ends(Fault::Down);
        if forgets {
            self.ends(Fault::Forgot);
        }
        Ok(())
    }

    /// Kills some servers of several, and starts them again after `pause` with all their data.
    pub(super) fn kill_servers(&mut self, places: &[usize], pause: Duration) {
        self.begins(Fault::Down, &format!("servers {places:?}"));
        for place in places {
            self.servers.server_mut(*place).kill();
        }
        self.rest(pause);
        for place in places {
            self.servers.server_mut(*place).restart();
        }
        self.ends(Fault::Down);
    }

    /// Moves the slot of a random lock to another primary, one key at a time, with a `pause` before each key. Prefers a lock that is held.
    pub(super) fn move_slot(&mut self, pause: Duration) -> Result<()> {
        let mut names: Vec<String> = (0..self.locks()).map(|number| format!("lock:{number}")).collect();
        self.random.shuffle(&mut names);
        let cluster = self.servers.cluster()?;
        let is_held = |name: &&String| {
            let owner = cluster.owner_of_key(name);
            matches!(self.command_to(owner, &["EXISTS", name]), Some(Reply::Integer(1)))
        };
        let name = names.iter().find(is_held).or(names.first()).context("there is no lock")?;
        let (slot, from) = (cluster.slot_of(name), cluster.owner_of_key(name));
        let others: Vec<usize> = primaries(cluster).into_iter().filter(|node| *node != from).collect();
        let to = *others.get(self.random.index(others.len())).context("there is one primary only")?;
        self.begins(Fault::Moving, &format!("slot {slot} of {name} from node {from} to {to}"));
        cluster.begin_move(slot, to);
        self.rest(pause);
        while cluster.migrate_keys(slot, to, 1) > 0 {
            self.rest(pause);
        }
        // Begins the move once more, which changes nothing, ends it, and waits until all nodes know it.
        cluster.move_slot(slot, to);
        self.ends(Fault::Moving);
        Ok(())
    }

    /// Makes the replica of a random primary take over in agreement with its primary. No write is lost.
    pub(super) fn fail_over_a_node(&mut self) -> Result<()> {
        let cluster = self.servers.cluster()?;
        let all = primaries(cluster);
        let primary = *all.get(self.random.index(all.len())).context("there is no primary")?;
        let replica = *cluster.replicas_of(primary).first().context("there is no replica")?;
        self.begins(Fault::Down, &format!("CLUSTER FAILOVER from node {primary} to {replica}"));
        cluster.failover(replica);
        self.ends(Fault::Down);
        Ok(())
    }

    /// Kills or stops the primary until the Sentinels have promoted a replica, and then revives it. Writes that did not reach the replicas
    /// are lost. A stopped primary acts as a primary until it learns its new role.
    pub(super) fn fail_over(&mut self, stops: bool) -> Result<()> {
        self.begins(Fault::Forgot, "failover");
        self.strike_servers(if stops { "stopped" } else { "killed" }, |stage| {
            stage.replace_primary(stops)?;
            stage.settle()
        })?;
        self.ends(Fault::Forgot);
        Ok(())
    }

    /// Strikes watched servers, and waits until locks are granted again. No lock may be lost by it.
    pub(super) fn strike_survivably(
        &mut self,
        detail: &str,
        strike: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        self.strike_servers(detail, |stage| {
            strike(stage)?;
            stage.settle()?;
            stage.wait_for_end_of_grace()
        })
    }

    fn strike_servers(&mut self, detail: &str, strike: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.begins(Fault::Replaced, "");
        self.begins(Fault::Down, detail);
        strike(self)?;
        self.ends(Fault::Down);
        self.ends(Fault::Replaced);
        Ok(())
    }

    /// Kills or stops the primary, and waits until the Sentinels have promoted a replica.
    pub(super) fn replace_primary(&mut self, stops: bool) -> Result<()> {
        let (set, primary) = self.servers.watched()?;
        let old = &mut set.servers_mut()[*primary];
        if stops {
            old.pause();
        } else {
            old.kill();
        }
        self.await_new_primary()
    }

    /// Waits until the Sentinels have promoted a replica.
    pub(super) fn await_new_primary(&mut self) -> Result<()> {
        let (set, primary) = self.servers.watched()?;
        let address = set.servers()[*primary].addr();
        let new = set.wait_for_new_primary(address);
        self.turn_to(new)
    }

    /// Revives all servers, and waits until the Sentinels agree on a primary and all other servers follow it.
    pub(super) fn settle(&mut self) -> Result<()> {
        self.servers.watched()?.0.heal();
        self.follow()
    }

    fn follow(&mut self) -> Result<()> {
        let primary = self.servers.watched()?.0.primary_index();
        self.turn_to(primary)
    }

    fn turn_to(&mut self, new: usize) -> Result<()> {
        let (set, primary) = self.servers.watched()?;
        self.failovers += u64::from(*primary != new);
        *primary = new;
        for sampler in &self.samplers {
            sampler.turn_to(set.servers()[new].socket_path());
        }
        Ok(())
    }

    /// Waits until the server grants locks again.
    fn wait_for_end_of_grace(&mut self) -> Result<()> {
        // A primary that was replaced has to stay a replica for so long.
        std::thread::sleep((WINDOW + PATIENCE).mul_f64(1.1));
        let is_over = poll_until(GRACE_WITHIN, || {
            // A late failover has a grace of its own.
            self.follow().is_ok() && self.is_grace_over()
        });
        ensure!(is_over, "the grace lasts longer than {GRACE_WITHIN:?}");
        Ok(())
    }

    fn is_grace_over(&self) -> bool {
        let info = |section, name: &str| {
            let info = self.command(&["INFO", section])?.to_string();
            info.lines().find_map(|line| line.strip_prefix(name).map(str::to_owned))
        };
        let incarnation = info("server", "run_id:").zip(info("replication", "master_replid:"));
        let era = self.command(&["HGET", "wheellock:fleet", "era"]).map(|era| era.to_string());
        let is_in = |era: &str| incarnation.is_some_and(|(run, id)| era.starts_with(&format!("{run}:{id}:")));
        era.is_some_and(|era| is_in(&era))
    }

    /// Restarts the primary or a replica in its place, without its data.
    pub(super) fn restart_without_data(&mut self, is_primary: bool) -> Result<()> {
        let (set, primary) = self.servers.watched()?;
        let servers = set.servers().len();
        let replica = (*primary + 1 + self.random.index(servers - 1)) % servers;
        let place = if is_primary { *primary } else { replica };
        let server = &mut set.servers_mut()[place];
        server.kill();
        // A replica keeps its last full sync on disk. It would be an older snapshot, without some processes.
        match fs::remove_file(server.directory().join("dump.rdb")) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        server.restart();
        Ok(())
    }

    /// Separates the primary, or any server, from the other servers while `meanwhile` runs. A whole split cuts its site off. Otherwise the
    /// last site reaches all servers.
    pub(super) fn split(
        &mut self,
        of_primary: bool,
        is_whole: bool,
        meanwhile: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let (set, primary) = self.servers.watched()?;
        let servers = set.servers().len();
        let one = if of_primary { *primary } else { self.random.index(servers) };
        self.begins(
            Fault::Silent,
            &format!("server {one} {}", if is_whole { "and its site" } else { "alone" }),
        );
        self.change_split(one, is_whole, true)?;
        meanwhile(self)?;
        self.change_split(one, is_whole, false)?;
        self.ends(Fault::Silent);
        Ok(())
    }

    /// Separates a server from the other servers, or joins it again.
    fn change_split(&mut self, one: usize, is_whole: bool, begins: bool) -> Result<()> {
        let servers = self.servers.watched()?.0.servers().len();
        let mut others = (0..servers).filter(|other| *other != one);
        let network = self.network.as_ref().context("this campaign has no network")?;
        let done = match (is_whole, begins) {
            (true, true) => network.cut(one),
            (true, false) => network.join(one),
            (false, true) => others.try_for_each(|other| network.separate(one, other)),
            (false, false) => others.try_for_each(|other| network.unite(one, other)),
        };
        Ok(done?)
    }

    /// Returns the folder of the server's files.
    pub(super) fn directory(&self) -> &Path {
        self.servers.serving().directory()
    }

    /// Releases the lock `name` by force.
    pub(super) fn release_by_force(&self, name: &str) -> Result<()> {
        self.with_manager(async |manager| {
            self.begins(Fault::Forgot, "released by force");
            let was_held = manager.lock(name).force_release().await;
            self.ends(Fault::Forgot);
            was_held.map(drop).map_err(Into::into)
        })
    }

    /// Sends a command to the server, which may be dead or unreachable at the moment.
    pub(super) fn command(&self, args: &[&str]) -> Option<Reply> {
        self.command_to(0, args)
    }

    /// Sends a command to one of several servers.
    pub(super) fn command_to(&self, place: usize, args: &[&str]) -> Option<Reply> {
        self.servers.all().get(place)?.connect().and_then(|mut cli| cli.query(args)).ok()
    }

    /// Returns at most `most` places of servers, and at least one.
    pub(super) fn some_servers(&mut self, most: usize) -> Vec<usize> {
        let mut places: Vec<usize> = (0..self.servers.all().len()).collect();
        self.random.shuffle(&mut places);
        places.truncate(1 + self.random.index(most));
        places
    }

    /// Sets the server's clock `micros` microseconds ahead of the true time.
    pub(super) fn set_clock(&mut self, micros: i64, detail: &str) -> Result<()> {
        self.clock_was_set = true;
        self.begins(Fault::Clock, detail);
        self.shim.as_ref().context("this campaign has no shim")?.set_clock(micros)?;
        self.ends(Fault::Clock);
        Ok(())
    }

    /// Stops a worker for a while.
    pub(super) fn stop_worker(&self, place: usize, duration: Duration) {
        let Some(worker) = self.workers.get(place) else { return };
        // Recorded before the signal, so that the recorded stop is not shorter than the real one.
        self.recorder.about(worker.number, What::Stopped);
        worker.signal(Signal::STOP);
        std::thread::sleep(duration);
        worker.signal(Signal::CONT);
        self.recorder.about(worker.number, What::Continued);
    }

    /// Kills a worker and starts another worker in its place.
    pub(super) fn replace_worker(&mut self, place: usize) -> Result<()> {
        self.pool.refill(self.servers.serving(), 0)?;
        let mut worker = self.workers.remove(place);
        // Recorded before the signal. A claim after this event does not count, because the worker may not have made it.
        self.recorder.about(worker.number, What::Killed);
        worker.kill();
        if self.kind == Locks::Semaphore {
            self.pool.bury(&self.scratch.path, worker.number);
        }
        self.killed = Some(Instant::now());
        self.start_worker(worker.style, worker.site.take())
    }

    /// Returns the index of a random worker.
    pub(super) fn any_worker(&mut self) -> usize {
        self.random.index(self.workers.len())
    }

    /// Ends all faults.
    pub(super) fn heal(&mut self) -> Result<()> {
        for proxy in &self.proxies {
            proxy.heal();
            proxy.gate(Gate::Open);
        }
        for (name, value) in
            [("maxmemory", "0"), ("client-output-buffer-limit", "pubsub 33554432 8388608 60")]
        {
            for place in 0..self.servers.all().len() {
                let _dead = self.command_to(place, &["CONFIG", "SET", name, value]);
            }
        }
        if self.clock_was_set {
            // Ahead of every earlier time. A clock that is set back would keep orphaned keys alive.
            self.set_clock(7_200_000_000, "two hours ahead")?;
        }
        // The remaining waiters need some permits.
        self.pool.refill(self.servers.serving(), pool::PERMITS - 3)?;
        self.recorder.now(0, 0, "", What::Healed);
        for worker in &mut self.workers {
            worker.tell("drain");
        }
        Ok(())
    }

    /// Waits until all workers have ended, and counts the remaining keys.
    pub(super) fn finish(&mut self) -> Result<()> {
        let deadline = Instant::now() + 4 * self.lease + DRAINED_WITHIN;
        for worker in &self.workers {
            // A worker that does not answer has not finished, and the history shows it.
            let _silent = worker.answers("drained", deadline);
        }
        self.samplers.clear();
        if self.books.take().is_some() {
            self.pass_the_dead()?;
        }
        let connect = |server: &RedisServer| server.connect();
        let mut clis = self.servers.all().iter().map(connect).collect::<std::io::Result<Vec<Cli>>>()?;
        self.count_keys(&mut clis);
        match (self.kind, &mut clis[..]) {
            (Locks::Permits, [cli, ..]) => pool::all_are_free(cli, self.lease, &self.recorder),
            (Locks::Semaphore, [cli, ..]) => self.pool.balance(cli, &self.recorder),
            _ => {}
        }
        for worker in &mut self.workers {
            worker.tell("probe");
        }
        let deadline = Instant::now() + DRAINED_WITHIN;
        for worker in &self.workers {
            let _silent = worker.answers("probed", deadline);
        }
        // Redisson's own subscription times are not judged.
        self.workers.retain(|worker| worker.style != Style::Redisson);
        // The library keeps a subscription for 2 s after its last waiter.
        let sharded = matches!(self.servers, Servers::Cluster(_));
        let mut channels = || clis.iter_mut().map(|cli| channels(cli, sharded)).sum::<u64>();
        let _seen_below = poll_until(DRAINED_WITHIN, || channels() == 0);
        let left = channels();
        self.probe("channels left", left);
        let failovers =
            What::Probe { name: "failovers".to_owned(), found: self.failovers, allowed: u64::MAX };
        self.recorder.now(0, 0, "", failovers);
        self.workers.clear();
        Ok(())
    }

    /// Waits until all keys are gone from all servers, and records the number of the others.
    fn count_keys(&self, clis: &mut [Cli]) {
        let is_pool = self.kind.is_pool();
        let mut keys = || {
            let of = |cli: &mut Cli| if is_pool { pool::keys(cli) } else { keys(cli) };
            clis.iter_mut().map(of).sum::<u64>()
        };
        // A writer that was killed in its wait leaves a mark, which expires.
        let mark = self.killed.filter(|_| matches!(self.kind, Locks::ReadWrite(_)));
        let mark = mark.map_or(Duration::ZERO, |killed| MARK.saturating_sub(killed.elapsed()));
        let _seen_below = poll_until(mark.max(2 * self.lease) + Duration::from_secs(1), || keys() == 0);
        self.probe("keys left", keys());
    }

    /// Takes every fair lock once. A dead waiter stays in the queue until another waiter polls.
    fn pass_the_dead(&self) -> Result<()> {
        self.with_manager(async |manager| {
            for number in 0..self.locks() {
                let lock = manager.fair_lock(&format!("lock:{number}"));
                // Other leftovers are counted below.
                if let Some(guard) = lock.try_acquire_for(DEAD_HEAD).await?.acquired() {
                    guard.release().await?;
                }
            }
            Ok(())
        })
    }

    /// Runs `work` with a separate manager, not a worker's.
    fn with_manager(&self, work: impl AsyncFnOnce(&LockManager) -> Result<()>) -> Result<()> {
        // The same addresses may be those of other machines here.
        ensure!(self.network.is_none(), "this process is outside of the campaign's network");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let manager = LockManager::connect(&self.servers.url()).await?;
            let done = work(&manager).await;
            let _left = manager.shutdown(PATIENCE).await;
            done
        })
    }

    fn probe(&self, name: &str, found: u64) {
        self.recorder.now(0, 0, "", What::Probe { name: name.to_owned(), found, allowed: 0 });
    }
}

/// Keys that may remain. The counter of a fenced lock's tokens stays forever, and the latches of Redisson's unlocks expire.
/// The entries of processes that were killed expire, too.
const STAY: [&str; 3] = ["redisson_lock_token:*", "redisson_unlock_latch:*", "wheellock:fleet*"];

/// Returns the nodes with replicas.
fn primaries(cluster: &Cluster) -> Vec<usize> {
    (0..cluster.nodes().len()).filter(|node| !cluster.replicas_of(*node).is_empty()).collect()
}

/// Returns the number of keys that have to vanish from a server.
fn keys(cli: &mut Cli) -> u64 {
    let stay = STAY.iter().map(|pattern| match cli.query(&["KEYS", pattern]) {
        Ok(Reply::Array(keys)) => keys.len() as u64,
        _ => 0,
    });
    let stay: u64 = stay.sum();
    number(&cli.query(&["DBSIZE"])).saturating_sub(stay)
}

/// Returns the number of channels with subscribers on a server. `sharded` counts those of a cluster's slots, too.
fn channels(cli: &mut Cli, sharded: bool) -> u64 {
    let kinds = if sharded { &["CHANNELS", "SHARDCHANNELS"][..] } else { &["CHANNELS"] };
    let of_workers = |channel: &&Reply| !channel.to_string().starts_with("__sentinel__:");
    let count = |kind: &&str| match cli.query(&["PUBSUB", kind]) {
        Ok(Reply::Array(channels)) => channels.iter().filter(of_workers).count() as u64,
        _ => UNKNOWN,
    };
    kinds.iter().map(count).sum()
}

fn number(reply: &std::io::Result<Reply>) -> u64 {
    match reply {
        Ok(Reply::Integer(number)) => number.unsigned_abs(),
        _ => UNKNOWN,
    }
}

/// The folder of histories and of the witness while the campaign runs. It is in memory if possible, because the disk must not delay the
/// observed processes. At every end of the campaign, the histories move to their final directory.
struct Scratch {
    path: PathBuf,
    kept: PathBuf,
}

impl Scratch {
    fn make(kept: &Path) -> Result<Self> {
        let memory = Path::new("/dev/shm");
        let base = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let name = kept.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let campaign =
            kept.parent().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        let path =
            base.join(format!("wheellock-{}-{}-{name}", std::process::id(), campaign.unwrap_or_default()));
        fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self { path, kept: kept.to_owned() })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for entry in fs::read_dir(&self.path).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|extension| extension == "history")
                && let Err(error) = fs::copy(&path, self.kept.join(entry.file_name()))
            {
                eprintln!("cannot keep {}: {error}", path.display());
            }
        }
        let _harmless = fs::remove_dir_all(&self.path);
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// More than any count, but small enough to add up.
const UNKNOWN: u64 = u32::MAX as u64;
/// The connections' response timeout. It is short, so that it ends many calls.
const PATIENCE: Duration = Duration::from_millis(1000);
/// The time within which a release reaches a waiter when no fault is active. It takes about a millisecond on an idle machine; here the
/// threads outnumber the cores. The time is shorter than most leases, because the end of a lease would wake the waiter, too.
const WAKE: Duration = Duration::from_millis(200);
/// The time that readers wait behind a writer that died in its wait.
const MARK: Duration = Duration::from_secs(6);
/// The time that a dead waiter may block the queue of a fair lock. It counts as dead after 5 s, and the next waiter polls within 2 s.
const DEAD_HEAD: Duration = Duration::from_secs(8);
/// A slower disk is not fit to keep locks.
const WRITTEN_WITHIN: Duration = Duration::from_secs(10);
/// A grace ends by time. It begins when the new primary has a replica again.
const GRACE_WITHIN: Duration = Duration::from_secs(60);
const DRAINED_WITHIN: Duration = Duration::from_secs(10);
const AT_WORK_WITHIN: Duration = Duration::from_secs(60);
/// Longer than any visit to a pool, even on a busy machine.
const LONG_AFTER_ANY_VISIT: Duration = Duration::from_secs(10);
