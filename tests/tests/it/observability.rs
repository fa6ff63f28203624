//! Events, spans, numbers and health for operators. The tests check the targets and fields of events and spans, and the numbers of each
//! family. They also check that an outage makes few events.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use metrics::{CounterFn, GaugeFn, HistogramFn, Key, KeyName, SharedString, Unit};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use wheellock::{Health, LockManager, LostReason, RedLockManager, blocking, multi_lock};
use wheellock_tests::locks::{PATIENCE, adjusted, brisk, manager};
use wheellock_tests::topology::{Cluster, SentinelSet, Settings};
use wheellock_tests::{RedisServer, eventually};

use crate::log::listen;

/// A recorded event or span.
#[derive(Clone, Debug)]
struct Seen {
    target: String,
    level: Level,
    /// Message of the event, or name of the span.
    what: String,
    fields: BTreeMap<String, String>,
    /// Number of the span around this event or span, if any.
    parent: Option<u64>,
    is_closed: bool,
}

impl Seen {
    fn new(metadata: &Metadata<'_>, parent: Option<u64>) -> Self {
        let (target, what) = (metadata.target().to_owned(), metadata.name().to_owned());
        Self { target, level: *metadata.level(), what, fields: BTreeMap::new(), parent, is_closed: false }
    }

    fn names(&self) -> Vec<&str> {
        self.fields.keys().map(String::as_str).collect()
    }

    fn number(&self, field: &str) -> u64 {
        self.fields[field].parse().unwrap()
    }
}

impl Visit for Seen {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.insert(field.name().to_owned(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name().to_owned(), value.to_owned());
    }
}

/// Recorder of all events and spans under this library's targets, in order.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Recorded>>);

#[derive(Default)]
struct Recorded {
    events: Vec<Seen>,
    spans: Vec<Seen>,
    /// Number of handles of each span.
    handles: Vec<usize>,
    entered: Vec<u64>,
}

impl Recorder {
    fn events(&self) -> Vec<Seen> {
        self.0.lock().unwrap().events.clone()
    }

    /// Returns the events with this message.
    fn said(&self, what: &str) -> Vec<Seen> {
        self.events().into_iter().filter(|event| event.what == what).collect()
    }

    fn spans(&self, name: &str) -> Vec<Seen> {
        self.0.lock().unwrap().spans.iter().filter(|span| span.what == name).cloned().collect()
    }

    /// Returns the outcome of each span of this name, oldest first. A span that has not ended has `None`.
    fn outcomes(&self, name: &str) -> Vec<Option<String>> {
        self.spans(name).iter().map(|span| span.fields.get("outcome").cloned()).collect()
    }
}

/// Returns the index of a span. Numbers of spans begin at 1.
fn place(id: &Id) -> usize {
    usize::try_from(id.into_u64()).unwrap() - 1
}

impl Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("wheellock") || metadata.target().starts_with("observability")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut recorded = self.0.lock().unwrap();
        let parent = if span.is_contextual() {
            recorded.entered.last().copied()
        } else {
            span.parent().map(Id::into_u64)
        };
        let mut seen = Seen::new(span.metadata(), parent);
        span.record(&mut seen);
        recorded.spans.push(seen);
        recorded.handles.push(1);
        Id::from_u64(recorded.spans.len() as u64)
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        values.record(&mut self.0.lock().unwrap().spans[place(id)]);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut recorded = self.0.lock().unwrap();
        let mut seen = Seen::new(event.metadata(), recorded.entered.last().copied());
        event.record(&mut seen);
        seen.what = seen.fields.remove("message").unwrap_or_default();
        recorded.events.push(seen);
    }

    fn enter(&self, id: &Id) {
        self.0.lock().unwrap().entered.push(id.into_u64());
    }

    fn exit(&self, id: &Id) {
        let mut recorded = self.0.lock().unwrap();
        let left = recorded.entered.pop();
        assert_eq!(left, Some(id.into_u64()), "spans are left in the order in which they were entered");
    }

    fn clone_span(&self, id: &Id) -> Id {
        self.0.lock().unwrap().handles[place(id)] += 1;
        id.clone()
    }

    fn try_close(&self, id: Id) -> bool {
        let mut recorded = self.0.lock().unwrap();
        let place = place(&id);
        recorded.handles[place] -= 1;
        let is_closed = recorded.handles[place] == 0;
        recorded.spans[place].is_closed = is_closed;
        is_closed
    }
}

