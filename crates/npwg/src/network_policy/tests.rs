//! Truth tables: every pod of three namespaces to every other one, and each policy's expected verdicts.
//!
//! Each case is also compiled for every attachment: the compiled rules and the verdict must agree.
//!
//! Source: the matrix in Kubernetes' NetworkPolicy tests (`test/e2e/network/netpol`); the scenarios that
//! multi-networkpolicy implementations test end to end.

#![allow(clippy::needless_pass_by_value, reason = "arguments are json! literals")]

use serde_json::{Value, json};

use super::label_selector::{Operator, Requirement};
use super::*;

const NAMESPACES: [&str; 3] = ["x", "y", "z"];
const PODS: [&str; 3] = ["a", "b", "c"];
const PORTS: [(Protocol, u16); 5] = [
    (Protocol::Tcp, 80),
    (Protocol::Tcp, 81),
    (Protocol::Udp, 80),
    (Protocol::Udp, 81),
    (Protocol::Sctp, 80),
];

/// One pod in the matrix, such as `x/a`, and an attachment.
struct Member {
    name: String,
    namespace: String,
    labels: Labels,
    namespace_labels: Labels,
    ports: BTreeMap<String, (Protocol, u16)>,
    network: NetworkReference,
    addresses: Vec<IpAddr>,
}

/// Three namespaces with three pods each, all attached to `x/net`.
struct Matrix(Vec<Member>);

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

impl Member {
    fn attachment(&self) -> PodAttachment<'_> {
        PodAttachment {
            namespace: &self.namespace,
            name: &self.name,
            labels: &self.labels,
            namespace_labels: Some(&self.namespace_labels),
            ports: &self.ports,
            network: &self.network,
            addresses: &self.addresses,
        }
    }

    fn id(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

impl Matrix {
    /// Pod `b` of `y` has the address 10.0.2.2 and fd00::2:2.
    fn new() -> Matrix {
        let mut members = Vec::new();
        for (n, namespace) in NAMESPACES.into_iter().enumerate() {
            for (p, pod) in PODS.into_iter().enumerate() {
                members.push(Member {
                    name: pod.to_owned(),
                    namespace: namespace.to_owned(),
                    labels: labels(&[("pod", pod)]),
                    namespace_labels: labels(&[("ns", namespace)]),
                    ports: BTreeMap::from([
                        ("serve-80".to_owned(), (Protocol::Tcp, 80)),
                        ("serve-81".to_owned(), (Protocol::Tcp, 81)),
                    ]),
                    network: NetworkReference::new("x", "net"),
                    addresses: vec![
                        format!("10.0.{}.{}", n + 1, p + 1).parse().unwrap(),
                        format!("fd00::{}:{}", n + 1, p + 1).parse().unwrap(),
                    ],
                });
            }
        }
        Matrix(members)
    }

    /// Compares every verdict, and the compiled rules of every attachment, with the expectation.
    fn expect(&self, case: &str, policies: &[NetworkPolicy], allowed: &dyn Fn(&Flow<'_>) -> bool) {
        let attachments: Vec<PodAttachment<'_>> = self.0.iter().map(Member::attachment).collect();
        let addresses = resolve_all(policies, &attachments);
        let compiled: Vec<AttachmentPolicy> =
            attachments.iter().map(|own| compile(policies, own, &addresses).unwrap()).collect();
        for (f, from) in self.0.iter().enumerate() {
            for (t, to) in self.0.iter().enumerate() {
                for (protocol, port) in PORTS {
                    let flow = Flow { from: &from.id(), to: &to.id(), protocol, port };
                    let expected = f == t || allowed(&flow);
                    let parties = [Party::Pod(attachments[f]), Party::Pod(attachments[t])];
                    let verdict =
                        verdict(policies, &addresses, &parties[0], &parties[1], protocol, port).unwrap();
                    assert_eq!(verdict.allowed, expected, "{case}: {flow:?}: {verdict:?}");
                    let families = if f == t { 1 } else { 2 };
                    assert_eq!(verdict.connections.len(), families, "{case}: {flow:?}: {verdict:?}");
                    if f == t {
                        continue;
                    }
                    for (source, target) in from.addresses.iter().zip(&to.addresses) {
                        let passes = compiled[f].allows(Direction::Egress, *target, protocol, port)
                            && compiled[t].allows(Direction::Ingress, *source, protocol, port);
                        assert_eq!(passes, expected, "{case}: compiled: {flow:?}");
                    }
                }
            }
        }
    }
}

/// Connection of the matrix.
#[derive(Debug)]
struct Flow<'a> {
    from: &'a str,
    to: &'a str,
    protocol: Protocol,
    port: u16,
}

impl Flow<'_> {
    fn is_tcp(&self, port: u16) -> bool {
        (self.protocol, self.port) == (Protocol::Tcp, port)
    }

    fn is_from(&self, namespace: &str) -> bool {
        self.from.starts_with(&format!("{namespace}/"))
    }

    fn is_to(&self, namespace: &str) -> bool {
        self.to.starts_with(&format!("{namespace}/"))
    }
}

