"""What an operator written with kopf does to custom resources, and what people see of it."""

import sys

from kubernetes import client

from operator_process import Operator
from suite import Suite, connect, gone, refused, until

NAMESPACE = "ferries"
GROUP, VERSION, PLURAL = "ferries.portolan.dev.example", "v1", "ferries"
FINALIZER = "kopf.zalando.org/KopfFinalizerMarker"
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": f"{PLURAL}.{GROUP}"},
    "spec": {
        "group": GROUP, "scope": "Namespaced",
        "names": {"plural": PLURAL, "singular": "ferry", "kind": "Ferry", "shortNames": ["fe"]},
        "versions": [{
            "name": VERSION, "served": True, "storage": True, "subresources": {"status": {}},
            "additionalPrinterColumns": [{"name": "To", "type": "string", "jsonPath": ".spec.to"}],
            "schema": {"openAPIV3Schema": {"type": "object", "required": ["spec"], "properties": {
                "spec": {"type": "object", "required": ["to"], "properties": {
                    "to": {"type": "string", "minLength": 2}, "seats": {"type": "integer", "default": 40}}},
                "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            }}},
        }],
    },
}

suite = Suite()
api = connect()
core = client.CoreV1Api(api)
definitions = client.ApiextensionsV1Api(api)
custom = client.CustomObjectsApi(api)
operator = Operator("operator_of_ferries.py", NAMESPACE)


def ferry(name, spec):
    body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "Ferry", "metadata": {"name": name}, "spec": spec}
    return custom.create_namespaced_custom_object(GROUP, VERSION, NAMESPACE, PLURAL, body)


def read(name):
    return custom.get_namespaced_custom_object(GROUP, VERSION, NAMESPACE, PLURAL, name)


def config_map(name):
    try:
        return core.read_namespaced_config_map(name, NAMESPACE)
    except client.ApiException as error:
        if error.status == 404:
            return None
        raise


@suite.check("a kind is defined, and the operator finds it")
def _():
    core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=NAMESPACE)))
    definitions.create_custom_resource_definition(DEFINITION)

    def established():
        conditions = definitions.read_custom_resource_definition(f"{PLURAL}.{GROUP}").status.conditions or []
        return any(one.type == "Established" and one.status == "True" for one in conditions)
    until("the definition is established", established)
    operator.start()
    operator.watches(f"{PLURAL}.v1.{GROUP}")


@suite.check("a new object is handled, with a second try, and its status says so")
def _():
    made = ferry("hope", {"to": "the island"})
    assert made["spec"]["seats"] == 40, made
    timetable = until("the timetable", lambda: config_map("hope-timetable"))
    assert timetable.data == {"to": "the island"} and timetable.metadata.owner_references[0].uid == made["metadata"]["uid"]
    until("what the handler gave", lambda: read("hope").get("status", {}).get("create") == {"timetable": "hope-timetable"})
    now = read("hope")
    assert now["metadata"]["finalizers"] == [FINALIZER] and now["metadata"]["generation"] == 1, now


@suite.check("an object that its schema refuses is not made")
def _():
    said = refused(422, "Invalid", lambda: ferry("mute", {"to": "x"}))
    assert "spec.to in body should be at least 2 chars long" in said["message"], said
    refused(422, "Invalid", lambda: ferry("empty", {}))


@suite.check("a change of a field is handled")
def _():
    custom.patch_namespaced_custom_object(GROUP, VERSION, NAMESPACE, PLURAL, "hope", {"spec": {"to": "the mainland"}})
    until("the route", lambda: read("hope")["status"].get("route") == "the mainland, not the island")
    assert config_map("hope-timetable").data == {"to": "the mainland"}
    assert read("hope")["metadata"]["generation"] == 2


@suite.check("a timer counts in the status")
def _():
    until("three crossings", lambda: read("hope")["status"].get("crossings") == 3)
    assert read("hope")["metadata"]["generation"] == 2


@suite.check("it ends on SIGTERM, and after a start again knows what it has done")
def _():
    operator.stop()
    custom.patch_namespaced_custom_object(GROUP, VERSION, NAMESPACE, PLURAL, "hope", {"spec": {"to": "nowhere"}})
    operator.start()
    until("what changed meanwhile is handled", lambda: read("hope")["status"].get("route") == "nowhere, not the mainland")


@suite.check("a deleted object waits for its handler and its daemon, then goes with what it owned")
def _():
    custom.delete_namespaced_custom_object(GROUP, VERSION, NAMESPACE, PLURAL, "hope")
    until("the handler ran", lambda: config_map("hope-sunk"))
    until("the daemon ended", lambda: config_map("hope-whistled"))
    gone("the ferry", lambda: read("hope"))
    gone("the timetable", lambda: core.read_namespaced_config_map("hope-timetable", NAMESPACE))


@suite.check("it ends, and the definition goes")
def _():
    operator.stop()
    # A server that is not ready for a new kind says so, and kopf asks again.
    wrong = operator.wrong("the tide is low", "storage is (re)initializing")
    assert not wrong, "\n".join(wrong)[:4000]
    definitions.delete_custom_resource_definition(f"{PLURAL}.{GROUP}")
    gone("the definition", lambda: definitions.read_custom_resource_definition(f"{PLURAL}.{GROUP}"))
    core.delete_namespace(NAMESPACE)


try:
    sys.exit(suite.run())
finally:
    operator.kill()
