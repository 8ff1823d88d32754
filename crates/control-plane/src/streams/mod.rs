//! Streams of pods (logs, exec, attach, port-forward), proxied to the physical cluster that runs the pod.

mod proxied;
mod responses;
mod splice;

use std::sync::{Arc, OnceLock};

use futures::StreamExt as _;
use http::{
    HeaderMap, Method, Response, StatusCode,
    header::{HOST, ORIGIN},
};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use portolan_apiserver::{
    ApiServer, Body, BodyError,
    directory::LogicalCluster,
    hooks::{PodPort, PodStream, PodStreamRequest, PodStreams, ProxyRequest, StreamPermit},
};
use portolan_syncer::streams::{self, DownstreamPod, OpenedStream, StreamError, StreamRequest, asks_for_upgrade};
use portolan_types::{BoxFuture, GroupResource, ObjectKey, Reason, Status, object, placement::PlacedCopy};
use serde_json::Value;
use tokio::io::DuplexStream;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::physical_clusters::{ClusterClient, ClusterClientError, ClusterClients};

/// Proxy of pod streams. It is a hook of the API server, which is made first, so its routes are set later.
#[derive(Clone, Default)]
pub(crate) struct PodStreamProxy(Arc<OnceLock<PodStreamRoutes>>);

/// Routes from pods to physical clusters.
struct PodStreamRoutes {
    api: Arc<ApiServer>,
    clients: Arc<ClusterClients>,
    /// Name of the control plane, part of the downstream namespaces' identity.
    plane: Option<String>,
    spliced: TaskTracker,
}

impl PodStreamProxy {
    /// Sets the routes. Requests before that fail.
    pub(crate) fn start(&self, api: Arc<ApiServer>, clients: Arc<ClusterClients>, plane: Option<String>) {
        self.0.get_or_init(|| PodStreamRoutes { api, clients, plane, spliced: TaskTracker::new() });
    }

    /// Waits until all streams have ended after `shutdown`, which ends them.
    pub(crate) async fn ended(self, shutdown: CancellationToken) {
        shutdown.cancelled().await;
        if let Some(routes) = self.0.get() {
            routes.spliced.close();
            routes.spliced.wait().await;
        }
    }
}

impl PodStreams for PodStreamProxy {
    fn open(&self, request: PodStreamRequest) -> BoxFuture<'_, Result<Response<Body>, Status>> {
        Box::pin(async move {
            let routes = self.0.get().ok_or_else(|| Status::internal("the server has not started"))?;
            routes.open(request).await
        })
    }

    fn proxy(&self, request: ProxyRequest) -> BoxFuture<'_, Result<Response<Body>, Status>> {
        Box::pin(async move {
            let routes = self.0.get().ok_or_else(|| Status::internal("the server has not started"))?;
            Box::pin(routes.proxy(request)).await
        })
    }

    fn connect(&self, to: PodPort) -> BoxFuture<'_, Result<DuplexStream, Status>> {
        Box::pin(async move {
            let routes = self.0.get().ok_or_else(|| Status::internal("the server has not started"))?;
            routes.connect(&to).await
        })
    }
}

impl PodStreamRoutes {
    async fn open(&self, mut request: PodStreamRequest) -> Result<Response<Body>, Status> {
        let Some(copy) = DownstreamPod::placed(&request.pod) else { return unplaced(&request) };
        let upgrade = upgrade(&mut request)?;
        let client = self.client(&request.cluster, &copy).await?;
        let Some(pod) = self.downstream_pod(&request.cluster, &request.pod, &copy, &client)? else {
            return unplaced(&request);
        };
        let wanted = StreamRequest {
            subresource: request.stream.subresource(),
            options: options(request.stream),
            method: request.request.method().clone(),
            query: request.request.uri().query().unwrap_or_default(),
            headers: request.request.headers(),
        };
        let opened = client.end.run_until_cancelled(streams::open(&client.client, &pod, &wanted)).await;
        let opened = opened.ok_or_else(|| responses::no_client(&copy.name, &ClusterClientError::Unknown))?;
        let opened = opened.map_err(|error| not_opened(&copy, &request.pod, request.stream, error))?;
        Ok(match (opened, upgrade) {
            (OpenedStream::Text(code, text), _) => responses::text(code, text),
            (OpenedStream::Body(body), _) => log(body, client.end),
            (OpenedStream::Upgraded(headers, downstream), Some(upstream)) => {
                self.splice(upstream, downstream, request.permit, client.end);
                let mut response = responses::empty(StatusCode::SWITCHING_PROTOCOLS);
                *response.headers_mut() = headers;
                response
            }
            (OpenedStream::Upgraded(..), None) => return Err(Status::internal("the client asked for no upgrade")),
        })
    }

