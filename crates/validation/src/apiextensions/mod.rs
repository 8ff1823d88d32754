//! The group apiextensions.k8s.io: definitions of custom resources.

mod conversion;
mod internal;
mod names_of;
mod schema;
mod shown;
mod structural;
#[cfg(test)]
mod tests;
mod versions;

use std::collections::HashSet;

use serde_json::Value;

use super::{
    Errors, FieldError, names,
    rules::{
        Rules,
        Step::{Given, Metadata, MetadataChange},
    },
    view::At,
};
use crate::custom::{DefaultsAllowance, check_defaults};
use portolan_kinds::custom::{MAX_NODES, PatternBudget, Schema, check_rules};

pub(super) static RULES: &[(&str, Rules)] = &[(
    "CustomResourceDefinition",
    Rules {
        create: &[Metadata, Given(|_, new, errors| created(new, errors))],
        update: &[MetadataChange, Given(changed)],
        subresources: &[("status", &[MetadataChange, Given(|_, new, errors| accepted_names(new, errors))])],
    },
)];

/// Definitions that lacked schemas may still lack them.
const OLD_SCHEMAS: &str = "missing schemas";

fn created(new: &At<'_>, errors: &mut Errors) {
    names_of::definition(new, errors);
    names_of::not_builtin(new, errors);
    definition(new, errors);
    standing(new, errors);
    names_of::approval(None, new, errors);
    preserved(None, new, errors);
}

fn changed(old: Option<&At<'_>>, new: &At<'_>, errors: &mut Errors) {
    let Some(old) = old else { return };
    let from = errors.len();
    definition(new, errors);
    errors.tolerate(from, || {
        let mut before = Errors::default();
        definition(old, &mut before);
        before
    });
    let (before, spec) = (old.child("spec"), new.child("spec"));
    let established = |condition: At<'_>| condition.text("type") == "Established" && condition.text("status") == "True";
    if old.child("status").items("conditions").any(established) {
        spec.immutable(&before, "scope", errors);
        spec.child("names").immutable(&before.child("names"), "kind", errors);
    }
    spec.immutable(&before, "group", errors);
    spec.child("names").immutable(&before.child("names"), "plural", errors);
    standing(new, errors);
    names_of::approval(Some(old), new, errors);
    preserved(Some(old), new, errors);
}

/// Validates the definition that an exported schema stands for.
pub(super) fn shared_definition(new: &At<'_>, errors: &mut Errors) {
    names_of::not_builtin(new, errors);
    definition(new, errors);
}

/// Validates new and changed definitions.
fn definition(new: &At<'_>, errors: &mut Errors) {
    let internal = internal::of(new.get("spec"));
    spec(&At { value: &internal, path: new.path("spec") }, errors);
}

/// Validates the status of a definition.
fn standing(new: &At<'_>, errors: &mut Errors) {
    accepted_names(new, errors);
    stored_versions(new, errors);
}

fn accepted_names(new: &At<'_>, errors: &mut Errors) {
    names_of::names(&new.child("status").child("acceptedNames"), errors);
}

fn spec(spec: &At<'_>, errors: &mut Errors) {
    names_of::group(spec, errors);
    spec.one_of("scope", &["Cluster", "Namespaced"], errors);
    let mut schemas =
        Schemas { left: MAX_NODES, patterns: PatternBudget::default(), defaults: DefaultsAllowance::default() };
    schemas_are_there(spec, errors);
    let keeps = "preserveUnknownFields";
    let schemas_of = || spec.items("versions").map(|version| version.child("schema")).chain([spec.child("validation")]);
    if spec.flag(keeps) && schemas_of().any(|schema| has_defaults(schema.get("openAPIV3Schema"))) {
        errors.invalid(spec.path(keeps), &true.into(), "must be false in order to use defaults in the schema");
    }
    versions(spec, &mut schemas, errors);
    if let Some(first) = spec.items("versions").next() {
        let wrong = names::dns_1035_label(first.text("name"));
        if !wrong.is_empty() && !first.text("name").is_empty() {
            errors.invalid(spec.path("version"), &first.text("name").into(), &wrong.join(","));
        }
    }
    let names = spec.child("names");
    for name in ["plural", "singular", "kind", "listKind"] {
        names.needs(name, errors);
    }
    names_of::names(&names, errors);
    let has_status = std::iter::once(spec.get("subresources"))
        .chain(spec.items("versions").map(|version| version.get("subresources")))
        .any(|all| all.get("status").is_some_and(|status| !status.is_null()));
    schemas.check(&spec.child("validation"), has_status, errors);
    versions::subresources(&spec.child("subresources"), errors);
    versions::columns(spec, errors);
    if spec.count("selectableFields") > 0 {
        selectable(spec, &spec.child("validation"), "may only be set when validations.schema is included", errors);
    }
    let strategy = spec.child("conversion").get("strategy");
    if spec.flag(keeps) && !strategy.is_null() && strategy != "None" {
        let why = "must be None if spec.preserveUnknownFields is true";
        errors.invalid(spec.path("conversion").child("strategy"), strategy, why);
    }
    conversion::check(spec, errors);
}

