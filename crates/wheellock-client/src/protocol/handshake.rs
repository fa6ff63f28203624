//! The handshake that makes a connection usable.
//!
//! This module does no I/O: it takes replies and returns the bytes to write. `HELLO 3` is sent first and alone. A
//! server that refuses it may swallow or reorder the commands behind it. All other commands follow in one flight that
//! ends with a PING. The reply to PING shows whether the server serves requests at all. While a server loads its
//! data, it accepts HELLO and refuses PING (observed on Redis 7.0).

use bytes::BytesMut;
use wheellock_resp::{Command, Value};

use crate::base::error::{
    CONNECT, Error, ErrorKind, error_code, is_the_servers_refusal, known_or_err, lacks_lua, printable,
};
use crate::config::{Config, Credentials, Secret};

/// The server's description of itself, from its reply to HELLO.
///
/// Each text is cut at 256 bytes, and characters that are not printable ASCII are escaped.
///
/// ```no_run
/// # async fn example(client: wheellock_client::Client) -> Result<(), wheellock_client::Error> {
/// if let Some(info) = client.server_info() {
///     println!("{} {} as {}", info.name, info.version, info.role);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerInfo {
    /// The server's name: `redis` or `valkey`.
    pub name: String,
    /// The version, such as `7.0.15`.
    pub version: String,
    /// The mode: `standalone`, `sentinel` or `cluster`.
    pub mode: String,
    /// The role: `master` or `replica`.
    pub role: String,
    /// The server's number for this connection.
    pub connection_id: i64,
    /// The identifier of this server process, which distinguishes it from every other server, even at the same
    /// address. `None` if the user may not run `INFO`.
    pub run_id: Option<String>,
    /// True if the server tells this client about changes of keys (`CLIENT TRACKING`). A server before Redis 6, a
    /// proxy or a missing permission prevents it.
    pub tracks_keys: bool,
    /// True if the client sent a password without a user name, and the server did not check that password. The
    /// server's `default` user then needs no password.
    pub password_unchecked: bool,
}

impl ServerInfo {
    /// Returns true if the server has this name, and this version or a later one.
    pub(crate) fn is(&self, name: &str, since: (u32, u32)) -> bool {
        self.name == name && numbers(&self.version).is_some_and(|version| version >= since)
    }
}

/// The next step after a reply.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Read the next reply.
    Read,
    /// Write this flight, then read on.
    Write,
    /// The connection is ready.
    Done,
}

/// The role that the server must have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// The primary of its data set.
    Primary,
    /// A primary in a cluster.
    Node,
    /// Any node of a cluster. The client only queries it for the other nodes.
    AnyNode,
    /// A Sentinel. The client only queries it for other servers.
    Sentinel,
}

pub(crate) struct Handshake<'a> {
    config: &'a Config,
    role: Role,
    credentials: &'a Credentials,
    server: &'a str,
    /// The replies that are still due, in order.
    expected: std::collections::VecDeque<Expect<'a>>,
    pub(crate) info: ServerInfo,
}

enum Expect<'a> {
    Hello,
    /// Any reply is accepted.
    Optional,
    /// A check that the server refuses if its `default` user needs no password. HELLO accepts any password for such a
    /// user without saying so.
    PasswordCheck,
    /// The reply to this command, which must be this text.
    Text(&'static str, &'a str),
    /// The section of INFO that contains the server's `run_id`. A refusal is accepted.
    Identity,
    /// The order to tell about changes of keys. A refusal is accepted.
    Tracking,
    /// A probe that the server refuses if it would refuse writes.
    WriteProbe,
}

impl<'a> Handshake<'a> {
    /// Starts the handshake and writes the first flight to `out`.
    pub(crate) fn start(
        config: &'a Config,
        role: Role,
        credentials: &'a Credentials,
        server: &'a str,
        out: &mut BytesMut,
    ) -> Self {
        let mut hello = Command::new("HELLO").arg("3");
        if let Some((user, password)) = credentials.to_send() {
            hello = hello.arg("AUTH").arg(user).arg(password);
        }
        hello.arg("SETNAME").arg(config.client_name.as_str()).encode(out);
        let expected = [Expect::Hello].into();
        Self { config, role, credentials, server, expected, info: ServerInfo::default() }
    }

