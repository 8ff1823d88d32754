//! Legal changes of a record (invariant 8). The scheduler checks them before each commit, tests after each write.

use std::collections::BTreeSet;

use portolan_types::{
    Uid,
    placement::{CopyPhase, OrdinalRange, PlacedCopy, PlacementRecord},
};

use crate::{transition::CopyHealth, workload::Workload};

/// Change of a record that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IllegalStep {
    /// A record names a physical cluster twice.
    #[error("{name} is named twice")]
    Twice {
        /// Name of the physical cluster.
        name: String,
    },
    /// An active copy was removed from the record without leaving first.
    #[error("the copy on {name} vanished from the record without leaving")]
    Vanished {
        /// Physical cluster.
        name: String,
    },
    /// An arriving copy has a used epoch, or a staying one has another than before.
    #[error("the copy on {name} has epoch {epoch}, which does not follow from the record before")]
    Epoch {
        /// Physical cluster.
        name: String,
        /// Epoch.
        epoch: u64,
    },
    /// Copies arrive and leave in one step.
    #[error("{arriving} arrives while {leaving} leaves, in one step")]
    AtOnce {
        /// Physical cluster of the arriving copy.
        arriving: String,
        /// Physical cluster of the leaving copy.
        leaving: String,
    },
    /// A copy of a StatefulSet gets ordinals that another one may still have, or loses some while it exists.
    #[error("the copy on {name} does not have its ordinals for itself, or not those from before")]
    Ordinals {
        /// Physical cluster.
        name: String,
    },
    /// A copy of a Job gets other completions while it exists.
    #[error("the copy on {name} has {now} completions, and had {before}")]
    Completions {
        /// Physical cluster.
        name: String,
        /// Completions before.
        before: i64,
        /// Completions now.
        now: i64,
    },
    /// The copies of a Job have more completions than it asks for.
    #[error("the copies have {given} completions, and the Job asks for {wanted}")]
    TooManyCompletions {
        /// Sum of the copies.
        given: i64,
        /// `spec.completions`.
        wanted: i64,
    },
    /// An object that a physical cluster made was placed, or the other way round.
    #[error("a projected object is not placed")]
    Projected,
    /// A copy leaves while the rest is not healthy.
    #[error("{leaving} leaves before {unhealthy} is healthy")]
    TooEarly {
        /// Physical cluster of the leaving copy.
        leaving: String,
        /// Physical cluster of a copy that is not healthy.
        unhealthy: String,
    },
    /// The last copy leaves, and the object is not stopped.
    #[error("the last copy leaves {leaving} without a reason")]
    Last {
        /// Physical cluster.
        leaving: String,
    },
}

/// Checks the form of a change, which is all that can be checked without the health of the copies.
///
/// # Errors
/// The first rule that is broken.
pub fn is_legal(previous: &PlacementRecord, next: &PlacementRecord) -> Result<(), IllegalStep> {
    if !next.clusters.is_empty() && previous.is_projected() != next.is_projected() && !previous.clusters.is_empty() {
        return Err(IllegalStep::Projected);
    }
    let mut seen = BTreeSet::new();
    for copy in &next.clusters {
        if !seen.insert(&copy.uid) {
            return Err(IllegalStep::Twice { name: copy.name.clone() });
        }
    }
    let was_active = |c: &&PlacedCopy| c.phase == CopyPhase::Active && next.on(&c.uid).is_none();
    if let Some(copy) = previous.clusters.iter().find(was_active) {
        return Err(IllegalStep::Vanished { name: copy.name.clone() });
    }
    epochs_follow(previous, next)?;
    ordinals_follow(previous, next)?;
    completions_follow(previous, next)?;
    match (arriving(previous, next).next(), leaving(previous, next).next()) {
        (Some(a), Some(l)) => Err(IllegalStep::AtOnce { arriving: a.name.clone(), leaving: l.name.clone() }),
        _ => Ok(()),
    }
}

fn epochs_follow(previous: &PlacementRecord, next: &PlacementRecord) -> Result<(), IllegalStep> {
    let highest = previous.clusters.iter().map(|c| c.epoch).max();
    let follows = |copy: &PlacedCopy| match previous.on(&copy.uid) {
        Some(before) if before.phase == copy.phase || copy.phase == CopyPhase::Leaving => before.epoch == copy.epoch,
        _ => highest.is_none_or(|highest| copy.epoch > highest),
    };
    match next.clusters.iter().find(|c| !follows(c)) {
        Some(copy) => Err(IllegalStep::Epoch { name: copy.name.clone(), epoch: copy.epoch }),
        None => Ok(()),
    }
}

/// Returns the physical clusters whose copies are whole: of a StatefulSet, each of them has every ordinal.
pub(crate) fn whole_copies(record: &PlacementRecord) -> impl Iterator<Item = &Uid> {
    let is_whole = |copy: &&PlacedCopy| copy.replicas.is_none() && !record.ordinals.contains_key(&copy.uid);
    record.clusters.iter().filter(is_whole).map(|copy| &copy.uid)
}

