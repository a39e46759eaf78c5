//! The page: a real API server with many pods and networks, the shipped RBAC, clients with and without rights, and a browser.
//!
//! ```text
//!   the test, as users, kubelets and agents ─► kube-apiserver ◄─► weft controller --page ◄── curl, sockets, chromium
//! ```

mod browser;
mod cluster;

use std::collections::BTreeSet;

use rig::Machine;
use rig::kube::Kube;
use rig::machine::until;
use serde_json::{Value, json};
use testkit::{Host, host};

use cluster::{HOSTILE, NETWORKS, OPEN, PAGE, PROTECTED, PageCluster, STATUS, event, node, pod, pool};

/// Opens streams, with a token if there is one, and reads all of them as data arrives until each has all rows: the server
/// disconnects a client that does not read. It prints the number of streams, the time in milliseconds and the size of the
/// last one in bytes. Then it keeps them open and goes on reading.
const CLIENTS: &str = r#"
import selectors, socket, sys, time
host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
header = "".join(f"Authorization: Bearer {token}\r\n" for token in sys.argv[5:]).encode()
streams, ready, sizes, ends = selectors.DefaultSelector(), set(), {}, {}

def read(timeout):
    for key, _ in streams.select(timeout):
        number, part = key.data, key.fileobj.recv(65536)
        assert part, "the stream ended"
        text = ends[number] + part
        ends[number] = text[-32:]
        if number not in ready:
            sizes[number] += len(part)
            if b"event: ready" in text:
                ready.add(number)

began = time.monotonic()
for number in range(count):
    client = socket.create_connection((host, port), 60)
    client.sendall(b"GET /api/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n" + header + b"\r\n")
    sizes[number], ends[number] = 0, b""
    streams.register(client, selectors.EVENT_READ, number)
    read(0)
while len(ready) < count:
    read(None)
print(count, round(1000 * (time.monotonic() - began)), sizes[count - 1], flush=True)
end = time.monotonic() + float(sys.argv[4])
while time.monotonic() < end:
    read(1)
"#;

