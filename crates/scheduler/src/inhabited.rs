//! Physical clusters that a namespace is on, and what is named on each, read from the store for its followers.

use std::collections::{BTreeMap, BTreeSet};

use portolan_placement::{Admitted, DividedTarget, References, Role};
use portolan_store::{RangeRequest, RangeScope, StoreError, StoredObject};
use portolan_types::{
    GroupResource, LabelSelector, LogicalClusterId, NamespaceName, ObjectKey, Uid, object,
    placement::{Phase, PlacedOverride, PlacementRecord},
};
use serde_json::Value;

use crate::{
    gather::placement_key,
    kinds,
    rescan::placed_from_here,
    scheduler::{Inner, SchedulerError},
};

/// Selection of the objects that are read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Made {
    /// Placed ones that users made.
    Upstream,
    /// Placed ones, and those that physical clusters show.
    Downstream,
    /// Also those that have no place.
    Anywhere,
}

/// Physical clusters by uid.
pub(crate) type Places = BTreeMap<Uid, String>;

/// Physical clusters where a follower is needed, and its parts of what is divided.
pub(crate) struct Wanted {
    pub(crate) needed: Places,
    pub(crate) shares: Vec<PlacedOverride>,
}

/// Physical clusters of a namespace, and what is named on each.
#[derive(Default)]
pub(crate) struct Inhabited {
    /// Physical clusters with a workload that should be there.
    active: Places,
    /// Physical clusters with a workload, leaving ones included.
    pub(crate) anywhere: BTreeSet<Uid>,
    /// Physical clusters on which each (kind, name) is named.
    named: BTreeMap<(String, String), Places>,
    /// Physical clusters on which a leaving copy names it: it stays there, and does not come for it.
    lingering: BTreeMap<(String, String), BTreeSet<Uid>>,
    /// Physical clusters of a claim that is filled from the claim of this name.
    sources: BTreeMap<String, Places>,
    /// Workloads whose copies share the replicas.
    pub(crate) divided: Vec<DividedTarget>,
    /// Something that may need followers cannot be read, or runs from an earlier template: none goes from where it is.
    pub(crate) is_partial: bool,
}

impl Inhabited {
    fn name(&mut self, references: &References, places: &Places) {
        for (kind, name) in references.all() {
            self.named.entry((kind.to_owned(), name.to_owned())).or_default().extend(places.clone());
        }
        for name in references.sources() {
            self.sources.entry(name.to_owned()).or_default().extend(places.clone());
        }
    }

    /// Adds a workload, or what a physical cluster keeps of its templates: as long as that is there, pods of it may be.
    fn add_workload(&mut self, object: &Value) {
        let record = PlacementRecord::of(object).unwrap_or_default();
        let references = References::of(object);
        if record.is_projected() {
            let places = record.clusters.iter().map(|copy| (copy.uid.clone(), copy.name.clone())).collect();
            return self.name(&references, &places);
        }
        self.divided.extend(DividedTarget::of(object));
        self.anywhere.extend(record.clusters.iter().map(|copy| copy.uid.clone()));
        let leaving = record.clusters.iter().filter(|copy| copy.phase == Phase::Leaving);
        for (uid, (kind, name)) in leaving.flat_map(|copy| references.all().map(|named| (copy.uid.clone(), named))) {
            self.lingering.entry((kind.to_owned(), name.to_owned())).or_default().insert(uid);
        }
        let places: Places = record.active().map(|c| (c.uid.clone(), c.name.clone())).collect();
        self.name(&references, &places);
        self.active.extend(places);
    }

    /// Returns true when a follower is where it is needed, and nowhere else but where it stays.
    pub(crate) fn suits(&self, record: &PlacementRecord, needed: &Places, stays_at: &BTreeSet<Uid>) -> bool {
        let stays = |uid: &Uid| needed.contains_key(uid) || stays_at.contains(uid);
        let active = |uid: &Uid| record.active().any(|c| c.uid == *uid);
        needed.keys().all(active) && record.active().all(|c| stays(&c.uid))
    }

    /// Returns the physical clusters on which a follower of this kind and name is needed.
    pub(crate) fn needs(&self, role: Role, kind: &str, name: &str, record: &PlacementRecord) -> Places {
        if role == Role::Network {
            return self.active.clone();
        }
        let mut needed = self.named.get(&(kind.to_owned(), name.to_owned())).cloned().unwrap_or_default();
        // Elsewhere than where its data are, a claim to be copied would be empty.
        if role == Role::Claim && record.clusters.is_empty() {
            needed.extend(self.sources.get(name).cloned().unwrap_or_default());
        }
        needed
    }

