//! The rows of the table of kinds: what tells one kind of lock from another. The only place that knows what a lock's key and channel
//! are called; a new kind is a row here and its Lua files. The names of what belongs to a lock besides, what goes into the scripts and what
//! comes out of them are `wire`'s.

pub(crate) mod native;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, LazyLock};

use wheellock_client::Script;

/// One kind of lock, as data.
pub(crate) struct Kind {
    /// What is done with it, and what it is, for messages.
    pub(crate) verb: &'static str,
    pub(crate) noun: &'static str,
    /// What spans and events call it: the method's name that makes one.
    pub(crate) label: &'static str,
    /// Takes one hold.
    pub(crate) acquire: Arc<Script>,
    /// The same for a waiter, which is told how many others wait; `None` if several may get the lock after one release, or if the
    /// server keeps their order.
    pub(crate) poll: Option<Arc<Script>>,
    /// Takes one hold of each of several locks, all or none; `None` if they are asked for one after the other.
    pub(crate) acquire_all: Option<Arc<Script>>,
    /// Extends the leases of many locks at once, or looks how long they run; `None` if nothing is held.
    pub(crate) renew: Option<Arc<Script>>,
    /// Brings a holder's count down, and tells the waiters when the lock is free; `None` if nothing is held.
    pub(crate) release: Option<Arc<Script>>,
    /// Does in one run what several calls of `acquire` and `release` ask for, both of which say that they are parts of it; `None` if each
    /// call is a run of its own.
    pub(crate) bundle: Option<Arc<Script>>,
    /// Releases it after its holds were handed over within this process; `None` if they never are.
    pub(crate) hot_release: Option<Arc<Script>>,
    /// Frees the lock, no matter who holds it; `None` if that cannot be asked for.
    pub(crate) force_release: Option<Arc<Script>>,
    /// Says who holds it; `None` if nobody can be told from others.
    pub(crate) show_holders: Option<Arc<Script>>,
    /// Says whether it is held; `None` if the key's being there says it.
    pub(crate) is_held: Option<Arc<Script>>,
    /// What its key has before its name; empty where the name is the key.
    key_prefix: &'static str,
    /// What the channel on which releases are told has before the name.
    channel_prefix: &'static str,
    braces: Braces,
    /// What a holder's field has behind the owner.
    pub(crate) holder_suffix: &'static str,
    pub(crate) holders: Holders,
    pub(crate) companions: Companions,
    pub(crate) sharing: Sharing,
    /// Of one side of a read-write lock: in which way it is held, for the scripts that serve both.
    pub(crate) mode: Option<&'static str>,
    pub(crate) wake: Wake,
    /// Whether a caller who was refused and waits leaves something on the server, which is taken back if it gives up.
    pub(crate) leaves_mark: bool,
}

/// How the server knows who holds a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Holders {
    /// A hash of holder to hold count.
    Counted,
    /// A string, the only holder; not reentrant.
    Single,
    /// A set of permits, each with an id of its own.
    Permits,
}

/// When braces are put around the name in its channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Braces {
    /// If it has no opening one of its own.
    IfMissing,
    /// Always, but in a cluster, where a name with a hash tag would then have its channel in another slot.
    Always,
}

/// Keys that belong to a lock besides its own; scripts build their names from what they have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Companions {
    None,
    /// The counter of its fencing tokens, which only an acquire touches.
    Token,
    /// The leases of its readers, one key each, which every script touches.
    ReadLeases,
    /// The server's queue of those who wait, which every script touches but the renewal.
    Queue,
    /// What each holder has of a semaphore, one key each, which every script touches.
    Permits,
    /// The ends of the permits' leases, which every script touches.
    PermitLeases,
    /// When the last latch of a name has ended.
    Ended,
}

/// What a waiter listens to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wake {
    /// The lock's channel: the first waiter of a process listens and asks for all.
    Channel,
    /// A channel of its own, because the server knows who is next: every waiter listens and asks for itself.
    OwnChannel,
}

/// How many may hold a lock at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sharing {
    One,
    Many,
}

/// The reentrant lock: Redisson's `RLock`. A hash of owner to hold count under the lock's raw name.
pub(crate) static REENTRANT: LazyLock<Kind> = LazyLock::new(|| {
    Kind::counted("", PLAIN_CHANNEL)
        .handed_over()
        .bundled_by(concat!(
            include_str!("../scripts/holders_of.lua"),
            include_str!("../scripts/together.lua")
        ))
        .polled()
});

