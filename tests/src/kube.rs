//! Real Kubernetes API: etcd and kube-apiserver on a test machine; see `lanes/kube/prepare`.
//!
//! Data is in memory. Ports are on the pretend machine's loopback link, so they can be constant and never conflict.
//! Access is controlled (Node, RBAC), so every client needs an identity. If a pool of servers runs (`api_pool.rs`), a
//! test uses one of those servers instead of starting one.
//!
//! Source: kube-apiserver(8) of 1.20 and 1.36.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::{Finished, workspace};

use crate::api_pool::PooledServer;
use crate::machine::{CONFIGURATIONS, Machine, until};
use crate::parts::{parts, text};

/// API server URL.
pub const SERVER: &str = "https://127.0.0.1:6443";
/// Range for Service addresses.
const SERVICES: &str = "10.96.0.0/16";
/// Panic message when a test stops or starts a server from the pool.
const POOLED: &str = "this API server belongs to the pool: a test that stops it needs its own, `Kube::own`";
/// APIs that 1.20 serves if only weft and the server itself use it. Publishing the OpenAPI documents for all others
/// takes more than a third of the start time.
const SERVED: &[&str] = &[
    "v1",
    "admissionregistration.k8s.io/v1",
    "apiextensions.k8s.io/v1",
    "apiregistration.k8s.io/v1",
    "apps/v1",
    "authentication.k8s.io/v1",
    "authorization.k8s.io/v1",
    "coordination.k8s.io/v1",
    "discovery.k8s.io/v1beta1",
    "events.k8s.io/v1",
    "flowcontrol.apiserver.k8s.io/v1beta1",
    "networking.k8s.io/v1",
    "node.k8s.io/v1",
    "policy/v1beta1",
    "rbac.authorization.k8s.io/v1",
    "scheduling.k8s.io/v1",
    "storage.k8s.io/v1",
];
/// APIs that 1.20 need not serve to controllers, because newer versions of them are served.
const NOT_SERVED: &[&str] = &[
    "apiextensions.k8s.io/v1beta1",
    "authentication.k8s.io/v1beta1",
    "authorization.k8s.io/v1beta1",
    "autoscaling/v1",
    "autoscaling/v2beta1",
    "autoscaling/v2beta2",
    "batch/v1",
    "batch/v1beta1",
    "certificates.k8s.io/v1beta1",
    "coordination.k8s.io/v1beta1",
    "extensions/v1beta1",
    "networking.k8s.io/v1beta1",
    "node.k8s.io/v1beta1",
    "rbac.authorization.k8s.io/v1beta1",
    "scheduling.k8s.io/v1beta1",
    "storage.k8s.io/v1beta1",
];

/// Reads manifests in this tree and joins them for one `kubectl apply`; paths are relative to the workspace.
///
/// # Panics
/// A manifest cannot be read.
#[must_use]
#[track_caller]
pub fn files(paths: &[&str]) -> String {
    let text = |path: &&str| fs::read_to_string(workspace().join(path)).expect("a file of the project");
    paths.iter().map(text).collect::<Vec<_>>().join("\n---\n")
}

/// Returns a namespace manifest, to append to others.
#[must_use]
pub fn namespace(name: &str) -> String {
    format!("\n---\n{}", json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } }))
}

/// Whether pods need a service account, which a controller has to create.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accounts {
    /// Pods get the namespace's default account.
    Required,
    /// No controller creates accounts.
    Absent,
}

/// Returns the minor version of Kubernetes: 20 for 1.20; `None`, and the test is skipped, if the lane was not prepared.
///
/// # Panics
/// If `lanes/kube/prepare` wrote no version.
#[must_use]
#[track_caller]
pub fn minor() -> Option<u32> {
    Some(minor_of(&parts("kube")?))
}

#[track_caller]
fn minor_of(parts: &Path) -> u32 {
    let version = fs::read_to_string(parts.join("version")).expect("the version that `prepare` wrote");
    version.split('.').nth(1).and_then(|minor| minor.parse().ok()).expect("Kubernetes v1.MINOR.PATCH")
}

/// Kubernetes API server with etcd.
#[derive(Debug)]
pub struct Kube {
    machine: Arc<Machine>,
    parts: PathBuf,
    /// Directory with the release's programs (`bin`) and version.
    release: PathBuf,
    accounts: Accounts,
    // Must be last: the server is returned to the pool after all processes on the machine have ended.
    pooled: Option<PooledServer>,
}

