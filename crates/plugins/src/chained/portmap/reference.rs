//! What the reference plugin makes, and our CHECK and DEL must know: with nf_tables, as 1.6 and later do.
//!
//! Tables `ip cni_hostport` and `ip6 cni_hostport`: a rule for each mapping, whose comment is the container's id
//! and nothing else. So what a container has on several networks goes at once, as with the reference plugin's DEL,
//! and GC, which must know the network, leaves it alone.
//!
//! Source: plugins `plugins/meta/portmap/portmap_nftables.go`.

use cni::Error;
use linux::nft::{Batch, Family, Nft, Table};
use plugin_support::failure::OrRefused;
use plugin_support::owner_tag::OwnerTag;

use crate::entries;

const TABLES: [Table<'static>; 2] =
    [Table::new(Family::Ip, "cni_hostport"), Table::new(Family::Ip6, "cni_hostport")];
const CHAINS: [&str; 3] = ["hostports", "hostip_hostports", "masquerading"];

/// Removes the container's rules.
pub(super) fn remove(mark: &OwnerTag) -> Result<(), Error> {
    let Some(mut nft) = entries::open()? else { return Ok(()) };
    let batch = deletion(&mut nft, mark)?;
    nft.commit(batch).or_refused()
}

/// Has the container rules of the reference plugin, of whichever backend?
pub(super) fn is_there(mark: &OwnerTag) -> Result<bool, Error> {
    let natively = entries::open()?.map(|mut nft| deletion(&mut nft, mark)).transpose()?;
    Ok(natively.is_some_and(|batch| !batch.is_empty()) || super::iptables::is_there(mark)?)
}

fn deletion(nft: &mut Nft, mark: &OwnerTag) -> Result<Batch, Error> {
    let mut batch = Batch::new();
    for (table, chain) in TABLES.into_iter().flat_map(|table| CHAINS.map(|chain| (table, chain))) {
        let rules = nft.rules(table, chain).or_refused()?;
        for rule in rules.iter().filter(|rule| rule.comment == mark.container) {
            batch.delete_rule(table, chain, rule.handle);
        }
    }
    Ok(batch)
}
