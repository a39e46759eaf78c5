//! Outcome of the import for each address: the plan as tables.

use std::collections::BTreeSet;
use std::fmt;

use ipam::IpBlock;
use ipnet::IpNet;
use serde::Serialize;

use super::objects::Allocation;
use super::{ClusterState, find_pod};
use cli_support::failure::Failure;
use cli_support::output;
use cli_support::output::Format;
use cli_support::table;
use ipam_api::cluster_snapshot::{ClusterSnapshot, Holder};
use ipam_api::imported_claim::ImportedClaim;

/// Outcome for one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It is reserved for the pod in this pool.
    Kept(String),
    /// It would be reserved with `--apply`.
    WouldBeKept,
    /// The pod no longer exists.
    PodDeleted,
    /// It cannot be reserved for the pod, with the reason.
    Refused(String),
    /// A request failed, with the reason. A repeated run tries it again.
    Failed(String),
    /// Requests for addresses before it failed.
    NotTried,
}

impl Outcome {
    /// Returns the pool in which it is reserved.
    pub(super) fn pool(&self) -> Option<&str> {
        match self {
            Outcome::Kept(pool) => Some(pool),
            _ => None,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Kept(pool) => write!(f, "kept in pool {pool}"),
            Outcome::WouldBeKept => f.write_str("would be kept"),
            Outcome::PodDeleted => f.write_str("not kept: its pod no longer exists"),
            Outcome::Refused(why) => write!(f, "not kept: {why}"),
            Outcome::Failed(why) => write!(f, "failed: {why}"),
            Outcome::NotTried => f.write_str("not tried: requests for addresses before it failed"),
        }
    }
}

/// State of an address according to weft's objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Holding {
    /// No object contains it.
    Nothing,
    /// An import made an object that keeps it for the pod, in this pool.
    Imported(String),
    /// weft allocated it to the pod.
    OfPod,
    /// The pod's node leases the block around it.
    InBlockOfItsNode(String),
    /// It belongs to another owner, with a description.
    OfOther(String),
}

/// Whether a claim keeps an address imported for a pod.
pub(super) fn is_claim_of(claim: &str, pod: &str) -> bool {
    ImportedClaim::parse(claim).is_some_and(|claim| format!("{}/{}", claim.namespace, claim.pod) == pod)
}

/// Returns what the pools in an address's space say about it.
pub(super) fn holding(snapshot: &ClusterSnapshot, allocation: &Allocation) -> Holding {
    let Allocation { network_name, address, pod, recorded_in, .. } = allocation;
    let holder = find_pod(snapshot, pod);
    let in_space = |pool: &&&ipam_api::ip_objects::PoolObject| pool.spec.network_name == *network_name;
    for pool in snapshot.pools_of(*address).iter().filter(in_space) {
        let name = pool.metadata.name.clone().unwrap_or_default();
        let around = snapshot.objects_of(&name).filter(|object| {
            object.net.contains(address) && (object.is_single_address() || !object.reserved.contains(address))
        });
        // The object of a single address takes precedence over the block in which the address is reserved.
        let Some(object) = around.max_by_key(|object| object.net.prefix_len()) else { continue };
        if object.is_single_address() {
            return of_single(&object, name, pod, holder);
        }
        let node = object.holder.node.clone();
        return match holder.filter(|holder| holder.node == node && !node.is_empty()) {
            Some(_) if recorded_in.is_empty() => Holding::OfPod,
            Some(_) => Holding::InBlockOfItsNode(block_conflict(&node, object.net)),
            None if node.is_empty() => Holding::Nothing,
            None => Holding::OfOther(block_conflict(&node, object.net)),
        };
    }
    Holding::Nothing
}

fn of_single(object: &IpBlock, pool: String, pod: &str, holder: Option<&Holder>) -> Holding {
    let uid = object.holder.owner.split('/').next().unwrap_or_default();
    if is_claim_of(&object.holder.claim, pod) {
        return Holding::Imported(pool);
    }
    match holder.is_some_and(|holder| !uid.is_empty() && holder.uid == uid) {
        true => Holding::OfPod,
        false => Holding::OfOther(format!("it is {}", describe_holder(&object.holder))),
    }
}

fn block_conflict(node: &str, block: IpNet) -> String {
    format!("node {node} has already leased its block {block}")
}

