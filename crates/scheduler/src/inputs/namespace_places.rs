//! Physical clusters of a namespace, and the objects that are named on each, read from the store for its followers.

use std::collections::{BTreeMap, BTreeSet};

use portolan_placement::{AdmissionRecord, DividedTarget, References, Role};
use portolan_store::{RangeRequest, RangeScope, StoreError, StoredObject};
use portolan_types::{
    GroupResource, LabelSelector, LogicalClusterId, NamespaceName, ObjectKey, Uid, object,
    placement::{CopyPhase, PlacedOverride, PlacementRecord},
};
use serde_json::{Value, json};

use crate::{
    context::SchedulerContext,
    inputs::move_gates::{PodLabels, backends_of, pod_labels, selects},
    inputs::placement_key,
    kinds,
    observe::kind_of,
    queue::rescan::{custom_resources_of, placed_from_here},
    scheduler::SchedulerError,
};

/// Filter of the objects that are read, by their origin.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OriginFilter {
    /// Placed objects that users made.
    Upstream,
    /// Placed objects, and those that physical clusters show.
    Downstream,
    /// Also objects without a place.
    Anywhere,
}

/// Physical clusters by uid.
pub(crate) type NamedClusters = BTreeMap<Uid, String>;

/// Physical clusters where a follower is needed, with its parts of divided objects.
pub(crate) struct FollowerNeeds {
    pub(crate) needed: NamedClusters,
    pub(crate) shares: Vec<PlacedOverride>,
    /// Physical clusters on which the pods behind it serve; `None` if nothing is known to be behind it.
    pub(crate) served: Option<BTreeSet<Uid>>,
}

/// Workload as Services see it.
struct ServedWorkload {
    labels: PodLabels,
    /// Physical clusters of its copies that neither arrive nor are about to leave, and have ready pods if any of them
    /// has.
    serving: BTreeSet<Uid>,
}

/// Object that follows others, as far as its physical clusters depend on it.
#[derive(Clone, Copy)]
pub(crate) struct FollowerRef<'a> {
    pub(crate) role: Role,
    pub(crate) kind: &'a str,
    pub(crate) name: &'a str,
    pub(crate) object: &'a Value,
    pub(crate) record: &'a PlacementRecord,
}

/// Physical clusters of a workload that an autoscaler may scale.
#[derive(Default)]
struct TargetPlaces {
    /// Physical clusters with an active copy.
    active: NamedClusters,
    /// Physical clusters with any copy, leaving ones included.
    anywhere: BTreeSet<Uid>,
}

/// Physical clusters of a namespace, with the objects that workloads there refer to.
#[derive(Default)]
pub(crate) struct NamespacePlaces {
    /// Workloads by group, kind and name.
    targets: BTreeMap<(String, String, String), TargetPlaces>,
    /// Physical clusters with a workload that should be there.
    active: NamedClusters,
    /// Physical clusters with a workload, leaving ones included.
    pub(crate) anywhere: BTreeSet<Uid>,
    /// Physical clusters on which each (kind, name) is named.
    named: BTreeMap<(String, String), NamedClusters>,
    /// Physical clusters on which a leaving copy names the object. It stays there, and does not arrive for it.
    lingering: BTreeMap<(String, String), BTreeSet<Uid>>,
    /// Physical clusters of a claim that is filled from the claim of this name.
    sources: BTreeMap<String, NamedClusters>,
    /// Workloads behind Services.
    served: Vec<ServedWorkload>,
    /// Services by name.
    services: BTreeMap<String, Value>,
    /// Workloads whose copies share the replicas.
    pub(crate) divided: Vec<DividedTarget>,
    /// True if an object that may need followers cannot be read, or runs from an earlier template. No follower leaves
    /// then.
    pub(crate) is_partial: bool,
}

