//! Resource usage that a physical cluster reports at `metrics.k8s.io`, read for one request.

use std::time::Duration;

use kube::Client;
use portolan_types::{LogicalClusterId, annotations};
use serde_json::Value;

use crate::{
    client::{DownstreamClient, encode},
    streams::StreamError,
};

/// Deadline of an answer. The clients of `metrics.k8s.io` wait for all physical clusters.
const ANSWER: Duration = Duration::from_secs(5);
/// Largest answer, in bytes: about 5,000 pods.
const MAX_ANSWER: usize = 4 * 1024 * 1024;

/// Reads the `PodMetrics` of all pods that a physical cluster runs for a logical cluster.
///
/// # Errors
/// [`StreamError`]; 404 where no metrics-server runs.
pub async fn pods(client: &Client, cluster: LogicalClusterId) -> Result<Vec<Value>, StreamError> {
    let selector = format!("{}={cluster}", annotations::DOWN_CLUSTER);
    read(client, &format!("/apis/metrics.k8s.io/v1beta1/pods?labelSelector={}", encode(&selector))).await
}

/// Reads the `NodeMetrics` of all nodes of a physical cluster.
///
/// # Errors
/// [`StreamError`]; 404 where no metrics-server runs.
pub async fn nodes(client: &Client) -> Result<Vec<Value>, StreamError> {
    read(client, "/apis/metrics.k8s.io/v1beta1/nodes").await
}

async fn read(client: &Client, path: &str) -> Result<Vec<Value>, StreamError> {
    let mut list = DownstreamClient::new(client.clone(), ANSWER).bounded(MAX_ANSWER).get(path).await?;
    match list["items"].take() {
        Value::Array(items) => Ok(items),
        _ => Err(StreamError::Garbled("a list without items".into())),
    }
}
