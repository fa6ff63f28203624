//! Axes of plots: positions, ticks, titles and figures.

/// A map from values to positions along a line.
pub(super) struct Axis {
    pub(super) is_logarithmic: bool,
    pub(super) least: f64,
    pub(super) most: f64,
}

impl Axis {
    /// Creates an axis. It is logarithmic if one value would hide the others. A count can be zero, so its axis is always linear.
    pub(super) fn of(values: impl Iterator<Item = f64> + Clone, is_count: bool) -> Self {
        let most = values.clone().fold(f64::MIN_POSITIVE, f64::max);
        let least = values.filter(|value| *value > 0.0).fold(most, f64::min);
        if most / least > 20.0 && !is_count {
            // Begin at a whole decade, so that the first tick is a round number.
            let least = 10_f64.powf((least * 0.8).log10().floor());
            Self { is_logarithmic: true, least, most }
        } else {
            Self { is_logarithmic: false, least: 0.0, most }
        }
    }

    /// Returns the position of a value, as a fraction of the line.
    pub(super) fn place(&self, value: f64) -> f64 {
        if self.is_logarithmic {
            (value.max(self.least) / self.least).log10() / (self.most / self.least).log10()
        } else {
            value / self.most
        }
    }

    pub(super) fn ticks(&self) -> Vec<f64> {
        if self.is_logarithmic {
            let decades = std::iter::successors(Some(self.least), |tick| Some(tick * 10.0));
            return decades.take_while(|tick| *tick <= self.most).collect();
        }
        let rough = 10_f64.powf((self.most / 4.0).log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|times| rough * times);
        let step = step.into_iter().find(|step| self.most / step <= 6.0).unwrap_or(rough * 10.0);
        (0_u8..=6).map(|times| f64::from(times) * step).take_while(|tick| *tick <= self.most).collect()
    }

    /// Returns the axis' title: the metric, its unit, and a mark if the axis is logarithmic.
    pub(super) fn title(&self, metric: &str, unit: &str) -> String {
        let unit = unit_shown(unit);
        let unit = if unit.is_empty() { unit } else { format!(", {unit}") };
        format!("{metric}{unit}{}", if self.is_logarithmic { " (logarithmic)" } else { "" })
    }
}

/// Returns the unit with its usual symbol.
fn unit_shown(unit: &str) -> String {
    match unit.strip_prefix("us") {
        Some(per) if per.is_empty() || per.starts_with('/') => format!("µs{per}"),
        _ => unit.to_owned(),
    }
}

/// Formats three significant digits, with thousands separated.
pub(super) fn figure(value: f64) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_significant_digits() {
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
    fn wide_axis_is_logarithmic_unless_counting() {
        let axis = Axis::of([0.07, 84.0, 86.0].into_iter(), false);
        assert!(axis.is_logarithmic && axis.place(0.07) > 0.1 && axis.place(86.0) > 0.999);
        let ticks: Vec<String> = axis.ticks().into_iter().map(figure).collect();
        assert_eq!(ticks, ["0.01", "0.1", "1", "10"]);
        let axis = Axis::of([0.0, 1.0, 61.0].into_iter(), true);
        assert!(!axis.is_logarithmic && axis.place(0.0) == 0.0, "no task is a length of zero");
        let axis = Axis::of([0.0, 9.0, 19.0].into_iter(), false);
        assert!(!axis.is_logarithmic && axis.place(0.0) == 0.0);
        assert_eq!(axis.ticks(), [0.0, 5.0, 10.0, 15.0]);
    }

    #[test]
    fn axis_title_has_unit() {
        let axis = Axis::of([0.07, 86.0].into_iter(), false);
        assert_eq!(axis.title("p50", "us"), "p50, µs (logarithmic)");
        let axis = Axis::of([3.0].into_iter(), true);
        assert_eq!(axis.title("cpu", "us/pair"), "cpu, µs/pair");
        assert_eq!(axis.title("Jain fairness", ""), "Jain fairness");
    }
}
