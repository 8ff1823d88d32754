//! A short torture of each embedded engine, always the same.

use std::path::Path;

use crate::harness::tools::Tools;
use crate::report::Report;
use crate::torture::{self, Engine, Fault, Plan};

pub(super) fn run(report: &mut Report, program: &Path, tools: &Tools, dir: &Path) {
    for engine in [Engine::Redb, Engine::Sled] {
        let plan = Plan { engine, faults: vec![Fault::Kill, Fault::Pause], rounds: 4, seed: 1 };
        torture::check(report, &plan, program, tools, &dir.join(format!("{engine:?}").to_lowercase()));
    }
}
