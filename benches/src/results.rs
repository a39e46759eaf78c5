//! Bench records, one JSON object per line in the results file: a run, then the rows and points.

use serde_json::{Value, json};

/// One run of a program on one machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Bench name.
    pub bench: String,
    /// Command with all variables.
    pub command: String,
    /// weft's version.
    pub weft: String,
    /// Programs that weft is compared with.
    pub peers: String,
    /// Processor, cores, kernel and disk.
    pub machine: String,
    /// Machine load when the bench began: runnable processes over the last minute.
    pub load: String,
}

/// Figures for weft, and for what it is compared with.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Call that was measured, for example `bridge + host-local ADD`.
    pub what: String,
    /// Unit for all figures. More is better if it ends with `/s`.
    pub unit: String,
    /// One figure, or minimum, median and 99th percentile.
    pub ours: Vec<f64>,
    /// Program or situation that the other figures belong to; empty if there are none.
    pub beside: String,
    /// Figures to compare with.
    pub theirs: Vec<f64>,
}

/// Measurement that the README names, with the programs that weft is compared with.
#[derive(Debug)]
pub struct Headline<'a> {
    /// Name of the measurement.
    pub name: &'static str,
    /// Each program's name, with the row that compares weft with it. There is at least one.
    pub rows: Vec<(&'static str, &'a Row)>,
}

/// Point on a line in a plot.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Plot name.
    pub plot: String,
    /// Line name.
    pub line: String,
    /// Number on the horizontal axis.
    pub x: usize,
    /// Figure on the vertical axis.
    pub y: f64,
}

/// Line in the results file.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// Start of a run; rows and points follow.
    Run(Run),
    /// Row in the current run.
    Row(Row),
    /// Point in the current run.
    Point(Point),
}

// === impl Row ===

impl Row {
    /// Table head for rows.
    pub const HEAD: [&'static str; 5] =
        ["measured", "weft: one figure, or min / median / p99", "compared with", "ratio", "goal"];

    /// Returns the middle figure.
    fn middle(figures: &[f64]) -> f64 {
        figures.get(figures.len() / 2).copied().unwrap_or_default()
    }

    /// Returns weft's figure, or the median if there are several.
    #[must_use]
    pub fn median(&self) -> f64 {
        Row::middle(&self.ours)
    }

    /// Returns the figure to compare with, or the median if there are several.
    #[must_use]
    pub fn other(&self) -> Option<f64> {
        (!self.theirs.is_empty()).then(|| Row::middle(&self.theirs))
    }

    /// Returns weft's 99th percentile.
    #[must_use]
    pub fn tail(&self) -> f64 {
        self.ours.last().copied().unwrap_or_default()
    }

    /// Whether more is better.
    #[must_use]
    pub fn is_rate(&self) -> bool {
        self.unit.ends_with("/s")
    }

    /// Returns the factor by which weft is better.
    #[must_use]
    pub fn factor(&self) -> Option<f64> {
        let (ours, theirs) = (self.median(), self.other()?);
        Some(if self.is_rate() { ours / theirs } else { theirs / ours })
    }

    /// Formats the ratio as text.
    #[must_use]
    pub fn ratio(&self) -> String {
        match self.factor() {
            None => String::new(),
            Some(factor) if self.is_rate() => format!("{factor:.1}x as many"),
            Some(factor) if factor >= 1.0 && self.unit == "ms" => format!("{factor:.1}x faster"),
            Some(factor) => format!("{:.2}x of it", 1.0 / factor),
        }
    }

    /// Returns the table cells, except for the goal.
    #[must_use]
    pub fn cells(&self) -> [String; 4] {
        let beside = match self.theirs.is_empty() {
            true => String::new(),
            false => format!("{}: {}", self.beside, self.figures(&self.theirs)),
        };
        [self.what.clone(), self.figures(&self.ours), beside, self.ratio()]
    }

    fn figures(&self, figures: &[f64]) -> String {
        let texts: Vec<String> = figures.iter().map(|figure| figure_text(*figure)).collect();
        format!("{} {}", texts.join(" / "), self.unit)
    }
}

/// Formats a figure with three significant digits, at most two of them after the point.
#[must_use]
pub fn figure_text(figure: f64) -> String {
    match figure.abs() {
        size if size >= 100.0 => format!("{figure:.0}"),
        size if size >= 10.0 => format!("{figure:.1}"),
        _ => format!("{figure:.2}"),
    }
}

// === impl Record ===

impl Record {
    /// Formats the record as one line of JSON.
    #[must_use]
    pub fn line(&self) -> String {
        let value = match self {
            Record::Run(Run { bench, command, weft, peers, machine, load }) => json!({ "run": {
                "bench": bench, "command": command, "weft": weft, "peers": peers, "machine": machine, "load": load,
            } }),
            Record::Row(Row { what, unit, ours, beside, theirs }) => json!({ "row": {
                "what": what, "unit": unit, "ours": ours, "beside": beside, "theirs": theirs,
            } }),
            Record::Point(Point { plot, line, x, y }) => {
                json!({ "point": { "plot": plot, "line": line, "x": x, "y": y } })
            }
        };
        value.to_string()
    }

