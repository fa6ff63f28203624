//! A campaign's worker process.
//!
//! Its tasks use locks in every way and record their observations.
//!
//! The process has a single thread, so a single stall detector covers all tasks. A stalled runtime is the only excuse for a late notice of
//! a loss.

use std::cell::Cell as Flag;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Result;
use tokio::sync::mpsc;
use tokio::task::LocalSet;
use tokio::time::{sleep, timeout};
use wheellock::{Error, Fleet, LockManager, LockManagerBuilder, RedLockManager};

use super::fleet::{Locks, Orders, SEPARATOR, Style};
use super::pool;
use super::wanted::{AnyGuard, AnyLock, Held, Wanted};
use crate::fault::Random;
use crate::history::{Cell, Entry, Kind, Recorder, What, Witness, now};
use crate::told;

/// Runs the worker's `main`.
///
/// # Errors
///
/// Bad arguments, or an error while writing the history.
pub fn serve(arguments: &[String]) -> Result<()> {
    let orders = Orders::parse(arguments)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, work(orders))
}

async fn work(orders: Orders) -> Result<()> {
    let recorder = Recorder::create(orders.directory(), orders.process)?;
    recorder.now(0, 0, "", What::Started);
    let mut requests = requests_from_stdin();
    let witness = Witness::new(orders.directory());
    let (manager, quorum) = connect(&orders).await;
    let worker = Rc::new(Worker {
        manager,
        quorum,
        recorder,
        witness,
        orders,
        stop: Flag::new(false),
        next_op: Flag::new(1),
    });
    pool::introduce(&worker)?;
    tokio::task::spawn_local(Rc::clone(&worker).watch_for_stalls());
    let tasks: Vec<_> = (1..=worker.orders.tasks)
        .map(|task| tokio::task::spawn_local(Rc::clone(&worker).task(task)))
        .collect();
    // The parent sends a request for each stage: first to begin no more operations, then to count the leftovers.
    let _drain = requests.recv().await;
    worker.stop.set(true);
    for task in tasks {
        // If a task has panicked, this process never records `Finished`, and the campaign fails.
        task.await?;
    }
    worker.recorder.now(0, 0, "", What::Finished);
    println!("drained");
    let _probe = requests.recv().await;
    worker.probe().await;
    println!("probed");
    let _never = requests.recv().await;
    Ok(())
}

/// Connects to the server, or to the independent servers of a quorum. Returns the manager of the first server, and that of the quorum.
async fn connect(orders: &Orders) -> (LockManager, Option<RedLockManager>) {
    if orders.kind != Locks::Quorum {
        return (until_connected(async || builder(orders, &orders.url).connect().await).await, None);
    }
    let lazy = |url| builder(orders, url).lazy().expect("the campaign's URLs are right");
    let managers: Vec<LockManager> = orders.url.split(SEPARATOR).map(lazy).collect();
    let quorum = until_connected(async || RedLockManager::new(managers.iter().cloned()).await).await;
    (managers.into_iter().next().expect("a quorum has servers"), Some(quorum))
}

/// Number of servers behind Sentinels.
const WATCHED: u32 = 3;
/// Window of a fleet whose locks survive failovers.
pub(super) const WINDOW: Duration = Duration::from_millis(1200);

fn builder(orders: &Orders, url: &str) -> LockManagerBuilder {
    let mut builder = LockManager::builder(url).watchdog_lease(orders.lease);
    if orders.survives {
        let mut fleet = Fleet::of_servers(WATCHED);
        (fleet.longest_lease, fleet.window) = (2 * orders.lease, WINDOW);
        builder = builder.keep_locks_across_failovers(fleet);
    }
    builder.configure(|config| config.response_timeout = orders.patience)
}

/// Connects until it succeeds. The server may be dead at the moment, as the campaign intends.
async fn until_connected<T>(connect: impl AsyncFn() -> Result<T, Error>) -> T {
    loop {
        match connect().await {
            Ok(manager) => return manager,
            Err(_) => sleep(Duration::from_millis(10)).await,
        }
    }
}

