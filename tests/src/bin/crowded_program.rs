//! A test program that cannot start any thread.
//!
//! The system refuses every thread, so the timer of the program's client has no driver.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use wheellock::client::{CallOptions, Command, ErrorKind};
use wheellock::{Finding, LockManager};

fn main() -> Result<()> {
    let url = std::env::args().nth(1).context("no address of a server")?;
    let spawned = std::thread::Builder::new().spawn(|| ());
    ensure!(spawned.is_err(), "the system grants threads");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let locks = LockManager::builder(&url).watchdog_lease(LEASE).connect().await?;
        ensure!(locks.diagnostics().contains(&Finding::NoTimerThread), "{:?}", locks.diagnostics());
        let guard = locks.lock("crowded").acquire().await?;
        let client = locks.client();
        let began = Instant::now();
        let by = client.config().timer.now() + DEADLINE;
        let wait = Command::new("WAIT").arg("1").arg("600");
        let late = client.call_with(&wait, CallOptions::by(by)).await;
        ensure!(late.is_err_and(|error| error.kind() == ErrorKind::Timeout), "a deadline was not kept");
        ensure!(began.elapsed() < DEADLINE * 3, "a deadline was kept after {:?}", began.elapsed());
        client.config().timer.sleep(LEASE * 4).await;
        ensure!(guard.is_valid(), "the lock was not renewed");
        println!("{FINE}");
        Ok(())
    })
}

const LEASE: Duration = Duration::from_secs(1);
const DEADLINE: Duration = Duration::from_millis(300);
const FINE: &str = "fine";
