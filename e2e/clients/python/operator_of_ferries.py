"""An operator over a kind of its own, after kopf's own examples: `kopf run operator_of_ferries.py`."""

import kopf
from kubernetes import client, config

FERRIES = ("ferries.portolan.dev.example", "v1", "ferries")


def note(name, namespace):
    """Handlers may be called again after they have done their work."""
    try:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
        client.CoreV1Api().create_namespaced_config_map(namespace, body)
    except client.ApiException as error:
        if error.status != 409:
            raise


@kopf.on.startup()
def start(settings, **_):
    config.load_kube_config()
    settings.watching.server_timeout = 5  # so that watches end and are resumed while it runs
    # What was handled is kept in the status, which is a part of its own.
    settings.persistence.progress_storage = kopf.StatusProgressStorage()
    settings.persistence.diffbase_storage = kopf.StatusDiffBaseStorage()


@kopf.on.create(*FERRIES, retries=3, backoff=0.2)
def create(spec, name, namespace, retry, logger, **_):
    if retry == 0:
        raise kopf.TemporaryError("the tide is low", delay=0.2)
    timetable = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{name}-timetable"}, "data": {"to": spec["to"]}}
    kopf.adopt(timetable)
    client.CoreV1Api().create_namespaced_config_map(namespace, timetable)
    return {"timetable": f"{name}-timetable"}


@kopf.on.update(*FERRIES, field="spec.to")
def reroute(old, new, name, namespace, patch, **_):
    client.CoreV1Api().patch_namespaced_config_map(f"{name}-timetable", namespace, {"data": {"to": new}})
    patch.status["route"] = f"{new}, not {old}"


@kopf.timer(*FERRIES, interval=0.5, sharp=True)
def sail(status, patch, **_):
    crossings = status.get("crossings", 0)
    if crossings < 3:
        patch.status["crossings"] = crossings + 1


@kopf.daemon(*FERRIES, cancellation_timeout=5)
def whistle(stopped, name, namespace, **_):
    stopped.wait()
    note(f"{name}-whistled", namespace)


@kopf.on.delete(*FERRIES)
def delete(name, namespace, **_):
    note(f"{name}-sunk", namespace)
