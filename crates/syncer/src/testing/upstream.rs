//! The logical side in memory, for one physical cluster. It also shows how an implementation of `Upstream` uses the
//! pure parts.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard},
};

use portolan_types::{
    BoxFuture, GroupResource, GroupVersionKind, ObjectKey, Reason, ResourceVersion, ScaleFields, Status, Uid,
    imported_services::ImportedServices,
    object,
    placement::{CopyPhase, PlacedCopy, PlacementRecord},
    upstream::{
        ChangeStream, ClusterReport, CopyReport, CopyState, CustomKindRules, Debt, PlacedSnapshot, PodToken,
        PodTokenRequest, Projection, UnplacedObject, Upstream, UpstreamChanges, UpstreamError, UpstreamObject,
        UpstreamRead,
    },
};
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use crate::{
    CopyStatus, project,
    status::{self, StatusShape},
};

/// Objects in memory with the records of one physical cluster.
pub struct MemoryUpstream {
    physical: Uid,
    plane: Option<&'static str>,
    inner: Mutex<MemoryUpstreamState>,
    revision: watch::Sender<u64>,
    are_projections_held: watch::Sender<bool>,
}

#[derive(Default)]
struct MemoryUpstreamState {
    objects: BTreeMap<ObjectKey, UpstreamObject>,
    log: Vec<(u64, ObjectKey)>,
    copies: HashMap<ObjectKey, CopyStatus>,
    reports: Vec<CopyReport>,
    cluster: Option<ClusterReport>,
    debts: Vec<Debt>,
    is_failing: bool,
    is_empty: bool,
    is_full: bool,
    uids: u64,
    newest_syncer: u64,
    others: BTreeSet<Uid>,
    times_asked: usize,
    refused: Option<&'static str>,
    event_writes: usize,
    custom: CustomKindRules,
    scales: HashMap<GroupResource, ScaleFields>,
    heartbeats: Vec<u64>,
    tokens: u64,
    renew_at: i64,
    issues_no_tokens: bool,
}

impl MemoryUpstream {
    /// Sets the time at which tokens that are issued from now on are renewed.
    pub fn renew_tokens_at(&self, seconds: i64) {
        self.inner().renew_at = seconds;
    }

    /// Issues no further token, as for a ServiceAccount that is gone.
    pub fn issue_no_tokens(&self) {
        self.inner().issues_no_tokens = true;
    }

    /// The name of the control plane.
    pub const PLANE: &str = "plane";

    /// Nothing yet, for the physical cluster `physical`.
    pub fn new(physical: Uid) -> Arc<Self> {
        Self::of_plane(Some(Self::PLANE), physical)
    }

    /// Nothing yet, of a control plane of this name, or of one that has none.
    pub fn of_plane(plane: Option<&'static str>, physical: Uid) -> Arc<Self> {
        let (revision, are_projections_held) = (watch::Sender::new(1), watch::Sender::new(false));
        Arc::new(Self { physical, plane, inner: Mutex::default(), revision, are_projections_held })
    }

