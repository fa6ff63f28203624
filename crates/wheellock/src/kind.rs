//! What makes a kind of lock: its scripts and its names. The only place that knows key and channel names; a new kind
//! is a row here and its Lua files.

use std::ops::Range;
use std::sync::{Arc, LazyLock};

use wheellock_client::Script;

/// One kind of lock, as data.
pub(crate) struct Kind {
    pub(crate) acquire: Arc<Script>,
    pub(crate) release: Arc<Script>,
    pub(crate) force_release: Arc<Script>,
    /// Prefix of the channel on which releases are told.
    channel_prefix: &'static str,
}

/// The reentrant lock: Redisson's `RLock`.
pub(crate) static REENTRANT: LazyLock<Kind> = LazyLock::new(|| Kind::plain("redisson_lock__channel"));

impl Kind {
    /// A hash of owner to hold count under the raw name, told of on the channel with this prefix.
    pub(crate) fn plain(channel_prefix: &'static str) -> Self {
        Self {
            acquire: Arc::new(Script::new(include_str!("scripts/acquire.lua"), 1, 3)),
            release: Arc::new(Script::new(include_str!("scripts/release.lua"), 1, 4)),
            force_release: Arc::new(Script::new(include_str!("scripts/force_release.lua"), 1, 2)),
            channel_prefix,
        }
    }
}

/// Extends the leases of many locks at once, whatever their kind.
pub(crate) static RENEW: LazyLock<Arc<Script>> =
    LazyLock::new(|| Arc::new(Script::variadic(include_str!("scripts/renew.lua"))));

/// Takes several locks at once, all or none.
pub(crate) static ACQUIRE_ALL: LazyLock<Arc<Script>> =
    LazyLock::new(|| Arc::new(Script::variadic(include_str!("scripts/acquire_all.lua"))));

/// Everything a connection should have loaded before it is used.
pub(crate) fn scripts() -> Vec<Arc<Script>> {
    let kind = &*REENTRANT;
    [&kind.acquire, &kind.release, &kind.force_release, &RENEW, &ACQUIRE_ALL].map(Arc::clone).into()
}

impl Kind {
    /// The channel of the lock named `name`.
    pub(crate) fn channel(&self, name: &str) -> String {
        prefix_name(self.channel_prefix, name)
    }

    /// Where in its channel the name of a lock stands.
    pub(crate) fn name_in_channel(&self, name: &str) -> Range<u32> {
        let start = self.channel_prefix.len() + if name.contains('{') { 1 } else { 2 };
        // Whoever has a name of 4 GiB is told that it is empty.
        u32::try_from(start).unwrap_or_default()..u32::try_from(start + name.len()).unwrap_or_default()
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
