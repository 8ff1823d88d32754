//! Requests whose answer is a stream.

use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde_json::Value;

use super::{DownstreamClient, DownstreamError, error_chain};

/// So much of a refusal is read, in bytes.
const MAX_REFUSAL: usize = 64 * 1024;

/// Answer to a request for a stream.
pub(crate) enum StreamAnswer {
    /// 2xx, or the connection has become another protocol's.
    Opened(Response<Body>),
    /// A failure in JSON.
    Status { code: StatusCode, status: Value },
    /// A failure in some other form, as kubelets answer: its beginning.
    Text { code: StatusCode, text: String },
}

impl DownstreamClient {
    /// Sends a request. The deadline is for the head of the answer.
    pub(crate) async fn stream(&self, request: Request<Body>) -> Result<StreamAnswer, DownstreamError> {
        self.within_deadline(async {
            let sent = self.client.send(request).await;
            let response = sent.map_err(|error| DownstreamError::Unreachable(error_chain(&error)))?;
            match response.status() {
                code if code.is_success() || code == StatusCode::SWITCHING_PROTOCOLS => {
                    Ok(StreamAnswer::Opened(response))
                }
                // The credentials are for this server alone.
                code if code.is_redirection() || code.is_informational() => {
                    Err(DownstreamError::Garbled(format!("a stream was answered by {code}")))
                }
                _ => Ok(refusal(response).await),
            }
        })
        .await
    }
}

async fn refusal(response: Response<Body>) -> StreamAnswer {
    let code = response.status();
    let begins = read_prefix(response.into_body()).await;
    match serde_json::from_slice::<Value>(&begins) {
        Ok(status) if status["kind"] == "Status" => StreamAnswer::Status { code, status },
        _ => StreamAnswer::Text { code, text: crate::status::bounds_text(&String::from_utf8_lossy(&begins)) },
    }
}

async fn read_prefix(mut body: Body) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        let room = MAX_REFUSAL - bytes.len();
        bytes.extend(frame.data_ref().into_iter().flatten().take(room));
        if bytes.len() == MAX_REFUSAL {
            break;
        }
    }
    bytes
}
