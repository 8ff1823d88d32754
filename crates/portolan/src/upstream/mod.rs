//! The syncer's `Upstream`, over the store: every answer is limited to what is placed on the physical cluster that asks, and
//! every report is one transaction.

mod cluster;
mod copies;
mod creates;
mod debts;
mod defaults;
mod epoch;
mod projection;
mod release;
mod retire;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    sync::{Arc, RwLock},
};

use self::creates::{AccountsOf, CreateRates};
use portolan_controllers::{Plane, PlaneError};
use portolan_scheduler::has_template;
use portolan_store::{
    EventStream, RangeRequest, RangeScope, StoreError, StoredObject, Transaction, WatchScope, Write, commit_noting,
    retried,
};
use portolan_types::{
    BoxFuture, GroupResource, GroupVersionKind, ObjectKey, Reason, ResourceVersion, Status, Uid, object,
    placement::{GROUP, placement_name},
    upstream::{
        ChangeStream, Changes, ClusterReport, CopyReport, Debt, Projection, Snapshot, Upstream, UpstreamError,
        UpstreamObject,
    },
};
use serde_json::Value;

pub(crate) use cluster::DELETIONS_HELD;
pub(crate) use epoch::resource as epochs;
pub(crate) use retire::Left;

/// The logical side of all physical clusters.
pub(crate) struct StoreUpstream {
    plane: Arc<Plane>,
    /// What tells this control plane from others; none when it had copies before there were names.
    name: Option<String>,
    /// Where each physical cluster is registered.
    registered: RwLock<HashMap<Uid, ObjectKey>>,
    creates: CreateRates,
    /// Accounts that creates are charged to, where workspaces have limits.
    accounts: Option<AccountsOf>,
}

impl StoreUpstream {
    pub(crate) fn new(plane: Arc<Plane>, name: Option<String>) -> Self {
        Self { plane, name, registered: RwLock::default(), creates: CreateRates::default(), accounts: None }
    }

    /// Charges what physical clusters have created to the accounts of its workspace.
    #[must_use]
    pub(crate) fn charging(mut self, accounts: AccountsOf) -> Self {
        self.accounts = Some(accounts);
        self
    }

    /// Tells where `physical` is registered, so that its state can be written there.
    pub(crate) fn register(&self, physical: Uid, key: ObjectKey) {
        self.registered.write().expect("no code panics under this lock").insert(physical, key);
    }

    /// `physical` has no workers any more, and will have none.
    pub(crate) fn unregister(&self, physical: &Uid) {
        self.registered.write().expect("no code panics under this lock").remove(physical);
        self.creates.forget(physical);
    }

    /// Where `physical` is registered, while it has workers.
    pub(crate) fn registered(&self, physical: &Uid) -> Option<ObjectKey> {
        self.registered.read().expect("no code panics under this lock").get(physical).cloned()
    }

    /// The number of the next syncer of `physical`.
    pub(crate) async fn next_syncer(&self, physical: &Uid) -> Result<u64, PlaneError> {
        epoch::next(&self.plane, physical).await
    }

    /// Forgets what is kept about a physical cluster that is gone for good.
    pub(crate) async fn retire(&self, physical: &Uid) -> Result<Left, UpstreamError> {
        retire::retire(self, physical).await
    }

    /// Counts the objects with copies on a physical cluster.
    pub(crate) async fn count_copies(&self, physical: &Uid) -> Result<usize, UpstreamError> {
        retire::count_copies(self, physical).await
    }

    fn upstream_object(&self, stored: &StoredObject) -> Result<UpstreamObject, UpstreamError> {
        let object = stored.to_value().map_err(store_failed)?;
        let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default();
        let kind = match self.plane.stored_kind(&stored.key.resource) {
            Some(kind) => kind.gvk.clone(),
            // A custom resource says itself what it is. "None" would say that it has been removed.
            None => GroupVersionKind::parse(text("apiVersion"), text("kind")).map_err(|error| failed(&error))?,
        };
        let (key, revision) = (stored.key.clone(), stored.revision);
        Ok(UpstreamObject { key, revision, kind, object, is_held: false })
    }

    /// Whether the pods of a template, as the object has it now, have yet to be let in. Of objects that were placed before
    /// anybody asked, and where nobody asks, nothing is held.
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

    async fn commit(&self, txn: Transaction) -> Result<(), UpstreamError> {
        self.commit_noting(txn, Vec::new()).await
    }

