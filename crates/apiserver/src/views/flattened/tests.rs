//! Properties of the rewriting, over all kinds that a flattened view shows.

use std::{collections::BTreeSet, sync::Arc};

use portolan_kinds::{Field, FieldKind, Kind, KindTable, Scalar, Surface, TypeId};
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey};
use serde_json::{Map, Value, json};

use super::{FlattenedNames, is_shown_once, table::REFERENCES};

/// Deepest path that is filled or walked.
const MAX_DEPTH: usize = 14;

/// Fields that look like references but are not rewritten, with the reason. A name without a type means a field of any
/// type.
static NO_REFERENCES: [(&str, &str); 28] = [
    ("fieldRef", "names a field"),
    ("resourceFieldRef", "names a container of the pod"),
    ("fileKeyRef", "names a volume of the pod"),
    ("configMapRef", "names an object of the namespace"),
    ("configMapKeyRef", "names an object of the namespace"),
    ("secretKeyRef", "names an object of the namespace"),
    ("EnvFromSource.secretRef", "names an object of the namespace"),
    ("secretRef", "its type is in the table if it has a namespace"),
    ("imagePullSecrets", "names objects of the namespace"),
    ("nodePublishSecretRef", "its type is in the table if it has a namespace"),
    ("imageRef", "names an image in a registry"),
    ("reference", "names an image in a registry"),
    ("nodeName", "nodes are shown once"),
    ("nominatedNodeName", "nodes are shown once"),
    ("storageClassName", "storage classes are shown once"),
    ("volumeAttributesClassName", "classes of volumes are shown once"),
    ("targetVolumeAttributesClassName", "classes of volumes are shown once"),
    ("currentVolumeAttributesClassName", "classes of volumes are shown once"),
    ("ingressClassName", "ingress classes are shown once"),
    ("priorityClassName", "priority classes are shown once"),
    ("runtimeClassName", "runtime classes are shown once"),
    ("deviceClassName", "device classes are shown once"),
    ("FileKeySelector.volumeName", "names a volume of the pod"),
    ("ScaleIOPersistentVolumeSource.volumeName", "names a volume of a storage system"),
    ("ScaleIOVolumeSource.volumeName", "names a volume of a storage system"),
    ("StorageOSPersistentVolumeSource.volumeName", "names a volume of a storage system"),
    ("StorageOSVolumeSource.volumeName", "names a volume of a storage system"),
    ("ResourceClaimStatus.reservedFor", "names objects of the namespace"),
];
/// Fields with `namespace` in their names that have no name of one.
const NO_NAMESPACES: [&str; 1] = ["shareProcessNamespace"];

fn looks_like_a_reference(table: &KindTable, field: &Field) -> bool {
    let name = field.name.to_lowercase();
    let words = ["volumename", "policyname", "username", "groups", "resourcenames", "reference"];
    let of_type = field.kind.message().map(|id| table.get(id).name.to_string()).unwrap_or_default();
    name.contains("namespace")
        || ["ref", "refs", "classname", "nodename"].iter().any(|end| name.ends_with(end))
        || words.contains(&name.as_str())
        || of_type.ends_with("Reference")
}

/// Returns the kinds that a flattened view shows for consumers.
fn shown_kinds() -> Vec<Arc<Kind>> {
    let is_shown = |kind: &&Arc<Kind>| {
        kind.is_kubernetes() && kind.served && !kind.is_only_created() && !is_shown_once(&kind.group_resource())
    };
    KindTable::builtin().kinds().filter(is_shown).cloned().collect()
}

fn names() -> FlattenedNames {
    FlattenedNames::new(LogicalClusterId::new(5), Surface::builtin(), true)
}

/// Types below a type, with itself.
fn types_of(table: &KindTable, id: TypeId, found: &mut BTreeSet<TypeId>) {
    if found.insert(id) {
        table.get(id).fields.iter().filter_map(|field| field.kind.message()).for_each(|id| types_of(table, id, found));
    }
}