/// Policy in namespace `x` for `x/net`.
fn policy(name: &str, spec: Value) -> NetworkPolicy {
    policy_in("x", name, "x/net", spec)
}

fn policy_in(namespace: &str, name: &str, networks: &str, spec: Value) -> NetworkPolicy {
    let policy = read(&json!({
        "apiVersion": VERSIONS[1],
        "kind": KIND,
        "metadata": {"namespace": namespace, "name": name, "annotations": {POLICY_FOR: networks}},
        "spec": spec,
    }));
    assert_eq!(policy.faults, [], "{name}");
    policy
}

fn pod(name: &str) -> Value {
    json!({"matchLabels": {"pod": name}})
}

fn namespace(name: &str) -> Value {
    json!({"matchLabels": {"ns": name}})
}

#[test]
fn network_policy_matrix_ingress() {
    let matrix = Matrix::new();
    let rules = |ingress: Value| policy("p", json!({"podSelector": {}, "ingress": ingress}));
    let to_a = |ingress: Value| policy("p", json!({"podSelector": pod("a"), "ingress": ingress}));
    matrix.expect("no policy", &[], &|_| true);
    matrix.expect("deny all ingress", &[rules(json!([]))], &|flow| !flow.is_to("x"));
    matrix.expect("allow all ingress", &[rules(json!([{}]))], &|_| true);
    matrix.expect("deny ingress of one pod", &[to_a(json!([]))], &|flow| flow.to != "x/a");
    let from_b = to_a(json!([{"from": [{"podSelector": pod("b")}]}]));
    matrix.expect("from a pod of the namespace", &[from_b], &|flow| flow.to != "x/a" || flow.from == "x/b");
    let from_own = rules(json!([{"from": [{"podSelector": {}}]}]));
    matrix.expect("from the namespace", &[from_own], &|flow| !flow.is_to("x") || flow.is_from("x"));
    let from_y = to_a(json!([{"from": [{"namespaceSelector": namespace("y")}]}]));
    matrix.expect("from another namespace", &[from_y], &|flow| flow.to != "x/a" || flow.is_from("y"));
    let all_namespaces = to_a(json!([{"from": [{"namespaceSelector": {}}]}]));
    matrix.expect("from all namespaces", &[all_namespaces], &|_| true);
    let by_name = to_a(json!([{"from": [{"namespaceSelector": {"matchLabels": {NAMESPACE_NAME: "z"}}}]}]));
    matrix.expect("namespace by its name", &[by_name], &|flow| flow.to != "x/a" || flow.is_from("z"));
    let and = to_a(json!([{"from": [{"namespaceSelector": namespace("y"), "podSelector": pod("a")}]}]));
    matrix.expect("namespace and pod", &[and], &|flow| flow.to != "x/a" || flow.from == "y/a");
    let or = to_a(json!([{"from": [{"namespaceSelector": namespace("y")}, {"podSelector": pod("b")}]}]));
    let fits = |flow: &Flow<'_>| flow.is_from("y") || flow.from == "x/b";
    matrix.expect("namespace or pod", &[or], &|flow| flow.to != "x/a" || fits(flow));
    let other = json!({"matchExpressions": [{"key": "ns", "operator": "NotIn", "values": ["x"]}]});
    let not_x = to_a(json!([{"from": [{"namespaceSelector": other}]}]));
    matrix.expect("matchExpressions", &[not_x], &|flow| flow.to != "x/a" || !flow.is_from("x"));
    let exists = json!({"matchExpressions": [{"key": "pod", "operator": "Exists"},
        {"key": "gone", "operator": "DoesNotExist"}, {"key": "pod", "operator": "In", "values": ["b", "c"]}]});
    let several = policy("p", json!({"podSelector": exists, "policyTypes": ["Ingress"]}));
    matrix.expect("several requirements", &[several], &|flow| !["x/b", "x/c"].contains(&flow.to));
    let none = to_a(json!([{"from": [{"namespaceSelector": namespace("nowhere")}]}]));
    matrix.expect("a selector without pods", &[none], &|flow| flow.to != "x/a");
}

