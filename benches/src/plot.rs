//! Figures as SVG, from `target/bench/<area>.json`: bars, one file per figure, and curves over a count. No library: a bar is a
//! rectangle, and what a reader needs beside it is words.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

/// Which figure is drawn into which file, as bars.
#[derive(Clone, Copy, Debug)]
pub struct Plot {
    /// The bench.
    pub bench: &'static str,
    /// The metric; less is better.
    pub metric: &'static str,
    /// The file's name.
    pub file: &'static str,
    /// What a reader is told that it is.
    pub title: &'static str,
    /// What else a reader has to know.
    pub note: &'static str,
}

/// Which figure is drawn into which file, as curves over the number that the names of some benches begin with.
#[derive(Clone, Copy, Debug)]
pub struct Curves {
    /// How the benches' names go on after the number.
    pub benches: &'static str,
    /// What the number counts.
    pub count: &'static str,
    /// The metric; more is better.
    pub metric: &'static str,
    /// The file's name.
    pub file: &'static str,
    /// What a reader is told that it is.
    pub title: &'static str,
}

/// Which bench's times are drawn into which file, as curves over how rare they are: the metrics `p50`, `p90`, `p99` and `p99.9`.
#[derive(Clone, Copy, Debug)]
pub struct Distribution {
    /// The bench.
    pub bench: &'static str,
    /// Of which contenders.
    pub subjects: &'static [&'static str],
    /// The file's name.
    pub file: &'static str,
    /// What a reader is told that it is.
    pub title: &'static str,
}

/// Draws figures of an area's last run into a folder.
///
/// # Errors
///
/// The area was never run, or without one of these benches, or the folder cannot be written.
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
/// The area was never run, or without these benches, or the folder cannot be written.
pub fn draw_curves(area: &str, plots: &[Curves], folder: &str) -> Result<()> {
    let rows = rows(area)?;
    for plot in plots {
        let of = |row: &&Value| row["metric"] == plot.metric;
        let count = |row: &Value| row["bench"].as_str()?.strip_suffix(plot.benches)?.parse().ok();
        let points: Vec<(f64, Point)> =
            rows.iter().filter(of).filter_map(|row| Some((count(row)?, Point::read(row)?))).collect();
        ensure!(!points.is_empty(), "the last run has nothing of {plot:?}");
        write(folder, plot.file, &curves(plot.title, ("more", plot.count), &points))?;
    }
    Ok(())
}

/// Draws distributions of an area's last run into a folder.
///
/// # Errors
///
/// The area was never run, or without one of these benches, or the folder cannot be written.
pub fn draw_distributions(area: &str, plots: &[Distribution], folder: &str) -> Result<()> {
    let rows = rows(area)?;
    for plot in plots {
        // A percentile is what one in so many exceeds.
        let one_in = |row: &Value| {
            let percent: f64 = row["metric"].as_str()?.strip_prefix('p')?.parse().ok()?;
            Some((100.0 / (100.0 - percent)).round())
        };
        let of = |row: &&Value| {
            row["bench"] == plot.bench && plot.subjects.iter().any(|subject| row["subject"] == *subject)
        };
        let points: Vec<(f64, Point)> =
            rows.iter().filter(of).filter_map(|row| Some((one_in(row)?, Point::read(row)?))).collect();
        ensure!(!points.is_empty(), "the last run has nothing of {plot:?}");
        let count = "one in so many takes longer (p50, p90, p99, p99.9)";
        write(folder, plot.file, &curves(plot.title, ("less", count), &points))?;
    }
    Ok(())
}

fn write(folder: &str, file: &str, svg: &str) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    std::fs::write(Path::new(folder).join(file), svg)?;
    println!("{folder}/{file}");
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

/// From values to places along a line.
struct Axis {
    is_logarithmic: bool,
    least: f64,
    most: f64,
}

impl Axis {
    /// Logarithmic where bars of one length would hide the others.
    fn of(values: impl Iterator<Item = f64> + Clone) -> Self {
        let most = values.clone().fold(f64::MIN_POSITIVE, f64::max);
        let least = values.filter(|value| *value > 0.0).fold(most, f64::min);
        if most / least > 20.0 {
            // A whole decade below the least, or it would have no bar.
            let least = 10_f64.powf((least * 0.8).log10().floor());
            Self { is_logarithmic: true, least, most }
        } else {
            Self { is_logarithmic: false, least: 0.0, most }
        }
    }

    /// A fraction of the line.
    fn place(&self, value: f64) -> f64 {
        if self.is_logarithmic {
            (value.max(self.least) / self.least).log10() / (self.most / self.least).log10()
        } else {
            value / self.most
        }
    }

    fn ticks(&self) -> Vec<f64> {
        if self.is_logarithmic {
            let decades = std::iter::successors(Some(self.least), |tick| Some(tick * 10.0));
            return decades.take_while(|tick| *tick <= self.most).collect();
        }
        let rough = 10_f64.powf((self.most / 4.0).log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|times| rough * times);
        let step = step.into_iter().find(|step| self.most / step <= 6.0).unwrap_or(rough * 10.0);
        (0_u8..=6).map(|times| f64::from(times) * step).take_while(|tick| *tick <= self.most).collect()
    }

    fn scale(&self) -> &'static str {
        if self.is_logarithmic { "; logarithmic" } else { "" }
    }
}

