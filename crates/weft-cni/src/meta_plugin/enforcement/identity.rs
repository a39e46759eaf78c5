//! Names for the table and an attachment's objects: `ingress-p0123456789abcdef01234567`.

use std::fmt;
use std::path::Path;

use npwg::network_policy::Direction;
use npwg::plan::Delegate;
use plugin_support::hash::hashed;
use rpc::journal::{Entry, PolicyRules};

/// Table with the rules.
pub(crate) const TABLE: &str = "weft-policy";
/// Base chain for arriving packets.
pub(super) const ARRIVAL: &str = "prerouting";

/// Length that the journal's part in an id has. It begins with a letter, as `nft` requires in names.
const JOURNAL_LENGTH: usize = 9;
/// Length that the attachment's part in an id has.
const ATTACHMENT_LENGTH: usize = 16;

/// Journal in chain and set names: two on one node must not remove each other's rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JournalId(String);

/// Id that stands for an attachment in chain and set names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AttachmentId(String);

// === impl JournalId ===

impl JournalId {
    /// Returns the id for the journal in a directory, the same for every path that leads to it.
    pub(super) fn of(directory: &Path) -> JournalId {
        let directory = std::fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned());
        JournalId(hashed("p", JOURNAL_LENGTH, &[&directory.display().to_string()]))
    }
}

// === impl AttachmentId ===

impl AttachmentId {
    /// Returns the id for a new attachment.
    pub(super) fn new(journal: &JournalId, entry: &Entry, delegate: &Delegate) -> AttachmentId {
        let parts = [entry.container_id.as_str(), delegate.ifname.as_str()];
        AttachmentId(hashed(&journal.0, JOURNAL_LENGTH + ATTACHMENT_LENGTH, &parts))
    }

    /// Returns an attachment's recorded id, or one without a journal for entries that have none.
    pub(super) fn of(entry: &Entry, delegate: &Delegate) -> AttachmentId {
        match super::recorded(entry, delegate) {
            Some(PolicyRules { id, .. }) => AttachmentId(id.clone()),
            None => AttachmentId::new(&JournalId("p".to_owned()), entry, delegate),
        }
    }

    /// Returns the id in a name.
    pub(super) fn read(text: &str) -> AttachmentId {
        AttachmentId(text.to_owned())
    }

    /// Whether the attachment is in this journal.
    pub(super) fn is_of(&self, journal: &JournalId) -> bool {
        self.0.starts_with(&journal.0)
    }

    pub(super) fn chain(&self, direction: Direction) -> String {
        format!("{direction}-{}", self.0)
    }

    pub(super) fn set(&self, direction: Direction, rule: usize, content: &str) -> String {
        format!("{}-{direction}-{rule}-{content}", self.0)
    }
}

impl fmt::Display for AttachmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
