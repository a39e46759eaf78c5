//! Address stores of `weft-ipam` on one host beside changes of the configuration: ranges that are lost or overlap, a store
//! that is removed or locked, and the name `whereabouts`.

use std::collections::BTreeSet;
use std::time::Duration;

use rig::addresses::allocated;
use rig::cluster::{RECORD, configuration};
use rig::machine::until;
use rig::{Cluster, assert_refused, with};
use serde_json::{Value, json};
use testkit::{Attachment, Feature, Host, Pod, binary, host, require};

fn world() -> (Host, Pod) {
    let host = Host::new();
    host.install(&binary("weft-cni"), &["weft-ipam", "whereabouts", "host-local"]);
    let pod = host.pod("a");
    (host, pod)
}

fn config(name: &str, plugin: &str, ipam: &Value) -> Value {
    let mut ipam = ipam.clone();
    ipam["type"] = json!(plugin);
    if plugin != "host-local" {
        ipam["store"] = json!("file");
        ipam["quarantine"] = json!(0);
    }
    json!({ "cniVersion": "1.1.0", "name": name, "type": "ipvlan", "ipam": ipam })
}

fn container<'a>(host: &'a Host, pod: &Pod, plugin: &str, id: &str) -> Attachment<'a> {
    let mut attachment = host.attachment(plugin, pod, "eth0");
    attachment.container_id = id.to_owned();
    attachment
}

/// Configuration before a range was lost, and after.
fn shrinking(plugin: &str) -> (Value, Value) {
    let range = |net: &str| json!({ "range": net });
    let [a, b] = ["10.1.2.0/29", "fd00:1::/125"].map(range);
    let subnet = |net: &str| json!([{ "subnet": net }]);
    let (before, after) = match plugin {
        "host-local" => {
            let [a, b] = ["10.1.2.0/29", "fd00:1::/125"].map(subnet);
            (json!({ "ranges": [a, b] }), json!({ "ranges": [subnet("10.1.2.0/29")] }))
        }
        _ => (json!({ "ipRanges": [a, b] }), json!({ "ipRanges": [range("10.1.2.0/29")] })),
    };
    (config("net", plugin, &before), config("net", plugin, &after))
}

#[test]
fn del_frees_addresses_of_a_range_that_the_network_lost() {
    require!(Feature::Root);
    for plugin in ["weft-ipam", "whereabouts", "host-local"] {
        let (host, pod) = world();
        let (before, after) = shrinking(plugin);
        let free = match plugin {
            "host-local" => 5,
            _ => 6,
        };
        for at in 0..free {
            assert_eq!(allocated(container(&host, &pod, plugin, &format!("c{at}")).add(&before)).len(), 2);
        }
        for at in 0..free {
            container(&host, &pod, plugin, &format!("c{at}")).del(&after).success();
        }
        // Both ranges are empty again.
        for at in 0..free {
            let again = container(&host, &pod, plugin, &format!("d{at}")).add(&before);
            assert_eq!(allocated(again).len(), 2, "{plugin}: {at}");
        }
    }
}

#[test]
fn gc_frees_addresses_of_a_range_that_the_network_lost() {
    require!(Feature::Root);
    for plugin in ["weft-ipam", "whereabouts", "host-local"] {
        let (host, pod) = world();
        let (before, mut after) = shrinking(plugin);
        let mut other = before.clone();
        other["name"] = json!("other");
        let kept = allocated(container(&host, &pod, plugin, "kept").add(&before));
        let foreign = allocated(container(&host, &pod, plugin, "foreign").add(&other));
        container(&host, &pod, plugin, "gone").add(&before).success();
        after["cni.dev/valid-attachments"] = json!([{ "containerID": "kept", "ifname": "eth0" }]);
        let mut gc = container(&host, &pod, plugin, "");
        (gc.ifname, gc.netns) = (String::new(), String::new());
        gc.call("GC", after.to_string()).success();
        assert_eq!(allocated(container(&host, &pod, plugin, "again").add(&before)).len(), 2, "{plugin}");
        // The address of the deleted attachment is the only free one of those three.
        let mut all = BTreeSet::new();
        while let Some(ips) = {
            let done = container(&host, &pod, plugin, &format!("n{}", all.len())).add(&before);
            (done.code == Some(0)).then(|| allocated(done))
        } {
            all.insert(ips[1].clone());
        }
        assert!(!all.contains(&kept[1]), "{plugin}: {all:?}");
        assert!(plugin == "host-local" || !all.contains(&foreign[1]), "{plugin}: {all:?}");
        assert!(all.len() >= 3, "{plugin}: {all:?}");
    }
}

