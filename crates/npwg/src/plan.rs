//! The plan: all that will be done for a pod, decided before anything is done.
//!
//! A [`Plan`] is data. It is made by [`plan`] from data, written to the journal before its first effect,
//! and read again, perhaps by a later release, when the sandbox is checked or torn down. It holds the
//! bytes of every configuration and every name that was chosen, so nothing that changes after it (a pod,
//! a definition, a file, this code) changes what a DEL does.
//!
//! Source: the standard v1.3, sections 3.4, 4, 6 and 7.

mod access;
mod chain;
mod interface;
mod ledger;
mod limits;
mod networks;
mod route;
mod transport;

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
use crate::refusal::{Fault, Refusal, Warning, clip};
use crate::request::DefaultRoute;
use crate::rule::Rule;
use crate::selection::Element;

pub use crate::metadata::PodIdentity;
pub use access::Access;
pub use networks::wanted;
pub use route::{Families, Gateway, RouteWish};

/// Most bytes of configurations in one plan: a plan goes over a socket and into a journal.
pub const CONFIGURATIONS_MAX: usize = 4 << 20;

/// The form of plan this release writes. An older form is read, a newer one is not.
pub const PLAN_VERSION: u32 = 1;

/// Everything to be done for one sandbox.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// The form: [`PLAN_VERSION`].
    pub version: u32,
    /// Whose sandbox it is.
    pub pod: PodIdentity,
    /// The sandbox.
    pub container: ContainerId,
    /// How the status is to be written.
    pub status: StatusStyle,
    /// The networks, in the order of attachment; the first is the default network.
    pub delegates: Vec<Delegate>,
    /// What a person should hear of.
    pub warnings: Vec<Warning>,
    /// What its planner notes for itself; who carries the plan out only keeps it.
    #[serde(default, skip_serializing_if = "Object::is_empty")]
    pub note: Object,
}

/// One network a pod is attached to: the unit of ADD, CHECK and DEL.
///
/// An attachment is [`Plan::container`], `config_name` and `ifname`, in every operation (NPWG1-4.2.1-1).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Delegate {
    /// The network as the status names it: `namespace/name` of its definition, else its CNI name.
    pub network: String,
    /// Why the pod is attached to it.
    pub role: Role,
    /// The network's CNI name.
    pub config_name: NetworkName,
    /// The configuration list to run, byte for byte.
    pub config: String,
    /// `CNI_IFNAME`.
    pub ifname: IfName,
    /// Values by capability name; each plugin gets those it declares.
    pub runtime_config: Object,
    /// Pairs to append to the runtime's `CNI_ARGS`.
    pub args: Vec<(String, String)>,
    /// What the result must show.
    pub verify: Verify,
    /// What the pod asked of it ([`Element::requests`](crate::selection::Element::requests)), if it selected it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<BTreeMap<String, String>>,
    /// What to do about default routes once every network is attached.
    pub default_route: RouteWish,
    /// The file that carries what is known about its device, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_info: Option<DeviceInfoFile>,
    /// Where each decision came from.
    pub because: Vec<Decision>,
}

/// Why a pod is attached to a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// It is the default network: first, exactly one, the one whose result the runtime gets.
    Default,
    /// The node's configuration gives it to every pod.
    Every,
    /// The pod selects it.
    Selected,
}

/// What the result of an ADD must show; empty if nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Verify {
    /// These addresses, on the attachment's interface.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<RequestedIp>,
    /// This hardware address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<HardwareAddress>,
    /// This GUID, if the result shows any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guid: Option<HardwareAddress>,
}

/// The file that carries what is known about an attachment's device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceInfoFile {
    /// Copied from here before ADD, if there is such a file (DI-1).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_from: Option<String>,
    /// The file: read after ADD (DI-4), removed after DEL (DI-5).
    pub path: String,
}

/// One decision and its ground, for a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// What was decided: `network`, `config`, `interface`, a key of the selection.
    pub what: String,
    /// The outcome.
    pub value: String,
    /// Its ground.
    pub why: String,
}

