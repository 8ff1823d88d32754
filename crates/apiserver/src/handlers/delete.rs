//! DELETE of an object and of a selection.

use std::sync::Arc;

use futures::{StreamExt as _, TryStreamExt as _};
use http::Response;
use portolan_machinery::{
    decode,
    lifecycle::{self, DeleteOptions, Deletion, WriteContext},
};
use portolan_store::{Expect, StoreError, StoredObject};
use portolan_types::{GroupKind, NamespaceName, ObjectKey, ReadAt, ResourceVersion, Status, object};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    ApiServer, Body,
    admission::{Operation, Request, Sent},
    attributes::Attributes,
    authz::{Authorizer as _, Verdict},
    bootstrap,
    call::{Call, Target, method_not_allowed},
    encode,
    encode::{Deletions, Shape, media_of, tree},
    errors::status_for,
    limits::in_own_slices,
    objects::{Commit, CommitError, Found, Races, read_list},
    options::ListOptions,
    reach::read_only,
};

/// What clients are told that leave open what becomes of a job's pods.
const PODS_STAY: &str = "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning";
/// The right to delete objects that cannot be read.
const UNSAFE_VERB: &str = "unsafe-delete-ignore-read-errors";
/// Objects of a collection that are deleted at once, so that their writes share a sync to disk.
const AT_ONCE: usize = 16;

/// What a deletion came to.
pub(super) enum Deleted {
    /// The object is gone; this was its last state, and when it went, if it was not a dry run.
    Gone(Value, Option<ResourceVersion>),
    /// The object stays for now.
    Marked(Value),
}

/// Options from the body, else from the query: with a body upstream does not look at it.
pub(super) fn options(call: &Call, target: &Target) -> Result<DeleteOptions, Status> {
    if !call.body.is_empty() {
        return from_body(call, target);
    }
    let names = [
        "gracePeriodSeconds",
        "orphanDependents",
        "propagationPolicy",
        "uid",
        "resourceVersion",
        lifecycle::UNSAFE_DELETE,
    ];
    let single = names.iter().filter_map(|name| call.query.get(name).map(|value| (*name, value)));
    DeleteOptions::from_query(single.chain(call.query.all("dryRun").map(|value| ("dryRun", value))))
}

/// Jobs leave their pods behind unless told otherwise, for which clients of old would not look.
fn warn_of_pods(call: &Call, target: &Target, options: &DeleteOptions) {
    let is_job = (&*target.kind.gvk.group, &*target.kind.resource) == ("batch", "jobs");
    if is_job && options.propagation.is_none() && options.orphan_dependents.is_none() {
        call.warn([PODS_STAY.to_owned()]);
    }
}

fn from_body(call: &Call, target: &Target) -> Result<DeleteOptions, Status> {
    let options = decode::delete_options(&target.table, media_of(call)?, &call.body).map_err(Status::bad_request)?;
    DeleteOptions::from_value(&options)
}

pub(super) async fn one(api: &Arc<ApiServer>, call: &Arc<Call>, target: &Target) -> Result<Response<Body>, Status> {
    let shape = Shape::of(call, target, api.seams.clock.now())?;
    let options = options(call, target)?;
    if options.ignores_read_errors {
        return unread(api, call, target).await;
    }
    warn_of_pods(call, target, &options);
    let (key, found) = api.found(call, target).await?;
    match delete(api, call, target, (&key, found), (&options, Admission::Asked)).await? {
        Deleted::Gone(last, Some(at)) if target.kind.returns_deleted() => {
            encode::value(&shape, 200, encode::with_revision(last, at))
        }
        Deleted::Gone(last, None) if target.kind.returns_deleted() => encode::value(&shape, 200, last),
        Deleted::Gone(last, _) => Ok(encode::status_object(shape.written(), 200, &success(target, &last))),
        // Only those hear that it stays who said in the older word that nothing else should.
        Deleted::Marked(object) if options.orphan_dependents == Some(false) => encode::value(&shape, 202, object),
        Deleted::Marked(object) => encode::value(&shape, 200, object),
    }
}

