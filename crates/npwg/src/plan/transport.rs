//! Transport of requests to the plugins, in every form that a version of the specification names.
//!
//! | request | `args.cni` (v1.0) | `runtimeConfig` (v1.1) | `CNI_ARGS` (Multus) | enforced by |
//! |---|---|---|---|---|
//! | `ips` | `ips` | `ips` | `IP`, if it is one | the policy (C1) |
//! | `mac` | `mac` | `mac`; 20 bytes also `infinibandGUID` (C2) | `MAC`, if of 6 bytes | the policy (C1) |
//! | `infiniband-guid` | – | `infinibandGUID` | – | capability |
//! | `portMappings`, `bandwidth` | – | the same | – | capability |
//! | `cni-args` | its keys | – | – | for `ips` and `mac` among them the capability, if the policy requires it |
//! | `ipam-claim-reference` | the same | – | – | – (V13-4.1.2.1.11-2) |
//! | a virtual machine | its name, for IPAM plugins of weft | – | – | the node agent |
//! | a device | (`deviceID`, `pciBusID` beside it) | `deviceID`, `CNIDeviceInfoFile` | – | – |
//!
//! `CNI_ARGS` has no lists: two addresses in `IP` make the reference plugins fail (M20). Only the default network gets
//! the `runtimeConfig` of the runtime, and it gets all of it (V11-7.5-1, M5).
//!
//! Source: multi-network specification v1.0–v1.3, 4.1.2.1.*.2; CONVENTIONS.md; conflicts C1, C2, C8, C9.

use std::collections::BTreeSet;

use cni::capability::{self, HardwareAddress, RequestedIp};
use cni::fold::same;
use cni::object::Object;
use serde::Serialize;
use serde_json::Value;

use super::devices::AllocatedDevice;
use super::networks::{Asked, Draft};
use super::{Decision, DeviceInfoFile, Request, Role, Verify, virtual_machine};
use crate::configuration::IpRequestPolicy;
use crate::device;
use crate::metadata::VIRTUAL_MACHINE;
use crate::refusal::{Fault, Reason, Refusal, Warning, quote};
use crate::request::{ETHERNET_LENGTH, guid_of};
use crate::rule::Rule;

/// Values to pass to the plugins, by form.
#[derive(Default)]
pub(super) struct Channels {
    /// Keys that every plugin gets in `args.cni`.
    pub(super) args_cni: Object,
    /// Capability arguments, for plugins that declare the capability.
    pub(super) runtime_config: Object,
    /// Pairs to append to `CNI_ARGS`.
    pub(super) args: Vec<(String, String)>,
    /// Values that the result must show.
    pub(super) verify: Verify,
    /// Decisions, for users.
    pub(super) because: Vec<Decision>,
    declared: BTreeSet<String>,
}

/// Returns the values for one network.
pub(super) fn channels(
    request: &Request<'_>,
    draft: &Draft,
    warnings: &mut Vec<Warning>,
) -> Result<Channels, Refusal> {
    let declared = draft.network.capabilities().map_err(|error| {
        let fault = Fault::new(Rule::MalformedConfig, &draft.subject, error.to_string());
        Refusal::failed(fault)
    })?;
    let mut channels = Channels { declared, ..Channels::default() };
    if draft.role == Role::Default {
        channels.runtime_config = request.node.runtime_config.clone();
    }
    if let Some(asked) = &draft.asked {
        let policy = request.node.ip_request_policy;
        Requests { asked, policy, subject: &draft.subject, warnings, channels: &mut channels }.put()?;
    }
    // A request of the pod does not make it a virtual machine.
    channels.args_cni.banish(VIRTUAL_MACHINE);
    if let Some(machine) = virtual_machine::kept_for(request.pod, &draft.network) {
        channels.arg(VIRTUAL_MACHINE, machine);
        let why = "its addresses are kept for the virtual machine";
        channels.because.push(Decision::new("virtual machine", machine, why));
    }
    Ok(channels)
}

impl Channels {
    /// Adds the device, and returns the path of the information file.
    pub(super) fn add_device(
        &mut self,
        device: Option<&AllocatedDevice>,
        file: Option<String>,
    ) -> Option<DeviceInfoFile> {
        if let Some(AllocatedDevice { id, resource: _, why }) = device {
            self.because.push(Decision::new("device", id, why.clone()));
            self.declare(capability::DEVICE_ID, id);
        }
        let from = device.and_then(|device| device::plugin_file(&device.resource, &device.id));
        if from.is_none() && !self.declared.contains(capability::DEVICE_INFO_FILE) {
            return None;
        }
        let path = file?;
        self.declare(capability::DEVICE_INFO_FILE, &path);
        Some(DeviceInfoFile { copy_from: from, path })
    }

