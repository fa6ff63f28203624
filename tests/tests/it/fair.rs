//! The fair lock against real servers.
//!
//! Tests its wire contract, the order of its grants, and waiters that leave or die.

use std::io::Write;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use wheellock::testing::server::Which;
use wheellock::{Error, Lock, LockManager, LostReason};
use wheellock_client::Command;
use wheellock_tests::locks::{
    PATIENCE, RENEWED, WOKEN, adjusted, at_rest, brisk, clock, gone, lost, manager,
};
use wheellock_tests::topology::{Cluster, Replicas, Settings};
use wheellock_tests::{RedisServer, eventually};

const NAME: &str = "tickets";
const QUEUE: &str = "redisson_lock_queue:{tickets}";
const DEADLINES: &str = "redisson_lock_timeout:{tickets}";
const WAITERS: &str = "{tickets}:wheellock_waiters";

async fn server_and_manager() -> (RedisServer, LockManager) {
    let server = RedisServer::start();
    let locks = manager(&server.url()).await;
    (server, locks)
}

fn set(server: &RedisServer, command: &[&str]) {
    let _answer = server.cli(command);
}

/// Waits until the server's queue has `count` waiters.
async fn queued(server: &RedisServer, count: usize) -> bool {
    eventually(PATIENCE, async || server.cli(&["LLEN", QUEUE]) == count.to_string()).await
}

fn waiter(lock: &Lock) -> tokio::task::JoinHandle<wheellock::Guard> {
    let lock = lock.clone();
    tokio::spawn(async move { lock.acquire().await.unwrap() })
}

