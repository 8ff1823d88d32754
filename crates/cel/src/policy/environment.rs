//! What an expression of a policy can see.

use super::Compiled;
use crate::check::Environment;
use crate::expression::Variables;
use crate::program::{Activation, Failure, Value};
use crate::types::Type;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

const VARIABLES: &str = "kubernetes.variables";
/// The type of an operation of a JSON patch.
pub(super) const JSON_PATCH: &str = "JSONPatch";
const AUTHORIZER: &str = "authorizer";
const REQUEST_RESOURCE: &str = "authorizer.requestResource";

fn fields(all: &[(&str, Type)]) -> BTreeMap<Arc<str>, Type> {
    all.iter().map(|(name, one)| ((*name).into(), one.clone())).collect()
}

fn object(name: &str) -> Type {
    Type::Struct(name.into())
}

/// `request`, `object`, `oldObject`, `namespaceObject`, rights, and what else there is.
pub(super) fn environment(has_params: bool) -> Environment {
    let text = || Type::String;
    let texts = || Type::list(Type::String);
    let text_map = || Type::map(Type::String, Type::String);
    let (kind, resource, user) =
        ("kubernetes.GroupVersionKind", "kubernetes.GroupVersionResource", "kubernetes.UserInfo");
    let mut environment = Environment::default();
    let mut declare = |name: &str, all: &[(&str, Type)]| environment.objects.insert(name.into(), fields(all));
    declare(kind, &[("group", text()), ("version", text()), ("kind", text())]);
    declare(resource, &[("group", text()), ("version", text()), ("resource", text())]);
    let extra = Type::map(Type::String, texts());
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
            ("dryRun", Type::Bool),
            ("options", Type::Dyn),
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
            ("creationTimestamp", Type::Timestamp),
            ("deletionGracePeriodSeconds", Type::Int),
            ("deletionTimestamp", Type::Timestamp),
            ("generation", Type::Int),
            ("resourceVersion", text()),
            ("finalizers", texts()),
        ],
    );
    declare(spec, &[("finalizers", texts())]);
    let changed = ("lastTransitionTime", Type::Timestamp);
    declare(condition, &[("status", text()), ("type", text()), changed, ("message", text()), ("reason", text())]);
    declare(status, &[("conditions", Type::list(object(condition))), ("phase", text())]);
    declare(
        "kubernetes.Namespace",
        &[("metadata", object(metadata)), ("spec", object(spec)), ("status", object(status))],
    );
    let variables = &mut environment.variables;
    variables.insert("object".into(), Type::Dyn);
    variables.insert("oldObject".into(), Type::Dyn);
    variables.insert("request".into(), object("kubernetes.AdmissionRequest"));
    variables.insert("namespaceObject".into(), object("kubernetes.Namespace"));
    if has_params {
        variables.insert("params".into(), Type::Dyn);
    }
    variables.insert(AUTHORIZER.into(), object("kubernetes.authorization.Authorizer"));
    variables.insert(REQUEST_RESOURCE.into(), object("kubernetes.authorization.ResourceCheck"));
    environment
}

/// Leaves out the questions of who may do what.
pub(super) fn take_rights(environment: &mut Environment) {
    environment.variables.remove(AUTHORIZER);
    take_request_resource(environment);
}

/// Leaves out what the request asks for as a question.
pub(super) fn take_request_resource(environment: &mut Environment) {
    environment.variables.remove(REQUEST_RESOURCE);
}

/// Makes `variables` known, of which there is none yet.
pub(super) fn declare_variables(environment: &mut Environment) {
    environment.objects.insert(VARIABLES.into(), BTreeMap::new());
    environment.variables.insert("variables".into(), object(VARIABLES));
}

/// The same, with the types that mutations are made of.
pub(super) fn mutating(environment: &Environment) -> Environment {
    let mut environment = Environment { open_objects: true, mutation: true, ..environment.clone() };
    let text = || Type::String;
    let operation = fields(&[("op", text()), ("path", text()), ("from", text()), ("value", Type::Dyn)]);
    environment.objects.insert(JSON_PATCH.into(), operation);
    environment
}

/// As what an expression's type is known to those that use the variable: texts, numbers, lists and maps as such, all else at run
/// time only.
pub(super) fn declared(output: &Type) -> Type {
    match output {
        Type::List(element) => Type::list(declared(element)),
        Type::Map(key, value) => Type::map(declared(key), declared(value)),
        Type::Any
        | Type::Null
        | Type::Bool
        | Type::Int
        | Type::Uint
        | Type::Double
        | Type::String
        | Type::Bytes
        | Type::Duration
        | Type::Timestamp => output.clone(),
        Type::Error
        | Type::Dyn
        | Type::Struct(_)
        | Type::Opaque(..)
        | Type::Type(_)
        | Type::Param(_)
        | Type::Var(_) => Type::Dyn,
    }
}

/// Makes `variables.name` known to the expressions that follow.
pub(super) fn declare_variable(environment: &mut Environment, name: &str, one: Type) {
    environment.variables.insert(format!("variables.{name}").into(), one.clone());
    if let Some(fields) = environment.objects.get_mut(VARIABLES) {
        fields.insert(name.into(), one);
    }
}

/// What a policy is asked about, by the names its expressions have for it: `object`, `oldObject`, `request`, `params`,
/// `namespaceObject`; what is not there is `null` data.
pub type Given<'a> = Variables<'a>;

/// Values of one policy's run: what is given, and variables that are each computed when first needed.
pub(super) struct Scope<'a> {
    given: Given<'a>,
    variables: &'a [(Arc<str>, Compiled)],
    /// Most that one variable may cost.
    limit: u64,
    known: Mutex<Known<'a>>,
}

#[derive(Default)]
struct Known<'a> {
    values: BTreeMap<usize, Result<Value<'a>, Failure>>,
    cost: u64,
}

impl<'a> Scope<'a> {
    pub(super) fn new(given: Given<'a>, variables: &'a [(Arc<str>, Compiled)], limit: u64) -> Self {
        Self { given, variables, limit, known: Mutex::default() }
    }

    /// What variables have cost since this was last asked.
    pub(super) fn take_cost(&self) -> u64 {
        self.known.lock().map_or(0, |mut known| std::mem::take(&mut known.cost))
    }

    fn variable(&self, name: &str) -> Option<Result<Value<'a>, Failure>> {
        let index = self.variables.iter().rposition(|(own, _)| &**own == name)?;
        if let Ok(known) = self.known.lock()
            && let Some(value) = known.values.get(&index)
        {
            return Some(value.clone());
        }
        let value = match &self.variables[index].1 {
            Err(problem) => Err(Failure::Error(format!("composited variable {name:?} fails to compile: {problem}"))),
            Ok(expression) => {
                let (value, cost) = expression.value(self, self.limit);
                if let Ok(mut known) = self.known.lock() {
                    known.cost = known.cost.saturating_add(cost);
                }
                value.map_err(|failure| match failure {
                    Failure::Error(problem) => {
                        Failure::Error(format!("composited variable {name:?} fails to evaluate: {problem}"))
                    }
                    cancelled @ Failure::Cancelled(_) => cancelled,
                })
            }
        };
        if let Ok(mut known) = self.known.lock() {
            known.values.insert(index, value.clone());
        }
        Some(value)
    }
}

impl<'a> Activation<'a> for Scope<'a> {
    fn resolve(&self, name: &str) -> Option<Result<Value<'a>, Failure>> {
        match name.strip_prefix("variables.") {
            Some(variable) => self.variable(variable),
            None => self.given.resolve(name),
        }
    }
}
