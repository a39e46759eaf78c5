//! CHECK of a bridge attachment: bridge, pair and port belong together and carry what was given.

use cni::Error;
use cni::invocation::Attach;
use cni::result::{Interface, Success};
use linux::Rtnl;
use linux::link::Link;

use super::{ContainerInterface, Gateway, Network, Reflection};
use crate::failure::OrRefused;
use crate::interface::inspection::{compare, compare_addressing, differs, expect_kind, find_inside};
use crate::interface::open_netns;

/// Compares prevResult and configuration with the kernel.
pub(super) fn inspect(request: &Attach, network: &Network) -> Result<(), Error> {
    let result = request.call.config.require_prev_result()?;
    let netns = open_netns(&request.netns)?;
    let mut host = Rtnl::open().or_refused()?;
    let bridge = inspect_bridge(&mut host, network, &result)?;
    let mut inside = find_inside(request, &result, &netns)?;
    expect_kind(&inside.link, "veth")?;
    inspect_port(&mut host, network, &result, &bridge, &inside.link)?;
    match network.interface {
        ContainerInterface::Addressed => compare_addressing(&mut inside, &result),
        ContainerInterface::Layer2 | ContainerInterface::Untouched => Ok(()),
    }
}

fn inspect_bridge(host: &mut Rtnl, network: &Network, result: &Success) -> Result<Link, Error> {
    let bridge = host.link(&network.bridge).or_refused()?;
    expect_kind(&bridge, "bridge")?;
    if let Some(recorded) =
        result.interfaces.iter().find(|i| i.name == network.bridge && i.sandbox.is_empty())
    {
        // A bridge without an address takes on that of a port that joins it; a gateway's is pinned.
        let mac = if network.gateway == Gateway::None { String::new() } else { recorded.mac.clone() };
        compare(&Interface { mac, ..recorded.clone() }, &bridge)?;
    }
    let wanted = network.reflection == Reflection::Promiscuous;
    if bridge.promiscuous != wanted {
        return Err(differs(&bridge.name, "promisc", &bridge.promiscuous.to_string(), &wanted.to_string()));
    }
    Ok(bridge)
}

/// The host end is a port of the bridge, and its other end is the container's interface.
fn inspect_port(
    host: &mut Rtnl,
    network: &Network,
    result: &Success,
    bridge: &Link,
    inside: &Link,
) -> Result<(), Error> {
    let on_host = result.interfaces.iter().filter(|i| i.sandbox.is_empty() && i.name != network.bridge);
    for recorded in on_host {
        let Some(port) = host.find_link(&recorded.name).or_refused()? else { continue };
        let pair = port.link == Some(inside.index) && inside.link == Some(port.index);
        if port.kind != "veth" || !pair || port.master != Some(bridge.index) {
            continue;
        }
        compare(recorded, &port)?;
        let hairpin = network.reflection == Reflection::Hairpin;
        return match port.port {
            Some(state) if state.hairpin != hairpin => {
                Err(differs(&port.name, "hairpin", &state.hairpin.to_string(), &hairpin.to_string()))
            }
            Some(state) if state.isolated != network.port_isolation => {
                let wanted = network.port_isolation.to_string();
                Err(differs(&port.name, "isolated", &state.isolated.to_string(), &wanted))
            }
            _ => Ok(()),
        };
    }
    Err(Error::internal(format!(
        "no port of bridge {} leads to {} in the container",
        bridge.name, inside.name
    )))
}
