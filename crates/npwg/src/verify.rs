//! Verification after ADD: whether the result shows the addresses that the pod requested.
//!
//! An attachment without the requested addresses fails and is undone with the others (C1), so no request is dropped
//! silently. Every interface that the result has in the sandbox counts: OVN-Kubernetes first returns the interface on
//! the cluster's own network and then the one on the pod's primary network, which has the requested addresses. A result
//! has no field for a GUID, so a GUID is compared only with the hardware address on an IPoIB interface.
//!
//! Source: multi-network specification v1.0, 4.1.2.1.3.2 and 4.1.2.1.4.2; v1.2, 4.1.2.1.10.

use cni::address::{format_mac, parse_mac};
use cni::name::IfName;
use cni::result::{IpConfig, Success};

use crate::outcome::{Own, addresses_of, in_sandbox};
use crate::plan::{Delegate, Verify};
use crate::refusal::{Fault, Refusal};
use crate::rule::Rule;

/// Compares the result of `delegate`'s ADD with the pod's requests.
///
/// # Errors
/// The first request that the result does not show.
pub fn verify(delegate: &Delegate, result: &Success) -> Result<(), Refusal> {
    let Verify { ips, mac, guid } = &delegate.verify;
    let own = Own::of(result, &delegate.ifname);
    let inside = || in_sandbox(result);
    let addresses: Vec<&IpConfig> = match inside().next() {
        None => own.addresses,
        Some(_) => inside().flat_map(|(index, _)| addresses_of(result, index)).collect(),
    };
    let subject = subject(&delegate.network, &delegate.ifname);
    for ip in ips {
        if !addresses.iter().any(|given| given.address.addr() == ip.address) {
            let given: Vec<String> = addresses.iter().map(|given| given.address.to_string()).collect();
            let fault = Fault::new(Rule::AddressNotAssigned, &subject, missing("address", &given.join(", ")));
            return Err(Refusal::failed(fault.showing(&format!("\"{ip}\"")).hint(CURE)));
        }
    }
    let shown = own.interface.and_then(|interface| parse_mac(&interface.mac));
    if let Some(mac) = mac
        && !inside().any(|(_, interface)| parse_mac(&interface.mac).as_deref() == Some(mac.bytes()))
    {
        let given = shown.as_deref().map(format_mac).unwrap_or_default();
        let fault = Fault::new(Rule::MacNotAssigned, &subject, missing("hardware address", &given));
        return Err(Refusal::failed(fault.showing(&format!("\"{mac}\"")).hint(CURE)));
    }
    // A result has no field for a GUID. It is compared only with the lower half of an IPoIB address.
    let lower = shown.as_deref().filter(|bytes| bytes.len() >= 8).and_then(|bytes| bytes.last_chunk::<8>());
    if let (Some(guid), Some(lower)) = (guid, lower)
        && guid.bytes() != lower
    {
        let fault = Fault::new(Rule::GuidNotAssigned, &subject, missing("GUID", &format_mac(lower)));
        return Err(Refusal::failed(fault.showing(&format!("\"{guid}\"")).hint(CURE)));
    }
    Ok(())
}

const CURE: &str = "use plugins that honour the request";

fn subject(network: &str, ifname: &IfName) -> String {
    format!("result of {network} on {ifname}")
}

fn missing(what: &str, given: &str) -> String {
    match given {
        "" => format!("the requested {what} was not assigned"),
        given => format!("the requested {what} was not assigned, but {given}"),
    }
}

#[cfg(test)]
mod tests;
