//! The object to be placed, reduced to what a decision needs.

use std::collections::BTreeMap;

use portolan_types::{
    GroupKind, GroupResource, Uid, annotations, object,
    placement::{Phase, PlacementRecord, Resources},
    quantity::Quantity,
};
use serde_json::Value;

use crate::{
    references::for_each_pod_spec,
    role::{Role, is_managed_elsewhere, role_of},
};

/// Where a pin stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinOn {
    /// On the object itself.
    Object,
    /// On its namespace.
    Namespace,
}

/// Names of physical clusters that an object must run on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The names, sorted, none twice.
    pub names: Vec<String>,
    /// Where it stands.
    pub on: PinOn,
}

impl Pin {
    /// The pin on an object, when it has one that names anything.
    pub fn of(object: &Value, on: PinOn) -> Option<Self> {
        let text = object::annotation(object, annotations::PIN)?;
        let mut names: Vec<String> =
            text.split(',').map(str::trim).filter(|n| !n.is_empty()).map(str::to_owned).collect();
        names.sort_unstable();
        names.dedup();
        (!names.is_empty()).then_some(Self { names, on })
    }
}

/// How an object gets from one physical cluster to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moves {
    /// A → A+B → B: two copies do no harm.
    Surge,
    /// A → none → B, whenever a policy says so: exactly one copy is active.
    Handover,
    /// A → none → B, and only by explicit pin or drain.
    Restart,
    /// Stays where it started, unless it is pinned itself.
    Stay,
}

impl Moves {
    /// Whether two copies never run at the same time during a move.
    pub fn one_at_a_time(self) -> bool {
        !matches!(self, Self::Surge)
    }
}

/// The object to be placed, reduced to what a decision needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Its kind.
    pub kind: GroupKind,
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
    /// What it is to placement.
    pub role: Role,
    /// Its pin, or else its namespace's.
    pub pin: Option<Pin>,
    /// `spec.replicas`, for what has them.
    pub replicas: Option<i64>,
    /// Pods that one whole copy makes; 0 for what makes none.
    pub pods: i64,
    /// What one pod requests.
    pub requests: Resources,
    /// How it gets from one physical cluster to another.
    pub moves: Moves,
    /// It has data on volumes that do not move with it, and nobody has said that they may be abandoned.
    pub keeps_volumes: bool,
    /// At most one copy, whatever a policy says.
    pub single: bool,
    /// It has ended: it is not run again elsewhere.
    pub finished: bool,
    /// Physical clusters of the objects that have the same controller.
    pub siblings: Vec<Uid>,
}

impl Workload {
    /// What an object is to placement. Pins of the namespace, siblings and volumes are the caller's to add.
    pub fn of(kind: GroupKind, resource: GroupResource, object: &Value) -> Self {
        let role = role_of(&kind.group, &kind.kind, object);
        let mut requests = Resources::new();
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
        Self {
            namespace: object::namespace(object).to_owned(),
            name: object::name(object).to_owned(),
            labels: labels
                .into_iter()
                .flatten()
                .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
                .collect(),
            generation: object::generation(object),
            role,
            pin: Pin::of(object, PinOn::Object),
            pods: if has_pods { pods(&kind, object, replicas) } else { 0 },
            replicas,
            requests,
            moves: moves(&kind, object),
            keeps_volumes: makes_claims(&kind, object) && !abandons_volumes(object),
            single: &*kind.kind == "CronJob" && &*kind.group == "batch",
            finished: object::has_ended(&kind.group, &kind.kind, object),
            siblings: Vec::new(),
            kind,
            resource,
        }
    }

    /// `deployment/web`, for people.
    pub fn title(&self) -> String {
        format!("{}/{}", self.kind.kind.to_lowercase(), self.name)
    }

    /// Returns the available pods that make a copy healthy which has a share of the replicas, or a limit to them; 1 stands for
    /// "it is there" where nothing is counted.
    pub fn needed(&self, share: Option<i64>, limit: Option<i64>) -> i64 {
        share.or(self.replicas).unwrap_or(1).min(limit.unwrap_or(i64::MAX))
    }
}

/// What an object takes of each physical cluster that its record names, leaving ones included.
pub fn contribution(workload: &Workload, record: &PlacementRecord) -> Vec<(Uid, Resources)> {
    let of = |pods: i64| {
        let mut sum: Resources = workload.requests.iter().map(|(name, q)| (name.clone(), q.times(pods))).collect();
        sum.insert("pods".into(), Quantity::from_units(pods));
        sum
    };
    let takes = |phase| matches!(phase, Phase::Active | Phase::Leaving);
    let copies = record.clusters.iter().filter(|copy| workload.pods > 0 && takes(copy.phase));
    copies.map(|copy| (copy.uid.clone(), of(record.replicas_of(copy, workload.pods)))).collect()
}

