//! What the demo plays: the files of `examples/`, built in, or those that are named.

use std::path::PathBuf;

use crate::input_files;
use crate::input_files::{File, Kind};
use crate::manifest_plan;
use crate::manifest_plan::Material;
use crate::meta_plugin_config::MetaPlugin;
use crate::pod_name::PodName;
use cli_support::failure::{Exit, Failure};

/// The copy of `examples/`.
const FILES: &[(&str, Kind, &str)] = &[
    (
        "examples/10-weft.conflist",
        Kind::Configuration,
        include_str!("../../../../../examples/10-weft.conflist"),
    ),
    ("examples/definitions.yaml", Kind::Manifest, include_str!("../../../../../examples/definitions.yaml")),
    ("examples/pods.yaml", Kind::Manifest, include_str!("../../../../../examples/pods.yaml")),
];

/// What is played, and by whom.
#[derive(Debug)]
pub(super) struct Script {
    /// Manifests and configuration.
    pub(super) material: Material,
    /// Who is shown.
    pub(super) pod: PodName,
    /// Who answers the pings.
    pub(super) partner: PodName,
}

/// The files and the two pods; the first two that are there unless others are named.
pub(super) fn script(
    files: &[PathBuf],
    pod: Option<&PodName>,
    partner: Option<&PodName>,
) -> Result<Script, Failure> {
    let files = match files.is_empty() {
        true => built_in(),
        false => input_files::read(files)?,
    };
    let meta_plugin = MetaPlugin::find(None, &files)?;
    let material = Material { files, meta_plugin };
    let mut names = Vec::new();
    for pod in manifest_plan::collect(material.manifests()).pods {
        names.push(PodName::new(&pod.namespace, &pod.name).map_err(|error| Failure::new(error.to_string()))?);
    }
    let mut others = names.iter().filter(|name| Some(*name) != pod && Some(*name) != partner);
    let pod = pod.or_else(|| others.next()).cloned();
    let partner = partner.or_else(|| others.next()).cloned();
    match (pod, partner) {
        (Some(pod), Some(partner)) if pod != partner => Ok(Script { material, pod, partner }),
        (Some(pod), Some(_)) => Err(Failure::new(format!("--pod and --partner both name {pod}"))
            .next("pings go from the first to the second: name another one")
            .exit(Exit::Usage)),
        _ => Err(Failure::new(format!("the demo needs two pods, and the manifests hold {}", names.len()))
            .next("pings go from the first to the second; --pod and --partner name them")),
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
    fn the_example_shows_every_form_of_request() {
        let Script { material, pod, partner } = script(&[], None, None).unwrap();
        assert_eq!(
            (pod.to_string(), partner.to_string()),
            ("my-namespace/my-pod".into(), "my-namespace/my-partner".into())
        );
        let networks = |pod: &PodName| -> Vec<(String, String)> {
            let plan = material.plan(pod).unwrap();
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
        let plan = material.plan(&partner).unwrap();
        let blue = plan.delegates.iter().find(|delegate| delegate.ifname.as_str() == "blue").unwrap();
        assert_eq!(blue.verify.ips.len(), 1);
        assert_eq!(blue.verify.mac.as_ref().unwrap().to_string(), "aa:bb:cc:dd:ee:ff");
    }

    #[test]
    fn nothing_lasting_is_left_by_the_example() {
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
    fn two_pods_are_needed() {
        let pod = PodName::new("a", "b").unwrap();
        assert!(script(&[], Some(&pod), Some(&pod)).is_err());
    }
}
