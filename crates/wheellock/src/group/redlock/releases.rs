//! The wait for releases on several servers.
//!
//! This module owns the subscriptions, and when another round has a chance. It sends no request.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use wheellock_client::{Subscription, Timer};

use super::member::Member;
use crate::base::quorum::Quorum;
use crate::group::jitter;
use crate::lock::Lock;

/// A refused round, with the holders that it found.
pub(super) struct Busy {
    /// Members that others hold, or that failed. Only these can still be released.
    elsewhere: Vec<usize>,
    /// Another holder does not publish its release.
    pub(super) is_silent: bool,
    /// Number of members that were free.
    pub(super) granted: usize,
    /// Number of members that are missing for a quorum.
    needed: usize,
    /// Time after which the leases of `needed` members will have ended.
    pub(super) free_after: Option<Duration>,
    /// Time for which the round waited in vain for slow servers that could have granted.
    pub(super) given_up: Option<Duration>,
}

impl Busy {
    pub(super) fn of(members: &[Member], tally: Quorum, given_up: Option<Duration>) -> Self {
        let needed = tally.wanted().saturating_sub(tally.granted).max(1);
        let elsewhere = |(place, member): (usize, &Member)| {
            matches!(member, Member::Refused(_) | Member::Failed(_)).then_some(place)
        };
        let refusals = || members.iter().filter_map(Member::refusal);
        let mut ends: Vec<_> = refusals().filter_map(|refusal| refusal.lease_left).collect();
        ends.sort_unstable();
        Self {
            elsewhere: (0..).zip(members).filter_map(elsewhere).collect(),
            is_silent: refusals().any(|refusal| refusal.is_silent),
            granted: tally.granted,
            needed,
            free_after: ends.get(needed - 1).copied(),
            given_up,
        }
    }

    /// Returns the rest of `free_after` when this time has passed since the round. `None` if those leases have ended.
    pub(super) fn free_in(&self, passed: Duration) -> Option<Duration> {
        self.free_after?.checked_sub(passed).filter(|left| !left.is_zero())
    }
}

/// Subscriptions to the releases, one per server.
pub(super) struct Subscriptions(Vec<Subscription>);

impl Subscriptions {
    pub(super) fn to_releases(locks: &[Lock]) -> Self {
        let subscribe = |lock: &Lock| lock.context.client.subscribe(lock.name.channel().as_bytes());
        Self(locks.iter().map(subscribe).collect())
    }

    /// Discards messages from before the next round, because that round's replies are newer.
    pub(super) fn discard(&mut self) {
        for subscription in &mut self.0 {
            subscription.take_changed();
        }
    }

    /// Waits until another round has a chance.
    ///
    /// That is when enough members were released for a quorum. If fewer were, the other releases get `FOLLOW` to
    /// arrive. The wait also ends when enough leases may have ended, or after the repoll interval. That interval is
    /// `silent` if a holder does not publish its release. Returns true if any message arrived.
    pub(super) async fn wait(
        &mut self,
        timer: &Timer,
        busy: &Busy,
        silent: Option<Duration>,
        deadline: Option<Instant>,
        random: fn() -> u64,
    ) -> bool {
        let now = timer.now();
        let is_refused = self.0.iter().any(|subscription| subscription.refusal().is_some());
        let repoll = silent.unwrap_or(if is_refused { REPOLL_WHEN_REFUSED } else { REPOLL });
        // Servers round the remaining lease down, so wait one millisecond more.
        let free_after = busy.free_after.map(|left| left + Duration::from_millis(1));
        let poll_at = match busy.given_up {
            // Contenders release within the same time. If no release comes, the quorum needs the slow servers.
            Some(patience) => now + patience.min(repoll) + jitter(random, patience.min(repoll)),
            None => now + free_after.map_or(repoll, |left| left.min(repoll)) + jitter(random, LEASE_JITTER),
        };
        let poll_at = deadline.map_or(poll_at, |deadline| deadline.min(poll_at));
        let mut sleep = timer.sleep_until(poll_at);
        let mut notified = vec![false; self.0.len()];
        let mut first = None;
        std::future::poll_fn(|cx: &mut Context<'_>| {
            for place in &busy.elsewhere {
                if let (Some(subscription), Some(notified)) =
                    (self.0.get_mut(*place), notified.get_mut(*place))
                {
                    *notified |= !*notified && subscription.poll_changed(cx).is_ready();
                }
            }
            let count = notified.iter().filter(|notified| **notified).count();
            if count >= busy.needed {
                return Poll::Ready(());
            }
            if count > 0 && first.is_none() {
                let until = timer.now() + FOLLOW;
                first = Some(until);
                sleep.reset(poll_at.min(until));
            }
            Pin::new(&mut sleep).poll(cx)
        })
        .await;
        notified.contains(&true)
    }
}

/// Longest time between two rounds of a waiting process, as for plain locks.
const REPOLL: Duration = Duration::from_secs(5);

/// The same if a server refuses the subscription.
const REPOLL_WHEN_REFUSED: Duration = Duration::from_millis(100);

/// Time between a holder's first and last message. Its release reaches the servers at different times.
const FOLLOW: Duration = Duration::from_millis(20);

/// Spread of the polls at the end of a lease, so that waiting processes do not all poll in the same moment.
const LEASE_JITTER: Duration = Duration::from_millis(20);
