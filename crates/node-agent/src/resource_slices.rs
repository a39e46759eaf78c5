//! ResourceSlices: resource and id for devices that Dynamic Resource Allocation drivers publish.
//!
//! - Two device attributes name the resource and the id by which a plugin finds the device. A device without them, for
//!   example a GPU, is ignored.
//! - The first lookup starts to follow the slices of this node. Slices without a node name (`allNodes`, `nodeSelector`)
//!   are listed when they are needed.
//! - Of several generations of a pool the newest counts.
//!
//! Source: Kubernetes API reference, `resource.k8s.io/v1` ResourceSlice; Multus `k8s.cni.cncf.io/deviceID`; KEP-4381
//! for `resource.kubernetes.io/pciBusID`.

use std::collections::BTreeMap;
use std::sync::{Arc, Once};

use cni::{Error, code};
use k8s_openapi::ClusterResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ListParams;
use kube::runtime::watcher::Config;
use kube::{Api, Client};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::timeout;

use super::resource_claims::AllocatedDevice;
use kube_support::cache::{Cache, follow};
use kube_support::lookup::ASK_MAX;
use kube_support::resource;
use kube_support::resources::Reduced;

/// Attribute with the resource of a device, as in the annotation `k8s.v1.cni.cncf.io/resourceName` of a definition.
const RESOURCE_NAME: &str = "k8s.cni.cncf.io/resourceName";
/// Attribute with the id by which a plugin finds the device; without it, the PCI address is used.
const DEVICE_ID: &str = "k8s.cni.cncf.io/deviceID";
const PCI_BUS_ID: &str = "resource.kubernetes.io/pciBusID";

/// Device attributes that the driver publishes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Published {
    /// Resource of the device; none if a network cannot request it.
    pub(crate) resource: Option<String>,
    /// Id by which plugins find the device.
    pub(crate) id: Option<String>,
}

/// ResourceSlice as the API returns it.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct SliceObject {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Spec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    driver: String,
    pool: Pool,
    devices: Vec<DeviceObject>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Pool {
    name: String,
    generation: i64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct DeviceObject {
    name: String,
    attributes: BTreeMap<String, Value>,
}

/// ResourceSlice, reduced to the fields that are used.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Slice {
    driver: String,
    pool: String,
    generation: i64,
    devices: BTreeMap<String, Published>,
}

impl Reduced for SliceObject {
    type Form = Slice;

    fn reduce(self) -> Slice {
        let Spec { driver, pool, devices } = self.spec;
        let published = |DeviceObject { name, attributes }| {
            let text = |key: &str| Some(attributes.get(key)?.get("string")?.as_str()?.to_owned());
            (
                name,
                Published { resource: text(RESOURCE_NAME), id: text(DEVICE_ID).or_else(|| text(PCI_BUS_ID)) },
            )
        };
        Slice {
            driver,
            pool: pool.name,
            generation: pool.generation,
            devices: devices.into_iter().map(published).collect(),
        }
    }
}

resource!(SliceObject, ClusterResourceScope, "ResourceSlice", "resourceslices", "resource.k8s.io");

/// ResourceSlices of the devices that a node can have.
#[derive(Debug)]
pub(crate) struct Slices {
    node: String,
    of_node: Arc<Cache<Slice>>,
    followed: Once,
}

impl Slices {
    /// Returns the slices of a node. Nothing is read until the first lookup.
    pub(crate) fn new(node: &str) -> Slices {
        Slices {
            node: node.to_owned(),
            of_node: Arc::new(Cache::new("resourceslices")),
            followed: Once::new(),
        }
    }

