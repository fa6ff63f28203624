//! An event of a history, as a value.
//!
//! Defines the vocabulary of histories, not its text form.

/// An event.
///
/// All times are nanoseconds of `CLOCK_BOOTTIME`, which all processes of a machine share. The end of a library call is recorded after the
/// call returned, and the begin is recorded before the call. So the time between two events is never too long for a belief, and never too
/// short for a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The time.
    pub at: u64,
    /// The process. The campaign itself is 0, and every incarnation of a worker has a new number.
    pub process: u32,
    /// The task of the process, or 0 for an event without a task.
    pub task: u32,
    /// The operation of the process, or 0 for an event without an operation. An operation is an attempt to acquire, with all its later
    /// events.
    pub op: u64,
    /// The lock's name, or an empty text for an event without a lock.
    pub lock: String,
    /// The kind of event.
    pub what: What,
}

/// The highest number of a process with our library. Processes with a greater number use another library.
pub const OTHERS: u32 = 1000;

/// A kind of event, with its details.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// The parameters of the checkers, in nanoseconds. The event occurs once, at the beginning.
    Setup {
        /// The longest lease of any request. If a dead waiter blocks others for longer than that, this longer time.
        longest: u64,
        /// The connection's response timeout.
        patience: u64,
        /// The time within which a release reaches a waiter while no fault is active.
        wake: u64,
    },
    /// The lock of this event is a pool with this number of permits. The event occurs before the pool is used.
    Pool {
        /// The number of permits.
        permits: u64,
    },
    /// The operation wants this number of permits of a pool. Without this event, the operation wants one permit.
    Takes {
        /// The number of permits.
        permits: u64,
    },
    /// The operation's hold has these limits, in nanoseconds from the grant.
    Limits {
        /// The time until which the lock is kept, released or not.
        min: Option<u64>,
        /// The time after which the hold ends.
        max: Option<u64>,
    },
    /// The operation takes the place of this owner, whose hold became a ticket.
    Adopts {
        /// The owner's text.
        owner: String,
    },
    /// The process is about to acquire the lock.
    Invoked {
        /// The kind of attempt.
        kind: Kind,
        /// True if the watchdog has to renew the lease.
        renewed: bool,
        /// The lease.
        lease: u64,
        /// The deadline of the wait, if there is one.
        deadline: Option<u64>,
        /// The owner, if the caller chose it before; empty otherwise.
        owner: String,
        /// True if other shared holds may exist at the same time.
        shared: bool,
    },
    /// The caller got the guard.
    Granted {
        /// The owner's text.
        owner: String,
        /// The guard's `valid_until`.
        valid_until: u64,
        /// The fencing token, for a fenced lock.
        token: Option<u64>,
    },
    /// The wait ended without the lock.
    NotGranted,
    /// The acquire failed.
    Failed {
        /// Whether the acquire may have taken effect.
        outcome: Outcome,
        /// The error's text.
        text: String,
    },
    /// The future of the acquire was dropped.
    Cancelled,
    /// The guard's `valid_until` had changed.
    Moved {
        /// Its new value.
        valid_until: u64,
    },
    /// The guard answered, at this time or later, that it is valid.
    Claimed {
        /// The later value of `valid_until` before and after that answer.
        until: u64,
    },
    /// The guard answered that it is not valid.
    Disclaimed,
    /// The guard reported the loss.
    Lost {
        /// The reason.
        reason: Reason,
        /// The guard's `valid_until` at that time.
        valid_until: u64,
    },
    /// The process is about to release the guard with confirmation.
    Releasing,
    /// The release was confirmed.
    Released,
    /// The release found the lock lost.
    AlreadyLost,
    /// The release failed, or its future was dropped. The release continues in the background.
    Unconfirmed {
        /// The error's text.
        text: String,
    },
    /// The guard became a ticket. The lock stays held for its lease, unless an operation adopts the ticket.
    Sent,
    /// The process is about to drop the guard.
    Dropped,
    /// The witness let the holder in.
    Entered {
        /// The token of the entry. It grows with every entry.
        token: u64,
    },
    /// The holder reported to the witness that it leaves.
    Left,
    /// The witness knows another holder, and the guard still reported that it was valid. Both holders believed at the same time.
    Overlap {
        /// The other holder's token.
        other: u64,
    },
    /// The process sent a write with a token to the resource that checks tokens.
    Wrote {
        /// The token.
        token: u64,
        /// The highest token the resource had accepted before.
        highest: u64,
        /// True if the resource accepted the write.
        accepted: bool,
    },
    /// The process started.
    Started,
    /// The process ended in good order, without pending requests.
    Finished,
    /// The process' manager begins to shut down. From here on, it does not retry its releases.
    ShutDown,
    /// The process was killed.
    Killed,
    /// The process was stopped (SIGSTOP).
    Stopped,
    /// The process was continued.
    Continued,
    /// From here on, the process' runtime did not run its tasks. For the campaign's own process: a CPU did not run its thread.
    Stalled {
        /// The end of the stall.
        until: u64,
    },
    /// A fault begins.
    Begins {
        /// The fault.
        fault: Fault,
        /// Its details.
        detail: String,
    },
    /// A fault ends.
    Ends {
        /// The fault.
        fault: Fault,
    },
    /// The server reported a holder of the lock.
    Holder {
        /// The owner's text.
        owner: String,
    },
    /// From here on, a lock is a majority of independent servers. A server that joins late can replace a server that has lost the lock.
    /// Then the hold is not lost, and the guard does not report a loss.
    Majority,
    /// From here on, the server's changes of its locks' queues are read without a gap.
    Watched,
    /// The server added a waiter to the end of a lock's queue.
    Queued {
        /// The owner's text.
        owner: String,
    },
    /// The server recorded a holder of a lock.
    Served {
        /// The owner's text.
        owner: String,
    },
    /// The process is about to wait for the latch.
    Awaits {
        /// The deadline of the wait, if there is one.
        deadline: Option<u64>,
    },
    /// The wait for a latch ended because it was open.
    Passed,
    /// The process is about to change a latch.
    Changes {
        /// The change.
        how: Change,
    },
    /// The latch was changed, or needed no change.
    Changed {
        /// The return value of the call.
        answer: u64,
    },
    /// The server's state of a latch from here on.
    Latch {
        /// The remaining count. An open latch has the count 0.
        left: u64,
        /// The time of the last opening of a latch with this name, by the server's clock. If it differs from an earlier value, another
        /// latch has opened since.
        opened: u64,
    },
    /// From here on, no fault is active, and no new operation begins.
    Healed,
    /// A count after all operations had ended.
    Probe {
        /// The counted things.
        name: String,
        /// The number found.
        found: u64,
        /// The number allowed.
        allowed: u64,
    },
}

