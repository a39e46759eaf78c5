//! Call times, and the table that collects, prints and stores a bench's rows.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use crate::Failure;
use crate::goals;
use crate::results::{Point, Record, Row, Run};

/// Times for one kind of call.
#[derive(Clone, Debug)]
pub struct Times(Vec<Duration>);

impl Times {
    /// Sorts measurements, of which there must be at least one.
    #[must_use]
    pub fn new(mut times: Vec<Duration>) -> Times {
        times.sort();
        Times(times)
    }

    fn at(&self, share: f64) -> Duration {
        let last = self.0.len().saturating_sub(1);
        let index = (last as f64 * share).round() as usize;
        self.0.get(index).copied().unwrap_or_default()
    }

    /// Returns the minimum, which other work on the machine affects least.
    #[must_use]
    pub fn fastest(&self) -> Duration {
        self.at(0.0)
    }

    /// Returns the median.
    #[must_use]
    pub fn median(&self) -> Duration {
        self.at(0.5)
    }

    /// Returns minimum, median and 99th percentile in milliseconds.
    #[must_use]
    pub fn figures(&self) -> Vec<f64> {
        [0.0, 0.5, 0.99].map(|share| milliseconds(self.at(share))).to_vec()
    }
}

/// Returns a time in milliseconds, rounded to microseconds.
#[must_use]
pub fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

/// A bench's rows and points.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Row>,
    points: Vec<Point>,
}

impl Table {
    /// Adds a comparison of two times.
    pub fn compare(&mut self, what: &str, ours: &Times, beside: &str, other: &Times) {
        self.add(what, "ms", ours.figures(), Some((beside, other.figures())));
    }

    /// Adds a comparison of two figures.
    pub fn contrast(&mut self, what: &str, unit: &str, ours: f64, beside: &str, other: f64) {
        self.add(what, unit, vec![ours], Some((beside, vec![other])));
    }

    /// Adds times without comparison.
    pub fn times(&mut self, what: &str, ours: &Times) {
        self.add(what, "ms", ours.figures(), None);
    }

    /// Adds a figure without comparison.
    pub fn state(&mut self, what: &str, unit: &str, figure: f64) {
        self.add(what, unit, vec![figure], None);
    }

    fn add(&mut self, what: &str, unit: &str, ours: Vec<f64>, other: Option<(&str, Vec<f64>)>) {
        let (beside, theirs) = other.unwrap_or_default();
        self.rows.push(Row {
            what: what.to_owned(),
            unit: unit.to_owned(),
            ours,
            beside: beside.to_owned(),
            theirs,
        });
    }

    /// Adds a point to a plot.
    pub fn point(&mut self, plot: &str, line: &str, x: usize, y: f64) {
        self.points.push(Point { plot: plot.to_owned(), line: line.to_owned(), x, y });
    }

    /// Prints the table as Markdown.
    #[expect(clippy::print_stdout, reason = "printing the table is the purpose of the program")]
    pub fn print(&self) {
        let head = Row::HEAD.map(str::to_owned);
        let all: Vec<[String; 5]> = std::iter::once(head).chain(self.rows.iter().map(goals::cells)).collect();
        let width = |column: usize| all.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: [usize; 5] = std::array::from_fn(width);
        for (index, row) in all.iter().enumerate() {
            let cells: Vec<String> =
                row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            println!("| {} |", cells.join(" | "));
            if index == 0 {
                let rulers: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
                println!("| {} |", rulers.join(" | "));
            }
        }
    }

    /// Appends the run, the rows and the points to a file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn store(&self, file: &Path, run: Run) -> Result<(), Failure> {
        let mut open = OpenOptions::new().append(true).create(true).open(file)?;
        let rows = self.rows.iter().cloned().map(Record::Row);
        let points = self.points.iter().cloned().map(Record::Point);
        for record in std::iter::once(Record::Run(run)).chain(rows).chain(points) {
            writeln!(open, "{}", record.line())?;
        }
        Ok(())
    }

    /// Returns a sentence for each row that misses the goal, and for each row without one.
    #[must_use]
    pub fn missed(&self) -> Vec<String> {
        self.rows.iter().flat_map(goals::missed).collect()
    }
}

/// Prints the table, stores it in the file that the variable `RESULTS` names, and prints the rows that miss a goal.
/// Returns whether there are any. With `GOALS=ignore` there are none, because an emulated processor meets no goal.
///
/// # Errors
/// The file cannot be written.
#[expect(clippy::print_stderr, reason = "the rows that miss their goals are printed")]
pub fn finish(table: &Table, run: Run) -> Result<bool, Failure> {
    table.print();
    if let Some(file) = std::env::var_os("RESULTS") {
        table.store(Path::new(&file), run)?;
    }
    if std::env::var_os("GOALS").is_some_and(|value| value == "ignore") {
        return Ok(false);
    }
    let missed = table.missed();
    missed.iter().for_each(|why| eprintln!("goal missed: {why}"));
    Ok(!missed.is_empty())
}
