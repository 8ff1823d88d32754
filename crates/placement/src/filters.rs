//! The filters, as one table: each gives a verdict for each physical cluster, with a stable reason and a sentence.

use std::collections::BTreeSet;

use portolan_types::{
    Uid,
    placement::{Phase, Resources, Taint, Toleration},
};

use crate::{
    decide::Question,
    facts::{ClusterFacts, Readiness, TaintFact},
    policy::{Rules, Standing},
    reason::Reason,
};

/// What the filters look at.
pub(crate) struct Context<'a> {
    pub(crate) question: &'a Question<'a>,
    pub(crate) rules: Rules<'a>,
    /// The replicas are divided because a copy outgrew its bounds.
    pub(crate) spills: bool,
    here: BTreeSet<&'a Uid>,
}

/// One filter: `check` decides, `say` explains a refusal.
pub(crate) struct Filter {
    pub(crate) name: &'static str,
    pub(crate) check: fn(&Context, &ClusterFacts) -> Result<(), Reason>,
    pub(crate) say: fn(&Context, &ClusterFacts) -> String,
}

/// In the order in which a refusal is named first.
pub(crate) static FILTERS: [Filter; 11] = [
    Filter { name: "reach", check: reach, say: |_, _| "it is not registered in this workspace or above".into() },
    Filter { name: "use", check: may_use, say: say_use },
    Filter { name: "deletion", check: deletion, say: |_, _| "it is being deleted".into() },
    Filter { name: "pin", check: pin, say: say_pin },
    Filter { name: "policy", check: policy, say: say_policy },
    Filter { name: "constraints", check: constraints, say: say_constraints },
    Filter { name: "resource", check: resource, say: say_resource },
    Filter { name: "ready", check: ready, say: say_ready },
    Filter { name: "cordon", check: cordon, say: |_, _| "it is cordoned".into() },
    Filter { name: "taints", check: taints, say: say_taints },
    Filter { name: "room", check: room, say: say_room },
];

impl<'a> Context<'a> {
    pub(crate) fn new(question: &'a Question<'a>) -> Self {
        let here = question.previous.clusters.iter().filter(|c| c.phase == Phase::Active).map(|c| &c.uid).collect();
        Self { question, rules: Rules::of(question.workload, question.policies), spills: false, here }
    }

    /// Whether an active copy is on it: what keeps out new ones lets it stay.
    pub(crate) fn is_here(&self, cluster: &ClusterFacts) -> bool {
        self.here.contains(&cluster.info.uid)
    }

    /// The first refusal.
    pub(crate) fn refusal(&self, cluster: &ClusterFacts) -> Option<(&'static Filter, Reason)> {
        FILTERS.iter().find_map(|f| (f.check)(self, cluster).err().map(|reason| (f, reason)))
    }

    /// Whether the policy of this decision divides replicas, or may spill.
    pub(crate) fn divides(&self) -> bool {
        let divided = self.rules.winner.is_some_and(|p| p.policy.divides_by().is_some());
        self.question.workload.replicas.is_some() && (divided || self.spills)
    }

    /// How many pods of the workload fit in `limits` of a physical cluster, its own included.
    pub(crate) fn room(&self, cluster: &ClusterFacts, limits: &Resources) -> Option<i64> {
        let workload = self.question.workload;
        if workload.pods == 0 && workload.replicas.is_none() {
            return None;
        }
        let own = self
            .question
            .previous
            .on(&cluster.info.uid)
            .map_or(0, |copy| self.question.previous.replicas_of(copy, workload.pods));
        cluster.room(limits, &workload.requests, own)
    }

    /// Seconds until a taint is no longer tolerated, over all physical clusters with a copy.
    pub(crate) fn next_taint(&self) -> Option<i64> {
        let here = self.question.clusters.iter().filter(|c| self.is_here(c));
        let left = |taint: &TaintFact| {
            let until = taint.since.saturating_add(self.tolerated_for(&taint.taint)??);
            (until > self.question.now).then(|| until - self.question.now)
        };
        here.flat_map(|c| &c.info.taints).filter_map(left).min()
    }

