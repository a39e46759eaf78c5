//! What a plugin was asked to do, checked: one variant a verb, and what a verb lacks its variant lacks.
//!
//! Source: SPEC 1.1.0 §2; libcni `pkg/skel` (S17, S18, S26, S32, K1).

use std::path::{Path, PathBuf};

use crate::config::Config;
use crate::environment::Environment;
use crate::error::Error;
use crate::fold;
use crate::name::{ContainerId, IfName};
use crate::version::Verb;

/// Who is attached: the identity of an attachment within one network (S26).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attachment {
    /// The container.
    pub container: ContainerId,
    /// The interface inside it.
    pub ifname: IfName,
}

/// What every call carries.
#[derive(Clone, Debug)]
pub struct Call {
    /// The configuration from stdin.
    pub config: Config,
    /// The variables as given, to call delegates with.
    pub environment: Environment,
}

impl Call {
    /// `CNI_ARGS` as given.
    pub fn args(&self) -> &str {
        &self.environment.args
    }

    /// The variables for calling a delegate with the same parameters (S30).
    pub fn delegate(&self, verb: Verb) -> Environment {
        self.environment.with(verb)
    }
}

/// ADD and CHECK: a container that is there.
#[derive(Clone, Debug)]
pub struct Attach {
    /// Who.
    pub who: Attachment,
    /// The network namespace.
    pub netns: PathBuf,
    /// The rest.
    pub call: Call,
}

/// DEL: a container that may be gone.
#[derive(Clone, Debug)]
pub struct Detach {
    /// Who.
    pub who: Attachment,
    /// The network namespace, if the runtime still knows one; the path may be gone.
    pub netns: Option<PathBuf>,
    /// The rest.
    pub call: Call,
}

impl Detach {
    /// The namespace's path, if there still is something at it.
    pub fn live_netns(&self) -> Option<&Path> {
        self.netns.as_deref().filter(|path| path.exists())
    }
}

/// GC: everything this network ever had, less what is valid.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// The rest.
    pub call: Call,
}

/// One entry of `cni.dev/valid-attachments`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Deserialize, serde::Serialize)]
#[serde(default)]
pub struct ValidAttachment {
    /// The container id.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// The interface name.
    pub ifname: String,
}

/// The key of the specification's text.
pub const VALID_ATTACHMENTS: &str = "cni.dev/valid-attachments";
/// The key of the tag v1.1.0; both are sent, either is read (trap 7).
pub const VALID_ATTACHMENTS_OLD: &str = "cni.dev/attachments";

impl Sweep {
    /// The attachments that must stay, or `None` if the caller named no list at all: then nothing may
    /// be dropped. An empty list means that nothing is valid.
    ///
    /// # Errors
    /// Code 7 for a list that cannot be read, or with an entry that names half an attachment.
    pub fn valid(&self) -> Result<Option<Vec<ValidAttachment>>, Error> {
        let Some(map) = self.call.config.value().as_object() else { return Ok(None) };
        for key in [VALID_ATTACHMENTS, VALID_ATTACHMENTS_OLD] {
            match map.get(key) {
                None | Some(serde_json::Value::Null) => {}
                Some(list) => return whole(fold::from_value(list, key)?, key).map(Some),
            }
        }
        Ok(None)
    }
}

/// Of which each entry names container and interface: what is named by half would be dropped for the other half.
fn whole(list: Vec<ValidAttachment>, key: &str) -> Result<Vec<ValidAttachment>, Error> {
    match list.iter().position(|one| one.container_id.is_empty() || one.ifname.is_empty()) {
        None => Ok(list),
        Some(at) => {
            let ValidAttachment { container_id, ifname } = &list[at];
            let text = format!("containerID {container_id:?}, ifname {ifname:?}");
            Err(Error::key(format_args!("{key}[{at}]"), text, "an attachment has both"))
        }
    }
}

/// STATUS.
#[derive(Clone, Debug)]
pub struct Probe {
    /// The rest.
    pub call: Call,
}
