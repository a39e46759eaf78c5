//! Metrics of the admission webhook.

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Bucket bounds for the answer time, in seconds.
const BOUNDS: [f64; 9] = [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 1.0];

/// Metrics of the admission webhook.
#[derive(Debug)]
pub struct WebhookMetrics {
    registry: Registry,
    reviews: Family<ReviewLabels, Counter>,
    seconds: Histogram,
    unreadable: Counter,
}

/// Labels of an answered review.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReviewLabels {
    webhook: &'static str,
    outcome: &'static str,
}

impl Default for WebhookMetrics {
    fn default() -> WebhookMetrics {
        WebhookMetrics::new()
    }
}

impl WebhookMetrics {
    /// Returns metrics that are all zero.
    pub fn new() -> WebhookMetrics {
        let mut registry = Registry::with_prefix("weft_admission");
        let (reviews, unreadable) = (Family::<ReviewLabels, Counter>::default(), Counter::default());
        let seconds = Histogram::new(BOUNDS);
        let help = "Number of answered reviews, by webhook and outcome";
        registry.register("reviews", help, reviews.clone());
        registry.register("answer_seconds", "Time to answer a review", seconds.clone());
        let help = "Number of requests that were no review of the API server";
        registry.register("requests_unreadable", help, unreadable.clone());
        for (webhook, outcomes) in
            [("validate", ["allowed", "warned", "denied"]), ("mutate", ["allowed", "warned", "changed"])]
        {
            for outcome in outcomes {
                let _ = reviews.get_or_create(&ReviewLabels { webhook, outcome });
            }
        }
        WebhookMetrics { registry, reviews, seconds, unreadable }
    }

    /// Counts an answered review.
    pub(crate) fn answered(&self, webhook: &'static str, outcome: &'static str, seconds: f64) {
        self.reviews.get_or_create(&ReviewLabels { webhook, outcome }).inc();
        self.seconds.observe(seconds);
    }

    /// Counts a request that is no review.
    pub(crate) fn unreadable(&self) {
        self.unreadable.inc();
    }

    /// Returns the metrics page.
    pub fn page(&self) -> String {
        let mut page = String::new();
        // Writing to a string cannot fail.
        let _ = text::encode(&mut page, &self.registry);
        page
    }
}
