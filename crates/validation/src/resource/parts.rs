//! Validation of parts that several kinds of the group share.

use std::collections::HashSet;

use serde_json::Value;

use portolan_cel::device_selector;

use super::super::{Errors, FieldError, core, names, view::At};

/// Longest names of pools, expressions, and parameters.
const MAX_POOL: usize = 253;
const MAX_EXPRESSION: usize = 10 * 1024;
pub(super) const MAX_RAW: usize = 10 * 1024;
/// Longest identifier of an attribute or a capacity.
const MAX_ID: usize = 32;

/// Checks each element of a list with a maximum size; a longer list gets only the error about its size.
pub(super) fn each(at: &At<'_>, name: &str, most: usize, rule: impl Fn(&At<'_>, &mut Errors), errors: &mut Errors) {
    let count = at.count(name);
    if count > most {
        return errors.push(FieldError::too_many(at.path(name), count, most));
    }
    at.items(name).for_each(|one| rule(&one, errors));
}

/// Checks the elements of a set: each must be valid, and none may have the key of an earlier one.
pub(super) fn set(
    at: &At<'_>,
    name: &str,
    most: usize,
    rule: impl Fn(&At<'_>, &mut Errors),
    key: impl Fn(&At<'_>) -> Value,
    errors: &mut Errors,
) {
    set_with_error(
        at,
        name,
        most,
        rule,
        (key, |at: &At<'_>, key: &Value| FieldError::duplicate(&at.path, key)),
        errors,
    );
}

/// Does the same as [`set`], with `twice` as the error for an element with the key of another.
pub(super) fn set_with_error(
    at: &At<'_>,
    name: &str,
    most: usize,
    rule: impl Fn(&At<'_>, &mut Errors),
    (key, twice): (impl Fn(&At<'_>) -> Value, impl Fn(&At<'_>, &Value) -> FieldError),
    errors: &mut Errors,
) {
    each(at, name, most, rule, errors);
    let mut taken = HashSet::new();
    for one in at.items(name).filter(|_| at.count(name) <= most) {
        let key = key(&one);
        if !taken.insert(key.to_string()) {
            errors.push(twice(&one, &key));
        }
    }
}

/// Elements are distinguished by their names.
pub(super) fn by_name(at: &At<'_>) -> Value {
    at.text("name").into()
}

/// Returns the element itself as its key.
pub(super) fn by_itself(at: &At<'_>) -> Value {
    at.value.clone()
}

/// Checks a selector of devices.
pub(super) fn selector(at: &At<'_>, errors: &mut Errors) {
    let Some(cel) = at.present("cel") else { return errors.required(at.path("cel"), "") };
    if cel.text("expression").len() > MAX_EXPRESSION {
        return errors.push(FieldError::too_long(cel.path("expression"), MAX_EXPRESSION));
    }
    if let Err(problem) = device_selector(cel.text("expression")) {
        errors.invalid(cel.path("expression"), &cel.text("expression").into(), &problem);
    }
}

/// Checks configuration for a driver.
pub(super) fn configuration(at: &At<'_>, errors: &mut Errors) {
    let Some(opaque) = at.present("opaque") else { return errors.required(at.path("opaque"), "") };
    core::csi_driver(&opaque, "driver", errors);
    raw(&opaque, "parameters", MAX_RAW, errors);
}

/// Checks any object of JSON at `name`.
pub(super) fn raw(at: &At<'_>, name: &str, most: usize, errors: &mut Errors) {
    let value = at.get(name);
    if value.is_null() {
        errors.required(at.path(name), "");
    } else if value.to_string().len() > most {
        errors.push(FieldError::too_long(at.path(name), most));
    } else if !value.is_object() {
        errors.invalid(at.path(name), &"<value omitted>".into(), "must be a valid JSON object");
    }
}

/// Checks the name of a pool at `name`.
pub(super) fn pool_name(at: &At<'_>, name: &str, errors: &mut Errors) {
    if !at.needs(name, errors) {
        return;
    }
    let (pool, path) = (at.text(name), at.path(name));
    if pool.len() > MAX_POOL {
        errors.push(FieldError::too_long(&path, MAX_POOL));
    }
    for part in pool.split('/') {
        errors.invalid_each(&path, &part.into(), names::dns_subdomain(part));
    }
}

/// Checks the id of a share at `shareID`, where there is one.
pub(super) fn share_id(at: &At<'_>, errors: &mut Errors) {
    let Some(id) = at.present("shareID") else { return };
    let (text, bytes) = (id.as_text(), id.as_text().as_bytes());
    let plain = |at: usize, byte: &u8| match at {
        8 | 13 | 18 | 23 => *byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    };
    let why = if ![32, 36, 38, 45].contains(&bytes.len()) {
        format!("error validating uid: invalid UUID length: {}", bytes.len())
    } else if bytes.len() == 36 && !bytes.iter().enumerate().all(|(at, byte)| plain(at, byte)) {
        "error validating uid: invalid UUID format".to_owned()
    } else if bytes.len() != 36 || text != text.to_lowercase() {
        "uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase hexadecimal characters"
            .to_owned()
    } else {
        return;
    };
    errors.invalid(&id.path, id.value, &why);
}

/// Checks the name of an attribute or capacity, perhaps behind a domain.
pub(super) fn qualified_name(at: &At<'_>, name: &str, errors: &mut Errors) {
    let parts: Vec<&str> = name.split('/').collect();
    let mut part = |part: &str, missing: &str, rule: fn(&At<'_>, &str, &mut Errors)| match part {
        "" => errors.invalid(&at.path, &"".into(), missing),
        part => rule(at, part, errors),
    };
    match *parts.as_slice() {
        [own] => identifier(at, own, errors),
        [domain, own] => {
            part(domain, "the domain must not be empty", self::domain);
            part(own, "the name must not be empty", identifier);
        }
        // kube-apiserver allows names of more parts.
        _ => {}
    }
}

fn domain(at: &At<'_>, domain: &str, errors: &mut Errors) {
    if domain.len() > 63 {
        errors.push(FieldError::too_long(&at.path, 63));
    }
    errors.invalid_each(&at.path, &domain.into(), names::dns_subdomain(&domain.to_lowercase()));
}

fn identifier(at: &At<'_>, id: &str, errors: &mut Errors) {
    if id.len() > MAX_ID {
        errors.push(FieldError::too_long(&at.path, MAX_ID));
    }
    errors.invalid_each(&at.path, &id.into(), names::c_identifier(id));
}

/// Checks the name of an attribute behind a domain, at `name`.
pub(super) fn full_name(at: &At<'_>, name: &str, errors: &mut Errors) {
    let attribute = at.child(name);
    qualified_name(&attribute, attribute.as_text(), errors);
    if !attribute.as_text().contains('/') {
        let why = "a fully qualified name must be a domain and a name separated by a slash";
        errors.invalid(&attribute.path, attribute.value, why);
    }
}

/// Most conditions of one kind that bind a device.
const MAX_BINDING: usize = 4;

/// Conditions under which a device is bound, and those under which it failed to be.
pub(super) fn binding(at: &At<'_>, errors: &mut Errors) {
    let lists = ["bindingConditions", "bindingFailureConditions"];
    for list in lists {
        let rule = |one: &At<'_>, errors: &mut Errors| {
            errors.invalid_each(&one.path, one.value, names::qualified_name(one.as_text()));
        };
        each(at, list, MAX_BINDING, rule, errors);
    }
    let good: HashSet<&str> = at.items(lists[0]).map(|one| one.as_text()).collect();
    for list in lists {
        let mut taken = HashSet::new();
        for one in at.items(list) {
            if !taken.insert(one.as_text()) {
                errors.duplicate(&one.path, one.value);
            }
            if list == lists[1] && good.contains(one.as_text()) {
                let why = "bindingFailureConditions must not overlap with bindingConditions";
                errors.invalid(&one.path, one.value, why);
            }
        }
    }
    for (list, other) in [(lists[0], lists[1]), (lists[1], lists[0])] {
        if at.count(list) == 0 && at.count(other) > 0 {
            let why = format!("{list} are required to use {other}");
            errors.invalid(at.path(list), at.get(list), &why);
        }
    }
}

/// Effects of the taints of devices.
pub(super) const EFFECTS: [&str; 3] = ["NoExecute", "NoSchedule", "None"];