    /// Takes the next reply. On [`Step::Write`] the next flight is in `out`.
    pub(crate) fn on_reply(&mut self, reply: &Value, out: &mut BytesMut) -> Result<Step, Error> {
        let Some(expect) = self.expected.pop_front() else {
            return Err(self.protocol("the server sent a reply that nothing asked for"));
        };
        match (expect, reply.as_error()) {
            (Expect::Optional, _) => {}
            (Expect::PasswordCheck, reply) => {
                self.info.password_unchecked =
                    reply.is_some_and(|text| printable(text).contains(NO_PASSWORD));
            }
            (Expect::Identity, _) => {
                let text = reply.as_str().unwrap_or_default();
                // Without the permission for INFO, the server's address identifies the server.
                let run_id = text.lines().find_map(|line| line.strip_prefix("run_id:"));
                self.info.run_id = run_id.map(|id| printable(id.as_bytes()));
            }
            (Expect::Tracking, refusal) => self.info.tracks_keys = refusal.is_none(),
            (Expect::WriteProbe, reply) => {
                if let Some(text) = reply.filter(|text| REFUSES_WRITES.contains(&error_code(text))) {
                    let detail = format!("it refuses writes: {}", self.shown(text));
                    return Err(self.error(ErrorKind::NotReady, detail).with_code(error_code(text)));
                }
            }
            (Expect::Hello, Some(text)) => return Err(self.refused_hello(text)),
            (Expect::Hello, None) => {
                self.info = self.read_hello(reply)?;
                self.second_flight(out);
                return Ok(Step::Write);
            }
            (Expect::Text(command, _), Some(text)) => return Err(self.refused(command, text)),
            (Expect::Text(command, wanted), None) => {
                if reply.as_bytes() != Some(wanted.as_bytes()) {
                    return Err(self.protocol(&format!("{command} was not answered with {wanted}")));
                }
            }
        }
        Ok(if self.expected.is_empty() { Step::Done } else { Step::Read })
    }

    fn second_flight(&mut self, out: &mut BytesMut) {
        let serves = matches!(self.role, Role::Primary | Role::Node);
        // HELLO has already authenticated this user. This AUTH only shows whether the server checks the password.
        if let Credentials { username: None, password: Some(password) } = self.credentials {
            self.send(&Command::new("AUTH").arg(password.expose()), Expect::PasswordCheck, out);
        }
        if may_know_setinfo(&self.info.version) {
            for (attribute, value) in [("LIB-NAME", "wheellock"), ("LIB-VER", env!("CARGO_PKG_VERSION"))] {
                let setinfo = Command::new("CLIENT").arg("SETINFO").arg(attribute).arg(value);
                // A server or a proxy may refuse this. The client itself does not need it.
                self.send(&setinfo, Expect::Optional, out);
            }
        }
        // A node that the client only queries needs no scripts. A replica among these nodes would fail the probe for
        // writes.
        if serves {
            self.make_ready(out);
        }
        self.send(&Command::new("PING"), Expect::Text("PING", "PONG"), out);
    }

    /// Sends the commands that a server needs before it can run scripts.
    fn make_ready(&mut self, out: &mut BytesMut) {
        if self.config.database != 0 {
            let select = Command::new("SELECT").arg(u64::from(self.config.database));
            self.send(&select, Expect::Text("SELECT", "OK"), out);
        }
        // The scripts make up most of the handshake. Without this, the buffer would grow, and copy them, several times.
        out.reserve(self.config.scripts.iter().map(|script| script.text().len() + LOAD_FRAME).sum());
        // A program writes its last releases and reads no replies. A server without their script would refuse them.
        for script in &self.config.scripts {
            let load = Command::new("SCRIPT").arg("LOAD").arg(script.text());
            self.send(&load, Expect::Text("SCRIPT LOAD", script.sha()), out);
        }
        self.send(&Command::new("INFO").arg("server"), Expect::Identity, out);
        if self.config.hooks.on_changed_keys.is_some() {
            // OPTIN: the server remembers keys only on request. NOLOOP: it does not tell about changes of this client.
            let order = Command::new("CLIENT").arg("TRACKING").arg("ON").arg("OPTIN").arg("NOLOOP");
            self.send(&order, Expect::Tracking, out);
        }
        self.send(&Command::new("EVAL").arg(WRITE_PROBE).arg("0"), Expect::WriteProbe, out);
    }

    fn send(&mut self, command: &Command<'_>, expect: Expect<'a>, out: &mut BytesMut) {
        command.encode(out);
        self.expected.push_back(expect);
    }

