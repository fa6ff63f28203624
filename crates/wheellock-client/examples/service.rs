//! A small service on the bare connection: tasks that count visits, each call with a deadline of its own.
//!
//! It shows what an outcome is for: a call that was not sent is repeated, one that may have run is not.
//!
//! ```text
//! REDIS_URL=redis://127.0.0.1:6379 cargo run -p wheellock-client --example service
//! ```

use std::time::Duration;

use wheellock_client::{CallOptions, Client, Command, Config, Error, Outcome};

/// Counts one visit. INCR is not idempotent, so only what certainly did not run may be repeated.
async fn visit(client: &Client, page: &str) -> Result<i64, Error> {
    let command = Command::new("INCR").arg(page);
    let mut attempts = 0;
    loop {
        attempts += 1;
        let deadline = client.config().timer.now() + Duration::from_millis(500);
        match client.call_with(&command, CallOptions::by(deadline)).await {
            Ok(count) => return Ok(count.as_i64().unwrap_or_default()),
            Err(error) if error.outcome() == Outcome::NotSent && attempts < 3 => eprintln!("again: {error}"),
            Err(error) => return Err(error),
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let client = Client::connect(url.parse::<Config>()?).await?;
    let page = format!("service-example-{}", std::process::id());

    let visitors: Vec<_> = (0..100)
        .map(|_| {
            let (client, page) = (client.clone(), page.clone());
            tokio::spawn(async move { visit(&client, &page).await })
        })
        .collect();
    for visitor in visitors {
        visitor.await??;
    }
    let count = client.call(&Command::new("GETDEL").arg(&page)).await?;
    assert_eq!(count.as_str(), Some("100"));
    let stats = client.stats();
    println!(
        "100 visits in {} writes, median {:?}",
        stats.idle_writes + stats.batch_writes,
        stats.latency.quantile(0.5)
    );
    client.close().await;
    Ok(())
}
