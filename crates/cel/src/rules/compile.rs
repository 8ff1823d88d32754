//! Rules of one node of a schema.

use super::valid_field_path;
use crate::check::{self, Environment, ObjectTypes};
use crate::deep;
use crate::estimate;
use crate::program::Program;
use crate::schema::{DeclaredType, MAX_REQUEST_BYTES, Rule, Schema};
use crate::types::Type;

/// A rule that was compiled, or what is wrong with it.
#[derive(Debug, Default)]
pub struct Compiled {
    pub(super) program: Option<Program>,
    /// What is wrong with the rule.
    pub problem: Option<Problem>,
    /// Whether it looks at `oldSelf`.
    pub uses_old_self: bool,
    /// What it is estimated to cost at most, once.
    pub max_cost: u64,
    /// How often it can be run where nothing else bounds that.
    pub max_cardinality: u64,
    pub(super) message: Option<Program>,
    /// What is wrong with `messageExpression`.
    pub message_problem: Option<Problem>,
    /// What that is estimated to cost at most.
    pub message_max_cost: u64,
    pub(super) field_path: String,
}

/// What is wrong with an expression, as upstream tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem(pub String);

/// The type that values of a rule are of; its name is told in errors.
const SELF: &str = "selfType";

/// Compiles the rules of a node, whose values are of a declared type.
#[must_use]
pub fn compile(schema: &Schema, rules: &[Rule], declared: &DeclaredType) -> Vec<Compiled> {
    if rules.is_empty() {
        return Vec::new();
    }
    let mut objects = ObjectTypes::new();
    let own = declared.declare(SELF, &mut objects);
    let environment = |old: Type| Environment {
        variables: [("self".into(), own.clone()), ("oldSelf".into(), old)].into(),
        objects: objects.clone(),
        ..Environment::default()
    };
    let (plain, optional) = (environment(own.clone()), environment(Type::optional(own.clone())));
    let cardinality = u64::try_from(MAX_REQUEST_BYTES / (declared.min_bytes + 1)).unwrap_or_default();
    let one = |rule: &Rule| {
        let environment = if rule.optional_old_self == Some(true) { &optional } else { &plain };
        compile_rule(schema, rule, environment, declared, cardinality)
    };
    rules.iter().map(one).collect()
}

fn compile_rule(
    schema: &Schema,
    rule: &Rule,
    environment: &Environment,
    declared: &DeclaredType,
    cardinality: u64,
) -> Compiled {
    let mut compiled = Compiled::default();
    if rule.rule.trim().is_empty() {
        return compiled;
    }
    let checked = match check::compile(&rule.rule, environment) {
        Ok(checked) => checked,
        Err(problems) => return compiled.wrong(format!("compilation failed: {problems}")),
    };
    if *checked.output() != Type::Bool {
        return compiled.wrong("cel expression must evaluate to a bool".to_owned());
    }
    compiled.uses_old_self = checked.variables.iter().any(|name| &**name == "oldSelf");
    match Program::new(&checked) {
        Ok(program) => compiled.program = Some(program),
        Err(problem) => return compiled.wrong(format!("program instantiation failed: {problem}")),
    }
    compiled.max_cost = cost(&checked, declared);
    compiled.max_cardinality = cardinality;
    if !rule.message_expression.is_empty()
        && let Err(problem) = compiled.compile_message(&rule.message_expression, environment, declared)
    {
        compiled.message_problem = Some(Problem(problem));
        return compiled;
    }
    if !rule.field_path.is_empty() {
        compiled.field_path = valid_field_path(&rule.field_path, schema).unwrap_or_default();
    }
    compiled
}

/// The most an expression can cost.
fn cost(checked: &check::Checked, declared: &DeclaredType) -> u64 {
    let deep = checked.root.is_deeper_than(deep::SHALLOW);
    deep::run(deep, || estimate::estimate(checked, Some(declared)).max).unwrap_or(u64::MAX)
}

impl Compiled {
    fn wrong(mut self, problem: String) -> Self {
        self.problem = Some(Problem(problem));
        self
    }

    fn compile_message(
        &mut self,
        text: &str,
        environment: &Environment,
        declared: &DeclaredType,
    ) -> Result<(), String> {
        let checked = check::compile(text, environment)
            .map_err(|problems| format!("messageExpression compilation failed: {problems}"))?;
        if *checked.output() != Type::String {
            return Err("messageExpression must evaluate to a string".to_owned());
        }
        let program =
            Program::new(&checked).map_err(|problem| format!("messageExpression instantiation failed: {problem}"))?;
        self.message_max_cost = cost(&checked, declared);
        self.message = Some(program);
        Ok(())
    }
}
