//! Plots as SVG, from `target/bench/<area>.json`.
//!
//! There are bars on linear axes, points with ranges on logarithmic axes, curves over a count, and distributions. No library is needed: a
//! bar is a rectangle, and the rest is text.

mod axis;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use self::axis::{Axis, figure};

/// A figure that is drawn as bars, and its file.
#[derive(Clone, Copy, Debug)]
pub struct Plot {
    /// The bench.
    pub bench: &'static str,
    /// The metric; less is better.
    pub metric: &'static str,
    /// The file's name.
    pub file: &'static str,
    /// The title for the reader.
    pub title: &'static str,
    /// Additional information for the reader.
    pub note: &'static str,
}

/// A figure that is drawn as curves, and its file. The curves run over the number at the beginning of the benches' names.
#[derive(Clone, Copy, Debug)]
pub struct Curves {
    /// The rest of the benches' names, after the number.
    pub benches: &'static str,
    /// The name of the number.
    pub count: &'static str,
    /// The metric; more is better.
    pub metric: &'static str,
    /// The file's name.
    pub file: &'static str,
    /// The title for the reader.
    pub title: &'static str,
}

/// A bench whose times are drawn as points for each percentile, and its file. The metrics are `p50`, `p90`, `p99` and `p99.9`.
#[derive(Clone, Copy, Debug)]
pub struct Distribution {
    /// The bench.
    pub bench: &'static str,
    /// The contenders.
    pub subjects: &'static [&'static str],
    /// The file's name.
    pub file: &'static str,
    /// The title for the reader.
    pub title: &'static str,
}

/// Draws figures of an area's last run into a folder.
///
/// # Errors
///
/// If the area was never run, or without one of these benches, or if the folder cannot be written.
pub fn draw(area: &str, plots: &[Plot], folder: &str) -> Result<()> {
    let rows = rows(area)?;
    for plot in plots {
        let of = |row: &&Value| {
            row["bench"] == plot.bench && row["metric"] == plot.metric && row["subject"] != "no-op"
        };
        let points: Vec<_> = rows.iter().filter(of).filter_map(Point::read).collect();
        ensure!(!points.is_empty(), "the last run has nothing of {plot:?}");
        write(folder, plot.file, &bars(plot, &points))?;
    }
    Ok(())
}

/// Draws curves of an area's last run into a folder.
///
/// # Errors
///
/// If the area was never run, or without these benches, or if the folder cannot be written.
pub fn draw_curves(area: &str, plots: &[Curves], folder: &str) -> Result<()> {
    let rows = rows(area)?;
    for plot in plots {
        let of = |row: &&Value| row["metric"] == plot.metric;
        let count = |row: &Value| row["bench"].as_str()?.strip_suffix(plot.benches)?.parse().ok();
        let points: Vec<(f64, Point)> =
            rows.iter().filter(of).filter_map(|row| Some((count(row)?, Point::read(row)?))).collect();
        ensure!(!points.is_empty(), "the last run has nothing of {plot:?}");
        write(folder, plot.file, &curves(plot, &points))?;
    }
    Ok(())
}

/// Draws distributions of an area's last run into a folder.
///
/// # Errors
///
/// If the area was never run, or without one of these benches, or if the folder cannot be written.
pub fn draw_distributions(area: &str, plots: &[Distribution], folder: &str) -> Result<()> {
    let rows = rows(area)?;
    for plot in plots {
        let of = |row: &&Value| {
            row["bench"] == plot.bench && plot.subjects.iter().any(|subject| row["subject"] == *subject)
        };
        let percentile = |row: &Value| PERCENTILES.iter().position(|name| row["metric"] == *name);
        let points: Vec<(usize, Point)> =
            rows.iter().filter(of).filter_map(|row| Some((percentile(row)?, Point::read(row)?))).collect();
        ensure!(!points.is_empty(), "the last run has nothing of {plot:?}");
        write(folder, plot.file, &distribution(plot, &points))?;
    }
    Ok(())
}

fn write(folder: &str, file: &str, svg: &str) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    std::fs::write(Path::new(folder).join(file), svg)?;
    println!("{folder}/{file}");
    Ok(())
}

