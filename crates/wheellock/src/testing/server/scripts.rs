//! The scripts of the library, with their texts.
//!
//! The store models their effects.

use std::sync::Arc;

use wheellock_client::Script;

use crate::{kind, kinds::election, kinds::permit, request::once};

/// The scripts of the library.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Which {
    Acquire,
    AcquireAll,
    Release,
    HotRelease,
    HotWriteRelease,
    Mark,
    Tell,
    Renew,
    ForceRelease,
    FencedAcquire,
    FencedRenew,
    ReadAcquire,
    ReadRelease,
    WriteAcquire,
    WriteRelease,
    ReadWriteRenew,
    ReadWriteForceRelease,
    ReadWriteIsHeld,
    Holders,
    ReadWriteHolders,
    SimpleHolders,
    SimpleAcquire,
    SimpleRelease,
    SimpleRenew,
    SimpleForceRelease,
    FairAcquire,
    FairRelease,
    FairForceRelease,
    SemaphoreAcquire,
    SemaphoreRenew,
    SemaphoreRelease,
    SetPermits,
    AddPermits,
    Drain,
    PermitAcquire,
    PermitRenew,
    PermitRelease,
    CountPermits,
    ChangePermits,
    GiveBack,
    GiveBackMany,
    LookAtLatch,
    SetLatch,
    CountDown,
    DeleteLatch,
    Announce,
    LookAtLeader,
    Together,
    SimpleTogether,
    FencedTogether,
    ReadTogether,
    WriteTogether,
    FairTogether,
    SemaphoreTogether,
    PermitTogether,
    Poll,
    FencedPoll,
    WritePoll,
    SimplePoll,
    // new-kind: variants
}

