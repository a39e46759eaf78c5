//! Tests of every option: default and errors.

use super::*;

fn read(keys: &str) -> Result<NodeConfiguration, Error> {
    read_as(keys, Flavour::Weft)
}

fn read_as(keys: &str, flavour: Flavour) -> Result<NodeConfiguration, Error> {
    let text =
        format!(r#"{{"cniVersion":"1.1.0","name":"net","type":"weft","clusterNetwork":"base"{keys}}}"#);
    NodeConfiguration::read(text.as_bytes(), flavour)
}

#[test]
fn configuration_defaults_of_multus_options_are_those_of_multus() -> Result<(), Error> {
    let node = read("")?;
    assert!(matches!(&node.default_network, DefaultNetwork::Named(Place::Name(name)) if name == "base"));
    assert!(node.default_networks.is_empty());
    assert_eq!(node.system_namespaces, ["kube-system"]);
    assert_eq!(node.multus_namespace, "kube-system");
    assert_eq!(node.isolation, Isolation::Open);
    assert_eq!((node.conf_dir.as_str(), node.bin_dir.as_str()), ("/etc/cni/multus/net.d", "/opt/cni/bin"));
    assert_eq!((node.cni_dir, node.kubeconfig, node.readiness_file), (None, None, None));
    assert_eq!((node.auxiliary_chain, node.manifest_dir, node.pod_resources), (None, None, None));
    assert_eq!(node.agent_socket, "/run/weft/agent.sock");
    assert!(!node.retry_delete_on_error);
    assert_eq!((node.builtin, node.ip_request_policy), (Builtin::Auto, IpRequestPolicy::Result));
    assert_eq!((node.delegate_timeout, node.vif_store), (Duration::from_secs(60), None));
    assert_eq!((node.logging.level, node.logging.to_stderr), (LogLevel::Error, true));
    let Rotation { max_age, max_size, max_backups, compress } = node.logging.rotation;
    assert_eq!((max_age, max_size, max_backups, compress), (5, 100, 5, true));
    Ok(())
}

// Requirements: conflict C3
#[test]
fn configuration_defaults_depend_on_the_name_of_the_program() -> Result<(), Error> {
    let weft = read("")?;
    assert_eq!(weft.invalid_annotation, InvalidAnnotation::Ignore);
    assert_eq!((weft.status.addresses, weft.status.keys), (StatusAddresses::Bare, StatusKeys::Standard));
    let multus = read_as("", Flavour::Multus)?;
    assert_eq!(multus.invalid_annotation, InvalidAnnotation::Fail);
    assert_eq!((multus.status.addresses, multus.status.keys), (StatusAddresses::Bare, StatusKeys::Multus));
    let explicit = read_as(r#","invalidAnnotation":"ignore","statusKeys":"standard""#, Flavour::Multus)?;
    assert_eq!(explicit.invalid_annotation, InvalidAnnotation::Ignore);
    assert_eq!(explicit.status.keys, StatusKeys::Standard);
    Ok(())
}

#[test]
fn configuration_reads_every_option() -> Result<(), Error> {
    let node = read(concat!(
        r#","defaultNetworks":["one","/etc/cni/x.conflist"],"systemNamespaces":["a","b"],"multusNamespace":"net""#,
        r#","namespaceIsolation":true,"globalNamespaces":" default , shared ","confDir":"/c","cniDir":"/j""#,
        r#","binDir":"/b","kubeconfig":"/k","readinessindicatorfile":"/r""#,
        r#","logFile":"/l","logLevel":"debug","logToStderr":false,"logOptions":{"maxAge":1,"maxSize":2,"maxBackups":3,"compress":false}"#,
        r#","retryDeleteOnError":true,"capabilities":{"portMappings":true,"mac":false},"runtimeConfig":{"x":1.0e3}"#,
        r#","builtin":"never","agentSocket":"/s","manifestDir":"/m","invalidAnnotation":"fail","statusAddresses":"cidr""#,
        r#","statusKeys":"multus","ipRequestPolicy":"both","podResources":"/p","vifStore":"kuryrport","delegateTimeout":5,"cni.dev/valid-attachments":[]"#
    ))?;
    assert_eq!(node.default_networks, [Place::Name("one".into()), Place::Path("/etc/cni/x.conflist".into())]);
    assert_eq!(node.system_namespaces, ["a", "b"]);
    assert_eq!(node.multus_namespace, "net");
    assert_eq!(node.isolation, Isolation::Isolated { global: vec!["default".into(), "shared".into()] });
    assert_eq!((node.conf_dir.as_str(), node.bin_dir.as_str()), ("/c", "/b"));
    assert_eq!((node.cni_dir.as_deref(), node.kubeconfig.as_deref()), (Some("/j"), Some("/k")));
    assert_eq!(node.readiness_file.as_deref(), Some("/r"));
    assert_eq!((node.logging.file.as_deref(), node.logging.level), (Some("/l"), LogLevel::Debug));
    assert!(!node.logging.to_stderr && !node.logging.rotation.compress);
    assert_eq!((node.logging.rotation.max_age, node.logging.rotation.max_size), (1, 2));
    assert_eq!(node.logging.rotation.max_backups, 3);
    assert!(node.retry_delete_on_error);
    assert_eq!(node.capabilities.iter().map(String::as_str).collect::<Vec<_>>(), ["portMappings"]);
    assert_eq!(node.runtime_config.to_json(), r#"{"x":1.0e3}"#);
    assert_eq!((node.builtin, node.agent_socket.as_str()), (Builtin::Never, "/s"));
    assert_eq!((node.manifest_dir.as_deref(), node.pod_resources.as_deref()), (Some("/m"), Some("/p")));
    assert_eq!(node.invalid_annotation, InvalidAnnotation::Fail);
    assert_eq!(node.status, StatusStyle { addresses: StatusAddresses::Cidr, keys: StatusKeys::Multus });
    assert_eq!((node.ip_request_policy, node.delegate_timeout.as_secs()), (IpRequestPolicy::Both, 5));
    assert_eq!(node.vif_store, Some(VifStore::KuryrPort));
    assert!(node.warnings.is_empty());
    Ok(())
}

#[test]
fn isolation_allows_the_default_namespace_by_default() -> Result<(), Error> {
    for keys in [r#","namespaceIsolation":true"#, r#","namespaceIsolation":true,"globalNamespaces":"""#] {
        assert_eq!(read(keys)?.isolation, Isolation::Isolated { global: vec!["default".into()] });
    }
    let other = read(r#","namespaceIsolation":true,"globalNamespaces":"shared""#)?;
    assert_eq!(other.isolation, Isolation::Isolated { global: vec!["shared".into()] });
    assert_eq!(read(r#","globalNamespaces":"shared""#)?.isolation, Isolation::Open);
    Ok(())
}

#[test]
fn default_network_is_delegates_or_cluster_network_not_both() -> Result<(), Error> {
    let read = |keys: &str| {
        NodeConfiguration::read(format!(r#"{{"name":"n","type":"weft"{keys}}}"#).as_bytes(), Flavour::Weft)
    };
    let one = r#"{"cniVersion":"1.0.0","name":"a","type":"bridge","big":12345678901234567890123}"#;
    let two = r#"{"name":"b","plugins":[{"type":"x"},{"type":"y"}]}"#;
    let node = read(&format!(r#","delegates":[{one},{two}]"#))?;
    let DefaultNetwork::Written { first, others } = node.default_network else { panic!("named") };
    assert_eq!((first.name.as_str(), others[0].name.as_str()), ("a", "b"));
    assert_eq!(first.plugins[0].to_json(), one);

    let both = read(&format!(r#","delegates":[{one}],"clusterNetwork":"x""#)).unwrap_err();
    assert!(both.code == 7 && both.msg.contains("clusterNetwork: \"x\""), "{both}");
    let none = read("").unwrap_err();
    assert!(none.msg.contains("clusterNetwork: missing"), "{none}");
    assert!(read(r#","delegates":[]"#).is_err());
    assert!(read(r#","delegates":{}"#).unwrap_err().msg.contains("expected a list"));
    assert_eq!(read(r#","delegates":[null]"#).unwrap_err().code, 6);
    assert!(read(r#","delegates":[{"name":"n"}]"#).unwrap_err().msg.starts_with("delegates[0]"));
    Ok(())
}

#[test]
fn cluster_network_of_multus_takes_precedence_over_delegates() -> Result<(), Error> {
    let delegates = r#","delegates":[{"name":"a","type":"bridge"}]"#;
    let node = read_as(delegates, Flavour::Multus)?;
    assert!(matches!(&node.default_network, DefaultNetwork::Named(Place::Name(name)) if name == "base"));
    let [warning] = node.warnings.as_slice() else { panic!("{:?}", node.warnings) };
    assert!(warning.fault.to_string().contains("delegates: is ignored"), "{}", warning.fault);
    assert!(read_as(r#","delegates":[]"#, Flavour::Multus)?.warnings.is_empty());
    Ok(())
}

#[test]
fn system_namespaces_empty_list_exempts_no_namespace() -> Result<(), Error> {
    for empty in [r#","systemNamespaces":[]"#, r#","systemNamespaces":[""]"#] {
        assert!(read(empty)?.system_namespaces.is_empty(), "{empty}");
    }
    assert_eq!(read(r#","systemNamespaces":null"#)?.system_namespaces, ["kube-system"]);
    assert_eq!(read(r#","systemNamespaces":["","a"]"#)?.system_namespaces, ["a"]);
    Ok(())
}

#[test]
fn log_level_is_read_in_any_case() -> Result<(), Error> {
    assert_eq!(read(r#","logLevel":"Debug""#)?.logging.level, LogLevel::Debug);
    assert_eq!(read(r#","logLevel":"VERBOSE""#)?.logging.level, LogLevel::Verbose);
    Ok(())
}

#[test]
fn log_level_unknown_to_multus_is_one_warning() -> Result<(), Error> {
    for level in ["trace", "info", "loud"] {
        let multus = read_as(&format!(r#","logLevel":"{level}""#), Flavour::Multus)?;
        assert_eq!((multus.logging.level, multus.warnings.len()), (LogLevel::Error, 1), "{level}");
        assert!(multus.warnings[0].fault.to_string().contains(level), "{}", multus.warnings[0].fault);
    }
    assert!(read_as(r#","logLevel":"DEBUG""#, Flavour::Multus)?.warnings.is_empty());
    Ok(())
}

#[test]
fn unknown_key_is_refused_with_a_hint_and_a_warning_for_multus() -> Result<(), Error> {
    let error = read(r#","clusterNetwrok":"x""#).unwrap_err();
    assert_eq!(error.code, 7);
    assert!(error.msg.contains("clusterNetwrok") && error.msg.contains("clusterNetwork?"), "{error}");
    let multus = read_as(r#","clusterNetwrok":"x","socketDir":"/run""#, Flavour::Multus)?;
    let keys: Vec<String> = multus.warnings.iter().map(|w| w.fault.path.to_string()).collect();
    assert_eq!(keys, ["clusterNetwrok", "socketDir"]);
    assert!(multus.warnings[0].fault.hint.contains("clusterNetwork"));
    Ok(())
}

#[test]
fn invalid_option_error_names_key_and_value() {
    for (keys, key, value) in [
        (r#","builtin":"sometimes""#, "builtin", "sometimes"),
        (r#","ipRequestPolicy":"strict""#, "ipRequestPolicy", "strict"),
        (r#","statusAddresses":"CIDR""#, "statusAddresses", "CIDR"),
        (r#","delegateTimeout":0"#, "delegateTimeout", "0"),
        (r#","delegateTimeout":3601"#, "delegateTimeout", "3601"),
        (r#","delegateTimeout":"60s""#, "delegateTimeout", "60s"),
        (r#","confDir":"etc/cni""#, "confDir", "etc/cni"),
        (r#","defaultNetworks":["../x"]"#, "defaultNetworks[0]", "../x"),
        (r#","defaultNetworks":["a b"]"#, "defaultNetworks[0]", "a b"),
        (r#","multusNamespace":"Kube""#, "multusNamespace", "Kube"),
        (r#","namespaceIsolation":true,"globalNamespaces":"a,B""#, "globalNamespaces", "B"),
        (r#","namespaceIsolation":"yes""#, "namespaceIsolation", "yes"),
        (r#","runtimeConfig":[]"#, "runtimeConfig", "[]"),
        (r#","auxiliaryCNIChainName":"../up""#, "auxiliaryCNIChainName", "../up"),
        (r#","auxiliaryCNIChainName":"aux""#, "auxiliaryCNIChainName", "aux"),
        (r#","logLevel":"loud""#, "logLevel", "loud"),
    ] {
        let error = read(keys).unwrap_err();
        assert!(error.code == 7 && error.msg.contains(key) && error.msg.contains(value), "{keys}: {error}");
    }
    assert!(read(r#","ipRequestPolicy":"reslut""#).unwrap_err().msg.contains("did you mean result?"));
    assert_eq!(NodeConfiguration::read(b"[]", Flavour::Weft).unwrap_err().code, 6);
    let version = br#"{"cniVersion":"9.9.9","name":"n","clusterNetwork":"x"}"#;
    assert_eq!(NodeConfiguration::read(version, Flavour::Weft).unwrap_err().code, 1);
}

#[test]
fn disk_places_are_conf_dir_and_every_configured_path() -> Result<(), Error> {
    let text = r#"{"name":"n","clusterNetwork":"/etc/cni/net.d/10-base.conflist","defaultNetworks":["x","/d"],"auxiliaryCNIChainName":"aux"}"#;
    let node = NodeConfiguration::read(text.as_bytes(), Flavour::Weft)?;
    let paths: Vec<Place> =
        ["/etc/cni/multus/net.d", "/etc/cni/net.d/10-base.conflist", "/d", "/etc/cni/net.d/aux"]
            .iter()
            .map(|path| Place::Path((*path).to_owned()))
            .collect();
    assert_eq!(node.places(), paths);
    assert_eq!((node.auxiliary_chain.as_deref(), node.version), (Some("aux"), Version::V0_1_0));
    Ok(())
}
