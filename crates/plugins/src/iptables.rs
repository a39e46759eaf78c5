//! iptables: reads a table with one `iptables-save` and changes it with one `iptables-restore --noflush`.
//!
//! For hosts that have all rules in iptables, and for rules that the reference plugins wrote. Rules are lines as
//! `iptables-save` prints them, so that written rules can be found in that output.
//!
//! Rules:
//! - One program runs at a time for each address family, never in a shell. A change is one commit, applied as
//!   a whole or not at all.
//! - A caller reads and changes a table under one [`FilterLock`], because a script empties every chain that
//!   it declares.
//! - So a script declares only one container's chains. It creates shared chains with `-N`, which fails if the
//!   chain exists: what `iptables-save` prints may be incomplete.
//! - A program is killed when the caller ends. The lock is released only after the last program has ended, so the next
//!   caller sees the result.
//! - No program runs if [`has_chain`] finds nothing for it to do. If the kernel does not answer, it is an
//!   error.
//!
//! Source: iptables-restore(8); plugins `pkg/utils/utils.go` (chain names), `pkg/utils/iptables.go`.

use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::{Output, Stdio};

use cni::error::collected;
use cni::{Error, code};
use linux::Netns;
use linux::netns::{Lock, Locked};
use linux::nft::{self, Nft};
use plugin_config::chain::CHAIN_MAX;
use plugin_support::failure::OrRefused;
use plugin_support::hash::hex;
use plugin_support::owner_tag::OwnerTag;

use crate::entries;

/// Maximum length for a rule's comment, in bytes.
const COMMENT_MAX: usize = 255;

/// Option that waits, in seconds, for other programs that change rules in the legacy kernel interface.
const WAIT: &str = "--wait=30";

/// Arguments for `iptables-restore`.
const RESTORE: [&str; 2] = ["--noflush", WAIT];

/// Lock on the iptables rules on this host; no other weft process changes them meanwhile.
#[must_use = "the lock is released when this value is dropped"]
pub struct FilterLock {
    _lock: Locked,
}

/// Address family; each has a separate program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4, `iptables`.
    V4,
    /// IPv6, `ip6tables`.
    V6,
}

/// Table in one family, as `iptables-save` prints it.
#[derive(Clone, Debug)]
pub struct Saved(String);

/// Function that returns the commands which change a table.
type Lines<'a> = &'a mut dyn FnMut(&Saved) -> Vec<String>;

// === impl FilterLock ===

impl FilterLock {
    /// Waits for the lock.
    ///
    /// # Errors
    /// Code 11 if the wait takes too long.
    pub fn take() -> Result<FilterLock, Error> {
        FilterLock::of(Lock::Exclusive)
    }

    fn of(lock: Lock) -> Result<FilterLock, Error> {
        Ok(FilterLock { _lock: Netns::lock_filters(lock).or_refused()? })
    }
}

// === impl Family ===

impl Family {
    /// Both families.
    pub const ALL: [Family; 2] = [Family::V4, Family::V6];

    /// Whether `holds` is true for a family.
    pub fn any(holds: impl Fn(Family) -> Result<bool, Error>) -> Result<bool, Error> {
        for family in Family::ALL {
            if holds(family)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether the address belongs to this family.
    pub fn has(self, address: std::net::IpAddr) -> bool {
        address.is_ipv4() == (self == Family::V4)
    }

    fn program(self) -> &'static str {
        match self {
            Family::V4 => "iptables",
            Family::V6 => "ip6tables",
        }
    }

    /// Returns the nf_tables family for the tables that `iptables-nft` uses.
    pub fn nft(self) -> nft::Family {
        match self {
            Family::V4 => nft::Family::Ip,
            Family::V6 => nft::Family::Ip6,
        }
    }

    /// Returns the file that lists the tables in use by the legacy kernel interface, one in each line.
    fn legacy(self) -> &'static str {
        match self {
            Family::V4 => "/proc/net/ip_tables_names",
            Family::V6 => "/proc/net/ip6_tables_names",
        }
    }

