//! Overrides: changes of policies on copies, and fields that they yield to the physical clusters.

use std::collections::BTreeSet;

use portolan_types::{
    Uid,
    json_patch::{PatchBudget, PatchFailure, apply_within},
    object,
    placement::{AutoscalingMode, CopyPhase, Override, PlacedOverride, PlacementRecord, PolicyRef},
};
use serde_json::Value;

use crate::{
    cluster_facts::{ClusterFacts, ClusterInfo},
    decide::dispatch_suspension,
    policy::{ApplicablePolicies, LeveledPolicy},
    transition::PlacementStep,
    workload::Workload,
};

/// Adds to the record of `step` the overrides of the policies of all levels, proposals and constraints alike: the most
/// specific level first and root last, and within a level the deciding policy last, so that root has the last word.
pub fn with_overrides(
    step: PlacementStep,
    workload: &Workload,
    policies: &[LeveledPolicy],
    clusters: &[ClusterFacts],
) -> PlacementStep {
    with_shares_and_overrides(step, &[], &OverrideInputs { workload, policies, clusters })
}

/// Inputs of overrides.
#[derive(Clone, Copy)]
pub struct OverrideInputs<'a> {
    /// The object.
    pub workload: &'a Workload,
    /// Policies of all levels.
    pub policies: &'a [LeveledPolicy],
    /// Physical clusters, those of the record among them.
    pub clusters: &'a [ClusterFacts],
}

/// Adds the overrides as [`with_overrides`] does, with `shares` before them: the numbers of a copy that depend on the
/// division of another object.
pub fn with_shares_and_overrides(
    mut step: PlacementStep,
    shares: &[PlacedOverride],
    by: &OverrideInputs,
) -> PlacementStep {
    let OverrideInputs { workload, policies, clusters } = *by;
    step = with_suspensions(step, by);
    // The changes of a policy stay while it is not known if it is about the object.
    let is_unknown = policies.iter().any(|p| p.policy.selection_failure(workload).is_some());
    if is_unknown || (step.cause.is_none() && is_fixed(workload)) {
        return step;
    }
    let (about, _) = within_bytes(ordered(workload, policies));
    let active = step.record.active().map(|copy| &copy.uid);
    let active: Vec<&ClusterInfo> =
        active.filter_map(|uid| clusters.iter().find(|c| c.info.uid == *uid)).map(|c| &*c.info).collect();
    let is_active = |uid: &&Uid| active.iter().any(|cluster| cluster.uid == **uid);
    let shares = shares.iter().filter(|share| share.on.iter().any(|uid| is_active(&uid))).cloned();
    let overrides = shares.chain(about.iter().flat_map(|policy| overrides_of(policy, &active))).collect();
    let mut yields: Vec<String> = about.iter().flat_map(|policy| policy.policy.spec.yields.iter().cloned()).collect();
    yields.sort_unstable();
    yields.dedup();
    if active.is_empty() {
        yields.clear();
    }
    let scaling = about.iter().find_map(|policy| policy.policy.spec.autoscaling);
    let scales_globally = scaling == Some(AutoscalingMode::Global) && !active.is_empty();
    let next = PlacementRecord { overrides, yields, scales_globally, ..step.record.clone() };
    if next != step.record {
        step.record = next;
        step.cause.get_or_insert_with(|| "overrides changed".to_owned());
    }
    step
}

/// Notes the physical clusters of the record to which a policy suspends the dispatch.
fn with_suspensions(mut step: PlacementStep, by: &OverrideInputs) -> PlacementStep {
    let rules = ApplicablePolicies::of(by.workload, by.policies);
    let is_suspended = |uid: &&Uid| {
        let cluster = by.clusters.iter().find(|cluster| cluster.info.uid == **uid);
        cluster.is_some_and(|cluster| dispatch_suspension(&rules, &cluster.info).is_some())
    };
    let copies = step.record.clusters.iter().filter(|copy| copy.phase == CopyPhase::Active).map(|copy| &copy.uid);
    let suspended: BTreeSet<Uid> = copies.filter(is_suspended).cloned().collect();
    if suspended != step.record.suspended {
        let cause = if suspended.is_empty() { "dispatch resumed" } else { "dispatch suspended" };
        step.record.suspended = suspended;
        step.cause.get_or_insert_with(|| cause.to_owned());
    }
    step
}

