//! What is said before a connection may be used. Pure: replies in, flights out.
//!
//! `HELLO 3` goes alone and first, because a server that refuses it may swallow or reorder what follows. Everything
//! else goes in one flight, and the last reply of that flight, a PING, tells whether the server serves at all: while
//! it loads its data it accepts HELLO and refuses PING (observed on Redis 7.0).

use std::sync::Arc;

use bytes::BytesMut;
use wheellock_resp::{Command, Value};

use crate::config::{Config, Credentials, Secret};
use crate::error::{CONNECT, Error, ErrorKind, error_code, is_the_servers_refusal, known_or_err, printable};
use crate::script::Script;

/// What the server said about itself in its reply to HELLO. Each text is escaped where it is not printable ASCII, and cut at 256 bytes.
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
    /// `redis` or `valkey`.
    pub name: String,
    /// Version, as in `7.0.15`.
    pub version: String,
    /// `standalone`, `sentinel` or `cluster`.
    pub mode: String,
    /// `master` or `replica`.
    pub role: String,
    /// The server's number for this connection.
    pub connection_id: i64,
    /// What tells this process of the server from any other, even at the same address; unknown if the user may not run
    /// `INFO`.
    pub run_id: Option<String>,
    /// A password was said and no user, and the server did not look at it: its `default` user needs none.
    pub password_unchecked: bool,
}

impl ServerInfo {
    /// Whether it is a server of this name, and of this version or a later one.
    pub(crate) fn is(&self, name: &str, since: (u32, u32)) -> bool {
        self.name == name && numbers(&self.version).is_some_and(|version| version >= since)
    }
}

/// What to do after a reply.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Read the next reply.
    Read,
    /// Write this flight, then read on.
    Write,
    /// The connection is ready.
    Done,
}

/// What a server has to be, to be of use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// The primary of its data set.
    Primary,
    /// A primary in a cluster.
    Node,
    /// Any node of a cluster: only asked about the others.
    AnyNode,
    /// A Sentinel: only asked about others.
    Sentinel,
}

pub(crate) struct Handshake<'a> {
    config: &'a Config,
    role: Role,
    credentials: &'a Credentials,
    server: &'a str,
    /// Names of the commands whose replies are still to come, in order.
    expected: std::collections::VecDeque<Expect<'a>>,
    pub(crate) info: ServerInfo,
}

