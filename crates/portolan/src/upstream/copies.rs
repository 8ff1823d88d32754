//! The state of each copy, kept beside the object, and the `.status` above that is merged from all of them.

use std::sync::Arc;

use portolan_controllers::Found;
use portolan_scheduler::{is_refused, still_refused_status};
use portolan_store::{Expect, Transaction, Write};
use portolan_syncer::{
    project::name_node,
    status::{self, Autoscaled, CopyStatus},
};
use portolan_types::{
    GroupResource, ObjectKey, Record, ResourceVersion, Uid, annotations,
    note::Note,
    object,
    placement::{Phase, PlacedCopy, PlacementRecord},
    upstream::{CopyReport, CopyState, UpstreamError},
};
use serde_json::{Value, json};

use super::{StoreUpstream, failed};
use crate::placements;

/// Resource of the states: an object per placed object, in its namespace, named by its uid.
pub(super) fn resource() -> GroupResource {
    GroupResource::new("internal.portolan.dev", "copies")
}

/// The states of all copies of one object, as read.
struct Copies {
    key: ObjectKey,
    of: ObjectKey,
    revision: Option<ResourceVersion>,
    states: Vec<CopyStatus>,
}

impl Copies {
    async fn read(upstream: &StoreUpstream, of: &ObjectKey, object: &Value) -> Result<Self, UpstreamError> {
        let key = ObjectKey {
            resource: resource(),
            name: object::meta_text(object, "uid").parse().map_err(|error| failed(&error))?,
            ..of.clone()
        };
        let Some((stored, revision)) = upstream.read(&key).await? else {
            return Ok(Self { key, of: of.clone(), revision: None, states: Vec::new() });
        };
        let states = serde_json::from_value(stored["copies"].clone()).map_err(|error| failed(&error))?;
        Ok(Self { key, of: of.clone(), revision: Some(revision), states })
    }

    /// Reason and message, while a copy cannot be made, updated or seen.
    fn failure(&self, physical: &Uid) -> Option<(String, String)> {
        self.states.iter().find(|known| known.uid == *physical)?.failed.clone()
    }

    /// Takes in what one copy reports.
    fn update(
        &mut self,
        upstream: &StoreUpstream,
        of: &ObjectKey,
        object: &Value,
        placed: &PlacedCopy,
        state: CopyState,
    ) {
        self.states.retain(|known| known.uid != placed.uid || known.epoch == placed.epoch);
        let at = self.states.iter().position(|known| known.uid == placed.uid).unwrap_or_else(|| {
            self.states.push(unreported(placed));
            self.states.len() - 1
        });
        let known = &mut self.states[at];
        known.replicas = placed.replicas;
        known.update(state, &upstream.plane.seams().now_text());
        if let Some(kind) = upstream.plane.stored_kind(&of.resource) {
            known.note_arrival(&kind.gvk.group_kind(), object);
        }
    }

    /// Keeps the copies that are on the record; those that are to come, and have not reported yet, among them. What an earlier
    /// stay reported is dropped: it must not make a copy that comes back look ready.
    fn keep_counted(&mut self, record: &PlacementRecord) {
        self.states.retain(|known| record.on(&known.uid).is_some_and(|placed| placed.epoch == known.epoch));
        for placed in record.clusters.iter().filter(|copy| copy.phase != Phase::Leaving) {
            if !self.states.iter().any(|known| known.uid == placed.uid) {
                self.states.push(unreported(placed));
            }
        }
    }

    fn write(self) -> Option<Write> {
        let expect = self.revision.map_or(Expect::Absent, Expect::At);
        let object = json!({
            "metadata": {"name": &*self.key.name},
            "of": {"group": &*self.of.resource.group, "resource": &*self.of.resource.resource, "name": &*self.of.name},
            "copies": serde_json::to_value(&self.states).expect("trees serialize"),
        });
        let record = (!self.states.is_empty()).then(|| Record::of(&object));
        (record.is_some() || self.revision.is_some()).then_some(Write { key: self.key, expect, record })
    }
}

fn unreported(placed: &PlacedCopy) -> CopyStatus {
    CopyStatus { epoch: placed.epoch, ..CopyStatus::unreported(&placed.name, placed.uid.clone(), placed.replicas) }
}

