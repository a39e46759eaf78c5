//! iptables: reading a table with one `iptables-save`, changing it with one `iptables-restore --noflush`.
//!
//! For hosts whose rules are all there, and for what the reference plugins made. Rules are lines as
//! `iptables-save` prints them, so what was written can be looked for in what is there.
//!
//! Rules:
//! - one program at a time and family, never a shell; a change is one commit, carried out whole or not at all;
//! - who changes a table has read it in the same [`Turn`]: what a script declares is emptied, whoever filled it meanwhile;
//! - so a script declares only what is one container's; what many share it makes with `-N`, which fails if it is there:
//!   a dump may lack what the kernel did not tell `iptables-save`;
//! - a program ends with who called it, and a turn with the last program run in it: whoever comes next sees what was done;
//! - no program is run where [`has_chain`] knows that there is nothing for it to find; not to know is an error.
//!
//! Source: iptables-restore(8); plugins `pkg/utils/utils.go` (chain names), `pkg/utils/iptables.go`.

use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::Stdio;

use cni::error::collected;
use cni::{Error, code};
use linux::Netns;
use linux::netns::{Lock, Locked};
use linux::nft::{self, Nft};
use plugin_support::failure::OrRefused;
use plugin_support::hash::hex;
use plugin_support::owner_tag::OwnerTag;

use crate::entries;

/// Longest chain name iptables takes, in bytes.
const CHAIN_MAX: usize = 28;

/// Longest comment of a rule, in bytes.
const COMMENT_MAX: usize = 255;

/// Waits for others who change the rules of the older kernel interface, this many seconds.
const WAIT: &str = "--wait=30";

/// The turn to change what iptables has on this host: nobody else of ours does so meanwhile.
#[must_use = "dropping it lets others change the tables"]
pub struct Turn {
    _lock: Locked,
}

/// IPv4 or IPv6: a program each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `iptables`
    V4,
    /// `ip6tables`
    V6,
}

/// A table of one family, as `iptables-save` prints it.
#[derive(Clone, Debug)]
pub struct Saved(String);

/// What a table is changed by.
type Lines<'a> = &'a mut dyn FnMut(&Saved) -> Vec<String>;

// === impl Turn ===

impl Turn {
    /// Waits for it.
    ///
    /// # Errors
    /// Code 11 if others take too long.
    pub fn take() -> Result<Turn, Error> {
        Turn::of(Lock::Exclusive)
    }

    fn of(lock: Lock) -> Result<Turn, Error> {
        Ok(Turn { _lock: Netns::lock_filters(lock).or_refused()? })
    }
}

// === impl Family ===

impl Family {
    /// Both.
    pub const ALL: [Family; 2] = [Family::V4, Family::V6];

    /// Does it hold of one?
    pub fn any(holds: impl Fn(Family) -> Result<bool, Error>) -> Result<bool, Error> {
        for family in Family::ALL {
            if holds(family)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Is an address of this family?
    pub fn has(self, address: std::net::IpAddr) -> bool {
        address.is_ipv4() == (self == Family::V4)
    }

    fn program(self) -> &'static str {
        match self {
            Family::V4 => "iptables",
            Family::V6 => "ip6tables",
        }
    }

    /// Where `iptables-nft` keeps a table, as nf_tables sees it.
    pub fn nft(self) -> nft::Family {
        match self {
            Family::V4 => nft::Family::Ip,
            Family::V6 => nft::Family::Ip6,
        }
    }

    /// What the older kernel interface has in use, a table's name a line.
    fn legacy(self) -> &'static str {
        match self {
            Family::V4 => "/proc/net/ip_tables_names",
            Family::V6 => "/proc/net/ip6_tables_names",
        }
    }