/// Number of failed attempts to connect and of lost connections, in one test. Each of them requests a random pause.
static PAUSES: AtomicU64 = AtomicU64::new(0);

/// E1: an outage of a real server makes a line when it begins and a line when it ends. Between these lines it makes at most one line in ten
/// seconds, whatever the number of attempts. The same holds for renewals.
#[tokio::test]
async fn e01_an_outage_makes_few_lines() {
    let seen = Recorder::default();
    let _default = listen(seen.clone());
    let mut server = RedisServer::builder().arg("appendonly", "yes").start();
    let lease = Duration::from_millis(1500);
    let locks = adjusted(&server.url(), lease, |config| {
        config.reconnect = (Duration::from_millis(1), Duration::from_millis(4));
        config.random = || {
            PAUSES.fetch_add(1, Ordering::Relaxed);
            u64::MAX / 2
        };
    })
    .await;
    assert_eq!(seen.said("connected").len(), 1);
    let names: Vec<_> = (0..5).map(|number| format!("outage:{number}")).collect();
    let mut guards = Vec::new();
    for name in &names {
        guards.push(locks.lock(name).acquire().await.unwrap());
    }
    let began = Instant::now();
    die_with_a_renewal(&mut server, &locks).await;
    assert!(eventually(PATIENCE, async || PAUSES.load(Ordering::Relaxed) > 100).await);
    assert!(eventually(PATIENCE, async || locks.metrics().failed_renewals > 0).await);
    for guard in &guards {
        assert_eq!(guard.lost().await, LostReason::Expired);
    }
    let attempts = PAUSES.load(Ordering::Relaxed);
    server.restart();
    assert!(eventually(PATIENCE, async || locks.client().is_ready()).await);
    let reminders = usize::try_from(began.elapsed().as_secs() / 10).unwrap();

    let of = |target: &str, level: Level| {
        seen.events().into_iter().filter(|event| event.target == target && event.level == level).collect()
    };
    let warned: Vec<Seen> = of("wheellock::connection", Level::WARN);
    assert_eq!(warned[0].what, "connection lost");
    assert_eq!(warned[0].names(), ["detail", "kind", "losses", "server"]);
    assert!(warned.len() <= 1 + reminders, "{} lines", warned.len());
    let again = seen.said("connected again");
    let [again] = &*again else { panic!("{again:#?}") };
    assert_eq!(again.names(), ["attempts", "connection_id", "down_ms", "server", "version"]);
    assert!(again.number("attempts") + 1 >= attempts, "{attempts} attempts: {again:?}");
    assert!(again.number("down_ms") > 500, "as long as the leases: {again:?}");

    let warned: Vec<Seen> = of("wheellock::renewal", Level::WARN);
    assert_eq!(warned[0].what, "leases not renewed, will be tried again");
    assert_eq!(warned[0].names(), ["failing_ms", "failures", "locks", "result", "server"]);
    assert!(warned.len() <= 1 + reminders, "{} lines", warned.len());
    assert_eq!(seen.said("leases renewed again").len(), 0, "all of them were lost");
    let lost: Vec<Seen> = of("wheellock::lock", Level::WARN);
    let told: BTreeSet<_> = lost.iter().map(|event| event.fields["lock"].clone()).collect();
    assert_eq!((lost.len(), told), (names.len(), names.into_iter().collect()), "each lock once");
    assert!(
        lost.iter().all(|event| event.what == "lock lost" && event.names() == ["kind", "lock", "reason"])
    );
    assert_eq!(locks.metrics().failing, 0);
}

/// Kills the server after it was sent a renewal and before it replies.
async fn die_with_a_renewal(server: &mut RedisServer, locks: &LockManager) {
    server.pause();
    assert!(eventually(PATIENCE, async || locks.client().stats().in_flight > 0).await);
    server.kill();
}

