//! `weft install --thin`: what a node needs on which no agent runs: this very program beside the hands, which plans with
//! `weft plan --once`, and credentials for it.
//!
//! Rules:
//! - the credentials are those of the pod that installs, its ServiceAccount's: the token and the authority are copied into one
//!   file, for root alone, written beside and renamed, so nobody reads half of it;
//! - a token is replaced while it is used (the kubelet writes a new one before the old one ends), so `--follow` copies it
//!   anew each time;
//! - program and credentials are in directories of their own below those of the runtime, which reads no directories.
//!
//! Source: Kubernetes, «Accessing the API from a Pod», «Organizing cluster access using kubeconfig files».

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::json;

use super::root::Place;
use super::{Arguments, Places};
use cli_support::atomic_file::write;
use cli_support::failure::Failure;
use cli_support::privilege;
use node_support::weft_cni::is_copy;

/// Directory of its own, below that of the plugins and that of the networks.
pub(crate) const DIRECTORY: &str = "weft.d";
/// The program in it.
pub(crate) const PROGRAM: &str = "weft";
/// The credentials in it.
const CREDENTIALS: &str = "kubeconfig";
/// Where a pod finds its own API server.
const SERVER: [&str; 2] = ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"];
/// Largest token or authority, in bytes.
const SECRET_MAX: u64 = 1 << 20;
/// This program.
const OWN: &str = "/proc/self/exe";

/// Where program and credentials are.
#[derive(Clone, Debug)]
pub(super) struct Thin {
    program: Place,
    credentials: Place,
    account: PathBuf,
}

impl Thin {
    /// The places, if a node without an agent is installed.
    pub(super) fn of(arguments: &Arguments, places: &Places) -> Option<Thin> {
        arguments.thin.then(|| Thin {
            program: places.plugins.join(DIRECTORY).join(PROGRAM),
            credentials: credentials(places),
            account: arguments.service_account.clone(),
        })
    }

    /// Puts both there; what was done, a line each.
    ///
    /// # Errors
    /// This is no pod, or it has no ServiceAccount's token; or the file system's refusal.
    pub(super) fn install(&self) -> Result<Vec<String>, Failure> {
        let Thin { program, credentials, account } = self;
        let text = kubeconfig(account)?;
        let mut done = Vec::new();
        for (place, mode) in [(program, 0o755), (credentials, 0o700)] {
            let directory = place.here.parent().unwrap_or(&place.here);
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

    /// The credentials, as the node names the file.
    pub(super) fn kubeconfig(&self) -> &Path {
        &self.credentials.named
    }

    /// What it writes, and what it is made from.
    pub(super) fn files(&self) -> (Vec<PathBuf>, Vec<PathBuf>) {
        let Thin { program, credentials, account } = self;
        (
            vec![program.here.clone(), credentials.here.clone()],
            vec![account.join("token"), account.join("ca.crt")],
        )
    }

    /// Takes the credentials away, if there are any.
    pub(super) fn remove(places: &Places) -> Result<Option<String>, Failure> {
        let Place { named, here } = credentials(places);
        match fs::remove_file(&here) {
            Ok(()) => Ok(Some(format!("{}: removed", named.display()))),
            Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(None),
            Err(cause) => Err(privilege::refused(&format!("remove {}", here.display()), &cause)),
        }
    }
}

fn credentials(places: &Places) -> Place {
    places.networks.join(DIRECTORY).join(CREDENTIALS)
}

/// The pod's own credentials as a file that any client of Kubernetes reads.
fn kubeconfig(account: &Path) -> Result<String, Failure> {
    let cure = "weft install --thin runs in a pod with a ServiceAccount: deploy/thin";
    let read = |name: &str| {
        let path = account.join(name);
        secret(&path)
            .map_err(|cause| privilege::refused(&format!("read {}", path.display()), &cause).next(cure))
    };
    let [host, port] = SERVER.map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()));
    let (Some(host), Some(port)) = (host, port) else {
        let why = format!("{} and {} are not set: this is no pod", SERVER[0], SERVER[1]);
        return Err(Failure::new(why).next(cure));
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

fn secret(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let size = fs::File::open(path)?.take(SECRET_MAX + 1).read_to_string(&mut text)?;
    match () {
        () if text.trim().is_empty() => Err(io::Error::other("it is empty")),
        () if size as u64 > SECRET_MAX => Err(io::Error::other(format!("larger than {SECRET_MAX} bytes"))),
        () => Ok(text),
    }
}

/// Writes beside, onto the disk, and renames: calls that run keep the old one.
fn copy_own(place: &Path) -> io::Result<()> {
    let temporary = place.with_file_name(format!(".{PROGRAM}.new"));
    let written = fs::copy(OWN, &temporary)
        .and_then(|_| fs::File::open(&temporary)?.sync_all())
        .and_then(|()| fs::rename(&temporary, place));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}
