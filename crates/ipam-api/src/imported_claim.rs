//! Claim of an address that was imported for a pod: it keeps the address until the pod has it from weft, or is deleted.
//!
//! ```text
//!   imported/NAMESPACE/POD/INTERFACE/NODE    the interface is empty if it is unknown
//! ```
//!
//! [`super::imported_addresses`] finds such claims in the cluster.

/// Prefix that such a claim's name has.
const PREFIX: &str = "imported/";

/// Claim on an imported address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportedClaim {
    /// Namespace that the pod is in.
    pub namespace: String,
    /// Pod name.
    pub pod: String,
    /// Interface in the pod; empty if it is unknown.
    pub interface: String,
    /// Node that the pod was on when the address was imported.
    pub node: String,
}

impl ImportedClaim {
    /// Reads a claim's name; `None` for another kind of claim.
    pub fn parse(claim: &str) -> Option<ImportedClaim> {
        let mut parts = claim.strip_prefix(PREFIX)?.split('/').map(str::to_owned);
        let mut part = || parts.next().unwrap_or_default();
        let claim = ImportedClaim { namespace: part(), pod: part(), interface: part(), node: part() };
        Some(claim).filter(|claim| !claim.namespace.is_empty() && !claim.pod.is_empty())
    }

    /// Returns the claim's name.
    pub fn name(&self) -> String {
        let ImportedClaim { namespace, pod, interface, node } = self;
        format!("{PREFIX}{namespace}/{pod}/{interface}/{node}")
    }

    /// Whether the claim is for this interface on a pod.
    pub fn is_of(&self, namespace: &str, pod: &str, interface: &str) -> bool {
        let is_interface = self.interface.is_empty() || self.interface == interface;
        self.namespace == namespace && self.pod == pod && is_interface
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imported_claim_belongs_to_one_interface_of_a_pod() {
        let claim = ImportedClaim::parse("imported/blue/web-0/net1/worker-0").unwrap();
        assert_eq!(claim.name(), "imported/blue/web-0/net1/worker-0");
        assert!(claim.is_of("blue", "web-0", "net1"));
        for (namespace, pod, interface) in
            [("red", "web-0", "net1"), ("blue", "web-1", "net1"), ("blue", "web-0", "net2")]
        {
            assert!(!claim.is_of(namespace, pod, interface), "{namespace}/{pod} {interface}");
        }
        let unknown = ImportedClaim::parse("imported/blue/web-0//").unwrap();
        assert!(unknown.is_of("blue", "web-0", "net2") && unknown.node.is_empty());
        for other in ["imported/", "imported/blue", "imported//web-0", "pod/blue/web-0/net/eth0", ""] {
            assert_eq!(ImportedClaim::parse(other), None, "{other:?}");
        }
    }
}
