//! Record of a request for headers, metrics and the log.

use std::sync::Arc;

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Response,
    header::{ACCEPT, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS},
    request::Parts,
};
use http_body::Body as _;
use portolan_kinds::KindTable;
use portolan_types::{Seams, Status};
use tokio::time::Instant;
use tracing::{Span, field::Empty};

use crate::{
    Body,
    audit::{AuditTrail, AuditedRequest, Auditor},
    authn::Identity,
    encode::{self, ResponseFormat, StatusForm},
    metrics::{Metrics, RequestLabels},
    request::RequestContext,
    routing::{attributes::Attributes, query::Query},
};

use super::{authorization::AuthorizedRequest, head::RequestHead};

const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
/// Paths with a metric label of their own.
const HEALTH: [&str; 3] = ["/livez", "/readyz", "/healthz"];
/// Longest audit id that is accepted from a client.
const MAX_AUDIT_ID: usize = 256;

/// Facts about a request, collected while it is served.
pub(super) struct RequestRecord {
    attributes: Arc<Attributes>,
    labels: RequestLabels,
    user: String,
    audit_id: HeaderValue,
    /// True if authorization or impersonation refused it: the response then quotes text of the client.
    is_refused: bool,
    /// Texts for `Warning` headers.
    warnings: Vec<String>,
    /// `Accept` header, which failures follow too.
    accept: Option<HeaderValue>,
    /// True for indented output.
    pretty: bool,
    span: Span,
    /// Audit events, if the policy wants any.
    audit: Option<Box<AuditTrail>>,
}

impl RequestRecord {
    pub(super) fn new(seams: &Seams, headers: &HeaderMap) -> Self {
        let given = headers
            .get(AUDIT_ID)
            .filter(|id| !id.is_empty() && id.len() <= MAX_AUDIT_ID && id.as_bytes().iter().all(u8::is_ascii_graphic));
        let made = || HeaderValue::from_str(&seams.uid()).expect("a uid is hexadecimal digits and dashes");
        let audit_id = given.cloned().unwrap_or_else(made);
        let span = tracing::debug_span!(
            "request",
            ?audit_id,
            cluster = Empty,
            verb = Empty,
            resource = Empty,
            namespace = Empty,
            name = Empty,
            revision = Empty
        );
        Self {
            attributes: Arc::default(),
            labels: RequestLabels::default(),
            user: String::new(),
            is_refused: false,
            warnings: Vec::new(),
            audit_id,
            accept: headers.get(ACCEPT).cloned(),
            pretty: encode::wants_pretty(headers, &Query::default()),
            span,
            audit: None,
        }
    }

    /// Returns the span of the request, whose fields are recorded as they become known.
    pub(super) fn span(&self) -> Span {
        self.span.clone()
    }

    pub(super) fn record_head(&mut self, head: &RequestHead, headers: &HeaderMap) {
        self.attributes = head.attributes.clone();
        self.pretty = encode::wants_pretty(headers, &head.query);
        let is_apply = headers.get(CONTENT_TYPE).is_some_and(|t| t.as_bytes().starts_with(b"application/apply-patch"));
        self.labels = labels(&head.attributes, &head.method, is_apply, head.query.text("dryRun") == "All");
        let Attributes { verb, resource, namespace, name, .. } = &*self.attributes;
        for (field, value) in [("verb", verb), ("resource", resource), ("namespace", namespace), ("name", name)] {
            if !value.is_empty() {
                self.span.record(field, value.as_str());
            }
        }
    }

    pub(super) fn record_cluster(&mut self, admitted: &AuthorizedRequest) {
        self.span.record("cluster", tracing::field::display(&admitted.cluster.path));
        if let Some(audit) = &mut self.audit {
            audit.record_workspace(&admitted.cluster.path);
            audit.record_allowed(&admitted.head.reason, admitted.identity.acts_as());
        }
        let head = admitted.head();
        if !Arc::ptr_eq(&head.attributes, &self.attributes) {
            // A path to a physical cluster, which is counted as what it was rewritten to.
            self.attributes = head.attributes.clone();
            self.labels = labels(&head.attributes, &head.method, false, false);
        }
    }

    /// Records that the request was refused before its handler.
    pub(super) fn record_refusal(&mut self, why: &Status) {
        self.is_refused = matches!(why.code(), 400 | 403);
        if let Some(audit) = &mut self.audit {
            audit.record_refused(why);
        }
    }

    /// Starts the audit trail of an authenticated request, or of one that is refused as unauthenticated.
    pub(super) fn audit_received(
        &mut self,
        auditor: &Arc<Auditor>,
        parts: &Parts,
        head: &RequestHead,
        identity: Option<&Identity>,
    ) {
        let request = AuditedRequest {
            audit_id: self.audit_id.to_str().unwrap_or_default(),
            uri: &parts.uri,
            headers: &parts.headers,
            address: parts.extensions.get().copied(),
            user: identity.map(|identity| &identity.user),
            attributes: &head.attributes,
        };
        self.audit = AuditTrail::begin(auditor, &request);
        if let (Some(audit), Some(path)) = (&mut self.audit, head.named.text()) {
            audit.record_requested_workspace(path);
        }
    }

    /// Records the body of the request in its audit trail.
    pub(super) fn audit_body(&mut self, headers: &HeaderMap, body: &Bytes) {
        if let Some(audit) = &mut self.audit {
            audit.record_body(headers, body);
        }
    }

    /// Ends the audit trail of a request whose handler panicked.
    pub(super) fn audit_panic(&mut self, failure: &Status) {
        if let Some(audit) = self.audit.take() {
            audit.panicked(failure);
        }
    }

    /// Returns the metric labels of the request.
    pub(super) fn labels(&self) -> &RequestLabels {
        &self.labels
    }

