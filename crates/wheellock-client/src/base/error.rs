//! The error type: operation, server, cause and outcome.
//!
//! This module does not know sockets or the ways in which calls fail.

use std::fmt;
use std::io;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

use crate::base::address::Address;

/// The possible effects of a failed call on the server.
///
/// ```no_run
/// use wheellock_client::{Command, Outcome};
///
/// # async fn example(client: wheellock_client::Client) -> Result<(), wheellock_client::Error> {
/// // This may be made again whatever became of it; an INCR only if it certainly did not run.
/// let set = Command::new("SET").arg("greeting").arg("hello");
/// while let Err(error) = client.call(&set).await {
///     match error.outcome() {
///         Outcome::NotSent | Outcome::MaybeExecuted => {}
///         Outcome::Rejected => return Err(error),
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The call never left this process. Repeating it is safe.
    NotSent,
    /// The server refused the call before executing it. Repeating it is safe, and the server may refuse it again.
    Rejected,
    /// The call was written, and no reply shows whether it ran, or how far. Commands that run other commands (`EVAL`
    /// and its variants, `FCALL`, `MIGRATE`) may fail after some of them have taken effect. Repeat only idempotent
    /// calls.
    MaybeExecuted,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotSent => "it was not sent",
            Self::Rejected => "the server refused it before executing it",
            Self::MaybeExecuted => "it may have been executed",
        })
    }
}

/// The class of a failure. [`Error`] carries the details.
///
/// ```
/// use wheellock_client::{Config, ErrorKind};
///
/// let error = "redis://host:port".parse::<Config>().unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Config);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The configuration or URL is invalid, or a call requests an unsupported feature.
    Config,
    /// The client could not reach the server: DNS or the connect failed, or the socket failed while connecting.
    Connect,
    /// The connection broke while the call was in flight.
    ConnectionLost,
    /// The call's deadline passed.
    Timeout,
    /// The connection's bounded queue is full, or the call is larger than the queue may be.
    Overloaded,
    /// The server refused the credentials or requires some.
    Auth,
    /// The user may not run a command, or may not access a key or channel.
    Permission,
    /// The server lacks a required feature (RESP3: Redis 6 or later, any Valkey), or has another role.
    Unsupported,
    /// The server is up but not serving yet: it is loading its data, or its link to the primary is down.
    NotReady,
    /// The server replied to the call with an error.
    Server,
    /// The server's bytes were not RESP, or a reply did not belong to any call. The client closed the connection.
    Protocol,
    /// The client was closed, or its runtime was shut down.
    Closed,
}

/// A failed call or connection.
///
/// `Display` prints one line that is complete in itself. The line names the operation, the server and the reason,
/// down to the last cause. For a call it also names the [`Outcome`]. Text from the server is escaped and cut at 256
/// bytes. Cloning is cheap.
///
/// [`source`](std::error::Error::source) does not repeat any of that line. For a failure of the operating system it
/// is an [`io::Error`] of the same [`kind`](io::Error::kind) that prints the system's error number. For any other
/// failure it is the source of the cause, if there is one. The cause itself is [`origin`](Self::origin).
///
/// ```no_run
/// use wheellock_client::{Command, Outcome};
///
/// # async fn example(client: wheellock_client::Client) -> Result<(), wheellock_client::Error> {
/// if let Err(error) = client.call(&Command::new("INCR").arg("visits")).await {
///     eprintln!("{error}"); // what, where and why, in one line
///     assert!(error.outcome() != Outcome::MaybeExecuted, "was it counted? nobody knows");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    outcome: Outcome,
    operation: String,
    /// True if the operation was a step towards a connection, as in "connect to", and not a call.
    is_step: bool,
    /// The server's address, or an empty text if no server was involved.
    server: String,
    detail: String,
    code: Option<String>,
    /// The node that a cluster's node named for this call.
    redirected_to: Option<Address>,
    cause: Option<Cause>,
}

