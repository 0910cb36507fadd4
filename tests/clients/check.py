"""The Python client, unmodified, against a running server: KUBECONFIG says where.

Run by scripts/clients. Every step must behave as it does against Kubernetes.
"""

import sys
import threading
import time

from kubernetes import client, config, watch, dynamic
from kubernetes.client.rest import ApiException

config.load_kube_config()
core, apps = client.CoreV1Api(), client.AppsV1Api()
discovery = client.DiscoveryV1Api()


def expect(what, found, wanted):
    if found != wanted:
        sys.exit(f"{what}: {found!r}, not {wanted!r}")
    print(f"ok: {what}")


def refused(what, code, call):
    try:
        call()
    except ApiException as error:
        return expect(what, error.status, code)
    sys.exit(f"{what}: not refused")


events = []


def follow():
    for event in watch.Watch().stream(core.list_namespaced_config_map, "default", timeout_seconds=5):
        if event["object"].metadata.name == "py":
            events.append(event["type"])


watcher = threading.Thread(target=follow)
watcher.start()
time.sleep(0.5)

body = {"metadata": {"name": "py"}, "data": {"a": "1"}}
expect("create", core.create_namespaced_config_map("default", body).data, {"a": "1"})
refused("create twice", 409, lambda: core.create_namespaced_config_map("default", body))
expect("read", core.read_namespaced_config_map("py", "default").data, {"a": "1"})
patched = core.patch_namespaced_config_map("py", "default", {"data": {"b": "2"}})
expect("patch (strategic by default)", patched.data, {"a": "1", "b": "2"})
stale = core.read_namespaced_config_map("py", "default")
core.patch_namespaced_config_map("py", "default", {"data": {"c": "3"}})
refused("replace a stale object", 409, lambda: core.replace_namespaced_config_map("py", "default", stale))
expect("list", "py" in [m.metadata.name for m in core.list_namespaced_config_map("default").items], True)
core.delete_namespaced_config_map("py", "default")
refused("read what is gone", 404, lambda: core.read_namespaced_config_map("py", "default"))
watcher.join()
expect("watch", events, ["ADDED", "MODIFIED", "MODIFIED", "DELETED"])

service = {"metadata": {"name": "py"}, "spec": {"selector": {"a": "b"}, "ports": [{"port": 80}]}}
created = core.create_namespaced_service("default", service)
expect("a Service gets an address", created.spec.cluster_ip.startswith("10."), True)
bad = {"metadata": {"name": "bad"}, "spec": {"ports": []}}
refused("an invalid Service", 422, lambda: core.create_namespaced_service("default", bad))
core.delete_namespaced_service("py", "default")

kinds = dynamic.DynamicClient(client.ApiClient())
deployments = kinds.resources.get(api_version="apps/v1", kind="Deployment")
applied = deployments.server_side_apply(
    namespace="default",
    field_manager="python",
    body={
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "py"},
        "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {
                "metadata": {"labels": {"a": "b"}},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
            },
        },
    },
)
expect("server-side apply", applied.metadata.managedFields[0].manager, "python")
scale = apps.patch_namespaced_deployment_scale("py", "default", {"spec": {"replicas": 2}})
expect("scale", scale.spec.replicas, 2)
apps.delete_namespaced_deployment("py", "default")
expect("version", client.VersionApi().get_code().major, "1")
print("the Python client is content")
