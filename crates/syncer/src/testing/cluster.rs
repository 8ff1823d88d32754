//! A tiny physical cluster: lists, watches, conditional writes and server-side apply of a few resources, and scripted
//! failures.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard},
};

use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use kube::client::Body;
use portolan_types::{BoxFuture, object};
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use crate::connector::{ConnectError, Connector};

/// (root, plural, kind, namespaced)
const RESOURCES: [(&str, &str, &str, bool); 17] = [
    ("api/v1", "namespaces", "Namespace", false),
    ("api/v1", "nodes", "Node", false),
    ("api/v1", "configmaps", "ConfigMap", true),
    ("api/v1", "secrets", "Secret", true),
    ("api/v1", "pods", "Pod", true),
    ("api/v1", "services", "Service", true),
    ("api/v1", "persistentvolumeclaims", "PersistentVolumeClaim", true),
    ("api/v1", "events", "Event", true),
    ("apis/discovery.k8s.io/v1", "endpointslices", "EndpointSlice", true),
    ("apis/apps/v1", "deployments", "Deployment", true),
    ("apis/apps/v1", "replicasets", "ReplicaSet", true),
    ("apis/apps/v1", "statefulsets", "StatefulSet", true),
    ("apis/batch/v1", "jobs", "Job", true),
    ("apis/autoscaling/v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", true),
    ("apis/apiextensions.k8s.io/v1", "customresourcedefinitions", "CustomResourceDefinition", false),
    // Served while a definition of that name exists.
    (CUSTOM, "widgets", "Widget", true),
    (CUSTOM, "bolts", "Bolt", false),
];
/// Group version of the custom kinds.
const CUSTOM: &str = "apis/example.com/v1";

/// Address: resource, namespace, name.
type FakeAddress = (usize, String, String);
type FakeAnswer = Response<UnsyncBoxBody<Bytes, Infallible>>;
type FakeScript = Box<dyn Fn(&Method, &str) -> Option<CannedAnswer> + Send>;

/// A scripted answer.
#[derive(Clone, Debug)]
pub enum CannedAnswer {
    /// This code and body.
    Answer(u16, Value),
    /// Never answers.
    Hang,
}

/// The physical cluster. Clones are the same one.
#[derive(Clone)]
pub struct FakeCluster {
    inner: Arc<Mutex<FakeClusterState>>,
    changed: Arc<watch::Sender<u64>>,
}

#[derive(Default)]
struct FakeClusterState {
    objects: BTreeMap<FakeAddress, Value>,
    applied: BTreeMap<FakeAddress, Value>,
    events: Vec<(u64, FakeAddress, &'static str, Value)>,
    version: u64,
    uids: u64,
    requests: Vec<String>,
    delete_options: Vec<Value>,
    script: Option<FakeScript>,
}

impl Default for FakeCluster {
    fn default() -> Self {
        Self { inner: Arc::default(), changed: Arc::new(watch::Sender::new(0)) }
    }
}

impl Connector for FakeCluster {
    fn connect(&self) -> BoxFuture<'_, Result<kube::Client, ConnectError>> {
        let cluster = self.clone();
        let service = tower::service_fn(move |request| {
            let cluster = cluster.clone();
            async move { Ok::<_, Infallible>(cluster.serve(request).await) }
        });
        Box::pin(async move { Ok(kube::Client::new(service, "default")) })
    }
}