/// The kind of an attempt to acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `acquire`
    Acquire,
    /// `try_acquire`
    Try,
    /// `try_acquire_for`
    TryFor,
    /// An attempt of an owner that already holds the lock.
    Again,
    /// `Lock::run`
    Run,
    /// `LockManager::adopt`
    Adopt,
}

/// A change of a latch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// `try_set_count`
    Set(u64),
    /// `count_down`
    CountDown,
    /// `delete`
    Delete,
}

/// Whether a failed operation may have taken effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// No: the request was never sent.
    NotSent,
    /// No: the server rejected it.
    Rejected,
    /// Unknown.
    MaybeExecuted,
}

/// The reason of a loss, as the guard reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The lease ended.
    Expired,
    /// The server does not know the owner.
    NotOwner,
    /// The maximum time of the hold ended.
    HeldTooLong,
}

/// A fault outside the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The server is dead.
    Down,
    /// The server has lost or is losing data.
    Forgot,
    /// The server's clock was moved.
    Clock,
    /// The server evicts keys.
    Evicting,
    /// Connections were cut.
    Cut,
    /// Messages are lost or delayed.
    Deaf,
    /// Bytes do not arrive any more, and neither side gets an error.
    Silent,
    /// The server replies late, or for a while not at all.
    Slow,
    /// The server lost its scripts.
    Flushed,
    /// Another server takes over, without the latest releases.
    Replaced,
    /// A slot moves to another server with all its keys.
    Moving,
}

impl Fault {
    /// All faults.
    pub const ALL: [Self; 11] = [
        Self::Down,
        Self::Forgot,
        Self::Clock,
        Self::Evicting,
        Self::Cut,
        Self::Deaf,
        Self::Silent,
        Self::Slow,
        Self::Flushed,
        Self::Replaced,
        Self::Moving,
    ];

    /// Returns true if locks may vanish from the server before their time. This is the only excuse for two holders.
    #[must_use]
    pub fn loses_locks(self) -> bool {
        matches!(self, Self::Forgot | Self::Clock | Self::Evicting)
    }

    /// Returns true if a request may fail or be late because of the fault. A missing script does not count, because the library resends it
    /// at once.
    #[must_use]
    pub fn disturbs(self) -> bool {
        self != Self::Flushed
    }
}
