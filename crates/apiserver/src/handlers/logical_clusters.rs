//! LogicalClusters that wait for an initializer or terminator: a provider lists and watches them, and ends its step by
//! removing it from the status.

use std::sync::Arc;

use http::Response;
use portolan_store::{Expect, StoredObject};
use portolan_types::{Status, lifecycle::LifecycleStage, object};
use serde_json::Value;

use crate::{
    ApiServer, Body,
    admission::commit_stage,
    commit::CommitError,
    directory::LogicalCluster,
    encode::{self, ResponseShape},
    errors::{damaged, status_for},
    limits::Permit,
    objects::{LifecycleItems, ListResult, WRITE_ATTEMPTS},
    options::{ListOptions, WriteOptions},
    request::{RequestContext, ResourceTarget, computed::stored_logical_cluster, method_not_allowed},
    routing::routes::RouteEndpoint,
    views::LifecycleView,
    watch,
};

use super::{
    body, invalid,
    patch::{Patch, PatchFormat},
    resolve,
    update::check_name,
};

/// Name of the only LogicalCluster of a logical cluster.
const NAME: &str = "cluster";

/// Answers a request for the LogicalClusters of a view.
pub(super) async fn answer(
    api: &Arc<ApiServer>,
    call: &Arc<RequestContext>,
    view: &Arc<LifecycleView>,
    permit: Option<Permit>,
) -> Result<Response<Body>, Status> {
    let target = resolve::resolve_target(&api.kinds, call).await?;
    let is_status = matches!(&*call.captures.subresource, "" | "status");
    match (call.endpoint, call.attributes.verb.as_str()) {
        (RouteEndpoint::Collection, "list") => list(api, call, view, &target).await,
        (RouteEndpoint::Collection, "watch") => match permit {
            Some(permit) => Box::pin(watch::answer(&api.watches, call, &target, permit)).await,
            None => Err(Status::internal("a watch without a place")),
        },
        (RouteEndpoint::Object | RouteEndpoint::Subresource, "get" | "update" | "patch") if is_status => {
            if call.captures.name != NAME {
                return Err(Status::not_found(&target.resource(), &call.captures.name));
            }
            if call.attributes.verb == "get" {
                get(api, call, &target).await
            } else {
                write(api, call, view, &target).await
            }
        }
        _ => Err(method_not_allowed()),
    }
}

/// Returns the source of the LogicalClusters of a view.
fn items(api: &ApiServer, view: &Arc<LifecycleView>) -> LifecycleItems {
    LifecycleItems { store: api.storage.store.clone(), view: view.clone(), url: api.reads.url.clone() }
}

async fn list(
    api: &Arc<ApiServer>,
    call: &Arc<RequestContext>,
    view: &Arc<LifecycleView>,
    target: &ResourceTarget,
) -> Result<Response<Body>, Status> {
    let shape = ResponseShape::of(call, target, api.seams().clock.now())?;
    let options = ListOptions::of(target, &call.query)?;
    let read = items(api, view).read(None).await.map_err(|error| status_for(&error))?;
    let (mut objects, mut bytes) = (Vec::new(), 0);
    for stored in read.objects {
        let selected = options.selection.matches(target, &stored.key, &stored.record, stored.revision);
        if selected.map_err(|error| damaged(&stored.key, &error))? {
            bytes += stored.record.body().len();
            call.charge.grow_to(bytes)?;
            objects.push(stored);
        }
    }
    let listed = ListResult { revision: read.revision, objects, rest: None, token: None, remaining: None };
    encode::list(shape, listed, &call.charge).await
}

async fn get(
    api: &Arc<ApiServer>,
    call: &Arc<RequestContext>,
    target: &ResourceTarget,
) -> Result<Response<Body>, Status> {
    let shape = ResponseShape::of(call, target, api.seams().clock.now())?;
    let (_, stored, _) = latest(api, call, target).await?;
    encode::object(&shape, 200, &stored)
}

/// Reads the logical cluster of a request, with its object and the precondition for a write of it.
async fn latest(
    api: &ApiServer,
    call: &RequestContext,
    target: &ResourceTarget,
) -> Result<(LogicalCluster, StoredObject, Expect), Status> {
    let found = api.storage.directory.stored(call.cluster.id).await?;
    let (cluster, expect) = found.ok_or_else(|| Status::not_found(&target.resource(), NAME))?;
    let revision = match expect {
        Expect::At(revision) => revision,
        _ => cluster.since,
    };
    let stored = stored_logical_cluster(&cluster, revision, &api.reads.url);
    Ok((cluster, stored, expect))
}

