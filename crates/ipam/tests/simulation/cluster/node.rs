//! Simulated node: its disk, its calls and its agent.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use ipam::address_store::StoreFile;
use ipam::{AddressStore, AllocationKind, IpBlock, LeaseResponse};

use super::super::api_server::{Api, Task};
use super::super::restore::Restorer;
use super::super::transfer::TransferHandler;
use super::Owner;
use super::call::{Answer, Call};

/// Disk with the file of the address store, which calls read on demand.
#[derive(Clone, Debug)]
pub(super) struct Disk(pub(super) Arc<Mutex<Vec<u8>>>);

/// Node.
pub(super) struct Node {
    pub(super) name: String,
    pub(super) disk: Disk,
    /// Content of the disk after the last synchronization.
    pub(super) synced: Vec<u8>,
    pub(super) boot: u64,
    /// Difference of its clock from the true time.
    pub(super) skew: i64,
    /// Whether its clock was moved at some time.
    pub(super) clock_moved: bool,
    pub(super) alive: bool,
    /// Whether it gets no new pods.
    pub(super) is_drained: bool,
    /// Whether the cluster takes it for dead although it lives.
    pub(super) isolated: bool,
    pub(super) api: Api,
    pub(super) calls: Vec<Call>,
    pub(super) agent: Vec<(Task<LeaseResponse>, Answer)>,
    /// The agent's handler of transfer requests.
    pub(super) transfers: TransferHandler,
    /// The agent's task that restores reserved addresses.
    pub(super) restorer: Restorer,
    /// Objects that the agent believes its store to lease.
    pub(super) seen: Vec<IpBlock>,
    /// Pods and the addresses they got; no address if the call was killed.
    pub(super) pods: BTreeMap<Owner, Option<IpAddr>>,
    /// Kind of address that each pod asked for.
    pub(super) kinds: BTreeMap<Owner, AllocationKind>,
}

impl Disk {
    pub(super) fn of(bytes: Vec<u8>) -> Disk {
        Disk(Arc::new(Mutex::new(bytes)))
    }
}

impl StoreFile for Disk {
    fn length(&self) -> io::Result<u64> {
        Ok(self.0.lock().unwrap().len() as u64)
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let bytes = self.0.lock().unwrap();
        let mut tail = &bytes[bytes.len().min(usize::try_from(offset).unwrap())..];
        io::Read::read_exact(&mut tail, buffer)
    }
}

impl Node {
    pub(super) fn new(index: usize, api: &Api) -> Node {
        Node {
            name: format!("n{index}"),
            disk: Disk::of(AddressStore::new("b0").to_bytes()),
            synced: AddressStore::new("b0").to_bytes(),
            boot: 0,
            skew: 0,
            clock_moved: false,
            alive: true,
            is_drained: false,
            isolated: false,
            api: api.connect(),
            calls: Vec::new(),
            agent: Vec::new(),
            transfers: TransferHandler::default(),
            restorer: Restorer::default(),
            seen: Vec::new(),
            pods: BTreeMap::new(),
            kinds: BTreeMap::new(),
        }
    }

    pub(super) fn open_store(&self) -> AddressStore {
        AddressStore::open(Arc::new(self.disk.clone())).unwrap().expect("a valid store")
    }

    pub(super) fn boot_id(&self) -> String {
        format!("b{}", self.boot)
    }

    /// Ends the agent; a new one begins without state.
    pub(super) fn kill_agent(&mut self) {
        self.agent.clear();
        self.transfers = TransferHandler::default();
        self.restorer = Restorer::default();
    }

    /// Lets the agent make progress with every request.
    pub(super) fn poll_agent(&mut self) {
        self.agent.retain_mut(|(task, answer)| {
            match task.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(response) => {
                    *answer.lock().unwrap() = Some(response);
                    false
                }
                Poll::Pending => true,
            }
        });
    }
}
