//! Requests to the API server of one physical cluster, on JSON trees. Every request has a deadline and every answer a
//! bound.

mod audiences;
mod discovery;
mod pages;
mod reachability;
mod schema;
mod streams;
mod watch;
pub(crate) mod weight;

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use kube::client::Body;
use portolan_types::object;
use serde_json::{Value, json};

pub(crate) use discovery::{Discovery, ServedResource, discover};
pub(crate) use schema::OpenApiFields;
pub(crate) use streams::StreamAnswer;
pub(crate) use watch::WatchEvent;

use reachability::Reachability;

use crate::{
    memory::{MemoryExcess, RegistrationMemory, SyncMemoryCharge},
    plan::CopyDeletion,
    rules::is_builtin_group,
};

/// Name of our field manager.
pub(crate) const FIELD_MANAGER: &str = "portolan";
/// Default limit of an answer in bytes: a page of a list.
const MAX_ANSWER: usize = 16 * 1024 * 1024;
/// Largest tree that an answer or an event may become, in bytes of memory.
pub(crate) const MAX_TREE: usize = 128 * 1024 * 1024;
/// Largest error answer that is read, in bytes.
const MAX_REFUSAL: usize = 256 * 1024;

/// Failure of a request to a physical cluster. Only an error with [`DownstreamError::is_absent`] proves that the object
/// is gone.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DownstreamError {
    /// There was no answer.
    #[error("the physical cluster cannot be reached: {0}")]
    Unreachable(String),
    /// The answer is a failure.
    #[error("the physical cluster answered {}: {}", .0.code, .0.message)]
    Refused(ErrorAnswer),
    /// The answer is not one of Kubernetes' API.
    #[error("the answer of the physical cluster makes no sense: {0}")]
    Garbled(String),
    /// The answer, or all that is held of the physical cluster, would exceed a limit.
    #[error("the physical cluster has more than is taken from it: {0}")]
    Excessive(String),
}

/// `Status` of a refused request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ErrorAnswer {
    /// HTTP status code.
    pub(crate) code: u16,
    /// `reason` of the `Status`; empty when the answer was none.
    pub(crate) reason: String,
    /// `message` of the `Status`, up to 1 KiB.
    pub(crate) message: String,
    /// `details.name` of the `Status`.
    pub(crate) name: String,
    /// Wait that the server asks for before the next try.
    pub(crate) retry_after: Option<Duration>,
}

impl ErrorAnswer {
    /// Returns the reason of an answer that will be the same next time; `None` for a temporary failure, such as one of
    /// the server.
    pub(crate) fn refusal(&self) -> Option<&'static str> {
        match self.code {
            400 | 422 => Some("Invalid"),
            401 | 403 => Some("Forbidden"),
            408 | 409 | 429 => None,
            402..=499 => Some("Refused"),
            // Server-side apply of a field that the definition of a custom kind does not have.
            500 if self.message.contains("field not declared in schema") => Some("Invalid"),
            _ => None,
        }
    }
}

impl DownstreamError {
    /// Returns true when the API server itself says that there is no object `name`. A missing path, kind or proxy route
    /// does not count.
    pub(crate) fn is_absent(&self, name: &str) -> bool {
        matches!(self, Self::Refused(answer) if answer.code == 404 && answer.reason == "NotFound" && answer.name == name)
    }

    pub(crate) fn is_reason(&self, reason: &str) -> bool {
        matches!(self, Self::Refused(answer) if answer.reason == reason)
    }

    pub(crate) fn code(&self) -> u16 {
        match self {
            Self::Refused(answer) => answer.code,
            Self::Unreachable(_) | Self::Garbled(_) | Self::Excessive(_) => 0,
        }
    }

    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused(answer) => answer.retry_after,
            Self::Unreachable(_) | Self::Garbled(_) | Self::Excessive(_) => None,
        }
    }
}

