//! Outside world, and the source addresses that it sees.
//!
//! ```text
//!   outside ── up0 192.0.2.2/24, fd00:2::2/64 ── up0 192.0.2.1/24, fd00:2::1/64 ── host
//! ```
//!
//! The outside world has no route back to pods, so it can only answer packets that come from the host's address.

use std::io::{ErrorKind, Read};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with, sockopt};
use testkit::{Host, Netns, Pod};

/// Addresses in the outside world.
pub const OUTSIDE: [&str; 2] = ["192.0.2.2", "fd00:2::2"];
/// The host's addresses on the link to the outside world.
pub const UPLINK: [&str; 2] = ["192.0.2.1", "fd00:2::1"];

/// Maximum time for a connection to be established or refused.
const TIMEOUT: Duration = Duration::from_millis(1500);

/// Creates the outside world and the host's link to it.
#[must_use]
#[track_caller]
pub fn outside(host: &Host) -> Pod {
    let outside = host.pod("outside");
    let wire = "link add up0 type veth peer name up0 netns outside\n";
    host.command("ip").args(["-batch", "-"]).stdin(wire).finish().success();
    let ends: [(&Netns, _); 2] = [(host, UPLINK), (&outside, OUTSIDE)];
    for (place, (netns, addresses)) in ends.iter().enumerate() {
        // Link-local addresses are static and duplicate address detection is off, because the kernel delays both.
        let script = format!(
            "link set up0 addrgenmode none\nlink set up0 up\naddress add {}/24 dev up0\n\
             address add {}/64 dev up0 nodad\naddress add fe80::{}/64 dev up0 nodad\n",
            addresses[0],
            addresses[1],
            place + 1
        );
        netns.command("ip").args(["-batch", "-"]).stdin(script).finish().success();
    }
    for (netns, addresses) in ends {
        let until = Instant::now() + TIMEOUT;
        while !netns.run(["ip", "-6", "route", "show", "table", "local"]).contains(addresses[1]) {
            assert!(Instant::now() < until, "the link to the outside world does not come up");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    outside
}

/// Connects another host to the link between the outside world and the first host, as `up0` with this address.
///
/// ```text
///   outside ── lan ─┬─ up0 ── up0 192.0.2.1 ── first host
///                   └─ up1 ── up0 192.0.2.3 ── further host
/// ```
#[track_caller]
pub fn connect(outside: &Netns, host: &Netns, address: &str) {
    let script = format!(
        "link add lan type bridge\nlink set lan addrgenmode none\nlink set lan up\n\
         address flush dev up0\nlink set up0 master lan\n\
         address add {}/24 dev lan\naddress add {}/64 dev lan nodad\n\
         link add up1 type veth peer name up0 netns {}\nlink set up1 master lan\nlink set up1 up\n",
        OUTSIDE[0],
        OUTSIDE[1],
        host.handle().display()
    );
    outside.command("ip").args(["-batch", "-"]).stdin(script).finish().success();
    let script =
        format!("link set up0 addrgenmode none\nlink set up0 up\naddress add {address}/24 dev up0\n");
    host.command("ip").args(["-batch", "-"]).stdin(script).finish().success();
}

/// Connects hosts through a switch in the outside world: the ports are `NAME1`, `NAME2`, …, and each host gets a link
/// `NAME`. Changing a port does not change the host's link.
#[track_caller]
pub fn switch(outside: &Netns, name: &str, hosts: &[&Netns]) {
    outside.run(["ip", "link", "add", name, "type", "bridge"]);
    outside.run(["ip", "link", "set", name, "up"]);
    for (host, number) in hosts.iter().zip(1..) {
        let port = format!("{name}{number}");
        let there = host.handle().display().to_string();
        outside.run(["ip", "link", "add", &port, "type", "veth", "peer", "name", name, "netns", &there]);
        outside.run(["ip", "link", "set", &port, "master", name, "up"]);
        host.run(["ip", "link", "set", name, "up"]);
    }
}

/// Returns the source address that a TCP server at `address` in `server` sees for `client`; `None` if no connection
/// arrives.
#[must_use]
#[track_caller]
pub fn source_seen(client: &Netns, server: &Netns, address: &str) -> Option<IpAddr> {
    let address: IpAddr = address.parse().expect("an address");
    let listener = server.within(|| TcpListener::bind(SocketAddr::new(address, 0))).expect("listen");
    let to = listener.local_addr().expect("our own address");
    listener.set_nonblocking(true).expect("not to wait");
    let talk = client.within(|| TcpStream::connect_timeout(&to, TIMEOUT)).ok()?;
    let until = Instant::now() + TIMEOUT;
    loop {
        match listener.accept() {
            Ok((_, peer)) => return Some(peer.ip().to_canonical()),
            Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(2)),
            Err(error) => {
                drop(talk);
                panic!("a connection was made but not accepted: {error}")
            }
        }
    }
}

/// Transport protocol for a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP, where one association between one client and one server is used like a connection; sctp(7).
    Sctp,
}

/// Returns the client address that a server at `at` in `server` sees when `client` connects or sends to `to`, which may
/// be another address that is translated to `at`. `None` if nothing arrives, or no response returns.
#[must_use]
#[track_caller]
pub fn reached(
    transport: Transport,
    client: &Netns,
    to: &str,
    server: &Netns,
    at: &str,
) -> Option<SocketAddr> {
    let to: SocketAddr = to.parse().expect("an address and a port");
    let at: SocketAddr = at.parse().expect("an address and a port");
    match transport {
        Transport::Tcp | Transport::Sctp => reached_by_connection(transport, client, to, server, at),
        Transport::Udp => {
            let listener = retry_while_in_use(|| server.within(|| UdpSocket::bind(at)));
            let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let talk = client.within(|| UdpSocket::bind(any)).expect("a socket");
            udp_source_seen(&talk, to, &listener)
        }
    }
}

