//! A lock on a majority of servers, and a multi-lock.
//!
//! The servers of the majority are independent. The multi-lock takes several locks as one.
//!
//! ```text
//! REDIS_URLS=redis://127.0.0.1:6379,redis://127.0.0.1:6380,redis://127.0.0.1:6381 \
//!     cargo run -p wheellock --example quorum
//! ```
//!
//! With one server only (`REDIS_URL`), that server is the majority.

use wheellock::{Error, MemberState, RedLockManager, multi_lock};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let urls = std::env::var("REDIS_URLS").or_else(|_| std::env::var("REDIS_URL"));
    let urls = urls.unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let servers = RedLockManager::connect(urls.split(',')).await?;
    for finding in servers.diagnostics() {
        eprintln!("{finding}");
    }

    let name = format!("quorum-example-{}", std::process::id());
    let lock = servers.lock(&name);
    match lock.acquire().await {
        Ok(guard) => {
            let members = guard.members();
            let held = members.iter().filter(|member| matches!(member.state, MemberState::Held { .. }));
            let count = held.count();
            println!("held on {count} of {} servers so far, {} are needed", members.len(), servers.quorum());
            let answer = guard.run(async { Ok::<_, Error>(6 * 7) }).await?;
            println!("worked under it: {answer}");
            guard.release().await?;
        }
        // The lock may be free or held. Without a majority, no process can know.
        Err(error @ Error::NoQuorum { .. }) => println!("as without locks: {error}"),
        Err(error) => return Err(error.into()),
    }

    // Takes both accounts or none. Other callers may take them in any order without a deadlock.
    let locks = servers.managers().next().ok_or("at least one server")?;
    let accounts = [locks.lock(&format!("{name}:from")), locks.lock(&format!("{name}:to"))];
    let transfer = multi_lock(accounts)?;
    let moved = transfer.run(async |guard| Ok::<_, Error>(guard.members().len())).await?;
    println!("moved money between {moved} accounts");
    Ok(())
}
