//! Mutating policies: what they make of an object, as something to be laid over it or as a patch.

use super::compile::{Compiled, Compiler};
use super::environment::Scope;
use super::purse::{OUT_OF_BUDGET, Purse, Refused};
use super::{Effort, MatchConditions, Matched, Review, TooLong, list, text, variables, weight};
use crate::program::{Elements, Key, List, Map, Value};
use crate::rules::BUDGET;
use crate::time;
use base64::Engine;
use serde_json::{Map as Fields, Value as Json, json};
use std::sync::Arc;

/// A MutatingAdmissionPolicy, compiled.
#[derive(Debug)]
pub struct MutatingPolicy {
    conditions: MatchConditions,
    variables: Vec<(Arc<str>, Compiled)>,
    mutations: Vec<Mutation>,
}

#[derive(Debug)]
struct Mutation {
    text: String,
    is_patch: bool,
    compiled: Compiled,
}

/// What a mutation does to an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// This is laid over it, as server-side apply does.
    Apply(Json),
    /// These operations of a JSON patch are applied to it.
    Patch(Vec<Json>),
}

impl MutatingPolicy {
    /// Compiles `spec` of a MutatingAdmissionPolicy.
    #[must_use]
    pub fn new(spec: &Json) -> Self {
        let (variables, compiler) = variables(spec);
        Self {
            conditions: MatchConditions::with(spec, &compiler),
            mutations: list(spec, "mutations").iter().map(|mutation| Mutation::new(mutation, &compiler)).collect(),
            variables,
        }
    }

    /// About how many bytes it takes.
    #[must_use]
    pub fn weight(&self) -> usize {
        let variables = self.variables.iter().map(|(_, compiled)| compiled);
        let mutations = self.mutations.iter().map(|mutation| &mutation.compiled);
        self.conditions.weight() + variables.chain(mutations).map(weight).sum::<usize>()
    }

    /// How many mutations it has; they are done one after the other.
    #[must_use]
    pub fn mutations(&self) -> usize {
        self.mutations.len()
    }

    /// Whether it is for a request.
    ///
    /// # Errors
    /// When that takes longer than a brief evaluation.
    pub fn matches<'a>(&'a self, review: Review<'a>, effort: Effort) -> Result<Matched, TooLong> {
        self.conditions.matches(review, effort)
    }

    /// What the mutation at `index` does; nothing where there is no such one. `Err` within says why it cannot be done.
    ///
    /// # Errors
    /// When that takes longer than a brief evaluation.
    pub fn change<'a>(
        &'a self,
        index: usize,
        review: Review<'a>,
        effort: Effort,
    ) -> Result<Result<Option<Change>, String>, TooLong> {
        let Some(mutation) = self.mutations.get(index) else { return Ok(Ok(None)) };
        if let Err(problem) = &mutation.compiled {
            return Ok(Err(problem.clone()));
        }
        let scope = Scope::new(review, &self.variables, effort.per_call());
        match Purse::new(effort, BUDGET.unsigned_abs()).value(&mutation.text, &mutation.compiled, &scope) {
            Ok(value) if mutation.is_patch => Ok(patch(&value).map(Some)),
            Ok(value) => Ok(configuration(&value).map(Some)),
            Err(Refused::Expression(problem)) => Ok(Err(problem)),
            Err(Refused::Budget) => Ok(Err(OUT_OF_BUDGET.to_owned())),
            Err(Refused::TooLong) => Err(TooLong),
        }
    }
}

impl Mutation {
    fn new(mutation: &Json, compiler: &Compiler) -> Self {
        let is_patch = text(mutation, "patchType") == "JSONPatch";
        let part = if is_patch { "jsonPatch" } else { "applyConfiguration" };
        let text = mutation.get(part).map(|part| text(part, "expression")).unwrap_or_default();
        let compiled = if is_patch { compiler.json_patch(text) } else { compiler.apply_configuration(text) };
        Self { text: text.to_owned(), is_patch, compiled }
    }
}