impl NamespacePlaces {
    fn name(&mut self, references: &References, places: &NamedClusters) {
        for (kind, name) in references.all() {
            self.named.entry((kind.to_owned(), name.to_owned())).or_default().extend(places.clone());
        }
        for name in references.sources() {
            self.sources.entry(name.to_owned()).or_default().extend(places.clone());
        }
    }

    /// Adds a workload, or a template that a physical cluster keeps: pods of it may run as long as it exists.
    fn add_workload(&mut self, object: &Value, references: &References, ready: &BTreeSet<Uid>) {
        let record = PlacementRecord::of(object).unwrap_or_default();
        if record.is_projected() {
            let places = record.clusters.iter().map(|copy| (copy.uid.clone(), copy.name.clone())).collect();
            return self.name(references, &places);
        }
        self.divided.extend(DividedTarget::of(object));
        self.add_served(object, &record, ready);
        self.anywhere.extend(record.clusters.iter().map(|copy| copy.uid.clone()));
        let leaving = record.clusters.iter().filter(|copy| copy.phase == CopyPhase::Leaving);
        for (uid, (kind, name)) in leaving.flat_map(|copy| references.all().map(|named| (copy.uid.clone(), named))) {
            self.lingering.entry((kind.to_owned(), name.to_owned())).or_default().insert(uid);
        }
        let places: NamedClusters = record.active().map(|c| (c.uid.clone(), c.name.clone())).collect();
        self.name(references, &places);
        if let Some(kind) = kind_of(object) {
            let key = (kind.group.to_string(), kind.kind.to_string(), object::name(object).to_owned());
            let anywhere = record.clusters.iter().map(|copy| copy.uid.clone()).collect();
            let own = TargetPlaces { active: places.clone(), anywhere };
            // An autoscaler that scales upstream has no copies.
            self.targets.insert(key, if record.scales_globally { TargetPlaces::default() } else { own });
        }
        self.active.extend(places);
    }

    fn add_served(&mut self, object: &Value, record: &PlacementRecord, ready: &BTreeSet<Uid>) {
        let serves = |uid: &&Uid| !record.retiring.contains_key(*uid) && !record.arriving.contains(*uid);
        let serving: BTreeSet<Uid> = record.active().map(|copy| &copy.uid).filter(serves).cloned().collect();
        // If no copy has a ready pod, the addresses of all stay.
        let serving = if serving.is_disjoint(ready) { serving } else { &serving & ready };
        self.served.push(ServedWorkload { labels: pod_labels(object), serving });
    }

    /// Returns the physical clusters on which pods behind a Service or Ingress serve; `None` for other objects, and if
    /// nothing is known to be behind it.
    pub(crate) fn served(&self, follower: FollowerRef<'_>) -> Option<BTreeSet<Uid>> {
        let services: Vec<&Value> = match follower.kind {
            "Service" => vec![follower.object],
            "Ingress" => backends_of(follower.object).iter().filter_map(|name| self.services.get(name)).collect(),
            _ => return None,
        };
        let is_behind = |workload: &&ServedWorkload| services.iter().any(|service| selects(service, &workload.labels));
        let behind: Vec<_> = self.served.iter().filter(is_behind).collect();
        let serving = || behind.iter().flat_map(|workload| workload.serving.iter().cloned()).collect();
        (!behind.is_empty() && !self.is_partial).then(serving)
    }

    /// Returns the physical clusters of the workload that an autoscaler scales; `None` while it is not placed.
    fn target_of(&self, autoscaler: &Value) -> Option<&TargetPlaces> {
        let reference = &autoscaler["spec"]["scaleTargetRef"];
        let text = |field: &str| reference[field].as_str();
        let group = text("apiVersion")?.split_once('/').map_or("", |(group, _)| group);
        self.targets.get(&(group.to_owned(), text("kind")?.to_owned(), text("name")?.to_owned()))
    }

