//! Streams of pods: logs, exec, attach and port-forward, opened where the pod runs.
//!
//! The request downstream is built from scratch: the known options of the client's request and the headers of an
//! upgrade, with the credentials of the connection. The result is a body, or the connection itself and the headers
//! that belong to its new protocol.

mod forward;
mod headers;
mod pod;
mod proxied;
mod query;
#[cfg(test)]
mod tests;

use std::time::Duration;

use http::{HeaderMap, Method, Request, Response, StatusCode};
use hyper::upgrade::OnUpgrade;
use kube::{Client, client::Body};
use serde_json::Value;

pub use forward::{PortForward, forward};
pub use headers::asks_for_upgrade;
pub use pod::DownstreamPod;
pub use proxied::{ProxiedAnswer, ProxiedRequest, port_path, proxy};

use crate::client::{DownstreamClient, DownstreamError, StreamAnswer, encode};

/// Deadline of reading the pod, and of the head of the answer. The API server may first have to reach the node.
const ANSWER: Duration = Duration::from_secs(30);

/// Largest pod, in bytes of JSON: Kubernetes stores none that has more than 1.5 MiB in its shorter form.
const MAX_POD: usize = 3 * 1024 * 1024;

/// Request for a stream of a pod.
#[derive(Clone, Debug)]
pub struct StreamRequest<'a> {
    /// The subresource of the pod, as `exec`.
    pub subresource: &'a str,
    /// Options that are sent downstream.
    pub options: &'a [&'a str],
    /// GET or POST: Kubernetes asks for other rights with either.
    pub method: Method,
    /// The query as it came.
    pub query: &'a str,
    /// The headers as they came.
    pub headers: &'a HeaderMap,
}

/// Open stream, or a refusal.
#[derive(Debug)]
pub enum OpenedStream {
    /// Bytes in one direction.
    Body(Body),
    /// The connection, once it has changed its protocol, and the headers that say to which.
    Upgraded(HeaderMap, OnUpgrade),
    /// A refusal that is no `Status`, as kubelets write it: up to 1 KiB.
    Text(StatusCode, String),
}

/// Reason that there is no stream.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The pod is not there, or another object has its name.
    #[error("the pod is not on the physical cluster")]
    NoSuchPod,
    /// A port of the pod would be one of its node.
    #[error("the pod has the network of its node")]
    NodeNetwork,
    /// The API server did not answer.
    #[error("the physical cluster cannot be reached: {0}")]
    Unreachable(String),
    /// The connection may not do this.
    #[error("the connection has no right to this: {0}")]
    Denied(String),
    /// A failure in the words of the physical cluster, each up to 1 KiB.
    #[error("the physical cluster answered {code}: {message}")]
    Refused {
        /// HTTP status code, 400 or more.
        code: u16,
        /// `reason` of the `Status`.
        reason: String,
        /// `message` of the `Status`.
        message: String,
    },
    /// The answer is not one of Kubernetes' API.
    #[error("the answer of the physical cluster makes no sense: {0}")]
    Garbled(String),
}

/// Opens a stream of `pod`, after checking that it is that pod.
///
/// Between the check and the request, another pod of the same name may appear, but none of another logical cluster: the
/// namespace is of this one.
///
/// # Errors
/// [`StreamError`].
pub async fn open(
    client: &Client,
    pod: &DownstreamPod,
    asked: &StreamRequest<'_>,
) -> Result<OpenedStream, StreamError> {
    locate(client, pod).await?;
    ask(client, pod, asked).await
}

fn path(pod: &DownstreamPod) -> String {
    format!("/api/v1/namespaces/{}/pods/{}", encode(pod.namespace()), encode(pod.name()))
}

/// Reads the downstream object at the address of `pod`, and checks that it is that pod.
async fn locate(client: &Client, pod: &DownstreamPod) -> Result<Value, StreamError> {
    locate_at(client, pod, &path(pod)).await
}

/// Reads the downstream object at `path`, and checks that it is `pod`, or the service that it stands for.
async fn locate_at(client: &Client, pod: &DownstreamPod, path: &str) -> Result<Value, StreamError> {
    match DownstreamClient::new(client.clone(), ANSWER).bounded(MAX_POD).get(path).await {
        Ok(found) if pod.is(&found) => Ok(found),
        Ok(_) => Err(StreamError::NoSuchPod),
        Err(error) if error.is_absent(pod.name()) => Err(StreamError::NoSuchPod),
        Err(error) => Err(error.into()),
    }
}

async fn ask(client: &Client, pod: &DownstreamPod, asked: &StreamRequest<'_>) -> Result<OpenedStream, StreamError> {
    let request = downstream(asked, &path(pod))?;
    match DownstreamClient::new(client.clone(), ANSWER).stream(request).await? {
        StreamAnswer::Opened(response) => open_stream(asked, response),
        StreamAnswer::Text { code, text } => {
            if denied(code) {
                Err(StreamError::Denied(text))
            } else {
                Ok(OpenedStream::Text(code, text))
            }
        }
        StreamAnswer::Status { code, status } => {
            let text = |key: &str| crate::status::bounds_text(status[key].as_str().unwrap_or_default());
            Err(if denied(code) {
                StreamError::Denied(text("message"))
            } else {
                StreamError::Refused { code: code.as_u16(), reason: text("reason"), message: text("message") }
            })
        }
    }
}

fn downstream(asked: &StreamRequest<'_>, path: &str) -> Result<Request<Body>, StreamError> {
    let (subresource, query) = (asked.subresource, query::known_options(asked.options, asked.query));
    let mark = if query.is_empty() { "" } else { "?" };
    let request = Request::builder().method(asked.method.clone()).uri(format!("{path}/{subresource}{mark}{query}"));
    let mut request = request.body(Body::empty()).map_err(|error| StreamError::Garbled(error.to_string()))?;
    *request.headers_mut() = headers::downstream(asked.headers);
    Ok(request)
}

fn open_stream(asked: &StreamRequest<'_>, mut response: Response<Body>) -> Result<OpenedStream, StreamError> {
    match response.status() {
        StatusCode::SWITCHING_PROTOCOLS => {
            let headers = headers::upstream(asked.headers, response.headers())
                .ok_or_else(|| StreamError::Garbled("it changed to a protocol that was not requested".into()))?;
            Ok(OpenedStream::Upgraded(headers, hyper::upgrade::on(&mut response)))
        }
        code if asks_for_upgrade(asked.headers) => {
            Err(StreamError::Garbled(format!("an upgrade was answered by {code}")))
        }
        _ => Ok(OpenedStream::Body(response.into_body())),
    }
}

fn denied(code: StatusCode) -> bool {
    matches!(code, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
}

impl From<DownstreamError> for StreamError {
    fn from(error: DownstreamError) -> Self {
        match error {
            DownstreamError::Unreachable(why) => Self::Unreachable(why),
            DownstreamError::Garbled(why) | DownstreamError::Excessive(why) => Self::Garbled(why),
            DownstreamError::Refused(answer) if matches!(answer.code, 401 | 403) => Self::Denied(answer.message),
            DownstreamError::Refused(answer) if answer.code < 400 => Self::Garbled(answer.message),
            DownstreamError::Refused(answer) => {
                Self::Refused { code: answer.code, reason: answer.reason, message: answer.message }
            }
        }
    }
}
