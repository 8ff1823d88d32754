//! A short torture of each embedded engine, always the same, and some of the places at which a server may end.

use std::path::Path;

use crate::harness::portolan;
use crate::harness::tools::Tools;
use crate::report::Report;
use crate::torture::{self, Engine, Fault, Plan, failpoints};

/// Of so many places one.
const SOME: usize = 8;

pub(super) fn run(report: &mut Report, program: &Path, tools: &Tools, dir: &Path) {
    for engine in [Engine::Redb, Engine::Sled] {
        for (name, faults) in [
            ("calls", vec![Fault::Kill, Fault::Pause, Fault::Eio, Fault::Clock]),
            ("disk", vec![Fault::Full, Fault::Pause]),
        ] {
            let rounds = faults.len();
            let plan = Plan { engine, faults, rounds, seed: 1 };
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
