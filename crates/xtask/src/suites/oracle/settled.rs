//! Waiting for what Portolan's loops write into the objects of the corpus, so that no answer depends on when they do.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bytes::Bytes;
use http::Method;
use serde_json::Value;

use super::exchange::{Request, Server};
use super::values::Memory;
use crate::client::Client;

/// Where the loop of the type check writes.
const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
/// Namespaces of recorded clients, whose objects belong to one another.
const RECORDED: &str = "/namespaces/recorded-";
/// What is owned there, or owns something.
const OWNED: [(&str, &str); 3] = [("api/v1", "configmaps"), ("api/v1", "services"), ("apis/apps/v1", "deployments")];
/// The finalizer of an owner that goes after what it owns.
const FOREGROUND: &str = "foregroundDeletion";

/// How long a loop may take while many scripts write at once, and how often it is looked at.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(25);
/// A quota that is counted stays as it is for so many looks: what it was before may be right as well.
const STEADY: usize = 8;

/// After a write: waits until the loops are done with it, and remembers the new resourceVersions.
pub(super) async fn wait(server: &Server, request: &Request, memory: &mut Memory) -> Result<()> {
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
    let recorded = path.split_once(RECORDED).map(|(_, rest)| rest.split('/').collect::<Vec<_>>());
    let is_namespace = recorded.as_ref().is_some_and(|rest| rest.len() == 1);
    if request.method == "DELETE" && (is_namespace || path.contains("/persistentvolume")) {
        return finished(&client, &request.path).await;
    }
    match recorded.as_deref() {
        Some([name, resource, ..]) if OWNED.iter().any(|(_, owned)| owned == resource) => {
            collected(&client, &format!("recorded-{name}")).await
        }
        _ => Ok(()),
    }
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

/// After a write of a recording: waits until all garbage of its namespace is collected.
async fn collected(client: &Client, namespace: &str) -> Result<()> {
    let start = Instant::now();
    loop {
        let mut objects = Vec::new();
        for (version, resource) in OWNED {
            let list = client.get(&format!("/{version}/namespaces/{namespace}/{resource}")).await?;
            let mut list: Value = serde_json::from_slice(&list)?;
            objects.extend(list["items"].as_array_mut().map(std::mem::take).unwrap_or_default());
        }
        // That something stays shows in the answers.
        if !objects.iter().any(|object| is_garbage(object, &objects)) || start.elapsed() >= PATIENCE {
            return Ok(());
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Whether an object goes without a client having to do anything.
fn is_garbage(object: &Value, all: &[Value]) -> bool {
    let owners = |object: &Value| object["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
    let uid = |value: &Value| value["uid"].as_str().unwrap_or_default().to_owned();
    let own = uid(&object["metadata"]);
    if goes_last(object) {
        return !all.iter().flat_map(owners).any(|owner| uid(&owner) == own);
    }
    let stays = |owner: &Value| all.iter().any(|other| uid(&other["metadata"]) == uid(owner) && !goes_last(other));
    let is_held = object["metadata"]["deletionTimestamp"].is_string();
    !is_held && !owners(object).is_empty() && !owners(object).iter().any(stays)
}

fn goes_last(owner: &Value) -> bool {
    let mut finalizers = owner["metadata"]["finalizers"].as_array().into_iter().flatten();
    owner["metadata"]["deletionTimestamp"].is_string() && finalizers.any(|name| name == FOREGROUND)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn garbage_is_what_nothing_owns_any_more() {
        let object = |uid: &str, owners: &[&str]| {
            let owners: Vec<Value> = owners.iter().map(|uid| json!({"uid": uid})).collect();
            json!({"metadata": {"uid": uid, "ownerReferences": owners}})
        };
        let deleted = |mut object: Value, finalizer: &str| {
            object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            object["metadata"]["finalizers"] = json!([finalizer]);
            object
        };
        let (owner, owned) = (object("owner", &[]), object("owned", &["owner"]));
        let last = deleted(owner.clone(), FOREGROUND);
        for (case, object, others, expected) in [
            ("its owner is there", &owned, vec![&owner], false),
            ("its owner is gone", &owned, vec![], true),
            ("its owner waits for it", &owned, vec![&last], true),
            ("a finalizer holds it", &deleted(owned.clone(), "held"), vec![], false),
            ("it belongs to nobody", &owner, vec![], false),
            ("it waits for what it owns", &last, vec![&owned], false),
            ("nothing is left of what it owned", &last, vec![], true),
        ] {
            let all: Vec<Value> = others.into_iter().chain([object]).cloned().collect();
            assert_eq!(is_garbage(object, &all), expected, "{case}");
        }
    }

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
