//! Whole documents and their index.

use std::collections::{BTreeMap, BTreeSet};

use portolan_types::{GroupVersion, GroupVersionKind};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::{Texts, operations::PATCH, paths, schema};
use crate::{Kind, KindTable, TypeId};

/// Title of the documents, and of those of versions that definitions add.
pub(super) const TITLE: &str = "Kubernetes";
pub(super) const CUSTOM_TITLE: &str = "Kubernetes CRD Swagger";

/// Returns the index at `/openapi/v3`, of the names of documents and their hashes: each document's URL contains its
/// [`hash`]. The URLs do not have the prefix of a logical cluster: clients add theirs to paths that start with
/// `/openapi/v3`.
pub fn index<'a>(documents: impl IntoIterator<Item = (&'a str, &'a str)>) -> Value {
    let entries = documents
        .into_iter()
        .map(|(name, hash)| (name.to_owned(), json!({"serverRelativeURL": format!("/openapi/v3/{name}?hash={hash}")})));
    json!({"paths": entries.collect::<Map<_, _>>()})
}

/// Returns the name of a version's document in the index: `api/v1`, `apis/apps/v1`.
pub fn name(version: &GroupVersion) -> String {
    paths::root(version).trim_start_matches('/').to_owned()
}

/// Returns the hash of a document's bytes, for its URL and its ETag.
pub fn hash(document: &[u8]) -> String {
    Sha256::digest(document).iter().map(|byte| format!("{byte:02X}")).collect()
}

/// Returns the document of a group version, from those of the kinds that belong to it, each with the table that knows
/// its types.
pub fn document(version: &GroupVersion, kinds: &[(&KindTable, &Kind)], texts: &dyn Texts) -> Value {
    let kinds: Vec<_> = kinds.iter().filter(|(_, kind)| kind.group_version() == *version).collect();
    let mut schemas = BTreeMap::new();
    // Reports only the kinds of a version whose definitions compile to nothing.
    let is_own = kinds.is_empty() || kinds.iter().any(|(_, kind)| kind.is_typed());
    let mut paths = if is_own { paths::of_version(version) } else { Map::new() };
    // All built-in kinds share a table; the kinds of each of its types are gathered once.
    let mut gathered: Vec<(&KindTable, bool, GroupKinds)> = Vec::new();
    for (table, kind) in &kinds {
        paths::add(&mut paths, table, kind);
        let same = |(of, is_typed, _): &(&KindTable, bool, GroupKinds)| {
            std::ptr::eq(*of, *table) && *is_typed == kind.is_typed()
        };
        let at = gathered.iter().position(same).unwrap_or_else(|| {
            gathered.push((*table, kind.is_typed(), GroupKinds::new(table, version, kind.is_typed())));
            gathered.len() - 1
        });
        for root in roots(table, kind) {
            add_schemas(&mut schemas, table, root, &gathered[at].2, texts);
        }
    }
    paths.values_mut().for_each(paths::share_parameters);
    if kinds.iter().any(|(_, kind)| kind.has_verb("patch")) {
        schemas.insert(PATCH.to_owned(), json!({"type": "object"}));
    }
    if is_own {
        return whole(paths, schemas);
    }
    json!({
        "openapi": "3.0.0",
        "info": {"title": CUSTOM_TITLE, "version": "v0.1.0"},
        "paths": paths,
        "components": {"schemas": schemas},
    })
}

/// Returns a document of built-in paths.
pub(super) fn whole(paths: Map<String, Value>, schemas: BTreeMap<String, Value>) -> Value {
    let mut components = json!({"securitySchemes": security()});
    if !schemas.is_empty() {
        components["schemas"] = json!(schemas);
    }
    let info = json!({"title": TITLE, "version": release()});
    json!({"openapi": "3.0.0", "info": info, "paths": paths, "components": components})
}

/// Returns the ways of authentication.
pub(super) fn security() -> Value {
    json!({"BearerToken": {
        "type": "apiKey", "name": "authorization", "in": "header", "description": "Bearer Token authentication",
    }})
}

/// Returns the release without its patch, such as `1.36`.
pub(super) fn release() -> String {
    let version = KindTable::builtin().version();
    version.trim_start_matches('v').split('.').take(2).collect::<Vec<_>>().join(".")
}

/// Returns the types that the operations of a kind name.
fn roots(table: &KindTable, kind: &Kind) -> Vec<TypeId> {
    let lists = kind.list_kind.iter().map(|list| kind.group_version().kind(list.clone()));
    // Options of connections are parameters.
    let subresources = kind.subresources.iter().filter(|sub| !sub.gvk.kind.ends_with("Options"));
    let deletes = kind.has_verb("delete") || kind.has_verb("deletecollection");
    let common = [
        ("", "Status", deletes),
        ("meta.k8s.io", "DeleteOptions", deletes),
        ("meta.k8s.io", "WatchEvent", kind.is_typed() && kind.has_verb("watch")),
        ("", "APIResourceList", kind.is_typed()),
    ];
    let common = common.into_iter().filter(|(.., is_named)| *is_named);
    let common = common.map(|(group, name, _)| GroupVersionKind::new(group, "v1", name));
    let named = lists.chain(subresources.map(|sub| sub.gvk.clone())).chain(common);
    let ids = named.filter_map(|gvk| table.object_type(&gvk.group, &gvk.version, &gvk.kind));
    [kind.schema].into_iter().chain(ids).collect()
}