    /// Reads the table. `iptables-save -t nat`
    ///
    /// # Errors
    /// Also if the output is incomplete, or empty although the table exists.
    pub fn save(self, table: &str) -> Result<Saved, Error> {
        let program = format!("{}-save", self.program());
        let read = || run(&program, &["-t", table], "");
        let mut printed = read()?;
        if printed.trim().is_empty() && self.has_table(table)? {
            // Another process may just have created the table.
            printed = read()?;
            if printed.trim().is_empty() {
                let table = nft::Table::new(self.nft(), table);
                let said = format!("run {program}: no output, but nf_tables has table {table}");
                return Err(Error::new(code::IO_FAILURE, said));
            }
        }
        match is_complete(&printed, table) {
            true => Ok(Saved(printed)),
            false => {
                let said = format!("run {program}: incomplete output for table {table}: no COMMIT");
                Err(Error::new(code::IO_FAILURE, said))
            }
        }
    }

    /// Whether nf_tables has a table with this name.
    fn has_table(self, table: &str) -> Result<bool, Error> {
        Ok(entries::tables()?.is_some_and(|tables| tables.has(self.nft(), table)))
    }

    /// Executes the commands that `lines` returns for the table, in one commit. Without commands no program runs.
    ///
    /// If they are refused, the table is read again. If that results in other commands, the first output was
    /// incomplete, and the new commands are tried, once.
    pub fn change(self, _: &FilterLock, table: &str, lines: Lines<'_>) -> Result<(), Error> {
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
        let (program, script) = self.restoring(table, lines);
        run(&program, &RESTORE, &script).map(|_| ())
    }

    /// Whether the table has all these rules, also if `iptables-save` prints them in other words. `iptables
    /// -C CHAIN …`
    ///
    /// # Errors
    /// The program failed for another reason than a missing rule.
    pub fn has_rules(self, table: &str, rules: &[String]) -> Result<bool, Error> {
        const MISSING: i32 = 1;
        let lines: Vec<String> = rules.iter().map(|rule| rule.replacen("-A ", "-C ", 1)).collect();
        let (program, script) = self.restoring(table, &lines);
        let output = execute(&program, &RESTORE, &script)?;
        match output.status.code() {
            Some(MISSING) if output.stdout.is_empty() => Ok(false),
            _ => text_of(&program, &output).map(|_| true),
        }
    }

    /// Returns the program that executes commands for a table, and the input for it.
    fn restoring(self, table: &str, lines: &[String]) -> (String, String) {
        let script = format!("*{table}\n{}\nCOMMIT\n", lines.join("\n"));
        (format!("{}-restore", self.program()), script)
    }
}

/// Whether the output for a table is complete. Output without the table, or with the message that the program cannot
/// read it, counts as complete.
fn is_complete(printed: &str, table: &str) -> bool {
    let mut lines = printed.lines().map(str::trim_end);
    let begins = lines.any(|line| line.strip_prefix('*') == Some(table));
    !begins || lines.any(|line| line == "COMMIT")
}

/// Returns the command that creates a chain; it fails, and with it the script, if the chain exists.
pub fn creation(chain: &str) -> String {
    format!("-N {chain}")
}

/// Whether a command creates a chain.
pub fn is_creation(line: &str) -> bool {
    line.starts_with("-N ")
}

/// Changes a table in both families if one of these chains exists. For DEL and GC, which try all backends.
///
/// No program runs if there is no chain. The lock is awaited only if a running program may be about to create
/// one.
pub fn clean(table: &str, chains: &[&str], lines: Lines<'_>) -> Result<(), Error> {
    let exists = |family| has_any_chain(family, table, chains);
    let shared = FilterLock::of(Lock::Shared)?;
    if Family::ALL.into_iter().all(|family| matches!(exists(family), Ok(false))) {
        return Ok(());
    }
    drop(shared);
    let lock = FilterLock::take()?;
    let mut errors = Vec::new();
    for family in Family::ALL {
        match exists(family) {
            Ok(true) => errors.extend(family.change(&lock, table, lines).err()),
            Ok(false) => {}
            Err(error) => errors.push(error),
        }
    }
    collected(errors)
}

