//! Processes that stop for a while, and processes that fork. The client does not blame a server for the pause of its own process.

use std::path::Path;
use std::pin::pin;
use std::process::Command;
use std::task::Poll;
use std::time::{Duration, Instant};

use wheellock::{Attempt, LockManager};
use wheellock_client::{CallOptions, Client, Command as Call, Config, Error, ErrorKind, Timer};
use wheellock_tests::RedisServer;
use wheellock_tests::certificates::{Authority, leaf};
use wheellock_tests::pauses::{Pausing, Plan, Tally, run};

/// Replies that arrived during a pause are delivered, over TCP.
#[test]
fn paused_process_keeps_tcp_connection() {
    all_keep(&RedisServer::builder().tcp().start(), None, SHORT);
}

/// Replies that arrived during a pause are delivered, over a unix socket.
#[test]
fn paused_process_keeps_unix_connection() {
    all_keep(&RedisServer::start(), None, SHORT);
}

/// Replies that arrived during a pause are delivered, through TLS.
#[test]
fn paused_process_keeps_tls_connection() {
    let authority = Authority::new("ours");
    let server = RedisServer::builder().tls(&authority.issue(&leaf(&["127.0.0.1"])), authority.pem());
    let server = server.arg("tls-auth-clients", "no").start();
    all_keep(&server, Some(&server.trusted_file()), SHORT);
}

/// A pause that is longer than the default response timeout.
#[test]
fn long_pause_keeps_connection() {
    all_keep(&RedisServer::start(), None, LONG);
}

/// Runs every kind of program at the same time. No program may lose a call or its connection.
fn all_keep(server: &RedisServer, trusted: Option<&Path>, plan: Plan) {
    let tallies: Vec<_> = std::thread::scope(|threads| {
        let run = |kind| {
            let program = Command::new(env!("CARGO_BIN_EXE_pausing_program"));
            threads.spawn(move || (kind, run(program, kind, plan, &server.url(), trusted).unwrap()))
        };
        let programs: Vec<_> = Pausing::all().map(run).collect();
        programs.into_iter().map(|program| program.join().unwrap()).collect()
    });
    let calls = 20 * plan.pauses as usize;
    for (kind, tally) in tallies {
        assert_eq!(tally, Tally { calls, errors: Vec::new(), connections: 1 }, "{kind:?}");
    }
}

/// The deadline of these calls passes while the driver is between two turns. The driver has collected the calls, and writes them after the
/// pause.
#[test]
fn pause_between_turns_loses_no_call() {
    let server = RedisServer::builder().tcp().start();
    std::thread::scope(|threads| {
        for has_task_timer in [false, true] {
            for blocked_from in 0..8 {
                let server = &server;
                threads.spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                    let mut config: Config = server.url().parse().unwrap();
                    config.response_timeout = Duration::from_secs(1);
                    let ended = runtime.block_on(async move {
                        if has_task_timer {
                            config.timer = Timer::tokio(Duration::from_millis(1));
                        }
                        tokio::spawn(calls_stand_still(config, blocked_from)).await.unwrap()
                    });
                    let start = format!("{has_task_timer}, after {blocked_from} turns");
                    ended.unwrap_or_else(|error| panic!("{start}: {error}"));
                });
            }
        }
    });
}

async fn calls_stand_still(config: Config, blocked_from: u32) -> Result<(), Error> {
    let client = Client::connect(config).await?;
    let call = |call: Call<'static>| {
        let client = client.clone();
        tokio::spawn(async move { client.call(&call).await })
    };
    // This call holds the replies back until the process stops.
    let mut calls = vec![call(Call::new("WAIT").arg("1").arg("100"))];
    while client.stats().calls == 0 {
        tokio::task::yield_now().await;
    }
    calls.extend((0..9).map(|number| call(Call::new("ECHO").arg(number))));
    for _ in 0..blocked_from {
        let_others_run().await;
    }
    std::thread::sleep(Duration::from_millis(1_500));
    for call in calls {
        call.await.unwrap()?;
    }
    Ok(())
}

