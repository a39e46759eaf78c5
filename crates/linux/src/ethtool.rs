//! Reads and changes link offloads through ethtool's netlink interface.
//!
//! A request names only the offload that should change; the kernel also turns off the offloads that depend on it.
//! Kernels before 5.6 do not have this netlink family, so the operation fails there.
//!
//! Source: kernel `Documentation/networking/ethtool-netlink.rst`, `include/uapi/linux/ethtool_netlink.h`,
//! `genetlink.h`.

use rustix::io::Errno;

use crate::attributes::{Attributes, find, items, text};
use crate::error::Error;
use crate::netfilter::Message;
use crate::netlink::{Protocol, Request, Socket};

/// `GENL_ID_CTRL`
const CONTROL: u16 = 16;
/// `CTRL_CMD_GETFAMILY`
const FIND_FAMILY: u8 = 3;
/// `CTRL_ATTR_FAMILY_ID`, `CTRL_ATTR_FAMILY_NAME`
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

/// `ETHTOOL_MSG_FEATURES_GET`
const READ_FEATURES: u8 = 11;
/// `ETHTOOL_MSG_FEATURES_SET`
const SET_FEATURES: u8 = 12;
/// `ETHTOOL_A_FEATURES_HEADER`, `ETHTOOL_A_FEATURES_WANTED`
const HEADER: u16 = 1;
const WANTED: u16 = 3;
/// `ETHTOOL_A_HEADER_DEV_NAME`
const DEVICE_NAME: u16 = 2;
/// `ETHTOOL_A_BITSET_BITS`, `ETHTOOL_A_BITSET_BITS_BIT`, `ETHTOOL_A_BITSET_BIT_NAME`, `ETHTOOL_A_BITSET_BIT_VALUE`
const BITS: u16 = 3;
const BIT: u16 = 1;
const BIT_NAME: u16 = 2;
const BIT_VALUE: u16 = 3;

/// Makes a link in this thread's namespace compute checksums in software, which also turns off offloads that depend on
/// checksum offload. `ethtool -K NAME tx off`
pub fn disable_tx_checksum(name: &str) -> Result<(), Error> {
    set_features(name, &[("tx-checksum-ip-generic", false)])
}

/// Lists the offloads that were requested for a link in this thread's namespace, even those that the driver lacks.
/// `ethtool -k NAME`
pub fn wanted_features(name: &str) -> Result<Vec<String>, Error> {
    let operation = || format!("read the offloads of {name}");
    let answers = request(READ_FEATURES, &header(name), operation)?;
    let wanted = answers.iter().find_map(|answer| find(answer.attributes.as_bytes(), WANTED));
    let bits = wanted.and_then(|bitset| find(bitset, BITS)).unwrap_or_default();
    let named = items(bits).filter_map(|(_, bit)| find(bit, BIT_NAME));
    Ok(named.map(text).collect())
}

/// Changes the named offloads on a link in this thread's namespace. `ethtool -K NAME FEATURE on|off`
pub fn set_features(name: &str, features: &[(&str, bool)]) -> Result<(), Error> {
    let mut set = header(name);
    set.nested(WANTED, |wanted| {
        wanted.nested(BITS, |bits| {
            for (feature, on) in features {
                // A named bit without a value is switched off.
                bits.nested(BIT, |bit| {
                    bit.text(BIT_NAME, feature);
                    if *on {
                        bit.bytes(BIT_VALUE, &[]);
                    }
                });
            }
        });
    });
    request(SET_FEATURES, &set, || format!("change the offloads of {name}")).map(drop)
}

fn header(name: &str) -> Attributes {
    let mut attributes = Attributes::new();
    attributes.nested(HEADER, |header| {
        header.text(DEVICE_NAME, name);
    });
    attributes
}

/// Sends an ethtool command.
fn request(
    command: u8,
    attributes: &Attributes,
    operation: impl Fn() -> String,
) -> Result<Vec<Message>, Error> {
    let mut socket = Socket::open(Protocol::Generic)?;
    let mut ask = Attributes::new();
    ask.text(FAMILY_NAME, "ethtool");
    // Generic netlink and netfilter both have a four-byte header; the command takes the place of netfilter's family.
    let message = Message { kind: CONTROL, family: FIND_FAMILY, resource: 0, attributes: ask };
    let answers =
        socket.exchange(vec![Request { flags: 0, message }]).map_err(|failure| failure.of(operation()))?;
    let family = answers.iter().find_map(|answer| find(answer.attributes.as_bytes(), FAMILY_ID));
    let Some(kind) = family.and_then(|id| Some(u16::from_ne_bytes(id.try_into().ok()?))) else {
        return Err(Error::kernel(operation(), Errno::OPNOTSUPP));
    };
    let message = Message { kind, family: command, resource: 0, attributes: attributes.clone() };
    socket.exchange(vec![Request { flags: 0, message }]).map_err(|failure| failure.of(operation()))
}
