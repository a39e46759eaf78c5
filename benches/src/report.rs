//! Writes pages from the results file: the tables in docs/performance.md, table and bar chart in README.md, and the
//! plots.
//!
//! - The generated part of a page stands between two comments; all other text is kept.
//! - `make bench-report` runs the benches and writes the pages. A test compares them with the committed file.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use crate::Failure;
use crate::bars;
use crate::goals;
use crate::plot::PLOTS;
use crate::results::{Headline, Point, Record, Row, Run, figure_text};

/// Results file, below the workspace root.
pub const RESULTS: &str = "benches/results.jsonl";

/// Comments around the generated part of a page.
const BEGIN: &str = "<!-- made by `make bench-report` from benches/results.jsonl: begin -->\n";
const END: &str = "<!-- end -->\n";

/// File with the README's bar chart, below docs/images.
const CHART: &str = "comparison.svg";

/// Rows in the README: the text, and what was measured.
const HEADLINES: [(&str, &str); 6] = [
    ("attach a pod to the default network and three more", "pod with 3 networks more ADD, API server"),
    ("32 such pods at once", "32 pods at once, 3 networks more, API server"),
    ("320 such pods, eight starting at once", "320 pods, 3 networks more, in a row, API server"),
    ("allocate an address from a cluster-wide pool", "weft-ipam ADD, pool of the cluster"),
    ("one ADD of `bridge` with `host-local`", "bridge + host-local ADD"),
    ("plugin programs on a node", "plugins on the node"),
];

/// Columns in the README: the program, and the name in the result rows.
const COLUMNS: [(&str, &str); 4] = [
    ("Multus thin", "Multus thin"),
    ("Multus thick", "Multus thick"),
    ("whereabouts", "whereabouts"),
    ("Go plugins", "Go"),
];

/// Content of a results file.
#[derive(Debug, Default)]
pub struct Results {
    runs: Vec<(Run, Vec<Row>)>,
    points: Vec<Point>,
}

// === impl Results ===

impl Results {
    /// Parses a results file.
    ///
    /// # Errors
    /// A line is not a record, or the first one is not a run.
    pub fn parse(text: &str) -> Result<Results, Failure> {
        let mut results = Results::default();
        for (number, line) in text.lines().enumerate() {
            let place = || format!("{RESULTS}: line {}", number + 1);
            match Record::parse(line).ok_or_else(|| format!("{}: not a record", place()))? {
                Record::Run(run) => results.runs.push((run, Vec::new())),
                Record::Point(point) => results.points.push(point),
                Record::Row(row) => {
                    let (_, rows) = results
                        .runs
                        .last_mut()
                        .ok_or_else(|| format!("{}: a row before its run", place()))?;
                    rows.push(row);
                }
            }
        }
        Ok(results)
    }

    fn find(&self, what: &str, beside: &str) -> Option<(&Run, &Row)> {
        self.runs.iter().find_map(|(run, rows)| {
            rows.iter().find(|row| row.what == what && row.beside == beside).map(|row| (run, row))
        })
    }

    /// Returns all tables, each with command and machine.
    fn tables(&self) -> String {
        let mut text = String::new();
        for (_, plot) in
            PLOTS.iter().filter(|(_, plot)| self.points.iter().any(|point| point.plot == plot.name))
        {
            let file = PLOTS.iter().find(|(_, other)| other.name == plot.name).map_or("", |(file, _)| file);
            // Writing to a string cannot fail.
            let _ = writeln!(text, "![{}](images/{file})\n", plot.title);
        }
        for (run, rows) in &self.runs {
            let Run { bench, command, weft, peers, machine, load } = run;
            let _ = writeln!(text, "## {}\n", capital(bench));
            let _ = writeln!(text, "```sh\n{command}\n```\n");
            let _ = writeln!(
                text,
                "- weft {weft} beside {peers}\n- {machine}\n- load average before the run: {load}\n"
            );
            let _ = writeln!(text, "| {} |\n|---|---|---|---|---|", Row::HEAD.join(" | "));
            for row in rows {
                let _ = writeln!(text, "| {} |", goals::cells(row).join(" | "));
            }
            text.push('\n');
        }
        text
    }

