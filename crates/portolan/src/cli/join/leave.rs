//! `portolan cluster check` and `portolan cluster unjoin`.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, anyhow, bail};
use clap::Args;
use portolan_types::object;
use serde_json::{Value, json};

use super::{
    super::cluster_api::ClusterApi,
    answer::{AnswerFlags, MembershipAnswer},
    api_of, downstream,
    upstream::{self, path_of},
};

const POLL: Duration = Duration::from_millis(500);
/// Finalizer that keeps a registration while copies are on its physical cluster.
const PLACEMENTS_FINALIZER: &str = "portolan.dev/placements";

/// Check a registered physical cluster: its conditions, and with a kubeconfig its API.
#[derive(Args)]
pub(crate) struct MemberCheckArgs {
    /// Name of the physical cluster.
    name: String,
    /// Kubeconfig of an administrator of the physical cluster, to check that side too.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    pub(super) format: AnswerFlags,
}

/// Drain a physical cluster, remove its registration, and with a kubeconfig also the objects of the join there.
#[derive(Args)]
pub(crate) struct UnjoinArgs {
    /// Name of the physical cluster.
    name: String,
    /// Kubeconfig of an administrator of the physical cluster.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Leave the copies on the physical cluster: they run on, and are not synced. Their objects are placed
    /// elsewhere.
    #[arg(long)]
    orphan: bool,
    /// The physical cluster is gone for good: write its copies off without proof.
    #[arg(long, conflicts_with_all = ["orphan", "kubeconfig"])]
    dead: bool,
    /// Time for the drain, as 30m.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = super::super::values::time)]
    timeout: Duration,
    #[command(flatten)]
    pub(super) format: AnswerFlags,
}

impl MemberCheckArgs {
    pub(super) async fn run(&self, upstream: &ClusterApi) -> anyhow::Result<MembershipAnswer> {
        let physical = upstream.get(&path_of(&self.name)).await?;
        let physical = physical.with_context(|| format!("physical cluster {} is not registered", self.name))?;
        let modes = physical["spec"]["connection"].as_object().into_iter().flatten().map(|(mode, _)| mode.as_str());
        let mut lines = vec![format!("connection  {}", modes.collect::<Vec<_>>().join(", "))];
        for condition in physical["status"]["conditions"].as_array().into_iter().flatten() {
            let text = |key: &str| condition[key].as_str().unwrap_or_default();
            lines.push(format!("{}={}  {}: {}", text("type"), text("status"), text("reason"), text("message")));
        }
        if let Some(path) = &self.kubeconfig {
            let member = api_of(Some(path), None).await?;
            let facts = downstream::preflight(&member).await?;
            lines.push(format!("member      {} at {}", facts.version, member.server()));
            upstream::check_same(upstream, &self.name, &facts.uid).await?;
        }
        let failed = |why: &str| Some(anyhow!("{} is not ready\n  why:  {why}", self.name));
        let failure = match upstream::ready(&physical) {
            Some(ready) if ready.is_true => None,
            Some(ready) => failed(&ready.text),
            None => failed("the server has not looked at it yet"),
        };
        Ok(MembershipAnswer { lines, object: physical, failure })
    }
}

impl UnjoinArgs {
    pub(super) fn steps(&self) -> u64 {
        // It gets nothing new, its registration goes, and the objects of the join.
        2 + u64::from(self.kubeconfig.is_some())
    }