/// E1: if the lease ends before a renewal is given up, the failing renewal is reported before the loss or with it.
#[tokio::test]
async fn e01_failing_renewal_reported_before_loss() {
    let seen = Recorder::default();
    let _default = listen(seen.clone());
    let server = RedisServer::builder().start();
    let locks = brisk(&server.url(), Duration::from_millis(1500)).await;
    let guard = locks.lock("silent").acquire().await.unwrap();
    server.pause();
    assert_eq!(guard.lost().await, LostReason::Expired);
    let is_of_leases = |event: &Seen| ["wheellock::renewal", "wheellock::lock"].contains(&&*event.target);
    let warned = |event: &Seen| event.level == Level::WARN && is_of_leases(event);
    let told: Vec<_> = seen.events().into_iter().filter(warned).collect();
    let what: Vec<_> = told.iter().map(|event| &*event.what).collect();
    assert_eq!(what, ["leases not renewed, will be tried again", "lock lost"]);
    assert_eq!(["locks", "failures"].map(|field| told[0].number(field)), [1, 1]);
    assert_eq!(told[0].fields["result"], "Err(MaybeExecuted)");
    let metrics = locks.metrics();
    assert_eq!((metrics.failed_renewals, metrics.lost_expired), (1, 1));
    server.resume();
}

/// E1: an outage that the leases survive ends with a line that says so.
#[tokio::test]
async fn e01_recovered_renewal_is_reported() {
    let seen = Recorder::default();
    let _default = listen(seen.clone());
    let mut server = RedisServer::builder().arg("appendonly", "yes").arg("appendfsync", "always").start();
    // The lease outlives a restart of the server. The watchdog has a beat every two seconds.
    let locks = brisk(&server.url(), Duration::from_secs(6)).await;
    let guard = locks.lock("kept").acquire().await.unwrap();
    die_with_a_renewal(&mut server, &locks).await;
    assert!(eventually(PATIENCE, async || locks.metrics().failing == 1).await);
    assert!(!locks.is_healthy());
    server.restart();
    assert!(eventually(PATIENCE, async || locks.metrics().failing == 0).await);
    assert!(guard.is_valid(), "the lease survived");
    let again = seen.said("leases renewed again");
    let [again] = &*again else { panic!("{again:#?}") };
    assert_eq!((&*again.target, again.level), ("wheellock::renewal", Level::INFO));
    assert_eq!(again.names(), ["failing_ms", "server"]);
    assert!(locks.is_healthy());
}

#[tokio::test]
async fn server_risk_logs_under_server_target() {
    let seen = Recorder::default();
    let _default = listen(seen.clone());
    let server =
        RedisServer::builder().arg("maxmemory", "100mb").arg("maxmemory-policy", "allkeys-lru").start();
    let locks = LockManager::connect(&server.url()).await.unwrap();
    let told = seen.said("locks on this server are at risk");
    assert_eq!(told.len(), locks.diagnostics().len());
    assert!(told.iter().all(|event| event.target == "wheellock::server" && event.level == Level::WARN));
    assert_eq!(told[0].names(), ["finding", "server"]);
    let [connected] = &*seen.said("connected") else { panic!() };
    assert_eq!((&*connected.target, connected.level), ("wheellock::connection", Level::INFO));
    assert_eq!(connected.names(), ["connection_id", "server", "version"]);
    locks.client().close().await;
    assert!(eventually(PATIENCE, async || seen.said("connection closed").len() == 1).await);
    assert_eq!(seen.said("connection lost").len(), 0, "a connection that was closed was not lost");
}

/// A filter that names the documented targets misses no event and no span.
#[tokio::test]
async fn events_and_spans_use_documented_targets() {
    let seen = Recorder::default();
    let _default = listen(seen.clone());
    let mut server = RedisServer::start();
    let locks = brisk(&server.url(), Duration::from_millis(300)).await;
    let guard = locks.lock("t").acquire().await.unwrap();
    server.kill();
    guard.lost().await;
    server.restart();
    assert!(eventually(PATIENCE, async || locks.is_healthy()).await);
    let targets = ["connection", "lock", "renewal", "server"].map(|target| format!("wheellock::{target}"));
    let recorded = seen.0.lock().unwrap();
    let all: BTreeSet<_> =
        recorded.events.iter().chain(&recorded.spans).map(|seen| seen.target.clone()).collect();
    assert!(all.iter().all(|target| targets.contains(target)), "{all:?}");
    assert!(all.contains("wheellock::lock") && all.contains("wheellock::connection"), "{all:?}");
}

