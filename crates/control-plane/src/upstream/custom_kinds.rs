//! Custom kinds that may go to a physical cluster, and definitions that go there: what the `ClusterPlacementPolicy`s
//! say of the workspace where it is registered. Users who may write policies there decide which kinds reach it; other
//! workspaces only choose among these.

use std::collections::BTreeSet;

use portolan_kinds::custom::{self, Definition};
use portolan_scheduler::allows_cluster;
use portolan_store::{RangeRequest, RangeScope};
use portolan_types::{
    GroupKind, GroupResource, LogicalClusterId, ObjectKey, Uid,
    placement::{DefinitionSync, GROUP, MAX_CUSTOM_KINDS, PlacementPolicySpec, ResourceSelector, is_governing_group},
    upstream::{CustomKindRules, SyncedDefinition, UpstreamError},
};
use serde_json::Value;

use super::{StoreUpstream, failed, store_failed};

/// Most definitions that go to one physical cluster.
const MAX_DEFINITIONS: usize = 64;

/// Kinds that policies name.
#[derive(Default)]
struct NamedKinds {
    allowed: BTreeSet<GroupKind>,
    /// Kinds whose definitions go along.
    defined: BTreeSet<GroupKind>,
}

/// Reads the rules for a physical cluster. An unreadable policy or definition, or an unregistered physical cluster, is
/// an error: if it looked like empty rules, the syncer would remove its definitions downstream.
pub(super) async fn read(upstream: &StoreUpstream, physical: &Uid) -> Result<CustomKindRules, UpstreamError> {
    let unknown = || failed(&format_args!("the physical cluster {physical} is not registered"));
    let home = upstream.registered(physical).ok_or_else(unknown)?;
    let (object, _) = upstream.read(&home).await?.ok_or_else(unknown)?;
    let named = named_kinds(upstream, home.cluster, &object).await?;
    let definitions =
        if named.defined.is_empty() { Vec::new() } else { definitions(upstream, home.cluster, &named.defined).await? };
    Ok(CustomKindRules { allowed: named.allowed.into_iter().take(MAX_CUSTOM_KINDS).collect(), definitions })
}

async fn named_kinds(
    upstream: &StoreUpstream,
    home: LogicalClusterId,
    physical: &Value,
) -> Result<NamedKinds, UpstreamError> {
    let scope = RangeScope::Cluster(home, GroupResource::new(GROUP, "clusterplacementpolicies"));
    let mut request = RangeRequest::slices(scope).skip_damaged();
    let mut named = NamedKinds::default();
    loop {
        let page = upstream.plane.store().range(request.clone()).await.map_err(store_failed)?;
        if let Some(damaged) = page.damaged.first() {
            return Err(failed(damaged));
        }
        for stored in &page.objects {
            let mut policy = stored.to_value().map_err(store_failed)?;
            // A policy that cannot be read says so in its status.
            if let Ok(spec) = serde_json::from_value::<PlacementPolicySpec>(policy["spec"].take()) {
                named.add(upstream, &spec, physical);
            }
        }
        match request.next(&page) {
            Some(next) => request = next,
            None => return Ok(named),
        }
    }
}

impl NamedKinds {
    fn add(&mut self, upstream: &StoreUpstream, spec: &PlacementPolicySpec, physical: &Value) {
        for selector in spec.resources.iter().filter(|selector| is_custom_group(&selector.api_group)) {
            let kinds: Vec<GroupKind> = kinds_of(selector).filter(|kind| !is_builtin(upstream, kind)).collect();
            let is_sent = selector.definition == DefinitionSync::Sync && allows_cluster(spec, physical);
            self.defined.extend(kinds.iter().filter(|kind| is_sent && *kind.kind != *"*").cloned());
            self.allowed.extend(kinds);
        }
    }
}

fn is_custom_group(group: &str) -> bool {
    group.contains('.') && !is_governing_group(group)
}

fn kinds_of(selector: &ResourceSelector) -> impl Iterator<Item = GroupKind> {
    let any = selector.kinds.is_empty().then_some("*");
    let kinds = selector.kinds.iter().map(String::as_str).chain(any);
    kinds.map(|kind| GroupKind { group: selector.api_group.as_str().into(), kind: kind.into() })
}

/// Returns true for a kind that Kubernetes has.
fn is_builtin(upstream: &StoreUpstream, kind: &GroupKind) -> bool {
    let is_it = |own: &GroupKind| own.group == kind.group && (own.kind == kind.kind || *kind.kind == *"*");
    upstream.plane.table().kinds().any(|own| is_it(&own.gvk.group_kind()))
}

/// Reads the definitions of kinds. One that is not there does not go along.
async fn definitions(
    upstream: &StoreUpstream,
    home: LogicalClusterId,
    wanted: &BTreeSet<GroupKind>,
) -> Result<Vec<SyncedDefinition>, UpstreamError> {
    let known = upstream.plane.kinds().definitions(home).await.map_err(|error| failed(&error))?;
    let is_wanted = |definition: &Definition| {
        let kind = GroupKind { group: definition.resource.group.clone(), kind: definition.accepted.kind.clone() };
        let is_served = definition.is_established && !definition.is_builtin && !definition.is_deleting;
        is_served && wanted.contains(&kind)
    };
    let mut found = Vec::new();
    for definition in known.iter().filter(|definition| is_wanted(definition)).take(MAX_DEFINITIONS) {
        let name = definition.name.parse().map_err(|error| failed(&error))?;
        let resource = GroupResource::new(custom::GROUP, custom::RESOURCE);
        let key = ObjectKey::cluster_scoped(home, resource, name);
        if let Some((object, _)) = upstream.read(&key).await? {
            found.push(SyncedDefinition { cluster: home, object });
        }
    }
    Ok(found)
}
