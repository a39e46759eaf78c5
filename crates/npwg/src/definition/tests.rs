//! Tests of the four rules and the added name.

use super::*;

fn definition(config: SpecConfig) -> Definition {
    Definition { namespace: "ns".into(), name: "net-a".into(), config, ..Definition::default() }
}

fn text(config: &str) -> SpecConfig {
    SpecConfig::Text(config.to_owned())
}

fn on_disk(path: &str, config: &str) -> OnDisk {
    let network = Network::parse(config.as_bytes(), path).unwrap();
    OnDisk { path: path.to_owned(), form: Form::of(path).unwrap(), network }
}

fn disk(files: &[(&str, &str)]) -> Disk {
    let networks = files.iter().map(|(path, config)| on_disk(path, config)).collect();
    Disk { networks, unreadable: Vec::new() }
}

fn resolved(config: SpecConfig, disk: &Disk) -> Resolved {
    resolve(&definition(config), disk, "/d").unwrap()
}

fn refused(config: SpecConfig) -> Fault {
    match resolve(&definition(config), &Disk::default(), "/d") {
        Err(Refusal::AttachmentFailed(fault)) => *fault,
        other => panic!("{other:?}"),
    }
}

const LIST: &str = r#"{"cniVersion":"1.0.0","name":"net-a","plugins":[{"type":"from-list"}]}"#;
const SINGLE: &str = r#"{"cniVersion":"1.0.0","name":"net-a","type":"from-single"}"#;

// Requirements: NPWG1-3.4.1-rule1
#[test]
fn spec_config_is_used_before_files_on_disk() {
    let on_disk = disk(&[("/d/10.conflist", LIST), ("/d/20.conf", SINGLE)]);
    let config = r#"{ "cniVersion":"0.3.1", "name":"own", "plugins":[ {"type":"inline", "n": 1.0e3} ] }"#;
    let found = resolved(text(config), &on_disk);
    assert_eq!(found.origin, Origin::Definition);
    assert_eq!(found.network.bytes(), config.as_bytes());
    // An invalid config fails; the disk is not tried.
    let wrong = resolve(&definition(text("{")), &on_disk, "/d").unwrap_err();
    assert_eq!(wrong.fault().rule, Rule::MalformedConfig);
    assert_eq!(wrong.fault().path.to_string(), "spec.config");
}

