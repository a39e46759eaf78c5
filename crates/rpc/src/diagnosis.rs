//! Messages between `weft` and the `weft-cni` commands that look at running sandboxes.
//!
//! `weft` reads the journal and decides which sandboxes to look at; `weft-cni` enters the namespaces. The command gets
//! the request on standard input and prints the answer. Nothing is changed.

use std::net::IpAddr;
use std::str::FromStr;

use npwg::network_policy::Direction;
use serde::{Deserialize, Serialize};

use crate::journal::PolicyRules;

/// Maximum number of interfaces in one request for counters.
pub const INTERFACES_MAX: usize = 16_384;

/// A sandbox's network namespace, as the journal has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxNamespace {
    /// Path, as the runtime passed it.
    pub netns: String,
    /// Identity that the namespace had, because the path may lead to another one later. Empty if unknown.
    #[serde(default)]
    pub namespace: String,
}

/// Request for the counters on one sandbox's interfaces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CountersRequest {
    /// Where the interfaces are.
    pub sandbox: SandboxNamespace,
    /// Interface names.
    pub interfaces: Vec<String>,
}

/// Counters for one interface; `None` in an answer if the interface or the namespace is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InterfaceCounters {
    /// Traffic that it received.
    pub received: Traffic,
    /// Traffic that it sent.
    pub sent: Traffic,
}

/// Traffic in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Bytes counted.
    pub bytes: u64,
    /// Packets counted.
    pub packets: u64,
    /// Packets with an error.
    pub errors: u64,
    /// Packets dropped.
    pub dropped: u64,
}

/// Request for the network policy counters in one sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyCountersRequest {
    /// Where the attachments are.
    pub sandbox: SandboxNamespace,
    /// Each attachment's rules, as the journal has them.
    pub attachments: Vec<PolicyRules>,
}

/// Packets that one policy rule on an attachment decided. The answer to a request has a list for each attachment, which
/// is `None` if the rules cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyCounter {
    /// Direction, as the pod sees it.
    pub direction: Direction,
    /// Index of the compiled rule that allowed the packets; `None` for packets that no rule allowed.
    pub rule: Option<usize>,
    /// Packets counted.
    pub packets: u64,
    /// Bytes counted.
    pub bytes: u64,
}

/// Request to follow packets between two pods on a network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TraceRequest {
    /// Pod that sends; it is on this node.
    pub from: TraceEnd,
    /// Pod that receives.
    pub to: TraceEnd,
    /// TCP port to connect to; without it an ICMP echo request is sent.
    pub tcp: Option<u16>,
}

/// Pod at one end of a path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TraceEnd {
    /// Pod, as `namespace/name`.
    pub pod: String,
    /// Sandbox that it runs in; `None` if it is on another node.
    pub sandbox: Option<SandboxNamespace>,
    /// Node name if the pod is on another node; empty if it is on this one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// Container id; empty if it is on another node.
    pub container: String,
    /// Interface on the network.
    pub interface: String,
    /// Addresses on the interface.
    pub addresses: Vec<IpAddr>,
}

/// Step on a packet's path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TraceStep {
    /// Subject: `attachment`, `interface`, `address`, `route`, `neighbour`, `mtu`, `port`, `vlan`, `firewall`, `probe`.
    pub step: String,
    /// Pod, or `host`.
    pub place: String,
    /// Whether packets pass here.
    #[serde(rename = "result")]
    pub verdict: Verdict,
    /// Finding at this step.
    pub found: String,
    /// Next step; empty if there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hint: String,
}

/// Verdict about a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// Packets pass.
    Ok,
    /// Packets do not pass.
    #[serde(rename = "error")]
    Fault,
    /// The step could not be examined.
    Unknown,
}

/// Request to capture frames on an interface: the first line on standard input, which stays open until the
/// capture must end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CaptureRequest {
    /// Where the interface is.
    pub sandbox: SandboxNamespace,
    /// Interface name.
    pub interface: String,
    /// Which frames to capture.
    pub filter: FrameFilter,
    /// Maximum number of frames; the capture ends after them.
    pub count: u64,
    /// Time after which the capture ends, in seconds.
    pub seconds: u64,
    /// Maximum file size in bytes; the capture ends when it is reached.
    pub bytes: u64,
    /// Number of bytes to capture from each frame.
    pub snap_length: u32,
}

/// Conditions on a frame; a captured frame meets them all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FrameFilter {
    /// Protocol that the frame must have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<FrameProtocol>,
    /// Source or destination address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<IpAddr>,
    /// TCP or UDP port, as source or destination.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

/// Protocol that a filter can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FrameProtocol {
    /// ARP.
    Arp,
    /// ICMP or ICMPv6.
    Icmp,
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// Why a filter is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "filter {filter:?}: {word:?}: expected arp, icmp, tcp, udp, `host ADDRESS` or `port PORT`, joined by `and`, each once"
)]
pub struct FilterError {
    /// Filter as given.
    pub filter: String,
    /// The word that is wrong.
    pub word: String,
}

impl FromStr for FrameFilter {
    type Err = FilterError;

