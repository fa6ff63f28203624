//! The table of lock kinds, one row for each kind.
//!
//! Only this module knows how a lock's key and channel are named. A new kind is a row here, its Lua files, its model and its constructors.
//! The names of a lock's other keys, the parameters of its scripts and their replies belong to `wire`.

pub(crate) mod native;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, LazyLock};

use wheellock_client::Script;

/// One kind of lock, as data.
pub(crate) struct Kind {
    /// The verb and the noun of this kind, for messages.
    pub(crate) verb: &'static str,
    pub(crate) noun: &'static str,
    /// The kind's name in spans and events: the name of the method that creates such a lock.
    pub(crate) label: &'static str,
    /// Acquires one hold.
    pub(crate) acquire: Arc<Script>,
    /// Acquires one hold for a waiter, and counts the listeners. `None` if several waiters may get the lock after one release, or if the
    /// server keeps the waiters' order.
    pub(crate) poll: Option<Arc<Script>>,
    /// Acquires one hold of each of several locks, all or none; `None` if the locks are requested one after the other.
    pub(crate) acquire_all: Option<Arc<Script>>,
    /// Extends the leases of many locks at once, or reads their remaining time; `None` if this kind has no holds.
    pub(crate) renew: Option<Arc<Script>>,
    /// Writes held locks into a server that has taken over; `None` if holds of this kind do not survive a failover.
    pub(crate) reclaim: Option<Arc<Script>>,
    /// Lowers a holder's count, and notifies the waiters when the lock is free; `None` if this kind has no holds.
    pub(crate) release: Option<Arc<Script>>,
    /// Replaces a holder by a spent owner, which keeps the lock until a minimum time is over; `None` if this kind has no minimum.
    pub(crate) retire: Option<Arc<Script>>,
    /// Gives a lock to a new holder in place of the owner that a ticket names; `None` if holds of this kind have no tickets.
    pub(crate) adopt: Option<Arc<Script>>,
    /// Runs several calls of `acquire` and `release` at once. Both of these scripts are marked as parts of the bundle. `None` if each call
    /// runs by itself.
    pub(crate) bundle: Option<Arc<Script>>,
    /// Releases the lock after hand-overs within this process; `None` if this kind is never handed over.
    pub(crate) hot_release: Option<Arc<Script>>,
    /// Frees the lock, whatever its holders; `None` if this kind does not support that.
    pub(crate) force_release: Option<Arc<Script>>,
    /// Returns the holders; `None` if the server cannot distinguish them.
    pub(crate) show_holders: Option<Arc<Script>>,
    /// Returns whether the lock is held; `None` if the lock is held exactly while its key exists.
    pub(crate) is_held: Option<Arc<Script>>,
    /// Prefix of the key before the lock's name. Empty if the name is the key.
    key_prefix: &'static str,
    /// Prefix of the release channel before the lock's name.
    channel_prefix: &'static str,
    braces: Braces,
    /// Suffix of a holder's field behind the owner.
    pub(crate) holder_suffix: &'static str,
    pub(crate) holders: Holders,
    pub(crate) companions: Companions,
    pub(crate) grant: GrantForm,
    /// Several owners may hold the lock at once.
    is_shared: bool,
    /// Mode of one side of a read-write lock, for the scripts that serve both sides.
    pub(crate) mode: Option<&'static str>,
    pub(crate) wake: Wake,
    /// The release of a missing hold makes the server reject a late request for that hold. Kinds with leases do not need this, because
    /// their leases expire.
    pub(crate) has_release_record: bool,
    /// A refused waiter leaves an entry or a mark on the server. A waiter that gives up withdraws its entry or mark.
    pub(crate) queues_on_server: bool,
}

/// How the server stores the holders of a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Holders {
    /// A hash of holder to hold count.
    Counted,
    /// A string with the only holder. Not reentrant.
    Single,
    /// A set of permits. Each permit has an id.
    Permits,
    /// No holder is in the lock's key, which is only a number.
    Beside,
}

/// When the channel has braces around the lock's name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Braces {
    /// If the name contains no opening brace.
    IfMissing,
    /// Always, except in a cluster. There the channel of a name with a hash tag would be in another slot than the lock.
    Always,
}

