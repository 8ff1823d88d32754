"""An operator as its authors publish it: `kopf run operator_of_signs.py`. It paints what ConfigMaps with the label `sign` say."""

import kopf
from kubernetes import client, config

SIGN = {"sign": kopf.PRESENT}


@kopf.on.startup()
def start(settings, **_):
    config.load_kube_config()
    settings.watching.server_timeout = 5  # so that watches end and are resumed while it runs
    settings.posting.level = 20


@kopf.index("secrets", labels={"paint": kopf.PRESENT})
def paints(name, labels, **_):
    return {labels["paint"]: name}


@kopf.on.create("configmaps", labels=SIGN, retries=3, backoff=0.2)
def create(name, namespace, body, retry, logger, **_):
    if retry == 0:
        raise kopf.TemporaryError("the paint has to dry", delay=0.2)
    board = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{name}-board"}, "data": {"says": body["data"]["says"]}}
    kopf.append_owner_reference(board)
    client.CoreV1Api().create_namespaced_config_map(namespace, board)
    kopf.info(body, reason="Painted", message=f"board {name}-board says {body['data']['says']}")
    return {"painted": True}


@kopf.on.field("configmaps", field="data.says", labels=SIGN)
def repaint(old, new, name, namespace, paints, patch, **_):
    if old is not None:
        client.CoreV1Api().patch_namespaced_config_map(f"{name}-board", namespace, {"data": {"says": new}})
        patch.metadata.annotations["signs/repainted"] = f"from {old} to {new} with {len(paints)} paints"


@kopf.on.delete("configmaps", labels=SIGN)
def delete(name, namespace, **_):
    note = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{name}-removed"}}
    client.CoreV1Api().create_namespaced_config_map(namespace, note)


@kopf.on.event("configmaps", labels={"sign": "heard"})
def hear(type, name, annotations, patch, **_):
    if type != "DELETED" and "signs/heard" not in annotations:
        patch.metadata.annotations["signs/heard"] = "yes"


@kopf.timer("deployments", labels=SIGN, interval=0.5, sharp=True)
def count(annotations, patch, **_):
    ticks = int(annotations.get("signs/ticks", 0))
    if ticks < 3:
        patch.metadata.annotations["signs/ticks"] = str(ticks + 1)


@kopf.on.resume("deployments", labels=SIGN)
@kopf.on.update("deployments", labels=SIGN, field="spec.replicas")
def scaled(spec, reason, patch, **_):
    patch.status["conditions"] = [{"type": "Signed", "status": "True", "reason": reason.value.capitalize(), "message": f"{spec['replicas']}"}]
