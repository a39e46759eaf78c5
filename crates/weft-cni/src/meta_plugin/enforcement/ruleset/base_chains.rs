//! Base chains that exist unchanged, so that an ADD need not write them again.
//!
//! All attachments on the host share the base chains. Writing an existing one again makes the kernel remove the old
//! rules after a grace period, for which each process that has used nf_tables waits when it exits. Two short lists take
//! less.

use linux::nft::{BaseChain, Batch, Nft, Table};
use linux::{Error, Kind};

/// Where the base chains that exist come from.
pub(in super::super) enum BaseChains<'a> {
    /// Every base chain is written.
    Unknown,
    /// Base chains that the kernel lists unchanged are not written.
    Listed(&'a mut Nft),
}

// === impl BaseChains ===

impl BaseChains<'_> {
    /// Returns whether a base chain exists with exactly the rules with these comments. Otherwise the caller
    /// writes it. If it has another hook, priority or policy, as another release may have written it, it is
    /// removed first: the kernel changes none of them.
    ///
    /// A table that was made dormant becomes active by the operation that ensures it.
    pub(super) fn prepare(
        &mut self,
        table: Table<'_>,
        name: &str,
        chain: BaseChain,
        comments: &[&str],
        batch: &mut Batch,
    ) -> bool {
        let BaseChains::Listed(nft) = self else { return false };
        match nft.base_chain(table, name) {
            Ok(Some(found)) if found == chain => {}
            Ok(Some(_)) => {
                batch.flush_chain(table, name).delete_chain(table, name);
                return false;
            }
            Ok(None) | Err(_) => return false,
        }
        let listed = nft.rules(table, name);
        listed.is_ok_and(|rules| rules.iter().map(|rule| rule.comment.as_str()).eq(comments.iter().copied()))
    }
}

/// Function that returns the base chains for an attempt.
pub(super) type BaseChainSource = for<'a> fn(&'a mut Nft) -> BaseChains<'a>;

fn listed(nft: &mut Nft) -> BaseChains<'_> {
    BaseChains::Listed(nft)
}

pub(super) fn unknown(_: &mut Nft) -> BaseChains<'_> {
    BaseChains::Unknown
}

/// Commits operations on an attachment's rules on the host, without the base chains that exist. See
/// [`retried`].
///
/// # Errors
/// Those that [`Nft::commit`] returns.
pub(in super::super) fn commit_on_host(
    nft: &mut Nft,
    fill: impl Fn(&mut BaseChains<'_>, &mut Batch),
) -> Result<(), Error> {
    retried(|known| {
        let mut batch = Batch::new();
        fill(&mut known(nft), &mut batch);
        nft.commit(batch)
    })
}

/// Executes a commit on the host that leaves intact base chains alone. If the kernel has no object that it
/// needs, another program removed the object, for example between the list and the commit. Then the commit is
/// executed once more and writes every base chain.
///
/// # Errors
/// Those from the commit.
pub(super) fn retried<T>(mut commit: impl FnMut(BaseChainSource) -> Result<T, Error>) -> Result<T, Error> {
    match commit(listed) {
        Err(error) if error.kind() == Kind::Absent => commit(unknown),
        committed => committed,
    }
}
