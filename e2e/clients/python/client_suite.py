"""What programs written with the Python client do to a server."""

import json
import os
import threading
import time

from kubernetes import client, dynamic, utils, watch
from kubernetes.leaderelection import electionconfig, leaderelection
from kubernetes.leaderelection.resourcelock.leaselock import LeaseLock

from suite import Suite, connect, gone, refused, until

NAMESPACE = os.environ.get("SUITE_NAMESPACE", "python")

suite = Suite()
api = connect()
core = client.CoreV1Api(api)
apps = client.AppsV1Api(api)


def config_map(name, value="v", **metadata):
    return client.V1ConfigMap(metadata=client.V1ObjectMeta(name=name, **metadata), data={"k": value})


def deployment(name, replicas=0):
    labels = {"app": name}
    container = client.V1Container(name="main", image="registry.example/main:1")
    template = client.V1PodTemplateSpec(
        metadata=client.V1ObjectMeta(labels=labels), spec=client.V1PodSpec(containers=[container]))
    return client.V1Deployment(
        metadata=client.V1ObjectMeta(name=name),
        spec=client.V1DeploymentSpec(
            replicas=replicas, selector=client.V1LabelSelector(match_labels=labels), template=template))


@suite.check("a namespace is made, and gets what each namespace has")
def _():
    core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=NAMESPACE)))
    def furnished():
        accounts = core.list_namespaced_service_account(NAMESPACE).items
        maps = core.list_namespaced_config_map(NAMESPACE).items
        return [one.metadata.name for one in accounts + maps] == ["default", "kube-root-ca.crt"]
    until("the furniture", furnished)


@suite.check("an object lives from create to delete")
def _():
    made = core.create_namespaced_config_map(NAMESPACE, config_map("life", labels={"a": "b"}))
    assert made.metadata.uid and made.metadata.creation_timestamp.tzinfo, made.metadata
    made.data["k"] = "w"
    put = core.replace_namespaced_config_map("life", NAMESPACE, made)
    assert put.data == {"k": "w"} and put.metadata.resource_version != made.metadata.resource_version
    found = core.list_namespaced_config_map(NAMESPACE, label_selector="a=b", field_selector="metadata.name=life")
    assert [one.metadata.uid for one in found.items] == [made.metadata.uid]
    status = core.delete_namespaced_config_map("life", NAMESPACE)
    assert status["status"] == "Success" and status["details"]["uid"] == made.metadata.uid, status
    gone("the ConfigMap", lambda: core.read_namespaced_config_map("life", NAMESPACE))


@suite.check("refusals carry a Status with its reason")
def _():
    core.create_namespaced_config_map(NAMESPACE, config_map("taken"))
    refused(404, "NotFound", lambda: core.read_namespaced_config_map("none", NAMESPACE))
    refused(409, "AlreadyExists", lambda: core.create_namespaced_config_map(NAMESPACE, config_map("taken")))
    invalid = refused(422, "Invalid", lambda: core.create_namespaced_config_map(NAMESPACE, config_map("Not_A_Name")))
    assert invalid["details"]["causes"][0]["field"] == "metadata.name", invalid
    stale = core.read_namespaced_config_map("taken", NAMESPACE)
    core.patch_namespaced_config_map("taken", NAMESPACE, {"data": {"k": "w"}})
    refused(409, "Conflict", lambda: core.replace_namespaced_config_map("taken", NAMESPACE, stale))


@suite.check("each type of patch does what it says")
def _():
    apps.create_namespaced_deployment(NAMESPACE, deployment("patched"))
    def patch(body, content_type=None):
        options = {"_content_type": content_type} if content_type else {}
        return apps.patch_namespaced_deployment("patched", NAMESPACE, body, **options)
    side = {"name": "side", "image": "registry.example/side:1"}
    containers = {"spec": {"template": {"spec": {"containers": [side]}}}}
    strategic = patch(containers, "application/strategic-merge-patch+json")
    assert [one.name for one in strategic.spec.template.spec.containers] == ["side", "main"]
    merged = patch(containers, "application/merge-patch+json")
    assert [one.name for one in merged.spec.template.spec.containers] == ["side"]
    listed = patch([{"op": "add", "path": "/metadata/labels", "value": {"x": "y"}}], "application/json-patch+json")
    assert listed.metadata.labels == {"x": "y"}
    # A body that is a list is a JSON patch, another one a strategic merge patch, when nothing is said.
    assert patch([{"op": "remove", "path": "/metadata/labels/x"}]).metadata.labels is None
    assert patch({"spec": {"paused": True}}).spec.paused is True