pub(super) struct Worker {
    /// The manager of the server, or of the first server of a quorum.
    pub(super) manager: LockManager,
    quorum: Option<RedLockManager>,
    pub(super) recorder: Recorder,
    witness: Witness,
    pub(super) orders: Orders,
    pub(super) stop: Flag<bool>,
    pub(super) next_op: Flag<u64>,
}

/// A pending operation.
struct Op<'a> {
    worker: &'a Worker,
    task: u32,
    number: u64,
    lock: &'a Wanted,
    cell: Cell,
    /// A pending operation of the same owner inside this one, and the event to record if it is dropped.
    inner: Flag<Option<(u64, What)>>,
}

/// The way of an attempt.
struct Manner {
    kind: Kind,
    lease: Duration,
    renewed: bool,
    wait: Option<Duration>,
    /// The time after which the future is dropped.
    give_up: Option<Duration>,
    owner: String,
}

impl Worker {
    async fn task(self: Rc<Self>, task: u32) {
        let seed = self.orders.seed ^ (u64::from(self.orders.process) << 32) ^ u64::from(task);
        let mut random = Random::new(seed);
        let _first_of_similar_seeds_is_similar = random.number();
        let pool = self.orders.kind.is_pool().then(|| pool::Visitor::new(&self, task));
        while !self.stop.get() {
            match &pool {
                Some(visitor) => visitor.visit(&mut random).await,
                None => self.operation(task, &mut random).await,
            }
            if self.orders.style == Style::Hot {
                tokio::task::yield_now().await;
            } else {
                sleep(Duration::from_micros(random.below(10_000))).await;
            }
        }
    }

    async fn operation(&self, task: u32, random: &mut Random) {
        let is_hot = self.orders.style == Style::Hot;
        let name = format!(
            "lock:{}",
            random.below(if self.orders.style.wants_one() { 1 } else { self.orders.locks })
        );
        let polls = self.orders.style == Style::Polling;
        let mut lock = self.wanted(&name, random);
        if polls && task.is_multiple_of(2) {
            lock.lock = AnyLock::Plain(self.manager.spin_lock(&name));
        }
        let lease = self.orders.lease;
        let mut manner = Manner {
            kind: Kind::Acquire,
            lease,
            renewed: true,
            wait: None,
            give_up: None,
            owner: String::new(),
        };
        let dice = if self.orders.style == Style::Waiting { 0 } else { random.below(100) };
        match dice {
            0..70 if is_hot => {}
            _ if polls && !task.is_multiple_of(2) => manner.kind = Kind::Try,
            _ if self.orders.style.wants_one() && !is_hot => {}
            90.. if is_hot => manner.give_up = Some(Duration::from_micros(random.below(5_000))),
            0..30 => {}
            30..45 => manner.kind = Kind::Try,
            45..80 => {
                manner.kind = Kind::TryFor;
                manner.wait = Some(Duration::from_millis(10 + random.below(400)));
            }
            80..90 => manner.kind = Kind::Run,
            _ => manner.give_up = Some(Duration::from_micros(random.below(60_000))),
        }
        // The watchdog does not renew fixed leases, and `run` is meant to test the watchdog.
        if manner.kind != Kind::Run && random.below(100) < if is_hot { 1 } else { 20 } {
            manner.renewed = false;
            manner.lease = [lease / 2, lease, 2 * lease][below(random, 3)];
            lock = lock.with_lease(manner.lease);
        }
        let chooses_owner = random.below(100) < if is_hot { 1 } else { 30 };
        // A lock of a quorum has an owner for each server.
        if chooses_owner && self.orders.kind != Locks::Quorum {
            let owner = self.manager.owner();
            manner.owner = owner.to_string();
            lock = lock.with_owner(owner);
        }
        match self.begin(task, &lock) {
            Ok(op) if manner.kind == Kind::Run => op.run(&manner, random).await,
            Ok(op) => {
                if let Some(guard) = op.attempt(&manner).await {
                    op.hold_watched(guard.as_any(), random).await;
                    let writes = matches!(self.orders.kind, Locks::ReadWrite(_)) && !lock.shared;
                    if writes && guard.as_any().is_valid() && random.below(100) < 20 {
                        op.read_on(guard, random).await;
                    } else {
                        op.give_back(guard, random).await;
                    }
                }
            }
            Err(error) => panic!("the witness has no cell: {error}"),
        }
    }

