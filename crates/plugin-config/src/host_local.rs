//! Validated configuration for `host-local`: where reservations are, ranges, requested addresses.
//!
//! The range sets have the reference plugin's order, because it numbers the round-robin files:
//! `runtimeConfig.ipRanges`, the flat range in old configurations, `ipam.ranges`.
//!
//! Source: plugins `plugins/ipam/host-local/backend/allocator/config.go`; CONVENTIONS.md `ipRanges` (V2).

use std::path::{Path, PathBuf};

use cni::Error;
use cni::args::Args;
use cni::invocation::Call;
use cni::name::NetworkName;
use cni::result::Route;
use cni::version::Version;
use ipam::{Range, RangePart, RangeSet, RangeSetError};
use serde::Deserialize;

use crate::addresses::{self, Request, RequestConf, Requests, RouteConf};

/// Default reservation directory, as in the reference plugin.
const DATA_DIRECTORY: &str = "/var/lib/cni/networks";
/// Index directory, on a file system that is empty after a boot.
const INDEX_DIRECTORY: &str = "/run/weft/host-local";

/// The configuration as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Conf {
    ipam: Option<IpamConf>,
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
#[serde(default, rename_all = "camelCase")]
struct IpamConf {
    subnet: String,
    range_start: String,
    range_end: String,
    gateway: String,
    ranges: Vec<Vec<RangeConf>>,
    routes: Vec<RouteConf>,
    resolv_conf: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RangeConf {
    subnet: String,
    range_start: String,
    range_end: String,
    gateway: String,
}

/// The only option that every verb needs.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct LocationConf {
    ipam: LocationIpamConf,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct LocationIpamConf {
    #[serde(rename = "dataDir")]
    data_dir: String,
}

/// Where one network's reservations are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreLocation {
    /// Directory: `dataDir` and the network's name, which is one path component.
    pub directory: PathBuf,
    /// Index directory.
    pub index_directory: PathBuf,
}

/// Validated configuration.
#[derive(Debug)]
pub struct Network {
    /// Where the reservations are.
    pub location: StoreLocation,
    /// Range sets; one address is allocated from each.
    pub sources: Vec<Source>,
    /// Routes to return in the result.
    pub routes: Vec<Route>,
    /// File from which the result's DNS settings are read.
    pub resolv_conf: Option<PathBuf>,
}

/// Range set and the address that is requested from it.
#[derive(Debug)]
pub struct Source {
    /// Ranges to allocate from.
    pub set: RangeSet,
    /// Requested address, which is in the set.
    pub request: Option<Request>,
}

impl StoreLocation {
    /// Reads only `ipam.dataDir`.
    pub fn read(call: &Call) -> Result<StoreLocation, Error> {
        let LocationConf { ipam: LocationIpamConf { data_dir } } = call.config.decode()?;
        StoreLocation::new(&data_dir, &call.config.name)
    }

    /// As [`StoreLocation::read`]. DEL and GC must work with any configuration, so an invalid one means the default
    /// directory.
    pub fn for_removal(call: &Call) -> Result<StoreLocation, Error> {
        StoreLocation::read(call).or_else(|_| StoreLocation::new("", &call.config.name))
    }

    fn new(data_directory: &str, network: &NetworkName) -> Result<StoreLocation, Error> {
        let base = match data_directory {
            "" => Path::new(DATA_DIRECTORY),
            text if text.starts_with('/') && !text.contains('\0') => Path::new(text),
            text => return Err(Error::key("ipam.dataDir", format!("{text:?}"), "not an absolute path")),
        };
        Ok(StoreLocation {
            directory: base.join(network.as_str()),
            index_directory: PathBuf::from(INDEX_DIRECTORY),
        })
    }
}

impl Network {
    /// Reads and validates the configuration.
    pub fn read(call: &Call) -> Result<Network, Error> {
        let network = Network::written(call)?;
        match network.sources.is_empty() {
            true => Err(Error::missing("ipam.ranges", "there is no range to allocate from")),
            false => Ok(network),
        }
    }

    /// Reads the configuration for STATUS: it may have no ranges, because the runtime can pass them with ADD
    /// (`ipRanges`).
    pub fn written(call: &Call) -> Result<Network, Error> {
        let location = StoreLocation::read(call)?;
        let arguments = Args::parse(call.args())?;
        arguments.only(&["IP"])?;
        let requests = Requests::read(call.config.decode::<RequestConf>()?, &arguments)?;
        let Conf { ipam, runtime_config: RuntimeConf { ip_ranges } } = call.config.decode()?;
        let Some(ipam) = ipam else { return Err(Error::missing("ipam", "set ipam.ranges")) };
        let IpamConf { subnet, range_start, range_end, gateway, ranges, routes, resolv_conf } = ipam;

        let mut written = Vec::new();
        written.extend(listed("runtimeConfig.ipRanges", ip_ranges));
        // Without a subnet the other fields are ignored, as in the reference plugin.
        if !subnet.is_empty() {
            let flat = RangeConf { subnet, range_start, range_end, gateway };
            written.push(("ipam".to_owned(), vec![("ipam".to_owned(), flat)]));
        }
        written.extend(listed("ipam.ranges", ranges));
        if resolv_conf.contains('\0') {
            return Err(Error::key("ipam.resolvConf", format!("{resolv_conf:?}"), "not a path"));
        }
        let sources = match written.is_empty() {
            true => Vec::new(),
            false => sources(sets(written, call.config.version)?, requests)?,
        };
        Ok(Network {
            location,
            sources,
            routes: addresses::routes(routes)?,
            resolv_conf: (!resolv_conf.is_empty()).then(|| PathBuf::from(resolv_conf)),
        })
    }
}

