//! What one version of a definition says of its objects, and what follows from it at each step of a write or a read.

use std::sync::Arc;

use portolan_types::{Reason, Status};
use serde_json::Value;

use super::{
    Columns, publish,
    rules::{Rules, RulesWatch},
    scale::ScalePaths,
    schema::{Schema, TooLarge, weight},
    values::{self, Effort, Room},
};
use crate::{
    kinds::Kind,
    validation::{Errors, Path},
};

/// The content of objects of one version. It is made once for the same content, and shared by all logical clusters that have it.
#[derive(Debug, Default)]
pub struct Content {
    pub(super) schema: Schema,
    pub(super) rules: Rules,
    /// The schema as OpenAPI documents show it, as JSON.
    pub(super) published: Arc<str>,
    /// The columns of tables.
    pub(super) columns: Columns,
    /// What objects can be selected by, without the dot in front.
    pub(super) selectable: Box<[Box<str>]>,
    /// Where the number of replicas is, for the subresource `scale`.
    pub(super) scale: Option<ScalePaths>,
    /// What is said to whoever uses this version, where it is on its way out.
    pub(super) deprecation: Option<Arc<str>>,
    /// The content of the version that objects are stored in, where it is another.
    pub(super) stored: Option<Arc<Content>>,
}

impl Content {
    /// Reads the content of a version. `left` counts down the nodes that its schema may have.
    ///
    /// # Errors
    /// When there are more.
    pub(super) fn read(version: &Value, left: &mut usize) -> Result<Self, TooLarge> {
        let schema = version.pointer("/schema/openAPIV3Schema").filter(|schema| schema.is_object());
        // Old definitions may have none.
        let anything = || Schema { preserves_unknown: true, ..Schema::default() };
        Ok(Self {
            schema: schema.map(|schema| Schema::read(schema, left)).transpose()?.unwrap_or_else(anything),
            rules: schema.map(Rules::of).unwrap_or_default(),
            published: publish::published(version).to_string().into(),
            columns: Columns::read(version),
            selectable: selectable(version),
            scale: version.pointer("/subresources/scale").and_then(ScalePaths::read),
            deprecation: None,
            stored: None,
        })
    }

    /// What its rules take is measured from now on.
    pub fn watch_rules(&self, watch: &Arc<dyn RulesWatch>) {
        self.rules.watch(watch);
    }

    /// What is said to whoever uses this version, where it is on its way out.
    pub fn deprecation(&self) -> Option<&str> {
        self.deprecation.as_deref()
    }

    /// The columns of tables, behind the name.
    pub(crate) fn columns(&self) -> &Columns {
        &self.columns
    }

    /// Names of the fields that objects can be selected by, such as `spec.color`.
    pub(crate) fn selectable(&self) -> &[Box<str>] {
        &self.selectable
    }

    /// Where the subresource `scale` finds what it is about.
    pub fn scale(&self) -> Option<&ScalePaths> {
        self.scale.as_ref()
    }

    /// The schema of an object.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// Takes off what is not declared, and nulls that are no values. Tells the paths of what was not declared.
    ///
    /// # Errors
    /// What is no metadata of an embedded object.
    pub(crate) fn clean(&self, object: &mut Value) -> Result<Vec<String>, String> {
        values::drop_bare_nulls(object, &self.schema);
        self.clean_applied(object)
    }

    /// As [`Content::clean`], of what an apply left: nulls stay, and are judged as other values.
    ///
    /// # Errors
    /// As [`Content::clean`].
    pub(crate) fn clean_applied(&self, object: &mut Value) -> Result<Vec<String>, String> {
        values::whole_numbers(object);
        let mut unknown = values::prune(object, &self.schema);
        unknown.extend(values::coerce(object, &self.schema)?);
        Ok(unknown)
    }

    /// Fills in defaults.
    ///
    /// # Errors
    /// 413 when they take more room than any object that is sent.
    pub(crate) fn fill(&self, object: &mut Value) -> Result<(), Status> {
        let mut room = Room::to_write();
        values::fill(object, &self.schema, &mut room);
        match room.sufficed() {
            true => Ok(()),
            false => Err(Status::new(
                Reason::RequestEntityTooLarge,
                "the defaults of its definition make the object too large",
            )),
        }
    }

