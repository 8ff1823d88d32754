//! Whole documents and their index.

use std::collections::{BTreeMap, BTreeSet};

use portolan_types::{GroupVersion, GroupVersionKind};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::{Texts, operations::PATCH, paths, schema};
use crate::kinds::{Kind, KindTable, TypeId};

/// Types which operations name, besides those of the kinds.
const COMMON: [(&str, &str, &str); 3] =
    [("", "v1", "Status"), ("meta.k8s.io", "v1", "DeleteOptions"), ("", "v1", "APIResourceList")];

/// The index at `/openapi/v3`: each document's URL carries its [`hash`]. The URLs have no prefix of a logical cluster: clients
/// put their own before what starts with `/openapi/v3`.
pub fn index<'a>(documents: impl IntoIterator<Item = (&'a GroupVersion, &'a str)>) -> Value {
    let entries = documents.into_iter().map(|(version, hash)| {
        let path = paths::root(version);
        let path = path.trim_start_matches('/');
        (path.to_owned(), json!({"serverRelativeURL": format!("/openapi/v3/{path}?hash={hash}")}))
    });
    json!({"paths": entries.collect::<Map<_, _>>()})
}

/// The hash of a document's bytes, for its URL and its ETag.
pub fn hash(document: &[u8]) -> String {
    Sha256::digest(document).iter().map(|byte| format!("{byte:02X}")).collect()
}

/// The document of a group version, from those of the kinds that belong to it, each with the table that knows its types.
pub fn document(version: &GroupVersion, kinds: &[(&KindTable, &Kind)], texts: &dyn Texts) -> Value {
    let kinds: Vec<_> = kinds.iter().filter(|(_, kind)| kind.group_version() == *version).collect();
    let mut schemas = BTreeMap::new();
    // Of a version that definitions make nothing is told but its kinds.
    let is_own = kinds.is_empty() || kinds.iter().any(|(_, kind)| kind.is_typed());
    let mut paths = if is_own { paths::of_version(version) } else { Map::new() };
    for (table, kind) in kinds {
        paths::add(&mut paths, table, kind);
        let named = GroupKinds::new(table, version);
        for root in roots(table, kind) {
            add_schemas(&mut schemas, table, root, &named, texts);
        }
    }
    schemas.insert(PATCH.to_owned(), json!({"type": "object"}));
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": release()},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": security(),
        },
    })
}

/// How clients show who they are.
pub(super) fn security() -> Value {
    json!({"BearerToken": {
        "type": "apiKey", "name": "authorization", "in": "header", "description": "Bearer Token authentication",
    }})
}

/// `1.36`: the release without its patch.
pub(super) fn release() -> String {
    let version = KindTable::builtin().version();
    version.trim_start_matches('v').split('.').take(2).collect::<Vec<_>>().join(".")
}

/// The types that the operations of a kind name.
fn roots(table: &KindTable, kind: &Kind) -> Vec<TypeId> {
    let lists = kind.list_kind.iter().map(|list| kind.group_version().kind(list.clone()));
    let subresources = kind.subresources.iter().map(|sub| sub.gvk.clone());
    let common = COMMON.iter().filter(|(.., name)| kind.is_typed() || *name != "APIResourceList");
    let common = common.map(|(group, version, kind)| GroupVersionKind::new(*group, *version, *kind));
    let named = lists.chain(subresources).chain(common);
    let ids = named.filter_map(|gvk| table.object_type(&gvk.group, &gvk.version, &gvk.kind));
    [kind.schema].into_iter().chain(ids).collect()
}

fn add_schemas(
    schemas: &mut BTreeMap<String, Value>,
    table: &KindTable,
    root: TypeId,
    named: &GroupKinds,
    texts: &dyn Texts,
) {
    let mut open = vec![root];
    while let Some(id) = open.pop() {
        let own = table.get(id);
        if schemas.contains_key(&*own.name) {
            continue;
        }
        let mut schema = schema::of_type(table, own, texts);
        let kinds = named.of(id);
        if !kinds.is_empty() {
            schema["x-kubernetes-group-version-kind"] = kinds.into();
        }
        schemas.insert(own.name.to_string(), schema);
        open.extend(schema::references(table, own));
    }
}

/// Which kinds a type stands for.
struct GroupKinds(BTreeSet<(TypeId, GroupVersionKind)>);

impl GroupKinds {
    fn new(table: &KindTable, version: &GroupVersion) -> Self {
        let resources = [table, KindTable::builtin()].into_iter().flat_map(|table| table.kinds());
        let resources = resources.map(|kind| (kind.schema, kind.gvk.clone()));
        let objects = [table, KindTable::builtin()].into_iter().flat_map(|table| table.objects());
        // The options kinds belong to every version; each document names its own.
        let objects = objects.map(|(gvk, id)| match &*gvk.group {
            "meta.k8s.io" => (id, version.kind(gvk.kind.clone())),
            _ => (id, gvk.clone()),
        });
        Self(resources.chain(objects).collect())
    }

    fn of(&self, id: TypeId) -> Vec<Value> {
        let first = (id, GroupVersionKind::new("", "", ""));
        let own = self.0.range(first..).take_while(|(other, _)| *other == id);
        own.map(|(_, gvk)| group_version_kind(gvk)).collect()
    }
}

/// The value of `x-kubernetes-group-version-kind`.
pub(super) fn group_version_kind(gvk: &GroupVersionKind) -> Value {
    json!({"group": &*gvk.group, "version": &*gvk.version, "kind": &*gvk.kind})
}