    async fn connect(&self, to: &PodPort) -> Result<DuplexStream, Status> {
        let without_host =
            || Status::bad_request(format!("pod {} does not have a host assigned", object::name(&to.pod)));
        let copy = DownstreamPod::placed(&to.pod).ok_or_else(without_host)?;
        let client = self.client(&to.cluster, &copy).await?;
        let pod = self.downstream_pod(&to.cluster, &to.pod, &copy, &client)?.ok_or_else(without_host)?;
        let forwarded = client.end.run_until_cancelled(streams::forward(&client.client, &pod, to.port)).await;
        let forwarded = forwarded.ok_or_else(|| responses::no_client(&copy.name, &ClusterClientError::Unknown))?;
        let forwarded = forwarded.map_err(|error| not_opened(&copy, &to.pod, PodStream::PortForward, error))?;
        self.spliced.spawn(client.end.run_until_cancelled_owned(forwarded.carry));
        Ok(forwarded.stream)
    }

    /// Returns a client of the physical cluster that runs the pod. It is registered in the pod's workspace or an
    /// ancestor.
    async fn client(&self, cluster: &Arc<LogicalCluster>, copy: &PlacedCopy) -> Result<ClusterClient, Status> {
        let directory = self.api.directory();
        let up = std::iter::successors(Some(cluster.clone()), |cluster| directory.by_id(cluster.parent?));
        let homes: Vec<_> = up.map(|cluster| cluster.id).collect();
        let client = match copy.name.parse() {
            Ok(name) => self.clients.client_of(&copy.uid, &name, homes).await,
            Err(_) => Err(ClusterClientError::Unknown),
        };
        client.map_err(|error| {
            tracing::info!(cluster = copy.name, %error, "a pod's physical cluster cannot be reached");
            responses::no_client(&copy.name, &error)
        })
    }

    fn downstream_pod(
        &self,
        cluster: &LogicalCluster,
        pod: &Value,
        copy: &PlacedCopy,
        client: &ClusterClient,
    ) -> Result<Option<DownstreamPod>, Status> {
        self.downstream_object(cluster, pod, "pods", (copy, client))
    }

    /// Returns the downstream address of a pod or service.
    fn downstream_object(
        &self,
        cluster: &LogicalCluster,
        found: &Value,
        resource: &str,
        (copy, client): (&PlacedCopy, &ClusterClient),
    ) -> Result<Option<DownstreamPod>, Status> {
        let (Ok(namespace), Ok(name)) = (object::namespace(found).parse(), object::name(found).parse()) else {
            return Err(Status::internal("a pod without a name"));
        };
        let key = ObjectKey::namespaced(cluster.id, GroupResource::new("", resource), namespace, name);
        Ok(DownstreamPod::of(found, &key, &copy.uid, client.namespace_mapping, self.plane.as_deref()))
    }

    /// Copies bytes until either side ends, or `end` is cancelled.
    fn splice(&self, upstream: OnUpgrade, downstream: OnUpgrade, permit: StreamPermit, end: CancellationToken) {
        self.spliced.spawn(async move {
            let spliced = end.run_until_cancelled(async {
                let (upstream, downstream) = tokio::try_join!(upstream, downstream)?;
                splice::splice(TokioIo::new(upstream), TokioIo::new(downstream)).await?;
                Ok::<_, BodyError>(())
            });
            if let Some(Err(error)) = spliced.await {
                tracing::debug!(%error, "a pod stream failed");
            }
            drop(permit);
        });
    }
}

