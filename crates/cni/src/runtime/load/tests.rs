//! Tests for configuration directories on a real file system.

use super::*;
use crate::runtime::rig::Rig;

fn write(rig: &Rig, name: &str, content: &str) {
    let file = rig.directory().join(name);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, content).unwrap();
}

fn list(name: &str, plugin: &str) -> String {
    format!(r#"{{"cniVersion":"1.0.0","name":"{name}","plugins":[{{"type":"{plugin}"}}]}}"#)
}

fn single(name: &str, plugin: &str) -> String {
    format!(r#"{{"cniVersion":"0.3.1","name":"{name}","type":"{plugin}"}}"#)
}

fn types(network: &Network) -> Vec<String> {
    network.plugins.iter().map(|plugin| crate::network::plugin_type(plugin).unwrap().to_string()).collect()
}

// Requirements: L10
#[test]
fn load_list_file_precedes_a_single_file() -> Result<(), Error> {
    let rig = Rig::new();
    write(&rig, "10-a.conf", &single("net", "of-conf"));
    write(&rig, "20-b.json", &single("other", "of-json"));
    write(&rig, "90-z.conflist", &list("net", "of-list"));
    write(&rig, "95-z.conflist", &list("net", "of-second-list"));
    for find in [find, find_strictly] {
        assert_eq!(types(&find(rig.directory(), "net")?), ["of-list"]);
        assert_eq!(types(&find(rig.directory(), "other")?), ["of-json"]);
    }
    // The multi-network specification names these extensions, but libcni does not know them.
    write(&rig, "50.configlist", &list("standard", "of-configlist"));
    write(&rig, "50.config", &single("standard-single", "of-config"));
    assert_eq!(types(&find(rig.directory(), "standard")?), ["of-configlist"]);
    assert_eq!(types(&find(rig.directory(), "standard-single")?), ["of-config"]);
    assert!(find_strictly(rig.directory(), "standard").is_err());
    Ok(())
}

// Requirements: L10
#[test]
fn load_invalid_file_hides_no_other_except_strictly() -> Result<(), Error> {
    let rig = Rig::new();
    write(&rig, "00-broken.conflist", "{");
    write(&rig, "01-nameless.conflist", r#"{"plugins":[{"type":"x"}]}"#);
    write(&rig, "02-broken.conf", "[]");
    write(&rig, "10-good.conflist", &list("net", "good"));
    write(&rig, "20-good.conf", &single("one", "good"));
    assert_eq!(types(&find(rig.directory(), "net")?), ["good"]);
    assert_eq!(types(&find(rig.directory(), "one")?), ["good"]);
    assert_eq!(Directory::read(rig.directory())?.faults.len(), 3);

    let error = find_strictly(rig.directory(), "net").unwrap_err();
    assert!(error.code == 6 && error.msg.contains("00-broken.conflist"), "{error}");

    let error = find(rig.directory(), "ghost").unwrap_err();
    assert!(error.msg.starts_with(r#"no net configuration with name "ghost" in "#), "{error}");
    for name in ["00-broken.conflist", "01-nameless.conflist", "02-broken.conf"] {
        assert!(error.details.contains(name), "{}", error.details);
    }
    Ok(())
}

// Requirements: L10
#[test]
fn load_strict_reader_ignores_files_that_sort_later() -> Result<(), Error> {
    let rig = Rig::new();
    write(&rig, "10-good.conflist", &list("net", "good"));
    write(&rig, "90-broken.conflist", "{");
    write(&rig, "00-broken.conf", "{");
    assert_eq!(types(&find_strictly(rig.directory(), "net")?), ["good"]);
    fs::remove_file(rig.directory().join("90-broken.conflist")).unwrap();
    fs::remove_file(rig.directory().join("00-broken.conf")).unwrap();
    write(&rig, "05-nameless.conf", r#"{"type":"x"}"#);
    write(&rig, "06-named.conf", &single("one", "good"));
    assert_eq!(types(&find_strictly(rig.directory(), "one")?), ["good"]);
    write(&rig, "01-list-in-disguise.conf", &list("one", "hidden"));
    assert!(find_strictly(rig.directory(), "one").unwrap_err().msg.contains("missing plugin type"));
    assert_eq!(types(&find(rig.directory(), "one")?), ["hidden"]);
    Ok(())
}

// Requirements: L10
#[test]
fn load_missing_network_error_is_that_of_libcni() -> Result<(), Error> {
    let rig = Rig::new();
    let error = find_strictly(rig.directory(), "net").unwrap_err();
    assert!(error.msg.starts_with("no net configurations found in "), "{error}");
    let error = find_strictly(&rig.directory().join("nowhere"), "net").unwrap_err();
    assert!(error.msg.starts_with("no net configurations found in "), "{error}");
    assert!(Directory::read(&rig.directory().join("nowhere"))?.networks.is_empty());
    write(&rig, "a.conflist", &list("other", "x"));
    let error = find_strictly(rig.directory(), "net").unwrap_err();
    assert!(error.msg.starts_with(r#"no net configuration with name "net" in "#), "{error}");
    Ok(())
}

// Requirements: S39
#[test]
fn load_appends_plugins_of_the_networks_directory() -> Result<(), Error> {
    let rig = Rig::new();
    write(&rig, "net.conflist", &list("net", "inlined"));
    write(&rig, "net/20-second.conf", r#"{"type":"second"}"#);
    write(&rig, "net/10-first.conf", r#"{"type":"first"}"#);
    write(&rig, "net/30-ignored.conflist", "{");
    write(&rig, "net/README", "not a plugin");
    for find in [find, find_strictly] {
        assert_eq!(types(&find(rig.directory(), "net")?), ["inlined", "first", "second"]);
    }
    // A list may consist only of such plugins.
    write(&rig, "net.conflist", r#"{"cniVersion":"1.0.0","name":"net"}"#);
    for find in [find, find_strictly] {
        assert_eq!(types(&find(rig.directory(), "net")?), ["first", "second"]);
    }
    let closed = r#"{"cniVersion":"1.0.0","name":"net","loadOnlyInlinedPlugins":"True","plugins":[{"type":"inlined"}]}"#;
    write(&rig, "net.conflist", closed);
    assert_eq!(types(&find(rig.directory(), "net")?), ["inlined"]);

    write(&rig, "bare.conflist", r#"{"cniVersion":"1.0.0","name":"bare"}"#);
    assert!(find(rig.directory(), "bare").unwrap_err().details.contains("no plugin configs found"));
    write(&rig, "net/15-bad.conf", r#"{"type":"../evil"}"#);
    write(&rig, "net.conflist", &list("net", "inlined"));
    assert!(find(rig.directory(), "net").unwrap_err().details.contains("15-bad.conf"));
    Ok(())
}

// Requirements: S3, S22
#[test]
fn load_single_file_is_read_as_a_list() -> Result<(), Error> {
    let rig = Rig::new();
    write(&rig, "a.conf", &single("net", "bridge"));
    let network = find_strictly(rig.directory(), "net")?;
    assert_eq!(types(&network), ["bridge"]);
    assert!(network.bytes().starts_with(br#"{"cniVersion":"0.3.1","name":"net","plugins":["#));
    Ok(())
}

#[test]
fn load_ignores_other_file_types_and_large_files() -> Result<(), Error> {
    let rig = Rig::new();
    fs::create_dir(rig.directory().join("00-directory.conflist")).unwrap();
    let fifo = rig.directory().join("01-fifo.conflist");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    write(&rig, "02-large.conflist", &" ".repeat(DOCUMENT_MAX + 10));
    std::os::unix::fs::symlink("nowhere", rig.directory().join("03-dangling.conflist")).unwrap();
    write(&rig, "elsewhere/linked", &list("net", "linked"));
    std::os::unix::fs::symlink("elsewhere/linked", rig.directory().join("10-link.conflist")).unwrap();
    let directory = Directory::read(rig.directory())?;
    assert_eq!(directory.find("net").map(types), Some(vec!["linked".to_owned()]));
    assert_eq!(directory.faults.len(), 1);
    Ok(())
}

#[test]
fn load_default_network_is_the_first_file_by_name() -> Result<(), Error> {
    let rig = Rig::new();
    write(&rig, "20-b.conflist", &list("b", "x"));
    write(&rig, "10-a.conf", &single("a", "x"));
    write(&rig, "00-broken.conf", "{");
    let directory = Directory::read(rig.directory())?;
    let (file, network) = directory.first().unwrap();
    assert_eq!((file.file_name().unwrap().to_str(), network.name.as_str()), (Some("10-a.conf"), "a"));
    Ok(())
}

#[test]
fn load_path_is_a_directory_a_file_or_missing() -> Result<(), Error> {
    let rig = Rig::new();
    write(&rig, "a.conf", &single("a", "x"));
    write(&rig, "b.conf", "{");
    let [file, broken] = ["a.conf", "b.conf"].map(|name| rig.directory().join(name));
    assert_eq!(Directory::at(&file)?.networks[0].1.name.as_str(), "a");
    let one = Directory::at(&broken)?;
    assert_eq!((one.networks.len(), one.faults[0].0.as_path()), (0, broken.as_path()));
    let all = Directory::at(rig.directory())?;
    assert_eq!((all.networks.len(), all.faults.len()), (1, 1));
    assert!(Directory::at(&rig.directory().join("nowhere"))?.networks.is_empty());
    Ok(())
}

#[test]
fn load_unreadable_file_makes_the_first_uncertain() -> Result<(), Error> {
    let rig = Rig::new();
    write(&rig, "00-broken.conflist", "{");
    write(&rig, "20-good.conflist", &list("net", "good"));
    // A symbolic link to itself: not even root can read it.
    let unreadable = rig.directory().join("10-loop.conflist");
    std::os::unix::fs::symlink(&unreadable, &unreadable).unwrap();
    let directory = Directory::read(rig.directory())?;
    assert_eq!(directory.unread().map(|(file, error)| (file, error.code)), Some((unreadable.as_path(), 5)));
    let place = |name: &str| rig.directory().join(name);
    assert_eq!(directory.is_first(Some(&place("20-good.conflist"))).unwrap_err().code, 5);
    assert_eq!(directory.is_first(None).unwrap_err().code, 5);
    assert_eq!(directory.is_first(Some(&place("05-good.conflist"))), Ok(()));
    // A broken link counts as missing.
    fs::remove_file(&unreadable).unwrap();
    std::os::unix::fs::symlink("nowhere", &unreadable).unwrap();
    assert_eq!(Directory::read(rig.directory())?.is_first(None), Ok(()));
    Ok(())
}
