//! Creating and changing one object: admission, life cycle, field ownership, commit.

use std::sync::Arc;

use portolan_machinery::{
    apply::{self, Conversions, UpdateRequest},
    conversion, decode, defaults,
    lifecycle::{self, Allocates, Update, WriteContext},
    warnings,
};
use portolan_store::StoredObject;
use portolan_types::{ObjectKey, Reason, Record, ResourceVersion, Status, number, object};
use serde_json::Value;

use crate::{
    ApiServer,
    admission::{Operation, Request, quota},
    call::{Call, Target},
    encode::tree,
    errors::status_for,
    handlers::{sent_again, sent_names, user_info},
    options::{WriteOptions, no_number},
    reach::read_only,
};

use super::{Commit, CommitError, Found, Races};

/// How often a generated name is tried.
const NAME_ATTEMPTS: usize = 8;
/// How often a write is tried that depends on more than the object itself.
pub(crate) const WRITE_ATTEMPTS: usize = 5;

/// What a write came to.
pub(crate) enum Changed {
    /// It is stored like this: as bytes, and as the tree they were made of, which lacks the new resourceVersion.
    Stored(StoredObject, Value),
    /// It would be stored like this.
    Dry(Value),
    /// It is gone; this was its last state.
    Removed(Value),
}

/// What is stored of who owns the fields of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owners {
    Kept,
    /// Nothing, as upstream when the object would be too large otherwise.
    LeftOut,
}

/// When an object is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// As the client sent it.
    Sent,
    /// As admission has left it.
    Admitted,
}

/// Writes objects of one kind for one call.
pub(crate) struct Writer<'a> {
    pub(crate) api: &'a ApiServer,
    pub(crate) call: &'a Call,
    pub(crate) target: &'a Target,
    pub(crate) options: &'a WriteOptions,
    /// The objects come out of server-side apply, which has recorded their owners.
    pub(crate) applied: bool,
    /// What is known of the objects in the versions of their owners.
    pub(crate) conversions: Conversions,
}

