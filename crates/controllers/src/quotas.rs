//! Recounts the usage of quotas. Requests are charged as they are written; this controller finds the other changes:
//! objects that are deleted, end, or are made by controllers. Pods of templates are charged when the object with the
//! template is placed, so the pods that physical clusters make of it are not counted again.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use portolan_kinds::Kind;
use portolan_store::{ChangeKind, DamagedObject, Event, RangeRequest, RangeScope, StoreError, StoredObject};
use portolan_strategy::quota::{Tally, amounts, count_name, is_counted, is_plain, list};
use portolan_types::{
    BoxFuture, GroupResource, GroupVersionKind, LogicalClusterId, NamespaceName, ObjectName, Record, annotations,
    object,
    placement::{GROUP, PlacementStatus},
};
use serde_json::Value;

use crate::{
    plane::{Plane, PlaneChange, PlaneError, PlaneObject},
    runtime::{Controller, WorkOutcome},
};

/// Delays of a count after an event, by the kind of event. Further events within the delay cause no count of their own.
/// A create can wait longest: a request has charged its quota already, and controllers create few objects.
const AFTER_DELETION: Duration = Duration::from_millis(100);
const AFTER_CHANGE: Duration = Duration::from_millis(500);
const AFTER_CREATION: Duration = Duration::from_secs(2);
/// Core resources whose usage changes with the object; all others count while they exist.
const CHANGING: [&str; 3] = ["pods", "services", "persistentvolumeclaims"];
/// Interval at which a namespace is counted without an event. A pod stops counting towards its quota when its grace
/// period ends, which causes no event.
const RESYNC: Duration = Duration::from_secs(300);

type NamespaceAddress = (LogicalClusterId, NamespaceName);

/// Controller of quotas.
pub struct QuotaController {
    plane: Arc<Plane>,
    kind: &'static Kind,
    /// Resources of all namespaced kinds, as they are stored.
    counted: BTreeSet<GroupResource>,
    /// Namespaces with quotas, and the custom resources that these name: events of other resources are ignored.
    guarded: Mutex<HashMap<NamespaceAddress, BTreeSet<GroupResource>>>,
}

impl QuotaController {
    /// Makes the controller.
    pub fn new(plane: Arc<Plane>) -> Self {
        let kind =
            plane.table().kind(&GroupVersionKind::new("", "v1", "ResourceQuota")).expect("the table has core/v1");
        let kinds = plane.table().kinds().filter(|kind| kind.namespaced && kind.served && kind.has_verb("delete"));
        let counted = kinds.map(|kind| kind.storage.group_resource()).filter(is_counted).collect();
        Self { plane, kind, counted, guarded: Mutex::default() }
    }

    fn guarded(&self) -> std::sync::MutexGuard<'_, HashMap<NamespaceAddress, BTreeSet<GroupResource>>> {
        self.guarded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the custom resources that quotas name.
    fn custom(&self, quotas: &[PlaneObject]) -> BTreeSet<GroupResource> {
        let names = quotas.iter().filter_map(|quota| quota.object.pointer("/spec/hard")?.as_object()).flatten();
        let custom = names.filter_map(|(name, _)| custom(name));
        custom.filter(|resource| !self.counted.contains(resource)).collect()
    }

    /// Returns true if an update can change the usage. A charge updates the quota itself and needs no count.
    fn matters(&self, event: &Event) -> bool {
        let resource = &event.key.resource;
        let is_quota = *resource == self.kind.group_resource();
        if !is_quota && *resource != placements() {
            return resource.group.is_empty() && CHANGING.contains(&&*resource.resource);
        }
        let tree = |record: &Record| record.to_value(event.revision).ok();
        let (new, old) = (tree(&event.record), event.previous.as_deref().and_then(tree));
        let part =
            |quota: &Option<Value>, pointer: &str| quota.as_ref().and_then(|quota| quota.pointer(pointer).cloned());
        let parts: [&str; 2] = if is_quota { ["/spec", "/status/hard"] } else { ["/status/pods", "/status/claims"] };
        parts.iter().any(|pointer| part(&new, pointer) != part(&old, pointer))
    }