/// Whether a chain exists, or may exist. Usually runs no program. A chain without rules counts, because rules may jump to it.
///
/// # Errors
/// The kernel did not answer.
pub fn has_chain(family: Family, table: &str, chain: &str) -> Result<bool, Error> {
    has_any_chain(family, table, &[chain])
}

/// As [`has_chain`], for one of several chains.
pub fn has_any_chain(family: Family, table: &str, chains: &[&str]) -> Result<bool, Error> {
    let is_saved = |saved: &Saved| chains.iter().any(|chain| saved.has_chain(chain));
    Ok(has_any_in_nft(family, table, chains)? || has_legacy(family, table, is_saved)?)
}

/// Whether a chain exists in nf_tables, where this is certain.
pub fn has_chain_in_nft(family: Family, table: &str, chain: &str) -> Result<bool, Error> {
    has_any_in_nft(family, table, &[chain])
}

fn has_any_in_nft(family: Family, table: &str, chains: &[&str]) -> Result<bool, Error> {
    let find = |mut nft: Nft| {
        for chain in chains {
            if nft.has_chain(nft::Table::new(family.nft(), table), chain)? {
                return Ok(true);
            }
        }
        Ok(false)
    };
    Ok(entries::unless_absent(Nft::open().and_then(find))?.unwrap_or(false))
}

/// Whether a chain whose name has this prefix exists, or may exist. Usually runs no program.
pub fn has_chains(family: Family, table: &str, prefix: &str) -> Result<bool, Error> {
    let in_nft = |mut nft: Nft| nft.chains(nft::Table::new(family.nft(), table));
    let listed = entries::unless_absent(Nft::open().and_then(in_nft))?.unwrap_or_default();
    let is_one = |saved: &Saved| saved.chains().any(|chain| chain.starts_with(prefix));
    Ok(listed.iter().any(|chain| chain.starts_with(prefix)) || has_legacy(family, table, is_one)?)
}

/// Whether the legacy kernel interface uses a table. Only the legacy program can read the content. If the program is
/// not installed, no container rules are in it.
///
/// In an unprivileged container the table list may be unreadable. Then the program runs, and `matches` looks at the
/// output. A program that fails there could not create rules either.
fn has_legacy(family: Family, table: &str, matches: impl Fn(&Saved) -> bool) -> Result<bool, Error> {
    let path = family.legacy();
    let is_used = match std::fs::read_to_string(path) {
        Ok(tables) => tables.lines().any(|line| line == table),
        // The kernel has no such interface, or it is not in use yet.
        Err(cause) if cause.kind() == ErrorKind::NotFound => false,
        Err(cause) if cause.kind() == ErrorKind::PermissionDenied => {
            return Ok(has_save_program(family) && family.save(table).is_ok_and(|saved| matches(&saved)));
        }
        Err(cause) => return Err(Error::io(format_args!("read {path}"), cause)),
    };
    Ok(is_used && has_save_program(family))
}

fn has_save_program(family: Family) -> bool {
    let directories = std::env::var_os("PATH").unwrap_or_default();
    let mut directories = std::env::split_paths(&directories);
    directories.any(|directory| may_exist(&directory.join(format!("{}-save", family.program()))))
}

/// Whether the program exists, or may exist.
fn may_exist(program: &Path) -> bool {
    let is_none =
        |kind| matches!(kind, ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::PermissionDenied);
    !std::fs::metadata(program).is_err_and(|cause| is_none(cause.kind()))
}

/// Returns the chain for a container on a network. The name must not change, because DEL in this plugin and
/// in the reference plugins finds the chain by it.
pub fn chain_name(prefix: &str, tag: &OwnerTag) -> String {
    use sha2::{Digest, Sha512};
    let digest = Sha512::digest(format!("{}{}", tag.network, tag.container));
    hex(&format!("CNI-{prefix}"), CHAIN_MAX, &digest)
}

/// Returns a word as `iptables-save` quotes it. Control characters, which could end a script line, become
/// `_`.
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

/// Returns `-m comment --comment "…"`, truncated as by the reference plugins.
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

