//! Bars as SVG, one file per bench, and tables, both from `target/bench/wheel.json`. No library: a bar is a rectangle.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::Value;

/// Which figures are drawn: bench, metric, file.
const PLOTS: [(&str, &str, &str); 7] = [
    ("core: schedule+cancel, 0 live", "cpu", "wheel-core-0.svg"),
    ("core: schedule+cancel, 1M live", "cpu", "wheel-core-1m.svg"),
    ("shared: schedule+cancel, clock read", "cpu", "wheel-shared.svg"),
    ("shared: schedule+cancel, 2 threads", "cpu", "wheel-two-threads.svg"),
    ("1M timers over 1 s", "cpu", "wheel-firing-cpu.svg"),
    ("1M timers over 1 s", "lateness p99", "wheel-firing-lateness.svg"),
    ("memory of 1M pending timers", "heap bytes", "wheel-memory.svg"),
];

pub(crate) fn draw(folder: &str) -> Result<()> {
    let rows = rows()?;
    std::fs::create_dir_all(folder)?;
    for (bench, metric, file) in PLOTS {
        let bars: Vec<_> = rows
            .iter()
            .filter(|row| row["bench"] == bench && row["metric"] == metric && row["subject"] != "no-op")
            .filter_map(Bar::read)
            .collect();
        let Some(unit) = rows.iter().find(|row| row["bench"] == bench && row["metric"] == metric) else {
            continue;
        };
        let title = format!("{bench}: {metric}, {}", unit["unit"].as_str().unwrap_or_default());
        std::fs::write(Path::new(folder).join(file), svg(&title, &bars))?;
        println!("{folder}/{file}");
    }
    Ok(())
}

/// Puts the figures into a page, between the lines `<!-- wheel: begin -->` and `<!-- wheel: end -->`.
pub(crate) fn table(page: &str) -> Result<()> {
    let text = std::fs::read_to_string(page).with_context(|| format!("no {page}"))?;
    let (before, rest) = text.split_once(BEGIN).context("the page has no place for the tables")?;
    let (_, after) = rest.split_once(END).context("the place for the tables does not end")?;
    let mut out = String::new();
    let mut last = String::new();
    for row in rows()? {
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

fn rows() -> Result<Vec<Value>> {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target")), PathBuf::from);
    let path = target.join("bench/wheel.json");
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("run the benches first: {}", path.display()))?;
    Ok(serde_json::from_str(&text)?)
}

struct Bar {
    subject: String,
    median: f64,
    min: f64,
    max: f64,
}

impl Bar {
    fn read(row: &Value) -> Option<Self> {
        Some(Self {
            subject: row["subject"].as_str()?.to_owned(),
            median: row["median"].as_f64()?,
            min: row["min"].as_f64()?,
            max: row["max"].as_f64()?,
        })
    }
}

/// Horizontal bars to the median, with a line from minimum to maximum; less is better everywhere.
fn svg(title: &str, bars: &[Bar]) -> String {
    const LABEL: f64 = 250.0;
    const WIDTH: f64 = 420.0;
    const ROW: f64 = 26.0;
    let most = bars.iter().map(|bar| bar.max).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let height = 50.0 + ROW * bars.len() as f64;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"760\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"10\" y=\"22\" font-size=\"15\">{title}</text>\n"
    );
    for (index, bar) in bars.iter().enumerate() {
        let y = 40.0 + ROW * index as f64;
        let (base, middle) = (y + 13.0, y + 8.0);
        let x = |value: f64| LABEL + value / most * WIDTH;
        let colour = if bar.subject.starts_with("wheellock") { "#c2410c" } else { "#94a3b8" };
        let _ = writeln!(
            out,
            "<text x=\"{:.0}\" y=\"{base:.0}\" text-anchor=\"end\">{}</text>\
             <rect x=\"{LABEL}\" y=\"{y:.0}\" width=\"{:.1}\" height=\"17\" fill=\"{colour}\"/>\
             <line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{middle:.0}\" y2=\"{middle:.0}\" stroke=\"black\"/>\
             <text x=\"{:.1}\" y=\"{base:.0}\">{:.3}</text>",
            LABEL - 8.0,
            bar.subject,
            x(bar.median) - LABEL,
            x(bar.min),
            x(bar.max),
            x(bar.max) + 6.0,
            bar.median,
        );
    }
    out + "</svg>\n"
}
