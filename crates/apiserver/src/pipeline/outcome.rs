//! What a request came to, for headers, counters and the log.

use std::sync::Arc;

use http::{HeaderName, HeaderValue, Response};
use portolan_types::Status;
use prometheus::IntGauge;
use tokio::time::Instant;

use crate::{ApiServer, Body, attributes::Attributes, call::Call, encode, metrics::Labels};

use super::door::{Admitted, Entry};

/// What is known of a request so far.
#[derive(Default)]
pub(super) struct Outcome {
    attributes: Attributes,
    user: String,
    cluster: String,
    dry_run: bool,
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
    pub(super) fn seen(&mut self, entry: &Entry) {
        self.attributes = entry.attributes.clone();
        self.dry_run = entry.query.text("dryRun") == "All";
    }

    pub(super) fn admitted(&mut self, admitted: &Admitted) {
        self.cluster = admitted.cluster.id.to_string();
        debug_assert_eq!(admitted.entry().attributes.verb, self.attributes.verb);
    }

    pub(super) fn handled(&mut self, call: &Arc<Call>) {
        self.user.clone_from(&call.identity.user.name);
    }

    /// The answer with its common headers, counted.
    pub(super) fn finish(
        self,
        api: &ApiServer,
        answered: Result<Response<Body>, Status>,
        started: Instant,
    ) -> Response<Body> {
        let mut response = answered.unwrap_or_else(|failure| encode::status(&failure));
        let id = api.seams.uid();
        if let Ok(value) = HeaderValue::from_str(&id) {
            response.headers_mut().insert(HeaderName::from_static("audit-id"), value);
        }
        let code = response.status().as_u16();
        let seconds = started.elapsed().as_secs_f64();
        self.count(api, code, seconds);
        tracing::debug!(
            audit_id = %id, cluster = %self.cluster, user = %self.user, verb = %self.attributes.verb,
            resource = %self.attributes.resource, namespace = %self.attributes.namespace, name = %self.attributes.name,
            code, duration_ms = seconds * 1000.0, "answered"
        );
        response
    }

    /// Only known resources become label values: clients must not be able to make new ones.
    fn count(&self, api: &ApiServer, code: u16, seconds: f64) {
        let of = &self.attributes;
        let table = portolan_machinery::kinds::KindTable::builtin();
        let known = table.resource(&of.group, &of.version, &of.resource);
        let subresource = known.and_then(|kind| kind.subresource(&of.subresource)).map_or("", |s| &*s.name);
        let resource = known.is_some();
        let verb = match of.verb.as_str() {
            "get" | "list" | "watch" | "create" | "update" | "patch" | "delete" | "deletecollection" => {
                of.verb.to_uppercase()
            }
            _ => "OTHER".to_owned(),
        };
        let scope = match (resource, of.name.is_empty(), of.namespace.is_empty()) {
            (false, ..) => "",
            (true, false, _) => "resource",
            (true, true, false) => "namespace",
            (true, true, true) => "cluster",
        };
        let part = |text: &'static str| text;
        let labels = Labels {
            verb: &verb,
            dry_run: if self.dry_run { "All" } else { part("") },
            group: if resource { &of.group } else { part("") },
            version: if resource { &of.version } else { part("") },
            resource: if resource { &of.resource } else { part("") },
            subresource,
            scope,
            code,
        };
        api.metrics.answered(&labels, seconds);
    }
}
