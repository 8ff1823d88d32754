//! Expressions of webhooks and policies, each compiled against what it can see and held to what it has to give.

use super::environment;
use crate::check::Environment;
use crate::expression::Expression;
use crate::types::Type;

/// An expression, or what is wrong with it in upstream's words.
pub type Compiled = Result<Expression, String>;

/// Compiles the expressions of one webhook or policy: those that come later see the variables of those before.
#[derive(Debug)]
pub struct Compiler {
    with_rights: Environment,
    without_rights: Environment,
}

impl Compiler {
    /// For a webhook, or a policy without variables; with `has_params`, expressions see `params`.
    #[must_use]
    pub fn new(has_params: bool) -> Self {
        let with_rights = environment::environment(has_params);
        let mut without_rights = with_rights.clone();
        environment::take_rights(&mut without_rights);
        Self { with_rights, without_rights }
    }

    /// For a policy that has, or could have, variables.
    #[must_use]
    pub fn with_variables(has_params: bool) -> Self {
        let mut compiler = Self::new(has_params);
        environment::declare_variables(&mut compiler.with_rights);
        environment::declare_variables(&mut compiler.without_rights);
        compiler
    }

    /// A condition or a validation.
    pub fn condition(&self, text: &str) -> Compiled {
        compile(text, &self.with_rights, &[Type::Bool])
    }

    /// A variable, which expressions after this see.
    pub fn variable(&mut self, name: &str, text: &str) -> Compiled {
        let compiled = compile(text, &self.with_rights, &[]);
        let declared = compiled.as_ref().map_or(Type::Dyn, |expression| environment::declared(expression.output()));
        environment::declare_variable(&mut self.with_rights, name, declared.clone());
        environment::declare_variable(&mut self.without_rights, name, declared);
        compiled
    }

    /// The expression of a message, which cannot ask for rights.
    pub fn message(&self, text: &str) -> Compiled {
        compile(text, &self.without_rights, &[Type::String])
    }

    /// An object that is laid over the one of the request.
    pub fn apply_configuration(&self, text: &str) -> Compiled {
        compile(text, &environment::mutating(&self.with_rights), &[Type::Struct("Object".into())])
    }

    /// A list of operations of a JSON patch.
    pub fn json_patch(&self, text: &str) -> Compiled {
        let operation = Type::Struct(environment::JSON_PATCH.into());
        compile(text, &environment::mutating(&self.with_rights), &[Type::list(operation)])
    }

    /// The value of an annotation for auditors.
    pub fn annotation(&self, text: &str) -> Compiled {
        compile(text, &self.with_rights, &[Type::String, Type::Null])
    }
}

/// Compiles an expression that has to give one of these types; any where there are none.
pub(super) fn compile(text: &str, environment: &Environment, wanted: &[Type]) -> Compiled {
    let expression =
        Expression::compile(text, environment).map_err(|problems| format!("compilation failed: {problems}"))?;
    let output = expression.output();
    if wanted.is_empty() || wanted.contains(output) {
        return Ok(expression);
    }
    let found = shown(output);
    match wanted {
        [one] => Err(format!("must evaluate to {} but got {found}", shown(one))),
        many => {
            let names: Vec<String> = many.iter().map(shown).collect();
            Err(format!("must evaluate to one of [{}] but got {found}", names.join(" ")))
        }
    }
}

/// A type as cel-go prints it where it is no matter of checking.
fn shown(one: &Type) -> String {
    match one {
        Type::List(element) => format!("list({})", shown(element)),
        Type::Map(key, value) => format!("map({}, {})", shown(key), shown(value)),
        Type::Type(Some(inner)) => format!("type({})", shown(inner)),
        Type::Opaque(name, parameters) if !parameters.is_empty() => {
            let parameters: Vec<String> = parameters.iter().map(shown).collect();
            format!("{name}({})", parameters.join(", "))
        }
        other => other.name().to_owned(),
    }
}
