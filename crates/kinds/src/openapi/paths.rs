//! Paths: where the operations are.

use portolan_types::{GroupVersion, GroupVersionKind};
use serde_json::{Map, Value, json};

use super::operations::{ANSWERS, PROTOBUF, Subject, connection, content, log, operation, query};
use crate::{Kind, KindTable, Subresource, Type};

/// Returns `/api/v1` or `/apis/{group}/{version}`.
pub(super) fn root(version: &GroupVersion) -> String {
    match &*version.group {
        "" => format!("/api/{}", version.version),
        group => format!("/apis/{group}/{}", version.version),
    }
}

/// Returns the path of the resource list.
pub(super) fn of_version(version: &GroupVersion) -> Map<String, Value> {
    let list = "io.k8s.apimachinery.pkg.apis.meta.v1.APIResourceList";
    let types = [ANSWERS, PROTOBUF].concat();
    let get = json!({
        "tags": [tag(version)],
        "operationId": format!("get{}APIResources", capital(&camel(version))),
        "responses": {
            "200": {"description": "OK", "content": content(&types, list)},
            "401": {"description": "Unauthorized"},
        },
    });
    Map::from_iter([(format!("{}/", root(version)), json!({"get": get}))])
}

/// Adds the paths of a kind and of its subresources.
pub(super) fn add(paths: &mut Map<String, Value>, table: &KindTable, kind: &Kind) {
    let version = kind.group_version();
    let (scope, place) = if kind.namespaced { ("Namespaced", "namespaces/{namespace}/") } else { ("", "") };
    let base = format!("{}/{place}{}", root(&version), kind.resource);
    let object = format!("{base}/{{name}}");
    let mut adder = Adder { paths, table, version: &version, kind };
    for verb in &kind.verbs {
        let id =
            |word: &str, infix: &str| format!("{word}{}{infix}{scope}{}", capital(&camel(&version)), kind.gvk.kind);
        let (path, id) = match &**verb {
            "get" => (&object, id("read", "")),
            "update" => (&object, id("replace", "")),
            "patch" => (&object, id("patch", "")),
            "delete" => (&object, id("delete", "")),
            "list" => (&base, id("list", "")),
            "create" => (&base, id("create", "")),
            "deletecollection" => (&base, id("delete", "Collection")),
            "watch" => {
                adder.add_watches(place, scope);
                continue;
            }
            _ => continue,
        };
        adder.add(path, verb, &kind.gvk, id);
    }
    if kind.namespaced && kind.has_verb("list") {
        let path = format!("{}/{}", root(&version), kind.resource);
        let id = format!("list{}{}ForAllNamespaces", capital(&camel(&version)), kind.gvk.kind);
        adder.add(&path, "list", &kind.gvk, id);
    }
    for sub in &kind.subresources {
        adder.add_subresource(&format!("{object}/{}", sub.name), sub, scope);
    }
}

struct Adder<'a> {
    paths: &'a mut Map<String, Value>,
    table: &'a KindTable,
    version: &'a GroupVersion,
    kind: &'a Kind,
}

