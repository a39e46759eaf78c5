//! What the reference plugin of 1.6 and later makes with nf_tables, and our DEL removes.
//!
//! Tables `ip cni_hostport` and `ip6 cni_hostport`: a rule for each mapping, whose comment is the container's id
//! and nothing else. So what a container has on several networks goes at once, as with the reference plugin's DEL,
//! and GC, which must know the network, leaves it alone.
//!
//! Source: plugins `plugins/meta/portmap/portmap_nftables.go`.

use cni::Error;
use linux::nft::{Batch, Family, Table};

use crate::entries;
use crate::failure::OrRefused;
use crate::fingerprint::Mark;

const TABLES: [Table<'static>; 2] =
    [Table::new(Family::Ip, "cni_hostport"), Table::new(Family::Ip6, "cni_hostport")];
const CHAINS: [&str; 3] = ["hostports", "hostip_hostports", "masquerading"];

/// Removes the container's rules.
pub(super) fn remove(mark: &Mark) -> Result<(), Error> {
    let Some(mut nft) = entries::open()? else { return Ok(()) };
    let mut batch = Batch::new();
    for (table, chain) in TABLES.into_iter().flat_map(|table| CHAINS.map(|chain| (table, chain))) {
        let rules = nft.rules(table, chain).or_refused()?;
        for rule in rules.iter().filter(|rule| rule.comment == mark.container) {
            batch.delete_rule(table, chain, rule.handle);
        }
    }
    nft.commit(batch).or_refused()
}
