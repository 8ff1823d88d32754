//! Strict decoding: converts the bytes of a request to a canonical tree, in one walk along the schema.
//!
//! The walk finds unknown and duplicate fields and wrong types, renders quantities and times canonically, drops fields
//! that Go leaves out when empty and adds those it always writes. The same walk cleans trees after a patch. The table
//! decides everything per field: a pointer field keeps zero values, other `omitempty` fields lose them, an object that
//! is not a pointer is always present. Kinds made at run time therefore mark every field as a pointer.

mod errors;
pub(crate) mod kept_number;
mod operations;
mod options;
mod scalar;
mod sent;
mod stored;
pub mod structural;
mod syntax;
#[cfg(test)]
mod tests;
mod tree;
#[cfg(test)]
mod value_tests;
mod walk;
mod yaml;

use portolan_types::{GroupVersionKind, GroupVersionResource, Status};
use serde::de::DeserializeSeed as _;
use serde_json::Value;

use crate::protobuf;
use errors::Fault;
pub use errors::{
    INNER_VERSION, missing_kind, missing_version, other_type, package, patched as unfit_patch, stated_type,
    stated_type_meta, strict_text,
};
use operations::Operations;
pub use options::delete_options;
use portolan_kinds::{FieldKind, Kind, KindTable, TypeId, custom::Content};
pub use sent::{Emptiness, restore_empty};
pub use stored::settle;
use syntax::Huge;
pub use syntax::json_error;
use tree::{PLAIN, Tree};
pub use walk::zero;
use walk::{Note, Walk};

/// Form of a request body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MediaType {
    /// `application/json`.
    Json,
    /// `application/yaml`; also apply patches, of which JSON is the usual form.
    Yaml,
    /// `application/vnd.kubernetes.protobuf`.
    Protobuf,
}

/// Treatment of unknown and duplicate fields (`fieldValidation=`). They are dropped in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FieldValidation {
    /// Nothing.
    Ignore,
    /// A warning for each.
    #[default]
    Warn,
    /// The request fails.
    Strict,
}

impl FieldValidation {
    /// Returns the value of the query parameter; absent or empty is `Warn`.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "Ignore" => Some(Self::Ignore),
            "" | "Warn" => Some(Self::Warn),
            "Strict" => Some(Self::Strict),
            _ => None,
        }
    }
}

/// Decoded object with its warnings.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    /// The canonical tree, with `apiVersion` and `kind`.
    pub object: Value,
    /// Texts for `Warning` headers.
    pub warnings: Vec<String>,
}

/// Decodes the body of a create or an update of `kind`. `apiVersion` and `kind` may be missing in it.
///
/// # Errors
/// 400 for anything that is not an object of this kind, or, under `Strict`, has unknown or duplicate fields.
pub fn decode(
    table: &KindTable,
    kind: &Kind,
    media: MediaType,
    body: &[u8],
    validation: FieldValidation,
) -> Result<Decoded, Status> {
    let walk = Walk::new(table);
    let root = FieldKind::Message(kind.decoded_as);
    let walked = match media {
        MediaType::Json => walk_json(&walk, &root, body).map(|object| (object, false)),
        MediaType::Yaml => walk_yaml(&walk, &root, body),
        MediaType::Protobuf => return from_protobuf(table, kind, body),
    };
    let (object, repeats) = match walked {
        Ok((object, repeats)) => (object.unwrap_or_else(|| zero(table, &root)), repeats),
        Err(syntax) => {
            // A body that cannot be parsed at all is not read a second time.
            let told = || walk.fault().map(|first| reported_fault(table, &root, media, body).unwrap_or(first));
            let fault = broken_json(media, body).map(Fault::Syntax).or_else(told);
            return Err(errors::explain(table, kind, media, body, &fault.unwrap_or(Fault::Syntax(syntax))));
        }
    };
    let mut object = check_type(table, kind, object, (media, body))?;
    let mut notes = walk.notes();
    let unhandled = |why: String| errors::unhandled(&kind.gvk.kind, &kind.gvk.version, kind, &why);
    kept_number::settle_number(kind, &mut object).map_err(unhandled)?;
    notes.extend(unknown(kind, &mut object, structural::clean).map_err(unhandled)?);
    if validation == FieldValidation::Ignore || (notes.is_empty() && !repeats) {
        return Ok(Decoded { object, warnings: Vec::new() });
    }
    let repeated = if repeats { repeated_in_yaml(body) } else { Vec::new() };
    let notes = FieldMessages { repeated, others: notes.iter().map(ToString::to_string).collect() };
    if notes.is_empty() {
        return Ok(Decoded { object, warnings: Vec::new() });
    }
    if validation == FieldValidation::Warn {
        Ok(Decoded { object, warnings: notes.repeated.into_iter().chain(notes.others).collect() })
    } else {
        Err(errors::strict(kind, &notes.into_errors()))
    }
}

