//! Streams of pods, spliced through the connection to the physical cluster that they run on.

mod answer;
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
    hooks::{PodPort, PodStream, PodStreamRequest, PodStreams, StreamPlace},
};
use portolan_syncer::streams::{self, Opened, PodBelow, StreamError, StreamRequest, asks_for_upgrade};
use portolan_types::{BoxFuture, GroupResource, ObjectKey, Reason, Status, object, placement::PlacedCopy};
use serde_json::Value;
use tokio::io::DuplexStream;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::members::{Line, LineError, Lines};

/// The way to pods: the API server's hooks are made before it, since it needs the server's directory.
#[derive(Clone, Default)]
pub(crate) struct Streams(Arc<OnceLock<Reach>>);

/// What streams are opened with.
struct Reach {
    api: Arc<ApiServer>,
    lines: Arc<Lines>,
    /// The name of the control plane, which namespaces below bear.
    plane: Option<String>,
    spliced: TaskTracker,
}

impl Streams {
    /// From now on pods can be reached.
    pub(crate) fn start(&self, api: Arc<ApiServer>, lines: Arc<Lines>, plane: Option<String>) {
        self.0.get_or_init(|| Reach { api, lines, plane, spliced: TaskTracker::new() });
    }

    /// Waits for the last stream after `shutdown`, at which all of them end.
    pub(crate) async fn ended(self, shutdown: CancellationToken) {
        shutdown.cancelled().await;
        if let Some(reach) = self.0.get() {
            reach.spliced.close();
            reach.spliced.wait().await;
        }
    }
}

impl PodStreams for Streams {
    fn open(&self, request: PodStreamRequest) -> BoxFuture<'_, Result<Response<Body>, Status>> {
        Box::pin(async move {
            let reach = self.0.get().ok_or_else(|| Status::internal("the server has not started"))?;
            reach.open(request).await
        })
    }

    fn connect(&self, to: PodPort) -> BoxFuture<'_, Result<DuplexStream, Status>> {
        Box::pin(async move {
            let reach = self.0.get().ok_or_else(|| Status::internal("the server has not started"))?;
            reach.connect(&to).await
        })
    }
}

impl Reach {
    async fn open(&self, mut request: PodStreamRequest) -> Result<Response<Body>, Status> {
        let Some(copy) = PodBelow::placed(&request.pod) else { return nowhere(&request) };
        let upgrade = upgrade(&mut request)?;
        let line = self.line(&request.cluster, &copy).await?;
        let Some(pod) = self.below(&request.cluster, &request.pod, &copy, &line)? else { return nowhere(&request) };
        let asked = StreamRequest {
            subresource: request.stream.subresource(),
            options: options(request.stream),
            method: request.request.method().clone(),
            query: request.request.uri().query().unwrap_or_default(),
            headers: request.request.headers(),
        };
        let opened = line.end.run_until_cancelled(streams::open(&line.client, &pod, &asked)).await;
        let opened = opened.ok_or_else(|| answer::no_line(&copy.name, &LineError::Unknown))?;
        let opened = opened.map_err(|error| not_opened(&copy, &request.pod, request.stream, error))?;
        Ok(match (opened, upgrade) {
            (Opened::Text(code, text), _) => answer::text(code, text),
            (Opened::Body(body), _) => log(body, line.end),
            (Opened::Upgraded(headers, below), Some(above)) => {
                self.splice((above, below), request.place, line.end);
                let mut response = answer::empty(StatusCode::SWITCHING_PROTOCOLS);
                *response.headers_mut() = headers;
                response
            }
            (Opened::Upgraded(..), None) => return Err(Status::internal("nobody asked for another protocol")),
        })
    }

    async fn connect(&self, to: &PodPort) -> Result<DuplexStream, Status> {
        let without_host =
            || Status::bad_request(format!("pod {} does not have a host assigned", object::name(&to.pod)));
        let copy = PodBelow::placed(&to.pod).ok_or_else(without_host)?;
        let line = self.line(&to.cluster, &copy).await?;
        let pod = self.below(&to.cluster, &to.pod, &copy, &line)?.ok_or_else(without_host)?;
        let forwarded = line.end.run_until_cancelled(streams::forward(&line.client, &pod, to.port)).await;
        let forwarded = forwarded.ok_or_else(|| answer::no_line(&copy.name, &LineError::Unknown))?;
        let forwarded = forwarded.map_err(|error| not_opened(&copy, &to.pod, PodStream::PortForward, error))?;
        self.spliced.spawn(line.end.run_until_cancelled_owned(forwarded.carry));
        Ok(forwarded.stream)
    }

