//! Pod specs in objects of any kind. In kinds that are not built in, they are found by their shape in any field.

use portolan_types::{
    GroupVersionKind, annotations, object,
    pod_security::{CAPABILITIES, SYSCTLS},
};
use serde_json::{Map, Value, json};

use crate::rules::{SyncRefusal, is_builtin_group};

const CONTROL_NODES: [&str; 2] = ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];
const AUTOMOUNT: &str = "automountServiceAccountToken";
const CONTAINER_LISTS: [&str; 3] = ["containers", "initContainers", "ephemeralContainers"];
/// Deepest nesting that is looked into for pod specs; decoding bounds it too.
const MAX_DEPTH: usize = 64;

/// Refuses host access and privileges in any pod spec of `copy`.
pub(super) fn check(kind: &GroupVersionKind, copy: &Value) -> Result<(), SyncRefusal> {
    if !may_hold_pods(kind) {
        return Ok(());
    }
    walk(copy, MAX_DEPTH, &mut |spec| check_spec(spec))
}

/// Checks an ephemeral container that is added to a running pod.
///
/// # Errors
/// A [`SyncRefusal`] if it requests host access or privileges.
pub fn check_ephemeral(container: &Value) -> Result<(), SyncRefusal> {
    check_container(container)
}

/// Calls `visit` with every map that looks like a pod spec: it has a list `containers`.
fn walk(
    value: &Value,
    depth: usize,
    visit: &mut impl FnMut(&Map<String, Value>) -> Result<(), SyncRefusal>,
) -> Result<(), SyncRefusal> {
    let deeper = depth.checked_sub(1).ok_or_else(|| SyncRefusal::not_syncable("it is nested too deeply"))?;
    match value {
        Value::Object(map) => {
            if map.get("containers").is_some_and(Value::is_array) {
                visit(map)?;
            }
            map.values().try_for_each(|child| walk(child, deeper, visit))
        }
        Value::Array(items) => items.iter().try_for_each(|child| walk(child, deeper, visit)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
    }
}

fn walk_mut(value: &mut Value, depth: usize, visit: &mut impl FnMut(&mut Map<String, Value>)) {
    let Some(deeper) = depth.checked_sub(1) else { return };
    match value {
        Value::Object(map) => {
            if map.get("containers").is_some_and(Value::is_array) {
                visit(map);
            }
            map.values_mut().for_each(|child| walk_mut(child, deeper, visit));
        }
        Value::Array(items) => items.iter_mut().for_each(|child| walk_mut(child, deeper, visit)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Calls `visit` with every container and init container of the pod specs of `copy`.
pub(super) fn each_container(
    kind: &GroupVersionKind,
    copy: &mut Value,
    visit: &mut impl FnMut(&mut Map<String, Value>),
) {
    if !may_hold_pods(kind) {
        return;
    }
    walk_mut(copy, MAX_DEPTH, &mut |spec| {
        for key in ["containers", "initContainers"] {
            let containers = spec.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten();
            containers.filter_map(Value::as_object_mut).for_each(&mut *visit);
        }
    });
}

/// Data is never a pod spec, even where it looks like one.
pub(super) fn may_hold_pods(kind: &GroupVersionKind) -> bool {
    !(kind.group.is_empty() && matches!(&*kind.kind, "ConfigMap" | "Secret" | "Service" | "ServiceAccount"))
}

fn check_spec(spec: &Map<String, Value>) -> Result<(), SyncRefusal> {
    let refuse =
        |what: String| Err(SyncRefusal::not_syncable(format!("{what} is not allowed on a shared physical cluster")));
    for field in ["hostNetwork", "hostPID", "hostIPC"] {
        if spec.get(field).and_then(Value::as_bool) == Some(true) {
            return refuse(field.to_owned());
        }
    }
    if list(spec, "volumes").iter().any(|volume| volume.get("hostPath").is_some_and(|p| !p.is_null())) {
        return refuse("a hostPath volume".to_owned());
    }
    if list(spec, "tolerations").iter().any(reaches_control_nodes) {
        return refuse("a toleration for nodes of the control plane".to_owned());
    }
    if spec.get("priorityClassName").and_then(Value::as_str).is_some_and(|class| class.starts_with("system-")) {
        return refuse("a system priority class".to_owned());
    }
    let context = &spec.get("securityContext").cloned().unwrap_or_default();
    check_context("securityContext", context)?;
    if let Some(sysctl) = list_of(context, "sysctls").iter().find(|s| !is_safe_sysctl(s)) {
        return refuse(format!("the sysctl {}", sysctl["name"]));
    }
    let containers = CONTAINER_LISTS.iter().flat_map(|key| list(spec, key));
    containers.into_iter().try_for_each(check_container)
}

fn check_container(container: &Value) -> Result<(), SyncRefusal> {
    let name = container["name"].as_str().unwrap_or_default();
    let ports = list_of(container, "ports");
    if ports.iter().any(|port| port["hostPort"].as_i64().is_some_and(|p| p != 0)) {
        return Err(SyncRefusal::not_syncable(format!(
            "container {name}: a hostPort is not allowed on a shared physical cluster"
        )));
    }
    check_context(&format!("container {name}"), &container["securityContext"])
}

fn check_context(place: &str, context: &Value) -> Result<(), SyncRefusal> {
    let refuse = |what: &str| {
        Err(SyncRefusal::not_syncable(format!("{place}: {what} is not allowed on a shared physical cluster")))
    };
    if context["privileged"].as_bool() == Some(true) {
        return refuse("privileged");
    }
    if context["procMount"].as_str().is_some_and(|mount| mount != "Default") {
        return refuse("procMount");
    }
    if context["windowsOptions"]["hostProcess"].as_bool() == Some(true) {
        return refuse("hostProcess");
    }
    let added = list_of(&context["capabilities"], "add");
    match added.iter().filter_map(Value::as_str).find(|cap| !CAPABILITIES.contains(&cap.trim_start_matches("CAP_"))) {
        Some(capability) => refuse(&format!("the capability {capability}")),
        None => Ok(()),
    }
}

fn is_safe_sysctl(sysctl: &Value) -> bool {
    sysctl["name"].as_str().is_some_and(|name| SYSCTLS.iter().any(|(known, _)| *known == name))
}

/// An empty key tolerates every taint, those of the control plane too.
fn reaches_control_nodes(toleration: &Value) -> bool {
    match toleration["key"].as_str().unwrap_or_default() {
        "" => toleration["operator"].as_str() == Some("Exists"),
        key => CONTROL_NODES.contains(&key),
    }
}

fn list<'a>(map: &'a Map<String, Value>, key: &str) -> &'a [Value] {
    map.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn list_of<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Removes the parts of pod specs that are bound to the logical side (its nodes and tokens), and labels the templates,
/// so that their pods can be watched and distinguished.
pub(super) fn prepare(kind: &GroupVersionKind, copy: &mut Value, cluster: &str) {
    if !may_hold_pods(kind) {
        return;
    }
    walk_mut(copy, MAX_DEPTH, &mut strip_spec);
    // A token of the physical cluster's own API is nothing that a pod of a logical cluster should hold.
    if !is_builtin_group(&kind.group) {
        // Custom kinds have the fields that their definitions declare: none is added.
        walk_mut(copy, MAX_DEPTH, &mut |spec| {
            if let Some(mounts) = spec.get_mut(AUTOMOUNT) {
                *mounts = Value::Bool(false);
            }
        });
        return;
    }
    walk_mut(copy, MAX_DEPTH, &mut |spec| {
        WORKED_OUT.iter().for_each(|field| drop(spec.remove(*field)));
        spec.insert(AUTOMOUNT.into(), Value::Bool(false));
    });
    each_template(kind, copy, &mut |template| {
        let labels = object::child_mut(object::metadata_mut(template), "labels");
        labels.insert(annotations::DOWN_CLUSTER.into(), json!(cluster));
    });
}

/// Fields that admission derives from the name of a class. Admission of the physical cluster derives them again from
/// its own classes.
const WORKED_OUT: [&str; 3] = ["priority", "preemptionPolicy", "overhead"];

fn strip_spec(spec: &mut Map<String, Value>) {
    spec.remove("nodeName");
    let tokens: Vec<String> = list(spec, "volumes").iter().filter(|v| is_token_volume(v)).filter_map(name_of).collect();
    if let Some(volumes) = spec.get_mut("volumes").and_then(Value::as_array_mut) {
        volumes.retain(|volume| !is_token_volume(volume));
        if volumes.is_empty() {
            spec.remove("volumes");
        }
    }
    for key in CONTAINER_LISTS {
        for container in spec.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten() {
            drop_mounts(container, &tokens);
        }
    }
}

fn drop_mounts(container: &mut Value, volumes: &[String]) {
    let Some(mounts) = container.get_mut("volumeMounts").and_then(Value::as_array_mut) else { return };
    mounts.retain(|mount| !name_of(mount).is_some_and(|name| volumes.contains(&name)));
    if mounts.is_empty()
        && let Some(container) = container.as_object_mut()
    {
        container.remove("volumeMounts");
    }
}

fn name_of(item: &Value) -> Option<String> {
    item.get("name").and_then(Value::as_str).map(str::to_owned)
}

/// Returns true for the volume that admission adds for the API's token (`kube-api-access-<suffix>`).
pub(crate) fn is_token_volume(volume: &Value) -> bool {
    volume["name"].as_str().is_some_and(|name| name.starts_with("kube-api-access-"))
        && volume.get("projected").is_some()
}

/// Returns the pod template of a kind that has one.
pub(super) fn template_of<'a>(kind: &GroupVersionKind, object: &'a Value) -> Option<&'a Value> {
    (&*kind.kind == "Deployment").then(|| object.get("spec")?.get("template")).flatten()
}

/// Calls `visit` with every template that a physical cluster makes objects from: of pods, jobs and volume claims.
fn each_template(kind: &GroupVersionKind, object: &mut Value, visit: &mut impl FnMut(&mut Value)) {
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else { return };
    for claim in spec.get_mut("volumeClaimTemplates").and_then(Value::as_array_mut).into_iter().flatten() {
        if claim.is_object() {
            visit(claim);
        }
    }
    let pods = if &*kind.kind == "CronJob" { "jobTemplate" } else { "template" };
    let Some(template) = spec.get_mut(pods).filter(|t| t.is_object() && &*kind.kind != "Pod") else { return };
    visit(template);
    if let Some(inner) = template.get_mut("spec").and_then(|s| s.get_mut("template")).filter(|t| t.is_object()) {
        visit(inner);
    }
}
