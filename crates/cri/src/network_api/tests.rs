//! Compares the message types with `proto/podnetwork.proto`, from which clients are generated.
//!
//! Each .proto message is filled from the descriptor: every field gets a value that a field with another type would not
//! keep. The Rust type then decodes it, and must show the same names and values in the same order and encode the same
//! bytes. A wrong number, name or type, a missing field and an extra field are therefore all detected.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message;
use prost_reflect::{
    Cardinality, DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor,
    ReflectMessage, Value,
};

use super::*;
use crate::messages;

/// Decodes a message and returns the `Debug` output and the encoded bytes.
type Ours = fn(&[u8]) -> (String, Vec<u8>);

fn read<T: Message + Default + fmt::Debug>(bytes: &[u8]) -> (String, Vec<u8>) {
    let message = T::decode(bytes).expect("a message of the .proto decodes");
    (format!("{message:?}"), message.encode_to_vec())
}

/// Every .proto message with the Rust type for it.
const PAIRS: &[(&str, &str, Ours)] = &[
    ("NetworkMetadata", "NetworkMetadata", read::<NetworkMetadata>),
    ("CNIv1PluginConfig", "CniPlugin", read::<CniPlugin>),
    ("CNIv1Config", "CniConfig", read::<CniConfig>),
    ("IPRange", "IpRange", read::<IpRange>),
    ("NetworkConfig", "NetworkConfig", read::<NetworkConfig>),
    ("SetPodNetworkRequest", "SetRequest", read::<SetRequest>),
    ("CreatePodNetworkResponse", "SetReply", read::<SetReply>),
    ("RemovePodNetworkRequest", "RemoveRequest", read::<RemoveRequest>),
    ("RemovePodNetworkResponse", "Empty", read::<Empty>),
    ("ListPodNetworkRequest", "Empty", read::<Empty>),
    ("NetworkStatus", "NetworkStatus", read::<NetworkStatus>),
    ("PodNetworkResponse", "Network", read::<Network>),
    ("ListPodNetworkResponse", "ListReply", read::<ListReply>),
    ("PodSandboxNetworkConfig", "SandboxNetwork", read::<SandboxNetwork>),
    ("PodSandboxConfig", "PodSandboxConfig", read::<messages::PodSandboxConfig>),
    ("PodIP", "PodIp", read::<messages::PodIp>),
];

/// CRI fields that the Rust types have besides those in the .proto, empty, in `Debug` form.
const UPSTREAM: &str = "annotations: {}, linux: None, ";

fn pool() -> DescriptorPool {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/proto");
    let files = protox::compile(["podnetwork.proto"], [directory]).expect("the .proto is one");
    DescriptorPool::from_file_descriptor_set(files).expect("its messages are whole")
}

/// Returns a value that is unique to the field and type.
fn value(field: &FieldDescriptor) -> Value {
    if field.is_map() {
        let text = |word: &str| format!("{word} of {}", field.name());
        let entry = (MapKey::String(text("key")), Value::String(text("value")));
        return Value::Map([entry].into());
    }
    let one = match field.kind() {
        Kind::String => Value::String(format!("{} {}", field.parent_message().name(), field.name())),
        Kind::Bool => Value::Bool(true),
        // Decoded as int32 or bool, this would be a different value.
        Kind::Uint32 => Value::U32(u32::MAX),
        Kind::Enum(_) => Value::EnumNumber(-7),
        Kind::Message(message) => Value::Message(filled(&message)),
        other => panic!("{}: add a distinctive value for {other:?} here", field.full_name()),
    };
    if field.cardinality() == Cardinality::Repeated { Value::List(vec![one.clone(), one]) } else { one }
}

fn filled(message: &MessageDescriptor) -> DynamicMessage {
    let mut dynamic = DynamicMessage::new(message.clone());
    message.fields().for_each(|field| dynamic.set_field(&field, value(&field)));
    dynamic
}

/// Returns the `Debug` output that the Rust type must have.
fn shown(message: &DynamicMessage) -> String {
    let descriptor = message.descriptor();
    let ours = PAIRS.iter().find(|(proto, _, _)| *proto == descriptor.name()).expect("a known message").1;
    let fields: Vec<String> = descriptor
        .fields()
        .map(|field| {
            let value = message.get_field(&field);
            let singular = field.cardinality() != Cardinality::Repeated;
            let text = shown_value(&value);
            let text =
                if singular && matches!(*value, Value::Message(_)) { format!("Some({text})") } else { text };
            format!("{}: {text}", field.name())
        })
        .collect();
    match fields.as_slice() {
        [] => ours.to_owned(),
        fields => format!("{ours} {{ {} }}", fields.join(", ")),
    }
}

fn shown_value(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{text:?}"),
        Value::Bool(truth) => truth.to_string(),
        Value::U32(number) => number.to_string(),
        Value::EnumNumber(number) => number.to_string(),
        Value::Message(message) => shown(message),
        Value::List(list) => format!("[{}]", list.iter().map(shown_value).collect::<Vec<_>>().join(", ")),
        Value::Map(map) => {
            let texts: BTreeMap<&str, String> = map
                .iter()
                .map(|(key, value)| (key.as_str().expect("keys are strings"), shown_value(value)))
                .collect();
            let entries: Vec<String> = texts.iter().map(|(key, value)| format!("{key:?}: {value}")).collect();
            format!("{{{}}}", entries.join(", "))
        }
        other => panic!("a value that `value` does not make: {other:?}"),
    }
}

#[test]
fn network_api_fields_have_name_number_and_type_of_the_proto() {
    let pool = pool();
    let described: BTreeSet<String> = pool
        .all_messages()
        .filter(|message| !message.is_map_entry())
        .map(|message| message.name().to_owned())
        .collect();
    let paired: BTreeSet<String> = PAIRS.iter().map(|(proto, _, _)| (*proto).to_owned()).collect();
    assert_eq!(described, paired);
    for (proto, _, ours) in PAIRS {
        let message = filled(&pool.get_message_by_name(&format!("runtime.v1.{proto}")).expect("a message"));
        let bytes = message.encode_to_vec();
        let (seen, written) = ours(&bytes);
        let seen = seen.replace("r#", "").replace(UPSTREAM, "");
        assert_eq!(seen, shown(&message), "{proto}");
        assert_eq!(written, bytes, "{proto}");
    }
}

#[test]
fn network_api_methods_are_those_of_the_proto() {
    let pool = pool();
    let paths: BTreeSet<String> = pool
        .services()
        .flat_map(|service| {
            let name = service.full_name().to_owned();
            service.methods().map(move |method| format!("/{name}/{}", method.name())).collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(paths, BTreeSet::from([SET, REMOVE, LIST].map(str::to_owned)));
    let numbers: Vec<i32> = pool
        .all_enums()
        .flat_map(|known| known.values().map(|value| value.number()).collect::<Vec<_>>())
        .collect();
    assert_eq!(numbers, [0], "validation accepts CNIv1 alone");
}