#[tokio::test]
async fn fair_lock_follows_wire_contract() {
    let (server, locks) = server_and_manager().await;
    let lock = locks.fair_lock(NAME);
    let guard = lock.acquire().await.unwrap();
    let fields = server.cli(&["HGETALL", NAME]);
    assert_eq!(fields.split_whitespace().collect::<Vec<_>>(), [&guard.owner().to_string(), "1"]);
    assert_eq!(server.cli(&["KEYS", "*"]), NAME, "no queue");
    let owner = locks.owner();
    let waiting = waiter(&lock.with_owner(owner.clone()));
    assert!(queued(&server, 1).await);
    let holder = owner.to_string();
    assert_eq!(server.cli(&["LINDEX", QUEUE, "0"]), holder);
    let deadline: f64 = server.cli(&["ZSCORE", DEADLINES, &holder]).parse().unwrap();
    let ahead = deadline / 1000.0 - clock(&server).as_secs_f64();
    assert!((300.0..340.0).contains(&ahead), "as Redisson's: what is left of the lease, and 300 s: {ahead}");
    let channel = format!("redisson_lock__channel:{{{NAME}}}:{holder}");
    assert!(eventually(PATIENCE, async || server.cli(&["PUBSUB", "CHANNELS"]) == channel).await);
    assert_eq!(lock.queue_length().await.unwrap(), Some(1));
    assert_eq!(locks.lock("plain").queue_length().await.unwrap(), None);
    assert!(!lock.try_acquire().await.unwrap().is_acquired());
    guard.release().await.unwrap();
    let guard = waiting.await.unwrap();
    assert_eq!(server.cli(&["KEYS", "*"]), NAME, "the queue has gone");
    let again = lock.with_owner(guard.owner()).acquire().await.unwrap();
    assert_eq!(lock.hold_count(&guard.owner()).await.unwrap(), 2);
    again.release().await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(server.cli(&["KEYS", "*"]), "");
    assert!(eventually(PATIENCE, async || server.cli(&["PUBSUB", "CHANNELS"]).is_empty()).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_follow_arrival_over_several_processes() {
    const WAITERS_OF_ALL: usize = 60;
    let (server, locks) = server_and_manager().await;
    let mut managers = Vec::new();
    for _ in 0..3 {
        managers.push(manager(&server.url()).await);
    }
    let guard = locks.fair_lock(NAME).acquire().await.unwrap();
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for number in 0..WAITERS_OF_ALL {
        let (lock, served) = (managers[number * 7 % 3].fair_lock(NAME), Arc::clone(&served));
        tasks.push(tokio::spawn(async move {
            let guard = lock.acquire().await.unwrap();
            served.lock().unwrap().push(number);
            if number % 2 == 0 {
                guard.release().await.unwrap();
            }
        }));
        assert!(queued(&server, number + 1).await);
    }
    guard.release().await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(*served.lock().unwrap(), (0..WAITERS_OF_ALL).collect::<Vec<_>>());
    assert!(gone(&server, NAME).await);
    assert_eq!(server.cli(&["KEYS", "*"]), "");
}

/// Of a thousand waiters a tenth leaves, and the process of another tenth dies. The other waiters get the lock in the server's order of
/// arrival.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousand_waiters_are_served_in_order() {
    const PROCESSES: usize = 10;
    const EACH: usize = 100;
    let (server, locks) = server_and_manager().await;
    let guard = locks.fair_lock(NAME).acquire().await.unwrap();
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut managers = Vec::new();
    for _ in 0..PROCESSES {
        managers.push(manager(&server.url()).await);
    }
    let tasks: Vec<_> = (0..PROCESSES * EACH)
        .map(|number| {
            let (lock, served) = (managers[number % PROCESSES].fair_lock(NAME), Arc::clone(&served));
            tokio::spawn(async move {
                let guard = lock.acquire().await?;
                served.lock().unwrap().push(guard.owner().to_string());
                guard.release().await
            })
        })
        .collect();
    assert!(queued(&server, PROCESSES * EACH).await);
    // The waiters of one process die with it. Of the other waiters, every ninth leaves.
    managers[0].client().close().await;
    let leaves = |number: usize| !number.is_multiple_of(PROCESSES) && number.is_multiple_of(9);
    let all: Vec<_> = tasks.into_iter().enumerate().collect();
    all.iter().filter(|(number, _)| leaves(*number)).for_each(|(_, task)| task.abort());
    let left = all.iter().filter(|(number, _)| leaves(*number)).count();
    assert!(queued(&server, PROCESSES * EACH - left).await);
    let dead = managers[0].id().to_owned();
    let order = server.cli(&["LRANGE", QUEUE, "0", "-1"]);
    let expected: Vec<_> = order.lines().filter(|holder| !holder.starts_with(&dead)).collect();
    guard.release().await.unwrap();
    for (number, task) in all {
        match task.await {
            Ok(released) if number.is_multiple_of(PROCESSES) => {
                assert!(released.is_err(), "its connection was closed");
            }
            Ok(released) => released.unwrap(),
            Err(aborted) => assert!(aborted.is_cancelled() && leaves(number)),
        }
    }
    assert_eq!(*served.lock().unwrap(), expected);
    // The last heartbeat of a dead waiter may be later than the last grant. The next poll removes it.
    let next = locks.fair_lock(NAME).acquire().await.unwrap();
    next.release().await.unwrap();
    assert!(eventually(PATIENCE, async || server.cli(&["KEYS", "*"]).is_empty()).await);
    assert!(eventually(PATIENCE, async || server.cli(&["PUBSUB", "CHANNELS"]).is_empty()).await);
}

/// Between processes, a tenth of all waiters leaves, and one of ten processes is killed. The other waiters get the lock in the server's
/// order of arrival, at the latest when the dead entries expire. `WHEELLOCK_FAIR_WAITERS=1000` is the long form.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_process_preserves_waiter_order() {
    const PROCESSES: usize = 10;
    if let Ok(url) = std::env::var(CHILD) {
        return waiters_of_one_process(&url).await;
    }
    let each = waiters_of_all() / PROCESSES;
    let (server, locks) = server_and_manager().await;
    let guard = locks.fair_lock(NAME).acquire().await.unwrap();
    let mut processes: Vec<_> = (0..PROCESSES).map(|_| Process::start(&server)).collect();
    assert!(queued(&server, PROCESSES * each).await);
    processes.iter_mut().for_each(Process::lets_a_tenth_leave);
    assert!(queued(&server, PROCESSES * (each - each.div_ceil(10))).await);
    let mut killed = processes.remove(0);
    let its_id = killed.id(&server).await;
    killed.kill();
    let order = server.cli(&["LRANGE", QUEUE, "0", "-1"]);
    let (dead, living): (Vec<_>, Vec<_>) = order.lines().partition(|holder| holder.starts_with(&its_id));
    assert_eq!((dead.len(), living.len()), (order.lines().count() / 10, order.lines().count() / 10 * 9));
    let lives =
        server.cli(&["ZRANGE", WAITERS, "+inf", "-inf", "BYSCORE", "REV", "LIMIT", "0", "1", "WITHSCORES"]);
    let until = lives.lines().last().and_then(|score| score.parse().ok()).map(Duration::from_millis).unwrap();
    guard.release().await.unwrap();
    for process in &mut processes {
        assert!(eventually(2 * PATIENCE, async || process.has_ended()).await, "its waiters are served");
    }
    let served = server.cli(&["LRANGE", SERVED, "0", "-1"]);
    assert_eq!(served.lines().collect::<Vec<_>>(), living);
    let late = clock(&server).saturating_sub(until);
    assert!(late < PATIENCE, "the dead kept them waiting for {late:?} longer than they lived");
    set(&server, &["DEL", SERVED, PROCESS_IDS]);
    // The dead waiters may have arrived last. The next poll removes them.
    let next = locks.fair_lock(NAME).acquire().await.unwrap();
    next.release().await.unwrap();
    assert!(eventually(PATIENCE, async || server.cli(&["KEYS", "*"]).is_empty()).await);
    assert!(eventually(PATIENCE, async || server.cli(&["PUBSUB", "CHANNELS"]).is_empty()).await);
}

