//! Rules of a schema (`x-kubernetes-validations`): when a definition is written, and when an object is.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use portolan_cel::{
    RuleSchema,
    rules::{BUDGET, BadValue, ErrorKind, RuleError, RuleValidator, check_definition},
};
use serde_json::Value;

use portolan_gocompat::json::escaped;

use crate::field::{Errors, FieldError, Path};

/// Keyword of rules in a schema.
const KEY: &str = "x-kubernetes-validations";
/// Most bytes of all rules of one definition; each counts with its text and a constant.
const MAX_TEXT: usize = 1 << 20;
const RULE_BYTES: usize = 512;

/// Costs that were too high before are tolerated.
const OLD_COSTS: &str = "estimated costs of rules";

/// Meter for the cost of rules. It gets each piece of work as a closure and must run it once.
pub trait RulesWatch: Send + Sync {
    /// Runs and measures the compilation of a version's rules.
    fn compile(&self, work: &mut dyn FnMut());
    /// Runs and measures their evaluation on an object.
    fn evaluate(&self, work: &mut dyn FnMut());
}

/// The rules of one version. They are compiled when the first object is written.
#[derive(Default)]
pub struct Rules {
    /// Schema as written, in JSON; `None` if there are no rules.
    schema: Option<Box<str>>,
    compiled: OnceLock<Option<RuleValidator>>,
    watch: OnceLock<Arc<dyn RulesWatch>>,
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("rules")
    }
}

impl Rules {
    /// Reads the rules of a schema. Nothing is compiled yet.
    pub fn of(schema: &Value) -> Self {
        let has_rules = text_of(schema) > 0;
        Self { schema: has_rules.then(|| schema.to_string().into()), ..Self::default() }
    }

    /// Measures the rules from now on.
    pub fn watch(&self, watch: &Arc<dyn RulesWatch>) {
        if self.are_there() {
            self.watch.get_or_init(|| watch.clone());
        }
    }

    fn compiled(&self) -> Option<&RuleValidator> {
        let compile = || {
            let text = self.schema.as_ref()?;
            self.measured(
                |watch, work| watch.compile(work),
                || {
                    let schema: Value = serde_json::from_str(text).ok()?;
                    RuleValidator::new(&RuleSchema::from_json(&schema))
                },
            )
        };
        self.compiled.get_or_init(compile).as_ref()
    }

    fn measured<T>(&self, how: fn(&dyn RulesWatch, &mut dyn FnMut()), work: impl Fn() -> T) -> T {
        let Some(watch) = self.watch.get() else { return work() };
        let mut done = None;
        how(&**watch, &mut || done = Some(work()));
        done.unwrap_or_else(work)
    }

    /// Returns true if the schema has rules.
    pub fn are_there(&self) -> bool {
        self.schema.is_some()
    }

    /// Runs the rules on an object whose schema already holds; on others they would report nothing useful. An old error
    /// that did not change is a warning.
    pub fn check(&self, new: &Value, old: Option<&Value>, errors: &mut Errors) {
        let Some(rules) = self.compiled() else { return };
        if errors.is_blocking() {
            let why = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
            return errors.invalid(Path::default(), &Value::Null, why);
        }
        let verdict = self.measured(|watch, work| watch.evaluate(work), || rules.validate(new, old));
        verdict.errors.into_iter().for_each(|error| errors.push(rule_field_error(error)));
        verdict.warnings.into_iter().for_each(|error| errors.warn(rule_field_error(error)));
    }
}

fn rule_field_error(error: RuleError) -> FieldError {
    let RuleError { path, kind, value, detail } = error;
    let at = Path::new(&path);
    match (kind, value) {
        (ErrorKind::Invalid, BadValue::Json(rule @ Value::Object(_))) if rule.get("Rule").is_some() => {
            FieldError::invalid_shown(at, &format_rule(&rule), &detail)
        }
        (ErrorKind::Invalid, BadValue::Json(value)) => FieldError::invalid(at, &value, &detail),
        (ErrorKind::Invalid, BadValue::Omitted) => FieldError::invalid_hidden(at, &detail),
        (ErrorKind::Duplicate, BadValue::Json(value)) => FieldError::duplicate(at, &value),
        (ErrorKind::Duplicate, BadValue::Omitted) => FieldError::duplicate_hidden(at),
        (ErrorKind::Forbidden, _) => FieldError::forbidden(at, &detail),
        (ErrorKind::Required, _) => FieldError::required(at, &detail),
        (ErrorKind::Internal, _) => FieldError::internal(at, &detail),
    }
}

