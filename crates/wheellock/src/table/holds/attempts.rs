//! Attempts and grants of holds.
//!
//! A grant may also show that other holds of the same lock are lost.

use std::sync::Arc;
use std::task::{Poll, Waker};

use wheellock_client::layer::ConnectionId;

use super::hold::KnownBy;
use super::releasing::Releasing;
use super::renewing::Renewing;
use super::{Effects, Hold, HoldIndex, Holds, Reconcile, Share, State, forget_owner, presented_key};
use crate::base::clock::BootInstant;
use crate::base::error::LostReason;
use crate::base::lease::Lease;
use crate::wait::name::Name;

/// Result of a grant.
pub(crate) enum Granted {
    /// The lock is held. A request follows if the server's count must be corrected.
    Held(HoldIndex, Option<Reconcile>),
    /// The grant arrived after the shutdown. The request takes the grant back.
    ShutDown(Reconcile),
    /// The grant arrived too late to be trusted. The request takes the grant back.
    TooLate(Reconcile),
}

impl Holds {
    /// Starts an attempt, and returns the hold and the count to request. Returns `None` after a shutdown.
    ///
    /// Pending while another request of the same owner is under way, which requires several tasks that share the owner.
    pub(crate) fn begin_attempt(
        &mut self,
        (name, owner): (&Arc<Name>, u64),
        presented: bool,
        (lease, count): (Lease, u32),
        now: BootInstant,
        waker: &Waker,
    ) -> Poll<Option<(HoldIndex, u32)>> {
        if self.shut {
            return Poll::Ready(None);
        }
        let known = if presented { self.presented.get(&presented_key(owner, name)).copied() } else { None };
        let index = known.unwrap_or_else(|| self.insert(name, owner, presented, lease, now));
        let Some(hold) = self.get_mut(index) else { return Poll::Pending };
        if hold.releasing.is_busy() {
            hold.wait_at_gate(waker);
            return Poll::Pending;
        }
        hold.asks_for_a_lease_of(lease);
        hold.releasing.attempt(count);
        // The server may grant this lease although no reply arrives. The release is then retried until the lease has
        // ended.
        hold.expired_by = hold.expired_by.max(lease.expired_by(now));
        // `wanted` includes this attempt, because the server sets this count and does not increment its own.
        let count = hold.wanted();
        hold.asks_for(count);
        if hold.state == State::GivenBack {
            // The attempt sends the wanted count itself, so the repeated release has nothing left to do.
            hold.state = State::Asked;
            self.end_repetition();
        }
        Poll::Ready(Some((index, count)))
    }

    /// Returns true if this owner holds one of the `others`, which are the same lock on the server. The server has one count for
    /// all of them, and this process one for each. Pending while a request for one of the owner's holds is under way or to come.
    pub(crate) fn is_held_otherwise(
        &mut self,
        owner: u64,
        others: &[Arc<Name>],
        waker: &Waker,
    ) -> Poll<bool> {
        for other in others.iter().filter(|_| !self.shut) {
            let known = self.presented.get(&presented_key(owner, other)).copied();
            let Some(hold) = known.and_then(|index| self.holds.get_mut(index as usize)) else { continue };
            if hold.is_believed() {
                return Poll::Ready(true);
            }
            if !hold.releasing.is_settled() {
                hold.wait_at_gate(waker);
                return Poll::Pending;
            }
        }
        Poll::Ready(false)
    }

    /// Inserts a hold without guards for a first attempt, or for a release that needs a hold.
    pub(super) fn insert(
        &mut self,
        name: &Arc<Name>,
        owner: u64,
        presented: bool,
        lease: Lease,
        now: BootInstant,
    ) -> HoldIndex {
        self.next_serial += 1;
        let hold = Hold {
            name: Arc::clone(name),
            owner,
            serial: self.next_serial,
            lease,
            state: State::Asked,
            valid_until: now,
            expired_by: now,
            known_by: if presented { KnownBy::Others } else { KnownBy::Nobody },
            guards: 0,
            guard_since: now,
            releasing: Releasing::default(),
            renewing: Renewing::default(),
            refusals: 0,
            is_told: false,
            rare: None,
            alarm: None,
        };
        let index = u32::try_from(self.holds.insert(hold)).unwrap_or(u32::MAX);
        if presented {
            self.presented.insert(presented_key(owner, name), index);
        }
        index
    }

