//! Service → EndpointSlices, as kube-controller-manager keeps them: of at most 100 endpoints each, with generated
//! names.
//!
//! The loop keeps what it has written in memory, so that a pod that changes costs the write of one slice.

mod slices;

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use portolan_controllers::{Controller, Plane, PlaneError, WorkOutcome, plane::PlaneObject};
use portolan_kinds::Kind;
use portolan_store::{ChangeKind, Event};
use portolan_strategy::lifecycle::DeleteOptions;
use portolan_types::{BoxFuture, GroupResource, GroupVersionKind, ObjectKey, object};
use serde_json::Value;

use crate::{
    fields::text,
    index::{PodIndex, equality_selector},
    workloads::generated_name,
};
use slices::{ServiceSlices, SliceTemplate};

/// Label of a slice that names its Service.
const SERVICE: &str = "kubernetes.io/service-name";
/// Delay of a Service's reconcile, to batch the events of its pods.
const LINGER: Duration = Duration::from_millis(100);

/// Loop over Services.
pub(crate) struct EndpointsController {
    plane: Arc<Plane>,
    pods: Arc<PodIndex>,
    slices: &'static Kind,
    services: GroupResource,
    /// Slices as they were written, taken out while a Service is looked at.
    written: Mutex<HashMap<ObjectKey, ServiceSlices>>,
    /// Services that lost a slice to another writer.
    lost: Mutex<HashSet<ObjectKey>>,
}

impl EndpointsController {
    pub(crate) fn new(plane: Arc<Plane>, pods: Arc<PodIndex>) -> Self {
        let gvk = GroupVersionKind::new("discovery.k8s.io", "v1", "EndpointSlice");
        let slices = plane.table().kind(&gvk).expect("the table has discovery/v1");
        let services = GroupResource::new("", "services");
        Self { plane, pods, slices, services, written: Mutex::default(), lost: Mutex::default() }
    }

    fn written(&self) -> MutexGuard<'_, HashMap<ObjectKey, ServiceSlices>> {
        self.written.lock().expect("no code panics under this lock")
    }

    fn lost(&self) -> MutexGuard<'_, HashSet<ObjectKey>> {
        self.lost.lock().expect("no code panics under this lock")
    }

    async fn update(&self, key: &ObjectKey, service: &Value) -> Result<(), PlaneError> {
        let Some(selector) = equality_selector(service).filter(|_| text(service, "/spec/type") != "ExternalName")
        else {
            self.pods.unselect(key);
            self.written().remove(key);
            return Ok(());
        };
        let uid = object::meta_text(service, "uid");
        let known = self.written().remove(key).filter(|known| known.uid() == uid);
        if known.is_none() {
            // All pods count as changed.
            self.pods.unselect(key);
        }
        let mut slices = known.unwrap_or_else(|| ServiceSlices::new(uid));
        let selected = self.pods.select(key, &selector, |pods| {
            (SliceTemplate::of(service, pods.first().map(Arc::as_ref)), pods.take_changes())
        });
        let Some((template, changes)) = selected else { return Ok(()) };
        if self.lost().remove(key) {
            slices.rewrite();
        }
        slices.set_template(template);
        for (name, pod) in changes {
            slices.put(service, name, pod.as_deref());
        }
        let result = self.write(key, service, &mut slices).await;
        self.written().insert(key.clone(), slices);
        result
    }

    async fn write(&self, key: &ObjectKey, service: &Value, slices: &mut ServiceSlices) -> Result<(), PlaneError> {
        while let Some((at, mut wanted)) = slices.next_to_write(service) {
            if object::name(&wanted).is_empty() {
                let (prefix, name) = generated_name(object::name(service), &self.plane);
                wanted["metadata"]["generateName"] = prefix.into();
                wanted["metadata"]["name"] = name.into();
            }
            self.ensure(key, &wanted).await?;
            slices.is_written(at, object::name(&wanted));
        }
        while let Some(name) = slices.next_to_delete() {
            let slice = ObjectKey { resource: self.slices.group_resource(), name, ..key.clone() };
            self.plane.delete(self.slices, &slice, &DeleteOptions::default()).await?;
        }
        Ok(())
    }

    async fn ensure(&self, service: &ObjectKey, wanted: &Value) -> Result<(), PlaneError> {
        let slice = self.plane.key_of(self.slices, service.cluster, wanted)?;
        let updated = self.plane.force(&slice, |current| {
            let parts = ["endpoints", "ports"];
            let labels = current["metadata"]["labels"] == wanted["metadata"]["labels"];
            let same = labels && parts.iter().all(|part| current[*part] == wanted[*part]);
            parts.iter().for_each(|part| current[*part] = wanted[*part].clone());
            current["metadata"]["labels"] = wanted["metadata"]["labels"].clone();
            !same
        });
        if updated.await?.is_none() {
            self.plane.create(self.slices, service.cluster, wanted.clone()).await?;
        }
        Ok(())
    }

    /// The Service of a deleted slice.
    fn service_of(&self, event: &Event) -> Option<ObjectKey> {
        let name = event.record.header.label(SERVICE).filter(|_| event.change == ChangeKind::Deleted)?;
        let key = ObjectKey { resource: self.services.clone(), name: name.parse().ok()?, ..event.key.clone() };
        let is_own = self.written().get(&key).is_some_and(|slices| slices.has(&event.key.name));
        is_own.then_some(key)
    }
}

impl Controller for EndpointsController {
    type Key = ObjectKey;

    fn name(&self) -> &'static str {
        "simulated-endpoints"
    }

    fn resources(&self) -> Vec<GroupResource> {
        vec![self.services.clone(), GroupResource::new("", "pods"), self.slices.group_resource()]
    }

    fn keys(&self, event: &Event) -> Vec<ObjectKey> {
        match &*event.key.resource.resource {
            "pods" => self.pods.changed_selections(&event.key, &self.services),
            "endpointslices" => {
                let service = self.service_of(event);
                self.lost().extend(service.clone());
                service.into_iter().collect()
            }
            _ => vec![event.key.clone()],
        }
    }

    fn linger(&self, event: &Event, key: &ObjectKey) -> Duration {
        if event.key == *key { Duration::ZERO } else { LINGER }
    }

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<WorkOutcome, PlaneError>> {
        Box::pin(async move {
            let service = self.plane.get(key).await?.filter(|found| !object::is_deleting(&found.object));
            match service {
                Some(PlaneObject { object, .. }) => self.update(key, &object).await?,
                None => {
                    self.pods.unselect(key);
                    self.written().remove(key);
                }
            }
            Ok(WorkOutcome::Done)
        })
    }
}