#[tokio::test]
async fn release_request_is_logged_once() {
    let seen = Recorder::default();
    let _default = listen(seen.clone());
    let server = RedisServer::start();
    let locks = manager(&server.url()).await;
    let guard = locks.lock("wanted").acquire().await.unwrap();
    let asks = async || while locks.lock("wanted").ask_to_release("deploy").await.unwrap().told.is_empty() {};
    let (one, other, ()) = tokio::join!(guard.release_requested(), guard.release_requested(), asks());
    assert_eq!(one, other);
    let [event] = &*seen.said("asked to release the lock") else { panic!("{:#?}", seen.events()) };
    assert_eq!((&*event.target, event.level), ("wheellock::lock", Level::INFO));
    assert_eq!(event.names(), ["kind", "lock", "request"]);
    assert!(event.fields["request"].contains("deploy"), "{event:?}");
}

#[tokio::test]
async fn wait_and_hold_have_spans() {
    let seen = Recorder::default();
    let _default = listen(seen.clone());
    let server = RedisServer::start();
    let locks = manager(&server.url()).await;
    let lock = locks.lock("seen");

    // Both spans are made within the caller's span, and neither within the other. The wait ends long before the hold.
    let caller = tracing::info_span!(target: "observability", "caller");
    let number = caller.id().unwrap().into_u64();
    let guard = within(&caller, lock.acquire()).await.unwrap();
    let [wait] = &*seen.spans("acquire") else { panic!() };
    assert_eq!((&*wait.target, wait.level, wait.parent), ("wheellock::lock", Level::DEBUG, Some(number)));
    assert_eq!(wait.names(), ["kind", "lock", "outcome", "waited_us"]);
    assert_eq!((&*wait.fields["lock"], &*wait.fields["kind"]), ("seen", "lock"));
    assert!(wait.is_closed && wait.number("waited_us") > 0, "{wait:?}");
    let [hold] = &*seen.spans("hold") else { panic!() };
    assert_eq!((&*hold.target, hold.level, hold.parent), ("wheellock::lock", Level::DEBUG, Some(number)));
    assert!(!hold.is_closed && hold.names() == ["kind", "lock"], "{hold:?}");

    assert!(!lock.try_acquire().await.unwrap().is_acquired());
    assert!(!lock.try_acquire_for(Duration::from_millis(20)).await.unwrap().is_acquired());
    {
        let mut waiting = pin!(lock.acquire());
        assert!(
            eventually(PATIENCE, async || {
                let polled =
                    std::future::poll_fn(|cx| std::task::Poll::Ready(waiting.as_mut().poll(cx).is_ready()));
                !polled.await && locks.metrics().waiting == 1
            })
            .await
        );
    }
    assert!(locks.lock("").try_acquire().await.is_err(), "nothing was waited for");
    let outcome = |outcome: &str| Some(outcome.to_owned());
    assert_eq!(seen.outcomes("acquire"), ["granted", "held", "held", "dropped"].map(outcome));
    guard.release().await.unwrap();
    let [hold] = &*seen.spans("hold") else { panic!() };
    assert!(hold.is_closed && hold.fields["outcome"] == "released", "{hold:?}");

    drop(lock.acquire().await.unwrap());
    let lost = lock.acquire().await.unwrap();
    assert!(lock.force_release().await.unwrap());
    lost.lost().await;
    drop(lost);
    let other_data = locks.lock("other");
    assert_eq!(server.cli(&["SET", "other", "data"]), "OK");
    let error = other_data.acquire().await.unwrap_err();
    assert_eq!(seen.outcomes("hold")[1..], ["dropped", "lost"].map(outcome));
    let failed = seen.spans("acquire").pop().unwrap();
    assert_eq!((&*failed.fields["outcome"], &failed.fields["error"]), ("failed", &error.to_string()));
    assert!(seen.spans("acquire").iter().chain(&seen.spans("hold")).all(|span| span.is_closed));
}

