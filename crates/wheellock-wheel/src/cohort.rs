//! Members that are all due once per period.
//!
//! An example is the watchdog renewals of a million leases. Members are grouped by their due tick, visited in dense slices, and never
//! re-armed. This module does not know a clock or the work of a visit; the caller passes ticks in.

use alloc::vec::Vec;
use core::fmt;
use core::num::NonZeroU32;

use crate::occupancy::Occupancy;

/// Proof of membership in one [`Cohorts`], and the only way to end the membership. `Member` is not `Clone`: after a member has left, no
/// copy of it can be visited or removed again.
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
    /// Odd, hence never 0: an `Option<Member>` is as small as a `Member`.
    generation: NonZeroU32,
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Member({}#{})", self.index, self.generation)
    }
}

/// Keys that are each due once per period, counted from their join.
///
/// A visit costs one bitmap search per occupied group and nothing per member: members keep their position until they leave. Join and leave
/// are O(1). A visit is never early. A member that joins while visits are overdue is not visited for an overdue turn.
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
    /// The last visited turn, in units of `width`. Turn `t` belongs to group `t % groups`.
    visited: u64,
    places: Vec<Place>,
    free: u32,
    len: usize,
}

/// The members due at one tick of the period.
struct Group<K> {
    keys: Vec<K>,
    /// For each key, the index of its entry in `places`.
    owners: Vec<u32>,
    /// Number of keys due at the group's next turn. The keys after these joined when that turn was already overdue.
    settled: usize,
}

/// The position of a member.
struct Place {
    /// The member's group, or the next free place if this place is free.
    group: u32,
    position: u32,
    /// Odd while the place is taken.
    generation: u32,
}

impl<K> Cohorts<K> {
    /// Creates cohorts without members; every tick before `now` counts as visited. `period` is in ticks; 0 counts as 1.
    ///
    /// The memory is 56 bytes per tick of the period. A period of more than 65,536 ticks is split into at most 65,536 groups. A visit may
    /// then be early by less than two groups' widths, but it is never late.
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

    /// Adds a member at tick `now`. Its first visit is one period later.
    ///
    /// # Panics
    /// Panics if there are 2<sup>32</sup> - 1 members.
    pub fn join(&mut self, key: K, now: u64) -> Member {
        let now = now / self.width;
        self.forget_missed_periods(now);
        if now > self.visited && self.next_turn().is_none_or(|next| next > now) {
            // No member is due before `now`, so this skips no visit.
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
            // Every key of the group is settled: the overdue turn has passed.
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

    /// Ends a membership and returns the key. Returns `None` if the member belongs to other cohorts.
    #[expect(clippy::needless_pass_by_value, reason = "leaving uses the membership up")]
    pub fn leave(&mut self, member: Member) -> Option<K> {
        let (group, position) = self.place(&member)?;
        let members = &mut self.groups[group];
        let mut hole = position;
        if hole < members.settled {
            // Settled keys come first. The last settled key fills the hole, and the hole moves to the border.
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
        // A place without unused generations is retired: an old member would match it again.
        if place.generation != 0 {
            place.group = self.free;
            self.free = member.index;
        }
        self.len -= 1;
        key
    }

    /// Passes every group due by tick `now` to `sink`, in order, with the tick at which the group was due. Each group is visited at most
    /// once: visits missed during a pause are not repeated. Members keep their position in the period.
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

    /// Returns the earliest tick at which [`visit`](Self::visit) may have work. Returns `None` without members.
    #[must_use]
    pub fn next_visit(&self) -> Option<u64> {
        self.next_turn().map(|turn| turn.saturating_mul(self.width))
    }

    /// Returns the key of a member, or `None` if the member belongs to other cohorts.
    #[must_use]
    pub fn get(&self, member: &Member) -> Option<&K> {
        let (group, position) = self.place(member)?;
        self.groups[group].keys.get(position)
    }

    /// Returns the key of a member for modification in place, or `None` if the member belongs to other cohorts.
    #[must_use]
    pub fn get_mut(&mut self, member: &Member) -> Option<&mut K> {
        let (group, position) = self.place(member)?;
        self.groups[group].keys.get_mut(position)
    }

    /// Returns the number of members.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there are no members.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of ticks between two visits of a member.
    #[must_use]
    pub fn period(&self) -> u64 {
        self.groups.len() as u64 * self.width
    }

    /// Skips turns after a pause of more than one period: only the last turn of each group remains to be visited.
    fn forget_missed_periods(&mut self, now: u64) {
        let before = self.visited;
        let period = self.groups.len() as u64;
        if now.saturating_sub(before) <= period {
            return;
        }
        self.visited = now - period;
        for turn in before + 1..=self.visited.min(before + period) {
            // Late members had to sit out an overdue turn. That turn is among the skipped turns, so these members are settled now.
            let group = self.group_of(turn) as usize;
            self.groups[group].settled = self.groups[group].keys.len();
        }
    }

    /// Returns the first turn with members after the visited turns.
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
            // The stored generation is even while the place is free.
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

/// Maximum number of groups: one second of 10 us ticks, or eleven minutes of 10 ms ticks.
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
    fn member_is_visited_every_period() {
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
    fn member_of_other_cohorts_is_unknown() {
        let (mut ours, mut theirs) = (Cohorts::new(10, 0), Cohorts::new(10, 0));
        let first = theirs.join(1, 0);
        assert_eq!(theirs.leave(first), Some(1));
        let second = theirs.join(2, 0);
        ours.join(3, 0);
        assert_eq!(ours.get(&second), None);
        assert_eq!(ours.leave(second), None);
    }

    #[test]
    fn long_period_is_never_late() {
        let mut cohorts = Cohorts::new(1_000_003, 0);
        cohorts.join((), 17);
        let first = cohorts.next_visit().unwrap_or(0);
        assert!(first <= 1_000_020 && first > 1_000_020 - 2 * 16 - 16, "{first}");
        assert!(cohorts.period() <= 1_000_003);
    }

    #[test]
    fn member_is_visited_once_after_pause() {
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

    /// Compares with a map from each member to its next due tick, with joins and leaves between late and early visits.
    #[test]
    fn cohorts_match_map_of_due_ticks() {
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
                // A member that is overdue by several periods counts as due at its latest turn.
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
