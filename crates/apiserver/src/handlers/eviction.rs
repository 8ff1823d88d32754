//! `pods/eviction`.

use std::sync::Arc;

use http::Response;
use portolan_machinery::{
    apply::{self, Conversions, UpdateRequest},
    decode::{self, MediaType},
    lifecycle::{
        self, DeleteOptions, Update, WriteContext,
        eviction::{self, Leave},
    },
    protobuf,
};
use portolan_store::{Expect, RangeRequest, RangeScope, StoreError, StoredObject, Transaction, Write};
use portolan_types::{
    GroupKind, GroupResource, GroupVersionKind, LabelSelector, ObjectKey, Reason, Record, Status,
    labels::LabelSelectorSpec, object,
};
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::{
    ApiServer, Body,
    admission::Operation,
    call::{Call, Target},
    encode::{self, Written, media_of, tree},
    errors::{damaged, status_for},
    objects::{Commit, Found, WRITE_ATTEMPTS},
    options::WriteOptions,
};

use super::{delete, invalid};

/// Who upstream says has changed the status of budgets: it is the server itself that evicts.
const SERVER: &str = "kube-apiserver";

/// Deletes a pod if its disruption budget allows.
pub(super) async fn evict(api: &Arc<ApiServer>, call: &Arc<Call>, target: &Target) -> Result<Response<Body>, Status> {
    let written = Written::of(call)?;
    let write = WriteOptions::of(call)?;
    let mut asked = decoded(call, target, &write)?;
    lifecycle::wipe_system_fields(&mut asked);
    lifecycle::match_namespace(&target.kind, &mut asked, target.namespace.as_deref())?;
    let request = call.asks(target, Operation::Create, (&call.captures.name, "eviction"), write.dry_run);
    api.admission.mutate_passing(api, &request, &mut asked).await?;
    if object::name(&asked) != call.captures.name {
        return Err(Status::bad_request("name in URL does not match name in Eviction object"));
    }
    check_unsafe(&asked)?;
    propagate_dry_run(call, &mut asked)?;
    api.admission.validate_passing(api, &request, &asked).await?;
    let (key, mut found) = api.found(call, target).await?;
    let eviction = Eviction { api, call, target, options: options(&asked, write.dry_run)? };
    for attempt in 1.. {
        let pod = tree(target, &found.stored)?;
        if !eviction::needs_no_leave(&pod) {
            break;
        }
        let as_it_is = eviction::may_come_to_need_leave(&pod).then_some(&pod);
        match eviction.disrupt(&key, found, as_it_is).await {
            Err(failure) if eviction.tries_again(&failure) && attempt < WRITE_ATTEMPTS => {}
            done => return done.map(|()| made(written)),
        }
        found = api.found(call, target).await?.1;
    }
    eviction.with_leave(&key, found).await.map(|said| match said {
        Said::Evicted => made(written),
        Said::TooManyBudgets => too_many_budgets(written),
    })
}