    /// Returns true if a follower is everywhere that it is needed, and nowhere else except where it must stay.
    pub(crate) fn suits(&self, record: &PlacementRecord, needed: &NamedClusters, stays_at: &BTreeSet<Uid>) -> bool {
        let stays = |uid: &Uid| needed.contains_key(uid) || stays_at.contains(uid);
        let active = |uid: &Uid| record.active().any(|c| c.uid == *uid);
        needed.keys().all(active) && record.active().all(|c| stays(&c.uid))
    }

    /// Returns the physical clusters on which a follower is needed.
    pub(crate) fn needs(&self, follower: FollowerRef<'_>) -> NamedClusters {
        let FollowerRef { role, kind, name, object, record } = follower;
        match role {
            Role::Network => return self.active.clone(),
            Role::Autoscaler => return self.target_of(object).map(|target| target.active.clone()).unwrap_or_default(),
            _ => {}
        }
        let mut needed = self.named.get(&(kind.to_owned(), name.to_owned())).cloned().unwrap_or_default();
        // On another physical cluster than that of its source, a claim would be empty.
        if role == Role::Claim && record.clusters.is_empty() {
            needed.extend(self.sources.get(name).cloned().unwrap_or_default());
        }
        needed
    }

    /// Returns the physical clusters on which a follower stays although nothing needs it: content only where a leaving
    /// copy names it, an autoscaler only where a leaving copy of its target is.
    pub(crate) fn stays_at(&self, follower: FollowerRef<'_>) -> BTreeSet<Uid> {
        let FollowerRef { role, kind, name, object, .. } = follower;
        match role {
            Role::Content => self.lingering.get(&(kind.to_owned(), name.to_owned())).cloned().unwrap_or_default(),
            Role::Autoscaler => self.target_of(object).map(|target| target.anywhere.clone()).unwrap_or_default(),
            _ => self.anywhere.clone(),
        }
    }
}

/// Reads the placed workloads of a namespace, and the objects that they name.
pub(crate) async fn read_namespace_places(
    ctx: &SchedulerContext,
    cluster: LogicalClusterId,
    namespace: &NamespaceName,
) -> Result<NamespacePlaces, SchedulerError> {
    let mut inhabited = NamespacePlaces::default();
    let custom = custom_resources_of(ctx, cluster);
    let workloads = kinds::PLACEABLE.iter().filter(|p| !p.follows).map(kinds::Placeable::resource).chain(custom);
    let of = |resource| RangeScope::Namespace(cluster, resource, namespace.clone());
    let mut has_controllers_without_history = false;
    for resource in workloads.chain([kinds::revisions()]) {
        let keeps_no_history = kinds::keeps_no_history(&resource);
        let made = if resource == kinds::jobs() { OriginFilter::Downstream } else { OriginFilter::Upstream };
        for stored in read_placed(ctx, &mut inhabited, of(resource), made).await? {
            let object = stored.to_value()?;
            let ready = ready_places(ctx, &stored.key, &object).await?;
            inhabited.add_workload(&object, &ctx.references_of(&stored.key, &object), &ready);
            if keeps_no_history {
                has_controllers_without_history = true;
                inhabited.is_partial |= runs_an_earlier_template(ctx, &stored.key, &object).await?;
            }
        }
    }
    if has_controllers_without_history {
        for stored in read_placed(ctx, &mut inhabited, of(kinds::pods()), OriginFilter::Downstream).await? {
            let object = stored.to_value()?;
            inhabited.add_workload(&object, &References::of(&object), &BTreeSet::new());
        }
    }
    if !inhabited.anywhere.is_empty() {
        for stored in read_placed(ctx, &mut inhabited, of(kinds::services()), OriginFilter::Anywhere).await? {
            let mut service = stored.to_value()?;
            let selector = service.pointer_mut("/spec/selector").map(Value::take).unwrap_or_default();
            inhabited.services.insert(stored.key.name.to_string(), json!({"spec": {"selector": selector}}));
        }
    }
    if !inhabited.anywhere.is_empty() || inhabited.is_partial {
        add_references_of_followers(ctx, &mut inhabited, &of).await?;
    }
    Ok(inhabited)
}

