//! Fleets whose locks have a minimum or a maximum, or travel to other processes as tickets.

use std::rc::Rc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::spawn_local;
use tokio::time::sleep;
use wheellock::{Error, LockManager, Ticket};

use super::give_up::{GiveUp, outcome_unless};
use super::held::Held;
use super::operation::Op;
use super::plan::{Kind, LEASE, Manner, Plan, Step, Wrong, pick, u32_below, usize_below};
use super::process::Process;
use crate::fault::Random;
use crate::history::{Kind as Asked, What};
use crate::told;

/// The limits of a hold, and its end as a ticket. All times are milliseconds.
#[derive(Clone, Default, Debug)]
pub(super) struct Limits {
    pub(super) min: Option<u64>,
    pub(super) max: Option<u64>,
    /// True if the task keeps a lost guard until the planned end of its hold.
    pub(super) is_wedged: bool,
    /// The journey, in place of a release.
    pub(super) journey: Option<Journey>,
}

/// A ticket, and the processes that get its text.
#[derive(Clone, Debug)]
pub(super) struct Journey {
    give_up: Option<GiveUp>,
    couriers: Vec<Courier>,
}

/// A process that gets a ticket. It adopts the lock after a delay.
#[derive(Clone, Debug)]
pub(super) struct Courier {
    to: u32,
    delay: u64,
    /// True if it releases the ticket instead.
    releases: bool,
    give_up: Option<GiveUp>,
    step: Step,
}

impl Plan {
    /// Makes the plan of a fleet with limits and tickets. It is the plan of another fleet, with limits added.
    pub(super) fn limited(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x0011_3175_u64.rotate_left(37));
        let _first_of_similar_seeds_is_similar = random.number();
        let kind = pick(&mut random, &Kind::LIMITED);
        let mut plan = Self::of(random.number(), Some(kind));
        plan.seed = seed;
        if kind == Kind::ReadWrite {
            // The next server may know the writer as a waiter only. No process withdraws the wait of a ticket's writer there.
            plan.troubles.retain(|trouble| !matches!(trouble.what, Wrong::FailedOver));
        }
        let processes = plan.processes;
        for task in &mut plan.tasks {
            task.steps.truncate(8);
            for step in &mut task.steps {
                limit(&mut random, kind, processes, step);
            }
        }
        plan
    }
}

fn limit(random: &mut Random, kind: Kind, processes: u32, step: &mut Step) {
    let min = (kind != Kind::ReadWrite && random.below(100) < 35)
        .then(|| pick(random, &[30, LEASE / 3, LEASE, 2 * LEASE]));
    let max = (random.below(100) < 35).then(|| pick(random, &[LEASE / 6, LEASE / 3, LEASE, 2 * LEASE]));
    let travels = step.manner != Manner::Run && !step.shared && random.below(100) < 35;
    step.hold = match random.below(3) {
        0 => random.below(40),
        1 => random.below(max.or(min).unwrap_or(LEASE)),
        _ => random.below(3 * LEASE),
    };
    // An owner has the earliest maximum of all its holds, and the minimum of an inner hold does not travel either.
    step.again &= max.is_none() && !travels;
    let journey = travels.then(|| Journey::drawn(random, kind, processes));
    step.limits = Limits { min, max, is_wedged: random.below(2) == 0, journey };
}

impl Journey {
    fn drawn(random: &mut Random, kind: Kind, processes: u32) -> Self {
        let couriers = 1 + random.below(5) / 4;
        let give_up = (random.below(10) == 0).then(|| GiveUp::Polls(usize_below(random, 6)));
        Self { give_up, couriers: (0..couriers).map(|_| Courier::drawn(random, kind, processes)).collect() }
    }
}

