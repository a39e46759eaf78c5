//! Deadline for credentials: a kubeconfig may be a pipe without a writer, or name a credential program that
//! never ends.
//!
//! - Processes started for the credentials are killed at the deadline, with all descendants. Otherwise each attempt
//!   would leave one.
//! - A thread that reads a pipe remains until the process ends.
//!
//! Source: kube's client executes such a program, and reads files, on the calling thread; client-go's exec
//! credential plugins; `PR_SET_CHILD_SUBREAPER`(2const), proc_tid_children(5).

use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, wait};
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};

use cli_support::background::run_on_thread;
use cli_support::failure::Failure;

/// Deadline for credentials. A remote account takes some seconds.
const CREDENTIALS_MAX: Duration = Duration::from_secs(15);
/// Number of checks whether the started processes have ended, and the pause in between.
const CHECKS: usize = 50;
const PAUSE: Duration = Duration::from_millis(10);

/// Returns the result of `connecting`, which reads the credentials in a kubeconfig.
///
/// # Errors
/// It failed, or did not end in time.
pub(super) async fn within<T: Send + 'static>(
    kubeconfig: Option<&Path>,
    connecting: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> Result<T, Failure> {
    let runtime = Handle::current();
    let connected = run_on_thread(move || runtime.block_on(connecting));
    if let Ok(connected) = timeout(CREDENTIALS_MAX, connected).await {
        return connected.map_err(|error| Failure::new(error.to_string()))?;
    }
    end_descendants().await;
    let whose = kubeconfig
        .map_or("the pod's service account".to_owned(), |path| format!("kubeconfig {}", path.display()));
    Err(Failure::new(format!("{whose}: no credentials within {} s", CREDENTIALS_MAX.as_secs())).next(
        "check that the kubeconfig is a regular file, and that the credential program it names terminates",
    ))
}

/// Kills every process started from here. Orphaned descendants become this process's children and are killed,
/// too.
async fn end_descendants() {
    let _ = set_child_subreaper(Some(getpid()));
    for _ in 0..CHECKS {
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
