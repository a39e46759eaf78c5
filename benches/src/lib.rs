//! Bench results: rows with goals, the file that stores them, and the pages and plots made from that file.
//!
//! - A row compares weft with another program or states a figure. [`goals`] has the limits for every row in one table.
//! - If a row misses a limit, the bench ends with [`MISSED`] after all rows are printed.
//! - [`report`] renders the file; no other code writes figures on a page.

pub mod bars;
pub mod goals;
pub mod machine;
pub mod plot;
pub mod report;
pub mod results;
pub mod table;

/// Exit status for a bench in which a row misses the goal. Other errors have status 1.
pub const MISSED: u8 = 3;

/// Error that ends a benchmark and is printed.
pub type Failure = Box<dyn std::error::Error>;
