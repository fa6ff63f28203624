//! Tests of `error`.

use super::*;

#[test]
fn error_line_names_cause_and_outcome() {
    let error = Error::server("EVALSHA", "127.0.0.1:6379", true, b"NOSCRIPT No matching script.");
    assert_eq!(
        error.to_string(),
        "EVALSHA on 127.0.0.1:6379 failed: the server answered \"NOSCRIPT No matching script.\"; \
         the server refused it before executing it"
    );
    assert_eq!((error.kind(), error.code()), (ErrorKind::Server, Some("NOSCRIPT")));
}

#[test]
fn non_local_key_error_is_tryagain() {
    // Redis 7.0, raised and returned, then Redis 6.2, raised and returned.
    for text in [
        "ERR Script attempted to access a non local key in a cluster node script: 1a2b, on @user_script:3.",
        "ERR Script attempted to access a non local key in a cluster node",
        "ERR Error running script (call to f_1a2b): @user_script:3: @user_script: 3: Lua script attempted to \
         access a non local key in a cluster node",
        "@user_script: 3: Lua script attempted to access a non local key in a cluster node",
    ] {
        let error = Error::server("EVALSHA", "s", true, text.as_bytes());
        assert_eq!((error.code(), error.outcome()), (Some("TRYAGAIN"), Outcome::MaybeExecuted), "{text}");
        let shown = error.to_string();
        assert!(
            shown.contains("non local key") && shown.contains("(TRYAGAIN: the slot is being moved"),
            "{shown}"
        );
        let mut retry = crate::base::retry::Retry::default();
        assert_eq!((retry.after(&error), retry.after_answer(&error).is_some()), (None, true));
    }
}

#[test]
fn missing_lua_means_nothing_ran() {
    for text in [
        &b"ERR unknown command 'EVALSHA', with args beginning with: '1c34' "[..],
        b"ERR unknown command `EVAL`, with",
    ] {
        let error = Error::server("EVALSHA", "s", true, text);
        assert_eq!(error.outcome(), Outcome::Rejected);
        assert!(error.to_string().contains("does not run Lua scripts"), "{error}");
    }
    let inside =
        Error::server("EVALSHA", "s", true, b"ERR unknown command 'FOO' script: be, on @user_script:1.");
    assert_eq!(inside.outcome(), Outcome::MaybeExecuted);
}

/// The text keeps a server's single quotes, so that users can search for it.
#[test]
fn server_single_quotes_are_kept() {
    let shown = |text: &[u8]| Error::server("FOO", "s", false, text).detail().to_owned();
    assert_eq!(shown(b"ERR unknown command 'FOO'"), "the server answered \"ERR unknown command 'FOO'\"");
    assert_eq!(shown(b"'\"\\'\n"), r#"the server answered "'\"\\'\n""#);
    assert_eq!(printable(&[b'\''; 300]), "'".repeat(256) + "...");
}

#[test]
fn foreign_text_is_escaped_and_bounded() {
    let text = [b"ERR \x1b[31m\r\nfake line ".as_slice(), &[0xff; 1000]].concat();
    let shown = Error::server("GET", "s", false, &text).to_string();
    assert!(shown.len() < 1500, "{} bytes", shown.len());
    assert!(shown.chars().all(|c| (' '..='~').contains(&c)), "{shown}");
}

/// C2: all servers report a missing permission alike (seen on 6.0.16, 7.0.15 and 7.4.1 to Valkey 9.1.2).
#[test]
fn missing_script_permission_is_recognized() {
    for text in [
        &b"NOPERM this user has no permissions to access one of the keys used as arguments"[..],
        b"ERR Error running script (call to f_be): @user_script:1: @user_script: 1: The user executing the script \
          can't run this command or subcommand",
        b"ERR The user executing the script can't run this command or subcommand script: be, on @user_script:1.",
        b"ERR ACL failure in script: User u has no permissions to run the 'set' command script: on @user_script:1.",
    ] {
        assert_eq!(Error::server("EVALSHA", "s", true, text).kind(), ErrorKind::Permission);
    }
    assert_eq!(Error::server("EVALSHA", "s", true, b"ERR Error running script").kind(), ErrorKind::Server);
}

#[test]
fn failed_script_may_have_written() {
    let failing = |text: &[u8], script| Error::server("TIME", "s", script, text).outcome();
    assert_eq!(failing(b"ERR Error running script", true), Outcome::MaybeExecuted);
    assert_eq!(failing(b"ERR Script killed by user with SCRIPT KILL.", true), Outcome::Rejected);
    assert_eq!(failing(b"ERR wrong number of arguments", false), Outcome::Rejected);
    assert_eq!(failing(b"OOM command not allowed when used memory > 'maxmemory'.", true), Outcome::Rejected);
    assert_eq!(failing(b"", true), Outcome::MaybeExecuted);
}

/// The script `redis.call('incr', 'n') return redis.error_reply('BUSY later')` has incremented the counter.
#[test]
fn script_error_code_proves_nothing() {
    let outcome = |text: &[u8]| Error::server("EVALSHA", "s", true, text).outcome();
    for code in [
        "ASK",
        "BUSY",
        "CLUSTERDOWN",
        "CROSSSLOT",
        "DENIED",
        "EXECABORT",
        "LOADING",
        "MASTERDOWN",
        "MISCONF",
        "MOVED",
        "NOAUTH",
        "NOPERM",
        "NOPROTO",
        "NOREPLICAS",
        "NOSCRIPT",
        "OOM",
        "READONLY",
        "TRYAGAIN",
        "UNKILLABLE",
        "WRONGPASS",
    ] {
        for said in ["", " ", " later", " User x may not", " 1", " 1 "].map(|said| format!("{code}{said}")) {
            assert_eq!(outcome(said.as_bytes()), Outcome::MaybeExecuted, "{said}");
        }
    }
}

/// The texts of Redis 6.0 to 8 and Valkey 7.2 to 9.
#[test]
fn script_refused_by_server_is_rejected() {
    for text in [
        "ASK 3999 127.0.0.1:6381",
        "MOVED 3999 :6381",
        "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
        "BUSY Valkey is busy running a module command.",
        "CLUSTERDOWN The cluster is down",
        "CLUSTERDOWN Hash slot not served",
        "CROSSSLOT Keys in request don't hash to the same slot",
        "DENIED Redis is running in protected mode because protected mode is enabled",
        "LOADING Redis is loading the dataset in memory",
        "LOADING Valkey is loading the dataset in memory",
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "MISCONF Errors writing to the AOF file: No space left on device",
        "MISCONF Valkey is configured to save RDB snapshots, but it's currently unable to persist to disk.",
        "NOAUTH Authentication required.",
        "NOPERM this user has no permissions to run the 'evalsha' command",
        "NOPERM User app has no permissions to run the 'evalsha' command",
        "NOPERM No permissions to access a key",
        "NOREPLICAS Not enough good replicas to write.",
        "NOSCRIPT No matching script. Please use EVAL.",
        "OOM command not allowed when used memory > 'maxmemory'. script: 1a2b, on @user_script:1.",
        "OOM allow-oom flag is not set on the script, can not run it when used memory > 'maxmemory'",
        "READONLY You can't write against a read only replica.",
        "READONLY Can not run script with write flag on readonly replica",
        "TRYAGAIN Multiple keys request during rehashing of slot",
    ] {
        assert_eq!(
            Error::server("EVALSHA", "s", true, text.as_bytes()).outcome(),
            Outcome::Rejected,
            "{text}"
        );
    }
}
