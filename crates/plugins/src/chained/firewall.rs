//! `firewall`: lets through what containers send and what is answered, and keeps others out if asked to.
//!
//! Rules beyond the reference plugin's:
//! - a native backend, and it is chosen where neither firewalld nor the chains of iptables are in use;
//! - DEL needs neither addresses nor (but for firewalld's zone) configuration, and removes what any backend made;
//! - what is wrong with a policy is found before anything is changed; a failed ADD leaves nothing of the container.
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
use plugin_support::netns::open_netns;
use plugin_support::owner_tag::OwnerTag;

use self::iptables::Passage;
use self::settings::{Backend, Place, Settings, container_addresses, expect_interface};

/// The plugin.
pub struct Firewall;

const NAME: &str = "firewall";
/// The table of iptables with its rules.
pub const TABLE: &str = "filter";
/// The chain of containers in it.
pub const PRIVATE: &str = "CNI-FORWARD";

// === impl Plugin ===

impl Plugin for Firewall {
    fn name(&self) -> &'static str {
        NAME
    }

    fn add(&self, request: &Attach, _: &dyn Invoke) -> Result<Success, Error> {
        let (wanted, result) = Wanted::read(request)?;
        open_netns(&request.netns)?;
        wanted.add().inspect_err(|_| drop(wanted.remove()))?;
        Ok(result)
    }

    fn del(&self, request: &Detach, _: &dyn Invoke) -> Result<(), Error> {
        let config = &request.call.config;
        let tag = OwnerTag::of(NAME, config, &request.who);
        // What cannot be read any more says nothing about addresses.
        let known = config.prev_result().ok().flatten().map(|result| container_addresses(&result));
        remove(&tag, Settings::read(config).ok().as_ref(), &known.unwrap_or_default())
    }

    fn check(&self, request: &Attach, _: &dyn Invoke) -> Result<(), Error> {
        let (mut wanted, _) = Wanted::read(request)?;
        // Which backend the last ADD found to be the host's may be another one by now.
        if wanted.settings.backend.is_none() && nftables::has(&wanted.tag, &wanted.addresses)? {
            wanted.backend = Backend::Nftables;
        }
        wanted.check()
    }

    fn gc(&self, request: &Sweep, _: &dyn Invoke) -> Result<(), Error> {
        let Some(valid) = request.valid()? else { return Ok(()) };
        let network = request.call.config.name.as_str();
        let natively = nftables::sweep(NAME, network, &valid);
        let zoned = natively.clone().unwrap_or_default();
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
        let able = match Settings::read(&request.call.config)?.chosen()? {
            Backend::Nftables => nftables::status(),
            Backend::Iptables => iptables::status(),
            Backend::Firewalld => firewalld::status(),
        };
        able.map_err(|error| Error { code: code::NOT_AVAILABLE, ..error })
    }
}

/// What is to be let through, and how.
struct Wanted {
    tag: OwnerTag,
    settings: Settings,
    backend: Backend,
    addresses: Vec<IpNet>,
    place: Option<Place>,
}

// === impl Wanted ===

impl Wanted {
    /// With the result of the plugin before.
    fn read(request: &Attach) -> Result<(Wanted, Success), Error> {
        let config = &request.call.config;
        let settings = Settings::read(config)?;
        let result = config.require_prev_result()?;
        expect_interface(&result, request.who.ifname.as_str())?;
        let place = Place::read(settings.policy, &result)?;
        let tag = OwnerTag::of(NAME, config, &request.who);
        let backend = settings.chosen()?;
        let addresses = container_addresses(&result);
        Ok((Wanted { tag, settings, backend, addresses, place }, result))
    }

    fn passage(&self) -> Passage<'_> {
        let Wanted { tag, settings, backend: _, addresses, place } = self;
        let Settings { admin_chain, policy, .. } = settings;
        Passage { tag, admin_chain, addresses, policy: *policy, place: place.as_ref() }
    }

    fn add(&self) -> Result<(), Error> {
        let Wanted { tag, settings, backend, addresses, place } = self;
        match backend {
            Backend::Iptables => return self.passage().add(),
            Backend::Nftables => nftables::add(tag, addresses)?,
            Backend::Firewalld => {
                nftables::note(tag, addresses)?;
                firewalld::add(&settings.zone, addresses)?;
            }
        }
        match place {
            Some(place) => ingress::add(settings.policy, tag, place),
            None => Ok(()),
        }
    }

    fn check(&self) -> Result<(), Error> {
        let Wanted { tag, settings, backend, addresses, place } = self;
        match backend {
            Backend::Iptables => return self.passage().check(),
            Backend::Nftables => nftables::check(tag, addresses)?,
            Backend::Firewalld => firewalld::check(&settings.zone, addresses)?,
        }
        match place {
            Some(place) => ingress::check(settings.policy, tag, place),
            None => Ok(()),
        }
    }

    fn remove(&self) -> Result<(), Error> {
        remove(&self.tag, Some(&self.settings), &self.addresses)
    }
}

/// Removes what was made for an attachment, by whatever it was made; `known` are its addresses.
fn remove(tag: &OwnerTag, settings: Option<&Settings>, known: &[IpNet]) -> Result<(), Error> {
    let natively = nftables::remove(tag);
    let mut removed = Vec::new();
    if let Some(Settings { backend: None | Some(Backend::Firewalld), zone, .. }) = settings {
        let own = natively.iter().flatten().filter(|net| !known.contains(net)).copied();
        // Of an address that is another container's by now the zone is that one's.
        removed.push(nftables::unnoted(known).and_then(|mut zoned| {
            zoned.extend(own);
            firewalld::remove(zone, &zoned)
        }));
    }
    removed.extend([natively.map(drop), ingress::remove(tag), iptables::remove(tag, known)]);
    collected(removed.into_iter().filter_map(Result::err).collect())
}
