//! Recently confirmed releases, kept to repeat them after a failover. Pure.
//!
//! A primary confirms a release before its replicas know of it. A replica that takes over may still know the holder, and would
//! neither renew nor free the lock. The releases are therefore sent again when another server replies. This module selects them,
//! and does not send them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use wheellock_client::Change;

use crate::base::clock::BootInstant;
use crate::wait::name::Name;

/// Recent releases, bounded in time, in number, and in the bytes of the names that they keep alive.
#[derive(Default)]
pub(super) struct RecentReleases {
    /// One ring per server that confirmed releases. A dead server confirms no more releases. Its last releases stay until another
    /// server replies, however busy the other servers of a cluster are meanwhile.
    rings: Vec<Ring>,
    /// Releases that were remembered when a change came, and are not checked yet.
    suspects: Vec<Ring>,
    /// The locks that the changes concern for which suspects are checked.
    concerns: Option<Change>,
    /// Total number of releases.
    count: usize,
    name_bytes: usize,
    /// Number of repeated releases without a reply yet.
    under_way: usize,
    /// True if an event that drops old releases is scheduled.
    pub(super) will_forget: bool,
}

/// The releases that a single server confirmed, oldest first.
struct Ring {
    node: u32,
    releases: VecDeque<Release>,
}

/// A hold that was released.
pub(super) struct Release {
    pub(super) name: Arc<Name>,
    pub(super) owner: u64,
    at: BootInstant,
}

impl RecentReleases {
    /// Remembers a release that the server with the number `node` confirmed.
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
            // The longest ring loses its oldest release, so a busy server does not displace a quiet server's releases.
            let longest = self.rings.iter_mut().chain(&mut self.suspects).map(|ring| &mut ring.releases);
            let Some(longest) = longest.max_by_key(|ring| ring.len()) else { return };
            take_oldest(longest, &mut self.count, &mut self.name_bytes);
        }
    }

    /// Moves all remembered releases to the suspects, because other servers may reply now.
    pub(super) fn suspect(&mut self, change: Change) {
        self.concerns = Some(change.joined(self.concerns.take()));
        self.suspects.append(&mut self.rings);
    }

    /// Returns true if there are suspects to check, and room to send them again.
    pub(super) fn may_repeat(&self) -> bool {
        !self.suspects.is_empty() && self.under_way < UNDER_WAY
    }

    /// Returns the next release to send again. Checks at most `looks` suspects, and subtracts them from `looks`. The release is
    /// under way from now on, until it has [`ended`](Self::ended).
    pub(super) fn next(&mut self, looks: &mut usize) -> Option<Release> {
        while *looks > 0 && self.may_repeat() {
            *looks -= 1;
            let Ring { node, releases } = self.suspects.last_mut()?;
            let Some(release) = releases.pop_front() else {
                self.suspects.pop();
                continue;
            };
            if self.concerns.as_ref().is_some_and(|change| change.concerns(release.name.key().as_bytes())) {
                self.count -= 1;
                self.name_bytes -= release.name.key().len();
                self.under_way += 1;
                return Some(release);
            }
            // The changes do not concern this release, so it stays remembered.
            ring_of(&mut self.rings, *node)?.push_back(release);
        }
        if self.suspects.is_empty() {
            self.concerns = None;
        }
        None
    }

    /// Ends a repeated release, which has a reply, was given up, or was not sent after all.
    pub(super) fn ended(&mut self) {
        self.under_way -= 1;
    }

    /// Drops old releases and frees their room. Returns the instant at which the next release becomes old.
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

/// Returns the ring of a server, and adds it if needed. Never `None`.
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

/// Lag of a replica that takes over which this process tolerates. Releases from this span before the primary's last confirmed
/// release are remembered.
///
/// It is much longer than the lag of healthy replicas. It is also short enough to repeat. The new primary spends only a part of
/// the work on it that the old primary spent in that time.
const LATELY: Duration = Duration::from_secs(5);
/// Longest time for which a release is remembered. A failover takes half a minute with Sentinel's defaults, and most leases have
/// ended by then.
pub(super) const KEPT: Duration = Duration::from_secs(60);
/// Largest number of remembered releases, which is 1.5 MiB. That covers half a second at a hundred thousand releases a second,
/// and all of [`LATELY`] up to 13 000 a second.
const MOST: usize = (1 << 16) - 1;
/// Largest total length of the remembered names, which live as long as they are remembered here.
const MOST_NAME_BYTES: usize = 4 << 20;
/// Largest number of repeated releases under way. More would delay other requests. A server executes this number in a millisecond
/// or two.
const UNDER_WAY: usize = 256;

#[cfg(test)]
mod tests;
