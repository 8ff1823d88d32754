//! `kubectl portolan move`: pins an object to physical clusters, and follows its move.

use std::{collections::BTreeSet, time::Duration};

use anyhow::bail;
use clap::{Args, ValueEnum};
use portolan_types::{
    MonotonicInstant, annotations, object,
    placement::{MAX_PLAN_ROWS, PlacementCopyStatus, PlacementRecord, PlanChange, PlanPin, PlanTarget},
};
use serde_json::{Value, json};

use super::{
    locate::{ready, state},
    namespace_move::NamespaceMove,
    placed_condition, placement_of, preflight, single_object,
};
use crate::cli::plugin::{
    context::PluginContext,
    flags::{OutputFlags, wait_timeout},
    formats,
    plans::AnsweredPlan,
    resources::ResourceType,
    waiting::{INTERRUPTED, TIMED_OUT, WaitEnd, WaitProgress, wait_until},
};

/// Time after a pin in which a refusal of before may still be shown.
pub(super) const SETTLED: Duration = Duration::from_secs(3);

/// Treatment of a write, as of kubectl's `--dry-run`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DryRun {
    /// Write.
    None,
    /// Ask the server for the plan, and write nothing.
    Server,
}

/// Move an object to other physical clusters: pin it there, and wait until it runs there alone.
#[derive(Args)]
pub(crate) struct MoveArgs {
    /// Object: TYPE/NAME or TYPE NAME.
    #[arg(value_name = "TYPE/NAME", required = true)]
    object: Vec<String>,
    /// Physical cluster to move to; may be repeated, or a list joined by commas.
    #[arg(long, value_name = "CLUSTER", value_delimiter = ',', required_unless_present = "unpin")]
    to: Vec<String>,
    /// Leave only this physical cluster; copies on others stay.
    #[arg(long, value_name = "CLUSTER", conflicts_with = "unpin")]
    from: Option<String>,
    /// Remove the pin: policies decide again.
    #[arg(long, conflicts_with = "to")]
    unpin: bool,
    /// Print what would move, and change nothing.
    #[arg(long, value_enum, num_args = 0..=1, require_equals = true, default_value = "none", default_missing_value = "server")]
    dry_run: DryRun,
    /// Wait until the object has moved.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true",
        action = clap::ArgAction::Set)]
    wait: bool,
    /// Longest wait.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = wait_timeout)]
    timeout: Duration,
    #[command(flatten)]
    format: OutputFlags,
}

impl MoveArgs {
    /// Runs the command, and returns its exit code.
    ///
    /// # Errors
    /// A refusal; an object that cannot move.
    pub(crate) async fn run(self, ctx: &mut PluginContext) -> anyhow::Result<u8> {
        ctx.connect().await?;
        let (of, name) = single_object(ctx, &self.object).await?;
        let namespace = ctx.session().namespace.clone();
        let path = of.path(&namespace, Some(&name));
        let read = ctx.session().get(&path).await?;
        let pin = self.pin(&read)?;
        // A printed plan is short; one that is followed needs all its rows.
        let is_followed = self.dry_run == DryRun::None && self.wait && preflight::is_namespace(&of);
        let planned = plan(ctx, &of, &read, PinnedTo { clusters: &pin, is_followed }).await;
        ctx.print_warnings();
        if self.dry_run == DryRun::Server {
            planned?.print(ctx, &self.format)?;
            return Ok(0);
        }
        // The plan is a service; a user without the right to it may still move her objects.
        let planned = preflight::usable_plan(planned)?;
        let planned = planned.as_ref().map(|planned| &planned.status);
        preflight::check_move(&of, &read, &pin, planned)?;
        if let Some(planned) = planned {
            ctx.terminal.note(&format!("Plan: {}", planned.summary));
        }
        let value = if pin.is_empty() { Value::Null } else { pin.join(",").into() };
        let patch = json!({"metadata": {"annotations": {annotations::PIN: value}}});
        let written = ctx.session().patch(None, &path, &patch).await?;
        ctx.print_warnings();
        let title = of.title(&name);
        let done = if pin.is_empty() { "unpinned".to_owned() } else { format!("pinned to {}", pin.join(",")) };
        match self.format.object_format() {
            None => ctx.terminal.line(&format!("{title} {done}"))?,
            Some(format) => formats::print_object(&mut ctx.terminal, &format, &written)?,
        }
        if !self.wait {
            return Ok(0);
        }
        if preflight::is_namespace(&of) {
            let Some(planned) = planned else {
                ctx.terminal.note(&format!(
                    "the objects of {title} follow its pin; without the right to plans this command does not wait for them\n  see:  kubectl get placements -n {name}"
                ));
                return Ok(0);
            };
            return NamespaceMove::of(&name, planned).follow(ctx, self.timeout).await;
        }
        self.follow(ctx, &of, &written, &preflight::target(&of, &read, &pin, planned)).await
    }

