//! Upstream side of the syncers, over the store. Every read is limited to the objects of the calling physical cluster,
//! and every report is one transaction.

mod cluster;
mod copies;
mod creates;
mod custom_kinds;
mod debts;
mod defaults;
mod epoch;
mod heartbeats;
mod imports;
mod pod_tokens;
mod projection;
mod release;
mod retirement;
mod status_kind;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    sync::{Arc, RwLock},
};

use self::{
    creates::{AccountLookup, CreateRateLimiter},
    status_kind::StatusKind,
};
use portolan_controllers::{Plane, PlaneError};
use portolan_scheduler::has_template;
use portolan_store::{
    EventStream, RangeRequest, RangeScope, StoreError, StoredObject, Transaction, WatchScope, Write, commit_with_notes,
    retry_on_conflict,
};
use portolan_types::{
    BoxFuture, GroupResource, GroupVersionKind, ObjectKey, Reason, ResourceVersion, Status, Uid,
    imported_services::{self, ImportedServices},
    object,
    placement::{GROUP, PlacementRecord, placement_name},
    upstream::{
        ChangeStream, ClusterReport, CopyReport, CustomKindRules, Debt, PlacedSnapshot, PodToken, PodTokenRequest,
        Projection, UnplacedObject, Upstream, UpstreamChanges, UpstreamError, UpstreamObject, UpstreamRead,
    },
};
use serde_json::{Map, Value};

pub(crate) use cluster::{DELETIONS_HELD, observe};
pub(crate) use epoch::resource as epochs;
pub(crate) use pod_tokens::PodTokenIssuer;
pub(crate) use retirement::RetirementProgress;

/// Upstream side of all physical clusters.
pub(crate) struct StoreUpstream {
    plane: Arc<Plane>,
    /// Name of the control plane; `None` if it had copies before there were names.
    name: Option<String>,
    /// Keys of the `PhysicalCluster` objects, by uid.
    registered: RwLock<HashMap<Uid, ObjectKey>>,
    /// Generations of the `PhysicalCluster` objects that their workers were started for, by uid.
    observed: RwLock<HashMap<Uid, i64>>,
    creates: CreateRateLimiter,
    /// Accounts that creates are charged to, if workspaces have limits.
    accounts: Option<AccountLookup>,
    /// Base URL of this server; `None` in tests.
    address: Option<String>,
    /// Issuer of the tokens of pods; `None` in tests.
    tokens: Option<PodTokenIssuer>,
}

impl StoreUpstream {
    pub(crate) fn new(plane: Arc<Plane>, name: Option<String>) -> Self {
        let (registered, creates) = (RwLock::default(), CreateRateLimiter::default());
        Self {
            plane,
            name,
            registered,
            observed: RwLock::default(),
            creates,
            accounts: None,
            address: None,
            tokens: None,
        }
    }

    /// Charges objects that physical clusters create to the accounts of their workspaces.
    #[must_use]
    pub(crate) fn charging(mut self, accounts: AccountLookup) -> Self {
        self.accounts = Some(accounts);
        self
    }

    /// Issues tokens to pods on physical clusters.
    #[must_use]
    pub(crate) fn issuing(mut self, tokens: PodTokenIssuer) -> Self {
        self.tokens = Some(tokens);
        self
    }

    /// Sets the base URL that clients reach this server by.
    #[must_use]
    pub(crate) fn reached_by(self, address: String) -> Self {
        Self { address: Some(address), ..self }
    }

    /// Returns the base URL that clients reach this server by.
    pub(crate) fn address(&self) -> Option<&str> {
        self.address.as_deref()
    }

    /// Registers the `PhysicalCluster` object at `key`, so that its status can be written.
    pub(crate) fn register(&self, physical: Uid, key: ObjectKey) {
        self.registered.write().expect("no code panics under this lock").insert(physical, key);
    }

    /// Unregisters a physical cluster whose workers have stopped and will not start again.
    pub(crate) fn unregister(&self, physical: &Uid) {
        self.registered.write().expect("no code panics under this lock").remove(physical);
        self.observed.write().expect("no code panics under this lock").remove(physical);
        self.creates.forget(physical);
    }

    /// Records the generation of the `PhysicalCluster` object that its workers run for. Reports are about it.
    pub(crate) fn observe_generation(&self, physical: &Uid, generation: i64) {
        self.observed.write().expect("no code panics under this lock").insert(physical.clone(), generation);
    }

