//! Interruption of a command: SIGINT, SIGTERM and SIGHUP set a flag, which the command checks between two steps.
//!
//! The command then removes its effects before it exits; a second signal does not shorten that. Programs that the command
//! starts have process groups of their own, so Ctrl-C in a terminal reaches the command only.
//!
//! Source: signal(7); signal-safety(7): the handler does nothing but set the flag.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::failure::{Exit, Failure};

/// Flag that is set when the command is to stop.
#[derive(Clone, Debug)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Installs the signal handlers. From now on the signals set the flag instead of ending the process.
    pub fn watch() -> Result<Interrupt, Failure> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&flag))
                .map_err(|cause| Failure::new(format!("watch for signal {signal}: {cause}")))?;
        }
        Ok(Interrupt(flag))
    }

    /// Returns the flag for code that needs a static reference.
    pub fn flag(&self) -> &'static AtomicBool {
        Box::leak(Box::new(Arc::clone(&self.0)))
    }

    /// Whether a signal was received.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns a failure if a signal was received.
    pub fn stop_here(&self) -> Result<(), Failure> {
        if self.is_set() { Err(Failure::new("interrupted").exit(Exit::Interrupted)) } else { Ok(()) }
    }
}
