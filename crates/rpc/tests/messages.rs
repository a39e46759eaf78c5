//! Property tests of messages: a message arrives byte for byte, and hostile bytes neither panic nor allocate.

#![allow(clippy::unwrap_used, clippy::panic, reason = "test helpers may panic")]

use std::collections::BTreeMap;
use std::net::IpAddr;

use cni::error::Error;
use cni::name::{ContainerId, IfName, NetworkName};
use cni::object::Object;
use ipam::{
    AddressFilter, AllocationError, AllocationKind, BlockInfo, BlockLease, BlockState, LeaseResponse, Range,
};
use npwg::configuration::Flavour;
use npwg::plan::{DefaultRouteAction, Delegate, PLAN_VERSION, Plan, PodIdentity, Role, Verify};
use npwg::status::{StatusAddresses, StatusKeys, StatusStyle};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use rpc::allocate::{
    AllocateRequest, AllocateResponse, ClaimedAddress, ImportedAddresses, Operation, PoolReference,
};
use rpc::frame::{self, MESSAGE_MAX, Message};
use rpc::message::{Refusal, Request, Response};
use rpc::node_input::{NetworkFile, NodeInput};
use rpc::plan::{AttachmentReport, PlanReport, PlanRequest, PlanResponse, PluginCall, Purpose};
use rpc::task::{Certainty, NetworkChange, PollTasks, Task, TaskBatch, TaskKind, TaskResult};
use serde_json::value::RawValue;

// === Messages to send ===

fn text() -> impl Strategy<Value = String> {
    prop_oneof![3 => "[a-z0-9/@.-]{0,12}", 1 => any::<String>()]
}

fn container() -> impl Strategy<Value = ContainerId> {
    "[a-z][a-z0-9]{0,20}".prop_map(|id| ContainerId::new(&id).unwrap())
}

fn ifname() -> impl Strategy<Value = IfName> {
    "[a-z][a-z0-9]{0,10}".prop_map(|name| IfName::new(&name).unwrap())
}

