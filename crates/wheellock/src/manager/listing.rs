//! A listing of the locks on a server.

use std::collections::hash_map::RandomState;
use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use wheellock_client::layer::Retry;
use wheellock_client::{Command, Servers, Value};

use crate::base::error::Error;
use crate::kind;
use crate::request::context::Context;
use crate::request::label::{self, named};
use crate::request::retry::retry;
use crate::wire;
use crate::wire::holder::Listed;

/// The locks on a server, one after the other: see [`LockManager::list`](crate::LockManager::list).
///
/// ```no_run
/// # async fn example(locks: wheellock::LockManager) -> Result<(), wheellock::Error> {
/// let mut listing = locks.list("*");
/// while let Some(lock) = listing.next().await? {
///     println!("{} ({} keys seen)", lock.name, listing.keys_seen());
/// }
/// # Ok(())
/// # }
/// ```
pub struct Listing {
    context: Arc<Context>,
    pattern: String,
    /// Where the scan goes on; `None` at its end.
    cursor: Option<String>,
    found: VecDeque<Listed>,
    /// Hashes of the names that were found, because a scan may return a key twice.
    known: HashSet<u64>,
    hashes: RandomState,
    keys_seen: u64,
    /// When the next batch begins. Until then the server works for others.
    begins: Option<Instant>,
}

impl Listing {
    pub(crate) fn new(context: &Arc<Context>, pattern: &str) -> Self {
        Self {
            context: Arc::clone(context),
            pattern: format!("{}{pattern}", literal(&context.prefix)),
            cursor: Some("0".to_owned()),
            found: VecDeque::new(),
            known: HashSet::new(),
            hashes: RandomState::new(),
            keys_seen: 0,
            begins: None,
        }
    }

    /// Returns the next lock, or `None` after the last.
    ///
    /// # Cancel safety
    ///
    /// Safe: a later call continues.
    ///
    /// # Errors
    ///
    /// [`Error::Server`]; [`Error::NotInACluster`] at the first call.
    pub async fn next(&mut self) -> Result<Option<Listed>, Error> {
        while self.found.is_empty() && self.cursor.is_some() {
            self.scan().await?;
        }
        Ok(self.found.pop_front())
    }

    /// Returns the number of keys that match the pattern so far, locks or not, to show progress.
    pub fn keys_seen(&self) -> u64 {
        self.keys_seen
    }

    /// Scans for the next locks.
    async fn scan(&mut self) -> Result<(), Error> {
        let Some(cursor) = &self.cursor else { return Ok(()) };
        if matches!(self.context.client.config().servers, Servers::Cluster(_)) {
            return Err(Error::NotInACluster { operation: OPERATION.to_owned() });
        }
        let timer = &self.context.client.config().timer;
        if let Some(begins) = self.begins {
            timer.sleep_until(begins).await;
        }
        let began = timer.now();
        let reply = self.ask(&wire::scan(cursor, &self.pattern)).await?;
        let (next, keys) = wire::read_scan(&reply).ok_or_else(|| unexpected(&reply))?;
        let keys: Vec<&[u8]> = keys.iter().filter_map(Value::as_bytes).collect();
        let mut listed = Vec::new();
        if !keys.is_empty() {
            let params = wire::list(&keys);
            let ask = |learnt: &Retry, start, waker: &Waker| {
                self.context.client.start_eval(&kind::LIST, 0, &params, learnt, start, waker)
            };
            let reply = retry(&self.context, ask, None).await.result.map_err(failed)?;
            listed = wire::read_list(&keys, &reply).ok_or_else(|| unexpected(&reply))?;
        }
        let ended = timer.now();
        self.begins =
            Some(ended + (ended.saturating_duration_since(began) * OTHERS_SHARE).min(LONGEST_PAUSE));
        label::find(
            &self.context,
            listed.iter_mut().flat_map(|lock| named(&lock.name, &mut lock.holders.holders)),
        )
        .await;
        // From here on nothing waits, so a dropped call has no effect, or the whole effect.
        self.keys_seen += keys.len() as u64;
        let (known, hashes) = (&mut self.known, &self.hashes);
        listed.retain(|lock| known.insert(hashes.hash_one(&lock.name)));
        self.found.extend(listed);
        self.cursor = next;
        Ok(())
    }

    async fn ask(&self, command: &Command<'_>) -> Result<Value, Error> {
        self.context.client.call(command).await.map_err(failed)
    }
}

impl fmt::Debug for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listing")
            .field("pattern", &self.pattern)
            .field("keys_seen", &self.keys_seen)
            .finish_non_exhaustive()
    }
}

fn failed(source: wheellock_client::Error) -> Error {
    Error::Server { operation: OPERATION.to_owned(), source }
}

fn unexpected(reply: &Value) -> Error {
    Error::unexpected(OPERATION.to_owned(), reply.type_name())
}

/// Returns a pattern that matches only this text.
fn literal(text: &str) -> String {
    let escaped = |c: char| if "*?[]\\^-".contains(c) { format!("\\{c}") } else { c.to_string() };
    text.chars().map(escaped).collect()
}

const OPERATION: &str = "list locks";

/// The server works for others for this multiple of the time that a batch takes. So a listing takes less than a tenth of its time.
const OTHERS_SHARE: u32 = 12;

const LONGEST_PAUSE: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use crate::manager::listing::literal;

    #[test]
    fn prefix_is_matched_as_text() {
        assert_eq!(literal("app:a*[1]"), "app:a\\*\\[1\\]");
    }
}
