//! The support library's private servers. They start, restart, pause, report all commands, and never outlive their owner.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, test_kill_process};
use wheellock_tests::{Cli, RedisServer, Reply, poll_until};

const LONG: Duration = Duration::from_secs(20);

#[test]
fn server_answers_on_socket_only() {
    let server = RedisServer::start();
    assert_eq!(server.url(), format!("unix://{}", server.socket_path().display()));
    assert_eq!(server.cli(&["SET", "key", "value"]), "OK");
    assert_eq!(server.cli(&["GET", "key"]), "value");
    assert_eq!(server.cli(&["GET", "nothing"]), "(nil)");
    assert!(server.cli(&["NOSUCH"]).starts_with("(error) ERR unknown command"));
    assert_eq!(server.cli(&["CONFIG", "GET", "port"]), "port\n0");
    assert_eq!(server.cli(&["CONFIG", "GET", "save"]), "save\n");
}

#[test]
fn a_tcp_server_answers_on_both() {
    let server = RedisServer::builder().tcp().start();
    assert_eq!(server.url(), server.tcp_url());
    let mut tcp = Cli::connect_tcp(server.addr()).unwrap();
    assert_eq!(tcp.query(&["INCR", "counter"]).unwrap(), Reply::Integer(1));
    assert_eq!(server.cli(&["INCR", "counter"]), "2");
}

#[test]
fn killed_server_restarts_with_data() {
    let mut server =
        RedisServer::builder().tcp().arg("appendonly", "yes").arg("appendfsync", "always").start();
    let (url, addr, pid) = (server.url(), server.addr(), server.pid());
    assert_eq!(server.cli(&["SET", "kept", "yes"]), "OK");
    server.kill();
    assert!(Cli::connect_tcp(addr).is_err());
    assert!(!is_alive(pid));
    server.restart();
    assert_eq!(server.url(), url);
    assert_ne!(server.pid(), pid);
    assert_eq!(server.cli(&["GET", "kept"]), "yes");
    server.restart();
    assert_eq!(server.cli(&["GET", "kept"]), "yes");
}

#[test]
fn paused_server_is_silent_until_resumed() {
    let server = RedisServer::start();
    let mut cli = server.connect().unwrap();
    server.pause();
    cli.send(&["PING"]).unwrap();
    assert!(poll_until(LONG, || process_state(server.pid()).is_none_or(|state| state == 'T')));
    server.resume();
    assert_eq!(cli.read_reply().unwrap(), Reply::Status("PONG".into()));
    // A paused server can still be killed.
    server.pause();
}

#[test]
fn a_password_is_required_and_used() {
    let server = RedisServer::builder().arg("requirepass", "secret").start();
    assert_eq!(server.cli(&["PING"]), "PONG");
    let mut anonymous = Cli::connect_unix(&server.socket_path()).unwrap();
    assert!(anonymous.query(&["PING"]).unwrap().to_string().starts_with("(error) NOAUTH"));
}

#[test]
fn monitor_reports_exactly_later_commands() {
    let server = RedisServer::start();
    assert_eq!(server.cli(&["SET", "before", "1"]), "OK");
    let monitor = server.monitor();
    for index in 0..500 {
        assert_eq!(server.cli(&["SET", &format!("key {index}"), "\"quoted\"\n"]), "OK");
    }
    assert_eq!(server.cli(&["EVAL", "return redis.call('get', KEYS[1])", "1", "key 7"]), "\"quoted\"\n");
    let observed = monitor.stop().unwrap();
    assert_eq!(observed.len(), 502);
    for (index, entry) in observed[..500].iter().enumerate() {
        assert_eq!(entry.args, ["SET", &format!("key {index}"), "\"quoted\"\n"]);
        assert!(!entry.from_script());
    }
    assert_eq!(observed[500].name(), "EVAL");
    assert_eq!(observed[501].args, ["get", "key 7"]);
    assert!(observed[501].from_script());
}

#[test]
fn many_servers_start_side_by_side() {
    let servers: Vec<_> =
        (0..4).map(|_| std::thread::spawn(|| RedisServer::builder().tcp().start())).collect();
    let servers: Vec<_> = servers.into_iter().map(|server| server.join().unwrap()).collect();
    for (index, server) in servers.iter().enumerate() {
        assert_eq!(server.cli(&["SET", "index", &index.to_string()]), "OK");
    }
    for (index, server) in servers.iter().enumerate() {
        assert_eq!(server.cli(&["GET", "index"]), index.to_string());
    }
}

