//! `weft-ipam` configuration: the network's pools, the usable addresses, and who owns an address.
//!
//! Three vocabularies can be mixed: whereabouts' (`range`, `range_start`, `exclude`, `ipRanges`, `network_name`),
//! host-local's (`subnet`, `rangeStart`, `ranges`, `resolvConf`, `dataDir`) and weft's (`pool`, `store`, `quarantine`,
//! `sticky`). Each entry of `ipRanges`, and each list of `ranges`, is a set that yields one address.
//!
//! A range's pool has the name that whereabouts gives it, `[network_name-]10.1.0.0-16`. Networks with the same range
//! share the addresses, but each network can have a different start, end, exclude and gateway.
//!
//! Source: whereabouts `pkg/types/types.go`, `pkg/config/config.go`; host-local.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use cni::Error;
use cni::args::Args;
use cni::invocation::{Attachment, Call};
use cni::result::{Dns, IpConfig, Route};
use ipam::{AddressFilter, Range, RangePart};
use ipnet::IpNet;
use npwg::metadata::definition_name_fault;
use npwg::plan::PodIdentity;
use serde::Deserialize;

use crate::addresses::{self, Request, RequestConf, Requests, RouteConf};

/// Default directory of the address stores.
const DATA_DIRECTORY: &str = "/var/lib/weft/ipam";
/// Default path of the agent's socket.
const AGENT_SOCKET: &str = "/run/weft/agent.sock";
/// Default quarantine of a released address, in seconds.
pub const QUARANTINE: u64 = 60;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Conf {
    ipam: IpamConf,
    args: ArgsConf,
    #[serde(rename = "runtimeConfig")]
    runtime_config: RuntimeConf,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RuntimeConf {
    #[serde(rename = "ipRanges")]
    ip_ranges: Vec<Vec<RangeConf>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ArgsConf {
    cni: RequestedClaimConf,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RequestedClaimConf {
    #[serde(rename = "ipam-claim-reference")]
    claim: String,
    sticky: bool,
    /// Virtual machine of the pod: [`npwg::metadata::VIRTUAL_MACHINE`].
    #[serde(rename = "weft.dev/virtual-machine")]
    machine: String,
}

/// The `ipam` object, field by field.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct IpamConf {
    #[serde(rename = "type")]
    plugin: String,
    range: String,
    subnet: String,
    range_start: String,
    range_end: String,
    #[serde(rename = "rangeStart")]
    start: String,
    #[serde(rename = "rangeEnd")]
    end: String,
    exclude: Vec<String>,
    pick_addresses: Vec<String>,
    gateway: String,
    #[serde(rename = "ipRanges")]
    ip_ranges: Vec<RangeConf>,
    ranges: Vec<Vec<RangeConf>>,
    routes: Vec<RouteConf>,
    dns: Dns,
    addresses: Vec<AddressConf>,
    network_name: String,
    #[serde(rename = "resolvConf")]
    resolv_conf: String,
    #[serde(rename = "dataDir")]
    data_dir: String,
    pool: String,
    store: String,
    #[serde(rename = "agentSocket")]
    agent_socket: String,
    quarantine: Option<u64>,
    /// Whether every pod keeps the same address; if absent, the pods that request it.
    sticky: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RangeConf {
    range: String,
    subnet: String,
    range_start: String,
    range_end: String,
    #[serde(rename = "rangeStart")]
    start: String,
    #[serde(rename = "rangeEnd")]
    end: String,
    exclude: Vec<String>,
    pick_addresses: Vec<String>,
    gateway: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct AddressConf {
    address: String,
    gateway: String,
}

/// Origin of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The cluster, through the agent.
    Cluster,
    /// This host alone.
    File,
}

/// Pool, and the part of it that the network may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Name of the pool and the address store.
    pub name: String,
    /// Whether the configuration names the pool, which then must exist.
    pub given: bool,
    /// Range of the pool.
    pub range: IpNet,
    /// Addresses that the network may use.
    pub filter: AddressFilter,
    /// Gateway of the result.
    pub gateway: Option<IpAddr>,
}

/// Set of pools that yields one address, from the first pool with a free one.
#[derive(Clone, Debug)]
pub struct Set {
    /// The pools.
    pub pools: Vec<Arc<Pool>>,
    /// Requested address.
    pub request: Option<Request>,
}

/// Key for the pod's virtual machine: [`npwg::metadata::VIRTUAL_MACHINE`].
const MACHINE_KEY: &str = "args.cni.weft.dev/virtual-machine";

/// Prefix for names of IPAMClaims.
pub const OF_CLAIM: &str = "claim/";

/// Claim that keeps an address when the pod is gone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// Name; empty: none.
    pub name: String,
    /// Whether several pods hold it at a time, as during the migration of a virtual machine.
    pub shared: bool,
}

/// Validated configuration.
#[derive(Debug)]
pub struct Settings {
    /// Directory of the address stores.
    pub directory: PathBuf,
    /// Origin of addresses.
    pub source: Source,
    /// Path of the agent's socket.
    pub socket: PathBuf,
    /// Quarantine of a released address, in milliseconds.
    pub quarantine: u64,
    /// Name of the address space.
    pub network: String,
    /// Sets; each yields one address.
    pub sets: Vec<Set>,
    /// Addresses that are added to the result unchanged.
    pub fixed: Vec<IpConfig>,
    /// Routes for the result.
    pub routes: Vec<Route>,
    /// DNS settings for the result, unless a file has them.
    pub dns: Dns,
    /// File from which the result's DNS settings are read.
    pub resolv_conf: Option<PathBuf>,
    /// Claim that keeps the addresses.
    pub claim: Claim,
    /// The pod, as the runtime names it.
    pub pod: PodIdentity,
}

impl Settings {
    /// Returns every pool once.
    pub fn pools(&self) -> Vec<&Arc<Pool>> {
        let mut pools: Vec<&Arc<Pool>> = Vec::new();
        for pool in self.sets.iter().flat_map(|set| &set.pools) {
            if !pools.iter().any(|known| known.name == pool.name) {
                pools.push(pool);
            }
        }
        pools
    }

    /// Returns the pool names from all sets.
    pub fn all_pool_names(&self) -> Vec<&str> {
        self.sets.iter().flat_map(|set| &set.pools).map(|pool| pool.name.as_str()).collect()
    }

    /// Reads and validates the configuration.
    pub fn read(call: &Call, who: Option<&Attachment>) -> Result<Settings, Error> {
        let settings = Settings::written(call, who)?;
        // whereabouts also serves networks that have only fixed addresses.
        match settings.sets.is_empty() && settings.fixed.is_empty() {
            true => Err(Error::missing("ipam.range", "there is no range to allocate addresses from")),
            false => Ok(settings),
        }
    }

    /// Same as [`Settings::read`] for STATUS and GC, where no range may be known: the runtime can pass ranges with ADD
    /// (`ipRanges`).
    pub fn written(call: &Call, who: Option<&Attachment>) -> Result<Settings, Error> {
        let Conf { ipam: mut keys, args: ArgsConf { cni: requested }, runtime_config } =
            call.config.decode()?;
        keys.relax();
        let arguments = Args::parse(call.args())?;
        arguments.only(&["IP", "GATEWAY"])?;
        let requests = Requests::read(call.config.decode::<RequestConf>()?, &arguments)?;
        let value = |key| arguments.get(key).unwrap_or_default().to_owned();
        let pod = PodIdentity {
            namespace: value("K8S_POD_NAMESPACE"),
            name: value("K8S_POD_NAME"),
            uid: value("K8S_POD_UID"),
        };
        let source = match keys.store.as_str() {
            "" | "cluster" => Source::Cluster,
            "file" => Source::File,
            other => return Err(Error::key("ipam.store", format!("{other:?}"), "neither cluster nor file")),
        };
        let mut sets = keys.sets(runtime_config)?;
        let fixed = fixed(std::mem::take(&mut keys.addresses))?;
        if !sets.is_empty() || !fixed.is_empty() {
            assign(&mut sets, requests)?;
        }
        let families = sets.iter().filter_map(|set| set.pools.first()).map(|pool| pool.range.addr());
        addresses::one_of_each_family(call.config.version, families, "ipam.ipRanges")?;
        let claim = claim(requested, &keys, source, &pod, call, who)?;
        if keys.resolv_conf.contains('\0') {
            return Err(Error::key("ipam.resolvConf", format!("{:?}", keys.resolv_conf), "not a path"));
        }
        Ok(Settings {
            directory: absolute("ipam.dataDir", &keys.data_dir, DATA_DIRECTORY)?,
            source,
            socket: absolute("ipam.agentSocket", &keys.agent_socket, AGENT_SOCKET)?,
            quarantine: keys.quarantine.unwrap_or(QUARANTINE).saturating_mul(1000),
            network: keys.network_name,
            sets,
            fixed,
            routes: addresses::routes(keys.routes)?,
            dns: keys.dns,
            resolv_conf: (!keys.resolv_conf.is_empty()).then(|| PathBuf::from(keys.resolv_conf)),
            claim,
            pod,
        })
    }
}

impl IpamConf {
    /// Removes leading zeros of IPv4 addresses under the name `whereabouts`, which reads them as decimal numbers.
    fn relax(&mut self) {
        if self.plugin != "whereabouts" {
            return;
        }
        let own = [&mut self.range, &mut self.range_start, &mut self.range_end, &mut self.gateway];
        own.into_iter().chain(&mut self.exclude).for_each(decimal);
        for RangeConf { range, range_start, range_end, exclude, gateway, .. } in &mut self.ip_ranges {
            [range, range_start, range_end, gateway].into_iter().chain(exclude).for_each(decimal);
        }
        for AddressConf { address, gateway } in &mut self.addresses {
            [address, gateway].into_iter().for_each(decimal);
        }
    }

    /// Returns the sets, in the order of the configuration.
    fn sets(&mut self, runtime: RuntimeConf) -> Result<Vec<Set>, Error> {
        name("ipam.network_name", &self.network_name)?;
        name("ipam.pool", &self.pool)?;
        let take = |text: &mut String| std::mem::take(text);
        let flat = RangeConf {
            range: take(&mut self.range),
            subnet: take(&mut self.subnet),
            range_start: take(&mut self.range_start),
            range_end: take(&mut self.range_end),
            start: take(&mut self.start),
            end: take(&mut self.end),
            exclude: std::mem::take(&mut self.exclude),
            pick_addresses: std::mem::take(&mut self.pick_addresses),
            gateway: self.gateway.clone(),
        };
        let mut written: Vec<(String, Vec<RangeConf>)> = Vec::new();
        let numbered = |key: &'static str| move |(at, list)| (format!("{key}[{at}]"), list);
        written.extend(runtime.ip_ranges.into_iter().enumerate().map(numbered("runtimeConfig.ipRanges")));
        if !flat.range.is_empty() || !flat.subnet.is_empty() {
            written.push(("ipam".to_owned(), vec![flat]));
        }
        let each = std::mem::take(&mut self.ip_ranges).into_iter().map(|range| vec![range]).enumerate();
        written.extend(each.map(numbered("ipam.ipRanges")));
        written.extend(std::mem::take(&mut self.ranges).into_iter().enumerate().map(numbered("ipam.ranges")));
        if written.is_empty() {
            return Ok(Vec::new());
        }
        let mut sets = Vec::with_capacity(written.len());
        for (key, list) in written {
            let made = list.iter().map(|range| self.pool(&key, range).map(Arc::new));
            let pools = made.collect::<Result<Vec<_>, Error>>()?;
            let Some(first) = pools.first() else { return Err(Error::key(key, "[]", "an empty range set")) };
            if let Some(other) =
                pools.iter().find(|pool| pool.range.addr().is_ipv4() != first.range.addr().is_ipv4())
            {
                return Err(Error::key(key, other.range, format!("not of the family of {}", first.range)));
            }
            // whereabouts accepts a range twice.
            let is_same = |set: &Set| self.plugin == "whereabouts" && set.pools == pools;
            if !sets.iter().any(is_same) {
                sets.push(Set { pools, request: None });
            }
        }
        refuse_overlaps(&sets)?;
        let gateway = addresses::address("ipam.gateway", &self.gateway)?;
        let is_served =
            |gateway| sets.iter().flat_map(|set| &set.pools).any(|pool| pool.gateway == Some(gateway));
        match gateway.filter(|gateway| self.plugin != "whereabouts" && !is_served(*gateway)) {
            Some(gateway) => Err(Error::key("ipam.gateway", gateway, "in none of the ranges")),
            None => Ok(sets),
        }
    }

    /// Returns the gateway for a range that names none. whereabouts uses one gateway for all ranges of an address
    /// family.
    fn shared_gateway(&self, net: IpNet) -> Result<Option<IpAddr>, Error> {
        let gateway = addresses::address("ipam.gateway", &self.gateway)?;
        let serves = |ip: &IpAddr| match self.plugin == "whereabouts" {
            true => is_of_family(net, *ip),
            false => is_reached(net, *ip),
        };
        Ok(gateway.filter(serves))
    }

    /// Refuses a gateway that is unreachable in this network. Under the name `whereabouts` it is accepted, as whereabouts does.
    fn refuse_unreachable(&self, key: &str, gateway: Option<IpAddr>, net: IpNet) -> Result<(), Error> {
        match gateway.filter(|gateway| !is_reached(net, *gateway)) {
            Some(gateway) if self.plugin != "whereabouts" => {
                Err(Error::key(key, gateway, format!("not in {} and not link-local", net.trunc())))
            }
            _ => Ok(()),
        }
    }

    fn pool(&self, key: &str, conf: &RangeConf) -> Result<Pool, Error> {
        let Bounds { net, key: key_of_range, first, last } = Bounds::read(key, conf)?;
        let key_of_gateway = format!("{key}.gateway");
        let own = match conf.gateway.as_str() {
            "" => self.shared_gateway(net)?,
            gateway => addresses::address(&key_of_gateway, gateway)?,
        };
        self.refuse_unreachable(&key_of_gateway, own, net)?;
        // A `subnet` of host-local has a default gateway, a `range` of whereabouts has none.
        let usual = |ranged: &Range| conf.range.is_empty().then(|| ranged.usual_gateway()).flatten();
        // whereabouts ignores an end before the start.
        let is_before = |end: &IpAddr| first.1.is_some_and(|start| *end < start);
        let end = last.1.filter(|end| self.plugin != "whereabouts" || !is_before(end));
        let made = Range::of_any_size(net.trunc(), first.1, end).and_then(|made| {
            match own.filter(|ip| is_of_family(net, *ip)).or_else(|| usual(&made)) {
                Some(gateway) => made.with_gateway(gateway),
                None => Ok(made),
            }
        });
        let range = made.map_err(|ipam::RangeError { part, value, reason }| {
            let key = match part {
                RangePart::Subnet => &key_of_range,
                RangePart::First => &first.0,
                RangePart::Last => &last.0,
                RangePart::Gateway => &key_of_gateway,
            };
            Error::key(key, value, reason)
        })?;
        let mut exclude = self.excluded(&format!("{key}.exclude"), &conf.exclude, net)?;
        exclude.extend(unpicked(key, &conf.pick_addresses, &range)?);
        let gateway = range.gateway();
        let filter = AddressFilter::new(range, &exclude);
        if filter.is_empty() {
            return Err(Error::key(format!("{key}.exclude"), &filter.range, "excludes every address"));
        }
        let given = !self.pool.is_empty();
        let name = match given {
            true => self.pool.clone(),
            false => pool_name(&self.network_name, net.trunc()),
        };
        Ok(Pool { name, given, range: net.trunc(), filter, gateway })
    }

    fn excluded(&self, key: &str, written: &[String], net: IpNet) -> Result<Vec<IpNet>, Error> {
        let read = |(at, text): (usize, &String)| {
            let key = format!("{key}[{at}]");
            let other = match addresses::prefix(&key, text) {
                Ok(other) => other.trunc(),
                Err(error) => addresses::address(&key, text).ok().flatten().map(IpNet::from).ok_or(error)?,
            };
            match is_of_family(net, other.addr()) || self.plugin == "whereabouts" {
                true => Ok(other),
                false => Err(Error::key(key, other, format!("not of the family of {net}"))),
            }
        };
        written.iter().enumerate().map(read).collect()
    }
}

/// Removes leading zeros in an IPv4 address, network or range.
fn decimal(text: &mut String) {
    if text.contains(':') || !text.contains('.') {
        return;
    }
    let part = |part: &str| {
        let digits = part.trim_start_matches('0');
        if digits.starts_with(|first: char| first.is_ascii_digit()) || part.is_empty() {
            digits.to_owned()
        } else {
            format!("0{digits}")
        }
    };
    let address = |address: &str| address.split('.').map(part).collect::<Vec<_>>().join(".");
    *text = text.split('-').map(address).collect::<Vec<_>>().join("-");
}

/// Returns the parts of a range that are not among `pick_addresses`; none if there is no such list.
fn unpicked(key: &str, picked: &[String], range: &Range) -> Result<Vec<IpNet>, Error> {
    let mut known = Vec::with_capacity(picked.len());
    for (at, text) in picked.iter().enumerate() {
        let key = format!("{key}.pick_addresses[{at}]");
        let Some(ip) = addresses::address(&key, text)? else { continue };
        if !range.contains(ip) {
            return Err(Error::key(key, ip, format!("not in {range}")));
        }
        known.push(ip);
    }
    if known.is_empty() {
        return Ok(Vec::new());
    }
    known.sort();
    known.dedup();
    let mut rest: Vec<IpNet> = vec![range.subnet()];
    for ip in known {
        let own = IpNet::from(ip);
        rest = rest
            .into_iter()
            .flat_map(|net| if net.contains(&own) { around(net, own) } else { vec![net] })
            .collect();
    }
    Ok(rest)
}

/// Returns the parts of a network beside one address.
fn around(net: IpNet, own: IpNet) -> Vec<IpNet> {
    let halves = (net.prefix_len()..own.prefix_len()).filter_map(|length| {
        let half = IpNet::new(own.addr(), length).ok()?.trunc();
        half.subnets(length + 1).ok()?.find(|half| !half.contains(&own))
    });
    halves.collect()
}

/// Range bounds as written: network, first and last address, each with the key.
struct Bounds {
    net: IpNet,
    key: String,
    first: (String, Option<IpAddr>),
    last: (String, Option<IpAddr>),
}

impl Bounds {
    fn read(key: &str, conf: &RangeConf) -> Result<Bounds, Error> {
        let RangeConf { range, subnet, range_start, range_end, start, end, .. } = conf;
        let either = |one: &'static str, a: &str, other: &'static str, b: &str| match a.is_empty() {
            true => (format!("{key}.{other}"), b.to_owned()),
            false => (format!("{key}.{one}"), a.to_owned()),
        };
        let (key_of_range, text) = either("range", range, "subnet", subnet);
        let mut first = either("range_start", range_start, "rangeStart", start);
        let mut last = either("range_end", range_end, "rangeEnd", end);
        // whereabouts also accepts `first-last/length`.
        let text = match text.split_once('-') {
            Some((from, rest)) => {
                let to = rest.split('/').next().unwrap_or_default();
                for (end, own) in [(&mut first, from), (&mut last, to)] {
                    if end.1.is_empty() {
                        *end = (key_of_range.clone(), own.to_owned());
                    }
                }
                rest.to_owned()
            }
            None => text,
        };
        let net = addresses::prefix(&key_of_range, &text)?;
        refuse_unusable(&key_of_range, net)?;
        let address = |(key, text): (String, String)| -> Result<(String, Option<IpAddr>), Error> {
            let ip = addresses::address(&key, &text)?;
            Ok((key, ip))
        };
        Ok(Bounds { net, key: key_of_range, first: address(first)?, last: address(last)? })
    }
}

fn is_of_family(net: IpNet, ip: IpAddr) -> bool {
    net.addr().is_ipv4() == ip.is_ipv4()
}

/// Whether a host of this network reaches the gateway without a route.
fn is_reached(net: IpNet, gateway: IpAddr) -> bool {
    let is_local = match gateway {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    net.contains(&gateway) || (is_local && is_of_family(net, gateway))
}

/// Refuses networks whose addresses no host can have: RFC 6890, RFC 4291 2.4.
fn refuse_unusable(key: &str, net: IpNet) -> Result<(), Error> {
    for (other, why) in [
        ("0.0.0.0/8", "of no host"),
        ("127.0.0.0/8", "loopback"),
        ("224.0.0.0/4", "multicast"),
        ("::/127", "unspecified or loopback"),
        ("ff00::/8", "multicast"),
    ] {
        let is_met = |other: IpNet| other.contains(&net) || net.contains(&other);
        if other.parse().is_ok_and(is_met) {
            return Err(Error::key(key, net, format!("has addresses of {other}, which are {why}")));
        }
    }
    Ok(())
}

/// Returns the name of a range's pool, as whereabouts names it.
fn pool_name(network: &str, range: IpNet) -> String {
    let text = range.to_string().replace([':', '/'], "-");
    let divider = if network.is_empty() { "" } else { "-" };
    format!("{network}{divider}{text}")
}

/// Checks a name that becomes part of an object name and of a path.
pub fn name(key: &str, text: &str) -> Result<(), Error> {
    match text.is_empty() || ipam::address_store::is_valid_name(text) {
        true => Ok(()),
        false => {
            Err(Error::key(key, format!("{text:?}"), "not a name: lower-case letters, digits, - and . only"))
        }
    }
}

fn refuse_overlaps(sets: &[Set]) -> Result<(), Error> {
    let ranges: Vec<&Range> = sets.iter().flat_map(|set| &set.pools).map(|pool| &pool.filter.range).collect();
    for (at, range) in ranges.iter().enumerate() {
        let meets = |other: &&&Range| other.contains(range.first()) || range.contains(other.first());
        if let Some(other) = ranges[..at].iter().find(meets) {
            return Err(Error::key("ipam.ipRanges", range, format!("overlaps {other}")));
        }
    }
    Ok(())
}

/// Assigns each request to the set that contains it. The same address is usually requested through more than one channel.
fn assign(sets: &mut [Set], requests: Requests) -> Result<(), Error> {
    let Requests { environment, args, runtime } = requests;
    for request in environment.into_iter().chain(args).chain(runtime) {
        let Request { key, ip, .. } = &request;
        let admits = |set: &&mut Set| set.pools.iter().any(|pool| pool.filter.range.contains(*ip));
        let Some(set) = sets.iter_mut().find(admits) else {
            return Err(Error::key(key, ip, "in none of the ranges"));
        };
        match &set.request {
            Some(known) if known.ip == *ip => {}
            Some(known) => {
                return Err(Error::key(
                    key,
                    ip,
                    format!("the range yields one address, and {} requests {}", known.key, known.ip),
                ));
            }
            None if !set.pools.iter().any(|pool| pool.filter.admits(*ip)) => {
                return Err(Error::key(
                    key,
                    ip,
                    "excluded, or the address of the gateway, of the network or of broadcasts",
                ));
            }
            None => set.request = Some(request),
        }
    }
    Ok(())
}

fn claim(
    requested: RequestedClaimConf,
    keys: &IpamConf,
    source: Source,
    pod: &PodIdentity,
    call: &Call,
    who: Option<&Attachment>,
) -> Result<Claim, Error> {
    let PodIdentity { namespace, name, .. } = pod;
    if requested.sticky && keys.sticky == Some(false) {
        return Err(Error::key(
            "args.cni.sticky",
            "true",
            "this network keeps no addresses: ipam.sticky is false",
        ));
    }
    // The names come from a pod and become part of a path.
    for (key, text) in
        [("args.cni.ipam-claim-reference", &requested.claim), (MACHINE_KEY, &requested.machine)]
    {
        if let Some(why) =
            Some(text).filter(|text| !text.is_empty()).and_then(|text| definition_name_fault(text))
        {
            return Err(Error::key(key, format!("{text:?}"), why));
        }
    }
    let sticky = requested.sticky || keys.sticky == Some(true);
    let keeps = keys.sticky != Some(false) && source == Source::Cluster;
    let machine = Some(requested.machine).filter(|machine| !machine.is_empty() && keeps);
    if who.is_none() || (requested.claim.is_empty() && machine.is_none() && !sticky) {
        return Ok(Claim::default());
    }
    let (key, value) = match (requested.claim.as_str(), &machine) {
        ("", Some(machine)) => (MACHINE_KEY, format!("{machine:?}")),
        ("", None) if requested.sticky => ("args.cni.sticky", "true".to_owned()),
        ("", None) => ("ipam.sticky", "true".to_owned()),
        (claim, _) => ("args.cni.ipam-claim-reference", format!("{claim:?}")),
    };
    if name.is_empty() {
        return Err(Error::key(key, value, "CNI_ARGS names no pod that could keep its address"));
    }
    if source == Source::File {
        let why = "an address that outlives its pod needs the cluster: not possible with ipam.store \"file\"";
        return Err(Error::key(key, value, why));
    }
    let ifname = who.map(|who| who.ifname.to_string()).unwrap_or_default();
    Ok(match (requested.claim.as_str(), machine) {
        ("", Some(machine)) => {
            Claim { name: format!("vm/{namespace}/{machine}/{}/{ifname}", call.config.name), shared: true }
        }
        ("", None) => {
            Claim { name: format!("pod/{namespace}/{name}/{}/{ifname}", call.config.name), shared: false }
        }
        (claim, _) => Claim { name: format!("{OF_CLAIM}{namespace}/{claim}"), shared: true },
    })
}

fn fixed(written: Vec<AddressConf>) -> Result<Vec<IpConfig>, Error> {
    let read = |(at, conf): (usize, AddressConf)| {
        let AddressConf { address, gateway } = conf;
        Ok(IpConfig {
            interface: None,
            address: addresses::prefix(&format!("ipam.addresses[{at}].address"), &address)?,
            gateway: addresses::address(&format!("ipam.addresses[{at}].gateway"), &gateway)?,
        })
    };
    written.into_iter().enumerate().map(read).collect()
}

/// Returns index, pool and range of each range in a network's configuration, if this plugin allocates from it; nothing for
/// an invalid configuration.
pub fn pool_names(config: &str) -> Vec<(usize, String, IpNet)> {
    let Ok(config) = serde_json::from_str::<serde_json::Value>(config) else { return Vec::new() };
    let plugins = config["plugins"].as_array().cloned().unwrap_or_else(|| vec![config.clone()]);
    let mut found = Vec::new();
    for plugin in plugins {
        let Ok(Conf { ipam: mut keys, .. }) = serde_json::from_value::<Conf>(plugin) else { continue };
        if !matches!(keys.plugin.as_str(), "weft-ipam" | "whereabouts") {
            continue;
        }
        keys.relax();
        for (index, set) in keys.sets(RuntimeConf::default()).unwrap_or_default().iter().enumerate() {
            found.extend(set.pools.iter().map(|pool| (index, pool.name.clone(), pool.range)));
        }
    }
    found
}

/// Part of a pool that a network may allocate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkRange {
    /// Index of the range set; each set yields one address.
    pub set: usize,
    /// Pool name.
    pub pool: String,
    /// Addresses that the network may allocate.
    pub filter: AddressFilter,
}

/// Returns the ranges in a network configuration, if this plugin allocates from cluster pools for it; nothing for an
/// invalid configuration.
pub fn network_ranges(config: &str) -> Vec<NetworkRange> {
    let Ok(config) = serde_json::from_str::<serde_json::Value>(config) else { return Vec::new() };
    let plugins = config["plugins"].as_array().cloned().unwrap_or_else(|| vec![config.clone()]);
    let mut found = Vec::new();
    for plugin in plugins {
        let Ok(Conf { ipam: mut keys, .. }) = serde_json::from_value::<Conf>(plugin) else { continue };
        let is_own = matches!(keys.plugin.as_str(), "weft-ipam" | "whereabouts");
        if !is_own || !matches!(keys.store.as_str(), "" | "cluster") {
            continue;
        }
        keys.relax();
        for (index, set) in keys.sets(RuntimeConf::default()).unwrap_or_default().iter().enumerate() {
            let range = |pool: &Arc<Pool>| NetworkRange {
                set: index,
                pool: pool.name.clone(),
                filter: pool.filter.clone(),
            };
            found.extend(set.pools.iter().map(range));
        }
    }
    found
}

/// Returns the address store directory; reads nothing else in the configuration.
pub fn directory(call: &Call) -> Result<PathBuf, Error> {
    let key = call.config.value().get("ipam").and_then(|ipam| ipam.get("dataDir"));
    absolute("ipam.dataDir", key.and_then(|value| value.as_str()).unwrap_or_default(), DATA_DIRECTORY)
}

fn absolute(key: &str, text: &str, otherwise: &str) -> Result<PathBuf, Error> {
    match text {
        "" => Ok(PathBuf::from(otherwise)),
        text if text.starts_with('/') && !text.contains('\0') => Ok(PathBuf::from(text)),
        text => Err(Error::key(key, format!("{text:?}"), "not an absolute path")),
    }
}

/// whereabouts options that have no effect here: they are about locks, the store and the log.
const OF_WHEREABOUTS: &[&str] = &[
    "enable_overlapping_ranges",
    "node_slice_size",
    "leader_lease_duration",
    "leader_renew_deadline",
    "leader_retry_period",
    "kubernetes",
    "log_file",
    "log_level",
    "configuration_path",
    "reconciler_cron_expression",
    "sleep_for_race",
    "datastore",
    "etcd_host",
    "etcd_username",
    "etcd_password",
    "etcd_key_file",
    "etcd_cert_file",
    "etcd_ca_cert_file",
];

/// Returns the options, by name.
pub(crate) fn options() -> Vec<&'static str> {
    [cni::fold::fields::<IpamConf>(), OF_WHEREABOUTS].concat()
}
