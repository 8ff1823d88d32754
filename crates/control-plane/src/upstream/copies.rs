//! States of copies, stored beside each object, and the upstream `.status` merged from them.

use std::sync::Arc;

use portolan_controllers::PlaneObject;
use portolan_scheduler::{is_refused, status_while_refused};
use portolan_store::{Expect, Transaction, Write};
use portolan_syncer::{
    project::name_node,
    status::{self, AutoscaledReplicas, CopyStatus},
};
use portolan_types::{
    GroupResource, ObjectKey, Record, ResourceVersion, Uid, annotations,
    event_draft::EventDraft,
    object,
    placement::{CopyPhase, PlacedCopy, PlacementRecord},
    upstream::{CopyReport, CopyState, UpstreamError},
};
use serde_json::{Value, json};

use super::{StoreUpstream, failed, status_kind::StatusKind};
use crate::placement_status::{PlacedObject, placement_of, updated_placement};

/// Resource of the states: an object per placed object, in its namespace, named by its uid.
pub(super) fn resource() -> GroupResource {
    GroupResource::new("internal.portolan.dev", "copies")
}

/// State of a copy as it was reported, and the time of the report in RFC 3339.
struct ReportedState<'a> {
    state: CopyState,
    now: &'a str,
}

/// States of all copies of one object.
struct StoredCopyStates {
    key: ObjectKey,
    of: ObjectKey,
    revision: Option<ResourceVersion>,
    states: Vec<CopyStatus>,
}

impl StoredCopyStates {
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

    /// Returns reason and message while a copy cannot be created, updated or read.
    fn failure(&self, physical: &Uid) -> Option<(String, String)> {
        self.states.iter().find(|known| known.uid == *physical)?.failed.clone()
    }

    /// Applies one copy's report.
    fn update(
        &mut self,
        kind: Option<&StatusKind>,
        object: &Value,
        placed: &PlacedCopy,
        ReportedState { state, now }: ReportedState<'_>,
    ) {
        self.states.retain(|known| known.uid != placed.uid || known.epoch == placed.epoch);
        let at = self.states.iter().position(|known| known.uid == placed.uid).unwrap_or_else(|| {
            self.states.push(unreported(placed));
            self.states.len() - 1
        });
        let known = &mut self.states[at];
        known.replicas = placed.replicas;
        known.update(state, now);
        if let Some(kind) = kind {
            known.note_arrival(kind.shape(), object);
        }
    }

