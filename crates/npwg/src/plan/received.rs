//! Validation for a plan that another process made: `weft-cni` executes it as root, and the agent may be
//! compromised.
//!
//! A plan that [`super::plan`] makes passes. The configurations come from definitions, which may use every plugin
//! option (`docs/security.md`).

use std::collections::BTreeSet;

use cni::error::{Error, code};
use cni::network::Network;
use serde_json::Value;

use super::{
    CONFIGURATIONS_MAX, DefaultRouteAction, Delegate, DeviceInfoFile, PLAN_VERSION, Plan, PodIdentity, Role,
    Sandbox, limits,
};
use crate::definition::refuse_meta_plugin;
use crate::device::{PLUGIN_DIRECTORY, attachment_file, is_plugin_file};
use crate::refusal::quote;

impl Plan {
    /// Fails unless the plan is for this sandbox and pod, and only names device information files that belong
    /// to the sandbox.
    ///
    /// # Errors
    /// Code 6, with the field's path.
    pub fn expect_for(&self, sandbox: &Sandbox, pod: &PodIdentity) -> Result<(), Error> {
        if self.version > PLAN_VERSION {
            return Err(refused("version", self.version, "of a later release"));
        }
        if self.container != sandbox.container {
            return Err(refused("container", self.container.as_str(), &format!("not {}", sandbox.container)));
        }
        for (key, planned, named) in
            [("namespace", &self.pod.namespace, &pod.namespace), ("name", &self.pod.name, &pod.name)]
        {
            if !named.is_empty() && planned != named {
                return Err(refused(&format!("pod.{key}"), planned.as_str(), &format!("not {named}")));
            }
        }
        match self.delegates.first() {
            Some(first) if first.role != Role::Default => {
                return Err(refused("delegates[0].role", (), "not the default network"));
            }
            Some(first) if first.ifname != sandbox.ifname => {
                let why = format!("not {}", sandbox.ifname);
                return Err(refused("delegates[0].ifname", first.ifname.as_str(), &why));
            }
            Some(_) => {}
            None => return Err(refused("delegates", (), "empty")),
        }
        self.expect_delegates()
    }

    fn expect_delegates(&self) -> Result<(), Error> {
        let mut names = BTreeSet::new();
        let mut length = 0_usize;
        for (place, delegate) in self.delegates.iter().enumerate() {
            let key = |name: &str| format!("delegates[{place}].{name}");
            if place > 0 && delegate.role == Role::Default {
                return Err(refused(&key("role"), (), "a second default network"));
            }
            if !names.insert(&delegate.ifname) {
                return Err(refused(&key("ifname"), delegate.ifname.as_str(), "planned twice"));
            }
            length = length.saturating_add(delegate.config.len());
            if length > CONFIGURATIONS_MAX {
                let why = format!("more than {CONFIGURATIONS_MAX} bytes in all");
                return Err(refused(&key("config"), length, &why));
            }
            limits::check(&delegate.config, &delegate.runtime_config, &delegate.network)
                .map_err(|refusal| refused(&key("config"), (), &refusal.fault().reason))?;
            expect_plugins(delegate).map_err(|why| refused(&key("config"), (), &why))?;
            if let DefaultRouteAction::Yield { to, .. } = delegate.default_route
                && to >= self.delegates.len()
            {
                return Err(refused(&key("defaultRoute"), to, "no such delegate"));
            }
            let Some(DeviceInfoFile { copy_from, path }) = &delegate.device_info else { continue };
            let own = attachment_file(&delegate.network, &self.container, &delegate.ifname);
            if own.as_ref() != Some(path) {
                let why = "not the device information file of this attachment";
                return Err(refused(&key("deviceInfo.path"), path.as_str(), why));
            }
            if let Some(source) = copy_from.as_ref().filter(|source| !is_plugin_file(source)) {
                let why = format!("not a file in {PLUGIN_DIRECTORY}");
                return Err(refused(&key("deviceInfo.copyFrom"), source.as_str(), &why));
            }
        }
        Ok(())
    }
}

/// Fails if the configuration does not describe a network, or contains a meta-plugin.
fn expect_plugins(delegate: &Delegate) -> Result<(), String> {
    let network = Network::parse(delegate.config.as_bytes(), &delegate.network);
    let network = network.map_err(|error| error.to_string())?;
    refuse_meta_plugin(&network, &delegate.network).map_err(|refusal| refusal.to_string())
}

fn refused(key: &str, value: impl Into<Value>, why: &str) -> Error {
    let value = value.into();
    let shown = match &value {
        Value::Null => String::new(),
        Value::String(text) => format!(" {}:", quote(text)),
        other => format!(" {other}:"),
    };
    let hint = "the planner of this node is of another release, or it is not to be trusted";
    Error::new(code::DECODING_FAILURE, format!("plan: {key}:{shown} {why}")).details(hint)
}
