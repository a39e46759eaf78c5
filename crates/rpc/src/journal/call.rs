//! Plugin parameters for a recorded attachment: later calls use the same ones as the ADD.

use cni::args::Args;
use cni::error::{Context, Error};
use cni::invocation::Attachment;
use cni::network::Network;
use cni::object::Object;
use cni::runtime::chain::{Attached, Parameters};

use super::Entry;
use npwg::plan::{Delegate, Role};

/// `CNI_ARGS` keys with which a runtime makes requests to the default network's plugins.
const REQUESTS: &[&str] = &["IP", "MAC", "GATEWAY"];

impl Entry {
    /// Returns the parameters with which a delegate's plugins are called.
    pub fn parameters(&self, delegate: &Delegate) -> Parameters {
        Parameters {
            who: Attachment { container: self.container_id.clone(), ifname: delegate.ifname.clone() },
            netns: self.netns.clone(),
            args: delegate_args(&self.args, delegate),
            capability_args: delegate.runtime_config.clone(),
            args_cni: Object::default(),
            path: self.path.clone(),
        }
    }

    /// Returns the recorded result for the attachment at `index`, if there is one; `network` is the delegate's.
    ///
    /// # Errors
    /// The result cannot be read in the network's version.
    pub fn last_result(&self, index: usize, network: &Network) -> Result<Option<Attached>, Error> {
        let raw = self.attachments.get(index).and_then(|attachment| attachment.result.as_ref());
        match raw {
            None => Ok(None),
            Some(raw) => {
                Attached::read(raw.get().as_bytes(), network.version).map(Some).context("recorded result")
            }
        }
    }
}

/// Returns the runtime's `CNI_ARGS` and the delegate's own pairs, `IgnoreUnknown=1` first (V16).
///
/// The runtime's requests are only passed to the default network.
fn delegate_args(runtime: &str, delegate: &Delegate) -> String {
    let runtime = Args::scan(runtime);
    let own = |key: &str| delegate.args.iter().any(|(known, _)| known == key);
    let passed = runtime.pairs().filter(|(key, _)| {
        *key != "IgnoreUnknown" && !own(key) && (delegate.role == Role::Default || !REQUESTS.contains(key))
    });
    let mut text = "IgnoreUnknown=1".to_owned();
    for (key, value) in passed.chain(delegate.args.iter().map(|(key, value)| (key.as_str(), value.as_str())))
    {
        text.push_str(&format!(";{key}={value}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cni_args_requests_are_only_for_the_default_network() {
        let delegate = |role: &str, args: &str| -> Delegate {
            let text = format!(
                r#"{{"network":"n","role":"{role}","configName":"n","config":"{{}}","ifname":"net1","runtimeConfig":{{}},
                "args":{args},"verify":{{}},"defaultRoute":"untouched","because":[]}}"#
            );
            serde_json::from_str(&text).unwrap()
        };
        let runtime = "K8S_POD_NAME=p;IP=10.0.0.9;IgnoreUnknown=0;MAC=02:00:00:00:00:01";
        for (role, args, expected) in [
            ("default", "[]", "IgnoreUnknown=1;K8S_POD_NAME=p;IP=10.0.0.9;MAC=02:00:00:00:00:01"),
            ("selected", "[]", "IgnoreUnknown=1;K8S_POD_NAME=p"),
            ("selected", r#"[["K8S_POD_NAME","q"]]"#, "IgnoreUnknown=1;K8S_POD_NAME=q"),
        ] {
            assert_eq!(delegate_args(runtime, &delegate(role, args)), expected);
        }
        assert_eq!(delegate_args("", &delegate("selected", "[]")), "IgnoreUnknown=1");
    }
}
