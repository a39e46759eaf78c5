//! Conflict with another pool that has some of the same addresses.
//!
//! - Of two pools the one whose layout was fixed first wins. Of two pending ones, the one with the smaller name.
//! - A pool whose range is being changed has the addresses in the fixed layout and those in the spec.
//! - A pool has no addresses that it excludes, unless it leased them before.
//! - Objects in use whose pool does not exist are a conflict in every address space that they may be of.

use std::net::IpAddr;

use ipam::IpBlock;
use ipam::pool_layout::{address_count, nth};
use ipnet::IpNet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, ListParams, Preconditions};

use super::{Lookup, Origin, Unusable, name, range};
use crate::ip_objects::{BlockObject, LayoutState, PoolObject, beside};
use kube_support::custom_resources::IPPoolSpec;

/// Another pool that has addresses of this one.
pub(super) struct Rival {
    pub(super) pool: PoolObject,
    pub(super) conflict: Conflict,
}

/// Conflict with another pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Conflict {
    /// The other pool does not withdraw.
    Final,
    /// The other pool excludes the addresses by now, and still leases some of them.
    Leased(LeasedAddresses),
    /// The other pool no longer exists, but some addresses are still in use.
    Orphaned(LeasedAddresses),
    /// The layout of the other pool is being fixed concurrently; it withdraws when it sees this pool.
    Temporary,
}

/// Block or single address that a pool still leases outside the reduced range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LeasedAddresses {
    net: IpNet,
    node: String,
}

impl Rival {
    /// Whether it is useless to wait for the other pool.
    pub(super) fn is_final(&self) -> bool {
        self.conflict != Conflict::Temporary
    }
}