    /// Returns the generation of the `PhysicalCluster` object that its workers run for; 0 if it is unknown.
    pub(crate) fn observed_generation(&self, physical: &Uid) -> i64 {
        self.observed.read().expect("no code panics under this lock").get(physical).copied().unwrap_or_default()
    }

    /// Returns the key of the `PhysicalCluster` object, while it has workers.
    pub(crate) fn registered(&self, physical: &Uid) -> Option<ObjectKey> {
        self.registered.read().expect("no code panics under this lock").get(physical).cloned()
    }

    /// Returns the number of the next syncer of `physical`.
    pub(crate) async fn next_syncer(&self, physical: &Uid) -> Result<u64, PlaneError> {
        epoch::next(&self.plane, physical).await
    }

    /// Removes all records about a deleted physical cluster.
    pub(crate) async fn retire(&self, physical: &Uid) -> Result<RetirementProgress, UpstreamError> {
        retirement::retire(self, physical).await
    }

    /// Counts the objects with copies on a physical cluster.
    pub(crate) async fn count_copies(&self, physical: &Uid) -> Result<usize, UpstreamError> {
        retirement::count_copies(self, physical).await
    }

    fn upstream_object(&self, stored: &StoredObject) -> Result<UpstreamObject, UpstreamError> {
        let object = stored.to_value().map_err(store_failed)?;
        let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default();
        let kind = match self.plane.stored_kind(&stored.key.resource) {
            Some(kind) => kind.gvk.clone(),
            // A custom resource states its own kind. `None` would mean that the object was removed.
            None => GroupVersionKind::parse(text("apiVersion"), text("kind")).map_err(|error| failed(&error))?,
        };
        let (key, revision) = (stored.key.clone(), stored.revision);
        Ok(UpstreamObject { key, revision, kind, object, is_held: false, scale: None })
    }

    /// Returns true if the pods of the current template are not admitted yet. Objects placed before admission was
    /// asked, or without it, are not held.
    async fn is_held(&self, of: &UpstreamObject) -> Result<bool, UpstreamError> {
        if !has_template(&of.key.resource.group, &of.key.resource.resource) {
            return Ok(false);
        }
        let name = placement_name(&of.key.resource, &of.key.name).parse().map_err(|error| failed(&error))?;
        let key = ObjectKey { resource: GroupResource::new(GROUP, "placements"), name, ..of.key.clone() };
        let Some((placement, _)) = self.read(&key).await? else { return Ok(false) };
        let is_own =
            placement.pointer("/spec/object/uid").and_then(Value::as_str) == Some(object::meta_text(&of.object, "uid"));
        let admitted = placement.pointer("/status/admittedGeneration").and_then(Value::as_i64);
        Ok(is_own && admitted.is_some_and(|admitted| admitted < object::generation(&of.object)))
    }

    async fn read(&self, key: &ObjectKey) -> Result<Option<(Value, ResourceVersion)>, UpstreamError> {
        let Some(stored) = self.plane.store().get(key).await.map_err(store_failed)? else { return Ok(None) };
        let object = stored.to_value().map_err(store_failed)?;
        Ok(Some((object, stored.revision)))
    }

    /// Watches a resource in all logical clusters, from now on.
    async fn changes_of(&self, resource: GroupResource) -> Result<Box<dyn ChangeStream>, UpstreamError> {
        let events =
            self.plane.store().watch(WatchScope::Resource(resource, None), None).await.map_err(store_failed)?;
        Ok(Box::new(StoreChanges(events)) as Box<dyn ChangeStream>)
    }

    async fn commit(&self, txn: Transaction) -> Result<(), UpstreamError> {
        self.commit_with_notes(txn, Vec::new()).await
    }

    /// Commits a transaction, and Events about it.
    async fn commit_with_notes(&self, txn: Transaction, notes: Vec<Write>) -> Result<(), UpstreamError> {
        if txn.writes.is_empty() && notes.is_empty() {
            return Ok(());
        }
        portolan_types::failpoint!("upstream/commit-ready");
        let committed = commit_with_notes(self.plane.store(), txn, notes).await;
        portolan_types::failpoint!("upstream/committed");
        committed.map(drop).map_err(store_failed)
    }
}

/// Returns true if the placement index has the object for `physical`: placed there, following an object there, or
/// projected.
fn is_placed(stored: &StoredObject, physical: &Uid) -> bool {
    stored.record.header.placed_on.iter().any(|uid| **uid == **physical)
}

fn was_beaten(error: &UpstreamError) -> bool {
    matches!(error, UpstreamError::Conflict)
}

fn failed(error: &dyn std::fmt::Display) -> UpstreamError {
    UpstreamError::Failed(Status::internal(error))
}

