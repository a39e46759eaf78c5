//! The devices that a ResourceClaim was allocated: for claims that the kubelet does not tell of.
//!
//! Rules: a claim that is not reserved for this very pod gives it nothing; devices for administration are nobody's to
//! attach.
//!
//! Source: Kubernetes API reference, `resource.k8s.io/v1` ResourceClaim (Kubernetes 1.34 or newer).

use std::fmt;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

use kube_support::resource;
use kube_support::resources::Reduced;

/// A device that a driver gave: these three name it in the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Allocated {
    /// The driver.
    pub(crate) driver: String,
    /// Its pool, often a node's name.
    pub(crate) pool: String,
    /// The device in the pool.
    pub(crate) device: String,
    /// The container that uses it; empty if it is the pod's.
    pub(crate) container: String,
}

impl fmt::Display for Allocated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {} of pool {} of driver {}", self.device, self.pool, self.driver)
    }
}

/// A ResourceClaim as it comes from the API.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ClaimObject {
    metadata: ObjectMeta,
    #[serde(default)]
    status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    allocation: Allocation,
    reserved_for: Vec<Consumer>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Allocation {
    devices: Devices,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Devices {
    results: Vec<Given>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Given {
    driver: String,
    pool: String,
    device: String,
    admin_access: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Consumer {
    uid: String,
}

/// What is looked at of a claim.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Claim {
    consumers: Vec<String>,
    devices: Vec<Allocated>,
}

impl Claim {
    /// The devices it gives to the pod of this uid, in the order of its requests.
    pub(crate) fn devices_of(self, uid: &str) -> Vec<Allocated> {
        match self.consumers.iter().any(|consumer| consumer == uid) {
            true => self.devices,
            false => Vec::new(),
        }
    }
}

impl Reduced for ClaimObject {
    type Form = Claim;

    fn reduce(self) -> Claim {
        let Status { allocation, reserved_for } = self.status;
        let given = allocation.devices.results.into_iter().filter(|given| !given.admin_access);
        let devices = given.map(|Given { driver, pool, device, .. }| Allocated {
            driver,
            pool,
            device,
            container: String::new(),
        });
        Claim {
            consumers: reserved_for.into_iter().map(|consumer| consumer.uid).collect(),
            devices: devices.collect(),
        }
    }
}

resource!(ClaimObject, NamespaceResourceScope, "ResourceClaim", "resourceclaims", "resource.k8s.io");

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(status: &serde_json::Value) -> Claim {
        let object = json!({ "metadata": { "namespace": "n", "name": "c" }, "status": status });
        serde_json::from_value::<ClaimObject>(object).unwrap().reduce()
    }

    #[test]
    fn a_claim_gives_its_devices_to_those_it_is_reserved_for() {
        let result = |device: &str| json!({ "request": "r", "driver": "d", "pool": "p", "device": device });
        let mut watched = result("vf-0");
        watched["adminAccess"] = json!(true);
        let status = json!({
            "allocation": { "devices": { "results": [result("vf-2"), watched, result("vf-1")] } },
            "reservedFor": [{ "resource": "pods", "name": "a", "uid": "1" }, { "resource": "pods", "name": "b", "uid": "2" }],
        });
        let devices = read(&status).devices_of("2");
        assert_eq!(devices.iter().map(|one| one.device.as_str()).collect::<Vec<_>>(), ["vf-2", "vf-1"]);
        assert_eq!(read(&status).devices_of("3"), []);
    }

    #[test]
    fn a_claim_that_is_not_allocated_gives_nothing() {
        assert_eq!(read(&json!({})).devices_of(""), []);
        assert_eq!(read(&json!({ "reservedFor": [{ "uid": "1" }] })).devices_of("1"), []);
    }
}