/// The reentrant lock whose every grant has a number: Redisson's `RFencedLock`.
pub(crate) static FENCED: LazyLock<Kind> = LazyLock::new(|| {
    let row = Kind {
        label: "fenced_lock",
        acquire: Arc::new(Script::new(
            concat!(include_str!("../scripts/holders_of.lua"), include_str!("../scripts/fenced/acquire.lua")),
            1,
            4,
        )),
        acquire_all: None,
        companions: Companions::Token,
        ..Kind::counted("", PLAIN_CHANNEL)
    };
    row.bundled().polled()
});

/// The shared side of a read-write lock: Redisson's `RReadWriteLock.readLock()`.
pub(crate) static READ: LazyLock<Kind> = LazyLock::new(|| {
    let row = Kind {
        label: "read",
        acquire: Arc::new(Script::new(include_str!("../scripts/read/acquire.lua"), 1, 5)),
        release: Some(Arc::new(Script::new(
            concat!(
                include_str!("../scripts/read/release.lua"),
                include_str!("../scripts/read_write/live.lua"),
                include_str!("../scripts/read/leave.lua")
            ),
            1,
            5,
        ))),
        sharing: Sharing::Many,
        ..Kind::read_write("read")
    };
    row.bundled_with(concat!(
        include_str!("../scripts/read_write/live.lua"),
        include_str!("../scripts/read/many.lua")
    ))
});

/// The exclusive side of a read-write lock: Redisson's `RReadWriteLock.writeLock()`.
pub(crate) static WRITE: LazyLock<Kind> = LazyLock::new(|| {
    let row = Kind {
        label: "write",
        acquire: Arc::new(Script::new(include_str!("../scripts/write/acquire.lua"), 1, 5)),
        release: Some(Arc::new(Script::new(
            concat!(
                include_str!("../scripts/read_write/live.lua"),
                include_str!("../scripts/write/release.lua")
            ),
            1,
            5,
        ))),
        holder_suffix: ":write",
        leaves_mark: true,
        ..Kind::read_write("write")
    };
    row.handed_over().bundled().polled()
});

/// The reentrant lock that is granted in the order in which callers came, over all processes: Redisson's `RFairLock`.
pub(crate) static FAIR: LazyLock<Kind> = LazyLock::new(|| {
    let row = Kind {
        label: "fair_lock",
        acquire: Arc::new(Script::new(
            concat!(
                include_str!("../scripts/holders_of.lua"),
                include_str!("../scripts/fair/queue.lua"),
                include_str!("../scripts/fair/acquire.lua")
            ),
            1,
            7,
        )),
        acquire_all: None,
        release: Some(Arc::new(Script::new(
            concat!(include_str!("../scripts/fair/queue.lua"), include_str!("../scripts/fair/release.lua")),
            1,
            5,
        ))),
        force_release: Some(Arc::new(Script::new(
            concat!(
                include_str!("../scripts/holders_of.lua"),
                include_str!("../scripts/fair/queue.lua"),
                include_str!("../scripts/fair/force_release.lua")
            ),
            1,
            3,
        ))),
        companions: Companions::Queue,
        wake: Wake::OwnChannel,
        leaves_mark: true,
        ..Kind::counted("", PLAIN_CHANNEL)
    };
    row.bundled()
});

/// The lock of a single instance, as Redis's own documentation describes it: a string, set only if it is not there. Everybody
/// else speaks it; the channel is ours.
pub(crate) static SIMPLE: LazyLock<Kind> = LazyLock::new(|| {
    let row = Kind {
        label: "simple_lock",
        acquire: Arc::new(
            Script::new(include_str!("../scripts/simple/acquire.lua"), 1, 3).natively(&native::SET),
        ),
        acquire_all: None,
        renew: Some(Arc::new(Script::variadic(include_str!("../scripts/simple/renew.lua")))),
        release: Some(Arc::new(
            Script::new(include_str!("../scripts/simple/release.lua"), 1, 4).natively(&native::DELETE),
        )),
        force_release: Some(Arc::new(Script::new(include_str!("../scripts/simple/force_release.lua"), 1, 2))),
        show_holders: Some(Arc::new(Script::new(include_str!("../scripts/simple/holders.lua"), 1, 1))),
        holders: Holders::Single,
        ..Kind::counted("", "wheellock_simple:")
    };
    row.bundled_by(include_str!("../scripts/simple/together.lua")).polled()
});

