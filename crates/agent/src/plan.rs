//! `weft plan --once`: the brain for one question, where no agent runs. The meta-plugin starts it.
//!
//! A question comes in on stdin, an answer goes out on stdout, in the form of [`npwg::exchange`]. A refusal is an
//! answer too: the exit code is 0 whenever one was given.

use std::io;

use clap::Args;
use cni::{Error, code};
use npwg::configuration::{Flavour, NodeConfiguration};
use npwg::exchange::{self, Answer, Question, Reply};
use npwg::plan::{Plan, Sandbox};

use crate::failure::{EXIT_CODES, Failure};
use crate::planning;
use crate::sources::{self, Kind};

/// What `weft plan` is told.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft plan --once -f /etc/weft/manifests <question >answer

Both are a length (four bytes, big-endian) and as many bytes of JSON. The meta-plugin runs it where no agent
answers on its socket and no manifestDir is set.

{EXIT_CODES}"))]
pub(crate) struct Arguments {
    /// Answer one question and end
    #[arg(long, required = true)]
    once: bool,
    /// Manifests of pods and definitions: files or directories
    #[arg(short = 'f', long = "file", value_name = "FILE|DIR", num_args = 1..)]
    files: Vec<std::path::PathBuf>,
}

/// Does it.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { once: _, files } = arguments;
    let question: Question = exchange::receive(&mut io::stdin().lock())?;
    let answer = match answer(&question, files) {
        Ok(plan) => Answer::Plan(Box::new(plan)),
        Err(error) => Answer::Refused(error),
    };
    Ok(exchange::send(&mut io::stdout().lock(), &Reply::plain(answer))?)
}

fn answer(question: &Question, files: &[std::path::PathBuf]) -> Result<Plan, Error> {
    question.check()?;
    let Question { version: _, pod, container, ifname, configuration, multus, files: _, unreadable: _ } =
        question;
    let flavour = if *multus { Flavour::Multus } else { Flavour::Weft };
    let node = NodeConfiguration::read(configuration.get().as_bytes(), flavour)?;
    if files.is_empty() {
        let why =
            "weft plan --once: there is no source of pods and definitions: no -f, and no cluster is read";
        let cure = "start the agent, or set manifestDir in the meta-plugin's configuration";
        return Err(Error::new(code::TRY_AGAIN_LATER, why).details(cure));
    }
    let files = sources::read(files).map_err(Error::from)?;
    let manifests = planning::collect(files.iter().filter(|file| file.kind == Kind::Manifest));
    let sandbox = Sandbox { container: container.clone(), ifname: ifname.clone() };
    planning::plan(&manifests, &node, pod, &sandbox)
}
