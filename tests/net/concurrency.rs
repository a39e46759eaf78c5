//! Tests for concurrent calls: calls for one sandbox run one after the other, calls for different sandboxes
//! in parallel.
//!
//! Source: NPWG specification, 7.3 (NPWG1-7.3-1); SPEC 1.1.0 §2 (S18).

use std::thread;
use std::time::{Duration, Instant};

use rig::cluster::{bridge, configuration, recording};
use rig::{Cluster, addresses, assert_nothing_left, links, refusal, with};
use serde_json::{Value, json};
use testkit::{Attachment, Feature, Finished, Host, Pod, host};

/// Runs calls at the same time. Returns the result of each, in the given order.
fn together(calls: &[(&Attachment<'_>, &str, &Value)]) -> Vec<Finished> {
    thread::scope(|scope| {
        let started: Vec<_> = calls
            .iter()
            .map(|(attachment, verb, config)| scope.spawn(|| attachment.call(verb, config.to_string())))
            .collect();
        started.into_iter().map(|call| call.join().expect("a call")).collect()
    })
}

// Requirements: NPWG1-7.3-1
#[test]
fn concurrency_of_two_adds_of_a_sandbox_refuses_one() {
    let host = host!();
    let cluster = Cluster::new(&host);
    cluster.recording("a", "two", &json!({}));
    cluster.pod("web", "a");
    let pod = host.pod("web");
    let weft = cluster.attachment(&pod);
    let slow = recording("default", "one", &json!({ "ADD": [{ "do": "sleep", "milliseconds": 300 }] }));
    let config = configuration(&slow);
    let both = together(&[(&weft, "ADD", &config), (&weft, "ADD", &config)]);
    let refused: Vec<&Finished> = both.iter().filter(|finished| finished.code != Some(0)).collect();
    assert_eq!(refused.len(), 1, "{both:?}");
    assert!(refusal(refused[0]).1.contains("already attached"), "{}", refused[0]);
    assert_eq!(cluster.order(), ["ADD eth0", "ADD net1"]);
}

// Requirements: NPWG1-7.3-1
#[test]
fn concurrency_of_two_failing_adds_runs_one_after_the_other() {
    let host = host!();
    let cluster = Cluster::new(&host);
    cluster.recording("bad", "two", &json!({ "ADD": [{ "do": "fail", "code": 11 }] }));
    cluster.pod("web", "bad");
    let pod = host.pod("web");
    let weft = cluster.attachment(&pod);
    let pause = json!([{ "do": "sleep", "milliseconds": 100 }]);
    let config = configuration(&recording("default", "one", &json!({ "ADD": pause, "DEL": pause })));
    let started = Instant::now();
    let both = together(&[(&weft, "ADD", &config), (&weft, "ADD", &config)]);
    assert!(both.iter().all(|finished| refusal(finished).0 == 11), "{both:?}");
    assert!(
        started.elapsed() >= Duration::from_millis(400),
        "the ADDs run one after the other: {:?}",
        started.elapsed()
    );
    let one = ["ADD eth0", "ADD net1", "DEL net1", "DEL eth0"];
    assert_eq!(cluster.order(), [one, one].concat());
    assert_eq!(host.run(["ls", "-A", "/var/lib/weft/sandboxes"]), "");
}

// Requirements: NPWG1-7.3-1
#[test]
fn concurrency_del_waits_for_add_and_leaves_nothing() {
    let host = host!(Feature::Bridge);
    let cluster = Cluster::new(&host);
    cluster.definition("red", &bridge("red", 2));
    cluster.recording("slow", "two", &json!({ "ADD": [{ "do": "sleep", "milliseconds": 300 }] }));
    cluster.pod("web", "red,slow,red");
    let pod = host.pod("web");
    let weft = cluster.attachment(&pod);
    let config = configuration(&bridge("default", 1));
    weft.add(&config).success();
    weft.del(&config).success();
    let _ = cluster.calls();
    let (before, inside) = (host.snapshot(), pod.snapshot());
    thread::scope(|scope| {
        let adding = scope.spawn(|| weft.call("ADD", config.to_string()));
        thread::sleep(Duration::from_millis(120));
        assert_eq!(weft.del(&config).code, Some(0));
        assert_eq!(adding.join().expect("ADD").code, Some(0));
    });
    assert_eq!(cluster.order(), ["ADD net2", "DEL net2"]);
    assert_nothing_left("ADD, then DEL", &host, &before);
    rig::assert_pod_unchanged("ADD, then DEL", &pod, &inside);
}

#[test]
fn concurrency_sandbox_lock_works_while_its_file_is_recreated() {
    let host = host!(Feature::Bridge);
    let cluster = Cluster::new(&host);
    cluster.pod("web", "");
    let pod = host.pod("web");
    let weft = cluster.attachment(&pod);
    let config = configuration(&recording("default", "one", &json!({})));
    for _ in 0..5 {
        let calls = [(&weft, "ADD", &config), (&weft, "DEL", &config)];
        let all = together(&[calls, calls, calls, calls].concat());
        for finished in all.iter().filter(|finished| finished.code != Some(0)) {
            assert!(refusal(finished).1.contains("already attached"), "{finished}");
        }
    }
    weft.del(&config).success();
    // An ADD never starts while the sandbox is attached, and a DEL only follows an ADD.
    let order = cluster.order();
    for (place, call) in order.iter().enumerate() {
        assert_eq!(call, ["ADD eth0", "DEL eth0"][place % 2], "call {place} of {order:?}");
    }
}

/// Creates pods on a host.
fn create_pods(host: &Host, names: usize) -> Vec<Pod> {
    (0..names).map(|number| host.pod(&format!("p{number}"))).collect()
}

#[test]
fn concurrency_of_20_sandboxes_shares_bridges_and_ranges() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    let cluster = Cluster::new(&host);
    let mut red = bridge("red", 2);
    red["plugins"][0]["ipMasq"] = true.into();
    cluster.definition("red", &red);
    cluster.definition("blue", &bridge("blue", 3));
    let config = configuration(&bridge("default", 1));
    let pods = create_pods(&host, 20);
    for pod in &pods {
        cluster.pod(pod.name(), "red,blue,red");
    }
    // Bridges, tables and directories do not exist yet: twenty calls create them at the same time.
    let attachments: Vec<Attachment<'_>> = pods.iter().map(|pod| cluster.attachment(pod)).collect();
    let adds: Vec<_> = attachments.iter().map(|weft| (weft, "ADD", &config)).collect();
    let results = together(&adds);
    let mut all = Vec::new();
    for (pod, result) in pods.iter().zip(&results) {
        assert_eq!(result.code, Some(0), "{result}");
        assert_eq!(links(pod), ["eth0", "net1", "net2", "net3"]);
        all.extend(["eth0", "net1", "net2", "net3"].iter().flat_map(|name| rig::addresses_on(pod, name)));
    }
    assert_eq!(all.len(), 80);
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 80, "no address twice");
    let full = host.snapshot();
    let dels: Vec<_> = attachments.iter().map(|weft| (weft, "DEL", &config)).collect();
    for finished in together(&dels) {
        assert_eq!(finished.code, Some(0), "{finished}");
    }
    assert!(!full.changes(&host.snapshot()).is_empty());
    assert!(pods.iter().all(|pod| links(pod).is_empty()));
    assert_eq!(links(&host), ["br1", "br2", "br3"]);
    assert_eq!(
        host.run(["sh", "-c", "ls /var/lib/cni/networks/*/10.* 2>/dev/null; ls -A /var/lib/weft/sandboxes"]),
        ""
    );
    let listed = host.run(["nft", "list", "map", "inet", "weft_masquerade", "sources4"]);
    assert!(!listed.contains("elements"), "{listed}");
}

