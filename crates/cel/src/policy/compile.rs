//! Compilation of the expressions of webhooks and policies, with the variables of each and its required type.

use super::environment;
use crate::check::Environment;
use crate::expression::Expression;
use crate::types::CelType;

/// Expression, or its error in kube-apiserver's words.
pub type CompiledExpression = Result<Expression, String>;

/// Compiler for the expressions of one webhook or policy. Later expressions see the variables of earlier ones.
#[derive(Debug)]
pub struct PolicyCompiler {
    with_rights: Environment,
    without_rights: Environment,
}

impl PolicyCompiler {
    /// Creates a compiler for a webhook, or for a policy without variables. With `has_params`, expressions see
    /// `params`.
    #[must_use]
    pub fn new(has_params: bool) -> Self {
        let with_rights = environment::environment(has_params);
        let mut without_rights = with_rights.clone();
        environment::take_rights(&mut without_rights);
        Self { with_rights, without_rights }
    }

    /// Creates a compiler for a policy that may have variables.
    #[must_use]
    pub fn with_variables(has_params: bool) -> Self {
        let mut compiler = Self::new(has_params);
        environment::declare_variables(&mut compiler.with_rights);
        environment::declare_variables(&mut compiler.without_rights);
        compiler
    }

    /// Compiles a condition or a validation.
    pub fn condition(&self, text: &str) -> CompiledExpression {
        compile(text, &self.with_rights, &[CelType::Bool])
    }

    /// Compiles a variable, which later expressions see.
    pub fn variable(&mut self, name: &str, text: &str) -> CompiledExpression {
        let compiled = compile(text, &self.with_rights, &[]);
        let declared = compiled.as_ref().map_or(CelType::Dyn, |expression| environment::declared(expression.output()));
        environment::declare_variable(&mut self.with_rights, name, declared.clone());
        environment::declare_variable(&mut self.without_rights, name, declared);
        compiled
    }

    /// Compiles a message expression, which has no authorizer.
    pub fn message(&self, text: &str) -> CompiledExpression {
        compile(text, &self.without_rights, &[CelType::String])
    }

    /// Compiles an apply configuration, which is merged into the object of the request.
    pub fn apply_configuration(&self, text: &str) -> CompiledExpression {
        compile(text, &environment::mutating(&self.with_rights), &[CelType::Struct("Object".into())])
    }

    /// Compiles an expression that returns the operations of a JSON patch.
    pub fn json_patch(&self, text: &str) -> CompiledExpression {
        let operation = CelType::Struct(environment::JSON_PATCH.into());
        compile(text, &environment::mutating(&self.with_rights), &[CelType::list(operation)])
    }

    /// Compiles the value of an audit annotation.
    pub fn annotation(&self, text: &str) -> CompiledExpression {
        compile(text, &self.with_rights, &[CelType::String, CelType::Null])
    }
}

/// Compiles an expression whose value must have one of `types`; any type if `types` is empty.
pub(super) fn compile(text: &str, environment: &Environment, wanted: &[CelType]) -> CompiledExpression {
    let expression =
        Expression::compile(text, environment).map_err(|problems| format!("compilation failed: {problems}"))?;
    let output = expression.output();
    if wanted.is_empty() || wanted.contains(output) {
        return Ok(expression);
    }
    let found = type_text(output);
    match wanted {
        [one] => Err(format!("must evaluate to {} but got {found}", type_text(one))),
        many => {
            let names: Vec<String> = many.iter().map(type_text).collect();
            Err(format!("must evaluate to one of [{}] but got {found}", names.join(" ")))
        }
    }
}

/// Formats a type as cel-go prints it in errors outside the type check.
fn type_text(one: &CelType) -> String {
    match one {
        CelType::List(element) => format!("list({})", type_text(element)),
        CelType::Map(key, value) => format!("map({}, {})", type_text(key), type_text(value)),
        CelType::Type(Some(inner)) => format!("type({})", type_text(inner)),
        CelType::Opaque(name, parameters) if !parameters.is_empty() => {
            let parameters: Vec<String> = parameters.iter().map(type_text).collect();
            format!("{name}({})", parameters.join(", "))
        }
        other => other.name().to_owned(),
    }
}
