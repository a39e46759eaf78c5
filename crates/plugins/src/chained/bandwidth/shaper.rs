//! Kernel objects for `bandwidth`: buckets, classes, and the ifb that shapes the packets a container sends.
//!
//! An ifb has the name that the reference plugin gives it, a hash over network and container, so that each plugin finds
//! the other's. If the same container has a second interface on the same network, that ifb gets another name.

use cni::Error;
use cni::invocation::Attachment;
use linux::link::Link;
use linux::link::create::{NewKind, NewLink};
use linux::tc::filter::Side;
use linux::tc::{Bucket, Root};
use linux::{Kind, Rtnl, Undo};
use plugin_config::bandwidth::{Limit, Limits, Scope};
use plugin_support::failure::{OrRefused, refused};
use plugin_support::hash::{hashed, hex};
use plugin_support::owner_tag::{ALIAS_MAX, OwnerTag};
use sha2::{Digest, Sha512};

use super::limits::{bucket, unlimited};
use crate::interface::inspection::differs;

/// Prefix for ifb names.
const PREFIX: &str = "bwp";
/// Length that an ifb name has, in bytes.
const NAME_LENGTH: usize = 15;
/// Class for limited traffic.
const SHAPED: u16 = 0x30;
/// Class for unlimited traffic.
const UNSHAPED: u16 = 1;

/// Traffic shaper for one attachment.
pub struct Shaper<'a> {
    /// Host end of the interface.
    pub end: &'a Link,
    /// The attachment's owner tag.
    pub tag: &'a OwnerTag,
    /// Limits to apply.
    pub limits: &'a Limits,
}

/// Returns the names that an attachment's ifb can have, in the order in which they are tried.
fn names(tag: &OwnerTag) -> [String; 2] {
    let OwnerTag { plugin: _, network, container, ifname } = tag;
    names_of([network, container, ifname])
}

fn names_of([network, container, ifname]: [&str; 3]) -> [String; 2] {
    let frozen = Sha512::digest(format!("{network}{container}"));
    [hex(PREFIX, NAME_LENGTH, &frozen), hashed(PREFIX, NAME_LENGTH, &[network, container, ifname])]
}

/// Returns the name that an attachment's ifb gets at attempt `attempt`; `None` after the last name.
pub fn ifb_name(network: &str, who: &Attachment, attempt: u32) -> Option<String> {
    let names = names_of([network, who.container.as_str(), who.ifname.as_str()]);
    names.into_iter().nth(usize::try_from(attempt).ok()?)
}

/// Returns an attachment's ifb, if it exists. `end` returns the index of the host end, if it is known.
pub fn find_ifb(
    host: &mut Rtnl,
    tag: &OwnerTag,
    end: &dyn Fn() -> Result<Option<u32>, Error>,
) -> Result<Option<Link>, Error> {
    let alias = tag.text(ALIAS_MAX);
    for name in names(tag) {
        if let Some(link) = host.find_link(&name).or_refused()?
            && is_own(host, &link, &alias, end)?
        {
            return Ok(Some(link));
        }
    }
    Ok(None)
}

/// Whether an ifb belongs to the attachment. An ifb without an owner tag was created by the reference plugin, or by a
/// call that was killed before it set the tag. It belongs to another interface if a link other than `end` redirects to
/// it.
fn is_own(
    host: &mut Rtnl,
    ifb: &Link,
    alias: &str,
    end: &dyn Fn() -> Result<Option<u32>, Error>,
) -> Result<bool, Error> {
    if ifb.kind != "ifb" || !ifb.alias.is_empty() {
        return Ok(ifb.kind == "ifb" && ifb.alias == alias);
    }
    let Some(end) = end()? else { return Ok(true) };
    for link in host.links().or_refused()?.iter().filter(|link| link.index != end) {
        if host.redirections(link.index, &link.name).or_refused()?.contains(&ifb.index) {
            return Ok(false);
        }
    }
    Ok(true)
}

// === impl Shaper ===

