//! Test of `docs/lint.md`: the page has every rule, and each example does what the page says.

#![allow(clippy::unwrap_used, clippy::panic, reason = "test helpers may panic")]

use std::collections::BTreeSet;

use cni::name::{ContainerId, IfName};
use manifest::lint::across::Across;
use manifest::lint::page::{self, PAGE};
use manifest::lint::{self, Knowledge, Programs};
use manifest::{Collection, Manifest};
use npwg::configuration::{Flavour, NodeConfiguration};
use npwg::definition::Disk;
use npwg::device::{Device, Devices};
use npwg::plan::{Request, Sandbox, plan};
use npwg::policy;
use npwg::rule::{Rule, Severity, Stage};

/// Rules whose examples cannot be run here, each with the reason.
const NOT_RUN: &[(Rule, &str)] = &[
    (Rule::AnnotationTooLarge, "the example would be as large"),
    (Rule::ConfigurationTooLarge, "the example would be as large"),
    (Rule::NetworkPolicyNotEnforceable, "the pod is in no file"),
    (Rule::InvalidAuxiliaryChain, "the examples are files of a node"),
];

/// Configuration of the meta-plugin for the examples.
const NODE: &str = r#"{"cniVersion":"1.1.0","name":"weft","type":"weft","delegates":[{"cniVersion":"1.0.0","name":"pods","type":"bridge"}]}"#;

/// Pod for examples that are the configuration of the meta-plugin.
const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\n";

/// Returns the rows of the table, as they must be.
fn table() -> String {
    let mut table = String::from("| rule | severity | stage | meaning | source |\n|---|---|---|---|---|\n");
    for rule in Rule::ALL {
        let lower = |text: String| text.to_lowercase();
        let (severity, stage) = (format!("{:?}", rule.severity()), format!("{:?}", rule.stage()));
        let cells = [
            format!("[{rule}](#{rule})"),
            lower(severity),
            lower(stage),
            rule.explanation().to_owned(),
            rule.source().to_string(),
        ];
        table.push_str(&format!("| {} |\n", cells.join(" | ")));
    }
    table
}

/// Returns the example as a file: a value of an annotation is put into a pod.
fn as_file(example: &str) -> String {
    match example.trim_start().chars().next() {
        Some('{') => example.to_owned(),
        _ if example.contains("kind:") => example.to_owned(),
        _ => {
            let value = example.trim_end().replace('\'', "''");
            format!(
                "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\n  annotations:\n    \
                 k8s.v1.cni.cncf.io/networks: '{value}'\n"
            )
        }
    }
}

/// Returns the rules and severities of the linter's findings.
fn linted(example: &str) -> Vec<(Rule, Severity)> {
    let programs = Programs {
        directories: vec!["/opt/cni/bin".into()],
        names: BTreeSet::from(["sriov".into(), "ib-sriov".into()]),
    };
    let knowledge = Knowledge { programs: Some(programs), nodes: Some(3), ..Knowledge::of_known_plugins() };
    let file = as_file(example);
    let mut findings = match file.trim_start().starts_with('{') {
        true => lint::configuration(&file, &knowledge),
        false => lint::manifest(&Manifest::parse(&file), &knowledge),
    };
    let mut across = Across::default();
    across.add("example", &Manifest::parse(&file), 0);
    findings.extend(across.findings().into_iter().map(|(_, finding)| finding));
    findings.iter().map(|finding| (finding.fault.rule, finding.severity)).collect()
}

/// Returns the rules that the plan of the example's pod breaks. A pod has the devices that it requests.
fn planned(example: &str) -> BTreeSet<Rule> {
    let is_node = example.trim_start().starts_with('{');
    let (node, pods) = if is_node { (example, POD) } else { (NODE, example) };
    let node = NodeConfiguration::read(node.as_bytes(), Flavour::Weft).unwrap();
    let mut all = Collection::default();
    all.add("example", Manifest::parse(pods));
    let mut devices = Devices::new();
    if pods.contains("limits: {example.com/vf: 1}") {
        let device = Device { id: "0000:03:02.1".into(), container: "main".into() };
        devices.insert("example.com/vf".into(), vec![device]);
    }
    let pod = &all.pods[0];
    let access = policy::access(pod, policy::policies(&all.definitions), None);
    let sandbox = Sandbox { container: ContainerId::new("c").unwrap(), ifname: IfName::new("eth0").unwrap() };
    let planned = plan(&Request {
        pod,
        sandbox: &sandbox,
        node: &node,
        definitions: &all.definitions,
        disk: &Disk::default(),
        devices: &devices,
        access: &access,
        held: &[],
    });
    match planned {
        Ok(plan) => plan.warnings.iter().map(|warning| warning.fault.rule).collect(),
        Err(refusal) => BTreeSet::from([refusal.fault().rule]),
    }
}

#[test]
fn lint_page_has_every_rule_and_no_other() {
    let headings: Vec<&str> = PAGE.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    let names: Vec<&str> = Rule::ALL.iter().map(|rule| rule.name()).collect();
    assert_eq!(headings, names);
    assert!(PAGE.contains(&table()), "the table should read:\n{}", table());
    for rule in Rule::ALL {
        let page::Section { text, wrong, right, others } = page::section(*rule);
        assert_eq!(text.lines().find(|line| !line.is_empty()), Some(rule.explanation()), "{rule}");
        assert!(!wrong.is_empty() && !right.is_empty() && wrong != right && others.is_empty(), "{rule}");
    }
}

#[test]
fn lint_page_examples_break_their_rule_and_only_the_wrong_ones() {
    for rule in Rule::ALL.iter().copied().filter(|rule| NOT_RUN.iter().all(|(other, _)| other != rule)) {
        let page::Section { wrong, right, .. } = page::section(rule);
        match rule.stage() {
            Stage::File => {
                let found = linted(&wrong);
                assert!(found.contains(&(rule, rule.severity())), "{rule}: {found:?}");
            }
            Stage::Plan => assert!(planned(&wrong).contains(&rule), "{rule}: {:?}", planned(&wrong)),
            // Plugins make a result; the example is a pod that can be planned.
            Stage::Result => assert_eq!(planned(&right), BTreeSet::new(), "{rule}"),
        }
        if rule.stage() == Stage::Plan {
            assert_eq!(planned(&right), BTreeSet::new(), "{rule}");
        }
        assert_eq!(linted(&right), [], "{rule}: the right example is clean");
    }
}

#[test]
fn lint_page_links_lead_to_rules() {
    for (_, rest) in PAGE.match_indices("](#").map(|(at, link)| (at, &PAGE[at + link.len()..])) {
        let name = rest.split(')').next().unwrap();
        assert!(name.parse::<Rule>().is_ok(), "#{name}");
    }
}