enum Expect<'a> {
    Hello,
    /// Any reply will do.
    Optional,
    /// Refused if the `default` user needs no password. HELLO takes any from such a user, and tells nobody.
    PasswordCheck,
    Ok(&'static str),
    Loaded(&'a Script),
    /// The section of INFO that has the server's `run_id`; may be refused.
    Identity,
    /// Refused if the server would refuse writes.
    WriteProbe,
    Pong,
}

impl<'a> Handshake<'a> {
    /// Starts the handshake; `out` receives the first flight.
    pub(crate) fn start(
        config: &'a Config,
        role: Role,
        credentials: &'a Credentials,
        server: &'a str,
        out: &mut BytesMut,
    ) -> Self {
        let mut hello = Command::new("HELLO").arg("3");
        if let Some((user, password)) = credentials.to_say() {
            hello = hello.arg("AUTH").arg(user).arg(password);
        }
        hello.arg("SETNAME").arg(config.client_name.as_str()).encode(out);
        let expected = [Expect::Hello].into();
        Self { config, role, credentials, server, expected, info: ServerInfo::default() }
    }

    /// Takes the next reply; on [`Step::Write`] `out` has received the next flight.
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
                let run_id = text.lines().find_map(|line| line.strip_prefix("run_id:"));
                self.info.run_id = run_id.map(|id| printable(id.as_bytes()));
            }
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
            (Expect::Ok(command), Some(text)) => return Err(self.refused(command, text)),
            (Expect::Loaded(_), Some(text)) => return Err(self.refused("SCRIPT LOAD", text)),
            (Expect::Pong, Some(text)) => return Err(self.refused("PING", text)),
            (Expect::Ok(command), None) => {
                if reply.as_bytes() != Some(b"OK") {
                    return Err(self.protocol(&format!("{command} was not answered with OK")));
                }
            }
            (Expect::Loaded(script), None) => {
                if reply.as_bytes() != Some(script.sha().as_bytes()) {
                    return Err(self.protocol("SCRIPT LOAD was answered with another script's hash"));
                }
            }
            (Expect::Pong, None) => {
                if reply.as_bytes() != Some(b"PONG") {
                    return Err(self.protocol("PING was not answered with PONG"));
                }
                return Ok(Step::Done);
            }
        }
        Ok(Step::Read)
    }

    fn second_flight(&mut self, out: &mut BytesMut) {
        let serves = matches!(self.role, Role::Primary | Role::Node);
        if let Credentials { username: None, password: Some(password) } = self.credentials {
            Command::new("AUTH").arg(password.expose()).encode(out);
            self.expected.push_back(Expect::PasswordCheck);
        }
        if may_know_setinfo(&self.info.version) {
            for (attribute, value) in [("LIB-NAME", "wheellock"), ("LIB-VER", env!("CARGO_PKG_VERSION"))] {
                Command::new("CLIENT").arg("SETINFO").arg(attribute).arg(value).encode(out);
                self.expected.push_back(Expect::Optional);
            }
        }
        if serves {
            self.make_ready(out);
        }
        Command::new("PING").encode(out);
        self.expected.push_back(Expect::Pong);
    }

    /// What a server needs that is to run scripts.
    fn make_ready(&mut self, out: &mut BytesMut) {
        if self.config.database != 0 {
            Command::new("SELECT").arg(u64::from(self.config.database)).encode(out);
            self.expected.push_back(Expect::Ok("SELECT"));
        }
        for script in &self.config.scripts {
            Command::new("SCRIPT").arg("LOAD").arg(script.text()).encode(out);
            self.expected.push_back(Expect::Loaded(Arc::as_ref(script)));
        }
        Command::new("INFO").arg("server").encode(out);
        self.expected.push_back(Expect::Identity);
        Command::new("EVAL").arg(WRITE_PROBE).arg("0").encode(out);
        self.expected.push_back(Expect::WriteProbe);
    }

    fn read_hello(&self, reply: &Value) -> Result<ServerInfo, Error> {
        if matches!(reply, Value::Array(_)) {
            let detail = "it answered HELLO 3 in RESP2; a proxy in between may not speak RESP3";
            return Err(self.error(ErrorKind::Unsupported, detail.to_owned()));
        }
        let Value::Map(fields) = reply else {
            return Err(self.protocol("HELLO 3 was not answered with a map"));
        };
        let field =
            |name: &str| fields.iter().find(|(key, _)| key.as_str() == Some(name)).map(|(_, value)| value);
        let text = |name: &str| printable(field(name).and_then(Value::as_str).unwrap_or_default().as_bytes());
        if field("proto").and_then(Value::as_i64) != Some(3) {
            return Err(self.error(ErrorKind::Unsupported, "the server did not switch to RESP3".to_owned()));
        }
        let info = ServerInfo {
            name: text("server"),
            version: text("version"),
            mode: text("mode"),
            role: text("role"),
            connection_id: field("id").and_then(Value::as_i64).unwrap_or_default(),
            ..ServerInfo::default()
        };
        let wanted = match self.role {
            Role::Primary => "standalone",
            Role::Node | Role::AnyNode => "cluster",
            Role::Sentinel => "sentinel",
        };
        // Scripted and very old servers say nothing.
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
            return Err(self.error(ErrorKind::NotReady, detail));
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
            _ if text.starts_with(FULL) => self.error(
                ErrorKind::Connect,
                format!("it has no room for another connection: {shown}; raise its maxclients, or close idle connections"),
            ),
            _ => return self.refused("HELLO", text),
        };
        error.with_code(known_or_err(code))
    }

    fn refused(&self, command: &str, text: &[u8]) -> Error {
        let error = Error::server(command, self.server, false, text);
        let kind = if error.kind() == ErrorKind::Server { ErrorKind::Connect } else { error.kind() };
        self.error(kind, format!("{command} was refused: {}", self.shown(text)))
            .with_code(known_or_err(error_code(text)))
    }

    /// Returns a refusal fit for a message. Its words are shown if they are a server's own, or if no password was sent. Other words may
    /// repeat what was sent, whole, cut or quoted, and a search for the password would replace it in words of the server, and so tell it.
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

/// Returns what to do about a server that is of another kind than `wanted`.
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

/// Whether a server of this version may know `CLIENT SETINFO`, which came with Redis 7.2. An older one must not be asked:
/// Redis 6 takes it for a refusal of `CLIENT`, and writes that down in its ACL log.
fn may_know_setinfo(version: &str) -> bool {
    // Or a server of another make.
    numbers(version).is_none_or(|version| version >= (7, 2))
}

/// The major and the minor number of a version, if these are numbers.
fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.').map_while(|number| number.parse().ok());
    Some((numbers.next()?, numbers.next()?))
}

