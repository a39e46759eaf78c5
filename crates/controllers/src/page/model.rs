//! Rows of all tables, with a version for each change, so that a client gets only the changes since the last position.
//!
//! - Each row, and each deleted row, has one version: the number of the last change.
//! - A client has a position: the rows that a first walk over all tables has sent, and the newest version it knows.
//! - The number of remembered deletions is bounded. A client that is behind a forgotten one starts again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube_support::resources::Key;
use tokio::sync::watch::{Receiver, Sender};

use super::rights::PageScope;
use super::rows::{Row, Table};

/// Maximum size of the rows in one message, in bytes. A single row may be larger.
const BATCH_MAX: usize = 16 << 10;
/// Maximum number of remembered deletions.
const DELETED_MAX: usize = 20_000;

/// Rows of all tables.
#[derive(Debug)]
pub(super) struct PageModel {
    state: Mutex<ModelState>,
    changes: Sender<u64>,
}

#[derive(Debug, Default)]
struct ModelState {
    rows: BTreeMap<(Table, Key), VersionedRow>,
    /// Row of each version: one for each present row, and one for each remembered deletion.
    versions: BTreeMap<u64, (Table, Key)>,
    deleted: BTreeMap<(Table, Key), u64>,
    version: u64,
    /// Newest version of a deletion that was forgotten.
    forgotten: u64,
}

#[derive(Debug)]
struct VersionedRow {
    version: u64,
    row: Row,
}

/// Position of a client.
#[derive(Clone, Debug, Default)]
pub(super) struct Position {
    /// Last row of the first walk; `None` before it.
    walked: Option<(Table, Key)>,
    is_walk_complete: bool,
    /// Newest version that the client knows.
    version: u64,
}

/// Changes for a client, by table.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) set: BTreeMap<Table, Vec<Arc<str>>>,
    pub(super) gone: BTreeMap<Table, Vec<Key>>,
    size: usize,
}

/// Next message for a client.
#[derive(Debug)]
pub(super) enum Next {
    /// Changed rows.
    Rows(Batch),
    /// Nothing has changed.
    Nothing,
    /// Deletions since the position are forgotten.
    StartAgain,
}

// === impl Position ===

impl Position {
    /// Whether the client has got every row once.
    pub(super) fn is_walk_complete(&self) -> bool {
        self.is_walk_complete
    }
}

// === impl PageModel ===

impl PageModel {
    /// Returns an empty model.
    pub(super) fn new() -> PageModel {
        PageModel { state: Mutex::default(), changes: Sender::new(0) }
    }

    fn state(&self) -> MutexGuard<'_, ModelState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a receiver of changes.
    pub(super) fn changes(&self) -> Receiver<u64> {
        self.changes.subscribe()
    }

    /// Replaces rows of a table; `None` deletes one.
    pub(super) fn set(&self, table: Table, rows: impl Iterator<Item = (Key, Option<Arc<Row>>)>) {
        let mut state = self.state();
        let before = state.version;
        for (key, row) in rows {
            state.set((table, key), row.map(Arc::unwrap_or_clone).filter(|row| row.json.is_some()));
        }
        state.forget();
        let version = state.version;
        drop(state);
        if version != before {
            self.changes.send_replace(version);
        }
    }

    /// Returns the keys of a table.
    pub(super) fn keys(&self, table: Table) -> Vec<Key> {
        let state = self.state();
        state.rows.keys().filter(|(of, _)| *of == table).map(|(_, key)| key.clone()).collect()
    }

    /// Returns the namespaces with a row.
    pub(super) fn namespaces(&self) -> BTreeSet<String> {
        let state = self.state();
        let mut all = BTreeSet::new();
        for (_, (namespace, _)) in state.rows.keys() {
            if !namespace.is_empty() && !all.contains(namespace) {
                all.insert(namespace.clone());
            }
        }
        all
    }

    /// Returns the next message for a client with this scope, and moves the position.
    pub(super) fn next(&self, position: &mut Position, scope: &PageScope) -> Next {
        let state = self.state();
        if position.is_walk_complete { state.changed(position, scope) } else { state.walk(position, scope) }
    }
}

// === impl ModelState ===

