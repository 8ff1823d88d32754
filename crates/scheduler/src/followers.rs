//! Placing what goes where others go. The workloads of a namespace are read once for all followers that wait.

use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use portolan_placement::{
    Admitted, Demand, DividedTarget, Health, Moves, Overriding, PinOn, References, Role, Step, follow, is_legal,
    shares_of, with_shares_and_overrides,
};
use portolan_store::{RangeRequest, RangeScope, StoreError, StoredObject};
use portolan_types::{
    GroupKind, GroupResource, LabelSelector, LogicalClusterId, NamespaceName, ObjectKey, Uid,
    placement::{Phase, PlacedOverride, PlacementRecord},
};
use serde_json::Value;

use crate::{
    commit::Change,
    gather::{Gathered, placement_key},
    kinds,
    queue::Pending,
    rescan::placed_from_here,
    scheduler::{Inner, SchedulerError},
};

/// Followers of one namespace that are written at once.
const AT_ONCE: usize = 16;

/// Which objects are read.
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
type Places = BTreeMap<Uid, String>;

/// Physical clusters where a follower is needed, and its parts of what is divided.
struct Wanted {
    needed: Places,
    shares: Vec<PlacedOverride>,
}

/// Physical clusters of a namespace, and what is named on each.
#[derive(Default)]
struct Inhabited {
    /// Where it has a workload that should be there.
    active: Places,
    /// Where it has a workload, leaving ones included.
    anywhere: BTreeSet<Uid>,
    /// Where each (kind, name) is named.
    named: BTreeMap<(String, String), Places>,
    /// Where a leaving copy names it: it stays there, and does not come for it.
    lingering: BTreeMap<(String, String), BTreeSet<Uid>>,
    /// Where a claim is that is filled from the claim of this name.
    sources: BTreeMap<String, Places>,
    /// Workloads whose copies share the replicas.
    divided: Vec<DividedTarget>,
    /// Something that may need followers cannot be read, or runs from an earlier template: none goes from where it is.
    is_partial: bool,
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
    fn suits(&self, record: &PlacementRecord, needed: &Places, stays_at: &BTreeSet<Uid>) -> bool {
        let stays = |uid: &Uid| needed.contains_key(uid) || stays_at.contains(uid);
        let active = |uid: &Uid| record.active().any(|c| c.uid == *uid);
        needed.keys().all(active) && record.active().all(|c| stays(&c.uid))
    }

    /// Where a follower of this kind and name is needed.
    fn needs(&self, role: Role, kind: &str, name: &str, record: &PlacementRecord) -> Places {
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

    /// Where a follower stays although nothing that is to stay needs it: content only where a leaving copy names it.
    fn stays_at(&self, role: Role, kind: &str, name: &str) -> BTreeSet<Uid> {
        match role {
            Role::Content => self.lingering.get(&(kind.to_owned(), name.to_owned())).cloned().unwrap_or_default(),
            _ => self.anywhere.clone(),
        }
    }
}

impl Inner {
    /// Looks at the followers of a namespace that wait.
    pub(crate) async fn place_followers(
        &self,
        cluster: LogicalClusterId,
        namespace: &NamespaceName,
    ) -> Result<(), SchedulerError> {
        let pending = self.queue.take_followers(cluster, namespace);
        let done = self.try_followers(cluster, namespace, &pending).await;
        if done.is_err() {
            self.queue.put_back(cluster, namespace, pending);
        }
        done
    }

    async fn try_followers(
        &self,
        cluster: LogicalClusterId,
        namespace: &NamespaceName,
        pending: &Pending,
    ) -> Result<(), SchedulerError> {
        let followers = self.followers(cluster, namespace, pending).await?;
        if followers.is_empty() {
            return Ok(());
        }
        let inhabited = self.inhabited(cluster, namespace).await?;
        let place = |stored: StoredObject| {
            let in_passing = pending.all && !pending.keys.contains(&stored.key);
            self.place_follower(stored, &inhabited, in_passing)
        };
        stream::iter(followers).map(place).buffer_unordered(AT_ONCE).try_collect::<()>().await
    }