    pub(super) fn record_handled(&mut self, call: &Arc<RequestContext>) {
        self.user.clone_from(&call.identity.user.name);
        self.warnings = call.warnings.take();
        if let Some(audit) = &mut self.audit {
            call.notes.for_each(|key, value| audit.annotate(key, value));
        }
    }

    /// Finishes the response: common headers, metrics, log.
    pub(super) fn finish(
        mut self,
        metrics: &Metrics,
        answered: Result<Response<Body>, Status>,
        started: Instant,
    ) -> Response<Body> {
        let failure = answered.as_ref().err().filter(|_| self.audit.is_some()).cloned();
        let mut response = answered.unwrap_or_else(|failure| encode::status(&failure, self.written(failure.code())));
        response.headers_mut().insert(AUDIT_ID, self.audit_id.clone());
        if self.is_refused {
            response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        }
        encode::warn(&mut response, std::mem::take(&mut self.warnings));
        let code = response.status().as_u16();
        let seconds = started.elapsed().as_secs_f64();
        metrics.answered(&self.labels, code, seconds);
        if let Some((bytes, sizes)) = response.body().size_hint().exact().zip(metrics.size(&self.labels)) {
            sizes.observe(bytes as f64);
        }
        let _in_span = self.span.enter();
        tracing::debug!(user = ?self.user, code, duration_ms = seconds * 1000.0, "answered");
        match self.audit {
            None => response,
            Some(audit) => audit.respond(response, failure.as_ref()),
        }
    }

    fn written(&self, code: u16) -> StatusForm {
        let headers = self.accept.iter().map(|value| (ACCEPT, value.clone())).collect();
        let StatusForm { media, pretty } = StatusForm::of_failure(&headers);
        let asked = &self.attributes;
        let is_custom = !asked.resource.is_empty() && self.labels.kind.is_none();
        // Custom resources have no protobuf form, and neither have failures about them once the form is negotiated.
        let has_none = media == ResponseFormat::Protobuf && is_custom && code != 406;
        StatusForm { media: if has_none { ResponseFormat::Json } else { media }, pretty: pretty || self.pretty }
    }
}

/// Returns the labels of a request. Only known resources become label values, so that clients cannot create series.
fn labels(of: &Attributes, method: &Method, is_apply: bool, dry_run: bool) -> RequestLabels {
    let known = KindTable::builtin().resource(&of.group, &of.version, &of.resource);
    let verb = verb(of, method, is_apply);
    let dry_run = if dry_run { "All" } else { "" };
    let Some(kind) = known else {
        let health = HEALTH.contains(&of.path.as_str()).then(|| of.path.as_str().into());
        return RequestLabels { verb, dry_run, subresource: health, ..RequestLabels::default() };
    };
    let scope = match (of.name.is_empty() && of.verb != "create", of.namespace.is_empty()) {
        (false, _) => "resource",
        (true, false) => "namespace",
        (true, true) => "cluster",
    };
    let subresource = kind.subresource(&of.subresource).map(|subresource| subresource.name.clone());
    RequestLabels { verb, dry_run, kind: Some(kind.clone()), subresource, scope }
}

/// Returns the verb as kube-apiserver's metrics have it: the HTTP method, or a word for what HTTP has no method for.
fn verb(of: &Attributes, method: &Method, is_apply: bool) -> &'static str {
    match of.verb.as_str() {
        "list" => "LIST",
        "watch" => "WATCH",
        _ if of.is_long_running() => "CONNECT",
        "patch" if is_apply => "APPLY",
        _ => match method.as_str() {
            "GET" | "HEAD" => "GET",
            "POST" => "POST",
            "PUT" => "PUT",
            "PATCH" => "PATCH",
            "DELETE" => "DELETE",
            _ => "OTHER",
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_count_under_the_verbs_that_dashboards_know() {
        let of = |verb: &str, subresource: &str| Attributes {
            verb: verb.into(),
            version: "v1".into(),
            resource: "pods".into(),
            subresource: subresource.into(),
            ..Attributes::default()
        };
        for (attributes, method, is_apply, expected) in [
            (of("get", ""), Method::GET, false, "GET"),
            (of("list", ""), Method::GET, false, "LIST"),
            (of("watch", ""), Method::GET, false, "WATCH"),
            (of("create", ""), Method::POST, false, "POST"),
            (of("update", ""), Method::PUT, false, "PUT"),
            (of("patch", ""), Method::PATCH, false, "PATCH"),
            (of("patch", ""), Method::PATCH, true, "APPLY"),
            (of("delete", ""), Method::DELETE, false, "DELETE"),
            (of("deletecollection", ""), Method::DELETE, false, "DELETE"),
            (of("create", "exec"), Method::POST, false, "CONNECT"),
            (of("", ""), Method::OPTIONS, false, "OTHER"),
        ] {
            assert_eq!(labels(&attributes, &method, is_apply, false).verb, expected);
        }
        let scope = |attributes: &Attributes| labels(attributes, &Method::GET, false, false).scope;
        let inside = |verb: &str, name: &str| Attributes { namespace: "a".into(), name: name.into(), ..of(verb, "") };
        assert_eq!(
            [inside("get", "p"), inside("create", ""), inside("list", "")].map(|of| scope(&of)),
            ["resource", "resource", "namespace"]
        );
        assert_eq!(
            [of("list", ""), of("create", ""), Attributes::of_path("get", "/livez")].map(|of| scope(&of)),
            ["cluster", "resource", ""]
        );
        let forged = Attributes { resource: "forged".into(), ..of("get", "") };
        assert_eq!(labels(&forged, &Method::GET, false, false).resource(), [""; 3]);
    }
}