/// The cause, whose text is already part of `detail`.
#[derive(Clone)]
enum Cause {
    /// The error itself, and an error that prints only the text missing in `detail`.
    System(Arc<io::Error>, Arc<io::Error>),
    Other(Arc<dyn std::error::Error + Send + Sync>),
}

// An error is never changed while another thread can see it, so a panic leaves it whole. The compiler cannot know that of its cause.
impl UnwindSafe for Error {}
impl RefUnwindSafe for Error {}

impl Error {
    pub(crate) fn new(
        kind: ErrorKind,
        outcome: Outcome,
        operation: &str,
        server: &str,
        detail: String,
    ) -> Self {
        Self(Arc::new(Inner {
            kind,
            outcome,
            operation: named(operation),
            is_step: false,
            server: server.to_owned(),
            detail,
            code: None,
            redirected_to: None,
            cause: None,
        }))
    }

    /// Creates a failure on the way to a connection. `step` follows the word "cannot" in the message. No call was in
    /// flight.
    pub(crate) fn step(kind: ErrorKind, step: &str, server: &str, detail: String) -> Self {
        Self::new(kind, Outcome::NotSent, step, server, detail).with(|inner| inner.is_step = true)
    }

    /// Creates an error from a server's error reply to `operation`.
    pub(crate) fn server(operation: &str, server: &str, script: bool, text: &[u8]) -> Self {
        let code = error_code(text);
        let may_fail_midway = MAY_FAIL_MIDWAY.iter().any(|name| name.eq_ignore_ascii_case(operation));
        let outcome = outcome_of(text, script || may_fail_midway);
        let detail = format!("the server answered \"{}\"{}", printable(text), explained(text));
        Self::new(kind_of(code, text), outcome, operation, server, detail).with_code(code)
    }

    /// Returns this error with a change.
    fn with(mut self, change: impl FnOnce(&mut Inner)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// Adds the code of the server's error.
    pub(crate) fn with_code(self, code: &str) -> Self {
        self.with(|inner| inner.code = Some(code.to_owned()))
    }

    /// Adds the cause. Its text is already part of the detail: see [`said`].
    pub(crate) fn because_of(self, cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.with(|inner| inner.cause = Some(Cause::Other(cause.into().into())))
    }

    /// Does the same for an error of the operating system.
    pub(crate) fn because_of_io(self, cause: io::Error) -> Self {
        let cause = Arc::new(cause);
        let rest = io::Error::new(cause.kind(), Rest(Arc::clone(&cause)));
        self.with(|inner| inner.cause = Some(Cause::System(cause, Arc::new(rest))))
    }

    /// Adds the cause of another error, whose text is part of the detail.
    pub(crate) fn with_cause_of(self, other: &Self) -> Self {
        self.with(|inner| inner.cause.clone_from(&other.0.cause))
    }

    pub(crate) fn with_redirection(self, to: Address) -> Self {
        self.with(|inner| inner.redirected_to = Some(to))
    }

    /// Returns the same failure for another operation: one broken connection fails many calls.
    pub(crate) fn seen_by(&self, operation: &str, kind: ErrorKind, outcome: Outcome) -> Self {
        self.clone().with(|inner| {
            if std::mem::take(&mut inner.is_step) {
                inner.detail.insert_str(0, "not connected: ");
            }
            (inner.kind, inner.outcome, inner.operation) = (kind, outcome, named(operation));
        })
    }

    /// Returns the same failure for a call with an earlier attempt that received no reply. That attempt may have
    /// taken effect, regardless of this attempt's outcome.
    #[doc(hidden)]
    #[must_use]
    pub fn after_an_unanswered_attempt(&self) -> Self {
        self.seen_by(&self.0.operation, self.0.kind, Outcome::MaybeExecuted)
    }

    /// Returns the same failure with the refusal that made the retry necessary.
    pub(crate) fn after(&self, refused: &Self) -> Self {
        self.clone().with(|inner| inner.detail += &format!("; before that, {}", refused.0.detail))
    }

    /// Returns the same failure with another text. The server's own text may repeat a secret.
    pub(crate) fn with_detail(self, detail: String) -> Self {
        self.with(|inner| inner.detail = detail)
    }

    /// Returns a timeout for a call that was refused and could have been repeated before its deadline.
    pub(crate) fn cut_short(&self) -> Self {
        let Inner { operation, outcome, server, detail, .. } = &*self.0;
        let detail = format!("the deadline passed before it could be made again; {detail}");
        Self::new(ErrorKind::Timeout, *outcome, operation, server, detail)
    }

    /// Returns the class of the failure.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns true if no attempt can succeed until a setting changes. Either the server refuses this client, or the
    /// client cannot use its own settings.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self.kind(), ErrorKind::Auth | ErrorKind::Unsupported | ErrorKind::Config)
    }

