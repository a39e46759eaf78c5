//! Tests of access to definitions, and of invalid annotations.

use super::*;

// Requirements: NPWG1-7.4-1, NPWG1-7.4-2
#[test]
fn access_denied_fails_the_pod() {
    let isolated = |networks: &str| World::new().networks(networks).node(r#""namespaceIsolation":true"#);
    assert!(isolated("plain,home/capable,default/plain").try_plan().is_ok());
    let fault = isolated("plain,other/plain").fails();
    assert_eq!((fault.rule, fault.path.to_string().as_str()), (Rule::NetworkNotAllowed, "[1]"));
    assert_eq!(fault.value, "\"other/plain\"");
    assert!(isolated("other/plain").node(r#""globalNamespaces":"other""#).try_plan().is_ok());
    assert!(isolated("default/plain").node(r#""globalNamespaces":"other""#).try_plan().is_err());
    let mut world = World::new().networks("plain");
    world
        .access
        .denied
        .insert(NetworkReference::new("home", "plain"), "service account web lacks use".into());
    let fault = world.fails();
    assert_eq!(fault.rule, Rule::NetworkNotAllowed);
    assert!(fault.reason.contains("lacks use"), "{fault}");
}

// Requirements: M14
#[test]
fn isolation_applies_to_the_default_network_annotation() {
    for text in ["other/plain", "plain", r#"[{"name":"plain","namespace":"other"}]"#] {
        let fault = World::new().default_network(text).node(r#""namespaceIsolation":true"#).fails();
        assert_eq!(fault.rule, Rule::NetworkNotAllowed, "{text}");
        assert!(fault.subject.contains("v1.multus-cni.io/default-network"), "{fault}");
    }
    let own = World::new().default_network("home/plain").node(r#""namespaceIsolation":true"#);
    assert_eq!(own.plan().delegates[0].network, "home/plain");
    let mut denied = World::new().default_network("home/plain");
    denied.access.denied.insert(NetworkReference::new("home", "plain"), "no".into());
    assert_eq!(denied.fails().rule, Rule::NetworkNotAllowed);
    // Isolation also applies to a pod of a system namespace.
    let mut system = World::new().default_network("other/plain").node(r#""namespaceIsolation":true"#);
    system.pod.namespace = "kube-system".into();
    assert_eq!(system.fails().rule, Rule::NetworkNotAllowed);
}

#[test]
fn isolation_does_not_apply_to_networks_of_the_administrator() {
    let world = World::new().node(r#""defaultNetworks":["plain"],"namespaceIsolation":true"#);
    assert_eq!(world.plan().delegates[1].network, "kube-system/plain");
}

// Requirements: conflict C3, NPWG1-4.1.2.1.3-2
#[test]
fn invalid_annotation_is_ignored_with_a_warning() {
    let world = || World::new().networks(r#"[{"name":"plain"},{"name":"capable","ips":[]}]"#);
    let plan = world().plan();
    assert_eq!(shape(&plan), pairs(&[("base", "eth0")]));
    assert_eq!(plan.warnings[0].event, Reason::AnnotationIgnored);
    assert_eq!(plan.warnings[0].fault.rule, Rule::InvalidIps);
    let refusal = world().node(r#""invalidAnnotation":"fail""#).try_plan().unwrap_err();
    assert!(matches!(refusal, Refusal::AnnotationInvalid(_)), "{refusal:?}");
    let mut multus = world();
    multus.flavour = Flavour::Multus;
    assert!(matches!(multus.try_plan(), Err(Refusal::AnnotationInvalid(_))));
}

// Requirements: conflict C4
#[test]
fn failing_attachment_is_never_ignored() {
    for text in
        [r#"[{"name":"plain","ips":["1.1.1.1"],"ipam-claim-reference":"c"}]"#, "[null]", "a,,b", "UPPER", "["]
    {
        World::new().networks(text).fails();
    }
}

#[test]
fn invalid_default_network_annotation_keeps_the_node_default() {
    let plan = World::new().default_network(r#"[{"name":"plain","mac":"x"}]"#).networks("plain").plan();
    assert_eq!(shape(&plan), pairs(&[("base", "eth0"), ("home/plain", "net1")]));
    assert_eq!(plan.warnings[0].event, Reason::AnnotationIgnored);
}
