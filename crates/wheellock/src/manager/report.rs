//! Reports of a manager to a recorder of `metrics`.
//!
//! This module owns names, labels, units, and the changes since the last report. The counters do not know of it, so
//! they cost the same without reports.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use metrics::{Label, Unit};
use wheellock_client::{Histogram, Stats, Timer};

use crate::manager::health::health_of;
use crate::request::context::Context;
use crate::table::metrics::Metrics;

/// Settings of a manager's reports.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    pub(crate) name: Option<String>,
    pub(crate) every: Option<Duration>,
}

/// Reports of one manager.
pub(crate) struct Reporter {
    /// The label of all the manager's numbers.
    manager: Label,
    is_regular: bool,
    /// The last report. This mutex is locked before all mutexes of the manager. The recorder is not called while it is
    /// locked.
    last: Mutex<Numbers>,
}

/// Numbers of the last report.
#[derive(Clone, Default)]
struct Numbers {
    /// Numbers of each family, as [`Context::counted`] lists them.
    families: Vec<(Option<&'static str>, Metrics)>,
    client: Stats,
}

impl Reporter {
    /// Creates the reporter of a new manager. Spawns a task for reports at intervals if `settings` wants them. Call
    /// within a runtime.
    pub(crate) fn start(settings: Settings, context: &Arc<Context>) -> Arc<Self> {
        let name = settings.name.unwrap_or_else(|| context.uuid.to_string());
        let (manager, is_regular) = (Label::new("manager", name), settings.every.is_some());
        let reporter = Arc::new(Self { manager, is_regular, last: Mutex::default() });
        if let Some(period) = settings.every {
            let timer = context.client.config().timer.clone();
            tokio::spawn(keep(Arc::clone(&reporter), Arc::downgrade(context), timer, period.max(SHORTEST)));
        }
        reporter
    }

    /// Sends a last report at the manager's end, if reports are sent at intervals.
    pub(crate) fn end(&self, context: &Context) {
        if self.is_regular {
            self.report(context);
        }
    }

