//! Removes tracked connections whose address or port now belongs to another pod.
//!
//! A UDP client that keeps sending keeps the flow alive, and with it the old translation. After a port mapping changes,
//! or after another pod gets the address, the client's packets would go to the wrong place.
//!
//! - A flow that ended by itself in the meantime is not an error.
//! - The kernel filters the list if it can (5.8 and later); the answers are still checked.
//! - Listing walks through the whole table and locks each bucket, while a filtered removal skips empty buckets. Removal
//!   by filter is therefore preferred.
//!
//! Source: kernel `include/uapi/linux/netfilter/nfnetlink_conntrack.h`, `net/netfilter/nf_internals.h` (the bits of a
//! filter), conntrack(8).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rustix::io::Errno;

use crate::attributes::{Attributes, find};
use crate::error::Error;
use crate::netfilter::Message;
use crate::netfilter::pool::PooledSocket;
use crate::netlink::{Failure, Request};
use crate::nft::Protocol;

/// `NFNL_SUBSYS_CTNETLINK`, in the upper byte.
const SUBSYSTEM: u16 = 1 << 8;
const GET: u16 = SUBSYSTEM | 1;
const DELETE: u16 = SUBSYSTEM | 2;
const GET_STATISTICS: u16 = SUBSYSTEM | 5;

/// `CTA_STATS_GLOBAL_ENTRIES`.
const STATISTICS_ENTRIES: u16 = 1;

const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const ID: u16 = 12;
const ZONE: u16 = 18;
const FILTER: u16 = 25;
const FILTER_ORIGINAL: u16 = 1;
const FILTER_REPLY: u16 = 2;

const TUPLE_IP: u16 = 1;
const TUPLE_PROTOCOL: u16 = 2;
const SOURCE_4: u16 = 1;
const DESTINATION_4: u16 = 2;
const SOURCE_6: u16 = 3;
const DESTINATION_6: u16 = 4;
const PROTOCOL_NUMBER: u16 = 1;
const SOURCE_PORT: u16 = 2;
const DESTINATION_PORT: u16 = 3;

/// `CTA_FILTER_F_CTA_IP_SRC`.
const BY_SOURCE: u32 = 1 << 0;

/// `CTA_FILTER_F_CTA_IP_DST`.
const BY_DESTINATION: u32 = 1 << 1;

/// `CTA_FILTER_F_CTA_PROTO_NUM`.
const BY_PROTOCOL: u32 = 1 << 3;

/// `CTA_FILTER_F_CTA_PROTO_DST_PORT`.
const BY_DESTINATION_PORT: u32 = 1 << 5;

/// `NFPROTO_IPV4` and `NFPROTO_IPV6`.
const FAMILIES: [u8; 2] = [2, 10];

/// Maximum number of flows removed with one datagram.
const TOGETHER: usize = 256;

/// Tracked connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Source and destination in the first packet.
    pub original: FlowEnds,
    /// Source and destination in replies; the source is where the first packet went after translation.
    pub reply: FlowEnds,
}

/// Source and destination of packets in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowEnds {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Transport protocol number.
    pub protocol: u8,
    /// Source port; 0 for a protocol without ports.
    pub source_port: u16,
    /// Destination port; 0 for a protocol without ports.
    pub destination_port: u16,
}

/// Connection tracking in one network namespace.
///
/// The socket stays open and is reused, like the one in [`crate::nft::Nft`].
#[derive(Debug)]
pub struct Conntrack {
    socket: PooledSocket,
}

impl Conntrack {
    /// Opens a socket in the calling thread's namespace; for another one see [`crate::Netns::conntrack`].
    pub fn open() -> Result<Conntrack, Error> {
        PooledSocket::open().map(|socket| Conntrack { socket })
    }

    /// Removes flows that were sent to one of these ports, for IPv4 and IPv6; returns how many there were.
    ///
    /// `conntrack -D -p udp --orig-port-dst 53`
    pub fn forget_ports(&mut self, protocol: Protocol, ports: &[u16]) -> Result<usize, Error> {
        let filter = match ports {
            [] => return Ok(0),
            [port] => preselect(protocol, Some(*port)),
            _ => preselect(protocol, None),
        };
        let mut forgotten = 0;
        for family in FAMILIES {
            forgotten += self.forget(family, &filter, |flow| {
                let Some(tuple) = flow.find(TUPLE_ORIGINAL).and_then(|tuple| find(tuple, TUPLE_PROTOCOL))
                else {
                    return false;
                };
                let port = find(tuple, DESTINATION_PORT)
                    .and_then(|port| Some(u16::from_be_bytes(port.try_into().ok()?)));
                find(tuple, PROTOCOL_NUMBER) == Some(&[protocol.number()])
                    && port.is_some_and(|port| ports.contains(&port))
            })?;
        }
        Ok(forgotten)
    }

