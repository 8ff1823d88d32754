//! Defaults in a schema: whether they are good values themselves (apiextensions `schema/defaulting`).

use serde_json::{Map, Value};

use super::embedded;
use portolan_codec::decode::structural;
use portolan_kinds::{
    custom::{
        DefaultRules, MAX_DEFAULT_RULES, META_FIELDS, Schema,
        values::{self, Effort},
    },
    field::{Errors, Path},
};

/// Budget for checking the defaults of all schemas of a definition.
pub(crate) struct DefaultsAllowance {
    effort: Effort,
    /// Text of rules.
    rules: usize,
}

impl std::default::Default for DefaultsAllowance {
    fn default() -> Self {
        Self { effort: Effort::default(), rules: MAX_DEFAULT_RULES }
    }
}

/// Validates the defaults of the schema at `path`. All schemas of a definition share one budget.
pub(crate) fn check_defaults(
    path: &Path,
    json: &Value,
    schema: &Schema,
    allowance: &mut DefaultsAllowance,
    errors: &mut Errors,
) {
    let DefaultsAllowance { effort, rules } = allowance;
    Walk { root: schema, steps: Vec::new(), effort, rules: DefaultRules::new(rules), errors }.node(
        path,
        json,
        Place { schema, is_resource: true, in_meta: false },
    );
}

/// A step from a whole object to a part of it.
#[derive(Clone)]
enum Step {
    Name(String),
    Element,
}

/// Position of a node.
#[derive(Clone, Copy)]
struct Place<'s> {
    schema: &'s Schema,
    /// It is a whole object.
    is_resource: bool,
    /// True inside metadata, `apiVersion` and `kind`.
    in_meta: bool,
}

struct Walk<'s, 'e> {
    /// The innermost whole object.
    root: &'s Schema,
    /// The way from there.
    steps: Vec<Step>,
    effort: &'e Effort,
    rules: DefaultRules<'e>,
    errors: &'e mut Errors,
}

impl<'s> Walk<'s, '_> {
    fn node(&mut self, path: &Path, json: &Value, place: Place<'s>) {
        if self.errors.is_full() || self.rules.is_over() {
            return;
        }
        let outer = place.is_resource.then(|| {
            let outer = (self.root, std::mem::take(&mut self.steps));
            self.root = place.schema;
            outer
        });
        let in_meta = place.in_meta && !place.is_resource;
        if let Some(default) = &place.schema.default {
            let at = path.child("default");
            if in_meta {
                self.in_meta(&at, json, &default.value, place)
            } else {
                self.plain(&at, json, &default.value, place)
            }
        }
        self.below(path, json, Place { in_meta, ..place });
        if let Some((root, steps)) = outer {
            (self.root, self.steps) = (root, steps);
        }
    }

    /// Checks the defaults inside a schema. Defaults in entries of maps are not checked, as in kube-apiserver.
    fn below(&mut self, path: &Path, json: &Value, place: Place<'s>) {
        if let (Some(schema), Some(json)) = (place.schema.items.as_deref(), json.get("items")) {
            self.steps.push(Step::Element);
            let inner = Place { schema, is_resource: schema.is_resource, in_meta: place.in_meta };
            self.node(&path.child("items"), json, inner);
            self.steps.pop();
        }
        for (name, schema) in &place.schema.properties {
            let Some(json) = json.get("properties").and_then(|all| all.get(&**name)) else { continue };
            let in_meta = place.in_meta || (place.is_resource && META_FIELDS.contains(&&**name));
            self.steps.push(Step::Name(name.to_string()));
            let inner = Place { schema, is_resource: schema.is_resource, in_meta };
            self.node(&path.child("properties").key(name), json, inner);
            self.steps.pop();
        }
    }

    fn plain(&mut self, at: &Path, json: &Value, default: &Value, Place { schema, is_resource, .. }: Place<'s>) {
        // The root is a whole object, too, although its schema does not mark it.
        let is_root = is_resource && !schema.is_resource;
        let mut pruned = default.clone();
        if is_root {
            drop(values::prune(&mut pruned, schema))
        } else {
            values::prune_part(&mut pruned, schema)
        }
        if pruned != *default {
            self.errors.invalid(at, default, "must not have unknown fields");
        }
        let (mut coerced, mut unknown) = (default.clone(), Vec::new());
        let metadata = match coerced.as_object_mut().filter(|_| is_root) {
            Some(fields) => structural::coerce_resource(at, fields, &mut unknown),
            None => Ok(()),
        };
        if let Err(why) = metadata.and_then(|()| structural::coerce_at(at, &mut coerced, schema, &mut unknown)) {
            return self.errors.invalid(at, default, &why);
        }
        let mut wrong = Errors::default();
        if let Some(fields) = default.as_object().filter(|_| is_root) {
            embedded::check_resource(at, fields, &mut wrong);
        }
        embedded::check(at, default, schema, &mut wrong);
        if wrong.is_empty() {
            values::validate(at, default, None, (schema, self.effort), &mut wrong);
        }
        if wrong.is_empty() {
            self.rules.check(at, (json, is_resource), default, &mut wrong);
        }
        self.errors.append(wrong);
    }

    /// Checks a default within metadata, in an object that has it.
    fn in_meta(&mut self, at: &Path, json: &Value, default: &Value, Place { schema, is_resource, .. }: Place<'s>) {
        let mut object = default.clone();
        for step in self.steps.iter().rev() {
            object = match step {
                Step::Name(name) => Value::Object(Map::from_iter([(name.clone(), object)])),
                Step::Element => Value::Array(vec![object]),
            };
        }
        let Some(fields) = object.as_object_mut() else { return };
        fields.entry("kind").or_insert_with(|| "Validation".into());
        fields.entry("apiVersion").or_insert_with(|| "validation/v1".into());
        let invalid = |errors: &mut Errors, why: &str| {
            errors.invalid(at, default, &format!("must result in valid metadata: {why}"));
        };
        if let Err(why) = structural::coerce_resource(&Path::default(), fields, &mut Vec::new()) {
            return invalid(self.errors, &why);
        }
        let mut wrong = Errors::default();
        embedded::check_resource(&Path::default(), fields, &mut wrong);
        if !wrong.is_empty() {
            return invalid(self.errors, &wrong.aggregate());
        }
        values::validate(at, default, None, (schema, self.effort), &mut wrong);
        if wrong.is_empty() {
            self.rules.check(at, (json, is_resource), default, &mut wrong);
        }
        self.errors.append(wrong);
    }
}