#[test]
fn every_field_that_can_name_another_namespace_is_listed_or_has_a_reason_why_not() {
    let table = KindTable::builtin();
    let mut types = BTreeSet::new();
    shown_kinds().iter().for_each(|kind| types_of(table, kind.schema, &mut types));
    let has_rule = |of: &str, field: &str| {
        REFERENCES.iter().any(|rule| of.ends_with(rule.of) && (rule.field == field || rule.field.is_empty()))
    };
    let mut unlisted = Vec::new();
    let mut unused: BTreeSet<&str> = NO_REFERENCES.iter().map(|(field, _)| *field).collect();
    for of in types.iter().map(|id| table.get(*id)) {
        for field in of.fields.iter().filter(|field| looks_like_a_reference(table, field)) {
            let inner = field.kind.message().map(|id| table.get(id).name.clone());
            let is_inner = inner.is_some_and(|inner| REFERENCES.iter().any(|rule| inner.ends_with(rule.of)));
            let (name, typed) = (&*field.name, format!(".{}.{}", of.name, field.name));
            let excluded = NO_REFERENCES.iter().find(|(own, _)| *own == name || typed.ends_with(&format!(".{own}")));
            if let Some((own, _)) = excluded {
                unused.remove(own);
            }
            let is_known = is_inner || excluded.is_some() || has_rule(&of.name, name);
            if !is_known && !NO_NAMESPACES.contains(&name) {
                unlisted.push(typed);
            }
        }
    }
    assert!(types.len() > 100, "the kinds have types");
    assert!(unlisted.is_empty(), "neither listed nor excluded: {unlisted:#?}");
    assert!(unused.is_empty(), "excluded, and not there: {unused:?}");
    for rule in &REFERENCES {
        let found = types.iter().map(|id| table.get(*id)).find(|of| of.name.ends_with(rule.of));
        let of = found.unwrap_or_else(|| panic!("no kind has the type {}", rule.of));
        assert!(rule.field.is_empty() || of.field(rule.field).is_some(), "{} has no {}", rule.of, rule.field);
    }
}

/// Generator of objects, seeded.
struct Objects(u64);

impl Objects {
    fn number(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % below
    }

    fn text(&mut self, field: &str) -> String {
        let pool: &[&str] = match field {
            "kind" => &["Namespace", "ClusterRole", "Secret", "PersistentVolume", "User", "ServiceAccount", "Widget"],
            "apiGroup" | "group" => &["", "rbac.authorization.k8s.io", "example.dev"],
            "apiVersion" => &["v1", "rbac.authorization.k8s.io/v1", "example.dev/v1"],
            "key" => &["kubernetes.io/metadata.name", "team"],
            "username" => &["ann", "system:serviceaccount:shop:robot", "system:serviceaccount:"],
            "groups" => &["staff", "system:serviceaccounts", "system:serviceaccounts:shop"],
            "apiGroups" => &["", "rbac.authorization.k8s.io"],
            "resources" => &["namespaces", "clusterroles", "persistentvolumes/status", "pods"],
            _ => &["shop", "a--b", "0000000000007--x", "root--y", "-dash", "a-very-long-name"],
        };
        let text = pool[self.number(pool.len())];
        if text == "a-very-long-name" { format!("{text}-{}", "n".repeat(46)) } else { text.to_owned() }
    }

    fn value(&mut self, table: &KindTable, kind: &FieldKind, field: &str, depth: usize) -> Option<Value> {
        Some(match kind {
            FieldKind::Scalar(Scalar::String) => self.text(field).into(),
            FieldKind::Scalar(Scalar::Bool) => true.into(),
            FieldKind::Scalar(_) => 1.into(),
            FieldKind::Special(_) => return None,
            FieldKind::Message(id) => self.object(table, *id, depth)?,
            FieldKind::List(element) => {
                let items = (0..1 + self.number(2)).filter_map(|_| self.value(table, element, field, depth));
                let items: Vec<_> = items.collect();
                (!items.is_empty()).then_some(items)?.into()
            }
            FieldKind::Map(element) => {
                let key = ["kubernetes.io/metadata.name", "team"][self.number(2)];
                json!({key: self.value(table, element, field, depth)?})
            }
        })
    }

