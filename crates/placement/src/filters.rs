//! Filters of physical clusters, as one table. Each gives a verdict with a stable reason and a sentence.

use std::collections::BTreeSet;

use portolan_types::{
    GroupKind, Uid, annotations,
    placement::{CopyPhase, ResourceAmounts, Taint, Toleration},
};

use crate::{
    affinity::WorkloadTerms,
    cluster_facts::{ClusterFacts, Readiness, TaintFact},
    custom_kinds,
    decide::{PlacementInputs, divides_by},
    exclusion_reason::ExclusionReason,
    policy::{ApplicablePolicies, ConstraintVerdict, SelectorMatch},
};

/// Context of the filters.
pub(crate) struct FilterContext<'a> {
    pub(crate) question: &'a PlacementInputs<'a>,
    pub(crate) rules: ApplicablePolicies<'a>,
    pub(crate) terms: WorkloadTerms<'a>,
    /// True if the replicas are divided because a copy outgrew its bounds.
    pub(crate) spills: bool,
    /// Physical cluster that passes every filter, to learn if that would change the decision.
    pub(crate) admitted: Option<&'a Uid>,
    here: BTreeSet<&'a Uid>,
}

/// Filter: `check` decides, `message` explains a rejection.
pub(crate) struct ClusterFilter {
    pub(crate) name: &'static str,
    pub(crate) check: fn(&FilterContext, &ClusterFacts) -> Result<(), ExclusionReason>,
    pub(crate) message: fn(&FilterContext, &ClusterFacts) -> String,
}

/// Filters in the order in which their rejections are named.
pub(crate) static FILTERS: &[ClusterFilter] = &[
    ClusterFilter {
        name: "reach",
        check: reach,
        message: |_, _| "it is not registered in this workspace or an ancestor".into(),
    },
    ClusterFilter { name: "use", check: may_use, message: use_message },
    ClusterFilter { name: "deletion", check: deletion, message: |_, _| "it is being deleted".into() },
    ClusterFilter { name: "drain", check: drain, message: |_, _| "it is being drained".into() },
    ClusterFilter { name: "pin", check: pin, message: pin_message },
    ClusterFilter { name: "policy", check: policy, message: policy_message },
    ClusterFilter { name: "constraints", check: constraints, message: constraints_message },
    ClusterFilter { name: "resource", check: resource, message: resource_message },
    ClusterFilter { name: "kind", check: custom_kinds::check, message: custom_kinds::message },
    ClusterFilter { name: "ready", check: ready, message: ready_message },
    ClusterFilter { name: "cordon", check: cordon, message: |_, _| "it is cordoned".into() },
    ClusterFilter { name: "taints", check: taints, message: taints_message },
    ClusterFilter { name: "affinity", check: affinity, message: affinity_message },
    ClusterFilter { name: "room", check: room, message: room_message },
];

impl<'a> FilterContext<'a> {
    pub(crate) fn new(question: &'a PlacementInputs<'a>) -> Self {
        let here = question.previous.clusters.iter().filter(|c| c.phase == CopyPhase::Active).map(|c| &c.uid).collect();
        let rules = ApplicablePolicies::of(question.workload, question.policies);
        let terms = WorkloadTerms::of(question, &rules);
        Self { question, rules, terms, spills: false, admitted: None, here }
    }

    /// Returns true if an active copy is there. It may stay where a new one may not go.
    pub(crate) fn is_here(&self, cluster: &ClusterFacts) -> bool {
        self.here.contains(&cluster.info.uid)
    }

    /// Returns true if a drain has the workload leave it now.
    pub(crate) fn leaves(&self, cluster: &ClusterFacts) -> bool {
        self.question.previous.drain.as_deref().is_some_and(|mark| mark.leaves(&cluster.info.uid))
    }

    /// Returns the first rejection.
    pub(crate) fn refusal(&self, cluster: &ClusterFacts) -> Option<(&'static ClusterFilter, ExclusionReason)> {
        if self.admitted == Some(&cluster.info.uid) {
            return None;
        }
        self.failing(cluster).next()
    }

    /// Returns all rejections.
    pub(crate) fn failing(
        &self,
        cluster: &ClusterFacts,
    ) -> impl Iterator<Item = (&'static ClusterFilter, ExclusionReason)> {
        FILTERS.iter().filter_map(|f| (f.check)(self, cluster).err().map(|reason| (f, reason)))
    }

    /// Returns true if the replicas are divided, by the policy or because a copy outgrew its bounds.
    pub(crate) fn divides(&self) -> bool {
        let is_spilled = self.spills && self.question.workload.replicas.is_some();
        is_spilled || divides_by(self).is_some()
    }

