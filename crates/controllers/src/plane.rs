//! Objects as controllers read and write them: by the same life cycle rules as requests, without HTTP.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use portolan_kinds::{BuiltinKinds, Kind, KindTable, Kinds, custom};
use portolan_store::{
    self as store, DamagedObject, DynStore, Expect, ModifyOutcome, ObjectClient, RangePage, RangeRequest, RangeScope,
    StoreError, Transaction, Write,
};
use portolan_strategy::lifecycle::{self, DeleteOptions, Deletion, Update, WriteContext, allocation};
use portolan_types::{
    GroupResource, LogicalClusterId, NamespaceName, ObjectKey, ObjectName, Record, ResourceVersion, Scope, Seams,
    Status, apis,
};
use serde_json::Value;

use crate::{
    emptying::SHARE,
    runtime::{LoopMetrics, span::record_revision},
};

/// Failure of a read or write.
#[derive(Debug, thiserror::Error)]
pub enum PlaneError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The life cycle rules refuse the write.
    #[error(transparent)]
    Refused(#[from] Status),
}

/// Object with its key and revision.
#[derive(Clone, Debug)]
pub struct PlaneObject {
    /// Key.
    pub key: ObjectKey,
    /// Revision of its last write.
    pub revision: ResourceVersion,
    /// Object, including resourceVersion.
    pub object: Value,
}

impl PlaneObject {
    /// Returns the options of a deletion that fails if the object has changed.
    pub fn preconditions(&self) -> DeleteOptions {
        DeleteOptions {
            uid: Some(portolan_types::object::meta_text(&self.object, "uid").to_owned()),
            resource_version: Some(self.revision.to_string()),
            ..DeleteOptions::default()
        }
    }
}

/// Objects of a scope, readable and damaged ones.
#[derive(Debug, Default)]
pub struct ObjectList {
    /// Readable objects.
    pub found: Vec<PlaneObject>,
    /// Damaged objects. They exist: a check for remaining or used objects has to count them.
    pub damaged: Vec<DamagedObject>,
}

impl ObjectList {
    /// Returns true if there are no objects.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty() && self.damaged.is_empty()
    }

    /// Checks that all objects are readable.
    ///
    /// # Errors
    /// `Damaged` otherwise.
    pub fn check(&self) -> Result<(), PlaneError> {
        self.damaged.first().map_or(Ok(()), |damaged| Err(StoreError::from(damaged.clone()).into()))
    }

    /// Returns the objects if all are readable.
    ///
    /// # Errors
    /// `Damaged` otherwise.
    pub fn whole(self) -> Result<Vec<PlaneObject>, PlaneError> {
        self.check().map(|()| self.found)
    }

    /// Splits a page into readable and damaged objects.
    ///
    /// # Errors
    /// If an object fails for another reason than damage.
    pub fn of(page: RangePage) -> Result<Self, PlaneError> {
        let mut listed = Self { found: Vec::with_capacity(page.objects.len()), damaged: page.damaged };
        for stored in page.objects {
            match stored.to_value() {
                Ok(object) => listed.found.push(PlaneObject { object, key: stored.key, revision: stored.revision }),
                Err(StoreError::Damaged { key, why }) => listed.damaged.push(DamagedObject { key, why }),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(listed)
    }
}

/// Objects of a scope, slice by slice.
pub struct ObjectSlices<'a> {
    plane: &'a Plane,
    next: Option<RangeRequest>,
}

impl ObjectSlices<'_> {
    /// Returns the next slice; `None` after the last.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn next(&mut self) -> Result<Option<ObjectList>, PlaneError> {
        let Some(mut request) = self.next.take() else { return Ok(None) };
        let page = self.plane.store().range(request.clone()).await?;
        request.after = page.last.clone();
        self.next = (page.more && request.after.is_some()).then_some(request);
        ObjectList::of(page).map(Some)
    }

    /// Returns the object after which the next slice begins; `None` after the last.
    pub fn rest(&self) -> Option<ObjectKey> {
        self.next.as_ref()?.after.clone()
    }
}

