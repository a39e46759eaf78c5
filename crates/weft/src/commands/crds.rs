//! `weft crds`: prints the CustomResourceDefinitions for `kubectl apply -f -`.
//!
//! The types in [`kube_support::custom_resources`] generate them. `deploy/crds` and `deploy/helm/weft/crds`
//! contain the same documents, one file each; `weft crds --write DIR` writes them, and a test compares them.
//! `deploy/policy` has those for network policies.
//!
//! Source: multi-network specification, section 3.1; `apiextensions.k8s.io/v1`.

use std::fs;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use serde_json::Value;

use cli_support::failure::{EXIT_CODES, Failure};
use cli_support::output;
use kube_support::custom_resources::{definitions, policy_definitions};

/// First line in every document.
const GENERATED: &str =
    "# Written by `weft crds --write DIR` from the types of crates/kube-support/src/custom_resources.";

/// Arguments of `weft crds`.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft crds | kubectl apply -f -

{EXIT_CODES}"))]
pub(crate) struct Arguments {
    /// Directory to write the definitions to, one file each, instead of printing them
    #[arg(long, value_name = "DIR")]
    write: Option<PathBuf>,
    /// Definitions of network policies (MultiNetworkPolicy, PolicyAddressSet) instead of the others
    #[arg(long)]
    network_policies: bool,
}

/// Runs `weft crds`.
pub(crate) fn run(Arguments { write, network_policies }: &Arguments) -> Result<(), Failure> {
    let definitions = if *network_policies { policy_definitions() } else { definitions() };
    let documents = documents(definitions)?;
    let Some(directory) = write else {
        let documents: Vec<String> = documents.iter().map(|(_, text)| format!("---\n{text}")).collect();
        return output::print(&documents.concat());
    };
    for (name, text) in documents {
        let path = directory.join(format!("{name}.yaml"));
        fs::write(&path, text).map_err(|cause| Failure::new(format!("write {}: {cause}", path.display())))?;
    }
    Ok(())
}

/// Returns name and YAML document for each definition.
fn documents(
    definitions: Result<Vec<impl Serialize>, serde_json::Error>,
) -> Result<Vec<(String, String)>, Failure> {
    let failed = |cause: &dyn std::error::Error| Failure::new(format!("generate the definitions: {cause}"));
    let options = serde_saphyr::ser_options! { compact_list_indent: false, prefer_block_scalars: false };
    let mut documents = Vec::new();
    for definition in definitions.map_err(|cause| failed(&cause))? {
        let mut tree = serde_json::to_value(&definition).map_err(|cause| failed(&cause))?;
        write_integers(&mut tree);
        let text = serde_saphyr::to_string_with_options(&tree, options.clone());
        let text = text.map_err(|cause| failed(&cause))?;
        let name = tree["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        documents.push((name, format!("{GENERATED}\n{text}")));
    }
    Ok(documents)
}

/// Converts numbers like `8.0` into integers. The library stores limits as floating-point numbers.
fn write_integers(tree: &mut Value) {
    match tree {
        Value::Number(number) => {
            let text = number.to_string();
            if let Some(integer) = text.strip_suffix(".0").and_then(|text| text.parse::<i64>().ok()) {
                *tree = Value::from(integer);
            }
        }
        Value::Array(all) => all.iter_mut().for_each(write_integers),
        Value::Object(all) => all.values_mut().for_each(write_integers),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}
