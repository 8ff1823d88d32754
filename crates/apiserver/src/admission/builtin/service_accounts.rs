//! Pods run as somebody: the namespace's `default` account unless another is named.

use portolan_types::{BoxFuture, Status, object::child_mut};
use serde_json::Value;

use super::{Admission, Operation, Request};

pub(super) struct Defaults;

impl Admission for Defaults {
    fn mutate<'a>(
        &'a self,
        request: &'a Request<'a>,
        object: &'a mut Value,
        _old: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<(), Status>> {
        let is_new_pod = request.is("", "pods") && request.operation == Operation::Create;
        if let Some(top) = object.as_object_mut().filter(|_| is_new_pod) {
            let spec = child_mut(top, "spec");
            let named = ["serviceAccountName", "serviceAccount"].iter().find_map(|key| spec.get(*key)?.as_str());
            let name = named.filter(|name| !name.is_empty()).unwrap_or("default").to_owned();
            spec.insert("serviceAccountName".into(), name.as_str().into());
            spec.insert("serviceAccount".into(), name.into());
        }
        Box::pin(std::future::ready(Ok(())))
    }
}
