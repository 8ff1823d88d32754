//! Workload: an object reduced to the facts that a decision needs.

use std::{collections::BTreeMap, sync::Arc};

use portolan_types::{
    GroupKind, GroupResource, Uid, annotations, object,
    placement::{OrdinalRange, PlacementRecord, ResourceAmounts},
    quantity::Quantity,
};
use serde_json::Value;

use crate::{
    expressions::ExpressionSubject,
    object_role::{Role, is_managed_elsewhere, role_of},
    references::for_each_pod_spec,
};

/// Object that carries a pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinScope {
    /// On the object itself.
    Object,
    /// On its namespace.
    Namespace,
}

/// Names of physical clusters that an object must run on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterPin {
    /// The names, sorted, none twice.
    pub names: Vec<String>,
    /// Object that carries it.
    pub on: PinScope,
}

impl ClusterPin {
    /// Returns the pin of an object, if it names anything.
    pub fn of(object: &Value, on: PinScope) -> Option<Self> {
        let text = object::annotation(object, annotations::PIN)?;
        let mut names: Vec<String> =
            text.split(',').map(str::trim).filter(|n| !n.is_empty()).map(str::to_owned).collect();
        names.sort_unstable();
        names.dedup();
        (!names.is_empty()).then_some(Self { names, on })
    }
}

/// Way in which an object moves between physical clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveStrategy {
    /// A → A+B → B: two copies do no harm.
    Surge,
    /// A → none → B, whenever a policy says so: exactly one copy is active.
    Handover,
    /// A → none → B, and only by explicit pin or drain.
    Restart,
    /// Stays where it started, unless it has a pin.
    Stay,
}

impl MoveStrategy {
    /// Returns true if two copies never run at the same time.
    pub fn one_at_a_time(self) -> bool {
        !matches!(self, Self::Surge)
    }
}

/// The object to be placed, reduced to the inputs of a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Its kind.
    pub kind: GroupKind,
    /// API version that it is stored in, without its group; empty if the object does not say it.
    pub version: String,
    /// Its resource.
    pub resource: GroupResource,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// `metadata.generation`.
    pub generation: i64,
    /// Role in placement.
    pub role: Role,
    /// Pin of the object, or else of its namespace.
    pub pin: Option<ClusterPin>,
    /// `spec.replicas`, if it has them; of a Job that is not Indexed, the pods that it runs at once.
    pub replicas: Option<i64>,
    /// `spec.completions` of a Job that is not Indexed.
    pub completions: Option<i64>,
    /// First ordinal of a StatefulSet; 0 for other kinds.
    pub first_ordinal: i64,
    /// Pods of one whole copy; 0 without pods.
    pub pods: i64,
    /// Requests of one pod.
    pub requests: ResourceAmounts,
    /// Way in which it moves.
    pub moves: MoveStrategy,
    /// True if it has data on volumes that do not move with it, and were not given up.
    pub keeps_volumes: bool,
    /// True if a claim itself forbids a move of its data, which overrides every policy.
    pub refuses_moves: bool,
    /// True if it has at most one copy, under every policy.
    pub single: bool,
    /// True if it has ended, so it must not run again elsewhere.
    pub finished: bool,
    /// Physical clusters of the objects that have the same controller.
    pub siblings: Vec<Uid>,
    /// `metadata.creationTimestamp`.
    pub created: String,
    /// Other workloads of its namespace, if a policy depends on them.
    pub neighbors: Vec<WorkloadNeighbor>,
    /// The object as expressions see it, if a policy has any over objects.
    pub subject: Option<Arc<ExpressionSubject>>,
    /// Names of unreachable physical clusters whose copy a user has declared gone.
    pub written_off: Vec<String>,
    /// Reason for which its moves wait for nothing.
    pub force: Option<String>,
}

/// Another workload of the namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadNeighbor {
    /// The workload.
    pub workload: Workload,
    /// Physical clusters of its active copies.
    pub on: Vec<Uid>,
}

