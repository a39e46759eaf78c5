//! `weft plan --once`: answers one plan request. The meta-plugin runs it on nodes without an agent.
//!
//! Pods and definitions come from manifests (`-f`), or from the cluster. It reads the request from standard input and
//! writes the response to standard output, in the form of [`rpc::frame`]. A refusal is a response: the exit code is 0
//! whenever a response was written.

use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use cni::{Error, code};
use rpc::frame::{self, FrameError};
use rpc::message::{Request, Response};
use rpc::plan::{PlanRequest, PlanResponse};

use crate::input_files;
use crate::input_files::Kind;
use crate::manifest_plan;
use cli_support::failure::{EXIT_CODES, Failure};
use kube_support::client;
use node_agent::single_plan;

/// Arguments of `weft plan`.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft plan --once -f /etc/weft/manifests <request >response

Request and response each are a length (four bytes, big-endian) and as many bytes of JSON: docs/design/rpc.md. The
meta-plugin runs this command if no agent answers on its socket and manifestDir is not set.

{EXIT_CODES}"))]
pub(crate) struct Arguments {
    /// Answer one request and exit
    #[arg(long, required = true)]
    once: bool,
    /// File or directory with manifests of pods and definitions; may be repeated (default: the API server)
    #[arg(short = 'f', long = "file", value_name = "FILE|DIR")]
    files: Vec<PathBuf>,
    /// Path to a kubeconfig (default: kubeconfig of the meta-plugin's configuration, then in-cluster configuration)
    #[arg(long, env = "KUBECONFIG", value_name = "FILE", value_parser = client::path)]
    kubeconfig: Option<PathBuf>,
}

/// Runs `weft plan`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { once: _, files, kubeconfig } = arguments;
    let response: Response = match frame::receive(&mut io::stdin().lock()) {
        Ok(Request::Plan(request)) => plan(&request, files, kubeconfig.as_deref()).into(),
        Ok(_) => Error::new(code::DECODING_FAILURE, "the request is not a plan request").into(),
        Err(error @ FrameError::Version { .. }) => Error::from(error).into(),
        Err(error) => {
            return Err(Failure::from(Error::from(error))
                .next("send one plan request on standard input, as the meta-plugin does: weft plan --help"));
        }
    };
    Ok(frame::send(&mut io::stdout().lock(), &response).map_err(Error::from)?)
}

fn plan(request: &PlanRequest, files: &[PathBuf], kubeconfig: Option<&Path>) -> Result<PlanResponse, Error> {
    let node = request.node.configuration()?;
    if files.is_empty() {
        let configured = node.kubeconfig.as_deref().map(Path::new);
        let given = kubeconfig.filter(|path| !path.as_os_str().is_empty());
        return single_plan::plan(request, &node, given.or(configured));
    }
    let files = input_files::read(files).map_err(Error::from)?;
    let manifests = manifest_plan::collect(files.iter().filter(|file| file.kind == Kind::Manifest));
    let plan = manifests.plan(&node, &request.node.disk(), &request.pod, &request.sandbox())?;
    Ok(PlanResponse::without_tasks(plan))
}