/// A script that declares itself as writing and writes nothing. Redis 7 checks whether it could before running it
/// (`scriptPrepareForRun` in script.c); older servers do not know the first line and answer with an error, which tells
/// nothing.
const WRITE_PROBE: &str = "#!lua\nreturn 1";

/// In what `AUTH password` is answered with if that password is not looked at (source: `authCommand` in acl.c).
const NO_PASSWORD: &str = "without any password configured";

/// Whether a refusal means that HELLO itself is not known: by servers before Redis 6, and by proxies in words of their own (source:
/// Envoy's Redis proxy, for the last).
fn is_unknown(refusal: &[u8]) -> bool {
    let refusal = printable(refusal).to_ascii_lowercase();
    ["unknown command", "unsupported command", "invalid request"].iter().any(|words| refusal.contains(words))
}

/// How a server says that it has `maxclients` connections (`acceptCommonHandler` in networking.c of Redis 7.0).
const FULL: &[u8] = b"ERR max number of clients";

/// Refusals in a server's own words that repeat nothing of what was sent, beside those of any command (sources: networking.c, db.c and
/// acl.c of Redis 6.0 to 8).
const OWN_WORDS: &[&[u8]] = &[
    FULL,
    b"ERR DB index is out of range",
    b"ERR invalid DB index",
    b"ERR SELECT is not allowed in cluster mode",
    b"NOPROTO unsupported protocol version",
    b"NOPERM this user has no permissions to run ",
];

/// What a server says that accepts connections but no writes. Not OOM: there, renewals and releases still work.
const REFUSES_WRITES: &[&str] = &["READONLY", "MISCONF", "NOREPLICAS", "MASTERDOWN", "LOADING"];

#[cfg(test)]
mod tests {
    use super::*;
    use wheellock_resp::{Decoder, Frame, Limits};

    fn replies(wire: &[u8]) -> Vec<Value> {
        let (mut buf, mut decoder) = (BytesMut::from(wire), Decoder::new(Limits::default()));
        let mut values = Vec::new();
        while let Some(frame) = decoder.decode(&mut buf).unwrap() {
            match frame {
                Frame::Reply(value) => values.push(value),
                Frame::Push(push) => panic!("unexpected push {push:?}"),
            }
        }
        values
    }

    const HELLO: &[u8] = b"%5\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n7.2.11\r\n\
        $5\r\nproto\r\n:3\r\n$2\r\nid\r\n:7\r\n$4\r\nrole\r\n$6\r\nmaster\r\n";

    fn shake(config: &Config, wire: &[u8]) -> Result<(Step, String), Error> {
        let mut out = BytesMut::new();
        let credentials = credentials(config);
        let mut handshake = Handshake::start(config, Role::Primary, &credentials, "s", &mut out);
        let mut step = Step::Read;
        for reply in replies(wire) {
            step = handshake.on_reply(&reply, &mut out)?;
        }
        Ok((step, String::from_utf8_lossy(&out).into_owned()))
    }

    fn credentials(config: &Config) -> Credentials {
        Credentials { username: config.username.clone(), password: config.password.clone() }
    }

    fn config(url: &str) -> Config {
        url.parse().unwrap()
    }

    #[test]
    fn credentials_go_with_hello_and_the_rest_in_one_flight() {
        let mut config = config("redis://app:pw@h/3");
        config.scripts.push(Arc::new(Script::new("return 1", 0, 0)));
        let sha = config.scripts[0].sha().to_owned();
        let wire = [
            HELLO,
            b"-ERR unknown subcommand\r\n+OK\r\n+OK\r\n$40\r\n",
            sha.as_bytes(),
            b"\r\n+run_id:a1\r\n:1\r\n+PONG\r\n",
        ]
        .concat();
        let (step, sent) = shake(&config, &wire).unwrap();
        assert_eq!(step, Step::Done);
        let words: Vec<_> =
            sent.split("\r\n").filter(|w| !w.starts_with(['*', '$']) && !w.is_empty()).collect();
        assert_eq!(
            words,
            [
                "HELLO",
                "3",
                "AUTH",
                "app",
                "pw",
                "SETNAME",
                "wheellock",
                "CLIENT",
                "SETINFO",
                "LIB-NAME",
                "wheellock",
                "CLIENT",
                "SETINFO",
                "LIB-VER",
                env!("CARGO_PKG_VERSION"),
                "SELECT",
                "3",
                "SCRIPT",
                "LOAD",
                "return 1",
                "INFO",
                "server",
                "EVAL",
                "#!lua\nreturn 1",
                "0",
                "PING"
            ]
        );
    }

