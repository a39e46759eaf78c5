//! Asking for what a ledger lacks: the agent on its socket, or, without a cluster, nobody but ourselves.

use std::io::{ErrorKind, Write};
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use cni::{Error, code};
use ipam::Grid;
use ipam::grid::BITS_MAX;
use ipam::ledger::{Lease, Ledger, State};
use ipam::turn::{self, Supply, Wish};
use linux::unix::{Bounded, connect_within};
use rpc::exchange::addresses::{
    Addresses, Delivery, Demand, Known, KnownState, Leased, PoolName, STILL, VERSION, Want,
};
use rpc::exchange::{receive, send};

use super::settings::{Pool, Settings};

/// How long the agent may take when an address waits for it: shorter than others wait for the ledger.
const ADD_MAX: Duration = Duration::from_secs(20);
/// How long where nothing waits for it.
const COURTESY: Duration = Duration::from_secs(2);

/// The demand of a ledger.
pub(super) fn demand(settings: &Settings, pool: &Pool, ledger: &Ledger, want: Want, owner: &str) -> Demand {
    let known = turn::ask(ledger, Wish::Nothing).known.into_iter().map(|known| Known {
        net: known.net,
        lease: known.lease,
        held: known.held,
        state: match known.state {
            State::Active => KnownState::Active,
            State::Returning => KnownState::Returning,
            State::Unconfirmed => KnownState::Unconfirmed,
        },
    });
    let range = &pool.filter.range;
    Demand {
        addresses: VERSION,
        pool: PoolName {
            name: pool.name.clone(),
            given: pool.given,
            network: settings.network.clone(),
            range: pool.range,
        },
        filter: Addresses {
            subnet: range.subnet(),
            first: range.first(),
            last: range.last(),
            gateway: range.gateway(),
            exclude: pool.filter.exclude.clone(),
        },
        ledger: pool.name.clone(),
        directory: settings.directory.display().to_string(),
        known: known.collect(),
        wish: want,
        pod: settings.pod.clone(),
        owner: owner.to_owned(),
        claim: settings.claim.name.clone(),
        shared: settings.claim.shared,
        rest: settings.rest,
        answers: true,
    }
}

/// Why there is not what was asked for.
pub(super) struct Lack {
    /// One sentence.
    pub(super) why: String,
    /// This address lies in a block of the ledger that was asked for: it is given up when nobody has that locked.
    pub(super) own: Option<IpAddr>,
    /// This address, which was named as free in the ledger, is somebody else's.
    pub(super) taken: Option<IpAddr>,
}

/// Asks the agent and waits for its answer.
pub(super) fn ask(socket: &Path, demand: &Demand) -> Result<(Supply, Option<Lack>), Error> {
    let patience = if matches!(demand.wish, Want::Nothing | Want::Return) { COURTESY } else { ADD_MAX };
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
    send(&mut stream, demand)?;
    // The ledger is locked meanwhile.
    let mut stream = Bounded::within(&mut stream, patience);
    let mut delivery: Delivery = receive(&mut stream)?;
    while delivery.still {
        stream.write_all(&[STILL]).map_err(failed)?;
        delivery = receive(&mut stream)?;
    }
    let Delivery { leases, gone, confirmed, lost, refusal, own, taken, still: _ } = delivery;
    let leases =
        leases.into_iter().map(|Leased { net, lease, bound, holes }| Lease { net, uid: lease, bound, holes });
    let lack = refusal.map(|why| Lack { why, own, taken });
    Ok((Supply { leases: leases.collect(), gone, confirmed, lost, refusal: None }, lack))
}

/// Tells the agent that more will be needed soon; whether it listens changes nothing.
pub(super) fn hint(socket: &Path, demand: &Demand) {
    if let Ok(mut stream) = connect_within(socket, COURTESY) {
        let _ = send(&mut stream, demand);
    }
}

/// Without a cluster every block is ours.
pub(super) fn supply_alone(pool: &Pool, ledger: &Ledger, wish: Wish) -> Supply {
    let grid = Grid::new(pool.range, BITS_MAX);
    let has = |net| ledger.blocks().any(|block| block.net == net);
    let wanted = match wish {
        Wish::Address(ip) => grid.block_of(ip),
        _ => pool.filter.blocks(&grid, 0).find(|net| !has(*net)),
    };
    let confirmed = ledger.blocks().filter(|block| block.state == State::Unconfirmed);
    let confirmed: Vec<_> = confirmed.map(|block| (block.uid.clone(), block.uid)).collect();
    let leases = wanted.filter(|net| confirmed.is_empty() && !has(*net)).into_iter();
    Supply {
        leases: leases
            .map(|net| Lease { net, uid: net.to_string(), bound: false, holes: Vec::new() })
            .collect(),
        confirmed,
        ..Supply::default()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixListener;
    use std::time::Instant;

    use npwg::plan::PodIdentity;

    use super::*;

    #[test]
    fn an_agent_that_asks_again_and_again_whether_somebody_is_there_has_no_more_time_for_it() {
        let path = std::env::temp_dir().join(format!("weft-still-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let agent = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _: Demand = receive(&mut stream).unwrap();
            let began = Instant::now();
            let still = Delivery { still: true, ..Delivery::default() };
            while began.elapsed() < 5 * COURTESY && send(&mut stream, &still).is_ok() {
                if stream.read_exact(&mut [0]).is_err() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let range = "10.0.0.0/24".parse().unwrap();
        let ip = |last| IpAddr::from([10, 0, 0, last]);
        let demand = Demand {
            addresses: VERSION,
            pool: PoolName { name: "p".into(), given: false, network: String::new(), range },
            filter: Addresses {
                subnet: range,
                first: ip(1),
                last: ip(254),
                gateway: None,
                exclude: Vec::new(),
            },
            ledger: "p".into(),
            directory: "/".into(),
            known: Vec::new(),
            wish: Want::Return,
            pod: PodIdentity::default(),
            owner: String::new(),
            claim: String::new(),
            shared: false,
            rest: 0,
            answers: true,
        };
        let began = Instant::now();
        assert!(ask(&path, &demand).is_err());
        assert!(began.elapsed() >= COURTESY && began.elapsed() < 2 * COURTESY, "{:?}", began.elapsed());
        agent.join().unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}
