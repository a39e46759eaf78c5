//! Plan for a pod: all attachments in a sandbox, decided before the first one is executed.
//!
//! [`plan`] makes a [`Plan`] from data only. The plan is written to the journal before it has any effect.
//! CHECK and DEL read it from there, perhaps in a later release. Because it contains every configuration byte
//! for byte and every chosen name, a DEL does not depend on later changes to the pod, definitions, files or
//! this code.
//!
//! Source: multi-network specification v1.3, sections 3.4, 4, 6 and 7.

mod access;
mod chain;
mod devices;
mod interface;
mod limits;
mod networks;
mod received;
mod route;
mod transport;
mod virtual_machine;

use std::collections::BTreeMap;

use cni::capability::{HardwareAddress, RequestedIp};
use cni::name::{ContainerId, IfName, NetworkName};
use cni::network::Network;
use cni::object::Object;
use serde::{Deserialize, Serialize};

use crate::configuration::{NodeConfiguration, StatusStyle};
use crate::definition::Disk;
use crate::device::{self, Devices};
use crate::metadata::{Definitions, NetworkReference, Pod};
use crate::network_policy::AttachmentPolicy;
use crate::refusal::{Fault, Refusal, Warning, clip};
use crate::request::DefaultRoute;
use crate::rule::Rule;
use crate::selection::Element;
use networks::Collected;

pub use crate::metadata::PodIdentity;
pub use access::Access;
pub use devices::takes_device;
pub use networks::{resources, wanted};
pub use route::{DefaultRouteAction, Families, Gateway};

/// Maximum size for all configurations in a plan, in bytes: a plan is sent over a socket and written to the
/// journal.
pub const CONFIGURATIONS_MAX: usize = 4 << 20;

/// Plan version that this release writes. Older versions are read, newer ones are refused.
pub const PLAN_VERSION: u32 = 1;

/// Plan for one sandbox.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// Plan version, [`PLAN_VERSION`].
    pub version: u32,
    /// Pod in the sandbox.
    pub pod: PodIdentity,
    /// Container id that identifies the sandbox.
    pub container: ContainerId,
    /// Style in which the network status is written.
    pub status: StatusStyle,
    /// The networks, in attachment order; the first is the default network.
    pub delegates: Vec<Delegate>,
    /// Warnings, which become Events.
    pub warnings: Vec<Warning>,
    /// Selected networks that [`possible`] leaves out; [`plan`] leaves none out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<RefusedNetwork>,
    /// Metadata for the planner; the program that executes the plan only keeps it.
    #[serde(default, skip_serializing_if = "Object::is_empty")]
    pub note: Object,
}

/// Selected network that cannot be attached now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RefusedNetwork {
    /// Network name in the status.
    pub network: String,
    /// Why it cannot be attached.
    pub fault: Fault,
}

/// Network that a pod is attached to: the unit for ADD, CHECK and DEL.
///
/// Every operation identifies an attachment by [`Plan::container`], `config_name` and `ifname`
/// (NPWG1-4.2.1-1).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Delegate {
    /// Network name in the status: the definition's `namespace/name`, else the CNI name.
    pub network: String,
    /// Reason why the pod is attached to it.
    pub role: Role,
    /// Network name in the CNI configuration.
    pub config_name: NetworkName,
    /// Configuration list to execute, byte for byte.
    pub config: String,
    /// Interface name, passed as `CNI_IFNAME`.
    pub ifname: IfName,
    /// Capability arguments by name; each plugin gets those that it declares.
    pub runtime_config: Object,
    /// Pairs to append to the runtime's `CNI_ARGS`.
    pub args: Vec<(String, String)>,
    /// Values that the result must show.
    pub verify: Verify,
    /// Requests that the pod makes ([`Element::requests`](crate::selection::Element::requests)), if it
    /// selects the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<BTreeMap<String, String>>,
    /// Change to default routes after every network is attached.
    pub default_route: DefaultRouteAction,
    /// Network policies to enforce, if one selects the attachment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<AttachmentPolicy>,
    /// Device information file, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_info: Option<DeviceInfoFile>,
    /// Decisions and reasons.
    pub because: Vec<Decision>,
}

/// Reason why a pod is attached to a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Default network: the first one, whose result the runtime gets.
    Default,
    /// Network that the node's configuration adds to every pod.
    Every,
    /// Network that the pod selects.
    Selected,
}

/// Values that an ADD result must show.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Verify {
    /// Addresses on the attachment's interface.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<RequestedIp>,
    /// MAC address on that interface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<HardwareAddress>,
    /// InfiniBand GUID, if the result shows one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guid: Option<HardwareAddress>,
}

/// Device information file for an attachment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceInfoFile {
    /// File that is copied to `path` before ADD, if it exists (DI-1).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_from: Option<String>,
    /// File that is read after ADD (DI-4) and removed after DEL (DI-5).
    pub path: String,
}

