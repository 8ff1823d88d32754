use std::collections::BTreeSet;

use portolan_types::{GroupResource, GroupVersionKind, LogicalClusterId, ResourceVersion};
use serde_json::json;

use super::*;
use crate::{
    rules::SyncRules,
    transform::{AcceptedAudiences, MissingFields},
};

const EAST: &str = "east-uid";

fn east() -> Uid {
    EAST.parse().unwrap()
}

fn key(resource: &str) -> ObjectKey {
    let (group, resource) = resource.split_once('/').unwrap_or(("", resource));
    let resource = GroupResource::new(group, resource);
    ObjectKey::namespaced(LogicalClusterId::ROOT, resource, "default".parse().unwrap(), "web".parse().unwrap())
}

struct Case {
    resource: &'static str,
    kind: GroupVersionKind,
    upstream: Option<Value>,
    entry: Option<PlacedCopy>,
    other: bool,
    seen: bool,
    downstream: Option<Value>,
    served: bool,
    autoscaled: bool,
    followed: Option<i64>,
    syncer_epoch: u64,
    newest_syncer: u64,
    lacking: MissingFields,
    held: bool,
    suspended: BTreeSet<Uid>,
    waits: bool,
}

fn entry(phase: CopyPhase, epoch: u64) -> PlacedCopy {
    PlacedCopy { name: "east".into(), uid: east(), phase, replicas: None, epoch }
}

/// A ConfigMap that is placed here, with nothing downstream yet.
fn placed() -> Case {
    Case {
        resource: "configmaps",
        kind: GroupVersionKind::new("", "v1", "ConfigMap"),
        upstream: Some(
            json!({"metadata": {"name": "web", "namespace": "default", "uid": "up-1", "generation": 1}, "data": {"a": "1"}}),
        ),
        entry: Some(entry(CopyPhase::Active, 1)),
        other: false,
        seen: true,
        downstream: None,
        served: true,
        autoscaled: false,
        followed: None,
        syncer_epoch: 5,
        newest_syncer: 5,
        lacking: MissingFields::default(),
        held: false,
        suspended: BTreeSet::new(),
        waits: false,
    }
}

impl Case {
    fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Adds the copy that this case would create, as the API server would answer it, modified by `change`.
    fn downstream(mut self, change: impl FnOnce(&mut Value)) -> Self {
        let CopyDecision::Create(mut copy) = self.decide() else { panic!("no copy would be made") };
        object::metadata_mut(&mut copy).insert("uid".into(), json!("down-1"));
        object::metadata_mut(&mut copy).insert("resourceVersion".into(), json!("77"));
        change(&mut copy);
        self.downstream = Some(copy);
        self
    }

    fn decide(&self) -> CopyDecision {
        let key = key(self.resource);
        let upstream = self.upstream.clone().map(|mut object| {
            let elsewhere =
                self.other.then(|| PlacedCopy { uid: "west-uid".parse().unwrap(), ..entry(CopyPhase::Active, 1) });
            let clusters = self.entry.iter().cloned().chain(elsewhere).collect();
            PlacementRecord {
                clusters,
                autoscaled: self.followed,
                suspended: self.suspended.clone(),
                rollout: self.waits.then(|| {
                    Box::new(portolan_types::placement::RolloutState {
                        held: BTreeSet::from([east()]),
                        ..Default::default()
                    })
                }),
                ..PlacementRecord::default()
            }
            .write_to(&mut object);
            UpstreamObject {
                key: key.clone(),
                revision: ResourceVersion::FIRST,
                kind: self.kind.clone(),
                object,
                is_held: self.held,
                scale: None,
            }
        });
        let rules = SyncRules::new(&[]);
        let upstream = upstream.as_ref().map_or(UpstreamState::Removed { seen: self.seen }, UpstreamState::Present);
        plan(
            &SyncTarget { physical: &east(), syncer_epoch: self.syncer_epoch, rules: &rules },
            &PlanInput {
                key: &key,
                upstream,
                downstream: self.downstream.as_ref(),
                namespace: Some("default-x"),
                served: self.served.then_some((&self.kind, true)),
                autoscaled: self.autoscaled,
                settled: false,
                newest_syncer: self.newest_syncer,
                lacking: &self.lacking,
                audiences: &AcceptedAudiences::known([], None),
                pods: None,
            },
        )
    }
}