    /// Returns the attributes of a device; none if no slice contains it.
    ///
    /// # Errors
    /// Code 11: the slices cannot be read.
    pub(crate) async fn find(
        &self,
        client: &Client,
        device: &AllocatedDevice,
    ) -> Result<Option<Published>, Error> {
        let all = Api::<SliceObject>::all(client.clone());
        self.followed.call_once(|| {
            let of_node = Config::default().fields(&format!("spec.nodeName={}", self.node));
            tokio::spawn(follow(client.clone(), Api::<SliceObject>::all, of_node, Arc::clone(&self.of_node)));
        });
        let unknown = |why: &dyn std::fmt::Display| {
            let hint =
                "ResourceSlices need Kubernetes 1.34 or newer, and permission in the ClusterRole weft-agent";
            Error::new(code::TRY_AGAIN_LATER, format!("resourceslices of resource.k8s.io/v1: {why}"))
                .details(hint)
        };
        let late = format!("the API server does not list them within {} s", ASK_MAX.as_secs());
        timeout(ASK_MAX, self.of_node.synced()).await.map_err(|_| unknown(&late))?;
        if let Some(published) = newest(self.of_node.all().iter().map(Arc::as_ref), device) {
            return Ok(Some(published));
        }
        if !is_driver(&device.driver) {
            return Ok(None);
        }
        let of_none = ListParams::default().fields(&format!("spec.nodeName=,spec.driver={}", device.driver));
        let asked = timeout(ASK_MAX, all.list(&of_none)).await.map_err(|_| unknown(&late))?;
        let slices: Vec<Slice> =
            asked.map_err(|why| unknown(&why))?.items.into_iter().map(Reduced::reduce).collect();
        Ok(newest(slices.iter(), device))
    }
}

/// Whether a driver's name is valid in a field selector.
fn is_driver(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-'))
}

fn newest<'a>(slices: impl Iterator<Item = &'a Slice>, device: &AllocatedDevice) -> Option<Published> {
    let of_pool = slices.filter(|slice| slice.driver == device.driver && slice.pool == device.pool);
    let having = of_pool.filter_map(|slice| Some((slice.generation, slice.devices.get(&device.device)?)));
    having.max_by_key(|(generation, _)| *generation).map(|(_, published)| published.clone())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn slice(pool: &str, generation: i64, devices: &Value) -> Slice {
        let object = json!({
            "metadata": { "name": format!("{pool}-{generation}") },
            "spec": { "driver": "sriov.example", "nodeName": "w", "devices": devices,
                      "pool": { "name": pool, "generation": generation, "resourceSliceCount": 1 } },
        });
        serde_json::from_value::<SliceObject>(object).unwrap().reduce()
    }

    fn device(name: &str) -> AllocatedDevice {
        let [driver, pool, device] = ["sriov.example", "w", name].map(str::to_owned);
        AllocatedDevice { driver, pool, device, container: String::new() }
    }

    #[test]
    fn resource_slice_of_the_newest_generation_counts() {
        let devices = |id: &str| {
            json!([{ "name": "vf-0", "attributes": {
                RESOURCE_NAME: { "string": "example.com/vf" }, DEVICE_ID: { "string": id } } }])
        };
        let slices = [
            slice("w", 1, &devices("0000:00:01.0")),
            slice("w", 2, &devices("0000:00:02.0")),
            slice("another", 9, &devices("0000:00:09.0")),
        ];
        let found = newest(slices.iter(), &device("vf-0")).unwrap();
        assert_eq!(found.resource.as_deref(), Some("example.com/vf"));
        assert_eq!(found.id.as_deref(), Some("0000:00:02.0"));
        assert_eq!(newest(slices.iter(), &device("vf-1")), None);
        let other = AllocatedDevice { driver: "gpu.example".into(), ..device("vf-0") };
        assert_eq!(newest(slices.iter(), &other), None);
    }

    #[test]
    fn resource_slice_device_id_defaults_to_the_pci_address() {
        let devices = json!([
            { "name": "by-bus", "attributes": {
                RESOURCE_NAME: { "string": "r" }, PCI_BUS_ID: { "string": "0000:00:01.0" } } },
            { "name": "gpu", "attributes": { "model": { "string": "x" } } },
            { "name": "odd", "attributes": { RESOURCE_NAME: { "int": 1 }, DEVICE_ID: null } },
            { "name": "bare" },
        ]);
        let slices = [slice("w", 1, &devices)];
        let found = newest(slices.iter(), &device("by-bus")).unwrap();
        assert_eq!((found.resource.as_deref(), found.id.as_deref()), (Some("r"), Some("0000:00:01.0")));
        for name in ["gpu", "odd", "bare"] {
            assert_eq!(newest(slices.iter(), &device(name)), Some(Published::default()), "{name}");
        }
    }
}