/// One decision and the reason for it, for users.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// Subject of the decision: `network`, `config`, `interface`, or a selection key.
    pub what: String,
    /// Value that was decided on.
    pub value: String,
    /// Why.
    pub why: String,
}

impl Decision {
    fn new(what: &str, value: impl std::fmt::Display, why: impl Into<String>) -> Decision {
        Decision { what: what.to_owned(), value: clip(&value.to_string()), why: why.into() }
    }
}

/// Everything that [`plan`] needs.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// Pod to plan for.
    pub pod: &'a Pod,
    /// Sandbox and interface name in the runtime's call.
    pub sandbox: &'a Sandbox,
    /// Meta-plugin configuration, with the runtime's `runtimeConfig`.
    pub node: &'a NodeConfiguration,
    /// Where definitions are looked up.
    pub definitions: &'a dyn Definitions,
    /// Networks on disk, from [`NodeConfiguration::places`].
    pub disk: &'a Disk,
    /// Devices that the kubelet allocated to the pod.
    pub devices: &'a Devices,
    /// Definitions that this pod may not use.
    pub access: &'a Access,
    /// Attachments that the sandbox already has.
    pub held: &'a [Held],
}

/// Attachment that a sandbox already has. If the network is selected again, interface name and device are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Network name in the status.
    pub network: String,
    /// Interface name, kept unless the pod requests another name.
    pub ifname: IfName,
    /// Device, kept unless the pod requests another one.
    pub device: Option<String>,
}

impl Held {
    /// Whether this attachment is to `network` and has this interface name.
    pub fn is(&self, network: &str, ifname: &IfName) -> bool {
        self.network == network && self.ifname == *ifname
    }
}

/// Sandbox as the runtime identifies it.
#[derive(Clone, Debug)]
pub struct Sandbox {
    /// Container id, from `CNI_CONTAINERID`.
    pub container: ContainerId,
    /// Interface name for the default network, from `CNI_IFNAME`.
    pub ifname: IfName,
}

/// Plans a pod's networks.
///
/// # Flow
/// 1. The default-network annotation, else the node configuration, determines the default network. The networks that
///    every pod gets follow (not in system namespaces), then the selection, in order.
/// 2. Each definition is checked against isolation and `access`, looked up, and resolved by the four rules.
/// 3. Interface names are assigned: first the requested ones, then the generated ones.
/// 4. Devices are allocated, each once: first the kept ones, then in network order.
/// 5. Each request is passed in every form that a specification version names, and in every plugin's
///    `args.cni`.
///
/// # Guarantees
/// - The same input gives the same plan. Interface names differ. No input causes a panic.
/// - Only the default network gets the runtime's `runtimeConfig`.
/// - A configuration to which nothing is added stays the same byte for byte.
///
/// # Errors
/// The first refusal: an attachment that is impossible as requested, or an invalid annotation if the node
/// configuration says so. Otherwise an invalid annotation is ignored, and the plan has a warning.
pub fn plan(request: &Request<'_>) -> Result<Plan, Refusal> {
    let plan = possible(request)?;
    match plan.refused.into_iter().next() {
        Some(RefusedNetwork { network: _, fault }) => Err(Refusal::failed(fault)),
        None => Ok(Plan { refused: Vec::new(), ..plan }),
    }
}

/// Plans networks for a running pod (hot-plug): as [`plan`], but if a selected network cannot be attached,
/// the others still are. The plan names it in [`Plan::refused`].
///
/// Interface names are generated as if every network could be attached, so that a network which is attached
/// later gets the same name as if the whole selection had been attached in one ADD.
///
/// # Errors
/// As [`plan`], for a refusal that concerns more than one selected network.
pub fn possible(request: &Request<'_>) -> Result<Plan, Refusal> {
    let Pod { namespace, name, uid, host_network, .. } = request.pod;
    if *host_network {
        let fault =
            Fault::new(Rule::HostNetworkPod, format!("pod {namespace}/{name}"), "uses the host network");
        return Err(Refusal::failed(fault.hint("no networks can be attached to it")));
    }
    let mut warnings = request.node.warnings.clone();
    let Collected { drafts, mut refused, reserved, count } = networks::collect(request, &mut warnings)?;
    let names = interface::assign(&request.sandbox.ifname, &drafts, request.held, (&reserved, count))?;
    let held: Vec<Option<&str>> = drafts
        .iter()
        .zip(&names)
        .map(|(draft, (ifname, _))| held_device(request.held, draft, ifname))
        .collect();
    let mut allocator = devices::DeviceAllocator::new(request.devices, drafts.iter().zip(&held));
    let (mut delegates, mut planned) = (Vec::with_capacity(drafts.len()), Vec::with_capacity(drafts.len()));
    let mut room = CONFIGURATIONS_MAX;
    for ((draft, (ifname, because)), held) in drafts.into_iter().zip(names).zip(held) {
        let warned = warnings.len();
        let made = allocator
            .take(&draft, held)
            .and_then(|device| delegate(request, &draft, &ifname, device.as_ref(), &mut warnings));
        let mut delegate = match made {
            Ok(delegate) => delegate,
            Err(refusal) => {
                warnings.truncate(warned);
                refused.push(draft.refused(refusal)?);
                continue;
            }
        };
        delegate.because.insert(1, because);
        room = room.checked_sub(delegate.config.len()).ok_or_else(|| too_large(&draft.subject))?;
        delegates.push(delegate);
        planned.push(draft);
    }
    let asked: Vec<&DefaultRoute> = planned.iter().map(networks::Draft::default_route).collect();
    for (delegate, action) in delegates.iter_mut().zip(route::actions(&asked, &planned)?) {
        delegate.because.extend(action.reason());
        delegate.default_route = action;
    }
    Ok(Plan {
        version: PLAN_VERSION,
        pod: PodIdentity { namespace: namespace.clone(), name: name.clone(), uid: uid.clone() },
        container: request.sandbox.container.clone(),
        status: request.node.status,
        delegates,
        warnings,
        refused,
        note: Object::default(),
    })
}

