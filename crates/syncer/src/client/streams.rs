//! Requests whose answer is a stream.

use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde_json::Value;

use super::{Api, DownstreamError, chain};

/// So much of a refusal is read, in bytes.
const MAX_REFUSAL: usize = 64 * 1024;

/// What came back.
pub(crate) enum Answered {
    /// 2xx, or the connection has become another protocol's.
    Opened(Response<Body>),
    /// A failure in JSON.
    Status { code: StatusCode, status: Value },
    /// A failure in some other form, as kubelets answer: its beginning.
    Text { code: StatusCode, text: String },
}

impl Api {
    /// Sends a request. The deadline is for the head of the answer.
    pub(crate) async fn stream(&self, request: Request<Body>) -> Result<Answered, DownstreamError> {
        self.within_deadline(async {
            let sent = self.client.send(request).await;
            let response = sent.map_err(|error| DownstreamError::Unreachable(chain(&error)))?;
            match response.status() {
                code if code.is_success() || code == StatusCode::SWITCHING_PROTOCOLS => Ok(Answered::Opened(response)),
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

async fn refusal(response: Response<Body>) -> Answered {
    let code = response.status();
    let begins = beginning(response.into_body()).await;
    match serde_json::from_slice::<Value>(&begins) {
        Ok(status) if status["kind"] == "Status" => Answered::Status { code, status },
        _ => Answered::Text { code, text: crate::status::bounds_text(&String::from_utf8_lossy(&begins)) },
    }
}

async fn beginning(mut body: Body) -> Vec<u8> {
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