impl FakeCluster {
    fn inner(&self) -> MutexGuard<'_, FakeClusterState> {
        self.inner.lock().expect("no code panics under this lock")
    }

    /// Answers by `script` where it gives something, from now on.
    pub fn script(&self, script: impl Fn(&Method, &str) -> Option<CannedAnswer> + Send + 'static) {
        self.inner().script = Some(Box::new(script));
    }

    /// Answers truly again.
    pub fn heal(&self) {
        self.inner().script = None;
    }

    /// Requests so far that begin with `start`, such as `DELETE `.
    pub fn requests(&self, start: &str) -> Vec<String> {
        self.inner().requests.iter().filter(|line| line.starts_with(start)).cloned().collect()
    }

    /// Options of all deletes so far.
    pub fn delete_options(&self) -> Vec<Value> {
        self.inner().delete_options.clone()
    }

    /// All objects of a resource.
    pub fn all(&self, plural: &str) -> Vec<Value> {
        let inner = self.inner();
        let of = |at: &FakeAddress| RESOURCES[at.0].1 == plural;
        inner.objects.iter().filter(|(at, _)| of(at)).map(|(_, object)| object.clone()).collect()
    }

    /// Writes an object past all rules, as a third party does.
    pub fn put(&self, plural: &str, object: Value) -> Value {
        let at = at(plural, &object);
        let mut inner = self.inner();
        let kind = if inner.objects.contains_key(&at) { "MODIFIED" } else { "ADDED" };
        let made = self.store(&mut inner, &at, kind, object);
        drop(inner);
        self.wake();
        made
    }

    /// Removes an object past all rules.
    pub fn remove(&self, plural: &str, object: &Value) {
        let at = at(plural, object);
        let mut inner = self.inner();
        self.erase(&mut inner, &at);
        drop(inner);
        self.wake();
    }

    /// Removes an object past all rules, and no watch tells.
    pub fn lose(&self, plural: &str, namespace: &str, name: &str) {
        let at = at(plural, &json!({"metadata": {"namespace": namespace, "name": name}}));
        self.inner().objects.remove(&at);
    }

    fn wake(&self) {
        let version = self.inner().version;
        self.changed.send_replace(version);
    }

    fn store(&self, inner: &mut FakeClusterState, at: &FakeAddress, event: &'static str, mut object: Value) -> Value {
        inner.version += 1;
        let version = inner.version;
        let before = inner.objects.get(at).cloned();
        let (root, _, kind, _) = RESOURCES[at.0];
        object["apiVersion"] = json!(root.trim_start_matches("apis/").trim_start_matches("api/"));
        object["kind"] = json!(kind);
        inner.uids += 1;
        let uid =
            before.as_ref().map_or_else(|| format!("down-{}", inner.uids), |b| object::meta_text(b, "uid").to_owned());
        let grown = before.as_ref().is_none_or(|b| b["spec"] != object["spec"]);
        let generation = before.as_ref().map_or(0, object::generation) + i64::from(grown);
        let metadata = object::metadata_mut(&mut object);
        metadata.insert("uid".into(), json!(uid));
        metadata.insert("generation".into(), json!(generation));
        if before.as_ref().is_none_or(|b| without_version(b) != without_version(&object)) {
            object::metadata_mut(&mut object).insert("resourceVersion".into(), json!(version.to_string()));
            inner.events.push((version, at.clone(), event, object.clone()));
            inner.objects.insert(at.clone(), object.clone());
        } else if let Some(before) = before {
            return before;
        }
        object
    }

    fn erase(&self, inner: &mut FakeClusterState, at: &FakeAddress) -> Option<Value> {
        inner.applied.remove(at);
        let mut object = inner.objects.remove(at)?;
        inner.version += 1;
        object::metadata_mut(&mut object).insert("resourceVersion".into(), json!(inner.version.to_string()));
        inner.events.push((inner.version, at.clone(), "DELETED", object.clone()));
        if RESOURCES[at.0].1 == "namespaces" {
            let inside: Vec<FakeAddress> = inner.objects.keys().filter(|k| k.1 == at.2).cloned().collect();
            inside.iter().for_each(|at| drop(self.erase(inner, at)));
        }
        Some(object)
    }

    async fn serve(&self, request: Request<Body>) -> FakeAnswer {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path().trim_start_matches('/').to_owned();
        let query = parts.uri.query().unwrap_or_default().to_owned();
        let canned = {
            let mut inner = self.inner();
            inner.requests.push(format!("{} /{path}", parts.method));
            inner.script.as_ref().and_then(|script| script(&parts.method, &format!("/{path}?{query}")))
        };
        match canned {
            Some(CannedAnswer::Hang) => std::future::pending().await,
            Some(CannedAnswer::Answer(code, body)) => return answer(code, &body),
            None => {}
        }
        let body = body.collect_bytes().await.unwrap_or_default();
        let body = serde_json::from_slice(&body).unwrap_or_default();
        let media = parts.headers.get("content-type").and_then(|v| v.to_str().ok()).unwrap_or_default();
        let response = match target(&path).filter(|target| self.is_served(target.resource)) {
            None => self.discovery(&path).map_or_else(|| answer(404, &json!({})), |found| answer(200, &found)),
            Some(target) if query.contains("watch=true") => self.watch(&target, &query),
            Some(target) => self.act(&parts.method, media, &target, &query, body),
        };
        self.wake();
        response
    }

    fn act(&self, method: &Method, media: &str, target: &FakeTarget, query: &str, body: Value) -> FakeAnswer {
        let mut inner = self.inner();
        let inner = &mut *inner;
        let at =
            (target.resource, target.namespace.clone().unwrap_or_default(), target.name.clone().unwrap_or_default());
        match (method.as_str(), &target.name) {
            ("GET", None) => list(inner, target, query),
            ("GET", Some(_)) => inner.objects.get(&at).map_or_else(|| absent(&at), |object| answer(200, object)),
            ("POST" | "PATCH", _)
                if query.contains("fieldValidation=Strict") && body["spec"].get("unknown").is_some() =>
            {
                refuse(400, "BadRequest", &at.2, "strict decoding error: unknown field \"spec.unknown\"")
            }
            ("POST", None) => self.create(inner, target, body),
            ("PATCH", Some(_)) => self.patch(inner, &at, media, body),
            ("DELETE", Some(_)) => self.delete(inner, &at, &body),
            _ => refuse(405, "MethodNotAllowed", "", "not here"),
        }
    }

    fn create(&self, inner: &mut FakeClusterState, target: &FakeTarget, mut body: Value) -> FakeAnswer {
        let at = (target.resource, target.namespace.clone().unwrap_or_default(), object::name(&body).to_owned());
        let namespaces = RESOURCES.iter().position(|r| r.1 == "namespaces").unwrap_or_default();
        let home = target.namespace.as_ref().map(|name| (namespaces, String::new(), name.clone()));
        match home.map(|home| inner.objects.get(&home)) {
            Some(None) => return refuse(404, "NotFound", &at.1, "namespaces not found"),
            Some(Some(home)) if object::is_deleting(home) => {
                return refuse(403, "Forbidden", &at.2, "unable to create new content because it is being terminated");
            }
            Some(Some(_)) | None => {}
        }
        if inner.objects.contains_key(&at) {
            return refuse(409, "AlreadyExists", &at.2, "already exists");
        }
        let managed = json!([{"manager": "portolan", "operation": "Update"}]);
        object::metadata_mut(&mut body).insert("managedFields".into(), managed);
        inner.applied.insert(at.clone(), body.clone());
        let made = self.store(inner, &at, "ADDED", body);
        answer(201, &made)
    }

    fn patch(&self, inner: &mut FakeClusterState, at: &FakeAddress, media: &str, mut body: Value) -> FakeAnswer {
        let Some(live) = inner.objects.get(at).cloned() else { return refuse(409, "Conflict", &at.2, "no such uid") };
        for key in ["uid", "resourceVersion"] {
            let wanted = object::metadata_mut(&mut body).remove(key);
            if wanted.is_some_and(|wanted| wanted != live["metadata"][key]) {
                return refuse(409, "Conflict", &at.2, "the object has been modified");
            }
        }
        let mut merged = live.clone();
        if media.starts_with("application/apply") {
            let is_applied = live["metadata"]["managedFields"][0]["operation"] == "Apply";
            if let Some(before) = inner.applied.get(at).filter(|_| is_applied) {
                prune(&mut merged, before, &body);
            }
            let before = inner.applied.insert(at.clone(), body.clone()).filter(|_| is_applied);
            keep_ports_of_others(&live, before.as_ref(), &mut body);
        }
        if media.starts_with("application/strategic-merge") {
            merge_by_name(&mut merged, body);
        } else {
            merge(&mut merged, body);
        }
        if has_nameless_port(&merged) {
            return refuse(422, "Invalid", &at.2, "spec.ports[1].name: Required value");
        }
        let made = self.store(inner, at, "MODIFIED", merged);
        answer(200, &made)
    }

    fn delete(&self, inner: &mut FakeClusterState, at: &FakeAddress, options: &Value) -> FakeAnswer {
        inner.delete_options.push(options.clone());
        let Some(live) = inner.objects.get(at).cloned() else { return absent(at) };
        let conditions = options["preconditions"].as_object().cloned().unwrap_or_default();
        if conditions.iter().any(|(key, wanted)| live["metadata"][key] != *wanted) {
            return refuse(409, "Conflict", &at.2, "precondition failed");
        }
        if object::finalizers(&live).next().is_some() {
            let mut marked = live;
            object::metadata_mut(&mut marked).insert("deletionTimestamp".into(), json!("2026-01-01T00:00:00Z"));
            let made = self.store(inner, at, "MODIFIED", marked);
            return answer(200, &made);
        }
        self.erase(inner, at);
        answer(200, &json!({"kind": "Status", "status": "Success"}))
    }

    fn watch(&self, target: &FakeTarget, query: &str) -> FakeAnswer {
        let from = query.split('&').find_map(|pair| pair.strip_prefix("resourceVersion=")).and_then(|v| v.parse().ok());
        let (resource, cluster, labelled) = (target.resource, self.clone(), is_labelled(query));
        let state = (from.unwrap_or(0_u64), self.changed.subscribe());
        let frames = futures::stream::unfold(state, move |(after, mut changed)| {
            let cluster = cluster.clone();
            async move {
                loop {
                    let (lines, reached) = cluster.lines(resource, after, labelled);
                    if !lines.is_empty() {
                        return Some((Ok(http_body::Frame::data(Bytes::from(lines))), (reached, changed)));
                    }
                    changed.changed().await.ok()?;
                }
            }
        });
        streamed(frames)
    }

    fn lines(&self, resource: usize, after: u64, labelled: bool) -> (String, u64) {
        let inner = self.inner();
        let new = inner.events.iter().filter(|(version, at, _, object)| {
            let is_wanted = !labelled || object::label(object, "sync.portolan.dev/cluster").is_some();
            *version > after && at.0 == resource && is_wanted
        });
        let lines = new.map(|(_, _, kind, object)| format!("{}\n", json!({"type": kind, "object": object}))).collect();
        (lines, inner.version)
    }
}

