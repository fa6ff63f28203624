//! rueidislock, a Go library that learns of changed keys through client-side caching, in a process of its own.
//!
//! Its source is `benches/rueidislock`. It is left out if there is no `go`, or no network on the first run.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use wheellock_tests::RedisServer;

pub(crate) const NAME: &str = "rueidislock";

pub(crate) struct Rueidislock {
    process: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Rueidislock {
    /// Builds and starts the program. Returns `None` if it cannot be built here.
    pub(crate) fn start(server: &RedisServer, lease: Duration) -> Result<Option<Self>> {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        let built = root.join("target").join(NAME);
        let mut go = Command::new("go");
        go.args(["build", "-mod=readonly", "-modcacherw", "-buildvcs=false", "-o"]).arg(&built).arg(".");
        go.env("GOTOOLCHAIN", "local").current_dir(root.join("benches/rueidislock"));
        if !go.status().is_ok_and(|status| status.success()) {
            return Ok(None);
        }
        let mut program = Command::new(built);
        program.arg(server.addr().to_string()).arg(lease.as_millis().to_string());
        let mut process =
            program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn()?;
        let orders = process.stdin.take().context("no stdin")?;
        let answers = BufReader::new(process.stdout.take().context("no stdout")?);
        Ok(Some(Self { process, orders, answers }))
    }

    /// Takes `count` locks.
    pub(crate) fn hold(&mut self, count: usize) -> Result<()> {
        let answer = self.ask(&format!("hold {count}"))?;
        ensure!(answer == "held", "{NAME} says {answer:?}");
        Ok(())
    }

    /// Deletes the keys of the locks. Returns the time from each deletion until its holder was told.
    pub(crate) fn delete(&mut self, count: usize) -> Result<Vec<Duration>> {
        let answer = self.ask(&format!("delete {count}"))?;
        let nanos = answer.split(' ').map(|word| Ok(Duration::from_nanos(word.parse()?)));
        let took = nanos.collect::<Result<Vec<_>>>()?;
        ensure!(took.len() == count, "{NAME} was told of {} of {count} losses", took.len());
        Ok(took)
    }

    fn ask(&mut self, order: &str) -> Result<String> {
        writeln!(self.orders, "{order}")?;
        self.orders.flush()?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }
}

impl Drop for Rueidislock {
    fn drop(&mut self) {
        let _gone = self.process.kill();
        let _reaped = self.process.wait();
    }
}