    /// Returns the number of pods of the workload that fit in `limits`, its own included.
    pub(crate) fn room(&self, cluster: &ClusterFacts, limits: &ResourceAmounts) -> Option<i64> {
        let workload = self.question.workload;
        if workload.pods == 0 && workload.replicas.is_none() {
            return None;
        }
        let occupied = self.question.previous.occupied(workload.pods);
        let own = occupied.into_iter().find(|(uid, _)| **uid == cluster.info.uid).map_or(0, |(_, own)| own);
        cluster.room(limits, &workload.requests, own)
    }

    /// Returns the number of pods that must fit for a physical cluster to be taken.
    pub(crate) fn required_pods(&self) -> i64 {
        let pods = self.question.workload.pods;
        if self.divides() { pods.min(1) } else { pods }
    }

    /// Returns the seconds until the next taint is no longer tolerated on a physical cluster with a copy.
    pub(crate) fn next_taint(&self) -> Option<i64> {
        let here = self.question.clusters.iter().filter(|c| self.is_here(c));
        let left = |taint: &TaintFact| {
            let until = taint.since.saturating_add(self.tolerated_for(&taint.taint)??);
            (until > self.question.now).then(|| until - self.question.now)
        };
        here.flat_map(|c| &c.info.taints).filter_map(left).min()
    }

    /// Returns the seconds for which a taint is tolerated: `None` not at all, `Some(None)` forever.
    fn tolerated_for(&self, taint: &Taint) -> Option<Option<i64>> {
        let matching = self.rules.tolerations().filter(|t| tolerates(t, taint));
        let seconds = matching.map(|t| t.toleration_seconds.filter(|_| taint.effect == "NoExecute"));
        let seconds = seconds.reduce(|a, b| a.zip(b).map(|(a, b)| a.max(b)));
        seconds.or_else(|| default_toleration(&self.question.workload.kind, taint))
    }

    pub(crate) fn untolerated<'c>(&self, cluster: &'c ClusterFacts) -> Option<&'c TaintFact> {
        let keeps = self.is_here(cluster);
        let written_off = self.question.workload.written_off.contains(&cluster.info.name);
        cluster.info.taints.iter().find(|fact| match self.tolerated_for(&fact.taint) {
            _ if written_off && fact.is_unreachable() => true,
            Some(None) => false,
            // A taint that is tolerated for a time keeps new copies off immediately.
            Some(Some(seconds)) => !keeps || fact.since.saturating_add(seconds) <= self.question.now,
            None => !keeps || fact.taint.effect == "NoExecute",
        })
    }
}

/// Default seconds for which the taint of an unreachable physical cluster is tolerated, as pods tolerate the taint of
/// an unreachable node.
const DEFAULT_TOLERATION_SECONDS: i64 = 300;

/// Returns the toleration of a taint that no policy mentions. The copies of a DaemonSet stay forever: they are for the
/// nodes there, as in Kubernetes.
fn default_toleration(kind: &GroupKind, taint: &Taint) -> Option<Option<i64>> {
    let is_unreachable = taint.key == annotations::UNREACHABLE_TAINT && taint.effect == "NoExecute";
    let is_for_nodes = &*kind.kind == "DaemonSet" && &*kind.group == "apps";
    is_unreachable.then(|| (!is_for_nodes).then_some(DEFAULT_TOLERATION_SECONDS))
}

/// Returns true if a toleration matches a taint, as in Kubernetes: key, value and effect match; an empty key with
/// `Exists` tolerates all.
fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let exists = toleration.operator == "Exists";
    (toleration.effect.is_empty() || toleration.effect == taint.effect)
        && (toleration.key == taint.key || (toleration.key.is_empty() && exists))
        && (exists || toleration.value == taint.value)
}

fn pass_if(passes: bool, reason: ExclusionReason) -> Result<(), ExclusionReason> {
    if passes { Ok(()) } else { Err(reason) }
}

fn reach(_: &FilterContext, cluster: &ClusterFacts) -> Result<(), ExclusionReason> {
    pass_if(cluster.in_reach, ExclusionReason::NotReachable)
}

fn may_use(ctx: &FilterContext, cluster: &ClusterFacts) -> Result<(), ExclusionReason> {
    pass_if(cluster.may_use || ctx.is_here(cluster), ExclusionReason::NoUseRight)
}

fn use_message(_: &FilterContext, cluster: &ClusterFacts) -> String {
    format!(
        "the workspace lacks the RBAC verb \"use\" on physicalclusters {:?} where it is registered",
        cluster.info.name
    )
}