impl Courier {
    fn drawn(random: &mut Random, kind: Kind, processes: u32) -> Self {
        let (soon, late) = (random.below(40), random.below(2 * LEASE));
        let (short, long) = (random.below(40), random.below(2 * LEASE));
        let hold = pick(random, &[short, long]);
        let step = Step { shared: false, again: false, hold, ..Step::drawn(random, kind) };
        Self {
            to: 1 + u32_below(random, processes),
            delay: pick(random, &[0, soon, soon, late]),
            releases: random.below(10) == 0,
            give_up: (random.below(10) == 0).then(|| GiveUp::Polls(usize_below(random, 6))),
            step,
        }
    }
}

impl Limits {
    /// Returns the limits for the checkers, if there are any.
    pub(super) fn recorded(&self) -> Option<What> {
        let time = |time: Option<u64>| time.map(|time| time * MILLISECOND);
        let has_any = self.min.is_some() || self.max.is_some();
        has_any.then(|| What::Limits { min: time(self.min), max: time(self.max) })
    }
}

impl Op<'_> {
    /// Turns the guard into a ticket, and sends its text to each process that is alive.
    pub(super) async fn send(&self, held: Held, journey: &Journey) {
        let owner = self.owner_of(&held);
        let mut letters = Vec::new();
        for courier in &journey.couriers {
            let Some(taker) = self.process.peer(courier.to) else { continue };
            let (give, got) = oneshot::channel();
            letters.push(give);
            let (task, lock, owner) = (COURIERS + self.task, self.lock.to_owned(), owner.clone());
            let (to, courier) = (Rc::clone(&taker), courier.clone());
            let adopts = async move {
                if let Ok(ticket) = got.await {
                    courier.arrives(&to, task, &lock, owner, ticket).await;
                }
            };
            taker.tasks.borrow_mut().push(spawn_local(taker.gate.behind(adopts)));
        }
        self.record(What::Releasing);
        match outcome_unless(journey.give_up, held.into_ticket()).await {
            Some(Ok(ticket)) => {
                self.record(What::Sent);
                for letter in letters {
                    // The process may have died.
                    let _is_read = letter.send(ticket.to_string());
                }
            }
            Some(Err(error)) => self.released(Err(error)),
            None => self.record(What::Dropped),
        }
    }
}

impl Courier {
    async fn arrives(&self, to: &Process, task: u32, lock: &str, owner: String, ticket: String) {
        sleep(Duration::from_millis(self.delay)).await;
        if to.is_shut.get() {
            return;
        }
        let ticket: Ticket = ticket.parse().expect("a ticket survives its text");
        let op = to.begin(task, lock, to.wanted(lock, &self.step), false);
        op.record(What::Invoked {
            kind: Asked::Adopt,
            renewed: true,
            lease: LEASE * MILLISECOND,
            deadline: None,
            owner: String::new(),
            shared: false,
        });
        op.record(What::Adopts { owner });
        if self.releases {
            return op.record(match to.locks.release_ticket(&ticket).await {
                // The history does not show the hold in between.
                Ok(true) => What::Cancelled,
                Ok(false) => What::NotGranted,
                Err(error) => What::Failed { outcome: told::outcome(&error), text: error.to_string() },
            });
        }
        match outcome_unless(self.give_up, adopt(&to.locks, &ticket)).await {
            Some(Ok(held)) => {
                op.granted(op.owner_of(&held), to.time(held.valid_until()), held.token());
                op.hold_watched(&held, &self.step).await;
                op.give_back(held, self.step.give_back).await;
            }
            Some(Err(Error::TicketEnded { .. })) => op.record(What::NotGranted),
            Some(Err(error)) => op.failed(&error),
            None => op.record(What::Cancelled),
        }
    }
}

async fn adopt(locks: &LockManager, ticket: &Ticket) -> Result<Held, Error> {
    Ok(if ticket.kind() == "fenced_lock" {
        Held::Fenced(locks.adopt_fenced(ticket).await?)
    } else {
        Held::Plain(locks.adopt(ticket).await?)
    })
}

const MILLISECOND: u64 = 1_000_000;
/// The offset of the numbers of tasks that adopt tickets.
const COURIERS: u32 = 100;
