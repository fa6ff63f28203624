//! Model tests of an owner that takes a lock several times.
//!
//! A release of one share must leave the right lease. Each share of a reader has a lease of its own on the server. All shares of
//! a plain lock have a common lease.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::RngSeed;

use super::*;
use crate::kind::Kind;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The owner requests one more share, with a lease in milliseconds, which the watchdog keeps if the flag is true. If a
    /// request is under way, another task of the owner waits for its reply.
    Ask(u64, bool),
    /// The server grants the request, and the reply arrives.
    Granted,
    ReleaseOldest,
    ReleaseLatest,
    ExtendByHand,
    /// Time passes, and the watchdog does its due work.
    Pass,
    /// The server forgets the lock.
    Forget,
}

const STEPS: [Step; 9] = [
    Step::Ask(300, false),
    Step::Ask(2000, false),
    Step::Ask(600, true),
    Step::Granted,
    Step::ReleaseOldest,
    Step::ReleaseLatest,
    Step::ExtendByHand,
    Step::Pass,
    Step::Forget,
];

struct Owner {
    world: World,
    /// True if each share has a lease of its own.
    has_many: bool,
    asked: Option<(HoldIndex, Terms, u32)>,
    guards: VecDeque<(HoldIndex, Share)>,
    /// Holds that the server no longer knows.
    forgotten: Vec<HoldIndex>,
    /// Holds of guards that were told of a loss.
    lost: Vec<HoldIndex>,
    waits: bool,
    task: Arc<Task>,
    /// End of the lease of each share that the server counts.
    server: Vec<BootInstant>,
}

impl Owner {
    fn new(kind: &'static Kind) -> Self {
        let world = World { name: Arc::new(Name::new("n", kind, false)), ..World::new() };
        let has_many = kind.has_a_lease_each();
        Self {
            world,
            has_many,
            asked: None,
            guards: VecDeque::new(),
            forgotten: Vec::new(),
            lost: Vec::new(),
            waits: false,
            task: Arc::default(),
            server: Vec::new(),
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Ask(millis, renew) => self.ask(Lease::new(Duration::from_millis(millis)).unwrap(), renew),
            Step::Granted => self.granted(),
            Step::ReleaseOldest => {
                let guard = self.guards.pop_front();
                self.release(guard);
            }
            Step::ReleaseLatest => {
                let guard = self.guards.pop_back();
                self.release(guard);
            }
            Step::ExtendByHand => {
                let (Some((hold, _)), until) = (self.guards.front(), self.world.now + WAIT) else { return };
                let wish = self.world.holds.wish(*hold, Want::Renew, (self.world.now, until), Waker::noop());
                if let Some((_, Some(renewal))) = wish {
                    self.answer(renewal);
                }
            }
            Step::Pass => {
                self.world.now = self.world.now + Duration::from_millis(180);
                let (renewals, requests) = self.world.due_and_requests();
                renewals.into_iter().for_each(|renewal| self.answer(renewal));
                requests.into_iter().for_each(|request| self.tell(Some(request)));
            }
            Step::Forget => {
                self.server.clear();
                self.forgotten = self.guards.iter().map(|(hold, _)| *hold).collect();
            }
        }
    }

    fn follow(&mut self, path: &[Step]) {
        // The first two steps give the owner a guard, because the other steps need one.
        for step in [STEPS[0], Step::Granted].iter().chain(path) {
            self.step(*step);
            self.check(path);
        }
    }

    fn ask(&mut self, lease: Lease, renew: bool) {
        let World { holds, name, now, .. } = &mut self.world;
        let began = holds.begin_attempt((name, 1), true, (lease, 1), *now, &self.task.waker());
        if self.asked.is_some() {
            assert!(began.is_pending(), "one would overtake the other");
            self.waits = true;
        } else if let Poll::Ready(Some((hold, count))) = began {
            self.asked = Some((
                hold,
                Terms { lease, share: Share { renew, ..GUARD }, sent: *now, connection: None },
                count,
            ));
        }
    }