/// The decision in a word.
fn word(decision: &CopyDecision) -> String {
    match decision {
        CopyDecision::Delete(deletion) => format!("Delete {:?}", deletion.proof),
        CopyDecision::Refuse(refusal) => format!("Refuse {}", refusal.reason),
        CopyDecision::ConfirmGone { epoch, .. } => format!("ConfirmGone {epoch}"),
        other => format!("{other:?}").split(['(', ' ']).next().unwrap_or_default().to_owned(),
    }
}

fn meta(field: &str, value: Value) -> impl FnOnce(&mut Case) + use<'_> {
    move |case| {
        object::metadata_mut(case.upstream.as_mut().unwrap()).insert(field.into(), value);
    }
}

fn identity(object: &mut Value, change: impl FnOnce(&mut CopyIdentity)) {
    let mut identity = CopyIdentity::of(object).unwrap();
    change(&mut identity);
    object::set_annotation(object, annotations::DOWN_IDENTITY, Some(serde_json::to_string(&identity).unwrap()));
}

fn check(cases: Vec<(&str, Case, &str)>) {
    for (name, case, expected) in cases {
        assert_eq!(word(&case.decide()), expected, "{name}");
    }
}

#[test]
fn copies_are_made_and_kept_up_to_date() {
    let data = |value: &'static str| move |object: &mut Value| object["data"]["a"] = json!(value);
    check(vec![
        ("a new object is created", placed(), "Create"),
        ("an equal copy is kept", placed().downstream(|_| ()), "Keep"),
        ("drift is repaired", placed().downstream(data("drifted")), "Apply"),
        ("a change is synced", placed().downstream(|_| ()).with(|c| data("2")(c.upstream.as_mut().unwrap())), "Apply"),
        ("a new generation is stamped", placed().downstream(|_| ()).with(meta("generation", json!(2))), "Apply"),
        (
            "a label taken off goes off",
            placed().with(meta("labels", json!({"a": "b"}))).downstream(|_| ()).with(meta("labels", json!({}))),
            "Apply",
        ),
        (
            "a new stay is stamped",
            placed().downstream(|_| ()).with(|c| c.entry = Some(entry(CopyPhase::Active, 2))),
            "Apply",
        ),
        (
            "a new syncer writes nothing by itself",
            placed().downstream(|_| ()).with(|c| (c.syncer_epoch, c.newest_syncer) = (6, 6)),
            "Keep",
        ),
        (
            "a default of the physical cluster is not drift",
            placed().downstream(|o| o["immutable"] = json!(false)),
            "Keep",
        ),
        (
            "a copy that ends is awaited",
            placed().downstream(|o| o["metadata"]["deletionTimestamp"] = json!("t")),
            "AwaitEnd",
        ),
        (
            "an object elsewhere is none of our business",
            placed().with(|c| (c.entry, c.other) = (None, true)),
            "Nothing",
        ),
        (
            "projected objects go another way",
            placed().with(|c| c.entry = Some(entry(CopyPhase::Projected, 0))),
            "Projected",
        ),
    ]);
    let CopyDecision::Apply(applied) = placed().downstream(data("drifted")).decide() else { panic!("no apply") };
    let conditions = (&applied.body["metadata"]["uid"], &applied.body["metadata"]["resourceVersion"]);
    assert_eq!(conditions, (&json!("down-1"), &json!("77")), "a write is conditional on what was read");
}

