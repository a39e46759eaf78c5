//! Tests nf_tables: `nft` lists the objects that were created, and packets match the rules.
//!
//! ```text
//!   Pod a ── eth0 10.1.0.5 ──┐ veth                veth ┌── eth0 192.0.2.9 ── Pod out
//!                            └ a0 10.1.0.1  Host  o0 192.0.2.1 ┘
//! ```

#![cfg(test)]

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use linux::nft::{
    BaseChain, Batch, ChainType, Data, Element, Family, Hook, Is, Mapping, Nft, Policy, Protocol, Selector,
    Set, State, Table, Type, Verdict, priority,
};
use linux::{Kind, Netns};
use serde_json::{Value, json};
use testkit::{Feature, Host, Pod, host};

const WEFT: Table<'_> = Table::new(Family::Inet, "weft");

const POSTROUTING: BaseChain = BaseChain {
    chain_type: ChainType::Nat,
    hook: Hook::Postrouting,
    priority: priority::SOURCE_NAT,
    policy: Policy::Accept,
};

const PREROUTING: BaseChain = BaseChain {
    chain_type: ChainType::Nat,
    hook: Hook::Prerouting,
    priority: priority::DESTINATION_NAT,
    policy: Policy::Accept,
};

const FORWARD: BaseChain = BaseChain {
    chain_type: ChainType::Filter,
    hook: Hook::Forward,
    priority: priority::FILTER,
    policy: Policy::Drop,
};

fn nft(host: &Host) -> Nft {
    Netns::open(&host.handle()).expect("open the host's namespace").nft().expect("open a socket")
}