@suite.check("server-side apply: own, share, conflict, force")
def _():
    def apply(name, data, manager, **options):
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
        return core.patch_namespaced_config_map(
            name, NAMESPACE, body, field_manager=manager, _content_type="application/apply-patch+yaml", **options)
    first = apply("applied", {"a": "1", "b": "1"}, "one")
    assert first.metadata.managed_fields[0].operation == "Apply"
    assert apply("applied", {"a": "1", "b": "1"}, "one").metadata.resource_version == first.metadata.resource_version
    conflict = refused(409, "Conflict", lambda: apply("applied", {"a": "2"}, "two"))
    assert conflict["details"]["causes"][0]["field"] == ".data.a", conflict
    assert apply("applied", {"a": "2"}, "two", force=True).data == {"a": "2", "b": "1"}
    assert apply("applied", {}, "one").data == {"a": "2"}


@suite.check("status and scale are written apart from the spec")
def _():
    apps.create_namespaced_deployment(NAMESPACE, deployment("parts"))
    scale = apps.read_namespaced_deployment_scale("parts", NAMESPACE)
    assert (scale.spec.replicas or 0) == 0 and scale.status.selector == "app=parts", scale
    assert apps.patch_namespaced_deployment_scale("parts", NAMESPACE, {"spec": {"replicas": 1}}).spec.replicas == 1
    put = apps.patch_namespaced_deployment_status("parts", NAMESPACE, {"status": {"collisionCount": 3}, "spec": {"replicas": 9}})
    assert put.status.collision_count == 3 and put.spec.replicas == 1, put


@suite.check("pages go on where the last one ended")
def _():
    for number in range(25):
        core.create_namespaced_config_map(NAMESPACE, config_map(f"page-{number:02}", labels={"set": "page"}))
    names, token = [], None
    while True:
        page = core.list_namespaced_config_map(NAMESPACE, label_selector="set=page", limit=10, _continue=token)
        names += [one.metadata.name for one in page.items]
        token = page.metadata._continue
        if not token:
            break
    assert names == [f"page-{number:02}" for number in range(25)], names
    core.delete_collection_namespaced_config_map(NAMESPACE, label_selector="set=page")
    assert core.list_namespaced_config_map(NAMESPACE, label_selector="set=page").items == []


@suite.check("a watch tells of all that happens, in order")
def _():
    begin = core.list_namespaced_config_map(NAMESPACE).metadata.resource_version
    def write():
        core.create_namespaced_config_map(NAMESPACE, config_map("seen", labels={"set": "seen"}))
        core.patch_namespaced_config_map("seen", NAMESPACE, {"data": {"k": "w"}})
        core.delete_namespaced_config_map("seen", NAMESPACE)
    writer = threading.Thread(target=write)
    writer.start()
    told, stream = [], watch.Watch()
    for event in stream.stream(
            core.list_namespaced_config_map, NAMESPACE, resource_version=begin, label_selector="set=seen"):
        told.append((event["type"], event["object"].data["k"]))
        if event["type"] == "DELETED":
            stream.stop()
    writer.join()
    assert told == [("ADDED", "v"), ("MODIFIED", "w"), ("DELETED", "w")], told


@suite.check("a watch whose connection ends goes on by itself")
def _():
    begin = core.list_namespaced_config_map(NAMESPACE).metadata.resource_version
    def write():
        for number in range(4):
            core.create_namespaced_config_map(NAMESPACE, config_map(f"later-{number}", labels={"set": "later"}))
            time.sleep(0.7)
    writer = threading.Thread(target=write)
    writer.start()
    told, stream, tries = [], watch.Watch(), 0
    while len(told) < 4:
        tries += 1
        for event in stream.stream(
                core.list_namespaced_config_map, NAMESPACE, label_selector="set=later",
                resource_version=stream.resource_version or begin, timeout_seconds=1, allow_watch_bookmarks=True):
            if event["type"] != "BOOKMARK":
                told.append(event["object"].metadata.name)
    writer.join()
    assert told == [f"later-{number}" for number in range(4)] and tries > 1, (told, tries)


