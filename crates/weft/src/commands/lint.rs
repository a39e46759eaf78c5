//! `weft lint`: validates network definitions, annotations and CNI configurations before they reach a cluster.
//!
//! The rules are in [`manifest::lint`]. This module reads files, prints findings and writes corrections.
//!
//! - Every file is checked, whatever errors other files have. The exit code is 1 if an error remains.
//! - `--fix` changes only what has exactly one correct form, and prints what it changed.

mod explanation;
mod report;
mod rewrite;

use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use manifest::Manifest;
use manifest::lint::across::Across;
use manifest::lint::{self, Edit, Finding, Knowledge, Programs};
use manifest::stream::Pieces;
use npwg::refusal::Fault;
use npwg::rule::{Rule, Severity};
use serde::Serialize;
use tokio::time::timeout;

use crate::cluster_access::ClusterAccess;
use crate::input_files;
use crate::input_files::{File, Input, Kind};
use cli_support::async_runtime::runtime;
use cli_support::failure::{EXIT_CODES, Failure};
use cli_support::output;
use cli_support::output::{Format, Output, Progress};
use ipam_api::pool_lookup::node_count;
use kube_support::api_error;

/// Directory in which runtimes look for plugins.
const PLUGIN_DIRECTORY: &str = "/opt/cni/bin";

/// Time after which the number of nodes is not waited for any more.
const CLUSTER_MAX: Duration = Duration::from_secs(5);

/// Path of stdin.
const STDIN: &str = "/dev/stdin";

/// Arguments of `weft lint`.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft lint examples/
  weft lint --fix network.yaml
  helm template . | weft lint -f -
  weft lint --explain invalid-mac

lint validates NetworkAttachmentDefinitions, the network annotations of pods and of pod templates (.yaml, .yml,
.json), and CNI configurations (.conf, .conflist, .json). Each finding names the rule that is violated;
docs/lint.md describes all rules.
error: the configuration will be refused; warning: it probably does not do what was intended; note: information.

{EXIT_CODES} A finding of severity error is a failure."))]
pub(crate) struct Arguments {
    /// Files or directories (without subdirectories); - for stdin
    #[arg(value_name = "FILE|DIR", required_unless_present_any = ["explain", "files"])]
    paths: Vec<PathBuf>,
    /// File or directory, as for other commands; may be repeated
    #[arg(short = 'f', long = "file", value_name = "FILE|DIR")]
    files: Vec<PathBuf>,
    /// Correct the files where there is exactly one correct form
    #[arg(long)]
    fix: bool,
    /// Directory with the plugins of a node; may be repeated (default: /opt/cni/bin, if it exists)
    #[arg(long, value_name = "DIR")]
    plugin_dir: Vec<PathBuf>,
    /// Number of nodes of the cluster, to find networks with few addresses for it (default: that of the cluster that
    /// --kubeconfig or --context names; else they are not searched)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    nodes: Option<u64>,
    #[command(flatten)]
    cluster: ClusterAccess,
    /// Rule to explain with a wrong and a right example, instead of reading files
    #[arg(long, value_name = "RULE", conflicts_with_all = ["paths", "files", "fix", "plugin_dir"])]
    explain: Option<Rule>,
    #[command(flatten)]
    output: Output,
}

/// Result for all files.
#[derive(Debug, Default, Serialize)]
struct LintReport {
    /// Number of checked files.
    files: usize,
    /// Findings in the order of files and lines.
    findings: Vec<Located>,
    /// Corrected faults.
    fixed: Vec<Fixed>,
}

/// Finding and file.
#[derive(Debug, Serialize)]
struct Located {
    file: String,
    #[serde(flatten)]
    finding: Finding,
}

/// Corrected error and file.
#[derive(Debug, Serialize)]
struct Fixed {
    file: String,
    #[serde(flatten)]
    fault: Fault,
}

/// Runs `weft lint`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { paths, files, fix, plugin_dir, nodes: _, cluster: _, explain, output } = arguments;
    if let Some(rule) = explain {
        return explanation::print(*rule, output.format);
    }
    let (programs, nodes) = (programs(plugin_dir)?, arguments.nodes()?);
    let knowledge = Knowledge { programs, nodes, ..Knowledge::of_known_plugins() };
    let (mut report, mut across) = (LintReport::default(), Across::default());
    let stdin = |path: &PathBuf| if path.as_os_str() == "-" { STDIN.into() } else { path.clone() };
    for path in input_files::expand(&paths.iter().chain(files).map(stdin).collect::<Vec<_>>())? {
        let mut file = match input_files::open(&path)? {
            Input::Whole(file) => file,
            Input::Long(path, _) if *fix => return Err(input_files::too_long(&path)),
            Input::Long(path, text) => {
                let located = |finding| Located { file: path.display().to_string(), finding };
                report.files += 1;
                report
                    .findings
                    .extend(lint_pieces(&path, text, &knowledge, &mut across)?.into_iter().map(located));
                continue;
            }
        };
        let mut findings = lint_file(&file, &knowledge);
        if *fix {
            let corrected = apply_fixes(&mut file, &findings)?;
            if !corrected.is_empty() {
                findings = lint_file(&file, &knowledge);
                report.fixed.extend(corrected);
            }
        }
        let path = file.path.display().to_string();
        if file.kind == Kind::Manifest {
            across.add(&path, &Manifest::parse(&file.text), 0);
        }
        report.files += 1;
        report.findings.extend(findings.into_iter().map(|finding| Located { file: path.clone(), finding }));
    }
    report.include(across);
    match output.format {
        Format::Json | Format::Yaml => output::print_document(output.format, &report)?,
        Format::Text | Format::Wide => {
            output::print(&report::render(&report, report::Colours::of_terminal()))?;
        }
    }
    match report.count(Severity::Error) {
        0 => Ok(()),
        count => Err(Failure::quiet(format!("{count} errors"))),
    }
}

