//! Routes of the outer router behind the pipeline: the layer that runs its stages, the extractor of the authorized
//! request, and responses that reach the connection as they are.

use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
};

use axum::{
    body::Body as AxumBody,
    extract::{FromRequestParts, Request},
    response::{IntoResponse, Response as AxumResponse},
    routing::Route,
};
use futures::future::BoxFuture;
use http::{Response, StatusCode, Uri, request::Parts};
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use portolan_types::Status;
use tower::{Layer, Service, ServiceExt as _};

use crate::{
    ApiServer, Body,
    authn::Peer,
    pipeline::{self, RouteHandler, boxed_body},
    request::RequestContext,
};

/// Server, client and URL of a request, as it arrived. The router sees a normalized path.
#[derive(Clone)]
pub(super) struct ArrivedRequest {
    pub(super) api: Arc<ApiServer>,
    pub(super) peer: Peer,
    pub(super) uri: Uri,
}

/// Extension that carries a response through the router unchanged.
struct CarriedValue<T>(Arc<Mutex<Option<T>>>);

impl<T> Clone for CarriedValue<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Send + 'static> CarriedValue<T> {
    fn into_response(value: T) -> AxumResponse {
        let mut response = AxumResponse::new(AxumBody::empty());
        response.extensions_mut().insert(CarriedValue(Arc::new(Mutex::new(Some(value)))));
        response
    }
}

fn take_carried<T: Send + 'static>(response: &AxumResponse) -> Option<T> {
    response.extensions().get::<CarriedValue<T>>().and_then(|carried| carried.0.lock().take())
}

/// Extractor of an authorized request. Only the pipeline provides it.
#[derive(Clone)]
pub(super) struct AuthorizedCall {
    pub(super) api: Arc<ApiServer>,
    pub(super) call: Arc<RequestContext>,
}

impl<S: Sync> FromRequestParts<S> for AuthorizedCall {
    type Rejection = RoutedResponse;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, RoutedResponse> {
        let unauthorized = || RoutedResponse(Err(Status::internal("the request did not pass the pipeline")));
        parts.extensions.get::<Self>().cloned().ok_or_else(unauthorized)
    }
}

/// Response of a route, or the failure that the pipeline encodes.
pub(super) struct RoutedResponse(Result<Response<Body>, Status>);

impl From<Result<Response<Body>, Status>> for RoutedResponse {
    fn from(response: Result<Response<Body>, Status>) -> Self {
        Self(response)
    }
}

impl IntoResponse for RoutedResponse {
    fn into_response(self) -> AxumResponse {
        CarriedValue::into_response(self.0)
    }
}

/// Layer that runs the stages of the pipeline before a route.
#[derive(Clone, Copy)]
pub(super) struct PipelineLayer;

impl Layer<Route> for PipelineLayer {
    type Service = PipelineRoute;

    fn layer(&self, route: Route) -> PipelineRoute {
        PipelineRoute { route: Some(route) }
    }
}

/// Pipeline with a route as its last stage; without a route, with the Kubernetes handlers.
#[derive(Clone)]
pub(super) struct PipelineRoute {
    route: Option<Route>,
}

impl PipelineRoute {
    /// Returns the pipeline of Kubernetes' routes, the fallback of the router.
    pub(super) fn kubernetes() -> Self {
        Self { route: None }
    }
}

impl Service<Request> for PipelineRoute {
    type Response = AxumResponse;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<AxumResponse, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        let arrived = request.extensions_mut().remove::<ArrivedRequest>();
        if let Some(route) = self.route.clone() {
            request
                .extensions_mut()
                .insert(RouteHandler::new(move |api, call| Box::pin(respond(route.clone(), api, call))));
        }
        Box::pin(async move {
            let Some(ArrivedRequest { api, peer, uri }) = arrived else {
                return Ok(StatusCode::INTERNAL_SERVER_ERROR.into_response());
            };
            *request.uri_mut() = uri;
            Ok(CarriedValue::into_response(pipeline::answer(api, peer, request.map(boxed_body)).await))
        })
    }
}

/// Calls a route with an authorized request.
async fn respond(route: Route, api: Arc<ApiServer>, call: Arc<RequestContext>) -> Result<Response<Body>, Status> {
    let mut request = Request::new(AxumBody::empty());
    request.extensions_mut().insert(AuthorizedCall { api, call });
    let Ok(response) = route.oneshot(request).await;
    take_carried::<Result<Response<Body>, Status>>(&response).unwrap_or_else(|| Ok(own_body(response)))
}

/// Returns the response of the pipeline that the router has returned.
pub(super) fn into_answer(response: AxumResponse) -> Response<Body> {
    take_carried::<Response<Body>>(&response).unwrap_or_else(|| own_body(response))
}

fn own_body(response: AxumResponse) -> Response<Body> {
    response.map(|body| body.map_err(Into::into).boxed_unsync())
}
