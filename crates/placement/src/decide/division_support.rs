//! Kinds that a policy can divide.

use portolan_types::{
    GroupKind,
    placement::{CopyPhase, DivideBy},
};

use crate::{filters::FilterContext, object_role::is_workload_kind};

/// Way in which `Divide` applies to a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DivisionSupport {
    /// The copies share the replicas.
    Replicas,
    /// It runs as a whole: the indexes of a Job and the ordinals of a StatefulSet start at 0 in each copy.
    WholeOnOne,
    /// It runs on each node of a physical cluster.
    PerNode,
}

fn sharing(kind: &GroupKind) -> DivisionSupport {
    let is_among = |kinds: &[(&str, &str)]| kinds.contains(&(&*kind.group, &*kind.kind));
    if is_among(&WHOLE_ON_ONE) {
        return DivisionSupport::WholeOnOne;
    }
    if is_among(&PER_NODE) { DivisionSupport::PerNode } else { DivisionSupport::Replicas }
}

/// Kinds that run as a whole.
pub(crate) const WHOLE_ON_ONE: [(&str, &str); 4] =
    [("", "Pod"), ("apps", "StatefulSet"), ("batch", "CronJob"), ("batch", "Job")];
/// Kinds that have a pod per node.
pub(crate) const PER_NODE: [(&str, &str); 1] = [("apps", "DaemonSet")];

/// Returns the basis of division of the deciding policy; `None` if it does not divide, or cannot.
pub(crate) fn divides_by(ctx: &FilterContext<'_>) -> Option<DivideBy> {
    let workload = ctx.question.workload;
    let by = wished(ctx).filter(|_| workload.replicas.is_some())?;
    (sharing(&workload.kind) == DivisionSupport::Replicas || was_divided(ctx)).then_some(by)
}

/// Returns true when the deciding policy divides, and the workload can only run as a whole.
pub(super) fn runs_whole_on_one(ctx: &FilterContext<'_>) -> bool {
    let is_whole = sharing(&ctx.question.workload.kind) == DivisionSupport::WholeOnOne;
    is_whole && wished(ctx).is_some() && !was_divided(ctx)
}

/// Returns the sentence for a workload that the deciding policy would divide, and that cannot be divided.
pub(super) fn note(ctx: &FilterContext<'_>) -> Option<String> {
    let kind = &ctx.question.workload.kind;
    wished(ctx).filter(|_| is_workload_kind(&kind.group, &kind.kind))?;
    match sharing(kind) {
        DivisionSupport::Replicas => None,
        DivisionSupport::WholeOnOne if was_divided(ctx) => {
            Some(format!("a {} is not divided any more, but this one was, and stays so", kind.kind))
        }
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
    let active = || ctx.question.previous.clusters.iter().filter(|copy| copy.phase == CopyPhase::Active);
    active().count() > 1 && active().all(|copy| copy.replicas.is_some())
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
    fn what_cannot_be_divided_runs_whole_on_one_physical_cluster_and_says_so() {
        for (group, kind, expected, note) in [
            ("apps", "Deployment", "east*3 west*3", None),
            ("apps", "ReplicaSet", "east*3 west*3", None),
            ("", "ReplicationController", "east*3 west*3", None),
            ("db.io", "Cluster", "east*3 west*3", None),
            ("batch", "Job", "east", Some("a Job is not divided: it runs whole on one physical cluster")),
            (
                "apps",
                "StatefulSet",
                "east",
                Some("a StatefulSet is not divided: it runs whole on one physical cluster"),
            ),
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
        assert_eq!(set.decide().held, ["a StatefulSet is not divided any more, but this one was, and stays so"]);
        assert_eq!(chosen(&divided("apps", "StatefulSet").on("west").decide()), "west", "one that was not stays whole");
    }
}
