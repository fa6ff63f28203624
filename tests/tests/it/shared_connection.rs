//! Commands that a client refuses on its shared connection. A real server's table of commands is the reference.

use wheellock::client::{Client, Command, ErrorKind, Outcome, Value};
use wheellock_tests::RedisServer;

/// Categories whose commands change a connection, or keep it waiting.
const CATEGORIES: &[&str] = &["@connection", "@transaction", "@blocking", "@pubsub", "@admin"];

/// Commands of these categories that the client sends. They change the server, or nothing at all.
const SENT: &[&str] = &[
    "acl",
    "auth",
    "bgrewriteaof",
    "bgsave",
    "client",
    "client|getname",
    "client|getredir",
    "client|help",
    "client|id",
    "client|info",
    "client|kill",
    "client|list",
    "client|pause",
    "client|trackinginfo",
    "client|unblock",
    "client|unpause",
    "command",
    "cluster",
    "config",
    "debug",
    "echo",
    "failover",
    "lastsave",
    "latency",
    "memory",
    "module",
    "ping",
    "publish",
    "pubsub",
    "replicaof",
    "role",
    "save",
    "shutdown",
    "slaveof",
    "slowlog",
    "spublish",
    "swapdb",
    "wait",
    "waitaof",
    "pfdebug",
    "pfselftest",
    // The client sends these commands unless they block.
    "xread",
    "xreadgroup",
];

/// Returns the names of the commands in `table`, with their categories. Subcommands are `container|name`.
fn commands(table: &[Value]) -> Vec<(String, Vec<String>)> {
    let texts = |value: &Value| {
        let items = match value {
            Value::Set(items) | Value::Array(items) => items.as_slice(),
            _ => &[],
        };
        items.iter().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let mut found = Vec::new();
    for command in table.iter().filter_map(Value::as_array) {
        let name = command[0].as_str().unwrap().to_owned();
        found.push((name, texts(&command[6])));
        found.extend(command.get(9).and_then(Value::as_array).map(commands).unwrap_or_default());
    }
    found
}

/// C8: a command of a later server that changes the connection fails this test until a maintainer decides about it.
#[tokio::test]
async fn every_command_of_connections_is_decided() {
    let server = RedisServer::start();
    let client = Client::connect(server.url().parse().unwrap()).await.unwrap();
    let table = client.call(&Command::new("COMMAND")).await.unwrap();
    let mut undecided = Vec::new();
    let mut refused = 0;
    for (name, categories) in commands(table.as_array().unwrap()) {
        let container = name.split('|').next().unwrap_or_default();
        let is_sent = SENT.contains(&&*name) || !matches!(container, "client") && SENT.contains(&container);
        if is_sent || !categories.iter().any(|category| CATEGORIES.contains(&&**category)) {
            continue;
        }
        let mut words = name.split('|');
        let command = Command::new(words.next().unwrap()).args(words).arg("x").arg("y");
        match client.call(&command).await {
            Err(error) if error.kind() == ErrorKind::Config && error.outcome() == Outcome::NotSent => {
                refused += 1;
            }
            other => undecided.push(format!("{name} {categories:?}: {other:?}")),
        }
    }
    assert!(undecided.is_empty(), "{undecided:#?}");
    assert!(refused > 20, "{refused} of the table");
    assert_eq!(client.stats().connections, 1);
}

/// C8: after each refusal, scripts and replies work as before.
#[tokio::test]
async fn debugger_never_reaches_connection() {
    let server = RedisServer::start();
    let client = Client::connect(server.url().parse().unwrap()).await.unwrap();
    for mode in ["YES", "SYNC", "NO"] {
        let error = client.call(&Command::new("SCRIPT").arg("DEBUG").arg(mode)).await.unwrap_err();
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Config, Outcome::NotSent));
        assert!(error.to_string().contains("redis-cli"), "{error}");
    }
    let script = Command::new("EVAL").arg("return 7").arg("0");
    assert_eq!(client.call(&script).await.unwrap().as_i64(), Some(7));
}
