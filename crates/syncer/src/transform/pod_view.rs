//! View that the pods of a copy have of their logical cluster: API, token, names and namespace. Pure.

use std::net::IpAddr;

use portolan_types::{
    GroupVersionKind, Uid, annotations, object,
    placement::{PlacementRecord, PodView},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::rules::is_builtin_group;

/// Directory in which client libraries look for the token.
const TOKEN_DIRECTORY: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Volume of the token. The prefix is the one of Kubernetes' own, so that the volume is not shown upstream.
const TOKEN_VOLUME: &str = "kube-api-access-portolan";
const HOST: &str = "KUBERNETES_SERVICE_HOST";
const PORTS: [&str; 2] = ["KUBERNETES_SERVICE_PORT", "KUBERNETES_SERVICE_PORT_HTTPS"];
const CONTAINERS: [&str; 2] = ["initContainers", "containers"];
/// Most resolvers and search domains of a pod, as Kubernetes validates them.
const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;

/// View of the logical cluster that is written into the pods of a copy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LogicalView {
    /// Namespace upstream.
    pub namespace: String,
    /// API server, if pods can reach one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api: Option<ApiAddress>,
    /// Secret downstream that has the token, if the pods get one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// DNS responder, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns: Option<IpAddr>,
}

/// Address of the API server for pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApiAddress {
    /// Name or IP address, which the certificate of the server has.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Address that the pods' hosts file gives to `host`: that of the agent, which forwards to the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<IpAddr>,
}

/// Returns true if pods of the kind are made from a template that this module knows.
pub(crate) fn has_pods(kind: &GroupVersionKind) -> bool {
    let kinds =
        ["Pod", "Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "ReplicationController", "Job", "CronJob"];
    is_builtin_group(&kind.group) && kinds.contains(&&*kind.kind)
}

/// Returns true if the pods of the kind cannot change once they exist: they keep the view that they were made with.
pub(crate) fn is_fixed(kind: &GroupVersionKind) -> bool {
    matches!(&*kind.kind, "Pod" | "Job")
}

/// Returns the pod template of an object: the part that has the pods' metadata and spec.
pub(crate) fn template<'a>(kind: &GroupVersionKind, object: &'a Value) -> Option<&'a Value> {
    if has_pods(kind) { object.pointer(pointer(kind)) } else { None }
}

fn pointer(kind: &GroupVersionKind) -> &'static str {
    match &*kind.kind {
        "Pod" => "",
        "CronJob" => "/spec/jobTemplate/spec/template",
        _ => "/spec/template",
    }
}

/// Returns true if a policy keeps the view of the physical cluster for the copy there: the last that says anything.
pub(crate) fn is_off(record: &PlacementRecord, physical: &Uid) -> bool {
    let here = record.overrides.iter().filter(|one| one.on.contains(physical));
    here.filter_map(|one| one.change.pod_view).next_back() == Some(PodView::Physical)
}

/// Returns the view that a copy was made with.
pub(crate) fn of_copy(copy: &Value) -> Option<LogicalView> {
    serde_json::from_str(object::annotation(copy, annotations::DOWN_POD_VIEW)?).ok()
}

/// Writes the view into the pods of a copy.
pub(super) fn apply(kind: &GroupVersionKind, copy: &mut Value, view: &LogicalView) {
    if !has_pods(kind) {
        return;
    }
    let Some(template) = copy.pointer_mut(pointer(kind)) else { return };
    let is_file = template.get_mut("spec").is_some_and(name_in_volumes);
    if is_file {
        object::set_annotation(template, annotations::DOWN_POD_NAMESPACE, Some(view.namespace.clone()));
    }
    let Some(spec) = template.get_mut("spec").and_then(Value::as_object_mut) else { return };
    let is_mounted = CONTAINERS.map(|key| visit_containers(spec, key, view)).contains(&true);
    if let Some(secret) = view.secret.as_ref().filter(|_| is_mounted) {
        push(spec, "volumes", token_volume(secret));
    }
    if let Some(ApiAddress { host, alias: Some(alias), .. }) = &view.api {
        push(spec, "hostAliases", json!({"ip": alias, "hostnames": [host]}));
    }
    if let Some(dns) = view.dns {
        set_dns(spec, dns, &view.namespace);
    }
    let text = serde_json::to_string(view).expect("strings and numbers serialize");
    object::set_annotation(copy, annotations::DOWN_POD_VIEW, Some(text));
}

