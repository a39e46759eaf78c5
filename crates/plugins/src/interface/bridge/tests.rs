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
fn bridge_default_route_without_gateway_gets_the_gateway() -> Result<(), Error> {
    let value = serde_json::json!({
        "ips": [{"address": "10.1.0.5/24"}, {"address": "2001:db8::5/64", "gateway": "2001:db8::ff"}],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "10.9.0.0/16", "gw": "10.1.0.9"}],
    });
    let (_, mut result) = Success::from_value(&value, cni::Version::V1_0_0)?;
    let gateways = choose_gateways(Gateway::Default, &mut result)?;
    let texts: Vec<String> = gateways.iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["10.1.0.1/24", "2001:db8::ff/64"]);
    let routes: Vec<String> =
        result.routes.iter().map(|r| format!("{} {:?}", r.dst, r.gw.map(|gw| gw.to_string()))).collect();
    assert_eq!(
        routes,
        ["0.0.0.0/0 Some(\"10.1.0.1\")", "10.9.0.0/16 Some(\"10.1.0.9\")", "::/0 Some(\"2001:db8::ff\")"]
    );
    Ok(())
}

#[test]
fn bridge_default_route_of_another_table_is_kept() -> Result<(), Error> {
    for (table, routes) in [("254", 1), ("0", 1), ("77", 2)] {
        let value = format!(
            r#"{{"ips":[{{"address":"10.1.0.5/24"}}],"routes":[{{"dst":"0.0.0.0/0","gw":"10.1.0.9","table":{table}}}]}}"#
        );
        let value = serde_json::from_str(&value).map_err(|error| Error::internal(error.to_string()))?;
        let (_, mut result) = Success::from_value(&value, cni::Version::V1_1_0)?;
        choose_gateways(Gateway::Default, &mut result)?;
        assert_eq!(result.routes.len(), routes, "table {table}");
    }
    Ok(())
}

#[test]
fn vlan_trunk_ranges_and_single_ids_are_one_sorted_set() -> Result<(), Error> {
    let conf = r#"{"vlanTrunk":[{"minID":10,"maxID":12},{"id":11},{"id":3}]}"#;
    assert!(format!("{:?}", check(conf)?.vlans).contains("[3, 10, 11, 12]"));
    Ok(())
}
