//! A request behind the door: who, where, what. Nothing here is raw any more but the body.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method, header::USER_AGENT};
use parking_lot::Mutex;
use portolan_machinery::{
    kinds::{Kind, KindTable, Served},
    validation::MAX_MANAGER,
};
use portolan_types::{
    GroupResource, InvalidName, NamespaceName, ObjectKey, ObjectName, Reason, Scope, Status,
    quoted::{go_prints, go_quoted},
};
use tokio::time::Instant;

use crate::{
    ApiServer,
    admission::{Brief, Operation, Request, Sent},
    attributes::Attributes,
    authn::Identity,
    directory::LogicalCluster,
    kinds::Standing,
    limits::Charge,
    metrics::Labels,
    notes::Notes,
    query::Query,
    reach,
    routes::{self, Captures, Endpoint},
    warnings::Warnings,
};

/// An authorized request.
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) endpoint: Endpoint,
    pub(crate) captures: Captures,
    /// The path behind the logical cluster.
    pub(crate) path: String,
    pub(crate) query: Query,
    pub(crate) headers: HeaderMap,
    pub(crate) extensions: Mutex<http::Extensions>,
    pub(crate) uri: http::Uri,
    pub(crate) body: Bytes,
    /// When its time is over, unless it may last.
    pub(crate) deadline: Instant,
    /// What is held of it and of its answer.
    pub(crate) charge: Charge,
    pub(crate) identity: Identity,
    pub(crate) cluster: Arc<LogicalCluster>,
    pub(crate) attributes: Arc<Attributes>,
    /// What it counts as.
    pub(crate) labels: Labels,
    /// Texts for `Warning` headers.
    pub(crate) warnings: Warnings,
    /// What admission notes for the log.
    pub(crate) notes: Notes,
    /// Time that expressions have taken at once.
    pub(crate) brief: Brief,
}

impl Call {
    /// Whether it is a watch or a stream, which may last.
    pub(crate) fn is_long_running(&self) -> bool {
        crate::pipeline::is_long_running(&self.attributes)
    }

    /// Adds texts for `Warning` headers.
    pub(crate) fn warn(&self, texts: impl IntoIterator<Item = String>) {
        // A write that is tried again would say it again.
        texts.into_iter().for_each(|text| self.warnings.add(text));
    }

    /// What this call asks of admission: to do something to an object by its name, or to a subresource of it.
    pub(crate) fn asks<'a>(
        &'a self,
        target: &'a Target,
        operation: Operation,
        (name, subresource): (&'a str, &'a str),
        dry_run: bool,
    ) -> Request<'a> {
        Request {
            cluster: &self.cluster,
            kind: &target.kind,
            namespace: target.namespace.as_deref().unwrap_or_default(),
            name,
            url_name: &self.captures.name,
            operation,
            subresource,
            user: &self.identity.user,
            dry_run,
            warnings: &self.warnings,
            notes: &self.notes,
            brief: &self.brief,
            table: &target.table,
            sent: Sent::Write {
                manager: self.query.text("fieldManager"),
                validation: self.query.text("fieldValidation"),
            },
        }
    }

    /// A header as text; empty when it is missing or no text.
    pub(crate) fn header(&self, name: http::HeaderName) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// Who writes, for field ownership: as asked, else the first word of the user agent.
    pub(crate) fn field_manager(&self) -> String {
        let asked = self.query.text("fieldManager");
        if asked.is_empty() {
            let agent = self.headers.get(USER_AGENT).map(|value| String::from_utf8_lossy(value.as_bytes()));
            let agent = agent.unwrap_or_default();
            let first = agent.split('/').next().unwrap_or_default();
            let mut printable: String = first.chars().filter(|c| go_prints(*c)).collect();
            printable.truncate(printable.floor_char_boundary(MAX_MANAGER));
            return if printable.is_empty() { "unknown".into() } else { printable };
        }
        asked.to_owned()
    }
}