    /// A line to where the pod runs. Physical clusters are registered where the pod is, or in a workspace around it.
    async fn line(&self, cluster: &Arc<LogicalCluster>, copy: &PlacedCopy) -> Result<Line, Status> {
        let directory = self.api.directory();
        let up = std::iter::successors(Some(cluster.clone()), |cluster| directory.by_id(cluster.parent?));
        let homes: Vec<_> = up.map(|cluster| cluster.id).collect();
        let line = match copy.name.parse() {
            Ok(name) => self.lines.to(&copy.uid, &name, homes).await,
            Err(_) => Err(LineError::Unknown),
        };
        line.map_err(|error| {
            tracing::info!(cluster = copy.name, %error, "a pod's physical cluster cannot be reached");
            answer::no_line(&copy.name, &error)
        })
    }

    fn below(
        &self,
        cluster: &LogicalCluster,
        pod: &Value,
        copy: &PlacedCopy,
        line: &Line,
    ) -> Result<Option<PodBelow>, Status> {
        let (Ok(namespace), Ok(name)) = (object::namespace(pod).parse(), object::name(pod).parse()) else {
            return Err(Status::internal("a pod without a name"));
        };
        let key = ObjectKey::namespaced(cluster.id, GroupResource::new("", "pods"), namespace, name);
        Ok(PodBelow::of(pod, &key, &copy.uid, line.namespace_mapping, self.plane.as_deref()))
    }

    /// Runs until either side ends, or `end`.
    fn splice(&self, (above, below): (OnUpgrade, OnUpgrade), place: StreamPlace, end: CancellationToken) {
        self.spliced.spawn(async move {
            let spliced = end.run_until_cancelled(async {
                let (above, below) = tokio::try_join!(above, below)?;
                splice::splice(TokioIo::new(above), TokioIo::new(below)).await?;
                Ok::<_, BodyError>(())
            });
            if let Some(Err(error)) = spliced.await {
                tracing::debug!(%error, "a stream of a pod broke off");
            }
            drop(place);
        });
    }
}

fn not_opened(copy: &PlacedCopy, pod: &Value, stream: PodStream, error: StreamError) -> Status {
    tracing::info!(cluster = copy.name, %error, "a stream of a pod was not opened");
    answer::failed(&copy.name, object::name(pod), stream, error)
}

/// The options that go down. Not among those of logs is `insecureSkipTLSVerifyBackend`: it would make the physical cluster trust
/// whoever answers in place of a node.
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

/// A page of another site must not use the certificate of whoever looks at it.
fn check_origin(headers: &HeaderMap) -> Result<(), Status> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or("null")).unwrap_or_default();
    let (origin, host) = (text(ORIGIN), text(HOST));
    let own = origin.split_once("://").is_some_and(|(_, rest)| rest.eq_ignore_ascii_case(host));
    match origin.is_empty() || own {
        true => Ok(()),
        false => Err(Status::new(Reason::Forbidden, "streams are not opened for pages of other origins")),
    }
}

/// The client's end of the stream to be, taken out of the request; `None` for logs in a body.
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

/// The answer for a pod that is on no physical cluster yet.
fn nowhere(request: &PodStreamRequest) -> Result<Response<Body>, Status> {
    let query = request.request.uri().query().unwrap_or_default();
    let container = query.split('&').find_map(|pair| pair.strip_prefix("container=")).filter(|name| !name.is_empty());
    answer::without_host(&request.pod, request.stream, container)
}

/// The lines of a log as they come. Cut short at `end`, it breaks off: a part is never taken for the whole.
fn log(body: kube::client::Body, end: CancellationToken) -> Response<Body> {
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
    let mut response = answer::text(StatusCode::OK, "");
    *response.body_mut() = StreamBody::new(pieces).boxed_unsync();
    response
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
        assert!(check_origin(&HeaderMap::new()).is_ok(), "kubectl is no page");
    }
}
