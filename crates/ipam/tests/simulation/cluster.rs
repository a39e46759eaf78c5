//! The nodes: their disks, their calls, their agents, and what happens to them.

mod lost_leases;
mod recovery;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use ipam::lease::{Counter, Refusal};
use ipam::ledger::{Clock, Edit, Ledger, Order, Source, State};
use ipam::registry::{Holder, Object, Registry};
use ipam::turn::{self, Ask, GiveUp, Supply, Turn, Wish};
use ipam::{Filter, Grid, Range};
use ipnet::IpNet;

use super::api_server::{Api, Random};
use super::transfer::{Giver, Said};

/// How long an address rests, in steps of the simulation.
const REST: u64 = 300;
/// How long a block is idle before it is given back.
const IDLE: u64 = 600;
/// Calls on a node at a time.
const CALLS: usize = 3;
/// How often it is looked whether an address was given up.
const LOOKS: u32 = 4;
/// How often a call lets go of the lock for what the agent needs the ledger for.
const LET_GO: usize = 6;

/// What is simulated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) subnet: &'static str,
    pub(crate) bits: u8,
    pub(crate) nodes: usize,
    pub(crate) steps: u64,
    /// How many claims keep addresses; none: no address is asked for by name either.
    pub(crate) claims: u64,
    /// May pods ask a node for addresses before its agent has seen that one of its objects was deleted?
    pub(crate) late: bool,
    /// May several pods have a claim's address at a time?
    pub(crate) shared: bool,
    /// Does a hand delete objects, whosever they are? Of those that pods share it does.
    pub(crate) deleted: bool,
}

pub(crate) type Task<T> = Pin<Box<dyn Future<Output = T>>>;

/// Where an agent leaves its answer.
type Answer = Arc<Mutex<Option<Supply>>>;

/// A pod's interface.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Owner {
    name: String,
    claim: String,
    /// The address that its claim was restored with: only the agent knows it.
    restored: Option<IpAddr>,
}

enum Verb {
    Add(Owner, Wish),
    Del(Owner),
    Tidy(u64),
    /// The address of a lease, for another node.
    GiveUp(String, IpAddr, Said),
}

/// A plugin's call.
struct Call {
    verb: Verb,
    ledger: Option<Ledger>,
    /// Edits that are made in memory and not written yet.
    unwritten: Vec<Edit>,
    /// What the agent will answer.
    answer: Option<Answer>,
    asked: u32,
    /// How often the lock was let go of, for the agent to give up what is wanted.
    let_go: usize,
    begun_anew: usize,
    /// What was to be given up and is somebody else's.
    tried: Vec<IpAddr>,
    /// Blocks that were emptied and are given back with it.
    drained: u64,
    /// Was the ledger changed as far as it can be alone?
    begun: bool,
    outcome: Option<Result<Option<IpAddr>, Refusal>>,
}

/// A node's disk: what is looked at of a ledger is read from it while the call is at work.
#[derive(Clone, Debug)]
struct Disk(Arc<Mutex<Vec<u8>>>);

impl Disk {
    fn of(bytes: Vec<u8>) -> Disk {
        Disk(Arc::new(Mutex::new(bytes)))
    }
}

impl Source for Disk {
    fn length(&self) -> io::Result<u64> {
        Ok(self.0.lock().unwrap().len() as u64)
    }

    fn fetch(&self, offset: u64, room: &mut [u8]) -> io::Result<()> {
        let bytes = self.0.lock().unwrap();
        let mut rest = &bytes[bytes.len().min(usize::try_from(offset).unwrap())..];
        io::Read::read_exact(&mut rest, room)
    }
}

struct Node {
    name: String,
    disk: Disk,
    synced: Vec<u8>,
    boot: u64,
    /// What its clock shows beyond the true time.
    skew: i64,
    /// Was its clock moved?
    moved: bool,
    alive: bool,
    /// Is it taken for dead, and lives?
    lives: bool,
    api: Api,
    calls: Vec<Call>,
    agent: Vec<(Task<Supply>, Answer)>,
    /// What of it gives addresses up.
    giver: Giver,
    /// What the agent believes to be its ledger's.
    seen: Vec<Object>,
    /// Pods that were told an address; what a call for which was killed is in here without one.
    pods: BTreeMap<Owner, Option<IpAddr>>,
    /// What those asked for that did not take any.
    wishes: BTreeMap<Owner, Wish>,
}

