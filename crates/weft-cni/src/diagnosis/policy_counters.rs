//! `weft-cni sandbox policy-counters`: reads the counters on network policy rules.
//!
//! The rules are where the journal says: on the host, or in a pod's namespace. A pod may have changed the rules in that
//! namespace, so the counters there are only what the pod shows.
//!
//! - The rules on the host are read first, and a pod's list is bounded: a pod cannot hide the counters on the
//!   host.
//! - After [`EXPIRY`] the command answers with the counters that it has.

use std::process::ExitCode;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use cni::Error;
use linux::nft::Nft;
use rpc::diagnosis::{INTERFACES_MAX, PolicyCounter, PolicyCountersRequest};
use rpc::journal::PolicyRules;

use crate::meta_plugin::{enforcement, namespace};

/// Deadline for the command.
const DEADLINE: Duration = Duration::from_secs(4);
/// Time after which the command answers with the counters that it has. It is short, because the interface
/// metrics are on the same page.
const EXPIRY: Duration = Duration::from_secs(3);
/// Time limit for the lists that one attachment has in a pod.
const LIST_TIME_MAX: Duration = Duration::from_millis(500);

/// Rules for an attachment, with the request index and the attachment's index in the request.
struct Subject<'a> {
    index: (usize, usize),
    rules: &'a PolicyRules,
}

/// Counters for an attachment, and the indexes of request and attachment.
type Answer = ((usize, usize), Vec<PolicyCounter>);

/// Prints the counters for each requested attachment, in request order; `null` for one whose rules are gone
/// or cannot be read.
pub fn run() -> Result<ExitCode, Error> {
    super::within(DEADLINE, print)
}

fn print() -> Result<ExitCode, Error> {
    let end = Instant::now() + EXPIRY;
    let requests: Vec<PolicyCountersRequest> = super::request()?;
    let mut answers: Vec<Vec<Option<Vec<PolicyCounter>>>> =
        requests.iter().map(|request| vec![None; request.attachments.len()]).collect();
    let (sender, receiver) = mpsc::channel();
    // A call of the kernel cannot be interrupted: the thread ends with the process.
    thread::spawn(move || read(&requests, &sender));
    while let Ok(((request, attachment), counters)) =
        receiver.recv_timeout(end.saturating_duration_since(Instant::now()))
    {
        answers[request][attachment] = Some(counters);
    }
    super::answer(&answers)
}

/// Sends the first attachments' counters, those with rules on the host first.
fn read(requests: &[PolicyCountersRequest], answers: &Sender<Answer>) {
    let subjects = requests.iter().enumerate().flat_map(|(at, request)| {
        let each = request.attachments.iter().enumerate();
        each.map(move |(index, rules)| Subject { index: (at, index), rules })
    });
    let (in_pods, on_host): (Vec<Subject<'_>>, Vec<Subject<'_>>) =
        subjects.take(INTERFACES_MAX).partition(|subject| enforcement::are_in_pod(subject.rules));
    if let Ok(mut nft) = Nft::open() {
        for subject in &on_host {
            let _ = send(&mut nft, subject, answers);
        }
    }
    for of_pod in in_pods.chunk_by(|one, next| one.index.0 == next.index.0) {
        let sandbox = &requests[of_pod[0].index.0].sandbox;
        let Ok(Some(netns)) = namespace::open(sandbox) else { continue };
        for subject in of_pod {
            let Ok(nft) = netns.nft() else { break };
            // A pod whose lists exceed the limit must not take the time of the others.
            if send(&mut nft.within(enforcement::LIST_IN_POD_MAX, LIST_TIME_MAX), subject, answers).is_err() {
                break;
            }
        }
    }
}

/// Sends an attachment's counters; none if the rules are gone.
///
/// # Errors
/// The rules cannot be read.
fn send(nft: &mut Nft, subject: &Subject<'_>, answers: &Sender<Answer>) -> Result<(), Error> {
    if let Some(counters) = enforcement::counters(subject.rules, nft)? {
        // The receiver is gone after the expiry.
        let _ = answers.send((subject.index, counters));
    }
    Ok(())
}
