//! Place of an attachment's rules: namespace, family and interface. It is chosen before the ADD and recorded in the journal.
//!
//! | attachment | namespace | family | interface |
//! |---|---|---|---|
//! | built-in `ptp` | host | inet | host end |
//! | built-in `bridge`, where the kernel tracks connections on bridges | host | bridge | host end |
//! | any other | pod | inet | the attachment's |

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use cni::invocation::Attachment;
use cni::network::{Network, plugin_type};
use cni::{Error, code};
use linux::Netns;
use linux::nft::{Batch, Family, Nft, State, Table, Verdict};
use npwg::plan::Delegate;
use npwg::pod_policies::POD_POLICIES_MAX;
use plugin_support::failure::OrRefused;
use rpc::journal::{Entry, PolicyRules, RulePlace};

use super::identity::{ARRIVAL, AttachmentId, TABLE};
use crate::builtins;
use crate::plugin_invoker::PluginInvoker;

/// Families of the tables in the host's namespace.
pub(super) const HOST_FAMILIES: [Family; 2] = [Family::Inet, Family::Bridge];

/// Plugins whose host end routes: every packet from the pod passes the host's IP layer.
const ROUTED: [&str; 1] = ["ptp"];
/// Plugins whose host end is a bridge port on the host.
const BRIDGED: [&str; 1] = ["bridge"];

/// Module that tracks connections on bridges.
const MODULE: &str = "nf_conntrack_bridge";

/// Maximum total size of the kernel's lists in a pod, in bytes: the names of chains and sets for all attachments, which
/// need a part of the policies' size.
const LISTS_IN_POD_MAX: usize = 4 * POD_POLICIES_MAX;
/// Maximum time in which they are read.
pub(super) const TIME_IN_POD_MAX: Duration = Duration::from_secs(10);

/// Chain that exists only within the transaction that tries connection tracking.
const TRIAL: &str = "trial";

/// Namespace and interface of the rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    kind: RulePlace,
    link: String,
}

// === impl Place ===

impl Place {
    /// Returns an attachment's recorded place, or the one that entries from earlier releases imply.
    pub(super) fn of(invoker: &PluginInvoker, entry: &Entry, delegate: &Delegate) -> Result<Place, Error> {
        match super::recorded(entry, delegate) {
            Some(rules) => Ok(Place::recorded(rules)),
            None => Place::choose(invoker, entry, delegate, || false),
        }
    }

    /// Returns the place in a journal record.
    pub(super) fn recorded(rules: &PolicyRules) -> Place {
        let PolicyRules { place, link, id: _, ipv6_peers: _ } = rules;
        Place { kind: *place, link: link.clone() }
    }

    /// Returns the place for the rules of a new attachment.
    pub(super) fn choose(
        invoker: &PluginInvoker,
        entry: &Entry,
        delegate: &Delegate,
        bridges_track: impl FnOnce() -> bool,
    ) -> Result<Place, Error> {
        let network = Network::parse(delegate.config.as_bytes(), &delegate.network)?;
        let in_pod = Place { kind: RulePlace::Pod, link: delegate.ifname.to_string() };
        let Some(Ok(first)) = network.plugins.first().map(plugin_type) else { return Ok(in_pod) };
        let (is_routed, is_bridged) = (ROUTED.contains(&first.as_str()), BRIDGED.contains(&first.as_str()));
        if !(is_routed || is_bridged) || !invoker.attachment(entry, delegate).in_process(&first, &entry.path)
        {
            return Ok(in_pod);
        }
        let kind = match is_routed {
            true => RulePlace::Host,
            false if bridges_track() => RulePlace::Bridge,
            false => return Ok(in_pod),
        };
        let who = Attachment { container: entry.container_id.clone(), ifname: delegate.ifname.clone() };
        let link = builtins::find(first.as_str())
            .and_then(|plugin| plugin.host_link_name(network.name.as_str(), &who, 0));
        Ok(link.map_or(in_pod, |link| Place { kind, link }))
    }

