//! Recently confirmed releases, kept to repeat them after a failover. Pure.
//!
//! A primary confirms a release before its replicas know of it. A replica that takes over may still know the holder, and would
//! neither renew nor free the lock. The releases are therefore sent again when another server replies. This module selects them,
//! and does not send them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use wheellock_client::Change;

use crate::base::clock::BootInstant;
use crate::wait::name::Name;

/// Recent releases, bounded in time, in number, and in the bytes of the names that they keep alive.
#[derive(Default)]
pub(super) struct RecentReleases {
    /// Oldest first.
    releases: VecDeque<Release>,
    /// Releases that were remembered when a change came, and are not checked yet. Oldest first.
    pending: VecDeque<Release>,
    /// The locks that the changes concern for which releases are pending.
    concerns: Option<Change>,
    /// Instant of each server's last release, to which [`LATELY`] refers. A dead server confirms no more releases, so its last
    /// releases do not become obsolete while the other servers of a cluster confirm releases.
    last: BTreeMap<Server, BootInstant>,
    /// Number of changes. A server that takes over may have the number of the server that it replaces.
    changes: u32,
    name_bytes: usize,
    /// Number of repeated releases without a reply yet.
    under_way: usize,
    /// True if an event that drops old releases is scheduled.
    pub(super) will_forget: bool,
}

/// The number of a server, and the number of changes until then.
type Server = (u32, u32);

/// A hold that was released.
pub(super) struct Release {
    pub(super) name: Arc<Name>,
    pub(super) owner: u64,
    server: Server,
    at: BootInstant,
}

impl RecentReleases {
    /// Remembers a release that the server with the number `node` confirmed.
    pub(super) fn remember(&mut self, node: u32, name: &Arc<Name>, owner: u64, now: BootInstant) {
        let release = Release { name: Arc::clone(name), owner, server: (node, self.changes), at: now };
        self.count(&release);
        self.releases.push_back(release);
        while self.pending.len() + self.releases.len() > MOST
            || self.name_bytes > MOST_NAME_BYTES
            || self.oldest().is_some_and(|oldest| self.is_obsolete(oldest))
        {
            self.drop_oldest();
        }
    }

    /// Records that another server may have the number of any server from now on. Its releases must not make those of the dead
    /// server obsolete.
    pub(super) fn changed(&mut self) {
        self.changes += 1;
    }

    /// Makes all remembered releases pending, because other servers may reply now.
    pub(super) fn suspect(&mut self, change: Change) {
        // A change whose releases have all been checked is done. Joined again, it would repeat releases in vain.
        let earlier = self.concerns.take().filter(|_| !self.pending.is_empty());
        self.concerns = Some(change.joined(earlier));
        self.pending.append(&mut self.releases);
    }

    /// Returns true if there are releases to check, and room to send them again.
    pub(super) fn may_repeat(&self) -> bool {
        !self.pending.is_empty() && self.under_way < UNDER_WAY
    }

    /// Returns the next release to send again. Checks at most `looks` releases, and subtracts them from `looks`. The release is
    /// under way from now on, until it has [`ended`](Self::ended).
    ///
    /// The latest come first, because the new server lacks these. New releases, which need room, then displace the oldest.
    pub(super) fn next(&mut self, looks: &mut usize) -> Option<Release> {
        while *looks > 0 && self.may_repeat() {
            *looks -= 1;
            let release = self.pending.pop_back()?;
            self.name_bytes -= release.name.key().len();
            if self.is_obsolete(&release) {
                continue;
            }
            if self.concerns.as_ref().is_some_and(|change| change.concerns(release.name.key().as_bytes())) {
                self.under_way += 1;
                return Some(release);
            }
            // The changes do not concern this release, so its server is still the same.
            let release = Release { server: (release.server.0, self.changes), ..release };
            self.count(&release);
            self.releases.push_front(release);
        }
        None
    }

    /// Ends a repeated release, which has a reply, was given up, or was not sent after all.
    pub(super) fn ended(&mut self) {
        self.under_way -= 1;
    }

    /// Drops old releases and frees their room. Returns the instant at which the next release becomes old.
    pub(super) fn forget(&mut self, now: BootInstant) -> Option<BootInstant> {
        while self.oldest().is_some_and(|oldest| now >= oldest.at + KEPT) {
            self.drop_oldest();
        }
        // Keep twice the room. At a steady rate, an exact fit would be reallocated after each call.
        self.releases.shrink_to(2 * self.releases.len());
        self.pending.shrink_to(2 * self.pending.len());
        self.last.retain(|_, last| now < *last + KEPT);
        self.oldest().map(|oldest| oldest.at + KEPT)
    }

    fn count(&mut self, release: &Release) {
        let last = self.last.entry(release.server).or_insert(release.at);
        *last = release.at.max(*last);
        self.name_bytes += release.name.key().len();
    }

    fn oldest(&self) -> Option<&Release> {
        self.pending.front().or_else(|| self.releases.front())
    }

    fn drop_oldest(&mut self) {
        if let Some(release) = self.pending.pop_front().or_else(|| self.releases.pop_front()) {
            self.name_bytes -= release.name.key().len();
        }
    }

    /// Returns true if the release's server had [`LATELY`] to replicate the release before its last confirmed release.
    fn is_obsolete(&self, release: &Release) -> bool {
        self.last.get(&release.server).is_some_and(|last| *last > release.at + LATELY)
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
/// Largest number of remembered releases, which is 2 MiB. That covers half a second at a hundred thousand releases a second,
/// and all of [`LATELY`] up to 13 000 a second. In a cluster, the other nodes' releases displace those of a dead node beyond this
/// number. That takes 4000 releases a second for the 16 s until a replica takes over with the default timeout.
const MOST: usize = (1 << 16) - 1;
/// Largest total length of the remembered names, which live as long as they are remembered here.
const MOST_NAME_BYTES: usize = 4 << 20;
/// Largest number of repeated releases under way. More would delay other requests. A server executes this number in a millisecond
/// or two.
const UNDER_WAY: usize = 256;

#[cfg(test)]
mod tests;
