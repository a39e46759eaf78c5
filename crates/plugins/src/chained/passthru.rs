//! `passthru`: changes nothing and passes the result of the previous plugin on.
//!
//! The meta-plugin puts it in front of the plugins of `auxiliaryCNIChainName`, as Multus does, because a chain must not
//! begin with a chained plugin. Without a previous plugin the result is empty.
//!
//! Source: multus-cni `cmd/passthru-cni` v4.2.

use cni::Error;
use cni::invocation::{Attach, Detach, Probe, Sweep};
use cni::invoke::Invoke;
use cni::plugin::Plugin;
use cni::result::Success;

/// Plugin `passthru`.
pub struct Passthru;

impl Plugin for Passthru {
    fn name(&self) -> &'static str {
        "passthru"
    }

    fn add(&self, request: &Attach, _: &dyn Invoke) -> Result<Success, Error> {
        Ok(request.call.config.prev_result()?.unwrap_or_default())
    }

    fn del(&self, _: &Detach, _: &dyn Invoke) -> Result<(), Error> {
        Ok(())
    }

    fn check(&self, _: &Attach, _: &dyn Invoke) -> Result<(), Error> {
        Ok(())
    }

    fn gc(&self, _: &Sweep, _: &dyn Invoke) -> Result<(), Error> {
        Ok(())
    }

    fn status(&self, _: &Probe, _: &dyn Invoke) -> Result<(), Error> {
        Ok(())
    }
}