#[test]
fn overlapping_ranges_of_a_host_give_no_address_twice() {
    require!(Feature::Root);
    let (host, pod) = world();
    let wide = config("wide", "weft-ipam", &json!({ "range": "10.8.0.0/28" }));
    let inner = config("inner", "weft-ipam", &json!({ "range": "10.8.0.0/29" }));
    let apart = config("apart", "weft-ipam", &json!({ "range": "10.8.0.0/29", "network_name": "red" }));
    let add = |conf: &Value, id: &str| container(&host, &pod, "weft-ipam", id).add(conf);
    let mut all = BTreeSet::new();
    for at in 0..3 {
        for (name, conf) in [("w", &wide), ("i", &inner)] {
            assert!(all.insert(allocated(add(conf, &format!("{name}{at}")))[0].clone()), "{all:?}");
        }
    }
    assert_eq!(all.iter().filter(|ip| ["10.8.0.7", "10.8.0.8"].contains(&ip.as_str())).count(), 0);
    assert_refused("inner", &add(&inner, "i3"), 11, &["no address is free"]);
    assert_eq!(allocated(add(&apart, "a0")), ["10.8.0.1"], "another address space");
    let mut named = wide.clone();
    named["args"] = json!({ "cni": { "ips": [all.first().expect("an address")] } });
    assert_refused("named", &add(&named, "w9"), 11, &["holds it"]);
    // Calls of both networks at once do not wait for each other.
    container(&host, &pod, "weft-ipam", "w0").del(&wide).success();
    container(&host, &pod, "weft-ipam", "i0").del(&inner).success();
    std::thread::scope(|scope| {
        let (add, wide, inner) = (&add, &wide, &inner);
        let one = scope.spawn(move || allocated(add(wide, "w8"))[0].clone());
        let other = scope.spawn(move || allocated(add(inner, "i8"))[0].clone());
        assert_ne!(one.join().unwrap(), other.join().unwrap());
    });
}

/// The first calls of two networks create stores at the same time.
#[test]
fn overlapping_ranges_whose_stores_are_created_at_once() {
    require!(Feature::Root);
    let (host, pod) = world();
    let wide = config("wide", "weft-ipam", &json!({ "range": "10.8.0.0/28" }));
    let inner = config("inner", "weft-ipam", &json!({ "range": "10.8.0.0/29" }));
    for round in 0..20 {
        let add = |conf: &Value, id: &str| {
            allocated(container(&host, &pod, "weft-ipam", &format!("{id}{round}")).add(conf))[0].clone()
        };
        std::thread::scope(|scope| {
            let one = scope.spawn(|| add(&wide, "w"));
            assert_ne!(add(&inner, "i"), one.join().expect("an address"), "round {round}");
        });
        host.run(["rm", "-r", "/var/lib/weft/ipam"]);
    }
}

