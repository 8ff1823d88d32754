//! Failover: objects move off an unreachable physical cluster once their tolerations have expired.
//!
//! The worker of a physical cluster writes a heartbeat when it answers, at most every five seconds. Each server follows
//! the heartbeats; the leader acts on them:
//!
//! - **Loss.** After [`FailoverTiming::lost_after`] of silence the condition `Ready` is `Unknown`, and the taint
//!   `portolan.dev/unreachable` is set. `placement` lets objects leave once they do not tolerate it any more.
//! - **Return.** The taint goes when the physical cluster has answered without a break for
//!   [`FailoverTiming::well_after`]. Objects that have not moved until then stay.
//! - **Mass loss.** While most physical clusters of a home look lost, the fault is likely on this side: there is no
//!   taint, so nothing leaves, and the condition `FailoverSuspended` says so.
//! - **Rates.** Evictions have slots, per physical cluster and in total.
//!
//! Silence is measured by the time of this server, in steps of a tick. A server that was stopped for a while, or whose
//! clock jumps, therefore finds no physical cluster lost.

mod evictions;
mod mass_loss;
mod pulse;
mod status;

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use portolan_types::{ObjectKey, Record, ResourceVersion, Uid};
use serde_json::Value;
use tokio::time::Instant;

use crate::{context::SchedulerContext, facts::Facts};

pub use self::evictions::EvictionRates;
pub(crate) use self::evictions::EvictionSlots;
use self::{
    mass_loss::{WatchedCluster, mass_loss},
    pulse::ClusterPulse,
    status::{FailoverVerdict, VerdictWriter},
};

/// Times of failover.
#[derive(Clone, Copy, Debug)]
pub struct FailoverTiming {
    /// Silence after which a physical cluster counts as lost; 40 s.
    pub lost_after: Duration,
    /// Silence after which a physical cluster is in doubt: it counts as lost for the check of mass losses; 25 s.
    pub doubted_after: Duration,
    /// Time without a break after which a lost physical cluster counts as well; 30 s.
    pub well_after: Duration,
    /// Interval of checks; 5 s.
    pub tick: Duration,
    /// Rates of evictions.
    pub evictions: EvictionRates,
}

impl Default for FailoverTiming {
    fn default() -> Self {
        Self {
            lost_after: Duration::from_secs(40),
            doubted_after: Duration::from_secs(25),
            well_after: Duration::from_secs(30),
            tick: Duration::from_secs(5),
            evictions: EvictionRates::default(),
        }
    }
}

/// Numbers of failover, for metrics.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FailoverStats {
    /// Physical clusters that are lost.
    pub lost: u64,
    /// Lost physical clusters whose objects stay, because most look lost at once.
    pub suspended: u64,
    /// Objects that were evicted from lost physical clusters since the start.
    pub evictions: u64,
    /// Objects that wait for a slot of the eviction rates.
    pub waiting: u64,
    /// Time since the last heartbeat of each physical cluster, by uid, with its name.
    pub silences: Vec<(Uid, String, Duration)>,
}

/// State of failover. Its size is bounded by the number of physical clusters, and of objects on lost ones.
pub(crate) struct FailoverState {
    timing: FailoverTiming,
    pulses: Mutex<BTreeMap<Uid, ClusterPulse>>,
    slots: Mutex<EvictionSlots>,
    /// Lost physical clusters whose objects stay.
    suspended: Mutex<u64>,
}

impl FailoverState {
    pub(crate) fn new(timing: FailoverTiming) -> Self {
        Self {
            timing,
            pulses: Mutex::default(),
            slots: Mutex::new(EvictionSlots::new(timing.evictions)),
            suspended: Mutex::default(),
        }
    }

    fn pulses(&self) -> MutexGuard<'_, BTreeMap<Uid, ClusterPulse>> {
        self.pulses.lock().expect("no code panics under this lock")
    }

    /// Locks the slots of evictions.
    pub(crate) fn slots(&self) -> MutexGuard<'_, EvictionSlots> {
        self.slots.lock().expect("no code panics under this lock")
    }

    /// Notes a heartbeat, which is at `key`.
    fn beat(&self, key: &ObjectKey, revision: ResourceVersion, unbroken: u64) {
        let Ok(uid) = key.name.parse::<Uid>() else { return };
        self.pulses().entry(uid).or_default().beat(revision, unbroken);
    }

    /// Returns true if this server has seen a heartbeat of a physical cluster.
    fn is_heard(&self, uid: &Uid) -> bool {
        self.pulses().get(uid).is_some_and(ClusterPulse::is_heard)
    }

    /// Returns the numbers of now.
    pub(crate) fn stats(&self, facts: &Facts) -> FailoverStats {
        let (evictions, waiting) = self.slots().counts(Instant::now());
        let pulses = self.pulses();
        let name = |uid: &Uid| facts.physical(uid).map(|known| known.info.name.clone());
        let silences = pulses.iter().filter_map(|(uid, pulse)| Some((uid.clone(), name(uid)?, pulse.silence())));
        let silences: Vec<_> = silences.collect();
        let lost = silences.iter().filter(|(uid, ..)| pulses.get(uid).is_some_and(ClusterPulse::is_lost));
        let lost = u64::try_from(lost.count()).unwrap_or(u64::MAX);
        let suspended = *self.suspended.lock().expect("no code panics under this lock");
        FailoverStats { lost, suspended, evictions, waiting, silences }
    }
}

