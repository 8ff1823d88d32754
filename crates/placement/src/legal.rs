//! Which change of a record is legal (invariant 8). The scheduler asks before each commit; tests ask after each write.

use std::collections::BTreeSet;

use portolan_types::placement::{Phase, PlacedCopy, PlacementRecord};

use crate::{transition::Health, workload::Workload};

/// A change that must not be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IllegalStep {
    /// A record names a physical cluster twice.
    #[error("{name} is named twice")]
    Twice {
        /// Which one.
        name: String,
    },
    /// A copy that should be there is off the record without having been asked to leave.
    #[error("the copy on {name} vanished from the record without leaving")]
    Vanished {
        /// Where.
        name: String,
    },
    /// An arriving copy has an epoch that was used before, or a staying one another than before.
    #[error("the copy on {name} has epoch {epoch}, which does not follow from the record before")]
    Epoch {
        /// Where.
        name: String,
        /// Which.
        epoch: u64,
    },
    /// Copies come and go in one step.
    #[error("{arriving} arrives while {leaving} leaves, in one step")]
    AtOnce {
        /// Where one comes.
        arriving: String,
        /// Where one goes.
        leaving: String,
    },
    /// What a physical cluster made was placed, or the other way round.
    #[error("a projected object is not placed")]
    Projected,
    /// A copy leaves while the rest does not do its part.
    #[error("{leaving} leaves before {unhealthy} is healthy")]
    TooEarly {
        /// Where one goes.
        leaving: String,
        /// Where one is not healthy.
        unhealthy: String,
    },
    /// The last copy leaves without a reason for the object to run nowhere.
    #[error("the last copy leaves {leaving} without a reason")]
    Last {
        /// Where.
        leaving: String,
    },
}

/// Whether the scheduler or the syncer may change one record into another, by its form alone: health is not known here.
///
/// # Errors
/// The first rule that does not hold.
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
    let was_active = |c: &&PlacedCopy| c.phase == Phase::Active && next.on(&c.uid).is_none();
    if let Some(copy) = previous.clusters.iter().find(was_active) {
        return Err(IllegalStep::Vanished { name: copy.name.clone() });
    }
    epochs_follow(previous, next)?;
    match (arriving(previous, next).next(), leaving(previous, next).next()) {
        (Some(a), Some(l)) => Err(IllegalStep::AtOnce { arriving: a.name.clone(), leaving: l.name.clone() }),
        _ => Ok(()),
    }
}

fn epochs_follow(previous: &PlacementRecord, next: &PlacementRecord) -> Result<(), IllegalStep> {
    let highest = previous.clusters.iter().map(|c| c.epoch).max();
    let follows = |copy: &PlacedCopy| match previous.on(&copy.uid) {
        Some(before) if before.phase == copy.phase || copy.phase == Phase::Leaving => before.epoch == copy.epoch,
        _ => highest.is_none_or(|highest| copy.epoch > highest),
    };
    match next.clusters.iter().find(|c| !follows(c)) {
        Some(copy) => Err(IllegalStep::Epoch { name: copy.name.clone(), epoch: copy.epoch }),
        None => Ok(()),
    }
}

fn arriving<'a>(previous: &'a PlacementRecord, next: &'a PlacementRecord) -> impl Iterator<Item = &'a PlacedCopy> {
    next.active().filter(|c| previous.on(&c.uid).is_none_or(|before| before.phase != Phase::Active))
}

fn leaving<'a>(previous: &'a PlacementRecord, next: &'a PlacementRecord) -> impl Iterator<Item = &'a PlacedCopy> {
    let is_leaving = |c: &&PlacedCopy| next.on(&c.uid).is_some_and(|now| now.phase == Phase::Leaving);
    previous.active().filter(is_leaving)
}

/// On what grounds the scheduler takes a step.
#[derive(Clone, Copy, Debug)]
pub struct Grounds<'a> {
    /// What moves.
    pub workload: &'a Workload,
    /// What is known of the copies.
    pub health: &'a Health<'a>,
    /// A policy wants the object to run nowhere.
    pub stopped: bool,
}

/// Whether a step is legal on these grounds: its form is, and a copy leaves only when the rest is healthy, when two must not
/// run at once, when the object is stopped, when its physical cluster does not exist any more, or when it is in the way of whoever
/// empties that, and the rest can be seen.
///
/// # Errors
/// The first rule that does not hold.
pub fn check_grounds(previous: &PlacementRecord, next: &PlacementRecord, grounds: &Grounds) -> Result<(), IllegalStep> {
    let exists = |c: &&PlacedCopy| !grounds.health.gone.contains(&c.uid) || next.on(&c.uid).is_some();
    let clusters = previous.clusters.iter().filter(exists).cloned().collect();
    let previous = &PlacementRecord { clusters, ..previous.clone() };
    is_legal(previous, next)?;
    let Some(first) = leaving(previous, next).next() else { return Ok(()) };
    if grounds.stopped || grounds.workload.moves.one_at_a_time() {
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
