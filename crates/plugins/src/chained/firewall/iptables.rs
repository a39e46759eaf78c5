//! The backend `iptables`, with the chains of the reference plugin and one commit for each address family.
//!
//! ```text
//! FORWARD:               -j CNI-ISOLATION-STAGE-1; -j CNI-FORWARD; …
//! CNI-FORWARD:           -j CNI-ADMIN
//!                        -d 10.1.0.5/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; -s 10.1.0.5/32 -j ACCEPT
//! CNI-ISOLATION-STAGE-1: -i br0 -o br0 -j DROP (isolated); -i br0 ! -o br0 -j CNI-ISOLATION-STAGE-2; -j RETURN
//! CNI-ISOLATION-STAGE-2: -o br0 -j DROP; -j RETURN
//! ```
//!
//! The comment on a container's two rules is the owner tag, so DEL and GC find them without the address. The reference
//! plugin's rules have no comment and are found by address.
//!
//! Source: plugins `plugins/meta/firewall/{iptables,ingresspolicy}.go`.

use cni::Error;
use cni::invocation::ValidAttachment;
use ipnet::IpNet;
use plugin_config::firewall::Policy;
use plugin_support::owner_tag::{COMMENT_MAX, OwnerTag};

use super::settings::PolicyTarget;
use super::{PRIVATE, TABLE};
use crate::entries;
use crate::iptables::{self, Family, FilterLock, Saved, chain_of, comment, deletion};

const STAGE_1: &str = "CNI-ISOLATION-STAGE-1";
const STAGE_2: &str = "CNI-ISOLATION-STAGE-2";

/// Rules for one container.
pub(super) struct ContainerRules<'a> {
    pub(super) tag: &'a OwnerTag,
    pub(super) admin_chain: &'a str,
    pub(super) addresses: &'a [IpNet],
    pub(super) policy: Policy,
    pub(super) target: Option<&'a PolicyTarget>,
}

// === impl ContainerRules ===

impl ContainerRules<'_> {
    fn families(&self) -> impl Iterator<Item = Family> {
        Family::ALL.into_iter().filter(|family| self.addresses.iter().any(|net| family.has(net.addr())))
    }

    /// Adds the container's rules and those that the ingress policy needs.
    pub(super) fn add(&self) -> Result<(), Error> {
        let lock = FilterLock::take()?;
        for family in self.families() {
            family.change(&lock, TABLE, &mut |saved| {
                let mut script = self.shared_objects(saved);
                let own = self.rules(family);
                let tag = self.tag.text(COMMENT_MAX);
                let before = saved.lines().filter(|line| comment_of(line) == Some(&tag));
                script.extend(before.filter(|line| !own.iter().any(|rule| rule == line)).map(deletion));
                script.extend(own.into_iter().filter(|rule| !saved.has_rule(rule)));
                script
            })?;
        }
        Ok(())
    }

    /// Fails unless all rules exist. A container's rules may be the reference plugin's, which have no comment.
    pub(super) fn check(&self) -> Result<(), Error> {
        let own = format!("{} ", comment(&self.tag.text(COMMENT_MAX)));
        for family in self.families() {
            let saved = family.save(TABLE)?;
            let wanted = self.shared_objects(&saved).into_iter().chain(self.rules(family));
            let exists = |rule: &str| saved.has_rule(rule) || saved.has_rule(&rule.replace(&own, ""));
            let missing = wanted.into_iter().find(|line| !iptables::is_creation(line) && !exists(line));
            if let Some(rule) = missing {
                return Err(Error::internal(format!("table filter lacks rule {rule}")));
            }
        }
        Ok(())
    }

    /// Returns the container's rules.
    fn rules(&self, family: Family) -> Vec<String> {
        let comment = comment(&self.tag.text(COMMENT_MAX));
        let own = self.addresses.iter().filter(|net| family.has(net.addr()));
        own.flat_map(|net| pair(net, &format!("{comment} "))).collect()
    }

    /// Returns the commands for missing chains and rules that all containers share, in execution order.
    fn shared_objects(&self, saved: &Saved) -> Vec<String> {
        let mut chains = vec![PRIVATE, self.admin_chain];
        let mut lines = Vec::new();
        let mut insert = |chain: &str, rule: String| {
            if !saved.has_rule(&format!("-A {chain} {rule}")) {
                lines.push(format!("-I {chain} {rule}"));
            }
        };
        insert("FORWARD", format!("{} -j {PRIVATE}", comment("CNI firewall plugin rules")));
        insert(
            PRIVATE,
            format!("{} -j {}", comment("CNI firewall plugin admin overrides"), self.admin_chain),
        );
        let default = comment("CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)");
        let stage_1 = format!("FORWARD {default} -j {STAGE_1}");
        let is_behind = saved.has_rule(&format!("-A {stage_1}"));
        if let Some(target) = self.target {
            let bridge = &target.bridge;
            let name = if self.policy == Policy::Isolated { "isolated" } else { "same-bridge" };
            let policy = comment(&format!("CNI firewall plugin rules (ingressPolicy: {name})"));
            chains.extend([STAGE_1, STAGE_2]);
            insert(STAGE_1, format!("{default} -j RETURN"));
            insert(STAGE_1, format!("-i {bridge} ! -o {bridge} {policy} -j {STAGE_2}"));
            if self.policy == Policy::Isolated {
                insert(STAGE_1, format!("-i {bridge} -o {bridge} {policy} -j DROP"));
            }
            insert(STAGE_2, format!("{default} -j RETURN"));
            insert(STAGE_2, format!("-o {bridge} {default} -j DROP"));
            insert("FORWARD", format!("{default} -j {STAGE_1}"));
        }
        // The rules of policies must precede those that accept.
        if is_behind && lines.iter().any(|line| line.starts_with("-I FORWARD ")) {
            lines.extend([format!("-D {stage_1}"), format!("-I {stage_1}")]);
        }
        let made = chains.into_iter().filter(|chain| !saved.has_chain(chain));
        made.map(iptables::creation).chain(lines).collect()
    }
}

