//! `weft ipam` on a node without a cluster: it reads the address stores, and `weft-cni` releases addresses.

use rig::addresses::allocated;
use rig::cluster::configuration;
use rig::{Cluster, assert_refused};
use serde_json::{Value, json};
use testkit::{Attachment, Feature, Finished, Host, Pod, binary, host, require};

fn weft(host: &Host, line: &str) -> Finished {
    let _ = binary("weft-cni");
    host.command(binary("weft")).clean_environment().args(line.split_whitespace()).finish()
}

fn config(name: &str, ipam: &Value) -> Value {
    let mut ipam = ipam.clone();
    ipam["type"] = json!("weft-ipam");
    ipam["store"] = json!("file");
    ipam["quarantine"] = json!(0);
    json!({ "cniVersion": "1.1.0", "name": name, "type": "ipvlan", "ipam": ipam })
}

fn container<'a>(host: &'a Host, pod: &Pod, id: &str) -> Attachment<'a> {
    let mut attachment = host.attachment("weft-ipam", pod, "eth0");
    attachment.container_id = id.to_owned();
    attachment
}

/// Writes a kubeconfig for an API server that does not run; returns the path.
fn unreachable_cluster(host: &Host) -> &'static str {
    let kubeconfig = json!({ "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{ "name": "c", "cluster": { "server": "http://127.0.0.1:1" } }],
        "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }], "users": [{ "name": "u", "user": {} }] });
    host.write("/run/away.json", kubeconfig.to_string());
    "/run/away.json"
}

#[test]
fn ipam_show_counts_usable_addresses_of_a_file_store() {
    require!(Feature::Root);
    let host = Host::new();
    host.install(&binary("weft-cni"), &["weft-ipam"]);
    let pod = host.pod("a");
    let conf =
        config("net", &json!({ "range": "10.8.0.0/28", "gateway": "10.8.0.1", "exclude": ["10.8.0.8/30"] }));
    let ips: Vec<String> =
        (0..3).map(|at| allocated(container(&host, &pod, &format!("c{at}")).add(&conf))[0].clone()).collect();
    container(&host, &pod, "c1").del(&conf).success();
    // Without credentials the node is shown, and a note says why.
    let shown = weft(&host, "ipam show -o json").success();
    assert!(shown.stderr.contains("only the address stores of this node"), "{shown}");
    let all = shown.json();
    let store = &all[0];
    // Not network, broadcast, gateway and four exclusions.
    assert_eq!((&store["store"], &store["kind"]), (&json!("10.8.0.0-28"), &json!("file")));
    assert_eq!(
        (&store["usable"], &store["held"], &store["free"]),
        (&json!("9"), &json!(2), &json!("7")),
        "{store}"
    );
    let spans = json!(["10.8.0.2-10.8.0.7", "10.8.0.12-10.8.0.14"]);
    assert_eq!(store["networks"], json!([{ "name": "net", "addresses": spans, "quarantine": 0 }]));
    assert_eq!(store["blocks"][0]["free"], 7, "{store}");
    let table = weft(&host, "ipam show --local").success();
    assert!(table.stderr.is_empty() && table.stdout.contains("10.8.0.0-28  file"), "{table}");
    let yaml = weft(&host, "ipam show --local -o yaml").success();
    assert!(
        yaml.stdout.starts_with("- store: 10.8.0.0-28\n") && yaml.stdout.contains("usable: \"9\""),
        "{yaml}"
    );
    // The API server is away.
    let away = unreachable_cluster(&host);
    for line in [vec!["show"], vec!["check"], vec!["who", &ips[0]]] {
        let line = [&["ipam"], &line[..], &["--kubeconfig", away]].concat();
        let shown = weft(&host, &line.join(" ")).success();
        assert!(shown.stderr.contains("127.0.0.1:1"), "{shown}");
    }
    let holder = |ip: &str| weft(&host, &["ipam", "who", ip, "--local", "-o", "json"].join(" "));
    let state = |ip: &str| holder(ip).success().json()[0]["state"].clone();
    assert_eq!([&*ips[0], &*ips[1], "10.8.0.1"].map(state), ["held", "free", "not used"]);
    let nowhere = holder("10.9.9.9");
    assert!(nowhere.code == Some(1) && nowhere.stderr.contains("in no address store"), "{nowhere}");
    // The whole window is held.
    for at in 3..10 {
        container(&host, &pod, &format!("c{at}")).add(&conf).success();
    }
    let full = weft(&host, "ipam check --local -o json");
    let found = full.json();
    assert_eq!((full.code, found[0]["what"].as_str()), (Some(1), Some("nearly-full")), "{found}");
    assert!(found[0]["why"].as_str().unwrap().starts_with("9 addresses are held"), "{found}");
}

#[test]
fn ipam_free_releases_the_address_of_a_container_that_is_gone() {
    let host = host!(Feature::Bridge);
    let cluster = Cluster::new(&host);
    let ipam = json!({ "type": "weft-ipam", "store": "file", "range": "10.8.1.0/29", "quarantine": 0 });
    let network =
        json!({ "cniVersion": "1.0.0", "name": "data", "type": "bridge", "bridge": "br7", "ipam": ipam });
    cluster.definition("data", &network);
    let conf = configuration(&rig::cluster::bridge("default", 1));
    cluster.pod("web", "data");
    let pod = host.pod("web");
    cluster.attachment(&pod).add(&conf).success();
    let entry = cluster.entry(&pod).expect("an entry");
    let living = entry["networkStatus"][1]["ips"][0].as_str().expect("an address").to_owned();
    // A container that no journal knows.
    let other = config("data", &json!({ "range": "10.8.1.0/29" }));
    let lost = allocated(container(&host, &pod, "lost").add(&other))[0].clone();
    let found = weft(&host, "ipam check --local -o json").json();
    assert_eq!(found.as_array().map(Vec::len), Some(1), "{found}");
    assert!(found[0]["what"] == "leaked" && found[0]["why"].as_str().unwrap().contains(&lost), "{found}");

    let refused = weft(&host, &format!("ipam free {living} --local"));
    assert!(refused.code == Some(1) && refused.stderr.contains("its sandbox may live"), "{refused}");
    assert!(refused.stderr.contains("blue/web") || refused.stderr.contains("web"), "{refused}");
    // No journal says that the container is gone.
    let unknown = weft(&host, &format!("ipam free {lost} --local --journal /var/lib/none"));
    assert!(unknown.code == Some(1) && unknown.stderr.contains("--force"), "{unknown}");
    // A cluster that the command line names is meant, and this node keeps the address.
    let elsewhere = weft(&host, &format!("ipam free {lost} --kubeconfig {}", unreachable_cluster(&host)));
    assert!(elsewhere.code == Some(1) && elsewhere.stderr.contains("127.0.0.1:1"), "{elsewhere}");
    let freed = weft(&host, &format!("ipam free {lost} --local")).success().json();
    assert_eq!((freed["freed"].as_str(), freed["store"].as_str()), (Some(&*lost), Some("10.8.1.0-29")));
    assert!(freed["owner"].as_str().unwrap().contains("lost"), "{freed}");
    assert!(weft(&host, "ipam check --local").success().stdout.contains("no findings"));
    let forced = weft(&host, &format!("ipam free {living} --local --force")).success();
    assert_eq!(forced.json()["freed"], json!(living));
    let again = container(&host, &pod, "again");
    let named = |ip: &str| {
        let mut named = other.clone();
        named["args"] = json!({ "cni": { "ips": [ip] } });
        named
    };
    assert_eq!(allocated(again.add(&named(&living))), [living.as_str()]);
    // A repeated release of the container's own address does not touch the new holder.
    let late = weft(&host, &format!("ipam free {lost} --local"));
    assert!(late.code == Some(1) && late.stderr.contains("no address store of this node holds it"), "{late}");
    cluster.attachment(&pod).del(&conf).success();
    assert_refused("still held", &container(&host, &pod, "x").add(&named(&living)), 11, &["holds it"]);
}

#[test]
fn ipam_free_searches_every_journal_and_the_runtime_cache() {
    let host = host!(Feature::Bridge);
    let cluster = Cluster::new(&host);
    let ipam = json!({ "type": "weft-ipam", "store": "file", "range": "10.8.2.0/29", "quarantine": 0 });
    let network =
        json!({ "cniVersion": "1.0.0", "name": "data", "type": "bridge", "bridge": "br7", "ipam": ipam });
    cluster.definition("data", &network);
    let mut conf = configuration(&rig::cluster::bridge("default", 1));
    conf["cniDir"] = json!("/var/lib/weft/moved");
    cluster.pod("web", "data");
    let pod = host.pod("web");
    cluster.attachment(&pod).add(&conf).success();
    let entry =
        host.read(format!("/var/lib/weft/moved/sandboxes/{}.json", pod.container_id())).expect("an entry");
    let living = "10.8.2.1";
    assert!(entry.contains(&format!("\"{living}")), "{entry}");
    // The default journal knows other containers only.
    host.write("/var/lib/weft/sandboxes/.keep", "");
    let other = config("data", &json!({ "range": "10.8.2.0/29" }));
    let lost = allocated(container(&host, &pod, "lost").add(&other))[0].clone();
    let leaked = || {
        let found = weft(&host, "ipam check --local -o json").json();
        let found = found.as_array().expect("a list").clone();
        found.iter().map(|finding| finding["why"].as_str().expect("a reason").to_owned()).collect::<Vec<_>>()
    };
    let refused = |address: &str| {
        let refused = weft(&host, &format!("ipam free {address} --local"));
        assert!(refused.code == Some(1) && refused.stderr.contains("its sandbox may live"), "{refused}");
        refused.stderr
    };

    // The configuration names the other journal.
    host.write("/etc/cni/net.d/00-weft.conf", conf.to_string());
    assert!(
        matches!(leaked().as_slice(), [why] if why.contains(&format!("{lost} is allocated"))),
        "{:?}",
        leaked()
    );
    let _ = refused(living);
    // Without a valid configuration, another journal may exist.
    host.write(
        "/etc/cni/net.d/00-weft.conf",
        r#"{"cniVersion":"1.1.0","name":"weft-net","type":"weft","cniDir":"/var"#,
    );
    assert_eq!(leaked(), [""; 0]);
    assert!(refused(&lost).contains("the directory of the journal is unknown"));
    host.write("/etc/cni/net.d/00-weft.conf", conf.to_string());

    // Another meta-plugin attached the container: the runtime has it in its cache.
    let cached = |netns: &str| {
        let cached = json!({ "kind": "cniCacheV1", "containerId": "lost", "ifName": "eth0", "networkName": "multus",
            "netns": netns });
        host.write("/var/lib/cni/results/multus-lost-eth0", cached.to_string());
    };
    for netns in [pod.path().display().to_string(), String::new()] {
        cached(&netns);
        assert_eq!(leaked(), [""; 0], "{netns}");
        let _ = refused(&lost);
    }
    cached("/run/netns/none");
    assert_eq!(leaked().len(), 1);
    let freed = weft(&host, &format!("ipam free {lost} --local")).success().json();
    assert_eq!(freed["freed"], json!(lost));
    cluster.attachment(&pod).del(&conf).success();
}