#[test]
fn removed_address_store_forgets_sandboxes_that_ended_since() {
    let host = host!(Feature::Bridge);
    let cluster = Cluster::new(&host);
    let ipam = json!({ "type": "weft-ipam", "store": "file", "range": "10.9.0.0/22", "quarantine": 0 });
    let network = json!({ "cniVersion": "1.0.0", "name": "data", "type": "bridge", "bridge": "br7", "ipam": ipam, "capabilities": { "ips": true } });
    cluster.definition("data", &network);
    let conf = configuration(&rig::cluster::bridge("default", 1));
    let attach = |name: &str, ip: &str| {
        cluster.pod(name, json!([{ "name": "data", "ips": [ip] }]).to_string());
        let pod = host.pod(name);
        cluster.attachment(&pod).add(&conf).success();
        pod
    };
    // Addresses of two blocks.
    let (one, two) = (attach("one", "10.9.0.7"), attach("two", "10.9.2.7"));
    host.run(["rm", "-r", "/var/lib/weft/ipam"]);
    let three = attach("three", "10.9.0.9");
    // The store has no block with the address of this one yet.
    let mut late = host.attachment("weft-ipam", &two, "net1");
    late.container_id = "late".to_owned();
    late.args = "IP=10.9.2.7".to_owned();
    assert_refused("of a living pod", &late.add(&network), 11, &["pod blue/two", "holds it"]);
    cluster.attachment(&two).del(&conf).success();
    let four = attach("four", "10.9.2.7");
    for pod in [&one, &three, &four] {
        cluster.attachment(pod).del(&conf).success();
    }
}

#[test]
fn removed_address_store_gives_no_address_of_a_living_sandbox() {
    let host = host!(Feature::Bridge);
    let cluster = Cluster::new(&host);
    let network = |name: &str, bridge: &str, ipam: &Value| json!({ "cniVersion": "1.0.0", "name": name, "type": "bridge", "bridge": bridge, "ipam": ipam });
    let range = json!({ "type": "weft-ipam", "store": "file", "range": "10.9.0.0/24", "quarantine": 0 });
    cluster.definition("data", &network("data", "br7", &range));
    let conf = configuration(&rig::cluster::bridge("default", 1));
    let address = |name: &str| {
        cluster.pod(name, "data");
        let pod = host.pod(name);
        cluster.attachment(&pod).add(&conf).success();
        let entry = cluster.entry(&pod).expect("an entry");
        (entry["networkStatus"][1]["ips"][0].as_str().expect("an address").to_owned(), pod)
    };
    let (first, pod) = address("one");
    let (second, _) = address("two");
    host.run(["rm", "-r", "/var/lib/weft/ipam"]);
    let (third, _) = address("three");
    assert_ne!(third, first);
    assert_ne!(third, second);
    // The address belongs to its sandbox again: its DEL releases it.
    cluster.attachment(&pod).del(&conf).success();
    let named = network("data", "br7", &range);
    let mut later = host.attachment("weft-ipam", &pod, "net1");
    later.container_id = "later".to_owned();
    later.args = format!("IP={first}");
    assert_eq!(allocated(later.add(&named)), [first.as_str()]);
    later.args = format!("IP={second}");
    later.container_id = "last".to_owned();
    assert_refused("of a living pod", &later.add(&named), 11, &["pod blue/two", "holds it"]);
}

