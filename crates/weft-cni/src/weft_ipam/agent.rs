//! Allocation requests of an address store: to the agent's socket, or answered locally where there is no cluster.

use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use cni::{Context, Error, code};
use ipam::pool_layout::BITS_MAX;
use ipam::{AddressStore, AllocationKind, BlockLease, BlockState, LeaseResponse, PoolLayout};
use ipnet::IpNet;
use linux::unix::{Bounded, connect_within};
use rpc::allocate::{AllocateRequest, AllocateResponse, Operation, PoolReference};
use rpc::frame;
use rpc::message::{Request, Response};

use plugin_config::weft_ipam::{Pool, Settings};

/// Timeout of the agent while an ADD waits: shorter than the timeout of other calls for the address store.
const ADD_MAX: Duration = Duration::from_secs(20);
/// Timeout of a best-effort request.
const BEST_EFFORT_MAX: Duration = Duration::from_secs(2);

/// Returns the request of an address store.
pub(super) fn allocate_request(
    settings: &Settings,
    pool: &Pool,
    addresses: &AddressStore,
    operation: Operation,
    owner: &str,
) -> AllocateRequest {
    AllocateRequest {
        pool: PoolReference {
            name: pool.name.clone(),
            must_exist: pool.given,
            network: settings.network.clone(),
            range: pool.range,
        },
        filter: pool.filter.clone(),
        store: pool.name.clone(),
        directory: settings.directory.display().to_string(),
        blocks: addresses.lease_request(AllocationKind::Nothing).blocks,
        operation,
        pod: settings.pod.clone(),
        owner: owner.to_owned(),
        claim: settings.claim.name.clone(),
        shares_claim: settings.claim.shared,
        quarantine: settings.quarantine,
    }
}

/// Sends a request to the agent and returns the response.
pub(super) fn ask(socket: &Path, request: AllocateRequest) -> Result<AllocateResponse, Error> {
    let timeout = if request.operation.is_best_effort() { BEST_EFFORT_MAX } else { ADD_MAX };
    let failed = |cause: std::io::Error| match cause.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            let why = format!(
                "no free address on this node, and no agent to lease another block: {}: {cause}",
                socket.display()
            );
            Error::new(code::TRY_AGAIN_LATER, why)
        }
        ErrorKind::TimedOut => {
            Error::new(code::TRY_AGAIN_LATER, format!("agent {}: {cause}", socket.display()))
        }
        _ => Error::io(format_args!("agent {}", socket.display()), cause),
    };
    let mut stream = connect_within(socket, BEST_EFFORT_MAX).map_err(failed)?;
    exchange(&mut stream, request, timeout).context(format_args!("agent {}", socket.display()))
}

/// Sends a request and receives the response within `timeout`. The caller keeps the address store locked.
fn exchange(
    stream: &mut UnixStream,
    request: AllocateRequest,
    timeout: Duration,
) -> Result<AllocateResponse, Error> {
    frame::send(stream, &Request::AllocateBlocks(Box::new(request)))?;
    let mut stream = Bounded::within(stream, timeout);
    loop {
        match frame::receive(&mut stream)? {
            Response::Blocks(response) => return Ok(*response),
            Response::ProbeClient => frame::send(&mut stream, &Request::ClientAlive)?,
            other => return Err(other.into_error()),
        }
    }
}

/// Notifies the agent that the store will need another block soon; a failure is ignored.
pub(super) fn hint(socket: &Path, request: AllocateRequest) {
    if let Ok(mut stream) = connect_within(socket, BEST_EFFORT_MAX) {
        let _ = frame::send(&mut stream, &Request::AllocateBlocks(Box::new(request)));
    }
}

/// Returns the response of an allocation without a cluster, where every block of the pool is available to this node.
pub(super) fn allocate_locally(pool: &Pool, addresses: &AddressStore, kind: AllocationKind) -> LeaseResponse {
    let layout = PoolLayout::new(pool.range, BITS_MAX);
    let has = |net| addresses.blocks().any(|block| block.net == net);
    let wanted = match kind {
        AllocationKind::Address(ip) => layout.block_of(ip),
        _ => pool.filter.blocks(&layout, 0).find(|net| !has(*net)),
    };
    let unconfirmed = addresses.blocks().filter(|block| block.state == BlockState::Unconfirmed);
    // A regained address stays unconfirmed until a block takes it over, or is lost when nothing holds it.
    let (regained, unconfirmed): (Vec<_>, Vec<_>) = unconfirmed.partition(|block| block.single_owner);
    let confirmed: Vec<_> = unconfirmed.into_iter().map(|block| (block.lease.clone(), block.lease)).collect();
    let lost = regained.into_iter().map(|block| block.lease).collect();
    let leases = wanted.filter(|net| confirmed.is_empty() && !has(*net)).into_iter();
    let lease =
        |net: IpNet| BlockLease { net, id: net.to_string(), single_owner: false, reserved: Vec::new() };
    LeaseResponse { leases: leases.map(lease).collect(), confirmed, lost, ..LeaseResponse::default() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::time::Instant;

    use ipam::{AddressFilter, Range};
    use npwg::plan::PodIdentity;

    use super::*;

    #[test]
    fn repeated_client_probes_do_not_extend_the_timeout() {
        let path = std::env::temp_dir().join(format!("weft-still-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let agent = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _: Request = frame::receive(&mut stream).unwrap();
            let began = Instant::now();
            while began.elapsed() < 5 * BEST_EFFORT_MAX
                && frame::send(&mut stream, &Response::ProbeClient).is_ok()
            {
                if frame::receive::<Request>(&mut stream).is_err() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let range = "10.0.0.0/24".parse().unwrap();
        let request = AllocateRequest {
            pool: PoolReference { name: "p".into(), must_exist: false, network: String::new(), range },
            filter: AddressFilter::new(Range::between(range, None, None).unwrap(), &[]),
            store: "p".into(),
            directory: "/".into(),
            blocks: Vec::new(),
            operation: Operation::Return,
            pod: PodIdentity::default(),
            owner: String::new(),
            claim: String::new(),
            shares_claim: false,
            quarantine: 0,
        };
        let began = Instant::now();
        assert!(ask(&path, request).is_err());
        assert!(
            began.elapsed() >= BEST_EFFORT_MAX && began.elapsed() < 2 * BEST_EFFORT_MAX,
            "{:?}",
            began.elapsed()
        );
        agent.join().unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}
