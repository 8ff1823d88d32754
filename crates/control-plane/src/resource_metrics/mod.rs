//! `metrics.k8s.io` of a workspace, read from the physical clusters at each request: the usage of its pods under their
//! upstream names, and that of a whole physical cluster as one node.
//!
//! A physical cluster that does not answer costs its own numbers and a warning. A request takes at most [`PATIENCE`],
//! and [`AnswerPermits`] bound the answers in memory.

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
use portolan_types::{BoxFuture, GroupResource, ObjectKey, Status, Uid, object};
use serde_json::Value;
use tokio::time::Instant;

use self::answer_permits::AnswerPermits;
use crate::physical_clusters::{ClusterClient, ClusterClientError, ClusterClients};

/// Longest wait for all physical clusters of a request, with their connections.
const PATIENCE: Duration = Duration::from_secs(6);
/// Physical clusters that are asked at a time, for one request.
const AT_A_TIME: usize = 8;

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

/// Physical cluster that is asked.
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
        let (mut asking, deadline): (Vec<BoxFuture<'_, _>>, _) = (Vec::new(), Instant::now() + PATIENCE);
        for (asked, own) in &by_cluster {
            asking.push(Box::pin(by_deadline(
                deadline,
                asked,
                self.pods_on(cluster, asked, SelectedPods { pods, own }),
            )));
        }
        let (mut found, mut warnings) = (BTreeMap::new(), Vec::new());
        let mut answers = futures::stream::iter(asking).buffered(AT_A_TIME);
        while let Some(answered) = answers.next().await {
            match answered {
                Ok(own) => found.extend(own),
                Err(gap) => warnings.push(gap),
            }
        }
        MeasuredUsage { items: found.into_values().collect(), warnings }
    }

    async fn nodes(&self, cluster: &LogicalCluster, nodes: &[Value]) -> MeasuredUsage {
        let named = |node: &Value| Some(AskedCluster { name: object::name(node).to_owned(), uid: object::uid(node)? });
        let all: Vec<_> = nodes.iter().map(named).collect();
        let (mut asking, deadline): (Vec<BoxFuture<'_, _>>, _) = (Vec::new(), Instant::now() + PATIENCE);
        for (asked, node) in all.iter().zip(nodes) {
            if let Some(asked) = asked {
                asking.push(Box::pin(by_deadline(deadline, asked, self.node(cluster, asked, node))));
            }
        }
        let mut measured = MeasuredUsage::default();
        let mut answers = futures::stream::iter(asking).buffered(AT_A_TIME);
        while let Some(answered) = answers.next().await {
            match answered {
                Ok(item) => measured.items.extend(item),
                Err(gap) => measured.warnings.push(gap),
            }
        }
        measured
    }

    /// Returns the usage of pods on one physical cluster, by their indexes.
    async fn pods_on(
        &self,
        cluster: &LogicalCluster,
        asked: &AskedCluster,
        selected: SelectedPods<'_>,
    ) -> Result<Vec<(usize, Value)>, UsageGap> {
        let client = self.client(cluster, asked).await?;
        let _permit = self.permits.take(cluster.id).await;
        let found = usage::pods(&client.client, cluster.id).await.map_err(UsageGap::NoAnswer)?;
        let address = |item: &Value| (object::namespace(item).to_owned(), object::name(item).to_owned());
        let found: HashMap<_, _> = found.iter().map(|item| (address(item), item)).collect();
        let usage_of = |index: usize| {
            let pod = &selected.pods[index];
            let (namespace, name) = (object::namespace(pod).parse().ok()?, object::name(pod).parse().ok()?);
            let key = ObjectKey::namespaced(cluster.id, GroupResource::new("", "pods"), namespace, name);
            let below = DownstreamPod::of(pod, &key, &asked.uid, client.namespace_mapping, self.plane.as_deref())?;
            let item = found.get(&(below.namespace().to_owned(), below.name().to_owned()))?;
            merge::pod(pod, item)
        };
        Ok(selected.own.iter().filter_map(|index| Some((*index, usage_of(*index)?))).collect())
    }

    /// Returns the usage of all nodes of one physical cluster together.
    async fn node(
        &self,
        cluster: &LogicalCluster,
        asked: &AskedCluster,
        node: &Value,
    ) -> Result<Option<Value>, UsageGap> {
        let client = self.client(cluster, asked).await?;
        let _permit = self.permits.take(cluster.id).await;
        let found = usage::nodes(&client.client).await.map_err(UsageGap::NoAnswer)?;
        Ok(merge::node(node, &found))
    }

    /// Returns a client of a physical cluster, which is registered in the logical cluster or an ancestor.
    async fn client(&self, cluster: &LogicalCluster, asked: &AskedCluster) -> Result<ClusterClient, UsageGap> {
        let directory = self.api.directory();
        let homes: Vec<_> = std::iter::successors(Some(cluster.id), |id| directory.by_id(*id)?.parent).collect();
        let name = asked.name.parse().map_err(|_| UsageGap::NoClient(ClusterClientError::Unknown))?;
        self.clients.client_of(&asked.uid, &name, homes).await.map_err(UsageGap::NoClient)
    }
}

/// Waits for a physical cluster until the deadline of the request; the error is a warning.
async fn by_deadline<T>(
    deadline: Instant,
    asked: &AskedCluster,
    answer: impl Future<Output = Result<T, UsageGap>>,
) -> Result<T, String> {
    let answered = tokio::time::timeout_at(deadline, answer).await.unwrap_or(Err(UsageGap::Late));
    answered.map_err(|gap| warning(asked, &gap))
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
