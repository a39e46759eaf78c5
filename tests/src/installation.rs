//! Builds an image with the programs in this tree, or takes the one from a release, and applies `deploy/` to a node.

use std::fs;

use serde_json::json;
use testkit::workspace;

use crate::node::Node;
use crate::parts::text;

/// Image that `deploy/base` names, and the tag there.
const IMAGE: &str = "ghcr.io/weft-net/weft";
const TAG: &str = "0.1.0";

/// Variable that names a release image for this processor, as `make dist` builds it. The image is imported unchanged.
const RELEASED: &str = "WEFT_IMAGE";

/// Conflist that the installation writes when the default network is ready.
pub const INSTALLED: &str = "/etc/cni/net.d/00-weft.conflist";

/// Script that collects programs and the libraries that they need from this machine: directory, tag, programs. It
/// appends the tag to each program, so that the programs in two images differ.
const COLLECT: &str = r#"set -e
    directory=$0 tag=$1
    shift
    mkdir -p "$directory"
    for program; do
        strip -o "$directory/${program##*/}" "$program"
        printf %s "$tag" >>"$directory/${program##*/}"
        for library in $(ldd "$program" | grep -o '/[^ ]*' || true); do
            mkdir -p "$directory${library%/*}"
            cp -L "$library" "$directory$library"
        done
    done"#;

impl Node {
    /// Imports the image with both programs, or the release image that `WEFT_IMAGE` names.
    #[track_caller]
    pub fn import_weft(&self) {
        match std::env::var_os(RELEASED) {
            Some(image) => {
                let image = fs::canonicalize(&image).unwrap_or_else(|why| panic!("{RELEASED}: {why}"));
                self.containerd().import(text(&image));
            }
            None => self.import_weft_as(TAG),
        }
    }

    /// Imports an image with the programs in this tree under a tag.
    #[track_caller]
    pub fn import_weft_as(&self, tag: &str) {
        let programs = ["weft", "weft-cni"].map(testkit::binary);
        let script = workspace().join("lanes/containerd/image");
        let (directory, image) = ("/run/weft-image", "/run/weft-image.tar");
        let collect =
            ["sh", "-c", COLLECT, directory, tag].into_iter().chain(programs.iter().map(|path| text(path)));
        self.run(collect);
        self.run([text(&script), image, &format!("{IMAGE}:{tag}"), directory, "/weft"]);
        self.containerd().import(image);
        self.run(["rm", "-r", directory, image]);
    }

    /// Applies `deploy/base`.
    #[track_caller]
    pub fn apply_weft(&self) {
        self.apply_weft_as("base");
    }

    /// Applies one of the variants in `deploy/`.
    #[track_caller]
    pub fn apply_weft_as(&self, variant: &str) {
        self.kube().apply(&self.kube().kustomize("crds"));
        self.kube().wait_until_served();
        self.kube().apply(&self.kube().kustomize(variant));
    }

    /// Waits until weft is installed on a node that has a default network: the agent is ready, and the runtime has
    /// loaded the conflist.
    #[track_caller]
    pub fn until_weft_is_installed(&self) {
        let written = self.until("the configuration is written", || self.read(INSTALLED));
        self.containerd().until_configured(&written);
        self.until_agent_is_ready();
        self.until_ready(true);
    }

    /// Waits until the agents on all nodes are ready.
    #[track_caller]
    pub fn until_agent_is_ready(&self) {
        let nodes = self.kube().json(["nodes"])["items"].as_array().map(Vec::len);
        self.until("the agent is ready", || {
            let status = &self.kube().json(["daemonset", "-n", "kube-system", "weft-agent"])["status"];
            let ready =
                status["numberReady"] == json!(nodes) && status["updatedNumberScheduled"] == json!(nodes);
            ready.then_some(())
        });
    }
}