fn net(text: &str) -> IpNet {
    text.parse().expect("a network")
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// Lists the objects of one kind with `nft -j`, without handles.
fn listed(host: &Host, kind: &str) -> Vec<Value> {
    let mut ruleset = host.json(["nft", "-j", "list", "ruleset"]);
    let objects = ruleset["nftables"].as_array_mut().expect("a list");
    let mut found: Vec<Value> =
        objects.iter_mut().filter_map(|object| Some(object.get_mut(kind)?.take())).collect();
    found.iter_mut().filter_map(Value::as_object_mut).for_each(|object| drop(object.remove("handle")));
    found
}

/// Lists every rule as `nft list` prints it, without indentation.
fn rules(host: &Host) -> Vec<String> {
    let text = host.run(["nft", "-s", "list", "table", "inet", "weft"]);
    let lines = text.lines().map(str::trim);
    lines
        .filter(|line| line.contains("comment \"rule"))
        .map(|line| line.replace(" comment \"rule\"", ""))
        .collect()
}

/// Returns a host that routes between a pod and an external host.
fn routed(host: &Host) -> (Pod, Pod) {
    let (a, out) = (host.pod("a"), host.pod("out"));
    let wires = [(&a, "a0", "10.1.0.1", "10.1.0.5"), (&out, "o0", "192.0.2.1", "192.0.2.9")];
    for (pod, link, near, far) in wires {
        host.run(["ip", "link", "add", link, "type", "veth", "peer", "eth0", "netns", pod.name()]);
        host.run(["ip", "address", "add", &format!("{near}/24"), "dev", link]);
        host.run(["ip", "link", "set", link, "up"]);
        pod.run(["ip", "address", "add", &format!("{far}/24"), "dev", "eth0"]);
        pod.run(["ip", "link", "set", "eth0", "up"]);
    }
    a.run(["ip", "route", "add", "default", "via", "10.1.0.1"]);
    host.run(["sysctl", "-qw", "net.ipv4.ip_forward=1"]);
    (a, out)
}

#[test]
fn nft_tables_chains_and_sets_equal_those_of_nft() {
    let host = host!(Feature::NftInet);
    let mut batch = Batch::new();
    batch.ensure_table(WEFT).ensure_base_chain(WEFT, "postrouting", POSTROUTING).ensure_chain(WEFT, "web");
    batch.ensure_base_chain(WEFT, "forward", FORWARD);
    batch.ensure_set(WEFT, &Set::of("masq4", &[Type::Ipv4]));
    batch.ensure_set(
        WEFT,
        &Set::of("all", &[Type::Ipv6, Type::Ether, Type::Protocol, Type::Port, Type::Link]),
    );
    batch.ensure_set(WEFT, &Set::to_verdicts("pods", &[Type::Ipv4]));
    batch
        .ensure_set(WEFT, &Set::to_values("ports", &[Type::Protocol, Type::Port], &[Type::Ipv4, Type::Port]));
    nft(&host).commit(batch).expect("commit");

    assert_eq!(listed(&host, "table"), [json!({ "family": "inet", "name": "weft" })]);
    let base = |name: &str, kind: &str, hook: &str, prio: i32, policy: &str| json!({ "family": "inet", "table": "weft", "name": name, "type": kind, "hook": hook, "prio": prio, "policy": policy });
    let regular = json!({ "family": "inet", "table": "weft", "name": "web" });
    let chains = [
        base("postrouting", "nat", "postrouting", 100, "accept"),
        regular,
        base("forward", "filter", "forward", 0, "drop"),
    ];
    assert_eq!(listed(&host, "chain"), chains);
    let set =
        |name: &str, kind: Value| json!({ "family": "inet", "name": name, "table": "weft", "type": kind });
    let all = json!(["ipv6_addr", "ether_addr", "inet_proto", "inet_service", "ifname"]);
    assert_eq!(listed(&host, "set"), [set("masq4", json!("ipv4_addr")), set("all", all)]);
    let map = |name: &str, kind: Value, data: Value| json!({ "family": "inet", "name": name, "table": "weft", "type": kind, "map": data });
    let maps = listed(&host, "map");
    assert_eq!(maps[0], map("pods", json!("ipv4_addr"), json!("verdict")));
    assert_eq!(maps[1]["type"], json!(["inet_proto", "inet_service"]));
    // nft 1.0.6 prints a concatenated map's target as one string, later versions as a list.
    let target = &maps[1]["map"];
    assert!(
        *target == json!("ipv4_addr . inet_service") || *target == json!(["ipv4_addr", "inet_service"]),
        "{target}"
    );
}

#[test]
fn nft_elements_of_every_type_are_listed() {
    let host = host!(Feature::NftInet);
    let members: [(&str, &[Type], Data, Value); 6] = [
        ("addresses", &[Type::Ipv4], Data::from([10, 1, 0, 5]), json!("10.1.0.5")),
        ("ports", &[Type::Port], Data::from(8080), json!(8080)),
        ("protocols", &[Type::Protocol], Data::protocol(6), json!("tcp")),
        ("hardware", &[Type::Ether], Data::from([2, 0, 0, 0, 0, 1]), json!("02:00:00:00:00:01")),
        ("links", &[Type::Link], Data::link("veth0"), json!("veth0")),
        (
            "both",
            &[Type::Link, Type::Ether],
            Data::link("veth0").and([2, 0, 0, 0, 0, 1]),
            json!({ "concat": ["veth0", "02:00:00:00:00:01"] }),
        ),
    ];
    let mut batch = Batch::new();
    batch.ensure_table(WEFT);
    for (name, types, member, _) in &members {
        batch.ensure_set(WEFT, &Set::of(name, types));
        batch.add_elements(WEFT, name, &[Element::new(member.clone())]);
    }
    nft(&host).commit(batch).expect("commit");
    for (name, _, _, shown) in &members {
        let sets = listed(&host, "set");
        let set = sets.iter().find(|set| set["name"] == *name).expect("the set");
        assert_eq!(set["elem"], json!([shown]), "{name}");
    }
}

#[test]
fn nft_ensure_is_idempotent_and_create_is_refused() {
    let host = host!(Feature::NftInet);
    let mut nft = nft(&host);
    let make = || {
        let mut batch = Batch::new();
        batch
            .ensure_table(WEFT)
            .ensure_base_chain(WEFT, "postrouting", POSTROUTING)
            .ensure_chain(WEFT, "web");
        batch.ensure_set(WEFT, &Set::of("masq4", &[Type::Ipv4]));
        batch.add_elements(WEFT, "masq4", &[Element::new([10, 1, 0, 5]).comment("first")]);
        batch
    };
    nft.commit(make()).expect("the first time");
    let before = host.snapshot();
    nft.commit(make()).expect("the second time");
    host.assert_unchanged(&before);

    let mut batch = Batch::new();
    batch.ensure_chain(WEFT, "half").create_chain(WEFT, "web");
    let error = nft.commit(batch).expect_err("web exists");
    assert_eq!(
        (error.kind(), error.to_string().as_str()),
        (Kind::Exists, "create chain inet weft web: file exists")
    );
    host.assert_unchanged(&before);
    let mut batch = Batch::new();
    batch.create_elements(WEFT, "masq4", &[Element::new([10, 1, 0, 5])]);
    assert_eq!(nft.commit(batch).expect_err("the element exists").kind(), Kind::Exists);
    let mut batch = Batch::new();
    batch.create_table(WEFT);
    assert_eq!(nft.commit(batch).expect_err("the table exists").kind(), Kind::Exists);
}

#[test]
fn nft_refused_operation_is_named_and_batch_undone() {
    let host = host!(Feature::NftInet);
    let before = host.snapshot();
    let mut nft = nft(&host);
    let mut batch = Batch::new();
    batch.ensure_table(WEFT).ensure_chain(WEFT, "web").add_elements(
        WEFT,
        "nosuch",
        &[Element::new([10, 1, 0, 5])],
    );
    batch.ensure_chain(WEFT, "after");
    let error = nft.commit(batch).expect_err("there is no such set");
    assert_eq!(error.kind(), Kind::Absent);
    assert_eq!(error.to_string(), "add element inet weft nosuch: no such file or directory");
    host.assert_unchanged(&before);
    // The socket must still be usable.
    let mut batch = Batch::new();
    batch.ensure_table(WEFT);
    nft.commit(batch).expect("commit after a refusal");
    nft.commit(Batch::new()).expect("an empty batch succeeds");
}

#[test]
fn nft_elements_are_added_and_removed_with_comments() {
    let host = host!(Feature::NftInet);
    let mut nft = nft(&host);
    let mut batch = Batch::new();
    batch.ensure_table(WEFT).ensure_set(WEFT, &Set::of("masq4", &[Type::Ipv4])).ensure_chain(WEFT, "web");
    batch.ensure_set(WEFT, &Set::to_verdicts("pods", &[Type::Ipv4]));
    let five = Element::new([10, 1, 0, 5]).comment("default/web eth0");
    batch.add_elements(WEFT, "masq4", &[five.clone(), Element::new([10, 1, 0, 6])]);
    let to_web = Element::new([10, 1, 0, 5]).verdict(Verdict::Goto("web".into())).comment("to web");
    batch.add_elements(WEFT, "pods", &[to_web, Element::new([10, 1, 0, 7]).verdict(Verdict::Drop)]);
    nft.commit(batch).expect("commit");

    let set = &listed(&host, "set")[0]["elem"];
    assert_eq!(set, &json!([{ "elem": { "val": "10.1.0.5", "comment": "default/web eth0" } }, "10.1.0.6"]));
    let map = &listed(&host, "map")[0]["elem"];
    let five_to_web =
        json!([{ "elem": { "val": "10.1.0.5", "comment": "to web" } }, { "goto": { "target": "web" } }]);
    assert!(map.as_array().is_some_and(|elements| elements.contains(&five_to_web)), "{map}");
    assert!(
        map.as_array().is_some_and(|elements| elements.contains(&json!(["10.1.0.7", { "drop": null }]))),
        "{map}"
    );

    let five_found =
        nft.element(WEFT, "masq4", &Data::from([10, 1, 0, 5])).expect("look").expect("the element exists");
    assert_eq!(five_found.comment, "default/web eth0");
    assert_eq!(nft.element(WEFT, "masq4", &Data::from([10, 1, 0, 9])).expect("look"), None);
    assert_eq!(nft.element(WEFT, "nosuch", &Data::from([10, 1, 0, 5])).expect("look"), None);
    let mut elements = nft.elements(WEFT, "masq4").expect("list");
    elements.sort_by(|a, b| a.key.bytes().cmp(b.key.bytes()));
    assert_eq!(
        (elements[0].key.clone(), elements[0].comment.as_str()),
        (Data::from([10, 1, 0, 5]), "default/web eth0")
    );
    assert_eq!((elements[1].key.clone(), elements[1].comment.as_str()), (Data::from([10, 1, 0, 6]), ""));

    let mut batch = Batch::new();
    batch.delete_elements(WEFT, "masq4", std::slice::from_ref(&five)).delete_elements(
        WEFT,
        "pods",
        &[Element::new([10, 1, 0, 7])],
    );
    nft.commit(batch).expect("delete");
    assert_eq!(listed(&host, "set")[0]["elem"], json!(["10.1.0.6"]));
    let mut batch = Batch::new();
    batch.delete_elements(WEFT, "masq4", std::slice::from_ref(&five));
    assert_eq!(nft.commit(batch).expect_err("it was deleted").kind(), Kind::Absent);
    let mut batch = Batch::new();
    batch.discard_elements(WEFT, "masq4", &[five, Element::new([10, 1, 0, 6])]);
    nft.commit(batch).expect("discard existing and missing objects");
    assert_eq!(listed(&host, "set")[0].get("elem"), None);
    assert_eq!(nft.elements(WEFT, "nosuch").expect_err("no such set").kind(), Kind::Absent);
}

#[test]
fn nft_concatenations_equal_those_of_nft() {
    let host = host!(Feature::NftInet);
    let mut batch = Batch::new();
    batch.ensure_table(WEFT);
    batch
        .ensure_set(WEFT, &Set::to_values("ports", &[Type::Protocol, Type::Port], &[Type::Ipv4, Type::Port]));
    batch.ensure_set(WEFT, &Set::of("six", &[Type::Ipv6, Type::Port]));
    batch.ensure_set(WEFT, &Set::of("links", &[Type::Link, Type::Ether]));
    let target = Data::from([10, 1, 0, 5]).and(8080);
    batch.add_elements(WEFT, "ports", &[Element::new(Data::protocol(6).and(80)).value(target.clone())]);
    batch.add_elements(WEFT, "six", &[Element::new(Data::from(address("fd00::5")).and(53))]);
    batch.add_elements(WEFT, "links", &[Element::new(Data::link("eth0").and([2, 0, 0, 0, 0, 1]))]);
    let mut nft = nft(&host);
    nft.commit(batch).expect("commit");
    let entry = json!([[{ "concat": ["tcp", 80] }, { "concat": ["10.1.0.5", 8080] }]]);
    assert_eq!(listed(&host, "map")[0]["elem"], entry);
    assert_eq!(listed(&host, "set")[0]["elem"], json!([{ "concat": ["fd00::5", 53] }]));
    assert_eq!(listed(&host, "set")[1]["elem"], json!([{ "concat": ["eth0", "02:00:00:00:00:01"] }]));
    assert_eq!(nft.elements(WEFT, "ports").expect("list")[0].value, target);
}

#[test]
fn nft_conditions_are_listed_as_typed() {
    let host = host!(Feature::NftInet, Feature::NftFib);
    let rule = || WEFT.rule().comment("rule");
    let cases = [
        (rule().link_in(Is::In, "eth0"), r#"iifname "eth0""#),
        (rule().link_out(Is::NotIn, "eth0"), r#"oifname != "eth0""#),
        (rule().index_in(Is::In, 1), r#"iif "lo""#),
        (rule().index_out(Is::NotIn, 1), r#"oif != "lo""#),
        (rule().source(Is::In, net("10.1.0.0/16")), "ip saddr 10.1.0.0/16"),
        (rule().source(Is::In, net("10.1.2.3/20")), "ip saddr 10.1.0.0/20"),
        (rule().destination(Is::NotIn, net("10.1.0.5/32")), "ip daddr != 10.1.0.5"),
        (rule().source(Is::In, net("fd00:0:7::/45")), "ip6 saddr fd00::/45"),
        (rule().destination(Is::NotIn, net("ff00::/8")), "ip6 daddr != ff00::/8"),
        (
            rule().source(Is::In, net("10.1.0.0/16")).destination(Is::NotIn, net("10.1.0.0/16")),
            "ip saddr 10.1.0.0/16 ip daddr != 10.1.0.0/16",
        ),
        (rule().ip4(), "meta nfproto ipv4"),
        (rule().ip6(), "meta nfproto ipv6"),
        (rule().ether_source(Is::NotIn, [2, 0, 0, 0, 0, 1]), "ether saddr != 02:00:00:00:00:01"),
        (rule().transport(Protocol::Udp), "meta l4proto udp"),
        (rule().destination_port(Protocol::Tcp, 80), "tcp dport 80"),
        (rule().source_port(Protocol::Sctp, 80), "sctp sport 80"),
        (rule().destination_is_local(Is::In), "fib daddr type local"),
        (rule().destination_is_local(Is::NotIn), "fib daddr type != local"),
        (rule().state(&[State::Established, State::Related]), "ct state established,related"),
        (rule().state(&[State::Invalid]), "ct state invalid"),
        (rule().was_destination_translated(), "ct status dnat"),
        (rule().mark(Is::In, 0x2000, 0x2000), "meta mark & 0x00002000 == 0x00002000"),
        (rule().mark(Is::NotIn, 7, u32::MAX), "meta mark != 0x00000007"),
        (rule().icmp6_types(133, 133).icmp6_code(0), "icmpv6 type 133-133 icmpv6 code no-route"),
        (rule().ip6_hop_limit(255), "ip6 hoplimit 255"),
        (rule().ip6_next_is_icmp6(), "ip6 nexthdr ipv6-icmp"),
        (rule().ip6_length_at_most(64), "ip6 length <= 64"),
        (rule().from_process(), "meta skuid >= 0"),
        (rule().look_up(&[Selector::Source4], Is::In, "masq4"), "ip saddr @masq4"),
        (rule().look_up(&[Selector::Source4], Is::NotIn, "masq4"), "ip saddr != @masq4"),
        (
            rule().look_up(&[Selector::Transport, Selector::DestinationPort], Is::In, "open"),
            "meta l4proto . th dport @open",
        ),
    ];
    let mut batch = Batch::new();
    batch.ensure_table(WEFT).ensure_chain(WEFT, "web").ensure_set(WEFT, &Set::of("masq4", &[Type::Ipv4]));
    batch.ensure_set(WEFT, &Set::of("open", &[Type::Protocol, Type::Port]));
    for (rule, _) in &cases {
        batch.add_rule(WEFT, "web", rule);
    }
    nft(&host).commit(batch).expect("commit");
    assert_eq!(rules(&host), cases.map(|(_, expected)| expected));
}

#[test]
fn nft_statements_are_listed_as_typed() {
    let host = host!(Feature::NftInet);
    let rule = || WEFT.rule().comment("rule");
    let cases = [
        (rule().decide(&Verdict::Accept), "accept"),
        (rule().decide(&Verdict::Drop), "drop"),
        (rule().decide(&Verdict::Return), "return"),
        (rule().decide(&Verdict::Jump("other".into())), "jump other"),
        (rule().decide(&Verdict::Goto("other".into())), "goto other"),
        (rule().count().decide(&Verdict::Accept), "counter accept"),
        (rule().set_mark(0x2000, 0x2000), "meta mark set meta mark | 0x00002000"),
        (rule().verdict_of(&[Selector::Source4], "pods"), "ip saddr vmap @pods"),
        (rule().untrack(), "notrack"),
    ];
    let mut batch = Batch::new();
    batch.ensure_table(WEFT).ensure_chain(WEFT, "web").ensure_chain(WEFT, "other");
    batch.ensure_set(WEFT, &Set::to_verdicts("pods", &[Type::Ipv4]));
    for (rule, _) in &cases {
        batch.add_rule(WEFT, "web", rule);
    }
    nft(&host).commit(batch).expect("commit");
    assert_eq!(rules(&host), cases.map(|(_, expected)| expected));
}

#[test]
fn nft_nat_statements_are_listed_as_typed() {
    let host = host!(Feature::NftMasquerade);
    let rule = || WEFT.rule().comment("rule");
    let web = rule()
        .destination_port(Protocol::Tcp, 80)
        .destination_nat("10.1.0.5:8080".parse().expect("a socket"));
    let names =
        rule().destination_port(Protocol::Udp, 53).destination_nat("[fd00::5]:53".parse().expect("a socket"));
    let at_port =
        rule().source_port(Protocol::Udp, 53).source_nat_to_port("192.0.2.1:1024".parse().expect("a socket"));
    let ports = &[Selector::Transport, Selector::DestinationPort];
    let mapped = rule().ip4().destination_nat_of(ports, "ports", Mapping::Address4AndPort);
    let source = [
        (rule().masquerade(), "masquerade"),
        (rule().masquerade_randomly(), "masquerade fully-random"),
        (rule().ip4().source_nat(address("192.0.2.1")), "meta nfproto ipv4 snat ip to 192.0.2.1"),
        (at_port, "udp sport 53 snat ip to 192.0.2.1:1024"),
        (rule().ip6().source_nat(address("fd00::1")), "meta nfproto ipv6 snat ip6 to fd00::1"),
    ];
    let destination = [
        (web, "tcp dport 80 dnat ip to 10.1.0.5:8080"),
        (names, "udp dport 53 dnat ip6 to [fd00::5]:53"),
        (mapped, "meta nfproto ipv4 dnat ip to meta l4proto . th dport map @ports"),
    ];
    let mut batch = Batch::new();
    batch
        .ensure_table(WEFT)
        .ensure_base_chain(WEFT, "out", POSTROUTING)
        .ensure_base_chain(WEFT, "in", PREROUTING);
    batch
        .ensure_set(WEFT, &Set::to_values("ports", &[Type::Protocol, Type::Port], &[Type::Ipv4, Type::Port]));
    for (rule, _) in &source {
        batch.add_rule(WEFT, "out", rule);
    }
    for (rule, _) in &destination {
        batch.add_rule(WEFT, "in", rule);
    }
    nft(&host).commit(batch).expect("commit");
    let expected: Vec<_> = source.iter().chain(&destination).map(|(_, expected)| *expected).collect();
    assert_eq!(rules(&host), expected);
}

#[test]
fn nft_rules_are_found_by_comment_and_deleted_by_handle() {
    let host = host!(Feature::NftInet);
    let mut nft = nft(&host);
    assert_eq!(nft.rules(WEFT, "web").expect("a missing table has no rules"), []);
    let mut batch = Batch::new();
    batch.ensure_table(WEFT).ensure_chain(WEFT, "web").ensure_chain(WEFT, "other");
    for comment in ["one", "two", "a \"quoted\" one", ""] {
        batch.add_rule(WEFT, "web", &WEFT.rule().comment(comment).decide(&Verdict::Accept));
    }
    batch.add_rule(WEFT, "other", &WEFT.rule().comment("elsewhere").count());
    batch.insert_rule(WEFT, "web", &WEFT.rule().comment("zero").count());
    nft.commit(batch).expect("commit");
    let found = nft.rules(WEFT, "web").expect("list");
    let comments: Vec<_> = found.iter().map(|rule| rule.comment.as_str()).collect();
    assert_eq!(comments, ["zero", "one", "two", "a _quoted_ one", ""]);
    let printed: Vec<_> = listed(&host, "rule")
        .iter()
        .filter_map(|rule| Some(rule.get("comment")?.as_str()?.to_owned()))
        .collect();
    assert_eq!(printed, ["zero", "one", "two", "a _quoted_ one", "elsewhere"]);

    let two = found.iter().find(|rule| rule.comment == "two").expect("rule two");
    let mut batch = Batch::new();
    batch.delete_rule(WEFT, "web", two.handle);
    nft.commit(batch).expect("delete");
    let left: Vec<_> = nft.rules(WEFT, "web").expect("list").into_iter().map(|rule| rule.comment).collect();
    assert_eq!(left, ["zero", "one", "a _quoted_ one", ""]);
    let mut batch = Batch::new();
    batch.delete_rule(WEFT, "web", two.handle);
    assert_eq!(nft.commit(batch).expect_err("it was deleted").kind(), Kind::Absent);
}

#[test]
fn nft_list_of_a_long_chain_is_bounded() {
    let host = host!(Feature::NftInet);
    let mut batch = Batch::new();
    batch.ensure_table(WEFT).ensure_chain(WEFT, "web").ensure_chain(WEFT, "other");
    for _ in 0..2000 {
        batch.add_rule(WEFT, "web", &WEFT.rule().comment("one of many").count());
    }
    batch.add_rule(WEFT, "other", &WEFT.rule().count());
    nft(&host).commit(batch).expect("commit");
    let minute = Duration::from_secs(60);
    let within = |bytes_max, chain| match nft(&host).within(bytes_max, minute).rules(WEFT, chain) {
        Ok(rules) => Some(rules.len()),
        Err(error) => {
            assert_eq!(error.kind(), Kind::Exceeded, "{error}");
            None
        }
    };
    assert_eq!(within(64 * 1024, "web"), None);
    assert_eq!(within(4 << 20, "web"), Some(2000));
    assert_eq!(within(64 * 1024, "other"), Some(1));
    assert_eq!(within(64 * 1024, "missing"), Some(0));
    // All lists on a socket count together, and each of them ends in time.
    let mut twice = nft(&host).within(400 * 1024, minute);
    assert_eq!(twice.rules(WEFT, "web").map(|rules| rules.len()), Ok(2000));
    assert_eq!(twice.rules(WEFT, "web").map_err(|error| error.kind()), Err(Kind::Exceeded));
    let late = nft(&host).within(4 << 20, Duration::ZERO).rules(WEFT, "web");
    assert_eq!(late.map_err(|error| error.kind()), Err(Kind::Exceeded));
}

#[test]
fn nft_base_chain_is_read_as_it_was_written() {
    let host = host!(Feature::NftInet);
    let mut batch = Batch::new();
    batch.ensure_table(WEFT).ensure_chain(WEFT, "web");
    let base = |chain_type, hook, priority, policy| BaseChain { chain_type, hook, priority, policy };
    let chains = [
        ("one", base(ChainType::Filter, Hook::Prerouting, -150, Policy::Accept)),
        ("two", base(ChainType::Filter, Hook::Output, 7, Policy::Drop)),
        ("three", base(ChainType::Nat, Hook::Postrouting, 100, Policy::Accept)),
    ];
    for (name, chain) in chains {
        batch.ensure_base_chain(WEFT, name, chain);
    }
    nft(&host).commit(batch).expect("commit");
    for (name, chain) in chains {
        assert_eq!(nft(&host).base_chain(WEFT, name), Ok(Some(chain)), "{name}");
    }
    assert_eq!(nft(&host).base_chain(WEFT, "web"), Ok(None), "no base chain");
    assert_eq!(nft(&host).base_chain(WEFT, "missing"), Ok(None));
    assert_eq!(nft(&host).base_chain(Table::new(Family::Ip, "missing"), "one"), Ok(None));
}

#[test]
fn nft_chains_sets_and_tables_are_deleted() {
    let host = host!(Feature::NftInet);
    let before = host.snapshot();
    let mut nft = nft(&host);
    let mut batch = Batch::new();
    batch.ensure_table(WEFT).ensure_chain(WEFT, "web").ensure_set(WEFT, &Set::of("masq4", &[Type::Ipv4]));
    batch.add_rule(WEFT, "web", &WEFT.rule().count()).add_elements(
        WEFT,
        "masq4",
        &[Element::new([10, 1, 0, 5])],
    );
    nft.commit(batch).expect("commit");
    let mut batch = Batch::new();
    batch.discard_chain(WEFT, "web").discard_chain(WEFT, "never").flush_set(WEFT, "masq4");
    nft.commit(batch).expect("discard");
    assert_eq!((listed(&host, "chain"), listed(&host, "set")[0].get("elem")), (vec![], None));
    let mut batch = Batch::new();
    batch
        .delete_set(WEFT, "masq4")
        .ensure_chain(WEFT, "web")
        .flush_chain(WEFT, "web")
        .delete_chain(WEFT, "web")
        .delete_table(WEFT);
    nft.commit(batch).expect("delete");
    host.assert_unchanged(&before);
}

#[test]
fn nft_masquerade_by_set_follows_its_elements() {
    let host = host!(Feature::NftMasquerade, Feature::Ping);
    let (a, out) = routed(&host);
    let mut nft = nft(&host);
    let mut batch = Batch::new();
    batch
        .ensure_table(WEFT)
        .ensure_base_chain(WEFT, "postrouting", POSTROUTING)
        .ensure_set(WEFT, &Set::of("masq4", &[Type::Ipv4]));
    let rule = WEFT
        .rule()
        .look_up(&[Selector::Source4], Is::In, "masq4")
        .destination(Is::NotIn, net("10.1.0.0/24"))
        .masquerade();
    batch.add_rule(WEFT, "postrouting", &rule);
    nft.commit(batch).expect("commit");
    assert!(!a.pings("192.0.2.9"), "the external host has no route to 10.1.0.5");
    let five = [Element::new(Ipv4Addr::new(10, 1, 0, 5))];
    let mut batch = Batch::new();
    batch.add_elements(WEFT, "masq4", &five);
    nft.commit(batch).expect("add");
    assert!(a.pings("192.0.2.9"), "masqueraded as 192.0.2.1");
    let mut batch = Batch::new();
    batch.delete_elements(WEFT, "masq4", &five);
    nft.commit(batch).expect("delete");
    assert!(!a.pings("192.0.2.9"), "masquerading ended");
    drop(out);
}

#[test]
fn nft_destination_nat_by_map_reaches_the_pod() {
    let host = host!(Feature::NftMasquerade);
    let (a, out) = routed(&host);
    let mut batch = Batch::new();
    batch.ensure_table(WEFT).ensure_base_chain(WEFT, "prerouting", PREROUTING);
    batch
        .ensure_set(WEFT, &Set::to_values("ports", &[Type::Protocol, Type::Port], &[Type::Ipv4, Type::Port]));
    let ports = &[Selector::Transport, Selector::DestinationPort];
    let rule = WEFT.rule().ip4().destination_is_local(Is::In).destination_nat_of(
        ports,
        "ports",
        Mapping::Address4AndPort,
    );
    batch.add_rule(WEFT, "prerouting", &rule);
    let entry = Element::new(Data::protocol(6).and(8080)).value(Data::from([10, 1, 0, 5]).and(80));
    batch.add_elements(WEFT, "ports", &[entry]);
    nft(&host).commit(batch).expect("commit");
    let server = a.within(|| std::net::TcpListener::bind("10.1.0.5:80")).expect("listen in the pod");
    let connect = |port: u16| {
        out.within(|| {
            std::net::TcpStream::connect_timeout(
                &(Ipv4Addr::new(192, 0, 2, 1), port).into(),
                Duration::from_secs(2),
            )
        })
    };
    let client = connect(8080).expect("connect to the host's port");
    let (_, from) = server.accept().expect("accept");
    assert_eq!(from, client.local_addr().expect("an address"), "the pod sees the address of the client");
    assert!(connect(8081).is_err(), "no other port is forwarded");
}

#[test]
fn nft_forwarding_is_filtered_by_link_and_state() {
    let host = host!(Feature::NftInet, Feature::Ping);
    let (a, out) = routed(&host);
    out.run(["ip", "route", "add", "10.1.0.0/24", "via", "192.0.2.1"]);
    let mut batch = Batch::new();
    batch.ensure_table(WEFT).ensure_base_chain(WEFT, "forward", FORWARD);
    batch.add_rule(WEFT, "forward", &WEFT.rule().state(&[State::Established]).decide(&Verdict::Accept));
    batch.add_rule(
        WEFT,
        "forward",
        &WEFT.rule().link_in(Is::In, "a0").link_out(Is::In, "o0").decide(&Verdict::Accept),
    );
    nft(&host).commit(batch).expect("commit");
    assert!(a.pings("192.0.2.9"), "forwarded in both directions");
    assert!(!out.pings("10.1.0.5"), "not in");
}

#[test]
fn nft_bridge_table_drops_a_forged_mac() {
    let host = host!(Feature::NftBridge, Feature::Bridge, Feature::Ping);
    let (a, b) = (host.pod("a"), host.pod("b"));
    host.run(["ip", "link", "add", "br0", "type", "bridge"]);
    host.run(["ip", "link", "set", "br0", "up"]);
    for (pod, link, address) in [(&a, "a0", "10.1.0.5/24"), (&b, "b0", "10.1.0.6/24")] {
        host.run(["ip", "link", "add", link, "type", "veth", "peer", "eth0", "netns", pod.name()]);
        host.run(["ip", "link", "set", link, "master", "br0", "up"]);
        pod.run(["ip", "address", "add", address, "dev", "eth0"]);
        pod.run(["ip", "link", "set", "eth0", "up"]);
    }
    a.run(["ip", "link", "set", "eth0", "address", "02:00:00:00:00:05"]);
    let table = Table::new(Family::Bridge, "weft");
    let base = BaseChain {
        chain_type: ChainType::Filter,
        hook: Hook::Prerouting,
        priority: priority::RAW,
        policy: Policy::Accept,
    };
    let mut batch = Batch::new();
    batch.ensure_table(table).ensure_base_chain(table, "spoof", base);
    let rule = table
        .rule()
        .link_in(Is::In, "a0")
        .ether_source(Is::NotIn, [2, 0, 0, 0, 0, 5])
        .count()
        .decide(&Verdict::Drop);
    batch.add_rule(table, "spoof", &rule);
    batch.add_rule(table, "spoof", &table.rule().source(Is::In, net("10.1.0.5/32")).count());
    nft(&host).commit(batch).expect("commit");
    assert!(a.pings("10.1.0.6"), "with its own address");
    let text = host.run(["nft", "-s", "list", "table", "bridge", "weft"]);
    assert!(text.contains(r#"iifname "a0" ether saddr != 02:00:00:00:00:05 counter drop"#), "{text}");
    assert!(text.contains("ip saddr 10.1.0.5 counter"), "{text}");
    a.run(["ip", "link", "set", "eth0", "address", "02:00:00:00:00:66"]);
    assert!(!a.pings("10.1.0.6"), "under another");
    drop(b);
}

#[test]
fn nft_cost_of_an_element_is_constant_with_10000_elements() {
    let host = host!(Feature::NftInet);
    let mut nft = nft(&host);
    let mut batch = Batch::new();
    batch.ensure_table(WEFT).ensure_set(WEFT, &Set::of("masq4", &[Type::Ipv4]));
    nft.commit(batch).expect("commit");
    let few = median_of_one_element(&mut nft);
    let many: Vec<Element> = (0..10_000_u32)
        .map(|n| Element::new(Ipv4Addr::from(0x0a80_0000 + n)).comment(format!("pod {n} eth0")))
        .collect();
    let mut batch = Batch::new();
    batch.add_elements(WEFT, "masq4", &many);
    let started = Instant::now();
    nft.commit(batch).expect("commit");
    eprintln!("10,000 elements: {:?}", started.elapsed());
    assert_eq!(nft.elements(WEFT, "masq4").expect("list").len(), 10_000);
    let crowded = median_of_one_element(&mut nft);
    eprintln!("one element, added and deleted: {few:?} among none, {crowded:?} among 10,000");
    for (few, crowded) in [(few.0, crowded.0), (few.1, crowded.1)] {
        assert!(crowded < few * 3 + Duration::from_millis(1), "{crowded:?} among 10,000, {few:?} among none");
    }
}

/// Measures the median times for a transaction that adds one element, and for one that deletes it.
fn median_of_one_element(nft: &mut Nft) -> (Duration, Duration) {
    let mut commit = |batch: Batch| {
        let started = Instant::now();
        nft.commit(batch).expect("commit");
        started.elapsed()
    };
    let times = (0..51_u8).map(|last| {
        let element = [Element::new([10, 9, 9, last]).comment("default/web eth0")];
        let (mut add, mut delete) = (Batch::new(), Batch::new());
        add.add_elements(WEFT, "masq4", &element);
        delete.delete_elements(WEFT, "masq4", &element);
        (commit(add), commit(delete))
    });
    let (mut added, mut deleted): (Vec<_>, Vec<_>) = times.unzip();
    added.sort();
    deleted.sort();
    (added[25], deleted[25])
}

#[test]
fn nft_tables_are_listed_by_family() {
    let host = host!(Feature::NftInet);
    for line in ["add table inet weft", "add table inet other", "add table ip weft4"] {
        host.run(["nft", line]);
    }
    let mut nft = nft(&host);
    let mut names = nft.tables(Family::Inet).expect("list tables");
    names.sort();
    assert_eq!(names, ["other", "weft"]);
    assert_eq!(nft.tables(Family::Ip).expect("list tables"), ["weft4"]);
    assert!(nft.tables(Family::Bridge).expect("list tables").is_empty());
    host.run(["nft", "add table inet other { flags dormant; }"]);
    let mut is_dormant = |name| nft.is_dormant(Table::new(Family::Inet, name)).expect("find table");
    assert_eq!(["weft", "other", "missing"].map(&mut is_dormant), [false, true, false]);
}

#[test]
fn nft_filters_are_listed_by_hook_with_policy() {
    let host = host!(Feature::NftInet, Feature::IptablesNft);
    host.run(["iptables", "-P", "FORWARD", "DROP"]);
    host.run(["nft", "table inet x { chain a { type filter hook forward priority 5; }; chain b { type filter hook input priority 0; policy drop; }; chain c { }; }"]);
    let mut nft = nft(&host);
    let mut shown = |family| -> Vec<(String, String, bool)> {
        let chains = nft.filters(family, Hook::Forward).expect("list chains");
        chains.into_iter().map(|chain| (chain.table, chain.name, chain.drops)).collect()
    };
    assert_eq!(shown(Family::Ip), [("filter".to_owned(), "FORWARD".to_owned(), true)]);
    assert_eq!(shown(Family::Inet), [("x".to_owned(), "a".to_owned(), false)]);
    assert!(shown(Family::Ip6).is_empty());
}

#[test]
fn nft_mark_match_is_listed_by_iptables() {
    let host = host!(Feature::IptablesNft);
    host.run(["iptables", "-A", "FORWARD", "-j", "DROP"]);
    let table = Table::new(Family::Ip, "filter");
    let rule =
        table.rule().mark_for_iptables(0x1000, 0x1000).count().decide(&Verdict::Accept).comment("weft");
    let mut batch = Batch::new();
    batch.insert_rule(table, "FORWARD", &rule);
    nft(&host).commit(batch).expect("insert");
    let saved = host.run(["iptables-save", "-t", "filter"]);
    let rules: Vec<&str> = saved.lines().filter(|line| line.starts_with("-A")).collect();
    let first = "-A FORWARD -m mark --mark 0x1000/0x1000 -m comment --comment weft -j ACCEPT";
    assert_eq!(rules, [first, "-A FORWARD -j DROP"]);
}

#[test]
fn nft_sets_of_ranges_equal_those_of_nft() {
    let host = host!(Feature::NftInet);
    let mut batch = Batch::new();
    batch.ensure_table(WEFT).ensure_chain(WEFT, "web");
    let near = Set::of_ranges("near", &[Type::Ipv4]);
    let far = Set::of_ranges("far", &[Type::Ipv6]);
    let ports = Set::of_ranges("ports", &[Type::Protocol, Type::Port]);
    batch.ensure_set(WEFT, &near).ensure_set(WEFT, &far).ensure_set(WEFT, &ports);
    let range = |first: &str, last: &str| Element::range(address(first), address(last));
    batch.add_elements(WEFT, "near", &range("10.0.0.1", "10.0.0.1"));
    batch.add_elements(WEFT, "near", &range("10.0.0.4", "10.0.0.9"));
    batch.add_elements(WEFT, "near", &range("255.0.0.0", "255.255.255.255"));
    batch.add_elements(WEFT, "far", &range("fd00::", "fd00::ffff"));
    let port = |protocol: Protocol, port: u16| Data::protocol(protocol.number()).and(port);
    batch.add_elements(
        WEFT,
        "ports",
        &[
            Element::new(port(Protocol::Tcp, 80)).to(port(Protocol::Tcp, 90)),
            Element::new(port(Protocol::Udp, 53)).to(port(Protocol::Udp, 53)),
        ],
    );
    let fields = [Selector::Transport, Selector::DestinationPort];
    let rule = WEFT.rule().look_up(&[Selector::Source4], Is::In, "near").look_up(&fields, Is::In, "ports");
    batch.add_rule(WEFT, "web", &rule.decide(&Verdict::Accept).comment("rule"));
    batch.add_rule(WEFT, "web", &WEFT.rule().icmp6_types(133, 136).decide(&Verdict::Accept).comment("rule"));
    nft(&host).commit(batch).expect("commit");
    let text = host.run(["nft", "list", "table", "inet", "weft"]);
    for line in [
        "elements = { 10.0.0.1, 10.0.0.4-10.0.0.9,",
        "elements = { fd00::/112 }",
        "elements = { tcp . 80-90,",
    ] {
        assert!(text.contains(line), "{line} in\n{text}");
    }
    assert_eq!(
        rules(&host),
        ["ip saddr @near meta l4proto . th dport @ports accept", "icmpv6 type 133-136 accept"]
    );
}
