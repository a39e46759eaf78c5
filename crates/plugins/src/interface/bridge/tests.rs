//! Tests of the gateways, without a kernel.

use super::*;

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
