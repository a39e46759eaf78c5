//! Exceptions from the rules of the language, each with its reason.

/// Text that may contain a phrase which the rules refuse.
pub(super) struct Exception {
    /// File, or beginning of its path, from the root of the tree.
    pub(super) file: &'static str,
    /// Part of the text.
    pub(super) text: &'static str,
    /// Reason, for the reader of this list.
    #[expect(dead_code, reason = "it is read by people")]
    pub(super) reason: &'static str,
}

pub(super) const EXCEPTIONS: &[Exception] = &[Exception {
    file: "crates/weft/src/commands/ipam.rs",
    text: "weft ipam who",
    reason: "the name of a command, in an example of its help",
}];