/// Client of one physical cluster.
#[derive(Clone)]
pub(crate) struct DownstreamClient {
    client: kube::Client,
    deadline: Duration,
    /// Largest answer that is read, in bytes.
    limit: usize,
    /// Memory that answers are charged to while they are read and parsed.
    memory: Option<Arc<RegistrationMemory>>,
    reach: Reachability,
    is_probe: bool,
}

impl DownstreamClient {
    pub(crate) fn new(client: kube::Client, deadline: Duration) -> Self {
        Self { client, deadline, limit: MAX_ANSWER, memory: None, reach: Reachability::default(), is_probe: false }
    }

    /// Returns the client with this limit of an answer, in bytes.
    pub(crate) fn bounded(self, limit: usize) -> Self {
        Self { limit, ..self }
    }

    /// Charges answers to `memory` while they are read and parsed.
    pub(crate) fn charging(self, memory: Arc<RegistrationMemory>) -> Self {
        Self { memory: Some(memory), ..self }
    }

    /// Returns an empty charge for an answer.
    fn charge(&self) -> SyncMemoryCharge {
        self.memory.as_ref().map(RegistrationMemory::arriving).unwrap_or_default()
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Value, DownstreamError> {
        self.call(Method::GET, path, "application/json", None).await
    }

    /// Reads the text of an answer, in at most `time` once it has started. `room` is awaited before the text is read,
    /// so that a silent physical cluster takes none.
    pub(crate) async fn text_in_room<R>(
        &self,
        path: &str,
        room: impl Future<Output = R>,
        time: Duration,
    ) -> Result<(Bytes, R), DownstreamError> {
        let request = request(Method::GET, path, "application/json", None)?;
        let begun = self.within_deadline(async { check_status(self.client.send(request).await).await }).await?;
        let room = room.await;
        let (mut charge, slow) = (self.charge(), DownstreamError::Unreachable("its answer is too slow".into()));
        let text = tokio::time::timeout(time, read(begun, self.limit, &mut charge)).await.map_err(|_| slow)??;
        Ok((text, room))
    }

    /// Succeeds when the API server says that it is ready, and when the credential may not ask.
    pub(crate) async fn ready(&self) -> Result<(), DownstreamError> {
        let request = request(Method::GET, "/readyz", "*/*", None)?;
        let answer =
            self.within_deadline(async { check_status(self.client.send(request).await).await.map(drop) }).await;
        answer.or_else(|error| if error.code() == 403 { Ok(()) } else { Err(error) })
    }

    /// Creates an object.
    pub(crate) async fn create(&self, path: &str, object: &Value) -> Result<Value, DownstreamError> {
        let path = format!("{path}?fieldManager={FIELD_MANAGER}{}", strictness(path));
        check_answer(object, self.call(Method::POST, &path, "application/json", Some(object)).await?)
    }

    /// Sends a create-only request, such as a review, which is answered but not stored.
    pub(crate) async fn ask(&self, path: &str, request: &Value) -> Result<Value, DownstreamError> {
        self.call(Method::POST, path, "application/json", Some(request)).await
    }

    /// Server-side apply, forced. `object` carries the uid and resourceVersion that the write is conditional on.
    pub(crate) async fn apply(&self, path: &str, object: &Value) -> Result<Value, DownstreamError> {
        let path = format!("{path}?fieldManager={FIELD_MANAGER}&force=true{}", strictness(path));
        check_answer(object, self.call(Method::PATCH, &path, "application/apply-patch+yaml", Some(object)).await?)
    }

    pub(crate) async fn merge_patch(&self, path: &str, patch: &Value) -> Result<Value, DownstreamError> {
        let path = format!("{path}?fieldManager={FIELD_MANAGER}");
        self.call(Method::PATCH, &path, "application/merge-patch+json", Some(patch)).await
    }

    /// Patches the pod that was read, or a part of it, by strategic merge. Returns the pod.
    pub(crate) async fn patch_pod(&self, path: &str, pod: &Value, patch: &Value) -> Result<Value, DownstreamError> {
        let path = format!("{path}?fieldManager={FIELD_MANAGER}");
        check_answer(pod, self.call(Method::PATCH, &path, "application/strategic-merge-patch+json", Some(patch)).await?)
    }

    /// Deletes exactly the object, in exactly the state, that was read.
    pub(crate) async fn delete(
        &self,
        path: &str,
        deletion: &CopyDeletion,
        propagation: &str,
    ) -> Result<Value, DownstreamError> {
        let mut options = json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": propagation,
            "preconditions": {"uid": deletion.uid, "resourceVersion": deletion.resource_version},
        });
        if let Some(seconds) = deletion.grace {
            options["gracePeriodSeconds"] = seconds.into();
        }
        self.call(Method::DELETE, path, "application/json", Some(&options)).await
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        media: &str,
        body: Option<&Value>,
    ) -> Result<Value, DownstreamError> {
        let request = request(method, path, media, body)?;
        self.within_deadline(async {
            let response = check_status(self.client.send(request).await).await?;
            let mut charge = self.charge();
            let bytes = read(response, self.limit, &mut charge).await?;
            match parse(&bytes, &mut charge)? {
                answer if answer.is_object() => Ok(answer),
                _ => Err(DownstreamError::Garbled("not an object".into())),
            }
        })
        .await
    }

    /// Waits for an answer, unless the physical cluster is in doubt, and notes whether one came.
    async fn within_deadline<T>(
        &self,
        answer: impl Future<Output = Result<T, DownstreamError>>,
    ) -> Result<T, DownstreamError> {
        if !self.is_probe {
            self.reach.check()?;
        }
        let ended = match tokio::time::timeout(self.deadline, answer).await {
            Ok(answer) => answer,
            Err(_) => Err(DownstreamError::Unreachable(format!("no answer within {} s", self.deadline.as_secs()))),
        };
        self.reach.note(&ended, self.is_probe);
        ended
    }
}

