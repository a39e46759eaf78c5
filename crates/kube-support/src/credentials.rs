//! Credentials that do not come: a kubeconfig may be a pipe into which nobody writes, or name a program that never ends.
//!
//! Rules: where no person waits they are given up in time, and what was started for them ends with that, whoever started it:
//! another try would leave another one. A thread that waits for a pipe is left to the end of the process.
//!
//! Source: kube's client runs such a program, and reads files, on the thread that asks; client-go's exec credential plugins;
//! `PR_SET_CHILD_SUBREAPER`(2const), proc_tid_children(5).

use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, wait};
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};

use cli_support::background::run_on_thread;
use cli_support::failure::Failure;

/// How long they may take: what asks for an account far away takes some seconds.
const PATIENCE: Duration = Duration::from_secs(15);
/// How often it is looked whether what was started has ended, and how long apart.
const LOOKS: usize = 50;
const PAUSE: Duration = Duration::from_millis(10);

/// What `having` comes to, which reads the credentials of a kubeconfig.
///
/// # Errors
/// It failed, or is not done in time.
pub(super) async fn within<T: Send + 'static>(
    kubeconfig: Option<&Path>,
    having: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> Result<T, Failure> {
    let runtime = Handle::current();
    let had = run_on_thread(move || runtime.block_on(having));
    if let Ok(had) = timeout(PATIENCE, had).await {
        return had.map_err(|error| Failure::new(error.to_string()))?;
    }
    end_descendants().await;
    let whose =
        kubeconfig.map_or("the pod's account".to_owned(), |path| format!("kubeconfig {}", path.display()));
    Err(Failure::new(format!("{whose}: no credentials within {} s", PATIENCE.as_secs()))
        .next("is it a file, and does the program end that it names for credentials?"))
}

/// Ends every process that was started from here; those that they started come to us, one after the other.
async fn end_descendants() {
    let _ = set_child_subreaper(Some(getpid()));
    for _ in 0..LOOKS {
        let children = children();
        if children.is_empty() {
            return;
        }
        for child in children {
            let _ = kill_process(child, Signal::KILL);
        }
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        sleep(PAUSE).await;
    }
}

fn children() -> Vec<Pid> {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let of_threads =
        threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let listed: Vec<String> = of_threads.collect();
    let numbers = listed.iter().flat_map(|text| text.split_ascii_whitespace());
    numbers.filter_map(|number| number.parse().ok()).filter_map(Pid::from_raw).collect()
}
