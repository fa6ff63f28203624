//! Failover under Sentinel. These are rows T1 to T5 and T7 of docs/reliability/faults.md. The tests kill and stop real servers and Sentinels. They
//! also use Sentinels that send whatever reply a test wants.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;
use wheellock::{Attempt, Guard, LockManager, LostReason};
use wheellock_client::{Client, Command, Config, ErrorKind};
use wheellock_tests::fault::{FakeServer, Session};
use wheellock_tests::topology::{Replicas, SERVICE, SentinelSet, Settings};
use wheellock_tests::worker::connect;
use wheellock_tests::{RedisServer, eventually};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t1_killed_primary_strands_no_waiter() {
    let mut set = SentinelSet::start(&Settings::default());
    // On a busy machine, Sentinels need longer to promote a replica than a waiter's request lasts by default.
    let patient = |config: &mut Config| config.response_timeout = NO_HANG;
    let locks = LockManager::builder(&set.url()).configure(patient).watchdog_lease(LEASE);
    let locks = locks.connect().await.unwrap();
    let load = Load::start(&locks, 16);
    assert!(load.goes_on().await, "no service to begin with");
    let waits_long = locks.lock("held");
    let guard = waits_long.acquire().await.unwrap();
    let waiter = tokio::spawn({
        let lock = waits_long.clone();
        async move { lock.acquire().await }
    });

    let old = set.primary_index();
    set.servers_mut()[old].kill();
    // Tasks hand their lock over for a while without any server.
    let killed = set.servers()[old].addr().to_string();
    assert!(eventually(NO_HANG, async || *locks.client().server_address() != *killed).await);
    assert!(load.goes_on().await, "no service after the failover");
    // The waiter is subscribed on the new primary, whether or not the lock that it waits for still exists.
    drop(guard);
    let woken =
        timeout(LEASE / 3, waiter).await.expect("the waiter is woken, and need not wait for a lease to end");
    woken.unwrap().unwrap().release().await.unwrap();
    load.end().await;
}

#[tokio::test]
async fn t1_manual_failover_fails_no_call() {
    let set = SentinelSet::start(&Settings::default());
    let locks = connect(&set.url(), LEASE).await.unwrap();
    let lock = locks.lock("orders");
    let guard = lock.acquire().await.unwrap();
    assert_eq!(
        locks.client().call(&Command::new("WAIT").arg("2").arg("1000")).await.unwrap().as_i64(),
        Some(2)
    );
    let before = locks.client().server_address();
    let set = tokio::task::spawn_blocking(move || {
        set.failover();
        set
    });
    let mut turns = 0;
    while locks.client().server_address() == before || turns == 0 {
        // A call may be under way when the primary goes. The lock layer repeats that call.
        drop(locks.lock("others").acquire().await.unwrap());
        turns += 1;
    }
    assert!(guard.is_valid() && lock.is_locked().await.unwrap(), "the replica had the lock");
    guard.release().await.unwrap();
    drop(set.await.unwrap());
}

#[tokio::test]
async fn t2_loss_by_failover_is_reported_soon() {
    let mut set = SentinelSet::start(&Settings::default());
    let locks = connect(&set.url(), LEASE).await.unwrap();
    let old = set.primary_index();
    let replicas: Vec<usize> = (0..3).filter(|index| *index != old).collect();
    // No write reaches the replicas from here on. They would still read the bytes in their sockets once they are resumed, so their
    // connections are cut.
    replicas.iter().for_each(|index| set.servers()[*index].pause());
    let _cut = set.servers()[old].cli(&["CLIENT", "KILL", "TYPE", "replica"]);
    let (renewed, fixed) = (locks.lock("renewed"), locks.lock("fixed").with_lease(10 * LEASE));
    let (renewed, fixed) = (renewed.acquire().await.unwrap(), fixed.acquire().await.unwrap());
    set.servers_mut()[old].kill();
    replicas.iter().for_each(|index| set.servers()[*index].resume());

    let (one, other) = timeout(NO_HANG, async { tokio::join!(renewed.lost(), fixed.lost()) }).await.unwrap();
    assert_eq!((one, other), (LostReason::NotOwner, LostReason::NotOwner));
    let next = timeout(NO_HANG, locks.lock("renewed").acquire()).await.unwrap().unwrap();
    assert!(next.is_valid());
}

