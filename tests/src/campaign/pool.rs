//! Pools of permits in a campaign.
//!
//! A worker process visits pools. The campaign's own process counts their permits on the server.

use std::cell::Cell as Flag;
use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::time::{sleep, timeout};
use wheellock::{Error, Permit, Permits};

use super::fleet::Locks;
use super::worker::{CLAIM_INTERVAL, ENTRY_ATTEMPTS, SLICE, Worker, nanos};
use crate::cli::{Cli, Reply};
use crate::fault::Random;
use crate::history::{DEAD_TOOK, Kind, OTHERS, Recorder, Slots, Way, What, now};
use crate::{RedisServer, poll_until, told};

/// A task that acquires and releases permits.
pub(super) struct Visitor<'a> {
    worker: &'a Worker,
    task: u32,
    slots: Slots,
}

/// A visit.
struct Visit<'a> {
    visitor: &'a Visitor<'a>,
    number: u64,
    permits: u32,
    /// The latest expiry that the guard has reported, and the time of its last record.
    seen: Flag<(u64, u64)>,
}

enum Held {
    Permit(Permit),
    Permits(Permits),
}

impl Held {
    fn permit(&self) -> Option<&Permit> {
        match self {
            Self::Permit(permit) => Some(permit),
            Self::Permits(_) => None,
        }
    }

    /// Returns true if the permits are valid. Counted permits do not expire.
    fn is_valid(&self) -> bool {
        self.permit().is_none_or(|permit| permit.is_valid())
    }

    fn valid_until(&self) -> u64 {
        self.permit().map_or(FOR_EVER, |permit| nanos(permit.valid_until().since_boot()))
    }

    async fn release(self) -> Result<(), Error> {
        match self {
            Self::Permit(permit) => permit.release().await,
            Self::Permits(permits) => permits.release().await,
        }
    }
}

impl<'a> Visitor<'a> {
    pub(super) fn new(worker: &'a Worker, task: u32) -> Self {
        let slots = Slots::open(worker.orders.directory(), NAME, PERMITS).expect("the witness has files");
        Self { worker, task, slots }
    }

    pub(super) async fn visit(&self, random: &mut Random) {
        let counted = self.worker.orders.kind == Locks::Semaphore;
        let number = self.worker.next_op.get();
        self.worker.next_op.set(number + 1);
        let permits = if counted { 1 + u32::from(random.below(100) < 30) } else { 1 };
        let visit = Visit { visitor: self, number, permits, seen: Flag::new((0, 0)) };
        if let Some(held) = visit.ask(counted, random).await {
            visit.stay(&held, random).await;
            visit.give_back(held, random).await;
        }
    }
}

