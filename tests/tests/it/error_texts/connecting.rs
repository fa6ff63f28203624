//! Texts of attempts to connect.
//!
//! The server is down, refuses, or is of another kind.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpSocket;
use wheellock::client::{Address, Client, Config, Error, Translate};
use wheellock_tests::fault::{FakeServer, Session};

use super::{Row, row};

/// Replies to HELLO: the URL's user info, the reply.
const ANSWERS: &[(&str, &str, &str)] = &[
    (
        "No password, and the server wants one",
        "",
        "-NOAUTH HELLO must be called with the client already authenticated",
    ),
    ("A wrong password", "app:secret@", "-WRONGPASS invalid username-password pair or user is disabled."),
    ("A user without a password", "app:@", "-WRONGPASS invalid username-password pair or user is disabled."),
    (
        "A server before Redis 6, or a proxy without RESP3",
        "",
        "-ERR unknown command `HELLO`, with args beginning with: `3`, ",
    ),
    ("A proxy that knows RESP2 only", "", "-NOPROTO unsupported protocol version"),
    ("A proxy that answers HELLO in RESP2", "", "*2\r\n+server\r\n+redis"),
    ("A server without room for another client", "", "-ERR max number of clients reached"),
    (
        "A server in protected mode",
        "",
        "-DENIED Redis is running in protected mode because protected mode is enabled",
    ),
    ("A TLS server that answers a plain client with an alert", "", "\u{15}\u{3}\u{3}"),
    ("Something else listens there", "", "HTTP/1.1 400 Bad Request"),
];

/// Mode and role that servers report.
const SERVERS: &[(&str, &str, &str, &str)] = &[
    ("A Sentinel", "redis", "sentinel", "master"),
    ("A node of a cluster", "redis", "cluster", "master"),
    ("A replica", "redis", "standalone", "replica"),
    ("A lone server, asked as a cluster", "redis+cluster", "standalone", "master"),
    ("A server of an unknown mode", "redis", "moon", "master"),
    ("A server that does not tell its role", "redis", "standalone", ""),
];

/// Commands that a server rejects after HELLO, with the replies.
const REFUSED: &[(&str, &str, &str)] = &[
    ("A server that loads its data", "PING", "-LOADING Redis is loading the dataset in memory"),
    (
        "A server that cannot save",
        "EVAL",
        "-MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
    ),
    ("A server with too few replicas", "EVAL", "-NOREPLICAS Not enough good replicas to write."),
    ("A user that may not PING", "PING", "-NOPERM User app has no permissions to run the 'ping' command"),
];

pub(super) async fn rows() -> Vec<Row> {
    let mut rows = vec![refused_port().await, silent_server().await];
    for &(situation, user, reply) in ANSWERS {
        let server = FakeServer::start(move |_, session| {
            session.command()?;
            session.send(format!("{reply}\r\n"))?;
            session.stay_silent()
        });
        let url = server.url().replace("://", &format!("://{user}"));
        rows.push(row(situation, server.addr(), failure(&url).await));
    }
    rows.push(hang_up("A server that hangs up at once", |_| Ok(())).await);
    rows.push(hang_up("A server that hangs up at HELLO", |session| session.command().map(drop)).await);
    for &(situation, scheme, mode, role) in SERVERS {
        let server = FakeServer::start(move |_, session| {
            session.command()?;
            session.send(hello(mode, role))?;
            session.stay_silent()
        });
        let url = server.url().replace("redis://", &format!("{scheme}://"));
        rows.push(row(situation, server.addr(), failure(&url).await));
    }
    let refused = REFUSED.iter().map(|&(situation, command, reply)| {
        tokio::spawn(async move {
            let server = FakeServer::start(move |_, session| refuse(session, command, reply));
            // The client waits this long for a server that may become ready, so all servers refuse at once.
            let error = failure_within(Duration::from_secs(2), &server.url()).await;
            row(situation, server.addr(), error)
        })
    });
    for refused in refused.collect::<Vec<_>>() {
        rows.push(refused.await.unwrap());
    }
    rows.extend(cluster_rows().await);
    rows
}

/// Texts about the nodes of a cluster. Port 1 refuses connections.
async fn cluster_rows() -> Vec<Row> {
    let line = |host: &str| format!("{} {host}@2 myself,master - 0 0 1 connected 0-16383\n", "a".repeat(40));
    let mut rows = Vec::new();
    for (situation, nodes, forbids) in [
        ("A cluster announces an address that leads nowhere", line("127.0.0.1:1"), false),
        ("`Config::translate` forbids every node of a cluster", line("10.0.0.1:6379"), true),
        ("A cluster whose nodes serve TLS only, asked without TLS", line("10.0.0.1:0"), false),
    ] {
        let server = FakeServer::start(move |_, session| answer_as_node(session, &nodes));
        let mut config: Config = server.url().replace("redis://", "redis+cluster://").parse().unwrap();
        config.connect_timeout = Duration::from_millis(300);
        config.translate = forbids.then(|| Arc::new(|_: &Address| None) as Translate);
        let error = Client::connect(config).await.unwrap_err();
        rows.push(row(situation, server.addr(), error));
    }
    rows
}

fn answer_as_node(session: &mut Session, nodes: &str) -> io::Result<()> {
    loop {
        let asked = session.command()?;
        let words: Vec<_> = asked.iter().map(|word| String::from_utf8_lossy(word)).collect();
        match &*words.iter().map(|word| &**word).collect::<Vec<_>>() {
            ["HELLO", ..] => session.send(hello("cluster", "master"))?,
            ["CLUSTER", "NODES"] => session.send(format!("${}\r\n{nodes}\r\n", nodes.len()))?,
            ["CLUSTER" | "PUBSUB", ..] => session.send("*0\r\n")?,
            _ => session.reply(&asked)?,
        }
    }
}

async fn failure(url: &str) -> Error {
    failure_within(Duration::from_millis(300), url).await
}

async fn failure_within(connect_timeout: Duration, url: &str) -> Error {
    let mut config: Config = url.parse().unwrap();
    config.connect_timeout = connect_timeout;
    Client::connect(config).await.unwrap_err()
}

async fn refused_port() -> Row {
    // Bound without listening, so that no server of another test gets the port.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    row("No process listens on the port", address, failure(&format!("redis://{address}")).await)
}

async fn silent_server() -> Row {
    let server = FakeServer::start(|_, session| session.stay_silent());
    row("A server that accepts and stays silent", server.addr(), failure(&server.url()).await)
}

async fn hang_up(situation: &'static str, script: fn(&mut Session) -> io::Result<()>) -> Row {
    let server = FakeServer::start(move |_, session| script(session));
    row(situation, server.addr(), failure(&server.url()).await)
}

/// Replies well, except to `command`.
fn refuse(session: &mut Session, command: &str, reply: &str) -> io::Result<()> {
    loop {
        let asked = session.command()?;
        if asked.first().is_some_and(|name| name == command.as_bytes()) {
            session.send(format!("{reply}\r\n"))?;
        } else {
            session.reply(&asked)?;
        }
    }
}

fn hello(mode: &str, role: &str) -> String {
    let field =
        |name: &str, value: &str| format!("${}\r\n{name}\r\n${}\r\n{value}\r\n", name.len(), value.len());
    let texts =
        [field("server", "redis"), field("version", "7.0.15"), field("mode", mode), field("role", role)];
    format!("%5\r\n{}$5\r\nproto\r\n:3\r\n", texts.concat())
}