/// Further keys of a lock. The scripts build their names from the keys' common part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Companions {
    None,
    /// The counter of the fencing tokens, which only an acquire touches, and a leader's announcement, which a renewal keeps.
    Token,
    /// The leases of the readers, one key each. Every script touches them.
    ReadLeases,
    /// The server's queue of waiters. Every script but the renewal touches it.
    Queue,
    /// The number of permits of each holder of a semaphore, one key each. Every script touches them.
    Permits,
    /// The ends of the permits' leases. Every script touches them.
    PermitLeases,
    /// The time when the last latch of the name ended.
    Ended,
}

/// The reply of `acquire` to a grant. A refusal has the same form for all kinds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GrantForm {
    /// Nil if the lock was free, AGAIN if the holder had it already.
    Plain,
    /// A list of two: 1 or 2 for the same, and the fencing token.
    Token,
    /// A list of two: 1 or 2 for the same, and the number of further permits that are free.
    Permits,
}

/// The channel that a waiter subscribes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wake {
    /// The lock's channel. The first waiter of a process subscribes and polls for all waiters.
    Channel,
    /// A channel for each waiter, because the server knows which waiter is next. Every waiter subscribes and polls for itself.
    OwnChannel,
}

/// Concatenates Lua files below `scripts`. Only a macro can do so at compile time.
macro_rules! lua {
    ($($file:literal),+) => {
        concat!($(include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/scripts/", $file))),+)
    };
}
pub(crate) use lua;

/// The reentrant lock: Redisson's `RLock`. A hash of owner to hold count under the lock's plain name.
pub(crate) static REENTRANT: LazyLock<Kind> = LazyLock::new(|| {
    let row = Kind::counted("", PLAIN_CHANNEL).retired();
    row.handed_over().bundled_by(lua!("holders_of.lua", "together.lua")).polled()
});

/// The reentrant lock that numbers every grant: Redisson's `RFencedLock`.
pub(crate) static FENCED: LazyLock<Kind> = LazyLock::new(|| {
    let row = Kind {
        label: "fenced_lock",
        acquire: script(lua!("holders_of.lua", "token.lua", "fenced/acquire.lua"), 4),
        acquire_all: None,
        renew: Some(variadic(lua!("fenced/renew.lua"))),
        adopt: Some(script(lua!("token.lua", "adopting.lua", "fenced/adopt.lua"), 4)),
        companions: Companions::Token,
        grant: GrantForm::Token,
        ..Kind::counted("", PLAIN_CHANNEL).retired()
    };
    row.bundled().polled()
});

/// The shared side of a read-write lock: Redisson's `RReadWriteLock.readLock()`.
pub(crate) static READ: LazyLock<Kind> = LazyLock::new(|| {
    let row = Kind {
        label: "read",
        acquire: script(lua!("read/acquire.lua"), 5),
        release: Some(script(lua!("read/release.lua", "read_write/live.lua", "read/leave.lua"), 5)),
        adopt: None,
        is_shared: true,
        ..Kind::read_write("read")
    };
    row.bundled_with(lua!("read_write/live.lua", "read/many.lua"))
});

/// The exclusive side of a read-write lock: Redisson's `RReadWriteLock.writeLock()`.
pub(crate) static WRITE: LazyLock<Kind> = LazyLock::new(|| {
    let row = Kind {
        label: "write",
        acquire: script(lua!("write/grant.lua", "write/acquire.lua"), 5),
        release: Some(script(lua!("read_write/live.lua", "write/release.lua"), 5)),
        holder_suffix: WRITER,
        queues_on_server: true,
        ..Kind::read_write("write")
    };
    row.handed_over().bundled().polled()
});

/// The reentrant lock that all processes are granted in the order of their requests: Redisson's `RFairLock`.
pub(crate) static FAIR: LazyLock<Kind> = LazyLock::new(|| {
    let row = Kind {
        label: "fair_lock",
        acquire: script(lua!("holders_of.lua", "fair/queue.lua", "fair/acquire.lua"), 7),
        acquire_all: None,
        release: Some(script(lua!("fair/queue.lua", "fair/release.lua"), 5)),
        force_release: Some(script(lua!("holders_of.lua", "fair/queue.lua", "fair/force_release.lua"), 5)),
        companions: Companions::Queue,
        wake: Wake::OwnChannel,
        queues_on_server: true,
        ..Kind::counted("", PLAIN_CHANNEL).retired()
    };
    row.bundled()
});

/// The lock of a single instance, as in Redis's own documentation: a string that is set only if it does not exist. Many other libraries use
/// the same lock. The channel is an addition of this library.
pub(crate) static SIMPLE: LazyLock<Kind> = LazyLock::new(|| {
    let row = Kind {
        label: "simple_lock",
        acquire: Arc::new(Script::new(lua!("simple/acquire.lua"), 1, 3).natively(&native::SET)),
        acquire_all: None,
        renew: Some(variadic(lua!("simple/renew.lua"))),
        reclaim: Some(variadic(lua!("fleet/grace.lua", "simple/reclaim.lua"))),
        release: Some(Arc::new(Script::new(lua!("simple/release.lua"), 1, 4).natively(&native::DELETE))),
        retire: Some(script(lua!("simple/retire.lua"), 6)),
        adopt: Some(script(lua!("simple/adopt.lua"), 3)),
        force_release: Some(script(lua!("simple/force_release.lua"), 4)),
        show_holders: Some(script(lua!("simple/holders.lua"), 1)),
        holders: Holders::Single,
        ..Kind::counted("", "wheellock_simple:")
    };
    row.bundled_by(lua!("simple/together.lua")).polled()
});

/// The counted semaphore: Redisson's `RSemaphore`. Only this library stores the permits of each holder, so that each permit is released
/// once.
pub(crate) static SEMAPHORE: LazyLock<Kind> = LazyLock::new(|| {
    let row = Kind {
        label: "semaphore",
        acquire: script(lua!("number.lua", "semaphore/acquire.lua"), 4),
        renew: Some(variadic(lua!("semaphore/renew.lua"))),
        release: Some(script(lua!("semaphore/release.lua"), 5)),
        companions: Companions::Permits,
        has_release_record: true,
        ..Kind::semaphore()
    };
    row.bundled()
});

/// Extends the leases of permits, or reads their remaining time.
pub(crate) static RENEW_PERMITS: LazyLock<Arc<Script>> = LazyLock::new(|| variadic(lua!("permit/renew.lua")));

/// The semaphore whose permits have leases: Redisson's `RPermitExpirableSemaphore`.
pub(crate) static PERMIT: LazyLock<Kind> = LazyLock::new(|| {
    let row = Kind {
        label: "permit_semaphore",
        acquire: script(lua!("number.lua", "permit/reap.lua", "permit/acquire.lua"), 6),
        renew: Some(Arc::clone(&RENEW_PERMITS)),
        reclaim: Some(variadic(lua!("fleet/grace.lua", "permit/reclaim.lua"))),
        release: Some(script(lua!("permit/release.lua"), 5)),
        holders: Holders::Permits,
        companions: Companions::PermitLeases,
        ..Kind::semaphore()
    };
    row.bundled()
});

/// The latch that opens when it has been counted down to zero: Redisson's `RCountDownLatch`. Callers wait for a latch, but do not hold it.
pub(crate) static LATCH: LazyLock<Kind> = LazyLock::new(|| Kind {
    label: "count_down_latch",
    verb: "wait for",
    noun: "latch",
    acquire: script(lua!("number.lua", "latch/look.lua"), 1),
    acquire_all: None,
    renew: None,
    reclaim: None,
    release: None,
    adopt: None,
    force_release: None,
    show_holders: None,
    braces: Braces::Always,
    holders: Holders::Beside,
    companions: Companions::Ended,
    is_shared: true,
    ..Kind::counted("", "redisson_countdownlatch__channel__")
});

// new-kind: row

/// Channel prefix of all locks that are only a hash of holders.
/// The end of the holder's text of an owner that writes.
pub(crate) const WRITER: &str = ":write";

const PLAIN_CHANNEL: &str = "redisson_lock__channel:";

/// Refreshes this process's entry in the fleet of a server, and drives the grace after a failover.
pub(crate) static REFRESH: LazyLock<Script> = LazyLock::new(|| Script::new(lua!("fleet/refresh.lua"), 3, 10));

/// Removes this process from the fleet of a server.
pub(crate) static LEAVE: LazyLock<Script> = LazyLock::new(|| Script::new(lua!("fleet/leave.lua"), 2, 1));

/// Marks that a contender polls for a lock.
pub(crate) static MARK: LazyLock<Script> = LazyLock::new(|| Script::new(lua!("mark.lua"), 1, 2));

/// Notifies the waiters for a lock that was released without a message.
pub(crate) static TELL: LazyLock<Script> = LazyLock::new(|| Script::new(lua!("tell.lua"), 1, 2));

/// Describes the locks among many keys.
pub(crate) static LIST: LazyLock<Arc<Script>> = LazyLock::new(|| variadic(lua!("list.lua")));

/// The rows of the table.
static ROWS: &[&LazyLock<Kind>] = &[
    &REENTRANT, &FAIR, &READ, &WRITE, &FENCED, &SIMPLE, &SEMAPHORE, &PERMIT, &LATCH,
    // new-kind: rows
];

/// Returns the rows, always in the same order.
pub(crate) fn rows() -> impl Iterator<Item = &'static Kind> {
    ROWS.iter().map(|row| &***row)
}

/// Returns the scripts that a connection loads before its first use. A manager `in_fleet` also loads those that write held locks into a new
/// server.
pub(crate) fn scripts(in_fleet: bool) -> Vec<Arc<Script>> {
    let mut scripts: Vec<Arc<Script>> = Vec::new();
    for kind in rows() {
        for script in kind.scripts().chain(kind.reclaim.iter().filter(|_| in_fleet)) {
            if !scripts.iter().any(|known| known.sha() == script.sha()) {
                scripts.push(Arc::clone(script));
            }
        }
    }
    scripts
}

/// Every command that a kind's scripts run, with the labels of these kinds. Read from the scripts once, because each new manager needs it.
pub(crate) static COMMANDS: LazyLock<BTreeMap<&'static str, Vec<&'static str>>> = LazyLock::new(|| {
    let mut commands = BTreeMap::<_, Vec<_>>::new();
    for kind in rows() {
        for command in kind.scripts().flat_map(|script| called(script.text())) {
            let kinds = commands.entry(command).or_default();
            if !kinds.contains(&kind.label) {
                kinds.push(kind.label);
            }
        }
    }
    commands
});

/// Returns the commands without which a plain lock can be neither taken, renewed nor released.
pub(crate) fn needed_by_plain_locks() -> impl Iterator<Item = &'static str> {
    let Kind { acquire, renew, release, .. } = &*REENTRANT;
    let scripts = std::iter::once(acquire).chain(renew).chain(release);
    scripts.flat_map(|script| called(script.text()))
}

