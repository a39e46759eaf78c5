//! Benchmarks plugins that create an interface on another one, or move one, in comparison with the peer.
//!
//! Link kinds that this kernel lacks are skipped by name. `benches/guest` times them on a kernel that has them all. The
//! processor there is emulated, so the ratios are only useful for plugins that cannot be timed otherwise.

use linux::Rtnl;
use linux::link::create::{IpvlanMode, NewKind, NewLink, Peer, Queues};
use serde_json::{Value, json};

use crate::call::Container;
use crate::cases::{Baseline, Comparison, compare_with_baseline};
use crate::{Setting, baseline};
use benches::Failure;
use benches::table::Table;

/// Parent for all links. weft moves `movew`, the Go plugin `moveg`, and the baseline `movef`.
const PARENT: &str = "parent0";

/// Times ADD and DEL with an address from host-local.
pub(crate) fn interfaces(setting: &Setting, table: &mut Table) -> Result<(), Failure> {
    let mut host = Rtnl::open()?;
    for name in [PARENT, "movew", "moveg", "movef"] {
        let far = format!("{name}far");
        let peer = Peer { name: &far, mtu: None, mac: None, queues: Queues::ONE, netns: None };
        host.add_link(&NewLink { up: true, ..NewLink::new(name, NewKind::Veth(peer)) })?;
    }
    let parent = host.link(PARENT)?.index;
    let kinds = [
        ("host-device", None),
        ("ptp", None),
        ("loopback", None),
        ("macvlan", None),
        ("ipvlan", Some(NewKind::Ipvlan { parent, mode: IpvlanMode::L2 })),
        ("vlan", Some(NewKind::Vlan { parent, id: 5 })),
        ("dummy", Some(NewKind::Dummy)),
        ("tap", None),
    ];
    for (plugin, kind) in kinds {
        if let Some(kind) = kind
            && !baseline::can_make(plugin, kind)?
        {
            continue;
        }
        if setting.peers.as_ref().is_some_and(|peers| !peers.join(plugin).is_file()) {
            eprintln!("weft-bench: {plugin} is left out: the peers are older than it");
            continue;
        }
        let mut moved = |container: &Container, _| baseline::moved_link(container, "movef");
        let below: Option<&mut Baseline<'_>> = (plugin == "host-device").then_some(&mut moved as _);
        let Comparison { ours, peer, baseline } =
            compare_with_baseline(setting, plugin, |tag| config(setting, plugin, tag), below)?;
        if let Some((there, back)) = baseline {
            table.compare("host-device + host-local ADD", &ours.0, "kernel baseline", &there);
            table.compare("host-device + host-local DEL", &ours.1, "kernel baseline", &back);
        }
        if let Some(peer) = &peer {
            table.compare(&format!("{plugin} + host-local ADD"), &ours.0, "Go", &peer.0);
            table.compare(&format!("{plugin} + host-local DEL"), &ours.1, "Go", &peer.1);
        }
    }
    Ok(())
}

fn config(setting: &Setting, plugin: &str, tag: &str) -> Value {
    json!({
        "cniVersion": "1.0.0", "name": format!("bench-{plugin}-{tag}"), "type": plugin,
        "master": PARENT, "vlanId": 5, "device": format!("move{tag}"),
        "ipam": {"type": "host-local", "subnet": "10.249.0.0/16", "dataDir": setting.scratch.join("addresses")},
    })
}