/// Returns a description for an address's holder.
pub(super) fn describe_holder(holder: &ipam::Holder) -> String {
    let ipam::Holder { node, owner, claim, .. } = holder;
    match (claim.is_empty(), node.is_empty()) {
        (false, _) => format!("kept for {claim}"),
        (true, false) => format!("allocated by node {node} to {owner}"),
        (true, true) => "released and in quarantine".to_owned(),
    }
}

/// Returns the outcome that an import would have for each address.
pub(super) fn plan(state: &ClusterState) -> Vec<Outcome> {
    let outcome = |one: &super::OwnedAddress| {
        if let Some(outcome) = outcome_by_owner(&state.snapshot, one) {
            return outcome;
        }
        match holding(&state.snapshot, &one.allocation) {
            Holding::Nothing => Outcome::WouldBeKept,
            Holding::Imported(pool) => Outcome::Kept(pool),
            Holding::OfPod => Outcome::Kept("of its node".to_owned()),
            Holding::InBlockOfItsNode(why) | Holding::OfOther(why) => Outcome::Refused(why),
        }
    };
    state.addresses.iter().map(outcome).collect()
}

/// Returns the outcome for an address that is not imported, whatever weft holds.
pub(super) fn outcome_by_owner(snapshot: &ClusterSnapshot, one: &super::OwnedAddress) -> Option<Outcome> {
    if !one.rivals.is_empty() {
        return Some(Outcome::Refused(format!("two pods have it: {}", one.rivals.join("; "))));
    }
    match one.allocation.pod.as_str() {
        // Early releases of whereabouts did not record the pod, so a pod may use the address.
        "" => Some(Outcome::Refused("whereabouts did not record its pod".to_owned())),
        pod => find_pod(snapshot, pod).is_none().then_some(Outcome::PodDeleted),
    }
}

/// Returns the pool name for a range, as whereabouts and weft-ipam name it.
pub(super) fn pool_name(space: &str, range: IpNet) -> String {
    let divider = if space.is_empty() { "" } else { "-" };
    format!("{space}{divider}{}", range.to_string().replace([':', '/'], "-"))
}

/// Document about one address for `-o json`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct OutcomeRow<'a> {
    #[serde(flatten)]
    allocation: &'a Allocation,
    /// Owners that contradict each other.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    owners: &'a [String],
    /// Absent without `--apply`.
    #[serde(skip_serializing_if = "Option::is_none")]
    kept: Option<bool>,
    outcome: String,
}

/// Prints what an import would create, and fails if an address could not be kept.
pub(super) fn print_plan(state: &ClusterState, outcomes: &[Outcome], format: Format) -> Result<(), Failure> {
    let rows = rows(state, outcomes, |_| None);
    if format.is_document() {
        output::print_document(format, &rows)?;
    } else {
        output::print(&render_pools(state))?;
        output::print(&render_table(&rows))?;
    }
    let refused = outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Refused(_))).count();
    if refused > 0 {
        let why = format!("{refused} of {} addresses cannot be kept; nothing was changed", rows.len());
        return Err(Failure::new(why).next(
            "of two pods with an address delete one; delete pods and entries of unknown owners; then run it again",
        ));
    }
    match format {
        Format::Json | Format::Yaml => Ok(()),
        Format::Text | Format::Wide => {
            output::print("nothing was changed; run it with --apply to import the addresses\n")
        }
    }
}

/// Prints how an import ended. Fails if an address was refused, failed or was not tried.
pub(super) fn print_result(
    state: &ClusterState,
    outcomes: &[Outcome],
    format: Format,
) -> Result<(), Failure> {
    let rows = rows(state, outcomes, |outcome| Some(matches!(outcome, Outcome::Kept(_))));
    match format {
        Format::Json | Format::Yaml => output::print_document(format, &rows)?,
        Format::Text | Format::Wide => output::print(&render_table(&rows))?,
    }
    fault(outcomes).map_or(Ok(()), Err)
}

