//! Services across physical clusters, by the Multi-Cluster Services API (KEP-1645, `multicluster.x-k8s.io`): a
//! `ServiceExport` makes a `ServiceImport` of the same name, and an EndpointSlice per physical cluster with the label
//! `multicluster.kubernetes.io/source-cluster`.
//!
//! A workspace opts in by the definitions of both kinds. Flow: events of exports keep the set of exported Services;
//! other events cost a lookup in it. Owner references let the garbage collector delete an import with its export, and
//! the slices with the import. An import that another manager made is left alone, and the export says so.

mod import;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeSet, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use portolan_controllers::{Controller, Plane, PlaneError, WorkOutcome, plane::PlaneChange};
use portolan_kinds::Kind;
use portolan_store::{ChangeKind, Event, RangeRequest, RangeScope};
use portolan_strategy::lifecycle::DeleteOptions;
use portolan_types::{
    BoxFuture, GroupResource, GroupVersionKind, LabelSelector, ObjectKey, Record, ResourceVersion, fingerprint,
    imported_services::{IMPORTED_SERVICE as SERVICE_LABEL, SOURCE_CLUSTER as SOURCE_LABEL, imports},
    object,
};
use serde_json::{Value, json};

use self::import::{MulticlusterCondition, SLICE_MANAGER, SLICE_OF, conflict, fault, mirrored};

const GROUP: &str = "multicluster.x-k8s.io";
const IMPORT: &str = "ServiceImport";
/// Annotation of an import that changes with the endpoints of its Service: who follows imports need not follow slices.
const ENDPOINTS: &str = "portolan.dev/endpoints";
/// Label that names the manager of an import.
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Name of this manager.
const MANAGER: &str = "portolan";
/// Most slices of one Service.
const MAX_SLICES: usize = 1000;
/// Delay in which a reconcile collects further slices.
const LINGER: Duration = Duration::from_millis(200);

/// Controller of exported Services.
pub(crate) struct MulticlusterServiceController {
    plane: Arc<Plane>,
    slices: &'static Kind,
    /// Keys of the Services that have an export.
    exported: Mutex<HashSet<ObjectKey>>,
}

fn exports() -> GroupResource {
    GroupResource::new(GROUP, "serviceexports")
}

fn services() -> GroupResource {
    GroupResource::new("", "services")
}

/// Export of a Service, and the kinds of the workspace.
struct ServiceExport {
    object: Value,
    export: Arc<Kind>,
    import: Arc<Kind>,
}

impl MulticlusterServiceController {
    pub(crate) fn new(plane: Arc<Plane>) -> Self {
        let gvk = GroupVersionKind::new("discovery.k8s.io", "v1", "EndpointSlice");
        let slices = plane.table().kind(&gvk).expect("the table has discovery/v1");
        Self { plane, slices, exported: Mutex::default() }
    }

    /// Returns the export of a Service; `None` if it has none, or the workspace lacks the kinds.
    async fn export(&self, service: &ObjectKey) -> Result<Option<ServiceExport>, PlaneError> {
        let kind_of = |resource| async move { self.plane.kind_of(service.cluster, &resource).await };
        let (Some(export), Some(import)) = (kind_of(exports()).await?, kind_of(imports()).await?) else {
            return Ok(None);
        };
        let found = self.plane.get(&ObjectKey { resource: exports(), ..service.clone() }).await?;
        let found = found.filter(|found| !object::is_deleting(&found.object));
        Ok(found.map(|found| ServiceExport { object: found.object, export, import }))
    }

    /// Writes the import of an exported Service, and its slices.
    async fn reconcile_export(&self, key: &ObjectKey, export: &ServiceExport) -> Result<(), PlaneError> {
        let service = self.plane.get(key).await?.filter(|found| !object::is_deleting(&found.object));
        let Some(service) = service.map(|found| found.object) else {
            let message = "there is no Service of this name";
            return self.withdraw(key, export, MulticlusterCondition::new("Valid", false, "NoService", message)).await;
        };
        if let Some(fault) = fault(&service) {
            return self.withdraw(key, export, fault).await;
        }
        let Some(import) = self.write_import(key, export, &service).await? else {
            let message = "a ServiceImport of this name has another manager";
            let ready = MulticlusterCondition::new("Ready", false, "Failed", message);
            return self.tell(key, export, &[ready]).await;
        };
        let (slices, clusters) = mirrored(&service, &import, &self.shown(key).await?);
        self.write_slices(key, &slices).await?;
        self.note_endpoints(key, export, &slices).await?;
        self.write_import_status(key, export, &clusters).await?;
        let valid = MulticlusterCondition::new("Valid", true, "Valid", "");
        let ready = MulticlusterCondition::new("Ready", true, "Exported", "");
        self.tell(key, export, &[valid, ready, conflict(&service)]).await
    }