/// Opens a stream and never reads.
const SLOW: &str = r#"
import socket, sys, time
client = socket.socket()
client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
client.connect((sys.argv[1], int(sys.argv[2])))
client.sendall(b"GET /api/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
time.sleep(100)
"#;

fn cluster(host: Host) -> Option<PageCluster> {
    Kube::new(Machine::new(host, "control").into()).map(PageCluster::on)
}

/// Starts clients that keep streams open, and waits until each has all rows. Returns what they printed.
fn open_streams(cluster: &PageCluster, service: &str, words: &[&str]) -> String {
    let (address, count) = (words[0], words[1]);
    let (host, port) = address.split_once(':').expect("an address");
    let line = ["python3", "-c", CLIENTS, host, port, count, "600"];
    cluster.machine.start(service, line.into_iter().chain(words[2..].iter().copied()));
    let start = format!("{count} ");
    cluster.machine.wait(service, "have all rows", || {
        let log = cluster.machine.log(service);
        log.lines().find(|line| line.starts_with(&start)).map(str::to_owned)
    })
}

fn names(rows: &[Value]) -> BTreeSet<String> {
    let name = |row: &Value| {
        format!("{}/{}", row["k"][0].as_str().unwrap_or_default(), row["k"][1].as_str().unwrap_or_default())
    };
    rows.iter().map(name).collect()
}

#[test]
fn page_viewer_sees_only_what_its_account_may_list() {
    let Some(cluster) = cluster(host!()) else { return };
    cluster.fill(4, 8);
    cluster.apply_all(&[
        event("blue", "pod-0000", "Warning", "AttachFailed", "why of blue"),
        event("red", "pod-0003", "Warning", "AttachFailed", "why of red"),
        node("worker-03", 1, "red/pod-0003"),
    ]);
    cluster.start(PROTECTED);
    // Neither the stream nor a deep link tells anything without a token.
    for (token, why) in [("", "needs a token"), ("no-token", "does not accept the token")] {
        let answer = cluster.stream(PROTECTED, token);
        assert_eq!(answer.status, 401, "{}", answer.body);
        assert!(
            answer.headers.contains("www-authenticate: bearer") && answer.body.contains(why),
            "{}",
            answer.body
        );
        assert!(!answer.body.contains("pod-"), "{}", answer.body);
    }
    let all = cluster.viewer(
        "all",
        "",
        "pods,events,weftnodes.weft.dev,network-attachment-definitions.k8s.cni.cncf.io",
    );
    let answer = cluster.stream(PROTECTED, &all);
    assert_eq!(
        (answer.rows("pods").len(), answer.rows("networks").len(), answer.rows("events").len()),
        (8, 4, 2)
    );
    assert!(
        answer.event("ready").is_some() && answer.rows("nodes")[0]["last"][2] == "red/pod-0003",
        "{}",
        answer.body
    );

    let red = cluster.viewer("red", "red", "pods,events");
    let answer = cluster.stream(PROTECTED, &red);
    assert_eq!(
        names(&answer.rows("pods")),
        BTreeSet::from(["red/pod-0003".to_owned(), "red/pod-0007".to_owned()])
    );
    assert_eq!(answer.rows("events").len(), 1);
    assert!(answer.body.contains("why of red") && !answer.body.contains("why of blue"), "{}", answer.body);
    assert!(!answer.body.contains("blue/pod") && answer.rows("networks").is_empty(), "{}", answer.body);
    let may = &answer.event("viewer").expect("the viewer")["may"];
    assert_eq!((&may["pods"], &may["networks"], &may["nodes"]), (&json!(1), &json!(0), &json!(false)));

    // Nodes alone: the failure of a pod in a namespace that the viewer may not see is left out.
    let nodes = cluster.viewer("nodes", "", "weftnodes.weft.dev");
    let answer = cluster.stream(PROTECTED, &nodes);
    assert_eq!(names(&answer.rows("nodes")), BTreeSet::from(["/worker-03".to_owned()]));
    assert!(!answer.body.contains("red") && answer.rows("pods").is_empty(), "{}", answer.body);

    let none = cluster.viewer("none", "", "");
    let answer = cluster.stream(PROTECTED, &none);
    assert!(answer.status == 200 && answer.event("ready").is_some(), "{}", answer.body);
    for word in ["pod-", "blue", "red", "worker", "net-"] {
        assert!(!answer.body.contains(word), "{word}: {}", answer.body);
    }
    // A deep link is the same document for an object that exists and for one that does not.
    let known = cluster.ask(PROTECTED, "/pod/blue/pod-0000", &[]);
    let unknown = cluster.ask(PROTECTED, "/pod/blue/none", &[]);
    assert_eq!((known.status, known.body), (unknown.status, unknown.body));
}

#[test]
fn page_stream_ends_the_rows_of_a_lost_right() {
    let Some(cluster) = cluster(host!()) else { return };
    cluster.fill(2, 4);
    cluster.start(PROTECTED);
    let token = cluster.viewer("red", "red", "pods");
    assert_eq!(cluster.stream(PROTECTED, &token).rows("pods").len(), 1);
    cluster.kube.kubectl(["delete", "rolebinding", "-n", "red", "red"]);
    until("the right is reviewed again", || {
        cluster.stream(PROTECTED, &token).rows("pods").is_empty().then_some(())
    });
}

#[test]
fn page_streams_of_one_account_are_limited() {
    let Some(cluster) = cluster(host!()) else { return };
    cluster.fill(2, 4);
    cluster.start(PROTECTED);
    let (blue, red) = (cluster.viewer("blue", "blue", "pods"), cluster.viewer("red", "red", "pods"));
    open_streams(&cluster, "clients", &[PROTECTED, "32", &blue]);
    // Another token of the account is the same user.
    let answer = cluster.stream(PROTECTED, &cluster.kube.token("default", "blue"));
    assert!(answer.status == 503 && answer.headers.contains("retry-after: 30"), "{}", answer.headers);
    assert!(answer.body.contains("32 open pages"), "{}", answer.body);
    assert_eq!(cluster.stream(PROTECTED, &red).rows("pods").len(), 1);
}

#[test]
fn page_requests_have_headers_methods_and_caching() {
    let Some(cluster) = cluster(host!()) else { return };
    cluster.start(OPEN);
    for path in ["/", "/page.css", "/page.js", "/pod/a/b", "/none", "/api/stream"] {
        let head = cluster.ask(OPEN, path, &["-I"]);
        assert!(head.body.is_empty(), "{path}: {}", head.body);
        for header in [
            "content-security-policy: default-src 'none'; script-src 'self'",
            "x-content-type-options: nosniff",
            "x-frame-options: deny",
        ] {
            assert!(head.headers.contains(header), "{path}: {header}: {}", head.headers);
        }
    }
    let script = cluster.ask(OPEN, "/page.js", &[]);
    assert!(script.status == 200 && script.headers.contains("cache-control: no-cache"), "{}", script.headers);
    let tag =
        script.headers.lines().find_map(|line| line.strip_prefix("etag: ")).expect("a tag").trim().to_owned();
    let again = cluster.ask(OPEN, "/page.js", &["-H", &format!("If-None-Match: {tag}")]);
    assert!(again.status == 304 && again.body.is_empty(), "{}", again.headers);
    assert!(cluster.ask(OPEN, "/api/stream", &[]).headers.contains("cache-control: no-store"));
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"] {
        let answer = cluster.ask(OPEN, "/", &["-X", method]);
        assert!(
            answer.status == 405 && answer.headers.contains("allow: get, head"),
            "{method}: {}",
            answer.headers
        );
    }
    for path in ["/none", "/pod/a", "/../etc/passwd", "/api/pods", "/pod/a/b/c"] {
        assert_eq!(cluster.ask(OPEN, path, &[]).status, 404, "{path}");
    }
    // Without a token, a web site must not read the page under a name of its own.
    for host in ["evil.example", "localhost.evil.example", ""] {
        let answer = cluster.ask(OPEN, "/api/stream", &["-H", &format!("Host: {host}")]);
        assert!(
            [421, 400].contains(&answer.status) && !answer.body.contains("event:"),
            "{host}: {}",
            answer.body
        );
    }
    let large = format!("Authorization: Bearer {}", "x".repeat(70_000));
    assert_eq!(cluster.ask(OPEN, "/", &["-H", &large]).status, 431);
}