/// All of it.
pub(crate) struct Cluster {
    seed: u64,
    shape: Shape,
    grid: Grid,
    filter: Arc<Filter>,
    random: Random,
    api: Api,
    nodes: Vec<Node>,
    now: u64,
    /// Who was told each address, on which node.
    told: BTreeMap<IpAddr, BTreeSet<(usize, Owner)>>,
    /// Deleted under pods: since when their addresses rest is known to nobody who has them next.
    deleted: Vec<IpNet>,
    /// When an address was given back, as far as nobody's clock was moved.
    freed: BTreeMap<IpAddr, (u64, Owner)>,
    controller: Option<Task<()>>,
    next: u64,
    pub(crate) steps: u64,
    pub(crate) given: u64,
    pub(crate) refused: u64,
    /// Refused, because somebody else has the address that was asked for.
    pub(crate) named: u64,
    /// Blocks that were emptied and given back.
    pub(crate) drained: u64,
    pub(crate) kills: u64,
    /// Given up for another node.
    pub(crate) handed: u64,
    /// Had in one call, though it lay in a block of the node itself.
    pub(crate) had_own: u64,
    /// Leases that a node lost which lived.
    pub(crate) doubted: u64,
    /// Leased again under the pods that held something in them.
    pub(crate) again: u64,
    /// Deleted by hand while it was somebody's.
    pub(crate) doomed: u64,
    /// Given back by its node, because it was.
    pub(crate) emptied: u64,
}

impl Owner {
    fn of(name: String) -> Owner {
        Owner { name, claim: String::new(), restored: None }
    }
}

impl Call {
    fn of(verb: Verb) -> Call {
        Call {
            verb,
            ledger: None,
            unwritten: Vec::new(),
            answer: None,
            asked: 0,
            let_go: 0,
            begun_anew: 0,
            tried: Vec::new(),
            drained: 0,
            begun: false,
            outcome: None,
        }
    }

    fn owner(&self) -> Owner {
        match &self.verb {
            Verb::Add(owner, _) | Verb::Del(owner) => owner.clone(),
            Verb::Tidy(_) | Verb::GiveUp(..) => Owner::of("nobody".into()),
        }
    }

    /// Looks whether the agent has answered.
    fn hear(&mut self, clock: Clock, agent_is_gone: bool) {
        let owner = self.owner();
        let answered = self.answer.as_ref().and_then(|answer| answer.lock().unwrap().take());
        let Some(supply) = answered else {
            if agent_is_gone {
                // Nobody waits for ever.
                self.answer = None;
                self.outcome = Some(Err(Refusal::Fault("no agent".into())));
            }
            return;
        };
        self.answer = None;
        if let Some(ledger) = &mut self.ledger {
            let drained = ledger.blocks().filter(|block| block.draining && supply.gone.contains(&block.uid));
            self.drained += drained.count() as u64;
            self.unwritten = turn::receive(ledger, clock, mark(&owner), &supply);
        }
        if let (Some(Refusal::Own { ip, .. }), true) = (&supply.refusal, self.let_go < LET_GO) {
            if let Verb::Add(_, wish @ Wish::Kept(_)) = &mut self.verb {
                *wish = Wish::Kept(Some(*ip));
            }
            // It begins anew when it has the lock again.
            (self.ledger, self.asked) = (None, 0);
            self.let_go += 1;
            return;
        }
        if let Some(Refusal::Taken(ip)) = supply.refusal {
            return self.tried.push(ip);
        }
        if let (Some(refusal), true) = (supply.refusal, supply.leases.is_empty()) {
            self.outcome = Some(Err(refusal));
        }
        if matches!(self.verb, Verb::Del(_) | Verb::Tidy(_)) {
            self.outcome = Some(Ok(None));
        }
    }

