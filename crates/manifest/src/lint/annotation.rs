//! Linter for network annotations on pods and pod templates.

use super::{Place, Report};
use crate::{Located, PodObject};
use cni::name::IfName;
use npwg::refusal::{Fault, KeyPath};
use npwg::rule::Rule;
use npwg::selection::{Annotation, Reading};

/// Namespace that a default-network annotation means if it names none.
const MULTUS_NAMESPACE: &str = "kube-system";

/// Interface name that container runtimes give to the default network.
const USUAL_NAME: &str = "eth0";

pub(super) fn look(report: &mut Report<'_>, located: &Located<PodObject>) {
    let PodObject { pod, kind } = &located.value;
    let owner = format!("{} {}/{}", kind.to_lowercase(), pod.namespace, pod.name);
    // Name that the default-network annotation requests.
    let mut renamed = None;
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
        let refused = reading.refusals.iter().map(|refusal| refusal.fault());
        for fault in refused.chain(reading.warnings.iter().map(|warning| &warning.fault)) {
            let subject = format!("{} of {owner}", fault.subject);
            report.add_at_path(place, text, Fault { subject, ..fault.clone() });
        }
        match annotation {
            Annotation::DefaultNetwork => {
                renamed = reading.elements.first().and_then(|element| element.interface.clone());
            }
            Annotation::Networks => {
                let subject = format!("{} of {owner}", annotation.subject());
                reserved_names(report, &subject, (place, text), &reading, renamed.as_ref());
            }
        }
        if pod.host_network {
            let fault = Fault::new(
                Rule::HostNetworkPod,
                &owner,
                "hostNetwork is true: this annotation has no effect",
            )
            .at(path)
            .hint("remove one of the two");
            report.add(node.span.start, fault);
        }
    }
    misplaced(report, located);
}

/// Reports requested interface names that a pod has already; `renamed` is the name that the default network requests.
fn reserved_names(
    report: &mut Report<'_>,
    subject: &str,
    (place, text): (Place<'_>, &str),
    reading: &Reading,
    renamed: Option<&IfName>,
) {
    let of_default = renamed.map_or(USUAL_NAME, IfName::as_str);
    for element in &reading.elements {
        let Some(name) = element.interface.as_ref().map(IfName::as_str) else { continue };
        let (rule, reason) = match name {
            "lo" => (Rule::DuplicateInterfaceName, "is the loopback interface, which every pod has"),
            name if name != of_default => continue,
            _ if renamed.is_some() => (Rule::DuplicateInterfaceName, "is the name of the default network"),
            _ => (
                Rule::DefaultInterfaceName,
                "is the name that runtimes give to the default network; such a pod is refused",
            ),
        };
        let path = KeyPath::root().index(element.index).key("interface");
        let fault = Fault::new(rule, subject, reason).at(path);
        let fault = fault.showing(&npwg::refusal::quote(name));
        report.add_at_path(place, text, fault.hint("choose another name, or leave it out"));
    }
}

/// Reports annotations that are on the workload instead of the pod template.
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
                .hint(format!("move it to {}.metadata.annotations", located.base));
            report.add(value.span.start, fault);
        }
    }
}