    /// What is to be stored of an object of this version, which has been made to fit already.
    pub(crate) fn store(&self, object: &mut Value) {
        if let Some(stored) = &self.stored {
            drop(stored.clean(object));
        }
    }

    /// A stored object as it is served. What it has no room for, which only a later definition can ask for, is left out: it
    /// would be refused when it is written, and must not keep anybody from reading the object.
    pub(crate) fn serve(&self, object: &mut Value) {
        // What cannot be read of embedded metadata has been stored before the definition asked for it.
        drop(self.clean(object));
        let mut room = Room::to_read(weight(object));
        values::fill(object, &self.schema, &mut room);
    }

    /// Takes off what of an object does not belong to this version.
    pub(crate) fn prune(&self, object: &mut Value) {
        drop(self.clean(object));
    }

    /// Whether a stored object, as JSON, is served as it is.
    pub(crate) fn is_served_as_stored(&self, body: &[u8]) -> bool {
        values::is_settled(body, &self.schema)
    }

    /// What is wrong with a new object, metadata aside.
    pub(crate) fn check_new(&self, object: &Value, errors: &mut Errors) {
        let root = Path::default();
        values::validate(&root, object, None, (&self.schema, &Effort::default()), errors);
        self.scale.iter().for_each(|scale| scale.check(object, errors));
        values::check_embedded(&root, object, &self.schema, errors);
        values::check_lists(&root, object, &self.schema, errors);
        self.rules.check(object, None, errors);
    }

    /// What is wrong with a changed object.
    pub(crate) fn check_changed(&self, old: &Value, new: &Value, errors: &mut Errors) {
        let root = Path::default();
        values::validate(&root, new, Some(old), (&self.schema, &Effort::default()), errors);
        self.scale.iter().for_each(|scale| scale.check(new, errors));
        values::check_embedded(&root, new, &self.schema, errors);
        self.check_lists(old, new, errors);
        self.rules.check(new, Some(old), errors);
    }

    /// What is wrong with an object whose status has changed.
    pub(crate) fn check_status(&self, old: &Value, new: &Value, errors: &mut Errors) {
        // One that is null is as none was before.
        let is_none = |object: &Value| object.get("status").is_none_or(Value::is_null);
        let status = new.get("status").filter(|_| !is_none(old) || !is_none(new));
        if let (Some(status), Some(schema)) = (status, self.schema.property("status")) {
            values::validate(&Path::new("status"), status, old.get("status"), (schema, &Effort::default()), errors);
        }
        self.scale.iter().for_each(|scale| scale.check_status(new, errors));
        self.check_lists(old, new, errors);
        self.rules.check(new, Some(old), errors);
    }

    /// Lists that had elements twice before may go on having them.
    fn check_lists(&self, old: &Value, new: &Value, errors: &mut Errors) {
        let mut before = Errors::default();
        values::check_lists(&Path::default(), old, &self.schema, &mut before);
        if before.is_empty() {
            values::check_lists(&Path::default(), new, &self.schema, errors);
        }
    }
}

fn selectable(version: &Value) -> Box<[Box<str>]> {
    let fields = version.get("selectableFields").and_then(Value::as_array).into_iter().flatten();
    let paths = fields.filter_map(|field| field.get("jsonPath")?.as_str());
    paths.map(|path| path.strip_prefix('.').unwrap_or(path).into()).collect()
}

/// Whether objects of a kind are checked by rules, which may speak also of one that stays as it is.
pub(crate) fn has_rules(kind: &Kind) -> bool {
    kind.content.as_ref().is_some_and(|content| content.rules.are_there())
}

/// What is wrong with a custom object: a new one, a changed one, or one of which a part was changed.
pub(crate) fn check(kind: &Kind, (old, new): (Option<&Value>, &Value), subresource: Option<&str>, errors: &mut Errors) {
    let Some(content) = &kind.content else { return };
    match (old, subresource) {
        (None, _) => content.check_new(new, errors),
        (Some(old), Some("status")) => content.check_status(old, new, errors),
        (Some(old), _) => content.check_changed(old, new, errors),
    }
}
