//! What is wrong with `weft cri-proxy`, where one is used: does it answer, does the runtime behind it, how are its networks?

use std::path::Path;

use rpc::journal::Entry;
use tonic::{Code, Status};

use super::Finding;
use cli_support::failure::Failure;
use cri::network_api::{FALLBACK, Name, Network};
use cri::network_client::Client;
use cri::runtime_status::ListReport;
use cri_proxy::runtime_network;

/// Where the runtime's lists are, by the usual configurations.
const LISTS: [&str; 2] = ["/etc/cni/net.d", "/etc/cni/weft"];

/// Is one used here? One that was ended has left its list to the runtime, or sandboxes.
pub(super) fn is_used<'a>(socket: &Path, sandboxes: impl IntoIterator<Item = &'a Entry>) -> bool {
    socket.exists()
        || LISTS.iter().any(|directory| runtime_network::is_in(Path::new(directory)))
        || sandboxes.into_iter().any(|entry| entry.network == runtime_network::NAME)
}

/// What is wrong with it.
pub(super) fn findings(socket: &Path) -> Result<Vec<Finding>, Failure> {
    cli_support::async_runtime::runtime()?.block_on(async {
        let what = format!("weft cri-proxy at {}", socket.display());
        match look(socket).await {
            Ok((networks, runtime, lists)) => {
                let mut findings: Vec<Finding> = networks.iter().flat_map(of_network).collect();
                findings.extend(unread(&what, &networks, lists.as_ref()));
                findings.extend(runtime.err().filter(|status| status.code() == Code::Unavailable).map(
                    |status| {
                        Finding::new(
                            &what,
                            status.message(),
                            "start the runtime, or name its socket with --runtime",
                        )
                    },
                ));
                Ok(findings)
            }
            Err(status) => {
                let cure = "start it again; until then no sandbox is made, and those there are go";
                Ok(vec![Finding::new(what, status.message(), cure)])
            }
        }
    })
}

type Seen = (Vec<Network>, Result<(), Status>, Option<ListReport>);

async fn look(socket: &Path) -> Result<Seen, Status> {
    let client = Client::connect(socket).await?;
    Ok((
        client.list().await?,
        client.reach_runtime().await,
        client.runtime_lists(runtime_network::NAME).await,
    ))
}

/// Networks are set, and the runtime does not ask for them.
fn unread(what: &str, networks: &[Network], lists: Option<&ListReport>) -> Option<Finding> {
    let ListReport { is_read: reads, directory: from } = lists?;
    let is_set = |network: &&Network| label(network) != FALLBACK;
    let set: Vec<String> = networks.iter().filter(is_set).map(label).collect();
    if *reads || set.is_empty() {
        return None;
    }
    let why = format!(
        "the runtime reads {from:?} and has no list of the proxy from there: no sandbox gets {}",
        set.join(", ")
    );
    let cure = "conf_dir in the runtime's configuration must be the directory of --runtime-networks, and max_conf_num 1; restart the runtime then";
    Some(Finding::new(what, why, cure))
}

fn label(network: &Network) -> String {
    let metadata = network.config.as_ref().and_then(|config| config.metadata.as_ref());
    metadata.map(|metadata| Name::of(metadata).to_string()).unwrap_or_default()
}

fn of_network(network: &Network) -> Vec<Finding> {
    let what = format!("network {}", label(network));
    let status = network.status.clone().unwrap_or_default();
    // One that drains was told to.
    let unmanaged = (!status.sandbox_management && !status.draining).then(|| {
        let why = "takes no sandboxes: a plugin is missing, too old or not ready";
        Finding::new(&what, why, "weft network show, and the log of weft cri-proxy")
    });
    let disconnected = (!status.connectivity).then(|| {
        let why = "an attachment of it is not as it was made";
        Finding::new(&what, why, "make the pod anew that is named above")
    });
    unmanaged.into_iter().chain(disconnected).collect()
}