/// Returns the rules that accept replies to an address and traffic from it.
fn pair(net: &IpNet, comment: &str) -> [String; 2] {
    [
        format!("-A {PRIVATE} -d {net} {comment}-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"),
        format!("-A {PRIVATE} -s {net} {comment}-j ACCEPT"),
    ]
}

/// Returns the comment on a rule, if it is a container's.
pub fn comment_of(rule: &str) -> Option<&str> {
    chain_of(rule).filter(|chain| *chain == PRIVATE)?;
    rule.split_once(" --comment \"")?.1.split_once('"').map(|(text, _)| text)
}

// === DEL, GC ===

/// Removes the container's rules by owner tag. If a family has none, removes those without a comment that match a known
/// address: the reference plugin created them. Otherwise those belong to another container with the address.
pub(super) fn remove(tag: &OwnerTag, known: &[IpNet]) -> Result<(), Error> {
    let text = tag.text(COMMENT_MAX);
    iptables::clean(TABLE, &[PRIVATE], &mut |saved| {
        let own: Vec<&str> = saved.lines().filter(|line| comment_of(line) == Some(&text)).collect();
        let is_known =
            |line: &&str| known.iter().any(|net| pair(net, "").iter().any(|rule| rule == line.trim_end()));
        match own.is_empty() {
            true => saved.lines().filter(is_known).map(deletion).collect(),
            false => own.into_iter().map(deletion).collect(),
        }
    })
}

/// Removes the rules that attachments of `plugin` to `network` have and that are not valid any more. The reference
/// plugin's rules stay, because they do not name an attachment.
pub(super) fn sweep(plugin: &str, network: &str, valid: &[ValidAttachment]) -> Result<(), Error> {
    let is_stale = entries::is_stale(plugin, network, valid);
    remove_all(&|line| comment_of(line).is_some_and(&is_stale))
}

fn remove_all(matches: &dyn Fn(&str) -> bool) -> Result<(), Error> {
    iptables::clean(TABLE, &[PRIVATE], &mut |saved| {
        saved.lines().filter(|line| matches(line)).map(deletion).collect()
    })
}

/// Fails unless the programs can be run.
pub(super) fn status() -> Result<(), Error> {
    Family::V4.save(TABLE).map(drop)
}
