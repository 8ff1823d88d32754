//! ConfigMaps, Secrets, namespaces, events.

use portolan_types::object;
use serde_json::Value;

use super::{Errors, FieldError, metadata, names, view::At};

/// Most bytes in the values of a ConfigMap or Secret.
const MAX_BYTES: usize = 1024 * 1024;

fn keys(object: &At<'_>, name: &str, errors: &mut Errors) {
    for (key, entry) in object.entries(name) {
        names::config_key(key).iter().for_each(|detail| errors.invalid(&entry.path, &key.into(), detail));
    }
}

/// The number of bytes that base64 text stands for.
fn decoded_len(value: &Value) -> usize {
    let text = value.as_str().unwrap_or_default();
    let padding = text.bytes().rev().take_while(|b| *b == b'=').count();
    (text.len() / 4 * 3).saturating_sub(padding)
}

pub(super) fn config_map(object: &At<'_>, errors: &mut Errors) {
    keys(object, "data", errors);
    let binary = object.get("binaryData");
    let mut total = 0;
    for (key, entry) in object.entries("data") {
        if binary.get(key).is_some() {
            errors.invalid(&entry.path, &key.into(), "duplicate of key present in binaryData");
        }
        total += entry.as_text().len();
    }
    keys(object, "binaryData", errors);
    total += object.entries("binaryData").map(|(_, entry)| decoded_len(entry.value)).sum::<usize>();
    if total > MAX_BYTES {
        errors.push(FieldError::too_long("[]", MAX_BYTES));
    }
}

const FIXED: &str = "field is immutable when `immutable` is set";

/// What was declared immutable stays so.
pub(super) fn fixed(old: &At<'_>, new: &At<'_>, names: &[&str], errors: &mut Errors) {
    if !old.flag("immutable") {
        return;
    }
    if !new.flag("immutable") {
        errors.forbidden("immutable", FIXED);
    }
    for name in names {
        if old.get(name) != new.get(name) {
            errors.forbidden(name, FIXED);
        }
    }
}

pub(super) fn secret(object: &At<'_>, errors: &mut Errors) {
    keys(object, "data", errors);
    let data = object.child("data");
    let total: usize = object.entries("data").map(|(_, entry)| decoded_len(entry.value)).sum();
    if total > MAX_BYTES {
        errors.push(FieldError::too_long("data", MAX_BYTES));
    }
    let mut needs = |key: &str| {
        if !data.has(key) {
            errors.required(data.path.key(key), "");
        }
    };
    match object.text("type") {
        "kubernetes.io/tls" => ["tls.crt", "tls.key"].into_iter().for_each(needs),
        "kubernetes.io/ssh-auth" => needs("ssh-privatekey"),
        "kubernetes.io/basic-auth" if !data.has("username") && !data.has("password") => {
            ["username", "password"].into_iter().for_each(needs);
        }
        "kubernetes.io/dockercfg" => json_key(&data, ".dockercfg", errors),
        "kubernetes.io/dockerconfigjson" => json_key(&data, ".dockerconfigjson", errors),
        "kubernetes.io/service-account-token" => {
            let key = "kubernetes.io/service-account.name";
            if object::annotation(object.value, key).is_none_or(str::is_empty) {
                errors.required(format!("metadata.annotations[{key}]"), "");
            }
        }
        _ => {}
    }
}

/// A key that must hold a JSON object.
fn json_key(data: &At<'_>, key: &str, errors: &mut Errors) {
    use base64::Engine as _;
    if !data.has(key) {
        errors.required(data.path.key(key), "");
        return;
    }
    let bytes = base64::engine::general_purpose::STANDARD.decode(data.text(key)).unwrap_or_default();
    if let Err(error) = serde_json::from_slice::<serde_json::Map<String, Value>>(&bytes) {
        errors.invalid(data.path.key(key), &"<secret contents redacted>".into(), &error.to_string());
    }
}

pub(super) fn secret_update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    new.immutable(old, "type", errors);
    fixed(old, new, &["data"], errors);
}

pub(super) fn namespace(object: &At<'_>, errors: &mut Errors) {
    let path = object.child("spec").path("finalizers");
    for name in object.child("spec").items("finalizers") {
        let details = names::qualified_name(name.as_text());
        details.iter().for_each(|detail| errors.invalid(&path, name.value, detail));
        if let Some(detail) = metadata::short_finalizer(name.as_text()) {
            errors.invalid(&path, name.value, detail);
        }
    }
}

pub(super) fn event(object: &At<'_>, errors: &mut Errors) {
    let about = object.child("involvedObject");
    let namespace = object.get("metadata").get("namespace").and_then(Value::as_str).unwrap_or_default();
    let other = about.text("namespace");
    let fits = match other {
        // What is at cluster scope has its events in the default namespace.
        "" => namespace.is_empty() || namespace == "default",
        other => other == namespace,
    };
    // Events of `events.k8s.io` call it `regarding`; they are checked after conversion to the stored form.
    if !about.is_missing() && !fits {
        errors.invalid(about.path("namespace"), &other.into(), "does not match event.namespace");
    }
}
