//! A real DHCP server for a bridge `br0` with the address 10.1.0.1.
//!
//! Source: dnsmasq(8).

use testkit::{Host, Running};

use crate::machine::until;

/// What it has given, a line each.
pub const LEASES: &str = "/run/leases";
/// What it says of every message.
pub const LOG: &str = "/run/dnsmasq.log";
/// With these it wants to be asked every second.
pub const IMPATIENT: [&str; 2] = ["--dhcp-option=58,1", "--dhcp-option=59,3"];

/// Its words: 21 addresses from 10.1.0.`first` on, for two minutes each.
#[must_use]
pub fn words(first: u8, more: &[&str]) -> Vec<String> {
    let fixed = [
        "--keep-in-foreground",
        "--conf-file=/dev/null",
        "--port=0",
        "--interface=br0",
        "--bind-interfaces",
        "--dhcp-authoritative",
        "--no-ping",
        "--log-dhcp",
        "--user=root",
        "--pid-file",
    ];
    let range = format!("--dhcp-range=10.1.0.{first},10.1.0.{},255.255.255.0,120", first + 20);
    let files = [format!("--dhcp-leasefile={LEASES}"), format!("--log-facility={LOG}")];
    let fixed = fixed.iter().chain(more).map(|word| (*word).to_owned());
    fixed.chain(files).chain([range]).collect()
}

/// Starts one on a host.
#[track_caller]
#[must_use]
pub fn serve(host: &Host, first: u8, more: &[&str]) -> Running {
    let server = host.command("dnsmasq").args(words(first, more)).start();
    until("the server listens", || host.run(["ss", "-lun"]).contains(":67 ").then_some(()));
    server
}
