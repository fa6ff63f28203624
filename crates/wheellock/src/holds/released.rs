//! Releases that were confirmed lately, for a primary confirms them before its replicas have heard: one that takes over may
//! know the holder still, and then the lock is neither renewed nor freed. They are sent again when another server
//! answers. Pure: remembers and chooses, and sends nothing.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::concerns::Concerns;
use crate::clock::BootInstant;
use crate::name::Name;

/// What was released lately, bounded in time, in number, and in the bytes of the names that it keeps alive.
#[derive(Default)]
pub(super) struct Released {
    /// One for each server that has confirmed some. A dead server confirms nothing, so what it confirmed last stays until
    /// another one answers, however busy the others of a cluster are meanwhile.
    rings: Vec<Ring>,
    /// What was remembered when a change came, and has not been looked at.
    suspects: Vec<Ring>,
    /// Whom the changes concern for which suspects are looked at.
    concerns: Concerns,
    /// How many there are in all.
    count: usize,
    name_bytes: usize,
    /// Sent again, and not answered yet.
    under_way: usize,
    /// An event is planned at which old ones are forgotten.
    pub(super) will_forget: bool,
}

/// What one server has confirmed, oldest first.
struct Ring {
    node: u32,
    releases: VecDeque<Release>,
}

/// A hold that was given back.
pub(super) struct Release {
    pub(super) name: Arc<Name>,
    pub(super) owner: u64,
    at: BootInstant,
}

impl Released {
    /// The server with the number `node` has confirmed a release.
    pub(super) fn remember(&mut self, node: u32, name: &Arc<Name>, owner: u64, now: BootInstant) {
        let release = Release { name: Arc::clone(name), owner, at: now };
        let Some(ring) = ring_of(&mut self.rings, node) else { return };
        while ring.front().is_some_and(|oldest| now.saturating_duration_since(oldest.at) > LATELY) {
            take_oldest(ring, &mut self.count, &mut self.name_bytes);
        }
        self.count += 1;
        self.name_bytes += name.key().len();
        ring.push_back(release);
        while self.count > MOST || self.name_bytes > MOST_NAME_BYTES {
            let longest = self.rings.iter_mut().chain(&mut self.suspects).map(|ring| &mut ring.releases);
            let Some(longest) = longest.max_by_key(|ring| ring.len()) else { return };
            take_oldest(longest, &mut self.count, &mut self.name_bytes);
        }
    }

    /// Other servers than before may answer: everything that is remembered is to be looked at.
    pub(super) fn suspect(&mut self, concerns: Concerns) {
        self.concerns.join(concerns);
        self.suspects.append(&mut self.rings);
    }

    /// Whether there is something to look at, and room for sending it again.
    pub(super) fn may_repeat(&self) -> bool {
        !self.suspects.is_empty() && self.under_way < UNDER_WAY
    }

    /// The next release to send again, after as many looks as are left. It is under way from now on until it has
    /// [`ended`](Self::ended).
    pub(super) fn next(&mut self, looks: &mut usize) -> Option<Release> {
        while *looks > 0 && self.may_repeat() {
            *looks -= 1;
            let Ring { node, releases } = self.suspects.last_mut()?;
            let Some(release) = releases.pop_front() else {
                self.suspects.pop();
                continue;
            };
            if self.concerns.contains(release.name.key()) {
                self.count -= 1;
                self.name_bytes -= release.name.key().len();
                self.under_way += 1;
                return Some(release);
            }
            ring_of(&mut self.rings, *node)?.push_back(release);
        }
        if self.suspects.is_empty() {
            self.concerns = Concerns::default();
        }
        None
    }

    /// A release that was to be sent again is answered, given up, or was not sent after all.
    pub(super) fn ended(&mut self) {
        self.under_way -= 1;
    }

    /// Forgets what is old, and the room that it took. Returns when there will be something to forget again.
    pub(super) fn forget(&mut self, now: BootInstant) -> Option<BootInstant> {
        let mut next = None;
        for Ring { releases, .. } in self.rings.iter_mut().chain(&mut self.suspects) {
            while releases.front().is_some_and(|oldest| now >= oldest.at + KEPT) {
                take_oldest(releases, &mut self.count, &mut self.name_bytes);
            }
            releases.shrink_to(2 * releases.len());
            next = releases.front().map(|oldest| oldest.at + KEPT).into_iter().chain(next).min();
        }
        self.rings.retain(|ring| !ring.releases.is_empty());
        next
    }
}

/// Always there; a server that has none yet gets one.
fn ring_of(rings: &mut Vec<Ring>, node: u32) -> Option<&mut VecDeque<Release>> {
    if !rings.iter().any(|ring| ring.node == node) {
        rings.push(Ring { node, releases: VecDeque::new() });
    }
    rings.iter_mut().find(|ring| ring.node == node).map(|ring| &mut ring.releases)
}

fn take_oldest(ring: &mut VecDeque<Release>, count: &mut usize, name_bytes: &mut usize) {
    if let Some(release) = ring.pop_front() {
        *count -= 1;
        *name_bytes -= release.name.key().len();
    }
}

/// How far behind a replica may be that takes over: the releases of so long before the last one that its primary confirmed
/// are remembered. Much longer than replicas that are in order lag, and short enough that repeating all of it costs the new
/// primary no more than a part of what the old one did in that time.
const LATELY: Duration = Duration::from_secs(5);
/// For how long at most: a failover takes half a minute with Sentinel's defaults, and by then most leases have ended.
pub(super) const KEPT: Duration = Duration::from_secs(60);
/// 1.5 MiB of these, which is half a second of a hundred thousand releases a second and all of [`LATELY`] up to 13 000 a
/// second.
const MOST: usize = (1 << 16) - 1;
/// Names live as long as they are remembered here.
const MOST_NAME_BYTES: usize = 4 << 20;
/// Not everything is sent at once, or whatever else is to be sent would stand behind it: a server runs so many in a
/// millisecond or two.
const UNDER_WAY: usize = 256;

