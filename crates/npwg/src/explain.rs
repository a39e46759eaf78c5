//! Rows that explain a plan: the pod's networks, and the reason for each decision.
//!
//! The rows are data; the caller formats them.

use cni::network::{Network, plugin_type};
use serde::Serialize;

use crate::plan::{Decision, Delegate, Plan, Role};

/// Explanation for one planned network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// Network name in the status.
    pub network: String,
    /// Reason why the pod is attached to it.
    pub role: Role,
    /// Interface in the pod.
    pub interface: String,
    /// Name in the CNI configuration.
    pub config_name: String,
    /// Plugins in ADD order; `+` separates a plugin from the IPAM plugin.
    pub chain: Vec<String>,
    /// Why the pod gets the network, this interface name and this configuration.
    pub because: Vec<Decision>,
    /// Requests that the pod makes, each with the reason.
    pub requests: Vec<Decision>,
}

/// Returns a plan's rows, in attachment order.
pub fn rows(plan: &Plan) -> Vec<Row> {
    plan.delegates.iter().map(row).collect()
}

fn row(delegate: &Delegate) -> Row {
    let ground = |decision: &&Decision| matches!(decision.what.as_str(), "network" | "config" | "interface");
    let requests = delegate.because.iter().filter(|decision| !ground(decision));
    Row {
        network: delegate.network.clone(),
        role: delegate.role,
        interface: delegate.ifname.to_string(),
        config_name: delegate.config_name.to_string(),
        chain: chain(&delegate.config),
        because: delegate.because.iter().filter(ground).cloned().collect(),
        requests: requests.cloned().collect(),
    }
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Ipam {
    r#type: String,
}

fn chain(config: &str) -> Vec<String> {
    let Ok(network) = Network::parse(config.as_bytes(), "config") else { return Vec::new() };
    let names = network.plugins.iter().filter_map(|plugin| {
        let name = plugin_type(plugin).ok()?;
        let ipam = plugin.read::<Ipam>("ipam").ok().flatten().unwrap_or_default().r#type;
        Some(if ipam.is_empty() { name.to_string() } else { format!("{name}+{ipam}") })
    });
    names.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::World;

    #[test]
    fn explain_row_has_network_interface_requests_and_reasons() {
        let selection = r#"[{"name":"capable","interface":"data0","ips":["10.0.0.1"],"default-route":["10.0.0.254"]},{"name":"plain"}]"#;
        let rows = rows(&World::new().networks(selection).plan());
        let first: Vec<&str> = rows.iter().map(|row| row.network.as_str()).collect();
        assert_eq!(first, ["base", "home/capable", "home/plain"]);
        let row = &rows[1];
        assert_eq!(
            (row.interface.as_str(), row.config_name.as_str(), row.role),
            ("data0", "capable", Role::Selected)
        );
        assert_eq!(row.chain, ["maker", "tuning"]);
        let because: Vec<(&str, &str)> =
            row.because.iter().map(|d| (d.what.as_str(), d.why.as_str())).collect();
        assert_eq!(
            because,
            [
                ("network", "annotation k8s.v1.cni.cncf.io/networks: [0]"),
                ("interface", "requested"),
                ("config", "spec.config of home/capable"),
            ]
        );
        let requests: Vec<(&str, &str)> =
            row.requests.iter().map(|d| (d.what.as_str(), d.value.as_str())).collect();
        assert_eq!(requests, [("ips", "10.0.0.1"), ("default-route", "10.0.0.254")]);
        assert_eq!(rows[0].requests[0].value, "removed (v4)");
        assert_eq!(rows[0].because[1].why, "requested by the runtime (CNI_IFNAME)");
        assert_eq!(rows[2].because[1].why, "generated from its index");
    }

    #[test]
    fn explain_chain_includes_the_ipam_plugin() {
        let mut world = World::new().networks("managed");
        world.define("home/managed", r#"{"name":"m","type":"bridge","ipam":{"type":"host-local"}}"#);
        assert_eq!(rows(&world.plan())[1].chain, ["bridge+host-local"]);
    }
}
