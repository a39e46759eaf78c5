//! Objects from several manifests, in which pods are looked up.
//!
//! - An unknown pod is an error, never a pod without networks (M13).
//! - A runtime call without a pod (outside of Kubernetes) gets the networks that the node configuration has
//!   for every pod.
//! - Uid and name must both match, so that a recreated pod is not confused with the previous one.
//! - If several pods have one name, the first counts; with definitions it is the last, as if they were
//!   applied in order.
//! - Access policies apply as in a cluster. If a namespace is in no manifest, the labels are unknown.

use std::collections::BTreeMap;

use cni::error::{Error, code};

use super::{DEFAULT_NAMESPACE, Manifest};
use npwg::configuration::NodeConfiguration;
use npwg::definition::Disk;
use npwg::device::Devices;
use npwg::metadata::{Definition, NetworkReference, Pod};
use npwg::network_policy::NetworkPolicy;
use npwg::plan::{self, Plan, PodIdentity, Sandbox};
use npwg::pod_policies;
use npwg::policy::{self, Labels};

/// Objects from several manifests.
#[derive(Clone, Debug, Default)]
pub struct Collection {
    /// Pods, and pod templates in workloads.
    pub pods: Vec<Pod>,
    /// Definitions by namespace and name.
    pub definitions: BTreeMap<NetworkReference, Definition>,
    /// MultiNetworkPolicies; if two have one name, the last one.
    pub policies: BTreeMap<(String, String), NetworkPolicy>,
    /// Labels, by namespace.
    pub namespaces: BTreeMap<String, Labels>,
    /// Files and objects that could not be read, as `path: why`.
    pub problems: Vec<String>,
}

impl Collection {
    /// Adds everything in the file at `path`.
    pub fn add(&mut self, path: &str, manifest: Manifest) {
        let Manifest { source, pods, definitions, namespaces, policies, others: _, problems } = manifest;
        self.pods.extend(pods.into_iter().map(|located| located.value.pod));
        let definitions = definitions.into_iter().map(|located| located.value);
        self.definitions.extend(definitions.map(|definition| (definition.reference(), definition)));
        let namespaces = namespaces.into_iter().map(|located| (located.value.name, located.value.labels));
        self.namespaces.extend(namespaces);
        let policies = policies.into_iter().map(|located| located.value);
        self.policies
            .extend(policies.map(|policy| ((policy.namespace.clone(), policy.name.clone()), policy)));
        self.problems.extend(problems.iter().map(|problem| {
            let place = source.position(problem.at);
            format!("{path}:{}:{}: {}", place.line, place.column, problem.fault)
        }));
    }

    /// Returns a plan for the identified pod.
    ///
    /// # Errors
    /// The pod is unknown, or the plan refuses it. The details list what could not be read in the manifests.
    pub fn plan(
        &self,
        node: &NodeConfiguration,
        disk: &Disk,
        named: &PodIdentity,
        sandbox: &Sandbox,
    ) -> Result<Plan, Error> {
        let pod = self.pod(node, named).map_err(|error| self.with_problems(error))?;
        let wanted = plan::wanted(&pod, node);
        let wanted = self.definitions.iter().filter(|(reference, _)| wanted.contains(*reference));
        let access = policy::access(&pod, policy::policies(wanted), self.namespaces.get(&pod.namespace));
        let request = plan::Request {
            pod: &pod,
            sandbox,
            node,
            definitions: &self.definitions,
            disk,
            devices: &Devices::new(),
            access: &access,
            held: &[],
        };
        let refused = |refusal| self.with_problems(Error::from(refusal));
        let mut plan = plan::plan(&request).map_err(refused)?;
        let policies: Vec<NetworkPolicy> = self.policies.values().cloned().collect();
        pod_policies::add_to_plan(&mut plan, &pod, &policies, &self.pods, &self.namespaces)
            .map_err(refused)?;
        Ok(plan)
    }

    /// Adds the files and objects that could not be read to an error.
    fn with_problems(&self, error: Error) -> Error {
        match self.problems.is_empty() {
            true => error,
            false => error.details(format!("in the manifests: {}", self.problems.join("; "))),
        }
    }

