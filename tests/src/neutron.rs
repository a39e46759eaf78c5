//! Real Neutron on a test machine, with OVN and Open vSwitch in user space; see `lanes/neutron/prepare`.
//!
//! ```text
//!   machine (chassis node-1) ── underlay ── node-2      Neutron :9696, Keystone :5000, on the machine's loopback
//! ```
//!
//! The first chassis is the machine itself; any other one is a network namespace with the chassis name. Tests read
//! expectations with `curl`, and with the chassis's `ovs-vsctl`.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};
use testkit::workspace;

use crate::machine::Machine;
use crate::parts::{parts, text};

/// Neutron URL.
pub const NEUTRON: &str = "http://127.0.0.1:9696";
/// Keystone URL.
pub const KEYSTONE: &str = "http://127.0.0.1:5000";
/// Directory for Neutron's files.
const DIRECTORY: &str = "/run/neutron";

/// Which services and drivers run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Neutron with OVN, without authentication.
    Open,
    /// Neutron with OVN and Keystone.
    Keystone,
    /// Neutron with Neutron's mechanism drivers for tests, without a switch.
    Api,
    /// Neutron with ML2/OVS, without a switch: the test reports what an agent would report.
    Agents,
}

/// Running Neutron.
#[derive(Debug)]
pub struct Neutron {
    machine: Arc<Machine>,
    mode: Mode,
}

/// Network with one subnet.
#[derive(Clone, Debug)]
pub struct Subnet {
    /// Network id.
    pub network: String,
    /// Subnet id.
    pub id: String,
}

// === impl Neutron ===

impl Neutron {
    /// Starts Neutron. If the lane was not prepared, the test is skipped and the result is `None`.
    ///
    /// # Panics
    /// Neutron does not start.
    #[must_use]
    #[track_caller]
    pub fn new(machine: impl Into<Arc<Machine>>, mode: Mode, chassis: &[&str]) -> Option<Neutron> {
        Neutron::with_token_lifetime(machine, mode, chassis, 3600)
    }

    /// Starts Neutron with tokens that are valid for this many seconds.
    #[must_use]
    #[track_caller]
    pub fn with_token_lifetime(
        machine: impl Into<Arc<Machine>>,
        mode: Mode,
        chassis: &[&str],
        seconds: u32,
    ) -> Option<Neutron> {
        let parts: PathBuf = parts("neutron")?;
        let machine = machine.into();
        let word = match mode {
            Mode::Open => "noauth",
            Mode::Keystone => "keystone",
            Mode::Api | Mode::Agents => "test",
        };
        let mechanism = if mode == Mode::Agents { "openvswitch" } else { "" };
        let stack = workspace().join("lanes/neutron/stack");
        let template = parts.join("template");
        machine.run(["mkdir", "-p", DIRECTORY]);
        // Its processes keep running and would hold this pipe open.
        let script = "\"$0\" start \"$1\" \"$2\" >/run/neutron.log 2>&1 </dev/null || { cat /run/neutron.log; exit 1; }";
        let stack = machine
            .command("sh")
            .args(["-c", script, text(&stack), DIRECTORY, text(&template)])
            .env("AUTH", word)
            .env("MECHANISM", mechanism)
            .env("CHASSIS", chassis.join(" "))
            .env("TOKEN_TTL", seconds.to_string())
            .deadline(crate::machine::TIMEOUT * 3);
        stack.finish().success();
        Some(Neutron { machine, mode })
    }

    /// Returns the machine on which Neutron runs.
    #[must_use]
    pub fn machine(&self) -> &Arc<Machine> {
        &self.machine
    }

    /// Returns the path of `clouds.yaml` for Keystone.
    #[must_use]
    pub fn clouds(&self) -> String {
        format!("{DIRECTORY}/clouds.yaml")
    }

    /// Returns a chassis's OVSDB socket.
    #[must_use]
    pub fn ovsdb(&self, chassis: &str) -> String {
        format!("{DIRECTORY}/ovn/{chassis}/db.sock")
    }

    /// Runs `ovs-vsctl` on a chassis and returns the output.
    #[track_caller]
    pub fn ovs(&self, chassis: &str, words: &[&str]) -> String {
        let database = format!("--db=unix:{}", self.ovsdb(chassis));
        let mut line = vec!["ovs-vsctl", "--timeout=10", &database];
        line.extend(words);
        self.machine.run(line)
    }