    pub(crate) fn report(&self, context: &Context) {
        let (before, now) = {
            let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Numbers { families: context.counted(), client: context.client.stats() };
            (std::mem::replace(&mut *last, now.clone()), now)
        };
        describe();
        let manager = [self.manager.clone()];
        let nothing = Metrics::default();
        let is_classified = now.families.len() > 1;
        for (place, (family, metrics)) in now.families.iter().enumerate() {
            let before = before.families.get(place).map_or(&nothing, |(_, before)| before);
            match family {
                Some(label) => {
                    let family = Label::from_static_parts("family", label);
                    report_locks(&[self.manager.clone(), family], metrics, before);
                }
                None => {
                    let jumps = (metrics.server_clock_jumps, before.server_clock_jumps);
                    count("wheellock_server_clock_jumps_total", &manager, jumps);
                    let failed = (metrics.failed_refreshes, before.failed_refreshes);
                    count("wheellock_failed_refreshes_total", &manager, failed);
                    if !is_classified {
                        report_locks(&manager, metrics, before);
                    }
                }
            }
        }
        report_client(&manager, &now.client, &before.client);
        set("wheellock_healthy", &manager, u64::from(health_of(context).is_healthy()));
    }
}

/// Reports until the manager is gone.
async fn keep(reporter: Arc<Reporter>, manager: Weak<Context>, timer: Timer, period: Duration) {
    loop {
        timer.sleep(period).await;
        let Some(context) = manager.upgrade() else { return };
        reporter.report(&context);
    }
}

fn report_locks(labels: &[Label], now: &Metrics, before: &Metrics) {
    let counters = [
        ("wheellock_acquires_total", now.acquires, before.acquires),
        ("wheellock_waits_total", now.waits, before.waits),
        ("wheellock_message_wakes_total", now.message_wakes, before.message_wakes),
        ("wheellock_hand_overs_total", now.hand_overs, before.hand_overs),
        ("wheellock_waits_given_up_total", now.waits_given_up, before.waits_given_up),
        ("wheellock_not_replicated_total", now.not_replicated, before.not_replicated),
        ("wheellock_renewals_total", now.renewals, before.renewals),
        ("wheellock_failed_renewals_total", now.failed_renewals, before.failed_renewals),
        ("wheellock_lost_in_failover_total", now.lost_in_failover, before.lost_in_failover),
        ("wheellock_reclaimed_total", now.reclaimed, before.reclaimed),
    ];
    counters.into_iter().for_each(|(name, now, before)| count(name, labels, (now, before)));
    let losses = [
        ("expired", now.lost_expired, before.lost_expired),
        ("not_owner", now.lost_not_owner, before.lost_not_owner),
        ("held_too_long", now.lost_held_too_long, before.lost_held_too_long),
    ];
    for (reason, now, before) in losses {
        let labels = [labels, &[Label::from_static_parts("reason", reason)]].concat();
        count("wheellock_lost_total", &labels, (now, before));
    }
    set("wheellock_held", labels, now.held);
    set("wheellock_failing", labels, now.failing);
    set("wheellock_waiting", labels, now.waiting);
    observe("wheellock_wait_seconds", labels, &now.wait, &before.wait);
    observe("wheellock_hold_seconds", labels, &now.hold, &before.hold);
    observe("wheellock_renewal_lateness_seconds", labels, &now.renewal_lateness, &before.renewal_lateness);
}

fn report_client(labels: &[Label], now: &Stats, before: &Stats) {
    count("wheellock_connections_total", labels, (now.connections, before.connections));
    count("wheellock_calls_total", labels, (now.calls, before.calls));
    count("wheellock_bytes_written_total", labels, (now.bytes_written, before.bytes_written));
    count("wheellock_bytes_read_total", labels, (now.bytes_read, before.bytes_read));
    set("wheellock_in_flight", labels, now.in_flight as u64);
    observe("wheellock_call_seconds", labels, &now.latency, &before.latency);
}

/// Raises a counter to `now`. A counter that is still 0 is reported, too, because an alert needs to see it rise.
fn count(name: &'static str, labels: &[Label], (now, before): (u64, u64)) {
    // Nodes that leave a cluster take their counters with them, so `now` can be below `before`.
    metrics::counter!(name, labels.iter()).increment(now.saturating_sub(before));
}

fn set(name: &'static str, labels: &[Label], now: u64) {
    #[expect(clippy::cast_precision_loss, reason = "nothing is held 2^53 times")]
    metrics::gauge!(name, labels.iter()).set(now as f64);
}

fn observe(name: &'static str, labels: &[Label], now: &Histogram, before: &Histogram) {
    let histogram = metrics::histogram!(name, labels.iter());
    for (duration, times) in observed(now, before) {
        histogram.record_many(duration, times);
    }
}

/// Returns the observations since `before`: the middle of each bucket, and their number.
///
/// A recorder keeps each observation until it is read, and a hot lock makes a million in a second. So of many
/// observations only a part is returned.
fn observed(now: &Histogram, before: &Histogram) -> Vec<(Duration, usize)> {
    let middle = |from: Duration, to: Duration| if to == Duration::MAX { from } else { (from + to) / 2 };
    let new = now.buckets().zip(before.buckets()).filter_map(|(now, before)| {
        let times = now.count.saturating_sub(before.count);
        (times > 0).then(|| (middle(now.from, now.to), times))
    });
    let new: Vec<(Duration, u64)> = new.collect();
    let all: u64 = new.iter().map(|(_, times)| times).sum();
    // At least one observation of every bucket in use is reported.
    let part = |times: u64| u128::from(times) * u128::from(MOST_OBSERVATIONS) / u128::from(all.max(1));
    let reported = |times: u64| if all > MOST_OBSERVATIONS { part(times).max(1) } else { u128::from(times) };
    let reported = |times: u64| usize::try_from(reported(times)).unwrap_or(usize::MAX);
    new.into_iter().map(|(duration, times)| (duration, reported(times))).collect()
}

/// Most observations of one histogram in one report.
const MOST_OBSERVATIONS: u64 = 10_000;
/// Shortest interval between two reports. A caller that needs more reports can call `report`.
const SHORTEST: Duration = Duration::from_millis(10);

/// Describes the metrics, with every report, because a new recorder may have been installed.
fn describe() {
    let counters = [
        ("wheellock_acquires_total", "Guards handed out."),
        ("wheellock_waits_total", "Acquires that had to wait for another holder."),
        (
            "wheellock_message_wakes_total",
            "Waits that ended with the message of a release, or with news of a changed key.",
        ),
        ("wheellock_hand_overs_total", "Waits that ended with what another task of the process had."),
        ("wheellock_waits_given_up_total", "Waits that ended without the lock."),
        ("wheellock_not_replicated_total", "Grants taken back because too few servers knew of them."),
        ("wheellock_renewals_total", "Leases extended."),
        ("wheellock_failed_renewals_total", "Renewals refused or without an answer."),
        ("wheellock_lost_total", "Locks lost, by reason."),
        ("wheellock_lost_in_failover_total", "Locks lost because a new server did not get them in time."),
        ("wheellock_reclaimed_total", "Held locks written into a new server after a failover."),
        ("wheellock_failed_refreshes_total", "Refreshes of this process in its fleet that did not count."),
        ("wheellock_server_clock_jumps_total", "Jumps of the server's clock."),
        ("wheellock_connections_total", "Connections established, the first included."),
        ("wheellock_calls_total", "Commands sent to the server."),
    ];
    for (name, help) in counters {
        metrics::describe_counter!(name, Unit::Count, help);
    }
    metrics::describe_counter!("wheellock_bytes_written_total", Unit::Bytes, "Bytes written to the server.");
    metrics::describe_counter!("wheellock_bytes_read_total", Unit::Bytes, "Bytes read from the server.");
    let gauges = [
        ("wheellock_held", "Locks held now."),
        ("wheellock_failing", "Locks held now whose last renewal failed."),
        ("wheellock_waiting", "Waiters now."),
        ("wheellock_healthy", "1 if a lock can be had now, as far as is known; otherwise 0."),
        ("wheellock_in_flight", "Commands that wait for a reply now."),
    ];
    for (name, help) in gauges {
        metrics::describe_gauge!(name, Unit::Count, help);
    }
    let histograms = [
        ("wheellock_wait_seconds", "How long those who had to wait waited for their guards."),
        ("wheellock_hold_seconds", "How long locks were held."),
        ("wheellock_renewal_lateness_seconds", "How much later than planned renewals were confirmed."),
        ("wheellock_call_seconds", "From queueing a command to its reply."),
    ];
    for (name, help) in histograms {
        metrics::describe_histogram!(name, Unit::Seconds, help);
    }
}

#[cfg(test)]
mod tests;
