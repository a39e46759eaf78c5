//! Test of the creation of links that cannot be completed.

#![cfg(test)]

use linux::Rtnl;
use linux::link::create::{NewKind, NewLink};
use testkit::{Feature, host};

#[test]
fn link_that_cannot_be_completed_is_removed() {
    let host = host!(Feature::Ifb);
    let before = host.snapshot();
    // The alias is too long. It is set after the creation, so the kernel refuses it when the link exists.
    let alias = "x".repeat(300);
    let link = NewLink { alias: Some(&alias), up: true, ..NewLink::new("d0", NewKind::Ifb) };
    let refused = host.within(|| Rtnl::open().unwrap().add_link(&link));
    assert!(refused.is_err());
    host.assert_unchanged(&before);
    // An existing link is not changed.
    host.run(["ip", "link", "add", "d0", "type", "ifb"]);
    let refused = host.within(|| Rtnl::open().unwrap().add_link(&link));
    assert_eq!(refused.unwrap_err().kind(), linux::Kind::Exists);
    host.run(["ip", "link", "show", "d0"]);
}
