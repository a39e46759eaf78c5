//! Controller that holds the Lease and does not see the cluster any more: another one takes over.
//!
//! ```text
//!   one ── proxy (watches of pods end, and lists hang) ──► kube-apiserver ◄── two
//! ```
//!
//! The Lease itself can be renewed all the time.

use std::time::Instant;

use rig::Machine;
use rig::kube::{Kube, files, namespace};
use rig::parts::text;
use serde_json::json;
use testkit::{Feature, host};

use crate::api_proxy;

#[test]
fn stuck_leader_gives_its_lease_to_another_controller() {
    let Some(kube) = Kube::new(Machine::new(host!(Feature::Root), "control").into()) else { return };
    let objects = files(&[
        "deploy/crds/ipblocks.weft.dev.yaml",
        "deploy/crds/network-attachment-definitions.k8s.cni.cncf.io.yaml",
        "deploy/policy/policyaddresssets.weft.dev.yaml",
        "deploy/policy/multi-networkpolicies.k8s.cni.cncf.io.yaml",
        "deploy/components/policy/rbac.yaml",
    ]);
    kube.apply(&(objects + &namespace("x")));
    kube.wait_until_served();
    let machine = kube.machine();
    let direct = kube.service_account("kube-system", "weft-controller-policy");
    let proxied = api_proxy::start(&machine, &direct, "pass");
    let program = testkit::binary("weft");
    let start = |name: &str, listen: &str, kubeconfig: &str| {
        let words =
            ["controller", "--policy", "--identity", name, "--listen", listen, "--kubeconfig", kubeconfig];
        machine.start(name, [text(&program)].into_iter().chain(words));
    };
    let leads = |listen: &str| {
        let page = machine.attempt(["curl", "-s", &format!("http://{listen}/metrics")]).stdout;
        page.contains("weft_policy_leader 1\n").then_some(())
    };
    let holder =
        || kube.json(["lease", "-n", "kube-system", "weft-policy"])["spec"]["holderIdentity"].clone();
    start("one", "127.0.0.1:9465", proxied);
    machine.wait("one", "leads", || leads("127.0.0.1:9465"));
    start("two", "127.0.0.1:9466", &direct);
    machine.wait("two", "is ready", || {
        machine.attempt(["curl", "-sf", "http://127.0.0.1:9466/readyz"]).code.filter(|code| *code == 0)
    });
    assert_eq!(holder(), json!("one"));
    api_proxy::answer(&machine, "hang ^/api/v1/pods");
    let began = Instant::now();
    // The usual timeout of a condition is shorter than the time after which a leader counts as stuck.
    std::thread::sleep(std::time::Duration::from_secs(75));
    assert_eq!(holder(), json!("one"), "a short interruption changes no leader");
    std::thread::sleep(std::time::Duration::from_secs(30));
    machine.wait("two", "takes over", || leads("127.0.0.1:9466"));
    eprintln!("the other controller leads after {:?}", began.elapsed());
    assert_eq!(holder(), json!("two"));
    let log = machine.log("one");
    assert!(log.contains("this controller is stuck") && log.contains("pods"), "{log}");
}
