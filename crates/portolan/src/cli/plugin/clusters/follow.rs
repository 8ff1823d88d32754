//! Drains of a physical cluster, and their progress as text.

use std::time::Duration;

use http::Method;
use portolan_types::{
    object,
    placement::{DrainPhase, DrainRow, DrainRowState, DrainSpec, DrainStatus, GROUP, VERSION},
};
use serde_json::Value;

use super::RegisteredCluster;
use crate::cli::plugin::{
    context::PluginContext,
    session::{ApiRequest, ApiSession, RequestError},
    waiting::{INTERRUPTED, TIMED_OUT, WaitEnd, WaitProgress, wait_until},
};

/// Reason of the condition `Accepted` of a drain with another plan than the expected one.
const PLAN_CHANGED: &str = "PlanChanged";

/// `Drain`, as stored and as read.
#[derive(Clone, Debug)]
pub(super) struct DrainOfCluster {
    pub(super) object: Value,
    pub(super) spec: DrainSpec,
    pub(super) status: DrainStatus,
}

impl DrainOfCluster {
    /// Reads an object; fields of a later version are ignored.
    pub(super) fn of(object: Value) -> Self {
        let spec = serde_json::from_value(object["spec"].clone()).unwrap_or_default();
        let status = serde_json::from_value(object["status"].clone()).unwrap_or_default();
        Self { object, spec, status }
    }

    /// Returns the path of a drain, or of all drains of a workspace.
    pub(super) fn path(name: Option<&str>) -> String {
        let name = name.map(|name| format!("/{name}")).unwrap_or_default();
        format!("/apis/{GROUP}/{VERSION}/drains{name}")
    }

    /// Lists the drains of a physical cluster, the latest first.
    ///
    /// # Errors
    /// A refusal.
    pub(super) async fn list(
        session: &ApiSession,
        cluster: &RegisteredCluster,
        name: &str,
    ) -> Result<Vec<Self>, RequestError> {
        let path = Self::path(None);
        let list = session.send(ApiRequest::new(Method::GET, &path).to(cluster.home.as_ref())).await?;
        let items = list["items"].as_array().cloned().unwrap_or_default();
        let mut drains: Vec<Self> = items.into_iter().map(Self::of).collect();
        drains.retain(|drain| drain.spec.physical_clusters.iter().any(|drained| drained == name));
        // Timestamps have one format, so their text has their order.
        let created = |drain: &Self| object::meta_text(&drain.object, "creationTimestamp").to_owned();
        drains.sort_by_key(|drain| std::cmp::Reverse(created(drain)));
        Ok(drains)
    }

    /// Returns `drain.portolan.dev/eu-1-x7k2p`.
    pub(super) fn title(&self) -> String {
        format!("drain.{GROUP}/{}", object::name(&self.object))
    }

    /// Returns true if the drain was refused because its plan is not the expected one.
    fn has_another_plan(&self) -> bool {
        let refusal = self.status.conditions.iter().find(|c| c.kind == "Accepted" && c.status == "False");
        self.status.phase == DrainPhase::Planned && refusal.is_some_and(|refusal| refusal.reason == PLAN_CHANGED)
    }

    /// Returns true if the request of the user is complete: its latest change was handled and nothing changes any more.
    fn has_settled(&self) -> bool {
        let is_observed = self.status.observed_generation >= object::generation(&self.object);
        let phase = self.status.phase;
        let wants_undo = self.spec.undo && phase != DrainPhase::Undone;
        let wants_abort = self.spec.abort && !self.spec.undo && phase != DrainPhase::Aborted;
        let is_refused = self.status.conditions.iter().any(|c| c.kind == "Accepted" && c.status == "False");
        let ends =
            matches!(phase, DrainPhase::Completed | DrainPhase::Aborted | DrainPhase::Undone | DrainPhase::Blocked);
        let pauses = self.spec.paused && matches!(phase, DrainPhase::Paused | DrainPhase::Planned);
        is_observed && (is_refused || (pauses && !wants_undo && !wants_abort) || (ends && !wants_undo && !wants_abort))
    }
}

/// Formats an object of a drain.
fn row_name(row: &DrainRow) -> String {
    let resource = row.resource.split('.').next().unwrap_or_default();
    format!("{}/{} {resource}/{}", row.workspace, row.namespace, row.name)
}