fn configuration(value: &Value<'_>) -> Result<Change, String> {
    let mut reader = Reader::default();
    reader.check_names(value)?;
    reader.json(value).map(Change::Apply)
}

fn patch(value: &Value<'_>) -> Result<Change, String> {
    let Value::List(operations) = value else {
        return Err("type mismatch: JSONPatchType.expression should evaluate to array".to_owned());
    };
    let mut reader = Reader::default();
    operations.iter().map(|one| reader.operation(&one?)).collect::<Result<_, _>>().map(Change::Patch)
}

/// Most parts and bytes of what an expression makes: values that stand in many places are one in memory, and many in JSON.
const MAX_SIZE: usize = 4 << 20;

/// Reads what an expression made, as far as there is room for it.
struct Reader {
    left: usize,
}

impl Default for Reader {
    fn default() -> Self {
        Self { left: MAX_SIZE }
    }
}

impl Reader {
    fn take(&mut self, size: usize) -> Result<(), String> {
        self.left = self.left.checked_sub(size + 1).ok_or("the expression makes too large an object")?;
        Ok(())
    }

    fn operation(&mut self, value: &Value<'_>) -> Result<Json, String> {
        let Value::Map(Map::Object(_, fields)) = value else {
            return Err("type mismatch: JSONPatchType.expression should evaluate to array of JSONPatch".to_owned());
        };
        let field = |name: &str| fields.get(&Key::String(name.into()));
        let text = |name: &str| match field(name) {
            Some(Value::String(text)) => text.to_string(),
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

    /// Types of objects are named by where they stand: `Object.spec` in the field `spec` of `Object`.
    fn check_names(&mut self, value: &Value<'_>) -> Result<(), String> {
        let Value::Map(Map::Object(name, _)) = value else { return Ok(()) };
        let mut wrong = Vec::new();
        self.names(value, &mut name.to_string(), &mut wrong)?;
        if wrong.is_empty() { Ok(()) } else { Err(format!("type mismatch: {}", wrong.join("\n"))) }
    }

    fn names(&mut self, value: &Value<'_>, expected: &mut String, wrong: &mut Vec<String>) -> Result<(), String> {
        self.take(0)?;
        match value {
            Value::Map(Map::Object(name, fields)) => {
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
            Value::Map(Map::Owned(entries)) => {
                entries.values().try_for_each(|value| self.names(value, expected, wrong))
            }
            Value::List(List { elements: Elements::Owned(values), .. }) => {
                values.iter().try_for_each(|value| self.names(value, expected, wrong))
            }
            _ => Ok(()),
        }
    }

    fn json(&mut self, value: &Value<'_>) -> Result<Json, String> {
        self.take(0)?;
        Ok(match value {
            Value::Null => Json::Null,
            Value::Bool(value) => (*value).into(),
            Value::Int(value) => (*value).into(),
            Value::Uint(value) => (*value).into(),
            Value::Double(value) => match serde_json::Number::from_f64(*value) {
                Some(number) => Json::Number(number),
                None => return Err(format!("cannot convert {value} to JSON")),
            },
            Value::String(text) => self.text((**text).to_owned())?,
            Value::Bytes(bytes) => self.text(base64::engine::general_purpose::STANDARD.encode(bytes))?,
            Value::Duration(nanos) => time::duration_text(*nanos).into(),
            Value::Timestamp(moment) => moment.to_string().into(),
            Value::List(list) => list.iter().map(|element| self.json(&element?)).collect::<Result<_, _>>()?,
            Value::Map(map) => self.fields(map)?,
            other => return Err(format!("unsupported conversion from {} to JSON", other.type_of().name())),
        })
    }

    fn text(&mut self, text: String) -> Result<Json, String> {
        self.take(text.len())?;
        Ok(text.into())
    }

    fn fields(&mut self, map: &Map<'_>) -> Result<Json, String> {
        let mut made = Fields::new();
        for key in map.keys() {
            let Value::String(name) = &key else {
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
