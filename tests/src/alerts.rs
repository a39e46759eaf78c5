//! Evaluates the chart's alerts with promtool, on series that a test writes or that it recorded from one of weft's
//! roles.
//!
//! Source: Prometheus, "Unit testing for rules".

use std::fmt::Write;

use testkit::{Finished, Host, workspace};

/// Alert rules in the chart.
pub const RULES: &str = "deploy/helm/weft/monitoring/rules.yaml";

/// Series with one value per minute, in promtool notation: `0+1x30`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Series {
    /// Name and labels.
    pub name: String,
    /// Values.
    pub values: String,
}

impl Series {
    /// Builds a series.
    #[must_use]
    pub fn new(name: &str, values: &str) -> Series {
        Series { name: name.to_owned(), values: values.to_owned() }
    }
}

/// Lists the names of all alerts.
#[must_use]
pub fn names() -> Vec<String> {
    let rules = std::fs::read_to_string(workspace().join(RULES)).expect("the rules");
    rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).map(str::to_owned).collect()
}

/// Builds series from two scrapes of a role: the first one holds for `steady` minutes, then the second one for as long.
///
/// # Panics
/// A line on a page is not a sample.
#[must_use]
pub fn recorded(first: &str, second: &str, steady: usize) -> Vec<Series> {
    let samples = |page: &str| -> Vec<(String, String)> {
        let lines = page.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        lines
            .map(|line| line.rsplit_once(' ').expect("a sample"))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    };
    let before = samples(first);
    let later = samples(second).into_iter().map(|(name, value)| {
        let known = before.iter().find(|(known, _)| *known == name);
        let (start, rest) = (known.map_or("_", |(_, value)| value.as_str()), value.as_str());
        Series::new(&name, &format!("{start}x{steady} {rest}x{steady}"))
    });
    later.collect()
}

/// Lets promtool evaluate the rules on these series, and expects each alert to fire, or not, at this minute.
#[track_caller]
#[must_use]
pub fn evaluate(host: &Host, series: &[Series], minute: usize, expected: &[(&str, bool)]) -> Finished {
    let path = workspace().join(RULES);
    let mut test = format!("rule_files: [{}]\nevaluation_interval: 1m\ntests:\n", path.display());
    let _ = write!(test, "  - interval: 1m\n    input_series:\n");
    for Series { name, values } in series {
        let name = name.replace('\'', "''");
        let _ = write!(test, "      - series: '{name}'\n        values: '{values}'\n");
    }
    let _ = writeln!(test, "    promql_expr_test:");
    for (alert, fires) in expected {
        // The annotations are templates, so the alert's state is compared and not its text.
        let expression =
            format!("count(ALERTS{{alertname=\"{alert}\", alertstate=\"firing\"}}) > bool 0 or vector(0)");
        let _ = write!(
            test,
            "      - expr: '{expression}'\n        eval_time: {minute}m\n        exp_samples:\n          - value: {}\n",
            u8::from(*fires)
        );
    }
    host.write("/run/alerts.yaml", test);
    host.command("promtool").args(["test", "rules", "/run/alerts.yaml"]).finish()
}
