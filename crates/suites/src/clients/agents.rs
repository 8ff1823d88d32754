//! Stand-in for the agents in MongoDB's pods, in which nothing runs. An agent follows the configuration in a Secret
//! and reports in an annotation, which the operator's `readiness` writes from within the pod. With another version of
//! MongoDB its `versionhook` deletes the pod, so that one with the new image replaces it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::Value;

use harness::kubectl::Kubectl;

/// On a pod: which version of the configuration its agent has reached.
const REACHED: &str = "agent.mongodb.com/version";
/// ServiceAccount of the programs in the pods.
const ACCOUNT: &str = "mongodb-database";
/// Interval between two steps of the agents.
const LOOKED: Duration = Duration::from_secs(1);
/// A member of a set takes so long at least for another version: a real one ends its MongoDB first.
const REPLACED: Duration = Duration::from_secs(3);

/// The agents of all pods of a logical cluster. Dropping this ends them.
pub(super) struct Agents {
    is_over: Arc<AtomicBool>,
    complaint: Arc<Mutex<Option<String>>>,
    work: Option<JoinHandle<()>>,
}

impl Agents {
    pub(super) fn start(kubectl: &Kubectl) -> Self {
        let (is_over, complaint) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(None)));
        let work = {
            let (kubectl, is_over, complaint) = (kubectl.clone(), Arc::clone(&is_over), Arc::clone(&complaint));
            thread::spawn(move || {
                let mut replaced = BTreeMap::new();
                while !is_over.load(Ordering::Relaxed) {
                    if let Err(error) = look(&kubectl, &mut replaced) {
                        *complaint.lock().unwrap_or_else(PoisonError::into_inner) = Some(format!("{error:#}"));
                    }
                    thread::sleep(LOOKED);
                }
            })
        };
        Self { is_over, complaint, work: Some(work) }
    }

    /// Returns the last error. It may be harmless: pods come and go.
    pub(super) fn complaint(&self) -> Option<String> {
        self.complaint.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // It ends after its look, and a panic has been printed.
        let _ = self.work.take().map(JoinHandle::join);
    }
}

/// Next step of the agents of a set.
#[derive(Debug, PartialEq)]
struct Step<'a> {
    namespace: &'a str,
    set: &'a str,
    /// One releases its pod.
    going: Option<&'a str>,
    /// These say which version of the configuration they have reached.
    saying: Vec<&'a str>,
    version: u64,
}

/// One look at everything, and a step of each set that has one to do. `replaced` is when a set last released a
/// pod.
fn look(kubectl: &Kubectl, replaced: &mut BTreeMap<String, Instant>) -> Result<()> {
    let found = kubectl.json("get pods,secrets,statefulsets --all-namespaces")?;
    let items = found["items"].as_array().context("no list")?;
    let steps = items.iter().filter_map(|set| step_of(set, items));
    // One set that goes meanwhile holds up no other.
    let taken: Vec<Result<()>> = steps.map(|step| take(&step, kubectl, replaced)).collect();
    taken.into_iter().collect()
}

fn take(step: &Step<'_>, kubectl: &Kubectl, replaced: &mut BTreeMap<String, Instant>) -> Result<()> {
    let kubectl = kubectl.in_namespace(step.namespace);
    let account = format!("--as=system:serviceaccount:{}:{ACCOUNT}", step.namespace);
    if !step.saying.is_empty() {
        let reached = format!("{REACHED}={}", step.version);
        let args = [&["annotate", "--overwrite", "pods"], &*step.saying, &[&*reached, &*account]].concat();
        kubectl.run_args(&args)?;
    }
    let set = format!("{}/{}", step.namespace, step.set);
    let may_go = replaced.get(&set).is_none_or(|last| last.elapsed() > REPLACED);
    if let Some(pod) = step.going.filter(|_| may_go) {
        kubectl.run_args(&["delete", "pod", pod, "--wait=false", &account])?;
        replaced.insert(set, Instant::now());
    }
    Ok(())
}

