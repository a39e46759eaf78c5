//! Rights of a viewer: which rows a client of the page gets.
//!
//! - With a token, the API server tells the user (TokenReview), and for each resource whether the user may list it in the
//!   whole cluster or in single namespaces (SubjectAccessReview). No review is a decision of weft.
//! - Users are known for [`FRESH`], as are rights. While the API server cannot answer, known ones are used for [`STALE_MAX`].
//! - On a loopback address there is no token. The name of the host in a request must then be that of this host, so that a
//!   web site cannot read the page under a name of its own (DNS rebinding).
//!
//! Source: Kubernetes API reference, TokenReview v1, SubjectAccessReview v1.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::stream::{self, StreamExt, TryStreamExt};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use kube_support::api_error;
use kube_support::lookup::ASK_MAX;
use thiserror::Error;
use tokio::sync::{Mutex as AsyncMutex, Semaphore};
use tokio::time::timeout;

use super::rows::Table;

/// Time for which a user and its rights are used without another review.
pub(super) const FRESH: Duration = Duration::from_secs(20);
/// Time for which they are used while the API server does not answer.
const STALE_MAX: Duration = Duration::from_secs(300);
/// Maximum length of a token, in bytes.
const TOKEN_MAX: usize = 8192;
/// Maximum number of known tokens, of rejected tokens, and of users.
const KNOWN_MAX: usize = 512;
/// Maximum number of namespaces for which the rights of one user are reviewed.
const NAMESPACES_MAX: usize = 2000;
/// Maximum number of reviews at a time, of all viewers and of one viewer.
const REVIEWS_MAX: usize = 16;
const REVIEWS_OF_VIEWER_MAX: usize = 8;

/// Protection of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protection {
    /// Only clients of this host can connect.
    Loopback,
    /// Each request needs a token.
    Token,
}

/// Client of the page.
#[derive(Clone, Debug)]
pub(super) enum Viewer {
    /// Client of this host.
    Local,
    /// Client with a token.
    User(Arc<PageUser>),
}

/// User as the API server describes it.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct PageUser {
    pub(super) name: String,
    uid: String,
    groups: Vec<String>,
    extra: Vec<(String, Vec<String>)>,
}

/// Reason why a client gets nothing.
#[derive(Clone, Debug, Error)]
pub(super) enum Denied {
    #[error("the page needs a token: send the header Authorization: Bearer TOKEN")]
    NoToken,
    #[error("the API server does not accept the token")]
    InvalidToken,
    #[error("the API server cannot review the token: {0}")]
    Unavailable(String),
}

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

/// Known rights of a user.
#[derive(Debug, Default)]
struct UserRights(AsyncMutex<Option<KnownScope>>);

#[derive(Clone, Debug)]
struct KnownScope {
    at: Instant,
    scope: PageScope,
}

/// Known outcome of a TokenReview.
#[derive(Clone, Debug)]
struct KnownToken {
    at: Instant,
    user: Option<Arc<PageUser>>,
}

/// Reviewer of viewers.
pub(super) struct PageAccess {
    client: Client,
    protection: Protection,
    tokens: Mutex<HashMap<String, KnownToken>>,
    rejected: Mutex<HashMap<String, KnownToken>>,
    users: Mutex<HashMap<Arc<PageUser>, Arc<UserRights>>>,
    reviews: Semaphore,
}

// === impl Viewer ===

impl Viewer {
    /// Returns the name of the user; `None` for a client of this host.
    pub(super) fn user(&self) -> Option<&str> {
        match self {
            Viewer::Local => None,
            Viewer::User(user) => Some(&user.name),
        }
    }
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

// === impl PageAccess ===

impl PageAccess {
    /// Returns a reviewer that asks with this client.
    pub(super) fn new(client: Client, protection: Protection) -> PageAccess {
        PageAccess {
            client,
            protection,
            tokens: Mutex::default(),
            rejected: Mutex::default(),
            users: Mutex::default(),
            reviews: Semaphore::new(REVIEWS_MAX),
        }
    }

    /// Returns the protection of the page.
    pub(super) fn protection(&self) -> Protection {
        self.protection
    }

