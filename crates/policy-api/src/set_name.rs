//! Name of a PolicyAddressSet: the digest of a peer selection.

use npwg::network_policy::PeerSelection;
use sha2::{Digest, Sha512};

/// Number of digest bytes in a name.
const LENGTH: usize = 32;

/// Returns the name of the object with the addresses of a selection, for example `peers-85970092…`.
pub fn set_name(selection: &PeerSelection) -> String {
    let digest = Sha512::digest(selection.text());
    digest.iter().take(LENGTH).fold("peers-".to_owned(), |name, byte| format!("{name}{byte:02x}"))
}
