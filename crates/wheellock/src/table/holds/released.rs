//! Releases that were confirmed lately, for a primary confirms them before its replicas have heard: one that takes over may
//! know the holder still, and then the lock is neither renewed nor freed. They are sent again when another server
//! answers. Pure: remembers and chooses, and sends nothing.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::concerns::Concerns;
use crate::base::clock::BootInstant;
use crate::wait::name::Name;

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
mod tests;