/// Checks that no two copies have the same ordinal, and that a copy in both records keeps its ordinals. An undivided
/// copy has all ordinals until it is gone.
fn ordinals_follow(previous: &PlacementRecord, next: &PlacementRecord) -> Result<(), IllegalStep> {
    let range = |copy: &PlacedCopy| next.ordinals.get(&copy.uid).copied();
    let is_whole = |copy: &PlacedCopy| whole_copies(next).any(|uid| *uid == copy.uid);
    let had_all: Vec<&Uid> = whole_copies(previous).collect();
    let has_all = |copy: &PlacedCopy| is_whole(copy) || had_all.contains(&&copy.uid);
    let is_shared = |copy: &PlacedCopy, range: OrdinalRange| {
        let overlaps = next.ordinals.iter().any(|(uid, other)| *uid != copy.uid && other.overlaps(range));
        overlaps || (range.count() > 0 && next.clusters.iter().any(|other| other.uid != copy.uid && has_all(other)))
    };
    let is_broken = |copy: &&PlacedCopy| {
        let had = previous.ordinals.get(&copy.uid).filter(|_| previous.on(&copy.uid).is_some());
        let contains = |had: &OrdinalRange| range(copy).is_some_and(|range| range.contains(*had));
        let keeps = is_whole(copy) || had.is_none_or(contains);
        let loses_some = had_all.contains(&&copy.uid) && range(copy).is_some();
        !keeps || loses_some || range(copy).is_some_and(|range| is_shared(copy, range))
    };
    match next.clusters.iter().find(is_broken) {
        Some(copy) => Err(IllegalStep::Ordinals { name: copy.name.clone() }),
        None => Ok(()),
    }
}

/// Checks that each copy of both records keeps its completions.
fn completions_follow(previous: &PlacementRecord, next: &PlacementRecord) -> Result<(), IllegalStep> {
    let stays = |copy: &&PlacedCopy| previous.on(&copy.uid).is_some_and(|before| before.epoch == copy.epoch);
    for copy in next.clusters.iter().filter(stays) {
        let Some(before) = previous.completions.get(&copy.uid).copied() else { continue };
        let now = next.completions.get(&copy.uid).copied().unwrap_or(0);
        if now != before {
            return Err(IllegalStep::Completions { name: copy.name.clone(), before, now });
        }
    }
    Ok(())
}

fn arriving<'a>(previous: &'a PlacementRecord, next: &'a PlacementRecord) -> impl Iterator<Item = &'a PlacedCopy> {
    next.active().filter(|c| previous.on(&c.uid).is_none_or(|before| before.phase != CopyPhase::Active))
}

fn leaving<'a>(previous: &'a PlacementRecord, next: &'a PlacementRecord) -> impl Iterator<Item = &'a PlacedCopy> {
    let is_leaving = |c: &&PlacedCopy| next.on(&c.uid).is_some_and(|now| now.phase == CopyPhase::Leaving);
    previous.active().filter(is_leaving)
}

/// Grounds on which the scheduler takes a step.
#[derive(Clone, Copy, Debug)]
pub struct StepJustification<'a> {
    /// Workload.
    pub workload: &'a Workload,
    /// Health of the copies.
    pub health: &'a CopyHealth<'a>,
    /// A policy wants the object to run nowhere.
    pub stopped: bool,
}

/// Checks the form of a step and the reason of each leaving copy: the rest is healthy, two copies must not run at
/// once, the object is stopped, a user forces the move to copies that exist, its physical cluster does not exist any
/// more, or it has nothing ready on a drained physical cluster and the rest can be seen.
///
/// # Errors
/// The first rule that is broken.
pub fn check_justification(
    previous: &PlacementRecord,
    next: &PlacementRecord,
    grounds: &StepJustification,
) -> Result<(), IllegalStep> {
    let exists = |c: &&PlacedCopy| !grounds.health.gone.contains(&c.uid) || next.on(&c.uid).is_some();
    let clusters = previous.clusters.iter().filter(exists).cloned().collect();
    let previous = &PlacementRecord { clusters, ..previous.clone() };
    is_legal(previous, next)?;
    let given = next.completions.values().fold(0_i64, |sum, own| sum.saturating_add(*own));
    if let Some(wanted) = grounds.workload.completions.filter(|wanted| *wanted < given) {
        return Err(IllegalStep::TooManyCompletions { given, wanted });
    }
    let Some(first) = leaving(previous, next).next() else { return Ok(()) };
    if grounds.stopped || grounds.workload.moves.one_at_a_time() {
        return Ok(());
    }
    let is_forced = grounds.workload.force.is_some();
    if is_forced && next.active().next().is_some() {
        return Ok(());
    }
    let health = grounds.health;
    let is_seen = next.active().next().is_some() && next.active().all(|c| health.up.contains(&c.uid));
    if is_seen && leaving(previous, next).all(|c| health.is_in_the_way(c)) {
        return Ok(());
    }
    let leaving = first.name.clone();
    match next.active().find(|c| {
        let limit = next.limits.get(&c.uid).copied();
        !health.is_healthy(grounds.workload, c, limit)
    }) {
        Some(weak) => Err(IllegalStep::TooEarly { leaving, unhealthy: weak.name.clone() }),
        None if next.active().next().is_none() => Err(IllegalStep::Last { leaving }),
        None => Ok(()),
    }
}
