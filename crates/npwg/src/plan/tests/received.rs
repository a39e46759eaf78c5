//! Tests of the validation of a plan that another process made.

use super::*;

#[test]
fn received_plan_of_another_sandbox_or_file_is_refused() {
    let world = devices::sriov("device");
    let plan = serde_json::to_value(world.plan()).unwrap();
    let sandbox =
        Sandbox { container: ContainerId::new("c1").unwrap(), ifname: IfName::new("eth0").unwrap() };
    let pod = PodIdentity { namespace: "home".into(), name: "web".into(), uid: String::new() };
    let expect = |plan: &Value| {
        let plan: Plan = serde_json::from_value(plan.clone()).unwrap();
        plan.expect_for(&sandbox, &pod)
    };
    expect(&plan).unwrap();
    assert!(plan.pointer("/delegates/1/deviceInfo/copyFrom").is_some(), "{plan:#}");
    for (pointer, value) in [
        ("/version", json!(2)),
        ("/container", json!("c2")),
        ("/pod/name", json!("other")),
        ("/pod/namespace", json!("other")),
        ("/delegates", json!([])),
        ("/delegates/0/role", json!("selected")),
        ("/delegates/1/role", json!("default")),
        ("/delegates/0/ifname", json!("eth1")),
        ("/delegates/1/ifname", json!("eth0")),
        ("/delegates/1/config", json!(format!("{{\"a\":\"{}\"}}", "x".repeat(2 << 20)))),
        ("/delegates/1/config", json!("[".repeat(500))),
        ("/delegates/1/config", json!(r#"{"cniVersion":"1.0.0","name":"a","type":"weft"}"#)),
        ("/delegates/1/config", json!(r#"{"name":"a","type":"x","ipam":{"type":"weft-cni"}}"#)),
        ("/delegates/1/config", json!(r#"{"name":"a","plugins":[]}"#)),
        ("/delegates/1/defaultRoute", json!({ "yield": { "to": 2, "families": "both" } })),
        ("/delegates/1/deviceInfo/path", json!("/etc/cron.d/x")),
        ("/delegates/1/deviceInfo/path", json!("/var/run/k8s.cni.cncf.io/devinfo/cni/home-device-c2_net1")),
        ("/delegates/1/deviceInfo/copyFrom", json!("/etc/shadow")),
        ("/delegates/1/deviceInfo/copyFrom", json!("/var/run/k8s.cni.cncf.io/devinfo/dp/../../../shadow")),
        ("/delegates/1/deviceInfo/copyFrom", json!("/var/run/k8s.cni.cncf.io/devinfo/dp/..")),
        ("/delegates/1/deviceInfo/copyFrom", json!("/var/run/k8s.cni.cncf.io/devinfo/dp/")),
    ] {
        let mut hostile = plan.clone();
        *hostile.pointer_mut(pointer).unwrap() = value;
        let error = expect(&hostile).unwrap_err();
        let field = pointer.rsplit('/').next().unwrap();
        assert!(error.code == 6 && error.msg.contains(field), "{pointer}: {error}");
        assert!(error.msg.len() < 1000, "{pointer}: {} bytes", error.msg.len());
    }
}