    fn read_hello(&self, reply: &Value) -> Result<ServerInfo, Error> {
        if matches!(reply, Value::Array(_)) {
            let detail = "it answered HELLO 3 in RESP2; a proxy in between may not speak RESP3";
            return Err(self.error(ErrorKind::Unsupported, detail.to_owned()));
        }
        if !matches!(reply, Value::Map(_)) {
            return Err(self.protocol("HELLO 3 was not answered with a map"));
        }
        // The client keeps these texts and puts them into events, so they are cut and escaped.
        let text =
            |name: &str| printable(reply.get(name).and_then(Value::as_str).unwrap_or_default().as_bytes());
        if reply.get("proto").and_then(Value::as_i64) != Some(3) {
            return Err(self.error(ErrorKind::Unsupported, "the server did not switch to RESP3".to_owned()));
        }
        let info = ServerInfo {
            name: text("server"),
            version: text("version"),
            mode: text("mode"),
            role: text("role"),
            connection_id: reply.get("id").and_then(Value::as_i64).unwrap_or_default(),
            ..ServerInfo::default()
        };
        let wanted = match self.role {
            Role::Primary => "standalone",
            Role::Node | Role::AnyNode => "cluster",
            Role::Sentinel => "sentinel",
        };
        // Scripted test servers and very old servers send no mode.
        let mode = if info.mode.is_empty() { "standalone" } else { &info.mode };
        if mode != wanted {
            return Err(self.error(ErrorKind::Unsupported, wrong_mode(wanted, mode)));
        }
        if matches!(self.role, Role::Primary | Role::Node) && info.role.is_empty() {
            let detail = "its reply to HELLO has no role, so it may be a replica: a proxy, or a server that stands in for Redis, \
                          has to tell it";
            return Err(self.error(ErrorKind::Unsupported, detail.to_owned()));
        }
        if matches!(self.role, Role::Primary | Role::Node) && info.role != "master" {
            let detail = format!("it is a {}, not a primary: locks live on the primary only", info.role);
            // The code of a replica's reply to a write, by which the lock layer recognises a replica.
            return Err(self.error(ErrorKind::NotReady, detail).with_code("READONLY"));
        }
        Ok(info)
    }

    fn refused_hello(&self, text: &[u8]) -> Error {
        let (shown, code) = (self.shown(text), error_code(text));
        let error = match code {
            "WRONGPASS" | "NOAUTH" => {
                let how = match (&self.credentials.username, &self.credentials.password) {
                    (_, Some(_)) => "with a password",
                    (Some(_), None) => "without a password, which only a user with `nopass` may be",
                    (None, None) => "without a password",
                };
                let user = printable(self.credentials.user().as_bytes());
                self.error(ErrorKind::Auth, format!("user \"{user}\" ({how}) was refused: {shown}"))
            }
            "NOPROTO" => self.error(ErrorKind::Unsupported, format!("it does not speak RESP3: {shown}")),
            _ if is_unknown(text) => self.error(
                ErrorKind::Unsupported,
                "it does not know HELLO; Redis 6 or later, or Valkey, is required, and no proxy that only speaks RESP2".to_owned(),
            ),
            // The server may have room soon, so calls wait for it as for the end of an outage.
            _ if text.starts_with(FULL) => self.error(
                ErrorKind::Connect,
                format!("it has no room for another connection: {shown}; raise its maxclients, or close idle connections"),
            ),
            _ => return self.refused("HELLO", text),
        };
        // The code shows that the server has answered, so `Pauses` retries a full server ever less often. An unknown
        // code may be the password itself.
        error.with_code(known_or_err(code))
    }

    fn refused(&self, command: &str, text: &[u8]) -> Error {
        if lacks_lua(text) {
            let detail =
                format!("it does not run Lua scripts, which locks are made of: {}", self.shown(text));
            return self.error(ErrorKind::Unsupported, detail);
        }
        // An error of unknown kind may pass. `Connect` does not count as a refusal, so calls wait instead of failing
        // at once.
        let error = Error::server(command, self.server, false, text);
        let kind = if error.kind() == ErrorKind::Server { ErrorKind::Connect } else { error.kind() };
        self.error(kind, format!("{command} was refused: {}", self.shown(text)))
            .with_code(known_or_err(error_code(text)))
    }