    /// For how many seconds a taint is tolerated: `None` not at all, `Some(None)` for ever.
    fn tolerated_for(&self, taint: &Taint) -> Option<Option<i64>> {
        let matching = self.rules.tolerations().filter(|t| tolerates(t, taint));
        let seconds = matching.map(|t| t.toleration_seconds.filter(|_| taint.effect == "NoExecute"));
        seconds.reduce(|a, b| a.zip(b).map(|(a, b)| a.max(b)))
    }

    fn untolerated<'c>(&self, cluster: &'c ClusterFacts) -> Option<&'c TaintFact> {
        let keeps = self.is_here(cluster);
        cluster.info.taints.iter().find(|fact| match self.tolerated_for(&fact.taint) {
            Some(None) => false,
            // A taint that will not be tolerated for ever keeps new copies off at once.
            Some(Some(seconds)) => !keeps || fact.since.saturating_add(seconds) <= self.question.now,
            None => !keeps || fact.taint.effect == "NoExecute",
        })
    }
}

/// As in Kubernetes: key, value and effect match, an empty key with `Exists` tolerates all.
fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let exists = toleration.operator == "Exists";
    (toleration.effect.is_empty() || toleration.effect == taint.effect)
        && (toleration.key == taint.key || (toleration.key.is_empty() && exists))
        && (exists || toleration.value == taint.value)
}

fn pass_if(passes: bool, reason: Reason) -> Result<(), Reason> {
    if passes { Ok(()) } else { Err(reason) }
}

fn reach(_: &Context, cluster: &ClusterFacts) -> Result<(), Reason> {
    pass_if(cluster.in_reach, Reason::NotReachable)
}

fn may_use(ctx: &Context, cluster: &ClusterFacts) -> Result<(), Reason> {
    pass_if(cluster.may_use || ctx.is_here(cluster), Reason::NoUseRight)
}

fn say_use(_: &Context, cluster: &ClusterFacts) -> String {
    format!(
        "the workspace lacks the RBAC verb \"use\" on physicalclusters {:?} where it is registered",
        cluster.info.name
    )
}

fn deletion(_: &Context, cluster: &ClusterFacts) -> Result<(), Reason> {
    pass_if(!cluster.info.deleting, Reason::Deleting)
}

fn pin(ctx: &Context, cluster: &ClusterFacts) -> Result<(), Reason> {
    let pinned = ctx.question.workload.pin.as_ref();
    pass_if(pinned.is_none_or(|pin| pin.names.contains(&cluster.info.name)), Reason::PinnedElsewhere)
}

fn say_pin(ctx: &Context, _: &ClusterFacts) -> String {
    let names = ctx.question.workload.pin.as_ref().map(|pin| pin.names.join(","));
    format!("it is pinned to {}", names.unwrap_or_default())
}

/// A pin chooses in place of the policy.
fn policy(ctx: &Context, cluster: &ClusterFacts) -> Result<(), Reason> {
    let Some(winner) = ctx.rules.winner.filter(|_| ctx.question.workload.pin.is_none()) else { return Ok(()) };
    match winner.policy.standing(&cluster.info) {
        Standing::Tier(_) => Ok(()),
        Standing::Excluded => Err(Reason::Excluded),
        Standing::NotNamed => Err(Reason::NotNamed),
        Standing::NotSelected => Err(Reason::NotSelected),
    }
}

fn say_policy(ctx: &Context, cluster: &ClusterFacts) -> String {
    let title = ctx.rules.winner.map(|p| p.title()).unwrap_or_default();
    match policy(ctx, cluster) {
        Err(Reason::Excluded) => format!("{title} excludes it"),
        Err(Reason::NotNamed) => format!("{title} names others"),
        _ => format!("{title} selects other labels"),
    }
}

fn constraints(ctx: &Context, cluster: &ClusterFacts) -> Result<(), Reason> {
    pass_if(ctx.rules.forbidding(&cluster.info).is_none(), Reason::PolicyConstraint)
}

