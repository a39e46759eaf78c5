//! Authentication at a real Keystone: password, application credential, another client's token, an expiring
//! token, rejected credentials, missing roles.
//!
//! Source: Identity API v3; `lanes/neutron/keystone-users`.

use std::time::Duration;

use rig::neutron::Mode;
use rig::openstack::eventually;
use rig::{OpenStack, neutron};
use serde_json::json;
use testkit::host;

/// Lifetime of a token in seconds.
const TOKEN: u32 = 25;

#[test]
fn keystone_auth_methods_work_and_expired_token_is_renewed() {
    let Some(cluster) = OpenStack::with_token_lifetime(host!(), Mode::Keystone, &["node-1"], TOKEN) else {
        return;
    };
    let net = cluster.network("net-a", "10.21.0.0/24", &json!({}));
    let clouds = format!("OS_CLIENT_CONFIG_FILE={}", cluster.neutron.clouds());
    // Password, then application credential.
    for cloud in ["kuryr", "kuryr-ac"] {
        let named = format!("OS_CLOUD={cloud}");
        cluster.start_controller_as(cloud, &[&named, &clouds], &[]);
        cluster.wait_until_leading(cloud);
        cluster.pod("node-1", cloud, "net-a");
        assert_eq!(cluster.wait_for_vifs(cloud).len(), 1);
        if cloud == "kuryr-ac" {
            // Longer than the lifetime of a token.
            std::thread::sleep(Duration::from_secs(u64::from(TOKEN) + 3));
            cluster.pod("node-1", "later", "net-a");
            assert_eq!(cluster.wait_for_vifs("later").len(), 1);
        }
        cluster.machine.stop(cloud, "TERM");
    }
    // Token that another client obtained.
    let token = format!("OS_TOKEN={}", cluster.neutron.token());
    let keystone = format!("OS_AUTH_URL={}", neutron::KEYSTONE);
    let words =
        ["OS_AUTH_TYPE=token", &keystone, &token, "OS_PROJECT_NAME=admin", "OS_PROJECT_DOMAIN_ID=default"];
    cluster.start_controller_as("token", &words, &[]);
    cluster.wait_until_leading("token");
    cluster.machine.stop("token", "TERM");
    // User that may not bind ports to hosts, but sees the subnet.
    let share = json!({ "network": { "shared": true } });
    let _ = cluster.neutron.api("PUT", &format!("networks/{}", net.network), Some(&share));
    cluster.start_controller_as("member", &["OS_CLOUD=member", &clouds], &[]);
    cluster.wait_until_leading("member");
    cluster.pod("node-1", "forbidden", "net-a");
    cluster.wait_for_event("forbidden", &["NeutronRefused", "403"]);
    cluster.machine.stop("member", "TERM");
    // A controller with unknown credentials keeps retrying, logs the reason, and logs no secret.
    cluster.start_controller_as("bad", &["OS_CLOUD=bad", &clouds], &[]);
    let log = eventually("a refusal", || {
        Some(cluster.machine.log("bad")).filter(|log| log.contains("credentials rejected"))
    });
    assert!(cluster.machine.is_running("bad") && !log.contains("wrong"), "{log}");
}
