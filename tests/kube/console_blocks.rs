//! Console blocks in documents that need a cluster: every command is run as it is written.

use std::sync::Arc;

use rig::console_blocks::{Way, blocks, row_of, script};
use rig::{Kube, Machine};
use testkit::host;

#[test]
fn console_blocks_of_documents_run_with_an_api_server() {
    let mut faults = Vec::new();
    for block in blocks() {
        let Some(Way::Kube(preparation)) = row_of(&block).map(|row| row.way) else { continue };
        let machine = Arc::new(Machine::new(host!(), "control"));
        let Some(kube) = Kube::new(Arc::clone(&machine)) else { return };
        let preparation = format!("PATH={}:$PATH\n{preparation}", kube.newer_kubectl());
        let finished = machine
            .command("sh")
            .args(["-c", &script(&block, &preparation)])
            .env("HOME", rig::machine::CONFIGURATIONS)
            .env("KUBECONFIG", kube.admin())
            .deadline(rig::machine::TIMEOUT)
            .finish();
        if finished.code != Some(0) {
            faults.push(format!("{}:{}: {finished}", block.file, block.line));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
}
