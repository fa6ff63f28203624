//! What of the wheel's figures is drawn, and the tables of all of them.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use wheellock_benches::plot::{self, Plot};

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

/// Puts the figures into a page, between the lines `<!-- wheel: begin -->` and `<!-- wheel: end -->`.
pub(crate) fn table(page: &str) -> Result<()> {
    let text = std::fs::read_to_string(page).with_context(|| format!("no {page}"))?;
    let (before, rest) = text.split_once(BEGIN).context("the page has no place for the tables")?;
    let (_, after) = rest.split_once(END).context("the place for the tables does not end")?;
    let mut out = String::new();
    let mut last = String::new();
    for row in plot::rows("wheel")? {
        let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
        let (bench, metric) = (text("bench"), text("metric"));
        // Wall time beside CPU time only repeats it, with more noise; nobody allocates but those who say so elsewhere.
        if ["allocations", "allocated", "cpu ratio", "time ratio"].contains(&metric.as_str())
            && bench != "memory of 1M pending timers"
        {
            continue;
        }
        if bench != last {
            let _ = write!(
                out,
                "\n### {bench}\n\n| contender | metric | median | min | max | unit |\n|---|---|---|---|---|---|\n"
            );
            last = bench;
        }
        let figure = |key: &str| match row[key].as_f64().unwrap_or_default() {
            value if value >= 100.0 => format!("{value:.0}"),
            value if value >= 10.0 => format!("{value:.1}"),
            value => format!("{value:.2}"),
        };
        let (median, min, max) = (figure("median"), figure("min"), figure("max"));
        let _ =
            writeln!(out, "| {} | {metric} | {median} | {min} | {max} | {} |", text("subject"), text("unit"));
    }
    std::fs::write(page, format!("{before}{BEGIN}\n{out}\n{END}{after}"))?;
    println!("{page}");
    Ok(())
}

const BEGIN: &str = "<!-- wheel: begin -->";
const END: &str = "<!-- wheel: end -->";