fn store_failed(error: StoreError) -> UpstreamError {
    match error {
        StoreError::Conflict { .. } | StoreError::AlreadyExists { .. } | StoreError::NotFound { .. } => {
            UpstreamError::Conflict
        }
        StoreError::Compacted { .. } => UpstreamError::Expired,
        StoreError::OverLimit { cluster, .. } => UpstreamError::Failed(Status::new(
            Reason::Forbidden,
            format!("the workspace {cluster}, or an ancestor, would exceed its storage limits"),
        )),
        other => failed(&other),
    }
}

struct StoreChanges(Box<dyn EventStream>);

impl ChangeStream for StoreChanges {
    fn next(&mut self) -> BoxFuture<'_, Result<UpstreamChanges, UpstreamError>> {
        Box::pin(async move {
            let batch = self.0.next().await.map_err(|error| match error {
                // A deleted object that was damaged is missing in the next snapshot.
                StoreError::Damaged { .. } => UpstreamError::Expired,
                other => store_failed(other),
            })?;
            let keys = batch.events.iter().map(|event| event.key.clone()).collect();
            Ok(UpstreamChanges { revision: batch.revision, keys })
        })
    }
}

impl Upstream for StoreUpstream {
    fn plane(&self) -> Option<&str> {
        self.name.as_deref()
    }

    fn exists<'a>(&'a self, physical: &'a Uid) -> BoxFuture<'a, Result<bool, UpstreamError>> {
        Box::pin(async move {
            let scope = RangeScope::AllClusters(GroupResource::new(GROUP, "physicalclusters"));
            let page = self.plane.store().range(RangeRequest::all(scope).skip_damaged()).await.map_err(store_failed)?;
            let is_found = page.objects.iter().any(|stored| stored.record.header.uid == physical.as_str());
            match page.damaged.first() {
                // It may be this one, and a deleted physical cluster loses all its records.
                Some(found) if !is_found => Err(failed(found)),
                Some(_) | None => Ok(is_found),
            }
        })
    }

    fn snapshot<'a>(&'a self, physical: &'a Uid) -> BoxFuture<'a, Result<PlacedSnapshot, UpstreamError>> {
        Box::pin(async move {
            let mut request = RangeRequest::slices(RangeScope::PlacedOn(physical.to_string())).skip_damaged();
            let (mut first, mut objects) = (None, Vec::new());
            loop {
                let page = self.plane.store().range(request.clone()).await.map_err(store_failed)?;
                // Later pages show later states; changes in between also arrive as events.
                let revision = *first.get_or_insert(page.revision);
                let named = |stored: &StoredObject| (stored.key.clone(), stored.record.header.uid());
                objects.extend(page.objects.iter().map(named));
                // Damaged objects are placed here all the same.
                objects.extend(page.damaged.into_iter().map(|found| (found.key, None)));
                if !page.more {
                    return Ok(PlacedSnapshot { revision, objects });
                }
                request.after = page.last;
            }
        })
    }

