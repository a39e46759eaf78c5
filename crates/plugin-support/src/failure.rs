//! Converts kernel errors to CNI errors.

use cni::{Error, code};

/// Extension for `Result` that converts a kernel error to a CNI error.
pub trait OrRefused<T> {
    /// Converts the error and keeps the text: code 11 if a retry may succeed, otherwise 5.
    fn or_refused(self) -> Result<T, Error>;
}

impl<T> OrRefused<T> for Result<T, linux::Error> {
    fn or_refused(self) -> Result<T, Error> {
        self.map_err(|error| refused(&error))
    }
}

/// Returns the CNI error for a kernel error: code 11 if a retry may succeed, otherwise 5.
pub fn refused(error: &linux::Error) -> Error {
    let code = match error.kind() {
        linux::Kind::TimedOut | linux::Kind::Busy => code::TRY_AGAIN_LATER,
        _ => code::IO_FAILURE,
    };
    Error::new(code, error.to_string())
}
