//! `weft import whereabouts --verify`: what pods show, what whereabouts recorded and what weft holds, side by
//! side.
//!
//! If a pod exists, an address counts as different if another pod has it, too, or if weft does not hold it for this
//! pod: weft would allocate it again.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::Serialize;

use super::objects::Allocation;
use super::outcome::{Holding, holding};
use super::{ClusterState, find_pod};
use cli_support::failure::Failure;
use cli_support::output;
use cli_support::output::Format;
use cli_support::table;

/// Address in the three sources.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ComparedAddress {
    address: IpAddr,
    network_name: String,
    /// Pods that show it.
    shown_by: Vec<String>,
    /// Pods for which whereabouts recorded it, if they exist.
    recorded_for: Vec<String>,
    /// Holder according to weft's objects.
    held: String,
    /// Reason why the sources differ; empty if they do not.
    difference: String,
}

/// Compares every address that an existing pod has.
pub(super) fn differences(state: &ClusterState) -> Vec<ComparedAddress> {
    let ClusterState { snapshot, records, shown, .. } = state;
    let mut all: BTreeMap<(String, IpAddr), (Vec<String>, Vec<String>)> = BTreeMap::new();
    for one in shown {
        let is_in_pool =
            snapshot.pools_of(one.address).iter().any(|pool| pool.spec.network_name == one.space)
                || records
                    .iter()
                    .any(|record| record.network_name == one.space && record.range.contains(&one.address));
        if is_in_pool {
            all.entry((one.space.clone(), one.address)).or_default().0.push(one.pod.clone());
        }
    }
    for record in records.iter().filter(|record| find_pod(snapshot, &record.pod).is_some()) {
        let entry = all.entry((record.network_name.clone(), record.address)).or_default();
        entry.1.push(record.pod.clone());
    }
    let compare = |((network_name, address), (mut shown_by, mut recorded_for)): ((String, IpAddr), _)| {
        let lists: [&mut Vec<String>; 2] = [&mut shown_by, &mut recorded_for];
        for list in lists {
            list.sort();
            list.dedup();
        }
        let mut owners: Vec<&String> = shown_by.iter().chain(&recorded_for).collect();
        owners.sort();
        owners.dedup();
        let (held, fault) = match owners.first() {
            Some(pod) => held_for(state, &network_name, address, pod, &recorded_for),
            None => (String::new(), None),
        };
        let difference = if owners.len() > 1 {
            let names: Vec<&str> = owners.iter().map(|name| name.as_str()).collect();
            format!("two pods have it: {}", names.join(", "))
        } else {
            fault.unwrap_or_default()
        };
        ComparedAddress { address, network_name, shown_by, recorded_for, held, difference }
    };
    all.into_iter().map(compare).collect()
}

/// Returns the holder in weft's objects, and the reason if it is not this pod.
fn held_for(
    state: &ClusterState,
    space: &str,
    address: IpAddr,
    pod: &str,
    recorded_for: &[String],
) -> (String, Option<String>) {
    let allocation = Allocation {
        network_name: space.to_owned(),
        range: address.into(),
        address,
        pod: pod.to_owned(),
        container: String::new(),
        interface: String::new(),
        recorded_in: recorded_for.first().cloned().unwrap_or_default(),
    };
    match holding(&state.snapshot, &allocation) {
        Holding::Imported(_) => ("imported".to_owned(), None),
        Holding::OfPod => ("allocated".to_owned(), None),
        Holding::Nothing => {
            let why = "weft does not hold it and may allocate it again: import it with --apply";
            ("-".to_owned(), Some(why.to_owned()))
        }
        Holding::InBlockOfItsNode(why) | Holding::OfOther(why) => ("another owner".to_owned(), Some(why)),
    }
}

/// Prints the comparison, and fails if there is a difference.
pub(super) fn print(rows: &[ComparedAddress], format: Format) -> Result<(), Failure> {
    let or_none = |pods: &[String]| if pods.is_empty() { "-".to_owned() } else { pods.join(", ") };
    match format {
        Format::Json | Format::Yaml => output::print_document(format, &rows)?,
        Format::Text | Format::Wide if rows.is_empty() => {
            output::print("no pod has an address of whereabouts or weft-ipam\n")?;
        }
        Format::Text | Format::Wide => {
            let cells = |row: &ComparedAddress| {
                let ComparedAddress { address, network_name, shown_by, recorded_for, held, difference } = row;
                let difference = if difference.is_empty() { "same" } else { difference };
                vec![
                    address.to_string(),
                    network_name.clone(),
                    or_none(shown_by),
                    or_none(recorded_for),
                    held.clone(),
                    difference.to_owned(),
                ]
            };
            let cells: Vec<Vec<String>> = rows.iter().map(cells).collect();
            let headings = ["address", "network", "runs", "whereabouts", "weft", "difference"];
            output::print(&table::lay_out(&headings, &cells, 0))?;
        }
    }
    match rows.iter().filter(|row| !row.difference.is_empty()).count() {
        0 => Ok(()),
        count => Err(Failure::new(format!("{count} of {} addresses differ", rows.len()))
            .next("of two pods with an address delete one; import the others with --apply")),
    }
}