/// Runs the waiters of a child process. Each waiter records its grant under the lock. A line on stdin makes a tenth of them leave.
async fn waiters_of_one_process(url: &str) {
    let locks = manager(url).await;
    let process = std::process::id().to_string();
    let introduce = Command::new("HSET").arg(PROCESS_IDS).arg(&process).arg(locks.id());
    locks.client().call(&introduce).await.unwrap();
    let mut tasks = Vec::new();
    for _ in 0..waiters_of_all() / 10 {
        let (lock, client) = (locks.fair_lock(NAME), locks.client().clone());
        tasks.push(tokio::spawn(async move {
            let guard = lock.acquire().await.unwrap();
            let owner = guard.owner().to_string();
            client.call(&Command::new("RPUSH").arg(SERVED).arg(&owner)).await.unwrap();
            guard.release().await.unwrap();
        }));
    }
    let line = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
    assert!(line.await.unwrap().unwrap() > 0, "the parent has gone");
    tasks.iter().step_by(10).for_each(tokio::task::JoinHandle::abort);
    for (number, task) in tasks.into_iter().enumerate() {
        assert_eq!(task.await.is_err(), number % 10 == 0);
    }
}

/// A child process with waiters in the queue. Dropping it kills the process.
struct Process {
    child: Child,
}

impl Process {
    fn start(server: &RedisServer) -> Self {
        let test = "fair::killed_process_preserves_waiter_order";
        let mut program = std::process::Command::new(std::env::current_exe().unwrap());
        program.args(["--exact", test]).env(CHILD, server.url());
        Self { child: program.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap() }
    }

    /// Returns the prefix of its holders.
    async fn id(&self, server: &RedisServer) -> String {
        let id = || server.cli(&["HGET", PROCESS_IDS, &self.child.id().to_string()]);
        assert!(eventually(PATIENCE, async || !id().is_empty()).await);
        id()
    }

    fn lets_a_tenth_leave(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"leave\n").unwrap();
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        assert!(!self.child.wait().unwrap().success());
    }

    /// Returns true if the process has ended. Asserts that it succeeded.
    fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().inspect(|status| assert!(status.success(), "{status}")).is_some()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // An error says that the process is already gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn waiters_of_all() -> usize {
    std::env::var("WHEELLOCK_FAIR_WAITERS")
        .map_or(100, |waiters| waiters.parse().expect("a number of waiters"))
}

const CHILD: &str = "WHEELLOCK_FAIR_CHILD";
const SERVED: &str = "served";
const PROCESS_IDS: &str = "process-ids";

#[tokio::test]
async fn leaving_waiter_loses_only_own_place() {
    let (server, locks) = server_and_manager().await;
    let lock = locks.fair_lock(NAME);
    let guard = lock.acquire().await.unwrap();
    let first = waiter(&lock);
    assert!(queued(&server, 1).await);
    let gives_up = {
        let lock = lock.clone();
        tokio::spawn(async move { lock.try_acquire_for(Duration::from_millis(400)).await.unwrap() })
    };
    assert!(queued(&server, 2).await);
    let dropped = waiter(&lock);
    assert!(queued(&server, 3).await);
    let last = waiter(&lock);
    assert!(queued(&server, 4).await);
    dropped.abort();
    assert!(queued(&server, 3).await);
    assert!(!gives_up.await.unwrap().is_acquired());
    assert!(queued(&server, 2).await);
    first.abort();
    assert!(queued(&server, 1).await);
    assert_eq!(server.cli(&["ZCARD", DEADLINES]), "1");
    assert_eq!(server.cli(&["ZCARD", WAITERS]), "1");
    guard.release().await.unwrap();
    let guard = tokio::time::timeout(WOKEN, last).await.expect("it is told").unwrap();
    guard.release().await.unwrap();
    assert_eq!(server.cli(&["KEYS", "*"]), "");
}

#[tokio::test]
async fn release_notifies_head_only() {
    let (server, locks) = server_and_manager().await;
    let lock = locks.fair_lock(NAME);
    let guard = lock.acquire().await.unwrap();
    let first = waiter(&lock);
    assert!(queued(&server, 1).await);
    let second = waiter(&lock);
    assert!(queued(&server, 2).await);
    let head = server.cli(&["LINDEX", QUEUE, "0"]);
    let monitor = server.monitor();
    guard.release().await.unwrap();
    let guard = first.await.unwrap();
    let told: Vec<_> =
        monitor.stop().unwrap().into_iter().filter(|command| command.name() == "PUBLISH").collect();
    let [told] = &told[..] else { panic!("{told:?}") };
    assert_eq!(told.args[1..], [format!("redisson_lock__channel:{{{NAME}}}:{head}"), "0".to_owned()]);
    guard.release().await.unwrap();
    drop(second.await.unwrap());
    assert!(gone(&server, NAME).await);
}

