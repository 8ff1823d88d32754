//! What a request came to, for headers, counters and the log.

use std::sync::Arc;

use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Response,
    header::{ACCEPT, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS},
};
use http_body::Body as _;
use portolan_machinery::kinds::KindTable;
use portolan_types::Status;
use prometheus::IntGauge;
use tokio::time::Instant;

use crate::{
    ApiServer, Body,
    attributes::Attributes,
    call::Call,
    encode::{self, Media, Written},
    metrics::Labels,
    query::Query,
};

use super::door::{Admitted, Entry, is_long_running};

const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
/// Paths that are counted by themselves.
const HEALTH: [&str; 3] = ["/livez", "/readyz", "/healthz"];
/// Longest audit id that is taken over from a client.
const MAX_AUDIT_ID: usize = 256;

/// What is known of a request so far.
pub(super) struct Outcome {
    attributes: Arc<Attributes>,
    labels: Labels,
    user: String,
    cluster: String,
    audit_id: HeaderValue,
    /// Authorization, or impersonation, refuses it: the answer repeats what a stranger has sent.
    is_refused: bool,
    /// Texts for `Warning` headers.
    warnings: Vec<String>,
    /// In what forms the client takes answers, failures among them.
    accept: Option<HeaderValue>,
    /// Whether it wants them in lines.
    pretty: bool,
}

/// A gauge that goes down again by itself.
pub(crate) struct Counted(IntGauge);

impl Counted {
    pub(crate) fn new(gauge: IntGauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Outcome {
    pub(super) fn new(api: &ApiServer, headers: &HeaderMap) -> Self {
        let given = headers
            .get(AUDIT_ID)
            .filter(|id| !id.is_empty() && id.len() <= MAX_AUDIT_ID && id.as_bytes().iter().all(u8::is_ascii_graphic));
        let made = || HeaderValue::from_str(&api.seams.uid()).expect("a uid is hexadecimal digits and dashes");
        Self {
            attributes: Arc::default(),
            labels: Labels::default(),
            user: String::new(),
            cluster: String::new(),
            is_refused: false,
            warnings: Vec::new(),
            audit_id: given.cloned().unwrap_or_else(made),
            accept: headers.get(ACCEPT).cloned(),
            pretty: encode::wants_pretty(headers, &Query::default()),
        }
    }

    pub(super) fn seen(&mut self, entry: &Entry, headers: &HeaderMap) {
        self.attributes = entry.attributes.clone();
        self.pretty = encode::wants_pretty(headers, &entry.query);
        let is_apply = headers.get(CONTENT_TYPE).is_some_and(|t| t.as_bytes().starts_with(b"application/apply-patch"));
        self.labels = labels(&entry.attributes, &entry.method, is_apply, entry.query.text("dryRun") == "All");
    }

    pub(super) fn admitted(&mut self, admitted: &Admitted) {
        self.cluster = admitted.cluster.path.to_string();
        debug_assert_eq!(admitted.entry().attributes.verb, self.attributes.verb);
    }

    /// Has not been admitted.
    pub(super) fn refused(&mut self, why: &Status) {
        self.is_refused = matches!(why.code(), 400 | 403);
    }

    /// What the request counts as.
    pub(super) fn labels(&self) -> &Labels {
        &self.labels
    }

    pub(super) fn handled(&mut self, call: &Arc<Call>) {
        self.user.clone_from(&call.identity.user.name);
        self.warnings = call.warnings.take();
    }

    /// The answer with its common headers, counted.
    pub(super) fn finish(
        mut self,
        api: &ApiServer,
        answered: Result<Response<Body>, Status>,
        started: Instant,
    ) -> Response<Body> {
        let mut response = answered.unwrap_or_else(|failure| encode::status(&failure, self.written(failure.code())));
        response.headers_mut().insert(AUDIT_ID, self.audit_id.clone());
        if self.is_refused {
            response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        }
        encode::warn(&mut response, std::mem::take(&mut self.warnings));
        let code = response.status().as_u16();
        let seconds = started.elapsed().as_secs_f64();
        api.metrics.answered(&self.labels, code, seconds);
        if let Some((bytes, sizes)) = response.body().size_hint().exact().zip(api.metrics.size(&self.labels)) {
            sizes.observe(bytes as f64);
        }
        tracing::debug!(
            audit_id = ?self.audit_id, cluster = %self.cluster, user = ?self.user, verb = %self.attributes.verb,
            resource = %self.attributes.resource, namespace = %self.attributes.namespace, name = %self.attributes.name,
            code, duration_ms = seconds * 1000.0, "answered"
        );
        response
    }

    fn written(&self, code: u16) -> Written {
        let headers = self.accept.iter().map(|value| (ACCEPT, value.clone())).collect();
        let Written { media, pretty } = Written::of_failure(&headers);
        let asked = &self.attributes;
        let is_custom = !asked.resource.is_empty()
            && KindTable::builtin().resource(&asked.group, &asked.version, &asked.resource).is_none();
        // Custom resources have no protobuf, and so have failures about them, once their form has been agreed on.
        let has_none = media == Media::Protobuf && is_custom && code != 406;
        Written { media: if has_none { Media::Json } else { media }, pretty: pretty || self.pretty }
    }
}

/// Only known resources become label values: clients must not be able to make new ones.
fn labels(of: &Attributes, method: &Method, is_apply: bool, dry_run: bool) -> Labels {
    let known = KindTable::builtin().resource(&of.group, &of.version, &of.resource);
    let verb = verb(of, method, is_apply);
    let dry_run = if dry_run { "All" } else { "" };
    let Some(kind) = known else {
        let health = HEALTH.contains(&of.path.as_str()).then(|| of.path.as_str().into());
        return Labels { verb, dry_run, subresource: health, ..Labels::default() };
    };
    let scope = match (of.name.is_empty() && of.verb != "create", of.namespace.is_empty()) {
        (false, _) => "resource",
        (true, false) => "namespace",
        (true, true) => "cluster",
    };
    let subresource = kind.subresource(&of.subresource).map(|subresource| subresource.name.clone());
    Labels { verb, dry_run, kind: Some(kind.clone()), subresource, scope }
}

/// The verb as kube-apiserver counts it: that of HTTP, but for what HTTP has no word for.
fn verb(of: &Attributes, method: &Method, is_apply: bool) -> &'static str {
    match of.verb.as_str() {
        "list" => "LIST",
        "watch" => "WATCH",
        _ if is_long_running(of) => "CONNECT",
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
