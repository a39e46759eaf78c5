//! Reader and validation for MultiNetworkPolicy objects.
//!
//! - Unknown fields and unsupported values are faults, never ignored: an ignored condition would allow too
//!   much.
//! - A requirement that cannot be read is absent from a selector, so that the policy selects more pods, and
//!   denies for them.
//!
//! Source: Kubernetes `pkg/apis/networking/validation`; `metav1.LabelSelector` validation.

use std::collections::BTreeSet;

use ipnet::IpNet;
use serde_json::Value;

use super::address_range::merge;
use super::label_selector::{LabelSelector, Operator, Requirement};
use super::value_reader::{Field, Fields, ValueReader};
use super::{
    Direction, EXCEPTIONS_MAX, KIND, NETWORKS_MAX, NetworkPolicy, PEERS_MAX, POLICY_FOR, POLICY_PEERS_MAX,
    POLICY_RANGES_MAX, PORTS_MAX, PolicyPeer, PolicyPort, PolicyRule, Ports, Protocol, REQUIREMENTS_MAX,
    RULES_MAX, RuleList, VERSIONS, subject, subtract,
};
use crate::metadata::{DEFAULT_NAMESPACE, NetworkReference, definition_name_fault, label_fault};
use crate::refusal::{KeyPath, quote};
use crate::rule::Rule;

/// Largest number of networks that the message about an invalid annotation names.
const NAMES_SHOWN: usize = 8;

/// Directions that a policy isolates, and whether the author wrote them.
#[derive(Clone, Copy)]
struct Isolation {
    ingress: bool,
    egress: bool,
}

