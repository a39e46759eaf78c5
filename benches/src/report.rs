//! Pages made from the file of results: the tables of docs/performance.md, table and bar chart of README.md, and the plots.
//!
//! - A generated part of a page stands between two comments; all other text is kept.
//! - `make bench-report` runs the benches and writes the pages. A test compares them with the committed file.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use crate::Failure;
use crate::bars;
use crate::goals;
use crate::plot::PLOTS;
use crate::results::{Point, Record, Row, Run, figure_text};

/// File of results, below the root of the tree.
pub const RESULTS: &str = "benches/results.jsonl";

/// Comments around the generated part of a page.
const BEGIN: &str = "<!-- made by `make bench-report` from benches/results.jsonl: begin -->\n";
const END: &str = "<!-- end -->\n";

/// File of the README's bar chart, below docs/images.
const CHART: &str = "comparison.svg";

/// Rows of the README: what it says, what was measured, and what it is compared with.
const HEADLINES: [(&str, &str, &str); 5] = [
    ("ADD of a pod with the default network and three others", "pod with 3 networks more ADD", "Go"),
    ("… on a node with 500 such pods", "pod with 3 networks more ADD, 500 pods on the node", "Go"),
    ("320 pods in a row, each with one further network", "320 pods, 1 network more, in a row", "Go"),
    ("ADD of `bridge` with `host-local`", "bridge + host-local ADD", "Go"),
    ("plugins on the node", "plugins on the node", "Go"),
];

/// Content of a file of results.
#[derive(Debug, Default)]
pub struct Results {
    runs: Vec<(Run, Vec<Row>)>,
    points: Vec<Point>,
}

// === impl Results ===

impl Results {
    /// Reads the lines of a file.
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

    /// Returns all tables, with the command and the machine of each.
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
                "- weft {weft} beside {peers}\n- {machine}\n- load of the machine at the start: {load}\n"
            );
            let _ = writeln!(text, "| {} |\n|---|---|---|---|---|", Row::HEAD.join(" | "));
            for row in rows {
                let _ = writeln!(text, "| {} |", goals::cells(row).join(" | "));
            }
            text.push('\n');
        }
        text
    }

    /// Returns the rows of the README with their names.
    fn headlines(&self) -> Vec<(&'static str, (&Run, &Row))> {
        HEADLINES
            .iter()
            .filter_map(|(text, what, beside)| self.find(what, beside).map(|found| (*text, found)))
            .collect()
    }

    /// Returns the table and the chart of the README.
    fn headline_table(&self) -> String {
        let found = self.headlines();
        let Some((_, (Run { command, weft, peers, machine, load, .. }, _))) = found.first() else {
            return String::new();
        };
        let mut text = format!("| | weft {weft} | {peers} | ratio |\n|---|---|---|---|\n");
        for (name, (_, row)) in &found {
            let cell = |figure: f64| format!("{} {}", figure_text(figure), row.unit);
            let (ours, theirs) = (cell(row.median()), cell(row.other().unwrap_or_default()));
            let _ = writeln!(text, "| {name} | {ours} | {theirs} | {} |", row.ratio());
        }
        let _ = writeln!(
            text,
            "\n![{}](docs/images/{CHART})\n\nMedians of one run of `{command}`, which began at a load of {load}, on\n{machine}.",
            bars::TITLE
        );
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
        let headlines = self.headlines();
        if let Some((_, (run, _))) = headlines.first() {
            let rows: Vec<_> = headlines.iter().map(|(name, (_, row))| (*name, *row)).collect();
            let path = Path::new("docs/images").join(CHART);
            all.push((path, Rendered::Whole(bars::draw(&rows, &run.peers))));
        }
        all
    }
}

/// Rendered content.
#[derive(Debug)]
pub enum Rendered {
    /// Content of a whole file.
    Whole(String),
    /// Content of the generated part of a page.
    Part(String),
}

impl Rendered {
    /// Returns the whole content of the file that is `now` so far.
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

/// Writes all pages of a tree.
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
        for (what, measured, beside) in HEADLINES {
            assert!(results.find(measured, beside).is_some(), "README: no row for {what:?}: {measured}");
        }
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
