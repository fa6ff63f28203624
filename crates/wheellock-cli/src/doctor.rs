//! Checks a server for risks to locks. The library judges most of them; this module owns the report.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use wheellock::client::{Client, Command};
use wheellock::{Error, LockManager, RedLockManager};

use crate::arguments::Doctor;
use crate::end::{End, Failure, say};

pub(crate) async fn check(options: &Doctor) -> Result<End, Failure> {
    let mut report = Report::default();
    match &options.urls[..] {
        [url] => report.check_server(url, options).await?,
        _ if options.failovers.keep_across_failovers.is_some() => {
            let message = "--keep-across-failovers is for the one URL of a primary and its replicas";
            return Err(Failure::of(End::Usage, message));
        }
        urls => {
            for url in urls {
                // One server of several must not keep the tool from checking the others.
                if let Err(failure) = report.check_server(url, options).await {
                    report.bad("server", failure.message);
                }
            }
            report.check_quorum(urls).await;
        }
    }
    let faults = report.faults;
    say(&match faults {
        0 => "\nall is well\n".to_owned(),
        1 => "\n1 thing is not well\n".to_owned(),
        _ => format!("\n{faults} things are not well\n"),
    });
    Ok(if faults == 0 { End::Success } else { End::No })
}

/// The findings so far.
#[derive(Debug, Default)]
struct Report {
    faults: u32,
}

impl Report {
    fn good(&self, about: &str, what: impl std::fmt::Display) {
        say(&format!("  ok  {about:<11} {what}\n"));
    }

    fn bad(&mut self, about: &str, what: impl std::fmt::Display) {
        self.faults += 1;
        say(&format!("FAIL  {about:<11} {what}\n"));
    }

    async fn check_server(&mut self, url: &str, options: &Doctor) -> Result<(), Failure> {
        let builder = || LockManager::builder(url).watchdog_lease(LEASE);
        let locks = match options.failovers.of(builder()).connect().await {
            // The other checks are useful without a fleet, too.
            Err(error @ Error::UnsupportedFleet { .. }) => {
                self.bad("failovers", error);
                builder().connect().await?
            }
            locks => locks?,
        };
        for node in locks.client().nodes() {
            self.look_at(&node).await?;
        }
        for finding in locks.diagnostics() {
            self.bad("server", finding);
        }
        if locks.diagnostics().is_empty() {
            self.good("server", "version, eviction, persistence and permissions are fit for plain locks");
        }
        let own_name = format!("wheellock:doctor:{}", locks.id());
        self.try_a_lock(&locks, options.name.as_deref().unwrap_or(&own_name)).await;
        // A new process is ready after the trial lock at the latest.
        if let Some(health) = locks.fleet_health() {
            match health.obstacle {
                None => self.good("failovers", health),
                Some(obstacle) => self.bad("failovers", obstacle),
            }
        }
        let _left = locks.shutdown(LAST_WORDS).await;
        Ok(())
    }

    /// Checks that the servers are independent members of a quorum, and that each can grant.
    async fn check_quorum(&mut self, urls: &[String]) {
        let servers = match RedLockManager::connect(urls).await {
            Ok(servers) => servers,
            Err(error) => return self.bad("quorum", error),
        };
        let findings = servers.diagnostics();
        if findings.is_empty() {
            let (needed, all) = (servers.quorum(), urls.len());
            self.good("quorum", format!("{needed} of {all} independent servers have to grant a lock"));
        }
        for finding in findings {
            self.bad("quorum", finding);
        }
        let _left = servers.shutdown(LAST_WORDS).await;
    }

    /// Reports a node's identity, its round-trip time and its clock.
    async fn look_at(&mut self, node: &Client) -> Result<(), Failure> {
        let address = node.server_address();
        if let Some(info) = node.server_info() {
            let shown = |text: &str| text.escape_debug().to_string();
            let (name, version, mode, role) =
                (shown(&info.name), shown(&info.version), shown(&info.mode), shown(&info.role));
            self.good("connection", format!("{address}: {name} {version}, {mode}, {role}"));
        } else {
            self.good("connection", &address);
        }
        let mut trips = Vec::new();
        for _ in 0..TRIPS {
            let start = Instant::now();
            let pong = node.call(&Command::new("PING")).await;
            pong.map_err(|error| Failure::of(End::Unavailable, error))?;
            trips.push(start.elapsed());
        }
        trips.sort_unstable();
        let [median, longest] = [TRIPS / 2, TRIPS - 1].map(|at| trips.get(at).copied().unwrap_or_default());
        let text = format!("{} at the median of {TRIPS}, {} at most", millis(median), millis(longest));
        if longest < TOO_LONG {
            self.good("round trip", text);
        } else {
            self.bad("round trip", format!("{text}: a lease should have a hundred round trips"));
        }
        let first = Reading::of(node).await?;
        tokio::time::sleep(APART).await;
        let second = Reading::of(node).await?;
        match second.jumped_since(&first) {
            None => self.good("clock", first.beside_ours()),
            Some(jump) => self.bad("clock", jump),
        }
        Ok(())
    }