/// Observes the heartbeat of an event or a list.
pub(crate) fn observe_heartbeat(ctx: &SchedulerContext, key: &ObjectKey, revision: ResourceVersion, record: &Record) {
    let heartbeat = serde_json::from_slice::<Value>(record.body()).unwrap_or_default();
    ctx.failover.beat(key, revision, heartbeat["unbroken"].as_u64().unwrap_or(0));
}

/// Follows the heartbeats forever, and writes the verdicts while this server leads.
pub(crate) async fn run_failover(ctx: &SchedulerContext) {
    let tick = ctx.failover.timing.tick;
    let mut writer = VerdictWriter::default();
    let mut last = Instant::now();
    loop {
        tokio::time::sleep(tick).await;
        let now = Instant::now();
        // After a longer time this server did not run, and received no heartbeats.
        let passed = now.duration_since(last).min(tick * 2);
        last = now;
        let verdicts = judge(ctx, passed);
        if ctx.leads() {
            writer.write(ctx, verdicts).await;
        } else {
            writer.forget();
        }
    }
}

/// Advances the time, and returns the verdict about each physical cluster that ever sent a heartbeat.
fn judge(ctx: &SchedulerContext, passed: Duration) -> Vec<FailoverVerdict> {
    let state = &ctx.failover;
    let now = ctx.now();
    let watched = {
        let facts = ctx.facts();
        let mut pulses = state.pulses();
        pulses.retain(|uid, _| facts.physical(uid).is_some());
        let heard = facts.all_registered().filter(|(uid, known)| known.was_reached || pulses.contains_key(*uid));
        let heard: Vec<_> = heard.map(|(uid, known)| (uid.clone(), known.clone())).collect();
        let watch = |(uid, known): (Uid, crate::facts::RegisteredCluster)| {
            let pulse = pulses.entry(uid.clone()).or_default();
            pulse.adopt(known.info.is_unreachable());
            if known.has_connection {
                pulse.pass(passed, &state.timing);
            } else {
                pulse.hold();
            }
            WatchedCluster::new(uid, known, pulse, now)
        };
        heard.into_iter().map(watch).collect::<Vec<_>>()
    };
    let verdicts: Vec<_> = watched.iter().map(|one| verdict(ctx, one, &watched)).collect();
    let mut slots = state.slots();
    let is_evicted = |verdict: &&FailoverVerdict| verdict.is_tainted();
    slots.retain(verdicts.iter().filter(is_evicted).map(|verdict| &verdict.uid), Instant::now());
    slots.pause(verdicts.iter().filter(|verdict| verdict.is_paused).map(|verdict| verdict.uid.clone()));
    let suspended = verdicts.iter().filter(|verdict| verdict.suspension.is_some()).count();
    *state.suspended.lock().expect("no code panics under this lock") = u64::try_from(suspended).unwrap_or(u64::MAX);
    verdicts
}

fn verdict(ctx: &SchedulerContext, one: &WatchedCluster, all: &[WatchedCluster]) -> FailoverVerdict {
    let lineage = ctx.lineage_of(one.key.cluster).lineage;
    let reaches = |home| lineage.iter().any(|(id, _)| *id == home);
    let is_open = one.is_lost && !one.is_settled;
    let lost = mass_loss(all, reaches, |other| other.is_lost).filter(|_| is_open);
    // A doubt stops evictions and keeps the taint: the tolerations do not begin again for each missed heartbeat.
    let doubted = mass_loss(all, reaches, |other| other.is_lost || other.is_silent).filter(|_| is_open);
    FailoverVerdict {
        uid: one.uid.clone(),
        key: one.key.clone(),
        is_lost: one.is_lost,
        was_tainted: one.tainted_at.is_some(),
        was_ready: one.is_ready,
        silence: one.silence,
        is_silent: one.is_silent,
        suspension: if one.tainted_at.is_some() { lost } else { doubted },
        is_paused: doubted.is_some(),
    }
}
