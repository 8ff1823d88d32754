//! `kubectl portolan policy`: what a policy would move, before it is written.

use std::{
    io::Read as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, anyhow, bail};
use clap::{Args, Subcommand};
use portolan_types::{
    LogicalClusterPath, object,
    placement::{PlanChange, PlanCordon, PlanTarget},
};
use serde_json::{Value, json};

use super::{AnsweredPlan, WOULD_CHANGE, expectations::PlanExpectations};
use crate::cli::plugin::{
    clusters::HOME,
    context::PluginContext,
    flags::{OutputFlags, ReportFlags},
    formats,
};

/// Most bytes of a file of policies.
const FILE_BYTES: u64 = 4 << 20;

/// Plan the effect of policies.
#[derive(Args)]
pub(crate) struct PolicyArgs {
    #[command(subcommand)]
    command: PolicyCommand,
}

#[derive(Subcommand)]
enum PolicyCommand {
    /// Print what would move if these policies were applied. Exit code 0: nothing; 1: something; above 1: an error.
    Plan(PolicyPlanArgs),
    /// Check expectations about the plan of these policies. Exit code 0: all hold; 1: one does not; above 1: an error.
    Test(PolicyTestArgs),
}

#[derive(Args)]
struct PlannedChangeArgs {
    /// File with policies or PhysicalClusters that would be applied, `-` for standard input; may be repeated.
    #[arg(short, long = "filename", value_name = "FILE")]
    filenames: Vec<PathBuf>,
    /// Policy that would be deleted, as `clusterplacementpolicy/NAME` or `placementpolicy/NAME`; may be repeated.
    #[arg(long, value_name = "TYPE/NAME")]
    delete: Vec<String>,
    /// Physical cluster that would be cordoned; may be repeated.
    #[arg(long, value_name = "CLUSTER")]
    cordon: Vec<String>,
    /// Physical cluster that would be drained; may be repeated.
    #[arg(long, value_name = "CLUSTER")]
    drain: Vec<String>,
    /// Physical cluster that would be lost; may be repeated.
    #[arg(long, value_name = "CLUSTER")]
    lose: Vec<String>,
    /// Most rows of the plan.
    #[arg(long, value_name = "ROWS")]
    limit: Option<u32>,
}

#[derive(Args)]
struct PolicyPlanArgs {
    #[command(flatten)]
    changes: PlannedChangeArgs,
    #[command(flatten)]
    format: OutputFlags,
}

#[derive(Args)]
struct PolicyTestArgs {
    #[command(flatten)]
    changes: PlannedChangeArgs,
    /// File with expectations: `moves` and `refused` are the most objects that may move or be refused, `objects` maps
    /// `namespace/kind/name` to the physical clusters that the object moves to.
    #[arg(long, value_name = "FILE")]
    expect: PathBuf,
    #[command(flatten)]
    format: ReportFlags,
}

impl PolicyArgs {
    /// Runs the command, and returns its exit code.
    ///
    /// # Errors
    /// A refusal, or a file that cannot be read.
    pub(crate) async fn run(self, ctx: &mut PluginContext) -> anyhow::Result<u8> {
        ctx.connect().await?;
        match self.command {
            PolicyCommand::Plan(plan) => {
                let answered = plan.changes.ask(ctx).await?;
                ctx.print_warnings();
                answered.print(ctx, &plan.format)?;
                Ok(answered.code())
            }
            PolicyCommand::Test(test) => test.run(ctx).await,
        }
    }
}

impl PolicyTestArgs {
    async fn run(self, ctx: &mut PluginContext) -> anyhow::Result<u8> {
        let expected: PlanExpectations = serde_saphyr::from_str(&read(&self.expect)?)
            .map_err(|error| anyhow!("{error}"))
            .with_context(|| format!("{} holds no expectations", self.expect.display()))?;
        let answered = self.changes.ask(ctx).await?;
        ctx.print_warnings();
        let failures = expected.failures(&answered.status);
        let is_met = failures.is_empty();
        if let Some(format) = self.format.output {
            let AnsweredPlan { review, status } = &answered;
            let result = json!({"passed": is_met, "failures": failures, "summary": status.summary, "plan": review});
            formats::print_object(&mut ctx.terminal, &format.into(), &result)?;
        } else {
            failures.iter().try_for_each(|failure| ctx.terminal.line(failure))?;
            let verdict = if is_met { "ok" } else { "failed" };
            ctx.terminal.line(&format!("{verdict}: {}", answered.status.summary))?;
        }
        Ok(if is_met { 0 } else { WOULD_CHANGE })
    }
}

impl PlannedChangeArgs {
    async fn ask(&self, ctx: &PluginContext) -> anyhow::Result<AnsweredPlan> {
        let changes = self.changes(&ctx.session().namespace)?;
        let workspace = self.registration(ctx).await?;
        AnsweredPlan::ask(ctx, workspace.as_ref(), changes, self.limit).await
    }

    /// Returns the workspace in which the physical clusters of the flags are registered, if they are all that changes:
    /// a cordon, drain or loss is planned there. `None` for the workspace of the session.
    async fn registration(&self, ctx: &PluginContext) -> anyhow::Result<Option<LogicalClusterPath>> {
        let mut named = self.cordon.iter().chain(&self.drain).chain(&self.lose);
        let Some(name) = named.next().filter(|_| self.filenames.is_empty() && self.delete.is_empty()) else {
            return Ok(None);
        };
        let path = format!("/apis/{}/{}/physicalclusters/{name}", super::GROUP, super::VERSION);
        let seen = ctx.session().get(&path).await?;
        Ok(object::annotation(&seen, HOME).and_then(|path| path.parse().ok()))
    }

