//! Inputs for the demo: the built-in files from `examples/`, or the given files.

use std::path::PathBuf;

use crate::input_files;
use crate::input_files::{File, Kind};
use crate::manifest_plan;
use crate::manifest_plan::LoadedInputs;
use crate::meta_plugin_config::MetaPlugin;
use crate::pod_name::PodName;
use cli_support::failure::{Exit, Failure};

/// Built-in copy of `examples/`.
const FILES: &[(&str, Kind, &str)] = &[
    (
        "examples/10-weft.conflist",
        Kind::Configuration,
        include_str!("../../../../../examples/10-weft.conflist"),
    ),
    ("examples/definitions.yaml", Kind::Manifest, include_str!("../../../../../examples/definitions.yaml")),
    ("examples/pods.yaml", Kind::Manifest, include_str!("../../../../../examples/pods.yaml")),
];

/// Files and pods for a demo.
#[derive(Debug)]
pub(super) struct DemoInputs {
    /// Manifests and configuration.
    pub(super) loaded: LoadedInputs,
    /// Pod that is shown and that pings.
    pub(super) pod: PodName,
    /// Pod that is pinged.
    pub(super) partner: PodName,
}

/// Returns the files and the two pods; by default the first two in the manifests.
pub(super) fn load(
    files: &[PathBuf],
    pod: Option<&PodName>,
    partner: Option<&PodName>,
) -> Result<DemoInputs, Failure> {
    let files = match files.is_empty() {
        true => built_in(),
        false => input_files::read(files)?,
    };
    let meta_plugin = MetaPlugin::find(None, &files)?;
    let loaded = LoadedInputs { files, meta_plugin };
    let mut names = Vec::new();
    for pod in manifest_plan::collect(loaded.manifests()).pods {
        names.push(PodName::new(&pod.namespace, &pod.name).map_err(|error| Failure::new(error.to_string()))?);
    }
    let mut others = names.iter().filter(|name| Some(*name) != pod && Some(*name) != partner);
    let pod = pod.or_else(|| others.next()).cloned();
    let partner = partner.or_else(|| others.next()).cloned();
    match (pod, partner) {
        (Some(pod), Some(partner)) if pod != partner => Ok(DemoInputs { loaded, pod, partner }),
        (Some(pod), Some(_)) => Err(Failure::new(format!("--pod and --partner both name {pod}"))
            .next("the demo pings from --pod to --partner; name two different pods")
            .exit(Exit::Usage)),
        _ => Err(Failure::new(format!("the demo needs two pods, but the manifests contain {}", names.len()))
            .next("name the pods with --pod and --partner; the demo pings from the first to the second")),
    }
}

fn built_in() -> Vec<File> {
    let file = |(path, kind, text): &(&str, Kind, &str)| File {
        path: path.into(),
        text: (*text).to_owned(),
        kind: *kind,
    };
    FILES.iter().map(file).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demo_example_has_every_form_of_selection() {
        let DemoInputs { loaded, pod, partner } = load(&[], None, None).unwrap();
        assert_eq!(
            (pod.to_string(), partner.to_string()),
            ("my-namespace/my-pod".into(), "my-namespace/my-partner".into())
        );
        let networks = |pod: &PodName| -> Vec<(String, String)> {
            let plan = loaded.plan(pod).unwrap();
            plan.delegates.iter().map(|d| (d.ifname.to_string(), d.network.clone())).collect()
        };
        let named = |list: &[(&str, &str)]| -> Vec<(String, String)> {
            list.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
        };
        // The comma form, another namespace, one network twice.
        assert_eq!(
            networks(&pod),
            named(&[
                ("eth0", "default-network"),
                ("net1", "my-namespace/net-a"),
                ("net2", "my-namespace/net-b"),
                ("net3", "other-ns/net-c"),
                ("net4", "my-namespace/net-a"),
            ])
        );
        // The JSON form, with an interface, addresses and a hardware address.
        let plan = loaded.plan(&partner).unwrap();
        let blue = plan.delegates.iter().find(|delegate| delegate.ifname.as_str() == "blue").unwrap();
        assert_eq!(blue.verify.ips.len(), 1);
        assert_eq!(blue.verify.mac.as_ref().unwrap().to_string(), "aa:bb:cc:dd:ee:ff");
    }

    #[test]
    fn demo_example_keeps_addresses_in_the_directory_of_the_run() {
        for (path, _, text) in FILES {
            let managers = text.matches(r#""host-local""#).count() + text.matches(r#""weft-ipam""#).count();
            assert_eq!(
                text.matches(r#""dataDir": "/run/weft-example/addresses""#).count(),
                managers,
                "{path}"
            );
        }
    }

    #[test]
    fn demo_requires_two_different_pods() {
        let pod = PodName::new("a", "b").unwrap();
        assert!(load(&[], Some(&pod), Some(&pod)).is_err());
    }
}
