//! Rollouts over the stages of a policy.

use portolan_types::placement::PlacementCopyStatus;
use serde_json::{Value, json};

use super::*;
use crate::fixtures::{PlacementCase, cluster, deployment, policy, record};

/// Object with a rollout, and the reports about its copies.
struct Stage {
    case: PlacementCase,
    object: Value,
    copies: Vec<PlacementCopyStatus>,
    waiting: Option<String>,
    recheck_in: Option<i64>,
}

impl Stage {
    /// A Deployment with two replicas on each of a to d; a and b have the label `tier=test`.
    fn new(rollout: Value) -> Self {
        let clusters = vec![cluster("a tier=test"), cluster("b tier=test"), cluster("c"), cluster("d")];
        let by = policy(1, "p", json!({"count": "All", "rollout": rollout}));
        let mut stage = Self {
            case: PlacementCase::new(deployment(2), clusters).by(by).on("a b c d"),
            object: json!({"metadata": {"name": "web"}, "spec": {"template": {"spec": {"image": "1"}}}}),
            copies: Vec::new(),
            waiting: None,
            recheck_in: None,
        };
        stage.report(2);
        stage.step();
        stage
    }

    /// Reports the updated replicas of copies that have the change.
    fn report(&mut self, updated: i64) {
        let held = self.case.previous.rollout.as_ref().map(|state| state.held.clone()).unwrap_or_default();
        let copy = |copy: &portolan_types::placement::PlacedCopy| PlacementCopyStatus {
            name: copy.name.clone(),
            uid: copy.uid.to_string(),
            ready: 2,
            available: Some(2),
            desired: Some(2),
            updated: Some(if held.contains(&copy.uid) { 0 } else { updated }),
            ..PlacementCopyStatus::default()
        };
        self.copies = self.case.previous.clusters.iter().map(copy).collect();
    }

    fn image(&mut self, image: &str) {
        self.object["spec"]["template"]["spec"]["image"] = image.into();
        self.report(0);
    }

    fn approve(&mut self, stage: &str) {
        let revision: String = self.case.previous.rollout.as_ref().unwrap().revision.chars().take(SHORT).collect();
        object::set_annotation(&mut self.object, annotations::APPROVE_ROLLOUT, Some(format!("{revision}/{stage}")));
    }

    fn step(&mut self) -> String {
        let by = RolloutInputs {
            object: &self.object,
            workload: &self.case.workload,
            policies: &self.case.policies,
            clusters: &self.case.clusters,
            copies: &self.copies,
            now: self.case.now,
        };
        let plain = PlacementStep {
            record: self.case.previous.clone(),
            cause: None,
            waiting: None,
            recheck_in: None,
            rolling_out: None,
        };
        let step = with_rollout(plain, &by);
        (self.waiting, self.recheck_in) = (step.rolling_out, step.recheck_in);
        self.case.previous = step.record;
        self.held_clusters()
    }

    /// Names of the physical clusters that get no change.
    fn held_clusters(&self) -> String {
        let state = self.case.previous.rollout.as_ref();
        let is_held =
            |copy: &&portolan_types::placement::PlacedCopy| state.is_some_and(|state| state.held.contains(&copy.uid));
        self.case.previous.clusters.iter().filter(is_held).map(|copy| copy.name.as_str()).collect()
    }

    fn after(&mut self, seconds: i64) -> String {
        self.case.now += seconds;
        self.step()
    }
}

fn canary() -> Value {
    json!({"stages": [
        {"name": "canary", "selector": {"matchLabels": {"tier": "test"}}, "percent": 50, "waitSeconds": 60, "approval": true},
        {"name": "named", "names": ["c"]},
    ], "timeoutSeconds": 300})
}

#[test]
fn a_change_goes_from_stage_to_stage() {
    let mut stage = Stage::new(canary());
    assert_eq!((stage.held_clusters(), &stage.waiting), (String::new(), &None), "the first placement has no stages");
    stage.image("2");
    assert_eq!(stage.after(1), "bcd", "half of the two with the label");
    assert_eq!(stage.waiting.as_deref(), Some("the rollout is at stage canary: a not available with it yet"));
    assert_eq!(stage.recheck_in, Some(300));
    stage.report(2);
    assert_eq!(stage.after(10), "bcd");
    assert_eq!(
        (stage.waiting.as_deref(), stage.recheck_in),
        (Some("the rollout stays at stage canary for another 60 s"), Some(60))
    );
    assert_eq!(stage.after(60), "bcd");
    assert!(stage.waiting.as_deref().unwrap().starts_with("the rollout waits for an approval of stage canary: "));
    stage.approve("named");
    assert_eq!(stage.after(1), "bcd", "another stage");
    stage.approve("canary");
    assert_eq!(stage.after(1), "bd");
    assert_eq!(stage.after(100), "bd", "c has not got it");
    stage.report(2);
    assert_eq!(stage.after(1), "", "the rest");
    assert_eq!(stage.waiting.as_deref(), Some("the rollout is at stage rest: b,d not available with it yet"));
    stage.report(2);
    assert_eq!(stage.after(20), "");
    assert_eq!(stage.waiting, None);
}

#[test]
fn a_stage_that_is_late_stops_the_rollout_until_it_is_approved_or_changed() {
    let mut stage = Stage::new(canary());
    stage.image("2");
    stage.after(1);
    assert_eq!(stage.after(300), "bcd");
    let waiting = stage.waiting.clone().unwrap();
    assert!(
        waiting.starts_with("the rollout is stopped at stage canary (a not available): the annotation "),
        "{waiting}"
    );
    stage.report(2);
    assert_eq!(stage.after(1_000), "bcd", "it does not go on by itself");
    let mut approved =
        Stage { case: stage.case.clone(), object: stage.object.clone(), copies: stage.copies.clone(), ..stage };
    approved.approve("canary");
    assert_eq!(approved.after(1), "bd");
    approved.image("1");
    assert_eq!(approved.after(1), "bcd", "the way back has the same stages");
    approved.image("3");
    assert_eq!(approved.after(1), "bcd", "another change begins with the first stage");
}

#[test]
fn a_stage_without_physical_clusters_is_passed_and_a_policy_without_stages_holds_nothing() {
    let mut stage =
        Stage::new(json!({"stages": [{"name": "none", "names": ["x"]}, {"name": "first", "names": ["b"]}]}));
    stage.image("2");
    assert_eq!(stage.after(1), "acd");
    stage.case.policies = vec![policy(1, "p", json!({"count": "All"}))];
    assert_eq!(stage.after(1), "");
    assert_eq!(stage.case.previous.rollout, None);
}

#[test]
fn overrides_are_rolled_out_as_well() {
    let mut stage = Stage::new(canary());
    stage.case.previous.yields = vec!["spec.paused".into()];
    assert_eq!(stage.after(1), "bcd");
    stage.report(2);
    stage.after(1);
    assert_eq!(stage.recheck_in, Some(59));
    let mut moved = Stage::new(json!({"stages": [{"name": "one", "names": ["a"]}]}));
    moved.case.previous = PlacementRecord { rollout: moved.case.previous.rollout.clone(), ..record("a b") };
    moved.case.previous.yields = vec!["spec.paused".into()];
    assert_eq!(moved.after(1), "b");
    moved.report(2);
    assert_eq!((moved.after(1), moved.recheck_in), ("b".into(), Some(14)), "nothing says that a copy has it");
    assert_eq!(moved.after(14), "");
}
