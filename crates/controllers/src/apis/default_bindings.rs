//! Default bindings of workspace types: while a workspace initializes, its types' exports are bound, and the
//! initializer `system:apibindings` ends once all of them are.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use portolan_kinds::Kind;
use portolan_store::{ChangeKind, Event};
use portolan_types::{
    BoxFuture, GroupResource, GroupVersionKind, LogicalClusterId, ObjectKey,
    apis::{self, ExportAddress, ExportReference},
    lifecycle::{BINDINGS_INITIALIZER, LifecycleStage},
    object,
};
use serde_json::{Value, json};

use crate::{
    plane::{Plane, PlaneChange, PlaneError, PlaneObject},
    remaining_content::set_conditions,
    runtime::{Controller, WorkOutcome},
};

use super::{ExportDirectory, fails, kind_of, resolve};

/// Interval at which an export that is missing, or not bound yet, is looked for.
const RECHECK: Duration = Duration::from_secs(1);
/// Hexadecimal digits of the hash in the name of a binding.
const HASH_DIGITS: usize = 5;
/// Longest name of an object.
const MAX_NAME: usize = 253;

/// Bindings that a workspace waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingBindings {
    /// Its logical cluster.
    pub cluster: LogicalClusterId,
    /// Exports, as `<path of the workspace>:<name>`.
    pub exports: Vec<String>,
}

/// Controller of the default bindings of new workspaces.
pub struct DefaultBindingController {
    plane: Arc<Plane>,
    directory: Arc<dyn ExportDirectory>,
    bindings: &'static Kind,
    workspaces: &'static Kind,
    /// Label of a Workspace that waits.
    label: String,
    /// Workspaces that wait, by their logical cluster.
    waiting: Mutex<HashMap<LogicalClusterId, ObjectKey>>,
}