/// Polls a future within a span.
async fn within<F: Future>(span: &tracing::Span, work: F) -> F::Output {
    let mut work = pin!(work);
    std::future::poll_fn(|cx| span.in_scope(|| work.as_mut().poll(cx))).await
}

#[tokio::test]
async fn spans_tell_the_kinds_apart() {
    let seen = Recorder::default();
    let _default = listen(seen.clone());
    let server = RedisServer::start();
    let locks = manager(&server.url()).await;
    drop(locks.fair_lock("k").acquire().await.unwrap());
    drop(locks.fenced_lock("f").acquire().await.unwrap());
    drop(locks.simple_lock("s").acquire().await.unwrap());
    let sides = locks.read_write_lock("rw");
    drop(sides.read().acquire().await.unwrap());
    drop(sides.write().acquire().await.unwrap());
    let semaphore = locks.semaphore("sem");
    semaphore.try_set_permits(3).await.unwrap();
    semaphore.acquire(2).await.unwrap().forget();
    let permits = locks.permit_semaphore("permits");
    permits.try_set_permits(1).await.unwrap();
    drop(permits.acquire().await.unwrap());
    let latch = locks.count_down_latch("latch");
    latch.wait().await.unwrap();
    let of = |name: &str, field: &str| -> Vec<String> {
        seen.spans(name).iter().map(|span| span.fields[field].clone()).collect()
    };
    let held = ["fair_lock", "fenced_lock", "simple_lock", "read", "write", "semaphore", "permit_semaphore"];
    assert_eq!(of("hold", "kind"), held);
    assert_eq!(of("acquire", "kind"), [&held[..], &["count_down_latch"]].concat());
    assert_eq!(seen.outcomes("acquire").pop().unwrap().unwrap(), "open");
    assert_eq!(
        of("hold", "outcome"),
        ["dropped", "dropped", "dropped", "dropped", "dropped", "left", "dropped"]
    );
}

#[tokio::test]
async fn set_has_wait_and_hold_spans() {
    let seen = Recorder::default();
    let _default = listen(seen.clone());
    let servers: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
    let locks = manager(&servers[0].url()).await;
    let both = multi_lock([locks.lock("a"), locks.lock("b")]).unwrap();
    let other = locks.lock("b").acquire().await.unwrap();
    let waiting = tokio::spawn(async move { both.acquire().await });
    assert!(eventually(PATIENCE, async || locks.metrics().waiting == 1).await);
    other.release().await.unwrap();
    let guard = waiting.await.unwrap().unwrap();
    let holds = seen.spans("hold");
    let held: Vec<_> = holds.iter().map(|hold| (&*hold.fields["lock"], hold.is_closed)).collect();
    assert_eq!(held, [("b", true), ("a", false), ("b", false)]);
    assert!(holds.iter().all(|hold| hold.parent.is_none()), "no wait is kept open by a hold");
    guard.release().await.unwrap();
    let quorum = RedLockManager::connect(servers.iter().map(RedisServer::url)).await.unwrap();
    quorum.lock("q").acquire().await.unwrap().release().await.unwrap();
    let kinds: Vec<_> = seen.spans("acquire").iter().map(|span| span.fields["kind"].clone()).collect();
    assert!(kinds.contains(&"multi_lock".to_owned()) && kinds.last().unwrap() == "redlock", "{kinds:?}");
    let last = seen.spans("hold").pop().unwrap();
    assert_eq!(
        (&*last.fields["kind"], &*last.fields["outcome"], last.is_closed),
        ("redlock", "released", true)
    );
}

