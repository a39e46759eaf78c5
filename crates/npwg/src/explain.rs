//! A plan as rows for a person: what the pod gets, and where each decision came from.
//!
//! Only data: whoever prints it chooses the form.

use cni::network::{Network, plugin_type};
use serde::Serialize;

use crate::plan::{Decision, Delegate, Plan, Role};

/// One network of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// The network, as the status names it.
    pub network: String,
    /// Why the pod is attached to it.
    pub role: Role,
    /// The interface in the pod.
    pub interface: String,
    /// The network's CNI name.
    pub config_name: String,
    /// The plugins, in the order of an ADD; address management behind a `+`.
    pub chain: Vec<String>,
    /// Where the network and its configuration come from.
    pub because: Vec<Decision>,
    /// What is asked of it, and on what ground.
    pub requests: Vec<Decision>,
}

/// The rows of a plan, in the order of attachment.
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
    fn a_row_says_what_and_why() {
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
                ("interface", "asked for"),
                ("config", "spec.config of home/capable"),
            ]
        );
        let requests: Vec<(&str, &str)> =
            row.requests.iter().map(|d| (d.what.as_str(), d.value.as_str())).collect();
        assert_eq!(requests, [("ips", "10.0.0.1"), ("default-route", "10.0.0.254")]);
        assert_eq!(rows[0].requests[0].value, "given up (v4)");
        assert_eq!(rows[0].because[1].why, "asked for by the runtime (CNI_IFNAME)");
        assert_eq!(rows[2].because[1].why, "generated from its place");
    }

    #[test]
    fn address_management_is_part_of_the_chain() {
        let mut world = World::new().networks("managed");
        world.define("home/managed", r#"{"name":"m","type":"bridge","ipam":{"type":"host-local"}}"#);
        assert_eq!(rows(&world.plan())[1].chain, ["bridge+host-local"]);
    }
}