/// Stores one copy's state and the merged status. A report about another object of the name, or an earlier stay, is dropped.
pub(super) async fn report(upstream: &StoreUpstream, report: Arc<CopyReport>) -> Result<(), UpstreamError> {
    let Some((mut current, revision)) = upstream.read(&report.key).await? else { return Ok(()) };
    let record = PlacementRecord::of(&current).unwrap_or_default();
    let placed = record.on(&report.physical).filter(|copy| copy.epoch == report.epoch);
    let (Some(placed), true) = (placed, object::uid(&current).as_ref() == Some(&report.uid)) else { return Ok(()) };
    let mut copies = Copies::read(upstream, &report.key, &current).await?;
    let known = copies.failure(&placed.uid);
    copies.update(upstream, &report.key, &current, placed, report.state.clone());
    copies.keep_counted(&record);
    let mut txn = Transaction::default();
    let is_bound = bind(&report, &placed.name, &mut current);
    let is_scaled = follow_autoscalers(record.clone(), &copies.states, &mut current);
    let is_rolled = follow_revisions(&staying(&record, &copies.states), &mut current);
    let placement = placement(upstream, &report.key).await?;
    let told = Told::of(&record, placement.as_ref(), &current);
    if merge(upstream, &report.key, &told, &mut current, &copies.states) || is_bound || is_scaled || is_rolled {
        let write = Write { key: report.key.clone(), expect: Expect::At(revision), record: Some(Record::of(&current)) };
        txn.writes.push(write);
    } else {
        txn.checks.push((report.key.clone(), Expect::At(revision)));
    }
    if let Some(placement) = placement {
        let write = placements::with_states(placement, &report.key, &current, &copies.states);
        txn.writes.extend(write.map_err(|error| failed(&error))?);
    }
    let failure = copies.failure(&placed.uid).filter(|failure| Some(failure) != known.as_ref());
    let note = failure.and_then(|failure| failure_told(upstream, &report.key, &current, placed, failure));
    txn.writes.extend(copies.write());
    upstream.commit_noting(txn, note.into_iter().collect()).await
}

/// The Event about a copy that cannot be made or updated: of kinds without status nothing else tells it on the object.
fn failure_told(
    upstream: &StoreUpstream,
    key: &ObjectKey,
    object: &Value,
    copy: &PlacedCopy,
    (reason, message): (String, String),
) -> Option<Write> {
    // Of a whole physical cluster out of reach its own condition tells, and not each object.
    if reason == status::UNREACHABLE {
        return None;
    }
    let message = format!("{}: {message}", copy.name);
    let name = format!("sync-{}", copy.uid);
    let note = Note { component: "portolan-syncer", name: &name, is_warning: true, reason: &reason, message: &message };
    let (key, event) = note.about(upstream.plane.seams(), key, object)?;
    Some(Write { key, expect: Expect::Anything, record: Some(Record::of(&event)) })
}

/// Shows the node of a Pod that has none yet, as a binding would; whether that changed anything. Upstream that is the physical cluster.
fn bind(report: &CopyReport, cluster: &str, object: &mut Value) -> bool {
    let is_pod = report.key.resource.group.is_empty() && &*report.key.resource.resource == "pods";
    let spec = object.get_mut("spec").and_then(Value::as_object_mut);
    let (Some(node), Some(spec), true) = (&report.node, spec, is_pod) else { return false };
    if spec.contains_key("nodeName") {
        return false;
    }
    spec.insert("nodeName".into(), node.as_str().into());
    name_node(object, cluster);
    true
}

/// Sets `spec.replicas` to what autoscalers below have settled on, and notes it on the record; whether that changed anything.
fn follow_autoscalers(mut record: PlacementRecord, states: &[CopyStatus], object: &mut Value) -> bool {
    let settled = match Autoscaled::of(object, &staying(&record, states)) {
        Autoscaled::NotYet => return false,
        Autoscaled::No => None,
        Autoscaled::To(replicas) => Some(replicas),
    };
    let is_new = settled.is_some_and(|settled| replicas(object) != Some(settled));
    // Copies may still be of the shares of before: a wish from above has arrived when they make up just what it says.
    let is_wish = record.autoscaled.is_some() && record.autoscaled != replicas(object);
    if is_wish && is_new {
        return false;
    }
    if !is_new && record.autoscaled == settled {
        return false;
    }
    if is_new {
        object["spec"]["replicas"] = settled.into();
        let generation = object::generation(object).saturating_add(1);
        object::metadata_mut(object).insert("generation".into(), generation.into());
    }
    record.autoscaled = settled;
    record.write_to(object);
    true
}

/// Shows the revision of a Deployment as its controller would, the highest of those below as on its ReplicaSets; whether that
/// changed anything.
fn follow_revisions(states: &[CopyStatus], object: &mut Value) -> bool {
    let Some(revision) = states.iter().filter_map(|state| state.revision).max().map(|highest| highest.to_string())
    else {
        return false;
    };
    if object::annotation(object, annotations::REVISION) == Some(&*revision) {
        return false;
    }
    object::set_annotation(object, annotations::REVISION, Some(revision));
    true
}