    /// Returns the names for the pin; none removes it.
    fn pin(&self, read: &Value) -> anyhow::Result<Vec<String>> {
        let record = PlacementRecord::of(read).unwrap_or_default();
        if record.is_projected() {
            bail!("{} was made by a physical cluster, and cannot be moved by itself", object::name(read));
        }
        let mut pin: Vec<String> = Vec::new();
        if let Some(from) = &self.from {
            let here: Vec<String> = record.active().map(|copy| copy.name.clone()).collect();
            if !here.contains(from) {
                bail!("{} does not run on \"{from}\", but on {}", object::name(read), or_nowhere(&here));
            }
            pin.extend(here.into_iter().filter(|name| name != from));
        }
        pin.extend(self.to.iter().map(|name| name.trim().to_owned()));
        if pin.iter().any(String::is_empty) {
            bail!("--to has an empty name");
        }
        pin.sort();
        pin.dedup();
        Ok(pin)
    }

    async fn follow(
        &self,
        ctx: &mut PluginContext,
        of: &ResourceType,
        read: &Value,
        pin: &[String],
    ) -> anyhow::Result<u8> {
        let name = object::name(read).to_owned();
        let mut progress = WaitProgress::start(&ctx.terminal);
        let started = MonotonicInstant::now();
        let end = wait_until(self.timeout, async || {
            let placement = placement_of(ctx.session(), of, read).await?;
            let copies = copies_of(&placement);
            let arrived = copies.iter().filter(|copy| pin.contains(&copy.name) && is_running(copy)).count();
            progress.update(arrived as u64, pin.len() as u64, split_text(&copies));
            progress.row(&mut ctx.terminal, &name, &split_text(&copies));
            if has_arrived(&copies, pin) {
                return Ok(Some(Ok(copies)));
            }
            let is_refused = placed_condition(&placement, "status") == "False" && started.elapsed() > SETTLED;
            Ok(is_refused.then_some(Err(placement)))
        })
        .await;
        let took = progress.finish();
        let title = of.title(&name);
        match end? {
            WaitEnd::Reached(Ok(copies)) => {
                ctx.terminal.note(&format!("{title} runs on {}   {took}", split_text(&copies)));
                Ok(0)
            }
            WaitEnd::Reached(Err(placement)) => {
                let (reason, message) =
                    (placed_condition(&placement, "reason"), placed_condition(&placement, "message"));
                bail!("{title} does not move ({reason}): {message}\n  see:  kubectl portolan why {title}")
            }
            WaitEnd::TimedOut => {
                ctx.terminal.note(&format!(
                    "error: timed out waiting for {title} to move; the move continues\n  see:  kubectl portolan where {title}"
                ));
                Ok(TIMED_OUT)
            }
            WaitEnd::Interrupted => {
                ctx.terminal.note(&format!("the move continues; see it with: kubectl portolan where {title}"));
                Ok(INTERRUPTED)
            }
        }
    }
}

/// Pin to plan for.
struct PinnedTo<'a> {
    clusters: &'a [String],
    /// True if every row of the plan is needed.
    is_followed: bool,
}

/// Asks for the plan of a pin.
async fn plan(ctx: &PluginContext, of: &ResourceType, read: &Value, pin: PinnedTo<'_>) -> anyhow::Result<AnsweredPlan> {
    let target = PlanTarget {
        api_version: of.api_version(),
        kind: of.kind.clone(),
        namespace: object::namespace(read).to_owned(),
        name: object::name(read).to_owned(),
    };
    let limit = pin.is_followed.then_some(MAX_PLAN_ROWS as u32);
    let pin = PlanPin { object: target, clusters: pin.clusters.to_vec() };
    AnsweredPlan::ask(ctx, None, vec![PlanChange { pin: Some(pin), ..PlanChange::default() }], limit).await
}

pub(super) fn copies_of(placement: &Value) -> Vec<PlacementCopyStatus> {
    serde_json::from_value(placement["status"]["clusters"].clone()).unwrap_or_default()
}

fn is_running(copy: &PlacementCopyStatus) -> bool {
    state(copy) == "Running" && (copy.desired.or(copy.replicas).is_some() || copy.ready > 0)
}

