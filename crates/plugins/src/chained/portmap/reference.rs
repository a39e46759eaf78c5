//! nf_tables rules that the reference plugin from 1.6 on writes, which CHECK and DEL must recognise.
//!
//! They are in the tables `ip cni_hostport` and `ip6 cni_hostport`. There is one rule for each mapping, and the comment
//! is only the container's id. So DEL removes a container's rules for all networks, as the reference plugin does. GC,
//! which must know the network, leaves them.
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
pub(super) fn remove(tag: &OwnerTag) -> Result<(), Error> {
    let Some(mut nft) = entries::open()? else { return Ok(()) };
    let batch = deletion(&mut nft, tag)?;
    nft.commit(batch).or_refused()
}

/// Whether the container has rules that the reference plugin wrote, in either backend.
pub(super) fn exists(tag: &OwnerTag) -> Result<bool, Error> {
    let natively = entries::open()?.map(|mut nft| deletion(&mut nft, tag)).transpose()?;
    Ok(natively.is_some_and(|batch| !batch.is_empty()) || super::iptables::exists(tag)?)
}

fn deletion(nft: &mut Nft, tag: &OwnerTag) -> Result<Batch, Error> {
    let mut batch = Batch::new();
    for (table, chain) in TABLES.into_iter().flat_map(|table| CHAINS.map(|chain| (table, chain))) {
        let rules = nft.rules(table, chain).or_refused()?;
        for rule in rules.iter().filter(|rule| rule.comment == tag.container) {
            batch.delete_rule(table, chain, rule.handle);
        }
    }
    Ok(batch)
}
