//! Ports of OpenStack Neutron as the Kubernetes API shows them: Kuryr's annotation of a pod, or a KuryrPort beside it.
//!
//! Rules: a KuryrPort names the uid of its pod: one of an earlier pod of the same name is not read; what cannot be parsed is an
//! error.
//!
//! Source: Kuryr-Kubernetes `controller/handlers/vif.py` (train), `kuryrport.py` (2023.1), the CRD `kuryrports`.

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

/// The annotation.
pub const ANNOTATION: &str = "openstack.org/kuryr-vif";
/// Where VIFs are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum VifLocation {
    /// Annotation openstack.org/kuryr-vif of the pod
    #[default]
    Annotation,
    /// KuryrPort object with the name of the pod
    Kuryrport,
}

/// A KuryrPort, as Kuryr has them since Victoria.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct KuryrPort {
    /// `openstack.org/v1`.
    #[serde(rename = "apiVersion")]
    pub api_version: String,
    /// `KuryrPort`.
    pub kind: String,
    /// Its metadata.
    pub metadata: ObjectMeta,
    /// Whose it is.
    pub spec: Value,
    /// `vifs`.
    pub status: Value,
}

resource!(KuryrPort as custom_resources::KuryrPort);

/// Reason why the ports of a pod were not read.
#[derive(Debug, Error)]
pub enum Unread {
    /// The API server does not let the program read the KuryrPort.
    #[error("{0}")]
    Forbidden(RequestError),
    /// The request for the KuryrPort failed.
    #[error("{0}")]
    Request(RequestError),
    /// The annotation of the pod makes no sense.
    #[error("annotation {ANNOTATION}: {why}")]
    Annotation {
        /// The sentence of the reader.
        why: neutron::vif::DecodeError,
    },
    /// The KuryrPort makes no sense.
    #[error("KuryrPort {name}: {why}")]
    KuryrPort {
        /// The name of the object.
        name: String,
        /// The sentence of the reader.
        why: neutron::vif::DecodeError,
    },
}

/// Failure of a request for the KuryrPort of a pod.
#[derive(Debug, Error)]
#[error("{verb} KuryrPort {namespace}/{name}: {}", api_error::describe(.error))]
pub struct RequestError {
    /// The request, as RBAC names it.
    verb: &'static str,
    /// The namespace of the pod.
    namespace: String,
    /// The name of the pod.
    name: String,
    /// The error of the API.
    error: Box<kube::Error>,
}

impl RequestError {
    /// Failure of the request `verb` for the KuryrPort of `pod`.
    pub fn new(verb: &'static str, pod: &Pod, error: kube::Error) -> RequestError {
        RequestError {
            verb,
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            error: Box::new(error),
        }
    }
}

/// The VIFs that a pod has, if any were written.
///
/// # Errors
/// What is written cannot be read, or not now, or not by us.
pub async fn read(place: VifLocation, client: &Client, pod: &Pod) -> Result<Option<PodState>, Unread> {
    if place == VifLocation::Annotation {
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

/// The VIFs in a pod's annotation.
pub fn of_annotation(pod: &Pod) -> Result<Option<PodState>, Unread> {
    let text = pod.annotations.get(ANNOTATION).filter(|text| !text.trim().is_empty());
    let read = text.map(|text| PodState::from_annotation(text)).transpose();
    read.map_err(|why| Unread::Annotation { why })
}

/// The VIFs in a KuryrPort, if it is this pod's.
pub fn of_kuryr_port(port: &KuryrPort, uid: &str) -> Result<Option<PodState>, Unread> {
    let own = uid.is_empty() || port.spec["podUid"] == uid;
    let vifs =
        Some(&port.status["vifs"]).filter(|vifs| own && vifs.as_object().is_some_and(|map| !map.is_empty()));
    let read = vifs.map(PodState::from_vifs).transpose();
    let name = port.metadata.name.clone().unwrap_or_default();
    read.map_err(|why| Unread::KuryrPort { name, why })
}