    /// Returns the viewer of a request with this header `Authorization`.
    ///
    /// # Errors
    /// There is no token, it is invalid, or the API server does not answer.
    pub(super) async fn viewer(&self, authorization: Option<&str>) -> Result<Viewer, Denied> {
        if self.protection == Protection::Loopback {
            return Ok(Viewer::Local);
        }
        let (scheme, token) = authorization.and_then(|text| text.split_once(' ')).ok_or(Denied::NoToken)?;
        let token = token.trim();
        if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() {
            return Err(Denied::NoToken);
        }
        if token.len() > TOKEN_MAX {
            return Err(Denied::InvalidToken);
        }
        if let Some(known) = self.known(token, FRESH) {
            return known;
        }
        let _slot = self.reviews.acquire().await;
        // Another request with the token may have been reviewed in the meantime.
        if let Some(known) = self.known(token, FRESH) {
            return known;
        }
        match self.review_token(token).await {
            Ok(user) => {
                let known = KnownToken { at: Instant::now(), user: user.map(Arc::new) };
                let viewer = known.viewer();
                let (now, before) = match viewer {
                    Ok(_) => (&self.tokens, &self.rejected),
                    Err(_) => (&self.rejected, &self.tokens),
                };
                lock(before).remove(token);
                insert_bounded(&mut lock(now), token.to_owned(), known, |known| known.at);
                viewer
            }
            Err(why) => self.known(token, STALE_MAX).unwrap_or(Err(why)),
        }
    }

    /// Returns the outcome of an earlier review.
    fn known(&self, token: &str, age: Duration) -> Option<Result<Viewer, Denied>> {
        let find = |map: &Mutex<HashMap<String, KnownToken>>| {
            lock(map).get(token).filter(|known| known.at.elapsed() < age).map(KnownToken::viewer)
        };
        find(&self.tokens).or_else(|| find(&self.rejected))
    }

    async fn review_token(&self, token: &str) -> Result<Option<PageUser>, Denied> {
        let spec = TokenReviewSpec { token: token.to_owned(), ..TokenReviewSpec::default() };
        let review = TokenReview { spec, ..TokenReview::default() };
        let api = Api::<TokenReview>::all(self.client.clone());
        let status = answer(api.create(&PostParams::default(), &review)).await?.status;
        let status = status.unwrap_or_default();
        let is_valid = status.authenticated == Some(true);
        Ok(status.user.filter(|_| is_valid).map(PageUser::from))
    }

    /// Returns the rows that a viewer may see. `namespaces` are those with a row.
    ///
    /// # Errors
    /// The API server does not answer, and has not for some minutes.
    pub(super) async fn scope(
        &self,
        viewer: &Viewer,
        namespaces: impl FnOnce() -> BTreeSet<String>,
    ) -> Result<PageScope, Denied> {
        let Viewer::User(user) = viewer else { return Ok(PageScope::everything()) };
        let rights = {
            let mut users = lock(&self.users);
            match users.get(user) {
                Some(rights) => Arc::clone(rights),
                None => {
                    if users.len() >= KNOWN_MAX {
                        // Those that are reviewed now stay.
                        users.retain(|_, rights| Arc::strong_count(rights) > 1);
                    }
                    Arc::clone(users.entry(Arc::clone(user)).or_default())
                }
            }
        };
        // One review at a time for each user: the clients that wait use its result.
        let mut known = rights.0.lock().await;
        if let Some(known) = known.as_ref().filter(|known| known.at.elapsed() < FRESH) {
            return Ok(known.scope.clone());
        }
        match self.review_scope(user, &namespaces()).await {
            Ok(scope) => {
                *known = Some(KnownScope { at: Instant::now(), scope: scope.clone() });
                Ok(scope)
            }
            Err(why) => match known.as_ref().filter(|known| known.at.elapsed() < STALE_MAX) {
                Some(known) => Ok(known.scope.clone()),
                None => Err(why),
            },
        }
    }