/// Formats a rule with its fields in the order of Kubernetes' Go type.
fn format_rule(rule: &Value) -> String {
    const FIELDS: [&str; 6] = ["Rule", "Message", "MessageExpression", "Reason", "FieldPath", "OptionalOldSelf"];
    let field = |name: &&str| format!("{name:?}:{}", rule.get(*name).unwrap_or(&Value::Null));
    escaped(&format!("{{{}}}", FIELDS.iter().map(field).collect::<Vec<_>>().join(",")))
}

/// Validates the rules of a schema at `path`: they must compile, and not cost too much.
pub fn check_rules(path: &Path, schema: &Value, errors: &mut Errors) {
    let bytes = text_of(schema);
    if bytes == 0 {
        return;
    }
    if bytes > MAX_TEXT {
        let why = format!(
            "the rules of a schema may have at most {MAX_TEXT} bytes together, each counting {RULE_BYTES} more"
        );
        return errors.forbidden(path, &why);
    }
    for error in check_definition(&RuleSchema::from_json(schema), &path.to_string()) {
        let is_cost = error.kind == ErrorKind::Forbidden;
        let error = rule_field_error(error);
        errors.push(if is_cost { error.tolerated(OLD_COSTS) } else { error });
    }
}

/// Runs rules on the defaults of a schema (apiextensions `schema/defaulting`).
pub struct DefaultRules<'a> {
    /// Cost that is left: as much as for the rules of one object.
    budget: i64,
    /// Text that may still be compiled, over all schemas of the definition: rules are compiled for each default around
    /// them.
    text: &'a mut usize,
}

/// Text of rules that are compiled for the defaults of one definition.
pub const MAX_DEFAULT_RULES: usize = 4 * MAX_TEXT;

impl<'a> DefaultRules<'a> {
    /// Creates the check of the defaults of one schema, with the text that is left for rules of the definition.
    pub fn new(text: &'a mut usize) -> Self {
        Self { budget: BUDGET, text }
    }

    /// Returns true if the budget is spent, so that nothing more is checked.
    pub fn is_over(&self) -> bool {
        self.budget < 0
    }

    /// Validates the default at `at` by the rules of its part of the schema.
    pub fn check(&mut self, at: &Path, (schema, is_resource): (&Value, bool), default: &Value, errors: &mut Errors) {
        let bytes = text_of(schema);
        if bytes == 0 {
            return;
        }
        let Some(left) = self.text.checked_sub(bytes) else {
            let why = format!("the rules that are run on defaults may have at most {MAX_DEFAULT_RULES} bytes together");
            return errors.forbidden(at, &why);
        };
        *self.text = left;
        let Some(validator) = RuleValidator::of_part(&RuleSchema::from_json(schema), is_resource) else { return };
        for error in validator.validate_default(default, &mut self.budget) {
            let path = match error.path.as_str() {
                "" => at.to_string(),
                path if path.starts_with('[') => format!("{at}{path}"),
                path => format!("{at}.{path}"),
            };
            errors.push(rule_field_error(RuleError { path, ..error }));
        }
    }
}

/// Returns the bytes that the rules of a schema count for.
fn text_of(schema: &Value) -> usize {
    let Some(fields) = schema.as_object() else { return 0 };
    let rules = fields.get(KEY).and_then(Value::as_array).into_iter().flatten();
    let text = |rule: &Value, name: &str| rule.get(name).and_then(Value::as_str).map_or(0, str::len);
    let own = rules.map(|rule| RULE_BYTES + text(rule, "rule") + text(rule, "messageExpression")).sum::<usize>();
    let single = ["items", "additionalProperties"].iter().filter_map(|name| fields.get(*name));
    let named = fields.get("properties").and_then(Value::as_object).into_iter().flat_map(|all| all.values());
    let all = fields.get("allOf").and_then(Value::as_array).into_iter().flatten();
    own + single.chain(named).chain(all).map(text_of).sum::<usize>()
}
