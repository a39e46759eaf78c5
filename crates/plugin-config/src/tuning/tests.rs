//! Tests of the configuration, without a kernel; the allow-list has separate tests.

use cni::config::Config;
use cni::environment::Environment;
use cni::version::Version;

use super::*;

fn read(text: &str, args: &str) -> Result<Settings, Error> {
    let whole = format!(r#"{{"cniVersion":"1.1.0","name":"net",{text}"#);
    let config = Config::read(whole.into_bytes(), Version::ALL)?;
    let call = Call { config, environment: Environment::default() };
    refuse_duplicates(&call)?;
    Settings::check(call.config.decode()?, args, "eth0.5")
}

fn sysctls(text: &str) -> Result<Vec<String>, Error> {
    let settings = read(text, "")?;
    Ok(settings.sysctls.iter().map(|s| format!("{}={}", s.key.as_path(), s.value)).collect())
}

#[test]
fn tuning_empty_values_change_nothing() {
    let settings = read(r#""mac":"","mtu":0,"promisc":false,"sysctl":null,"args":null}"#, "").unwrap();
    assert!(settings.sysctls.is_empty() && !settings.changes_link());
}

#[test]
fn tuning_mac_sources_override_each_other_in_order() {
    let mac = |text: &str, args: &str| read(text, args).unwrap().mac.map(|mac| mac[5]);
    let environment = "MAC=02:00:00:00:00:02;IgnoreUnknown=1;FOO=bar";
    assert_eq!(mac(r#""mac":"02:00:00:00:00:01"}"#, ""), Some(1));
    assert_eq!(mac(r#""mac":"02:00:00:00:00:01"}"#, environment), Some(2));
    let runtime = r#""mac":"x","runtimeConfig":{"Mac":"02:00:00:00:00:03"}}"#;
    assert_eq!(mac(runtime, environment), Some(3));
    let all = r#""mac":"x","runtimeConfig":{"mac":"y"},"args":{"cni":{"mac":"02-00-00-00-00-04"}}}"#;
    assert_eq!(mac(all, environment), Some(4));
    assert_eq!(mac(r#""mac":"x","args":{"cni":{"mac":""}}}"#, environment), None, "it can be taken back");
}

#[test]
fn tuning_args_override_each_value_separately() {
    let text = r#""mtu":1400,"promisc":true,"allmulti":true,"txQLen":500,"sysctl":{"net.core.somaxconn":"1","net.ipv4.ip_forward":"1"},
        "args":{"cni":{"MTU":1300,"promisc":false,"allmulti":false,"txQLen":0,"sysctl":{"net/core/somaxconn":"2"}}}}"#;
    let settings = read(text, "").unwrap();
    let Settings { sysctls: _, mac, promiscuous, mtu, all_multicast, tx_queue_length } = settings;
    assert_eq!(
        (mac, promiscuous, mtu, all_multicast, tx_queue_length),
        (None, false, Some(1300), Some(false), Some(0))
    );
    assert_eq!(sysctls(text).unwrap(), ["net/core/somaxconn=2", "net/ipv4/ip_forward=1"]);
    let only_args = r#""args":{"cni":{"sysctl":{"net.core.somaxconn":"2"}}}}"#;
    assert_eq!(sysctls(only_args).unwrap(), ["net/core/somaxconn=2"], "the reference plugin dies of this");
}

#[test]
fn tuning_sysctl_key_has_two_notations_and_a_placeholder() {
    let text = r#""sysctl":{"net.ipv4.conf.IFNAME.arp_filter":"1","net/ipv4/conf/eth0.7/arp_notify":"1","net.ipv6.conf.eth0/8.accept_ra":"0"}}"#;
    let expected = [
        "net/ipv4/conf/eth0.5/arp_filter=1",
        "net/ipv4/conf/eth0.7/arp_notify=1",
        "net/ipv6/conf/eth0.8/accept_ra=0",
    ];
    assert_eq!(sysctls(text).unwrap(), expected);
    let same = r#""sysctl":{"net.ipv4.conf.IFNAME.arp_filter":"1","net/ipv4/conf/eth0.5/arp_filter":"1"}}"#;
    assert_eq!(sysctls(same).unwrap(), ["net/ipv4/conf/eth0.5/arp_filter=1"]);
}

#[test]
fn tuning_invalid_value_is_reported_by_field_and_value() {
    let cases = [
        (r#""mtu":"1500"}"#, "mtu: \"1500\""),
        (r#""mtu":-1}"#, "mtu: -1"),
        (r#""mtu":67}"#, "mtu: 67"),
        (r#""mtu":65536}"#, "mtu: 65536"),
        (r#""mtu":1e3}"#, "mtu: 1000.0"),
        (r#""promisc":"yes"}"#, "promisc: \"yes\""),
        (r#""allmulti":1}"#, "allmulti: 1"),
        (r#""txQLen":-1}"#, "txQLen: -1"),
        (r#""txQLen":4294967296}"#, "txQLen: 4294967296"),
        (r#""mac":"no"}"#, "mac: \"no\""),
        (r#""mac":5}"#, "mac: 5"),
        (r#""runtimeConfig":{"mac":"no"}}"#, "runtimeConfig.mac: \"no\""),
        (r#""args":{"cni":{"mac":"no"}}}"#, "args.cni.mac: \"no\""),
        (r#""args":{"cni":{"mtu":70000}}}"#, "mtu: 70000"),
        (r#""sysctl":[]}"#, "sysctl: []"),
        (r#""sysctl":{"net.core.somaxconn":1}}"#, "sysctl.net.core.somaxconn: 1"),
        (
            r#""sysctl":{"net.core.somaxconn":"1","net.core.somaxconn":"1"}}"#,
            "sysctl.net.core.somaxconn: \"1\": the key occurs twice",
        ),
        (
            r#""sysctl":{"net.core.somaxconn":"1","net/core/somaxconn":"2"}}"#,
            "is the same parameter net/core/somaxconn",
        ),
        (r#""sysctl":{"":"1"}}"#, "sysctl.: \"1\": not a legal key"),
        (r#""sysctl":{"net":"1"}}"#, "sysctl.net: \"1\": not below net"),
        (r#""sysctl":{"net.":"1"}}"#, "sysctl.net.: \"1\": not a legal key"),
        (r#""sysctl":{"kernel.hostname":"h"}}"#, "sysctl.kernel.hostname: \"h\": not below net"),
        (r#""sysctl":{"network.x":"h"}}"#, "not below net"),
        (r#""sysctl":{"net/../kernel/hostname":"h"}}"#, "not a legal key"),
        (r#""sysctl":{"net.//.//.kernel":"h"}}"#, "not a legal key"),
        (r#""sysctl":{"../../etc/passwd":"h"}}"#, "not a legal key"),
        (r#""sysctl":{"/net/core/somaxconn":"h"}}"#, "not a legal key"),
        (r#""sysctl":{"net.core.a\u0000b":"h"}}"#, "not a legal key"),
        (
            r#""args":{"cni":{"sysctl":{"kernel.hostname":"h"}}}}"#,
            "args.cni: sysctl.kernel.hostname: \"h\": not below net",
        ),
    ];
    for (text, expected) in cases {
        let error = read(text, "").map(|_| ()).unwrap_err();
        assert_eq!(error.code, 7, "{text}: {error}");
        assert!(error.msg.contains(expected), "{text}: {error}");
    }
    assert!(read("\"mac\":\"\"}", "MAC=no").unwrap_err().msg.starts_with("CNI_ARGS MAC: \"no\""));
    assert_eq!(read("\"mac\":\"\"}", "FOO=1").unwrap_err().code, 4);
}

#[test]
fn tuning_data_dir_must_be_an_absolute_path() {
    let directory = |value: &str| {
        let whole = format!(r#"{{"cniVersion":"1.1.0","name":"net","dataDir":{value}}}"#);
        let config = Config::read(whole.into_bytes(), Version::ALL).unwrap();
        data_directory(&Call { config, environment: Environment::default() })
    };
    assert_eq!(directory("\"\"").unwrap(), Path::new("/run/cni/tuning"));
    assert_eq!(directory("\"/x/y\"").unwrap(), Path::new("/x/y"));
    for bad in ["\"x\"", "\"../x\"", "\"/x\\u0000\"", "7"] {
        let error = directory(bad).unwrap_err();
        assert!(error.code == 7 && error.msg.starts_with("dataDir: "), "{error}");
    }
}

#[test]
fn tuning_backup_key_outside_net_is_ignored() {
    assert!(restorable("net/ipv4/conf/eth0.5/arp_filter").is_some());
    for bad in
        ["kernel/hostname", "net/../kernel/hostname", "net.ipv4.ip_forward", "/net/x", "net/", "net", ""]
    {
        assert!(restorable(bad).is_none(), "{bad:?}");
    }
}

#[test]
fn tuning_duplicate_sysctl_key_is_found_among_many() {
    let started = std::time::Instant::now();
    let mut many: Vec<String> = (0..80_000).map(|at| format!("\"{at}\":\"\"")).collect();
    many.push("\"7\":\"other\"".to_owned());
    let error = sysctls(&format!("\"sysctl\":{{{}}}}}", many.join(","))).unwrap_err();
    assert_eq!(error.msg, "sysctl.7: \"other\": the key occurs twice");
    assert!(started.elapsed() < std::time::Duration::from_secs(10), "{:?}", started.elapsed());
}

// Requirements: G6
#[test]
fn sysctl_notation_is_decided_by_the_first_separator() {
    let path = |text: &str| Key::new(text).map(|key| key.as_path().to_owned());
    assert_eq!(path("net.ipv4.ip_forward").as_deref(), Some("net/ipv4/ip_forward"));
    assert_eq!(
        path("net.ipv4.conf.eth0/100.arp_notify").as_deref(),
        Some("net/ipv4/conf/eth0.100/arp_notify")
    );
    assert_eq!(
        path("net/ipv4/conf/eth0.100/arp_notify").as_deref(),
        Some("net/ipv4/conf/eth0.100/arp_notify")
    );
    assert_eq!(path("net..ipv4"), None);
}
