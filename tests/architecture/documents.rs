//! Tests of the documents: links lead to existing files, and tables of tests name existing tests.

use std::fs;

use testkit::workspace;

use crate::tree::{directories, sources};

#[test]
fn document_links_lead_to_existing_files() {
    let mut documents = directories(&workspace().join("docs"));
    documents.push(workspace());
    documents.push(workspace().join("docs"));
    let files = documents
        .iter()
        .filter_map(|directory| fs::read_dir(directory).ok())
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    for file in files.filter(|file| file.extension().is_some_and(|extension| extension == "md")) {
        let text = fs::read_to_string(&file).expect("a document");
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let path = target.split('#').next().unwrap_or_default();
            let internal = !path.is_empty() && !path.contains("://") && !path.starts_with("mailto:");
            let found = file.parent().is_some_and(|directory| directory.join(path).exists());
            assert!(!internal || found, "{}: {path} does not exist", file.display());
        }
    }
}

#[test]
fn documents_name_existing_tests_for_each_row() {
    let sources: Vec<String> = sources().into_iter().map(|(_, source)| source).collect();
    for (document, head) in [
        ("DEVIATIONS.md", "| what | why | test |"),
        ("ARCHITECTURE.md", "| always | test |"),
        ("docs/design/journal.md", "| killed after | on disk | next DEL, ADD, GC | test |"),
        ("docs/design/journal.md", "| state | next DEL, ADD, GC | test |"),
        ("docs/design/ipam.md", "| argument | test |"),
    ] {
        let text = fs::read_to_string(workspace().join(document)).expect("a document");
        let mut lines = text.lines();
        let mut rows = 0;
        while lines.by_ref().any(|line| line == head) {
            for row in lines.by_ref().skip(1).take_while(|line| line.starts_with('|')) {
                rows += 1;
                let named = row.rsplit('|').nth(1).unwrap_or_default();
                let pinned = named.trim() == "the same" || named.matches('`').count() >= 4;
                assert!(pinned, "{document}: no test is named for {row}");
                // Crate names contain no underscore, test names do.
                for name in named.split('`').filter(|word| word.contains('_')) {
                    let head = format!("fn {name}(");
                    let found = sources.iter().any(|source| source.contains(&head));
                    assert!(found, "{document}: no test {name}");
                }
            }
        }
        assert!(rows > 5, "{document}: no table has the expected head");
    }
}