#[test]
fn concurrency_of_20_bridge_adds_with_failures_keeps_the_bridge() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    rig::install(&host);
    let config = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": "br1", "isGateway": true, "ipMasq": true,
        "ipam": { "type": "host-local", "subnet": "10.1.0.0/24" },
    });
    // Half of them fail after the bridge and the veth pair exist; they must not remove the bridge of the
    // others.
    let failing = with(
        &config,
        &json!({ "ipam": { "type": "host-local", "subnet": "10.1.0.0/24", "routes": [{ "dst": "10.7.0.0/16", "gw": "10.8.0.1" }] } }),
    );
    let pods = create_pods(&host, 20);
    let attachments: Vec<Attachment<'_>> =
        pods.iter().map(|pod| host.attachment("bridge", pod, "eth0")).collect();
    let calls: Vec<_> = attachments
        .iter()
        .enumerate()
        .map(|(number, eth0)| (eth0, "ADD", if number % 2 == 0 { &failing } else { &config }))
        .collect();
    let results = together(&calls);
    let mut allocated = Vec::new();
    for (number, (pod, result)) in pods.iter().zip(&results).enumerate() {
        if number % 2 == 0 {
            assert_eq!(refusal(result).0, 5, "{result}");
            assert!(links(pod).is_empty());
            continue;
        }
        assert_eq!(result.code, Some(0), "{result}");
        allocated.extend(addresses(&result.json()));
        assert_eq!(rig::link(pod, "eth0").expect("eth0")["operstate"], "UP");
        assert!(pod.pings("10.1.0.1"), "{}: the bridge has its gateway", pod.name());
    }
    allocated.sort();
    allocated.dedup();
    assert_eq!(allocated.len(), 10);
    assert_eq!(links(&host).len(), 11, "{:?}", links(&host));
}

