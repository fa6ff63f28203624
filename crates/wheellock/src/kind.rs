//! The rows of the table of kinds: what tells one kind of lock from another. The only place that knows key and channel names; a
//! new kind is a row here and its Lua files. What goes into the scripts and comes out of them is `wire`'s.

use std::ops::Range;
use std::sync::{Arc, LazyLock};

use wheellock_client::Script;

/// One kind of lock, as data.
pub(crate) struct Kind {
    /// Takes one hold.
    pub(crate) acquire: Arc<Script>,
    /// Takes one hold of each of several locks, all or none; `None` if they are asked for one after the other.
    pub(crate) acquire_all: Option<Arc<Script>>,
    /// Extends the leases of many locks at once, or looks how long they run.
    pub(crate) renew: Arc<Script>,
    /// Brings a holder's count down, and tells the waiters when the lock is free.
    pub(crate) release: Arc<Script>,
    /// Frees the lock, no matter who holds it.
    pub(crate) force_release: Arc<Script>,
    /// Whether it is held.
    pub(crate) is_held: IsHeld,
    /// What its key has before its name; empty where the name is the key.
    key_prefix: &'static str,
    /// Prefix of the channel on which releases are told.
    channel_prefix: &'static str,
    /// What a holder's field has behind the owner.
    pub(crate) holder_suffix: &'static str,
    pub(crate) holders: Holders,
    pub(crate) companions: Companions,
    pub(crate) sharing: Sharing,
    pub(crate) wake: Wake,
    /// Whether a caller who was refused and waits leaves something on the server, which is taken back if it gives up.
    pub(crate) leaves_mark: bool,
}