/// Decision of a closure that [`Plane::change`] calls with an object.
pub enum PlaneChange {
    /// Leave the object.
    Keep,
    /// Write it as an update of the object or one of its subresources.
    Write(Option<&'static str>),
}

/// Objects of all logical clusters.
pub struct Plane {
    objects: ObjectClient,
    table: &'static KindTable,
    kinds: Arc<dyn Kinds>,
    seams: Seams,
    metrics: Option<LoopMetrics>,
}

impl Plane {
    /// Makes a plane on a store and a kind table, without custom kinds.
    pub fn new(store: DynStore, table: &'static KindTable, seams: Seams) -> Self {
        Self { objects: ObjectClient::new(store), table, kinds: Arc::new(BuiltinKinds), seams, metrics: None }
    }

    /// Adds the kinds of each logical cluster.
    #[must_use]
    pub fn with_kinds(mut self, kinds: Arc<dyn Kinds>) -> Self {
        self.kinds = kinds;
        self
    }

    /// Adds the metrics of its controllers.
    #[must_use]
    pub fn with_metrics(mut self, metrics: LoopMetrics) -> Self {
        self.metrics = Some(metrics);
        self
    }

    /// Returns the metrics of its controllers, if any.
    pub fn metrics(&self) -> Option<&LoopMetrics> {
        self.metrics.as_ref()
    }

    /// Returns the store.
    pub fn store(&self) -> &DynStore {
        self.objects.store()
    }

    /// Returns the kinds of each logical cluster.
    pub fn kinds(&self) -> &dyn Kinds {
        &*self.kinds
    }

    /// Returns the kinds that all logical clusters have.
    pub fn table(&self) -> &'static KindTable {
        self.table
    }

    /// Returns time and randomness.
    pub fn seams(&self) -> &Seams {
        &self.seams
    }

