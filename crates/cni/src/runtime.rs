//! The caller: loading networks, running their plugins, remembering what came of it.
//!
//! [`chain`] runs the plugins of one network and remembers nothing; [`Runtime`] adds libcni's cache to
//! it, for whoever is the runtime himself (`weft cni`, tests). A meta-plugin is not: it has a journal.
//!
//! What a runtime must see to by itself, because no library can: a fresh namespace before the first ADD
//! and its removal after the last DEL (S37); no two operations on one container at a time; no GC while an
//! ADD or DEL is under way (S32); a DEL after an ADD that failed (S12).
//!
//! Source: SPEC 1.1.0 §3; libcni `libcni/api.go`, `libcni/conf.go` (L1–L12).

pub mod cache;
pub mod chain;
pub mod exec;
pub mod load;
pub mod probe;

use std::collections::BTreeSet;

use crate::error::{Context, Error};
use crate::invocation::ValidAttachment;
use crate::invoke::Invoke;
use crate::network::Network;
use crate::version::Version;
use cache::{Cache, Entry};
use chain::{Attached, Keep, Parameters};

/// A runtime with libcni's behaviour and cache.
pub struct Runtime<'a> {
    /// Runs the plugins.
    pub invoke: &'a dyn Invoke,
    /// Remembers results.
    pub cache: Cache,
    /// `CNI_PATH` for what is not about one attachment.
    pub path: String,
}

impl Runtime<'_> {
    /// Attaches, and remembers the result for CHECK and DEL (S31).
    ///
    /// # Errors
    /// As [`chain::add`], and if the result cannot be remembered. Nothing is undone: call
    /// [`Runtime::del`], unless the attachment was there before.
    pub fn add(&self, network: &Network, parameters: &Parameters) -> Result<Attached, Error> {
        self.cache.check(&network.name, &parameters.who)?;
        let attached = chain::add(self.invoke, network, parameters)?;
        self.cache
            .write(network, parameters, &attached)
            .context(format_args!("failed to set network {:?} cached result", network.name.as_str()))?;
        Ok(attached)
    }

    /// Detaches; any number of times. The result is forgotten only when every plugin has succeeded.
    ///
    /// A remembered result that cannot be understood is dropped, and the plugins do without (L6).
    pub fn del(&self, network: &Network, parameters: &Parameters) -> Result<(), Error> {
        let who = &parameters.who;
        let last = match network.version >= Version::V0_4_0 {
            true => self.cache.result(&network.name, who, network.version),
            false => Ok(None),
        };
        if last.is_err() {
            // It could not be read; that it cannot be removed either must not keep the plugins from acting.
            let _ = self.cache.remove(&network.name, who);
        }
        chain::del(self.invoke, network, parameters, last.ok().flatten().as_ref())?;
        self.cache.remove(&network.name, who)
    }

    /// Checks; without a remembered result the plugins decide what that means.
    ///
    /// # Errors
    /// As [`chain::check`]; and a remembered result that cannot be understood, unlike in a DEL.
    pub fn check(&self, network: &Network, parameters: &Parameters) -> Result<(), Error> {
        let possible = network.version >= Version::V0_4_0 && !network.disable_check;
        let last = match possible {
            true => self
                .cache
                .result(&network.name, &parameters.who, network.version)
                .context(format_args!("failed to get network {:?} cached result", network.name.as_str()))?,
            false => None,
        };
        chain::check(self.invoke, network, parameters, last.as_ref())
    }

    /// Deletes every remembered attachment of this network that `keep` does not name, with the network as
    /// it is now and the parameters of then; after that tells the plugins.
    ///
    /// [`Keep::Unsaid`] keeps no remembered attachment, as in libcni. All errors are returned together.
    pub fn gc(&self, network: &Network, keep: Keep<'_>) -> Result<(), Error> {
        if network.disable_gc {
            return Ok(());
        }
        let kept: BTreeSet<ValidAttachment> = match keep {
            Keep::Only(valid) => valid.iter().cloned().collect(),
            Keep::Unsaid => BTreeSet::new(),
        };
        let mut errors = Vec::new();
        let remembered = self.cache.attachments(None).unwrap_or_else(|error| {
            errors.push(error);
            Vec::new()
        });
        for mut stale in remembered {
            let who = &stale.parameters.who;
            let (container_id, ifname) = (who.container.to_string(), who.ifname.to_string());
            let key = ValidAttachment { container_id, ifname };
            if stale.network != network.name || kept.contains(&key) {
                continue;
            }
            stale.parameters.path.clone_from(&self.path);
            let what = format!("failed to delete stale attachment {} {}", key.container_id, key.ifname);
            errors.extend(self.del(network, &stale.parameters).context(what).err());
        }
        errors.extend(chain::gc(self.invoke, network, keep, &self.path).err());
        Error::join(errors).map_or(Ok(()), Err)
    }

    /// Could an ADD be served now? The first plugin's error, untouched.
    pub fn status(&self, network: &Network) -> Result<(), Error> {
        chain::status(self.invoke, network, &self.path)
    }

    /// Can this network be run here? The capabilities it declares, or all that is wrong.
    pub fn validate(&self, network: &Network) -> Result<BTreeSet<String>, Error> {
        probe::validate(self.invoke, network, &self.path)
    }

    /// What is remembered, of one container or of all.
    pub fn attachments(&self, container: Option<&crate::name::ContainerId>) -> Result<Vec<Entry>, Error> {
        self.cache.attachments(container)
    }
}

#[cfg(test)]
mod rig;
#[cfg(test)]
mod tests;
