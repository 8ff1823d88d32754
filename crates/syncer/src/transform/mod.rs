//! What goes down of an object, and what never does. Pure.

mod compat;
mod credentials;
mod fields;
mod lists;
mod metadata;
mod namespaces;
mod overrides;
mod pods;
mod volatile;
mod yields;

use portolan_types::{
    Uid, annotations, fingerprint, object,
    placement::{CopyIdentity, PlacedCopy, PlacementRecord},
    upstream::UpstreamObject,
};
use serde_json::{Map, Value};

pub use compat::Lacking;
pub(crate) use compat::may_lack_fields;
pub use credentials::AcceptedAudiences;
pub(crate) use fields::covers;
pub(crate) use lists::list_replacement;
pub(crate) use metadata::{GENERATED_JOB_LABELS, is_left_out, is_ours as is_our_key};
pub(crate) use namespaces::restore_selectors;
pub(crate) use pods::is_token_volume;
pub(crate) use volatile::without_volatile;

use crate::{client::weight, namespace_labels::NamespaceNaming, rules::Refusal};

/// Largest copy, in bytes of memory that its tree takes: 16 MiB. The API server of the physical cluster adds to it, and what comes
/// back must fit into what is read as one answer.
const MAX_COPY_WEIGHT: usize = 16 * 1024 * 1024;

/// What a copy depends on besides its upstream object.
#[derive(Clone, Copy, Debug)]
pub struct CopyContext<'a> {
    /// Uid of the `PhysicalCluster`.
    pub physical: &'a Uid,
    /// Namespace downstream; `None` at cluster scope.
    pub namespace: Option<&'a str>,
    /// The entry of this physical cluster on the object's record.
    pub entry: &'a PlacedCopy,
    /// Epoch of this syncer.
    pub syncer_epoch: u64,
    /// `spec.replicas` downstream, when an autoscaler there owns it.
    pub scaled_to: Option<i64>,
    /// What the API of the physical cluster has no field for.
    pub lacking: &'a Lacking,
    /// Audiences of tokens that are credentials for the physical cluster's API server.
    pub audiences: &'a AcceptedAudiences,
    /// Names and labels of namespaces on the physical cluster.
    pub naming: &'a NamespaceNaming,
    /// The copy as it stands below, whose values of yielded fields stay.
    pub below: Option<&'a Value>,
}

/// The copy of `upstream` as it should be downstream, without uid and resourceVersion. Its annotation
/// `sync.portolan.dev/applied` is a hash of the rest, in which the syncer's epoch and yielded replicas do not count.
///
/// # Errors
/// A [`Refusal`], when the object asks for what a logical cluster must not have: host access, privileges, nodes of the control
/// plane, other people's addresses.
pub fn copy_of(upstream: &UpstreamObject, context: &CopyContext<'_>) -> Result<Value, Refusal> {
    let mut copy = Map::new();
    for (key, value) in upstream.object.as_object().into_iter().flatten() {
        if !matches!(key.as_str(), "apiVersion" | "kind" | "metadata" | "status") {
            copy.insert(key.clone(), value.clone());
        }
    }
    let mut copy = Value::Object(copy);
    if let Some(first) = context.lacking.meant.first() {
        return Err(Refusal::incompatible(format!("the API of the physical cluster has no field {first}")));
    }
    context.lacking.defaults.iter().for_each(|pointer| compat::remove(&mut copy, pointer));
    let identity = identity_of(upstream, context);
    copy["metadata"] = metadata::copy_of(upstream, context.namespace, &identity);
    let record = PlacementRecord::of(&upstream.object).unwrap_or_default();
    // Before anything is checked or taken out: a policy is no way around that.
    overrides::apply(&record.overrides, context.physical, &upstream.kind, &mut copy)?;
    pods::check(&upstream.kind, &copy)?;
    fields::check(&upstream.kind, &copy)?;
    fields::strip(&upstream.kind, &mut copy);
    namespaces::translate(&upstream.kind, context.naming, upstream.key.cluster, &mut copy)?;
    let limit = record.limits.get(context.physical).copied();
    let replicas = context.entry.replicas.or_else(|| limited(&copy, limit));
    set_replicas(&mut copy, replicas);
    let template = pods::template_of(&upstream.kind, &upstream.object).map(fingerprint);
    pods::prepare(&upstream.kind, &mut copy, &upstream.key.cluster.to_string());
    credentials::check(&upstream.kind, &copy, context.audiences)?;
    copy["apiVersion"] = Value::String(upstream.kind.group_version().to_string());
    copy["kind"] = Value::String(upstream.kind.kind.to_string());
    if let Some(template) = template {
        object::set_annotation(&mut copy, annotations::DOWN_TEMPLATE, Some(template));
    }
    seal(&mut copy, &identity, &record.yields, context);
    check_weight(&copy)?;
    Ok(copy)
}

/// Refuses a copy that would not fit into one answer of the physical cluster together with what is added there.
fn check_weight(copy: &Value) -> Result<(), Refusal> {
    let weight = weight::of(copy);
    match weight > MAX_COPY_WEIGHT {
        true => Err(Refusal::too_large(format!(
            "the object takes {weight} bytes of memory, and a copy may take {MAX_COPY_WEIGHT}: it has too many fields and items"
        ))),
        false => Ok(()),
    }
}

fn identity_of(upstream: &UpstreamObject, context: &CopyContext<'_>) -> CopyIdentity {
    CopyIdentity {
        cluster: upstream.key.cluster.to_string(),
        uid: object::uid(&upstream.object).unwrap_or_else(|| context.physical.clone()),
        physical: context.physical.clone(),
        namespace: upstream.key.namespace().map(ToString::to_string).unwrap_or_default(),
        name: upstream.key.name.to_string(),
        generation: object::generation(&upstream.object),
        epoch: context.entry.epoch,
        syncer_epoch: context.syncer_epoch,
    }
}

/// Returns the replicas of a copy that the bounds of its physical cluster limit.
fn limited(copy: &Value, limit: Option<i64>) -> Option<i64> {
    let replicas = copy.pointer("/spec/replicas").and_then(Value::as_i64)?;
    limit.map(|limit| replicas.min(limit))
}

/// Gives a copy its share of the replicas, where it has any.
fn set_replicas(copy: &mut Value, replicas: Option<i64>) {
    let Some(replicas) = replicas else { return };
    if let Some(spec) = copy.get_mut("spec").and_then(Value::as_object_mut) {
        spec.insert("replicas".into(), replicas.into());
    }
}

/// Hashes the copy as it would be under syncer epoch 0 and without yielded fields, then puts the true ones in.
fn seal(copy: &mut Value, identity: &CopyIdentity, yields: &[String], context: &CopyContext<'_>) {
    let write = |copy: &mut Value, identity: &CopyIdentity| {
        let text = serde_json::to_string(identity).expect("strings and numbers serialize");
        object::set_annotation(copy, annotations::DOWN_IDENTITY, Some(text));
    };
    write(copy, &CopyIdentity { syncer_epoch: 0, ..identity.clone() });
    if context.scaled_to.is_some() {
        set_replicas(copy, Some(-1));
    }
    let mut hashed = copy.clone();
    yields.iter().for_each(|path| yields::set(&mut hashed, path, None));
    let hash = fingerprint(&hashed);
    if let Some(below) = context.below {
        yields.iter().for_each(|path| yields::set(copy, path, yields::get(below, path)));
    }
    set_replicas(copy, context.scaled_to);
    write(copy, identity);
    object::set_annotation(copy, annotations::DOWN_APPLIED, Some(hash));
}

#[cfg(test)]
mod tests;
