//! A test program that forks while it uses locks. The child makes a runtime and managers of its own.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::runtime::{Builder, Runtime};
use wheellock::client::{CallOptions, Client, Command, Config, ErrorKind, Timer};
use wheellock::{LockManager, blocking};

fn main() -> Result<()> {
    let url = std::env::args().nth(1).context("no address of a server")?;
    // Made before the fork, because a preforking server may read its settings before it forks.
    let config: Config = url.parse()?;
    let (runtime, blocking) = (runtime()?, blocking::LockManager::connect(&url)?);
    let locks = runtime.block_on(LockManager::builder(&url).watchdog_lease(LEASE).connect())?;
    let _by_thread = blocking.lock("parent:thread").acquire()?;
    let by_task = runtime.block_on(locks.lock("parent:task").acquire())?;
    runtime.block_on(Timer::global().sleep(Duration::from_millis(5)));
    match fork::fork() {
        Ok(fork::Fork::Child) => {
            let result = child(&url, config);
            println!("child: {result:?}");
            // The child does not drop the manager and the guards of the parent, because they would use the parent's connection.
            std::process::exit(i32::from(result.is_err()));
        }
        Ok(fork::Fork::Parent(child)) => {
            // The parent renews its lock meanwhile.
            runtime.block_on(Timer::global().sleep(LEASE * 4));
            fork::waitpid(child).ok().context("the child")?;
            ensure!(by_task.is_valid(), "the parent's lock is lost");
            println!("parent: Ok(())");
            Ok(())
        }
        Err(_) => anyhow::bail!("the system refused a process"),
    }
}

fn runtime() -> Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

fn child(url: &str, config: Config) -> Result<()> {
    runtime()?.block_on(async {
        Timer::global().sleep(Duration::from_millis(5)).await;
        let locks = LockManager::builder(url).watchdog_lease(LEASE).connect().await?;
        let guard = locks.lock("child").acquire().await?;
        ensure!(!locks.lock("parent:task").try_acquire().await?.is_acquired(), "the parent's lock is free");
        Timer::global().sleep(LEASE * 3).await;
        ensure!(guard.is_valid(), "the child's lock was not renewed");
        guard.release().await?;
        // The parent's settings contain the parent's timer.
        let client = Client::connect(config).await?;
        let by = client.config().timer.now() + Duration::from_millis(200);
        let wait = Command::new("WAIT").arg("1").arg("2000");
        let late = client.call_with(&wait, CallOptions::by(by)).await;
        ensure!(late.is_err_and(|error| error.kind() == ErrorKind::Timeout), "a deadline was not kept");
        anyhow::Ok(())
    })?;
    let locks = blocking::LockManager::connect(url)?;
    locks.lock("child:thread").acquire()?.release()?;
    Ok(())
}

const LEASE: Duration = Duration::from_millis(600);