/// Returns the rows of an area's last run.
///
/// # Errors
///
/// If the area was never run.
pub fn rows(area: &str) -> Result<Vec<Value>> {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target")), PathBuf::from);
    let path = target.join("bench").join(format!("{area}.json"));
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("run the benches first: {}", path.display()))?;
    Ok(serde_json::from_str(&text)?)
}

/// One figure of one contender.
struct Point {
    subject: String,
    unit: String,
    commit: String,
    rounds: u64,
    median: f64,
    min: f64,
    max: f64,
}

impl Point {
    fn read(row: &Value) -> Option<Self> {
        Some(Self {
            subject: row["subject"].as_str()?.to_owned(),
            unit: row["unit"].as_str()?.to_owned(),
            commit: row["commit"].as_str().unwrap_or("a commit that was not noted").to_owned(),
            rounds: row["n"].as_u64()?,
            median: row["median"].as_f64()?,
            min: row["min"].as_f64()?,
            max: row["max"].as_f64()?,
        })
    }

    fn colour(&self) -> &'static str {
        if self.subject.starts_with("wheellock") { OURS } else { THEIRS }
    }
}

/// Returns a row for each contender. On a linear axis the row is a bar from zero to the median. On a logarithmic axis a length has no
/// meaning, so the row is a point. A line extends from minimum to maximum.
fn bars(plot: &Plot, points: &[Point]) -> String {
    const ROW: f64 = 26.0;
    let longest = points.iter().map(|point| point.subject.len()).max().unwrap_or_default();
    let label = 20.0 + LETTER * longest as f64;
    let width = WIDTH - label - ROOM_FOR_VALUES;
    let unit = points.first().map_or("", |point| &point.unit);
    let axis =
        Axis::of(points.iter().flat_map(|point| [point.median, point.min, point.max]), unit == "tasks");
    let x = |value: f64| label + axis.place(value) * width;
    let (top, bottom) = (72.0, 72.0 + ROW * points.len() as f64);
    let mut out = head(bottom + BELOW, plot.title, &format!("Less is better. {}", plot.note));
    for tick in axis.ticks() {
        let _ = writeln!(
            out,
            "<line x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{top}\" y2=\"{bottom}\" stroke=\"{GRID}\"/>\
             <text x=\"{0:.1}\" y=\"{1}\" text-anchor=\"middle\" fill=\"{WORDS}\">{2}</text>",
            x(tick),
            bottom + 17.0,
            figure(tick),
        );
    }
    out.push_str(&axis_title(label + width / 2.0, bottom + 36.0, &axis.title(plot.metric, unit)));
    for (index, point) in points.iter().enumerate() {
        let y = top + 4.0 + ROW * index as f64;
        let (base, middle) = (y + 13.0, y + 9.0);
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{base}\" text-anchor=\"end\">{}</text>",
            label - 8.0,
            escaped(&point.subject)
        );
        if axis.is_logarithmic {
            out.push_str(&dot(x(point.median), middle, point.colour()));
        } else {
            let _ = writeln!(
                out,
                "<rect x=\"{label:.1}\" y=\"{y}\" width=\"{:.1}\" height=\"18\" fill=\"{}\"/>",
                x(point.median) - label,
                point.colour()
            );
        }
        let _ = writeln!(
            out,
            "<line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{middle}\" y2=\"{middle}\" stroke=\"black\"/>\
             <text x=\"{:.1}\" y=\"{base}\">{}</text>",
            x(point.min),
            x(point.max),
            x(point.max) + 8.0,
            figure(point.median),
        );
    }
    out + &foot(bottom + 60.0, if axis.is_logarithmic { "Point" } else { "Bar" }, points.iter())
}

fn dot(x: f64, y: f64, colour: &str) -> String {
    format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\" fill=\"{colour}\"/>\n")
}

fn axis_title(x: f64, y: f64, title: &str) -> String {
    format!(
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\" fill=\"{WORDS}\">{}</text>\n",
        escaped(title)
    )
}