    /// Whether the namespace has no tracked connection. Unlike a list, this does not walk through the table, which all
    /// namespaces share.
    pub fn is_empty(&mut self) -> Result<bool, Error> {
        let message = Message { kind: GET_STATISTICS, family: 0, resource: 0, attributes: Attributes::new() };
        let answers = self
            .socket
            .exchange(vec![Request { flags: 0, message }])
            .map_err(|failure| failure.of("count tracked connections"))?;
        let count = answers.iter().find_map(|answer| answer.attributes.find(STATISTICS_ENTRIES));
        Ok(count == Some(&[0; 4]))
    }

    /// Removes flows from or to this address, before or after translation.
    ///
    /// `conntrack -D -s ADDRESS`, and the same for `-d`, `-r` and `-q`
    ///
    /// The kernel removes them itself if it can (6.12 and later). Older kernels refuse that, so the flows are listed
    /// instead.
    pub fn forget_address(&mut self, address: IpAddr) -> Result<(), Error> {
        let family = FAMILIES[usize::from(address.is_ipv6())];
        let sides = [(TUPLE_ORIGINAL, FILTER_ORIGINAL), (TUPLE_REPLY, FILTER_REPLY)];
        let filters = sides.into_iter().flat_map(|(tuple, flags)| {
            [BY_SOURCE, BY_DESTINATION].map(|end| preselect_end(tuple, flags, end, address))
        });
        let removal = |attributes| Request {
            flags: 0,
            message: Message { kind: DELETE, family, resource: 0, attributes },
        };
        match self.socket.exchange(filters.map(removal).collect()) {
            Ok(_) => Ok(()),
            Err(Failure::Refused(_)) => {
                self.forget(family, &Attributes::new(), |flow| has_address(flow, address)).map(drop)
            }
            Err(failure) => Err(failure.of("forget tracked connections of an address")),
        }
    }

    /// Removes those flows from or to this address that `is_meant` selects, and returns how many there were. A flow
    /// whose ends cannot be read is removed as well. The kernel is asked first for flows from the address and then for
    /// flows to it, so that it does not have to list all others.
    pub fn forget_flows(
        &mut self,
        address: IpAddr,
        is_meant: impl Fn(&Flow) -> bool,
    ) -> Result<usize, Error> {
        let family = FAMILIES[usize::from(address.is_ipv6())];
        let mut forgotten = 0;
        for (tuple, flags) in [(TUPLE_ORIGINAL, FILTER_ORIGINAL), (TUPLE_REPLY, FILTER_REPLY)] {
            let filter = preselect_end(tuple, flags, BY_SOURCE, address);
            forgotten += self.forget(family, &filter, |attributes| match Flow::read(attributes) {
                Some(flow) => {
                    let FlowEnds { source, .. } = flow.original;
                    [source, flow.reply.source].contains(&address) && is_meant(&flow)
                }
                None => has_address(attributes, address),
            })?;
        }
        Ok(forgotten)
    }

    fn forget(
        &mut self,
        family: u8,
        filter: &Attributes,
        is_meant: impl Fn(&Attributes) -> bool,
    ) -> Result<usize, Error> {
        let request = Message { kind: GET, family, resource: 0, attributes: filter.clone() };
        let flows =
            self.socket.dump(0, &request).map_err(|failure| failure.of("list tracked connections"))?;
        let meant: Vec<Attributes> =
            flows.into_iter().map(|flow| flow.attributes).filter(|flow| is_meant(flow)).collect();
        for flows in meant.chunks(TOGETHER) {
            let requests = flows.iter().map(|flow| Request { flags: 0, message: deletion(family, flow) });
            match self.socket.exchange(requests.collect()) {
                Ok(_) => {}
                Err(Failure::Refused(refusal)) if refusal.errno == Errno::NOENT => {}
                Err(failure) => return Err(failure.of("forget tracked connection")),
            }
        }
        Ok(meant.len())
    }
}

