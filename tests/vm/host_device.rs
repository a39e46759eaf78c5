//! Tests for `host-device` with emulated hardware: two PCI cards, in the machine's initial namespace. Only
//! there does the kernel return hardware when a container ends.
//!
//! ```text
//!   gateway 10.0.2.2 ── e1000 eth0 ─┐                       ┌─ ADD ──► net1 in namespace hd
//!   gateway 10.0.2.2 ── virtio eth1 ┴─ the guest of lane vm ◄─ kernel ─ when hd ends
//! ```
//!
//! Source: kernel `net/core/dev.c` (`default_device_exit_net`); containernetworking/plugins `host-device` v1.9.1.

use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::{Feature, require};

/// Serializes the tests, because they share the machine's cards.
static CARDS: Mutex<()> = Mutex::new(());

/// Directory with links from the names of plugins to the program.
const PLUGINS: &str = "/tmp/plugins";
const NETNS: &str = "/run/netns/hd";

/// The machine, for one test, with both cards down.
struct Machine(#[allow(dead_code, reason = "held, never read")] MutexGuard<'static, ()>);

impl Machine {
    fn take() -> Machine {
        let guard = CARDS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        fs::create_dir_all(PLUGINS).unwrap();
        for name in ["host-device", "static"] {
            let _ = std::os::unix::fs::symlink(testkit::binary("weft-cni"), Path::new(PLUGINS).join(name));
        }
        for card in ["eth0", "eth1"] {
            ip(&["link", "set", card, "down"]);
        }
        Machine(guard)
    }
}

/// Runs `ip`, which must succeed.
#[track_caller]
fn ip(arguments: &[&str]) -> String {
    let ended = Command::new("ip").args(arguments).output().unwrap();
    assert!(ended.status.success(), "ip {arguments:?}: {}", String::from_utf8_lossy(&ended.stderr));
    String::from_utf8(ended.stdout).unwrap()
}

fn link(name: &str) -> Option<Value> {
    let ended = Command::new("ip").args(["-d", "-j", "link", "show", "dev", name]).output().unwrap();
    ended.status.success().then(|| serde_json::from_slice::<Value>(&ended.stdout).unwrap()[0].clone())
}

fn links() -> Vec<String> {
    let shown: Value = serde_json::from_str(&ip(&["-j", "link"])).unwrap();
    shown.as_array().unwrap().iter().map(|link| link["ifname"].as_str().unwrap().to_owned()).collect()
}

#[track_caller]
fn call(verb: &str, netns: &str, config: &Value) -> Value {
    let mut child = Command::new(testkit::binary("weft-cni"))
        .arg0("host-device")
        .env_clear()
        .envs([("CNI_COMMAND", verb), ("CNI_CONTAINERID", "hd"), ("CNI_IFNAME", "net1")])
        .envs([("CNI_NETNS", netns), ("CNI_PATH", PLUGINS), ("PATH", "/usr/bin")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(config.to_string().as_bytes()).unwrap();
    let ended = child.wait_with_output().unwrap();
    let text = String::from_utf8(ended.stdout).unwrap();
    assert!(ended.status.success(), "{verb} {config}: {text}");
    serde_json::from_str(&text).unwrap_or_default()
}

fn config(keys: &Value) -> Value {
    let base = json!({
        "cniVersion": "1.1.0", "name": "net", "type": "host-device",
        "ipam": { "type": "static", "addresses": [{ "address": "10.0.2.15/24" }] },
    });
    rig::with(&base, keys)
}

/// Returns the PCI device of a card.
fn pci(card: &str) -> String {
    let path = fs::canonicalize(format!("/sys/class/net/{card}/device")).unwrap();
    let mut parts = path.iter().filter_map(|part| part.to_str());
    parts.rfind(|part| part.len() == 12 && part.starts_with("0000:")).unwrap().to_owned()
}

/// Waits for something that the kernel does with a delay.
#[track_caller]
fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < until, "never: {what}; links: {:?}", links());
        sleep(Duration::from_millis(20));
    }
}

#[test]
fn host_device_card_is_found_by_each_option_and_returns() {
    require!(Feature::Guest);
    let _machine = Machine::take();
    ip(&["netns", "add", "hd"]);
    for card in ["eth0", "eth1"] {
        ip(&["link", "set", card, "up", "alias", "uplink"]);
        let before = link(card).unwrap();
        let address = before["address"].clone();
        let (id, path) = (pci(card), fs::canonicalize(format!("/sys/class/net/{card}/device")).unwrap());
        for keys in [
            json!({ "pciBusID": id }),
            json!({ "device": "gone0", "runtimeConfig": { "deviceID": id } }),
            json!({ "kernelpath": path }),
            json!({ "hwaddr": address }),
            json!({ "device": card }),
        ] {
            let result = call("ADD", NETNS, &config(&keys));
            assert_eq!(result["interfaces"][0]["mac"], address, "{card} by {keys}");
            assert!(link(card).is_none(), "{card} by {keys}: the card is not on the host");
            // A card takes seconds to get its carrier: once is enough.
            if !keys["pciBusID"].is_null() {
                ip(&["netns", "exec", "hd", "ping", "-c", "1", "-w", "9", "10.0.2.2"]);
            }
            call("CHECK", NETNS, &config(&rig::with(&keys, &json!({ "prevResult": result }))));
            call("DEL", NETNS, &config(&keys));
            let after = link(card).unwrap();
            for key in ["address", "ifalias", "mtu", "flags"] {
                let plain = |value: &Value| {
                    value.to_string().replace(",\"LOWER_UP\"", "").replace("\"NO-CARRIER\",", "")
                };
                assert_eq!(plain(&after[key]), plain(&before[key]), "{card} by {keys}: {key}");
            }
        }
        ip(&["link", "set", card, "down", "alias", ""]);
    }
    ip(&["netns", "del", "hd"]);
}