    /// Parses a line from a results file.
    #[must_use]
    pub fn parse(line: &str) -> Option<Record> {
        let value: Value = serde_json::from_str(line).ok()?;
        let (kind, fields) = value.as_object()?.iter().next()?;
        let text = |name: &str| fields[name].as_str().map(str::to_owned);
        let numbers =
            |name: &str| fields[name].as_array()?.iter().map(Value::as_f64).collect::<Option<Vec<f64>>>();
        match kind.as_str() {
            "run" => Some(Record::Run(Run {
                bench: text("bench")?,
                command: text("command")?,
                weft: text("weft")?,
                peers: text("peers")?,
                machine: text("machine")?,
                load: text("load")?,
            })),
            "row" => Some(Record::Row(Row {
                what: text("what")?,
                unit: text("unit")?,
                ours: numbers("ours")?,
                beside: text("beside")?,
                theirs: numbers("theirs")?,
            })),
            "point" => Some(Record::Point(Point {
                plot: text("plot")?,
                line: text("line")?,
                x: usize::try_from(fields["x"].as_u64()?).ok()?,
                y: fields["y"].as_f64()?,
            })),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bench_results_are_read_as_they_were_written() {
        let run = Run {
            bench: "plugins".into(),
            command: "RUNS=60 benches/run".into(),
            weft: "0.1.0".into(),
            peers: "Go plugins 1.9.1".into(),
            machine: "two cores".into(),
            load: "0.5".into(),
        };
        let row = Row {
            what: "bridge ADD".into(),
            unit: "ms".into(),
            ours: vec![1.25, 1.5, 2.0],
            beside: "Go".into(),
            theirs: vec![9.0, 9.5, 11.0],
        };
        let point = Point { plot: "networks".into(), line: "weft".into(), x: 3, y: 4.5 };
        for record in [Record::Run(run), Record::Row(row), Record::Point(point)] {
            assert_eq!(Record::parse(&record.line()), Some(record));
        }
        for broken in ["", "{}", r#"{"row":{"what":"x"}}"#, r#"{"other":{}}"#] {
            assert_eq!(Record::parse(broken), None, "{broken}");
        }
    }

    #[test]
    fn bench_ratio_is_worded_by_direction_and_unit() {
        let row = |unit: &str, ours: f64, theirs: f64| Row {
            what: String::new(),
            unit: unit.into(),
            ours: vec![ours],
            beside: "x".into(),
            theirs: vec![theirs],
        };
        assert_eq!(row("ms", 2.0, 10.0).ratio(), "5.0x faster");
        assert_eq!(row("ms", 10.0, 8.0).ratio(), "1.25x of it");
        assert_eq!(row("MB", 3.0, 90.0).ratio(), "0.03x of it");
        assert_eq!(row("pods/s", 100.0, 20.0).ratio(), "5.0x as many");
        assert_eq!(Row { theirs: Vec::new(), ..row("MB", 3.0, 0.0) }.ratio(), "");
    }
}
