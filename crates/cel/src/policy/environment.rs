//! Environments of policy expressions.

use super::CompiledExpression;
use crate::check::Environment;
use crate::expression::ExpressionVariables;
use crate::program::{Activation, CelValue, EvaluationFailure};
use crate::types::CelType;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

const VARIABLES: &str = "kubernetes.variables";
/// The type of an operation of a JSON patch.
pub(super) const JSON_PATCH: &str = "JSONPatch";
const AUTHORIZER: &str = "authorizer";
const REQUEST_RESOURCE: &str = "authorizer.requestResource";

fn fields(all: &[(&str, CelType)]) -> BTreeMap<Arc<str>, CelType> {
    all.iter().map(|(name, one)| ((*name).into(), one.clone())).collect()
}

fn object(name: &str) -> CelType {
    CelType::Struct(name.into())
}

/// Returns the environment of policies: `object`, `oldObject`, `request`, `namespaceObject`, `params` and `authorizer`.
pub(super) fn environment(has_params: bool) -> Environment {
    let text = || CelType::String;
    let texts = || CelType::list(CelType::String);
    let text_map = || CelType::map(CelType::String, CelType::String);
    let (kind, resource, user) =
        ("kubernetes.GroupVersionKind", "kubernetes.GroupVersionResource", "kubernetes.UserInfo");
    let mut environment = Environment::default();
    let mut declare = |name: &str, all: &[(&str, CelType)]| environment.objects.insert(name.into(), fields(all));
    declare(kind, &[("group", text()), ("version", text()), ("kind", text())]);
    declare(resource, &[("group", text()), ("version", text()), ("resource", text())]);
    let extra = CelType::map(CelType::String, texts());
    declare(user, &[("username", text()), ("uid", text()), ("groups", texts()), ("extra", extra)]);
    declare(
        "kubernetes.AdmissionRequest",
        &[
            ("kind", object(kind)),
            ("resource", object(resource)),
            ("subResource", text()),
            ("requestKind", object(kind)),
            ("requestResource", object(resource)),
            ("requestSubResource", text()),
            ("name", text()),
            ("__namespace__", text()),
            ("operation", text()),
            ("userInfo", object(user)),
            ("dryRun", CelType::Bool),
            ("options", CelType::Dyn),
        ],
    );
    let (metadata, spec, status) =
        ("kubernetes.NamespaceMetadata", "kubernetes.NamespaceSpec", "kubernetes.NamespaceStatus");
    let condition = "kubernetes.NamespaceCondition";
    declare(
        metadata,
        &[
            ("name", text()),
            ("generateName", text()),
            ("__namespace__", text()),
            ("labels", text_map()),
            ("annotations", text_map()),
            ("UID", text()),
            ("creationTimestamp", CelType::Timestamp),
            ("deletionGracePeriodSeconds", CelType::Int),
            ("deletionTimestamp", CelType::Timestamp),
            ("generation", CelType::Int),
            ("resourceVersion", text()),
            ("finalizers", texts()),
        ],
    );
    declare(spec, &[("finalizers", texts())]);
    let changed = ("lastTransitionTime", CelType::Timestamp);
    declare(condition, &[("status", text()), ("type", text()), changed, ("message", text()), ("reason", text())]);
    declare(status, &[("conditions", CelType::list(object(condition))), ("phase", text())]);
    declare(
        "kubernetes.Namespace",
        &[("metadata", object(metadata)), ("spec", object(spec)), ("status", object(status))],
    );
    let variables = &mut environment.variables;
    variables.insert("object".into(), CelType::Dyn);
    variables.insert("oldObject".into(), CelType::Dyn);
    variables.insert("request".into(), object("kubernetes.AdmissionRequest"));
    variables.insert("namespaceObject".into(), object("kubernetes.Namespace"));
    if has_params {
        variables.insert("params".into(), CelType::Dyn);
    }
    variables.insert(AUTHORIZER.into(), object("kubernetes.authorization.Authorizer"));
    variables.insert(REQUEST_RESOURCE.into(), object("kubernetes.authorization.ResourceCheck"));
    environment
}

/// Removes `authorizer` and `authorizer.requestResource`.
pub(super) fn take_rights(environment: &mut Environment) {
    environment.variables.remove(AUTHORIZER);
    take_request_resource(environment);
}

/// Removes `authorizer.requestResource`.
pub(super) fn take_request_resource(environment: &mut Environment) {
    environment.variables.remove(REQUEST_RESOURCE);
}