    /// Returns the identified pod; annotations may come from the runtime instead of a manifest.
    ///
    /// # Errors
    /// Code 3: the pod is unknown, or known with another uid.
    pub fn pod(&self, node: &NodeConfiguration, named: &PodIdentity) -> Result<Pod, Error> {
        let PodIdentity { namespace, name, uid } = named;
        if name.is_empty() {
            return Ok(Pod { namespace: DEFAULT_NAMESPACE.to_owned(), ..Pod::default() });
        }
        let found = self.pods.iter().find(|pod| pod.namespace == *namespace && pod.name == *name);
        match found {
            Some(pod) if !pod.uid.is_empty() && !uid.is_empty() && pod.uid != *uid => {
                let why = format!("pod {namespace}/{name} has uid {}, the runtime requests {uid}", pod.uid);
                Err(Error::new(code::UNKNOWN_CONTAINER, why))
            }
            Some(pod) => {
                Ok(Pod { uid: if pod.uid.is_empty() { uid.clone() } else { pod.uid.clone() }, ..pod.clone() })
            }
            None => match node.pod_of_runtime(named)? {
                Some(pod) => Ok(pod),
                None => {
                    let why = format!(
                        "pod {namespace}/{name} is in no manifest, and the runtime passes no annotations"
                    );
                    Err(Error::new(code::UNKNOWN_CONTAINER, why))
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use npwg::configuration::Flavour;

    const MANIFEST: &str = "apiVersion: v1
kind: Pod
metadata: {name: web, namespace: home, uid: u-1, annotations: {k8s.v1.cni.cncf.io/networks: net-a}}
---
apiVersion: v1
kind: Pod
metadata: {name: bare, namespace: home}
---
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {name: net-a, namespace: home}
spec: {config: '{\"cniVersion\":\"1.0.0\",\"type\":\"macvlan\"}'}
";

    fn collection() -> Collection {
        let mut all = Collection::default();
        all.add("/m/pods.yaml", Manifest::parse(MANIFEST));
        all
    }

    fn node(runtime_config: &str) -> NodeConfiguration {
        let text = format!(
            r#"{{"cniVersion":"1.0.0","name":"weft","type":"weft","runtimeConfig":{runtime_config},
                "delegates":[{{"cniVersion":"1.0.0","name":"home","type":"bridge"}}]}}"#
        );
        NodeConfiguration::read(text.as_bytes(), Flavour::Weft).unwrap()
    }

    fn identity(name: &str, uid: &str) -> PodIdentity {
        PodIdentity { namespace: "home".into(), name: name.into(), uid: uid.into() }
    }

    // Requirements: M13
    #[test]
    fn unknown_pod_is_an_error_without_runtime_annotations() {
        let all = collection();
        let error = all.pod(&node("{}"), &identity("other", "")).unwrap_err();
        assert_eq!((error.code, error.msg.contains("home/other is in no manifest")), (3, true), "{error}");
        let passed = node(r#"{"io.kubernetes.cri.pod-annotations":{"a":"b"}}"#);
        let pod = all.pod(&passed, &identity("other", "u-9")).unwrap();
        assert_eq!((pod.annotations["a"].as_str(), pod.uid.as_str()), ("b", "u-9"));
        // A manifest takes precedence over the annotations of the runtime.
        assert!(
            all.pod(&passed, &identity("web", ""))
                .unwrap()
                .annotations
                .contains_key("k8s.v1.cni.cncf.io/networks")
        );
    }

    #[test]
    fn recreated_pod_is_identified_by_its_uid() {
        let all = collection();
        let error = all.pod(&node("{}"), &identity("web", "u-2")).unwrap_err();
        assert!(error.msg.contains("has uid u-1, the runtime requests u-2"), "{error}");
        assert_eq!(all.pod(&node("{}"), &identity("web", "")).unwrap().uid, "u-1");
        assert_eq!(all.pod(&node("{}"), &identity("bare", "u-3")).unwrap().uid, "u-3");
    }

    #[test]
    fn call_without_a_pod_gets_the_networks_of_every_pod() {
        let pod = collection().pod(&node("{}"), &PodIdentity::default()).unwrap();
        assert_eq!((pod.namespace.as_str(), pod.name.as_str(), pod.annotations.len()), ("default", "", 0));
    }

    // Requirements: M14
    #[test]
    fn access_policies_apply_to_manifests_and_both_annotations() {
        const DEFINITION: &str = "apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {name: net-a, namespace: home, annotations: {weft.dev/access: 'RULE'}}
spec: {config: '{\"cniVersion\":\"1.0.0\",\"type\":\"macvlan\"}'}
---
apiVersion: v1
kind: Pod
metadata: {name: first, namespace: home, labels: {app: web}, annotations: {v1.multus-cni.io/default-network: home/net-a}}
spec: {serviceAccountName: robot}
";
        const NAMESPACE: &str =
            "apiVersion: v1\nkind: Namespace\nmetadata: {name: home, labels: {team: net}}\n";
        let sandbox = Sandbox {
            container: cni::name::ContainerId::new("c1").unwrap(),
            ifname: cni::name::IfName::new("eth0").unwrap(),
        };
        for (rule, web, first) in [
            (r#"{"namespaces":["other"]}"#, false, false),
            (r#"{"serviceAccounts":["home/robot"]}"#, false, true),
            (r#"{"podSelector":{"matchLabels":{"app":"web"}}}"#, false, true),
            (r#"{"namespaceSelector":{"matchLabels":{"team":"net"}}}"#, true, true),
            (r#"{"podselector":{}}"#, false, false),
        ] {
            let mut all = collection();
            all.add("/m/net.yaml", Manifest::parse(&DEFINITION.replace("RULE", rule)));
            all.add("/m/home.yaml", Manifest::parse(NAMESPACE));
            assert!(all.problems.is_empty(), "{:?}", all.problems);
            for (pod, admitted) in [("web", web), ("first", first)] {
                let planned = all.plan(&node("{}"), &Disk::default(), &identity(pod, ""), &sandbox);
                assert_eq!(planned.is_ok(), admitted, "{rule}: {pod}: {planned:?}");
                let why = planned.map_or_else(|error| error.msg, |_| String::new());
                assert!(admitted || why.contains("home/net-a"), "{rule}: {pod}: {why}");
            }
        }
        let mut all = collection();
        let rule = r#"{"namespaceSelector":{"matchLabels":{"team":"net"}}}"#;
        all.add("/m/net.yaml", Manifest::parse(&DEFINITION.replace("RULE", rule)));
        all.plan(&node("{}"), &Disk::default(), &identity("web", ""), &sandbox).unwrap_err();
    }

    #[test]
    fn refusal_lists_manifests_that_could_not_be_read() {
        let mut all = collection();
        all.definitions.clear();
        all.add("/m/broken.yaml", Manifest::parse("a: 1\n"));
        let sandbox = Sandbox {
            container: cni::name::ContainerId::new("c1").unwrap(),
            ifname: cni::name::IfName::new("eth0").unwrap(),
        };
        let error = all.plan(&node("{}"), &Disk::default(), &identity("web", ""), &sandbox).unwrap_err();
        assert!(error.msg.contains("home/net-a"), "{error}");
        assert!(error.details.contains("in the manifests: /m/broken.yaml:1:1: "), "{error}");
    }
}
