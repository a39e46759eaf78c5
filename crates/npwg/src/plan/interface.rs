//! Assignment of interface names: first the requested ones, then the generated ones.
//!
//! A network without a request gets `net<N>`, where N is its index among the networks, as with Multus. If another
//! element requests that name, the network gets the next free `net<N>` after the last index (M23), so a generated name
//! never takes a requested one. In a sandbox that is already attached, a network keeps the same name.
//!
//! Source: multi-network specification, 4.1.2.1.5, 4.2.1; Multus `getIfname`.

use std::collections::BTreeSet;

use cni::name::IfName;

use super::networks::Draft;
use super::{Decision, Held};
use crate::refusal::{Fault, Refusal};
use crate::rule::Rule;

/// Interface that every network namespace has.
const LOOPBACK: &str = "lo";

/// Returns a name and the reason for it, for each draft in order; `first` is the name that the runtime
/// requests. Names requested by networks that cannot be attached stay free; `count` includes those networks.
pub(super) fn assign(
    first: &IfName,
    drafts: &[Draft],
    held: &[Held],
    (reserved, count): (&[IfName], usize),
) -> Result<Vec<(IfName, Decision)>, Refusal> {
    let mut taken: BTreeSet<String> = BTreeSet::from([LOOPBACK.to_owned()]);
    for (index, draft) in drafts.iter().enumerate() {
        let asked = draft.asked.as_ref().and_then(|asked| Some((asked, asked.element.interface.as_ref()?)));
        let name = match asked {
            Some((_, name)) => name,
            None if index == 0 => first,
            None => continue,
        };
        if taken.insert(name.as_str().to_owned()) {
            continue;
        }
        let reason = "is the name of an earlier attachment";
        let fault = match asked {
            Some((asked, name)) if name == first && !names_interface(&drafts[0]) => {
                let reason = "is the name that the runtime gives to the default network";
                asked.fault(Rule::DefaultInterfaceName, "interface", reason)
            }
            Some((asked, _)) => asked.fault(Rule::DuplicateInterfaceName, "interface", reason),
            None => Fault::new(Rule::DuplicateInterfaceName, "CNI_IFNAME", reason),
        };
        let fault = fault.showing(&format!("{:?}", name.as_str()));
        return Err(Refusal::failed(fault.hint("choose another name, or leave it out")));
    }
    taken.extend(reserved.iter().map(ToString::to_string));
    let kept = keep(drafts, held, &mut taken);
    let mut next = count;
    let mut names = Vec::with_capacity(drafts.len());
    for (index, draft) in drafts.iter().enumerate() {
        let asked = draft.element().and_then(|element| element.interface.clone());
        let (name, why) = match asked {
            Some(name) => (name, "requested".to_owned()),
            None if index == 0 => (first.clone(), "requested by the runtime (CNI_IFNAME)".to_owned()),
            None if let Some(name) = &kept[index] => {
                (name.clone(), "kept from the existing attachment".to_owned())
            }
            None => generate(draft.index, &mut next, &mut taken)?,
        };
        let decision = Decision::new("interface", &name, why);
        names.push((name, decision));
    }
    Ok(names)
}

/// Whether an annotation requests this interface's name.
fn names_interface(draft: &Draft) -> bool {
    draft.element().is_some_and(|element| element.interface.is_some())
}

/// Returns the name that each draft keeps; if a network is attached several times, the drafts keep the names in order.
fn keep(drafts: &[Draft], held: &[Held], taken: &mut BTreeSet<String>) -> Vec<Option<IfName>> {
    let mut held: Vec<&Held> = held.iter().collect();
    let mut kept = Vec::with_capacity(drafts.len());
    for draft in drafts {
        let is_free = draft.element().is_some() && !names_interface(draft);
        let fits = |held: &&Held| held.network == draft.label && !taken.contains(held.ifname.as_str());
        let place = if is_free { held.iter().position(fits) } else { None };
        let name = place.map(|place| held.remove(place).ifname.clone());
        taken.extend(name.iter().map(ToString::to_string));
        kept.push(name);
    }
    kept
}

fn generate(
    index: usize,
    next: &mut usize,
    taken: &mut BTreeSet<String>,
) -> Result<(IfName, String), Refusal> {
    let usual = format!("net{index}");
    let (text, why) = match taken.insert(usual.clone()) {
        true => (usual, "generated from its index".to_owned()),
        false => loop {
            let text = format!("net{next}");
            *next += 1;
            if taken.insert(text.clone()) {
                break (text, format!("generated; another network requests {usual}"));
            }
        },
    };
    let name = IfName::new(&text).map_err(|error| {
        Refusal::failed(Fault::new(Rule::InvalidInterfaceName, "interface", error.to_string()))
    })?;
    Ok((name, why))
}
