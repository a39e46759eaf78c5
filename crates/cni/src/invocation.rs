//! Validated plugin calls: one type for each verb, with only the parameters that the verb has.
//!
//! Source: SPEC 1.1.0 §2; libcni `pkg/skel` (S17, S18, S26, S32, K1).

use std::path::{Path, PathBuf};

use crate::config::Config;
use crate::environment::Environment;
use crate::error::Error;
use crate::fold;
use crate::name::{ContainerId, IfName};
use crate::version::Verb;

/// Identifies an attachment within one network (S26).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attachment {
    /// Container id.
    pub container: ContainerId,
    /// Interface name in the container.
    pub ifname: IfName,
}

/// Parts that every call has.
#[derive(Clone, Debug)]
pub struct Call {
    /// Configuration from stdin.
    pub config: Config,
    /// Variables as received, for calling delegates.
    pub environment: Environment,
}

impl Call {
    /// Returns `CNI_ARGS` as received.
    pub fn args(&self) -> &str {
        &self.environment.args
    }

    /// Returns the variables for calling a delegate with the same parameters (S30).
    pub fn delegate(&self, verb: Verb) -> Environment {
        self.environment.with(verb)
    }
}

/// ADD or CHECK call: the container exists.
#[derive(Clone, Debug)]
pub struct Attach {
    /// Container and interface.
    pub who: Attachment,
    /// Network namespace path.
    pub netns: PathBuf,
    /// Parts that every call has.
    pub call: Call,
}

/// DEL call: the container may no longer exist.
#[derive(Clone, Debug)]
pub struct Detach {
    /// Container and interface.
    pub who: Attachment,
    /// Network namespace path, if the runtime still knows it; the namespace itself may be gone.
    pub netns: Option<PathBuf>,
    /// Parts that every call has.
    pub call: Call,
}

impl Detach {
    /// Returns the network namespace path, if the namespace still exists.
    pub fn live_netns(&self) -> Option<&Path> {
        self.netns.as_deref().filter(|path| path.exists())
    }
}

/// GC call: remove all attachments to the network except the valid ones.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// Parts that every call has.
    pub call: Call,
}

/// Entry in `cni.dev/valid-attachments`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Deserialize, serde::Serialize)]
#[serde(default)]
pub struct ValidAttachment {
    /// Container id.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// Interface name.
    pub ifname: String,
}

/// Key for the list, as the specification's text spells it.
pub const VALID_ATTACHMENTS: &str = "cni.dev/valid-attachments";
/// Key for the list in the tag v1.1.0. Both keys are sent, and either one is read (trap 7).
pub const VALID_ATTACHMENTS_OLD: &str = "cni.dev/attachments";

impl Sweep {
    /// Returns the attachments to keep. `None` means that the caller sent no list, so nothing may be removed; an empty
    /// list means that no attachment is valid.
    ///
    /// # Errors
    /// Code 7: the list cannot be read, or an entry lacks container or interface.
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

/// Rejects an entry without container or interface, because GC would remove the attachment that it stands for.
fn whole(list: Vec<ValidAttachment>, key: &str) -> Result<Vec<ValidAttachment>, Error> {
    match list.iter().position(|one| one.container_id.is_empty() || one.ifname.is_empty()) {
        None => Ok(list),
        Some(at) => {
            let ValidAttachment { container_id, ifname } = &list[at];
            let text = format!("containerID {container_id:?}, ifname {ifname:?}");
            Err(Error::key(format_args!("{key}[{at}]"), text, "an attachment needs both"))
        }
    }
}

/// STATUS call.
#[derive(Clone, Debug)]
pub struct Probe {
    /// Parts that every call has.
    pub call: Call,
}