    /// Ends an attempt that the server refused or never received. The server's state is unchanged.
    pub(crate) fn refused(
        &mut self,
        index: HoldIndex,
        count: u32,
        effects: &mut Effects,
    ) -> Option<Reconcile> {
        self.end_attempt(index, count)?;
        self.after_request(index, effects)
    }

    /// Marks a hold as lost because the server says that another owner holds its lock.
    pub(crate) fn refused_by_other(&mut self, index: HoldIndex, now: BootInstant, effects: &mut Effects) {
        if self.get(index).is_some_and(|hold| hold.state == State::Held) {
            self.lose(index, LostReason::NotOwner, now, effects);
        }
    }

    /// Handles a grant of an attempt that was sent no earlier than `sent`.
    pub(crate) fn granted(
        &mut self,
        index: HoldIndex,
        terms: Terms,
        reply: GrantReply,
        now: BootInstant,
        effects: &mut Effects,
    ) -> Option<Granted> {
        let mut index = index;
        let valid_until = terms.lease.valid_until(terms.sent);
        let (shut, is_believed) = (self.shut, self.believes_grant(terms.connection, terms.sent, now));
        let is_doubtful = self.changes.since(terms.sent) || self.server_clocks.jumped_since(terms.sent);
        // The older guards of this hold may have reported the expiry already, before the watchdog could.
        self.lose_if_expired(index, now, effects);
        let hold = self.get(index)?;
        let was_lost = hold.is_lost();
        if was_lost || is_believed && hold.has_vanished(reply) {
            index = self.split_lost(index, terms, now, effects)?;
        }
        let (period, are_told) = (self.alarms.period(), self.changes.are_told());
        let hold = self.get_mut(index)?;
        hold.releasing.end_attempt(terms.share.count);
        hold.expired_by = hold.expired_by.max(terms.lease.expired_by(now));
        if shut {
            return self.reconcile(index).map(Granted::ShutDown);
        }
        if now >= valid_until || !is_believed || was_lost && reply == GrantReply::Again {
            // The grant adds to a hold that was declared lost meanwhile.
            return self.reconcile(index).map(Granted::TooLate);
        }
        hold.lasts_until(valid_until, terms.lease, now);
        if reply == GrantReply::Fresh {
            hold.counts_anew();
        }
        hold.counts_one_until(valid_until);
        let first_guard = hold.guards == 0;
        if !first_guard && hold.may_have_been_shortened() {
            hold.renewing.verify_at(now);
        }
        hold.guards += terms.share.count;
        if terms.share.renew {
            hold.renewing.want(terms.share.count);
            let renew_after = hold.lease.renew_after_nanos();
            if now.nanos_since(terms.sent) > renew_after / 2 {
                // The grant took so long that its first beat may come too late.
                hold.renewing.plan(terms.sent.plus_nanos(renew_after));
            }
        }
        // A replaced server may have granted the lock, or a clock jump may have shortened the lease.
        if is_doubtful {
            hold.renewing.verify_at(now);
        }
        hold.plan_check_of_shared_lease(now, period);
        if are_told {
            hold.plan_first_look(now, period);
        }
        hold.state = State::Held;
        hold.renewing.written();
        if hold.name.kind().is_read_side() {
            // Without this, a later grant of the write side would not verify the readers.
            hold.name.set_last_holder(index);
        }
        let family = hold.name.family();
        self.tallies.of(family).acquired(first_guard);
        self.update_cohort(index, now);
        self.schedule(index);
        self.resolve_conflict(index, terms.sent, now, effects);
        let request = self.after_request(index, effects);
        Some(Granted::Held(index, request))
    }