    /// C2: what a server cannot know is not asked of it.
    #[test]
    fn servers_before_7_2_are_not_told_the_librarys_name() {
        for (version, told) in
            [("6.0.16", false), ("7.0.15", false), ("7.2.11", true), ("9.1.02", true), ("of us", true)]
        {
            let hello = String::from_utf8(HELLO.to_vec()).unwrap();
            let hello = hello.replace("$6\r\n7.2.11", &format!("${}\r\n{version}", version.len()));
            let (step, sent) = shake(&config("redis://h"), hello.as_bytes()).unwrap();
            assert_eq!((step, sent.contains("SETINFO")), (Step::Write, told), "{version}");
        }
    }

    #[test]
    fn refusals_say_what_to_change() {
        let kind = |url: &str, wire: &[u8]| {
            let error = shake(&config(url), wire).expect_err("refused");
            assert!(!error.to_string().contains("sesame"), "{error}");
            (error.kind(), error.to_string())
        };
        let (auth, text) = kind("redis://u:sesame@h", b"-WRONGPASS invalid username-password pair\r\n");
        assert!(auth == ErrorKind::Auth && text.contains("user \"u\" (with a password)"), "{text}");
        let (auth, text) =
            kind("redis://h", b"-NOAUTH HELLO must be called with the client already authenticated\r\n");
        assert!(auth == ErrorKind::Auth && text.contains("without a password"), "{text}");
        let (unsupported, text) = kind("redis://h", b"-ERR unknown command 'HELLO'\r\n");
        assert!(unsupported == ErrorKind::Unsupported && text.contains("Redis 6"), "{text}");
        assert_eq!(kind("redis://h", b"-NOPROTO unsupported protocol version\r\n").0, ErrorKind::Unsupported);
        let loading =
            [HELLO, b"+OK\r\n+OK\r\n-NOPERM no\r\n-LOADING Redis is loading the dataset in memory\r\n"]
                .concat();
        let readonly =
            [HELLO, b"+OK\r\n+OK\r\n$0\r\n\r\n-READONLY You can't write against a read only replica.\r\n"]
                .concat();
        assert_eq!(kind("redis://h", &readonly).0, ErrorKind::NotReady);
        assert_eq!(kind("redis://h", &loading).0, ErrorKind::NotReady);
        let replica = String::from_utf8(HELLO.to_vec()).unwrap().replace("$6\r\nmaster", "$7\r\nreplica");
        assert_eq!(kind("redis://h", replica.as_bytes()).0, ErrorKind::NotReady);
        for mode in ["cluster", "sentinel"] {
            let fields = format!("%6\r\n$4\r\nmode\r\n+{mode}\r\n");
            let other = String::from_utf8(HELLO.to_vec()).unwrap().replace("%5\r\n", &fields);
            assert_eq!(kind("redis://h", other.as_bytes()).0, ErrorKind::Unsupported);
        }
        let with = |field: &str| {
            let other = format!("%6\r\n{field}");
            String::from_utf8(HELLO.to_vec()).unwrap().replace("%5\r\n", &other).into_bytes()
        };
        let (unsupported, text) = kind("redis://h", &with("+mode\r\n+moon\r\n"));
        assert!(unsupported == ErrorKind::Unsupported && text.contains("says mode \"moon\""), "{text}");
        let no_role = String::from_utf8(HELLO.to_vec()).unwrap().replace("$4\r\nrole", "$4\r\nroll");
        let (unsupported, text) = kind("redis://h", no_role.as_bytes());
        assert!(unsupported == ErrorKind::Unsupported && text.contains("has no role"), "{text}");
        let resp2 = String::from_utf8(HELLO.to_vec()).unwrap().replace(":3\r\n", ":2\r\n");
        assert_eq!(kind("redis://h", resp2.as_bytes()).0, ErrorKind::Unsupported);
        assert_eq!(kind("redis://h", b"+OK\r\n").0, ErrorKind::Protocol);
    }