/// The counted semaphore: Redisson's `RSemaphore`. What its holders have is remembered by this library only, so that it is given
/// back once.
pub(crate) static SEMAPHORE: LazyLock<Kind> = LazyLock::new(|| {
    let row = Kind {
        label: "semaphore",
        acquire: Arc::new(Script::new(
            concat!(include_str!("../scripts/number.lua"), include_str!("../scripts/semaphore/acquire.lua")),
            1,
            4,
        )),
        renew: Some(Arc::new(Script::variadic(include_str!("../scripts/semaphore/renew.lua")))),
        release: Some(Arc::new(Script::new(include_str!("../scripts/semaphore/release.lua"), 1, 5))),
        companions: Companions::Permits,
        ..Kind::semaphore()
    };
    row.bundled()
});

/// Extends the leases of permits, or looks how long they still run.
pub(crate) static RENEW_PERMITS: LazyLock<Arc<Script>> =
    LazyLock::new(|| Arc::new(Script::variadic(include_str!("../scripts/permit/renew.lua"))));

/// The semaphore whose permits have leases: Redisson's `RPermitExpirableSemaphore`.
pub(crate) static PERMIT: LazyLock<Kind> = LazyLock::new(|| {
    let acquire = concat!(
        include_str!("../scripts/number.lua"),
        include_str!("../scripts/permit/reap.lua"),
        include_str!("../scripts/permit/acquire.lua")
    );
    let row = Kind {
        label: "permit_semaphore",
        acquire: Arc::new(Script::new(acquire, 1, 6)),
        renew: Some(Arc::clone(&RENEW_PERMITS)),
        release: Some(Arc::new(Script::new(include_str!("../scripts/permit/release.lua"), 1, 5))),
        holders: Holders::Permits,
        companions: Companions::PermitLeases,
        ..Kind::semaphore()
    };
    row.bundled()
});

/// The latch that opens when it has been counted down: Redisson's `RCountDownLatch`. It is waited for, and not held.
pub(crate) static LATCH: LazyLock<Kind> = LazyLock::new(|| Kind {
    label: "count_down_latch",
    verb: "wait for",
    noun: "latch",
    acquire: Arc::new(Script::new(
        concat!(include_str!("../scripts/number.lua"), include_str!("../scripts/latch/look.lua")),
        1,
        1,
    )),
    acquire_all: None,
    renew: None,
    release: None,
    force_release: None,
    show_holders: None,
    braces: Braces::Always,
    companions: Companions::Ended,
    sharing: Sharing::Many,
    ..Kind::counted("", "redisson_countdownlatch__channel__")
});

/// The channel of all locks that are a hash of holders and nothing else.
const PLAIN_CHANNEL: &str = "redisson_lock__channel:";

/// Marks that a contender polls for a lock.
pub(crate) static MARK: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../scripts/mark.lua"), 1, 2));

/// Notifies the waiters for a lock that was released without a message.
pub(crate) static TELL: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../scripts/tell.lua"), 1, 2));

/// The table.
fn rows() -> [&'static Kind; 9] {
    [&REENTRANT, &FAIR, &READ, &WRITE, &FENCED, &SIMPLE, &SEMAPHORE, &PERMIT, &LATCH]
}

/// Everything a connection should have loaded before it is used.
pub(crate) fn scripts() -> Vec<Arc<Script>> {
    let mut scripts: Vec<Arc<Script>> = Vec::new();
    for kind in rows() {
        for script in kind.scripts() {
            if !scripts.iter().any(|known| known.sha() == script.sha()) {
                scripts.push(Arc::clone(script));
            }
        }
    }
    scripts
}

/// Every command that the scripts of some kind run, and what these kinds are called.
pub(crate) fn commands() -> BTreeMap<&'static str, Vec<&'static str>> {
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
}

/// The commands that a script's text names where it calls one: `call('hset', ..)`, and `try`, which is `redis.pcall`.
fn called(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.split("('").zip(text.split("('").skip(1)).filter_map(|(before, behind)| {
        let is_call = before.ends_with("call") || before.ends_with("try");
        behind.split_once('\'').filter(|_| is_call).map(|(command, _)| command)
    })
}

