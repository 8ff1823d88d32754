//! Waits for the writes of Portolan's controllers to objects of the corpus, so that no answer depends on their timing.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bytes::Bytes;
use http::Method;
use serde_json::Value;

use super::exchange::{OracleServer, RawAnswer, Request};
use super::metadata;
use super::step::object_path;
use super::values::ScriptMemory;
use harness::client::HttpClient;

/// Path of the objects that the type checker writes.
const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
/// Path prefix of the namespaces of recorded clients. The owner references of their objects have uids from the
/// recording.
const RECORDED: &str = "/api/v1/namespaces/recorded-";

/// Time limit of a wait. Controllers can be slow while many scripts write concurrently.
const PATIENCE: Duration = Duration::from_secs(60);
/// Delay between two checks.
const PAUSE: Duration = Duration::from_millis(25);
/// Number of checks during which a quota must be unchanged: its previous value may be correct as well.
const STEADY: usize = 8;

/// Waits after a write until the controllers have handled it, and stores the new resourceVersions.
pub(super) async fn wait(
    server: &OracleServer,
    request: &Request,
    answer: &RawAnswer,
    memory: &mut ScriptMemory,
) -> Result<()> {
    if request.method == "GET" {
        return Ok(());
    }
    let client = server.client().await;
    let path = request.path.split('?').next().unwrap_or_default();
    if path.starts_with(POLICIES) {
        return all(&client, POLICIES, memory, 1, is_checked).await;
    }
    if let Some((namespace, _)) = path.split_once("/resourcequotas") {
        return all(&client, &format!("{namespace}/resourcequotas"), memory, STEADY, is_counted).await;
    }
    let is_namespace = path.starts_with(RECORDED) && path.matches('/').count() == 4;
    if request.method == "DELETE" && (is_namespace || path.contains("/persistentvolume")) {
        return finished(&client, &request.path).await;
    }
    collected(&client, path, answer).await
}

/// Waits until all known objects of a list are unchanged for several checks.
async fn all(
    client: &HttpClient,
    list: &str,
    memory: &mut ScriptMemory,
    looks: usize,
    is_done: fn(&Value) -> bool,
) -> Result<()> {
    let start = Instant::now();
    let (mut steady, mut before) = (0, Vec::new());
    loop {
        let body = client.send(Method::GET, list, Bytes::new()).await?.success()?;
        let body: Value = serde_json::from_slice(&body)?;
        let items = body["items"].as_array().map_or(&[][..], Vec::as_slice);
        let own: Vec<Value> = items.iter().filter(|object| memory.knows(object)).cloned().collect();
        let waiting = own.iter().find(|object| !is_done(object));
        steady = if waiting.is_none() && (steady == 0 || own == before) { steady + 1 } else { 0 };
        if steady >= looks || own.is_empty() {
            own.iter().for_each(|object| memory.renew(object));
            return Ok(());
        }
        let name = waiting.map(|object| object["metadata"]["name"].to_string()).unwrap_or_default();
        ensure!(start.elapsed() < PATIENCE, "{list}: {name} is not settled");
        before = own;
        tokio::time::sleep(PAUSE).await;
    }
}

/// Returns true when the types of the policy's present generation are checked. A client may have written a higher
/// observed generation.
fn is_checked(policy: &Value) -> bool {
    policy["status"]["observedGeneration"].as_i64() >= policy["metadata"]["generation"].as_i64()
}

/// Returns true when the hard limits are copied to the status and everything limited is counted.
fn is_counted(quota: &Value) -> bool {
    let names =
        |value: &Value| value.as_object().map(|map| map.keys().cloned().collect::<Vec<_>>()).unwrap_or_default();
    let (bounds, status) = (&quota["spec"]["hard"], &quota["status"]);
    names(bounds) == names(&status["used"]) && (names(bounds).is_empty() || *bounds == status["hard"])
}

/// Waits until all deletions have ended, of one object or of a list.
async fn finished(client: &HttpClient, path: &str) -> Result<()> {
    let is_going = |object: &Value| object["metadata"]["deletionTimestamp"].is_string();
    let start = Instant::now();
    loop {
        let found = client.send(Method::GET, path, Bytes::new()).await?;
        let found: Value = serde_json::from_slice(&found.body).unwrap_or_default();
        if !is_going(&found) && !found["items"].as_array().into_iter().flatten().any(is_going) {
            return Ok(());
        }
        if start.elapsed() >= PATIENCE {
            // If it stays, the answers show it.
            return Ok(());
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Waits until an object is gone, or only finalizers hold it.
async fn wait_until_gone(client: &HttpClient, path: &str) -> Result<()> {
    let start = Instant::now();
    loop {
        let found = client.send(Method::GET, path, Bytes::new()).await?;
        let object: Value = serde_json::from_slice(&found.body).unwrap_or_default();
        let is_held =
            object["metadata"]["finalizers"].is_array() && object["metadata"]["deletionTimestamp"].is_string();
        if found.status == 404 || is_held {
            return Ok(());
        }
        if start.elapsed() >= PATIENCE {
            // If it stays, the answers show it.
            return Ok(());
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Waits until the object of a recorded write is garbage collected, if no owner exists with the uid of the recording.
async fn collected(client: &HttpClient, path: &str, answer: &RawAnswer) -> Result<()> {
    let RawAnswer::Answer { status: 200 | 201, body, .. } = answer else { return Ok(()) };
    if !path.contains("/namespaces/recorded-") {
        return Ok(());
    }
    let name = metadata::tree(body).and_then(|tree| tree["metadata"]["name"].as_str().map(str::to_owned));
    let Some(object) = object_path(path).or_else(|| Some(format!("{path}/{}", name?))) else { return Ok(()) };
    let found = client.send(Method::GET, &object, Bytes::new()).await?;
    let found: Value = serde_json::from_slice(&found.body).unwrap_or_default();
    let owners = found["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
    for owner in &owners {
        if is_there(client, &object, owner).await? {
            return Ok(());
        }
    }
    if owners.is_empty() { Ok(()) } else { wait_until_gone(client, &object).await }
}

/// Returns true when the owner exists with the uid that a reference in the same namespace gives.
async fn is_there(client: &HttpClient, object: &str, owner: &Value) -> Result<bool> {
    let text = |key: &str| owner[key].as_str().unwrap_or_default();
    let group = if text("apiVersion").contains('/') { "apis" } else { "api" };
    let namespace = object.split("/namespaces/").nth(1).and_then(|rest| rest.split('/').next()).unwrap_or_default();
    let plural = format!("{}s", text("kind").to_lowercase());
    let path = format!("/{group}/{}/namespaces/{namespace}/{plural}/{}", text("apiVersion"), text("name"));
    let found = client.send(Method::GET, &path, Bytes::new()).await?;
    let found: Value = serde_json::from_slice(&found.body).unwrap_or_default();
    Ok(found["metadata"]["uid"] == owner["uid"])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_quota_is_counted_when_all_that_is_bounded_has_a_usage() {
        let quota =
            |hard: Value, used: Value| json!({"spec": {"hard": {"pods": "1"}}, "status": {"hard": hard, "used": used}});
        for (case, quota, expected) in [
            ("counted", quota(json!({"pods": "1"}), json!({"pods": "0"})), true),
            ("not yet", quota(Value::Null, Value::Null), false),
            ("another bound", quota(json!({"pods": "2"}), json!({"pods": "0"})), false),
            ("nothing is bounded", json!({"spec": {}}), true),
        ] {
            assert_eq!(is_counted(&quota), expected, "{case}");
        }
    }
}
