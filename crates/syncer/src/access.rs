//! Token of the account by which users' requests are proxied to a physical cluster. The syncer's own credential mints
//! it, so that it needs no Secret and is renewed by itself.

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{HeaderValue, Request, Response, StatusCode, header::AUTHORIZATION};
use kube::Client;
use portolan_types::{
    BoxFuture,
    placement::{ACCESS_ACCOUNT, ACCESS_NAMESPACE},
};
use serde_json::json;
use tokio::{sync::Mutex, time::Instant};
use tower::{BoxError, Service, ServiceExt as _};

use crate::client::{DownstreamClient, DownstreamError};

/// Life of a token, in seconds.
const LIFE: u64 = 3600;
/// Age at which a token is renewed.
const RENEWAL: Duration = Duration::from_secs(LIFE * 4 / 5);
/// Age up to which a refused token stays.
const REFUSAL_PAUSE: Duration = Duration::from_secs(10);
/// Deadline of a request for a token.
const DEADLINE: Duration = Duration::from_secs(10);

/// Failure to get a token.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The account or the right to its tokens is missing.
    #[error("the physical cluster has no account for users: join it with --access")]
    Missing,
    /// The request failed this time.
    #[error("no token of the account for users: {0}")]
    Failed(String),
}

/// Source of tokens of the access account.
pub struct AccessTokens {
    client: Client,
    minted: Mutex<Option<MintedToken>>,
}

struct MintedToken {
    bearer: HeaderValue,
    since: Instant,
}

impl AccessTokens {
    /// Creates a source that asks with the credential of `client`.
    pub fn new(client: Client) -> Arc<Self> {
        Arc::new(Self { client, minted: Mutex::default() })
    }

    /// Returns the header of a valid token. Concurrent callers share one request.
    ///
    /// # Errors
    /// [`AccessError`].
    pub async fn bearer(&self) -> Result<HeaderValue, AccessError> {
        let mut minted = self.minted.lock().await;
        if let Some(token) = minted.as_ref().filter(|token| token.since.elapsed() < RENEWAL) {
            return Ok(token.bearer.clone());
        }
        let since = Instant::now();
        let bearer = self.mint().await?;
        *minted = Some(MintedToken { bearer: bearer.clone(), since });
        Ok(bearer)
    }

    /// Forgets a token that the physical cluster refused, so that the next request takes a new one. A token of the last
    /// [`REFUSAL_PAUSE`] stays: a service behind the proxy may answer 401 by itself.
    async fn forget(&self, refused: &HeaderValue) {
        let mut minted = self.minted.lock().await;
        if minted.as_ref().is_some_and(|token| token.bearer == *refused && token.since.elapsed() >= REFUSAL_PAUSE) {
            *minted = None;
        }
    }

    async fn mint(&self) -> Result<HeaderValue, AccessError> {
        let path = format!("/api/v1/namespaces/{ACCESS_NAMESPACE}/serviceaccounts/{ACCESS_ACCOUNT}/token");
        let request = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": LIFE},
        });
        let answered = DownstreamClient::new(self.client.clone(), DEADLINE).ask(&path, &request).await;
        let answered = answered.map_err(|error| match error {
            DownstreamError::Refused(answer) if matches!(answer.code, 403 | 404) => AccessError::Missing,
            error => AccessError::Failed(error.to_string()),
        })?;
        let token = answered["status"]["token"].as_str().filter(|token| !token.is_empty());
        let token = token.ok_or_else(|| AccessError::Failed("the answer has no token".into()))?;
        let mut bearer = HeaderValue::from_str(&format!("Bearer {token}"))
            .map_err(|error| AccessError::Failed(error.to_string()))?;
        bearer.set_sensitive(true);
        Ok(bearer)
    }
}

/// Service that sends requests with a token of the access account.
#[derive(Clone)]
pub struct AccessService<S> {
    inner: S,
    tokens: Arc<AccessTokens>,
}

impl<S> AccessService<S> {
    /// Creates the service over one that adds no credential.
    pub fn new(inner: S, tokens: Arc<AccessTokens>) -> Self {
        Self { inner, tokens }
    }
}

impl<S, B, R> Service<Request<B>> for AccessService<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: Send + 'static,
    R: Send,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<S::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let (inner, tokens) = (self.inner.clone(), self.tokens.clone());
        Box::pin(async move {
            let bearer = tokens.bearer().await?;
            request.headers_mut().insert(AUTHORIZATION, bearer.clone());
            let answer = inner.oneshot(request).await.map_err(Into::into)?;
            if answer.status() == StatusCode::UNAUTHORIZED {
                tokens.forget(&bearer).await;
            }
            Ok(answer)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::atomic::{AtomicU32, Ordering},
    };

    use kube::client::Body;

    use super::*;

    /// Returns a client of a cluster that answers each request for a token with `code`, and the number of requests.
    fn member(code: u16) -> (Client, Arc<AtomicU32>) {
        let asked = Arc::new(AtomicU32::new(0));
        let counted = asked.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let number = counted.fetch_add(1, Ordering::Relaxed) + 1;
            let path = request.uri().path().to_owned();
            async move {
                assert_eq!(path, "/api/v1/namespaces/portolan/serviceaccounts/access/token");
                let body = match code {
                    201 => json!({"kind": "TokenRequest", "status": {"token": format!("t{number}")}}),
                    code => json!({"kind": "Status", "code": code, "reason": "Forbidden", "message": "no"}),
                };
                let answer = Response::builder().status(code).body(Body::from(body.to_string().into_bytes()));
                Ok::<_, Infallible>(answer.unwrap())
            }
        });
        (Client::new(service, "default"), asked)
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_are_shared_and_renewed_at_four_fifths_of_their_life() {
        let (client, asked) = member(201);
        let tokens = AccessTokens::new(client);
        for (seconds, expected) in [(0, "Bearer t1"), (2800, "Bearer t1"), (100, "Bearer t2"), (0, "Bearer t2")] {
            tokio::time::advance(Duration::from_secs(seconds)).await;
            assert_eq!(tokens.bearer().await.unwrap(), expected);
        }
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_token_is_replaced() {
        let (client, _) = member(201);
        let refusing = tower::service_fn(|request: Request<()>| async move {
            let is_old = request.headers()[AUTHORIZATION] == "Bearer t1";
            let code = if is_old { StatusCode::UNAUTHORIZED } else { StatusCode::OK };
            Ok::<_, Infallible>(Response::builder().status(code).body(()).unwrap())
        });
        let mut access = AccessService::new(refusing, AccessTokens::new(client));
        for (seconds, expected) in [(0, 401), (0, 401), (60, 401), (0, 200)] {
            tokio::time::advance(Duration::from_secs(seconds)).await;
            assert_eq!(access.call(Request::new(())).await.unwrap().status(), expected, "after {seconds} s");
        }
    }

    #[tokio::test]
    async fn a_cluster_joined_without_access_reports_it() {
        for (code, is_missing) in [(403, true), (404, true), (500, false)] {
            let failed = AccessTokens::new(member(code).0).bearer().await.unwrap_err();
            assert_eq!(matches!(failed, AccessError::Missing), is_missing, "{code}: {failed}");
        }
    }
}
