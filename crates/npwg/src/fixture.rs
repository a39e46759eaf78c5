//! Plan builder for unit tests: a pod, definitions and a node configuration.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot build its plan fails")]

use std::collections::BTreeMap;

use cni::name::{ContainerId, IfName};
use cni::network::Network;

use crate::configuration::{Flavour, NodeConfiguration};
use crate::definition::{Disk, Form, OnDisk};
use crate::device::{Device, Devices};
use crate::metadata::{Definition, NetworkReference, Pod, RESOURCE_NAME, SpecConfig};
use crate::plan::{Access, Held, Plan, Request, Sandbox, plan, possible};
use crate::refusal::{Fault, Refusal};
use crate::selection::Annotation;

/// A network that declares every capability.
pub const CAPABLE: &str = r#"{"cniVersion":"1.0.0","name":"capable","plugins":[{"type":"maker","capabilities":{"ips":true,"mac":true,"infinibandGUID":true}},{"type":"tuning","capabilities":{"portMappings":true,"bandwidth":true}}]}"#;

/// A network with a plugin that receives a device.
pub const DEVICE: &str = r#"{"cniVersion":"1.0.0","name":"device","plugins":[{"type":"sriov","capabilities":{"deviceID":true,"CNIDeviceInfoFile":true}},{"type":"tuning"}]}"#;

/// A network that declares no capability.
pub const PLAIN: &str = r#"{"cniVersion":"1.0.0","name":"plain","type":"plain"}"#;

/// Everything that a plan depends on.
pub struct World {
    /// Pod to plan for.
    pub pod: Pod,
    /// Definitions in the cluster.
    pub definitions: BTreeMap<NetworkReference, Definition>,
    /// Configurations on the node's disk.
    pub disk: Disk,
    /// Devices that the pod has, by resource.
    pub devices: Devices,
    /// Definitions that the pod may not use.
    pub access: Access,
    /// Fields for the meta-plugin configuration, as JSON without braces.
    pub keys: String,
    /// Name by which the meta-plugin is called.
    pub flavour: Flavour,
    /// Interface name for the default network.
    pub ifname: String,
    /// Attachments that the sandbox has already.
    pub held: Vec<Held>,
}

impl Default for World {
    fn default() -> World {
        World::new()
    }
}

impl World {
    /// Returns a world with the pod `home/web`, which has no annotations, and the default network `base` on
    /// disk. There are the definitions `home/plain`, `home/capable`, `home/device`, `other/plain`,
    /// `default/plain` and `kube-system/plain`.
    pub fn new() -> World {
        let mut world = World {
            pod: Pod { namespace: "home".into(), name: "web".into(), uid: "u-1".into(), ..Pod::default() },
            definitions: BTreeMap::new(),
            disk: Disk::default(),
            devices: Devices::new(),
            access: Access::open(),
            keys: r#""clusterNetwork":"base""#.into(),
            flavour: Flavour::Weft,
            ifname: "eth0".into(),
            held: Vec::new(),
        };
        world.define("home/plain", PLAIN);
        world.define("home/capable", CAPABLE);
        world.define("home/device", DEVICE);
        for namespace in ["other", "default", "kube-system"] {
            world.define(&format!("{namespace}/plain"), PLAIN);
        }
        world.file(
            "/etc/cni/multus/net.d/10-base.conf",
            r#"{"cniVersion":"1.0.0","name":"base","type":"bridge","capabilities":{"portMappings":true}}"#,
        );
        world
    }

    /// Sets the annotation that selects networks.
    pub fn networks(mut self, text: &str) -> World {
        self.pod.annotations.insert(Annotation::Networks.key().into(), text.into());
        self
    }

    /// Sets the annotation that selects the default network.
    pub fn default_network(mut self, text: &str) -> World {
        self.pod.annotations.insert(Annotation::DefaultNetwork.key().into(), text.into());
        self
    }

    /// Adds fields to the node's configuration.
    pub fn node(mut self, keys: &str) -> World {
        self.keys = format!("{},{keys}", self.keys);
        self
    }

    /// Adds a definition `NAMESPACE/NAME`.
    pub fn define(&mut self, reference: &str, config: &str) {
        let (namespace, name) = reference.split_once('/').unwrap();
        let definition = Definition {
            namespace: namespace.into(),
            name: name.into(),
            config: SpecConfig::Text(config.into()),
            ..Definition::default()
        };
        self.definitions.insert(definition.reference(), definition);
    }

    /// Adds a configuration file on the node.
    pub fn file(&mut self, path: &str, config: &str) {
        let network = Network::parse(config.as_bytes(), path).unwrap();
        self.disk.networks.push(OnDisk { path: path.into(), form: Form::of(path).unwrap(), network });
    }

    /// Makes attachments to a definition use this resource.
    pub fn resource(&mut self, reference: &str, resource: &str) {
        let (namespace, name) = reference.split_once('/').unwrap();
        let definition = self.definitions.get_mut(&NetworkReference::new(namespace, name)).unwrap();
        definition.annotations.insert(RESOURCE_NAME.into(), resource.into());
    }

    /// Gives the pod a device that belongs to a resource.
    pub fn device(&mut self, resource: &str, id: &str) {
        let list = self.devices.entry(resource.into()).or_default();
        list.push(Device { id: id.into(), container: "main".into() });
    }

    /// Returns the validated meta-plugin configuration.
    pub fn configuration(&self) -> NodeConfiguration {
        let text = format!(r#"{{"cniVersion":"1.1.0","name":"weft","type":"weft",{}}}"#, self.keys);
        NodeConfiguration::read(text.as_bytes(), self.flavour).unwrap()
    }

    /// Returns the plan or the refusal.
    pub fn try_plan(&self) -> Result<Plan, Refusal> {
        self.plan_by(plan)
    }

    /// Returns a plan with the networks that can be attached.
    pub fn possible(&self) -> Plan {
        self.plan_by(possible).unwrap()
    }

    fn plan_by(&self, plan: impl Fn(&Request<'_>) -> Result<Plan, Refusal>) -> Result<Plan, Refusal> {
        let sandbox = Sandbox {
            container: ContainerId::new("c1").unwrap(),
            ifname: IfName::new(&self.ifname).unwrap(),
        };
        plan(&Request {
            pod: &self.pod,
            sandbox: &sandbox,
            node: &self.configuration(),
            definitions: &self.definitions,
            disk: &self.disk,
            devices: &self.devices,
            access: &self.access,
            held: &self.held,
        })
    }

    /// Returns the plan; panics if there is none.
    pub fn plan(&self) -> Plan {
        self.try_plan().unwrap()
    }

    /// Returns the fault that makes an attachment fail.
    pub fn fails(&self) -> Fault {
        match self.try_plan() {
            Err(Refusal::AttachmentFailed(fault)) => *fault,
            other => panic!("{other:?}"),
        }
    }
}