#[tokio::test]
async fn t2_replicated_lock_survives_failover() {
    let mut set = SentinelSet::start(&Settings::default());
    let locks = connect(&set.url(), LEASE).await.unwrap();
    let guard = locks.lock("orders").acquire().await.unwrap();
    let old = set.primary_index();
    // Both replicas confirm that they have the lock.
    assert_eq!(
        locks.client().call(&Command::new("WAIT").arg("2").arg("1000")).await.unwrap().as_i64(),
        Some(2)
    );
    set.servers_mut()[old].kill();
    let connections = locks.client().stats().connections;
    assert!(eventually(NO_HANG, async || locks.client().stats().connections > connections).await);
    let before = guard.valid_until();
    assert!(eventually(NO_HANG, async || guard.valid_until() > before).await, "renewed there");
    assert!(guard.is_valid());
}

#[tokio::test]
async fn t3_resumed_old_primary_is_not_used() {
    let set = SentinelSet::start(&Settings::default());
    let (here, there) =
        (connect(&set.url(), LEASE).await.unwrap(), connect(&set.url(), LEASE).await.unwrap());
    let old = set.primary_index();
    let stopped = set.servers()[old].addr().to_string();
    let guard = here.lock("split").acquire().await.unwrap();
    assert_eq!(
        here.client().call(&Command::new("WAIT").arg("2").arg("1000")).await.unwrap().as_i64(),
        Some(2)
    );
    set.servers()[old].pause();
    let moved = async |locks: &LockManager| {
        eventually(NO_HANG, async || {
            locks.client().is_ready() && *locks.client().server_address() != *stopped
        })
        .await
    };
    assert!(moved(&here).await && moved(&there).await, "stopped, the old one says nothing; the Sentinels do");
    set.servers()[old].resume();
    // The old primary still takes itself for the primary. Every later request goes to the new primary.
    for _ in 0..200 {
        assert_ne!(*here.client().server_address(), *stopped);
        if guard.is_valid() {
            assert!(!there.lock("split").try_acquire().await.unwrap().is_acquired(), "two hold the lock");
        }
    }
    assert!(guard.is_valid(), "the replica had the lock before the pause");
}

#[tokio::test]
async fn t4_replica_named_primary_is_not_used() {
    let pair = Replicas::start(1, &Settings::default());
    let (primary, replica) = (pair.primary().addr(), pair.replicas().next().unwrap().addr());
    let sentinel = FakeSentinel::start(replica);
    let client = Client::lazy(sentinel.config());
    let replicas_word = |client: &Client| format!("{:?}", client.state()).contains("not a primary");
    assert!(eventually(NO_HANG, async || replicas_word(&client)).await, "{:?}", client.state());
    assert!(!client.is_ready());
    sentinel.names(primary, 2);
    assert!(eventually(NO_HANG, async || client.is_ready()).await);
    assert_eq!(*client.server_address(), *primary.to_string());
    // A Sentinel that has missed the last failover changes nothing.
    let late = FakeSentinel::start(replica);
    let mut config = sentinel.config();
    let wheellock_client::Servers::Sentinel(sentinels) = &mut config.servers else { panic!() };
    let wheellock_client::Servers::Sentinel(others) = late.config().servers else { panic!() };
    sentinels.addresses.splice(0..0, others.addresses);
    let client = Client::connect(config).await.unwrap();
    assert_eq!(*client.server_address(), *primary.to_string());
    assert_eq!(client.stats().connections, 1, "it did not even try the other");
}