#[tokio::test]
async fn health_needs_no_request() {
    let mut server = RedisServer::start();
    let locks = adjusted(&server.url(), Duration::from_secs(30), |config| {
        config.response_timeout = Duration::from_millis(900);
        config.heartbeat = Duration::from_millis(50);
    })
    .await;
    assert!(locks.is_healthy(), "{}", locks.health());
    server.pause();
    let silent = eventually(PATIENCE, async || matches!(locks.health(), Health::Silent)).await;
    server.resume();
    assert!(silent && eventually(PATIENCE, async || locks.is_healthy()).await);
    server.kill();
    let down = async || matches!(locks.health(), Health::NotConnected { last_error: Some(_), .. });
    assert!(eventually(PATIENCE, down).await);
    assert!(locks.health().to_string().starts_with("not connected to "), "{}", locks.health());
    server.restart();
    assert!(eventually(PATIENCE, async || locks.is_healthy()).await);
    assert!(locks.shutdown(PATIENCE).await.is_empty());
    assert!(matches!(locks.health(), Health::Ended) && !locks.is_healthy());
}

/// A manager is healthy while there is a primary, or while every shard has a primary. Otherwise it reports the missing primary until the
/// failover ends.
#[tokio::test]
async fn health_follows_a_failover() {
    const NO_HANG: Duration = Duration::from_secs(60);
    let mut set = SentinelSet::start(&Settings::default());
    let mut cluster = Cluster::start(3, 1, &Settings::default());
    let sentinel = LockManager::connect(&set.url()).await.unwrap();
    let shards = LockManager::connect(&cluster.url()).await.unwrap();
    assert!(eventually(NO_HANG, async || sentinel.is_healthy() && shards.is_healthy()).await);
    let primary = set.primary_index();
    set.servers_mut()[primary].kill();
    assert!(eventually(NO_HANG, async || !sentinel.is_healthy()).await);
    assert!(eventually(NO_HANG, async || sentinel.is_healthy()).await, "{}", sentinel.health());
    let victim = cluster.owner_of_key("orders");
    cluster.nodes_mut()[victim].kill();
    assert!(eventually(NO_HANG, async || !shards.is_healthy()).await, "one shard of three is enough");
    assert!(eventually(NO_HANG, async || shards.is_healthy()).await, "{}", shards.health());
}

#[tokio::test]
async fn quorum_health_follows_majority() {
    let mut servers: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
    let quorum = RedLockManager::connect(servers.iter().map(RedisServer::url)).await.unwrap();
    assert!(eventually(PATIENCE, async || quorum.managers().all(LockManager::is_healthy)).await);
    servers[0].kill();
    assert!(
        eventually(PATIENCE, async || quorum.managers().filter(|one| one.is_healthy()).count() == 2).await
    );
    assert!(quorum.is_healthy());
    servers[1].kill();
    assert!(eventually(PATIENCE, async || !quorum.is_healthy()).await);
    assert!(matches!(quorum.health(), Health::NoQuorum { healthy: 1, needed: 2, .. }), "{}", quorum.health());
}

#[test]
fn blocking_api_reports_health_and_families() {
    let server = RedisServer::start();
    let builder = blocking::LockManager::builder(&server.url()).classify(|_| "all");
    let locks = builder.connect_blocking().unwrap();
    assert!(locks.is_healthy() && locks.health().is_healthy());
    locks.lock("n").acquire().unwrap().release().unwrap();
    let [(label, metrics)] = &*locks.metrics_by_family() else { panic!() };
    assert_eq!((*label, metrics.acquires), ("all", 1));
    assert!(locks.shutdown(PATIENCE).is_empty());
    assert!(!locks.is_healthy());
}