impl ModelState {
    fn set(&mut self, place: (Table, Key), row: Option<Row>) {
        let known = self.rows.get(&place);
        if known.map(|known| &known.row) == row.as_ref() {
            return;
        }
        let old = known.map(|known| known.version).or_else(|| self.deleted.remove(&place));
        if let Some(old) = old {
            self.versions.remove(&old);
        }
        self.version += 1;
        let version = self.version;
        self.versions.insert(version, place.clone());
        if let Some(row) = row {
            self.rows.insert(place, VersionedRow { version, row });
        } else {
            self.rows.remove(&place);
            self.deleted.insert(place, version);
        }
    }

    /// Forgets the oldest deletions beyond the maximum.
    fn forget(&mut self) {
        let excess = self.deleted.len().saturating_sub(DELETED_MAX);
        if excess == 0 {
            return;
        }
        let mut versions: Vec<u64> = self.deleted.values().copied().collect();
        versions.sort_unstable();
        for version in versions.into_iter().take(excess) {
            if let Some(place) = self.versions.remove(&version) {
                self.deleted.remove(&place);
            }
            self.forgotten = self.forgotten.max(version);
        }
    }

    /// Sends all rows, sorted by key.
    fn walk(&self, position: &mut Position, scope: &PageScope) -> Next {
        let begin = position.walked.take();
        if begin.is_none() {
            position.version = self.version;
        }
        let mut batch = Batch::default();
        let from = begin.map_or(Bound::Unbounded, Bound::Excluded);
        for (place, known) in self.rows.range((from, Bound::Unbounded)) {
            batch.add(place, Some(&known.row), scope);
            if batch.size >= BATCH_MAX {
                position.walked = Some(place.clone());
                return Next::Rows(batch);
            }
        }
        position.is_walk_complete = true;
        if batch.size == 0 { Next::Nothing } else { Next::Rows(batch) }
    }

    /// Sends the rows that changed since the position.
    fn changed(&self, position: &mut Position, scope: &PageScope) -> Next {
        if position.version < self.forgotten {
            return Next::StartAgain;
        }
        let mut batch = Batch::default();
        for (version, place) in self.versions.range((Bound::Excluded(position.version), Bound::Unbounded)) {
            position.version = *version;
            batch.add(place, self.rows.get(place).map(|known| &known.row), scope);
            if batch.size >= BATCH_MAX {
                break;
            }
        }
        if batch.size == 0 { Next::Nothing } else { Next::Rows(batch) }
    }
}

// === impl Batch ===

impl Batch {
    /// Adds a row, or the note that it was deleted, if the scope contains it.
    fn add(&mut self, place: &(Table, Key), row: Option<&Row>, scope: &PageScope) {
        let (table, key) = place;
        if !scope.contains(*table, &key.0) {
            return;
        }
        let Some(row) = row else {
            self.size += key.0.len() + key.1.len();
            self.gone.entry(*table).or_default().push(key.clone());
            return;
        };
        let full = row.with_pod.as_ref().filter(|(namespace, _)| scope.contains(Table::Pods, namespace));
        if let Some(json) = full.map(|(_, json)| json).or(row.json.as_ref()) {
            self.size += json.len();
            self.set.entry(*table).or_default().push(Arc::clone(json));
        }
    }