/// Formats the state of an object of a drain, with the reason or what it waits for.
fn row_state(row: &DrainRow) -> String {
    let word = match row.state {
        DrainRowState::Blocked => "blocked",
        DrainRowState::Changed => "changed",
        DrainRowState::Moving => "moving",
        DrainRowState::Returning => "returning",
        DrainRowState::Pending => "pending",
        DrainRowState::Skipped => "skipped",
        DrainRowState::Moved => "moved",
        DrainRowState::Restored => "restored",
    };
    let split = match (row.from.as_str(), row.to.as_str()) {
        ("", "") => String::new(),
        (from, "") => format!(" from {from}"),
        (from, to) if from == to => format!(" {from}"),
        (from, to) => format!(" {from} -> {to}"),
    };
    let why = match (row.reason.as_str(), row.message.as_str()) {
        ("", "") => String::new(),
        ("", message) => format!(": {message}"),
        (reason, "") => format!(" ({reason})"),
        (reason, message) => format!(" ({reason}): {message}"),
    };
    format!("{word}{split}{why}")
}

/// Returns the line about all objects.
pub(super) fn counts_text(status: &DrainStatus) -> String {
    let counts = status.counts;
    let parts = [
        (counts.moved, "moved"),
        (counts.moving, "moving"),
        (counts.pending, "pending"),
        (counts.blocked, "blocked"),
        (counts.skipped, "skipped"),
        (counts.restored, "restored"),
        (counts.changed, "changed"),
    ];
    let parts: Vec<String> = parts.iter().filter(|(n, _)| *n > 0).map(|(n, word)| format!("{n} {word}")).collect();
    if parts.is_empty() { "no objects".to_owned() } else { format!("{} of {}", parts.join(", "), counts.total) }
}

/// Follows a drain until it ends, is blocked, is paused or the time runs out, and returns the exit code.
///
/// # Errors
/// A refusal, or a drain that was deleted meanwhile.
pub(super) async fn follow(
    ctx: &mut PluginContext,
    cluster: &RegisteredCluster,
    drain: &DrainOfCluster,
    limit: Duration,
) -> anyhow::Result<u8> {
    let path = DrainOfCluster::path(Some(object::name(&drain.object)));
    let mut progress = WaitProgress::start(&ctx.terminal);
    let mut last = drain.clone();
    let end = wait_until(limit, async || {
        let request = ApiRequest::new(Method::GET, &path).to(cluster.home.as_ref());
        last = DrainOfCluster::of(ctx.session().send(request).await?);
        let status = &last.status;
        let done = if last.spec.undo { status.counts.restored } else { status.counts.moved };
        let count = |number: i64| u64::try_from(number).unwrap_or(0);
        progress.update(count(done), count(status.counts.total), counts_text(status));
        for row in status.objects.iter().filter(|row| row.state != DrainRowState::Pending) {
            progress.row(&mut ctx.terminal, &row_name(row), &row_state(row));
        }
        Ok(last.has_settled().then_some(()))
    })
    .await;
    let took = progress.finish();
    let title = last.title();
    match end? {
        WaitEnd::Reached(()) => {
            let code = report(ctx, &last, &took);
            if last.has_another_plan() {
                // It never starts and has moved nothing; a drain with the present plan can take its place.
                let request = ApiRequest::new(Method::DELETE, &path).to(cluster.home.as_ref());
                ctx.session().send(request).await?;
                ctx.terminal.note(&format!("{title} deleted; plan again, and expect the new plan"));
            }
            Ok(code)
        }
        WaitEnd::TimedOut => {
            ctx.terminal
                .note(&format!("error: timed out waiting for {title}: {}; it continues", counts_text(&last.status)));
            Ok(TIMED_OUT)
        }
        WaitEnd::Interrupted => {
            let names = last.spec.physical_clusters.join(" ");
            ctx.terminal.note(&format!("{title} continues; watch it again with: kubectl portolan drain {names}"));
            Ok(INTERRUPTED)
        }
    }
}