    fn object(&mut self, table: &KindTable, id: TypeId, depth: usize) -> Option<Value> {
        let of = table.get(id);
        if of.special.is_some() || depth > MAX_DEPTH {
            return None;
        }
        let mut fields = Map::new();
        for field in &of.fields {
            // Deep types are filled in part, so that objects stay small.
            if (depth > 3 && self.number(depth) > 2) || &*field.name == "managedFields" {
                continue;
            }
            let value = self.value(table, &field.kind, &field.name, depth + 1);
            fields.extend(value.map(|value| (field.name.to_string(), value)));
        }
        Some(fields.into())
    }

    /// Returns an object of a kind. It has the labels that every namespace has.
    fn of_kind(&mut self, kind: &Kind) -> Value {
        let mut object = self.object(KindTable::builtin(), kind.schema, 0).expect("it is an object");
        object["apiVersion"] = kind.group_version().to_string().into();
        object["kind"] = (*kind.gvk.kind).into();
        object
    }
}

/// Returns the paths of names of namespaces that a view shows as they are stored.
fn unwritten(
    (table, id): (&KindTable, TypeId),
    (stored, shown): (&Value, &Value),
    prefix: &str,
    path: &str,
) -> Vec<String> {
    let mut found = Vec::new();
    let of = table.get(id);
    for field in of.fields.iter().filter(|field| stored.get(&*field.name).is_some()) {
        let (before, after, path) = (&stored[&*field.name], &shown[&*field.name], format!("{path}.{}", field.name));
        let is_namespace = field.name.to_lowercase().contains("namespace") && field.kind.message().is_none();
        if is_namespace && !NO_NAMESPACES.contains(&&*field.name) {
            let texts = |value: &Value| match value {
                Value::Array(items) => items.clone(),
                other => vec![other.clone()],
            };
            let is_rewritten = |text: &Value| text.as_str().is_some_and(|text| text.starts_with(prefix));
            found.extend((!texts(after).iter().all(is_rewritten)).then(|| path.clone()));
        }
        let Some(inner) = field.kind.message() else { continue };
        match (before, after) {
            (Value::Array(before), Value::Array(after)) => {
                // A selector of namespaces has one more.
                let pairs = before.iter().zip(after);
                found.extend(pairs.flat_map(|pair| unwritten((table, inner), pair, prefix, &path)));
            }
            pair => found.extend(unwritten((table, inner), pair, prefix, &path)),
        }
    }
    found
}

#[test]
fn rewriting_and_back_changes_no_object() {
    let (table, cluster, names) = (KindTable::builtin(), LogicalClusterId::new(7), names());
    let (mut objects, prefix) = (Objects(1), format!("{cluster}--"));
    let kinds = shown_kinds();
    assert!(kinds.len() > 30, "{}", kinds.len());
    for round in 0..40 {
        for kind in &kinds {
            let stored = objects.of_kind(kind);
            let mut shown = stored.clone();
            names.show((table, kind), cluster, &mut shown);
            let left = unwritten((table, kind.schema), (&stored, &shown), &prefix, &kind.gvk.kind);
            assert!(left.is_empty(), "{left:?} in round {round}: {shown:#}");
            let mut back = shown.clone();
            names
                .store((&KindTable::shared(), kind), cluster, (&mut back, Some(&stored)))
                .unwrap_or_else(|e| panic!("{e:?}: {shown:#}"));
            assert_eq!(back, stored, "{} in round {round}", kind.gvk.kind);
            let other = LogicalClusterId::new(8);
            let mut moved = shown.clone();
            assert!(
                names.store((&KindTable::shared(), kind), other, (&mut moved, None)).is_err(),
                "no other workspace takes {shown:#}"
            );
        }
    }
}