/// Returns the next step of a set. With `OnDelete`, a pod of an older revision goes once all are ready; each other
/// ready pod reports the version that it has reached.
fn step_of<'a>(set: &'a Value, items: &'a [Value]) -> Option<Step<'a>> {
    let (namespace, name) = (text(set, "namespace")?, text(set, "name").filter(|_| set["kind"] == "StatefulSet")?);
    let version = configuration(items, namespace, name.strip_suffix("-arb").unwrap_or(name))?;
    let is_whole = set["spec"]["replicas"] == set["status"]["readyReplicas"];
    let by_deletion = set["spec"]["updateStrategy"]["type"] == "OnDelete";
    let revision = &set["status"]["updateRevision"];
    let is_old = |pod: &&Value| by_deletion && pod["metadata"]["labels"]["controller-revision-hash"] != *revision;
    let own = items.iter().filter(|item| text(item, "namespace") == Some(namespace) && is_pod_of(item, name));
    let (old, current): (Vec<&Value>, Vec<&Value>) = own.partition(is_old);
    let reached = version.to_string();
    let is_behind = |pod: &&Value| pod["metadata"]["annotations"][REACHED] != reached;
    let saying = current.into_iter().filter(|pod| is_ready(pod) && is_behind(pod));
    Some(Step {
        namespace,
        set: name,
        going: old.first().filter(|_| is_whole).and_then(|pod| text(pod, "name")),
        saying: saying.filter_map(|pod| text(pod, "name")).collect(),
        version,
    })
}

/// The version of the configuration of a replica set.
fn configuration(items: &[Value], namespace: &str, set: &str) -> Option<u64> {
    let name = format!("{set}-config");
    let is_it = |item: &&Value| {
        item["kind"] == "Secret" && text(item, "namespace") == Some(namespace) && text(item, "name") == Some(&name)
    };
    let packed = items.iter().find(is_it)?["data"]["cluster-config.json"].as_str()?;
    let configuration: Value = serde_json::from_slice(&STANDARD.decode(packed).ok()?).ok()?;
    configuration["version"].as_u64()
}

fn text<'a>(object: &'a Value, field: &str) -> Option<&'a str> {
    object["metadata"][field].as_str()
}

/// Returns true for a pod of that set that is not being deleted.
fn is_pod_of(item: &Value, set: &str) -> bool {
    let mut owners = item["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    let is_owned = owners.any(|owner| owner["kind"] == "StatefulSet" && owner["name"] == set);
    is_owned && item["kind"] == "Pod" && item["metadata"]["deletionTimestamp"].is_null()
}

fn is_ready(pod: &Value) -> bool {
    let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, revision: &str, reached: &str, ready: &str) -> Value {
        json!({"kind": "Pod", "metadata": {"namespace": "a", "name": name, "annotations": {REACHED: reached},
                "labels": {"controller-revision-hash": revision}, "ownerReferences": [{"kind": "StatefulSet", "name": "s"}]},
            "status": {"conditions": [{"type": "Ready", "status": ready}]}})
    }

    fn set(strategy: &str, ready: u64) -> Value {
        json!({"kind": "StatefulSet", "metadata": {"namespace": "a", "name": "s"},
            "spec": {"replicas": 2, "updateStrategy": {"type": strategy}},
            "status": {"readyReplicas": ready, "updateRevision": "new"}})
    }

    #[test]
    fn each_agent_takes_one_step() {
        let configuration = json!({"kind": "Secret", "metadata": {"namespace": "a", "name": "s-config"},
            "data": {"cluster-config.json": STANDARD.encode(r#"{"version": 2}"#)}});
        for (case, set, pods, going, saying) in [
            (
                "who is behind says so",
                set("RollingUpdate", 2),
                [pod("0", "new", "2", "True"), pod("1", "old", "1", "True")],
                None,
                vec!["1"],
            ),
            (
                "who is not ready has reached nothing",
                set("RollingUpdate", 1),
                [pod("0", "new", "2", "True"), pod("1", "new", "", "False")],
                None,
                vec![],
            ),
            (
                "one of before goes at a time",
                set("OnDelete", 2),
                [pod("0", "old", "1", "True"), pod("1", "old", "1", "True")],
                Some("0"),
                vec![],
            ),
            (
                "none goes while one is missing",
                set("OnDelete", 1),
                [pod("0", "new", "", "False"), pod("1", "old", "1", "True")],
                None,
                vec![],
            ),
            (
                "the last goes, and the new ones speak",
                set("OnDelete", 2),
                [pod("0", "new", "1", "True"), pod("1", "old", "1", "True")],
                Some("1"),
                vec!["0"],
            ),
        ] {
            let items: Vec<Value> = pods.into_iter().chain([set.clone(), configuration.clone()]).collect();
            let step = step_of(&set, &items).unwrap();
            assert_eq!((step.going, step.saying, step.version), (going, saying, 2), "{case}");
        }
    }

    #[test]
    fn sets_of_others_are_let_be() {
        let items = [set("OnDelete", 2), pod("0", "old", "1", "True")];
        assert_eq!(step_of(&items[0], &items), None, "there is no configuration");
        assert_eq!(step_of(&items[1], &items), None, "a pod is not a set");
    }
}