    fn wanted(&self, name: &str, random: &mut Random) -> Wanted {
        let locks = &self.manager;
        let (lock, shared) = match self.orders.kind {
            Locks::Plain => (AnyLock::Plain(locks.lock(name)), false),
            Locks::Spin => (AnyLock::Plain(locks.spin_lock(name)), false),
            Locks::Simple => (AnyLock::Plain(locks.simple_lock(name)), false),
            Locks::Fair => (AnyLock::Plain(locks.fair_lock(name)), false),
            Locks::Fenced => (AnyLock::Fenced(locks.fenced_lock(name)), false),
            Locks::Quorum => {
                (AnyLock::Quorum(self.quorum.as_ref().expect("the campaign has a quorum").lock(name)), false)
            }
            Locks::Permits | Locks::Semaphore => unreachable!("a pool has visitors"),
            Locks::ReadWrite(reads) if random.below(100) < reads => (self.reads(name), true),
            Locks::ReadWrite(_) => (AnyLock::Plain(locks.read_write_lock(name).write()), false),
        };
        Wanted { lock, shared }
    }

    fn reads(&self, name: &str) -> AnyLock {
        AnyLock::Plain(self.manager.read_write_lock(name).read())
    }

    fn begin<'a>(&'a self, task: u32, lock: &'a Wanted) -> io::Result<Op<'a>> {
        let number = self.next_op.get();
        self.next_op.set(number + 1);
        Ok(Op {
            worker: self,
            task,
            number,
            lock,
            cell: self.witness.cell(lock.name())?,
            inner: Flag::new(None),
        })
    }

    /// Records the times when this thread did not run its tasks.
    async fn watch_for_stalls(self: Rc<Self>) {
        let mut before = now();
        loop {
            sleep(BEAT).await;
            let after = now();
            if after - before > STALL {
                self.recorder.at(before, 0, 0, "", What::Stalled { until: after });
            }
            before = after;
        }
    }

    /// Returns the managers of all servers.
    fn managers(&self) -> Vec<&LockManager> {
        self.quorum.as_ref().map_or_else(|| vec![&self.manager], |quorum| quorum.managers().collect())
    }

    /// Counts the leftovers when all operations have ended.
    async fn probe(&self) {
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let sum = |of: &dyn Fn(&LockManager) -> u64| self.managers().into_iter().map(of).sum::<u64>();
        let count = || {
            [
                ("requests in flight", sum(&|manager| count(manager.client().stats().in_flight))),
                ("bytes queued", sum(&|manager| count(manager.client().stats().queued_bytes))),
                ("locks held", sum(&|manager| manager.metrics().held)),
                ("waiters", sum(&|manager| manager.metrics().waiting)),
            ]
        };
        let quiet = async || count().iter().all(|(_, found)| *found == 0);
        let _seen_below = crate::eventually(QUIET_WITHIN, quiet).await;
        for (name, found) in count() {
            self.recorder.now(0, 0, "", What::Probe { name: name.to_owned(), found, allowed: 0 });
        }
        let jumps = sum(&|manager| manager.metrics().server_clock_jumps);
        let handed_over = sum(&|manager| manager.metrics().hand_overs);
        for (name, found) in [("server clock jumps seen", jumps), ("handed over", handed_over)] {
            self.recorder.now(0, 0, "", What::Probe { name: name.to_owned(), found, allowed: u64::MAX });
        }
    }
}

