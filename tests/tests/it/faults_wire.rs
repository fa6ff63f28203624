//! Invalid bytes from servers, and their effects.
//!
//! Each has a defined effect on the connection and on its callers.
//!
//! Covers rows K and R of the failure catalogue, as far as a socket shows them. docs/reliability/faults.md maps rows to tests.

use std::time::Duration;

use wheellock_client::{CallOptions, Client, Command, ErrorKind, Outcome, Script};
use wheellock_tests::fault::{At, Direction, FakeServer, Fault, Proxy, Rule};
use wheellock_tests::{RedisServer, eventually};

use crate::faults::{PATIENCE, config, connect, echo};

const SHORT: Duration = Duration::from_millis(200);

/// Replies to the first command of each connection with the next of `answers`, and behaves well after the last answer.
fn answering(answers: Vec<Vec<u8>>) -> FakeServer {
    FakeServer::ready(move |number, session| match answers.get(number) {
        None => session.serve(),
        Some(answer) => {
            session.command()?;
            session.send(answer)?;
            session.stay_silent()
        }
    })
}

/// Sends each wire as the reply to a call. Every wire must end that call and the connection, but no other call.
async fn each_is_a_protocol_error(wires: Vec<Vec<u8>>) {
    let server = answering(wires.clone());
    let client = connect(&server.url()).await;
    for (number, wire) in wires.iter().enumerate() {
        let shown = wire.escape_ascii();
        let error = echo(&client, "x").await.expect_err(&format!("{shown}"));
        assert_eq!(
            (error.kind(), error.outcome()),
            (ErrorKind::Protocol, Outcome::MaybeExecuted),
            "{shown}: {error}"
        );
        assert!(error.origin().is_some_and(|origin| origin.is::<wheellock_resp::Error>()), "{shown}");
        assert!(eventually(PATIENCE, async || server.connections() == number + 2).await, "{shown}");
    }
    assert_eq!(echo(&client, "well").await.unwrap(), "well");
    assert_eq!(client.stats().in_flight, 0);
}

#[tokio::test]
async fn k01_unknown_type_bytes() {
    let known = b"+-:$*%~>_#,(!=|";
    let unknown = (0..=u8::MAX).filter(|byte| !known.contains(byte));
    each_is_a_protocol_error(unknown.map(|byte| vec![byte, b'1', b'\r', b'\n']).collect()).await;
}

#[tokio::test]
async fn k02_broken_line_ends_and_lengths() {
    let wires: [&[u8]; 20] = [
        b"+OK\n",
        b"+OK\rX\n",
        b"+O\rK\r\n",
        b":1\n",
        b"$2\r\nabXX",
        b"$2\r\nabc\r\n",
        b"$2\nab\r\n",
        b"*1\n:1\r\n",
        b"\r\n",
        b"$+5\r\nhello\r\n",
        b"$05\r\nhello\r\n",
        b"$ 5\r\nhello\r\n",
        b"$1e1\r\nhello\r\n",
        b"$-2\r\n",
        b"*-2\r\n",
        b"$\r\n",
        b"$9223372036854775808\r\n",
        b":9223372036854775808\r\n",
        b"#x\r\n",
        b"_x\r\n",
    ];
    each_is_a_protocol_error(wires.map(<[u8]>::to_vec).to_vec()).await;
}

#[tokio::test]
async fn k10_push_consumes_no_reply() {
    let server = FakeServer::ready(|_, session| {
        loop {
            let command = session.command()?;
            session.send(b">2\r\n+unknown\r\n:1\r\n>1\r\n$7\r\nanother\r\n")?;
            let reply = command.get(1).cloned().unwrap_or_default();
            session.send([format!("${}\r\n", reply.len()).as_bytes(), &reply, b"\r\n"].concat())?;
        }
    });
    let client = connect(&server.url()).await;
    for round in 0..100 {
        let texts = [0, 1, 2].map(|place| format!("{round}:{place}"));
        let (a, b, c) =
            tokio::join!(echo(&client, &texts[0]), echo(&client, &texts[1]), echo(&client, &texts[2]));
        assert_eq!([a.unwrap(), b.unwrap(), c.unwrap()], texts);
    }
    let stats = client.stats();
    assert_eq!((stats.strays, stats.connections), (600, 1), "counted, ignored");

    let server = RedisServer::builder().arg("enable-debug-command", "yes").start();
    let client = connect(&server.url()).await;
    let debug = Command::new("DEBUG").arg("PROTOCOL").arg("push");
    let (pushed, text) = tokio::join!(client.call(&debug), echo(&client, "next"));
    assert!(pushed.is_ok());
    assert_eq!(text.unwrap(), "next");
    assert_eq!(client.stats().strays, 1);
}

