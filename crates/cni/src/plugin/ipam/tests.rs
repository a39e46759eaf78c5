//! Tests that delegate to a real IPAM plugin, called without a process.

use std::sync::Mutex;

use serde_json::json;

use super::*;
use crate::address::parse_cidr;
use crate::config::Config;
use crate::environment::Environment;
use crate::invocation::{Attach, Detach, Probe, Sweep};
use crate::plugin::{Answer, Plugin, respond};
use crate::result::IpConfig;
use crate::version::Version;

/// IPAM plugin that has only one address.
#[derive(Default)]
struct OneAddress {
    held: Mutex<bool>,
    calls: Mutex<Vec<(Environment, Vec<u8>)>>,
    fails: Option<Error>,
}

impl OneAddress {
    fn note(&self, call: &Call) -> Result<(), Error> {
        self.calls.lock().unwrap().push((call.environment.clone(), call.config.bytes().to_vec()));
        self.fails.clone().map_or(Ok(()), Err)
    }
}

impl Plugin for OneAddress {
    fn name(&self) -> &'static str {
        "one-address"
    }

    fn add(&self, request: &Attach, _: &dyn Invoke) -> Result<Success, Error> {
        self.note(&request.call)?;
        *self.held.lock().unwrap() = true;
        let address = parse_cidr("10.0.0.2/24").unwrap();
        Ok(Success { ips: vec![IpConfig { interface: None, address, gateway: None }], ..Success::default() })
    }

    fn del(&self, request: &Detach, _: &dyn Invoke) -> Result<(), Error> {
        *self.held.lock().unwrap() = false;
        self.note(&request.call)
    }

    fn check(&self, request: &Attach, _: &dyn Invoke) -> Result<(), Error> {
        self.note(&request.call)
    }

    fn gc(&self, request: &Sweep, _: &dyn Invoke) -> Result<(), Error> {
        self.note(&request.call)
    }

    fn status(&self, request: &Probe, _: &dyn Invoke) -> Result<(), Error> {
        self.note(&request.call)
    }
}

/// Calls the IPAM plugin through the same interface as a process; `garble` changes what ADD prints.
struct Caller<'a>(&'a OneAddress, fn(Vec<u8>) -> Vec<u8>);

impl Invoke for Caller<'_> {
    fn invoke(&self, plugin: &PluginType, environment: &Environment, stdin: &[u8]) -> Result<Vec<u8>, Error> {
        assert_eq!(plugin.as_str(), "one-address");
        let Answer { stdout, stderr, success } = respond(self.0, environment, &mut &stdin[..], self);
        let stdout = if environment.command == "ADD" && success { (self.1)(stdout) } else { stdout };
        Answer { stdout, stderr, success }.into_result()
    }
}

fn call(version: &str) -> Result<Call, Error> {
    let config = json!({
        "cniVersion": version, "name": "n", "type": "upper", "big": 1,
        "ipam": {"type": "one-address", "subnet": "10.0.0.0/24"}, "prevResult": {},
        "cni.dev/valid-attachments": []
    });
    let environment = Environment {
        command: "STATUS".into(),
        container_id: "c1".into(),
        netns: "/nowhere".into(),
        ifname: "eth0".into(),
        args: "IP=10.0.0.2".into(),
        path: "/opt/cni/bin".into(),
        netns_override: String::new(),
    };
    Ok(Call { config: Config::read(config.to_string().into_bytes(), Version::ALL)?, environment })
}