#[test]
fn network_policy_matrix_ports_and_protocols() {
    let matrix = Matrix::new();
    let to_a = |ingress: Value| policy("p", json!({"podSelector": pod("a"), "ingress": ingress}));
    let port = |port: Value| to_a(json!([{"ports": [port]}]));
    for (case, one) in [
        ("by number", port(json!({"port": 80}))),
        ("by name", port(json!({"port": "serve-80", "protocol": "TCP"}))),
        ("range of one", port(json!({"port": 80, "endPort": 80}))),
    ] {
        matrix.expect(case, &[one], &|flow| flow.to != "x/a" || flow.is_tcp(80));
    }
    let udp = port(json!({"protocol": "UDP"}));
    matrix
        .expect("protocol without port", &[udp], &|flow| flow.to != "x/a" || flow.protocol == Protocol::Udp);
    let sctp = port(json!({"protocol": "SCTP", "port": 80}));
    matrix.expect("SCTP", &[sctp], &|flow| flow.to != "x/a" || flow.protocol == Protocol::Sctp);
    let range = port(json!({"port": 1, "endPort": 80}));
    matrix.expect("range", &[range], &|flow| flow.to != "x/a" || flow.is_tcp(80));
    let unknown = port(json!({"port": "serve-82"}));
    matrix.expect("name of no port", &[unknown], &|flow| flow.to != "x/a");
    let other_protocol = port(json!({"port": "serve-80", "protocol": "UDP"}));
    matrix.expect("name with another protocol", &[other_protocol], &|flow| flow.to != "x/a");
    let stacked = [
        policy("p", json!({"podSelector": pod("a"), "ingress": [{"ports": [{"port": 80}]}]})),
        policy(
            "q",
            json!({"podSelector": pod("a"), "ingress": [{"ports": [{"port": 81}],
            "from": [{"namespaceSelector": namespace("y")}]}]}),
        ),
    ];
    let fits = |flow: &Flow<'_>| flow.is_tcp(80) || flow.is_tcp(81) && flow.is_from("y");
    matrix.expect("policies add up", &stacked, &|flow| flow.to != "x/a" || fits(flow));
    let mixed =
        to_a(json!([{"ports": [{"port": 81}, {"port": "serve-80"}, {"port": 80, "protocol": "UDP"}]}]));
    let fits = |flow: &Flow<'_>| flow.is_tcp(80) || flow.is_tcp(81) || (flow.protocol, flow.port) == PORTS[2];
    matrix.expect("ports of a rule are alternatives", &[mixed], &|flow| flow.to != "x/a" || fits(flow));
}

#[test]
fn network_policy_matrix_egress() {
    let matrix = Matrix::new();
    let from_a = |egress: Value| {
        policy("p", json!({"podSelector": pod("a"), "policyTypes": ["Egress"], "egress": egress}))
    };
    matrix.expect("deny all egress", &[from_a(json!([]))], &|flow| flow.from != "x/a");
    matrix.expect("allow all egress", &[from_a(json!([{}]))], &|_| true);
    let to_y = from_a(json!([{"to": [{"namespaceSelector": namespace("y")}], "ports": [{"port": 80}]}]));
    let fits = |flow: &Flow<'_>| flow.is_to("y") && flow.is_tcp(80);
    matrix.expect("to a namespace and port", &[to_y], &|flow| flow.from != "x/a" || fits(flow));
    let both = [
        from_a(json!([{"to": [{"namespaceSelector": namespace("y")}]}])),
        policy_in(
            "y",
            "q",
            "x/net",
            json!({"podSelector": pod("b"), "ingress": [{"ports": [{"port": 81}]}]}),
        ),
    ];
    let egress = |flow: &Flow<'_>| flow.from != "x/a" || flow.is_to("y");
    matrix.expect("both sides", &both, &|flow| egress(flow) && (flow.to != "y/b" || flow.is_tcp(81)));
    let named = from_a(json!([{"ports": [{"port": "serve-81"}]}]));
    matrix.expect("named port of the peer", &[named], &|flow| flow.from != "x/a" || flow.is_tcp(81));
    let named = from_a(json!([{"ports": [{"port": "serve-81"}], "to": [{"podSelector": pod("b")}]}]));
    let fits = |flow: &Flow<'_>| flow.to == "x/b" && flow.is_tcp(81);
    matrix.expect("named port of one peer", &[named], &|flow| flow.from != "x/a" || fits(flow));
    let defaults =
        policy("p", json!({"podSelector": pod("a"), "egress": [{"to": [{"podSelector": pod("b")}]}]}));
    let fits = |flow: &Flow<'_>| flow.to != "x/a" && (flow.from != "x/a" || flow.to == "x/b");
    matrix.expect("egress rules without policyTypes", &[defaults], &fits);
    let ignored = policy(
        "p",
        json!({"podSelector": pod("a"), "policyTypes": ["Ingress"], "ingress": [{}],
        "egress": [{"to": [{"podSelector": pod("b")}]}]}),
    );
    matrix.expect("egress rules without their type", &[ignored], &|_| true);
}