impl Decision {
    fn new(what: &str, value: impl std::fmt::Display, why: impl Into<String>) -> Decision {
        Decision { what: what.to_owned(), value: clip(&value.to_string()), why: why.into() }
    }
}

/// All that a plan is made from.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// The sandbox and the interface name the runtime asks for.
    pub sandbox: &'a Sandbox,
    /// The meta-plugin's configuration, with the runtime's `runtimeConfig` in it.
    pub node: &'a NodeConfiguration,
    /// Finds definitions.
    pub definitions: &'a dyn Definitions,
    /// The networks on disk, from the places of [`NodeConfiguration::places`].
    pub disk: &'a Disk,
    /// The devices the kubelet gave to the pod.
    pub devices: &'a Devices,
    /// Which definitions this pod may not use.
    pub access: &'a Access,
    /// What the sandbox is attached to already.
    pub held: &'a [Held],
}

/// A network that a sandbox is attached to already: one that is selected again keeps what it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The network as the status names it.
    pub network: String,
    /// Its interface, which it keeps if the pod asks for no name.
    pub ifname: IfName,
    /// Its device, which it keeps if the pod asks for no other.
    pub device: Option<String>,
}

impl Held {
    /// Is it this attachment?
    pub fn is(&self, network: &str, ifname: &IfName) -> bool {
        self.network == network && self.ifname == *ifname
    }
}

/// What the runtime says about the sandbox.
#[derive(Clone, Debug)]
pub struct Sandbox {
    /// `CNI_CONTAINERID`.
    pub container: ContainerId,
    /// `CNI_IFNAME`: the default network's interface.
    pub ifname: IfName,
}

/// Decides everything for one pod.
///
/// # Flow
/// 1. The default-network annotation, else the node's configuration, names the default network; the networks of
///    every pod follow (not in system namespaces), then the selection, in its order.
/// 2. Each definition is checked against isolation and `access`, found, and resolved by the four rules.
/// 3. Interface names are given: the asked-for ones first, generated ones around them.
/// 4. Devices are taken from one ledger: those that are held already, then in the order of the networks.
/// 5. Each request is put into every channel the standard's versions name, and into `args.cni` of every plugin.
///
/// # Guarantees
/// The same input gives the same plan. Interface names differ. The runtime's `runtimeConfig` is in the
/// default network's delegate alone. A configuration nothing is added to keeps its bytes. No input panics.
///
/// # Errors
/// The first refusal: an attachment that cannot be made as asked, or, if the node's policy says so, an
/// invalid annotation. If the policy says otherwise that annotation is left out and a warning stays.
pub fn plan(request: &Request<'_>) -> Result<Plan, Refusal> {
    let Pod { namespace, name, uid, host_network, .. } = request.pod;
    if *host_network {
        let fault = Fault::new(
            Rule::HostNetworkPod,
            format!("pod {namespace}/{name}"),
            "uses the network of its node",
        );
        return Err(Refusal::failed(fault.cure("no networks can be attached to it")));
    }
    let mut warnings = request.node.warnings.clone();
    let drafts = networks::collect(request, &mut warnings)?;
    let names = interface::assign(&request.sandbox.ifname, &drafts, request.held)?;
    let held: Vec<Option<&str>> = drafts
        .iter()
        .zip(&names)
        .map(|(draft, (ifname, _))| held_device(request.held, draft, ifname))
        .collect();
    let mut ledger = ledger::Ledger::new(request.devices, drafts.iter().zip(&held));
    let mut delegates = Vec::with_capacity(drafts.len());
    let mut room = CONFIGURATIONS_MAX;
    for ((draft, (ifname, because)), held) in drafts.iter().zip(names).zip(held) {
        let device = ledger.take(draft, held)?;
        let mut delegate = delegate(request, draft, &ifname, device.as_ref(), &mut warnings)?;
        delegate.because.insert(1, because);
        room = room.checked_sub(delegate.config.len()).ok_or_else(|| too_large(&draft.subject))?;
        delegates.push(delegate);
    }
    let asked: Vec<&DefaultRoute> = drafts.iter().map(networks::Draft::default_route).collect();
    for (delegate, wish) in delegates.iter_mut().zip(route::wishes(&asked, &drafts)?) {
        delegate.because.extend(wish.reason());
        delegate.default_route = wish;
    }
    Ok(Plan {
        version: PLAN_VERSION,
        pod: PodIdentity { namespace: namespace.clone(), name: name.clone(), uid: uid.clone() },
        container: request.sandbox.container.clone(),
        status: request.node.status,
        delegates,
        warnings,
        note: Object::default(),
    })
}