/// The resource that a call is about, found in the logical cluster's kinds.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) table: Arc<KindTable>,
    pub(crate) kind: Arc<Kind>,
    /// The namespace of the URL.
    pub(crate) namespace: Option<NamespaceName>,
    /// The definition that it was found by, as it stood then; none of what is built in.
    pub(crate) definition: Option<Standing>,
}

impl Target {
    /// Finds the kind and checks that the URL's namespace fits its scope.
    ///
    /// # Errors
    /// 404 for unknown resources and wrong scopes, 400 for impossible namespaces, 405 for methods that no resource has.
    pub(crate) async fn of(api: &ApiServer, call: &Call) -> Result<Self, Status> {
        let Captures { group, resource, namespace, .. } = &call.captures;
        let found = find(api, call).await?.filter(|(found, _)| found.kind.served);
        let (Served { table, mut kind }, definition) = found.ok_or_else(|| routes::nothing_at(&call.path))?;
        if api.config.computes_nodes && reach::is_node(&kind) {
            kind = reach::computed_node().clone();
        }
        if let Some(text) = kind.content.as_ref().and_then(|content| content.deprecation()) {
            call.warn([text.to_owned()]);
        }
        let itself = group.is_empty() && resource == "namespaces";
        let namespace = match namespace.as_str() {
            "" => None,
            _ if itself => None,
            text => Some(text.parse::<NamespaceName>().map_err(|e| Status::bad_request(e.to_string()))?),
        };
        match (kind.namespaced, &namespace, call.endpoint) {
            (false, Some(_), _) => Err(routes::nothing_at(&call.path)),
            (true, None, Endpoint::Object | Endpoint::Subresource) => Err(routes::nothing_at(&call.path)),
            // What upstream's router refuses of its own resources, it does not find of custom ones.
            (true, None, _) if table.conversion().is_some() && !matches!(&*call.attributes.verb, "list" | "watch") => {
                Err(routes::nothing_at(&call.path))
            }
            // The router looks for the resource before it looks at the method.
            _ if call.method == Method::HEAD || call.attributes.verb.is_empty() => Err(method_not_allowed()),
            _ => Ok(Self { table, kind, namespace, definition }),
        }
    }

    /// Whether it is defined by a client.
    pub(crate) fn is_custom(&self) -> bool {
        self.table.conversion().is_some()
    }

    /// Resource and group, as in messages.
    pub(crate) fn resource(&self) -> GroupResource {
        self.kind.group_resource()
    }

    /// The resource that objects are stored under.
    pub(crate) fn stored_as(&self) -> GroupResource {
        self.kind.storage.group_resource()
    }

    /// Whether objects as they are read are as they are served, so that their bytes are answers. Custom resources are converted
    /// while they are read.
    pub(crate) fn is_read_as_served(&self) -> bool {
        self.is_custom() || !portolan_machinery::conversion::is_needed(&self.kind)
    }

    /// Whether its objects are computed and not stored.
    pub(crate) fn list_is_computed(&self) -> bool {
        crate::objects::is_computed(&self.stored_as())
    }

    /// Whether its objects are at no revision: those of the parts of a server, which upstream asks after whenever it is asked.
    pub(crate) fn has_no_revision(&self) -> bool {
        self.kind.gvk.group.is_empty() && &*self.kind.resource == "componentstatuses"
    }

    /// The resource as it is named when an object is not found.
    pub(crate) fn missing(&self) -> GroupResource {
        match self.has_no_revision() {
            true => GroupResource::new("", &*self.kind.singular),
            false => self.resource(),
        }
    }

    /// Whether objects have a protobuf form; what is not Kubernetes' own has none.
    pub(crate) fn has_protobuf(&self) -> bool {
        !self.table.get(self.kind.schema).wire.is_empty()
    }

