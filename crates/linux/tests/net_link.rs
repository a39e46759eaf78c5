//! Links: what cannot be made as a whole is not made.

#![cfg(test)]

use linux::Rtnl;
use linux::link::create::{NewKind, NewLink};
use testkit::{Feature, host};

#[test]
fn a_link_that_could_not_be_finished_is_gone() {
    let host = host!(Feature::Ifb);
    let before = host.snapshot();
    // Longer than an alias may be: said of a link that is there, so the kernel refuses it after it made the link.
    let alias = "x".repeat(300);
    let link = NewLink { alias: Some(&alias), up: true, ..NewLink::new("d0", NewKind::Ifb) };
    let refused = host.within(|| Rtnl::open().unwrap().add_link(&link));
    assert!(refused.is_err());
    host.assert_unchanged(&before);
    // One that was there is not touched.
    host.run(["ip", "link", "add", "d0", "type", "ifb"]);
    let refused = host.within(|| Rtnl::open().unwrap().add_link(&link));
    assert_eq!(refused.unwrap_err().kind(), linux::Kind::Exists);
    host.run(["ip", "link", "show", "d0"]);
}
