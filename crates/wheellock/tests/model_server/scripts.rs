//! The scripts of the library: which there are, and their texts. What they mean is the store's.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use wheellock_client::Script;

/// The scripts of the library.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Which {
    Acquire,
    AcquireAll,
    Release,
    Renew,
    ForceRelease,
    FencedAcquire,
    ReadAcquire,
    ReadRelease,
    WriteAcquire,
    WriteRelease,
    ReadWriteRenew,
    ReadWriteForceRelease,
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
    LookAtLatch,
    SetLatch,
    CountDown,
    DeleteLatch,
}

impl Which {
    pub(crate) const ALL: [Self; 35] = [
        Self::Acquire,
        Self::AcquireAll,
        Self::Release,
        Self::Renew,
        Self::ForceRelease,
        Self::FencedAcquire,
        Self::ReadAcquire,
        Self::ReadRelease,
        Self::WriteAcquire,
        Self::WriteRelease,
        Self::ReadWriteRenew,
        Self::ReadWriteForceRelease,
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
        Self::LookAtLatch,
        Self::SetLatch,
        Self::CountDown,
        Self::DeleteLatch,
    ];

    /// The very text that the library ships.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Acquire => include_str!("../../src/scripts/acquire.lua"),
            Self::AcquireAll => include_str!("../../src/scripts/acquire_all.lua"),
            Self::Release => include_str!("../../src/scripts/release.lua"),
            Self::Renew => include_str!("../../src/scripts/renew.lua"),
            Self::ForceRelease => include_str!("../../src/scripts/force_release.lua"),
            Self::FencedAcquire => include_str!("../../src/scripts/fenced/acquire.lua"),
            Self::ReadAcquire => include_str!("../../src/scripts/read/acquire.lua"),
            Self::ReadRelease => concat!(
                include_str!("../../src/scripts/read_write/live.lua"),
                include_str!("../../src/scripts/read/release.lua")
            ),
            Self::WriteAcquire => include_str!("../../src/scripts/write/acquire.lua"),
            Self::WriteRelease => concat!(
                include_str!("../../src/scripts/read_write/live.lua"),
                include_str!("../../src/scripts/write/release.lua")
            ),
            Self::ReadWriteRenew => concat!(
                include_str!("../../src/scripts/read_write/live.lua"),
                include_str!("../../src/scripts/read_write/renew.lua")
            ),
            Self::ReadWriteForceRelease => include_str!("../../src/scripts/read_write/force_release.lua"),
            Self::SimpleAcquire => include_str!("../../src/scripts/simple/acquire.lua"),
            Self::SimpleRelease => include_str!("../../src/scripts/simple/release.lua"),
            Self::SimpleRenew => include_str!("../../src/scripts/simple/renew.lua"),
            Self::SimpleForceRelease => include_str!("../../src/scripts/simple/force_release.lua"),
            Self::FairAcquire => concat!(
                include_str!("../../src/scripts/fair/queue.lua"),
                include_str!("../../src/scripts/fair/acquire.lua")
            ),
            Self::FairRelease => concat!(
                include_str!("../../src/scripts/fair/queue.lua"),
                include_str!("../../src/scripts/fair/release.lua")
            ),
            Self::FairForceRelease => concat!(
                include_str!("../../src/scripts/fair/queue.lua"),
                include_str!("../../src/scripts/fair/force_release.lua")
            ),
            Self::SemaphoreAcquire => concat!(
                include_str!("../../src/scripts/number.lua"),
                include_str!("../../src/scripts/semaphore/acquire.lua")
            ),
            Self::SemaphoreRenew => include_str!("../../src/scripts/semaphore/renew.lua"),
            Self::SemaphoreRelease => include_str!("../../src/scripts/semaphore/release.lua"),
            Self::SetPermits => concat!(
                include_str!("../../src/scripts/once.lua"),
                include_str!("../../src/scripts/semaphore/try_set.lua")
            ),
            Self::AddPermits => concat!(
                include_str!("../../src/scripts/once.lua"),
                include_str!("../../src/scripts/number.lua"),
                include_str!("../../src/scripts/semaphore/add.lua")
            ),
            Self::Drain => concat!(
                include_str!("../../src/scripts/once.lua"),
                include_str!("../../src/scripts/number.lua"),
                include_str!("../../src/scripts/semaphore/drain.lua")
            ),
            Self::PermitAcquire => concat!(
                include_str!("../../src/scripts/number.lua"),
                include_str!("../../src/scripts/permit/reap.lua"),
                include_str!("../../src/scripts/permit/acquire.lua")
            ),
            Self::PermitRenew => include_str!("../../src/scripts/permit/renew.lua"),
            Self::PermitRelease => include_str!("../../src/scripts/permit/release.lua"),
            Self::CountPermits => concat!(
                include_str!("../../src/scripts/number.lua"),
                include_str!("../../src/scripts/permit/reap.lua"),
                include_str!("../../src/scripts/permit/count.lua")
            ),
            Self::ChangePermits => concat!(
                include_str!("../../src/scripts/once.lua"),
                include_str!("../../src/scripts/number.lua"),
                include_str!("../../src/scripts/permit/reap.lua"),
                include_str!("../../src/scripts/permit/set.lua")
            ),
            Self::GiveBack => concat!(
                include_str!("../../src/scripts/once.lua"),
                include_str!("../../src/scripts/number.lua"),
                include_str!("../../src/scripts/permit/reap.lua"),
                include_str!("../../src/scripts/permit/give_back.lua")
            ),
            Self::LookAtLatch => concat!(
                include_str!("../../src/scripts/number.lua"),
                include_str!("../../src/scripts/latch/look.lua")
            ),
            Self::SetLatch => concat!(
                include_str!("../../src/scripts/once.lua"),
                include_str!("../../src/scripts/latch/try_set.lua")
            ),
            Self::CountDown => concat!(
                include_str!("../../src/scripts/once.lua"),
                include_str!("../../src/scripts/number.lua"),
                include_str!("../../src/scripts/latch/ended.lua"),
                include_str!("../../src/scripts/latch/count_down.lua")
            ),
            Self::DeleteLatch => concat!(
                include_str!("../../src/scripts/once.lua"),
                include_str!("../../src/scripts/latch/ended.lua"),
                include_str!("../../src/scripts/latch/delete.lua")
            ),
        }
    }

    pub(super) fn is_acquire(self) -> bool {
        matches!(
            self,
            Self::Acquire
                | Self::FencedAcquire
                | Self::ReadAcquire
                | Self::WriteAcquire
                | Self::SimpleAcquire
                | Self::FairAcquire
                | Self::SemaphoreAcquire
                | Self::PermitAcquire
        )
    }

    pub(super) fn is_release(self) -> bool {
        matches!(
            self,
            Self::Release
                | Self::ReadRelease
                | Self::WriteRelease
                | Self::SimpleRelease
                | Self::FairRelease
                | Self::SemaphoreRelease
                | Self::PermitRelease
        )
    }

    pub(crate) fn is_renewal(self) -> bool {
        matches!(
            self,
            Self::Renew | Self::ReadWriteRenew | Self::SimpleRenew | Self::SemaphoreRenew | Self::PermitRenew
        )
    }

    /// What a server calls it. Computed once, for thousands of worlds ask.
    pub(crate) fn sha(self) -> &'static str {
        static SHAS: LazyLock<BTreeMap<Which, String>> = LazyLock::new(|| {
            let sha = |which: Which| Script::variadic(which.text()).sha().to_owned();
            Which::ALL.into_iter().map(|which| (which, sha(which))).collect()
        });
        &SHAS[&self]
    }

    pub(super) fn by(matches: impl Fn(Self) -> bool) -> Option<Self> {
        Self::ALL.into_iter().find(|which| matches(*which))
    }
}