fn too_large(subject: &str) -> Refusal {
    let reason = format!("the configurations of this pod's networks exceed {CONFIGURATIONS_MAX} bytes");
    Refusal::failed(
        Fault::new(Rule::ConfigurationTooLarge, subject, reason).cure("select fewer or smaller networks"),
    )
}

/// The device that this attachment holds and may keep.
fn held_device<'a>(held: &'a [Held], draft: &networks::Draft, ifname: &IfName) -> Option<&'a str> {
    let asked = draft.element().and_then(|element| element.device_id.as_deref());
    let id = held.iter().find(|held| held.is(&draft.label, ifname))?.device.as_deref();
    id.filter(|id| asked.is_none_or(|asked| asked == *id))
}

/// One draft with everything it asks for put where the plugins will look.
fn delegate(
    request: &Request<'_>,
    draft: &networks::Draft,
    ifname: &IfName,
    device: Option<&ledger::Taken>,
    warnings: &mut Vec<Warning>,
) -> Result<Delegate, Refusal> {
    let mut because = vec![draft.because(), draft.origin()];
    let mut channels = transport::channels(request, draft, warnings)?;
    let file = device::attachment_file(&draft.label, &request.sandbox.container, ifname);
    let device_info = channels.add_device(device, file);
    because.append(&mut channels.because);
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
        default_route: RouteWish::Untouched,
        device_info,
        because,
    })
}

impl Plan {
    /// Reads a plan that was written as JSON.
    ///
    /// # Errors
    /// 6 not a plan, or one of a newer release: it is left alone rather than half understood.
    pub fn read(bytes: &[u8]) -> Result<Plan, cni::Error> {
        #[derive(Deserialize)]
        struct Head {
            version: u32,
        }
        let fault = |why: String| cni::Error::new(cni::code::DECODING_FAILURE, format!("plan: {why}"));
        let head: Head = serde_json::from_slice(bytes).map_err(|cause| fault(cause.to_string()))?;
        if head.version == 0 || head.version > PLAN_VERSION {
            return Err(fault(format!("version {}: this release reads up to {PLAN_VERSION}", head.version)));
        }
        serde_json::from_slice(bytes).map_err(|cause| fault(cause.to_string()))
    }

    /// The definitions this plan rests on, as `namespace/name`; networks without one are left out.
    pub fn selected(&self) -> impl Iterator<Item = &Delegate> {
        self.delegates.iter().filter(|delegate| delegate.role == Role::Selected)
    }
}

impl Delegate {
    /// The device it was given: every plugin of its configuration was told.
    pub fn device(&self) -> Option<String> {
        let network = Network::parse(self.config.as_bytes(), &self.network).ok()?;
        network.plugins.first()?.text("deviceID").ok()?
    }
}

impl Verify {
    /// Is there nothing to verify?
    pub fn is_empty(&self) -> bool {
        *self == Verify::default()
    }
}

/// How messages name a reference inside an annotation.
fn reference_fault(rule: Rule, draft_subject: &str, network: &NetworkReference, reason: &str) -> Fault {
    Fault::new(rule, draft_subject, reason).showing(&format!("{:?}", network.to_string()))
}

#[cfg(test)]
mod tests;
