//! Rights of a viewer: which rows a client of the page gets.
//!
//! - With a token, the API server tells the user (TokenReview), and for each resource whether the user may list it in the
//!   whole cluster or in single namespaces (SubjectAccessReview). No review is a decision of weft.
//! - Each client may cause only a share of the reviews for unknown tokens ([`review_shares`](super::review_shares)).
//! - Users are known for [`FRESH`]. While the API server cannot answer, known ones are used for [`STALE_MAX`].
//! - `rights` decides which rights are reviewed, and when. The number of reviews at a time and of failures is bounded.
//! - On a loopback address there is no token. The host name in a request must then be that of this host, so that a web
//!   site cannot read the page under another name (DNS rebinding).
//!
//! Source: Kubernetes API reference, TokenReview v1, SubjectAccessReview v1.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use kube_support::api_error;
use kube_support::lookup::ASK_MAX;
use thiserror::Error;
use tokio::sync::{Mutex as AsyncMutex, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};
use tracing::warn;

use super::review_shares::ReviewShares;
use super::rights::{FRESH, KnownReviews, NAMESPACES_MAX, PageScope, STALE_MAX};
use super::rows::{self, Table};

/// Maximum length of a token, in bytes.
const TOKEN_MAX: usize = 8192;
/// Maximum number of known tokens, of rejected tokens, and of users.
const KNOWN_MAX: usize = 512;
/// Maximum number of concurrent reviews, for all viewers and for one viewer.
const REVIEWS_MAX: usize = 16;
const REVIEWS_OF_VIEWER_MAX: usize = 8;
/// Maximum duration of one review round. The next round continues with the rights that have been due longest.
const ROUND_MAX: Duration = Duration::from_secs(8);
/// Number of failed reviews that ends a round: the API server throttles requests or is not available.
const FAILURES_MAX: usize = 20;
/// Key of a user's extra information that differs between two tokens of one user.
const TOKEN_ID: &str = "authentication.kubernetes.io/credential-id";

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
    #[error("too many unknown tokens from this address: try again in some seconds")]
    TooMany,
    #[error("the API server cannot review the token or the rights of its user: {0}")]
    Unavailable(String),
}

/// Known rights of a user. One client at a time reviews them.
#[derive(Debug, Default)]
struct UserRights(AsyncMutex<KnownRights>);

#[derive(Debug, Default)]
struct KnownRights {
    reviews: KnownReviews,
    scope: Option<KnownScope>,
    /// Whether a review of the last round failed.
    is_failing: bool,
}

/// Rows that a viewer may see, and the time of the reviews.
#[derive(Clone, Debug)]
pub(super) struct KnownScope {
    pub(super) at: Instant,
    pub(super) scope: PageScope,
}

