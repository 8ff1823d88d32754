//! Fields of the subresource `scale` of a custom kind.

use std::sync::Arc;

use serde_json::{Map, Value};

/// Longest path that is followed, in bytes. Validation of definitions rejects longer paths that have a meaning.
const MAX_PATH: usize = 512;

/// Paths to the wanted and the observed number of replicas, such as `.spec.replicas` and `.status.replicas`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScaleFields {
    spec: Arc<str>,
    status: Arc<str>,
}

impl ScaleFields {
    /// Returns the fields at `specReplicasPath` and `statusReplicasPath`; `None` unless they begin with `.spec.` and
    /// `.status.`, as definitions must have it.
    pub fn new(spec: &str, status: &str) -> Option<Self> {
        let is_within = |path: &str, part: &str| path.len() <= MAX_PATH && path.starts_with(part);
        (is_within(spec, ".spec.") && is_within(status, ".status."))
            .then(|| Self { spec: spec.into(), status: status.into() })
    }

    /// Reads the fields from a version of a CustomResourceDefinition, if it declares the subresource.
    pub fn of_version(version: &Value) -> Option<Self> {
        let scale = version.pointer("/subresources/scale")?;
        let path = |name: &str| scale.get(name).and_then(Value::as_str);
        Self::new(path("specReplicasPath")?, path("statusReplicasPath")?)
    }

    /// Returns the wanted number of replicas of an object; `None` if it has none, or no number.
    pub fn wanted(&self, object: &Value) -> Option<i64> {
        steps(&self.spec).try_fold(object, |at, step| at.get(step))?.as_i64()
    }

    /// Sets the wanted number of replicas where the object has one.
    pub fn set_wanted(&self, object: &mut Value, replicas: i64) {
        if let Some(field) = steps(&self.spec).try_fold(object, |at, step| at.get_mut(step)) {
            *field = replicas.into();
        }
    }

    /// Returns the observed number of replicas in a `.status`; `None` if it has none, or no number.
    pub fn observed(&self, status: &Value) -> Option<i64> {
        self.steps_in_status().try_fold(status, |at, step| at.get(step))?.as_i64()
    }

    /// Returns the part of a `.status` that has the observed number, and the name of the field there.
    pub fn observed_in<'v>(&self, status: &'v mut Map<String, Value>) -> Option<(&'v mut Map<String, Value>, &str)> {
        let (around, name) = self.status.rsplit_once('.')?;
        let part = steps(around).skip(1).try_fold(status, |at, step| at.get_mut(step)?.as_object_mut())?;
        Some((part, name))
    }

    fn steps_in_status(&self) -> impl Iterator<Item = &str> {
        steps(&self.status).skip(1)
    }
}

fn steps(path: &str) -> impl Iterator<Item = &str> {
    path.trim_start_matches('.').split('.')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_scale_reads_the_paths_of_the_definition() {
        let version = json!({"subresources": {"scale": {
            "specReplicasPath": ".spec.workers.count", "statusReplicasPath": ".status.workers.running"}}});
        let scale = ScaleFields::of_version(&version).unwrap();
        let mut object = json!({"spec": {"workers": {"count": 5}}, "status": {"workers": {"running": 3}}});
        assert_eq!((scale.wanted(&object), scale.observed(&object["status"])), (Some(5), Some(3)));
        scale.set_wanted(&mut object, 2);
        assert_eq!(object["spec"], json!({"workers": {"count": 2}}));
        let mut status = object["status"].as_object().cloned().unwrap();
        let (part, name) = scale.observed_in(&mut status).unwrap();
        assert_eq!((part.len(), name), (1, "running"));
    }

    #[test]
    fn an_invalid_replica_count_is_left_alone() {
        let scale = ScaleFields::new(".spec.replicas", ".status.replicas").unwrap();
        for (case, object) in [
            ("nothing there", json!({"spec": {}, "status": {}})),
            ("no spec", json!({})),
            ("a list in between", json!({"spec": [1], "status": [1]})),
        ] {
            let mut changed = object.clone();
            scale.set_wanted(&mut changed, 7);
            assert_eq!(changed, object, "{case}");
            assert_eq!((scale.wanted(&object), scale.observed(&object["status"])), (None, None), "{case}");
        }
        for (spec, status) in [(".metadata.generation", ".status.x"), (".spec.x", ".spec.y"), ("", "")] {
            assert_eq!(ScaleFields::new(spec, status), None, "{spec:?} {status:?}");
        }
        assert_eq!(ScaleFields::of_version(&json!({"subresources": {"status": {}}})), None);
    }
}
