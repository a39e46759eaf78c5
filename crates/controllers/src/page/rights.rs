//! One user's rights: the outcomes of reviews, which of them are due, and the rows that follow from them.
//!
//! - A right that the user has is due after [`FRESH`], so a lost right ends soon.
//! - A right that the user lacks in a namespace is due only after [`DENIED_MAX`], because an old denial shows no row.
//!   Most namespaces are denied to most users, so these reviews would otherwise be most of the API server's load.
//! - A review that fails changes nothing. An earlier outcome is used for [`STALE_MAX`], and without one there is no right.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use tokio::time::Instant;

use super::rows::Table;

/// Time for which a user, and a right that it has, is used without another review.
pub(super) const FRESH: Duration = Duration::from_secs(10);
/// Time for which they are used while the API server does not answer.
pub(super) const STALE_MAX: Duration = Duration::from_secs(300);
/// Time after which a right that a user lacks in a namespace is reviewed again. With the round it is five minutes.
const DENIED_MAX: Duration = Duration::from_secs(270);
/// Maximum number of namespaces for which the rights of one user are reviewed.
pub(super) const NAMESPACES_MAX: usize = 2000;
/// Tables whose objects have a namespace.
const NAMESPACED: [Table; 4] = [Table::Networks, Table::Policies, Table::Events, Table::Pods];

/// Namespaces in which a viewer may list a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Allowed {
    All,
    Namespaces(BTreeSet<String>),
}

/// Rows that a viewer may see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PageScope {
    pub(super) pods: Allowed,
    pub(super) networks: Allowed,
    pub(super) events: Allowed,
    pub(super) policies: Allowed,
    pub(super) nodes: bool,
    pub(super) pools: bool,
    pub(super) blocks: bool,
}

/// Review outcomes for one user.
#[derive(Debug, Default)]
pub(super) struct KnownReviews {
    /// Rights in the whole cluster.
    in_cluster: BTreeMap<Table, KnownReview>,
    /// Rights in a namespace, in the order of [`NAMESPACED`].
    in_namespaces: HashMap<String, [Option<KnownReview>; NAMESPACED.len()]>,
    /// Rights in a namespace whose last review failed.
    failed: BTreeSet<(Table, String)>,
}

/// Outcome of a review.
#[derive(Clone, Copy, Debug)]
struct KnownReview {
    at: Instant,
    is_allowed: bool,
}

// === impl Allowed ===

impl Default for Allowed {
    fn default() -> Allowed {
        Allowed::Namespaces(BTreeSet::new())
    }
}

impl Allowed {
    /// Whether the namespace is one of them.
    fn contains(&self, namespace: &str) -> bool {
        match self {
            Allowed::All => true,
            Allowed::Namespaces(all) => all.contains(namespace),
        }
    }
}

// === impl PageScope ===

impl PageScope {
    /// Returns the scope of a viewer that may see everything.
    pub(super) fn everything() -> PageScope {
        PageScope {
            pods: Allowed::All,
            networks: Allowed::All,
            events: Allowed::All,
            policies: Allowed::All,
            nodes: true,
            pools: true,
            blocks: true,
        }
    }

    /// Whether a row of this table and namespace is visible.
    pub(super) fn contains(&self, table: Table, namespace: &str) -> bool {
        match table {
            Table::Pods => self.pods.contains(namespace),
            Table::Networks => self.networks.contains(namespace),
            Table::Events => self.events.contains(namespace),
            Table::Policies => self.policies.contains(namespace),
            Table::Nodes => self.nodes,
            Table::Pools => self.pools,
            Table::Blocks => self.blocks,
        }
    }
}

// === impl KnownReviews ===

impl KnownReviews {
    /// Remembers the outcome of a review. An empty namespace is the whole cluster.
    pub(super) fn set(&mut self, table: Table, namespace: String, is_allowed: bool, at: Instant) {
        let review = KnownReview { at, is_allowed };
        if namespace.is_empty() {
            self.in_cluster.insert(table, review);
        } else if let Some(place) = NAMESPACED.iter().position(|namespaced| *namespaced == table) {
            let right = (table, namespace);
            self.failed.remove(&right);
            self.in_namespaces.entry(right.1).or_default()[place] = Some(review);
        }
    }