impl DefaultBindingController {
    /// Makes the controller.
    pub fn new(plane: Arc<Plane>, directory: Arc<dyn ExportDirectory>) -> Self {
        let gvk = GroupVersionKind::new("tenancy.kcp.io", "v1alpha1", "Workspace");
        let workspaces = plane.table().kind(&gvk).expect("the table has tenancy.kcp.io");
        let (label, _) = LifecycleStage::Initializing.label(BINDINGS_INITIALIZER);
        let bindings = kind_of(&plane, "v1alpha2", "APIBinding");
        Self { plane, directory, bindings, workspaces, label, waiting: Mutex::default() }
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, HashMap<LogicalClusterId, ObjectKey>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates a binding unless it exists. Returns what it still waits for; `None` once it is bound.
    async fn ensure(&self, cluster: LogicalClusterId, export: &str) -> Result<Option<String>, PlaneError> {
        let (path, name) = export.rsplit_once(':').unwrap_or(("", export));
        let reference = json!({"path": path, "name": name});
        let address = ExportReference::of(&reference).and_then(|own| resolve(&*self.directory, cluster, &own));
        let own_name = binding_name(cluster, path, name);
        let Ok(parsed) = own_name.parse() else { return Ok(Some(format!("{own_name} is no name of an object"))) };
        let key = ObjectKey::cluster_scoped(cluster, self.bindings.group_resource(), parsed);
        let bound = match self.plane.get(&key).await? {
            Some(bound) => Some(bound),
            None => match self.find(address.as_ref()).await? {
                None => return Ok(Some(format!("APIExport {path}|{name} not found"))),
                Some(found) => self.plane.create(self.bindings, cluster, binding(&own_name, reference, &found)).await?,
            },
        };
        let is_bound = bound.is_some_and(|bound| is_complete(&bound.object));
        Ok((!is_bound).then(|| format!("APIBinding {own_name} is not bound")))
    }

    async fn find(&self, address: Option<&ExportAddress>) -> Result<Option<PlaneObject>, PlaneError> {
        match address {
            None => Ok(None),
            Some(address) => self.plane.get(&address.key()).await,
        }
    }

    async fn report(&self, key: &ObjectKey, missing: &[String]) -> Result<(), PlaneError> {
        let condition = fails("APIBindingsInitialized", "WaitingOnAPIBindings", &missing.join("; "));
        let now = self.plane.seams().now_text();
        let write = |workspace: &mut Value| {
            let changed = set_conditions(workspace, [condition.clone()], &now);
            if changed { PlaneChange::Write(Some("status")) } else { PlaneChange::Keep }
        };
        self.plane.change(self.workspaces, key, write).await.map(drop)
    }

    async fn initialize(&self, key: &ObjectKey) -> Result<WorkOutcome, PlaneError> {
        let workspace = self.plane.get_reconciled(key).await?.filter(|found| !object::is_deleting(&found.object));
        let pending = match &workspace {
            Some(workspace) => self.directory.pending_bindings(key.cluster, &workspace.object).await?,
            None => None,
        };
        let Some(PendingBindings { cluster, exports }) = pending else {
            self.waiting().retain(|_, waiting| waiting != key);
            return Ok(WorkOutcome::Done);
        };
        self.waiting().insert(cluster, key.clone());
        let mut missing = Vec::new();
        for export in &exports {
            missing.extend(self.ensure(cluster, export).await?);
        }
        if missing.is_empty() {
            self.directory.end_bindings(cluster).await?;
            self.waiting().remove(&cluster);
            return Ok(WorkOutcome::Done);
        }
        self.report(key, &missing).await?;
        Ok(WorkOutcome::RequeueAfter(RECHECK))
    }
}

/// Returns the name of the binding of an export in a logical cluster.
fn binding_name(cluster: LogicalClusterId, path: &str, export: &str) -> String {
    let hash = apis::identity_of(format!("{cluster}|{path}|{export}").as_bytes());
    let prefix = &export[..export.floor_char_boundary(MAX_NAME - 1 - HASH_DIGITS)];
    format!("{prefix}-{}", &hash[..HASH_DIGITS])
}

/// Returns a binding that accepts all claims of its export: the user accepts them with the type.
fn binding(name: &str, reference: Value, export: &PlaneObject) -> Value {
    let accepted = apis::claims_of(&export.object).iter().map(|claim| {
        let selector = claim.get("defaultSelector").filter(|own| !own.is_null()).cloned();
        let mut accepted = claim.clone();
        if let Some(fields) = accepted.as_object_mut() {
            fields.remove("defaultSelector");
            fields.insert("selector".into(), selector.unwrap_or_else(|| json!({"matchAll": true})));
            fields.insert("state".into(), "Accepted".into());
        }
        accepted
    });
    json!({
        "apiVersion": "apis.kcp.io/v1alpha2", "kind": "APIBinding", "metadata": {"name": name},
        "spec": {"reference": {"export": reference}, "permissionClaims": accepted.collect::<Vec<_>>()},
    })
}

fn is_complete(binding: &Value) -> bool {
    let conditions = binding.pointer("/status/conditions").and_then(Value::as_array);
    let completed = |own: &Value| own["type"] == "InitialBindingCompleted" && own["status"] == "True";
    binding.pointer("/status/phase").is_some_and(|phase| phase == "Bound")
        && conditions.into_iter().flatten().any(completed)
}

impl Controller for DefaultBindingController {
    type Key = ObjectKey;

    fn name(&self) -> &'static str {
        "default-api-bindings"
    }

    fn resources(&self) -> Vec<GroupResource> {
        vec![self.workspaces.group_resource(), self.bindings.group_resource()]
    }

    fn keys(&self, event: &Event) -> Vec<ObjectKey> {
        if event.key.resource == self.workspaces.group_resource() {
            let waits = event.change != ChangeKind::Deleted && event.record.header.label(&self.label).is_some();
            return waits.then(|| event.key.clone()).into_iter().collect();
        }
        self.waiting().get(&event.key.cluster).cloned().into_iter().collect()
    }

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<WorkOutcome, PlaneError>> {
        Box::pin(self.initialize(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_bindings_are_names_of_objects() {
        let cluster = LogicalClusterId::new(7);
        let name = binding_name(cluster, "root", "widgets");
        assert!(name.starts_with("widgets-") && name.len() == "widgets-".len() + HASH_DIGITS, "{name}");
        assert_ne!(name, binding_name(cluster, "root:a", "widgets"), "an export of the same name elsewhere");
        assert_eq!(binding_name(cluster, "root", &"a".repeat(MAX_NAME)).len(), MAX_NAME);
    }
}
