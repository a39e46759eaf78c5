//! Registry of one pool's blocks in the Kubernetes API.
//!
//! Reads go to the API server's database, not to the cache. A request without a response may have been executed. Lists
//! are read in pages.

use std::collections::BTreeSet;
use std::future::{Future, pending};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipam::pool_layout::{address_count, nth};
use ipam::registry::{PoolState, end_each};
use ipam::{AllocationError, Holder, IpBlock, PoolLayout, Registry, RegistryError, TransferRequest};
use ipnet::IpNet;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::wait::await_condition;
use kube::{Api, Client};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::cluster_history::{ClusterHistory, RESTORED};
use crate::ip_objects::{
    BlockObject, CLAIM_LABEL, LayoutState, NODE_LABEL, POOL_LABEL, PoolObject, TRANSFER_LABEL, WITHIN_LABEL,
    block_name, label, name_of, record_of, written_request,
};
use crate::pool_lookup::Pool;
use kube_support::api_error;
use kube_support::lookup::ask;
use kube_support::resources::PodObject;

/// Timeout of a request.
const REQUEST_MAX: Duration = Duration::from_secs(5);
/// Number of objects in a page.
const PAGE: u32 = 1000;
/// Number of checks whether another node has transferred an address: 3.5 s in all, because the client's address store is
/// locked meanwhile.
pub const TRANSFER_CHECKS: u32 = 6;
/// Longest wait for a change before the first check.
const CHECK_MIN: Duration = Duration::from_millis(100);
/// Longest wait for a change before any check.
const CHECK_MAX: Duration = Duration::from_secs(1);

/// Registry of one pool's blocks.
#[derive(Clone)]
pub struct ApiRegistry {
    client: Client,
    blocks: Api<BlockObject>,
    pool: String,
    uid: Option<String>,
    /// Layout of the pool.
    pub grid: PoolLayout,
    /// Parts that the pool excludes, as last read.
    exclude: Vec<IpNet>,
    /// Whether single addresses may lack the block label.
    has_unlabelled_addresses: bool,
    /// Recorded sections of the pool that may contain single addresses, as last read.
    single_address_sections: Option<BTreeSet<u16>>,
    /// Whether the pool does not exist: existing objects may be leased again or returned, but nothing new is leased.
    is_orphaned: bool,
    /// Versions of the responses, if new leases depend on them.
    history: Option<Arc<ClusterHistory>>,
    /// Namespace and name of the pod whose claim is allocated.
    pod: (String, String),
    requests: prometheus_client::metrics::counter::Counter,
}

impl ApiRegistry {
    /// Returns the pool's registry for the claim of pod `namespace/name`. Requests are counted.
    pub fn new(
        client: Client,
        pool: &Pool,
        pod: (String, String),
        requests: prometheus_client::metrics::counter::Counter,
    ) -> ApiRegistry {
        let blocks = Api::all(client.clone());
        let Pool { name, uid, grid, exclude, has_unlabelled_addresses, single_address_sections } =
            pool.clone();
        ApiRegistry {
            client,
            blocks,
            pool: name,
            uid,
            grid,
            exclude,
            has_unlabelled_addresses,
            single_address_sections,
            is_orphaned: false,
            history: None,
            pod,
            requests,
        }
    }

    /// Returns the registry of a pool with a fixed layout, without a claim; `None` if the spec is invalid.
    pub fn of(
        client: &Client,
        pool: &PoolObject,
        requests: &prometheus_client::metrics::counter::Counter,
    ) -> Option<ApiRegistry> {
        let (name, uid) = (pool.metadata.name.clone()?, pool.metadata.uid.clone());
        let (grid, single_address_sections) = (pool.grid().ok().flatten()?, pool.recorded_sections());
        let exclude = pool.exclude().unwrap_or_default();
        let has_unlabelled_addresses = pool.has_unlabelled_addresses();
        let pool = Pool { name, uid, grid, exclude, has_unlabelled_addresses, single_address_sections };
        let no_pod = (String::new(), String::new());
        Some(ApiRegistry::new(client.clone(), &pool, no_pod, requests.clone()))
    }

