//! Console blocks of the documents: the commands a reader is told to type, and how the tests run each block.
//!
//! [`blocks`] reads them, [`ROWS`] says for each whether a test runs it or why none does.
//! A block is found by its file and the beginning of its first command.
//!
//! - Every block has exactly one row, and every row a block: a test compares them.
//! - A block that is not run has a reason; commands of `weft` in it are still parsed, by a test of the program.

use std::fs;

use testkit::workspace;

/// Console block of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Path from the root of the tree.
    pub file: String,
    /// Line of the opening fence.
    pub line: usize,
    /// Commands without their prompt.
    pub commands: Vec<String>,
}

/// Way in which a block is tested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Run on a host in a namespace, after this shell script.
    Host(&'static str),
    /// Run with a real API server, after this shell script.
    Kube(&'static str),
    /// Not run, for this reason.
    NotRun(&'static str),
}

/// Row of the table: a block and the way in which it is tested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// File of the block.
    pub file: &'static str,
    /// Beginning of the first command of the block.
    pub command: &'static str,
    /// Way in which the block is tested.
    pub way: Way,
}

const fn row(file: &'static str, command: &'static str, way: Way) -> Row {
    Row { file, command, way }
}

/// Attaches the pod of the examples.
const ATTACHED: &str = "weft attach -f examples/ --pod my-namespace/my-pod >/run/attached";

/// Manifests of a second pod, in the files that the documents name.
const TWO_PODS: &str = "ip netns add blue
    mkdir networks
    cp examples/pods.yaml pod.yaml
    sed -i 's/my-namespace/default/; s/my-pod$/web/' pod.yaml
    cp examples/definitions.yaml networks/
    cp examples/10-weft.conflist .";

/// A network of one bridge in the directory of the runtime.
const MYNET: &str = "ip netns add blue
    mkdir -p /etc/cni/net.d
    cat >/etc/cni/net.d/mynet.conflist <<END
    {\"cniVersion\":\"1.0.0\",\"name\":\"mynet\",\"plugins\":[{\"type\":\"bridge\",\"bridge\":\"my0\",\"ipam\":{\"type\":\"host-local\",\"subnet\":\"10.9.0.0/24\"}}]}
END
    weft-cni install /opt/cni/bin";

/// Rows for all console blocks.
pub const ROWS: &[Row] = &[
    row("README.md", "make demo", Way::NotRun("builds everything, and runs every test")),
    row("README.md", "sudo bin/weft demo", Way::Host("")),
    row("README.md", "bin/weft lint examples/", Way::Host("")),
    row("README.md", "kubectl apply -f deploy/crds", Way::Kube("")),
    row("docs/commands.md", "sudo weft demo", Way::Host("")),
    row("docs/commands.md", "sudo weft attach -f examples/", Way::Host(TWO_PODS)),
    row("docs/commands.md", "sudo weft detach", Way::Host(ATTACHED)),
    row("docs/commands.md", "sudo weft check", Way::Host(ATTACHED)),
    row("docs/commands.md", "sudo weft list", Way::Host(ATTACHED)),
    row("docs/commands.md", "weft explain", Way::Host("")),
    row("docs/commands.md", "sudo weft cni add", Way::Host(MYNET)),
    row("docs/commands.md", "sudo weft install", Way::Host("")),
];

/// Returns the console blocks of all documents a user reads, in the order of their files.
///
/// # Panics
/// If a document cannot be read.
#[must_use]
pub fn blocks() -> Vec<Block> {
    let root = workspace();
    let mut files = Vec::new();
    for directory in ["", "docs", "docs/plugins", "docs/design", "deploy", "examples"] {
        for entry in fs::read_dir(root.join(directory)).into_iter().flatten().flatten() {
            let name = entry.file_name().into_string().unwrap_or_default();
            if name.ends_with(".md") {
                files.push(if directory.is_empty() { name } else { format!("{directory}/{name}") });
            }
        }
    }
    files.sort();
    files.iter().flat_map(|file| blocks_of(file)).collect()
}

fn blocks_of(file: &str) -> Vec<Block> {
    let text = fs::read_to_string(workspace().join(file)).expect("a document is text");
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for (index, line) in text.lines().map(str::trim_start).enumerate() {
        match &mut open {
            Some(_) if line.starts_with("```") => blocks.extend(open.take()),
            Some(block) => block.commands.extend(line.strip_prefix("$ ").map(str::to_owned)),
            None if line.starts_with("```console") => {
                open = Some(Block { file: file.to_owned(), line: index + 1, commands: Vec::new() });
            }
            None => {}
        }
    }
    blocks
}

/// Returns the row of a block.
#[must_use]
pub fn row_of(block: &Block) -> Option<&'static Row> {
    let first = block.commands.first()?;
    ROWS.iter().find(|row| row.file == block.file && first.starts_with(row.command))
}

/// Shell script that runs a block after its preparation; it ends at the first command that fails.
///
/// Programs and directories of the project are found as in a checkout that was built; `sudo` runs a program as it is,
/// because a test is root on its host.
#[must_use]
pub fn script(block: &Block, preparation: &str) -> String {
    let root = workspace();
    let root = root.display();
    let [weft, weft_cni] = ["weft", "weft-cni"].map(testkit::binary);
    format!(
        "set -e\nmkdir -p /run/checkout/bin /run/checkout/shims\ncd /run/checkout\n\
         ln -sf {} {} bin/\nln -sfn {root}/examples examples\nln -sfn {root}/deploy deploy\n\
         printf '#!/bin/sh\\nexec \"$@\"\\n' >shims/sudo\nchmod +x shims/sudo\n\
         PATH=/run/checkout/bin:/run/checkout/shims:$PATH\n{preparation}\nset -x\n{}\n",
        weft.display(),
        weft_cni.display(),
        block.commands.join("\n"),
    )
}
