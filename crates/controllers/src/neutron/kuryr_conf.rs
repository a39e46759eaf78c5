//! Reader for a `kuryr.conf`, with oslo.config's syntax.
//!
//! - Unused sections and keys are ignored, because the file also configures other parts of Kuryr.
//! - A continuation line is indented.
//! - The specification's `enabled_vif_drivers` and the later `multi_vif_drivers` mean the same.
//!
//! Source: oslo.config `iniparser.py`; Kuryr-Kubernetes `config.py`.

use std::collections::BTreeMap;

use neutron::clouds::{self, Words};
use thiserror::Error;

use crate::neutron::port_rules::{Driver, Pool, Rules, RulesError, Settings, UnknownDriver};

/// Kuryr's driver keys that affect ports: the key, the supported drivers, and the advice for other drivers.
const DRIVERS: [(&str, &[&str], &str); 4] = [
    (
        "pod_security_groups_driver",
        &["default"],
        "weft does not translate NetworkPolicies to security groups; name the groups in [neutron_defaults] pod_security_groups",
    ),
    (
        "pod_subnets_driver",
        &["default"],
        "weft creates no subnets for namespaces; name a subnet in [neutron_defaults] pod_subnet",
    ),
    (
        "pod_project_driver",
        &["default"],
        "weft creates all ports in one project; name it in [neutron_defaults] project",
    ),
    (
        "vif_pool_driver",
        &["default", "noop", "neutron", "nested", "multi_pool"],
        "remove the key, or set noop to disable the pools",
    ),
];

/// Values by section and key.
#[derive(Debug, Default)]
pub(crate) struct KuryrConf(BTreeMap<String, Words>);

/// Removes a pair of quotes around a value. A single quote is part of the value.
fn unquoted(value: &str) -> &str {
    let pair = ['"', '\''].into_iter().find_map(|quote| value.strip_prefix(quote)?.strip_suffix(quote));
    pair.unwrap_or(value)
}

/// Reason why a `kuryr.conf` is refused.
#[derive(Debug, Error)]
pub(crate) enum ConfError {
    /// A line is neither a section nor a setting.
    #[error("line {0}: neither a section nor KEY = VALUE")]
    Line(usize),
    /// A value is not a boolean.
    #[error("[{section}] {key}: {text:?} is neither true nor false")]
    Truth {
        /// Section that the key is in.
        section: String,
        /// Key name.
        key: String,
        /// Value in the file.
        text: String,
    },
    /// A value is not a number.
    #[error("[{section}] {key}: {text:?} is not a number")]
    Number {
        /// Section that the key is in.
        section: String,
        /// Key name.
        key: String,
        /// Value in the file.
        text: String,
    },
    /// A value names a Kuryr driver that weft does not support.
    #[error("[kubernetes] {key}: {named:?} is not one of {}: {hint}", .known.join(", "))]
    Driver {
        /// Key name.
        key: &'static str,
        /// Driver that is named.
        named: String,
        /// Drivers that are supported.
        known: &'static [&'static str],
        /// Advice for the user.
        hint: &'static str,
    },
    /// An item in the subnet mapping is not a pair.
    #[error("[neutron_defaults] subnet_mapping: {0:?} is not DRIVER:SUBNET")]
    SubnetMapping(String),
    /// The port driver is unknown.
    #[error("[kubernetes] pod_vif_driver: {0}")]
    VifDriver(UnknownDriver),
    /// The MTU is out of bounds.
    #[error("[neutron_defaults] network_device_mtu: larger than any MTU")]
    Mtu,
    /// The access to the cloud is invalid.
    #[error("{0}")]
    Cloud(neutron::Error),
    /// The rules are invalid.
    #[error("{0}")]
    Rules(#[from] RulesError),
}

impl KuryrConf {
    /// Parses a file's text.
    ///
    /// # Errors
    /// A line is neither a section nor a key.
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

    /// Returns a boolean, with oslo.config's spellings.
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

    /// Refuses drivers that weft does not support. Otherwise ports would differ from those that Kuryr created.
    fn check_drivers(&self) -> Result<(), ConfError> {
        for (key, known, hint) in DRIVERS {
            let named = self.text("kubernetes", key).unwrap_or("default");
            if !known.contains(&named) {
                return Err(ConfError::Driver { key, named: named.to_owned(), known, hint });
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

    /// Returns the settings that affect pod ports.
    ///
    /// # Errors
    /// A key whose value is not supported.
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
            // With Kuryr, the default network of every pod is Neutron.
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
    fn kuryr_conf_of_devstack_is_read() {
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
    fn kuryr_conf_unsupported_values_are_named() {
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
    fn kuryr_conf_quotes_and_booleans_are_read_like_oslo() {
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