/// How to ask whether a lock is held.
pub(crate) enum IsHeld {
    /// By the key's being there.
    ByKey,
    /// By a script, which is told in which way.
    ByScript(Arc<Script>, &'static str),
}

/// How a lock's key says who holds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Holders {
    /// A hash of holder to hold count.
    Counted,
    /// A string, the only holder; not reentrant.
    Single,
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
pub(crate) static REENTRANT: LazyLock<Kind> = LazyLock::new(|| Kind::counted("", PLAIN_CHANNEL));

/// The reentrant lock whose every grant has a number: Redisson's `RFencedLock`.
pub(crate) static FENCED: LazyLock<Kind> = LazyLock::new(|| Kind {
    acquire: Arc::new(Script::new(include_str!("scripts/fenced/acquire.lua"), 1, 4)),
    acquire_all: None,
    companions: Companions::Token,
    ..Kind::counted("", PLAIN_CHANNEL)
});

/// The shared side of a read-write lock: Redisson's `RReadWriteLock.readLock()`.
pub(crate) static READ: LazyLock<Kind> = LazyLock::new(|| Kind {
    acquire: Arc::new(Script::new(include_str!("scripts/read/acquire.lua"), 1, 5)),
    release: Arc::new(Script::new(
        concat!(include_str!("scripts/read_write/live.lua"), include_str!("scripts/read/release.lua")),
        1,
        5,
    )),
    force_release: Arc::new(Script::new(include_str!("scripts/read/force_release.lua"), 1, 3)),
    sharing: Sharing::Many,
    ..Kind::read_write("read")
});

/// The exclusive side of a read-write lock: Redisson's `RReadWriteLock.writeLock()`.
pub(crate) static WRITE: LazyLock<Kind> = LazyLock::new(|| Kind {
    acquire: Arc::new(Script::new(include_str!("scripts/write/acquire.lua"), 1, 5)),
    release: Arc::new(Script::new(
        concat!(include_str!("scripts/read_write/live.lua"), include_str!("scripts/write/release.lua")),
        1,
        5,
    )),
    force_release: Arc::new(Script::new(include_str!("scripts/write/force_release.lua"), 1, 3)),
    holder_suffix: ":write",
    leaves_mark: true,
    ..Kind::read_write("write")
});

/// The reentrant lock that is granted in the order in which callers came, over all processes: Redisson's `RFairLock`.
pub(crate) static FAIR: LazyLock<Kind> = LazyLock::new(|| Kind {
    acquire: Arc::new(Script::new(
        concat!(include_str!("scripts/fair/queue.lua"), include_str!("scripts/fair/acquire.lua")),
        1,
        7,
    )),
    acquire_all: None,
    release: Arc::new(Script::new(
        concat!(include_str!("scripts/fair/queue.lua"), include_str!("scripts/fair/release.lua")),
        1,
        5,
    )),
    force_release: Arc::new(Script::new(
        concat!(include_str!("scripts/fair/queue.lua"), include_str!("scripts/fair/force_release.lua")),
        1,
        3,
    )),
    companions: Companions::Queue,
    wake: Wake::OwnChannel,
    leaves_mark: true,
    ..Kind::counted("", PLAIN_CHANNEL)
});

/// The lock of a single instance, as Redis's own documentation describes it: a string, set only if it is not there. Everybody
/// else speaks it; the channel is ours.
pub(crate) static SIMPLE: LazyLock<Kind> = LazyLock::new(|| Kind {
    acquire: Arc::new(Script::new(include_str!("scripts/simple/acquire.lua"), 1, 3)),
    acquire_all: None,
    renew: Arc::new(Script::variadic(include_str!("scripts/simple/renew.lua"))),
    release: Arc::new(Script::new(include_str!("scripts/simple/release.lua"), 1, 4)),
    force_release: Arc::new(Script::new(include_str!("scripts/simple/force_release.lua"), 1, 2)),
    holders: Holders::Single,
    ..Kind::counted("", "wheellock_simple")
});

/// The channel of all locks that are a hash of holders and nothing else.
const PLAIN_CHANNEL: &str = "redisson_lock__channel";

/// The table.
fn rows() -> [&'static Kind; 6] {
    [&REENTRANT, &FAIR, &READ, &WRITE, &FENCED, &SIMPLE]
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

impl Kind {
    /// A lock whose holders are counted in a hash.
    pub(crate) fn counted(key_prefix: &'static str, channel_prefix: &'static str) -> Self {
        Self {
            acquire: Arc::new(Script::new(include_str!("scripts/acquire.lua"), 1, 3)),
            acquire_all: Some(Arc::new(Script::variadic(include_str!("scripts/acquire_all.lua")))),
            renew: Arc::new(Script::variadic(include_str!("scripts/renew.lua"))),
            release: Arc::new(Script::new(include_str!("scripts/release.lua"), 1, 4)),
            force_release: Arc::new(Script::new(include_str!("scripts/force_release.lua"), 1, 2)),
            is_held: IsHeld::ByKey,
            key_prefix,
            channel_prefix,
            holder_suffix: "",
            holders: Holders::Counted,
            companions: Companions::None,
            sharing: Sharing::One,
            wake: Wake::Channel,
            leaves_mark: false,
        }
    }

    /// One side of a read-write lock: a hash of owner to hold count, in which `mode` says in which way it is held.
    fn read_write(mode: &'static str) -> Self {
        let renew = concat!(
            include_str!("scripts/read_write/live.lua"),
            include_str!("scripts/read_write/renew.lua")
        );
        let is_held = Script::new(include_str!("scripts/read_write/is_held.lua"), 1, 1);
        Self {
            acquire_all: None,
            renew: Arc::new(Script::variadic(renew)),
            is_held: IsHeld::ByScript(Arc::new(is_held), mode),
            companions: Companions::ReadLeases,
            ..Self::counted("", "redisson_rwlock")
        }
    }

    /// What it runs to take, keep and give back.
    fn scripts(&self) -> impl Iterator<Item = &Arc<Script>> {
        let Self { acquire, acquire_all, renew, release, force_release, .. } = self;
        [acquire, renew, release, force_release].into_iter().chain(acquire_all)
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.sharing == Sharing::Many
    }

    /// Tells it from other kinds.
    pub(crate) fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// The channel of the lock named `name`.
    pub(crate) fn channel(&self, name: &str) -> String {
        prefix_name(self.channel_prefix, name)
    }

    /// Its key, if that is not the name itself.
    pub(crate) fn own_key(&self, name: &str) -> Option<String> {
        self.has_own_key().then(|| prefix_name(self.key_prefix, name))
    }

    /// Where in its channel the name of a lock stands.
    pub(crate) fn name_in_channel(&self, name: &str) -> Range<u32> {
        let start = self.channel_prefix.len() + if name.contains('{') { 1 } else { 2 };
        // A name of 4 GiB is refused as an empty one.
        u32::try_from(start).unwrap_or_default()..u32::try_from(start + name.len()).unwrap_or_default()
    }

    pub(crate) fn has_own_key(&self) -> bool {
        !self.key_prefix.is_empty()
    }

    /// Where in its channel that begins which all keys of a lock have in common.
    pub(crate) fn tag_in_channel(&self) -> usize {
        self.channel_prefix.len() + 1
    }

    /// Whether braces were put around a name that stands at `start` in its channel: it has no opening one of its own.
    pub(crate) fn is_braced(&self, start: u32) -> bool {
        start as usize == self.channel_prefix.len() + 2
    }
}

/// Puts the lock and what belongs to it into one hash slot, exactly as Redisson's `prefixName` does: braces are added
/// unless the name contains an opening one anywhere, closed or not.
fn prefix_name(prefix: &str, name: &str) -> String {
    if name.contains('{') { format!("{prefix}:{name}") } else { format!("{prefix}:{{{name}}}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_are_named_as_redisson_names_them() {
        let channel = |name: &str| {
            let channel = REENTRANT.channel(name);
            let place = REENTRANT.name_in_channel(name);
            assert_eq!(channel[place.start as usize..place.end as usize], *name);
            channel
        };
        assert_eq!(channel("orders"), "redisson_lock__channel:{orders}");
        assert_eq!(channel("a:{b}:c"), "redisson_lock__channel:a:{b}:c");
        assert_eq!(channel("odd{"), "redisson_lock__channel:odd{");
        assert_eq!(channel("odd}"), "redisson_lock__channel:{odd}}");
        assert_eq!(channel("blå lås"), "redisson_lock__channel:{blå lås}");
    }

    #[test]
    fn scripts_keep_to_the_keys_of_their_lock() {
        for kind in rows() {
            for text in kind.scripts().map(|script| script.text()) {
                let builds_keys = text.contains("..") && kind.companions == Companions::None;
                assert!(!builds_keys, "no key is built inside a script: {text}");
                assert!(text.starts_with("-- "), "every script says what it does");
            }
        }
    }

    #[test]
    fn every_script_of_every_kind_is_loaded_once() {
        let loaded = scripts();
        for script in rows().into_iter().flat_map(Kind::scripts) {
            assert_eq!(loaded.iter().filter(|known| known.sha() == script.sha()).count(), 1);
        }
    }
}
