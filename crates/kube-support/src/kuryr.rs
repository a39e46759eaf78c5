//! A pod's Neutron ports in the Kubernetes API: Kuryr's annotation on the pod, or a KuryrPort object.
//!
//! A KuryrPort contains the pod's uid; one that belongs to an earlier pod with the same name is ignored. Invalid
//! content is an error.
//!
//! Source: Kuryr-Kubernetes `controller/handlers/vif.py` (train), `kuryrport.py` (2023.1), the CRD
//! `kuryrports`.

pub mod definition;

use clap::ValueEnum;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Api, Client};
use neutron::pod_state::PodState;
use npwg::metadata::Pod;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use crate::api_error;
use crate::custom_resources;
use crate::resource;

/// Annotation with a pod's VIFs.
pub const ANNOTATION: &str = "openstack.org/kuryr-vif";
/// Object to which VIFs are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum VifLocation {
    /// Annotation openstack.org/kuryr-vif of the pod
    #[default]
    Annotation,
    /// KuryrPort object with the name of the pod
    Kuryrport,
}

/// KuryrPort object, as in Kuryr since the release Victoria.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct KuryrPort {
    /// Always `openstack.org/v1`.
    #[serde(rename = "apiVersion")]
    pub api_version: String,
    /// Always `KuryrPort`.
    pub kind: String,
    /// Object metadata; it has the pod's name.
    pub metadata: ObjectMeta,
    /// Pod that the ports are for, see [`custom_resources::KuryrPortSpec`].
    pub spec: Value,
    /// Ports, see [`custom_resources::KuryrPortStatus`].
    pub status: Value,
}

resource!(KuryrPort as custom_resources::KuryrPort);

/// Why a pod's ports were not read.
#[derive(Debug, Error)]
pub enum Unread {
    /// The API server denies access to the KuryrPort.
    #[error("{0}")]
    Forbidden(RequestError),
    /// The request for the KuryrPort failed.
    #[error("{0}")]
    Request(RequestError),
    /// The pod's annotation is invalid.
    #[error("annotation {ANNOTATION}: {why}")]
    Annotation {
        /// Error that the decoder reported.
        why: neutron::vif::DecodeError,
    },
    /// The KuryrPort is invalid.
    #[error("KuryrPort {name}: {why}")]
    KuryrPort {
        /// KuryrPort name.
        name: String,
        /// Error that the decoder reported.
        why: neutron::vif::DecodeError,
    },
}

/// A request for a pod's KuryrPort failed.
#[derive(Debug, Error)]
#[error("{verb} KuryrPort {namespace}/{name}: {}", api_error::describe(.error))]
pub struct RequestError {
    /// Request verb, as RBAC names it.
    verb: &'static str,
    /// Namespace that the pod is in.
    namespace: String,
    /// Pod name.
    name: String,
    /// Error that the API server or the client reported.
    error: Box<kube::Error>,
}

impl RequestError {
    /// Returns the failure when the request `verb` for `pod`'s KuryrPort failed.
    pub fn new(verb: &'static str, pod: &Pod, error: kube::Error) -> RequestError {
        RequestError {
            verb,
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            error: Box::new(error),
        }
    }
}

/// Returns a pod's VIFs, if any were written.
///
/// # Errors
/// The VIFs are invalid, or cannot be read now, or access is denied.
pub async fn read(location: VifLocation, client: &Client, pod: &Pod) -> Result<Option<PodState>, Unread> {
    if location == VifLocation::Annotation {
        return of_annotation(pod);
    }
    let ports: Api<KuryrPort> = Api::namespaced(client.clone(), &pod.namespace);
    match ports.get_opt(&pod.name).await {
        Ok(Some(port)) => of_kuryr_port(&port, &pod.uid),
        Ok(None) => Ok(None),
        Err(error) if matches!(&error, kube::Error::Api(status) if status.code == 403) => {
            Err(Unread::Forbidden(RequestError::new("get", pod, error)))
        }
        Err(error) => Err(Unread::Request(RequestError::new("get", pod, error))),
    }
}

/// Returns the VIFs in a pod's annotation.
pub fn of_annotation(pod: &Pod) -> Result<Option<PodState>, Unread> {
    let text = pod.annotations.get(ANNOTATION).filter(|text| !text.trim().is_empty());
    let read = text.map(|text| PodState::from_annotation(text)).transpose();
    read.map_err(|why| Unread::Annotation { why })
}

/// Returns the VIFs in a KuryrPort, if it belongs to the pod with this uid.
pub fn of_kuryr_port(port: &KuryrPort, uid: &str) -> Result<Option<PodState>, Unread> {
    let own = uid.is_empty() || port.spec["podUid"] == uid;
    let vifs =
        Some(&port.status["vifs"]).filter(|vifs| own && vifs.as_object().is_some_and(|map| !map.is_empty()));
    let read = vifs.map(PodState::from_vifs).transpose();
    let name = port.metadata.name.clone().unwrap_or_default();
    read.map_err(|why| Unread::KuryrPort { name, why })
}
