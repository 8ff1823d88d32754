//! Bindings: resolve the export, record its schemas, and serve its resources unless their names are taken.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use portolan_kinds::{
    Kind,
    custom::{self, Definition},
};
use portolan_store::{ChangeKind, Event, Expect, RangeScope, StoreError, Transaction};
use portolan_types::{
    BoxFuture, GroupResource, LogicalClusterId, ObjectKey, Record, Status,
    apis::{self, ExportAddress, ExportReference},
    object,
};
use serde_json::{Value, json};

use crate::{
    plane::{Plane, PlaneChange, PlaneError, PlaneObject},
    remaining_content::set_conditions,
    runtime::{Controller, WorkOutcome},
};

use super::{
    ExportDirectory, binding_index::BindingIndex, conflicts::conflict, exported_schemas::ExportedSchemaNames, fails,
    holds, kind_of, summary,
};

/// Controller of bindings.
pub struct BindingController {
    pub(super) plane: Arc<Plane>,
    directory: Arc<dyn ExportDirectory>,
    pub(super) kind: &'static Kind,
    /// Bindings by the label of their export.
    index: BindingIndex<String>,
    schemas: ExportedSchemaNames,
}

/// Export as a binding sees it.
struct FoundExport {
    address: ExportAddress,
    object: Value,
    identity: String,
    schemas: Vec<ExportedSchema>,
}

/// Schema of an exported resource.
struct ExportedSchema {
    name: String,
    uid: String,
    crd: Value,
    definition: Arc<Definition>,
}