/// Range set as written: the field, and each range with the field.
type Written = (String, Vec<(String, RangeConf)>);

fn listed(key: &str, sets: Vec<Vec<RangeConf>>) -> impl Iterator<Item = Written> {
    sets.into_iter().enumerate().map(move |(index, set)| {
        let key = format!("{key}[{index}]");
        let ranges = set.into_iter().enumerate().map(|(at, range)| (format!("{key}[{at}]"), range)).collect();
        (key, ranges)
    })
}

fn sets(written: Vec<Written>, version: Version) -> Result<Vec<RangeSet>, Error> {
    let mut keys = Vec::with_capacity(written.len());
    let mut sets = Vec::with_capacity(written.len());
    for (key, list) in written {
        let (inner, ranges): (Vec<String>, Vec<RangeConf>) = list.into_iter().unzip();
        let ranges = inner.iter().zip(ranges).map(|(key, conf)| range(key, &conf));
        let ranges = ranges.collect::<Result<Vec<_>, Error>>()?;
        let texts: Vec<String> = ranges.iter().map(Range::to_string).collect();
        let set = RangeSet::new(ranges).map_err(|refusal| match refusal {
            RangeSetError::Empty => Error::key(&key, "[]", "an empty range set"),
            RangeSetError::MixedFamilies(at) => {
                Error::key(&inner[at], &texts[at], format!("not of the family of {} {}", inner[0], texts[0]))
            }
            RangeSetError::Overlap(a, b) => {
                Error::key(&inner[b], &texts[b], format!("overlaps {} {}", inner[a], texts[a]))
            }
        })?;
        keys.push(key);
        sets.push(set);
    }
    if let Some((a, b)) = RangeSet::overlap(&sets) {
        return Err(Error::key(&keys[b], &sets[b], format!("overlaps {} {}", keys[a], sets[a])));
    }
    let families = sets.iter().filter_map(|set| set.ranges().first()).map(Range::first);
    addresses::one_of_each_family(version, families, "ipam.ranges")?;
    Ok(sets)
}

fn range(key: &str, conf: &RangeConf) -> Result<Range, Error> {
    let RangeConf { subnet, range_start, range_end, gateway } = conf;
    let within = |name: &str| format!("{key}.{name}");
    let network = addresses::prefix(&within("subnet"), subnet)?;
    let first = addresses::address(&within("rangeStart"), range_start)?;
    let last = addresses::address(&within("rangeEnd"), range_end)?;
    let gateway = addresses::address(&within("gateway"), gateway)?;
    let made = Range::between(network, first, last).and_then(|range| {
        match gateway.or_else(|| range.usual_gateway()) {
            Some(gateway) => range.with_gateway(gateway),
            None => Ok(range),
        }
    });
    made.map_err(|ipam::RangeError { part, value, reason }| {
        let name = match part {
            RangePart::Subnet => "subnet",
            RangePart::First => "rangeStart",
            RangePart::Last => "rangeEnd",
            RangePart::Gateway => "gateway",
        };
        Error::key(within(name), value, reason)
    })
}

/// Assigns each request to the set that contains it. Several sources usually request the same address.
fn sources(sets: Vec<RangeSet>, requests: Requests) -> Result<Vec<Source>, Error> {
    let Requests { environment, args, runtime } = requests;
    let mut sources: Vec<Source> = sets.into_iter().map(|set| Source { set, request: None }).collect();
    for request in environment.into_iter().chain(args).chain(runtime) {
        let Request { key, ip, prefixed: _ } = &request;
        let Some(source) = sources.iter_mut().find(|source| source.set.contains(*ip)) else {
            let all: Vec<String> = sources.iter().map(|source| source.set.to_string()).collect();
            return Err(Error::key(key, ip, format!("in none of the range sets {}", all.join("; "))));
        };
        match &source.request {
            Some(known) if known.ip == *ip => {}
            Some(Request { key: first, ip: other, prefixed: _ }) => {
                let why = format!("range set {} has one address, and {first} requests {other}", source.set);
                return Err(Error::key(key, ip, why));
            }
            None if source.set.is_gateway(*ip) => return Err(Error::key(key, ip, "the gateway's address")),
            None => source.request = Some(request),
        }
    }
    Ok(sources)
}

/// Returns the options, by name.
pub(crate) fn options() -> Vec<&'static str> {
    [cni::fold::fields::<IpamConf>(), cni::fold::fields::<LocationIpamConf>()].concat()
}

#[cfg(test)]
mod tests;
