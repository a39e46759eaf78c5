//! Tests of the allocation of devices.

use super::*;

pub(super) fn sriov(networks: &str) -> World {
    let mut world = World::new().networks(networks);
    world.resource("home/device", "intel.com/sriov");
    world.device("intel.com/sriov", "0000:01:00.1");
    world.device("intel.com/sriov", "0000:01:00.2");
    world
}

#[test]
fn device_id_is_in_plugin_config_and_runtime_config() {
    let plan = sriov("device").plan();
    let delegate = &plan.delegates[1];
    for plugin in config(delegate)["plugins"].as_array().unwrap() {
        assert_eq!(
            (&plugin["deviceID"], &plugin["pciBusID"]),
            (&json!("0000:01:00.1"), &json!("0000:01:00.1"))
        );
    }
    assert_eq!(delegate.runtime_config.text("deviceID").unwrap().as_deref(), Some("0000:01:00.1"));
}

// Requirements: DI-1, DI-2, DI-3
#[test]
fn device_info_file_is_passed_to_the_plugins() {
    let plan = sriov("device").plan();
    let path = "/var/run/k8s.cni.cncf.io/devinfo/cni/home-device-c1_net1";
    let from = "/var/run/k8s.cni.cncf.io/devinfo/dp/intel.com-sriov-0000:01:00.1-device.json";
    let file = DeviceInfoFile { copy_from: Some(from.into()), path: path.into() };
    assert_eq!(plan.delegates[1].device_info, Some(file));
    assert_eq!(plan.delegates[1].runtime_config.text("CNIDeviceInfoFile").unwrap().as_deref(), Some(path));
    // DI-3: a plugin that declares the capability may write device information without a device.
    let without = World::new().networks("device,plain").plan();
    let path = "/var/run/k8s.cni.cncf.io/devinfo/cni/home-device-c1_net1".to_owned();
    assert_eq!(without.delegates[1].device_info, Some(DeviceInfoFile { copy_from: None, path }));
    assert_eq!(without.delegates[2].device_info, None);
}

// Requirements: M15
#[test]
fn device_is_allocated_to_one_network_only() {
    let mut world = sriov("device,device");
    let ids = |world: &World| -> Vec<String> {
        let plan = world.plan();
        let ids = plan.delegates.iter().filter_map(|d| d.runtime_config.text("deviceID").unwrap());
        ids.collect()
    };
    assert_eq!(ids(&world), ["0000:01:00.1", "0000:01:00.2"]);
    world = World { pod: world.pod, ..sriov("device") }.default_network("home/device").networks("device");
    assert_eq!(ids(&world), ["0000:01:00.1", "0000:01:00.2"]);
    let third = world.networks("device,device").fails();
    assert!(third.reason.contains("one more device of intel.com/sriov than the 2"), "{third}");
}

#[test]
fn device_missing_fails_the_plan() {
    let mut world = World::new().networks("device");
    world.resource("home/device", "intel.com/sriov");
    let fault = world.fails();
    assert!(fault.to_string().contains("intel.com/sriov") && fault.hint.contains("resources"), "{fault}");
    assert!(fault.reason.contains("none is allocated to the pod"), "{fault}");
}