    /// The table as it is. `iptables-save -t nat`
    ///
    /// # Errors
    /// Also if only a part of it was printed, or nothing of a table that is there.
    pub fn save(self, table: &str) -> Result<Saved, Error> {
        let program = format!("{}-save", self.program());
        let read = || run(&program, &["-t", table], "");
        let mut printed = read()?;
        if printed.trim().is_empty() && self.has_table(table)? {
            // Somebody may just have made it.
            printed = read()?;
            if printed.trim().is_empty() {
                let table = nft::Table::new(self.nft(), table);
                let said = format!("run {program}: it printed nothing, but nf_tables has table {table}");
                return Err(Error::new(code::IO_FAILURE, said));
            }
        }
        match is_whole(&printed, table) {
            true => Ok(Saved(printed)),
            false => {
                let said = format!("run {program}: it printed only a part of table {table}: no COMMIT");
                Err(Error::new(code::IO_FAILURE, said))
            }
        }
    }

    /// Has nf_tables a table of this name?
    fn has_table(self, table: &str) -> Result<bool, Error> {
        Ok(entries::tables()?.is_some_and(|tables| tables.has(self.nft(), table)))
    }

    /// Carries out in one commit the lines that `lines` makes of the table; no lines, no program.
    ///
    /// Refused, the table is read again: if that makes other lines, what was read was not how it is, and they are tried, once.
    pub fn change(self, _: &Turn, table: &str, lines: Lines<'_>) -> Result<(), Error> {
        let first = lines(&self.save(table)?);
        let Err(refusal) = self.restore(table, &first) else { return Ok(()) };
        match self.save(table).map(|saved| lines(&saved)) {
            Ok(second) if second != first => self.restore(table, &second),
            _ => Err(refusal),
        }
    }

    fn restore(self, table: &str, lines: &[String]) -> Result<(), Error> {
        if lines.is_empty() {
            return Ok(());
        }
        let script = format!("*{table}\n{}\nCOMMIT\n", lines.join("\n"));
        run(&format!("{}-restore", self.program()), &["--noflush", WAIT], &script).map(|_| ())
    }
}

/// Does what was printed of a table go on to its end? What has no such table, or says that its program cannot read it, is whole.
fn is_whole(printed: &str, table: &str) -> bool {
    let mut lines = printed.lines().map(str::trim_end);
    let begins = lines.any(|line| line.strip_prefix('*') == Some(table));
    !begins || lines.any(|line| line == "COMMIT")
}

/// The line that makes a chain; it fails if that is there, and with it the script.
pub fn creation(chain: &str) -> String {
    format!("-N {chain}")
}

/// Does a line make a chain?
pub fn is_creation(line: &str) -> bool {
    line.starts_with("-N ")
}

/// Changes a table of both families, as far as one of these chains is there: for DEL and GC, which try everything. No program
/// is run where there is nothing for it to find, and nobody waits but for a program that runs: it may be about to make it.
pub fn clean(table: &str, chains: &[&str], lines: Lines<'_>) -> Result<(), Error> {
    let is_there = |family| {
        for chain in chains {
            if has_chain(family, table, chain)? {
                return Ok(true);
            }
        }
        Ok::<bool, Error>(false)
    };
    let look = Turn::of(Lock::Shared)?;
    if Family::ALL.into_iter().all(|family| matches!(is_there(family), Ok(false))) {
        return Ok(());
    }
    drop(look);
    let turn = Turn::take()?;
    let mut errors = Vec::new();
    for family in Family::ALL {
        match is_there(family) {
            Ok(true) => errors.extend(family.change(&turn, table, lines).err()),
            Ok(false) => {}
            Err(error) => errors.push(error),
        }
    }
    collected(errors)
}

/// Is there a chain, or could there be? Found out without running a program. One without rules counts: rules may
/// lead to it.
///
/// # Errors
/// The kernel was asked and did not say.
pub fn has_chain(family: Family, table: &str, chain: &str) -> Result<bool, Error> {
    Ok(has_chain_in_nft(family, table, chain)? || has_legacy(family, table)?)
}

/// The same where it is known for sure: in nf_tables.
pub fn has_chain_in_nft(family: Family, table: &str, chain: &str) -> Result<bool, Error> {
    let find = |mut nft: Nft| nft.has_chain(nft::Table::new(family.nft(), table), chain);
    Ok(entries::unless_absent(Nft::open().and_then(find))?.unwrap_or(false))
}

