//! Kinds that a policy can divide.

use portolan_types::{
    GroupKind,
    placement::{DivideBy, Phase},
};

use crate::{filters::Context, policy::Policy, role::is_workload_kind};

/// Way in which `Divide` applies to a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sharing {
    /// The copies share the replicas.
    Replicas,
    /// A part of it is not the same work: the indexes of a Job and the ordinals of a StatefulSet start at 0 in each copy.
    WholeOnOne,
    /// It has as many pods as a physical cluster has nodes.
    PerNode,
}

fn sharing(kind: &GroupKind) -> Sharing {
    let is_among = |kinds: &[(&str, &str)]| kinds.contains(&(&*kind.group, &*kind.kind));
    if is_among(&WHOLE_ON_ONE) {
        return Sharing::WholeOnOne;
    }
    if is_among(&PER_NODE) { Sharing::PerNode } else { Sharing::Replicas }
}

/// Kinds that run as a whole.
const WHOLE_ON_ONE: [(&str, &str); 4] = [("", "Pod"), ("apps", "StatefulSet"), ("batch", "CronJob"), ("batch", "Job")];
/// Kinds that have a pod per node.
const PER_NODE: [(&str, &str); 1] = [("apps", "DaemonSet")];

/// By what the deciding policy divides the replicas of the workload; `None` when it does not, or cannot.
pub(super) fn divides_by(ctx: &Context<'_>) -> Option<DivideBy> {
    let workload = ctx.question.workload;
    let by = wished(ctx).filter(|_| workload.replicas.is_some())?;
    (sharing(&workload.kind) == Sharing::Replicas || was_divided(ctx)).then_some(by)
}

/// Returns true when the deciding policy divides, and the workload can only run as a whole.
pub(super) fn runs_whole_on_one(ctx: &Context<'_>) -> bool {
    let is_whole = sharing(&ctx.question.workload.kind) == Sharing::WholeOnOne;
    is_whole && wished(ctx).is_some() && !was_divided(ctx)
}

/// Returns the sentence for a workload that the deciding policy would divide, and that cannot be divided.
pub(super) fn note(ctx: &Context<'_>) -> Option<String> {
    let kind = &ctx.question.workload.kind;
    wished(ctx).filter(|_| is_workload_kind(&kind.group, &kind.kind))?;
    match sharing(kind) {
        Sharing::Replicas => None,
        Sharing::WholeOnOne if was_divided(ctx) => {
            Some(format!("a {} is not divided any more, but this one was, and stays so", kind.kind))
        }
        Sharing::WholeOnOne => Some(format!("a {} is not divided: it runs whole on one physical cluster", kind.kind)),
        Sharing::PerNode => Some(format!("a {} is not divided: it runs on the nodes of each", kind.kind)),
    }
}

fn wished(ctx: &Context<'_>) -> Option<DivideBy> {
    ctx.rules.winner.and_then(|policy| policy.policy.divides_by())
}

/// Returns true when several copies share the replicas already. To end that would take running pods and their volumes away.
fn was_divided(ctx: &Context<'_>) -> bool {
    let active = || ctx.question.previous.clusters.iter().filter(|copy| copy.phase == Phase::Active);
    active().count() > 1 && active().all(|copy| copy.replicas.is_some())
}

impl Policy {
    /// Returns a sentence for each part of it that has no effect on anything that it is about.
    pub fn parts_without_effect(&self) -> Vec<String> {
        let mut found = Vec::new();
        let divides = self.divides_by().is_some() && !self.is_constraint();
        let named = |kinds: &[(&str, &'static str)]| -> Vec<&'static str> {
            let named = kinds.iter().filter(|(group, kind)| divides && self.is_about_kind(group, kind));
            named.map(|(_, kind)| *kind).collect()
        };
        for (kinds, instead) in [
            (&WHOLE_ON_ONE[..], "each runs whole on one physical cluster"),
            (&PER_NODE[..], "it runs on the nodes of each"),
        ] {
            let kinds = named(kinds);
            if !kinds.is_empty() {
                let kinds = kinds.join(", ");
                found.push(format!("spec.replicas.mode: Divide has no effect on {kinds}: {instead}"));
            }
        }
        let spec = &self.spec;
        let fields = [
            ("spec.replicas", spec.replicas.is_some()),
            ("spec.spread", !spec.spread.is_empty()),
            ("spec.priority", spec.priority != 0),
        ];
        let fields: Vec<&str> = fields.iter().filter(|(_, is_set)| *is_set).map(|(field, _)| *field).collect();
        if self.is_constraint() && !fields.is_empty() {
            found.push(format!("{} has no effect with enforcement Constraint", fields.join(", ")));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::fixtures::{Case, chosen, clusters, constraint, policy, workload};

    fn divided(group: &str, kind: &str) -> Case {
        let object = json!({"metadata": {"name": "w"}, "spec": {
            "replicas": 6, "completions": 6, "parallelism": 2, "completionMode": "Indexed", "containers": [{}],
            "template": {"spec": {"containers": [{}]}}}});
        let by = policy(1, "p", json!({"count": "All", "replicas": {"mode": "Divide"}}));
        Case::new(workload(group, kind, object), clusters(&["east", "west"])).by(by)
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

    #[test]
    fn no_part_of_a_policy_is_ignored_silently() {
        let parts = |policy: crate::LeveledPolicy| policy.policy.parts_without_effect();
        let about = |kind: &str, spec: serde_json::Value| {
            let mut spec = spec;
            spec["resources"] = json!([{"apiGroup": "*", "kinds": [kind]}]);
            spec
        };
        let divide = json!({"replicas": {"mode": "Divide"}});
        assert_eq!(parts(policy(1, "p", about("Deployment", divide.clone()))), Vec::<String>::new());
        assert_eq!(parts(policy(1, "p", about("Job", json!({"count": 2})))), Vec::<String>::new());
        let job = parts(policy(1, "p", about("Job", divide.clone())));
        assert_eq!(job.len(), 1);
        assert!(job[0].starts_with("spec.replicas.mode: Divide has no effect on Job: "), "{job:?}");
        let bound = json!({"replicas": {"mode": "Divide"}, "spread": [{"topologyKey": "zone"}], "priority": 3});
        let any = parts(policy(1, "p", divide));
        assert_eq!(any.len(), 2, "a policy about every kind is about those, too: {any:?}");
        let expected = "spec.replicas, spec.spread, spec.priority has no effect with enforcement Constraint";
        assert_eq!(parts(constraint(1, "c", about("Job", bound))), [expected]);
    }
}
