//! Findings about `weft cri-proxy`, if it is used: the proxy itself, the runtime behind it, and the networks.

use std::path::Path;

use rpc::journal::Entry;
use tonic::{Code, Status};

use super::Finding;
use cli_support::failure::Failure;
use cri::network_api::{FALLBACK, Name, Network};
use cri::network_client::Client;
use cri::runtime_status::ListReport;
use cri_proxy::runtime_network;

/// Directories in which a runtime behind the proxy usually has CNI configurations.
const LISTS: [&str; 2] = ["/etc/cni/net.d", "/etc/cni/weft"];

/// Whether a proxy is used on this node. A stopped proxy left a list in the runtime's directory, or sandboxes.
pub(super) fn is_used<'a>(socket: &Path, sandboxes: impl IntoIterator<Item = &'a Entry>) -> bool {
    socket.exists()
        || LISTS.iter().any(|directory| runtime_network::is_in(Path::new(directory)))
        || sandboxes.into_iter().any(|entry| entry.network == runtime_network::NAME)
}

/// Returns the findings about the proxy.
pub(super) fn findings(socket: &Path) -> Result<Vec<Finding>, Failure> {
    cli_support::async_runtime::runtime()?.block_on(async {
        let what = format!("weft cri-proxy at {}", socket.display());
        match query(socket).await {
            Ok((networks, runtime, lists)) => {
                let mut findings: Vec<Finding> = networks.iter().flat_map(network_findings).collect();
                findings.extend(unused_networks(&what, &networks, lists.as_ref()));
                findings.extend(runtime.err().filter(|status| status.code() == Code::Unavailable).map(
                    |status| {
                        Finding::new(
                            &what,
                            status.message(),
                            "start the runtime, or name its socket with --runtime of weft cri-proxy",
                        )
                    },
                ));
                Ok(findings)
            }
            Err(status) => {
                let hint = "start weft cri-proxy; until then no sandbox can be created, and existing ones are deleted without it";
                Ok(vec![Finding::new(what, status.message(), hint)])
            }
        }
    })
}

type ProxyState = (Vec<Network>, Result<(), Status>, Option<ListReport>);

async fn query(socket: &Path) -> Result<ProxyState, Status> {
    let client = Client::connect(socket).await?;
    Ok((
        client.list().await?,
        client.reach_runtime().await,
        client.runtime_lists(runtime_network::NAME).await,
    ))
}

/// Returns a finding if networks are set but the runtime does not use the proxy's list.
fn unused_networks(what: &str, networks: &[Network], lists: Option<&ListReport>) -> Option<Finding> {
    let ListReport { is_read: reads, directory: from } = lists?;
    let is_set = |network: &&Network| label(network) != FALLBACK;
    let set: Vec<String> = networks.iter().filter(is_set).map(label).collect();
    if *reads || set.is_empty() {
        return None;
    }
    let why = format!(
        "the runtime reads {from:?} and does not use the list of the proxy there, so no sandbox gets {}",
        set.join(", ")
    );
    let hint = "set conf_dir of the runtime to the directory of --runtime-networks and max_conf_num to 1, then restart the runtime";
    Some(Finding::new(what, why, hint))
}

fn label(network: &Network) -> String {
    let metadata = network.config.as_ref().and_then(|config| config.metadata.as_ref());
    metadata.map(|metadata| Name::of(metadata).to_string()).unwrap_or_default()
}

fn network_findings(network: &Network) -> Vec<Finding> {
    let what = format!("network {}", label(network));
    let status = network.status.clone().unwrap_or_default();
    // A draining network refuses sandboxes as requested.
    let unmanaged = (!status.sandbox_management && !status.draining).then(|| {
        let why = "accepts no sandboxes: a plugin is missing, too old or not ready";
        Finding::new(&what, why, "see weft network show and the log of weft cri-proxy")
    });
    let disconnected = (!status.connectivity).then(|| {
        let why = "one of its attachments changed";
        Finding::new(&what, why, "recreate the pod of the sandbox named above")
    });
    unmanaged.into_iter().chain(disconnected).collect()
}
