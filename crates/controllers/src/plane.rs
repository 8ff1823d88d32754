//! Objects, as loops read and write them: through the same life cycle rules as requests, without HTTP.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use portolan_machinery::{
    custom,
    kinds::{BuiltinKinds, Kind, KindTable, Kinds},
    lifecycle::{self, DeleteOptions, Deletion, Update, WriteContext, allocation},
};
use portolan_store::{
    self as store, Damaged, DynStore, Expect, Modified, Objects, RangePage, RangeRequest, RangeScope, StoreError,
    Transaction, Write,
};
use portolan_types::{
    GroupResource, LogicalClusterId, NamespaceName, ObjectKey, ObjectName, Record, ResourceVersion, Scope, Seams,
    Status,
};
use serde_json::Value;

use crate::{emptying::SHARE, runtime::LoopMetrics};

/// Why a loop's step failed.
#[derive(Debug, thiserror::Error)]
pub enum PlaneError {
    /// The store did not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The life cycle rules refuse it.
    #[error(transparent)]
    Refused(#[from] Status),
}

/// An object with its place.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its address.
    pub key: ObjectKey,
    /// Its last write.
    pub revision: ResourceVersion,
    /// The object, resourceVersion included.
    pub object: Value,
}

impl Found {
    /// A deletion of this object in this state.
    pub fn as_it_is(&self) -> DeleteOptions {
        DeleteOptions {
            uid: Some(portolan_types::object::meta_text(&self.object, "uid").to_owned()),
            resource_version: Some(self.revision.to_string()),
            ..DeleteOptions::default()
        }
    }
}

/// Objects of a scope, as far as they can be read.
#[derive(Debug, Default)]
pub struct Listed {
    /// Those that can.
    pub found: Vec<Found>,
    /// Those that cannot. They are there: whoever asks what is left, or who is in use, must count them.
    pub damaged: Vec<Damaged>,
}

impl Listed {
    /// Whether there is nothing at all.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty() && self.damaged.is_empty()
    }

    /// Whether all can be read.
    ///
    /// # Errors
    /// `Damaged` otherwise.
    pub fn check(&self) -> Result<(), PlaneError> {
        self.damaged.first().map_or(Ok(()), |damaged| Err(StoreError::from(damaged.clone()).into()))
    }

    /// What can be read, if that is all.
    ///
    /// # Errors
    /// `Damaged` otherwise.
    pub fn whole(self) -> Result<Vec<Found>, PlaneError> {
        self.check().map(|()| self.found)
    }

    /// What a page has.
    ///
    /// # Errors
    /// When something else is wrong with an object than damage.
    pub fn of(page: RangePage) -> Result<Self, PlaneError> {
        let mut listed = Self { found: Vec::with_capacity(page.objects.len()), damaged: page.damaged };
        for stored in page.objects {
            match stored.to_value() {
                Ok(object) => listed.found.push(Found { object, key: stored.key, revision: stored.revision }),
                Err(StoreError::Damaged { key, why }) => listed.damaged.push(Damaged { key, why }),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(listed)
    }
}

/// Objects of a scope, slice by slice, damaged ones apart.
pub struct Slices<'a> {
    plane: &'a Plane,
    next: Option<RangeRequest>,
}

impl Slices<'_> {
    /// The next slice; `None` behind the last.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn next(&mut self) -> Result<Option<Listed>, PlaneError> {
        let Some(mut request) = self.next.take() else { return Ok(None) };
        let page = self.plane.store().range(request.clone()).await?;
        request.after = page.last.clone();
        self.next = (page.more && request.after.is_some()).then_some(request);
        Listed::of(page).map(Some)
    }

    /// The object behind which the next slice begins; `None` behind the last.
    pub fn rest(&self) -> Option<ObjectKey> {
        self.next.as_ref()?.after.clone()
    }
}

/// What [`Plane::change`] should do with what it read.
pub enum Step {
    /// Leave it.
    Keep,
    /// Write it as an update of the object or one of its subresources.
    Write(Option<&'static str>),
}

/// The objects of all logical clusters.
pub struct Plane {
    objects: Objects,
    table: &'static KindTable,
    kinds: Arc<dyn Kinds>,
    seams: Seams,
    metrics: Option<LoopMetrics>,
}

impl Plane {
    /// On a store and a kind table, without kinds of the logical clusters' own.
    pub fn new(store: DynStore, table: &'static KindTable, seams: Seams) -> Self {
        Self { objects: Objects::new(store), table, kinds: Arc::new(BuiltinKinds), seams, metrics: None }
    }

    /// With the kinds of each logical cluster.
    #[must_use]
    pub fn with_kinds(mut self, kinds: Arc<dyn Kinds>) -> Self {
        self.kinds = kinds;
        self
    }

    /// With numbers of its loops.
    #[must_use]
    pub fn with_metrics(mut self, metrics: LoopMetrics) -> Self {
        self.metrics = Some(metrics);
        self
    }

