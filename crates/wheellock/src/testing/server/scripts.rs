//! The scripts of the library, with their texts.
//!
//! The store models their effects. The scripts that a kind derives from others, such as its batch script, follow from the rows of `kind`.

use std::sync::Arc;

use wheellock_client::Script;

use crate::kind::{self, Kind};
use crate::{kinds::election, kinds::permit, request::once};

/// Creates the enum of scripts from one line per script that the store models. Only a macro can create the variants, their list and their
/// sources from the same lines.
macro_rules! scripts {
    ($($which:ident => $script:expr,)+) => {
        /// The scripts of the library.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum Which {
            $($which,)+
            /// The script of several calls at once, of this row.
            Together(Row),
            /// The script of a waiter that counts the subscribers, of this row.
            Poll(Row),
            /// The release after hand-overs, of this row.
            HotRelease(Row),
        }

        impl Which {
            /// Scripts that the store models, each with effects of its own.
            const MODELLED: &'static [Self] = &[$(Self::$which),+];

            /// Returns the script that the library sends.
            fn script(self) -> &'static Script {
                match self {
                    $(Self::$which => $script,)+
                    Self::Together(row) => of(&row.kind().bundle),
                    Self::Poll(row) => of(&row.kind().poll),
                    Self::HotRelease(row) => of(&row.kind().hot_release),
                }
            }
        }
    };
}

scripts! {
    Acquire => &kind::REENTRANT.acquire,
    AcquireAll => of(&kind::REENTRANT.acquire_all),
    Release => of(&kind::REENTRANT.release),
    Retire => of(&kind::REENTRANT.retire),
    SimpleRetire => of(&kind::SIMPLE.retire),
    Adopt => of(&kind::REENTRANT.adopt),
    FencedAdopt => of(&kind::FENCED.adopt),
    SimpleAdopt => of(&kind::SIMPLE.adopt),
    Mark => &kind::MARK,
    Tell => &kind::TELL,
    Renew => of(&kind::REENTRANT.renew),
    ForceRelease => of(&kind::REENTRANT.force_release),
    FencedAcquire => &kind::FENCED.acquire,
    FencedRenew => of(&kind::FENCED.renew),
    ReadAcquire => &kind::READ.acquire,
    ReadRelease => of(&kind::READ.release),
    WriteAcquire => &kind::WRITE.acquire,
    WriteRelease => of(&kind::WRITE.release),
    ReadWriteRenew => of(&kind::READ.renew),
    ReadWriteForceRelease => of(&kind::READ.force_release),
    ReadWriteIsHeld => of(&kind::READ.is_held),
    Holders => of(&kind::REENTRANT.show_holders),
    ReadWriteHolders => of(&kind::READ.show_holders),
    SimpleHolders => of(&kind::SIMPLE.show_holders),
    SimpleAcquire => &kind::SIMPLE.acquire,
    SimpleRelease => of(&kind::SIMPLE.release),
    SimpleRenew => of(&kind::SIMPLE.renew),
    SimpleForceRelease => of(&kind::SIMPLE.force_release),
    FairAcquire => &kind::FAIR.acquire,
    FairRelease => of(&kind::FAIR.release),
    FairForceRelease => of(&kind::FAIR.force_release),
    SemaphoreAcquire => &kind::SEMAPHORE.acquire,
    SemaphoreRenew => of(&kind::SEMAPHORE.renew),
    SemaphoreRelease => of(&kind::SEMAPHORE.release),
    SetPermits => &once::SET_PERMITS,
    AddPermits => &once::ADD_PERMITS,
    Drain => &once::DRAIN,
    PermitAcquire => &kind::PERMIT.acquire,
    PermitRenew => of(&kind::PERMIT.renew),
    PermitRelease => of(&kind::PERMIT.release),
    CountPermits => &permit::COUNT,
    ChangePermits => &once::CHANGE_PERMITS,
    GiveBack => &once::GIVE_BACK,
    GiveBackMany => &once::GIVE_BACK_MANY,
    LookAtLatch => &kind::LATCH.acquire,
    SetLatch => &once::SET_LATCH,
    CountDown => &once::COUNT_DOWN,
    DeleteLatch => &once::DELETE_LATCH,
    Announce => &election::ANNOUNCE,
    LookAtLeader => &election::observer::LOOK,
    Refresh => &kind::REFRESH,
    LeaveFleet => &kind::LEAVE,
    Reclaim => of(&kind::REENTRANT.reclaim),
    SimpleReclaim => of(&kind::SIMPLE.reclaim),
    ReadWriteReclaim => of(&kind::READ.reclaim),
    PermitReclaim => of(&kind::PERMIT.reclaim),
    // new-kind: scripts
}

