//! The options `ipMasq` and `ipMasqBackend`.

use cni::Error;

/// Packet filter that masquerades.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// nf_tables, in one transaction.
    Nftables,
    /// `iptables-restore` and `ip6tables-restore`.
    Iptables,
}

impl Backend {
    /// Reads `ipMasqBackend`; empty is nftables.
    pub fn read(text: &str) -> Result<Backend, Error> {
        match text {
            "" | "nftables" => Ok(Backend::Nftables),
            "iptables" => Ok(Backend::Iptables),
            other => Err(Error::key("ipMasqBackend", format!("{other:?}"), "not one of nftables, iptables")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ip_masq_empty_backend_is_the_default() {
        assert_eq!(Backend::read(""), Ok(Backend::Nftables));
        assert_eq!(Backend::read("iptables"), Ok(Backend::Iptables));
        assert!(Backend::read("ebtables").is_err());
    }
}