/// Decodes the body of a write to a subresource of `kind`, which takes objects of another type, such as a scale.
///
/// # Errors
/// Fails as [`decode`] does; 500 when there is no such type.
pub fn decode_as(
    table: &KindTable,
    kind: &Kind,
    taken: GroupVersionKind,
    media: MediaType,
    body: &[u8],
    validation: FieldValidation,
) -> Result<Decoded, Status> {
    decode(table, &taken_by(table, kind, taken)?, media, body, validation)
}

/// Returns the kind that a subresource of `kind` accepts.
///
/// # Errors
/// 500 when there is no such type.
pub fn taken_by(table: &KindTable, kind: &Kind, taken: GroupVersionKind) -> Result<Kind, Status> {
    // An object of a version that is not served any more is read as `v1`.
    let of = |version: &str| table.object_type(&taken.group, version, &taken.kind);
    let schema =
        of(&taken.version).or_else(|| of("v1")).ok_or_else(|| Status::internal(format!("no type {}", taken.kind)))?;
    let GroupVersionKind { group, version, .. } = taken.clone();
    let storage = GroupVersionResource { group, version, resource: kind.resource.clone() };
    Ok(Kind { gvk: taken, schema, decoded_as: schema, content: None, storage, ..kind.clone() })
}

/// Removes the fields that the definition of a custom kind does not declare, and reports them after the duplicates.
///
/// # Errors
/// Invalid metadata in an embedded object.
fn unknown(
    kind: &Kind,
    object: &mut Value,
    clean: fn(&Content, &mut Value) -> Result<Vec<String>, String>,
) -> Result<Vec<Note>, String> {
    let Some(content) = &kind.content else { return Ok(Vec::new()) };
    Ok(clean(content, object)?.into_iter().map(Note::unknown).collect())
}

/// Unknown and duplicate fields, as the API reports them.
struct FieldMessages {
    /// Keys that are repeated in YAML. Go converts YAML to JSON first, and words their errors differently.
    repeated: Vec<String>,
    others: Vec<String>,
}

impl FieldMessages {
    /// Returns true if there are no messages. Keys such as 1 and "1" are equal in JSON, but not repeated in YAML to Go.
    fn is_empty(&self) -> bool {
        self.repeated.is_empty() && self.others.is_empty()
    }

    fn into_errors(self) -> Vec<String> {
        let lines = self.repeated.join("\n  ");
        let repeated = (!lines.is_empty()).then(|| format!("yaml: unmarshal errors:\n  {lines}"));
        repeated.into_iter().chain(self.others).collect()
    }
}

/// Returns Go's syntax error of a JSON body.
fn broken_json(media: MediaType, body: &[u8]) -> Option<String> {
    if media == MediaType::Json { syntax::json_error(body) } else { None }
}

/// Returns the fault of a body that Go reports. It need not be the first one: a type with its own `UnmarshalJSON` ends
/// the decoder at once, while the first of all other faults is kept for the end.
fn reported_fault(table: &KindTable, root: &FieldKind, media: MediaType, body: &[u8]) -> Option<Fault> {
    let walk = Walk::patient(table);
    match media {
        MediaType::Json => drop(walk_json(&walk, root, body)),
        MediaType::Yaml => drop(walk_yaml(&walk, root, body)),
        MediaType::Protobuf => {}
    }
    walk.fault()
}

