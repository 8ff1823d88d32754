//! A short torture of each embedded engine, always the same, and some of the places at which a server may end.

use std::path::Path;

use harness::portolan;
use harness::report::CheckReport;
use harness::tools::Tools;
use torture::{self, InjectedFault, TorturePlan, TorturedEngine, failpoints};

/// Crashes at one of this many failpoints.
const SOME: usize = 8;

pub(super) fn run(report: &mut CheckReport, program: &Path, tools: &Tools, dir: &Path) {
    for engine in [TorturedEngine::Redb, TorturedEngine::Sled] {
        for (name, faults) in [
            ("calls", vec![InjectedFault::Kill, InjectedFault::Pause, InjectedFault::Eio, InjectedFault::Clock]),
            ("disk", vec![InjectedFault::Full, InjectedFault::Pause]),
        ] {
            let rounds = faults.len();
            let plan = TorturePlan { engine, faults, rounds, seed: 1 };
            torture::check(report, &plan, program, tools, &dir.join(format!("{engine:?}-{name}").to_lowercase()));
        }
    }
    // Release builds have no places to end at.
    let mut debug = None;
    if report.check("failpoints: a debug build is there", || {
        debug = Some(portolan::build_debug()?);
        Ok(())
    }) && let Some(debug) = debug
    {
        failpoints::run(report, &debug, tools, &dir.join("failpoints"), SOME);
    }
}