    /// Returns whether the call may have taken effect.
    pub fn outcome(&self) -> Outcome {
        self.0.outcome
    }

    /// Returns the failed operation: a command, or a step towards a connection such as `connect to`.
    pub fn operation(&self) -> &str {
        &self.0.operation
    }

    /// Returns the server's address, as `host:port` or a socket path. For a URL that cannot be parsed, it is the part
    /// that may be shown. It never contains credentials.
    pub fn server_address(&self) -> &str {
        &self.0.server
    }

    /// Returns the first word of a server's error reply (`NOSCRIPT`, `READONLY`, `ERR`, ...), if the server sent one.
    /// Source: the Redis protocol specification, "Simple errors".
    ///
    /// The code is `TRYAGAIN`, too, if a script accessed a key of a slot that a cluster is moving. The server's error
    /// says this only in words.
    pub fn code(&self) -> Option<&str> {
        self.0.code.as_deref()
    }

    /// Returns the node that a cluster's node named for this call.
    pub(crate) fn redirected_to(&self) -> Option<&Address> {
        self.0.redirected_to.as_ref()
    }

    /// Returns the reason for the failure, without the operation, server and outcome that `Display` adds.
    pub fn detail(&self) -> &str {
        &self.0.detail
    }

    /// Returns the complete cause, if it lies outside this client and the server's reply. The cause is an
    /// [`io::Error`], or an error of the decoder, the TLS library or a [provider](crate::Config::credentials). Its
    /// text is part of `Display`, so it is not the [`source`](std::error::Error::source).
    pub fn origin(&self) -> Option<&(dyn std::error::Error + Send + Sync + 'static)> {
        Some(match self.0.cause.as_ref()? {
            Cause::System(whole, _) => &**whole,
            Cause::Other(whole) => &**whole,
        })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { operation, is_step, server, detail, outcome, .. } = &*self.0;
        match (is_step, &**server) {
            (true, "") => write!(f, "cannot {operation}: {detail}"),
            (true, server) => write!(f, "cannot {operation} {server}: {detail}"),
            (false, server) => write!(f, "{operation} on {server} failed: {detail}; {outcome}"),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("outcome", &self.0.outcome)
            .field("operation", &self.0.operation)
            .field("server", &self.0.server)
            .field("detail", &self.0.detail)
            .finish()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self.0.cause.as_ref()? {
            Cause::System(_, rest) => Some(&**rest),
            Cause::Other(whole) => whole.source(),
        }
    }
}

/// The part of a system error that [`said`] leaves out: its number or its kind.
#[derive(Debug)]
struct Rest(Arc<io::Error>);

impl fmt::Display for Rest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.raw_os_error() {
            Some(number) => write!(f, "os error {number}"),
            None => write!(f, "{:?}", self.0.kind()),
        }
    }
}

impl std::error::Error for Rest {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}

/// Returns the text of a system error, without the number that std appends.
pub(crate) fn said(error: &io::Error) -> String {
    let text = error.to_string();
    let number = error.raw_os_error().map(|number| format!(" (os error {number})"));
    number.and_then(|number| text.strip_suffix(&number).map(str::to_owned)).unwrap_or(text)
}