/// Returns the grid lines and figures of the vertical axis at `LEFT`, with its title beside it.
fn axis_up(up: &Axis, title: &str, right: f64, y: impl Fn(f64) -> f64) -> String {
    let mut out = String::new();
    for tick in up.ticks() {
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" x2=\"{right:.1}\" y1=\"{0:.1}\" y2=\"{0:.1}\" stroke=\"{GRID}\"/>\
             <text x=\"{1}\" y=\"{2:.1}\" text-anchor=\"end\" fill=\"{WORDS}\">{3}</text>",
            y(tick),
            LEFT - 8.0,
            y(tick) + 4.0,
            figure(tick),
        );
    }
    let middle = TOP + HEIGHT / 2.0;
    let _ = writeln!(
        out,
        "<text transform=\"translate(18 {middle}) rotate(-90)\" text-anchor=\"middle\" fill=\"{WORDS}\">{}</text>",
        escaped(title)
    );
    out
}

/// Returns a group of points for each percentile, side by side, so that equally fast contenders do not hide each other.
fn distribution(plot: &Distribution, points: &[(usize, Point)]) -> String {
    const APART: f64 = 14.0;
    let longest = plot.subjects.iter().map(|subject| subject.len()).max().unwrap_or_default();
    let width = WIDTH - LEFT - 40.0 - LETTER * longest as f64;
    let up = Axis::of(points.iter().flat_map(|(_, point)| [point.min, point.max]), false);
    let bottom = TOP + HEIGHT;
    let y = |value: f64| bottom - up.place(value) * HEIGHT;
    let unit = points.first().map_or("", |(_, point)| &point.unit);
    let mut out = head(bottom + BELOW, plot.title, "Less is better.");
    out.push_str(&axis_up(&up, &up.title("time", unit), LEFT + width, y));
    let group = width / PERCENTILES.len() as f64;
    for (place, name) in PERCENTILES.iter().enumerate() {
        out.push_str(&axis_title(LEFT + group * (place as f64 + 0.5), bottom + 17.0, name));
    }
    out.push_str(&axis_title(LEFT + width / 2.0, bottom + 36.0, "percentile"));
    for (number, subject) in plot.subjects.iter().enumerate() {
        let colour = colour_of(subject, number);
        let aside = (number as f64 - (plot.subjects.len() as f64 - 1.0) / 2.0) * APART;
        for (place, point) in points.iter().filter(|(_, point)| point.subject == *subject) {
            let x = LEFT + group * (*place as f64 + 0.5) + aside;
            let _ = writeln!(
                out,
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\"/>",
                y(point.min),
                y(point.max)
            );
            out.push_str(&dot(x, y(point.median), colour));
        }
        let line = TOP + 10.0 + 20.0 * number as f64;
        out.push_str(&dot(LEFT + width + 16.0, line - 4.0, colour));
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{line}\" fill=\"{colour}\">{}</text>",
            LEFT + width + 26.0,
            escaped(subject)
        );
    }
    out + &foot(bottom + 60.0, "Point", points.iter().map(|(_, point)| point))
}

fn colour_of(subject: &str, number: usize) -> &'static str {
    if subject == "wheellock" { OURS } else { OTHERS.get(number % OTHERS.len()).copied().unwrap_or(THEIRS) }
}