impl Workload {
    /// Reads the facts from an object. The caller adds pins of the namespace, siblings, neighbors and volumes.
    pub fn of(kind: GroupKind, resource: GroupResource, object: &Value) -> Self {
        let role = role_of(&kind.group, &kind.kind, object);
        let mut requests = ResourceAmounts::new();
        let mut has_pods = false;
        if let Some(spec) = object.get("spec") {
            for_each_pod_spec(spec, 0, &mut |pod| {
                if !std::mem::replace(&mut has_pods, true) {
                    requests = pod_requests(pod);
                }
            });
        }
        let replicas = replicas(&kind, object);
        let labels = object::metadata(object).get("labels").and_then(Value::as_object);
        let api_version = object.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
        Self {
            version: api_version.rsplit_once('/').map_or(api_version, |(_, version)| version).to_owned(),
            namespace: object::namespace(object).to_owned(),
            name: object::name(object).to_owned(),
            labels: labels
                .into_iter()
                .flatten()
                .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
                .collect(),
            generation: object::generation(object),
            role,
            pin: ClusterPin::of(object, PinScope::Object),
            pods: if has_pods { pods(&kind, object, replicas) } else { 0 },
            replicas,
            completions: is_divisible_job(&kind, object).then(|| number(object, "/spec/completions")).flatten(),
            first_ordinal: number(object, "/spec/ordinals/start").unwrap_or(0).max(0),
            requests,
            moves: moves(&kind, object),
            keeps_volumes: makes_claims(&kind, object) && !abandons_volumes(object),
            refuses_moves: false,
            single: &*kind.kind == "CronJob" && &*kind.group == "batch",
            finished: object::has_ended(&kind.group, &kind.kind, object),
            siblings: Vec::new(),
            created: object::meta_text(object, "creationTimestamp").to_owned(),
            neighbors: Vec::new(),
            subject: None,
            written_off: names_in(object, annotations::WRITE_OFF),
            force: object::annotation(object, annotations::FORCE)
                .map(|reason| reason.trim().chars().take(MAX_REASON).collect::<String>())
                .filter(|reason| !reason.is_empty()),
            kind,
            resource,
        }
    }

    /// Adds the object that expressions of policies read.
    #[must_use]
    pub fn with_object(self, object: &Value) -> Self {
        Self { subject: Some(Arc::new(ExpressionSubject::of_object(object))), ..self }
    }

    /// Returns the ordinals that it asks for, if it is a StatefulSet.
    pub fn ordinals(&self) -> OrdinalRange {
        OrdinalRange::starting_at(self.first_ordinal, self.replicas.unwrap_or(1))
    }

    /// Returns true for a Job.
    pub fn is_job(&self) -> bool {
        (&*self.kind.group, &*self.kind.kind) == ("batch", "Job")
    }

    /// `deployment/web`, for people.
    pub fn title(&self) -> String {
        format!("{}/{}", self.kind.kind.to_lowercase(), self.name)
    }

    /// Returns the number of available pods that makes a copy with a share of the replicas, or with a limit, healthy.
    /// For kinds without replicas, 1 means that the copy exists.
    pub fn needed(&self, share: Option<i64>, limit: Option<i64>) -> i64 {
        share.or(self.replicas).unwrap_or(1).min(limit.unwrap_or(i64::MAX))
    }
}

/// Longest reason of a forced move that is kept, in characters.
const MAX_REASON: usize = 200;

