//! Tests links that are created but cannot be completed.

#![cfg(test)]

use linux::Rtnl;
use linux::link::create::{NewKind, NewLink};
use testkit::{Feature, host};

#[test]
fn link_that_cannot_be_completed_is_removed() {
    let host = host!(Feature::Ifb);
    let before = host.snapshot();
    // The alias is too long. It is set after the link is created, so the kernel refuses it while the link already
    // exists.
    let alias = "x".repeat(300);
    let link = NewLink { alias: Some(&alias), up: true, ..NewLink::new("d0", NewKind::Ifb) };
    let refused = host.within(|| Rtnl::open().unwrap().add_link(&link));
    assert!(refused.is_err());
    host.assert_unchanged(&before);
    // An existing link must not change.
    host.run(["ip", "link", "add", "d0", "type", "ifb"]);
    let refused = host.within(|| Rtnl::open().unwrap().add_link(&link));
    assert_eq!(refused.unwrap_err().kind(), linux::Kind::Exists);
    host.run(["ip", "link", "show", "d0"]);
}

#[test]
fn links_with_many_alternative_names_are_listed_and_found() {
    let host = host!();
    host.run(["ip", "link", "add", "w0", "type", "veth", "peer", "name", "w1"]);
    let names = |from: usize, to: usize| {
        (from..to).map(|number| format!("property add dev w0 altname {number:0>127}\n")).collect::<String>()
    };
    // The kernel stops at 64 KiB of names.
    let script = format!(
        "cat >/run/names <<END\n{}END\nip -force -batch /run/names link 2>/run/refused; true",
        names(0, 510)
    );
    host.run(["sh", "-c", &script.replace("property", "link property")]);
    let shown = host.command("ip").args(["-d", "link", "show", "w0"]).finish().success().stdout;
    assert!(shown.len() > 60_000, "the kernel took {} bytes of names", shown.len());
    host.within(|| {
        let mut net = Rtnl::open().unwrap();
        let links = net.links().unwrap();
        let names: Vec<&str> = links.iter().map(|link| link.name.as_str()).collect();
        assert!(names.contains(&"lo") && names.contains(&"w0") && names.contains(&"w1"), "{names:?}");
        assert_eq!(net.find_link("w0").unwrap().map(|link| link.name), Some("w0".to_owned()));
        // The socket must still work.
        assert_eq!(net.links().unwrap().len(), links.len());
        net.find_link("w1").unwrap().unwrap();
    });
}
