//! Regressions: faults that users and unmodified clients met, each as the steps that showed it. Runs with two real
//! physical clusters and two simulated ones.

mod clients;
mod content;
mod namespaces;
mod placement;
mod stage;
mod stateful;
mod status;

use anyhow::Result;

use super::scene::{self, Scene};
use harness::report::CheckReport;
use stage::CaseStage;

/// Named check of one regression.
type Case = (&'static str, fn(&CaseStage<'_>) -> Result<()>);

/// Runs all cases in the workspace `cases`.
pub(super) fn run(report: &mut CheckReport, scene: &Scene) {
    let made = CaseStage::new(scene);
    if !report.check("cases: a workspace and two simulated clusters are Ready", || {
        made.as_ref().map(drop).map_err(scene::copy)
    }) {
        return;
    }
    let Ok(stage) = made else { return };
    let groups: [&[Case]; 6] =
        [&placement::CASES, &status::CASES, &content::CASES, &namespaces::CASES, &stateful::CASES, &clients::CASES];
    for (name, case) in groups.into_iter().flatten() {
        report.check(&format!("cases: {name}"), || case(&stage));
    }
    report.check("cases: the workspace goes with all that is left in it", || stage.finish());
}
