//! From a definition to a table of kinds.

use std::sync::Arc;

use portolan_types::{GroupVersion, GroupVersionKind, GroupVersionResource, object};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{
    Content, Conversion, Names, deprecation, publish,
    schema::{MAX_NODES, TooLarge},
    status,
};
use crate::{Field, FieldKind, Kind, KindTable, Scalar, Subresource, TableBuilder, TableError, Type, TypeId};

/// Key of a compiled table: definitions with the same key have the same kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint([u8; 32]);

/// Returns the fingerprint of a definition.
pub fn fingerprint(crd: &Value) -> Fingerprint {
    let mut digest = Sha256::new();
    for part in ["/spec", "/status/acceptedNames"] {
        let bytes = serde_json::to_vec(&crd.pointer(part)).expect("a JSON tree serializes into memory");
        digest.update((bytes.len() as u64).to_be_bytes());
        digest.update(bytes);
    }
    digest.update([u8::from(is_terminating(crd))]);
    Fingerprint(digest.finalize().into())
}

fn is_terminating(crd: &Value) -> bool {
    object::is_deleting(crd) || status::is_true(crd, "Terminating")
}

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";
/// Verbs of a custom resource, in kube-apiserver's order.
const VERBS: [&str; 8] = ["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];
const VERBS_OF_PARTS: [&str; 3] = ["get", "patch", "update"];

/// Why a definition cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// Two of its versions have one name, which validation refuses.
    #[error(transparent)]
    Table(#[from] TableError),
    /// Its schemas take too much room, which validation refuses.
    #[error(transparent)]
    Schema(#[from] TooLarge),
}

/// Returns the kinds of a definition, one per version.
///
/// # Errors
/// Fails for a definition that validation would refuse.
pub fn compile(crd: &Value) -> Result<KindTable, CompileError> {
    let builder = TableBuilder::over(KindTable::builtin());
    let part = |pointer: &str| crd.pointer(pointer).unwrap_or(&Value::Null);
    let versions = part("/spec/versions").as_array().map_or(&[][..], Vec::as_slice);
    let storage = versions.iter().find(|own| own.get("storage") == Some(&Value::Bool(true)));
    // Validation counts a schema that versions have in common once.
    let read = |version| {
        let content = Content::read(version, &mut MAX_NODES.clone())?;
        Ok::<_, TooLarge>(Content { deprecation: deprecation::warning(crd, version), ..content })
    };
    let stored = storage.map(read).transpose()?.map(Arc::new);
    let mut compiler = Compiler {
        builder,
        names: Names::of(part("/status/acceptedNames")),
        group: part("/spec/group").as_str().unwrap_or_default().into(),
        namespaced: part("/spec/scope").as_str() == Some("Namespaced"),
        storage: storage.and_then(|own| own.get("name")).and_then(Value::as_str).unwrap_or_default().into(),
        is_ending: is_terminating(crd),
    };
    for version in versions {
        let content = match &stored {
            Some(stored) if storage.is_some_and(|storage| std::ptr::eq(storage, version)) => stored.clone(),
            other => Arc::new(Content { stored: other.clone(), ..read(version)? }),
        };
        compiler.version(version, content)?;
    }
    Ok(compiler.builder.finish().of_definition(Conversion::of(crd)))
}

/// Returns the kind that instances of a definition are stored as, by its names alone: enough to delete them, also when
/// the definition does not compile any more.
///
/// # Errors
/// Fails for names that no kind can have.
pub fn compile_names(crd: &Value) -> Result<KindTable, CompileError> {
    let versions = crd.pointer("/spec/versions").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let storage = versions.iter().find(|own| own.get("storage") == Some(&Value::Bool(true))).or(versions.first());
    let name = storage.and_then(|own| own.get("name"));
    let part = |pointer: &str| crd.pointer(pointer).unwrap_or(&Value::Null);
    let version = json!({"name": name, "served": true, "storage": true});
    // Instances have the plural of the definition's name, whatever its status says.
    let mut names = part("/status/acceptedNames").clone();
    if names.get("plural") != part("/spec/names").get("plural") {
        names = part("/spec/names").clone();
    }
    compile(&json!({
        "metadata": crd.get("metadata"),
        "spec": {"group": part("/spec/group"), "scope": part("/spec/scope"), "versions": [version]},
        "status": {"acceptedNames": names},
    }))
}

struct Compiler {
    builder: TableBuilder,
    names: Names,
    group: Arc<str>,
    namespaced: bool,
    storage: Arc<str>,
    is_ending: bool,
}

impl Compiler {
    fn version(&mut self, version: &Value, content: Arc<Content>) -> Result<(), TableError> {
        let name: Arc<str> = version.get("name").and_then(Value::as_str).unwrap_or_default().into();
        let group_version = GroupVersion::new(self.group.clone(), name.clone());
        let gvk = group_version.kind(self.names.kind.clone());
        let schema = self.object_type(&gvk, content.published.clone())?;
        let list_kind = self.names.list_kind.clone();
        let published = publish::list(&self.names, &type_name(&gvk), content.selectable());
        let list = self.list_type(&group_version.kind(list_kind.clone()), schema, published.to_string().into())?;
        self.builder.add_object(group_version.kind(list_kind.clone()), list);
        let kind = Kind {
            subresources: self.subresources(version, &gvk),
            resource: self.names.plural.clone(),
            singular: self.names.singular.clone(),
            list_kind: Some(list_kind),
            short_names: self.names.short_names.clone().into(),
            categories: self.names.categories.clone().into(),
            namespaced: self.namespaced,
            served: version.get("served") == Some(&Value::Bool(true)),
            is_ending: self.is_ending,
            verbs: VERBS.iter().map(|verb| Arc::from(*verb)).collect(),
            schema,
            decoded_as: schema,
            content: Some(content),
            generation: true,
            unconditional_update: false,
            create_on_update: false,
            storage: GroupVersionResource {
                group: self.group.clone(),
                version: self.storage.clone(),
                resource: self.names.plural.clone(),
            },
            defaults: Box::default(),
            gvk,
        };
        self.builder.add_kind(kind);
        Ok(())
    }

    fn object_type(&mut self, gvk: &GroupVersionKind, published: Arc<str>) -> Result<TypeId, TableError> {
        let fields = [text("apiVersion"), text("kind"), self.message("metadata", OBJECT_META)];
        let published = Some(published);
        let own = Type { preserve_unknown: true, published, ..Type::new(type_name(gvk), fields) };
        self.builder.add_type(own)
    }

    fn list_type(
        &mut self,
        gvk: &GroupVersionKind,
        element: TypeId,
        published: Arc<str>,
    ) -> Result<TypeId, TableError> {
        let items =
            Field { required: true, ..Field::new("items", FieldKind::List(Box::new(FieldKind::Message(element)))) };
        let fields = [text("apiVersion"), text("kind"), self.message("metadata", LIST_META), items];
        self.builder.add_type(Type { published: Some(published), ..Type::new(type_name(gvk), fields) })
    }

    fn message(&self, name: &str, schema: &str) -> Field {
        let schema = self.builder.type_named(schema).expect("the built-in table has the types of metadata");
        Field::new(name, FieldKind::Message(schema))
    }

    fn subresources(&self, version: &Value, gvk: &GroupVersionKind) -> Box<[Subresource]> {
        let has =
            |name: &str| version.get("subresources").and_then(|own| own.get(name)).is_some_and(|own| !own.is_null());
        let verbs = || VERBS_OF_PARTS.iter().map(|verb| Arc::from(*verb)).collect();
        let scale = GroupVersionKind::new("autoscaling", "v1", "Scale");
        [("status", gvk.clone()), ("scale", scale)]
            .into_iter()
            .filter(|(name, _)| has(name))
            .map(|(name, gvk)| Subresource { name: name.into(), gvk, verbs: verbs() })
            .collect()
    }
}

fn text(name: &str) -> Field {
    Field { pointer: true, ..Field::new(name, FieldKind::Scalar(Scalar::String)) }
}

/// Returns the name of a type in OpenAPI documents: the group from its end, the version, the kind.
fn type_name(gvk: &GroupVersionKind) -> String {
    let mut group: Vec<&str> = gvk.group.split('.').collect();
    group.reverse();
    format!("{}.{}.{}", group.join("."), gvk.version, gvk.kind)
}