/// Deletes an object that cannot be read: without preconditions, admission or finalizers, of which nothing is known (KEP-3926).
async fn unread(api: &Arc<ApiServer>, call: &Arc<Call>, target: &Target) -> Result<Response<Body>, Status> {
    let key = target.key(call, &call.captures.name)?;
    let asked = Attributes { verb: UNSAFE_VERB.into(), ..(*call.attributes).clone() };
    if let Verdict::Denied(why) = api.rbac.authorize(call.cluster.id, &call.identity.user, &asked).await? {
        let why = format!("not permitted to do {UNSAFE_VERB:?}, reason: {why}");
        return Err(Status::forbidden(&target.resource(), &key.name, why));
    }
    match api.store.get(&key).await {
        Err(StoreError::Damaged { why, .. }) => tracing::warn!(
            cluster = %key.cluster,
            resource = %key.resource,
            namespace = key.namespace().map_or("", NamespaceName::as_str),
            name = %key.name,
            user = %call.identity.user.name,
            error = %why,
            "a damaged object is deleted unread",
        ),
        Ok(_) => return Err(readable(target, &key)),
        Err(error) => return Err(status_for(&error)),
    }
    match Commit::new(key.clone(), Expect::Damaged, None).run(api, None).await {
        Ok(_) => {}
        // Somebody was faster.
        Err(CommitError::Raced(failure)) if failure.code() == 404 => {}
        Err(failure) => return Err(failure.into_status()),
    }
    let details = json!({"name": &*key.name, "kind": &*target.kind.gvk.kind});
    let mut status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 200});
    status["details"] = details;
    let shape = Shape::of(call, target, api.seams.clock.now())?;
    Ok(encode::status_object(shape.written(), 200, &status))
}

/// 422 for what can be deleted as anything else.
fn readable(target: &Target, key: &ObjectKey) -> Status {
    let resource = target.resource();
    let kind = GroupKind { group: resource.group, kind: resource.resource };
    let message = "is exclusively used to delete corrupt object(s), try again by removing this option";
    Status::invalid(&kind, &key.name, vec![lifecycle::unsafe_delete_refused(message)])
}

/// `Status` of a deletion that is done.
pub(super) fn success(target: &Target, last: &Value) -> Value {
    let mut details = json!({
        "name": object::name(last),
        "kind": target.kind.resource,
        "uid": object::meta_text(last, "uid"),
    });
    if !target.kind.gvk.group.is_empty() {
        details["group"] = (*target.kind.gvk.group).into();
    }
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}

/// Who has a say in a deletion.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// Webhooks and policies for deletions.
    Asked,
    /// Nobody more: upstream deletes what is evicted without them (`registry/core/pod/storage/eviction.go`).
    Passed,
}

/// Deletes one object. What takes more than one write is done whoever waits for it: a pod that has been marked to go at once has
/// nobody else who removes it.
pub(super) async fn delete(
    api: &Arc<ApiServer>,
    call: &Arc<Call>,
    target: &Target,
    (key, found): (&ObjectKey, Found),
    (options, admission): (&DeleteOptions, Admission),
) -> Result<Deleted, Status> {
    if options.dry_run || !takes_two_writes(target) {
        return remove(api, call, target, (key, found), (options, admission)).await;
    }
    let (api, call, target, key, options) = (api.clone(), call.clone(), target.clone(), key.clone(), options.clone());
    let streams = api.streams.clone();
    let removing =
        in_own_slices(async move { remove(&api, &call, &target, (&key, found), (&options, admission)).await });
    streams.spawn(removing).await.unwrap_or_else(|error| Err(Status::internal(error)))
}

/// As upstream, who watches sees pods marked before they go, also where they go at once.
fn takes_two_writes(target: &Target) -> bool {
    (&*target.kind.gvk.group, &*target.kind.gvk.kind) == ("", "Pod")
}

