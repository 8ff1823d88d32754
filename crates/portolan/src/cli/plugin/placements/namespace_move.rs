//! `kubectl portolan move namespace/NAME`: follows the objects that the plan of the pin moves.

use std::{collections::BTreeMap, time::Duration};

use anyhow::bail;
use portolan_types::{
    MonotonicInstant,
    placement::{GROUP, PlacementPlanStatus, PlannedMove, VERSION},
};
use serde_json::Value;

use super::{
    placed_condition,
    relocate::{SETTLED, copies_of, has_arrived},
};
use crate::cli::plugin::{
    context::PluginContext,
    waiting::{INTERRUPTED, TIMED_OUT, WaitEnd, WaitProgress, wait_until},
};

/// Pause after a look, for each Placement in the list.
const PER_PLACEMENT: Duration = Duration::from_micros(200);

/// Objects of a namespace that a plan moves by decisions of their own.
pub(super) struct NamespaceMove<'a> {
    name: &'a str,
    moves: Vec<&'a PlannedMove>,
    /// Number of further moves, which the plan does not list.
    omitted: u64,
}

/// Counts of the objects at one time.
#[derive(Debug, Default, PartialEq, Eq)]
struct MoveCounts {
    arrived: usize,
    /// Titles of the objects that do not move, with the reason.
    refused: Vec<String>,
}

impl<'a> NamespaceMove<'a> {
    /// Returns the moves of a plan.
    pub(super) fn of(name: &'a str, plan: &'a PlacementPlanStatus) -> Self {
        let moves = plan.moves.iter().filter(|row| !row.follows && !row.to.is_empty()).collect();
        Self { name, moves, omitted: plan.omitted.moves }
    }

    /// Counts the objects that have arrived and, if `is_settled`, the objects that are refused. An object without a
    /// `Placement` was deleted, and counts as arrived.
    fn count(&self, placements: &[Value], is_settled: bool) -> MoveCounts {
        let text = |placement: &'_ Value, path: &str| {
            placement.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let group = |version: &str| version.split_once('/').map_or("", |(group, _)| group).to_owned();
        let key = |placement: &Value| {
            let group = group(&text(placement, "/spec/object/apiVersion"));
            (group, text(placement, "/spec/object/kind"), text(placement, "/spec/object/name"))
        };
        let known: BTreeMap<_, _> = placements.iter().map(|placement| (key(placement), placement)).collect();
        let mut counts = MoveCounts::default();
        for planned in &self.moves {
            let object = &planned.object;
            let of_row = (group(&object.api_version), object.kind.clone(), object.name.clone());
            let Some(placement) = known.get(&of_row) else {
                counts.arrived += 1;
                continue;
            };
            let to: Vec<String> = planned.to.iter().map(|copy| copy.cluster.clone()).collect();
            if has_arrived(&copies_of(placement), &to) {
                counts.arrived += 1;
            } else if is_settled && placed_condition(placement, "status") == "False" {
                let (reason, message) = (placed_condition(placement, "reason"), placed_condition(placement, "message"));
                counts.refused.push(format!("{}/{} ({reason}): {message}", object.kind.to_lowercase(), object.name));
            }
        }
        counts
    }

    /// Waits until each object has moved or is refused. Returns the exit code.
    ///
    /// # Errors
    /// Failures of the server; objects that do not move.
    pub(super) async fn follow(&self, ctx: &mut PluginContext, timeout: Duration) -> anyhow::Result<u8> {
        let (name, all) = (self.name, self.moves.len());
        if all == 0 {
            ctx.terminal.note(&format!("nothing in namespace/{name} moves"));
            return Ok(0);
        }
        let path = format!("/apis/{GROUP}/{VERSION}/namespaces/{name}/placements");
        let progress = WaitProgress::start(&ctx.terminal);
        let started = MonotonicInstant::now();
        let end = wait_until(timeout, async || {
            let list = ctx.session().get(&path).await?;
            let placements = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
            let counts = self.count(placements, started.elapsed() > SETTLED);
            progress.update(counts.arrived as u64, all as u64, format!("objects of namespace/{name}"));
            // A long list is read less often.
            tokio::time::sleep(PER_PLACEMENT * u32::try_from(placements.len()).unwrap_or(u32::MAX)).await;
            Ok((counts.arrived + counts.refused.len() == all).then_some(counts))
        })
        .await;
        let took = progress.finish();
        match end? {
            WaitEnd::Reached(counts) if counts.refused.is_empty() => {
                ctx.terminal.note(&format!("{all} objects of namespace/{name} moved   {took}"));
                self.note_omitted(ctx);
                Ok(0)
            }
            WaitEnd::Reached(counts) => bail!(
                "{} of {all} objects of namespace/{name} do not move:\n  {}",
                counts.refused.len(),
                counts.refused.join("\n  ")
            ),
            WaitEnd::TimedOut => {
                ctx.terminal.note(&format!(
                    "error: timed out waiting for the objects of namespace/{name} to move; the moves continue\n  see:  kubectl get placements -n {name}"
                ));
                Ok(TIMED_OUT)
            }
            WaitEnd::Interrupted => {
                ctx.terminal.note(&format!("the moves continue; see them with: kubectl get placements -n {name}"));
                Ok(INTERRUPTED)
            }
        }
    }

    /// Prints how many objects move that the plan did not list.
    fn note_omitted(&self, ctx: &mut PluginContext) {
        let Self { name, omitted, .. } = self;
        if *omitted > 0 {
            ctx.terminal.note(&format!(
                "{omitted} further objects follow the pin; this command does not wait for them\n  see:  kubectl get placements -n {name}"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_namespace_has_moved_when_each_planned_object_has_moved_or_is_refused() {
        let row = |name: &str, follows: bool| {
            json!({"object": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}, "to": [{"cluster": "b"}],
                "follows": follows})
        };
        let plan = json!({"moves": [row("web", false), row("api", false), row("map", true)]});
        let plan: PlacementPlanStatus = serde_json::from_value(plan).unwrap();
        let planned = NamespaceMove::of("shop", &plan);
        let placement = |name: &str, on: &str, status: &str| {
            json!({"spec": {"object": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}}, "status": {
                "clusters": [{"name": on, "phase": "Active", "ready": 1, "desired": 1}],
                "conditions": [{"type": "Placed", "status": status, "reason": "Held", "message": "it waits"}]}})
        };
        let refused = vec!["deployment/api (Held): it waits".to_owned()];
        for (case, placements, is_settled, arrived, expected) in [
            (
                "no object has moved",
                vec![placement("web", "a", "True"), placement("api", "a", "True")],
                true,
                0,
                vec![],
            ),
            (
                "one object has moved",
                vec![placement("web", "b", "True"), placement("api", "a", "True")],
                true,
                1,
                vec![],
            ),
            (
                "one object is refused",
                vec![placement("web", "b", "True"), placement("api", "a", "False")],
                true,
                1,
                refused,
            ),
            (
                "a condition may be older than the pin",
                vec![placement("web", "b", "True"), placement("api", "a", "False")],
                false,
                1,
                vec![],
            ),
            ("one object was deleted", vec![placement("web", "b", "True")], true, 2, vec![]),
        ] {
            let counts = planned.count(&placements, is_settled);
            assert_eq!(counts, MoveCounts { arrived, refused: expected }, "{case}");
        }
    }
}