/// Returns the parameter that makes the server refuse fields that its definition of a custom kind does not declare.
/// Otherwise they would be dropped silently.
fn strictness(path: &str) -> &'static str {
    let group = path.strip_prefix("/apis/").and_then(|rest| rest.split('/').next()).unwrap_or_default();
    if is_builtin_group(group) { "" } else { "&fieldValidation=Strict" }
}

fn request(method: Method, path: &str, media: &str, body: Option<&Value>) -> Result<Request<Body>, DownstreamError> {
    let bytes = body.map(Value::to_string).map(Bytes::from);
    let builder = Request::builder().method(method).uri(path).header(header::ACCEPT, "application/json");
    let builder = if bytes.is_some() { builder.header(header::CONTENT_TYPE, media) } else { builder };
    let request = builder.body(bytes.map_or_else(Body::empty, Body::from));
    request.map_err(|error| DownstreamError::Garbled(error.to_string()))
}

/// Returns the answer to a write of `object`, when it is about that.
fn check_answer(object: &Value, answer: Value) -> Result<Value, DownstreamError> {
    let has = |key: &str| !object::meta_text(&answer, key).is_empty();
    if object::name(&answer) == object::name(object) && has("uid") && has("resourceVersion") {
        Ok(answer)
    } else {
        Err(DownstreamError::Garbled(format!("not about {}, which was written", object::name(object))))
    }
}

/// Returns a response that succeeded. Redirects are failures: the credentials are for this server alone.
async fn check_status(answer: Result<Response<Body>, kube::Error>) -> Result<Response<Body>, DownstreamError> {
    let response = answer.map_err(|error| DownstreamError::Unreachable(error_chain(&error)))?;
    if response.status().is_success() { Ok(response) } else { Err(read_refusal(response).await) }
}