#[tokio::test]
async fn families_count_for_themselves() {
    let server = RedisServer::start();
    let builder = LockManager::builder(&server.url()).classify(|name| match name.split_once(':') {
        Some(("orders", _)) => "orders",
        Some(("nightly", _)) => "nightly",
        _ => "rest",
    });
    let locks = builder.connect().await.unwrap();
    assert_eq!(locks.metrics_by_family().len(), 0);
    for number in 0..3 {
        drop(locks.lock(&format!("orders:{number}")).acquire().await.unwrap());
    }
    let nightly = locks.fair_lock("nightly:1").acquire().await.unwrap();
    let waiting = tokio::spawn({
        let lock = locks.fair_lock("nightly:1");
        async move { lock.acquire().await }
    });
    let family =
        |label: &str| locks.metrics_by_family().into_iter().find(|(known, _)| *known == label).unwrap().1;
    assert!(eventually(PATIENCE, async || family("nightly").waiting == 1).await);
    let (orders, now) = (family("orders"), family("nightly"));
    assert_eq!((orders.acquires, orders.held, orders.hold.count(), orders.waiting), (3, 0, 3, 0));
    assert_eq!((now.acquires, now.held, now.hold.count()), (1, 1, 0));
    nightly.release().await.unwrap();
    drop(waiting.await.unwrap().unwrap());
    let (all, now) = (locks.metrics(), family("nightly"));
    assert_eq!((all.acquires, now.acquires, now.waits, now.wait.count()), (5, 2, 1, 1));
    assert_eq!(all.hold.sum(), orders.hold.sum() + now.hold.sum());
    assert_eq!(locks.metrics_by_family().len(), 2, "nobody has asked for the rest");
}

/// Recorder of the `metrics` crate. It keeps the sums of counters, the last values of gauges and every observation.
#[derive(Clone, Default)]
struct Books(Arc<Mutex<BTreeMap<String, Vec<f64>>>>, Arc<Mutex<BTreeMap<String, Unit>>>);

/// One series of `Books`.
struct Series(Books, String);

impl Series {
    fn write(&self, entry: impl FnOnce(&mut Vec<f64>)) {
        entry(self.0.0.lock().unwrap().entry(self.1.clone()).or_default());
    }
}

impl CounterFn for Series {
    fn increment(&self, value: u64) {
        self.write(|entries| *entries = vec![entries.iter().sum::<f64>() + value as f64]);
    }
    fn absolute(&self, _: u64) {
        unreachable!("several managers of one name count together");
    }
}

impl GaugeFn for Series {
    fn increment(&self, _: f64) {
        unreachable!();
    }
    fn decrement(&self, _: f64) {
        unreachable!();
    }
    fn set(&self, value: f64) {
        self.write(|entries| *entries = vec![value]);
    }
}

impl HistogramFn for Series {
    fn record(&self, value: f64) {
        self.write(|entries| entries.push(value));
    }
}

impl Books {
    fn series(&self, key: &Key) -> Arc<Series> {
        let labels: Vec<_> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        let series = Series(self.clone(), format!("{}{{{}}}", key.name(), labels.join(",")));
        series.write(|_| {});
        Arc::new(series)
    }

    fn describe(&self, name: &KeyName, unit: Option<Unit>) {
        self.1.lock().unwrap().insert(name.as_str().to_owned(), unit.expect("every number has a unit"));
    }

    fn of(&self, series: &str) -> Vec<f64> {
        self.0
            .lock()
            .unwrap()
            .get(series)
            .unwrap_or_else(|| panic!("no {series} in {:#?}", self.names()))
            .clone()
    }

    /// Returns the names of all series, without labels.
    fn names(&self) -> BTreeSet<String> {
        let books = self.0.lock().unwrap();
        books.keys().map(|series| series.split('{').next().unwrap().to_owned()).collect()
    }
}

impl metrics::Recorder for Books {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, _: SharedString) {
        self.describe(&name, unit);
    }
    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, _: SharedString) {
        self.describe(&name, unit);
    }
    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, _: SharedString) {
        self.describe(&name, unit);
    }
    fn register_counter(&self, key: &Key, _: &metrics::Metadata<'_>) -> metrics::Counter {
        metrics::Counter::from_arc(self.series(key))
    }
    fn register_gauge(&self, key: &Key, _: &metrics::Metadata<'_>) -> metrics::Gauge {
        metrics::Gauge::from_arc(self.series(key))
    }
    fn register_histogram(&self, key: &Key, _: &metrics::Metadata<'_>) -> metrics::Histogram {
        metrics::Histogram::from_arc(self.series(key))
    }
}

