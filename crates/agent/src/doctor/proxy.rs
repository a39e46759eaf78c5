//! What is wrong with `weft cri-proxy`, where one is used: does it answer, does the runtime behind it, how are its networks?

use std::path::Path;

use tonic::{Code, Status};

use super::Finding;
use crate::agent;
use crate::failure::Failure;
use crate::network_api::client::Client;
use crate::network_api::{Name, Network};

/// Is one used here?
pub(super) fn is_used(socket: &Path) -> bool {
    socket.exists()
}

/// What is wrong with it.
pub(super) fn findings(socket: &Path) -> Result<Vec<Finding>, Failure> {
    agent::runtime()?.block_on(async {
        let what = format!("weft cri-proxy at {}", socket.display());
        match look(socket).await {
            Ok((networks, runtime)) => {
                let mut findings: Vec<Finding> = networks.iter().flat_map(of_network).collect();
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

async fn look(socket: &Path) -> Result<(Vec<Network>, Result<(), Status>), Status> {
    let client = Client::connect(socket).await?;
    Ok((client.list().await?, client.reach_runtime().await))
}

fn of_network(network: &Network) -> Vec<Finding> {
    let name = network.config.as_ref().and_then(|config| config.metadata.as_ref()).map(Name::of);
    let what = format!("network {}", name.map(|name| name.to_string()).unwrap_or_default());
    let status = network.status.clone().unwrap_or_default();
    let unmanaged = (!status.sandbox_management).then(|| {
        let why =
            "takes no sandboxes: a plugin is missing, too old or not ready, or the network is being removed";
        Finding::new(&what, why, "weft network show, and the log of weft cri-proxy")
    });
    let disconnected = (!status.connectivity).then(|| {
        let why = "an attachment of it is not as it was made";
        Finding::new(&what, why, "make the pod anew that is named above")
    });
    unmanaged.into_iter().chain(disconnected).collect()
}