    fn changes<'a>(
        &'a self,
        physical: &'a Uid,
        after: ResourceVersion,
    ) -> BoxFuture<'a, Result<Box<dyn ChangeStream>, UpstreamError>> {
        Box::pin(async move {
            let scope = WatchScope::PlacedOn(physical.to_string());
            let events = self.plane.store().watch(scope, Some(after)).await.map_err(store_failed)?;
            Ok(Box::new(StoreChanges(events)) as Box<dyn ChangeStream>)
        })
    }

    fn namespace_changes(&self) -> BoxFuture<'_, Result<Box<dyn ChangeStream>, UpstreamError>> {
        Box::pin(self.changes_of(GroupResource::new("", "namespaces")))
    }

    fn get<'a>(&'a self, physical: &'a Uid, key: &'a ObjectKey) -> BoxFuture<'a, Result<UpstreamRead, UpstreamError>> {
        Box::pin(async move {
            let stored = self.plane.store().get(key).await.map_err(store_failed)?;
            let Some(stored) = stored else { return Ok(UpstreamRead::Absent) };
            if !is_placed(&stored, physical) {
                let object = stored.to_value().map_err(store_failed)?;
                let (uid, has_record) = (object::uid(&object), PlacementRecord::of(&object).is_some());
                return Ok(UpstreamRead::NotPlaced(UnplacedObject { uid, has_record }));
            }
            let mut upstream = self.upstream_object(&stored)?;
            upstream.is_held = self.is_held(&upstream).await?;
            if self.plane.stored_kind(&key.resource).is_none() {
                upstream.scale = StatusKind::of(self, key).await?.and_then(|kind| kind.scale);
            }
            Ok(UpstreamRead::Placed(Box::new(upstream)))
        })
    }

    fn namespace_labels<'a>(
        &'a self,
        physical: &'a Uid,
        key: &'a ObjectKey,
    ) -> BoxFuture<'a, Result<Option<Map<String, Value>>, UpstreamError>> {
        Box::pin(async move {
            let stored = self.plane.store().get(key).await.map_err(store_failed)?;
            if !stored.is_some_and(|stored| is_placed(&stored, physical)) {
                return Ok(None);
            }
            let Some(Ok(name)) = key.namespace().map(|namespace| namespace.parse()) else {
                return Ok(Some(Map::new()));
            };
            let namespace = ObjectKey::cluster_scoped(key.cluster, GroupResource::new("", "namespaces"), name);
            let found = self.read(&namespace).await?;
            let labels = found.and_then(|(found, _)| object::metadata(&found).get("labels")?.as_object().cloned());
            Ok(Some(labels.unwrap_or_default()))
        })
    }

    fn import_changes(&self) -> BoxFuture<'_, Result<Box<dyn ChangeStream>, UpstreamError>> {
        Box::pin(self.changes_of(imported_services::imports()))
    }

    fn imported_services<'a>(
        &'a self,
        physical: &'a Uid,
        key: &'a ObjectKey,
    ) -> BoxFuture<'a, Result<ImportedServices, UpstreamError>> {
        Box::pin(imports::read(self, physical, key))
    }

    fn is_default(&self, object: &UpstreamObject, pointer: &str) -> bool {
        defaults::is_default(&self.plane, object, pointer)
    }

    fn custom_kinds<'a>(&'a self, physical: &'a Uid) -> BoxFuture<'a, Result<CustomKindRules, UpstreamError>> {
        Box::pin(custom_kinds::read(self, physical))
    }

    fn pod_token<'a>(&'a self, request: PodTokenRequest<'a>) -> BoxFuture<'a, Result<Option<PodToken>, UpstreamError>> {
        Box::pin(pod_tokens::issue(self, request))
    }

    fn report(&self, report: CopyReport) -> BoxFuture<'_, Result<(), UpstreamError>> {
        Box::pin(async move {
            let report = Arc::new(report);
            retry_on_conflict(was_beaten, || copies::report(self, report.clone())).await
        })
    }

    fn confirm_gone<'a>(
        &'a self,
        key: &'a ObjectKey,
        uid: &'a Uid,
        physical: &'a Uid,
        epoch: u64,
    ) -> BoxFuture<'a, Result<(), UpstreamError>> {
        let leaving = release::CopyAddress { key, uid, physical, epoch };
        Box::pin(retry_on_conflict(was_beaten, move || release::release(self, leaving, Transaction::default())))
    }

    fn project<'a>(&'a self, physical: &'a Uid, projection: Projection) -> BoxFuture<'a, Result<(), UpstreamError>> {
        Box::pin(projection::project(self, physical, projection))
    }

    fn debts<'a>(&'a self, physical: &'a Uid) -> BoxFuture<'a, Result<Vec<Debt>, UpstreamError>> {
        Box::pin(debts::list(self, physical))
    }

    fn settle<'a>(&'a self, physical: &'a Uid, debt: &'a Debt) -> BoxFuture<'a, Result<(), UpstreamError>> {
        Box::pin(debts::settle(self, physical, debt))
    }

    fn record_debt<'a>(&'a self, physical: &'a Uid, debt: Debt) -> BoxFuture<'a, Result<(), UpstreamError>> {
        Box::pin(async move {
            let debt = Arc::new(debt);
            retry_on_conflict(was_beaten, || debts::record(self, physical, debt.clone())).await
        })
    }

    fn heartbeat<'a>(&'a self, physical: &'a Uid, unbroken: u64) -> BoxFuture<'a, Result<(), UpstreamError>> {
        Box::pin(heartbeats::write(self, physical, unbroken))
    }

    fn report_cluster<'a>(
        &'a self,
        physical: &'a Uid,
        report: ClusterReport,
    ) -> BoxFuture<'a, Result<(), UpstreamError>> {
        Box::pin(async move { retry_on_conflict(was_beaten, || cluster::write(self, physical, &report)).await })
    }

    fn newest_syncer<'a>(&'a self, physical: &'a Uid) -> BoxFuture<'a, Result<u64, UpstreamError>> {
        Box::pin(async move { epoch::newest(&self.plane, physical).await.map_err(|error| failed(&error)) })
    }
}