#[test]
fn an_unadmitted_object_is_only_deleted() {
    let held = |case: Case| case.with(|c| c.held = true);
    let changed = || placed().downstream(|_| ()).with(meta("generation", json!(2)));
    check(vec![
        ("no copy is made", held(placed()), "Wait"),
        ("the copy stays unchanged", held(changed()), "Wait"),
        ("it is deleted all the same", held(changed().with(meta("deletionTimestamp", json!("t")))), "Delete Deleting"),
        (
            "it leaves all the same",
            held(changed().with(|c| c.entry = Some(entry(CopyPhase::Leaving, 1)))),
            "Delete Leaving",
        ),
        ("once let in, it goes down", changed(), "Apply"),
    ]);
}

#[test]
fn nothing_but_deletions_goes_where_the_dispatch_is_suspended() {
    let suspended = |case: Case| case.with(|c| c.suspended = [east()].into());
    let changed = || placed().downstream(|_| ()).with(meta("generation", json!(2)));
    let elsewhere = |case: Case| case.with(|c| c.suspended = ["west-uid".parse().unwrap()].into());
    check(vec![
        ("no copy is made", suspended(placed()), "Wait"),
        ("the copy stays unchanged", suspended(changed()), "Wait"),
        ("it is deleted", suspended(changed().with(meta("deletionTimestamp", json!("t")))), "Delete Deleting"),
        ("it leaves", suspended(changed().with(|c| c.entry = Some(entry(CopyPhase::Leaving, 1)))), "Delete Leaving"),
        ("suspended on another physical cluster", elsewhere(changed()), "Apply"),
        ("a rollout has not come here", changed().with(|c| c.waits = true), "Wait"),
        (
            "it is deleted during a rollout",
            changed().with(meta("deletionTimestamp", json!("t"))).with(|c| c.waits = true),
            "Delete Deleting",
        ),
    ]);
}

#[test]
fn copies_are_deleted_on_positive_proof_only() {
    let deleting = || placed().with(meta("deletionTimestamp", json!("t")));
    let pod = || {
        placed().with(|c| {
            (c.resource, c.kind) = ("pods", GroupVersionKind::new("", "v1", "Pod"));
            c.upstream.as_mut().unwrap()["spec"] = json!({"containers": [{"name": "c"}]});
        })
    };
    let removed = |seen| move |case: &mut Case| (case.upstream, case.seen) = (None, seen);
    check(vec![
        (
            "the record says leave",
            placed().downstream(|_| ()).with(|c| c.entry = Some(entry(CopyPhase::Leaving, 1))),
            "Delete Leaving",
        ),
        (
            "a deleted object without finalizers",
            placed().downstream(|_| ()).with(meta("deletionTimestamp", json!("t"))),
            "Delete Deleting",
        ),
        (
            "a finalizer upstream runs first",
            placed()
                .downstream(|_| ())
                .with(meta("finalizers", json!(["example.com/f"])))
                .with(meta("deletionTimestamp", json!("t"))),
            "Keep",
        ),
        (
            "foreground deletion does not hold the copy",
            placed()
                .downstream(|_| ())
                .with(meta("finalizers", json!(["foregroundDeletion"])))
                .with(meta("deletionTimestamp", json!("t"))),
            "Delete Deleting",
        ),
        (
            "a Pod goes at its deletionTimestamp",
            pod()
                .downstream(|_| ())
                .with(meta("finalizers", json!(["example.com/f"])))
                .with(meta("deletionTimestamp", json!("t"))),
            "Delete Deleting",
        ),
        ("removed after it was seen", placed().downstream(|_| ()).with(removed(true)), "Delete Tombstone"),
        ("not there, and never seen", placed().downstream(|_| ()).with(removed(false)), "Delete NeverSeen"),
        (
            "another object of the name",
            placed().downstream(|_| ()).with(meta("uid", json!("up-2"))),
            "Delete Superseded",
        ),
        (
            "placed elsewhere",
            placed().downstream(|_| ()).with(|c| (c.entry, c.other) = (None, true)),
            "Delete Unplaced",
        ),
        ("a lost record proves nothing", placed().downstream(|_| ()).with(|c| c.entry = None), "Hold"),
        (
            "nothing is made for what is being deleted",
            deleting().with(meta("finalizers", json!(["example.com/f"]))),
            "Nothing",
        ),
        ("what is gone is confirmed", deleting(), "ConfirmGone 1"),
        ("what left is confirmed", placed().with(|c| c.entry = Some(entry(CopyPhase::Leaving, 3))), "ConfirmGone 3"),
        (
            "a second delete is not sent",
            placed().downstream(|o| o["metadata"]["deletionTimestamp"] = json!("t")).with(removed(true)),
            "AwaitEnd",
        ),
    ]);
}