    /// Returns a registry for the objects that a deleted pool left, as far as an object with this network needs it.
    pub fn of_missing_pool(
        client: &Client,
        name: &str,
        net: IpNet,
        requests: &prometheus_client::metrics::counter::Counter,
    ) -> ApiRegistry {
        let grid = PoolLayout::new(net, net.max_prefix_len() - net.prefix_len());
        let pool = Pool {
            name: name.to_owned(),
            uid: None,
            grid,
            exclude: Vec::new(),
            has_unlabelled_addresses: true,
            single_address_sections: None,
        };
        let no_pod = (String::new(), String::new());
        ApiRegistry { is_orphaned: true, ..ApiRegistry::new(client.clone(), &pool, no_pod, requests.clone()) }
    }

    /// Returns the same registry; a lease fails if the response shows that the cluster was restored to an earlier state.
    #[must_use]
    pub fn with_history(self, history: &Arc<ClusterHistory>) -> ApiRegistry {
        ApiRegistry { history: Some(Arc::clone(history)), ..self }
    }

    fn newest(&self) -> u64 {
        self.history.as_ref().map_or(0, |history| history.newest())
    }

    /// Compares the version of a response with the newest one before the request.
    fn note(&self, before: u64, version: Option<&str>) -> Result<(), RegistryError> {
        match self.history.as_ref().is_some_and(|history| history.note(before, version)) {
            true => Err(RegistryError::Unknown(RESTORED.to_owned())),
            false => Ok(()),
        }
    }

    /// Sends a request about a block or a single address, and counts it.
    async fn request<T>(
        &self,
        work: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, RegistryError> {
        self.requests.inc();
        self.asked(work).await
    }

    async fn asked<T>(&self, work: impl Future<Output = Result<T, kube::Error>>) -> Result<T, RegistryError> {
        match timeout(REQUEST_MAX, work).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(kube::Error::Api(status))) if status.code == 409 => Err(RegistryError::Conflict),
            Ok(Err(error)) => Err(RegistryError::Unknown(api_error::describe(&error))),
            Err(_) => Err(RegistryError::Unknown(format!(
                "the API server did not answer within {} s",
                REQUEST_MAX.as_secs()
            ))),
        }
    }

    /// Returns every object with these labels. An invalid object is an error, because the addresses may be in use.
    pub async fn list_labelled(&self, labels: &[(&str, String)]) -> Result<Vec<IpBlock>, RegistryError> {
        let mut selector = format!("{POOL_LABEL}={}", label(&self.pool));
        for (key, value) in labels {
            selector.push_str(&format!(",{key}={value}"));
        }
        let mut found = Vec::new();
        let mut parameters = ListParams::default().labels(&selector).limit(PAGE);
        let before = self.newest();
        loop {
            let page = self.request(self.blocks.list(&parameters)).await?;
            // The next pages have the version of the first one.
            if found.is_empty() {
                self.note(before, page.metadata.resource_version.as_deref())?;
            }
            for object in &page.items {
                found.push(self.read_object(object)?);
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => parameters = parameters.continue_token(&token),
                None => return Ok(found),
            }
        }
    }

    /// Creates an object with these reserved addresses.
    async fn create_with(
        &self,
        net: IpNet,
        holder: &Holder,
        reserved: Vec<IpAddr>,
    ) -> Result<IpBlock, RegistryError> {
        let (uid, version) = (String::new(), String::new());
        let object = IpBlock { net, uid, version, holder: holder.clone(), reserved };
        let object = BlockObject::of(&self.pool, &self.grid, &object);
        let before = self.newest();
        let made = self.request(self.blocks.create(&PostParams::default(), &object)).await?;
        self.note(before, made.metadata.resource_version.as_deref())?;
        self.read_object(&made)
    }

    /// Replaces an object.
    async fn put(&self, net: IpNet, object: &BlockObject) -> Result<IpBlock, RegistryError> {
        let name = block_name(&self.pool, net);
        let replaced = async {
            match self.blocks.replace(&name, &PostParams::default(), object).await {
                // A deleted object has changed, too.
                Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
                other => other.map(Some),
            }
        };
        self.read_object(&self.request(replaced).await?.ok_or(RegistryError::Conflict)?)
    }

    fn read_object(&self, object: &BlockObject) -> Result<IpBlock, RegistryError> {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let fault = || {
            RegistryError::Unknown(format!(
                "ipblock {name}: spec was edited and is invalid: restore it, or run `weft ipam free` when no pod has its addresses"
            ))
        };
        object.object().filter(|_| object.spec.pool == self.pool).ok_or_else(fault)
    }
}