    /// The key of an object of this kind.
    ///
    /// # Errors
    /// 400 when the name cannot be one, 404 when nothing can have that of the URL.
    pub(crate) fn key(&self, call: &Call, name: &str) -> Result<ObjectKey, Status> {
        let name: ObjectName = name.parse().map_err(|e| self.no_name(call, name, &e))?;
        Ok(ObjectKey {
            cluster: call.cluster.id,
            resource: self.stored_as(),
            scope: Scope::from(self.namespace.clone()),
            name,
        })
    }

    /// Of a name that no object can have: as kube-apiserver words it where it says so, else as of one that nothing has.
    fn no_name(&self, call: &Call, name: &str, otherwise: &InvalidName) -> Status {
        unkeyed(name).unwrap_or_else(|| match name == call.captures.name {
            true => Status::not_found(&self.missing(), name),
            false => Status::bad_request(otherwise.to_string()),
        })
    }

    /// 405 unless the kind has the verb.
    pub(crate) fn check_verb(&self, verb: &str) -> Result<(), Status> {
        let computed = self.list_is_computed() && !matches!(verb, "get" | "list");
        match self.kind.has_verb(verb) && !computed {
            true => Ok(()),
            false if verb == "watch" && self.kind.has_verb("list") => Err(self.no_watch()),
            false => Err(method_not_allowed()),
        }
    }

    fn no_watch(&self) -> Status {
        let resource = self.resource();
        let message = format!("watch is not supported on resources of kind {}", go_quoted(&resource.to_string()));
        Status::new(Reason::MethodNotAllowed, message).about(&resource, "")
    }
}

async fn find(api: &ApiServer, call: &Call) -> Result<Option<(Served, Option<Standing>)>, Status> {
    let Captures { group, version, resource, .. } = &call.captures;
    if let Some(kind) = KindTable::builtin().resource(group, version, resource) {
        return Ok(Some((Served { table: KindTable::shared(), kind: kind.clone() }, None)));
    }
    let found = find_defined(api, call).await?;
    if found.is_some() || group.is_empty() {
        return Ok(found);
    }
    // Another server may have established it, and told the client before its write has come here.
    api.kinds.doubt(call.cluster.id, &format!("{resource}.{group}"));
    find_defined(api, call).await
}

/// A custom resource and its definition. That is looked up before, so that it is never a later one than what is served by it.
async fn find_defined(api: &ApiServer, call: &Call) -> Result<Option<(Served, Option<Standing>)>, Status> {
    let Captures { group, version, resource, .. } = &call.captures;
    let definition = api.kinds.definition(call.cluster.id, &format!("{resource}.{group}")).await?;
    let found = api.kinds.served(call.cluster.id).await?.surface.resource(group, version, resource);
    Ok(found.zip(definition).map(|(found, definition)| (found, Some(definition))))
}

/// What keeps a name from being a part of a path (`content.IsPathSegmentName`).
fn segment_faults(name: &str) -> Vec<String> {
    match name {
        "." | ".." => vec![format!("may not be '{name}'")],
        name => ['/', '%'].iter().filter(|c| name.contains(**c)).map(|c| format!("may not contain '{c}'")).collect(),
    }
}

/// What upstream's store says of a name that makes no key.
pub(crate) fn unkeyed(name: &str) -> Option<Status> {
    let faults = segment_faults(name);
    match name.is_empty() {
        true => Some(Status::bad_request("Name parameter required.")),
        false if faults.is_empty() => None,
        false => {
            Some(Status::bad_request(format!("Name parameter invalid: {}: {}", go_quoted(name), faults.join(";"))))
        }
    }
}

/// What Go's client says of such a name, which it does not ask for; `None` of others.
pub(crate) fn refused_by_client(name: &str) -> Option<String> {
    let faults = segment_faults(name);
    (!faults.is_empty()).then(|| format!("invalid resource name {}: [{}]", go_quoted(name), faults.join(" ")))
}

/// 405 as kube-apiserver's router words it.
pub(crate) fn method_not_allowed() -> Status {
    Status::generic(Reason::MethodNotAllowed, "the server does not allow this method on the requested resource")
}
