//! Requests that cluster IPAM makes to a real API server, which counts them.
//!
//! ```text
//!   kube-apiserver /metrics ◄── before and after ── agents of two nodes ◄── weft-ipam ADD ◄── the test
//! ```

use std::collections::{BTreeMap, BTreeSet};

use rig::addresses::{Nodes, allocated, network, pool, start_controllers};
use rig::machine::until;
use rig::nodes;
use serde_json::json;

/// Number of requests about addresses so far, without watches, as the server counts them.
fn requests(nodes: &Nodes) -> BTreeMap<String, u64> {
    let mut counted = BTreeMap::new();
    for line in nodes.kube.kubectl(["get", "--raw", "/metrics"]).lines() {
        let Some((labels, count)) =
            line.strip_prefix("apiserver_request_total{").and_then(|rest| rest.rsplit_once("} "))
        else {
            continue;
        };
        let label = |name: &str| {
            let value = labels.split(',').find_map(|label| label.strip_prefix(name)?.strip_prefix("=\""));
            value.map_or("", |value| value.trim_end_matches('"')).to_owned()
        };
        let (verb, resource) = (label("verb"), label("resource"));
        if ["ippools", "ipblocks"].contains(&resource.as_str()) && verb != "WATCH" {
            *counted.entry(format!("{verb} {resource}{}", label("subresource"))).or_default() +=
                count.parse::<f64>().unwrap() as u64;
        }
    }
    counted
}

#[test]
fn api_requests_for_250_pods_on_a_node_are_three() {
    let nodes = nodes!(2);
    let sandbox = nodes.machine.pod("a");
    let conf = |node| network(node, &json!({ "range": "10.20.0.0/16", "quarantine": 0 }));
    // The pool exists, and the second node has a watch.
    let _ = allocated(nodes.attachment(&sandbox, "first").add(&conf(0)));
    let other = network(1, &json!({ "range": "10.21.0.0/16" }));
    let _ = allocated(nodes.attachment(&sandbox, "other").add(&other));
    let (before, counted) = (requests(&nodes), nodes.metric(1, "weft_ipam_api_requests_total "));
    for pod in 0..250 {
        let _ = allocated(nodes.attachment(&sandbox, &format!("c{pod}")).add(&conf(1)));
    }
    let mut since = requests(&nodes);
    since.retain(|request, count| {
        *count -= before.get(request).copied().unwrap_or(0);
        *count > 0
    });
    let expected = [("GET ippools".to_owned(), 2), ("POST ipblocks".to_owned(), 1)];
    assert_eq!(since, BTreeMap::from(expected), "the pool is read before and after the block is made");
    assert_eq!(nodes.metric(1, "weft_ipam_api_requests_total ") - counted, 2);
}

#[test]
fn pool_status_records_blocks_with_single_addresses() {
    let nodes = nodes!(2);
    let sandbox = nodes.machine.pod("a");
    let name = pool(&nodes, "10.22.0.0/26", 4);
    let mut conf = network(0, &json!({ "range": "10.22.0.0/26", "quarantine": 0 }));
    conf["args"] = json!({ "cni": { "ips": ["10.22.0.17"] } });
    assert_eq!(allocated(nodes.attachment(&sandbox, "named").add(&conf)), ["10.22.0.17"]);
    let recorded = || nodes.kube.json(["ippools.weft.dev", &name])["status"]["singleAddressBlocks"].clone();
    let uid = nodes.kube.json(["ippools.weft.dev", &name])["metadata"]["uid"].clone();
    assert_eq!(recorded(), json!({ "1": "recorded", "poolUid": uid }));
    let conf = network(1, &json!({ "range": "10.22.0.0/26", "quarantine": 0 }));
    let mut seen = BTreeSet::from(["10.22.0.17".to_owned()]);
    for pod in 0..61 {
        let ips = allocated(nodes.attachment(&sandbox, &format!("c{pod}")).add(&conf));
        assert!(seen.insert(ips[0].clone()), "{ips:?} twice");
    }
    let block = nodes.kube.json(["ipblocks.weft.dev", &format!("{name}.10.22.0.16-28")]);
    assert_eq!(block["spec"]["reservedAddresses"], json!(["10.22.0.17"]));
    assert_eq!(
        recorded(),
        json!({ "1": "recorded", "poolUid": uid }),
        "records are never removed, nor added needlessly"
    );
    // An object without its record in the pool was written manually: the controller adds the record.
    let object = json!({ "apiVersion": "weft.dev/v1alpha1", "kind": "IPBlock",
        "metadata": { "name": format!("{name}.10.22.0.40-32"), "labels": { "weft.dev/pool": name } },
        "spec": { "pool": name, "range": "10.22.0.40/32", "claim": "pod/blue/db-0/net/eth0" } });
    nodes.kube.apply(&object.to_string());
    start_controllers(&nodes, &[("one", 9601)]);
    let kept = || (recorded() == json!({ "1": "recorded", "2": "recorded", "poolUid": uid })).then_some(());
    until("the pool has the record", kept);
}