async fn remove(
    api: &ApiServer,
    call: &Call,
    target: &Target,
    (key, found): (&ObjectKey, Found),
    (options, admission): (&DeleteOptions, Admission),
) -> Result<Deleted, Status> {
    if found.stored.key.cluster != call.cluster.id {
        return Err(read_only(api, &found.stored.key));
    }
    let races = Races::new(api, key, call.deadline);
    let mut removal = Removal { api, call, target, key, options, admission, races };
    removal.run(found).await
}

/// The deletion of one object, while it is tried.
struct Removal<'a> {
    api: &'a ApiServer,
    call: &'a Call,
    target: &'a Target,
    key: &'a ObjectKey,
    options: &'a DeleteOptions,
    admission: Admission,
    /// Of all its writes: whoever has the turn must not wait for it again.
    races: Races<'a>,
}

impl Removal<'_> {
    async fn run(&mut self, mut found: Found) -> Result<Deleted, Status> {
        loop {
            match self.once(&found).await {
                // Nobody waits for it any more.
                Err(CommitError::Raced(status)) if self.call.deadline <= Instant::now() => return Err(status),
                Err(CommitError::Raced(_)) => {
                    self.races.lose().await;
                    let again = self.api.find(self.call, self.target, self.key).await?;
                    found = again.ok_or_else(|| Status::not_found(&self.target.resource(), &self.key.name))?;
                }
                other => {
                    self.races.end();
                    return other.map_err(CommitError::into_status);
                }
            }
        }
    }

    async fn once(&mut self, found: &Found) -> Result<Deleted, CommitError> {
        let (api, call, target, options) = (self.api, self.call, self.target, self.options);
        if bootstrap::is_undeletable(self.key, found.expect != Expect::Absent) {
            let why = "it belongs to every logical cluster; change it instead of deleting it";
            return Err(Status::forbidden(&target.resource(), &self.key.name, why).into());
        }
        let old = tree(target, &found.stored)?;
        let context = WriteContext::new(&target.table, &api.seams);
        // As upstream, admission is told what the URL names: nothing, where one of many is deleted.
        let request = call.asks(target, Operation::Delete, (&call.captures.name, ""), options.dry_run);
        let request = Request { sent: Sent::Delete(options), ..request };
        let deletion = lifecycle::prepare_delete(&context, &target.kind, &old, options)?;
        if self.admission == Admission::Asked && !matches!(deletion, Deletion::Pending(_)) {
            api.admission.admit_removal(api, &request, &old).await?;
        }
        let mut commit = Commit::new(self.key.clone(), found.expect, None);
        match deletion {
            Deletion::Already(object) | Deletion::Pending(object) => Ok(Deleted::Marked(object)),
            Deletion::Mark(object) if options.dry_run => Ok(Deleted::Marked(object)),
            Deletion::Remove(last) | Deletion::MarkAndRemove(last) if options.dry_run => Ok(Deleted::Gone(last, None)),
            Deletion::Mark(object) => {
                commit.record = Some(api.stored_form(call.cluster.id, target, &object).await?);
                api.admission.doom(api, &request, &object, &mut commit);
                let stored = commit.run(api, Some(&found.stored)).await?;
                Ok(Deleted::Marked(encode::with_revision(object, stored.revision)))
            }
            Deletion::MarkAndRemove(last) => {
                commit.record = Some(api.stored_form(call.cluster.id, target, &last).await?);
                let marked = commit.run(api, Some(&found.stored)).await?;
                let went = self.remove_marked(&request, &last, marked).await?;
                Ok(Deleted::Gone(last, Some(went)))
            }
            Deletion::Remove(last) => {
                api.admission.clear(api, &request, &old, &mut commit).await?;
                let gone = commit.run(api, Some(&found.stored)).await?;
                Ok(Deleted::Gone(last, Some(gone.revision)))
            }
        }
    }

    /// Removes what this very deletion has marked; when it went. That is decided: neither who writes it in between changes that,
    /// nor who removes it first (upstream's `ignoreNotFound`).
    async fn remove_marked(
        &mut self,
        request: &Request<'_>,
        last: &Value,
        marked: StoredObject,
    ) -> Result<ResourceVersion, Status> {
        let (api, uid, mut stored) = (self.api, marked.record.header.uid.clone(), marked);
        loop {
            let mut commit = Commit::new(self.key.clone(), Expect::At(stored.revision), None);
            api.admission.clear(api, request, last, &mut commit).await?;
            match commit.run(api, Some(&stored)).await {
                Err(CommitError::Raced(_)) => self.races.lose().await,
                done => return done.map(|gone| gone.revision).map_err(CommitError::into_status),
            }
            let again = api.store.get(self.key).await.map_err(|e| status_for(&e))?;
            match again.filter(|again| again.record.header.uid == uid) {
                Some(again) => stored = again,
                None => return Ok(stored.revision),
            }
        }
    }
}