impl Kind {
    /// A lock whose holders are counted in a hash.
    pub(crate) fn counted(key_prefix: &'static str, channel_prefix: &'static str) -> Self {
        Self {
            verb: "acquire",
            noun: "lock",
            label: "lock",
            acquire: Arc::new(Script::new(
                concat!(include_str!("../scripts/holders_of.lua"), include_str!("../scripts/acquire.lua")),
                1,
                3,
            )),
            poll: None,
            acquire_all: Some(Arc::new(Script::variadic(concat!(
                include_str!("../scripts/holders_of.lua"),
                include_str!("../scripts/acquire_all.lua")
            )))),
            renew: Some(Arc::new(Script::variadic(include_str!("../scripts/renew.lua")))),
            release: Some(Arc::new(Script::new(include_str!("../scripts/release.lua"), 1, 4))),
            bundle: None,
            hot_release: None,
            force_release: Some(Arc::new(Script::new(
                concat!(
                    include_str!("../scripts/holders_of.lua"),
                    include_str!("../scripts/force_release.lua")
                ),
                1,
                2,
            ))),
            show_holders: Some(Arc::new(Script::new(
                concat!(include_str!("../scripts/holders_of.lua"), include_str!("../scripts/holders.lua")),
                1,
                1,
            ))),
            is_held: None,
            key_prefix,
            channel_prefix,
            braces: Braces::IfMissing,
            holder_suffix: "",
            holders: Holders::Counted,
            companions: Companions::None,
            sharing: Sharing::One,
            mode: None,
            wake: Wake::Channel,
            leaves_mark: false,
        }
    }

    /// One side of a read-write lock: a hash of owner to hold count, in which `mode` says in which way it is held.
    fn read_write(mode: &'static str) -> Self {
        let renew = concat!(
            include_str!("../scripts/read_write/live.lua"),
            include_str!("../scripts/read_write/renew.lua")
        );
        let force_release = Script::new(include_str!("../scripts/read_write/force_release.lua"), 1, 4);
        let show_holders = Script::new(include_str!("../scripts/read_write/holders.lua"), 1, 3);
        let is_held = Script::new(include_str!("../scripts/read_write/is_held.lua"), 1, 1);
        Self {
            acquire_all: None,
            renew: Some(Arc::new(Script::variadic(renew))),
            force_release: Some(Arc::new(force_release)),
            show_holders: Some(Arc::new(show_holders)),
            is_held: Some(Arc::new(is_held)),
            companions: Companions::ReadLeases,
            mode: Some(mode),
            ..Self::counted("", "redisson_rwlock:")
        }
    }

    /// A semaphore: a number of permits, of which each may be another holder's.
    fn semaphore() -> Self {
        Self {
            noun: "semaphore",
            acquire_all: None,
            force_release: None,
            show_holders: None,
            sharing: Sharing::Many,
            ..Self::counted("", "redisson_sc:")
        }
    }

    /// The same, whose holds may pass to another waiter of this process without a word to the server.
    fn handed_over(self) -> Self {
        let Some(release) = &self.release else { return self };
        let args = release.arity().map_or(0, |(keys, params)| params - keys);
        let text = include_str!("../scripts/hot_release.lua").replace("%release\n", release.text());
        // A row is made once, and stays.
        Self { hot_release: Some(Arc::new(Script::new(text.leak(), 1, args + 2))), ..self }
    }

    /// The same, with one script more, which does what several callers want at once: it runs this kind's own two for each of them.
    fn bundled(self) -> Self {
        self.bundled_with("local many\n")
    }

    /// The same, where the Lua function `many` does at once what neighbours want of one lock.
    fn bundled_with(self, many: &str) -> Self {
        let Some(release) = &self.release else { return self };
        let args = |script: &Script| {
            script.arity().map_or_else(String::new, |(keys, params)| (params - keys).to_string())
        };
        let text = include_str!("../scripts/bundle.lua")
            .replace("%takes", &args(&self.acquire))
            .replace("%gives", &args(release))
            .replace("%acquire\n", self.acquire.text())
            .replace("%release\n", release.text())
            .replace("%many\n", many);
        // A row is made once, and stays.
        self.bundled_by(text.leak())
    }

    /// The same by a script that was written for this kind, and does it faster.
    fn bundled_by(self, text: &'static str) -> Self {
        let Some(release) = &self.release else { return self };
        let whole = Arc::new(Script::variadic(text));
        Self {
            acquire: Arc::new(self.acquire.as_part(&whole, 1)),
            release: Some(Arc::new(release.as_part(&whole, 2))),
            bundle: Some(whole),
            ..self
        }
    }

    /// The same kind, whose waiters pause where many wait.
    fn polled(self) -> Self {
        let takes = self.acquire.arity().map_or(0, |(_, takes)| takes);
        let text = include_str!("../scripts/poll.lua").replace("%acquire\n", self.acquire.text());
        // A row is made once, and stays. Without the native command: its refusal would be followed by a script.
        Self { poll: Some(Arc::new(Script::new(text.leak(), 1, takes + 1))), ..self }
    }

