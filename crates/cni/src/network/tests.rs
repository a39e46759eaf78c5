//! Tests for lists and single configurations.

use super::*;

fn read(text: &str) -> Result<Network, Error> {
    Network::parse(text.as_bytes(), "net.conflist")
}

fn list(extra: &str) -> Result<Network, Error> {
    read(&format!(r#"{{"cniVersion":"1.1.0","name":"n","plugins":[{{"type":"a"}}]{extra}}}"#))
}

// Requirements: S8
#[test]
fn network_list_has_name_version_and_plugins() -> Result<(), Error> {
    let text = r#"{ "cniVersion": "0.4.0", "name": "dbnet", "plugins": [ {"type": "bridge", "x": 1.0e3}, {"type":"tuning"} ] }"#;
    let network = read(text)?;
    assert_eq!((network.name.as_str(), network.version), ("dbnet", Version::V0_4_0));
    let types: Vec<String> = network.plugins.iter().map(|p| plugin_type(p).unwrap().to_string()).collect();
    assert_eq!(types, ["bridge", "tuning"]);
    assert_eq!(network.bytes(), text.as_bytes());
    assert_eq!(network.plugins[0].to_json(), r#"{"type":"bridge","x":1.0e3}"#);
    Ok(())
}

// Requirements: S3, S22, L10
#[test]
fn network_single_configuration_becomes_a_list() -> Result<(), Error> {
    let network = read(r#"{"cniVersion":"0.1.0","name":"old","type":"bridge","big":12345678901234567890}"#)?;
    assert_eq!(network.version, Version::V0_1_0);
    assert_eq!(
        String::from_utf8_lossy(network.bytes()),
        r#"{"cniVersion":"0.1.0","name":"old","plugins":[{"cniVersion":"0.1.0","name":"old","type":"bridge","big":12345678901234567890}]}"#
    );
    let again = Network::parse(network.bytes(), "again")?;
    assert_eq!(again.plugins, network.plugins);
    Ok(())
}

// Requirements: L10
#[test]
fn network_without_plugins_is_refused_unless_open() -> Result<(), Error> {
    assert_eq!(read(r#"{"cniVersion":"1.0.0","name":"n","plugins":[]}"#).unwrap_err().code, 7);
    let open = r#"{"cniVersion":"1.0.0","name":"n"}"#;
    assert_eq!(read(open).unwrap_err().code, 7);
    assert!(Network::parse_open(open.as_bytes(), "open")?.plugins.is_empty());
    let closed = r#"{"cniVersion":"1.0.0","name":"n","loadOnlyInlinedPlugins":true}"#;
    let error = Network::parse_open(closed.as_bytes(), "closed").unwrap_err();
    assert!(error.msg.contains("loadOnlyInlinedPlugins"), "{error}");
    Ok(())
}

// Requirements: S24
#[test]
fn network_parse_checks_names_and_types() {
    for (text, what) in [
        (r#"{"name":"a/b","plugins":[{"type":"x"}]}"#, "a/b"),
        (r#"{"plugins":[{"type":"x"}]}"#, "missing network name"),
        (r#"{"name":"n","plugins":[{"type":"x"},{"type":"../y"}]}"#, "plugins[1]: type"),
        (r#"{"name":"n","plugins":[{}]}"#, "missing plugin type"),
        (r#"{"name":"n","plugins":{"type":"x"}}"#, "expected a list"),
        (r#"{"name":"n","plugins":null}"#, "expected a list"),
        (r#"{"name":"n","plugins":[{"type":"x","capabilities":{"mac":"yes"}}]}"#, "capabilities.mac"),
        (r#"{"name":7,"plugins":[{"type":"x"}]}"#, "name: 7"),
    ] {
        let error = read(text).unwrap_err();
        assert!(error.code == 7 && error.msg.starts_with("net.conflist: "), "{text}: {error}");
        assert!(error.msg.contains(what), "{text}: {error}");
    }
    assert_eq!(read(r#"{"name":"n","plugins":["x"]}"#).unwrap_err().code, 6);
    assert_eq!(read("[]").unwrap_err().code, 6);
}

// Requirements: trap 3, S16, S38, S39
#[test]
fn network_booleans_can_be_strings() -> Result<(), Error> {
    type Field = fn(&Network) -> bool;
    let fields: [(&str, Field); 3] = [
        ("disableCheck", |n| n.disable_check),
        ("disableGC", |n| n.disable_gc),
        ("loadOnlyInlinedPlugins", |n| n.load_only_inlined_plugins),
    ];
    for (key, field) in fields {
        assert!(!field(&list("")?));
        for yes in ["true", "\"true\"", "\"TRUE\"", "\"True\""] {
            assert!(field(&list(&format!(r#","{key}":{yes}"#))?), "{key} {yes}");
        }
        for no in ["false", "\"False\"", "null"] {
            assert!(!field(&list(&format!(r#","{key}":{no}"#))?), "{key} {no}");
        }
        for bad in ["\"yes\"", "1", "\"\"", "{}", "\"1\""] {
            let error = list(&format!(r#","{key}":{bad}"#)).unwrap_err();
            assert!(error.code == 7 && error.msg.contains(key) && error.msg.contains(bad), "{error}");
        }
    }
    Ok(())
}

// Requirements: S34, L10
#[test]
fn network_version_is_the_highest_supported() -> Result<(), Error> {
    let version =
        |keys: &str| read(&format!(r#"{{{keys}"name":"n","plugins":[{{"type":"a"}}]}}"#)).map(|n| n.version);
    assert_eq!(version(r#""cniVersion":"0.3.1","cniVersions":["1.0.0","0.4.0"],"#)?, Version::V1_0_0);
    assert_eq!(version(r#""cniVersion":"1.1.0","cniVersions":["0.4.0"],"#)?, Version::V1_1_0);
    assert_eq!(version(r#""cniVersions":["0.4.0","0.3.1"],"#)?, Version::V0_4_0);
    assert_eq!(version(r#""cniVersions":["0.4.0","2.0.0","1.2.0"],"#)?, Version::V0_4_0);
    assert_eq!(version(r#""cniVersion":"9.0.0","cniVersions":["0.4.0"],"#)?, Version::V0_4_0);
    assert_eq!(version("")?, Version::V0_1_0);
    assert_eq!(version(r#""cniVersion":"","cniVersions":[],"#)?, Version::V0_1_0);

    let error = version(r#""cniVersion":"9.0.0","cniVersions":["2.0.0"],"#).unwrap_err();
    assert!(error.code == 1 && error.details.contains("9.0.0, 2.0.0"), "{error}");
    for bad in [r#""cniVersions":["0.4.0","new"],"#, r#""cniVersion":"x","#, r#""cniVersions":[""],"#] {
        assert_eq!(version(bad).unwrap_err().code, 7, "{bad}");
    }
    Ok(())
}

// Requirements: S27
#[test]
fn network_capabilities_are_those_declared_true() -> Result<(), Error> {
    let network = read(
        r#"{"name":"n","plugins":[{"type":"a","capabilities":{"mac":true,"ips":false}},{"type":"b","Capabilities":{"portMappings":true}},{"type":"c"}]}"#,
    )?;
    let all: Vec<String> = network.capabilities()?.into_iter().collect();
    assert_eq!(all, ["mac", "portMappings"]);
    Ok(())
}

// Requirements: S1
#[test]
fn network_needs_lists_plugins_and_ipam() -> Result<(), Error> {
    let network = read(
        r#"{"name":"n","plugins":[{"type":"bridge","ipam":{"type":"host-local"}},{"type":"macvlan","ipam":{"Type":"host-local"}},{"type":"bridge","ipam":{}}]}"#,
    )?;
    let needs: Vec<String> = network.needs()?.iter().map(ToString::to_string).collect();
    assert_eq!(needs, ["bridge", "host-local", "macvlan"]);
    let evil = read(r#"{"name":"n","type":"bridge","ipam":{"type":"../x"}}"#)?;
    assert_eq!(evil.needs().unwrap_err().code, 7);
    let foreign = read(
        r#"{"name":"n","plugins":[{"type":"acme","ipam":{"type":["a"]}},{"type":"bridge","ipam":{"type":"dhcp"}}]}"#,
    )?;
    let needs = foreign.needs_where(|plugin| plugin.as_str() == "bridge")?;
    assert_eq!(needs.iter().map(ToString::to_string).collect::<Vec<_>>(), ["acme", "bridge", "dhcp"]);
    Ok(())
}

#[test]
fn network_of_an_object_keeps_its_keys() -> Result<(), Error> {
    let mut object =
        Object::parse(br#"{"cniVersion":"1.0.0","type":"macvlan","big":12345678901234567890}"#, "nad")?;
    object.set("name", "filled")?;
    let network = Network::from_object(object)?;
    assert_eq!(network.name.as_str(), "filled");
    assert!(String::from_utf8_lossy(network.bytes()).contains("12345678901234567890"));
    assert_eq!(Network::from_object(Object::default()).unwrap_err().code, 7);
    Ok(())
}