    /// Commits a transaction, and Events that tell of it.
    async fn commit_noting(&self, txn: Transaction, notes: Vec<Write>) -> Result<(), UpstreamError> {
        if txn.writes.is_empty() && notes.is_empty() {
            return Ok(());
        }
        portolan_types::failpoint!("upstream/commit-ready");
        let committed = commit_noting(self.plane.store(), txn, notes).await;
        portolan_types::failpoint!("upstream/committed");
        committed.map(drop).map_err(store_failed)
    }
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
            format!("the workspace {cluster}, or one above it, would store more than it may"),
        )),
        other => failed(&other),
    }
}

struct StoreChanges(Box<dyn EventStream>);

impl ChangeStream for StoreChanges {
    fn next(&mut self) -> BoxFuture<'_, Result<Changes, UpstreamError>> {
        Box::pin(async move {
            let batch = self.0.next().await.map_err(|error| match error {
                // What was deleted as damaged is found missing in the next snapshot.
                StoreError::Damaged { .. } => UpstreamError::Expired,
                other => store_failed(other),
            })?;
            let keys = batch.events.iter().map(|event| event.key.clone()).collect();
            Ok(Changes { revision: batch.revision, keys })
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
            let page = self.plane.store().range(RangeRequest::all(scope).past_damage()).await.map_err(store_failed)?;
            let is_found = page.objects.iter().any(|stored| stored.record.header.uid == physical.as_str());
            match page.damaged.first() {
                // It may be this one, and who is gone loses all that is kept about it.
                Some(found) if !is_found => Err(failed(found)),
                Some(_) | None => Ok(is_found),
            }
        })
    }

    fn snapshot<'a>(&'a self, physical: &'a Uid) -> BoxFuture<'a, Result<Snapshot, UpstreamError>> {
        Box::pin(async move {
            let mut request = RangeRequest::slices(RangeScope::PlacedOn(physical.to_string())).past_damage();
            let (mut first, mut objects) = (None, Vec::new());
            loop {
                let page = self.plane.store().range(request.clone()).await.map_err(store_failed)?;
                // Later slices show later states: what changes in between is told as a change too.
                let revision = *first.get_or_insert(page.revision);
                let named = |stored: &StoredObject| (stored.key.clone(), stored.record.header.uid());
                objects.extend(page.objects.iter().map(named));
                // What is damaged is placed here all the same.
                objects.extend(page.damaged.into_iter().map(|found| (found.key, None)));
                if !page.more {
                    return Ok(Snapshot { revision, objects });
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
        Box::pin(async move {
            let scope = WatchScope::Resource(GroupResource::new("", "namespaces"), None);
            let events = self.plane.store().watch(scope, None).await.map_err(store_failed)?;
            Ok(Box::new(StoreChanges(events)) as Box<dyn ChangeStream>)
        })
    }

    fn get<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Option<UpstreamObject>, UpstreamError>> {
        Box::pin(async move {
            let stored = self.plane.store().get(key).await.map_err(store_failed)?;
            let Some(stored) = stored else { return Ok(None) };
            let mut upstream = self.upstream_object(&stored)?;
            upstream.is_held = self.is_held(&upstream).await?;
            Ok(Some(upstream))
        })
    }

    fn is_default(&self, object: &UpstreamObject, pointer: &str) -> bool {
        defaults::is_default(&self.plane, object, pointer)
    }

    fn report(&self, report: CopyReport) -> BoxFuture<'_, Result<(), UpstreamError>> {
        Box::pin(async move {
            let report = Arc::new(report);
            retried(was_beaten, || copies::report(self, report.clone())).await
        })
    }

    fn confirm_gone<'a>(
        &'a self,
        key: &'a ObjectKey,
        uid: &'a Uid,
        physical: &'a Uid,
        epoch: u64,
    ) -> BoxFuture<'a, Result<(), UpstreamError>> {
        let leaving = release::Leaving { key, uid, physical, epoch };
        Box::pin(retried(was_beaten, move || release::release(self, leaving, Transaction::default())))
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
            retried(was_beaten, || debts::record(self, physical, debt.clone())).await
        })
    }

    fn report_cluster<'a>(
        &'a self,
        physical: &'a Uid,
        report: ClusterReport,
    ) -> BoxFuture<'a, Result<(), UpstreamError>> {
        Box::pin(async move { retried(was_beaten, || cluster::write(self, physical, &report)).await })
    }

    fn newest_syncer<'a>(&'a self, physical: &'a Uid) -> BoxFuture<'a, Result<u64, UpstreamError>> {
        Box::pin(async move { epoch::newest(&self.plane, physical).await.map_err(|error| failed(&error)) })
    }
}
