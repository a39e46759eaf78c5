//! Derives fixed-length names from a SHA-512 hash in hexadecimal form.

use sha2::{Digest, Sha512};

/// Returns `prefix` followed by hexadecimal digits of a SHA-512 hash over the parts, `length` bytes in total.
///
/// With `n` digits, two of `k` names collide with a probability of about k²/2·16ⁿ. For example, 11 digits (an interface
/// name such as `veth…`) and 1,000 pods give 1 in 35 million.
pub fn hashed(prefix: &str, length: usize, parts: &[&str]) -> String {
    hex(prefix, length, &digest(parts))
}

/// Returns the SHA-512 hash over all parts.
pub fn digest(parts: &[&str]) -> [u8; 64] {
    let mut hash = Sha512::new();
    for part in parts {
        hash.update(part.as_bytes());
        // A separator that no name can contain, so that ("a", "bc") and ("ab", "c") hash differently.
        hash.update([0]);
    }
    hash.finalize().into()
}

/// Returns `prefix` followed by hexadecimal digits from `bytes`, `length` bytes in total.
pub fn hex(prefix: &str, length: usize, bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits =
        bytes.iter().flat_map(|byte| [byte >> 4, byte & 0xf]).map(|digit| DIGITS[usize::from(digit)]);
    let mut name = prefix.to_owned();
    name.extend(digits.map(char::from).take(length.saturating_sub(prefix.len())));
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashed_name_has_its_length_and_depends_on_every_part() {
        let name = hashed("veth", 15, &["net", "container", "eth0"]);
        assert_eq!(name.len(), 15);
        assert_ne!(name, hashed("veth", 15, &["net", "containe", "reth0"]));
    }
}
