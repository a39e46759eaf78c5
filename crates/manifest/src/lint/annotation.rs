//! Linter of the network annotations of pods and pod templates.

use super::{Place, Report};
use crate::{Located, PodObject};
use npwg::refusal::{Fault, KeyPath};
use npwg::rule::Rule;
use npwg::selection::{Annotation, Reading};

/// Default namespace of a default-network annotation without one.
const MULTUS_NAMESPACE: &str = "kube-system";

/// Name that container runtimes give to the interface of the default network.
const USUAL_NAME: &str = "eth0";

pub(super) fn look(report: &mut Report<'_>, located: &Located<PodObject>) {
    let PodObject { pod, kind } = &located.value;
    for annotation in [Annotation::DefaultNetwork, Annotation::Networks] {
        let Some(text) = pod.annotations.get(annotation.key()) else { continue };
        let path = KeyPath::root().key("metadata").key("annotations").key(annotation.key());
        let node = located.node_at(&path);
        let place = Place::Scalar(node.span);
        let home = match annotation {
            Annotation::Networks => pod.namespace.as_str(),
            Annotation::DefaultNetwork => MULTUS_NAMESPACE,
        };
        let reading = Reading::of(annotation, text, home);
        for refusal in &reading.refusals {
            report.add_at_path(place, text, refusal.fault().clone());
        }
        for warning in &reading.warnings {
            report.add_at_path(place, text, warning.fault.clone());
        }
        if annotation == Annotation::Networks {
            reserved_names(report, place, text, &reading);
        }
        if pod.host_network {
            let subject = format!("{} {}/{}", kind.to_lowercase(), pod.namespace, pod.name);
            let fault = Fault::new(
                Rule::HostNetworkPod,
                subject,
                "hostNetwork is true: this annotation has no effect",
            )
            .at(path)
            .cure("remove one of the two");
            report.add(node.span.start, fault);
        }
    }
    misplaced(report, located);
}

/// Reports requested interface names that a pod has already.
fn reserved_names(report: &mut Report<'_>, place: Place<'_>, text: &str, reading: &Reading) {
    for element in &reading.elements {
        let name = element.interface.as_ref().map(|name| name.as_str());
        let (rule, reason) = match name {
            Some("lo") => (Rule::DuplicateInterfaceName, "is the loopback interface, which every pod has"),
            Some(USUAL_NAME) => (
                Rule::DefaultInterfaceName,
                "is the name that runtimes give to the default network; such a pod is refused",
            ),
            _ => continue,
        };
        let path = KeyPath::root().index(element.index).key("interface");
        let fault = Fault::new(rule, Annotation::Networks.subject(), reason).at(path);
        let fault = fault.showing(&npwg::refusal::quote(name.unwrap_or_default()));
        report.add_at_path(place, text, fault.cure("choose another name, or leave it out"));
    }
}

/// Reports annotations that are on the workload instead of its pod template.
fn misplaced(report: &mut Report<'_>, located: &Located<PodObject>) {
    if located.base.is_root() {
        return;
    }
    let annotations = KeyPath::root().key("metadata").key("annotations");
    for annotation in [Annotation::DefaultNetwork, Annotation::Networks] {
        let Some(node) = located.node.get("metadata").and_then(|node| node.get("annotations")) else {
            continue;
        };
        if let Some(value) = node.get(annotation.key()) {
            let PodObject { pod, kind } = &located.value;
            let subject = format!("{} {}/{}", kind.to_lowercase(), pod.namespace, pod.name);
            let reason = format!("has no effect on a {kind}: pods get the annotations of the template");
            let fault = Fault::new(Rule::MisplacedAnnotation, subject, reason)
                .at(annotations.key(annotation.key()))
                .cure(format!("move it to {}.metadata.annotations", located.base));
            report.add(value.span.start, fault);
        }
    }
}
