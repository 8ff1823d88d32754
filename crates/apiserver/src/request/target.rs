//! Resource of a request, as the kinds of its logical cluster define it.

use std::sync::Arc;

use portolan_kinds::{Kind, KindTable};
use portolan_types::{
    GroupResource, InvalidName, NamespaceName, ObjectKey, ObjectName, Reason, ResourceVersion, Scope, Status,
    quoted::go_quoted,
};

use super::{ComputedResource, KindHooks, RequestContext, hooks_of_kind, hooks_of_resource};

/// Resource of a request, resolved in the kinds of the logical cluster.
#[derive(Clone)]
pub(crate) struct ResourceTarget {
    pub(crate) table: Arc<KindTable>,
    pub(crate) kind: Arc<Kind>,
    /// Namespace in the URL.
    pub(crate) namespace: Option<NamespaceName>,
    /// Definition of a custom resource at the time of the lookup; `None` for built-in kinds.
    pub(crate) definition: Option<DefinitionIdentity>,
}

impl ResourceTarget {
    /// Returns the special behavior of the resource.
    pub(crate) fn hooks(&self) -> &'static KindHooks {
        hooks_of_kind(&self.kind)
    }

    /// Returns true for a custom resource.
    pub(crate) fn is_custom(&self) -> bool {
        self.table.conversion().is_some()
    }

    /// Returns resource and group as in messages.
    pub(crate) fn resource(&self) -> GroupResource {
        self.kind.group_resource()
    }

    /// Returns the resource that objects are stored under.
    pub(crate) fn stored_as(&self) -> GroupResource {
        self.kind.storage.group_resource()
    }

    /// Returns the kind whose form stored objects have.
    pub(crate) fn stored_kind(&self) -> &Kind {
        let stored = (!self.is_read_as_served()).then(|| self.table.stored(&self.stored_as())).flatten();
        stored.unwrap_or(&self.kind)
    }

    /// Returns true if the stored bytes are served unchanged. Custom resources are converted when they are read.
    pub(crate) fn is_read_as_served(&self) -> bool {
        self.is_custom() || !portolan_codec::conversion::is_needed(&self.kind)
    }

    /// Returns true if the objects are computed and not stored.
    pub(crate) fn list_is_computed(&self) -> bool {
        let storage = &self.kind.storage;
        hooks_of_resource(&storage.group, &storage.resource).computed.is_some()
    }

    /// Returns true if objects have no revision: components, whose health is probed at each request in kube-apiserver.
    pub(crate) fn has_no_revision(&self) -> bool {
        self.hooks().computed == Some(ComputedResource::Components)
    }

    /// Returns the resource as a 404 names it.
    pub(crate) fn not_found_resource(&self) -> GroupResource {
        if self.has_no_revision() { GroupResource::new("", &*self.kind.singular) } else { self.resource() }
    }

    /// Returns true if objects have a protobuf form; only Kubernetes' own kinds have one.
    pub(crate) fn has_protobuf(&self) -> bool {
        !self.table.get(self.kind.schema).wire.is_empty()
    }

    /// Returns the key of an object of this kind.
    ///
    /// # Errors
    /// 400 for a malformed name, 404 if it is the name in the URL.
    pub(crate) fn key(&self, call: &RequestContext, name: &str) -> Result<ObjectKey, Status> {
        let name: ObjectName = name.parse().map_err(|e| self.invalid_name(call, name, &e))?;
        Ok(ObjectKey {
            cluster: call.cluster.id,
            resource: self.stored_as(),
            scope: Scope::from(self.namespace.clone()),
            name,
        })
    }

    /// Returns the error for a malformed name: kube-apiserver's own if it has one, else the 404 of the name in the URL.
    fn invalid_name(&self, call: &RequestContext, name: &str, otherwise: &InvalidName) -> Status {
        invalid_path_name(name).unwrap_or_else(|| {
            if name == call.captures.name {
                Status::not_found(&self.not_found_resource(), name)
            } else {
                Status::bad_request(otherwise.to_string())
            }
        })
    }

    /// Returns 405 unless the kind has the verb.
    pub(crate) fn check_verb(&self, verb: &str) -> Result<(), Status> {
        let computed = self.list_is_computed() && !matches!(verb, "get" | "list");
        if self.kind.has_verb(verb) && !computed {
            return Ok(());
        }
        let is_unsupported_watch = verb == "watch" && self.kind.has_verb("list");
        Err(if is_unsupported_watch { self.watch_unsupported() } else { method_not_allowed() })
    }

    fn watch_unsupported(&self) -> Status {
        let resource = self.resource();
        let message = format!("watch is not supported on resources of kind {}", go_quoted(&resource.to_string()));
        Status::new(Reason::MethodNotAllowed, message).about(&resource, "")
    }
}

/// Identity of a definition in a logical cluster.
#[derive(Clone)]
pub(crate) struct DefinitionIdentity {
    /// Object that defines it: its definition, or the binding that serves it.
    pub(crate) key: ObjectKey,
    /// Name of the definition, `<plural>.<group>`.
    pub(crate) name: Arc<str>,
    /// Revision of its creation, which distinguishes it from others of its name.
    pub(crate) created: ResourceVersion,
    /// Revision of its last write.
    pub(crate) revision: ResourceVersion,
    pub(crate) is_deleting: bool,
}

/// Returns the reasons why a name cannot be a path segment (`content.IsPathSegmentName`).
fn path_segment_errors(name: &str) -> Vec<String> {
    match name {
        "." | ".." => vec![format!("may not be '{name}'")],
        name => ['/', '%'].iter().filter(|c| name.contains(**c)).map(|c| format!("may not contain '{c}'")).collect(),
    }
}

/// Returns the error of kube-apiserver's store for a name that cannot be part of a key.
pub(crate) fn invalid_path_name(name: &str) -> Option<Status> {
    if name.is_empty() {
        return Some(Status::bad_request("Name parameter required."));
    }
    let faults = path_segment_errors(name);
    let message = || format!("Name parameter invalid: {}: {}", go_quoted(name), faults.join(";"));
    (!faults.is_empty()).then(|| Status::bad_request(message()))
}

/// Returns client-go's error for a name that it refuses to send; `None` for other names.
pub(crate) fn invalid_client_name(name: &str) -> Option<String> {
    let faults = path_segment_errors(name);
    (!faults.is_empty()).then(|| format!("invalid resource name {}: [{}]", go_quoted(name), faults.join(" ")))
}

/// Returns the 405 of kube-apiserver's router.
pub(crate) fn method_not_allowed() -> Status {
    Status::generic(Reason::MethodNotAllowed, "the server does not allow this method on the requested resource")
}