/// If a message reaches no subscriber, the release knows that it has to search for a live waiter.
#[tokio::test]
async fn missed_release_notifies_first_live_waiter() {
    let (server, locks) = server_and_manager().await;
    let lock = locks.fair_lock(NAME);
    let guard = lock.acquire().await.unwrap();
    let living = waiter(&lock);
    assert!(queued(&server, 1).await);
    let next = server.cli(&["LINDEX", QUEUE, "0"]);
    set(&server, &["LPUSH", QUEUE, "dead:1"]);
    set(&server, &["ZADD", DEADLINES, "1", "dead:1"]);
    let monitor = server.monitor();
    guard.release().await.unwrap();
    let guard = living.await.unwrap();
    let told = monitor.stop().unwrap().into_iter().rfind(|command| command.name() == "PUBLISH");
    let channel = format!("redisson_lock__channel:{{{NAME}}}:{next}");
    assert_eq!(told.expect("it is told").args[1..], [channel, "0".to_owned()]);
    guard.release().await.unwrap();
    assert_eq!(server.cli(&["KEYS", "*"]), "");
}

/// A waiter that expects to wait subscribes before it polls. It polls to join the queue, and again when it is notified.
#[tokio::test]
async fn a_wait_costs_two_questions() {
    const ROUNDS: usize = 20;
    let (server, locks) = server_and_manager().await;
    let others = manager(&server.url()).await;
    let (lock, wanted) = (locks.fair_lock(NAME), others.fair_lock(NAME));
    let mut before = None;
    for _ in 0..=ROUNDS {
        let guard = lock.acquire().await.unwrap();
        let waiting = waiter(&wanted);
        assert!(queued(&server, 1).await && at_rest(&others).await);
        guard.release().await.unwrap();
        waiting.await.unwrap().release().await.unwrap();
        // The first wait is unexpected, so it costs more.
        before.get_or_insert_with(|| (calls(&server, "evalsha"), calls(&server, "subscribe")));
    }
    let (scripts, subscribed) = before.unwrap();
    // The holder's two requests, the waiter's own release and its two polls. On slow machines, a waiter may poll a third time.
    let scripts = calls(&server, "evalsha") - scripts;
    assert!((5 * ROUNDS..5 * ROUNDS + ROUNDS / 2).contains(&scripts), "{scripts}");
    assert_eq!(calls(&server, "subscribe") - subscribed, ROUNDS);
    // A lock that is free again takes one command, as soon as the process knows that it is free.
    for _ in 0..2 {
        wanted.acquire().await.unwrap().release().await.unwrap();
    }
    let (scripts, subscribed) = (calls(&server, "evalsha"), calls(&server, "subscribe"));
    wanted.acquire().await.unwrap().release().await.unwrap();
    assert_eq!((calls(&server, "evalsha") - scripts, calls(&server, "subscribe") - subscribed), (2, 0));
}

#[tokio::test]
async fn holders_and_positions_are_reported() {
    let (server, locks) = server_and_manager().await;
    let lock = locks.fair_lock(NAME);
    assert_eq!(holders(&lock).await, [""; 0]);
    let guard = lock.acquire().await.unwrap();
    let owners = [(); 3].map(|()| locks.owner());
    let mut waiting = Vec::new();
    for (place, owner) in owners.iter().enumerate() {
        assert_eq!(lock.position(owner).await.unwrap(), None);
        waiting.push(waiter(&lock.with_owner(owner.clone())));
        assert!(queued(&server, place + 1).await);
        assert_eq!(lock.position(owner).await.unwrap(), Some(place as u64));
    }
    assert_eq!(holders(&lock).await, [guard.owner().to_string()]);
    assert_eq!(lock.position(&guard.owner()).await.unwrap(), None, "who holds does not wait");
    assert_eq!(locks.lock(NAME).position(&owners[0]).await.unwrap(), None, "of another kind nobody knows");
    guard.release().await.unwrap();
    let first = waiting.remove(0).await.unwrap();
    assert_eq!(holders(&lock).await, [owners[0].to_string()]);
    assert_eq!(lock.position(&owners[2]).await.unwrap(), Some(1));
    first.release().await.unwrap();
    for guard in waiting {
        guard.await.unwrap().release().await.unwrap();
    }
    let sides = locks.read_write_lock("sides");
    let (one, other) = (sides.read().acquire().await.unwrap(), sides.read().acquire().await.unwrap());
    let mut readers = [one.owner().to_string(), other.owner().to_string()];
    let mut found = holders(&sides.read()).await;
    readers.sort();
    found.sort();
    assert_eq!(found, readers);
    assert_eq!(holders(&sides.write()).await, [""; 0]);
    one.release().await.unwrap();
    other.release().await.unwrap();
    let writer = sides.write().acquire().await.unwrap();
    let reads = sides.read().with_owner(writer.owner()).acquire().await.unwrap();
    for side in [sides.write(), sides.read()] {
        assert_eq!(holders(&side).await, [writer.owner().to_string()]);
    }
    reads.release().await.unwrap();
    assert_eq!(holders(&sides.read()).await, [""; 0]);
    let simple = locks.simple_lock("simple").acquire().await.unwrap();
    assert_eq!(holders(&locks.simple_lock("simple")).await, [simple.owner().to_string()]);
    set(&server, &["SET", "data", "x"]);
    assert!(matches!(locks.lock("data").holders().await, Err(Error::OtherData { .. })));
}