#[test]
fn device_resource_that_only_marks_nodes_needs_no_device() {
    let marker = "bridge.network.kubevirt.io/br1";
    let world = |config: &str, networks: &str| {
        let mut world = World::new().networks(networks);
        world.define("home/device", config);
        world.resource("home/device", marker);
        world
    };
    for plugin in [
        r#"{"type":"cnv-bridge","bridge":"br1"}"#,
        r#"{"type":"bridge","bridge":"br1","capabilities":{"mac":true,"deviceID":false}}"#,
        r#"{"type":"host-device","device":"eth5"}"#,
    ] {
        let config =
            format!(r#"{{"cniVersion":"0.3.1","name":"device","plugins":[{plugin},{{"type":"tuning"}}]}}"#);
        let plan = world(&config, "device").plan();
        let delegate = &plan.delegates[1];
        assert_eq!((delegate.device(), self::config(delegate)["plugins"][0].get("deviceID")), (None, None));
        assert!(delegate.because.iter().any(|decision| decision.why.contains(marker)), "{plugin}");
    }
    for plugin in [
        r#"{"type":"sriov"}"#,
        r#"{"type":"macvtap","mtu":1500}"#,
        r#"{"type":"host-device"}"#,
        r#"{"type":"bridge","capabilities":{"deviceID":true}}"#,
    ] {
        let config = format!(r#"{{"cniVersion":"0.3.1","name":"device","plugins":[{plugin}]}}"#);
        assert_eq!(world(&config, "device").fails().rule, Rule::MissingDevice, "{plugin}");
    }
    let config = r#"{"cniVersion":"0.3.1","name":"device","type":"bridge"}"#;
    let asked = world(config, r#"[{"name":"device","deviceID":"x"}]"#).fails();
    assert_eq!(asked.rule, Rule::DeviceNotAllocated);
}

// Requirements: conflict C10
#[test]
fn device_id_request_must_be_allocated_to_the_pod() {
    let plan = sriov(r#"[{"name":"device","deviceID":"0000:01:00.2"},{"name":"device"}]"#).plan();
    let id = |i: usize| plan.delegates[i].runtime_config.text("deviceID").unwrap();
    assert_eq!((id(1).as_deref(), id(2).as_deref()), (Some("0000:01:00.2"), Some("0000:01:00.1")));
    let fault = sriov(r#"[{"name":"device","deviceID":"0000:09:00.9"}]"#).fails();
    assert_eq!((fault.rule, fault.path.to_string().as_str()), (Rule::DeviceNotAllocated, "[0].deviceID"));
}

// Requirements: conflict C10
#[test]
fn device_id_request_without_a_resource_is_refused() {
    for world in [
        World::new().networks(r#"[{"name":"device","deviceID":"0000:00:1f.6"}]"#),
        World::new().default_network(r#"[{"name":"device","namespace":"home","deviceID":"0000:00:1f.6"}]"#),
    ] {
        let fault = world.fails();
        assert_eq!((fault.rule, fault.path.to_string().as_str()), (Rule::DeviceNotAllocated, "[0].deviceID"));
        assert!(fault.reason.contains("home/device has no resource"), "{fault}");
    }
    // An empty id is not a request.
    assert_eq!(
        World::new().networks(r#"[{"name":"device","deviceID":""}]"#).plan().delegates[1].device(),
        None
    );
}

#[test]
fn resource_name_of_an_element_selects_the_device() {
    let ask = |world: World, resource: &str| {
        world.networks(&format!(r#"[{{"name":"device","resourceName":"{resource}"}}]"#))
    };
    let mut world = World::new();
    world.device("intel.com/sriov", "0000:01:00.1");
    world.device("nvidia.com/vf", "0000:02:00.1");
    world = ask(world, "nvidia.com/vf");
    let plan = world.plan();
    assert_eq!(plan.delegates[1].device().as_deref(), Some("0000:02:00.1"));
    let asked = plan.delegates[1].asked.as_ref().unwrap();
    assert_eq!(asked["resourceName"], "nvidia.com/vf", "a changed resource changes the attachment");
    let wanted = resources(&world.pod, &world.configuration(), world.definitions.values());
    assert_eq!(wanted.into_iter().collect::<Vec<_>>(), ["nvidia.com/vf"]);
    // The same name as that of the definition, or another one.
    world.resource("home/device", "nvidia.com/vf");
    assert_eq!(world.plan().delegates[1].device().as_deref(), Some("0000:02:00.1"));
    let fault = ask(world, "intel.com/sriov").fails();
    assert_eq!((fault.rule, fault.path.to_string().as_str()), (Rule::ResourceNotAllowed, "[0].resourceName"));
    assert!(fault.to_string().contains("home/device has resource nvidia.com/vf"), "{fault}");
}

#[test]
fn resource_name_of_an_element_is_limited_by_the_definition() {
    let key = crate::metadata::ALLOWED_RESOURCE_NAMES;
    for (allowed, is_allowed) in
        [("intel.com/sriov, nvidia.com/vf", true), ("intel.com/sriov", false), ("", false)]
    {
        let mut world = World::new().networks(r#"[{"name":"device","resourceName":"nvidia.com/vf"}]"#);
        world.device("nvidia.com/vf", "0000:02:00.1");
        let reference = NetworkReference::new("home", "device");
        world.definitions.get_mut(&reference).unwrap().annotations.insert(key.into(), allowed.into());
        match world.try_plan() {
            Ok(plan) => assert!(is_allowed && plan.delegates[1].device().is_some(), "{allowed}"),
            Err(refusal) => {
                assert!(
                    !is_allowed && refusal.fault().rule == Rule::ResourceNotAllowed,
                    "{allowed}: {refusal}"
                );
            }
        }
    }
}