    /// What it runs to take, keep and give back. Scripts that only show something are sent when they are asked for first.
    fn scripts(&self) -> impl Iterator<Item = &Arc<Script>> {
        let Self { acquire, poll, acquire_all, renew, release, bundle, hot_release, force_release, .. } =
            self;
        let others = [poll, acquire_all, renew, release, bundle, hot_release, force_release];
        std::iter::once(acquire).chain(others.into_iter().flatten())
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.sharing == Sharing::Many
    }

    /// Whether there is nothing to hold.
    pub(crate) fn is_only_waited_for(&self) -> bool {
        self.release.is_none()
    }

    /// Returns true if a hold may pass to another waiter of this process without a word to the server. That suits kinds with one holder
    /// at a time, without an order on the server and without fencing tokens. The other users of simple locks poll, and are not counted.
    pub(crate) fn may_be_handed_over(&self) -> bool {
        self.hot_release.is_some()
    }

    /// Returns true if locks of this kind may be kept from their contenders by hand-over, of this kind or of another.
    pub(crate) fn may_meet_hand_over(&self) -> bool {
        self.is_a_hash_of_holders() || self.companions == Companions::ReadLeases
    }

    /// Kinds that are the same lock on the server and have the same channel. A message that reaches one connection counts once for all
    /// of them.
    pub(crate) fn others_of_its_channel(&self) -> impl Iterator<Item = &'static Self> {
        let others = if self.companions == Companions::ReadLeases {
            [&*READ, &*WRITE]
        } else {
            [&*REENTRANT, &*FENCED]
        };
        others.into_iter().filter(|other| other.address() != self.address())
    }

    /// Whether one who comes while another of this process holds may have the same hold: all who read do the same.
    pub(crate) fn may_be_joined(&self) -> bool {
        self.is_shared() && self.companions == Companions::ReadLeases
    }

    /// Whether a release of what is not held makes the server refuse what comes after it. Where there are leases they end by
    /// themselves.
    pub(crate) fn remembers_releases(&self) -> bool {
        self.companions == Companions::Permits
    }

    /// The other kinds that are the same on the server, a hash of holders under the name: each takes the holders of all others for its
    /// own.
    pub(crate) fn others_of_its_hash(&self) -> impl Iterator<Item = &'static Self> {
        let others = [&*REENTRANT, &*FENCED, &*FAIR];
        others.into_iter().filter(|other| self.is_a_hash_of_holders() && self.address() != other.address())
    }

    /// Whether it is a hash of holders under the name, and nothing tells it from other kinds that are.
    pub(crate) fn is_a_hash_of_holders(&self) -> bool {
        use Companions::{None, Queue, Token};
        let has_companions_alone = matches!(self.companions, None | Token | Queue);
        self.holders == Holders::Counted && has_companions_alone && !self.has_own_key()
    }

    /// Whether a holder may shorten the leases of others.
    pub(crate) fn may_be_shortened(&self) -> bool {
        self.may_be_joined()
    }

    /// Whether each time that an owner holds it has a lease of its own.
    pub(crate) fn has_a_lease_each(&self) -> bool {
        self.may_be_joined()
    }

    /// Tells it from other kinds.
    pub(crate) fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// The channel of the lock named `name`, and where in it the name stands.
    pub(crate) fn channel(&self, name: &str, in_cluster: bool) -> (String, Range<u32>) {
        let braced = !name.contains('{') || (self.braces == Braces::Always && !in_cluster);
        let start = self.channel_prefix.len() + usize::from(braced);
        // A name of 4 GiB is refused as an empty one.
        let place = |at: usize| u32::try_from(at).unwrap_or_default();
        (prefix_name(self.channel_prefix, name, braced), place(start)..place(start + name.len()))
    }

    /// Its key, if that is not the name itself.
    pub(crate) fn own_key(&self, name: &str) -> Option<String> {
        self.has_own_key().then(|| prefix_name(self.key_prefix, name, !name.contains('{')))
    }

    pub(crate) fn has_own_key(&self) -> bool {
        !self.key_prefix.is_empty()
    }

    /// Where in its channel that begins which all keys of a lock have in common.
    pub(crate) fn tag_in_channel(&self) -> usize {
        self.channel_prefix.len()
    }

    /// Whether braces were put around a name that stands at `start` in its channel.
    pub(crate) fn is_braced(&self, start: u32) -> bool {
        start as usize > self.channel_prefix.len()
    }
}

/// Puts the lock and what belongs to it into one hash slot, exactly as Redisson's `prefixName` does: braces are added
/// unless the name contains an opening one anywhere, closed or not.
fn prefix_name(prefix: &str, name: &str, braced: bool) -> String {
    if braced { format!("{prefix}{{{name}}}") } else { format!("{prefix}{name}") }
}

#[cfg(test)]
mod tests;
