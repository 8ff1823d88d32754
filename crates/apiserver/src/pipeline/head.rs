//! Request line: the parts of a request that are known before the client is authenticated.

use std::sync::Arc;

use http::{Method, request::Parts};
use portolan_types::{Status, apis::ExportAddress};

use crate::{
    options::selected_name,
    routing::{
        attributes::Attributes,
        path::{MAX_TARGET, RequestedCluster, UrlPath},
        query::Query,
        routes::{self, Captures, Route, RouteEndpoint, RoutePolicy},
    },
    views::{LifecycleView, StepAddress},
};

/// Parsed URL and method of a request.
pub(super) struct RequestHead {
    pub(super) named: RequestedCluster,
    /// Export whose view the request goes through.
    pub(super) view: Option<ExportAddress>,
    /// True if the view is flattened.
    pub(super) is_flattened: bool,
    /// Step whose pending logical clusters the view shows.
    pub(super) step: Option<Box<StepAddress>>,
    /// View of the step, once the request is authorized.
    pub(super) lifecycle: Option<Arc<LifecycleView>>,
    /// True for an authorized request to all logical clusters.
    pub(super) spans_all: bool,
    pub(super) path: String,
    pub(super) query: Query,
    pub(super) method: Method,
    /// `None` for an unknown path, which is authorized like any other before its 404.
    pub(super) route: Option<&'static Route>,
    pub(super) captures: Captures,
    pub(super) attributes: Arc<Attributes>,
    /// Reason for which the request is allowed, for audit events.
    pub(super) reason: String,
}

impl RequestHead {
    /// Returns true for health checks, which must be answered even if the server is full or stuck.
    pub(super) fn is_health(&self) -> bool {
        let endpoint = self.route.map(|route| route.endpoint);
        matches!(endpoint, Some(RouteEndpoint::Livez | RouteEndpoint::Readyz | RouteEndpoint::Healthz))
    }

    /// Returns the request line with the attributes of its route.
    pub(super) fn with_attributes(self) -> Self {
        Self { attributes: Arc::new(attributes_of(&self)), ..self }
    }
}

/// Parses the URL.
pub(super) fn parse_head(parts: &Parts) -> Result<RequestHead, Status> {
    let text = parts.uri.path_and_query().map_or("", |p| p.as_str());
    if text.len() > MAX_TARGET {
        return Err(Status::bad_request(format!("the request URL is longer than {MAX_TARGET} bytes")));
    }
    let mut target = UrlPath::parse(parts.uri.path())?;
    let mut query = Query::parse(parts.uri.query())?;
    let path = target.rest();
    let watched = if parts.method == Method::GET { watch_by_path(&mut target.segments, &mut query) } else { None };
    let (route, captures) = routes::find(&target.segments).unzip();
    let mut captures = captures.unwrap_or_default();
    captures.watched = watched;
    let (named, view, is_flattened) = (target.cluster, target.view, target.is_flattened);
    let (step, method, attributes) = (target.step, parts.method.clone(), Arc::default());
    Ok(RequestHead {
        named,
        view,
        is_flattened,
        step,
        lifecycle: None,
        spans_all: false,
        path,
        query,
        method,
        route,
        captures,
        attributes,
        reason: String::new(),
    }
    .with_attributes())
}

/// Rewrites the old form of a watch, `/api/v1/watch/namespaces/a/pods/p`, to query parameters. Returns the name of a
/// single watched object.
fn watch_by_path(segments: &mut Vec<String>, query: &mut Query) -> Option<String> {
    let at = if segments.first().is_some_and(|first| first == "api") { 2 } else { 3 };
    if segments.get(at).is_none_or(|word| word != "watch") {
        return None;
    }
    let mut plain = segments.clone();
    plain.remove(at);
    let name = match routes::find(&plain).map(|(route, _)| route.endpoint) {
        Some(RouteEndpoint::Collection) => None,
        Some(RouteEndpoint::Object) => plain.pop(),
        _ => return None,
    };
    if let Some(name) = name.as_ref().filter(|_| query.text("fieldSelector").is_empty()) {
        query.put("fieldSelector", format!("metadata.name={name}"));
    }
    query.put("watch", "true".into());
    *segments = plain;
    name
}

fn attributes_of(head: &RequestHead) -> Attributes {
    let RequestHead { method, captures, path, query, .. } = head;
    let Some(route) = head.route.filter(|route| route.policy == RoutePolicy::Resource) else {
        return Attributes::of_path(&method.as_str().to_lowercase(), path);
    };
    let verb = verb(method, route.endpoint, query);
    let mut name = captures.name.clone();
    if matches!(verb, "list" | "watch") {
        name = captures.watched.clone().or_else(|| selected_name(query)).unwrap_or_default();
    }
    Attributes {
        verb: verb.into(),
        group: captures.group.clone(),
        version: captures.version.clone(),
        resource: captures.resource.clone(),
        subresource: captures.subresource.clone(),
        namespace: captures.namespace.clone(),
        name,
        path: path.clone(),
        is_path: false,
    }
}

fn verb(method: &Method, endpoint: RouteEndpoint, query: &Query) -> &'static str {
    let collection = endpoint == RouteEndpoint::Collection;
    match (method.as_str(), collection) {
        ("GET" | "HEAD", true) if query.flag("watch") => "watch",
        ("GET" | "HEAD", true) => "list",
        ("GET" | "HEAD", false) => "get",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", true) => "deletecollection",
        ("DELETE", false) => "delete",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_paths_of_watches_are_watches_with_parameters() {
        for (path, expected, selector) in [
            ("/api/v1/watch/namespaces/a/pods", "/api/v1/namespaces/a/pods", ""),
            ("/api/v1/watch/namespaces/a/pods/p", "/api/v1/namespaces/a/pods", "metadata.name=p"),
            ("/api/v1/watch/namespaces", "/api/v1/namespaces", ""),
            ("/apis/apps/v1/watch/deployments", "/apis/apps/v1/deployments", ""),
        ] {
            let (mut target, mut query) = (UrlPath::parse(path).unwrap(), Query::default());
            let watched = watch_by_path(&mut target.segments, &mut query);
            assert_eq!((target.rest().as_str(), query.text("fieldSelector")), (expected, selector), "{path}");
            assert_eq!(watched.is_some(), !selector.is_empty(), "{path}");
            assert!(query.flag("watch"), "{path}");
        }
        for path in
            ["/api/v1/namespaces/watch", "/api/v1/watch", "/apis/apps/v1/watch/namespaces/a/deployments/d/scale"]
        {
            let (mut target, mut query) = (UrlPath::parse(path).unwrap(), Query::default());
            assert_eq!(watch_by_path(&mut target.segments, &mut query), None);
            assert_eq!((target.rest().as_str(), query.flag("watch")), (path, false));
        }
    }
}
