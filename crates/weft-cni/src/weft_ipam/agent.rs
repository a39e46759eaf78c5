//! Asking for what a ledger lacks: the agent on its socket, or, without a cluster, nobody but ourselves.

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

use super::settings::{Pool, Settings};

/// How long the agent may take when an address waits for it: shorter than others wait for the ledger.
const ADD_MAX: Duration = Duration::from_secs(20);
/// How long where nothing waits for it.
const COURTESY: Duration = Duration::from_secs(2);

/// Request of a store.
pub(super) fn demand(
    settings: &Settings,
    pool: &Pool,
    ledger: &AddressStore,
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
        blocks: ledger.lease_request(AllocationKind::Nothing).blocks,
        operation,
        pod: settings.pod.clone(),
        owner: owner.to_owned(),
        claim: settings.claim.name.clone(),
        shares_claim: settings.claim.shared,
        quarantine: settings.rest,
    }
}

/// Asks the agent and waits for its answer.
pub(super) fn ask(socket: &Path, request: AllocateRequest) -> Result<AllocateResponse, Error> {
    let patience = if request.operation.is_best_effort() { COURTESY } else { ADD_MAX };
    let failed = |cause: std::io::Error| match cause.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            let why = format!(
                "no free address on this node, and no agent to lease more: {}: {cause}",
                socket.display()
            );
            Error::new(code::TRY_AGAIN_LATER, why)
        }
        ErrorKind::TimedOut => {
            Error::new(code::TRY_AGAIN_LATER, format!("agent {}: {cause}", socket.display()))
        }
        _ => Error::io(format_args!("agent {}", socket.display()), cause),
    };
    let mut stream = connect_within(socket, COURTESY).map_err(failed)?;
    exchange(&mut stream, request, patience).context(format_args!("agent {}", socket.display()))
}

/// Sends a request and receives its response, which may take `timeout`: the address store is locked meanwhile.
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

/// Tells the agent that more will be needed soon; whether it listens changes nothing.
pub(super) fn hint(socket: &Path, request: AllocateRequest) {
    if let Ok(mut stream) = connect_within(socket, COURTESY) {
        let _ = frame::send(&mut stream, &Request::AllocateBlocks(Box::new(request)));
    }
}

/// Without a cluster every block is ours.
pub(super) fn supply_alone(pool: &Pool, ledger: &AddressStore, kind: AllocationKind) -> LeaseResponse {
    let grid = PoolLayout::new(pool.range, BITS_MAX);
    let has = |net| ledger.blocks().any(|block| block.net == net);
    let wanted = match kind {
        AllocationKind::Address(ip) => grid.block_of(ip),
        _ => pool.filter.blocks(&grid, 0).find(|net| !has(*net)),
    };
    let confirmed = ledger.blocks().filter(|block| block.state == BlockState::Unconfirmed);
    let confirmed: Vec<_> = confirmed.map(|block| (block.lease.clone(), block.lease)).collect();
    let leases = wanted.filter(|net| confirmed.is_empty() && !has(*net)).into_iter();
    let lease =
        |net: IpNet| BlockLease { net, id: net.to_string(), single_owner: false, reserved: Vec::new() };
    LeaseResponse { leases: leases.map(lease).collect(), confirmed, ..LeaseResponse::default() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::time::Instant;

    use ipam::{AddressFilter, Range};
    use npwg::plan::PodIdentity;

    use super::*;

    #[test]
    fn an_agent_that_asks_again_and_again_whether_somebody_is_there_has_no_more_time_for_it() {
        let path = std::env::temp_dir().join(format!("weft-still-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let agent = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _: Request = frame::receive(&mut stream).unwrap();
            let began = Instant::now();
            while began.elapsed() < 5 * COURTESY && frame::send(&mut stream, &Response::ProbeClient).is_ok() {
                if frame::receive::<Request>(&mut stream).is_err() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let range = "10.0.0.0/24".parse().unwrap();
        let demand = AllocateRequest {
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
        assert!(ask(&path, demand).is_err());
        assert!(began.elapsed() >= COURTESY && began.elapsed() < 2 * COURTESY, "{:?}", began.elapsed());
        agent.join().unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}
