//! Kinds that a policy can divide.

use portolan_types::{
    GroupKind,
    placement::{DivideBy, DrainMark, DrainStage, PlacementRecord},
};

use super::job_parts;
use crate::{filters::FilterContext, object_role::is_workload_kind};

/// Way in which `Divide` applies to a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DivisionSupport {
    /// The copies share the replicas.
    Replicas,
    /// The copies share the ordinals, and with them the replicas.
    Ordinals,
    /// The copies share the completions, and with them the pods that run at once.
    Completions,
    /// It runs as a whole.
    WholeOnOne,
    /// It runs on each node of a physical cluster.
    PerNode,
}

fn sharing(kind: &GroupKind) -> DivisionSupport {
    let is_among = |kinds: &[(&str, &str)]| kinds.contains(&(&*kind.group, &*kind.kind));
    if is_among(&WHOLE_ON_ONE) {
        return DivisionSupport::WholeOnOne;
    }
    if has_ordinals(kind) {
        return DivisionSupport::Ordinals;
    }
    if is_among(&[("batch", "Job")]) {
        return DivisionSupport::Completions;
    }
    if is_among(&PER_NODE) { DivisionSupport::PerNode } else { DivisionSupport::Replicas }
}

/// Returns true for the kind whose pods have ordinals.
pub(super) fn has_ordinals(kind: &GroupKind) -> bool {
    (&*kind.group, &*kind.kind) == ("apps", "StatefulSet")
}

/// Kinds that run as a whole.
pub(crate) const WHOLE_ON_ONE: [(&str, &str); 2] = [("", "Pod"), ("batch", "CronJob")];
/// Kinds that have a pod per node.
pub(crate) const PER_NODE: [(&str, &str); 1] = [("apps", "DaemonSet")];

/// Returns the basis of division of the deciding policy; `None` if it does not divide, or cannot.
pub(crate) fn divides_by(ctx: &FilterContext<'_>) -> Option<DivideBy> {
    let workload = ctx.question.workload;
    if keeps_ordinals(ctx) || job_parts::are_kept(ctx) {
        return Some(wished(ctx).unwrap_or(DivideBy::Equal));
    }
    let by = wished(ctx).filter(|_| workload.replicas.is_some())?;
    (!is_whole(ctx) || was_divided(ctx)).then_some(by)
}

/// Returns true when the deciding policy divides, and the workload can only run as a whole.
pub(super) fn runs_whole_on_one(ctx: &FilterContext<'_>) -> bool {
    is_whole(ctx) && wished(ctx).is_some() && !was_divided(ctx)
}

/// Returns true for a kind that runs as a whole, and for a StatefulSet that does so already: its ordinals do not move.
fn is_whole(ctx: &FilterContext<'_>) -> bool {
    match sharing(&ctx.question.workload.kind) {
        DivisionSupport::WholeOnOne => true,
        DivisionSupport::Completions => job_parts::reason_to_run_whole(ctx).is_some(),
        DivisionSupport::Ordinals => {
            is_there_whole(ctx.question.previous) || (moves_whole(ctx.question.previous) && !keeps_ordinals(ctx))
        }
        DivisionSupport::Replicas | DivisionSupport::PerNode => false,
    }
}

/// Returns true while a copy has every ordinal. A leaving copy keeps them until it is gone.
fn is_there_whole(previous: &PlacementRecord) -> bool {
    previous.clusters.iter().any(|copy| copy.replicas.is_none())
}

/// Returns true while a drain takes a whole copy away or brings it back: it stays whole, so that the undo is exact.
fn moves_whole(previous: &PlacementRecord) -> bool {
    let moves = |mark: &&DrainMark| matches!(mark.stage, DrainStage::Leaving | DrainStage::Returning);
    let mark = previous.drain.as_deref().filter(moves);
    mark.is_some_and(|mark| mark.before.iter().any(|copy| copy.replicas.is_none()))
}

/// Returns true for a StatefulSet whose ordinals are divided: they stay where they are, even if the policy has changed.
fn keeps_ordinals(ctx: &FilterContext<'_>) -> bool {
    let previous = ctx.question.previous;
    previous.ordinals.keys().any(|uid| previous.on(uid).is_some())
}