#[tokio::test]
async fn t5_known_primary_is_kept_without_sentinels() {
    let mut set = SentinelSet::start(&Settings::default());
    let locks = connect(&set.url(), LEASE).await.unwrap();
    let asked = set.sentinels().len();
    for sentinel in set.sentinels_mut() {
        sentinel.kill();
    }
    for _ in 0..20 {
        locks.lock("orders").acquire().await.unwrap().release().await.unwrap();
    }
    // The client replaces a broken connection with a connection to the last known primary.
    let connections = locks.client().stats().connections;
    let _killed = set.servers()[0].cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    assert!(eventually(NO_HANG, async || locks.client().stats().connections > connections).await);
    locks.lock("orders").acquire().await.unwrap().release().await.unwrap();

    // A client that starts now learns that the Sentinels are missing.
    let error = LockManager::builder(&set.url())
        .configure(|config| config.connect_timeout = Duration::from_millis(300))
        .connect()
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("no Sentinel names a primary") && error.matches("127.0.0.1:").count() >= asked,
        "{error}"
    );
}

#[tokio::test]
async fn t5_sentinels_use_separate_credentials() {
    let settings = Settings::default().password("servers").sentinel_password("watchers");
    let set = SentinelSet::start(&settings);
    let refused: Config = set.url().parse().unwrap();
    let mut impatient = refused.clone();
    impatient.connect_timeout = Duration::from_millis(300);
    let error = Client::connect(impatient).await.unwrap_err();
    assert!(error.detail().contains("NOAUTH") || error.detail().contains("without a password"), "{error}");
    assert!(!error.to_string().contains("servers"), "the servers' password is not shown");
    let url = format!("{}?sentinel_password=watchers", set.url());
    let client = Client::connect(url.parse().unwrap()).await.unwrap();
    assert_eq!(*client.server_address(), *set.primary().addr().to_string());
    let wrong = format!("{}?sentinel_password=servers", set.url());
    let config: Config = wrong.parse().unwrap();
    let error = Client::connect(config).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Auth, "{error}");
}

/// The client distinguishes an ordinary server in a Sentinel's place from a server that refuses the credentials, at once.
#[tokio::test]
async fn ordinary_server_as_sentinel_is_unsupported() {
    let server = RedisServer::builder().tcp().start();
    let url = format!("{}/{SERVICE}", server.tcp_url().replace("redis://", "redis+sentinel://"));
    let error = Client::connect(url.parse().unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.detail().contains("it is not a Sentinel"), "{error}");
}

#[tokio::test]
async fn t7_unannounced_switch_is_found_by_polling() {
    let (old, new) = (RedisServer::builder().tcp().start(), RedisServer::builder().tcp().start());
    let sentinel = FakeSentinel::start(old.addr());
    let locks = LockManager::builder("redis://ignored")
        .configure(|config| *config = sentinel.config())
        .watchdog_lease(LEASE)
        .connect()
        .await
        .unwrap();
    let guard = locks.lock("orders").acquire().await.unwrap();
    sentinel.names(new.addr(), 2);
    let address = new.addr().to_string();
    assert!(eventually(NO_HANG, async || *locks.client().server_address() == *address).await);
    assert_eq!(timeout(NO_HANG, guard.lost()).await.unwrap(), LostReason::NotOwner, "it is not held there");
}

#[tokio::test]
async fn primary_is_found_among_replicas() {
    let mut set = Replicas::start(2, &Settings::default());
    let locks = connect(&set.url(), LEASE).await.unwrap();
    let first = set.primary().addr().to_string();
    assert_eq!(*locks.client().server_address(), *first);
    let guard = locks.lock("orders").acquire().await.unwrap();
    assert_eq!(
        locks.client().call(&Command::new("WAIT").arg("2").arg("1000")).await.unwrap().as_i64(),
        Some(2)
    );
    set.promote(1);
    let second = set.primary().addr().to_string();
    assert_ne!(first, second);
    // The manager learns of the new primary by the next refused write.
    let moved = eventually(NO_HANG, async || {
        let _refused = locks.lock("others").try_acquire().await;
        *locks.client().server_address() == *second
    });
    assert!(moved.await, "still at {}", locks.client().server_address());
    assert!(locks.lock("orders").is_locked().await.unwrap() && guard.is_valid());
    guard.release().await.unwrap();
}