impl Lookup<'_> {
    /// Returns another pool that contains some of this pool's addresses. `is_new`: nothing was ever leased from this
    /// pool.
    pub(super) async fn rival(
        &self,
        pool: &PoolObject,
        own: IpNet,
        is_new: bool,
    ) -> Result<Option<Rival>, Unusable> {
        let others = self.done(self.pools.list(&ListParams::default()).await)?.items;
        let unused = pool.exclude().unwrap_or_default();
        let mut waits = None;
        if is_new && let Some(orphan) = self.orphan(pool, &others, own).await? {
            return Ok(Some(orphan));
        }
        for other in others {
            if name(&other) == name(pool) || other.spec.network_name != pool.spec.network_name {
                continue;
            }
            for (other_range, state) in parts(&other) {
                let Some(common) = common(own, other_range).filter(|net| !are_covered(*net, &unused)) else {
                    continue;
                };
                match self.conflict(pool, (&other, state), (own, common), is_new).await? {
                    Some(Conflict::Temporary) => {
                        waits = Some(Rival { pool: other.clone(), conflict: Conflict::Temporary });
                    }
                    Some(conflict) => return Ok(Some(Rival { pool: other, conflict })),
                    None => {}
                }
            }
        }
        Ok(waits)
    }

    /// Returns a conflict with an object in use whose pool does not exist.
    async fn orphan(
        &self,
        pool: &PoolObject,
        existing: &[PoolObject],
        own: IpNet,
    ) -> Result<Option<Rival>, Unusable> {
        let excluded = pool.exclude().unwrap_or_default();
        let is_orphan = |block: &BlockObject| {
            let other = &block.spec.pool;
            let is_of_space = space_of(other).is_none_or(|space| space == pool.spec.network_name);
            *other != name(pool) && is_of_space && !existing.iter().any(|pool| name(pool) == *other)
        };
        let is_disputed = |block: &BlockObject| match block.object() {
            Some(object) => is_disputed(&object, own, &excluded),
            // An invalid object may have any of its addresses in use.
            None => block.spec.range.parse().is_ok_and(|net: IpNet| common(net, own).is_some()),
        };
        let all = self.blocks(&ListParams::default()).await?;
        let Some(block) = all.into_iter().find(|block| is_orphan(block) && is_disputed(block)) else {
            return Ok(None);
        };
        let BlockObject { spec, .. } = block;
        let net = spec.range.parse().unwrap_or(own);
        let mut other = PoolObject {
            types: None,
            spec: IPPoolSpec::default(),
            status: None,
            metadata: ObjectMeta::default(),
        };
        (other.metadata.name, other.spec.range) = (Some(spec.pool), spec.range);
        let conflict = Conflict::Orphaned(LeasedAddresses { net, node: spec.node });
        Ok(Some(Rival { pool: other, conflict }))
    }

    /// Returns the conflict with a part of another pool that overlaps in `common`.
    async fn conflict(
        &self,
        pool: &PoolObject,
        (other, state): (&PoolObject, LayoutState),
        (own, common): (IpNet, IpNet),
        is_new: bool,
    ) -> Result<Option<Conflict>, Unusable> {
        let unused = pool.exclude().unwrap_or_default();
        let excluded = other.exclude().unwrap_or_default();
        // The other pool does not use addresses that it excludes, unless it leased them before.
        if are_covered(common, &[unused.as_slice(), excluded.as_slice()].concat()) {
            if !is_new {
                return Ok(None);
            }
            let leased = self.leased(&name(other)).await?;
            let mut leased = leased.iter().filter_map(BlockObject::object);
            if let Some(IpBlock { net, holder, .. }) = leased.find(|object| is_disputed(object, own, &unused))
            {
                return Ok(Some(Conflict::Leased(LeasedAddresses { net, node: holder.node })));
            }
            self.exclude_beside(other, own, &unused).await?;
            return Ok(None);
        }
        let yields = name(other) > name(pool);
        Ok(match state {
            LayoutState::Fixed => Some(Conflict::Final),
            // This pool has leases: refusing it now would not undo duplicates.
            _ if !is_new => None,
            LayoutState::Pending if yields => Some(Conflict::Temporary),
            LayoutState::Pending => Some(Conflict::Final),
            LayoutState::Unset if !self.leased(&name(other)).await?.is_empty() => Some(Conflict::Final),
            // The other pool is unused there.
            LayoutState::Unset | LayoutState::Resized => None,
        })
    }

    /// Excludes the addresses of this pool from another one whose range was reduced: if that range is restored, it must not
    /// use them.
    async fn exclude_beside(&self, other: &PoolObject, own: IpNet, unused: &[IpNet]) -> Result<(), Unusable> {
        let explicit = other.exclusions().unwrap_or_default();
        let known = [unused, explicit.as_slice()].concat();
        let mut added = range(other).map_or_else(|| vec![own], |range| beside(own, range));
        added.retain(|net| !are_covered(*net, &known));
        if !added.is_empty() {
            let mut other = other.clone();
            other.spec.exclude.extend(added.iter().map(IpNet::to_string));
            self.replace(&other).await?;
        }
        Ok(())
    }

    /// Withdraws from a conflict; returns the reason.
    pub(super) async fn withdraw(&self, pool: PoolObject, origin: Origin, rival: &Rival) -> String {
        let (own, other) = (name(&pool), name(&rival.pool));
        let why = overlap(&pool, rival);
        // If this fails the pool stays pending, and the next lookup continues.
        if origin == Origin::Created {
            // Nothing was leased from it.
            let pool = self.replace(&pool.unused()).await.unwrap_or(pool);
            let ObjectMeta { uid, resource_version, .. } = pool.metadata;
            let preconditions = Some(Preconditions { uid, resource_version });
            let parameters = DeleteParams { preconditions, ..DeleteParams::default() };
            let _ = self.pools.delete(&own, &parameters).await;
            if matches!(rival.conflict, Conflict::Leased(_) | Conflict::Orphaned(_)) {
                return why;
            }
            return format!(
                "pool {own}: pool {other} with an overlapping range was created concurrently: try again"
            );
        }
        if pool.layout_state() == Ok(LayoutState::Pending) {
            let before =
                if pool.recorded_range().is_some() { LayoutState::Resized } else { LayoutState::Unset };
            let _ = self.record(&pool, pool.layout_status(before)).await;
        }
        why
    }
}

