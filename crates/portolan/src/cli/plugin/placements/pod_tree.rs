//! `kubectl portolan tree TYPE/NAME`: an object, its copies, and the pods on each physical cluster.

use std::collections::{BTreeMap, BTreeSet};

use clap::Args;
use portolan_types::{annotations, object, placement::PlacementCopyStatus};
use serde_json::{Value, json};

use super::{
    locate::{ready, state},
    placement_of, single_object,
};
use crate::cli::plugin::{context::PluginContext, formats, session::ApiSession, workspaces::WorkspaceTreeArgs};

/// Collections between a workload and its pods.
const OWNERS: [&str; 2] = ["/apis/apps/v1/namespaces/{}/replicasets", "/apis/batch/v1/namespaces/{}/jobs"];
const PODS: &str = "/api/v1/namespaces/{}/pods";

/// Print the workspaces below the current one, or an object with its copies and their pods.
#[derive(Args)]
pub(crate) struct TreeArgs {
    /// Object: TYPE/NAME or TYPE NAME; without one, workspaces are printed.
    #[arg(value_name = "TYPE/NAME")]
    object: Vec<String>,
    #[command(flatten)]
    workspaces: WorkspaceTreeArgs,
}

/// Copy of an object with its pods.
struct CopyWithPods {
    name: String,
    state: String,
    ready: String,
    pods: Vec<PodLine>,
}

/// Pod in a tree.
struct PodLine {
    name: String,
    phase: String,
}

impl TreeArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// A refusal; an object that does not exist.
    pub(crate) async fn run(self, ctx: &mut PluginContext) -> anyhow::Result<()> {
        if self.object.is_empty() {
            return self.workspaces.run(ctx).await;
        }
        ctx.connect().await?;
        let (of, name) = single_object(ctx, &self.object).await?;
        let session = ctx.session();
        let read = session.get(&of.path(&session.namespace, Some(&name))).await?;
        let placement = placement_of(session, &of, &read).await?;
        let pods = pods_of(session, &read).await?;
        ctx.print_warnings();
        let copies = copies_with_pods(&placement, &pods);
        let title = format!("{}/{name}", of.kind.to_lowercase());
        match self.workspaces.object_format() {
            None => ctx.terminal.print(&tree_text(&title, &copies)),
            Some(format) => {
                let copy = |copy: &CopyWithPods| {
                    let pods: Vec<_> =
                        copy.pods.iter().map(|pod| json!({"name": pod.name, "phase": pod.phase})).collect();
                    json!({"cluster": copy.name, "state": copy.state, "ready": copy.ready, "pods": pods})
                };
                let value = json!({"object": title, "copies": copies.iter().map(copy).collect::<Vec<_>>()});
                formats::print_object(&mut ctx.terminal, &format, &value)
            }
        }
    }
}

/// Returns the pods that an object owns, directly or through what it owns; a Pod is its own.
async fn pods_of(session: &ApiSession, read: &Value) -> anyhow::Result<Vec<Value>> {
    let list = async |path: &str| -> anyhow::Result<Vec<Value>> {
        let list = session.get(&path.replace("{}", object::namespace(read))).await?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    };
    // Pods have owners in their own namespace; a cluster-scoped object has none there.
    if object::namespace(read).is_empty() {
        return Ok(Vec::new());
    }
    let pods = list(PODS).await?;
    let mut owners: BTreeSet<String> = uid(read).into_iter().collect();
    // A CronJob owns Jobs, and a Deployment ReplicaSets, which own pods.
    for path in OWNERS {
        let owned = list(path).await?;
        owners.extend(owned.iter().filter(|item| is_owned(item, &owners)).filter_map(uid).collect::<Vec<_>>());
    }
    let is_own = |pod: &Value| is_owned(pod, &owners) || uid(pod) == uid(read);
    Ok(pods.into_iter().filter(is_own).collect())
}

fn uid(object: &Value) -> Option<String> {
    object::uid(object).map(|uid| uid.to_string())
}

fn is_owned(object: &Value, owners: &BTreeSet<String>) -> bool {
    object::owner_references(object).iter().any(|owner| owner["uid"].as_str().is_some_and(|uid| owners.contains(uid)))
}

/// Groups pods by the physical cluster that they are on.
fn copies_with_pods(placement: &Value, pods: &[Value]) -> Vec<CopyWithPods> {
    let mut by_cluster: BTreeMap<String, Vec<PodLine>> = BTreeMap::new();
    for pod in pods {
        let cluster = object::label(pod, annotations::PROJECTED_FROM).unwrap_or_default();
        let phase =
            if object::is_deleting(pod) { "Terminating" } else { pod["status"]["phase"].as_str().unwrap_or_default() };
        let line = PodLine { name: object::name(pod).to_owned(), phase: phase.to_owned() };
        by_cluster.entry(cluster.to_owned()).or_default().push(line);
    }
    let statuses: Vec<PlacementCopyStatus> =
        serde_json::from_value(placement["status"]["clusters"].clone()).unwrap_or_default();
    let mut copies: Vec<CopyWithPods> = statuses
        .iter()
        .map(|copy| CopyWithPods {
            name: copy.name.clone(),
            state: state(copy),
            ready: ready(copy),
            pods: by_cluster.remove(&copy.name).unwrap_or_default(),
        })
        .collect();
    // Pods of a copy that has just left.
    copies.extend(by_cluster.into_iter().map(|(name, pods)| CopyWithPods {
        name: if name.is_empty() { "<none>".to_owned() } else { name },
        state: "Gone".to_owned(),
        ready: String::new(),
        pods,
    }));
    copies
}

fn tree_text(title: &str, copies: &[CopyWithPods]) -> String {
    let mut text = format!("{title}\n");
    for (at, copy) in copies.iter().enumerate() {
        let (branch, beside) = if at + 1 == copies.len() { ("└── ", "    ") } else { ("├── ", "│   ") };
        let words = [&copy.name, &copy.state, &copy.ready].map(String::as_str);
        let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
        text.push_str(&format!("{branch}{}\n", words.join("  ")));
        for (at, pod) in copy.pods.iter().enumerate() {
            let branch = if at + 1 == copy.pods.len() { "└── " } else { "├── " };
            text.push_str(&format!("{beside}{branch}pod/{}  {}\n", pod.name, pod.phase));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_drawn_below_their_cluster() {
        let placement = json!({"status": {"clusters": [
            {"name": "eu-1", "phase": "Active", "ready": 1, "desired": 2},
            {"name": "us-1", "phase": "Active", "ready": 0}]}});
        let pod = |name: &str, cluster: &str| json!({"metadata": {"name": name, "labels": {"portolan.dev/cluster": cluster}}, "status": {"phase": "Running"}});
        let pods = [pod("web-a", "eu-1"), pod("web-b", "eu-1"), pod("web-c", "ap-1")];
        let expected = "deployment/web
├── eu-1  Progressing  1/2
│   ├── pod/web-a  Running
│   └── pod/web-b  Running
├── us-1  Running
└── ap-1  Gone
    └── pod/web-c  Running
";
        assert_eq!(tree_text("deployment/web", &copies_with_pods(&placement, &pods)), expected);
        assert_eq!(tree_text("deployment/web", &[]), "deployment/web\n");
    }

    #[test]
    fn dependents_are_found_by_owner_uid() {
        let owners: BTreeSet<String> = ["a".to_owned()].into();
        for (references, expected) in
            [(json!([{"uid": "a"}]), true), (json!([{"uid": "b"}]), false), (json!(null), false)]
        {
            assert_eq!(is_owned(&json!({"metadata": {"ownerReferences": references}}), &owners), expected);
        }
    }
}