#[tokio::test]
async fn k11_pushes_that_are_none() {
    each_is_a_protocol_error(vec![
        b"*2\r\n:1\r\n>1\r\n+x\r\n".to_vec(),
        b">0\r\n".to_vec(),
        b">1\r\n:1\r\n".to_vec(),
    ])
    .await;
}

#[tokio::test]
async fn k16_unrequested_reply_ends_connection() {
    let server = FakeServer::ready(|number, session| {
        if number == 0 {
            session.answer()?;
            session.send(b"$6\r\nstolen\r\n")?;
        }
        session.serve()
    });
    let client = connect(&server.url()).await;
    // The stray reply follows its predecessor, perhaps in the same read. The call before it may succeed, but no other call may get the
    // stray reply.
    assert_eq!(echo(&client, "first").await.unwrap(), "first");
    assert!(eventually(PATIENCE, async || client.stats().connections == 2).await, "closed at once");
    assert_eq!(echo(&client, "second").await.unwrap(), "second");
}

#[tokio::test]
async fn k17_missing_reply_ends_connection() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let mut config = config(&proxy.url());
    config.response_timeout = SHORT;
    let client = Client::connect(config).await.unwrap();
    proxy.rule(Rule::new(Direction::ToClient, At::Reply(0), Fault::Swallow).only_on(0));
    let error = echo(&client, "swallowed").await.unwrap_err();
    assert_eq!(error.outcome(), Outcome::MaybeExecuted, "{error}");
    assert!(matches!(error.kind(), ErrorKind::Timeout | ErrorKind::ConnectionLost), "{error}");
    assert_eq!(echo(&client, "next").await.unwrap(), "next");
    assert_eq!(client.stats().connections, 2, "nobody trusts the old socket any more");
}

/// The missing reply belongs to a call with a short deadline, so its caller is gone when the client detects the gap. Calls before the
/// connection is poisoned may fail, but must not get the reply of another call.
#[tokio::test]
async fn k17_timed_out_missing_reply_shifts_nothing() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let mut config = config(&proxy.url());
    config.response_timeout = Duration::from_millis(500);
    let client = Client::connect(config).await.unwrap();
    proxy.rule(Rule::new(Direction::ToClient, At::Reply(0), Fault::Swallow).only_on(0));
    let hasty = CallOptions::by(client.config().timer.now() + Duration::from_millis(20));
    client.call_with(&Command::new("ECHO").arg("swallowed"), hasty).await.unwrap_err();
    for round in 0..1000 {
        let text = round.to_string();
        match echo(&client, &text).await {
            Ok(reply) => assert_eq!(reply, text, "another caller's reply"),
            Err(error) => assert_eq!(error.outcome(), Outcome::MaybeExecuted, "{error}"),
        }
        if client.stats().connections == 2 {
            return;
        }
    }
    panic!("the connection was never replaced");
}

/// The reply to the health check reveals a shift even if it arrives too early, and no caller gets it.
#[tokio::test]
async fn k17_health_check_reply_reaches_no_caller() {
    let server = FakeServer::ready(|number, session| {
        if number == 0 {
            let _unanswered = session.command()?;
            // The call behind it and the health check, in any order.
            let behind = [session.command()?, session.command()?];
            behind.iter().try_for_each(|command| session.reply(command))?;
        }
        session.serve()
    });
    let mut config = config(&server.url());
    config.heartbeat = Duration::from_millis(200);
    let client = Client::connect(config).await.unwrap();
    let hasty = CallOptions::by(client.config().timer.now() + Duration::from_millis(20));
    client.call_with(&Command::new("ECHO").arg("swallowed"), hasty).await.unwrap_err();
    let error = echo(&client, "behind").await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Protocol, Outcome::MaybeExecuted), "{error}");
    assert_eq!(echo(&client, "next").await.unwrap(), "next");
    assert_eq!(client.stats().connections, 2, "nobody trusts the old socket any more");
}

