//! `metrics.k8s.io` of a workspace, read from the physical clusters at each request: the usage of its pods under their
//! upstream names, and that of a whole physical cluster as one node.
//!
//! A physical cluster that does not answer costs its own numbers and a warning. A request takes at most [`PATIENCE`],
//! and [`AnswerPermits`] bound the answers in memory. Answers are read item by item.

mod answer_permits;
mod merge;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures::StreamExt as _;
use portolan_apiserver::{
    ApiServer,
    directory::LogicalCluster,
    hooks::{MeasuredResource, MeasuredUsage, UsageRequest, UsageSource},
};
use portolan_syncer::{
    streams::{DownstreamPod, StreamError},
    usage,
};
use portolan_types::{BoxFuture, GroupResource, LogicalClusterId, ObjectKey, Status, Uid, object};
use serde_json::Value;
use tokio::time::Instant;

use self::answer_permits::{AnswerPermit, AnswerPermits};
use crate::physical_clusters::{ClusterClient, ClusterClientError, ClusterClients};

/// Longest wait for all physical clusters of a request, with their connections.
const PATIENCE: Duration = Duration::from_secs(6);
/// Physical clusters that are asked at a time, for one request. A silent one only occupies its slot.
const AT_A_TIME: usize = 128;

/// Source of the usage. It is a hook of the API server, which is made first, so its routes are set later.
#[derive(Clone, Default)]
pub(crate) struct ClusterUsage(Arc<OnceLock<UsageRoutes>>);

/// Routes to physical clusters.
struct UsageRoutes {
    api: Arc<ApiServer>,
    clients: Arc<ClusterClients>,
    /// Name of the control plane, part of the downstream namespaces' identity.
    plane: Option<String>,
    permits: AnswerPermits,
}

/// Physical cluster to query.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct AskedCluster {
    name: String,
    uid: Uid,
}

/// Pods of a request, and the indexes of those on one physical cluster.
#[derive(Clone, Copy)]
struct SelectedPods<'a> {
    pods: &'a [Value],
    own: &'a [usize],
}

/// Reason why the numbers of a physical cluster are missing.
enum UsageGap {
    NoClient(ClusterClientError),
    NoAnswer(StreamError),
    Late,
}

impl ClusterUsage {
    /// Sets the routes. Requests before that fail.
    pub(crate) fn start(&self, api: Arc<ApiServer>, clients: Arc<ClusterClients>, plane: Option<String>) {
        self.0.get_or_init(|| UsageRoutes { api, clients, plane, permits: AnswerPermits::default() });
    }
}

impl UsageSource for ClusterUsage {
    fn usage(&self, request: UsageRequest) -> BoxFuture<'_, Result<MeasuredUsage, Status>> {
        Box::pin(async move {
            let routes = self.0.get().ok_or_else(|| Status::internal("the server has not started"))?;
            Ok(match request.resource {
                MeasuredResource::Pods => routes.pods(&request.cluster, &request.objects).await,
                MeasuredResource::Nodes => routes.nodes(&request.cluster, &request.objects).await,
            })
        })
    }
}

impl UsageRoutes {
    async fn pods(&self, cluster: &LogicalCluster, pods: &[Value]) -> MeasuredUsage {
        let mut by_cluster: BTreeMap<AskedCluster, Vec<usize>> = BTreeMap::new();
        for (index, pod) in pods.iter().enumerate() {
            if let Some(copy) = DownstreamPod::placed(pod) {
                by_cluster.entry(AskedCluster { name: copy.name, uid: copy.uid }).or_default().push(index);
            }
        }
        let mut asking = Vec::new();
        for (asked, own) in &by_cluster {
            let answer = self.pods_on(cluster, asked, SelectedPods { pods, own });
            asking.push(AskedUsage { asked, answer: Box::pin(answer) });
        }
        measured(gather(asking).await)
    }

    async fn nodes(&self, cluster: &LogicalCluster, nodes: &[Value]) -> MeasuredUsage {
        let named = |node: &Value| Some(AskedCluster { name: object::name(node).to_owned(), uid: object::uid(node)? });
        let all: Vec<_> = nodes.iter().map(named).collect();
        let mut asking = Vec::new();
        for (index, (asked, node)) in all.iter().zip(nodes).enumerate() {
            let Some(asked) = asked else { continue };
            let answer = async move {
                let item = self.node(cluster, asked, node).await?;
                Ok(item.into_iter().map(|item| (index, item)).collect())
            };
            asking.push(AskedUsage { asked, answer: Box::pin(answer) });
        }
        measured(gather(asking).await)
    }

