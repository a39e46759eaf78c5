//! `weft cri-proxy`: the CRI Network API, before a container runtime that does not know it.
//!
//! ```text
//!   kubelet, weft network, … ──► door ──► calls ──► backend ──► containerd, CRI-O
//! ```
//!
//! Rules: what is not ours is forwarded at the level of HTTP/2, bytes untouched, so that calls and fields of newer
//! releases pass; the proxy may be up before the runtime, and outlives it.
//!
//! Source: CRI `runtime.v1`; «CRI Network API», the proposal.

mod backend;
mod calls;
mod door;
mod relay;

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use tracing::info;

use crate::agent::{self, Log};
use crate::failure::{EXIT_CODES, Failure};
use crate::listener::Listener;
use calls::Calls;

/// Where clients find the proxy.
pub(crate) const SOCKET: &str = "/run/weft/cri.sock";

/// What `weft cri-proxy` is told.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft cri-proxy --runtime /run/containerd/containerd.sock

A kubelet is pointed at it with --container-runtime-endpoint=unix://{SOCKET}

{EXIT_CODES}"))]
pub(crate) struct Arguments {
    /// Where clients come in
    #[arg(long, default_value = SOCKET, value_name = "PATH")]
    listen: PathBuf,
    /// The container runtime's own socket
    #[arg(long, default_value = "/run/containerd/containerd.sock", value_name = "PATH")]
    runtime: PathBuf,
    #[command(flatten)]
    log: Log,
}

/// Does it, until SIGTERM or SIGINT.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    arguments.log.start()?;
    agent::runtime()?.block_on(work(arguments))
}

async fn work(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { listen, runtime, log: _ } = arguments;
    let listener = Listener::bind(listen)?;
    info!(listen = %listen.display(), runtime = %runtime.display(), "started");
    door::serve(listener, runtime.clone(), Arc::new(Calls), agent::ended()?).await;
    info!("ended");
    Ok(())
}
