//! Pace of moves: front ends whose addresses move along, disruption budgets, and the attempts that time out.

use std::collections::{BTreeMap, BTreeSet};

use portolan_types::{
    Uid,
    placement::{MoveAttempt, MovePace, PlacementRecord},
};

/// Service or Ingress in front of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrontEnd {
    /// `service/web`.
    pub title: String,
    /// Physical clusters of which it publishes an address.
    pub published: BTreeSet<Uid>,
    /// Physical clusters on which its EndpointSlices show a ready endpoint.
    pub serving: BTreeSet<Uid>,
}

/// Bound that a PodDisruptionBudget sets to the available pods of one object, over all physical clusters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DisruptionBound {
    /// Name of the budget.
    pub name: String,
    /// Least number of the object's pods that have to stay available.
    pub required: i64,
}

/// Conditions of a departure other than the health of the copies. By default there are none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MoveGates {
    /// Seconds since the epoch.
    pub now: i64,
    /// Pace of the deciding policy. Without one, addresses have no grace period and nothing times out.
    pub pace: Option<MovePace>,
    /// Front ends of the object.
    pub fronts: Vec<FrontEnd>,
    /// Tightest bound of the disruption budgets about the object.
    pub budget: Option<DisruptionBound>,
}

impl MoveGates {
    /// Returns gates without conditions, for objects that do not move.
    pub fn open() -> &'static Self {
        static OPEN: MoveGates = MoveGates { now: 0, pace: None, fronts: Vec::new(), budget: None };
        &OPEN
    }

    /// Returns the titles of the front ends that publish an address of a departing copy, and none of a staying one.
    pub(super) fn without_successor(&self, departing: &[Uid], staying: &[Uid]) -> Vec<&str> {
        let publishes = |front: &FrontEnd, any: &[Uid]| any.iter().any(|uid| front.published.contains(uid));
        let lacks = |front: &&FrontEnd| publishes(front, departing) && !publishes(front, staying);
        self.fronts.iter().filter(lacks).map(|front| front.title.as_str()).collect()
    }

    /// Returns the titles of the front ends with a ready endpoint on a departing copy's physical cluster, and none on
    /// that of one of `arriving`. Front ends without endpoints anywhere delay nothing.
    pub(super) fn without_endpoint(&self, departing: &[Uid], arriving: &BTreeSet<Uid>) -> Vec<&str> {
        let lacks = |front: &&FrontEnd| {
            departing.iter().any(|uid| front.serving.contains(uid)) && !arriving.is_subset(&front.serving)
        };
        self.fronts.iter().filter(lacks).map(|front| front.title.as_str()).collect()
    }

    /// Returns true if a front end publishes an address of the copy on a physical cluster.
    pub(super) fn publishes(&self, uid: &Uid) -> bool {
        self.fronts.iter().any(|front| front.published.contains(uid))
    }

    pub(super) fn grace_seconds(&self) -> i64 {
        self.pace.map_or(0, |pace| i64::from(pace.bounded().address_grace_period_seconds))
    }

    /// Returns the seconds after which a move is taken back; `None` is never.
    pub(super) fn timeout_seconds(&self) -> Option<i64> {
        self.pace.map(|pace| i64::from(pace.bounded().timeout_seconds)).filter(|seconds| *seconds > 0)
    }
}

/// Progress of a move, as the record has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MoveProgress {
    pub(super) retiring: BTreeMap<Uid, i64>,
    pub(super) arriving: BTreeSet<Uid>,
    pub(super) attempt: Option<MoveAttempt>,
}

impl MoveProgress {
    pub(super) fn of(record: &PlacementRecord) -> Self {
        let (retiring, arriving) = (record.retiring.clone(), record.arriving.clone());
        Self { retiring, arriving, attempt: record.moving.clone() }
    }
}