/// The step that opens a connection.
pub(crate) const CONNECT: &str = "connect to";

/// Returns a command's name, escaped and cut for a log line. Callers may take the name from users.
fn named(operation: &str) -> String {
    const LIMIT: usize = 64;
    operation.chars().take(LIMIT).flat_map(char::escape_debug).collect()
}

/// Returns the first word of an error reply. Returns `TRYAGAIN` for a script that accessed a key of a moving slot.
pub fn error_code(text: &[u8]) -> &str {
    if was_ended_by_a_move(text) {
        return "TRYAGAIN";
    }
    let word = text.split(|&b| b == b' ' || b == b'\r' || b == b'\n').next().unwrap_or(&[]);
    match std::str::from_utf8(word) {
        Ok(word) if !word.is_empty() && word.len() <= 32 && word.bytes().all(|b| b.is_ascii_graphic()) => {
            word
        }
        _ => "ERR",
    }
}

/// Returns true if a script on a cluster's node accessed a key that may be on the other node. The key's slot is
/// migrating between the two nodes. Sources: `scriptVerifyClusterState` in script.c of Redis 7.0, and
/// `luaRedisGenericCommand` in scripting.c of 6.2, which puts other words before the text.
fn was_ended_by_a_move(text: &[u8]) -> bool {
    contains(text, b"script attempted to access a non local key")
        || contains(text, b"Script attempted to access a non local key")
}

/// Returns an explanation that the server's own text lacks.
fn explained(text: &[u8]) -> &'static str {
    const MOVE: &str =
        " (TRYAGAIN: the slot is being moved key by key, and a key of the script may be on the other node)";
    const LUA: &str = " (this server does not run Lua scripts)";
    match text {
        text if was_ended_by_a_move(text) => MOVE,
        text if lacks_lua(text) => LUA,
        _ => "",
    }
}

/// Returns true if the server does not run Lua scripts. Lua may be missing in Valkey 9.1, where it is a module. An
/// administrator may rename the commands. No script runs then, so this text shows that nothing was executed.
pub(crate) fn lacks_lua(text: &[u8]) -> bool {
    NO_LUA.iter().any(|said| text.starts_with(said.as_bytes()))
}

/// The starts of the replies to `EVAL`, `EVALSHA` and `SCRIPT LOAD` of a server without Lua (sources: `rejectCommand` in
/// server.c of Redis 6 and 7, `evalRegisterNewScript` in eval.c of Valkey).
const NO_LUA: [&str; 4] = [
    "ERR unknown command 'EVAL",
    "ERR unknown command `EVAL",
    "ERR unknown command 'SCRIPT'",
    "ERR Could not find scripting engine ",
];

fn kind_of(code: &str, text: &[u8]) -> ErrorKind {
    match code {
        "NOPERM" => ErrorKind::Permission,
        // The two texts for NOPERM inside a script, of Redis up to 7.0 and of later versions.
        "ERR" if contains(text, b"The user executing the script can't") => ErrorKind::Permission,
        "ERR" if text.starts_with(b"ERR ACL failure in script") => ErrorKind::Permission,
        "NOAUTH" | "WRONGPASS" => ErrorKind::Auth,
        "LOADING" | "MASTERDOWN" => ErrorKind::NotReady,
        "NOPROTO" => ErrorKind::Unsupported,
        _ => ErrorKind::Server,
    }
}