    /// Reads filter words: `tcp and host 10.1.0.2 and port 80`.
    fn from_str(text: &str) -> Result<FrameFilter, FilterError> {
        let failed = |word: &str| FilterError { filter: text.to_owned(), word: word.to_owned() };
        let mut filter = FrameFilter::default();
        let mut words = text.split_whitespace().filter(|word| *word != "and");
        while let Some(word) = words.next() {
            let protocol = match word {
                "arp" => Some(FrameProtocol::Arp),
                "icmp" => Some(FrameProtocol::Icmp),
                "tcp" => Some(FrameProtocol::Tcp),
                "udp" => Some(FrameProtocol::Udp),
                _ => None,
            };
            match (word, protocol) {
                (_, Some(_)) if filter.protocol.is_none() => filter.protocol = protocol,
                ("host", _) if filter.host.is_none() => {
                    let value = words.next().unwrap_or_default();
                    filter.host = Some(value.parse().map_err(|_| failed(value))?);
                }
                ("port", _) if filter.port.is_none() => {
                    let value = words.next().unwrap_or_default();
                    filter.port = Some(value.parse().map_err(|_| failed(value))?);
                }
                _ => return Err(failed(word)),
            }
        }
        Ok(filter)
    }
}

impl FrameFilter {
    /// Whether a captured frame, which may be cut, fulfils the conditions. An IPv6 packet with extension headers has no port.
    pub fn matches(&self, frame: &[u8]) -> bool {
        let FrameFilter { protocol, host, port } = *self;
        if self == &FrameFilter::default() {
            return true;
        }
        let Some(packet) = Packet::read(frame) else { return false };
        let is_protocol = protocol.is_none_or(|protocol| packet.protocol == Some(protocol));
        let is_host = host.is_none_or(|host| packet.addresses.contains(&host));
        is_protocol
            && is_host
            && port.is_none_or(|port| packet.ports.is_some_and(|ports| ports.contains(&port)))
    }
}

/// Frame fields that a filter compares.
struct Packet {
    protocol: Option<FrameProtocol>,
    addresses: [IpAddr; 2],
    ports: Option<[u16; 2]>,
}

impl Packet {
    fn read(frame: &[u8]) -> Option<Packet> {
        let half =
            |bytes: &[u8], at: usize| Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        let v4 =
            |bytes: &[u8], at: usize| Some(IpAddr::from(<[u8; 4]>::try_from(bytes.get(at..at + 4)?).ok()?));
        let v6 =
            |bytes: &[u8], at: usize| Some(IpAddr::from(<[u8; 16]>::try_from(bytes.get(at..at + 16)?).ok()?));
        let (kind, packet) = match half(frame, 12)? {
            0x8100 => (half(frame, 16)?, frame.get(18..)?),
            kind => (kind, frame.get(14..)?),
        };
        let (number, addresses, payload) = match kind {
            0x0806 => {
                let addresses = [v4(packet, 14)?, v4(packet, 24)?];
                return Some(Packet { protocol: Some(FrameProtocol::Arp), addresses, ports: None });
            }
            0x0800 => {
                let header = usize::from(packet.first()? & 0x0f) * 4;
                // Only the first fragment has ports.
                let is_first = half(packet, 6)? & 0x1fff == 0;
                let payload = if is_first { packet.get(header..) } else { None };
                (*packet.get(9)?, [v4(packet, 12)?, v4(packet, 16)?], payload)
            }
            0x86dd => (*packet.get(6)?, [v6(packet, 8)?, v6(packet, 24)?], packet.get(40..)),
            _ => return None,
        };
        let protocol = match number {
            1 | 58 => Some(FrameProtocol::Icmp),
            6 => Some(FrameProtocol::Tcp),
            17 => Some(FrameProtocol::Udp),
            _ => None,
        };
        let ports = match protocol {
            Some(FrameProtocol::Tcp | FrameProtocol::Udp) => {
                payload.and_then(|payload| Some([half(payload, 0)?, half(payload, 2)?]))
            }
            _ => None,
        };
        Some(Packet { protocol, addresses, ports })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// TCP from 10.0.0.1:80 to 10.0.0.2:4660, after an Ethernet header.
    fn tcp() -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([0x08, 0x00, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([0, 80, 0x12, 0x34]);
        frame
    }

    #[test]
    fn capture_filter_matches_protocol_host_and_port() {
        let matches = |filter: &str, frame: &[u8]| filter.parse::<FrameFilter>().unwrap().matches(frame);
        for filter in
            ["", "tcp", "tcp and port 80", "host 10.0.0.2 port 4660", "tcp host 10.0.0.1 and port 80"]
        {
            assert!(matches(filter, &tcp()), "{filter}");
        }
        for filter in ["udp", "port 81", "host 10.0.0.3", "arp", "icmp and host 10.0.0.1"] {
            assert!(!matches(filter, &tcp()), "{filter}");
        }
        let mut tagged = tcp();
        tagged.splice(12..12, [0x81, 0x00, 0, 5]);
        assert!(matches("tcp and port 80", &tagged));
        let mut fragment = tcp();
        fragment[21] = 1;
        assert!(matches("tcp", &fragment) && !matches("port 80", &fragment));
        // Cut frames match nothing and do not panic.
        for length in 0..tcp().len() {
            let _ = matches("tcp and port 80", &tcp()[..length]);
        }
        assert!(!matches("tcp", &tcp()[..20]));
    }

    #[test]
    fn capture_filter_with_invalid_words_is_refused() {
        for filter in
            ["tcp udp", "port", "port 70000", "host web", "or", "tcp; rm -rf", "not tcp", "port 1 port 2"]
        {
            let error = filter.parse::<FrameFilter>().unwrap_err();
            assert!(error.to_string().contains("expected arp"), "{filter}");
        }
    }
}
