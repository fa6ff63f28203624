//! Simulated worlds of latches.
//!
//! A latch does not have an owner, so its tasks and its final counts differ from those of locks.

use std::future::Future;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use wheellock::testing::server::Which;
use wheellock::{Error, LockManager};

use super::give_up::outcome_unless;
use super::machine::{Log, Machine, latch, lock_name};
use super::plan::{LOCKS, Manner, Step};
use crate::history::{COUNTED_DOWN, Change, What};
use crate::told;

/// A task's next operation on a latch.
pub(super) struct Turn<'a> {
    pub(super) locks: &'a LockManager,
    pub(super) log: &'a Log,
    pub(super) process: u32,
    pub(super) task: u32,
}

impl Turn<'_> {
    /// Waits, counts down, sets or deletes. The choice uses the draws that other kinds use for a hold, so that steps are drawn alike for
    /// all kinds.
    pub(super) async fn take(self, number: u64, step: &Step) {
        let name = lock_name(step.lock);
        let latch = self.locks.count_down_latch(&name);
        let record = |what| self.log.record(self.process, self.task, number, &name, what);
        let deadline = |wait: u64| self.log.now() + wait * MILLISECOND;
        match step.manner {
            Manner::TryFor(wait) => {
                record(What::Awaits { deadline: Some(deadline(wait)) });
                let passes = latch.wait_for(Duration::from_millis(wait));
                record(
                    end(step, passes, |passed| if passed { What::Passed } else { What::NotGranted }).await,
                );
            }
            Manner::Acquire if step.hold.is_multiple_of(3) => {
                record(What::Awaits { deadline: None });
                record(end(step, latch.wait(), |()| What::Passed).await);
            }
            Manner::Acquire | Manner::Try => {
                record(What::Changes { how: Change::CountDown });
                record(end(step, latch.count_down(), |answer| What::Changed { answer }).await);
            }
            Manner::Run if step.renews => {
                record(What::Changes { how: Change::Delete });
                record(end(step, latch.delete(), |was| What::Changed { answer: was.into() }).await);
            }
            Manner::Run => {
                let to = 1 + step.hold % 3;
                record(What::Changes { how: Change::Set(to) });
                let to = u32::try_from(to).ok().and_then(NonZeroU32::new).expect("at least once");
                record(end(step, latch.try_set_count(to), |set| What::Changed { answer: set.into() }).await);
            }
        }
    }
}

/// Returns the event for a call's end.
async fn end<T>(
    step: &Step,
    call: impl Future<Output = Result<T, Error>>,
    says: impl FnOnce(T) -> What,
) -> What {
    match outcome_unless(step.give_up, call).await {
        Some(Ok(answer)) => says(answer),
        Some(Err(error)) => What::Failed { outcome: told::outcome(&error), text: error.to_string() },
        None => What::Cancelled,
    }
}

/// Deletes every latch repeatedly, as another client would, so that all waiters continue.
pub(super) async fn open_all(machine: Arc<Machine>) {
    loop {
        for name in (0..LOCKS).map(lock_name) {
            let tag = format!("{{{name}}}");
            let channel = format!("redisson_countdownlatch__channel__{tag}");
            machine.change(|server| {
                let now = server.store.now().to_string();
                let args = [name.as_str(), &channel, &tag, "another:1", &now, "120000", "PUBLISH"];
                server.run_for_another(Which::DeleteLatch, "1", &args);
                machine.log.note(&name, latch(server, &name));
            });
        }
        sleep(OPENED_AGAIN).await;
    }
}

/// The pause between two deletions, in virtual time. A latch that a task sets afterwards does not block waiters for long.
const OPENED_AGAIN: Duration = Duration::from_millis(50);

/// Records how many times the server has counted each latch down.
pub(super) fn count(machine: &Machine) {
    for name in (0..LOCKS).map(lock_name) {
        let found = machine.change(|server| {
            let log = server.store.log.iter();
            log.filter(|executed| executed.script == Which::CountDown && executed.key == name).count()
        });
        let found = u64::try_from(found).unwrap_or(u64::MAX);
        machine.log.note(&name, What::Probe { name: COUNTED_DOWN.to_owned(), found, allowed: u64::MAX });
    }
}

const MILLISECOND: u64 = 1_000_000;
