//! Benchmarks DHCP leases: a real server on a bridge, and the lease daemons from weft and from the Go plugins.
//!
//! The server alone is timed by the four messages on a link that has been up for a while.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use dhcp::v4::exchange::{Client, Timing};
use dhcp::v4::options::Options;
use linux::link::create::{NewKind, NewLink};
use linux::{Netns, Rtnl};
use serde_json::json;

use crate::Setting;
use crate::baseline::{attach_ports, remove_ports};
use crate::call::{Container, SETTLING};
use crate::cases::{Comparison, compare};
use benches::Failure;
use benches::table::{Table, Times};

/// Bridge for server and containers.
const BRIDGE: &str = "weftdhcp";
/// Server address.
const SERVER: &str = "10.248.0.1/16";
/// Maximum number of calls, because some calls to the Go plugin take ten seconds.
const RUNS_MAX: usize = 20;
/// Maximum time until a program listens.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Program that ends with the benchmark.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Result<Running, Failure> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Running(command.spawn()?))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The program may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Times ADD and DEL for an interface with a lease.
pub(crate) fn leases(setting: &Setting, table: &mut Table) -> Result<(), Failure> {
    if !Path::new("/usr/sbin/dnsmasq").exists() {
        eprintln!("weft-bench: no leases: there is no dnsmasq (apt install dnsmasq-base)");
        return Ok(());
    }
    let _server = serve(&setting.scratch.join("leases"))?;
    let socket = |tag: &str| setting.scratch.join(format!("dhcp-{tag}.sock"));
    let programs = [Some((setting.ours.as_path(), "w")), setting.peers.as_deref().map(|peers| (peers, "g"))];
    let mut daemons = Vec::new();
    for (directory, tag) in programs.into_iter().flatten() {
        let socket = socket(tag);
        daemons.push(Running::start(
            Command::new(directory.join("dhcp")).args(["daemon", "-socketpath"]).arg(&socket),
        )?);
        let until = Instant::now() + TIMEOUT;
        while !socket.exists() {
            if Instant::now() > until {
                return Err(format!("{} does not listen", directory.join("dhcp").display()).into());
            }
            sleep(Duration::from_millis(10));
        }
    }
    let few = Setting { runs: setting.runs.min(RUNS_MAX), ..setting.clone() };
    let Comparison { ours, peer, .. } = compare(&few, "bridge", |tag| {
        json!({
            "cniVersion": "1.0.0", "name": format!("bench-dhcp-{tag}"), "type": "bridge", "bridge": BRIDGE,
            "ipam": {"type": "dhcp", "daemonSocketPath": socket(tag)},
        })
    })?;
    table.compare("bridge + dhcp ADD", &ours.0, "DHCP server alone", &server_alone(few.runs)?);
    if let Some(peer) = &peer {
        table.compare("bridge + dhcp ADD", &ours.0, "Go", &peer.0);
        table.compare("bridge + dhcp DEL", &ours.1, "Go", &peer.1);
    }
    Ok(())
}

/// Times the server: a client in this process acquires leases on one link, each with another identity.
fn server_alone(runs: usize) -> Result<Times, Failure> {
    let container = Container::new("lease".to_owned())?;
    let ports = attach_ports(&container, 0, &[BRIDGE])?;
    sleep(SETTLING);
    let netns = Netns::open(Path::new(&container.netns))?;
    let link = netns.rtnl()?.link("net0")?;
    let hardware = link.mac.as_slice().try_into()?;
    let timing = Timing { timeout: TIMEOUT, resend_max: TIMEOUT, resend_timeout: TIMEOUT };
    let options = Options::default();
    let mut times = Vec::new();
    for run in 0..=runs {
        let identity = format!("\0lease{run}").into_bytes();
        let client = Client {
            netns: &netns,
            ifname: &link.name,
            hardware,
            identity: &identity,
            options: &options,
            timing,
            broadcast: false,
        };
        let started = Instant::now();
        client.acquire(&|| false)?;
        if run > 0 {
            times.push(started.elapsed());
        }
        // The client closes its socket in a thread, and the kernel waits for that.
        sleep(SETTLING);
    }
    remove_ports(&ports)?;
    Ok(Times::new(times))
}

/// Creates the bridge and starts the server.
fn serve(file: &Path) -> Result<Running, Failure> {
    let mut net = Rtnl::open()?;
    let mut bridge = NewLink::new(BRIDGE, NewKind::Bridge { vlan_filtering: false });
    bridge.up = true;
    net.add_link(&bridge)?;
    let index = net.link(BRIDGE)?.index;
    net.add_address(index, BRIDGE, SERVER.parse()?)?;
    Running::start(
        Command::new("/usr/sbin/dnsmasq")
            .args([
                "--keep-in-foreground",
                "--conf-file=/dev/null",
                "--port=0",
                "--bind-interfaces",
                "--no-ping",
            ])
            .args([
                "--dhcp-authoritative",
                "--user=root",
                "--pid-file",
                "--dhcp-range=10.248.1.0,10.248.9.255,3600",
            ])
            .arg(format!("--interface={BRIDGE}"))
            .arg(format!("--dhcp-leasefile={}", file.display())),
    )
}