#[test]
fn network_policy_matrix_ip_blocks() {
    let matrix = Matrix::new();
    // The families of an attachment are decided one by one, so each block has its IPv6 counterpart.
    let from = |peers: Value| policy("p", json!({"podSelector": pod("a"), "ingress": [{"from": peers}]}));
    let block = |cidr: &str, except: &[&str]| json!({"ipBlock": {"cidr": cidr, "except": except}});
    let y = from(json!([block("10.0.2.0/24", &[]), block("fd00::2:0/112", &[])]));
    matrix.expect("block", &[y], &|flow| flow.to != "x/a" || flow.is_from("y"));
    let but_b =
        from(json!([block("10.0.2.0/24", &["10.0.2.2/32"]), block("fd00::2:0/112", &["fd00::2:2/128"])]));
    let fits = |flow: &Flow<'_>| flow.is_from("y") && flow.from != "y/b";
    matrix.expect("except", std::slice::from_ref(&but_b), &|flow| flow.to != "x/a" || fits(flow));
    let again = policy(
        "q",
        json!({"podSelector": pod("a"), "ingress": [
        {"from": [block("10.0.2.2/32", &[])]}, {"from": [block("fd00::2:2/128", &[])]}]}),
    );
    matrix.expect("except of one policy, allowed by another", &[but_b, again], &|flow| {
        flow.to != "x/a" || flow.is_from("y")
    });
    let with_pods =
        from(json!([block("10.0.2.0/24", &[]), block("fd00::2:0/112", &[]), {"podSelector": pod("c")}]));
    let fits = |flow: &Flow<'_>| flow.is_from("y") || flow.from == "x/c";
    matrix.expect("block or pods", &[with_pods], &|flow| flow.to != "x/a" || fits(flow));
}

/// Scenarios of multi-networkpolicy: policies name networks, and peers may be on another one of them.
#[test]
fn network_policy_applies_to_the_networks_it_names() {
    let mut matrix = Matrix::new();
    for member in &mut matrix.0 {
        member.network = NetworkReference::new(&member.namespace, "net");
    }
    let of_a = json!({"podSelector": pod("a"), "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [{"podSelector": pod("a"), "namespaceSelector": namespace("y")}]}],
        "egress": [{"to": [{"podSelector": pod("b"), "namespaceSelector": namespace("y")}]}]});
    let all = policy_in("x", "p", "net,y/net, z/net", of_a.clone());
    matrix.expect("networks of several namespaces", &[all], &|flow| {
        (flow.to != "x/a" || flow.from == "y/a") && (flow.from != "x/a" || flow.to == "y/b")
    });
    let own = policy_in("x", "p", "x/net", of_a.clone());
    matrix.expect("a peer on another network", &[own], &|flow| flow.to != "x/a" && flow.from != "x/a");
    let other = policy_in("x", "p", "x/other", of_a);
    matrix.expect("a network of no pod", &[other], &|_| true);
}

#[test]
fn network_policy_for_dual_port_tiers_follows_its_labels() {
    let mut matrix = Matrix::new();
    let tiers = [("x/a", "frontend"), ("x/b", "backend"), ("x/c", "database"), ("y/a", "monitoring")];
    for member in &mut matrix.0 {
        let tier = tiers.iter().find(|(id, _)| *id == member.id()).map_or("none", |(_, tier)| tier);
        member.labels = labels(&[("tier", tier)]);
    }
    let tier = |name: &str| json!({"matchLabels": {"tier": name}});
    let policies = [
        policy(
            "frontend",
            json!({"podSelector": tier("frontend"), "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [{"namespaceSelector": namespace("z")}], "ports": [{"port": 80}]}],
            "egress": [{"to": [{"podSelector": tier("backend")}], "ports": [{"port": 80}]}]}),
        ),
        policy(
            "backend",
            json!({"podSelector": tier("backend"), "policyTypes": ["Ingress", "Egress"],
            "ingress": [
                {"from": [{"podSelector": tier("frontend")}], "ports": [{"port": 80}]},
                {"from": [{"podSelector": tier("monitoring"), "namespaceSelector": {}}], "ports": [{"port": 81}]}],
            "egress": [{"to": [{"podSelector": tier("database")}], "ports": [{"port": 81}]}]}),
        ),
        policy(
            "database",
            json!({"podSelector": tier("database"), "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": tier("backend")}], "ports": [{"port": 81}]}]}),
        ),
    ];
    matrix.expect("tiers", &policies, &|flow| match (flow.from, flow.to) {
        ("x/a", "x/b") => flow.is_tcp(80),
        ("x/b", "x/c") | ("y/a", "x/b") => flow.is_tcp(81),
        (_, "x/a") => flow.is_from("z") && flow.is_tcp(80),
        (_, "x/b" | "x/c") => false,
        (from, _) => from != "x/a" && from != "x/b",
    });
}

