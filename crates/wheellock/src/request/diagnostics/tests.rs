//! Tests of `diagnostics`.

use super::*;

fn judge(info: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    judge_info(info, &mut findings);
    findings
}

#[test]
fn eviction_warning_requires_memory_limit() {
    let info = |maxmemory: u64, policy: &str| {
        format!("# Memory\r\nmaxmemory:{maxmemory}\r\nmaxmemory_policy:{policy}\r\naof_enabled:1\r\n")
    };
    assert_eq!(judge(&info(0, "allkeys-lru")), []);
    assert_eq!(judge(&info(1000, "noeviction")), []);
    let policy = "volatile-ttl".to_owned();
    assert_eq!(judge(&info(1000, "volatile-ttl")), [Finding::MayEvict { policy, maxmemory: 1000 }]);
}

#[test]
fn script_commands_map_to_kinds() {
    let commands = &*kind::COMMANDS;
    let names: Vec<_> = commands.keys().copied().collect();
    assert_eq!(
        names.join(" "),
        "decrby del exists get hdel hexists hget hgetall hlen hmget hrandfield hscan hset incr incrby lindex llen lpop \
         lrange lrem pexpire pttl pubsub rpush set time zadd zcard zcount zincrby zrange zrem zremrangebyrank zscore"
    );
    assert_eq!(commands["lindex"], ["lock", "fair_lock", "write", "fenced_lock"]);
    assert!(commands["pexpire"].contains(&"lock") && commands["pexpire"].contains(&"semaphore"));
}

#[test]
fn finding_names_command_and_consequence() {
    for (finding, words) in [
        (Finding::MissingPermission { command: "PUBLISH".to_owned() }, ["PUBLISH", "ten times a second"]),
        (Finding::MissingCommand { command: "SPUBLISH".to_owned() }, ["SPUBLISH", "up to 5 s late"]),
        (Finding::MissingCommand { command: "ZADD".to_owned() }, ["ZADD", "fair_lock"]),
        (Finding::MissingCommand { command: "EVAL".to_owned() }, ["EVAL", "no lock works"]),
        (Finding::MissingPermission { command: "HSCAN".to_owned() }, ["HSCAN", "do not work: lock"]),
    ] {
        let text = finding.to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    }
    let lost = Finding::MissingPermission { command: "PUBLISH".to_owned() };
    assert!(releases_are_silent(&[Finding::ForgetsOnRestart, lost]));
    assert!(!releases_are_silent(&[Finding::MissingPermission { command: "TIME".to_owned() }]));
}

#[test]
fn memory_and_age_are_told() {
    assert_eq!(judge("aof_enabled:0\r\nredis_version:7.0.15\r\n"), [Finding::ForgetsOnRestart]);
    let version = "6.0.9".to_owned();
    assert_eq!(judge("redis_version:6.0.9\r\naof_enabled:1"), [Finding::UntestedVersion { version }]);
    for tested in ["6.0.16", "6.2.5", "10.0.0", "255.255.255"] {
        assert_eq!(judge(&format!("redis_version:{tested}\r\naof_enabled:1")), []);
    }
    assert_eq!(judge("nonsense without fields"), []);
    assert_eq!(connected_replicas("# Replication\r\nrole:master\r\nconnected_slaves:2\r\n"), Some(2));
    assert_eq!(connected_replicas("role:master\r\n"), None);
}
