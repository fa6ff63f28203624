//! What can go wrong, said so that it can be acted on: what was tried, on which server, and whether it may have
//! happened anyway. Owns the error type; knows nothing of sockets or of how a failure came about.

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::base::address::Address;

/// Whether a failed call may have taken effect on the server.
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
    /// No byte of the call left this process. It is safe to repeat.
    NotSent,
    /// The server answered that it refused the call before executing it. Repeating is safe; it may be refused again.
    Rejected,
    /// The call was written, and no answer tells whether it ran, or how far: what runs other commands (`EVAL` and its kin, `FCALL`,
    /// `MIGRATE`) may fail behind some that have taken effect. Only an idempotent call may be repeated.
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

/// The class of a failure; [`Error`] carries the details.
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
    /// The configuration or URL cannot be used, or a call asks for what this client does not do.
    Config,
    /// The server could not be reached: DNS, connect, or the socket failed while connecting.
    Connect,
    /// The connection broke while the call was on its way.
    ConnectionLost,
    /// The call's deadline passed.
    Timeout,
    /// The bounded queue of this connection is full, or the call is larger than it may be.
    Overloaded,
    /// The server refused our credentials or asked for some.
    Auth,
    /// Our user may not run a command, or touch a key or channel.
    Permission,
    /// The server lacks what this client needs (RESP3: Redis 6 or later, any Valkey), or has another role.
    Unsupported,
    /// The server is up but does not serve yet (it is loading its data, or its primary link is down).
    NotReady,
    /// The server answered the call with an error.
    Server,
    /// The server's bytes were not RESP, or a reply did not belong to any call. The connection was closed.
    Protocol,
    /// The client was closed, or its runtime was shut down.
    Closed,
}

/// A failed call or connection.
///
/// `Display` is one line, and enough by itself: what was tried, on which server, why it failed down to the last cause,
/// and of a call the [`Outcome`]. Server-sent text is escaped and cut at 256 bytes. Cloning is cheap.
///
/// [`source`](std::error::Error::source) repeats nothing of that line. If the operating system failed us it is an
/// [`io::Error`] of the same [`kind`](io::Error::kind) that prints the system's number for it; of anything else it is the
/// cause of the cause, if there is one. The cause itself is [`origin`](Self::origin).
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
    /// It was no call but a step towards a connection, as in "connect to".
    is_step: bool,
    /// Empty if none was asked.
    server: String,
    detail: String,
    code: Option<String>,
    /// Where a cluster's node says the call should have gone.
    redirected_to: Option<Address>,
    cause: Option<Cause>,
}

