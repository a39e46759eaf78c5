//! ResourceClaims: the devices allocated to a claim, for claims that the kubelet does not list.
//!
//! A claim that is not reserved for the pod's uid provides no devices. Devices with admin access are not attached.
//!
//! Source: Kubernetes API reference, `resource.k8s.io/v1` ResourceClaim (Kubernetes 1.34 or newer).

use std::fmt;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

use kube_support::resource;
use kube_support::resources::Reduced;

/// Device that a Dynamic Resource Allocation driver allocated. Driver, pool and device name it in the
/// cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AllocatedDevice {
    /// Driver name.
    pub(crate) driver: String,
    /// Pool within the driver, often a node's name.
    pub(crate) pool: String,
    /// Device name in the pool.
    pub(crate) device: String,
    /// Container that uses the device; empty if the pod itself does.
    pub(crate) container: String,
}

impl fmt::Display for AllocatedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {} of pool {} of driver {}", self.device, self.pool, self.driver)
    }
}

/// ResourceClaim as the API returns it.
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
    results: Vec<AllocationResult>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct AllocationResult {
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

/// ResourceClaim, reduced to the fields that are used.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Claim {
    consumers: Vec<String>,
    devices: Vec<AllocatedDevice>,
}

impl Claim {
    /// Returns the devices for the pod with this uid, in the order in which the claim requests them.
    pub(crate) fn devices_of(self, uid: &str) -> Vec<AllocatedDevice> {
        if self.consumers.iter().any(|consumer| consumer == uid) { self.devices } else { Vec::new() }
    }
}

impl Reduced for ClaimObject {
    type Form = Claim;

    fn reduce(self) -> Claim {
        let Status { allocation, reserved_for } = self.status;
        let given = allocation.devices.results.into_iter().filter(|given| !given.admin_access);
        let devices = given.map(|AllocationResult { driver, pool, device, .. }| AllocatedDevice {
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
    fn resource_claim_devices_are_for_its_consumers() {
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
    fn resource_claim_without_allocation_has_no_devices() {
        assert_eq!(read(&json!({})).devices_of(""), []);
        assert_eq!(read(&json!({ "reservedFor": [{ "uid": "1" }] })).devices_of("1"), []);
    }
}
