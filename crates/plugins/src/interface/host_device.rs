//! `host-device`: an interface of the host itself, moved into the container and back.
//!
//! ```text
//!   host: eth5, up, "uplink"  ──ADD──►  container: net1, alias eth5   + a record of the rest
//!                             ◄──DEL──  (or the kernel, when the namespace ends: hardware only)
//! ```
//!
//! Rules:
//! - what it was is on the disk before moving, renaming and marking it, which is one request: whoever is killed leaves
//!   it whole;
//! - its alias is its name on the host, as the Go plugin has it: either brings home what the other moved;
//! - a DEL finds it by alias and record, in the container or wherever the kernel put it;
//! - a DEL needs no device, no bus and no configuration of it, and touches no interface that is not ours;
//! - a failed ADD gives it back as it was, with its addresses and routes.
//!
//! Source: containernetworking/plugins `plugins/main/host-device` v1.9.1; kernel `net/core/dev.c`
//! (`default_device_exit_net`).

mod device;
mod journey;
mod record;
mod store;

use cni::Error;
use cni::address::parse_mac;
use cni::error::collected;
use cni::invocation::{Attach, Call, Detach, Probe, Sweep};
use cni::invoke::Invoke;
use cni::plugin::Plugin;
use cni::plugin::ipam::Ipam;
use cni::result::{Interface, Success};
use linux::link::Link;
use linux::{Rtnl, Undo};
use plugin_support::failure::OrRefused;
use plugin_support::owner_tag::OwnerTag;
use serde::Deserialize;

use self::device::{Device, Found};
use self::record::Record;
use self::store::Kept;
use crate::interface;
use crate::interface::single::{self, Source};

/// The plugin.
pub struct HostDevice;

const NAME: &str = "host-device";

/// The configuration as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Conf {
    device: String,
    hwaddr: String,
    kernelpath: String,
    #[serde(rename = "pciBusID")]
    pci_bus_id: String,
    #[serde(rename = "runtimeConfig")]
    runtime_config: RuntimeConfig,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RuntimeConfig {
    #[serde(rename = "deviceID")]
    device_id: String,
}

impl Device {
    /// Which device is meant.
    fn read(call: &Call) -> Result<Device, Error> {
        let missing = "device: missing: name one by device, hwaddr, kernelpath, pciBusID, or let the runtime";
        Device::written(call)?.ok_or_else(|| Error::config(missing))
    }

    /// The runtime's, else the first that is configured.
    fn written(call: &Call) -> Result<Option<Device>, Error> {
        let Conf { device, hwaddr, kernelpath, pci_bus_id, runtime_config } = call.config.decode()?;
        let RuntimeConfig { device_id } = runtime_config;
        if !device_id.is_empty() {
            device::check_bus_name("runtimeConfig.deviceID", &device_id)?;
            return Ok(Some(Device::OfRuntime(device_id)));
        }
        if !device.is_empty() {
            interface::check_name("device", &device)?;
            return Ok(Some(Device::Named(device)));
        }
        if !hwaddr.is_empty() {
            let mac = parse_mac(&hwaddr);
            let mac =
                mac.ok_or_else(|| Error::key("hwaddr", format!("{hwaddr:?}"), "not a hardware address"))?;
            return Ok(Some(Device::WithAddress(mac)));
        }
        if !kernelpath.is_empty() {
            return device::check_path("kernelpath", &kernelpath).map(|path| Some(Device::AtPath(path)));
        }
        if !pci_bus_id.is_empty() {
            device::check_bus_name("pciBusID", &pci_bus_id)?;
            return Ok(Some(Device::OnPci { key: "pciBusID", address: pci_bus_id }));
        }
        Ok(None)
    }
}

// === impl Plugin ===