#[cfg(test)]
mod tests {
    use wheellock_client::Change;

    use super::*;
    use crate::kind;

    fn name(key: &str) -> Arc<Name> {
        Arc::new(Name::new(key, &kind::REENTRANT, false))
    }

    fn everybody() -> Concerns {
        let mut concerns = Concerns::default();
        concerns.add(Change::everywhere());
        concerns
    }

    /// The owners of all that is to be sent again; each ends at once.
    fn repeated(released: &mut Released) -> Vec<u64> {
        let mut owners = Vec::new();
        while let Some(release) = released.next(&mut usize::MAX.clone()) {
            owners.push(release.owner);
            released.ended();
        }
        owners.sort_unstable();
        owners
    }

    /// B2: what is remembered of releases is bounded in time, each server's by its own last one.
    #[test]
    fn a_server_is_trusted_to_have_passed_on_what_it_confirmed_long_before_its_last() {
        let (mut released, start, name) = (Released::default(), BootInstant::now(), name("n"));
        for second in 0..=20 {
            released.remember(0, &name, second, start + Duration::from_secs(second));
            if second == 7 {
                // The last word of this server.
                released.remember(1, &name, 107, start + Duration::from_secs(second));
            }
        }
        released.suspect(everybody());
        assert_eq!(repeated(&mut released), [15, 16, 17, 18, 19, 20, 107]);
        assert!(released.rings.is_empty() && released.count == 0 && released.name_bytes == 0);
        released.suspect(everybody());
        assert_eq!(repeated(&mut released), [0; 0], "each is sent again once");
    }

    /// B2: what is remembered of releases is bounded in number, whoever confirmed them, and the latest are kept.
    #[test]
    fn of_too_many_the_oldest_are_forgotten() {
        let (mut released, start, name) = (Released::default(), BootInstant::now(), name("n"));
        let many = 3 * MOST as u64;
        for owner in 0..many {
            released.remember((owner % 2) as u32, &name, owner, start + Duration::from_nanos(owner));
            assert!(released.count <= MOST);
        }
        let room: usize = released.rings.iter().map(|ring| ring.releases.capacity()).sum();
        assert!(room * size_of::<Release>() <= 3 << 20, "{room} places");
        released.suspect(everybody());
        let owners = repeated(&mut released);
        assert_eq!((owners.len(), owners.last()), (MOST, Some(&(many - 1))));
        assert!(owners[0] >= many - MOST as u64 - 2, "{}", owners[0]);
    }

    /// B2: long names count for more.
    #[test]
    fn names_are_kept_alive_up_to_so_many_bytes() {
        let (mut released, now) = (Released::default(), BootInstant::now());
        let names: Vec<_> = (0..2000).map(|number| name(&format!("{number:4096}"))).collect();
        for (owner, name) in (0..).zip(&names) {
            released.remember(0, name, owner, now);
        }
        let alive = names.iter().filter(|name| Arc::strong_count(name) > 1).count();
        assert_eq!(alive, MOST_NAME_BYTES / 4096);
        assert_eq!(released.name_bytes, alive * 4096);
    }

    /// B2: an idle process keeps nothing of what it once released.
    #[test]
    fn what_is_old_is_forgotten_with_the_room_that_it_took() {
        let (mut released, start) = (Released::default(), BootInstant::now());
        let (one, other) = (name("one"), name("other"));
        (0..1000).for_each(|owner| released.remember(0, &one, owner, start));
        released.remember(1, &other, 1, start + KEPT / 2);
        assert_eq!(released.forget(start + KEPT / 2), Some(start + KEPT));
        assert_eq!(released.forget(start + KEPT), Some(start + KEPT / 2 + KEPT));
        assert_eq!((Arc::strong_count(&one), Arc::strong_count(&other)), (1, 2));
        released.suspect(everybody());
        assert_eq!(released.forget(start + 2 * KEPT), None);
        assert_eq!((released.count, released.name_bytes, Arc::strong_count(&other)), (0, 0, 1));
        assert_eq!(repeated(&mut released), [0; 0]);
    }

    /// B2: after a failover a new primary is asked for so many releases at once, and no more.
    #[test]
    fn no_more_are_under_way_than_a_server_does_in_a_moment() {
        let (mut released, now, name) = (Released::default(), BootInstant::now(), name("n"));
        (0..2000).for_each(|owner| released.remember(0, &name, owner, now));
        released.suspect(everybody());
        let mut looks = 1000;
        let first: Vec<_> = std::iter::from_fn(|| released.next(&mut looks)).collect();
        assert_eq!((first.len(), looks), (UNDER_WAY, 1000 - UNDER_WAY));
        assert!(!released.may_repeat() && released.next(&mut looks).is_none());
        (0..10).for_each(|_| released.ended());
        // Those who come meanwhile are not suspected.
        released.remember(0, &name, 5000, now);
        assert_eq!(std::iter::from_fn(|| released.next(&mut looks)).count(), 10);
        (0..UNDER_WAY).for_each(|_| released.ended());
        assert_eq!(repeated(&mut released).len(), 2000 - UNDER_WAY - 10);
        assert_eq!(released.count, 1);
    }
}
