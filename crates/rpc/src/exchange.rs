//! Messages about blocks of addresses.

pub mod addresses;
