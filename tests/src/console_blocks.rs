//! Console blocks in the documents: the commands that readers type, and how tests run each block.
//!
//! [`blocks`] reads them, and [`ROWS`] says for each how a test runs it, or why none does. A block is identified by the
//! file and by how one of the commands begins.
//!
//! - Every block must have exactly one row, and every row a block; a test compares them.
//! - A block that is not run must have a reason; another test still parses the `weft` commands in it.

use std::fs;

use testkit::workspace;

/// Console block in a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Path from the workspace root.
    pub file: String,
    /// Line with the opening fence.
    pub line: usize,
    /// Commands without the prompt.
    pub commands: Vec<String>,
}

/// Test method for a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// On a host in a namespace, after this shell script.
    Host(&'static str),
    /// With a real API server, after this shell script.
    Kube(&'static str),
    /// Not at all, for this reason.
    NotRun(&'static str),
}

/// Table row: a block, and how it is tested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// File that contains the block.
    pub file: &'static str,
    /// Beginning of one command in the block.
    pub command: &'static str,
    /// Test method for the block.
    pub way: Way,
}

const fn row(file: &'static str, command: &'static str, way: Way) -> Row {
    Row { file, command, way }
}

/// Attaches the pod from the examples.
const ATTACHED: &str = "weft attach -f examples/ --pod my-namespace/my-pod >/run/attached";

/// Example files from `weft init`.
const INITIALIZED: &str = "weft init my-network";

/// Two attached pods from the example files.
const TRIED: &str = "weft init my-network
    sed 's/name: web$/name: db/' my-network/pod.yaml >my-network/db.yaml
    weft attach web -f my-network >/run/web
    weft attach db -f my-network >/run/db";

/// Manifests for a second pod, in the files that the documents name.
const TWO_PODS: &str = "ip netns add blue
    mkdir networks
    sed 's/my-namespace/default/; s/my-pod$/web/' examples/pods.yaml >pod.yaml
    sed 's/my-namespace/default/' examples/definitions.yaml >networks/definitions.yaml
    cp examples/10-weft.conflist .";

/// A network with one bridge in the runtime's directory.
const MYNET: &str = "ip netns add blue
    mkdir -p /etc/cni/net.d
    cat >/etc/cni/net.d/mynet.conflist <<END
    {\"cniVersion\":\"1.0.0\",\"name\":\"mynet\",\"plugins\":[{\"type\":\"bridge\",\"bridge\":\"my0\",
      \"ipam\":{\"type\":\"host-local\",\"subnet\":\"10.9.0.0/24\"}}]}
END
    weft-cni install /opt/cni/bin";

/// A file with an error that `--fix` corrects, and the output from Helm, which Debian does not package.
const MANIFESTS: &str = "cp examples/definitions.yaml network.yaml
    helm() { cat examples/pods.yaml examples/definitions.yaml; }";

/// Multus's node configuration, and what pods left.
const MULTUS: &str = "mkdir -p /etc/cni/net.d /var/lib/cni/multus
    cat >/etc/cni/net.d/00-multus.conf <<END
    {\"cniVersion\":\"0.3.1\",\"name\":\"multus-cni-network\",\"type\":\"multus\",\"delegates\":[
      {\"cniVersion\":\"0.3.1\",\"name\":\"home\",\"plugins\":[{\"type\":\"bridge\",\"bridge\":\"home0\"}]}]}
END";

/// The example pod and the networks in a cluster.
const POD: &str = "kubectl apply -k deploy/crds
    sleep 2
    kubectl apply -f examples/definitions.yaml -f examples/pods.yaml";

macro_rules! whereabouts {
    () => {
        "kubectl apply -k deploy/crds
    kubectl apply -f - <<END
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: ippools.whereabouts.cni.cncf.io}
spec:
  group: whereabouts.cni.cncf.io
  scope: Namespaced
  names: {plural: ippools, singular: ippool, kind: IPPool}
  versions:
    - {name: v1alpha1, served: true, storage: true,
       schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
END
    for name in blue openshift-multus; do kubectl create namespace $name; done
    sleep 2
    kubectl apply -f - <<END
apiVersion: whereabouts.cni.cncf.io/v1alpha1
kind: IPPool
metadata: {name: 192.168.2.0-24, namespace: openshift-multus}
spec: {range: 192.168.2.0/24, allocations: {'5': {id: c, podref: blue/web-0, ifname: net1}}}
---
apiVersion: v1
kind: Pod
metadata:
  name: web-0
  namespace: blue
  annotations: {k8s.v1.cni.cncf.io/network-status: '[{\"name\":\"blue/data\",\"interface\":\"net1\",\"ips\":[\"192.168.2.5\"]}]'}
spec: {nodeName: worker-0, containers: [{name: c, image: none}]}
---
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {name: data, namespace: blue}
spec: {config: '{\"cniVersion\":\"1.0.0\",\"type\":\"macvlan\",\"ipam\":{\"type\":\"whereabouts\",\"range\":\"192.168.2.0/24\"}}'}
---
apiVersion: v1
kind: Node
metadata: {name: worker-0}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: whereabouts, namespace: kube-system}
spec:
  selector: {matchLabels: {app: whereabouts}}
  template: {metadata: {labels: {app: whereabouts}}, spec: {containers: [{name: c, image: none}]}}
END"
    };
}

/// A pod with an address from whereabouts, whose objects are not in `kube-system`, and the whereabouts DaemonSet.
const WHEREABOUTS: &str = whereabouts!();

/// The same after the import.
const WHEREABOUTS_IMPORTED: &str = concat!(whereabouts!(), "\n    weft import whereabouts --apply");
/// A default network in the runtime's directory, with weft in front of it.
const INSTALLED: &str = "mkdir -p /etc/cni/net.d /opt/cni/bin
    cat >/etc/cni/net.d/10-pods.conflist <<END
    {\"cniVersion\":\"1.0.0\",\"name\":\"pods\",\"plugins\":[{\"type\":\"bridge\",\"bridge\":\"my0\",
      \"ipam\":{\"type\":\"host-local\",\"subnet\":\"10.9.0.0/24\"}}]}
END
    weft install";

/// A DaemonSet that replaces only deleted pods, and still does so after another release was applied.
const ONE_NODE_FIRST: &str = "kubectl apply -k deploy/base
    daemonset='kubectl --namespace kube-system get daemonset weft-agent -o jsonpath='
    kubectl --namespace kube-system patch daemonset weft-agent -p '{\"spec\":{\"updateStrategy\":{\"type\":\"OnDelete\"}}}'
    kubectl kustomize deploy/base | sed 's/weft:0.1.0/weft:0.1.1/' | kubectl apply -f -
    test \"$($daemonset{.spec.template.spec.containers[0].image})\" = ghcr.io/weft-net/weft:0.1.1
    test $($daemonset{.spec.updateStrategy.type}) = OnDelete";

/// A pool with the finalizer that a pool in use has.
const POOL: &str = r#"kubectl apply -k deploy/crds && sleep 2
    printf '%s' '{ "apiVersion": "weft.dev/v1alpha1", "kind": "IPPool",
        "metadata": { "name": "storage", "finalizers": ["weft.dev/in-use"] },
        "spec": { "range": "10.1.0.0/24", "blockBits": 4 } }' | kubectl apply -f -"#;

/// Rows for all console blocks.
pub const ROWS: &[Row] = &[
    row(
        "README.md",
        "make demo",
        Way::NotRun("compiles everything and runs all lanes: the targets of the Makefile"),
    ),
    row("README.md", "sudo bin/weft demo", Way::Host("")),
    row("README.md", "kubectl apply -f examples/definitions.yaml", Way::Kube("")),
    row("docs/commands.md", "kubectl weft trace --node", Way::NotRun("needs an executor on a node")),
    row(
        "docs/commands.md",
        "weft migrate check",
        Way::NotRun("needs nodes: tests/node/multus_migration.rs runs it"),
    ),
    row(
        "docs/migrate-from-multus.md",
        "weft migrate check",
        Way::NotRun("needs nodes: tests/node/multus_migration.rs runs it"),
    ),
    row(
        "docs/migrate-from-whereabouts.md",
        "weft migrate whereabouts",
        Way::NotRun(
            "needs a cluster with whereabouts: tests/node/multus_migration.rs runs weft migrate multus",
        ),
    ),
    row("docs/commands.md", "sudo weft demo", Way::Host("")),
    row("docs/commands.md", "sudo weft attach -f examples/", Way::Host(TWO_PODS)),
    row("docs/commands.md", "sudo weft detach", Way::Host(ATTACHED)),
    row("docs/commands.md", "sudo weft check", Way::Host(ATTACHED)),
    row("docs/commands.md", "sudo weft list", Way::Host(ATTACHED)),
    row("docs/commands.md", "weft list -A", Way::Kube("")),
    row("docs/commands.md", "weft init", Way::Host("")),
    row("docs/commands.md", "sudo weft bundle", Way::Host(ATTACHED)),
    row(
        "docs/commands.md",
        "weft status",
        Way::NotRun("waits for nodes with agents: tests/kube/status.rs runs it"),
    ),
    row("docs/commands.md", "sudo weft history", Way::Host(ATTACHED)),
    row(
        "docs/commands.md",
        "sudo weft trace",
        Way::NotRun("needs two pods of a network: tests/net/trace.rs runs it"),
    ),
    row(
        "docs/commands.md",
        "sudo weft capture",
        Way::NotRun("runs until it is stopped: tests/net/capture.rs runs it"),
    ),
    row(
        "docs/commands.md",
        "sudo weft doctor",
        Way::NotRun("shows faults of a node: tests/net/doctor.rs makes them"),
    ),
    row("docs/commands.md", "weft explain -n my-namespace my-pod -f", Way::Host("")),
    row(
        "docs/commands.md",
        "weft explain --from",
        Way::NotRun(
            "the manifests are those of the reader: crates/weft/tests/explain.rs has such connections",
        ),
    ),
    row("docs/commands.md", "weft explain -n my-namespace my-pod", Way::Kube(POD)),
    row(
        "docs/network-policy.md",
        "weft explain -n prod",
        Way::NotRun(
            "the pods are those of the reader: tests/kube/network_policy_controller.rs explains such a connection",
        ),
    ),
    row("docs/commands.md", "weft test", Way::NotRun("needs nodes: tests/node/network_test.rs runs it")),
    row("docs/commands.md", "sudo weft reset", Way::Host(ATTACHED)),
    row(
        "docs/commands.md",
        "weft probe",
        Way::NotRun("runs until it is stopped: tests/net/probe.rs runs it"),
    ),
    row("docs/commands.md", "weft lint examples/", Way::Host(MANIFESTS)),
    row(
        "docs/commands.md",
        "weft agent",
        Way::NotRun("runs until it is stopped: tests/kube/agent.rs runs it"),
    ),
    row(
        "docs/commands.md",
        "sudo weft executor",
        Way::NotRun("runs until it is stopped: tests/kube/hot_plug_and_drift.rs runs it"),
    ),
    row(
        "docs/commands.md",
        "weft ipam show",
        Way::NotRun("shows a cluster with agents: tests/kube/ipam.rs runs it"),
    ),
    row(
        "docs/commands.md",
        "sudo weft cri-proxy",
        Way::NotRun("runs until it is stopped: tests/containerd runs it"),
    ),
    row(
        "docs/commands.md",
        "sudo weft network set",
        Way::NotRun("needs a CRI proxy: tests/containerd/network_api.rs runs it"),
    ),
    row(
        "docs/commands.md",
        "weft controller --neutron",
        Way::NotRun("runs until it is stopped: tests/neutron runs it"),
    ),
    row(
        "docs/commands.md",
        "weft plan --once",
        Way::NotRun("reads a message of weft-cni: tests/net/crash_recovery_tasks.rs runs it"),
    ),
    row(
        "docs/commands.md",
        "weft publish",
        Way::NotRun("publishes a sandbox of a cluster: tests/kube/agent.rs runs it"),
    ),
    row("docs/commands.md", "sudo weft cni add", Way::Host(MYNET)),
    row(
        "docs/commands.md",
        "sudo weft install",
        Way::NotRun("lists alternatives that exclude each other: crates/weft/tests/install.rs"),
    ),
    row("docs/commands.md", "sudo weft import multus", Way::Host(MULTUS)),
    row("docs/commands.md", "weft import whereabouts", Way::Kube(WHEREABOUTS)),
    row("docs/commands.md", "weft crds", Way::Kube("")),
    row("docs/commands.md", "weft completion", Way::Host("")),
    row("docs/commands.md", "weft man", Way::Host("")),
    row("docs/commands.md", "weft version", Way::Host("")),
    row(
        "docs/cri-networks.md",
        "sudo weft-cni install",
        Way::NotRun("runs until it is stopped: tests/containerd runs it"),
    ),
    row(
        "docs/cri-networks.md",
        "sudo weft network set",
        Way::NotRun("needs a CRI proxy: tests/containerd/network_api.rs runs it"),
    ),
    row(
        "docs/guides/air-gapped.md",
        "sha256sum --check",
        Way::NotRun("needs files of a release: release/check verifies the checksums"),
    ),
    row(
        "docs/guides/air-gapped.md",
        "skopeo copy",
        Way::NotRun("needs a registry and Helm: release/check verifies the archive"),
    ),
    row(
        "docs/guides/air-gapped.md",
        "sudo ctr --namespace k8s.io images import",
        Way::NotRun("lists alternatives for different runtimes: release/check imports the archives"),
    ),
    row(
        "docs/guides/air-gapped.md",
        "sudo ctr --namespace k8s.io images list",
        Way::NotRun("looks at a runtime with a loaded image"),
    ),
    row(
        "docs/guides/bond.md",
        "sudo cat /proc/net/bonding/bond0",
        Way::NotRun("needs a physical network: tests/net/bond.rs attaches pods to a bond that loses a link"),
    ),
    row("docs/guides/default-networks.md", "sudo ls /etc/cni/net.d", Way::Host(INSTALLED)),
    row(
        "docs/guides/distributions.md",
        "kind load image-archive",
        Way::NotRun("Debian has no kind: release/check imports the archive"),
    ),
    row(
        "docs/guides/distributions.md",
        "kubectl --namespace kube-system rollout status",
        Way::NotRun("needs nodes: tests/node/deployment.rs waits for the rollout"),
    ),
    row(
        "docs/guides/dual-stack.md",
        "kubectl exec my-pod -- ip -6",
        Way::NotRun("needs a physical network: tests/net/macvlan.rs attaches both families"),
    ),
    row(
        "docs/guides/first-network.md",
        "kubectl apply -k deploy/crds",
        Way::NotRun("needs nodes: tests/node/guides.rs runs these steps"),
    ),
    row(
        "docs/guides/first-network.md",
        "kubectl exec web",
        Way::NotRun("needs nodes: tests/node/guides.rs runs these steps"),
    ),
    row(
        "docs/guides/kubevirt.md",
        "kubectl get pod -l kubevirt.io/domain=my-vm",
        Way::NotRun("needs KubeVirt, which Debian does not package"),
    ),
    row(
        "docs/guides/macvlan-dhcp.md",
        "kubectl apply -k deploy/dhcp",
        Way::NotRun("waits for nodes: tests/node/dhcp.rs applies the DaemonSet"),
    ),
    row(
        "docs/guides/macvlan-dhcp.md",
        "kubectl exec my-pod -- ip address",
        Way::NotRun("needs a physical network: tests/net/dhcp.rs leases addresses"),
    ),
    row(
        "docs/guides/sr-iov.md",
        "kubectl get pod dpi",
        Way::NotRun("needs a network card: tests/node/devices.rs passes devices"),
    ),
    row(
        "docs/guides/static-addresses.md",
        "weft ipam show",
        Way::NotRun("needs a StatefulSet on nodes: tests/kube/ipam_claims.rs keeps addresses"),
    ),
    row(
        "docs/guides/troubleshooting.md",
        "kubectl -n kube-system get pods",
        Way::NotRun("needs nodes: tests/node/guides.rs runs these steps"),
    ),
    row(
        "docs/guides/troubleshooting.md",
        "sudo weft doctor",
        Way::NotRun("needs nodes: tests/node/guides.rs runs these steps"),
    ),
    row(
        "docs/guides/uninstall.md",
        "kubectl get daemonsets",
        Way::NotRun("needs a node without weft: tests/node/installation.rs removes it"),
    ),
    row(
        "docs/guides/upgrade.md",
        "kubectl apply -k deploy/crds",
        Way::NotRun("needs two releases and Helm: tests/kube/helm_chart.rs upgrades the chart"),
    ),
    row(
        "docs/guides/upgrade.md",
        "kubectl --namespace kube-system delete pod",
        Way::Kube("kubectl apply -k deploy/base"),
    ),
    row(
        "docs/guides/upgrade.md",
        "kubectl --namespace kube-system patch daemonset weft-agent -p '{\"spec\":{\"updateStrategy\":{\"type\":\"Rolling",
        Way::Kube(ONE_NODE_FIRST),
    ),
    row(
        "docs/guides/upgrade.md",
        "/opt/cni/bin/weft-cni version",
        Way::NotRun("needs nodes: tests/node/installation.rs replaces the programs"),
    ),
    row("docs/guides/without-kubernetes.md", "sudo weft demo", Way::Host("")),
    row("docs/guides/without-kubernetes.md", "weft init", Way::Host("")),
    row("docs/guides/without-kubernetes.md", "sudo weft attach", Way::Host(INITIALIZED)),
    row("docs/guides/without-kubernetes.md", "sudo ip netns exec", Way::Host(TRIED)),
    row("docs/guides/without-kubernetes.md", "sudo weft detach", Way::Host(TRIED)),
    row(
        "docs/guides/vlan.md",
        "kubectl exec my-pod -- ping",
        Way::NotRun("needs a physical network: tests/net/vlan.rs attaches pods to VLANs"),
    ),
    row(
        "docs/installation.md",
        "make build",
        Way::NotRun("needs Docker and a registry: lanes/containerd/image builds the image"),
    ),
    row(
        "docs/installation.md",
        "sudo sh install.sh",
        Way::NotRun("downloads a release: release/check installs from dist/"),
    ),
    row("docs/installation.md", "kubectl apply -k deploy/base", Way::Kube("")),
    row(
        "docs/installation.md",
        "kubectl apply -k deploy/components/agent-policy",
        Way::NotRun("needs Kubernetes 1.30: tests/kube/agent.rs applies it"),
    ),
    row(
        "docs/installation.md",
        "helm install",
        Way::NotRun("Debian has no helm: tests/kube/helm_chart.rs renders the chart"),
    ),
    row(
        "docs/metrics.md",
        "kubectl apply -k deploy/monitoring",
        Way::NotRun(
            "needs the Prometheus operator; `helm_alerts_and_dashboard_equal_the_kustomization` reads the files",
        ),
    ),
    row("docs/installation.md", "kubectl apply -k deploy/thin", Way::Kube("")),
    row(
        "docs/installation.md",
        "kubectl apply -k deploy/removal",
        Way::NotRun("waits for pods of a node: tests/node/installation.rs runs these steps"),
    ),
    row(
        "docs/installation.md",
        "helm uninstall",
        Way::NotRun("Debian has no helm: tests/kube/helm_chart.rs renders the chart"),
    ),
    row("docs/installation.md", "kubectl get ipblocks", Way::Kube("kubectl apply -k deploy/crds && sleep 2")),
    row("docs/ipam-scale.md", "cargo run", Way::NotRun("simulates a large cluster for some minutes")),
    row("docs/ipam-scale.md", "SEEDS=", Way::NotRun("simulates for many minutes; CI runs fewer seeds")),
    row("docs/migrate-from-multus.md", "sudo weft import multus >", Way::Host(MULTUS)),
    row(
        "docs/migrate-from-multus.md",
        "sudo weft import multus --daemon-config",
        Way::NotRun("needs Multus in a cluster: tests/net/import_multus.rs"),
    ),
    row(
        "docs/migrate-from-multus.md",
        "kubectl apply -k weft/deploy",
        Way::NotRun("is run under another path: docs/installation.md"),
    ),
    row(
        "docs/migrate-from-multus.md",
        "kubectl label node --all",
        Way::NotRun("needs Multus in a cluster: tests/node/multus_migration.rs runs these steps"),
    ),
    row(
        "docs/migrate-from-multus.md",
        "kubectl cordon",
        Way::NotRun("needs Multus in a cluster: tests/node/multus_migration.rs runs these steps"),
    ),
    row(
        "docs/migrate-from-multus.md",
        "kubectl -n kube-system delete daemonset",
        Way::NotRun("needs Multus in a cluster: tests/node/multus_migration.rs runs these steps"),
    ),
    row(
        "docs/migrate-from-multus.md",
        "kubectl drain",
        Way::NotRun("needs Multus in a cluster: tests/node/multus_migration.rs runs these steps"),
    ),
    row(
        "docs/migrate-from-multus.md",
        "sudo weft-cni install",
        Way::NotRun("copies a program into /usr/local/bin: tests/net/import_multus.rs runs the import"),
    ),
    row("docs/migrate-from-whereabouts.md", "weft crds", Way::Kube("")),
    row("docs/migrate-from-whereabouts.md", "weft import whereabouts --apply", Way::Kube(WHEREABOUTS)),
    row(
        "docs/migrate-from-whereabouts.md",
        "kubectl -n kube-system delete daemonset",
        Way::Kube(WHEREABOUTS),
    ),
    row(
        "docs/migrate-from-whereabouts.md",
        "sudo /opt/cni/bin/weft-cni install",
        Way::Host("weft-cni install /opt/cni/bin"),
    ),
    row("docs/migrate-from-whereabouts.md", "weft ipam show", Way::Kube(WHEREABOUTS_IMPORTED)),
    row("docs/migrate-from-whereabouts.md", "weft import whereabouts", Way::Kube(WHEREABOUTS)),
    row(
        "docs/network-policy.md",
        "weft crds",
        Way::NotRun("needs nodes: tests/kube/kustomizations.rs applies the manifests"),
    ),
    row(
        "docs/neutron.md",
        "kubectl apply -k deploy/neutron",
        Way::NotRun("needs Kubernetes 1.30 and credentials: tests/neutron applies it"),
    ),
    row("docs/scale.md", "export WEFT", Way::NotRun("simulates a large cluster; a test runs a smaller one")),
    row(
        "docs/admission.md",
        "kubectl apply -k deploy/webhook",
        Way::NotRun("needs a cluster that runs pods: tests/kube/kustomizations.rs applies it"),
    ),
    row(
        "docs/admission.md",
        "kubectl annotate net-attach-def",
        Way::NotRun(
            "needs a running webhook: tests/kube/admission_webhook.rs annotates and deletes a network",
        ),
    ),
    row(
        "docs/admission.md",
        "kubectl delete validatingwebhookconfiguration",
        Way::NotRun("needs the webhook configurations of a cluster"),
    ),
    row(
        "docs/page.md",
        "weft controller --page",
        Way::NotRun("runs until it is stopped; tests/kube/page.rs starts it with these arguments"),
    ),
    row(
        "docs/page.md",
        "kubectl apply -k deploy/page",
        Way::NotRun("needs a cluster that runs pods: tests/kube/page.rs serves the page with these rights"),
    ),
    row("docs/plugins/weft-ipam.md", "kubectl patch ippool storage", Way::Kube(POOL)),
    row("docs/services.md", "kubectl apply -k deploy/services", Way::Kube("kubectl apply -k deploy/base")),
    row(
        "docs/services.md",
        "kubectl get endpointslices",
        Way::NotRun("looks at a Service of a cluster: tests/kube/services.rs makes it"),
    ),
    row(
        "docs/traces.md",
        "weft agent",
        Way::NotRun("runs until it is stopped: tests/kube/traces.rs runs it"),
    ),
    row("examples/README.md", "weft lint examples/", Way::Host("")),
];

/// Reads the console blocks in all documents for users, in file order.
///
/// # Panics
/// A document cannot be read.
#[must_use]
pub fn blocks() -> Vec<Block> {
    let root = workspace();
    let mut files = Vec::new();
    for directory in ["", "docs", "docs/guides", "docs/plugins", "docs/design", "deploy", "examples"] {
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

/// Finds a block's row.
#[must_use]
pub fn row_of(block: &Block) -> Option<&'static Row> {
    let begins = |row: &Row| block.commands.iter().any(|command| command.starts_with(row.command));
    ROWS.iter().find(|row| row.file == block.file && begins(row))
}

/// Returns the shell script that runs a block after the preparation, and stops at the first command that fails.
///
/// The project's programs and directories are found as in a checkout that was built. `sudo` just runs the program,
/// because a test is root on the pretend host.
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