/// Is there a chain whose name begins so, or could there be? Found out without running a program.
pub fn has_chains(family: Family, table: &str, prefix: &str) -> Result<bool, Error> {
    let in_nft = |mut nft: Nft| nft.chains(nft::Table::new(family.nft(), table));
    let listed = entries::unless_absent(Nft::open().and_then(in_nft))?.unwrap_or_default();
    Ok(listed.iter().any(|chain| chain.starts_with(prefix)) || has_legacy(family, table)?)
}

/// Is a table of the older kernel interface in use? What is in it only its program knows: where that is not, nobody
/// has used it for a container.
fn has_legacy(family: Family, table: &str) -> Result<bool, Error> {
    let path = family.legacy();
    let is_used = match std::fs::read_to_string(path) {
        Ok(tables) => tables.lines().any(|line| line == table),
        // The kernel has no such interface, or has not begun to use it.
        Err(cause) if cause.kind() == ErrorKind::NotFound => false,
        Err(cause) => return Err(Error::io(format_args!("read {path}"), cause)),
    };
    let directories = std::env::var_os("PATH").unwrap_or_default();
    let mut directories = std::env::split_paths(&directories);
    Ok(is_used
        && directories.any(|directory| could_be(&directory.join(format!("{}-save", family.program())))))
}

/// Is there such a program, or is it not known?
fn could_be(program: &Path) -> bool {
    let is_none =
        |kind| matches!(kind, ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::PermissionDenied);
    !std::fs::metadata(program).is_err_and(|cause| is_none(cause.kind()))
}

/// The chain of a container on a network. The name is frozen: it is how a DEL finds it, ours or the reference
/// plugins'.
pub fn chain_name(prefix: &str, tag: &OwnerTag) -> String {
    use sha2::{Digest, Sha512};
    let digest = Sha512::digest(format!("{}{}", tag.network, tag.container));
    hex(&format!("CNI-{prefix}"), CHAIN_MAX, &digest)
}

/// The name of a chain in an iptables script.
pub fn checked_chain(key: &str, chain: String) -> Result<String, Error> {
    let legal = |byte: u8| byte.is_ascii_graphic() && !b"\"'\\!#:".contains(&byte);
    match !chain.is_empty() && chain.len() <= CHAIN_MAX && !chain.starts_with('-') && chain.bytes().all(legal)
    {
        true => Ok(chain),
        false => Err(Error::key(
            key,
            format!("{chain:?}"),
            format!("not a chain's name of 1 to {CHAIN_MAX} characters"),
        )),
    }
}

/// A word as `iptables-save` quotes it; control characters are not for a script of lines and become `_`.
pub fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            _ if character.is_control() => quoted.push('_'),
            _ => quoted.push(character),
        }
    }
    quoted.push('"');
    quoted
}

/// `-m comment --comment "…"`, cut as the reference plugins cut it.
pub fn comment(text: &str) -> String {
    let mut text = text.to_owned();
    if text.len() > COMMENT_MAX {
        while text.len() > COMMENT_MAX - 2 {
            text.pop();
        }
        text.push_str("...");
    }
    format!("-m comment --comment {}", quoted(&text))
}

/// The line that removes a rule.
pub fn deletion(rule: &str) -> String {
    format!("-D{}", rule.trim_start_matches("-A"))
}

// === impl Saved ===

impl Saved {
    /// Its lines.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.0.lines()
    }

    /// Is there a chain of this name?
    pub fn has_chain(&self, chain: &str) -> bool {
        self.lines().any(|line| line.strip_prefix(':').is_some_and(|rest| first_word(rest) == chain))
    }

    /// Is there exactly this rule?
    pub fn has_rule(&self, rule: &str) -> bool {
        self.lines().any(|line| line.trim_end() == rule)
    }

    /// The rules that lead to a chain.
    pub fn jumps<'a>(&'a self, chain: &str) -> impl Iterator<Item = &'a str> {
        let target = format!(" -j {chain}");
        self.lines().filter(move |line| line.starts_with("-A ") && line.ends_with(&target))
    }
}

fn first_word(text: &str) -> &str {
    text.split(' ').next().unwrap_or_default()
}