/// Returns true if any node of a schema has a default.
fn has_defaults(schema: &Value) -> bool {
    match schema {
        Value::Object(fields) => fields.iter().any(|(name, inner)| match name.as_str() {
            "default" => !inner.is_null(),
            "properties" => inner.as_object().is_some_and(|all| all.values().any(has_defaults)),
            "items" | "additionalProperties" | "allOf" | "anyOf" | "oneOf" | "not" => has_defaults(inner),
            _ => false,
        }),
        Value::Array(all) => all.iter().any(has_defaults),
        _ => false,
    }
}

fn schemas_are_there(spec: &At<'_>, errors: &mut Errors) {
    if spec.child("validation").has("openAPIV3Schema") {
        return;
    }
    let from = errors.len();
    for version in spec.items("versions").filter(|version| !version.child("schema").has("openAPIV3Schema")) {
        errors.required(version.path("schema").child("openAPIV3Schema"), "");
    }
    errors.mark_tolerated(from, OLD_SCHEMAS);
}

fn versions(spec: &At<'_>, schemas: &mut Schemas, errors: &mut Errors) {
    let path = spec.path("versions");
    let mut taken = HashSet::new();
    let mut doubled = false;
    for version in spec.items("versions") {
        doubled |= !taken.insert(version.text("name"));
        let wrong = names::dns_1035_label(version.text("name"));
        if !wrong.is_empty() {
            errors.invalid(version.path("name"), &version.text("name").into(), &wrong.join(","));
        }
        versions::deprecation(&version, errors);
        let has_status =
            internal::subresources(spec.value, version.value).get("status").is_some_and(|own| !own.is_null());
        schemas.check(&version.child("schema"), has_status, errors);
        versions::subresources(&version.child("subresources"), errors);
        versions::columns(&version, errors);
        if version.count("selectableFields") > 0 {
            let why = "may only be set when `version.schema.openAPIV3Schema` is not included";
            selectable(&version, &version.child("schema"), why, errors);
        }
    }
    if doubled {
        let shown = shown::versions(spec.get("versions"));
        errors.push(FieldError::invalid_shown(&path, &shown, "must contain unique version names"));
    }
    let stored = spec.items("versions").filter(|version| version.flag("storage")).count();
    if stored != 1 {
        let shown = shown::versions(spec.get("versions"));
        errors.push(FieldError::invalid_shown(
            &path,
            &shown,
            "must have exactly one version marked as storage version",
        ));
    }
}

/// Fields to select by, of objects with a schema.
fn selectable(at: &At<'_>, validation: &At<'_>, missing: &str, errors: &mut Errors) {
    match validation.get("openAPIV3Schema") {
        Value::Null => errors.invalid(at.path("selectableFields"), &"".into(), missing),
        schema => {
            if let Some(why) = unsupported(schema) {
                errors.invalid(at.path("schema.openAPIV3Schema"), &"".into(), &why);
            }
            versions::selectable(at, schema, errors);
        }
    }
}

fn stored_versions(new: &At<'_>, errors: &mut Errors) {
    let status = new.child("status");
    let path = status.path("storedVersions");
    let stored: Vec<&str> =
        status.items("storedVersions").map(|name| name.value.as_str().unwrap_or_default()).collect();
    if stored.is_empty() {
        return errors.invalid(path, &Value::Null, "must have at least one stored version");
    }
    let spec = new.child("spec");
    let names: HashSet<&str> = spec.items("versions").map(|version| version.text("name")).collect();
    let mut left: HashSet<&str> = stored.iter().copied().collect();
    for version in spec.items("versions") {
        let name = version.text("name");
        // A duplicate name is reported once.
        let is_left = left.remove(name);
        if version.flag("storage") && !is_left {
            errors.invalid(&path, status.get("storedVersions"), &format!("must have the storage version {name}"));
        }
    }
    for (at, name) in stored.iter().enumerate().filter(|(_, name)| !names.contains(*name)) {
        let why = format!(
            "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in {name} and removes {name} from status.storedVersions"
        );
        errors.invalid(path.index(at), &(*name).into(), &why);
    }
}

