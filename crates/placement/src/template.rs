//! Pod that an object's template would make, and the number of such pods.

use portolan_types::{
    GroupKind, fingerprint, object,
    placement::{CopyPhase, PlacementRecord},
};
use serde_json::{Value, json};

use crate::{
    decide::{ChosenCluster, PlacementDecision},
    object_role::is_managed_elsewhere,
    workload::Workload,
};

/// Pod as the controller of an object would create it.
#[derive(Clone, Debug, PartialEq)]
pub struct TemplatePod {
    /// Pod, with `generateName`.
    pub pod: Value,
    /// Account in `kube-system` of the controller.
    pub by: &'static str,
    /// Volume claims that are made with it.
    pub claims: Vec<TemplateClaim>,
}

/// Volume claim as the controller of a StatefulSet would create it.
#[derive(Clone, Debug, PartialEq)]
pub struct TemplateClaim {
    /// Name of the template.
    pub template: String,
    /// Ordinal of the first pod.
    pub start: i64,
    /// Returns the first claim of each template of a StatefulSet.
    pub claim: Value,
}

impl TemplatePod {
    /// Returns the pod of an object whose pods downstream controllers make of a template; `None` for other kinds, bare
    /// Pods among them.
    ///
    /// For a StatefulSet it is the first pod. A Deployment represents its ReplicaSets, a CronJob its Jobs.
    pub fn of(kind: &GroupKind, owner: &Value) -> Option<Self> {
        let (template, by) = template_of(kind, owner)?;
        let name = object::name(owner);
        let mut metadata = json!({
            "namespace": object::namespace(owner),
            "generateName": format!("{name}-"),
            "ownerReferences": [{
                "apiVersion": owner["apiVersion"], "kind": &*kind.kind, "name": name, "uid": owner["metadata"]["uid"],
                "controller": true, "blockOwnerDeletion": true,
            }],
        });
        for key in ["labels", "annotations", "finalizers"] {
            if let Some(value) = template.pointer(&format!("/metadata/{key}")).filter(|value| !value.is_null()) {
                metadata[key] = value.clone();
            }
        }
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template.get("spec").cloned(),
        });
        let mut claims = Vec::new();
        if &*kind.kind == "StatefulSet" {
            give_identity(&mut pod, owner, name);
            claims = claims_of(owner);
        }
        Some(Self { pod, by, claims })
    }
}

/// Returns the fingerprint of the template that [`TemplatePod`] is made of.
pub fn template_fingerprint(kind: &GroupKind, owner: &Value) -> Option<String> {
    template_of(kind, owner).map(|(template, _)| fingerprint(template))
}

/// Returns the template, and the account of the controller.
fn template_of<'a>(kind: &GroupKind, owner: &'a Value) -> Option<(&'a Value, &'static str)> {
    let (template, by) = match (&*kind.group, &*kind.kind) {
        ("apps", "Deployment" | "ReplicaSet") => ("/spec/template", "replicaset-controller"),
        ("apps", "StatefulSet") => ("/spec/template", "statefulset-controller"),
        ("apps", "DaemonSet") => ("/spec/template", "daemon-set-controller"),
        ("batch", "Job") if is_managed_elsewhere(owner.get("spec")) => return None,
        ("batch", "CronJob") if is_managed_elsewhere(owner.pointer("/spec/jobTemplate/spec")) => return None,
        ("batch", "Job") => ("/spec/template", "job-controller"),
        ("batch", "CronJob") => ("/spec/jobTemplate/spec/template", "job-controller"),
        ("", "ReplicationController") => ("/spec/template", "replication-controller"),
        _ => return None,
    };
    Some((owner.pointer(template)?, by))
}

/// Returns true for resources whose pods downstream controllers make of a template.
pub fn has_template(group: &str, resource: &str) -> bool {
    matches!(
        (group, resource),
        ("apps", "deployments" | "replicasets" | "statefulsets" | "daemonsets")
            | ("batch", "jobs" | "cronjobs")
            | ("", "replicationcontrollers")
    )
}

/// Gives a pod the identity of the first pod of a StatefulSet: its name, and volumes for the claims of the set.
fn give_identity(pod: &mut Value, set: &Value, name: &str) {
    let start = first_ordinal(set);
    let own = format!("{name}-{start}");
    let claims = set.pointer("/spec/volumeClaimTemplates").and_then(Value::as_array).into_iter().flatten();
    let claims: Vec<&str> = claims.map(object::name).collect();
    let others = pod.pointer("/spec/volumes").and_then(Value::as_array).into_iter().flatten();
    let others = others.filter(|volume| !volume["name"].as_str().is_some_and(|name| claims.contains(&name)));
    let made = claims
        .iter()
        .map(|claim| json!({"name": claim, "persistentVolumeClaim": {"claimName": format!("{claim}-{own}")}}));
    let volumes: Vec<Value> = made.chain(others.cloned()).collect();
    let service = set.pointer("/spec/serviceName").cloned();
    if let Some(metadata) = pod["metadata"].as_object_mut() {
        metadata.remove("generateName");
        metadata.insert("name".into(), own.clone().into());
        let labels = object::child_mut(metadata, "labels");
        labels.insert("statefulset.kubernetes.io/pod-name".into(), own.clone().into());
        labels.insert("apps.kubernetes.io/pod-index".into(), start.to_string().into());
    }
    if let Some(spec) = pod["spec"].as_object_mut() {
        spec.insert("volumes".into(), volumes.into());
        spec.insert("hostname".into(), own.into());
        spec.extend(service.map(|service| ("subdomain".to_owned(), service)));
    }
}