impl Registry for ApiRegistry {
    async fn create(&self, net: IpNet, holder: &Holder) -> Result<IpBlock, RegistryError> {
        self.create_with(net, holder, Vec::new()).await
    }

    async fn create_block(&self, net: IpNet, holder: &Holder) -> Result<IpBlock, RegistryError> {
        let excluded: Vec<IpNet> = excluded_in(&self.exclude, net).into_iter().collect();
        let reserved = excluded_addresses(net, &excluded);
        self.create_with(net, holder, reserved.collect()).await
    }

    async fn read(&self, net: IpNet) -> Result<Option<IpBlock>, RegistryError> {
        let found = self.request(self.blocks.get_opt(&block_name(&self.pool, net))).await?;
        found.map(|object| self.read_object(&object)).transpose()
    }

    async fn single_addresses_in(&self, block: IpNet) -> Result<Vec<IpBlock>, RegistryError> {
        if !self.has_unlabelled_addresses {
            return self.list_labelled(&[(WITHIN_LABEL, name_of(block))]).await;
        }
        let mut all = self.list_labelled(&[]).await?;
        all.retain(|object| object.is_single_address() && block.contains(&object.net));
        Ok(all)
    }

    async fn list(&self) -> Result<Vec<IpBlock>, RegistryError> {
        self.list_labelled(&[]).await
    }

    async fn list_of_store(&self, node: &str, store: &str) -> Result<Vec<IpBlock>, RegistryError> {
        let mut found = self.list_labelled(&[(NODE_LABEL, label(node))]).await?;
        found.retain(|object| object.holder.node == node && object.holder.store == store);
        Ok(found)
    }

    async fn list_of_claim(&self, claim: &str) -> Result<Vec<IpBlock>, RegistryError> {
        let mut found = self.list_labelled(&[(CLAIM_LABEL, label(claim))]).await?;
        found.retain(|object| object.holder.claim == claim);
        Ok(found)
    }

    async fn replace(&self, object: &IpBlock) -> Result<IpBlock, RegistryError> {
        let before = self.newest();
        let replaced = self.put(object.net, &BlockObject::of(&self.pool, &self.grid, object)).await?;
        // An object that was written without a change keeps its version.
        if replaced.version != object.version {
            self.note(before, Some(&replaced.version))?;
        }
        Ok(replaced)
    }

    async fn replace_requests(&self, object: &IpBlock) -> Result<IpBlock, RegistryError> {
        // A patch leaves the rest as it is, with the liveness probe in the status.
        let requests: Vec<_> = object.holder.transfer_requests.iter().map(written_request).collect();
        let metadata = json!({ "uid": object.uid, "resourceVersion": object.version });
        let patch = Patch::Merge(json!({ "metadata": metadata, "spec": { "transferRequests": requests } }));
        let name = block_name(&self.pool, object.net);
        let patched = async {
            match self.blocks.patch(&name, &PatchParams::default(), &patch).await {
                // A deleted object has changed, too.
                Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
                other => other.map(Some),
            }
        };
        self.read_object(&self.request(patched).await?.ok_or(RegistryError::Conflict)?)
    }

    async fn delete(&self, object: &IpBlock) -> Result<(), RegistryError> {
        let unused;
        let object = match object.is_in_use() {
            true => {
                unused = self.put(object.net, &BlockObject::unused(&self.pool, &self.grid, object)).await?;
                &unused
            }
            false => object,
        };
        let preconditions =
            Preconditions { uid: Some(object.uid.clone()), resource_version: Some(object.version.clone()) };
        let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        let name = block_name(&self.pool, object.net);
        let deleted = async {
            match self.blocks.delete(&name, &parameters).await {
                Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
                other => other.map(drop),
            }
        };
        self.request(deleted).await
    }