// === impl Kube ===

impl Kube {
    /// Returns an API server that the test must neither stop nor inspect: one from the pool if it runs, otherwise an
    /// own one. If the lane was not prepared, the test is skipped and the result is `None`.
    ///
    /// # Panics
    /// The server does not start.
    #[must_use]
    #[track_caller]
    pub fn new(machine: Arc<Machine>) -> Option<Kube> {
        let mut kube = Kube::prepare(machine, Accounts::Absent)?;
        kube.pooled = PooledServer::take(&kube.parts, &kube.machine);
        if kube.pooled.is_none() {
            kube.launch();
        }
        kube.wait();
        Some(kube)
    }

    /// Starts an own server, which the test may stop, start again and inspect.
    ///
    /// # Panics
    /// The server does not start.
    #[must_use]
    #[track_caller]
    pub fn own(machine: Arc<Machine>) -> Option<Kube> {
        let kube = Kube::prepare(machine, Accounts::Absent)?;
        kube.launch();
        kube.wait();
        Some(kube)
    }

    /// Prepares an own server without starting any process.
    #[must_use]
    #[track_caller]
    pub fn prepare(machine: Arc<Machine>, accounts: Accounts) -> Option<Kube> {
        let parts = parts("kube")?;
        let kube = Kube { machine, release: parts.clone(), parts, accounts, pooled: None };
        kube.kubeconfig_for_certificate("admin");
        Some(kube)
    }

    /// Starts an own server with the oldest supported release, to be upgraded. If the lane runs on that release or has no
    /// other, the test is skipped and the result is `None`.
    ///
    /// # Panics
    /// The server does not start.
    #[must_use]
    #[track_caller]
    pub fn oldest(machine: Arc<Machine>) -> Option<Kube> {
        let mut kube = Kube::prepare(machine, Accounts::Absent)?;
        let oldest = kube.parts.join("oldest");
        if !oldest.join("bin/kube-apiserver").exists() || minor_of(&oldest) == kube.minor() {
            let why =
                "needs two releases: KUBEBUILDER_ASSETS, and the oldest one that `lanes/kube/build` compiles";
            testkit::record_skip(&testkit::test_name(), why);
            return None;
        }
        kube.release = oldest;
        kube.launch();
        kube.wait();
        Some(kube)
    }

    /// Stops the server, and starts the lane's release with the same data.
    ///
    /// # Panics
    /// The server does not start.
    #[track_caller]
    pub fn upgrade(&mut self) {
        // At SIGTERM, 1.20 waits for a minute until its watches end.
        self.stop("kube-apiserver", "KILL");
        self.stop("etcd", "TERM");
        self.release = self.parts.clone();
        self.launch();
        self.wait();
    }

    /// Returns the same server for another machine, where it has the same address.
    #[must_use]
    #[track_caller]
    pub fn reached_from(&self, machine: &Arc<Machine>) -> Kube {
        let pooled = Some(PooledServer::of(&self.machine, machine));
        let kube = Kube {
            machine: Arc::clone(machine),
            parts: self.parts.clone(),
            release: self.release.clone(),
            accounts: self.accounts,
            pooled,
        };
        kube.kubeconfig_for_certificate("admin");
        kube
    }

    /// Returns the machine on which the server runs.
    #[must_use]
    pub fn machine(&self) -> Arc<Machine> {
        Arc::clone(&self.machine)
    }

    /// Writes a kubeconfig that uses the client certificate with this name; returns the path.
    #[track_caller]
    pub fn kubeconfig_for_certificate(&self, name: &str) -> String {
        let file = |end: &str| self.pki(&format!("{name}.{end}"));
        self.configuration(name, &json!({ "client-certificate": file("crt"), "client-key": file("key") }))
    }

    /// Starts etcd and the API server if they do not run.
    ///
    /// # Panics
    /// The server belongs to the pool.
    #[track_caller]
    pub fn launch(&self) {
        assert!(self.pooled.is_none(), "{POOLED}");
        for (program, launch) in
            [("etcd", Kube::launch_etcd as fn(&Kube)), ("kube-apiserver", Kube::launch_server)]
        {
            if !self.machine.is_running(program) {
                launch(self);
            }
        }
    }

    /// Waits until the server is ready.
    #[track_caller]
    pub fn wait(&self) {
        let look = || (self.ask(&["/readyz"]).code == Some(0)).then_some(());
        if self.pooled.is_some() {
            until("the API server of the pool is ready", look);
            return;
        }
        self.machine.wait("kube-apiserver", "is ready", || {
            // Polling is work, too.
            sleep(Duration::from_millis(100));
            look()
        });
    }