/// Checks for deletion. If the physical cluster is also drained, its objects leave by the rules of the drain.
fn deletion(ctx: &FilterContext, cluster: &ClusterFacts) -> Result<(), ExclusionReason> {
    let waits = cluster.info.draining && ctx.is_here(cluster);
    pass_if(!cluster.info.deleting || waits, ExclusionReason::Deleting)
}

/// Checks for a drain. Existing copies stay until the drain moves them.
fn drain(ctx: &FilterContext, cluster: &ClusterFacts) -> Result<(), ExclusionReason> {
    let takes = !cluster.info.draining || ctx.is_here(cluster);
    pass_if(takes && !ctx.leaves(cluster), ExclusionReason::Draining)
}

fn pin(ctx: &FilterContext, cluster: &ClusterFacts) -> Result<(), ExclusionReason> {
    let pinned = ctx.question.workload.pin.as_ref();
    pass_if(pinned.is_none_or(|pin| pin.names.contains(&cluster.info.name)), ExclusionReason::PinnedElsewhere)
}

fn pin_message(ctx: &FilterContext, _: &ClusterFacts) -> String {
    let names = ctx.question.workload.pin.as_ref().map(|pin| pin.names.join(","));
    format!("it is pinned to {}", names.unwrap_or_default())
}

/// Checks the policy. A pin replaces it. An expression without a value keeps new copies off, and moves none.
fn policy(ctx: &FilterContext, cluster: &ClusterFacts) -> Result<(), ExclusionReason> {
    if ctx.rules.undecided.is_some() {
        return pass_if(ctx.is_here(cluster), ExclusionReason::ExpressionFailed);
    }
    let Some(winner) = ctx.rules.winner.filter(|_| ctx.question.workload.pin.is_none()) else { return Ok(()) };
    match winner.policy.standing(&cluster.info) {
        SelectorMatch::Tier(_) => Ok(()),
        SelectorMatch::Excluded => Err(ExclusionReason::Excluded),
        SelectorMatch::NotNamed => Err(ExclusionReason::NotNamed),
        SelectorMatch::NotSelected => Err(ExclusionReason::NotSelected),
        SelectorMatch::NotMatched => Err(ExclusionReason::NotMatched),
        SelectorMatch::Unknown(..) => pass_if(ctx.is_here(cluster), ExclusionReason::ExpressionFailed),
    }
}

fn policy_message(ctx: &FilterContext, cluster: &ClusterFacts) -> String {
    if let Some(undecided) = &ctx.rules.undecided {
        return undecided.clone();
    }
    let Some(winner) = ctx.rules.winner else { return String::new() };
    let title = winner.title();
    match winner.policy.standing(&cluster.info) {
        SelectorMatch::Excluded => format!("{title} excludes it"),
        SelectorMatch::NotNamed => format!("{title} names others"),
        SelectorMatch::NotMatched => format!("the clusters.cel of {title} is false for it"),
        SelectorMatch::Unknown(_, why) => format!("the clusters.cel of {title} failed for it: {why}"),
        SelectorMatch::NotSelected | SelectorMatch::Tier(_) => format!("{title} selects other labels"),
    }
}

fn constraints(ctx: &FilterContext, cluster: &ClusterFacts) -> Result<(), ExclusionReason> {
    match ctx.rules.verdict(ctx.question.workload, &cluster.info) {
        ConstraintVerdict::Allowed => Ok(()),
        ConstraintVerdict::Forbidden(_) => Err(ExclusionReason::PolicyConstraint),
        ConstraintVerdict::Unknown(..) => pass_if(ctx.is_here(cluster), ExclusionReason::ExpressionFailed),
    }
}

fn constraints_message(ctx: &FilterContext, cluster: &ClusterFacts) -> String {
    match ctx.rules.verdict(ctx.question.workload, &cluster.info) {
        ConstraintVerdict::Allowed => String::new(),
        ConstraintVerdict::Unknown(policy, why) => format!("an expression of {} failed: {why}", policy.title()),
        ConstraintVerdict::Forbidden(policy) => match policy.policy.fault() {
            Some(fault) => format!("{} allows nothing: {fault}", policy.title()),
            None => format!("{} does not allow it", policy.title()),
        },
    }
}

/// Returns the sentence about an expression without a value for a physical cluster where a copy stays.
pub(crate) fn unknown_expression(ctx: &FilterContext, cluster: &ClusterFacts) -> Option<String> {
    let info = &cluster.info;
    let own = ctx.rules.winner.filter(|_| ctx.question.workload.pin.is_none()).map(|p| p.policy.standing(info));
    let message = match (own, ctx.rules.verdict(ctx.question.workload, info)) {
        (Some(SelectorMatch::Unknown(..)), _) => policy_message(ctx, cluster),
        (_, ConstraintVerdict::Unknown(..)) => constraints_message(ctx, cluster),
        _ => return None,
    };
    ctx.is_here(cluster).then(|| format!("{message}; what is there stays"))
}

