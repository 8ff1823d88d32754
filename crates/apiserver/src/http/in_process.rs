//! Server as a `tower` service, without a socket.

use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures::{FutureExt as _, future::BoxFuture};
use http::{Request, Response};

use crate::{
    ApiServer, Body, FairShare,
    authn::{Identity, Peer},
    pipeline::boxed_body,
};

use super::boxed_answer;

/// In-process client of the server. Cheap to clone; responses stream.
#[derive(Clone)]
pub struct InProcess {
    server: Arc<ApiServer>,
    identity: Arc<Identity>,
    share: Option<FairShare>,
}

impl InProcess {
    pub(crate) fn new(server: Arc<ApiServer>, identity: Identity) -> Self {
        let groups = crate::authn::with_authenticated(identity.user.groups.clone());
        let user = portolan_strategy::rbac::User { groups, ..identity.user };
        Self { server, identity: Arc::new(Identity { user, ..identity }), share: None }
    }

    /// Returns the same client with its requests charged to the time slices of a tenant.
    #[must_use]
    pub fn charged_to(self, share: FairShare) -> Self {
        Self { share: Some(share), ..self }
    }
}

impl<B> tower::Service<Request<B>> for InProcess
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let request = request.map(boxed_body);
        let (server, peer) = (self.server.clone(), Peer::InProcess(self.identity.clone()));
        let answer = boxed_answer(server, peer, request);
        let Some(share) = self.share.clone() else {
            return Box::pin(answer.map(Ok));
        };
        let answer = share.run(answer);
        Box::pin(async move { Ok(answer.await.map(|body| share.stream(body))) })
    }
}
