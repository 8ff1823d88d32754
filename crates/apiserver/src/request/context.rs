//! Authorized request: everything is parsed except the body.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method, header::USER_AGENT};
use parking_lot::Mutex;
use portolan_types::quoted::go_prints;
use portolan_validation::MAX_MANAGER;
use tokio::time::Instant;

use crate::{
    authn::Identity,
    directory::LogicalCluster,
    hooks::{
        AdmissionOptions, AdmissionRequest, InlineBudget, Operation, annotations::AuditAnnotations, warnings::Warnings,
    },
    limits::MemoryCharge,
    metrics::RequestLabels,
    routing::{
        attributes::Attributes,
        query::Query,
        routes::{Captures, RouteEndpoint},
    },
    views::{ApiView, LifecycleView, flattened::FlattenedNames},
};

use super::ResourceTarget;

/// Authorized request.
pub(crate) struct RequestContext {
    pub(crate) method: Method,
    pub(crate) endpoint: RouteEndpoint,
    pub(crate) captures: Captures,
    /// Path within the logical cluster.
    pub(crate) path: String,
    pub(crate) query: Query,
    pub(crate) headers: HeaderMap,
    pub(crate) extensions: Mutex<http::Extensions>,
    pub(crate) uri: http::Uri,
    pub(crate) body: Bytes,
    /// Deadline, except for watches and streams.
    pub(crate) deadline: Instant,
    /// Memory charge of the request and its response.
    pub(crate) charge: MemoryCharge,
    pub(crate) identity: Identity,
    pub(crate) cluster: Arc<LogicalCluster>,
    /// View that the request goes through.
    pub(crate) view: Option<Arc<ApiView>>,
    /// View of an initializer or terminator that the request goes through.
    pub(crate) lifecycle: Option<Arc<LifecycleView>>,
    /// True if it is about all logical clusters.
    pub(crate) spans_all: bool,
    pub(crate) attributes: Arc<Attributes>,
    /// Metric labels.
    pub(crate) labels: RequestLabels,
    /// Texts for `Warning` headers.
    pub(crate) warnings: Warnings,
    /// Admission annotations for the log.
    pub(crate) notes: AuditAnnotations,
    /// Time that admission expressions have used without yielding.
    pub(crate) inline_budget: InlineBudget,
}

/// Operation of a request on an object or subresource, as admission sees it.
#[derive(Clone, Copy)]
pub(crate) struct AdmittedOperation<'a> {
    pub(crate) operation: Operation,
    /// Name of the object; empty if it has none yet.
    pub(crate) name: &'a str,
    /// Subresource; empty for the object itself.
    pub(crate) subresource: &'a str,
    pub(crate) dry_run: bool,
}

impl RequestContext {
    /// Returns true for watches and streams.
    pub(crate) fn is_long_running(&self) -> bool {
        self.attributes.is_long_running()
    }

    /// Returns the names of the flattened view that the request goes through to the logical cluster of a consumer.
    pub(crate) fn flattened(&self) -> Option<&Arc<FlattenedNames>> {
        self.view.as_ref().filter(|view| view.target.is_some())?.flattened.as_ref()
    }

    /// Returns the view of a step, for a request about the LogicalClusters that wait for it.
    pub(crate) fn waiting(&self) -> Option<&Arc<LifecycleView>> {
        self.lifecycle.as_ref().filter(|view| !view.is_content)
    }

    /// Adds texts for `Warning` headers.
    pub(crate) fn warn(&self, texts: impl IntoIterator<Item = String>) {
        // A retried write adds them again.
        texts.into_iter().for_each(|text| self.warnings.add(text));
    }

    /// Returns the admission request for an operation of this request on an object or subresource.
    pub(crate) fn admission_request<'a>(
        &'a self,
        target: &'a ResourceTarget,
        admitted: AdmittedOperation<'a>,
    ) -> AdmissionRequest<'a> {
        let AdmittedOperation { operation, name, subresource, dry_run } = admitted;
        AdmissionRequest {
            cluster: &self.cluster,
            kind: &target.kind,
            namespace: target.namespace.as_deref().unwrap_or_default(),
            name,
            url_name: &self.captures.name,
            operation,
            subresource,
            user: self.identity.acting_user(),
            requester: self.identity.requester(),
            dry_run,
            warnings: &self.warnings,
            notes: &self.notes,
            inline_budget: &self.inline_budget,
            view: self.view.as_deref(),
            table: &target.table,
            options: AdmissionOptions::Write {
                manager: self.query.text("fieldManager"),
                validation: self.query.text("fieldValidation"),
            },
        }
    }

    /// Returns a header as text; empty if it is missing or not text.
    pub(crate) fn header(&self, name: http::HeaderName) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// Returns the field manager: as requested, else the first word of the user agent.
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