struct FakeTarget {
    resource: usize,
    namespace: Option<String>,
    name: Option<String>,
}

fn target(path: &str) -> Option<FakeTarget> {
    let (root, rest) =
        RESOURCES.iter().find_map(|(root, ..)| Some((*root, path.strip_prefix(root)?.strip_prefix('/')?)))?;
    let parts: Vec<&str> = rest.split('/').collect();
    let find = |plural: &str| RESOURCES.iter().position(|r| r.0 == root && r.1 == plural);
    let text = |part: &&str| Some((*part).to_owned());
    match parts.as_slice() {
        ["namespaces", namespace, plural] => {
            Some(FakeTarget { resource: find(plural)?, namespace: text(namespace), name: None })
        }
        ["namespaces", namespace, plural, name]
        | ["namespaces", namespace, plural, name, "resize" | "ephemeralcontainers"] => {
            Some(FakeTarget { resource: find(plural)?, namespace: text(namespace), name: text(name) })
        }
        [plural] => Some(FakeTarget { resource: find(plural)?, namespace: None, name: None }),
        [plural, name] => Some(FakeTarget { resource: find(plural)?, namespace: None, name: text(name) }),
        _ => None,
    }
}

impl FakeCluster {
    /// Returns true for a resource that is built in, or has a definition.
    fn is_served(&self, resource: usize) -> bool {
        let (root, plural, ..) = RESOURCES[resource];
        let name = format!("{plural}.example.com");
        root != CUSTOM || self.inner().objects.values().any(|object| object::name(object) == name)
    }

