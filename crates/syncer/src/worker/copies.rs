//! Sync of one upstream object with its copy: observe both, plan, apply one step.

use std::{sync::Arc, sync::atomic::Ordering, time::Duration};

use portolan_types::{
    GroupResource, ObjectKey, annotations, fingerprint, object,
    placement::{CopyPhase, PlacedCopy, PlacementRecord},
    upstream::{UnplacedObject, UpstreamObject, UpstreamRead},
    work::WorkOutcome,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    SyncError, Work, Worker,
    reflector_cache::{ObjectRef, ObservedObject},
    session::Session,
    spans,
};
use crate::{
    client::{ServedResource, discover},
    naming,
    plan::{self, CopyDecision, PlanInput, SyncTarget, UpstreamState},
    rules::{SyncRefusal, SyncRules, is_custom},
    transform::{LogicalView, MissingFields, ORDINALS, shares_ordinals, with_ordinals, without_volatile},
};

/// Most reads of a copy in one pass, after it turned out to have changed.
const MAX_READS: usize = 4;
/// Interval of checks for a foreign object at the address of a copy, of which no event tells.
const CONFLICT_CHECK: Duration = Duration::from_secs(30);
/// Interval of reads of a copy that is being deleted, should its tombstone be missed.
const END_CHECK: Duration = Duration::from_secs(5);

/// Shortest and longest interval of reads while an object waits for admission.
const SHORTEST_WAIT: Duration = Duration::from_millis(4);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Result of one step.
pub(super) enum Step {
    Finished(WorkOutcome),
    /// The copy differs from the one that was planned for: plan again.
    Replan(Option<Arc<ObservedObject>>),
}

/// Input of one decision about one object.
pub(super) struct CopyView<'a> {
    pub(super) session: &'a Session,
    pub(super) key: &'a ObjectKey,
    /// Upstream object, if it is placed on the physical cluster.
    pub(super) upstream: Option<&'a UpstreamObject>,
    /// Upstream object, if it exists and is not placed on the physical cluster.
    pub(super) unplaced: Option<&'a UnplacedObject>,
    pub(super) place: &'a ObjectRef,
    pub(super) served: Option<&'a ServedResource>,
    pub(super) downstream: Option<Arc<ObservedObject>>,
    /// View that the pods get; `None` for that of the physical cluster.
    pub(super) pods: Option<LogicalView>,
}

impl Worker {
    pub(super) async fn reconcile_copy(&self, key: &ObjectKey) -> Result<WorkOutcome, SyncError> {
        let read = self.upstream.get(&self.config.uid, key).await?;
        let (upstream, unplaced) = match &read {
            UpstreamRead::Placed(upstream) => (Some(&**upstream), None),
            UpstreamRead::NotPlaced(unplaced) => (None, Some(unplaced)),
            UpstreamRead::Absent => (None, None),
        };
        let seen = self.state().known.contains_key(key);
        if let Some(upstream) = upstream {
            spans::record_resource_version(upstream.revision);
            self.record_known(upstream);
            if self.entry(upstream).is_some_and(|entry| entry.phase == CopyPhase::Projected) {
                return self.reconcile_projected(upstream).await;
            }
        }
        let session = self.session()?;
        let place = match self.downstream_ref(key) {
            Ok(place) => place,
            Err(refusal) => return self.report_unmappable(upstream, &refusal).await,
        };
        let leaves = upstream.is_some_and(|up| self.entry(up).is_some_and(|e| plan::deletion_proof(up, &e).is_some()));
        let served =
            if leaves { self.served_for(&session, &key.resource).await? } else { session.served(&key.resource) };
        let watched = served.as_ref().map(|served| served.kind.version.clone());
        let served = match upstream {
            Some(upstream) => served.map(|served| served.in_version(&upstream.kind.version)),
            None => served,
        };
        let is_watched = served.as_ref().map(|served| &served.kind.version) == watched.as_ref();
        if session.served(&key.resource).is_some() && !session.cache.is_synced(&key.resource) {
            return Err(SyncError::NotSynced(key.resource.to_string()));
        }
        if read == UpstreamRead::Absent && !seen && !self.is_view_synced.load(Ordering::Acquire) {
            return Err(SyncError::NotSynced("upstream's objects".into()));
        }
        let downstream = session.cache.get(&place);
        let (session, served) = (&*session, served.as_ref());
        let pods = None;
        let mut view = CopyView { session, key, upstream, unplaced, place: &place, served, downstream, pods };
        if let (Some(served), false) = (served, is_watched) {
            // Another version may have other fields.
            view.downstream = self.read(&view, served).await?;
        }
        view.pods = self.pod_view(&view).await?;
        for _ in 0..MAX_READS {
            let decision = self.plan(&view, seen).await?;
            match self.apply(&view, decision).await? {
                Step::Finished(outcome) => return self.settle_pod_token(&view, outcome).await,
                Step::Replan(downstream) => view.downstream = downstream,
            }
        }
        Err(SyncError::KeepsChanging)
    }