/// The layer that knows the form of a reply reports a wrong reply. The client then does not trust the connection any more.
#[tokio::test]
async fn k18_mistyped_reply_ends_connection() {
    let server = FakeServer::ready(|number, session| {
        if number == 0 {
            session.command()?;
            session.send("+not a number\r\n")?;
            // The next call is still pending at the time of the report.
            return session.stay_silent();
        }
        session.serve()
    });
    let client = connect(&server.url()).await;
    let reply = client.call(&Command::new("INCR").arg("n")).await.unwrap();
    assert_eq!(reply.as_i64(), None);
    let (unanswered, ()) =
        tokio::join!(echo(&client, "in flight"), async { client.poison(b"key", "INCR gave no number") });
    let error = unanswered.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Protocol, Outcome::MaybeExecuted), "{error}");
    assert!(error.to_string().contains("INCR gave no number"), "{error}");
    assert_eq!(echo(&client, "well").await.unwrap(), "well");
    assert_eq!(client.stats().connections, 2);
}

#[tokio::test]
async fn k19_hostile_errors_are_escaped_and_cut() {
    let text = [b"ERR \x1b[31m\r\nforged line \xff\xfe".as_slice(), &[b'x'; 1_000_000]].concat();
    let wire = [format!("!{}\r\n", text.len()).as_bytes(), &text, b"\r\n"].concat();
    let server = FakeServer::ready(move |_, session| {
        session.command()?;
        session.send(&wire)?;
        session.serve()
    });
    let client = connect(&server.url()).await;
    let error = echo(&client, "x").await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Server, Some("ERR")));
    for shown in [error.to_string(), format!("{error:?}"), error.detail().to_owned()] {
        assert!(shown.len() < 2048, "{} bytes", shown.len());
        assert!(shown.chars().all(|c| (' '..='~').contains(&c)), "{shown}");
    }
    assert_eq!(echo(&client, "still connected").await.unwrap(), "still connected");
    assert_eq!(client.stats().connections, 1, "an error reply is no fault of the connection");
}

#[tokio::test]
async fn r02_silent_handshake_step_replaces_socket() {
    let server = RedisServer::start();
    // HELLO, twice CLIENT SETINFO from 7.2 on, INFO, the write probe, PING.
    let steps = if server.redis_version() < (7, 2, 0) { 4 } else { 6 };
    for step in 0..steps {
        let proxy = Proxy::before(&server);
        proxy.rule(Rule::new(Direction::ToClient, At::Reply(step), Fault::Swallow).only_on(0));
        let mut config = config(&proxy.url());
        config.connect_timeout = SHORT;
        let client = Client::lazy(config);
        for round in 0..20 {
            let text = format!("{step}:{round}");
            assert_eq!(echo(&client, &text).await.unwrap(), text);
        }
        assert_eq!((proxy.counts().accepted, client.stats().connections), (2, 1), "step {step}");
    }
}

#[tokio::test]
async fn r03_surplus_handshake_reply_reaches_no_caller() {
    let server = FakeServer::start(|number, session| {
        session.handshake_and(if number == 0 { b"+extra\r\n" } else { b"" })?;
        session.serve()
    });
    let client = Client::lazy(config(&server.url()));
    assert!(eventually(PATIENCE, async || client.is_ready() || server.connections() > 1).await);
    match echo(&client, "mine").await {
        Ok(reply) => assert_eq!(reply, "mine", "another's reply"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Protocol, "{error}"),
    }
    assert!(eventually(PATIENCE, async || server.connections() == 2).await, "closed at once");
    assert_eq!(echo(&client, "well").await.unwrap(), "well");
}

