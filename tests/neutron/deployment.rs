//! Controller as `deploy/neutron` runs it, with a cloud that uses TLS: only the Deployment's command line,
//! files and RBAC.
//!
//! ```text
//!   Deployment, ConfigMap, Secret of the real API ── as a kubelet does ──► weft controller ── TLS ──► Keystone, Neutron
//! ```
//!
//! The test starts the controller only with settings from the API objects.
//!
//! Source: `deploy/neutron`, `docs/neutron.md`; Kubernetes "Accessing the API from a Pod".

use rig::OpenStack;
use rig::neutron::Mode;
use rig::openstack::eventually;
use rig::parts::text;
use serde_json::{Value, json};
use testkit::{host, workspace};

/// TLS ports of Keystone and Neutron: name, TLS port, plain port.
const SECURE: [(&str, u16, u16); 2] = [("keystone", 5443, 5000), ("network", 9443, 9696)];

/// Cloud of a `clouds.yaml` with this certificate authority.
fn cloud(authority: Option<&str>) -> Value {
    let mut cloud = json!({
        "auth": { "auth_url": "https://127.0.0.1:5443/v3", "username": "kuryr", "password": "secret",
            "project_name": "k8s", "user_domain_name": "Default", "project_domain_name": "Default" },
        "region_name": "RegionOne", "network_endpoint_override": "https://localhost:9443" });
    if let Some(path) = authority {
        cloud["cacert"] = json!(path);
    }
    cloud
}

/// Files of a volume: name and content of each.
fn content(cluster: &OpenStack, volume: &Value) -> Vec<(String, String)> {
    let get = |kind: &str, name: &Value| {
        cluster.kube.json([kind, "-n", "kube-system", name.as_str().unwrap()])["data"].clone()
    };
    let data = match &volume["configMap"]["name"] {
        Value::Null => {
            let data = get("secret", &volume["secret"]["secretName"]);
            let decode = |text: &str| {
                cluster.machine.command("base64").args(["-d"]).stdin(text).finish().success().stdout
            };
            data.as_object()
                .unwrap()
                .iter()
                .map(|(name, text)| (name.clone(), json!(decode(text.as_str().unwrap()))))
                .collect()
        }
        name => get("configmap", name),
    };
    let files = data.as_object().unwrap().iter();
    files.map(|(name, text)| (name.clone(), text.as_str().unwrap().to_owned())).collect()
}

/// Starts the container of the Deployment as a kubelet does.
fn start(cluster: &OpenStack, name: &str) {
    let deployment = cluster.kube.json(["deployment", "-n", "kube-system", "weft-neutron"]);
    let pod = &deployment["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    for mount in container["volumeMounts"].as_array().unwrap() {
        let volume =
            pod["volumes"].as_array().unwrap().iter().find(|one| one["name"] == mount["name"]).unwrap();
        for (file, content) in content(cluster, volume) {
            cluster.machine.write(format!("{}/{file}", mount["mountPath"].as_str().unwrap()), content);
        }
    }
    let account = pod["serviceAccountName"].as_str().unwrap();
    let identity = "/run/secrets/kubernetes.io/serviceaccount";
    cluster.machine.write(format!("{identity}/token"), cluster.kube.token("kube-system", account));
    let authority = std::fs::read_to_string(cluster.kube.pki("ca.crt")).unwrap();
    cluster.machine.write(format!("{identity}/ca.crt"), authority);
    cluster.machine.write(format!("{identity}/namespace"), "kube-system");
    let field = |path: &Value| match path.as_str().unwrap() {
        "metadata.name" => name,
        "metadata.namespace" => "kube-system",
        other => panic!("{other}"),
    };
    let own = container["env"].as_array().unwrap().iter();
    let own = own.map(|one| {
        format!("{}={}", one["name"].as_str().unwrap(), field(&one["valueFrom"]["fieldRef"]["fieldPath"]))
    });
    let injected =
        ["KUBERNETES_SERVICE_HOST=127.0.0.1".to_owned(), "KUBERNETES_SERVICE_PORT=6443".to_owned()];
    let environment: Vec<String> = own.chain(injected).collect();
    let command: Vec<&str> =
        container["command"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
    assert_eq!(command[0], "/weft");
    let weft = testkit::binary("weft");
    let bare = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "env", "-i"];
    let line = bare.into_iter().chain(environment.iter().map(String::as_str)).chain([text(&weft)]);
    cluster.machine.start(name, line.chain(command[1..].iter().copied()));
}

