//! Console blocks of the documents: each is run by a test, or the table says why it is not.

use rig::console_blocks::{ROWS, Way, blocks, row_of};
use testkit::workspace;

#[test]
fn console_blocks_are_run_or_have_a_reason() {
    let blocks = blocks();
    assert!(blocks.len() > 20, "too few console blocks were found");
    let mut faults = Vec::new();
    for block in &blocks {
        if row_of(block).is_none() {
            faults.push(format!("{}:{}: no row for {:?}", block.file, block.line, block.commands.first()));
        }
    }
    for row in ROWS {
        let count = blocks.iter().filter(|block| row_of(block) == Some(row)).count();
        if count != 1 {
            faults.push(format!("{}: {:?} is the row of {count} blocks", row.file, row.command));
        }
        let Way::NotRun(reason) = row.way else { continue };
        if reason.split(' ').count() < 4 {
            faults.push(format!("{}: {:?} has no reason", row.file, row.command));
        }
        let is_path =
            |word: &&str| ["tests/", "crates/", "lanes/", "docs/"].iter().any(|top| word.starts_with(top));
        let paths = reason.split([' ', ',']).map(|word| word.trim_end_matches(':')).filter(is_path);
        for path in paths.filter(|path| !workspace().join(path).exists()) {
            faults.push(format!("{}: {:?}: there is no {path}", row.file, row.command));
        }
    }
    assert!(faults.is_empty(), "tests/src/console_blocks.rs:\n{}", faults.join("\n"));
}
