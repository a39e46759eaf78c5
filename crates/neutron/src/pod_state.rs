//! VIFs for one pod, in the two forms in which Kuryr stores them: the `openstack.org/kuryr-vif` annotation, and
//! `status.vifs` in a KuryrPort.
//!
//! The older annotation from Queens, which holds a single VIF, can also be read. A pod whose default network does not
//! come from Neutron has no default VIF, and the field is left out.
//!
//! Source: Kuryr-Kubernetes `objects/vif.py` (train) `PodState`; `controller/handlers/kuryrport.py` (2023.1).

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::primitive::{Data, object, open};
use crate::vif::{DecodeError, Vif};

/// Name of the default interface in a pod.
pub const DEFAULT: &str = "eth0";

/// All VIFs that belong to one pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodState {
    /// VIF for the default network; `None` if that network is not Neutron's.
    pub default: Option<Vif>,
    /// Additional VIFs, keyed by the interface names that Kuryr assigns: `eth1`, `eth2`, …
    pub additional: BTreeMap<String, Vif>,
}

impl PodState {
    /// Iterates over all VIFs by name, the default one first.
    pub fn vifs(&self) -> impl Iterator<Item = (&str, &Vif)> {
        let default = self.default.iter().map(|vif| (DEFAULT, vif));
        default.chain(self.additional.iter().map(|(name, vif)| (name.as_str(), vif)))
    }

    /// Iterates over all VIFs mutably.
    pub fn vifs_mut(&mut self) -> impl Iterator<Item = &mut Vif> {
        self.default.iter_mut().chain(self.additional.values_mut())
    }

    /// Returns the VIF with this name.
    pub fn vif(&self, name: &str) -> Option<&Vif> {
        self.vifs().find(|(known, _)| *known == name).map(|(_, vif)| vif)
    }

    /// Inserts a VIF, or replaces the one with the same name.
    pub fn insert(&mut self, name: &str, vif: Vif) {
        match name {
            DEFAULT => self.default = Some(vif),
            _ => drop(self.additional.insert(name.to_owned(), vif)),
        }
    }

    /// Removes a VIF and returns it.
    pub fn remove(&mut self, name: &str) -> Option<Vif> {
        match name {
            DEFAULT => self.default.take(),
            _ => self.additional.remove(name),
        }
    }

    /// Whether there is no VIF.
    pub fn is_empty(&self) -> bool {
        self.default.is_none() && self.additional.is_empty()
    }

    /// Whether every VIF is ACTIVE, so that the pod's interfaces can be plugged in.
    pub fn is_active(&self) -> bool {
        self.vifs().all(|(_, vif)| vif.active)
    }

    /// Encodes the state as the object that the annotation holds.
    pub fn to_primitive(&self) -> Value {
        let PodState { default, additional } = self;
        let additional: Map<String, Value> =
            additional.iter().map(|(name, vif)| (name.clone(), vif.to_primitive())).collect();
        let mut data = Data::from_iter([("additional_vifs".to_owned(), Value::Object(additional))]);
        if let Some(default) = default {
            data.insert("default_vif".to_owned(), default.to_primitive());
        }
        object("PodState", "1.0", data)
    }

    /// Encodes the state as annotation text.
    pub fn to_annotation(&self) -> String {
        self.to_primitive().to_string()
    }

    /// Parses the annotation.
    ///
    /// # Errors
    /// The annotation is invalid.
    pub fn from_annotation(text: &str) -> Result<PodState, DecodeError> {
        let value: Value = serde_json::from_str(text)?;
        let state = open(&value).ok_or(DecodeError::NotAnObject)?;
        if state.name != "PodState" {
            return Ok(PodState { default: Some(Vif::from_primitive(&value)?), ..PodState::default() });
        }
        let default = state.data.get("default_vif").filter(|value| !value.is_null());
        let mut read =
            PodState { default: default.map(Vif::from_primitive).transpose()?, additional: BTreeMap::new() };
        for (name, value) in
            state.data.get("additional_vifs").and_then(Value::as_object).into_iter().flatten()
        {
            read.additional.insert(name.clone(), Vif::from_primitive(value)?);
        }
        Ok(read)
    }

    /// Encodes the state for `status.vifs` in a KuryrPort.
    pub fn to_vifs(&self) -> Value {
        let one = |(name, vif): (&str, &Vif)| {
            (name.to_owned(), json!({ "default": name == DEFAULT, "vif": vif.to_primitive() }))
        };
        Value::Object(self.vifs().map(one).collect())
    }

    /// Parses `status.vifs` from a KuryrPort.
    ///
    /// # Errors
    /// A VIF is invalid.
    pub fn from_vifs(vifs: &Value) -> Result<PodState, DecodeError> {
        let mut read = PodState::default();
        for (name, entry) in vifs.as_object().into_iter().flatten() {
            let vif = Vif::from_primitive(entry.get("vif").unwrap_or(&Value::Null))?;
            match entry.get("default").and_then(Value::as_bool) {
                Some(true) => read.default = Some(vif),
                _ => drop(read.additional.insert(name.clone(), vif)),
            }
        }
        Ok(read)
    }
}
