//! Pod or pod template that selects networks, with the places that findings about it name.

use std::collections::BTreeMap;

use npwg::metadata::Pod;
use npwg::refusal::{KeyPath, Step};
use npwg::selection::Reading;
use serde_json::Value as Json;

use super::Seen;
use crate::{Located, PodObject};

/// Pod or pod template with the annotation that selects networks.
#[derive(Debug)]
pub(super) struct SelectingPod {
    /// The pod; a template has the workload's name.
    pub(super) pod: Pod,
    /// Object kind in the file.
    pub(super) kind: String,
    /// Number of pods that the object runs at the same time.
    pub(super) instances: Instances,
    /// Content of the annotation.
    pub(super) reading: Reading,
    annotation: Seen,
    elements: BTreeMap<usize, Seen>,
}

/// Number of pods that an object runs at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Instances {
    /// As many as the object says.
    Count(u64),
    /// One on each node.
    EachNode,
}

impl SelectingPod {
    /// Returns the pod in an object. `annotation` and `elements` say where the annotation and the elements are.
    pub(super) fn new(
        located: &Located<PodObject>,
        reading: Reading,
        annotation: Seen,
        elements: BTreeMap<usize, Seen>,
    ) -> SelectingPod {
        let PodObject { pod, kind } = &located.value;
        let instances = Instances::of(kind, &located.node.to_json());
        SelectingPod { pod: pod.clone(), kind: kind.clone(), instances, reading, annotation, elements }
    }

    /// Returns what messages call the object, for example `deployment default/web`.
    pub(super) fn subject(&self) -> String {
        format!("{} {}/{}", self.kind.to_lowercase(), self.pod.namespace, self.pod.name)
    }

    /// Returns where a path in the annotation is in the file.
    pub(super) fn place(&self, path: &KeyPath) -> &Seen {
        match path.steps().first() {
            Some(Step::Index(index)) => self.elements.get(index).unwrap_or(&self.annotation),
            _ => &self.annotation,
        }
    }
}

impl Instances {
    fn of(kind: &str, object: &Json) -> Instances {
        let count = |path: &str| object.pointer(path).and_then(Json::as_u64).unwrap_or(1);
        match kind {
            "DaemonSet" => Instances::EachNode,
            "Job" => Instances::Count(count("/spec/parallelism")),
            "CronJob" => Instances::Count(count("/spec/jobTemplate/spec/parallelism")),
            _ => Instances::Count(count("/spec/replicas")),
        }
    }

    /// Whether several pods run at the same time.
    pub(super) fn are_several(self) -> bool {
        self != Instances::Count(1) && self != Instances::Count(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn instances_are_those_that_run_at_the_same_time() {
        for (kind, object, expected) in [
            ("Pod", json!({}), Instances::Count(1)),
            ("Deployment", json!({"spec": {"replicas": 3}}), Instances::Count(3)),
            ("Deployment", json!({"spec": {"replicas": "x"}}), Instances::Count(1)),
            ("StatefulSet", json!({"spec": {}}), Instances::Count(1)),
            ("DaemonSet", json!({"spec": {"replicas": 1}}), Instances::EachNode),
            ("Job", json!({"spec": {"parallelism": 2, "completions": 9}}), Instances::Count(2)),
            ("CronJob", json!({"spec": {"jobTemplate": {"spec": {"parallelism": 4}}}}), Instances::Count(4)),
        ] {
            assert_eq!(Instances::of(kind, &object), expected, "{kind} {object}");
        }
        assert!(Instances::EachNode.are_several() && Instances::Count(2).are_several());
        assert!(!Instances::Count(1).are_several() && !Instances::Count(0).are_several());
    }
}