#[test]
fn rewritten_configuration_survives_only_plain_restart() {
    let hello = ["SET", "hello", "1"];
    let mut server = RedisServer::builder()
        .tcp()
        .config_file()
        .arg("maxmemory", "10mb")
        .arg("save", "")
        .arg("client-output-buffer-limit", "pubsub 1mb 1mb 1")
        .first_command(&hello)
        .start();
    let addr = server.addr();
    assert_eq!(server.cli(&["CONFIG", "GET", "maxmemory"]), "maxmemory\n10485760");
    assert_eq!(server.cli(&["CONFIG", "SET", "maxmemory", "20mb"]), "OK");
    assert_eq!(server.cli(&["CONFIG", "REWRITE"]), "OK");
    server.restart();
    assert_eq!(server.cli(&["CONFIG", "GET", "maxmemory"]), "maxmemory\n20971520");
    assert_eq!(server.cli(&["GET", "hello"]), "1", "nothing is persisted, so it was set after the restart");
    assert_eq!(server.cli(&["CONFIG", "SET", "appendonly", "yes"]), "OK");
    server.restart_clean();
    assert_eq!(server.addr(), addr);
    assert_eq!(server.cli(&["CONFIG", "GET", "maxmemory"]), "maxmemory\n10485760");
    assert_eq!(server.cli(&["DBSIZE"]), "1");
}

#[test]
fn revived_server_is_up() {
    let mut server = RedisServer::start();
    let pid = server.pid();
    server.revive();
    assert!(server.is_up());
    server.pause();
    assert!(!server.is_up());
    server.revive();
    assert!(server.is_up());
    assert_eq!((server.pid(), server.cli(&["PING"]).as_str()), (pid, "PONG"));
    server.kill();
    assert!(!server.is_up());
    server.revive();
    assert!(server.is_up());
    // This server has ended by itself.
    server.connect().unwrap().send(&["SHUTDOWN", "NOSAVE"]).unwrap();
    let down = server.pid();
    assert!(poll_until(LONG, || !is_alive(down)));
    assert!(poll_until(LONG, || {
        server.revive();
        server.pid() != down
    }));
    assert_eq!(server.cli(&["PING"]), "PONG");
}

#[test]
fn nodes_and_sentinels_run_in_mode() {
    let node = RedisServer::builder().cluster().start();
    assert!(node.cli(&["INFO", "server"]).contains("redis_mode:cluster"));
    assert!(node.cli(&["CLUSTER", "NODES"]).contains("myself,master"));
    let sentinel = RedisServer::builder().sentinel().start();
    assert!(sentinel.cli(&["INFO", "server"]).contains("redis_mode:sentinel"));
}

#[test]
fn failed_start_reports_cause() {
    let error = RedisServer::builder().arg("no-such-directive", "1").try_start().unwrap_err();
    assert!(error.to_string().contains("no-such-directive"), "{error}");
}

#[test]
fn dropping_a_server_leaves_nothing() {
    let server = RedisServer::start();
    let (pid, directory) = (server.pid(), server.directory().to_owned());
    assert!(directory.exists());
    drop(server);
    assert!(!is_alive(pid));
    assert!(!directory.exists());
}

#[test]
fn server_dies_with_owning_process() {
    let mut owner = Command::new(env!("CARGO_BIN_EXE_server_owner"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(owner.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let (pid, socket) = line.trim().split_once(' ').unwrap();
    let (pid, socket) = (pid.parse().unwrap(), PathBuf::from(socket));
    assert_eq!(Cli::connect_unix(&socket).unwrap().query(&["PING"]).unwrap().to_string(), "PONG");
    owner.kill().unwrap();
    owner.wait().unwrap();
    assert!(poll_until(LONG, || !is_alive(pid)), "server {pid} outlived its owner");
    assert!(Cli::connect_unix(&socket).is_err());
    std::fs::remove_dir_all(socket.parent().unwrap()).unwrap();
}

fn is_alive(pid: u32) -> bool {
    test_kill_process(Pid::from_raw(pid.cast_signed()).unwrap()).is_ok()
}

/// Returns the kernel's one-letter state of a process, if there is a /proc.
fn process_state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}
