//! `weft install --thin`: installs `weft` and the credentials on a node without an agent.
//!
//! weft-cni runs this program for `weft plan --once`.
//!
//! - The credentials are those that the installing pod's ServiceAccount has. Token and certificate authority
//!   are copied into one file with mode 0600, which is written under a temporary name and renamed.
//! - The kubelet replaces the token before it expires, so `--follow` copies it after each change.
//! - Program and credentials are in subdirectories below the runtime's directories, because the runtime reads
//!   no subdirectories.
//!
//! Source: Kubernetes, «Accessing the API from a Pod», «Organizing cluster access using kubeconfig files».

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::json;

use super::node_path::NodePath;
use super::{Arguments, InstallPaths};
use cli_support::atomic_file::{self, write};
use cli_support::failure::Failure;
use cli_support::privilege;
use node_support::weft_cni::is_copy;

/// Subdirectory in the plugin directory and in the CNI configuration directory.
pub(crate) const DIRECTORY: &str = "weft.d";
/// Program file name.
pub(crate) const PROGRAM: &str = "weft";
/// Credentials file name.
const CREDENTIALS: &str = "kubeconfig";
/// Environment variables with the API server's address in a pod.
const SERVER: [&str; 2] = ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"];
/// Maximum size for a token or certificate authority, in bytes.
const SECRET_MAX: u64 = 1 << 20;
/// This program.
const OWN: &str = "/proc/self/exe";

/// Where program and credentials go.
#[derive(Clone, Debug)]
pub(super) struct Thin {
    program: NodePath,
    credentials: NodePath,
    account: PathBuf,
}

impl Thin {
    /// Returns the paths if `--thin` is given.
    pub(super) fn of(arguments: &Arguments, paths: &InstallPaths) -> Option<Thin> {
        arguments.thin.then(|| Thin {
            program: paths.plugins.join(DIRECTORY).join(PROGRAM),
            credentials: credentials(paths),
            account: arguments.service_account.clone(),
        })
    }

    /// Installs program and credentials. Returns a line for each change.
    ///
    /// # Errors
    /// The command does not run in a pod, the pod has no ServiceAccount token, or the file system refuses a write.
    pub(super) fn install(&self) -> Result<Vec<String>, Failure> {
        let Thin { program, credentials, account } = self;
        let text = kubeconfig(account)?;
        let mut done = Vec::new();
        for (path, mode) in [(program, 0o755), (credentials, 0o700)] {
            let directory = path.here.parent().unwrap_or(&path.here);
            let made = DirBuilder::new().recursive(true).mode(mode).create(directory);
            made.map_err(|cause| privilege::refused(&format!("create {}", directory.display()), &cause))?;
        }
        if !is_copy(Path::new(OWN), &program.here) {
            let copied = copy_own(&program.here);
            copied
                .map_err(|cause| privilege::refused(&format!("write {}", program.here.display()), &cause))?;
            done.push(format!("{}: installed", program.named.display()));
        }
        if fs::read_to_string(&credentials.here).ok().as_ref() != Some(&text) {
            let written = write(&credentials.here, &text);
            written.map_err(|cause| {
                privilege::refused(&format!("write {}", credentials.here.display()), &cause)
            })?;
            done.push(format!("{}: written", credentials.named.display()));
        }
        Ok(done)
    }

    /// Returns the path to the credentials on the node.
    pub(super) fn kubeconfig(&self) -> &Path {
        &self.credentials.named
    }

    /// Returns the written files and the files that they are made from.
    pub(super) fn files(&self) -> (Vec<PathBuf>, Vec<PathBuf>) {
        let Thin { program, credentials, account } = self;
        (
            vec![program.here.clone(), credentials.here.clone()],
            vec![account.join("token"), account.join("ca.crt")],
        )
    }

    /// Removes the credentials, if there are any.
    pub(super) fn remove(paths: &InstallPaths) -> Result<Option<String>, Failure> {
        let NodePath { named, here } = credentials(paths);
        match fs::remove_file(&here) {
            Ok(()) => Ok(Some(format!("{}: removed", named.display()))),
            Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(None),
            Err(cause) => Err(privilege::refused(&format!("remove {}", here.display()), &cause)),
        }
    }
}

fn credentials(paths: &InstallPaths) -> NodePath {
    paths.networks.join(DIRECTORY).join(CREDENTIALS)
}

/// Returns a kubeconfig with this pod's ServiceAccount.
fn kubeconfig(account: &Path) -> Result<String, Failure> {
    let hint = "run weft install --thin in a pod with a ServiceAccount: see deploy/thin";
    let read = |name: &str| {
        let path = account.join(name);
        read_secret(&path)
            .map_err(|cause| privilege::refused(&format!("read {}", path.display()), &cause).next(hint))
    };
    let [host, port] = SERVER.map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()));
    let (Some(host), Some(port)) = (host, port) else {
        let why = format!("{} and {} are not set: not running in a pod", SERVER[0], SERVER[1]);
        return Err(Failure::new(why).next(hint));
    };
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    let (token, authority) = (read("token")?, read("ca.crt")?);
    let document = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "weft",
        "contexts": [{ "name": "weft", "context": { "cluster": "weft", "user": "weft" } }],
        "clusters": [{ "name": "weft", "cluster": {
            "server": format!("https://{host}:{port}"),
            "certificate-authority-data": BASE64.encode(authority),
        } }],
        "users": [{ "name": "weft", "user": { "token": token.trim() } }],
    });
    Ok(format!("{document:#}\n"))
}

fn read_secret(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let size = fs::File::open(path)?.take(SECRET_MAX + 1).read_to_string(&mut text)?;
    match () {
        () if text.trim().is_empty() => Err(io::Error::other("empty file")),
        () if size as u64 > SECRET_MAX => Err(io::Error::other(format!("larger than {SECRET_MAX} bytes"))),
        () => Ok(text),
    }
}

/// Copies this program under a temporary name, syncs it and renames it. Running processes keep the previous file.
pub(super) fn copy_own(path: &Path) -> io::Result<()> {
    let temporary = path.with_file_name(format!(".{PROGRAM}.new"));
    let written = atomic_file::create_new(&temporary, 0o700)
        .and_then(|mut file| {
            let mut own = fs::File::open(OWN)?;
            io::copy(&mut own, &mut file)?;
            file.set_permissions(own.metadata()?.permissions())?;
            file.sync_all()
        })
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}