/// Returns true if the object runs on the pinned physical clusters and nowhere else; without a pin, if it is at rest.
pub(super) fn has_arrived(copies: &[PlacementCopyStatus], pin: &[String]) -> bool {
    let on: BTreeSet<&str> = copies.iter().map(|copy| copy.name.as_str()).collect();
    let wanted: BTreeSet<&str> = pin.iter().map(String::as_str).collect();
    !copies.is_empty() && (pin.is_empty() || on == wanted) && copies.iter().all(is_running)
}

/// Formats `eu-1 3/3, eu-2 1/3 leaving`.
fn split_text(copies: &[PlacementCopyStatus]) -> String {
    let copy = |copy: &PlacementCopyStatus| {
        let words = [
            copy.name.clone(),
            ready(copy),
            match state(copy).as_str() {
                "Running" | "Progressing" => String::new(),
                other => other.to_lowercase(),
            },
        ];
        words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
    };
    or_nowhere(&copies.iter().map(copy).collect::<Vec<_>>())
}

fn or_nowhere(names: &[String]) -> String {
    if names.is_empty() { "nowhere".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(name: &str, phase: &str, ready: i64, desired: Option<i64>) -> PlacementCopyStatus {
        PlacementCopyStatus { name: name.into(), phase: phase.into(), ready, desired, ..PlacementCopyStatus::default() }
    }

    #[test]
    fn a_move_ends_when_the_object_runs_there_and_nowhere_else() {
        for (case, copies, pin, expected) in [
            ("it is still there", vec![copy("a", "Active", 3, Some(3))], vec!["b"], false),
            ("both", vec![copy("a", "Leaving", 3, Some(3)), copy("b", "Active", 3, Some(3))], vec!["b"], false),
            ("not all are ready", vec![copy("b", "Active", 2, Some(3))], vec!["b"], false),
            ("it is there", vec![copy("b", "Active", 3, Some(3))], vec!["b"], true),
            (
                "two of two",
                vec![copy("b", "Active", 1, Some(1)), copy("c", "Active", 2, Some(2))],
                vec!["c", "b"],
                true,
            ),
            ("one of two", vec![copy("b", "Active", 1, Some(1))], vec!["b", "c"], false),
            ("a kind without replicas", vec![copy("b", "Active", 1, None)], vec!["b"], true),
            ("that is not there yet", vec![copy("b", "Active", 0, None)], vec!["b"], false),
            ("nowhere", vec![], vec!["b"], false),
            ("unpinned, and at rest", vec![copy("a", "Active", 3, Some(3))], vec![], true),
            ("unpinned, and moving", vec![copy("a", "Leaving", 3, Some(3))], vec![], false),
        ] {
            let pin: Vec<String> = pin.into_iter().map(str::to_owned).collect();
            assert_eq!(has_arrived(&copies, &pin), expected, "{case}");
        }
        let both = [copy("a", "Leaving", 3, Some(3)), copy("b", "Active", 1, Some(3))];
        assert_eq!(split_text(&both), "a 3/3 leaving, b 1/3");
        assert_eq!(split_text(&[]), "nowhere");
    }

    #[test]
    fn a_pin_names_the_new_clusters_and_those_that_stay() {
        let mut web = json!({"metadata": {"name": "web"}});
        let uid = |text: &str| text.parse().unwrap();
        let placed = |name: &str| portolan_types::placement::PlacedCopy {
            name: name.into(),
            uid: uid(name),
            phase: portolan_types::placement::CopyPhase::Active,
            replicas: None,
            epoch: 1,
        };
        PlacementRecord { clusters: vec![placed("a"), placed("b")], ..PlacementRecord::default() }.write_to(&mut web);
        for (to, from, expected) in [
            (vec!["c"], None, Ok("c")),
            (vec!["d", " c", "d"], None, Ok("c,d")),
            (vec!["c"], Some("a"), Ok("b,c")),
            (vec!["c"], Some("x"), Err("web does not run on \"x\", but on a, b")),
            (vec![""], None, Err("--to has an empty name")),
        ] {
            let args = MoveArgs {
                object: vec![],
                to: to.into_iter().map(str::to_owned).collect(),
                from: from.map(str::to_owned),
                unpin: false,
                dry_run: DryRun::None,
                wait: true,
                timeout: Duration::ZERO,
                format: OutputFlags::default(),
            };
            let pin = args.pin(&web).map(|pin| pin.join(",")).map_err(|error| error.to_string());
            assert_eq!(pin.as_deref().map_err(String::as_str), expected);
        }
    }
}
