//! Interface settings that survive a move to another namespace: broadcast address, link mode, sizes of aggregated
//! packets, XDP programs.
//!
//! When an interface moves to another namespace, the kernel removes queueing disciplines, filters, neighbours and
//! addresses, but leaves these settings. They must therefore be reset explicitly.
//!
//! Source: kernel `include/uapi/linux/if_link.h`, `net/core/rtnetlink.c` (`do_setlink`, `rtnl_xdp_fill`),
//! `net/core/dev.c` (`__dev_change_net_namespace`).

use crate::attributes::{Attributes, items, ne32_of};

/// `IFLA_BROADCAST`
const BROADCAST: u16 = 2;
/// `IFLA_LINKMODE`
const LINK_MODE: u16 = 17;
/// `IFLA_PROTO_DOWN`
const PROTOCOL_DOWN: u16 = 39;
/// `IFLA_GSO_MAX_SEGS`, `IFLA_GSO_MAX_SIZE`, `IFLA_GRO_MAX_SIZE`, `IFLA_GSO_IPV4_MAX_SIZE`, `IFLA_GRO_IPV4_MAX_SIZE`
const AGGREGATION: [u16; 5] = [40, 41, 58, 63, 64];
/// `IFLA_XDP`
pub(super) const XDP: u16 = 43;
/// `IFLA_XDP_FD`
const XDP_DESCRIPTOR: u16 = 1;
/// `IFLA_XDP_FLAGS`
const XDP_FLAGS: u16 = 3;
/// `IFLA_XDP_DRV_PROG_ID`, `IFLA_XDP_SKB_PROG_ID`, `IFLA_XDP_HW_PROG_ID`, each with the `XDP_FLAGS_…_MODE`.
const XDP_MODES: [(u16, u32); 3] = [(5, 4), (6, 2), (7, 8)];

/// Interface settings; empty or zero means unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceSettings {
    /// Broadcast MAC address. `ip link set dev NAME broadcast ADDRESS`
    pub broadcast: Vec<u8>,
    /// Link mode: 0 default, 1 dormant, 2 testing. `ip link set dev NAME mode dormant`
    pub link_mode: u8,
    /// Whether a protocol has switched the link off. `ip link set dev NAME protodown on`
    pub protocol_down: bool,
    /// `gso_max_segs`, `gso_max_size`, `gro_max_size`, `gso_ipv4_max_size`, `gro_ipv4_max_size`.
    pub aggregation: [u32; 5],
}

/// XDP program on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpProgram {
    /// Where the program runs, as `XDP_FLAGS_…_MODE`: 2 generic, 4 driver, 8 hardware.
    pub mode: u32,
    /// Program id.
    pub id: u32,
}

/// Change from present to wanted settings.
#[derive(Clone, Copy, Debug)]
pub struct SettingsChange<'a> {
    /// Settings after the change; unknown ones stay as they are.
    pub wanted: &'a DeviceSettings,
    /// Settings before the change.
    pub present: &'a DeviceSettings,
}

impl DeviceSettings {
    /// Reads one link attribute.
    pub(super) fn read(&mut self, kind: u16, value: &[u8]) {
        match kind {
            BROADCAST => self.broadcast = value.to_vec(),
            LINK_MODE => self.link_mode = value.first().copied().unwrap_or_default(),
            PROTOCOL_DOWN => self.protocol_down = value.first().is_some_and(|on| *on != 0),
            _ => {
                if let Some(at) = AGGREGATION.iter().position(|one| *one == kind) {
                    self.aggregation[at] = ne32_of(value).unwrap_or_default();
                }
            }
        }
    }
}

impl SettingsChange<'_> {
    /// Whether there is nothing to change.
    pub fn is_empty(&self) -> bool {
        let mut list = Attributes::new();
        self.write(&mut list);
        list.len() == 0
    }

    /// Writes the settings that differ. A driver that lacks a setting always reports the same value, so it is not asked
    /// to change it.
    pub(super) fn write(&self, list: &mut Attributes) {
        let SettingsChange { wanted, present } = self;
        if !wanted.broadcast.is_empty() && wanted.broadcast != present.broadcast {
            list.bytes(BROADCAST, &wanted.broadcast);
        }
        if wanted.link_mode != present.link_mode {
            list.byte(LINK_MODE, wanted.link_mode);
        }
        if wanted.protocol_down != present.protocol_down {
            list.byte(PROTOCOL_DOWN, wanted.protocol_down.into());
        }
        for (at, kind) in AGGREGATION.into_iter().enumerate() {
            let size = wanted.aggregation[at];
            if size != 0 && size != present.aggregation[at] {
                list.ne32(kind, size);
            }
        }
    }
}

/// Reads the programs from an `IFLA_XDP` attribute.
pub(super) fn xdp_programs(value: &[u8]) -> Vec<XdpProgram> {
    let program = |(kind, id): (u16, &[u8])| {
        let (_, mode) = XDP_MODES.into_iter().find(|(of, _)| *of == kind)?;
        ne32_of(id).filter(|id| *id != 0).map(|id| XdpProgram { mode, id })
    };
    items(value).filter_map(program).collect()
}

/// Writes a settings change, and removes the XDP program in one mode: `ip link set dev NAME
/// xdpdrv|xdpgeneric|xdpoffload off`.
pub(super) fn write(list: &mut Attributes, settings: Option<&SettingsChange<'_>>, remove_xdp: Option<u32>) {
    if let Some(settings) = settings {
        settings.write(list);
    }
    if let Some(mode) = remove_xdp {
        list.nested(XDP, |xdp| {
            xdp.ne32(XDP_DESCRIPTOR, u32::MAX).ne32(XDP_FLAGS, mode);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_settings_write_only_known_differences() {
        let present = DeviceSettings {
            broadcast: vec![1; 6],
            link_mode: 1,
            protocol_down: true,
            aggregation: [1, 2, 3, 4, 5],
        };
        let unknown = DeviceSettings { link_mode: 1, protocol_down: true, ..DeviceSettings::default() };
        assert!(SettingsChange { wanted: &unknown, present: &present }.is_empty());
        let wanted = DeviceSettings {
            broadcast: vec![255; 6],
            link_mode: 0,
            protocol_down: false,
            aggregation: [1, 9, 0, 4, 5],
        };
        let mut list = Attributes::new();
        SettingsChange { wanted: &wanted, present: &present }.write(&mut list);
        let kinds: Vec<u16> = list.items().map(|(kind, _)| kind).collect();
        assert_eq!(kinds, [BROADCAST, LINK_MODE, PROTOCOL_DOWN, AGGREGATION[1]]);
    }

    #[test]
    fn xdp_programs_are_read_by_mode() {
        let mut list = Attributes::new();
        list.byte(2, 4).ne32(4, 7).ne32(5, 7).ne32(6, 9);
        let programs = xdp_programs(list.as_bytes());
        assert_eq!(programs, [XdpProgram { mode: 4, id: 7 }, XdpProgram { mode: 2, id: 9 }]);
    }
}