/// Returns the commands that a script calls. A call is `call('hset', ..)` or `try`, which is `redis.pcall`.
fn called(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.split("('").zip(text.split("('").skip(1)).filter_map(|(before, behind)| {
        let is_call = before.ends_with("call") || before.ends_with("try");
        behind.split_once('\'').filter(|_| is_call).map(|(command, _)| command)
    })
}

impl Kind {
    /// Returns a kind whose holders are counted in a hash.
    pub(crate) fn counted(key_prefix: &'static str, channel_prefix: &'static str) -> Self {
        Self {
            verb: "acquire",
            noun: "lock",
            label: "lock",
            acquire: script(lua!("holders_of.lua", "acquire.lua"), 3),
            poll: None,
            acquire_all: Some(variadic(lua!("holders_of.lua", "acquire_all.lua"))),
            renew: Some(variadic(lua!("renew.lua"))),
            reclaim: Some(variadic(lua!("fleet/grace.lua", "reclaim.lua"))),
            release: Some(script(lua!("release.lua"), 4)),
            retire: None,
            adopt: Some(script(lua!("adopting.lua", "adopt.lua"), 3)),
            bundle: None,
            hot_release: None,
            force_release: Some(script(lua!("holders_of.lua", "force_release.lua"), 4)),
            show_holders: Some(script(lua!("holders_of.lua", "holders.lua"), 1)),
            is_held: None,
            key_prefix,
            channel_prefix,
            braces: Braces::IfMissing,
            holder_suffix: "",
            holders: Holders::Counted,
            companions: Companions::None,
            grant: GrantForm::Plain,
            is_shared: false,
            mode: None,
            wake: Wake::Channel,
            has_release_record: false,
            queues_on_server: false,
        }
    }