    /// Returns the physical clusters on which a follower stays although nothing needs it: content only where a leaving copy names it.
    pub(crate) fn stays_at(&self, role: Role, kind: &str, name: &str) -> BTreeSet<Uid> {
        match role {
            Role::Content => self.lingering.get(&(kind.to_owned(), name.to_owned())).cloned().unwrap_or_default(),
            _ => self.anywhere.clone(),
        }
    }
}

impl Inner {
    /// Reads the workloads of a namespace that are placed, and what is named by them and by what they name.
    pub(crate) async fn inhabited(
        &self,
        cluster: LogicalClusterId,
        namespace: &NamespaceName,
    ) -> Result<Inhabited, SchedulerError> {
        let mut inhabited = Inhabited::default();
        let custom: Vec<_> = self.custom().iter().cloned().collect();
        let workloads = kinds::PLACEABLE.iter().filter(|p| !p.follows).map(kinds::Placeable::resource).chain(custom);
        let of = |resource| RangeScope::Namespace(cluster, resource, namespace.clone());
        let mut has_controllers_without_history = false;
        for resource in workloads.chain([kinds::revisions()]) {
            let keeps_no_history = kinds::keeps_no_history(&resource);
            let made = if resource == kinds::jobs() { Made::Downstream } else { Made::Upstream };
            for stored in self.read_into(&mut inhabited, of(resource), made).await? {
                let object = stored.to_value()?;
                inhabited.add_workload(&object);
                if keeps_no_history {
                    has_controllers_without_history = true;
                    inhabited.is_partial |= self.runs_an_earlier_template(&stored.key, &object).await?;
                }
            }
        }
        if has_controllers_without_history {
            for stored in self.read_into(&mut inhabited, of(kinds::pods()), Made::Downstream).await? {
                inhabited.add_workload(&stored.to_value()?);
            }
        }
        if !inhabited.anywhere.is_empty() || inhabited.is_partial {
            self.name_further(&mut inhabited, &of).await?;
        }
        Ok(inhabited)
    }

    /// Adds what is named by followers: pull secrets of accounts, certificates of Ingresses and the claims that others are
    /// filled from go where their account, Ingress or claim goes.
    async fn name_further(
        &self,
        inhabited: &mut Inhabited,
        of: &(dyn Fn(GroupResource) -> RangeScope + Send + Sync),
    ) -> Result<(), SchedulerError> {
        for referrer in kinds::referrers() {
            let mut waiting = Vec::new();
            for stored in self.read_into(inhabited, of(referrer.resource()), Made::Anywhere).await? {
                let object = stored.to_value()?;
                let record = PlacementRecord::of(&object).unwrap_or_default();
                waiting.push((stored.key.name.to_string(), record, References::of(&object)));
            }
            // A claim may be filled from one that is filled from a third.
            loop {
                let before = waiting.len();
                let role = portolan_placement::role_of(referrer.group, referrer.kind, &Value::Null);
                waiting.retain(|(name, record, references)| {
                    let mut places = inhabited.needs(role, referrer.kind, name, record);
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

    /// Returns true while what an object says now is not let in: downstream it makes pods of a template of before, which
    /// nothing upstream shows.
    async fn runs_an_earlier_template(&self, key: &ObjectKey, object: &Value) -> Result<bool, SchedulerError> {
        let placement = self.objects.get_value(&placement_key(key)).await?;
        let uid = object::meta_text(object, "uid");
        let admitted = Admitted::of(placement.as_ref().map(|(placement, _)| placement), uid).generation;
        Ok(admitted.is_some_and(|admitted| admitted < object::generation(object)))
    }

    /// Reads objects that have a place, and notes when some cannot be read.
    async fn read_into(
        &self,
        inhabited: &mut Inhabited,
        scope: RangeScope,
        made: Made,
    ) -> Result<Vec<StoredObject>, StoreError> {
        let labels = if made == Made::Upstream { placed_from_here() } else { LabelSelector::everything() };
        let page =
            self.objects.store().range(RangeRequest { labels, ..RangeRequest::all(scope).past_damage() }).await?;
        inhabited.is_partial |= !page.damaged.is_empty();
        let placed = |stored: &StoredObject| made == Made::Anywhere || !stored.record.header.placed_on.is_empty();
        Ok(page.objects.into_iter().filter(placed).collect())
    }
}