/// JSON whose exact bytes matter: blanks, forms of numbers, duplicate fields, escapes.
fn raw() -> impl Strategy<Value = Box<RawValue>> {
    let scalar = prop_oneof![
        Just("1.50".to_owned()),
        Just("-0".to_owned()),
        Just("1e3".to_owned()),
        Just("123456789012345678901234567890".to_owned()),
        Just(r#""\u00e9\/ é""#.to_owned()),
        Just("null".to_owned()),
        text().prop_map(|text| serde_json::to_string(&text).unwrap()),
    ];
    let blank = prop_oneof![Just(""), Just(" "), Just("\n\t")];
    let json = scalar.prop_recursive(3, 12, 3, move |inner| {
        let list = (vec(inner.clone(), 0..3), blank.clone())
            .prop_map(|(values, blank)| format!("[{blank}{}{blank}]", values.join(&format!("{blank},"))));
        let map = (inner.clone(), inner, blank.clone())
            .prop_map(|(a, b, blank)| format!(r#"{{{blank}"x"{blank}:{a},{blank}"x":{b}{blank}}}"#));
        prop_oneof![list, map]
    });
    json.prop_map(|json| RawValue::from_string(json).unwrap())
}

fn object() -> impl Strategy<Value = Object> {
    raw().prop_map(|raw| Object::parse(format!(r#"{{"ips":{}}}"#, raw.get()).as_bytes(), "raw").unwrap())
}

fn identity() -> impl Strategy<Value = PodIdentity> {
    (text(), text(), text()).prop_map(|(namespace, name, uid)| PodIdentity { namespace, name, uid })
}

fn error() -> impl Strategy<Value = Error> {
    (any::<u32>(), text(), text()).prop_map(|(code, msg, details)| Error::new(code, msg).details(details))
}

fn flavour() -> impl Strategy<Value = Flavour> {
    prop_oneof![Just(Flavour::Weft), Just(Flavour::Multus)]
}

fn node() -> impl Strategy<Value = NodeInput> {
    let file = (text(), text()).prop_map(|(path, text)| NetworkFile { path, text });
    (raw(), flavour(), vec(file, 0..3), vec(text(), 0..3)).prop_map(
        |(configuration, flavour, files, unreadable)| NodeInput { configuration, flavour, files, unreadable },
    )
}

fn delegate() -> impl Strategy<Value = Delegate> {
    let args = vec((text(), text()), 0..2);
    (text(), "[a-z][a-z0-9]{0,8}", text(), ifname(), object(), args).prop_map(
        |(network, config_name, config, ifname, runtime_config, args)| Delegate {
            network,
            role: Role::Selected,
            config_name: NetworkName::new(&config_name).unwrap(),
            config,
            ifname,
            runtime_config,
            args,
            verify: Verify::default(),
            asked: Some(BTreeMap::new()),
            default_route: DefaultRouteAction::Untouched,
            policy: None,
            device_info: None,
            because: Vec::new(),
        },
    )
}

fn plan() -> impl Strategy<Value = Plan> {
    (identity(), container(), vec(delegate(), 0..3)).prop_map(|(pod, container, delegates)| Plan {
        version: PLAN_VERSION,
        pod,
        container,
        status: StatusStyle { addresses: StatusAddresses::Bare, keys: StatusKeys::Standard },
        delegates,
        warnings: Vec::new(),
        refused: Vec::new(),
        note: Object::default(),
    })
}

fn task() -> impl Strategy<Value = Task> {
    let certainty = prop_oneof![Just(Certainty::Gone), Just(Certainty::PodGone)];
    prop_oneof![
        (container(), text(), certainty).prop_map(|(container, uid, certainty)| Task::TakeDown {
            container,
            uid,
            certainty
        }),
        (container(), option::of(text()))
            .prop_map(|(container, kubeconfig)| Task::Publish { container, kubeconfig }),
        (container(), text()).prop_map(|(container, uid)| Task::Check { container, uid }),
        plan().prop_map(|plan| Task::Change { plan: Box::new(plan) }),
    ]
}

fn report() -> impl Strategy<Value = PlanReport> {
    let call = (text(), any::<u64>(), any::<usize>(), any::<bool>()).prop_map(
        |(plugin, microseconds, depth, failed)| PluginCall {
            plugin,
            verb: "ADD".to_owned(),
            began: microseconds,
            microseconds,
            depth,
            failed,
        },
    );
    let attachment = (text(), text(), ifname(), option::of(any::<u64>()), vec(call, 0..3)).prop_map(
        |(network, plugin, ifname, microseconds, steps)| AttachmentReport {
            network,
            plugin,
            ifname,
            microseconds,
            steps,
        },
    );
    (any::<u64>(), vec(attachment, 0..3), option::of(error()))
        .prop_map(|(microseconds, attachments, error)| PlanReport { microseconds, attachments, error })
}

fn result() -> impl Strategy<Value = TaskResult> {
    let change = (text(), ifname(), option::of(vec(any::<IpAddr>(), 0..3)))
        .prop_map(|(network, ifname, added)| NetworkChange { network, ifname, added });
    let kind = proptest::sample::select(&TaskKind::ALL);
    (kind, container(), text(), vec(change, 0..3), option::of(error()), vec(ifname(), 0..3), any::<bool>())
        .prop_map(|(kind, container, uid, changes, error, wrong, is_locked)| TaskResult {
            kind,
            container,
            uid,
            changes,
            error,
            wrong,
            is_locked,
        })
}

fn ip() -> impl Strategy<Value = IpAddr> {
    any::<u8>().prop_map(|last| IpAddr::from([10, 0, 0, last]))
}

fn kind() -> impl Strategy<Value = AllocationKind> {
    prop_oneof![
        Just(AllocationKind::Nothing),
        Just(AllocationKind::Any),
        option::of(ip()).prop_map(AllocationKind::ForClaim),
        ip().prop_map(AllocationKind::Address),
        ip().prop_map(AllocationKind::AddressForClaim),
    ]
}

fn allocate_request() -> impl Strategy<Value = AllocateRequest> {
    let operation = prop_oneof![
        kind().prop_map(Operation::Allocate),
        Just(Operation::Return),
        Just(Operation::Prefetch),
        Just(Operation::CheckCapacity),
        Just(Operation::FindImported),
        Just(Operation::Freed),
    ];
    let state =
        prop_oneof![Just(BlockState::Active), Just(BlockState::Returning), Just(BlockState::Unconfirmed)];
    let block = ("[a-z0-9.-]{1,20}", state, vec(ip(), 0..3)).prop_map(|(lease, state, held)| BlockInfo {
        net: "10.0.0.0/24".parse().unwrap(),
        lease,
        state,
        held,
        released_at: 0,
    });
    (operation, vec(block, 0..3), identity(), text(), text(), any::<bool>(), any::<u64>()).prop_map(
        |(operation, blocks, pod, owner, claim, flag, quarantine)| {
            let range = "10.0.0.0/16".parse().unwrap();
            AllocateRequest {
                pool: PoolReference { name: owner.clone(), must_exist: flag, network: claim.clone(), range },
                filter: AddressFilter::new(
                    Range::between(range, None, None).unwrap(),
                    &["10.0.7.0/24".parse().unwrap()],
                ),
                store: owner.clone(),
                directory: claim.clone(),
                blocks,
                operation,
                pod,
                owner,
                claim,
                shares_claim: flag,
                quarantine,
            }
        },
    )
}

fn allocate_response() -> impl Strategy<Value = AllocateResponse> {
    let lease =
        ("[a-z0-9.-]{1,20}", any::<bool>(), vec(ip(), 0..3)).prop_map(|(id, single_owner, reserved)| {
            BlockLease { net: "10.0.0.0/24".parse().unwrap(), id, single_owner, reserved }
        });
    let error = option::of(text().prop_map(AllocationError::Unavailable));
    let confirmed = vec((text(), text()), 0..2);
    let claimed = (ip(), text()).prop_map(|(address, claim)| ClaimedAddress { address, claim });
    let imported = (vec(claimed, 0..2), any::<bool>())
        .prop_map(|(of_pod, in_pool)| ImportedAddresses { of_pod, in_pool });
    let hints = (option::of(text()), option::of(imported));
    (vec(lease, 0..3), vec(text(), 0..3), confirmed, vec(text(), 0..2), error, hints).prop_map(
        |(leases, returned, confirmed, lost, error, (hint, imported))| AllocateResponse {
            lease: LeaseResponse { leases, returned, confirmed, lost, error },
            hint,
            imported,
        },
    )
}

fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        (identity(), container(), ifname(), node(), any::<u64>(), text(), any::<bool>()).prop_map(
            |(pod, container, ifname, node, began, trace_parent, detaches)| {
                let purpose = if detaches { Purpose::Detach } else { Purpose::Attach };
                let request = PlanRequest { pod, container, ifname, node, began, trace_parent, purpose };
                Request::Plan(Box::new(request))
            }
        ),
        report().prop_map(Request::PlanReport),
        node().prop_map(|node| Request::PollTasks(PollTasks { node })),
        result().prop_map(Request::TaskResult),
        allocate_request().prop_map(|request| Request::AllocateBlocks(Box::new(request))),
        Just(Request::ClientAlive),
    ]
}

fn response() -> impl Strategy<Value = Response> {
    prop_oneof![
        (plan(), vec(task(), 0..3), text())
            .prop_map(|(plan, tasks, trace)| Response::Plan(Box::new(PlanResponse { plan, tasks, trace }))),
        (error(), text()).prop_map(|(error, trace)| Response::Refused(Box::new(Refusal { error, trace }))),
        vec(task(), 0..3).prop_map(Response::Tasks),
        Just(Response::Accepted),
        allocate_response().prop_map(|response| Response::Blocks(Box::new(response))),
        Just(Response::ProbeClient),
    ]
}

fn batch() -> impl Strategy<Value = TaskBatch> {
    (raw(), flavour(), vec(task(), 0..3)).prop_map(|(configuration, flavour, tasks)| TaskBatch {
        configuration,
        flavour,
        tasks,
    })
}

/// Asserts that a message arrives as it was sent, and that no prefix of it is a message.
fn assert_arrives<M: Message>(message: &M, cut: prop::sample::Index) -> M {
    let sent = frame::encode(message).unwrap();
    let mut wire = sent.as_slice();
    let received: M = frame::receive(&mut wire).unwrap();
    assert_eq!(frame::encode(&received).unwrap(), sent);
    assert!(wire.is_empty());
    assert!(frame::receive::<M>(&mut &sent[..cut.index(sent.len())]).is_err());
    received
}

proptest! {
    #[test]
    fn request_round_trips_byte_for_byte(sent in request(), cut in any::<prop::sample::Index>()) {
        let received = assert_arrives(&sent, cut);
        match (&sent, &received) {
            (Request::Plan(sent), Request::Plan(received)) => {
                prop_assert_eq!(sent.node.configuration.get(), received.node.configuration.get());
                prop_assert_eq!(sent.purpose, received.purpose);
            }
            (Request::AllocateBlocks(sent), Request::AllocateBlocks(received)) => {
                prop_assert_eq!(sent, received);
            }
            (Request::TaskResult(sent), Request::TaskResult(received)) => prop_assert_eq!(sent, received),
            (Request::PlanReport(sent), Request::PlanReport(received)) => prop_assert_eq!(sent, received),
            _ => {}
        }
    }

    #[test]
    fn response_round_trips_byte_for_byte(sent in response(), cut in any::<prop::sample::Index>()) {
        match (&sent, &assert_arrives(&sent, cut)) {
            (Response::Plan(sent), Response::Plan(received)) => {
                prop_assert_eq!(&sent.plan, &received.plan);
                prop_assert_eq!(&sent.tasks, &received.tasks);
            }
            (Response::Tasks(sent), Response::Tasks(received)) => prop_assert_eq!(sent, received),
            (Response::Blocks(sent), Response::Blocks(received)) => prop_assert_eq!(sent, received),
            (Response::Refused(sent), Response::Refused(received)) => prop_assert_eq!(sent, received),
            _ => {}
        }
    }

    #[test]
    fn task_batch_round_trips_byte_for_byte(sent in batch(), cut in any::<prop::sample::Index>()) {
        let received = assert_arrives(&sent, cut);
        prop_assert_eq!(sent.configuration.get(), received.configuration.get());
        prop_assert_eq!(sent.tasks, received.tasks);
    }

    // === Received bytes ===

    #[test]
    fn hostile_bytes_never_panic(bytes in vec(any::<u8>(), 0..200)) {
        let _ = frame::receive::<Request>(&mut bytes.as_slice());
        let _ = frame::decode::<Request>(&bytes);
        let _ = frame::decode::<Response>(&bytes);
        let _ = frame::decode::<TaskBatch>(&bytes);
    }

    #[test]
    fn corrupted_message_never_panics(
        request in request(),
        response in response(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let (mut request, mut response) = (frame::encode(&request).unwrap(), frame::encode(&response).unwrap());
        let (first, second) = (at.index(request.len()), at.index(response.len()));
        (request[first], response[second]) = (byte, byte);
        let _ = frame::receive::<Request>(&mut request.as_slice());
        let _ = frame::receive::<Response>(&mut response.as_slice());
    }
}

/// Returns the peak of the address space of this process, in kB.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPeak:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn announced_length_allocates_nothing() {
    let before = peak();
    for announced in [MESSAGE_MAX, MESSAGE_MAX + 1, u32::MAX as usize] {
        let announced = u32::try_from(announced).unwrap();
        let bytes = [announced.to_be_bytes().as_slice(), br#"{"version":1"#].concat();
        assert!(frame::receive::<Request>(&mut bytes.as_slice()).is_err());
        assert!(frame::receive::<Response>(&mut bytes.as_slice()).is_err());
    }
    let grown = peak() - before;
    assert!(grown < (MESSAGE_MAX as u64 >> 10) / 4, "{grown} kB");
}