    /// Returns one side of a read-write lock: a hash of owner to hold count. The field `mode` in the hash says which side is held.
    fn read_write(mode: &'static str) -> Self {
        Self {
            acquire_all: None,
            renew: Some(variadic(lua!("read_write/live.lua", "read_write/renew.lua"))),
            reclaim: Some(variadic(lua!("fleet/grace.lua", "read_write/reclaim.lua"))),
            force_release: Some(script(lua!("read_write/force_release.lua"), 6)),
            show_holders: Some(script(lua!("read_write/holders.lua"), 3)),
            is_held: Some(script(lua!("read_write/is_held.lua"), 1)),
            companions: Companions::ReadLeases,
            mode: Some(mode),
            ..Self::counted("", "redisson_rwlock:")
        }
    }

    /// Returns a semaphore: a number of permits, each of which may belong to a different holder.
    fn semaphore() -> Self {
        Self {
            noun: "semaphore",
            acquire_all: None,
            reclaim: None,
            adopt: None,
            force_release: None,
            show_holders: None,
            holders: Holders::Beside,
            grant: GrantForm::Permits,
            is_shared: true,
            ..Self::counted("", "redisson_sc:")
        }
    }

    /// Adds a minimum time: the release of a hold may leave the lock to a spent owner.
    fn retired(self) -> Self {
        Self { retire: Some(script(lua!("retire.lua"), 6)), ..self }
    }