    /// Remembers that a review failed. The earlier outcome stays.
    pub(super) fn fail(&mut self, table: Table, namespace: String) {
        if !namespace.is_empty() {
            self.failed.insert((table, namespace));
        }
    }

    /// Forgets all namespaces except those that are reviewed.
    pub(super) fn retain(&mut self, namespaces: &BTreeSet<String>) {
        self.in_namespaces.retain(|namespace, _| namespaces.contains(namespace));
        self.failed.retain(|(_, namespace)| namespaces.contains(namespace));
    }

    /// Returns the rights in namespaces that are due, beginning with the one that is due for the longest time.
    ///
    /// Those whose last review failed come last, so that such failures do not end a round before the others.
    pub(super) fn due(&self, namespaces: &BTreeSet<String>, now: Instant) -> Vec<(Table, String)> {
        let mut due: Vec<(bool, Instant, (Table, String))> = Vec::new();
        for (place, table) in NAMESPACED.into_iter().enumerate() {
            if self.in_cluster(table, now) != Some(false) {
                continue;
            }
            for namespace in namespaces {
                let known = self.in_namespaces.get(namespace).and_then(|reviews| reviews[place]);
                let since = known.map_or(now, KnownReview::due);
                if since <= now {
                    let right = (table, namespace.clone());
                    due.push((self.failed.contains(&right), since, right));
                }
            }
        }
        due.sort_by_key(|(has_failed, since, _)| (*has_failed, *since));
        due.into_iter().map(|(.., right)| right).collect()
    }

    /// Returns the rows that the user may see; `None` if no right in the whole cluster is known.
    pub(super) fn scope(&self, now: Instant) -> Option<PageScope> {
        if Table::ALL.into_iter().all(|table| self.in_cluster(table, now).is_none()) {
            return None;
        }
        let [networks, policies, events, pods] =
            std::array::from_fn(|place| self.allowed(place, NAMESPACED[place], now));
        let may = |table: Table| self.in_cluster(table, now) == Some(true);
        Some(PageScope {
            pods,
            networks,
            events,
            policies,
            nodes: may(Table::Nodes),
            pools: may(Table::Pools),
            blocks: may(Table::Blocks),
        })
    }

    /// Returns where the user may list the objects of the table at this place of [`NAMESPACED`].
    fn allowed(&self, place: usize, table: Table, now: Instant) -> Allowed {
        match self.in_cluster(table, now) {
            Some(true) => Allowed::All,
            Some(false) => {
                let is_allowed = |reviews: &[Option<KnownReview>]| {
                    reviews[place].and_then(|review| review.outcome(now)) == Some(true)
                };
                let all = self.in_namespaces.iter().filter(|(_, reviews)| is_allowed(&reviews[..]));
                Allowed::Namespaces(all.map(|(namespace, _)| namespace.clone()).collect())
            }
            None => Allowed::default(),
        }
    }

    /// Returns whether the user has a right in the whole cluster, if that is known.
    fn in_cluster(&self, table: Table, now: Instant) -> Option<bool> {
        self.in_cluster.get(&table).and_then(|review| review.outcome(now))
    }
}

// === impl KnownReview ===

impl KnownReview {
    /// Returns the outcome if it is not too old.
    fn outcome(self, now: Instant) -> Option<bool> {
        (now.duration_since(self.at) < STALE_MAX).then_some(self.is_allowed)
    }