    fn discovery(&self, path: &str) -> Option<Value> {
        discovery(path, |resource| self.is_served(resource))
    }
}

fn discovery(path: &str, is_served: impl Fn(usize) -> bool) -> Option<Value> {
    match path {
        "readyz" => Some(json!("ok")),
        "version" => Some(json!({"gitVersion": "v1.36.0"})),
        "apis" => {
            let mut groups = vec![
                json!({"name": "apps", "preferredVersion": {"version": "v1"}}),
                json!({"name": "autoscaling", "preferredVersion": {"version": "v2"}}),
                json!({"name": "batch", "preferredVersion": {"version": "v1"}}),
                json!({"name": "discovery.k8s.io", "preferredVersion": {"version": "v1"}}),
            ];
            if RESOURCES.iter().enumerate().any(|(at, (root, ..))| *root == CUSTOM && is_served(at)) {
                let versions = json!([{"version": "v1"}]);
                groups
                    .push(json!({"name": "example.com", "preferredVersion": {"version": "v1"}, "versions": versions}));
            }
            Some(json!({"groups": groups}))
        }
        _ => {
            let of = RESOURCES.iter().enumerate().filter(|(at, (root, ..))| *root == path && is_served(*at));
            let list: Vec<Value> =
                of.map(|(_, (_, plural, kind, ns))| json!({"name": plural, "kind": kind, "namespaced": ns})).collect();
            (!list.is_empty()).then(|| json!({"kind": "APIResourceList", "resources": list}))
        }
    }
}

fn is_labelled(query: &str) -> bool {
    query.contains("sync.portolan.dev")
}

