//! Tests for network writers that are cancelled or fail, and for files that are unreadable or too large. Each test has
//! a separate directory and plugin program.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use super::*;

fn config(uid: &str, generation: u32, kind: &str) -> NetworkConfig {
    let metadata =
        NetworkMetadata { name: "n".into(), namespace: String::new(), uid: uid.into(), generation };
    let plugin = cri::network_api::CniPlugin { r#type: kind.into(), ..Default::default() };
    let cni = cri::network_api::CniConfig { plugins: vec![plugin], ..Default::default() };
    NetworkConfig { metadata: Some(metadata), cniv1_config: Some(cni), ..Default::default() }
}

#[test]
fn network_generation_orders_writers_of_one_object() {
    let stored = config("u", 5, "bridge");
    for (uid, written, kind, expected) in [
        ("u", 0, "bridge", Some(5)),
        ("u", 0, "ptp", Some(6)),
        ("", 5, "bridge", Some(5)),
        ("u", 5, "ptp", None),
        ("u", 4, "bridge", None),
        ("u", 9, "ptp", Some(9)),
        ("u", 9, "bridge", Some(9)),
        ("another", 1, "ptp", Some(1)),
    ] {
        let mut config = config(uid, written, kind);
        let settled = settle_generation(&mut config, Some(&stored)).ok();
        let metadata = config.metadata.unwrap();
        assert_eq!(settled.map(|()| metadata.generation), expected, "{uid} {written} {kind}");
        assert_eq!(metadata.uid, if uid.is_empty() { "u" } else { uid });
    }
    let mut first = config("", 0, "bridge");
    settle_generation(&mut first, None).unwrap();
    assert_eq!(first.metadata.unwrap().generation, 1);
}

/// Directory with a node's files, and a plugin that only reports versions.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let directory = std::env::temp_dir().join(format!("weft-{name}-{}", std::process::id()));
        for part in ["store", "bin", "net.d", "sandboxes"] {
            std::fs::create_dir_all(directory.join(part)).unwrap();
        }
        let plugin = directory.join("bin/one");
        let says = r#"{"cniVersion":"1.1.0","supportedVersions":["1.0.0","1.1.0"]}"#;
        std::fs::write(&plugin, format!("#!/bin/sh\necho '{says}'\n")).unwrap();
        std::fs::set_permissions(&plugin, std::fs::Permissions::from_mode(0o755)).unwrap();
        Place(directory)
    }

    fn store(&self) -> Store {
        Store::open(&self.0.join("store")).unwrap()
    }

    fn networks(&self) -> Arc<Networks> {
        let plugins = Plugins::in_path(&self.0.join("bin").display().to_string());
        let fallback = Fallback::of(&self.0.join("net.d"));
        let journal = Journal::at(&self.0.join("sandboxes"));
        Arc::new(Networks::open(self.store(), plugins, fallback, None, journal).unwrap())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns a network that uses this plugin; `note` makes contents differ.
fn noted(name: &str, note: u32) -> NetworkConfig {
    let mut config = config("", 0, "one");
    config.metadata.get_or_insert_default().name = name.to_owned();
    let cni = config.cniv1_config.get_or_insert_default();
    cni.cni_version = "1.0.0".to_owned();
    cni.plugins[0].parameters.insert("note".to_owned(), note.to_string());
    config
}

fn metadata(name: &str) -> Option<NetworkMetadata> {
    Some(NetworkMetadata { name: name.to_owned(), ..NetworkMetadata::default() })
}

/// Asserts that memory and disk contain the same networks.
fn assert_as_stored(networks: &Networks, store: &Store, when: &str) {
    let stored = store.read_all().unwrap().networks;
    let on_disk: BTreeMap<Name, NetworkConfig> =
        stored.into_iter().map(|stored| (stored.checked.name.clone(), stored.checked.config)).collect();
    let in_memory: BTreeMap<Name, NetworkConfig> = networks
        .all()
        .into_iter()
        .map(|stored| (stored.checked.name.clone(), stored.checked.config.clone()))
        .collect();
    assert_eq!(in_memory, on_disk, "{when}");
}

#[tokio::test]
async fn cancelled_network_writer_leaves_memory_equal_to_the_disk() {
    let place = Place::new("cancelled");
    let (networks, store) = (place.networks(), place.store());
    networks.set(Some(noted("red", 0))).await.unwrap();
    for round in 1..400 {
        let writer = Arc::clone(&networks);
        let work = tokio::spawn(async move {
            if round % 3 == 0 {
                drop(writer.remove(metadata("red"), false).await);
            } else {
                drop(writer.set(Some(noted("red", round))).await);
            }
        });
        // The delays range from before the write starts until after it ends.
        tokio::time::sleep(Duration::from_micros(u64::from(round) * 37 % 3000)).await;
        work.abort();
        let _ = work.await;
        // The next writer must find the same state in memory and on disk.
        let _turn = networks.writing.lock().await;
        assert_as_stored(&networks, &store, &format!("round {round}"));
    }
    // After a successful write, the network must be stored.
    networks.set(Some(noted("red", 7))).await.unwrap();
    assert_as_stored(&networks, &store, "the end");
    assert_as_stored(&place.networks(), &store, "another process");
}

#[tokio::test]
async fn failed_network_write_updates_memory_from_the_disk() {
    let place = Place::new("failed");
    let (networks, store) = (place.networks(), place.store());
    let red = networks.set(Some(noted("red", 1))).await.unwrap();
    // Simulates a failed directory sync.
    let mut later = Stored::clone(&red);
    later.checked.config = noted("red", 2);
    store.write(&later).unwrap();
    let status = networks.failed(&later.checked.name, "stored", &std::io::Error::other("no")).await;
    assert!(status.message().contains("network red: not stored: no"), "{status:?}");
    assert_as_stored(&networks, &store, "written, and not durable");
    store.remove(&later.checked.name).unwrap();
    networks.failed(&later.checked.name, "removed", &std::io::Error::other("no")).await;
    assert_as_stored(&networks, &store, "removed, and not durable");
}

#[tokio::test]
async fn unreadable_network_is_removed_by_name_and_does_not_return() {
    let place = Place::new("unreadable");
    let name = Name::read("red");
    place.networks().set(Some(noted("red", 1))).await.unwrap();
    let file = std::fs::read_dir(place.0.join("store")).unwrap().next().unwrap().unwrap().path();
    let whole = std::fs::read(&file).unwrap();
    std::fs::write(&file, "{").unwrap();
    let networks = place.networks();
    assert!(networks.all().is_empty(), "the file is logged and skipped");
    let with_uid = NetworkMetadata { uid: "u".to_owned(), ..metadata("red").unwrap() };
    let refused = networks.remove(Some(with_uid), false).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition);
    assert!(refused.message().contains(&file.display().to_string()), "{refused:?}");
    // Networks whose users are unknown count as in use.
    let held = networks.hold(vec![name]);
    let refused = networks.remove(metadata("red"), true).await.unwrap_err();
    assert!(refused.message().contains("in use by a sandbox that is being created"), "{refused:?}");
    drop(held);
    networks.remove(metadata("red"), false).await.unwrap();
    assert!(!file.exists(), "the network would return once the file is readable");
    // A file that appears while the proxy runs must be removed as well.
    std::fs::write(&file, &whole).unwrap();
    networks.remove(metadata("red"), false).await.unwrap();
    assert!(!file.exists());
    networks.remove(metadata("red"), false).await.unwrap();
}

