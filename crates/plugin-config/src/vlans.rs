//! VLANs on a bridge port, from the `bridge` options `vlan`, `vlanTrunk` and `preserveDefaultVlan`.

use cni::Error;
use serde::Deserialize;

/// Largest VLAN id.
const VLAN_MAX: u16 = 4094;

/// Entry in `vlanTrunk`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Trunk {
    /// First VLAN in a range.
    #[serde(rename = "minID")]
    min_id: Option<i64>,
    /// Last VLAN in a range.
    #[serde(rename = "maxID")]
    max_id: Option<i64>,
    /// Single VLAN.
    id: Option<i64>,
}

/// Validated VLANs for a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vlans {
    /// VLAN that untagged traffic is in.
    pub access: Option<u16>,
    /// VLANs that tagged traffic can be in, sorted, without duplicates.
    pub trunk: Vec<u16>,
    /// Whether the port keeps the bridge's default VLAN.
    pub preserve_default: bool,
    /// Whether `vlanTrunk` is present, even if empty: the bridge filters then, as with the reference plugin.
    pub trunk_written: bool,
}

impl Vlans {
    pub(crate) fn check(
        bridge: &str,
        vlan: u16,
        trunk: Option<Vec<Trunk>>,
        preserve_default: bool,
    ) -> Result<Vlans, Error> {
        if vlan > VLAN_MAX {
            return Err(Error::key("vlan", vlan, format!("not between 0 and {VLAN_MAX}, bridge {bridge}")));
        }
        let trunk_written = trunk.is_some();
        let trunk = trunk.map(ids).transpose()?.unwrap_or_default();
        Ok(Vlans { access: (vlan != 0).then_some(vlan), trunk, preserve_default, trunk_written })
    }

    /// Whether the port keeps the bridge's defaults.
    pub fn is_none(&self) -> bool {
        self.access.is_none() && !self.trunk_written
    }

    /// Returns the VLANs without the trunk, for the gateway's port.
    #[must_use]
    pub fn access_only(&self) -> Vlans {
        Vlans { trunk: Vec::new(), ..self.clone() }
    }
}

impl Trunk {
    /// Adds one entry's ids to `has`: a range, a single one, or both.
    fn mark(self, index: usize, has: &mut [bool]) -> Result<(), Error> {
        let Trunk { min_id, max_id, id } = self;
        let legal = |key: &str, value: i64| {
            let within = usize::try_from(value).ok().filter(|id| (1..=usize::from(VLAN_MAX)).contains(id));
            within.ok_or_else(|| {
                Error::key(
                    format!("vlanTrunk[{index}].{key}"),
                    value,
                    format!("not between 1 and {VLAN_MAX}"),
                )
            })
        };
        let missing = |key: &str, other: &str| {
            Error::key(format!("vlanTrunk[{index}].{key}"), "missing", format!("required with {other}"))
        };
        match (min_id, max_id) {
            (None, None) => {}
            (Some(_), None) => return Err(missing("maxID", "minID")),
            (None, Some(_)) => return Err(missing("minID", "maxID")),
            (Some(min), Some(max)) => {
                let (min, max) = (legal("minID", min)?, legal("maxID", max)?);
                if min > max {
                    return Err(Error::key(
                        format!("vlanTrunk[{index}].minID"),
                        min,
                        format!("greater than maxID {max}"),
                    ));
                }
                has[min..=max].fill(true);
            }
        }
        if let Some(id) = id {
            has[legal("id", id)?] = true;
        }
        Ok(())
    }
}

/// Returns the ids in all entries, sorted, without duplicates.
fn ids(trunk: Vec<Trunk>) -> Result<Vec<u16>, Error> {
    let mut has = [false; VLAN_MAX as usize + 1];
    for (index, entry) in trunk.into_iter().enumerate() {
        entry.mark(index, &mut has)?;
    }
    Ok((1..=VLAN_MAX).filter(|id| has[usize::from(*id)]).collect())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn vlan_trunk_is_sorted_without_duplicates_and_fast() {
        let started = Instant::now();
        let entry = |min, max, id| Trunk { min_id: min, max_id: max, id };
        let mut trunk = vec![entry(Some(7), Some(9), Some(2)), entry(None, None, Some(8))];
        let ids = |trunk| Vlans::check("br0", 0, Some(trunk), false).map(|vlans| vlans.trunk);
        assert_eq!(ids(trunk).unwrap(), [2, 7, 8, 9]);
        // As many entries as the maximum size of a configuration allows.
        trunk = (0..35_000).map(|_| entry(Some(1), Some(4094), None)).collect();
        assert_eq!(ids(trunk).unwrap().len(), 4094);
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    }
}
