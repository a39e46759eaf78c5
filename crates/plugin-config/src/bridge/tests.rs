//! Tests of the configuration, without a kernel.

use super::*;

fn check(json: &str) -> Result<Network, Error> {
    let conf: Conf = cni::fold::from_slice(json.as_bytes(), "test")?;
    Network::check(conf, "", json.contains("ipam"))
}

#[test]
fn bridge_defaults_are_the_reference_plugins() -> Result<(), Error> {
    let network = check("{}")?;
    assert_eq!((network.bridge.as_str(), network.gateway), ("cni0", Gateway::None));
    assert_eq!((network.mtu, network.interface), (None, ContainerInterface::Layer2));
    assert!(network.vlans.is_none() && network.masquerade.is_none());
    Ok(())
}

#[test]
fn bridge_is_default_gateway_implies_is_gateway() -> Result<(), Error> {
    assert_eq!(check(r#"{"isDefaultGateway":true}"#)?.gateway, Gateway::Default);
    assert_eq!(check(r#"{"isGateway":true}"#)?.gateway, Gateway::Bridge);
    Ok(())
}

#[test]
fn bridge_invalid_values_are_reported_by_field_and_value() {
    let cases = [
        (r#"{"hairpinMode":true,"promiscMode":true}"#, "promiscMode: true"),
        (r#"{"ipam":{},"disableContainerInterface":true}"#, "disableContainerInterface: true"),
        (r#"{"vlan":4095}"#, "vlan: 4095"),
        (r#"{"vlan":-1}"#, "vlan: -1"),
        (r#"{"vlanTrunk":[{"id":0}]}"#, "vlanTrunk[0].id: 0"),
        (r#"{"vlanTrunk":[{"minID":5}]}"#, "vlanTrunk[0].maxID: missing"),
        (r#"{"vlanTrunk":[{},{"maxID":5}]}"#, "vlanTrunk[1].minID: missing"),
        (r#"{"vlanTrunk":[{"minID":9,"maxID":5}]}"#, "vlanTrunk[0].minID: 9"),
        (r#"{"mtu":20}"#, "mtu: 20"),
        (r#"{"mtu":"big"}"#, "mtu: \"big\""),
        (r#"{"bridge":"a/b"}"#, "bridge: \"a/b\""),
        (r#"{"bridge":"sixteen-bytes-long"}"#, "bridge: "),
        (r#"{"ipMasqBackend":"ebtables"}"#, "ipMasqBackend: \"ebtables\""),
        (r#"{"runtimeConfig":{"mac":"x"}}"#, "runtimeConfig.mac: \"x\""),
        (r#"{"args":{"cni":{"mac":"02:00:00:00:00:00:00:01"}}}"#, "args.cni.mac: "),
    ];
    for (json, expected) in cases {
        let error = check(json).map(|_| ()).unwrap_err();
        assert_eq!(error.code, 7, "{json}");
        assert!(error.msg.contains(expected), "{json}: {error}");
    }
}

#[test]
fn bridge_mac_of_the_runtime_overrides_args_and_cni_args() -> Result<(), Error> {
    let read = |json: &str, args: &str| {
        let conf: Conf = cni::fold::from_slice(json.as_bytes(), "test")?;
        Ok::<_, Error>(Network::check(conf, args, false)?.mac.map(|mac| mac[5]))
    };
    let environment = "MAC=02:00:00:00:00:03";
    let args = r#"{"args":{"cni":{"mac":"02:00:00:00:00:02"}}}"#;
    let both = r#"{"args":{"cni":{"mac":"02:00:00:00:00:02"}},"runtimeConfig":{"mac":"02:00:00:00:00:01"}}"#;
    assert_eq!(read(both, environment)?, Some(1));
    assert_eq!(read(args, environment)?, Some(2));
    assert_eq!(read("{}", environment)?, Some(3));
    assert_eq!(read("{}", "")?, None);
    Ok(())
}

#[test]
fn vlan_trunk_ranges_and_single_ids_are_one_sorted_set() -> Result<(), Error> {
    let conf = r#"{"vlanTrunk":[{"minID":10,"maxID":12},{"id":11},{"id":3}]}"#;
    assert!(format!("{:?}", check(conf)?.vlans).contains("[3, 10, 11, 12]"));
    Ok(())
}
