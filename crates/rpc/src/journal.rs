//! Journal entry format: the plan for one sandbox, and the results of executing it.
//!
//! `weft-cni` writes the journal; the node agent and the command `weft` read it. An entry is an [`Entry`] as planned,
//! followed by one [`Progress`] value for each step of the execution. Format, versions and limits are in
//! `docs/design/journal.md`.

mod call;
mod programs;
mod unchecked;

pub use programs::{PluginProgram, ProgramFile, Programs};
pub use unchecked::{Unchecked, fails_check};

use std::collections::BTreeSet;

use cni::error::{Error, code};
use cni::name::{ContainerId, IfName, PluginType};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use npwg::plan::{Delegate, Held, Plan, Role};
use npwg::status;

/// Entry version that this release writes. Older versions are read, newer ones are refused.
pub const VERSION: u32 = 1;

/// Default journal directory (`cniDir`).
pub const DIRECTORY: &str = "/var/lib/weft";

/// Subdirectory with the entries, one file each: `<container id>.json`.
pub const ENTRIES: &str = "sandboxes";

/// Maximum size of an entry, in bytes.
pub const ENTRY_MAX: u64 = 16 << 20;

/// Entry for one sandbox.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// Version, [`VERSION`].
    pub version: u32,
    /// Network name in the meta-plugin's configuration, which identifies the configuration that made the attachments.
    pub network: String,
    /// Container id.
    pub container_id: ContainerId,
    /// Network namespace path, as the runtime passed it.
    pub netns: String,
    /// Identity of that namespace and boot, because the path may later lead to another one. Empty if unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Interface name that the runtime requested.
    pub ifname: IfName,
    /// `CNI_ARGS` from the runtime.
    pub args: String,
    /// `CNI_PATH` that was used, `binDir` included.
    pub path: String,
    /// Sandbox plan.
    pub plan: Plan,
    /// State of each delegate in the plan, in the same order.
    pub attachments: Vec<Attachment>,
    /// Network status, after every network is attached.
    #[serde(default)]
    pub network_status: Vec<status::Entry>,
    /// Whether the whole plan was executed.
    #[serde(default)]
    pub complete: bool,
    /// Whether a complete sandbox is being changed; an interrupted change may be continued.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub changing: bool,
    /// Whether a DEL wrote the entry because that of the ADD was lost: every planned network may be attached.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replaced: bool,
}

/// State of one delegate.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attachment {
    /// State.
    pub state: State,
    /// Result in effect, in the version of the delegate's configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Box<RawValue>>,
    /// Interface in the sandbox; absent if ADD created none, and while DEL removes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<AttachedLink>,
    /// Network policy rules; absent without policies, and in entries from earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rules: Option<PolicyRules>,
    /// Program of each plugin that the ADD calls; empty if unknown. DEL, CHECK and GC use the same programs.
    #[serde(default, skip_serializing_if = "Programs::is_empty")]
    pub programs: Programs,
    /// Duration of the ADD, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub microseconds: Option<u64>,
    /// Plugins that a failed ADD did not reach, or whose programs the kernel refused to execute. If DEL fails for them,
    /// there is nothing to remove.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub never_ran: BTreeSet<PluginType>,
    /// Error of the last DEL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Error>,
    /// Whether a network policy update has begun but not ended: the kernel has the rules for the delegate's policy or
    /// older ones. A policy without isolated directions then means that the rules must be removed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub policy_pending: bool,
    /// Whether the ADD has not begun, as far as the entry shows ([`Entry::note_never_begun`]).
    #[serde(skip)]
    pub never_begun: bool,
}

/// Interface of an attachment, by properties that no process in the sandbox can change. Such a process can create
/// another link with the same properties only after it has moved the interface to another namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AttachedLink {
    /// Index in the sandbox.
    pub index: u32,
    /// Kind, the driver's name; empty for hardware.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kind: String,
}

/// Kernel rules for an attachment's network policies; ADD chooses the place once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyRules {
    /// Namespace and family of the table.
    pub place: RulePlace,
    /// Interface that the rules are about.
    pub link: String,
    /// Part of chain and set names that identifies the attachment.
    pub id: String,
    /// Names of the peers, as in the policies, whose rules keep a set for IPv6 although they have no IPv6 address now.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub ipv6_peers: BTreeSet<String>,
}

/// Namespace and family of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RulePlace {
    /// Host, family inet: at a host end that routes.
    Host,
    /// Host, family bridge: at a port of a bridge.
    Bridge,
    /// Pod, family inet.
    Pod,
}

