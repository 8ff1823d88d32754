//! `pods/eviction`.

use std::sync::Arc;

use http::Response;
use portolan_codec::{
    decode::{self, MediaType},
    protobuf,
};
use portolan_merge::apply::{self, Conversions, UpdateRequest};
use portolan_store::{Expect, RangeRequest, RangeScope, StoreError, StoredObject, Transaction, Write};
use portolan_strategy::lifecycle::{
    self, DeleteOptions, WriteContext,
    eviction::{self, Leave},
};
use portolan_types::{
    GroupKind, GroupResource, GroupVersionKind, LabelSelector, ObjectKey, Reason, Record, Status,
    labels::LabelSelectorSpec, object,
};
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::{
    ApiServer, Body,
    commit::CommitError,
    encode::{self, StatusForm, media_of},
    errors::{damaged, status_for},
    hooks::Operation,
    objects::{
        FoundObject, PipelineContext, WRITE_ATTEMPTS, tree,
        write_pipeline::{Admitted, FieldTracking, WriteEffect, WriteScope},
    },
    options::WriteOptions,
    request::{AdmittedOperation, RequestContext, ResourceTarget},
    storage::StorageContext,
};

use super::{delete, invalid};

/// Field manager of the status of a budget: the server itself writes it.
const SERVER_MANAGER: &str = "kube-apiserver";

/// Evicts a pod if its disruption budget permits it.
pub(super) async fn evict(
    api: &Arc<ApiServer>,
    call: &Arc<RequestContext>,
    target: &ResourceTarget,
) -> Result<Response<Body>, Status> {
    let written = StatusForm::of(call)?;
    let write = WriteOptions::of(call)?;
    let mut asked = decoded(call, target, &write)?;
    lifecycle::wipe_system_fields(&mut asked);
    lifecycle::match_namespace(&target.kind, &mut asked, target.namespace.as_deref())?;
    let (operation, name) = (Operation::Create, &*call.captures.name);
    let admitted = AdmittedOperation { operation, name, subresource: "eviction", dry_run: write.dry_run };
    let request = call.admission_request(target, admitted);
    api.writes.admission.mutate_unstored(&request, &mut asked).await?;
    if object::name(&asked) != call.captures.name {
        return Err(Status::bad_request("name in URL does not match name in Eviction object"));
    }
    check_unsafe(&asked)?;
    propagate_dry_run(call, &mut asked)?;
    api.writes.admission.validate_unstored(&request, &asked).await?;
    let (key, mut found) = api.reads.existing_object(call, target).await?;
    let eviction = PodEviction { context: &api.writes, call, target, options: options(&asked, write.dry_run)? };
    for attempt in 1.. {
        let pod = tree(target, &found.stored)?;
        if !eviction::bypasses_budgets(&pod) {
            break;
        }
        let precondition = eviction::may_need_budget_later(&pod).then_some(&pod);
        match eviction.delete_pod(&key, found, precondition).await {
            Err(failure) if eviction.retries_after(&failure) && attempt < WRITE_ATTEMPTS => {}
            done => return done.map(|()| created_status(written)),
        }
        found = api.reads.existing_object(call, target).await?.1;
    }
    eviction.evict_within_budget(&key, found).await.map(|said| match said {
        EvictionResult::Evicted => created_status(written),
        EvictionResult::TooManyBudgets => too_many_budgets(written),
    })
}

/// Copies the dry run of the request into the eviction unless that has its own.
///
/// # Errors
/// 500 without a reason, as in kube-apiserver, when the two differ.
fn propagate_dry_run(call: &RequestContext, asked: &mut Value) -> Result<(), Status> {
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

/// Returns the delete options of the eviction. kube-apiserver parses them only when the pod exists.
fn options(asked: &Value, dry_run: bool) -> Result<DeleteOptions, Status> {
    match asked.get("deleteOptions").filter(|options| !options.is_null()) {
        Some(options) => DeleteOptions::from_value(options),
        None => Ok(DeleteOptions { dry_run, ..DeleteOptions::default() }),
    }
}

/// Refuses the option that is reserved for deleting unreadable objects.
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

fn decoded(call: &RequestContext, target: &ResourceTarget, options: &WriteOptions) -> Result<Value, Status> {
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
        // v1beta1 has the same fields, and clients before 1.22 know no other version.
        Err(_) if is_older() => decoded_as("v1beta1")?,
        decoded => decoded?,
    };
    call.warn(decoded.warnings);
    Ok(decoded.object)
}