fn list(inner: &FakeClusterState, target: &FakeTarget, query: &str) -> FakeAnswer {
    let labelled = is_labelled(query);
    let items: Vec<&Value> = inner
        .objects
        .iter()
        .filter(|(at, object)| {
            at.0 == target.resource
                && target.namespace.as_ref().is_none_or(|ns| *ns == at.1)
                && (!labelled || object::label(object, "sync.portolan.dev/cluster").is_some())
        })
        .map(|(_, object)| object)
        .collect();
    let kind = format!("{}List", RESOURCES[target.resource].2);
    let version = inner.version.max(1).to_string();
    answer(200, &json!({"apiVersion": "v1", "kind": kind, "metadata": {"resourceVersion": version}, "items": items}))
}

fn at(plural: &str, object: &Value) -> FakeAddress {
    let resource = RESOURCES.iter().position(|r| r.1 == plural).unwrap_or_default();
    (resource, object::namespace(object).to_owned(), object::name(object).to_owned())
}

fn without_version(object: &Value) -> Value {
    let mut object = object.clone();
    object::metadata_mut(&mut object).remove("resourceVersion");
    object
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                if value.is_null() {
                    into.remove(&key);
                    continue;
                }
                merge(into.entry(key).or_insert_with(|| Value::Object(Map::new())), value);
            }
        }
        (into, from) => *into = from,
    }
}

/// Adds the ports of other managers to the applied ports of a Service, as apply does with a keyed list.
fn keep_ports_of_others(live: &Value, before: Option<&Value>, body: &mut Value) {
    let ports = |object: &Value| object["spec"]["ports"].as_array().cloned().unwrap_or_default();
    let (live, before, mut wanted) = (ports(live), before.map(ports).unwrap_or_default(), ports(body));
    let has = |ports: &[Value], port: &Value| ports.iter().any(|known| known["port"] == port["port"]);
    let others: Vec<Value> = live.into_iter().filter(|port| !has(&wanted, port) && !has(&before, port)).collect();
    if !others.is_empty() && !wanted.is_empty() {
        wanted.extend(others);
        body["spec"]["ports"] = wanted.into();
    }
}

/// Of several ports each must have a name.
fn has_nameless_port(object: &Value) -> bool {
    let ports = object["spec"]["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
    ports.len() > 1 && ports.iter().any(|port| port["name"].is_null())
}

/// Removes fields that were applied before but not now. Merges lists of objects by name.
fn merge_by_name(live: &mut Value, mut patch: Value) {
    if let Some(fields) = patch.as_object_mut() {
        fields.remove("$patch");
    }
    match (live, patch) {
        (Value::Object(live), Value::Object(patch)) => {
            for (key, value) in patch {
                merge_by_name(live.entry(key).or_insert(Value::Null), value);
            }
        }
        (Value::Array(live), Value::Array(patch)) => {
            for item in patch {
                match live.iter_mut().find(|known| known["name"] == item["name"]) {
                    Some(known) => merge_by_name(known, item),
                    None => live.push(item),
                }
            }
        }
        (live, patch) => *live = patch,
    }
}

fn prune(live: &mut Value, before: &Value, now: &Value) {
    let (Some(live), Some(before)) = (live.as_object_mut(), before.as_object()) else { return };
    for (key, old) in before {
        match (now.get(key), live.get_mut(key)) {
            (None, Some(Value::Object(child))) if old.is_object() => {
                let mut value = Value::Object(std::mem::take(child));
                prune(&mut value, old, &json!({}));
                live.insert(key.clone(), value);
            }
            (None, Some(_)) if !matches!(key.as_str(), "managedFields" | "uid" | "resourceVersion") => {
                drop(live.remove(key))
            }
            (Some(now), Some(child)) => prune(child, old, now),
            _ => {}
        }
    }
}

fn absent(at: &FakeAddress) -> FakeAnswer {
    refuse(404, "NotFound", &at.2, "not found")
}

fn refuse(code: u16, reason: &str, name: &str, message: &str) -> FakeAnswer {
    answer(
        code,
        &json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message,
        "details": {"name": name}}),
    )
}

fn answer(code: u16, body: &Value) -> FakeAnswer {
    let body = Full::new(Bytes::from(body.to_string())).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap_or_default();
    response
}

fn streamed(frames: impl Stream<Item = Result<http_body::Frame<Bytes>, Infallible>> + Send + 'static) -> FakeAnswer {
    Response::new(StreamBody::new(frames.boxed()).boxed_unsync())
}