/// Refusals that precede any execution of a command: the code, the number of words to skip, and the text behind them.
/// The skipped words name the product or a user (sources: `createSharedObjects` and `processCommand` in server.c,
/// `scriptPrepareForRun` in script.c, `getAclErrorMessage` in acl.c and `clusterRedirectClient` in cluster.c of Redis
/// 6.0 to 8 and Valkey 7.2 to 9).
///
/// The code alone proves nothing, because a script may return it after a write. A refusal with this text inside a
/// script is reliable: servers check these conditions only before the script's first write.
const REFUSED_BEFORE_EXECUTION: &[(&str, usize, &str)] = &[
    ("BUSY", 1, "is busy running a "),
    ("CLUSTERDOWN", 0, "The cluster is down"),
    ("CLUSTERDOWN", 0, "Hash slot not served"),
    ("CROSSSLOT", 0, "Keys in request "),
    ("DENIED", 1, "is running in protected mode"),
    ("LOADING", 1, "is loading the dataset"),
    ("MASTERDOWN", 0, "Link with MASTER is down"),
    ("MISCONF", 0, "Errors writing to the AOF file"),
    ("MISCONF", 1, "is configured to "),
    ("NOAUTH", 0, "Authentication required"),
    ("NOPERM", 0, "No permissions to access a "),
    ("NOPERM", 2, "has no permissions to "),
    ("NOREPLICAS", 0, "Not enough good "),
    ("NOSCRIPT", 0, "No matching script"),
    ("OOM", 0, "command not allowed when used memory"),
    ("OOM", 0, "allow-oom flag is not set on the script"),
    ("READONLY", 0, "You can't write against a read only "),
    ("READONLY", 0, "Can not run script with write flag on readonly "),
    ("TRYAGAIN", 0, "Multiple keys request"),
    // Redis 8.4 sends this for a slot that returns to a node which is still deleting the slot's former keys.
    ("TRYAGAIN", 0, "Slot is being trimmed"),
];

/// Returns `code` if servers refuse with it, and `ERR` otherwise. An unknown code may be a word of the request, and a
/// secret.
pub(crate) fn known_or_err(code: &str) -> &str {
    let is_known = REFUSED_BEFORE_EXECUTION.iter().any(|&(known, ..)| known == code);
    if is_known || matches!(code, "WRONGPASS" | "NOPROTO") { code } else { "ERR" }
}

/// Returns true if the text is a server's own refusal from before the execution of a command.
pub(crate) fn is_the_servers_refusal(text: &[u8]) -> bool {
    let mut words = text.splitn(2, |&byte| byte == b' ');
    let (code, said) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    if matches!(code, b"MOVED" | b"ASK") {
        // The text continues with the slot and the target address.
        let slot = said.split(|&byte| byte == b' ').next().unwrap_or_default();
        return !slot.is_empty() && slot.iter().all(u8::is_ascii_digit) && slot.len() + 1 < said.len();
    }
    REFUSED_BEFORE_EXECUTION.iter().any(|&(listed, named, words)| {
        let said = said.splitn(named + 1, |&byte| byte == b' ').nth(named).unwrap_or_default();
        listed.as_bytes() == code && said.starts_with(words.as_bytes())
    })
}

/// Commands that run several steps. The effects of earlier steps remain if a later step fails.
const MAY_FAIL_MIDWAY: &[&str] =
    &["EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO", "FCALL", "FCALL_RO", "MIGRATE"];

fn outcome_of(text: &[u8], midway: bool) -> Outcome {
    // A script stops at its first failing command, and its earlier writes remain. Only a refusal before the script's
    // start is certain. The server kills a script only while the script has not written.
    let killed_unwritten = contains(text, b"Script killed by user");
    if !midway || is_the_servers_refusal(text) || lacks_lua(text) || killed_unwritten {
        Outcome::Rejected
    } else {
        Outcome::MaybeExecuted
    }
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

/// Returns foreign bytes in a form that is safe for a log line, within double quotes. The text is escaped except for
/// single quotes, and cut at 256 bytes of input.
pub(crate) fn printable(bytes: &[u8]) -> String {
    const LIMIT: usize = 256;
    let (shown, cut) =
        bytes.get(..LIMIT).filter(|_| bytes.len() > LIMIT).map_or((bytes, ""), |cut| (cut, "..."));
    let parts = shown.split(|&byte| byte == b'\'').map(|part| part.escape_ascii().to_string());
    parts.collect::<Vec<_>>().join("'") + cut
}

#[cfg(test)]
mod tests;
