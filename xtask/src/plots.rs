//! Plots of the benchmarks' page and the commits that they show.
//!
//! A plot must show the same commit as its section. This module identifies plots by the words under them.

use crate::files::{Complaint, File};

const PAGE: &str = "docs/benchmarks.md";

/// The pages of the tables that the benches write: `<area>.md`.
const TABLES: &str = "docs/lab/tables/";

/// Returns a complaint for each plot that was measured on a different commit than its section. `read` returns the text of a plot.
pub(crate) fn of_other_commits(files: &[File], read: impl Fn(&str) -> Option<String>) -> Vec<Complaint> {
    let Some(page) = files.iter().find(|file| file.path == PAGE) else { return Vec::new() };
    let (mut complaints, mut section) = (Vec::new(), 0);
    for (number, line) in page.text.lines().enumerate() {
        if line.starts_with('#') {
            section = number;
        }
        let plot = line.split_once("](img/").and_then(|(_, rest)| rest.split_once(')'));
        let Some((name, _)) = plot else { continue };
        let svg = read(&format!("docs/img/{name}"));
        let measured = svg.as_deref().and_then(|svg| word_behind(svg, "Measured on "));
        let Some(measured) = measured else {
            complaints.push(Complaint::at(
                page,
                number,
                format!("{name} does not say what it was measured on"),
            ));
            continue;
        };
        let tables = tables_of(files, name);
        let is_same = tables.map_or_else(
            || section_from(&page.text, section).contains(measured),
            |tables| tables == measured,
        );
        if !is_same {
            let what = format!("{name} was measured on {measured}, and its section was not");
            complaints.push(Complaint::at(page, number, what));
        }
    }
    complaints
}

/// Returns the commit of the tables that the plot's bench wrote. Returns `None` if the tables were written by hand.
fn tables_of<'a>(files: &'a [File], plot: &str) -> Option<&'a str> {
    let (area, _) = plot.split_once('-')?;
    let path = format!("{TABLES}{area}.md");
    let page = files.iter().find(|file| file.path == path)?;
    let (_, tables) = page.text.split_once(&format!("<!-- {area}: begin -->"))?;
    word_behind(tables, "Measured at ")
}

/// Returns the lines from a heading to the next heading.
fn section_from(page: &str, heading: usize) -> String {
    let mut lines = page.lines().skip(heading);
    let first = lines.next().unwrap_or_default();
    std::iter::once(first)
        .chain(lines.take_while(|line| !line.starts_with('#')))
        .collect::<Vec<_>>()
        .join("\n")
}

fn word_behind<'a>(text: &'a str, words: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(words)?;
    rest.split([' ', ';', '.', '\n']).next().filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(page: &str, tables: &str) -> Vec<String> {
        let files = [
            File { path: PAGE.into(), text: page.into() },
            File { path: format!("{TABLES}lock.md"), text: tables.into() },
        ];
        let plots =
            |path: &str| (path == "docs/img/lock-a.svg").then(|| "<text>Measured on abc1234.</text>".into());
        of_other_commits(&files, plots).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn plot_of_other_commit_is_named() {
        let page = "## Locks\n![a](img/lock-a.svg)\n";
        let tables = |commit: &str| format!("<!-- lock: begin -->\nMeasured at {commit}; medians.\n");
        assert_eq!(complaints(page, &tables("abc1234")), [""; 0]);
        let other = "docs/benchmarks.md:2: lock-a.svg was measured on abc1234, and its section was not";
        assert_eq!(complaints(page, &tables("def5678")), [other]);
        assert_eq!(complaints("### Hot\nAt abc1234.\n![a](img/lock-a.svg)\n", ""), [""; 0]);
        assert_eq!(complaints("At abc1234.\n### Hot\n![a](img/lock-a.svg)\n", "").len(), 1, "other section");
        assert_eq!(complaints("![a](img/lock-b.svg)\n", "").len(), 1, "there is no such plot");
    }
}
