//! Conflict of a pool with another one that has addresses of it.
//!
//! - Of two pools the one whose layout was fixed first wins. Of two pending ones, the one with the smaller name.
//! - A pool whose range is being changed has the addresses of its fixed layout and those of its spec.
//! - A pool has no addresses that it excludes, unless it leased them before.

use ipnet::IpNet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, ListParams, Preconditions};

use super::{Lookup, Origin, Unusable, name, range};
use crate::ip_objects::{BlockObject, LayoutState, PoolObject};

/// Conflict with another pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Conflict {
    /// The other pool does not withdraw.
    Final,
    /// The layout of the other pool is being fixed concurrently; it withdraws when it sees this pool.
    Temporary,
}

impl Lookup<'_> {
    /// Returns another pool that contains addresses of this one. `is_new`: addresses of this pool were never leased from it.
    pub(super) async fn rival(
        &self,
        pool: &PoolObject,
        own: IpNet,
        is_new: bool,
    ) -> Result<Option<(PoolObject, Conflict)>, Unusable> {
        let others = self.done(self.pools.list(&ListParams::default()).await)?.items;
        let mut waits = None;
        for other in others {
            if name(&other) == name(pool) || other.spec.network_name != pool.spec.network_name {
                continue;
            }
            for (other_range, state) in parts(&other) {
                let apart = !other_range.contains(&own) && !own.contains(&other_range);
                if apart || excludes(pool, other_range) {
                    continue;
                }
                match self.conflict(pool, (&other, state), own, is_new).await? {
                    Some(Conflict::Final) => return Ok(Some((other, Conflict::Final))),
                    Some(Conflict::Temporary) => waits = Some((other.clone(), Conflict::Temporary)),
                    None => {}
                }
            }
        }
        Ok(waits)
    }

    /// Returns the conflict with a part of another pool that overlaps.
    async fn conflict(
        &self,
        pool: &PoolObject,
        (other, state): (&PoolObject, LayoutState),
        own: IpNet,
        is_new: bool,
    ) -> Result<Option<Conflict>, Unusable> {
        // The other pool does not use addresses that it excludes, unless it leased them before.
        if excludes(other, own) {
            let lies_inside =
                |block: &BlockObject| block.object().is_some_and(|it| own.contains(&it.net) && !it.is_free());
            if !is_new {
                return Ok(None);
            }
            if self.leased(&name(other)).await?.iter().any(lies_inside) {
                return Ok(Some(Conflict::Final));
            }
            // If the reduced range of the other pool is restored, it must not use the addresses of this pool.
            let is_explicit = |net: &String| net.parse::<IpNet>().is_ok_and(|net| net.contains(&own));
            if !other.spec.exclude.iter().any(is_explicit) {
                let mut other = other.clone();
                other.spec.exclude.push(own.to_string());
                self.replace(&other).await?;
            }
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

    /// Withdraws from a conflict; returns the reason.
    pub(super) async fn withdraw(&self, pool: PoolObject, origin: Origin, rival: &PoolObject) -> String {
        let (own, other) = (name(&pool), name(rival));
        let why = overlap(&pool, rival);
        // If this fails the pool stays pending, and the next lookup continues.
        if origin == Origin::Created {
            let ObjectMeta { uid, resource_version, .. } = pool.metadata;
            let preconditions = Some(Preconditions { uid, resource_version });
            let parameters = DeleteParams { preconditions, ..DeleteParams::default() };
            let _ = self.pools.delete(&own, &parameters).await;
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
pub(super) fn overlap(pool: &PoolObject, rival: &PoolObject) -> String {
    let (own, other) = (name(pool), name(rival));
    let (range, other_range) = (&pool.spec.range, &rival.spec.range);
    format!(
        "pool {own}: spec.range: {range}: overlaps pool {other} ({other_range}): use that pool, add its addresses to \
         spec.exclude, or give one of them another networkName"
    )
}

/// Returns the ranges in which a pool has addresses, each with the state of its layout there.
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

/// Whether a pool excludes all of these addresses.
fn excludes(pool: &PoolObject, range: IpNet) -> bool {
    pool.exclude().is_ok_and(|nets| nets.iter().any(|net| net.contains(&range)))
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
}