    /// Removes the import and the slices of a Service that cannot be exported.
    async fn withdraw(
        &self,
        key: &ObjectKey,
        export: &ServiceExport,
        fault: MulticlusterCondition,
    ) -> Result<(), PlaneError> {
        let import = ObjectKey { resource: imports(), ..key.clone() };
        self.plane.delete_if(&export.import, &import, &DeleteOptions::default(), is_ours).await?;
        self.write_slices(key, &[]).await?;
        let ready = MulticlusterCondition::new("Ready", false, "Failed", &fault.message);
        self.tell(key, export, &[fault, ready]).await
    }

    /// Creates or updates the import. Returns it; `None` if another manager has it.
    async fn write_import(
        &self,
        key: &ObjectKey,
        export: &ServiceExport,
        service: &Value,
    ) -> Result<Option<Value>, PlaneError> {
        let wanted = import::import(service, &export.object, &export.import.gvk.version);
        let import_key = ObjectKey { resource: imports(), ..key.clone() };
        let write = |current: &mut Value| {
            let before = current.clone();
            if is_ours(current) {
                current["spec"] = wanted["spec"].clone();
                for field in ["labels", "ownerReferences"] {
                    object::metadata_mut(current).insert(field.into(), wanted["metadata"][field].clone());
                }
            }
            if *current == before { PlaneChange::Keep } else { PlaneChange::Write(None) }
        };
        let found = self.plane.change(&export.import, &import_key, write).await?;
        let found = match found {
            Some(found) => Some(found),
            None => {
                let made = self.plane.create_within(&export.import, key.cluster, &wanted).await?;
                made.map(|made| made.object)
            }
        };
        Ok(found.filter(is_ours))
    }

    /// Notes on the import that its endpoints have changed, after they have.
    async fn note_endpoints(
        &self,
        key: &ObjectKey,
        export: &ServiceExport,
        slices: &[Value],
    ) -> Result<(), PlaneError> {
        let import_key = ObjectKey { resource: imports(), ..key.clone() };
        let noted =
            fingerprint(&slices.iter().map(|slice| json!([slice["metadata"]["labels"], slice["endpoints"]])).collect());
        let write = |current: &mut Value| {
            if !is_ours(current) || object::annotation(current, ENDPOINTS) == Some(&noted) {
                return PlaneChange::Keep;
            }
            object::set_annotation(current, ENDPOINTS, Some(noted.clone()));
            PlaneChange::Write(None)
        };
        self.plane.change(&export.import, &import_key, write).await.map(drop)
    }

    async fn write_import_status(
        &self,
        key: &ObjectKey,
        export: &ServiceExport,
        clusters: &BTreeSet<String>,
    ) -> Result<(), PlaneError> {
        let (now, import_key) = (self.plane.seams().now_text(), ObjectKey { resource: imports(), ..key.clone() });
        let listed: Vec<Value> = clusters.iter().map(|name| json!({"cluster": name})).collect();
        let ready = if clusters.is_empty() {
            MulticlusterCondition::new("Ready", false, "Pending", "no physical cluster has ready endpoints")
        } else {
            MulticlusterCondition::new("Ready", true, "Ready", "")
        };
        let write = |current: &mut Value| {
            let before = current.clone();
            ready.write_to(current, &now);
            current["status"]["clusters"] = listed.clone().into();
            current["status"]["endpointSliceObjects"] = if listed.is_empty() { "Absent" } else { "Present" }.into();
            if *current == before { PlaneChange::Keep } else { PlaneChange::Write(Some("status")) }
        };
        self.plane.change(&export.import, &import_key, write).await.map(drop)
    }

    /// Writes conditions to the export.
    async fn tell(
        &self,
        key: &ObjectKey,
        export: &ServiceExport,
        conditions: &[MulticlusterCondition],
    ) -> Result<(), PlaneError> {
        let (now, export_key) = (self.plane.seams().now_text(), ObjectKey { resource: exports(), ..key.clone() });
        let write = |current: &mut Value| {
            let before = current.clone();
            conditions.iter().for_each(|condition| condition.write_to(current, &now));
            if *current == before { PlaneChange::Keep } else { PlaneChange::Write(Some("status")) }
        };
        self.plane.change(&export.export, &export_key, write).await.map(drop)
    }

