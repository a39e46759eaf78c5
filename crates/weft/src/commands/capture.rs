//! `weft capture`: captures the frames on a pod's interface in a file that tcpdump and Wireshark read.
//!
//! - The journal has the pod's namespace and interfaces; `weft-cni sandbox capture` opens the socket there.
//! - The file is created with mode 0600, and never overwritten. The capture ends after a number of frames, at
//!   a size or a time, or with a signal.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, IsTerminal};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use clap::Args;
use cni::name::IfName;
use rpc::diagnosis::{CaptureRequest, FrameFilter, SandboxNamespace};
use rpc::journal::Entry;

use crate::cluster_access::ClusterAccess;
use crate::known_journals::{JournalHandle, Target};
use crate::manifest_plan::Inputs;
use crate::place::require_host;
use crate::pod_name::PodName;
use crate::remote_node::RemoteNode;
use cli_support::failure::{EXIT_CODES, Exit, Failure};
use cli_support::interrupt::Interrupt;
use cli_support::output::{Format, Progress};
use cli_support::privilege;
use cli_support::terminal::plain;
use node_support::weft_cni::WeftCni;

/// Arguments of `weft capture`.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft capture -n my-namespace my-pod --network data -w data.pcap
  weft capture -n my-namespace my-pod --interface net1 --filter 'tcp and port 5432' | tcpdump -r -

A filter consists of arp, icmp, tcp, udp, `host ADDRESS` and `port PORT`, joined by `and`. VLAN tags are removed by the
kernel. The capture ends with Ctrl-C, or at the first limit.

{EXIT_CODES}"))]
pub(crate) struct Arguments {
    /// Name of the pod, or NAMESPACE/NAME
    #[arg(value_name = "POD")]
    pod: String,
    /// Namespace of the pod
    #[arg(short = 'n', long, default_value = "default")]
    namespace: String,
    /// Interface of the pod (default: that of the network; without a network the first one)
    #[arg(long, value_name = "NAME", conflicts_with = "network")]
    interface: Option<String>,
    /// Network of the pod whose interface is captured: NAME in the namespace of the pod, or NAMESPACE/NAME
    #[arg(long, value_name = "NETWORK")]
    network: Option<String>,
    /// File to create; it must not exist (default: standard output, if it is not a terminal)
    #[arg(short = 'w', long = "write", value_name = "FILE")]
    file: Option<PathBuf>,
    /// Frames to capture (default: all)
    #[arg(long, value_name = "FILTER", default_value = "", hide_default_value = true)]
    filter: FrameFilter,
    /// Number of frames after which the capture ends
    #[arg(long, default_value_t = 100_000, value_name = "COUNT")]
    count: u64,
    /// Time after which the capture ends, in seconds
    #[arg(long, default_value_t = 600, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Size at which the capture ends, in MiB
    #[arg(long, default_value_t = 100, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    size: u64,
    /// Number of bytes that are captured of each frame
    #[arg(long, default_value_t = 65_535, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=65_535))]
    snap_length: u32,
    #[command(flatten)]
    remote: RemoteNode,
    #[command(flatten)]
    cluster: ClusterAccess,
    #[command(flatten)]
    inputs: Inputs,
}

/// Runs `weft capture`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { pod, namespace, file, filter, count, seconds, size, snap_length, inputs, .. } = arguments;
    let name = PodName::within(namespace, pod)?;
    if let Some(done) = arguments.remote.run_into(&arguments.cluster, &name, file.as_deref()) {
        return done;
    }
    require_host("capture", "it enters network namespaces")?;
    let found = Target::of(&name).find(&JournalHandle::all(inputs)?)?;
    let (_, entry) = found.ok_or_else(|| {
        Failure::new(format!("pod {name} is not attached on this node"))
            .next("run weft capture on the node of the pod; weft list shows the pods of this node")
    })?;
    let request = CaptureRequest {
        sandbox: SandboxNamespace { netns: entry.netns.clone(), namespace: entry.namespace.clone() },
        interface: arguments.interface_of(&name, &entry)?,
        filter: *filter,
        count: *count,
        seconds: *seconds,
        bytes: size << 20,
        snap_length: *snap_length,
    };
    let interrupt = Interrupt::watch()?;
    let weft_cni = WeftCni::find()?;
    let output = open(file.as_deref())?;
    let progress = Progress::beside(Format::Json);
    progress.line(plain(&format!("capturing {} of {name}; Ctrl-C ends the capture", request.interface)));
    let report = weft_cni.capture(&request, output, || interrupt.is_set());
    progress.line(plain(&report?));
    Ok(())
}

impl Arguments {
    /// Returns the interface to capture.
    fn interface_of(&self, pod: &PodName, entry: &Entry) -> Result<String, Failure> {
        let status = || entry.network_status.iter().filter(|status| !status.interface.is_empty());
        let known = || {
            let names = status().map(|status| format!("{} ({})", status.interface, status.name));
            format!("pod {pod} has {}", names.collect::<Vec<_>>().join(", "))
        };
        if let Some(interface) = &self.interface {
            let name = IfName::new(interface)?;
            return Ok(name.to_string());
        }
        let is_meant = |name: &str| match &self.network {
            Some(network) => name == network || name == format!("{}/{network}", pod.namespace),
            None => true,
        };
        let found = status().find(|status| is_meant(&status.name)).map(|status| status.interface.clone());
        found.ok_or_else(|| {
            let network = self.network.as_deref().unwrap_or_default();
            Failure::new(format!("--network {network:?}: {}", known())).next("name one of these networks")
        })
    }
}

/// Opens the destination: a new file, or standard output.
fn open(file: Option<&Path>) -> Result<Stdio, Failure> {
    let Some(path) = file else {
        if std::io::stdout().is_terminal() {
            return Err(Failure::new("the standard output is a terminal")
                .next("name a file with -w, or pipe the output into tcpdump -r -")
                .exit(Exit::Usage));
        }
        return Ok(Stdio::inherit());
    };
    let created: std::io::Result<File> =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let created = created.map_err(|cause| match cause.kind() {
        ErrorKind::AlreadyExists => Failure::new(format!("-w {}: the file exists", path.display()))
            .next("choose another name: a file is never overwritten"),
        _ => privilege::refused(&format!("create {}", path.display()), &cause),
    })?;
    Ok(Stdio::from(OwnedFd::from(created)))
}
