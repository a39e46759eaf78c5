//! Tests of the generated definitions and of the readers of such objects.

use serde_json::{Value, json};

use super::*;

fn definition(name: &str) -> Value {
    let all = definitions().unwrap();
    let found = all.iter().find(|definition| definition.metadata.name.as_deref() == Some(name));
    serde_json::to_value(found.unwrap()).unwrap()
}

fn schema(name: &str) -> Value {
    definition(name)["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

/// Calls `visit` with the path and the schema of every field.
fn walk(path: &str, schema: &Value, visit: &mut dyn FnMut(&str, &Value)) {
    visit(path, schema);
    let inside = schema["properties"].as_object().into_iter().flatten();
    for (name, inside) in inside {
        walk(&format!("{path}.{name}"), inside, visit);
    }
    for key in ["items", "additionalProperties"] {
        if schema[key].is_object() {
            walk(&format!("{path}[]"), &schema[key], visit);
        }
    }
}

#[test]
fn custom_resource_definitions_are_sorted_and_documented() {
    let all = definitions().unwrap();
    let names: Vec<&str> = all.iter().filter_map(|definition| definition.metadata.name.as_deref()).collect();
    let mut sorted = names.clone();
    sorted.sort_unstable();
    assert_eq!((names.len(), &names), (6, &sorted));
    for name in names {
        walk(name, &schema(name), &mut |path, schema| {
            assert!(path.ends_with("[]") || schema["description"].is_string(), "{path}: {schema}");
            assert!(!schema["description"].as_str().unwrap_or_default().contains('\n'), "{path}: {schema}");
            for absent in ["default", "nullable", "title", "anyOf", "oneOf", "$ref"] {
                assert!(schema.get(absent).is_none(), "{path}: {schema}");
            }
            let format = schema["format"].as_str();
            assert!(format.is_none_or(|format| FORMATS.contains(&format)), "{path}: {schema}");
        });
    }
}

#[test]
fn network_policy_definition_has_two_versions_and_limits() {
    let definition = serde_json::to_value(&policy_definitions().unwrap()[0]).unwrap();
    let versions = definition["spec"]["versions"].as_array().unwrap();
    let names: Vec<[&Value; 3]> =
        versions.iter().map(|version| ["name", "served", "storage"].map(|key| &version[key])).collect();
    let flags = |served: bool, storage: bool| (json!(served), json!(storage));
    let (old, new) = (flags(true, false), flags(true, true));
    assert_eq!(names[0], [&json!("v1beta1"), &old.0, &old.1]);
    assert_eq!(names[1], [&json!("v1beta2"), &new.0, &new.1]);
    for version in versions {
        let schema = &version["schema"]["openAPIV3Schema"];
        walk("policy", schema, &mut |path, schema| {
            assert!(path.ends_with("[]") || schema["description"].is_string(), "{path}: {schema}");
            for absent in ["default", "nullable", "title", "anyOf", "oneOf", "$ref"] {
                assert!(schema.get(absent).is_none(), "{path}: {schema}");
            }
        });
        let spec = &schema["properties"]["spec"]["properties"];
        let port = &spec["ingress"]["items"]["properties"]["ports"]["items"]["properties"];
        assert_eq!(port["protocol"]["enum"], json!(["TCP", "UDP", "SCTP"]));
        assert_eq!(port["port"]["x-kubernetes-int-or-string"], json!(true));
        assert!(port.get("endPort").is_some(), "{}", version["name"]);
        assert_eq!(spec["ingress"]["items"]["properties"]["from"]["maxItems"], json!(256));
        assert_eq!(spec["policyTypes"]["items"]["enum"], json!(["Ingress", "Egress"]));
    }
}

#[test]
fn policy_address_set_definition_is_namespaced_and_limited() {
    let definition = serde_json::to_value(&policy_definitions().unwrap()[1]).unwrap();
    assert_eq!(definition["spec"]["scope"], json!("Namespaced"));
    let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    walk("addresses", schema, &mut |path, schema| {
        assert!(path.ends_with("[]") || schema["description"].is_string(), "{path}: {schema}");
        for absent in ["default", "nullable", "title", "anyOf", "oneOf", "$ref"] {
            assert!(schema.get(absent).is_none(), "{path}: {schema}");
        }
    });
    let set = &schema["properties"]["spec"]["properties"]["sets"]["items"];
    assert_eq!(set["required"], json!(["addresses"]));
    assert_eq!(schema["properties"]["spec"]["properties"]["selection"]["maxLength"], json!(1024));
    assert_eq!(set["properties"]["addresses"]["items"]["maxLength"], json!(79));
}

#[test]
fn custom_resource_definitions_require_and_limit_their_fields() {
    let pool = schema("ippools.weft.dev");
    let spec = &pool["properties"]["spec"];
    assert_eq!((&pool["required"], &spec["required"]), (&json!(["spec"]), &json!(["range"])));
    let fields = &spec["properties"];
    let limits = |field: &Value, names: [&str; 2]| names.map(|name| field[name].as_f64());
    assert_eq!(limits(&fields["range"], ["minLength", "maxLength"]), [Some(3.0), Some(43.0)]);
    assert_eq!(limits(&fields["blockBits"], ["minimum", "maximum"]), [Some(0.0), Some(8.0)]);
    assert_eq!(limits(&fields["networkName"], ["minLength", "maxLength"]), [None, Some(128.0)]);
    let exclude = &fields["exclude"];
    assert_eq!((&exclude["maxItems"], &exclude["items"]["maxLength"]), (&json!(1000), &json!(43)));
    let status = &pool["properties"]["status"];
    assert_eq!(status["required"], Value::Null);
    let layout = &status["properties"]["layout"];
    assert_eq!(layout["properties"]["phase"]["enum"], json!(["Pending", "Fixed"]));
    assert_eq!(status["properties"]["singleAddressBlocks"]["additionalProperties"]["maxLength"], json!(64));

    let block = schema("ipblocks.weft.dev");
    let spec = &block["properties"]["spec"];
    assert_eq!((&block["required"], &spec["required"]), (&json!(["spec"]), &json!(["pool", "range"])));
    for number in ["releasedAt", "generation"] {
        let number = &spec["properties"][number];
        assert_eq!((&number["type"], &number["format"]), (&json!("integer"), &json!("int64")));
        assert_eq!(limits(number, ["minimum", "maximum"]), [Some(0.0), None]);
    }

    let claim = schema("ipamclaims.k8s.cni.cncf.io");
    let conditions = &claim["properties"]["status"]["properties"]["conditions"];
    assert_eq!(conditions["x-kubernetes-list-map-keys"], json!(["type"]));
    let required = json!(["lastTransitionTime", "message", "reason", "status", "type"]);
    assert_eq!(conditions["items"]["required"], required);
    let fields = &conditions["items"]["properties"];
    assert_eq!(fields["status"]["enum"], json!(["True", "False", "Unknown"]));
    assert!(fields["reason"]["pattern"].is_string() && fields["type"]["pattern"].is_string());

    let port = schema("kuryrports.openstack.org");
    assert_eq!(port["required"], json!(["spec", "status"]));
    let vifs = &port["properties"]["status"]["properties"]["vifs"];
    assert_eq!(vifs["x-kubernetes-preserve-unknown-fields"], json!(true));
    assert_eq!(schema("network-attachment-definitions.k8s.cni.cncf.io")["required"], Value::Null);
}

#[test]
fn custom_resource_status_is_a_subresource_of_pools_and_claims() {
    for (name, has_status) in [
        ("ipamclaims.k8s.cni.cncf.io", true),
        ("ipblocks.weft.dev", false),
        ("ippools.weft.dev", true),
        ("kuryrports.openstack.org", false),
        ("network-attachment-definitions.k8s.cni.cncf.io", false),
        ("weftnodes.weft.dev", false),
    ] {
        let version = &definition(name)["spec"]["versions"][0];
        assert_eq!(version["subresources"]["status"].is_object(), has_status, "{name}");
    }
}

#[test]
fn network_attachment_definition_has_the_short_names_of_multus() {
    let names = &definition("network-attachment-definitions.k8s.cni.cncf.io")["spec"]["names"];
    assert_eq!(names["shortNames"], json!(["net-attach-def", "nad"]));
}

#[test]
fn ippool_invalid_status_loses_its_counts_and_never_its_layout() {
    let read = |status: Value| serde_json::from_value::<IPPoolStatus>(status).unwrap();
    assert_eq!(read(json!({ "layout": null })), IPPoolStatus::default());
    let layout = json!({ "phase": "Fixed", "range": "10.0.0.0/24", "blockBits": 4 });
    let status =
        read(json!({ "nodes": -1, "blocks": "16", "layout": layout, "singleAddressBlocks": { "3": "x" } }));
    assert_eq!((status.nodes, status.blocks.as_str()), (0, ""));
    assert_eq!(status.layout.map(|layout| layout.phase), Some(LayoutPhase::Fixed));
    assert_eq!(status.single_address_blocks.len(), 1);
    for layout in
        [json!("x"), json!({}), json!({ "phase": "Other" }), json!({ "phase": "Fixed", "range": 1 })]
    {
        let status = read(json!({ "nodes": 2, "layout": layout, "singleAddressBlocks": 7 }));
        let phase = status.layout.as_ref().map(|layout| layout.phase);
        assert_eq!((status.nodes, phase), (2, Some(LayoutPhase::Unreadable)), "{layout}");
        assert!(status.single_address_blocks.is_empty());
    }
}

#[test]
fn liveness_probe_of_an_ipblock_is_any_value_that_is_not_null() {
    let probed = |status: Value| serde_json::from_value::<IPBlockStatus>(status).unwrap().is_probed();
    assert!(!probed(json!({})) && !probed(json!({ "nodeLivenessProbe": null })));
    assert!(probed(json!({ "nodeLivenessProbe": "2026-11-25T12:00:00Z" })));
    assert!(probed(json!({ "nodeLivenessProbe": 7 })));
}