/// Network and container of a rule whose comment says them, after `word`, as the reference plugins write it.
pub fn named<'a>(rule: &'a str, word: &str) -> Option<(&'a str, &'a str)> {
    let (_, said) = rule.split_once(&format!("--comment \"{word}name: \\\""))?;
    let (network, rest) = said.split_once("\\\" id: \\\"")?;
    Some((network, rest.split_once("\\\"")?.0))
}

/// The chain that a rule is in.
pub fn chain_of(rule: &str) -> Option<&str> {
    rule.strip_prefix("-A ").map(first_word)
}

fn run(program: &str, arguments: &[&str], stdin: &str) -> Result<String, Error> {
    let hinted =
        |what: String| Error::new(code::IO_FAILURE, what + "; the backend nftables needs no program");
    let failed = |cause: &dyn std::fmt::Display| hinted(format!("run {program}: {cause}"));
    let mut child = linux::parent_death::command(Path::new(program))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|cause| failed(&cause))?;
    if let Some(mut pipe) = child.stdin.take() {
        pipe.write_all(stdin.as_bytes()).map_err(|cause| failed(&cause))?;
    }
    let output = child.wait_with_output().map_err(|cause| failed(&cause))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        // What could not become the program has said so as a plugin does.
        false => Err(match cni::invoke::read_error(&output.stdout) {
            Ok(error) => hinted(error.msg),
            Err(_) => failed(&String::from_utf8_lossy(&output.stderr).trim()),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g5_chain_names_are_the_reference_plugins() {
        let tag = OwnerTag {
            plugin: "bridge".into(),
            network: "test".into(),
            container: "1234".into(),
            ifname: "eth0".into(),
        };
        // Go: utils.MustFormatChainNameWithPrefix("test", "1234", "") and "DN-".
        assert_eq!(chain_name("", &tag), "CNI-2bbe0c48b91a7d1b8a6753a8");
        assert_eq!(chain_name("DN-", &tag), "CNI-DN-2bbe0c48b91a7d1b8a675");
    }

    #[test]
    fn a_comment_names_network_and_container() {
        let rule = |word: &str| {
            let comment = comment(&format!("{word}name: \"net\" id: \"1234\""));
            format!("-A POSTROUTING -s 10.1.0.5/32 {comment} -j CNI-2bbe0c48b91a7d1b8a6753a8")
        };
        assert_eq!(named(&rule(""), ""), Some(("net", "1234")));
        assert_eq!(named(&rule("dnat "), "dnat "), Some(("net", "1234")));
        assert_eq!((named(&rule("dnat "), ""), named(&rule(""), "dnat ")), (None, None));
        assert_eq!(named("-A POSTROUTING -j CNI-HOSTPORT-MASQ", ""), None);
    }

    #[test]
    fn a_table_is_whole_from_its_name_to_its_commit() {
        let whole = "# Generated\n*nat\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -j X\nCOMMIT\n# Completed\n";
        assert!(is_whole(whole, "nat"));
        let up_to = |word: &str| &whole[..whole.find(word).unwrap()];
        for part in [up_to(":PREROUTING"), up_to("-A"), up_to("COMMIT"), &whole[..whole.len() - 15]] {
            assert!(!is_whole(part, "nat"), "{part:?}");
        }
        assert!(!is_whole("*filter\nCOMMIT\n*nat\n", "nat"));
        // Nothing of it was begun: the kernel has none, or the program says in a comment that it cannot read it.
        for none in ["", "# Table `nat' is incompatible, use 'nft' tool.\n", "*filter\n"] {
            assert!(is_whole(none, "nat"), "{none:?}");
        }
    }

    #[test]
    fn what_is_written_into_a_script_stays_one_word() {
        assert_eq!(quoted("a b"), "\"a b\"");
        assert_eq!(quoted("a\"\\\nCOMMIT"), "\"a\\\"\\\\_COMMIT\"");
        let long = comment(&"x".repeat(300));
        assert_eq!(long.len(), "-m comment --comment \"\"".len() + 256);
        assert!(long.ends_with("...\""));
    }
}
