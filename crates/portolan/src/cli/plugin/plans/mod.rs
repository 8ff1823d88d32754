//! Plans: the exact effect of changes on placements, computed by the server from one snapshot.

mod expectations;
mod policy;
mod text;

use anyhow::Context as _;
use portolan_types::{
    LogicalClusterPath,
    placement::{GROUP, PlacementPlanSpec, PlacementPlanStatus, PlanChange, PlanCounts, VERSION},
};
use serde_json::{Value, json};

pub(crate) use self::policy::PolicyArgs;
pub(crate) use self::text::copies_text;

use super::{context::PluginContext, flags::OutputFlags, formats, output_format::OutputFormat};

/// Exit code of a plan that would change something, as of `kubectl diff`.
pub(crate) const WOULD_CHANGE: u8 = 1;

/// Answer of the server to a `PlacementPlan`.
pub(crate) struct AnsweredPlan {
    review: Value,
    pub(crate) status: PlacementPlanStatus,
}

impl AnsweredPlan {
    /// Asks for the plan of some changes in a workspace, or in that of the session.
    ///
    /// # Errors
    /// A refusal, or an answer without a plan.
    pub(crate) async fn ask(
        ctx: &PluginContext,
        workspace: Option<&LogicalClusterPath>,
        changes: Vec<PlanChange>,
        limit: Option<u32>,
    ) -> anyhow::Result<Self> {
        let review = json!({
            "apiVersion": format!("{GROUP}/{VERSION}"),
            "kind": "PlacementPlan",
            "metadata": {"name": "plan"},
            "spec": PlacementPlanSpec { changes, limit },
        });
        let path = format!("/apis/{GROUP}/{VERSION}/placementplans");
        let review = ctx.session().create(workspace, &path, &review).await?;
        let status = serde_json::from_value(review["status"].clone()).context("the server's answer has no plan")?;
        Ok(Self { review, status })
    }

    /// Returns true if an object would move, be divided again or be refused.
    pub(crate) fn changes_something(&self) -> bool {
        let PlanCounts { moves, followers, splits, refused } = self.status.counts;
        moves + followers + splits + refused > 0 || !self.status.hidden.is_empty()
    }

    /// Returns the exit code, as that of `kubectl diff`.
    pub(crate) fn code(&self) -> u8 {
        if self.changes_something() { WOULD_CHANGE } else { 0 }
    }

    /// Prints the plan.
    ///
    /// # Errors
    /// A failed write.
    pub(crate) fn print(&self, ctx: &mut PluginContext, flags: &OutputFlags) -> anyhow::Result<()> {
        match flags.object_format() {
            None => {
                let text = text::plan_text(&self.status, flags.is_wide(), !flags.no_headers);
                ctx.terminal.print(&text)
            }
            // A plan has no name, but its moves have.
            Some(OutputFormat::Name) => {
                let rows = self.status.moves.iter().chain(&self.status.splits).map(|row| &row.object);
                rows.map(text::object_name).try_for_each(|name| ctx.terminal.line(&name))
            }
            Some(format) => formats::print_object(&mut ctx.terminal, &format, &self.review),
        }
    }
}