impl Visit<'_> {
    fn record(&self, what: What) {
        self.visitor.worker.recorder.now(self.visitor.task, self.number, NAME, what);
    }

    async fn ask(&self, counted: bool, random: &mut Random) -> Option<Held> {
        let Worker { manager, orders, .. } = self.visitor.worker;
        let mut lease = orders.lease;
        let (kind, wait, give_up) = match random.below(100) {
            0..40 => (Kind::Acquire, None, None),
            40..55 => (Kind::Try, None, None),
            55..85 => (Kind::TryFor, Some(Duration::from_millis(10 + random.below(400))), None),
            _ => (Kind::Acquire, None, Some(Duration::from_micros(random.below(60_000)))),
        };
        let (semaphore, mut leased) = (manager.semaphore(NAME), manager.permit_semaphore(NAME));
        let renewed = counted || random.below(100) < 80;
        if !renewed {
            lease = [lease / 2, lease, 2 * lease][usize::try_from(random.below(3)).unwrap_or_default()];
            leased = leased.with_lease(lease);
        }
        let acquire = async {
            Ok(match (counted, kind, wait) {
                (true, Kind::Try, _) => {
                    semaphore.try_acquire(self.permits).await?.map(Held::Permits).acquired()
                }
                (true, _, Some(wait)) => {
                    semaphore.try_acquire_for(self.permits, wait).await?.map(Held::Permits).acquired()
                }
                (true, ..) => Some(Held::Permits(semaphore.acquire(self.permits).await?)),
                (false, Kind::Try, _) => leased.try_acquire().await?.map(Held::Permit).acquired(),
                (false, _, Some(wait)) => leased.try_acquire_for(wait).await?.map(Held::Permit).acquired(),
                (false, ..) => Some(Held::Permit(leased.acquire().await?)),
            })
        };
        let deadline = wait.map(|wait| now() + nanos(wait));
        self.record(What::Invoked {
            kind,
            renewed,
            lease: nanos(lease),
            deadline,
            owner: String::new(),
            shared: true,
        });
        self.record(What::Takes { permits: self.permits.into() });
        let answer = match give_up {
            Some(after) => timeout(after, acquire).await.ok(),
            None => Some(acquire.await),
        };
        let answer: Option<Result<Option<Held>, Error>> = answer;
        match answer {
            Some(Ok(Some(held))) => {
                let owner = held.permit().map(|permit| permit.id().to_string()).unwrap_or_default();
                let valid_until = held.valid_until();
                self.record(What::Granted { owner, valid_until, token: None });
                self.seen.set((valid_until, 0));
                return Some(held);
            }
            Some(Ok(None)) => self.record(What::NotGranted),
            Some(Err(error)) => {
                self.record(What::Failed { outcome: told::outcome(&error), text: error.to_string() });
            }
            None => self.record(What::Cancelled),
        }
        None
    }

    /// Enters and leaves through the witness, and checks the guard continuously.
    async fn stay(&self, held: &Held, random: &mut Random) {
        let places = self.enter(held).await;
        let work = async {
            let end = now() + nanos(self.duration(random));
            while self.is_fine(held) {
                let left = Duration::from_nanos(end.saturating_sub(now()));
                if left.is_zero() || self.visitor.worker.stop.get() {
                    break;
                }
                sleep(left.min(SLICE)).await;
            }
        };
        match held.permit() {
            Some(permit) => tokio::select! {
                biased;
                reason = permit.lost() => {
                    self.record(What::Lost { reason: told::reason(reason), valid_until: held.valid_until() });
                }
                () = work => {}
            },
            None => work.await,
        }
        if !places.is_empty() {
            self.visitor.slots.leave(&places).expect("a place can be left");
            self.record(What::Left);
        }
    }

    async fn enter(&self, held: &Held) -> Vec<usize> {
        let permits = self.permits as usize;
        for _ in 0..ENTRY_ATTEMPTS {
            match self.visitor.slots.enter(permits, || held.is_valid()).expect("a place can be taken") {
                Way::In(places) => {
                    self.record(What::Entered { token: places.first().map_or(0, |place| *place as u64) });
                    return places;
                }
                Way::Full => {
                    self.record(What::Overlap { other: 0 });
                    return Vec::new();
                }
                // Another process holds the gate for some microseconds.
                Way::NotNow => sleep(Duration::from_millis(1)).await,
            }
        }
        Vec::new()
    }

    fn is_fine(&self, held: &Held) -> bool {
        let (until, claimed) = self.seen.get();
        let before = held.valid_until();
        let at = now();
        let valid = held.is_valid();
        let after = held.valid_until();
        if after != until {
            self.record(What::Moved { valid_until: after });
        }
        if !valid {
            self.record(What::Disclaimed);
            return false;
        }
        let until = before.max(after);
        if at > until || at - claimed > CLAIM_INTERVAL {
            let Visitor { worker, task, .. } = self.visitor;
            worker.recorder.at(at, *task, self.number, NAME, What::Claimed { until });
        }
        self.seen.set((after, at));
        true
    }

    async fn give_back(&self, held: Held, random: &mut Random) {
        match random.below(100) {
            0..65 => {
                self.record(What::Releasing);
                self.released(held.release().await);
            }
            65..90 => {
                self.record(What::Dropped);
                drop(held);
            }
            _ => {
                self.record(What::Releasing);
                match timeout(Duration::from_micros(random.below(800)), held.release()).await {
                    Ok(released) => self.released(released),
                    Err(_) => self.record(What::Dropped),
                }
            }
        }
    }

    fn released(&self, released: Result<(), Error>) {
        self.record(match released {
            Ok(()) => What::Released,
            Err(Error::Lost { .. }) => What::AlreadyLost,
            Err(error) => What::Unconfirmed { text: error.to_string() },
        });
    }

    fn duration(&self, random: &mut Random) -> Duration {
        if random.below(100) < 2 {
            let tenths = u32::try_from(random.below(25)).unwrap_or_default();
            return self.visitor.worker.orders.lease / 10 * tenths;
        }
        Duration::from_micros(random.below(15_000))
    }
}

