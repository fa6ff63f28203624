//! An owner who takes a lock several times, and what is left when it gives some of it back: each hold of a reader has a lease of its own
//! on the server, and all holds of a plain lock have one.

use super::*;
use crate::kind::Kind;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// It asks for one more, with a lease of so many milliseconds, which the watchdog keeps or not.
    Ask(u64, bool),
    /// The server grants that, and the answer arrives.
    Granted,
    ReleaseOldest,
    ReleaseLatest,
    ExtendByHand,
    /// Time passes, and the watchdog does what is due.
    Pass,
}

const STEPS: [Step; 8] = [
    Step::Ask(300, false),
    Step::Ask(2000, false),
    Step::Ask(600, true),
    Step::Granted,
    Step::ReleaseOldest,
    Step::ReleaseLatest,
    Step::ExtendByHand,
    Step::Pass,
];

struct Owner {
    world: World,
    /// Whether each hold has a lease of its own.
    has_many: bool,
    asked: Option<(HoldIndex, Terms, u32)>,
    guards: VecDeque<(HoldIndex, Share)>,
    /// The holds of those that have been told of a loss.
    lost: Vec<HoldIndex>,
    /// When the lease of each hold that the server counts ends.
    server: Vec<BootInstant>,
}

impl Owner {
    fn new(kind: &'static Kind) -> Self {
        let world = World { name: Arc::new(Name::new("n", kind, false)), ..World::new() };
        let has_many = kind.has_a_lease_each();
        Self { world, has_many, asked: None, guards: VecDeque::new(), lost: Vec::new(), server: Vec::new() }
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
                let wish = self.world.holds.wish(*hold, Want::Extension, until, Waker::noop());
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
        }
    }

    fn ask(&mut self, lease: Lease, renew: bool) {
        let World { holds, name, now, .. } = &mut self.world;
        if self.asked.is_some() {
            return;
        }
        let began = holds.begin_attempt((name, 1), true, (lease, 1), *now, Waker::noop());
        if let Poll::Ready(Some((hold, count))) = began {
            self.asked = Some((hold, Terms { lease, share: Share { renew, ..GUARD }, sent: *now }, count));
        }
    }

    fn granted(&mut self) {
        let Some((hold, terms, count)) = self.asked.take() else { return };
        let reply = if self.lock_ends() > terms.sent { GrantReply::Again } else { GrantReply::Fresh };
        let before = self.lock_ends();
        // A lock that is gone has left holds that run no more.
        self.server.resize(count as usize - 1, self.world.start);
        self.server.push(terms.sent + terms.lease.duration());
        if !self.has_many {
            let end = before.max(self.lock_ends());
            self.server.fill(end);
        }
        let now = self.world.now;
        match self.world.holds.granted(hold, terms, reply, now, &mut Effects::default()) {
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
            request = self.world.holds.reconciled(hold, known, 0, self.world.now, &mut Effects::default());
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

    /// What it believes is so on the server, and what was lost stays lost.
    fn check(&mut self, path: &[Step]) {
        let is_held = |hold: HoldIndex| self.world.holds.get(hold).unwrap().state == State::Held;
        let believed: Vec<_> = self.guards.iter().filter(|(hold, _)| is_held(*hold)).collect();
        assert!(believed.len() <= self.server.len(), "{path:?}");
        for (index, _) in believed {
            let hold = self.world.holds.get(*index).unwrap();
            if self.world.now < hold.valid_until {
                assert!(hold.valid_until <= self.lock_ends(), "{path:?}");
            }
        }
        let revived = self.guards.iter().filter(|(hold, _)| self.lost.contains(hold) && is_held(*hold));
        assert_eq!(revived.count(), 0, "{path:?}");
        self.lost = self.guards.iter().map(|(hold, _)| *hold).filter(|hold| !is_held(*hold)).collect();
    }
}

#[test]
fn no_order_of_events_has_an_owner_believe_in_a_lease_that_is_over() {
    const LENGTH: u32 = 6;
    for (number, kind) in
        (0..STEPS.len().pow(LENGTH)).flat_map(|number| [(number, &*kind::READ), (number, &kind::REENTRANT)])
    {
        let path: Vec<_> =
            (0..LENGTH).map(|place| STEPS[number / STEPS.len().pow(place) % STEPS.len()]).collect();
        let mut owner = Owner::new(kind);
        // Without them nothing that matters begins.
        for step in [STEPS[0], Step::Granted].into_iter().chain(path.iter().copied()) {
            owner.step(step);
            owner.check(&path);
        }
    }
}
