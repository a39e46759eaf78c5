//! Tests of the Helm chart that need no Helm: the schema must know the meta-plugin's options.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;
use testkit::workspace;

/// Option that a value of the chart cannot set, because the default network of each node determines it.
const NOT_SET: [&str; 1] = ["delegates"];

/// CNI property that is not a separate option in the document.
const OF_CNI: [&str; 1] = ["capabilities"];

#[test]
fn chart_schema_of_install_set_knows_every_documented_option() {
    let page = fs::read_to_string(workspace().join("docs/plugins/weft.md")).expect("a page");
    let mut documented = BTreeSet::new();
    let rows = page.lines().skip_while(|line| *line != "| option | meaning | default |").skip(2);
    for row in rows.take_while(|line| line.starts_with("| `")) {
        let names = row.split('|').nth(1).unwrap_or_default();
        documented.extend(names.split('`').skip(1).step_by(2).map(str::to_owned));
    }
    assert!(documented.len() > 20, "{documented:?}");
    let schema =
        fs::read_to_string(workspace().join("deploy/helm/weft/values.schema.json")).expect("a schema");
    let schema: Value = serde_json::from_str(&schema).expect("JSON");
    let known = schema["definitions"]["options"]["properties"].as_object().expect("the options");
    let known: BTreeSet<String> =
        known.keys().filter(|key| !OF_CNI.contains(&key.as_str())).cloned().collect();
    documented.retain(|option| !NOT_SET.contains(&option.as_str()));
    assert_eq!(known, documented, "options of install.set, and those of docs/plugins/weft.md");
}

/// Words in documents that look like chart values: a plugin option, and file names.
const NO_VALUES: [&str; 1] = ["ipam.dataDir"];

/// Returns whether the schema has a value at a path of keys.
fn has_value(schema: &Value, definitions: &Value, path: &[&str]) -> bool {
    let schema = match schema["$ref"].as_str() {
        Some(reference) => &definitions[reference.trim_start_matches("#/definitions/")],
        None => schema,
    };
    let Some((first, rest)) = path.split_first() else { return true };
    match schema["properties"].get(first) {
        Some(value) => has_value(value, definitions, rest),
        // A map whose keys the chart does not know, such as a node selector.
        None => schema["type"] == "object" && schema["properties"].is_null(),
    }
}

#[test]
fn chart_values_that_documents_name_exist() {
    let schema =
        fs::read_to_string(workspace().join("deploy/helm/weft/values.schema.json")).expect("a schema");
    let schema: Value = serde_json::from_str(&schema).expect("JSON");
    let mut faults = BTreeSet::new();
    let mut count = 0;
    for directory in ["", "docs", "docs/guides", "docs/plugins"] {
        for entry in fs::read_dir(workspace().join(directory)).expect("a directory").flatten() {
            if entry.path().extension().is_none_or(|extension| extension != "md") {
                continue;
            }
            let page = fs::read_to_string(entry.path()).expect("a page");
            // `agent.log`, `--set agent.log=debug`, `agent.log: debug`.
            let words = page.split(|letter: char| letter.is_whitespace() || "`=:,()|".contains(letter));
            for word in words.map(|word| word.trim_end_matches('.')).filter(|word| !NO_VALUES.contains(word))
            {
                let path: Vec<&str> = word.split('.').collect();
                let is_name =
                    |part: &&str| !part.is_empty() && part.chars().all(|letter| letter.is_ascii_alphabetic());
                let is_file =
                    ["conf", "md", "rs", "sh", "sock", "tar", "yaml"].contains(path.last().unwrap_or(&""));
                let is_value = path.len() > 1 && path.iter().all(is_name) && !is_file;
                if !is_value || schema["properties"].get(path[0]).is_none() {
                    continue;
                }
                count += 1;
                if !has_value(&schema, &schema["definitions"], &path) {
                    faults.insert(format!("{}: {word}", entry.path().display()));
                }
            }
        }
    }
    assert!(
        faults.is_empty() && count > 40,
        "{count} values of the chart are named, and do not exist: {faults:?}"
    );
}

/// Returns a file of `deploy/`.
fn deployed(file: &str) -> String {
    fs::read_to_string(workspace().join("deploy").join(file))
        .unwrap_or_else(|cause| panic!("{file}: {cause}"))
}

/// Flux drops symbolic links of a repository, and other programs that package charts drop or refuse them.
///
/// Source: Flux, source-controller, issue 191.
#[test]
fn chart_contains_regular_files_only() {
    let mut waiting = vec![workspace().join("deploy/helm/weft")];
    let mut count = 0;
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory).expect("a directory").flatten() {
            let kind = entry.file_type().expect("the type of a file");
            let name = entry.path().display().to_string();
            assert!(kind.is_dir() || kind.is_file(), "{name}: replace it by a copy; charts lose links");
            count += usize::from(kind.is_file());
            if kind.is_dir() {
                waiting.push(entry.path());
            }
        }
    }
    assert!(count > 20, "the chart has {count} files");
}

/// Kustomize reads no file outside the kustomization's directory, so the chart and the kustomization each have the
/// file. `helm_alerts_and_dashboard_equal_the_kustomization` renders the objects, if Helm is available.
#[test]
fn chart_dashboard_is_that_of_the_kustomization() {
    let (source, copy) = ("monitoring/dashboard.json", "helm/weft/monitoring/dashboard.json");
    let dashboard = deployed(source);
    assert!(deployed(copy) == dashboard, "the files differ: cp deploy/{source} deploy/{copy}");
    assert!(serde_json::from_str::<Value>(&dashboard).expect("JSON")["panels"].is_array());
}

#[test]
fn chart_alerts_are_those_of_the_kustomization() {
    let (rule, rules) =
        (deployed("monitoring/prometheus-rule.yaml"), deployed("helm/weft/monitoring/rules.yaml"));
    let spec: Vec<&str> = rule.lines().skip_while(|line| *line != "  groups:").collect();
    let indented: Vec<String> = rules
        .lines()
        .skip_while(|line| *line != "groups:")
        .map(|line| if line.is_empty() { String::new() } else { format!("  {line}") })
        .collect();
    assert!(spec.len() > 50, "the PrometheusRule has {} lines of groups", spec.len());
    let differs = spec.iter().zip(&indented).find(|(one, other)| one != other);
    assert_eq!(differs, None, "deploy/monitoring/prometheus-rule.yaml, and rules.yaml of the chart");
    assert_eq!(spec.len(), indented.len(), "lines of the two files");
}