/// The runtime creates the next sandbox of a pod again and again, and deletes none.
#[test]
fn sandbox_of_a_pod_takes_an_address_of_an_earlier_one() {
    require!(Feature::Root);
    let (host, pod) = world();
    let conf = config("net", "weft-ipam", &json!({ "range": "10.1.2.0/29", "range_end": "10.1.2.4" }));
    let sandbox = |pod_name: &str, id: &str| {
        let mut sandbox = container(&host, &pod, "weft-ipam", id);
        sandbox.args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=blue;K8S_POD_NAME={pod_name};K8S_POD_UID=uid-{pod_name}"
        );
        sandbox
    };
    let add = |pod_name: &str, id: &str| allocated(sandbox(pod_name, id).add(&conf))[0].clone();
    let other = add("other", "o1");
    let all: Vec<String> = (0..6).map(|at| add("web", &format!("c{at}"))).collect();
    let given: BTreeSet<&String> = all.iter().collect();
    assert!(given.len() == 3 && !given.contains(&other), "{all:?}");
    assert_eq!(all[3..], all[..3], "the oldest one first");
    // Another pod is refused, and a late DEL of an earlier sandbox frees nothing of a later one.
    assert_refused("another pod", &sandbox("last", "l1").add(&conf), 11, &["no address is free"]);
    for at in 0..3 {
        sandbox("web", &format!("c{at}")).del(&conf).success();
        sandbox("web", &format!("c{}", at + 3)).check(&conf).success();
    }
    assert_refused("another pod", &sandbox("last", "l1").add(&conf), 11, &["no address is free"]);
    // A named address, too.
    let mut named = sandbox("other", "o2");
    named.args = format!("{};IP={other}", named.args);
    assert_eq!(allocated(named.add(&conf)), [other.as_str()]);
    let mut foreign = sandbox("last", "l2");
    foreign.args = format!("{};IP={other}", foreign.args);
    assert_refused("of another pod", &foreign.add(&conf), 11, &["pod blue/other", "holds it"]);
}

#[test]
fn refused_claim_names_the_key_that_requests_it() {
    require!(Feature::Root);
    let (host, pod) = world();
    let mut conf = config("net", "weft-ipam", &json!({ "range": "10.1.2.0/29" }));
    conf["args"] = json!({ "cni": { "ipam-claim-reference": "vm.net" } });
    let mut one = container(&host, &pod, "weft-ipam", "c1");
    one.args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=blue;K8S_POD_NAME=web".to_owned();
    let words = ["args.cni.ipam-claim-reference", "vm.net"];
    assert_refused("a store of the host", &one.add(&conf), 7, &[words[0], words[1], "needs the cluster"]);
    conf["ipam"]["store"] = json!("cluster");
    one.args = "IgnoreUnknown=1".to_owned();
    assert_refused("without a pod", &one.add(&conf), 7, &[words[0], words[1], "names no pod"]);
}

#[test]
fn locked_address_store_is_waited_for_once_and_its_holder_named() {
    require!(Feature::Root);
    let (host, pod) = world();
    let conf = config("net", "weft-ipam", &json!({ "range": "10.1.2.0/29" }));
    container(&host, &pod, "weft-ipam", "c1").add(&conf).success();
    let store = "/var/lib/weft/ipam/10.1.2.0-29/ledger";
    let locked = host.command("flock").args([store, "sleep", "300"]).start_tied();
    // `flock` takes the lock some time after its start.
    until("the store is locked", || {
        let tried = host.attempt(["flock", "--nonblock", "--conflict-exit-code", "75", store, "true"]);
        (tried.code == Some(75)).then_some(())
    });
    // A second wait would exceed the deadline.
    let waiting =
        host.command("/opt/cni/bin/weft-ipam").clean_environment().deadline(Duration::from_secs(55));
    let waiting = waiting.env("CNI_COMMAND", "ADD").env("CNI_CONTAINERID", "c2").env("CNI_IFNAME", "eth0");
    let waiting = waiting.env("CNI_NETNS", "/run/netns/a").env("CNI_PATH", "/opt/cni/bin");
    let refused = waiting.stdin(conf.to_string()).finish();
    drop(locked);
    assert_refused("locked", &refused, 11, &["lock ", "ledger: process ", "has held it for 30 s"]);
}

