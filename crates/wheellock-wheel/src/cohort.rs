//! Members that all have one period, such as the watchdogs of a million leases: grouped by the tick they are due, visited in
//! dense slices, and never armed again.
//!
//! Owns who is due when. Knows no clock and nothing of what a visit does; ticks are passed in.

use alloc::vec::Vec;
use core::fmt;
use core::num::NonZeroU32;

use crate::occupancy::Occupancy;

/// Proof of membership in one [`Cohorts`], and the only way to end it. It is not `Clone`, so that what has left cannot be
/// visited or removed by anyone again.
///
/// ```
/// use wheellock_wheel::{Cohorts, Member};
///
/// struct Lease {
///     member: Member,
/// }
///
/// let mut leases = Cohorts::new(1_000, 0);
/// let lease = Lease { member: leases.join("orders", 7) };
/// assert_eq!(leases.leave(lease.member), Some("orders")); // it is gone, so nobody can do that twice
/// ```
#[derive(PartialEq, Eq, Hash)]
pub struct Member {
    index: u32,
    /// Odd, and so never 0: an `Option` of a member takes no more room than a member.
    generation: NonZeroU32,
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Member({}#{})", self.index, self.generation)
    }
}

/// Keys that are each due once per period, counted from when they joined.
///
/// A visit costs one bitmap search per occupied group and nothing per member: members stay where they are until they leave.
/// Join and leave are O(1). A visit is never early, and a member that joins while visits are overdue is not taken for one
/// of those.
///
/// ```
/// use wheellock_wheel::Cohorts;
///
/// let mut leases = Cohorts::new(1_000, 0); // ticks of 10 ms: every 10 s
/// let orders = leases.join("orders", 7);
/// let stock = leases.join("stock", 7);
/// assert_eq!(leases.next_visit(), Some(1_007));
///
/// let mut due = Vec::new();
/// leases.visit(1_007, |_, group| due.extend_from_slice(group));
/// assert_eq!(due, ["orders", "stock"]);
/// assert_eq!(leases.next_visit(), Some(2_007));
///
/// assert_eq!(leases.leave(orders), Some("orders"));
/// assert_eq!(leases.leave(stock), Some("stock"));
/// assert_eq!(leases.next_visit(), None);
/// ```
pub struct Cohorts<K> {
    groups: Vec<Group<K>>,
    occupied: Occupancy,
    /// Ticks per group.
    width: u64,
    /// The last turn that was visited, in units of `width`: turn `t` is that of group `t % groups`.
    visited: u64,
    places: Vec<Place>,
    free: u32,
    len: usize,
}

/// The members due at one tick of the period.
struct Group<K> {
    keys: Vec<K>,
    /// For each key, its entry in `places`.
    owners: Vec<u32>,
    /// Keys that are due at the group's next turn; those after them joined when that turn was overdue already.
    settled: usize,
}

/// Where a member is.
struct Place {
    /// The next free place, if free.
    group: u32,
    position: u32,
    /// Odd while taken.
    generation: u32,
}

impl<K> Cohorts<K> {
    /// No members yet, with everything before tick `now` visited. `period` is in ticks; 0 counts as 1.
    ///
    /// Memory is 56 bytes per tick of the period. A period of more than 65,536 ticks is split into at most 65,536 groups, and
    /// a visit may then come early by less than two groups' worth, but not late.
    #[must_use]
    pub fn new(period: u64, now: u64) -> Self {
        let period = period.max(1);
        let width = period.div_ceil(MAX_GROUPS);
        let groups = usize::try_from(period / width).unwrap_or(1);
        let empty = || Group { keys: Vec::new(), owners: Vec::new(), settled: 0 };
        Self {
            groups: (0..groups).map(|_| empty()).collect(),
            occupied: Occupancy::new(groups),
            width,
            visited: now / width,
            places: Vec::new(),
            free: NONE,
            len: 0,
        }
    }

    /// Adds a member at tick `now`: its first visit is one period later.
    ///
    /// # Panics
    /// With 2<sup>32</sup> - 1 members.
    pub fn join(&mut self, key: K, now: u64) -> Member {
        let now = now / self.width;
        self.forget_missed_periods(now);
        if now > self.visited && self.next_turn().is_none_or(|next| next > now) {
            // Nobody is due before `now`, so nothing is skipped.
            self.visited = now;
        }
        let group = self.group_of(now);
        let overdue = now > self.visited;
        let (index, generation) = self.take_place();
        let members = &mut self.groups[group as usize];
        let position = index_u32(members.keys.len());
        members.keys.push(key);
        members.owners.push(index);
        if !overdue {
            // Everyone in the group is: the overdue turn has passed.
            members.settled = members.keys.len();
        }
        if position == 0 {
            self.occupied.set(group as usize);
        }
        let place = &mut self.places[index as usize];
        place.group = group;
        place.position = position;
        self.len += 1;
        Member { index, generation }
    }