/// State of an attachment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum State {
    /// Planned; it is unknown whether the ADD has begun.
    #[default]
    Planned,
    /// Attached.
    Attached,
    /// Detached.
    Detached,
}

impl State {
    /// Returns the state as a word for users.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Planned => "planned",
            State::Attached => "attached",
            State::Detached => "detached",
        }
    }
}

/// Value that is appended to an entry; `A` and `S` are borrowed to write and owned to read.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Progress<A = Attachment, S = Vec<status::Entry>> {
    /// One attachment changed.
    Attachment {
        /// Index in the plan.
        index: usize,
        /// New state.
        attachment: A,
    },
    /// The whole plan was executed.
    Complete {
        /// Network status of the pod.
        network_status: S,
    },
}

impl Entry {
    /// Returns the networks that the pod selected and that are attached: a new plan keeps names and devices for them.
    pub fn held(&self) -> Vec<Held> {
        let known = self.plan.delegates.iter().zip(&self.attachments);
        known
            .filter(|(delegate, known)| delegate.role == Role::Selected && known.state == State::Attached)
            .map(|(delegate, _)| Held {
                network: delegate.network.clone(),
                ifname: delegate.ifname.clone(),
                device: delegate.device(),
            })
            .collect()
    }

    /// Whether the ADD that wrote the entry has not ended: it was killed, it crashed or it is running.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        let is_open = |known: &Attachment| known.state != State::Detached && known.failure.is_none();
        !self.complete && !self.changing && self.attachments.iter().any(is_open)
    }

    /// Notes the attachments that an interrupted ADD has not begun, given the id of this boot.
    ///
    /// An ADD records each attachment before it begins the next one, so it has not begun those after the first one that
    /// is only planned. After a power loss records may be missing, so an entry from another boot proves nothing. The
    /// same holds for a change, and for an entry whose DEL has failed.
    pub fn note_never_begun(&mut self, boot: &str) {
        let is_of_boot = self.namespace.strip_prefix(boot).is_some_and(|rest| rest.starts_with('/'));
        if self.complete || self.changing || self.replaced || boot.is_empty() || !is_of_boot {
            return;
        }
        let is_planned = |known: &Attachment| known.state == State::Planned;
        let first = self.attachments.iter().position(is_planned);
        for known in self.attachments.iter_mut().skip(first.map_or(usize::MAX, |first| first + 1)) {
            known.never_begun = is_planned(known) && known.failure.is_none();
        }
    }

    /// Returns the programs of a delegate's plugins; none if they are unknown.
    pub fn programs(&self, delegate: &Delegate) -> Programs {
        let is_same = |known: &Delegate| {
            (&known.network, &known.ifname, &known.config, &known.args, &known.asked)
                == (&delegate.network, &delegate.ifname, &delegate.config, &delegate.args, &delegate.asked)
        };
        let place = self.plan.delegates.iter().position(is_same);
        place
            .and_then(|place| self.attachments.get(place))
            .map(|known| known.programs.clone())
            .unwrap_or_default()
    }

    /// Returns the entry with all progress as JSON.
    ///
    /// # Errors
    /// Code 999 (internal): the entry has no JSON form.
    pub fn value(&self) -> Result<Vec<u8>, Error> {
        encoded(self)
    }

    /// Returns the states of the attachments at these indices as progress values.
    ///
    /// # Errors
    /// As for [`Entry::value`].
    pub fn attachments_at(&self, places: &[usize]) -> Result<Vec<u8>, Error> {
        let mut values = Vec::new();
        for (index, attachment) in self.attachments.iter().enumerate() {
            if places.contains(&index) {
                let progress: Progress<_, ()> = Progress::Attachment { index, attachment };
                values.extend(encoded(&progress)?);
            }
        }
        Ok(values)
    }

    /// Returns the progress value of a completed plan.
    ///
    /// # Errors
    /// As for [`Entry::value`].
    pub fn completion(&self) -> Result<Vec<u8>, Error> {
        encoded(&Progress::<(), _>::Complete { network_status: &self.network_status })
    }

    /// Whether these bytes are an entry of a newer release, which that release can read.
    pub fn is_newer(bytes: &[u8]) -> bool {
        let first = serde_json::Deserializer::from_slice(bytes).into_iter::<Head>().next();
        first.is_some_and(|head| head.is_ok_and(|head| head.version > VERSION))
    }

    /// Reads an entry and the progress values after it.
    ///
    /// # Errors
    /// Code 6: not an entry, or one of a newer version; the details name the next step.
    pub fn read(bytes: &[u8]) -> Result<Entry, Error> {
        const CURE: &str = "see docs/operations.md, «A pod is not deleted»";
        let fault = |why: String| Error::new(code::DECODING_FAILURE, why).details(CURE);
        let unreadable = |cause: serde_json::Error| {
            fault(format!("unreadable: {}", cni::wording::syntax_error(bytes, &cause)))
        };
        let mut values = serde_json::Deserializer::from_slice(bytes).into_iter::<&RawValue>();
        let first = values.next().transpose().map_err(unreadable)?.map_or("", RawValue::get);
        let Head { version } = serde_json::from_str(first).map_err(unreadable)?;
        if version == 0 || version > VERSION {
            return Err(fault(format!("version {version}: this release reads up to {VERSION}")));
        }
        let mut entry: Entry = serde_json::from_str(first).map_err(unreadable)?;
        for value in values {
            let value = match value {
                Err(cause) if cause.is_eof() => break,
                value => value.map_err(unreadable)?,
            };
            match serde_json::from_str(value.get()).map_err(unreadable)? {
                Progress::Attachment { index, attachment } => match entry.attachments.get_mut(index) {
                    Some(known) => *known = attachment,
                    None => return Err(fault(format!("unreadable: it has no attachment {index}"))),
                },
                Progress::Complete { network_status } => {
                    entry.network_status = network_status;
                    entry.complete = true;
                }
            }
        }
        Ok(entry)
    }
}