    /// The numbers of its loops, where there are any.
    pub fn metrics(&self) -> Option<&LoopMetrics> {
        self.metrics.as_ref()
    }

    /// The store below.
    pub fn store(&self) -> &DynStore {
        self.objects.store()
    }

    /// The kinds of each logical cluster.
    pub fn kinds(&self) -> &dyn Kinds {
        &*self.kinds
    }

    /// The kinds that all logical clusters have.
    pub fn table(&self) -> &'static KindTable {
        self.table
    }

    /// Time and randomness.
    pub fn seams(&self) -> &Seams {
        &self.seams
    }

    /// The kind that a stored resource is written as, if all logical clusters have it.
    pub fn stored_kind(&self, resource: &GroupResource) -> Option<&'static Kind> {
        self.table.stored(resource).map(|kind| &**kind)
    }

    /// The kind that a stored resource is written as in a logical cluster.
    ///
    /// # Errors
    /// When the kinds of the logical cluster cannot be read.
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

    /// To be held over a write that may define a kind.
    fn changing(&self, key: &ObjectKey) -> Option<Box<dyn Send>> {
        let defines = *key.resource.group == *custom::GROUP && *key.resource.resource == *custom::RESOURCE;
        defines.then(|| self.kinds.changing(key))
    }

    /// The resources that objects of all logical clusters are stored as, each once.
    pub fn stored_resources(&self) -> Vec<GroupResource> {
        let kinds = self.table.kinds().filter(|kind| kind.served && kind.has_verb("delete"));
        let all: BTreeSet<_> = kinds.map(|kind| kind.storage.group_resource()).collect();
        all.into_iter().collect()
    }

    fn context(&self) -> WriteContext<'_> {
        WriteContext::new(self.table, &self.seams)
    }

    /// The latest state of an object.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn get(&self, key: &ObjectKey) -> Result<Option<Found>, PlaneError> {
        let found = self.objects.get_value(key).await?;
        Ok(found.map(|(object, revision)| Found { key: key.clone(), revision, object }))
    }

    /// All objects of a scope at the latest state, each of which must be readable: for loops that conclude from what is not
    /// among them.
    ///
    /// # Errors
    /// When the store fails, or one is damaged.
    pub async fn list(&self, scope: RangeScope) -> Result<Vec<Found>, PlaneError> {
        self.list_past_damage(scope, None).await?.whole()
    }

    /// The objects of a scope, a slice of them in memory at a time, each as it is when its slice is read.
    pub fn slices(&self, scope: RangeScope) -> Slices<'_> {
        self.slices_behind(scope, None)
    }

    /// As [`Plane::slices`], of what comes behind an object.
    pub fn slices_behind(&self, scope: RangeScope, after: Option<ObjectKey>) -> Slices<'_> {
        let request = RangeRequest { after, limit: Some(SHARE), ..RangeRequest::slices(scope).past_damage() };
        Slices { plane: self, next: Some(request) }
    }

    /// Objects of a scope at the latest state, damaged ones apart: so many, or all.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn list_past_damage(&self, scope: RangeScope, limit: Option<usize>) -> Result<Listed, PlaneError> {
        let request = RangeRequest { limit, ..RangeRequest::all(scope).past_damage() };
        Listed::of(self.store().range(request).await?)
    }

    /// Creates an object as a request would; `None` when there is one already.
    ///
    /// # Errors
    /// When the rules refuse it or the store fails.
    pub async fn create(
        &self,
        kind: &Kind,
        cluster: LogicalClusterId,
        object: Value,
    ) -> Result<Option<Found>, PlaneError> {
        self.create_checked(kind, cluster, object, None).await
    }

    /// As [`Plane::create`], but of a kind that lives in namespaces, and only in one that is there and stays: nothing comes into a
    /// namespace behind the back of who empties it. `None` also where it does not.
    ///
    /// # Errors
    /// Those of [`Plane::create`].
    pub async fn create_within(
        &self,
        kind: &Kind,
        cluster: LogicalClusterId,
        object: &Value,
    ) -> Result<Option<Found>, PlaneError> {
        let namespace = portolan_types::object::namespace(object);
        let create = || async move {
            match self.staying(cluster, namespace).await? {
                Some(check) => self.create_checked(kind, cluster, object.clone(), Some(check)).await,
                None => Ok(None),
            }
        };
        store::retried(was_beaten, create).await
    }

    /// What a transaction that makes something in a namespace has to check, so that it is not made when the namespace is to end;
    /// `None` where it is to end already, or is not there.
    ///
    /// # Errors
    /// When the store fails.
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
    ) -> Result<Option<Found>, PlaneError> {
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

    /// Reads an object, lets `change` change it, and writes it as a request would; tries again when others wrote it meanwhile.
    /// `None` when there is no such object.
    ///
    /// # Errors
    /// When the rules refuse it or the store fails.
    pub async fn change(
        &self,
        kind: &Kind,
        key: &ObjectKey,
        mut change: impl FnMut(&mut Value) -> Step + Send,
    ) -> Result<Option<Value>, PlaneError> {
        let modify = |object: &mut Value| -> Result<_, PlaneError> {
            let mut new = object.clone();
            let Step::Write(subresource) = change(&mut new) else { return Ok(store::Step::Keep) };
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

    /// Looks at an object and changes it, again when somebody was faster; with one that is removed goes what it has reserved.
    /// `None` when there is no such object.
    async fn modify(
        &self,
        key: &ObjectKey,
        change: impl FnMut(&mut Value) -> Result<store::Step, PlaneError> + Send,
    ) -> Result<Option<Value>, PlaneError> {
        // Tries come one after the other; the lock only shows that to the compiler.
        let change = Mutex::new(change);
        store::retried(was_beaten, || self.try_modify(key, &change)).await
    }

    async fn try_modify(
        &self,
        key: &ObjectKey,
        change: &Mutex<impl FnMut(&mut Value) -> Result<store::Step, PlaneError> + Send>,
    ) -> Result<Option<Value>, PlaneError> {
        let Some(Found { mut object, revision, .. }) = self.get(key).await? else { return Ok(None) };
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

    /// What gives back the addresses and ports of a Service that goes. A record that is damaged, or somebody else's, stays.
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
            let is_own = |record: &Found| {
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

    /// Takes a finalizer off an object, which goes when it is deleted and nothing else holds it.
    ///
    /// # Errors
    /// Those of [`Plane::change`].
    pub async fn drop_finalizer(&self, kind: &Kind, key: &ObjectKey, finalizer: &str) -> Result<(), PlaneError> {
        let drop_it = |current: &mut Value| {
            let finalizers = portolan_types::object::metadata_mut(current).get_mut("finalizers");
            let Some(finalizers) = finalizers.and_then(Value::as_array_mut) else { return Step::Keep };
            let before = finalizers.len();
            finalizers.retain(|own| own != finalizer);
            if finalizers.len() == before { Step::Keep } else { Step::Write(None) }
        };
        self.change(kind, key, drop_it).await.map(drop)
    }

    /// Deletes an object as a request would: marks it while finalizers, grace or copies downstream hold it.
    ///
    /// # Errors
    /// When the rules refuse it, also by its preconditions, or the store fails.
    pub async fn delete(&self, kind: &Kind, key: &ObjectKey, options: &DeleteOptions) -> Result<(), PlaneError> {
        self.delete_if(kind, key, options, |_| true).await
    }

    /// As [`Plane::delete`], but an object that is not, or not any more, one that `goes` stays as it is.
    ///
    /// # Errors
    /// Those of [`Plane::delete`].
    pub async fn delete_if(
        &self,
        kind: &Kind,
        key: &ObjectKey,
        options: &DeleteOptions,
        goes: impl Fn(&Value) -> bool + Send + Sync,
    ) -> Result<(), PlaneError> {
        let _changing = self.changing(key);
        if self.delete_once(kind, key, options, goes).await? {
            // It is marked, and may have been changed by others since.
            let options = DeleteOptions { resource_version: None, ..options.clone() };
            self.delete_once(kind, key, &options, |_| true).await?;
        }
        Ok(())
    }

    /// Whether the object has been marked only, and has to go now.
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

    /// As [`Plane::change`], but as the cluster's own machinery does it: no validation, no generation, no removal. For what no
    /// request may write, such as the node of a Pod.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn force(
        &self,
        key: &ObjectKey,
        mut change: impl FnMut(&mut Value) -> bool + Send,
    ) -> Result<Option<Value>, PlaneError> {
        let modify = |object: &mut Value| -> Result<_, PlaneError> {
            Ok(if change(object) { store::Step::Write } else { store::Step::Keep })
        };
        Ok(self.objects.modify(key, modify).await?.map(Modified::into_object))
    }

    /// The address of an object of a kind.
    ///
    /// # Errors
    /// 422 when its name or namespace is none.
    pub fn key_of(&self, kind: &Kind, cluster: LogicalClusterId, object: &Value) -> Result<ObjectKey, Status> {
        let bad = |error: portolan_types::InvalidName| Status::bad_request(error.to_string());
        let name: ObjectName = portolan_types::object::name(object).parse().map_err(bad)?;
        let scope = match kind.namespaced {
            false => Scope::Cluster,
            true => Scope::Namespace(portolan_types::object::namespace(object).parse::<NamespaceName>().map_err(bad)?),
        };
        Ok(ObjectKey { cluster, resource: kind.storage.group_resource(), scope, name })
    }
}

/// Gone between reading and writing is as good as changed: the next look tells.
fn was_beaten(error: &PlaneError) -> bool {
    matches!(error, PlaneError::Store(StoreError::Conflict { .. } | StoreError::NotFound { .. }))
}

fn with_revision(key: ObjectKey, revision: ResourceVersion, mut object: Value) -> Found {
    portolan_types::object::metadata_mut(&mut object).insert("resourceVersion".into(), revision.to_string().into());
    Found { key, revision, object }
}
