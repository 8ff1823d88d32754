//! Mutating policies: the apply configuration or the JSON patch that each mutation produces for an object.

use super::budget::{CostBudget, EvaluationRefusal, OUT_OF_BUDGET};
use super::compile::{CompiledExpression, PolicyCompiler};
use super::environment::PolicyScope;
use super::{
    ConditionMatch, EvaluationEffort, EvaluationTooLong, MatchConditions, ReviewVariables, list, text, variables,
    weight,
};
use crate::program::{CelList, CelListElements, CelMap, CelValue, Key};
use crate::rules::BUDGET;
use crate::time;
use base64::Engine;
use serde_json::{Map as Fields, Value as Json, json};
use std::sync::Arc;

/// Compiled MutatingAdmissionPolicy.
#[derive(Debug)]
pub struct MutatingPolicy {
    conditions: MatchConditions,
    variables: Vec<(Arc<str>, CompiledExpression)>,
    mutations: Vec<CompiledMutation>,
}

#[derive(Debug)]
struct CompiledMutation {
    text: String,
    is_patch: bool,
    compiled: CompiledExpression,
}

/// Patch of a mutation.
#[derive(Clone, Debug, PartialEq)]
pub enum MutationPatch {
    /// Apply configuration, merged as server-side apply does.
    Apply(Json),
    /// Operations of a JSON patch.
    Patch(Vec<Json>),
}

impl MutatingPolicy {
    /// Compiles `spec` of a MutatingAdmissionPolicy.
    #[must_use]
    pub fn new(spec: &Json) -> Self {
        let (variables, compiler) = variables(spec);
        Self {
            conditions: MatchConditions::with(spec, &compiler),
            mutations: list(spec, "mutations")
                .iter()
                .map(|mutation| CompiledMutation::new(mutation, &compiler))
                .collect(),
            variables,
        }
    }

    /// Returns the approximate size in bytes.
    #[must_use]
    pub fn weight(&self) -> usize {
        let variables = self.variables.iter().map(|(_, compiled)| compiled);
        let mutations = self.mutations.iter().map(|mutation| &mutation.compiled);
        self.conditions.weight() + variables.chain(mutations).map(weight).sum::<usize>()
    }

    /// Returns the number of mutations, which apply in order.
    #[must_use]
    pub fn mutations(&self) -> usize {
        self.mutations.len()
    }

    /// Returns true if the policy matches a request.
    ///
    /// # Errors
    /// Fails if the evaluation exceeds the limit for brief evaluations.
    pub fn matches<'a>(
        &'a self,
        review: ReviewVariables<'a>,
        effort: EvaluationEffort,
    ) -> Result<ConditionMatch, EvaluationTooLong> {
        self.conditions.matches(review, effort)
    }

    /// Returns the patch of the mutation at `index`; `None` if there is no such mutation. The inner `Err` gives the
    /// reason that it cannot be applied.
    ///
    /// # Errors
    /// Fails if the evaluation exceeds the limit for brief evaluations.
    pub fn change<'a>(
        &'a self,
        index: usize,
        review: ReviewVariables<'a>,
        effort: EvaluationEffort,
    ) -> Result<Result<Option<MutationPatch>, String>, EvaluationTooLong> {
        let Some(mutation) = self.mutations.get(index) else { return Ok(Ok(None)) };
        if let Err(problem) = &mutation.compiled {
            return Ok(Err(problem.clone()));
        }
        let scope = PolicyScope::new(review, &self.variables, effort.per_call());
        match CostBudget::new(effort, BUDGET.unsigned_abs()).value(&mutation.text, &mutation.compiled, &scope) {
            Ok(value) if mutation.is_patch => Ok(patch(&value).map(Some)),
            Ok(value) => Ok(configuration(&value).map(Some)),
            Err(EvaluationRefusal::Expression(problem)) => Ok(Err(problem)),
            Err(EvaluationRefusal::Budget) => Ok(Err(OUT_OF_BUDGET.to_owned())),
            Err(EvaluationRefusal::TooLong) => Err(EvaluationTooLong),
        }
    }
}

impl CompiledMutation {
    fn new(mutation: &Json, compiler: &PolicyCompiler) -> Self {
        let is_patch = text(mutation, "patchType") == "JSONPatch";
        let part = if is_patch { "jsonPatch" } else { "applyConfiguration" };
        let text = mutation.get(part).map(|part| text(part, "expression")).unwrap_or_default();
        let compiled = if is_patch { compiler.json_patch(text) } else { compiler.apply_configuration(text) };
        Self { text: text.to_owned(), is_patch, compiled }
    }
}

fn configuration(value: &CelValue<'_>) -> Result<MutationPatch, String> {
    let mut reader = MutationReader::default();
    reader.check_names(value)?;
    reader.json(value).map(MutationPatch::Apply)
}

fn patch(value: &CelValue<'_>) -> Result<MutationPatch, String> {
    let CelValue::List(operations) = value else {
        return Err("type mismatch: JSONPatchType.expression should evaluate to array".to_owned());
    };
    let mut reader = MutationReader::default();
    operations.iter().map(|one| reader.operation(&one?)).collect::<Result<_, _>>().map(MutationPatch::Patch)
}

