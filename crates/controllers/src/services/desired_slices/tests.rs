//! What a Service should list, by what it says and by what its pods have.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::services::service_objects::ServiceSpec;

fn wish(networks: &str, selector: Option<&str>, spec: Value) -> Wish {
    let mut spec: ServiceSpec = serde_json::from_value(spec).unwrap();
    if spec.cluster_ip.is_empty() {
        "None".clone_into(&mut spec.cluster_ip);
    }
    Wish { networks: networks.to_owned(), selector: selector.map(str::to_owned), spec }
}

fn service() -> Service {
    Service { namespace: "n".into(), name: "web".into(), uid: "s".into(), wish: None }
}

fn pod(name: &str, addresses: &[(&str, &str)]) -> Backend {
    Backend {
        namespace: "n".into(),
        name: name.into(),
        uid: format!("uid-{name}"),
        labels: [("app".to_owned(), "web".to_owned())].into(),
        addresses: addresses
            .iter()
            .map(|(network, ip)| ((*network).to_owned(), ip.parse().unwrap()))
            .collect(),
        node: "w".into(),
        ready: true,
        ports: vec![("http".into(), "TCP".into(), 8080), ("dns".into(), "UDP".into(), 53)],
        ..Backend::default()
    }
}

/// Family, ports and addresses of each group.
fn listed(wish: &Wish, pods: Vec<Backend>) -> Vec<(&'static str, Vec<i32>, Vec<String>)> {
    let pods: Vec<_> = pods.into_iter().map(Arc::new).collect();
    let groups = groups(&service(), wish, &pods).expect("it can be read");
    let listed = groups.into_iter().map(|Group { family, ports, endpoints }| {
        let addresses = endpoints.iter().map(|endpoint| endpoint.addresses[0].clone()).collect();
        (family, ports.iter().map(|port| port.port).collect(), addresses)
    });
    listed.collect()
}

#[test]
fn addresses_of_the_named_networks_are_listed_by_family() {
    let pods = || {
        let mut other = pod("z", &[("n/a", "10.0.0.9")]);
        other.labels.clear();
        vec![
            pod("b", &[("n/a", "10.0.0.2"), ("n/c", "10.2.0.1"), ("n/a", "10.0.0.3")]),
            pod("a", &[("n/a", "10.0.0.1"), ("n/a", "fd00::1"), ("o/b", "10.1.0.1")]),
            other,
        ]
    };
    let ports = json!({ "ports": [{ "port": 80 }] });
    assert_eq!(
        listed(&wish("a", Some("app=web"), ports.clone()), pods()),
        [
            ("IPv4", vec![80], vec!["10.0.0.1".into(), "10.0.0.2".into(), "10.0.0.3".into()]),
            ("IPv6", vec![80], vec!["fd00::1".into()])
        ]
    );
    let both = wish(" a , o/b", Some("app=web"), json!({ "ipFamilies": ["IPv4"] }));
    assert_eq!(
        listed(&both, pods()),
        [("IPv4", vec![], vec!["10.0.0.1".into(), "10.1.0.1".into(), "10.0.0.2".into(), "10.0.0.3".into()])]
    );
    assert_eq!(listed(&wish("x", Some("app=web"), ports), pods()), []);
}

#[test]
fn a_port_may_be_another_one_in_each_pod() {
    let mut second = pod("b", &[("n/a", "10.0.0.2")]);
    second.ports[0].2 = 9090;
    let mut without = pod("c", &[("n/a", "10.0.0.3")]);
    without.ports.clear();
    let spec = json!({ "ports": [
        { "name": "web", "port": 80, "targetPort": "http", "protocol": "TCP" }, { "name": "x", "port": 7, "targetPort": 0 } ] });
    let pods = vec![pod("a", &[("n/a", "10.0.0.1")]), second, without];
    assert_eq!(
        listed(&wish("a", Some("app=web"), spec), pods),
        [
            ("IPv4", vec![8080, 7], vec!["10.0.0.1".to_owned()]),
            ("IPv4", vec![9090, 7], vec!["10.0.0.2".to_owned()]),
            ("IPv4", vec![7], vec!["10.0.0.3".to_owned()])
        ]
    );
}

#[test]
fn what_is_said_of_an_address_is_what_kubernetes_says_of_a_pod() {
    let said = |pod: Backend, spec: Value| {
        let groups = groups(&service(), &wish("a", Some("app=web"), spec), &[Arc::new(pod)]).unwrap();
        groups[0].endpoints[0].clone()
    };
    let conditions = |ready, terminating, spec: Value| {
        let pod = Backend { ready, terminating, ..pod("a", &[("n/a", "10.0.0.1")]) };
        let Conditions { ready, serving, terminating } = said(pod, spec).conditions;
        [ready, serving, terminating].map(|said| said.unwrap())
    };
    assert_eq!(conditions(true, false, json!({})), [true, true, false]);
    assert_eq!(conditions(false, false, json!({})), [false, false, false]);
    assert_eq!(conditions(true, true, json!({})), [false, true, true]);
    let publish = json!({ "publishNotReadyAddresses": true });
    assert_eq!(conditions(false, true, publish), [true, false, true]);
    for (subdomain, hostname) in [("web", Some("web-0")), ("other", None), ("", None)] {
        let mut pod = pod("a", &[("n/a", "10.0.0.1")]);
        (pod.hostname, pod.subdomain) = ("web-0".into(), subdomain.into());
        assert_eq!(said(pod, json!({})).hostname.as_deref(), hostname, "{subdomain}");
    }
}

#[test]
fn what_is_refused_names_the_key_its_value_and_the_cure() {
    for (networks, selector, spec, words) in [
        ("a", Some("app=web"), json!({ "type": "ExternalName" }), ["ExternalName", "spec.clusterIP: None"]),
        (
            "a",
            Some("app=web"),
            json!({ "clusterIP": "10.96.0.7" }),
            ["\"10.96.0.7\"", "spec.clusterIP: None"],
        ),
        ("a", Some("app=web"), json!({ "selector": { "app": "web" } }), ["app=web", SERVICE_SELECTOR]),
        ("a", None, json!({}), [SERVICE_SELECTOR, "KEY=VALUE"]),
        ("a", Some(""), json!({}), ["has no =", "KEY=VALUE"]),
        ("a", Some("app in (a)"), json!({}), ["\"app in (a)\"", "KEY=VALUE"]),
        ("a", Some("a=b,a=c"), json!({}), ["\"a=c\"", "twice"]),
        ("a", Some("=b"), json!({}), ["\"=b\"", "no label"]),
        ("", Some("app=web"), json!({}), [SERVICE_NETWORK, "NAMESPACE/NAME"]),
        ("a,,b", Some("app=web"), json!({}), ["\"\"", "NAMESPACE/NAME"]),
        ("A", Some("app=web"), json!({}), ["\"A\"", "NAMESPACE/NAME"]),
        ("x/y/z", Some("app=web"), json!({}), ["\"x/y/z\"", "NAMESPACE/NAME"]),
    ] {
        let refused =
            groups(&service(), &wish(networks, selector, spec), &[]).expect_err(networks).to_string();
        for word in words {
            assert!(refused.contains(word), "{refused}: {word}");
        }
    }
}

proptest! {
    #[test]
    fn no_text_does_harm(networks in ".{0,200}", selector in proptest::option::of(".{0,200}")) {
        let pods = [Arc::new(pod("a", &[("n/a", "10.0.0.1")]))];
        if let Err(refused) = groups(&service(), &wish(&networks, selector.as_deref(), json!({})), &pods) {
            prop_assert!(refused.to_string().len() < 1024, "{}", refused);
        }
    }
}
