//! Makes the host forward the containers' packets.

use cni::Error;
use ipnet::IpNet;
use linux::sysctl::{self, Key};
use plugin_support::failure::OrRefused;

/// Enables forwarding in the address families that `addresses` has. `sysctl -w net.ipv4.ip_forward=1`
///
/// The sysctl is written only if it is off: a write resets other parameters on every interface.
pub fn enable(addresses: &[IpNet]) -> Result<(), Error> {
    let families = [
        (addresses.iter().any(|net| net.addr().is_ipv4()), "net/ipv4/ip_forward"),
        (addresses.iter().any(|net| net.addr().is_ipv6()), "net/ipv6/conf/all/forwarding"),
    ];
    for (needed, text) in families {
        let Some(key) = Key::new(text).filter(|_| needed) else { continue };
        if sysctl::read(&key).or_refused()? != "1" {
            sysctl::write(&key, "1").or_refused()?;
        }
    }
    Ok(())
}