#[test]
fn page_changes_of_pods_reach_a_stream() {
    let Some(cluster) = cluster(host!()) else { return };
    cluster.fill(2, 2);
    cluster.start(OPEN);
    let url = format!("http://{OPEN}/api/stream");
    let line = ["curl", "-sN", "--max-time", "50", &url];
    cluster.machine.start("client", line);
    let log = || cluster.machine.log("client");
    cluster.machine.wait("client", "all rows", || log().contains("event: ready").then_some(()));
    cluster.apply_all(&[pod("blue", "late", "worker-01", &["blue/net-00".to_owned()], 7)]);
    cluster.machine.wait("client", "a new pod", || log().contains(r#""k":["blue","late"]"#).then_some(()));
    let missing = format!("{NETWORKS}=net-00,none");
    cluster.kube.kubectl(["annotate", "--overwrite", "pod", "-n", "blue", "late", &missing]);
    cluster.run_pod("blue", "late");
    cluster
        .machine
        .wait("client", "a changed pod", || log().contains(r#""missing":["blue/none"]"#).then_some(()));
    cluster.kube.kubectl(["delete", "pod", "-n", "blue", "late", "--force", "--grace-period=0"]);
    cluster.machine.wait("client", "a deleted pod", || {
        log().contains(r#""gone":{"pods":[["blue","late"]]}"#).then_some(())
    });
}

#[test]
fn page_hostile_names_are_plain_text_in_the_stream() {
    let Some(cluster) = cluster(host!()) else { return };
    let mut hostile = pod("blue", "web", "worker-01", &[], 1);
    let entry = json!([{ "name": HOSTILE, "interface": HOSTILE, "ips": [HOSTILE], "mac": HOSTILE }]);
    hostile["metadata"]["annotations"] = json!({ STATUS: entry.to_string(), NETWORKS: HOSTILE });
    cluster.apply_all(&[hostile, event("blue", "web", "Warning", "AttachFailed", HOSTILE)]);
    cluster.start(OPEN);
    let answer = cluster.stream(OPEN, "");
    let web = &answer.rows("pods")[0];
    assert_eq!(
        (&web["state"], web["if"][0][0].as_str().unwrap().contains("<img")),
        (&json!("invalid"), true),
        "{web}"
    );
    for forbidden in ["\u{1b}", "\u{202e}", "\\u001b", "\\u202e"] {
        assert!(!answer.body.contains(forbidden), "{forbidden:?}");
    }
}

#[test]
fn page_serves_many_idle_clients_and_drops_slow_ones() {
    let Some(cluster) = cluster(host!()) else { return };
    cluster.fill(50, 5000);
    cluster.start(OPEN);
    cluster
        .machine
        .wait(PAGE, "has all pods", || (cluster.stream(OPEN, "").rows("pods").len() == 5000).then_some(()));
    let first = open_streams(&cluster, "first", &[OPEN, "1"]);
    let size: u64 = first.rsplit(' ').next().expect("a size").parse().expect("a size");
    assert!(size < 5000 * 500, "{size} bytes");
    cluster.machine.stop("first", "KILL");
    until("the first client is gone", || (cluster.metric("weft_page_streams ") == 0).then_some(()));
    let before = cluster.memory();
    let all = open_streams(&cluster, "clients", &[OPEN, "200"]);
    assert_eq!(cluster.metric("weft_page_streams "), 200);
    let after = cluster.memory();
    eprintln!("5000 pods, 50 networks: {before} kB; with 200 idle clients {after} kB");
    eprintln!("clients, milliseconds, bytes: {first}; {all}");
    assert!(after < before + 60_000, "{before} kB, then {after} kB");
    let (address, port) = OPEN.split_once(':').expect("an address");
    cluster.machine.start("slow", ["python3", "-c", SLOW, address, port]);
    until("the slow client is dropped", || {
        (cluster.metric("weft_page_streams_dropped_total ") == 1).then_some(())
    });
    assert_eq!(cluster.metric("weft_page_streams "), 200);
    // Further clients are served beside them.
    assert_eq!(cluster.stream(OPEN, "").rows("pods").len(), 5000);
}

#[test]
fn page_shows_the_age_of_its_data_without_the_api_server() {
    let Some(kube) = Kube::own(Machine::new(host!(), "control").into()) else { return };
    let cluster = PageCluster::on(kube);
    cluster.fill(2, 4);
    pool(&cluster.kube, "10.10.0.0/16", 100, 10);
    let token = cluster.viewer("all", "", "pods,ippools.weft.dev");
    cluster.start(PROTECTED);
    assert_eq!(cluster.stream(PROTECTED, &token).rows("pools")[0]["used"], 100);
    cluster.kube.stop("kube-apiserver", "KILL");
    let aged = until("the data is old", || {
        let answer = cluster.stream(PROTECTED, &token);
        answer.event("state").filter(|state| state["age"].as_u64() > Some(0)).map(|_| answer)
    });
    // The last known rows and rights are used; an unknown token cannot be reviewed.
    assert_eq!(aged.rows("pods").len(), 4);
    let unknown = cluster.stream(PROTECTED, "unknown");
    assert!(unknown.status == 503 && unknown.headers.contains("retry-after"), "{}", unknown.body);
    cluster.kube.launch_server();
    cluster.kube.wait();
    until("the data is new", || {
        let state = cluster.stream(PROTECTED, &token).event("state")?;
        (state["age"] == 0).then_some(())
    });
}