/// Returns true if a copy cannot be changed once it is made.
fn is_fixed(workload: &Workload) -> bool {
    matches!((&*workload.kind.group, &*workload.kind.kind), ("", "Pod") | ("batch", "Job"))
}

/// Returns the policies about `workload`, in the order in which their changes apply.
fn ordered<'a>(workload: &Workload, policies: &'a [LeveledPolicy]) -> Vec<&'a LeveledPolicy> {
    let holds = |p: &&LeveledPolicy| p.policy.fault().is_none() && p.policy.is_about(workload);
    let mut about: Vec<_> = policies.iter().filter(holds).collect();
    about.sort_by(|a, b| a.level.cmp(&b.level).then_with(|| b.rank().cmp(&a.rank())));
    about
}

/// Most bytes of overrides and yielded fields of one object: they are in its record.
const MAX_CHANGES_BYTES: usize = 64 * 1024;

/// Splits the policies into those whose changes fit on the record of one object, and the others. Root's come first.
fn within_bytes(about: Vec<&LeveledPolicy>) -> (Vec<&LeveledPolicy>, Vec<&LeveledPolicy>) {
    let mut left = MAX_CHANGES_BYTES;
    let mut fits = |policy: &&LeveledPolicy| match left.checked_sub(policy.policy.changes_bytes()) {
        Some(rest) => {
            left = rest;
            true
        }
        None => false,
    };
    let (mut kept, dropped): (Vec<_>, Vec<_>) = about.into_iter().rev().partition(|policy| fits(policy));
    kept.reverse();
    (kept, dropped)
}

/// Returns the policies whose overrides are omitted because all overrides together are too large for the record, with
/// the reason.
pub fn changes_over_budget(workload: &Workload, policies: &[LeveledPolicy]) -> Vec<(PolicyRef, String)> {
    let (_, dropped) = within_bytes(ordered(workload, policies));
    let why = || format!("what all policies change on it is larger than {MAX_CHANGES_BYTES} bytes together");
    dropped.into_iter().map(|policy| (policy.reference.clone(), why())).collect()
}

fn overrides_of(policy: &LeveledPolicy, active: &[&ClusterInfo]) -> Vec<PlacedOverride> {
    let placed = |(change, on): (&Override, Vec<&ClusterInfo>)| PlacedOverride {
        policy: policy.reference.clone(),
        on: on.into_iter().map(|cluster| cluster.uid.clone()).collect(),
        change: Override { clusters: Default::default(), ..change.clone() },
    };
    policy.policy.overrides(active).map(placed).collect()
}

/// Returns the policies whose patches exceed the budget of a copy on any physical cluster, with the reason.
///
/// The patches of all policies share one budget per copy, which is that of one patch of the API. The syncer creates no
/// copy that exceeds it.
pub fn patches_over_budget(object: &Value, overrides: &[PlacedOverride]) -> Vec<(PolicyRef, String)> {
    let patches = || overrides.iter().filter(|one| !one.change.patch.is_empty());
    let physical: BTreeSet<&Uid> = patches().flat_map(|one| &one.on).collect();
    let mut found: Vec<(PolicyRef, String)> = Vec::new();
    for on in physical {
        let (mut budget, mut copy) = (PatchBudget::default(), like_a_copy(object));
        for one in patches().filter(|one| one.on.contains(on)) {
            match apply_within(&copy, &one.change.patch, &mut budget) {
                Ok(changed) => copy = changed,
                Err(PatchFailure::Budget(why)) => {
                    if !found.iter().any(|(policy, _)| *policy == one.policy) {
                        found.push((one.policy.clone(), why));
                    }
                    break;
                }
                // The copy is refused for it, and the Placement names the error.
                Err(PatchFailure::Test(_) | PatchFailure::Operation(_)) => break,
            }
        }
    }
    found
}