async fn read_refusal(response: Response<Body>) -> DownstreamError {
    let code = response.status();
    let seconds =
        response.headers().get(header::RETRY_AFTER).and_then(|v| v.to_str().ok()).and_then(|v| v.parse().ok());
    // Too small to be counted.
    let charge = &mut SyncMemoryCharge::default();
    let body = match read(response, MAX_REFUSAL, charge).await {
        Ok(bytes) => parse(&bytes, charge).unwrap_or_default(),
        Err(_) => Value::Null,
    };
    let text = |value: &Value| crate::status::bounds_text(value.as_str().unwrap_or_default());
    let is_status = body["kind"] == "Status";
    DownstreamError::Refused(ErrorAnswer {
        code: code.as_u16(),
        reason: if is_status { text(&body["reason"]) } else { String::new() },
        message: if is_status { text(&body["message"]) } else { describe(code) },
        name: if is_status { text(&body["details"]["name"]) } else { String::new() },
        retry_after: seconds.map(|seconds: u32| Duration::from_secs(u64::from(seconds.min(300)))),
    })
}

fn describe(code: StatusCode) -> String {
    code.canonical_reason().unwrap_or("an unknown status").to_owned()
}

/// Reads the text of an answer, and charges for it as it arrives.
async fn read(response: Response<Body>, limit: usize, charge: &mut SyncMemoryCharge) -> Result<Bytes, DownstreamError> {
    let mut body = Limited::new(response.into_body(), limit);
    let mut text = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            if error.is::<LengthLimitError>() {
                DownstreamError::Excessive(format!("an answer of more than {limit} bytes"))
            } else {
                DownstreamError::Unreachable(error.to_string())
            }
        })?;
        if let Ok(part) = frame.into_data() {
            charge.grow(part.len()).map_err(MemoryExcess::error)?;
            text.extend_from_slice(&part);
        }
    }
    Ok(text.freeze())
}

/// Parses JSON whose tree is within its bound, and charges for the tree.
fn parse(text: &[u8], charge: &mut SyncMemoryCharge) -> Result<Value, DownstreamError> {
    let weight = weight::of_text(text);
    if weight > MAX_TREE {
        return Err(DownstreamError::Excessive(format!("JSON that takes more than {MAX_TREE} bytes of memory")));
    }
    charge.grow(weight).map_err(MemoryExcess::error)?;
    serde_json::from_slice(text).map_err(|error| DownstreamError::Garbled(error.to_string()))
}

/// Returns an error with its causes, as text.
pub(crate) fn error_chain(error: &dyn std::error::Error) -> String {
    let mut texts = vec![error.to_string()];
    let mut source = error.source();
    while let Some(error) = source {
        let text = error.to_string();
        if !texts.last().is_some_and(|last| last.contains(&text)) {
            texts.push(text);
        }
        source = error.source();
    }
    crate::status::bounds_text(&texts.join(": "))
}

/// Percent-encodes everything but unreserved characters (RFC 3986).
pub(crate) fn encode(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_fields_of_custom_kinds_alone_are_refused() {
        for (path, is_strict) in [
            ("/api/v1/namespaces/a/configmaps", false),
            ("/apis/apps/v1/namespaces/a/deployments/web", false),
            ("/apis/example.com/v1/namespaces/a/widgets", true),
            ("/apis/gateway.networking.k8s.io/v1/namespaces/a/gateways/x", true),
        ] {
            assert_eq!(!strictness(path).is_empty(), is_strict, "{path}");
        }
        let message = "failed to create typed patch object: .spec.x: field not declared in schema".to_owned();
        assert_eq!(ErrorAnswer { code: 500, message, ..ErrorAnswer::default() }.refusal(), Some("Invalid"));
    }

    #[test]
    fn only_permanent_errors_are_refusals() {
        for (code, expected) in [
            (400, Some("Invalid")),
            (403, Some("Forbidden")),
            (408, None),
            (409, None),
            (413, Some("Refused")),
            (422, Some("Invalid")),
            (429, None),
            (307, None),
            (500, None),
            (503, None),
        ] {
            assert_eq!(ErrorAnswer { code, ..ErrorAnswer::default() }.refusal(), expected, "{code}");
        }
    }
}