    /// Keeps the copies on the record, and adds those that have not reported. States of an earlier epoch are dropped:
    /// they must not make a returning copy look ready.
    fn keep_counted(&mut self, record: &PlacementRecord) {
        self.states.retain(|known| record.on(&known.uid).is_some_and(|placed| placed.epoch == known.epoch));
        for placed in record.clusters.iter().filter(|copy| copy.phase != CopyPhase::Leaving) {
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

/// Stores one copy's state and the merged status. Drops a report about another object of the name, or an earlier epoch.
pub(super) async fn report(upstream: &StoreUpstream, report: Arc<CopyReport>) -> Result<(), UpstreamError> {
    let Some((mut current, revision)) = upstream.read(&report.key).await? else { return Ok(()) };
    let record = PlacementRecord::of(&current).unwrap_or_default();
    let placed = record.on(&report.physical).filter(|copy| copy.epoch == report.epoch);
    let (Some(placed), true) = (placed, object::uid(&current).as_ref() == Some(&report.uid)) else { return Ok(()) };
    let mut copies = StoredCopyStates::read(upstream, &report.key, &current).await?;
    let known = copies.failure(&placed.uid);
    let kind = StatusKind::of(upstream, &report.key).await?;
    let now = upstream.plane.seams().now_text();
    copies.update(kind.as_ref(), &current, placed, ReportedState { state: report.state.clone(), now: &now });
    copies.keep_counted(&record);
    let mut txn = Transaction::default();
    let is_bound = bind(&report, &placed.name, &mut current);
    let is_scaled = follow_autoscalers(record.clone(), &copies.states, &mut current);
    let is_rolled = follow_revisions(&staying(&record, &copies.states), &mut current);
    let placement = placement(upstream, &report.key).await?;
    let scheduled = ScheduledState::of(&record, kind.as_ref(), placement.as_ref(), &current);
    if merge(upstream, &scheduled, &mut current, &copies.states) || is_bound || is_scaled || is_rolled {
        let write = Write { key: report.key.clone(), expect: Expect::At(revision), record: Some(Record::of(&current)) };
        txn.writes.push(write);
    } else {
        txn.checks.push((report.key.clone(), Expect::At(revision)));
    }
    if let Some(placement) = placement {
        let scale = kind.as_ref().and_then(|kind| kind.scale.as_ref());
        let placed = PlacedObject { key: &report.key, object: &current, scale };
        let write = updated_placement(placement, &placed, &copies.states);
        txn.writes.extend(write.map_err(|error| failed(&error))?);
    }
    let failure = copies.failure(&placed.uid).filter(|failure| Some(failure) != known.as_ref());
    let note = failure.and_then(|failure| {
        CopyFailure { copy: placed, reason: &failure.0, message: &failure.1 }.event(upstream, &report.key, &current)
    });
    txn.writes.extend(copies.write());
    upstream.commit_with_notes(txn, note.into_iter().collect()).await
}

/// Failure to create or update a copy.
struct CopyFailure<'a> {
    copy: &'a PlacedCopy,
    reason: &'a str,
    message: &'a str,
}

impl CopyFailure<'_> {
    /// Returns the Event about the failure. On kinds without status, nothing else reports it.
    fn event(&self, upstream: &StoreUpstream, key: &ObjectKey, object: &Value) -> Option<Write> {
        let Self { copy, reason, message } = *self;
        // An unreachable physical cluster has a condition of its own, instead of an Event per object.
        if reason == status::UNREACHABLE {
            return None;
        }
        let message = format!("{}: {message}", copy.name);
        let name = format!("sync-{}", copy.uid);
        let note =
            EventDraft { component: "portolan-syncer", name: &name, is_warning: true, reason, message: &message };
        let (key, event) = note.about(upstream.plane.seams(), key, object)?;
        Some(Write { key, expect: Expect::Anything, record: Some(Record::of(&event)) })
    }
}

/// Sets the node of an unbound Pod, as a binding would; upstream the node is the physical cluster. Returns true if that
/// changed anything.
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

/// Sets `spec.replicas` to the number that downstream autoscalers have settled on, and notes it on the record. Returns
/// true if that changed anything.
fn follow_autoscalers(mut record: PlacementRecord, states: &[CopyStatus], object: &mut Value) -> bool {
    let settled = match AutoscaledReplicas::of(object, &staying(&record, states)) {
        AutoscaledReplicas::NotYet => return false,
        AutoscaledReplicas::No => None,
        AutoscaledReplicas::To(replicas) => Some(replicas),
    };
    let is_new = settled.is_some_and(|settled| replicas(object) != Some(settled));
    // Copies may still have their earlier shares: a number set upstream has arrived once they add up to it.
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

/// Sets the revision of a Deployment to the highest of its copies. Returns true if that changed anything.
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

/// Returns the states of the copies that stay, with their current shares, and without addresses that are not to be
/// published.
fn staying(record: &PlacementRecord, states: &[CopyStatus]) -> Vec<CopyStatus> {
    let stays = |state: &CopyStatus| {
        let copy = record.on(&state.uid).filter(|copy| copy.phase != CopyPhase::Leaving)?;
        let mut state = CopyStatus { replicas: copy.replicas, ..state.clone() };
        if record.withdrawn.contains(&state.uid) {
            state.withdraw_addresses();
        }
        Some(state)
    };
    states.iter().filter_map(stays).collect()
}

/// Removes the states of copies that are no longer on the record of `current`, and merges the rest into its status.
pub(super) async fn forget(
    upstream: &StoreUpstream,
    current: &mut Value,
    key: &ObjectKey,
    txn: &mut Transaction,
) -> Result<(), UpstreamError> {
    let mut copies = StoredCopyStates::read(upstream, key, current).await?;
    let record = PlacementRecord::of(current).unwrap_or_default();
    let former = copies.states.clone();
    let is_summarized = former.iter().any(CopyStatus::is_reported);
    copies.keep_counted(&record);
    let placement = placement(upstream, key).await?;
    let kind = StatusKind::of(upstream, key).await?;
    if is_summarized || !copies.states.is_empty() {
        let scheduled = ScheduledState::of(&record, kind.as_ref(), placement.as_ref(), current);
        let states = if record.clusters.is_empty() { &former } else { &copies.states };
        merge(upstream, &scheduled, current, states);
    }
    if let Some(placement) = placement {
        let scale = kind.as_ref().and_then(|kind| kind.scale.as_ref());
        let placed = PlacedObject { key, object: current, scale };
        let write = updated_placement(placement, &placed, &copies.states);
        txn.writes.extend(write.map_err(|error| failed(&error))?);
    }
    txn.writes.extend(copies.write());
    Ok(())
}

/// Merges the status of the object whose stored states are `kept`, and keeps only the states on its record. Returns
/// false if the object is missing or unknown.
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
    if current == before {
        txn.checks.push((key, Expect::At(revision)))
    } else {
        txn.writes.push(Write { key, expect: Expect::At(revision), record: Some(Record::of(&current)) })
    }
    upstream.commit(txn).await?;
    Ok(true)
}

async fn placement(upstream: &StoreUpstream, of: &ObjectKey) -> Result<Option<PlaneObject>, UpstreamError> {
    placement_of(&upstream.plane, of).await.map_err(|error| failed(&error))
}

/// Scheduling state of an object.
struct ScheduledState<'a> {
    record: &'a PlacementRecord,
    /// True if the current template is not admitted, which its status reports.
    refused: bool,
    /// `None` if the logical cluster does not serve the kind any more.
    kind: Option<&'a StatusKind>,
}

impl<'a> ScheduledState<'a> {
    fn of(
        record: &'a PlacementRecord,
        kind: Option<&'a StatusKind>,
        placement: Option<&PlaneObject>,
        object: &Value,
    ) -> Self {
        let refused = is_refused(placement.map(|found| &found.object), object::meta_text(object, "uid"));
        Self { record, refused, kind }
    }
}

/// Merges `.status` from the copies that stay, if the kind has a status. Returns true if that changed anything.
fn merge(upstream: &StoreUpstream, scheduled: &ScheduledState<'_>, object: &mut Value, states: &[CopyStatus]) -> bool {
    let Some(kind) = scheduled.kind.filter(|kind| kind.has_status()) else { return false };
    let (staying, shape) = (staying(scheduled.record, states), kind.shape());
    let mut merged = match (staying.is_empty(), scheduled.record.clusters.is_empty()) {
        (false, _) => status::merge_as(shape, object, &staying),
        // The last copy is about to end.
        (true, false) => return false,
        (true, true) => status::without_copies(shape.kind, object, states, &upstream.plane.seams().now_text()),
    };
    if scheduled.refused {
        merged = status_while_refused(shape.kind, object, merged);
    }
    kind.fit(&mut merged);
    let current = object.get("status").unwrap_or(&Value::Null);
    let is_empty = merged.is_null() || (current.is_null() && merged.as_object().is_some_and(serde_json::Map::is_empty));
    if is_empty || *current == merged {
        return false;
    }
    object["status"] = merged;
    true
}