    async fn count(
        &self,
        namespace: &NamespaceAddress,
        resource: &GroupResource,
        (tallies, claims): (&mut [Tally<'_>], &mut Vec<ObjectName>),
    ) -> Result<(), PlaneError> {
        if !tallies.iter().any(|tally| tally.wants(resource)) {
            return Ok(());
        }
        let are_claims = resource.group.is_empty() && *resource.resource == *"persistentvolumeclaims";
        self.each(namespace, resource, |stored| {
            if are_claims {
                claims.push(stored.as_ref().map_or_else(|found| &found.key, |stored| &stored.key).name.clone());
            }
            let object = match (is_plain(resource), stored) {
                (true, _) => Value::Null,
                (false, Ok(stored)) => stored.to_value()?,
                // Its usage is unknown, and the quota must not show less than is used.
                (false, Err(damaged)) => return Err(damaged.into()),
            };
            if !is_charged_above(resource, &object) {
                tallies.iter_mut().for_each(|tally| tally.count(resource, &object));
            }
            Ok(())
        })
        .await
    }

    /// Counts what the Placements of a namespace charge: the pods of placed objects, and their claims that do not exist
    /// yet. `claims` are the claims that exist, which are counted elsewhere.
    async fn count_placed(
        &self,
        namespace: &NamespaceAddress,
        claims: &[ObjectName],
        tallies: &mut [Tally<'_>],
    ) -> Result<(), PlaneError> {
        let made = ["pods", "persistentvolumeclaims"].map(|resource| GroupResource::new("", resource));
        if !tallies.iter().any(|tally| made.iter().any(|resource| tally.wants(resource))) {
            return Ok(());
        }
        self.each(namespace, &placements(), |stored| {
            let placement = stored?.to_value()?;
            let (set, status) = charged(&placement);
            for tally in tallies.iter_mut() {
                status.pods.iter().for_each(|pods| tally.count_pods(pods));
                let missing = status.claims.iter().map(|own| own.missing(set, claims.iter().map(|name| name.as_str())));
                missing.for_each(|missing| tally.count_claims(&missing));
            }
            Ok(())
        })
        .await
    }

    async fn each(
        &self,
        (cluster, namespace): &NamespaceAddress,
        resource: &GroupResource,
        mut take: impl FnMut(Result<&StoredObject, DamagedObject>) -> Result<(), StoreError> + Send,
    ) -> Result<(), PlaneError> {
        let scope = RangeScope::Namespace(*cluster, resource.clone(), namespace.clone());
        let mut next = Some(RangeRequest::slices(scope).skip_damaged());
        while let Some(request) = next {
            let page = self.plane.store().range(request.clone()).await?;
            page.objects.iter().map(Ok).try_for_each(&mut take)?;
            page.damaged.iter().cloned().map(Err).try_for_each(&mut take)?;
            next = request.next(&page);
        }
        Ok(())
    }

    /// Writes the usage, unless the quota has been written since: it may have been charged for objects that were not
    /// counted.
    async fn write(&self, quota: &PlaneObject, used: Value) -> Result<bool, PlaneError> {
        let hard = quota.object.pointer("/spec/hard").cloned().unwrap_or_default();
        let status = |key: &str| amounts(quota.object.pointer(&format!("/status/{key}")));
        if status("hard") == amounts(Some(&hard))
            && status("used") == amounts(Some(&used))
            && quota.object.get("status").is_some()
        {
            return Ok(true);
        }
        let as_counted = quota.revision.to_string();
        let mut is_current = true;
        let change = |current: &mut Value| {
            is_current = object::meta_text(current, "resourceVersion") == as_counted;
            if !is_current {
                return PlaneChange::Keep;
            }
            current["status"] = serde_json::json!({"hard": hard, "used": used});
            PlaneChange::Write(Some("status"))
        };
        self.plane.change(self.kind, &quota.key, change).await?;
        Ok(is_current)
    }
}

fn placements() -> GroupResource {
    GroupResource::new(GROUP, "placements")
}

/// Returns the object of a `Placement`, and its charge.
fn charged(placement: &Value) -> (&str, PlacementStatus) {
    let name = placement.pointer("/spec/object/name").and_then(Value::as_str).unwrap_or_default();
    let status = placement.get("status").cloned().unwrap_or_default();
    (name, serde_json::from_value(status).unwrap_or_default())
}

/// Returns true for an object that a physical cluster made from a template. The object with the template is charged.
fn is_charged_above(resource: &GroupResource, object: &Value) -> bool {
    let is_pod = resource.group.is_empty() && *resource.resource == *"pods";
    if !is_pod || object::label(object, annotations::PROJECTED_FROM).is_none() {
        return false;
    }
    let kind = object::controller_of(object).and_then(|owner| owner.get("kind")).and_then(Value::as_str);
    matches!(kind, Some("ReplicaSet" | "StatefulSet" | "DaemonSet" | "Job" | "ReplicationController"))
}

/// Returns the custom resource of `count/<plural>.<group>`. Built-in groups are handled by the caller.
fn custom(name: &str) -> Option<GroupResource> {
    let (resource, group) = name.strip_prefix("count/")?.split_once('.')?;
    group.contains('.').then(|| GroupResource::new(group, resource))
}

impl Controller for QuotaController {
    type Key = NamespaceAddress;

    fn name(&self) -> &'static str {
        "quotas"
    }

    fn resources(&self) -> Vec<GroupResource> {
        self.counted.iter().cloned().collect()
    }

    fn follows_defined(&self) -> bool {
        true
    }

    fn keys(&self, event: &Event) -> Vec<Self::Key> {
        let Some(namespace) = event.key.namespace() else { return Vec::new() };
        let key = (event.key.cluster, namespace.clone());
        let mut guarded = self.guarded();
        let is_quota = event.key.resource == self.kind.group_resource();
        if is_quota && event.change != ChangeKind::Deleted {
            guarded.entry(key.clone()).or_default();
        }
        let resource = &event.key.resource;
        let is_named = |custom: &BTreeSet<GroupResource>| self.counted.contains(resource) || custom.contains(resource);
        let counts = event.change != ChangeKind::Updated || self.matters(event);
        if counts && guarded.get(&key).is_some_and(is_named) { vec![key] } else { Vec::new() }
    }

    fn linger(&self, event: &Event, _: &Self::Key) -> Duration {
        let is_quota = event.key.resource == self.kind.group_resource();
        match event.change {
            ChangeKind::Created if is_quota => Duration::ZERO,
            ChangeKind::Deleted => AFTER_DELETION,
            ChangeKind::Updated => AFTER_CHANGE,
            ChangeKind::Created => AFTER_CREATION,
        }
    }

    fn reconcile<'a>(&'a self, namespace: &'a Self::Key) -> BoxFuture<'a, Result<WorkOutcome, PlaneError>> {
        Box::pin(async move {
            let (cluster, name) = namespace;
            let scope = RangeScope::Namespace(*cluster, self.kind.group_resource(), name.clone());
            // Quotas are read before the objects. An object that is created in between charges the quota, whose
            // revision then differs from the one read here: the count is repeated.
            let quotas = self.plane.list(scope).await?;
            if quotas.is_empty() {
                self.guarded().remove(namespace);
                return Ok(WorkOutcome::Done);
            }
            let custom = self.custom(&quotas);
            // This comes before the count, so that an object that is created meanwhile queues the key again.
            self.guarded().insert(namespace.clone(), custom.clone());
            let now = self.plane.seams().clock.now();
            let known = |name: &str| is_known(&self.counted, name);
            let mut tallies: Vec<Tally<'_>> =
                quotas.iter().map(|quota| Tally::new(&quota.object, known, now)).collect();
            let mut claims = Vec::new();
            for resource in self.counted.iter().chain(&custom) {
                self.count(namespace, resource, (&mut tallies, &mut claims)).await?;
            }
            self.count_placed(namespace, &claims, &mut tallies).await?;
            let mut all_written = true;
            for (quota, tally) in quotas.iter().zip(tallies) {
                all_written &= self.write(quota, list(&tally.used())).await?;
            }
            Ok(WorkOutcome::RequeueAfter(if all_written { RESYNC } else { AFTER_DELETION }))
        })
    }
}

/// Returns true if usage of a quota's resource is reported. `count/…` of an unknown kind is not.
fn is_known(counted: &BTreeSet<GroupResource>, name: &str) -> bool {
    if name.starts_with("count/") {
        custom(name).is_some() || counted.iter().any(|resource| count_name(resource) == name)
    } else {
        true
    }
}