    /// Acquires and releases a lock, as a user would.
    async fn try_a_lock(&mut self, locks: &LockManager, name: &str) {
        let lock = locks.lock(name);
        let start = Instant::now();
        let tried = async { lock.try_acquire().await?.or_held()?.release().await };
        match tried.await {
            Ok(()) => {
                self.good("trial lock", format!("taken and released in {}", millis(start.elapsed())));
            }
            Err(Error::Lost { .. }) => self.bad("trial lock", "it was lost before it was released"),
            Err(Error::Held { .. }) => {
                self.good("trial lock", format!("{name:?} is held, and was left alone"));
            }
            Err(error @ Error::Server { .. }) => {
                self.bad("trial lock", format!("{error} (--name says another lock to try)"));
            }
            Err(error) => self.bad("trial lock", error),
        }
    }
}

/// One reading of the server's clock, between two instants of the local clock.
#[derive(Debug)]
struct Reading {
    before: Instant,
    after: Instant,
    ours: Duration,
    server: Duration,
}

impl Reading {
    async fn of(node: &Client) -> Result<Self, Failure> {
        let (before, ours) = (Instant::now(), SystemTime::now());
        let reply = node.call(&Command::new("TIME")).await;
        let reply = reply.map_err(|error| Failure::of(End::Unavailable, error))?;
        let parts: Vec<u64> = reply
            .as_array()
            .unwrap_or_default()
            .iter()
            .filter_map(|part| part.as_str()?.parse().ok())
            .collect();
        let &[seconds, micros] = &parts[..] else {
            return Err(Failure::of(End::Unavailable, "the server does not say what time it is"));
        };
        let server = Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros));
        let ours = ours.duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Self { before, after: Instant::now(), ours, server })
    }

    /// Returns a jump of the server's clock that the local time does not explain.
    fn jumped_since(&self, first: &Self) -> Option<String> {
        let least = self.before.saturating_duration_since(first.after);
        let most = self.after.saturating_duration_since(first.before);
        if self.server < first.server {
            return Some(format!("it went back by {}", millis(first.server - self.server)));
        }
        let went = self.server - first.server;
        let off = went.saturating_sub(most).max(least.saturating_sub(went));
        (off > UNEVEN).then(|| {
            format!(
                "it went {} in {} to {}: leases are as long as it says",
                millis(went),
                millis(least),
                millis(most)
            )
        })
    }

    /// Compares the server's clock with the clock of this machine. No lock depends on the latter.
    fn beside_ours(&self) -> String {
        let (ahead, word) = if self.server >= self.ours {
            (self.server - self.ours, "ahead of")
        } else {
            (self.ours - self.server, "behind")
        };
        format!("goes evenly; {} {word} this machine's, which does not matter", millis(ahead))
    }
}

fn millis(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1e3)
}

/// The lease of the trial lock. If this tool dies, the lock expires after this time.
const LEASE: Duration = Duration::from_secs(5);
const TRIPS: usize = 21;
/// Maximum round trip, which is a hundredth of the default lease.
const TOO_LONG: Duration = Duration::from_millis(300);
/// Interval between two readings of the clock.
const APART: Duration = Duration::from_millis(250);
/// Maximum deviation of a clock. A busy machine stays below it.
const UNEVEN: Duration = Duration::from_millis(50);
const LAST_WORDS: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_jump_is_detected() {
        let start = Instant::now();
        let reading = |millis: u64, server: u64| Reading {
            before: start + Duration::from_millis(millis),
            after: start + Duration::from_millis(millis + 1),
            ours: Duration::from_secs(100),
            server: Duration::from_millis(server),
        };
        let first = reading(0, 100_000);
        assert_eq!(reading(250, 100_250).jumped_since(&first), None);
        assert_eq!(reading(250, 100_299).jumped_since(&first), None);
        for odd in [99_999, 100_000, 100_100, 100_400, 200_000] {
            assert!(reading(250, odd).jumped_since(&first).is_some(), "{odd}");
        }
        assert!(first.beside_ours().contains("0.00 ms ahead"));
        assert!(reading(0, 99_000).beside_ours().contains("1000.00 ms behind"));
    }
}
