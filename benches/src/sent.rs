//! Counts of commands that clients send, from a server's MONITOR.
//!
//! The count does not depend on names, so every command counts. MONITOR costs the server time. A counted period is therefore not timed as
//! well, unless it has few commands.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result};
use wheellock_tests::{Following, RedisServer};

/// A running count. Commands that scripts run do not count.
#[derive(Debug)]
pub struct Counting {
    following: Following,
    counts: Arc<[AtomicU64; 3]>,
}

/// Numbers of commands that clients sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// All commands.
    pub commands: u64,
    /// Commands that call a script.
    pub scripts: u64,
    /// Commands that only check the connection.
    pub pings: u64,
}

impl Counting {
    /// Starts a count.
    #[must_use]
    pub fn of(server: &RedisServer) -> Self {
        let counts: Arc<[AtomicU64; 3]> = Arc::default();
        let [commands, scripts, pings] = [0, 1, 2];
        let seen = Arc::clone(&counts);
        let following = server.monitor().follow(move |observed| {
            let add = |which: usize| seen.get(which).map(|count| count.fetch_add(1, Ordering::Relaxed));
            add(commands);
            match observed.name().as_str() {
                "PING" => add(pings),
                "EVALSHA" | "EVAL" => add(scripts),
                _ => None,
            };
        });
        Self { following, counts }
    }

    /// Ends the count. It includes all commands that the server executed before this call.
    ///
    /// # Errors
    ///
    /// If MONITOR broke off.
    pub fn stop(self) -> Result<Sent> {
        self.following.stop().context("MONITOR broke off")?;
        let [commands, scripts, pings] = [0, 1, 2]
            .map(|which: usize| self.counts.get(which).map_or(0, |count| count.load(Ordering::Relaxed)));
        Ok(Sent { commands, scripts, pings })
    }
}

impl Sent {
    /// Returns the number of commands per unit of work.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "figures with three digits")]
    pub fn per(self, units: f64) -> f64 {
        self.commands as f64 / units
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_commands_count_once_each() {
        let server = RedisServer::start();
        let counting = Counting::of(&server);
        let loops = "for i = 1, 5 do redis.call('SET', KEYS[1], i) end";
        for command in [&["SET", "k", "v"][..], &["EVAL", loops, "1", "k"], &["PING"], &["GETDEL", "k"]] {
            let _reply = server.cli(command);
        }
        assert_eq!(counting.stop().unwrap(), Sent { commands: 4, scripts: 1, pings: 1 });
    }
}
