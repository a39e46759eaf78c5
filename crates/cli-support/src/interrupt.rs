//! Interrupts a command cleanly: SIGINT, SIGTERM and SIGHUP set a flag, which the command checks between two steps.
//!
//! The command then rolls back all changes before it exits. A second signal does not cut this short, because a
//! half-finished rollback would leave objects behind. External programs run in separate process groups, so that Ctrl-C
//! in a terminal reaches only the command itself.
//!
//! Source: signal(7); signal-safety(7): the handler does nothing but set the flag.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::failure::{Exit, Failure};

/// Flag that is set when the command should stop.
#[derive(Clone, Debug)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Installs the signal handlers. From now on the signals set the flag instead of killing the process.
    pub fn watch() -> Result<Interrupt, Failure> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&flag))
                .map_err(|cause| Failure::new(format!("watch for signal {signal}: {cause}")))?;
        }
        Ok(Interrupt(flag))
    }

    /// Returns the flag as a static reference, for callbacks that cannot borrow it.
    pub fn flag(&self) -> &'static AtomicBool {
        Box::leak(Box::new(Arc::clone(&self.0)))
    }

    /// Whether a signal was received.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns an `interrupted` failure if a signal was received. Commands call this between two steps.
    pub fn stop_here(&self) -> Result<(), Failure> {
        if self.is_set() { Err(Failure::new("interrupted").exit(Exit::Interrupted)) } else { Ok(()) }
    }
}