    fn inner(&self) -> MutexGuard<'_, MemoryUpstreamState> {
        self.inner.lock().expect("no code panics under this lock")
    }

    /// Writes an object, placed on the physical cluster with `phase` and `epoch`. Generation and uid are kept, or set
    /// for a new object.
    pub fn place(&self, key: &ObjectKey, kind: &GroupVersionKind, mut object: Value, phase: CopyPhase, epoch: u64) {
        let copy = PlacedCopy { name: "member".into(), uid: self.physical.clone(), phase, replicas: None, epoch };
        PlacementRecord { clusters: vec![copy], ..PlacementRecord::default() }.write_to(&mut object);
        self.write(key, kind, object);
    }

    /// Writes an object with the record that it has.
    pub fn write(&self, key: &ObjectKey, kind: &GroupVersionKind, mut object: Value) {
        let mut inner = self.inner();
        let before = inner.objects.get(key).map(|old| old.object.clone());
        let kept = |field: &str| before.as_ref().and_then(|old| object::metadata(old).get(field)).cloned();
        inner.uids += 1;
        let made = json!(format!("up-{}", inner.uids));
        let generation = kept("generation").and_then(|g| g.as_i64()).unwrap_or(0);
        let changed = before.as_ref().is_none_or(|old| old["spec"] != object["spec"]);
        let (uid, is_deleting) = (kept("uid").unwrap_or(made), kept("deletionTimestamp"));
        let metadata = object::metadata_mut(&mut object);
        metadata.insert("uid".into(), uid);
        metadata.insert("generation".into(), (generation + i64::from(changed)).into());
        metadata.insert("name".into(), json!(key.name.as_str()));
        if let Some(namespace) = key.namespace() {
            metadata.insert("namespace".into(), json!(namespace.as_str()));
        }
        if let Some(at) = is_deleting {
            metadata.insert("deletionTimestamp".into(), at);
        }
        object["apiVersion"] = json!(kind.group_version().to_string());
        object["kind"] = json!(&*kind.kind);
        self.store(&mut inner, key, kind, Some(object));
    }

    /// Asks for the deletion of an object, as a client does: it is held until its copies are gone.
    pub fn delete(&self, key: &ObjectKey) {
        let mut inner = self.inner();
        let Some(found) = inner.objects.get(key).cloned() else { return };
        let mut object = found.object;
        object::metadata_mut(&mut object).insert("deletionTimestamp".into(), json!("2026-01-01T00:00:00Z"));
        let is_placed = PlacementRecord::of(&object).is_some();
        self.store(&mut inner, key, &found.kind, is_placed.then_some(object));
    }

    /// Works like [`Self::delete`], but keeps the dependents: the last copy removes its owner reference from them.
    pub fn delete_without_dependents(&self, key: &ObjectKey) {
        {
            let mut inner = self.inner();
            let Some(found) = inner.objects.get_mut(key) else { return };
            object::metadata_mut(&mut found.object).insert("finalizers".into(), json!(["orphan"]));
        }
        self.delete(key);
    }

    /// Removes an object at once, whatever its copies: a plane should not do this, but the syncer must tolerate it.
    pub fn remove(&self, key: &ObjectKey) {
        self.store(&mut self.inner(), key, &GroupVersionKind::new("", "", ""), None);
    }

    fn store(&self, inner: &mut MemoryUpstreamState, key: &ObjectKey, kind: &GroupVersionKind, object: Option<Value>) {
        let revision = *self.revision.borrow() + 1;
        match object {
            Some(object) => {
                let version = ResourceVersion::new(revision).unwrap_or(ResourceVersion::FIRST);
                let scale = inner.scales.get(&key.resource).cloned();
                let (key, kind) = (key.clone(), kind.clone());
                let stored =
                    UpstreamObject { key: key.clone(), revision: version, kind, object, is_held: false, scale };
                inner.objects.insert(key, stored);
            }
            None => {
                inner.objects.remove(key);
                inner.copies.remove(key);
            }
        }
        inner.log.push((revision, key.clone()));
        self.revision.send_replace(revision);
    }

    /// Every answer is a failure from now on, or not.
    pub fn set_failing(&self, is_failing: bool) {
        self.inner().is_failing = is_failing;
        self.revision.send_modify(|_| ());
    }

    /// Holds projections back from now on, or lets them continue.
    pub fn hold_projections(&self, are_held: bool) {
        self.are_projections_held.send_replace(are_held);
    }

    /// Snapshots are empty from now on, or not; single reads still tell the truth.
    pub fn set_empty(&self, is_empty: bool) {
        self.inner().is_empty = is_empty;
    }

    /// No further objects can be shown from now on, or they can.
    pub fn set_full(&self, is_full: bool) {
        self.inner().is_full = is_full;
    }

    /// Refuses from now on all projections of this resource.
    pub fn refuse_projections_of(&self, resource: &'static str) {
        self.inner().refused = Some(resource);
    }

    /// There is another physical cluster, too.
    pub fn register(&self, other: Uid) {
        self.inner().others.insert(other);
    }

    /// Returns the number of questions whether a physical cluster exists.
    pub fn times_asked(&self) -> usize {
        self.inner().times_asked
    }

    /// A syncer of this number has been started.
    pub fn start_syncer(&self, number: u64) {
        let mut inner = self.inner();
        inner.newest_syncer = inner.newest_syncer.max(number);
    }

    /// The object as it is.
    pub fn object(&self, key: &ObjectKey) -> Option<Value> {
        self.inner().objects.get(key).map(|found| found.object.clone())
    }

    /// The heartbeats so far, each with the number of answers since the last silence.
    pub fn heartbeats(&self) -> Vec<u64> {
        self.inner().heartbeats.clone()
    }

    /// Allows custom kinds from now on, and hands down these definitions.
    pub fn allow_kinds(&self, rules: CustomKindRules) {
        self.inner().custom = rules;
    }

    /// Objects of a resource that are written from now on have a scale.
    pub fn scale_by(&self, resource: &GroupResource, scale: ScaleFields) {
        self.inner().scales.insert(resource.clone(), scale);
    }

    /// Keys of all objects of a resource.
    pub fn keys(&self, resource: &str) -> Vec<ObjectKey> {
        self.inner().objects.keys().filter(|key| &*key.resource.resource == resource).cloned().collect()
    }

    /// Keys of all objects.
    pub fn all_keys(&self) -> Vec<ObjectKey> {
        self.inner().objects.keys().cloned().collect()
    }

    /// The last report about an object.
    pub fn last_report(&self, key: &ObjectKey) -> Option<CopyState> {
        self.inner().reports.iter().rev().find(|report| report.key == *key).map(|report| report.state.clone())
    }

    /// Number of reports so far.
    pub fn report_count(&self) -> usize {
        self.inner().reports.len()
    }

    /// Number of writes of Events so far.
    pub fn event_count(&self) -> usize {
        self.inner().event_writes
    }

    /// The last report about the physical cluster.
    pub fn cluster(&self) -> Option<ClusterReport> {
        self.inner().cluster.clone()
    }

    /// The debts as they are.
    pub fn recorded_debts(&self) -> Vec<Debt> {
        self.inner().debts.clone()
    }

    fn check(&self) -> Result<MutexGuard<'_, MemoryUpstreamState>, UpstreamError> {
        let inner = self.inner();
        if inner.is_failing { Err(UpstreamError::Failed(Status::internal("scripted"))) } else { Ok(inner) }
    }

    fn take_report(&self, report: CopyReport) -> Result<(), UpstreamError> {
        let mut inner = self.check()?;
        let Some(found) = inner.objects.get(&report.key).cloned() else { return Ok(()) };
        let Some(entry) = PlacementRecord::of(&found.object).and_then(|record| record.on(&self.physical).cloned())
        else {
            return Ok(());
        };
        if object::uid(&found.object).as_ref() != Some(&report.uid) || entry.epoch != report.epoch {
            return Ok(());
        }
        let unreported = CopyStatus::unreported(entry.name, entry.uid, entry.replicas);
        let copy = inner.copies.entry(report.key.clone()).or_insert(unreported);
        copy.update(report.state.clone(), "2026-01-01T00:00:00Z");
        let shape = StatusShape { kind: &found.kind.group_kind(), scale: found.scale.as_ref() };
        let merged = status::merge_as(shape, &found.object, std::slice::from_ref(copy));
        inner.reports.push(report);
        if found.object.get("status") != Some(&merged) {
            let mut object = found.object;
            object["status"] = merged;
            self.store(&mut inner, &found.key, &found.kind, Some(object));
        }
        Ok(())
    }

    /// Removes the entry, and the object if it only waited for that.
    fn drop_entry(&self, inner: &mut MemoryUpstreamState, key: &ObjectKey, uid: &Uid) {
        let Some(found) = inner.objects.get(key).filter(|f| object::uid(&f.object).as_ref() == Some(uid)).cloned()
        else {
            return;
        };
        let mut object = found.object;
        PlacementRecord::default().write_to(&mut object);
        if object::finalizers(&object).any(|finalizer| finalizer == "orphan") {
            self.drop_references(inner, uid);
        }
        let object = (!object::is_deleting(&object)).then_some(object);
        self.store(inner, key, &found.kind, object);
    }

    /// Takes an owner off its dependents, as the garbage collector does.
    fn drop_references(&self, inner: &mut MemoryUpstreamState, owner: &Uid) {
        let owned = |found: &&UpstreamObject| {
            object::owner_references(&found.object).iter().any(|reference| reference["uid"] == **owner)
        };
        let dependents: Vec<UpstreamObject> = inner.objects.values().filter(owned).cloned().collect();
        for dependent in dependents {
            let mut object = dependent.object;
            object::metadata_mut(&mut object).remove("ownerReferences");
            self.store(inner, &dependent.key, &dependent.kind, Some(object));
        }
    }

    fn is_placed(&self, object: &Value) -> bool {
        PlacementRecord::of(object).is_some_and(|record| record.on(&self.physical).is_some())
    }

    /// Returns true for dependents of an object that is placed there, and for claims of a StatefulSet that is placed
    /// there.
    fn comes_from_a_copy(&self, inner: &MemoryUpstreamState, key: &ObjectKey, shown: &Value) -> bool {
        let is_beside = |other: &ObjectKey| other.cluster == key.cluster && other.scope == key.scope;
        let Some(owner) = object::controller_of(shown) else {
            let is_set = |found: &UpstreamObject| &*found.kind.kind == "StatefulSet" && self.is_placed(&found.object);
            return &*key.resource.resource == "persistentvolumeclaims"
                && inner.objects.iter().any(|(other, found)| is_beside(other) && is_set(found));
        };
        inner.objects.iter().any(|(other, found)| {
            is_beside(other)
                && owner["kind"] == *found.kind.kind
                && owner["name"] == *other.name.as_str()
                && owner["uid"] == *object::meta_text(&found.object, "uid")
                && self.is_placed(&found.object)
        })
    }

    fn take_projection(&self, projection: Projection) -> Result<(), UpstreamError> {
        let mut inner = self.check()?;
        let refused = inner.refused;
        let is_taken = |key: &ObjectKey| refused.is_none_or(|refused| *refused != *key.resource.resource);
        for (key, put) in projection.put.into_iter().filter(|(key, _)| is_taken(key)) {
            let existing = inner.objects.get(&key).map(|found| found.object.clone());
            let is_known = existing.as_ref().is_some_and(|found| self.is_placed(found));
            if !is_known && !self.comes_from_a_copy(&inner, &key, &put) {
                continue;
            }
            if inner.is_full && existing.is_none() {
                return Err(UpstreamError::Failed(Status::new(Reason::Forbidden, "it would store more than it may")));
            }
            let Some(mut object) = project::merge_put(existing.as_ref(), put) else { continue };
            if object::uid(&object).is_none() {
                inner.uids += 1;
                let uid = format!("up-{}", inner.uids);
                object::metadata_mut(&mut object).insert("uid".into(), json!(uid));
                project::translate_own_uid(&mut object);
            }
            let text = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
            if let Ok(kind) = GroupVersionKind::parse(&text("apiVersion"), &text("kind")) {
                self.store(&mut inner, &key, &kind, Some(object));
            }
        }
        for (key, subject, event) in projection.events {
            if inner.objects.contains_key(&subject) {
                inner.event_writes += 1;
                self.store(&mut inner, &key, &GroupVersionKind::new("", "v1", "Event"), Some(event));
            }
        }
        for key in projection.gone {
            let Some(found) = inner.objects.get(&key).cloned() else { continue };
            match project::merge_gone(&found.object, &self.physical) {
                project::ProjectionRemoval::Unchanged => {}
                project::ProjectionRemoval::Changed(object) => self.store(&mut inner, &key, &found.kind, Some(object)),
                project::ProjectionRemoval::Removed => self.store(&mut inner, &key, &found.kind, None),
            }
        }
        Ok(())
    }
}