    async fn review_scope(
        &self,
        user: &PageUser,
        namespaces: &BTreeSet<String>,
    ) -> Result<PageScope, Denied> {
        let allowed = |table: Table| async move {
            if self.may_list(user, table, "").await? {
                return Ok(Allowed::All);
            }
            let names: Vec<String> = namespaces.iter().take(NAMESPACES_MAX).cloned().collect();
            let reviews = stream::iter(names).map(|namespace| async move {
                let may = self.may_list(user, table, &namespace).await?;
                Ok::<_, Denied>(may.then_some(namespace))
            });
            let all: Vec<Option<String>> =
                reviews.buffer_unordered(REVIEWS_OF_VIEWER_MAX).try_collect().await?;
            Ok(Allowed::Namespaces(all.into_iter().flatten().collect()))
        };
        Ok(PageScope {
            pods: allowed(Table::Pods).await?,
            networks: allowed(Table::Networks).await?,
            events: allowed(Table::Events).await?,
            policies: allowed(Table::Policies).await?,
            nodes: self.may_list(user, Table::Nodes, "").await?,
            pools: self.may_list(user, Table::Pools, "").await?,
            blocks: self.may_list(user, Table::Blocks, "").await?,
        })
    }

    /// Whether a user may list the objects of a table, in a namespace or in all of them.
    async fn may_list(&self, user: &PageUser, table: Table, namespace: &str) -> Result<bool, Denied> {
        let (group, resource) = resource_of(table);
        let attributes = ResourceAttributes {
            group: Some(group.to_owned()),
            resource: Some(resource.to_owned()),
            verb: Some("list".to_owned()),
            namespace: (!namespace.is_empty()).then(|| namespace.to_owned()),
            ..ResourceAttributes::default()
        };
        let PageUser { name, uid, groups, extra } = user;
        let spec = SubjectAccessReviewSpec {
            user: Some(name.clone()),
            uid: (!uid.is_empty()).then(|| uid.clone()),
            groups: Some(groups.clone()),
            extra: Some(extra.iter().cloned().collect()),
            resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        };
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let _slot = self.reviews.acquire().await;
        let api = Api::<SubjectAccessReview>::all(self.client.clone());
        let reviewed = answer(api.create(&PostParams::default(), &review)).await?;
        Ok(reviewed.status.is_some_and(|status| status.allowed && status.denied != Some(true)))
    }
}

// === impl KnownToken ===

impl KnownToken {
    fn viewer(&self) -> Result<Viewer, Denied> {
        self.user.clone().map(Viewer::User).ok_or(Denied::InvalidToken)
    }
}

// === impl PageUser ===

impl From<UserInfo> for PageUser {
    fn from(user: UserInfo) -> PageUser {
        let UserInfo { username, uid, groups, extra } = user;
        PageUser {
            name: username.unwrap_or_default(),
            uid: uid.unwrap_or_default(),
            groups: groups.unwrap_or_default(),
            extra: extra.unwrap_or_default().into_iter().collect(),
        }
    }
}

/// Returns API group and plural of the objects of a table.
fn resource_of(table: Table) -> (&'static str, &'static str) {
    match table {
        Table::Pods => ("", "pods"),
        Table::Events => ("", "events"),
        Table::Networks => ("k8s.cni.cncf.io", "network-attachment-definitions"),
        Table::Policies => ("k8s.cni.cncf.io", "multi-networkpolicies"),
        Table::Nodes => ("weft.dev", "weftnodes"),
        Table::Pools => ("weft.dev", "ippools"),
        Table::Blocks => ("weft.dev", "ipblocks"),
    }
}

/// Waits for the result of a review.
async fn answer<T>(review: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Denied> {
    match timeout(ASK_MAX, review).await {
        Ok(Ok(reviewed)) => Ok(reviewed),
        Ok(Err(error)) => Err(Denied::Unavailable(api_error::describe(&error))),
        Err(_) => Err(Denied::Unavailable(format!("no answer within {} s", ASK_MAX.as_secs()))),
    }
}

/// Inserts a value; the oldest one is removed if there are too many.
fn insert_bounded<T>(map: &mut HashMap<String, T>, key: String, value: T, at: impl Fn(&T) -> Instant) {
    if map.len() >= KNOWN_MAX && !map.contains_key(&key) {
        let oldest = map.iter().min_by_key(|(_, value)| at(value)).map(|(key, _)| key.clone());
        oldest.and_then(|oldest| map.remove(&oldest));
    }
    map.insert(key, value);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic leaves no map half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
