//! Test that compares the tables in `docs/metrics.md` with the metrics that the program registers.
//!
//! `WEFT_WRITE_DOCS=1 cargo test -p weft metrics_reference` writes the tables. Labels with few values are
//! listed with these; [`PLACEHOLDERS`] stand for any value.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;

use crate::commands::executor::interface_metrics;

const PAGE: &str = "docs/metrics.md";
/// Metrics with too many label combinations: the help describes the values.
const SPARSE: [&str; 1] = ["weft_failed_calls_total"];
/// Example values, which stand for any value.
const PLACEHOLDERS: [&str; 9] =
    ["RESOURCE", "PLUGIN", "POOL", "NODE", "NAMESPACE", "POD", "INTERFACE", "NETWORK", "POLICY"];
/// Labels whose values come from the build.
const BUILD: [&str; 2] = ["version", "commit"];

/// Metric family.
#[derive(Debug, Default)]
struct Family {
    kind: String,
    help: String,
    /// Labels with all values, in the order in which they first appear.
    labels: Vec<(String, Vec<String>)>,
}

/// Returns each role's page, by table heading.
fn pages() -> Vec<(&'static str, String)> {
    let controllers = controllers::example_metrics().into_iter().map(|(role, page)| match role {
        "ipam" => ("IPAM controller", page),
        "services" => ("Services controller", page),
        "policy" => ("Policy controller", page),
        "page" => ("Page", page),
        "admission" => ("Admission webhook", page),
        _ => ("Neutron controller", page),
    });
    let agent = ("Node agent", node_agent::example_metrics());
    let executor = ("Executor", interface_metrics::example());
    let every = ("Every role", kube_support::health::example_metrics());
    [agent, executor].into_iter().chain(controllers).chain([every]).collect()
}

/// Reads the families in an exposition, by name.
fn families(page: &str) -> BTreeMap<String, Family> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut sample_names: BTreeMap<String, String> = BTreeMap::new();
    for line in page.lines().filter(|line| *line != "# EOF") {
        let mut words = line.splitn(4, ' ');
        if let (Some("#"), Some(word), Some(name), Some(rest)) =
            (words.next(), words.next(), words.next(), words.next())
        {
            let family = families.entry(name.to_owned()).or_default();
            match word {
                "HELP" => family.help = rest.trim_end_matches('.').to_owned(),
                _ => family.kind = rest.to_owned(),
            }
            continue;
        }
        let Some((series, _)) = line.rsplit_once(' ') else { continue };
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let name = ["", "_total", "_bucket", "_count", "_sum"]
            .iter()
            .find_map(|end| name.strip_suffix(end).filter(|name| families.contains_key(*name)))
            .unwrap_or_else(|| panic!("{line}: no family"))
            .to_owned();
        if series.starts_with(&format!("{name}_total")) {
            sample_names.insert(name.clone(), format!("{name}_total"));
        }
        let family = families.entry(name).or_default();
        for pair in labels.trim_end_matches('}').split("\",").filter(|pair| !pair.is_empty()) {
            let (label, value) = pair.split_once("=\"").expect("a label");
            if label == "le" {
                continue;
            }
            let value = value.trim_end_matches('"').to_owned();
            match family.labels.iter_mut().find(|(known, _)| known == label) {
                Some((_, values)) if values.contains(&value) => {}
                Some((_, values)) => values.push(value),
                None => family.labels.push((label.to_owned(), vec![value])),
            }
        }
    }
    families.into_iter().map(|(name, family)| (sample_names.remove(&name).unwrap_or(name), family)).collect()
}

fn table(page: &str) -> String {
    let mut table = "| metric | type | labels | meaning |\n|---|---|---|---|\n".to_owned();
    for (name, Family { kind, help, labels }) in families(page) {
        let labels = labels.iter().map(|(label, values)| {
            let is_open = SPARSE.contains(&name.as_str())
                || BUILD.contains(&label.as_str())
                || values.iter().all(|value| PLACEHOLDERS.contains(&value.as_str()));
            if is_open {
                return format!("`{label}`");
            }
            let mut values: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
            values.sort();
            format!("`{label}`: {}", values.join(", "))
        });
        let labels = labels.collect::<Vec<_>>().join("; ");
        let _ = writeln!(table, "| `{name}` | {kind} | {labels} | {help} |");
    }
    table
}

/// Returns the page with each role's table below the heading.
fn rendered(page: &str) -> String {
    let mut page = page.to_owned();
    for (heading, metrics) in pages() {
        let title = format!("\n## {heading}\n");
        let start = page.find(&title).unwrap_or_else(|| panic!("{PAGE}: no heading {heading}")) + title.len();
        let rest = page.get(start..).unwrap_or_default();
        let begin = start + rest.find("| metric |").unwrap_or_else(|| panic!("{PAGE}: {heading}: no table"));
        let after = page.get(begin..).unwrap_or_default();
        let end = begin + after.find("\n\n").map_or(after.len(), |at| at + 1);
        page.replace_range(begin..end, &table(&metrics));
    }
    page
}

#[test]
fn metrics_reference_equals_the_registered_metrics() {
    let path = testkit::workspace().join(PAGE);
    let page = fs::read_to_string(&path).unwrap();
    let expected = rendered(&page);
    if std::env::var_os("WEFT_WRITE_DOCS").is_some() {
        fs::write(&path, &expected).unwrap();
        return;
    }
    for (have, want) in page.lines().zip(expected.lines()) {
        assert_eq!(have, want, "{PAGE}: WEFT_WRITE_DOCS=1 cargo test -p weft metrics_reference writes it");
    }
    assert_eq!(page, expected);
}

/// Returns the metric names in a text.
fn named(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let is_metric = |word: &&str| {
        word.starts_with("weft_") || word.starts_with("process_") || word.starts_with("pod_network_")
    };
    words.filter(is_metric).map(str::to_owned).collect()
}

#[test]
fn metrics_in_alerts_dashboard_and_docs_exist() {
    let mut known: Vec<String> = Vec::new();
    for (_, page) in pages() {
        known.extend(families(&page).into_keys());
    }
    let histogram = |name: &str| {
        ["_bucket", "_count", "_sum"].iter().find_map(|end| name.strip_suffix(end)).map(str::to_owned)
    };
    let exists =
        |name: &String| known.contains(name) || histogram(name).is_some_and(|name| known.contains(&name));
    let read = |file: &str| fs::read_to_string(testkit::workspace().join(file)).unwrap();
    let mut count = 0;
    for file in [
        "deploy/monitoring/prometheus-rule.yaml",
        "deploy/helm/weft/monitoring/rules.yaml",
        "deploy/monitoring/dashboard.json",
        "docs/runbooks.md",
    ] {
        for name in named(&read(file)) {
            assert!(exists(&name), "{file}: no metric {name}");
            count += 1;
        }
    }
    // In other pages, the tables of metrics.
    for file in [
        "docs/operations.md",
        "docs/neutron.md",
        "docs/services.md",
        "docs/plugins/weft-ipam.md",
        "docs/traces.md",
    ] {
        let page = read(file);
        let mut rows = page.lines();
        while rows.by_ref().any(|line| line.starts_with("| metric |")) {
            for row in rows.by_ref().skip(1).take_while(|row| row.starts_with('|')) {
                let first = row.split('|').nth(1).unwrap_or_default();
                for name in named(first) {
                    assert!(exists(&name), "{file}: no metric {name}");
                    count += 1;
                }
            }
        }
    }
    assert!(count > 40, "only {count} names were found");
}