/// Returns the command that removes a rule.
pub fn deletion(rule: &str) -> String {
    format!("-D{}", rule.trim_start_matches("-A"))
}

// === impl Saved ===

impl Saved {
    /// Returns the output, line by line.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.0.lines()
    }

    /// Returns the table's chain names.
    fn chains(&self) -> impl Iterator<Item = &str> {
        self.lines().filter_map(|line| line.strip_prefix(':').map(first_word))
    }

    /// Whether the table has a chain with this name.
    pub fn has_chain(&self, chain: &str) -> bool {
        self.chains().any(|known| known == chain)
    }

    /// Whether the table has exactly this rule.
    pub fn has_rule(&self, rule: &str) -> bool {
        self.lines().any(|line| line.trim_end() == rule)
    }

    /// Returns the rules that jump to a chain.
    pub fn jumps<'a>(&'a self, chain: &str) -> impl Iterator<Item = &'a str> {
        let target = format!(" -j {chain}");
        self.lines().filter(move |line| line.starts_with("-A ") && line.ends_with(&target))
    }
}

fn first_word(text: &str) -> &str {
    text.split(' ').next().unwrap_or_default()
}

/// Returns network and container from a rule whose comment contains them, after `word`, as the reference
/// plugins write it.
pub fn named<'a>(rule: &'a str, word: &str) -> Option<(&'a str, &'a str)> {
    let (_, said) = rule.split_once(&format!("--comment \"{word}name: \\\""))?;
    let (network, rest) = said.split_once("\\\" id: \\\"")?;
    Some((network, rest.split_once("\\\"")?.0))
}

/// Returns the chain that contains the rule.
pub fn chain_of(rule: &str) -> Option<&str> {
    rule.strip_prefix("-A ").map(first_word)
}

/// Runs a program and returns what it printed.
fn run(program: &str, arguments: &[&str], stdin: &str) -> Result<String, Error> {
    text_of(program, &execute(program, arguments, stdin)?)
}

fn hinted(what: String) -> Error {
    Error::new(code::IO_FAILURE, what + "; the backend nftables needs no program")
}

/// Runs a program to completion.
fn execute(program: &str, arguments: &[&str], stdin: &str) -> Result<Output, Error> {
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
    child.wait_with_output().map_err(|cause| failed(&cause))
}

/// Returns what a program printed, or an error.
fn text_of(program: &str, output: &Output) -> Result<String, Error> {
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        // If the program could not be executed, the child process reports it as a plugin error.
        false => Err(match cni::invoke::read_error(&output.stdout) {
            Ok(error) => hinted(error.msg),
            Err(_) => {
                let cause = String::from_utf8_lossy(&output.stderr);
                hinted(format!("run {program}: {}", cause.trim()))
            }
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iptables_chain_names_equal_those_of_the_go_plugins() {
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
    fn iptables_comment_names_network_and_container() {
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
    fn iptables_save_output_is_complete_up_to_its_commit() {
        let whole = "# Generated\n*nat\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -j X\nCOMMIT\n# Completed\n";
        assert!(is_complete(whole, "nat"));
        let up_to = |word: &str| &whole[..whole.find(word).unwrap()];
        for part in [up_to(":PREROUTING"), up_to("-A"), up_to("COMMIT"), &whole[..whole.len() - 15]] {
            assert!(!is_complete(part, "nat"), "{part:?}");
        }
        assert!(!is_complete("*filter\nCOMMIT\n*nat\n", "nat"));
        // Output without the table: the kernel has none, or the program says in a comment that it cannot read it.
        for none in ["", "# Table `nat' is incompatible, use 'nft' tool.\n", "*filter\n"] {
            assert!(is_complete(none, "nat"), "{none:?}");
        }
    }

    #[test]
    fn iptables_script_text_is_quoted_as_one_word() {
        assert_eq!(quoted("a b"), "\"a b\"");
        assert_eq!(quoted("a\"\\\nCOMMIT"), "\"a\\\"\\\\_COMMIT\"");
        let long = comment(&"x".repeat(300));
        assert_eq!(long.len(), "-m comment --comment \"\"".len() + 256);
        assert!(long.ends_with("...\""));
    }
}
