//! `weft plan --once`: the brain for one question, where no agent runs. The meta-plugin starts it.
//!
//! Pods and definitions come from manifests (`-f`), or from the cluster. A question comes in on stdin, an answer goes out on stdout, in the form of [`rpc::exchange`]. A refusal is an
//! answer too: the exit code is 0 whenever one was given.

use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use cni::Error;
use npwg::configuration::{Flavour, NodeConfiguration};
use npwg::plan::{Plan, Sandbox};
use rpc::exchange::{self, Answer, Order, Question, Reply};

use crate::input_files;
use crate::input_files::Kind;
use crate::manifest_plan;
use cli_support::failure::{EXIT_CODES, Failure};
use kube_support::client;
use node_agent::single_plan;

/// What `weft plan` is told.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft plan --once -f /etc/weft/manifests <request >response

Request and response each are a length (four bytes, big-endian) and as many bytes of JSON. The meta-plugin runs this
command if no agent answers on its socket and manifestDir is not set.

{EXIT_CODES}"))]
pub(crate) struct Arguments {
    /// Answer one request and exit
    #[arg(long, required = true)]
    once: bool,
    /// Files or directories with manifests of pods and definitions (default: the API server)
    #[arg(short = 'f', long = "file", value_name = "FILE|DIR", num_args = 1..)]
    files: Vec<PathBuf>,
    /// Path to a kubeconfig (default: kubeconfig of the meta-plugin's configuration, then in-cluster configuration)
    #[arg(long, env = "KUBECONFIG", value_name = "FILE", value_parser = client::path)]
    kubeconfig: Option<PathBuf>,
}

/// Does it.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { once: _, files, kubeconfig } = arguments;
    let question: Question = exchange::receive(&mut io::stdin().lock()).map_err(|error| {
        Failure::from(error)
            .next("a question is read from stdin, as the meta-plugin sends it: weft plan --help")
    })?;
    let reply = match answer(&question, files, kubeconfig.as_deref()) {
        Ok((plan, orders)) => Reply { answer: Answer::Plan(Box::new(plan)), orders },
        Err(error) => Reply::plain(Answer::Refused(error)),
    };
    Ok(exchange::send(&mut io::stdout().lock(), &reply)?)
}

fn answer(
    question: &Question,
    files: &[PathBuf],
    kubeconfig: Option<&Path>,
) -> Result<(Plan, Vec<Order>), Error> {
    question.check()?;
    let flavour = if question.multus { Flavour::Multus } else { Flavour::Weft };
    let node = NodeConfiguration::read(question.configuration.get().as_bytes(), flavour)?;
    if files.is_empty() {
        let configured = node.kubeconfig.as_deref().map(Path::new);
        let said = kubeconfig.filter(|path| !path.as_os_str().is_empty());
        return single_plan::plan(question, &node, said.or(configured));
    }
    let files = input_files::read(files).map_err(Error::from)?;
    let manifests = manifest_plan::collect(files.iter().filter(|file| file.kind == Kind::Manifest));
    let sandbox = Sandbox { container: question.container.clone(), ifname: question.ifname.clone() };
    let plan = manifests.plan(&node, &question.disk(), &question.pod, &sandbox)?;
    Ok((plan, Vec::new()))
}
