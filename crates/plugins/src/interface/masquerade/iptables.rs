//! Masquerading through iptables, rule for rule as the reference plugins make it, so that either side
//! can remove what the other made.
//!
//! One chain per container and network, `CNI-` and a hash; a jump to it from POSTROUTING per address.
//!
//! Source: plugins `pkg/ip/ipmasq_iptables_linux.go`, `pkg/utils/utils.go` `FormatChainName` (G5);
//! iptables-restore(8).

use std::io::Write;
use std::process::{Command, Stdio};

use cni::invocation::ValidAttachment;
use cni::{Error, code};
use ipnet::IpNet;
use linux::nft::{Family, Nft, Table};

use crate::fingerprint::{Mark, hex};

/// Longest chain name iptables takes, in bytes.
const CHAIN_LENGTH: usize = 28;

/// The two programs, by family.
const FAMILIES: [(bool, &str, &str); 2] =
    [(true, "iptables", "224.0.0.0/4"), (false, "ip6tables", "ff00::/8")];

/// Where `iptables-nft` keeps the table, as nf_tables sees it.
const NFT_TABLES: [Table<'static>; 2] = [Table::new(Family::Ip, "nat"), Table::new(Family::Ip6, "nat")];

/// What the older kernel interface has in use, a table's name a line.
const LEGACY_TABLES: [&str; 2] = ["/proc/net/ip_tables_names", "/proc/net/ip6_tables_names"];

/// Is there, or could there be, a chain of the attachment? Found out without running a program.
pub(super) fn is_there(mark: &Mark) -> bool {
    let chain = chain_name(mark);
    let in_nft = |nft: &mut Nft, table| nft.rules(table, &chain).is_ok_and(|rules| !rules.is_empty());
    let legacy = |file: &&str| {
        std::fs::read_to_string(file).is_ok_and(|tables| tables.lines().any(|table| table == "nat"))
    };
    Nft::open().is_ok_and(|mut nft| NFT_TABLES.into_iter().any(|table| in_nft(&mut nft, table)))
        || LEGACY_TABLES.iter().any(legacy)
}

/// The chain's name is frozen: it is how a DEL finds it, ours or the reference plugins'.
fn chain_name(mark: &Mark) -> String {
    use sha2::{Digest, Sha512};
    hex("CNI-", CHAIN_LENGTH, &Sha512::digest(format!("{}{}", mark.network, mark.container)))
}

/// `iptables -t nat -N CHAIN`, `-A CHAIN -d SUBNET -j ACCEPT`, `-A CHAIN ! -d 224.0.0.0/4 -j MASQUERADE`,
/// `-A POSTROUTING -s IP -j CHAIN`, in one commit.
pub(super) fn add(mark: &Mark, addresses: &[IpNet]) -> Result<(), Error> {
    let chain = chain_name(mark);
    // Names hold no quotes: network name and container id were checked.
    let comment =
        format!("-m comment --comment \"name: \\\"{}\\\" id: \\\"{}\\\"\"", mark.network, mark.container);
    for (ipv4, program, multicast) in FAMILIES {
        let of_family: Vec<&IpNet> = addresses.iter().filter(|net| net.addr().is_ipv4() == ipv4).collect();
        if of_family.is_empty() {
            continue;
        }
        let saved = saved(program)?;
        let mut script = String::from("*nat\n");
        for jump in jumps(&saved, &chain).filter(|jump| is_of(jump, addresses)) {
            script.push_str(&deletion(jump));
        }
        // The chain is there if the container has another interface on the network: that one keeps its rules.
        if !has_chain(&saved, &chain) {
            script.push_str(&format!(":{chain} - [0:0]\n"));
            script.push_str(&format!("-A {chain} ! -d {multicast} -j MASQUERADE {comment}\n"));
        }
        for net in &of_family {
            let accepted =
                saved.lines().any(|rule| rule.starts_with(&format!("-A {chain} -d {} ", net.trunc())));
            if !accepted {
                script.push_str(&format!("-I {chain} 1 -d {net} -j ACCEPT {comment}\n"));
            }
        }
        for net in &of_family {
            script.push_str(&format!("-A POSTROUTING -s {} -j {chain} {comment}\n", net.addr()));
        }
        script.push_str("COMMIT\n");
        restore(program, &script)?;
    }
    Ok(())
}

/// Removes the jumps of the `known` addresses, and the chain if no other jump leads to it; without known
/// addresses the chain and every jump to it. Both families.
pub(super) fn remove(mark: &Mark, known: &[IpNet]) -> Result<(), Error> {
    let chain = chain_name(mark);
    let results = FAMILIES.map(|(_, program, _)| remove_family(program, &chain, known));
    crate::interface::collected(results.into_iter().filter_map(Result::err).collect())
}

/// Removes the chains of this network whose container has no valid attachment any more.
///
/// The chain is a container's, not an interface's: as long as one of them is valid it stays.
pub(super) fn sweep(network: &str, valid: &[ValidAttachment]) -> Result<(), Error> {
    let mut errors = Vec::new();
    for (_, program, _) in FAMILIES {
        let saved = match saved(program) {
            Ok(saved) => saved,
            Err(error) => {
                errors.push(error);
                continue;
            }
        };
        let mut chains: Vec<&str> =
            saved.lines().filter_map(|line| stale_chain(line, network, valid)).collect();
        chains.dedup();
        errors.extend(chains.into_iter().filter_map(|chain| remove_family(program, chain, &[]).err()));
    }
    crate::interface::collected(errors)
}

/// The chain of a rule of ours, if its comment names this network and none of the valid containers.
///
/// The comment is the reference plugins': `name: "NETWORK" id: "CONTAINER"`.
fn stale_chain<'a>(line: &'a str, network: &str, valid: &[ValidAttachment]) -> Option<&'a str> {
    let chain = line.strip_prefix("-A ")?.split(' ').next().filter(|chain| chain.starts_with("CNI-"))?;
    let comment = line.split_once(&format!("name: \\\"{network}\\\" id: \\\""))?.1;
    let container = comment.split_once("\\\"")?.0;
    valid.iter().all(|valid| valid.container_id != container).then_some(chain)
}

