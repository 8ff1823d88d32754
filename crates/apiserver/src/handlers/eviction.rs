//! `pods/eviction` and `pods/binding`.

use std::sync::Arc;

use http::Response;
use portolan_machinery::{decode, lifecycle::DeleteOptions};
use portolan_store::{RangeRequest, RangeScope};
use portolan_types::{
    GroupResource, LabelSelector, Reason, Status, StatusCause,
    labels::LabelSelectorSpec,
    object::{self, child_mut},
};
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::{
    ApiServer, Body,
    call::{Call, Target},
    encode::{self, media_of, tree},
    errors::{damaged, status_for},
    objects::Writer,
    options::WriteOptions,
};

use super::delete;

/// Deletes a pod if its disruption budgets allow.
pub(super) async fn evict(api: &Arc<ApiServer>, call: &Arc<Call>, target: &Target) -> Result<Response<Body>, Status> {
    let eviction = decode_as(call, target, "policy", "v1", "Eviction")?;
    let mut options = match eviction.get("deleteOptions").filter(|o| !o.is_null()) {
        Some(value) => DeleteOptions::from_value(value)?,
        None => DeleteOptions::default(),
    };
    options.dry_run |= WriteOptions::of(call)?.dry_run;
    let (key, found) = api.found(call, target).await?;
    let pod = tree(target, &found.stored)?;
    let is_over =
        matches!(pod.pointer("/status/phase").and_then(Value::as_str), Some("Succeeded" | "Failed" | "Pending"));
    if !is_over && !object::is_deleting(&pod) {
        check_budgets(api, call, target, &pod).await?;
    }
    delete::delete(api, call, target, &key, found, &options).await?;
    Ok(encode::json(
        201,
        &json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}),
    ))
}

fn decode_as(call: &Call, target: &Target, group: &str, version: &str, kind: &str) -> Result<Value, Status> {
    let schema = target.table.object_type(group, version, kind);
    let schema = schema.ok_or_else(|| Status::internal(format!("no type {kind}")))?;
    let decoded = decode::decode_type(target.table, schema, media_of(call)?, &call.body)?;
    call.warn(decoded.warnings);
    Ok(decoded.object)
}

async fn check_budgets(api: &ApiServer, call: &Call, target: &Target, pod: &Value) -> Result<(), Status> {
    let Some(namespace) = target.namespace.clone() else { return Ok(()) };
    let resource = GroupResource::new("policy", "poddisruptionbudgets");
    let scope = RangeScope::Namespace(call.cluster.id, resource, namespace);
    let page = api.store.range(RangeRequest::all(scope)).await.map_err(|e| status_for(&e))?;
    for stored in page.objects {
        let budget = stored.record.to_value(stored.revision).map_err(|e| damaged(&stored.key, &e))?;
        let allowed = budget.pointer("/status/disruptionsAllowed").and_then(Value::as_i64).unwrap_or(0);
        if allowed <= 0 && covers(&budget, pod) {
            return Err(refused(&budget));
        }
    }
    Ok(())
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

/// Gives a pod its node.
pub(super) async fn bind(api: &Arc<ApiServer>, call: &Arc<Call>, target: &Target) -> Result<Response<Body>, Status> {
    let binding = decode_as(call, target, "", "v1", "Binding")?;
    let node = binding.pointer("/target/name").and_then(Value::as_str).unwrap_or_default().to_owned();
    if node.is_empty() {
        return Err(Status::bad_request("a binding names its target"));
    }
    let options = WriteOptions::of(call)?;
    let (key, found) = api.found(call, target).await?;
    let (resource, now) = (target.resource(), api.seams.now_text());
    let writer = Writer { api, call, target, options: &options, applied: false };
    let make = |old: &Value| {
        let current = old.pointer("/spec/nodeName").and_then(Value::as_str).unwrap_or_default();
        if object::is_deleting(old) {
            return Err(Status::conflict(
                &resource,
                object::name(old),
                "pod is being deleted, cannot be assigned to a host",
            ));
        }
        if !current.is_empty() {
            let why = format!("pod {} is already assigned to node {current:?}", object::name(old));
            return Err(Status::conflict(&resource, object::name(old), why));
        }
        let mut new = old.clone();
        let Some(top) = new.as_object_mut() else { return Ok(new) };
        child_mut(top, "spec").insert("nodeName".into(), node.as_str().into());
        let conditions = child_mut(top, "status").entry("conditions").or_insert_with(|| json!([]));
        if let Some(list) = conditions.as_array_mut() {
            list.retain(|c| c.get("type").and_then(Value::as_str) != Some("PodScheduled"));
            list.push(
                json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": now}),
            );
        }
        Ok(new)
    };
    writer.change(&key, found, Some("binding"), &make).await?;
    Ok(encode::json(
        201,
        &json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}),
    ))
}