// === impl Flow ===

impl Flow {
    fn read(flow: &Attributes) -> Option<Flow> {
        let ends = |tuple| FlowEnds::read(flow.find(tuple)?);
        Some(Flow { original: ends(TUPLE_ORIGINAL)?, reply: ends(TUPLE_REPLY)? })
    }
}

// === impl FlowEnds ===

impl FlowEnds {
    fn read(tuple: &[u8]) -> Option<FlowEnds> {
        let mut addresses = addresses(find(tuple, TUPLE_IP)?);
        let (source, destination) = (addresses.next()?, addresses.next()?);
        let transport = find(tuple, TUPLE_PROTOCOL)?;
        let &[protocol] = find(transport, PROTOCOL_NUMBER)? else { return None };
        let port = |kind| {
            find(transport, kind)
                .and_then(|port| Some(u16::from_be_bytes(port.try_into().ok()?)))
                .unwrap_or(0)
        };
        let (source_port, destination_port) = (port(SOURCE_PORT), port(DESTINATION_PORT));
        Some(FlowEnds { source, destination, protocol, source_port, destination_port })
    }
}

/// Whether a flow has this address, before or after translation.
fn has_address(flow: &Attributes, address: IpAddr) -> bool {
    let tuples =
        [TUPLE_ORIGINAL, TUPLE_REPLY].into_iter().filter_map(|tuple| find(flow.find(tuple)?, TUPLE_IP));
    tuples.flat_map(addresses).any(|found| found == address)
}

/// Builds the filter for a list request.
fn preselect(protocol: Protocol, port: Option<u16>) -> Attributes {
    let mut flags = BY_PROTOCOL;
    let mut filter = Attributes::new();
    filter.nested(TUPLE_ORIGINAL, |tuple| {
        tuple.nested(TUPLE_PROTOCOL, |inner| {
            inner.bytes(PROTOCOL_NUMBER, &[protocol.number()]);
            if let Some(port) = port {
                flags |= BY_DESTINATION_PORT;
                inner.bytes(DESTINATION_PORT, &port.to_be_bytes());
            }
        });
    });
    filter.nested(FILTER, |inner| {
        // Unlike nearly all netfilter values, this one is in this machine's byte order.
        inner.bytes(FILTER_ORIGINAL, &flags.to_ne_bytes());
    });
    filter
}

/// Builds a filter for flows that have this address at one end in one direction.
///
/// Without `CTA_FILTER`, the kernel refuses a removal that gives only part of a tuple. It never removes other flows.
fn preselect_end(tuple: u16, flags: u16, end: u32, address: IpAddr) -> Attributes {
    let kind = match (address, end) {
        (IpAddr::V4(_), BY_SOURCE) => SOURCE_4,
        (IpAddr::V4(_), _) => DESTINATION_4,
        (IpAddr::V6(_), BY_SOURCE) => SOURCE_6,
        (IpAddr::V6(_), _) => DESTINATION_6,
    };
    let mut filter = Attributes::new();
    filter.nested(tuple, |tuple| {
        tuple.nested(TUPLE_IP, |inner| {
            inner.address(kind, address);
        });
    });
    filter.nested(FILTER, |inner| {
        inner.bytes(flags, &end.to_ne_bytes());
    });
    filter
}

/// Builds the request that removes exactly this flow. The id excludes a later flow between the same endpoints.
fn deletion(family: u8, flow: &Attributes) -> Message {
    let mut attributes = Attributes::new();
    for kind in [TUPLE_ORIGINAL, ZONE, ID] {
        if let Some(value) = flow.find(kind) {
            attributes.bytes(kind, value);
        }
    }
    Message { kind: DELETE, family, resource: 0, attributes }
}

/// Iterates over source and destination in one direction.
fn addresses(tuple: &[u8]) -> impl Iterator<Item = IpAddr> {
    let four = [SOURCE_4, DESTINATION_4].into_iter().filter_map(|kind| {
        let bytes: [u8; 4] = find(tuple, kind)?.try_into().ok()?;
        Some(IpAddr::V4(Ipv4Addr::from(bytes)))
    });
    let six = [SOURCE_6, DESTINATION_6].into_iter().filter_map(|kind| {
        let bytes: [u8; 16] = find(tuple, kind)?.try_into().ok()?;
        Some(IpAddr::V6(Ipv6Addr::from(bytes)))
    });
    four.chain(six)
}
