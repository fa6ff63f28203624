//! One thing that happened, as a value. Owns the vocabulary of histories, not its spelling.

/// One thing that happened.
///
/// All times are nanoseconds of `CLOCK_BOOTTIME`, which all processes of a machine share. An event that ends something
/// the library did is recorded after the call returned, one that begins something before the call: what is measured
/// between two events is never longer than the truth for a belief, and never shorter for a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When.
    pub at: u64,
    /// Whose process: 0 is the campaign itself, and every incarnation of a worker has a number of its own.
    pub process: u32,
    /// Which of its tasks; 0 if none in particular.
    pub task: u32,
    /// Which operation of the process; 0 if none. One operation is one attempt to acquire and all that follows from it.
    pub op: u64,
    /// The lock's name; empty if none in particular.
    pub lock: String,
    /// What.
    pub what: What,
}

/// Processes with a greater number are those of another library.
pub const OTHERS: u32 = 1000;

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// The terms under which everything else is judged, in nanoseconds. Comes once, first.
    Setup {
        /// The longest lease anybody asks for; or, if that is longer, for how long one who has died is in the way of others.
        longest: u64,
        /// The connection's response timeout.
        patience: u64,
        /// How long a release may take to reach a waiter while nothing is disturbed.
        wake: u64,
    },
    /// What is called a lock here is a pool: so many permits of it may be had at once. Comes before they are asked for.
    Pool {
        /// How many.
        permits: u64,
    },
    /// The operation is about so many permits of a pool; of one, where nothing is said.
    Takes {
        /// How many.
        permits: u64,
    },
    /// The lock is about to be asked for.
    Invoked {
        /// How.
        kind: Kind,
        /// Whether the watchdog is to renew it.
        renewed: bool,
        /// The lease.
        lease: u64,
        /// When the wait is to end, if it is to.
        deadline: Option<u64>,
        /// The owner, if it was chosen before; empty otherwise.
        owner: String,
        /// Whether others who share may hold it at the same time.
        shared: bool,
    },
    /// The guard is here.
    Granted {
        /// The owner's text.
        owner: String,
        /// Until when it says it may be believed.
        valid_until: u64,
        /// Its fencing token, if its kind of lock has them.
        token: Option<u64>,
    },
    /// The wait ended without the lock.
    NotGranted,
    /// The acquire failed.
    Failed {
        /// Whether it may have taken effect.
        outcome: Outcome,
        /// The error's text.
        text: String,
    },
    /// The future of the acquire was dropped.
    Cancelled,
    /// The guard's `valid_until` was seen to have changed.
    Moved {
        /// Its new value.
        valid_until: u64,
    },
    /// The guard was asked at this time, or later, whether it is valid, and said yes.
    Claimed {
        /// The larger one of its `valid_until` before and after.
        until: u64,
    },
    /// The guard said that it is not valid.
    Disclaimed,
    /// The guard reported the loss.
    Lost {
        /// Why.
        reason: Reason,
        /// Its `valid_until` then.
        valid_until: u64,
    },
    /// The guard is about to be released with confirmation.
    Releasing,
    /// The release was confirmed.
    Released,
    /// The release found the lock lost.
    AlreadyLost,
    /// The release failed, or its future was dropped; it goes on in the background.
    Unconfirmed {
        /// The error's text.
        text: String,
    },
    /// The guard is about to be dropped.
    Dropped,
    /// The witness let the holder in.
    Entered {
        /// Grows with every entry.
        token: u64,
    },
    /// The holder told the witness that it is leaving.
    Left,
    /// The witness knows another holder, and after that the guard still said it was valid: two believed at once.
    Overlap {
        /// The other one's token.
        other: u64,
    },
    /// A write with a token was offered to the resource that checks tokens.
    Wrote {
        /// The token.
        token: u64,
        /// The highest token the resource had accepted before.
        highest: u64,
        /// Whether it took the write.
        accepted: bool,
    },
    /// The process started.
    Started,
    /// The process ended in good order: nothing of its is pending.
    Finished,
    /// The process' manager begins to shut down: from here on nothing that it gave back is given back again.
    ShutDown,
    /// The process was killed.
    Killed,
    /// The process was stopped (SIGSTOP).
    Stopped,
    /// The process was continued.
    Continued,
    /// The process' runtime did not run its tasks from here on; the campaign's own process: a CPU ran nothing for it.
    Stalled {
        /// Until then.
        until: u64,
    },
    /// A fault begins.
    Begins {
        /// Which.
        fault: Fault,
        /// What in particular.
        detail: String,
    },
    /// A fault ends.
    Ends {
        /// Which.
        fault: Fault,
    },
    /// The server was asked who holds the lock.
    Holder {
        /// The owner's text.
        owner: String,
    },
    /// From here on a lock is a majority of independent servers: one that joins late may make up for one that has forgotten, and then
    /// nothing is lost that could be told.
    Majority,
    /// From here on what the server does to the queues of its locks is read without a gap.
    Watched,
    /// The server put somebody at the end of a lock's queue.
    Queued {
        /// The owner's text.
        owner: String,
    },
    /// The server wrote down that somebody holds a lock.
    Served {
        /// The owner's text.
        owner: String,
    },
    /// The latch is about to be waited for.
    Awaits {
        /// When the wait is to end, if it is to.
        deadline: Option<u64>,
    },
    /// The wait for a latch ended because it was open.
    Passed,
    /// A latch is about to be changed.
    Changes {
        /// How.
        how: Change,
    },
    /// The latch was changed, or needed no change.
    Changed {
        /// What the call returned.
        answer: u64,
    },
    /// What the server knows of a latch from here on.
    Latch {
        /// How often it is to be counted down still; 0 if it is open.
        left: u64,
        /// When the last one of this name has opened, by the server's clock: another one has since then if this is not what it was.
        opened: u64,
    },
    /// From here on nothing is disturbed, and no new operation begins.
    Healed,
    /// Something was counted after everything had ended.
    Probe {
        /// What.
        name: String,
        /// How many there were.
        found: u64,
        /// How many there may be.
        allowed: u64,
    },
}