pub(super) async fn collection(
    api: &Arc<ApiServer>,
    call: &Arc<Call>,
    target: &Target,
) -> Result<Response<Body>, Status> {
    if target.kind.namespaced && target.namespace.is_none() {
        return Err(method_not_allowed());
    }
    let shape = Shape::of(call, target, api.seams.clock.now())?;
    let mut list = ListOptions::of(target, &call.query)?;
    let options = options(call, target)?;
    if options.ignores_read_errors {
        let message = "is not allowed with DELETECOLLECTION, try again after removing the option";
        return Err(Status::invalid(&lifecycle::delete_options(), "", vec![lifecycle::unsafe_delete_refused(message)]));
    }
    warn_of_pods(call, target, &options);
    // As upstream lists what it deletes.
    list.in_pages = true;
    let is_past = matches!(list.state()?, ReadAt::Exactly(_));
    let mut listing = read_list(api, call, target, &list).await?;
    // Of what is gone only the bytes of the answer are kept.
    let mut writer = Deletions::new(shape, &listing, call.charge.clone())?;
    let mut next = Some(std::mem::take(&mut listing.objects));
    while let Some(objects) = next {
        let deleting = objects.into_iter().map(|stored| delete_listed(api, call, target, (stored, is_past), &options));
        let mut deleting = futures::stream::iter(deleting).buffered(AT_ONCE);
        while let Some(last) = deleting.try_next().await? {
            last.map(|last| writer.add(last)).transpose()?;
        }
        next = match &mut listing.rest {
            Some(rest) => rest.next().await?,
            None => None,
        };
    }
    writer.answer()
}

/// What others have deleted meanwhile is as good as deleted, and told; shared objects stay. What is listed as it was in the past is
/// deleted as it is now.
async fn delete_listed(
    api: &Arc<ApiServer>,
    call: &Arc<Call>,
    target: &Target,
    (stored, is_past): (StoredObject, bool),
    options: &DeleteOptions,
) -> Result<Option<Value>, Status> {
    // A shared object that is not stored is at the first revision of all.
    let is_stored = stored.revision != ResourceVersion::FIRST;
    if bootstrap::is_undeletable(&stored.key, is_stored) || stored.key.cluster != call.cluster.id {
        return Ok(None);
    }
    let key = stored.key.clone();
    let own = Target { namespace: key.namespace().cloned(), ..target.clone() };
    // Upstream answers with the objects as it listed them.
    let listed = tree(&own, &stored)?;
    let found = match is_past {
        true => api.find(call, &own, &key).await?,
        false => {
            let expect = Expect::At(stored.revision);
            Some(Found::current(stored, expect))
        }
    };
    let Some(found) = found else { return Ok(Some(listed)) };
    match delete(api, call, &own, (&key, found), (options, Admission::Asked)).await {
        Ok(Deleted::Gone(..) | Deleted::Marked(_)) => Ok(Some(listed)),
        Err(failure) if failure.code() == 404 => Ok(Some(listed)),
        Err(failure) => Err(failure),
    }
}