/// Returns one curve per contender over the number, on a logarithmic axis.
fn curves(plot: &Curves, points: &[(f64, Point)]) -> String {
    let mut subjects: Vec<&str> = Vec::new();
    for (_, point) in points {
        if !subjects.contains(&point.subject.as_str()) {
            subjects.push(&point.subject);
        }
    }
    let longest = subjects.iter().map(|subject| subject.len()).max().unwrap_or_default();
    let width = WIDTH - LEFT - 20.0 - LETTER * longest as f64;
    let counts = points.iter().map(|(count, _)| *count);
    let across = Axis {
        is_logarithmic: true,
        least: counts.clone().fold(f64::MAX, f64::min),
        most: counts.fold(1.0, f64::max),
    };
    let up = Axis::of(points.iter().flat_map(|(_, point)| [point.min, point.max]), false);
    let bottom = TOP + HEIGHT;
    let x = |count: f64| LEFT + across.place(count) * width;
    let y = |value: f64| bottom - up.place(value) * HEIGHT;
    let unit = points.first().map_or("", |(_, point)| &point.unit);
    let mut out = head(bottom + BELOW, plot.title, "More is better.");
    out.push_str(&axis_up(&up, &up.title(plot.metric, unit), LEFT + width, y));
    out.push_str(&axis_title(LEFT + width / 2.0, bottom + 36.0, &format!("{} (logarithmic)", plot.count)));
    let mut ticks: Vec<f64> = points.iter().map(|(count, _)| *count).collect();
    ticks.sort_by(f64::total_cmp);
    ticks.dedup();
    for tick in ticks {
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\" fill=\"{WORDS}\">{tick}</text>",
            x(tick),
            bottom + 17.0,
        );
    }
    // Each name is at the end of its curve. Where the ends are close, the names are below each other.
    let end = |subject: &str| {
        let last = points.iter().rfind(|(_, point)| point.subject == subject);
        last.map_or(bottom, |(_, point)| y(point.median))
    };
    let mut labels: Vec<(f64, &str)> = subjects.iter().map(|subject| (end(subject), *subject)).collect();
    labels.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut free: f64 = TOP;
    for (number, (place, subject)) in labels.into_iter().enumerate() {
        let colour = colour_of(subject, number);
        let of = points.iter().filter(|(_, point)| point.subject == subject);
        let mut line = String::new();
        for (count, point) in of {
            let _ = write!(line, "{:.1},{:.1} ", x(*count), y(point.median));
            let _ = writeln!(
                out,
                "<line x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{1:.1}\" y2=\"{2:.1}\" stroke=\"{colour}\"/>",
                x(*count),
                y(point.min),
                y(point.max),
            );
        }
        free = free.max(place);
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">{}</text>",
            line.trim_end(),
            LEFT + width + 8.0,
            free + 4.0,
            escaped(subject),
        );
        free += 16.0;
    }
    out + &foot(bottom + 60.0, "Curve", points.iter().map(|(_, point)| point))
}

fn head(height: f64, title: &str, subtitle: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"10\" y=\"24\" font-size=\"16\" font-weight=\"bold\">{}</text>\n\
         <text x=\"10\" y=\"46\" fill=\"{WORDS}\">{}</text>\n",
        escaped(title),
        escaped(subtitle),
    )
}

/// Returns the foot of a plot: its content, the number of rounds, and the commit.
fn foot<'a>(y: f64, what: &str, points: impl Iterator<Item = &'a Point> + Clone) -> String {
    let most = points.clone().map(|point| point.rounds).max().unwrap_or_default();
    let least = points.clone().map(|point| point.rounds).min().unwrap_or_default();
    let rounds = if least == most { most.to_string() } else { format!("{least} to {most}") };
    let commit = points.map(|point| point.commit.as_str()).next().unwrap_or_default();
    format!(
        "<text x=\"10\" y=\"{y}\" font-size=\"12\" fill=\"{WORDS}\">{what}: median of {rounds} rounds; thin line: from the least to \
         the most of them. Measured on {commit}.</text>\n</svg>\n",
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

const WIDTH: f64 = 820.0;
const TOP: f64 = 72.0;
/// Height of curves and distributions.
const HEIGHT: f64 = 300.0;
/// Position of the vertical axis.
const LEFT: f64 = 90.0;
/// Room for figures, the axis' title and the foot.
const BELOW: f64 = 76.0;
/// The percentiles along the axis of a distribution.
const PERCENTILES: [&str; 4] = ["p50", "p90", "p99", "p99.9"];
const ROOM_FOR_VALUES: f64 = 80.0;
/// Average width of a letter of 13 pixels, as an upper bound.
const LETTER: f64 = 7.2;
const OURS: &str = "#c2410c";
const THEIRS: &str = "#94a3b8";
const OTHERS: [&str; 6] = ["#334155", "#0369a1", "#15803d", "#7c3aed", "#a16207", "#be185d"];
const GRID: &str = "#e2e8f0";
const WORDS: &str = "#475569";
