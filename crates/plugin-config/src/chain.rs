//! iptables chain names that a configuration can contain.

use cni::Error;

/// Maximum length for a chain name, in bytes.
pub const CHAIN_MAX: usize = 28;

/// Returns the chain's name if it is safe in an iptables script.
pub fn checked_chain(key: &str, chain: String) -> Result<String, Error> {
    let legal = |byte: u8| byte.is_ascii_graphic() && !b"\"'\\!#:".contains(&byte);
    match !chain.is_empty() && chain.len() <= CHAIN_MAX && !chain.starts_with('-') && chain.bytes().all(legal)
    {
        true => Ok(chain),
        false => Err(Error::key(
            key,
            format!("{chain:?}"),
            format!("not a chain name of 1 to {CHAIN_MAX} characters"),
        )),
    }
}
