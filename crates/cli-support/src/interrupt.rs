//! Being told to stop: Ctrl-C and its sisters set a flag, and whoever works looks at it between two steps.
//!
//! What has been made is removed before the program ends; a second signal does not hurry that. The programs we
//! start are in process groups of their own, so a terminal's Ctrl-C reaches us alone.
//!
//! Source: signal(7); signal-safety(7): the handler does nothing but set the flag.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::failure::{Exit, Failure};

/// Whether somebody wants us to stop.
#[derive(Clone, Debug)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// From now on these signals set the flag instead of ending the program.
    pub fn watch() -> Result<Interrupt, Failure> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&flag))
                .map_err(|cause| Failure::new(format!("watch for signal {signal}: {cause}")))?;
        }
        Ok(Interrupt(flag))
    }

    /// The flag, for those who outlive whoever watches.
    pub fn flag(&self) -> &'static AtomicBool {
        Box::leak(Box::new(Arc::clone(&self.0)))
    }

    /// Has one come?
    pub fn has_come(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Stops here if one has come.
    pub fn stop_here(&self) -> Result<(), Failure> {
        match self.has_come() {
            true => Err(Failure::new("interrupted").exit(Exit::Interrupted)),
            false => Ok(()),
        }
    }
}