/// Returns the messages for repeated keys in YAML. JSON is YAML.
pub fn repeated_in_yaml(body: &[u8]) -> Vec<String> {
    if yaml::read(body).is_ok_and(|read| !read.repeats) {
        return Vec::new();
    }
    let told = yaml::repeated(body);
    // Some JSON that is parsed as YAML does not parse as JSON.
    if told.is_empty() { repeated_keys(body) } else { told }
}

/// Decodes a body without schema: a tree bounded in depth, in which the last of duplicate keys wins.
///
/// # Errors
/// Fails if it is not JSON or YAML: the error in Go's words.
pub fn decode_any(media: MediaType, body: &[u8]) -> Result<Value, String> {
    match media {
        MediaType::Json => {
            let respelled = syntax::respelled(body, Huge::Kept);
            read_json(respelled.as_deref().unwrap_or(body), |json| PLAIN.deserialize(json))
        }
        MediaType::Yaml => yaml::read(body).map(|read| read.tree),
        MediaType::Protobuf => protobuf::decode(body, KindTable::builtin()).map_err(|error| error.to_string()),
    }
}

/// Returns the messages for repeated keys in JSON.
pub fn repeated_keys(body: &[u8]) -> Vec<String> {
    let walk = Walk::new(KindTable::builtin());
    drop(read_json(body, |json| Tree::of(&walk).deserialize(json)));
    walk.notes().iter().map(ToString::to_string).collect()
}

/// Returns the messages for unknown and repeated fields of the operations of a JSON patch.
pub fn unclear_operations(body: &[u8]) -> Vec<String> {
    let walk = Walk::new(KindTable::builtin());
    drop(read_json(body, |json| Operations::of(&walk).deserialize(json)));
    walk.notes().iter().map(ToString::to_string).collect()
}

/// Runs the same walk on a tree, such as the result of a patch. Returns the messages for unknown fields (none under
/// `Ignore`).
///
/// # Errors
/// Wrong types, and unknown fields under `Strict`. The object is lost then.
pub fn prune_canonical(
    table: &KindTable,
    kind: &Kind,
    object: &mut Value,
    validation: FieldValidation,
) -> Result<Vec<String>, Unfit> {
    prune_patched(table, kind, object, validation, Vec::new())
}

/// Brings the result of an apply into the canonical form of Go's converter from maps.
///
/// # Errors
/// 500, as in kube-apiserver, when values do not fit: the `applied` ones have been checked before.
pub fn make_applied_canonical(
    table: &KindTable,
    kind: &Kind,
    applied: &Value,
    merged: &mut Value,
) -> Result<(), Status> {
    let walked = pruned(&Walk::converting(table), kind, merged, FieldValidation::Ignore, Vec::new());
    walked.map(drop).map_err(|unfit| errors::applied(kind, applied, &unfit))
}

/// Prunes like [`prune_patched`], with the rules of Go's converter from maps, which strategic merge patches use.
///
/// # Errors
/// Fails as [`prune_patched`] does.
pub fn prune_merged(
    table: &KindTable,
    kind: &Kind,
    object: &mut Value,
    validation: FieldValidation,
    repeated: Vec<String>,
) -> Result<Vec<String>, Unfit> {
    pruned(&Walk::converting(table), kind, object, validation, repeated)
}

/// Prunes like [`prune_canonical`], and puts `repeated`, the messages for repeated keys of the patch, first.
///
/// # Errors
/// Fails as [`prune_canonical`] does.
pub fn prune_patched(
    table: &KindTable,
    kind: &Kind,
    object: &mut Value,
    validation: FieldValidation,
    repeated: Vec<String>,
) -> Result<Vec<String>, Unfit> {
    pruned(&Walk::new(table), kind, object, validation, repeated)
}

