//! Phrases that are not plain technical English, each with the words to use instead.

/// Words that a name in code may not contain, with the terms to use instead.
const NAMES: &[(&str, &str)] = &[
    ("hands", "weft-cni or PluginInvoker"),
    ("brain", "AgentState or Planner"),
    ("desk", "PortReconciler or AgentServer"),
    ("oracle", "RequestHandler"),
    ("overseer", "SandboxGc"),
    ("suspects", "orphaned sandboxes"),
    ("keeper", "LeaseManager, IpamReconciler or JournalHandle"),
    ("warden", "controller"),
    ("census", "ClusterSnapshot"),
    ("sighting", "AddressUse"),
    ("supplier", "BlockProvider"),
    ("shelf", "prefetched blocks"),
    ("giver", "transfer handler"),
    ("asker", "client liveness probe"),
    ("demand", "AllocateRequest"),
    ("delivery", "AllocateResponse"),
    ("wish", "request"),
    ("errand", "task batch"),
    ("errands", "task batches"),
    ("obey", "run tasks"),
    ("doubt", "unconfirmed"),
    ("hole", "reserved address"),
    ("holes", "reserved addresses"),
    ("rests", "quarantine"),
    ("resting", "quarantined"),
    ("leash", "parent death"),
    ("told", "notify or log"),
    ("heard", "receive or observe"),
    ("lasting", "supervised background task"),
    ("unanswered", "api error"),
    ("courtesy", "best-effort timeout"),
    ("patience", "timeout"),
    ("door", "server"),
    ("respelled", "rewritten"),
    ("former", "legacy"),
    ("companion", "executor"),
    ("fingerprint", "owner tag"),
    ("ledger", "address store"),
    ("lender", "API server pool"),
    ("loan", "API server pool"),
    ("stranger", "another process"),
    ("crowd", "concurrency"),
    ("duel", "comparison"),
    ("nobody", "none"),
    ("somebody", "another process"),
    ("anew", "again"),
];

/// Phrases that prose may not contain, with the words to use instead.
const PHRASES: &[(&str, &str)] = &[
    ("who", "the client, the caller, the plugin, …"),
    ("whoever", "the client, the caller, the plugin, …"),
    ("whom", "the client, the caller, the plugin, …"),
    ("nobody", "no client, no process, no node, …"),
    ("somebody", "another process, a client, …"),
    ("anybody", "any process, any client, …"),
    ("everybody", "every process, every client, …"),
    ("he", "it"),
    ("him", "it"),
    ("his", "its"),
    ("himself", "itself"),
    ("she", "it"),
    ("anew", "again"),
    ("is had", "is obtained, is available"),
    ("be had", "be obtained, be available"),
    ("was had", "was obtained"),
    ("a hand", "an operator, manually"),
    ("the hands", "weft-cni"),
    ("its hands", "weft-cni"),
    ("no hands", "no executor"),
    ("weft hands", "weft executor"),
    ("by hand", "manually"),
    ("brain", "node agent"),
    ("brains", "node agents"),
    ("desk", "port reconciler, agent server"),
    ("oracle", "request handler"),
    ("overseer", "sandbox garbage collection"),
    ("suspects", "orphaned sandboxes"),
    ("keeper", "lease manager, IPAM reconciler"),
    ("keepers", "lease managers, IPAM reconcilers"),
    ("warden", "controller"),
    ("wardens", "controllers"),
    ("census", "snapshot of the cluster"),
    ("sighting", "use of an address"),
    ("sightings", "uses of an address"),
    ("supplier", "block provider"),
    ("shelf", "prefetched blocks"),
    ("giver", "transfer handler"),
    ("asker", "client"),
    ("askers", "clients"),
    ("errand", "task batch"),
    ("errands", "task batches"),
    ("obey", "run tasks"),
    ("obeys", "runs tasks"),
    ("obeyed", "run"),
    ("give-up", "transfer, release"),
    ("doubt", "unconfirmed"),
    ("doubts", "unconfirmed"),
    ("doubted", "unconfirmed"),
    ("hole", "reserved address"),
    ("holes", "reserved addresses"),
    ("rests", "is in quarantine"),
    ("resting", "in quarantine"),
    ("rested", "was in quarantine"),
    ("leash", "parent death"),
    ("told", "notified, logged, given"),
    ("heard", "received, observed"),
    ("hears", "receives, observes"),
    ("lasting", "supervised background task"),
    ("aside", "in a blocking thread"),
    ("unanswered", "not answered"),
    ("courtesy", "best-effort"),
    ("patience", "timeout"),
    ("door", "server"),
    ("doors", "servers"),
    ("respelled", "rewritten"),
    ("former", "the first, previous"),
    ("companion", "executor"),
    ("fingerprint", "owner tag"),
    ("fingerprints", "owner tags"),
    ("ledger", "address store"),
    ("ledgers", "address stores"),
    ("lender", "API server pool"),
    ("lent", "taken from the pool"),
    ("lends", "takes from the pool"),
    ("loan", "API server pool"),
    ("duel", "comparison"),
    ("duels", "comparisons"),
    ("crowd", "concurrency"),
    ("stranger", "another process, another user"),
    ("strangers", "other processes, other users"),
    ("furniture", "shared objects of the host"),
    ("wish", "request"),
    ("wishes", "requests"),
    ("spoilt", "invalid"),
    ("spoils", "makes invalid"),
    ("mended", "fixed"),
    ("mends", "repairs"),
    ("want of", "lack of, timeout of"),
    ("what is left", "the remaining …"),
    ("what was left", "the remaining …"),
    ("what stays", "the remaining …"),
    ("cut into", "split into"),
    ("cut from", "split from"),
    ("cut out", "split from"),
    ("theirs", "the peer's"),
    ("pod goes", "pod is deleted"),
    ("pods go", "pods are deleted"),
    ("pod went", "pod was deleted"),
    ("pod comes", "pod starts"),
    ("pods come", "pods start"),
    ("pod came", "pod started"),
];

/// First words of log lines that keep their capital.
pub(super) const PROPER_NOUNS: &[&str] = &["Neutron", "Kubernetes", "Service", "Event", "Multus"];

/// Returns the fault of a name in code: one of its words is an old term.
pub(super) fn fault_of_name(name: &str) -> Option<String> {
    let words = words_of_name(name);
    let (word, instead) = NAMES.iter().find(|(word, _)| words.iter().any(|own| own == word))?;
    Some(format!("\"{word}\" in a name; use {instead}"))
}

/// Returns the words of a name in any case of Rust, in lower case.
fn words_of_name(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut after_capital = true;
    for letter in name.chars() {
        let boundary = letter == '_' || letter.is_uppercase() && !after_capital;
        if boundary || words.is_empty() {
            words.push(String::new());
        }
        after_capital = letter.is_uppercase() || letter == '_';
        if let Some(word) = words.last_mut().filter(|_| letter != '_') {
            word.extend(letter.to_lowercase());
        }
    }
    words
}

/// Returns the faults of prose, given its words in lower case.
pub(super) fn faults_of_prose(words: &[String]) -> Vec<String> {
    let fault = |&(phrase, instead): &(&str, &str)| {
        let parts: Vec<&str> = phrase.split(' ').collect();
        let found = words.windows(parts.len()).any(|window| window.iter().zip(&parts).all(|(a, b)| a == b));
        found.then(|| format!("\"{phrase}\"; say: {instead}"))
    };
    PHRASES.iter().filter_map(fault).collect()
}