    /// Returns the changes that the flags describe.
    fn changes(&self, namespace: &str) -> anyhow::Result<Vec<PlanChange>> {
        let mut changes = Vec::new();
        for file in &self.filenames {
            for object in
                documents(&read(file)?, namespace).with_context(|| format!("{} cannot be used", file.display()))?
            {
                changes.push(PlanChange { apply: Some(object), ..PlanChange::default() });
            }
        }
        for name in &self.delete {
            changes.push(PlanChange { delete: Some(deleted(name, namespace)?), ..PlanChange::default() });
        }
        for cluster in &self.cordon {
            let cordon = PlanCordon { cluster: cluster.clone(), unschedulable: Some(true) };
            changes.push(PlanChange { cordon: Some(cordon), ..PlanChange::default() });
        }
        if !self.drain.is_empty() {
            changes.push(PlanChange { drain: self.drain.clone(), ..PlanChange::default() });
        }
        if !self.lose.is_empty() {
            changes.push(PlanChange { lose: self.lose.clone(), ..PlanChange::default() });
        }
        if changes.is_empty() {
            bail!("there is nothing to plan: must specify one of -f, --delete, --cordon, --drain and --lose");
        }
        Ok(changes)
    }
}

/// Returns the policy that an argument names.
fn deleted(name: &str, namespace: &str) -> anyhow::Result<PlanTarget> {
    let (kind, name) = name.split_once('/').with_context(|| format!("\"{name}\" is no TYPE/NAME"))?;
    let plural = kind.to_lowercase();
    let singular = plural.split('.').next().unwrap_or_default().trim_end_matches('s');
    let (kind, namespace) = match singular {
        "clusterplacementpolicy" | "clusterplacementpolicie" => ("ClusterPlacementPolicy", ""),
        "placementpolicy" | "placementpolicie" => ("PlacementPolicy", namespace),
        "physicalcluster" => ("PhysicalCluster", ""),
        other => bail!("{other} is no policy: name a clusterplacementpolicy, a placementpolicy or a physicalcluster"),
    };
    Ok(PlanTarget {
        api_version: format!("{}/{}", super::GROUP, super::VERSION),
        kind: kind.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    })
}

/// Reads a file, or standard input.
fn read(file: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    let unreadable = || format!("{} cannot be read", file.display());
    if file.as_os_str() == "-" {
        std::io::stdin().take(FILE_BYTES).read_to_string(&mut text).with_context(unreadable)?;
    } else {
        let opened = std::fs::File::open(file).with_context(unreadable)?;
        opened.take(FILE_BYTES).read_to_string(&mut text).with_context(unreadable)?;
    }
    if text.len() as u64 == FILE_BYTES {
        bail!("{} has more than {} MiB", file.display(), FILE_BYTES >> 20);
    }
    Ok(text)
}

/// Returns the objects of a YAML or JSON text; those of namespaced kinds that name none are in `namespace`.
fn documents(text: &str, namespace: &str) -> anyhow::Result<Vec<Value>> {
    let parsed: Vec<Value> = serde_saphyr::from_multiple(text).map_err(|error| anyhow!("{error}"))?;
    let mut objects = Vec::new();
    for mut document in parsed {
        if let Some(items) = document.get_mut("items").and_then(Value::as_array_mut) {
            objects.append(items);
        } else if !document.is_null() {
            objects.push(document);
        }
    }
    for object in &mut objects {
        if object["kind"].as_str().is_none() {
            bail!("a document has no kind");
        }
        if object["kind"] == "PlacementPolicy" && object["metadata"]["namespace"].as_str().is_none() {
            object["metadata"]["namespace"] = namespace.into();
        }
    }
    Ok(objects)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_of_files_are_read_with_their_namespace() {
        let text = "kind: PlacementPolicy\nmetadata: {name: a}\n---\n---\nkind: List\nitems:\n- {kind: ClusterPlacementPolicy, \
                    metadata: {name: b}}\n- {kind: PlacementPolicy, metadata: {name: c, namespace: own}}\n";
        let found = documents(text, "shop").unwrap();
        let shown: Vec<_> =
            found.iter().map(|object| (&object["metadata"]["name"], &object["metadata"]["namespace"])).collect();
        assert_eq!(shown, [(&json!("a"), &json!("shop")), (&json!("b"), &Value::Null), (&json!("c"), &json!("own"))]);
        let fields: Vec<_> = found[1].as_object().unwrap().keys().collect();
        assert_eq!(fields, ["kind", "metadata"], "the server refuses fields that the user did not write");
        assert!(documents("metadata: {name: a}\n", "shop").is_err());
        assert!(documents("a: [\n", "shop").is_err());
    }

    #[test]
    fn deleted_policies_are_named_by_their_kind() {
        for (text, expected) in [
            ("clusterplacementpolicy/a", Some(("ClusterPlacementPolicy", ""))),
            ("clusterplacementpolicies/a", Some(("ClusterPlacementPolicy", ""))),
            ("PlacementPolicies.portolan.dev/a", Some(("PlacementPolicy", "shop"))),
            ("physicalcluster/a", Some(("PhysicalCluster", ""))),
            ("deployment/a", None),
            ("a", None),
        ] {
            let found = deleted(text, "shop").ok();
            let found = found.as_ref().map(|target| (target.kind.as_str(), target.namespace.as_str()));
            assert_eq!(found, expected, "{text}");
        }
    }
}