#[test]
fn foreign_objects_are_never_touched() {
    let foreign = || {
        placed().with(|c| c.downstream = Some(json!({"metadata": {"name": "web", "uid": "x", "resourceVersion": "1"}})))
    };
    let leaving = |case: &mut Case| case.entry = Some(entry(CopyPhase::Leaving, 1));
    let removed = |case: &mut Case| case.upstream = None;
    let of_west = || placed().downstream(|o| identity(o, |i| i.physical = "west-uid".parse().unwrap()));
    let of_other_namespace = || placed().downstream(|o| identity(o, |i| i.namespace = "other".into()));
    let made_by_controller =
        || placed().downstream(|o| o["metadata"]["ownerReferences"] = json!([{"uid": "d", "controller": true}]));
    check(vec![
        ("without identity: a conflict", foreign(), "Refuse Conflict"),
        ("without identity, leaving: nothing of ours is there", foreign().with(leaving), "ConfirmGone 1"),
        ("without identity, removed", foreign().with(removed), "Nothing"),
        ("a copy for another PhysicalCluster of the same cluster", of_west(), "Refuse Conflict"),
        ("such a copy, removed upstream", of_west().with(removed), "Nothing"),
        ("a copy of another namespace's object", of_other_namespace(), "Refuse Conflict"),
        ("such a copy, removed upstream", of_other_namespace().with(removed), "Nothing"),
        ("what a controller made with our annotations", made_by_controller().with(removed), "Nothing"),
    ]);
}

#[test]
fn a_late_syncer_does_nothing() {
    check(vec![
        ("upstream knows a newer syncer", placed().downstream(|_| ()).with(|c| c.newest_syncer = 6), "Fenced"),
        (
            "also when it would delete",
            placed().downstream(|_| ()).with(|c| (c.upstream, c.newest_syncer) = (None, 6)),
            "Fenced",
        ),
    ]);
}

#[test]
fn a_physical_cluster_cannot_end_a_syncer_by_naming_a_newer_one() {
    let forged = || placed().downstream(|o| identity(o, |i| i.syncer_epoch = u64::MAX));
    check(vec![
        ("it is drift", forged(), "Apply"),
        (
            "it keeps nothing from being deleted",
            forged().with(meta("deletionTimestamp", json!("t"))),
            "Delete Deleting",
        ),
        ("nor from leaving", forged().with(|c| c.entry = Some(entry(CopyPhase::Leaving, 1))), "Delete Leaving"),
    ]);
}

#[test]
fn a_physical_cluster_keeps_no_copy_by_naming_a_later_stay() {
    let forged = || placed().downstream(|o| identity(o, |i| i.epoch = u64::MAX));
    check(vec![
        ("it is drift", forged(), "Apply"),
        (
            "it keeps nothing from being deleted",
            forged().with(meta("deletionTimestamp", json!("t"))),
            "Delete Deleting",
        ),
        ("nor from leaving", forged().with(|c| c.entry = Some(entry(CopyPhase::Leaving, 1))), "Delete Leaving"),
    ]);
}