@suite.check("a watch from a forgotten revision raises 410, and a list makes it good")
def _():
    stream = watch.Watch()
    try:
        for event in stream.stream(core.list_namespaced_config_map, NAMESPACE, resource_version="1"):
            raise AssertionError(f"not refused: {event['type']}")
        raise AssertionError("the stream just ended")
    except client.ApiException as error:
        assert error.status == 410 and "too old resource version" in str(error), error
    fresh = core.list_namespaced_config_map(NAMESPACE).metadata.resource_version
    for _ in stream.stream(core.list_namespaced_config_map, NAMESPACE, resource_version=fresh, timeout_seconds=1):
        pass


@suite.check("the dynamic client finds, writes, applies, watches what it has no model for")
def _():
    free = dynamic.DynamicClient(api)
    assert free.version["kubernetes"]["minor"] == "36", free.version
    maps = free.resources.get(api_version="v1", kind="ConfigMap")
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "free"}, "data": {"k": "v"}}
    made = maps.create(body=body, namespace=NAMESPACE)
    assert made.metadata.uid and made.data.k == "v"
    patched = maps.patch(
        body={"data": {"k": "w"}}, name="free", namespace=NAMESPACE, content_type="application/merge-patch+json")
    assert patched.data.k == "w"
    body["data"]["k"] = "x"
    applied = maps.server_side_apply(body=body, namespace=NAMESPACE, field_manager="free", force_conflicts=True)
    assert applied.data.k == "x"
    event = next(iter(maps.watch(namespace=NAMESPACE, name="free", timeout=10)))
    assert event["type"] == "ADDED" and event["object"].data.k == "x"
    maps.delete(name="free", namespace=NAMESPACE)
    roles = free.resources.get(api_version="rbac.authorization.k8s.io/v1", kind="ClusterRole")
    assert roles.get(name="view").metadata.name == "view"


@suite.check("create_from_yaml makes objects of many kinds")
def _():
    labels = {"app": "many"}
    objects = [
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "many"},
         "spec": {"selector": labels, "ports": [{"port": 80}]}},
        {"apiVersion": "v1", "kind": "List", "items": [
            {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "many"},
             "spec": {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": {"template": {"spec": {
                 "restartPolicy": "Never", "containers": [{"name": "main", "image": "registry.example/main:1"}]}}}}}},
            {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "many"},
             "spec": {"podSelector": {"matchLabels": labels}}},
        ]},
    ]
    utils.create_from_yaml(api, yaml_objects=objects, namespace=NAMESPACE)
    assert client.BatchV1Api(api).read_namespaced_cron_job("many", NAMESPACE).spec.concurrency_policy == "Allow"
    assert core.read_namespaced_service("many", NAMESPACE).spec.cluster_ip


@suite.check("one of two candidates for a Lease leads")
def _():
    led, stop = [], threading.Event()
    def lead(name):
        def leading():
            led.append(name)
            stop.wait(60)
        lock = LeaseLock("wheel", NAMESPACE, name)
        settings = electionconfig.Config(lock, lease_duration=4, renew_deadline=3, retry_period=1,
                                         onstarted_leading=leading, onstopped_leading=lambda: None)
        threading.Thread(target=leaderelection.LeaderElection(settings).run, daemon=True).start()
    lead("first")
    until("a leader", lambda: led)
    lead("second")
    time.sleep(2)
    held = client.CoordinationV1Api(api).read_namespaced_lease("wheel", NAMESPACE).spec
    stop.set()
    assert led == ["first"] and held.holder_identity == "first" and held.renew_time.microsecond is not None, (led, held)


@suite.check("every group, version and resource is found and listed")
def _():
    listed = 0
    for group in client.ApisApi(api).get_api_versions().groups:
        path = f"/apis/{group.preferred_version.group_version}"
        resources = raw(path)
        for resource in resources["resources"]:
            if "/" not in resource["name"] and "list" in resource["verbs"]:
                answer = raw(f"{path}/{resource['name']}?limit=1")
                assert answer["kind"] == resource["kind"] + "List", answer["kind"]
                listed += 1
    assert listed > 30, listed


def raw(path):
    request = api.param_serialize("GET", path, header_params={"Accept": "application/json"}, auth_settings=["BearerToken"])
    answer = api.call_api(*request)
    return json.loads(answer.read() or answer.data)


@suite.check("a namespace goes with all that is in it")
def _():
    core.delete_namespace(NAMESPACE)
    gone("the namespace", lambda: core.read_namespace(NAMESPACE))
    refused(404, "NotFound", lambda: apps.read_namespaced_deployment("patched", NAMESPACE))


# The candidates for the Lease never end: no thread is waited for.
os._exit(suite.run())
