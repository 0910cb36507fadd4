#!/usr/bin/env python3
"""A pretended API server with many Services, enough for a DNS server to follow.

usage: cluster.py PORT SERVICES ENDPOINTS

GET /break ends all watches as too old, so that everything is told again.
"""
import json, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlparse

PORT, SERVICES, ENDPOINTS = map(int, sys.argv[1:4])
NAMESPACES = 50
EACH = ENDPOINTS // SERVICES
broken = threading.Condition()
round_number = 0


def meta(n, name, **more):
    return {"namespace": f"ns-{n % NAMESPACES}", "name": name, "uid": f"{name}-{n}",
            "resourceVersion": str(n + 1), **more}


def namespace(n):
    return {"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": f"ns-{n}", "uid": f"ns-{n}", "resourceVersion": str(n + 1)}}


def service(n):
    address = f"10.{96 + n // 65536}.{n // 256 % 256}.{n % 256}"
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta(n, f"svc-{n}"),
            "spec": {"clusterIP": address, "clusterIPs": [address], "type": "ClusterIP",
                     "ports": [{"name": "http", "protocol": "TCP", "port": 80}]}}


def endpoint(n):
    return {"addresses": [f"10.{128 + n // 65536}.{n // 256 % 256}.{n % 256}"],
            "conditions": {"ready": True, "serving": True, "terminating": False},
            "nodeName": f"node-{n % 100}",
            "targetRef": {"kind": "Pod", "namespace": "x", "name": f"pod-{n}", "uid": f"u-{n}"}}


def endpoint_slice(n):
    labels = {"kubernetes.io/service-name": f"svc-{n}"}
    return {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": meta(n, f"svc-{n}-abcde", labels=labels), "addressType": "IPv4",
            "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
            "endpoints": [endpoint(n * EACH + i) for i in range(EACH)]}


KINDS = {"/api/v1/namespaces": (NAMESPACES, namespace), "/api/v1/services": (SERVICES, service),
         "/apis/discovery.k8s.io/v1/endpointslices": (SERVICES, endpoint_slice)}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def event(self, kind, thing):
        self.chunk(json.dumps({"type": kind, "object": thing}).encode() + b"\n")

    def do_PATCH(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.answer(200, {})

    def answer(self, code, value):
        body = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        global round_number
        url = urlparse(self.path)
        query = parse_qs(url.query)
        if url.path == "/break":
            with broken:
                round_number += 1
                broken.notify_all()
            return self.answer(200, {})
        if url.path not in KINDS:
            return self.answer(404, {"kind": "Status", "code": 404, "status": "Failure"})
        count, make = KINDS[url.path]
        if "watch" not in query:
            items = [make(n) for n in range(count)]
            return self.answer(200, {"kind": "List", "metadata": {"resourceVersion": "999999"}, "items": items})
        now = round_number
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        if "sendInitialEvents" in query:
            for n in range(count):
                self.event("ADDED", make(n))
            done = {"k8s.io/initial-events-end": "true"}
            kind = make(0)
            self.event("BOOKMARK", {"apiVersion": kind["apiVersion"], "kind": kind["kind"],
                                    "metadata": {"resourceVersion": "999999", "annotations": done}})
        with broken:
            broken.wait_for(lambda: round_number != now)
        gone = {"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": "too old"}
        self.event("ERROR", gone)
        self.chunk(b"")


ThreadingHTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
