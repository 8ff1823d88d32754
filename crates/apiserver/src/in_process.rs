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
    ApiServer, Body,
    authn::{Identity, Peer},
    pipeline,
};

/// A client's end inside the process. Cheap to clone; answers stream.
#[derive(Clone)]
pub struct InProcess {
    server: Arc<ApiServer>,
    identity: Arc<Identity>,
}

impl InProcess {
    pub(crate) fn new(server: Arc<ApiServer>, identity: Identity) -> Self {
        let groups = crate::authn::with_authenticated(identity.user.groups.clone());
        let user = portolan_machinery::rbac::User { groups, ..identity.user };
        Self { server, identity: Arc::new(Identity { user, ..identity }) }
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
        Box::pin(async move { Ok(pipeline::answer(server, peer, request).await) })
    }
}