fn pruned(
    walk: &Walk<'_>,
    kind: &Kind,
    object: &mut Value,
    validation: FieldValidation,
    repeated: Vec<String>,
) -> Result<Vec<String>, Unfit> {
    let root = FieldKind::Message(kind.decoded_as);
    let walked = walk.seed(&root).deserialize(object.take());
    let clean = walked.map_err(|error| Unfit(walk.fault().unwrap_or(Fault::Value(error.to_string()))))?;
    *object = clean.unwrap_or_else(|| zero(walk.table(), &root));
    kept_number::settle_number(kind, object).map_err(|why| Unfit(Fault::Value(why)))?;
    // Custom resources are patched in no other way that goes through the converter.
    let clean = if walk.converts() { structural::clean_applied } else { structural::clean };
    let undeclared = unknown(kind, object, clean).map_err(|why| Unfit(Fault::Value(why)))?;
    if validation == FieldValidation::Ignore {
        return Ok(Vec::new());
    }
    let notes = walk.notes();
    let told = notes.iter().chain(&undeclared).map(ToString::to_string);
    let notes: Vec<String> = repeated.into_iter().chain(told).collect();
    if validation == FieldValidation::Strict && !notes.is_empty() {
        Err(Unfit(Fault::Value(errors::strict_text(&notes))))
    } else {
        Ok(notes)
    }
}

/// Runs the same walk on a part of an object that has a type of its own. Returns the paths of unknown fields.
///
/// # Errors
/// Values of a wrong type.
pub fn canonical(table: &KindTable, schema: TypeId, value: Value) -> Result<(Value, Vec<String>), Unfit> {
    let walk = Walk::new(table);
    let root = FieldKind::Message(schema);
    let walked = walk.seed(&root).deserialize(value);
    let clean = walked.map_err(|error| Unfit(walk.fault().unwrap_or(Fault::Value(error.to_string()))))?;
    let names = walk.notes().into_iter().map(Note::into_path).collect();
    Ok((clean.unwrap_or_else(|| zero(table, &root)), names))
}

/// Returns the fault that Go's decoder reports for a tree that does not fit, if it is not the first one: see
/// `reported_fault`.
pub fn error_of_tree(table: &KindTable, kind: &Kind, object: Value) -> Option<String> {
    let (walk, root) = (Walk::patient(table), FieldKind::Message(kind.decoded_as));
    drop(walk.seed(&root).deserialize(object));
    walk.fault().map(|fault| fault.to_string())
}

/// Reason that a tree is not an object of its kind.
#[derive(Debug, PartialEq)]
pub struct Unfit(Fault);

impl Unfit {
    /// Returns the error of Go's JSON decoder.
    pub fn decoded(&self) -> String {
        self.0.to_string()
    }

    /// Returns the error of Go's converter from maps, which strategic merge patches go through.
    pub fn converted(&self) -> String {
        self.0.converted()
    }
}

/// Protobuf carries no names, so there is nothing to warn of; the walk only brings the values into canonical form.
fn from_protobuf(table: &KindTable, kind: &Kind, body: &[u8]) -> Result<Decoded, Status> {
    let also = Some((&kind.gvk, kind.decoded_as));
    let object = protobuf::decode_also(body, table, also).map_err(|error| errors::protobuf(kind, body, &error))?;
    let object = check_type(table, kind, object, (MediaType::Protobuf, body))?;
    let walk = Walk::new(table);
    let root = FieldKind::Message(kind.decoded_as);
    let walked = walk.seed(&root).deserialize(object);
    let fail = |error: serde_json::Error| {
        let fault = walk.fault().map_or(error.to_string(), |fault| fault.to_string());
        errors::unhandled(&kind.gvk.kind, &kind.gvk.version, kind, &fault)
    };
    let mut object = walked.map_err(fail)?.unwrap_or_else(|| zero(table, &root));
    kept_number::settle_number(kind, &mut object)
        .map_err(|why| errors::unhandled(&kind.gvk.kind, &kind.gvk.version, kind, &why))?;
    Ok(Decoded { object, warnings: Vec::new() })
}

