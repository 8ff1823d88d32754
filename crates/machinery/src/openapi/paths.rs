//! Paths: where the operations are.

use portolan_types::{GroupVersion, GroupVersionKind};
use serde_json::{Map, Value, json};

use super::operations::{Subject, connection, operation, query};
use crate::kinds::{Kind, KindTable};

/// `/api/v1` or `/apis/{group}/{version}`.
pub(super) fn root(version: &GroupVersion) -> String {
    match &*version.group {
        "" => format!("/api/{}", version.version),
        group => format!("/apis/{group}/{}", version.version),
    }
}

/// The path of the resource list.
pub(super) fn of_version(version: &GroupVersion) -> Map<String, Value> {
    let list = "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.APIResourceList";
    let get = json!({
        "tags": [tag(version)],
        "operationId": format!("get{}APIResources", capital(&camel(version))),
        "responses": {
            "200": {"description": "OK", "content": {"application/json": {"schema": {"$ref": list}}}},
            "401": {"description": "Unauthorized"},
        },
    });
    Map::from_iter([(format!("{}/", root(version)), json!({"get": get}))])
}

/// Adds the paths of a kind and of its subresources.
pub(super) fn add(paths: &mut Map<String, Value>, table: &KindTable, kind: &Kind) {
    let version = kind.group_version();
    let base = match kind.namespaced {
        true => format!("{}/namespaces/{{namespace}}/{}", root(&version), kind.resource),
        false => format!("{}/{}", root(&version), kind.resource),
    };
    let scope = if kind.namespaced { "Namespaced" } else { "" };
    let object = format!("{base}/{{name}}");
    let mut adder = Adder { paths, table, version: &version };
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
        let path = format!("{object}/{}", sub.name);
        for verb in &sub.verbs {
            let word = match &**verb {
                "get" => "read",
                "update" => "replace",
                other => other,
            };
            let group = capital(&camel(&version));
            let own = format!("{scope}{}{}", kind.gvk.kind, capital(&sub.name));
            let id = match (sub.gvk.kind.ends_with("Options"), &**verb) {
                (true, "create") => format!("connect{group}Post{own}"),
                (true, "update") => format!("connect{group}Put{own}"),
                (true, verb) => format!("connect{group}{}{own}", capital(verb)),
                (false, _) => format!("{word}{group}{own}"),
            };
            adder.add(&path, verb, &sub.gvk, id);
        }
    }
}

struct Adder<'a> {
    paths: &'a mut Map<String, Value>,
    table: &'a KindTable,
    version: &'a GroupVersion,
}

impl Adder<'_> {
    fn add(&mut self, path: &str, verb: &str, gvk: &GroupVersionKind, id: String) {
        let schema = |kind: &str| Some(self.table.get(self.table.object_type(&gvk.group, &gvk.version, kind)?));
        let Some(own) = schema(&gvk.kind) else { return };
        let list = schema(&format!("{}List", gvk.kind)).map(|list| &*list.name);
        let subject = Subject { gvk, schema: own, list, tag: &tag(self.version) };
        let made = match gvk.kind.ends_with("Options") {
            true => connection(verb, &subject),
            false => operation(verb, &subject),
        };
        let Some((method, mut operation)) = made else { return };
        operation["operationId"] = id.into();
        let item = self.paths.entry(path).or_insert_with(|| json!({"parameters": path_parameters(path)}));
        item[method] = operation;
    }
}

fn path_parameters(path: &str) -> Vec<Value> {
    let named = ["name", "namespace"].into_iter().filter(|name| path.contains(&format!("{{{name}}}")));
    let named = named.map(
        |name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string", "uniqueItems": true}}),
    );
    named.chain([query("pretty", "string")]).collect()
}

fn tag(version: &GroupVersion) -> String {
    let text = camel(version);
    match text.strip_suffix(&*capital(&version.version)) {
        Some(group) => format!("{group}_{}", version.version),
        None => text,
    }
}

/// `coreV1`, `rbacAuthorizationV1`.
fn camel(version: &GroupVersion) -> String {
    let group = match &*version.group {
        "" => "core",
        group => group.strip_suffix(".k8s.io").unwrap_or(group),
    };
    let mut parts = group.split(['.', '-']);
    let first = parts.next().unwrap_or_default().to_owned();
    parts.chain([&*version.version]).fold(first, |text, part| text + &capital(part))
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map(|first| first.to_uppercase().collect::<String>() + letters.as_str()).unwrap_or_default()
}