/// Writes down the manager's id, under which the server records the permits of this process.
pub(super) fn introduce(worker: &Worker) -> io::Result<()> {
    fs::write(worker.orders.directory().join(format!("{}.id", worker.orders.process)), worker.manager.id())
}

/// The counted permits of dead processes, as the server has recorded them.
#[derive(Default)]
pub(super) struct Books {
    /// True if Redisson takes part. The server has no record of Redisson's permits.
    beside_redisson: bool,
    dead: Vec<String>,
    /// Permits that killed JVMs certainly held, and that the pool has not got back yet.
    had_by_others: u64,
    refilled: u64,
    /// The number of acquires and releases at the last check.
    moves: Option<u64>,
}

impl Books {
    pub(super) fn new(beside_redisson: bool) -> Self {
        Self { beside_redisson, ..Self::default() }
    }

    /// Adds the permits to the pool.
    pub(super) fn open(&self, server: &RedisServer, recorder: &Recorder) -> Result<()> {
        recorder.now(0, 0, NAME, What::Pool { permits: PERMITS as u64 });
        let reply = server.connect()?.query(&["SET", NAME, &PERMITS.to_string()])?;
        ensure!(reply.to_string() == "OK", "{reply}");
        Ok(())
    }

    /// Records the death of a process. A process that died before it wrote down its id holds no permit.
    pub(super) fn bury(&mut self, directory: &Path, process: u32) {
        if process > OTHERS {
            self.had_by_others += had(directory, process);
        }
        self.dead.extend(fs::read_to_string(directory.join(format!("{process}.id"))));
    }

    /// Returns the permits of dead processes to the pool if they are more than `bearable`, as an operator would.
    pub(super) fn refill(&mut self, server: &RedisServer, bearable: usize) -> Result<()> {
        if self.dead.is_empty() && self.had_by_others == 0 {
            return Ok(());
        }
        let mut cli = server.connect()?;
        if self.sum(&mut cli, None) + self.had_by_others > bearable as u64 {
            let had_by_others = std::mem::take(&mut self.had_by_others);
            self.refilled += self.sum(&mut cli, Some(had_by_others));
        }
        Ok(())
    }

    /// Fills the pool again if no permit was acquired or released since the last check. The time between two checks is longer than any
    /// visit, so only dead processes hold permits then. For a JVM, only the permits in its record are known.
    pub(super) fn refill_if_nobody_moves(&mut self, server: &RedisServer) -> Result<()> {
        let mut cli = server.connect()?;
        let stats = cli.query(&["INFO", "commandstats"])?.to_string();
        let calls = |command: &str| {
            let line =
                stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")))?;
            line.split(',').next()?.parse::<u64>().ok()
        };
        let moves = calls("incrby").unwrap_or_default() + calls("decrby").unwrap_or_default();
        if self.moves.replace(moves) != Some(moves) {
            return Ok(());
        }
        let missing = (PERMITS as i64).saturating_sub(integer(&cli.query(&["GET", NAME])));
        let forgotten = missing.saturating_sub_unsigned(self.sum(&mut cli, None)).max(0).unsigned_abs();
        self.had_by_others = 0;
        self.refilled += self.sum(&mut cli, Some(forgotten));
        Ok(())
    }

    /// Counts the permits that are missing at the end.
    pub(super) fn balance(&self, cli: &mut Cli, recorder: &Recorder) {
        let dead = self.sum(cli, None);
        let everybodys = sum_of(cli, &[""], None);
        let free = integer(&cli.query(&["GET", NAME]));
        let missing = (PERMITS as i64).saturating_sub(free);
        let probe = |name: &str, found, allowed| {
            recorder.now(0, 0, NAME, What::Probe { name: name.to_owned(), found, allowed });
        };
        probe("permits of the living", everybodys - dead, 0);
        let taken_along = if self.beside_redisson {
            // Redisson's dead processes held the other missing permits. The checkers know the possible number.
            let taken_along = u64::try_from(missing).unwrap_or_default();
            probe("permits too many", u64::try_from(-missing).unwrap_or_default(), 0);
            probe("permits of the dead that are free", dead.saturating_sub(taken_along), 0);
            taken_along
        } else {
            let unexplained = missing.saturating_sub_unsigned(dead).unsigned_abs();
            probe("permits that neither are free nor were taken along", unexplained, 0);
            dead
        };
        probe(DEAD_TOOK, taken_along + self.refilled, u64::MAX);
    }