    /// Finds the rival of a granted hold, and marks one of the two as lost. A grant to one owner proves that another owner of the
    /// same lock in this process does not hold it. The hold that the server confirmed earlier is the lost one. The server is then
    /// asked to verify the remaining hold, because requests may overtake each other between the clock and the wire.
    pub(super) fn resolve_conflict(
        &mut self,
        granted: HoldIndex,
        sent: BootInstant,
        now: BootInstant,
        effects: &mut Effects,
    ) {
        let Some(Hold { name, .. }) = self.get(granted) else { return };
        if name.kind().is_shared() {
            return;
        }
        let rival = self.believed_holder(name).filter(|rival| *rival != granted);
        name.set_last_holder(granted);
        let Some(rival) = rival else { return };
        let name = Arc::clone(name);
        let rival_is_later = self.get(rival).is_some_and(|hold| hold.was_extended_after(sent));
        let (lost, left) = if rival_is_later { (granted, rival) } else { (rival, granted) };
        name.set_last_holder(left);
        self.lose(lost, LostReason::NotOwner, now, effects);
        self.verify_hold(left, now);
    }

    /// Returns the hold of this process that is believed to have the lock.
    pub(super) fn believed_holder(&self, name: &Arc<Name>) -> Option<HoldIndex> {
        let index = name.last_holder()?;
        // The index is only a hint. A hold of another lock may have it by now.
        let is_it = |hold: &Hold| Arc::ptr_eq(&hold.name, name) && hold.is_believed();
        self.get(index).is_some_and(is_it).then_some(index)
    }

    /// Schedules an immediate check with the server, because there is a reason to doubt this process's hold.
    pub(crate) fn verify(&mut self, name: &Arc<Name>, now: BootInstant) {
        if let Some(index) = self.believed_holder(name) {
            self.verify_hold(index, now);
        }
    }

    /// Handles the forced deletion of these locks, which are one lock on the server. The deletion was executed after `sent`.
    /// Holds that were granted before `sent` are lost at once. Later holds are verified, because their grants and the deletion
    /// may have overtaken each other.
    pub(crate) fn freed_by_force(
        &mut self,
        names: &[Arc<Name>],
        sent: BootInstant,
        now: BootInstant,
        effects: &mut Effects,
    ) {
        let is_one = |hold: &Hold| names.iter().any(|name| Arc::ptr_eq(name, &hold.name));
        for index in self.indices_of(|hold| hold.is_believed() && hold.guard_since < sent && is_one(hold)) {
            self.lose(index, LostReason::NotOwner, now, effects);
        }
        self.verify_all(names, now);
    }

    /// Verifies several locks that are one lock on the server, as [`verify`](Self::verify) does. Includes every holder that
    /// shares them.
    pub(crate) fn verify_all(&mut self, names: &[Arc<Name>], now: BootInstant) {
        for name in names {
            if !name.kind().is_shared() {
                self.verify(name, now);
                continue;
            }
            for index in self.indices_of(|hold| Arc::ptr_eq(&hold.name, name) && hold.is_believed()) {
                self.verify_hold(index, now);
            }
        }
    }

    /// Verifies the `other` side of a read-write lock after a grant of one side. The grant proves that no other owner holds the
    /// other side.
    pub(crate) fn verify_other_side(&mut self, granted: HoldIndex, other: &Arc<Name>, now: BootInstant) {
        let owner = |index| self.get(index).map(|hold| hold.owner);
        // A writer may read as well, so one owner may hold both sides.
        if self.believed_holder(other).is_some_and(|rival| owner(rival) != owner(granted)) {
            self.verify_all(std::slice::from_ref(other), now);
        }
    }

    pub(super) fn verify_hold(&mut self, index: HoldIndex, now: BootInstant) {
        if let Some(hold) = self.get_mut(index) {
            hold.renewing.verify_at(now);
            self.schedule(index);
        }
    }

    /// Marks the older guards' hold as lost, and returns a new hold for the new grant.
    #[cold]
    pub(super) fn split_lost(
        &mut self,
        index: HoldIndex,
        terms: Terms,
        now: BootInstant,
        effects: &mut Effects,
    ) -> Option<HoldIndex> {
        let hold = self.get_mut(index)?;
        let (name, owner, presented) = (Arc::clone(&hold.name), hold.owner, hold.is_presented());
        // Tasks of this owner may wait at the gate of the old hold, which gets no further request.
        hold.open_gate(effects);
        if !hold.is_lost() {
            self.lose(index, LostReason::NotOwner, now, effects);
        }
        self.end_attempt(index, terms.share.count)?;
        self.settle(index, effects);
        let index = self.insert(&name, owner, presented, terms.lease, now);
        // The caller ends this attempt on the new hold.
        self.get_mut(index)?.releasing.attempt(terms.share.count);
        Some(index)
    }

