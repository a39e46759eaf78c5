//! HTTP proxy in front of a real API server, which answers requests for chosen paths in another way.
//!
//! ```text
//!   weft ── HTTP ── proxy ── HTTPS ── kube-apiserver
//!                     └─ mode: `pass`, `hang PATTERN`, `close PATTERN`, or a status code such as `429 PATTERN`
//! ```
//!
//! A watch of a chosen path ends when the mode changes, so that it must be repeated.

use rig::Machine;
use serde_json::{Value, json};

/// Port of the proxy.
const PORT: &str = "7444";
const MODE: &str = "/etc/weft-test/api-proxy-mode";
const PROGRAM: &str = r#"
import http.client, http.server, json, re, ssl, sys, time
port, server, mode = int(sys.argv[1]), sys.argv[2], sys.argv[3]
context = ssl._create_unverified_context()
def current(path):
    word, _, pattern = open(mode).read().strip().partition(" ")
    return word if word != "pass" and re.search(pattern, path) else "pass"
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *words): pass
    def handle_one(self):
        self.close_connection = True
        word = current(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if word == "pass": return self.forward(body)
        if word == "hang": return time.sleep(3600)
        if word == "close": return
        text = json.dumps({"kind": "Status", "apiVersion": "v1", "status": "Failure", "metadata": {},
            "message": "the proxy says " + word, "reason": "Test", "code": int(word)}).encode()
        self.send_response(int(word))
        self.send_header("Content-Type", "application/json")
        self.send_header("Connection", "close")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
    def forward(self, body):
        upstream = http.client.HTTPSConnection(server, context=context)
        headers = {key: value for key, value in self.headers.items() if key.lower() not in ("host", "accept-encoding", "connection")}
        upstream.request(self.command, self.path, body, headers)
        response = upstream.getresponse()
        self.send_response(response.status)
        for key, value in response.getheaders():
            if key.lower() not in ("transfer-encoding", "connection", "date", "server"): self.send_header(key, value)
        self.send_header("Connection", "close")
        self.end_headers()
        upstream.sock and upstream.sock.settimeout(0.5)
        while True:
            try: data = response.read1(1 << 16)
            except (TimeoutError, ssl.SSLError): data = None
            if data == b"" or current(self.path) != "pass": return
            if data:
                self.wfile.write(data)
                self.wfile.flush()
    do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = handle_one
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"#;

/// Sets how the proxy answers.
pub(super) fn answer(machine: &Machine, mode: &str) {
    machine.write(MODE, mode);
}

/// Starts the proxy in front of the server of a kubeconfig, and returns the path of a kubeconfig that leads to the proxy.
pub(super) fn start(machine: &Machine, kubeconfig: &str, mode: &str) -> &'static str {
    let mut document: Value =
        serde_json::from_str(&machine.read(kubeconfig).expect("a kubeconfig")).expect("JSON");
    let cluster = &mut document["clusters"][0]["cluster"];
    let server = cluster["server"].as_str().expect("a URL").trim_start_matches("https://").to_owned();
    *cluster = json!({ "server": format!("http://127.0.0.1:{PORT}") });
    let path = "/etc/weft-test/api-proxy-kubeconfig";
    machine.write(path, document.to_string());
    answer(machine, mode);
    machine.start("api-proxy", ["/usr/bin/python3", "-c", PROGRAM, PORT, &server, MODE]);
    machine.wait("api-proxy", "listens", || {
        let open = machine.attempt(["ss", "-Hltn", "sport", &format!(":{PORT}")]).stdout;
        (!open.is_empty()).then_some(())
    });
    path
}
