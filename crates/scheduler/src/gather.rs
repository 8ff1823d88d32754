//! Everything that one decision depends on, read from the store and from the facts.

use std::collections::{BTreeMap, BTreeSet};

use portolan_placement::{
    Admitted, ClusterFacts, ClusterInfo, Decision, Grounds, Health, Moves, Outcome, Pin, PinOn, Question, References,
    Refusal, Role, Step, Workload, abandons_volumes, check_grounds, contribution, is_made_by_hand,
    is_managed_elsewhere, place, placed_condition, transition, with_overrides,
};
use portolan_store::{RangeRequest, RangeScope, StoreError};
use portolan_types::{
    GroupResource, LogicalClusterId, NamespaceName, ObjectKey, ResourceVersion, Uid, annotations, object,
    placement::{PlacementCopyStatus, PlacementRecord, PlacementStatus, placement_name},
};
use serde_json::{Value, json};

use crate::{
    facts::Reach,
    kinds,
    observe::kind_of,
    scheduler::{Inner, SchedulerError},
};

/// Reason of a copy whose physical cluster cannot be reached, as the syncer reports it.
const UNREACHABLE: &str = "Unreachable";
/// Objects of one controller that are looked at for where its others are.
const MAX_SIBLINGS: usize = 64;

/// The default decision of a namespace, as it is kept.
#[derive(Clone, Debug, Default)]
pub(crate) struct Home {
    pub(crate) uids: Vec<Uid>,
    pub(crate) revision: Option<ResourceVersion>,
}

/// An object and everything that its decision depends on, but for the facts in memory.
pub(crate) struct Gathered {
    pub(crate) key: ObjectKey,
    pub(crate) namespace: NamespaceName,
    pub(crate) namespace_uid: String,
    pub(crate) object: Value,
    pub(crate) revision: ResourceVersion,
    pub(crate) workload: Workload,
    pub(crate) record: PlacementRecord,
    pub(crate) reach: Reach,
    pub(crate) home: Home,
    pub(crate) placement: Option<(Value, ResourceVersion)>,
    pub(crate) gone: BTreeSet<Uid>,
}

/// Volumes that an object uses by name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Volumes {
    /// Many nodes can write or read each of them, or there are none.
    Shared,
    /// A claim is not there yet.
    Unknown,
    /// One node at a time can write one of them.
    Own,
}

impl Gathered {
    /// Returns the pods that each copy may have which has all replicas and no limit: its part of what was admitted last, or of
    /// what the status of the object counts where nothing was. Pods that are not ready, or cannot be seen, count as well.
    pub(crate) fn existing(&self) -> BTreeMap<Uid, i64> {
        let placement = self.placement.as_ref().map(|(placement, _)| placement);
        let admitted = Admitted::of(placement, object::meta_text(&self.object, "uid")).pods.map(|pods| pods.count);
        let counted = || self.object.pointer("/status/replicas").and_then(Value::as_i64);
        let all = admitted.or_else(counted).unwrap_or(0);
        let limits = &self.record.limits;
        let (limited, whole): (Vec<_>, Vec<_>) = self
            .record
            .active()
            .filter(|copy| copy.replicas.is_none())
            .map(|copy| &copy.uid)
            .partition(|uid| limits.contains_key(*uid));
        // Copies that stay and copies that go each have all while an object moves, and only the former were counted.
        let is_moving = placement.and_then(placed_condition).is_some_and(|(reason, _)| reason == "Moving");
        let parts = if is_moving { 1 } else { i64::try_from(whole.len()).unwrap_or(i64::MAX).max(1) };
        let rest = all - limited.iter().filter_map(|uid| limits.get(*uid)).sum::<i64>();
        let each = rest.max(0).saturating_add(parts - 1) / parts;
        whole.into_iter().map(|uid| (uid.clone(), each)).collect()
    }
}

/// A decision and the next step towards it.
pub(crate) struct Planned {
    pub(crate) decision: Decision,
    pub(crate) step: Step,
}

