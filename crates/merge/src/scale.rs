//! The scale subresource (autoscaling/v1 `Scale`).

use portolan_types::{
    GroupKind, Reason, Status, StatusCause,
    object::{self, child_mut},
};
use serde_json::{Map, Value, json};

use crate::preconditions::uid_conflict;
use portolan_kinds::Kind;

/// Returns the scale of an object.
///
/// # Errors
/// 404 for kinds without one.
pub fn scale_of(kind: &Kind, object: &Value) -> Result<Value, Status> {
    check_scalable(kind, object)?;
    let metadata = object::metadata(object);
    let kept = ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"];
    let kept: Map<String, Value> =
        kept.iter().filter_map(|key| Some(((*key).to_owned(), metadata.get(*key)?.clone()))).collect();
    let numbers = Numbers::of(kind, object).map_err(|why| Status::new(Reason::Unknown, why))?;
    let mut spec = Map::new();
    if let Some(count) = numbers.wanted.filter(|count| *count != 0) {
        spec.insert("replicas".into(), count.into());
    }
    let mut status = json!({"replicas": numbers.there});
    if !numbers.selector.is_empty() {
        status["selector"] = numbers.selector.into();
    }
    Ok(json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1",
        "metadata": kept, "spec": spec, "status": status,
    }))
}

/// Placeholder in the scale of a custom resource without a number of replicas, while it is written.
pub(crate) const NO_REPLICAS: i64 = -2_147_483_648;

/// Returns the scale of an object for a write. A custom object without a wanted number has [`NO_REPLICAS`], which the
/// write has to replace.
///
/// # Errors
/// Fails as [`scale_of`] does.
pub fn live_scale(kind: &Kind, object: &Value) -> Result<Value, Status> {
    let mut scale = scale_of(kind, object)?;
    let paths = kind.content.as_ref().and_then(|content| content.scale());
    if paths.is_some_and(|paths| paths.spec.find(object).is_ok_and(|found| found.is_none())) {
        scale["spec"]["replicas"] = NO_REPLICAS.into();
    }
    Ok(scale)
}

/// Numbers of a scale.
struct Numbers {
    wanted: Option<i64>,
    there: i64,
    selector: String,
}

impl Numbers {
    /// Reads the numbers from the fields that the kind, or its definition, names.
    fn of(kind: &Kind, object: &Value) -> Result<Self, String> {
        let Some(paths) = kind.content.as_ref().and_then(|content| content.scale()) else {
            let count = |pointer| object.pointer(pointer).and_then(Value::as_i64);
            return Ok(Self {
                wanted: count("/spec/replicas"),
                there: count("/status/replicas").unwrap_or(0),
                selector: selector_text(object.pointer("/spec/selector")),
            });
        };
        let selector = paths.selector.as_ref().map(|path| path.text(object)).transpose()?.flatten();
        Ok(Self {
            wanted: paths.spec.integer(object)?,
            there: paths.status.integer(object)?.unwrap_or(0),
            selector: selector.unwrap_or_default().to_owned(),
        })
    }
}

/// Returns the scale of an object for a read. A custom object must have a wanted number.
///
/// # Errors
/// 404 for kinds without a scale; 500, as in kube-apiserver, for objects without a wanted number.
pub fn read_scale(kind: &Kind, object: &Value) -> Result<Value, Status> {
    let scale = scale_of(kind, object)?;
    match kind.content.as_ref().and_then(|content| content.scale()) {
        Some(paths) if paths.spec.find(object).is_ok_and(|found| found.is_none()) => {
            Err(Status::internal(format!("the spec replicas field {:?} does not exist", paths.spec.written())))
        }
        _ => Ok(scale),
    }
}