#[test]
fn unsyncable_objects_have_a_reason() {
    let named = |resource: &'static str, group: &'static str, kind: &'static str| {
        placed().with(|c| (c.resource, c.kind) = (resource, GroupVersionKind::new(group, "v1", kind)))
    };
    check(vec![
        ("RBAC", named("rbac.authorization.k8s.io/roles", "rbac.authorization.k8s.io", "Role"), "Refuse NotSyncable"),
        ("a kind that is not allowed", named("example.com/widgets", "example.com", "Widget"), "Refuse NotSyncable"),
        ("a kind that is not served", placed().with(|c| c.served = false), "Refuse Incompatible"),
        (
            "a field that is not there and means something",
            placed().with(|c| c.lacking.meant = vec!["/data".into()]),
            "Refuse Incompatible",
        ),
        (
            "one that says what holds anyway is left out",
            placed().with(|c| c.lacking.defaults = vec!["/data".into()]),
            "Create",
        ),
        (
            "the default ServiceAccount",
            named("serviceaccounts", "", "ServiceAccount").with(meta("name", json!("default"))),
            "Local",
        ),
        (
            "it is confirmed gone at once",
            named("serviceaccounts", "", "ServiceAccount")
                .with(meta("name", json!("default")))
                .with(|c| c.entry = Some(entry(CopyPhase::Leaving, 1))),
            "ConfirmGone 1",
        ),
    ]);
}

#[test]
fn an_autoscaler_downstream_keeps_its_replicas() {
    let case = placed().with(|c| {
        (c.resource, c.kind) = ("apps/deployments", GroupVersionKind::new("apps", "v1", "Deployment"));
        c.upstream.as_mut().unwrap()["spec"] = json!({"replicas": 2});
    });
    let scaled = case.downstream(|o| o["spec"]["replicas"] = json!(9));
    assert_eq!(word(&scaled.decide()), "Apply", "without one, it is drift");
    let CopyDecision::Apply(applied) = scaled.with(|c| c.autoscaled = true).decide() else { panic!("no apply") };
    assert_eq!(applied.body["spec"]["replicas"], 9);
}

#[test]
fn a_number_of_replicas_set_upstream_goes_downstream_of_an_autoscaler_once() {
    for (followed, wanted, downstream, expected) in [(4, 6, 4, 6), (4, 4, 9, 9), (6, 6, 6, 6)] {
        let case = placed().with(|c| {
            (c.resource, c.kind) = ("apps/deployments", GroupVersionKind::new("apps", "v1", "Deployment"));
            let upstream = c.upstream.as_mut().unwrap();
            upstream["spec"] = json!({"replicas": wanted});
            c.followed = Some(followed);
            c.autoscaled = true;
        });
        let CopyDecision::Apply(applied) = case.downstream(|o| o["spec"]["replicas"] = json!(downstream)).decide()
        else {
            panic!("no apply")
        };
        assert_eq!(applied.body["spec"]["replicas"], expected, "followed {followed}, wanted {wanted}");
    }
}

/// An object that leaves east; `also west` runs there, `deleted` ends, `off` is written off on east.
fn departing(kind: &str, how: &str) -> UpstreamObject {
    let has = |word: &str| how.contains(word);
    let mut object = json!({"metadata": {"uid": "up-1"}, "spec": {}});
    if has("deleted") {
        object["metadata"]["deletionTimestamp"] = json!("t");
    }
    if has("off") {
        object::set_annotation(&mut object, annotations::WRITE_OFF, Some("north, east".into()));
    }
    if has("recreated") {
        object["spec"]["strategy"] = json!({"type": "Recreate"});
    }
    let west = PlacedCopy { uid: "west-uid".parse().unwrap(), name: "west".into(), ..entry(CopyPhase::Active, 2) };
    let clusters = std::iter::once(entry(CopyPhase::Leaving, 1)).chain(has("west").then_some(west)).collect();
    PlacementRecord { clusters, ..PlacementRecord::default() }.write_to(&mut object);
    let (group, kind) = kind.split_once('/').unwrap_or(("", kind));
    let kind = GroupVersionKind::new(group, "v1", kind);
    UpstreamObject {
        key: key("apps/things"),
        revision: ResourceVersion::FIRST,
        kind,
        object,
        is_held: false,
        scale: None,
    }
}