    /// Adds hand-over: a hold may pass to another waiter of this process without a request to the server.
    fn handed_over(self) -> Self {
        let Some(release) = &self.release else { return self };
        let text = lua!("hot_release.lua").replace("%release\n", release.text());
        // A row is created once and lives as long as the process.
        Self { hot_release: Some(script(text.leak(), args_of(release) + 2)), ..self }
    }

    /// Adds a script that serves several callers at once. For each call it runs this kind's own `acquire` or `release`.
    fn bundled(self) -> Self {
        self.bundled_with("local many\n")
    }

    /// Adds that script. Its Lua function `many` serves neighbouring calls for one lock at once.
    fn bundled_with(self, many: &str) -> Self {
        let Some(release) = &self.release else { return self };
        let text = lua!("bundle.lua")
            .replace("%takes", &args_of(&self.acquire).to_string())
            .replace("%gives", &args_of(release).to_string())
            .replace("%acquire\n", self.acquire.text())
            .replace("%release\n", release.text())
            .replace("%many\n", many);
        // A row is created once and lives as long as the process.
        self.bundled_by(text.leak())
    }

    /// Adds a faster script that was written for this kind.
    fn bundled_by(self, text: &'static str) -> Self {
        let Some(release) = &self.release else { return self };
        let whole = variadic(text);
        Self {
            acquire: Arc::new(self.acquire.as_part(&whole, 1)),
            release: Some(Arc::new(release.as_part(&whole, 2))),
            bundle: Some(whole),
            ..self
        }
    }

    /// Adds the script `poll`, so that waiters pause where many processes wait.
    fn polled(self) -> Self {
        let text = lua!("poll.lua").replace("%acquire\n", self.acquire.text());
        // A row is created once and lives as long as the process. The script does not use the native command, because a script would have
        // to follow each refusal.
        Self { poll: Some(script(text.leak(), args_of(&self.acquire) + 2)), ..self }
    }

    /// Returns the scripts that acquire, renew and release. Scripts that only show something are loaded at their first use.
    fn scripts(&self) -> impl Iterator<Item = &Arc<Script>> {
        let Self { acquire, poll, acquire_all, renew, release, retire, adopt, .. } = self;
        let Self { bundle, hot_release, force_release, .. } = self;
        let others = [poll, acquire_all, renew, release, retire, adopt, bundle, hot_release, force_release];
        std::iter::once(acquire).chain(others.into_iter().flatten())
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Returns true if a hold may pass to another waiter of this process without a request to the server. That suits kinds with one holder
    /// at a time, without an order on the server and without fencing tokens. A simple lock does not qualify: its other users poll and are
    /// not counted.
    pub(crate) fn may_be_handed_over(&self) -> bool {
        self.hot_release.is_some()
    }

    /// Returns true if a process leaves a released lock to the listeners of other processes. Readers and permits need not: many may hold
    /// those.
    pub(crate) fn stands_back(&self) -> bool {
        self.wake == Wake::Channel && !self.is_shared()
    }

    /// Returns true if hand-over, of this kind or of another, may keep locks of this kind from their contenders.
    pub(crate) fn may_meet_hand_over(&self) -> bool {
        rows().any(|other| other.may_be_handed_over() && self.shares_hash_with(other))
    }

    /// Returns the other kinds that are the same lock on the server and have the same channel. A message that reaches one connection counts
    /// once for all of them.
    pub(crate) fn others_of_its_channel(&self) -> impl Iterator<Item = &'static Self> {
        let is_same = |other: &&Self| self.channel_prefix == other.channel_prefix && self.wake == other.wake;
        rows().filter(is_same).filter(|other| other.address() != self.address())
    }