/// Fills in a missing type and refuses one that is not expected.
fn check_type(
    table: &KindTable,
    kind: &Kind,
    mut object: Value,
    (media, body): (MediaType, &[u8]),
) -> Result<Value, Status> {
    let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default();
    let (version, name) = (text("apiVersion"), text("kind"));
    let expected = kind.group_version().to_string();
    if !kind.is_typed() {
        // Custom resources must state apiVersion and kind; their validation checks the values.
        return match (version == expected, name.is_empty()) {
            (_, true) => Err(errors::no_kind(kind, body)),
            (true, _) => Ok(object),
            (false, _) => Err(errors::wrong_version(kind, version)),
        };
    }
    let same = (version.is_empty() || version == expected) && (name.is_empty() || *name == *kind.gvk.kind);
    if !same {
        let read = decode_any(media, body).unwrap_or_default();
        return Err(errors::wrong_type(table, kind, (version, name), &read, body));
    }
    if version.is_empty() {
        object["apiVersion"] = expected.into();
    }
    if object.get("kind").is_none() {
        object["kind"] = (*kind.gvk.kind).into();
    }
    Ok(object)
}

fn read_json<T>(
    body: &[u8],
    read: impl FnOnce(&mut serde_json::Deserializer<serde_json::de::SliceRead<'_>>) -> serde_json::Result<T>,
) -> Result<T, String> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let value = read(&mut json).and_then(|value| json.end().map(|()| value));
    value.map_err(|error| {
        let huge = || Some(cannot_hold(syntax::huge_number(body)?));
        syntax::json_error(body).or_else(huge).unwrap_or_else(|| error.to_string())
    })
}

/// Returns Go's error for a number that no float holds, at an unknown place.
fn cannot_hold(number: &str) -> String {
    format!("json: cannot unmarshal number {number} into Go value of type float64")
}

/// Walks JSON; of a number that does not fit its own spelling is reported.
fn walk_json(walk: &Walk<'_>, root: &FieldKind, body: &[u8]) -> Result<Option<Value>, String> {
    let read = |body: &[u8]| {
        read_json(body, |json| {
            let walked = walk.spelled().seed(root).deserialize(json);
            walked.inspect_err(|error| walk.spell(syntax::number_before(body, error.line(), error.column())))
        })
    };
    let first = read(body);
    let Some(respelled) = first.is_err().then(|| syntax::respelled(body, Huge::AsTexts)).flatten() else {
        return first;
    };
    if let Some(broken) = syntax::json_error(body) {
        return Err(broken);
    }
    walk.begin_respelled();
    let walked = read(&respelled)?;
    // A value of unknown type cannot be kept.
    match walked.as_ref().and_then(huge_text) {
        None => Ok(walked),
        Some(number) => {
            walk.stop_at(cannot_hold(number));
            Err(cannot_hold(number))
        }
    }
}

/// Returns a number that no float holds, which a tree carries as text.
fn huge_text(value: &Value) -> Option<&str> {
    match value {
        Value::String(text) => text.strip_prefix(syntax::HUGE),
        Value::Array(list) => list.iter().find_map(huge_text),
        Value::Object(map) => map.values().find_map(huge_text),
        Value::Null | Value::Bool(_) | Value::Number(_) => None,
    }
}

/// Walks the JSON that Go makes of YAML. Also returns whether a key was repeated.
fn walk_yaml(walk: &Walk<'_>, root: &FieldKind, body: &[u8]) -> Result<(Option<Value>, bool), String> {
    let yaml::ParsedYaml { tree, repeats } = yaml::read(body)?;
    let walked = walk.seed(root).deserialize(tree).map_err(|error| error.to_string())?;
    Ok((walked, repeats))
}

/// Nesting at the limit of readable JSON.
const MAX_READ_DEPTH: usize = 128;