/// Maximum parts and bytes of an expression's result. A shared value is stored once in memory, but written many times
/// in JSON.
const MAX_SIZE: usize = 4 << 20;

/// Converts the result of an expression to JSON, within the limits.
struct MutationReader {
    left: usize,
}

impl Default for MutationReader {
    fn default() -> Self {
        Self { left: MAX_SIZE }
    }
}

impl MutationReader {
    fn take(&mut self, size: usize) -> Result<(), String> {
        self.left = self.left.checked_sub(size + 1).ok_or("the expression makes too large an object")?;
        Ok(())
    }

    fn operation(&mut self, value: &CelValue<'_>) -> Result<Json, String> {
        let CelValue::Map(CelMap::Object(_, fields)) = value else {
            return Err("type mismatch: JSONPatchType.expression should evaluate to array of JSONPatch".to_owned());
        };
        let field = |name: &str| fields.get(&Key::String(name.into()));
        let text = |name: &str| match field(name) {
            Some(CelValue::String(text)) => text.to_string(),
            _ => String::new(),
        };
        let mut made = json!({"op": text("op"), "path": text("path")});
        if let Some(from) = Some(text("from")).filter(|from| !from.is_empty()) {
            made["from"] = from.into();
        }
        self.take(made.to_string().len())?;
        if let Some(value) = field("value") {
            self.check_names(value)?;
            made["value"] = self.json(value).map_err(|why| {
                format!("JSONPath valueExpression evaluated to a type that could not marshal to JSON: {why}")
            })?;
        }
        Ok(made)
    }

    /// Object types are named by their path: `Object.spec` is the type of the field `spec` of `Object`.
    fn check_names(&mut self, value: &CelValue<'_>) -> Result<(), String> {
        let CelValue::Map(CelMap::Object(name, _)) = value else { return Ok(()) };
        let mut wrong = Vec::new();
        self.names(value, &mut name.to_string(), &mut wrong)?;
        if wrong.is_empty() { Ok(()) } else { Err(format!("type mismatch: {}", wrong.join("\n"))) }
    }

    fn names(&mut self, value: &CelValue<'_>, expected: &mut String, wrong: &mut Vec<String>) -> Result<(), String> {
        self.take(0)?;
        match value {
            CelValue::Map(CelMap::Object(name, fields)) => {
                if **name != **expected {
                    wrong.push(format!(
                        "unexpected type name {name:?}, expected {expected:?}, which matches field name path from root Object type"
                    ));
                }
                let length = expected.len();
                for (key, value) in fields.iter() {
                    if let Key::String(key) = key {
                        expected.push('.');
                        expected.push_str(key);
                        self.names(value, expected, wrong)?;
                        expected.truncate(length);
                    }
                }
                Ok(())
            }
            CelValue::Map(CelMap::Owned(entries)) => {
                entries.values().try_for_each(|value| self.names(value, expected, wrong))
            }
            CelValue::List(CelList { elements: CelListElements::Owned(values), .. }) => {
                values.iter().try_for_each(|value| self.names(value, expected, wrong))
            }
            _ => Ok(()),
        }
    }

    fn json(&mut self, value: &CelValue<'_>) -> Result<Json, String> {
        self.take(0)?;
        Ok(match value {
            CelValue::Null => Json::Null,
            CelValue::Bool(value) => (*value).into(),
            CelValue::Int(value) => (*value).into(),
            CelValue::Uint(value) => (*value).into(),
            CelValue::Double(value) => match serde_json::Number::from_f64(*value) {
                Some(number) => Json::Number(number),
                None => return Err(format!("cannot convert {value} to JSON")),
            },
            CelValue::String(text) => self.text((**text).to_owned())?,
            CelValue::Bytes(bytes) => self.text(base64::engine::general_purpose::STANDARD.encode(bytes))?,
            CelValue::Duration(nanos) => time::duration_text(*nanos).into(),
            CelValue::Timestamp(moment) => moment.to_string().into(),
            CelValue::List(list) => list.iter().map(|element| self.json(&element?)).collect::<Result<_, _>>()?,
            CelValue::Map(map) => self.fields(map)?,
            other => return Err(format!("unsupported conversion from {} to JSON", other.type_of().name())),
        })
    }

    fn text(&mut self, text: String) -> Result<Json, String> {
        self.take(text.len())?;
        Ok(text.into())
    }

    fn fields(&mut self, map: &CelMap<'_>) -> Result<Json, String> {
        let mut made = Fields::new();
        for key in map.keys() {
            let CelValue::String(name) = &key else {
                return Err(format!("map key {:?} is of type {}, not string", key.plain(), key.type_of().name()));
            };
            self.take(name.len())?;
            if let Some(value) = map.find(&key)? {
                made.insert(name.to_string(), self.json(&value)?);
            }
        }
        Ok(Json::Object(made))
    }
}