/// Consecutive reviews of a user's rights.
struct ReviewRound {
    started: Instant,
    failed: usize,
    /// Reason of the last failure.
    why: Option<Denied>,
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
    /// Tokens that are reviewed now. Requests with the same token wait for one review.
    pending: Mutex<HashMap<String, Arc<AsyncMutex<()>>>>,
    reviews: Semaphore,
    shares: ReviewShares,
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
            pending: Mutex::default(),
            reviews: Semaphore::new(REVIEWS_MAX),
            shares: ReviewShares::new(),
        }
    }

    /// Returns the protection of the page.
    pub(super) fn protection(&self) -> Protection {
        self.protection
    }

    /// Returns the viewer of a request with this header `Authorization`. `client` is the address that sent it; none for an open
    /// stream, whose token was accepted before.
    ///
    /// # Errors
    /// There is no token, it is invalid, the client sent too many unknown ones, or the API server does not answer.
    pub(super) async fn viewer(
        &self,
        authorization: Option<&str>,
        client: Option<IpAddr>,
    ) -> Result<Viewer, Denied> {
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
        let pending = self.pending(token);
        let _turn = pending.lock().await;
        // Another request with the token may have been reviewed in the meantime.
        if let Some(known) = self.known(token, FRESH) {
            return known;
        }
        let is_viewer = lock(&self.tokens).contains_key(token);
        if client.is_some_and(|client| !is_viewer && !self.shares.take(client)) {
            return Err(Denied::TooMany);
        }
        let _slot = self.reviews.acquire().await;
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

    /// Returns the lock that is held while a token is reviewed.
    fn pending(&self, token: &str) -> Arc<AsyncMutex<()>> {
        let mut pending = lock(&self.pending);
        pending.retain(|_, turn| Arc::strong_count(turn) > 1);
        Arc::clone(pending.entry(token.to_owned()).or_default())
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
    ) -> Result<KnownScope, Denied> {
        let started = Instant::now();
        let Viewer::User(user) = viewer else {
            return Ok(KnownScope { at: started, scope: PageScope::everything() });
        };
        let rights = self.rights_of(user);
        // One round at a time for each user: the clients that wait use its result.
        let mut known = rights.0.lock().await;
        if let Some(scope) = known.scope.as_ref().filter(|scope| scope.at.elapsed() < FRESH) {
            return Ok(scope.clone());
        }
        let mut round = ReviewRound { started: Instant::now(), failed: 0, why: None };
        let namespaces = namespaces().into_iter().take(NAMESPACES_MAX).collect();
        self.review_rights(user, &namespaces, &mut known.reviews, &mut round).await;
        if let Some(error) = round.why.as_ref().filter(|_| !known.is_failing) {
            let (user, failed) = (rows::name(&user.name), round.failed);
            warn!(%user, failed, %error, "failed to review rights of a viewer of the page");
        }
        known.is_failing = round.why.is_some();
        match known.reviews.scope(round.started) {
            Some(scope) => {
                let scope = KnownScope { at: round.started, scope };
                known.scope = Some(scope.clone());
                Ok(scope)
            }
            None => Err(round.why.unwrap_or_else(|| Denied::Unavailable("no answer".to_owned()))),
        }
    }

    /// Returns the known rights of a user. Those that no client used for some minutes are forgotten.
    fn rights_of(&self, user: &Arc<PageUser>) -> Arc<UserRights> {
        let mut users = lock(&self.users);
        if let Some(rights) = users.get(user) {
            return Arc::clone(rights);
        }
        let is_full = users.len() >= KNOWN_MAX;
        // Those that are reviewed now stay.
        users.retain(|_, rights| Arc::strong_count(rights) > 1 || (!is_full && rights.is_recent()));
        Arc::clone(users.entry(Arc::clone(user)).or_default())
    }

    /// Reviews the rights of a user that are due, those in the whole cluster first.
    async fn review_rights(
        &self,
        user: &PageUser,
        namespaces: &BTreeSet<String>,
        known: &mut KnownReviews,
        round: &mut ReviewRound,
    ) {
        let in_cluster = Table::ALL.map(|table| (table, String::new()));
        self.review_all(user, in_cluster.into(), known, round).await;
        // Without one answer, further reviews would have none either.
        if round.failed < Table::ALL.len() {
            known.retain(namespaces);
            self.review_all(user, known.due(namespaces, round.started), known, round).await;
        }
    }

    /// Reviews these rights, each of a table and a namespace. A failed review leaves the earlier outcome as it is.
    async fn review_all(
        &self,
        user: &PageUser,
        due: Vec<(Table, String)>,
        known: &mut KnownReviews,
        round: &mut ReviewRound,
    ) {
        let reviews = stream::iter(due).map(|(table, namespace)| async move {
            let outcome = self.may_list(user, table, &namespace).await;
            (table, namespace, outcome)
        });
        let mut reviews = pin!(reviews.buffer_unordered(REVIEWS_OF_VIEWER_MAX));
        while round.failed < FAILURES_MAX {
            match timeout_at(round.started + ROUND_MAX, reviews.next()).await {
                Ok(Some((table, namespace, Ok(is_allowed)))) => {
                    known.set(table, namespace, is_allowed, round.started);
                }
                Ok(Some((table, namespace, Err(why)))) => {
                    known.fail(table, namespace);
                    round.fail(why);
                }
                Ok(None) => return,
                Err(_) => {
                    let why = format!("the reviews take more than {} s", ROUND_MAX.as_secs());
                    return round.fail(Denied::Unavailable(why));
                }
            }
        }
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

// === impl UserRights ===

impl UserRights {
    /// Whether a client has used them in the last minutes. They are not in use now.
    fn is_recent(&self) -> bool {
        let known = self.0.try_lock();
        known.is_ok_and(|known| known.scope.as_ref().is_some_and(|scope| scope.at.elapsed() < STALE_MAX))
    }
}

// === impl ReviewRound ===

impl ReviewRound {
    fn fail(&mut self, why: Denied) {
        self.failed += 1;
        self.why = Some(why);
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
        let mut extra = extra.unwrap_or_default();
        extra.remove(TOKEN_ID);
        PageUser {
            name: username.unwrap_or_default(),
            uid: uid.unwrap_or_default(),
            groups: groups.unwrap_or_default(),
            extra: extra.into_iter().collect(),
        }
    }
}

/// Returns API group and plural for the objects in a table.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_user_is_the_same_with_each_of_its_tokens() {
        let user = |token: &str, node: &str| {
            let extra = [(TOKEN_ID, token), ("authentication.kubernetes.io/node-name", node)];
            PageUser::from(UserInfo {
                username: Some("viewer".to_owned()),
                extra: Some(extra.map(|(key, value)| (key.to_owned(), vec![value.to_owned()])).into()),
                ..UserInfo::default()
            })
        };
        assert_eq!(user("JTI=1", "worker-01"), user("JTI=2", "worker-01"));
        assert_ne!(user("JTI=1", "worker-01"), user("JTI=1", "worker-02"));
    }
}
