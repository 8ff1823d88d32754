//! Waiting for what Portolan's loops write into the objects of the corpus, so that no answer depends on when they do.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bytes::Bytes;
use http::Method;
use serde_json::Value;

use super::exchange::{Request, Server};
use super::values::Memory;

/// Where the loop of the type check writes.
const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";

/// How long the loop may take while many scripts write at once, and how often it is looked at.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(25);

/// After a write to policies: waits until each that the script knows is checked, and remembers its new resourceVersion.
pub(super) async fn wait(server: &Server, request: &Request, memory: &mut Memory) -> Result<()> {
    if request.method == "GET" || !request.path.starts_with(POLICIES) {
        return Ok(());
    }
    let client = server.client().await;
    let start = Instant::now();
    loop {
        let body = client.send(Method::GET, POLICIES, Bytes::new()).await?.success()?;
        let list: Value = serde_json::from_slice(&body)?;
        let all = list["items"].as_array().map_or(&[][..], Vec::as_slice);
        let own: Vec<&Value> = all.iter().filter(|policy| memory.knows(policy)).collect();
        let Some(waiting) = own.iter().find(|policy| !is_checked(policy)) else {
            own.into_iter().for_each(|policy| memory.renew(policy));
            return Ok(());
        };
        ensure!(start.elapsed() < PATIENCE, "the policy {} is not checked", waiting["metadata"]["name"]);
        tokio::time::sleep(PAUSE).await;
    }
}

/// A client may have written that more was observed than there is.
fn is_checked(policy: &Value) -> bool {
    policy["status"]["observedGeneration"].as_i64() >= policy["metadata"]["generation"].as_i64()
}