struct MemoryChangeStream {
    upstream: Arc<MemoryUpstream>,
    receiver: watch::Receiver<u64>,
    after: u64,
}

impl MemoryChangeStream {
    fn ready(&self) -> Result<Option<UpstreamChanges>, UpstreamError> {
        let inner = self.upstream.check()?;
        let keys: Vec<_> = inner.log.iter().filter(|(at, _)| *at > self.after).map(|(_, key)| key.clone()).collect();
        let revision = inner.log.last().map(|(at, _)| *at).and_then(ResourceVersion::new);
        Ok(revision.filter(|_| !keys.is_empty()).map(|revision| UpstreamChanges { revision, keys }))
    }
}

impl ChangeStream for MemoryChangeStream {
    fn next(&mut self) -> BoxFuture<'_, Result<UpstreamChanges, UpstreamError>> {
        Box::pin(async move {
            loop {
                if let Some(changes) = self.ready()? {
                    self.after = changes.revision.get();
                    return Ok(changes);
                }
                if self.receiver.changed().await.is_err() {
                    return Err(UpstreamError::Expired);
                }
            }
        })
    }
}

/// [`MemoryUpstream`] as the worker sees it.
pub struct SharedUpstream(pub Arc<MemoryUpstream>);

impl Upstream for SharedUpstream {
    fn plane(&self) -> Option<&str> {
        self.0.plane
    }