/// Returns the reason why a pool cannot be used beside another one.
pub(super) fn overlap(pool: &PoolObject, rival: &Rival) -> String {
    let (own, other) = (name(pool), name(&rival.pool));
    let (range, other_range) = (&pool.spec.range, &rival.pool.spec.range);
    match &rival.conflict {
        Conflict::Leased(LeasedAddresses { net, node }) => {
            let holder = if node.is_empty() {
                "which a claim keeps".to_owned()
            } else {
                format!("which node {node} leases")
            };
            format!(
                "pool {own}: spec.range: {range}: overlaps {net} of pool {other} ({other_range}), {holder}: delete the pods with \
                 addresses of it, and try again when it is returned"
            )
        }
        Conflict::Orphaned(LeasedAddresses { net, node }) => {
            let holder =
                if node.is_empty() { "a claim keeps".to_owned() } else { format!("node {node} leases") };
            format!(
                "pool {own}: spec.range: {range}: overlaps {net}, which {holder}, of pool {other}, which does not exist any more: \
                 create pool {other} again with its range, or delete the pods with addresses of it"
            )
        }
        Conflict::Final | Conflict::Temporary => format!(
            "pool {own}: spec.range: {range}: overlaps pool {other} ({other_range}): use that pool, add its addresses to \
             spec.exclude, or give one of them another networkName"
        ),
    }
}

/// Returns the ranges in which a pool has addresses, each with the layout state there.
fn parts(pool: &PoolObject) -> Vec<(IpNet, LayoutState)> {
    let (spec, recorded) = (range(pool), pool.recorded_range());
    // A layout that cannot be read may be fixed.
    let state = pool.layout_state().unwrap_or(LayoutState::Fixed);
    let of_spec = match state {
        LayoutState::Fixed if recorded.is_some() => None,
        state => spec.map(|range| (range, state)),
    };
    of_spec.into_iter().chain(recorded.map(|range| (range, LayoutState::Fixed))).collect()
}

/// Returns the address space of a pool named after a range, `[SPACE-]10.1.0.0-16`; `None` for any other name.
fn space_of(pool: &str) -> Option<&str> {
    let (rest, length) = pool.rsplit_once('-')?;
    let starts = std::iter::once(0).chain(rest.match_indices('-').map(|(at, _)| at + 1));
    for start in starts {
        let address = rest[start..].replace('-', ":");
        if let Ok(address) = address.parse::<IpAddr>()
            && IpNet::new(address, length.parse().ok()?).is_ok()
        {
            return Some(rest[..start].trim_end_matches('-'));
        }
    }
    None
}

/// Returns the addresses that two ranges have in common.
fn common(one: IpNet, other: IpNet) -> Option<IpNet> {
    if one.contains(&other) {
        return Some(other);
    }
    other.contains(&one).then_some(one)
}

/// Whether all addresses of a network are in these networks.
fn are_covered(net: IpNet, nets: &[IpNet]) -> bool {
    if nets.iter().any(|other| other.contains(&net)) {
        return true;
    }
    // Of two networks one contains the other, so the union of those inside is found without overlaps.
    let inside: Vec<IpNet> = nets.iter().filter(|other| net.contains(*other)).copied().collect();
    let inside = IpNet::aggregate(&inside);
    inside.iter().any(|other| other.contains(&net))
}

