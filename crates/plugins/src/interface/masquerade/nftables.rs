//! Masquerading through nf_tables: refused until the packet filter's own module is there.

use cni::Error;
use cni::invocation::ValidAttachment;
use ipnet::IpNet;

use crate::fingerprint::Mark;

pub(super) fn add(_: &Mark, _: &[IpNet]) -> Result<(), Error> {
    Err(Error::key("ipMasqBackend", "nftables", "this version only has iptables"))
}

pub(super) fn remove(_: &Mark, _: &[IpNet]) -> Result<(), Error> {
    Ok(())
}

pub(super) fn sweep(_: &str, _: &str, _: &[ValidAttachment]) -> Result<(), Error> {
    Ok(())
}
