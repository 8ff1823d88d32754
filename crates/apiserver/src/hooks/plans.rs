//! Plans of writes on which the placements of objects depend, and the check of objects that a plan would write.

use portolan_codec::decode::{self, FieldValidation, MediaType};
use portolan_kinds::{Kind, KindTable};
use portolan_strategy::defaults;
use portolan_types::{BoxFuture, GroupVersionKind, ObjectKey, ResourceVersion, Status, StatusCause};
use portolan_validation as validation;
use serde_json::Value;

use crate::directory::LogicalCluster;

/// Write that admission has accepted and that is not committed yet.
#[derive(Clone, Copy)]
pub struct AdmittedWrite<'a> {
    /// Logical cluster.
    pub cluster: &'a LogicalCluster,
    /// Kind of the object.
    pub kind: &'a Kind,
    /// Key of the object.
    pub key: &'a ObjectKey,
    /// Object as it would be stored.
    pub object: &'a Value,
    /// Stored object; `None` for a create.
    pub old: Option<&'a Value>,
}

/// Plan of one write.
#[derive(Clone, Debug)]
pub struct WritePlan {
    /// The plan in one line, for a `Warning` header.
    pub summary: String,
    /// Hash of the plan.
    pub hash: String,
    /// Plan fences with the revisions that were read; `None` where there was none. At most
    /// [`portolan_types::placement::MAX_PLAN_FENCES`].
    pub fences: Vec<(ObjectKey, Option<ResourceVersion>)>,
}

/// Planner of writes.
pub trait WritePlanner: Send + Sync {
    /// Returns true if the placements of objects may depend on what a write changes.
    fn concerns(&self, write: &AdmittedWrite<'_>) -> bool;

    /// Plans a write that affects placements.
    ///
    /// # Errors
    /// 413 for a plan that is too large, 429 while too many are made, and failures of the store.
    fn plan<'a>(&'a self, write: AdmittedWrite<'a>) -> BoxFuture<'a, Result<WritePlan, Status>>;
}

/// Checks a whole object of a built-in kind as a create does: its schema, with defaults, and its rules. `path` is that
/// of the object in a request. Returns the object with its defaults.
///
/// # Errors
/// One cause per fault, each with the path of its field.
pub fn check_whole_object(path: &str, object: &Value) -> Result<Value, Vec<StatusCause>> {
    let one =
        |message: String| vec![StatusCause { reason: "FieldValueInvalid".into(), message, field: path.to_owned() }];
    let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default();
    let table = KindTable::builtin();
    let gvk = GroupVersionKind::parse(text("apiVersion"), text("kind")).map_err(|error| one(error.to_string()))?;
    let kind = table.kind(&gvk).ok_or_else(|| one(format!("Invalid value: {gvk} is not a kind of this server")))?;
    let body = object.to_string();
    let decoded = decode::decode(table, kind, MediaType::Json, body.as_bytes(), FieldValidation::Strict);
    let mut object = decoded.map_err(|status| one(format!("Invalid value: {}", status.message())))?.object;
    defaults::apply(table, kind, &mut object).map_err(|status| one(format!("Invalid value: {}", status.message())))?;
    let mut causes = validation::validate_create(table, kind, &object);
    causes.iter_mut().for_each(|cause| cause.field = format!("{path}.{}", cause.field));
    if causes.is_empty() { Ok(object) } else { Err(causes) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn faults_of_a_planned_object_have_the_path_of_their_field() {
        let policy = |spec: Value| json!({"apiVersion": "portolan.dev/v1alpha1", "kind": "ClusterPlacementPolicy", "metadata": {"name": "p"}, "spec": spec});
        let fields = |object: &Value| {
            check_whole_object("spec.changes[0].apply", object)
                .err()
                .map(|causes| causes.into_iter().map(|cause| cause.field).collect::<Vec<_>>())
        };
        assert_eq!(fields(&policy(json!({"resources": [{"apiGroup": "apps"}]}))), None);
        let wrong = fields(&policy(json!({"resources": [], "enforcement": "Maybe"}))).unwrap();
        assert!(wrong.contains(&"spec.changes[0].apply.spec.enforcement".to_owned()), "{wrong:?}");
        for object in
            [policy(json!({"clusterz": {}})), json!({"apiVersion": "a/b/c"}), json!({"kind": "Nothing"}), json!(1)]
        {
            assert_eq!(fields(&object), Some(vec!["spec.changes[0].apply".to_owned()]), "{object}");
        }
    }
}
