//! Versions of a definition: columns, subresources, fields to select by, deprecation.

use std::collections::HashSet;

use serde_json::Value;

use super::super::{Errors, FieldError, view::At};

const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: [&str; 8] = ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
const MAX_WARNING: usize = 256;
const MAX_SELECTABLE: usize = 8;

/// Too many selectable fields are tolerated if the old object has as many.
pub(super) const OLD_SELECTABLE: &str = "too many fields to select by";

pub(super) fn deprecation(version: &At<'_>, errors: &mut Errors) {
    let path = version.path("deprecationWarning");
    let Some(text) = version.get("deprecationWarning").as_str() else { return };
    let mut wrong = |why: &str| errors.invalid(&path, &text.into(), why);
    if !version.flag("deprecated") {
        return wrong("can only be set for deprecated versions");
    }
    if text.len() > MAX_WARNING {
        wrong("must be <= 256 characters long");
    }
    if text.is_empty() {
        wrong("must not be an empty string");
    }
    let is_printable = |c: char| c == ' ' || (!c.is_whitespace() && !c.is_control());
    if let Some((at, _)) = text.char_indices().find(|(_, c)| !is_printable(*c)) {
        wrong(&format!("must only contain printable UTF-8 characters; non-printable character found at index {at}"));
    }
}

pub(super) fn columns(at: &At<'_>, errors: &mut Errors) {
    for column in at.items("additionalPrinterColumns") {
        column.needs("name", errors);
        let (kind, format) = (column.text("type"), column.text("format"));
        let why = format!("must be one of {}", COLUMN_TYPES.join(","));
        if kind.is_empty() {
            errors.required(column.path("type"), &why);
        } else if !COLUMN_TYPES.contains(&kind) {
            errors.invalid(column.path("type"), &kind.into(), &why);
        }
        if !format.is_empty() && !COLUMN_FORMATS.contains(&format) {
            let why = format!("must be one of {}", COLUMN_FORMATS.join(","));
            errors.invalid(column.path("format"), &format.into(), &why);
        }
        let (path, text) = (column.path("JSONPath"), column.text("jsonPath"));
        if text.is_empty() {
            errors.required(path, "");
        } else {
            is_simple_path(&path, text, errors);
        }
    }
}

/// Returns true if a text is a path of field names.
fn is_simple_path(path: &super::super::Path, text: &str, errors: &mut Errors) -> bool {
    let is_good = text.starts_with('.');
    if !is_good {
        errors.invalid(path, &text.into(), "must be a simple json path starting with .");
    }
    is_good
}

pub(super) fn subresources(at: &At<'_>, errors: &mut Errors) {
    let Some(scale) = at.present("scale") else { return };
    let path = |name: &str| at.path(&format!("scale.{name}"));
    for (name, below) in [("specReplicasPath", ".spec."), ("statusReplicasPath", ".status.")] {
        let text = scale.text(name);
        if text.is_empty() {
            errors.required(path(name), "");
        } else if is_simple_path(&path(name), text, errors) && !text.starts_with(below) {
            let why = format!("should be a json path under {}", below.trim_end_matches('.'));
            errors.invalid(path(name), &text.into(), &why);
        }
    }
    let (name, text) = ("labelSelectorPath", scale.text("labelSelectorPath"));
    let is_below = [".spec.", ".status."].iter().any(|start| text.starts_with(start));
    if !text.is_empty() && is_simple_path(&path(name), text, errors) && !is_below {
        errors.invalid(path(name), &text.into(), "should be a json path under either .spec or .status");
    }
}

/// Fields that objects can be selected by, of objects that are like `schema`.
pub(super) fn selectable(at: &At<'_>, schema: &Value, errors: &mut Errors) {
    let mut known = HashSet::new();
    for field in at.items("selectableFields") {
        let (path, text) = (field.path("jsonPath"), field.text("jsonPath"));
        if text.is_empty() {
            errors.required(path, "");
            continue;
        }
        let found = match target(text, schema) {
            Ok(found) => found,
            Err(why) => {
                errors.invalid(path, &text.into(), &format!("is an invalid path: {why}"));
                continue;
            }
        };
        if text.split('.').nth(1) == Some("metadata") {
            errors.invalid(&path, &text.into(), "must not point to fields in metadata");
        }
        if !matches!(found.get("type").and_then(Value::as_str), Some("string" | "boolean" | "integer")) {
            let why = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.";
            errors.invalid(&path, &text.into(), why);
        }
        if !known.insert(text) {
            errors.duplicate(&path, &text.into());
        }
    }
    if known.len() > MAX_SELECTABLE {
        let error = FieldError::too_many(at.path("selectableFields"), known.len(), MAX_SELECTABLE);
        errors.push(error.tolerated(OLD_SELECTABLE));
    }
}

/// Returns the schema that a path of names leads to.
fn target<'v>(path: &str, schema: &'v Value) -> Result<&'v Value, String> {
    let missing = || "does not refer to a valid field".to_owned();
    let mut at = schema;
    let mut rest = path;
    while !rest.is_empty() {
        if rest.starts_with('[') {
            return Err("array notation is not allowed".to_owned());
        }
        let name = rest.strip_prefix('.').ok_or_else(|| {
            let found = rest.split(['.', '[', ']']).next().filter(|word| !word.is_empty()).unwrap_or(&rest[..1]);
            format!("expected [ or . but got: {found}")
        })?;
        let end = name.find(['.', '[', ']']).unwrap_or(name.len());
        if name.is_empty() {
            return Err("unexpected end of JSON path".to_owned());
        }
        let step = &name[..end];
        at = match at.get("properties").filter(|all| !super::internal::is_empty(all)) {
            Some(properties) => properties.get(step).ok_or_else(missing)?,
            None => at.get("additionalProperties").filter(|entries| entries.is_object()).ok_or_else(missing)?,
        };
        rest = &name[end..];
    }
    Ok(at)
}