/// What the request says of a dry run becomes part of the eviction, if that says nothing itself.
///
/// # Errors
/// 500 without a reason, as upstream, when they say different things.
fn propagate_dry_run(call: &Call, asked: &mut Value) -> Result<(), Status> {
    let said: Vec<&str> = call.query.all("dryRun").collect();
    let Some(options) = asked.get_mut("deleteOptions").filter(|options| !options.is_null()) else { return Ok(()) };
    let own = options["dryRun"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let own: Vec<&str> = own.collect();
    if !own.is_empty() && !said.is_empty() && own != said {
        let (said, own) = (said.join(" "), own.join(" "));
        let why = format!("Non-matching dry-run options in request and content: [{said}] and [{own}]");
        return Err(Status::new(Reason::Unknown, why));
    }
    if own.is_empty() && !said.is_empty() {
        options["dryRun"] = json!(said);
    }
    Ok(())
}

/// How the pod is to be deleted. Upstream looks at it when there is one.
fn options(asked: &Value, dry_run: bool) -> Result<DeleteOptions, Status> {
    match asked.get("deleteOptions").filter(|options| !options.is_null()) {
        Some(options) => DeleteOptions::from_value(options),
        None => Ok(DeleteOptions { dry_run, ..DeleteOptions::default() }),
    }
}

/// What only the deletion of objects that cannot be read may ask.
fn check_unsafe(asked: &Value) -> Result<(), Status> {
    const FIELD: &str = lifecycle::UNSAFE_DELETE;
    if asked.pointer(&format!("/deleteOptions/{FIELD}")) != Some(&Value::Bool(true)) {
        return Ok(());
    }
    let kind = GroupKind { group: "policy".into(), kind: "Eviction".into() };
    let why = "can not be set for pod eviction, try after removing the option";
    let cause = invalid(format!("deleteOptions.{FIELD}"), "true", why);
    Err(Status::invalid(&kind, object::name(asked), vec![cause]))
}

fn decoded(call: &Call, target: &Target, options: &WriteOptions) -> Result<Value, Status> {
    let media = media_of(call)?;
    let decoded_as = |version: &str| {
        let taken = GroupVersionKind::new("policy", version, "Eviction");
        decode::decode_as(&target.table, &target.kind, taken, media, &call.body, options.validation)
    };
    let is_older = || match media {
        MediaType::Protobuf => protobuf::type_of(&call.body).is_ok_and(|(version, _)| version == "policy/v1beta1"),
        _ => decode::decode_any(media, &call.body).is_ok_and(|sent| sent["apiVersion"] == "policy/v1beta1"),
    };
    let decoded = match decoded_as("v1") {
        // The older version has the same fields, and clients of before 1.22 know no other.
        Err(_) if is_older() => decoded_as("v1beta1")?,
        decoded => decoded?,
    };
    call.warn(decoded.warnings);
    Ok(decoded.object)
}

/// How an eviction that had to ask for leave ended.
enum Said {
    Evicted,
    TooManyBudgets,
}

/// An eviction that admission has let pass.
struct Eviction<'a> {
    api: &'a Arc<ApiServer>,
    call: &'a Arc<Call>,
    target: &'a Target,
    options: DeleteOptions,
}