impl Arguments {
    /// Returns the number of nodes, if an option or a cluster tells it. The files are checked without it, too.
    fn nodes(&self) -> Result<Option<u64>, Failure> {
        if self.nodes.is_some() || !self.cluster.is_named() {
            return Ok(self.nodes);
        }
        let count = async {
            let client = self.cluster.client().await?;
            let counted = timeout(CLUSTER_MAX, node_count(&client)).await;
            let unknown = |why: String| Failure::new(format!("list nodes: {why}"));
            let counted = counted.map_err(|_| unknown("the API server does not answer".to_owned()))?;
            counted.map_err(|error| unknown(api_error::describe(&error)))
        };
        match runtime()?.block_on(count) {
            Ok(nodes) => Ok(Some(nodes)),
            Err(failure) => {
                let note = format!("networks with few addresses are not searched: {failure}; set --nodes");
                Progress::beside(Format::Json).line(note);
                Ok(None)
            }
        }
    }
}

impl LintReport {
    /// Adds the findings about several files, in the order of files and lines.
    fn include(&mut self, across: Across) {
        let found = across.findings().into_iter().map(|(file, finding)| Located { file, finding });
        let mut files: Vec<String> = Vec::new();
        for Located { file, .. } in &self.findings {
            if files.last() != Some(file) {
                files.push(file.clone());
            }
        }
        self.findings.extend(found);
        let place = |file: &str| files.iter().position(|known| known == file).unwrap_or(files.len());
        self.findings.sort_by_key(|located| (place(&located.file), located.finding.position));
    }

    fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|located| located.finding.severity == severity).count()
    }
}

fn lint_file(file: &File, knowledge: &Knowledge) -> Vec<Finding> {
    match file.kind {
        Kind::Manifest => lint::manifest(&Manifest::parse(&file.text), knowledge),
        Kind::Configuration => lint::configuration(&file.text, knowledge),
    }
}

/// Returns the programs in the plugin directories; without an option, those of the usual one if it exists.
fn programs(given: &[PathBuf]) -> Result<Option<Programs>, Failure> {
    let usual = PathBuf::from(PLUGIN_DIRECTORY);
    let directories = match given {
        [] if !usual.is_dir() => return Ok(None),
        [] => std::slice::from_ref(&usual),
        given => given,
    };
    let mut programs = Programs::default();
    for directory in directories {
        let failed = |cause| Failure::new(format!("read {}: {cause}", directory.display()));
        for entry in std::fs::read_dir(directory).map_err(failed)? {
            programs.names.insert(entry.map_err(failed)?.file_name().to_string_lossy().into_owned());
        }
        programs.directories.push(directory.display().to_string());
    }
    Ok(Some(programs))
}

/// Returns the findings of a long manifest, which is parsed object by object.
fn lint_pieces(
    path: &Path,
    text: impl BufRead,
    knowledge: &Knowledge,
    across: &mut Across,
) -> Result<Vec<Finding>, Failure> {
    let mut findings = Vec::new();
    for piece in Pieces::new(text) {
        let piece = piece.map_err(|cause| Failure::new(format!("read {}: {cause}", path.display())))?;
        let manifest = Manifest::parse(&piece.text);
        across.add(&path.display().to_string(), &manifest, piece.lines_before);
        let of_piece = lint::manifest(&manifest, knowledge);
        findings.extend(of_piece.into_iter().map(|mut finding| {
            finding.position.line += piece.lines_before;
            // Only a file that is read whole can be corrected.
            finding.fix = None;
            finding
        }));
    }
    Ok(findings)
}

/// Applies the corrections of the findings to the file on disk and in memory.
fn apply_fixes(file: &mut File, findings: &[Finding]) -> Result<Vec<Fixed>, Failure> {
    let with_fix = || findings.iter().filter_map(|finding| Some((finding.fix.clone()?, &finding.fault)));
    let edits: Vec<Edit> = with_fix().map(|(edit, _)| edit).collect();
    if edits.is_empty() {
        return Ok(Vec::new());
    }
    let text = lint::apply(&file.text, &edits);
    rewrite::replace(&file.path, &text)?;
    file.text = text;
    let path = file.path.display().to_string();
    Ok(with_fix().map(|(_, fault)| Fixed { file: path.clone(), fault: fault.clone() }).collect())
}
