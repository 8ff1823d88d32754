//! Content of one version of a definition: schema, columns and paths, for each step of a write or a read.

use std::sync::Arc;

use portolan_types::{Reason, Status};
use serde_json::Value;

use super::{
    Columns, publish,
    rules::{Rules, RulesWatch},
    scale::ScalePaths,
    schema::{Schema, TooLarge, weight},
    values::{self, Room},
};
use crate::Kind;

/// The content of objects of one version. It is made once for the same content, and shared by all logical clusters that
/// have it.
#[derive(Debug, Default)]
pub struct Content {
    pub(super) schema: Schema,
    pub(super) rules: Rules,
    /// The schema as OpenAPI documents show it, as JSON.
    pub(super) published: Arc<str>,
    /// The columns of tables.
    pub(super) columns: Columns,
    /// Paths of selectable fields, without the leading dot.
    pub(super) selectable: Box<[Box<str>]>,
    /// Paths of the subresource `scale`.
    pub(super) scale: Option<ScalePaths>,
    /// Warning for users of a deprecated version.
    pub(super) deprecation: Option<Arc<str>>,
    /// The content of the version that objects are stored in, where it is another.
    pub(super) stored: Option<Arc<Content>>,
}

impl Content {
    /// Reads the content of a version. `left` counts down the nodes that its schema may have.
    ///
    /// # Errors
    /// Fails if there are more.
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

    /// Starts to measure the cost of its rules.
    pub fn watch_rules(&self, watch: &Arc<dyn RulesWatch>) {
        self.rules.watch(watch);
    }

    /// Returns the warning for users of a deprecated version.
    pub fn deprecation(&self) -> Option<&str> {
        self.deprecation.as_deref()
    }

    /// Returns the columns of tables, behind the name.
    pub fn columns(&self) -> &Columns {
        &self.columns
    }

    /// Names of the fields that objects can be selected by, such as `spec.color`.
    pub fn selectable(&self) -> &[Box<str>] {
        &self.selectable
    }

    /// Returns the paths of the subresource `scale`.
    pub fn scale(&self) -> Option<&ScalePaths> {
        self.scale.as_ref()
    }

    /// Returns the schema of an object.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// Fills in defaults.
    ///
    /// # Errors
    /// 413 when they take more room than any object that is sent.
    pub fn fill(&self, object: &mut Value) -> Result<(), Status> {
        let mut room = Room::to_write();
        values::fill(object, &self.schema, &mut room);
        if room.sufficed() {
            Ok(())
        } else {
            Err(Status::new(Reason::RequestEntityTooLarge, "the defaults of its definition make the object too large"))
        }
    }

    /// Returns the content of the stored version; `None` if it is this one.
    pub fn stored(&self) -> Option<&Content> {
        self.stored.as_deref()
    }

    /// Fills in defaults of an object that is read, as far as they have room.
    pub fn fill_to_read(&self, object: &mut Value) {
        let mut room = Room::to_read(weight(object));
        values::fill(object, &self.schema, &mut room);
    }

    /// Returns true if a stored object is served unchanged as JSON.
    pub fn is_served_as_stored(&self, body: &[u8]) -> bool {
        values::is_settled(body, &self.schema)
    }

    /// Rules of the schema.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }
}

fn selectable(version: &Value) -> Box<[Box<str>]> {
    let fields = version.get("selectableFields").and_then(Value::as_array).into_iter().flatten();
    let paths = fields.filter_map(|field| field.get("jsonPath")?.as_str());
    paths.map(|path| path.strip_prefix('.').unwrap_or(path).into()).collect()
}

/// Returns true if objects of a kind are validated by rules, which may also refuse an unchanged one.
pub fn has_rules(kind: &Kind) -> bool {
    kind.content.as_ref().is_some_and(|content| content.rules.are_there())
}