/// Returns the failure for an import with these outcomes; `None` if every address was kept that has a pod.
fn fault(outcomes: &[Outcome]) -> Option<Failure> {
    let count = |is_counted: fn(&Outcome) -> bool| outcomes.iter().filter(|one| is_counted(one)).count();
    let refused = count(|one| matches!(one, Outcome::Refused(_)));
    let failed = count(|one| matches!(one, Outcome::Failed(_)));
    let not_tried = count(|one| *one == Outcome::NotTried);
    let next = match (refused, failed + not_tried) {
        (0, 0) => return None,
        (_, 0) => "delete their pods; the next time, import before a pod gets an address from weft-ipam",
        _ => "correct the reason, then run the command again: it keeps what was imported, and continues",
    };
    let why = match failed + not_tried {
        0 => String::new(),
        _ => format!(": {failed} failed, {not_tried} were not tried"),
    };
    let all = refused + failed + not_tried;
    Some(Failure::new(format!("{all} of {} addresses were not kept{why}", outcomes.len())).next(next))
}

fn rows<'a>(
    state: &'a ClusterState,
    outcomes: &[Outcome],
    kept: impl Fn(&Outcome) -> Option<bool>,
) -> Vec<OutcomeRow<'a>> {
    let row = |(one, outcome): (&'a super::OwnedAddress, &Outcome)| OutcomeRow {
        allocation: &one.allocation,
        owners: &one.rivals,
        kept: kept(outcome),
        outcome: outcome.to_string(),
    };
    state.addresses.iter().zip(outcomes).map(row).collect()
}

/// Returns the table with the pools that the addresses need.
fn render_pools(state: &ClusterState) -> String {
    let needed: BTreeSet<(&str, IpNet)> = state
        .addresses
        .iter()
        .map(|one| (one.allocation.network_name.as_str(), one.allocation.range))
        .collect();
    let around = |space: &str, range: IpNet| {
        let pools = state.snapshot.pools.iter().filter(|pool| pool.spec.network_name == space);
        let contains = |text: &str| text.parse::<IpNet>().is_ok_and(|own| own.contains(&range));
        pools.filter(|pool| contains(&pool.spec.range)).filter_map(|pool| pool.metadata.name.clone()).next()
    };
    let row = |(space, range): (&str, IpNet)| {
        let name = pool_name(space, range);
        let outcome = match around(space, range) {
            None => "would be created".to_owned(),
            Some(existing) if existing == name => "exists".to_owned(),
            Some(existing) => format!("is part of pool {existing}"),
        };
        vec![name, range.to_string(), space.to_owned(), outcome]
    };
    let rows: Vec<Vec<String>> = needed.into_iter().map(row).collect();
    match rows.is_empty() {
        true => String::new(),
        false => format!("{}\n", table::lay_out(&["pool", "range", "network", "outcome"], &rows, 0)),
    }
}

fn render_table(rows: &[OutcomeRow<'_>]) -> String {
    if rows.is_empty() {
        return "whereabouts has no allocated addresses\n".to_owned();
    }
    let cells = |OutcomeRow { allocation, outcome, .. }: &OutcomeRow<'_>| {
        let Allocation { network_name, range, address, pod, interface, .. } = allocation;
        let (address, range) = (address.to_string(), range.to_string());
        vec![address, range, network_name.clone(), pod.clone(), interface.clone(), outcome.clone()]
    };
    let rows: Vec<Vec<String>> = rows.iter().map(cells).collect();
    table::lay_out(&["address", "range", "network", "pod", "interface", "outcome"], &rows, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn import_whereabouts_fault_counts_refused_failed_and_not_tried() {
        let why = || "x".to_owned();
        let (kept, refused, failed) = (Outcome::Kept(why()), Outcome::Refused(why()), Outcome::Failed(why()));
        let text = |outcomes: &[Outcome]| fault(outcomes).map(|failure| failure.to_string());
        assert_eq!(text(&[kept.clone(), Outcome::PodDeleted]), None);
        let of_refused = text(&[kept.clone(), refused.clone()]).unwrap();
        assert!(
            of_refused.starts_with("1 of 2 addresses were not kept\n  delete their pods"),
            "{of_refused}"
        );
        let all = text(&[kept, refused, failed.clone(), failed, Outcome::NotTried]).unwrap();
        assert!(all.starts_with("4 of 5 addresses were not kept: 2 failed, 1 were not tried\n"), "{all}");
        assert!(all.ends_with("and continues"), "{all}");
    }
}
