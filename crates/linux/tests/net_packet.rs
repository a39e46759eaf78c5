//! A packet socket hears what it is for, and nothing else, however busy the link is.
//!
//! Source: packet(7), socket(7) `SO_ATTACH_FILTER`.

#![cfg(test)]

use std::time::{Duration, Instant};

use linux::packet::{PacketSocket, Received};
use testkit::{Feature, Host, host};

const PORT: u16 = 68;
/// Many times what a socket holds by itself.
const FLOOD: usize = 20_000;

/// Two pairs of links; a frame that is sent on `a1` or `b1` comes in by `a0` or `b0`.
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
            // Nobody else speaks here.
            host.run(["sysctl", "-qw", &format!("net.ipv6.conf.{pair}{end}.disable_ipv6=1")]);
            host.run(["ip", "link", "set", &format!("{pair}{end}"), "up"]);
        }
    }
}

fn open(host: &Host, name: &str) -> PacketSocket {
    host.within(|| PacketSocket::open(name, PORT)).expect("a socket")
}

/// A broadcast with so many words of options and these bits of fragmentation; `number` tells it from others.
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

/// The number of the frame that comes next; `None` if none does.
fn next(socket: &PacketSocket) -> Option<u8> {
    let until = Instant::now() + Duration::from_millis(200);
    match socket.receive(None, until).expect("a socket that hears") {
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
fn it_hears_whole_datagrams_to_its_port_by_its_link_and_nothing_else() {
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
    // Not to be taken apart is no fragment.
    for (number, options, fragment) in [(10, 0, 0), (11, 0, 0x4000), (12, 10, 0)] {
        near.send(&frame((UDP, PORT), options, fragment, number)).expect("sent");
    }
    let heard: Vec<_> = std::iter::from_fn(|| next(&socket)).collect();
    assert_eq!(heard, [10, 11, 12]);
}

#[test]
fn it_hears_an_answer_behind_more_traffic_than_it_can_hold() {
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
