"""Client of a container runtime and of the CRI Network API, from generated code independent of weft.

    client.py SOCKET <CALLS >ANSWERS

CALLS is a JSON list. ANSWERS has one object for each call. A request may refer to earlier answers as "$0.pod_sandbox_id".

  {"method", "request"}              calls a method; the request is in proto's JSON form, or "raw" with hexadecimal bytes
  {"read": URL}                      returns the output of a container on the websocket of an exec
  {"forward": URL, "port", "send"}   sends to a forwarded port and returns the answer
  {"flood": N}                       opens N calls on one connection without reading, and counts the answers
  {"noise": SEED, "rounds": N}       writes random bytes to the socket
"""

import base64
import json
import os
import random
import re
import socket
import struct
import sys

import grpc
from google.protobuf import json_format

import cri_pb2 as cri
import podnetwork_pb2 as api

RUNTIME = "/runtime.v1.RuntimeService/"
METHODS = {
    "SetPodNetwork": (api.SetPodNetworkRequest, api.CreatePodNetworkResponse),
    "RemovePodNetwork": (api.RemovePodNetworkRequest, api.RemovePodNetworkResponse),
    "ListPodNetwork": (api.ListPodNetworkRequest, api.ListPodNetworkResponse),
    "RunPodSandbox": (cri.RunPodSandboxRequest, cri.RunPodSandboxResponse),
    "StopPodSandbox": (cri.SandboxRequest, cri.Empty),
    "RemovePodSandbox": (cri.SandboxRequest, cri.Empty),
    "PodSandboxStatus": (cri.SandboxRequest, cri.PodSandboxStatusResponse),
    "CreateContainer": (cri.CreateContainerRequest, cri.ContainerRequest),
    "StartContainer": (cri.ContainerRequest, cri.Empty),
    "ExecSync": (cri.ExecSyncRequest, cri.ExecSyncResponse),
    "Exec": (cri.ExecRequest, cri.UrlResponse),
    "PortForward": (cri.PortForwardRequest, cri.UrlResponse),
    "Status": (cri.Empty, cri.StatusResponse),
    "Version": (cri.Empty, cri.VersionResponse),
    "NoSuchMethod": (cri.Empty, cri.Empty),
    "/runtime.v1alpha2.RuntimeService/RunPodSandbox": (cri.RunPodSandboxRequest, cri.RunPodSandboxResponse),
    "/runtime.v1.ImageService/ListImages": (cri.Empty, cri.ListImagesResponse),
}
# No authority is set: gRPC's C core sends the socket's path as authority, which HTTP/2 libraries refuse and runtimes accept.
OPTIONS = [("grpc.max_receive_message_length", 16 << 20),
           ("grpc.max_send_message_length", 64 << 20)]


def fill(value, answers):
    """Replaces references to earlier answers."""
    if isinstance(value, str):
        found = re.fullmatch(r"\$(\d+)\.(\w+)", value)
        return answers[int(found[1])]["reply"][found[2]] if found else value
    if isinstance(value, list):
        return [fill(each, answers) for each in value]
    if isinstance(value, dict):
        return {key: fill(each, answers) for key, each in value.items()}
    return value