    async fn pool_state(&self, net: IpNet) -> Result<PoolState, RegistryError> {
        let pools = Api::<PoolObject>::all(self.client.clone());
        let found = self.request(pools.get_opt(&self.pool)).await?;
        if self.is_orphaned {
            let is_missing = found.is_none();
            return Ok(if is_missing { PoolState::SingleAddressesPossible } else { PoolState::Changed });
        }
        let is_it = |pool: &PoolObject| {
            // Until a changed range is fixed, leases of the present layout are valid.
            let is_fixed = matches!(pool.layout_state(), Ok(LayoutState::Fixed | LayoutState::Resized));
            let exclude = pool.exclude().map(|exclude| excluded_in(&exclude, net));
            is_fixed
                && pool.grid() == Ok(Some(self.grid))
                && exclude == Ok(excluded_in(&self.exclude, net))
                && pool.has_unlabelled_addresses() == self.has_unlabelled_addresses
                && pool.metadata.uid == self.uid
        };
        let Some(pool) = found.filter(is_it) else { return Ok(PoolState::Changed) };
        Ok(match (pool.recorded_sections(), self.grid.section_of(net.addr())) {
            (Some(recorded), Some(section)) if !recorded.contains(&section) => PoolState::NoSingleAddresses,
            _ => PoolState::SingleAddressesPossible,
        })
    }

    async fn record_single_address(&self, net: IpNet) -> Result<(), RegistryError> {
        let known = self.single_address_sections.as_ref();
        let Some((recorded, section)) = known.zip(self.grid.section_of(net.addr())) else {
            return Ok(());
        };
        if recorded.contains(&section) {
            return Ok(());
        }
        let pools = Api::<PoolObject>::all(self.client.clone());
        let (parameters, patch) = (PatchParams::default(), json!({ "status": record_of([section], None) }));
        let patched = self.request(pools.patch_status(&self.pool, &parameters, &Patch::Merge(patch))).await?;
        // A new pool of this name has no complete record, so every block is searched for single addresses.
        match patched.metadata.uid == self.uid {
            true => Ok(()),
            false => Err(RegistryError::Unknown(AllocationError::PoolChanged.to_string())),
        }
    }

    async fn is_pod_deleted(&self, owner: &str) -> Result<bool, RegistryError> {
        let (namespace, name) = &self.pod;
        let uid = owner.split('/').next().unwrap_or_default();
        let asked = ask(Api::<PodObject>::namespaced(self.client.clone(), namespace), name).await;
        let pod = asked.map_err(|error| RegistryError::Unknown(error.to_string()))?;
        Ok(!uid.is_empty() && pod.is_none_or(|pod| pod.uid != uid))
    }

    async fn wait_for_transfer(&self, check: u32) {
        sleep(longest_wait(check)).await;
    }

    async fn wait_for_answer(&self, check: u32, nets: Vec<IpNet>, node: &str) {
        let mut watches = JoinSet::new();
        for net in nets {
            let (blocks, name, node) = (self.blocks.clone(), block_name(&self.pool, net), node.to_owned());
            self.requests.inc();
            watches.spawn(async move {
                let is_answered =
                    |block: Option<&BlockObject>| block.is_none_or(|block| block.answers(&node));
                await_condition(blocks, &name, is_answered).await.map(drop)
            });
        }
        let answered = async {
            // A watch that fails is no answer.
            while let Some(ended) = watches.join_next().await {
                if matches!(ended, Ok(Ok(()))) {
                    return;
                }
            }
            pending::<()>().await;
        };
        let _ = timeout(longest_wait(check), answered).await;
    }

    async fn end_requests(&self, requests: Vec<(IpNet, TransferRequest)>) {
        let registry = self.clone();
        tokio::spawn(async move { end_each(&registry, requests).await });
    }
}

/// Returns the longest wait before a check whether another node has transferred an address.
fn longest_wait(check: u32) -> Duration {
    CHECK_MAX.min(CHECK_MIN * 2_u32.saturating_pow(check))
}

/// Returns the excluded parts that have addresses of a network. Another pool may have them.
fn excluded_in(exclude: &[IpNet], net: IpNet) -> BTreeSet<IpNet> {
    exclude.iter().filter(|other| other.contains(&net) || net.contains(*other)).copied().collect()
}

/// Returns the addresses of a block that are excluded.
pub fn excluded_addresses(block: IpNet, exclude: &[IpNet]) -> impl Iterator<Item = IpAddr> {
    let is_excluded = |ip: &IpAddr| exclude.iter().any(|net| net.contains(ip));
    (0..address_count(block)).map(move |offset| nth(block, offset)).filter(is_excluded)
}

/// Returns the label selector of a node's blocks, for a watch.
pub fn of_node(node: &str) -> String {
    format!("{NODE_LABEL}={}", label(node))
}

/// Returns the label selector of the addresses that a node is requested to transfer, for a watch.
pub fn asked_of(node: &str) -> String {
    format!("{TRANSFER_LABEL}={}", label(node))
}
