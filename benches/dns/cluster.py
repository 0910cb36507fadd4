#!/usr/bin/env python3
"""A pretended API server with many Services, enough for a DNS server to follow.

usage: cluster.py PORT SERVICES ENDPOINTS

GET /break ends all watches as too old, so that everything is told again.
GET /freshness?port=DNS&changes=N replaces an endpoint N times, and says how long after each watch
event the server on that port stopped giving the old address.
"""
import json, socket, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlparse

PORT, SERVICES, ENDPOINTS = map(int, sys.argv[1:4])
NAMESPACES = 50
EACH = ENDPOINTS // SERVICES
broken = threading.Condition()
round_number = 0
watchers = {}


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


def fresh_slice(number):
    addresses = [f"10.200.{n // 250}.{n % 250 + 1}" for n in (number, 20000)]
    labels = {"kubernetes.io/service-name": "fresh"}
    return {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"namespace": "ns-0", "name": "fresh-1", "uid": "fresh-1", "labels": labels,
                         "resourceVersion": str(1000000 + number)},
            "addressType": "IPv4", "ports": [],
            "endpoints": [{"addresses": [a], "conditions": {"ready": True}} for a in addresses]}


FRESH = {"apiVersion": "v1", "kind": "Service",
         "metadata": {"namespace": "ns-0", "name": "fresh", "uid": "fresh", "resourceVersion": "1000000"},
         "spec": {"clusterIP": "None", "clusterIPs": ["None"], "type": "ClusterIP"}}
QUERY = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x05fresh\x04ns-0\x03svc\x07cluster\x05local\0\0\x01\0\x01"


def tell(path, kind, thing):
    """All who watch are told, CoreDNS beside us, too; those who are gone no longer."""
    for watcher in list(watchers.get(path, [])):
        try:
            watcher.event(kind, thing)
        except OSError:
            watchers[path].remove(watcher)


def freshness(port, changes):
    """One change after the other; the time of each is that from its event to the first answer in
    hand without the old address. An answer that goes back to an old one afterwards is stale."""
    dns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    dns.settimeout(2)
    dns.connect(("127.0.0.1", port))

    def shown():
        dns.send(QUERY)
        reply = dns.recv(4096)
        found = [reply[at + 12:at + 16] for at in range(len(QUERY), len(reply) - 15, 16)]
        return max([a[2] * 250 + a[3] - 1 for a in found if a[:2] == b"\x0a\xc8" and a[2] < 80], default=-1)

    tell("/api/v1/services", "ADDED", FRESH)
    slices = "/apis/discovery.k8s.io/v1/endpointslices"
    tell(slices, "ADDED", fresh_slice(0))
    patience = time.perf_counter() + 10
    while shown() != 0:
        if time.perf_counter() > patience:
            return {"error": "the Service never appeared"}
        time.sleep(0.01)
    times, old, stale = [], [], 0
    for number in range(1, changes + 1):
        tell(slices, "MODIFIED", fresh_slice(number))
        began = time.perf_counter()
        last = began
        while True:
            asked = time.perf_counter()
            if (seen := shown()) == number:
                break
            last = asked
            stale += seen < number - 1
            if asked - began > 5:
                return {"error": f"change {number} never showed"}
        times.append(time.perf_counter() - began)
        old.append(last - began)
        stale += shown() != number
    at = lambda all, part: round(sorted(all)[min(len(all) - 1, int(len(all) * part))] * 1e6)
    return {"changes": changes, "p50": at(times, 0.5), "p99": at(times, 0.99),
            "old_p99": at(old, 0.99), "stale": stale}


KINDS = {"/api/v1/namespaces": (NAMESPACES, namespace), "/api/v1/services": (SERVICES, service),
         "/apis/discovery.k8s.io/v1/endpointslices": (SERVICES, endpoint_slice)}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

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
        if url.path == "/freshness":
            return self.answer(200, freshness(int(query["port"][0]), int(query["changes"][0])))
        if url.path == "/version":
            return self.answer(200, {"major": "1", "minor": "37", "gitVersion": "v1.37.0"})
        if url.path == "/apis/discovery.k8s.io/v1":
            kind = {"name": "endpointslices", "kind": "EndpointSlice", "namespaced": True, "verbs": ["list", "watch"]}
            return self.answer(200, {"kind": "APIResourceList", "groupVersion": "discovery.k8s.io/v1", "resources": [kind]})
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
        watchers.setdefault(url.path, []).append(self)
        with broken:
            broken.wait_for(lambda: round_number != now)
        gone = {"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": "too old"}
        self.event("ERROR", gone)
        self.chunk(b"")


ThreadingHTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