    /// Does what can be done on the node; what must be asked for, if that is not enough.
    fn turn(&mut self, clock: Clock, filter: &Filter) -> Option<Wish> {
        let mark = mark(&self.owner());
        let ledger = self.ledger.as_mut()?;
        match &self.verb {
            // What was done in the ledger is in the file by now.
            Verb::Del(_) | Verb::Tidy(_) if self.begun => Some(Wish::Nothing),
            Verb::Del(_) => {
                self.unwritten.extend(turn::take_back(ledger, clock.now, &[mark]));
                self.begun = true;
                None
            }
            Verb::GiveUp(lease, ip, _) => {
                // Told when it is on the disk.
                self.outcome = Some(match turn::give_up(ledger, lease, *ip) {
                    GiveUp::Hole(edits) => {
                        self.unwritten.extend(edits);
                        Ok(Some(*ip))
                    }
                    GiveUp::Held(_) => Err(Refusal::Here(*ip)),
                    GiveUp::Unknown => Err(Refusal::Exhausted),
                });
                None
            }
            Verb::Tidy(keep) => {
                self.unwritten = turn::tidy(ledger, clock, IDLE, *keep);
                self.begun = true;
                None
            }
            Verb::Add(_, wish) => {
                self.outcome = match turn::give(ledger, clock, filter, mark, *wish) {
                    Turn::Given(place, ip, edits) => {
                        let drains = ledger.block(place.page).is_some_and(|block| block.draining);
                        let named = !matches!(wish, Wish::Any) || edits.is_empty();
                        assert!(named || !drains, "{ip} is given from a block that is being emptied");
                        self.unwritten.extend(edits);
                        Some(Ok(Some(ip)))
                    }
                    Turn::Refused(refusal) => Some(Err(refusal)),
                    Turn::Ask(..) if self.asked >= 3 => Some(Err(Refusal::Exhausted)),
                    Turn::Ask(Wish::Kept(named), _) => {
                        return Some(Wish::Kept(turn::spare(
                            ledger,
                            clock,
                            filter,
                            mark,
                            named,
                            &self.tried,
                        )));
                    }
                    Turn::Ask(wish, _) => return Some(wish),
                };
                None
            }
        }
    }

    /// The question, if there is something to ask.
    fn question(&mut self, wish: Wish) -> Option<Ask> {
        self.asked += 1;
        let question = turn::ask(self.ledger.as_ref()?, wish);
        let idle = question.known.iter().all(|known| known.state == State::Active);
        if matches!(self.verb, Verb::Del(_)) && idle {
            self.outcome = Some(Ok(None));
            return None;
        }
        Some(question)
    }
}

fn mark(owner: &Owner) -> u64 {
    owner
        .name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

impl Node {
    /// Its agent goes on with every question.
    fn go_on(&mut self) {
        self.agent.retain_mut(|(task, place)| {
            match task.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(supply) => {
                    *place.lock().unwrap() = Some(supply);
                    false
                }
                Poll::Pending => true,
            }
        });
    }
}