    /// A server that does not know HELLO repeats what it was sent, the password included: what follows is the text of Redis 5 and of
    /// those before it, and of a later one whose HELLO was renamed.
    #[test]
    fn a_server_that_repeats_the_password_is_not_quoted() {
        let config = config("redis://:s3cret-pw@h");
        let credentials = credentials(&config);
        let said = [
            "ERR unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'default' 's3cret-pw' 'SETNAME' 'wheellock' ",
            "ERR unknown command `HELLO`, with args beginning with: `3`, `AUTH`, `default`, `s3cret-pw`, `SETNAME`, `wheellock`, ",
            "ERR Unknown Command 'HELLO', With Args Beginning With: '3' 'AUTH' 'default' 's3cret-p",
            "ERR unknown command HELLO 3 AUTH default s3cret-pw",
            "ERR cannot route HELLO 3 AUTH default s3cret-pw SETNAME wheellock",
            "WRONGPASS s3cret-pw is not it",
            "NOPROTO not with s3cret-pw",
        ];
        for role in [Role::Primary, Role::Node, Role::AnyNode, Role::Sentinel] {
            for said in said {
                let mut out = BytesMut::new();
                let mut handshake = Handshake::start(&config, role, &credentials, "s", &mut out);
                let reply = &replies(format!("-{said}\r\n").as_bytes())[0];
                let error = handshake.on_reply(reply, &mut out).unwrap_err();
                let shown = format!("{error} {error:?}");
                assert!(!shown.contains("s3cret-p"), "{role:?}: {shown}");
                let tells =
                    ["HELLO", "was refused: WRONGPASS", "RESP3"].iter().any(|words| shown.contains(words));
                assert!(
                    tells && error.code().is_some_and(|code| known_or_err(code) == code),
                    "{role:?}: {shown}"
                );
            }
        }
        // Later in the handshake, too.
        let wire = [HELLO, b"+OK\r\n+OK\r\n+OK\r\n+run_id:a1\r\n-READONLY s3cret-pw\r\n"].concat();
        let error = shake(&config, &wire).unwrap_err();
        assert!(error.to_string().contains("READONLY (its words"), "{error}");
        let error = shake(&config, b"-s3cret-pw is no password\r\n").unwrap_err();
        assert_eq!(error.code(), Some("ERR"), "{error:?}");
    }

    /// A mark in place of a weak password would tell it.
    #[test]
    fn weak_password_changes_no_text() {
        let refusals: &[&[u8]] = &[
            b"-WRONGPASS invalid username-password pair or user is disabled.\r\n",
            b"-NOAUTH HELLO must be called with the client already authenticated\r\n",
            b"-ERR max number of clients reached\r\n",
            b"-ERR unknown command 'HELLO', with args beginning with: '3' 'AUTH'\r\n",
            b"-ERR something else about a user and a pair\r\n",
            b"-DENIED Redis is running in protected mode because protected mode is enabled\r\n",
        ];
        for refusal in refusals {
            let text = |password: &str| {
                shake(&config(&format!("redis://u:{password}@h")), refusal).unwrap_err().to_string()
            };
            let strong = text("8Zr.kQ-x_7");
            for weak in ["password", "user", "pair", "Redis", "ERR", "e", "WRONGPASS", "HELLO", "wrong"] {
                assert_eq!(text(weak), strong);
            }
        }
    }

    /// It is kept, and goes into events.
    #[test]
    fn what_a_server_says_about_itself_is_cut_and_escaped() {
        let version = "7.2\u{1b}[2J\n".to_owned() + &"9".repeat(1 << 20);
        let hello = String::from_utf8(HELLO.to_vec()).unwrap();
        let hello = hello
            .replace("$6\r\n7.2.11", &format!("${}\r\n{version}", version.len()))
            .replace("$5\r\nredis", "$6\r\nre\tdis");
        let (config, mut out) = (config("redis://h"), BytesMut::new());
        let credentials = credentials(&config);
        let mut handshake = Handshake::start(&config, Role::Primary, &credentials, "s", &mut out);
        handshake.on_reply(&replies(hello.as_bytes())[0], &mut out).unwrap();
        let info = handshake.info;
        assert!(info.version.len() < 300, "{} bytes", info.version.len());
        assert!(info.version.starts_with("7.2\\x1b[2J\\n99"), "{}", info.version);
        assert_eq!((info.name.as_str(), info.role.as_str()), ("re\\tdis", "master"));
    }

    #[test]
    fn a_reply_too_many_is_a_protocol_error() {
        let mut out = BytesMut::new();
        let config = config("redis://h");
        let credentials = credentials(&config);
        let mut handshake = Handshake::start(&config, Role::Primary, &credentials, "s", &mut out);
        let wire = [HELLO, b"+OK\r\n+OK\r\n$0\r\n\r\n:1\r\n+PONG\r\n+OK\r\n"].concat();
        let results: Vec<_> = replies(&wire).iter().map(|r| handshake.on_reply(r, &mut out)).collect();
        assert!(matches!(
            results[..],
            [
                Ok(Step::Write),
                Ok(Step::Read),
                Ok(Step::Read),
                Ok(Step::Read),
                Ok(Step::Read),
                Ok(Step::Done),
                Err(_)
            ]
        ));
    }
}
