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
        remove_family(program, &chain)?;
        let mut script = format!("*nat\n:{chain} - [0:0]\n");
        for net in &of_family {
            script.push_str(&format!("-A {chain} -d {net} -j ACCEPT {comment}\n"));
        }
        script.push_str(&format!("-A {chain} ! -d {multicast} -j MASQUERADE {comment}\n"));
        for net in &of_family {
            script.push_str(&format!("-A POSTROUTING -s {} -j {chain} {comment}\n", net.addr()));
        }
        script.push_str("COMMIT\n");
        restore(program, &script)?;
    }
    Ok(())
}

/// Removes the chain and every jump to it, both families.
pub(super) fn remove(mark: &Mark) -> Result<(), Error> {
    let chain = chain_name(mark);
    let results = FAMILIES.map(|(_, program, _)| remove_family(program, &chain));
    crate::interface::collected(results.into_iter().filter_map(Result::err).collect())
}

/// Removes the chains of this network whose container has no valid attachment any more.
///
/// The chain is a container's, not an interface's: as long as one of them is valid it stays.
pub(super) fn sweep(network: &str, valid: &[ValidAttachment]) -> Result<(), Error> {
    let mut errors = Vec::new();
    for (_, program, _) in FAMILIES {
        let saved = match run(&format!("{program}-save"), &["-t", "nat"], "") {
            Ok(saved) => saved,
            Err(error) => {
                errors.push(error);
                continue;
            }
        };
        let mut chains: Vec<&str> =
            saved.lines().filter_map(|line| stale_chain(line, network, valid)).collect();
        chains.dedup();
        errors.extend(chains.into_iter().filter_map(|chain| remove_family(program, chain).err()));
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

fn remove_family(program: &str, chain: &str) -> Result<(), Error> {
    let saved = run(&format!("{program}-save"), &["-t", "nat"], "")?;
    let jump = format!("-j {chain}");
    let jumps = saved.lines().filter(|line| {
        line.starts_with("-A ") && line.split(" -m ").any(|part| part.ends_with(&jump))
            || line.ends_with(&jump)
    });
    let mut script = String::from("*nat\n");
    for line in jumps {
        script.push_str(&format!("-D{}\n", line.trim_start_matches("-A")));
    }
    if saved.lines().any(|line| line.starts_with(&format!(":{chain} "))) {
        script.push_str(&format!("-F {chain}\n-X {chain}\n"));
    }
    if script == "*nat\n" {
        return Ok(());
    }
    script.push_str("COMMIT\n");
    restore(program, &script)
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