/// Horizontal bars to the median, with a line from minimum to maximum.
fn bars(plot: &Plot, points: &[Point]) -> String {
    const ROW: f64 = 26.0;
    let longest = points.iter().map(|point| point.subject.len()).max().unwrap_or_default();
    let label = 20.0 + LETTER * longest as f64;
    let width = WIDTH - label - ROOM_FOR_VALUES;
    let axis = Axis::of(points.iter().flat_map(|point| [point.median, point.min, point.max]));
    let x = |value: f64| label + axis.place(value) * width;
    let (top, bottom) = (72.0, 72.0 + ROW * points.len() as f64);
    let unit = points.first().map_or("", |point| &point.unit);
    let subtitle = format!("{unit}{}; less is better. {}", axis.scale(), plot.note);
    let mut out = head(bottom + 62.0, plot.title, &subtitle);
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
    for (index, point) in points.iter().enumerate() {
        let y = top + 4.0 + ROW * index as f64;
        let (base, middle) = (y + 13.0, y + 9.0);
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{base}\" text-anchor=\"end\">{}</text>\
             <rect x=\"{label:.1}\" y=\"{y}\" width=\"{:.1}\" height=\"18\" fill=\"{}\"/>\
             <line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{middle}\" y2=\"{middle}\" stroke=\"black\"/>\
             <text x=\"{:.1}\" y=\"{base}\">{}</text>",
            label - 8.0,
            escaped(&point.subject),
            x(point.median) - label,
            point.colour(),
            x(point.min),
            x(point.max),
            x(point.max) + 6.0,
            figure(point.median),
        );
    }
    out + &foot(bottom + 46.0, "Bar and figure", points.iter())
}

/// One curve per contender over the number, of which the axis is logarithmic; `better` is less or more.
fn curves(title: &str, (better, count): (&str, &str), points: &[(f64, Point)]) -> String {
    const HEIGHT: f64 = 300.0;
    const LEFT: f64 = 90.0;
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
    let up = Axis::of(points.iter().flat_map(|(_, point)| [point.min, point.max]));
    let (top, bottom) = (72.0, 72.0 + HEIGHT);
    let x = |count: f64| LEFT + across.place(count) * width;
    let y = |value: f64| bottom - up.place(value) * HEIGHT;
    let unit = points.first().map_or("", |(_, point)| &point.unit);
    let subtitle = format!("{unit}{}; {better} is better. Across: {count}", up.scale());
    let mut out = head(bottom + 62.0, title, &subtitle);
    for tick in up.ticks() {
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{1:.1}\" y2=\"{1:.1}\" stroke=\"{GRID}\"/>\
             <text x=\"{2}\" y=\"{3:.1}\" text-anchor=\"end\" fill=\"{WORDS}\">{4}</text>",
            LEFT + width,
            y(tick),
            LEFT - 8.0,
            y(tick) + 4.0,
            figure(tick),
        );
    }
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
    // Names stand at the ends of their curves, one below the other where the ends are close.
    let end = |subject: &str| {
        let last = points.iter().rfind(|(_, point)| point.subject == subject);
        last.map_or(bottom, |(_, point)| y(point.median))
    };
    let mut labels: Vec<(f64, &str)> = subjects.iter().map(|subject| (end(subject), *subject)).collect();
    labels.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut free: f64 = top;
    for (number, (place, subject)) in labels.into_iter().enumerate() {
        let colour = if subject == "wheellock" { OURS } else { OTHERS[number % OTHERS.len()] };
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
    out + &foot(bottom + 46.0, "Curve", points.iter().map(|(_, point)| point))
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

/// What is drawn, of how many rounds, and of which commit.
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

/// Three digits that say something; thousands apart.
fn figure(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    if value < 100.0 {
        let before = value.log10().floor();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "not negative, and small"
        )]
        let digits = (2.0 - before).clamp(0.0, 9.0) as usize;
        let text = format!("{value:.digits$}");
        let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
        return text.to_owned();
    }
    let size = 10_f64.powf(value.log10().floor() - 2.0);
    let whole = format!("{:.0}", (value / size).round() * size);
    let mut text = String::new();
    for (place, digit) in whole.chars().enumerate() {
        if place > 0 && (whole.len() - place) % 3 == 0 {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

const WIDTH: f64 = 820.0;
const ROOM_FOR_VALUES: f64 = 80.0;
/// A letter of 13 pixels is no wider on average.
const LETTER: f64 = 7.2;
const OURS: &str = "#c2410c";
const THEIRS: &str = "#94a3b8";
const OTHERS: [&str; 6] = ["#334155", "#0369a1", "#15803d", "#7c3aed", "#a16207", "#be185d"];
const GRID: &str = "#e2e8f0";
const WORDS: &str = "#475569";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits_that_say_something() {
        for (value, text) in [
            (0.0, "0"),
            (0.07, "0.07"),
            (0.071_26, "0.0713"),
            (1.0, "1"),
            (84.372, "84.4"),
            (99.99, "100"),
            (122.935, "123"),
            (1_270_123.0, "1\u{202f}270\u{202f}000"),
        ] {
            assert_eq!(figure(value), text);
        }
    }

    #[test]
    fn an_axis_is_logarithmic_where_bars_of_one_length_would_hide_the_others() {
        let axis = Axis::of([0.07, 84.0, 86.0].into_iter());
        assert!(axis.is_logarithmic && axis.place(0.07) > 0.1 && axis.place(86.0) > 0.999);
        let ticks: Vec<String> = axis.ticks().into_iter().map(figure).collect();
        assert_eq!(ticks, ["0.01", "0.1", "1", "10"]);
        let axis = Axis::of([0.0, 9.0, 19.0].into_iter());
        assert!(!axis.is_logarithmic && axis.place(0.0) == 0.0);
        assert_eq!(axis.ticks(), [0.0, 5.0, 10.0, 15.0]);
    }
}