fn too_large(subject: &str) -> Refusal {
    let reason = format!("the configurations of this pod's networks exceed {CONFIGURATIONS_MAX} bytes");
    Refusal::failed(
        Fault::new(Rule::ConfigurationTooLarge, subject, reason).hint("select fewer or smaller networks"),
    )
}

/// Returns the device that this attachment already has and may keep.
fn held_device<'a>(held: &'a [Held], draft: &networks::Draft, ifname: &IfName) -> Option<&'a str> {
    let asked = draft.element().and_then(|element| element.device_id.as_deref());
    let id = held.iter().find(|held| held.is(&draft.label, ifname))?.device.as_deref();
    id.filter(|id| asked.is_none_or(|asked| asked == *id))
}

/// Returns the delegate for one draft, with all requests passed on to the plugins.
fn delegate(
    request: &Request<'_>,
    draft: &networks::Draft,
    ifname: &IfName,
    device: Option<&devices::AllocatedDevice>,
    warnings: &mut Vec<Warning>,
) -> Result<Delegate, Refusal> {
    let mut because = vec![draft.because(), draft.origin()];
    let mut channels = transport::channels(request, draft, warnings)?;
    let file = device::attachment_file(&draft.label, &request.sandbox.container, ifname);
    let device_info = channels.add_device(device, file);
    because.append(&mut channels.because);
    if let (None, Some(resource)) = (device, &draft.resource) {
        because.push(Decision::new(
            "device",
            "none",
            format!("{resource} has no devices, and no plugin needs one"),
        ));
    }
    let id = device.map(|device| device.id.as_str());
    let config = chain::render(&draft.network, &channels.args_cni, id, &draft.subject)?;
    limits::check(&config, &channels.runtime_config, &draft.subject)?;
    Ok(Delegate {
        network: draft.label.clone(),
        role: draft.role,
        config_name: draft.network.name.clone(),
        config,
        ifname: ifname.clone(),
        runtime_config: channels.runtime_config,
        args: channels.args,
        verify: channels.verify,
        asked: draft.element().filter(|_| draft.role == Role::Selected).map(Element::requests),
        default_route: DefaultRouteAction::Untouched,
        policy: None,
        device_info,
        because,
    })
}

impl Plan {
    /// Reads a plan from JSON.
    ///
    /// # Errors
    /// Code 6: not a plan, or a newer plan version, which this release might misinterpret.
    pub fn read(bytes: &[u8]) -> Result<Plan, cni::Error> {
        #[derive(Deserialize)]
        struct Head {
            version: u32,
        }
        let fault = |why: String| cni::Error::new(cni::code::DECODING_FAILURE, format!("plan: {why}"));
        let unreadable = |cause| fault(cni::wording::syntax_error(bytes, &cause));
        let head: Head = serde_json::from_slice(bytes).map_err(unreadable)?;
        if head.version == 0 || head.version > PLAN_VERSION {
            return Err(fault(format!("version {}: this release reads up to {PLAN_VERSION}", head.version)));
        }
        serde_json::from_slice(bytes).map_err(unreadable)
    }

    /// Returns the delegates that the pod selects.
    pub fn selected(&self) -> impl Iterator<Item = &Delegate> {
        self.delegates.iter().filter(|delegate| delegate.role == Role::Selected)
    }
}

impl Delegate {
    /// Returns the allocated device's id, which every plugin finds in the configuration.
    pub fn device(&self) -> Option<String> {
        let network = Network::parse(self.config.as_bytes(), &self.network).ok()?;
        network.plugins.first()?.text("deviceID").ok()?
    }
}

impl Verify {
    /// Whether there is nothing to verify.
    pub fn is_empty(&self) -> bool {
        *self == Verify::default()
    }
}

/// Returns a fault in a network reference inside an annotation.
fn reference_fault(rule: Rule, draft_subject: &str, network: &NetworkReference, reason: &str) -> Fault {
    Fault::new(rule, draft_subject, reason).showing(&format!("{:?}", network.to_string()))
}

#[cfg(test)]
mod tests;
