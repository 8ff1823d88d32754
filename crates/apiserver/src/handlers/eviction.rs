//! `pods/eviction`, `pods/binding` and `bindings`.

use std::sync::Arc;

use http::Response;
use portolan_machinery::{
    decode,
    lifecycle::{self, DeleteOptions, WriteContext},
};
use portolan_store::{Expect, RangeRequest, RangeScope, StoreError, StoredObject, Transaction, Write};
use portolan_types::{
    GroupResource, LabelSelector, Reason, Record, Status, StatusCause,
    labels::LabelSelectorSpec,
    object::{self, child_mut},
};
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::{
    ApiServer, Body,
    admission::Operation,
    call::{Call, Target, method_not_allowed},
    encode::{self, Media, OBJECT_TYPES, Offer, media_of, negotiate, tree},
    errors::{damaged, status_for},
    objects::{WRITE_ATTEMPTS, Writer},
    options::WriteOptions,
};

use super::{body, delete};

/// Deletes a pod if its disruption budgets allow.
pub(super) async fn evict(api: &Arc<ApiServer>, call: &Arc<Call>, target: &Target) -> Result<Response<Body>, Status> {
    let media = negotiate(&call.headers, Offer::document(OBJECT_TYPES))?.media;
    let mut eviction = decode_as(call, target, "policy", "v1", "Eviction")?;
    if object::name(&eviction) != call.captures.name {
        return Err(Status::bad_request("name in URL does not match name in Eviction object"));
    }
    let mut options = match eviction.get("deleteOptions").filter(|o| !o.is_null()) {
        Some(value) => DeleteOptions::from_value(value)?,
        None => DeleteOptions::default(),
    };
    options.dry_run |= WriteOptions::of(call)?.dry_run;
    let request = call.asks(target, Operation::Create, (&call.captures.name, "eviction"), options.dry_run);
    api.admission.admit_passing(api, &request, &mut eviction).await?;
    let (key, found) = api.found(call, target).await?;
    let pod = tree(target, &found.stored)?;
    let is_over =
        matches!(pod.pointer("/status/phase").and_then(Value::as_str), Some("Succeeded" | "Failed" | "Pending"));
    if !is_over && !object::is_deleting(&pod) {
        spend_budgets(api, call, target, &pod, options.dry_run).await?;
    }
    delete::delete(api, call, target, &key, found, &options).await?;
    Ok(made(media))
}

fn decode_as(call: &Call, target: &Target, group: &str, version: &str, kind: &str) -> Result<Value, Status> {
    let schema = target.table.object_type(group, version, kind);
    let schema = schema.ok_or_else(|| Status::internal(format!("no type {kind}")))?;
    let decoded = decode::decode_type(&target.table, schema, media_of(call)?, &call.body)?;
    call.warn(decoded.warnings);
    Ok(decoded.object)
}

/// Takes the pod off the budgets that cover it, which must allow that; when they change meanwhile, looks again. Two evictions
/// at the same moment cannot spend the same allowance.
async fn spend_budgets(
    api: &ApiServer,
    call: &Call,
    target: &Target,
    pod: &Value,
    dry_run: bool,
) -> Result<(), Status> {
    for _ in 0..WRITE_ATTEMPTS {
        let covering = covering_budgets(api, call, target, pod).await?;
        if let Some((_, exhausted)) = covering.iter().find(|(_, budget)| allowed(budget) <= 0) {
            return Err(refused(exhausted));
        }
        if covering.is_empty() || dry_run {
            return Ok(());
        }
        let spent = covering.into_iter().map(|(stored, budget)| Write {
            key: stored.key,
            expect: Expect::At(stored.revision),
            record: Some(Record::of(&without_one(budget, object::name(pod), &api.seams.now_text()))),
        });
        let transaction = Transaction { checks: Vec::new(), writes: spent.collect() };
        match api.store.commit(transaction).await {
            Ok(_) => return Ok(()),
            Err(StoreError::Conflict { .. } | StoreError::NotFound { .. }) => {}
            Err(error) => return Err(status_for(&error)),
        }
    }
    Err(Status::too_many_requests("the disruption budgets of the pod keep changing, please try again later", 10))
}

async fn covering_budgets(
    api: &ApiServer,
    call: &Call,
    target: &Target,
    pod: &Value,
) -> Result<Vec<(StoredObject, Value)>, Status> {
    let Some(namespace) = target.namespace.clone() else { return Ok(Vec::new()) };
    let resource = GroupResource::new("policy", "poddisruptionbudgets");
    let scope = RangeScope::Namespace(call.cluster.id, resource, namespace);
    let page = api.store.range(RangeRequest::all(scope)).await.map_err(|e| status_for(&e))?;
    let mut covering = Vec::new();
    for stored in page.objects {
        let budget = stored.record.to_value(stored.revision).map_err(|e| damaged(&stored.key, &e))?;
        if covers(&budget, pod) {
            covering.push((stored, budget));
        }
    }
    Ok(covering)
}