    /// Returns the time at which another review is due.
    fn due(self) -> Instant {
        self.at + if self.is_allowed { FRESH } else { DENIED_MAX }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Namespaces `blue`, where the user may list pods and nothing else, and `red`.
    fn reviewed(at: Instant) -> (KnownReviews, BTreeSet<String>) {
        let mut known = KnownReviews::default();
        for table in Table::ALL {
            known.set(table, String::new(), false, at);
        }
        let namespaces = BTreeSet::from(["blue", "red"].map(str::to_owned));
        for (table, namespace) in known.due(&namespaces, at) {
            let is_allowed = (table, namespace.as_str()) == (Table::Pods, "blue");
            known.set(table, namespace, is_allowed, at);
        }
        (known, namespaces)
    }

    /// The rights in the whole cluster are reviewed again, without another outcome.
    fn review_cluster(known: &mut KnownReviews, at: Instant) {
        for table in Table::ALL {
            known.set(table, String::new(), false, at);
        }
    }

    fn pods_of(namespaces: &[&str]) -> PageScope {
        let all = namespaces.iter().map(|name| (*name).to_owned()).collect();
        PageScope { pods: Allowed::Namespaces(all), ..PageScope::default() }
    }

    #[test]
    fn page_rights_review_allowed_and_new_namespaces_only() {
        let start = Instant::now();
        let (mut known, mut namespaces) = reviewed(start);
        assert_eq!(known.scope(start), Some(pods_of(&["blue"])));
        assert!(known.due(&namespaces, start).is_empty());
        let later = start + FRESH + Duration::from_secs(1);
        review_cluster(&mut known, later);
        assert_eq!(known.due(&namespaces, later), [(Table::Pods, "blue".to_owned())]);
        namespaces.insert("new".to_owned());
        let due = known.due(&namespaces, later);
        assert_eq!(due[0], (Table::Pods, "blue".to_owned()));
        assert_eq!(due[1..], NAMESPACED.map(|table| (table, "new".to_owned())));
        // A lost right ends with its review.
        known.set(Table::Pods, "blue".to_owned(), false, later);
        assert_eq!(known.scope(later), Some(PageScope::default()));
    }

    /// The bounds that docs/page.md and docs/security.md give. A round and the review of a token take up to 13 s more.
    #[test]
    fn page_rights_are_due_within_the_documented_time() {
        let at = Instant::now();
        let due = |is_allowed| KnownReview { at, is_allowed }.due() - at;
        assert_eq!(due(true), Duration::from_secs(10));
        assert!(due(false) + FRESH + Duration::from_secs(13) <= Duration::from_secs(300));
    }

    #[test]
    fn page_rights_review_a_denied_namespace_after_minutes() {
        let start = Instant::now();
        let (mut known, namespaces) = reviewed(start);
        let later = start + DENIED_MAX;
        review_cluster(&mut known, later);
        // The allowed one is due for a longer time than the seven denied ones.
        let due = known.due(&namespaces, later);
        assert_eq!((due.len(), &due[0]), (8, &(Table::Pods, "blue".to_owned())));
    }

    #[test]
    fn page_rights_failed_review_affects_its_namespace_only() {
        let start = Instant::now();
        let (mut known, _) = reviewed(start);
        known.set(Table::Pods, "green".to_owned(), true, start);
        let later = start + STALE_MAX;
        review_cluster(&mut known, later);
        // The reviews of blue fail all the time, those of green do not.
        known.set(Table::Pods, "green".to_owned(), true, later);
        let before = later - Duration::from_secs(1);
        assert_eq!(known.scope(before), Some(pods_of(&["blue", "green"])));
        assert_eq!(known.scope(later), Some(pods_of(&["green"])));
    }

    #[test]
    fn page_rights_failed_reviews_come_after_others() {
        let start = Instant::now();
        let (mut known, namespaces) = reviewed(start);
        let later = start + DENIED_MAX;
        review_cluster(&mut known, later);
        let blue = (Table::Pods, "blue".to_owned());
        known.fail(blue.0, blue.1.clone());
        assert_eq!(known.scope(later), Some(pods_of(&["blue"])));
        assert_eq!(known.due(&namespaces, later).last(), Some(&blue));
        known.set(blue.0, blue.1.clone(), true, start);
        assert_eq!(known.due(&namespaces, later).first(), Some(&blue));
    }

    #[test]
    fn page_rights_are_unknown_without_an_answer_for_minutes() {
        let start = Instant::now();
        let (known, namespaces) = reviewed(start);
        assert_eq!(KnownReviews::default().scope(start), None);
        assert_eq!(known.scope(start + STALE_MAX), None);
        assert!(known.due(&namespaces, start + STALE_MAX).is_empty());
    }

    #[test]
    fn page_rights_in_the_cluster_need_no_namespace() {
        let start = Instant::now();
        let (mut known, namespaces) = reviewed(start);
        let later = start + FRESH;
        known.set(Table::Pods, String::new(), true, later);
        assert_eq!(known.scope(later).map(|scope| scope.pods), Some(Allowed::All));
        assert!(known.due(&namespaces, later).is_empty());
        known.retain(&BTreeSet::new());
        known.set(Table::Pods, String::new(), false, later);
        assert_eq!(known.scope(later), Some(PageScope::default()));
    }
}