impl Inner {
    /// Reads what a decision about `object` depends on. `None` when it is not placed: its owner goes down in its place, or no
    /// policy is about its kind, or its namespace or logical cluster ends.
    pub(crate) async fn gather(
        &self,
        key: &ObjectKey,
        object: Value,
        revision: ResourceVersion,
    ) -> Result<Option<Gathered>, SchedulerError> {
        let (Some(kind), Some(namespace)) = (kind_of(&object), key.namespace().cloned()) else { return Ok(None) };
        let reach = self.reach(key.cluster);
        let record = PlacementRecord::of(&object).unwrap_or_default();
        let mut workload = Workload::of(kind, key.resource.clone(), &object);
        workload.namespace = namespace.to_string();
        if matches!(workload.role, Role::Never(_)) && self.is_of_a_foreign_job(key, &object).await? {
            workload.role = Role::Workload;
        }
        let selected = self.facts().is_kind_selected(&reach, &workload.kind.group, &workload.kind.kind);
        let is_placed = !record.clusters.is_empty();
        let matters = match workload.role {
            Role::Workload | Role::Content | Role::Claim | Role::Network => true,
            Role::Explicit => selected || is_placed,
            Role::Never(_) => false,
        };
        if reach.lineage.is_empty() || !matters || self.owner_goes_down(key, &object).await? {
            return Ok(None);
        }
        self.check_known(&reach, &namespace)?;
        let found = self.objects.get_value(&namespace_key(key.cluster, &namespace)).await?;
        let (around, _) = found.unwrap_or((Value::Null, revision));
        if object::is_deleting(&around) && !is_placed {
            return Ok(None);
        }
        workload.pin = workload.pin.or_else(|| Pin::of(&around, PinOn::Namespace));
        workload.siblings = self.siblings(key, &object).await?;
        let volumes = self.volumes(key, &namespace, &object).await?;
        if workload.moves == Moves::Surge && volumes != Volumes::Shared {
            workload.moves = Moves::Restart;
        }
        workload.keeps_volumes |= volumes == Volumes::Own && !abandons_volumes(&object);
        let namespace_uid = object::meta_text(&around, "uid").to_owned();
        let home = self.home(key.cluster, &namespace, &namespace_uid).await?;
        let placement = self.objects.get_value(&placement_key(key)).await?;
        let gone = self.gone(&record, &reach).await?;
        let key = key.clone();
        let gathered = Gathered {
            key,
            namespace,
            namespace_uid,
            object,
            revision,
            workload,
            record,
            reach,
            home,
            placement,
            gone,
        };
        Ok(Some(gathered))
    }

    /// What is not known must not look as if it were not there: copies would move for it.
    ///
    /// # Errors
    /// `Unreadable` while a policy that may hold, or who may use a physical cluster within reach, cannot be read.
    fn check_known(&self, reach: &Reach, namespace: &str) -> Result<(), SchedulerError> {
        let facts = self.facts();
        if let Some(key) = facts.unreadable_policy(reach, namespace) {
            return Err(SchedulerError::Unreadable(key.to_string()));
        }
        match facts.unknown_home(reach, &*self.rights) {
            None => Ok(()),
            Some(home) => Err(SchedulerError::Unreadable(format!("who may use the physical clusters of {home}"))),
        }
    }

    /// Whether the controller of an object is placed itself: then the controller's own controller runs below and makes the
    /// object there. Not so a Job that a user has made of a CronJob by hand, as `kubectl create job --from` does.
    async fn owner_goes_down(&self, key: &ObjectKey, object: &Value) -> Result<bool, StoreError> {
        let Some(owner) = object::controller_of(object) else { return Ok(false) };
        if is_made_by_hand(object) {
            return Ok(false);
        }
        let text = |name: &str| owner.get(name).and_then(Value::as_str).unwrap_or_default();
        let group = text("apiVersion").split_once('/').map_or("", |(group, _)| group);
        let (Some(resource), Ok(name)) = (self.resource_of(group, text("kind")), text("name").parse()) else {
            return Ok(false);
        };
        let owner_key = ObjectKey { resource, name, ..key.clone() };
        let stored = self.objects.store().get(&owner_key).await?;
        Ok(stored.is_some_and(|s| s.record.header.uid == text("uid") && !s.record.header.placed_on.is_empty()))
    }