    /// Returns how the physical cluster serves a resource. Resources that are not synced are looked up too: older
    /// copies may exist there, though no watch covers them.
    pub(super) async fn served_for(
        &self,
        session: &Session,
        resource: &GroupResource,
    ) -> Result<Option<ServedResource>, SyncError> {
        match session.served(resource) {
            None if is_custom(resource) || self.rules().refusal(resource, "").is_some() => {
                let alone = SyncRules::new(&[resource.to_string()]);
                Ok(discover(&session.api, &alone).await?.served.remove(resource))
            }
            served => Ok(served),
        }
    }

    /// Objects may be stored in a version that is not served, and an API server that starts does not serve all yet.
    pub(super) fn not_served(&self, resource: &GroupResource) -> SyncError {
        SyncError::NotServed { resource: resource.to_string(), name: self.config.name.clone() }
    }

    async fn plan(&self, view: &CopyView<'_>, seen: bool) -> Result<CopyDecision, SyncError> {
        let rules = &*self.rules();
        let target = SyncTarget { physical: &self.config.uid, syncer_epoch: self.config.syncer_epoch, rules };
        let downstream = view.downstream.as_ref().map(|observed| &observed.object);
        let newest_syncer = if downstream.is_some_and(|downstream| plan::names_newer_syncer(downstream, &target)) {
            self.newest_syncer_beside(view.key).await?
        } else {
            self.config.syncer_epoch
        };
        if self.is_outdated(view).await? {
            return Ok(CopyDecision::Stale);
        }
        let lacking = self.missing_fields(view);
        let audiences = view.session.audiences();
        let decision = plan::plan(
            &target,
            &PlanInput {
                key: view.key,
                upstream: match (view.upstream, view.unplaced) {
                    (Some(upstream), _) => UpstreamState::Present(upstream),
                    (None, Some(unplaced)) => UpstreamState::NotPlaced(unplaced),
                    (None, None) => UpstreamState::Removed { seen },
                },
                downstream,
                namespace: view.place.namespace(),
                served: view.served.map(|served| (&served.kind, served.namespaced)),
                autoscaled: self.is_autoscaled(view),
                settled: downstream.is_some_and(|downstream| self.is_settled(view.key, downstream)),
                newest_syncer,
                lacking: &lacking,
                audiences: &audiences,
                pods: view.pods.as_ref(),
            },
        );
        self.reset_troubles(view.key, &decision);
        Ok(decision)
    }

    /// Returns the fields of the object that an older physical cluster does not have.
    fn missing_fields(&self, view: &CopyView<'_>) -> MissingFields {
        let (Some(schema), Some(upstream)) = (&view.session.schema, view.upstream) else {
            return MissingFields::default();
        };
        let all = schema.missing_in(&upstream.kind, &with_ordinals(upstream));
        // Without the field, each copy would start at the first ordinal.
        let is_needed = |pointer: &str| shares_ordinals(upstream) && pointer.starts_with(ORDINALS);
        let is_default = |pointer: &String| !is_needed(pointer) && self.upstream.is_default(upstream, pointer);
        let (defaults, meant) = all.into_iter().partition(is_default);
        MissingFields { defaults, meant }
    }

    /// Asks upstream which syncer is the newest, since a copy of `key` names a newer one than this.
    async fn newest_syncer_beside(&self, key: &ObjectKey) -> Result<u64, SyncError> {
        let newest = self.upstream.newest_syncer(&self.config.uid).await?;
        if newest <= self.config.syncer_epoch {
            self.record_forged(key);
        }
        Ok(newest)
    }

    /// Returns true when the copy names a later epoch than was read upstream, and upstream has changed since. When it
    /// has not, the copy is forged, or upstream was restored from an older state.
    async fn is_outdated(&self, view: &CopyView<'_>) -> Result<bool, SyncError> {
        let (Some(upstream), Some(downstream)) = (view.upstream, &view.downstream) else { return Ok(false) };
        let is_later = self.entry(upstream).is_some_and(|entry| plan::names_later_stay(&downstream.object, &entry));
        if !is_later {
            return Ok(false);
        }
        self.check_newest().await?;
        let latest = self.read_placed(view.key).await?;
        let is_same = !self.is_fenced.load(Ordering::Relaxed)
            && latest.is_some_and(|latest| {
                object::uid(&latest.object) == object::uid(&upstream.object)
                    && self.entry(&latest) == self.entry(upstream)
            });
        if is_same {
            self.record_forged(view.key);
        }
        Ok(!is_same)
    }

