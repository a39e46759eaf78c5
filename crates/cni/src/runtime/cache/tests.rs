//! Tests for the cache files, which must be the same as libcni's.

use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::runtime::rig::{Rig, network, object};

fn cache(rig: &Rig) -> Cache {
    Cache::new(&rig.directory().join("cache"))
}

fn file(rig: &Rig) -> PathBuf {
    rig.directory().join("cache/results/net-c1-eth0")
}

fn put(rig: &Rig, content: &str) {
    let file = file(rig);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, content).unwrap();
}

fn result(text: &str) -> Attached {
    Attached::read(text.as_bytes(), Version::V1_0_0).unwrap()
}

/// Entry that libcni 1.3 wrote for the same attachment, byte for byte.
const GO: &str = concat!(
    r#"{"kind":"cniCacheV1","containerId":"c1","config":"eyJjbmlWZXJzaW9uIjoiMS4wLjAiLCJuYW1lIjoibmV0IiwicGx1Z2lucyI6W3sidHlwZSI6Im9uZSJ9XX0=","#,
    r#""ifName":"eth0","networkName":"net","netns":"/run/netns/blue","cniArgs":[["IgnoreUnknown","1"],["A","b"]],"#,
    r#""capabilityArgs":{"mac":"c2:11:22:33:44:55"},"result":{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.5/16"}]}}"#
);

// Requirements: L5
#[test]
fn cache_entry_equals_that_of_libcni() -> Result<(), Error> {
    let rig = Rig::new();
    let mut parameters = rig.parameters();
    parameters.capability_args = object(r#"{"mac":"c2:11:22:33:44:55"}"#);
    let attached = result(r#"{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.5/16"}]}"#);
    cache(&rig).write(&network("1.0.0", &["one"]), &parameters, &attached)?;
    assert_eq!(fs::read_to_string(file(&rig)).unwrap(), GO);

    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&file(&rig)), 0o600);
    assert_eq!(mode(&rig.directory().join("cache/results")), 0o700);
    assert_eq!(mode(&rig.directory().join("cache")), 0o700);
    let left: Vec<_> = fs::read_dir(rig.directory().join("cache/results")).unwrap().collect();
    assert_eq!(left.len(), 1, "a temporary file is left behind");
    Ok(())
}

// Requirements: L5
#[test]
fn cache_entry_omits_empty_fields() -> Result<(), Error> {
    let rig = Rig::new();
    let mut parameters = rig.parameters();
    parameters.args.clear();
    parameters.netns.clear();
    cache(&rig).write(&network("1.0.0", &["one"]), &parameters, &result("{}"))?;
    let written = fs::read_to_string(file(&rig)).unwrap();
    for key in ["netns", "cniArgs", "capabilityArgs"] {
        assert!(!written.contains(key), "{written}");
    }
    Ok(())
}

