//! Transformation of an upstream object into its copy. Pure.

mod compat;
mod credentials;
mod fields;
mod jobs;
mod lists;
mod metadata;
mod namespaces;
mod ordinals;
mod overrides;
pub(crate) mod pod_view;
mod pods;
mod volatile;
mod yields;

use portolan_types::{
    Uid, annotations, fingerprint, object,
    placement::{CopyIdentity, PlacedCopy, PlacementRecord},
    upstream::UpstreamObject,
};
use serde_json::{Map, Value};

pub use compat::MissingFields;
pub(crate) use compat::may_lack_fields;
pub use credentials::AcceptedAudiences;
pub(crate) use fields::covers;
pub(crate) use lists::list_replacement;
pub(crate) use metadata::{GENERATED_JOB_LABELS, is_left_out, is_ours as is_our_key};
pub(crate) use namespaces::restore_selectors;
pub(crate) use ordinals::{ORDINALS, shares_ordinals, with_ordinals};
pub use pod_view::{ApiAddress, LogicalView};
pub use pods::check_ephemeral;
pub(crate) use pods::is_token_volume;
pub(crate) use volatile::without_volatile;

use crate::{client::weight, namespace_naming::NamespaceNaming, rules::SyncRefusal};

/// Maximum size of a copy, in bytes of memory of its tree: 16 MiB. The API server of the physical cluster adds fields,
/// and the result must fit into one answer.
const MAX_COPY_WEIGHT: usize = 16 * 1024 * 1024;

/// Context of a copy other than its upstream object.
#[derive(Clone, Copy, Debug)]
pub struct CopyContext<'a> {
    /// Uid of the `PhysicalCluster`.
    pub physical: &'a Uid,
    /// Namespace downstream; `None` at cluster scope.
    pub namespace: Option<&'a str>,
    /// Entry of this physical cluster on the object's record.
    pub entry: &'a PlacedCopy,
    /// Epoch of this syncer.
    pub syncer_epoch: u64,
    /// `spec.replicas` downstream, when an autoscaler there owns it.
    pub scaled_to: Option<i64>,
    /// Fields that the API of the physical cluster does not have.
    pub lacking: &'a MissingFields,
    /// Audiences of tokens that are credentials for the physical cluster's API server.
    pub audiences: &'a AcceptedAudiences,
    /// Names and labels of namespaces on the physical cluster.
    pub naming: &'a NamespaceNaming,
    /// Live copy, whose values of yielded fields stay.
    pub downstream: Option<&'a Value>,
    /// View that the pods get; `None` for that of the physical cluster.
    pub pods: Option<&'a LogicalView>,
}

/// Returns the copy of `upstream`, without uid and resourceVersion. Its annotation `sync.portolan.dev/applied` is a
/// hash of the rest, without the syncer's epoch and yielded replicas.
///
/// # Errors
/// A [`SyncRefusal`] if the object uses features that a logical cluster must not have: host access, privileges, control
/// plane nodes, addresses of others.
pub fn copy_of(upstream: &UpstreamObject, context: &CopyContext<'_>) -> Result<Value, SyncRefusal> {
    let mut copy = Map::new();
    for (key, value) in upstream.object.as_object().into_iter().flatten() {
        if !matches!(key.as_str(), "apiVersion" | "kind" | "metadata" | "status") {
            copy.insert(key.clone(), value.clone());
        }
    }
    let mut copy = Value::Object(copy);
    if let Some(first) = context.lacking.meant.first() {
        return Err(SyncRefusal::incompatible(format!("the API of the physical cluster has no field {first}")));
    }
    context.lacking.defaults.iter().for_each(|pointer| compat::remove(&mut copy, pointer));
    let identity = identity_of(upstream, context);
    copy["metadata"] = metadata::copy_of(upstream, context.namespace, &identity);
    let record = PlacementRecord::of(&upstream.object).unwrap_or_default();
    // Runs before all checks and removals, so that a policy cannot bypass them.
    overrides::apply(&record.overrides, context.physical, &upstream.kind, &mut copy)?;
    pods::check(&upstream.kind, &copy)?;
    fields::check(&upstream.kind, &copy)?;
    fields::strip(&upstream.kind, &mut copy);
    namespaces::translate(&upstream.kind, context.naming, upstream.key.cluster, &mut copy)?;
    let limit = record.limits.get(context.physical).copied();
    let limited = || Some(upstream.wanted_in(&copy)?.min(limit?));
    if let Some(replicas) = context.entry.replicas.or_else(limited) {
        upstream.set_wanted_in(&mut copy, replicas);
    }
    let shared = ordinals::share(&record, context, upstream);
    if let Some(shared) = &shared {
        shared.apply(&mut copy);
    }
    let part = jobs::share(&record, context, upstream);
    if let Some(part) = &part {
        part.apply(&mut copy);
    }
    let template = pods::template_of(&upstream.kind, &upstream.object).map(fingerprint);
    pods::prepare(&upstream.kind, &mut copy, &upstream.key.cluster.to_string());
    credentials::check(&upstream.kind, &copy, context.audiences)?;
    if let Some(view) = context.pods {
        pod_view::apply(&upstream.kind, &mut copy, view);
    }
    copy["apiVersion"] = Value::String(upstream.kind.group_version().to_string());
    copy["kind"] = Value::String(upstream.kind.kind.to_string());
    if let Some(template) = template {
        object::set_annotation(&mut copy, annotations::DOWN_TEMPLATE, Some(template));
    }
    let (mut yields, mut context) = (record.yields, *context);
    if shared.is_some() {
        // The physical cluster would run ordinals of others.
        yields.retain(|path| !ordinals::is_owned(path));
        context.scaled_to = None;
    }
    if part.is_some() {
        yields.retain(|path| !jobs::is_owned(path));
        context.scaled_to = None;
    }
    seal(&mut copy, &CopySeal { upstream, identity: &identity, yields: &yields, context: &context });
    check_weight(&copy)?;
    Ok(copy)
}

