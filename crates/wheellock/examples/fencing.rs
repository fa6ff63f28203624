//! A resource that a paused holder cannot harm: it refuses what comes with an older fencing token.
//!
//! ```text
//! REDIS_URL=redis://127.0.0.1:6379 cargo run -p wheellock --example fencing
//! ```

use std::time::Duration;

use wheellock::LockManager;

/// Any store that can compare before it writes: a row with a version, an object with a condition, a file with a header.
#[derive(Default)]
struct Ledger {
    greatest_token: u64,
    lines: Vec<String>,
}

impl Ledger {
    /// Checks and writes in one step: here because it has `&mut self`, in a database because it is one statement.
    fn write(&mut self, token: u64, line: &str) -> Result<(), String> {
        if token < self.greatest_token {
            return Err(format!("token {token} is older than {}", self.greatest_token));
        }
        self.greatest_token = token;
        self.lines.push(line.to_owned());
        Ok(())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let locks = LockManager::connect(&url).await?;
    let lock = locks.fenced_lock(&format!("fencing-example-{}", std::process::id()));
    let mut ledger = Ledger::default();

    // A holder that pauses longer than its lease: it could not know when it wakes up.
    let paused = lock.with_lease(Duration::from_millis(300)).acquire().await?;
    ledger.write(paused.token(), "the first holder, in time")?;
    paused.lost().await;

    let next = lock.acquire().await?;
    ledger.write(next.token(), "the second holder")?;
    let refused = ledger.write(paused.token(), "the first holder, too late");
    println!("{}", refused.expect_err("the ledger has seen a greater token"));
    assert_eq!(ledger.lines, ["the first holder, in time", "the second holder"]);
    next.release().await?;
    Ok(())
}