/// Returns the policy in an object from the API server or from a file.
///
/// The policy has faults, and then no rules, if anything in the object is not understood.
pub fn read(object: &Value) -> NetworkPolicy {
    let metadata = |key: &str| object.get("metadata").and_then(|metadata| metadata.get(key));
    let text = |key: &str| metadata(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (mut namespace, name) = (text("namespace"), text("name"));
    if namespace.is_empty() {
        DEFAULT_NAMESPACE.clone_into(&mut namespace);
    }
    let mut reader = ValueReader::new(subject(&namespace, &name));
    let root = Field { value: object, path: KeyPath::root() };
    let fields = reader.object(&root, &["apiVersion", "kind", "metadata", "spec"]);
    check_version(&mut reader, &fields);
    let networks = networks(&mut reader, metadata("annotations"), &namespace);
    let known = ["podSelector", "ingress", "egress", "policyTypes"];
    let empty = Value::Object(Default::default());
    let spec = match fields.find("spec") {
        Some(spec) => reader.object(&spec, &known),
        None => {
            missing_selector(&mut reader, fields.path("spec"));
            reader.object(&Field { value: &empty, path: fields.path("spec") }, &known)
        }
    };
    let pods = match spec.find("podSelector") {
        Some(field) => selector(&mut reader, &field),
        None => {
            if fields.find("spec").is_some() {
                missing_selector(&mut reader, spec.path("podSelector"));
            }
            LabelSelector::default()
        }
    };
    let ingress = rules(&mut reader, &spec, Direction::Ingress);
    let egress = rules(&mut reader, &spec, Direction::Egress);
    check_size(&mut reader, &fields.path("spec"), &[&ingress, &egress]);
    // A rule for egress may be what is not understood.
    let may_have_egress_rule = !egress.is_empty() || reader.has_faults();
    let isolation = policy_types(&mut reader, &spec, may_have_egress_rule);
    let faults = reader.faults();
    let list =
        |isolates, rules| RuleList { isolates, rules: if faults.is_empty() { rules } else { Vec::new() } };
    let (ingress, egress) = (list(isolation.ingress, ingress), list(isolation.egress, egress));
    NetworkPolicy { namespace, name, networks, pods, ingress, egress, faults }
}

fn missing_selector(reader: &mut ValueReader, path: KeyPath) {
    let hint = "write podSelector: {} in spec to select every pod of the namespace";
    reader.missing(Rule::InvalidNetworkPolicy, path, "podSelector is missing", hint);
}

/// Checks kind and version. Both versions have the same fields.
fn check_version(reader: &mut ValueReader, fields: &Fields<'_>) {
    if let Some(kind) = fields.find("kind").filter(|kind| kind.value.as_str() != Some(KIND)) {
        reader.fault(&kind, format!("is not {KIND}"), "");
    }
    match fields.find("apiVersion") {
        Some(field) if field.value.as_str().is_some_and(|version| VERSIONS.contains(&version)) => {}
        Some(field) => {
            reader.fault(&field, format!("is not a version of {KIND}"), &format!("write {}", VERSIONS[1]));
        }
        None => {
            let hint = format!("write apiVersion: {}", VERSIONS[1]);
            let path = fields.path("apiVersion");
            reader.missing(Rule::InvalidNetworkPolicy, path, "apiVersion is missing", &hint);
        }
    }
}

/// Reads the annotation with the networks of the policy.
///
/// With a wrong separator or an invalid name, the policy is in force, without rules, on every network that the text can
/// mean: the author wanted to restrict them.
fn networks(
    reader: &mut ValueReader,
    annotations: Option<&Value>,
    namespace: &str,
) -> BTreeSet<NetworkReference> {
    let path = KeyPath::root().key("metadata").key("annotations");
    let value = annotations.and_then(|annotations| annotations.get(POLICY_FOR));
    let Some(value) = value.filter(|value| value.as_str().is_none_or(|text| !text.trim().is_empty())) else {
        let hint = "write the names of NetworkAttachmentDefinitions, separated by commas";
        let reason = format!("annotation {POLICY_FOR} is missing: the policy applies to no network");
        reader.missing(Rule::NetworkPolicyWithoutNetwork, path, &reason, hint);
        return BTreeSet::new();
    };
    let field = Field { value, path: path.key(POLICY_FOR) };
    let mut networks = BTreeSet::new();
    for element in reader.text(&field).unwrap_or_default().split(',').map(str::trim) {
        let fault = match network_reference(element, namespace) {
            Ok(network) => {
                networks.insert(network);
                continue;
            }
            Err(fault) => fault,
        };
        let readable = readable_networks(element, namespace);
        let effect = match readable.is_empty() {
            true => "the policy applies to no network by it".to_owned(),
            false => {
                let names: Vec<String> = readable.iter().take(NAMES_SHOWN).map(ToString::to_string).collect();
                format!("the policy denies on {}", names.join(", "))
            }
        };
        networks.extend(readable);
        reader.fault(
            &field,
            format!("{fault}: {effect}"),
            "write NETWORK or NAMESPACE/NETWORK, separated by commas",
        );
    }
    // The policy is in force on all of them, without rules.
    if networks.len() > NETWORKS_MAX {
        reader.fault(&field, format!("names more than {NETWORKS_MAX} networks"), "write several policies");
    }
    networks
}

/// Returns the network that an element of the annotation names.
///
/// # Errors
/// The element is no name, for the reason in the text.
fn network_reference(element: &str, namespace: &str) -> Result<NetworkReference, String> {
    let (namespace, name) = element.split_once('/').unwrap_or((namespace, element));
    if let Some(fault) = label_fault(namespace) {
        return Err(format!("namespace {} {fault}", quote(namespace)));
    }
    match definition_name_fault(name) {
        Some(fault) => Err(format!("network {} {fault}", quote(name))),
        None => Ok(NetworkReference::new(namespace, name)),
    }
}

/// Returns the networks that an invalid element can mean, for example `a` and `b` of `a;b`, `a|b` or `a b`.
fn readable_networks(element: &str, namespace: &str) -> BTreeSet<NetworkReference> {
    let is_of_name = |c: char| c.is_alphanumeric() || ['-', '.', '/'].contains(&c);
    let mut networks = BTreeSet::new();
    for word in element.split(|c| !is_of_name(c)).map(str::to_ascii_lowercase) {
        let word = word.trim_matches(|c: char| !c.is_alphanumeric());
        networks.extend(network_reference(word, namespace).ok());
        // Of `a/b/c` each part may be a network, and each pair one with its namespace.
        let parts: Vec<&str> = word.split('/').filter(|_| word.matches('/').count() > 1).collect();
        networks.extend(parts.iter().filter_map(|part| network_reference(part, namespace).ok()));
        let pairs = parts.windows(2).filter_map(|pair| network_reference(&pair.join("/"), namespace).ok());
        networks.extend(pairs);
    }
    networks
}

/// Reads `policyTypes`. Without it a policy isolates ingress, and egress if it may have a rule for it.
fn policy_types(reader: &mut ValueReader, spec: &Fields<'_>, may_have_egress_rule: bool) -> Isolation {
    let both = Isolation { ingress: true, egress: true };
    let Some(field) = spec.find("policyTypes").filter(|field| !is_empty(field)) else {
        return Isolation { ingress: true, egress: may_have_egress_rule };
    };
    let elements = reader.list(&field, 2);
    let mut isolation = Isolation { ingress: false, egress: false };
    for element in &elements {
        match element.value.as_str() {
            Some("Ingress") => isolation.ingress = true,
            Some("Egress") => isolation.egress = true,
            _ => {
                reader.fault(element, "is not a policy type", "write Ingress or Egress");
                return both;
            }
        }
    }
    if isolation.ingress || isolation.egress { isolation } else { both }
}

fn is_empty(field: &Field<'_>) -> bool {
    field.value.as_array().is_some_and(Vec::is_empty)
}

fn rules(reader: &mut ValueReader, spec: &Fields<'_>, direction: Direction) -> Vec<PolicyRule> {
    let Some(field) = spec.find(direction.word()) else { return Vec::new() };
    let mut rules = Vec::new();
    for element in reader.list(&field, RULES_MAX) {
        let fields = reader.object(&element, &["ports", direction.peers_word()]);
        let peers = fields.find(direction.peers_word()).map(|field| reader.list(&field, PEERS_MAX));
        let peers = peers.unwrap_or_default().iter().filter_map(|field| peer(reader, field)).collect();
        let ports = fields.find("ports").map(|field| reader.list(&field, PORTS_MAX)).unwrap_or_default();
        let ports = ports.iter().filter_map(|field| port(reader, field)).collect();
        rules.push(PolicyRule { peers, ports });
    }
    rules
}

/// Checks how many peers and address ranges all rules have together, because each selected attachment gets
/// them all.
fn check_size(reader: &mut ValueReader, spec: &KeyPath, directions: &[&Vec<PolicyRule>]) {
    let all = || directions.iter().flat_map(|rules| rules.iter()).flat_map(|rule| &rule.peers);
    let ranges = all().map(|peer| match peer {
        PolicyPeer::Block(ranges) => ranges.len(),
        PolicyPeer::Pods { .. } => 0,
    });
    let counts =
        [("peers", all().count(), POLICY_PEERS_MAX), ("address ranges", ranges.sum(), POLICY_RANGES_MAX)];
    for (what, count, max) in counts.into_iter().filter(|(_, count, max)| count > max) {
        let reason = format!("has {count} {what} in all rules; the maximum is {max}");
        reader.missing(Rule::InvalidNetworkPolicy, spec.clone(), &reason, "write several policies");
    }
}

fn peer(reader: &mut ValueReader, field: &Field<'_>) -> Option<PolicyPeer> {
    let fields = reader.object(field, &["podSelector", "namespaceSelector", "ipBlock"]);
    let [pods, namespaces] = ["podSelector", "namespaceSelector"].map(|key| fields.find(key));
    match (fields.find("ipBlock"), pods, namespaces) {
        (Some(block), None, None) => address_block(reader, &block).map(PolicyPeer::Block),
        (None, None, None) => {
            let hint = "write podSelector, namespaceSelector or ipBlock";
            reader.fault(field, "the peer has no condition", hint);
            None
        }
        (None, pods, namespaces) => {
            let namespaces = namespaces.map(|field| selector(reader, &field));
            Some(PolicyPeer::Pods { namespaces, pods: pods.map(|field| selector(reader, &field)) })
        }
        (Some(block), ..) => {
            reader.fault(
                &block,
                "ipBlock cannot be combined with selectors",
                "write it as a peer of its own",
            );
            None
        }
    }
}

fn address_block(reader: &mut ValueReader, field: &Field<'_>) -> Option<Vec<super::AddressRange>> {
    let fields = reader.object(field, &["cidr", "except"]);
    let Some(cidr) = fields.find("cidr") else {
        reader.missing(Rule::InvalidNetworkPolicy, fields.path("cidr"), "cidr is missing", "");
        return None;
    };
    let block = network(reader, &cidr)?;
    let mut exceptions = Vec::new();
    for element in fields.find("except").map(|field| reader.list(&field, EXCEPTIONS_MAX)).unwrap_or_default()
    {
        let exception = network(reader, &element)?;
        if !block.contains(&exception) || block == exception {
            reader.fault(&element, format!("is not a part of {block}"), "");
        }
        exceptions.push(exception);
    }
    Some(merge(subtract(block, &exceptions)))
}

fn network(reader: &mut ValueReader, field: &Field<'_>) -> Option<IpNet> {
    let network = reader.text(field)?.parse::<IpNet>();
    if network.is_err() {
        reader.fault(
            field,
            "is not an address with a prefix length",
            "write for example 10.0.0.0/24 or fd00::/64",
        );
    }
    network.ok().map(|network| network.trunc())
}

fn port(reader: &mut ValueReader, field: &Field<'_>) -> Option<PolicyPort> {
    let fields = reader.object(field, &["protocol", "port", "endPort"]);
    let protocol = match fields.find("protocol") {
        None => Protocol::Tcp,
        Some(field) => {
            let known = Protocol::ALL.into_iter().find(|known| field.value.as_str() == Some(known.word()));
            if known.is_none() {
                reader.fault(&field, "is not a protocol of policies", "write TCP, UDP or SCTP");
            }
            known?
        }
    };
    let end = fields.find("endPort");
    let Some(first) = fields.find("port") else {
        if let Some(end) = end {
            reader.fault(&end, "endPort needs a port", "write port");
        }
        return Some(PolicyPort { protocol, ports: Ports::All });
    };
    let ports = match (first.value, end) {
        (Value::String(name), None) => {
            port_name(reader, &first, name)?;
            Ports::Named(name.clone())
        }
        (Value::String(_), Some(end)) => {
            reader.fault(&end, "endPort needs a port that is a number", "");
            return None;
        }
        (_, end) => {
            let number = port_number(reader, &first)?;
            let last = end.map_or(Some(number), |end| end_port(reader, &end, number))?;
            Ports::Range(number, last)
        }
    };
    Some(PolicyPort { protocol, ports })
}

fn port_number(reader: &mut ValueReader, field: &Field<'_>) -> Option<u16> {
    let number = field.value.as_u64().and_then(|number| u16::try_from(number).ok()).filter(|port| *port > 0);
    if number.is_none() {
        reader.fault(field, "is not a port from 1 to 65535", "");
    }
    number
}

fn end_port(reader: &mut ValueReader, field: &Field<'_>, first: u16) -> Option<u16> {
    let last = port_number(reader, field)?;
    if last < first {
        reader.fault(field, format!("is less than port {first}"), "swap port and endPort");
        return None;
    }
    Some(last)
}

/// Checks a container port's name, which must be an IANA service name.
fn port_name(reader: &mut ValueReader, field: &Field<'_>, name: &str) -> Option<()> {
    let is_legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let good = (1..=15).contains(&name.len())
        && name.chars().all(is_legal)
        && name.chars().any(|c| c.is_ascii_lowercase())
        && !name.starts_with('-')
        && !name.ends_with('-')
        && !name.contains("--");
    if !good {
        let reason = "is not the name of a port: up to 15 of a-z, 0-9 and -, with a letter";
        reader.fault(field, reason, "write a port number without quotes");
    }
    good.then_some(())
}

/// Reads a selector; requirements that cannot be read are faults and absent from it.
fn selector(reader: &mut ValueReader, field: &Field<'_>) -> LabelSelector {
    let fields = reader.object(field, &["matchLabels", "matchExpressions"]);
    let mut requirements = Vec::new();
    if let Some(labels) = fields.find("matchLabels") {
        let labels = reader.object_of_any(&labels, REQUIREMENTS_MAX);
        for (key, value) in labels.all() {
            let Some(text) = reader.text(&value) else { continue };
            if label_key(reader, &value, key) && label_value(reader, &value, text) {
                let operator = Operator::In(BTreeSet::from([text.to_owned()]));
                requirements.push(Requirement { key: key.to_owned(), operator });
            }
        }
    }
    let expressions = fields.find("matchExpressions").map(|field| reader.list(&field, REQUIREMENTS_MAX));
    for element in expressions.unwrap_or_default() {
        requirements.extend(requirement(reader, &element));
    }
    LabelSelector { requirements }
}

fn requirement(reader: &mut ValueReader, field: &Field<'_>) -> Option<Requirement> {
    let fields = reader.object(field, &["key", "operator", "values"]);
    let required = ["key", "operator"].map(|key| fields.find(key).ok_or(key));
    let [Ok(key), Ok(operator)] = &required else {
        let absent = required.iter().find_map(|field| field.as_ref().err()).copied().unwrap_or_default();
        let path = fields.path(absent);
        reader.missing(Rule::InvalidNetworkPolicy, path, &format!("{absent} is missing"), "");
        return None;
    };
    let name = reader.text(key)?;
    if !label_key(reader, key, name) {
        return None;
    }
    let values = fields.find("values");
    let elements = values.as_ref().map(|field| reader.list(field, REQUIREMENTS_MAX)).unwrap_or_default();
    let mut texts = BTreeSet::new();
    for element in &elements {
        let text = reader.text(element)?;
        if !label_value(reader, element, text) {
            return None;
        }
        texts.insert(text.to_owned());
    }
    let word = reader.text(operator)?;
    let operator = match (word, texts.is_empty()) {
        ("In", false) => Operator::In(texts),
        ("NotIn", false) => Operator::NotIn(texts),
        ("In" | "NotIn", true) => {
            reader.fault(operator, "needs at least one element in values", "");
            return None;
        }
        ("Exists", true) => Operator::Exists,
        ("DoesNotExist", true) => Operator::DoesNotExist,
        ("Exists" | "DoesNotExist", false) => {
            reader.fault(operator, "takes no values", "remove values");
            return None;
        }
        _ => {
            reader.fault(operator, "is not an operator", "write In, NotIn, Exists or DoesNotExist");
            return None;
        }
    };
    Some(Requirement { key: name.to_owned(), operator })
}

/// Whether `key` is a valid label key: `[DOMAIN/]NAME`.
fn label_key(reader: &mut ValueReader, field: &Field<'_>, key: &str) -> bool {
    let (domain, name) = match key.split_once('/') {
        Some((domain, name)) => (Some(domain), name),
        None => (None, key),
    };
    let good = !name.is_empty()
        && is_label_text(name)
        && domain.is_none_or(|domain| definition_name_fault(domain).is_none());
    if !good {
        reader.fault(field, format!("{} is not the key of a label", quote(key)), "");
    }
    good
}

fn label_value(reader: &mut ValueReader, field: &Field<'_>, value: &str) -> bool {
    let good = is_label_text(value);
    if !good {
        reader.fault(field, "is not the value of a label: up to 63 letters, digits and -_.", "");
    }
    good
}

/// Whether a text is empty, or at most 63 letters, digits and `-_.` that begins and ends with a letter or
/// digit.
fn is_label_text(text: &str) -> bool {
    let is_end = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    text.len() <= 63
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        && is_end(text.chars().next())
        && is_end(text.chars().next_back())
}