/// Returns an object in the shape of its copies: without status, with labels and annotations.
fn like_a_copy(object: &Value) -> Value {
    let mut copy = object.clone();
    if let Some(fields) = copy.as_object_mut() {
        fields.remove("status");
    }
    for field in ["labels", "annotations"] {
        object::child_mut(object::metadata_mut(&mut copy), field);
    }
    copy
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::{clusters, constraint, deployment, policy, record, uid, workload};

    fn step(text: &str) -> PlacementStep {
        PlacementStep { record: record(text), cause: None, waiting: None, recheck_in: None, rolling_out: None }
    }

    /// `web>east,west` is a change by the policy web on two clusters.
    fn words(step: &PlacementStep) -> String {
        let name = |uid: &portolan_types::Uid| uid.trim_start_matches("uid-").to_owned();
        let word = |o: &PlacedOverride| {
            let on: Vec<_> = o.on.iter().map(name).collect();
            format!("{}>{}", o.policy.name, on.join(","))
        };
        step.record.overrides.iter().map(word).collect::<Vec<_>>().join(" ")
    }

    fn relabels(on: Value) -> Value {
        json!({"overrides": [{"clusters": on, "labels": {"a": "b"}}]})
    }

    #[test]
    fn the_changes_of_all_levels_are_made_and_roots_last() {
        let all = || relabels(json!({}));
        let urgent = json!({"priority": 5, "overrides": [{"labels": {"a": "b"}}]});
        for (case, policies, expected) in [
            ("root's is last", vec![policy(3, "root", all()), policy(0, "own", all())], "own>east,west root>east,west"),
            (
                "of a level the more urgent is last",
                vec![policy(1, "u", urgent), policy(1, "n", all())],
                "n>east,west u>east,west",
            ),
            ("a constraint's counts too", vec![constraint(2, "c", all())], "c>east,west"),
            ("only on those it names", vec![policy(1, "p", relabels(json!({"names": ["west"]})))], "p>west"),
            ("or on all but those it excludes", vec![policy(1, "p", relabels(json!({"exclude": ["west"]})))], "p>east"),
            (
                "also when they are a fallback",
                vec![policy(1, "p", relabels(json!({"names": ["x"], "fallback": [{"names": ["west"]}]})))],
                "p>west",
            ),
            ("nothing where it has no copy", vec![policy(1, "p", relabels(json!({"names": ["north"]})))], ""),
            (
                "nothing of one about others",
                vec![policy(1, "p", json!({"resources": [{"kinds": ["Job"]}], "overrides": [{"labels": {"a": "b"}}]}))],
                "",
            ),
            (
                "nothing of one that cannot be read",
                vec![policy(1, "p", json!({"clusters": {"cel": "x"}, "overrides": [{"labels": {"a": "b"}}]}))],
                "",
            ),
        ] {
            let after =
                with_overrides(step("east west"), &deployment(1), &policies, &clusters(&["east", "north", "west"]));
            assert_eq!(words(&after), expected, "{case}");
            let cause = (!expected.is_empty()).then(|| "overrides changed".to_owned());
            assert_eq!(after.cause, cause, "{case}");
        }
    }

    #[test]
    fn a_change_is_written_once_and_goes_with_its_policy() {
        let (facts, workload) = (clusters(&["east"]), deployment(1));
        let relabels = [policy(1, "p", json!({"yield": ["spec.replicas"], "overrides": [{"labels": {"a": "b"}}]}))];
        let first = with_overrides(step("east"), &workload, &relabels, &facts);
        assert_eq!(first.record.overrides[0].on, [uid("east")]);
        assert_eq!(first.record.yields, ["spec.replicas"]);
        let again = with_overrides(PlacementStep { cause: None, ..first.clone() }, &workload, &relabels, &facts);
        assert_eq!((again.cause, &again.record), (None, &first.record));
        let gone = with_overrides(PlacementStep { cause: None, ..first }, &workload, &[], &facts);
        assert_eq!((gone.cause.as_deref(), gone.record), (Some("overrides changed"), record("east")));
    }

    #[test]
    fn a_job_keeps_its_original_settings() {
        let job = workload("batch", "Job", json!({"metadata": {"name": "j"}}));
        let (facts, relabels) = (clusters(&["east"]), [policy(1, "p", relabels(json!({})))]);
        let placed = PlacementStep { cause: Some("placed".into()), ..step("east") };
        assert_eq!(words(&with_overrides(placed, &job, &relabels, &facts)), "p>east");
        assert_eq!(words(&with_overrides(step("east"), &job, &relabels, &facts)), "");
    }

    #[test]
    fn a_record_that_ends_has_none() {
        let relabels = [policy(1, "p", json!({"yield": ["spec.replicas"], "overrides": [{"labels": {"a": "b"}}]}))];
        let after = with_overrides(step("east-"), &deployment(1), &relabels, &clusters(&["east"]));
        assert_eq!((after.cause, after.record), (None, record("east-")));
    }

    #[test]
    fn overrides_of_an_object_are_bounded_and_root_applies_first() {
        let (facts, workload) = (clusters(&["east"]), deployment(1));
        let large = |level, name: &str, bytes: usize| {
            policy(level, name, json!({"overrides": [{"annotations": {"a": "x".repeat(bytes)}}]}))
        };
        let policies = [large(0, "own", 40_000), large(1, "small", 1_000), large(3, "root", 40_000)];
        let after = with_overrides(step("east"), &workload, &policies, &facts);
        assert_eq!(words(&after), "small>east root>east");
        let dropped = changes_over_budget(&workload, &policies);
        assert_eq!(dropped.iter().map(|(policy, _)| &*policy.name).collect::<Vec<_>>(), ["own"]);
        let yields: Vec<String> = (0..5_000).map(|n| format!("spec.field{n}.of.an.object")).collect();
        let yielding = [policy(1, "yields", json!({"yield": yields}))];
        assert_eq!(with_overrides(step("east"), &workload, &yielding, &facts).record.yields, Vec::<String>::new());
    }

    #[test]
    fn a_policy_whose_patch_doubles_the_object_is_named_with_the_reason() {
        let copy = |n: usize| json!({"op": "copy", "from": "/metadata", "path": format!("/metadata/annotations/x{n}")});
        let doubling: Vec<Value> = (0..40).map(copy).collect();
        let harmless = policy(1, "harmless", json!({"overrides": [{"patch": [{"op": "remove", "path": "/nothing"}]}]}));
        let poisoned = policy(1, "poisoned", json!({"overrides": [{"patch": doubling}]}));
        let (facts, workload) = (clusters(&["east", "west"]), deployment(1));
        let object = json!({"metadata": {"name": "web"}});
        let on = |policies: &[LeveledPolicy]| with_overrides(step("east west"), &workload, policies, &facts).record;
        let found = patches_over_budget(&object, &on(&[poisoned]).overrides);
        assert_eq!(found.iter().map(|(policy, _)| &*policy.name).collect::<Vec<_>>(), ["poisoned"]);
        assert_eq!(patches_over_budget(&object, &on(&[harmless]).overrides), []);
    }

    #[test]
    fn dispatch_is_suspended_where_a_policy_says_so() {
        let of = |spec: Value| {
            let step = with_overrides(
                step("east west"),
                &deployment(1),
                &[policy(1, "p", spec)],
                &clusters(&["east", "west"]),
            );
            let names: Vec<_> =
                step.record.suspended.iter().map(|uid| uid.trim_start_matches("uid-").to_owned()).collect();
            (names.join(" "), step.cause.unwrap_or_default())
        };
        for (case, suspend, expected, cause) in [
            ("nowhere", json!({}), "", ""),
            ("everywhere", json!({"dispatch": true}), "east west", "dispatch suspended"),
            ("on one", json!({"dispatchOn": ["west", "north"]}), "west", "dispatch suspended"),
            ("not by suspended scheduling", json!({"scheduling": true}), "", ""),
        ] {
            assert_eq!(of(json!({"suspend": suspend})), (expected.to_owned(), cause.to_owned()), "{case}");
        }
        let mut suspended = step("east");
        suspended.record.suspended = [uid("east")].into();
        let resumed = with_overrides(suspended, &deployment(1), &[], &clusters(&["east"]));
        assert_eq!((resumed.record.suspended.len(), resumed.cause.as_deref()), (0, Some("dispatch resumed")));
    }

    #[test]
    fn changes_wait_until_the_kinds_of_a_policy_are_known() {
        let change = json!({"resources": [{"apiGroup": "apps", "cel": "object.spec.x == 1"}], "overrides": [{"labels": {"a": "b"}}]});
        let policies = [policy(1, "p", change)];
        let mut before = step("east");
        before.record.overrides = vec![PlacedOverride {
            policy: policies[0].reference.clone(),
            on: vec![uid("east")],
            change: Override::default(),
        }];
        let web = deployment(1).with_object(&json!({"spec": {}}));
        let after = with_overrides(before.clone(), &web, &policies, &clusters(&["east"]));
        assert_eq!(after, before);
        let web = deployment(1).with_object(&json!({"spec": {"x": 2}}));
        assert_eq!(words(&with_overrides(before, &web, &policies, &clusters(&["east"]))), "");
    }
}
