//! Tests of desired endpoints, for different Service requests and pod states.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::services::service_objects::ServiceSpec;

fn request(networks: &str, selector: Option<&str>, spec: Value) -> NetworkRequest {
    let mut spec: ServiceSpec = serde_json::from_value(spec).unwrap();
    if spec.cluster_ip.is_empty() {
        "None".clone_into(&mut spec.cluster_ip);
    }
    NetworkRequest { networks: networks.to_owned(), selector: selector.map(str::to_owned), spec }
}

fn service() -> Service {
    Service { namespace: "n".into(), name: "web".into(), uid: "s".into(), request: None }
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

/// Returns family, ports and addresses of each group.
fn listed(request: &NetworkRequest, pods: Vec<Backend>) -> Vec<(&'static str, Vec<i32>, Vec<String>)> {
    let pods: Vec<_> = pods.into_iter().map(Arc::new).collect();
    let groups = groups(&service(), request, &pods, ENDPOINTS_MAX).expect("a valid request");
    let listed = groups.into_iter().map(|Group { family, ports, endpoints }| {
        let addresses = endpoints.iter().map(|endpoint| endpoint.addresses[0].clone()).collect();
        (family, ports.iter().map(|port| port.port).collect(), addresses)
    });
    listed.collect()
}

#[test]
fn service_endpoints_are_those_of_the_networks_by_family() {
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
        listed(&request("a", Some("app=web"), ports.clone()), pods()),
        [
            ("IPv4", vec![80], vec!["10.0.0.1".into(), "10.0.0.2".into(), "10.0.0.3".into()]),
            ("IPv6", vec![80], vec!["fd00::1".into()])
        ]
    );
    let both = request(" a , o/b", Some("app=web"), json!({ "ipFamilies": ["IPv4"] }));
    assert_eq!(
        listed(&both, pods()),
        [("IPv4", vec![], vec!["10.0.0.1".into(), "10.1.0.1".into(), "10.0.0.2".into(), "10.0.0.3".into()])]
    );
    assert_eq!(listed(&request("x", Some("app=web"), ports), pods()), []);
}

#[test]
fn service_named_target_port_is_resolved_for_each_pod() {
    let mut second = pod("b", &[("n/a", "10.0.0.2")]);
    second.ports[0].2 = 9090;
    let mut without = pod("c", &[("n/a", "10.0.0.3")]);
    without.ports.clear();
    let spec = json!({ "ports": [
        { "name": "web", "port": 80, "targetPort": "http", "protocol": "TCP" }, { "name": "x", "port": 7, "targetPort": 0 } ] });
    let pods = vec![pod("a", &[("n/a", "10.0.0.1")]), second, without];
    assert_eq!(
        listed(&request("a", Some("app=web"), spec), pods),
        [
            ("IPv4", vec![8080, 7], vec!["10.0.0.1".to_owned()]),
            ("IPv4", vec![9090, 7], vec!["10.0.0.2".to_owned()]),
            ("IPv4", vec![7], vec!["10.0.0.3".to_owned()])
        ]
    );
}

#[test]
fn service_endpoint_conditions_are_those_of_kubernetes() {
    let endpoint_of = |pod: Backend, spec: Value| {
        let groups =
            groups(&service(), &request("a", Some("app=web"), spec), &[Arc::new(pod)], ENDPOINTS_MAX)
                .unwrap();
        groups[0].endpoints[0].clone()
    };
    let conditions = |ready, terminating, spec: Value| {
        let pod = Backend { ready, terminating, ..pod("a", &[("n/a", "10.0.0.1")]) };
        let Conditions { ready, serving, terminating } = endpoint_of(pod, spec).conditions;
        [ready, serving, terminating].map(|condition| condition.unwrap())
    };
    assert_eq!(conditions(true, false, json!({})), [true, true, false]);
    assert_eq!(conditions(false, false, json!({})), [false, false, false]);
    assert_eq!(conditions(true, true, json!({})), [false, true, true]);
    let publish = json!({ "publishNotReadyAddresses": true });
    assert_eq!(conditions(false, true, publish), [true, false, true]);
    for (subdomain, hostname) in [("web", Some("web-0")), ("other", None), ("", None)] {
        let mut pod = pod("a", &[("n/a", "10.0.0.1")]);
        (pod.hostname, pod.subdomain) = ("web-0".into(), subdomain.into());
        assert_eq!(endpoint_of(pod, json!({})).hostname.as_deref(), hostname, "{subdomain}");
    }
}

#[test]
fn service_refusal_names_key_value_and_next_step() {
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
        ("a", Some("=b"), json!({}), ["\"=b\"", "not a label"]),
        ("", Some("app=web"), json!({}), [SERVICE_NETWORK, "NAMESPACE/NAME"]),
        ("a,,b", Some("app=web"), json!({}), ["\"\"", "NAMESPACE/NAME"]),
        ("A", Some("app=web"), json!({}), ["\"A\"", "NAMESPACE/NAME"]),
        ("x/y/z", Some("app=web"), json!({}), ["\"x/y/z\"", "NAMESPACE/NAME"]),
    ] {
        let refused = groups(&service(), &request(networks, selector, spec), &[], ENDPOINTS_MAX)
            .expect_err(networks)
            .to_string();
        for word in words {
            assert!(refused.contains(word), "{refused}: {word}");
        }
    }
}

proptest! {
    #[test]
    fn service_annotations_of_any_text_are_bounded(networks in ".{0,200}", selector in proptest::option::of(".{0,200}")) {
        let pods = [Arc::new(pod("a", &[("n/a", "10.0.0.1")]))];
        if let Err(refused) = groups(&service(), &request(&networks, selector.as_deref(), json!({})), &pods, ENDPOINTS_MAX) {
            prop_assert!(refused.to_string().len() < 1024, "{}", refused);
        }
    }
}

#[test]
fn service_endpoints_of_a_namespace_are_limited() {
    let pods: Vec<Arc<Backend>> =
        (0..3).map(|n| Arc::new(pod("a", &[("n/a", &format!("10.0.0.{n}"))]))).collect();
    let request = request("a", Some("app=web"), json!({}));
    assert_eq!(groups(&service(), &request, &pods, 3).unwrap()[0].endpoints.len(), 3);
    let refused = groups(&service(), &request, &pods, 2).unwrap_err().to_string();
    assert!(refused.contains("the Services of namespace n have more than 32768 addresses"), "{refused}");
    assert!(groups(&service(), &request, &[], 0).is_ok(), "nothing is selected");
}