    fn exists<'a>(&'a self, physical: &'a Uid) -> BoxFuture<'a, Result<bool, UpstreamError>> {
        Box::pin(async move {
            let mut inner = self.0.check()?;
            inner.times_asked += 1;
            Ok(*physical == self.0.physical || inner.others.contains(physical))
        })
    }

    fn snapshot<'a>(&'a self, _physical: &'a Uid) -> BoxFuture<'a, Result<PlacedSnapshot, UpstreamError>> {
        Box::pin(async move {
            let inner = self.0.check()?;
            let revision = ResourceVersion::new(*self.0.revision.borrow()).unwrap_or(ResourceVersion::FIRST);
            let named = |upstream: &UpstreamObject| (upstream.key.clone(), object::uid(&upstream.object));
            let placed = inner.objects.values().filter(|found| self.0.is_placed(&found.object) && !inner.is_empty);
            let objects = placed.map(named).collect();
            Ok(PlacedSnapshot { revision, objects })
        })
    }

    fn changes<'a>(
        &'a self,
        _physical: &'a Uid,
        after: ResourceVersion,
    ) -> BoxFuture<'a, Result<Box<dyn ChangeStream>, UpstreamError>> {
        Box::pin(async move {
            drop(self.0.check()?);
            let (upstream, receiver) = (self.0.clone(), self.0.revision.subscribe());
            Ok(Box::new(MemoryChangeStream { upstream, receiver, after: after.get() }) as Box<dyn ChangeStream>)
        })
    }

    fn namespace_changes(&self) -> BoxFuture<'_, Result<Box<dyn ChangeStream>, UpstreamError>> {
        Box::pin(async move {
            drop(self.0.check()?);
            let (upstream, receiver) = (self.0.clone(), self.0.revision.subscribe());
            let after = *self.0.revision.borrow();
            Ok(Box::new(MemoryChangeStream { upstream, receiver, after }) as Box<dyn ChangeStream>)
        })
    }

    fn get<'a>(&'a self, _physical: &'a Uid, key: &'a ObjectKey) -> BoxFuture<'a, Result<UpstreamRead, UpstreamError>> {
        Box::pin(async move {
            Ok(match self.0.check()?.objects.get(key) {
                None => UpstreamRead::Absent,
                Some(found) if self.0.is_placed(&found.object) => UpstreamRead::Placed(Box::new(found.clone())),
                Some(found) => UpstreamRead::NotPlaced(UnplacedObject {
                    uid: object::uid(&found.object),
                    has_record: PlacementRecord::of(&found.object).is_some(),
                }),
            })
        })
    }

    fn namespace_labels<'a>(
        &'a self,
        _physical: &'a Uid,
        key: &'a ObjectKey,
    ) -> BoxFuture<'a, Result<Option<Map<String, Value>>, UpstreamError>> {
        Box::pin(async move {
            let inner = self.0.check()?;
            if !inner.objects.get(key).is_some_and(|found| self.0.is_placed(&found.object)) {
                return Ok(None);
            }
            let is_around = |namespace: &&UpstreamObject| {
                &*namespace.key.resource.resource == "namespaces"
                    && namespace.key.cluster == key.cluster
                    && key.namespace().is_some_and(|name| name.as_str() == namespace.key.name.as_str())
            };
            let around = inner.objects.values().find(is_around);
            let labels = around.and_then(|around| object::metadata(&around.object).get("labels")?.as_object().cloned());
            Ok(Some(labels.unwrap_or_default()))
        })
    }

    fn import_changes(&self) -> BoxFuture<'_, Result<Box<dyn ChangeStream>, UpstreamError>> {
        self.namespace_changes()
    }

    fn imported_services<'a>(
        &'a self,
        _physical: &'a Uid,
        key: &'a ObjectKey,
    ) -> BoxFuture<'a, Result<ImportedServices, UpstreamError>> {
        Box::pin(async move {
            let inner = self.0.check()?;
            if !inner.objects.get(key).is_some_and(|found| self.0.is_placed(&found.object)) {
                return Ok(ImportedServices::default());
            }
            let around = inner
                .objects
                .iter()
                .filter(|(other, _)| other.cluster == key.cluster && other.namespace() == key.namespace());
            let of =
                |resource: &'static str| around.clone().filter(move |(other, _)| *other.resource.resource == *resource);
            let names = of("serviceimports").map(|(import, _)| import.name.to_string()).collect();
            Ok(ImportedServices::of(names, of("endpointslices").map(|(_, slice)| &slice.object)))
        })
    }

    fn is_default(&self, object: &UpstreamObject, pointer: &str) -> bool {
        object.object.pointer(pointer).and_then(Value::as_str) == Some("the default")
    }

    fn custom_kinds<'a>(&'a self, _physical: &'a Uid) -> BoxFuture<'a, Result<CustomKindRules, UpstreamError>> {
        Box::pin(async move { Ok(self.0.check()?.custom.clone()) })
    }

    fn pod_token<'a>(&'a self, request: PodTokenRequest<'a>) -> BoxFuture<'a, Result<Option<PodToken>, UpstreamError>> {
        let mut inner = self.0.inner();
        inner.tokens += 1;
        let token = format!("{} of {}, number {}", request.account, request.key.name, inner.tokens);
        let issued = PodToken { token, authority: "authority".into(), renew_at: inner.renew_at };
        let gives = request.account != "none" && !inner.issues_no_tokens;
        Box::pin(async move { Ok(gives.then_some(issued)) })
    }

    fn report(&self, report: CopyReport) -> BoxFuture<'_, Result<(), UpstreamError>> {
        Box::pin(async move { self.0.take_report(report) })
    }

    fn confirm_gone<'a>(
        &'a self,
        key: &'a ObjectKey,
        uid: &'a Uid,
        _physical: &'a Uid,
        _epoch: u64,
    ) -> BoxFuture<'a, Result<(), UpstreamError>> {
        Box::pin(async move {
            self.0.drop_entry(&mut *self.0.check()?, key, uid);
            Ok(())
        })
    }

    fn project<'a>(&'a self, _physical: &'a Uid, projection: Projection) -> BoxFuture<'a, Result<(), UpstreamError>> {
        Box::pin(async move {
            // The sender lives as long as `self`.
            let _ = self.0.are_projections_held.subscribe().wait_for(|are_held| !are_held).await;
            self.0.take_projection(projection)
        })
    }

    fn debts<'a>(&'a self, _physical: &'a Uid) -> BoxFuture<'a, Result<Vec<Debt>, UpstreamError>> {
        Box::pin(async move { Ok(self.0.check()?.debts.clone()) })
    }

    fn settle<'a>(&'a self, _physical: &'a Uid, debt: &'a Debt) -> BoxFuture<'a, Result<(), UpstreamError>> {
        Box::pin(async move {
            self.0.check()?.debts.retain(|known| known != debt);
            Ok(())
        })
    }

    fn record_debt<'a>(&'a self, _physical: &'a Uid, debt: Debt) -> BoxFuture<'a, Result<(), UpstreamError>> {
        Box::pin(async move {
            let mut inner = self.0.check()?;
            self.0.drop_entry(&mut inner, &debt.key, &debt.uid);
            inner.debts.push(debt);
            Ok(())
        })
    }

    fn newest_syncer<'a>(&'a self, _physical: &'a Uid) -> BoxFuture<'a, Result<u64, UpstreamError>> {
        Box::pin(async move { Ok(self.0.check()?.newest_syncer) })
    }

    fn heartbeat<'a>(&'a self, _physical: &'a Uid, unbroken: u64) -> BoxFuture<'a, Result<(), UpstreamError>> {
        Box::pin(async move {
            self.0.check()?.heartbeats.push(unbroken);
            Ok(())
        })
    }

    fn report_cluster<'a>(
        &'a self,
        _physical: &'a Uid,
        report: ClusterReport,
    ) -> BoxFuture<'a, Result<(), UpstreamError>> {
        Box::pin(async move {
            self.0.check()?.cluster = Some(report);
            Ok(())
        })
    }
}
