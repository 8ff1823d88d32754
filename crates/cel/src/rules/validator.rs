//! Rules of a schema tree, and their run over an object.

use super::correlate::{CorrelatedPair, same_element};
use super::error::child;
use super::{BUDGET, CompiledRules, RuleError, compile};
use crate::schema::{DeclaredShape, DeclaredType, RuleSchema, ValidationRule, escape};
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Compiled rules of a schema and all nested ones. Created once per schema, and shared by threads.
#[derive(Debug)]
pub struct RuleValidator {
    pub(super) schema: RuleSchema,
    pub(super) rules: Vec<(ValidationRule, CompiledRules)>,
    items: Option<Box<RuleValidator>>,
    values: Option<Box<RuleValidator>>,
    properties: BTreeMap<String, RuleValidator>,
    all_of: Vec<RuleValidator>,
    correlation: Option<Arc<RuleSchema>>,
}

/// Result of the rules on an object.
#[derive(Debug, Default)]
pub struct RuleVerdict {
    /// Errors.
    pub errors: Vec<RuleError>,
    /// Errors that the old object had at the same unchanged position.
    pub warnings: Vec<RuleError>,
    /// Total cost.
    pub cost: i64,
}

/// Correlation with the old value.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ratchet<'a> {
    current: Option<CorrelatedPair<'a>>,
    parent: Option<CorrelatedPair<'a>>,
}

impl<'a> Ratchet<'a> {
    /// Returns true if an error here is ratcheted, because the old value had it.
    pub(super) fn forgives(&self) -> bool {
        self.current.or(self.parent).is_some_and(CorrelatedPair::is_unchanged)
    }

    fn key(self, field: &str) -> Self {
        match self.current {
            None => self,
            Some(_) if self.parent.is_none() && matches!(field, "apiVersion" | "kind") => Self::default(),
            Some(current) => Self { current: current.key(field), parent: Some(current) },
        }
    }

    fn index(self, index: usize) -> Self {
        match self.current {
            None => self,
            Some(current) => Self { current: current.index(index), parent: Some(current) },
        }
    }
}

/// Run in progress.
#[derive(Debug, Default)]
pub(super) struct ValidationRun {
    pub(super) verdict: RuleVerdict,
    /// Remaining budget. The run stops below zero.
    pub(super) budget: i64,
}

impl RuleValidator {
    /// Compiles the rules of a resource's schema; `None` if there are none.
    #[must_use]
    pub fn new(schema: &RuleSchema) -> Option<Self> {
        let mut validator = Self::of_part(schema, true)?;
        validator.correlation = Some(Arc::new(schema.clone()));
        Some(validator)
    }

    /// Compiles the rules of a part of a schema, which may be a whole resource; `None` if there are none.
    #[must_use]
    pub fn of_part(schema: &RuleSchema, is_resource: bool) -> Option<Self> {
        if !schema.has_rules() {
            return None;
        }
        let declared = DeclaredType::of(schema, is_resource);
        Self::of(schema, schema, is_resource, declared.as_ref())
    }

    /// Adds the rules in `allOf` of a node, which apply to the fields that the node itself declares.
    fn of(rules_of: &RuleSchema, node: &RuleSchema, is_root: bool, declared: Option<&DeclaredType>) -> Option<Self> {
        let element = match declared.map(|declared| &declared.shape) {
            Some(DeclaredShape::List(element) | DeclaredShape::Map(element)) => Some(&**element),
            _ => None,
        };
        let below = |rules_of: &Option<Box<RuleSchema>>, node: &Option<Box<RuleSchema>>| {
            let (rules_of, node) = (rules_of.as_deref()?, node.as_deref()?);
            Self::of(rules_of, node, node.embedded, element).map(Box::new)
        };
        let mut properties = BTreeMap::new();
        for (name, rules_of) in &rules_of.properties {
            if let Some(property) = node.properties.get(name)
                && let Some(validator) = Self::of_property(name, rules_of, property, declared)
            {
                properties.insert(name.clone(), validator);
            }
        }
        let compiled = declared.map_or_else(Vec::new, |declared| compile(node, &rules_of.rules, declared));
        let validator = Self {
            rules: rules_of.rules.iter().cloned().zip(compiled).collect(),
            items: below(&rules_of.items, &node.items),
            values: below(&rules_of.values, &node.values),
            properties,
            all_of: rules_of.all_of.iter().filter_map(|part| Self::of(part, node, is_root, declared)).collect(),
            schema: if is_root { node.with_meta() } else { node.clone() },
            correlation: None,
        };
        (!validator.is_empty()).then_some(validator)
    }

