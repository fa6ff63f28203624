//! Three processes that elect a leader.
//!
//! The first leader is killed, and a second process leads. The second leader resigns, and the last process leads.
//!
//! ```text
//! REDIS_URL=redis://127.0.0.1:6379 cargo run -p wheellock --example leader
//! ```

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use wheellock::{Leader, LockManager, Observer};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    // A short lease, so that the example does not wait long after the kill.
    let locks = LockManager::builder(&url).watchdog_lease(Duration::from_secs(1)).connect().await?;
    match std::env::args().nth(1) {
        Some(name) => candidate(&locks, &name).await,
        None => watch(&locks).await,
    }
}

/// Campaigns as one of the three processes. Leads after its election, until its stdin ends.
async fn candidate(locks: &LockManager, name: &str) -> Result<(), Box<dyn std::error::Error>> {
    let election = locks.election(name).with_announcement(&std::process::id().to_string());
    let leadership = election.campaign().await?;
    let told_to_go = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    let lead = async {
        told_to_go.await??;
        Ok::<_, Box<dyn std::error::Error>>(())
    };
    // The work of a leader. It is dropped at its current await point if the leadership is lost. A real leader passes the token with every
    // change.
    leadership.run(lead).await?;
    leadership.resign().await?;
    Ok(())
}

/// Starts the three processes, and observes which of them leads.
async fn watch(locks: &LockManager) -> Result<(), Box<dyn std::error::Error>> {
    let name = format!("leader-example-{}", std::process::id());
    let mut candidates = Vec::new();
    for _ in 0..3 {
        let mut program = Command::new(std::env::current_exe()?);
        candidates.push(program.arg(&name).stdin(Stdio::piped()).spawn()?);
    }
    let mut observer = locks.election(&name).observe();

    let first = next_leader(&mut observer, 0).await?;
    println!("process {} leads, with token {}", first.announcement(), first.token());
    let mut killed = take(&mut candidates, &first)?;
    killed.kill()?;
    killed.wait()?;

    let second = next_leader(&mut observer, first.token()).await?;
    println!("it was killed; process {} leads, with token {}", second.announcement(), second.token());
    let mut resigned = take(&mut candidates, &second)?;
    drop(resigned.stdin.take());
    assert!(resigned.wait()?.success());

    let third = next_leader(&mut observer, second.token()).await?;
    println!("it resigned; process {} leads, with token {}", third.announcement(), third.token());
    let mut last = take(&mut candidates, &third)?;
    drop(last.stdin.take());
    assert!(last.wait()?.success());
    while observer.changed().await?.is_some() {}
    println!("nobody leads");
    Ok(())
}

/// Returns the first leader with a greater token, once the leader has announced its identity.
async fn next_leader(observer: &mut Observer, token: u64) -> Result<Leader, wheellock::Error> {
    loop {
        if let Some(leader) = observer.changed().await?
            && leader.token() > token
            && !leader.announcement().is_empty()
        {
            return Ok(leader);
        }
    }
}

fn take(candidates: &mut Vec<Child>, leader: &Leader) -> Result<Child, String> {
    let is_it = |child: &Child| child.id().to_string() == leader.announcement();
    let place = candidates.iter().position(is_it).ok_or("somebody else leads")?;
    Ok(candidates.swap_remove(place))
}