/// Returns the holders, according to the server.
async fn holders(lock: &Lock) -> Vec<String> {
    lock.holders().await.unwrap().holders.into_iter().map(|holder| holder.owner).collect()
}

/// Returns how many times clients sent a command.
fn calls(server: &RedisServer, command: &str) -> usize {
    let stats = server.cli(&["INFO", "commandstats"]);
    let calls = |line: &str| {
        line.strip_prefix("cmdstat_")?
            .strip_prefix(command)?
            .strip_prefix(":calls=")?
            .split(',')
            .next()?
            .parse()
            .ok()
    };
    stats.lines().find_map(calls).unwrap_or(0)
}

/// A hold without a TTL, which only another program can make. The head polls at its usual rate for a hold that does not end soon.
#[tokio::test]
async fn missing_ttl_keeps_head_poll_rate() {
    let (server, locks) = server_and_manager().await;
    set(&server, &["HSET", NAME, "8a3ba4a9-51d9-4eb3-a2ee-7a3ba0dfd9f4:1", "1"]);
    let lock = locks.fair_lock(NAME);
    assert!(!lock.try_acquire_for(Duration::from_millis(300)).await.unwrap().is_acquired());
    let asked = calls(&server, "evalsha");
    assert!(asked <= 10, "{asked} questions");
    assert_eq!(server.cli(&["KEYS", "*"]), NAME, "it has left the queue");
}

/// Behind a lease of days, deadlines are days away. Within that time, only its polls show that a waiter is alive. If no process wants the
/// lock any more, the queue of dead waiters ends, too.
#[tokio::test]
async fn queue_keys_outlive_deadlines() {
    let (server, _locks) = server_and_manager().await;
    set(&server, &["HSET", NAME, "8a3ba4a9-51d9-4eb3-a2ee-7a3ba0dfd9f4:1", "1"]);
    set(&server, &["PEXPIRE", NAME, "259200000"]);
    let asks = |holder: &str| {
        let call = ["EVAL", Which::FairAcquire.text(), "1", NAME, "30000", holder];
        let tag = ["1", "1", "redisson_lock__channel:{tickets}", "PUBLISH", "{tickets}"];
        assert_eq!(server.cli(&[&call[..], &tag[..]].concat()), "2000");
        let left = |key: &str| server.cli(&["PTTL", key]).parse::<i64>().unwrap();
        [WAITERS, QUEUE, DEADLINES].map(left).into_iter().min().unwrap()
    };
    let last = |holder: &str| server.cli(&["ZSCORE", DEADLINES, holder]).parse::<i64>().unwrap();
    let (first, second) = (asks("u:1"), asks("u:2"));
    let now = i64::try_from(clock(&server).as_millis()).unwrap();
    assert!(first > last("u:1") - now && second > last("u:2") - now, "{first} and {second}");
    assert!(asks("u:1") > last("u:2") - now, "a later question does not shorten it");
}

/// A head that leaves just after the lock became free notifies the next waiter.
#[tokio::test]
async fn leaving_head_notifies_next_waiter() {
    let (server, locks) = server_and_manager().await;
    let lock = locks.fair_lock(NAME);
    for round in 0..20 {
        let guard = lock.acquire().await.unwrap();
        let head = waiter(&lock);
        assert!(queued(&server, 1).await);
        let next = waiter(&lock);
        assert!(queued(&server, 2).await);
        drop(guard);
        if round % 2 == 0 {
            tokio::task::yield_now().await;
        }
        head.abort();
        let began = Instant::now();
        let guard = next.await.unwrap();
        assert!(began.elapsed() < Duration::from_millis(1500), "it was not told: {:?}", began.elapsed());
        guard.release().await.unwrap();
        if let Ok(guard) = head.await {
            guard.release().await.unwrap();
        }
    }
    assert_eq!(server.cli(&["KEYS", "*"]), "");
}

/// A waiter whose process has died blocks the waiters behind it for a few seconds only.
#[tokio::test]
async fn dead_head_is_skipped_in_time() {
    let (server, locks) = server_and_manager().await;
    let lock = locks.fair_lock(NAME);
    let guard = lock.acquire().await.unwrap();
    let dead = manager(&server.url()).await;
    let waiting = waiter(&dead.fair_lock(NAME));
    assert!(queued(&server, 1).await);
    // No withdrawal of the dead process arrives.
    let id = server.cli(&["LINDEX", QUEUE, "0"]);
    dead.client().close().await;
    waiting.abort();
    let next = waiter(&lock);
    assert!(queued(&server, 2).await);
    assert_eq!(server.cli(&["LINDEX", QUEUE, "0"]), id);
    guard.release().await.unwrap();
    let began = Instant::now();
    let guard = next.await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(9), "{:?}", began.elapsed());
    guard.release().await.unwrap();
    assert_eq!(server.cli(&["KEYS", "*"]), "");
}