#[test]
fn run_once_objects_never_leave_a_debt() {
    use DebtPermission::{Allowed, UnlessVolumes, Unproven, WrittenOff};
    for (case, kind, how, expected) in [
        ("what is deleted upstream", "apps/StatefulSet", "deleted", Allowed),
        ("what runs elsewhere already and bears two", "apps/Deployment", "also west", UnlessVolumes),
        ("a move that waits for its end", "apps/Deployment", "", Unproven),
        ("a Deployment that is recreated", "apps/Deployment", "recreated, also west", Unproven),
        ("a StatefulSet", "apps/StatefulSet", "also west", Unproven),
        ("a bare Pod", "Pod", "also west", Unproven),
        ("a claim with its data", "PersistentVolumeClaim", "also west", Unproven),
        ("a CronJob", "batch/CronJob", "also west", Unproven),
        ("unless somebody writes it off", "apps/StatefulSet", "off", WrittenOff),
        ("what runs nothing", "ConfigMap", "", Allowed),
    ] {
        assert_eq!(debt_permission(&departing(kind, how), &entry(CopyPhase::Leaving, 1)), expected, "{case}");
    }
    let west = PlacedCopy { name: "west".into(), ..entry(CopyPhase::Leaving, 1) };
    assert_eq!(debt_permission(&departing("apps/StatefulSet", "off"), &west), Unproven, "another copy was written off");
}

#[test]
fn a_delete_waits_for_pods_only_where_two_must_not_run() {
    let with_volume = |mut upstream: UpstreamObject| {
        upstream.object["spec"] =
            json!({"template": {"spec": {"volumes": [{"persistentVolumeClaim": {"claimName": "a"}}]}}});
        upstream
    };
    for (case, upstream, waits) in [
        ("a rolling Deployment", departing("apps/Deployment", "deleted"), false),
        ("a DaemonSet", departing("apps/DaemonSet", "deleted"), false),
        ("a Deployment that is recreated", departing("apps/Deployment", "deleted, recreated"), true),
        ("one with a volume", with_volume(departing("apps/Deployment", "deleted")), true),
        ("a StatefulSet", departing("apps/StatefulSet", "deleted"), true),
        ("a Job", departing("batch/Job", "deleted"), true),
    ] {
        assert_eq!(ends_with_its_pods(&upstream), waits, "{case}");
    }
}

#[test]
fn node_local_volumes_are_distinguished_from_shared_ones() {
    let pod = json!({"spec": {"template": {"spec": {"volumes": [
        {"name": "a", "persistentVolumeClaim": {"claimName": "data"}}, {"name": "b", "emptyDir": {}}]}}}});
    assert_eq!(claims_of(&pod).collect::<Vec<_>>(), ["data"]);
    for (modes, shared) in [(json!(["ReadWriteOnce"]), false), (json!(["ReadWriteOnce", "ReadWriteMany"]), true)] {
        assert_eq!(is_shared_claim(&json!({"spec": {"accessModes": modes}})), shared);
    }
}

#[test]
fn a_pod_gets_its_own_time_to_stop_unless_a_user_gives_it_another() {
    let pod = |seconds: i64, node: &str| UpstreamObject {
        key: key("pods"),
        revision: ResourceVersion::FIRST,
        kind: GroupVersionKind::new("", "v1", "Pod"),
        object: json!({"metadata": {"deletionTimestamp": "t", "deletionGracePeriodSeconds": seconds}, "spec": {"nodeName": node}}),
        is_held: false,
        scale: None,
    };
    for (case, pod, expected) in [
        ("a Pod made upstream has no node there", pod(0, ""), None),
        ("a time is handed down", pod(5, ""), Some(5)),
        ("a projected one can be ended at once", pod(0, "n"), Some(0)),
    ] {
        assert_eq!(grace_of(&pod), expected, "{case}");
    }
}
