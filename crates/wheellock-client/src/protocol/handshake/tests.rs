//! Tests of `handshake`.

use std::sync::Arc;

use super::*;
use crate::base::script::Script;
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
fn hello_carries_credentials_rest_is_pipelined() {
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
    let words: Vec<_> = sent.split("\r\n").filter(|w| !w.starts_with(['*', '$']) && !w.is_empty()).collect();
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

/// C2: the client sends no command that the server's version cannot know.
#[test]
fn setinfo_is_skipped_before_7_2() {
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
        [HELLO, b"+OK\r\n+OK\r\n-NOPERM no\r\n-LOADING Redis is loading the dataset in memory\r\n"].concat();
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

/// A server that does not know HELLO repeats its input, including the password. The first texts are those of Redis 5,
/// of earlier versions, and of a later version with HELLO renamed.
#[test]
fn server_echoing_password_is_not_quoted() {
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
    // Later replies of the handshake are not quoted either.
    let wire = [HELLO, b"+OK\r\n+OK\r\n+OK\r\n+run_id:a1\r\n-READONLY s3cret-pw\r\n"].concat();
    let error = shake(&config, &wire).unwrap_err();
    assert!(error.to_string().contains("READONLY (its words"), "{error}");
    let error = shake(&config, b"-s3cret-pw is no password\r\n").unwrap_err();
    assert_eq!(error.code(), Some("ERR"), "{error:?}");
}

/// Masking a weak password in the text would reveal the password.
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

/// The client keeps these texts and puts them into events.
#[test]
fn server_info_is_cut_and_escaped() {
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
fn surplus_reply_is_protocol_error() {
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

/// A Valkey without its Lua module.
#[test]
fn missing_lua_is_unsupported() {
    let mut config = config("redis://h");
    config.scripts.push(Arc::new(Script::new("return 1", 0, 0)));
    let wire = [HELLO, b"+OK\r\n+OK\r\n-ERR Could not find scripting engine 'lua'\r\n"].concat();
    let (mut out, credentials) = (BytesMut::new(), credentials(&config));
    let mut handshake = Handshake::start(&config, Role::Primary, &credentials, "s", &mut out);
    let end = replies(&wire).iter().map(|reply| handshake.on_reply(reply, &mut out)).find_map(Result::err);
    let error = end.expect("no lock works there");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("does not run Lua scripts"), "{error}");
}

#[test]
fn refused_tracking_leaves_server_usable() {
    let mut config = config("redis://h");
    config.hooks.on_changed_keys = Some(Arc::new(|_| {}));
    for (reply, tracks_keys) in [(&b"+OK\r\n"[..], true), (b"-NOPERM no permission\r\n", false)] {
        let wire = [HELLO, b"+OK\r\n+OK\r\n+run_id:a1\r\n", reply, b":1\r\n+PONG\r\n"].concat();
        let (mut out, credentials) = (BytesMut::new(), credentials(&config));
        let mut handshake = Handshake::start(&config, Role::Primary, &credentials, "s", &mut out);
        let steps: Vec<_> =
            replies(&wire).iter().map(|reply| handshake.on_reply(reply, &mut out).unwrap()).collect();
        assert_eq!((steps.last(), handshake.info.tracks_keys), (Some(&Step::Done), tracks_keys));
    }
}