    /// Returns true for a Pod of a Job that another controller than Kubernetes' own manages: that one made it, upstream.
    async fn is_of_a_foreign_job(&self, key: &ObjectKey, object: &Value) -> Result<bool, StoreError> {
        let is_shown = object::label(object, annotations::PROJECTED_FROM).is_some();
        let Some(owner) = object::controller_of(object).filter(|owner| owner["kind"] == "Job" && !is_shown) else {
            return Ok(false);
        };
        let (true, Some(Ok(name))) = (key.resource == kinds::pods(), owner["name"].as_str().map(str::parse)) else {
            return Ok(false);
        };
        let job = self.objects.get_value(&ObjectKey { resource: kinds::jobs(), name, ..key.clone() }).await?;
        let is_own = |job: &Value| owner["uid"] == *object::meta_text(job, "uid");
        Ok(job.is_some_and(|(job, _)| is_own(&job) && is_managed_elsewhere(job.get("spec"))))
    }

    /// Where the other objects of the same controller are.
    async fn siblings(&self, key: &ObjectKey, object: &Value) -> Result<Vec<Uid>, StoreError> {
        let Some(owner) = object::controller_of(object).and_then(|o| o.get("uid")).and_then(Value::as_str) else {
            return Ok(Vec::new());
        };
        let scope = RangeScope::OwnedBy(key.cluster, owner.to_owned());
        let page = self
            .objects
            .store()
            .range(RangeRequest { limit: Some(MAX_SIBLINGS), ..RangeRequest::all(scope).past_damage() })
            .await?;
        let others = page.objects.iter().filter(|s| s.key != *key && s.key.resource == key.resource);
        let uids: BTreeSet<Uid> =
            others.flat_map(|s| &s.record.header.placed_on).filter_map(|uid| uid.parse().ok()).collect();
        Ok(uids.into_iter().collect())
    }

    /// Returns what the claims that an object uses say about a second copy: it would have volumes of its own.
    async fn volumes(&self, key: &ObjectKey, namespace: &NamespaceName, object: &Value) -> Result<Volumes, StoreError> {
        let mut found = Volumes::Shared;
        for name in References::of(object).claims() {
            let Ok(name) = name.parse() else { continue };
            let resource = GroupResource::new("", "persistentvolumeclaims");
            let claim = ObjectKey::namespaced(key.cluster, resource, namespace.clone(), name);
            let Some((claim, _)) = self.objects.get_value(&claim).await? else {
                found = Volumes::Unknown;
                continue;
            };
            let modes = claim.pointer("/spec/accessModes").and_then(Value::as_array);
            let shared = |mode: &Value| matches!(mode.as_str(), Some("ReadWriteMany" | "ReadOnlyMany"));
            if !modes.is_some_and(|modes| modes.iter().any(shared)) {
                return Ok(Volumes::Own);
            }
        }
        Ok(found)
    }

    pub(crate) fn decision_key(&self, cluster: LogicalClusterId, namespace: NamespaceName) -> ObjectKey {
        let name = "default".parse().expect("the name is a constant");
        ObjectKey::namespaced(cluster, kinds::decisions(), namespace, name)
    }

