//! What a plan takes beside the pod and its definitions: devices. The same for an agent and for a single question.

use std::collections::BTreeMap;
use std::path::Path;

use cni::Error;
use npwg::device::Devices;
use npwg::metadata::{Definition, NetworkReference, Pod};

use super::pod_resources;

/// The pod's devices, if a definition needs one.
pub(crate) async fn devices(
    socket: &Path,
    pod: &Pod,
    definitions: &BTreeMap<NetworkReference, Definition>,
) -> Result<Devices, Error> {
    match definitions.values().any(|definition| definition.resource().is_some()) {
        true => pod_resources::devices(socket, &pod.namespace, &pod.name).await,
        false => Ok(Devices::new()),
    }
}