    fn granted(&mut self) {
        let Some((hold, terms, count)) = self.asked.take() else { return };
        let reply = if self.lock_ends() > terms.sent { GrantReply::Again } else { GrantReply::Fresh };
        let before = self.lock_ends();
        // The server counts no share of a lock that is gone.
        let others = if reply == GrantReply::Again { count as usize - 1 } else { 0 };
        self.server.resize(others, self.world.start);
        self.server.push(terms.sent + terms.lease.duration());
        if !self.has_many {
            let end = before.max(self.lock_ends());
            self.server.fill(end);
        }
        let (now, mut effects) = (self.world.now, Effects::default());
        let granted = self.world.holds.granted(hold, terms, reply, now, &mut effects);
        effects.wake_all();
        match granted {
            Some(Granted::Held(hold, request)) => {
                self.guards.push_back((hold, terms.share));
                self.tell(request);
            }
            Some(Granted::TooLate(request) | Granted::ShutDown(request)) => self.tell(Some(request)),
            None => {}
        }
    }

    fn release(&mut self, guard: Option<(HoldIndex, Share)>) {
        let Some((hold, share)) = guard else { return };
        let request = self.world.holds.release(hold, share, self.world.now);
        self.tell(request);
    }

    fn tell(&mut self, mut request: Option<Reconcile>) {
        while let Some(Reconcile { hold, count, .. }) = request {
            let known = self.lock_ends() > self.world.now;
            self.server.truncate(count as usize);
            let mut effects = Effects::default();
            request = self.world.holds.reconciled(hold, known, 0, self.world.now, &mut effects);
            effects.wake_all();
        }
    }

    fn answer(&mut self, renewal: Renewal) {
        let (now, ends) = (self.world.now, self.lock_ends());
        let left = ends.saturating_duration_since(now);
        let word = match (left.is_zero(), renewal.extend) {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => i64::try_from(left.as_millis().max(2)).unwrap(),
        };
        if word == 1 {
            self.server.fill(now + renewal.lease.duration());
        }
        let script = self.world.holds.begin_renewal(vec![renewal], None, now);
        self.world.answer(script, &[word]);
    }

    fn lock_ends(&self) -> BootInstant {
        self.server.iter().max().copied().unwrap_or(self.world.start)
    }

    /// Checks that the server confirms the owner's belief, and that lost holds stay lost.
    fn check(&mut self, path: &[Step]) {
        let is_held = |hold: HoldIndex| self.world.holds.get(hold).unwrap().state == State::Held;
        self.forgotten.retain(|hold| self.guards.iter().any(|(known, _)| known == hold));
        let is_known = |hold| !self.forgotten.contains(&hold) && is_held(hold);
        let believed: Vec<_> = self.guards.iter().filter(|(hold, _)| is_known(*hold)).collect();
        assert!(believed.len() <= self.server.len(), "{path:?}");
        for (index, _) in believed {
            let hold = self.world.holds.get(*index).unwrap();
            if self.world.now < hold.valid_until {
                assert!(hold.valid_until <= self.lock_ends(), "{path:?}");
            }
        }
        if self.asked.is_none() && std::mem::take(&mut self.waits) {
            assert!(self.task.woken() > 0, "{path:?}");
        }
        let revived = self.guards.iter().filter(|(hold, _)| self.lost.contains(hold) && is_held(*hold));
        assert_eq!(revived.count(), 0, "{path:?}");
        self.lost = self.guards.iter().map(|(hold, _)| *hold).filter(|hold| !is_held(*hold)).collect();
    }
}

#[test]
fn owner_never_trusts_expired_lease() {
    const LENGTH: u32 = 6;
    for (number, kind) in
        (0..STEPS.len().pow(LENGTH)).flat_map(|number| [(number, &*kind::READ), (number, &kind::REENTRANT)])
    {
        let path: Vec<_> =
            (0..LENGTH).map(|place| STEPS[number / STEPS.len().pow(place) % STEPS.len()]).collect();
        Owner::new(kind).follow(&path);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

    /// Longer paths than all paths can be. The paths are the same each time.
    #[test]
    fn long_paths_trust_no_expired_lease(path in vec(select(&STEPS[..]), 1..40), has_many: bool) {
        Owner::new(if has_many { &kind::READ } else { &kind::REENTRANT }).follow(&path);
    }
}
