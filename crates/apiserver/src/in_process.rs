//! The server as a `tower` service, without a socket.

use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};

use crate::{
    ApiServer, Body, FairShare,
    authn::{Identity, Peer},
    pipeline,
};

/// A client's end inside the process. Cheap to clone; answers stream.
#[derive(Clone)]
pub struct InProcess {
    server: Arc<ApiServer>,
    identity: Arc<Identity>,
    share: Option<FairShare>,
}

impl InProcess {
    pub(crate) fn new(server: Arc<ApiServer>, identity: Identity) -> Self {
        let groups = crate::authn::with_authenticated(identity.user.groups.clone());
        let user = portolan_machinery::rbac::User { groups, ..identity.user };
        Self { server, identity: Arc::new(Identity { user, ..identity }), share: None }
    }

    /// Returns the same end, whose requests are worked on in the time slices of a tenant.
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
        let (server, peer) = (self.server.clone(), Peer::InProcess(self.identity.clone()));
        let Some(share) = self.share.clone() else {
            return Box::pin(async move { Ok(pipeline::answer(server, peer, request).await) });
        };
        let answer = share.run(async move { pipeline::answer(server, peer, request).await });
        Box::pin(async move { Ok(answer.await.map(|body| share.stream(body))) })
    }
}