    /// Returns the kind of a stored resource, if all logical clusters have it.
    pub fn stored_kind(&self, resource: &GroupResource) -> Option<&'static Kind> {
        self.table.stored(resource).map(|kind| &**kind)
    }

    /// Returns the kind of a stored resource in a logical cluster.
    ///
    /// # Errors
    /// Fails if the kinds of the logical cluster cannot be read.
    pub async fn kind_of(
        &self,
        cluster: LogicalClusterId,
        resource: &GroupResource,
    ) -> Result<Option<Arc<Kind>>, PlaneError> {
        if let Some(kind) = self.table.stored(resource) {
            return Ok(Some(kind.clone()));
        }
        Ok(self.kinds.of(cluster).await?.stored(resource).map(|served| served.kind))
    }

    /// Returns a guard to hold during a write that may define a kind.
    fn changing(&self, key: &ObjectKey) -> Option<Box<dyn Send>> {
        let is_definition = *key.resource.group == *custom::GROUP && *key.resource.resource == *custom::RESOURCE;
        let defines = is_definition || key.resource == apis::resource(apis::BINDINGS);
        defines.then(|| self.kinds.changing(key))
    }

    /// Returns the resources that objects of all logical clusters are stored as, without duplicates.
    pub fn stored_resources(&self) -> Vec<GroupResource> {
        let kinds = self.table.kinds().filter(|kind| kind.served && kind.has_verb("delete"));
        let all: BTreeSet<_> = kinds.map(|kind| kind.storage.group_resource()).collect();
        all.into_iter().collect()
    }

    fn context(&self) -> WriteContext<'_> {
        WriteContext::new(self.table, &self.seams)
    }

    /// Reads the latest state of an object.
    ///
    /// # Errors
    /// Fails if the store fails.
    pub async fn get(&self, key: &ObjectKey) -> Result<Option<PlaneObject>, PlaneError> {
        let found = self.objects.get_value(key).await?;
        Ok(found.map(|(object, revision)| PlaneObject { key: key.clone(), revision, object }))
    }

    /// Reads the object of the present reconcile, and records its revision in the span.
    pub(crate) async fn get_reconciled(&self, key: &ObjectKey) -> Result<Option<PlaneObject>, PlaneError> {
        let found = self.get(key).await?;
        if let Some(found) = &found {
            record_revision(found.revision);
        }
        Ok(found)
    }

    /// Lists all objects of a scope at the latest revision. All have to be readable, for controllers that conclude
    /// from absence.
    ///
    /// # Errors
    /// Fails if the store fails, or one is damaged.
    pub async fn list(&self, scope: RangeScope) -> Result<Vec<PlaneObject>, PlaneError> {
        self.list_skipping_damaged(scope, None).await?.whole()
    }

    /// Reads the objects of a scope, a slice of them in memory at a time, each slice at its own revision.
    pub fn slices(&self, scope: RangeScope) -> ObjectSlices<'_> {
        self.slices_behind(scope, None)
    }

    /// Reads slices as [`Plane::slices`] does, from behind an object.
    pub fn slices_behind(&self, scope: RangeScope, after: Option<ObjectKey>) -> ObjectSlices<'_> {
        let request = RangeRequest { after, limit: Some(SHARE), ..RangeRequest::slices(scope).skip_damaged() };
        ObjectSlices { plane: self, next: Some(request) }
    }

    /// Lists objects of a scope at the latest revision, up to a limit. Damaged objects are returned separately.
    ///
    /// # Errors
    /// Fails if the store fails.
    pub async fn list_skipping_damaged(
        &self,
        scope: RangeScope,
        limit: Option<usize>,
    ) -> Result<ObjectList, PlaneError> {
        let request = RangeRequest { limit, ..RangeRequest::all(scope).skip_damaged() };
        ObjectList::of(self.store().range(request).await?)
    }

    /// Creates an object as a request would; `None` if it exists.
    ///
    /// # Errors
    /// Fails if the rules refuse it or the store fails.
    pub async fn create(
        &self,
        kind: &Kind,
        cluster: LogicalClusterId,
        object: Value,
    ) -> Result<Option<PlaneObject>, PlaneError> {
        self.create_checked(kind, cluster, object, None).await
    }

    /// Creates a namespaced object as [`Plane::create`] does, but only in a namespace that exists and is not being
    /// deleted: nothing is created behind the back of the namespace controller. Returns `None` otherwise.
    ///
    /// # Errors
    /// The errors of [`Plane::create`].
    pub async fn create_within(
        &self,
        kind: &Kind,
        cluster: LogicalClusterId,
        object: &Value,
    ) -> Result<Option<PlaneObject>, PlaneError> {
        let namespace = portolan_types::object::namespace(object);
        let create = || async move {
            match self.staying(cluster, namespace).await? {
                Some(check) => self.create_checked(kind, cluster, object.clone(), Some(check)).await,
                None => Ok(None),
            }
        };
        store::retry_on_conflict(was_beaten, create).await
    }

    /// Returns the checks of a transaction that creates an object in a namespace, so that it fails if the namespace is
    /// being deleted; `None` if it already is, or does not exist.
    ///
    /// # Errors
    /// Fails if the store fails.
    pub async fn staying(
        &self,
        cluster: LogicalClusterId,
        namespace: &str,
    ) -> Result<Option<(ObjectKey, Expect)>, PlaneError> {
        let Ok(name) = namespace.parse() else { return Ok(None) };
        let key = ObjectKey::cluster_scoped(cluster, GroupResource::new("", "namespaces"), name);
        let stored = self.store().get(&key).await?;
        let stays = stored.filter(|stored| !stored.record.header.is_deleting);
        Ok(stays.map(|stored| (key, Expect::Lives { created: stored.created, written: stored.revision })))
    }

    async fn create_checked(
        &self,
        kind: &Kind,
        cluster: LogicalClusterId,
        object: Value,
        check: Option<(ObjectKey, Expect)>,
    ) -> Result<Option<PlaneObject>, PlaneError> {
        let status = object.get("status").cloned();
        let namespace = kind.namespaced.then(|| portolan_types::object::namespace(&object).to_owned());
        let mut object = lifecycle::prepare_create(&self.context(), kind, object, namespace.as_deref(), None)?;
        if let Some((status, top)) = status.zip(object.as_object_mut()) {
            top.insert("status".into(), status);
        }
        let key = self.key_of(kind, cluster, &object)?;
        let _changing = self.changing(&key);
        let mut txn = Transaction::one(key.clone(), Expect::Absent, Some(Record::of(&object)));
        txn.checks.extend(check);
        match self.store().commit(txn).await {
            Ok(committed) => Ok(Some(with_revision(key, committed.into_inner().first, object))),
            Err(StoreError::AlreadyExists { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads an object, calls `change`, and writes it as a request would; retries after conflicts. `None` if there is
    /// no such object.
    ///
    /// # Errors
    /// Fails if the rules refuse it or the store fails.
    pub async fn change(
        &self,
        kind: &Kind,
        key: &ObjectKey,
        mut change: impl FnMut(&mut Value) -> PlaneChange + Send,
    ) -> Result<Option<Value>, PlaneError> {
        let modify = |object: &mut Value| -> Result<_, PlaneError> {
            let mut new = object.clone();
            let PlaneChange::Write(subresource) = change(&mut new) else { return Ok(store::Step::Keep) };
            let (new, step) = match lifecycle::prepare_update(&self.context(), kind, subresource, object, new)? {
                Update::Unchanged => return Ok(store::Step::Keep),
                Update::Changed(new) => (new, store::Step::Write),
                Update::Removed(last) => (last, store::Step::Delete),
            };
            *object = new;
            Ok(step)
        };
        let _changing = self.changing(key);
        self.modify(key, modify).await
    }

    /// Reads and changes an object, and retries after a conflict. A removal also releases the object's reservations.
    /// `None` if there is no such object.
    async fn modify(
        &self,
        key: &ObjectKey,
        change: impl FnMut(&mut Value) -> Result<store::Step, PlaneError> + Send,
    ) -> Result<Option<Value>, PlaneError> {
        // Attempts run one after the other; the lock only shows that to the compiler.
        let change = Mutex::new(change);
        store::retry_on_conflict(was_beaten, || self.try_modify(key, &change)).await
    }

    async fn try_modify(
        &self,
        key: &ObjectKey,
        change: &Mutex<impl FnMut(&mut Value) -> Result<store::Step, PlaneError> + Send>,
    ) -> Result<Option<Value>, PlaneError> {
        let Some(PlaneObject { mut object, revision, .. }) = self.get(key).await? else { return Ok(None) };
        let step = (*change.lock().expect("no code panics under this lock"))(&mut object);
        let (record, released) = match step? {
            store::Step::Keep => return Ok(Some(object)),
            store::Step::Write => (Some(Record::of(&object)), Vec::new()),
            store::Step::Delete => (None, self.releases(key, &object).await?),
        };
        let mut txn = Transaction::one(key.clone(), Expect::At(revision), record);
        txn.writes.extend(released);
        let revision = self.store().commit(txn).await?.into_inner().first;
        Ok(Some(with_revision(key.clone(), revision, object).object))
    }

    /// Returns the writes that release the addresses and ports of a deleted Service. A record that is damaged, or of
    /// another object, stays.
    async fn releases(&self, key: &ObjectKey, object: &Value) -> Result<Vec<Write>, PlaneError> {
        let mut releases = Vec::new();
        if !key.resource.group.is_empty() || &*key.resource.resource != "services" {
            return Ok(releases);
        }
        for (reserved, name) in allocation::reserved(object) {
            let Ok(name) = name.parse() else { continue };
            let key_of_record = ObjectKey::cluster_scoped(key.cluster, reserved.stored_as(), name);
            let record = match self.get(&key_of_record).await {
                Err(PlaneError::Store(StoreError::Damaged { .. })) => continue,
                record => record?,
            };
            let is_own = |record: &PlaneObject| {
                allocation::holder(&record.object)
                    .is_some_and(|(namespace, name)| key.namespace() == Some(&namespace) && key.name == name)
            };
            releases.extend(record.filter(is_own).map(|record| Write {
                expect: Expect::At(record.revision),
                key: record.key,
                record: None,
            }));
        }
        Ok(releases)
    }

    /// Removes a finalizer of an object, which goes if it is deleted and nothing else holds it.
    ///
    /// # Errors
    /// The errors of [`Plane::change`].
    pub async fn drop_finalizer(&self, kind: &Kind, key: &ObjectKey, finalizer: &str) -> Result<(), PlaneError> {
        let drop_it = |current: &mut Value| {
            let finalizers = portolan_types::object::metadata_mut(current).get_mut("finalizers");
            let Some(finalizers) = finalizers.and_then(Value::as_array_mut) else { return PlaneChange::Keep };
            let before = finalizers.len();
            finalizers.retain(|own| own != finalizer);
            if finalizers.len() == before { PlaneChange::Keep } else { PlaneChange::Write(None) }
        };
        self.change(kind, key, drop_it).await.map(drop)
    }

    /// Deletes an object as a request would: marks it while finalizers, grace or downstream copies hold it.
    ///
    /// # Errors
    /// Fails if the rules refuse it, also by its preconditions, or the store fails.
    pub async fn delete(&self, kind: &Kind, key: &ObjectKey, options: &DeleteOptions) -> Result<(), PlaneError> {
        self.delete_if(kind, key, options, |_| true).await
    }

    /// Deletes an object as [`Plane::delete`] does, if `goes` still returns true for it.
    ///
    /// # Errors
    /// The errors of [`Plane::delete`].
    pub async fn delete_if(
        &self,
        kind: &Kind,
        key: &ObjectKey,
        options: &DeleteOptions,
        goes: impl Fn(&Value) -> bool + Send + Sync,
    ) -> Result<(), PlaneError> {
        let _changing = self.changing(key);
        if self.delete_once(kind, key, options, goes).await? {
            // It is marked for deletion, and others may have changed it since.
            let options = DeleteOptions { resource_version: None, ..options.clone() };
            self.delete_once(kind, key, &options, |_| true).await?;
        }
        Ok(())
    }

    /// Deletes an object once. Returns true if it has only been marked, and has to go now.
    async fn delete_once(
        &self,
        kind: &Kind,
        key: &ObjectKey,
        options: &DeleteOptions,
        goes: impl Fn(&Value) -> bool + Send + Sync,
    ) -> Result<bool, PlaneError> {
        let mut goes_now = false;
        let modify = |object: &mut Value| -> Result<_, PlaneError> {
            if !goes(object) {
                return Ok(store::Step::Keep);
            }
            let deletion = lifecycle::prepare_delete(&self.context(), kind, object, options)?;
            goes_now = matches!(deletion, Deletion::MarkAndRemove(_));
            Ok(match deletion {
                Deletion::Already(_) | Deletion::Pending(_) => store::Step::Keep,
                Deletion::Remove(_) => store::Step::Delete,
                Deletion::Mark(marked) | Deletion::MarkAndRemove(marked) => {
                    *object = marked;
                    store::Step::Write
                }
            })
        };
        self.modify(key, modify).await?;
        Ok(goes_now)
    }

    /// Changes an object as [`Plane::change`] does, without validation, generation or removal. For fields that no
    /// request may write, such as the node of a Pod.
    ///
    /// # Errors
    /// Fails if the store fails.
    pub async fn force(
        &self,
        key: &ObjectKey,
        mut change: impl FnMut(&mut Value) -> bool + Send,
    ) -> Result<Option<Value>, PlaneError> {
        let modify = |object: &mut Value| -> Result<_, PlaneError> {
            Ok(if change(object) { store::Step::Write } else { store::Step::Keep })
        };
        Ok(self.objects.modify(key, modify).await?.map(ModifyOutcome::into_object))
    }

    /// Returns the key of an object of a kind.
    ///
    /// # Errors
    /// 422 if its name or namespace is invalid.
    pub fn key_of(&self, kind: &Kind, cluster: LogicalClusterId, object: &Value) -> Result<ObjectKey, Status> {
        let bad = |error: portolan_types::InvalidName| Status::bad_request(error.to_string());
        let name: ObjectName = portolan_types::object::name(object).parse().map_err(bad)?;
        let scope = if kind.namespaced {
            Scope::Namespace(portolan_types::object::namespace(object).parse::<NamespaceName>().map_err(bad)?)
        } else {
            Scope::Cluster
        };
        Ok(ObjectKey { cluster, resource: kind.storage.group_resource(), scope, name })
    }
}

/// An object that is gone between read and write counts as a conflict: the next attempt sees it.
fn was_beaten(error: &PlaneError) -> bool {
    matches!(error, PlaneError::Store(StoreError::Conflict { .. } | StoreError::NotFound { .. }))
}

fn with_revision(key: ObjectKey, revision: ResourceVersion, mut object: Value) -> PlaneObject {
    portolan_types::object::metadata_mut(&mut object).insert("resourceVersion".into(), revision.to_string().into());
    PlaneObject { key, revision, object }
}