fn not_opened(copy: &PlacedCopy, pod: &Value, stream: PodStream, error: StreamError) -> Status {
    tracing::info!(cluster = copy.name, %error, "a pod stream was not opened");
    responses::failed(&copy.name, object::name(pod), stream, error)
}

/// Returns the options that are passed on. Logs lack `insecureSkipTLSVerifyBackend`: it would make the physical cluster
/// trust any server in place of a node.
fn options(stream: PodStream) -> &'static [&'static str] {
    match stream {
        PodStream::Log => &[
            "container",
            "follow",
            "limitBytes",
            "previous",
            "sinceSeconds",
            "sinceTime",
            "stream",
            "tailLines",
            "timestamps",
        ],
        PodStream::Exec => &["command", "container", "stderr", "stdin", "stdout", "tty"],
        PodStream::Attach => &["container", "stderr", "stdin", "stdout", "tty"],
        PodStream::PortForward => &["ports"],
    }
}

/// Refuses requests from pages of other origins, which would use the client certificate of the browser's user.
fn check_origin(headers: &HeaderMap) -> Result<(), Status> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or("null")).unwrap_or_default();
    let (origin, host) = (text(ORIGIN), text(HOST));
    let own = origin.split_once("://").is_some_and(|(_, rest)| rest.eq_ignore_ascii_case(host));
    if origin.is_empty() || own {
        Ok(())
    } else {
        Err(Status::new(Reason::Forbidden, "streams are not opened for pages of other origins"))
    }
}

/// Takes the client's end of the stream out of the request; `None` for logs in a response body.
fn upgrade(request: &mut PodStreamRequest) -> Result<Option<OnUpgrade>, Status> {
    let wanted = asks_for_upgrade(request.request.headers());
    if !wanted {
        return match request.stream {
            PodStream::Log => Ok(None),
            PodStream::Exec | PodStream::Attach | PodStream::PortForward => {
                Err(Status::bad_request("Upgrade request required"))
            }
        };
    }
    check_origin(request.request.headers())?;
    if ![Method::GET, Method::POST].contains(request.request.method()) {
        return Err(Status::bad_request("a stream is opened with GET or POST"));
    }
    let upgrade = request.request.extensions_mut().remove::<OnUpgrade>();
    upgrade.map(Some).ok_or_else(|| Status::bad_request("this connection cannot change its protocol"))
}

/// Returns the response for a pod without a physical cluster.
fn unplaced(request: &PodStreamRequest) -> Result<Response<Body>, Status> {
    let query = request.request.uri().query().unwrap_or_default();
    let container = query.split('&').find_map(|pair| pair.strip_prefix("container=")).filter(|name| !name.is_empty());
    responses::without_host(&request.pod, request.stream, container)
}

/// Returns a log as it arrives.
fn log(body: kube::client::Body, end: CancellationToken) -> Response<Body> {
    let mut response = responses::text(StatusCode::OK, "");
    *response.body_mut() = until(body, end);
    response
}

/// Returns a body that passes pieces on as they arrive. At `end` it fails, so that a part is never taken for the whole.
fn until(body: kube::client::Body, end: CancellationToken) -> Body {
    let pieces = futures::stream::unfold(Some(body.into_data_stream()), move |pieces| {
        let end = end.clone();
        async move {
            let mut pieces = pieces?;
            tokio::select! {
                piece = pieces.next() => Some((piece?.map(Frame::data).map_err(BodyError::from), Some(pieces))),
                () = end.cancelled() => Some((Err(BodyError::from("the server or the physical cluster goes")), None)),
            }
        }
    });
    StreamBody::new(pieces).boxed_unsync()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn pages_of_other_origins_open_nothing() {
        for (origin, expected) in [
            ("https://127.0.0.1:6443", true),
            ("https://evil.example", false),
            ("null", false),
            ("https://127.0.0.1:6443.evil.example", false),
        ] {
            let host = (HOST, HeaderValue::from_static("127.0.0.1:6443"));
            let headers = HeaderMap::from_iter([host, (ORIGIN, HeaderValue::from_static(origin))]);
            assert_eq!(check_origin(&headers).is_ok(), expected, "{origin}");
        }
        assert!(check_origin(&HeaderMap::new()).is_ok(), "kubectl is not a page");
    }
}
