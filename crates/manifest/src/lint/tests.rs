//! Tests of the linter: positions, rules and suggestions.

mod objects;

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
    assert!(findings[0].fault.hint.contains("config: |"));
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
    assert_eq!(short(&other), ["7:34 Note name-mismatch"]);
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
    assert_eq!(capability[0].fault.hint, "did you mean ips?");
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
    assert_eq!(findings[0].fault.hint, "did you mean isGateway?");
    assert_eq!(lint(&text), []);
}

#[test]
fn lint_unknown_key_of_plugins_and_ipam_is_reported() {
    let text = config(
        r#"{"cniVersion":"1.0.0","name":"a","type":"ptp","isGateway":true,"dns":{},"ipam":{"type":"host-local","subnet":"10.1.0.0/16","subnett":"x","RangeStart":""}}"#,
    );
    let findings = manifest(&Manifest::parse(&text), &Knowledge::of_known_plugins());
    assert_eq!(short(&findings), ["7:63 Warning unknown-key", "7:138 Warning unknown-key"]);
    assert_eq!(findings[1].fault.hint, "did you mean subnet?");
    assert!(findings[1].fault.reason.contains("not a key of host-local"), "{findings:?}");
}

/// The findings of a plugin's keys among well-known plugins: rule, path and reason.
fn of_keys(keys: &str) -> Vec<String> {
    let text = format!(r#"{{"cniVersion":"1.0.0","name":"a",{keys}}}"#);
    let found = configuration(&text, &Knowledge::of_known_plugins());
    let line = |finding: &Finding| {
        let Fault { rule, path, reason, hint, .. } = &finding.fault;
        format!("{rule} {path}: {reason} {hint}").trim().to_owned()
    };
    // Plugins of either kind are alone in these texts.
    let others = found.iter().filter(|finding| finding.fault.rule != Rule::NoInterfacePlugin);
    others.map(line).collect()
}

#[test]
fn lint_invalid_value_of_a_plugin_is_reported() {
    for (keys, said) in [
        (r#""type":"vlan","master":"eth0","vlanId":5000"#, "invalid-value vlanId: not between 0 and 4094"),
        (r#""type":"vlan","vlanId":5"#, "missing-key : master is missing; set it to the parent interface"),
        (r#""type":"bridge","mtu":"abc""#, "invalid-value mtu: expected a whole number from 0 to 4294967295"),
        (r#""type":"bridge","MTU":40"#, "invalid-value MTU: not between 68 and 65535"),
        (r#""type":"bridge","vlan":9999"#, "invalid-value vlan: not between 0 and 4094"),
        (r#""type":"bridge","isGateway":"yes""#, "invalid-value isGateway: expected true or false"),
        (r#""type":"bridge","bridge":"a-name-of-20-letters""#, "is longer than 15 bytes"),
        (
            r#""type":"bridge","vlanTrunk":[{"id":5},{"minID":"x"}]"#,
            "invalid-value vlanTrunk[1].minID: expected a whole number",
        ),
        (r#""type":"ipvlan","mode":"l9""#, "invalid-value mode: not one of l2, l3, l3s"),
        (r#""type":"macvlan","mode":"bride""#, "not one of bridge, private"),
        (r#""type":"ptp""#, "missing-key : ipam.type is missing; a point-to-point link"),
        (r#""type":"dummy""#, "missing-key : ipam.type is missing; a dummy interface needs addresses"),
        (
            r#""type":"bridge","bridge":"br-of-tenant","vlan":4000,"isGateway":true,"ipam":{"type":"dhcp"}"#,
            "invalid-value vlan: the gateway's interface \"br-of-tenant.4000\" is longer than 15 bytes",
        ),
        (r#""type":"vrf""#, "vrfname is missing; set it"),
        (r#""type":"tuning","sysctl":{"a":1}"#, "invalid-value sysctl.a: expected a string"),
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
            "invalid-value ipam.subnet: not an address with a prefix length",
        ),
        (r#""type":"host-local""#, "missing-key ipam: ipam.ranges is missing"),
        (
            r#""type":"host-local","ranges":[[{"subnet":"10.0.0.0/8","gateway":"x"}]]"#,
            "ipam.ranges[0][0].gateway: not an IP address",
        ),
        (r#""type":"host-local","subnet":"10.0.0.0/8","routes":[{"dst":"10"}]"#, "ipam.routes[0].dst"),
        (r#""type":"weft-ipam""#, "ipam.range is missing"),
        (r#""type":"whereabouts","range":"10.0.0.0/8","exclude":["x"]"#, "ipam.exclude[0]"),
        (r#""type":"static","addresses":[{"address":"10.0.0.1"}]"#, "ipam.addresses[0].address"),
        (r#""type":"host-locl""#, "did you mean host-local?"),
    ] {
        let found = of_keys(&format!(r#""type":"bridge","ipam":{{{ipam}}}"#));
        assert!(matches!(found.as_slice(), [one] if one.contains(said)), "{ipam}: {found:?}");
    }
    for ipam in [
        r#""type":"whereabouts","range":"10.0.0.2-10.0.0.9/24","exclude":["10.0.0.3","10.0.0.8/30"]"#,
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
    assert_eq!(findings[1].fault.hint, "did you mean mac?");
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
    assert_eq!(findings[0].fault.hint, "move it to spec.template.metadata.annotations");
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
        ("{", "a closing } is missing"),
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

/// Applies all fixes; returns the documents, and how many findings by the same rule remain.
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

#[test]
fn lint_ranges_that_add_refuses_are_errors() {
    for (ipam, said) in [
        (
            r#""type":"weft-ipam","range":"224.0.0.0/4""#,
            "ipam.range: has addresses of 224.0.0.0/4, which are multicast",
        ),
        (
            r#""type":"whereabouts","range":"127.0.0.0/8""#,
            "ipam.range: has addresses of 127.0.0.0/8, which are loopback",
        ),
        (r#""type":"host-local","subnet":"10.0.0.0/31""#, "ipam.subnet: too small"),
        (r#""type":"host-local","subnet":"10.0.0.0/32""#, "ipam.subnet: too small"),
        (
            r#""type":"host-local","subnet":"10.0.0.5/24""#,
            "ipam.subnet: has host bits set: the network is 10.0.0.0/24",
        ),
        (
            r#""type":"weft-ipam","range":"10.0.0.20-10.0.0.10/24""#,
            "ipam.range: before the first address 10.0.0.20",
        ),
        (r#""type":"whereabouts","range":"10.9.0.20-10.0.0.10/24""#, "ipam.range: not in subnet 10.0.0.0/24"),
        (
            r#""type":"host-local","ranges":[[{"subnet":"10.0.0.0/24","rangeStart":"10.0.0.9","rangeEnd":"10.0.0.5"}]]"#,
            "ipam.ranges[0][0].rangeEnd: before the first address 10.0.0.9",
        ),
        (
            r#""type":"whereabouts","range":"10.0.0.0/30","exclude":["10.0.0.0/29"]"#,
            "ipam.exclude: excludes every address",
        ),
        (
            r#""type":"host-local","ranges":[[{"subnet":"10.0.0.0/24"}],[{"subnet":"10.0.0.0/16"}]]"#,
            "ipam.ranges[1]: overlaps ipam.ranges[0]",
        ),
        (
            r#""type":"whereabouts","range":"10.0.0.0/24","network_name":"Blue_Net""#,
            "ipam.network_name: not a name",
        ),
    ] {
        let found = of_keys(&format!(r#""type":"bridge","ipam":{{{ipam}}}"#));
        assert!(matches!(found.as_slice(), [one] if one.contains(said)), "{ipam}: {found:?}");
    }
}

#[test]
fn lint_reports_several_errors_of_one_plugin_with_their_places() {
    let text = r#"{"cniVersion":"1.0.0","name":"a","type":"bridge","mtu":"1500","vlan":5000,"hairpinMode":true,"promiscMode":true}"#;
    let found = configuration(text, &Knowledge::of_known_plugins());
    assert_eq!(
        short(&found),
        ["1:56 Error invalid-value", "1:70 Error invalid-value", "1:108 Error invalid-value"]
    );
    assert_eq!(
        found[0].fault.reason,
        "expected a whole number from 0 to 4294967295; remove the quotation marks"
    );
    assert_eq!(found[2].fault.reason, "cannot be combined with hairpinMode: true");
    let zero = of_keys(r#""type":"host-device","hwaddr":"00:00:00:00:00:00""#);
    assert!(matches!(zero.as_slice(), [one] if one.contains("the address of no interface")), "{zero:?}");
    let none = of_keys(r#""type":"host-device""#);
    assert!(matches!(none.as_slice(), [one] if one.contains("device is missing; set device")), "{none:?}");
    assert_eq!(of_keys(r#""type":"host-device","capabilities":{"deviceID":true}"#), [""; 0]);
}

#[test]
fn lint_chained_plugin_needs_an_earlier_interface() {
    let rules = |plugins: &str| {
        let json = format!(r#"{{"cniVersion":"1.0.0","name":"a","plugins":[{plugins}]}}"#);
        let rules = |findings: Vec<Finding>| {
            findings.iter().map(|finding| finding.fault.rule.name()).collect::<Vec<_>>().join(" ")
        };
        (rules(lint(&config(&json))), rules(configuration(&json, &Knowledge::default())))
    };
    let both = |rule: &str| (rule.to_owned(), rule.to_owned());
    for name in ["bandwidth", "firewall", "portmap", "sbr", "tuning", "cnv-tuning", "vrf"] {
        let (chained, maker) = (format!(r#"{{"type":"{name}"}}"#), r#"{"type":"acme"}"#);
        assert_eq!(rules(&format!("{maker},{chained}")), both(""), "{name}");
        assert_eq!(rules(&format!("{chained},{maker}")), both("missing-interface-plugin"), "{name}");
        let alone = ("missing-interface-plugin".to_owned(), "no-interface-plugin".to_owned());
        assert_eq!(rules(&chained), alone, "{name}");
    }
}

#[test]
fn lint_duplicate_keys_of_yaml_and_json_are_reported() {
    let yaml =
        definition("  config: \"\"\n  config: '{\"cniVersion\":\"1.0.0\",\"name\":\"a\",\"type\":\"x\"}'\n");
    assert_eq!(short(&lint(&yaml)), ["7:3 Warning duplicate-key"]);
    let json = lint(&config(
        r#"{"cniVersion":"1.0.0","name":"a","type":"x","args":{"cni":{"a":1,"a":2}},"type":"y"}"#,
    ));
    assert_eq!(short(&json), ["7:70 Warning duplicate-key", "7:78 Warning duplicate-key"]);
    // The plugin refuses it.
    let sysctl = of_keys(r#""type":"tuning","sysctl":{"net.core.somaxconn":"1","net.core.somaxconn":"2"}"#);
    assert_eq!(
        sysctl,
        ["invalid-value sysctl.net.core.somaxconn: the key occurs twice remove one of the two"]
    );
    // A merged key is replaced on purpose, and an alias is reported once.
    let merged = "a: &a {x: 1, x: 2}\nb: *a\nc: {<<: *a, x: 3}\nkind: ConfigMap\n";
    assert_eq!(short(&lint(merged)), ["1:14 Warning duplicate-key"]);
}

#[test]
fn lint_misplaced_and_misspelt_annotations_are_reported() {
    let rules = |metadata: &str, spec: &str| {
        let text = format!("apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\n{metadata}spec:\n{spec}");
        lint(&text)
            .iter()
            .map(|finding| format!("{} {}", finding.fault.rule, finding.fault.hint))
            .collect::<Vec<_>>()
    };
    let key = "k8s.v1.cni.cncf.io";
    for (name, meant) in [
        (format!("{key}/network"), format!("{key}/networks")),
        (format!("{key}/networks-default"), "v1.multus-cni.io/default-network".to_owned()),
        ("v1.multus-cni.io/default-networks".to_owned(), "v1.multus-cni.io/default-network".to_owned()),
        (format!("{key}/resourcename"), format!("{key}/resourceName")),
        ("k8s.v1.cncf.io/networks".to_owned(), format!("{key}/networks")),
    ] {
        let found = rules(&format!("  annotations: {{{name}: a}}\n"), "  {}\n");
        assert_eq!(found, [format!("unknown-annotation did you mean {meant}?")], "{name}");
    }
    assert_eq!(
        rules(&format!("  annotations: {{{key}/network-status: '[]', example.com/x: a}}\n"), "  {}\n"),
        [""; 0]
    );
    let moved = ["misplaced-annotation move it to metadata.annotations"];
    assert_eq!(rules(&format!("  labels: {{{key}/networks: a}}\n"), "  {}\n"), moved);
    assert_eq!(rules(&format!("  annotation: {{{key}/networks: a}}\n"), "  {}\n"), moved);
    assert_eq!(rules("", &format!("  annotations: {{{key}/networks: a}}\n")), moved);
}

#[test]
fn lint_misplaced_config_is_reported() {
    let json = "'{\"cniVersion\":\"1.0.0\",\"name\":\"a\",\"type\":\"x\"}'";
    let beside = format!("{}config: {json}\n", definition("  {}\n"));
    for (text, line) in [
        (beside, "7:1"),
        (definition(&format!("  Config: {json}\n")), "6:3"),
        (definition("  type: bridge\n"), "6:3"),
    ] {
        let expected = ["1:1 Note config-on-disk".to_owned(), format!("{line} Warning misplaced-config")];
        assert_eq!(short(&lint(&text)), expected, "{text}");
    }
}

#[test]
fn lint_templates_of_other_workloads_are_read() {
    for (version, kind) in [
        ("apps.openshift.io/v1", "DeploymentConfig"),
        ("argoproj.io/v1alpha1", "Rollout"),
        ("kubevirt.io/v1", "VirtualMachine"),
    ] {
        let text = format!(
            "apiVersion: {version}\nkind: {kind}\nmetadata: {{name: d}}\nspec:\n  template:\n    metadata:\n      annotations:\n        k8s.v1.cni.cncf.io/networks: UPPER\n"
        );
        assert_eq!(short(&lint(&text)), ["8:38 Error malformed-network-reference"], "{kind}");
    }
}

#[test]
fn lint_reserved_interface_names_and_addresses_are_reported() {
    for (element, expected) in [
        (r#""interface":"lo""#, "Error duplicate-interface-name"),
        (r#""interface":"eth0""#, "Error default-interface-name"),
        (r#""mac":"01:00:5e:00:00:01""#, "Error invalid-mac"),
        (r#""mac":"00:00:00:00:00:00""#, "Error invalid-mac"),
        (r#""default-route":["0.0.0.0"]"#, "Error invalid-default-route"),
        (r#""default-route":["::"]"#, "Error invalid-default-route"),
        (r#""ips":"10.0.0.5""#, "Error invalid-ips"),
        (r#""gateway":"10.0.0.1""#, "Warning unknown-key"),
    ] {
        let found = lint(&pod(&format!("'[{{\"name\":\"a\",{element}}}]'")));
        assert!(matches!(short(&found).as_slice(), [one] if one.ends_with(expected)), "{element}: {found:?}");
    }
}

#[test]
fn lint_interface_name_of_a_renamed_default_network_is_reserved() {
    let default = r#"'[{"name":"a","namespace":"default","interface":"ens3"}]'"#;
    let renamed = |interface: &str| {
        format!("{}    v1.multus-cni.io/default-network: {default}\n", pod(&format!("a@{interface}")))
    };
    assert!(
        short(&lint(&renamed("ens3"))).iter().any(|found| found.ends_with("Error duplicate-interface-name"))
    );
    assert!(!short(&lint(&renamed("eth0"))).iter().any(|found| found.contains("interface-name")));
}

#[test]
fn lint_across_files_finds_duplicate_and_unknown_networks() {
    let definitions = Manifest::parse(&config(r#"{"cniVersion":"1.0.0","name":"a","type":"x"}"#));
    let machine = "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: vm}\nspec:\n  template:\n    spec:\n      networks:\n      - name: net\n        multus: {networkName: aa}\n";
    let found = |files: &[(&str, Manifest)]| {
        let mut across = across::Across::default();
        files.iter().for_each(|(name, manifest)| across.add(name, manifest, 0));
        let line = |(file, finding): (String, Finding)| {
            format!("{file} {} {}", short(std::slice::from_ref(&finding))[0], finding.fault)
        };
        across.findings().into_iter().map(line).collect::<Vec<_>>()
    };
    let pods = Manifest::parse(&pod("a,other/a,b"));
    assert_eq!(found(&[("pods", pods.clone())]), [""; 0], "without definitions nothing is known");
    let all = found(&[
        ("a.yaml", definitions.clone()),
        ("b.yaml", definitions),
        ("pods", pods),
        ("vm", Manifest::parse(machine)),
    ]);
    assert_eq!(all.len(), 4, "{all:?}");
    assert!(
        all[0].starts_with("b.yaml 4:9 Warning duplicate-definition")
            && all[0].contains("is also in a.yaml:4"),
        "{all:?}"
    );
    assert!(
        all[1].starts_with("pods 6:36 Warning network-not-in-files")
            && all[1].ends_with("did you mean default/a?"),
        "{all:?}"
    );
    assert!(all[2].starts_with("pods 6:44 "), "{all:?}");
    assert!(
        all[3].starts_with("vm 9:31 ") && all[3].contains("spec.networks[0].multus.networkName"),
        "{all:?}"
    );
}

#[test]
fn lint_persistent_addresses_of_virtual_machines_are_a_boolean() {
    let found = |value: &str| {
        let ipam = r#"{"type":"weft-ipam","range":"10.0.0.0/24"}"#;
        let json = format!(
            r#"{{"cniVersion":"1.0.0","name":"a","type":"macvlan","ipam":{ipam},"allowPersistentIPs":{value}}}"#
        );
        let findings = configuration(&json, &Knowledge::of_known_plugins());
        findings.into_iter().map(|finding| finding.fault.to_string()).collect::<Vec<_>>()
    };
    for value in ["true", "false"] {
        assert_eq!(found(value), [""; 0], "{value}");
    }
    let faults = found(r#""false""#);
    assert!(faults.len() == 1 && faults[0].contains("allowPersistentIPs"), "{faults:?}");
}

#[test]
fn lint_plugin_without_a_program_in_the_directories_is_reported() {
    let programs = Programs { directories: vec!["/opt/cni/bin".into()], names: ["sriov".to_owned()].into() };
    let knowledge = Knowledge { programs: Some(programs), ..Knowledge::of_known_plugins() };
    let found = |plugin: &str, knowledge: &Knowledge| {
        let json =
            format!(r#"{{"cniVersion":"1.0.0","name":"a","type":"{plugin}","allowPersistentIPs":true}}"#);
        configuration(&json, knowledge)
            .into_iter()
            .map(|finding| finding.fault.to_string())
            .collect::<Vec<_>>()
    };
    let missing = found("bond", &knowledge);
    assert!(
        matches!(missing.as_slice(), [one] if one.contains("type: \"bond\": there is no program of this name in /opt/cni/bin")),
        "{missing:?}"
    );
    for plugin in ["sriov", "bridge"] {
        assert_eq!(found(plugin, &knowledge), [""; 0], "{plugin}");
    }
    assert_eq!(found("bond", &Knowledge::of_known_plugins()), [""; 0]);
}

#[test]
fn lint_usual_mistakes_in_json_name_the_hint() {
    for (json, hint) in [
        ("{'name': 'a'}", "write \" instead"),
        ("{“name”: “a”}", "typographic quotation mark"),
        ("{\"name\": \"a\", # the name\n \"type\": \"x\"}", "JSON has no comments"),
        ("{\"name\": \"a\",}", "remove the comma"),
        ("\"{}\"", "remove the quotation marks around the object"),
        (
            "{\"cniVersion\": \"1.0.0\", \"name\": \"a\", \"type:\": \"vrf\"}",
            "the key is \"type:\": did you mean \"type\"?",
        ),
    ] {
        let found = lint(&config(json));
        assert!(found.iter().any(|finding| finding.fault.to_string().contains(hint)), "{json}: {found:?}");
    }
}
