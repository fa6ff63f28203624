//! A command that runs under a lock.
//!
//! This module waits for the lock and watches the lock and the command. It ends the command before another owner can
//! get the lock.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use wheellock::{BootInstant, Error, Guard, LockManager, LostReason};

use crate::arguments::Run;
use crate::child::{Child, cannot_run, end_of};
use crate::end::{End, Failure, complain};
use crate::kinds::Hold;
use crate::signals::Signals;

pub(crate) async fn run(options: &Run, again: &[&str]) -> Result<End, Failure> {
    let signals = Signals::new();
    let mut signals =
        signals.map_err(|error| Failure::of(End::Unavailable, format!("no signals: {error}")))?;
    let locks = tokio::select! {
        locks = connect(options) => locks?,
        signal = signals.next() => return Ok(End::Signal(signal.as_raw())),
    };
    let end = under_lock(options, &locks, &mut signals, again).await;
    // Shutdown also withdraws a request that was not granted yet.
    let left = locks.shutdown(LAST_WORDS).await;
    if !left.is_empty() {
        complain(&left.to_string());
    }
    end
}

async fn connect(options: &Run) -> Result<LockManager, Failure> {
    if options.at_most.zip(options.at_least).is_some_and(|(most, least)| most < least) {
        return Err(Failure::of(End::Usage, "--at-most is shorter than --at-least"));
    }
    let builder = options.failovers.of(options.server.builder().watchdog_lease(options.lease));
    let label = options.label.clone().unwrap_or_else(|| default_label(&options.command));
    let builder = if label.is_empty() { builder } else { builder.label(label) };
    Ok(builder.connect().await?)
}

async fn under_lock(
    options: &Run,
    locks: &LockManager,
    signals: &mut Signals,
    again: &[&str],
) -> Result<End, Failure> {
    let hold = tokio::select! {
        hold = take(options, locks) => hold?,
        signal = signals.next() => return Ok(End::Signal(signal.as_raw())),
    };
    let Some(hold) = hold else {
        if !options.quiet {
            say_who_holds(options, locks).await;
        }
        return Ok(End::Conflict(options.conflict_exit_code));
    };
    let name = hold.guard().name().to_owned();
    let environment = [
        Some(("WHEELLOCK_NAME", if options.adopt { name.clone() } else { options.name.clone() })),
        hold.token().map(|token| ("WHEELLOCK_TOKEN", token.to_string())),
    ];
    let environment: Vec<_> = environment.into_iter().flatten().collect();
    let mut child = match Child::start(&options.command, &environment, again) {
        Ok(child) => child,
        Err(error) => {
            let end = options.command.first().map(|program| cannot_run(program, &error));
            let _released = hold.release().await;
            return Ok(end.unwrap_or(End::Usage));
        }
    };
    let limits = Limits::new(options.lease, options.grace, options.at_most);
    let watched = watch(&mut child, hold.guard(), &limits, options.stop_on_request, signals).await;
    // The state of the command is unknown, and the lock is about to be released.
    let (status, stopped) = watched.inspect_err(|_| child.kill_rest())?;
    // The lease must have been valid when the command ended, not when the release ends.
    let was_valid = hold.guard().is_valid();
    if let Some(why) = stopped {
        child.kill_rest();
        // Release a lock that was only about to be lost.
        let _released = hold.release().await;
        return Err(Failure::of(End::Lost, format!("{name:?}: {why}; the command was stopped")));
    }
    give_back(&name, hold, was_valid).await?;
    Ok(end_of(status))
}

/// Acquires the lock, or adopts it. Returns `None` if other owners held it for the whole wait.
async fn take(options: &Run, locks: &LockManager) -> Result<Option<Hold>, Error> {
    if options.adopt {
        return Hold::adopt(locks, &options.name.parse()?).await.map(Some);
    }
    let limits = (options.at_most, options.at_least);
    options.kind.acquire(locks, &options.name, options.wait, limits).await
}

