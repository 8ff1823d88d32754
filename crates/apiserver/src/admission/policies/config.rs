//! Policies and their bindings, as they are written.

use std::collections::HashMap;

use portolan_types::{GroupVersionKind, LabelSelector, object};
use serde_json::{Map, Value};

use super::super::{
    expressions::Source,
    matching::{Criteria, selector, text, texts},
};

/// Parts of a policy that its expressions are compiled from.
const COMPILED: [&str; 6] =
    ["failurePolicy", "matchConditions", "variables", "validations", "auditAnnotations", "mutations"];

/// A policy that is bound.
#[derive(Debug)]
pub(in crate::admission) struct Policy {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) criteria: Criteria,
    /// Where it cannot be evaluated, it is as if it were not there.
    pub(super) fails_open: bool,
    pub(super) params: Option<GroupVersionKind>,
    pub(super) source: Source,
    /// Evaluated again when others have changed the object since.
    pub(super) reinvoked: bool,
    /// By name.
    pub(super) bindings: Vec<Binding>,
}

/// A binding of a policy.
#[derive(Debug)]
pub(in crate::admission) struct Binding {
    pub(super) name: String,
    pub(super) uid: String,
    /// What of the policy's objects it is for; nothing for all.
    pub(super) criteria: Option<Criteria>,
    pub(super) params: Option<ParamRef>,
    pub(super) actions: Vec<String>,
}

/// Where the parameters of a binding are.
#[derive(Debug)]
pub(super) struct ParamRef {
    /// Empty for that of the request.
    pub(super) namespace: String,
    pub(super) which: Params,
    /// Without any parameters the request is refused.
    pub(super) denies_without: bool,
}

#[derive(Debug)]
pub(super) enum Params {
    Named(String),
    Selected(Result<LabelSelector, String>),
}

/// The policies that have bindings, by name.
pub(in crate::admission) fn policies_of(policies: &[Value], bindings: &[Value]) -> Vec<Policy> {
    let mut bound: HashMap<&str, Vec<Binding>> = HashMap::new();
    for own in bindings {
        bound.entry(policy_name(own)).or_default().push(binding(own, own.get("spec").unwrap_or(&Value::Null)));
    }
    policies.iter().filter_map(|policy| Some(read(policy, bound.remove(object::name(policy))?))).collect()
}

/// The policy that a binding is of.
pub(in crate::admission) fn policy_name(binding: &Value) -> &str {
    text(binding.get("spec").unwrap_or(&Value::Null), "policyName")
}

fn read(policy: &Value, bindings: Vec<Binding>) -> Policy {
    let spec = policy.get("spec").unwrap_or(&Value::Null);
    let params = spec.get("paramKind").filter(|kind| kind.is_object());
    let mut compiled: Map<String, Value> =
        COMPILED.iter().filter_map(|key| Some(((*key).to_owned(), spec.get(*key)?.clone()))).collect();
    if params.is_some() {
        // Which kind it is makes no difference.
        compiled.insert("paramKind".into(), Value::Object(Map::new()));
    }
    Policy {
        name: object::name(policy).to_owned(),
        uid: object::meta_text(policy, "uid").to_owned(),
        criteria: Criteria::of_policy(spec.get("matchConstraints").unwrap_or(&Value::Null)),
        fails_open: text(spec, "failurePolicy") == "Ignore",
        params: params.map(param_kind),
        source: Source::new(Value::Object(compiled)),
        reinvoked: text(spec, "reinvocationPolicy") == "IfNeeded",
        bindings,
    }
}

fn param_kind(kind: &Value) -> GroupVersionKind {
    let version = text(kind, "apiVersion");
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    GroupVersionKind { group: group.into(), version: version.into(), kind: text(kind, "kind").into() }
}

fn binding(own: &Value, spec: &Value) -> Binding {
    Binding {
        name: object::name(own).to_owned(),
        uid: object::meta_text(own, "uid").to_owned(),
        criteria: spec.get("matchResources").filter(|resources| resources.is_object()).map(Criteria::of_policy),
        params: spec.get("paramRef").filter(|params| params.is_object()).map(param_ref),
        actions: texts(spec, "validationActions"),
    }
}

fn param_ref(params: &Value) -> ParamRef {
    let which = match text(params, "name") {
        "" => Params::Selected(selector(params.get("selector"))),
        name => Params::Named(name.to_owned()),
    };
    ParamRef {
        namespace: text(params, "namespace").to_owned(),
        which,
        denies_without: text(params, "parameterNotFoundAction") == "Deny",
    }
}
