//! Metrics of a node, in the Prometheus text format.
//!
//! - Labels have few values: plugins, outcomes, kinds; never a pod, a network or a message.
//! - A counter exists at zero for each known label value, because `rate()` misses the first increment of a series that
//!   appears later. `weft_failed_calls_total` has too many combinations; `weft_call_failures_total` counts by verb.

use std::time::Duration;

use cni::code;
use cni::name::IfName;
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use rpc::plan::{AttachmentReport, PlanReport};
use rpc::task::{Task, TaskKind};

use crate::sandboxes::Sandboxes;

/// Upper bounds of the histogram buckets for durations, in seconds.
const CLASSES: [f64; 12] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0, 120.0];
/// Largest number of plugins that are counted by name; others are counted together.
const PLUGINS_MAX: usize = 64;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfPlugin {
    plugin: String,
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Plugin {
    plugin: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Stage {
    stage: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfPod {
    namespace: String,
    pod: String,
    reason: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct State {
    state: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct FailedCall {
    verb: &'static str,
    code: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfVerb {
    verb: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfTask {
    task: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TaskOutcome {
    task: &'static str,
    outcome: &'static str,
}

/// Values of the label `task`.
const TASKS: [&str; 6] = ["take-down", "check", "change", "publish", "update-policy", "verify-policy"];
/// Values of the label `outcome` for task results.
const RESULTS: [&str; 2] = ["succeeded", "failed"];
/// Values of the label `outcome` in other metrics.
const PLANNED: [&str; 2] = ["planned", "refused"];
const PUBLISHED: [&str; 3] = ["written", "skipped", "failed"];
const ALLOCATED: [&str; 3] = ["allocated", "refused", "failed"];
const CHANGED: [&str; 2] = ["changed", "failed"];
const UPDATED: [&str; 2] = ["applied", "failed"];
const EXPORTED: [&str; 2] = ["exported", "failed"];
/// Values of the label `stage`.
const STAGES: [&str; 4] = ["plan", "add", "failed_add", "status"];
/// Verb of a call that is none of [`VERBS`].
const OTHER: &str = "other";

/// Values of the label `verb`.
const VERBS: [&str; 10] = [
    "ADD",
    "DEL",
    "CHECK",
    "GC",
    "take-down",
    "check",
    "change",
    "publish",
    "update-policy",
    "verify-policy",
];
/// Values of the label `reason` besides `plugin`: stages of a call.
const REASONS: [&str; 12] = [
    "configuration",
    "ready",
    "lock",
    "leftovers",
    "plan",
    "journal",
    "links",
    "verify",
    "entry",
    "check",
    "collect",
    "task",
];

#[derive(Clone, Copy, Debug)]
struct Seconds;

impl MetricConstructor<Histogram> for Seconds {
    fn new_metric(&self) -> Histogram {
        Histogram::new(CLASSES)
    }
}

/// Counter of trace spans, by outcome.
#[derive(Clone, Debug, Default)]
pub struct Spans(Family<Outcome, Counter>);

impl Spans {
    /// Counts spans with an outcome.
    pub fn add(&self, outcome: &'static str, count: u64) {
        self.0.get_or_create(&Outcome { outcome }).inc_by(count);
    }
}

/// Metrics of a node.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    answers: Family<Outcome, Counter>,
    stages: Family<Stage, Histogram, Seconds>,
    attachments: Family<OfPlugin, Counter>,
    attaching: Family<Plugin, Histogram, Seconds>,
    published: Family<Outcome, Counter>,
    tasks: Family<OfTask, Counter>,
    task_results: Family<TaskOutcome, Counter>,
    allocations: Family<Outcome, Counter>,
    /// Number of requests to the API server for address management.
    pub address_requests: Counter,
    changes: Family<Outcome, Counter>,
    failed_calls: Family<FailedCall, Counter>,
    call_failures: Family<OfVerb, Counter>,
    policy_updates: Family<Outcome, Counter>,
    policy_update_time: Histogram,
    policy_updates_pending: Gauge,
    policy_restored: Counter,
    drifted: Gauge,
    unchecked: Gauge,
    unattached: Gauge,
    failing: Family<OfPod, Gauge>,
    /// Number of trace spans.
    pub spans: Spans,
    plugins: std::sync::Mutex<std::collections::BTreeSet<String>>,
    /// Number of requests in the queue.
    pub waiting: Gauge,
    sandboxes: Family<State, Gauge>,
}

impl Default for Metrics {
    fn default() -> Metrics {
        let seconds = || Family::<Stage, Histogram, Seconds>::new_with_constructor(Seconds);
        let metrics = Metrics {
            answers: Family::default(),
            stages: seconds(),
            attachments: Family::default(),
            attaching: Family::new_with_constructor(Seconds),
            published: Family::default(),
            tasks: Family::default(),
            task_results: Family::default(),
            allocations: Family::default(),
            address_requests: Counter::default(),
            changes: Family::default(),
            failed_calls: Family::default(),
            call_failures: Family::default(),
            policy_updates: Family::default(),
            policy_update_time: Histogram::new(CLASSES),
            policy_updates_pending: Gauge::default(),
            policy_restored: Counter::default(),
            drifted: Gauge::default(),
            unchecked: Gauge::default(),
            unattached: Gauge::default(),
            failing: Family::default(),
            spans: Spans::default(),
            plugins: std::sync::Mutex::default(),
            waiting: Gauge::default(),
            sandboxes: Family::default(),
            registry: Registry::default(),
        };
        let mut registry = Registry::with_prefix("weft");
        metrics.register_counts(&mut registry);
        metrics.register_states(&mut registry);
        metrics.register_policies(&mut registry);
        metrics.begin_at_zero();
        Metrics { registry, ..metrics }
    }
}

impl Metrics {
    /// Registers the counters and the histograms.
    fn register_counts(&self, registry: &mut Registry) {
        registry.register(
            "plan_requests",
            "Number of plan requests from weft-cni, by outcome",
            self.answers.clone(),
        );
        registry.register(
            "add_stage_duration_seconds",
            "Duration of each stage of a CNI ADD in seconds",
            self.stages.clone(),
        );
        registry.register(
            "attachments",
            "Number of attempts to attach a network, by plugin and outcome",
            self.attachments.clone(),
        );
        registry.register(
            "attachment_duration_seconds",
            "Duration of a successful attachment in seconds, by plugin",
            self.attaching.clone(),
        );
        registry.register(
            "status_updates",
            "Number of updates of the network-status annotation, by outcome",
            self.published.clone(),
        );
        registry.register(
            "allocation_requests",
            "Number of requests from weft-ipam for blocks and single addresses, by outcome",
            self.allocations.clone(),
        );
        registry.register(
            "ipam_api_requests",
            "Number of requests to the API server for address management",
            self.address_requests.clone(),
        );
        registry.register("tasks", "Number of tasks sent to weft-cni, by kind", self.tasks.clone());
        registry.register(
            "task_results",
            "Number of results of tasks that report one, by kind and outcome",
            self.task_results.clone(),
        );
        registry.register(
            "hot_plug_changes",
            "Number of changes to the networks of running pods, by outcome",
            self.changes.clone(),
        );
        registry.register(
            "failed_calls",
            "Number of failed calls and tasks of weft-cni, by verb, CNI code and reason",
            self.failed_calls.clone(),
        );
        registry.register(
            "call_failures",
            "Number of failed calls and tasks of weft-cni, by verb",
            self.call_failures.clone(),
        );
        registry.register("trace_spans", "Number of trace spans exported, by outcome", self.spans.0.clone());
    }

    /// Registers the metrics of network policies.
    fn register_policies(&self, registry: &mut Registry) {
        registry.register(
            "policy_updates",
            "Number of updates of the network policies of running pods, by outcome",
            self.policy_updates.clone(),
        );
        registry.register(
            "policy_update_duration_seconds",
            "Time from the arrival of a change to the rules of a running pod in seconds",
            self.policy_update_time.clone(),
        );
        registry.register(
            "policy_restorations",
            "Number of attachments whose rules of network policies were changed by another program, and restored",
            self.policy_restored.clone(),
        );
        registry.register(
            "policy_updates_pending",
            "Number of running pods whose rules do not have the current network policies yet",
            self.policy_updates_pending.clone(),
        );
    }

    /// Creates the series of each known label value.
    fn begin_at_zero(&self) {
        for (family, outcomes) in [
            (&self.answers, &PLANNED[..]),
            (&self.published, &PUBLISHED),
            (&self.allocations, &ALLOCATED),
            (&self.changes, &CHANGED),
            (&self.policy_updates, &UPDATED),
            (&self.spans.0, &EXPORTED),
        ] {
            for outcome in outcomes {
                let _ = family.get_or_create(&Outcome { outcome });
            }
        }
        for stage in STAGES {
            let _ = self.stages.get_or_create(&Stage { stage });
        }
        for task in TASKS {
            let _ = self.tasks.get_or_create(&OfTask { task });
        }
        for (task, outcome) in TaskKind::ALL.into_iter().flat_map(|kind| RESULTS.map(|result| (kind, result)))
        {
            let _ = self.task_results.get_or_create(&TaskOutcome { task: kind_label(task), outcome });
        }
        for verb in VERBS.into_iter().chain([OTHER]) {
            let _ = self.call_failures.get_or_create(&OfVerb { verb });
        }
    }

    /// Registers the gauges.
    fn register_states(&self, registry: &mut Registry) {
        registry.register(
            "drifted_sandboxes",
            "Number of sandboxes that differ from what was attached",
            self.drifted.clone(),
        );
        registry.register(
            "unchecked_attachments",
            "Number of attachments with a plugin that no CHECK calls: only interface and addresses are compared",
            self.unchecked.clone(),
        );
        registry.register(
            "unattached_pods",
            "Number of running pods without the networks that they select",
            self.unattached.clone(),
        );
        registry.register(
            "failing_pods",
            "Pods whose networks fail now: 1 for each, with the reason of the newest Event",
            self.failing.clone(),
        );
        registry.register(
            "plan_requests_waiting",
            "Number of plan requests that wait for a free worker",
            self.waiting.clone(),
        );
        registry.register(
            "sandboxes",
            "Number of sandboxes in the journal, by state",
            self.sandboxes.clone(),
        );
    }

    /// Counts a response to a plan request.
    pub fn answered(&self, outcome: &'static str, took: Duration) {
        self.answers.get_or_create(&Outcome { outcome }).inc();
        self.stages.get_or_create(&Stage { stage: "plan" }).observe(took.as_secs_f64());
    }

    /// Counts the attachments of a plan report.
    pub fn reported(&self, report: &PlanReport) {
        let PlanReport { microseconds, attachments, error } = report;
        let stage = if error.is_some() { "failed_add" } else { "add" };
        self.stages.get_or_create(&Stage { stage }).observe(seconds(*microseconds));
        for AttachmentReport { network: _, plugin, ifname: _, microseconds, steps: _ } in attachments {
            let plugin = self.label(plugin);
            let outcome = if microseconds.is_some() { "attached" } else { "failed" };
            self.attachments.get_or_create(&OfPlugin { plugin: plugin.clone(), outcome }).inc();
            if let Some(microseconds) = microseconds {
                self.attaching.get_or_create(&Plugin { plugin }).observe(seconds(*microseconds));
            }
        }
    }

    /// Returns the plugin's name as label value, or `other` if there are too many plugins.
    fn label(&self, plugin: &str) -> String {
        let mut known = self.plugins.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match known.contains(plugin) || known.len() < PLUGINS_MAX {
            true => {
                known.insert(plugin.to_owned());
                plugin.to_owned()
            }
            false => OTHER.to_owned(),
        }
    }

    /// Counts an update of a network-status annotation.
    pub fn published(&self, outcome: &'static str, took: Duration) {
        self.published.get_or_create(&Outcome { outcome }).inc();
        self.stages.get_or_create(&Stage { stage: "status" }).observe(took.as_secs_f64());
    }

    /// Counts tasks sent to weft-cni.
    pub fn tasks_sent(&self, tasks: &[Task]) {
        for task in tasks {
            let task = match task {
                Task::TakeDown { .. } => "take-down",
                Task::Check { .. } => "check",
                Task::Change { .. } => "change",
                Task::Publish { .. } => "publish",
                Task::UpdatePolicy { .. } => "update-policy",
                Task::VerifyPolicy { .. } => "verify-policy",
            };
            self.tasks.get_or_create(&OfTask { task }).inc();
        }
    }

    /// Counts the result of a task.
    pub fn task_ended(&self, kind: TaskKind, failed: bool) {
        let outcome = if failed { "failed" } else { "succeeded" };
        self.task_results.get_or_create(&TaskOutcome { task: kind_label(kind), outcome }).inc();
    }

    /// Counts a response to an allocation request.
    pub fn allocated(&self, outcome: &'static str) {
        self.allocations.get_or_create(&Outcome { outcome }).inc();
    }

    /// Counts a hot-plug change.
    pub fn changed(&self, outcome: &'static str) {
        self.changes.get_or_create(&Outcome { outcome }).inc();
    }

    /// Counts a failed call or task. `stage` is the stage that failed, or the name of a plugin.
    pub fn call_failed(&self, verb: &str, code: u32, stage: &str) {
        let known =
            |values: &[&'static str], text: &str| values.iter().find(|value| **value == text).copied();
        let call = FailedCall {
            verb: known(&VERBS, verb).unwrap_or(OTHER),
            code: code_label(code),
            reason: known(&REASONS, stage).unwrap_or("plugin"),
        };
        self.call_failures.get_or_create(&OfVerb { verb: call.verb }).inc();
        self.failed_calls.get_or_create(&call).inc();
    }

    /// Counts an update of network policies, with the time since the change arrived.
    pub fn policy_updated(&self, failed: bool, took: Option<Duration>) {
        let outcome = if failed { "failed" } else { "applied" };
        self.policy_updates.get_or_create(&Outcome { outcome }).inc();
        if let Some(took) = took.filter(|_| !failed) {
            self.policy_update_time.observe(took.as_secs_f64());
        }
    }

    /// Sets the number of running pods whose rules do not have the current policies.
    pub fn policy_updates_pending(&self, count: usize) {
        self.policy_updates_pending.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Counts attachments whose rules were restored.
    pub fn policy_restored(&self, count: usize) {
        self.policy_restored.inc_by(count as u64);
    }

    /// Sets the number of sandboxes with drift.
    pub fn drifted(&self, count: usize) {
        self.drifted.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Sets the number of attachments with a plugin that no CHECK calls.
    pub fn unchecked(&self, count: usize) {
        self.unchecked.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Sets how many running pods lack selected networks.
    pub fn unattached(&self, count: usize) {
        self.unattached.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Sets the pods whose networks fail: namespace, name, and the reason of the newest Event.
    pub fn failing(&self, pods: impl IntoIterator<Item = (String, String, &'static str)>) {
        self.failing.clear();
        for (namespace, pod, reason) in pods {
            self.failing.get_or_create(&OfPod { namespace, pod, reason: reason.to_owned() }).set(1);
        }
    }

    /// Sets the number of journal entries in a state.
    pub fn sandboxes(&self, state: &'static str, count: usize) {
        self.sandboxes.get_or_create(&State { state }).set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Returns metrics in which each family has a series, for the reference of metrics.
    pub fn example() -> Metrics {
        let metrics = Metrics::default();
        metrics.failing([("NAMESPACE".to_owned(), "POD".to_owned(), "REASON")]);
        let Ok(ifname) = IfName::new("eth0") else { return metrics };
        let attached = AttachmentReport {
            network: String::new(),
            plugin: "PLUGIN".to_owned(),
            ifname,
            microseconds: Some(1),
            steps: Vec::new(),
        };
        let failed = AttachmentReport { microseconds: None, ..attached.clone() };
        metrics.reported(&PlanReport { attachments: vec![attached, failed], ..PlanReport::default() });
        metrics.call_failed("ADD", code::INTERNAL, "plan");
        for state in Sandboxes::STATES {
            metrics.sandboxes(state, 0);
        }
        metrics
    }

    /// Returns the metrics page.
    pub fn page(&self) -> String {
        let mut page = String::new();
        // Writing to a string cannot fail.
        let _ = text::encode(&mut page, &self.registry);
        page
    }
}

fn kind_label(kind: TaskKind) -> &'static str {
    match kind {
        TaskKind::Check => "check",
        TaskKind::Change => "change",
        TaskKind::UpdatePolicy => "update-policy",
        TaskKind::VerifyPolicy => "verify-policy",
    }
}

/// Returns the label for a CNI code: the number if it is well-known, else `plugin` (from 100) or `other`.
fn code_label(number: u32) -> &'static str {
    match number {
        code::INCOMPATIBLE_VERSION => "1",
        code::UNSUPPORTED_FIELD => "2",
        code::UNKNOWN_CONTAINER => "3",
        code::INVALID_ENVIRONMENT => "4",
        code::IO_FAILURE => "5",
        code::DECODING_FAILURE => "6",
        code::INVALID_CONFIG => "7",
        code::INVALID_NETNS => "8",
        code::TRY_AGAIN_LATER => "11",
        code::NOT_AVAILABLE => "50",
        code::LIMITED_CONNECTIVITY => "51",
        code::INTERNAL => "999",
        100.. => "plugin",
        _ => "other",
    }
}

fn seconds(microseconds: u64) -> f64 {
    Duration::from_micros(microseconds).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_counters_exist_at_zero() {
        let page = Metrics::default().page();
        let families: Vec<&str> =
            page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter")).collect();
        let sparse = ["weft_attachments", "weft_failed_calls"];
        for family in families.iter().filter(|family| !sparse.contains(family)) {
            let samples: Vec<&str> =
                page.lines().filter(|line| line.starts_with(&format!("{family}_total"))).collect();
            assert!(
                !samples.is_empty() && samples.iter().all(|sample| sample.ends_with(" 0")),
                "{family}: {samples:?}"
            );
        }
        assert!(families.len() > 8, "{page}");
        for line in [
            r#"weft_plan_requests_total{outcome="refused"} 0"#,
            r#"weft_tasks_total{task="take-down"} 0"#,
            r#"weft_task_results_total{task="change",outcome="failed"} 0"#,
            r#"weft_call_failures_total{verb="DEL"} 0"#,
            r#"weft_add_stage_duration_seconds_count{stage="failed_add"} 0"#,
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
        }
    }

    #[test]
    fn metrics_page_has_the_counts_and_few_labels() {
        let metrics = Metrics::default();
        metrics.answered("planned", Duration::from_millis(3));
        let tried = |plugin: &str, microseconds| AttachmentReport {
            network: "n".into(),
            plugin: plugin.into(),
            ifname: IfName::new("net1").unwrap(),
            microseconds,
            steps: Vec::new(),
        };
        let mut report = PlanReport { microseconds: 5_000, ..PlanReport::default() };
        report.attachments = vec![tried("bridge", Some(1_500)), tried("macvlan", None)];
        metrics.reported(&report);
        report.attachments = (0..200).map(|n| tried(&format!("x{n}"), None)).collect();
        metrics.reported(&report);
        for number in 0..2000 {
            metrics.call_failed(&format!("V{number}"), number, &format!("plugin-{number}"));
        }
        metrics.call_failed("ADD", 7, "plan");
        let page = metrics.page();
        for line in [
            r#"weft_plan_requests_total{outcome="planned"} 1"#,
            r#"weft_attachments_total{plugin="bridge",outcome="attached"} 1"#,
            r#"weft_attachments_total{plugin="macvlan",outcome="failed"} 1"#,
            r#"weft_attachment_duration_seconds_count{plugin="bridge"} 1"#,
            r#"weft_failed_calls_total{verb="ADD",code="7",reason="plan"} 1"#,
            r#"weft_failed_calls_total{verb="other",code="11",reason="plugin"} 1"#,
            r#"weft_call_failures_total{verb="ADD"} 1"#,
        ] {
            assert!(page.contains(line), "{line} is not in\n{page}");
        }
        assert_eq!(page.matches("weft_failed_calls_total{").count(), 15, "twelve codes, two other, one call");
        assert!(page.contains(r#"plugin="other""#) && !page.contains(r#"plugin="x199""#));
    }
}