#[test]
fn network_policy_verdict_names_policy_and_rule() {
    let matrix = Matrix::new();
    let policies = [
        policy("deny", json!({"podSelector": {}, "policyTypes": ["Ingress"]})),
        policy(
            "allow",
            json!({"podSelector": pod("a"), "ingress": [
            {"from": [{"podSelector": pod("c")}]}, {"ports": [{"port": 80}]}]}),
        ),
    ];
    let party = |id: &str| Party::Pod(matrix.0.iter().find(|member| member.id() == id).unwrap().attachment());
    let attachments: Vec<PodAttachment<'_>> = matrix.0.iter().map(Member::attachment).collect();
    let addresses = resolve_all(&policies, &attachments);
    let verdict = |from: &Party<'_>, to: &Party<'_>, port| {
        verdict(&policies, &addresses, from, to, Protocol::Tcp, port).unwrap()
    };
    let allowed = verdict(&party("y/a"), &party("x/a"), 80);
    let rule = PolicyRuleReference { policy: "x/allow".to_owned(), direction: Direction::Ingress, rule: 1 };
    assert_eq!(rule.to_string(), "x/allow: spec.ingress[1]");
    assert_eq!((allowed.ingress, allowed.egress), (Decision::Allowed(rule), Decision::NotIsolated));
    let denied = verdict(&party("y/a"), &party("x/a"), 81);
    assert_eq!(denied.ingress, Decision::Denied(vec!["x/deny".to_owned(), "x/allow".to_owned()]));
    let outside = Party::Address("192.0.2.1".parse().unwrap());
    assert!(verdict(&outside, &party("x/a"), 80).allowed);
    assert!(!verdict(&outside, &party("x/b"), 80).allowed);
    let same = verdict(&party("x/b"), &party("x/b"), 80);
    assert_eq!((same.allowed, same.ingress), (true, Decision::SamePod));
}

#[test]
fn network_policy_block_is_undecided_without_addresses() {
    let mut matrix = Matrix::new();
    matrix.0[4].addresses.clear();
    let block = json!([{"from": [{"ipBlock": {"cidr": "10.0.2.0/24"}}]}]);
    let policies = [policy("p", json!({"podSelector": {}, "ingress": block}))];
    let parties = [Party::Pod(matrix.0[4].attachment()), Party::Pod(matrix.0[0].attachment())];
    let verdict = verdict(&policies, &BTreeMap::new(), &parties[0], &parties[1], Protocol::Tcp, 80).unwrap();
    assert_eq!((verdict.allowed, verdict.undecided.len()), (false, 1), "{verdict:?}");
}

#[test]
fn network_policy_verdict_is_that_of_each_family() {
    let mut matrix = Matrix::new();
    matrix.0[4].addresses.push("10.9.9.9".parse().unwrap());
    let block = json!([{"from": [{"ipBlock": {"cidr": "10.0.0.0/16"}}]}]);
    let policies = [policy("p", json!({"podSelector": {}, "ingress": block}))];
    let [from, to] = [4, 0].map(|index: usize| Party::Pod(matrix.0[index].attachment()));
    let verdict = |from: &Party<'_>| verdict(&policies, &BTreeMap::new(), from, &to, Protocol::Tcp, 80);
    let of_pod = verdict(&from).unwrap();
    let rows: Vec<_> = of_pod
        .connections
        .iter()
        .map(|one| (one.family, one.from.unwrap().to_string(), one.allowed))
        .collect();
    let (v4, v6) = (Some(IpFamily::V4), Some(IpFamily::V6));
    let expected = [(v4, "10.0.2.2", true), (v6, "fd00::2:2", false), (v4, "10.9.9.9", false)]
        .map(|(family, from, allowed)| (family, from.to_owned(), allowed));
    assert_eq!(rows, expected, "{of_pod:?}");
    assert!(!of_pod.allowed && of_pod.ingress == Decision::Denied(vec!["x/p".to_owned()]));
    let address = |text: &str| Party::Address(text.parse().unwrap());
    assert!(verdict(&address("10.0.9.9")).unwrap().allowed);
    assert!(!verdict(&address("fd00::9")).unwrap().allowed);
    let mut v4_only = matrix.0[0].attachment();
    v4_only.addresses = &v4_only.addresses[..1];
    let none = super::verdict(
        &policies,
        &BTreeMap::new(),
        &address("fd00::9"),
        &Party::Pod(v4_only),
        Protocol::Tcp,
        80,
    );
    assert_eq!(none, Err(VerdictError::NoFamily));
}

#[test]
fn network_policy_verdict_follows_the_sets_and_not_labels() {
    let matrix = Matrix::new();
    let attachments: Vec<PodAttachment<'_>> = matrix.0.iter().map(Member::attachment).collect();
    let spec = json!({"podSelector": pod("a"), "policyTypes": ["Egress"], "egress": [
        {"to": [{"ipBlock": {"cidr": "10.0.1.0/24"}}, {"podSelector": pod("c")}], "ports": [{"port": "serve-80"}]}]});
    let policies = [policy("p", spec)];
    let [own, of_block, peer] = [0, 1, 2].map(|index: usize| Party::Pod(attachments[index]));
    let allowed = |addresses: &BTreeMap<String, PolicyAddresses>, to: &Party<'_>| {
        verdict(&policies, addresses, &own, to, Protocol::Tcp, 80).unwrap().allowed
    };
    let resolved = resolve_all(&policies, &attachments);
    assert!(allowed(&resolved, &peer));
    assert!(!allowed(&resolved, &of_block), "a block has no named ports");
    assert!(!allowed(&BTreeMap::new(), &peer), "the controller has not written the set");
    // A pod without known addresses is in the sets that it fits.
    let mut unknown = attachments[2];
    unknown.addresses = &[];
    assert!(allowed(&BTreeMap::new(), &Party::Pod(unknown)));
}