/// Returns the names in an annotation, which are joined by commas.
fn names_in(object: &Value, key: &str) -> Vec<String> {
    let names = object::annotation(object, key).unwrap_or_default().split(',');
    names.map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Returns the requests of an object per physical cluster of its record, leaving and awaited copies included.
pub fn contribution(workload: &Workload, record: &PlacementRecord) -> Vec<(Uid, ResourceAmounts)> {
    let of = |pods: i64| {
        let mut sum: ResourceAmounts =
            workload.requests.iter().map(|(name, q)| (name.clone(), q.times(pods))).collect();
        sum.insert("pods".into(), Quantity::from_units(pods));
        sum
    };
    if workload.pods == 0 {
        return Vec::new();
    }
    record.occupied(workload.pods).into_iter().map(|(uid, pods)| (uid.clone(), of(pods))).collect()
}

fn number(object: &Value, path: &str) -> Option<i64> {
    object.pointer(path).and_then(Value::as_i64)
}

fn replicas(kind: &GroupKind, object: &Value) -> Option<i64> {
    match (&*kind.group, &*kind.kind) {
        ("apps", "Deployment" | "StatefulSet" | "ReplicaSet") | ("", "ReplicationController") => {
            Some(number(object, "/spec/replicas").unwrap_or(1).max(0))
        }
        ("batch", "Job") if is_divisible_job(kind, object) => Some(pods(kind, object, None)),
        ("" | "apps" | "batch" | "autoscaling" | "policy" | "networking.k8s.io", _) => None,
        _ => number(object, "/spec/replicas").map(|n| n.max(0)),
    }
}

/// Returns true for a Job whose completions are interchangeable. The indexes of an Indexed Job start at 0 in each copy,
/// and no field can change that.
fn is_divisible_job(kind: &GroupKind, object: &Value) -> bool {
    let is_indexed = object.pointer("/spec/completionMode").and_then(Value::as_str) == Some("Indexed");
    (&*kind.group, &*kind.kind) == ("batch", "Job") && !is_indexed
}

fn pods(kind: &GroupKind, object: &Value, replicas: Option<i64>) -> i64 {
    let parallel = |spec: &str| {
        let at_once = number(object, &format!("{spec}/parallelism")).unwrap_or(1);
        number(object, &format!("{spec}/completions")).map_or(at_once, |n| n.min(at_once)).max(0)
    };
    match (&*kind.group, &*kind.kind) {
        ("batch", "CronJob") if is_managed_elsewhere(object.pointer("/spec/jobTemplate/spec")) => 0,
        ("batch", "Job") => parallel("/spec"),
        ("batch", "CronJob") => parallel("/spec/jobTemplate/spec"),
        _ => replicas.unwrap_or(1),
    }
}

/// Returns true when the object says that its volumes may stay behind.
pub fn abandons_volumes(object: &Value) -> bool {
    object::annotation(object, annotations::ABANDON_VOLUMES) == Some("true")
}

/// Returns true for a StatefulSet whose pods have claims of their own.
fn makes_claims(kind: &GroupKind, object: &Value) -> bool {
    let templates = object.pointer("/spec/volumeClaimTemplates").and_then(Value::as_array);
    (&*kind.group, &*kind.kind) == ("apps", "StatefulSet") && templates.is_some_and(|templates| !templates.is_empty())
}

fn moves(kind: &GroupKind, object: &Value) -> MoveStrategy {
    match (&*kind.group, &*kind.kind) {
        ("apps", "StatefulSet") | ("", "Pod") => MoveStrategy::Restart,
        ("apps", "Deployment") => match object.pointer("/spec/strategy/type").and_then(Value::as_str) {
            Some("Recreate") => MoveStrategy::Restart,
            _ => MoveStrategy::Surge,
        },
        ("batch", "CronJob") => MoveStrategy::Handover,
        ("batch", "Job") => {
            let started = object.pointer("/status/startTime").is_some_and(Value::is_string);
            let running = number(object, "/status/active").unwrap_or(0) > 0;
            if started || running { MoveStrategy::Stay } else { MoveStrategy::Handover }
        }
        _ => MoveStrategy::Surge,
    }
}

/// Returns the requests of a pod, as kube-scheduler counts them: the sum of its containers and sidecars, or its
/// largest init container if that is more, and its overhead.
fn pod_requests(pod: &Value) -> ResourceAmounts {
    let list = |key: &str| pod.get(key).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let mut sum = ResourceAmounts::new();
    list("containers").iter().for_each(|container| add(&mut sum, &container_requests(container)));
    for container in list("initContainers") {
        let requests = container_requests(container);
        match container.get("restartPolicy").and_then(Value::as_str) {
            Some("Always") => add(&mut sum, &requests),
            _ => requests.iter().for_each(|(name, amount)| {
                let largest = sum.entry(name.clone()).or_insert(*amount);
                *largest = (*largest).max(*amount);
            }),
        }
    }
    add(&mut sum, &quantities(pod.get("overhead")));
    sum
}

fn container_requests(container: &Value) -> ResourceAmounts {
    let mut requests = quantities(container.pointer("/resources/limits"));
    requests.extend(quantities(container.pointer("/resources/requests")));
    requests
}

fn quantities(amounts: Option<&Value>) -> ResourceAmounts {
    let parse = |value: &Value| match value {
        Value::String(text) => text.parse().ok(),
        Value::Number(number) => number.to_string().parse().ok(),
        _ => None,
    };
    let amounts = amounts.and_then(Value::as_object).into_iter().flatten();
    amounts.filter_map(|(name, value)| Some((name.clone(), parse(value)?))).collect()
}

fn add(sum: &mut ResourceAmounts, more: &ResourceAmounts) {
    for (name, amount) in more {
        let total = sum.entry(name.clone()).or_insert(Quantity::ZERO);
        *total = *total + *amount;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn workload(group: &str, kind: &str, object: &Value) -> Workload {
        let kind = GroupKind { group: group.into(), kind: kind.into() };
        Workload::of(kind, GroupResource::new(group, "x"), object)
    }

    #[test]
    fn requests_are_counted_as_kubernetes_does() {
        let deployment = json!({"metadata": {"name": "web"}, "spec": {"replicas": 3, "template": {"spec": {
            "containers": [
                {"name": "a", "resources": {"requests": {"cpu": "100m", "memory": "1Gi"}}},
                {"name": "b", "resources": {"limits": {"cpu": "200m"}}}],
            "initContainers": [
                {"name": "i", "resources": {"requests": {"cpu": "1"}}},
                {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"memory": "1Gi"}}}],
            "overhead": {"cpu": "50m"}}}}});
        let found = workload("apps", "Deployment", &deployment);
        assert_eq!(found.requests["cpu"], "1050m".parse().unwrap());
        assert_eq!(found.requests["memory"], "2Gi".parse().unwrap());
        assert_eq!((found.replicas, found.pods, found.moves), (Some(3), 3, MoveStrategy::Surge));
    }

    #[test]
    fn classes_of_moves() {
        let pod = json!({"containers": [{"name": "a"}]});
        for (case, group, kind, object, moves, finished) in [
            (
                "a rolling deployment",
                "apps",
                "Deployment",
                json!({"spec": {"template": {"spec": pod}}}),
                MoveStrategy::Surge,
                false,
            ),
            (
                "a recreated one",
                "apps",
                "Deployment",
                json!({"spec": {"strategy": {"type": "Recreate"}}}),
                MoveStrategy::Restart,
                false,
            ),
            ("a stateful set", "apps", "StatefulSet", json!({}), MoveStrategy::Restart, false),
            ("a bare pod", "", "Pod", json!({"spec": pod}), MoveStrategy::Restart, false),
            ("a pod that ended", "", "Pod", json!({"status": {"phase": "Succeeded"}}), MoveStrategy::Restart, true),
            ("a job to be started", "batch", "Job", json!({}), MoveStrategy::Handover, false),
            (
                "a started job",
                "batch",
                "Job",
                json!({"status": {"startTime": "2026-01-01T00:00:00Z"}}),
                MoveStrategy::Stay,
                false,
            ),
            (
                "a finished job",
                "batch",
                "Job",
                json!({"status": {"active": 0, "conditions": [{"type": "Complete", "status": "True"}]}}),
                MoveStrategy::Handover,
                true,
            ),
            ("a cron job", "batch", "CronJob", json!({}), MoveStrategy::Handover, false),
            ("a daemon set", "apps", "DaemonSet", json!({}), MoveStrategy::Surge, false),
        ] {
            let found = workload(group, kind, &object);
            assert_eq!((found.moves, found.finished), (moves, finished), "{case}");
        }
    }

    #[test]
    fn pins_are_names_joined_by_commas() {
        let pinned = |text: &str| {
            ClusterPin::of(&json!({"metadata": {"annotations": {"portolan.dev/pin": text}}}), PinScope::Object)
        };
        assert_eq!(pinned(" west, east ,west").map(|p| p.names), Some(vec!["east".to_owned(), "west".to_owned()]));
        assert_eq!(pinned(" , "), None);
    }
}
