//! A lock in a hundred lines on the bare connection.
//!
//! The example takes a lock, waits for the release message, renews the lease and releases the lock. It shows how much of a lock the
//! connection provides. The rest is left to the lock layer:
//! - The example does not notice a lost lease.
//! - It does not repeat a lost request.
//! - Every waiter polls after every message.
//! - A future that is dropped between the grant and the guard leaks the lock.
//! - There is no reentrancy.
//!
//! `wheellock` does all that, so use `wheellock`.
//!
//! ```text
//! REDIS_URL=redis://127.0.0.1:6379 cargo run -p wheellock-client --example minimal_lock
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use wheellock_client::{Client, Config, Error, Script, Value};

const LEASE: Duration = Duration::from_secs(10);

struct MinimalLock {
    client: Client,
    name: String,
    channel: String,
    owner: String,
    acquire: Arc<Script>,
    renew: Arc<Script>,
    release: Arc<Script>,
}

impl MinimalLock {
    fn new(client: &Client, name: &str, owner: &str) -> Self {
        // Every script checks the owner, so a script cannot change another owner's hold.
        let acquire = "if redis.call('set', KEYS[1], ARGV[1], 'nx', 'px', ARGV[2]) then return nil end
            return redis.call('pttl', KEYS[1])";
        let renew =
            "return redis.call('get', KEYS[1]) == ARGV[1] and redis.call('pexpire', KEYS[1], ARGV[2])";
        let release = "if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end
            redis.call('del', KEYS[1]) redis.call('publish', KEYS[2], 'free') return 1";
        Self {
            client: client.clone(),
            name: name.to_owned(),
            channel: format!("{name}:free"),
            owner: owner.to_owned(),
            acquire: Arc::new(Script::new(acquire, 1, 2)),
            renew: Arc::new(Script::new(renew, 1, 2)),
            release: Arc::new(Script::new(release, 2, 1)),
        }
    }

    async fn acquire(&self) -> Result<(), Error> {
        let lease = i64::try_from(LEASE.as_millis()).unwrap_or(i64::MAX);
        let params = [self.name.as_str().into(), self.owner.as_str().into(), lease.into()];
        // Subscribed before the first poll. A release after the poll is then certain to be announced here.
        let mut released = self.client.subscribe(self.channel.as_bytes());
        loop {
            let millis = match self.client.eval(&self.acquire, &params).await? {
                Value::Null => return Ok(()),
                held => held.as_i64().and_then(|millis| u64::try_from(millis).ok()).unwrap_or(1000),
            };
            // Waits for the message, or for the end of the lease if the holder has died.
            let timer = self.client.config().timer.clone();
            let _either = timer.timeout(Duration::from_millis(millis + 1), released.changed()).await;
        }
    }

    async fn renew(&self) -> Result<bool, Error> {
        let lease = i64::try_from(LEASE.as_millis()).unwrap_or(i64::MAX);
        let params = [self.name.as_str().into(), self.owner.as_str().into(), lease.into()];
        Ok(self.client.eval(&self.renew, &params).await?.as_i64() == Some(1))
    }

    async fn release(&self) -> Result<bool, Error> {
        let params = [self.name.as_str().into(), self.channel.as_str().into(), self.owner.as_str().into()];
        Ok(self.client.eval(&self.release, &params).await?.as_i64() == Some(1))
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let client = Client::connect(url.parse::<Config>()?).await?;
    let name = format!("minimal-lock-example-{}", std::process::id());
    let counter = Arc::new(AtomicU64::new(0));

    let workers: Vec<_> = (0..8)
        .map(|worker| {
            let lock = MinimalLock::new(&client, &name, &format!("worker-{worker}"));
            let counter = Arc::clone(&counter);
            tokio::spawn(async move {
                for _ in 0..25 {
                    lock.acquire().await?;
                    let seen = counter.load(Ordering::Relaxed);
                    tokio::task::yield_now().await; // without the lock, this is where counts would be lost
                    counter.store(seen + 1, Ordering::Relaxed);
                    assert!(lock.renew().await?, "still ours");
                    assert!(lock.release().await?, "ours until now");
                }
                Ok::<(), Error>(())
            })
        })
        .collect();
    for worker in workers {
        worker.await??;
    }
    assert_eq!(counter.load(Ordering::Relaxed), 200, "no count was lost");
    println!("8 workers counted to {} under one lock", counter.load(Ordering::Relaxed));
    Ok(())
}
