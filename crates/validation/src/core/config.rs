//! Namespaces, config maps and secrets.

use portolan_types::object;
use serde_json::Value;

use super::super::{
    Errors, FieldError, Path, metadata, names,
    view::{At, is_same},
};
use portolan_codec::decode::json_error;

/// Most bytes in the values of a ConfigMap or Secret.
const MAX_BYTES: usize = 1024 * 1024;

/// Returns the number of bytes that a base64 text decodes to.
fn decoded_len(value: &Value) -> usize {
    let text = value.as_str().unwrap_or_default();
    let padding = text.bytes().rev().take_while(|b| *b == b'=').count();
    (text.len() / 4 * 3).saturating_sub(padding)
}

pub(super) fn config_map(object: &At<'_>, errors: &mut Errors) {
    let binary = object.child("binaryData");
    let mut total = 0;
    for (key, entry) in object.entries("data") {
        errors.invalid_each(&entry.path, &key.into(), names::config_key(key));
        if binary.has(key) {
            errors.invalid(&entry.path, &key.into(), "duplicate of key present in binaryData");
        }
        total += entry.as_text().len();
    }
    for (key, entry) in object.entries("binaryData") {
        errors.invalid_each(&entry.path, &key.into(), names::config_key(key));
        total += decoded_len(entry.value);
    }
    if total > MAX_BYTES {
        errors.push(FieldError::too_long("[]", MAX_BYTES));
    }
}

const FIXED: &str = "field is immutable when `immutable` is set";

/// Requires that immutable ConfigMaps and Secrets do not change.
fn fixed(old: &At<'_>, new: &At<'_>, names: &[&str], errors: &mut Errors) {
    if !old.flag("immutable") {
        return;
    }
    if !new.flag("immutable") {
        errors.forbidden("immutable", FIXED);
    }
    for name in names.iter().filter(|name| !is_same(old.get(name), new.get(name))) {
        errors.forbidden(name, FIXED);
    }
}

pub(super) fn config_map_update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    fixed(old, new, &["data", "binaryData"], errors);
}

pub(super) fn secret(object: &At<'_>, errors: &mut Errors) {
    let data = object.child("data");
    let mut total = 0;
    for (key, entry) in object.entries("data") {
        errors.invalid_each(&entry.path, &key.into(), names::config_key(key));
        total += decoded_len(entry.value);
    }
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
        "kubernetes.io/ssh-auth" if data.text("ssh-privatekey").is_empty() => {
            errors.required(data.path.key("ssh-privatekey"), "");
        }
        "kubernetes.io/basic-auth" if !data.has("username") && !data.has("password") => {
            ["username", "password"].into_iter().for_each(&mut needs);
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

/// Checks a key that must hold a JSON object.
fn json_key(data: &At<'_>, key: &str, errors: &mut Errors) {
    if !data.has(key) {
        errors.required(data.path.key(key), "");
        return;
    }
    let bytes = portolan_gocompat::base64::read(data.text(key)).unwrap_or_default();
    if let Some(why) = go_json_error(&bytes) {
        errors.invalid(data.path.key(key), &"<secret contents redacted>".into(), &why);
    }
}

/// Returns Go's error for reading `bytes` as a JSON map; `None` for a map or null.
fn go_json_error(bytes: &[u8]) -> Option<String> {
    let kind = match (json_error(bytes), bytes.trim_ascii_start().first()) {
        (Some(why), _) => return Some(why),
        (None, Some(b'{' | b'n') | None) => return None,
        (None, Some(b'[')) => "array",
        (None, Some(b'"')) => "string",
        (None, Some(b't' | b'f')) => "bool",
        (None, Some(_)) => "number",
    };
    Some(format!("json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}"))
}

pub(super) fn secret_update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    new.immutable(old, "type", errors);
    fixed(old, new, &["data"], errors);
}

/// Finalizers of a namespace, which are blamed as a whole or one by one.
fn short_finalizers(list: &At<'_>, path: impl Fn(usize) -> Path, errors: &mut Errors) {
    for (index, name) in list.items("finalizers").enumerate() {
        errors.invalid_each(path(index), name.value, names::qualified_name(name.as_text()));
        if let Some(detail) = metadata::short_finalizer(name.as_text()) {
            errors.invalid(path(index), name.value, detail);
        }
    }
}

pub(super) fn namespace(object: &At<'_>, errors: &mut Errors) {
    let spec = object.child("spec");
    short_finalizers(&spec, |_| spec.path("finalizers"), errors);
}

pub(super) fn namespace_finalizers(object: &At<'_>, errors: &mut Errors) {
    let spec = object.child("spec");
    short_finalizers(&spec, |index| spec.path("finalizers").index(index), errors);
}

pub(super) fn namespace_status(object: &At<'_>, errors: &mut Errors) {
    let (wanted, why) = if object::is_deleting(object.value) {
        ("Terminating", "may only be 'Terminating' if `deletionTimestamp` is not empty")
    } else {
        ("Active", "may only be 'Active' if `deletionTimestamp` is empty")
    };
    let phase = object.child("status").text("phase");
    if phase != wanted {
        errors.invalid("status.Phase", &phase.into(), why);
    }
}