fn remove_family(program: &str, chain: &str, known: &[IpNet]) -> Result<(), Error> {
    let saved = saved(program)?;
    let (own, others): (Vec<&str>, Vec<&str>) =
        jumps(&saved, chain).partition(|jump| known.is_empty() || is_of(jump, known));
    let mut script = String::from("*nat\n");
    for jump in own {
        script.push_str(&deletion(jump));
    }
    if others.is_empty() && has_chain(&saved, chain) {
        script.push_str(&format!("-F {chain}\n-X {chain}\n"));
    }
    if script == "*nat\n" {
        return Ok(());
    }
    script.push_str("COMMIT\n");
    restore(program, &script)
}

/// The table as it is.
fn saved(program: &str) -> Result<String, Error> {
    run(&format!("{program}-save"), &["-t", "nat"], "")
}

fn has_chain(saved: &str, chain: &str) -> bool {
    saved.lines().any(|line| line.starts_with(&format!(":{chain} ")))
}

/// The rules that lead to the chain.
fn jumps<'a>(saved: &'a str, chain: &str) -> impl Iterator<Item = &'a str> {
    let target = format!("-j {chain}");
    saved.lines().filter(move |line| line.starts_with("-A ") && line.ends_with(&target))
}

/// Is it the jump of one of these addresses, in today's form or in the older one of the whole subnet?
fn is_of(jump: &str, addresses: &[IpNet]) -> bool {
    let source = jump.split_once(" -s ").and_then(|(_, rest)| rest.split(' ').next()).unwrap_or_default();
    addresses
        .iter()
        .any(|net| source == IpNet::from(net.addr()).to_string() || source == net.trunc().to_string())
}

fn deletion(rule: &str) -> String {
    format!("-D{}\n", rule.trim_start_matches("-A"))
}

/// One commit, waiting for others who change the rules.
fn restore(program: &str, script: &str) -> Result<(), Error> {
    run(&format!("{program}-restore"), &["--noflush", "--wait"], script).map(|_| ())
}

fn run(program: &str, arguments: &[&str], stdin: &str) -> Result<String, Error> {
    let failed = |cause: &dyn std::fmt::Display| {
        Error::new(
            code::IO_FAILURE,
            format!("run {program}: {cause}; ipMasqBackend nftables needs no program"),
        )
    };
    let mut child = Command::new(program)
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
        false => Err(failed(&String::from_utf8_lossy(&output.stderr).trim())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g5_the_chain_name_is_the_reference_plugins() {
        let mark = Mark {
            plugin: "bridge".into(),
            network: "test".into(),
            container: "1234".into(),
            ifname: "eth0".into(),
        };
        // Go: utils.MustFormatChainNameWithPrefix("test", "1234", "").
        assert_eq!(chain_name(&mark), "CNI-2bbe0c48b91a7d1b8a6753a8");
    }
}