fn number(object: &Value, path: &str) -> Option<i64> {
    object.pointer(path).and_then(Value::as_i64)
}

fn replicas(kind: &GroupKind, object: &Value) -> Option<i64> {
    match (&*kind.group, &*kind.kind) {
        ("apps", "Deployment" | "StatefulSet" | "ReplicaSet") | ("", "ReplicationController") => {
            Some(number(object, "/spec/replicas").unwrap_or(1).max(0))
        }
        ("" | "apps" | "batch" | "autoscaling" | "policy" | "networking.k8s.io", _) => None,
        _ => number(object, "/spec/replicas").map(|n| n.max(0)),
    }
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

fn moves(kind: &GroupKind, object: &Value) -> Moves {
    match (&*kind.group, &*kind.kind) {
        ("apps", "StatefulSet") | ("", "Pod") => Moves::Restart,
        ("apps", "Deployment") => match object.pointer("/spec/strategy/type").and_then(Value::as_str) {
            Some("Recreate") => Moves::Restart,
            _ => Moves::Surge,
        },
        ("batch", "CronJob") => Moves::Handover,
        ("batch", "Job") => {
            let started = object.pointer("/status/startTime").is_some_and(Value::is_string);
            let running = number(object, "/status/active").unwrap_or(0) > 0;
            if started || running { Moves::Stay } else { Moves::Handover }
        }
        _ => Moves::Surge,
    }
}

/// What a pod of this spec requests, as the Kubernetes scheduler counts: the sum of its containers and sidecars, or its
/// largest init container where that is more, and its overhead.
fn pod_requests(pod: &Value) -> Resources {
    let list = |key: &str| pod.get(key).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let mut sum = Resources::new();
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

fn container_requests(container: &Value) -> Resources {
    let mut requests = quantities(container.pointer("/resources/limits"));
    requests.extend(quantities(container.pointer("/resources/requests")));
    requests
}

fn quantities(amounts: Option<&Value>) -> Resources {
    let parse = |value: &Value| match value {
        Value::String(text) => text.parse().ok(),
        Value::Number(number) => number.to_string().parse().ok(),
        _ => None,
    };
    let amounts = amounts.and_then(Value::as_object).into_iter().flatten();
    amounts.filter_map(|(name, value)| Some((name.clone(), parse(value)?))).collect()
}

fn add(sum: &mut Resources, more: &Resources) {
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
        assert_eq!((found.replicas, found.pods, found.moves), (Some(3), 3, Moves::Surge));
    }

    #[test]
    fn how_things_move() {
        let pod = json!({"containers": [{"name": "a"}]});
        for (case, group, kind, object, moves, finished) in [
            (
                "a rolling deployment",
                "apps",
                "Deployment",
                json!({"spec": {"template": {"spec": pod}}}),
                Moves::Surge,
                false,
            ),
            (
                "a recreated one",
                "apps",
                "Deployment",
                json!({"spec": {"strategy": {"type": "Recreate"}}}),
                Moves::Restart,
                false,
            ),
            ("a stateful set", "apps", "StatefulSet", json!({}), Moves::Restart, false),
            ("a bare pod", "", "Pod", json!({"spec": pod}), Moves::Restart, false),
            ("a pod that ended", "", "Pod", json!({"status": {"phase": "Succeeded"}}), Moves::Restart, true),
            ("a job to be started", "batch", "Job", json!({}), Moves::Handover, false),
            (
                "a started job",
                "batch",
                "Job",
                json!({"status": {"startTime": "2026-01-01T00:00:00Z"}}),
                Moves::Stay,
                false,
            ),
            (
                "a finished job",
                "batch",
                "Job",
                json!({"status": {"active": 0, "conditions": [{"type": "Complete", "status": "True"}]}}),
                Moves::Handover,
                true,
            ),
            ("a cron job", "batch", "CronJob", json!({}), Moves::Handover, false),
            ("a daemon set", "apps", "DaemonSet", json!({}), Moves::Surge, false),
        ] {
            let found = workload(group, kind, &object);
            assert_eq!((found.moves, found.finished), (moves, finished), "{case}");
        }
    }

    #[test]
    fn pins_are_names_joined_by_commas() {
        let pinned =
            |text: &str| Pin::of(&json!({"metadata": {"annotations": {"portolan.dev/pin": text}}}), PinOn::Object);
        assert_eq!(pinned(" west, east ,west").map(|p| p.names), Some(vec!["east".to_owned(), "west".to_owned()]));
        assert_eq!(pinned(" , "), None);
    }
}
