//! `host-device`: moves an interface of the host into the container and back.
//!
//! ```text
//!   host: eth5, up, "uplink"  ──ADD──►  container: net1, alias eth5   + a record with the rest
//!                             ◄──DEL──  (or the kernel, when the namespace ends: hardware only)
//! ```
//!
//! Rules:
//! - The record is on disk before the device moves. One request moves it, renames it and sets the alias, so a killed
//!   ADD leaves a complete device.
//! - The alias is the device's name on the host, as the Go plugin sets it. Each plugin can return what the other moved.
//! - DEL finds the device by the record, in the container or where the kernel moved it, and gives it the recorded name
//!   and settings back, whatever a process in the container changed.
//! - DEL touches no interface that this plugin or the Go plugin did not move.
//! - A failed ADD returns the device with the former state, addresses and routes.
//!
//! Source: containernetworking/plugins `plugins/main/host-device` v1.9.1; kernel `net/core/dev.c`
//! (`default_device_exit_net`).

mod device;
mod record;
mod relocation;
mod store;

use cni::Error;
use cni::error::collected;
use cni::invocation::{Attach, Detach, Probe, Sweep};
use cni::invoke::Invoke;
use cni::plugin::Plugin;
use cni::plugin::ipam::Ipam;
use cni::result::{Interface, Success};
use linux::link::Link;
use linux::{Rtnl, Undo};
use plugin_config::host_device::Device;
use plugin_support::failure::OrRefused;
use plugin_support::owner_tag::OwnerTag;

use self::device::{Find, FoundDevice};
use self::record::Record;
use self::store::StoredRecord;
use crate::interface;
use crate::interface::single::{self, Source};

/// Plugin `host-device`.
pub struct HostDevice;

const NAME: &str = "host-device";

// === impl Plugin ===

impl Plugin for HostDevice {
    fn name(&self) -> &'static str {
        NAME
    }

    fn moves_interface(&self) -> bool {
        true
    }

    fn add(&self, request: &Attach, delegates: &dyn Invoke) -> Result<Success, Error> {
        let device = Device::read(&request.call)?;
        // Validated here because the last step of ADD uses it and must not fail.
        request.call.config.dns()?;
        let ipam = Ipam::configured(&request.call, delegates)?;
        let netns = plugin_support::netns::open_netns(&request.netns)?;
        let mut host = Rtnl::open().or_refused()?;
        let link = match device.find(&mut host)? {
            FoundDevice::Link(link) => link,
            FoundDevice::InUserSpace => return userspace(request, ipam),
        };
        interface::expect_no_link(&mut netns.rtnl().or_refused()?, request.who.ifname.as_str())?;
        let tag = OwnerTag::of(NAME, &request.call.config, &request.who);
        let pending = relocation::PendingMove::of(&mut host, &link, &tag, &request.netns, &netns)?;
        let mut undo = Undo::new();
        undo.push(|| pending.undo(&netns));
        let moved = relocation::into_container(&mut host, &link, &netns, request.who.ifname.as_str())?;
        pending.moved(&moved)?;
        single::finish_add(request, ipam.map_or(Source::Nowhere, Source::Managed), &netns, &moved, undo)
    }

    fn del(&self, request: &Detach, delegates: &dyn Invoke) -> Result<(), Error> {
        let tag = OwnerTag::of(NAME, &request.call.config, &request.who);
        // A device without a record; an invalid configuration names none.
        let configured = match Device::written(&request.call) {
            Ok(Some(Device::Named(name))) => Some(name),
            _ => None,
        };
        let to_host = || relocation::to_host(request.netns.as_deref(), &tag, configured.as_deref());
        interface::release_after(request, delegates, to_host)
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
        // The runtime passes `deviceID` with ADD only.
        Device::written(&request.call)?;
        single::status(&request.call, delegates)
    }
}

/// Attaches a device that a userspace program drives (DPDK): there is no interface to move, only addresses to allocate.
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

/// Returns the current name and the owner tag for each device in `links` that the kernel moved back to the host. A
/// device that has the original name again is left out.
pub fn returned_devices(links: &[Link]) -> Result<Vec<(String, String)>, Error> {
    let away = |record: &Record| links.iter().find(|link| record.is_away(link));
    let named = |kept: StoredRecord| Some((away(&kept.record)?.name.clone(), kept.record.tag));
    Ok(store::all()?.into_iter().filter_map(named).collect())
}

/// Whether a link in a container is a device that was moved there. A process in the container can rename the
/// device to any interface name.
///
/// # Errors
/// The records cannot be read.
pub fn is_moved(link: &Link, container: &str) -> Result<bool, Error> {
    Ok(store::of_container(container)?.iter().any(|kept| kept.record.is_inside(link)))
}

/// Renames the devices that the kernel returned when containers on this network ended.
fn sweep(request: &Sweep) -> Result<(), Error> {
    let Some(valid) = request.valid()? else { return Ok(()) };
    let network = request.call.config.name.as_str();
    let keep: Vec<OwnerTag> = valid.iter().map(|one| OwnerTag::of_valid(NAME, network, one)).collect();
    let mut host = Rtnl::open().or_refused()?;
    let mut errors = Vec::new();
    let links = host.links().or_refused()?;
    for kept in store::all()? {
        let own = kept.record.tag().filter(|tag| tag.plugin == NAME && tag.network == network);
        if kept.is_leaving || own.is_none_or(|tag| keep.contains(&tag)) {
            continue;
        }
        match relocation::restore(&mut host, &links, &kept.record) {
            // A device that is not on the host may be in a namespace that still exists, or on its way back.
            Ok(there) if there || kept.record.is_lost(false) => errors.extend(kept.remove().err()),
            Ok(_) => {}
            Err(error) => errors.push(error),
        }
    }
    collected(errors)
}
