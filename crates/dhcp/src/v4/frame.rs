//! Wraps a DHCP message in an Ethernet frame with IPv4 and UDP, for a client that has no address yet.
//!
//! A received frame is ignored if it is incomplete, not IPv4, a fragment, not UDP to the client's port, or has a wrong
//! header checksum. The UDP checksum is not verified, because the kernel omits it between interfaces on one host.
//!
//! Source: RFC 791, RFC 768, RFC 1071; RFC 2131 §4.1.

use std::net::Ipv4Addr;

/// Client port.
pub const CLIENT_PORT: u16 = 68;
/// Server port.
pub const SERVER_PORT: u16 = 67;

/// Ethernet header length in bytes.
const ETHERNET: usize = 14;
/// IPv4 header length without options, in bytes.
const IP: usize = 20;
/// UDP header length in bytes.
const UDP: usize = 8;
/// Protocol number `IPPROTO_UDP`.
const PROTOCOL: u8 = 17;

/// Builds a broadcast frame to servers; the source address `0.0.0.0` means that the client has none.
pub fn broadcast(hardware: [u8; 6], from: Ipv4Addr, payload: &[u8]) -> Vec<u8> {
    let length = |headers: usize| u16::try_from(headers + payload.len()).unwrap_or(u16::MAX).to_be_bytes();
    let mut frame = vec![0xff; 6];
    frame.extend(hardware);
    frame.extend([0x08, 0x00]);
    let mut ip = [0; IP];
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&length(IP + UDP));
    // The flag "do not fragment", then the time to live.
    ip[6] = 0x40;
    ip[8] = 64;
    ip[9] = PROTOCOL;
    ip[12..16].copy_from_slice(&from.octets());
    ip[16..].copy_from_slice(&Ipv4Addr::BROADCAST.octets());
    let checksum = checksum(&[&ip]);
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    let mut udp = [0; UDP];
    udp[..2].copy_from_slice(&CLIENT_PORT.to_be_bytes());
    udp[2..4].copy_from_slice(&SERVER_PORT.to_be_bytes());
    udp[4..6].copy_from_slice(&length(UDP));
    let pseudo = [&ip[12..], &[0, PROTOCOL], &udp[4..6]].concat();
    let checksum = match self::checksum(&[&pseudo, &udp, payload]) {
        // 0 would mean "no checksum".
        0 => u16::MAX,
        sum => sum,
    };
    udp[6..].copy_from_slice(&checksum.to_be_bytes());
    [frame.as_slice(), &ip, &udp, payload].concat()
}

/// Returns a frame's payload, if it is for a DHCP client.
pub fn payload(frame: &[u8]) -> Option<&[u8]> {
    let packet = frame.get(ETHERNET..)?;
    if frame[12..ETHERNET] != [0x08, 0x00] {
        return None;
    }
    let first = *packet.first()?;
    let header = usize::from(first & 0xf) * 4;
    if first >> 4 != 4 || header < IP {
        return None;
    }
    let ip = packet.get(..header)?;
    let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
    // The mask leaves out the flag "do not fragment".
    let is_fragment = u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff != 0;
    if checksum(&[ip]) != 0 || is_fragment || ip[9] != PROTOCOL {
        return None;
    }
    let udp = packet.get(header..total)?;
    let (head, payload) = udp.split_at_checked(UDP)?;
    let length = usize::from(u16::from_be_bytes([head[4], head[5]]));
    let is_for_us = u16::from_be_bytes([head[2], head[3]]) == CLIENT_PORT;
    payload.get(..length.checked_sub(UDP)?).filter(|_| is_for_us)
}

/// Computes the RFC 1071 checksum over the parts; all but the last must have an even length.
fn checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let sum: u64 =
        words.map(|word| u64::from(word[0]) << 8 | u64::from(word.get(1).copied().unwrap_or(0))).sum();
    let folded = (0..4).fold(sum, |sum, _| (sum & 0xffff) + (sum >> 16));
    !(folded as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a frame like one from a server, to the client's port.
    fn answer(payload: &[u8]) -> Vec<u8> {
        let mut frame = broadcast([2, 0, 0, 0, 0, 1], Ipv4Addr::new(10, 0, 0, 1), payload);
        frame[ETHERNET + IP + 2..ETHERNET + IP + 4].copy_from_slice(&CLIENT_PORT.to_be_bytes());
        frame
    }

    #[test]
    fn dhcp_frame_round_trips() {
        for payload in [&b""[..], b"odd", b"even"] {
            let frame = answer(payload);
            assert_eq!(self::payload(&frame), Some(payload));
            let padded = [frame.as_slice(), &[0; 30]].concat();
            assert_eq!(self::payload(&padded), Some(payload), "the padding of short frames");
        }
    }

    #[test]
    fn dhcp_damaged_frame_is_harmless_and_mostly_ignored() {
        let frame = answer(b"payload");
        for length in 0..frame.len() {
            assert_eq!(payload(&frame[..length]), None, "{length}");
        }
        for at in 0..ETHERNET + IP + UDP {
            for value in [0, 1, 0x46, 0x4f, 0x7f, 0x80, 0xff] {
                let mut frame = frame.clone();
                frame[at] = value;
                if let Some(read) = payload(&frame) {
                    assert!(read.len() <= 7, "{at} {value}");
                }
            }
        }
        let to_server = broadcast([2, 0, 0, 0, 0, 1], Ipv4Addr::UNSPECIFIED, b"payload");
        assert_eq!(payload(&to_server), None, "not for a client");
    }
}