/// Gives one turn to each task that is ready. `yield_now` gives as many turns as there is work.
async fn let_others_run() {
    let mut is_last = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut is_last, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// The process stops between the first poll of a call and the driver's next turn. The driver's timer is due much later.
#[test]
fn pause_before_turn_loses_no_call() {
    let server = RedisServer::builder().tcp().start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut config: Config = server.url().parse().unwrap();
        (config.response_timeout, config.heartbeat) = (Duration::from_secs(1), Duration::from_secs(20));
        let client = Client::connect(config).await.unwrap();
        for turn in 0..3 {
            let by = client.config().timer.now() + Duration::from_millis(300);
            let echo = Call::new("ECHO").arg(turn);
            let mut call = pin!(client.call_with(&echo, CallOptions::by(by)));
            let is_made = std::future::poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx).is_pending()));
            assert!(is_made.await);
            std::thread::sleep(Duration::from_millis(700));
            call.await.unwrap_or_else(|error| panic!("pause {turn}: {error}"));
        }
    });
}

/// A pause that is too short for a second chance. The deadline passes during the pause, and the reply lies in the socket.
#[test]
fn short_pause_delivers_answer() {
    let server = RedisServer::builder().tcp().start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::connect(server.url().parse().unwrap()).await.unwrap();
        for turn in 0..5 {
            let by = client.config().timer.now() + Duration::from_millis(150);
            let caller = client.clone();
            let before = client.stats().calls;
            let call =
                tokio::spawn(async move { caller.call_with(&Call::new("PING"), CallOptions::by(by)).await });
            while client.stats().calls == before || client.stats().queued_bytes > 0 {
                tokio::task::yield_now().await;
            }
            std::thread::sleep(Duration::from_millis(300));
            call.await.unwrap().unwrap_or_else(|error| panic!("pause {turn}: {error}"));
        }
    });
}

/// A program that blocks its thread while it connects.
#[test]
fn slow_start_connects() {
    let server = RedisServer::builder().tcp().start();
    std::thread::scope(|threads| {
        for has_task_timer in [false, true] {
            for blocked_from in 0..6 {
                let server = &server;
                threads.spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                    let connected = runtime.block_on(start_slowly(server, has_task_timer, blocked_from));
                    let start = format!("{has_task_timer}, after {blocked_from} turns");
                    connected.unwrap_or_else(|error| panic!("{start}: {error}"));
                });
            }
        }
    });
}

async fn start_slowly(
    server: &RedisServer,
    has_task_timer: bool,
    blocked_from: u32,
) -> Result<Client, Error> {
    let mut config: Config = server.url().parse().unwrap();
    config.connect_timeout = Duration::from_secs(1);
    if has_task_timer {
        config.timer = Timer::tokio(Duration::from_millis(1));
    }
    let client = tokio::spawn(Client::connect(config));
    for _ in 0..blocked_from {
        tokio::task::yield_now().await;
    }
    std::thread::sleep(Duration::from_secs(2));
    client.await.unwrap()
}

/// Waiters of a process that stopped learn the state of the lock. They get no error about the server.
#[test]
fn paused_waiters_hear_of_lock() {
    let server = RedisServer::builder().tcp().start();
    std::thread::scope(|threads| {
        for limit in [None, Some(Duration::from_millis(900)), Some(Duration::from_millis(2_200))] {
            for blocked_from in [0, 1, 3, 40, 200] {
                let server = &server;
                threads.spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                    runtime.block_on(waiters_stand_still(server, limit, Duration::from_millis(blocked_from)));
                });
            }
        }
    });
}

async fn waiters_stand_still(server: &RedisServer, limit: Option<Duration>, before: Duration) {
    let manager = || {
        let builder = LockManager::builder(&server.url());
        builder.configure(|config| config.response_timeout = Duration::from_millis(500)).connect()
    };
    let (other, locks) = (manager().await.unwrap(), manager().await.unwrap());
    let name = format!("paused:{limit:?}:{before:?}");
    let held = other.lock(&name).acquire().await.unwrap();
    let waits = |_| {
        let lock = locks.lock(&name);
        tokio::spawn(async move {
            match limit {
                None => lock.acquire().await.map(Attempt::Acquired),
                Some(limit) => lock.try_acquire_for(limit).await,
            }
        })
    };
    let waiters: Vec<_> = (0..5).map(waits).collect();
    tokio::time::sleep(before).await;
    std::thread::sleep(Duration::from_secs(2));
    tokio::time::sleep(Duration::from_millis(20)).await;
    held.release().await.unwrap();
    for waiter in waiters {
        let ended = waiter.await.unwrap();
        if let Attempt::Acquired(guard) =
            ended.unwrap_or_else(|error| panic!("{limit:?}, {before:?}: {error}"))
        {
            guard.release().await.unwrap();
        }
    }
}

