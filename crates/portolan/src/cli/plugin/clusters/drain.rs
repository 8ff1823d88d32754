//! `kubectl portolan drain`: starts a drain, follows it, and controls a running one.

use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use portolan_types::placement::{DrainBudget, DrainPhase, DrainSpec, GROUP, PlanChange, VERSION, WhenBlocked};
use serde_json::{Value, json};

use super::{
    RegisteredCluster,
    follow::{DrainOfCluster, follow},
};
use crate::cli::plugin::{
    context::PluginContext,
    flags::{OutputFlags, wait_timeout},
    formats,
    placements::DryRun,
    plans::AnsweredPlan,
};

/// Move everything that can move off physical clusters, and follow the moves. A drain that runs already is followed.
#[derive(Args)]
pub(crate) struct DrainArgs {
    /// Names of physical clusters, registered in one workspace.
    #[arg(value_name = "CLUSTER", required = true)]
    names: Vec<String>,
    /// Print what would move, and change nothing.
    #[arg(long, value_enum, num_args = 0..=1, require_equals = true, default_value = "none", default_missing_value = "server")]
    dry_run: DryRun,
    #[command(flatten)]
    control: DrainControlArgs,
    /// Most replicas that may be unavailable at once, over all objects.
    #[arg(long, value_name = "NUMBER")]
    max_unavailable: Option<u32>,
    /// Most objects that move at once.
    #[arg(long, value_name = "NUMBER")]
    max_moving: Option<u32>,
    /// Treatment of objects that cannot move; wait, if not set.
    #[arg(long, value_enum)]
    when_blocked: Option<BlockedObjects>,
    /// Start only if the plan has this hash; --dry-run prints it.
    #[arg(long, value_name = "HASH")]
    expect_plan: Option<String>,
    /// Follow the drain until it ends.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true",
        action = clap::ArgAction::Set)]
    wait: bool,
    /// Longest wait.
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = wait_timeout)]
    timeout: Duration,
    #[command(flatten)]
    format: OutputFlags,
}

#[derive(Args, Clone, Copy, Default)]
#[group(multiple = false)]
struct DrainControlArgs {
    /// Start no further move. A new drain shows its plan and starts nothing.
    #[arg(long)]
    pause: bool,
    /// Continue a paused drain.
    #[arg(long)]
    resume: bool,
    /// End the drain: moves under way finish, and nothing else moves.
    #[arg(long)]
    abort: bool,
    /// Return all objects to where they were before the drain.
    #[arg(long)]
    undo: bool,
}

/// Treatment of objects that cannot move, on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum BlockedObjects {
    /// The drain waits for them.
    Wait,
    /// They stay, and the drain completes without them.
    Skip,
    /// Objects move with data loss: volumes start empty, Jobs start again.
    Force,
}

impl From<BlockedObjects> for WhenBlocked {
    fn from(of: BlockedObjects) -> Self {
        match of {
            BlockedObjects::Wait => Self::Wait,
            BlockedObjects::Skip => Self::Skip,
            BlockedObjects::Force => Self::Force,
        }
    }
}

impl DrainArgs {
    /// Runs the command, and returns its exit code.
    ///
    /// # Errors
    /// A refusal; a physical cluster that does not exist; no drain to control.
    pub(crate) async fn run(self, ctx: &mut PluginContext) -> anyhow::Result<u8> {
        ctx.connect().await?;
        let first = self.names.first().context("name a physical cluster")?;
        let cluster = RegisteredCluster::read(ctx.session(), first).await?;
        for name in &self.names[1..] {
            if RegisteredCluster::read(ctx.session(), name).await?.home != cluster.home {
                bail!("{first} and {name} are registered in different workspaces; drain them one by one");
            }
        }
        if self.dry_run == DryRun::Server {
            return self.plan(ctx, &cluster).await;
        }
        let drains = DrainOfCluster::list(ctx.session(), &cluster, first).await?;
        let drain = match self.control.patch() {
            Some(patch) => match self.controlled(&drains) {
                Some(drain) => self.change(ctx, &cluster, drain, &patch).await?,
                // A pause of no drain makes one that shows its plan.
                None if self.control.pause => self.start(ctx, &cluster).await?,
                None => bail!("there is no drain of {first} that could be {}", self.control.word()),
            },
            // A drain that has completed keeps the physical cluster empty for as long as it exists.
            None => match drains.iter().find(|drain| is_in_force(drain.status.phase)) {
                Some(there) => {
                    self.check_existing(there)?;
                    ctx.terminal.note(&format!("{} is there already", there.title()));
                    there.clone()
                }
                None => self.start(ctx, &cluster).await?,
            },
        };
        if let Some(format) = self.format.object_format() {
            formats::print_object(&mut ctx.terminal, &format, &drain.object)?;
        }
        if !self.wait {
            return Ok(0);
        }
        follow(ctx, &cluster, &drain, self.timeout).await
    }