// Requirements: L5
#[test]
fn cache_entry_of_libcni_is_read() -> Result<(), Error> {
    let rig = Rig::new();
    put(&rig, GO);
    let who = rig.parameters().who;
    let name = NetworkName::new("net")?;
    let entry = cache(&rig).entry(&name, &who)?.unwrap();
    assert_eq!(entry.config, br#"{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"one"}]}"#);
    assert_eq!(entry.parameters.args, "IgnoreUnknown=1;A=b");
    assert_eq!(entry.parameters.netns, "/run/netns/blue");
    assert_eq!(entry.parameters.capability_args.to_json(), r#"{"mac":"c2:11:22:33:44:55"}"#);
    // The result is read in the requested version, not in the ADD's.
    let attached = cache(&rig).result(&name, &who, Version::V0_4_0)?.unwrap();
    assert_eq!(
        attached.raw.get(),
        r#"{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.1.0.5/16"}],"dns":{}}"#
    );
    // Go writes an empty value as null.
    put(
        &rig,
        r#"{"kind":"cniCacheV1","containerId":"c1","config":null,"ifName":"eth0","networkName":"net","capabilityArgs":null}"#,
    );
    assert!(cache(&rig).entry(&name, &who)?.unwrap().config.is_empty());
    assert!(cache(&rig).result(&name, &who, Version::V1_0_0)?.is_none());
    Ok(())
}

// Requirements: L5
#[test]
fn cache_bare_result_of_an_old_libcni_is_read() -> Result<(), Error> {
    let rig = Rig::new();
    let who = rig.parameters().who;
    let name = NetworkName::new("net")?;
    put(&rig, r#"{"cniVersion":"0.3.1","ips":[{"version":"4","address":"10.1.0.5/16"}],"dns":{}}"#);
    let attached = cache(&rig).result(&name, &who, Version::V1_0_0)?.unwrap();
    assert_eq!(attached.raw.get(), r#"{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.5/16"}]}"#);
    put(&rig, r#"{"ip4":{"ip":"10.1.0.5/16"}}"#);
    let attached = cache(&rig).result(&name, &who, Version::V1_0_0)?.unwrap();
    assert_eq!(attached.success.ips.len(), 1);
    // A bare result has no parameters.
    assert!(cache(&rig).entry(&name, &who).is_err());
    Ok(())
}

// Requirements: L6
#[test]
fn cache_unreadable_is_absent_and_invalid_an_error() -> Result<(), Error> {
    let rig = Rig::new();
    let who = rig.parameters().who;
    let name = NetworkName::new("net")?;
    assert!(cache(&rig).result(&name, &who, Version::V1_0_0)?.is_none());
    for broken in ["", "{", "\0\0\0", r#"{"kind":"cniCacheV1","result":{"ips":[{"address":"x"}]}}"#] {
        put(&rig, broken);
        assert!(cache(&rig).result(&name, &who, Version::V1_0_0).is_err(), "{broken:?}");
    }
    fs::remove_file(file(&rig)).unwrap();
    fs::create_dir(file(&rig)).unwrap();
    assert!(cache(&rig).result(&name, &who, Version::V1_0_0)?.is_none());
    Ok(())
}

// Requirements: L9
#[test]
fn cache_attachments_are_listed_by_content() -> Result<(), Error> {
    let rig = Rig::new();
    let cache = cache(&rig);
    assert!(cache.attachments(None)?.is_empty());
    let mut parameters = rig.parameters();
    for (container, ifname) in [("c2", "eth0"), ("c1", "net1"), ("c1", "eth0"), ("a-c1-b", "eth0")] {
        parameters.who = Attachment { container: ContainerId::new(container)?, ifname: IfName::new(ifname)? };
        cache.write(&network("1.0.0", &["one"]), &parameters, &result("{}"))?;
    }
    let results = rig.directory().join("cache/results");
    for (name, content) in [
        ("net-c1-junk", "{"),
        ("net-c1-kind", r#"{"kind":"other","containerId":"c1","ifName":"x","networkName":"net"}"#),
        (
            "net-c1-noname",
            r#"{"kind":"cniCacheV1","containerId":"c1","config":"","ifName":"","networkName":"net"}"#,
        ),
        (
            "net-c1-evil",
            r#"{"kind":"cniCacheV1","containerId":"../c1","config":"","ifName":"x","networkName":"net"}"#,
        ),
        (".net-c1-eth9.new", GO),
    ] {
        fs::write(results.join(name), content).unwrap();
    }
    let list = |container: Option<&str>| -> Result<Vec<String>, Error> {
        let container = container.map(ContainerId::new).transpose()?;
        let entries = cache.attachments(container.as_ref())?;
        Ok(entries
            .iter()
            .map(|e| format!("{}/{}", e.parameters.who.container, e.parameters.who.ifname))
            .collect())
    };
    assert_eq!(list(None)?, ["a-c1-b/eth0", "c1/eth0", "c1/net1", "c2/eth0"]);
    assert_eq!(list(Some("c1"))?, ["c1/eth0", "c1/net1"]);
    assert!(list(Some("c3"))?.is_empty());
    Ok(())
}

// Requirements: S31
#[test]
fn cache_entry_is_replaced_and_removed() -> Result<(), Error> {
    let rig = Rig::new();
    let (cache, parameters) = (cache(&rig), rig.parameters());
    let name = NetworkName::new("net")?;
    // A crash left this behind.
    fs::create_dir_all(rig.directory().join("cache/results")).unwrap();
    let draft = rig.directory().join("cache/results/.net-c1-eth0.new");
    fs::write(&draft, "half").unwrap();
    for address in ["10.1.0.5/16", "10.1.0.6/16"] {
        let attached = result(&format!(r#"{{"ips":[{{"address":"{address}"}}]}}"#));
        cache.write(&network("1.0.0", &["one"]), &parameters, &attached)?;
        let kept = cache.result(&name, &parameters.who, Version::V1_0_0)?.unwrap();
        assert_eq!(kept.success.ips[0].address.to_string(), address);
        assert!(!draft.exists());
    }
    for _ in 0..2 {
        cache.remove(&name, &parameters.who)?;
        assert!(!file(&rig).exists());
    }
    Ok(())
}

#[test]
fn cache_write_failure_leaves_no_file() {
    let rig = Rig::new();
    // Root can write anywhere, but not where a file takes the directory's place.
    fs::write(rig.directory().join("cache"), "").unwrap();
    let error = cache(&rig).write(&network("1.0.0", &["one"]), &rig.parameters(), &result("{}")).unwrap_err();
    assert!(error.code == 5 && error.msg.contains("net-c1-eth0"), "{error}");
}
