//! Tests of the linter: positions, rules and suggestions.

use super::*;
use npwg::metadata::SpecConfig;
use npwg::rule::Rule;

fn lint(text: &str) -> Vec<Finding> {
    manifest(&Manifest::parse(text), &Knowledge::default())
}

/// Returns `line:column severity rule` of each finding.
fn short(findings: &[Finding]) -> Vec<String> {
    let line = |finding: &Finding| {
        let Position { line, column } = finding.position;
        format!("{line}:{column} {:?} {}", finding.severity, finding.fault.rule)
    };
    findings.iter().map(line).collect()
}

/// Returns a definition `a` with this `spec`.
fn definition(spec: &str) -> String {
    format!(
        "apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata:\n  name: a\nspec:\n{spec}"
    )
}

/// Returns a definition `a` with this JSON in a block at line 7.
fn config(json: &str) -> String {
    let lines: Vec<String> = json.lines().map(|line| format!("    {line}\n")).collect();
    definition(&format!("  config: |\n{}", lines.concat()))
}

fn pod(annotation: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\n  annotations:\n    k8s.v1.cni.cncf.io/networks: {annotation}\n"
    )
}

#[test]
fn lint_valid_file_has_no_findings() {
    let good = config(r#"{"cniVersion":"1.0.0","name":"a","type":"bridge","capabilities":{"ips":true}}"#);
    assert_eq!(lint(&format!("{good}---\n{}", pod("a"))), []);
}

// Requirements: NPWG1-3.1-2
#[test]
fn lint_config_map_is_reported_with_the_corrected_string() {
    let text = definition(
        "  config: {\n    \"cniVersion\": \"0.3.0\",\n    \"name\": \"a\",\n    \"type\": \"bridge\"\n}\n",
    );
    let findings = lint(&text);
    assert_eq!(short(&findings), ["6:11 Error config-not-a-string"]);
    let corrected = definition(
        "  config: |\n    {\n        \"cniVersion\": \"0.3.0\",\n        \"name\": \"a\",\n        \"type\": \"bridge\"\n    }",
    );
    assert_eq!(findings[0].corrected.trim_end(), corrected);
    assert!(findings[0].fault.cure.contains("config: |"));
}

// Requirements: NPWG1-3.1-2
#[test]
fn lint_fix_converts_every_form_of_config_map() {
    for spec in [
        "  config: {\n    \"cniVersion\": \"0.3.0\", \"name\": \"a\",\n    \"type\": \"bridge\"}\n",
        "  config: {\"cniVersion\": \"0.3.0\", \"name\": \"a\", \"type\": \"bridge\"} # why not\n",
        "  config:\n    cniVersion: 0.3.0\n    name: a\n    type: bridge\n",
        "  config:   # a comment\n    cniVersion: 0.3.0\n    # another\n    name: a\n    type: bridge # and one\n\n# the end\n",
        "  config: {cniVersion: 0.3.0, name: a, type: bridge}\n",
        "  {config: {cniVersion: 0.3.0, name: a, type: bridge}}\n",
    ] {
        for tail in ["", "---\nkind: ConfigMap\nmetadata: {name: x}\n"] {
            let text = definition(&format!("{spec}{tail}"));
            let found = lint(&text);
            assert_eq!(found[0].fault.rule.name(), "config-not-a-string", "{spec}");
            let fixed = apply(&text, &[found[0].fix.clone().unwrap()]);
            let manifest = Manifest::parse(&fixed);
            let SpecConfig::Text(json) = &manifest.definitions[0].value.config else { panic!("{fixed}") };
            let value: serde_json::Value =
                serde_json::from_str(json).unwrap_or_else(|e| panic!("{e}: {fixed}"));
            assert_eq!(
                value,
                serde_json::json!({"cniVersion": "0.3.0", "name": "a", "type": "bridge"}),
                "{fixed}"
            );
            assert_eq!(lint(&fixed), [], "{fixed}");
            assert_eq!(manifest.others.len(), usize::from(!tail.is_empty()), "{fixed}");
        }
    }
}

// Requirements: NPWG1-3.1-2
#[test]
fn lint_checks_the_content_of_a_config_map() {
    let text = definition(
        "  config:\n    cniVersion: 0.3.0\n    name: a\n    plugins:\n      - type: bridge\n        args: [1]\n",
    );
    assert_eq!(short(&lint(&text)), ["7:5 Error config-not-a-string", "11:15 Error malformed-args"]);
    let scalar = lint(&definition("  config: 7\n"));
    assert_eq!(short(&scalar), ["6:11 Error config-not-a-string"]);
}

#[test]
fn lint_positions_inside_json_are_those_of_the_file() {
    let json = "{\n  \"cniVersion\": \"9.9.9\",\n  \"name\": \"a\",\n  \"plugins\": [\n    {\"type\": \"x\", \"args\": 1},\n    {\"type\": \"../y\"}, null, {}\n  ]\n}";
    let expected = [
        (2, 17, "invalid-cni-version"),
        (5, 27, "malformed-args"),
        (6, 14, "invalid-plugin-type"),
        (6, 23, "malformed-plugin-list"),
        (6, 29, "missing-plugin"),
    ];
    let block: Vec<String> =
        expected.iter().map(|(line, column, id)| format!("{}:{} Error {id}", line + 6, column + 4)).collect();
    assert_eq!(short(&lint(&config(json))), block);
    // The same in quotes, with the lines at the margin.
    let quoted = definition(&format!("  config: '{json}'\n"));
    let margin: Vec<String> =
        expected.iter().map(|(line, column, id)| format!("{}:{column} Error {id}", line + 5)).collect();
    assert_eq!(short(&lint(&quoted)), margin);
    // And as a file of its own.
    let alone: Vec<String> =
        expected.iter().map(|(line, column, id)| format!("{line}:{column} Error {id}")).collect();
    assert_eq!(short(&configuration(json, &Knowledge::default())), alone);
}

#[test]
fn lint_invalid_json_is_reported_at_the_error() {
    let findings = lint(&config("{\n  \"type\": \"x\",\n}"));
    assert_eq!(short(&findings), ["9:5 Error malformed-config"]);
    assert!(findings[0].fault.reason.contains("not JSON"));
    assert_eq!(short(&lint(&config("[]"))), ["7:5 Error malformed-config"]);
}

// Requirements: NPWG1-3.4.3-1, NPWG1-3.4.2-1
#[test]
fn lint_network_name_is_compared_with_the_definition() {
    let other = lint(&config(r#"{"cniVersion":"1.0.0","name":"b","type":"x"}"#));
    assert_eq!(short(&other), ["7:34 Warning name-mismatch"]);
    let none = lint(&config(r#"{"cniVersion":"1.0.0","type":"x"}"#));
    assert_eq!(short(&none), ["7:5 Note unnamed-config"]);
    let illegal = lint(&config(r#"{"cniVersion":"1.0.0","name":"a b","type":"x"}"#));
    assert_eq!(short(&illegal), ["7:34 Error invalid-config-name"]);
    let number = lint(&config(r#"{"cniVersion":"1.0.0","name":5,"type":"x"}"#));
    assert_eq!(short(&number), ["7:34 Error invalid-config-name"]);
}

// Requirements: NPWG1-3.3-1, conflict C18
#[test]
fn lint_definition_name_is_checked() {
    let named = |name: &str| {
        short(&lint(&format!(
            "apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata: {{name: {name}}}\n"
        )))
    };
    assert_eq!(named("good"), ["1:1 Note config-on-disk"]);
    assert_eq!(named("A_b"), ["1:1 Note config-on-disk", "3:18 Error invalid-network-name"]);
    assert_eq!(named("net.v2"), ["1:1 Note config-on-disk", "3:18 Warning dotted-network-name"]);
}

// Requirements: conflict C17
#[test]
fn lint_empty_config_is_reported() {
    assert_eq!(short(&lint(&definition("  config: \"\"\n"))), ["6:11 Warning empty-config"]);
}

// Requirements: M29
#[test]
fn lint_recursive_network_is_reported() {
    let findings = lint(&config(r#"{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"multus"}]}"#));
    assert_eq!(short(&findings), ["7:57 Error recursive-network"]);
    let single = lint(&config(r#"{"cniVersion":"1.0.0","name":"a","type":"weft"}"#));
    assert_eq!(short(&single), ["7:45 Error recursive-network"]);
}

#[test]
fn lint_cni_version_capabilities_and_keys() {
    let no_version = lint(&config(r#"{"name":"a","type":"x"}"#));
    assert_eq!(short(&no_version), ["7:5 Warning missing-cni-version"]);
    let capability = lint(&config(
        r#"{"cniVersion":"1.0.0","name":"a","type":"x","capabilities":{"ip":true,"example.com/x":true,"mac":1}}"#,
    ));
    assert_eq!(short(&capability), ["7:70 Warning unknown-capability", "7:102 Error invalid-capabilities"]);
    assert_eq!(capability[0].fault.cure, "did you mean ips?");
    let list = lint(&config(
        r#"{"cniVersion":"1.0.0","name":"a","disableChek":true,"vendor":1,"plugins":[{"type":"x"}]}"#,
    ));
    assert_eq!(short(&list), ["7:52 Warning unknown-key"]);
    let runtime = lint(&config(r#"{"cniVersion":"1.0.0","name":"a","type":"x","runtimeConfig":{}}"#));
    assert_eq!(short(&runtime), ["7:65 Warning static-runtime-config"]);
}

#[test]
fn lint_unknown_key_uses_the_given_plugin_options() {
    let mut knowledge = Knowledge::default();
    knowledge.plugin_keys.insert("bridge".into(), vec!["bridge".into(), "isGateway".into()]);
    let text =
        config(r#"{"cniVersion":"1.0.0","name":"a","type":"bridge","isGateWay":true,"isGatway":1,"x.y":1}"#);
    let findings = manifest(&Manifest::parse(&text), &knowledge);
    assert_eq!(short(&findings), ["7:82 Warning unknown-key"]);
    assert_eq!(findings[0].fault.cure, "did you mean isGateway?");
    assert_eq!(lint(&text), []);
}

#[test]
fn lint_unknown_key_of_plugins_and_ipam_is_reported() {
    let text = config(
        r#"{"cniVersion":"1.0.0","name":"a","type":"ptp","isGateway":true,"dns":{},"ipam":{"type":"host-local","subnet":"10.1.0.0/16","subnett":"x","RangeStart":""}}"#,
    );
    let findings = manifest(&Manifest::parse(&text), &Knowledge::of_known_plugins());
    assert_eq!(short(&findings), ["7:63 Warning unknown-key", "7:138 Warning unknown-key"]);
    assert_eq!(findings[1].fault.cure, "did you mean subnet?");
    assert!(findings[1].fault.reason.contains("not a key of host-local"), "{findings:?}");
}

/// The findings of a plugin's keys among well-known plugins: rule, path and reason.
fn of_keys(keys: &str) -> Vec<String> {
    let text = format!(r#"{{"cniVersion":"1.0.0","name":"a",{keys}}}"#);
    let found = configuration(&text, &Knowledge::of_known_plugins());
    let line = |finding: &Finding| {
        let Fault { rule, path, reason, cure, .. } = &finding.fault;
        format!("{rule} {path}: {reason} {cure}").trim().to_owned()
    };
    found.iter().map(line).collect()
}

#[test]
fn lint_invalid_value_of_a_plugin_is_reported() {
    for (keys, said) in [
        (
            r#""type":"vlan","master":"eth0","vlanId":5000"#,
            "invalid-value vlanId: must be a whole number within 0..=4094",
        ),
        (r#""type":"vlan","vlanId":5"#, "vlan has no master"),
        (r#""type":"bridge","mtu":"abc""#, "invalid-value mtu: must be a number"),
        (r#""type":"bridge","MTU":40"#, "invalid-value MTU: must be 0, or"),
        (r#""type":"bridge","vlan":9999"#, "invalid-value vlan: must be"),
        (r#""type":"bridge","isGateway":"yes""#, "invalid-value isGateway: must be true or false"),
        (r#""type":"bridge","bridge":"a-name-of-20-letters""#, "is longer than 15 bytes"),
        (
            r#""type":"bridge","vlanTrunk":[{"id":5},{"minID":"x"}]"#,
            "invalid-value vlanTrunk[1].minID: must be a number",
        ),
        (r#""type":"ipvlan","mode":"l9""#, "invalid-value mode: must be one of l2, l3, l3s"),
        (r#""type":"macvlan","mode":"bride""#, "must be one of bridge, private"),
        (r#""type":"ptp""#, "missing-key : ptp has no ipam"),
        (r#""type":"vrf""#, "vrf has no vrfname"),
        (r#""type":"tuning","sysctl":{"a":1}"#, "invalid-value sysctl: must be an object of strings"),
        (r#""type":"brigde""#, "unknown-plugin-type type: is not a known plugin did you mean bridge?"),
    ] {
        let found = of_keys(keys);
        assert!(matches!(found.as_slice(), [one] if one.contains(said)), "{keys}: {found:?}");
    }
    for keys in [
        r#""type":"macvlan","master":"","mode":"","mtu":0"#,
        r#""type":"ovs","vlan":"any""#,
        r#""type":"vlan","master":"eth0","vlanId":0,"mtu":null"#,
        r#""type":"macvtap""#,
    ] {
        assert_eq!(of_keys(keys), [""; 0], "{keys}");
    }
}

#[test]
fn lint_invalid_value_of_ipam_is_reported() {
    for (ipam, said) in [
        (
            r#""type":"host-local","subnet":"10.0.0.0/33""#,
            "invalid-value ipam.subnet: must be an address with a prefix length",
        ),
        (r#""type":"host-local""#, "missing-key ipam: host-local has no ranges"),
        (
            r#""type":"host-local","ranges":[[{"subnet":"10.0.0.0/8","gateway":"x"}]]"#,
            "ipam.ranges[0][0].gateway: must be an IP address",
        ),
        (r#""type":"host-local","subnet":"10.0.0.0/8","routes":[{"dst":"10"}]"#, "ipam.routes[0].dst"),
        (r#""type":"weft-ipam""#, "weft-ipam has no range"),
        (r#""type":"whereabouts","range":"10.0.0.0/8","exclude":["x"]"#, "ipam.exclude[0]"),
        (r#""type":"static","addresses":[{"address":"10.0.0.1"}]"#, "ipam.addresses[0].address"),
        (r#""type":"host-locl""#, "did you mean host-local?"),
    ] {
        let found = of_keys(&format!(r#""type":"bridge","ipam":{{{ipam}}}"#));
        assert!(matches!(found.as_slice(), [one] if one.contains(said)), "{ipam}: {found:?}");
    }
    for ipam in [
        r#""type":"whereabouts","range":"10.0.0.2-10.0.0.9/24","exclude":["10.0.0.3","10.0.0.8/30"]"#,
        r#""type":"whereabouts","configuration_path":"/etc/whereabouts""#,
        r#""type":"static""#,
    ] {
        assert_eq!(of_keys(&format!(r#""type":"bridge","ipam":{{{ipam}}}"#)), [""; 0], "{ipam}");
    }
    assert_eq!(
        of_keys(r#""type":"ptp","capabilities":{"ipRanges":true},"ipam":{"type":"host-local"}"#),
        [""; 0]
    );
}

// Requirements: NPWG1-4.1.2.1.3-2
#[test]
fn lint_annotations_are_read_as_in_a_plan() {
    let comma = lint(&pod("net-a, UPPER,net-c@toolonginterfacename"));
    assert_eq!(
        short(&comma),
        ["6:41 Error malformed-network-reference", "6:47 Error invalid-interface-name"]
    );
    let json = "|\n      [\n        {\"name\": \"a\", \"ips\": [\"10.0.0.1\", \"10.0.0.256\"]},\n        {\"name\": \"b\", \"macc\": 1}\n      ]";
    let findings = lint(&pod(json));
    assert_eq!(short(&findings), ["8:43 Error invalid-ips", "9:31 Warning unknown-key"]);
    assert_eq!(findings[1].fault.cure, "did you mean mac?");
    assert_eq!(short(&lint(&pod("'[{\"name\": \"a\", \"mac\": 5}]'"))), ["6:57 Error invalid-mac"]);
}

// Requirements: NPWG1-4.1.2.1.5-3
#[test]
fn lint_duplicate_interface_name_is_reported() {
    assert_eq!(short(&lint(&pod("a@x,b@x"))), ["6:38 Error duplicate-interface-name"]);
}

#[test]
fn lint_misplaced_annotation_is_reported() {
    let text = "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: d\n  annotations:\n    k8s.v1.cni.cncf.io/networks: a\nspec:\n  template:\n    metadata:\n      annotations:\n        k8s.v1.cni.cncf.io/networks: A\n";
    let findings = lint(text);
    assert_eq!(
        short(&findings),
        ["6:34 Warning misplaced-annotation", "11:38 Error malformed-network-reference"]
    );
    assert_eq!(findings[0].fault.cure, "move it to spec.template.metadata.annotations");
    let host = format!("{}spec: {{hostNetwork: true}}\n", pod("a"));
    assert_eq!(short(&lint(&host)), ["6:34 Warning host-network-pod"]);
}

#[test]
fn lint_checks_the_meta_plugin_configuration() {
    let text = r#"{"cniVersion":"1.0.0","name":"w","plugins":[{"type":"weft","clusterNetwork":"a","confDri":"/x"}]}"#;
    let findings = configuration(text, &Knowledge::default());
    assert_eq!(short(&findings), ["1:45 Error invalid-node-configuration"]);
    assert!(findings[0].fault.reason.contains("did you mean confDir?"), "{findings:?}");
    let multus = configuration(&text.replace("weft", "multus"), &Knowledge::default());
    assert_eq!(short(&multus), ["1:93 Warning unknown-key"]);
    assert_eq!(configuration(r#"{"cniVersion":"1.0.0","name":"w","type":"x"}"#, &Knowledge::default()), []);
    assert_eq!(
        short(&configuration(r#"{"cniVersion":"1.0.0","type":"x"}"#, &Knowledge::default())),
        ["1:1 Error missing-config-name"]
    );
}

#[test]
fn lint_kuryr_definition_needs_no_config_and_is_checked() {
    let found = |text: &str| {
        let definition = definition("  {}\n").replace(
            "  name: a\n",
            &format!("  name: a\n  annotations:\n    openstack.org/kuryr-config: '{text}'\n"),
        );
        let findings = lint(&definition);
        assert!(findings.iter().all(|finding| finding.position.line == 6), "{findings:?}");
        findings.iter().map(|finding| finding.fault.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(found(r#"{"subnetId":"s-1","driverType":"nested-vlan"}"#), [""; 0]);
    assert_eq!(found("{}"), [""; 0]);
    for (text, words) in [
        (r#"{"subnetId":5}"#, "subnetId: 5 is not a string"),
        (r#"{"subnetId":"a b"}"#, "subnetId: \"a b\" is not an id"),
        (r#"{"driverType":"sriov"}"#, "neutron-vif, nested-vlan, nested-macvlan"),
        (r#"{"subnetID":"s"}"#, "subnetID: unknown key"),
        ("[]", "is not an object"),
        ("{", "EOF"),
    ] {
        let found = found(text);
        assert!(found.len() == 1 && found[0].contains(words), "{text}: {found:?}");
    }
}

#[test]
fn lint_findings_serialize_to_json() {
    let findings = lint(&pod("UPPER"));
    let json = serde_json::to_value(&findings[0]).unwrap();
    assert_eq!(json["position"], serde_json::json!({"line": 6, "column": 34}));
    assert_eq!((&json["severity"], &json["rule"]), (&"error".into(), &"malformed-network-reference".into()));
}

#[test]
fn lint_validates_options_of_plugin_aliases() {
    let text = r#"{"cniVersion":"1.0.0","name":"n","type":"cnv-bridge","brigde":"br0"}"#;
    let found = configuration(text, &Knowledge::of_known_plugins());
    assert!(found.iter().any(|finding| finding.fault.rule == Rule::UnknownKey), "{found:?}");
    assert!(found.iter().all(|finding| finding.fault.rule != Rule::UnknownPluginType), "{found:?}");
}

/// Applies all fixes; returns the documents and the number of findings of the same rule that remain.
fn fixed(text: &str) -> (Vec<serde_json::Value>, usize) {
    let findings = |text: &str| {
        let findings = manifest(&Manifest::parse(text), &Knowledge::default());
        findings.into_iter().filter(|finding| finding.fault.rule == Rule::ConfigNotAString)
    };
    let edits: Vec<Edit> = findings(text).filter_map(|finding| finding.fix).collect();
    let after = apply(text, &edits);
    (crate::values(&after).unwrap_or_else(|error| panic!("{error}:\n{after}")), findings(&after).count())
}

/// Returns the objects of all documents and lists.
fn objects(documents: &[serde_json::Value]) -> Vec<serde_json::Value> {
    let items = |document: &serde_json::Value| match document["items"].as_array() {
        Some(items) => items.clone(),
        None => vec![document.clone()],
    };
    documents.iter().flat_map(items).collect()
}

#[test]
fn lint_fix_keeps_the_meaning_of_anchors_and_empty_values() {
    let head = |name: &str| {
        format!(
            "apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata: {{name: {name}}}\n"
        )
    };
    let item = |name: &str, spec: &str| {
        format!(
            "- apiVersion: k8s.cni.cncf.io/v1\n  kind: NetworkAttachmentDefinition\n  metadata: {{name: {name}}}\n{spec}"
        )
    };
    let list = |items: &[String]| format!("apiVersion: v1\nkind: List\nitems:\n{}", items.concat());
    let texts = [
        list(&[
            item("a", "  spec:\n    config: &cfg {\"type\": \"dummy\"}\n"),
            item("b", "  spec:\n    config: *cfg\n"),
        ]),
        list(&[
            item("a", "  spec:\n    config: &cfg\n      type: dummy\n      mtu: 1400\n"),
            item("b", "  spec:\n    config: *cfg\n"),
            item("c", "  spec: {config: *cfg}\n"),
        ]),
        list(&[item("a", "  spec: &spec\n    config:\n      type: dummy\n"), item("b", "  spec: *spec\n")]),
        format!("{}spec:\n  config:\n    type: bridge\n    ipam:\n", head("a")),
        format!("{}spec:\n  config:\n    type: bridge\n    ipam: # none\n# end\n---\na: 1\n", head("a")),
        format!("{}spec:\n  config:\n    - a: |\n        # text\n\n# end\n  other: 1\n", head("a")),
        format!(
            "x: &ipam\n  type: static\n{}spec:\n  config:\n    type: bridge\n    ipam: *ipam\n",
            head("a")
        ),
        format!(
            "x: &ipam {{type: static}}\n{}spec:\n  config:\n    type: bridge\n    <<: *ipam\n",
            head("a")
        ),
        format!("{}spec:\n  config: !!map\n    type: bridge\n", head("a")),
        format!("{}spec: {{config: {{type: bridge, ipam: }}}}\n", head("a")),
        format!("{}spec:\n  ? config\n  : type: bridge\n", head("a")),
        format!("{}spec:\n  config:\n    &cfg\n    type: bridge\n  other: *cfg\n", head("a")),
    ];
    for (index, text) in texts.iter().enumerate() {
        let before = crate::values(text).unwrap();
        let (after, remaining) = fixed(text);
        assert_eq!(before.len(), after.len(), "{text}");
        let mut strings = 0;
        for (old, new) in objects(&before).iter().zip(&mut objects(&after)) {
            if let Some(config) = new["spec"]["config"].as_str() {
                new["spec"]["config"] = serde_json::from_str(config).unwrap();
                strings += 1;
            }
            assert_eq!(old, new, "{text}");
        }
        // Where nothing can be changed alone, the finding stays.
        // A tag or an alias beside `config` would no longer fit: the finding stays.
        let expected =
            [(2, 0), (3, 0), (2, 0), (1, 0), (1, 0), (1, 0), (1, 0), (1, 0), (0, 1), (1, 0), (1, 0), (0, 1)];
        assert_eq!((strings, remaining), expected[index], "{text}");
    }
}