/// Adds the schema of a type, and those of all types that it refers to.
pub(super) fn add_schemas(
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

/// Versions of groups that client-go 0.36 knows, served or not. The options kinds belong to every version: each
/// document of Kubernetes' own kinds names its version, those of custom resources name all of these.
const CLIENT_VERSIONS: [(&str, &str); 22] = [
    ("", "v1"),
    ("admissionregistration.k8s.io", "v1 v1alpha1 v1beta1"),
    ("apps", "v1 v1beta1 v1beta2"),
    ("authentication.k8s.io", "v1 v1alpha1 v1beta1"),
    ("authorization.k8s.io", "v1 v1beta1"),
    ("autoscaling", "v1 v2"),
    ("batch", "v1 v1beta1"),
    ("certificates.k8s.io", "v1 v1alpha1 v1beta1"),
    ("coordination.k8s.io", "v1 v1alpha2 v1beta1"),
    ("discovery.k8s.io", "v1 v1beta1"),
    ("events.k8s.io", "v1 v1beta1"),
    ("extensions", "v1beta1"),
    ("flowcontrol.apiserver.k8s.io", "v1 v1beta1 v1beta2 v1beta3"),
    ("internal.apiserver.k8s.io", "v1alpha1"),
    ("networking.k8s.io", "v1 v1beta1"),
    ("node.k8s.io", "v1 v1alpha1 v1beta1"),
    ("policy", "v1 v1beta1"),
    ("rbac.authorization.k8s.io", "v1 v1alpha1 v1beta1"),
    ("resource.k8s.io", "v1 v1alpha3 v1beta1 v1beta2"),
    ("scheduling.k8s.io", "v1 v1alpha2 v1beta1"),
    ("storage.k8s.io", "v1 v1alpha1 v1beta1"),
    ("storagemigration.k8s.io", "v1beta1"),
];

/// Further versions that kube-apiserver knows. The document of OpenAPI v2 names all of them.
const SERVER_VERSIONS: [(&str, &str); 4] = [
    ("admission.k8s.io", "v1 v1beta1"),
    ("apiextensions.k8s.io", "v1 v1beta1"),
    ("apiregistration.k8s.io", "v1 v1beta1"),
    ("imagepolicy.k8s.io", "v1alpha1"),
];

fn client_versions() -> Vec<GroupVersion> {
    versions(&CLIENT_VERSIONS).collect()
}

/// Returns all versions that kube-apiserver knows, served or not.
pub(super) fn server_versions() -> impl Iterator<Item = GroupVersion> {
    versions(&CLIENT_VERSIONS).chain(versions(&SERVER_VERSIONS))
}

type Groups = &'static [(&'static str, &'static str)];

fn versions(groups: Groups) -> impl Iterator<Item = GroupVersion> {
    groups.iter().flat_map(|(group, all)| all.split(' ').map(move |version| GroupVersion::new(*group, version)))
}

/// Kinds that each type represents.
pub(super) struct GroupKinds(BTreeSet<(TypeId, GroupVersionKind)>);

impl GroupKinds {
    /// `is_own`: no CustomResourceDefinition makes this version.
    pub(super) fn new(table: &KindTable, version: &GroupVersion, is_own: bool) -> Self {
        let resources = [table, KindTable::builtin()].into_iter().flat_map(|table| table.kinds());
        let resources = resources.map(|kind| (kind.schema, kind.gvk.clone()));
        let objects = [table, KindTable::builtin()].into_iter().flat_map(|table| table.objects());
        let core = GroupVersion::new("", "v1");
        let versions = if is_own { vec![core, version.clone()] } else { client_versions() };
        let objects = objects.flat_map(|(gvk, id)| match &*gvk.group {
            "meta.k8s.io" => versions.iter().map(|version| (id, version.kind(gvk.kind.clone()))).collect(),
            _ => vec![(id, gvk.clone())],
        });
        Self(resources.chain(objects).collect())
    }

    fn of(&self, id: TypeId) -> Vec<Value> {
        let first = (id, GroupVersionKind::new("", "", ""));
        let own = self.0.range(first..).take_while(|(other, _)| *other == id);
        own.map(|(_, gvk)| group_version_kind(gvk)).collect()
    }
}

/// Returns the value of `x-kubernetes-group-version-kind`.
pub(super) fn group_version_kind(gvk: &GroupVersionKind) -> Value {
    json!({"group": &*gvk.group, "version": &*gvk.version, "kind": &*gvk.kind})
}