impl Adder<'_> {
    /// Adds an operation on a path with the objects of a kind: the kind itself, or the kind of a subresource.
    fn add(&mut self, path: &str, verb: &str, gvk: &GroupVersionKind, id: String) {
        self.add_made(path, gvk, id, |subject| {
            if gvk.kind.ends_with("Options") { connection(verb, subject) } else { operation(verb, subject) }
        });
    }

    fn add_made(
        &mut self,
        path: &str,
        gvk: &GroupVersionKind,
        id: String,
        make: impl FnOnce(&Subject<'_>) -> Option<(&'static str, Value)>,
    ) {
        let Some(schema) = self.type_of(gvk) else { return };
        let list = self.kind.list_kind.as_ref().and_then(|list| self.type_of(&self.version.kind(list.clone())));
        let is_custom = !self.kind.is_typed();
        let subject = Subject {
            gvk: if is_custom { &self.kind.gvk } else { gvk },
            schema,
            list: list.map(|list| &*list.name),
            tag: &tag(self.version),
            is_custom,
            // The handler of namespaces is wrapped, and is documented otherwise.
            returns_deleted: self.kind.returns_deleted() && gvk.kind.as_ref() != "Namespace",
        };
        let Some((method, mut operation)) = make(&subject) else { return };
        operation["operationId"] = id.into();
        let is_connection = operation["x-kubernetes-action"] == "connect";
        let item = self.paths.entry(path);
        let item = item.or_insert_with(|| json!({"parameters": path_parameters(path, is_connection)}));
        item[method] = operation;
    }

    fn type_of(&self, gvk: &GroupVersionKind) -> Option<&Type> {
        Some(self.table.get(self.table.object_type(&gvk.group, &gvk.version, &gvk.kind)?))
    }

    /// Adds the old paths of watches, which custom resources do not have.
    fn add_watches(&mut self, place: &str, scope: &str) {
        let Kind { gvk, resource, .. } = self.kind;
        if !self.kind.is_typed() {
            return;
        }
        let (root, id) = (format!("{}/watch", root(self.version)), capital(&camel(self.version)));
        let path = format!("{root}/{place}{resource}");
        self.add(&path, "watchlist", gvk, format!("watch{id}{scope}{}List", gvk.kind));
        self.add(&format!("{path}/{{name}}"), "watch", gvk, format!("watch{id}{scope}{}", gvk.kind));
        if self.kind.namespaced {
            let id = format!("watch{id}{}ListForAllNamespaces", gvk.kind);
            self.add(&format!("{root}/{resource}"), "watchlist", gvk, id);
        }
    }

    fn add_subresource(&mut self, path: &str, sub: &Subresource, scope: &str) {
        let group = capital(&camel(self.version));
        let own = format!("{scope}{}{}", self.kind.gvk.kind, capital(&sub.name));
        if &*sub.name == "log" {
            let by = self.type_of(&self.version.kind("PodLogOptions")).cloned();
            let id = format!("read{group}{own}");
            return self.add_made(path, &sub.gvk, id, |subject| log(subject, by.as_ref()?));
        }
        let is_connection = sub.gvk.kind.ends_with("Options");
        let is_proxy = is_connection && &*sub.name == "proxy";
        let more = if is_proxy { &["head", "options"][..] } else { &[] };
        for verb in sub.verbs.iter().map(|verb| &**verb).chain(more.iter().copied()) {
            let word = match verb {
                "get" if !is_connection => "read",
                "update" if !is_connection => "replace",
                "create" if is_connection => "Post",
                "update" => "Put",
                other => other,
            };
            let id = if is_connection {
                format!("connect{group}{}{own}", capital(word))
            } else {
                format!("{word}{group}{own}")
            };
            if is_proxy {
                self.add(&format!("{path}/{{path}}"), verb, &sub.gvk, format!("{id}WithPath"));
            }
            self.add(path, verb, &sub.gvk, id);
        }
    }
}

/// Puts the parameters that all operations of a path have beside them, in order of their names.
pub(super) fn share_parameters(item: &mut Value) {
    let Some(item) = item.as_object_mut() else { return };
    let Some(Value::Array(mut shared)) = item.remove("parameters") else { return };
    let own = |operation: &Value| operation["parameters"].as_array().cloned().unwrap_or_default();
    let mut all = item.values().map(own);
    let first = all.next().unwrap_or_default();
    let common = all.fold(first, |common, other| common.into_iter().filter(|one| other.contains(one)).collect());
    for parameters in item.values_mut().filter_map(|operation| operation.get_mut("parameters")?.as_array_mut()) {
        parameters.retain(|one| !common.contains(one));
    }
    for operation in item.values_mut().filter_map(Value::as_object_mut) {
        if operation.get("parameters").is_some_and(|own| own == &json!([])) {
            operation.remove("parameters");
        }
    }
    shared.extend(common);
    let place = |own: &Value| ["name", "in"].map(|key| own[key].as_str().unwrap_or_default().to_owned());
    shared.sort_by_cached_key(place);
    item.insert("parameters".to_owned(), shared.into());
}

fn path_parameters(path: &str, is_connection: bool) -> Vec<Value> {
    let named = ["name", "namespace", "path"].into_iter().filter(|name| path.contains(&format!("{{{name}}}")));
    let named = named.map(
        |name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string", "uniqueItems": true}}),
    );
    named.chain((!is_connection).then(|| query("pretty", "string"))).collect()
}

fn tag(version: &GroupVersion) -> String {
    let text = camel(version);
    match text.strip_suffix(&*capital(&version.version)) {
        Some(group) => format!("{group}_{}", version.version),
        None => text,
    }
}

/// Returns the version as in `coreV1` and `rbacAuthorizationV1`.
fn camel(version: &GroupVersion) -> String {
    camel_group(&version.group) + &capital(&version.version)
}

/// Returns the group as in `core` and `rbacAuthorization`.
pub(super) fn camel_group(group: &str) -> String {
    let group = match group {
        "" => "core",
        group => group.strip_suffix(".k8s.io").unwrap_or(group),
    };
    let mut parts = group.split(['.', '-']);
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + &capital(part))
}

pub(super) fn capital(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map(|first| first.to_uppercase().collect::<String>() + letters.as_str()).unwrap_or_default()
}