    /// Sends GET requests for these paths as cluster administrator, one after the other, until one fails.
    #[must_use]
    #[track_caller]
    pub fn ask(&self, paths: &[&str]) -> Finished {
        let (ca, certificate, key) = (self.pki("ca.crt"), self.pki("admin.crt"), self.pki("admin.key"));
        let words = ["curl", "-sf", "--fail-early", "--cacert", &ca, "--cert", &certificate, "--key", &key];
        let addresses: Vec<String> = paths.iter().map(|path| format!("{SERVER}{path}")).collect();
        self.machine.attempt(words.into_iter().chain(addresses.iter().map(String::as_str)))
    }

    /// Stops etcd or the API server with a signal.
    #[track_caller]
    pub fn stop(&self, program: &str, signal: &str) {
        assert!(self.pooled.is_none(), "{POOLED}");
        self.machine.stop(program, signal);
    }

    /// Starts etcd.
    #[track_caller]
    pub fn launch_etcd(&self) {
        let (clients, peers) = ("http://127.0.0.1:2379", "http://127.0.0.1:2380");
        let cluster = format!("one={peers}");
        let words = [
            &self.program("etcd"),
            "--name=one",
            "--data-dir=/var/lib/etcd",
            &format!("--listen-client-urls={clients}"),
            &format!("--advertise-client-urls={clients}"),
            &format!("--listen-peer-urls={peers}"),
            &format!("--initial-advertise-peer-urls={peers}"),
            &format!("--initial-cluster={cluster}"),
        ];
        self.machine.start("etcd", words);
    }

    /// Starts the API server.
    #[track_caller]
    pub fn launch_server(&self) {
        self.launch_server_with(&[]);
    }

    /// Starts the API server with additional arguments.
    #[track_caller]
    pub fn launch_server_with(&self, further: &[&str]) {
        let pki = |name| self.pki(name);
        let mut words = vec![
            self.program("kube-apiserver"),
            "--etcd-servers=http://127.0.0.1:2379".to_owned(),
            "--bind-address=0.0.0.0".to_owned(),
            "--advertise-address=192.0.2.1".to_owned(),
            "--secure-port=6443".to_owned(),
            "--endpoint-reconciler-type=none".to_owned(),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            "--allow-privileged=true".to_owned(),
            "--profiling=false".to_owned(),
            format!("--service-cluster-ip-range={SERVICES}"),
            format!("--client-ca-file={}", pki("ca.crt")),
            format!("--tls-cert-file={}", pki("server.crt")),
            format!("--tls-private-key-file={}", pki("server.key")),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={}", pki("accounts.pub")),
            format!("--service-account-signing-key-file={}", pki("accounts.key")),
            format!("--kubelet-client-certificate={}", pki("admin.crt")),
            format!("--kubelet-client-key={}", pki("admin.key")),
            format!("--kubelet-certificate-authority={}", pki("ca.crt")),
            "--kubelet-preferred-address-types=InternalIP".to_owned(),
        ];
        if self.minor() == 20 {
            words.push(match self.accounts {
                Accounts::Absent => format!("--runtime-config=api/all=false,{}=true", SERVED.join("=true,")),
                Accounts::Required => format!("--runtime-config={}=false", NOT_SERVED.join("=false,")),
            });
        }
        if self.accounts == Accounts::Absent {
            words.push("--disable-admission-plugins=ServiceAccount".to_owned());
        }
        self.machine.start("kube-apiserver", words.iter().map(String::as_str).chain(further.iter().copied()));
    }

    /// Returns the path of a program in the lane.
    #[must_use]
    pub fn program(&self, name: &str) -> String {
        text(&self.release.join("bin").join(name)).to_owned()
    }

    /// Returns the directory with a kubectl that supports kustomization components.
    #[must_use]
    pub fn newer_kubectl(&self) -> String {
        text(&self.parts.join("kubectl/usr/bin")).to_owned()
    }

    /// Renders a kustomization in `deploy/`. Fails on deprecated fields, which kubectl warns about.
    #[must_use]
    #[track_caller]
    pub fn kustomize(&self, directory: &str) -> String {
        let directory = workspace().join("deploy").join(directory);
        let kubectl = self.machine.command(&format!("{}/kubectl", self.newer_kubectl()));
        let finished =
            kubectl.args(["kustomize", text(&directory)]).deadline(crate::machine::TIMEOUT).finish();
        let finished = finished.success();
        assert_eq!(finished.stderr, "", "{}", directory.display());
        finished.stdout
    }

