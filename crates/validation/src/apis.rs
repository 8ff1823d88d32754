//! The group apis.kcp.io: exports, bindings and schemas. Exports and bindings are checked as v1alpha2.

use std::collections::HashSet;

use portolan_kinds::custom;
use serde_json::Value;

use super::{
    Errors, FieldError, apiextensions, names,
    rules::{
        Rules,
        Step::{Became, Enumerations, Is, Metadata, MetadataChange},
    },
    selectors,
    view::{At, is_same},
};

pub(super) static RULES: &[(&str, Rules)] = &[
    (
        "APIExport",
        Rules {
            create: &[Metadata, Enumerations, Is(export)],
            update: &[MetadataChange, Metadata, Enumerations, Is(export)],
            subresources: &[],
        },
    ),
    (
        "APIBinding",
        Rules {
            create: &[Metadata, Enumerations, Is(binding)],
            update: &[MetadataChange, Metadata, Enumerations, Is(binding), Became(binding_update)],
            subresources: &[],
        },
    ),
    (
        "APIResourceSchema",
        Rules {
            create: &[Metadata, Enumerations, Is(schema)],
            update: &[MetadataChange, Metadata, Became(schema_update)],
            subresources: &[],
        },
    ),
    (
        "APIExportEndpointSlice",
        Rules {
            create: &[Metadata, Enumerations, Is(slice)],
            update: &[MetadataChange, Metadata, Enumerations, Is(slice), Became(slice_update)],
            subresources: &[],
        },
    ),
];

/// Most resources, and most claims, of an export.
const MAX_ENTRIES: usize = 256;
const REFERENCE_CHANGED: &str = "APIExport reference must not be changed";

fn export(object: &At<'_>, errors: &mut Errors) {
    let spec = object.child("spec");
    bounded(&spec, "resources", errors);
    let mut seen = HashSet::new();
    for resource in spec.items("resources") {
        let (name, group) = (resource.text("name"), resource.text("group"));
        for field in ["name", "schema"] {
            resource.needs(field, errors);
        }
        if !seen.insert((name, group)) {
            errors.push(FieldError::duplicate(resource.path("name"), &name.into()));
        }
        let parts: Vec<&str> = resource.text("schema").splitn(3, '.').collect();
        let is_same_name = matches!(parts.as_slice(), [_, plural, of] if (*plural, *of) == (name, group));
        if resource.has("schema") && !is_same_name {
            let why = format!("must be of the form <prefix>.{name}.{group}");
            errors.invalid(resource.path("schema"), resource.get("schema"), &why);
        }
        let storage = resource.child("storage");
        if storage.has("crd") == storage.has("virtual") {
            errors.invalid(resource.path("storage"), storage.value, "Exactly one of crd or virtual must be set");
        }
    }
    claims(&spec, errors);
}

fn claims(spec: &At<'_>, errors: &mut Errors) {
    bounded(spec, "permissionClaims", errors);
    let mut seen = HashSet::new();
    for claim in spec.items("permissionClaims") {
        claim.needs("resource", errors);
        if claim.has("resource") {
            claim.follows("resource", names::dns_1035_label, errors);
        }
        claim.follows_if_set("group", names::dns_subdomain, errors);
        if claim.count("verbs") == 0 {
            errors.required(claim.path("verbs"), "");
        }
        if !seen.insert(["group", "resource", "identityHash"].map(|key| claim.text(key))) {
            errors.push(FieldError::duplicate(claim.path("resource"), claim.get("resource")));
        }
    }
}

fn binding(object: &At<'_>, errors: &mut Errors) {
    let spec = object.child("spec");
    let reference = spec.child("reference");
    if reference.has("export") {
        export_reference(&reference.child("export"), errors);
    } else {
        errors.required(reference.path("export"), "");
    }
    claims(&spec, errors);
    for claim in spec.items("permissionClaims") {
        let selector = claim.child("selector");
        let is_selective = selector.count("matchExpressions") > 0 || selector.entries("matchLabels").next().is_some();
        if selector.flag("matchAll") {
            for field in ["matchLabels", "matchExpressions"].into_iter().filter(|field| selector.has(field)) {
                let why = format!("{field} cannot be used with matchAll");
                errors.invalid(selector.path(field), selector.value, &why);
            }
        } else if !is_selective {
            let why = "either one of matchAll, matchLabels, or matchExpressions must be set";
            claim_needs_selector(&claim, why, errors);
        } else {
            selectors::selector(&selector, errors);
        }
    }
}

fn claim_needs_selector(claim: &At<'_>, why: &str, errors: &mut Errors) {
    errors.push(FieldError::required(claim.path("selector"), why));
}

fn binding_update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    let (before, after) = (old.child("spec"), new.child("spec"));
    if !is_same(before.get("reference"), after.get("reference")) {
        errors.invalid(after.path("reference"), after.get("reference"), REFERENCE_CHANGED);
    }
    let key = |claim: &At<'_>| ["group", "resource", "identityHash"].map(|key| claim.text(key).to_owned());
    for claim in after.items("permissionClaims") {
        let known = before.items("permissionClaims").find(|known| key(known) == key(&claim));
        if known.is_some_and(|known| !is_same(known.get("selector"), claim.get("selector"))) {
            let why = "Permission claim selector is immutable";
            errors.invalid(claim.path("selector"), claim.get("selector"), why);
        }
    }
}

fn export_reference(reference: &At<'_>, errors: &mut Errors) {
    reference.needs("name", errors);
    let path = reference.text("path");
    let is_label = |part: &str| names::dns_label(part).is_empty();
    if !path.is_empty() && !path.split(':').all(is_label) {
        errors.invalid(reference.path("path"), &path.into(), "must be the path of a workspace");
    }
}

fn slice(object: &At<'_>, errors: &mut Errors) {
    export_reference(&object.child("spec").child("export"), errors);
}

fn slice_update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    let (before, after) = (old.child("spec"), new.child("spec"));
    if !is_same(before.get("export"), after.get("export")) {
        errors.invalid(after.path("export"), after.get("export"), REFERENCE_CHANGED);
    }
}

fn schema(object: &At<'_>, errors: &mut Errors) {
    let crd = custom::definition_of_schema(object.value);
    apiextensions::shared_definition(&At::root(&crd), errors);
    let name = object.child("metadata").text("name");
    let spec = object.child("spec");
    let wanted = format!(".{}.{}", spec.child("names").text("plural"), spec.text("group"));
    let prefix = name.strip_suffix(&wanted);
    if !prefix.is_some_and(|prefix| names::dns_1035_label(prefix).is_empty()) {
        let why = format!("must match <prefix>{wanted}, with a prefix that is a DNS label");
        errors.invalid(object.child("metadata").path("name"), &name.into(), &why);
    }
    if spec.count("versions") > 1 && !spec.has("conversion") {
        let why = "Conversion must be specified when multiple versions exist";
        errors.invalid(spec.path("conversion"), &Value::Null, why);
    }
    let conversion = spec.child("conversion");
    if spec.has("conversion") && (conversion.text("strategy") == "Webhook") != conversion.has("webhook") {
        errors.invalid(spec.path("conversion"), conversion.value, "Webhook must be specified if strategy=Webhook");
    }
}

fn schema_update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    if !is_same(old.get("spec"), new.get("spec")) {
        errors.invalid(new.path("spec"), &Value::Null, "is immutable");
    }
}

fn bounded(spec: &At<'_>, list: &str, errors: &mut Errors) {
    if spec.count(list) > MAX_ENTRIES {
        errors.invalid(spec.path(list), &spec.count(list).into(), &format!("has at most {MAX_ENTRIES} entries"));
    }
}
