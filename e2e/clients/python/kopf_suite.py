"""What an operator written with kopf does to a server, and what people see of it."""

import json
import os
import sys

from kubernetes import client

from operator_process import Operator
from suite import Suite, connect, gone, until

NAMESPACE = os.environ.get("SUITE_NAMESPACE", "kopf")
FINALIZER = "kopf.zalando.org/KopfFinalizerMarker"
LAST = "kopf.zalando.org/last-handled-configuration"

suite = Suite()
api = connect()
core = client.CoreV1Api(api)
apps = client.AppsV1Api(api)
operator = Operator("operator_of_signs.py", NAMESPACE)


def sign(name, says, label="yes"):
    metadata = client.V1ObjectMeta(name=name, labels={"sign": label})
    return core.create_namespaced_config_map(NAMESPACE, client.V1ConfigMap(metadata=metadata, data={"says": says}))


def read(name):
    try:
        return core.read_namespaced_config_map(name, NAMESPACE)
    except client.ApiException as error:
        if error.status == 404:
            return None
        raise


def annotation(name, key):
    found = read(name)
    return found and (found.metadata.annotations or {}).get(key)


def deployment(name, replicas):
    labels = {"app": name, "sign": "yes"}
    containers = [client.V1Container(name="main", image="registry.example/main:1")]
    template = client.V1PodTemplateSpec(metadata=client.V1ObjectMeta(labels=labels), spec=client.V1PodSpec(containers=containers))
    selector = client.V1LabelSelector(match_labels={"app": name})
    return client.V1Deployment(metadata=client.V1ObjectMeta(name=name, labels=labels),
                               spec=client.V1DeploymentSpec(replicas=replicas, selector=selector, template=template))


def signed():
    conditions = apps.read_namespaced_deployment("pier", NAMESPACE).status.conditions or []
    return {one.type: (one.reason, one.message) for one in conditions}.get("Signed")


@suite.check("the operator starts, and finds the kinds that it handles")
def _():
    core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=NAMESPACE)))
    paint = client.V1Secret(metadata=client.V1ObjectMeta(name="red", labels={"paint": "red"}))
    core.create_namespaced_secret(NAMESPACE, paint)
    apps.create_namespaced_deployment(NAMESPACE, deployment("pier", 0))
    operator.start()
    operator.watches("deployments.v1.apps")


@suite.check("a new object is handled, with a second try, and carries the finalizer")
def _():
    made = sign("exit", "way out")
    board = until("the board", lambda: read("exit-board"))
    assert board.data == {"says": "way out"} and board.metadata.owner_references[0].uid == made.metadata.uid
    handled = json.loads(until("it is marked as handled", lambda: annotation("exit", LAST)))
    assert handled["data"] == {"says": "way out"}, handled
    assert read("exit").metadata.finalizers == [FINALIZER]


@suite.check("a change of a field is handled, by an index and a patch")
def _():
    core.patch_namespaced_config_map("exit", NAMESPACE, {"data": {"says": "no way out"}})
    text = until("it is repainted", lambda: annotation("exit", "signs/repainted"))
    assert text == "from way out to no way out with 1 paints", text
    assert read("exit-board").data == {"says": "no way out"}


@suite.check("a raw event is handled")
def _():
    sign("bell", "ding", "heard")
    until("it is heard", lambda: annotation("bell", "signs/heard"))


@suite.check("a timer ticks, and a status is patched on a Deployment")
def _():
    until("three ticks", lambda: apps.read_namespaced_deployment("pier", NAMESPACE).metadata.annotations.get("signs/ticks") == "3")
    apps.patch_namespaced_deployment_scale("pier", NAMESPACE, {"spec": {"replicas": 1}})
    until("the status", lambda: signed() == ("Update", "1"))
    # The controllers of the Deployment leave what is not theirs.
    until("its pods", lambda: apps.read_namespaced_deployment("pier", NAMESPACE).status.ready_replicas == 1)
    assert signed() == ("Update", "1"), signed()


@suite.check("events tell of it")
def _():
    def painted():
        found = core.list_namespaced_event(NAMESPACE, field_selector="involvedObject.name=exit").items
        return [one for one in found if one.reason == "Painted"]
    event = until("an event", painted)[0]
    assert event.message == "board exit-board says way out" and event.type == "Normal", event


@suite.check("it ends on SIGTERM, and after a start again knows what it has done")
def _():
    operator.stop()
    core.patch_namespaced_config_map("exit", NAMESPACE, {"data": {"says": "this way"}})
    operator.start()
    until("what changed meanwhile is repainted", lambda: read("exit-board").data == {"says": "this way"})
    expected = "from no way out to this way"
    until("it says so", lambda: annotation("exit", "signs/repainted").startswith(expected))
    until("the status", lambda: signed() == ("Resume", "1"))


@suite.check("a deleted object waits for its handler, then goes with what it owned")
def _():
    core.delete_namespaced_config_map("exit", NAMESPACE)
    until("the handler ran", lambda: read("exit-removed"))
    gone("the sign", lambda: core.read_namespaced_config_map("exit", NAMESPACE))
    gone("the board", lambda: core.read_namespaced_config_map("exit-board", NAMESPACE))


@suite.check("it ends, and nothing that it said was an error")
def _():
    core.delete_namespaced_config_map("bell", NAMESPACE)
    gone("the bell", lambda: core.read_namespaced_config_map("bell", NAMESPACE))
    apps.delete_namespaced_deployment("pier", NAMESPACE)
    gone("the pier", lambda: apps.read_namespaced_deployment("pier", NAMESPACE))
    operator.stop()
    wrong = operator.wrong("the paint has to dry")
    assert not wrong, "\n".join(wrong)[:4000]
    core.delete_namespace(NAMESPACE)


try:
    sys.exit(suite.run())
finally:
    operator.kill()