// Requirements: S30
#[test]
fn ipam_delegate_gets_the_same_stdin_and_variables() -> Result<(), Error> {
    let manager = OneAddress::default();
    let caller = Caller(&manager, |stdout| stdout);
    let call = call("1.1.0")?;
    let ipam = Ipam::new(&call, &caller);
    assert_eq!(ipam.add()?.ips.len(), 1);
    ipam.check()?;
    ipam.gc()?;
    ipam.status()?;
    ipam.del()?;
    let calls = manager.calls.lock().unwrap();
    let verbs: Vec<&str> = calls.iter().map(|(environment, _)| environment.command.as_str()).collect();
    assert_eq!(verbs, ["ADD", "CHECK", "GC", "STATUS", "DEL"]);
    for (environment, stdin) in calls.iter() {
        assert_eq!(stdin, call.config.bytes());
        let same = Environment { command: "STATUS".into(), ..environment.clone() };
        assert_eq!(same, call.environment);
    }
    Ok(())
}

// Requirements: S30, S19
#[test]
fn ipam_result_is_in_the_version_of_the_configuration() -> Result<(), Error> {
    for version in Version::ALL {
        let manager = OneAddress::default();
        // A result without a version has the configuration's version.
        let caller = Caller(&manager, |stdout| {
            let mut value: serde_json::Value = serde_json::from_slice(&stdout).unwrap();
            value.as_object_mut().unwrap().remove("cniVersion");
            value.to_string().into_bytes()
        });
        let success = Ipam::new(&call(version.as_str())?, &caller).add()?;
        assert_eq!(success.ips[0].address.to_string(), "10.0.0.2/24", "{version}");
    }
    Ok(())
}

// Requirements: S30
#[test]
fn ipam_error_keeps_code_and_details() -> Result<(), Error> {
    let manager =
        OneAddress { fails: Some(Error::new(11, "pool is busy").details("d")), ..OneAddress::default() };
    let caller = Caller(&manager, |stdout| stdout);
    let call = call("1.1.0")?;
    let error = Ipam::new(&call, &caller).add().unwrap_err();
    assert_eq!((error.code, error.msg.as_str()), (11, "ipam one-address: pool is busy"));
    assert_eq!(error.details, "d");
    // The address may belong to a running container, so it must not be released.
    assert_eq!(manager.calls.lock().unwrap().len(), 1);
    Ok(())
}

// Requirements: S30
#[test]
fn ipam_add_with_an_invalid_result_is_undone() -> Result<(), Error> {
    let nonsense: [fn(Vec<u8>) -> Vec<u8>; 3] =
        [|_| Vec::new(), |_| b"oops".to_vec(), |_| br#"{"ips":[{"address":"no"}]}"#.to_vec()];
    for garble in nonsense {
        let manager = OneAddress::default();
        let caller = Caller(&manager, garble);
        let error = Ipam::new(&call("1.1.0")?, &caller).add().unwrap_err();
        assert!(error.msg.starts_with("ipam one-address: "), "{error}");
        assert!(!*manager.held.lock().unwrap(), "the address is still held");
    }
    Ok(())
}

// Requirements: S30
#[test]
fn ipam_is_none_for_a_layer_2_network() -> Result<(), Error> {
    let manager = OneAddress::default();
    let caller = Caller(&manager, |stdout| stdout);
    assert!(Ipam::configured(&call("1.0.0")?, &caller)?.is_some());
    for ipam in [r#"{}"#, r#"{"type":""}"#, "null"] {
        let bytes = format!(r#"{{"cniVersion":"1.0.0","name":"n","ipam":{ipam}}}"#).into_bytes();
        let call = Call { config: Config::read(bytes, Version::ALL)?, ..call("1.0.0")? };
        assert!(Ipam::configured(&call, &caller)?.is_none());
        let error = Ipam::new(&call, &caller).add().unwrap_err();
        assert!(error.code == 7 && error.msg.contains("ipam.type"), "{error}");
    }
    let bytes = br#"{"cniVersion":"1.0.0","name":"n","ipam":{"type":"../evil"}}"#.to_vec();
    let call = Call { config: Config::read(bytes, Version::ALL)?, ..call("1.0.0")? };
    assert_eq!(Ipam::new(&call, &caller).add().unwrap_err().code, 7);
    Ok(())
}
