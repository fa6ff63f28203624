//! rslock in a process of its own, driven line by line; the protocol is told in `tests/src/peers.rs`.

use std::fs;
use std::io::Write;
use std::time::Duration;

use rslock::{Lock, LockManager};

/// Answers requests until stdin closes.
pub(crate) async fn serve(urls: Vec<String>) {
    let manager = LockManager::new(urls);
    let mut held = None;
    say("ready");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let words: Vec<_> = line.split(' ').collect();
        say(&answer(&manager, &mut held, &words).await);
    }
}

async fn answer(manager: &LockManager, held: &mut Option<Lock>, words: &[&str]) -> String {
    match *words {
        ["acquire", name, lease, wait] => {
            match acquire(manager, name, milliseconds(lease), milliseconds(wait)).await {
                Ok(lock) => {
                    *held = Some(lock);
                    "acquired".to_owned()
                }
                Err(error) => format!("refused {error}"),
            }
        }
        ["extend", lease] => {
            let lock = held.as_ref().expect("something is held");
            let mut once = manager.clone();
            once.set_retry(1, DELAY);
            match once.extend(lock, milliseconds(lease)).await {
                Ok(_) => "extended".to_owned(),
                Err(error) => format!("lost {error}"),
            }
        }
        ["release"] => {
            // The library does not say whether the lock was still held.
            held.take().expect("something is held").release().await;
            "unknown".to_owned()
        }
        ["increment", name, lease, times, file] => {
            for _ in 0..times.parse().expect("a number") {
                let lock = acquire(manager, name, milliseconds(lease), Duration::from_secs(60)).await;
                let number: u32 = fs::read_to_string(file).unwrap().parse().expect("a number");
                fs::write(file, (number + 1).to_string()).unwrap();
                lock.expect("a minute is enough").release().await;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            "done".to_owned()
        }
        _ => "error no such request".to_owned(),
    }
}

async fn acquire(
    manager: &LockManager,
    name: &str,
    lease: Duration,
    wait: Duration,
) -> Result<Lock, rslock::LockError> {
    let mut manager = manager.clone();
    // A pause is half of this on average.
    let tries = 2 * wait.as_millis() / DELAY.as_millis() + 1;
    manager.set_retry(u32::try_from(tries).expect("a short wait"), DELAY);
    manager.lock(name, lease).await
}

fn milliseconds(word: &str) -> Duration {
    Duration::from_millis(word.parse().expect("a number"))
}

fn say(answer: &str) {
    // Past the harness' capture, and on a line of its own whatever the harness has begun.
    let mut stdout = std::io::stdout();
    write!(stdout, "\n> {answer}\n").and_then(|()| stdout.flush()).expect("somebody listens");
}

const DELAY: Duration = Duration::from_millis(5);
