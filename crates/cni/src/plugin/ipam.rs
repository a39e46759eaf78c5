//! Calls the IPAM plugin named in `ipam.type`, with the same stdin and variables.
//!
//! - The IPAM plugin gets the complete configuration, byte for byte, and the same variables (§4).
//! - When it fails, code and details are kept; the message gets the prefix `ipam TYPE: …`.
//! - After a failed ADD, DEL is *not* called. The ADD may have failed because the address already belongs to this
//!   attachment, and then DEL would release the address of a running container.
//! - If an ADD succeeds with an invalid result, it is undone, because no other call could release that reservation.
//!
//! Source: SPEC 1.1.0 §4 (S30), SPEC v0.3.0 "IP Allocation"; plugins `pkg/ipam`.

use crate::error::{Context, Error};
use crate::invocation::Call;
use crate::invoke::Invoke;
use crate::name::PluginType;
use crate::result::Success;
use crate::version::Verb;

/// IPAM for one call.
#[derive(Clone, Copy)]
pub struct Ipam<'a> {
    call: &'a Call,
    delegates: &'a dyn Invoke,
}

impl<'a> Ipam<'a> {
    /// Returns the IPAM for a call. If the network has no IPAM plugin, the first use fails and names the key.
    pub fn new(call: &'a Call, delegates: &'a dyn Invoke) -> Ipam<'a> {
        Ipam { call, delegates }
    }

    /// Returns the IPAM for a call; `None` for a layer-2 network, which has no `ipam.type`.
    ///
    /// # Errors
    /// Code 7: `ipam` has another form, or the type is not a plugin name.
    pub fn configured(call: &'a Call, delegates: &'a dyn Invoke) -> Result<Option<Ipam<'a>>, Error> {
        let plugin = call.config.ipam_type()?;
        if plugin.is_empty() {
            return Ok(None);
        }
        PluginType::new(&plugin).context("ipam.type")?;
        Ok(Some(Ipam { call, delegates }))
    }

    /// Reserves addresses.
    ///
    /// # Errors
    /// The IPAM plugin's error. Code 6 or 7: the output is not a result; the reservation was released.
    pub fn add(&self) -> Result<Success, Error> {
        let (plugin, stdout) = self.invoke(Verb::Add)?;
        let read = match stdout.iter().all(u8::is_ascii_whitespace) {
            true => Err(Error::internal("ADD printed no result")),
            false => Success::read(&stdout, self.call.config.version),
        };
        match read {
            Ok((_, success)) => Ok(success),
            Err(error) => {
                let undone = self.del().context("undo").err();
                Err(error.context(format_args!("ipam {plugin}")).also(undone))
            }
        }
    }

    /// Releases the addresses; it is not an error if there are none.
    pub fn del(&self) -> Result<(), Error> {
        self.invoke(Verb::Del).map(|_| ())
    }

    /// Whether the container's interface must still exist when the addresses are released.
    pub fn needs_interface(&self) -> bool {
        self.call.config.ipam_type().is_ok_and(|plugin| self.delegates.releases_through_interface(&plugin))
    }

    /// Fails unless the addresses in `prevResult` are still reserved.
    pub fn check(&self) -> Result<(), Error> {
        self.invoke(Verb::Check).map(|_| ())
    }

    /// Forwards the list of valid attachments.
    pub fn gc(&self) -> Result<(), Error> {
        self.invoke(Verb::Gc).map(|_| ())
    }

    /// Fails if no address could be reserved now.
    pub fn status(&self) -> Result<(), Error> {
        self.invoke(Verb::Status).map(|_| ())
    }

    fn invoke(&self, verb: Verb) -> Result<(PluginType, Vec<u8>), Error> {
        let plugin = PluginType::new(&self.call.config.ipam_type()?).context("ipam.type")?;
        let environment = self.call.delegate(verb);
        let stdout = self
            .delegates
            .invoke(&plugin, &environment, self.call.config.bytes())
            .context(format_args!("ipam {plugin}"))?;
        Ok((plugin, stdout))
    }
}

#[cfg(test)]
mod tests;
