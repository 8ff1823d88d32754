//! One expression for itself: compiled against variables, evaluated on data. Match conditions and policies are made of these.

use crate::check::{self, Environment};
use crate::program::{Activation, Authorizer, Check, Failure, Program, ResourceCheck, Step, Value, free};
use crate::types::Type;
use serde_json::Value as Json;
use std::sync::Arc;

/// An expression that compiled. Used by any number of threads.
#[derive(Debug)]
pub struct Expression {
    program: Program,
    output: Type,
    /// Of its text.
    length: usize,
}

/// Bytes of a compiled expression for a byte of its text: a node of some hundred bytes for a few characters.
const BYTES_PER_BYTE: usize = 64;

/// What variables stand for in one evaluation.
#[derive(Clone, Copy, Default)]
pub struct Variables<'a> {
    /// Data, by name. What is not here has no value.
    pub data: &'a [(&'a str, &'a Json)],
    /// `authorizer`
    pub authorizer: Option<&'a dyn Authorizer>,
    /// What `authorizer.requestResource` asks about.
    pub request_resource: Option<&'a ResourceCheck>,
}

/// What an expression gave.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// `null`
    Null,
    /// A bool.
    Bool(bool),
    /// A text.
    Text(String),
    /// Anything else.
    Other,
}

/// Why an expression gave nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvaluationError {
    /// What is wrong, as upstream tells it.
    pub message: String,
    /// Whether it was stopped since it cost too much.
    pub over_limit: bool,
}

/// The outcome of an evaluation and what it cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluated {
    /// What it gave.
    pub answer: Result<Answer, EvaluationError>,
    /// What it cost, for the budget it is taken from.
    pub cost: u64,
}

impl Expression {
    /// Compiles a text.
    ///
    /// # Errors
    /// What is wrong with it, as upstream's compiler displays it.
    pub fn compile(text: &str, environment: &Environment) -> Result<Self, String> {
        let checked = check::compile(text, environment)?;
        let output = checked.output().clone();
        let program = Program::new(&checked).map_err(|problem| format!("instantiation failed: {problem}"))?;
        Ok(Self { program, output, length: text.len() })
    }

    /// About how many bytes it takes: as much as its text, many times over, and what its patterns may compile to.
    #[must_use]
    pub fn weight(&self) -> usize {
        self.length * BYTES_PER_BYTE + self.program.weight_of_patterns()
    }

    /// What it gives.
    #[must_use]
    pub fn output(&self) -> &Type {
        &self.output
    }

    /// Evaluates within a limit.
    #[must_use]
    pub fn evaluate<'a>(&'a self, variables: &Variables<'a>, limit: u64) -> Evaluated {
        let outcome = self.program.evaluate(variables, limit);
        let answer = outcome.value.map(Answer::from).map_err(|failure| {
            let over_limit = matches!(failure, Failure::Cancelled(_));
            EvaluationError { message: failure.message().to_owned(), over_limit }
        });
        Evaluated { answer, cost: outcome.cost }
    }

    /// The value itself, for other expressions to go on with.
    pub(crate) fn value<'a>(
        &'a self,
        activation: &dyn Activation<'a>,
        limit: u64,
    ) -> (Result<Value<'a>, Failure>, u64) {
        let outcome = self.program.evaluate(activation, limit);
        (outcome.value, outcome.cost)
    }
}

impl From<Value<'_>> for Answer {
    fn from(value: Value<'_>) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(value) => Self::Bool(value),
            Value::String(text) => Self::Text(text.to_string()),
            _ => Self::Other,
        }
    }
}

impl<'a> Activation<'a> for Variables<'a> {
    fn resolve(&self, name: &str) -> Option<Result<Value<'a>, Failure>> {
        match name {
            "authorizer" => self.authorizer.map(|authorizer| Ok(Value::Check(Check::new(authorizer)))),
            "authorizer.requestResource" => {
                let (authorizer, resource) = (self.authorizer?, self.request_resource?);
                Some(Ok(Value::Check(Check::new(authorizer).at(Step::Resource(Arc::new(resource.clone()))))))
            }
            _ => self.data.iter().find(|(given, _)| *given == name).map(|(_, json)| Ok(free(json))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{Decision, PathCheck};
    use serde_json::json;

    /// Lets `get` of pods in `default`, and `/healthz`.
    struct Pods;

    impl Authorizer for Pods {
        fn resource(&self, account: Option<&(String, String)>, check: &ResourceCheck, verb: &str) -> Decision {
            let allowed =
                check.resource == "pods" && check.namespace == "default" && verb == "get" && account.is_none();
            Decision { allowed, reason: if allowed { "rule" } else { "" }.to_owned(), error: None }
        }

        fn path(&self, _: Option<&(String, String)>, check: &PathCheck, _: &str) -> Decision {
            Decision { allowed: check.path == "/healthz", ..Decision::default() }
        }
    }

    fn environment() -> Environment {
        let authorizer = Type::Struct("kubernetes.authorization.Authorizer".into());
        let resource = Type::Struct("kubernetes.authorization.ResourceCheck".into());
        let variables = [
            ("object".into(), Type::Dyn),
            ("authorizer".into(), authorizer),
            ("authorizer.requestResource".into(), resource),
        ];
        Environment { variables: variables.into(), ..Environment::default() }
    }

    #[test]
    fn an_expression_asks_who_may_do_what() {
        let object = json!({"spec": {"replicas": 3}});
        let resource =
            ResourceCheck { resource: "pods".to_owned(), namespace: "default".to_owned(), ..ResourceCheck::default() };
        for (text, expected) in [
            ("object.spec.replicas == 3", Answer::Bool(true)),
            ("authorizer.group('').resource('pods').namespace('default').check('get').allowed()", Answer::Bool(true)),
            (
                "authorizer.group('').resource('pods').namespace('default').check('get').reason()",
                Answer::Text("rule".to_owned()),
            ),
            ("authorizer.group('').resource('pods').namespace('other').check('get').allowed()", Answer::Bool(false)),
            ("authorizer.requestResource.check('get').allowed()", Answer::Bool(true)),
            ("authorizer.path('/healthz').check('get').allowed()", Answer::Bool(true)),
            (
                "authorizer.serviceAccount('ns', 'sa').group('').resource('pods').namespace('default').check('get').allowed()",
                Answer::Bool(false),
            ),
            ("null", Answer::Null),
            ("[1]", Answer::Other),
        ] {
            let expression = Expression::compile(text, &environment()).expect(text);
            let variables =
                Variables { data: &[("object", &object)], authorizer: Some(&Pods), request_resource: Some(&resource) };
            assert_eq!(expression.evaluate(&variables, 1_000_000).answer, Ok(expected), "{text}");
        }
    }

    #[test]
    fn questions_of_rights_are_dear() {
        let expression = Expression::compile("authorizer.path('/healthz').check('get').allowed()", &environment())
            .expect("an expression");
        let variables = Variables { authorizer: Some(&Pods), ..Variables::default() };
        let evaluated = expression.evaluate(&variables, 1_000_000);
        assert!(evaluated.cost > 350_000);
        let stopped = expression.evaluate(&variables, 1000).answer.expect_err("a limit");
        assert!(stopped.over_limit);
    }
}
