//! Findings between objects of one file, and at places where nothing reads a key.

use super::*;

/// Returns the findings between the objects of a file, each as `RULE message`.
fn across_objects(text: &str) -> Vec<String> {
    let mut across = across::Across::default();
    across.add("f", &Manifest::parse(text), 0);
    let line = |(_, finding): (String, Finding)| format!("{} {}", finding.fault.rule, finding.fault);
    across.findings().into_iter().map(line).collect()
}

/// Returns an object of this kind with networks in its pod template.
fn workload(kind: &str, name: &str, spec: &str, networks: &str) -> String {
    let annotations = format!("annotations: {{k8s.v1.cni.cncf.io/networks: '{networks}'}}");
    match kind {
        "Pod" => format!("---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, {annotations}}}\n"),
        _ => format!(
            "---\napiVersion: apps/v1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec:\n  {spec}\n  template: {{metadata: {{{annotations}}}}}\n"
        ),
    }
}

#[test]
fn lint_address_requested_by_two_pods_is_reported() {
    let ips = r#"[{"name":"a","ips":["10.0.0.7/24"]}]"#;
    let found = across_objects(&(workload("Pod", "x", "", ips) + &workload("Pod", "y", "", ips)));
    assert_eq!(found.len(), 1, "{found:?}");
    let expected = "duplicate-address annotation k8s.v1.cni.cncf.io/networks of pod default/y: [0].ips: \"10.0.0.7\": is also requested by pod default/x in f:4";
    assert!(found[0].starts_with(expected), "{found:?}");
    // Siblings: a hardware address, several pods of one object, two elements of one pod, the plugin `static`.
    let mac = r#"[{"name":"a","mac":"02:00:00:00:00:01"}]"#;
    let found = across_objects(&(workload("Pod", "x", "", mac) + &workload("Deployment", "y", "", mac)));
    assert!(found.len() == 1 && found[0].contains("[0].mac"), "{found:?}");
    let found = across_objects(&workload("Deployment", "y", "replicas: 3", ips));
    assert!(found.len() == 1 && found[0].contains("each of the 3 pods of deployment default/y"), "{found:?}");
    let found = across_objects(&workload("DaemonSet", "y", "", ips));
    assert!(found.len() == 1 && found[0].contains("on each node"), "{found:?}");
    let twice = r#"[{"name":"a","ips":["10.0.0.7"]},{"name":"a","ips":["10.0.0.7"]}]"#;
    let found = across_objects(&workload("Pod", "x", "", twice));
    assert!(
        found.len() == 1 && found[0].contains("[1].ips") && found[0].contains("element [0]"),
        "{found:?}"
    );
    let fixed = config(
        r#"{"cniVersion":"1.0.0","name":"a","type":"macvlan","ipam":{"type":"static","addresses":[{"address":"10.0.0.2/24"}]}}"#,
    );
    let found = across_objects(&(fixed.clone() + &workload("Deployment", "y", "replicas: 2", "a")));
    assert!(found.len() == 1 && found[0].contains("is the fixed address of default/a"), "{found:?}");
    assert_eq!(across_objects(&(fixed + &workload("Deployment", "y", "replicas: 1", "a"))), [""; 0]);
}

#[test]
fn lint_address_shared_by_intention_is_not_reported() {
    let ips = r#"[{"name":"a","ips":["10.0.0.7"]}]"#;
    let elsewhere = r#"[{"name":"b","ips":["10.0.0.7"]}]"#;
    let other = r#"[{"name":"a","ips":["10.0.0.8"]}]"#;
    for second in [elsewhere, other, "a"] {
        let found = across_objects(&(workload("Pod", "x", "", ips) + &workload("Pod", "y", "", second)));
        assert_eq!(found, [""; 0], "{second}");
    }
    // A base and its overlay are one object; an object without pods requests nothing.
    assert_eq!(across_objects(&workload("Pod", "x", "", ips).repeat(2)), [""; 0]);
    let idle = workload("Deployment", "y", "replicas: 0", ips);
    assert_eq!(across_objects(&(workload("Pod", "x", "", ips) + &idle)), [""; 0]);
    let claim = r#"[{"name":"a","mac":"02:00:00:00:00:01","ipam-claim-reference":"c"}]"#;
    assert_eq!(
        across_objects(&(workload("Pod", "x", "", claim) + &workload("Pod", "y", "", claim))),
        [""; 0]
    );
}

