//! Command-line flags for `dhcp daemon`: those that the Go plugin's daemon has, plus `statefile`, `takeover` and
//! `cachedirs`.
//!
//! Flags are written as `-name value` or `-name=value`, with one or two hyphens. Durations look like `10s`, `1m30s` or
//! `500ms`.

use std::path::PathBuf;
use std::time::Duration;

use cni::{Error, code};

use crate::orphans;
use crate::protocol::SOCKET;

/// Flags that need a value.
const KNOWN: [&str; 8] = [
    "pidfile",
    "hostprefix",
    "socketpath",
    "statefile",
    "cachedirs",
    "timeout",
    "resendmax",
    "resendtimeout",
];

/// Validated flags.
#[derive(Debug, PartialEq, Eq)]
pub struct Flags {
    /// `-pidfile`: absolute path of the PID file, for example `/run/dhcp.pid`.
    pub pidfile: Option<PathBuf>,
    /// `-hostprefix`: put in front of the paths that runtimes pass and of the socket path, for example `/host` if the
    /// daemon runs in a pod that mounts the host there.
    pub host_prefix: String,
    /// `-socketpath`: path on which the daemon listens.
    pub socket: PathBuf,
    /// `-statefile`: lease file; by default next to the socket.
    pub state: Option<PathBuf>,
    /// `-broadcast`: whether servers should broadcast answers (default: no).
    pub broadcast: bool,
    /// `-timeout`: maximum wait for one answer (default: 10 s).
    pub timeout: Duration,
    /// `-resendmax`: maximum time between two messages (default: 62 s).
    pub resend_max: Duration,
    /// `-resendtimeout`: maximum time for acquiring a lease (default: 208 s).
    pub resend_timeout: Duration,
    /// `-takeover`: whether to take over leases from the Go plugin's daemon (default: yes).
    pub takeover: bool,
    /// `-cachedirs`: libcni cache directories in which attachments are recorded, each with a `results` directory.
    pub caches: Vec<PathBuf>,
}

impl Flags {
    /// Parses the flags.
    pub fn read(words: &[&str]) -> Result<Flags, Error> {
        let mut flags = Flags {
            pidfile: None,
            host_prefix: String::new(),
            socket: PathBuf::from(SOCKET),
            state: None,
            broadcast: false,
            timeout: Duration::from_secs(10),
            resend_max: Duration::from_secs(62),
            resend_timeout: Duration::from_secs(208),
            takeover: true,
            caches: orphans::DIRECTORIES.map(PathBuf::from).to_vec(),
        };
        let mut rest = words.iter();
        while let Some(word) = rest.next() {
            let Some(name) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')) else {
                return Err(misunderstood(word, "not a flag"));
            };
            let (name, attached) = match name.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (name, None),
            };
            let switch = match name {
                "broadcast" => Some(&mut flags.broadcast),
                "takeover" => Some(&mut flags.takeover),
                _ => None,
            };
            if let Some(switch) = switch {
                *switch = match attached.unwrap_or("true") {
                    "true" | "1" => true,
                    "false" | "0" => false,
                    _ => return Err(misunderstood(word, "neither true nor false")),
                };
                continue;
            }
            let value = || attached.or_else(|| rest.next().copied());
            flags.set(word, name, value)?;
        }
        Ok(flags)
    }

    fn set<'a>(
        &mut self,
        word: &str,
        name: &str,
        value: impl FnOnce() -> Option<&'a str>,
    ) -> Result<(), Error> {
        if !KNOWN.contains(&name) {
            return Err(misunderstood(
                word,
                &format!("not one of broadcast, takeover, {}", KNOWN.join(", ")),
            ));
        }
        let value = value().ok_or_else(|| misunderstood(word, "a value is missing"))?;
        let absolute = |value: &str| match value.starts_with('/') {
            true => Ok(PathBuf::from(value)),
            false => Err(misunderstood(word, &format!("{value:?} is not absolute"))),
        };
        let path = || absolute(value);
        let time = || {
            let time = duration(value).filter(|time| !time.is_zero());
            time.ok_or_else(|| misunderstood(word, &format!("{value:?} is not a duration like 10s or 1m30s")))
        };
        match name {
            "pidfile" => self.pidfile = Some(path()?),
            "hostprefix" => self.host_prefix = value.trim_end_matches('/').to_owned(),
            "socketpath" => self.socket = path()?,
            "statefile" => self.state = Some(path()?),
            "cachedirs" => self.caches = value.split(':').map(absolute).collect::<Result<_, _>>()?,
            "timeout" => self.timeout = time()?,
            "resendmax" => self.resend_max = time()?,
            _ => self.resend_timeout = time()?,
        }
        Ok(())
    }
}

fn misunderstood(word: &str, why: &str) -> Error {
    Error::new(code::INVALID_ENVIRONMENT, format!("dhcp daemon: {word}: {why}"))
}

/// Parses a duration in Go's notation: whole or decimal numbers, each with a unit; at most a week.
fn duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut total = 0.0;
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (value, later) = rest.split_at(number);
        let unit = later.find(|c: char| c.is_ascii_digit()).unwrap_or(later.len());
        let (unit, later) = later.split_at(unit);
        let seconds = match unit {
            "ms" => 0.001,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        total += value.parse::<f64>().ok()? * seconds;
        rest = later;
    }
    (total <= 604_800.0).then(|| Duration::try_from_secs_f64(total).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dhcp_daemon_flags_are_those_of_the_reference_plugin() {
        let defaults = Flags::read(&[]).unwrap();
        assert_eq!((defaults.socket.to_str(), defaults.timeout.as_secs()), (Some(SOCKET), 10));
        let words = [
            "-pidfile",
            "/run/p",
            "--hostprefix=/host/",
            "-socketpath",
            "/s",
            "-broadcast",
            "-timeout=500ms",
        ];
        let flags =
            Flags::read(&[&words[..], &["-resendmax", "1m30s", "-resendtimeout", "1.5h"]].concat()).unwrap();
        assert_eq!((flags.pidfile, flags.host_prefix.as_str()), (Some("/run/p".into()), "/host"));
        assert_eq!(
            (flags.timeout.as_millis(), flags.resend_max.as_secs(), flags.resend_timeout.as_secs()),
            (500, 90, 5400)
        );
        assert!(flags.broadcast && flags.takeover);
        let own = Flags::read(&["-takeover=false", "-cachedirs", "/a:/b"]).unwrap();
        assert_eq!((own.takeover, own.caches), (false, vec!["/a".into(), "/b".into()]));
    }

    #[test]
    fn dhcp_daemon_invalid_flag_is_reported() {
        for (words, part) in [
            (&["-pidfile", "p"][..], "\"p\" is not absolute"),
            (&["-timeout"], "a value is missing"),
            (&["-timeout", "10"], "\"10\" is not a duration"),
            (&["-timeout", "-1s"], "not a duration"),
            (&["-timeout", "0s"], "not a duration"),
            (&["-resendmax", "1e9h"], "not a duration"),
            (&["-resendmax", "9999999h"], "not a duration"),
            (&["-nonsense"], "-nonsense: not one of"),
            (&["start"], "start: not a flag"),
            (&["-broadcast=maybe"], "neither"),
            (&["-takeover=maybe"], "neither"),
            (&["-cachedirs", "/a:b"], "\"b\" is not absolute"),
        ] {
            let error = Flags::read(words).unwrap_err();
            assert!(error.code == 4 && error.msg.contains(part), "{error}");
        }
    }
}