/// Asserts that five waiters of two managers get the lock in their order. `meanwhile` may disturb the servers.
async fn order_is_kept(
    url: &str,
    queue: impl AsyncFn() -> String,
    meanwhile: impl AsyncFnOnce(&LockManager),
) {
    const FIVE: usize = 5;
    let patient = |config: &mut wheellock::client::Config| config.response_timeout = 3 * PATIENCE;
    let managers = [adjusted(url, LEASE, patient).await, adjusted(url, LEASE, patient).await];
    let guard = managers[0].fair_lock(NAME).acquire().await.unwrap();
    let (served, mut tasks) = (Arc::new(Mutex::new(Vec::new())), Vec::new());
    for place in 0..FIVE {
        let (lock, served) = (managers[place % 2].fair_lock(NAME), Arc::clone(&served));
        tasks.push(tokio::spawn(async move {
            let guard = lock.acquire().await.unwrap();
            served.lock().unwrap().push(place);
            guard.release().await.unwrap();
        }));
        assert!(eventually(PATIENCE, async || queue().await == (place + 1).to_string()).await);
    }
    meanwhile(&managers[0]).await;
    guard.release().await.unwrap();
    for task in tasks {
        tokio::time::timeout(3 * PATIENCE, task).await.expect("it is told, or asks").unwrap();
    }
    assert_eq!(*served.lock().unwrap(), (0..FIVE).collect::<Vec<_>>());
}

const LEASE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn replicated_queue_survives_failover() {
    let set = std::cell::RefCell::new(Replicas::start(1, &Settings::default()));
    let url = set.borrow().url();
    let queue = async || set.borrow().servers()[0].cli(&["LLEN", QUEUE]);
    order_is_kept(&url, queue, async |_| {
        let heard = async || {
            let set = set.borrow();
            let [here, there] = set.servers() else { panic!("two servers") };
            here.cli(&["LRANGE", QUEUE, "0", "-1"]) == there.cli(&["LRANGE", QUEUE, "0", "-1"])
        };
        assert!(eventually(PATIENCE, heard).await);
        let mut set = set.borrow_mut();
        set.servers_mut()[0].kill();
        set.promote(1);
    })
    .await;
    assert_eq!(set.borrow().servers()[1].cli(&["KEYS", "*"]), "");
}

#[tokio::test]
async fn cluster_keeps_queue_order() {
    let cluster = Cluster::start(3, 0, &Settings::default());
    let owner = &cluster.nodes()[cluster.owner_of_key(NAME)];
    order_is_kept(&cluster.url(), async || owner.cli(&["LLEN", QUEUE]), async |_| {}).await;
    assert_eq!(owner.cli(&["KEYS", "*"]), "");
}

/// The cause may be Redisson's `delete()`, or a failover.
#[tokio::test]
async fn vanished_queue_frees_waiters_leaves_nothing() {
    let (server, locks) = server_and_manager().await;
    let lock = locks.fair_lock(NAME);
    let guard = lock.acquire().await.unwrap();
    let mut waiting = Vec::new();
    for place in 0..3 {
        waiting.push(waiter(&lock));
        assert!(queued(&server, place + 1).await);
    }
    let gives_up = waiter(&lock);
    assert!(queued(&server, 4).await);
    set(&server, &["DEL", NAME, QUEUE, DEADLINES]);
    gives_up.abort();
    for waiting in waiting {
        let guard = tokio::time::timeout(PATIENCE, waiting).await.expect("it asks").unwrap();
        guard.release().await.unwrap();
    }
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
    assert!(eventually(PATIENCE, async || server.cli(&["KEYS", "*"]).is_empty()).await);
    // A waiter that leaves finds only its own heartbeat entry.
    let guard = lock.acquire().await.unwrap();
    let gives_up = waiter(&lock);
    assert!(queued(&server, 1).await);
    set(&server, &["DEL", QUEUE, DEADLINES]);
    gives_up.abort();
    guard.release().await.unwrap();
    assert!(eventually(PATIENCE, async || server.cli(&["KEYS", "*"]).is_empty()).await);
}

