//! Programs that stand still while calls are pending.
//!
//! Reports the fate of these calls, and does not judge it.
//!
//! A [`Pausing`] is a kind of program. The process gets it as arguments, and [`serve`] is the process' `main`.

use std::fmt::Debug;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tokio::runtime::Builder;
use tokio::task::yield_now;
use wheellock::client::{CallOptions, Client, Command as Call, Config, Error, Timer, TlsConfig};

/// A kind of program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pausing {
    /// The runtime of the connection.
    pub runtime: Runtime,
    /// The driver of the client's timer.
    pub driver: Driver,
    /// How the program stands still.
    pub pause: Pause,
}

/// The runtime of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runtime {
    /// The main thread.
    Current,
    /// Two worker threads.
    Multi,
}

/// The driver of the client's timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// The process-wide timer thread.
    Thread,
    /// A task of the runtime.
    Task,
}

/// How the program stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// Tasks block all workers.
    Blocked,
    /// `SIGSTOP` stops the process.
    Stopped,
}

const RUNTIMES: [Runtime; 2] = [Runtime::Current, Runtime::Multi];
const DRIVERS: [Driver; 2] = [Driver::Thread, Driver::Task];
const PAUSES: [Pause; 2] = [Pause::Blocked, Pause::Stopped];

impl Pausing {
    /// Returns every kind of program.
    pub fn all() -> impl Iterator<Item = Self> {
        RUNTIMES.into_iter().flat_map(|runtime| {
            DRIVERS
                .into_iter()
                .flat_map(move |driver| PAUSES.into_iter().map(move |pause| Self { runtime, driver, pause }))
        })
    }
}

/// The work of each program.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The number of pauses.
    pub pauses: u32,
    /// The length of each pause.
    pub length: Duration,
    /// The client's response timeout.
    pub response_timeout: Duration,
}

/// Counts of one program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Calls that were pending when a pause began.
    pub calls: usize,
    /// Errors of these calls.
    pub errors: Vec<String>,
    /// The number of connections that the client has made. It is one, if the client has lost no connection.
    pub connections: u64,
}

impl Tally {
    /// Adds the counts of another program.
    pub fn add(&mut self, other: Self) {
        self.calls += other.calls;
        self.errors.extend(other.errors);
        self.connections += other.connections;
    }
}

/// Runs `program`, a command without arguments, as one kind of program.
///
/// # Errors
///
/// If the program cannot be started, or fails for a reason other than a lost call.
pub fn run(
    mut program: Command,
    kind: Pausing,
    plan: Plan,
    url: &str,
    trusted: Option<&Path>,
) -> Result<Tally> {
    let kinds = [format!("{:?}", kind.runtime), format!("{:?}", kind.driver), format!("{:?}", kind.pause)];
    let millis = |time: Duration| time.as_millis().to_string();
    program.args(kinds).args([plan.pauses.to_string(), millis(plan.length), millis(plan.response_timeout)]);
    program.arg(url).args(trusted);
    let mut child = program.stdout(Stdio::piped()).spawn().context("starting a program")?;
    let pid = Pid::from_child(&child);
    let said = BufReader::new(child.stdout.take().context("a program without an output")?);
    let mut tally = Tally::default();
    for line in said.lines() {
        match line?.split_once(' ') {
            Some(("pause", _)) => {
                kill_process(pid, Signal::STOP)?;
                std::thread::sleep(plan.length);
                kill_process(pid, Signal::CONT)?;
            }
            Some(("error", error)) => tally.errors.push(error.to_owned()),
            Some(("calls", calls)) => tally.calls = calls.parse()?,
            Some(("connections", connections)) => tally.connections = connections.parse()?,
            _ => bail!("a program printed an unknown line"),
        }
    }
    let ended = child.wait()?;
    ensure!(ended.success() && tally.connections > 0, "{kind:?}: {ended}");
    Ok(tally)
}