#[test]
fn concurrency_of_adds_and_dels_keeps_other_iptables_rules() {
    const PODS: usize = 8;
    let host = host!(Feature::Bridge, Feature::IptablesNft);
    rig::install(&host);
    let pods: Vec<Pod> = (0..PODS).map(|at| host.pod(&format!("p{at}"))).collect();
    let base = json!({ "cniVersion": "1.1.0", "name": "net" });
    let chained = |pod: &Pod, at: usize, keys: &Value| {
        let sandbox = pod.path().display().to_string();
        let result = json!({
            "cniVersion": "1.1.0", "interfaces": [{ "name": "eth0", "sandbox": sandbox }],
            "ips": [{ "address": format!("10.1.2.{}/24", at + 2), "interface": 0 }],
        });
        with(&with(&base, keys), &json!({ "prevResult": result }))
    };
    let range = json!({ "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/24" }]] });
    for plugin in ["portmap", "firewall", "bridge"] {
        let attachments: Vec<_> = pods.iter().map(|pod| host.attachment(plugin, pod, "eth0")).collect();
        let configs: Vec<Value> = (0..PODS)
            .map(|at| match plugin {
                "portmap" => {
                    let port = json!({ "hostPort": 8000 + at, "containerPort": 80, "protocol": "tcp" });
                    let keys = json!({ "type": plugin, "backend": "iptables", "runtimeConfig": { "portMappings": [port] } });
                    chained(&pods[at], at, &keys)
                }
                "firewall" => chained(&pods[at], at, &json!({ "type": plugin, "backend": "iptables" })),
                _ => with(
                    &base,
                    &json!({ "type": plugin, "bridge": "br0", "ipMasq": true, "ipMasqBackend": "iptables", "ipam": range }),
                ),
            })
            .collect();
        let calls = |verb: &'static str| {
            let all: Vec<_> =
                attachments.iter().zip(&configs).map(|(one, config)| (one, verb, config)).collect();
            for finished in together(&all) {
                assert_eq!(finished.code, Some(0), "{plugin} {verb}: {finished}");
            }
            host.run(["iptables-save"])
        };
        let rules = calls("ADD");
        // Each pod has all of its rules, and each shared rule exists once.
        let wanted = match plugin {
            "portmap" => 1,
            "firewall" => 2,
            _ => 3,
        };
        for pod in &pods {
            let own = rules.lines().filter(|line| line.contains(&pod.container_id()));
            assert_eq!(own.count(), wanted, "{plugin}: {} in {rules}", pod.name());
        }
        let mut jumps: Vec<&str> = rules.lines().filter(|line| line.starts_with("-A ")).collect();
        let all = jumps.len();
        jumps.sort_unstable();
        jumps.dedup();
        assert_eq!(jumps.len(), all, "{plugin}: no rule is duplicated in {rules}");
        let rules = calls("DEL");
        assert!(!pods.iter().any(|pod| rules.contains(&pod.container_id())), "{plugin}: {rules}");
    }
}