#[test]
fn host_device_card_returned_by_kernel_is_renamed_by_del() {
    require!(Feature::Guest);
    let _machine = Machine::take();
    let keys = config(&json!({ "device": "eth0" }));
    // First the interface's name is free on the host, then it is in use and the kernel generates one.
    for name_in_use in [false, true] {
        for netns in [NETNS, ""] {
            ip(&["netns", "add", "hd"]);
            call("ADD", NETNS, &keys);
            if name_in_use {
                ip(&["link", "add", "net1", "type", "dummy"]);
            }
            let others = links().len();
            ip(&["netns", "del", "hd"]);
            wait_until("the card is on the host", || links().len() > others);
            assert!(link("eth0").is_none(), "the card does not have its name yet");
            call("DEL", netns, &keys);
            let back = link("eth0").expect("the card with its name");
            assert!(back["ifalias"].is_null() && !rig::is_up(&back), "{back}");
            if name_in_use {
                ip(&["link", "delete", "net1"]);
            }
        }
    }
}

#[test]
fn host_device_card_returned_by_kernel_is_renamed_by_gc_or_add() {
    require!(Feature::Guest);
    let _machine = Machine::take();
    let id = pci("eth1");
    let keys = config(&json!({ "pciBusID": id }));
    let end = || {
        ip(&["netns", "add", "hd"]);
        call("ADD", NETNS, &keys);
        ip(&["netns", "del", "hd"]);
        wait_until("the card is on the host", || link("net1").is_some());
    };
    end();
    let valid = json!([{ "containerID": "other", "ifname": "net1" }]);
    call("GC", "", &rig::with(&keys, &json!({ "cni.dev/valid-attachments": valid })));
    assert!(link("eth1").is_some() && link("net1").is_none(), "{:?}", links());
    end();
    ip(&["netns", "add", "hd"]);
    call("ADD", NETNS, &keys);
    call("DEL", NETNS, &keys);
    assert!(link("eth1").is_some() && link("net1").is_none(), "{:?}", links());
    ip(&["netns", "del", "hd"]);
}

#[test]
fn host_device_with_userspace_driver_has_addresses_and_stays() {
    require!(Feature::Guest);
    let _machine = Machine::take();
    let id = pci("eth0");
    let write =
        |path: &str, text: &str| fs::write(path, text).unwrap_or_else(|error| panic!("{path}: {error}"));
    write(&format!("/sys/bus/pci/devices/{id}/driver/unbind"), &id);
    write(&format!("/sys/bus/pci/devices/{id}/driver_override"), "uio_pci_generic");
    write("/sys/bus/pci/drivers_probe", &id);
    ip(&["netns", "add", "hd"]);
    for keys in [json!({ "pciBusID": id }), json!({ "runtimeConfig": { "deviceID": id } })] {
        let keys = config(&keys);
        let result = call("ADD", NETNS, &keys);
        assert_eq!(result["interfaces"], json!([{ "name": "net1", "sandbox": NETNS }]));
        assert_eq!(result["ips"], json!([{ "address": "10.0.2.15/24", "interface": 0 }]));
        call("CHECK", NETNS, &rig::with(&keys, &json!({ "prevResult": result })));
        call("DEL", NETNS, &keys);
    }
    ip(&["netns", "del", "hd"]);
    write(&format!("/sys/bus/pci/devices/{id}/driver/unbind"), &id);
    write(&format!("/sys/bus/pci/devices/{id}/driver_override"), "\n");
    write("/sys/bus/pci/drivers_probe", &id);
    wait_until("the driver is bound again", || link("eth0").is_some());
}

/// The cards have no auxiliary device, so the test creates the bus directory. The entry there links to a real device.
#[test]
fn host_device_auxiliary_device_is_found_on_its_bus() {
    require!(Feature::Guest);
    let _machine = Machine::take();
    let bus = "/sys/bus/auxiliary/devices";
    assert!(Path::new(bus).exists(), "the kernel has no auxiliary bus");
    let device = fs::canonicalize(format!("/sys/bus/pci/devices/{}", pci("eth0"))).unwrap();
    let shell = |script: &str| {
        assert!(Command::new("sh").args(["-c", script]).status().unwrap().success(), "{script}");
    };
    shell(&format!("mount -t tmpfs bus {bus} && ln -s {} {bus}/mlx5_core.sf.4", device.display()));
    ip(&["netns", "add", "hd"]);
    let keys = config(&json!({ "runtimeConfig": { "deviceID": "mlx5_core.sf.4" } }));
    call("ADD", NETNS, &keys);
    assert!(link("eth0").is_none());
    call("DEL", NETNS, &keys);
    assert!(link("eth0").is_some());
    ip(&["netns", "del", "hd"]);
    shell(&format!("umount {bus}"));
}
