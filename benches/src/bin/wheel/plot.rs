//! Plots of some of the wheel's figures, and tables of all.

use anyhow::Result;
use wheellock_benches::plot::{self, Plot};
use wheellock_benches::table;

const PLOTS: [Plot; 5] = [
    plot(
        "core: schedule+cancel, 1M live",
        "cpu",
        "wheel-core-1m.svg",
        "A timer that never fires, beside a million others: the data structure alone",
    ),
    plot(
        "shared: schedule+cancel, clock read",
        "cpu",
        "wheel-shared.svg",
        "A timer that never fires: what tasks use, its look at the clock included",
    ),
    plot(
        "1M timers over 1 s",
        "cpu",
        "wheel-firing-cpu.svg",
        "A million timers that fire within a second: CPU",
    ),
    plot(
        "1M timers over 1 s",
        "lateness p99",
        "wheel-firing-lateness.svg",
        "A million timers that fire within a second: how late, p99",
    ),
    plot("memory of 1M pending timers", "heap bytes", "wheel-memory.svg", "A million pending timers: heap"),
];

const fn plot(bench: &'static str, metric: &'static str, file: &'static str, title: &'static str) -> Plot {
    Plot { bench, metric, file, title, note: "" }
}

pub(crate) fn draw(folder: &str) -> Result<()> {
    plot::draw("wheel", &PLOTS, folder)
}

/// Writes the figures into a page. Wall time is left out beside CPU time, because it only repeats CPU time with more noise. Allocations
/// are left out too: contenders that allocate are named elsewhere.
pub(crate) fn table(page: &str) -> Result<()> {
    table::put("wheel", page, |bench, metric| {
        ["allocations", "allocated", "cpu ratio", "time ratio"].contains(&metric)
            && bench != "memory of 1M pending timers"
    })
}