/// Beginning that every entry version has.
#[derive(Deserialize)]
struct Head {
    version: u32,
}

/// Returns a value as one line of JSON.
fn encoded(what: &impl Serialize) -> Result<Vec<u8>, Error> {
    let bytes = serde_json::to_vec(what);
    let mut bytes = bytes.map_err(|cause| Error::internal(format!("encode an entry: {cause}")))?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// Whether two identities of [`Entry::namespace`] belong to one namespace. A kernel before 5.14 has no cookie; then boot,
/// device and inode decide.
#[must_use]
pub fn is_same_namespace(one: &str, other: &str) -> bool {
    let parts = |text: &str| {
        let mut parts = text.splitn(3, '/').map(str::to_owned);
        (parts.next(), parts.next(), parts.next())
    };
    let ((boot, inode, cookie), (other_boot, other_inode, other_cookie)) = (parts(one), parts(other));
    let cookies = cookie.is_none() || other_cookie.is_none() || cookie == other_cookie;
    (boot, inode) == (other_boot, other_inode) && cookies
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn netns_identity_without_cookie_is_compared_by_inode() {
        let is_same = is_same_namespace;
        let [known, old, reused, other] = ["b/4:17/5", "b/4:17", "b/4:17/6", "b/4:18/5"];
        assert!(is_same(known, known) && is_same(known, old) && is_same(old, reused));
        assert!(!is_same(known, reused) && !is_same(known, other) && !is_same(old, other));
        assert!(!is_same(known, "c/4:17/5"), "of another boot");
    }

    #[test]
    fn journal_truncated_or_newer_entry_is_refused() {
        let newer = Entry::read(br#"{"version":2,"anything":[]}"#).unwrap_err();
        assert_eq!((newer.code, newer.msg.as_str()), (6, "version 2: this release reads up to 1"));
        assert!(Entry::is_newer(br#"{"version":2,"anything":[]}"#) && !Entry::is_newer(br#"{"version":1}"#));
        assert!(!Entry::is_newer(br#"{"version":2,"anyth"#));
        for broken in [&b""[..], b"{", b"{}", b"[]", br#"{"version":1}"#, b"\0\0\0"] {
            let error = Entry::read(broken).map(|_| ()).unwrap_err();
            assert!(error.msg.starts_with("unreadable: ") && !error.details.is_empty(), "{error}");
        }
    }

    /// An entry as the first release wrote it: an update finds such entries on a node whose pods run.
    #[test]
    fn journal_entry_of_the_first_release_is_read() {
        let entry = Entry::read(include_bytes!("../testdata/journal/first-form.json")).unwrap();
        assert!(entry.complete && !entry.changing);
        let names: Vec<_> = entry.plan.delegates.iter().map(|delegate| delegate.ifname.as_str()).collect();
        assert_eq!((names, entry.plan.pod.uid.as_str()), (vec!["eth0", "net1"], "u-1"));
        assert_eq!(entry.plan.delegates[1].args, [("MAC".to_owned(), "02:00:00:00:00:01".to_owned())]);
        let states: Vec<_> = entry.attachments.iter().map(|attachment| attachment.state).collect();
        assert_eq!(states, [State::Attached, State::Detached]);
        assert!(entry.attachments[0].result.as_ref().unwrap().get().contains("10.1.0.2/24"));
        assert_eq!(entry.attachments[1].failure.as_ref().unwrap().msg, "not now");
        // The entry keeps its content when it is written again.
        let again = Entry::read(&entry.value().unwrap()).unwrap();
        assert_eq!((again.plan, again.network_status.len()), (entry.plan, 1));
    }

    #[test]
    fn journal_page_example_is_a_valid_entry() {
        let page = include_str!("../../../docs/design/journal.md");
        let example = page.split("```").nth(1).and_then(|block| block.strip_prefix("json\n")).unwrap();
        let entry = Entry::read(example.as_bytes()).unwrap();
        assert!(entry.complete && entry.version == VERSION);
        assert_eq!(entry.attachments.len(), entry.plan.delegates.len());
        assert!(entry.attachments.iter().all(|attachment| attachment.state == State::Attached));
        assert_eq!(entry.network_status.len(), 2);
        assert!(page.contains(&format!("at most {} MiB", ENTRY_MAX >> 20)));
        assert!(page.contains(&format!("version of the format, {VERSION} |")));
    }

    fn planned() -> Entry {
        let pod = serde_json::json!({"namespace": "n", "name": "p", "uid": ""});
        let status = serde_json::json!({"addresses": "bare", "keys": "standard"});
        let plan = serde_json::json!({"version": 1, "pod": pod, "container": "c", "status": status,
            "delegates": [], "warnings": []});
        let planned = serde_json::json!({"state": "planned"});
        let entry = serde_json::json!({"version": 1, "network": "weft", "containerId": "c", "netns": "/n",
            "ifname": "eth0", "args": "", "path": "/p", "plan": plan, "attachments": [planned, planned]});
        serde_json::from_value(entry).unwrap()
    }

    #[test]
    fn journal_add_has_not_begun_what_follows_the_first_planned() {
        let never_begun = |change: &dyn Fn(&mut Entry)| {
            let mut entry = planned();
            entry.attachments.push(entry.attachments[0].clone());
            entry.namespace = "boot/4:17/5".to_owned();
            change(&mut entry);
            entry.note_never_begun("boot");
            entry.attachments.iter().map(|known| known.never_begun).collect::<Vec<_>>()
        };
        assert_eq!(never_begun(&|_| {}), [false, true, true]);
        assert_eq!(never_begun(&|entry| entry.attachments[0].state = State::Attached), [false, false, true]);
        assert_eq!(never_begun(&|entry| entry.attachments[2].state = State::Detached), [false, true, false]);
        let failed = |entry: &mut Entry| entry.attachments[1].failure = Some(Error::internal("stuck"));
        assert_eq!(never_begun(&failed), [false, false, true]);
        let others: [&dyn Fn(&mut Entry); 6] = [
            &|entry| entry.complete = true,
            &|entry| entry.changing = true,
            &|entry| entry.replaced = true,
            &|entry| entry.namespace = String::new(),
            &|entry| entry.namespace = "other/4:17/5".to_owned(),
            &|entry| entry.namespace = "boots/4:17/5".to_owned(),
        ];
        for (place, other) in others.into_iter().enumerate() {
            assert_eq!(never_begun(other), [false; 3], "{place}");
        }
    }

    #[test]
    fn journal_incomplete_last_value_is_ignored() {
        let mut entry = planned();
        let first = entry.value().unwrap();
        entry.attachments[1].state = State::Attached;
        entry.attachments[1].result = Some(RawValue::from_string("{\n \"ips\": []\n}".to_owned()).unwrap());
        let second = [first.clone(), entry.attachments_at(&[1]).unwrap()].concat();
        let whole = [second.clone(), entry.completion().unwrap()].concat();
        for end in 0..=whole.len() {
            // The end of a value's line has no meaning of its own.
            let read = match Entry::read(&whole[..end]) {
                Ok(read) => read,
                Err(_) if end + 1 < first.len() => continue,
                Err(error) => panic!("{end} bytes of {}: {error}", whole.len()),
            };
            assert!(end + 1 >= first.len());
            assert_eq!(read.complete, end + 1 >= whole.len());
            let attached = read.attachments[1].state == State::Attached;
            assert_eq!((attached, read.attachments[0].state), (end + 1 >= second.len(), State::Planned));
        }
    }

    #[test]
    fn journal_invalid_value_is_refused() {
        let out_of_range = r#"{"attachment":{"index":2,"attachment":{"state":"attached"}}}"#;
        for value in ["{}", "\0", "7", out_of_range] {
            let bytes = [planned().value().unwrap(), value.as_bytes().to_vec()].concat();
            let error = Entry::read(&bytes).map(|_| ()).unwrap_err();
            assert!(error.msg.starts_with("unreadable: "), "{value}: {error}");
        }
    }
}