impl Eviction<'_> {
    fn context(&self) -> WriteContext<'_> {
        WriteContext::new(&self.target.table, &self.api.seams)
    }

    /// Somebody was faster, and the client has not said which state it means.
    fn tries_again(&self, failure: &Status) -> bool {
        failure.reason() == Reason::Conflict && self.options.resource_version.is_none()
    }

    /// Evicts a pod that a budget may cover.
    async fn with_leave(&self, key: &ObjectKey, found: Found) -> Result<Said, Status> {
        let pod = tree(self.target, &found.stored)?;
        let mut budgets = self.covering(&pod).await?;
        if budgets.len() > 1 {
            return Ok(Said::TooManyBudgets);
        }
        let Some(budget) = budgets.pop() else {
            return self.disrupt(key, found, None).await.map(|()| Said::Evicted);
        };
        let name = budget.key.name.clone();
        let is_counted = self.spend(&pod, budget).await?;
        match self.disrupt(key, found, (!is_counted).then_some(&pod)).await {
            Err(failure) if !is_counted && self.tries_again(&failure) => Err(eviction::still_processed(name.as_str())),
            done => done.map(|()| Said::Evicted),
        }
    }

    /// The budgets that cover a pod, two of them at most.
    async fn covering(&self, pod: &Value) -> Result<Vec<StoredObject>, Status> {
        let Some(namespace) = self.target.namespace.clone() else { return Ok(Vec::new()) };
        let resource = GroupResource::new("policy", "poddisruptionbudgets");
        let scope = RangeScope::Namespace(self.call.cluster.id, resource, namespace);
        let (mut slice, mut covering) = (RangeRequest::slices(scope), Vec::new());
        loop {
            let page = self.api.store.range(slice.clone()).await.map_err(|e| status_for(&e))?;
            let next = slice.next(&page);
            for stored in page.objects {
                if covers(&read(&stored)?, pod) {
                    covering.push(stored);
                }
                if covering.len() > 1 {
                    return Ok(covering);
                }
            }
            match next {
                Some(next) => slice = next,
                None => return Ok(covering),
            }
        }
    }

    /// Takes the pod off its budget, which must allow that; when it changes meanwhile, looks again: two evictions at the same
    /// moment cannot spend the same allowance. `false` when the budget does not count on the pod.
    async fn spend(&self, pod: &Value, mut stored: StoredObject) -> Result<bool, Status> {
        for _ in 0..WRITE_ATTEMPTS {
            let budget = read(&stored)?;
            let Leave::Spent(mut spent) = eviction::ask(&self.context(), pod, &budget)? else { return Ok(false) };
            if self.options.dry_run {
                return Ok(true);
            }
            self.track(&budget, &mut spent)?;
            let (key, expect) = (stored.key.clone(), Expect::At(stored.revision));
            let writes = vec![Write { key, expect, record: Some(Record::of(&spent)) }];
            match self.api.store.commit(Transaction { writes, ..Transaction::default() }).await {
                Ok(_) => return Ok(true),
                Err(StoreError::Conflict { .. } | StoreError::NotFound { .. }) => {}
                Err(error) => return Err(status_for(&error)),
            }
            let again = self.api.store.get(&stored.key).await.map_err(|e| status_for(&e))?;
            stored = again.ok_or_else(|| Status::not_found(&stored.key.resource, &stored.key.name))?;
        }
        Err(Status::modified(&stored.key.resource, &stored.key.name))
    }

    fn track(&self, old: &Value, new: &mut Value) -> Result<(), Status> {
        let table = &self.target.table;
        let Some(kind) = table.resource("policy", "v1", "poddisruptionbudgets") else { return Ok(()) };
        let (now, conversions) = (self.api.seams.now_text(), Conversions::default());
        let request = UpdateRequest {
            old: Some(old),
            manager: SERVER,
            subresource: Some("status"),
            now: &now,
            conversions: &conversions,
        };
        Ok(apply::track_update(table, kind, &request, new)?)
    }

    /// Says in the pod's status that it is evicted, and deletes it; as it is, if that is given.
    async fn disrupt(&self, key: &ObjectKey, found: Found, as_it_is: Option<&Value>) -> Result<(), Status> {
        let mut options = self.options.clone();
        if let Some(pod) = as_it_is {
            options.resource_version.get_or_insert_with(|| object::meta_text(pod, "resourceVersion").to_owned());
        }
        let mut found = found;
        if !options.dry_run {
            found = self.mark(key, found, &options).await?;
            if let Some(at) = &mut options.resource_version {
                *at = found.stored.revision.to_string();
            }
        }
        let asked = (&options, delete::Admission::Passed);
        delete::delete(self.api, self.call, self.target, (key, found), asked).await.map(drop)
    }

    async fn mark(&self, key: &ObjectKey, found: Found, options: &DeleteOptions) -> Result<Found, Status> {
        let mut found = found;
        for _ in 0..WRITE_ATTEMPTS {
            let old = tree(self.target, &found.stored)?;
            lifecycle::check_preconditions(&self.target.kind, &old, options)?;
            let marked = eviction::evicted(&self.context(), &old);
            let update = lifecycle::prepare_update(&self.context(), &self.target.kind, Some("status"), &old, marked)?;
            let Update::Changed(marked) = update else { return Ok(found) };
            let record = self.api.stored_form(self.call.cluster.id, self.target, &marked).await?;
            let commit = Commit::new(key.clone(), found.expect, Some(record));
            match commit.run(self.api, Some(&found.stored)).await {
                Ok(stored) => {
                    let expect = Expect::At(stored.revision);
                    return Ok(Found::current(stored, expect));
                }
                Err(failure) => {
                    let failure = failure.into_status();
                    if failure.reason() != Reason::Conflict {
                        return Err(failure);
                    }
                }
            }
            let again = self.api.find(self.call, self.target, key).await?;
            found = again.ok_or_else(|| Status::not_found(&self.target.resource(), &key.name))?;
        }
        Err(Status::modified(&self.target.resource(), &key.name))
    }
}

fn read(stored: &StoredObject) -> Result<Value, Status> {
    stored.record.to_value(stored.revision).map_err(|e| damaged(&stored.key, &e))
}

fn covers(budget: &Value, pod: &Value) -> bool {
    let spec = budget.pointer("/spec/selector").and_then(|s| LabelSelectorSpec::deserialize(s).ok());
    let selector = spec.as_ref().and_then(|spec| LabelSelector::try_from(spec).ok());
    selector.is_some_and(|selector| selector.matches(|key| object::label(pod, key)))
}

/// Upstream gives this failure no reason.
fn too_many_budgets(written: Written) -> Response<Body> {
    let message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message, "code": 500,
    });
    encode::status_object(written, 500, &status)
}

/// What is done is answered as if it had been made.
pub(super) fn made(written: Written) -> Response<Body> {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
    encode::status_object(written, 201, &status)
}
