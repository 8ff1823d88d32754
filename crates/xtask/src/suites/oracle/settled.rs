//! Waiting for what Portolan's loops write into the objects of the corpus, so that no answer depends on when they do.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bytes::Bytes;
use http::Method;
use serde_json::Value;

use super::exchange::{Raw, Request, Server};
use super::metadata;
use super::step::object_path;
use super::values::Memory;
use crate::client::Client;

/// Where the loop of the type check writes.
const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
/// Namespaces of recorded clients, whose objects belong to owners of the time when they were recorded.
const RECORDED: &str = "/api/v1/namespaces/recorded-";

/// How long a loop may take while many scripts write at once, and how often it is looked at.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(25);
/// A quota that is counted stays as it is for so many looks: what it was before may be right as well.
const STEADY: usize = 8;

/// After a write: waits until the loops are done with it, and remembers the new resourceVersions.
pub(super) async fn wait(server: &Server, request: &Request, answer: &Raw, memory: &mut Memory) -> Result<()> {
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

/// Waits until all objects of a list that the script knows are as the loop leaves them, for so many looks.
async fn all(
    client: &Client,
    list: &str,
    memory: &mut Memory,
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

/// A client may have written that more was observed than there is.
fn is_checked(policy: &Value) -> bool {
    policy["status"]["observedGeneration"].as_i64() >= policy["metadata"]["generation"].as_i64()
}

/// Whether the bounds are taken over, and everything bounded is counted.
fn is_counted(quota: &Value) -> bool {
    let names =
        |value: &Value| value.as_object().map(|map| map.keys().cloned().collect::<Vec<_>>()).unwrap_or_default();
    let (bounds, status) = (&quota["spec"]["hard"], &quota["status"]);
    names(bounds) == names(&status["used"]) && (names(bounds).is_empty() || *bounds == status["hard"])
}

/// Waits until nothing of what was deleted is still going, be it one object or those of a list.
async fn finished(client: &Client, path: &str) -> Result<()> {
    let is_going = |object: &Value| object["metadata"]["deletionTimestamp"].is_string();
    let start = Instant::now();
    loop {
        let found = client.send(Method::GET, path, Bytes::new()).await?;
        let found: Value = serde_json::from_slice(&found.body).unwrap_or_default();
        if !is_going(&found) && !found["items"].as_array().into_iter().flatten().any(is_going) {
            return Ok(());
        }
        if start.elapsed() >= PATIENCE {
            // That it stays shows in the answers.
            return Ok(());
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Waits until an object is not there any more, or is held by finalizers alone.
async fn gone(client: &Client, path: &str) -> Result<()> {
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
            // That it stays shows in the answers.
            return Ok(());
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// After a recorded write of an object whose owner has another uid here: waits until it is collected as garbage.
async fn collected(client: &Client, path: &str, answer: &Raw) -> Result<()> {
    let Raw::Answer { status: 200 | 201, body, .. } = answer else { return Ok(()) };
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
    if owners.is_empty() { Ok(()) } else { gone(client, &object).await }
}

/// Whether an owner is there by the uid that a reference in the same namespace gives it.
async fn is_there(client: &Client, object: &str, owner: &Value) -> Result<bool> {
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