    /// Returns true if this kind is the read side of a read-write lock.
    pub(crate) fn is_read_side(&self) -> bool {
        self.is_shared() && self.is_one_side()
    }

    /// Returns true if this kind is one side of a read-write lock.
    fn is_one_side(&self) -> bool {
        self.mode.is_some()
    }

    /// Returns the other kinds with the same holders on the server.
    pub(crate) fn others_of_its_hash(&self) -> impl Iterator<Item = &'static Self> {
        rows().filter(|other| self.has_same_holders(other) && other.address() != self.address())
    }

    /// Returns true if locks of both kinds have the same holders on the server: the same fields of the same hash. Each kind treats the
    /// holders of the other as its own.
    pub(crate) fn has_same_holders(&self, other: &Self) -> bool {
        self.shares_hash_with(other) && self.holder_suffix == other.holder_suffix
    }

    /// Returns true if locks of both kinds are one hash of holders on the server, of the same shape.
    fn shares_hash_with(&self, other: &Self) -> bool {
        let hash = |kind: &Self| (kind.holders, kind.key_prefix, kind.is_one_side());
        self.holders == Holders::Counted && hash(self) == hash(other)
    }

    /// Returns true if the holders are in the lock's key, so that a change of the key may be a release. A semaphore's key is only a count,
    /// which changes with each acquire.
    pub(crate) fn has_holders_in_its_key(&self) -> bool {
        matches!(self.holders, Holders::Counted | Holders::Single)
    }

    /// Returns true if all holders are in one key, so that a change of this key may be a loss.
    pub(crate) fn has_holders_in_one_key(&self) -> bool {
        self.holders != Holders::Beside
    }

    /// Returns true if a holder may shorten the leases of other holders.
    pub(crate) fn may_be_shortened(&self) -> bool {
        self.is_read_side()
    }

    /// Returns true if each of an owner's holds has a separate lease.
    pub(crate) fn has_a_lease_each(&self) -> bool {
        self.is_read_side()
    }

    /// Returns a number that distinguishes this kind from others.
    pub(crate) fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Returns the channel of the lock `name`, and the position of the name in the channel.
    pub(crate) fn channel(&self, name: &str, in_cluster: bool) -> (String, Range<u32>) {
        let braced = !name.contains('{') || (self.braces == Braces::Always && !in_cluster);
        let start = self.channel_prefix.len() + usize::from(braced);
        // A name of 4 GiB gets an empty range, and is rejected as an empty name.
        let place = |at: usize| u32::try_from(at).unwrap_or_default();
        (prefix_name(self.channel_prefix, name, braced), place(start)..place(start + name.len()))
    }

    /// Returns the key, if it is not the name itself.
    pub(crate) fn own_key(&self, name: &str) -> Option<String> {
        self.has_own_key().then(|| prefix_name(self.key_prefix, name, !name.contains('{')))
    }

    pub(crate) fn has_own_key(&self) -> bool {
        !self.key_prefix.is_empty()
    }

    /// Returns the start of the keys' common part within the channel.
    pub(crate) fn tag_in_channel(&self) -> usize {
        self.channel_prefix.len()
    }

    /// Returns true if the channel has added braces around a name that begins at `start`.
    pub(crate) fn is_braced(&self, start: u32) -> bool {
        start as usize > self.channel_prefix.len()
    }
}

/// Returns a script for one lock, with this number of arguments behind the lock's key.
fn script(text: &'static str, args: usize) -> Arc<Script> {
    Arc::new(Script::new(text, 1, args))
}

/// Returns a script for several locks.
fn variadic(text: &'static str) -> Arc<Script> {
    Arc::new(Script::variadic(text))
}

/// Returns the number of arguments behind the lock's key.
fn args_of(script: &Script) -> usize {
    script.arity().map_or(0, |(keys, params)| params - keys)
}

/// Puts the lock and its further keys into one hash slot, exactly as Redisson's `prefixName` does. Braces are added unless the name
/// contains an opening brace, closed or not.
fn prefix_name(prefix: &str, name: &str, braced: bool) -> String {
    if braced { format!("{prefix}{{{name}}}") } else { format!("{prefix}{name}") }
}

#[cfg(test)]
mod tests;