fn items_of<'a>(map: &'a Map<String, Value>, key: &str) -> &'a [Value] {
    map.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Writes the view into the containers of one list. Returns true if any of them mounts the token.
fn visit_containers(spec: &mut Map<String, Value>, key: &str, view: &LogicalView) -> bool {
    let mut is_mounted = false;
    for container in spec.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(container) = container.as_object_mut() else { continue };
        set_variables(container, view);
        is_mounted |= view.secret.is_some() && mount_token(container);
    }
    is_mounted
}

/// Sets the variables by which clients find the API, unless the container sets them itself, and the namespace where a
/// variable takes it from the pod.
fn set_variables(container: &mut Map<String, Value>, view: &LogicalView) {
    for variable in container.get_mut("env").and_then(Value::as_array_mut).into_iter().flatten() {
        let is_namespace = |field: &Value| field["fieldPath"] == "metadata.namespace";
        if variable.pointer("/valueFrom/fieldRef").is_some_and(is_namespace) {
            *variable = json!({"name": variable["name"], "value": view.namespace});
        }
    }
    let Some(api) = &view.api else { return };
    let is_own = |variable: &Value| variable["name"] == HOST;
    if items_of(container, "env").iter().any(is_own) {
        return;
    }
    let port = api.port.to_string();
    let wanted = [(HOST, api.host.as_str()), (PORTS[0], &port), (PORTS[1], &port)];
    for (name, value) in wanted {
        if !items_of(container, "env").iter().any(|variable| variable["name"] == name) {
            push(container, "env", json!({"name": name, "value": value}));
        }
    }
}

/// Mounts the token, unless the container mounts something else at that path.
fn mount_token(container: &mut Map<String, Value>) -> bool {
    let is_there =
        |mount: &Value| mount["mountPath"].as_str().is_some_and(|path| path.trim_end_matches('/') == TOKEN_DIRECTORY);
    if items_of(container, "volumeMounts").iter().any(is_there) {
        return false;
    }
    push(container, "volumeMounts", json!({"name": TOKEN_VOLUME, "mountPath": TOKEN_DIRECTORY, "readOnly": true}));
    true
}

/// Returns the volume with token, certificate authority and namespace, as files of the Secret. The kubelet follows the
/// Secret, so that a renewed token reaches running pods.
fn token_volume(secret: &str) -> Value {
    let items: Vec<Value> = ["token", "ca.crt", "namespace"].map(|key| json!({"key": key, "path": key})).into();
    json!({"name": TOKEN_VOLUME, "projected": {"defaultMode": 0o644,
        "sources": [{"secret": {"name": secret, "items": items}}]}})
}

/// Rewrites files of volumes that have the namespace of the pod. Returns true if there are any.
fn name_in_volumes(spec: &mut Value) -> bool {
    let mut is_any = false;
    for volume in spec.get_mut("volumes").and_then(Value::as_array_mut).into_iter().flatten() {
        is_any |= volume.get_mut("downwardAPI").is_some_and(name_in_files);
        let sources = volume.pointer_mut("/projected/sources").and_then(Value::as_array_mut);
        for source in sources.into_iter().flatten() {
            is_any |= source.get_mut("downwardAPI").is_some_and(name_in_files);
        }
    }
    is_any
}

