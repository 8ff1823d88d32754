//! List as text, in pieces: head, items, tail.

use std::io::Write as _;

use portolan_store::StoredObject;
use portolan_strategy::table;
use portolan_types::Status;
use serde_json::{Value, json};

use super::{ObjectForm, ResponseFormat, ResponseShape};

/// Writer of a list in a text form.
pub(crate) struct ListWriter {
    shape: ResponseShape,
    metadata: Value,
    /// True once an item has been written.
    has_items: bool,
    /// Prefix of the stored bytes of an item up to its metadata and the text that replaces it, for lists whose items do
    /// not repeat their type, as Go prints Kubernetes' own kinds.
    typed: Option<(String, String)>,
}

impl ListWriter {
    pub(crate) fn new(shape: ResponseShape, mut metadata: Value) -> Self {
        let kind = &shape.target.kind;
        // Lists of custom resources always have a `continue` field.
        if !kind.is_typed() && shape.accepted.form == ObjectForm::Object && metadata.get("continue").is_none() {
            metadata["continue"] = "".into();
        }
        let untyped = shape.accepted.form == ObjectForm::Object && shape.target.has_protobuf();
        let begins = || format!("{{\"apiVersion\":\"{}\",", kind.group_version());
        let goes_on = || format!("\"kind\":\"{}\",\"metadata\":{{", kind.gvk.kind);
        let typed = untyped.then(|| (begins(), goes_on()));
        Self { shape, metadata, has_items: false, typed }
    }

    pub(super) fn into_shape(self) -> ResponseShape {
        self.shape
    }

    /// Returns the text before the items.
    pub(crate) fn head(&mut self) -> Result<Vec<u8>, Status> {
        let (shape, version) = (&self.shape, self.shape.list_version());
        let mut head = json!({"kind": shape.list_kind(), "apiVersion": version, "metadata": self.metadata.take()});
        if shape.accepted.form == ObjectForm::Table {
            let table = shape.table(Vec::new(), Value::Null, true);
            head["columnDefinitions"] = table.get("columnDefinitions").cloned().unwrap_or_default();
        }
        if shape.accepted.media == ResponseFormat::Yaml {
            return Ok(super::yaml(&head)?.into_bytes());
        }
        let mut out = Vec::with_capacity(1024);
        let space = if self.shape.pretty { " " } else { "" };
        out.push(b'{');
        for key in ["kind", "apiVersion", "metadata", "columnDefinitions"] {
            let Some(value) = head.get(key) else { continue };
            self.break_line(1, &mut out);
            write!(out, "\"{key}\":{space}").map_err(Status::internal)?;
            self.value(value, 1, &mut out)?;
            out.push(b',');
        }
        self.break_line(1, &mut out);
        write!(out, "\"{}\":{space}", self.items_key()).map_err(Status::internal)?;
        Ok(out)
    }