/// Reads the physical clusters on which a workload has ready pods. Of one with a single copy nothing is read: its
/// addresses stay.
async fn ready_places(ctx: &SchedulerContext, key: &ObjectKey, object: &Value) -> Result<BTreeSet<Uid>, StoreError> {
    if PlacementRecord::of(object).unwrap_or_default().active().count() < 2 {
        return Ok(BTreeSet::new());
    }
    let placement = ctx.objects.get_value(&placement_key(key)).await?;
    Ok(placement.map(|(placement, _)| with_ready_pods(&placement)).unwrap_or_default())
}

/// Returns the physical clusters on which a `Placement` shows ready pods.
pub(crate) fn with_ready_pods(placement: &Value) -> BTreeSet<Uid> {
    let copies = placement.pointer("/status/clusters").and_then(Value::as_array).into_iter().flatten();
    let ready = copies.filter(|copy| copy["ready"].as_i64().unwrap_or(0) > 0);
    ready.filter_map(|copy| copy["uid"].as_str()?.parse().ok()).collect()
}

/// Adds the references of followers: pull secrets of accounts, certificates of Ingresses and source claims go where
/// their account, Ingress or claim goes.
async fn add_references_of_followers(
    ctx: &SchedulerContext,
    inhabited: &mut NamespacePlaces,
    of: &(dyn Fn(GroupResource) -> RangeScope + Send + Sync),
) -> Result<(), SchedulerError> {
    for referrer in kinds::referrers() {
        let mut waiting = Vec::new();
        for stored in read_placed(ctx, inhabited, of(referrer.resource()), OriginFilter::Anywhere).await? {
            let object = stored.to_value()?;
            let record = PlacementRecord::of(&object).unwrap_or_default();
            waiting.push((stored.key.name.to_string(), record, References::of(&object)));
        }
        // A source claim may have a source itself.
        loop {
            let before = waiting.len();
            let role = portolan_placement::role_of(referrer.group, referrer.kind, &Value::Null);
            waiting.retain(|(name, record, references)| {
                let object = &Value::Null;
                let mut places = inhabited.needs(FollowerRef { role, kind: referrer.kind, name, object, record });
                if role == Role::Claim {
                    places.extend(record.active().map(|copy| (copy.uid.clone(), copy.name.clone())));
                }
                inhabited.name(references, &places);
                places.is_empty()
            });
            if waiting.is_empty() || waiting.len() == before {
                break;
            }
        }
    }
    Ok(())
}

/// Returns true while the present generation of an object is not admitted: downstream it makes pods of an earlier
/// template.
async fn runs_an_earlier_template(
    ctx: &SchedulerContext,
    key: &ObjectKey,
    object: &Value,
) -> Result<bool, SchedulerError> {
    let placement = ctx.objects.get_value(&placement_key(key)).await?;
    let uid = object::meta_text(object, "uid");
    let admitted = AdmissionRecord::of(placement.as_ref().map(|(placement, _)| placement), uid).generation;
    Ok(admitted.is_some_and(|admitted| admitted < object::generation(object)))
}

/// Reads placed objects, and notes if some cannot be read.
async fn read_placed(
    ctx: &SchedulerContext,
    inhabited: &mut NamespacePlaces,
    scope: RangeScope,
    made: OriginFilter,
) -> Result<Vec<StoredObject>, StoreError> {
    let labels = if made == OriginFilter::Upstream { placed_from_here() } else { LabelSelector::everything() };
    let page = ctx.objects.store().range(RangeRequest { labels, ..RangeRequest::all(scope).skip_damaged() }).await?;
    inhabited.is_partial |= !page.damaged.is_empty();
    let placed = |stored: &StoredObject| made == OriginFilter::Anywhere || !stored.record.header.placed_on.is_empty();
    Ok(page.objects.into_iter().filter(placed).collect())
}