    /// The default decision of a namespace; that of an earlier namespace of the same name does not count.
    async fn home(&self, cluster: LogicalClusterId, namespace: &NamespaceName, uid: &str) -> Result<Home, StoreError> {
        let Some((kept, revision)) = self.objects.get_value(&self.decision_key(cluster, namespace.clone())).await?
        else {
            return Ok(Home::default());
        };
        let valid = kept.get("namespaceUid").and_then(Value::as_str) == Some(uid);
        let uids = kept.get("physical").and_then(Value::as_array).filter(|_| valid);
        let uids = uids.into_iter().flatten().filter_map(|uid| uid.as_str()?.parse().ok()).collect();
        Ok(Home { uids, revision: Some(revision) })
    }

    /// Of the physical clusters that a record names those that are proven not to exist. Not knowing one is no proof: then the
    /// store is asked.
    ///
    /// # Errors
    /// When one exists that is not known yet: nothing can be decided until it is.
    pub(crate) async fn gone(&self, record: &PlacementRecord, reach: &Reach) -> Result<BTreeSet<Uid>, SchedulerError> {
        let unknown: BTreeSet<Uid> = {
            let facts = self.facts();
            record.clusters.iter().map(|c| &c.uid).filter(|uid| facts.physical(uid).is_none()).cloned().collect()
        };
        if unknown.is_empty() {
            return Ok(unknown);
        }
        if let Some(key) = self.facts().unreadable_physical(reach) {
            return Err(SchedulerError::Unreadable(key.to_string()));
        }
        let all = RangeRequest::all(RangeScope::AllClusters(kinds::physical_clusters())).past_damage();
        let page = self.objects.store().range(all).await?;
        // One that is damaged may be any of those that are registered where it is.
        if let Some(found) = page.damaged.iter().find(|found| reach.may_contain(found.key.cluster)) {
            return Err(SchedulerError::Unreadable(found.key.to_string()));
        }
        let exists = |uid: &Uid| page.objects.iter().any(|s| s.record.header.uid == uid.as_str());
        match unknown.iter().any(exists) {
            true => Err(SchedulerError::Behind),
            false => Ok(unknown),
        }
    }

    /// Decides, takes the next step towards it, and reserves what it takes. When its pods are refused, that is the decision.
    ///
    /// # Errors
    /// `Illegal` when the step is not legal; it is never taken then.
    pub(crate) fn plan(&self, gathered: &Gathered, refusal: Option<Refusal>) -> Result<Planned, SchedulerError> {
        let (workload, record) = (&gathered.workload, &gathered.record);
        let mut facts = self.facts();
        let policies = facts.policies(&gathered.reach, &gathered.namespace);
        let clusters = facts.clusters(&gathered.reach, &*self.rights, record);
        let existing = gathered.existing();
        let question = Question {
            workload,
            policies: &policies,
            clusters: &clusters,
            previous: record,
            home: &gathered.home.uids,
            existing: &existing,
            now: self.now(),
        };
        let mut decision = place(&question);
        let selected = policies.iter().any(|p| !p.policy.is_constraint() && p.policy.is_about(workload));
        if workload.role == Role::Explicit && !selected {
            decision = no_longer_selected(decision);
        }
        if let Some(refusal) = refusal {
            decision = decision.refused(refusal);
        }
        let up = uids(&clusters, ClusterInfo::is_ready);
        let drained = uids(&clusters, ClusterInfo::is_drained);
        let epoch = gathered.revision.get();
        let available = available(workload, record, gathered.placement.as_ref().map(|(placement, _)| placement));
        let health = Health { ready: &available, up: &up, drained: &drained, gone: &gathered.gone, epoch };
        let step = transition(workload, record, &decision, &health);
        let step = with_overrides(step, workload, &policies, &clusters);
        let grounds = Grounds { workload, health: &health, stopped: decision.is_to_end() };
        check_grounds(record, &step.record, &grounds)
            .map_err(|step| SchedulerError::Illegal { key: Box::new(gathered.key.clone()), step })?;
        if step.record.clusters != record.clusters {
            facts.usage.reserve(&gathered.key, &contribution(workload, record), &contribution(workload, &step.record));
        } else {
            facts.usage.release(&gathered.key);
        }
        drop(facts);
        self.note_overruns(gathered, &policies, &step.record);
        Ok(Planned { decision, step })
    }
}