#[tokio::test]
async fn long_waiter_keeps_place() {
    let (server, locks) = server_and_manager().await;
    let lock = locks.fair_lock(NAME);
    let guard = lock.acquire().await.unwrap();
    let first = waiter(&lock);
    assert!(queued(&server, 1).await);
    let others = manager(&server.url()).await.fair_lock(NAME);
    let second = waiter(&others);
    assert!(queued(&server, 2).await);
    let head = server.cli(&["LINDEX", QUEUE, "0"]);
    // Each waiter has had to send several heartbeats.
    let until = |holder: &str| -> u64 { server.cli(&["ZSCORE", WAITERS, holder]).parse().unwrap_or(0) };
    let began = until(&head);
    let mut last = began;
    let lives = eventually(2 * PATIENCE, async || {
        // Every poll removes dead waiters.
        assert!(!others.try_acquire().await.unwrap().is_acquired());
        let next = until(&head);
        assert!(next == last || clock(&server) < Duration::from_millis(last), "it was dead, and came anew");
        last = next;
        next > began + 6_000
    });
    assert!(lives.await);
    assert_eq!((server.cli(&["LLEN", QUEUE]), server.cli(&["LINDEX", QUEUE, "0"])), ("2".to_owned(), head));
    guard.release().await.unwrap();
    let guard = first.await.unwrap();
    assert!(!second.is_finished());
    guard.release().await.unwrap();
    drop(second.await.unwrap());
    assert!(gone(&server, NAME).await);
}

/// Redisson's entries count until their deadlines, and the entries behind them move up as Redisson moves them.
#[tokio::test]
async fn foreign_entries_count_until_deadline() {
    let (server, locks) = server_and_manager().await;
    let lock = locks.fair_lock(NAME);
    let now = clock(&server);
    let after = |seconds| (now + Duration::from_secs(seconds)).as_millis().to_string();
    set(&server, &["RPUSH", QUEUE, "java:1"]);
    set(&server, &["ZADD", DEADLINES, &after(2), "java:1"]);
    assert!(!lock.try_acquire().await.unwrap().is_acquired(), "it is free, but somebody came first");
    let guard =
        lock.try_acquire_for(PATIENCE).await.unwrap().acquired().expect("the other one's time is over");
    assert_eq!(server.cli(&["EXISTS", QUEUE, DEADLINES, WAITERS]), "0");
    // An entry behind us: its deadline becomes earlier when we get the lock.
    let waiting = waiter(&lock);
    assert!(queued(&server, 1).await);
    set(&server, &["RPUSH", QUEUE, "java:2"]);
    set(&server, &["ZADD", DEADLINES, &after(700), "java:2"]);
    guard.release().await.unwrap();
    let guard = waiting.await.unwrap();
    assert_eq!(server.cli(&["ZSCORE", DEADLINES, "java:2"]), after(400));
    guard.release().await.unwrap();
}

