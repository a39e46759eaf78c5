//! Answer to a review: which checks apply to which object.

use std::time::Instant;

use kube::core::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, AdmissionReview, Operation};
use manifest::lint::Knowledge;
use npwg::metadata::NetworkReference;
use serde_json::Value;
use tracing::info;

use crate::AdmissionController;
use crate::completion::Completion;
use crate::findings::{Findings, clipped};
use crate::{pod_form, protection, references};

/// Webhooks of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Webhook {
    /// Denies or warns.
    Validate,
    /// Completes pods.
    Mutate,
}

impl Webhook {
    fn word(self) -> &'static str {
        match self {
            Webhook::Validate => "validate",
            Webhook::Mutate => "mutate",
        }
    }
}

/// Review of an object whose fields weft reads itself.
type Review = AdmissionReview<DynamicObject>;

/// Objects and names of a request.
struct Subject {
    kind: String,
    namespace: String,
    name: String,
    operation: Operation,
    object: Value,
    old: Value,
}

impl AdmissionController {
    /// Returns the answer to the body of a request; `None` if it is no review.
    pub(crate) fn answer(&self, webhook: Webhook, body: &[u8]) -> Option<Vec<u8>> {
        let began = Instant::now();
        let Some(request) = request(body) else {
            self.metrics.unreadable();
            return None;
        };
        let response = AdmissionResponse::from(&request);
        let subject = Subject::of(request);
        let (response, outcome) = match webhook {
            Webhook::Validate => self.validate(&subject, response),
            Webhook::Mutate => self.mutate(&subject, response),
        };
        self.metrics.answered(webhook.word(), outcome, began.elapsed().as_secs_f64());
        serde_json::to_vec(&response.into_review()).ok()
    }

    fn validate(&self, subject: &Subject, response: AdmissionResponse) -> (AdmissionResponse, &'static str) {
        if subject.operation == Operation::Delete {
            return match self.deletion(subject) {
                Some(why) => (response.deny(why), "denied"),
                None => (response, "allowed"),
            };
        }
        let findings = self.findings(subject);
        if let Some(why) = findings.denial() {
            let Subject { kind, namespace, name, .. } = subject;
            info!(kind, namespace, name, reason = why, "denied object");
            return (response.deny(why), "denied");
        }
        let mut warnings = findings.warnings();
        if subject.kind == "NetworkAttachmentDefinition" && subject.operation == Operation::Update {
            let is_changed = subject.object.pointer("/spec/config") != subject.old.pointer("/spec/config");
            let warning = protection::warning(&self.cluster.users(&subject.network())).filter(|_| is_changed);
            warnings.extend(warning.map(|warning| clipped(&warning)));
        }
        warned(response, warnings)
    }

    /// Returns the findings about a created or updated object.
    fn findings(&self, subject: &Subject) -> Findings {
        let knowledge = Knowledge::of_known_plugins();
        let mut findings = self.of_object(&subject.object, subject, &knowledge);
        if subject.operation == Operation::Update {
            findings.tolerate(&self.of_object(&subject.old, subject, &knowledge));
        }
        findings
    }

    fn of_object(&self, object: &Value, subject: &Subject, knowledge: &Knowledge) -> Findings {
        let mut findings = Findings::of(object, knowledge);
        for pod in pod_form::pods(object, &subject.namespace) {
            references::look(&pod, &self.cluster, self.settings.missing_networks, &mut findings);
        }
        // A running pod whose labels change is not planned again.
        if subject.kind == "Pod" && subject.operation == Operation::Update {
            findings.warn_only();
        }
        findings
    }

    fn deletion(&self, subject: &Subject) -> Option<String> {
        if subject.kind != "NetworkAttachmentDefinition" {
            return None;
        }
        let network = subject.network();
        protection::refusal(&network, &subject.old, &self.cluster.users(&network))
    }

    fn mutate(&self, subject: &Subject, response: AdmissionResponse) -> (AdmissionResponse, &'static str) {
        let pods = pod_form::pods(&subject.object, &subject.namespace);
        let Some(pod) =
            pods.first().filter(|_| subject.kind == "Pod" && subject.operation == Operation::Create)
        else {
            return (response, "allowed");
        };
        let names = references::selected(pod);
        let definitions = self.cluster.definitions(&names);
        let namespace = self.cluster.namespace(&subject.namespace);
        let completion = Completion::of(&subject.object, pod, namespace.as_deref(), &definitions);
        let warnings = completion.warnings.iter().map(|warning| clipped(warning)).collect();
        let Some(patch) = completion.patch() else { return warned(response, warnings) };
        let (response, _) = warned(response, warnings);
        match response.clone().with_patch(patch) {
            Ok(response) => (response, "changed"),
            // A patch of strings and numbers has a JSON form.
            Err(_) => (response, "allowed"),
        }
    }
}

/// Returns the request of a review. An answer repeats the review's `apiVersion` and `kind`, and the API server ignores one without
/// them, so the request keeps both.
fn request(body: &[u8]) -> Option<AdmissionRequest<DynamicObject>> {
    serde_json::from_slice::<Review>(body).ok()?.try_into().ok()
}

fn warned(mut response: AdmissionResponse, warnings: Vec<String>) -> (AdmissionResponse, &'static str) {
    let outcome = if warnings.is_empty() { "allowed" } else { "warned" };
    if !warnings.is_empty() {
        response.warnings = Some(warnings);
    }
    (response, outcome)
}

impl Subject {
    fn of(request: AdmissionRequest<DynamicObject>) -> Subject {
        let AdmissionRequest { kind, name, namespace, operation, object, old_object, .. } = request;
        let json = |object: Option<DynamicObject>| {
            object.and_then(|object| serde_json::to_value(object).ok()).unwrap_or_default()
        };
        Subject {
            kind: kind.kind,
            namespace: namespace.unwrap_or_default(),
            name,
            operation,
            object: json(object),
            old: json(old_object),
        }
    }

    fn network(&self) -> NetworkReference {
        NetworkReference::new(&self.namespace, &self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn admission_answer_repeats_the_version_of_the_review() {
        let review = json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "1", "operation": "DELETE", "name": "a", "namespace": "n", "userInfo": {},
            "kind": { "group": "k8s.cni.cncf.io", "version": "v1", "kind": "NetworkAttachmentDefinition" },
            "resource": { "group": "k8s.cni.cncf.io", "version": "v1", "resource": "network-attachment-definitions" },
            "object": null, "oldObject": { "metadata": { "name": "a" } } } });
        let read = request(review.to_string().as_bytes()).unwrap();
        let answer = serde_json::to_value(AdmissionResponse::from(&read).into_review()).unwrap();
        assert_eq!((&answer["apiVersion"], &answer["kind"]), (&review["apiVersion"], &review["kind"]));
        assert_eq!(answer["response"]["uid"], "1");
        assert!(request(b"{}").is_none() && request(b"[").is_none());
    }
}
