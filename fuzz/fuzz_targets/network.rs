//! Fuzz target for CNI configurations: parsing must never panic, and each plugin's input can be derived.

#![no_main]

use cni::network::Network;
use cni::object::Object;
use cni::runtime::chain::derive;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(object) = Object::parse(bytes, "fuzz") {
        let again = Object::parse(object.to_json().as_bytes(), "again").expect("printed JSON is valid");
        assert_eq!(again, object);
    }
    let Ok(network) = Network::parse(bytes, "fuzz") else { return };
    let _ = (network.capabilities(), network.needs());
    let again = Network::parse(network.bytes(), "again").expect("the kept bytes are a network");
    assert_eq!(
        (&again.name, again.version, &again.plugins),
        (&network.name, network.version, &network.plugins)
    );
    for plugin in &network.plugins {
        let derived =
            derive(&network, plugin, None, None).expect("the input of a valid plugin can be derived");
        let derived = Object::parse(derived.to_json().as_bytes(), "derived").expect("JSON");
        let name = derived.text("name").expect("a string");
        assert_eq!(name.as_deref(), Some(network.name.as_str()));
    }
});
