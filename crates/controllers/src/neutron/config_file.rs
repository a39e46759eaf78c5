//! Configuration files for the Neutron controller: weft's own YAML, or a `kuryr.conf`.

use std::fmt;
use std::path::{Path, PathBuf};

use neutron::clouds;
use serde::Deserialize;

use super::kuryr_conf::KuryrConf;
use crate::neutron::port_rules::{Rules, Settings};
use cli_support::failure::{Exit, Failure};

/// Maximum file size, in bytes.
const FILE_MAX: u64 = 1 << 20;
/// Content of weft's own file: the rules, and the cloud.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct File {
    cloud: Option<Cloud>,
    neutron: Rules,
}

/// Cloud in a `clouds.yaml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cloud {
    name: String,
    #[serde(default)]
    file: Option<PathBuf>,
}

impl File {
    /// Parses the YAML text. An empty file has all defaults.
    fn parse(text: &str) -> Result<File, FileError> {
        let mut documents = manifest::values(text)?;
        match (documents.pop(), documents.is_empty()) {
            (None, _) => Ok(File::default()),
            (Some(document), true) => {
                cni::fold::strict(&document, "").map_err(|error| FileError::Value(Box::new(error)))
            }
            (Some(_), false) => Err(FileError::Documents),
        }
    }
}

/// Why the file gives no settings.
#[derive(Debug, thiserror::Error)]
enum FileError {
    /// It is not YAML.
    #[error(transparent)]
    Yaml(#[from] manifest::DocumentError),
    /// A value is invalid.
    #[error(transparent)]
    Value(Box<cni::Error>),
    /// It has several documents.
    #[error("it has several documents: remove all but one, and the lines with ---")]
    Documents,
}

/// Reads one of the two files; without a file, the cloud is read from the environment.
pub(crate) fn read(config: Option<&Path>, kuryr: Option<&Path>) -> Result<Settings, Failure> {
    let environment = |name: &str| std::env::var(name).ok();
    match (config, kuryr) {
        (Some(_), Some(_)) => {
            Err(Failure::new("--config and --kuryr-conf: only one of them may be given").exit(Exit::Usage))
        }
        (None, Some(path)) => KuryrConf::parse(&text(path)?)
            .and_then(|conf| conf.settings())
            .map_err(|why| Failure::new(format!("{}: {why}", path.display()))),
        (Some(path), None) => {
            let failed = |why: &dyn fmt::Display| Failure::new(format!("{}: {why}", path.display()));
            let File { cloud, neutron: rules } = File::parse(&text(path)?).map_err(|why| failed(&why))?;
            let cloud = match cloud {
                None => clouds::from_environment(environment),
                Some(Cloud { name, file }) => {
                    let file = file.or_else(|| environment("OS_CLIENT_CONFIG_FILE").map(PathBuf::from));
                    let file = file.unwrap_or_else(|| PathBuf::from(clouds::PLACES[1]));
                    clouds::from_file(&file, &name)
                }
            };
            Ok(Settings {
                cloud: cloud.map_err(cloud_failure)?,
                rules: rules.check().map_err(|error| failed(&error))?,
            })
        }
        (None, None) => {
            let cloud = clouds::from_environment(environment).map_err(cloud_failure)?;
            Ok(Settings { cloud, rules: Rules::default() })
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "map_err passes it by value")]
fn cloud_failure(error: neutron::Error) -> Failure {
    Failure::new(error.to_string())
        .next("set OS_CLOUD, or OS_AUTH_URL and the other OS_* variables, or name a cloud in --config")
}

fn text(path: &Path) -> Result<String, Failure> {
    let failed = |cause: &dyn fmt::Display| Failure::new(format!("{}: {cause}", path.display()));
    let length = std::fs::metadata(path).map_err(|cause| failed(&cause))?.len();
    if length > FILE_MAX {
        return Err(failed(&format!("larger than {FILE_MAX} bytes")));
    }
    std::fs::read_to_string(path).map_err(|cause| failed(&cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_file_of_weft_equals_a_kuryr_conf() {
        let ours = "neutron:\n  enabledVifDrivers: [npwg_multiple_interfaces]\n  podSubnet: s1\n  defaultNetwork: true\n  \
                    podSecurityGroups: [a, b]\n  project: p1\n  subnetMapping: {nested-vlan: s2}\n  \
                    podVifDriver: nested-vlan\n  pool: {enabled: true, min: 3}\n";
        let File { neutron: rules, .. } = File::parse(ours).unwrap();
        let theirs = "[kubernetes]\nmulti_vif_drivers = npwg_multiple_interfaces\npod_vif_driver = nested-vlan\n\
                      vif_pool_driver = neutron\n[neutron_defaults]\npod_subnet = s1\nproject = p1\n\
                      pod_security_groups = a,b\nsubnet_mapping = nested-vlan:s2\n[vif_pool]\nports_pool_min = 3\n\
                      [neutron]\nauth_type = none\nendpoint_override = http://n:9696\n";
        let conf = KuryrConf::parse(theirs).unwrap().settings().unwrap();
        assert_eq!(rules.check().unwrap(), conf.rules);
    }

    #[test]
    fn config_file_unknown_keys_and_drivers_are_named() {
        let refused = |text: &str| File::parse(text).unwrap_err().to_string();
        assert!(refused("neutron: {podSubnets: x}").contains("podSubnets"));
        assert!(
            refused("neutron: {podVifDriver: sriov}").contains("neutron-vif, nested-vlan, nested-macvlan")
        );
    }

    #[test]
    fn config_file_errors_have_path_value_and_expected_form() {
        for (text, expected) in [
            (
                "neutron:\n  pool: {min: many}\n",
                "neutron.pool.min: \"many\": expected a whole number, 0 or greater",
            ),
            ("neutron:\n  defaultNetwork: \"true\"\n", "expected true or false; remove the quotation marks"),
            ("neutron:\n  podSecurityGroups: a\n", "neutron.podSecurityGroups: \"a\": expected a list"),
            ("neutron: []\n", "neutron: []: expected an object"),
            ("cloud: {}\n", "cloud: {}: the key \"name\" is missing"),
            ("neutron: {pool: [}\n", "line 1, column 17: not YAML: "),
            ("a: 1\n---\nb: 2\n", "several documents"),
        ] {
            let error = File::parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        assert!(File::parse("").unwrap().cloud.is_none());
    }
}