#[tokio::test]
async fn reports_send_new_values_by_family() {
    let books = Books::default();
    let server = RedisServer::start();
    let builder = LockManager::builder(&server.url()).metrics_name("m");
    let locks =
        builder.classify(|name| if name == "a" { "first" } else { "second" }).connect().await.unwrap();
    let report = || metrics::with_local_recorder(&books, || locks.report_metrics());
    for _ in 0..2 {
        drop(locks.lock("a").acquire().await.unwrap());
    }
    let guard = locks.lock("b").acquire().await.unwrap();
    report();
    let first = |name: &str| books.of(&format!("{name}{{manager=m,family=first}}"));
    let second = |name: &str| books.of(&format!("{name}{{manager=m,family=second}}"));
    assert_eq!(
        (first("wheellock_acquires_total"), second("wheellock_acquires_total")),
        (vec![2.0], vec![1.0])
    );
    assert_eq!((first("wheellock_held"), second("wheellock_held")), (vec![0.0], vec![1.0]));
    let held = locks.metrics_by_family()[0].1.hold;
    let (told, sum) = (first("wheellock_hold_seconds"), held.sum().as_secs_f64());
    assert_eq!((told.len(), second("wheellock_hold_seconds").len()), (2, 0));
    assert!((told.iter().sum::<f64>() - sum).abs() <= sum / 8.0, "{told:?} of {held:?}");

    // A report contains only new values.
    report();
    guard.release().await.unwrap();
    report();
    assert_eq!((first("wheellock_acquires_total"), first("wheellock_hold_seconds")), (vec![2.0], told));
    assert_eq!((second("wheellock_held"), second("wheellock_hold_seconds").len()), (vec![0.0], 1));
    assert_eq!(books.of("wheellock_lost_total{manager=m,family=first,reason=expired}"), [0.0]);
    let manager = |name: &str| books.of(&format!("{name}{{manager=m}}"));
    assert_eq!(
        (manager("wheellock_healthy"), manager("wheellock_connections_total")),
        (vec![1.0], vec![1.0])
    );
    assert_eq!(manager("wheellock_call_seconds").len() as u64, locks.client().stats().latency.count());

    // Each number has a unit and is listed in the page. The page lists no other number.
    let described: BTreeSet<_> = books.1.lock().unwrap().keys().cloned().collect();
    assert_eq!(described, books.names());
    let page = include_str!("../../../docs/observability.md");
    let words = page.split(|c: char| !(c.is_alphanumeric() || c == '_'));
    let listed: BTreeSet<_> =
        words.filter(|word| word.starts_with("wheellock_")).map(str::to_owned).collect();
    assert_eq!(listed, described, "docs/observability.md lists every number");
}

#[tokio::test]
async fn unclassified_metrics_use_manager_id() {
    let books = Books::default();
    let server = RedisServer::start();
    let locks = LockManager::connect(&server.url()).await.unwrap();
    drop(locks.lock("a").acquire().await.unwrap());
    metrics::with_local_recorder(&books, || locks.report_metrics());
    assert_eq!(books.of(&format!("wheellock_acquires_total{{manager={}}}", locks.id())), [1.0]);
}

/// A manager that pushes numbers reports them from time to time. It reports the last numbers when it ends.
#[tokio::test]
async fn periodic_reports_run_until_shutdown() {
    let books = Books::default();
    // The recorder belongs to this thread, on which the manager's tasks run, too.
    let _default = metrics::set_default_local_recorder(&books);
    let server = RedisServer::start();
    let builder = LockManager::builder(&server.url()).metrics_name("m");
    let locks = builder.report_metrics_every(Duration::from_millis(10)).connect().await.unwrap();
    let guard = locks.lock("a").acquire().await.unwrap();
    let told = |name: &str| books.0.lock().unwrap().get(&format!("{name}{{manager=m}}")).cloned();
    assert!(eventually(PATIENCE, async || told("wheellock_held") == Some(vec![1.0])).await);
    assert_eq!(told("wheellock_healthy"), Some(vec![1.0]));
    drop(guard);
    assert!(locks.shutdown(PATIENCE).await.is_empty());
    assert_eq!((told("wheellock_held"), told("wheellock_healthy")), (Some(vec![0.0]), Some(vec![0.0])));
}