    fn sum(&self, cli: &mut Cli, refill: Option<u64>) -> u64 {
        let dead: Vec<_> = self.dead.iter().map(String::as_str).collect();
        sum_of(cli, &dead, refill)
    }
}

/// Returns the number of permits that a JVM certainly held when it was killed, according to its record.
fn had(directory: &Path, process: u32) -> u64 {
    let history = fs::read_to_string(directory.join(format!("{process}.history"))).unwrap_or_default();
    let mut had = HashSet::new();
    for line in history.lines() {
        let mut words = line.split(' ').skip(3);
        match (words.next(), words.nth(1)) {
            (Some(operation), Some("granted")) => _ = had.insert(operation),
            (Some(operation), Some("releasing")) => _ = had.remove(operation),
            _ => {}
        }
    }
    had.len() as u64
}

/// Returns the sum of these managers' records, or of all records if a name is empty. With `refill`, returns that sum and `refill` further
/// permits to the pool.
fn sum_of(cli: &mut Cli, managers: &[&str], refill: Option<u64>) -> u64 {
    let refill = refill.map(|more| more.to_string()).unwrap_or_default();
    let mut command = vec!["EVAL", SUM, "1", NAME, &refill];
    command.extend(managers);
    integer(&cli.query(&command)).unsigned_abs()
}

/// Checks at the end that all permits are free, including permits with an expired lease. Waits until the last lease has expired. The server
/// may execute a request late, after the death of its sender. A busy server does not check leases in time.
pub(super) fn all_are_free(cli: &mut Cli, lease: Duration, recorder: &Recorder) {
    let free = |cli: &mut Cli| integer(&cli.query(&["EVAL", FREE, "1", NAME]));
    let all = PERMITS as i64;
    let _seen_below = poll_until(3 * lease, || free(cli) == all);
    let free = free(cli);
    let probe = |name: &str, found: i64| {
        let found = u64::try_from(found).unwrap_or_default();
        recorder.now(0, 0, NAME, What::Probe { name: name.to_owned(), found, allowed: 0 });
    };
    probe("permits missing", all - free);
    probe("permits too many", free - all);
}

/// Counts the keys that must not remain at the end. The pool, the records of dead processes and the request slots may remain; the slots
/// expire.
pub(super) fn keys(cli: &mut Cli) -> u64 {
    let Ok(Reply::Array(keys)) = cli.query(&["KEYS", "*"]) else { return u64::MAX };
    let names = keys.iter().map(ToString::to_string);
    names.filter(|key| key != NAME && !key.starts_with(&format!("{{{NAME}}}:"))).count() as u64
}

fn integer(reply: &io::Result<Reply>) -> i64 {
    let number = match reply {
        Ok(Reply::Integer(number)) => Some(*number),
        Ok(other) => other.to_string().parse().ok(),
        Err(_) => None,
    };
    // An impossible number, so that the balance fails.
    number.unwrap_or(i64::MIN / 2)
}

const NAME: &str = "pool";
pub(super) const PERMITS: usize = 10;
/// Later than the end of any history, and far from an overflow.
const FOR_EVER: u64 = u64::MAX / 2;

/// Returns the sum of managers' records. With a refill, returns that sum and the given number of further permits to the pool.
const SUM: &str = "
    local refills = ARGV[1] ~= ''
    local sum = tonumber(ARGV[1]) or 0
    for place = 2, #ARGV do
        for _, key in ipairs(redis.call('keys', '{' .. KEYS[1] .. '}:wheellock_permits:' .. ARGV[place] .. '*')) do
            sum = sum + redis.call('get', key)
            if refills then redis.call('del', key) end
        end
    end
    if refills and sum > 0 then
        redis.call('publish', 'redisson_sc:{' .. KEYS[1] .. '}', redis.call('incrby', KEYS[1], sum))
    end
    return sum";

/// Counts like Redisson's availablePermits.
const FREE: &str = "
    local time = redis.call('time')
    local now = time[1] * 1000 + math.floor(time[2] / 1000)
    return redis.call('get', KEYS[1]) + redis.call('zcount', '{' .. KEYS[1] .. '}:timeout', 0, now)";
