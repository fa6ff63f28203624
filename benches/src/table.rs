//! Tables in Markdown, from `target/bench/<area>.json`.
//!
//! There is a table per bench, a line per contender, and a column per metric.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::{Figure, plot};

/// Writes the figures of an area's last run into a page, between the lines `<!-- <area>: begin -->` and `<!-- <area>: end -->`. The metrics
/// for which `left_out` returns true are omitted.
///
/// # Errors
///
/// If the area was never run, or the page has no such lines.
pub fn put(area: &str, page: &str, left_out: impl Fn(&str, &str) -> bool) -> Result<()> {
    let (begin, end) = (format!("<!-- {area}: begin -->"), format!("<!-- {area}: end -->"));
    let text = std::fs::read_to_string(page).with_context(|| format!("no {page}"))?;
    let (before, rest) = text.split_once(&begin).context("the page has no place for the tables")?;
    let (_, after) = rest.split_once(&end).context("the place for the tables does not end")?;
    let mut rows: Vec<_> = plot::rows(area)?.iter().filter_map(Row::read).collect();
    rows.retain(|row| !left_out(&row.bench, &row.metric));
    let commit = &rows.first().context("the run has no rows")?.commit;
    ensure!(rows.iter().all(|row| row.commit == *commit), "rows of more than one commit");
    let mut out = format!("Measured at {commit}; medians, with the least and the most of the rounds.\n");
    for bench in distinct(rows.iter().map(|row| &row.bench)) {
        let rows: Vec<_> = rows.iter().filter(|row| row.bench == *bench).collect();
        of_bench(&mut out, bench, &rows);
    }
    std::fs::write(page, format!("{before}{begin}\n{out}{end}{after}"))?;
    println!("{page}");
    Ok(())
}

fn of_bench(out: &mut String, bench: &str, rows: &[&Row]) {
    let metrics = distinct(rows.iter().map(|row| (&row.metric, &row.unit)));
    let heads: Vec<_> = metrics.iter().map(|(metric, unit)| head(metric, unit)).collect();
    let _ =
        writeln!(out, "\n**{bench}**\n\n| | {} |\n|---|{}", heads.join(" | "), "---|".repeat(heads.len()));
    for subject in distinct(rows.iter().map(|row| &row.subject)) {
        let cells: Vec<_> = metrics
            .iter()
            .map(|metric| {
                let of = |row: &&&Row| row.subject == *subject && (&row.metric, &row.unit) == *metric;
                rows.iter().find(of).map_or_else(|| "-".to_owned(), |row| row.cell())
            })
            .collect();
        let _ = writeln!(out, "| {subject} | {} |", cells.join(" | "));
    }
}

/// Returns the head of a column: "cpu" in "us/pair" becomes "cpu, us/pair", and "commands" in "1/pair" becomes "commands/pair".
fn head(metric: &str, unit: &str) -> String {
    match unit.strip_prefix('1') {
        Some(per) if per.starts_with('/') => format!("{metric}{per}"),
        _ if unit.is_empty() => metric.to_owned(),
        _ => format!("{metric}, {unit}"),
    }
}

/// Returns each item once, in the order of first occurrence.
fn distinct<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = Vec::new();
    for one in all {
        if !seen.contains(&one) {
            seen.push(one);
        }
    }
    seen
}

struct Row {
    bench: String,
    subject: String,
    metric: String,
    unit: String,
    commit: String,
    median: f64,
    min: f64,
    max: f64,
}

impl Row {
    fn read(row: &Value) -> Option<Self> {
        let text = |key: &str| Some(row[key].as_str()?.to_owned());
        Some(Self {
            bench: text("bench")?,
            subject: text("subject")?,
            metric: text("metric")?,
            unit: text("unit")?,
            commit: text("commit")?,
            median: row["median"].as_f64()?,
            min: row["min"].as_f64()?,
            max: row["max"].as_f64()?,
        })
    }

    fn cell(&self) -> String {
        let [median, min, max] = [self.median, self.min, self.max].map(|value| Figure(value).to_string());
        if min == max { median } else { format!("{median} ({min} to {max})") }
    }
}
