"""An operator that runs as a placed pod: `kopf run operator_of_lamps.py`. It makes a ConfigMap for each Lamp."""

import kopf
from kubernetes import client, config

LAMPS = ("portolan.dev.example", "v1", "lamps")


@kopf.on.startup()
def start(settings, **_):
    config.load_incluster_config()
    settings.posting.level = 30
    settings.persistence.finalizer = "portolan.dev.example/lamps"


@kopf.on.create(*LAMPS)
@kopf.on.resume(*LAMPS)
@kopf.on.update(*LAMPS, field="spec.color")
def light(spec, name, namespace, patch, **_):
    text = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{name}-light"}, "data": {"color": spec["color"]}}
    kopf.adopt(text)
    try:
        client.CoreV1Api().create_namespaced_config_map(namespace, text)
    except client.ApiException as error:
        if error.status != 409:
            raise
        client.CoreV1Api().patch_namespaced_config_map(f"{name}-light", namespace, {"data": text["data"]})
    patch.status["lit"] = spec["color"]


@kopf.on.delete(*LAMPS)
def dark(name, namespace, **_):
    note = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{name}-dark"}}
    client.CoreV1Api().create_namespaced_config_map(namespace, note)
