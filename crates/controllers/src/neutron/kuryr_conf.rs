//! A `kuryr.conf`, as oslo.config reads it.
//!
//! Rules: sections and keys we have no use for are passed over: the file is also that of Kuryr's other parts. A
//! continued line is indented; the specification's `enabled_vif_drivers` and the later `multi_vif_drivers` are one.
//!
//! Source: oslo.config `iniparser.py`; Kuryr-Kubernetes `config.py`.

use std::collections::BTreeMap;

use neutron::clouds::{self, Words};
use thiserror::Error;

use crate::neutron::port_rules::{Driver, Pool, Rules, RulesError, Settings, UnknownDriver};

/// The drivers of Kuryr's that decide about ports: key, those whose work is done here, what to do about another one.
const DRIVERS: [(&str, &[&str], &str); 4] = [
    (
        "pod_security_groups_driver",
        &["default"],
        "NetworkPolicies are not made security groups of here; name the groups in [neutron_defaults] pod_security_groups",
    ),
    (
        "pod_subnets_driver",
        &["default"],
        "namespaces get no subnets of their own here; name one in [neutron_defaults] pod_subnet",
    ),
    (
        "pod_project_driver",
        &["default"],
        "all ports are of one project here; name it in [neutron_defaults] project",
    ),
    (
        "vif_pool_driver",
        &["default", "noop", "neutron", "nested", "multi_pool"],
        "leave it out, or say noop to have no pools",
    ),
];

/// The values by section and key.
#[derive(Debug, Default)]
pub(crate) struct KuryrConf(BTreeMap<String, Words>);

/// Without the quotes around it; one alone is a part of the value.
fn unquoted(value: &str) -> &str {
    let pair = ['"', '\''].into_iter().find_map(|quote| value.strip_prefix(quote)?.strip_suffix(quote));
    pair.unwrap_or(value)
}

/// Reason why Kuryr's configuration cannot be followed.
#[derive(Debug, Error)]
pub(crate) enum ConfError {
    /// A line is neither a section nor a setting.
    #[error("line {0}: neither a section nor KEY = VALUE")]
    Line(usize),
    /// A setting is no truth value.
    #[error("[{section}] {key}: {text:?} is neither true nor false")]
    Truth {
        /// The section.
        section: String,
        /// The key.
        key: String,
        /// The value.
        text: String,
    },
    /// A setting is no number.
    #[error("[{section}] {key}: {text:?} is no number")]
    Number {
        /// The section.
        section: String,
        /// The key.
        key: String,
        /// The value.
        text: String,
    },
    /// A setting names a driver of Kuryr's that weft does not have.
    #[error("[kubernetes] {key}: {named:?} is not one of {}: {cure}", .known.join(", "))]
    Driver {
        /// The key.
        key: &'static str,
        /// The name.
        named: String,
        /// The names that weft knows.
        known: &'static [&'static str],
        /// The advice for the reader.
        cure: &'static str,
    },
    /// An item of the subnet mapping is no pair.
    #[error("[neutron_defaults] subnet_mapping: {0:?} is not DRIVER:SUBNET")]
    SubnetMapping(String),
    /// The driver of pods' ports is unknown.
    #[error("[kubernetes] pod_vif_driver: {0}")]
    VifDriver(UnknownDriver),
    /// The MTU is larger than any.
    #[error("[neutron_defaults] network_device_mtu: larger than any MTU")]
    Mtu,
    /// The access to the cloud is wrong.
    #[error("{0}")]
    Cloud(neutron::Error),
    /// The settings cannot be kept.
    #[error("{0}")]
    Rules(#[from] RulesError),
}