/// Declares `variables` without any field.
pub(super) fn declare_variables(environment: &mut Environment) {
    environment.objects.insert(VARIABLES.into(), BTreeMap::new());
    environment.variables.insert("variables".into(), object(VARIABLES));
}

/// Returns the environment with the types that mutations construct.
pub(super) fn mutating(environment: &Environment) -> Environment {
    let mut environment = Environment { open_objects: true, mutation: true, ..environment.clone() };
    let text = || CelType::String;
    let operation = fields(&[("op", text()), ("path", text()), ("from", text()), ("value", CelType::Dyn)]);
    environment.objects.insert(JSON_PATCH.into(), operation);
    environment
}

/// Returns the type of a variable as later expressions see it: scalars, lists and maps keep their type, all other types
/// are dynamic.
pub(super) fn declared(output: &CelType) -> CelType {
    match output {
        CelType::List(element) => CelType::list(declared(element)),
        CelType::Map(key, value) => CelType::map(declared(key), declared(value)),
        CelType::Any
        | CelType::Null
        | CelType::Bool
        | CelType::Int
        | CelType::Uint
        | CelType::Double
        | CelType::String
        | CelType::Bytes
        | CelType::Duration
        | CelType::Timestamp => output.clone(),
        CelType::Error
        | CelType::Dyn
        | CelType::Struct(_)
        | CelType::Opaque(..)
        | CelType::Type(_)
        | CelType::Param(_)
        | CelType::Var(_) => CelType::Dyn,
    }
}

/// Declares `variables.name` for later expressions.
pub(super) fn declare_variable(environment: &mut Environment, name: &str, one: CelType) {
    environment.variables.insert(format!("variables.{name}").into(), one.clone());
    if let Some(fields) = environment.objects.get_mut(VARIABLES) {
        fields.insert(name.into(), one);
    }
}

/// Variables of a policy: `object`, `oldObject`, `request`, `params`, `namespaceObject`. Missing ones are `null`.
pub type PolicyVariables<'a> = ExpressionVariables<'a>;

/// Values of one policy's run: the given variables, and computed ones that are evaluated on first use.
pub(super) struct PolicyScope<'a> {
    given: PolicyVariables<'a>,
    variables: &'a [(Arc<str>, CompiledExpression)],
    /// Cost limit of one variable.
    limit: u64,
    known: Mutex<NamedVariable<'a>>,
}

#[derive(Default)]
struct NamedVariable<'a> {
    values: BTreeMap<usize, Result<CelValue<'a>, EvaluationFailure>>,
    cost: u64,
}

impl<'a> PolicyScope<'a> {
    pub(super) fn new(given: PolicyVariables<'a>, variables: &'a [(Arc<str>, CompiledExpression)], limit: u64) -> Self {
        Self { given, variables, limit, known: Mutex::default() }
    }

    /// Returns the cost of variables since the last call.
    pub(super) fn take_cost(&self) -> u64 {
        self.known.lock().map_or(0, |mut known| std::mem::take(&mut known.cost))
    }

    fn variable(&self, name: &str) -> Option<Result<CelValue<'a>, EvaluationFailure>> {
        let index = self.variables.iter().rposition(|(own, _)| &**own == name)?;
        if let Ok(known) = self.known.lock()
            && let Some(value) = known.values.get(&index)
        {
            return Some(value.clone());
        }
        let value = match &self.variables[index].1 {
            Err(problem) => {
                Err(EvaluationFailure::Error(format!("composited variable {name:?} fails to compile: {problem}")))
            }
            Ok(expression) => {
                let (value, cost) = expression.value(self, self.limit);
                if let Ok(mut known) = self.known.lock() {
                    known.cost = known.cost.saturating_add(cost);
                }
                value.map_err(|failure| match failure {
                    EvaluationFailure::Error(problem) => {
                        EvaluationFailure::Error(format!("composited variable {name:?} fails to evaluate: {problem}"))
                    }
                    cancelled @ EvaluationFailure::Cancelled(_) => cancelled,
                })
            }
        };
        if let Ok(mut known) = self.known.lock() {
            known.values.insert(index, value.clone());
        }
        Some(value)
    }
}

impl<'a> Activation<'a> for PolicyScope<'a> {
    fn resolve(&self, name: &str) -> Option<Result<CelValue<'a>, EvaluationFailure>> {
        match name.strip_prefix("variables.") {
            Some(variable) => self.variable(variable),
            None => self.given.resolve(name),
        }
    }
}
