//! Input of expressions: the parts of a request that they see.

use portolan_cel::{ResourceCheck, policy::PolicyVariables};
use portolan_types::object;
use serde_json::{Map, Value};

use super::{
    super::{
        matching::Invocation,
        review::{self, ObjectStates},
    },
    ExpressionRights,
};
use crate::hooks::{AdmissionRequest, InlineBudget};
use crate::{directory::Directory, limits::FlowKey};

/// Metadata of a namespace that expressions see.
const METADATA: [&str; 12] = [
    "name",
    "generateName",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "labels",
    "annotations",
    "finalizers",
];

/// Request as a webhook or a policy sees it.
#[derive(Clone, Copy)]
pub(in crate::admission) struct ExpressionSubject<'a> {
    pub(in crate::admission) directory: &'a Directory,
    pub(in crate::admission) request: &'a AdmissionRequest<'a>,
    pub(in crate::admission) invocation: &'a Invocation,
    /// Object; for deletions the old one.
    pub(in crate::admission) object: Option<&'a Value>,
}

/// Input of expressions, without parameters.
pub(in crate::admission) struct ExpressionInput<'a> {
    directory: &'a Directory,
    admitted: &'a AdmissionRequest<'a>,
    states: ObjectStates<'a>,
    request: Value,
    namespace: Value,
    resource: ResourceCheck,
    rights: &'a ExpressionRights,
    /// Budget for inline evaluations.
    pub(super) inline_budget: &'a InlineBudget,
}

const NOTHING: &Value = &Value::Null;

impl<'a> ExpressionInput<'a> {
    /// Builds the input from a request in `namespace`.
    pub(in crate::admission) fn of(
        subject: ExpressionSubject<'a>,
        states: ObjectStates<'a>,
        namespace: Option<&Value>,
        rights: &'a ExpressionRights,
    ) -> Self {
        let ExpressionSubject { directory, request, invocation, object } = subject;
        Self {
            directory,
            admitted: request,
            states,
            request: review::request(request, invocation, object),
            namespace: namespace.map_or(Value::Null, shown_namespace),
            resource: ResourceCheck {
                group: request.kind.gvk.group.to_string(),
                resource: request.kind.resource.to_string(),
                subresource: request.subresource.to_owned(),
                namespace: super::super::matching::namespace_of(request, object).to_owned(),
                name: request.name.to_owned(),
                ..ResourceCheck::default()
            },
            rights,
            inline_budget: request.inline_budget,
        }
    }

    /// Returns the flow that pays for the evaluation.
    pub(super) fn flow_key(&self) -> FlowKey<'_> {
        let AdmissionRequest { cluster, user, .. } = *self.admitted;
        FlowKey { tenant: self.directory.tenant(cluster), cluster: cluster.id, user }
    }

    /// Calls `look` with the input and `params`.
    pub(super) fn with<T>(&self, params: Option<&Value>, look: impl FnOnce(PolicyVariables<'_>) -> T) -> T {
        let data = [
            ("object", &*self.states.object),
            ("oldObject", &*self.states.old),
            ("request", &self.request),
            ("namespaceObject", &self.namespace),
            ("params", params.unwrap_or(NOTHING)),
        ];
        look(PolicyVariables { data: &data, authorizer: Some(self.rights), request_resource: Some(&self.resource) })
    }
}

fn shown_namespace(namespace: &Value) -> Value {
    let metadata = object::metadata(namespace).iter().filter(|(key, _)| METADATA.contains(&key.as_str()));
    let metadata: Map<String, Value> = metadata.map(|(key, value)| (key.clone(), value.clone())).collect();
    let part = |key: &str| namespace.get(key).cloned().unwrap_or_else(|| Value::Object(Map::new()));
    serde_json::json!({"metadata": metadata, "spec": part("spec"), "status": part("status")})
}