/// Applies an update or patch, of which only the removal of the own step has an effect.
async fn write(
    api: &Arc<ApiServer>,
    call: &Arc<RequestContext>,
    view: &Arc<LifecycleView>,
    target: &ResourceTarget,
) -> Result<Response<Body>, Status> {
    let shape = ResponseShape::of(call, target, api.seams().clock.now())?;
    let options = WriteOptions::of(call)?;
    let mut raced = Status::internal("no attempt was made");
    for _ in 0..WRITE_ATTEMPTS {
        let (cluster, stored, expect) = latest(api, call, target).await?;
        let old = stored.to_value().map_err(|error| status_for(&error))?;
        let new = requested(call, target, &options, &old)?;
        check_revision(target, &old, &new)?;
        let Some(changed) = check_steps(view, target, (&old, &new))?.then(|| after(&cluster, view)).flatten() else {
            return encode::object(&shape, 200, &stored);
        };
        if options.dry_run {
            let shown = stored_logical_cluster(&changed, stored.revision, &api.reads.url);
            return encode::object(&shape, 200, &shown);
        }
        match commit_stage(&api.writes.commits, changed.clone(), expect).await {
            Ok(()) => {
                // The last terminator lets the logical cluster go, possibly before this answer.
                let shown = match latest(api, call, target).await {
                    Ok((_, stored, _)) => stored,
                    Err(_) => stored_logical_cluster(&changed, stored.revision, &api.reads.url),
                };
                return encode::object(&shape, 200, &shown);
            }
            Err(CommitError::Raced(status)) => raced = status,
            Err(error) => return Err(error.into_status()),
        }
    }
    Err(raced)
}

fn after(cluster: &LogicalCluster, view: &LifecycleView) -> Option<LogicalCluster> {
    cluster.after_step(view.address.stage, &view.step)
}

/// Returns the object that the client wants.
fn requested(
    call: &RequestContext,
    target: &ResourceTarget,
    options: &WriteOptions,
    old: &Value,
) -> Result<Value, Status> {
    if call.attributes.verb == "patch" {
        return match PatchFormat::of(call, target)? {
            // Its fields have no owners.
            PatchFormat::Apply => Err(method_not_allowed()),
            format => Patch::read(call, target, format)?.apply_typed(old, options.validation),
        };
    }
    let new = body::decode(call, target, options.validation, Some(old))?;
    check_name(object::name(&new), NAME)?;
    Ok(new)
}

/// Checks the resourceVersion that the client sends.
///
/// # Errors
/// 409 for an old one.
fn check_revision(target: &ResourceTarget, old: &Value, new: &Value) -> Result<(), Status> {
    let sent = object::meta_text(new, "resourceVersion");
    if sent.is_empty() || sent == object::meta_text(old, "resourceVersion") {
        return Ok(());
    }
    Err(Status::modified(&target.resource(), NAME))
}

/// Returns true if a write ends the step of the view; false if it changes no step.
///
/// # Errors
/// 422 for any other change of steps.
fn check_steps(view: &LifecycleView, target: &ResourceTarget, (old, new): (&Value, &Value)) -> Result<bool, Status> {
    let steps = |object: &Value, stage: LifecycleStage| {
        let steps = object.pointer(&format!("/status/{}", stage.steps())).and_then(Value::as_array);
        steps.cloned().unwrap_or_default()
    };
    let mut ends = false;
    for stage in LifecycleStage::ALL {
        let (before, now) = (steps(old, stage), steps(new, stage));
        if before == now {
            continue;
        }
        let rest: Vec<Value> = before.into_iter().filter(|step| *step != *view.step).collect();
        if stage != view.address.stage || now != rest {
            let why = format!("only removing the {:?} {} is supported", view.step, view.address.stage.step());
            let shown = serde_json::to_string(&now).unwrap_or_default();
            let cause = invalid(format!("status.{}", stage.steps()), &shown, &why);
            return Err(Status::invalid(&target.kind.gvk.group_kind(), NAME, vec![cause]));
        }
        ends = true;
    }
    Ok(ends)
}
