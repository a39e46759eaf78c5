//! Conversion of kernel errors to CNI errors.

use cni::{Error, code};

/// Extension of `Result` that converts a kernel error to a CNI error.
pub trait OrRefused<T> {
    /// Converts the error: code 11 for a transient one, else 5; the text is kept.
    fn or_refused(self) -> Result<T, Error>;
}

impl<T> OrRefused<T> for Result<T, linux::Error> {
    fn or_refused(self) -> Result<T, Error> {
        self.map_err(|error| refused(&error))
    }
}

/// Returns the CNI error for a kernel error.
pub fn refused(error: &linux::Error) -> Error {
    let code = match error.kind() {
        linux::Kind::TimedOut | linux::Kind::Busy => code::TRY_AGAIN_LATER,
        _ => code::IO_FAILURE,
    };
    Error::new(code, error.to_string())
}
