//! Rules of one node of a schema.

use super::valid_field_path;
use crate::check::{self, Environment, ObjectTypes};
use crate::deep;
use crate::estimate;
use crate::program::CelProgram;
use crate::schema::{DeclaredType, MAX_REQUEST_BYTES, RuleSchema, ValidationRule};
use crate::types::CelType;

/// A rule that was compiled, or what is wrong with it.
#[derive(Debug, Default)]
pub struct CompiledRules {
    pub(super) program: Option<CelProgram>,
    /// Error of the rule.
    pub problem: Option<RuleProblem>,
    /// True if it uses `oldSelf`.
    pub uses_old_self: bool,
    /// Estimated maximum cost of one run.
    pub max_cost: u64,
    /// Maximum number of runs, if nothing else bounds it.
    pub max_cardinality: u64,
    pub(super) message: Option<CelProgram>,
    /// Error of `messageExpression`.
    pub message_problem: Option<RuleProblem>,
    /// Estimated maximum cost of `messageExpression`.
    pub message_max_cost: u64,
    pub(super) field_path: String,
}

/// Error of an expression, in kube-apiserver's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleProblem(pub String);

/// Name of the type of `self`, which appears in errors.
const SELF: &str = "selfType";

/// Compiles the rules of a node with a declared type.
#[must_use]
pub fn compile(schema: &RuleSchema, rules: &[ValidationRule], declared: &DeclaredType) -> Vec<CompiledRules> {
    if rules.is_empty() {
        return Vec::new();
    }
    let mut objects = ObjectTypes::new();
    let own = declared.declare(SELF, &mut objects);
    let environment = |old: CelType| Environment {
        variables: [("self".into(), own.clone()), ("oldSelf".into(), old)].into(),
        objects: objects.clone(),
        ..Environment::default()
    };
    let (plain, optional) = (environment(own.clone()), environment(CelType::optional(own.clone())));
    let cardinality = u64::try_from(MAX_REQUEST_BYTES / (declared.min_bytes + 1)).unwrap_or_default();
    let one = |rule: &ValidationRule| {
        let environment = if rule.optional_old_self == Some(true) { &optional } else { &plain };
        compile_rule(schema, rule, environment, declared, cardinality)
    };
    rules.iter().map(one).collect()
}

fn compile_rule(
    schema: &RuleSchema,
    rule: &ValidationRule,
    environment: &Environment,
    declared: &DeclaredType,
    cardinality: u64,
) -> CompiledRules {
    let mut compiled = CompiledRules::default();
    if rule.rule.trim().is_empty() {
        return compiled;
    }
    let checked = match check::compile(&rule.rule, environment) {
        Ok(checked) => checked,
        Err(problems) => return compiled.wrong(format!("compilation failed: {problems}")),
    };
    if *checked.output() != CelType::Bool {
        return compiled.wrong("cel expression must evaluate to a bool".to_owned());
    }
    compiled.uses_old_self = checked.variables.iter().any(|name| &**name == "oldSelf");
    match CelProgram::new(&checked) {
        Ok(program) => compiled.program = Some(program),
        Err(problem) => return compiled.wrong(format!("program instantiation failed: {problem}")),
    }
    compiled.max_cost = cost(&checked, declared);
    compiled.max_cardinality = cardinality;
    if !rule.message_expression.is_empty()
        && let Err(problem) = compiled.compile_message(&rule.message_expression, environment, declared)
    {
        compiled.message_problem = Some(RuleProblem(problem));
        return compiled;
    }
    if !rule.field_path.is_empty() {
        compiled.field_path = valid_field_path(&rule.field_path, schema).unwrap_or_default();
    }
    compiled
}

/// Returns the maximum cost of an expression.
fn cost(checked: &check::CheckedExpression, declared: &DeclaredType) -> u64 {
    let deep = checked.root.is_deeper_than(deep::SHALLOW);
    deep::run(deep, || estimate::estimate(checked, Some(declared)).max).unwrap_or(u64::MAX)
}

impl CompiledRules {
    fn wrong(mut self, problem: String) -> Self {
        self.problem = Some(RuleProblem(problem));
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
        if *checked.output() != CelType::String {
            return Err("messageExpression must evaluate to a string".to_owned());
        }
        let program = CelProgram::new(&checked)
            .map_err(|problem| format!("messageExpression instantiation failed: {problem}"))?;
        self.message_max_cost = cost(&checked, declared);
        self.message = Some(program);
        Ok(())
    }
}