/// Watches the command and the lock until the command has ended. Returns its status, and the reason if this tool
/// stopped it.
async fn watch(
    child: &mut Child,
    guard: &Guard,
    limits: &Limits,
    stop_on_request: bool,
    signals: &mut Signals,
) -> Result<(std::process::ExitStatus, Option<String>), Failure> {
    let mut stop: Option<Stop> = None;
    loop {
        let next = match &stop {
            None => limits.stop_before(guard.valid_until()),
            Some(stop) if stop.killed => TICK,
            Some(stop) => stop.kill_at.remaining(),
        };
        let mut why = None;
        let before = BootInstant::now();
        tokio::select! {
            status = child.ended() => {
                let status = status.map_err(|error| Failure::of(End::Unavailable, format!("cannot wait for the command: {error}")))?;
                return Ok((status, stop.map(|stop| stop.why)));
            }
            reason = guard.lost(), if stop.is_none() => {
                let stood_still = stood_still(before, next).filter(|_| reason == LostReason::Expired);
                why = Some(stood_still.unwrap_or_else(|| lost(reason)));
            }
            request = guard.release_requested(), if stop_on_request && stop.is_none() => {
                why = Some(format!("the lock was requested by {request}"));
            }
            signal = signals.next() => child.pass_on(signal),
            // The runtime's clock stops while the machine sleeps, but the lease's clock does not.
            () = tokio::time::sleep(next.min(TICK)) => {}
        }
        if why.is_none() && stop.is_none() && limits.stop_before(guard.valid_until()).is_zero() {
            why = Some(limits.why_stopped(guard.valid_until(), stood_still(before, next)));
        }
        if let Some(why) = why {
            child.signal(Signal::TERM);
            stop = Some(Stop { kill_at: limits.kill_at(guard.valid_until()), killed: false, why });
        }
        if let Some(stop) = stop.as_mut().filter(|stop| !stop.killed && stop.kill_at.remaining().is_zero()) {
            child.signal(Signal::KILL);
            stop.killed = true;
        }
    }
}

/// The state of a command that was told to end.
struct Stop {
    why: String,
    kill_at: BootInstant,
    killed: bool,
}

/// The deadlines of a command, as times before the end of the lease.
struct Limits {
    /// The time between SIGTERM and SIGKILL.
    grace: Duration,
    /// How long before the end of the lease the command is killed. The system needs a while to kill it, and this tool
    /// may be late.
    last: Duration,
    /// How long before the end of the lease the command gets SIGTERM, at the latest.
    first: Duration,
    /// The end of the lock's maximum time, if it has one.
    ends: Option<BootInstant>,
    /// How long before that end the last lease may end.
    early: Duration,
}

impl Limits {
    /// Creates the limits of a lock that was acquired just now.
    fn new(lease: Duration, grace: Duration, at_most: Option<Duration>) -> Self {
        let lease = at_most.map_or(lease, |max| max.min(lease));
        let last = (lease / 10).min(LONGEST_LAST);
        // A renewal is due when two thirds of the lease are left. It may still succeed until one third is left.
        let first = last + grace.min(lease / 3 - last);
        let ends = at_most.map(|max| BootInstant::now() + max);
        // A lease is valid for 1 % less, and began before the reply of the server.
        Self { grace, last, first, ends, early: lease / 20 }
    }

    /// Returns why a command is stopped whose lock is valid until `valid_until`.
    fn why_stopped(&self, valid_until: BootInstant, stood_still: Option<String>) -> String {
        match stood_still {
            Some(why) => why,
            None if self.ends.is_some_and(|ends| valid_until + self.early >= ends) => {
                "the lock was held for its maximum time".to_owned()
            }
            None => "the server could not be reached, and the lease was about to end".to_owned(),
        }
    }

    /// Returns how long the command may run before it gets SIGTERM.
    fn stop_before(&self, valid_until: BootInstant) -> Duration {
        valid_until.remaining().saturating_sub(self.first)
    }

    /// Returns the instant at which a command that gets SIGTERM now is killed.
    fn kill_at(&self, valid_until: BootInstant) -> BootInstant {
        BootInstant::now() + self.grace.min(valid_until.remaining().saturating_sub(self.last))
    }
}

/// Returns the message for a lease that has ended, or is about to, because this program stood still. Returns `None`
/// if it did not stand still since `before`. `next` is the pause it planned at that instant.
fn stood_still(before: BootInstant, next: Duration) -> Option<String> {
    let stood = BootInstant::now().saturating_duration_since(before);
    let says = || {
        format!(
            "this program stood still for {:.1} s, and could not renew the lock meanwhile",
            stood.as_secs_f64()
        )
    };
    (stood >= next.max(2 * TICK)).then(says)
}