    /// Reads the workloads of a namespace that are placed, and what is named by them and by what they name.
    async fn inhabited(
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
        let uid = portolan_types::object::meta_text(object, "uid");
        let admitted = Admitted::of(placement.as_ref().map(|(placement, _)| placement), uid).generation;
        Ok(admitted.is_some_and(|admitted| admitted < portolan_types::object::generation(object)))
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

    /// What is not made below, as far as it can be read, and whether that is all.
    async fn range(&self, scope: RangeScope) -> Result<(Vec<StoredObject>, bool), StoreError> {
        let request = RangeRequest { labels: placed_from_here(), ..RangeRequest::all(scope).past_damage() };
        let page = self.objects.store().range(request).await?;
        Ok((page.objects, page.damaged.is_empty()))
    }

    async fn followers(
        &self,
        cluster: LogicalClusterId,
        namespace: &NamespaceName,
        pending: &Pending,
    ) -> Result<Vec<StoredObject>, StoreError> {
        let mut found = Vec::new();
        if pending.all {
            for resource in kinds::followers() {
                found.extend(self.range(RangeScope::Namespace(cluster, resource, namespace.clone())).await?.0);
            }
            return Ok(found);
        }
        for key in &pending.keys {
            match self.objects.store().get(key).await {
                Ok(follower) => found.extend(follower),
                // It stays where it is, and keeps no other from going where it is needed.
                Err(StoreError::Damaged { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// When `in_passing`, what is where it should be is not looked at further.
    async fn place_follower(
        &self,
        stored: StoredObject,
        inhabited: &Inhabited,
        in_passing: bool,
    ) -> Result<(), SchedulerError> {
        let key = &stored.key;
        let Some(builtin) = kinds::placeable(&key.resource) else { return Ok(()) };
        let unplaced = stored.record.header.placed_on.is_empty();
        let reach = self.reach(key.cluster);
        let selected = self.facts().is_kind_selected(&reach, builtin.group, builtin.kind);
        let is_stale = unplaced && !in_passing && self.shows_copies(key).await?;
        if unplaced && !selected && inhabited.anywhere.is_empty() && !is_stale {
            return Ok(());
        }
        let object = stored.to_value()?;
        let role = portolan_placement::role_of(builtin.group, builtin.kind, &object);
        if !role.follows() {
            return Ok(());
        }
        if portolan_types::object::is_deleting(&object) {
            return self.place_object(key).await;
        }
        let record = PlacementRecord::of(&object).unwrap_or_default();
        let mut needed = inhabited.needs(role, builtin.kind, &key.name, &record);
        let stays_at = inhabited.stays_at(role, builtin.kind, &key.name);
        if inhabited.is_partial {
            needed.extend(record.active().map(|copy| (copy.uid.clone(), copy.name.clone())));
        }
        let suits = in_passing && inhabited.suits(&record, &needed, &stays_at);
        let kind = GroupKind { group: builtin.group.into(), kind: builtin.kind.into() };
        let shares = shares_of(&kind, &object, &inhabited.divided);
        let as_written = shares.is_empty() && record.overrides.is_empty() && record.yields.is_empty();
        if !selected && as_written && !is_stale && (suits || (unplaced && needed.is_empty())) {
            return Ok(());
        }
        let Some(gathered) = self.gather(key, object, stored.revision).await? else { return Ok(()) };
        self.step_follower(gathered, stays_at, Wanted { needed, shares }).await
    }

    /// Returns true when the `Placement` of an object shows copies.
    async fn shows_copies(&self, of: &ObjectKey) -> Result<bool, StoreError> {
        let placement = self.objects.get_value(&placement_key(of)).await?;
        let copies = placement.as_ref().and_then(|(placement, _)| placement.pointer("/status/clusters"));
        Ok(copies.and_then(Value::as_array).is_some_and(|copies| !copies.is_empty()))
    }

    async fn step_follower(
        &self,
        gathered: Gathered,
        inhabited: BTreeSet<Uid>,
        Wanted { mut needed, shares }: Wanted,
    ) -> Result<(), SchedulerError> {
        let role = gathered.workload.role;
        let (wanted, deleting) = self.wanted_by_policy(&gathered);
        let pinned = role == Role::Claim && gathered.workload.pin.as_ref().is_some_and(|pin| pin.on == PinOn::Object);
        match (wanted, pinned) {
            (Some(wanted), true) => needed = wanted,
            (Some(wanted), false) => needed.extend(wanted),
            (None, _) => {}
        }
        let demand = Demand { needed, inhabited, deleting, pinned };
        let empty = (BTreeMap::new(), BTreeSet::new());
        let epoch = gathered.revision.get();
        let health = Health { ready: &empty.0, up: &empty.1, drained: &empty.1, gone: &gathered.gone, epoch };
        let step = follow(role, &gathered.record, &demand, &health);
        let step = {
            let mut facts = self.facts();
            let policies = facts.policies(&gathered.reach, &gathered.namespace);
            let clusters = facts.clusters(&gathered.reach, &*self.rights, &step.record);
            let by = Overriding { workload: &gathered.workload, policies: &policies, clusters: &clusters };
            let step = with_shares_and_overrides(step, &shares, &by);
            if facts.note_overruns(&gathered, &policies, &step.record) {
                self.matched_changed.notify_one();
            }
            step
        };
        self.write_follower(&gathered, &step).await
    }

    async fn write_follower(&self, gathered: &Gathered, step: &Step) -> Result<(), SchedulerError> {
        let exists = gathered.record.clusters.iter().filter(|c| !gathered.gone.contains(&c.uid)).cloned().collect();
        let previous = PlacementRecord { clusters: exists, ..gathered.record.clone() };
        is_legal(&previous, &step.record)
            .map_err(|step| SchedulerError::Illegal { key: Box::new(gathered.key.clone()), step })?;
        if step.record.clusters.is_empty() && gathered.placement.is_none() {
            return Ok(());
        }
        let change = Change {
            key: &gathered.key,
            object: &gathered.object,
            revision: gathered.revision,
            previous: &gathered.record,
            step,
            decision: None,
            placement: gathered.placement.as_ref(),
            admitted: &Admitted::default(),
            status: None,
        };
        self.write(&change, None).await
    }

    /// Where a policy or a pin wants a follower besides, and which physical clusters are being deleted.
    fn wanted_by_policy(&self, gathered: &Gathered) -> (Option<Places>, BTreeSet<Uid>) {
        let mut workload = gathered.workload.clone();
        workload.moves = Moves::Surge;
        workload.pin = workload.pin.filter(|pin| pin.on == PinOn::Object);
        let facts = self.facts();
        let policies = facts.policies(&gathered.reach, &gathered.namespace);
        let clusters = facts.clusters(&gathered.reach, &*self.rights, &gathered.record);
        let deleting = clusters.iter().filter(|c| c.info.deleting).map(|c| c.info.uid.clone()).collect();
        let selected = policies.iter().any(|p| !p.policy.is_constraint() && p.policy.is_about(&workload));
        if !selected && workload.pin.is_none() {
            return (None, deleting);
        }
        let question = portolan_placement::Question {
            workload: &workload,
            policies: &policies,
            clusters: &clusters,
            previous: &gathered.record,
            home: &gathered.home.uids,
            existing: &BTreeMap::new(),
            now: self.now(),
        };
        let decision = portolan_placement::place(&question);
        (Some(decision.chosen.into_iter().map(|c| (c.uid, c.name)).collect()), deleting)
    }
}
