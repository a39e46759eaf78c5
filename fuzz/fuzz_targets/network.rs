//! A network's configuration from anywhere: reading never panics, and its plugins can be derived for.

#![no_main]

use cni::network::Network;
use cni::object::Object;
use cni::runtime::chain::derive;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(object) = Object::parse(bytes, "fuzz") {
        let again = Object::parse(object.to_json().as_bytes(), "again").expect("what we print, we read");
        assert_eq!(again, object);
    }
    let Ok(network) = Network::parse(bytes, "fuzz") else { return };
    let _ = (network.capabilities(), network.needs());
    let again = Network::parse(network.bytes(), "again").expect("the bytes kept are a network");
    assert_eq!((&again.name, again.version, &again.plugins), (&network.name, network.version, &network.plugins));
    for plugin in &network.plugins {
        let derived = derive(&network, plugin, None, None).expect("a plugin that was read can be derived for");
        let derived = Object::parse(derived.to_json().as_bytes(), "derived").expect("JSON");
        let name = derived.text("name").expect("a text");
        assert_eq!(name.as_deref(), Some(network.name.as_str()));
    }
});