def call(channel, wanted, answers):
    name = wanted["method"]
    request_type, reply_type = METHODS[name]
    path = name if name.startswith("/") else RUNTIME + name
    if "raw" in wanted:
        request, serialize = bytes.fromhex(wanted["raw"]), None
    elif "large" in wanted:
        request, serialize = b"\x0a" + b"x" * wanted["large"], None
    else:
        request = json_format.ParseDict(fill(wanted.get("request", {}), answers), request_type())
        serialize = request_type.SerializeToString
    method = channel.unary_unary(path, serialize, reply_type.FromString)
    try:
        reply = method(request, timeout=wanted.get("timeout", 60))
    except grpc.RpcError as error:
        return {"code": error.code().name, "message": error.details()}
    reply = json_format.MessageToDict(reply, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    return {"code": "OK", "message": "", "reply": reply}


def websocket(url, protocol):
    """Opens a connection to the runtime's streaming server."""
    host, port, path = re.fullmatch(r"http://([^:/]+):(\d+)(/.*)", url).groups()
    connection = socket.create_connection((host, int(port)), timeout=30)
    key = base64.b64encode(os.urandom(16)).decode()
    connection.sendall((f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
                        f"Sec-WebSocket-Protocol: {protocol}\r\nOrigin: http://localhost\r\n\r\n").encode())
    file = connection.makefile("rb")
    status = file.readline().decode().strip()
    while file.readline().strip():
        pass
    if " 101 " not in status + " ":
        raise RuntimeError(status)
    return connection, file


def frames(file):
    while True:
        head = file.read(2)
        if len(head) < 2 or head[0] & 15 == 8:
            return
        length = head[1] & 127
        if length == 126:
            length = struct.unpack(">H", file.read(2))[0]
        elif length == 127:
            length = struct.unpack(">Q", file.read(8))[0]
        yield file.read(length)


def send(connection, payload):
    mask = os.urandom(4)
    masked = bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))
    connection.sendall(bytes([0x82, 0x80 | len(payload)]) + mask + masked)


def read(url):
    _, file = websocket(url, "v4.channel.k8s.io")
    written = b"".join(frame[1:] for frame in frames(file) if frame[:1] == b"\x01")
    return {"code": "OK", "text": written.decode()}


def forward(url, port, text):
    connection, file = websocket(url + f"?port={port}" if "?" not in url else url, "v4.channel.k8s.io")
    send(connection, b"\x00" + text.encode())
    received = b""
    for frame in frames(file):
        # The first frame of each channel contains the port.
        if frame[:1] == b"\x00" and len(frame) > 3:
            received += frame[1:]
            if text.encode().strip() in received:
                break
    return {"code": "OK", "text": received.decode(errors="replace")}


def flood(path, count):
    """Opens calls with incomplete requests: a header, no message, no end."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    connection.settimeout(5)
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")
    # HPACK without its table: literal fields with full names.
    def field(name, value):
        return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value
    block = (field(b":method", b"POST") + field(b":scheme", b"http") + field(b":path", b"/runtime.v1.RuntimeService/Version")
             + field(b":authority", b"localhost") + field(b"content-type", b"application/grpc") + field(b"te", b"trailers"))
    sent = 0
    try:
        for number in range(count):
            stream = struct.pack(">I", 2 * number + 1)
            connection.sendall(len(block).to_bytes(3, "big") + b"\x01\x04" + stream + block)
            sent += 1
    except OSError:
        pass
    return connection, sent


def noise(path, seed, rounds):
    source = random.Random(seed)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    for number in range(rounds):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        connection.settimeout(0.02)
        try:
            connection.sendall((preface if number % 2 else b"") + source.randbytes(source.randrange(4096)))
            connection.recv(4096)
        except OSError:
            pass
        connection.close()
    return {"code": "OK"}


def main():
    path = sys.argv[1]
    answers, floods = [], []
    with grpc.insecure_channel("unix:" + path, options=OPTIONS) as channel:
        for wanted in json.load(sys.stdin):
            if "method" in wanted:
                answers.append(call(channel, wanted, answers))
            elif "read" in wanted:
                answers.append(read(fill(wanted["read"], answers)))
            elif "forward" in wanted:
                answers.append(forward(fill(wanted["forward"], answers), wanted["port"], wanted["send"]))
            elif "flood" in wanted:
                connection, sent = flood(path, wanted["flood"])
                # The connection stays open until the end.
                floods.append(connection)
                answers.append({"code": "OK", "sent": sent})
            else:
                answers.append(noise(path, wanted["noise"], wanted["rounds"]))
    json.dump(answers, sys.stdout)


main()
