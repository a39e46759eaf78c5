//! Times and the table that shows them.

use std::time::Duration;

/// Times of one kind of call.
#[derive(Clone, Debug)]
pub(crate) struct Times(Vec<Duration>);

impl Times {
    /// Sorts measurements; there is at least one.
    pub(crate) fn new(mut times: Vec<Duration>) -> Times {
        times.sort();
        Times(times)
    }

    fn at(&self, share: f64) -> Duration {
        let last = self.0.len().saturating_sub(1);
        let index = (last as f64 * share).round() as usize;
        self.0.get(index).copied().unwrap_or_default()
    }

    /// Returns the median.
    pub(crate) fn median(&self) -> Duration {
        self.at(0.5)
    }

    fn figures(&self) -> String {
        let milliseconds = |time: Duration| format!("{:.2}", time.as_secs_f64() * 1e3);
        format!(
            "{} / {} / {}",
            milliseconds(self.at(0.0)),
            milliseconds(self.median()),
            milliseconds(self.at(0.99))
        )
    }
}

/// Results of all measurements.
#[derive(Default)]
pub(crate) struct Table {
    rows: Vec<[String; 5]>,
}

impl Table {
    /// Adds a comparison; `goal` is the goal for the ratio or the time.
    pub(crate) fn compare(&mut self, what: &str, ours: &Times, beside: &str, other: &Times, goal: &str) {
        let (a, b) = (ours.median().as_secs_f64(), other.median().as_secs_f64());
        let ratio = if a <= b { format!("{:.1}x faster", b / a) } else { format!("{:.2}x of it", a / b) };
        self.rows.push([
            what.to_owned(),
            ours.figures(),
            format!("{beside}: {}", other.figures()),
            ratio,
            goal.to_owned(),
        ]);
    }

    /// Adds a figure without comparison.
    pub(crate) fn state(&mut self, what: &str, figure: &str, goal: &str) {
        self.rows.push([what.to_owned(), figure.to_owned(), String::new(), String::new(), goal.to_owned()]);
    }

    /// Prints the table as Markdown.
    #[expect(clippy::print_stdout, reason = "printing the table is the purpose of the program")]
    pub(crate) fn print(&self) {
        let head = ["what", "weft: min / median / p99 ms", "compared with", "ratio of medians", "goal"]
            .map(str::to_owned);
        let all: Vec<&[String; 5]> = std::iter::once(&head).chain(&self.rows).collect();
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
}
