//! `weft crds`: the definitions of custom resources, for `kubectl apply -f -`.
//!
//! They are the files of `deploy/crds/`, in the order of their names; a test compares the two.
//!
//! Source: the standard, 3.1; `apiextensions.k8s.io/v1`.

use clap::Args;

use cli_support::failure::{EXIT_CODES, Failure};
use cli_support::output;

/// One document each.
const DEFINITIONS: &[&str] = &[
    include_str!("../../../../deploy/crds/ipamclaims.k8s.cni.cncf.io.yaml"),
    include_str!("../../../../deploy/crds/ipblocks.weft.dev.yaml"),
    include_str!("../../../../deploy/crds/ippools.weft.dev.yaml"),
    include_str!("../../../../deploy/crds/kuryrports.openstack.org.yaml"),
    include_str!("../../../../deploy/crds/network-attachment-definitions.k8s.cni.cncf.io.yaml"),
];

/// What `weft crds` is told: nothing.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft crds | kubectl apply -f -

{EXIT_CODES}"))]
pub(crate) struct Arguments {}

/// Prints them.
pub(crate) fn run(Arguments {}: &Arguments) -> Result<(), Failure> {
    let documents: Vec<String> = DEFINITIONS.iter().map(|text| format!("---\n{text}")).collect();
    output::print(&documents.concat())
}
