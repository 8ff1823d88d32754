//! What expressions see of a request.

use portolan_cel::{ResourceCheck, policy::Given};
use portolan_types::object;
use serde_json::{Map, Value};

use super::{
    super::{
        Request,
        matching::Invocation,
        review::{self, States},
    },
    Brief, Rights,
};
use crate::{ApiServer, limits::Whose};

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

/// A request, put before a webhook or a policy.
#[derive(Clone, Copy)]
pub(in crate::admission) struct Subject<'a> {
    pub(in crate::admission) api: &'a ApiServer,
    pub(in crate::admission) request: &'a Request<'a>,
    pub(in crate::admission) invocation: &'a Invocation,
    /// The object, or the old one where it goes.
    pub(in crate::admission) object: Option<&'a Value>,
}

/// All that expressions see of it, but for parameters.
pub(in crate::admission) struct Seen<'a> {
    api: &'a ApiServer,
    asked: &'a Request<'a>,
    states: States<'a>,
    request: Value,
    namespace: Value,
    resource: ResourceCheck,
    rights: &'a Rights,
    /// Time that is left for brief evaluations.
    pub(super) brief: &'a Brief,
}

const NOTHING: &Value = &Value::Null;

impl<'a> Seen<'a> {
    /// What is seen of a request; `namespace` is the one that it is in.
    pub(in crate::admission) fn of(
        subject: Subject<'a>,
        states: States<'a>,
        namespace: Option<&Value>,
        rights: &'a Rights,
    ) -> Self {
        let Subject { api, request, invocation, object } = subject;
        Self {
            api,
            asked: request,
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
            brief: request.brief,
        }
    }

    /// On whose behalf it is looked at.
    pub(super) fn whose(&self) -> Whose<'_> {
        let Request { cluster, user, .. } = *self.asked;
        Whose { tenant: self.api.directory.tenant(cluster), cluster: cluster.id, user }
    }

    /// Lets expressions see it, with parameters.
    pub(super) fn with<T>(&self, params: Option<&Value>, look: impl FnOnce(Given<'_>) -> T) -> T {
        let data = [
            ("object", &*self.states.object),
            ("oldObject", &*self.states.old),
            ("request", &self.request),
            ("namespaceObject", &self.namespace),
            ("params", params.unwrap_or(NOTHING)),
        ];
        look(Given { data: &data, authorizer: Some(self.rights), request_resource: Some(&self.resource) })
    }
}

fn shown_namespace(namespace: &Value) -> Value {
    let metadata = object::metadata(namespace).iter().filter(|(key, _)| METADATA.contains(&key.as_str()));
    let metadata: Map<String, Value> = metadata.map(|(key, value)| (key.clone(), value.clone())).collect();
    let part = |key: &str| namespace.get(key).cloned().unwrap_or_else(|| Value::Object(Map::new()));
    serde_json::json!({"metadata": metadata, "spec": part("spec"), "status": part("status")})
}