    /// Lists the ports on a chassis's `br-int` that are pod links.
    #[must_use]
    #[track_caller]
    pub fn plugged(&self, chassis: &str) -> Vec<String> {
        let all = self.ovs(chassis, &["list-ports", "br-int"]);
        let of_pods = |name: &&str| ["tap", "qvo"].iter().any(|start| name.starts_with(start));
        all.lines().filter(of_pods).map(str::to_owned).collect()
    }

    /// Sends a request to Neutron as administrator; returns status and body.
    #[must_use]
    #[track_caller]
    pub fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        let address = format!("{NEUTRON}/v2.0/{path}");
        let mut words = vec!["-s", "-X", method, "-w", "\n%{http_code}", &address];
        let (header, content);
        if self.mode == Mode::Keystone {
            header = format!("X-Auth-Token: {}", self.token());
            words.extend(["-H", &header]);
        }
        if let Some(body) = body {
            content = body.to_string();
            words.extend(["-H", "Content-Type: application/json", "-d", &content]);
        }
        // Neutron delays concurrent changes to one port.
        let curl = self.machine.command("curl").args(words).deadline(crate::machine::TIMEOUT * 2);
        let answer = curl.finish().success().stdout;
        let (body, status) = answer.rsplit_once('\n').expect("a status");
        (status.parse().expect("a status"), serde_json::from_str(body).unwrap_or(Value::Null))
    }

    /// Sends a request that must succeed.
    #[must_use]
    #[track_caller]
    pub fn api(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        let (status, answer) = self.ask(method, path, body);
        assert!((200..300).contains(&status), "{method} {path}: {status} {answer}");
        answer
    }

    /// Requests an administrator token.
    #[must_use]
    #[track_caller]
    pub fn token(&self) -> String {
        let domain = json!({ "id": "default" });
        let body = json!({ "auth": {
            "identity": { "methods": ["password"],
                "password": { "user": { "name": "admin", "domain": domain, "password": "secret" } } },
            "scope": { "project": { "name": "admin", "domain": domain } } } });
        let address = format!("{KEYSTONE}/v3/auth/tokens");
        let words = ["curl", "-s", "-i", "-H", "Content-Type: application/json", "-d"];
        let answer = self.machine.run(words.into_iter().chain([body.to_string().as_str(), &address]));
        let token = answer.lines().find_map(|line| line.strip_prefix("X-Subject-Token: "));
        token.unwrap_or_else(|| panic!("no token: {answer}")).trim().to_owned()
    }

    /// Creates a network with a subnet; `words` are subnet fields in addition to the prefix.
    #[must_use]
    #[track_caller]
    pub fn subnet(&self, name: &str, cidr: &str, words: &Value) -> Subnet {
        let network = json!({ "network": { "name": name } });
        let network = self.api("POST", "networks", Some(&network))["network"]["id"].clone();
        let mut subnet = crate::with(&json!({ "cidr": cidr, "ip_version": 4 }), words);
        subnet["network_id"] = network.clone();
        let subnet = self.api("POST", "subnets", Some(&json!({ "subnet": subnet })));
        let text = |value: &Value| value.as_str().expect("an id").to_owned();
        Subnet { network: text(&network), id: text(&subnet["subnet"]["id"]) }
    }

    /// Lists the ports that match a query.
    #[must_use]
    #[track_caller]
    pub fn ports(&self, query: &str) -> Vec<Value> {
        let answer = self.api("GET", &format!("ports?{query}"), None);
        answer["ports"].as_array().expect("a list").clone()
    }

    /// Lists the pods' ports.
    #[must_use]
    #[track_caller]
    pub fn pod_ports(&self) -> Vec<Value> {
        self.ports("device_owner=compute:kuryr")
    }

    /// Returns one port.
    #[must_use]
    #[track_caller]
    pub fn port(&self, id: &str) -> Value {
        self.api("GET", &format!("ports/{id}"), None)["port"].clone()
    }

    /// Returns the Neutron server's log.
    #[must_use]
    pub fn log(&self) -> String {
        self.machine.read(format!("{DIRECTORY}/neutron/server.log")).unwrap_or_default()
    }

    /// Sends the Neutron server a signal: `STOP`, `CONT`, `KILL`.
    #[track_caller]
    pub fn signal(&self, signal: &str) {
        let id = self.machine.read(format!("{DIRECTORY}/neutron/pid")).expect("Neutron was started");
        let script = "for one in $1 $(pgrep -P \"$1\"); do kill -s \"$0\" \"$one\"; done";
        self.machine.run(["sh", "-c", script, signal, id.trim()]);
    }
}