impl<'a> Writer<'a> {
    /// `sent` reads again what the client sent, `names` looks for a word in it.
    fn context<'s>(
        &self,
        sent: &'s (dyn Fn() -> Option<Value> + Sync),
        names: &'s (dyn Fn(&str) -> bool + Sync),
    ) -> WriteContext<'s>
    where
        'a: 's,
    {
        WriteContext { sent: Some(sent), names: Some(names), ..WriteContext::new(&self.target.table, &self.api.seams) }
    }

    fn allocates(&self) -> Allocates {
        if self.options.dry_run { Allocates::Tried } else { Allocates::Given }
    }

    fn request<'b>(&self, operation: Operation, name: &'b str, subresource: Option<&'b str>) -> Request<'b>
    where
        'a: 'b,
    {
        let subresource = subresource.unwrap_or_default();
        self.call.asks(self.target, operation, (name, subresource), self.options.dry_run)
    }

    /// Creates the object that `make` gives; it may be asked again when others were faster. `name` is that of the URL, if it
    /// has one.
    ///
    /// # Errors
    /// Whatever `make`, admission, the life cycle or the store has against it.
    pub(crate) async fn create(
        &self,
        make: &(dyn Fn() -> Result<Value, Status> + Sync),
        name: Option<&str>,
    ) -> Result<Changed, Status> {
        self.create_at_last(make, (name, None)).await.map_err(CommitError::into_status)
    }

    /// As [`Writer::create`], with the subresource by which it comes to be; an error that says whether the name is taken.
    pub(super) async fn create_at_last(
        &self,
        make: &(dyn Fn() -> Result<Value, Status> + Sync),
        (name, subresource): (Option<&str>, Option<&str>),
    ) -> Result<Changed, CommitError> {
        let mut owners = Owners::Kept;
        for attempt in 1.. {
            self.conversions.clear();
            let object = self.with_conversions(make).await?;
            // Upstream says so also where the name was given beside.
            let has_prefix = !object::meta_text(&object, "generateName").is_empty();
            let generated = has_prefix && object::name(&object).is_empty();
            let more = if generated { NAME_ATTEMPTS } else { WRITE_ATTEMPTS };
            match self.create_once(object, (name, subresource), owners).await {
                Err(CommitError::TooLarge(_)) if self.may_leave_out(owners) => owners = Owners::LeftOut,
                Err(CommitError::Exists(_)) if generated && attempt < NAME_ATTEMPTS => {}
                Err(CommitError::Exists(status)) if has_prefix && name.is_none() => {
                    return Err(no_unique_name(self.target, &status).into());
                }
                Err(CommitError::Raced(_)) if attempt < more => self.doubt_definition(),
                other => return other,
            }
        }
        Err(Status::internal("a write was tried too often").into())
    }

    /// Whether an object that is too large is tried without its owners. Appliers would lose what they have applied.
    fn may_leave_out(&self, owners: Owners) -> bool {
        owners == Owners::Kept && !self.applied
    }

    async fn create_once(
        &self,
        mut object: Value,
        (name, subresource): (Option<&str>, Option<&str>),
        owners: Owners,
    ) -> Result<Changed, CommitError> {
        let called = name.unwrap_or_else(|| object::name(&object)).to_owned();
        let request = self.request(Operation::Create, &called, subresource);
        let mut checks = self.api.admission.guard(self.api, &request, &object).await?;
        let namespace = self.target.namespace.as_deref();
        lifecycle::wipe_system_fields(&mut object);
        lifecycle::match_namespace(&self.target.kind, &mut object, namespace)?;
        checks.extend(self.while_defined(&object).await?);
        let revision = object::metadata_mut(&mut object).remove("resourceVersion");
        self.name_owners_once(&mut object, Moment::Sent);
        self.track(None, &mut object, subresource).await?;
        self.api.admission.mutate(self.api, &request, &mut object, None).await?;
        self.name_owners_once(&mut object, Moment::Admitted);
        let sent = revision.as_ref().and_then(Value::as_str).unwrap_or_default();
        if name.is_some() {
            check_revision(sent)?;
        }
        let kind = &self.target.kind.gvk;
        if (&*kind.group, &*kind.kind) == ("certificates.k8s.io", "CertificateSigningRequest") {
            lifecycle::asked_by(&mut object, &user_info(&self.call.identity.user));
        }
        self.call.warn(warnings::before_create(&self.target.kind, &object));
        let again = || sent_again(self.call, self.target, None);
        let names = |word: &str| sent_names(self.call, word);
        let allocates = if subresource.is_none() { self.allocates() } else { Allocates::Nothing };
        let grants_admin_access = self.api.admission.grants_admin_access(self.api, &request, (None, &object)).await?;
        let context = WriteContext { allocates, grants_admin_access, ..self.context(&again, &names) };
        let mut object = lifecycle::prepare_create(&context, &self.target.kind, object, namespace, name)?;
        let called = object::name(&object).to_owned();
        let request = Request { name: &called, ..request };
        let key = self.target.key(self.call, object::name(&object)).map_err(CommitError::Failed)?;
        let mut commit = Commit::new(key, portolan_store::Expect::Absent, None);
        self.api.admission.allocate(self.api, &request, &mut object, None, &mut commit).await?;
        self.call.warn(warnings::on_create(&self.target.kind, &object));
        self.api.admission.validate(self.api, &request, Some(&object), None).await?;
        self.api.admission.furnish(self.api, &request, &mut object, None, &mut commit).await?;
        commit.checks.append(&mut checks);
        if self.options.dry_run {
            let sent = revision.map(|revision| ("resourceVersion".to_owned(), revision));
            object::metadata_mut(&mut object).extend(sent);
            quota::check(self.api, &request, &object, None).await?;
            return self.would_create(&commit.key, object).await;
        }
        if name.is_none() {
            lifecycle::check_unset_revision(sent)?;
        }
        owners.settle(&mut object);
        commit.record = Some(self.record(&object).await?);
        let key = commit.key.clone();
        match quota::commit(self.api, &request, (&object, None), commit, None).await {
            Ok(stored) => Ok(self.stored(stored, object).await?),
            Err(CommitError::Exists(_)) => Err(self.taken(&key).await),
            Err(other) => Err(other),
        }
    }

    async fn would_create(&self, key: &ObjectKey, object: Value) -> Result<Changed, CommitError> {
        match self.api.find(self.call, self.target, key).await? {
            Some(_) => Err(self.taken(key).await),
            None => Ok(Changed::Dry(self.tried(key, object).await?)),
        }
    }

    /// That a name is taken, under that of the resource that was asked for, which is not always the one that is stored. As
    /// upstream, it says so where the object that has it is going.
    async fn taken(&self, key: &ObjectKey) -> CommitError {
        let resource = self.target.resource();
        let status = Status::already_exists(&resource, &key.name);
        let found = self.api.find(self.call, self.target, key).await.ok().flatten();
        if !found.is_some_and(|found| found.stored.record.header.is_deleting) {
            return CommitError::Exists(status);
        }
        let message = format!("object is being deleted: {}", status.message());
        CommitError::Exists(Status::new(Reason::AlreadyExists, message).about(&resource, &key.name))
    }

    /// Changes an object: `make` gives the new state from the present one, and may be asked again when others were faster.
    ///
    /// # Errors
    /// Whatever `make`, admission, the life cycle or the store has against it.
    pub(crate) async fn change(
        &self,
        key: &ObjectKey,
        found: Found,
        subresource: Option<&str>,
        make: &(dyn Fn(&Value) -> Result<Value, Status> + Sync),
    ) -> Result<Changed, Status> {
        let mut races = Races::new(self.api, key, self.call.deadline);
        let changed = self.change_at_last((key, found), subresource, make, &mut races).await;
        races.end();
        changed?.ok_or_else(|| Status::not_found(&self.target.resource(), &key.name))
    }

    /// As [`Writer::change`]; `None` when the object goes before.
    pub(super) async fn change_at_last(
        &self,
        (key, mut found): (&ObjectKey, Found),
        subresource: Option<&str>,
        make: &(dyn Fn(&Value) -> Result<Value, Status> + Sync),
        races: &mut Races<'_>,
    ) -> Result<Option<Changed>, Status> {
        let mut owners = Owners::Kept;
        loop {
            match self.change_once((key, &found), subresource, make, owners).await {
                // There is an object of that name when a shared one has become an own one.
                Err(CommitError::Raced(_) | CommitError::Exists(_)) => {
                    races.lose().await;
                    let Some(again) = self.api.find(self.call, self.target, key).await? else { return Ok(None) };
                    found = again;
                }
                Err(CommitError::TooLarge(_)) if self.may_leave_out(owners) => owners = Owners::LeftOut,
                other => return other.map(Some).map_err(CommitError::into_status),
            }
        }
    }

    async fn change_once(
        &self,
        (key, found): (&ObjectKey, &Found),
        subresource: Option<&str>,
        make: &(dyn Fn(&Value) -> Result<Value, Status> + Sync),
        owners: Owners,
    ) -> Result<Changed, CommitError> {
        if found.stored.key.cluster != self.call.cluster.id {
            return Err(read_only(self.api, &found.stored.key).into());
        }
        let old = tree(self.target, &found.stored)?;
        self.conversions.clear();
        let mut new = self.with_conversions(|| make(&old)).await?;
        let request = self.request(Operation::Update, &key.name, subresource);
        lifecycle::match_namespace(&self.target.kind, &mut new, Some(object::namespace(&old)))?;
        check_revision(object::meta_text(&new, "resourceVersion"))?;
        if self.call.attributes.verb == "update" {
            self.name_owners_once(&mut new, Moment::Sent);
        }
        self.track(Some(&old), &mut new, subresource).await?;
        self.api.admission.mutate(self.api, &request, &mut new, Some(&old)).await?;
        self.name_owners_once(&mut new, Moment::Admitted);
        // A scale is a change of the object itself, owned under the subresource's name.
        let isolated = subresource.filter(|name| *name != "scale");
        let again = || sent_again(self.call, self.target, Some(&old));
        let names = |word: &str| sent_names(self.call, word);
        let warn = |texts| self.call.warn(texts);
        let grants_admin_access =
            self.api.admission.grants_admin_access(self.api, &request, (Some(&old), &new)).await?;
        let context = WriteContext {
            warn: Some(&warn),
            allocates: self.allocates(),
            grants_admin_access,
            // Other than an update, a patch does not ask for the object of a certain uid: it would change it.
            asks_uid: self.call.attributes.verb != "patch",
            ..self.context(&again, &names)
        };
        let update = lifecycle::prepare_update(&context, &self.target.kind, isolated, &old, new)?;
        let (mut object, removed) = match update {
            Update::Unchanged if !found.is_outdated => {
                self.call.warn(warnings::on_update(&self.target.kind, isolated, &old, &old));
                return self.unchanged(&request, found, old).await;
            }
            // Clients bring objects to the present storage version by writing them as they are.
            Update::Unchanged => (old.clone(), false),
            Update::Changed(mut object) => {
                // As upstream, of every update: what was taken back or left out on the way is no change, and when it was is none.
                if apply::keep_times(&old, &mut object) && !found.is_outdated {
                    return self.unchanged(&request, found, old).await;
                }
                (object, false)
            }
            Update::Removed(object) => (object, true),
        };
        let mut commit = Commit::new(key.clone(), found.expect, None);
        if !removed {
            self.api.admission.allocate(self.api, &request, &mut object, Some(&old), &mut commit).await?;
        }
        self.call.warn(warnings::on_update(&self.target.kind, isolated, &old, &object));
        self.api.admission.validate(self.api, &request, Some(&object), Some(&old)).await?;
        if removed {
            self.api.admission.clear(self.api, &request, &old, &mut commit).await?;
        } else {
            self.api.admission.furnish(self.api, &request, &mut object, Some(&old), &mut commit).await?;
        }
        if self.options.dry_run {
            quota::check(self.api, &request, &object, Some(&old)).await?;
            let object = if removed { object } else { self.tried(&commit.key, object).await? };
            return Ok(Changed::Dry(object));
        }
        if removed {
            commit.run(self.api, Some(&found.stored)).await?;
            return Ok(Changed::Removed(object));
        }
        owners.settle(&mut object);
        commit.record = Some(match isolated {
            Some("status") => self.record_of_status(&object, &found.stored).await?,
            _ => self.record(&object).await?,
        });
        let stored = quota::commit(self.api, &request, (&object, Some(&old)), commit, Some(&found.stored)).await?;
        Ok(self.stored(stored, object).await?)
    }

    /// A write without effect must be allowed, too.
    async fn unchanged(&self, request: &Request<'_>, found: &Found, old: Value) -> Result<Changed, CommitError> {
        self.api.admission.validate(self.api, request, Some(&old), Some(&old)).await?;
        Ok(if self.options.dry_run { Changed::Dry(old) } else { Changed::Stored(found.stored.clone(), old) })
    }

    /// Who names an owner twice has one, and is told.
    fn name_owners_once(&self, object: &mut Value, moment: Moment) {
        let twice = lifecycle::name_owners_once(object);
        if !twice.is_empty() {
            let when = match moment {
                Moment::Sent => "",
                Moment::Admitted => " after mutating admission happens",
            };
            let why = "API server dedups owner references in 1.20+, and may reject such requests as early as 1.24";
            let plea = format!("please fix your requests; duplicate UID(s) observed: {}", twice.join(", "));
            self.call.warn([format!(".metadata.ownerReferences contains duplicate entries{when}; {why}; {plea}")]);
        }
    }

    /// Ownership is recorded of what the client wrote and of defaults, not of what admission and the server fill in
    /// afterwards.
    ///
    /// # Errors
    /// Whatever there is against the defaults.
    async fn track(&self, old: Option<&Value>, new: &mut Value, subresource: Option<&str>) -> Result<(), Status> {
        let now = self.api.seams.now_text();
        let (table, kind) = (&self.target.table, &self.target.kind);
        // As upstream: what an apply leaves as it is lacks what its version would have by default, and so does what is stored.
        if !self.applied || !old.is_some_and(|old| apply::equal_but_bookkeeping(old, new)) {
            defaults::apply(table, kind, new)?;
        }
        lifecycle::keep_server_keys(new, old);
        // Upstream binds pods past those who keep the record.
        if subresource == Some("binding") {
            let before = old.and_then(|old| object::metadata(old).get("managedFields")).cloned();
            object::metadata_mut(new).extend(before.map(|before| ("managedFields".to_owned(), before)));
        } else if !self.applied {
            let (manager, conversions) = (&*self.options.manager, &self.conversions);
            let request = UpdateRequest { old, manager, subresource, now: &now, conversions };
            self.with_conversions(|| Ok(apply::track_update(table, kind, &request, new)?)).await?;
        }
        Ok(())
    }

    /// What `make` makes, tried again as long as it comes to objects that a webhook has to convert first.
    ///
    /// # Errors
    /// Its own, and 429 when too many are being converted.
    async fn with_conversions<T>(&self, mut make: impl FnMut() -> Result<T, Status>) -> Result<T, Status> {
        loop {
            let made = make();
            let Some(wanted) = self.conversions.take_wanted() else { return made };
            // Few writes come to this, and all would have to have room for it.
            let converted = Box::pin(self.api.asked_for(self.call.cluster.id, self.target, &wanted)).await?;
            self.conversions.learn(wanted, converted);
        }
    }

    /// What was stored, as the version that was asked for shows it, there and back.
    async fn stored(&self, stored: StoredObject, object: Value) -> Result<Changed, Status> {
        if !self.is_converted() {
            return Ok(Changed::Stored(stored, object));
        }
        let (stored, object) = self.shown(stored).await?;
        Ok(Changed::Stored(stored, object))
    }

    /// As [`Writer::stored`], of what is not stored.
    async fn tried(&self, key: &ObjectKey, object: Value) -> Result<Value, Status> {
        if !self.is_converted() {
            return Ok(object);
        }
        let record = Arc::new(self.record(&object).await?);
        let revision = ResourceVersion::FIRST;
        let (_, mut shown) = self.shown(StoredObject { key: key.clone(), revision, created: revision, record }).await?;
        let (metadata, own) = (object::metadata_mut(&mut shown), object::metadata(&object).get("resourceVersion"));
        match own {
            Some(own) => drop(metadata.insert("resourceVersion".to_owned(), own.clone())),
            None => drop(metadata.remove("resourceVersion")),
        }
        Ok(shown)
    }

    /// Whether objects are stored in another version than the one that is written in.
    fn is_converted(&self) -> bool {
        self.target.is_custom() && conversion::is_needed(&self.target.kind)
    }

    async fn shown(&self, stored: StoredObject) -> Result<(StoredObject, Value), Status> {
        let stored = self.api.in_version(self.target, vec![stored]).await?.pop();
        let stored = stored.ok_or_else(|| Status::internal("nothing was converted"))?;
        let object = tree(self.target, &stored)?;
        Ok((stored, object))
    }

    /// # Errors
    /// 400 for what could not be read back, 500 for what cannot be converted.
    async fn record(&self, object: &Value) -> Result<Record, Status> {
        if decode::depth(object) > decode::MAX_DEPTH {
            return Err(Status::bad_request(format!("the object is deeper than {} levels", decode::MAX_DEPTH)));
        }
        self.api.stored_form(self.call.cluster.id, self.target, object).await
    }

    /// As [`Writer::record`], of an object whose status alone was written.
    async fn record_of_status(&self, object: &Value, stored: &StoredObject) -> Result<Record, Status> {
        if !conversion::loses_order(&self.target.kind) {
            return self.record(object).await;
        }
        let before = stored.to_value().map_err(|e| status_for(&e))?;
        Ok(Record::of(&conversion::status_to_storage(&self.target.kind, object, &before)))
    }
}

impl Owners {
    fn settle(self, object: &mut Value) {
        if self == Self::LeftOut {
            object::metadata_mut(object).remove("managedFields");
        }
    }
}

/// # Errors
/// 500, as upstream, when the resourceVersion is no number.
fn check_revision(sent: &str) -> Result<(), Status> {
    match sent.is_empty() || number::unsigned(sent, Some(10)).is_some() {
        true => Ok(()),
        false => Err(Status::new(Reason::Unknown, no_number(sent))),
    }
}

fn no_unique_name(target: &Target, cause: &Status) -> Status {
    let message = format!("{}, the server was not able to generate a unique name for the object", cause.message());
    Status::new(Reason::AlreadyExists, message).about(&target.resource(), &cause.details().name).retry_after(1)
}
