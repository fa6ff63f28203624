//! Benchmark rows in which a peer is better.
//!
//! This module is pure: it turns rows into complaints.

use std::fmt;

use serde_json::Value;

/// One figure of one contender, as in `target/bench/<area>.json`.
#[derive(Debug)]
pub(crate) struct Row {
    bench: String,
    subject: String,
    metric: String,
    unit: String,
    median: f64,
    min: f64,
    max: f64,
    is_floor: bool,
}

impl Row {
    /// Reads a row. Returns `None` if the JSON is not a row.
    pub(crate) fn of(row: &Value) -> Option<Self> {
        let text = |field: &str| row[field].as_str().map(str::to_owned);
        let number = |field: &str| row[field].as_f64();
        Some(Self {
            bench: text("bench")?,
            subject: text("subject")?,
            metric: text("metric")?,
            unit: text("unit")?,
            median: number("median")?,
            min: number("min")?,
            max: number("max")?,
            is_floor: row["floor"].as_bool()?,
        })
    }
}

/// A peer's figure that is better than ours.
#[derive(Debug)]
pub(crate) struct Behind<'a> {
    ours: &'a Row,
    peer: &'a Row,
}

/// Returns every figure of ours for which the best peer of the same bench has a better figure.
pub(crate) fn behind(rows: &[Row]) -> Vec<Behind<'_>> {
    let best_peer = |ours: &Row| {
        let rivals = rows.iter().filter(|row| !is_ours(row) && !is_floor(row) && is_same(row, ours));
        rivals.reduce(|best, row| if is_better(row, best) { row } else { best })
    };
    let compared = rows.iter().filter(|row| is_ours(row) && !is_derived(row));
    compared
        .filter_map(|ours| Some(Behind { ours, peer: best_peer(ours)? }))
        .filter(|Behind { ours, peer }| is_better(peer, ours))
        .collect()
}

fn is_ours(row: &Row) -> bool {
    row.subject.starts_with("wheellock")
}

/// Returns true if the row does less work than a contender must do.
fn is_floor(row: &Row) -> bool {
    row.is_floor || FLOORS.iter().any(|floor| row.subject.starts_with(floor))
}

const FLOORS: [&str; 3] = ["raw ", "tokio's mutex", "no-op"];

/// Returns true if the row is a ratio of two other rows.
fn is_derived(row: &Row) -> bool {
    row.metric.ends_with(" ratio") || row.metric.starts_with("p50 to ")
}

fn is_same(row: &Row, other: &Row) -> bool {
    (&row.bench, &row.metric, &row.unit) == (&other.bench, &other.metric, &other.unit)
}

fn is_better(row: &Row, other: &Row) -> bool {
    if is_better_high(row) { row.median > other.median } else { row.median < other.median }
}

/// Returns true if a higher figure of this metric is better. For nearly all metrics, a lower figure is better.
fn is_better_high(row: &Row) -> bool {
    ["throughput", "acquires", "releases"].contains(&row.metric.as_str()) || row.metric.starts_with("Jain")
}

impl fmt::Display for Behind<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ours, peer } = self;
        let Row { bench, subject, metric, unit, .. } = ours;
        let apart = ours.min > peer.max || ours.max < peer.min;
        write!(
            f,
            "{bench}, {metric}: {subject} {:.3} {unit}, {} {:.3} {unit}{}",
            ours.median,
            peer.subject,
            peer.median,
            if apart { "" } else { " (their rounds overlap)" },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(subject: &str, metric: &str, median: f64) -> Row {
        Row {
            bench: "pairs".to_owned(),
            subject: subject.to_owned(),
            metric: metric.to_owned(),
            unit: "x".to_owned(),
            median,
            min: median * 0.9,
            max: median * 1.1,
            is_floor: subject == "floor",
        }
    }

    fn found(rows: &[Row]) -> Vec<String> {
        behind(rows).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn only_throughput_and_fairness_prefer_more() {
        let slower = [row("wheellock", "p50", 2.0), row("rslock", "p50", 1.0), row("rlock", "p50", 0.5)];
        assert_eq!(found(&slower), ["pairs, p50: wheellock 2.000 x, rlock 0.500 x"]);
        for metric in ["throughput", "acquires", "releases", "Jain fairness"] {
            assert!(found(&[row("wheellock", metric, 2.0), row("rslock", metric, 1.0)]).is_empty());
            assert_eq!(found(&[row("wheellock", metric, 1.0), row("rslock", metric, 2.0)]).len(), 1);
        }
    }

    #[test]
    fn ties_floors_and_ratios_never_win() {
        assert!(found(&[row("wheellock", "allocations", 0.0), row("rslock", "allocations", 0.0)]).is_empty());
        for floor in ["floor", "raw tokio", "tokio's mutex (one process)", "no-op"] {
            assert!(found(&[row("wheellock", "p50", 2.0), row(floor, "p50", 1.0)]).is_empty());
        }
        assert!(found(&[row("wheellock", "cpu ratio", 2.0), row("rslock", "cpu ratio", 1.0)]).is_empty());
    }

    #[test]
    fn overlapping_win_is_marked() {
        let close = found(&[row("wheellock", "p50", 1.05), row("rslock", "p50", 1.0)]);
        assert_eq!(close, ["pairs, p50: wheellock 1.050 x, rslock 1.000 x (their rounds overlap)"]);
    }

    #[test]
    fn own_lock_kinds_compare_separately() {
        let rows =
            [row("wheellock", "p50", 2.0), row("wheellock simple", "p50", 0.9), row("rslock", "p50", 1.0)];
        assert_eq!(found(&rows).len(), 1);
    }
}