/// The timer's runtime has ended, and the client continues in a second runtime.
#[test]
fn client_outlives_runtime_of_timer() {
    let server = RedisServer::start();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let timer = runtime().block_on(async { Timer::tokio(Duration::from_millis(1)) });
    runtime().block_on(deadlines_are_kept(&server, timer));
}

/// Checks that a deadline ends its call in time, and that a stopped server is noticed.
async fn deadlines_are_kept(server: &RedisServer, timer: Timer) {
    let mut config: Config = server.url().parse().unwrap();
    (config.timer, config.response_timeout) = (timer, Duration::from_millis(600));
    let client = Client::connect(config).await.unwrap();
    // The reply to the first call must not end the watch over the second call.
    let (began, by) = (Instant::now(), client.config().timer.now() + Duration::from_millis(200));
    let [first, second] = ["50", "400"].map(|hold| Call::new("WAIT").arg("1").arg(hold));
    let (first, second) = tokio::join!(client.call(&first), client.call_with(&second, CallOptions::by(by)));
    first.unwrap();
    assert_eq!(second.unwrap_err().kind(), ErrorKind::Timeout);
    assert!(began.elapsed() < Duration::from_millis(400), "{:?}", began.elapsed());
    client.call(&Call::new("PING")).await.unwrap();
    server.pause();
    let began = Instant::now();
    let by = client.config().timer.now() + Duration::from_millis(150);
    let late = client.call_with(&Call::new("PING"), CallOptions::by(by)).await;
    server.resume();
    assert_eq!(late.unwrap_err().kind(), ErrorKind::Timeout);
    assert!(began.elapsed() < Duration::from_millis(500), "{:?}", began.elapsed());
}

/// The system refuses every thread. Deadlines hold, locks are renewed, and a finding reports the refusal.
#[test]
#[cfg(target_os = "linux")]
fn refused_timer_thread_is_finding() {
    let server = RedisServer::builder().tcp().start();
    let program = env!("CARGO_BIN_EXE_crowded_program");
    // The limit counts the processes of a user, but not the processes of root.
    let as_nobody = ["setpriv", "--reuid=65534", "--clear-groups", "prlimit", "--nproc=1", program];
    let words = if rustix::process::geteuid().is_root() { &as_nobody[..] } else { &as_nobody[3..] };
    let ended = Command::new(words[0]).args(&words[1..]).arg(server.url()).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stdout);
    assert_eq!(said, "fine\n", "{}", String::from_utf8_lossy(&ended.stderr));
}

/// The child of a fork has its own timers, and its locks are renewed.
#[test]
fn forked_child_renews_its_locks() {
    let server = RedisServer::start();
    // `timeout` kills the group, or a child that hangs would keep the pipe open for ever.
    let output = Command::new("timeout")
        .args(["--signal=KILL", "20", env!("CARGO_BIN_EXE_forking_program"), &server.url()])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(said, "child: Ok(())\nparent: Ok(())\n", "{}", output.status);
}

/// A client that is closed with an unanswered call ends within its grace, whatever its heartbeat is.
#[test]
fn close_ends_before_heartbeat() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut config: Config = server.url().parse().unwrap();
        (config.heartbeat, config.response_timeout) = (Duration::from_secs(8), Duration::from_secs(20));
        let client = Client::connect(config).await.unwrap();
        server.pause();
        let caller = client.clone();
        let call = tokio::spawn(async move { caller.call(&Call::new("PING")).await });
        tokio::time::sleep(Duration::from_millis(50)).await;
        let began = Instant::now();
        client.close().await;
        server.resume();
        assert_eq!(call.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
        let took = began.elapsed();
        assert!((900..1_400).contains(&took.as_millis()), "{took:?}");
    });
}

/// Pauses that take little time, for a client with a short response timeout.
const SHORT: Plan =
    Plan { pauses: 4, length: Duration::from_millis(800), response_timeout: Duration::from_millis(500) };
const LONG: Plan =
    Plan { pauses: 1, length: Duration::from_millis(3_500), response_timeout: Duration::from_secs(3) };