fn first_ordinal(set: &Value) -> i64 {
    set.pointer("/spec/ordinals/start").and_then(Value::as_i64).unwrap_or(0)
}

/// The first claim of each template of a StatefulSet.
fn claims_of(set: &Value) -> Vec<TemplateClaim> {
    let start = first_ordinal(set);
    let selected = set.pointer("/spec/selector/matchLabels").and_then(Value::as_object).cloned().unwrap_or_default();
    let claim = |template: &Value| {
        let mut metadata = json!({
            "name": format!("{}-{}-{start}", object::name(template), object::name(set)),
            "namespace": object::namespace(set),
        });
        let mut labels = template.pointer("/metadata/labels").and_then(Value::as_object).cloned().unwrap_or_default();
        labels.extend(selected.clone());
        metadata["labels"] = labels.into();
        if let Some(annotations) = template.pointer("/metadata/annotations") {
            metadata["annotations"] = annotations.clone();
        }
        let spec = template.get("spec").cloned();
        let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec});
        TemplateClaim { template: object::name(template).to_owned(), start, claim }
    };
    let templates = set.pointer("/spec/volumeClaimTemplates").and_then(Value::as_array).into_iter().flatten();
    templates.map(claim).collect()
}

/// Returns the number of pods of an object once a decision is carried out: at the end of a move. Copies that stay for
/// lack of a better place count as long as they exist. Objects that have ended or are suspended have none.
pub fn wanted_pods(workload: &Workload, object: &Value, decision: &PlacementDecision, record: &PlacementRecord) -> i64 {
    let suspended = object.pointer("/spec/suspend").and_then(Value::as_bool) == Some(true);
    if suspended || workload.finished {
        return 0;
    }
    if decision.chosen.is_empty() {
        let there = record.clusters.iter().filter(|copy| copy.phase != CopyPhase::Projected);
        return there.map(|copy| record.replicas_of(copy, workload.pods)).sum();
    }
    let limit = |chosen: &ChosenCluster| decision.limits.get(&chosen.uid).copied().unwrap_or(i64::MAX);
    decision.chosen.iter().map(|chosen| chosen.replicas.unwrap_or(workload.pods).min(limit(chosen))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(group: &str, kind: &str) -> GroupKind {
        GroupKind { group: group.into(), kind: kind.into() }
    }

    #[test]
    fn the_pod_is_that_of_the_controller() {
        let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "a"}]}});
        let owner = |spec: Value| json!({"apiVersion": "x/v1", "metadata": {"name": "web", "namespace": "shop", "uid": "u"}, "spec": spec});
        let plain = owner(json!({"template": template}));
        let cron = owner(json!({"jobTemplate": {"spec": {"template": template}}}));
        for (group, name, object, by) in [
            ("apps", "Deployment", &plain, "replicaset-controller"),
            ("apps", "ReplicaSet", &plain, "replicaset-controller"),
            ("apps", "DaemonSet", &plain, "daemon-set-controller"),
            ("batch", "Job", &plain, "job-controller"),
            ("batch", "CronJob", &cron, "job-controller"),
            ("", "ReplicationController", &plain, "replication-controller"),
        ] {
            let made = TemplatePod::of(&kind(group, name), object).unwrap();
            assert_eq!(made.by, by, "{name}");
            assert_eq!(made.pod["metadata"]["generateName"], "web-", "{name}");
            assert_eq!(made.pod["metadata"]["labels"], json!({"app": "web"}), "{name}");
            assert_eq!(made.pod["metadata"]["ownerReferences"][0]["kind"], name, "{name}");
            assert_eq!(made.pod["spec"], template["spec"], "{name}");
        }
        let others = json!({"managedBy": "example.com/else", "template": template});
        assert_eq!(
            TemplatePod::of(&kind("batch", "Job"), &owner(others.clone())),
            None,
            "another controller makes them"
        );
        let cron = owner(json!({"jobTemplate": {"spec": others}}));
        assert_eq!(TemplatePod::of(&kind("batch", "CronJob"), &cron), None, "of its Jobs, too");
        assert_eq!(TemplatePod::of(&kind("", "Pod"), &plain), None, "it is one itself");
        assert_eq!(TemplatePod::of(&kind("db.io", "Cluster"), &plain), None, "who knows what becomes of it");
    }

    #[test]
    fn the_first_pod_of_a_set_has_its_claims() {
        let set = json!({"apiVersion": "apps/v1", "metadata": {"name": "db", "namespace": "shop", "uid": "u"}, "spec": {
            "serviceName": "db", "ordinals": {"start": 3}, "selector": {"matchLabels": {"app": "db"}},
            "volumeClaimTemplates": [{"metadata": {"name": "data", "labels": {"of": "db"}}, "spec": {"storageClassName": "fast"}}],
            "template": {"spec": {"volumes": [{"name": "data", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}]}}}});
        let TemplatePod { pod: made, claims, .. } = TemplatePod::of(&kind("apps", "StatefulSet"), &set).unwrap();
        assert_eq!((claims.len(), &*claims[0].template, claims[0].start), (1, "data", 3));
        let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": {"storageClassName": "fast"},
            "metadata": {"name": "data-db-3", "namespace": "shop", "labels": {"app": "db", "of": "db"}}});
        assert_eq!(claims[0].claim, claim);
        assert_eq!((&made["metadata"]["name"], made["metadata"].get("generateName")), (&json!("db-3"), None));
        let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data-db-3"}}, {"name": "tmp", "emptyDir": {}}]);
        assert_eq!(made["spec"]["volumes"], volumes);
        assert_eq!((&made["spec"]["hostname"], &made["spec"]["subdomain"]), (&json!("db-3"), &json!("db")));
    }
}
