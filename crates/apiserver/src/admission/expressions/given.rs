//! What expressions see of a request.

use std::borrow::Cow;

use portolan_cel::{ResourceCheck, policy::Given};
use portolan_types::{Status, object};
use serde_json::{Map, Value};

use super::{
    super::{Request, matching::Invocation, review},
    Brief, Rights,
};
use crate::ApiServer;

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
    pub(in crate::admission) request: &'a Request<'a>,
    pub(in crate::admission) invocation: &'a Invocation,
    pub(in crate::admission) object: Option<&'a Value>,
    pub(in crate::admission) old: Option<&'a Value>,
}

/// All that expressions see of it, but for parameters.
pub(in crate::admission) struct Seen<'a> {
    object: Cow<'a, Value>,
    old: Cow<'a, Value>,
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
    ///
    /// # Errors
    /// When the object cannot be shown as the invocation wants it.
    pub(in crate::admission) async fn of(
        api: &ApiServer,
        subject: Subject<'a>,
        namespace: Option<&Value>,
        rights: &'a Rights,
    ) -> Result<Self, Status> {
        let Subject { request, invocation, object, old } = subject;
        let shown = async |state: Option<&'a Value>| match state {
            None => Ok(Cow::Borrowed(NOTHING)),
            Some(state) if invocation.other.is_none() && request.subresource != "scale" => Ok(Cow::Borrowed(state)),
            Some(state) => review::shown(api, request, invocation, state).await.map(Cow::Owned),
        };
        Ok(Self {
            object: shown(object).await?,
            old: shown(old).await?,
            request: review::request(request, invocation, object.or(old)),
            namespace: namespace.map_or(Value::Null, shown_namespace),
            resource: ResourceCheck {
                group: request.kind.gvk.group.to_string(),
                resource: request.kind.resource.to_string(),
                subresource: request.subresource.to_owned(),
                namespace: super::super::matching::namespace_of(request, object.or(old)).to_owned(),
                name: request.name.to_owned(),
                ..ResourceCheck::default()
            },
            rights,
            brief: request.brief,
        })
    }

    /// Lets expressions see it, with parameters.
    pub(super) fn with<T>(&self, params: Option<&Value>, look: impl FnOnce(Given<'_>) -> T) -> T {
        let data = [
            ("object", &*self.object),
            ("oldObject", &*self.old),
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
