//! Log that the meta-plugin writes: where the lines go, and a line for how each call ended.
//!
//! - `error`: failures and warnings. `verbose`: also each ADD and DEL. `debug`: also each plugin call and the
//!   reasons in a plan.
//! - A call's error is written only to the log file, because the runtime logs it.
//! - A log file that cannot be used is named on stderr, and fails no call.
//!
//! Source: Multus `pkg/logging`.

use std::path::Path;

use cni::Error;
use cni::invocation::Attachment;
use npwg::configuration::{LogLevel, Logging};
use npwg::plan::Plan;
use plugin_support::log;
use plugin_support::log::{Destination, Level};
use plugin_support::log_file::{LogFile, Rotation};

/// Unit in which `maxSize` counts.
const MEGABYTE: u64 = 1 << 20;

/// Sets where this process's lines go.
pub(super) fn direct(logging: &Logging) {
    let level = match logging.level {
        LogLevel::Panic => None,
        LogLevel::Error => Some(Level::Error),
        LogLevel::Verbose => Some(Level::Verbose),
        LogLevel::Debug => Some(Level::Debug),
    };
    let rotation = Rotation {
        max_size: u64::from(logging.rotation.max_size) * MEGABYTE,
        max_age: logging.rotation.max_age,
        max_backups: logging.rotation.max_backups,
    };
    let opened = logging.file.as_ref().map(|path| {
        LogFile::new(Path::new(path), rotation)
            .map_err(|cause| Error::key("logFile", format_args!("{path:?}"), cause))
    });
    let (file, unusable) = match opened.transpose() {
        Ok(file) => (file, None),
        Err(error) => (None, Some(error)),
    };
    log::direct(Destination { level, to_stderr: logging.to_stderr || unusable.is_some(), file });
    if let Some(error) = unusable {
        log!("weft: {error}; the log is written to stderr");
    }
}

/// Logs how a call for a sandbox ended.
pub(super) fn outcome<T>(verb: &str, who: &Attachment, outcome: &Result<T, Error>) {
    let Attachment { container, ifname } = who;
    match outcome {
        Ok(_) => log::write(Level::Verbose, format_args!("weft: {verb} {container} {ifname}: succeeded")),
        Err(error) => {
            log::write_to_file(Level::Error, format_args!("weft: {verb} {container} {ifname}: {error}"));
        }
    }
}

/// Logs a plan's networks, and at `debug` the reason for each decision.
pub(super) fn plan(plan: &Plan) {
    let pod = &plan.pod;
    for delegate in &plan.delegates {
        let line = format_args!(
            "weft: pod {}/{} ({}): {}: network {}",
            pod.namespace, pod.name, plan.container, delegate.ifname, delegate.network
        );
        log::write(Level::Verbose, line);
        for decision in &delegate.because {
            let (what, value, why) = (&decision.what, &decision.value, &decision.why);
            log::write(Level::Debug, format_args!("weft: {}: {what} {value}: {why}", delegate.ifname));
        }
    }
}