impl Op<'_> {
    fn record(&self, what: What) {
        self.worker.recorder.now(self.task, self.number, self.lock.name(), what);
    }

    fn invoked(&self, manner: &Manner) {
        let at = now();
        let what = What::Invoked {
            kind: manner.kind,
            renewed: manner.renewed,
            lease: nanos(manner.lease),
            deadline: manner.wait.map(|wait| at + nanos(wait)),
            owner: manner.owner.clone(),
            shared: self.lock.shared,
        };
        self.worker.recorder.at(at, self.task, self.number, self.lock.name(), what);
    }

    fn granted(&self, guard: AnyGuard<'_>) {
        let (valid_until, token) = (guard.valid_until(), guard.token());
        // Asking a guard for its owner prevents the hand-over of its hold.
        let owner = if self.worker.orders.style == Style::Hot { None } else { guard.owner() };
        let by_number = || format!("{}:{}", self.worker.orders.process, self.number);
        let owner = owner.map_or_else(by_number, |owner| owner.to_string());
        self.record(What::Granted { owner, valid_until, token });
    }

    fn failed(&self, error: &Error) {
        self.record(What::Failed { outcome: told::outcome(error), text: error.to_string() });
    }

    async fn attempt(&self, manner: &Manner) -> Option<Held> {
        let acquire = self.lock.ask(manner.kind, manner.wait);
        self.invoked(manner);
        let answer = match manner.give_up {
            Some(after) => timeout(after, acquire).await.ok(),
            None => Some(acquire.await),
        };
        match answer {
            Some(Ok(Some(guard))) => {
                self.granted(guard.as_any());
                return Some(guard);
            }
            Some(Ok(None)) => self.record(What::NotGranted),
            Some(Err(error)) => self.failed(&error),
            None => self.record(What::Cancelled),
        }
        None
    }

    async fn run(&self, manner: &Manner, random: &mut Random) {
        self.invoked(manner);
        let granted = Flag::new(false);
        let mut work = async |guard: AnyGuard<'_>| {
            granted.set(true);
            self.granted(guard);
            self.hold(guard, random).await;
            self.record(What::Dropped);
            Ok::<_, Error>(())
        };
        let done = match &self.lock.lock {
            AnyLock::Plain(lock) => lock.run(async |guard| work(AnyGuard::Plain(guard)).await).await,
            AnyLock::Fenced(lock) => lock.run(async |guard| work(AnyGuard::Fenced(guard)).await).await,
            AnyLock::Quorum(lock) => lock.run(async |guard| work(AnyGuard::Quorum(guard)).await).await,
        };
        match done {
            Ok(()) => {}
            Err(Error::Lost { reason, .. }) if granted.get() => {
                // The guard is already dropped. The history contains its last claim.
                self.record(What::Lost { reason: told::reason(reason), valid_until: now() });
                self.record(What::Dropped);
            }
            Err(error) => self.failed(&error),
        }
    }

    /// Works under the lock until the work is done or the lock is lost.
    async fn hold_watched(&self, guard: AnyGuard<'_>, random: &mut Random) {
        let Orders { kind, style, .. } = self.worker.orders;
        let again = random.below(100) < 10 && kind.is_reentrant() && style != Style::Hot;
        let mut work = pin!(async {
            if again {
                self.hold_again(guard).await;
            }
            self.hold(guard, random).await;
        });
        tokio::select! {
            biased;
            reason = guard.lost() => {
                self.record(What::Lost { reason: told::reason(reason), valid_until: guard.valid_until() });
                let at = now();
                if guard.is_valid() {
                    let (recorder, name) = (&self.worker.recorder, self.lock.name());
                    recorder.at(at, self.task, self.number, name, What::Claimed { until: guard.valid_until() });
                }
                // The next step drops the pending operation of the same owner.
                if let Some((number, what)) = self.inner.take() {
                    self.worker.recorder.now(self.task, number, self.lock.name(), what);
                }
                // A token has to stop writes of a process that has lost the lock.
                if let Some(token) = guard.token() {
                    self.offer(token);
                }
            }
            () = &mut work => {}
        }
    }

    /// Enters and leaves through the witness, and checks the guard continuously.
    async fn hold(&self, guard: AnyGuard<'_>, random: &mut Random) {
        let (until, token) = (guard.valid_until(), guard.token());
        let mut look = Look { op: self, guard, token, entry: None, until, claimed: 0, other: None };
        look.enter().await;
        let end = now() + nanos(self.duration(random));
        let renewals = if self.worker.orders.style == Style::Hot { 1 } else { 10 };
        if random.below(100) < renewals {
            let _told_by_the_guard = guard.renew().await;
        }
        while look.is_fine() {
            let left = Duration::from_nanos(end.saturating_sub(now()));
            // After the last fault, the waiters must not wait for the longest holds.
            if left.is_zero() || self.worker.stop.get() {
                break;
            }
            sleep(left.min(SLICE)).await;
        }
        look.write_and_leave();
    }

    /// Acquires the lock again with the same owner, and releases that second hold.
    async fn hold_again(&self, guard: AnyGuard<'_>) {
        let Some(owner) = guard.owner() else { return };
        let again = self.lock.with_owner(owner.clone());
        let Ok(op) = self.worker.begin(self.task, &again) else { return };
        let manner = Manner {
            kind: Kind::Again,
            lease: self.worker.orders.lease,
            renewed: true,
            wait: None,
            give_up: None,
            owner: owner.to_string(),
        };
        self.inner.set(Some((op.number, What::Cancelled)));
        let inner = op.attempt(&manner).await;
        self.inner.set(inner.is_some().then_some((op.number, What::Dropped)));
        if let Some(inner) = inner {
            op.release(inner).await;
        }
        self.inner.set(None);
    }

    /// Waits for an attempt of the same owner. A loss of `guard` meanwhile is recorded when it is told.
    async fn watched<T>(&self, guard: AnyGuard<'_>, attempt: impl Future<Output = T>) -> T {
        let mut attempt = pin!(attempt);
        if guard.is_valid() {
            tokio::select! {
                biased;
                reason = guard.lost() => {
                    self.record(What::Lost { reason: told::reason(reason), valid_until: guard.valid_until() });
                }
                answer = &mut attempt => return answer,
            }
        }
        attempt.await
    }

    /// Releases a write hold, and keeps a read hold.
    async fn read_on(&self, writes: Held, random: &mut Random) {
        let Some(owner) = writes.as_any().owner() else { return };
        let lock = Wanted { lock: self.worker.reads(self.lock.name()), shared: true };
        let lock = lock.with_owner(owner.clone());
        let Ok(op) = self.worker.begin(self.task, &lock) else { return };
        let manner = Manner {
            kind: Kind::Again,
            lease: self.worker.orders.lease,
            renewed: true,
            wait: None,
            give_up: None,
            owner: owner.to_string(),
        };
        let reads = self.watched(writes.as_any(), op.attempt(&manner)).await;
        self.give_back(writes, random).await;
        if let Some(reads) = reads {
            op.hold_watched(reads.as_any(), random).await;
            op.give_back(reads, random).await;
        }
    }

    /// Sends a write to the resource.
    fn offer(&self, token: u64) {
        let write = self.cell.write(token).expect("a cell can be written");
        if let Some(write) = write {
            let what = What::Wrote { token, highest: write.highest, accepted: write.accepted };
            self.worker.recorder.at(write.at, self.task, self.number, self.lock.name(), what);
        }
    }

    async fn give_back(&self, guard: Held, random: &mut Random) {
        match random.below(100) {
            0..65 => self.release(guard).await,
            65..90 => {
                self.record(What::Dropped);
                drop(guard);
            }
            _ => {
                self.record(What::Releasing);
                let patience = Duration::from_micros(random.below(800));
                match timeout(patience, guard.release()).await {
                    Ok(released) => self.released(released),
                    Err(_) => self.record(What::Dropped),
                }
            }
        }
    }

    async fn release(&self, guard: Held) {
        self.record(What::Releasing);
        self.released(guard.release().await);
    }

    fn released(&self, released: Result<(), Error>) {
        self.record(match released {
            Ok(()) => What::Released,
            Err(Error::Lost { .. }) => What::AlreadyLost,
            Err(error) => What::Unconfirmed { text: error.to_string() },
        });
    }

    fn duration(&self, random: &mut Random) -> Duration {
        let leases = |random: &mut Random| self.worker.orders.lease / 10 * u32_below(random, 25);
        match (self.worker.orders.style, random.below(100)) {
            (Style::Waiting, _) => Duration::ZERO,
            (Style::Hot, 0..20) => Duration::ZERO,
            (Style::Hot, _) => Duration::from_micros(random.below(500)),
            (Style::Polling | Style::Visiting, _) => Duration::from_micros(random.below(2_000)),
            // Redisson's worker is a different program.
            (Style::Even | Style::Redisson, _) => Duration::from_micros(10_000 + random.below(20_000)),
            (Style::Holding, _) | (Style::Mixed, 0..3) => leases(random),
            (Style::Mixed, _) => Duration::from_micros(random.below(15_000)),
        }
    }
}

