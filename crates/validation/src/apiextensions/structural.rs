//! Structural schemas (apiextensions `schema/validation.go` and `complete.go`).

use serde_json::{Value, json};

use super::{
    super::{Errors, Path, view::At},
    internal::is_empty,
};
use portolan_kinds::custom::PatternBudget;

/// Position of a node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Item,
    Field,
}

/// Returns the faults that keep a schema from being structural, in the order of their messages.
pub(super) fn check(schema: &At<'_>, patterns: &mut PatternBudget) -> Errors {
    let mut walk = Walk { patterns, errors: Errors::default() };
    walk.node(schema, Level::Root);
    walk.completeness(schema, Some(schema), &schema.path, &schema.path);
    walk.errors.sort();
    walk.errors
}

struct Walk<'p> {
    patterns: &'p mut PatternBudget,
    errors: Errors,
}

/// Returns true for the choice that repeats the meaning of `x-kubernetes-int-or-string`.
fn is_int_or_string(any: &Value) -> bool {
    *any == json!([{"type": "integer"}, {"type": "string"}])
}

/// Returns the schema in a field that may hold something else.
fn schema_at<'v>(at: &At<'v>, name: &str) -> Option<At<'v>> {
    at.present(name).filter(|inner| inner.value.is_object())
}

impl Walk<'_> {
    fn node(&mut self, at: &At<'_>, level: Level) {
        if self.errors.is_full() {
            return;
        }
        let kind = at.text("type");
        let items = schema_at(at, "items");
        if kind == "array" && items.is_none() {
            self.errors.required(at.path("items"), "must be specified");
        }
        items.iter().for_each(|items| self.node(items, Level::Item));
        at.entries("properties").for_each(|(_, property)| self.node(&property, Level::Field));
        if at.has("additionalProperties") {
            if level == Level::Root {
                self.errors.forbidden(at.path("additionalProperties"), "must not be used at the root");
            }
            schema_at(at, "additionalProperties").iter().for_each(|entry| self.node(entry, Level::Field));
        }
        self.extensions(at);
        let skips = Skips {
            any: is_int_or_string(at.get("anyOf")),
            first: at.items("allOf").next().is_some_and(|first| is_int_or_string(first.get("anyOf"))),
        };
        self.values(at, skips);
        self.kind(at, kind, level);
        self.metadata(at, level);
        let (is_embedded, keeps) =
            (at.flag("x-kubernetes-embedded-resource"), at.flag("x-kubernetes-preserve-unknown-fields"));
        if is_embedded && !keeps && at.count("properties") == 0 {
            let why = "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
            self.errors.required(at.path("properties"), why);
        }
    }

    fn extensions(&mut self, at: &At<'_>) {
        let names = ["x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"];
        for name in names.iter().filter(|name| at.flag("x-kubernetes-int-or-string") && at.flag(name)) {
            self.errors.invalid(at.path(name), at.get(name), "must be false if x-kubernetes-int-or-string is true");
        }
    }

    fn kind(&mut self, at: &At<'_>, kind: &str, level: Level) {
        let is_embedded = at.flag("x-kubernetes-embedded-resource");
        let said = at.flag("x-kubernetes-int-or-string") || at.flag("x-kubernetes-preserve-unknown-fields");
        let path = at.path("type");
        if is_embedded && kind != "object" {
            let why = "must be object if x-kubernetes-embedded-resource is true";
            match kind {
                "" => self.errors.required(&path, why),
                kind => self.errors.invalid(&path, &kind.into(), why),
            }
        } else if kind.is_empty() && !said {
            let why = match level {
                Level::Root => "must not be empty at the root",
                Level::Item => "must not be empty for specified array items",
                Level::Field => "must not be empty for specified object fields",
            };
            self.errors.required(&path, why);
        }
        if is_embedded && at.has("additionalProperties") {
            let why = "must not be used if x-kubernetes-embedded-resource is set";
            self.errors.forbidden(at.path("additionalProperties"), why);
        }
        if level == Level::Root && !kind.is_empty() && kind != "object" {
            self.errors.invalid(&path, &kind.into(), "must be object at the root");
        }
    }

    /// Validates keywords of metadata, `apiVersion` and `kind`.
    fn metadata(&mut self, at: &At<'_>, level: Level) {
        let is_resource = level == Level::Root || at.flag("x-kubernetes-embedded-resource");
        let properties = at.child("properties");
        let property = |name: &str| {
            properties.has(name).then(|| At { value: properties.get(name), path: properties.path.key(name) })
        };
        for name in ["kind", "apiVersion"] {
            if let Some(own) = property(name).filter(|own| is_resource && own.text("type") != "string") {
                self.errors.invalid(own.path("type"), &own.text("type").into(), "must be string");
            }
        }
        let Some(metadata) = property("metadata") else { return };
        if is_resource && metadata.text("type") != "object" {
            self.errors.invalid(metadata.path("type"), &metadata.text("type").into(), "must be object");
        }
        if level == Level::Root && says_more_than_names(metadata.value) {
            let why =
                "must not specify anything other than name and generateName, but metadata is implicitly specified";
            self.errors.forbidden(&metadata.path, why);
        }
    }

    fn values(&mut self, at: &At<'_>, skips: Skips) {
        if !skips.any {
            at.items("anyOf").for_each(|nested| self.nested(&nested, false));
        }
        for (index, nested) in at.items("allOf").enumerate() {
            self.nested(&nested, skips.first && index == 0);
        }
        at.items("oneOf").for_each(|nested| self.nested(&nested, false));
        schema_at(at, "not").iter().for_each(|nested| self.nested(nested, false));
        let pattern = at.text("pattern");
        if !pattern.is_empty()
            && let Err(why) = self.patterns.check(pattern)
        {
            self.errors.invalid(at.path("pattern"), &pattern.into(), &why);
        }
    }

    /// Checks a schema within a choice, which may only restrict values.
    fn nested(&mut self, at: &At<'_>, skips_any: bool) {
        if self.errors.is_full() {
            return;
        }
        self.values(at, Skips { any: skips_any, first: false });
        schema_at(at, "items").iter().for_each(|items| self.nested(items, false));
        at.entries("properties").for_each(|(_, property)| self.nested(&property, false));
        const EMPTY: &str = "must be empty to be structural";
        const UNDEFINED: &str = "must be undefined to be structural";
        const FALSE: &str = "must be false to be structural";
        let said = [
            ("type", EMPTY),
            ("additionalProperties", UNDEFINED),
            ("default", UNDEFINED),
            ("title", EMPTY),
            ("description", EMPTY),
            ("nullable", FALSE),
            ("x-kubernetes-preserve-unknown-fields", FALSE),
            ("x-kubernetes-embedded-resource", FALSE),
            ("x-kubernetes-int-or-string", FALSE),
            ("x-kubernetes-list-map-keys", EMPTY),
            ("x-kubernetes-list-type", UNDEFINED),
            ("x-kubernetes-map-type", UNDEFINED),
            ("x-kubernetes-validations", EMPTY),
        ];
        for (name, why) in said {
            // An empty value counts as absent, except for defaults and for the schema of entries.
            let counts = |value: &Value| match name {
                "default" => !value.is_null(),
                "additionalProperties" => value.is_object() || *value == Value::Bool(true),
                _ => !is_empty(value),
            };
            if counts(at.get(name)) {
                self.errors.forbidden(at.path(name), why);
            }
        }
        if at.child("properties").has("metadata") {
            let path = at.path("properties").key("metadata");
            self.errors.forbidden(path, "must not be specified in a nested context");
        }
    }

    /// Requires that properties named in `allOf`, `anyOf`, `oneOf` and `not` are declared outside of them.
    fn completeness(&mut self, choice: &At<'_>, schema: Option<&At<'_>>, path: &Path, within: &Path) {
        let nested = choice.present("not").filter(|not| not.value.is_object()).map(|not| (not, within.child("not")));
        let all = ["allOf", "anyOf", "oneOf"].into_iter().flat_map(|name| {
            choice.items(name).enumerate().map(move |(at, nested)| (nested, within.child(name).index(at)))
        });
        for (nested, within) in nested.into_iter().chain(all) {
            self.nested_completeness(&nested, schema, path, &within);
        }
    }

    fn nested_completeness(&mut self, choice: &At<'_>, schema: Option<&At<'_>>, path: &Path, within: &Path) {
        if self.errors.is_full() {
            return;
        }
        let Some(schema) = schema else {
            return self.errors.required(path, &format!("because it is defined in {within}"));
        };
        self.completeness(choice, Some(schema), path, within);
        if let Some(items) = schema_at(choice, "items") {
            let own = schema_at(schema, "items");
            self.nested_completeness(&items, own.as_ref(), &path.child("items"), &within.child("items"));
        }
        for (name, property) in choice.entries("properties") {
            let (path, within) = (path.child("properties").key(name), within.child("properties").key(name));
            let declared = schema.child("properties");
            let own = declared.has(name).then(|| At { value: declared.get(name), path: declared.path.key(name) });
            self.nested_completeness(&property, own.as_ref(), &path, &within);
        }
    }
}

/// Branches that only require an integer or a string.
#[derive(Clone, Copy)]
struct Skips {
    any: bool,
    /// Only in the first of `allOf`.
    first: bool,
}

fn says_more_than_names(metadata: &Value) -> bool {
    let Some(fields) = metadata.as_object() else { return false };
    fields.iter().any(|(name, value)| match name.as_str() {
        "type" | "default" => false,
        "properties" => value
            .as_object()
            .is_some_and(|properties| properties.keys().any(|name| !matches!(name.as_str(), "name" | "generateName"))),
        _ => !is_empty(value),
    })
}
