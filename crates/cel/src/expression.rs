//! Single expressions: compiled against variables, evaluated on data. Match conditions and policies consist of them.

use crate::check::{self, Environment};
use crate::program::{
    Activation, AuthorizerCheck, CelList, CelProgram, CelValue, EvaluationFailure, ExpressionAuthorizer, ResourceCheck,
    Step, free,
};
use crate::types::CelType;
use serde_json::Value as Json;
use std::sync::Arc;

/// Compiled expression. Any number of threads may use it.
#[derive(Debug)]
pub struct Expression {
    program: CelProgram,
    output: CelType,
    /// Length of its text.
    length: usize,
}

/// Memory of a compiled expression per byte of its text: a node takes some hundred bytes for a few characters.
const BYTES_PER_BYTE: usize = 64;

/// Variables of one evaluation.
#[derive(Clone, Copy, Default)]
pub struct ExpressionVariables<'a> {
    /// Data by name. Missing names have no value.
    pub data: &'a [(&'a str, &'a Json)],
    /// `authorizer`
    pub authorizer: Option<&'a dyn ExpressionAuthorizer>,
    /// Check behind `authorizer.requestResource`.
    pub request_resource: Option<&'a ResourceCheck>,
}

/// Value of an expression.
#[derive(Clone, Debug, PartialEq)]
pub enum ExpressionAnswer {
    /// `null`
    Null,
    /// A bool.
    Bool(bool),
    /// A text.
    Text(String),
    /// A list of texts.
    Texts(Vec<String>),
    /// Anything else.
    Other,
}

/// Reason that an expression gave no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvaluationError {
    /// Error in kube-apiserver's words.
    pub message: String,
    /// True if it exceeded its cost limit.
    pub over_limit: bool,
}

/// Result of an evaluation with its cost.
#[derive(Clone, Debug, PartialEq)]
pub struct EvaluatedExpression {
    /// Value, or the error.
    pub answer: Result<ExpressionAnswer, EvaluationError>,
    /// Cost, for the caller's budget.
    pub cost: u64,
}

impl Expression {
    /// Compiles a text.
    ///
    /// # Errors
    /// The error as kube-apiserver's compiler displays it.
    pub fn compile(text: &str, environment: &Environment) -> Result<Self, String> {
        let checked = check::compile(text, environment)?;
        let output = checked.output().clone();
        let program = CelProgram::new(&checked).map_err(|problem| format!("instantiation failed: {problem}"))?;
        Ok(Self { program, output, length: text.len() })
    }

    /// Returns the approximate size in bytes: a multiple of its text, and the size of its compiled patterns.
    #[must_use]
    pub fn weight(&self) -> usize {
        self.length * BYTES_PER_BYTE + self.program.weight_of_patterns()
    }

    /// Evaluates the expression.
    #[must_use]
    pub fn output(&self) -> &CelType {
        &self.output
    }

    /// Evaluates within a limit.
    #[must_use]
    pub fn evaluate<'a>(&'a self, variables: &ExpressionVariables<'a>, limit: u64) -> EvaluatedExpression {
        let outcome = self.program.evaluate(variables, limit);
        let answer = outcome.value.map(ExpressionAnswer::from).map_err(|failure| {
            let over_limit = matches!(failure, EvaluationFailure::Cancelled(_));
            EvaluationError { message: failure.message().to_owned(), over_limit }
        });
        EvaluatedExpression { answer, cost: outcome.cost }
    }

    /// Returns the value itself, as input of other expressions.
    pub(crate) fn value<'a>(
        &'a self,
        activation: &dyn Activation<'a>,
        limit: u64,
    ) -> (Result<CelValue<'a>, EvaluationFailure>, u64) {
        let outcome = self.program.evaluate(activation, limit);
        (outcome.value, outcome.cost)
    }
}

impl From<CelValue<'_>> for ExpressionAnswer {
    fn from(value: CelValue<'_>) -> Self {
        match value {
            CelValue::Null => Self::Null,
            CelValue::Bool(value) => Self::Bool(value),
            CelValue::String(text) => Self::Text(text.to_string()),
            CelValue::List(list) => texts_of(&list).map_or(Self::Other, Self::Texts),
            _ => Self::Other,
        }
    }
}

