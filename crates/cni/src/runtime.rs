//! Runtime side of CNI: loads networks, runs the plugins, and caches results.
//!
//! [`chain`] runs one network's plugins and keeps no state. [`Runtime`] adds libcni's cache, for programs that are the
//! runtime themselves (`weft cni`, tests). The meta-plugin has the journal instead.
//!
//! The caller must ensure what no library can:
//! - The namespace is created before the first ADD and removed after the last DEL (S37).
//! - Only one operation on a container runs at a time.
//! - No GC runs during an ADD or DEL (S32).
//! - A failed ADD is followed by a DEL (S12).
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

/// Runtime with libcni's behaviour and cache.
pub struct Runtime<'a> {
    /// Calls the plugins.
    pub invoke: &'a dyn Invoke,
    /// Result cache.
    pub cache: Cache,
    /// `CNI_PATH` for calls that concern no attachment.
    pub path: String,
}

impl Runtime<'_> {
    /// Attaches a container, and caches the result for CHECK and DEL (S31).
    ///
    /// # Errors
    /// The same as for [`chain::add`], or the result cannot be cached. Nothing is undone: the caller must call
    /// [`Runtime::del`], unless the attachment existed before.
    pub fn add(&self, network: &Network, parameters: &Parameters) -> Result<Attached, Error> {
        self.cache.check(&network.name, &parameters.who)?;
        let attached = chain::add(self.invoke, network, parameters)?;
        self.cache
            .write(network, parameters, &attached)
            .context(format_args!("failed to set network {:?} cached result", network.name.as_str()))?;
        Ok(attached)
    }

    /// Detaches a container; can be repeated. The cached result is removed only when every plugin has succeeded.
    ///
    /// An invalid cached result is dropped, and the plugins get none (L6).
    pub fn del(&self, network: &Network, parameters: &Parameters) -> Result<(), Error> {
        let who = &parameters.who;
        let last = match network.version >= Version::V0_4_0 {
            true => self.cache.result(&network.name, who, network.version),
            false => Ok(None),
        };
        if last.is_err() {
            // The entry could not be read. Even if it cannot be removed either, the plugins must still run.
            let _ = self.cache.remove(&network.name, who);
        }
        chain::del(self.invoke, network, parameters, last.ok().flatten().as_ref())?;
        self.cache.remove(&network.name, who)
    }

    /// Checks an attachment. Without a cached result, the plugins decide what that means.
    ///
    /// # Errors
    /// The same as for [`chain::check`]; in addition, unlike for DEL, an invalid cached result.
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

    /// Detaches every cached attachment to this network that is not in `keep`, with the current configuration and the
    /// cached parameters. Then calls each plugin's GC.
    ///
    /// With [`Keep::Unspecified`] no cached attachment is kept, as in libcni. All errors are returned together.
    pub fn gc(&self, network: &Network, keep: Keep<'_>) -> Result<(), Error> {
        if network.disable_gc {
            return Ok(());
        }
        let kept: BTreeSet<ValidAttachment> = match keep {
            Keep::Only(valid) => valid.iter().cloned().collect(),
            Keep::Unspecified => BTreeSet::new(),
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

    /// Returns the first plugin's error if an ADD would fail now.
    pub fn status(&self, network: &Network) -> Result<(), Error> {
        chain::status(self.invoke, network, &self.path)
    }

    /// Returns the capabilities that the network declares, or all reasons why it cannot run here.
    pub fn validate(&self, network: &Network) -> Result<BTreeSet<String>, Error> {
        probe::validate(self.invoke, network, &self.path)
    }

    /// Lists the cached attachments for one container, or for all.
    pub fn attachments(&self, container: Option<&crate::name::ContainerId>) -> Result<Vec<Entry>, Error> {
        self.cache.attachments(container)
    }
}

#[cfg(test)]
mod rig;
#[cfg(test)]
mod tests;
