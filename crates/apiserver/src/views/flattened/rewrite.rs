//! Rewriting of an object between its logical cluster and a flattened view, both ways.

use std::{cell::RefCell, collections::BTreeMap};

use portolan_kinds::{FieldKind, Kind, KindTable, Surface, TypeId};
use portolan_types::{GroupResource, LogicalClusterId};
use serde_json::{Map, Value, json};

use super::{
    names::{FlatName, NAME_LIMIT, NAMESPACE_LIMIT, flattened},
    table::{FlatReferent, TypeReferences, is_kind_shown_once},
};

/// Label by which selectors name a namespace.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";
/// Label of namespaces in the view, with which selectors select only the namespaces of their own logical cluster.
pub(super) const CLUSTER_LABEL: &str = "kcp.io/cluster";
/// Deepest nesting of a custom resource that is walked.
const MAX_DEPTH: usize = 64;
const ACCOUNT: &str = "system:serviceaccount:";
const ACCOUNTS: &str = "system:serviceaccounts:";

/// Name that an object of a logical cluster may not have: it belongs to another one, or its hash is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ForeignName(pub(super) String);

/// Direction of a rewriting.
#[derive(Clone, Copy)]
pub(super) enum Direction<'a> {
    /// To the names of the view. The map takes those that are hashes.
    Show(&'a RefCell<BTreeMap<String, String>>),
    /// To the names of the logical cluster. The map has the names of hashes.
    Store(&'a BTreeMap<String, String>),
}

/// Rewriting of the objects of one logical cluster.
#[derive(Clone, Copy)]
pub(super) struct Rewriter<'a> {
    pub(super) cluster: LogicalClusterId,
    pub(super) direction: Direction<'a>,
    /// Kinds, by which typed references distinguish cluster-scoped objects from others.
    pub(super) surface: &'a Surface,
    pub(super) table: &'a KindTable,
    pub(super) kind: &'a Kind,
}

type Rewritten = Result<(), ForeignName>;