#[test]
fn references_that_no_type_tells_follow_the_kind_they_name() {
    let (table, cluster, names) = (KindTable::builtin(), LogicalClusterId::new(7), names());
    let kind_of = |group: &str, kind: &str| table.kind_named(group, "v1", kind).unwrap().clone();
    let rbac = "rbac.authorization.k8s.io";
    let flat = |name: &str| format!("{cluster}--{name}");
    let cases = [
        (
            kind_of(rbac, "RoleBinding"),
            json!({"roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "r"}}),
            json!({"roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": flat("r")}}),
        ),
        (
            kind_of(rbac, "RoleBinding"),
            json!({"roleRef": {"apiGroup": rbac, "kind": "Role", "name": "r"}}),
            json!({"roleRef": {"apiGroup": rbac, "kind": "Role", "name": "r"}}),
        ),
        (
            kind_of("", "ConfigMap"),
            json!({"metadata": {"namespace": "n", "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": "o"}, {"apiVersion": "v1", "kind": "Namespace", "name": "o"},
            ]}}),
            json!({"metadata": {"namespace": flat("n"), "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": "o"},
                {"apiVersion": "v1", "kind": "Namespace", "name": flat("o")},
            ]}}),
        ),
        (
            kind_of(rbac, "ClusterRole"),
            json!({"rules": [
                {"apiGroups": [""], "resources": ["namespaces"], "resourceNames": ["n"]},
                {"apiGroups": [""], "resources": ["pods", "namespaces"], "resourceNames": ["n"]},
            ]}),
            json!({"rules": [
                {"apiGroups": [""], "resources": ["namespaces"], "resourceNames": [flat("n")]},
                {"apiGroups": [""], "resources": ["pods", "namespaces"], "resourceNames": ["n"]},
            ]}),
        ),
        (
            kind_of("networking.k8s.io", "NetworkPolicy"),
            json!({"spec": {"ingress": [{"from": [{"namespaceSelector": {}}]}]}}),
            json!({"spec": {"ingress": [{"from": [{"namespaceSelector": {"matchExpressions": [
                {"key": "kcp.io/cluster", "operator": "In", "values": [cluster.to_string()]},
            ]}}]}]}}),
        ),
    ];
    for (kind, stored, expected) in cases {
        let mut shown = stored.clone();
        names.show((table, &kind), cluster, &mut shown);
        assert_eq!(shown, expected);
        names.store((&KindTable::shared(), &kind), cluster, (&mut shown, None)).unwrap();
        assert_eq!(shown, stored);
    }
}

#[test]
fn labels_of_other_workspaces_select_nothing_of_them() {
    let (table, cluster, names) = (KindTable::builtin(), LogicalClusterId::new(7), names());
    let other = LogicalClusterId::new(8).to_string();
    let policy = table.kind_named("networking.k8s.io", "v1", "NetworkPolicy").unwrap();
    let hostile = json!({"matchLabels": {"kcp.io/cluster": other}, "matchExpressions": [
        {"key": "kcp.io/cluster", "operator": "In", "values": [other]},
    ]});
    let mut shown = json!({"spec": {"egress": [{"to": [{"namespaceSelector": hostile}]}]}});
    names.show((table, policy), cluster, &mut shown);
    let selector = &shown["spec"]["egress"][0]["to"][0]["namespaceSelector"];
    let last = selector["matchExpressions"].as_array().unwrap().last().unwrap();
    assert_eq!(last["values"], json!([cluster.to_string()]), "all expressions have to hold");
    let space = table.kind_named("", "v1", "Namespace").unwrap();
    let mut shown = json!({"metadata": {"name": "a", "labels": {"kcp.io/cluster": other}}});
    let stored = shown.clone();
    names.show((table, space), cluster, &mut shown);
    assert_eq!(shown["metadata"]["labels"]["kcp.io/cluster"], cluster.to_string());
    names.store((&KindTable::shared(), space), cluster, (&mut shown, Some(&stored))).unwrap();
    assert_eq!(shown, stored);
}

#[test]
fn no_object_of_the_operators_workspace_has_the_name_of_a_consumers() {
    let names = names();
    let key = |cluster, namespace: &str| {
        let resource = GroupResource::new("", "configmaps");
        let scope = portolan_types::Scope::Namespace(namespace.parse().unwrap());
        ObjectKey { cluster: LogicalClusterId::new(cluster), resource, scope, name: "a".parse().unwrap() }
    };
    let consumer = LogicalClusterId::new(7);
    let flat = format!("{consumer}--a");
    assert_eq!(names.shown_key(&key(7, "a")), Some(ObjectKey { cluster: consumer, ..key(7, &flat) }));
    assert_eq!(names.shown_key(&key(5, &flat)), None);
    assert_eq!(names.shown_key(&key(5, "x--y")), Some(key(5, "x--y")));
}