fn name_in_files(source: &mut Value) -> bool {
    let mut is_any = false;
    for file in source.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(path) = file.pointer_mut("/fieldRef/fieldPath").filter(|path| **path == "metadata.namespace") else {
            continue;
        };
        *path = format!("metadata.annotations['{}']", annotations::DOWN_POD_NAMESPACE).into();
        is_any = true;
    }
    is_any
}

/// Makes pods that use the cluster's resolver use the responder. The search list of their logical namespace comes
/// before their own entries.
fn set_dns(spec: &mut Map<String, Value>, responder: IpAddr, namespace: &str) {
    if !matches!(spec.get("dnsPolicy").and_then(Value::as_str), None | Some("" | "ClusterFirst")) {
        return;
    }
    let own = spec.get("dnsConfig").cloned().unwrap_or_default();
    let texts = |key: &str| own[key].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
    let mut nameservers = vec![responder.to_string()];
    nameservers.extend(texts("nameservers"));
    let mut searches =
        vec![format!("{namespace}.svc.cluster.local"), "svc.cluster.local".into(), "cluster.local".into()];
    searches.extend(texts("searches"));
    for (list, most) in [(&mut nameservers, MAX_NAMESERVERS), (&mut searches, MAX_SEARCHES)] {
        let mut seen = std::collections::HashSet::new();
        list.retain(|item| seen.insert(item.clone()));
        list.truncate(most);
    }
    let mut options = own["options"].as_array().cloned().unwrap_or_default();
    if !options.iter().any(|option| option["name"] == "ndots") {
        options.push(json!({"name": "ndots", "value": "5"}));
    }
    spec.insert("dnsPolicy".into(), "None".into());
    let config = json!({"nameservers": nameservers, "searches": searches, "options": options});
    spec.insert("dnsConfig".into(), config);
}