    fn of_property(
        name: &str,
        rules_of: &RuleSchema,
        property: &RuleSchema,
        declared: Option<&DeclaredType>,
    ) -> Option<Self> {
        let own;
        let declared = match (escape(name), &declared?.shape) {
            (Some(escaped), DeclaredShape::Object(fields)) => fields.get(escaped.as_str())?.as_ref(),
            (Some(_), _) => return None,
            (None, _) => {
                own = DeclaredType::of(property, property.embedded)?;
                &own
            }
        };
        Self::of(rules_of, property, property.embedded, Some(declared))
    }

    fn is_empty(&self) -> bool {
        self.rules.is_empty()
            && self.items.is_none()
            && self.values.is_none()
            && self.properties.is_empty()
            && self.all_of.is_empty()
    }

    /// Runs all rules on an object. With an old object, transition rules run too, and unchanged violations only warn.
    #[must_use]
    pub fn validate(&self, new: &Json, old: Option<&Json>) -> RuleVerdict {
        let current = old.zip(self.correlation.as_deref()).map(|(old, schema)| CorrelatedPair { new, old, schema });
        self.validate_within(BUDGET, new, old, Ratchet { current, parent: None })
    }

    /// Runs all rules without ratcheting, as for a new object.
    #[must_use]
    pub fn validate_strictly(&self, new: &Json, old: Option<&Json>) -> RuleVerdict {
        self.validate_within(BUDGET, new, old, Ratchet::default())
    }

    /// Validates a default, as an unchanged value and, if that is valid, as a new one. Both may use the rest of the
    /// budget; the more expensive one is charged. The budget is negative afterwards if it did not suffice.
    #[must_use]
    pub fn validate_default(&self, default: &Json, budget: &mut i64) -> Vec<RuleError> {
        let mut left = *budget;
        for old in [Some(default), None] {
            let mut run = ValidationRun { verdict: RuleVerdict::default(), budget: *budget };
            self.run(&mut run, "", default, old, Ratchet::default());
            left = left.min(run.budget);
            if !run.verdict.errors.is_empty() {
                *budget = left;
                return run.verdict.errors;
            }
        }
        *budget = left;
        Vec::new()
    }

    pub(super) fn validate_within<'a>(
        &'a self,
        budget: i64,
        new: &'a Json,
        old: Option<&'a Json>,
        ratchet: Ratchet<'a>,
    ) -> RuleVerdict {
        let mut run = ValidationRun { verdict: RuleVerdict::default(), budget };
        self.run(&mut run, "", new, old, ratchet);
        run.verdict.cost = budget - run.budget.max(0);
        run.verdict
    }

    fn run<'a>(
        &'a self,
        run: &mut ValidationRun,
        path: &str,
        new: &'a Json,
        old: Option<&'a Json>,
        ratchet: Ratchet<'a>,
    ) {
        if new.is_null() || run.budget < 0 {
            return;
        }
        self.run_rules(run, path, new, old, ratchet);
        for part in &self.all_of {
            part.run(run, path, new, old, Ratchet { current: None, parent: ratchet.parent });
        }
        if run.budget < 0 {
            return;
        }
        match new {
            Json::Array(items) => self.run_items(run, path, items, old, ratchet),
            Json::Object(fields) => {
                for (name, value) in fields {
                    let old = old.and_then(|old| old.get(name));
                    if let Some(values) = &self.values {
                        values.run(run, &format!("{path}[{name}]"), value, old, ratchet.key(name));
                    }
                    if let Some(property) = self.properties.get(name) {
                        property.run(run, &child(path, name), value, old, ratchet.key(name));
                    }
                }
            }
            Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => {}
        }
    }

    fn run_items<'a>(
        &'a self,
        run: &mut ValidationRun,
        path: &str,
        items: &'a [Json],
        old: Option<&'a Json>,
        ratchet: Ratchet<'a>,
    ) {
        let Some(validator) = &self.items else { return };
        let old = old.and_then(Json::as_array).map_or(&[][..], Vec::as_slice);
        for (index, item) in items.iter().enumerate() {
            let old = same_element(&self.schema, old, item);
            validator.run(run, &format!("{path}[{index}]"), item, old, ratchet.index(index));
        }
    }
}