impl KuryrConf {
    /// Reads the text.
    ///
    /// # Errors
    /// A line that is none, by its number.
    pub(crate) fn parse(text: &str) -> Result<KuryrConf, ConfError> {
        let mut conf = KuryrConf::default();
        let mut section = "DEFAULT".to_owned();
        let mut last: Option<String> = None;
        for (number, line) in text.lines().enumerate() {
            let trimmed = line.trim();
            if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
                continue;
            }
            let words = conf.0.entry(section.clone()).or_default();
            if line.starts_with([' ', '\t'])
                && let Some(value) = last.as_ref().and_then(|key| words.get_mut(key))
            {
                value.push('\n');
                value.push_str(trimmed);
                continue;
            }
            if let Some(name) = trimmed.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                name.clone_into(&mut section);
                last = None;
                continue;
            }
            let Some((key, value)) = trimmed.split_once(['=', ':']) else {
                return Err(ConfError::Line(number + 1));
            };
            words.insert(key.trim().to_owned(), unquoted(value.trim()).to_owned());
            last = Some(key.trim().to_owned());
        }
        Ok(conf)
    }

    fn text(&self, section: &str, key: &str) -> Option<&str> {
        self.0.get(section)?.get(key).map(String::as_str).filter(|text| !text.is_empty())
    }

    fn list(&self, section: &str, key: &str) -> Option<Vec<String>> {
        let text = self.text(section, key)?;
        Some(
            text.split([',', '\n'])
                .map(str::trim)
                .filter(|word| !word.is_empty())
                .map(str::to_owned)
                .collect(),
        )
    }

    /// As oslo.config reads one.
    fn truth(&self, section: &str, key: &str) -> Result<bool, ConfError> {
        let text = self.text(section, key).unwrap_or("false");
        match text.to_ascii_lowercase().as_str() {
            "true" | "1" | "on" | "yes" => Ok(true),
            "false" | "0" | "off" | "no" => Ok(false),
            _ => Err(ConfError::Truth {
                section: section.to_owned(),
                key: key.to_owned(),
                text: text.to_owned(),
            }),
        }
    }

    /// Who names a driver that is not there is told: without it ports would be made that are not those he has had.
    fn check_drivers(&self) -> Result<(), ConfError> {
        for (key, known, cure) in DRIVERS {
            let named = self.text("kubernetes", key).unwrap_or("default");
            if !known.contains(&named) {
                return Err(ConfError::Driver { key, named: named.to_owned(), known, cure });
            }
        }
        Ok(())
    }

    fn number(&self, section: &str, key: &str, default: usize) -> Result<usize, ConfError> {
        match self.text(section, key) {
            None => Ok(default),
            Some(text) => text.parse().map_err(|_| ConfError::Number {
                section: section.to_owned(),
                key: key.to_owned(),
                text: text.to_owned(),
            }),
        }
    }

    /// What it says, as far as it concerns ports of pods.
    ///
    /// # Errors
    /// The key that cannot be followed.
    pub(crate) fn settings(&self) -> Result<Settings, ConfError> {
        let text = |section: &str, key: &str| self.text(section, key).unwrap_or_default().to_owned();
        self.check_drivers()?;
        let mapping = self.list("neutron_defaults", "subnet_mapping").unwrap_or_default();
        let subnet_mapping = mapping.iter().map(|pair| match pair.split_once(':') {
            Some((driver, subnet)) => Ok((driver.trim().to_owned(), subnet.trim().to_owned())),
            None => Err(ConfError::SubnetMapping(pair.clone())),
        });
        let drivers = self
            .list("kubernetes", "multi_vif_drivers")
            .or_else(|| self.list("kubernetes", "enabled_vif_drivers"))
            .unwrap_or_else(|| vec!["noop".to_owned()]);
        let defaults = Pool::default();
        let pool_driver = text("kubernetes", "vif_pool_driver");
        let vif_driver = self.text("kubernetes", "pod_vif_driver");
        let prefix = self.text("kubernetes", "additional_ifname_prefix").unwrap_or("eth").to_owned();
        let rules = Rules {
            enabled_vif_drivers: drivers,
            // Kuryr is every pod's default network.
            default_network: true,
            pod_subnet: text("neutron_defaults", "pod_subnet"),
            subnet_mapping: subnet_mapping.collect::<Result<_, ConfError>>()?,
            pod_vif_driver: match vif_driver {
                None => Driver::NeutronVif,
                Some(name) => Driver::named(name).map_err(ConfError::VifDriver)?,
            },
            project: text("neutron_defaults", "project"),
            pod_security_groups: self.list("neutron_defaults", "pod_security_groups").unwrap_or_default(),
            ovs_bridge: self.text("neutron_defaults", "ovs_bridge").unwrap_or("br-int").to_owned(),
            resource_tags: self.list("neutron_defaults", "resource_tags").unwrap_or_default(),
            port_debug: self.truth("kubernetes", "port_debug")?,
            network_device_mtu: u32::try_from(self.number("neutron_defaults", "network_device_mtu", 0)?)
                .map_err(|_| ConfError::Mtu)?,
            additional_ifname_prefix: prefix,
            worker_nodes_subnets: self
                .list("pod_vif_nested", "worker_nodes_subnets")
                .or_else(|| self.list("pod_vif_nested", "worker_nodes_subnet"))
                .unwrap_or_default(),
            pool: Pool {
                enabled: !pool_driver.is_empty() && pool_driver != "noop",
                min: self.number("vif_pool", "ports_pool_min", defaults.min)?,
                max: self.number("vif_pool", "ports_pool_max", defaults.max)?,
                batch: self.number("vif_pool", "ports_pool_batch", defaults.batch)?,
            },
            ..Rules::default()
        };
        let cloud = clouds::from_words("[neutron]", self.0.get("neutron").unwrap_or(&Words::new()));
        Ok(Settings { cloud: cloud.map_err(ConfError::Cloud)?, rules: rules.check()? })
    }
}