    fn record_forged(&self, key: &ObjectKey) {
        tracing::warn!(cluster = %self.config.name, %key, "a copy names an unknown syncer or epoch, it is overwritten");
        self.state().trouble(key, |trouble| trouble.forged_at = Some(Instant::now()));
    }

    /// Resets the troubles that belong to another decision than this.
    fn reset_troubles(&self, key: &ObjectKey, decision: &CopyDecision) {
        let is_weak = matches!(decision, CopyDecision::Delete(deletion) if !deletion.proof.is_firm());
        let is_ending = matches!(decision, CopyDecision::AwaitEnd);
        let is_waiting = matches!(decision, CopyDecision::Wait);
        self.state().known_trouble(key, |trouble| {
            trouble.is_held &= is_weak;
            trouble.end_asked_at = trouble.end_asked_at.filter(|_| is_ending);
            trouble.waits_since = trouble.waits_since.filter(|_| is_waiting);
        });
    }

    async fn apply(&self, view: &CopyView<'_>, decision: CopyDecision) -> Result<Step, SyncError> {
        let finished = |outcome| Ok(Step::Finished(outcome));
        if let (CopyDecision::Keep | CopyDecision::Apply(_), Some(upstream)) = (&decision, view.upstream)
            && let Some(step) = self.change_running_pod(view, upstream).await?
        {
            return Ok(step);
        }
        match (decision, view.upstream) {
            (CopyDecision::Create(body), Some(upstream)) => self.create(view, upstream, body).await,
            (CopyDecision::Apply(application), Some(upstream)) => self.update(view, upstream, application).await,
            (CopyDecision::Delete(deletion), _) => self.delete(view, deletion).await,
            (CopyDecision::ConfirmGone { uid, epoch }, _) => self.confirm_gone(view, &uid, epoch).await,
            (CopyDecision::Keep, Some(upstream)) => {
                if let Some(downstream) = &view.downstream {
                    self.report_synced(view, upstream, &downstream.object).await?;
                }
                finished(WorkOutcome::Done)
            }
            (CopyDecision::Wait, Some(upstream)) => {
                if let Some(downstream) = &view.downstream {
                    self.report_synced(view, upstream, &downstream.object).await?;
                }
                let now = Instant::now();
                let since = self.state().trouble(view.key, |trouble| *trouble.waits_since.get_or_insert(now));
                // No event signals its end. It lasts for a moment, or until a user acts.
                finished(WorkOutcome::RequeueAfter(since.elapsed().clamp(SHORTEST_WAIT, LONGEST_WAIT)))
            }
            (CopyDecision::Local, Some(upstream)) => {
                self.report_local(upstream).await?;
                finished(WorkOutcome::Done)
            }
            (CopyDecision::Refuse(refusal), Some(upstream)) => {
                self.report_refusal(upstream, &refusal).await?;
                finished(match refusal.reason {
                    "Conflict" | "KindNotServed" => WorkOutcome::RequeueAfter(CONFLICT_CHECK),
                    _ => WorkOutcome::Done,
                })
            }
            (CopyDecision::AwaitEnd, _) => self.await_end(view).await,
            (CopyDecision::Stale, _) => finished(WorkOutcome::RequeueAfter(Duration::from_secs(1))),
            (CopyDecision::Hold, _) => {
                tracing::warn!(cluster = %self.config.name, key = %view.key, "a copy is kept that upstream does not account for");
                finished(WorkOutcome::Done)
            }
            (CopyDecision::Fenced, _) => {
                self.fence();
                finished(WorkOutcome::Done)
            }
            // The object is placed on other physical clusters only, and has no copy here.
            (CopyDecision::Nothing, Some(upstream)) if self.entry(upstream).is_none() => {
                self.forget(view.key);
                self.enqueue_namespace_cleanup(&view.place.namespace);
                finished(WorkOutcome::Done)
            }
            (CopyDecision::Nothing | CopyDecision::Projected, Some(_)) => finished(WorkOutcome::Done),
            (_, None) => {
                self.forget(view.key);
                self.enqueue_namespace_cleanup(&view.place.namespace);
                finished(WorkOutcome::Done)
            }
        }
    }

