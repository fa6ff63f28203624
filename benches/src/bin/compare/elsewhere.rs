//! Libraries in other languages, each in a process of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use tokio::time::sleep;
use wheellock_tests::peers::{self, Library, Peer, Program};
use wheellock_tests::{RedisServer, interop};

use super::{LATE, LEASE, NAME, Row, STEP, TRIAL, Told, left};

/// Prints the rows of the libraries that are fetched here.
pub(crate) async fn rows(wants: &impl Fn(&str) -> bool) -> Result<()> {
    for library in peers::present() {
        if wants(library.name) && !matches!(library.program, Program::Itself(_)) {
            row(library).await?.print();
        }
    }
    if wants("Redisson")
        && let Some(java) = interop::start()
    {
        redisson(&java).await?.print();
    }
    Ok(())
}

/// A library that extends a lease by itself, and tells its holder of a loss.
fn extends_itself(library: &Library) -> bool {
    library.name == "node-redlock 5"
}

async fn row(library: &'static Library) -> Result<Row> {
    let server = RedisServer::builder().tcp().start();
    let mut next = Peer::start(library, &[server.url()]).await;
    let mut doomed = hold(library, &server).await?;
    let died = Instant::now();
    doomed.kill();
    ensure!(next.acquires(NAME, LEASE, 3 * LEASE).await, "{}: the lease has no end", library.name);
    let succeeded = died.elapsed();

    let server = RedisServer::builder().tcp().start();
    let mut peer = hold(library, &server).await?;
    let left = left(&server)?;
    server.pause();
    let silent = match told(&mut peer, library, || server.resume()).await {
        Told::After(seconds) => Told::After(seconds - left.as_secs_f64()),
        other => other,
    };
    server.resume();

    let server = RedisServer::builder().tcp().start();
    let mut peer = hold(library, &server).await?;
    sleep(LATE).await;
    ensure!(server.cli(&["FLUSHALL"]) == "OK", "the server flushes");
    let deleted = told(&mut peer, library, || ()).await;
    let release = match (extends_itself(library), library.tells) {
        (true, _) => "`using` fails",
        (false, true) if peer.releases().await == Some(false) => "an error",
        (false, true) => "succeeds",
        (false, false) => "says nothing",
    };
    Ok(Row { library: library.name, succeeded, silent, deleted, release: release.to_owned() })
}

async fn hold(library: &'static Library, server: &RedisServer) -> Result<Peer> {
    let mut peer = Peer::start(library, &[server.url()]).await;
    if extends_itself(library) {
        peer.uses(NAME, LEASE).await;
    } else {
        ensure!(peer.acquires(NAME, LEASE, Duration::ZERO).await, "{}: the lock is free", library.name);
    }
    Ok(peer)
}

/// Waits for the report of a loss. A library that reports none has to extend its lease, when the server replies again.
async fn told(peer: &mut Peer, library: &Library, resume: impl Fn()) -> Told {
    let start = Instant::now();
    if extends_itself(library) {
        while start.elapsed() < TRIAL {
            if peer.is_aborted().await {
                return Told::After(start.elapsed().as_secs_f64());
            }
            sleep(STEP).await;
        }
        return Told::Never;
    }
    sleep(TRIAL).await;
    resume();
    match library.extends && !peer.extends(LEASE).await {
        true => Told::OnCall("extension"),
        false => Told::Never,
    }
}

/// Runs the trials with Redisson's `RLock`, which its watchdog renews.
async fn redisson(java: &Arc<interop::Peer>) -> Result<Row> {
    let server = RedisServer::builder().tcp().start();
    let other = interop::start().context("there is Java")?;
    let next = java.open("next", &server.url(), LEASE).await;
    let doomed = other.open("doomed", &server.url(), LEASE).await;
    doomed.thread("t").lock(NAME).done().await;
    let waiting = next.thread("t").try_lock_for(NAME, 3 * LEASE);
    let died = Instant::now();
    other.kill();
    ensure!(waiting.done().await == "true", "the lease has no end");
    let succeeded = died.elapsed();

    let mut told = Vec::new();
    let mut release = String::new();
    for is_silent in [true, false] {
        let server = RedisServer::builder().tcp().start();
        let client = java.open(if is_silent { "silent" } else { "deleted" }, &server.url(), LEASE).await;
        let thread = client.thread("t");
        thread.lock(NAME).done().await;
        let number = thread.number().await;
        if is_silent {
            server.pause();
        } else {
            sleep(LATE).await;
            ensure!(server.cli(&["FLUSHALL"]) == "OK", "the server flushes");
        }
        sleep(TRIAL).await;
        server.resume();
        let is_held = thread.is_held_by(NAME, number).done().await == "true";
        told.push(if is_held { Told::Never } else { Told::OnCall("`isHeldByThread`") });
        release = match thread.unlock(NAME).answer().await.result {
            Ok(_) => "succeeds".to_owned(),
            Err(thrown) => format!("{thrown:?}").chars().take(60).collect(),
        };
    }
    let deleted = told.pop().context("two trials")?;
    let silent = told.pop().context("two trials")?;
    Ok(Row { library: "Redisson", succeeded, silent, deleted, release })
}