/// Why an export cannot be bound: reason and message.
type Invalid = (&'static str, String);

impl BindingController {
    /// Makes the controller.
    pub fn new(plane: Arc<Plane>, directory: Arc<dyn ExportDirectory>) -> Self {
        let kind = kind_of(&plane, "v1alpha2", "APIBinding");
        Self { plane, directory, kind, index: BindingIndex::default(), schemas: ExportedSchemaNames::default() }
    }

    /// Reconciles the bindings of a logical cluster. Its key is processed by one worker at a time, so two bindings
    /// cannot take the same name concurrently.
    async fn reconcile_consumer(&self, cluster: LogicalClusterId) -> Result<Option<Duration>, PlaneError> {
        let scope = RangeScope::Cluster(cluster, self.kind.group_resource());
        let listed = self.plane.list_skipping_damaged(scope, None).await?;
        let mut again = None::<Duration>;
        for binding in listed.found {
            if object::is_deleting(&binding.object) {
                let due = self.unbind(&binding).await?;
                again = again.into_iter().chain(due).min();
            } else {
                self.bind(&binding).await?;
            }
        }
        Ok(again)
    }

    async fn bind(&self, binding: &PlaneObject) -> Result<(), PlaneError> {
        let found = self.export_of(binding).await?;
        let label = self.address_of(binding).map(|address| address.label());
        let complete = |binding: &mut Value| {
            let before = binding.clone();
            object::set_label(binding, apis::EXPORT_LABEL, label.clone());
            add_finalizer(binding);
            if *binding == before { PlaneChange::Keep } else { PlaneChange::Write(None) }
        };
        self.plane.change(self.kind, &binding.key, complete).await?;
        let outcome = match found {
            Err(invalid) => Err(("APIExportValid", invalid)),
            Ok(found) => match self.conflict(binding, &found).await? {
                Some(why) => Err(("", ("NamingConflicts", why))),
                None => {
                    self.record_schemas(&found).await?;
                    Ok(found)
                }
            },
        };
        let now = self.plane.seams().now_text();
        let write = |binding: &mut Value| {
            let before = binding.clone();
            match &outcome {
                Ok(found) => write_bound(binding, found, &now),
                Err((condition, why)) => write_failure(binding, condition, why, &now),
            }
            if *binding == before { PlaneChange::Keep } else { PlaneChange::Write(Some("status")) }
        };
        self.plane.change(self.kind, &binding.key, write).await.map(drop)
    }

    fn address_of(&self, binding: &PlaneObject) -> Option<ExportAddress> {
        let reference = binding.object.pointer("/spec/reference/export").and_then(ExportReference::of)?;
        super::resolve(&*self.directory, binding.key.cluster, &reference)
    }

    async fn export_of(&self, binding: &PlaneObject) -> Result<Result<FoundExport, Invalid>, PlaneError> {
        let missing = || {
            let text = |key| binding.object.pointer(&format!("/spec/reference/export/{key}")).and_then(Value::as_str);
            let (path, name) = (text("path").unwrap_or_default(), text("name").unwrap_or_default());
            ("APIExportNotFound", format!("APIExport {path}|{name} not found"))
        };
        let Some(address) = self.address_of(binding) else { return Ok(Err(missing())) };
        // A bound binding stays with its export, also if another workspace has the path now.
        let known = binding.object.pointer("/status/apiExportClusterName").and_then(Value::as_str);
        if known.is_some_and(|known| known != address.cluster.to_string()) {
            return Ok(Err(("APIExportNotFound", "the workspace of the APIExport is another one now".into())));
        }
        let Some(export) = self.plane.get(&address.key()).await? else { return Ok(Err(missing())) };
        let identity = export.object.pointer("/status/identityHash").and_then(Value::as_str).unwrap_or_default();
        if identity.is_empty() {
            return Ok(Err(("MissingIdentityHash", "identityHash is missing".into())));
        }
        let bound_to = apis::bound_resources(&binding.object).next();
        let bound_to = bound_to.and_then(|(_, bound)| bound.pointer("/schema/identityHash")?.as_str());
        if bound_to.is_some_and(|bound_to| bound_to != identity) {
            return Ok(Err(("APIExportInvalidReference", "the APIExport has another identity now".into())));
        }
        let identity = identity.to_owned();
        let schemas = self.schemas(&address, &export.object).await?;
        Ok(schemas.map(|schemas| FoundExport { address, object: export.object, identity, schemas }))
    }

    async fn schemas(
        &self,
        address: &ExportAddress,
        export: &Value,
    ) -> Result<Result<Vec<ExportedSchema>, Invalid>, PlaneError> {
        let mut all = Vec::new();
        for resource in export.pointer("/spec/resources").and_then(Value::as_array).into_iter().flatten() {
            let name = resource.get("schema").and_then(Value::as_str).unwrap_or_default();
            if resource.pointer("/storage/virtual").is_some_and(|own| !own.is_null()) {
                let why = format!("virtual storage of {name} is not supported");
                return Ok(Err(("APIResourceSchemaInvalid", why)));
            }
            let missing = || ("APIResourceSchemaInvalid", format!("associated APIResourceSchema {name:?} not found"));
            let Ok(parsed) = name.parse() else { return Ok(Err(missing())) };
            let key = ObjectKey::cluster_scoped(address.cluster, apis::resource(apis::SCHEMAS), parsed);
            let Some(schema) = self.plane.get(&key).await? else { return Ok(Err(missing())) };
            let crd = custom::definition_of_schema(&schema.object);
            let definition = Arc::new(Definition { is_bound: true, ..Definition::read(&crd, || None) });
            if definition.is_builtin || !definition.is_established {
                return Ok(Err(("APIResourceSchemaInvalid", format!("{} cannot be exported", definition.resource))));
            }
            let uid = object::meta_text(&schema.object, "uid").to_owned();
            all.push(ExportedSchema { name: name.to_owned(), uid, crd, definition });
        }
        Ok(Ok(all))
    }

    async fn conflict(&self, binding: &PlaneObject, found: &FoundExport) -> Result<Option<String>, PlaneError> {
        let wanted: Vec<_> = found.schemas.iter().map(|schema| schema.definition.clone()).collect();
        let present = self.plane.kinds().definitions(binding.key.cluster).await?;
        Ok(conflict(&binding.object, &wanted, &present))
    }

    /// Stores the schemas for the bindings that refer to them, once each.
    async fn record_schemas(&self, found: &FoundExport) -> Result<(), PlaneError> {
        for schema in &found.schemas {
            let key = apis::bound_schema(found.address.cluster, &schema.definition.resource, &schema.uid);
            let key = key.ok_or_else(|| Status::bad_request("the names of the schema are too long"))?;
            if self.plane.store().get(&key).await?.is_some() {
                continue;
            }
            let txn = Transaction::one(key, Expect::Absent, Some(Record::of(&schema.crd)));
            match self.plane.store().commit(txn).await {
                Ok(_) | Err(StoreError::AlreadyExists { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Returns the logical clusters that bind an export.
    fn consumers(&self, export: &ExportAddress) -> BTreeSet<LogicalClusterId> {
        self.index.clusters(&export.label())
    }

    /// Returns the logical clusters whose bindings an export affects, and records its schemas.
    fn consumers_of_export(&self, event: &Event) -> BTreeSet<LogicalClusterId> {
        let is_deletion = event.change == ChangeKind::Deleted;
        let object = (!is_deletion).then(|| event.record.to_value(event.revision).unwrap_or_default());
        self.schemas.set(&event.key, object.as_ref());
        self.consumers(&ExportAddress { cluster: event.key.cluster, name: event.key.name.clone() })
    }

    /// Records the export of a binding.
    fn take_binding(&self, event: &Event) {
        let label = event.record.header.label(apis::EXPORT_LABEL).map(str::to_owned);
        self.index.set(&event.key, label.filter(|_| event.change != ChangeKind::Deleted));
        // The cached kinds are older than the event.
        drop(self.plane.kinds().changing(&event.key));
    }
}

fn add_finalizer(binding: &mut Value) {
    let finalizers = object::metadata_mut(binding).entry("finalizers").or_insert_with(|| json!([]));
    let Some(list) = finalizers.as_array_mut() else { return };
    if !list.iter().any(|own| own == apis::BINDING_FINALIZER) {
        list.push(apis::BINDING_FINALIZER.into());
    }
}

/// Writes the status of a binding that serves its export. A resource that left the export stays bound, as in kcp: its
/// objects can be read and deleted, and go with the binding.
fn write_bound(binding: &mut Value, found: &FoundExport, now: &str) {
    let mut bound: Vec<Value> = found.schemas.iter().map(|schema| bound_resource(binding, found, schema)).collect();
    let is_exported = |resource: &GroupResource| found.schemas.iter().any(|own| own.definition.resource == *resource);
    let left = apis::bound_resources(binding).filter(|(resource, _)| !is_exported(resource));
    bound.extend(left.map(|(_, own)| own.clone()));
    let applied = apis::applied_claims(&found.object, binding);
    let valid = claims_condition(&found.object, binding);
    let status = &mut binding["status"];
    status["apiExportClusterName"] = found.address.cluster.to_string().into();
    status["phase"] = "Bound".into();
    for (key, list) in [
        ("boundResources", bound),
        ("appliedPermissionClaims", applied),
        ("exportPermissionClaims", apis::claims_of(&found.object).to_vec()),
    ] {
        let fields = object::child_mut(binding.as_object_mut().expect("it is an object"), "status");
        if list.is_empty() {
            fields.remove(key);
        } else {
            fields.insert(key.into(), list.into());
        }
    }
    let mut all = ["APIExportValid", "InitialBindingCompleted", "BindingUpToDate"].map(holds).to_vec();
    all.extend([valid, holds("PermissionClaimsApplied")]);
    all.push(summary(&all));
    set_conditions(binding, all, now);
}

/// Writes the status of a binding that cannot serve its export. What it served before, it continues to serve.
fn write_failure(binding: &mut Value, condition: &str, (reason, message): &Invalid, now: &str) {
    let is_bound = binding.pointer("/status/phase").and_then(Value::as_str) == Some("Bound");
    if !is_bound {
        binding["status"]["phase"] = "Binding".into();
    }
    // A conflict is about the first binding or about a later schema.
    let about = match (condition, is_bound) {
        ("", true) => "BindingUpToDate",
        ("", false) => "InitialBindingCompleted",
        _ => condition,
    };
    let failure = fails(about, reason, message);
    let mut all = if condition.is_empty() { vec![holds("APIExportValid")] } else { Vec::new() };
    all.push(failure);
    all.push(summary(&all));
    set_conditions(binding, all, now);
}

fn bound_resource(binding: &Value, found: &FoundExport, schema: &ExportedSchema) -> Value {
    let resource = &schema.definition.resource;
    let before = apis::bound_resources(binding).find(|(known, _)| known == resource);
    let before = before.and_then(|(_, bound)| bound.get("storageVersions")?.as_array());
    let mut versions: BTreeSet<String> =
        before.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
    let stored = schema.crd.pointer("/status/storedVersions").and_then(Value::as_array);
    versions.extend(stored.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned));
    json!({
        "group": &*resource.group,
        "resource": &*resource.resource,
        "schema": {"name": schema.name, "UID": schema.uid, "identityHash": found.identity},
        "storageVersions": versions,
    })
}

/// Returns the condition about the claims that the binding accepts.
fn claims_condition(export: &Value, binding: &Value) -> Value {
    let accepted = apis::claims_of(binding).iter().filter(|claim| claim["state"] == "Accepted");
    let unknown = accepted.filter(|claim| !apis::claims_of(export).iter().any(|own| apis::is_same_claim(own, claim)));
    let unknown: Vec<String> = unknown.map(|claim| apis::claimed_resource(claim).to_string()).collect();
    if unknown.is_empty() {
        return holds("PermissionClaimsValid");
    }
    let message = format!("the APIExport does not claim {}", unknown.join(", "));
    fails("PermissionClaimsValid", "InvalidPermissionClaims", &message)
}

impl Controller for BindingController {
    type Key = LogicalClusterId;

    fn name(&self) -> &'static str {
        "api-bindings"
    }

    fn resources(&self) -> Vec<GroupResource> {
        let definitions = GroupResource::new(custom::GROUP, custom::RESOURCE);
        vec![self.kind.group_resource(), apis::resource(apis::EXPORTS), apis::resource(apis::SCHEMAS), definitions]
    }

    fn keys(&self, event: &Event) -> Vec<LogicalClusterId> {
        let (cluster, is_deletion) = (event.key.cluster, event.change == ChangeKind::Deleted);
        match &*event.key.resource.resource {
            apis::EXPORTS => self.consumers_of_export(event).into_iter().collect(),
            apis::SCHEMAS if is_deletion => Vec::new(),
            apis::SCHEMAS => {
                let exports = self.schemas.exports_of(&event.key);
                exports.iter().flat_map(|export| self.consumers(export)).collect()
            }
            apis::BINDINGS => {
                self.take_binding(event);
                vec![cluster]
            }
            // A binding may wait for the names of a definition.
            _ if is_deletion => vec![cluster],
            _ => Vec::new(),
        }
    }

    fn reconcile<'a>(&'a self, cluster: &'a LogicalClusterId) -> BoxFuture<'a, Result<WorkOutcome, PlaneError>> {
        Box::pin(async move {
            let again = self.reconcile_consumer(*cluster).await?;
            Ok(again.map_or(WorkOutcome::Done, WorkOutcome::RequeueAfter))
        })
    }
}