/// Object with one change, and a part of the message about it.
fn faults(path: &str, value: Value) -> Vec<String> {
    let mut object = json!({
        "apiVersion": VERSIONS[1],
        "kind": KIND,
        "metadata": {"namespace": "x", "name": "p", "annotations": {POLICY_FOR: "x/net"}},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": {}}], "ports": [{"port": 80}]}]},
    });
    *object.pointer_mut(path).unwrap() = value;
    let policy = read(&object);
    let matrix = Matrix::new();
    if !policy.faults.is_empty() && !policy.networks.is_empty() {
        let parties = [1, 0].map(|index: usize| Party::Pod(matrix.0[index].attachment()));
        let policies = std::slice::from_ref(&policy);
        let verdict =
            verdict(policies, &BTreeMap::new(), &parties[0], &parties[1], Protocol::Tcp, 80).unwrap();
        assert!(!verdict.allowed, "{path}: an invalid policy must deny what it selects");
    }
    policy.faults.iter().map(ToString::to_string).collect()
}

#[test]
fn network_policy_malformed_is_reported_and_denies() {
    let ports = |port: Value| json!([{"ports": [port]}]);
    let peer = |peer: Value| json!([{"from": [peer]}]);
    let block = |cidr: &str, except: &[&str]| peer(json!({"ipBlock": {"cidr": cidr, "except": except}}));
    let many: Vec<Value> = (0..10_000).map(|_| json!({"podSelector": {}})).collect();
    let expression = |value: Value| json!({"matchExpressions": [value]});
    for (path, value, words) in [
        ("/spec/ingress", ports(json!({"protocol": "ICMP"})), "\"ICMP\": is not a protocol"),
        ("/spec/ingress", ports(json!({"protocol": "tcp"})), "write TCP, UDP or SCTP"),
        ("/spec/ingress", ports(json!({"port": 0})), "spec.ingress[0].ports[0].port: 0: is not a port"),
        ("/spec/ingress", ports(json!({"port": 65536})), "65536: is not a port"),
        ("/spec/ingress", ports(json!({"port": -1})), "-1: is not a port"),
        ("/spec/ingress", ports(json!({"port": 80.5})), "80.5: is not a port"),
        ("/spec/ingress", ports(json!({"port": "80"})), "without quotes"),
        ("/spec/ingress", ports(json!({"port": 81, "endPort": 80})), "endPort: 80: is less than port 81"),
        ("/spec/ingress", ports(json!({"endPort": 80})), "endPort needs a port"),
        ("/spec/ingress", ports(json!({"port": "web", "endPort": 80})), "a port that is a number"),
        ("/spec/ingress", ports(json!({"ports": 80})), "unknown field: did you mean port?"),
        ("/spec/ingress", peer(json!({})), "the peer has no condition"),
        ("/spec/ingress", peer(json!({"ipBlock": {}})), "cidr is missing"),
        ("/spec/ingress", block("10.0.0.0", &[]), "\"10.0.0.0\": is not an address with a prefix length"),
        ("/spec/ingress", block("10.0.0.0/33", &[]), "10.0.0.0/33"),
        ("/spec/ingress", block("10.0.0.0/24", &["10.0.1.0/25"]), "is not a part of 10.0.0.0/24"),
        ("/spec/ingress", block("10.0.0.0/24", &["10.0.0.0/24"]), "is not a part of 10.0.0.0/24"),
        ("/spec/ingress", block("10.0.0.0/24", &["fd00::/64"]), "is not a part of 10.0.0.0/24"),
        (
            "/spec/ingress",
            peer(json!({"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}})),
            "cannot be combined",
        ),
        ("/spec/ingress", json!([{"to": []}]), "spec.ingress[0].to: unknown field"),
        ("/spec/ingress", json!([{"from": many}]), "has 10000 elements; the maximum is 256"),
        ("/spec/ingress", json!({}), "must be a list, this is an object"),
        ("/spec/podSelector", json!({"matchLabels": {"-a": "b"}}), "\"-a\" is not the key of a label"),
        ("/spec/podSelector", json!({"matchLabels": {"a": "b c"}}), "is not the value of a label"),
        ("/spec/podSelector", json!({"matchlabels": {}}), "unknown field"),
        ("/spec/podSelector", expression(json!({"key": "a", "operator": "Is"})), "is not an operator"),
        ("/spec/podSelector", expression(json!({"key": "a", "operator": "In"})), "at least one element"),
        (
            "/spec/podSelector",
            expression(json!({"key": "a", "operator": "Exists", "values": ["b"]})),
            "no values",
        ),
        ("/spec/podSelector", expression(json!({"operator": "Exists"})), "key is missing"),
        ("/spec/podSelector", Value::Null, "podSelector is missing"),
        ("/spec", Value::Null, "podSelector is missing"),
        ("/spec/policyTypes", json!(["ingress"]), "write Ingress or Egress"),
        ("/spec/policyTypes", json!("Ingress"), "must be a list"),
        ("/spec", json!({"podSelector": {}, "action": "Allow"}), "spec.action: \"Allow\": unknown field"),
        ("/apiVersion", json!("k8s.cni.cncf.io/v1"), "is not a version of MultiNetworkPolicy"),
        ("/metadata/annotations", json!({}), "the policy applies to no network"),
        ("/metadata/annotations", json!({POLICY_FOR: "x/net,X"}), "network \"X\" contains"),
        ("/metadata/annotations", json!({POLICY_FOR: "x/net,"}), "network \"\" is empty"),
    ] {
        let faults = faults(path, value.clone());
        assert!(faults.iter().any(|fault| fault.contains(words)), "{path}: {value}: {faults:?}");
    }
}

#[test]
fn network_policy_with_a_fault_isolates_egress_too() {
    for spec in [
        json!({ "podSelector": {}, "policyType": ["Egress"] }),
        json!({ "podSelector": {}, "egress": { "to": [] } }),
        json!({ "podSelector": {}, "egres": [{}] }),
    ] {
        let policy = read(&json!({
            "apiVersion": VERSIONS[1], "kind": KIND, "spec": spec,
            "metadata": { "name": "p", "namespace": "x", "annotations": { POLICY_FOR: "net" } },
        }));
        assert!(!policy.faults.is_empty() && policy.ingress.isolates && policy.egress.isolates, "{policy:?}");
        assert!(policy.egress.rules.is_empty(), "{policy:?}");
    }
}

#[test]
fn network_policy_selector_fits_no_unknown_namespace_labels() {
    let requirement = |operator| Requirement { key: "tenant".to_owned(), operator };
    for operator in [Operator::NotIn(["guest".to_owned()].into()), Operator::DoesNotExist] {
        let selector = LabelSelector { requirements: vec![requirement(operator)] };
        assert!(!selector.fits_namespace("x", None) && selector.fits_namespace("x", Some(&Labels::new())));
    }
    assert!(LabelSelector::default().fits_namespace("x", None));
}

#[test]
fn network_policy_v1beta1_has_end_port() {
    let object = |version: &str| {
        read(&json!({
            "apiVersion": version,
            "kind": KIND,
            "metadata": {"name": "p", "annotations": {POLICY_FOR: "net"}},
            "spec": {"podSelector": {}, "ingress": [{"ports": [{"port": 5000, "endPort": 5900}]}]},
        }))
    };
    let policy = object(VERSIONS[0]);
    assert_eq!(policy.faults, []);
    assert_eq!(policy.ingress.rules[0].ports[0].ports, Ports::Range(5000, 5900));
    assert_eq!(policy, object(VERSIONS[1]));
}

#[test]
fn network_policy_for_with_invalid_names_denies_on_readable() {
    for (text, networks, words) in [
        ("br;mv", "x/br x/mv", "the policy denies on x/br, x/mv"),
        ("br mv", "x/br x/mv", "the policy denies on x/br, x/mv"),
        ("br|y/mv", "x/br y/mv", "the policy denies on x/br, y/mv"),
        ("br\nmv\t", "x/br x/mv", "denies on"),
        ("br，mv", "x/br x/mv", "denies on"),
        ("[\"br\", \"mv\"]", "x/br x/mv", "denies on x/br"),
        ("Br", "x/br", "network \"Br\" contains \"B\""),
        ("-br-", "x/br", "denies on x/br"),
        ("y/br/mv", "br/mv x/br x/mv x/y y/br", "denies on"),
        ("br,,mv", "x/br x/mv", "network \"\" is empty: the policy applies to no network by it"),
        ("br, MV!", "x/br x/mv", "denies on x/mv"),
        (";;", "", "the policy applies to no network by it"),
        ("é", "", "the policy applies to no network by it"),
    ] {
        let policy = read(&json!({
            "apiVersion": VERSIONS[1], "kind": KIND,
            "metadata": {"namespace": "x", "name": "p", "annotations": {POLICY_FOR: text}},
            "spec": {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{}]},
        }));
        let named: Vec<String> = policy.networks.iter().map(ToString::to_string).collect();
        assert_eq!(named.join(" "), networks, "{text:?}");
        assert!(policy.ingress.isolates && policy.ingress.rules.is_empty(), "{text:?}");
        let faults: Vec<String> = policy.faults.iter().map(ToString::to_string).collect();
        assert!(faults.iter().any(|fault| fault.contains(words)), "{text:?}: {faults:?}");
    }
}

#[test]
fn network_policy_plan_form_is_bounded_and_survives_json() {
    let matrix = Matrix::new();
    let attachments: Vec<PodAttachment<'_>> = matrix.0.iter().map(Member::attachment).collect();
    let spec = json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}], "ports": [{"port": 80}]},
        {"from": [{"ipBlock": {"cidr": "10.0.0.0/24", "except": ["10.0.0.9/32"]}}]}]});
    let policies = [policy("p", spec)];
    let compiled = compile(&policies, &attachments[0], &resolve_all(&policies, &attachments)).unwrap();
    let text = serde_json::to_string(&compiled).unwrap();
    assert_eq!(serde_json::from_str::<AttachmentPolicy>(&text).unwrap(), compiled, "{text}");
    assert_eq!(compiled.sets["x/p:ingress:0"].len(), 6);
    let rules: Vec<Value> = (0..RULES_MAX).map(|_| json!({})).collect();
    let many: Vec<NetworkPolicy> =
        (0..5).map(|n| policy(&format!("p{n}"), json!({"podSelector": {}, "ingress": rules}))).collect();
    let refused = compile(&many, &attachments[0], &BTreeMap::new());
    assert_eq!(refused, Err(CompileError::Rules { direction: Direction::Ingress }));
}

