//! Requests to the API servers of physical clusters, as the user that the client is mapped to there.

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use http::{HeaderValue, header::ACCEPT};
use http_body_util::BodyExt as _;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use portolan_types::{Reason, Status};
use serde::Deserialize;

use crate::{
    ApiServer, Body,
    hooks::{ProxyRequest, ProxyTarget, StreamPermit},
    request::RequestContext,
    routing::routes::Captures,
};

use super::{
    budget::{ByteBudget, HeldBytes},
    members::PaneMember,
};

/// Longest wait for the head of an answer, and for each page of a list.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest refusal that is read, in bytes.
const MAX_REFUSAL: usize = 16 * 1024;
/// Longest message of a physical cluster that is passed on, in characters.
const MAX_MESSAGE: usize = 256;
/// Characters of a URL that are encoded.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Requests for one resource on several physical clusters.
pub(super) struct PaneClient {
    pub(super) api: Arc<ApiServer>,
    pub(super) call: Arc<RequestContext>,
    pub(super) permit: StreamPermit,
    pub(super) accept: HeaderValue,
    /// True if tables are requested.
    pub(super) is_table: bool,
    pub(super) budget: ByteBudget,
}

/// Query parameters of a request to a physical cluster, in order.
#[derive(Default)]
pub(super) struct MemberQuery(String);

impl MemberQuery {
    /// Returns the selectors of the client's request. Rows of a watch have their objects, which have the versions.
    pub(super) fn selecting(call: &RequestContext) -> Self {
        let kept = ["labelSelector", "fieldSelector", "includeObject"].into_iter();
        let kept = kept.filter_map(|name| Some((name, call.query.get(name)?))).filter(|(_, value)| *value != "None");
        kept.fold(Self::default(), |query, (name, value)| query.with(name, value))
    }

    pub(super) fn with(mut self, name: &str, value: &str) -> Self {
        let mark = if self.0.is_empty() { '?' } else { '&' };
        self.0.push(mark);
        self.0.push_str(name);
        self.0.push('=');
        self.0.extend(utf8_percent_encode(value, ENCODED));
        self
    }
}

/// Response body of a physical cluster, with its share of the memory budget.
pub(super) struct PageBody {
    pub(super) bytes: Bytes,
    _held: HeldBytes,
}

impl PageBody {
    /// Returns the text.
    ///
    /// # Errors
    /// 502 for bytes that are not text.
    pub(super) fn text(&self) -> Result<&str, Status> {
        std::str::from_utf8(&self.bytes).map_err(|_| garbled("it is no text"))
    }
}

/// Failure to read a page.
pub(super) enum PageError {
    /// The page is larger than its bound.
    TooLarge(Status),
    /// Any other failure.
    Failed(Status),
}

impl From<Status> for PageError {
    fn from(status: Status) -> Self {
        Self::Failed(status)
    }
}

impl PaneClient {
    /// Opens an answer of a physical cluster.
    ///
    /// # Errors
    /// The refusal of the physical cluster; 503 if it cannot be reached.
    pub(super) async fn open(&self, member: &PaneMember, query: &MemberQuery) -> Result<Body, Status> {
        let request = http::Request::get(format!("{}{}", path(&self.call.captures), query.0));
        let request = request.header(ACCEPT, self.accept.clone()).body(Bytes::new()).map_err(Status::internal)?;
        let request = ProxyRequest {
            cluster: member.home.clone(),
            target: ProxyTarget::PhysicalCluster(member.physical.clone()),
            user: member.user.clone(),
            token: self.call.identity.forwardable_token(),
            request,
            permit: self.permit.clone(),
        };
        let opening = async {
            let answered = self.api.config.hooks.streams.proxy(request).await?;
            let (parts, body) = answered.into_parts();
            if parts.status == http::StatusCode::OK { Ok(body) } else { Err(self.refusal(parts.status, body).await) }
        };
        in_time(opening).await
    }

    /// Reads a whole answer of at most `most` bytes.
    ///
    /// # Errors
    /// [`PageError`].
    pub(super) async fn page(
        &self,
        member: &PaneMember,
        query: &MemberQuery,
        most: usize,
    ) -> Result<PageBody, PageError> {
        let body = self.open(member, query).await?;
        in_time(async { Ok(self.read(body, most).await) }).await?
    }

    async fn read(&self, mut body: Body, most: usize) -> Result<PageBody, PageError> {
        let (mut bytes, mut held) = (BytesMut::new(), self.budget.hold());
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| unreachable(&error.to_string()))?;
            let Ok(piece) = frame.into_data() else { continue };
            held.grow(piece.len())?;
            bytes.extend_from_slice(&piece);
            if bytes.len() > most {
                let why = format!("an answer of more than {most} bytes");
                return Err(PageError::TooLarge(Status::new(Reason::RequestEntityTooLarge, why)));
            }
        }
        Ok(PageBody { bytes: bytes.freeze(), _held: held })
    }

    async fn refusal(&self, code: http::StatusCode, body: Body) -> Status {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Refusal {
            reason: String,
            message: String,
        }
        let read = self.read(body, MAX_REFUSAL).await;
        let refusal: Refusal = read.ok().and_then(|page| serde_json::from_slice(&page.bytes).ok()).unwrap_or_default();
        let message = if refusal.message.is_empty() { format!("it answered {code}") } else { refusal.message };
        let message: String = message.chars().take(MAX_MESSAGE).collect();
        let reason: String = refusal.reason.chars().take(64).collect();
        if code.is_client_error() || code.is_server_error() {
            Status::foreign(code.as_u16(), &reason, message, None)
        } else {
            garbled(&format!("it answered {code}"))
        }
    }
}

/// Returns the path of the resource of a request.
fn path(captures: &Captures) -> String {
    let Captures { group, version, namespace, resource, .. } = captures;
    let segment = |text: &str| format!("/{}", utf8_percent_encode(text, ENCODED));
    let base = if group.is_empty() { "/api".to_owned() } else { format!("/apis{}", segment(group)) };
    let place = if namespace.is_empty() { String::new() } else { format!("/namespaces{}", segment(namespace)) };
    format!("{base}{}{place}{}", segment(version), segment(resource))
}

async fn in_time<T>(answered: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let late = |_| unreachable("it does not answer in time");
    tokio::time::timeout(PATIENCE, answered).await.map_err(late)?
}

pub(super) fn unreachable(why: &str) -> Status {
    Status::new(Reason::ServiceUnavailable, why)
}

pub(super) fn garbled(why: &str) -> Status {
    Status::foreign(502, "BadGateway", format!("its answer is invalid: {why}"), None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_queries_are_encoded() {
        for (group, namespace, expected) in [
            ("", "", "/api/v1/pods"),
            ("", "a", "/api/v1/namespaces/a/pods"),
            ("a.b", "../x", "/apis/a.b/v1/namespaces/..%2Fx/pods"),
        ] {
            let captures = Captures {
                group: group.into(),
                version: "v1".into(),
                namespace: namespace.into(),
                resource: "pods".into(),
                ..Captures::default()
            };
            assert_eq!(path(&captures), expected);
        }
        let query = MemberQuery::default().with("limit", "5").with("labelSelector", "a=b,c in (d)&watch=true");
        assert_eq!(query.0, "?limit=5&labelSelector=a%3Db%2Cc%20in%20%28d%29%26watch%3Dtrue");
    }
}