    /// Returns the headlines that were measured.
    fn headlines(&self) -> Vec<Headline<'_>> {
        let headline = |(name, what): &(&'static str, &str)| {
            let row = |(program, beside)| self.find(what, beside).map(|(_, row)| (program, row));
            Headline { name, rows: COLUMNS.into_iter().filter_map(row).collect() }
        };
        HEADLINES.iter().map(headline).filter(|headline| !headline.rows.is_empty()).collect()
    }

    /// Returns the runs that measured the headlines, in file order.
    fn runs_of_headlines(&self) -> impl Iterator<Item = &Run> {
        let measured =
            |rows: &[Row]| HEADLINES.iter().any(|(_, what)| rows.iter().any(|row| row.what == *what));
        self.runs.iter().filter(move |(_, rows)| measured(rows)).map(|(run, _)| run)
    }

    /// Returns the README's table and chart.
    fn headline_table(&self) -> String {
        let Some(Run { weft, .. }) = self.runs_of_headlines().next() else { return String::new() };
        let columns = COLUMNS.map(|(program, _)| program).join(" | ");
        let mut text = format!("| | weft {weft} | {columns} |\n|---|---|---|---|---|---|\n");
        for Headline { name, rows } in self.headlines() {
            let cell = |figure: f64, unit: &str| format!("{} {unit}", figure_text(figure));
            let ours = rows.first().map(|(_, row)| cell(row.median(), &row.unit)).unwrap_or_default();
            let _ = write!(text, "| {name} | {ours} |");
            for (program, _) in COLUMNS {
                let theirs = rows.iter().find(|(other, _)| *other == program);
                let theirs = theirs.map(|(_, row)| cell(row.other().unwrap_or_default(), &row.unit));
                let _ = write!(text, " {} |", theirs.as_deref().unwrap_or("–"));
            }
            text.push('\n');
        }
        let _ = writeln!(text, "\n![{}](docs/images/{CHART})", bars::TITLE);
        text
    }

    /// Returns the files that the results render to: whole files, and generated parts of pages.
    #[must_use]
    pub fn render(&self) -> Vec<(PathBuf, Rendered)> {
        let mut all = vec![
            (PathBuf::from("docs/performance.md"), Rendered::Part(self.tables())),
            (PathBuf::from("README.md"), Rendered::Part(self.headline_table())),
        ];
        for (file, plot) in PLOTS {
            let path = Path::new("docs/images").join(file);
            all.push((path, Rendered::Whole(plot.draw(&self.points))));
        }
        all.push((Path::new("docs/images").join(CHART), Rendered::Whole(bars::draw(&self.headlines()))));
        all
    }
}

/// Rendered content.
#[derive(Debug)]
pub enum Rendered {
    /// Content for a whole file.
    Whole(String),
    /// Content for the generated part of a page.
    Part(String),
}

impl Rendered {
    /// Returns the whole new content for a file whose present content is `now`.
    ///
    /// # Errors
    /// The page has no generated part.
    pub fn within(self, now: &str) -> Result<String, Failure> {
        let part = match self {
            Rendered::Whole(text) => return Ok(text),
            Rendered::Part(part) => part,
        };
        let (before, rest) = now.split_once(BEGIN).ok_or("the page has no generated part")?;
        let (_, after) = rest.split_once(END).ok_or("the generated part has no end")?;
        Ok(format!("{before}{BEGIN}{}\n{END}{after}", part.trim_end()))
    }
}

/// Writes all pages in a tree.
///
/// # Errors
/// A file cannot be read or written, or a page has no generated part.
pub fn write(root: &Path) -> Result<(), Failure> {
    let results = Results::parse(&fs::read_to_string(root.join(RESULTS))?)?;
    for (path, rendered) in results.render() {
        let file = root.join(&path);
        let now = fs::read_to_string(&file).unwrap_or_default();
        let text = rendered.within(&now).map_err(|failure| format!("{}: {failure}", path.display()))?;
        fs::write(&file, text)?;
    }
    Ok(())
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
    }

    #[test]
    fn bench_report_pages_are_what_the_results_render_to() {
        let results = Results::parse(&fs::read_to_string(root().join(RESULTS)).unwrap()).unwrap();
        for ((what, measured), found) in HEADLINES.iter().zip(results.headlines()) {
            assert_eq!(
                *what, found.name,
                "README: no row {measured:?}: were Multus and whereabouts in PEERS?"
            );
        }
        assert_eq!(results.headlines().len(), HEADLINES.len());
        for (path, rendered) in results.render() {
            let now = fs::read_to_string(root().join(&path)).unwrap();
            let then = rendered.within(&now).unwrap();
            assert!(
                now == then,
                "{}: not what {RESULTS} renders to; run weft-bench report .",
                path.display()
            );
        }
    }

    #[test]
    fn bench_report_keeps_the_text_around_its_part() {
        let page = format!("before\n{BEGIN}old\n{END}after\n");
        let new = Rendered::Part("new\n\n".into()).within(&page).unwrap();
        assert_eq!(new, format!("before\n{BEGIN}new\n{END}after\n"));
        assert!(Rendered::Part(String::new()).within("a page").is_err());
    }

    #[test]
    fn bench_results_with_a_broken_line_are_refused() {
        let run = r#"{"run":{"bench":"b","command":"c","weft":"1","peers":"p","machine":"m","load":"1"}}"#;
        let row = r#"{"row":{"what":"x","unit":"ms","ours":[1.0],"beside":"","theirs":[]}}"#;
        assert_eq!(Results::parse(&format!("{run}\n{row}\n")).unwrap().runs[0].1.len(), 1);
        let failure = |text: &str| Results::parse(text).unwrap_err().to_string();
        assert!(failure(row).contains("line 1: a row before its run"));
        assert!(failure(&format!("{run}\n{{")).contains("line 2: not a record"));
    }
}
