//! Results of the benches: rows with their goals, the file that stores them, and the pages and plots made from that file.
//!
//! - A row compares weft with another program or states a figure. [`goals`] has the limits of every row in one table.
//! - A row that misses a limit ends its bench with [`MISSED`], after all rows are printed.
//! - [`report`] renders the file; it writes every figure of a page.

pub mod bars;
pub mod goals;
pub mod machine;
pub mod plot;
pub mod report;
pub mod results;
pub mod table;

/// Exit status of a bench of which a row misses its goal. Other failures have status 1.
pub const MISSED: u8 = 3;

/// Error that ends a benchmark; it is printed.
pub type Failure = Box<dyn std::error::Error>;