fn affinity(ctx: &FilterContext, cluster: &ClusterFacts) -> Result<(), ExclusionReason> {
    match ctx.terms.refusal(cluster, ctx.is_here(cluster)) {
        Some((reason, _)) => Err(reason),
        None => Ok(()),
    }
}

fn affinity_message(ctx: &FilterContext, cluster: &ClusterFacts) -> String {
    ctx.terms.refusal(cluster, ctx.is_here(cluster)).map(|(_, message)| message).unwrap_or_default()
}

fn resource(ctx: &FilterContext, cluster: &ClusterFacts) -> Result<(), ExclusionReason> {
    let synced = &cluster.info.synced;
    let resource = || ctx.question.workload.resource.to_string();
    pass_if(synced.is_empty() || synced.contains(&resource()) || ctx.is_here(cluster), ExclusionReason::NotSynced)
}

fn resource_message(ctx: &FilterContext, _: &ClusterFacts) -> String {
    format!("it does not take {}", ctx.question.workload.resource)
}

/// Checks readiness. An existing copy may run on, so it stays.
fn ready(ctx: &FilterContext, cluster: &ClusterFacts) -> Result<(), ExclusionReason> {
    pass_if(cluster.info.is_ready() || ctx.is_here(cluster), ExclusionReason::NotReady)
}

fn ready_message(_: &FilterContext, cluster: &ClusterFacts) -> String {
    match &cluster.info.readiness {
        Readiness::Ready => "it is ready".into(),
        Readiness::NotReady(why) => format!("it is not ready: {why}"),
    }
}

fn cordon(ctx: &FilterContext, cluster: &ClusterFacts) -> Result<(), ExclusionReason> {
    pass_if(!cluster.info.unschedulable || ctx.is_here(cluster), ExclusionReason::Cordoned)
}

fn taints(ctx: &FilterContext, cluster: &ClusterFacts) -> Result<(), ExclusionReason> {
    pass_if(ctx.untolerated(cluster).is_none(), ExclusionReason::TaintNotTolerated)
}

fn taints_message(ctx: &FilterContext, cluster: &ClusterFacts) -> String {
    let Some(TaintFact { taint, .. }) = ctx.untolerated(cluster) else { return String::new() };
    let value = if taint.value.is_empty() { String::new() } else { format!("={}", taint.value) };
    let refusal = format!("its taint {}{value}:{} is not tolerated", taint.key, taint.effect);
    let winner = ctx.rules.winner.filter(|p| p.policy.spec.tolerations.iter().any(|t| tolerates(t, taint)));
    match (winner, ctx.rules.constraints.first()) {
        (Some(winner), Some(constraint)) if winner.reference != constraint.reference => {
            format!("{refusal}: where {} holds, tolerations of {} do not count", constraint.title(), winner.title())
        }
        _ => refusal,
    }
}

/// Checks the room. An existing copy stays, even if it does not fit any more.
fn room(ctx: &FilterContext, cluster: &ClusterFacts) -> Result<(), ExclusionReason> {
    if ctx.is_here(cluster) {
        return Ok(());
    }
    let fits = |limits| ctx.room(cluster, limits).is_none_or(|pods| pods >= ctx.required_pods());
    pass_if(fits(&cluster.info.bounds), ExclusionReason::OutOfBounds)?;
    pass_if(fits(&cluster.info.allocatable), ExclusionReason::InsufficientCapacity)
}

/// Returns the sentence for a copy that stays where not all of its pods fit.
pub(crate) fn overfull(ctx: &FilterContext, cluster: &ClusterFacts) -> Option<String> {
    let wanted = ctx.question.workload.pods;
    let limits = [(&cluster.info.bounds, "its bounds leave"), (&cluster.info.allocatable, "its nodes have")];
    let too_few = |(limits, what): (&ResourceAmounts, &str)| {
        let pods = ctx.room(cluster, limits).filter(|pods| *pods < wanted)?;
        Some(format!("{what} room for {pods} of {wanted} pods; what runs stays"))
    };
    limits.into_iter().filter(|_| ctx.is_here(cluster) && !ctx.divides()).find_map(too_few)
}

fn room_message(ctx: &FilterContext, cluster: &ClusterFacts) -> String {
    let (limits, what) = match room(ctx, cluster) {
        Err(ExclusionReason::OutOfBounds) => (&cluster.info.bounds, "its bounds leave"),
        _ => (&cluster.info.allocatable, "its nodes have"),
    };
    let pods = ctx.room(cluster, limits).unwrap_or(0);
    format!("{what} room for {pods} of {} pods", ctx.required_pods())
}
