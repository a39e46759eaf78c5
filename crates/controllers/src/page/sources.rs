//! Watches of the cluster that fill the model of the page.
//!
//! - A resource that the cluster does not have is looked up again from time to time, and watched once it exists.
//! - Of the Events only those of weft are watched.
//! - Changes are gathered for [`GATHER`], so that many changes of one row cost one message.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use kube::runtime::watcher::Config;
use kube::{Api, Client, Resource};
use kube_support::cache::changed_keys::{Changed, ChangedKeys};
use kube_support::cache::{Cache, follow};
use kube_support::lookup::ASK_MAX;
use kube_support::resources::{Key, Reduced};
use serde::de::DeserializeOwned;
use tokio::sync::watch::Receiver;
use tokio::time::{sleep, timeout};

use super::model::PageModel;
use super::objects::{
    BlockObject, DefinitionObject, EventObject, NodeObject, PodObject, PolicyObject, PoolObject,
};
use super::rows::{Row, Table};

/// Time for which changes are gathered.
const GATHER: Duration = Duration::from_millis(250);
/// Interval at which a missing resource is looked up.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(20);

/// Watched resource.
#[derive(Debug)]
struct Source {
    table: Table,
    cache: Arc<Cache<Row>>,
    changed: ChangedKeys,
    changes: Receiver<u64>,
}

/// Watched resources.
#[derive(Debug)]
pub(super) struct Sources(Vec<Source>);

/// State of the watches, for the viewers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SourceState {
    /// Seconds since the watch of pods or definitions failed; zero while the API server answers.
    pub(super) age: u64,
    /// Resources whose list is not complete, with the reason if there is one.
    pub(super) waits: Vec<String>,
}

// === impl Sources ===

impl Sources {
    /// Watches the cluster from now on.
    pub(super) fn follow(client: &Client) -> Sources {
        let all = Config::default();
        let of_weft = Config::default().fields("source=weft");
        Sources(vec![
            source::<PodObject>(client, Table::Pods, all.clone()),
            source::<DefinitionObject>(client, Table::Networks, all.clone()),
            source::<EventObject>(client, Table::Events, of_weft),
            source::<NodeObject>(client, Table::Nodes, all.clone()),
            source::<PoolObject>(client, Table::Pools, all.clone()),
            source::<BlockObject>(client, Table::Blocks, all.clone()),
            source::<PolicyObject>(client, Table::Policies, all),
        ])
    }

    /// Keeps the model up to date until the process ends.
    pub(super) async fn keep(&self, model: &PageModel) {
        let mut receivers: Vec<Receiver<u64>> = self.0.iter().map(|source| source.changes.clone()).collect();
        loop {
            for (source, receiver) in self.0.iter().zip(&mut receivers) {
                receiver.mark_unchanged();
                source.update(model);
            }
            let changed = receivers.iter_mut().map(|receiver| Box::pin(receiver.changed()));
            // It cannot fail: the caches keep the senders.
            let _ = futures_util::future::select_all(changed).await;
            sleep(GATHER).await;
        }
    }

    /// Returns the state of the watches.
    pub(super) fn state(&self) -> SourceState {
        let needed = self.0.iter().filter(|source| matches!(source.table, Table::Pods | Table::Networks));
        let age = needed.clone().map(|source| source.cache.age().as_secs()).max().unwrap_or_default();
        SourceState { age, waits: self.0.iter().filter_map(|source| source.cache.waited()).collect() }
    }

    /// Returns the resources without which the page is not ready.
    pub(super) fn waits_for(&self) -> Vec<String> {
        let pods = self.0.iter().filter(|source| source.table == Table::Pods);
        pods.filter_map(|source| source.cache.waited()).collect()
    }
}

// === impl Source ===

impl Source {
    fn update(&self, model: &PageModel) {
        match self.changed.take() {
            Changed::Keys(keys) if keys.is_empty() => {}
            Changed::Keys(keys) => {
                model.set(self.table, keys.into_iter().map(|key| (key.clone(), self.cache.find(&key))));
            }
            Changed::All => {
                let present = self.cache.entries();
                let gone = model.keys(self.table).into_iter().filter(|key| self.cache.find(key).is_none());
                let gone: Vec<(Key, Option<Arc<Row>>)> = gone.map(|key| (key, None)).collect();
                model.set(self.table, present.into_iter().map(|(key, row)| (key, Some(row))).chain(gone));
            }
        }
    }
}

fn source<K>(client: &Client, table: Table, selection: Config) -> Source
where
    K: Reduced<Form = Row> + Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let cache = Arc::new(Cache::new(table.name()));
    let source =
        Source { table, changed: cache.changed_keys(), changes: cache.changes(), cache: Arc::clone(&cache) };
    let client = client.clone();
    tokio::spawn(async move {
        while !is_served::<K>(&client).await {
            sleep(LOOKUP_INTERVAL).await;
        }
        follow(client, Api::<K>::all, selection, cache).await;
    });
    source
}

/// Whether the cluster has a resource. An API server that does not answer is asked by the watch itself.
async fn is_served<K: Resource<DynamicType = ()>>(client: &Client) -> bool {
    if K::group(&()).is_empty() {
        return true;
    }
    let version = K::api_version(&());
    match timeout(ASK_MAX, client.list_api_group_resources(&version)).await {
        Ok(Ok(list)) => list.resources.iter().any(|resource| resource.name == K::plural(&())),
        Ok(Err(kube::Error::Api(status))) => status.code != 404,
        _ => false,
    }
}