    /// Returns the usage of pods on one physical cluster, by their indexes.
    async fn pods_on(
        &self,
        cluster: &LogicalCluster,
        asked: &AskedCluster,
        selected: SelectedPods<'_>,
    ) -> Result<MeasuredItems, UsageGap> {
        let client = self.client(cluster, asked).await?;
        let address = |index: usize| {
            let pod = &selected.pods[index];
            let (namespace, name) = (object::namespace(pod).parse().ok()?, object::name(pod).parse().ok()?);
            let key = ObjectKey::namespaced(cluster.id, GroupResource::new("", "pods"), namespace, name);
            let below = DownstreamPod::of(pod, &key, &asked.uid, client.namespace_mapping, self.plane.as_deref())?;
            Some(((below.namespace().to_owned(), below.name().to_owned()), index))
        };
        let mut wanted: HashMap<_, _> = selected.own.iter().filter_map(|index| address(*index)).collect();
        let mut found = Vec::new();
        let take = |item: &Value| {
            let index = wanted.remove(&(object::namespace(item).to_owned(), object::name(item).to_owned()));
            found.extend(index.and_then(|index| Some((index, merge::pod(&selected.pods[index], item)?))));
        };
        let read = usage::pods(&client.client, cluster.id, self.room(cluster), take).await;
        read.map_err(UsageGap::NoAnswer)?;
        Ok(found)
    }

    /// Returns the usage of all nodes of one physical cluster together.
    async fn node(
        &self,
        cluster: &LogicalCluster,
        asked: &AskedCluster,
        node: &Value,
    ) -> Result<Option<Value>, UsageGap> {
        let client = self.client(cluster, asked).await?;
        let mut sum = merge::NodeUsage::default();
        let read = usage::nodes(&client.client, self.room(cluster), |item| sum.add(item)).await;
        read.map_err(UsageGap::NoAnswer)?;
        Ok(sum.of(node))
    }

    /// Waits for room for an answer.
    async fn room(&self, cluster: &LogicalCluster) -> AnswerPermit {
        let directory = self.api.directory();
        let up = std::iter::successors(Some(cluster.id), |id| directory.by_id(*id)?.parent);
        let below_root = up.take_while(|id| *id != LogicalClusterId::ROOT).last();
        self.permits.take(below_root.unwrap_or(LogicalClusterId::ROOT)).await
    }

    /// Returns a client of a physical cluster, which is registered in the logical cluster or an ancestor.
    async fn client(&self, cluster: &LogicalCluster, asked: &AskedCluster) -> Result<ClusterClient, UsageGap> {
        let directory = self.api.directory();
        let homes: Vec<_> = std::iter::successors(Some(cluster.id), |id| directory.by_id(*id)?.parent).collect();
        let name = asked.name.parse().map_err(|_| UsageGap::NoClient(ClusterClientError::Unknown))?;
        self.clients.client_of(&asked.uid, &name, homes).await.map_err(UsageGap::NoClient)
    }
}

/// Usage of objects, by their indexes in the request.
type MeasuredItems = Vec<(usize, Value)>;

/// Question to a physical cluster.
struct AskedUsage<'a> {
    asked: &'a AskedCluster,
    answer: BoxFuture<'a, Result<MeasuredItems, UsageGap>>,
}

impl AskedUsage<'_> {
    /// Waits for the answer until a deadline; a missing one is a warning.
    async fn by(self, deadline: Instant) -> Result<MeasuredItems, String> {
        let answered = tokio::time::timeout_at(deadline, self.answer).await.unwrap_or(Err(UsageGap::Late));
        answered.map_err(|gap| warning(self.asked, &gap))
    }
}

/// Waits for all physical clusters, each until the deadline of the request. Answers are taken as they come, so that
/// silent physical clusters hide no others. Returns the usage, and warnings.
async fn gather(asking: Vec<AskedUsage<'_>>) -> (MeasuredItems, Vec<String>) {
    let deadline = Instant::now() + PATIENCE;
    let mut waiting = Vec::new();
    for one in asking {
        waiting.push(one.by(deadline));
    }
    let (mut found, mut warnings) = (Vec::new(), Vec::new());
    let mut answers = futures::stream::iter(waiting).buffer_unordered(AT_A_TIME);
    while let Some(answered) = answers.next().await {
        match answered {
            Ok(own) => found.extend(own),
            Err(gap) => warnings.push(gap),
        }
    }
    warnings.sort();
    (found, warnings)
}

/// Returns the usage in the order of the objects.
fn measured((mut found, warnings): (MeasuredItems, Vec<String>)) -> MeasuredUsage {
    found.sort_by_key(|(index, _)| *index);
    MeasuredUsage { items: found.into_iter().map(|(_, item)| item).collect(), warnings }
}

/// Returns the warning for missing numbers. Details of the connection are for administrators only.
fn warning(AskedCluster { name, .. }: &AskedCluster, gap: &UsageGap) -> String {
    let why = match gap {
        UsageGap::NoClient(error) => {
            tracing::info!(cluster = name, %error, "the usage on a physical cluster cannot be read");
            "it cannot be reached"
        }
        UsageGap::NoAnswer(StreamError::Denied(_)) => "its connection may not list pods and nodes of metrics.k8s.io",
        UsageGap::NoAnswer(StreamError::Refused { code: 404, .. }) => "it does not serve metrics.k8s.io",
        UsageGap::NoAnswer(StreamError::Refused { code: 503, .. }) => "its metrics.k8s.io is unavailable",
        UsageGap::NoAnswer(error) => {
            tracing::info!(cluster = name, %error, "the usage on a physical cluster cannot be read");
            "it cannot be reached"
        }
        UsageGap::Late => "it does not answer in time",
    };
    format!("usage on physical cluster {name:?} is missing: {why}")
}