    /// Ends a membership and gives the key back; `None` if the member belongs to other cohorts.
    #[expect(clippy::needless_pass_by_value, reason = "leaving uses the membership up")]
    pub fn leave(&mut self, member: Member) -> Option<K> {
        let (group, position) = self.place(&member)?;
        let members = &mut self.groups[group];
        let mut hole = position;
        if hole < members.settled {
            // The settled come first, so the last of them fills the hole and leaves one at the border.
            members.settled -= 1;
            members.swap(&mut self.places, hole, members.settled);
            hole = members.settled;
        }
        let last = members.keys.len() - 1;
        members.swap(&mut self.places, hole, last);
        members.owners.pop();
        let key = members.keys.pop();
        if last == 0 {
            self.occupied.clear(group);
        }
        let place = &mut self.places[member.index as usize];
        place.generation = place.generation.wrapping_add(1);
        // A place whose generations are used up is not given out again.
        if place.generation != 0 {
            place.group = self.free;
            self.free = member.index;
        }
        self.len -= 1;
        key
    }

    /// Hands every group that is due by tick `now` to `sink`, with the tick it was due, in order. Each group at most once: what was
    /// missed during a pause is not made up for. Members keep their place in the period.
    pub fn visit(&mut self, now: u64, mut sink: impl FnMut(u64, &[K])) {
        let now = now / self.width;
        self.forget_missed_periods(now);
        while let Some(turn) = self.next_turn().filter(|&turn| turn <= now) {
            self.visited = turn;
            let group = self.group_of(turn) as usize;
            let members = &mut self.groups[group];
            let due = core::mem::replace(&mut members.settled, members.keys.len());
            if due > 0 {
                sink(turn * self.width, &members.keys[..due]);
            }
        }
        self.visited = self.visited.max(now);
    }

    /// The earliest tick at which [`visit`](Self::visit) may have something to do; `None` without members.
    #[must_use]
    pub fn next_visit(&self) -> Option<u64> {
        self.next_turn().map(|turn| turn.saturating_mul(self.width))
    }

    /// The key of a member; `None` if the member belongs to other cohorts.
    #[must_use]
    pub fn get(&self, member: &Member) -> Option<&K> {
        let (group, position) = self.place(member)?;
        self.groups[group].keys.get(position)
    }

    /// The key of a member, to change in place.
    #[must_use]
    pub fn get_mut(&mut self, member: &Member) -> Option<&mut K> {
        let (group, position) = self.place(member)?;
        self.groups[group].keys.get_mut(position)
    }

    /// Members.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True without members.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Ticks between two visits of a member.
    #[must_use]
    pub fn period(&self) -> u64 {
        self.groups.len() as u64 * self.width
    }

    /// After a pause of more than a period, leaves only the last turn of each group to be visited.
    fn forget_missed_periods(&mut self, now: u64) {
        let before = self.visited;
        let period = self.groups.len() as u64;
        if now.saturating_sub(before) <= period {
            return;
        }
        self.visited = now - period;
        for turn in before + 1..=self.visited.min(before + period) {
            // The turn that those who joined late had to sit out is one of the forgotten.
            let group = self.group_of(turn) as usize;
            self.groups[group].settled = self.groups[group].keys.len();
        }
    }

    /// The first turn after the visited ones that has members.
    fn next_turn(&self) -> Option<u64> {
        let first = self.visited.saturating_add(1);
        let from = u64::from(self.group_of(first));
        let groups = self.groups.len() as u64;
        let next = self.occupied.first_from(usize::try_from(from).unwrap_or(0))? as u64;
        Some(first.saturating_add((next + groups - from) % groups))
    }

    #[expect(clippy::cast_possible_truncation, reason = "there are at most 2^16 groups")]
    fn group_of(&self, turn: u64) -> u32 {
        (turn % self.groups.len() as u64) as u32
    }

    fn place(&self, member: &Member) -> Option<(usize, usize)> {
        let place = self.places.get(member.index as usize)?;
        let is_same = place.generation == member.generation.get();
        is_same.then_some((place.group as usize, place.position as usize))
    }

    fn take_place(&mut self) -> (u32, NonZeroU32) {
        let index = self.free;
        if let Some(place) = self.places.get_mut(index as usize) {
            self.free = place.group;
            // It was even.
            let generation = NonZeroU32::MIN | place.generation;
            place.generation = generation.get();
            return (index, generation);
        }
        let index = index_u32(self.places.len());
        assert!(index != NONE, "cohorts hold at most 2^32 - 1 members");
        self.places.push(Place { group: 0, position: 0, generation: 1 });
        (index, NonZeroU32::MIN)
    }
}

impl<K> Group<K> {
    fn swap(&mut self, places: &mut [Place], a: usize, b: usize) {
        if a != b {
            self.keys.swap(a, b);
            self.owners.swap(a, b);
            places[self.owners[a] as usize].position = index_u32(a);
            places[self.owners[b] as usize].position = index_u32(b);
        }
    }
}