#[cfg(test)]
mod tests {
    use neutron::settings::Auth;

    use super::*;

    #[test]
    fn a_file_as_devstack_writes_it_is_understood() {
        let text = "# comment\n[DEFAULT]\nbindir = /opt/kuryr\n[kubernetes]\napi_root = https://10.0.0.1:6443\n\
                    enabled_vif_drivers = npwg_multiple_interfaces\n[neutron]\nauth_type = password\n\
                    auth_url = http://10.0.0.1/identity\nusername = kuryr\npassword = \"a=b\"\nuser_domain_name = Default\n\
                    project_name = k8s\nproject_domain_name = Default\nregion_name = RegionOne\nendpoint_type = internal\n\
                    [neutron_defaults]\npod_subnet = s1\npod_security_groups = a,\n   b\nresource_tags = one, two\n";
        let Settings { cloud, rules } = KuryrConf::parse(text).unwrap().settings().unwrap();
        assert!(rules.default_network && rules.reads_annotation() && !rules.pool.enabled);
        assert_eq!(rules.pod_security_groups, ["a", "b"]);
        assert_eq!(rules.resource_tags, ["one", "two"]);
        assert_eq!((cloud.interface.as_str(), cloud.region.as_deref()), ("internal", Some("RegionOne")));
        let Auth::Password { password, auth_url, .. } = cloud.auth else { panic!("{cloud:?}") };
        assert_eq!((password.0.as_str(), auth_url.as_str()), ("a=b", "http://10.0.0.1/identity"));
    }

    #[test]
    fn what_cannot_be_followed_is_named() {
        let base =
            "[neutron]\nauth_type = none\nendpoint_override = http://n\n[neutron_defaults]\npod_subnet = s\n";
        for (more, words) in [
            ("[kubernetes]\nmulti_vif_drivers = sriov\n", "\"sriov\""),
            ("[kubernetes]\npod_vif_driver = nested-dpdk\n", "neutron-vif, nested-vlan, nested-macvlan"),
            ("[vif_pool]\nports_pool_min = many\n", "[vif_pool] ports_pool_min: \"many\""),
            ("nonsense\n", "line 6"),
            ("[kubernetes]\nport_debug = perhaps\n", "[kubernetes] port_debug: \"perhaps\""),
            ("[kubernetes]\npod_security_groups_driver = policy\n", "NetworkPolicies"),
            ("[kubernetes]\npod_subnets_driver = namespace\n", "pod_subnets_driver: \"namespace\""),
            ("[kubernetes]\npod_project_driver = annotation\n", "pod_project_driver"),
            ("[kubernetes]\nvif_pool_driver = other\n", "vif_pool_driver: \"other\""),
            ("[neutron_defaults]\nnetwork_device_mtu = big\n", "network_device_mtu: \"big\""),
        ] {
            let refused = KuryrConf::parse(&format!("{base}{more}")).and_then(|conf| conf.settings());
            let refused = refused.unwrap_err().to_string();
            assert!(refused.contains(words), "{more}: {refused}");
        }
    }

    #[test]
    fn words_are_read_as_oslo_does() {
        let text = "[neutron]\nauth_type = password\nauth_url = http://k\nusername = u\npassword = it's'\nproject_name = \"p\"\n\
                    [neutron_defaults]\npod_subnet = 's'\nnetwork_device_mtu = 1400\n[kubernetes]\nport_debug = yes\n\
                    pod_security_groups_driver = default\n";
        let Settings { cloud, rules } = KuryrConf::parse(text).unwrap().settings().unwrap();
        assert!(rules.port_debug);
        assert_eq!((rules.network_device_mtu, rules.pod_subnet.as_str()), (1400, "s"));
        let Auth::Password { password, .. } = cloud.auth else { panic!("{cloud:?}") };
        assert_eq!(password.0, "it's'");
    }
}