#[test]
fn whereabouts_configurations_that_whereabouts_accepts_work() {
    require!(Feature::Root);
    let (host, pod) = world();
    let given = |name: &str, ipam: Value| {
        let conf = config(name, "whereabouts", &ipam);
        let one = container(&host, &pod, "whereabouts", name);
        let ips = allocated(one.add(&conf));
        one.check(&conf).success();
        one.del(&conf).success();
        ips
    };
    assert_eq!(given("zeros", json!({ "range": "010.137.001.000/24" })), ["10.137.1.1"]);
    assert_eq!(
        given("zero-window", json!({ "range": "010.138.001.004-010.138.001.009/24" })),
        ["10.138.1.4"]
    );
    let fixed = json!({ "addresses": [{ "address": "192.000.2.7/24", "gateway": "192.0.2.001" }] });
    assert_eq!(given("fixed", fixed), ["192.0.2.7"]);
    let backwards =
        json!({ "range": "10.139.0.0/24", "range_start": "10.139.0.9", "range_end": "10.139.0.2" });
    assert_eq!(given("backwards", backwards.clone()), ["10.139.0.9"]);
    let twice = json!({ "range": "10.140.0.0/24", "ipRanges": [{ "range": "10.140.0.0/24" }] });
    assert_eq!(given("twice", twice), ["10.140.0.1"]);
    let picked = json!({ "range": "10.141.0.0/24", "pick_addresses": ["10.141.0.77", "10.141.0.9"] });
    assert_eq!(given("picked", picked.clone()), ["10.141.0.9"]);
    // Only the picked addresses are given.
    let conf = config("picked", "whereabouts", &picked);
    let all =
        ["p1", "p2"].map(|id| allocated(container(&host, &pod, "whereabouts", id).add(&conf)).join(" "));
    assert_eq!(all, ["10.141.0.77", "10.141.0.9"], "longest free first");
    let more = container(&host, &pod, "whereabouts", "p3").add(&conf);
    assert_refused("picked", &more, 11, &["no address is free"]);
    // A network of weft-ipam is checked.
    let strict = config("backwards", "weft-ipam", &backwards);
    let refused = container(&host, &pod, "weft-ipam", "s1").add(&strict);
    assert_refused("backwards", &refused, 7, &["before the first address"]);
    let outside = json!({ "range": "10.141.0.0/24", "pick_addresses": ["10.9.0.1"] });
    let refused = container(&host, &pod, "weft-ipam", "s2").add(&config("picked", "weft-ipam", &outside));
    assert_refused("outside", &refused, 7, &["ipam.pick_addresses[0]", "10.9.0.1"]);
}

#[test]
fn whereabouts_name_is_served_only_if_weft_is_installed_as_it() {
    let host = host!(Feature::Bridge);
    let cluster = Cluster::new(&host);
    let ipam = json!({ "type": "whereabouts", "store": "file", "range": "10.9.0.0/24", "quarantine": 0 });
    let result = json!({ "cniVersion": "1.0.0", "ips": [{ "address": "10.9.0.77/24" }] });
    let network = json!({ "cniVersion": "1.0.0", "name": "data", "type": "bridge", "bridge": "br7", "ipam": ipam,
        "testPlugin": { "record": RECORD, "ADD": [{ "do": "result", "value": result }] } });
    cluster.definition("data", &network);
    cluster.pod("web", "data");
    let pod = host.pod("web");
    let conf = configuration(&rig::cluster::bridge("default", 1));
    let weft = cluster.attachment(&pod);
    let name = "/opt/cni/bin/whereabouts";
    let address = || {
        let entry = cluster.entry(&pod).expect("an entry");
        entry["networkStatus"][1]["ips"][0].as_str().unwrap_or_default().to_owned()
    };

    // No program of the name: an ADD is refused, and leaves nothing.
    host.run(["rm", name]);
    let refused = weft.add(&conf);
    assert_refused(
        "no program",
        &refused,
        7,
        &["plugin whereabouts: no program of this name in /opt/cni/bin"],
    );
    assert!(refused.stdout.contains("weft import whereabouts"), "{refused}");
    assert_eq!(host.attempt(["ls", "/var/lib/weft/ipam"]).stdout, "", "no pool is begun");

    // The program of whereabouts is there: it serves ADD and DEL, although weft is in the same directory.
    let program = binary("weft-test-plugin").display().to_string();
    host.run(["ln", "-s", &program, name]);
    weft.add(&conf).success();
    assert_eq!(address(), "10.9.0.77");
    weft.del(&conf).success();
    assert_eq!(cluster.order(), ["ADD net1", "CHECK net1", "DEL net1"]);
    assert_eq!(host.attempt(["ls", "/var/lib/weft/ipam"]).stdout, "", "weft allocated nothing");

    // The operator decides: by the installation, or by the option.
    let always = with(&conf, &json!({ "builtin": "always" }));
    weft.add(&always).success();
    assert_eq!(address(), "10.9.0.1");
    weft.del(&always).success();
    host.run(["ln", "-sfn", "weft-cni", name]);
    weft.add(&conf).success();
    assert_eq!(address(), "10.9.0.2", "longest free first");
    // A DEL without any program releases what weft holds.
    host.run(["rm", name]);
    weft.del(&conf).success();
    assert!(cluster.calls().is_empty());
}