/// What `detail` tells the text of.
#[derive(Clone)]
enum Cause {
    /// The error itself, and what its text in `detail` lacks.
    System(Arc<io::Error>, Arc<io::Error>),
    Other(Arc<dyn std::error::Error + Send + Sync>),
}

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

    /// A failure on the way to a connection: `step` reads on after "cannot". No call was on its way.
    pub(crate) fn step(kind: ErrorKind, step: &str, server: &str, detail: String) -> Self {
        let error = Self::new(kind, Outcome::NotSent, step, server, detail);
        Self(Arc::new(Inner { is_step: true, ..error.copy() }))
    }

    /// An error that a server sent in reply to `operation`.
    pub(crate) fn server(operation: &str, server: &str, script: bool, text: &[u8]) -> Self {
        let code = error_code(text);
        Self(Arc::new(Inner {
            kind: kind_of(code, text),
            outcome: outcome_of(text, script || may_fail_midway(operation)),
            operation: named(operation),
            is_step: false,
            server: server.to_owned(),
            detail: format!("the server answered \"{}\"{}", printable(text), explained(text)),
            code: Some(code.to_owned()),
            redirected_to: None,
            cause: None,
        }))
    }

    /// Adds the code of what a server said.
    pub(crate) fn with_code(self, code: &str) -> Self {
        Self(Arc::new(Inner { code: Some(code.to_owned()), ..self.copy() }))
    }

    fn copy(&self) -> Inner {
        Inner::clone(&self.0)
    }

    /// Adds the cause, whose text is part of the detail: see [`said`].
    pub(crate) fn because_of(self, cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self(Arc::new(Inner { cause: Some(Cause::Other(cause.into().into())), ..self.copy() }))
    }

    /// The same for an error of the system.
    pub(crate) fn because_of_io(self, cause: io::Error) -> Self {
        let cause = Arc::new(cause);
        let rest = io::Error::new(cause.kind(), Rest(Arc::clone(&cause)));
        Self(Arc::new(Inner { cause: Some(Cause::System(cause, Arc::new(rest))), ..self.copy() }))
    }

    /// Adds the cause of another error, whose text is part of the detail.
    pub(crate) fn because_of_the_same_as(self, other: &Self) -> Self {
        Self(Arc::new(Inner { cause: other.0.cause.clone(), ..self.copy() }))
    }

    pub(crate) fn with_redirection(self, to: Address) -> Self {
        Self(Arc::new(Inner { redirected_to: Some(to), ..self.copy() }))
    }

    /// The same failure as seen by another operation: one broken connection fails many calls.
    pub(crate) fn seen_by(&self, operation: &str, kind: ErrorKind, outcome: Outcome) -> Self {
        let Inner { is_step, detail, .. } = &*self.0;
        let detail = if *is_step { format!("not connected: {detail}") } else { detail.clone() };
        let operation = named(operation);
        Self(Arc::new(Inner { kind, outcome, operation, is_step: false, detail, ..self.copy() }))
    }

    /// The same failure, of a call that had been made before without an answer: whatever became of this attempt, that one
    /// may have taken effect.
    #[doc(hidden)]
    #[must_use]
    pub fn after_an_unanswered_attempt(&self) -> Self {
        self.seen_by(&self.0.operation, self.0.kind, Outcome::MaybeExecuted)
    }

    /// The same failure, of a call that had been refused before: why it had to be made again.
    pub(crate) fn after(&self, refused: &Self) -> Self {
        let detail = format!("{}; before that, {}", self.0.detail, refused.0.detail);
        Self(Arc::new(Inner { detail, ..self.copy() }))
    }

    /// The same failure, told otherwise: what the server said may repeat what nobody is to see.
    pub(crate) fn in_other_words(self, detail: String) -> Self {
        Self(Arc::new(Inner { detail, ..self.copy() }))
    }

    /// A call that was refused and could have been made again, had its deadline not passed.
    pub(crate) fn cut_short(&self) -> Self {
        let Inner { operation, outcome, server, detail, .. } = &*self.0;
        let detail = format!("the deadline passed before it could be made again; {detail}");
        Self::new(ErrorKind::Timeout, *outcome, operation, server, detail)
    }

    /// The class of the failure.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns true if a setting has to change before an attempt can succeed: the server refuses this client, or this client
    /// cannot use its own settings.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self.kind(), ErrorKind::Auth | ErrorKind::Unsupported | ErrorKind::Config)
    }

    /// Whether the call may have taken effect.
    pub fn outcome(&self) -> Outcome {
        self.0.outcome
    }

    /// What was tried: a command, or a step towards a connection such as `connect to`.
    pub fn operation(&self) -> &str {
        &self.0.operation
    }

    /// The server that was asked, as `host:port` or a socket path; of a URL that cannot be parsed, what may be shown of
    /// it. Never contains credentials.
    pub fn server_address(&self) -> &str {
        &self.0.server
    }

    /// The first word of a server's error reply (`NOSCRIPT`, `READONLY`, `ERR`, ...), if the server sent one.
    /// Source: the Redis protocol specification, "Simple errors". `TRYAGAIN` also if a script asked for a key that a cluster is just
    /// moving, which its error says in words.
    pub fn code(&self) -> Option<&str> {
        self.0.code.as_deref()
    }

    /// Where a cluster's node says the call should have gone.
    pub(crate) fn redirected_to(&self) -> Option<&Address> {
        self.0.redirected_to.as_ref()
    }

    /// What went wrong, without the operation, server and outcome that `Display` adds.
    pub fn detail(&self) -> &str {
        &self.0.detail
    }

    /// The cause, whole, if there is one beside what the server or this client said: an [`io::Error`], or what the
    /// decoder, the TLS library or a [provider](crate::Config::credentials) said. Its text is part of `Display`, which is
    /// why it is not the [`source`](std::error::Error::source).
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

/// What is left to say of an error of the system once it was [`said`]: its number, or what kind it is.
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

/// An error of the system in words, without the number that std puts after them.
pub(crate) fn said(error: &io::Error) -> String {
    let text = error.to_string();
    let number = error.raw_os_error().map(|number| format!(" (os error {number})"));
    number.and_then(|number| text.strip_suffix(&number).map(str::to_owned)).unwrap_or(text)
}

/// The step towards a connection that connects.
pub(crate) const CONNECT: &str = "connect to";

/// A command's name fit for a log line: callers may have it from users.
fn named(operation: &str) -> String {
    const LIMIT: usize = 64;
    operation.chars().take(LIMIT).flat_map(char::escape_debug).collect()
}

/// The first word of an error reply; `TRYAGAIN` also where it says that of a script.
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