#[tokio::test]
async fn network_that_was_unreadable_once_is_found_later() {
    let place = Place::new("unread");
    place.networks().set(Some(noted("red", 1))).await.unwrap();
    let second = place.networks().set(Some(noted("red", 2))).await.unwrap();
    let file = std::fs::read_dir(place.0.join("store")).unwrap().next().unwrap().unwrap().path();
    let kept = place.0.join("kept");
    for by_its_writer in [false, true] {
        // A symbolic link to itself: even root cannot read it.
        std::fs::rename(&file, &kept).unwrap();
        std::os::unix::fs::symlink(&file, &file).unwrap();
        let networks = place.networks();
        networks.recover().await;
        assert!(networks.all().is_empty());
        std::fs::rename(&kept, &file).unwrap();
        if by_its_writer {
            let found = networks.set(Some(noted("red", 2))).await.unwrap();
            assert_eq!(
                found.checked.config.metadata, second.checked.config.metadata,
                "the second network, not a new one"
            );
        } else {
            networks.recover().await;
        }
        assert_as_stored(&networks, &place.store(), "found again");
        assert_eq!(networks.all().len(), 1);
    }
}

#[tokio::test]
async fn network_is_refused_if_a_list_would_exceed_its_limit() {
    let place = Place::new("large");
    let networks = place.networks();
    let large = |name: &str, bytes: usize| {
        let mut config = noted(name, 0);
        let plugin = &mut config.cniv1_config.get_or_insert_default().plugins[0];
        plugin.parameters.insert("text".to_owned(), format!("{:?}", "x".repeat(bytes)));
        Some(config)
    };
    let mut refused = None;
    for number in 0..20 {
        match networks.set(large(&format!("n{number}"), 950_000)).await {
            Ok(_) => {}
            Err(status) => refused = refused.or(Some((number, status))),
        }
    }
    let (number, status) = refused.unwrap();
    assert_eq!((number, status.code()), (15, tonic::Code::ResourceExhausted));
    assert!(status.message().starts_with("network n15 has 950"), "{status:?}");
    let all: usize = networks.all().iter().map(|stored| stored.checked.config.encoded_len()).sum();
    assert!(all <= BYTES_MAX && networks.all().len() == 15, "{all}");
    // Small networks, smaller replacements, and networks after a removal still fit.
    networks.set(Some(noted("small", 1))).await.unwrap();
    networks.set(large("n3", 900_000)).await.unwrap();
    networks.remove(metadata("n4"), false).await.unwrap();
    networks.set(large("n15", 950_000)).await.unwrap();
}