fn lost(reason: LostReason) -> String {
    format!("the lock was lost: {reason}")
}

/// Releases the lock. Returns an error if the lock was lost before the command ended.
async fn give_back(name: &str, hold: Hold, was_valid: bool) -> Result<(), Failure> {
    let failure = |why: &dyn std::fmt::Display| {
        Failure::of(End::Lost, format!("{name:?}: {why} before the command had ended"))
    };
    match hold.release().await {
        Err(Error::Lost { .. }) => Err(failure(&"the lock was lost")),
        _ if !was_valid => Err(failure(&"the lease ran out")),
        Ok(()) => Ok(()),
        Err(error) => {
            complain(&format!(
                "the command has ended under the lock, which may last as long as its lease: {error}"
            ));
            Ok(())
        }
    }
}

async fn say_who_holds(options: &Run, locks: &LockManager) {
    let name = options.kind.lock(locks, &options.name).name().to_owned();
    for rival in options.kind.rivals(locks, &options.name) {
        match rival.holder().await {
            Ok(Some(holder)) => return complain(&format!("{name:?} is taken: {holder}")),
            Ok(None) => {}
            Err(_) => break,
        }
    }
    complain(&format!("{name:?} is taken"));
}

/// Returns a label of the host, this process, and the command without its arguments, which may be secrets.
pub(crate) fn default_label(command: &[OsString]) -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let program = command.first().map(Path::new).and_then(Path::file_name).unwrap_or_default();
    let label = format!("{host}/{}/{}", std::process::id(), program.display());
    label.chars().filter(|c| !c.is_control()).take(LONGEST_DEFAULT_LABEL).collect()
}

/// Maximum length of a default label. It is far below the limit of a label, in any language.
const LONGEST_DEFAULT_LABEL: usize = 60;
/// Maximum of `Limits::last`. This is enough to stop any process that is not stuck in the kernel.
const LONGEST_LAST: Duration = Duration::from_secs(1);
/// Maximum difference between the clocks after the machine has slept. The watch loop wakes at least this often.
const TICK: Duration = Duration::from_secs(1);
/// Maximum wait of the shutdown at the end of this tool.
const LAST_WORDS: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_and_kill_precede_lease_end() {
        let seconds = Duration::from_secs_f64;
        for (lease, grace, first, last) in
            [(30.0, 5.0, 6.0, 1.0), (30.0, 600.0, 10.0, 1.0), (30.0, 0.0, 1.0, 1.0), (3.0, 5.0, 1.0, 0.3)]
        {
            let limits = Limits::new(seconds(lease), seconds(grace), None);
            assert_eq!((limits.first, limits.last), (seconds(first), seconds(last)));
            let now = BootInstant::now();
            let valid_until = now + seconds(lease);
            let left = limits.stop_before(valid_until);
            assert!(left <= seconds(lease - first) && left + seconds(1.0) > seconds(lease - first));
            let killed_after = limits.kill_at(valid_until).saturating_duration_since(now);
            assert!(killed_after <= seconds(lease - last).min(seconds(grace)) + seconds(1.0));
            assert!(limits.kill_at(now).remaining().is_zero(), "what is over is over");
        }
    }

    #[test]
    fn maximum_shortens_lease_and_names_reason() {
        let seconds = Duration::from_secs_f64;
        let limits = Limits::new(seconds(30.0), seconds(5.0), Some(seconds(3.0)));
        assert_eq!((limits.first, limits.last), (seconds(1.0), seconds(0.3)));
        let now = BootInstant::now();
        let said = |limits: &Limits, left| limits.why_stopped(now + seconds(left), None);
        assert!(said(&limits, 2.9).contains("maximum"));
        assert!(said(&limits, 1.0).contains("could not be reached"));
        assert_eq!(limits.why_stopped(now, Some("it slept".to_owned())), "it slept");
        assert!(said(&Limits::new(seconds(3.0), seconds(1.0), None), 2.9).contains("could not be reached"));
    }

    #[test]
    fn the_default_label_has_no_arguments() {
        let label = default_label(&["/usr/bin/mysqldump".into(), "-psecret".into()]);
        assert!(label.ends_with("/mysqldump"), "{label}");
        assert!(default_label(&["x".repeat(1000).into()]).len() <= LONGEST_DEFAULT_LABEL);
        assert!(!default_label(&["a\nb".into()]).contains('\n'));
    }
}
