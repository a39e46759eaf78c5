//! `macspoofchk`: refused until the packet filter's own module is there.

use cni::Error;
use cni::invocation::Sweep;
use linux::link::Link;

use crate::fingerprint::Mark;

pub(super) fn pin(_: &Link, _: &str, _: &Mark) -> Result<(), Error> {
    Err(Error::key("macspoofchk", true, "this version cannot check source addresses"))
}

pub(super) fn allow_any(_: &Mark) -> Result<(), Error> {
    Ok(())
}

pub(super) fn sweep(_: &Sweep) -> Result<(), Error> {
    Ok(())
}