impl<K> fmt::Debug for Cohorts<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cohorts")
            .field("period", &self.period())
            .field("len", &self.len)
            .field("next_visit", &self.next_visit())
            .finish()
    }
}

/// A second of 10 us ticks, or eleven minutes of 10 ms.
const MAX_GROUPS: u64 = 1 << 16;
const NONE: u32 = u32::MAX;

fn index_u32(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(NONE)
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_member_is_visited_every_period_from_when_it_joined() {
        let mut cohorts = Cohorts::new(10, 0);
        let early = cohorts.join('a', 0);
        let late = cohorts.join('b', 3);
        let mut seen = Vec::new();
        for now in 0..=33 {
            cohorts.visit(now, |tick, group| seen.extend(group.iter().map(|&key| (now, tick, key))));
        }
        let want = [(10, 'a'), (13, 'b'), (20, 'a'), (23, 'b'), (30, 'a'), (33, 'b')];
        assert_eq!(seen, want.map(|(tick, key)| (tick, tick, key)));
        assert_eq!(cohorts.leave(early), Some('a'));
        assert_eq!(cohorts.next_visit(), Some(43));
        assert_eq!(cohorts.leave(late), Some('b'));
        assert_eq!(cohorts.next_visit(), None);
    }

    #[test]
    fn a_member_of_other_cohorts_is_not_known_by_chance() {
        let (mut ours, mut theirs) = (Cohorts::new(10, 0), Cohorts::new(10, 0));
        let first = theirs.join(1, 0);
        assert_eq!(theirs.leave(first), Some(1));
        let second = theirs.join(2, 0);
        ours.join(3, 0);
        assert_eq!(ours.get(&second), None);
        assert_eq!(ours.leave(second), None);
    }

    #[test]
    fn a_period_too_long_for_its_groups_is_never_late() {
        let mut cohorts = Cohorts::new(1_000_003, 0);
        cohorts.join((), 17);
        let first = cohorts.next_visit().unwrap_or(0);
        assert!(first <= 1_000_020 && first > 1_000_020 - 2 * 16 - 16, "{first}");
        assert!(cohorts.period() <= 1_000_003);
    }

    #[test]
    fn after_a_pause_each_is_visited_once_and_keeps_its_place() {
        let mut cohorts = Cohorts::new(10, 0);
        cohorts.join('a', 2);
        cohorts.join('b', 7);
        let mut seen = Vec::new();
        cohorts.visit(1_005, |tick, group| seen.push((tick, group.to_vec())));
        assert_eq!(seen, [(997, alloc::vec!['b']), (1_002, alloc::vec!['a'])]);
        assert_eq!(cohorts.next_visit(), Some(1_007));
    }

    fn pick(index: u64) -> usize {
        usize::try_from(index).unwrap_or(0)
    }

    /// Against a map from member to the tick it is due next, with joins and leaves between late and early visits.
    #[test]
    fn agrees_with_a_map_of_due_ticks() {
        let mut state = 88_172_645_463_325_252_u64;
        let mut random = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        for period in [1, 2, 7, 64, 100, 1000] {
            let (mut cohorts, mut now, mut next_key) = (Cohorts::new(period, 0), 0, 0);
            let mut due: BTreeMap<u64, u64> = BTreeMap::new();
            let mut members: Vec<(u64, Member)> = Vec::new();
            for _ in 0..60_000 {
                match random(8) {
                    0..=2 => {
                        members.push((next_key, cohorts.join(next_key, now)));
                        due.insert(next_key, now + period);
                        next_key += 1;
                    }
                    3..=4 if !members.is_empty() => {
                        let (key, member) = members.swap_remove(pick(random(members.len() as u64)));
                        assert_eq!(cohorts.get(&member), Some(&key));
                        assert_eq!(cohorts.leave(member), Some(key));
                        due.remove(&key);
                    }
                    5 => now += random(period / 3 + 2),
                    6 => now += random(3 * period),
                    _ => {
                        let mut last = 0;
                        cohorts.visit(now, |tick, group| {
                            assert!(last <= tick && tick <= now);
                            last = tick;
                            for key in group {
                                let expected = due[key];
                                assert!(expected <= tick, "{key} is due at {expected}, visited for {tick}");
                                assert_eq!((tick - expected) % period, 0);
                                due.insert(*key, tick + period);
                            }
                        });
                        assert!(due.values().all(|&tick| tick > now), "someone was left out");
                    }
                }
                assert_eq!(cohorts.len(), due.len());
                let earliest = due.values().min().copied();
                assert_eq!(cohorts.next_visit().is_some(), earliest.is_some());
                // What is overdue by periods counts as due at its latest turn.
                assert!(cohorts.next_visit() <= earliest.map(|tick| tick.max(now)));
                if members.len() > 300 {
                    for (key, member) in members.drain(..) {
                        assert_eq!(cohorts.leave(member), Some(key));
                        due.remove(&key);
                    }
                }
            }
        }
    }
}