    /// Sets a capability argument if a plugin declares the capability; returns whether one does.
    fn declare<T: Serialize + ?Sized>(&mut self, capability: &str, value: &T) -> bool {
        let declared = self.declared.contains(capability);
        if let (true, Ok(raw)) = (declared, serde_json::value::to_raw_value(value)) {
            self.runtime_config.impose(capability, raw);
        }
        declared
    }

    fn arg<T: Serialize + ?Sized>(&mut self, key: &str, value: &T) {
        if let Ok(raw) = serde_json::value::to_raw_value(value) {
            self.args_cni.impose(key, raw);
        }
    }
}

/// Requests in one element, and the values to fill in.
struct Requests<'a> {
    asked: &'a Asked,
    policy: IpRequestPolicy,
    subject: &'a str,
    warnings: &'a mut Vec<Warning>,
    channels: &'a mut Channels,
}

impl Requests<'_> {
    fn put(&mut self) -> Result<(), Refusal> {
        let element = &self.asked.element;
        self.channels.args_cni = element.cni_args.clone();
        if !element.cni_args.is_empty() {
            let keys: Vec<&str> = element.cni_args.iter().map(|(key, _)| key).collect();
            self.channels.because.push(Decision::new(
                "cni-args",
                keys.join(", "),
                "requested; in args.cni of every plugin",
            ));
            self.require_capability_of_args()?;
        }
        if !element.ips.is_empty() {
            self.ips(&element.ips)?;
        }
        if let Some(mac) = &element.mac {
            self.mac(mac)?;
        }
        if let Some(guid) = &element.guid {
            self.require_capability("infiniband-guid", capability::INFINIBAND_GUID, guid)?;
            self.channels.verify.guid = (self.policy != IpRequestPolicy::Permissive).then(|| guid.clone());
            self.note("infiniband-guid", guid.to_string(), false);
        }
        if !element.port_mappings.is_empty() {
            self.port_mappings()?;
        }
        if let Some(bandwidth) = element.bandwidth {
            self.require_capability("bandwidth", capability::BANDWIDTH, &bandwidth)?;
            self.note("bandwidth", serde_json::to_string(&bandwidth).unwrap_or_default(), false);
        }
        if let Some(claim) = &element.ipam_claim {
            self.agree("ipam-claim-reference", claim, |value| value.as_str() == Some(claim))?;
            self.channels.arg("ipam-claim-reference", claim);
            self.note("ipam-claim-reference", claim.clone(), false);
        }
        Ok(())
    }

    fn ips(&mut self, ips: &[RequestedIp]) -> Result<(), Refusal> {
        let read = |value: &Value| -> Option<Vec<RequestedIp>> {
            value.as_array()?.iter().map(|item| RequestedIp::parse(item.as_str()?)).collect()
        };
        self.agree("ips", &ips, |value| read(value).as_deref() == Some(ips))?;
        self.channels.arg("ips", ips);
        self.enforce("ips", &ips)?;
        if let [only] = ips {
            self.channels.args.push(("IP".to_owned(), only.to_string()));
        }
        if self.policy.requires_result() {
            self.channels.verify.ips = ips.to_vec();
        }
        let all: Vec<String> = ips.iter().map(ToString::to_string).collect();
        self.note("ips", all.join(", "), self.policy.requires_result());
        Ok(())
    }

    fn mac(&mut self, mac: &HardwareAddress) -> Result<(), Refusal> {
        let agrees = |value: &Value| value.as_str().and_then(HardwareAddress::parse).as_ref() == Some(mac);
        self.agree("mac", mac, agrees)?;
        self.channels.arg("mac", mac);
        let understood = |capability: &str| self.channels.declared.contains(capability);
        let as_guid = !understood(capability::MAC) && understood(capability::INFINIBAND_GUID);
        let guid = guid_of(mac).filter(|_| as_guid);
        match &guid {
            // C2: a plugin that only knows GUIDs understands a 20-byte address by its lower half; it cannot choose the upper half.
            Some(guid) => {
                self.channels.declare(capability::INFINIBAND_GUID, guid);
            }
            None => self.enforce("mac", mac)?,
        }
        if self.policy.requires_result() {
            match guid {
                Some(guid) => self.channels.verify.guid = Some(guid),
                None => self.channels.verify.mac = Some(mac.clone()),
            }
        }
        if mac.bytes().len() == ETHERNET_LENGTH {
            self.channels.args.push(("MAC".to_owned(), mac.to_string()));
        }
        self.note("mac", mac.to_string(), self.policy.requires_result());
        Ok(())
    }

    /// Passes the port mappings; on the default network they are added to the runtime's.
    fn port_mappings(&mut self) -> Result<(), Refusal> {
        let own = &self.asked.element.port_mappings;
        let given: Vec<Value> =
            self.channels.runtime_config.read("portMappings").ok().flatten().unwrap_or_default();
        let added = own.iter().filter_map(|mapping| serde_json::to_value(mapping).ok());
        let all: Vec<Value> = given.into_iter().chain(added).collect();
        self.require_capability("portMappings", capability::PORT_MAPPINGS, &all)?;
        self.note("portMappings", serde_json::to_string(own).unwrap_or_default(), false);
        Ok(())
    }

    /// Enforces a v1.0 request: the policy decides whether the capability is required.
    fn enforce<T: Serialize>(&mut self, key: &str, value: &T) -> Result<(), Refusal> {
        if self.channels.declare(key, value) {
            return Ok(());
        }
        let fault = self.undeclared(key, key, value);
        match self.policy.requires_capability() {
            true => Err(Refusal::failed(fault)),
            false => {
                self.warnings.push(Warning::new(Reason::CapabilityMissing, fault));
                Ok(())
            }
        }
    }

    /// Passes a request from v1.1 or later, which a plugin implements only if it declares the capability.
    fn require_capability<T: Serialize>(
        &mut self,
        key: &str,
        capability: &str,
        value: &T,
    ) -> Result<(), Refusal> {
        if self.channels.declare(capability, value) {
            return Ok(());
        }
        let fault = self.undeclared(key, capability, value);
        match self.policy {
            IpRequestPolicy::Permissive => {
                self.warnings.push(Warning::new(Reason::CapabilityMissing, fault));
                Ok(())
            }
            _ => Err(Refusal::failed(fault)),
        }
    }

    fn undeclared<T: Serialize + ?Sized>(&self, key: &str, capability: &str, value: &T) -> Fault {
        let reason = format!("no plugin of {} declares the capability {capability}", self.subject);
        let hint =
            format!("write \"capabilities\": {{\"{capability}\": true}} into the plugin that understands it");
        let shown = serde_json::to_string(value).unwrap_or_default();
        self.asked.fault(Rule::MissingCapability, key, reason).showing(&shown).hint(hint)
    }

    /// Refuses addresses in `cni-args` if the policy requires a capability for them and no plugin declares it.
    fn require_capability_of_args(&self) -> Result<(), Refusal> {
        if !self.policy.requires_capability() {
            return Ok(());
        }
        for (key, value) in self.asked.element.cni_args.iter() {
            let request = [capability::IPS, capability::MAC].into_iter().find(|request| same(key, request));
            if let Some(request) = request.filter(|request| !self.channels.declared.contains(*request)) {
                return Err(Refusal::failed(self.undeclared("cni-args", request, value)));
            }
        }
        Ok(())
    }

    /// Refuses a `cni-args` key that contradicts the request with the same name (C8).
    fn agree<T: Serialize + ?Sized>(
        &self,
        key: &str,
        value: &T,
        agrees: impl Fn(&Value) -> bool,
    ) -> Result<(), Refusal> {
        // Plugins in Go read a key in any case.
        let named = self.asked.element.cni_args.iter().filter(|(name, _)| same(name, key));
        let mut others = named.filter_map(|(_, raw)| serde_json::from_str::<Value>(raw.get()).ok());
        let Some(other) = others.find(|other| !agrees(other)) else { return Ok(()) };
        let shown = serde_json::to_string(value).unwrap_or_default();
        let fault = self.asked.fault(
            Rule::ConflictingCniArgs,
            key,
            format!("cni-args.{key} is {}", quote(&other.to_string())),
        );
        Err(Refusal::failed(fault.showing(&shown).hint("keep one of the two")))
    }

    fn note(&mut self, key: &str, value: String, verified: bool) {
        let why = if verified { "requested; verified in the result" } else { "requested" };
        self.channels.because.push(Decision::new(key, value, why));
    }
}