    async fn plan(&self, ctx: &mut PluginContext, cluster: &RegisteredCluster) -> anyhow::Result<u8> {
        let when_blocked = self.when_blocked.map(Into::into);
        let change = PlanChange { drain: self.names.clone(), when_blocked, ..PlanChange::default() };
        let plan = AnsweredPlan::ask(ctx, cluster.home.as_ref(), vec![change], None).await?;
        ctx.print_warnings();
        plan.print(ctx, &self.format)?;
        Ok(0)
    }

    /// Returns the latest drain that a control flag can change.
    fn controlled<'d>(&self, drains: &'d [DrainOfCluster]) -> Option<&'d DrainOfCluster> {
        drains.iter().find(|drain| match drain.status.phase {
            DrainPhase::Undone => false,
            DrainPhase::Completed | DrainPhase::Aborted => self.control.undo,
            DrainPhase::Planned | DrainPhase::Running | DrainPhase::Paused | DrainPhase::Blocked => true,
        })
    }

    /// Refuses fields for a drain that exists and has others.
    fn check_existing(&self, there: &DrainOfCluster) -> anyhow::Result<()> {
        let wanted: Option<WhenBlocked> = self.when_blocked.map(Into::into);
        let budget = &there.spec.budget;
        let other = [
            ("--expect-plan", self.expect_plan.as_ref().is_some_and(|hash| *hash != there.spec.expect_plan)),
            ("--when-blocked", wanted.is_some_and(|wanted| wanted != there.spec.when_blocked)),
            ("--max-moving", self.max_moving.is_some() && self.max_moving != budget.max_moving),
            ("--max-unavailable", self.max_unavailable.is_some() && self.max_unavailable != budget.max_unavailable),
        ];
        if let Some((flag, _)) = other.iter().find(|(_, differs)| *differs) {
            bail!("{} is there already with another {flag}, and its fields stay as they are", there.title());
        }
        Ok(())
    }

    async fn start(&self, ctx: &mut PluginContext, cluster: &RegisteredCluster) -> anyhow::Result<DrainOfCluster> {
        let spec = DrainSpec {
            physical_clusters: self.names.clone(),
            budget: DrainBudget { max_unavailable: self.max_unavailable, max_moving: self.max_moving },
            when_blocked: self.when_blocked.unwrap_or(BlockedObjects::Wait).into(),
            paused: self.control.pause,
            expect_plan: self.expect_plan.clone().unwrap_or_default(),
            ..DrainSpec::default()
        };
        let drain = json!({
            "apiVersion": format!("{GROUP}/{VERSION}"),
            "kind": "Drain",
            "metadata": {"generateName": format!("{}-", self.names[0])},
            "spec": spec,
        });
        let created = ctx.session().create(cluster.home.as_ref(), &DrainOfCluster::path(None), &drain).await?;
        ctx.print_warnings();
        let drain = DrainOfCluster::of(created);
        self.say(ctx, &format!("{} created", drain.title()))?;
        Ok(drain)
    }

    async fn change(
        &self,
        ctx: &mut PluginContext,
        cluster: &RegisteredCluster,
        drain: &DrainOfCluster,
        patch: &Value,
    ) -> anyhow::Result<DrainOfCluster> {
        let path = DrainOfCluster::path(Some(portolan_types::object::name(&drain.object)));
        let written = ctx.session().patch(cluster.home.as_ref(), &path, patch).await?;
        ctx.print_warnings();
        self.say(ctx, &format!("{} {}", drain.title(), self.control.word()))?;
        Ok(DrainOfCluster::of(written))
    }

    fn say(&self, ctx: &mut PluginContext, line: &str) -> anyhow::Result<()> {
        if self.format.object_format().is_some() {
            return Ok(());
        }
        ctx.terminal.line(line)
    }
}

fn is_in_force(phase: DrainPhase) -> bool {
    phase.is_active() || phase == DrainPhase::Completed
}

impl DrainControlArgs {
    /// Returns the patch of a running drain; `None` without a flag.
    fn patch(self) -> Option<Value> {
        match (self.pause, self.resume, self.abort, self.undo) {
            (true, ..) => Some(json!({"spec": {"paused": true}})),
            (_, true, ..) => Some(json!({"spec": {"paused": false}})),
            (_, _, true, _) => Some(json!({"spec": {"abort": true}})),
            (_, _, _, true) => Some(json!({"spec": {"undo": true, "paused": false}})),
            _ => None,
        }
    }

    fn word(self) -> &'static str {
        match (self.pause, self.resume, self.abort) {
            (true, ..) => "paused",
            (_, true, _) => "resumed",
            (_, _, true) => "aborted",
            _ => "undone",
        }
    }
}
