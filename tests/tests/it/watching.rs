//! The command line's views of a server: the queue of a fair lock, and the table on a terminal.

use std::process::{Command, Output};

use serde_json::{Value, json};
use wheellock::LockManager;
use wheellock_tests::locks::{PATIENCE, manager};
use wheellock_tests::{RedisServer, eventually, poll_until};

const TOOL: &str = env!("CARGO_BIN_EXE_wheellock_cli");

fn tool(server: &RedisServer, arguments: &[&str]) -> Output {
    Command::new(TOOL).args(arguments).env("WHEELLOCK_URL", server.url()).output().unwrap()
}

fn code_and_text(output: Output) -> (i32, String) {
    (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queue_shows_waiters_in_order() {
    let server = RedisServer::start();
    let holder = manager(&server.url()).await;
    let lock = holder.fair_lock("tickets");
    assert_eq!(
        code_and_text(tool(&server, &["queue", "tickets"])),
        (1, "no queue: only fair locks have one, while processes wait\n".to_owned())
    );
    let guard = lock.acquire().await.unwrap();
    let (mut waits, mut owners) = (Vec::new(), Vec::new());
    for label in ["first", "second"] {
        let locks = LockManager::builder(server.url()).label(label).connect().await.unwrap();
        let owner = locks.owner();
        owners.push(owner.to_string());
        let waiting = locks.fair_lock("tickets").with_owner(owner);
        waits.push(tokio::spawn(async move {
            let guard = waiting.acquire().await.unwrap();
            guard.release().await.unwrap();
            locks
        }));
        let queued = waits.len() as u64;
        assert!(eventually(PATIENCE, async || lock.queue_length().await.unwrap() == Some(queued)).await);
    }
    let text = format!("1  first  [{}]\n2  second  [{}]\n", owners[0], owners[1]);
    assert_eq!(code_and_text(tool(&server, &["queue", "tickets"])), (0, text));
    let (code, text) = code_and_text(tool(&server, &["queue", "tickets", "--json"]));
    let waiters = json!([{"owner": owners[0], "label": "first"}, {"owner": owners[1], "label": "second"}]);
    let expected = json!({"name": "tickets", "waiters": waiters, "beyond": 0});
    assert_eq!((code, serde_json::from_str::<Value>(&text).unwrap()), (0, expected));
    assert_eq!(
        holder.lock("tickets").waiters().await.unwrap(),
        None,
        "the server knows no waiters of plain locks"
    );
    guard.release().await.unwrap();
    for wait in waits {
        drop(wait.await.unwrap());
    }
    assert_eq!(lock.waiters().await.unwrap(), Some(Vec::new()));
}

#[tokio::test]
async fn queue_shows_hundred_waiters_only() {
    let server = RedisServer::start();
    let entries: Vec<String> = (0..130).map(|number| format!("waiter:{number}")).collect();
    let mut command = vec!["RPUSH", "redisson_lock_queue:{long}"];
    command.extend(entries.iter().map(String::as_str));
    assert_eq!(server.cli(&command), "130");
    let (code, text) = code_and_text(tool(&server, &["queue", "long"]));
    assert_eq!((code, text.lines().count()), (0, 101));
    assert!(text.ends_with("100  -  [waiter:99]\nand 30 more\n"), "{text}");
}

#[test]
fn top_without_terminal_is_refused() {
    let server = RedisServer::start();
    let told = tool(&server, &["top"]);
    assert_eq!(told.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&told.stderr).contains("needs a terminal"));
}

/// A terminal of tmux. Dropping it ends the server of tmux, and with it the program in the terminal.
struct Terminal(String);

impl Terminal {
    /// Starts a shell in a terminal of 100 columns and 12 rows. Returns `None` on a machine without tmux, except in CI.
    fn start(server: &RedisServer) -> Option<Self> {
        let socket = server.directory().join("tmux").to_str().unwrap().to_owned();
        let size = ["-x", "100", "-y", "12"];
        let started = Command::new("tmux")
            .args(["-f", "/dev/null", "-S", &socket, "new-session", "-d"])
            .args(size)
            .args(["env", "PS1=ready> ", "sh", "-i"])
            .env("WHEELLOCK_URL", server.url())
            .env("TERM", "screen")
            .status();
        if started.is_err() && std::env::var_os("CI").is_none() {
            eprintln!("not tried: this machine has no tmux");
            return None;
        }
        assert!(started.expect("tmux is installed").success());
        Some(Self(socket))
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let output = Command::new("tmux").args(["-S", &self.0]).args(arguments).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns the picture of the terminal.
    fn picture(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    fn shows(&self, text: &str) -> bool {
        poll_until(PATIENCE, || self.picture().contains(text))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn top_redraws_table_on_terminal() {
    let server = RedisServer::start();
    let Some(terminal) = Terminal::start(&server) else { return };
    let locks = LockManager::builder(server.url()).label("billing").connect().await.unwrap();
    let guard = locks.lock("orders:42").acquire().await.unwrap();
    let hostile = locks.lock("\u{1b}[31mred").acquire().await.unwrap();
    terminal.tmux(&["send-keys", &format!("echo before; {TOOL} top --every 200ms"), "Enter"]);
    assert!(terminal.shows("orders:42"), "{}", terminal.picture());
    let picture = terminal.picture();
    assert!(picture.starts_with("2 locks among 3 keys, every 200ms"), "{picture}");
    assert!(!picture.contains("before"), "the table has a screen of its own: {picture}");
    let row = picture.lines().find(|line| line.starts_with("orders:42")).unwrap();
    assert!(row.contains("lock ") && row.contains("billing  ["), "{row}");
    assert!(picture.contains("\\u{1b}[31mred"), "control characters are escaped: {picture}");
    guard.release().await.unwrap();
    assert!(poll_until(PATIENCE, || !terminal.picture().contains("orders:42")), "{}", terminal.picture());
    let many: Vec<_> = (0..30).map(|number| locks.lock(&format!("many:{number:02}"))).collect();
    let mut guards = Vec::new();
    for lock in &many {
        guards.push(lock.acquire().await.unwrap());
    }
    assert!(terminal.shows("31 locks"), "{}", terminal.picture());
    assert!(terminal.picture().starts_with("31 locks"), "the head stays: {}", terminal.picture());
    terminal.tmux(&["resize-window", "-x", "40", "-y", "40"]);
    let is_narrow =
        |picture: &str| picture.contains("many:29") && picture.lines().all(|line| line.len() <= 40);
    assert!(poll_until(PATIENCE, || is_narrow(&terminal.picture())), "{}", terminal.picture());
    server.pause();
    assert!(terminal.shows("the table is from the last scan") || terminal.shows("many:29"));
    server.resume();
    terminal.tmux(&["send-keys", "C-c"]);
    assert!(poll_until(PATIENCE, || terminal.picture().contains("before")), "{}", terminal.picture());
    terminal.tmux(&["send-keys", "echo exit code $?", "Enter"]);
    assert!(terminal.shows("exit code 0"), "{}", terminal.picture());
    drop((guards, hostile));
}
