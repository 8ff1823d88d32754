//! Fields of feature gates that are disabled in this version: they are dropped, unless the old state has such
//! already.

use serde_json::{Map, Value};

/// Returns the path of the pod spec in objects of a kind.
fn pod_spec(group: &str, kind: &str) -> Option<&'static str> {
    match (group, kind) {
        ("", "Pod") => Some("/spec"),
        ("", "PodTemplate") => Some("/template/spec"),
        ("batch", "CronJob") => Some("/spec/jobTemplate/spec/template/spec"),
        ("", "ReplicationController")
        | ("apps", "DaemonSet" | "Deployment" | "ReplicaSet" | "StatefulSet")
        | ("batch", "Job") => Some("/spec/template/spec"),
        _ => None,
    }
}

/// Drops fields that this version does not serve. `old` is null for a new object.
pub(super) fn drop_closed((group, kind): (&str, &str), old: &Value, new: &mut Value) {
    if let Some(path) = pod_spec(group, kind)
        && let Some(Value::Object(spec)) = new.pointer_mut(path)
    {
        of_pod(old.pointer(path).unwrap_or(&Value::Null), spec);
    }
    match (group, kind) {
        ("apps", "StatefulSet") => drop_field(old, new, "/spec/updateStrategy/rollingUpdate", "maxUnavailable"),
        ("storage.k8s.io", "CSIDriver") => drop_field(old, new, "/spec", "preventPodSchedulingIfMissing"),
        ("", "Node") => {
            drop_field(old, new, "/spec", "configSource");
            drop_field(old, new, "/status", "config");
        }
        _ => {}
    }
}

fn drop_field(old: &Value, new: &mut Value, path: &str, name: &str) {
    let had = old.pointer(path).and_then(|at| at.get(name)).is_some_and(|value| !value.is_null());
    if let Some(Value::Object(fields)) = new.pointer_mut(path).filter(|_| !had) {
        fields.remove(name);
    }
}

/// Sources of projected volumes that are not served.
const SOURCES: [&str; 2] = ["clusterTrustBundle", "podCertificate"];
const CONTAINERS: [&str; 3] = ["containers", "initContainers", "ephemeralContainers"];

fn of_pod(old: &Value, spec: &mut Map<String, Value>) {
    if old.get("schedulingGroup").is_none() {
        spec.remove("schedulingGroup");
    }
    for name in SOURCES {
        let had = list(old, "volumes").flat_map(|volume| list(&volume["projected"], "sources"));
        if had.into_iter().any(|source| source.get(name).is_some()) {
            continue;
        }
        for projected in items(spec, "volumes").filter_map(|volume| volume.get_mut("projected")?.as_object_mut()) {
            items(projected, "sources").for_each(|source| drop(source.remove(name)));
        }
    }
    let stops = |container: &Value| container.pointer("/lifecycle/stopSignal").is_some();
    if !CONTAINERS.iter().any(|name| list(old, name).any(stops)) {
        for name in CONTAINERS {
            items(spec, name).for_each(without_stop_signal);
        }
    }
}

fn without_stop_signal(container: &mut Map<String, Value>) {
    let lifecycle = container.get_mut("lifecycle").and_then(Value::as_object_mut);
    let Some(lifecycle) = lifecycle else { return };
    if lifecycle.remove("stopSignal").is_some() && lifecycle.is_empty() {
        container.remove("lifecycle");
    }
}

fn list<'v>(object: &'v Value, name: &str) -> impl Iterator<Item = &'v Value> {
    object.get(name).and_then(Value::as_array).into_iter().flatten()
}

fn items<'v>(fields: &'v mut Map<String, Value>, name: &str) -> impl Iterator<Item = &'v mut Map<String, Value>> {
    fields.get_mut(name).and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}

const STATUSES: [&str; 3] = ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"];

/// Drops the status of image volumes from a pod's status.
pub(super) fn drop_volume_status(old: &Value, pod: &mut Value) {
    let statuses = STATUSES.iter().flat_map(|name| list(&old["status"], name));
    if statuses.flat_map(|status| list(status, "volumeMounts")).any(|mount| mount.get("volumeStatus").is_some()) {
        return;
    }
    let Some(status) = pod.get_mut("status").and_then(Value::as_object_mut) else { return };
    for name in STATUSES {
        for container in items(status, name) {
            items(container, "volumeMounts").for_each(|mount| drop(mount.remove("volumeStatus")));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn closed_gates_drop_fields_that_were_not_there_before() {
        let pod = json!({
            "schedulingGroup": {"podGroupName": "g"},
            "containers": [{"name": "c", "lifecycle": {"stopSignal": "SIGUSR1"}}],
            "initContainers": [{"name": "i", "lifecycle": {"stopSignal": "SIGUSR1", "preStop": {}}}],
            "volumes": [{"name": "v", "projected": {"sources": [{"clusterTrustBundle": {}}, {"podCertificate": {}}]}}],
        });
        let left = json!({
            "containers": [{"name": "c"}], "initContainers": [{"name": "i", "lifecycle": {"preStop": {}}}],
            "volumes": [{"name": "v", "projected": {"sources": [{}, {}]}}],
        });
        let rolling = |fields: Value| json!({"spec": {"updateStrategy": {"rollingUpdate": fields}}});
        for (of, object, expected) in [
            (("", "Pod"), json!({"spec": pod}), json!({"spec": left})),
            (("", "PodTemplate"), json!({"template": {"spec": pod}}), json!({"template": {"spec": left}})),
            (
                ("apps", "StatefulSet"),
                rolling(json!({"maxUnavailable": 2, "partition": 1})),
                rolling(json!({"partition": 1})),
            ),
            (
                ("", "Node"),
                json!({"spec": {"configSource": {}}, "status": {"config": {}}}),
                json!({"spec": {}, "status": {}}),
            ),
            (("", "Service"), json!({"spec": {"configSource": {}}}), json!({"spec": {"configSource": {}}})),
        ] {
            let mut new = object.clone();
            drop_closed(of, &Value::Null, &mut new);
            assert_eq!(new, expected, "{of:?} is made");
            let mut again = object.clone();
            drop_closed(of, &object, &mut again);
            assert_eq!(again, object, "{of:?} had it before");
        }
    }

    #[test]
    fn status_of_image_volumes_is_kept_only_if_present() {
        let pod = |mount: Value| json!({"status": {"initContainerStatuses": [{"name": "i", "volumeMounts": [mount]}]}});
        let (told, left) = (json!({"name": "v", "volumeStatus": {"image": {"imageRef": "r"}}}), json!({"name": "v"}));
        for (before, expected) in [(left.clone(), left.clone()), (told.clone(), told.clone())] {
            let mut new = pod(told.clone());
            drop_volume_status(&pod(before.clone()), &mut new);
            assert_eq!(new, pod(expected), "{before}");
        }
    }
}