    /// Takes back a grant that too few other servers know of.
    pub(crate) fn take_back(
        &mut self,
        index: HoldIndex,
        terms: Terms,
        reply: GrantReply,
        now: BootInstant,
        effects: &mut Effects,
    ) -> Option<Reconcile> {
        let mut index = index;
        if self.get(index)?.has_vanished(reply) {
            index = self.split_lost(index, terms, now, effects)?;
        }
        let family = self.get(index)?.name.family();
        self.tallies.of(family).not_replicated += 1;
        self.cancel_attempt(index, terms.share.count, terms.lease, now)
    }

    /// Takes back the effects of an attempt whose caller left before the reply.
    pub(crate) fn cancel_attempt(
        &mut self,
        index: HoldIndex,
        count: u32,
        lease: Lease,
        now: BootInstant,
    ) -> Option<Reconcile> {
        let hold = self.end_attempt(index, count)?;
        // The request may be executed after the release that takes it back.
        hold.may_arrive_late();
        // The server may keep the longer of both leases. The release is retried until that lease has ended.
        hold.expired_by = hold.expired_by.max(hold.lease.max(lease).expired_by(now));
        self.reconcile(index)
    }

    /// Ends an attempt. If the hold was lost meanwhile, the owner's next attempt starts a new hold.
    fn end_attempt(&mut self, index: HoldIndex, count: u32) -> Option<&mut Hold> {
        let hold = self.holds.get_mut(index as usize)?;
        hold.releasing.end_attempt(count);
        if hold.is_lost() {
            forget_owner(&mut self.presented, hold, index);
        }
        Some(hold)
    }

    /// Records that an acquire request for this hold had no reply and was repeated.
    pub(crate) fn may_arrive_late(&mut self, index: HoldIndex) {
        if let Some(hold) = self.get_mut(index) {
            hold.may_arrive_late();
        }
    }

    /// Takes back the traces on the server of a caller that was refused and stops waiting.
    pub(crate) fn withdraw(
        &mut self,
        name: &Arc<Name>,
        owner: u64,
        presented: bool,
        now: BootInstant,
    ) -> Option<Reconcile> {
        if presented && self.is_back(name, owner) {
            return None;
        }
        // The lease sets the pause between retries. A fair lock keeps a silent waiter's queue entry for `A_PLACE`.
        let index = self.insert(name, owner, presented, Lease::A_PLACE, now);
        self.get_mut(index)?.expired_by = Lease::DEFAULT.expired_by(now);
        self.reconcile(index)
    }

    /// Takes the lock back from an owner to which this hold was to be given. If the hold has a minimum time, that owner keeps it.
    pub(crate) fn withdraw_heir(
        &mut self,
        index: HoldIndex,
        heir: u64,
        now: BootInstant,
    ) -> Option<Reconcile> {
        let hold = self.get(index)?;
        let (name, min) = (Arc::clone(&hold.name), hold.min_after_release(0));
        let index = self.insert(&name, heir, false, Lease::DEFAULT, now);
        let hold = self.get_mut(index)?;
        hold.expired_by = Lease::DEFAULT.expired_by(now);
        min.into_iter().for_each(|min| hold.keep_for(*min));
        self.reconcile(index)
    }
}

impl Hold {
    /// Returns true if a grant shows that the lock had vanished from under older guards (an operator's DEL, a clock jump).
    fn has_vanished(&self, reply: GrantReply) -> bool {
        reply == GrantReply::Fresh && self.is_believed()
    }
}

/// Terms on which an attempt was made.
#[derive(Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) lease: Lease,
    pub(crate) share: Share,
    pub(crate) sent: BootInstant,
    /// Connection of the reply.
    pub(crate) connection: Option<ConnectionId>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GrantReply {
    /// The lock was free.
    Fresh,
    /// The owner held it already.
    Again,
}