    /// Returns Kubernetes' minor version, for example 20 for 1.20.
    #[must_use]
    #[track_caller]
    pub fn minor(&self) -> u32 {
        minor_of(&self.release)
    }

    /// Returns the path of a certificate or key.
    #[must_use]
    pub fn pki(&self, name: &str) -> String {
        text(&self.parts.join("pki").join(name)).to_owned()
    }

    /// Writes a kubeconfig with these credentials; returns the path.
    #[track_caller]
    pub fn configuration(&self, name: &str, user: &Value) -> String {
        let path = format!("{CONFIGURATIONS}/{name}");
        let document = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "it",
            "contexts": [{ "name": "it", "context": { "cluster": "it", "user": "it" } }],
            "clusters": [{ "name": "it", "cluster": { "server": SERVER, "certificate-authority": self.pki("ca.crt") } }],
            "users": [{ "name": "it", "user": user }],
        });
        self.machine.write(&path, document.to_string());
        path
    }

    /// Returns the path of the cluster administrator's kubeconfig.
    #[must_use]
    pub fn admin(&self) -> String {
        format!("{CONFIGURATIONS}/admin")
    }

    /// Creates a service account unless it exists, and a kubeconfig with the account's token; returns the path.
    #[track_caller]
    pub fn service_account(&self, namespace: &str, name: &str) -> String {
        let token = self.requested_token(namespace, name).unwrap_or_else(|_| {
            let account = json!({
                "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": name, "namespace": namespace },
            });
            self.apply(&account.to_string());
            self.token(namespace, name)
        });
        self.configuration(&format!("{namespace}-{name}"), &json!({ "token": token }))
    }

    /// Requests a service account token.
    #[must_use]
    #[track_caller]
    pub fn token(&self, namespace: &str, name: &str) -> String {
        self.requested_token(namespace, name).unwrap_or_else(|refusal| panic!("no token: {refusal}"))
    }

    fn requested_token(&self, namespace: &str, name: &str) -> Result<String, Finished> {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token");
        let request = r#"{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}"#;
        let finished = self.attempt(["create", "--raw", &path, "-f", "-"], request);
        let token = |answer: Value| answer["status"]["token"].as_str().expect("a token").to_owned();
        if finished.code == Some(0) { Ok(token(finished.json())) } else { Err(finished) }
    }

    /// Runs `kubectl` with these arguments and this input as cluster administrator.
    #[track_caller]
    pub fn attempt<'a>(&self, words: impl IntoIterator<Item = &'a str>, stdin: &str) -> Finished {
        self.attempt_as(&self.admin(), words, stdin)
    }

    /// Runs `kubectl` with another kubeconfig.
    #[track_caller]
    pub fn attempt_as<'a>(
        &self,
        configuration: &str,
        words: impl IntoIterator<Item = &'a str>,
        stdin: &str,
    ) -> Finished {
        let kubectl = self.machine.command(&self.program("kubectl"));
        // HOME contains kubectl's discovery cache. kubectl exits before garbage collection matters.
        let kubectl = kubectl.env("HOME", CONFIGURATIONS).env("KUBECONFIG", configuration).env("GOGC", "off");
        kubectl.args(words).stdin(stdin).deadline(crate::machine::TIMEOUT).finish()
    }

    /// Runs `kubectl`, which must succeed; returns the standard output.
    #[track_caller]
    pub fn kubectl<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> String {
        self.attempt(words, "").success().stdout
    }

    /// Runs `kubectl get` with these arguments; returns JSON.
    #[track_caller]
    pub fn json<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> Value {
        let words = ["get", "-o", "json"].into_iter().chain(words);
        self.attempt(words, "").success().json()
    }

    /// Waits until the server serves all custom resources.
    #[track_caller]
    pub fn wait_until_served(&self) {
        self.kubectl(["wait", "--for=condition=Established", "crd", "--all", "--timeout=30s"]);
    }

    /// Applies manifests, which the server must accept. kubectl's validation is off, because downloading the OpenAPI
    /// document would take most of the time.
    #[track_caller]
    pub fn apply(&self, manifests: &str) -> String {
        let words = ["apply", "--validate=false", "--openapi-patch=false", "-f", "-"];
        self.attempt(words, manifests).success().stdout
    }
}
