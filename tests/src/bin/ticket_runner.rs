//! A test program through which a lock travels.
//!
//! Each line of input is `acquire` or a ticket. The program holds the lock, and makes a ticket of it at once. It prints `in`, the time of the
//! grant and the nanoseconds of the adoption; then `out`, the time at which it gave the lock away, the nanoseconds of that, and the ticket.
//! It prints `ended` if the ticket has ended. After `keep `, it keeps the lock.

use std::time::Duration;

use anyhow::{Context, Result};
use wheellock::{Error, LockManager};
use wheellock_tests::history::now;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (url, name) = (arguments.next().context("no address of a server")?, arguments.next());
    let name = name.context("no lock")?;
    let lease = Duration::from_millis(arguments.next().context("no lease")?.parse()?);
    let locks = LockManager::builder(&url).watchdog_lease(lease).connect().await?;
    for line in std::io::stdin().lines() {
        let (line, asked) = (line?, now());
        let kept = line.strip_prefix("keep ");
        let adopted = match kept.unwrap_or(&line) {
            "acquire" => locks.lock(&name).acquire().await,
            ticket => locks.adopt(&ticket.parse()?).await,
        };
        let guard = match adopted {
            Ok(guard) => guard,
            Err(Error::TicketEnded { .. }) => {
                println!("ended");
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let held = now();
        println!("in {held} {}", held - asked);
        if kept.is_some() {
            std::future::pending::<()>().await;
        }
        let gives = now();
        let ticket = guard.into_ticket().await?;
        println!("out {gives} {} {ticket}", now() - gives);
    }
    Ok(())
}