/// Prints the state of a drain at the end of a wait, and returns the exit code.
fn report(ctx: &mut PluginContext, drain: &DrainOfCluster, took: &str) -> u8 {
    let status = &drain.status;
    let summary = match &status.report {
        Some(report) if !report.summary.is_empty() => report.summary.clone(),
        _ => counts_text(status),
    };
    let refused = status.conditions.iter().find(|c| c.kind == "Accepted" && c.status == "False");
    let blocked = status.conditions.iter().find(|c| c.kind == "Blocked" && c.status == "True");
    let names = drain.spec.physical_clusters.join(" ");
    let (code, text) = match (refused, status.phase) {
        (Some(why), _) => (1, format!("error: {} was refused ({}): {}", drain.title(), why.reason, why.message)),
        (None, DrainPhase::Completed) => {
            let undo = format!(
                "\nUndo: kubectl portolan drain {names} --undo\nEnd:  kubectl portolan cluster uncordon {names}"
            );
            (0, format!("{} completed: {summary}   {took}{undo}", drain.title()))
        }
        (None, DrainPhase::Blocked) => {
            let why = blocked.map(|condition| format!(" ({})", condition.message)).unwrap_or_default();
            (1, format!("error: {} is blocked: {summary}{why}", drain.title()))
        }
        (None, DrainPhase::Undone) => {
            (u8::from(status.counts.changed > 0), format!("{} undone: {summary}   {took}", drain.title()))
        }
        (None, phase) => (0, format!("{} is {}: {summary}", drain.title(), phase.word().to_lowercase())),
    };
    ctx.terminal.note(&text);
    code
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_drain_with_another_plan_is_deleted() {
        for (case, phase, reason, expected) in [
            ("its plan is another", "Planned", "PlanChanged", true),
            ("another drain works there", "Planned", "DrainedByOther", false),
            ("it has begun", "Running", "PlanChanged", false),
        ] {
            let drain = DrainOfCluster::of(json!({"metadata": {"name": "a"}, "spec": {}, "status": {"phase": phase,
                "conditions": [{"type": "Accepted", "status": "False", "reason": reason, "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}));
            assert_eq!(drain.has_another_plan(), expected, "{case}");
        }
    }

    #[test]
    fn a_wait_ends_when_the_drain_reaches_the_requested_phase() {
        let drain = |spec: Value, status: Value| {
            DrainOfCluster::of(json!({"metadata": {"name": "a", "generation": 2}, "spec": spec, "status": status}))
        };
        for (case, spec, status, expected) in [
            ("it runs", json!({}), json!({"phase": "Running", "observedGeneration": 2}), false),
            ("it is done", json!({}), json!({"phase": "Completed", "observedGeneration": 2}), true),
            ("what it was before", json!({}), json!({"phase": "Completed", "observedGeneration": 1}), false),
            ("it cannot go on", json!({}), json!({"phase": "Blocked", "observedGeneration": 2}), true),
            (
                "an undo that has not begun",
                json!({"undo": true}),
                json!({"phase": "Completed", "observedGeneration": 2}),
                false,
            ),
            ("an undo that is done", json!({"undo": true}), json!({"phase": "Undone", "observedGeneration": 2}), true),
            ("an abort under way", json!({"abort": true}), json!({"phase": "Running", "observedGeneration": 2}), false),
            ("an abort", json!({"abort": true}), json!({"phase": "Aborted", "observedGeneration": 2}), true),
            ("a pause", json!({"paused": true}), json!({"phase": "Paused", "observedGeneration": 2}), true),
            (
                "a refusal",
                json!({}),
                json!({"phase": "Planned", "observedGeneration": 2, "conditions": [{"type": "Accepted", "status": "False"}]}),
                true,
            ),
        ] {
            assert_eq!(drain(spec, status).has_settled(), expected, "{case}");
        }
    }

    #[test]
    fn rows_name_the_move_and_its_blocker() {
        let row: DrainRow = serde_json::from_value(json!({"workspace": "root:shop", "namespace": "default", "resource": "deployments.apps",
            "name": "web", "state": "Moving", "from": "a=3", "to": "a=3,b=3", "message": "waits for b: 1 of 3 are ready"}))
        .unwrap();
        assert_eq!(row_name(&row), "root:shop/default deployments/web");
        assert_eq!(row_state(&row), "moving a=3 -> a=3,b=3: waits for b: 1 of 3 are ready");
        let blocked = DrainRow {
            state: DrainRowState::Blocked,
            from: "a=1".into(),
            reason: "MoveRefused".into(),
            ..DrainRow::default()
        };
        assert_eq!(row_state(&blocked), "blocked from a=1 (MoveRefused)");
        let status: DrainStatus =
            serde_json::from_value(json!({"counts": {"total": 5, "moved": 3, "moving": 1, "blocked": 1}})).unwrap();
        assert_eq!(counts_text(&status), "3 moved, 1 moving, 1 blocked of 5");
        assert_eq!(counts_text(&DrainStatus::default()), "no objects");
    }
}