/// Whether a probe of the Deployment succeeds.
fn probe(cluster: &OpenStack, kind: &str) -> bool {
    let deployment = cluster.kube.json(["deployment", "-n", "kube-system", "weft-neutron"]);
    let get = &deployment["spec"]["template"]["spec"]["containers"][0][kind]["httpGet"];
    let address =
        format!("http://{}:{}{}", get["host"].as_str().unwrap(), get["port"], get["path"].as_str().unwrap());
    cluster.machine.attempt(["curl", "-s", "-f", "-o", "/dev/null", &address]).code == Some(0)
}

#[test]
fn deployment_works_with_its_rbac_and_a_private_ca() {
    let Some(cluster) = OpenStack::new(host!(), Mode::Keystone, &["node-1"]) else { return };
    let (kube, machine) = (&cluster.kube, &cluster.machine);
    let (certificate, key) = (kube.pki("server.crt"), kube.pki("server.key"));
    for (name, port, behind) in SECURE {
        let listen = format!(
            "OPENSSL-LISTEN:{port},bind=127.0.0.1,fork,reuseaddr,verify=0,cert={certificate},key={key}"
        );
        machine.start(name, ["socat", &listen, &format!("TCP:127.0.0.1:{behind}")]);
    }
    let _net = cluster.network("net-a", "10.24.0.0/24", &json!({}));
    // As docs/neutron.md describes; `--validate=true` makes unknown fields an error.
    let clouds = json!({ "clouds": { "kuryr": cloud(Some("/etc/openstack/ca.crt")) } });
    machine.write("/etc/weft-test/clouds.yaml", clouds.to_string());
    let authority = format!("--from-file=ca.crt={}", kube.pki("ca.crt"));
    let secret = ["-n", "kube-system", "create", "secret", "generic", "weft-clouds"];
    let files = ["--from-file=/etc/weft-test/clouds.yaml", &authority];
    kube.kubectl(secret.into_iter().chain(files));
    let directory = workspace().join("deploy/neutron");
    kube.kubectl(["apply", "--validate=true", "-k", text(&directory)]);
    start(&cluster, "weft-neutron-0");
    eventually("liveness and readiness probes succeed", || {
        assert!(machine.is_running("weft-neutron-0"), "{}", machine.log("weft-neutron-0"));
        ["livenessProbe", "readinessProbe"].into_iter().all(|kind| probe(&cluster, kind)).then_some(())
    });
    cluster.pod("node-1", "web", "net-a");
    assert_eq!(cluster.wait_for_vifs("web")[0]["type"], "VIFOpenVSwitch");
    cluster.definition_in("blue", "broken", &json!({ "openstack.org/kuryr-config": "{" }));
    cluster.pod("node-1", "refused", "broken");
    cluster.wait_for_event("refused", &["NetworkRefused"]);
    let lease = kube.json(["lease", "-n", "kube-system", "weft-neutron"]);
    assert_eq!(lease["spec"]["holderIdentity"], "weft-neutron-0");
    cluster.delete_pod("web");
    eventually("no port remains", || cluster.neutron.pod_ports().is_empty().then_some(()));
    let log = machine.log("weft-neutron-0");
    assert!(!log.contains("forbidden") && !log.contains("secret"), "{log}");
    // Rights that the controller does not need.
    let rights = kube.service_account("kube-system", "weft-neutron");
    for (verb, what) in [
        ("get", "secrets"),
        ("delete", "pods"),
        ("create", "pods"),
        ("patch", "nodes"),
        ("list", "configmaps"),
    ] {
        let asked = kube.attempt_as(&rights, ["auth", "can-i", verb, what, "--all-namespaces"], "");
        assert_eq!(asked.stdout.trim(), "no", "{verb} {what}");
    }
    machine.stop("weft-neutron-0", "TERM");
    // Without the authority, or with another one, the controller sends the server nothing, in particular no password.
    let other = "/etc/ssl/certs/ca-certificates.crt";
    for (name, authority) in [("unknown", None), ("another", Some(other))] {
        let clouds = json!({ "clouds": { "kuryr": cloud(authority) } });
        machine.write("/etc/weft-test/clouds.yaml", clouds.to_string());
        let environment = ["OS_CLOUD=kuryr", "OS_CLIENT_CONFIG_FILE=/etc/weft-test/clouds.yaml"];
        cluster.start_controller_as(name, &environment, &[]);
        eventually("the certificate is rejected", || {
            machine.log(name).contains("UnknownIssuer").then_some(())
        });
        assert_eq!(cluster.metric(name, "weft_neutron_leader "), Some(0), "{name}");
        assert!(machine.is_running(name));
        machine.stop(name, "TERM");
    }
}
