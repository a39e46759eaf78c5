//! Tests that run the console blocks in documents that need only a host, each command as written.

use rig::console_blocks::{Way, blocks, row_of, script};
use testkit::{Feature, Host, host};

#[test]
fn console_blocks_of_documents_run_on_a_host() {
    let mut faults = Vec::new();
    for block in blocks() {
        let Some(Way::Host(preparation)) = row_of(&block).map(|row| row.way) else { continue };
        let host: Host = host!(Feature::Bridge, Feature::NftMasquerade);
        let finished = host
            .command("sh")
            .args(["-c", &script(&block, preparation)])
            .deadline(std::time::Duration::from_secs(60))
            .finish();
        if finished.code != Some(0) {
            faults.push(format!("{}:{}: {finished}", block.file, block.line));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
}