#[tokio::test]
async fn r04_pipelined_errors_leave_nothing() {
    let server = RedisServer::start();
    let client = connect(&server.url()).await;
    for round in 0..50 {
        let texts = [0, 1, 2].map(|place| format!("{round}:{place}"));
        let (wrong, unknown) = (Command::new("GET"), Command::new("NO-SUCH-COMMAND").arg("x"));
        let (a, error, b, also, c) = tokio::join!(
            echo(&client, &texts[0]),
            client.call(&wrong),
            echo(&client, &texts[1]),
            client.call(&unknown),
            echo(&client, &texts[2]),
        );
        assert_eq!([a.unwrap(), b.unwrap(), c.unwrap()], texts);
        assert_eq!(
            (error.unwrap_err().outcome(), also.unwrap_err().outcome()),
            (Outcome::Rejected, Outcome::Rejected)
        );
    }
    assert_eq!((client.stats().connections, client.stats().in_flight), (1, 0));
}

#[tokio::test]
async fn r05_server_unsubscribe_consumes_no_reply() {
    let server = FakeServer::ready(|_, session| {
        loop {
            let command = session.command()?;
            if command.first().is_some_and(|name| name == b"ECHO") {
                session.send(b">3\r\n$12\r\nsunsubscribe\r\n$5\r\nshard\r\n:0\r\n")?;
                session.send(b">3\r\n$11\r\nunsubscribe\r\n$5\r\nother\r\n:0\r\n")?;
            }
            session.reply(&command)?;
        }
    });
    let client = connect(&server.url()).await;
    let mut subscription = client.subscribe(b"news");
    subscription.settled().await;
    for round in 0..50 {
        let text = round.to_string();
        assert_eq!(echo(&client, &text).await.unwrap(), text);
    }
    assert!(subscription.is_confirmed());
    assert_eq!(client.stats().connections, 1);
}

#[tokio::test]
async fn r05_server_unsubscribe_resubscribes_and_notifies() {
    let (seen, orders) = std::sync::mpsc::channel();
    let server = FakeServer::ready(move |_, session| {
        loop {
            let command = session.command()?;
            // Recorded before the client can know that the server has the command.
            let _gone = seen.send(command.clone());
            session.reply(&command)?;
            if command.first().is_some_and(|name| name == b"ECHO") {
                session.send(b">3\r\n$11\r\nunsubscribe\r\n$4\r\nnews\r\n:0\r\n")?;
            }
        }
    });
    let client = connect(&server.url()).await;
    let mut subscription = client.subscribe(b"news");
    subscription.settled().await;
    subscription.take_changed();
    assert_eq!(echo(&client, "end it").await.unwrap(), "end it");
    let looked = tokio::time::timeout(Duration::from_secs(5), subscription.changed()).await;
    assert!(
        looked.is_ok(),
        "messages between the end and the renewal are lost, so there is a reason to look"
    );
    subscription.settled().await;
    let subscribes = orders.try_iter().filter(|command| command[0] == b"SUBSCRIBE").count();
    assert_eq!(subscribes, 2);
}

#[tokio::test]
async fn r06_credentials_go_alone_and_first() {
    let (seen, first) = std::sync::mpsc::channel();
    let server = FakeServer::start(move |_, session| {
        let hello = session.command()?;
        // Gives the client time to send further bytes without waiting for the reply.
        let more = session.has_input_within(Duration::from_millis(30))?;
        let _gone = seen.send((hello.clone(), more));
        session.reply(&hello)?;
        session.serve()
    });
    let url = server.url().replace("redis://", "redis://user:sesame@");
    let client = connect(&url).await;
    let (hello, more) = first.recv().unwrap();
    let words: Vec<_> = hello.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    assert_eq!(words[..5], ["HELLO", "3", "AUTH", "user", "sesame"]);
    assert!(!more, "something followed HELLO before its reply");
    assert_eq!(echo(&client, "x").await.unwrap(), "x");
}

#[tokio::test]
async fn r07_parse_error_poisons_connection() {
    let server = FakeServer::ready(|number, session| {
        if number > 0 {
            return session.serve();
        }
        for _ in 0..3 {
            session.command()?;
        }
        // A frame for each caller. The second frame is corrupt, so the frames after it are not trustworthy.
        session.send(b"$1\r\na\r\n$1\r\nbX\r\n$1\r\nc\r\n")?;
        session.stay_silent()
    });
    let client = connect(&server.url()).await;
    let (a, b, c) = tokio::join!(echo(&client, "a"), echo(&client, "b"), echo(&client, "c"));
    assert_eq!(a.unwrap(), "a");
    for error in [b.unwrap_err(), c.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
        assert_eq!(error.outcome(), Outcome::MaybeExecuted);
    }
    assert_eq!(echo(&client, "well").await.unwrap(), "well");
}

