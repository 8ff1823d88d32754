//! Parts of the benchmark. Each measures a server that has just become ready, and returns figures.

mod crash;
mod custom;
mod definitions;
mod exports;
mod flood;
mod large;
mod lists;
mod many;
mod overwrites;
mod placement;
mod quotas;
mod requests;
mod resume;
mod shared;
mod start;
mod sweeps;
mod sync;
mod watches;
mod workspaces;
mod writes;

use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;
use tokio::runtime::{Builder, Runtime};

use super::figures::Figure;
use super::subject::{BenchSubject, Lab, Recipe, Which};

/// Part of a benchmark that can be measured alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum BenchPart {
    /// Start to ready with nothing stored, and memory at rest.
    Start,
    /// Durable creates and updates: 1 to 256 clients, 1 and 64 KiB.
    Writes,
    /// The same where each sync takes two milliseconds more.
    SlowWrites,
    /// Single objects: creates from protobuf, gets, applies.
    Requests,
    /// Lists in every form.
    Lists,
    /// Events to 100 and 1000 watchers.
    Watches,
    /// A thousand watches that are resumed concurrently.
    Resume,
    /// Start to ready after a kill in the middle of writes.
    Crash,
    /// Disk space after everything was overwritten ten times.
    Overwrites,
    /// Start to ready with a gibibyte stored.
    Large,
    /// One namespace of a store of a million objects.
    Many,
    /// Workspaces of twenty objects each: making them, and memory while they are idle.
    Workspaces,
    /// One export that very many workspaces bind: binding, lists of the provider's view, and its watch.
    Exports,
    /// Very many definitions of custom resources in one logical cluster.
    Definitions,
    /// The same definitions in very many logical clusters.
    SharedDefinitions,
    /// Custom resources with a large schema and rules.
    Custom,
    /// Garbage collection after the deletion of an owner or a namespace.
    Sweeps,
    /// Creates that a quota counts and refuses.
    Quotas,
    /// Effect of a noisy neighbor on a tenant.
    Flood,
    /// Copies and their status on real physical clusters, direct and through an agent; streams; very many agents.
    Sync,
    /// Decisions and plans over very many objects, and the planner beside Karmada's.
    Placement,
}

/// Sizes and durations of the measurements.
pub(super) struct MeasureLimits {
    pub(super) time: Duration,
    pub(super) objects: usize,
    pub(super) many: usize,
    pub(super) workspaces: usize,
    pub(super) definitions: usize,
    pub(super) clusters: usize,
    pub(super) placed: usize,
    pub(super) workspace_objects: usize,
    pub(super) deployments: usize,
    pub(super) agents: usize,
}

impl BenchPart {
    /// Returns the name of the part in the options.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Writes => "writes",
            Self::SlowWrites => "slow-writes",
            Self::Requests => "requests",
            Self::Lists => "lists",
            Self::Watches => "watches",
            Self::Resume => "resume",
            Self::Crash => "crash",
            Self::Overwrites => "overwrites",
            Self::Large => "large",
            Self::Many => "many",
            Self::Workspaces => "workspaces",
            Self::Exports => "exports",
            Self::Definitions => "definitions",
            Self::SharedDefinitions => "shared-definitions",
            Self::Custom => "custom",
            Self::Sweeps => "sweeps",
            Self::Quotas => "quotas",
            Self::Flood => "flood",
            Self::Sync => "sync",
            Self::Placement => "placement",
        }
    }

    /// Returns true if the part applies to a server. The memory engine loses its data at a stop and writes to no disk,
    /// and only Portolan has workspaces.
    pub(super) fn fits(self, which: Which) -> bool {
        match self {
            Self::Start
            | Self::Writes
            | Self::Requests
            | Self::Lists
            | Self::Watches
            | Self::Resume
            | Self::Custom
            | Self::Sweeps
            | Self::Quotas
            | Self::Flood => true,
            Self::SlowWrites | Self::Crash | Self::Overwrites | Self::Large | Self::Many | Self::Definitions => {
                which != Which::Memory
            }
            Self::Workspaces | Self::Exports | Self::SharedDefinitions => matches!(which, Which::Redb | Which::Sled),
            Self::Sync | Self::Placement => which == Which::Redb,
        }
    }

    pub(super) fn recipe(self) -> Recipe {
        let controllers = matches!(self, Self::Sweeps | Self::Quotas);
        Recipe { slow_disk: self == Self::SlowWrites, controllers, flags: &[] }
    }

    pub(super) fn measure(self, subject: &mut BenchSubject, lab: &Lab, limits: &MeasureLimits) -> Result<Vec<Figure>> {
        match self {
            Self::Start => start::measure(subject),
            Self::Writes => writes::measure(subject, limits, ""),
            Self::SlowWrites => writes::measure(subject, limits, ", syncs 2 ms slower"),
            Self::Requests => requests::measure(subject, limits),
            Self::Lists => lists::measure(subject, limits),
            Self::Watches => watches::measure(subject, limits),
            Self::Resume => resume::measure(subject),
            Self::Crash => crash::measure(subject, limits),
            Self::Overwrites => overwrites::measure(subject, lab, limits),
            Self::Large => large::measure(subject),
            Self::Many => many::measure(subject, lab, limits),
            Self::Workspaces => workspaces::measure(subject, limits),
            Self::Exports => exports::measure(subject, limits),
            Self::Definitions => definitions::measure(subject, limits),
            Self::SharedDefinitions => shared::measure(subject, limits),
            Self::Custom => custom::measure(subject, limits),
            Self::Sweeps => sweeps::measure(subject, limits),
            Self::Quotas => quotas::measure(subject, limits),
            Self::Flood => flood::measure(subject, limits),
            Self::Sync => sync::measure(subject, lab, limits),
            Self::Placement => placement::measure(subject, lab, limits),
        }
    }
}

/// Builds the client's runtime with two threads, as the machine has two cores.
fn runtime() -> Result<Runtime> {
    Ok(Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}

/// Removes the files that failed parts share with other parts, but not the logs.
pub(super) fn leave_nothing_stored(dir: &std::path::Path) {
    // The file may not exist.
    let _ = std::fs::remove_file(dir.join(many::SNAPSHOT));
}
