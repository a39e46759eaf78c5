//! nf_tables rules with the configured conditions.

use linux::nft::{self, Rule};
use plugin_config::conditions::{Condition, Conditions, Field, Is};

/// Returns copies of `rule` with the conditions added. A packet that meets the conditions matches one copy.
pub(super) fn restrict(conditions: &Conditions, rule: Rule) -> Vec<Rule> {
    let mut rules = vec![rule];
    for Condition { field, is } in &conditions.0 {
        let places = 0..field.values();
        rules = match is {
            Is::In => {
                let each = |rule: Rule| {
                    places.clone().filter_map(move |at| add(field, rule.clone(), at, nft::Is::In))
                };
                rules.into_iter().flat_map(each).collect()
            }
            Is::NotIn => {
                let all = |rule: Rule| {
                    places.clone().try_fold(rule, |rule, at| add(field, rule, at, nft::Is::NotIn))
                };
                rules.into_iter().filter_map(all).collect()
            }
        };
    }
    rules
}

fn add(field: &Field, rule: Rule, at: usize, is: nft::Is) -> Option<Rule> {
    Some(match field {
        Field::Source(networks) => rule.source(is, *networks.get(at)?),
        Field::Destination(networks) => rule.destination(is, *networks.get(at)?),
        Field::LinkIn(names) => rule.link_in(is, names.get(at)?),
        Field::OwnerTag(marks) => rule.mark(is, *marks.get(at)?, u32::MAX),
    })
}
