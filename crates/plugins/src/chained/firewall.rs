//! `firewall`: accepts traffic from containers and the replies to it, and isolates containers if the policy
//! says so.
//!
//! Rules beyond the reference plugin's:
//! - The backend `nftables` is native. It is the default where neither firewalld nor iptables chains are in
//!   use.
//! - DEL needs no addresses and, except for firewalld's zone, no configuration; it removes the rules in every
//!   backend.
//! - An invalid policy is reported before any change. A failed ADD leaves nothing for the container.
//!
//! Source: containernetworking/plugins `plugins/meta/firewall` v1.9.1.

mod firewalld;
mod ingress;
pub mod iptables;
mod nftables;
mod settings;

use cni::error::collected;
use cni::invocation::{Attach, Detach, Probe, Sweep};
use cni::invoke::Invoke;
use cni::plugin::Plugin;
use cni::result::Success;
use cni::{Error, code};
use ipnet::IpNet;
use plugin_config::firewall::{Backend, Settings};
use plugin_support::log;
use plugin_support::netns::open_netns;
use plugin_support::owner_tag::OwnerTag;

use self::iptables::ContainerRules;
use self::settings::{PolicyTarget, chosen, container_addresses, expect_interface};

/// Plugin `firewall`.
pub struct Firewall;

const NAME: &str = "firewall";
/// iptables table that contains the rules.
pub const TABLE: &str = "filter";
/// Chain in that table with the containers' rules.
pub const PRIVATE: &str = "CNI-FORWARD";

// === impl Plugin ===

impl Plugin for Firewall {
    fn name(&self) -> &'static str {
        NAME
    }

    fn add(&self, request: &Attach, _: &dyn Invoke) -> Result<Success, Error> {
        let (wanted, result) = RequestedRules::read(request)?;
        open_netns(&request.netns)?;
        if wanted.addresses.is_empty() {
            let ifname = &request.who.ifname;
            log!(
                "firewall: prevResult has no address of {ifname}, so no traffic of the container is accepted"
            );
        }
        wanted.add().inspect_err(|_| drop(wanted.remove()))?;
        Ok(result)
    }

    fn del(&self, request: &Detach, _: &dyn Invoke) -> Result<(), Error> {
        let config = &request.call.config;
        let tag = OwnerTag::of(NAME, config, &request.who);
        // An invalid prevResult says nothing about addresses.
        let known = config
            .prev_result()
            .ok()
            .flatten()
            .map(|result| container_addresses(&result, request.who.ifname.as_str()));
        remove(&tag, Settings::read(config).ok().as_ref(), &known.unwrap_or_default())
    }

    fn check(&self, request: &Attach, _: &dyn Invoke) -> Result<(), Error> {
        let (mut wanted, _) = RequestedRules::read(request)?;
        // The backend that the host prefers may have changed since ADD.
        if wanted.settings.backend.is_none() && nftables::has(&wanted.tag, &wanted.addresses)? {
            wanted.backend = Backend::Nftables;
        }
        wanted.check()
    }

    fn gc(&self, request: &Sweep, _: &dyn Invoke) -> Result<(), Error> {
        let Some(valid) = request.valid()? else { return Ok(()) };
        let network = request.call.config.name.as_str();
        let natively = nftables::sweep(NAME, network, &valid);
        let zoned = natively.clone().unwrap_or_default().left_zone;
        let zone = Settings::read(&request.call.config).map(|settings| settings.zone);
        let swept = [
            natively.map(drop),
            zone.and_then(|zone| firewalld::remove(&zone, &zoned)),
            ingress::sweep(NAME, network, &valid),
            iptables::sweep(NAME, network, &valid),
        ];
        collected(swept.into_iter().filter_map(Result::err).collect())
    }

    fn status(&self, request: &Probe, _: &dyn Invoke) -> Result<(), Error> {
        let able = match chosen(&Settings::read(&request.call.config)?)? {
            Backend::Nftables => nftables::status(),
            Backend::Iptables => iptables::status(),
            Backend::Firewalld => firewalld::status(),
        };
        able.map_err(|error| Error { code: code::NOT_AVAILABLE, ..error })
    }
}

/// Rules to add, and in which backend.
struct RequestedRules {
    tag: OwnerTag,
    settings: Settings,
    backend: Backend,
    addresses: Vec<IpNet>,
    target: Option<PolicyTarget>,
}

// === impl RequestedRules ===

impl RequestedRules {
    /// Reads the configuration; also returns the previous plugin's result.
    fn read(request: &Attach) -> Result<(RequestedRules, Success), Error> {
        let config = &request.call.config;
        let settings = Settings::read(config)?;
        let result = config.require_prev_result()?;
        let ifname = request.who.ifname.as_str();
        expect_interface(&result, ifname)?;
        let target = PolicyTarget::read(settings.policy, &result, ifname)?;
        let tag = OwnerTag::of(NAME, config, &request.who);
        let backend = chosen(&settings)?;
        let addresses = container_addresses(&result, ifname);
        Ok((RequestedRules { tag, settings, backend, addresses, target }, result))
    }

    fn container_rules(&self) -> ContainerRules<'_> {
        let RequestedRules { tag, settings, backend: _, addresses, target } = self;
        let Settings { admin_chain, policy, .. } = settings;
        ContainerRules { tag, admin_chain, addresses, policy: *policy, target: target.as_ref() }
    }

    fn add(&self) -> Result<(), Error> {
        let RequestedRules { tag, settings, backend, addresses, target } = self;
        match backend {
            Backend::Iptables => return self.container_rules().add(),
            Backend::Nftables => nftables::add(tag, addresses)?,
            Backend::Firewalld => {
                nftables::record_zone_owner(tag, addresses)?;
                firewalld::add(&settings.zone, addresses)?;
            }
        }
        match target {
            Some(target) => ingress::add(settings.policy, tag, target),
            None => Ok(()),
        }
    }

    fn check(&self) -> Result<(), Error> {
        let RequestedRules { tag, settings, backend, addresses, target } = self;
        match backend {
            Backend::Iptables => return self.container_rules().check(),
            Backend::Nftables => nftables::check(tag, addresses)?,
            Backend::Firewalld => firewalld::check(&settings.zone, addresses)?,
        }
        match target {
            Some(target) => ingress::check(settings.policy, tag, target),
            None => Ok(()),
        }
    }

    fn remove(&self) -> Result<(), Error> {
        remove(&self.tag, Some(&self.settings), &self.addresses)
    }
}

/// Removes an attachment's rules in every backend; `known` are the attachment's addresses.
fn remove(tag: &OwnerTag, settings: Option<&Settings>, known: &[IpNet]) -> Result<(), Error> {
    let natively = nftables::remove(tag);
    let mut removed = Vec::new();
    if let Some(Settings { backend: None | Some(Backend::Firewalld), zone, .. }) = settings {
        let own = natively.iter().flat_map(|removed| &removed.left_zone);
        let own = own.filter(|net| !known.contains(net)).copied();
        // An address in the zone may belong to another container by now: that one keeps it.
        removed.push(nftables::without_zone_owner(known).and_then(|mut zoned| {
            zoned.extend(own);
            firewalld::remove(zone, &zoned)
        }));
    }
    // The reference plugin's rules have no owner. Those of an attachment that nftables accepted belong to another one.
    let unowned = if natively.as_ref().is_ok_and(|removed| removed.any) { &[] } else { known };
    removed.extend([natively.map(drop), ingress::remove(tag), iptables::remove(tag, unowned)]);
    collected(removed.into_iter().filter_map(Result::err).collect())
}
