#!/usr/bin/env python3
"""Receiver of OpenTelemetry traces, with OpenTelemetry's own messages: OTLP over gRPC and over HTTP.

  collector.py GRPC-PORT HTTP-PORT [MODE [CERTIFICATE KEY AUTHORITY]]

It prints each request, then each span of it, one JSON object in a line. MODE is its answer to requests: `take` accepts them,
`refuse` refuses them, `stall` never answers. With the three files it accepts only TLS, and only clients with a certificate
of the authority.

The interpreter of target/collector runs it, see lanes/kube/prepare. It serves until it is killed.
"""

import http.server
import json
import ssl
import sys
import threading
from concurrent import futures

import grpc
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as api
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as services

GRPC, HTTP = int(sys.argv[1]), int(sys.argv[2])
MODE = sys.argv[3] if len(sys.argv) > 3 else "take"
TLS = sys.argv[4:7]
LOCK = threading.Lock()


def value(of):
    """Returns a value as in JSON; integers are strings in protobuf's JSON form."""
    (kind, text), = of.items()
    return int(text) if kind == "intValue" else text


def attributes(of):
    return {entry["key"]: value(entry["value"]) for entry in of.get("attributes", [])}


def show(request, how, headers):
    with LOCK:
        print(json.dumps({"request": how, "headers": headers}), flush=True)
        for of_resource in MessageToDict(request)["resourceSpans"]:
            resource = attributes(of_resource.get("resource", {}))
            for of_scope in of_resource["scopeSpans"]:
                for span in of_scope["spans"]:
                    span["attributes"] = attributes(span)
                    span["resource"] = resource
                    print(json.dumps(span), flush=True)


class Traces(services.TraceServiceServicer):
    def Export(self, request, context):
        if MODE == "stall":
            threading.Event().wait()
        if MODE == "refuse":
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not today")
        show(request, "grpc", dict(context.invocation_metadata()))
        return api.ExportTraceServiceResponse()


class Pages(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if MODE == "stall":
            threading.Event().wait()
        good = self.path == "/v1/traces" and self.headers["Content-Type"] == "application/x-protobuf" and MODE == "take"
        if good:
            show(api.ExportTraceServiceRequest.FromString(body), "http", {k.lower(): v for k, v in self.headers.items()})
        answer = api.ExportTraceServiceResponse().SerializeToString() if good else b"not today"
        self.send_response(200 if good else 400)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


server = grpc.server(futures.ThreadPoolExecutor(max_workers=8))
services.add_TraceServiceServicer_to_server(Traces(), server)
pages = http.server.ThreadingHTTPServer(("127.0.0.1", HTTP), Pages)
if TLS:
    certificate, key, authority = (open(path, "rb").read() for path in TLS)
    who = grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=True)
    server.add_secure_port(f"127.0.0.1:{GRPC}", who)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=TLS[2])
    context.load_cert_chain(TLS[0], TLS[1])
    context.verify_mode = ssl.CERT_REQUIRED
    # Each connection, including its handshake, has its own thread.
    pages.socket = context.wrap_socket(pages.socket, server_side=True, do_handshake_on_connect=False)
else:
    server.add_insecure_port(f"127.0.0.1:{GRPC}")
server.start()
print(json.dumps({"listens": [GRPC, HTTP]}), flush=True)
pages.serve_forever()
