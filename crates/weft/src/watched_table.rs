//! Table for `-w`: printed once, then a line for each row that changes, as `kubectl get --watch` prints them.
//!
//! - It ends with exit code 0 when the reader is gone.
//! - A column with an age or a time changes by itself, so it is not compared.
//! - A row whose subject is gone is printed a last time, with `removed` in that column.

use std::collections::BTreeSet;

use cli_support::failure::{Exit, Failure};
use cli_support::output::{Format, Progress};
use cli_support::table;

/// Last cell if the subject is gone.
const REMOVED: &str = "removed";

/// Option `-w`.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Watch {
    /// After the table, print a line for each change, until Ctrl-C
    #[arg(short = 'w', long = "watch")]
    pub(crate) watch: bool,
}

/// Rows that were printed.
#[derive(Clone, Debug)]
pub(crate) struct WatchedTable {
    /// Number of columns at the beginning that name a row's subject.
    subject: usize,
    /// Column that changes by itself.
    clock: usize,
    printed: Option<Vec<Vec<String>>>,
}

/// Prints a failure that is tried again, unless it is the one before.
pub(crate) fn show_once(failure: &Failure, shown: &mut String) {
    let text = failure.to_string();
    if *shown != text {
        Progress::beside(Format::Json).line(format!("weft: trying again: {text}"));
        *shown = text;
    }
}

// === impl Watch ===

impl Watch {
    /// Fails if the changes cannot be printed in this format.
    ///
    /// # Errors
    /// The format is for one document: a usage error.
    pub(crate) fn require_table(self, format: Format) -> Result<(), Failure> {
        match self.watch && format.is_document() {
            true => {
                let why = "-w: changes are lines of a table, not one JSON or YAML document";
                Err(Failure::new(why).next("omit -o, or use -o wide").exit(Exit::Usage))
            }
            false => Ok(()),
        }
    }
}

// === impl WatchedTable ===

impl WatchedTable {
    /// Returns a table from which nothing was printed.
    pub(crate) fn new(subject: usize, clock: usize) -> WatchedTable {
        WatchedTable { subject, clock, printed: None }
    }

    /// Returns the cells that name a row's subject.
    fn subject<'a>(&self, row: &'a [String]) -> &'a [String] {
        row.get(..self.subject).unwrap_or(row)
    }

    /// Returns the cells that are compared: those before and after the column that changes by itself.
    fn content<'a>(&self, row: &'a [String]) -> (&'a [String], &'a [String]) {
        let before = row.get(..self.clock).unwrap_or(row);
        (before, row.get(self.clock + 1..).unwrap_or_default())
    }

    /// Returns the lines to print: at first the whole table, then changed and removed rows.
    pub(crate) fn changes(&mut self, headings: &[&str], rows: &[Vec<String>]) -> String {
        let Some(before) = self.printed.replace(rows.to_owned()) else {
            return table::lay_out(headings, rows, 0);
        };
        let old: BTreeSet<_> = before.iter().map(|row| self.content(row)).collect();
        let is_changed = |row: &&Vec<String>| !old.contains(&self.content(row));
        let mut lines: Vec<Vec<String>> = rows.iter().filter(is_changed).cloned().collect();
        let there: BTreeSet<&[String]> = rows.iter().map(|row| self.subject(row)).collect();
        for mut gone in before.iter().filter(|row| !there.contains(self.subject(row))).cloned() {
            gone.resize(gone.len().max(self.clock + 1), String::new());
            REMOVED.clone_into(&mut gone[self.clock]);
            lines.push(gone);
        }
        if lines.is_empty() {
            return String::new();
        }
        // The columns are as wide as those of the whole table.
        let all: Vec<Vec<String>> = rows.iter().chain(&lines).cloned().collect();
        let text = table::lay_out(headings, &all, 0);
        text.split_inclusive('\n').skip(1 + rows.len()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watch_prints_changed_and_removed_rows_only() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let mut table = WatchedTable::new(1, 2);
        let headings = ["pod", "state", "age"];
        let rows = vec![row(["a", "planned", "1s"]), row(["long-name", "attached", "1m"])];
        assert_eq!(
            table.changes(&headings, &rows),
            "POD        STATE     AGE\na          planned   1s\nlong-name  attached  1m\n"
        );
        let older = vec![row(["a", "planned", "2s"]), row(["long-name", "attached", "1m"])];
        assert_eq!(table.changes(&headings, &older), "");
        let changed = vec![row(["a", "attached", "3s"]), row(["long-name", "attached", "1m"])];
        assert_eq!(table.changes(&headings, &changed), "a          attached  3s\n");
        let gone = vec![row(["a", "attached", "4s"]), row(["b", "planned", "0s"])];
        assert_eq!(
            table.changes(&headings, &gone),
            "b          planned   0s\nlong-name  attached  removed\n"
        );
    }

    #[test]
    fn watch_of_a_document_is_refused() {
        let watch = Watch { watch: true };
        assert!(watch.require_table(Format::Wide).is_ok());
        assert!(watch.require_table(Format::Json).is_err());
    }
}
