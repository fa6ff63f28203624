//! The rows of the table of kinds: what tells one kind of lock from another. The only place that knows key and channel names; a
//! new kind is a row here and its Lua files. What goes into the scripts and comes out of them is `wire`'s.

use std::ops::Range;
use std::sync::{Arc, LazyLock};

use wheellock_client::Script;

/// One kind of lock, as data.
pub(crate) struct Kind {
    /// Takes one hold.
    pub(crate) acquire: Arc<Script>,
    /// Takes one hold of each of several locks, all or none.
    pub(crate) acquire_all: Arc<Script>,
    /// Extends the leases of many locks at once, or looks how long they run.
    pub(crate) renew: Arc<Script>,
    /// Brings a holder's count down, and tells the waiters when the lock is free.
    pub(crate) release: Arc<Script>,
    /// Frees the lock, no matter who holds it.
    pub(crate) force_release: Arc<Script>,
    /// What its key has before its name; empty where the name is the key.
    key_prefix: &'static str,
    /// Prefix of the channel on which releases are told.
    channel_prefix: &'static str,
}

/// The reentrant lock: Redisson's `RLock`. A hash of owner to hold count under the lock's raw name.
pub(crate) static REENTRANT: LazyLock<Kind> = LazyLock::new(|| Kind::counted("", "redisson_lock__channel"));

/// Everything a connection should have loaded before it is used.
pub(crate) fn scripts() -> Vec<Arc<Script>> {
    let Kind { acquire, acquire_all, renew, release, force_release, .. } = &*REENTRANT;
    [acquire, acquire_all, renew, release, force_release].map(Arc::clone).into()
}

impl Kind {
    /// A lock whose holders are counted in a hash.
    pub(crate) fn counted(key_prefix: &'static str, channel_prefix: &'static str) -> Self {
        Self {
            acquire: Arc::new(Script::new(include_str!("scripts/acquire.lua"), 1, 3)),
            acquire_all: Arc::new(Script::variadic(include_str!("scripts/acquire_all.lua"))),
            renew: Arc::new(Script::variadic(include_str!("scripts/renew.lua"))),
            release: Arc::new(Script::new(include_str!("scripts/release.lua"), 1, 4)),
            force_release: Arc::new(Script::new(include_str!("scripts/force_release.lua"), 1, 2)),
            key_prefix,
            channel_prefix,
        }
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
    fn scripts_keep_to_their_declared_keys() {
        for script in scripts() {
            let text = script.text();
            assert!(!text.contains(".."), "no key is built inside a script: {text}");
            assert!(text.starts_with("-- "), "every script says what it does");
        }
    }
}
