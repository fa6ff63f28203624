//! Trials of lock libraries: a holder that dies, a server that is silent, and a key that another client deletes.
//!
//! `compare [words]` prints a row of `docs/compare.md` for each library whose name contains the words. Each library has a lease of
//! [`LEASE`], and renews it by its own means if it has such means. Libraries in other languages are those of `cargo xtask peers`, and
//! Redisson is that of `tests/interop`. A library that is not fetched is left out.

#[path = "compare/elsewhere.rs"]
mod elsewhere;
#[path = "compare/here.rs"]
mod here;

use std::future::Future;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use tokio::time::sleep;
use wheellock_tests::RedisServer;

/// The lease of every holder.
const LEASE: Duration = Duration::from_secs(2);
/// The longest time that a trial waits for news of a loss.
const TRIAL: Duration = LEASE.saturating_mul(3);
/// The time from the grant to the deletion of the key. The libraries that renew have done so by then, and no lease has ended.
const LATE: Duration = Duration::from_millis(1600);
/// The interval between two checks of a holder.
const STEP: Duration = Duration::from_millis(1);
const NAME: &str = "n";

/// A library, as the holder of one lock.
trait Holder: Sized {
    /// Acquires the lock, and renews it from then on if the library can do so.
    fn hold(url: &str) -> impl Future<Output = Result<Self>>;

    /// Tries to acquire the lock up to a limit. Returns true if the library acquired it.
    fn contend(url: &str, wait: Duration) -> impl Future<Output = Result<bool>>;

    /// Returns true if the library has reported the loss to the holder. `None` if it reports no loss.
    fn is_lost(&mut self) -> Option<bool>;

    /// Returns the library's answer to a late release.
    fn release(self) -> impl Future<Output = String>;
}

/// A row of the page.
#[derive(Debug)]
struct Row {
    library: &'static str,
    /// The time from the holder's death to the next holder.
    succeeded: Duration,
    /// A negative time is the time before the lease ended on the server.
    silent: Told,
    deleted: Told,
    release: String,
}

/// The library's report of a loss.
#[derive(Debug)]
enum Told {
    /// Seconds after the event.
    After(f64),
    /// The holder has to call the library, which then answers.
    OnCall(&'static str),
    Never,
}

impl std::fmt::Display for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::After(seconds) if *seconds < 0.0 => write!(f, "{:.2} s before", -seconds),
            Self::After(seconds) => write!(f, "{seconds:.3} s after"),
            Self::OnCall(call) => write!(f, "by the next {call}"),
            Self::Never => write!(f, "no"),
        }
    }
}

impl Row {
    fn print(&self) {
        let Self { library, succeeded, silent, deleted, release } = self;
        println!("| {library} | {:.1} s | {silent} | {deleted} | {release} |", succeeded.as_secs_f64());
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, library, url] = arguments.as_slice()
        && flag == "--hold"
    {
        return here::hold_until_killed(library, url).await;
    }
    let wants = |library: &str| arguments.is_empty() || arguments.iter().any(|word| library.contains(word));
    println!(
        "| | next holder | loss told, from the lease's end | loss told, from the deletion | late release |"
    );
    println!("|---|---|---|---|---|");
    here::rows(&wants).await?;
    elsewhere::rows(&wants).await
}

/// Runs the three trials of a library of this process.
async fn row<H: Holder>(library: &'static str) -> Result<Row> {
    let server = RedisServer::builder().tcp().start();
    let mut process = doomed(library, &server.url())?;
    let died = Instant::now();
    process.kill()?;
    process.wait()?;
    ensure!(H::contend(&server.url(), 3 * LEASE).await?, "{library}: the lease has no end");
    let succeeded = died.elapsed();

    let server = RedisServer::builder().tcp().start();
    let mut holder = H::hold(&server.url()).await?;
    let left = left(&server)?;
    server.pause();
    let silent = match told(&mut holder).await {
        Told::After(seconds) => Told::After(seconds - left.as_secs_f64()),
        other => other,
    };
    server.resume();
    drop(holder);

    let server = RedisServer::builder().tcp().start();
    let mut holder = H::hold(&server.url()).await?;
    sleep(LATE).await;
    ensure!(server.cli(&["FLUSHALL"]) == "OK", "the server flushes");
    let deleted = told(&mut holder).await;
    let release = holder.release().await;
    Ok(Row { library, succeeded, silent, deleted, release })
}

/// Returns the time until the lease ends on the server.
fn left(server: &RedisServer) -> Result<Duration> {
    // Some libraries put a prefix before the name.
    let key = server.cli(&["KEYS", "*"]);
    Ok(Duration::from_millis(server.cli(&["PTTL", &key]).parse()?))
}

/// Waits for the report of a loss.
async fn told(holder: &mut impl Holder) -> Told {
    let start = Instant::now();
    while start.elapsed() < TRIAL {
        if holder.is_lost() == Some(true) {
            return Told::After(start.elapsed().as_secs_f64());
        }
        sleep(STEP).await;
    }
    Told::Never
}

/// Starts this program as a process that holds the lock.
fn doomed(library: &str, url: &str) -> Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    let mut process = command.args(["--hold", library, url]).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(process.stdout.take().context("no stdout")?).read_line(&mut line)?;
    ensure!(line == "held\n", "{library} does not hold the lock");
    Ok(process)
}
