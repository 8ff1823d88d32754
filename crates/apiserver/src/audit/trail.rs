//! Audit trail of one request: its events at the stages of the pipeline.

use std::{io::Read as _, sync::Arc};

use bytes::Bytes;
use futures::FutureExt as _;
use http::{HeaderMap, Response, header};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use portolan_codec::decode::{self, FieldValidation, MediaType};
use portolan_kinds::{Kind, KindTable};
use portolan_strategy::rbac::User;
use portolan_types::Status;
use serde_json::Value;

use crate::{
    Body,
    authn::user_info,
    encode::{self, full},
    routing::attributes::Attributes,
};

use super::{
    Auditor,
    event::{AuditEvent, AuditedRequest, ObjectIdentity, response_status, without_managed_fields},
    policy::{AuditDecision, AuditLevel, AuditStage},
};

/// Largest body in an event, in bytes. A larger one is left out, and an annotation says so.
const MAX_OBJECT: usize = 1024 * 1024;
const DECISION: &str = "authorization.k8s.io/decision";
const REASON: &str = "authorization.k8s.io/reason";
const WORKSPACE: &str = "tenancy.kcp.io/workspace";
const TRUNCATED: &str = "audit.k8s.io/truncated";
/// Resources and subresources whose bodies have credentials, by group. Their events have metadata only.
const SECRET_BODIES: [(&str, &str, &str); 5] = [
    ("", "secrets", ""),
    ("", "serviceaccounts", "token"),
    ("authentication.k8s.io", "tokenreviews", ""),
    ("login.concierge.pinniped.dev", "tokencredentialrequests", ""),
    ("internal.portolan.dev", "keys", ""),
];

/// Trail of one request. Ends with an event when the response is complete, also if the client leaves before.
pub(crate) struct AuditTrail {
    auditor: Arc<Auditor>,
    decision: AuditDecision,
    event: AuditEvent,
    kind: Option<Arc<Kind>>,
    is_long_running: bool,
    is_finished: bool,
}

impl AuditTrail {
    /// Starts the trail of a request; `None` if the policy wants no event.
    pub(crate) fn begin(auditor: &Arc<Auditor>, request: &AuditedRequest<'_>) -> Option<Box<Self>> {
        let mut decision = auditor.policy.decide(request.user, request.attributes);
        if has_secret_body(request.attributes) {
            decision.level = decision.level.min(AuditLevel::Metadata);
        }
        auditor.metrics.decided(decision.level.name());
        if decision.level == AuditLevel::None {
            return None;
        }
        let event = AuditEvent::new(request, decision.level.name(), auditor.seams.clock.now());
        let of = request.attributes;
        let kind = KindTable::builtin().resource(&of.group, &of.version, &of.resource);
        let mut trail = Self {
            auditor: auditor.clone(),
            decision,
            event,
            kind: kind.filter(|_| of.subresource.is_empty()).cloned(),
            is_long_running: of.is_long_running(),
            is_finished: false,
        };
        if request.user.is_some() {
            trail.emit(AuditStage::RequestReceived);
        }
        Some(Box::new(trail))
    }

    /// Records the workspace that the URL names, for a request that is refused before it is known.
    pub(crate) fn record_requested_workspace(&mut self, path: &str) {
        self.event.annotate(WORKSPACE, path);
    }

    /// Records the workspace.
    pub(crate) fn record_workspace(&mut self, path: &str) {
        self.event.replace_annotation(WORKSPACE, path);
    }

    /// Records that the request is allowed, and the user that it acts as, if that is not the client's own.
    pub(crate) fn record_allowed(&mut self, reason: &str, acting_as: Option<&User>) {
        self.event.annotate(DECISION, "allow");
        self.event.annotate(REASON, reason);
        if let Some(user) = acting_as {
            self.event.set("impersonatedUser", user_info(user));
        }
    }

    /// Records that the request was refused before its handler.
    pub(crate) fn record_refused(&mut self, refusal: &Status) {
        if refusal.code() == 403 {
            self.event.annotate(DECISION, "forbid");
            self.event.annotate(REASON, refusal_reason(refusal.message()));
        }
    }

    /// Records an annotation of admission.
    pub(crate) fn annotate(&mut self, key: &str, value: &str) {
        self.event.annotate(key, value);
    }

    /// Records the body of the request.
    pub(crate) fn record_body(&mut self, headers: &HeaderMap, body: &Bytes) {
        if body.is_empty() {
            return;
        }
        let media = media_type(headers);
        if media == Some(MediaType::Json)
            && let Some(identity) = ObjectIdentity::of_json(body)
        {
            self.event.complete_reference(&identity);
        }
        if self.decision.level >= AuditLevel::Request {
            self.set_object("requestObject", media, body);
        }
    }

    /// Ends the trail of a request whose handler panicked.
    pub(crate) fn panicked(mut self, failure: &Status) {
        self.event.set("responseStatus", response_status(failure.code(), Some(failure)));
        self.finish(AuditStage::Panic);
    }

