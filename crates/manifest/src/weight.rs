//! Tree size, which is what an alias to the tree costs.

use super::node::{Node, Value};

/// Tree size.
#[derive(Clone, Copy, Default)]
pub(super) struct Weight {
    /// Number of nodes, keys included.
    pub(super) nodes: usize,
    /// Total string size, in bytes.
    pub(super) text: usize,
    /// Depth to which collections are nested.
    pub(super) depth: usize,
}

impl Weight {
    /// Measures a tree.
    pub(super) fn of(node: &Node) -> Weight {
        let around = |all: Weight, inner: Weight| Weight {
            nodes: all.nodes + inner.nodes,
            text: all.text + inner.text,
            depth: all.depth.max(inner.depth + 1),
        };
        let own = Weight { nodes: 1, text: 0, depth: 0 };
        match &node.value {
            Value::Null | Value::Bool(_) => own,
            Value::Number(text) | Value::Text(text) => Weight { text: text.len(), ..own },
            Value::List(items) => items.iter().map(Weight::of).fold(Weight { depth: 1, ..own }, around),
            Value::Map(entries) => {
                let inner = entries.iter().map(|(key, node)| {
                    let Weight { nodes, text, depth } = Weight::of(node);
                    Weight { nodes: nodes + 1, text: text + key.text.len(), depth }
                });
                inner.fold(Weight { depth: 1, ..own }, around)
            }
        }
    }
}