fn of(script: &'static Option<Arc<Script>>) -> &'static Script {
    script.as_deref().expect("this kind has one")
}

/// A row of the table of kinds, by its position.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Row(usize);

impl Row {
    fn all() -> impl Iterator<Item = (Self, &'static Kind)> {
        kind::rows().enumerate().map(|(position, kind)| (Self(position), kind))
    }

    fn kind(self) -> &'static Kind {
        kind::rows().nth(self.0).expect("the table keeps its rows")
    }
}

impl Which {
    /// Returns all scripts, those that each row derives at the end.
    pub fn all() -> impl Iterator<Item = Self> {
        let derived = Row::all().flat_map(|(row, kind)| {
            let together = kind.bundle.as_ref().map(|_| Self::Together(row));
            let poll = kind.poll.as_ref().map(|_| Self::Poll(row));
            let hot = kind.hot_release.as_ref().map(|_| Self::HotRelease(row));
            [together, poll, hot].into_iter().flatten()
        });
        Self::MODELLED.iter().copied().chain(derived)
    }

    /// Returns the text that the library ships.
    pub fn text(self) -> &'static str {
        self.script().text()
    }

    /// Returns the digest by which a server knows the script.
    pub fn sha(self) -> &'static str {
        self.script().sha()
    }

    /// Returns the scripts of a batch script, by their numbers from 1, each with its number of arguments.
    pub fn parts(self) -> Vec<(Self, usize)> {
        let Self::Together(row) = self else { return Vec::new() };
        let Kind { acquire, release, .. } = row.kind();
        let parts = [Some(acquire), release.as_ref()].into_iter().flatten();
        parts.map(|part| (Self::modelled(part), part.arity().map_or(0, |(keys, all)| all - keys))).collect()
    }

    /// Returns the script that acquires the lock, if this script also counts the subscribers.
    pub fn polls(self) -> Option<Self> {
        let Self::Poll(row) = self else { return None };
        Some(Self::modelled(&row.kind().acquire))
    }

    /// Returns the script that releases the lock, if this script also looks for contenders.
    pub fn releases(self) -> Option<Self> {
        let Self::HotRelease(row) = self else { return None };
        row.kind().release.as_deref().map(Self::modelled)
    }

    /// Returns the script that does the same as this one, and also counts the subscribers.
    pub fn poll(self) -> Option<Self> {
        Self::all().find(|poll| poll.polls() == Some(self))
    }

    /// Returns the script that does the same as this one, and also looks for contenders.
    pub fn hot_release(self) -> Option<Self> {
        Self::all().find(|hot| hot.releases() == Some(self))
    }

    /// Returns true for a script that acquires a hold.
    pub(super) fn is_acquire(self) -> bool {
        let sha = self.polls().unwrap_or(self).sha();
        // A latch has no holds.
        kind::rows().any(|kind| kind.release.is_some() && kind.acquire.sha() == sha)
    }

    pub(super) fn is_release(self) -> bool {
        self.is_in_a_row(|kind| kind.release.as_ref()) || self.is_in_a_row(|kind| kind.retire.as_ref())
    }

    pub fn is_renewal(self) -> bool {
        self.is_in_a_row(|kind| kind.renew.as_ref())
    }

    fn is_in_a_row(self, script: impl Fn(&Kind) -> Option<&Arc<Script>>) -> bool {
        kind::rows().filter_map(|kind| script(kind).map(|script| script.sha())).any(|sha| sha == self.sha())
    }

    fn modelled(script: &Script) -> Self {
        let found = Self::MODELLED.iter().find(|which| which.sha() == script.sha());
        *found.expect("the store models every acquire and release")
    }

    pub(super) fn by(matches: impl Fn(Self) -> bool) -> Option<Self> {
        Self::all().find(|which| matches(*which))
    }
}