    /// Records the response. Events of a streamed response are written when its body ends.
    pub(crate) fn respond(mut self: Box<Self>, response: Response<Body>, failure: Option<&Status>) -> Response<Body> {
        let code = response.status().as_u16();
        self.event.set("responseStatus", response_status(code, failure));
        if !self.is_authenticated() {
            // As kube-apiserver does: a client without an identity has this event only.
            self.finish(AuditStage::ResponseStarted);
            return response;
        }
        if self.is_long_running {
            self.emit(AuditStage::ResponseStarted);
        }
        if response.body().size_hint().exact().is_some() {
            let response = self.with_response_object(response);
            self.finish(AuditStage::ResponseComplete);
            return response;
        }
        response.map(|body| encode::with_guard(body, TrailGuard(Mutex::new(Some(self))), None, || None))
    }

    fn is_authenticated(&self) -> bool {
        self.event.has_user()
    }

    /// Adds the object of a complete response, which is read and put back.
    fn with_response_object(&mut self, response: Response<Body>) -> Response<Body> {
        let length = response.body().size_hint().exact().unwrap_or(0);
        if self.decision.level < AuditLevel::RequestResponse || length == 0 {
            return response;
        }
        let (parts, body) = response.into_parts();
        let Some(Ok(collected)) = body.collect().now_or_never() else {
            // A body in memory is always ready.
            return Response::from_parts(parts, encode::empty());
        };
        let bytes = collected.to_bytes();
        let media = media_type(&parts.headers);
        match parts.headers.get(header::CONTENT_ENCODING) {
            None => self.set_object("responseObject", media, &bytes),
            Some(_) => match inflated(&bytes) {
                Some(plain) => self.set_object("responseObject", media, &plain),
                None => self.event.annotate(TRUNCATED, "true"),
            },
        }
        Response::from_parts(parts, full(bytes))
    }

    fn set_object(&mut self, field: &str, media: Option<MediaType>, body: &[u8]) {
        if body.len() > MAX_OBJECT {
            self.event.annotate(TRUNCATED, "true");
            return;
        }
        let object = match media {
            Some(MediaType::Json) => serde_json::from_slice(body).ok(),
            Some(MediaType::Yaml) => decode::decode_any(MediaType::Yaml, body).ok(),
            Some(MediaType::Protobuf) => self.decode_protobuf(body),
            None => None,
        };
        if let Some(object) = object {
            let omits = self.decision.omits_managed_fields;
            self.event.set(field, if omits { without_managed_fields(object) } else { object });
        }
    }

    fn decode_protobuf(&self, body: &[u8]) -> Option<Value> {
        let kind = self.kind.as_ref()?;
        let table = KindTable::builtin();
        let decoded = decode::decode(table, kind, MediaType::Protobuf, body, FieldValidation::Ignore);
        decoded.ok().map(|decoded| decoded.object)
    }

    fn finish(&mut self, stage: AuditStage) {
        if !std::mem::replace(&mut self.is_finished, true) {
            self.emit(stage);
        }
    }

    fn emit(&mut self, stage: AuditStage) {
        if !self.decision.omitted.contains(&stage) {
            self.auditor.write(self.event.line(stage, self.auditor.seams.clock.now()));
        }
    }
}

impl Drop for AuditTrail {
    /// Ends the trail of a request whose client left before the response.
    fn drop(&mut self) {
        self.finish(AuditStage::ResponseComplete);
    }
}

/// Guard of a streamed body, which ends the trail with the body.
struct TrailGuard(Mutex<Option<Box<AuditTrail>>>);

impl Drop for TrailGuard {
    fn drop(&mut self) {
        drop(self.0.get_mut().take());
    }
}

/// Returns true for requests whose bodies may have credentials. Sign-ins and one-time links of the console are paths,
/// and a proxied body may be any object of a physical cluster, or anything that a service takes.
fn has_secret_body(of: &Attributes) -> bool {
    !of.is_resource()
        || of.subresource == "proxy"
        || SECRET_BODIES.iter().any(|(group, resource, subresource)| {
            of.group == *group && of.resource == *resource && (subresource.is_empty() || of.subresource == *subresource)
        })
}

/// Returns the reason at the end of a refusal's message; empty for RBAC's own, which has none.
fn refusal_reason(message: &str) -> &str {
    for place in [" at the cluster scope", " in the namespace \""] {
        if let Some((_, rest)) = message.split_once(place) {
            return rest.split_once(": ").map_or("", |(_, reason)| reason);
        }
    }
    ""
}

fn media_type(headers: &HeaderMap) -> Option<MediaType> {
    let text = headers.get(header::CONTENT_TYPE).map_or(Ok("application/json"), |value| value.to_str()).ok()?;
    let media = text.split(';').next().unwrap_or_default().trim();
    match media {
        "application/vnd.kubernetes.protobuf" => Some(MediaType::Protobuf),
        media if media.ends_with("json") => Some(MediaType::Json),
        media if media.ends_with("yaml") => Some(MediaType::Yaml),
        _ => None,
    }
}

/// Decompresses a response; `None` beyond the size limit of objects.
fn inflated(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut plain = Vec::new();
    let limit = MAX_OBJECT as u64 + 1;
    flate2::read::GzDecoder::new(bytes).take(limit).read_to_end(&mut plain).ok()?;
    (plain.len() <= MAX_OBJECT).then_some(plain)
}
