//! Tests that a packet socket receives only packets to its port, even on a busy link.
//!
//! Source: packet(7), socket(7) `SO_ATTACH_FILTER`.

#![cfg(test)]

use std::time::{Duration, Instant};

use linux::packet::{PacketSocket, Received};
use testkit::{Feature, Host, host};

const PORT: u16 = 68;
/// Number of frames, many times what a socket can hold.
const FLOOD: usize = 20_000;

/// Sets up two veth pairs; a frame sent on `a1` or `b1` arrives on `a0` or `b0`.
fn world(host: &Host) {
    for pair in ["a", "b"] {
        host.run([
            "ip",
            "link",
            "add",
            &format!("{pair}0"),
            "type",
            "veth",
            "peer",
            "name",
            &format!("{pair}1"),
        ]);
        for end in [0, 1] {
            // No other process may send on these links.
            host.run(["sysctl", "-qw", &format!("net.ipv6.conf.{pair}{end}.disable_ipv6=1")]);
            host.run(["ip", "link", "set", &format!("{pair}{end}"), "up"]);
        }
    }
}

fn open(host: &Host, name: &str) -> PacketSocket {
    host.within(|| PacketSocket::open(name, PORT)).expect("a socket")
}

/// Builds a broadcast with a number of option words and these fragmentation bits; `number` identifies it.
fn frame((protocol, port): (u8, u16), options: u8, fragment: u16, number: u8) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 1, 0x08, 0x00]);
    let header = 20 + usize::from(options) * 4;
    let mut packet = vec![0; header + 8 + 1];
    packet[0] = 0x45 + options;
    let length = u16::try_from(packet.len()).expect("short");
    packet[2..4].copy_from_slice(&length.to_be_bytes());
    packet[6..8].copy_from_slice(&fragment.to_be_bytes());
    packet[8] = 64;
    packet[9] = protocol;
    packet[header + 2..header + 4].copy_from_slice(&port.to_be_bytes());
    packet[header + 8] = number;
    frame.extend(packet);
    frame
}

/// Returns the number in the next frame; `None` if there is none.
fn next(socket: &PacketSocket) -> Option<u8> {
    let until = Instant::now() + Duration::from_millis(200);
    match socket.receive(None, until).expect("receive") {
        Some(Received::Frame(frame)) => frame.last().copied(),
        other => {
            assert_eq!(other, None);
            None
        }
    }
}

const UDP: u8 = 17;
const TCP: u8 = 6;

#[test]
fn packet_socket_receives_only_its_port_and_link() {
    let host = host!(Feature::Veth);
    world(&host);
    let (socket, near, far) = (open(&host, "a0"), open(&host, "a1"), open(&host, "b1"));
    let mut other_protocol = frame((UDP, PORT), 0, 0, 1);
    other_protocol[12..14].copy_from_slice(&[0x08, 0x06]);
    let passed_over = [
        other_protocol,
        frame((TCP, PORT), 0, 0, 2),
        frame((UDP, PORT + 1), 0, 0, 3),
        frame((UDP, PORT), 0, 0x2000, 4),
        frame((UDP, PORT), 0, 0x0010, 5),
        frame((UDP, PORT), 0, 0, 6)[..36].to_vec(),
    ];
    for frame in &passed_over {
        near.send(frame).expect("sent");
    }
    far.send(&frame((UDP, PORT), 0, 0, 7)).expect("sent");
    // A packet with the flag "don't fragment" is not a fragment.
    for (number, options, fragment) in [(10, 0, 0), (11, 0, 0x4000), (12, 10, 0)] {
        near.send(&frame((UDP, PORT), options, fragment, number)).expect("sent");
    }
    let received: Vec<_> = std::iter::from_fn(|| next(&socket)).collect();
    assert_eq!(received, [10, 11, 12]);
}

#[test]
fn packet_socket_receives_an_answer_on_a_busy_link() {
    let host = host!(Feature::Veth);
    world(&host);
    let (socket, near) = (open(&host, "a0"), open(&host, "a1"));
    let traffic = frame((UDP, 4789), 0, 0, 1);
    for _ in 0..FLOOD {
        near.send(&traffic).expect("sent");
    }
    near.send(&frame((UDP, PORT), 0, 0, 2)).expect("sent");
    assert_eq!(next(&socket), Some(2));
    assert_eq!(next(&socket), None);
}