fn replicas(object: &Value) -> Option<i64> {
    object.pointer("/spec/replicas").and_then(Value::as_i64)
}

/// The states of the copies that are to stay, with their shares of now.
fn staying(record: &PlacementRecord, states: &[CopyStatus]) -> Vec<CopyStatus> {
    let stays = |state: &CopyStatus| {
        let copy = record.on(&state.uid).filter(|copy| copy.phase != Phase::Leaving)?;
        Some(CopyStatus { replicas: copy.replicas, ..state.clone() })
    };
    states.iter().filter_map(stays).collect()
}

/// Takes away the states of copies that are not on the record of `current` any more, and merges what is left into it.
pub(super) async fn forget(
    upstream: &StoreUpstream,
    current: &mut Value,
    key: &ObjectKey,
    txn: &mut Transaction,
) -> Result<(), UpstreamError> {
    let mut copies = Copies::read(upstream, key, current).await?;
    let record = PlacementRecord::of(current).unwrap_or_default();
    let former = copies.states.clone();
    let is_summarized = former.iter().any(CopyStatus::is_reported);
    copies.keep_counted(&record);
    let placement = placement(upstream, key).await?;
    if is_summarized || !copies.states.is_empty() {
        let told = Told::of(&record, placement.as_ref(), current);
        let states = if record.clusters.is_empty() { &former } else { &copies.states };
        merge(upstream, key, &told, current, states);
    }
    if let Some(placement) = placement {
        let write = placements::with_states(placement, key, current, &copies.states);
        txn.writes.extend(write.map_err(|error| failed(&error))?);
    }
    txn.writes.extend(copies.write());
    Ok(())
}

/// Merges the status of the object anew of which `kept` has the states, and keeps only those that are on its record. Returns
/// false when that object is not there, or not known.
pub(super) async fn merge_anew(
    upstream: &StoreUpstream,
    kept_at: &ObjectKey,
    kept: &Value,
) -> Result<bool, UpstreamError> {
    let text = |field: &str| kept.pointer(&format!("/of/{field}")).and_then(Value::as_str);
    let (Some(group), Some(resource), Some(Ok(name))) = (text("group"), text("resource"), text("name").map(str::parse))
    else {
        return Ok(false);
    };
    let key = ObjectKey { resource: GroupResource::new(group, resource), name, ..kept_at.clone() };
    let Some((mut current, revision)) = upstream.read(&key).await? else { return Ok(false) };
    if object::meta_text(&current, "uid") != kept_at.name.as_str() {
        return Ok(false);
    }
    let (before, mut txn) = (current.clone(), Transaction::default());
    forget(upstream, &mut current, &key, &mut txn).await?;
    match current == before {
        true => txn.checks.push((key, Expect::At(revision))),
        false => txn.writes.push(Write { key, expect: Expect::At(revision), record: Some(Record::of(&current)) }),
    }
    upstream.commit(txn).await?;
    Ok(true)
}

async fn placement(upstream: &StoreUpstream, of: &ObjectKey) -> Result<Option<Found>, UpstreamError> {
    placements::of(&upstream.plane, of).await.map_err(|error| failed(&error))
}

/// What the scheduler says of an object.
struct Told<'a> {
    record: &'a PlacementRecord,
    /// What it says now is not let in, and its status tells so.
    refused: bool,
}

impl<'a> Told<'a> {
    fn of(record: &'a PlacementRecord, placement: Option<&Found>, object: &Value) -> Self {
        let refused = is_refused(placement.map(|found| &found.object), object::meta_text(object, "uid"));
        Self { record, refused }
    }
}

/// Sets `.status` from the copies that stay, where the kind has one; whether that changed anything.
fn merge(
    upstream: &StoreUpstream,
    key: &ObjectKey,
    told: &Told<'_>,
    object: &mut Value,
    states: &[CopyStatus],
) -> bool {
    let Some(kind) = upstream.plane.stored_kind(&key.resource) else { return false };
    if kind.subresource("status").is_none() {
        return false;
    }
    let (staying, kind) = (staying(told.record, states), kind.gvk.group_kind());
    let mut merged = match (staying.is_empty(), told.record.clusters.is_empty()) {
        (false, _) => status::merge(&kind, object, &staying),
        // The last copy is about to end.
        (true, false) => return false,
        (true, true) => status::without_copies(&kind, object, states, &upstream.plane.seams().now_text()),
    };
    if told.refused {
        merged = still_refused_status(&kind, object, merged);
    }
    let current = object.get("status").unwrap_or(&Value::Null);
    if merged.is_null() || *current == merged {
        return false;
    }
    object["status"] = merged;
    true
}