    /// Waits for the tombstone of a copy. The event may have been missed, so the copy is read at intervals.
    async fn await_end(&self, view: &CopyView<'_>) -> Result<Step, SyncError> {
        let now = Instant::now();
        let asked = self.state().trouble(view.key, |trouble| *trouble.end_asked_at.get_or_insert(now));
        let waiting = Ok(Step::Finished(WorkOutcome::RequeueAfter(END_CHECK)));
        let (Some(served), Some(known), true) = (view.served, &view.downstream, asked.elapsed() >= END_CHECK) else {
            return waiting;
        };
        self.state().trouble(view.key, |trouble| trouble.end_asked_at = Some(now));
        match self.read(view, served).await? {
            Some(live) if live.uid() == known.uid() => waiting,
            other => {
                view.session.cache.remove(view.place, known.uid());
                Ok(Step::Replan(other))
            }
        }
    }

    /// Enqueues a check of a downstream namespace that may have become empty.
    pub(super) fn enqueue_namespace_cleanup(&self, namespace: &str) {
        self.queue.add_after(Work::Namespace(namespace.to_owned()), self.config.namespace_linger);
    }

    /// Returns the downstream address of an upstream object.
    pub(super) fn downstream_ref(&self, key: &ObjectKey) -> Result<ObjectRef, SyncRefusal> {
        let namespace = match key.namespace() {
            None => String::new(),
            Some(namespace) => {
                let mapping = self.config.spec.namespace_mapping;
                let downstream = naming::downstream_namespace(mapping, self.upstream.plane(), key.cluster, namespace);
                downstream.map_err(|error| SyncRefusal::not_syncable(error.to_string()))?.to_string()
            }
        };
        Ok(ObjectRef { resource: key.resource.clone(), namespace, name: key.name.to_string() })
    }

    /// Returns the entry of this physical cluster on an object's record.
    pub(super) fn entry(&self, upstream: &UpstreamObject) -> Option<PlacedCopy> {
        PlacementRecord::of(&upstream.object)?.on(&self.config.uid).cloned()
    }

    /// Reports an object whose namespace has no downstream name; nothing of it was ever created.
    async fn report_unmappable(
        &self,
        upstream: Option<&UpstreamObject>,
        refusal: &SyncRefusal,
    ) -> Result<WorkOutcome, SyncError> {
        let Some(upstream) = upstream else { return Ok(WorkOutcome::Done) };
        let Some(entry) = self.entry(upstream) else { return Ok(WorkOutcome::Done) };
        match (plan::deletion_proof(upstream, &entry), object::uid(&upstream.object)) {
            (Some(_), Some(uid)) => {
                self.upstream.confirm_gone(&upstream.key, &uid, &self.config.uid, entry.epoch).await?
            }
            _ => self.report_refusal(upstream, refusal).await?,
        }
        Ok(WorkOutcome::Done)
    }

    /// Returns true when an autoscaler that was synced downstream targets the object.
    pub(super) fn is_autoscaled(&self, view: &CopyView<'_>) -> bool {
        let Some(served) = view.served else { return false };
        let scalers = GroupResource::new("autoscaling", "horizontalpodautoscalers");
        view.session.cache.all(&scalers, view.place.namespace()).iter().any(|scaler| {
            let target = &scaler.object["spec"]["scaleTargetRef"];
            target["kind"] == *served.kind.kind && target["name"] == *view.place.name
        })
    }

    fn is_settled(&self, key: &ObjectKey, downstream: &Value) -> bool {
        let applied = object::annotation(downstream, annotations::DOWN_APPLIED).unwrap_or_default();
        let state = self.state();
        let Some((hash, made)) = state.settled.get(key) else { return false };
        hash == applied && *made == fingerprint(&without_volatile(downstream))
    }

    /// Records the result of an apply, so that another form of the same value is not a drift.
    pub(super) fn record_applied(&self, key: &ObjectKey, made: &Value) {
        let applied = object::annotation(made, annotations::DOWN_APPLIED).unwrap_or_default().to_owned();
        let made = fingerprint(&without_volatile(&ObservedObject::new(made.clone()).object));
        self.state().settled.insert(key.clone(), (applied, made));
    }
}

/// Returns the patch that moves the fields of our create to our apply, so that later applies can leave fields out.
pub(super) fn ownership_patch(live: &Value) -> Option<Value> {
    let mut entries = object::metadata(live).get("managedFields")?.as_array()?.clone();
    entries
        .iter_mut()
        .filter(|entry| super::reflector_cache::is_create_entry(entry))
        .for_each(|entry| entry["operation"] = json!("Apply"));
    Some(json!({"metadata": {
        "uid": object::meta_text(live, "uid"),
        "resourceVersion": object::meta_text(live, "resourceVersion"),
        "managedFields": entries,
    }}))
}
