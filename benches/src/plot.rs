//! Bars as SVG, one file per figure, from `target/bench/<area>.json`. No library: a bar is a rectangle.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::Value;

/// Which figure is drawn into which file.
#[derive(Clone, Copy, Debug)]
pub struct Plot {
    /// The bench.
    pub bench: &'static str,
    /// The metric; less is better.
    pub metric: &'static str,
    /// The file's name.
    pub file: &'static str,
}

/// Draws figures of an area's last run into a folder.
///
/// # Errors
///
/// The area was never run, or the folder cannot be written.
pub fn draw(area: &str, plots: &[Plot], folder: &str) -> Result<()> {
    let rows = rows(area)?;
    std::fs::create_dir_all(folder)?;
    for Plot { bench, metric, file } in plots {
        let of =
            |row: &&Value| row["bench"] == *bench && row["metric"] == *metric && row["subject"] != "no-op";
        let bars: Vec<_> = rows.iter().filter(of).filter_map(Bar::read).collect();
        let Some(unit) = rows.iter().find(of) else { continue };
        let title = format!("{bench}: {metric}, {}", unit["unit"].as_str().unwrap_or_default());
        std::fs::write(Path::new(folder).join(file), svg(&title, &bars))?;
        println!("{folder}/{file}");
    }
    Ok(())
}

/// The rows of an area's last run.
///
/// # Errors
///
/// It was never run.
pub fn rows(area: &str) -> Result<Vec<Value>> {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target")), PathBuf::from);
    let path = target.join("bench").join(format!("{area}.json"));
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