#[tokio::test]
async fn r08_announced_counts_beyond_every_limit() {
    let wires: [&[u8]; 7] = [
        b"*4294967295\r\n",
        b"*2147483647\r\n",
        b"%1073741824\r\n",
        b"%9223372036854775807\r\n",
        b">9223372036854775807\r\n",
        b"$536870912\r\n",
        b"!9223372036854775807\r\n",
    ];
    let deep = b"*1\r\n".repeat(1_000_000);
    each_is_a_protocol_error(wires.map(<[u8]>::to_vec).into_iter().chain([deep]).collect()).await;
}

/// Nine bytes announce 16 MiB, on 64 connections at the same time. Memory must grow with the received bytes, not with the announced bytes.
#[tokio::test]
async fn r09_announced_bytes_allocate_nothing() {
    let server = FakeServer::ready(|_, session| {
        session.command()?;
        session.send(b"$16777216\r\n")?;
        session.stay_silent()
    });
    let mut clients = Vec::new();
    for _ in 0..64 {
        clients.push(connect(&server.url()).await);
    }
    let before = resident_bytes();
    let deadline = clients[0].config().timer.now() + Duration::from_millis(300);
    let calls: Vec<_> = clients
        .iter()
        .map(|client| {
            let client = client.clone();
            tokio::spawn(
                async move { client.call_with(&Command::new("PING"), CallOptions::by(deadline)).await },
            )
        })
        .collect();
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap_err().kind(), ErrorKind::Timeout);
    }
    let grown = resident_bytes().saturating_sub(before);
    // A quarter of the announced GiB would be 256 MiB. Other tests of this process run at the same time.
    assert!(grown < 128 << 20, "grew by {} MiB", grown >> 20);
}

#[tokio::test]
async fn r16_frame_like_payload_stays_data() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let client = connect(&proxy.url()).await;
    // One byte per segment, so that every payload byte comes right after a read boundary.
    proxy.rule(Rule::new(Direction::ToClient, At::Byte(0), Fault::Slice(1, Duration::from_micros(1))));
    let every_byte: Vec<u8> = (0..=u8::MAX).collect();
    let reply = client.call(&Command::new("ECHO").arg(&every_byte[..])).await.unwrap();
    assert_eq!(reply.as_bytes(), Some(&every_byte[..]));
    for payload in [">3\r\n$7\r\nmessage\r\n", "-ERR\r\n", "|1\r\n+a\r\n:1\r\n", "*-1\r\n", "+OK\r\n"] {
        assert_eq!(echo(&client, payload).await.unwrap(), payload);
    }
    let stats = client.stats();
    assert_eq!((stats.connections, stats.pushes), (1, 0));
}

/// The client detects a foreign text under the hash of our script, on the socket's side of this promise.
#[tokio::test]
async fn x15_foreign_script_under_hash_is_detected() {
    let script = std::sync::Arc::new(Script::new("return ARGV[1]", 0, 1));
    let ours = script.sha().to_owned();
    let server = FakeServer::start({
        let ours = ours.clone();
        move |number, session| {
            loop {
                let command = session.command()?;
                if command[0] == b"SCRIPT" {
                    let sha = if number == 0 { "0".repeat(40) } else { ours.clone() };
                    session.send(format!("$40\r\n{sha}\r\n"))?;
                } else if command[0] == b"EVALSHA" {
                    assert_eq!(command[1], ours.as_bytes());
                    session.send(format!("+{}\r\n", String::from_utf8_lossy(&command[3])))?;
                } else {
                    session.reply(&command)?;
                }
            }
        }
    });
    let mut config = config(&server.url());
    config.scripts.push(std::sync::Arc::clone(&script));
    let error = Client::connect(config.clone()).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Protocol, Outcome::NotSent), "{error}");
    let client = Client::connect(config).await.unwrap();
    assert_eq!(client.eval(&script, &["x".into()]).await.unwrap().as_str(), Some("x"));
}

/// Returns the resident memory of this process. Source: proc(5), `/proc/self/statm`, second field, in pages of 4 KiB.
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or_default() * 4096
}
