//! Tests of rows.

use serde_json::{Value, json};

use super::*;

fn row<K: Reduced<Form = Row> + for<'any> Deserialize<'any>>(object: Value) -> Value {
    let row = serde_json::from_value::<K>(object).unwrap().reduce();
    serde_json::from_str(&row.json.unwrap()).unwrap()
}

fn pod(phase: &str, networks: &str, status: &Value) -> Value {
    let annotations = json!({
        "k8s.v1.cni.cncf.io/networks": networks,
        "k8s.v1.cni.cncf.io/network-status": status.as_str().map_or_else(|| status.to_string(), str::to_owned),
    });
    row::<PodObject>(json!({
        "metadata": { "namespace": "blue", "name": "web", "annotations": annotations },
        "spec": { "nodeName": "w1" }, "status": { "phase": phase },
    }))
}

#[test]
fn page_pod_row_has_interfaces_and_missing_networks() {
    let status = json!([
        { "name": "home", "interface": "eth0", "ips": ["10.0.0.2"], "default": true },
        { "name": "blue/a", "interface": "net1", "ips": ["10.1.0.2", "fd00::2"], "mac": "02:00:00:00:00:01", "mtu": 1400 },
    ]);
    let web = pod("Running", "a,red/b", &status);
    assert_eq!((&web["state"], &web["missing"]), (&json!("missing"), &json!(["red/b"])));
    assert_eq!(web["if"][0], json!(["home", "eth0", ["10.0.0.2"], "", null, true]));
    assert_eq!(
        web["if"][1],
        json!(["blue/a", "net1", ["10.1.0.2", "fd00::2"], "02:00:00:00:00:01", 1400, false])
    );
    assert_eq!(pod("Running", "a", &status)["state"], "attached");
    assert_eq!(
        pod("Running", "a,a", &status)["missing"],
        json!(["blue/a"]),
        "each selection needs an interface"
    );
    assert_eq!(pod("Pending", "b", &status)["state"], "waiting");
    assert_eq!(pod("Succeeded", "b", &status)["state"], "ended");
    assert_eq!(pod("Running", "[{", &status)["state"], "invalid");
    assert_eq!(pod("Running", "", &json!("no list"))["state"], "invalid");
    let plain: PodObject = serde_json::from_value(json!({ "metadata": { "name": "p" } })).unwrap();
    assert_eq!(plain.reduce(), Row::default(), "a pod without annotations is not shown");
}

#[test]
fn page_pod_row_is_bounded_and_plain_for_hostile_status() {
    let entry = json!({ "name": "<img src=x>\u{1b}[2J\u{202e}", "interface": "e", "ips": vec!["1".repeat(9000); 99] });
    let web = pod("Running", "", &json!(vec![entry; 500]));
    let text = web.to_string();
    assert!(text.len() < 200_000 && web["if"].as_array().unwrap().len() == 32, "{}", text.len());
    assert!(!text.contains("\\u001b") && !text.contains('\u{202e}') && text.contains("<img src=x>"));
}

#[test]
fn page_definition_row_has_chain_and_ranges() {
    let config = json!({ "cniVersion": "1.0.0", "plugins": [
        { "type": "bridge", "ipam": { "type": "weft-ipam", "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd00::/64" }]] } },
        { "type": "tuning" },
    ] });
    let of = |config: Value| {
        row::<DefinitionObject>(
            json!({ "metadata": { "namespace": "blue", "name": "a" }, "spec": { "config": config } }),
        )
    };
    let network = of(json!(config.to_string()));
    assert_eq!(network["chain"], json!(["bridge", "tuning"]));
    assert_eq!(
        (&network["ipam"], &network["ranges"]),
        (&json!("weft-ipam"), &json!(["10.1.0.0/24", "fd00::/64"]))
    );
    let single = of(json!(r#"{"type":"macvlan","ipam":{"type":"host-local","range":"10.2.0.0/16"}}"#));
    assert_eq!((&single["chain"], &single["ranges"]), (&json!(["macvlan"]), &json!(["10.2.0.0/16"])));
    for (malformed, note) in
        [(json!("{"), "not a JSON object"), (json!(null), "file of each node"), (json!([]), "file")]
    {
        let row = of(malformed);
        assert!(
            row["note"].as_str().is_some_and(|text| text.contains(note)) && row["chain"] == json!([]),
            "{row}"
        );
    }
    assert_eq!(
        of(json!(format!("\"{}\"", "x".repeat(9000))))["config"],
        "",
        "a large configuration is not sent"
    );
}

#[test]
fn page_node_row_hides_the_failure_of_a_pod() {
    let object = json!({ "metadata": { "name": "w1" }, "status": { "version": "1", "failedCalls": 3,
        "lastFailure": { "time": "2026-01-01T00:00:00Z", "verb": "ADD", "pod": "secret/web", "message": "why" } } });
    let row = serde_json::from_value::<NodeObject>(object).unwrap().reduce();
    assert!(!row.json.as_deref().unwrap().contains("secret"));
    let (namespace, full) = row.with_pod.unwrap();
    assert!(namespace == "secret" && full.contains("secret/web") && full.contains("why"));
}

#[test]
fn page_rows_of_malformed_objects_are_shown() {
    let broken = json!({ "metadata": { "namespace": "n", "name": "x" }, "spec": [], "status": 7, "involvedObject": [],
        "series": "s", "message": {} });
    assert_eq!(row::<EventObject>(broken.clone())["count"], 1);
    assert_eq!(row::<PoolObject>(broken.clone())["used"], Value::Null, "not known is not 0");
    assert_eq!(row::<BlockObject>(broken.clone())["node"], "");
    assert_eq!(row::<NodeObject>(broken.clone())["plugin"], "Unknown");
    assert_eq!(row::<PolicyObject>(broken)["ingress"], Value::Null);
}