#[test]
fn network_policy_without_addresses_allows_blocks_and_no_pod() {
    let matrix = Matrix::new();
    let own = matrix.0[0].attachment();
    let [block, pods] = [json!({"ipBlock": {"cidr": "10.0.3.0/24"}}), json!({"namespaceSelector": {}})];
    let spec = json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [block, pods]}],
        "egress": [{"to": [block, pods]}, {"ports": [{"port": "serve-80"}]}]});
    let compiled = compile(&[policy("p", spec)], &own, &BTreeMap::new()).unwrap();
    for direction in Direction::ALL {
        let allows = |peer: &str| compiled.allows(direction, peer.parse().unwrap(), Protocol::Tcp, 80);
        assert!(allows("10.0.3.1") && !allows("10.0.2.1"), "{direction}: {compiled:?}");
    }
}

#[test]
fn network_policy_addresses_are_those_of_each_rule_and_port() {
    let mut matrix = Matrix::new();
    matrix.0[4].ports.insert("serve-80".to_owned(), (Protocol::Tcp, 8080));
    let attachments: Vec<PodAttachment<'_>> = matrix.0.iter().map(Member::attachment).collect();
    let spec = json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"],
        "ingress": [{}, {"from": [{"podSelector": pod("b")}], "ports": [{"port": "serve-80"}]}],
        "egress": [{"to": [{"namespaceSelector": namespace("y")}], "ports": [{"port": "serve-80"}]}]});
    let shown = |policy: &NetworkPolicy| -> Vec<String> {
        let addresses = resolve(policy, &attachments);
        let all = addresses.sets().map(|(set, addresses)| {
            let PeerSet { direction, rule, port } = set;
            format!("{direction} {rule} {:?} {}", port.map(|(_, number)| number), addresses.len())
        });
        all.collect()
    };
    let both = policy("p", spec.clone());
    assert_eq!(shown(&both), ["ingress 1 None 2", "egress 0 Some(80) 4", "egress 0 Some(8080) 2"]);
    let mut one = spec;
    one["policyTypes"] = json!(["Ingress"]);
    assert_eq!(shown(&policy("p", one)), ["ingress 1 None 2"], "rules of a direction that is not isolated");
    assert_eq!(shown(&policy_in("x", "p", "x/other", json!({"podSelector": {}}))), [""; 0]);
}