/// Binds a socket at an address that a previous socket may still hold for a moment, because a process that another test
/// starts shares all sockets until it calls exec.
#[track_caller]
fn retry_while_in_use<T>(bind: impl Fn() -> std::io::Result<T>) -> T {
    let until = Instant::now() + TIMEOUT;
    loop {
        match bind() {
            Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(5));
            }
            bound => return bound.expect("listen"),
        }
    }
}

fn reached_by_connection(
    transport: Transport,
    client: &Netns,
    to: SocketAddr,
    server: &Netns,
    at: SocketAddr,
) -> Option<SocketAddr> {
    let is_sctp = transport == Transport::Sctp;
    let listen = || if is_sctp { listen_by_sctp(at) } else { TcpListener::bind(at) };
    let listener = retry_while_in_use(|| server.within(listen));
    listener.set_nonblocking(true).expect("not to wait");
    let connect = || if is_sctp { connect_by_sctp(to) } else { TcpStream::connect_timeout(&to, TIMEOUT) };
    let talk = client.within(connect).ok()?;
    let until = Instant::now() + TIMEOUT;
    while Instant::now() < until {
        if let Ok((_, peer)) = listener.accept() {
            return Some(SocketAddr::new(peer.ip().to_canonical(), peer.port()));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    // Another server accepted the connection.
    drop(talk);
    None
}

/// Returns an SCTP socket that can be used like a TCP socket.
fn sctp(at: SocketAddr) -> std::io::Result<OwnedFd> {
    let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    Ok(socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, Some(ipproto::SCTP))?)
}

fn listen_by_sctp(at: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = sctp(at)?;
    rustix::net::bind(&socket, &at)?;
    rustix::net::listen(&socket, 8)?;
    Ok(socket.into())
}

fn connect_by_sctp(to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = sctp(to)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(TIMEOUT))?;
    rustix::net::connect(&socket, &to)?;
    Ok(socket.into())
}

/// Returns the source address that `server` sees when `client` sends it a datagram through `to`; `None` if no response
/// returns.
#[must_use]
#[track_caller]
pub fn udp_source_seen(client: &UdpSocket, to: SocketAddr, server: &UdpSocket) -> Option<SocketAddr> {
    for socket in [client, server] {
        socket.set_read_timeout(Some(TIMEOUT / 3)).expect("set a timeout");
    }
    // The first send may report an error from an earlier datagram.
    let _ = client.send_to(b"warp", to).or_else(|_| client.send_to(b"warp", to));
    let mut word = [0; 8];
    let (_, peer) = server.recv_from(&mut word).ok()?;
    server.send_to(b"weft", peer).expect("answer");
    let (length, from) = client.recv_from(&mut word).ok()?;
    (from == to && word[..length] == *b"weft").then(|| SocketAddr::new(peer.ip().to_canonical(), peer.port()))
}

/// Whether bytes that a client writes to a TCP connection arrive at the server.
#[must_use]
#[track_caller]
pub fn tcp_delivers(client: &Netns, server: &Netns, address: &str) -> bool {
    use std::io::Write;
    let address: IpAddr = address.parse().expect("an address");
    let listener = server.within(|| TcpListener::bind(SocketAddr::new(address, 0))).expect("listen");
    let to = listener.local_addr().expect("our own address");
    let Ok(mut stream) = client.within(|| TcpStream::connect_timeout(&to, TIMEOUT)) else { return false };
    stream.write_all(b"thread").expect("write");
    drop(stream);
    let (mut accepted, _) = listener.accept().expect("accept");
    accepted.set_read_timeout(Some(TIMEOUT)).expect("set a timeout");
    let mut word = String::new();
    accepted.read_to_string(&mut word).is_ok_and(|_| word == "thread")
}

/// Time for which a stream runs before the measurement, so that a saved-up burst does not count.
const WARM_UP: Duration = Duration::from_millis(700);

/// Number of intervals in a measurement.
const PIECES: u32 = 9;

/// Measures how many bytes a second arrive over one TCP connection from `client` to `server`. The result is the median
/// over the intervals of `time`, because on a busy machine a delayed reader finds two intervals' bytes in one.
#[must_use]
#[track_caller]
pub fn throughput(client: &Netns, server: &Netns, address: &str, time: Duration) -> f64 {
    use std::io::Write;
    let address: IpAddr = address.parse().expect("an address");
    let listener = server.within(|| TcpListener::bind(SocketAddr::new(address, 0))).expect("listen");
    let to = listener.local_addr().expect("our own address");
    let mut stream = client.within(|| TcpStream::connect_timeout(&to, TIMEOUT)).expect("connect");
    let (mut accepted, _) = listener.accept().expect("accept");
    accepted.set_read_timeout(Some(TIMEOUT)).expect("set a timeout");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let piece = vec![0; 64 * 1024];
            // The reader ends the stream by closing it.
            while stream.write_all(&piece).is_ok() {}
        });
        let mut piece = vec![0; 64 * 1024];
        let mut read_until = |until: Instant| {
            let mut total = 0;
            while Instant::now() < until {
                total += accepted.read(&mut piece).expect("bytes keep coming");
            }
            total
        };
        read_until(Instant::now() + WARM_UP);
        let piece_rate = |_| {
            let started = Instant::now();
            let total = read_until(started + time / PIECES);
            total as f64 / started.elapsed().as_secs_f64()
        };
        let mut rates: Vec<f64> = (0..PIECES).map(piece_rate).collect();
        rates.sort_by(f64::total_cmp);
        let rate = rates[rates.len() / 2];
        accepted.shutdown(std::net::Shutdown::Both).expect("close");
        drop(accepted);
        rate
    })
}