/// Returns the elements of a list that consists of texts only.
fn texts_of(list: &CelList<'_>) -> Option<Vec<String>> {
    let text = |at| match list.get(at) {
        Some(Ok(CelValue::String(text))) => Some(text.to_string()),
        _ => None,
    };
    (0..list.len()).map(text).collect()
}

impl<'a> Activation<'a> for ExpressionVariables<'a> {
    fn resolve(&self, name: &str) -> Option<Result<CelValue<'a>, EvaluationFailure>> {
        match name {
            "authorizer" => self.authorizer.map(|authorizer| Ok(CelValue::Check(AuthorizerCheck::new(authorizer)))),
            "authorizer.requestResource" => {
                let (authorizer, resource) = (self.authorizer?, self.request_resource?);
                Some(Ok(CelValue::Check(
                    AuthorizerCheck::new(authorizer).at(Step::Resource(Arc::new(resource.clone()))),
                )))
            }
            _ => self.data.iter().find(|(given, _)| *given == name).map(|(_, json)| Ok(free(json))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{AuthorizerDecision, PathCheck};
    use serde_json::json;

    /// Authorizer that allows `get` of pods in `default`, and `/healthz`.
    struct Pods;

    impl ExpressionAuthorizer for Pods {
        fn resource(
            &self,
            account: Option<&(String, String)>,
            check: &ResourceCheck,
            verb: &str,
        ) -> AuthorizerDecision {
            let allowed =
                check.resource == "pods" && check.namespace == "default" && verb == "get" && account.is_none();
            AuthorizerDecision { allowed, reason: if allowed { "rule" } else { "" }.to_owned(), error: None }
        }

        fn path(&self, _: Option<&(String, String)>, check: &PathCheck, _: &str) -> AuthorizerDecision {
            AuthorizerDecision { allowed: check.path == "/healthz", ..AuthorizerDecision::default() }
        }
    }

    fn environment() -> Environment {
        let authorizer = CelType::Struct("kubernetes.authorization.Authorizer".into());
        let resource = CelType::Struct("kubernetes.authorization.ResourceCheck".into());
        let variables = [
            ("object".into(), CelType::Dyn),
            ("authorizer".into(), authorizer),
            ("authorizer.requestResource".into(), resource),
        ];
        Environment { variables: variables.into(), ..Environment::default() }
    }

    #[test]
    fn an_expression_queries_the_authorizer() {
        let object = json!({"spec": {"replicas": 3}});
        let resource =
            ResourceCheck { resource: "pods".to_owned(), namespace: "default".to_owned(), ..ResourceCheck::default() };
        for (text, expected) in [
            ("object.spec.replicas == 3", ExpressionAnswer::Bool(true)),
            (
                "authorizer.group('').resource('pods').namespace('default').check('get').allowed()",
                ExpressionAnswer::Bool(true),
            ),
            (
                "authorizer.group('').resource('pods').namespace('default').check('get').reason()",
                ExpressionAnswer::Text("rule".to_owned()),
            ),
            (
                "authorizer.group('').resource('pods').namespace('other').check('get').allowed()",
                ExpressionAnswer::Bool(false),
            ),
            ("authorizer.requestResource.check('get').allowed()", ExpressionAnswer::Bool(true)),
            ("authorizer.path('/healthz').check('get').allowed()", ExpressionAnswer::Bool(true)),
            (
                "authorizer.serviceAccount('ns', 'sa').group('').resource('pods').namespace('default').check('get').allowed()",
                ExpressionAnswer::Bool(false),
            ),
            ("null", ExpressionAnswer::Null),
            ("[1]", ExpressionAnswer::Other),
        ] {
            let expression = Expression::compile(text, &environment()).expect(text);
            let variables = ExpressionVariables {
                data: &[("object", &object)],
                authorizer: Some(&Pods),
                request_resource: Some(&resource),
            };
            assert_eq!(expression.evaluate(&variables, 1_000_000).answer, Ok(expected), "{text}");
        }
    }

    #[test]
    fn questions_of_rights_are_dear() {
        let expression = Expression::compile("authorizer.path('/healthz').check('get').allowed()", &environment())
            .expect("an expression");
        let variables = ExpressionVariables { authorizer: Some(&Pods), ..ExpressionVariables::default() };
        let evaluated = expression.evaluate(&variables, 1_000_000);
        assert!(evaluated.cost > 350_000);
        let stopped = expression.evaluate(&variables, 1000).answer.expect_err("a limit");
        assert!(stopped.over_limit);
    }
}