    /// Returns the batch as JSON: `{"set":{"pods":[…]},"gone":{"pods":[["namespace","name"]]}}`.
    pub(super) fn json(&self) -> String {
        let mut text = String::with_capacity(self.size + self.size / 8 + 64);
        text.push_str("{\"set\":{");
        for (number, (table, rows)) in self.set.iter().enumerate() {
            let comma = if number == 0 { "" } else { "," };
            text.push_str(&format!("{comma}\"{}\":[", table.name()));
            text.push_str(&rows.join(","));
            text.push(']');
        }
        let gone: BTreeMap<&str, &Vec<Key>> =
            self.gone.iter().map(|(table, keys)| (table.name(), keys)).collect();
        // Keys are strings.
        let gone = serde_json::to_string(&gone).unwrap_or_default();
        text.push_str(&format!("}},\"gone\":{gone}}}"));
        text
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::page::rights::Allowed;

    fn row(text: &str) -> Option<Arc<Row>> {
        Some(Arc::new(Row::of(&json!({ "t": text }))))
    }

    fn key(namespace: &str, name: &str) -> Key {
        (namespace.to_owned(), name.to_owned())
    }

    /// Reads all messages up to the present state.
    fn read(model: &PageModel, position: &mut Position, scope: &PageScope) -> Value {
        let mut all = json!({ "set": [], "gone": [] });
        loop {
            match model.next(position, scope) {
                Next::Rows(batch) => {
                    let text = batch.json();
                    assert!(text.len() < BATCH_MAX + 2048, "{}", text.len());
                    let value: Value = serde_json::from_str(&text).unwrap();
                    for part in ["set", "gone"] {
                        let rows = value[part]
                            .as_object()
                            .unwrap()
                            .values()
                            .flat_map(|rows| rows.as_array().unwrap());
                        all[part].as_array_mut().unwrap().extend(rows.cloned());
                    }
                }
                Next::Nothing | Next::StartAgain => return all,
            }
        }
    }

    #[test]
    fn page_client_gets_each_change_once() {
        let (model, scope) = (PageModel::new(), PageScope::everything());
        model.set(Table::Pods, [(key("a", "1"), row("x")), (key("b", "2"), row("y"))].into_iter());
        let mut position = Position::default();
        assert_eq!(read(&model, &mut position, &scope)["set"], json!([{ "t": "x" }, { "t": "y" }]));
        assert!(matches!(model.next(&mut position, &scope), Next::Nothing));
        model.set(Table::Pods, [(key("a", "1"), row("x")), (key("b", "2"), row("z"))].into_iter());
        model.set(Table::Pods, [(key("a", "1"), None), (key("none", "3"), None)].into_iter());
        let changed = read(&model, &mut position, &scope);
        assert_eq!(changed, json!({ "set": [{ "t": "z" }], "gone": [["a", "1"]] }));
        assert!(matches!(model.next(&mut position, &scope), Next::Nothing));
    }

    #[test]
    fn page_change_during_the_first_walk_reaches_the_client() {
        let (model, scope) = (PageModel::new(), PageScope::everything());
        let large = "x".repeat(1000);
        model.set(Table::Pods, (0..1000).map(|number| (key("a", &format!("{number:04}")), row(&large))));
        let mut position = Position::default();
        assert!(matches!(model.next(&mut position, &scope), Next::Rows(_)));
        model.set(Table::Pods, [(key("a", "0000"), row("new")), (key("a", "0001"), None)].into_iter());
        let rest = read(&model, &mut position, &scope);
        let rows = rest["set"].as_array().unwrap();
        assert!(rows.contains(&json!({ "t": "new" })) && rows.len() > 900, "{}", rows.len());
        assert_eq!(rest["gone"], json!([["a", "0001"]]));
    }

    #[test]
    fn page_client_gets_only_rows_of_its_namespaces() {
        let model = PageModel::new();
        let mut node = Row::of(&json!({ "t": "node" }));
        node.with_pod = Some(("secret".to_owned(), "{\"t\":\"failure\"}".into()));
        model.set(Table::Nodes, [(key("", "w1"), Some(Arc::new(node)))].into_iter());
        model.set(Table::Pods, [(key("open", "1"), row("x")), (key("secret", "2"), row("y"))].into_iter());
        let open = Allowed::Namespaces(["open".to_owned()].into());
        let mut scope = PageScope { pods: open, nodes: true, ..PageScope::default() };
        let mut position = Position::default();
        assert_eq!(read(&model, &mut position, &scope)["set"], json!([{ "t": "node" }, { "t": "x" }]));
        model.set(Table::Pods, [(key("secret", "2"), None), (key("open", "1"), None)].into_iter());
        assert_eq!(read(&model, &mut position, &scope), json!({ "set": [], "gone": [["open", "1"]] }));
        scope.pods = Allowed::All;
        let mut position = Position::default();
        assert_eq!(read(&model, &mut position, &scope)["set"], json!([{ "t": "failure" }]));
    }

    #[test]
    fn page_deletions_are_bounded_and_a_late_client_starts_again() {
        let (model, scope) = (PageModel::new(), PageScope::everything());
        let mut position = Position::default();
        read(&model, &mut position, &scope);
        for generation in 0..3 {
            let name = |number: usize| key("a", &format!("{generation}-{number}"));
            model.set(Table::Pods, (0..DELETED_MAX).map(|number| (name(number), row("x"))));
            model.set(Table::Pods, (0..DELETED_MAX).map(|number| (name(number), None)));
        }
        assert_eq!(model.state().versions.len(), DELETED_MAX);
        assert!(matches!(model.next(&mut position, &scope), Next::StartAgain));
        assert_eq!(model.namespaces().len(), 0);
    }
}