#[test]
fn network_policy_with_too_many_peers_or_ranges_denies() {
    let rules = |count: usize, peers: &[Value]| {
        let rules: Vec<Value> = (0..count).map(|_| json!({ "from": peers })).collect();
        read(&json!({ "apiVersion": VERSIONS[1], "kind": KIND,
            "metadata": {"namespace": "x", "name": "p", "annotations": {POLICY_FOR: "net"}},
            "spec": {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": rules} }))
    };
    let selectors = vec![json!({"podSelector": {}}); PEERS_MAX];
    let most = rules(POLICY_PEERS_MAX / PEERS_MAX, &selectors);
    assert_eq!((most.faults.as_slice(), most.ingress.rules.len()), (&[][..], POLICY_PEERS_MAX / PEERS_MAX));
    let more = rules(POLICY_PEERS_MAX / PEERS_MAX + 1, &selectors);
    let fault = more.faults[0].to_string();
    assert!(fault.contains("spec") && fault.contains("has 4352 peers in all rules"), "{fault}");
    assert!(more.ingress.isolates && more.ingress.rules.is_empty(), "{more:?}");
    // Each exception divides a range.
    let except: Vec<String> = (0..EXCEPTIONS_MAX).map(|n| format!("10.0.{n}.1/32")).collect();
    let block = json!({"ipBlock": {"cidr": "10.0.0.0/8", "except": except}});
    assert_eq!(rules(1, std::slice::from_ref(&block)).faults, []);
    let fault = rules(1, &vec![block; POLICY_RANGES_MAX / EXCEPTIONS_MAX]).faults[0].to_string();
    assert!(fault.contains("has 4112 address ranges in all rules"), "{fault}");
}