/// Whether a script asked a cluster's node for a key of a slot that is on its way between two nodes, which may be on the other one
/// (`scriptVerifyClusterState` in script.c of Redis 7.0, and with other words before it `luaRedisGenericCommand` in scripting.c of 6.2).
fn was_ended_by_a_move(text: &[u8]) -> bool {
    contains(text, b"script attempted to access a non local key")
        || contains(text, b"Script attempted to access a non local key")
}

/// Returns what a server's words leave out.
fn explained(text: &[u8]) -> &'static str {
    if was_ended_by_a_move(text) {
        " (TRYAGAIN: the slot is being moved key by key, and a key of the script may be on the other node)"
    } else {
        ""
    }
}

fn kind_of(code: &str, text: &[u8]) -> ErrorKind {
    match code {
        "NOPERM" => ErrorKind::Permission,
        // How NOPERM is said inside a script, by Redis up to 7.0 and by later ones.
        "ERR" if contains(text, b"The user executing the script can't") => ErrorKind::Permission,
        "ERR" if text.starts_with(b"ERR ACL failure in script") => ErrorKind::Permission,
        "NOAUTH" | "WRONGPASS" => ErrorKind::Auth,
        "LOADING" | "MASTERDOWN" => ErrorKind::NotReady,
        "NOPROTO" => ErrorKind::Unsupported,
        _ => ErrorKind::Server,
    }
}

/// What servers say, and from which word on, when they refuse before they execute anything of the command; the words before that name the
/// product or a user (sources: `createSharedObjects` and `processCommand` in server.c, `scriptPrepareForRun` in script.c,
/// `getAclErrorMessage` in acl.c and `clusterRedirectClient` in cluster.c of Redis 6.0 to 8 and Valkey 7.2 to 9).
///
/// The code alone proves nothing: a script may say it after it has written. A command inside a script that is refused in these words has had
/// nothing before it that wrote, because servers look at all this only before a script's first write.
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
    // Redis 8.4, of a slot that comes back to a node that still removes what it had of it.
    ("TRYAGAIN", 0, "Slot is being trimmed"),
];

/// Returns `code` if servers refuse with it, and otherwise `ERR`: it may be a word that was sent, and a secret.
pub(crate) fn known_or_err(code: &str) -> &str {
    let is_known = REFUSED_BEFORE_EXECUTION.iter().any(|&(known, ..)| known == code);
    if is_known || matches!(code, "WRONGPASS" | "NOPROTO") { code } else { "ERR" }
}

/// Whether a server has refused a command before it executed anything of it, in its own words.
pub(crate) fn is_the_servers_refusal(text: &[u8]) -> bool {
    let mut words = text.splitn(2, |&byte| byte == b' ');
    let (code, said) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    if matches!(code, b"MOVED" | b"ASK") {
        // Of which slot, and to where.
        let slot = said.split(|&byte| byte == b' ').next().unwrap_or_default();
        return !slot.is_empty() && slot.iter().all(u8::is_ascii_digit) && slot.len() + 1 < said.len();
    }
    REFUSED_BEFORE_EXECUTION.iter().any(|&(listed, named, words)| {
        let said = said.splitn(named + 1, |&byte| byte == b' ').nth(named).unwrap_or_default();
        listed.as_bytes() == code && said.starts_with(words.as_bytes())
    })
}

/// Commands that run others one after the other, or do several things: what they have done stays if the next one fails.
const MAY_FAIL_MIDWAY: &[&str] =
    &["EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO", "FCALL", "FCALL_RO", "MIGRATE"];

/// Whether a command, by its name, may have taken effect although it was answered with an error.
fn may_fail_midway(command: &str) -> bool {
    MAY_FAIL_MIDWAY.iter().any(|name| name.eq_ignore_ascii_case(command))
}

fn outcome_of(text: &[u8], midway: bool) -> Outcome {
    // A script stops at its first failing command, and what it wrote before that stays. Only a refusal that precedes
    // the script is certain; the server kills a script only while it has not written.
    let killed_unwritten = contains(text, b"Script killed by user");
    if !midway || is_the_servers_refusal(text) || killed_unwritten {
        Outcome::Rejected
    } else {
        Outcome::MaybeExecuted
    }
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

/// Foreign bytes fit for a log line, within double quotes: escaped, but for single quotes, and cut at 256 bytes of input.
pub(crate) fn printable(bytes: &[u8]) -> String {
    const LIMIT: usize = 256;
    let (shown, cut) =
        bytes.get(..LIMIT).filter(|_| bytes.len() > LIMIT).map_or((bytes, ""), |cut| (cut, "..."));
    let parts = shown.split(|&byte| byte == b'\'').map(|part| part.escape_ascii().to_string());
    parts.collect::<Vec<_>>().join("'") + cut
}

#[cfg(test)]
mod tests;