fn preserved(old: Option<&At<'_>>, new: &At<'_>, errors: &mut Errors) {
    let name = "preserveUnknownFields";
    if new.child("spec").flag(name) && !old.is_some_and(|old| old.child("spec").flag(name)) {
        let why =
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        errors.invalid(new.path("spec").child(name), &true.into(), why);
    }
}

/// Budget that all schemas of a definition share.
struct Schemas {
    left: usize,
    patterns: PatternBudget,
    defaults: DefaultsAllowance,
}

/// Fields that the root of a schema may have beside a subresource `status`, under kube-apiserver's names.
const BESIDE_STATUS: [&str; 22] = [
    "Description",
    "Type",
    "Format",
    "Title",
    "Maximum",
    "ExclusiveMaximum",
    "Minimum",
    "ExclusiveMinimum",
    "MaxLength",
    "MinLength",
    "Pattern",
    "MaxItems",
    "MinItems",
    "UniqueItems",
    "MultipleOf",
    "Required",
    "Items",
    "Properties",
    "ExternalDocs",
    "Example",
    "XPreserveUnknownFields",
    "XValidations",
];

impl Schemas {
    fn check(&mut self, validation: &At<'_>, has_status: bool, errors: &mut Errors) {
        let Some(schema) = validation.present("openAPIV3Schema") else { return };
        let Ok(read) = Schema::read(schema.value, &mut self.left) else {
            let why = format!("the schemas of a definition may have at most {MAX_NODES} nodes together");
            return errors.forbidden(&schema.path, &why);
        };
        let mut found = Errors::default();
        if has_status {
            beside_status(&schema, &mut found);
        }
        if schema.flag("nullable") {
            found.forbidden(schema.path("nullable"), "nullable cannot be true at the root");
        }
        let unfit = unsupported(schema.value);
        if unfit.is_none() {
            let mut wrong = structural::check(&schema, &mut self.patterns);
            if wrong.is_empty() {
                check_defaults(&schema.path, schema.value, &read, &mut self.defaults, &mut wrong);
            }
            found.append(wrong);
        }
        schema::check(&schema, &mut found);
        if unfit.is_none() && found.is_empty() {
            check_rules(&schema.path, schema.value, &mut found);
        }
        if let Some(why) = unfit.filter(|_| found.is_empty()) {
            found.invalid(&schema.path, &"".into(), &why);
        }
        errors.append(found);
    }
}

/// Checks the root of a schema with a subresource `status`: few fields are allowed, as the status is validated alone.
fn beside_status(schema: &At<'_>, errors: &mut Errors) {
    for (name, own) in internal::FIELDS.iter().filter(|(_, own)| !internal::is_empty(schema.get(own))) {
        if *name == "Type" {
            if schema.text(own) != "object" {
                let why = "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
                return errors.invalid(schema.path(own), schema.get(own), why);
            }
        } else if !BESIDE_STATUS.contains(name) {
            let all = BESIDE_STATUS.join(" ");
            let why = format!(
                "only [{all}] fields are allowed at the root of the schema if the status subresource is enabled"
            );
            return errors.push(FieldError::invalid_shown(&schema.path, &shown::schema(schema.value), &why));
        }
    }
}

/// Returns the reason why kube-apiserver cannot read a schema at all; reported only if there is no other fault.
fn unsupported(schema: &Value) -> Option<String> {
    let has = |name: &str| schema.get(name).is_some_and(|value| !internal::is_empty(value));
    if let Some(name) = ["id", "$schema", "$ref", "patternProperties", "dependencies"].iter().find(|name| has(name)) {
        return Some(format!(
            "OpenAPIV3Schema '{}' is not supported",
            if *name == "$schema" { "schema" } else { name }
        ));
    }
    if let Some(name) = ["additionalItems", "definitions"].iter().find(|name| schema.get(**name).is_some()) {
        return Some(format!("OpenAPIV3Schema '{name}' is not supported"));
    }
    if schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(false)) {
        return Some("internal error: 'x-kubernetes-preserve-unknown-fields' must be true or undefined".to_owned());
    }
    let items = schema.get("items");
    if items.and_then(Value::as_array).is_some_and(|items| !items.is_empty()) {
        return Some("OpenAPIV3Schema 'items' must be a schema, but is an array".to_owned());
    }
    let lists = ["allOf", "anyOf", "oneOf"].iter().filter_map(|name| schema.get(*name)?.as_array()).flatten();
    let named = schema.get("properties").and_then(Value::as_object).into_iter().flat_map(|all| all.values());
    let single = ["items", "not", "additionalProperties"].iter().filter_map(|name| schema.get(*name));
    lists.chain(named).chain(single).filter(|inner| inner.is_object()).find_map(unsupported)
}
