//! The backend `firewalld`, which adds container addresses to a zone.
//!
//! Source: firewalld `doc/xml/firewalld.dbus.xml` (`org.fedoraproject.FirewallD1.zone`); plugins
//! `plugins/meta/firewall/firewalld.go`.

use cni::error::collected;
use cni::{Error, code};
use ipnet::IpNet;

use crate::dbus::{Bus, Call, Failure};

const NAME: &str = "org.fedoraproject.FirewallD1";
const OBJECT: &str = "/org/fedoraproject/FirewallD1";
const ZONES: &str = "org.fedoraproject.FirewallD1.zone";

/// Errors that say that the address is in the zone already.
const IN_ZONE: [&str; 2] = ["ZONE_ALREADY_SET", "ALREADY_ENABLED"];

/// Errors that say that the address is not in the zone, or that the zone does not exist.
const NOT_IN_ZONE: [&str; 3] = ["NOT_ENABLED", "UNKNOWN_SOURCE", "INVALID_ZONE"];

/// Whether firewalld is on the system bus.
pub(super) fn is_running() -> bool {
    Bus::system().and_then(|mut bus| bus.has_owner(NAME)).unwrap_or(false)
}

/// Adds the addresses to the zone; after a failure, removes those that it added.
pub(super) fn add(zone: &str, addresses: &[IpNet]) -> Result<(), Error> {
    let mut bus = connect()?;
    let mut added: Vec<&IpNet> = Vec::new();
    for net in addresses {
        match call(&mut bus, "addSource", zone, net) {
            Ok(_) => added.push(net),
            Err(failure) if says(&failure, &IN_ZONE) => {}
            Err(failure) => {
                for net in added {
                    // Best effort: the caller returns the original error.
                    let _ = call(&mut bus, "removeSource", zone, net);
                }
                return Err(refused("add", zone, net, &failure));
            }
        }
    }
    Ok(())
}

/// Fails unless the addresses are in the zone.
pub(super) fn check(zone: &str, addresses: &[IpNet]) -> Result<(), Error> {
    let mut bus = connect()?;
    for net in addresses {
        let reply = call(&mut bus, "querySource", zone, net);
        let is_there = reply.map_err(|failure| refused("find", zone, net, &failure))?.boolean();
        if is_there != Some(true) {
            return Err(Error::internal(format!("firewalld: {net} is not in zone {zone}")));
        }
    }
    Ok(())
}

/// Removes the addresses from the zone. Does nothing if firewalld is not running.
pub(super) fn remove(zone: &str, addresses: &[IpNet]) -> Result<(), Error> {
    if addresses.is_empty() {
        return Ok(());
    }
    let mut bus = match Bus::system() {
        Err(failure @ Failure::Unable(_)) => return Err(unreachable_bus(&failure)),
        // A bus that is absent or does not answer must not prevent a DEL.
        Err(_) => return Ok(()),
        Ok(bus) => bus,
    };
    if !bus.has_owner(NAME).unwrap_or(false) {
        return Ok(());
    }
    let errors = addresses.iter().filter_map(|net| match call(&mut bus, "removeSource", zone, net) {
        Err(failure) if !says(&failure, &NOT_IN_ZONE) => Some(refused("remove", zone, net, &failure)),
        _ => None,
    });
    collected(errors.collect())
}

/// Fails unless firewalld can be called.
pub(super) fn status() -> Result<(), Error> {
    let answers = connect()?.has_owner(NAME).map_err(|failure| unreachable_bus(&failure))?;
    match answers {
        true => Ok(()),
        false => Err(Error::new(code::IO_FAILURE, "firewalld is not running")),
    }
}

fn connect() -> Result<Bus, Error> {
    Bus::system().map_err(|failure| unreachable_bus(&failure))
}

fn unreachable_bus(failure: &Failure) -> Error {
    Error::new(code::IO_FAILURE, format!("firewalld: {failure}"))
}

fn call(bus: &mut Bus, member: &str, zone: &str, net: &IpNet) -> Result<crate::dbus::Reply, Failure> {
    let source = net.to_string();
    bus.call(&Call {
        destination: NAME,
        object: OBJECT,
        interface: ZONES,
        member,
        arguments: &[zone, &source],
    })
}

/// Whether an error is one of the `words` that firewalld uses; an error is a word and an explanation.
fn says(failure: &Failure, words: &[&str]) -> bool {
    match failure {
        Failure::Refused { message, .. } => words.iter().any(|word| message.starts_with(word)),
        Failure::Unable(_) | Failure::Broken(_) => false,
    }
}

fn refused(verb: &str, zone: &str, net: &IpNet, failure: &Failure) -> Error {
    Error::new(code::IO_FAILURE, format!("firewalld: {verb} source {net} in zone {zone}: {failure}"))
}
