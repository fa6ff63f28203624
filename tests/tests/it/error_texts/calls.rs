//! Texts of calls.
//!
//! The causes are a server's refusal, silence, invalid bytes, and commands that are not sent.

use std::time::{Duration, Instant};

use wheellock::client::{CallOptions, Client, Command, Config, Error};
use wheellock_tests::fault::FakeServer;

use super::{Row, row};

/// Bytes that a server sends in place of the reply to `GET visits`. The connection stays open.
const REPLIES: &[(&str, &str)] = &[
    ("A server's refusal", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    (
        "A user that may not run the command",
        "-NOPERM User app has no permissions to run the 'get' command\r\n",
    ),
    ("Bytes that are not RESP", "HTTP/1.1 502 Bad Gateway\r\n"),
    ("A bulk string over `Limits::bulk`", "$16777217\r\n"),
    ("An array over `Limits::elements`", "*1048577\r\n"),
    ("Arrays inside arrays, over `Limits::depth`", "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n"),
    (
        "Payloads over `Limits::frame`",
        "*2\r\n$60\r\n............................................................\r\n$60\r\n",
    ),
];

pub(super) async fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for &(situation, reply) in REPLIES {
        let server = FakeServer::ready(move |_, session| {
            session.command()?;
            session.send(reply)?;
            session.stay_silent()
        });
        let mut config: Config = server.url().parse().unwrap();
        if situation.contains("depth") || situation.contains("frame") {
            (config.limits.depth, config.limits.bulk, config.limits.line, config.limits.frame) =
                (4, 100, 100, 100);
        }
        let client = Client::connect(config).await.unwrap();
        let visits = Command::new("GET").arg("visits");
        let error = client.call(&visits).await.unwrap_err();
        rows.push(row(situation, server.addr(), error));
    }
    rows.push(neighbour().await);
    rows.extend(without_a_reply().await);
    rows
}

/// Returns the row of the call behind the call whose reply exceeds a limit.
async fn neighbour() -> Row {
    let server = FakeServer::ready(|_, session| {
        session.command()?;
        session.command()?;
        session.send("$16777217\r\n")?;
        session.stay_silent()
    });
    let client = Client::connect(server.url().parse().unwrap()).await.unwrap();
    let (large, small) = (Command::new("GET").arg("large"), Command::new("GET").arg("small"));
    let (_, small) = tokio::join!(client.call(&large), client.call(&small));
    row("A call on the same connection as one whose reply is over a limit", server.addr(), small.unwrap_err())
}

async fn without_a_reply() -> Vec<Row> {
    let silent = FakeServer::ready(|_, session| session.stay_silent());
    let mut config: Config = silent.url().parse().unwrap();
    config.max_queued_bytes = 1000;
    let client = Client::connect(config.clone()).await.unwrap();
    let visits = Command::new("GET").arg("visits");
    let soon = CallOptions::by(Instant::now() + Duration::from_millis(50));
    let large = "x".repeat(2000);
    let mut rows = vec![
        row(
            "No reply before the deadline",
            silent.addr(),
            client.call_with(&visits, soon).await.unwrap_err(),
        ),
        row(
            "A call over `max_queued_bytes`",
            silent.addr(),
            client.call(&Command::new("ECHO").arg(&large)).await.unwrap_err(),
        ),
    ];
    config.max_in_flight = 1;
    config.response_timeout = Duration::from_millis(300);
    let client = Client::connect(config).await.unwrap();
    let waits = tokio::spawn({
        let client = client.clone();
        async move { client.call(&Command::new("GET").arg("visits")).await.unwrap_err() }
    });
    while client.stats().in_flight == 0 {
        tokio::task::yield_now().await;
    }
    rows.push(row("More calls than `max_in_flight`", silent.addr(), client.call(&visits).await.unwrap_err()));
    rows.push(row("No reply for `response_timeout`", silent.addr(), waits.await.unwrap()));
    client.close().await;
    rows.push(row("A client that was closed", silent.addr(), client.call(&visits).await.unwrap_err()));

    let hangs_up = FakeServer::ready(|_, session| session.command().map(drop));
    let client = Client::connect(hangs_up.url().parse().unwrap()).await.unwrap();
    rows.push(row(
        "A server that closes the connection",
        hangs_up.addr(),
        client.call(&visits).await.unwrap_err(),
    ));
    let address = hangs_up.addr();
    drop(hangs_up);
    let error = call_after_a_refusal(&client, &visits).await;
    rows.push(row("No connection before the deadline", address, error));
    rows
}

/// Returns the error of a call after a failed attempt to connect.
async fn call_after_a_refusal(client: &Client, command: &Command<'_>) -> Error {
    use wheellock::client::ConnectionState::Connecting;
    let refused = |state| matches!(state, Connecting { last_error: Some(error), .. } if error.to_string().contains("refused"));
    while !refused(client.state()) {
        tokio::task::yield_now().await;
    }
    let soon = CallOptions::by(Instant::now() + Duration::from_millis(50));
    client.call_with(command, soon).await.unwrap_err()
}

/// Commands that the client refuses, one for each reason.
const REFUSED: &[(&str, &[&str])] = &[
    ("Another database", &["SELECT", "1"]),
    ("Another user", &["HELLO", "3"]),
    ("A transaction", &["MULTI"]),
    ("A subscription", &["SUBSCRIBE", "news"]),
    ("A pattern subscription", &["PSUBSCRIBE", "news*"]),
    ("A wait", &["BLPOP", "queue", "0"]),
    ("Client-side caching", &["CLIENT", "TRACKING", "on"]),
    ("A name for the connection", &["CLIENT", "SETNAME", "me"]),
    ("A script's debugger", &["SCRIPT", "DEBUG", "YES"]),
    ("Cluster redirections", &["ASKING"]),
    ("The end", &["QUIT"]),
];

pub(super) async fn refused_commands() -> Vec<Row> {
    let server = FakeServer::ready(|_, session| session.serve());
    let client = Client::connect(server.url().parse().unwrap()).await.unwrap();
    let mut rows = Vec::new();
    for &(situation, words) in REFUSED {
        let command = Command::new(words[0]).args(words[1..].iter().copied());
        rows.push(row(situation, server.addr(), client.call(&command).await.unwrap_err()));
    }
    rows
}
