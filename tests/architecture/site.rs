//! Tests of the documentation site: the table of contents has every page once.

use std::collections::BTreeSet;
use std::fs;

use testkit::workspace;

use crate::tree::directories;

#[test]
fn site_contents_list_every_page_of_the_documents_once() {
    let docs = workspace().join("docs");
    let contents = fs::read_to_string(docs.join("SUMMARY.md")).expect("the table of contents");
    let links = contents.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let mut listed = BTreeSet::new();
    for link in links {
        assert!(listed.insert(link.to_owned()), "docs/SUMMARY.md: {link} is listed twice");
    }
    let mut pages = BTreeSet::new();
    for directory in directories(&docs).into_iter().chain([docs.clone()]) {
        for entry in fs::read_dir(&directory).expect("a directory of documents").flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|extension| extension == "md") && !path.ends_with("SUMMARY.md") {
                pages.insert(path.strip_prefix(&docs).expect("below docs/").display().to_string());
            }
        }
    }
    assert_eq!(listed, pages, "docs/SUMMARY.md lists the pages of docs/");
}