fn allowed(budget: &Value) -> i64 {
    budget.pointer("/status/disruptionsAllowed").and_then(Value::as_i64).unwrap_or(0)
}

/// The budget when the pod is on its way. Whoever keeps the status finds the pod among the disrupted ones.
fn without_one(mut budget: Value, pod: &str, now: &str) -> Value {
    let left = allowed(&budget) - 1;
    if let Some(top) = budget.as_object_mut() {
        let status = child_mut(top, "status");
        status.insert("disruptionsAllowed".into(), left.into());
        child_mut(status, "disruptedPods").insert(pod.to_owned(), now.into());
    }
    budget
}

fn covers(budget: &Value, pod: &Value) -> bool {
    let spec = budget.pointer("/spec/selector").and_then(|s| LabelSelectorSpec::deserialize(s).ok());
    let selector = spec.as_ref().and_then(|spec| LabelSelector::try_from(spec).ok());
    selector.is_some_and(|selector| selector.matches(|key| object::label(pod, key)))
}

fn refused(budget: &Value) -> Status {
    let number = |pointer: &str| budget.pointer(pointer).and_then(Value::as_i64).unwrap_or(0);
    let message = format!(
        "The disruption budget {} needs {} healthy pods and has {} currently",
        object::name(budget),
        number("/status/desiredHealthy"),
        number("/status/currentHealthy")
    );
    let cause = StatusCause { reason: "DisruptionBudget".into(), message, field: String::new() };
    let text = "Cannot evict pod as it would violate the pod's disruption budget.";
    Status::new(Reason::TooManyRequests, text).with_cause(cause).retry_after(10)
}

/// Gives the pod of the URL its node.
pub(super) async fn bind(api: &Arc<ApiServer>, call: &Arc<Call>, pods: &Target) -> Result<Response<Body>, Status> {
    let kind = pods.table.resource("", "v1", "bindings").ok_or_else(Status::no_such_path)?.clone();
    let bindings = Target { kind, ..pods.clone() };
    bind_as(api, call, (&bindings, pods), Some(&call.captures.name)).await
}

/// Gives the pod that a Binding names its node: `POST` to `bindings`.
pub(super) async fn bind_named(
    api: &Arc<ApiServer>,
    call: &Arc<Call>,
    bindings: &Target,
) -> Result<Response<Body>, Status> {
    if bindings.namespace.is_none() {
        return Err(method_not_allowed());
    }
    let kind = bindings.table.resource("", "v1", "pods").ok_or_else(Status::no_such_path)?.clone();
    let pods = Target { kind, ..bindings.clone() };
    bind_as(api, call, (bindings, &pods), None).await
}

async fn bind_as(
    api: &Arc<ApiServer>,
    call: &Arc<Call>,
    (bindings, pods): (&Target, &Target),
    name: Option<&str>,
) -> Result<Response<Body>, Status> {
    let media = negotiate(&call.headers, Offer::document(OBJECT_TYPES))?.media;
    let options = WriteOptions::of(call)?;
    let mut binding = body::decode(call, bindings, options.validation, None)?;
    lifecycle::match_namespace(&bindings.kind, &mut binding, bindings.namespace.as_deref())?;
    if name.is_some_and(|name| object::name(&binding) != name) {
        return Err(Status::bad_request("name in URL does not match name in Binding object"));
    }
    if name.is_none() {
        // What is new has none yet.
        object::metadata_mut(&mut binding).remove("uid");
    }
    lifecycle::check_binding(&binding)?;
    if object::name(&binding).is_empty() {
        return Err(Status::bad_request("Name parameter required."));
    }
    let key = pods.key(call, object::name(&binding))?;
    // Through the pod it is the pod's subresource, by itself a resource.
    let (asked, subresource) = if name.is_some() { (pods, "binding") } else { (bindings, "") };
    let request = call.asks(asked, Operation::Create, (&key.name, subresource), options.dry_run);
    api.admission.admit_passing(api, &request, &mut binding).await?;
    let found = api.find(call, pods, &key).await?;
    let found = found.ok_or_else(|| Status::not_found(&pods.resource(), &key.name))?;
    let writer = Writer { api, call, target: pods, options: &options, applied: false };
    let context = WriteContext { table: &pods.table, seams: &api.seams };
    writer.change(&key, found, Some("binding"), &|pod| lifecycle::bind(&context, pod, &binding)).await?;
    Ok(made(media))
}

/// What is done is answered as if it had been made.
fn made(media: Media) -> Response<Body> {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
    encode::status_object(media, 201, &status)
}