impl Plugin for HostDevice {
    fn name(&self) -> &'static str {
        NAME
    }

    fn add(&self, request: &Attach, delegates: &dyn Invoke) -> Result<Success, Error> {
        let device = Device::read(&request.call)?;
        // Used last: it must not fail then.
        request.call.config.dns()?;
        let ipam = Ipam::configured(&request.call, delegates)?;
        let netns = plugin_support::netns::open_netns(&request.netns)?;
        let mut host = Rtnl::open().or_refused()?;
        let link = match device.find(&mut host)? {
            Found::Link(link) => link,
            Found::InUserSpace => return userspace(request, ipam),
        };
        interface::expect_no_link(&mut netns.rtnl().or_refused()?, request.who.ifname.as_str())?;
        let mark = OwnerTag::of(NAME, &request.call.config, &request.who);
        let departure = journey::Departure::of(&mut host, &link, &mark, (&request.netns, &netns))?;
        let mut undo = Undo::new();
        undo.push(|| departure.undo(&netns));
        let moved = journey::there(&mut host, &link, &netns, request.who.ifname.as_str())?;
        single::equip(request, ipam.map_or(Source::Nowhere, Source::Managed), &netns, &moved, undo)
    }

    fn del(&self, request: &Detach, delegates: &dyn Invoke) -> Result<(), Error> {
        let mark = OwnerTag::of(NAME, &request.call.config, &request.who);
        interface::release_after(request, delegates, || journey::back(request.netns.as_deref(), &mark))
    }

    fn check(&self, request: &Attach, delegates: &dyn Invoke) -> Result<(), Error> {
        if Device::read(&request.call)?.is_in_user_space() {
            request.call.config.require_prev_result()?;
            return Ipam::configured(&request.call, delegates)?.map_or(Ok(()), |ipam| ipam.check());
        }
        single::check(request, delegates, |_, _| Ok(()))
    }

    fn gc(&self, request: &Sweep, delegates: &dyn Invoke) -> Result<(), Error> {
        let mut errors: Vec<Error> = sweep(request).err().into_iter().collect();
        errors.extend(single::gc(request, delegates).err());
        collected(errors)
    }

    fn status(&self, request: &Probe, delegates: &dyn Invoke) -> Result<(), Error> {
        // The runtime names its device with ADD alone.
        Device::written(&request.call)?;
        single::status(&request.call, delegates)
    }
}

/// A device that a program drives (DPDK): there is no interface to move, only addresses to be had.
fn userspace(request: &Attach, ipam: Option<Ipam<'_>>) -> Result<Success, Error> {
    let Attach { who, netns, call } = request;
    let sandbox = netns.display().to_string();
    let interface = Interface { name: who.ifname.to_string(), sandbox, ..Interface::default() };
    let mut result = Success { interfaces: vec![interface], ..Success::default() };
    let mut undo = Undo::new();
    if let Some(ipam) = ipam {
        let reserved = ipam.add()?;
        undo.push(move || drop(ipam.del()));
        interface::adopt(reserved, 0, &mut result)?;
    }
    interface::prefer_dns(call, &mut result)?;
    undo.commit();
    Ok(result)
}

/// Those of `links` that the kernel gave back and nobody has renamed yet: name now, and the mark of the attachment.
pub fn returned(links: &[Link]) -> Result<Vec<(String, String)>, Error> {
    let away = |record: &Record| links.iter().find(|link| record.is_away(link));
    let named = |kept: Kept| Some((away(&kept.record)?.name.clone(), kept.record.mark));
    Ok(store::all()?.into_iter().filter_map(named).collect())
}

/// Gives devices back their names that the kernel returned when the containers of this network ended.
fn sweep(request: &Sweep) -> Result<(), Error> {
    let Some(valid) = request.valid()? else { return Ok(()) };
    let network = request.call.config.name.as_str();
    let keep: Vec<OwnerTag> = valid.iter().map(|one| OwnerTag::of_valid(NAME, network, one)).collect();
    let mut host = Rtnl::open().or_refused()?;
    let mut errors = Vec::new();
    let links = host.links().or_refused()?;
    for kept in store::all()? {
        let own = kept.record.mark().filter(|mark| mark.plugin == NAME && mark.network == network);
        if kept.is_leaving || own.is_none_or(|mark| keep.contains(&mark)) {
            continue;
        }
        match journey::settle(&mut host, &links, &kept.record) {
            // What is not here may still be there: in a namespace that lives on, or with the kernel.
            Ok(there) if there || kept.record.is_lost(false) => errors.extend(kept.remove().err()),
            Ok(_) => {}
            Err(error) => errors.push(error),
        }
    }
    collected(errors)
}