/// Whether a node may use addresses, in an object from another pool, that this pool with the range `own` is about to
/// use too. A node never uses an address that is reserved in the block.
fn is_disputed(object: &IpBlock, own: IpNet, unused: &[IpNet]) -> bool {
    let Some(common) = common(object.net, own).filter(|_| !object.is_free()) else { return false };
    let unused: Vec<IpNet> =
        unused.iter().filter(|net| self::common(**net, common).is_some()).copied().collect();
    let is_used = |ip| !object.reserved.contains(&ip) && !unused.iter().any(|net| net.contains(&ip));
    (0..address_count(common)).map(|offset| nth(common, offset)).any(is_used)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pool_range_change_claims_the_old_and_the_new_range() {
        for (phase, layout, spec, expected) in [
            (None, "", "10.0.0.0/28", vec![("10.0.0.0/28", LayoutState::Unset)]),
            (Some("Pending"), "", "10.0.0.0/28", vec![("10.0.0.0/28", LayoutState::Pending)]),
            (
                Some("Pending"),
                "10.0.0.0/29",
                "10.0.0.0/28",
                vec![("10.0.0.0/28", LayoutState::Pending), ("10.0.0.0/29", LayoutState::Fixed)],
            ),
            (
                Some("Fixed"),
                "10.0.0.0/29",
                "10.0.0.0/28",
                vec![("10.0.0.0/28", LayoutState::Resized), ("10.0.0.0/29", LayoutState::Fixed)],
            ),
            (Some("Fixed"), "10.0.0.0/28", "10.0.0.0/29", vec![("10.0.0.0/28", LayoutState::Fixed)]),
        ] {
            let layout = phase.map(|phase| json!({ "phase": phase, "range": layout, "blockBits": 0 }));
            let object = json!({ "metadata": { "name": "p" }, "spec": { "range": spec, "blockBits": 0 },
                "status": { "layout": layout } });
            let pool: PoolObject = serde_json::from_value(object).unwrap();
            let found: Vec<(String, LayoutState)> =
                parts(&pool).into_iter().map(|(range, state)| (range.to_string(), state)).collect();
            let expected: Vec<(String, LayoutState)> =
                expected.into_iter().map(|(range, state)| (range.to_owned(), state)).collect();
            assert_eq!(found, expected, "{phase:?}");
        }
    }

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn pool_range_is_covered_by_the_union_of_exclusions() {
        for (net, exclude, is_covered) in [
            ("10.0.0.0/28", vec!["10.0.0.0/24"], true),
            ("10.0.0.0/28", vec!["10.0.0.0/29"], false),
            ("10.0.0.0/28", vec!["10.0.0.8/29", "10.0.0.0/30", "10.0.0.4/30"], true),
            ("10.0.0.0/28", vec!["10.0.0.8/29", "10.0.0.0/30", "10.0.0.5/32"], false),
            ("fd00::/64", vec!["10.0.0.0/8"], false),
        ] {
            assert_eq!(are_covered(net.parse().unwrap(), &nets(&exclude)), is_covered, "{net} {exclude:?}");
        }
    }

    #[test]
    fn pool_in_the_rest_of_a_reduced_range_is_disputed_by_leases() {
        let object = |net: &str, node: &str, reserved: &[&str]| IpBlock {
            net: net.parse().unwrap(),
            uid: "u".into(),
            version: "1".into(),
            holder: ipam::Holder { node: node.into(), ..ipam::Holder::default() },
            reserved: reserved.iter().map(|ip| ip.parse().unwrap()).collect(),
        };
        let own: IpNet = "10.0.0.8/30".parse().unwrap();
        let all = ["10.0.0.8", "10.0.0.9", "10.0.0.10", "10.0.0.11"];
        for (object, unused, is_disputed_object) in [
            // A block inside, one around, and one elsewhere.
            (object("10.0.0.8/31", "n1", &[]), vec![], true),
            (object("10.0.0.0/28", "n1", &[]), vec![], true),
            (object("10.0.0.16/28", "n1", &[]), vec![], false),
            (object("10.0.0.8/31", "", &[]), vec![], false),
            // The block was leased when the addresses were excluded: the node does not use them.
            (object("10.0.0.0/28", "n1", &all), vec![], false),
            (object("10.0.0.0/28", "n1", &all[1..]), vec![], true),
            (object("10.0.0.0/28", "n1", &all[1..]), vec!["10.0.0.8/32"], false),
            (object("10.0.0.8/31", "n1", &[]), vec!["10.0.0.8/31"], false),
            (object("10.0.0.9/32", "n1", &[]), vec![], true),
        ] {
            assert_eq!(
                is_disputed(&object, own, &nets(&unused)),
                is_disputed_object,
                "{object:?} {unused:?}"
            );
        }
    }
}
