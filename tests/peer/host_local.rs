//! Tests that compare `host-local` with the Go plugin: a table with configurations that must give equal
//! results and equal files.
//!
//! ```text
//!   Host ─ /var/lib/cni/<row>-weft/net/…   weft-cni as host-local
//!        └ /var/lib/cni/<row>-go/net/…     /usr/lib/cni/host-local (Debian's 1.1.1)
//! ```
//!
//! After every step in a row, both succeed with equal results, or both fail; and both directories have the
//! same names, contents and modes. A row names an intended difference.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};
use testkit::{Attachment, Feature, Finished, Host, Pod, binary, require};

const GO: &str = "/usr/lib/cni/host-local";
const WEFT: &str = "/opt/cni/bin/host-local";

fn world() -> (Host, Pod) {
    let host = Host::new();
    host.install(&binary("weft-cni"), &["host-local"]);
    host.write(
        "/etc/test-resolv.conf",
        "# c\nnameserver 192.0.2.1\nnameserver 192.0.2.2\ndomain d\nsearch a b\noptions ndots:5\n",
    );
    let pod = host.pod("a");
    (host, pod)
}

/// One call of a row.
enum Step {
    Add(&'static str),
    AddArgs(&'static str, &'static str),
    Check(&'static str),
    Del(&'static str),
    /// A file is written before the next call: name, content.
    Write(&'static str, &'static str),
    Remove(&'static str),
}

/// Expected outcome of the two plugins.
enum Expected {
    Same,
    /// Equal results, but the Go plugin created files before it failed.
    SameAnswers(&'static str),
    /// weft succeeds where the Go plugin fails, with the reason.
    OnlyWeft(&'static str),
    /// weft refuses what the Go plugin accepts, with the reason.
    OnlyGo(&'static str),
}

/// Configuration of version 1.0.0 as JSON: all of it, or the part that differs from the usual one.
enum Conf {
    /// The value of `ipam`.
    Ipam(&'static str),
    /// The only range.
    One(&'static str),
    /// Fields next to an `ipam` with the range 10.1.2.0/24.
    Beside(&'static str),
    /// The whole configuration.
    Whole(&'static str),
    /// The usual configuration in this version: both families, routes, a resolver file.
    Version(&'static str),
    /// The usual configuration in this version: two sets of one family.
    Twice(&'static str),
}

struct Row {
    name: &'static str,
    conf: Conf,
    steps: &'static [Step],
    expected: Expected,
}

use Conf::{Beside, Ipam, One, Twice, Version, Whole};
use Expected::{OnlyGo, OnlyWeft, Same, SameAnswers};
use Step::{Add, AddArgs, Check, Del, Remove, Write};

impl Conf {
    fn value(&self) -> Value {
        let read = |text: &str| {
            serde_json::from_str::<Value>(text).unwrap_or_else(|error| panic!("{text}: {error}"))
        };
        let routes = json!([{ "dst": "0.0.0.0/0" }, { "dst": "::/0", "gw": "fd00::1" }]);
        let ipam = match *self {
            Whole(text) => return read(text),
            Ipam(text) => read(text),
            One(text) => json!({ "ranges": [[read(text)]] }),
            Beside(_) => json!({ "ranges": [[{ "subnet": "10.1.2.0/24" }]] }),
            Version(_) => json!({
                "ranges": [[{ "subnet": "10.1.2.0/24" }], [{ "subnet": "fd00::/64" }]],
                "routes": routes, "resolvConf": "/etc/test-resolv.conf",
            }),
            Twice(_) => json!({ "ranges": [[{ "subnet": "10.1.2.0/24" }], [{ "subnet": "10.1.3.0/24" }]] }),
        };
        let mut conf = json!({ "cniVersion": "1.0.0", "name": "net", "type": "bridge", "ipam": ipam });
        conf["ipam"]["type"] = json!("host-local");
        match *self {
            Version(version) | Twice(version) => conf["cniVersion"] = json!(version),
            Beside(text) => {
                for (key, value) in read(text).as_object().expect("an object") {
                    conf[key] = value.clone();
                }
            }
            _ => {}
        }
        conf
    }
}

const fn row(name: &'static str, conf: Conf, steps: &'static [Step]) -> Row {
    Row { name, conf, steps, expected: Same }
}

/// Returns a row with the usual sequence of calls.
const fn life(name: &'static str, conf: Conf) -> Row {
    row(name, conf, &[Add("a"), Check("a"), Add("b"), Del("a"), Del("a"), Add("c"), Del("b"), Del("c")])
}

/// Returns a row with a configuration that is refused.
const fn refused(name: &'static str, conf: Conf) -> Row {
    row(name, conf, &[Add("a")])
}

const fn differs(name: &'static str, conf: Conf, steps: &'static [Step], expected: Expected) -> Row {
    Row { name, conf, steps, expected }
}

const BOTH: &str = r#"{"ranges":[[{"subnet":"10.1.2.0/24"}],[{"subnet":"fd00::/64"}]]}"#;
const NINE: &str = r#"{"subnet":"10.1.2.0/24","rangeEnd":"10.1.2.9"}"#;

const EARLY: &str = "weft refuses the address before it creates the directory";

/// Rows about ranges.
const RANGES: &[Row] = &[
    life("one range", One(r#"{"subnet":"10.1.2.0/24"}"#)),
    life("flat", Ipam(r#"{"subnet":"10.1.2.0/24"}"#)),
    life(
        "flat with all",
        Ipam(
            r#"{"subnet":"10.1.2.0/24","rangeStart":"10.1.2.7","rangeEnd":"10.1.2.9","gateway":"10.1.2.8"}"#,
        ),
    ),
    life("flat before ranges", Ipam(r#"{"subnet":"10.1.2.0/24","ranges":[[{"subnet":"10.1.3.0/24"}]]}"#)),
    life("two sets", Twice("1.0.0")),
    life(
        "both families",
        Ipam(r#"{"ranges":[[{"subnet":"10.1.2.0/24"}],[{"subnet":"2001:db8:0:0::/64"}]]}"#),
    ),
    life(
        "IPv6 in capitals",
        One(r#"{"subnet":"2001:DB8:A::/48","rangeStart":"2001:DB8:A::ABCD","gateway":"2001:db8:a::1"}"#),
    ),
    life("a long run of zeros", One(r#"{"subnet":"2001:0:0:1::/64","rangeStart":"2001:0:0:1:0:0:0:fffe"}"#)),
    life(
        "two ranges in a set",
        Ipam(r#"{"ranges":[[{"subnet":"10.1.2.0/24","rangeEnd":"10.1.2.2"},{"subnet":"10.1.3.0/24"}]]}"#),
    ),
    life(
        "the gateway first",
        One(
            r#"{"subnet":"10.1.2.0/24","rangeStart":"10.1.2.10","rangeEnd":"10.1.2.13","gateway":"10.1.2.10"}"#,
        ),
    ),
    life(
        "the gateway in between",
        One(
            r#"{"subnet":"10.1.2.0/24","rangeStart":"10.1.2.10","rangeEnd":"10.1.2.13","gateway":"10.1.2.11"}"#,
        ),
    ),
    life(
        "the gateway last",
        One(
            r#"{"subnet":"10.1.2.0/24","rangeStart":"10.1.2.10","rangeEnd":"10.1.2.13","gateway":"10.1.2.13"}"#,
        ),
    ),
    life(
        "the gateway elsewhere",
        One(
            r#"{"subnet":"10.1.2.0/24","rangeStart":"10.1.2.10","rangeEnd":"10.1.2.13","gateway":"10.9.9.9"}"#,
        ),
    ),
    life("the gateway empty", One(r#"{"subnet":"10.1.2.0/24","gateway":""}"#)),
    life(
        "nulls",
        Ipam(r#"{"ranges":[[{"subnet":"10.1.2.0/24","rangeStart":null,"gateway":null}]],"routes":null}"#),
    ),
    life("the smallest", One(r#"{"subnet":"10.1.2.0/30"}"#)),
    life("the smallest of IPv6", One(r#"{"subnet":"fd00::/126"}"#)),
    life(
        "network and broadcast address on purpose",
        One(r#"{"subnet":"10.1.2.0/29","rangeStart":"10.1.2.0","rangeEnd":"10.1.2.7"}"#),
    ),
    life("letter case of keys", Ipam(r#"{"Ranges":[[{"Subnet":"10.1.2.0/24","RANGESTART":"10.1.2.77"}]]}"#)),
    life(
        "a flat gateway without subnet",
        Ipam(r#"{"gateway":"10.1.2.200","ranges":[[{"subnet":"10.1.2.0/24"}]]}"#),
    ),
    life("ranges of the runtime", Beside(r#"{"runtimeConfig":{"ipRanges":[[{"subnet":"10.7.0.0/24"}]]}}"#)),
    life(
        "ranges as containerd writes them",
        Beside(
            r#"{"runtimeConfig":{"ipRanges":[[{"Subnet":"10.7.0.0/24","RangeStart":"","RangeEnd":"","Gateway":""}]]}}"#,
        ),
    ),
    row(
        "exhausted",
        One(r#"{"subnet":"10.1.2.0/29","rangeEnd":"10.1.2.3"}"#),
        &[Add("a"), Add("b"), Add("c"), Del("a"), Add("c"), Add("d"), Del("c"), Del("b")],
    ),
    row(
        "round the end",
        One(r#"{"subnet":"10.1.2.0/29"}"#),
        &[Add("a"), Add("b"), Add("c"), Add("d"), Add("e"), Del("b"), Del("d"), Add("f"), Add("g"), Add("h")],
    ),
    row(
        "the first set taken back",
        Ipam(r#"{"ranges":[[{"subnet":"10.1.2.0/24"}],[{"subnet":"10.1.3.0/30"}]]}"#),
        &[Add("a"), Add("b"), Del("a"), Add("b")],
    ),
    differs(
        "a subnet in IPv6's notation",
        One(r#"{"subnet":"::ffff:10.1.2.0/120"}"#),
        &[Add("a")],
        OnlyWeft("it is the same subnet, and other Go plugins accept it"),
    ),
];

/// Rows about requested addresses.
const REQUESTS: &[Row] = &[
    life("requested by the runtime", Beside(r#"{"runtimeConfig":{"ips":["10.1.2.9"]}}"#)),
    life("requested with prefix", Beside(r#"{"runtimeConfig":{"ips":["10.1.2.9/24"]}}"#)),
    life("requested with another prefix", Beside(r#"{"runtimeConfig":{"ips":["10.1.2.9/8"]}}"#)),
    life("requested by args", Beside(r#"{"args":{"cni":{"ips":["10.1.2.9"]}}}"#)),
    life("requested in IPv6 notation", Beside(r#"{"args":{"cni":{"ips":["::ffff:10.1.2.9"]}}}"#)),
    row(
        "requested by both",
        Beside(r#"{"args":{"cni":{"ips":["10.1.2.9"]}},"runtimeConfig":{"ips":["10.1.2.9/24"]}}"#),
        &[Add("a"), Del("a")],
    ),
    row(
        "requested by CNI_ARGS",
        Beside("{}"),
        &[AddArgs("a", "IP=10.1.2.9"), AddArgs("b", "IP=10.1.2.10/24"), Add("c"), Check("b"), Del("b")],
    ),
    row(
        "requested by CNI_ARGS among others",
        Beside("{}"),
        &[
            AddArgs("a", "IgnoreUnknown=1;K8S_POD_NAME=x;IP=10.1.2.9"),
            AddArgs("b", "IgnoreUnknown=true;FOO=bar"),
        ],
    ),
    row("one of two families requested", Ipam(BOTH), &[AddArgs("a", "IP=fd00::9"), Add("b")]),
    row(
        "requested and in use",
        Beside("{}"),
        &[
            AddArgs("a", "IP=10.1.2.9"),
            AddArgs("b", "IP=10.1.2.9"),
            AddArgs("a", "IP=10.1.2.9"),
            Del("b"),
            Del("a"),
            AddArgs("b", "IP=10.1.2.9"),
        ],
    ),
    differs(
        "the gateway requested",
        Beside(r#"{"runtimeConfig":{"ips":["10.1.2.1"]}}"#),
        &[Add("a")],
        SameAnswers(EARLY),
    ),
    differs(
        "requested outside of the range",
        Beside(r#"{"runtimeConfig":{"ips":["10.9.9.9"]}}"#),
        &[Add("a")],
        SameAnswers(EARLY),
    ),
    differs(
        "one requested inside and one outside",
        Beside(r#"{"runtimeConfig":{"ips":["10.1.2.8","10.9.9.9"]}}"#),
        &[Add("a")],
        SameAnswers(EARLY),
    ),
    refused("not an address requested", Beside(r#"{"runtimeConfig":{"ips":["here"]}}"#)),
    refused("an empty string requested", Beside(r#"{"args":{"cni":{"ips":[""]}}}"#)),
    row(
        "unknown CNI_ARGS",
        Beside("{}"),
        &[AddArgs("a", "FOO=bar"), AddArgs("a", "IP"), AddArgs("a", "IP=x")],
    ),
    differs(
        "several by CNI_ARGS",
        Ipam(BOTH),
        &[AddArgs("a", "IP=10.1.2.9,fd00::9")],
        OnlyWeft("for two families Multus writes a comma"),
    ),
    differs(
        "keys of Kubernetes without IgnoreUnknown",
        Beside("{}"),
        &[AddArgs("a", "K8S_POD_UID=x;IP=10.1.2.9")],
        OnlyWeft("every Kubernetes runtime sends this variable"),
    ),
];

/// Rows about the versions of results.
const ANSWERS: &[Row] = &[
    life("version 0.1.0", Version("0.1.0")),
    life("version 0.2.0", Version("0.2.0")),
    life("version 0.3.0", Version("0.3.0")),
    life("version 0.3.1", Version("0.3.1")),
    life("version 0.4.0", Version("0.4.0")),
    life("version 1.0.0", Version("1.0.0")),
    life("version 0.3.0 with two of a family", Twice("0.3.0")),
    refused("version 0.2.0 with two of a family", Twice("0.2.0")),
    refused("no version with two of a family", Twice("")),
    refused("version 9.9.9", Version("9.9.9")),
    life(
        "routes with host bits",
        Ipam(
            r#"{"subnet":"10.1.2.0/24","routes":[{"dst":"10.5.6.7/8"},{"dst":"10.6.0.0/16","gw":"10.1.2.254"}]}"#,
        ),
    ),
    refused("a resolver file that is not there", Ipam(r#"{"subnet":"10.1.2.0/24","resolvConf":"/no/such"}"#)),
];

/// Rows about files in the directory.
const FILES: &[Row] = &[
    row(
        "round robin from elsewhere",
        One(NINE),
        &[Add("x"), Write("last_reserved_ip.0", "10.9.9.9"), Add("a")],
    ),
    row(
        "round robin from nonsense",
        One(NINE),
        &[Add("x"), Write("last_reserved_ip.0", "nonsense\n"), Add("a")],
    ),
    row("round robin from nothing", One(NINE), &[Add("x"), Remove("last_reserved_ip.0"), Add("a")]),
    row(
        "round robin from the end",
        One(NINE),
        &[Add("x"), Write("last_reserved_ip.0", "10.1.2.9"), Add("a")],
    ),
    row("a second time", One(NINE), &[Add("a"), Add("a"), Check("a"), Del("a"), Add("a")]),
    row(
        "a file of an old version",
        One(NINE),
        &[Add("x"), Write("10.1.2.5", "a"), Check("a"), Add("a"), Del("a"), Check("a"), Add("a")],
    ),
    row(
        "a file with more white space",
        One(NINE),
        &[Add("x"), Write("10.1.2.5", " a\r\neth0\n"), Check("a"), Add("a"), Del("a")],
    ),
    row(
        "an old and a new file",
        One(NINE),
        &[Add("a"), Write("10.1.2.5", "a"), Del("a"), Check("a"), Del("a"), Check("a")],
    ),
    row(
        "files of others",
        One(NINE),
        &[
            Add("x"),
            Write("10.1.2.3", "kept for the printer"),
            Write("10.1.2.4", "b\r\neth0"),
            Add("a"),
            Del("a"),
        ],
    ),
    row("check of what is not there", One(NINE), &[Add("b"), Check("a")]),
    row("delete of what is not there", One(NINE), &[Add("b"), Del("a")]),
];

/// Rows that both refuse, or only one.
const FAULTS: &[Row] = &[
    refused("no ipam", Whole(r#"{"cniVersion":"1.0.0","name":"net"}"#)),
    refused("no range", Ipam("{}")),
    refused("an empty list", Ipam(r#"{"ranges":[]}"#)),
    refused("an empty set", Ipam(r#"{"ranges":[[]]}"#)),
    refused("a subnet of /31", One(r#"{"subnet":"10.1.2.0/31"}"#)),
    refused("a subnet of /32", One(r#"{"subnet":"10.1.2.0/32"}"#)),
    refused("a subnet of /127", One(r#"{"subnet":"fd00::/127"}"#)),
    refused("host bits", One(r#"{"subnet":"10.1.2.3/24"}"#)),
    refused("no prefix length", One(r#"{"subnet":"10.1.2.0"}"#)),
    refused("leading zeros", One(r#"{"subnet":"10.01.2.0/24"}"#)),
    refused("start outside", One(r#"{"subnet":"10.1.2.0/24","rangeStart":"10.1.3.1"}"#)),
    refused("end outside", One(r#"{"subnet":"10.1.2.0/24","rangeEnd":"10.1.3.1"}"#)),
    refused(
        "end before start",
        One(r#"{"subnet":"10.1.2.0/24","rangeStart":"10.1.2.9","rangeEnd":"10.1.2.8"}"#),
    ),
    refused("a start of the other family", One(r#"{"subnet":"10.1.2.0/24","rangeStart":"fd00::1"}"#)),
    refused("overlap in a set", Ipam(r#"{"ranges":[[{"subnet":"10.1.2.0/24"},{"subnet":"10.1.0.0/16"}]]}"#)),
    refused(
        "overlap between sets",
        Ipam(r#"{"ranges":[[{"subnet":"10.1.2.0/24"}],[{"subnet":"10.1.2.0/25"}]]}"#),
    ),
    refused(
        "overlap with the runtime's",
        Beside(r#"{"runtimeConfig":{"ipRanges":[[{"subnet":"10.1.2.0/24"}]]}}"#),
    ),
    refused("families mixed", Ipam(r#"{"ranges":[[{"subnet":"10.1.2.0/24"},{"subnet":"fd00::/64"}]]}"#)),
    refused("a gateway that is none", One(r#"{"subnet":"10.1.2.0/24","gateway":"here"}"#)),
    refused("a number for a subnet", One(r#"{"subnet":24}"#)),
    refused("a route without prefix", Ipam(r#"{"subnet":"10.1.2.0/24","routes":[{"dst":"10.0.0.1"}]}"#)),
    refused(
        "a name that leads out",
        Whole(r#"{"cniVersion":"1.0.0","name":"../x","ipam":{"subnet":"10.1.2.0/24"}}"#),
    ),
    differs(
        "a gateway of the other family",
        One(r#"{"subnet":"10.1.2.0/24","gateway":"fd00::1"}"#),
        &[Add("a")],
        OnlyGo("no host of the subnet could use it"),
    ),
];

/// Both plugins of a row.
struct Sides<'a> {
    host: &'a Host,
    pod: &'a Pod,
    place: String,
}

impl Sides<'_> {
    fn directory(&self, side: &str) -> String {
        format!("{}-{side}/net", self.place)
    }

    fn call(&self, side: &str, verb: &str, id: &str, args: &str, conf: &Value) -> Finished {
        let mut attachment: Attachment<'_> =
            self.host.attachment(if side == "go" { GO } else { WEFT }, self.pod, "eth0");
        attachment.container_id = id.to_owned();
        attachment.args = args.to_owned();
        let mut conf = conf.clone();
        if let Some(ipam) = conf.get_mut("ipam") {
            ipam["dataDir"] = json!(format!("{}-{side}", self.place));
        }
        attachment.call(verb, conf.to_string())
    }

    /// Returns names, contents and the owner's permissions. (The permissions of others differ between
    /// Debian's version and later ones.)
    fn files(&self, side: &str) -> BTreeMap<String, (u32, String)> {
        let directory = self.directory(side);
        self.host.within(|| {
            let Ok(entries) = std::fs::read_dir(directory) else { return BTreeMap::new() };
            let describe = |entry: std::fs::DirEntry| {
                let mode = entry.metadata().unwrap().permissions().mode() & 0o700;
                let content = String::from_utf8_lossy(&std::fs::read(entry.path()).unwrap()).into_owned();
                (entry.file_name().into_string().unwrap(), (mode, content))
            };
            entries.flatten().map(describe).collect()
        })
    }

    /// Runs a row. Returns the first unexpected difference.
    fn difference(&self, row: &Row) -> Option<String> {
        let Row { name, conf, steps, expected } = row;
        let conf = conf.value();
        for (at, step) in steps.iter().enumerate() {
            let Some((weft, go)) = self.step(&conf, step) else { continue };
            let place = format!("row {name:?}, step {at}");
            let codes = (weft.code, go.code);
            let verdict = match expected {
                OnlyWeft(why) => (codes != (Some(0), Some(1))).then_some(*why),
                OnlyGo(why) => (codes != (Some(1), Some(0))).then_some(*why),
                Same | SameAnswers(_) if weft.code != go.code => Some("one fails"),
                Same if weft.code == Some(0) && !go.stdout.is_empty() && meaning(&weft) != meaning(&go) => {
                    Some("different results")
                }
                Same => None,
                SameAnswers(why) => (!self.files("weft").is_empty()).then_some(*why),
            };
            if let Some(why) = verdict {
                return Some(format!("{place}: {why}\nweft {weft}\ngo {go}"));
            }
            let (left, right) = (self.files("weft"), self.files("go"));
            if matches!(expected, Same) && left != right {
                return Some(format!("{place}: different files\nweft {left:?}\ngo   {right:?}"));
            }
        }
        None
    }

    /// Runs a step on both sides. Returns the results of a CNI call.
    fn step(&self, conf: &Value, step: &Step) -> Option<(Finished, Finished)> {
        let both = |verb: &str, id: &str, args: &str| {
            Some((self.call("weft", verb, id, args, conf), self.call("go", verb, id, args, conf)))
        };
        let each = |work: &dyn Fn(&str)| {
            ["weft", "go"].into_iter().for_each(work);
            None
        };
        match *step {
            Add(id) => both("ADD", id, ""),
            AddArgs(id, args) => both("ADD", id, args),
            Check(id) => both("CHECK", id, ""),
            Del(id) => both("DEL", id, ""),
            Write(name, content) => each(&|side| {
                let path = format!("{}/{name}", self.directory(side));
                self.host.write(&path, content);
                self.host.run(["chmod", "600", &path]);
            }),
            Remove(name) => {
                each(&|side| drop(self.host.run(["rm", &format!("{}/{name}", self.directory(side))])))
            }
        }
    }
}

/// Returns the result without empty DNS settings: Debian's version prints them in 1.0.0, later ones do not.
fn meaning(finished: &Finished) -> Value {
    let mut result = finished.json();
    if result["dns"] == json!({}) {
        result.as_object_mut().unwrap().remove("dns");
    }
    result
}

#[test]
fn host_local_results_and_files_equal_those_of_the_go_plugin() {
    require!(Feature::Root, Feature::GoPlugins);
    let (host, pod) = world();
    let rows: Vec<&Row> = [RANGES, REQUESTS, ANSWERS, FILES, FAULTS].into_iter().flatten().collect();
    assert!(rows.len() >= 80, "{} rows", rows.len());
    let mut differences = Vec::new();
    for (number, row) in rows.iter().enumerate() {
        let sides = Sides { host: &host, pod: &pod, place: format!("/var/lib/cni/{number}") };
        differences.extend(sides.difference(row));
    }
    assert!(differences.is_empty(), "{} rows differ:\n{}", differences.len(), differences.join("\n"));
}

// === one directory, both plugins ===

fn attachment<'a>(host: &'a Host, pod: &Pod, plugin: &str, id: &str) -> Attachment<'a> {
    let mut attachment = host.attachment(plugin, pod, "eth0");
    attachment.container_id = id.to_owned();
    attachment
}

#[track_caller]
fn address(finished: Finished) -> String {
    finished.success().json()["ips"][0]["address"].as_str().expect("an address").to_owned()
}

fn reserved(host: &Host) -> BTreeSet<String> {
    let names = host.attempt(["ls", "-A", "/var/lib/cni/networks/net"]).stdout;
    names.lines().filter(|name| name.parse::<std::net::IpAddr>().is_ok()).map(str::to_owned).collect()
}

#[test]
fn host_local_reservations_are_deleted_by_either_plugin() {
    require!(Feature::Root, Feature::GoPlugins);
    let (host, pod) = world();
    let conf = Ipam(BOTH).value();
    for round in 0..10 {
        for (adds, deletes) in [(WEFT, GO), (GO, WEFT), (WEFT, WEFT), (GO, GO)] {
            let id = format!("{round}-{}-{}", adds.len(), deletes.len());
            attachment(&host, &pod, adds, &id).add(&conf).success();
            assert_eq!(reserved(&host).len(), 2);
            let other = attachment(&host, &pod, deletes, &id);
            other.check(&conf).success();
            assert_eq!(other.add(&conf).code, Some(1), "the attachment holds an address");
            assert_eq!(reserved(&host).len(), 2);
            other.del(&conf).success();
            assert_eq!(reserved(&host), BTreeSet::new());
            assert_eq!(attachment(&host, &pod, adds, &id).check(&conf).code, Some(1));
        }
    }
}

#[test]
fn host_local_round_robin_is_shared_with_the_go_plugin() {
    require!(Feature::Root, Feature::GoPlugins);
    let (host, pod) = world();
    let conf = One(r#"{"subnet":"10.1.2.0/28"}"#).value();
    let allocated: Vec<String> = (0..13)
        .map(|turn| address(attachment(&host, &pod, [WEFT, GO][turn % 2], &format!("c{turn}")).add(&conf)))
        .collect();
    let expected: Vec<String> = (2..15).map(|last| format!("10.1.2.{last}/28")).collect();
    assert_eq!(allocated, expected);
    for plugin in [WEFT, GO] {
        assert_eq!(attachment(&host, &pod, plugin, "late").add(&conf).code, Some(1), "exhausted");
    }
    attachment(&host, &pod, GO, "c4").del(&conf).success();
    assert_eq!(address(attachment(&host, &pod, WEFT, "late").add(&conf)), "10.1.2.6/28");
    let mut sweep = conf;
    sweep["cniVersion"] = json!("1.1.0");
    sweep["cni.dev/valid-attachments"] = json!([{ "containerID": "c1", "ifname": "eth0" }]);
    attachment(&host, &pod, WEFT, "x").call("GC", sweep.to_string()).success();
    assert_eq!(reserved(&host), BTreeSet::from(["10.1.2.3".to_owned()]), "reservations of both plugins");
}

#[test]
fn host_local_concurrent_use_with_the_go_plugin_is_safe() {
    require!(Feature::Root, Feature::GoPlugins);
    let (host, pod) = world();
    let conf = One(r#"{"subnet":"10.1.2.0/24"}"#).value();
    let work = |number: usize| {
        // Each attachment is added, deleted and added again.
        let plugin =
            |turn: usize| attachment(&host, &pod, [WEFT, GO][(number + turn) % 2], &format!("c{number}"));
        plugin(0).add(&conf).success();
        plugin(1).del(&conf).success();
        address(plugin(2).add(&conf))
    };
    let allocated: BTreeSet<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..32).map(|number| scope.spawn(move || work(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!((allocated.len(), reserved(&host).len()), (32, 32));
    for number in 0..32 {
        attachment(&host, &pod, [WEFT, GO][number % 2], &format!("c{number}")).del(&conf).success();
    }
    assert_eq!(reserved(&host), BTreeSet::new());
}