/// Returns an upstream object as intended for a physical cluster: with the overrides of policies, and without the
/// fields that these yield to the physical cluster.
///
/// # Errors
/// A [`SyncRefusal`] if an override cannot be applied.
pub(crate) fn intended_for(physical: &Uid, upstream: &UpstreamObject) -> Result<Value, SyncRefusal> {
    let record = PlacementRecord::of(&upstream.object).unwrap_or_default();
    let mut object = upstream.object.clone();
    overrides::apply(&record.overrides, physical, &upstream.kind, &mut object)?;
    record.yields.iter().for_each(|path| yields::set(&mut object, path, None));
    Ok(object)
}

/// Refuses a copy that would not fit into one answer of the physical cluster together with the fields that are added
/// there.
fn check_weight(copy: &Value) -> Result<(), SyncRefusal> {
    let weight = weight::of(copy);
    if weight > MAX_COPY_WEIGHT {
        Err(SyncRefusal::too_large(format!(
            "the object takes {weight} bytes of memory, and a copy may take {MAX_COPY_WEIGHT}: it has too many fields and items"
        )))
    } else {
        Ok(())
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

/// Returns true for an upstream object whose copies stay when it is deleted.
pub(crate) fn is_kept(upstream: &Value) -> bool {
    object::annotation(upstream, annotations::KEEP) == Some("true")
}

/// Parts of the identity and the hash of a copy.
struct CopySeal<'a> {
    upstream: &'a UpstreamObject,
    identity: &'a CopyIdentity,
    yields: &'a [String],
    context: &'a CopyContext<'a>,
}

/// Adds the identity and the hash of the copy. Syncer epoch and yielded fields do not count in the hash.
fn seal(copy: &mut Value, CopySeal { upstream, identity, yields, context }: &CopySeal<'_>) {
    let write = |copy: &mut Value, identity: &CopyIdentity| {
        let text = serde_json::to_string(identity).expect("strings and numbers serialize");
        object::set_annotation(copy, annotations::DOWN_IDENTITY, Some(text));
    };
    write(copy, &CopyIdentity { syncer_epoch: 0, ..(*identity).clone() });
    if is_kept(&upstream.object) {
        object::set_annotation(copy, annotations::DOWN_KEEP, Some("true".to_owned()));
    }
    if context.scaled_to.is_some() {
        upstream.set_wanted_in(copy, -1);
    }
    let mut hashed = copy.clone();
    yields.iter().for_each(|path| yields::set(&mut hashed, path, None));
    let hash = fingerprint(&hashed);
    if let Some(downstream) = context.downstream {
        yields.iter().for_each(|path| yields::set(copy, path, yields::get(downstream, path)));
    }
    if let Some(replicas) = context.scaled_to {
        upstream.set_wanted_in(copy, replicas);
    }
    write(copy, identity);
    object::set_annotation(copy, annotations::DOWN_APPLIED, Some(hash));
}

#[cfg(test)]
mod tests;