/// No write is refused, so the client learns of the demotion only by its own requests.
#[tokio::test]
async fn reader_leaves_demoted_server() {
    let mut set = Replicas::start(2, &Settings::default());
    let mut config: Config = set.url().parse().unwrap();
    config.heartbeat = Duration::from_millis(50);
    let client = Client::connect(config).await.unwrap();
    let first = client.server_address();
    set.promote(1);
    let second = set.primary().addr().to_string();
    assert_ne!(*first, *second);
    let moved = eventually(NO_HANG, async || {
        let _unreachable = client.call(&Command::new("GET").arg("k")).await;
        *client.server_address() == *second
    });
    assert!(moved.await, "still at {}", client.server_address());
}

/// A Sentinel that names the primary that a test wants, never announces anything, and knows no replicas.
struct FakeSentinel {
    server: FakeServer,
    named: Arc<Mutex<(SocketAddr, u64)>>,
}

impl FakeSentinel {
    fn start(primary: SocketAddr) -> Self {
        let named = Arc::new(Mutex::new((primary, 1)));
        let answers = Arc::clone(&named);
        let server = FakeServer::start(move |_, session| Self::serve(session, &answers));
        Self { server, named }
    }

    fn names(&self, primary: SocketAddr, epoch: u64) {
        *self.named.lock().unwrap() = (primary, epoch);
    }

    fn config(&self) -> Config {
        format!("redis+sentinel://{}/{SERVICE}", self.server.addr()).parse().unwrap()
    }

    fn serve(session: &mut Session, named: &Mutex<(SocketAddr, u64)>) -> io::Result<()> {
        loop {
            let command = session.command()?;
            let words: Vec<_> = command.iter().map(|word| String::from_utf8_lossy(word)).collect();
            match &*words.iter().map(|word| &**word).collect::<Vec<_>>() {
                ["HELLO", ..] => session.send("%2\r\n+proto\r\n:3\r\n+mode\r\n+sentinel\r\n")?,
                ["SENTINEL", "MASTER", _] => {
                    let (addr, epoch) = *named.lock().unwrap();
                    let fields = [
                        ("name", SERVICE.to_owned()),
                        ("ip", addr.ip().to_string()),
                        ("port", addr.port().to_string()),
                        ("flags", "master".to_owned()),
                        ("config-epoch", epoch.to_string()),
                    ];
                    let fields = fields.map(|(name, value)| format!("+{name}\r\n+{value}\r\n")).concat();
                    session.send(format!("%5\r\n{fields}"))?;
                }
                ["SENTINEL", "REPLICAS", _] => session.send("*0\r\n")?,
                _ => session.reply(&command)?,
            }
        }
    }
}

/// Tasks that acquire and release locks until they are told to end.
struct Load {
    served: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    tasks: JoinSet<()>,
}

impl Load {
    fn start(locks: &LockManager, tasks: usize) -> Self {
        let (served, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let mut set = JoinSet::new();
        for task in 0..tasks {
            let (locks, served, stop) = (locks.clone(), Arc::clone(&served), Arc::clone(&stop));
            set.spawn(async move {
                while !stop.load(SeqCst) {
                    let lock = locks.lock(&format!("load:{}", task % 4));
                    let guard: Result<Attempt<Guard>, _> =
                        timeout(NO_HANG, lock.try_acquire_for(Duration::from_secs(2)))
                            .await
                            .expect("no call hangs");
                    if let Ok(Attempt::Acquired(guard)) = guard
                        && timeout(NO_HANG, guard.release()).await.expect("no release hangs").is_ok()
                    {
                        served.fetch_add(1, SeqCst);
                    }
                }
            });
        }
        Self { served, stop, tasks: set }
    }

    async fn goes_on(&self) -> bool {
        let before = self.served.load(SeqCst);
        eventually(NO_HANG, async || self.served.load(SeqCst) >= before + 100).await
    }

    async fn end(mut self) {
        self.stop.store(true, SeqCst);
        while let Some(ended) = timeout(NO_HANG, self.tasks.join_next()).await.expect("a task hangs") {
            ended.expect("a task panicked");
        }
    }
}

/// The watchdog renews this lease every 5 s. An earlier event did not wait for the renewal.
const LEASE: Duration = Duration::from_secs(15);
/// A failover takes about two seconds here, and several times as long on a busy machine.
const NO_HANG: Duration = Duration::from_secs(30);
