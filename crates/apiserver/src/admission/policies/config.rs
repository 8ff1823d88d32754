//! Policies and their bindings, parsed from their objects.

use std::collections::HashMap;

use portolan_types::{GroupVersionKind, LabelSelector, object};
use serde_json::{Map, Value};

use super::super::{
    expressions::ExpressionSource,
    matching::{MatchCriteria, selector, text, texts},
};

/// Parts of a policy that hold its expressions.
const COMPILED: [&str; 6] =
    ["failurePolicy", "matchConditions", "variables", "validations", "auditAnnotations", "mutations"];

/// Policy with its bindings.
#[derive(Debug)]
pub(in crate::admission) struct AdmissionPolicy {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) criteria: MatchCriteria,
    /// True if the policy is ignored when it cannot be evaluated.
    pub(super) fails_open: bool,
    pub(super) params: Option<GroupVersionKind>,
    pub(super) source: ExpressionSource,
    /// True if it is evaluated again after other plugins change the object.
    pub(super) reinvoked: bool,
    /// Bindings, ordered by name.
    pub(super) bindings: Vec<PolicyBinding>,
}

/// Binding of a policy.
#[derive(Debug)]
pub(in crate::admission) struct PolicyBinding {
    pub(super) name: String,
    pub(super) uid: String,
    /// Further match criteria; `None` for all of the policy's objects.
    pub(super) criteria: Option<MatchCriteria>,
    pub(super) params: Option<PolicyParamRef>,
    pub(super) actions: Vec<String>,
}

/// Reference to the parameters of a binding.
#[derive(Debug)]
pub(super) struct PolicyParamRef {
    /// Namespace; empty for the namespace of the request.
    pub(super) namespace: String,
    pub(super) which: ParamsSelector,
    /// True if the request is refused when there are no parameters.
    pub(super) denies_without: bool,
}

#[derive(Debug)]
pub(super) enum ParamsSelector {
    Named(String),
    Selected(Result<LabelSelector, String>),
}

/// Returns the policies that have bindings, ordered by name.
pub(in crate::admission) fn policies_of(policies: &[Value], bindings: &[Value]) -> Vec<AdmissionPolicy> {
    let mut bound: HashMap<&str, Vec<PolicyBinding>> = HashMap::new();
    for own in bindings {
        bound.entry(policy_name(own)).or_default().push(binding(own, own.get("spec").unwrap_or(&Value::Null)));
    }
    policies.iter().filter_map(|policy| Some(read(policy, bound.remove(object::name(policy))?))).collect()
}

/// Returns the name of a binding's policy.
pub(in crate::admission) fn policy_name(binding: &Value) -> &str {
    text(binding.get("spec").unwrap_or(&Value::Null), "policyName")
}

fn read(policy: &Value, bindings: Vec<PolicyBinding>) -> AdmissionPolicy {
    let spec = policy.get("spec").unwrap_or(&Value::Null);
    let params = spec.get("paramKind").filter(|kind| kind.is_object());
    let mut compiled: Map<String, Value> =
        COMPILED.iter().filter_map(|key| Some(((*key).to_owned(), spec.get(*key)?.clone()))).collect();
    if params.is_some() {
        // The compiled form does not depend on the parameter kind.
        compiled.insert("paramKind".into(), Value::Object(Map::new()));
    }
    AdmissionPolicy {
        name: object::name(policy).to_owned(),
        uid: object::meta_text(policy, "uid").to_owned(),
        criteria: MatchCriteria::of_policy(spec.get("matchConstraints").unwrap_or(&Value::Null)),
        fails_open: text(spec, "failurePolicy") == "Ignore",
        params: params.map(param_kind),
        source: ExpressionSource::new(Value::Object(compiled)),
        reinvoked: text(spec, "reinvocationPolicy") == "IfNeeded",
        bindings,
    }
}

fn param_kind(kind: &Value) -> GroupVersionKind {
    let version = text(kind, "apiVersion");
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    GroupVersionKind { group: group.into(), version: version.into(), kind: text(kind, "kind").into() }
}

fn binding(own: &Value, spec: &Value) -> PolicyBinding {
    PolicyBinding {
        name: object::name(own).to_owned(),
        uid: object::meta_text(own, "uid").to_owned(),
        criteria: spec.get("matchResources").filter(|resources| resources.is_object()).map(MatchCriteria::of_policy),
        params: spec.get("paramRef").filter(|params| params.is_object()).map(param_ref),
        actions: texts(spec, "validationActions"),
    }
}

fn param_ref(params: &Value) -> PolicyParamRef {
    let which = match text(params, "name") {
        "" => ParamsSelector::Selected(selector(params.get("selector"))),
        name => ParamsSelector::Named(name.to_owned()),
    };
    PolicyParamRef {
        namespace: text(params, "namespace").to_owned(),
        which,
        denies_without: text(params, "parameterNotFoundAction") == "Deny",
    }
}