impl Cluster {
    pub(crate) fn new(seed: u64, shape: Shape) -> Cluster {
        let subnet: IpNet = shape.subnet.parse().unwrap();
        let range = Range::between(subnet, None, None).unwrap();
        let api = Api::new(seed);
        api.server.lock().unwrap().protects = shape.shared || shape.deleted;
        let node = |index: usize| Node {
            name: format!("n{index}"),
            disk: Disk::of(Ledger::new("b0").image()),
            synced: Ledger::new("b0").image(),
            boot: 0,
            skew: 0,
            moved: false,
            alive: true,
            lives: false,
            api: api.connect(),
            calls: Vec::new(),
            agent: Vec::new(),
            giver: Giver::default(),
            seen: Vec::new(),
            pods: BTreeMap::new(),
            wishes: BTreeMap::new(),
        };
        Cluster {
            seed,
            shape,
            grid: Grid::new(subnet, shape.bits),
            filter: Arc::new(Filter { range, exclude: Vec::new() }),
            random: Random(
                seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407),
            ),
            nodes: (0..shape.nodes).map(node).collect(),
            api,
            now: 1_000_000,
            told: BTreeMap::new(),
            deleted: Vec::new(),
            freed: BTreeMap::new(),
            controller: None,
            next: 0,
            steps: 0,
            given: 0,
            refused: 0,
            named: 0,
            drained: 0,
            kills: 0,
            handed: 0,
            had_own: 0,
            doubted: 0,
            again: 0,
            doomed: 0,
            emptied: 0,
        }
    }

    /// Everything that can happen, for so many steps.
    pub(crate) fn trouble(&mut self, steps: u64) {
        for _ in 0..steps {
            self.step();
            let node = self.pick();
            match self.random.below(3_000) {
                0..20 => self.kill_call(node),
                20..30 => {
                    self.nodes[node].agent.clear();
                    self.nodes[node].giver = Giver::default();
                }
                30..34 => self.power(node),
                34..36 => self.die(node),
                36..60 => self.come_back(node),
                94..96 => self.lose_sight(node),
                96..104 => self.lose_object(node),
                104..150 if self.shape.late => self.lose_object(node),
                150..170 if self.shape.shared || self.shape.deleted => self.delete_by_hand(),
                170..190 if self.shape.shared || self.shape.deleted => self.give_back_deleted(node),
                60..64 => {
                    let down = self.random.once_in(2);
                    self.api.server.lock().unwrap().down = down;
                }
                64..72 => {
                    let cut = self.random.once_in(2);
                    *self.nodes[node].api.partitioned.lock().unwrap() = cut;
                }
                72..74 if self.seed % 2 == 1 => {
                    self.nodes[node].skew = self.random.below(4_000) as i64 - 2_000;
                    self.nodes[node].moved = true;
                    self.freed.clear();
                }
                74..94 => self.look(node),
                _ => {}
            }
        }
    }

    /// Blocks that were looked into after they were made, and those that were not.
    pub(crate) fn looked(&self) -> [u64; 2] {
        self.api.server.lock().unwrap().looked
    }

    fn pick(&mut self) -> usize {
        self.random.below(self.nodes.len() as u64) as usize
    }

    /// One thing goes on somewhere.
    fn step(&mut self) {
        self.steps += 1;
        self.now += 1;
        let index = self.pick();
        if self.random.once_in(200) && self.controller.is_none() {
            self.controller = Some(self.reclaim());
        }
        poll(&mut self.controller);
        if !self.nodes[index].alive {
            return;
        }
        if self.nodes[index].calls.len() < CALLS && self.random.once_in(6) {
            self.begin(index);
        }
        let clock = self.clock(index);
        self.nodes[index].go_on();
        let begins = self.random.once_in(8);
        let node = &mut self.nodes[index];
        self.handed += node.giver.go_on(begins, &node.api, self.grid, &node.name, clock.now);
        node.calls
            .extend(node.giver.errands().map(|(lease, ip, said)| Call::of(Verb::GiveUp(lease, ip, said))));
        // Whoever is first has the lock.
        if !node.calls.is_empty() {
            self.advance(index);
        }
    }

    fn begin(&mut self, index: usize) {
        let busy = |node: &Node, owner: &Owner| {
            node.calls.iter().any(|call| match &call.verb {
                Verb::Add(other, _) | Verb::Del(other) => other == owner,
                Verb::Tidy(_) | Verb::GiveUp(..) => false,
            })
        };
        let known: Vec<Owner> = self.nodes[index].pods.keys().cloned().collect();
        let old = (!known.is_empty()).then(|| known[self.random.below(known.len() as u64) as usize].clone());
        let verb = match (self.random.below(10), old) {
            (0..4, Some(owner)) if !busy(&self.nodes[index], &owner) => Verb::Del(owner),
            // A repeated ADD. For a pod that is gone from the cluster there is none.
            (4, Some(owner)) if !busy(&self.nodes[index], &owner) && !self.is_gone(&owner) => {
                let wish = self.nodes[index].wishes.get(&owner).copied().unwrap_or(Wish::Any);
                Verb::Add(owner, wish)
            }
            (5, _) => Verb::Tidy(4),
            _ => {
                self.next += 1;
                let mut owner = Owner::of(format!("p{}/{index}", self.next));
                let mut wish = Wish::Any;
                if self.shape.claims > 0 {
                    let size = ipam::grid::addresses_of(self.grid.subnet());
                    let host = self.random.below(60) + 1;
                    let nth =
                        |host: u64| ipam::grid::nth(self.grid.subnet(), u128::from(host) % (size - 2) + 1);
                    match self.random.below(4) {
                        0 => wish = Wish::Address(nth(host)),
                        1 => {
                            let claim = self.random.below(self.shape.claims);
                            owner.claim = format!("c{claim}");
                            owner.restored = (claim % 2 == 1).then(|| nth(claim * 8 + 5));
                            wish = Wish::Kept(None);
                        }
                        2 if self.random.below(4) == 0 => {
                            owner.claim = format!("n{host}");
                            wish = Wish::KeptAddress(nth(host));
                        }
                        _ => {}
                    }
                }
                Verb::Add(owner, wish)
            }
        };
        if let Verb::Add(owner, wish) = &verb {
            self.nodes[index].wishes.insert(owner.clone(), *wish);
            self.nodes[index].pods.entry(owner.clone()).or_insert(None);
        }
        if let Verb::Del(owner) = &verb {
            // From here on nobody has the address.
            self.forget(index, owner);
        }
        self.nodes[index].calls.push(Call::of(verb));
    }

    fn is_gone(&self, owner: &Owner) -> bool {
        self.api.server.lock().unwrap().gone.contains(&owner.name)
    }

    fn forget(&mut self, index: usize, owner: &Owner) {
        if let Some(told) = self.nodes[index].pods.get_mut(owner)
            && let Some(ip) = told.take()
        {
            self.leave(ip, index, owner);
            let is_deleted = self.deleted.iter().any(|net| net.contains(&ip));
            match is_deleted || self.nodes.iter().any(|node| node.moved) {
                true => self.freed.remove(&ip),
                false => self.freed.insert(ip, (self.now, owner.clone())),
            };
        }
        if !owner.claim.is_empty() {
            self.api.server.lock().unwrap().gone.insert(owner.name.clone());
        }
    }

    /// One of those who have an address has it no more.
    fn leave(&mut self, ip: IpAddr, index: usize, owner: &Owner) {
        let holders = self.told.entry(ip).or_default();
        holders.remove(&(index, owner.clone()));
        if holders.is_empty() {
            self.told.remove(&ip);
            self.api.server.lock().unwrap().shown.remove(&ip);
        }
    }

    fn clock(&self, index: usize) -> Clock {
        Clock { now: self.now.saturating_add_signed(self.nodes[index].skew), rest: REST }
    }

    /// The call that has the lock does one thing.
    fn advance(&mut self, index: usize) {
        let clock = self.clock(index);
        let filter = Arc::clone(&self.filter);
        let node = &mut self.nodes[index];
        let call = &mut node.calls[0];
        if !call.unwritten.is_empty() {
            let Edit { offset, bytes, order } = call.unwritten.remove(0);
            let offset = usize::try_from(offset).unwrap();
            let mut disk = node.disk.0.lock().unwrap();
            if order == Order::Settled {
                node.synced.clone_from(&disk);
            }
            let length = disk.len().max(offset + bytes.len());
            disk.resize(length, 0);
            disk[offset..offset + bytes.len()].copy_from_slice(&bytes);
            return;
        }
        if let Some(outcome) = call.outcome.take() {
            node.synced.clone_from(&node.disk.0.lock().unwrap());
            let call = node.calls.remove(0);
            self.drained += call.drained;
            self.had_own += u64::from(call.let_go > 0 && matches!(outcome, Ok(Some(_))));
            return self.end(index, &call.verb, outcome);
        }
        if call.ledger.is_none() && call.let_go > call.begun_anew {
            call.begun_anew = call.let_go;
            // Others have the lock meanwhile, as they came.
            return node.calls.rotate_left(1);
        }
        if call.ledger.is_none() {
            let mut ledger = Ledger::open(Arc::new(node.disk.clone())).unwrap().expect("a ledger");
            let boot = format!("b{}", node.boot);
            if ledger.boot() != boot {
                call.unwritten = ledger.begin(&boot, clock.now);
            }
            call.ledger = Some(ledger);
            return;
        }
        if call.answer.is_some() {
            return call.hear(clock, node.agent.is_empty());
        }
        let Some(wish) = call.turn(clock, &filter) else { return };
        let Some(mut question) = call.question(wish) else { return };
        let owner = call.owner();
        if let (Wish::Kept(_), Some(ip)) = (wish, owner.restored) {
            question.wish = Wish::KeptAddress(ip);
        }
        let place = Answer::default();
        call.answer = Some(Arc::clone(&place));
        let holder = Holder {
            node: node.name.clone(),
            ledger: "pool".into(),
            owner: owner.name.clone(),
            claim: owner.claim,
            ..Holder::default()
        };
        let seed = mark(&Owner::of(node.name.clone()));
        let (api, seen, holder) = (node.api.clone(), node.seen.clone(), (holder, self.shape.shared));
        let task = agent(api, self.grid, filter, holder, clock, seed, question, seen);
        node.agent.push((Box::pin(task), place));
    }

    fn end(&mut self, index: usize, verb: &Verb, outcome: Result<Option<IpAddr>, Refusal>) {
        match (verb, outcome) {
            (Verb::Add(owner, wish), Ok(Some(ip))) => self.tell(index, owner, *wish, ip),
            (Verb::Add(_, wish), Err(refusal)) => {
                self.refused += 1;
                if let (
                    Wish::Address(ip) | Wish::KeptAddress(ip),
                    Refusal::Held { net, .. } | Refusal::Asked { net, .. },
                ) = (wish, refusal)
                {
                    // Whoever is refused an address is told what holds it.
                    assert!(net.contains(ip), "seed {}: {ip} is not in {net}", self.seed);
                    self.named += 1;
                }
            }
            (Verb::Del(owner), _) => {
                // DEL always succeeds on the node: what the agent did not hear goes with the next question.
                self.nodes[index].pods.remove(owner);
            }
            (Verb::GiveUp(_, _, said), outcome) => said.say(&outcome),
            _ => {}
        }
    }

    fn tell(&mut self, index: usize, owner: &Owner, wish: Wish, ip: IpAddr) {
        let seed = self.seed;
        self.given += 1;
        let again = self.nodes[index].pods.insert(owner.clone(), Some(ip)).flatten();
        assert!(
            again.is_none_or(|known| known == ip),
            "seed {seed}: {owner:?} had {again:?} and is given {ip}"
        );
        assert!(self.filter.admits(ip), "seed {seed}: {ip} is not in the range");
        self.api.server.lock().unwrap().shown.insert(ip);
        let holders = self.told.entry(ip).or_default();
        holders.insert((index, owner.clone()));
        for (node, other) in holders.iter() {
            let shares = self.shape.shared && !owner.claim.is_empty() && owner.claim == other.claim;
            assert!(
                shares || (*node, other) == (index, owner),
                "seed {seed}, step {}: {ip} is {other:?}'s on n{node} and is given to {owner:?} on n{index}",
                self.steps
            );
        }
        if let Wish::Address(wanted) | Wish::KeptAddress(wanted) = wish {
            assert_eq!(ip, wanted, "seed {seed}");
        }
        assert!(owner.restored.is_none_or(|known| known == ip), "seed {seed}: {owner:?} is given {ip}");
        if let Some((freed, before)) = self.freed.remove(&ip)
            && wish == Wish::Any
            && before != *owner
        {
            assert!(self.now >= freed + REST, "seed {seed}: {ip} was freed at {freed}, now is {}", self.now);
        }
    }

    // === what happens ===

    /// The call that has the lock dies; its runtime will say DEL.
    fn kill_call(&mut self, index: usize) {
        if !self.nodes[index].calls.is_empty() {
            self.nodes[index].calls.remove(0);
            self.kills += 1;
        }
    }

    /// A node loses power and starts again.
    fn power(&mut self, index: usize) {
        if !self.nodes[index].alive {
            return;
        }
        self.lose(index);
        let forgets = self.random.once_in(2);
        let node = &mut self.nodes[index];
        if forgets {
            node.disk = Disk::of(node.synced.clone());
        }
        node.synced.clone_from(&node.disk.0.lock().unwrap());
        node.boot += 1;
    }

    /// A node dies: everything on it is gone, but perhaps its disk.
    fn die(&mut self, index: usize) {
        if self.nodes[index].alive {
            self.power(index);
            self.nodes[index].alive = false;
            self.api.server.lock().unwrap().dead.insert(self.nodes[index].name.clone());
        }
    }

    fn come_back(&mut self, index: usize) {
        if self.nodes[index].lives {
            return self.be_seen(index);
        }
        let wiped = self.random.once_in(3);
        let node = &mut self.nodes[index];
        if node.alive {
            return;
        }
        node.alive = true;
        self.api.server.lock().unwrap().dead.remove(&node.name);
        if wiped {
            node.synced = Ledger::new(&format!("b{}", node.boot)).image();
            node.disk = Disk::of(node.synced.clone());
        }
    }

    /// Its processes and pods are gone.
    fn lose(&mut self, index: usize) {
        let owners: Vec<Owner> = self.nodes[index].pods.keys().cloned().collect();
        for owner in owners {
            self.forget(index, &owner);
        }
        // What an address rests is kept on the node's disk, and may be lost with it.
        self.freed.clear();
        let node = &mut self.nodes[index];
        node.pods.clear();
        node.calls.clear();
        node.agent.clear();
        node.giver = Giver::default();
    }

    /// The agent's watch catches up.
    fn look(&mut self, index: usize) {
        let name = self.nodes[index].name.clone();
        let server = self.api.server.lock().unwrap();
        self.nodes[index].seen =
            server.objects.values().filter(|object| object.holder.node == name).cloned().collect();
    }

    /// The controller takes back what nodes have that are dead and fenced: it reads, makes sure, then takes. Of one claim it
    /// hears that it has ended.
    fn reclaim(&self) -> Task<()> {
        let (api, now, shared) = (self.api.clone(), self.now, self.shape.shared);
        let ended = format!("c{}", now % self.shape.claims.max(1));
        Box::pin(async move {
            let Ok(all) = api.all().await else { return };
            let Ok(dead) = api.dead().await else { return };
            for object in all {
                if dead.contains(&object.holder.node) {
                    let _ = ipam::lease::reclaim(&api, object, now).await;
                } else if object.holder.node.is_empty() && object.holder.claim == ended {
                    // Of pods that share it one may have it still.
                    if !shared || api.shows(object.net.addr()).await == Ok(false) {
                        let _ = ipam::lease::end_claim(&api, object, now).await;
                    }
                }
            }
        })
    }
}

fn poll(task: &mut Option<Task<()>>) {
    let ended = task
        .as_mut()
        .is_some_and(|task| task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
    if ended {
        *task = None;
    }
}

#[expect(clippy::too_many_arguments, reason = "a task owns what it works with")]
async fn agent(
    api: Api,
    grid: Grid,
    filter: Arc<Filter>,
    (holder, shares_claim): (Holder, bool),
    clock: Clock,
    seed: u64,
    ask: Ask,
    seen: Vec<Object>,
) -> Supply {
    let looks = LOOKS;
    let counter = Counter { registry: &api, grid, filter: &filter, holder, shares_claim, clock, seed, looks };
    turn::serve(&counter, &ask, &seen).await
}
