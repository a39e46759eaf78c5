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

use crate::api_error;
use crate::custom_resources;
use crate::resource;

/// The annotation.
pub const ANNOTATION: &str = "openstack.org/kuryr-vif";
/// Where VIFs are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Place {
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

/// Why nothing was read.
#[derive(Debug)]
pub enum Unread {
    /// Who asks has no right to it.
    Forbidden(String),
    /// It cannot be read, or not now.
    Failed(String),
}

/// The VIFs that a pod has, if any were written.
///
/// # Errors
/// What is written cannot be read, or not now, or not by us.
pub async fn read(place: Place, client: &Client, pod: &Pod) -> Result<Option<PodState>, Unread> {
    if place == Place::Annotation {
        return of_annotation(pod).map_err(Unread::Failed);
    }
    let ports: Api<KuryrPort> = Api::namespaced(client.clone(), &pod.namespace);
    match ports.get_opt(&pod.name).await {
        Ok(Some(port)) => of_kuryr_port(&port, &pod.uid).map_err(Unread::Failed),
        Ok(None) => Ok(None),
        Err(error) if matches!(&error, kube::Error::Api(status) if status.code == 403) => {
            Err(Unread::Forbidden(refused("get", pod, &error)))
        }
        Err(error) => Err(Unread::Failed(refused("get", pod, &error))),
    }
}

/// The VIFs in a pod's annotation.
pub fn of_annotation(pod: &Pod) -> Result<Option<PodState>, String> {
    let text = pod.annotations.get(ANNOTATION).filter(|text| !text.trim().is_empty());
    let read = text.map(|text| PodState::from_annotation(text)).transpose();
    read.map_err(|why| format!("annotation {ANNOTATION}: {why}"))
}

/// The VIFs in a KuryrPort, if it is this pod's.
pub fn of_kuryr_port(port: &KuryrPort, uid: &str) -> Result<Option<PodState>, String> {
    let own = uid.is_empty() || port.spec["podUid"] == uid;
    let vifs =
        Some(&port.status["vifs"]).filter(|vifs| own && vifs.as_object().is_some_and(|map| !map.is_empty()));
    let read = vifs.map(PodState::from_vifs).transpose();
    read.map_err(|why| format!("KuryrPort {}: {why}", port.metadata.name.as_deref().unwrap_or_default()))
}

/// The text of an error of the API about a pod's KuryrPort; `what` is the request.
pub fn refused(what: &str, pod: &Pod, error: &kube::Error) -> String {
    format!("{what} KuryrPort {}/{}: {}", pod.namespace, pod.name, api_error::said(error))
}

impl From<Unread> for String {
    fn from(unread: Unread) -> String {
        let (Unread::Forbidden(why) | Unread::Failed(why)) = unread;
        why
    }
}
