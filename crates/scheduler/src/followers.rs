//! Placing what goes where others go. The workloads of a namespace are read once for all followers that wait.

use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use portolan_placement::{
    Admitted, Demand, DividedTarget, Health, Moves, Overriding, PinOn, References, Role, Step, follow, is_legal,
    patches_over_budget, shares_of, with_shares_and_overrides,
};
use portolan_store::{RangeRequest, RangeScope, StoreError, StoredObject};
use portolan_types::{
    GroupKind, GroupResource, LabelSelector, LogicalClusterId, NamespaceName, ObjectKey, Uid,
    placement::{Phase, PlacedOverride, PlacementRecord},
};
use serde_json::Value;

use crate::{
    commit::Change,
    gather::Gathered,
    kinds,
    queue::Pending,
    rescan::placed_from_here,
    scheduler::{Inner, SchedulerError},
};

/// Followers of one namespace that are written at once.
const AT_ONCE: usize = 16;

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
        let lists = [
            ("ConfigMap", &references.config_maps),
            ("Secret", &references.secrets),
            ("ServiceAccount", &references.service_accounts),
            ("PersistentVolumeClaim", &references.claims),
        ];
        for (kind, names) in lists {
            for name in names {
                let known = self.named.entry((kind, name.clone())).or_default();
                known.extend(places.iter().map(|(uid, name)| (uid.clone(), name.clone())));
            }
        }
    }

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
        self.name(&References::of(object), &places);
        self.active.extend(places);
    }

    /// Whether a follower is where it is needed, and nowhere that has become empty.
    fn suits(&self, record: &PlacementRecord, needed: &Places) -> bool {
        let stays = |uid: &Uid| needed.contains_key(uid) || self.anywhere.contains(uid);
        let active = |uid: &Uid| record.active().any(|c| c.uid == *uid);
        needed.keys().all(active) && record.active().all(|c| stays(&c.uid))
    }

    /// Where a follower of this kind and name is needed.
    fn needs(&self, role: Role, kind: &str, name: &str) -> Places {
        match role {
            Role::Network => self.active.clone(),
            _ => {
                let named = self.named.iter().find(|((k, n), _)| *k == kind && n == name);
                named.map(|(_, places)| places.clone()).unwrap_or_default()
            }
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
        let place = |stored: StoredObject| self.place_follower(stored, &inhabited, pending.all);
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
        for resource in workloads {
            let (objects, is_whole) = self.range(RangeScope::Namespace(cluster, resource, namespace.clone())).await?;
            inhabited.is_partial |= !is_whole;
            for stored in objects {
                if !stored.record.header.placed_on.is_empty() {
                    inhabited.add_workload(&stored.to_value()?);
                }
            }
        }
        if inhabited.anywhere.is_empty() && !inhabited.is_partial {
            return Ok(inhabited);
        }
        // Accounts name pull secrets, Ingresses certificates: both go where their account or Ingress goes.
        for (resource, kind) in [("serviceaccounts", "ServiceAccount"), ("ingresses", "Ingress")] {
            let group = if kind == "Ingress" { "networking.k8s.io" } else { "" };
            let resource = GroupResource::new(group, resource);
            let (objects, is_whole) = self.range(RangeScope::Namespace(cluster, resource, namespace.clone())).await?;
            inhabited.is_partial |= !is_whole;
            for stored in objects {
                let role = if kind == "Ingress" { Role::Network } else { Role::Content };
                let places = inhabited.needs(role, kind, &stored.key.name);
                if !places.is_empty() {
                    inhabited.name(&References::of(&stored.to_value()?), &places);
                }
            }
        }
        Ok(inhabited)
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
        if unplaced && !selected && inhabited.anywhere.is_empty() {
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
        let mut needed = inhabited.needs(role, builtin.kind, &key.name);
        if inhabited.is_partial {
            needed.extend(record.active().map(|copy| (copy.uid.clone(), copy.name.clone())));
        }
        let suits = in_passing && inhabited.suits(&record, &needed, &stays_at);
        let kind = GroupKind { group: builtin.group.into(), kind: builtin.kind.into() };
        let shares = shares_of(&kind, &object, &inhabited.divided);
        let as_written = shares.is_empty() && record.overrides.is_empty() && record.yields.is_empty();
        if !selected && as_written && (suits || (unplaced && needed.is_empty())) {
            return Ok(());
        }
        let Some(gathered) = self.gather(key, object, stored.revision).await? else { return Ok(()) };
        self.step_follower(gathered, stays_at, Wanted { needed, shares }).await
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
        let demand = Demand { needed, inhabited: inhabited.anywhere.clone(), deleting, pinned };
        let empty = (BTreeMap::new(), BTreeSet::new());
        let epoch = gathered.revision.get();
        let health = Health { ready: &empty.0, up: &empty.1, drained: &empty.1, gone: &gathered.gone, epoch };
        let step = follow(role, &gathered.record, &demand, &health);
        let step = {
            let facts = self.facts();
            let policies = facts.policies(&gathered.reach, &gathered.namespace);
            let clusters = facts.clusters(&gathered.reach, &*self.rights, &step.record);
            let by = Overriding { workload: &gathered.workload, policies: &policies, clusters: &clusters };
            let step = with_shares_and_overrides(step, &shares, &by);
            if facts.overruns.note(&gathered.key, patches_over_budget(&gathered.object, &step.record.overrides)) {
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
            ready: &BTreeMap::new(),
            now: self.now(),
        };
        let decision = portolan_placement::place(&question);
        (Some(decision.chosen.into_iter().map(|c| (c.uid, c.name)).collect()), deleting)
    }
}