#[test]
fn lint_request_that_another_object_cannot_fulfil_is_reported() {
    let definition = |capabilities: &str, metadata: &str| {
        format!(
            "---\napiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata: {{name: a, {metadata}}}\nspec: {{config: '{{\"cniVersion\":\"1.0.0\",\"name\":\"a\",\"type\":\"x\",\"capabilities\":{{{capabilities}}}}}'}}\n"
        )
    };
    let found = |definition: &str, networks: &str| {
        across_objects(&(definition.to_owned() + &workload("Pod", "x", "", networks)))
    };
    let bare = definition("", "");
    let requests = [
        r#""portMappings":[{"hostPort":80,"containerPort":80}]"#,
        r#""bandwidth":{"ingressRate":1000,"ingressBurst":1000}"#,
        r#""infiniband-guid":"24:8a:07:03:00:8d:ae:2f""#,
    ];
    for request in requests {
        let found = found(&bare, &format!(r#"[{{"name":"a",{request}}}]"#));
        assert!(found.len() == 1 && found[0].starts_with("missing-capability "), "{request}: {found:?}");
        assert!(found[0].contains("of pod default/x: [0]."), "{found:?}");
    }
    let able = definition(r#"\"portMappings\":true"#.replace('\\', "").as_str(), "");
    assert_eq!(found(&able, &format!(r#"[{{"name":"a",{}}}]"#, requests[0])), [""; 0]);
    // The network of another namespace, and one whose access rule names another account.
    let denied = definition("", r#"annotations: {weft.dev/access: '{"serviceAccounts":["default/other"]}'}"#);
    assert!(
        found(&denied, "a").iter().any(|found| found.starts_with("network-not-allowed ")),
        "{:?}",
        found(&denied, "a")
    );
    // Devices, and labels of a namespace that is in no file, are unknown.
    let device = definition("", "annotations: {k8s.v1.cni.cncf.io/resourceName: e.x/vf}")
        .replace("\"x\"", "\"sriov\"");
    let by_label = definition(
        "",
        r#"annotations: {weft.dev/access: '{"namespaceSelector":{"matchLabels":{"a":"b"}}}'}"#,
    );
    for definition in [&device, &by_label] {
        assert_eq!(found(definition, "a"), [""; 0], "{definition}");
    }
}

#[test]
fn lint_keys_at_any_wrong_place_are_reported() {
    let key = "k8s.v1.cni.cncf.io/networks: a";
    for (object, path) in [
        (
            format!(
                "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: d}}\nspec: {{template: {{annotations: {{{key}}}}}}}\n"
            ),
            "spec.template.annotations",
        ),
        (
            format!(
                "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: d}}\nspec: {{template: {{spec: {{annotations: {{{key}}}}}}}}}\n"
            ),
            "spec.template.spec.annotations",
        ),
        (format!("apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: d}}\nspec: {{{key}}}\n"), "spec"),
        (
            format!(
                "apiVersion: batch/v1\nkind: CronJob\nmetadata: {{name: d}}\nspec: {{jobTemplate: {{metadata: {{annotations: {{{key}}}}}}}}}\n"
            ),
            "spec.jobTemplate.metadata.annotations",
        ),
        (format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: d, {key}}}\n"), "metadata"),
        (
            format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: d}}\nannotations: {{{key}}}\n"),
            "annotations",
        ),
    ] {
        let found = lint(&object);
        let expected = path
            .split('.')
            .fold(KeyPath::root(), |path, key| path.key(key))
            .key("k8s.v1.cni.cncf.io/networks");
        let is_it = |finding: &Finding| {
            finding.fault.rule == Rule::MisplacedAnnotation && finding.fault.path == expected
        };
        assert_eq!(found.iter().filter(|finding| is_it(finding)).count(), 1, "{object}: {found:?}");
        assert!(found.iter().any(|finding| finding.fault.hint.contains("metadata.annotations")), "{found:?}");
    }
    for place in [
        "metadata: {name: a, config: '{}'}",
        "metadata: {name: a}\ndata: {config: '{}'}",
        "metadata: {name: a}\nconfig: '{}'",
        "metadata: {name: a}\nspec: {Config: '{}'}",
        "metadata: {name: a}\ntype: bridge",
    ] {
        let found =
            lint(&format!("apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\n{place}\n"));
        assert!(
            found.iter().any(|finding| finding.fault.rule == Rule::MisplacedConfig),
            "{place}: {found:?}"
        );
    }
}

#[test]
fn lint_fix_writes_whole_numbers_as_the_api_server() {
    let text = "apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata: {name: a}\nspec:\n  config:\n    cniVersion: 1.0.0\n    name: a\n    type: macvlan\n    mtu: 1e3\n    x: 1.50\n";
    let edits: Vec<Edit> = lint(text).into_iter().filter_map(|finding| finding.fix).collect();
    let fixed = apply(text, &edits);
    assert!(fixed.contains("\"mtu\": 1000,") && fixed.contains("\"x\": 1.5"), "{fixed}");
}
