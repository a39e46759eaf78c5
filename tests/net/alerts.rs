//! Tests for the alerts, with promtool: each fires with the series that it is about, and none with healthy
//! ones.

use rig::alerts::{RULES, Series, evaluate, names};
use testkit::{Feature, host, workspace};

/// Minute at which alerts are evaluated, after the longest `for`.
const MINUTE: usize = 60;

/// Series by name, with values.
type Rows = &'static [(&'static str, &'static str)];

/// Series with which each alert fires, and with which it does not.
const ROWS: [(&str, Rows, Rows); 20] = [
    (
        "WeftAgentUnavailable",
        &[("kube_daemonset_status_number_unavailable{daemonset=\"weft-agent\"}", "1x60")],
        &[("kube_daemonset_status_number_unavailable{daemonset=\"other\"}", "1x60")],
    ),
    (
        "WeftPodsNotAttached",
        &[("weft_call_failures_total{instance=\"a\", verb=\"ADD\"}", "0+1x60")],
        &[("weft_call_failures_total{instance=\"a\", verb=\"CHECK\"}", "0+1x60")],
    ),
    (
        "WeftPodsNotDetached",
        &[("weft_call_failures_total{instance=\"a\", verb=\"take-down\"}", "0+1x60")],
        &[("weft_call_failures_total{instance=\"a\", verb=\"DEL\"}", "7x60")],
    ),
    ("WeftUnattachedPods", &[("weft_unattached_pods", "2x60")], &[("weft_unattached_pods", "2x55 0x10")]),
    ("WeftInterfacesDrifted", &[("weft_drifted_sandboxes", "1x60")], &[("weft_drifted_sandboxes", "0x60")]),
    (
        "WeftStatusNotWritten",
        &[("weft_status_updates_total{outcome=\"failed\"}", "0+1x60")],
        &[("weft_status_updates_total{outcome=\"written\"}", "0+9x60")],
    ),
    (
        "WeftPlanRequestsWait",
        &[("weft_plan_requests_waiting", "3x60")],
        &[("weft_plan_requests_waiting", "0 9 0 9 0x60")],
    ),
    (
        "WeftCacheStale",
        &[("weft_cache_age_seconds{resource=\"pods\"}", "0+60x60")],
        &[("weft_cache_age_seconds{resource=\"pods\"}", "59x60")],
    ),
    (
        "WeftJournalUnreadable",
        &[("weft_sandboxes{state=\"unreadable\"}", "1x60")],
        &[("weft_sandboxes{state=\"attached\"}", "9x60")],
    ),
    (
        "WeftAttachSlow",
        &[
            ("weft_add_stage_duration_seconds_bucket{stage=\"add\", le=\"5.0\"}", "0x60"),
            ("weft_add_stage_duration_seconds_bucket{stage=\"add\", le=\"30.0\"}", "0+9x60"),
            ("weft_add_stage_duration_seconds_bucket{stage=\"add\", le=\"+Inf\"}", "0+9x60"),
        ],
        &[
            ("weft_add_stage_duration_seconds_bucket{stage=\"add\", le=\"5.0\"}", "0+9x60"),
            ("weft_add_stage_duration_seconds_bucket{stage=\"add\", le=\"30.0\"}", "0+9x60"),
            ("weft_add_stage_duration_seconds_bucket{stage=\"add\", le=\"+Inf\"}", "0+9x60"),
        ],
    ),
    (
        "WeftHotPlugFails",
        &[("weft_task_results_total{task=\"change\", outcome=\"failed\"}", "0x40 1x20")],
        &[("weft_task_results_total{task=\"check\", outcome=\"failed\"}", "0+1x60")],
    ),
    (
        "WeftInterfaceDrops",
        &[
            ("weft_interface_receive_packets_dropped_total{pod=\"web\", interface=\"net1\"}", "0+1200x60"),
            ("weft_interface_transmit_packets_dropped_total{pod=\"web\", interface=\"net1\"}", "0x60"),
        ],
        &[
            ("weft_interface_receive_packets_dropped_total{pod=\"web\", interface=\"net1\"}", "0+60x60"),
            ("weft_interface_transmit_packets_dropped_total{pod=\"web\", interface=\"net1\"}", "0+60x60"),
        ],
    ),
    (
        "WeftPoolNearlyFull",
        &[("weft_ipam_pool_size{pool=\"p\"}", "100x60"), ("weft_ipam_pool_free{pool=\"p\"}", "9x60")],
        &[("weft_ipam_pool_size{pool=\"p\"}", "100x60"), ("weft_ipam_pool_free{pool=\"p\"}", "11x60")],
    ),
    (
        "WeftPoolFull",
        &[("weft_ipam_pool_size{pool=\"p\"}", "100x60"), ("weft_ipam_pool_free{pool=\"p\"}", "0x60")],
        &[("weft_ipam_pool_size{pool=\"p\"}", "0x60"), ("weft_ipam_pool_free{pool=\"p\"}", "0x60")],
    ),
    ("WeftIpamFindings", &[("weft_ipam_findings", "1x60")], &[("weft_ipam_findings", "0x60")]),
    (
        "WeftIpamReconciliationFails",
        &[("weft_ipam_reconciliation_failures_total", "0+1x60")],
        &[("weft_ipam_reconciliation_failures_total", "5x60")],
    ),
    (
        "WeftControllerWithoutLeader",
        &[("weft_services_leader{pod=\"a\"}", "0x60"), ("weft_services_leader{pod=\"b\"}", "0x60")],
        &[("weft_services_leader{pod=\"a\"}", "1x60"), ("weft_services_leader{pod=\"b\"}", "0x60")],
    ),
    ("WeftServicesRefused", &[("weft_services_refused", "1x60")], &[("weft_services_refused", "0x60")]),
    (
        "WeftServiceWritesFail",
        &[("weft_services_endpointslice_write_failures_total", "0+1x60")],
        &[("weft_services_endpointslice_write_failures_total", "0x60")],
    ),
    (
        "WeftNeutronPortsPending",
        &[("weft_neutron_pods_pending", "1x60")],
        &[("weft_neutron_pods_pending", "0 1 0x60")],
    ),
];

