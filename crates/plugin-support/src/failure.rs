//! A kernel refusal as a CNI error: the one place that knows both vocabularies.

use cni::{Error, code};

/// Turns what the kernel said into what a runtime is told.
pub trait OrRefused<T> {
    /// The refusal as a CNI error: code 11 for what may pass, 5 for the rest; the sentence stays.
    fn or_refused(self) -> Result<T, Error>;
}

impl<T> OrRefused<T> for Result<T, linux::Error> {
    fn or_refused(self) -> Result<T, Error> {
        self.map_err(|error| refused(&error))
    }
}

/// One refusal.
pub fn refused(error: &linux::Error) -> Error {
    let code = match error.kind() {
        linux::Kind::TimedOut | linux::Kind::Busy => code::TRY_AGAIN_LATER,
        _ => code::IO_FAILURE,
    };
    Error::new(code, error.to_string())
}