impl Which {
    pub const ALL: &'static [Self] = &[
        Self::Acquire,
        Self::AcquireAll,
        Self::Release,
        Self::HotRelease,
        Self::HotWriteRelease,
        Self::Mark,
        Self::Tell,
        Self::Renew,
        Self::ForceRelease,
        Self::FencedAcquire,
        Self::FencedRenew,
        Self::ReadAcquire,
        Self::ReadRelease,
        Self::WriteAcquire,
        Self::WriteRelease,
        Self::ReadWriteRenew,
        Self::ReadWriteForceRelease,
        Self::ReadWriteIsHeld,
        Self::Holders,
        Self::ReadWriteHolders,
        Self::SimpleHolders,
        Self::SimpleAcquire,
        Self::SimpleRelease,
        Self::SimpleRenew,
        Self::SimpleForceRelease,
        Self::FairAcquire,
        Self::FairRelease,
        Self::FairForceRelease,
        Self::SemaphoreAcquire,
        Self::SemaphoreRenew,
        Self::SemaphoreRelease,
        Self::SetPermits,
        Self::AddPermits,
        Self::Drain,
        Self::PermitAcquire,
        Self::PermitRenew,
        Self::PermitRelease,
        Self::CountPermits,
        Self::ChangePermits,
        Self::GiveBack,
        Self::GiveBackMany,
        Self::LookAtLatch,
        Self::SetLatch,
        Self::CountDown,
        Self::DeleteLatch,
        Self::Announce,
        Self::LookAtLeader,
        Self::Together,
        Self::SimpleTogether,
        Self::FencedTogether,
        Self::ReadTogether,
        Self::WriteTogether,
        Self::FairTogether,
        Self::SemaphoreTogether,
        Self::PermitTogether,
        Self::Poll,
        Self::FencedPoll,
        Self::WritePoll,
        Self::SimplePoll,
        // new-kind: all
    ];

    /// Returns the text that the library ships.
    pub fn text(self) -> &'static str {
        self.script().text()
    }

    /// Returns the script that the library sends.
    fn script(self) -> &'static Script {
        let some = |script: &'static Option<Arc<Script>>| script.as_deref().expect("this kind has one");
        match self {
            Self::Acquire => &kind::REENTRANT.acquire,
            Self::AcquireAll => some(&kind::REENTRANT.acquire_all),
            Self::Release => some(&kind::REENTRANT.release),
            Self::HotRelease => some(&kind::REENTRANT.hot_release),
            Self::HotWriteRelease => some(&kind::WRITE.hot_release),
            Self::Mark => &kind::MARK,
            Self::Tell => &kind::TELL,
            Self::Renew => some(&kind::REENTRANT.renew),
            Self::ForceRelease => some(&kind::REENTRANT.force_release),
            Self::FencedAcquire => &kind::FENCED.acquire,
            Self::FencedRenew => some(&kind::FENCED.renew),
            Self::ReadAcquire => &kind::READ.acquire,
            Self::ReadRelease => some(&kind::READ.release),
            Self::WriteAcquire => &kind::WRITE.acquire,
            Self::WriteRelease => some(&kind::WRITE.release),
            Self::ReadWriteRenew => some(&kind::READ.renew),
            Self::ReadWriteForceRelease => some(&kind::READ.force_release),
            Self::ReadWriteIsHeld => some(&kind::READ.is_held),
            Self::Holders => some(&kind::REENTRANT.show_holders),
            Self::ReadWriteHolders => some(&kind::READ.show_holders),
            Self::SimpleHolders => some(&kind::SIMPLE.show_holders),
            Self::SimpleAcquire => &kind::SIMPLE.acquire,
            Self::SimpleRelease => some(&kind::SIMPLE.release),
            Self::SimpleRenew => some(&kind::SIMPLE.renew),
            Self::SimpleForceRelease => some(&kind::SIMPLE.force_release),
            Self::FairAcquire => &kind::FAIR.acquire,
            Self::FairRelease => some(&kind::FAIR.release),
            Self::FairForceRelease => some(&kind::FAIR.force_release),
            Self::SemaphoreAcquire => &kind::SEMAPHORE.acquire,
            Self::SemaphoreRenew => some(&kind::SEMAPHORE.renew),
            Self::SemaphoreRelease => some(&kind::SEMAPHORE.release),
            Self::SetPermits => &once::SET_PERMITS,
            Self::AddPermits => &once::ADD_PERMITS,
            Self::Drain => &once::DRAIN,
            Self::PermitAcquire => &kind::PERMIT.acquire,
            Self::PermitRenew => some(&kind::PERMIT.renew),
            Self::PermitRelease => some(&kind::PERMIT.release),
            Self::CountPermits => &permit::COUNT,
            Self::ChangePermits => &once::CHANGE_PERMITS,
            Self::GiveBack => &once::GIVE_BACK,
            Self::GiveBackMany => &once::GIVE_BACK_MANY,
            Self::LookAtLatch => &kind::LATCH.acquire,
            Self::SetLatch => &once::SET_LATCH,
            Self::CountDown => &once::COUNT_DOWN,
            Self::DeleteLatch => &once::DELETE_LATCH,
            Self::Announce => &election::ANNOUNCE,
            Self::LookAtLeader => &election::observer::LOOK,
            Self::Together => some(&kind::REENTRANT.bundle),
            Self::SimpleTogether => some(&kind::SIMPLE.bundle),
            Self::FencedTogether => some(&kind::FENCED.bundle),
            Self::ReadTogether => some(&kind::READ.bundle),
            Self::WriteTogether => some(&kind::WRITE.bundle),
            Self::FairTogether => some(&kind::FAIR.bundle),
            Self::SemaphoreTogether => some(&kind::SEMAPHORE.bundle),
            Self::PermitTogether => some(&kind::PERMIT.bundle),
            Self::Poll => some(&kind::REENTRANT.poll),
            Self::FencedPoll => some(&kind::FENCED.poll),
            Self::WritePoll => some(&kind::WRITE.poll),
            Self::SimplePoll => some(&kind::SIMPLE.poll),
            // new-kind: scripts
        }
    }

    /// Returns the scripts of a batch script, by their numbers from 1, each with its number of arguments.
    pub fn parts(self) -> &'static [(Self, usize)] {
        match self {
            Self::Together => &[(Self::Acquire, 3), (Self::Release, 4)],
            Self::SimpleTogether => &[(Self::SimpleAcquire, 3), (Self::SimpleRelease, 4)],
            Self::FencedTogether => &[(Self::FencedAcquire, 4), (Self::Release, 4)],
            Self::ReadTogether => &[(Self::ReadAcquire, 5), (Self::ReadRelease, 5)],
            Self::WriteTogether => &[(Self::WriteAcquire, 5), (Self::WriteRelease, 5)],
            Self::FairTogether => &[(Self::FairAcquire, 7), (Self::FairRelease, 5)],
            Self::SemaphoreTogether => &[(Self::SemaphoreAcquire, 4), (Self::SemaphoreRelease, 5)],
            Self::PermitTogether => &[(Self::PermitAcquire, 6), (Self::PermitRelease, 5)],
            _ => &[],
        }
    }

    /// Returns the script that acquires the lock, if this script also counts the subscribers.
    pub fn polls(self) -> Option<Self> {
        match self {
            Self::Poll => Some(Self::Acquire),
            Self::FencedPoll => Some(Self::FencedAcquire),
            Self::WritePoll => Some(Self::WriteAcquire),
            Self::SimplePoll => Some(Self::SimpleAcquire),
            _ => None,
        }
    }

    pub(super) fn is_acquire(self) -> bool {
        [
            Self::Acquire,
            Self::FencedAcquire,
            Self::ReadAcquire,
            Self::WriteAcquire,
            Self::SimpleAcquire,
            Self::FairAcquire,
            Self::SemaphoreAcquire,
            Self::PermitAcquire,
            // new-kind: acquires
        ]
        .contains(&self.polls().unwrap_or(self))
    }

    pub(super) fn is_release(self) -> bool {
        [
            Self::Release,
            Self::ReadRelease,
            Self::WriteRelease,
            Self::SimpleRelease,
            Self::FairRelease,
            Self::SemaphoreRelease,
            Self::PermitRelease,
            // new-kind: releases
        ]
        .contains(&self)
    }

    pub fn is_renewal(self) -> bool {
        matches!(
            self,
            Self::Renew
                | Self::FencedRenew
                | Self::ReadWriteRenew
                | Self::SimpleRenew
                | Self::SemaphoreRenew
                | Self::PermitRenew
        )
    }

    /// Returns the digest by which a server knows the script.
    pub fn sha(self) -> &'static str {
        self.script().sha()
    }

    pub(super) fn by(matches: impl Fn(Self) -> bool) -> Option<Self> {
        Self::ALL.iter().copied().find(|which| matches(*which))
    }
}