impl Rewriter<'_> {
    /// Rewrites all names of an object.
    ///
    /// # Errors
    /// A name that the logical cluster cannot have, when it is stored.
    pub(super) fn rewrite(&self, value: &mut Value) -> Rewritten {
        let is_namespace = self.kind.gvk.group.is_empty() && *self.kind.gvk.kind == *"Namespace";
        if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            self.rewrite_metadata(metadata, is_namespace)?;
        }
        if self.kind.is_typed() {
            return self.walk_type(self.kind.schema, value, 0);
        }
        let Some(fields) = value.as_object_mut() else { return Ok(()) };
        if let Some(metadata) = fields.get_mut("metadata")
            && let Some(id) = self.table.type_named("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta")
        {
            self.walk_type(id, metadata, 0)?;
        }
        fields.iter_mut().filter(|(key, _)| *key != "metadata").try_for_each(|(key, value)| self.walk(key, value, 0))
    }

    /// Rewrites the names of a cluster-scoped object itself.
    fn rewrite_metadata(&self, metadata: &mut Map<String, Value>, is_namespace: bool) -> Rewritten {
        if self.kind.namespaced {
            return Ok(());
        }
        self.rewrite_field(metadata, "name", if is_namespace { NAMESPACE_LIMIT } else { NAME_LIMIT })?;
        self.rewrite_prefix(metadata, "generateName");
        let labels = metadata.get_mut("labels").and_then(Value::as_object_mut);
        let Some(labels) = labels.filter(|_| is_namespace) else { return Ok(()) };
        self.rewrite_field(labels, NAME_LABEL, NAMESPACE_LIMIT)?;
        if let Direction::Show(_) = self.direction {
            labels.insert(CLUSTER_LABEL.into(), self.cluster.to_string().into());
        }
        Ok(())
    }

    /// Rewrites the beginning of a name, to which the server adds the rest.
    fn rewrite_prefix(&self, object: &mut Map<String, Value>, key: &str) {
        let Some(Value::String(text)) = object.get_mut(key).filter(|text| *text != "") else { return };
        let prefix = format!("{}--", self.cluster);
        match self.direction {
            Direction::Show(_) => text.insert_str(0, &prefix),
            Direction::Store(_) if text.starts_with(&prefix) => drop(text.drain(..prefix.len())),
            Direction::Store(_) => {}
        }
    }

    fn rewrite_field(&self, object: &mut Map<String, Value>, key: &str, limit: usize) -> Rewritten {
        object.get_mut(key).map_or(Ok(()), |value| self.rewrite_name(value, limit))
    }

    fn rewrite_name(&self, value: &mut Value, limit: usize) -> Rewritten {
        if let Value::String(text) = value
            && !text.is_empty()
        {
            *text = self.name(text, limit)?;
        }
        Ok(())
    }

    fn name(&self, text: &str, limit: usize) -> Result<String, ForeignName> {
        let known = match self.direction {
            Direction::Store(known) => known,
            Direction::Show(hashed) => {
                let shown = flattened(self.cluster, text, limit);
                if let FlatName::Hashed { .. } = FlatName::parse(&shown) {
                    hashed.borrow_mut().insert(shown.clone(), text.to_owned());
                }
                return Ok(shown);
            }
        };
        match FlatName::parse(text) {
            FlatName::Prefixed { cluster, name } if cluster == self.cluster => Ok(name.to_owned()),
            FlatName::Hashed { cluster, .. } if cluster == self.cluster => {
                known.get(text).cloned().ok_or_else(|| ForeignName(text.to_owned()))
            }
            _ => Err(ForeignName(text.to_owned())),
        }
    }

    /// Rewrites a value of a type of the kind table.
    fn walk_type(&self, id: TypeId, value: &mut Value, depth: usize) -> Rewritten {
        let references = TypeReferences::builtin().of_type(id).filter(|_| depth <= MAX_DEPTH && value.is_object());
        let (Some(references), of) = (references, self.table.get(id)) else { return Ok(()) };
        for reference in references {
            let found = if reference.field.is_empty() { Some(&mut *value) } else { value.get_mut(reference.field) };
            found.map_or(Ok(()), |found| self.refer(reference.referent, found))?;
        }
        let Some(fields) = value.as_object_mut() else { return Ok(()) };
        for (key, value) in fields {
            let Some(field) = of.field(key) else { continue };
            let Some(inner) = field.kind.message() else { continue };
            match (&field.kind, value) {
                (FieldKind::List(_), Value::Array(items)) => {
                    items.iter_mut().try_for_each(|item| self.walk_type(inner, item, depth + 1))?;
                }
                (FieldKind::Map(_), Value::Object(items)) => {
                    items.values_mut().try_for_each(|item| self.walk_type(inner, item, depth + 1))?;
                }
                (_, value) => self.walk_type(inner, value, depth + 1)?,
            }
        }
        Ok(())
    }

    fn refer(&self, referent: FlatReferent, value: &mut Value) -> Rewritten {
        match referent {
            FlatReferent::Namespace => self.rewrite_name(value, NAMESPACE_LIMIT),
            FlatReferent::ClusterScoped => self.rewrite_name(value, NAME_LIMIT),
            FlatReferent::Namespaces => {
                let items = value.as_array_mut().into_iter().flatten();
                items.into_iter().try_for_each(|item| self.rewrite_name(item, NAMESPACE_LIMIT))
            }
            FlatReferent::NamespaceSelector => self.rewrite_selector(value),
            FlatReferent::Typed => self.rewrite_typed(value, ""),
            FlatReferent::User => self.rewrite_identity(value, ACCOUNT),
            FlatReferent::Groups => {
                let items = value.as_array_mut().into_iter().flatten();
                items.into_iter().try_for_each(|item| self.rewrite_identity(item, ACCOUNTS))
            }
            FlatReferent::Subject => self.rewrite_subject(value),
            FlatReferent::Rule => self.rewrite_rule(value),
        }
    }

    /// Rewrites the names in a rule about cluster-scoped objects. Names stay unchanged in a rule that also covers other
    /// resources, or all of them.
    fn rewrite_rule(&self, value: &mut Value) -> Rewritten {
        let texts = |key: &str| {
            let items = value.get(key).and_then(Value::as_array).into_iter().flatten();
            items.filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>()
        };
        let (groups, resources) = (texts("apiGroups"), texts("resources"));
        let limit_of = |group: &String, resource: &String| {
            let plural = resource.split('/').next().unwrap_or_default();
            let found = self.surface.stored(&GroupResource::new(group.as_str(), plural))?.kind;
            self.limit_of(&found.gvk.group, &found.gvk.kind)
        };
        let pairs = groups.iter().flat_map(|group| resources.iter().map(move |resource| (group, resource)));
        let limits: Option<Vec<usize>> = pairs.map(|(group, resource)| limit_of(group, resource)).collect();
        let Some(limit) = limits.and_then(|limits| limits.into_iter().min()) else { return Ok(()) };
        let names = value.get_mut("resourceNames").and_then(Value::as_array_mut).into_iter().flatten();
        names.into_iter().try_for_each(|name| self.rewrite_name(name, limit))
    }

    /// Rewrites a reference by kind. `group` is its group if it states none.
    fn rewrite_typed(&self, value: &mut Value, group: &str) -> Rewritten {
        let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (kind, version) = (text("kind"), text("apiVersion"));
        let stated = ["apiGroup", "group"].map(text).into_iter().find(|group| !group.is_empty());
        let stated = stated.or_else(|| version.split_once('/').map(|(group, _)| group.to_owned()));
        let is_core = version == "v1";
        let group = stated.unwrap_or_else(|| if is_core { String::new() } else { group.to_owned() });
        let limit = self.limit_of(&group, &kind);
        let Some(fields) = value.as_object_mut() else { return Ok(()) };
        self.rewrite_field(fields, "namespace", NAMESPACE_LIMIT)?;
        limit.map_or(Ok(()), |limit| self.rewrite_field(fields, "name", limit))
    }

    /// Returns the longest name of a kind whose names are rewritten; `None` for a namespaced kind, for one that is
    /// shown once, and for an unknown kind.
    fn limit_of(&self, group: &str, kind: &str) -> Option<usize> {
        let found = self.surface.kind_in_any_version(group, kind)?.kind;
        let is_rewritten = !found.namespaced && !is_kind_shown_once(group, kind);
        let is_namespace = group.is_empty() && kind == "Namespace";
        is_rewritten.then_some(if is_namespace { NAMESPACE_LIMIT } else { NAME_LIMIT })
    }

    fn rewrite_subject(&self, value: &mut Value) -> Rewritten {
        let kind = value.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
        let Some(fields) = value.as_object_mut() else { return Ok(()) };
        self.rewrite_field(fields, "namespace", NAMESPACE_LIMIT)?;
        let Some(name) = fields.get_mut("name") else { return Ok(()) };
        match kind.as_str() {
            "User" => self.rewrite_identity(name, ACCOUNT),
            "Group" => self.rewrite_identity(name, ACCOUNTS),
            _ => Ok(()),
        }
    }

    /// Rewrites the namespace behind the prefix of a user or group of service accounts.
    fn rewrite_identity(&self, value: &mut Value, prefix: &str) -> Rewritten {
        let Value::String(text) = value else { return Ok(()) };
        let Some(rest) = text.strip_prefix(prefix).filter(|rest| !rest.is_empty()) else { return Ok(()) };
        let (namespace, name) = rest.split_once(':').map_or((rest, None), |(namespace, name)| (namespace, Some(name)));
        let namespace = self.name(namespace, NAMESPACE_LIMIT)?;
        *text = match name {
            Some(name) => format!("{prefix}{namespace}:{name}"),
            None => format!("{prefix}{namespace}"),
        };
        Ok(())
    }

    /// Rewrites a selector of namespaces: the names in it, and its bound to the namespaces of the logical cluster.
    fn rewrite_selector(&self, value: &mut Value) -> Rewritten {
        let Some(selector) = value.as_object_mut() else { return Ok(()) };
        let bound = json!({"key": CLUSTER_LABEL, "operator": "In", "values": [self.cluster.to_string()]});
        let expressions = selector.get_mut("matchExpressions").and_then(Value::as_array_mut);
        if let (Direction::Store(_), Some(expressions)) = (self.direction, expressions) {
            expressions.pop_if(|last| *last == bound);
            if expressions.is_empty() {
                selector.remove("matchExpressions");
            }
        }
        if let Some(labels) = selector.get_mut("matchLabels").and_then(Value::as_object_mut) {
            self.rewrite_field(labels, NAME_LABEL, NAMESPACE_LIMIT)?;
        }
        let expressions = selector.get_mut("matchExpressions").and_then(Value::as_array_mut);
        for expression in expressions.into_iter().flatten().filter(|own| own["key"] == NAME_LABEL) {
            let values = expression.get_mut("values").and_then(Value::as_array_mut).into_iter().flatten();
            values.into_iter().try_for_each(|value| self.rewrite_name(value, NAMESPACE_LIMIT))?;
        }
        if let Direction::Show(_) = self.direction {
            let expressions = selector.entry("matchExpressions").or_insert_with(|| json!([]));
            expressions.as_array_mut().into_iter().for_each(|all| all.push(bound.clone()));
        }
        Ok(())
    }

    /// Rewrites a value of a custom resource, whose references have a shape and no type: a name beside a kind or a
    /// namespace, and selectors of namespaces.
    fn walk(&self, key: &str, value: &mut Value, depth: usize) -> Rewritten {
        if depth > MAX_DEPTH {
            return Ok(());
        }
        match value {
            Value::Array(items) => items.iter_mut().try_for_each(|item| self.walk(key, item, depth + 1)),
            Value::Object(_) if key.ends_with("amespaceSelector") => self.rewrite_custom_selector(value),
            Value::Object(_) => {
                if value.get("name").is_some_and(Value::is_string) {
                    self.rewrite_typed(value, &self.kind.gvk.group)?;
                }
                let Value::Object(fields) = value else { return Ok(()) };
                fields.iter_mut().try_for_each(|(key, value)| self.walk(key, value, depth + 1))
            }
            _ => Ok(()),
        }
    }

    /// Rewrites a selector of namespaces by labels, or, as in prometheus-operator, by a list of names.
    fn rewrite_custom_selector(&self, value: &mut Value) -> Rewritten {
        if let Some(names) = value.get_mut("matchNames") {
            return self.refer(FlatReferent::Namespaces, names);
        }
        if value.get("any").is_some() { Ok(()) } else { self.rewrite_selector(value) }
    }
}