/// Returns the sentence for a workload that the deciding policy would divide, and that cannot be divided.
pub(super) fn note(ctx: &FilterContext<'_>) -> Option<String> {
    let kind = &ctx.question.workload.kind;
    if keeps_ordinals(ctx) && wished(ctx).is_none() {
        return Some(format!("the ordinals of this {} stay divided: none moves while its copy is there", kind.kind));
    }
    if job_parts::are_kept(ctx) && wished(ctx).is_none() {
        return Some("the parts of this Job stay divided: its completions cannot change once it has copies".to_owned());
    }
    wished(ctx).filter(|_| is_workload_kind(&kind.group, &kind.kind))?;
    match sharing(kind) {
        DivisionSupport::Replicas => None,
        DivisionSupport::Ordinals if is_whole(ctx) => Some(format!(
            "this {} runs whole on one physical cluster, and is not divided: no ordinal moves while its copy is there",
            kind.kind
        )),
        DivisionSupport::Ordinals if was_divided(ctx) && !keeps_ordinals(ctx) => {
            Some(format!("the copies of this {} have the same ordinals, as an earlier version divided it", kind.kind))
        }
        DivisionSupport::Ordinals => None,
        DivisionSupport::Completions => job_parts::reason_to_run_whole(ctx)
            .map(|reason| format!("this Job runs whole on one physical cluster, and is not divided: {reason}")),
        DivisionSupport::WholeOnOne => {
            Some(format!("a {} is not divided: it runs whole on one physical cluster", kind.kind))
        }
        DivisionSupport::PerNode => Some(format!("a {} is not divided: it runs on the nodes of each", kind.kind)),
    }
}

fn wished(ctx: &FilterContext<'_>) -> Option<DivideBy> {
    ctx.rules.winner.and_then(|policy| policy.policy.divides_by())
}

/// Returns true when several copies share the replicas already. To end that would take running pods and their volumes
/// away.
fn was_divided(ctx: &FilterContext<'_>) -> bool {
    let copies = &ctx.question.previous.clusters;
    let is_job = ctx.question.workload.is_job();
    !is_job && copies.len() > 1 && copies.iter().all(|copy| copy.replicas.is_some())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::fixtures::{PlacementCase, chosen, clusters, policy, workload};

    fn divided(group: &str, kind: &str) -> PlacementCase {
        let object = json!({"metadata": {"name": "w"}, "spec": {
            "replicas": 6, "completions": 6, "parallelism": 2, "completionMode": "Indexed", "containers": [{}],
            "template": {"spec": {"containers": [{}]}}}});
        let by = policy(1, "p", json!({"count": "All", "replicas": {"mode": "Divide"}}));
        PlacementCase::new(workload(group, kind, object), clusters(&["east", "west"])).by(by)
    }

    #[test]
    fn an_indivisible_object_runs_whole_on_one_cluster_with_a_condition() {
        for (group, kind, expected, note) in [
            ("apps", "Deployment", "east*3 west*3", None),
            ("apps", "ReplicaSet", "east*3 west*3", None),
            ("", "ReplicationController", "east*3 west*3", None),
            ("db.io", "Cluster", "east*3 west*3", None),
            ("batch", "CronJob", "east", Some("a CronJob is not divided: it runs whole on one physical cluster")),
            ("apps", "StatefulSet", "east*3 west*3", None),
            ("", "Pod", "east", Some("a Pod is not divided: it runs whole on one physical cluster")),
            ("apps", "DaemonSet", "east west", Some("a DaemonSet is not divided: it runs on the nodes of each")),
            ("", "ConfigMap", "east west", None),
        ] {
            let decision = divided(group, kind).decide();
            assert_eq!(chosen(&decision), expected, "{kind}");
            assert_eq!(decision.held.first().map(String::as_str), note, "{kind}");
        }
    }

    #[test]
    fn a_set_that_was_divided_keeps_its_parts() {
        let set = divided("apps", "StatefulSet").on("east*4 west*2");
        assert_eq!(chosen(&set.decide()), "east*3 west*3");
        let note = "the copies of this StatefulSet have the same ordinals, as an earlier version divided it";
        assert_eq!(set.decide().held, [note]);
        assert!(set.decide().ordinals.is_empty());
    }

    #[test]
    fn a_set_that_runs_whole_stays_so() {
        let set = divided("apps", "StatefulSet").on("west");
        assert_eq!(chosen(&set.decide()), "west");
        let note = "this StatefulSet runs whole on one physical cluster, and is not divided: no ordinal moves while its \
                    copy is there";
        assert_eq!(set.decide().held, [note]);
    }
}