/// Result of an eviction that needs a budget.
enum EvictionResult {
    Evicted,
    TooManyBudgets,
}

/// Eviction after admission.
struct PodEviction<'a> {
    context: &'a Arc<PipelineContext>,
    call: &'a Arc<RequestContext>,
    target: &'a ResourceTarget,
    options: DeleteOptions,
}

impl PodEviction<'_> {
    fn storage(&self) -> &StorageContext {
        &self.context.reads.storage
    }

    fn rules(&self) -> WriteContext<'_> {
        WriteContext::new(&self.target.table, &self.storage().seams)
    }

    /// Returns true after a conflict if the client has given no resourceVersion.
    fn retries_after(&self, failure: &Status) -> bool {
        failure.reason() == Reason::Conflict && self.options.resource_version.is_none()
    }

    /// Evicts a pod that a budget may cover.
    async fn evict_within_budget(&self, key: &ObjectKey, found: FoundObject) -> Result<EvictionResult, Status> {
        let pod = tree(self.target, &found.stored)?;
        let mut budgets = self.covering_budgets(&pod).await?;
        if budgets.len() > 1 {
            return Ok(EvictionResult::TooManyBudgets);
        }
        let Some(budget) = budgets.pop() else {
            return self.delete_pod(key, found, None).await.map(|()| EvictionResult::Evicted);
        };
        let name = budget.key.name.clone();
        let is_counted = self.decrement_budget(&pod, budget).await?;
        match self.delete_pod(key, found, (!is_counted).then_some(&pod)).await {
            Err(failure) if !is_counted && self.retries_after(&failure) => {
                Err(eviction::still_processed(name.as_str()))
            }
            done => done.map(|()| EvictionResult::Evicted),
        }
    }

    /// Returns the budgets that cover a pod, at most two.
    async fn covering_budgets(&self, pod: &Value) -> Result<Vec<StoredObject>, Status> {
        let Some(namespace) = self.target.namespace.clone() else { return Ok(Vec::new()) };
        let resource = GroupResource::new("policy", "poddisruptionbudgets");
        let scope = RangeScope::Namespace(self.call.cluster.id, resource, namespace);
        let (mut slice, mut covering) = (RangeRequest::slices(scope), Vec::new());
        loop {
            let page = self.storage().store.range(slice.clone()).await.map_err(|e| status_for(&e))?;
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

    /// Decrements the budget of the pod, and retries on a conflict, so that two concurrent evictions cannot use the
    /// same allowance. Returns false when the budget does not count the pod.
    async fn decrement_budget(&self, pod: &Value, mut stored: StoredObject) -> Result<bool, Status> {
        for _ in 0..WRITE_ATTEMPTS {
            let budget = read(&stored)?;
            let Leave::Spent(mut spent) = eviction::ask(&self.rules(), pod, &budget)? else { return Ok(false) };
            if self.options.dry_run {
                return Ok(true);
            }
            self.track(&budget, &mut spent)?;
            let (key, expect) = (stored.key.clone(), Expect::At(stored.revision));
            let writes = vec![Write { key, expect, record: Some(Record::of(&spent)) }];
            match self.storage().store.commit(Transaction { writes, ..Transaction::default() }).await {
                Ok(_) => return Ok(true),
                Err(StoreError::Conflict { .. } | StoreError::NotFound { .. }) => {}
                Err(error) => return Err(status_for(&error)),
            }
            let again = self.storage().store.get(&stored.key).await.map_err(|e| status_for(&e))?;
            stored = again.ok_or_else(|| Status::not_found(&stored.key.resource, &stored.key.name))?;
        }
        Err(Status::modified(&stored.key.resource, &stored.key.name))
    }

    fn track(&self, old: &Value, new: &mut Value) -> Result<(), Status> {
        let table = &self.target.table;
        let Some(kind) = table.resource("policy", "v1", "poddisruptionbudgets") else { return Ok(()) };
        let (now, conversions) = (self.storage().seams.now_text(), Conversions::default());
        let request = UpdateRequest {
            old: Some(old),
            manager: SERVER_MANAGER,
            subresource: Some("status"),
            now: &now,
            conversions: &conversions,
        };
        Ok(apply::track_update(table, kind, &request, new)?)
    }

    /// Sets the eviction condition of the pod and deletes it. With `precondition`, only in that state.
    async fn delete_pod(
        &self,
        key: &ObjectKey,
        found: FoundObject,
        precondition: Option<&Value>,
    ) -> Result<(), Status> {
        let mut options = self.options.clone();
        if let Some(pod) = precondition {
            options.resource_version.get_or_insert_with(|| object::meta_text(pod, "resourceVersion").to_owned());
        }
        let mut found = found;
        if !options.dry_run {
            found = self.set_condition(key, found, &options).await?;
            if let Some(at) = &mut options.resource_version {
                *at = found.stored.revision.to_string();
            }
        }
        let admission = delete::DeletionAdmission::Skipped;
        let task = delete::DeletionTask { key, found, options: &options, admission };
        delete::delete(self.context, self.call, self.target, task).await.map(drop)
    }

    /// Sets the eviction condition in the status of the pod, with retries.
    async fn set_condition(
        &self,
        key: &ObjectKey,
        mut found: FoundObject,
        options: &DeleteOptions,
    ) -> Result<FoundObject, Status> {
        for _ in 0..WRITE_ATTEMPTS {
            match self.try_set_condition(key, &found, options).await {
                Ok(None) => return Ok(found),
                Ok(Some(stored)) => {
                    let expect = Expect::At(stored.revision);
                    return Ok(FoundObject::current(stored, expect));
                }
                Err(CommitError::Raced(failure)) if failure.reason() == Reason::Conflict => {}
                Err(failure) => return Err(failure.into_status()),
            }
            let again = self.context.reads.find_object(self.call, self.target, key).await?;
            found = again.ok_or_else(|| Status::not_found(&self.target.resource(), &key.name))?;
        }
        Err(Status::modified(&self.target.resource(), &key.name))
    }

    /// Sets the eviction condition; `None` if the pod has it already.
    async fn try_set_condition(
        &self,
        key: &ObjectKey,
        found: &FoundObject,
        options: &DeleteOptions,
    ) -> Result<Option<StoredObject>, CommitError> {
        let old = tree(self.target, &found.stored)?;
        lifecycle::check_preconditions(&self.target.kind, &old, options)?;
        let marked = eviction::evicted(&self.rules(), &old);
        let admitted = AdmittedOperation {
            operation: Operation::Update,
            name: key.name.as_str(),
            subresource: "status",
            dry_run: options.dry_run,
        };
        let scope = WriteScope {
            context: self.context,
            target: self.target,
            request: self.call.admission_request(self.target, admitted),
            url_name: None,
            path: &self.call.path,
            verb: "update",
            fields: FieldTracking::Nothing,
            body: None,
        };
        let prepared = Admitted::by_server(&scope, marked, &old).prepare(false).await?;
        if prepared.effect() != WriteEffect::Update {
            return Ok(None);
        }
        let validated = prepared.validate(key.clone(), found.expect).await?;
        let record = scope.converter().record(validated.object()).await?;
        let (stored, _) = validated.commit_as(Some(record)).commit(Some(&found.stored)).await?;
        Ok(Some(stored))
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

/// Returns the failure for several budgets; kube-apiserver gives it no reason.
fn too_many_budgets(written: StatusForm) -> Response<Body> {
    let message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message, "code": 500,
    });
    encode::status_object(written, 500, &status)
}

/// Returns the `Success` that answers a subresource which creates nothing.
pub(super) fn created_status(written: StatusForm) -> Response<Body> {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
    encode::status_object(written, 201, &status)
}