    /// Reads the slices of a label.
    async fn labelled(&self, key: &ObjectKey, label: &str) -> Result<Vec<Value>, PlaneError> {
        let Some(namespace) = key.namespace().cloned() else { return Ok(Vec::new()) };
        let Ok(labels) = LabelSelector::parse(&format!("{label}={}", key.name)) else { return Ok(Vec::new()) };
        let scope = RangeScope::Namespace(key.cluster, self.slices.group_resource(), namespace);
        let request = RangeRequest { labels, limit: Some(MAX_SLICES), ..RangeRequest::all(scope).skip_damaged() };
        let page = self.plane.store().range(request).await?;
        Ok(page.objects.iter().filter_map(|stored| stored.to_value().ok()).collect())
    }

    /// Reads the slices that physical clusters show for a Service.
    async fn shown(&self, key: &ObjectKey) -> Result<Vec<Value>, PlaneError> {
        self.labelled(key, SLICE_OF).await
    }

    /// Makes the mirrored slices of a Service these.
    async fn write_slices(&self, key: &ObjectKey, wanted: &[Value]) -> Result<(), PlaneError> {
        for slice in wanted {
            let slice_key = self.plane.key_of(self.slices, key.cluster, slice)?;
            let write = |current: &mut Value| {
                let before = current.clone();
                if is_mirrored(current) {
                    for field in ["ports", "endpoints"] {
                        current[field] = slice[field].clone();
                    }
                    for field in ["labels", "ownerReferences"] {
                        object::metadata_mut(current).insert(field.into(), slice["metadata"][field].clone());
                    }
                }
                if *current == before { PlaneChange::Keep } else { PlaneChange::Write(None) }
            };
            if self.plane.change(self.slices, &slice_key, write).await?.is_none() {
                self.plane.create_within(self.slices, key.cluster, slice).await?;
            }
        }
        for known in self.labelled(key, SERVICE_LABEL).await? {
            let is_wanted = wanted.iter().any(|slice| object::name(slice) == object::name(&known));
            if !is_wanted && is_mirrored(&known) {
                let stale = self.plane.key_of(self.slices, key.cluster, &known)?;
                self.plane.delete_if(self.slices, &stale, &DeleteOptions::default(), is_mirrored).await?;
            }
        }
        Ok(())
    }

    fn note_export(&self, event: &Event, service: &ObjectKey) {
        let mut exported = self.exported.lock().unwrap_or_else(PoisonError::into_inner);
        if event.change == ChangeKind::Deleted {
            exported.remove(service);
        } else {
            exported.insert(service.clone());
        }
    }

    fn is_exported(&self, service: &ObjectKey) -> bool {
        self.exported.lock().unwrap_or_else(PoisonError::into_inner).contains(service)
    }
}

fn is_ours(import: &Value) -> bool {
    object::label(import, MANAGED_BY) == Some(MANAGER)
}

fn is_mirrored(slice: &Value) -> bool {
    object::label(slice, SLICE_MANAGER) == Some(MANAGER)
}

impl Controller for MulticlusterServiceController {
    type Key = ObjectKey;

    fn name(&self) -> &'static str {
        "multicluster-services"
    }

    fn resources(&self) -> Vec<GroupResource> {
        vec![exports(), imports(), services(), self.slices.group_resource()]
    }

    /// Returns the keys of exported Services, by their own name, that of their export or import, and the labels of
    /// slices.
    fn keys(&self, event: &Event) -> Vec<ObjectKey> {
        let named = |name| ObjectKey { resource: services(), name, ..event.key.clone() };
        if event.key.resource == exports() {
            let service = named(event.key.name.clone());
            self.note_export(event, &service);
            return vec![service];
        }
        let of_slice = |record: &Record| {
            let slice = record.to_value(ResourceVersion::FIRST).ok()?;
            let name = object::label(&slice, SLICE_OF).or_else(|| object::label(&slice, SERVICE_LABEL))?;
            name.parse().ok().map(named)
        };
        let mut keys: Vec<ObjectKey> = if event.key.resource == self.slices.group_resource() {
            let records = [Some(&event.record), event.previous.as_ref()].into_iter().flatten();
            records.filter_map(|record| of_slice(record)).collect()
        } else {
            vec![named(event.key.name.clone())]
        };
        keys.dedup();
        keys.retain(|key| self.is_exported(key));
        keys
    }

    fn linger(&self, event: &Event, _: &ObjectKey) -> Duration {
        if event.key.resource == self.slices.group_resource() { LINGER } else { Duration::ZERO }
    }

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<WorkOutcome, PlaneError>> {
        Box::pin(async move {
            match self.export(key).await? {
                Some(export) => self.reconcile_export(key, &export).await?,
                // The garbage collector deletes the import and what it owns.
                None => self.write_slices(key, &[]).await?,
            }
            Ok(WorkOutcome::Done)
        })
    }
}