    pub(super) async fn run(
        &self,
        upstream: &ClusterApi,
        report: &mut (dyn FnMut(&str) + Send),
    ) -> anyhow::Result<MembershipAnswer> {
        let member = match &self.kubeconfig {
            Some(path) => Some(api_of(Some(path), None).await?),
            None => None,
        };
        let path = path_of(&self.name);
        let registered = upstream.get(&path).await?;
        if let (Some(registered), Some(member)) = (&registered, &member) {
            // Its account would be removed from the wrong one.
            let uid = downstream::uid_of(member).await?;
            if upstream::is_of_another(registered, &uid) {
                bail!("{} is another physical cluster than that at {}", self.name, member.server());
            }
        }
        if registered.is_some() {
            upstream.delete(&path).await.with_context(|| format!("{} cannot be deleted", self.name))?;
            report(&format!("✓ {} gets nothing new, and is being drained", self.name));
            if self.orphan || self.dead {
                // The server writes the copies off once the finalizer is gone.
                self.write_off(upstream).await?;
            }
            self.wait_gone(upstream, report).await?;
            report(&format!("✓ removed the registration of {}", self.name));
            self.remove_secret(upstream, registered.as_ref()).await?;
        } else {
            report(&format!("✓ {} is not registered", self.name));
        }
        if let Some(member) = member {
            downstream::remove(&member).await?;
            report("✓ removed the account, the roles, the agent and the DNS responder from the physical cluster");
        }
        let unknown = || json!({"apiVersion": "portolan.dev/v1alpha1", "kind": "PhysicalCluster", "metadata": {"name": self.name}});
        Ok(MembershipAnswer::of(registered.unwrap_or_else(unknown)))
    }

    /// Removes the finalizer that waits for the copies. Those of others stay.
    async fn write_off(&self, upstream: &ClusterApi) -> anyhow::Result<()> {
        let without_ours = |physical: &Value| json!({"metadata": {"finalizers": finalizers_of_others(physical)}});
        upstream.merge_present(&path_of(&self.name), without_ours).await
    }

    /// Waits until the drain has ended; reports the reason that it takes long, once per change.
    async fn wait_gone(&self, upstream: &ClusterApi, report: &mut (dyn FnMut(&str) + Send)) -> anyhow::Result<()> {
        let mut last = String::new();
        let waiting = async {
            while let Some(physical) = upstream.get(&path_of(&self.name)).await? {
                let now = drained(&physical);
                if now != last && !now.is_empty() {
                    report(&format!("… {now}"));
                    last.clone_from(&now);
                }
                tokio::time::sleep(POLL).await;
            }
            anyhow::Ok(())
        };
        match tokio::time::timeout(self.timeout, waiting).await {
            Ok(done) => done,
            Err(_) => bail!(
                "{} is still being drained\n  why:  {last}\n  fix:  move what is pinned there, or give it up: --orphan leaves the \
                 copies there, --dead is for a physical cluster that is gone",
                self.name
            ),
        }
    }

    /// Deletes the Secret that a join has made.
    async fn remove_secret(&self, upstream: &ClusterApi, registered: Option<&Value>) -> anyhow::Result<()> {
        let reference = registered.and_then(|physical| physical.pointer("/spec/connection/direct/kubeconfigSecretRef"));
        let text = |key: &str| reference.and_then(|r| r[key].as_str()).unwrap_or_default().to_owned();
        let (namespace, name) = (text("namespace"), text("name"));
        if name == format!("{}-kubeconfig", self.name) {
            upstream.delete(&format!("/api/v1/namespaces/{namespace}/secrets/{name}")).await?;
        }
        Ok(())
    }
}

/// Returns the finalizers of a physical cluster besides the one that waits for its copies.
fn finalizers_of_others(physical: &Value) -> Vec<&str> {
    object::finalizers(physical).filter(|finalizer| *finalizer != PLACEMENTS_FINALIZER).collect()
}

/// Returns the message of the condition `Drained`.
fn drained(physical: &Value) -> String {
    let conditions = physical["status"]["conditions"].as_array().into_iter().flatten();
    let drained = conditions.into_iter().find(|condition| condition["type"] == "Drained");
    drained.and_then(|condition| condition["message"].as_str()).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finalizers_of_others_stay() {
        for (finalizers, expected) in [
            (json!(["portolan.dev/placements"]), vec![]),
            (json!(["example.com/backup", "portolan.dev/placements"]), vec!["example.com/backup"]),
            (Value::Null, vec![]),
        ] {
            let physical = json!({"metadata": {"finalizers": finalizers}});
            assert_eq!(finalizers_of_others(&physical), expected, "{physical}");
        }
    }
}