fn say_constraints(ctx: &Context, cluster: &ClusterFacts) -> String {
    let Some(policy) = ctx.rules.forbidding(&cluster.info) else { return String::new() };
    match policy.policy.fault() {
        Some(fault) => format!("{} allows nothing: {fault}", policy.title()),
        None => format!("{} does not allow it", policy.title()),
    }
}

fn resource(ctx: &Context, cluster: &ClusterFacts) -> Result<(), Reason> {
    let synced = &cluster.info.synced;
    let resource = || ctx.question.workload.resource.to_string();
    pass_if(synced.is_empty() || synced.contains(&resource()) || ctx.is_here(cluster), Reason::NotSynced)
}

fn say_resource(ctx: &Context, _: &ClusterFacts) -> String {
    format!("it does not take {}", ctx.question.workload.resource)
}

/// Not ready is no reason to leave: what is there may well run on.
fn ready(ctx: &Context, cluster: &ClusterFacts) -> Result<(), Reason> {
    pass_if(cluster.info.is_ready() || ctx.is_here(cluster), Reason::NotReady)
}

fn say_ready(_: &Context, cluster: &ClusterFacts) -> String {
    match &cluster.info.readiness {
        Readiness::Ready => "it is ready".into(),
        Readiness::NotReady(why) => format!("it is not ready: {why}"),
    }
}

fn cordon(ctx: &Context, cluster: &ClusterFacts) -> Result<(), Reason> {
    pass_if(!cluster.info.unschedulable || ctx.is_here(cluster), Reason::Cordoned)
}

fn taints(ctx: &Context, cluster: &ClusterFacts) -> Result<(), Reason> {
    pass_if(ctx.untolerated(cluster).is_none(), Reason::TaintNotTolerated)
}

fn say_taints(ctx: &Context, cluster: &ClusterFacts) -> String {
    let Some(TaintFact { taint, .. }) = ctx.untolerated(cluster) else { return String::new() };
    let value = if taint.value.is_empty() { String::new() } else { format!("={}", taint.value) };
    format!("its taint {}{value}:{} is not tolerated", taint.key, taint.effect)
}

/// Pods that must fit at once for a physical cluster to be taken at all.
fn least(ctx: &Context) -> i64 {
    let pods = ctx.question.workload.pods;
    if ctx.divides() { pods.min(1) } else { pods }
}

/// A copy that is there stays, also where it would not fit any more.
fn room(ctx: &Context, cluster: &ClusterFacts) -> Result<(), Reason> {
    if ctx.is_here(cluster) {
        return Ok(());
    }
    let fits = |limits| ctx.room(cluster, limits).is_none_or(|pods| pods >= least(ctx));
    pass_if(fits(&cluster.info.bounds), Reason::OutOfBounds)?;
    pass_if(fits(&cluster.info.allocatable), Reason::InsufficientCapacity)
}

/// Returns the sentence for a copy that stays where not all of its pods fit.
pub(crate) fn overfull(ctx: &Context, cluster: &ClusterFacts) -> Option<String> {
    let wanted = ctx.question.workload.pods;
    let limits = [(&cluster.info.bounds, "its bounds leave"), (&cluster.info.allocatable, "its nodes have")];
    let too_few = |(limits, what): (&Resources, &str)| {
        let pods = ctx.room(cluster, limits).filter(|pods| *pods < wanted)?;
        Some(format!("{what} room for {pods} of {wanted} pods; what runs stays"))
    };
    limits.into_iter().filter(|_| ctx.is_here(cluster) && !ctx.divides()).find_map(too_few)
}

fn say_room(ctx: &Context, cluster: &ClusterFacts) -> String {
    let (limits, what) = match room(ctx, cluster) {
        Err(Reason::OutOfBounds) => (&cluster.info.bounds, "its bounds leave"),
        _ => (&cluster.info.allocatable, "its nodes have"),
    };
    let pods = ctx.room(cluster, limits).unwrap_or(0);
    format!("{what} room for {pods} of {} pods", least(ctx))
}