/// An observed hold.
struct Look<'a> {
    op: &'a Op<'a>,
    guard: AnyGuard<'a>,
    /// The fencing token, if there is one.
    token: Option<u64>,
    entry: Option<Entry>,
    until: u64,
    /// The time of the guard's last recorded claim.
    claimed: u64,
    /// The last holder that was seen to enter meanwhile.
    other: Option<u64>,
}

impl Look<'_> {
    async fn enter(&mut self) {
        // Another process may lock the cell's file for some microseconds. A stopped process locks it for long; then the witness does not
        // record this hold.
        for _ in 0..ENTRY_ATTEMPTS {
            let entered = self.op.cell.enter_as(self.op.lock.shared, || self.guard.is_valid());
            self.entry = entered.expect("a cell can be written");
            if let Some(Entry { token, .. }) = self.entry {
                return self.op.record(What::Entered { token });
            }
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// Checks the witness first and the guard second; the witness explains the order.
    fn is_fine(&mut self) -> bool {
        let other =
            self.entry.and_then(|entry| self.op.cell.entered_since(entry).expect("a cell can be read"));
        let before = self.guard.valid_until();
        let at = now();
        let valid = self.guard.is_valid();
        let after = self.guard.valid_until();
        if after != self.until {
            self.until = after;
            self.op.record(What::Moved { valid_until: after });
        }
        if !valid {
            self.op.record(What::Disclaimed);
            return false;
        }
        let until = before.max(after);
        // Does not record every check, because the records would fill the history. Records each check after a gap, and each check that must
        // not succeed.
        if at > until || at - self.claimed > CLAIM_INTERVAL {
            let (recorder, name) = (&self.op.worker.recorder, self.op.lock.name());
            recorder.at(at, self.op.task, self.op.number, name, What::Claimed { until });
        }
        self.claimed = at;
        if let Some(entered) = other.filter(|_| self.other != other) {
            self.other = other;
            self.op.record(What::Overlap { other: entered });
        }
        true
    }

    fn write_and_leave(mut self) {
        let Some(entry) = self.entry else { return };
        if !entry.shared {
            self.op.offer(self.token.unwrap_or(entry.token));
        }
        if self.guard.is_valid() {
            self.is_fine();
        }
        self.op.cell.leave(entry).expect("a cell can be written");
        self.op.record(What::Left);
    }
}

pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn below(random: &mut Random, bound: u64) -> usize {
    usize::try_from(random.below(bound)).unwrap_or_default()
}

fn u32_below(random: &mut Random, bound: u64) -> u32 {
    u32::try_from(random.below(bound)).unwrap_or_default()
}

/// Sends the lines of stdin. Ends the process when the parent closes stdin, even in the middle of other work.
fn requests_from_stdin() -> mpsc::UnboundedReceiver<String> {
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in io::stdin().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
        std::process::exit(0);
    });
    receiver
}

pub(super) const BEAT: Duration = Duration::from_millis(2);
/// Shorter than the lead of a loss notice, for the shortest lease in use.
pub(super) const STALL: u64 = 8_000_000;
pub(super) const SLICE: Duration = Duration::from_millis(4);
pub(super) const CLAIM_INTERVAL: u64 = 30_000_000;
pub(super) const ENTRY_ATTEMPTS: u32 = 20;
const QUIET_WITHIN: Duration = Duration::from_secs(5);
