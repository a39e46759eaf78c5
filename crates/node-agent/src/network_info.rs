//! Metric that names the network behind each pod interface, to join with the traffic that the kubelet counts by
//! interface.
//!
//! ```text
//!   container_network_receive_bytes_total{namespace,pod,interface}
//!     + on (namespace, pod, interface) group_left (network_name) pod_network_name_info
//! ```
//!
//! Source: network-metrics-daemon of OpenShift, which has the same name, labels and value.

use std::fmt::Write;

use node_support::metric_labels::labels;
use node_support::sandboxes::Sandboxes;

const HEAD: &str = "# HELP pod_network_name_info Network of an interface of a pod, by its name in network-status.\n\
    # TYPE pod_network_name_info gauge\n";

/// Returns a line for each interface on the attached pods.
pub(crate) fn page(sandboxes: &Sandboxes) -> String {
    let mut page = HEAD.to_owned();
    sandboxes.with(|all| {
        for entry in all.values().map(|sandbox| &sandbox.entry).filter(|entry| entry.complete) {
            let pod = &entry.plan.pod;
            for status in entry.network_status.iter().filter(|status| !status.interface.is_empty()) {
                let labels = labels([
                    ("pod", pod.name.as_str()),
                    ("namespace", pod.namespace.as_str()),
                    ("interface", status.interface.as_str()),
                    ("network_name", status.name.as_str()),
                ]);
                // Writing to a string cannot fail.
                let _ = writeln!(page, "pod_network_name_info{labels} 0");
            }
        }
    });
    page
}

/// Returns a page with one series, for the metrics reference.
pub(crate) fn example() -> String {
    let labels = r#"pod="POD",namespace="NAMESPACE",interface="INTERFACE",network_name="NETWORK""#;
    format!("{HEAD}pod_network_name_info{{{labels}}} 0\n")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const ENTRY: &str = r#"{"version":1,"network":"n","containerId":"c","netns":"/run/netns/x","ifname":"eth0","args":"",
      "path":"/opt/cni/bin","plan":{"version":1,"pod":{"namespace":"blue","name":"web","uid":"1"},"container":"c",
        "status":{"addresses":"bare","keys":"standard"},"delegates":[],"warnings":[]},"attachments":[],
      "networkStatus":[{"name":"home","interface":"eth0","default":true},{"name":"blue/a\"\\\nb","interface":"net1",
        "default":false}],"complete":true}"#;

    #[test]
    fn network_name_info_has_a_line_for_each_interface() {
        let directory = std::env::temp_dir().join(format!("weft-network-info-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("c.json"), ENTRY).unwrap();
        let sandboxes = Sandboxes::of(&directory);
        assert_eq!(page(&sandboxes), HEAD);
        sandboxes.read_all();
        let labels = r#"pod="web",namespace="blue""#;
        let lines = format!(
            "{HEAD}pod_network_name_info{{{labels},interface=\"eth0\",network_name=\"home\"}} 0\n\
             pod_network_name_info{{{labels},interface=\"net1\",network_name=\"blue/a\\\"\\\\\\nb\"}} 0\n"
        );
        assert_eq!(page(&sandboxes), lines);
        fs::remove_dir_all(&directory).unwrap();
    }
}
