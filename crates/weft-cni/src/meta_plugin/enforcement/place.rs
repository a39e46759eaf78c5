//! Place of an attachment's rules: namespace, family and interface.
//!
//! | attachment | namespace | family | interface |
//! |---|---|---|---|
//! | built-in `ptp` | host | inet | host end |
//! | any other | pod | inet | the attachment's |

use std::path::Path;

use cni::invocation::Attachment;
use cni::network::{Network, plugin_type};
use cni::{Error, code};
use linux::Netns;
use linux::nft::{Family, Nft};
use npwg::plan::Delegate;
use plugin_support::failure::OrRefused;
use rpc::journal::Entry;

use crate::builtins;
use crate::plugin_invoker::PluginInvoker;

/// Families of the tables in the host's namespace.
pub(super) const HOST_FAMILIES: [Family; 1] = [Family::Inet];

/// Plugins whose host end routes: every packet of the pod passes the IP layer of the host.
const ROUTED: [&str; 1] = ["ptp"];

/// Namespace and interface of the rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The host's namespace, at the host end.
    Host {
        /// Name of the host end.
        link: String,
    },
    /// The pod's namespace.
    Pod {
        /// Name of the interface in the pod.
        link: String,
    },
}

// === impl Place ===

impl Place {
    /// Returns the place of an attachment, the same for ADD, CHECK and DEL.
    pub(super) fn of(invoker: &PluginInvoker, entry: &Entry, delegate: &Delegate) -> Result<Place, Error> {
        let network = Network::parse(delegate.config.as_bytes(), &delegate.network)?;
        let in_pod = Place::Pod { link: delegate.ifname.to_string() };
        let Some(Ok(first)) = network.plugins.first().map(plugin_type) else { return Ok(in_pod) };
        if !ROUTED.contains(&first.as_str()) || !invoker.in_process(&first, &entry.path) {
            return Ok(in_pod);
        }
        let who = Attachment { container: entry.container_id.clone(), ifname: delegate.ifname.clone() };
        let link = builtins::find(first.as_str())
            .and_then(|plugin| plugin.host_link_name(network.name.as_str(), &who, 0));
        Ok(link.map_or(in_pod, |link| Place::Host { link }))
    }

    /// Returns the interface.
    pub(super) fn link(&self) -> &str {
        match self {
            Place::Host { link } | Place::Pod { link } => link,
        }
    }

    /// Returns the family of the table.
    pub(super) fn family(&self) -> Family {
        match self {
            Place::Host { .. } | Place::Pod { .. } => Family::Inet,
        }
    }

    /// Opens nf_tables in the place's namespace.
    pub(super) fn nft(&self, entry: &Entry) -> Result<Nft, Error> {
        self.find_nft(entry)?.ok_or_else(|| {
            let why = format!("no network namespace at {:?}", entry.netns);
            Error::new(code::INVALID_ENVIRONMENT, why)
        })
    }

    /// Opens nf_tables in the place's namespace, if it still exists.
    pub(super) fn find_nft(&self, entry: &Entry) -> Result<Option<Nft>, Error> {
        match self {
            Place::Host { .. } => Nft::open().or_refused().map(Some),
            Place::Pod { .. } => {
                let netns = Netns::find(Path::new(&entry.netns)).or_refused()?;
                netns.map(|netns| netns.nft().or_refused()).transpose()
            }
        }
    }
}