    fn items_key(&self) -> &'static str {
        if self.shape.accepted.form == ObjectForm::Table { "rows" } else { "items" }
    }

    /// Appends objects.
    pub(crate) fn items(&mut self, objects: &[StoredObject], out: &mut Vec<u8>) -> Result<(), Status> {
        if self.shape.is_stored_form() {
            out.reserve(objects.iter().map(|o| o.record.body().len() + 64).sum());
            return objects.iter().try_for_each(|object| self.stored(object, out));
        }
        if self.shape.rows_hold_stored_metadata() {
            return objects.iter().try_for_each(|object| {
                self.separate(out);
                self.shape.write_row(object, out)
            });
        }
        let trees = objects.iter().map(|object| self.shape.tree(object)).collect::<Result<Vec<_>, _>>()?;
        self.trees(trees, out)
    }

    /// Appends a stored object.
    fn stored(&mut self, object: &StoredObject, out: &mut Vec<u8>) -> Result<(), Status> {
        let Some((begins, goes_on)) = &self.typed else {
            self.separate(out);
            object.record.write_json(object.revision, out);
            return Ok(());
        };
        let (before, after) = object.record.body().split_at(object.record.splice_at() as usize);
        let between = before.strip_prefix(begins.as_bytes()).and_then(|rest| rest.strip_suffix(goes_on.as_bytes()));
        let Some(between) = between else {
            // Some kinds have fields on both sides of the two.
            return self.trees(vec![self.shape.tree(object)?], out);
        };
        self.separate(out);
        out.push(b'{');
        out.extend_from_slice(between);
        write!(out, "\"metadata\":{{\"resourceVersion\":\"{}\"", object.revision).map_err(Status::internal)?;
        out.extend_from_slice(if after.first() == Some(&b'}') { b"" } else { b"," });
        out.extend_from_slice(after);
        Ok(())
    }

    /// Appends objects that are trees.
    pub(crate) fn trees(&mut self, trees: Vec<Value>, out: &mut Vec<u8>) -> Result<(), Status> {
        let shape = &self.shape;
        let items: Vec<Value> = match shape.accepted.form {
            ObjectForm::Object if self.typed.is_some() => trees.into_iter().map(without_type).collect(),
            ObjectForm::Object => trees,
            ObjectForm::Metadata(_) => trees.into_iter().map(|tree| shape.metadata_only(tree)).collect(),
            ObjectForm::Table => {
                let mut table = shape.table(trees, Value::Null, false);
                match table.get_mut("rows").map(Value::take) {
                    Some(Value::Array(rows)) => rows,
                    _ => Vec::new(),
                }
            }
        };
        if shape.accepted.media == ResponseFormat::Yaml {
            return self.yaml_items(&items, out);
        }
        for item in &items {
            self.separate(out);
            self.value(item, 2, out)?;
        }
        Ok(())
    }

    /// Appends items as YAML. A list under a key needs no indentation, so every slice can be written as a list of its
    /// own.
    fn yaml_items(&mut self, items: &[Value], out: &mut Vec<u8>) -> Result<(), Status> {
        if items.is_empty() {
            return Ok(());
        }
        if !std::mem::replace(&mut self.has_items, true) {
            writeln!(out, "{}:", self.items_key()).map_err(Status::internal)?;
        }
        out.extend_from_slice(super::yaml(&items)?.as_bytes());
        Ok(())
    }

    /// Appends the text after the items.
    pub(crate) fn tail(&mut self, out: &mut Vec<u8>) {
        if self.shape.accepted.media == ResponseFormat::Yaml {
            if !self.has_items {
                out.extend_from_slice(format!("{}: {}\n", self.items_key(), self.no_items()).as_bytes());
            }
            return;
        }
        if self.has_items {
            self.break_line(1, out);
            out.push(b']');
        } else {
            out.extend_from_slice(self.no_items().as_bytes());
        }
        self.break_line(0, out);
        out.push(b'}');
        if !self.shape.pretty {
            out.push(b'\n');
        }
    }

    /// Returns the text in place of the items of an empty list: Go prints `null` for a nil slice.
    fn no_items(&self) -> &'static str {
        match self.shape.accepted.form {
            ObjectForm::Metadata(_) => "null",
            ObjectForm::Table if table::is_plain(&self.shape.target.kind) => "null",
            ObjectForm::Table | ObjectForm::Object => "[]",
        }
    }

    fn separate(&mut self, out: &mut Vec<u8>) {
        out.push(if std::mem::replace(&mut self.has_items, true) { b',' } else { b'[' });
        self.break_line(2, out);
    }

    fn break_line(&self, depth: usize, out: &mut Vec<u8>) {
        if self.shape.pretty {
            out.push(b'\n');
            out.resize(out.len() + 2 * depth, b' ');
        }
    }

    /// Appends a value, indented as in the list.
    fn value(&self, value: &Value, depth: usize, out: &mut Vec<u8>) -> Result<(), Status> {
        if !self.shape.pretty {
            return serde_json::to_writer(out, value).map_err(Status::internal);
        }
        // JSON strings have no raw line breaks, so each line break is between tokens.
        let text = serde_json::to_string_pretty(value).map_err(Status::internal)?;
        let indent = format!("\n{}", "  ".repeat(depth));
        out.extend_from_slice(text.replace('\n', &indent).as_bytes());
        Ok(())
    }
}

fn without_type(mut object: Value) -> Value {
    if let Some(top) = object.as_object_mut() {
        top.remove("apiVersion");
        top.remove("kind");
    }
    object
}