    /// Returns the text of a refusal for an error message. The text is shown in full if its words are the server's
    /// own, or if no password was sent. Any other text may repeat the password: whole, cut or quoted. Masking the
    /// password is not a remedy. A weak password also occurs in the server's own words, and a mask there would reveal
    /// it.
    fn shown(&self, text: &[u8]) -> String {
        let code = error_code(text);
        match code {
            "WRONGPASS" => {
                return "WRONGPASS, the user or the password is wrong, or the user is disabled".to_owned();
            }
            "NOAUTH" => return "NOAUTH, it wants a password".to_owned(),
            _ => {}
        }
        let password = self.credentials.password.as_ref().map_or("", Secret::expose);
        if password.is_empty()
            || is_the_servers_refusal(text)
            || OWN_WORDS.iter().any(|words| text.starts_with(words))
        {
            return printable(text);
        }
        format!("{} (its words are left out, because they may repeat the password)", known_or_err(code))
    }

    fn protocol(&self, detail: &str) -> Error {
        self.error(ErrorKind::Protocol, detail.to_owned())
    }

    fn error(&self, kind: ErrorKind, detail: String) -> Error {
        Error::step(kind, CONNECT, self.server, detail)
    }
}

/// Returns the advice for a server of another kind than `wanted`.
fn wrong_mode(wanted: &str, mode: &str) -> String {
    let detail = match (mode, wanted) {
        ("sentinel", _) => "it is a Sentinel, which keeps no data: use redis+sentinel://host:port/service",
        ("cluster", _) => {
            "it is a node of a cluster, of which a single connection sees only a part: use redis+cluster://"
        }
        ("standalone", "sentinel") => {
            "it is not a Sentinel: name the Sentinels' own ports (26379 by default), or use redis://host:port"
        }
        ("standalone", _) => {
            "it is not a node of a cluster: use redis://host:port, or set cluster-enabled on the server"
        }
        _ => {
            return format!(
                "its reply to HELLO says mode \"{mode}\", and this client knows standalone, sentinel and cluster: a proxy may be in \
                 between"
            );
        }
    };
    detail.to_owned()
}

/// Returns true if a server of this version may know `CLIENT SETINFO`, which came with Redis 7.2. The client must not
/// send the command to an older server. Redis 6 treats it as a forbidden `CLIENT` command and writes it to its ACL
/// log.
fn may_know_setinfo(version: &str) -> bool {
    // A version that is not numeric belongs to another product, which may know the command.
    numbers(version).is_none_or(|version| version >= (7, 2))
}

/// Returns the major and the minor number of a version, if both are numbers.
fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.').map_while(|number| number.parse().ok());
    Some((numbers.next()?, numbers.next()?))
}

/// A script that declares itself as writing and writes nothing. Before running such a script, Redis 7 checks whether
/// writes are possible (`scriptPrepareForRun` in script.c). Older servers do not know the first line. Their error
/// says nothing about writes, and the handshake ignores it.
const WRITE_PROBE: &str = "#!lua\nreturn 1";

/// More bytes than `SCRIPT LOAD` and the lengths take around a script.
const LOAD_FRAME: usize = 64;

/// A part of the reply to `AUTH password` from a server that did not check the password (source: `authCommand` in
/// acl.c).
const NO_PASSWORD: &str = "without any password configured";

/// Returns true if the refusal means that the server does not know HELLO. Servers before Redis 6 send such a refusal,
/// and so do proxies, in other words. The last text is that of Envoy's Redis proxy (source: its code).
fn is_unknown(refusal: &[u8]) -> bool {
    let refusal = printable(refusal).to_ascii_lowercase();
    ["unknown command", "unsupported command", "invalid request"].iter().any(|words| refusal.contains(words))
}

/// The start of a server's reply when it already has `maxclients` connections (`acceptCommonHandler` in networking.c
/// of Redis 7.0).
const FULL: &[u8] = b"ERR max number of clients";

/// The starts of refusals in a server's own words that repeat no input. Refusals of any command are listed elsewhere
/// (sources: networking.c, db.c and acl.c of Redis 6.0 to 8).
const OWN_WORDS: &[&[u8]] = &[
    FULL,
    b"ERR DB index is out of range",
    b"ERR invalid DB index",
    b"ERR SELECT is not allowed in cluster mode",
    b"NOPROTO unsupported protocol version",
    b"NOPERM this user has no permissions to run ",
];

/// The error codes of servers that accept connections but refuse writes. OOM is not listed: such a server still
/// accepts renewals and releases.
const REFUSES_WRITES: &[&str] = &["READONLY", "MISCONF", "NOREPLICAS", "MASTERDOWN", "LOADING"];

#[cfg(test)]
mod tests;