    /// Returns the record for the journal.
    pub(super) fn record(self, id: &AttachmentId) -> PolicyRules {
        let Place { kind, link } = self;
        PolicyRules { place: kind, link, id: id.to_string(), ipv6_peers: BTreeSet::new() }
    }

    /// Returns the place in the pod for an interface.
    pub(super) fn in_pod(link: &str) -> Place {
        Place { kind: RulePlace::Pod, link: link.to_owned() }
    }

    /// Returns the interface.
    pub(super) fn link(&self) -> &str {
        &self.link
    }

    /// Whether the rules are in the pod's namespace.
    pub(super) fn is_in_pod(&self) -> bool {
        self.kind == RulePlace::Pod
    }

    /// Whether the host routes every packet of the attachment.
    pub(super) fn is_routed(&self) -> bool {
        self.kind == RulePlace::Host
    }

    /// Returns the family of the table.
    pub(super) fn family(&self) -> Family {
        match self.kind {
            RulePlace::Host | RulePlace::Pod => Family::Inet,
            RulePlace::Bridge => Family::Bridge,
        }
    }

    /// Opens nf_tables in the place's namespace. `netns` is that of the sandbox.
    pub(super) fn nft(&self, netns: &str) -> Result<Nft, Error> {
        self.find_nft(netns)?.ok_or_else(|| {
            let why = format!("no network namespace at {netns:?}");
            Error::new(code::INVALID_ENVIRONMENT, why)
        })
    }

    /// Opens nf_tables in the place's namespace, if it still exists.
    pub(super) fn find_nft(&self, netns: &str) -> Result<Option<Nft>, Error> {
        if !self.is_in_pod() {
            return Nft::open().or_refused().map(Some);
        }
        let netns = Netns::find(Path::new(netns)).or_refused()?;
        netns.map(|netns| nft_in_pod(&netns, LISTS_IN_POD_MAX)).transpose()
    }
}

/// Opens nf_tables in a pod's namespace. The pod can fill it, so lists are limited.
fn nft_in_pod(netns: &Netns, bytes_max: usize) -> Result<Nft, Error> {
    netns.nft().map(|nft| nft.within(bytes_max, TIME_IN_POD_MAX)).or_refused()
}

/// Whether the kernel tracks connections on bridges, in the calling thread's namespace. Tried once in a process, unless the
/// module is neither loaded nor built in: a transaction that the kernel refuses takes as long as an ADD.
pub(super) fn bridges_track() -> bool {
    static TRIED: OnceLock<bool> = OnceLock::new();
    *TRIED.get_or_init(|| has_module() && Nft::open().and_then(|mut nft| try_tracking(&mut nft)).is_ok())
}

/// Whether the module is loaded or built in. The kernel does not load it itself.
fn has_module() -> bool {
    if Path::new("/sys/module").join(MODULE).exists() {
        return true;
    }
    let Ok(release) = std::fs::read_to_string("/proc/sys/kernel/osrelease") else { return false };
    let listed = std::fs::read_to_string(format!("/lib/modules/{}/modules.builtin", release.trim()));
    listed.is_ok_and(|listed| listed.contains(MODULE))
}

/// Commits a connection tracking rule and removes it in one transaction; only the table stays.
fn try_tracking(nft: &mut Nft) -> Result<(), linux::Error> {
    let table = Table::new(Family::Bridge, TABLE);
    if nft.has_chain(table, ARRIVAL)? {
        return Ok(());
    }
    let mut batch = Batch::new();
    let replies = table.rule().state(&[State::Established]).decide(&Verdict::Accept);
    batch.ensure_table(table).ensure_chain(table, TRIAL).add_rule(table, TRIAL, &replies);
    batch.flush_chain(table, TRIAL).delete_chain(table, TRIAL);
    nft.commit(batch)
}
