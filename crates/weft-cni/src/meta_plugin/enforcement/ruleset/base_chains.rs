//! Base chains that exist unchanged, so that an ADD need not write them again.
//!
//! All attachments of the host share the base chains. To write an existing one again makes the kernel remove its rules after
//! a grace period, for which each process that has used nf_tables waits when it exits. Two short lists take less.

use linux::nft::{Batch, Nft, Table};
use linux::{Error, Kind};

/// Source of the base chains that exist.
pub(in super::super) enum BaseChains<'a> {
    /// Every base chain is written.
    Unknown,
    /// Base chains whose rules the kernel lists unchanged are not written.
    Listed(&'a mut Nft),
}

// === impl BaseChains ===

impl BaseChains<'_> {
    /// Whether a base chain has exactly the rules with these comments. A table that was made dormant becomes active by the
    /// operation that ensures it.
    pub(super) fn has(&mut self, table: Table<'_>, chain: &str, comments: &[&str]) -> bool {
        let BaseChains::Listed(nft) = self else { return false };
        let listed = nft.rules(table, chain);
        listed.is_ok_and(|rules| rules.iter().map(|rule| rule.comment.as_str()).eq(comments.iter().copied()))
    }
}

/// Commits operations about the rules of an attachment on the host, without the base chains that exist. If another program
/// removes them meanwhile, they are written, too.
///
/// # Errors
/// Those of [`Nft::commit`].
pub(in super::super) fn commit_on_host(
    nft: &mut Nft,
    fill: impl Fn(&mut BaseChains<'_>, &mut Batch),
) -> Result<(), Error> {
    let mut batch = Batch::new();
    fill(&mut BaseChains::Listed(nft), &mut batch);
    match nft.commit(batch) {
        Err(error) if error.kind() == Kind::Absent => {
            let mut batch = Batch::new();
            fill(&mut BaseChains::Unknown, &mut batch);
            nft.commit(batch)
        }
        committed => committed,
    }
}
