//! Tests of the Helm chart that need no Helm: its schema knows the options of the meta-plugin.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;
use testkit::workspace;

/// Option that a value of the chart cannot set, because the default network of each node determines it.
const NOT_SET: [&str; 1] = ["delegates"];

/// Property of CNI that is no option of its own in the document.
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
