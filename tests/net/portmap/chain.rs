//! A pod behind `bridge` and `portmap`, and the rules for the pod's ports.

use rig::with;
use serde_json::{Value, json};
use testkit::{Attachment, Host, Pod};

/// A pod with an interface, and the configurations for a chain with `bridge` and `portmap`.
pub(crate) struct Chain<'a> {
    pub(crate) pod: Pod,
    pub(crate) bridge: Value,
    pub(crate) portmap: Value,
    pub(crate) plugin: Attachment<'a>,
    pub(crate) first: Attachment<'a>,
}

/// Returns the configuration of the bridge. Hairpin mode lets a pod reach itself if the kernel passes bridged
/// packets to the packet filter.
fn bridge() -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": "br0", "isGateway": true, "hairpinMode": true,
        "ipam": {
            "type": "host-local", "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
            "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd01::/64" }]],
        },
    })
}

/// Returns a mapping of one protocol.
pub(crate) fn mapping(host: u16, container: u16, protocol: &str) -> Value {
    json!({ "hostPort": host, "containerPort": container, "protocol": protocol })
}

pub(crate) fn both(host: u16, container: u16) -> Value {
    json!([mapping(host, container, "tcp"), mapping(host, container, "udp")])
}

impl<'a> Chain<'a> {
    /// Creates a pod on the bridge, without ports.
    pub(crate) fn new(host: &'a Host, name: &str) -> Chain<'a> {
        let pod = host.pod(name);
        let first = host.attachment("bridge", &pod, "eth0");
        let result = first.add(&bridge()).success().json();
        rig::await_ipv6(host, "br0");
        let portmap =
            json!({ "cniVersion": "1.1.0", "name": "net", "type": "portmap", "prevResult": result });
        let plugin = host.attachment("portmap", &pod, "eth0");
        Chain { pod, bridge: bridge(), portmap, plugin, first }
    }

    /// Returns the configuration of portmap.
    pub(crate) fn config(&self, keys: &Value, mappings: &Value) -> Value {
        let mut config = with(&self.portmap, keys);
        config["runtimeConfig"]["portMappings"] = mappings.clone();
        config
    }

    /// Calls ADD. Returns the configuration for the calls that follow.
    #[track_caller]
    pub(crate) fn map(&self, keys: &Value, mappings: &Value) -> Value {
        let config = self.config(keys, mappings);
        assert_eq!(self.plugin.add(&config).success().json(), self.portmap["prevResult"]);
        config
    }

    /// Returns the pod's address in a family, with a port.
    pub(crate) fn at(&self, six: bool, port: u16) -> String {
        let all = rig::addresses(&self.portmap["prevResult"]);
        let bare = all[usize::from(six)].split('/').next().unwrap();
        if six { format!("[{bare}]:{port}") } else { format!("{bare}:{port}") }
    }

    pub(crate) fn end(self) {
        self.first.del(&with(&self.bridge, &json!({ "prevResult": self.portmap["prevResult"] }))).success();
        self.pod.remove();
    }
}

/// Returns the lines of both packet filters for host ports of this pod.
pub(crate) fn traces(host: &Host, pod: &Pod) -> Vec<String> {
    let mut text = host.run(["nft", "list", "ruleset"]);
    for save in ["iptables-save", "ip6tables-save"] {
        text.push_str(&host.run([save, "-t", "nat"]));
    }
    let id = pod.container_id();
    text.lines().filter(|line| line.contains(&id) || line.contains("CNI-DN-")).map(str::to_owned).collect()
}