/// Returns the object changed as a scale requires. The caller continues as for any update.
///
/// # Errors
/// 404 for kinds without scale, 409 for another uid or resourceVersion, 400 for another name, 422 when it is invalid.
pub fn with_scale(kind: &Kind, old: &Value, scale: Value) -> Result<Value, Status> {
    check_scalable(kind, old)?;
    for (key, what) in [("name", "name"), ("namespace", "namespace")] {
        let (own, asked) = (object::meta_text(old, key), object::meta_text(&scale, key));
        if !asked.is_empty() && own != asked {
            let text = match what {
                "name" => format!("the name of the object ({asked}) does not match the name on the URL ({own})"),
                _ => "the namespace of the provided object does not match the namespace sent on the request".into(),
            };
            return Err(Status::bad_request(text));
        }
    }
    let (uid, asked) = (object::meta_text(old, "uid"), object::meta_text(&scale, "uid"));
    if !asked.is_empty() && uid != asked {
        return Err(uid_conflict(kind, old, asked));
    }
    let (version, asked) = (object::meta_text(old, "resourceVersion"), object::meta_text(&scale, "resourceVersion"));
    let is_number = asked.bytes().all(|byte| byte.is_ascii_digit());
    if !matches!(asked, "" | "0") && is_number && !version.is_empty() && version != asked {
        return Err(Status::modified(&kind.group_resource(), object::name(old)));
    }
    let own = kind.content.as_ref().and_then(|content| content.scale());
    if let Some(paths) = own.filter(|_| scale.pointer("/spec/replicas").and_then(Value::as_i64) == Some(NO_REPLICAS)) {
        return Err(Status::bad_request(format!("the spec replicas field {:?} cannot be empty", paths.spec.written())));
    }
    let replicas = replicas_of(&scale, own.is_some()).map_err(|message| {
        // A custom resource is checked itself, not its scale.
        let (kind, field) = match own {
            Some(paths) => (kind.called(), paths.spec.written().to_owned()),
            None => (GroupKind { group: "autoscaling".into(), kind: "Scale".into() }, "spec.replicas".to_owned()),
        };
        let cause = StatusCause { reason: "FieldValueInvalid".into(), message, field };
        Status::invalid(&kind, object::name(old), vec![cause])
    })?;
    let mut new = old.clone();
    // A malformed revision is reported when the object is written.
    if !is_number {
        object::metadata_mut(&mut new).insert("resourceVersion".into(), asked.into());
    }
    put_replicas(kind, &mut new, replicas.into());
    Ok(new)
}

/// Writes the number of replicas to the field that the kind, or its definition, names.
pub(crate) fn put_replicas(kind: &Kind, object: &mut Value, replicas: Value) {
    let names = replicas_path(kind);
    let (Some((last, way)), Some(mut fields)) = (names.split_last(), object.as_object_mut()) else { return };
    for name in way {
        fields = child_mut(fields, name);
    }
    fields.insert((*last).to_owned(), replicas);
}

/// Returns the path of the desired replicas in objects of the kind.
pub(crate) fn replicas_path(kind: &Kind) -> Vec<&str> {
    let path = kind.content.as_ref().and_then(|content| content.scale()).map(|paths| &paths.spec);
    path.map_or_else(|| vec!["spec", "replicas"], |path| path.names().collect())
}

/// Returns the replicas that a scale asks for; an absent number is 0. Other text must never be read as a number, least
/// of all as 0.
fn replicas_of(scale: &Value, is_custom: bool) -> Result<i32, String> {
    if !scale.is_object() || scale.get("spec").is_some_and(|spec| !spec.is_object() && !spec.is_null()) {
        return Err("Invalid value: the patched scale is no scale".into());
    }
    let asked = scale.pointer("/spec/replicas").filter(|asked| !asked.is_null());
    let Some(asked) = asked else { return Ok(0) };
    match asked.as_i64().and_then(|asked| i32::try_from(asked).ok()) {
        Some(count) if count >= 0 => Ok(count),
        Some(count) if is_custom => Err(format!("Invalid value: {count}: should be a non-negative integer")),
        Some(count) => Err(format!("Invalid value: {count}: must be greater than or equal to 0")),
        None => Err(format!("Invalid value: {asked}: must be an integer of 32 bits")),
    }
}

fn check_scalable(kind: &Kind, object: &Value) -> Result<(), Status> {
    match kind.subresource("scale") {
        Some(_) => Ok(()),
        None => Err(Status::not_found(&kind.group_resource(), object::name(object))),
    }
}

/// Returns a selector as text: either a label selector or the plain map of a replication controller.
fn selector_text(selector: Option<&Value>) -> String {
    let Some(selector) = selector.and_then(Value::as_object) else { return String::new() };
    let structured = selector.contains_key("matchLabels") || selector.contains_key("matchExpressions");
    let pairs = if structured { selector.get("matchLabels").and_then(Value::as_object) } else { Some(selector) };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut terms: Vec<(String, String)> = Vec::new();
    for (key, value) in pairs.into_iter().flatten() {
        terms.push((key.clone(), format!("{key}={}", text(value))));
    }
    for expression in selector.get("matchExpressions").and_then(Value::as_array).into_iter().flatten() {
        let key = expression.get("key").map(text).unwrap_or_default();
        let mut values: Vec<String> =
            expression.get("values").and_then(Value::as_array).into_iter().flatten().map(text).collect();
        values.sort();
        let values = values.join(",");
        let term = match expression.get("operator").and_then(Value::as_str) {
            Some("In") => format!("{key} in ({values})"),
            Some("NotIn") => format!("{key} notin ({values})"),
            Some("Exists") => key.clone(),
            Some("DoesNotExist") => format!("!{key}"),
            _ => continue,
        };
        terms.push((key, term));
    }
    // For one key, labels come before expressions.
    terms.sort_by(|(one, _), (other, _)| one.cmp(other));
    let terms: Vec<String> = terms.into_iter().map(|(_, term)| term).collect();
    terms.join(",")
}