/// Runs the program's `main`: pauses `pauses` times, and prints the fate of its calls.
///
/// # Errors
///
/// Bad arguments, or no connection.
pub fn serve(arguments: &[String]) -> Result<()> {
    let [runtime, driver, pause, pauses, length, timeout, url, trusted @ ..] = arguments else {
        bail!("too few arguments")
    };
    let kind = Pausing {
        runtime: named(&RUNTIMES, runtime)?,
        driver: named(&DRIVERS, driver)?,
        pause: named(&PAUSES, pause)?,
    };
    let millis = |text: &str| text.parse().map(Duration::from_millis);
    let plan = Plan { pauses: pauses.parse()?, length: millis(length)?, response_timeout: millis(timeout)? };
    let mut config: Config = url.parse()?;
    config.response_timeout = plan.response_timeout;
    if let Some(file) = trusted.first() {
        config.tls = Some(TlsConfig::new().trust_pem(&std::fs::read(file)?).build()?);
    }
    let runtime = match kind.runtime {
        Runtime::Current => Builder::new_current_thread().enable_all().build()?,
        Runtime::Multi => Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?,
    };
    runtime.block_on(async {
        if kind.driver == Driver::Task {
            config.timer = Timer::tokio(Duration::from_millis(1));
        }
        let client = Client::connect(config).await?;
        for number in 0..plan.pauses {
            stand_still(&client, kind, plan, number).await?;
        }
        println!("calls {}", plan.pauses * CALLS);
        println!("connections {}", client.stats().connections);
        Ok(())
    })
}

fn named<T: Debug + Copy>(all: &[T], name: &str) -> Result<T> {
    let found = all.iter().find(|known| format!("{known:?}") == name);
    found.copied().with_context(|| format!("no such thing: {name}"))
}

/// Makes calls, stands still, and prints the errors of the calls.
async fn stand_still(client: &Client, kind: Pausing, plan: Plan, number: u32) -> Result<()> {
    // Every other time the pause begins before the client has written all calls.
    let are_written = number.is_multiple_of(2);
    let mut calls = Vec::new();
    let before = client.stats().calls;
    for call in 0..CALLS {
        let client_of_call = client.clone();
        calls.push(tokio::spawn(async move { ask(&client_of_call, call, plan).await }));
        // The first call delays the replies to the calls behind it. The other calls are sent together.
        while call == 0 && client.stats().calls == before {
            yield_now().await;
        }
    }
    let are_queued = || client.stats().calls == before + u64::from(CALLS);
    while !are_queued() || (are_written && client.stats().queued_bytes > 0) {
        yield_now().await;
    }
    match (kind.pause, kind.runtime) {
        (Pause::Stopped, _) => println!("pause {number}"),
        (Pause::Blocked, Runtime::Current) => std::thread::sleep(plan.length),
        (Pause::Blocked, Runtime::Multi) => {
            let all = Arc::new(Barrier::new(WORKERS));
            for _ in 0..WORKERS {
                let all = Arc::clone(&all);
                tokio::spawn(async move {
                    all.wait();
                    std::thread::sleep(plan.length);
                });
            }
        }
    }
    for call in calls {
        if let Err(error) = call.await? {
            println!("error {error}");
        }
    }
    Ok(())
}

/// Makes one call. The first call of each pause delays the replies to all others until the process stands still.
async fn ask(client: &Client, call: u32, plan: Plan) -> Result<(), Error> {
    if call == 0 {
        let hold = (plan.response_timeout / 10).as_millis().to_string();
        client.call(&Call::new("WAIT").arg("1").arg(hold.as_str())).await?;
        return Ok(());
    }
    let said = call.to_string();
    let echo = Call::new("ECHO").arg(said.as_str());
    // Half of the calls have the default deadline, which ends during the pause.
    let reply = if call.is_multiple_of(2) {
        client.call(&echo).await?
    } else {
        let deadline = client.config().timer.now() + LONG;
        client.call_with(&echo, CallOptions::by(deadline)).await?
    };
    assert_eq!(reply.as_str(), Some(said.as_str()), "the reply of another call");
    Ok(())
}

const WORKERS: usize = 2;
const CALLS: u32 = 20;
const LONG: Duration = Duration::from_secs(30);