/// How a lock was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `acquire`
    Acquire,
    /// `try_acquire`
    Try,
    /// `try_acquire_for`
    TryFor,
    /// By an owner that holds the lock already.
    Again,
    /// `Lock::run`
    Run,
}

/// What may be done to a latch.
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
    /// Certainly not: it was never sent.
    NotSent,
    /// Certainly not: the server refused it.
    Rejected,
    /// Nobody knows.
    MaybeExecuted,
}

/// Why a lock was lost, in the guard's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// Its lease ran out.
    Expired,
    /// The server does not know the owner.
    NotOwner,
}

/// What can be wrong outside the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The server is dead.
    Down,
    /// The server has lost or is losing what it knew.
    Forgot,
    /// The server's clock was moved.
    Clock,
    /// The server evicts keys.
    Evicting,
    /// Connections were cut.
    Cut,
    /// Messages are lost or late.
    Deaf,
    /// Nothing arrives any more, and nobody is told.
    Silent,
    /// The server answers late, or not at all for a while.
    Slow,
    /// The server's scripts were forgotten.
    Flushed,
    /// Another server takes over, which has not heard of what was released last.
    Replaced,
}

impl Fault {
    /// Every fault.
    pub const ALL: [Self; 10] = [
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
    ];

    /// Whether locks may vanish from the server before their time: the only excuse for two holders.
    #[must_use]
    pub fn loses_locks(self) -> bool {
        matches!(self, Self::Forgot | Self::Clock | Self::Evicting)
    }

    /// Whether a request may fail or be late for it. A forgotten script is repeated at once.
    #[must_use]
    pub fn disturbs(self) -> bool {
        self != Self::Flushed
    }
}
