//! The Kubernetes API as the registry of one pool's blocks.
//!
//! Rules: what is read is read from the database, not from a cache of the server; a request without an answer may have
//! been done; lists come in pages.

use std::collections::BTreeSet;
use std::future::Future;
use std::time::Duration;

use ipam::registry::PoolState;
use ipam::{AllocationError, Holder, IpBlock, PoolLayout, Registry, RegistryError};
use ipnet::IpNet;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::{sleep, timeout};

use crate::ip_objects::{
    BlockObject, CLAIM_LABEL, Cut, NODE_LABEL, POOL_LABEL, PoolObject, TRANSFER_LABEL, WITHIN_LABEL,
    block_name, label, name_of, record_of,
};
use crate::pool_lookup::Pool;
use kube_support::api_error;
use kube_support::lookup::ask;
use kube_support::resources::PodObject;

/// How long one request may take.
const REQUEST_MAX: Duration = Duration::from_secs(5);
/// Objects of a page.
const PAGE: u32 = 1000;
/// How often it is looked whether another node has given an address up: for three and a half seconds in all, because the
/// ledger of whoever asked is locked in the meantime.
pub const LOOKS: u32 = 7;
const LOOK_MIN: Duration = Duration::from_millis(50);
const LOOK_MAX: Duration = Duration::from_secs(1);

/// The blocks of one pool.
#[derive(Clone)]
pub struct ApiRegistry {
    client: Client,
    blocks: Api<BlockObject>,
    pool: String,
    uid: Option<String>,
    /// How the pool is cut.
    pub grid: PoolLayout,
    /// Where single addresses may have been made in it, as it was read.
    told: Option<BTreeSet<u16>>,
    /// Namespace and name of the pod that a claim is about.
    pod: (String, String),
    requests: prometheus_client::metrics::counter::Counter,
}

impl ApiRegistry {
    /// The blocks of a pool, for a claim of the pod with this namespace and name; requests are counted.
    pub fn new(
        client: Client,
        pool: &Pool,
        pod: (String, String),
        requests: prometheus_client::metrics::counter::Counter,
    ) -> ApiRegistry {
        let blocks = Api::all(client.clone());
        let Pool { name, uid, grid, exclude: _, told } = pool.clone();
        ApiRegistry { client, blocks, pool: name, uid, grid, told, pod, requests }
    }

    /// The blocks of a pool that is cut, for nobody's claim; nothing if its spec cannot be read.
    pub fn of(
        client: &Client,
        pool: &PoolObject,
        requests: &prometheus_client::metrics::counter::Counter,
    ) -> Option<ApiRegistry> {
        let (name, uid) = (pool.metadata.name.clone()?, pool.metadata.uid.clone());
        let (grid, told) = (pool.grid().ok().flatten()?, pool.told());
        let pool = Pool { name, uid, grid, exclude: Vec::new(), told };
        let nobody = (String::new(), String::new());
        Some(ApiRegistry::new(client.clone(), &pool, nobody, requests.clone()))
    }

    /// A request about a block or a single address, which is counted.
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
                "the API server does not answer within {} s",
                REQUEST_MAX.as_secs()
            ))),
        }
    }

    /// Every object with these labels; one that makes no sense is an error: it may be anybody's.
    pub async fn list_labelled(&self, labels: &[(&str, String)]) -> Result<Vec<IpBlock>, RegistryError> {
        let mut selector = format!("{POOL_LABEL}={}", label(&self.pool));
        for (key, value) in labels {
            selector.push_str(&format!(",{key}={value}"));
        }
        let mut found = Vec::new();
        let mut parameters = ListParams::default().labels(&selector).limit(PAGE);
        loop {
            let page = self.request(self.blocks.list(&parameters)).await?;
            for object in &page.items {
                found.push(self.read_object(object)?);
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => parameters = parameters.continue_token(&token),
                None => return Ok(found),
            }
        }
    }

    /// Writes an object as it is to be.
    async fn put(&self, net: IpNet, object: &BlockObject) -> Result<IpBlock, RegistryError> {
        let name = block_name(&self.pool, net);
        let replaced = async {
            match self.blocks.replace(&name, &PostParams::default(), object).await {
                // One that is gone has changed, too.
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
                "ipblock {name}: spec was edited and makes no sense: put it back, or `weft ipam free` it when nobody has its addresses"
            ))
        };
        object.object().filter(|_| object.spec.pool == self.pool).ok_or_else(fault)
    }
}

impl Registry for ApiRegistry {
    async fn create(&self, net: IpNet, holder: &Holder) -> Result<IpBlock, RegistryError> {
        let (uid, version) = (String::new(), String::new());
        let object = IpBlock { net, uid, version, holder: holder.clone(), reserved: Vec::new() };
        let object = BlockObject::of(&self.pool, &self.grid, &object);
        let made = self.request(self.blocks.create(&PostParams::default(), &object)).await?;
        self.read_object(&made)
    }

    async fn read(&self, net: IpNet) -> Result<Option<IpBlock>, RegistryError> {
        let found = self.request(self.blocks.get_opt(&block_name(&self.pool, net))).await?;
        found.map(|object| self.read_object(&object)).transpose()
    }

    async fn single_addresses_in(&self, block: IpNet) -> Result<Vec<IpBlock>, RegistryError> {
        self.list_labelled(&[(WITHIN_LABEL, name_of(block))]).await
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
        self.put(object.net, &BlockObject::of(&self.pool, &self.grid, object)).await
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
        let is_it = |pool: &PoolObject| {
            let is_cut = pool.cut() == Ok(Cut::Done) && pool.grid() == Ok(Some(self.grid));
            is_cut && pool.metadata.uid == self.uid
        };
        let Some(pool) = found.filter(is_it) else { return Ok(PoolState::Changed) };
        Ok(match (pool.told(), self.grid.section_of(net.addr())) {
            (Some(told), Some(part)) if !told.contains(&part) => PoolState::NoSingleAddresses,
            _ => PoolState::SingleAddressesPossible,
        })
    }

    async fn record_single_address(&self, net: IpNet) -> Result<(), RegistryError> {
        let Some((told, part)) = self.told.as_ref().zip(self.grid.section_of(net.addr())) else {
            return Ok(());
        };
        if told.contains(&part) {
            return Ok(());
        }
        let pools = Api::<PoolObject>::all(self.client.clone());
        let (parameters, patch) = (PatchParams::default(), json!({ "status": record_of([part], None) }));
        let said = self.request(pools.patch_status(&self.pool, &parameters, &Patch::Merge(patch))).await?;
        // One that does not keep it says nothing of any address any more, and every block is looked into.
        match said.metadata.uid == self.uid {
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
        sleep(LOOK_MAX.min(LOOK_MIN * 2_u32.saturating_pow(check))).await;
    }
}

/// The selector of what a node has, for a watch.
pub fn of_node(node: &str) -> String {
    format!("{NODE_LABEL}={}", label(node))
}

/// Label selector of the addresses that a node is asked to transfer, for a watch.
pub fn asked_of(node: &str) -> String {
    format!("{TRANSFER_LABEL}={}", label(node))
}