#[test]
fn alerts_fire_with_their_series_and_with_no_others() {
    let host = host!(Feature::Promtool);
    let rules = workspace().join(RULES);
    host.command("promtool").args(["check", "rules"]).args([rules]).finish().success();
    let alerts = names();
    assert_eq!(alerts, ROWS.map(|(name, ..)| name), "each alert has a row");
    for (alert, firing, healthy) in ROWS {
        let series = |rows: &[(&str, &str)]| -> Vec<Series> {
            rows.iter().map(|(name, values)| Series::new(name, values)).collect()
        };
        // A full pool is nearly full, too.
        let may_fire = |name: &str| name == alert || (alert, name) == ("WeftPoolFull", "WeftPoolNearlyFull");
        let expected: Vec<(&str, bool)> = alerts.iter().map(|name| (name.as_str(), may_fire(name))).collect();
        let finished = evaluate(&host, &series(firing), MINUTE, &expected);
        assert_eq!(finished.code, Some(0), "{alert}: {finished}");
        let none: Vec<(&str, bool)> = alerts.iter().map(|name| (name.as_str(), false)).collect();
        let finished = evaluate(&host, &series(healthy), MINUTE, &none);
        assert_eq!(finished.code, Some(0), "{alert}: {finished}");
    }
}

#[test]
fn alerts_have_summary_description_and_runbook() {
    let rules = std::fs::read_to_string(workspace().join(RULES)).expect("the rules");
    let page = std::fs::read_to_string(workspace().join("docs/runbooks.md")).expect("the runbooks");
    for rule in rules.split("      - alert: ").skip(1) {
        let name = rule.lines().next().expect("a name");
        for word in ["expr: ", "for: ", "severity: ", "summary: ", "description: "] {
            assert!(rule.contains(word), "{name}: no {word}");
        }
        let anchor = format!("/docs/runbooks.md#{}\n", name.to_lowercase());
        assert!(rule.contains(&anchor), "{name}: {rule}");
        let section = page.split("\n### ").find(|section| section.starts_with(&format!("{name}\n")));
        assert!(section.is_some_and(|section| section.contains("\n1. ")), "{name}: no runbook");
    }
    let kustomized = std::fs::read_to_string(workspace().join("deploy/monitoring/prometheus-rule.yaml"));
    let groups = |text: &str| -> Vec<String> {
        let lines = text.lines().skip_while(|line| line.trim() != "groups:");
        lines.map(|line| line.trim().to_owned()).collect()
    };
    assert_eq!(groups(&kustomized.expect("the object")), groups(&rules));
}
