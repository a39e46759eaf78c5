//! The rules that pods, definitions and CNI configurations must follow, one [`Rule`] each.
//!
//! A [`Fault`](crate::refusal::Fault) names the rule it breaks. Users see the rule's name: in `weft lint`, in Events and
//! in errors. `docs/lint.md` has a section for each rule, and a test compares that page with this table.
//!
//! - A name is stable: it appears in messages, in JSON output and in the journal.
//! - A name that this release does not know reads as [`Rule::Unrecognized`], so that a plan of another release can be read.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use crate::nearest::hint;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The API server, weft or a plugin will reject the input.
    Error,
    /// The input is accepted, but the effect is probably not the intended one.
    Warning,
    /// A remark about what will happen.
    Note,
}

/// Stage at which a rule is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// In a file, by `weft lint`; and again when the networks of a pod are planned.
    File,
    /// When the networks of a pod are planned.
    Plan,
    /// After the plugins of a network have answered an ADD.
    Result,
}

/// Origin of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Section of the multi-network specification, v1.3.
    Specification(&'static str),
    /// Section of the CNI specification, v1.1.
    Cni(&'static str),
    /// Page of the Kubernetes documentation.
    Kubernetes(&'static str),
    /// Page in this project, relative to the root.
    Weft(&'static str),
}

/// Data of one rule.
struct Details {
    name: &'static str,
    severity: Severity,
    stage: Stage,
    source: Source,
    explanation: &'static str,
}

macro_rules! rules {
    ($($variant:ident $name:literal $severity:ident $stage:ident $source:ident($section:literal) $explanation:literal)*) => {
        /// A rule.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Rule {
            $(#[doc = $explanation] $variant,)*
            /// A rule of another release.
            Unrecognized,
        }

        const DETAILS: &[Details] = &[
            $(Details {
                name: $name,
                severity: Severity::$severity,
                stage: Stage::$stage,
                source: Source::$source($section),
                explanation: $explanation,
            },)*
            Details {
                name: "unrecognized",
                severity: Severity::Error,
                stage: Stage::Plan,
                source: Source::Weft("docs/lint.md"),
                explanation: "A rule of another release.",
            },
        ];

        impl Rule {
            /// Every rule in this release, in the order in `docs/lint.md`.
            pub const ALL: &'static [Rule] = &[$(Rule::$variant,)*];
        }
    };
}

rules! {
    // Files and objects.
    MalformedYaml "malformed-yaml" Error File Kubernetes("Objects in Kubernetes")
        "The file is not valid YAML or JSON, or exceeds a limit on size or nesting."
    InvalidObject "invalid-object" Error File Kubernetes("API reference")
        "A field that every Kubernetes object needs is missing or has the wrong type."
    DuplicateKey "duplicate-key" Warning File Weft("docs/lint.md")
        "A key occurs twice in one object: only the last value counts."
    DuplicateDefinition "duplicate-definition" Warning File Weft("docs/lint.md")
        "Two objects define one network: the one that is applied last counts."
    NetworkNotInFiles "network-not-in-files" Warning File Weft("docs/lint.md")
        "The pod selects a network that is in none of the files, although other definitions are."

    DuplicateAddress "duplicate-address" Warning File Weft("docs/lint.md")
        "Two pods request one address of a network: the second pod is refused, or both use the address."

    // The network annotations of a pod.
    MalformedAnnotation "malformed-annotation" Error File Specification("4.1")
        "The annotation is neither a comma-separated list of networks nor a JSON list of objects."
    AnnotationTooLarge "annotation-too-large" Error File Weft("docs/lint.md")
        "The annotation is longer than 256 KiB or selects more than 128 networks."
    UnknownAnnotation "unknown-annotation" Warning File Specification("4.1")
        "The name of the annotation is almost that of a network annotation; no component reads it."
    MisplacedAnnotation "misplaced-annotation" Warning File Specification("4.1")
        "The annotation is on a workload instead of its pod template, or not in metadata.annotations."
    HostNetworkPod "host-network-pod" Warning File Specification("1.1")
        "The pod uses the host network (hostNetwork), so no network can be attached to it."
    DefaultNetworkCount "default-network-count" Error File Weft("docs/plugins/weft.md")
        "The default-network annotation must name exactly one network."
    MalformedNetworkReference "malformed-network-reference" Error File Specification("4.1.1")
        "An element of the comma-separated form is not `[NAMESPACE/]NAME[@INTERFACE]`."
    MissingNetworkName "missing-network-name" Error File Specification("4.1.2.1.1")
        "An element of the JSON form has no name."
    InvalidNetworkName "invalid-network-name" Error File Specification("3.3")
        "The name of a NetworkAttachmentDefinition is not made of DNS labels."
    DottedNetworkName "dotted-network-name" Warning File Specification("3.3")
        "The name has dots in it: Kubernetes accepts them, other implementations of the specification may not."
    InvalidNamespace "invalid-namespace" Error File Specification("3.3")
        "A namespace is not a DNS label."
    UnknownKey "unknown-key" Warning File Weft("docs/lint.md")
        "No component reads this key; it is probably misspelled."
    EmptyValue "empty-value" Warning File Weft("docs/lint.md")
        "An empty string, list or object counts as absent."
    InvalidIps "invalid-ips" Error File Specification("4.1.2.1.3")
        "ips is not a list of at least one IP address, with or without a prefix length."
    InvalidMac "invalid-mac" Error File Specification("4.1.2.1.4")
        "mac is not an Ethernet address of 6 bytes or an IPoIB address of 20 bytes."
    InvalidInfinibandGuid "invalid-infiniband-guid" Error File Specification("4.1.2.1.10")
        "infiniband-guid is not a GUID of 8 bytes."
    MacGuidMismatch "mac-guid-mismatch" Error File Specification("4.1.2.1.10")
        "mac and infiniband-guid contradict each other."
    InvalidInterfaceName "invalid-interface-name" Error File Specification("4.1.2.1.5")
        "The kernel does not accept this name for an interface."
    DuplicateInterfaceName "duplicate-interface-name" Error File Specification("4.1.2.1.5")
        "Two attachments of a pod have the same interface name."
    ConflictingInterfaceNames "conflicting-interface-names" Error File Specification("4.1.2.1.5")
        "interface and its old name interfaceRequest name different interfaces."
    RenamedDefaultInterface "renamed-default-interface" Warning File Specification("5.2")
        "The default-network annotation renames the interface that the container runtime requested."
    InvalidCniArgs "invalid-cni-args" Error File Specification("4.1.2.1.6")
        "cni-args is not an object."
    ConflictingCniArgs "conflicting-cni-args" Error Plan Specification("4.1.2.1.6")
        "cni-args and a key of the same element request different values."
    InvalidPortMapping "invalid-port-mapping" Error File Specification("4.1.2.1.7")
        "portMappings is not a list of valid port mappings."
    InvalidBandwidth "invalid-bandwidth" Error File Specification("4.1.2.1.8")
        "bandwidth does not hold at least one rate, or a burst has no rate."
    DefaultInterfaceName "default-interface-name" Error File Specification("4.1.2.1.5")
        "interface is the name that the container runtime gives to the default network: eth0 in Kubernetes."
    InvalidDefaultRoute "invalid-default-route" Error File Specification("4.1.2.1.9")
        "default-route is not a list of IP addresses."
    DuplicateDefaultRoute "duplicate-default-route" Error File Specification("4.1.2.1.9")
        "More than one attachment of a pod requests the default route."
    InvalidIpamClaim "invalid-ipam-claim" Error File Specification("4.1.2.1.11")
        "ipam-claim-reference is not the name of an IPAMClaim."
    IpsWithIpamClaim "ips-with-ipam-claim" Error File Specification("4.1.2.1.11")
        "An element requests addresses both by ips and by ipam-claim-reference."
    InvalidDeviceId "invalid-device-id" Error File Weft("docs/devices.md")
        "deviceID is not a string of at most 253 bytes without control characters."
    InvalidResourceName "invalid-resource-name" Error File Weft("docs/devices.md")
        "resourceName is not the name of an extended resource."

    // NetworkAttachmentDefinitions and CNI configurations.
    ConfigNotAString "config-not-a-string" Error File Specification("3.1")
        "spec.config is a YAML map; it must be a string that contains JSON."
    MisplacedConfig "misplaced-config" Warning File Specification("3.1")
        "The configuration is not in spec.config, so the API server drops it."
    EmptyConfig "empty-config" Warning File Specification("3.4.1")
        "spec.config is empty and counts as absent."
    ConfigOnDisk "config-on-disk" Note File Specification("3.2")
        "The definition has no spec.config: each node uses the network of this name on its disk."
    MalformedConfig "malformed-config" Error File Specification("3.4.1")
        "The configuration is not a JSON object that CNI can read."
    NameMismatch "name-mismatch" Note File Specification("3.4.3")
        "The configuration and its NetworkAttachmentDefinition have different names."
    UnnamedConfig "unnamed-config" Note File Specification("3.4.2")
        "The configuration has no name: plugins receive the name of the definition."
    MissingConfigName "missing-config-name" Error File Cni("1, configuration objects")
        "A configuration on disk has no name."
    InvalidConfigName "invalid-config-name" Error File Cni("1, configuration objects")
        "The name of a CNI network has characters that CNI does not allow, or is not a string."
    MissingCniVersion "missing-cni-version" Warning File Cni("1, configuration objects")
        "The configuration has no cniVersion, which plugins read as 0.1.0."
    InvalidCniVersion "invalid-cni-version" Error File Cni("1, configuration objects")
        "cniVersion is not a version of the CNI specification that weft knows."
    MalformedPluginList "malformed-plugin-list" Error File Cni("1, configuration objects")
        "plugins is not a list of objects."
    MissingPlugin "missing-plugin" Error File Cni("1, configuration objects")
        "The configuration or an element of plugins names no plugin."
    InvalidPluginType "invalid-plugin-type" Error File Cni("1, plugin configuration objects")
        "type is not the file name of a plugin."
    UnknownPluginType "unknown-plugin-type" Warning File Weft("docs/lint.md")
        "type is almost the name of a known plugin, and probably misspelled."
    PluginNotFound "plugin-not-found" Warning File Cni("1, plugin configuration objects")
        "No plugin directory has a program of this name."
    FewAddresses "few-addresses" Warning File Weft("docs/ipam-scale.md")
        "The network may allocate fewer than four addresses for each node of the cluster."
    MissingInterfacePlugin "missing-interface-plugin" Error File Cni("3, overview")
        "A plugin that changes an interface has no earlier plugin that makes one."
    NoInterfacePlugin "no-interface-plugin" Warning File Cni("3, overview")
        "No plugin of the file makes an interface: it is only usable as a part of another network."
    InvalidValue "invalid-value" Error File Weft("docs/lint.md")
        "The plugin will reject the value of this key."
    MissingKey "missing-key" Error File Weft("docs/lint.md")
        "A key is missing that the plugin requires."
    MalformedArgs "malformed-args" Error File Specification("4.1.2.1.6")
        "args or args.cni is not an object, so the requests of pods cannot be added to it."
    InvalidCapabilities "invalid-capabilities" Error File Cni("1, plugin configuration objects")
        "capabilities is not an object of booleans."
    UnknownCapability "unknown-capability" Warning File Cni("1, plugin configuration objects")
        "No runtime fills in this capability; it is probably misspelled."
    StaticRuntimeConfig "static-runtime-config" Warning File Cni("3, deriving runtimeConfig")
        "runtimeConfig is filled in by the runtime; a value in the configuration is replaced or dropped."
    RecursiveNetwork "recursive-network" Error File Weft("docs/plugins/weft.md")
        "The network calls the meta-plugin again, which would attach the networks of the pod without end."
    InvalidNodeConfiguration "invalid-node-configuration" Error File Weft("docs/plugins/weft.md")
        "The configuration of the meta-plugin has an unknown, invalid or missing key."
    InvalidNetworkPolicy "invalid-network-policy" Error File Weft("docs/network-policy.md")
        "A field of the MultiNetworkPolicy is unknown, missing or invalid: the policy denies all traffic of what it selects."
    NetworkPolicyWithoutNetwork "network-policy-without-network" Error File Weft("docs/network-policy.md")
        "The MultiNetworkPolicy has no annotation k8s.v1.cni.cncf.io/policy-for: it applies to no network."
    NetworkPolicyNetworkNotInFiles "network-policy-network-not-in-files" Warning File Weft("docs/network-policy.md")
        "The MultiNetworkPolicy names a network that is in none of the files, although other definitions are."
    NetworkPolicySelectsNothing "network-policy-selects-nothing" Warning File Weft("docs/network-policy.md")
        "A selector of the MultiNetworkPolicy fits no pod of the files that is attached to one of its networks."
    NetworkPolicyDefaultTypes "network-policy-default-types" Warning File Weft("docs/network-policy.md")
        "The MultiNetworkPolicy has egress rules alone and no policyTypes: it also denies all ingress."
    NetworkPolicyNamedPortOfBlock "network-policy-named-port-of-block" Warning File Weft("docs/network-policy.md")
        "An egress rule of the MultiNetworkPolicy has a named port and an address block: a block has no named ports."
    InvalidKuryrConfig "invalid-kuryr-config" Error File Weft("docs/neutron.md")
        "The annotation openstack.org/kuryr-config cannot be read."

    // The plan of a pod.
    NetworkNotAllowed "network-not-allowed" Error Plan Specification("7.4")
        "The pod may not use this definition: namespace isolation or the annotation weft.dev/access forbids it."
    UnknownNetwork "unknown-network" Error Plan Specification("3.4.1")
        "There is no NetworkAttachmentDefinition of this namespace and name."
    ConfigNotFound "config-not-found" Error Plan Specification("3.4.1")
        "The definition has no spec.config, and the node has no network of its name on disk."
    UnknownNodeNetwork "unknown-node-network" Error Plan Specification("6")
        "clusterNetwork or defaultNetworks of the node's configuration names a network that does not exist."
    InvalidAuxiliaryChain "invalid-auxiliary-chain" Error Plan Weft("docs/plugins/weft.md")
        "The files of auxiliaryCNIChainName do not make a CNI network."
    MissingCapability "missing-capability" Error Plan Specification("4.1.2.1")
        "The pod makes a request that no plugin of the network declares as a capability."
    AddressOutsideRange "address-outside-range" Error File Weft("docs/lint.md")
        "The pod requests an address that is in no range of the network's IPAM plugin."
    DeviceNotAllocated "device-not-allocated" Error Plan Weft("docs/devices.md")
        "deviceID names a device that the kubelet did not allocate to the pod, or that another network uses."
    ResourceNotAllowed "resource-not-allowed" Error Plan Weft("docs/devices.md")
        "resourceName of the pod contradicts the resource of the definition, or the definition does not allow it."
    MissingDevice "missing-device" Error Plan Weft("docs/devices.md")
        "The network needs a device of a resource of which the pod has too few."
    NetworkPolicyNotEnforceable "network-policy-not-enforceable" Error Plan Weft("docs/network-policy.md")
        "A network policy that may select the attachment cannot be enforced: labels are unknown, or policies are too large."
    ConfigurationTooLarge "configuration-too-large" Error Plan Weft("docs/lint.md")
        "The configuration of a network, with the arguments of the pod, exceeds a limit on size or nesting."

    // The result of an ADD.
    AddressNotAssigned "address-not-assigned" Error Result Specification("4.1.2.1.3")
        "The plugins did not assign an address that the pod requests."
    MacNotAssigned "mac-not-assigned" Error Result Specification("4.1.2.1.4")
        "The plugins did not set the hardware address that the pod requests."
    GuidNotAssigned "guid-not-assigned" Error Result Specification("4.1.2.1.10")
        "The plugins did not set the InfiniBand GUID that the pod requests."
}

// === impl Rule ===

impl Rule {
    fn details(self) -> &'static Details {
        &DETAILS[self as usize]
    }

    /// Returns the name that users see: `invalid-mac`.
    pub fn name(self) -> &'static str {
        self.details().name
    }

    /// Returns the severity that `weft lint` gives a finding.
    pub fn severity(self) -> Severity {
        self.details().severity
    }

    /// Returns the stage at which the rule is checked.
    pub fn stage(self) -> Stage {
        self.details().stage
    }

    /// Returns the origin of the rule.
    pub fn source(self) -> Source {
        self.details().source
    }

    /// Returns the rule in one sentence.
    pub fn explanation(self) -> &'static str {
        self.details().explanation
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Error of a name that no rule has.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown rule{}{hint}", if hint.is_empty() { "" } else { ": " })]
pub struct UnknownRule {
    /// Suggestion of the nearest name; empty if there is none.
    pub hint: String,
}

impl FromStr for Rule {
    type Err = UnknownRule;

    fn from_str(text: &str) -> Result<Rule, UnknownRule> {
        let found = Rule::ALL.iter().copied().find(|rule| rule.name() == text);
        found.ok_or_else(|| {
            let names: Vec<&str> = Rule::ALL.iter().map(|rule| rule.name()).collect();
            UnknownRule { hint: hint(text, &names) }
        })
    }
}

impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Rule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Rule, D::Error> {
        Ok(String::deserialize(deserializer)?.parse().unwrap_or(Rule::Unrecognized))
    }
}

// === impl Source ===

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Specification(section) => {
                write!(f, "multi-network specification v1.3, section {section}")
            }
            Source::Cni(section) => write!(f, "CNI specification v1.1, section {section}"),
            Source::Kubernetes(page) => write!(f, "Kubernetes documentation, {page}"),
            Source::Weft(page) => f.write_str(page),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn rule_names_are_unique_kebab_case_and_survive_json() {
        let names: BTreeSet<&str> = Rule::ALL.iter().map(|rule| rule.name()).collect();
        assert_eq!(names.len(), Rule::ALL.len());
        assert_eq!(DETAILS.len(), Rule::ALL.len() + 1);
        for rule in Rule::ALL {
            let name = rule.name();
            let words: Vec<&str> = name.split('-').collect();
            let variant: String = words
                .iter()
                .flat_map(|word| {
                    let (first, rest) = word.split_at(1);
                    [first.to_uppercase(), rest.to_owned()]
                })
                .collect();
            assert_eq!(format!("{rule:?}"), variant, "a name is its variant in kebab case");
            let json = serde_json::to_string(rule).unwrap();
            assert_eq!(json, format!("\"{name}\""));
            assert_eq!(serde_json::from_str::<Rule>(&json).unwrap(), *rule);
        }
    }

    #[test]
    fn rule_of_another_release_reads_as_unrecognized() {
        assert_eq!(serde_json::from_str::<Rule>("\"of-tomorrow\"").unwrap(), Rule::Unrecognized);
        assert_eq!("unrecognized".parse::<Rule>(), Err(UnknownRule { hint: String::new() }));
        let near = "invalid-macs".parse::<Rule>().unwrap_err();
        assert_eq!(near.to_string(), "unknown rule: did you mean invalid-mac?");
    }

    #[test]
    fn rule_source_pages_exist() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for rule in Rule::ALL {
            if let Source::Weft(page) = rule.source() {
                assert!(root.join(page).is_file(), "{rule}: {page}");
            }
            let text = rule.explanation();
            assert!(
                text.ends_with('.') && !text.trim_end_matches('.').contains(". "),
                "{rule}: one sentence"
            );
        }
    }
}
