//! Lower bounds for network policies: committing only the rules in an empty namespace, for comparison with an ADD
//! without policies; and connection tracking alone, for a flow.

use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use linux::Netns;
use linux::nft::{
    BaseChain, Batch, ChainType, Data, Element, Family, Hook, Is, Nft, Policy, Selector, Set, State, Table,
    Type, Verdict, priority,
};

use benches::Failure;

use crate::call::Container;

/// weft's table, and the families it has.
const TABLE: &str = "weft-policy";
const FAMILIES: [Family; 2] = [Family::Inet, Family::Bridge];

/// Direction: chain, base chain and hook, map, link field, and peer field.
const DIRECTIONS: [(&str, &str, Hook, &str, Selector, Selector); 2] = [
    ("ingress-", "prerouting", Hook::Prerouting, "links-in", Selector::LinkIn, Selector::Source4),
    ("egress-", "postrouting", Hook::Postrouting, "links-out", Selector::LinkOut, Selector::Destination4),
];

/// A pod's rules: each policy allows the addresses and the network, in both directions.
pub(crate) struct PodRules<'a> {
    pub(crate) policies: usize,
    pub(crate) peers: &'a [IpAddr],
    pub(crate) network: IpNet,
}

// === impl PodRules ===

impl PodRules<'_> {
    /// Times how long it takes to commit the rules in a container's namespace.
    pub(crate) fn time(&self, container: &Container) -> Result<Duration, Failure> {
        let netns = Netns::open(Path::new(&container.netns))?;
        let started = Instant::now();
        let batch = self.batch();
        let mut nft = netns.nft()?;
        nft.commit(batch)?;
        Ok(started.elapsed())
    }

    fn batch(&self) -> Batch {
        let PodRules { policies, peers, network } = self;
        let table = Table::new(Family::Inet, TABLE);
        let mut batch = Batch::new();
        batch.ensure_table(table);
        for (chain, base, hook, map, link, peer) in DIRECTIONS {
            let filter = BaseChain {
                chain_type: ChainType::Filter,
                hook,
                priority: priority::FILTER,
                policy: Policy::Accept,
            };
            batch
                .ensure_set(table, &Set::to_verdicts(map, &[Type::Link]))
                .ensure_base_chain(table, base, filter);
            batch.add_rule(table, base, &table.rule().verdict_of(&[link], map));
            let elements: Vec<Element> = peers.iter().map(|peer| Element::new(*peer)).collect();
            for policy in 0..*policies {
                let set = format!("{chain}{policy}");
                batch.ensure_set(table, &Set::of(&set, &[Type::Ipv4])).add_elements(table, &set, &elements);
            }
            batch.ensure_chain(table, chain);
            let always = [
                table.rule().state(&[State::Established, State::Related]),
                table.rule().icmp6_types(130, 136),
                table.rule().icmp6_types(143, 143),
            ];
            for rule in always {
                batch.add_rule(table, chain, &rule.decide(&Verdict::Accept));
            }
            for policy in 0..*policies {
                let peers = table.rule().look_up(&[peer], Is::In, &format!("{chain}{policy}"));
                let network = match peer {
                    Selector::Source4 => table.rule().source(Is::In, *network),
                    _ => table.rule().destination(Is::In, *network),
                };
                for rule in [peers, network] {
                    batch.add_rule(table, chain, &rule.count().decide(&Verdict::Accept).comment(chain));
                }
            }
            batch.add_rule(table, chain, &table.rule().count().decide(&Verdict::Drop));
            let entry = Element::new(Data::link("net1")).verdict(Verdict::Goto(chain.to_owned()));
            batch.add_elements(table, map, &[entry]);
        }
        batch
    }

    /// Fails unless weft has as many rules for an attached pod, in the pod's namespace or on the host, which has no
    /// other pod.
    pub(crate) fn require_same(&self, attached: &Container, alone: &Container) -> Result<(), Failure> {
        let namespace = |container: &Container| Netns::open(Path::new(&container.netns))?.nft();
        let floor = rules(&mut namespace(alone)?)?;
        let ours = rules(&mut namespace(attached)?)? + rules(&mut Nft::open()?)?;
        // Frames that a bridge passes on have a few more.
        match ours >= floor && ours <= floor + 4 {
            true => Ok(()),
            false => Err(format!("the rules alone are {floor}, those of weft {ours}").into()),
        }
    }
}

/// Whether weft's rules for a pod are in the pod's own namespace.
pub(crate) fn in_namespace(container: &Container) -> Result<bool, Failure> {
    Ok(rules(&mut Netns::open(Path::new(&container.netns))?.nft()?)? > 0)
}

/// Makes the kernel track connections in a pod's namespace, with the same hooks and condition as for a pod with
/// policies.
pub(crate) fn track_connections(container: &Container) -> Result<(), Failure> {
    let table = Table::new(Family::Inet, "tracking");
    let mut batch = Batch::new();
    batch.ensure_table(table);
    for (_, base, hook, ..) in DIRECTIONS {
        let filter = BaseChain {
            chain_type: ChainType::Filter,
            hook,
            priority: priority::FILTER,
            policy: Policy::Accept,
        };
        batch.ensure_base_chain(table, base, filter);
        let replies = table.rule().state(&[State::Established, State::Related]);
        batch.add_rule(table, base, &replies.decide(&Verdict::Accept));
    }
    Ok(Netns::open(Path::new(&container.netns))?.nft()?.commit(batch)?)
}

/// Counts the rules about pods.
fn rules(nft: &mut Nft) -> Result<usize, Failure> {
    let mut count = 0;
    for family in FAMILIES {
        let table = Table::new(family, TABLE);
        for chain in nft.chains(table)? {
            if DIRECTIONS.iter().any(|(direction, ..)| chain.starts_with(direction)) {
                count += nft.rules(table, &chain)?.len();
            }
        }
    }
    Ok(count)
}