#[tokio::test]
async fn disconnect_and_forced_release_keep_places() {
    let server = RedisServer::start();
    let locks = brisk(&server.url(), RENEWED).await;
    let others = brisk(&server.url(), RENEWED).await;
    let guard = locks.fair_lock(NAME).acquire().await.unwrap();
    let first = waiter(&others.fair_lock(NAME));
    assert!(queued(&server, 1).await);
    let second = waiter(&locks.fair_lock(NAME));
    assert!(queued(&server, 2).await);
    set(&server, &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    assert!(others.fair_lock(NAME).force_release().await.unwrap());
    assert_eq!(lost(&guard).await, LostReason::NotOwner);
    let guard = tokio::time::timeout(WOKEN, first).await.expect("it is told, or asks").unwrap();
    assert!(!second.is_finished());
    guard.release().await.unwrap();
    drop(second.await.unwrap());
    assert!(gone(&server, NAME).await);
    assert!(eventually(PATIENCE, async || server.cli(&["KEYS", "*"]).is_empty()).await);
}

#[tokio::test]
async fn shutdown_rejects_waiters_leaves_no_entry() {
    let (server, locks) = server_and_manager().await;
    let others = manager(&server.url()).await;
    let guard = others.fair_lock(NAME).acquire().await.unwrap();
    let lock = locks.fair_lock(NAME);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    assert!(queued(&server, 1).await);
    let began = Instant::now();
    let left = locks.shutdown(PATIENCE).await;
    assert!(left.is_empty(), "{left}");
    assert!(matches!(waiting.await.unwrap(), Err(Error::ShutDown { .. })));
    assert!(began.elapsed() < Duration::from_millis(1500), "{:?}", began.elapsed());
    guard.release().await.unwrap();
    let guard = others
        .fair_lock(NAME)
        .try_acquire_for(2 * PATIENCE)
        .await
        .unwrap()
        .acquired()
        .expect("its time is over");
    guard.release().await.unwrap();
    assert_eq!(server.cli(&["KEYS", "*"]), "");
}

#[tokio::test]
async fn foreign_data_stays_untouched() {
    let (server, locks) = server_and_manager().await;
    let lock = locks.fair_lock(NAME);
    let data: [&[&str]; 2] = [&["SET", NAME, "x"], &["HSET", NAME, "mode", "read"]];
    for set_up in data {
        set(&server, set_up);
        let before = server.cli(&["DUMP", NAME]);
        for error in [lock.try_acquire().await.unwrap_err(), lock.acquire().await.unwrap_err()] {
            assert!(matches!(error, Error::OtherData { .. }), "{error}");
        }
        assert!(matches!(lock.force_release().await, Err(Error::OtherData { .. })));
        assert_eq!(server.cli(&["DUMP", NAME]), before);
        set(&server, &["DEL", NAME]);
    }
    let plain = locks.lock(NAME).acquire().await.unwrap();
    assert!(!lock.try_acquire().await.unwrap().is_acquired(), "a plain lock under the name excludes it");
    plain.release().await.unwrap();
    assert_eq!(server.cli(&["KEYS", "*"]), "");
}

/// The reply of the script that grants a fair lock.
const GRANTED: &str = "(nil)";

fn holder(number: u32) -> String {
    format!("00000000-0000-4000-8000-000000000000:{number}")
}

/// Returns the reply of a fair lock's script for this holder, which joins the queue.
fn asks(server: &RedisServer, number: u32) -> String {
    acquires(server, number, "1")
}

fn acquires(server: &RedisServer, number: u32, joins: &str) -> String {
    let holder = holder(number);
    let args = ["60000", &holder, "1", joins, "redisson_lock__channel:{tickets}", "PUBLISH", "{tickets}"];
    server.cli(&[&["EVAL", Which::FairAcquire.text(), "1", NAME][..], &args].concat())
}

/// Ages the last poll of this waiter.
fn silence(server: &RedisServer, number: u32, millis: i64) {
    let _score = server.cli(&["ZINCRBY", WAITERS, &(-millis).to_string(), &holder(number)]);
}

/// No waiter polls, so the server may have stood still. A caller that tries only once leaves no trace either.
#[test]
fn dead_waiters_are_spared_only_once() {
    let server = RedisServer::start();
    assert_eq!(asks(&server, 9), GRANTED);
    assert_eq!(asks(&server, 1), "2000");
    assert_eq!(asks(&server, 2), "2000");
    assert_eq!(server.cli(&["DEL", NAME]), "1");
    for waiter in [1, 2] {
        silence(&server, waiter, 6_000);
    }
    assert_eq!(acquires(&server, 3, "0"), "0", "both dead waiters get more time");
    assert_eq!(acquires(&server, 3, "0"), "0");
    for waiter in [1, 2] {
        silence(&server, waiter, 6_000);
    }
    assert_eq!(acquires(&server, 3, "0"), GRANTED);
    assert_eq!(server.cli(&["KEYS", "*"]), NAME);
}

/// A server that stands still silences all waiters. The test subtracts the time of the silence from their heartbeat entries.
#[test]
fn server_stall_kills_no_waiter() {
    let server = RedisServer::start();
    let queue = || -> Vec<String> {
        let queue = server.cli(&["LRANGE", QUEUE, "0", "-1"]);
        queue
            .split_whitespace()
            .filter_map(|holder| holder.split_once(':'))
            .map(|it| it.1.to_owned())
            .collect()
    };
    let (dead, holds, new) = (8, 9, 4);
    for stall in [3_500, 6_000, 60_000] {
        assert_eq!(server.cli(&["FLUSHALL"]), "OK");
        assert_eq!(asks(&server, holds), GRANTED);
        let waiters = [(dead, 6_000), (1, 1_900), (2, 900), (3, 0)];
        waiters.iter().for_each(|(waiter, _)| assert!(asks(&server, *waiter).parse::<u32>().is_ok()));
        waiters.iter().for_each(|(waiter, ago)| silence(&server, *waiter, ago + stall));
        assert_eq!(server.cli(&["DEL", NAME]), "1", "the lease ended meanwhile");
        assert_eq!(asks(&server, new), "2000", "{stall}");
        assert_eq!(queue(), ["1", "2", "3", "4"], "{stall}: a waiter that was dead before is removed");
        assert_eq!(asks(&server, 3), "2000", "{stall}");
        assert_eq!(asks(&server, 1), GRANTED, "{stall}: the first has it");
        assert_eq!(queue(), ["2", "3", "4"], "{stall}");
        // The grace is given only once: while other waiters poll, silence is a sign of death.
        assert_eq!(server.cli(&["DEL", NAME]), "1");
        silence(&server, 2, 6_000);
        assert_eq!(asks(&server, 3), GRANTED, "{stall}");
    }
    // A release that reaches no waiter does not remove waiters either.
    assert_eq!(server.cli(&["FLUSHALL"]), "OK");
    assert_eq!(asks(&server, holds), GRANTED);
    let waiters = [(1, 1_900), (2, 0)];
    waiters.iter().for_each(|(waiter, _)| assert!(asks(&server, *waiter).parse::<u32>().is_ok()));
    waiters.iter().for_each(|(waiter, ago)| silence(&server, *waiter, ago + 9_000));
    let (channel, holds) = ("redisson_lock__channel:{tickets}", holder(holds));
    let args = [channel, &holds, "0", "PUBLISH", "{tickets}"];
    let released = server.cli(&[&["EVAL", Which::FairRelease.text(), "1", NAME][..], &args].concat());
    assert_eq!(released, "1");
    assert_eq!(queue(), ["1", "2"]);
}