impl Shaper<'_> {
    /// Applies the limits; returns the ifb, if one was needed.
    pub fn apply(&self, host: &mut Rtnl, undo: &mut Undo<'_>) -> Result<Option<Link>, Error> {
        let Shaper { end, tag: _, limits } = self;
        let ifb = match &limits.egress {
            None => None,
            Some(limit) => Some(self.apply_egress(host, limit, undo)?),
        };
        if let Some(limit) = &limits.ingress {
            let (index, name) = (end.index, end.name.clone());
            undo.push(move || {
                let _ = Rtnl::open().and_then(|mut host| host.unlimit(index, &name));
            });
            shape(host, end, &bucket(limit, end.mtu), Side::Source, &limits.scope)?;
        }
        Ok(ifb)
    }

    fn apply_egress(&self, host: &mut Rtnl, limit: &Limit, undo: &mut Undo<'_>) -> Result<Link, Error> {
        let Shaper { end, tag, limits } = self;
        let (owner, index) = ((*tag).clone(), end.index);
        undo.push(move || {
            let Ok(mut host) = Rtnl::open() else { return };
            if let Ok(Some(ifb)) = find_ifb(&mut host, &owner, &|| Ok(Some(index))) {
                let _ = host.delete_link(ifb.index, &ifb.name);
            }
        });
        let ifb = self.create_ifb(host)?;
        // The limit is in place before the first packet is redirected.
        shape(host, &ifb, &bucket(limit, end.mtu), Side::Destination, &limits.scope)?;
        self.enter(host)?;
        let (index, name) = (end.index, end.name.clone());
        undo.push(move || {
            let _ = Rtnl::open().and_then(|mut host| host.remove_ingress(index, &name));
        });
        host.redirect(end.index, &end.name, ifb.index).or_refused()?;
        Ok(ifb)
    }

    fn create_ifb(&self, host: &mut Rtnl) -> Result<Link, Error> {
        let alias = self.tag.text(ALIAS_MAX);
        for name in names(self.tag) {
            let mut ifb = NewLink::new(&name, NewKind::Ifb);
            ifb.mtu = Some(self.end.mtu);
            ifb.tx_queue_length = Some(0);
            ifb.alias = Some(&alias);
            ifb.no_link_local = true;
            ifb.up = true;
            match host.add_link(&ifb) {
                Err(error) if error.kind() == Kind::Exists => {}
                made => return made.and_then(|()| host.link(&name)).or_refused(),
            }
            // Left by a killed ADD: recreate it, because its state is unknown.
            if let Some(left) = host.find_link(&name).or_refused()?
                && is_own(host, &left, &alias, &|| Ok(Some(self.end.index)))?
            {
                linux::error::absent_is_fine(host.delete_link(left.index, &name)).or_refused()?;
                return host.add_link(&ifb).and_then(|()| host.link(&name)).or_refused();
            }
        }
        let names = names(self.tag).join(" and ");
        Err(Error::internal(format!("both names for the ifb are in use: {names}")))
    }

    /// Adds the ingress queueing discipline for the redirection. An existing one that redirects to no existing link is
    /// left from a killed ADD, or from one whose answer was lost, and is replaced. Any other belongs to another
    /// program.
    fn enter(&self, host: &mut Rtnl) -> Result<(), Error> {
        let Shaper { end, .. } = self;
        match host.add_ingress(end.index, &end.name) {
            Err(error) if error.kind() == Kind::Exists => {
                let targets = host.redirections(end.index, &end.name).or_refused()?;
                let is_bare =
                    targets.is_empty() && host.has_unused_ingress(end.index, &end.name).or_refused()?;
                let is_gone = |target: &u32| matches!(host.link_at(*target), Err(error) if *target == 0 || error.kind() == Kind::Absent);
                if !is_bare && (targets.is_empty() || !targets.iter().all(is_gone)) {
                    return Err(refused(&error));
                }
                host.remove_ingress(end.index, &end.name).or_refused()?;
                host.add_ingress(end.index, &end.name).or_refused()
            }
            entered => entered.or_refused(),
        }
    }

    /// Fails unless the kernel has everything that [`Shaper::apply`] creates.
    pub fn inspect(&self, host: &mut Rtnl) -> Result<(), Error> {
        let Shaper { end, tag, limits } = self;
        if let Some(limit) = &limits.ingress {
            compare(host, end, &bucket(limit, end.mtu), &limits.scope)?;
        }
        let Some(limit) = &limits.egress else { return Ok(()) };
        let Some(ifb) = find_ifb(host, tag, &|| Ok(Some(end.index)))? else {
            return Err(Error::internal(format!("link {} is missing", names(tag)[0])));
        };
        if !ifb.up {
            return Err(differs(&ifb.name, "state", "down", "up"));
        }
        let targets = host.redirections(end.index, &end.name).or_refused()?;
        if !targets.contains(&ifb.index) {
            return Err(Error::internal(format!("{} is not redirected to {}", end.name, ifb.name)));
        }
        compare(host, &ifb, &bucket(limit, end.mtu), &limits.scope)
    }
}

/// Limits what a link sends: all traffic, or the class that a filter selects by the remote address.
fn shape(host: &mut Rtnl, link: &Link, bucket: &Bucket, side: Side, scope: &Scope) -> Result<(), Error> {
    let Link { index, name, .. } = link;
    let (subnets, default, chosen) = match scope {
        Scope::All => return host.limit(*index, name, bucket).or_refused(),
        Scope::Only(subnets) => (subnets, UNSHAPED, SHAPED),
        Scope::AllBut(subnets) => (subnets, SHAPED, UNSHAPED),
    };
    host.classify(*index, name, default).or_refused()?;
    host.add_class(*index, name, SHAPED, bucket).or_refused()?;
    host.add_class(*index, name, UNSHAPED, &unlimited()).or_refused()?;
    for subnet in subnets {
        host.choose_class(*index, name, side, *subnet, chosen).or_refused()?;
    }
    Ok(())
}

/// Fails unless the link has this limit.
fn compare(host: &mut Rtnl, link: &Link, bucket: &Bucket, scope: &Scope) -> Result<(), Error> {
    let root = host.root(link.index, &link.name).or_refused()?;
    let wanted = format!("{} bytes/s", bucket.rate);
    let measured = match (&root, scope) {
        (Some(Root::Bucket(measured)), Scope::All) => Some(*measured),
        (Some(Root::Classes { default }), Scope::Only(_)) if *default == u32::from(UNSHAPED) => {
            host.class(link.index, &link.name, SHAPED).or_refused()?
        }
        (Some(Root::Classes { default }), Scope::AllBut(_)) if *default == u32::from(SHAPED) => {
            host.class(link.index, &link.name, SHAPED).or_refused()?
        }
        _ => None,
    };
    match measured {
        Some(measured) if bucket.is(&measured) => Ok(()),
        Some(measured) => Err(differs(&link.name, "limit", &format!("{measured:?}"), &format!("{bucket:?}"))),
        None => Err(differs(
            &link.name,
            "limit",
            &root.map_or("none".to_owned(), |root| format!("{root:?}")),
            &wanted,
        )),
    }
}