/// A custom resource that went down by a policy comes up again with it.
fn no_longer_selected(decision: Decision) -> Decision {
    let outcome = Outcome::Stopped;
    Decision {
        chosen: Vec::new(),
        policy: None,
        outcome,
        by: "as no policy selects it".into(),
        held: Vec::new(),
        move_refused: false,
        ..decision
    }
}

fn uids(clusters: &[ClusterFacts], of: impl Fn(&ClusterInfo) -> bool) -> BTreeSet<Uid> {
    clusters.iter().filter(|c| of(&c.info)).map(|c| c.info.uid.clone()).collect()
}

/// Available pods by the uids of the record. A copy of which something is ready, and nothing available yet, is not known as one
/// of which nothing is. One that counts pods by nodes is available when it is on all of them.
fn available(workload: &Workload, record: &PlacementRecord, placement: Option<&Value>) -> BTreeMap<Uid, i64> {
    by_uid(record, placement, |shown| {
        let available = shown.available.unwrap_or(shown.ready);
        let per_node = shown.desired.filter(|_| workload.replicas.is_none() && shown.available.is_some());
        match per_node {
            Some(desired) if available >= desired => Some(available.max(1)),
            Some(_) if shown.ready == 0 => Some(0),
            Some(_) => None,
            None => (available > 0 || shown.ready == 0).then_some(available),
        }
    })
}

fn by_uid(
    record: &PlacementRecord,
    placement: Option<&Value>,
    count: impl Fn(&PlacementCopyStatus) -> Option<i64>,
) -> BTreeMap<Uid, i64> {
    let status = placement.and_then(|p| p.get("status")).cloned().unwrap_or(json!({}));
    let status: PlacementStatus = serde_json::from_value(status).unwrap_or_default();
    let of = |copy: &portolan_types::placement::PlacedCopy| {
        let shown = status.clusters.iter().find(|s| s.uid == *copy.uid).filter(|s| s.reason != UNREACHABLE)?;
        Some((copy.uid.clone(), count(shown)?))
    };
    record.clusters.iter().filter_map(of).collect()
}

pub(crate) fn namespace_key(cluster: LogicalClusterId, namespace: &NamespaceName) -> ObjectKey {
    let name = namespace.parse().expect("the name of a namespace is the name of an object");
    ObjectKey::cluster_scoped(cluster, kinds::namespaces(), name)
}

/// Where the `Placement` of an object is.
pub(crate) fn placement_key(key: &ObjectKey) -> ObjectKey {
    let name = placement_name(&key.resource, &key.name);
    let name = name.parse().expect("the name is made of characters that names may have");
    ObjectKey { resource: kinds::placements(), name, ..key.clone() }
}

/// `apiVersion` and `kind` of an object.
pub(crate) fn api_version(object: &Value) -> (String, String) {
    let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    (text("apiVersion"), text("kind"))
}

#[cfg(test)]
mod tests {
    use portolan_types::placement::{Phase, PlacedCopy};

    use super::*;

    #[test]
    fn what_another_physical_cluster_of_the_name_had_does_not_count() {
        let uid = |text: &str| text.parse::<Uid>().unwrap();
        let copy = |of: &str, phase| PlacedCopy { name: "east".into(), uid: uid(of), phase, replicas: None, epoch: 1 };
        let clusters = vec![copy("old", Phase::Leaving), copy("new", Phase::Active)];
        let record = PlacementRecord { clusters, ..PlacementRecord::default() };
        let shown = |of: &str, ready: i64| json!({"name": "east", "uid": of, "phase": "Active", "ready": ready});
        let placement = json!({"status": {"clusters": [shown("old", 3), shown("new", 0)]}});
        let ready = by_uid(&record, Some(&placement), |shown| Some(shown.ready));
        assert_eq!(ready, BTreeMap::from([(uid("old"), 3), (uid("new"), 0)]));
    }
}
