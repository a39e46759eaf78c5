//! Tests of the reader: objects and positions.

use super::*;
use npwg::refusal::Step;

fn one_definition(text: &str) -> Definition {
    let manifest = Manifest::parse(text);
    assert!(manifest.problems.is_empty(), "{:?}", manifest.problems);
    manifest.definitions[0].value.clone()
}

fn reasons(text: &str) -> Vec<String> {
    let manifest = Manifest::parse(text);
    let line = |problem: &Problem| {
        let Position { line, column } = manifest.source.position(problem.at);
        format!("{line}:{column}: {}", problem.fault)
    };
    manifest.problems.iter().map(line).collect()
}

const POD: &str = "apiVersion: v1
kind: Pod
metadata:
  name: web
  namespace: home
  uid: u-1
  labels: {app: web, tier: \"1\"}
  annotations:
    k8s.v1.cni.cncf.io/networks: net-a,net-b
spec:
  hostNetwork: yes
  serviceAccountName: robot
  nodeName: node-1
";

#[test]
fn manifest_pod_is_read() {
    let manifest = Manifest::parse(POD);
    assert!(manifest.problems.is_empty(), "{:?}", manifest.problems);
    let pod = manifest.pod("home", "web").unwrap();
    assert_eq!(
        (pod.uid.as_str(), pod.service_account_name.as_str(), pod.node_name.as_str()),
        ("u-1", "robot", "node-1")
    );
    assert!(pod.host_network);
    assert_eq!(pod.labels["tier"], "1");
    assert_eq!(pod.annotations["k8s.v1.cni.cncf.io/networks"], "net-a,net-b");
    assert!(manifest.pod("home", "other").is_none());
}

#[test]
fn manifest_named_ports_are_those_of_containers_and_sidecars() {
    let containers = "  containers:
  - ports: [{name: sql, containerPort: 5432}, {containerPort: 80}]
  - ports: [{name: sql, containerPort: 5433}, {name: dns, containerPort: 53, protocol: UDP}]
  initContainers:
  - {restartPolicy: Always, ports: [{name: side, containerPort: 9, protocol: SCTP}]}
  - ports: [{name: first, containerPort: 7}]
";
    let manifest = Manifest::parse(&format!("{POD}{containers}"));
    let ports = &manifest.pod("home", "web").unwrap().named_ports;
    let all: Vec<String> =
        ports.iter().map(|(name, (of, port))| format!("{name} {} {port}", of.word())).collect();
    assert_eq!(all, ["dns UDP 53", "side SCTP 9", "sql TCP 5432"]);
}

#[test]
fn manifest_json_is_read() {
    let json = r#"{"apiVersion":"v1","kind":"List","items":[
      {"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}},
      {"apiVersion":"k8s.cni.cncf.io/v1","kind":"NetworkAttachmentDefinition","metadata":{"name":"n"},"spec":{"config":"{\"type\":\"x\"}"}},
      {"apiVersion":"v1","kind":"Namespace","metadata":{"name":"ns"}}]}"#;
    let manifest = Manifest::parse(json);
    assert!(manifest.problems.is_empty(), "{:?}", manifest.problems);
    assert_eq!(manifest.pods[0].value.pod.namespace, "default");
    assert_eq!(manifest.definitions[0].value.config, SpecConfig::Text(r#"{"type":"x"}"#.into()));
    assert_eq!(manifest.namespaces[0].value.name, "ns");
}

#[test]
fn manifest_with_an_invalid_document_among_others() {
    let text =
        format!("# first\n---\n{POD}---\nkind: [\n---\nkind: ConfigMap\nmetadata: {{name: x}}\n--- \n");
    let manifest = Manifest::parse(&text);
    assert_eq!((manifest.pods.len(), manifest.others.len(), manifest.problems.len()), (1, 1, 1));
    assert!(manifest.problems[0].fault.reason.starts_with("not YAML"), "{:?}", manifest.problems);
    assert_eq!(manifest.others[0].value, "ConfigMap");
    assert_eq!(manifest.source.position(manifest.problems[0].at).line, 17);
}

#[test]
fn manifest_pod_template_of_each_workload_is_a_pod() {
    for (kind, version, path) in [
        ("Deployment", "apps/v1", "template"),
        ("StatefulSet", "apps/v1", "template"),
        ("DaemonSet", "apps/v1", "template"),
        ("ReplicaSet", "apps/v1", "template"),
        ("Job", "batch/v1", "template"),
        ("CronJob", "batch/v1", "jobTemplate: {spec: {template"),
    ] {
        let close = if kind == "CronJob" { "}}" } else { "" };
        let text = format!(
            "apiVersion: {version}\nkind: {kind}\nmetadata: {{name: w, namespace: ns}}\nspec: {{{path}: {{metadata: {{annotations: {{k: v}}}}, spec: {{hostNetwork: true}}}}{close}}}\n"
        );
        let manifest = Manifest::parse(&text);
        assert!(manifest.problems.is_empty(), "{kind}: {:?}", manifest.problems);
        let PodObject { pod, kind: read } = &manifest.pods[0].value;
        assert_eq!((pod.namespace.as_str(), pod.name.as_str(), read.as_str()), ("ns", "w", kind));
        assert!(pod.host_network && pod.annotations["k"] == "v", "{kind}");
    }
}

// Requirements: NPWG1-3.2-1
#[test]
fn manifest_definition_needs_a_name_and_no_spec() {
    let bare = one_definition(
        "apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata:\n  name: a\n",
    );
    assert_eq!(bare.config, SpecConfig::Absent);
    let nameless =
        reasons("apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata: {}\n");
    assert!(nameless[0].contains("metadata.name is missing"), "{nameless:?}");
}

// Requirements: M29
#[test]
fn manifest_config_null_counts_as_absent() {
    let text = "apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata: {name: a}\nspec: {config: null}\n";
    assert_eq!(one_definition(text).config, SpecConfig::Absent);
}

// Requirements: NPWG1-3.1-1
#[test]
fn manifest_definition_api_version_is_checked() {
    let old = reasons(
        "apiVersion: k8s.cni.cncf.io/v1beta1\nkind: NetworkAttachmentDefinition\nmetadata: {name: a}\n",
    );
    assert!(
        old[0].starts_with("1:13: network-attachment-definition a: apiVersion: \"k8s.cni.cncf.io/v1beta1\""),
        "{old:?}"
    );
    let missing = reasons("kind: NetworkAttachmentDefinition\nmetadata: {name: a}\n");
    assert!(missing[0].contains("apiVersion is missing"), "{missing:?}");
}

// Requirements: NPWG1-3.1-2
#[test]
fn manifest_config_map_is_kept_as_structured() {
    let text = "apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata: {name: a}\nspec:\n  config: {\"type\": \"x\", \"n\": 0x10, \"l\": [yes, ~]\n}\n";
    let config = one_definition(text).config;
    assert_eq!(config, SpecConfig::Structured(r#"{"type":"x","n":16,"l":[true,null]}"#.into()));
}

#[test]
fn manifest_quoted_config_needs_no_indentation() {
    let head = "apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata: {name: a}\nspec:\n  config: ";
    let expected = SpecConfig::Text(r#"{ "type": "it's", "a": 1 }"#.into());
    for config in [
        "'{\n  \"type\": \"it''s\",\n  \"a\": 1\n}'\n",
        "'{\n    \"type\": \"it''s\",\n    \"a\": 1\n  }'\n",
        "'{\n\"type\": \"it''s\",\n\"a\": 1\n}'\n",
        "\"{\n\\\"type\\\": \\\"it's\\\",\n\\\"a\\\": 1\n}\"\n",
        "'{\n\t\"type\": \"it''s\",\n\t\t\"a\": 1\n}'\n",
        "\"{\n\t\\\"type\\\": \\\"it's\\\",\n \t\\\"a\\\": 1\n\t}\"\n",
    ] {
        assert_eq!(one_definition(&format!("{head}{config}")).config, expected, "{config}");
    }
}

#[test]
fn manifest_tabs_are_blanks_only_in_brackets() {
    let head =
        "apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata: {name: a}\nspec:\n";
    let text = format!("{head}  config: {{\n\t\"type\": \"x\",\n\t\"l\": [\n\t\t1\n\t]\n}}\n");
    let manifest = Manifest::parse(&text);
    assert!(manifest.problems.is_empty(), "{:?}", manifest.problems);
    let expected = SpecConfig::Structured(r#"{"type":"x","l":[1]}"#.into());
    assert_eq!(manifest.definitions[0].value.config, expected);
    let node = manifest.definitions[0].node_at(&KeyPath::root().key("spec").key("config").key("l"));
    assert_eq!(manifest.source.position(node.span.start), Position { line: 7, column: 7 });
    let block = reasons(&format!("{head}\tconfig: x\n"));
    assert!(block[0].contains("tab"), "{block:?}");
}

#[test]
fn manifest_positions_in_quoted_strings_are_kept() {
    let text = "a: '{\n\"x\"\n}'\nb: \"y\nz\"\nc: 7\n";
    let source = Source::new(text);
    let node = document::documents(&source).remove(0).unwrap();
    let place = |key: &str| {
        let node = node.get(key).unwrap();
        (source.position(node.span.start), source.slice(node.span).to_owned())
    };
    assert_eq!(place("a"), (Position { line: 1, column: 4 }, "'{\n\"x\"\n}'".to_owned()));
    assert_eq!(place("b"), (Position { line: 4, column: 4 }, "\"y\nz\"".to_owned()));
    assert_eq!(place("c"), (Position { line: 6, column: 4 }, "7".to_owned()));
}

#[test]
fn manifest_nodes_have_positions() {
    let manifest = Manifest::parse(POD);
    let path = KeyPath::root().key("metadata").key("annotations").key("k8s.v1.cni.cncf.io/networks");
    let node = manifest.pods[0].node_at(&path);
    assert_eq!(manifest.source.position(node.span.start), Position { line: 9, column: 34 });
    assert_eq!(manifest.source.slice(node.span), "net-a,net-b");
    let beyond = manifest.pods[0].node_at(&path.key("x"));
    assert_eq!(beyond, node);
    assert_eq!(path.steps().last(), Some(&Step::Key("k8s.v1.cni.cncf.io/networks".into())));
}

#[test]
fn manifest_wrong_types_are_reported_with_positions() {
    let text = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: 7\n  annotations:\n    a: 1\n    b: [x]\n    c:\nspec:\n  hostNetwork: maybe\n";
    let reasons = reasons(text);
    assert_eq!(reasons.len(), 4, "{reasons:?}");
    for (reason, beginning) in reasons.iter().zip([
        "10:16: pod 7: spec.hostNetwork",
        "4:9: pod 7: metadata.name: 7: must be a string, this is a number: write it in quotes",
        "6:8: pod 7: metadata.annotations.a: 1: must be a string, this is a number",
        "7:8: pod 7: metadata.annotations.b: must be a string, this is a list",
    ]) {
        assert!(reason.starts_with(beginning), "{reason} | {beginning}");
    }
    for (text, what) in [
        ("- a\n", "not an object"),
        ("just text\n", "is a string, not an object"),
        ("a: 1\n", "has no kind"),
        ("kind: Podd\nmetadata: {name: a}\n", "did you mean Pod?"),
        ("apiVersion: v2\nkind: Pod\nmetadata: {name: a}\n", "is not a version of Pod"),
    ] {
        let found = Manifest::parse(text).problems;
        assert!(found[0].fault.to_string().contains(what), "{text}: {found:?}");
    }
}

#[test]
fn manifest_anchors_aliases_and_merges_are_resolved() {
    let text = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  labels: &l {x: \"1\", y: \"2\"}\n  annotations:\n    y: \"own\"\n    <<: *l\n";
    let manifest = Manifest::parse(text);
    let annotations = &manifest.pods[0].value.pod.annotations;
    assert_eq!((annotations["x"].as_str(), annotations["y"].as_str()), ("1", "own"));
}

#[test]
fn manifest_too_large_or_deep_is_refused() {
    let mut aliases = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
    for level in 1..10 {
        let before = level - 1;
        aliases.push_str(&format!("a{level}: &a{level} [{}]\n", vec![format!("*a{before}"); 10].join(",")));
    }
    let mut deep = String::from("a0: &a0 [x]\n");
    for level in 1..200 {
        deep.push_str(&format!("a{level}: &a{level} [*a{}]\n", level - 1));
    }
    let long = format!("a: &a \"{}\"\nb: [{}]\n", "x".repeat(100_000), vec!["*a"; 200].join(","));
    for (text, what) in [
        (aliases, "too large"),
        (deep, "nested deeper"),
        (long, "too large"),
        (format!("a: {}1{}", "[".repeat(1000), "]".repeat(1000)), ""),
        (format!("{}x", "- ".repeat(1000)), ""),
        (format!("a: &a [{}*a]", ""), ""),
        (format!("kind: Pod\nx: [{}]", "1,".repeat(NODES_MAX + 1)), "too large"),
        ("x".repeat(MANIFEST_MAX + 1), "larger than"),
        ("? [a]\n: b\n".to_owned(), "a key must be a string"),
        ("<<: 1\na: 2\n".to_owned(), "<< needs a map"),
    ] {
        let manifest = Manifest::parse(&text);
        let first = manifest.problems.first().map(|problem| problem.fault.reason.clone()).unwrap_or_default();
        assert!(!manifest.problems.is_empty() && first.contains(what), "{what:?}: {first:?}");
    }
}