// Requirements: NPWG1-3.4.1-rule2, NPWG1-3.4.1-rule3
#[test]
fn disk_conflist_is_preferred_to_single_configuration() {
    let both = disk(&[("/d/00-first.conf", SINGLE), ("/d/99-last.conflist", LIST)]);
    assert_eq!(resolved(SpecConfig::Absent, &both).origin, Origin::List("/d/99-last.conflist".into()));
    let single = disk(&[("/d/00-first.conf", SINGLE)]);
    assert_eq!(resolved(SpecConfig::Absent, &single).origin, Origin::Single("/d/00-first.conf".into()));
    let other = disk(&[("/d/a.json", r#"{"name":"other","type":"x"}"#), ("/d/b.json", SINGLE)]);
    assert_eq!(resolved(SpecConfig::Absent, &other).origin, Origin::Single("/d/b.json".into()));
    for (path, form) in [
        ("a.conflist", Some(Form::List)),
        ("a.configlist", Some(Form::List)),
        ("a.conf", Some(Form::Single)),
        ("a.config", Some(Form::Single)),
        ("a.json", Some(Form::Single)),
        ("a.conf.bak", None),
        ("conf", None),
    ] {
        assert_eq!(Form::of(path), form, "{path}");
    }
}

// Requirements: NPWG1-3.4.1-rule4
#[test]
fn definition_without_network_fails_and_is_named() {
    let fault = refused(SpecConfig::Absent);
    assert_eq!(fault.rule, Rule::ConfigNotFound);
    assert_eq!(fault.subject, "network-attachment-definition ns/net-a");
    let disk = Disk { networks: Vec::new(), unreadable: vec!["/d/x.conf: not JSON".into()] };
    let refusal = resolve(&definition(SpecConfig::Absent), &disk, "/d").unwrap_err();
    assert!(refusal.to_string().contains("/d/x.conf: not JSON"), "{refusal}");
}

// Requirements: NPWG1-3.2-2
#[test]
fn definition_without_spec_resolves_by_name() {
    let found = resolved(SpecConfig::Absent, &disk(&[("/d/a.conflist", LIST)]));
    assert_eq!(found.network.name.as_str(), "net-a");
}

// Requirements: NPWG1-3.2-5
#[test]
fn spec_config_can_be_one_plugin_a_list_or_minimal() {
    let types = |config: &str| -> Vec<String> {
        let network = resolved(text(config), &Disk::default()).network;
        network.plugins.iter().map(|plugin| plugin_type(plugin).unwrap().to_string()).collect()
    };
    assert_eq!(types(r#"{"cniVersion":"0.3.0","name":"a","type":"bridge"}"#), ["bridge"]);
    assert_eq!(
        types(r#"{"cniVersion":"0.3.0","name":"a","plugins":[{"type":"b"},{"type":"c"}]}"#),
        ["b", "c"]
    );
    assert_eq!(types(r#"{"cniVersion":"0.3.0","type":"awesome-plugin"}"#), ["awesome-plugin"]);
}

// Requirements: NPWG1-3.2-3, NPWG1-3.4.2-1
#[test]
fn spec_config_name_is_added_if_missing() {
    let name = |config: &str| resolved(text(config), &Disk::default()).network.name.to_string();
    assert_eq!(name(r#"{"cniVersion":"0.3.0","type":"x"}"#), "net-a");
    assert_eq!(name(r#"{"cniVersion":"0.3.0","name":"","type":"x"}"#), "net-a");
    assert_eq!(name(r#"{"cniVersion":"0.3.0","name":null,"type":"x"}"#), "net-a");
    assert_eq!(name(r#"{"cniVersion":"0.3.0","plugins":[{"type":"x"}]}"#), "net-a");
    assert_eq!(name(r#"{"cniVersion":"0.3.0","name":"other","type":"x"}"#), "other");
    assert_eq!(name(r#"{"cniVersion":"0.3.0","Name":"folded","type":"x"}"#), "folded");
}

// Requirements: NPWG1-3.4.2-1
#[test]
fn spec_config_bytes_are_kept_when_the_name_is_added() {
    let config =
        r#"{"cniVersion":"0.3.0","type":"x","big":12345678901234567890123,"f":1.0e3,"o":{ "z":1, "a":2 }}"#;
    let network = resolved(text(config), &Disk::default()).network;
    assert_eq!(
        network.plugins[0].to_json(),
        r#"{"cniVersion":"0.3.0","type":"x","big":12345678901234567890123,"f":1.0e3,"o":{ "z":1, "a":2 },"name":"net-a"}"#
    );
}

// Requirements: NPWG1-3.4.3-1
#[test]
fn spec_config_name_can_differ_from_the_definition() {
    let found = resolved(text(r#"{"name":"something-else","type":"x"}"#), &Disk::default());
    assert_eq!(found.network.name.as_str(), "something-else");
}

// Requirements: NPWG1-3.1-2
#[test]
fn spec_config_as_yaml_map_is_refused_with_a_suggestion() {
    let fault = refused(SpecConfig::Structured(r#"{"type":"bridge"}"#.into()));
    assert_eq!(fault.rule, Rule::ConfigNotAString);
    assert!(fault.hint.contains("config: |"), "{fault}");
}

// Requirements: conflict C17
#[test]
fn spec_config_empty_counts_as_absent() {
    let on_disk = disk(&[("/d/a.conflist", LIST)]);
    for blank in ["", "  ", "\n\t"] {
        assert!(matches!(resolved(text(blank), &on_disk).origin, Origin::List(_)), "{blank:?}");
    }
}

// Requirements: M27
#[test]
fn spec_config_unknown_fields_are_kept() {
    let config = r#"{"name":"a","cniVersion":"0.3.1","log_level":"info","kubernetes":{"kubeconfig":"/k"},"plugins":[{"type":"calico"}]}"#;
    assert_eq!(resolved(text(config), &Disk::default()).network.bytes(), config.as_bytes());
}

// Requirements: M29
#[test]
fn spec_config_without_plugins_is_refused() {
    for bad in [
        r#"{"name":"a","plugins":[]}"#,
        r#"{"name":"a","plugins":[null]}"#,
        r#"{"name":"a","plugins":null}"#,
        r#"{"name":"a"}"#,
        "null",
        "[]",
    ] {
        assert_eq!(refused(text(bad)).rule, Rule::MalformedConfig, "{bad}");
    }
}

#[test]
fn meta_plugin_in_a_definition_is_refused() {
    for name in META_PLUGINS {
        let fault =
            refused(text(&format!(r#"{{"name":"a","plugins":[{{"type":"x"}},{{"type":"{name}"}}]}}"#)));
        assert_eq!(
            (fault.rule, fault.path.to_string().as_str()),
            (Rule::RecursiveNetwork, "plugins[1].type")
        );
        // As an IPAM plugin the meta-plugin would read `binDir`, `cniDir` and other options from the definition.
        for written in [
            format!(r#"{{"name":"a","type":"x","binDir":"/tmp","ipam":{{"type":"{name}"}}}}"#),
            format!(r#"{{"name":"a","plugins":[{{"type":"x","IPAM":{{"Type":"{name}"}}}}]}}"#),
        ] {
            let fault = refused(text(&written));
            let path = fault.path.to_string();
            assert_eq!((fault.rule, path.as_str()), (Rule::RecursiveNetwork, "plugins[0].ipam.type"));
        }
    }
}

#[test]
fn disk_path_is_a_file_or_the_first_of_a_directory() {
    let disk = disk(&[("/d/a.conf", SINGLE), ("/d/b.conflist", LIST), ("/d/sub/c.conflist", LIST)]);
    let at = |path: &str| disk.at(path).map(|on| on.path.as_str());
    assert_eq!(at("/d/b.conflist"), Some("/d/b.conflist"));
    assert_eq!(
        (at("/d"), at("/d/"), at("/d/sub")),
        (Some("/d/a.conf"), Some("/d/a.conf"), Some("/d/sub/c.conflist"))
    );
    assert_eq!(at("/elsewhere"), None);
}

#[test]
fn disk_file_loaded_twice_counts_once() {
    let network = || Network::parse(br#"{"cniVersion":"1.0.0","name":"a","type":"x"}"#, "a").unwrap();
    let loaded = || load::Directory {
        networks: vec![("/d/a.conf".into(), network()), ("/d/a.conflist".into(), network())],
        faults: vec![("/d/b.conf".into(), Error::config("no"))],
    };
    let mut disk = Disk::default();
    disk.add(loaded());
    disk.add(load::Directory { faults: Vec::new(), ..loaded() });
    let forms: Vec<Form> = disk.networks.iter().map(|on| on.form).collect();
    assert_eq!(forms, [Form::Single, Form::List]);
    assert_eq!(disk.unreadable, ["/d/b.conf: no"]);
}