#[test]
fn weft_ipam_gives_no_network_or_broadcast_address() {
    require!(Feature::Root);
    let (host, pod) = world();
    for (plugin, part) in [("weft-ipam", 31), ("whereabouts", 32)] {
        let ranges = [
            (json!({ "range": format!("10.{part}.0.0-10.{part}.0.7/29") }), format!("10.{part}.0."), 1..=6),
            (
                json!({ "range": format!("10.{part}.1.0/29"), "range_start": format!("10.{part}.1.0") }),
                format!("10.{part}.1."),
                1..=6,
            ),
            // The first address of an IPv6 subnet is that of its routers; there is no broadcast.
            (
                json!({ "range": format!("fd00:{part}::-fd00:{part}::7/125") }),
                format!("fd00:{part}::"),
                1..=7,
            ),
        ];
        for (number, (ipam, prefix, usable)) in ranges.into_iter().enumerate() {
            let conf = config(&format!("edge{number}"), plugin, &ipam);
            let add = |at: u8| container(&host, &pod, plugin, &format!("{plugin}{number}{at}")).add(&conf);
            let all: BTreeSet<String> = usable.clone().map(|at| allocated(add(at)).join(" ")).collect();
            assert_eq!(all, usable.map(|last| format!("{prefix}{last}")).collect(), "{conf}");
            assert_refused(plugin, &add(8), 11, &["no address is free"]);
        }
    }
}

#[test]
fn quarantine_of_a_failing_pod_leaves_a_small_window_usable() {
    require!(Feature::Root);
    let (host, pod) = world();
    let ipam = json!({ "range": "10.33.0.0/24", "range_start": "10.33.0.11", "range_end": "10.33.0.15" });
    let mut conf = config("retries", "weft-ipam", &ipam);
    conf["ipam"]["quarantine"] = json!(3600);
    let one = |id: &str| container(&host, &pod, "weft-ipam", id);
    // A later plugin of the chain fails four times, and the runtime undoes the ADD.
    for retry in 0..4 {
        one(&format!("r{retry}")).add(&conf).success();
        one(&format!("r{retry}")).del(&conf).success();
    }
    let fill = |round: &str| -> BTreeSet<String> {
        (0..5).map(|at| allocated(one(&format!("{round}{at}")).add(&conf)).join(" ")).collect()
    };
    let all = fill("c");
    assert_eq!(all.len(), 5, "{all:?}");
    assert_refused("full", &one("c5").add(&conf), 11, &["no address is free"]);
    // After a reboot every address is in quarantine; the one that waits longest is allocated, without a wait.
    let store = "/var/lib/weft/ipam/10.33.0.0-24/ledger";
    let boot = format!("printf another-boot | dd of={store} bs=1 seek=16 conv=notrunc status=none");
    host.run(["sh", "-c", &boot]);
    assert_eq!(fill("d"), all);
}
