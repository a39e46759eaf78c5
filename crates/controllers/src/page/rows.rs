//! Row in a table on the page: a cluster object as compact JSON.
//!
//! A row is made once, when the object changes, and all clients share it. Each text is shortened and without control
//! characters: users of the cluster write them.

use std::sync::Arc;

use cni::text::plain;
use serde_json::Value;

/// Maximum length of a name or address, in characters.
const NAME_MAX: usize = 253;
/// Maximum length of a message, in characters.
const MESSAGE_MAX: usize = 1024;

/// Table of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Table {
    Networks,
    Nodes,
    Pools,
    Blocks,
    Policies,
    Events,
    Pods,
}

/// Row of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Row {
    /// JSON that every viewer of the object gets; `None` if the object is not shown.
    pub(super) json: Option<Arc<str>>,
    /// Namespace of a pod that is described in the row, and the JSON for viewers that may list pods there.
    pub(super) with_pod: Option<(String, Arc<str>)>,
}

// === impl Table ===

impl Table {
    /// All tables.
    pub(super) const ALL: [Table; 7] = [
        Table::Networks,
        Table::Nodes,
        Table::Pools,
        Table::Blocks,
        Table::Policies,
        Table::Events,
        Table::Pods,
    ];

    /// Returns the name of the table in messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            Table::Networks => "networks",
            Table::Nodes => "nodes",
            Table::Pools => "pools",
            Table::Blocks => "blocks",
            Table::Policies => "policies",
            Table::Events => "events",
            Table::Pods => "pods",
        }
    }
}

// === impl Row ===

impl Row {
    /// Returns a row that every viewer of the object gets.
    pub(super) fn of(value: &Value) -> Row {
        Row { json: Some(value.to_string().into()), with_pod: None }
    }
}

/// Returns a name as it is shown.
pub(super) fn name(text: &str) -> String {
    shortened(text, NAME_MAX)
}

/// Returns a message as it is shown.
pub(super) fn message(text: &str) -> String {
    shortened(text, MESSAGE_MAX)
}

fn shortened(text: &str, length: usize) -> String {
    let mut short: String = plain(text.get(..text.floor_char_boundary(4 * length)).unwrap_or_default());
    if let Some((end, _)) = short.char_indices().nth(length) {
        short.truncate(end);
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_texts_are_short_and_without_control_characters() {
        assert_eq!(name("a\u{1b}[2J\u{202e}<b>\n"), "a [2J <b> ");
        let long = name(&"ü".repeat(10_000));
        assert_eq!((long.chars().count(), long.ends_with('…')), (NAME_MAX + 1, true));
        assert_eq!(message(&"x".repeat(MESSAGE_MAX)).len(), MESSAGE_MAX);
    }
}
