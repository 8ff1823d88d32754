//! Target of an autoscaler: its number of replicas, and its pods on all physical clusters.

use portolan_controllers::{
    Plane, PlaneError, PlaneObject,
    plane::{ObjectList, PlaneChange},
};
use portolan_store::{RangeRequest, RangeScope};
use portolan_types::{
    GroupResource, LabelSelector, ObjectKey, annotations, labels::LabelSelectorSpec, object, placement::PlacementRecord,
};
use serde::Deserialize as _;
use serde_json::{Value, json};

/// Most pods of one target.
const MAX_PODS: usize = 20_000;

/// Object that an autoscaler scales.
pub(super) struct ScaleTarget {
    object: PlaneObject,
}

impl ScaleTarget {
    /// Reads the target of a `scaler` at `key`.
    ///
    /// # Errors
    /// The reason why there is none, in the words of kube-controller-manager.
    pub(super) async fn read(
        plane: &Plane,
        key: &ObjectKey,
        scaler: &Value,
    ) -> Result<Result<Self, String>, PlaneError> {
        let reference = &scaler["spec"]["scaleTargetRef"];
        let text = |field: &str| reference[field].as_str().unwrap_or_default();
        let (version, kind, name) = (text("apiVersion"), text("kind"), text("name"));
        let group = version.split_once('/').map_or("", |(group, _)| group);
        let resource = match (group, kind) {
            ("apps", "Deployment") => "deployments",
            ("apps", "StatefulSet") => "statefulsets",
            ("apps", "ReplicaSet") => "replicasets",
            ("", "ReplicationController") => "replicationcontrollers",
            _ => return Ok(Err(format!("no matches for kind {kind:?} in group {group:?}"))),
        };
        let resource = GroupResource::new(group, resource);
        let missing = format!("{resource} {name:?} not found");
        let Ok(name) = name.parse() else { return Ok(Err(missing)) };
        let found = plane.get(&ObjectKey { resource, name, ..key.clone() }).await?;
        Ok(found.map(|object| Self { object }).ok_or(missing))
    }

    /// Returns true if a policy lets its autoscalers scale upstream.
    pub(super) fn scales_globally(&self) -> bool {
        PlacementRecord::of(&self.object.object).is_some_and(|record| record.scales_globally)
    }

    /// Returns `spec.replicas`.
    pub(super) fn replicas(&self) -> i64 {
        self.object.object["spec"]["replicas"].as_i64().unwrap_or(1)
    }

    /// Sets `spec.replicas`.
    ///
    /// # Errors
    /// Failure of the store, or of the rules.
    pub(super) async fn scale(&self, plane: &Plane, replicas: i64) -> Result<(), PlaneError> {
        let Some(kind) = plane.stored_kind(&self.object.key.resource) else { return Ok(()) };
        let uid = object::uid(&self.object.object);
        let scale = |current: &mut Value| {
            if object::uid(current) != uid {
                return PlaneChange::Keep;
            }
            current["spec"]["replicas"] = replicas.into();
            PlaneChange::Write(None)
        };
        plane.change(kind, &self.object.key, scale).await.map(drop)
    }

    /// Returns the selector of its pods; `None` if it has none.
    fn selector(&self) -> Option<LabelSelector> {
        let selector = &self.object.object["spec"]["selector"];
        if self.object.key.resource.group.is_empty() {
            let spec = json!({"matchLabels": selector});
            return LabelSelector::try_from(&LabelSelectorSpec::deserialize(&spec).ok()?).ok();
        }
        LabelSelector::try_from(&LabelSelectorSpec::deserialize(selector).ok()?).ok()
    }

    /// Reads its pods on all physical clusters, reduced to the fields that scaling depends on; `None` without a
    /// selector.
    ///
    /// # Errors
    /// Failure of the store.
    pub(super) async fn pods(&self, plane: &Plane) -> Result<Option<Vec<Value>>, PlaneError> {
        let Some(labels) = self.selector().filter(|selector| !selector.is_everything()) else { return Ok(None) };
        let key = &self.object.key;
        let Some(namespace) = key.namespace().cloned() else { return Ok(None) };
        let scope = RangeScope::Namespace(key.cluster, GroupResource::new("", "pods"), namespace);
        let (mut pods, mut next) =
            (Vec::new(), Some(RangeRequest { labels, ..RangeRequest::slices(scope).skip_damaged() }));
        while let Some(request) = next.filter(|_| pods.len() < MAX_PODS) {
            let page = plane.store().range(request.clone()).await?;
            next = request.next(&page);
            pods.extend(ObjectList::of(page)?.found.iter().map(|found| scaled_part(&found.object)));
        }
        Ok(Some(pods))
    }
}

/// Returns the part of a pod that scaling and its usage depend on.
fn scaled_part(pod: &Value) -> Value {
    let mut metadata = json!({});
    for field in ["name", "namespace", "uid", "deletionTimestamp"] {
        if let Some(value) = object::metadata(pod).get(field) {
            metadata[field] = value.clone();
        }
    }
    for name in [annotations::PLACEMENT, annotations::SOURCE] {
        if let Some(text) = object::annotation(pod, name) {
            metadata["annotations"][name] = text.into();
        }
    }
    let mut spec = json!({"resources": pod["spec"]["resources"]});
    for list in ["containers", "initContainers"] {
        let containers = pod["spec"][list].as_array().into_iter().flatten();
        let kept = containers.map(|own| {
            let requests = &own["resources"]["requests"];
            json!({"name": own["name"], "restartPolicy": own["restartPolicy"], "resources": {"requests": requests}})
        });
        spec[list] = kept.collect();
    }
    let status = &pod["status"];
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let ready: Vec<&Value> = conditions.filter(|condition| condition["type"] == "Ready").collect();
    let status = json!({"phase": status["phase"], "startTime": status["startTime"], "conditions": ready});
    json!({"metadata": metadata, "spec": spec, "status": status})
}