fn push(map: &mut Map<String, Value>, key: &str, item: Value) {
    let list = map.entry(key).or_insert_with(|| json!([]));
    if list.is_null() {
        *list = json!([]);
    }
    if let Some(list) = list.as_array_mut() {
        list.push(item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(text: &str) -> GroupVersionKind {
        let group = if text == "Pod" { "" } else { "apps" };
        GroupVersionKind::new(group, "v1", text)
    }

    fn view() -> LogicalView {
        let api = ApiAddress { host: "portolan.example".into(), port: 6443, alias: None };
        LogicalView { namespace: "shop".into(), api: Some(api), secret: Some("portolan-token-1".into()), dns: None }
    }

    fn applied(spec: Value, view: &LogicalView) -> Value {
        let mut copy = json!({"metadata": {}, "spec": {"template": {"metadata": {}, "spec": spec}}});
        apply(&kind("Deployment"), &mut copy, view);
        assert_eq!(of_copy(&copy).as_ref(), Some(view), "the copy says what view it was made with");
        copy["spec"]["template"].take()
    }

    #[test]
    fn containers_find_the_api_and_the_token() {
        let made = applied(json!({"initContainers": [{"name": "i"}], "containers": [{"name": "a"}]}), &view());
        let spec = &made["spec"];
        for container in [&spec["initContainers"][0], &spec["containers"][0]] {
            let names: Vec<_> =
                container["env"].as_array().unwrap().iter().map(|v| (&v["name"], &v["value"])).collect();
            assert_eq!(names[0], (&json!(HOST), &json!("portolan.example")));
            assert_eq!(names[1], (&json!(PORTS[0]), &json!("6443")));
            assert_eq!(container["volumeMounts"][0]["mountPath"], TOKEN_DIRECTORY);
        }
        assert_eq!(spec["volumes"][0]["projected"]["sources"][0]["secret"]["name"], "portolan-token-1");
        assert_eq!((&spec["dnsPolicy"], &spec["hostAliases"]), (&Value::Null, &Value::Null));
    }

    #[test]
    fn settings_of_a_container_win() {
        let own = json!({"name": "a", "env": [{"name": HOST, "value": "x"}],
            "volumeMounts": [{"name": "v", "mountPath": format!("{TOKEN_DIRECTORY}/")}]});
        let made = applied(json!({"containers": [own.clone()]}), &view());
        assert_eq!(made["spec"]["containers"][0], own);
        assert_eq!(made["spec"]["volumes"], Value::Null, "nothing mounts the token");
    }

    #[test]
    fn the_namespace_is_the_logical_one() {
        let field = json!({"fieldRef": {"fieldPath": "metadata.namespace"}});
        let item = json!({"path": "ns", "fieldRef": {"fieldPath": "metadata.namespace"}});
        let volumes = json!([{"name": "d", "downwardAPI": {"items": [item.clone()]}},
            {"name": "p", "projected": {"sources": [{"downwardAPI": {"items": [item]}}]}}]);
        let container = json!({"name": "a", "env": [{"name": "NS", "valueFrom": field}, {"name": "POD", "valueFrom":
            {"fieldRef": {"fieldPath": "metadata.name"}}}]});
        let view = LogicalView { api: None, secret: None, ..view() };
        let made = applied(json!({"containers": [container], "volumes": volumes}), &view);
        let env = &made["spec"]["containers"][0]["env"];
        assert_eq!(env[0], json!({"name": "NS", "value": "shop"}));
        assert_eq!(env[1]["valueFrom"]["fieldRef"]["fieldPath"], "metadata.name");
        let path = format!("metadata.annotations['{}']", annotations::DOWN_POD_NAMESPACE);
        assert_eq!(made.pointer("/spec/volumes/0/downwardAPI/items/0/fieldRef/fieldPath"), Some(&json!(path)));
        assert_eq!(
            made.pointer("/spec/volumes/1/projected/sources/0/downwardAPI/items/0/fieldRef/fieldPath"),
            Some(&json!(path))
        );
        assert_eq!(object::annotation(&made, annotations::DOWN_POD_NAMESPACE), Some("shop"));
    }

    #[test]
    fn resolvers_of_pods() {
        let view = LogicalView { dns: Some("10.96.0.20".parse().unwrap()), ..view() };
        let own = json!({"nameservers": ["1.1.1.1"], "searches": ["svc.cluster.local", "corp.example"],
            "options": [{"name": "ndots", "value": "2"}]});
        for (case, spec, policy, searches) in [
            ("the default", json!({"containers": []}), "None", 3),
            ("additions stay", json!({"containers": [], "dnsPolicy": "ClusterFirst", "dnsConfig": own}), "None", 4),
            ("a pod with another resolver keeps it", json!({"containers": [], "dnsPolicy": "Default"}), "Default", 0),
        ] {
            let made = applied(spec, &view);
            assert_eq!(made["spec"]["dnsPolicy"], policy, "{case}");
            let found = made["spec"]["dnsConfig"]["searches"].as_array().map_or(0, Vec::len);
            assert_eq!(found, searches, "{case}");
            if searches > 0 {
                assert_eq!(made["spec"]["dnsConfig"]["nameservers"][0], "10.96.0.20", "{case}");
                assert_eq!(made["spec"]["dnsConfig"]["searches"][0], "shop.svc.cluster.local", "{case}");
            }
        }
    }

    #[test]
    fn an_agent_is_found_by_the_hosts_file() {
        let api =
            ApiAddress { host: "kubernetes.default.svc".into(), port: 443, alias: Some("10.96.0.21".parse().unwrap()) };
        let made = applied(json!({"containers": [{"name": "a"}]}), &LogicalView { api: Some(api), ..view() });
        assert_eq!(made["spec"]["hostAliases"], json!([{"ip": "10.96.0.21", "hostnames": ["kubernetes.default.svc"]}]));
    }

    #[test]
    fn kinds_with_pods() {
        for (group, name, has) in [
            ("", "Pod", true),
            ("batch", "CronJob", true),
            ("example.com", "Deployment", false),
            ("", "Service", false),
        ] {
            assert_eq!(has_pods(&GroupVersionKind::new(group, "v1", name)), has, "{name}");
        }
    }
}
