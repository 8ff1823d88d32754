//! One upstream object and its copy: observes both, plans, and applies one step.

use std::{sync::Arc, sync::atomic::Ordering, time::Duration};

use portolan_types::{
    GroupResource, ObjectKey, annotations, fingerprint, object,
    placement::{Phase, PlacedCopy, PlacementRecord},
    upstream::UpstreamObject,
    work::Outcome,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    SyncError, Work, Worker,
    mirror::{Observed, Place},
    session::Session,
};
use crate::{
    client::{Served, discover},
    naming,
    plan::{self, Above, Decision, Seen, Target},
    rules::{Refusal, SyncRules},
    transform::{Lacking, without_volatile},
};

/// How often one pass may read the copy again after it turned out to have changed.
const MAX_READS: usize = 4;
/// When to look again at what nobody tells about: something foreign in the way.
const CONFLICT_CHECK: Duration = Duration::from_secs(30);
/// How often the API server is asked whether a copy that ends is gone, should its tombstone be missed.
const END_CHECK: Duration = Duration::from_secs(5);

/// How often upstream is asked whether what an object says has been let in.
const SHORTEST_WAIT: Duration = Duration::from_millis(4);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// What one step led to.
pub(super) enum Step {
    Finished(Outcome),
    /// The copy is not what was thought: plan again with what was just read.
    Replan(Option<Arc<Observed>>),
}

/// What one decision about one object is made from.
pub(super) struct View<'a> {
    pub(super) session: &'a Session,
    pub(super) key: &'a ObjectKey,
    pub(super) upstream: Option<&'a UpstreamObject>,
    pub(super) place: &'a Place,
    pub(super) served: Option<&'a Served>,
    pub(super) below: Option<Arc<Observed>>,
}

impl Worker {
    pub(super) async fn reconcile_copy(&self, key: &ObjectKey) -> Result<Outcome, SyncError> {
        let upstream = self.upstream.get(key).await?;
        let seen = self.state().known.contains_key(key);
        if let Some(upstream) = &upstream {
            self.remember(upstream);
            if self.entry(upstream).is_some_and(|entry| entry.phase == Phase::Projected) {
                return self.reconcile_projected(upstream).await;
            }
        }
        let session = self.session()?;
        let place = match self.place(key) {
            Ok(place) => place,
            Err(refusal) => return self.without_place(upstream.as_ref(), &refusal).await,
        };
        let leaves =
            upstream.as_ref().is_some_and(|up| self.entry(up).is_some_and(|e| plan::leaving(up, &e).is_some()));
        let served = match leaves {
            true => self.served_for(&session, &key.resource).await?,
            false => session.served(&key.resource),
        };
        if session.served(&key.resource).is_some() && !session.mirror.is_synced(&key.resource) {
            return Err(SyncError::NotSynced(key.resource.to_string()));
        }
        if upstream.is_none() && !seen && !self.is_view_synced.load(Ordering::Acquire) {
            return Err(SyncError::NotSynced("upstream's objects".into()));
        }
        let below = session.mirror.get(&place);
        let mut view =
            View { session: &session, key, upstream: upstream.as_ref(), place: &place, served: served.as_ref(), below };
        for _ in 0..MAX_READS {
            let decision = self.plan(&view, seen).await?;
            match self.apply(&view, decision).await? {
                Step::Finished(outcome) => return Ok(outcome),
                Step::Replan(below) => view.below = below,
            }
        }
        Err(SyncError::KeepsChanging)
    }

    /// How the physical cluster serves a resource. One that does not go down any more is asked about: copies of before may be
    /// there still, though nobody watches them.
    pub(super) async fn served_for(
        &self,
        session: &Session,
        resource: &GroupResource,
    ) -> Result<Option<Served>, SyncError> {
        match session.served(resource) {
            None if self.rules.refusal(resource).is_some() => {
                let alone = SyncRules::new(&[resource.to_string()]);
                Ok(discover(&session.api, &alone).await?.remove(resource))
            }
            served => Ok(served),
        }
    }

    /// Objects may be stored in a version that is not served, and an API server that starts does not serve all yet.
    pub(super) fn not_served(&self, resource: &GroupResource) -> SyncError {
        SyncError::NotServed { resource: resource.to_string(), name: self.config.name.clone() }
    }

    async fn plan(&self, view: &View<'_>, seen: bool) -> Result<Decision, SyncError> {
        let rules = &self.rules;
        let target = Target { physical: &self.config.uid, syncer_epoch: self.config.syncer_epoch, rules };
        let below = view.below.as_ref().map(|observed| &observed.object);
        let newest_syncer = match below.is_some_and(|below| plan::names_newer_syncer(below, &target)) {
            true => self.newest_syncer_beside(view.key).await?,
            false => self.config.syncer_epoch,
        };
        if self.is_outdated(view).await? {
            return Ok(Decision::Stale);
        }
        let lacking = self.lacking(view);
        let audiences = view.session.audiences();
        let decision = plan::plan(
            &target,
            &Seen {
                key: view.key,
                above: view.upstream.map_or(Above::Removed { seen }, Above::Present),
                below,
                namespace: view.place.namespace(),
                served: view.served.map(|served| (&served.kind, served.namespaced)),
                autoscaled: self.is_autoscaled(view),
                settled: below.is_some_and(|below| self.is_settled(view.key, below)),
                newest_syncer,
                lacking: &lacking,
                audiences: &audiences,
            },
        );
        self.forget_troubles_of_others(view.key, &decision);
        Ok(decision)
    }

    /// What the object says and an older physical cluster has no field for.
    fn lacking(&self, view: &View<'_>) -> Lacking {
        let (Some(schema), Some(upstream)) = (&view.session.schema, view.upstream) else { return Lacking::default() };
        let all = schema.lacking(&upstream.kind, &upstream.object);
        let (defaults, meant) = all.into_iter().partition(|pointer| self.upstream.is_default(upstream, pointer));
        Lacking { defaults, meant }
    }

    /// Asks upstream which syncer is the newest, since a copy of `key` names a newer one than this.
    async fn newest_syncer_beside(&self, key: &ObjectKey) -> Result<u64, SyncError> {
        let newest = self.upstream.newest_syncer(&self.config.uid).await?;
        if newest <= self.config.syncer_epoch {
            self.found_forged(key);
        }
        Ok(newest)
    }

    /// Whether the copy is of a later stay than was read upstream, and upstream's latest word is no longer what was read. When
    /// it is, a copy below has made up its number, or upstream was restored from an older state.
    async fn is_outdated(&self, view: &View<'_>) -> Result<bool, SyncError> {
        let (Some(upstream), Some(below)) = (view.upstream, &view.below) else { return Ok(false) };
        let is_later = self.entry(upstream).is_some_and(|entry| plan::names_later_stay(&below.object, &entry));
        if !is_later {
            return Ok(false);
        }
        self.check_newest().await?;
        let latest = self.upstream.get(view.key).await?;
        let is_same = !self.is_fenced.load(Ordering::Relaxed)
            && latest.is_some_and(|latest| {
                object::uid(&latest.object) == object::uid(&upstream.object)
                    && self.entry(&latest) == self.entry(upstream)
            });
        if is_same {
            self.found_forged(view.key);
        }
        Ok(!is_same)
    }

    fn found_forged(&self, key: &ObjectKey) {
        tracing::warn!(cluster = %self.config.name, %key, "a copy names what upstream does not know of: it is written over");
        self.state().trouble(key, |trouble| trouble.forged_at = Some(Instant::now()));
    }

    /// What was noted for one decision does not outlive it.
    fn forget_troubles_of_others(&self, key: &ObjectKey, decision: &Decision) {
        let is_weak = matches!(decision, Decision::Delete(deletion) if !deletion.proof.is_firm());
        let is_ending = matches!(decision, Decision::AwaitEnd);
        let is_waiting = matches!(decision, Decision::Wait);
        self.state().known_trouble(key, |trouble| {
            trouble.is_held &= is_weak;
            trouble.end_asked_at = trouble.end_asked_at.filter(|_| is_ending);
            trouble.waits_since = trouble.waits_since.filter(|_| is_waiting);
        });
    }

    async fn apply(&self, view: &View<'_>, decision: Decision) -> Result<Step, SyncError> {
        let finished = |outcome| Ok(Step::Finished(outcome));
        match (decision, view.upstream) {
            (Decision::Create(body), Some(upstream)) => self.create(view, upstream, body).await,
            (Decision::Apply(application), Some(upstream)) => self.update(view, upstream, application).await,
            (Decision::Delete(deletion), _) => self.delete(view, deletion).await,
            (Decision::ConfirmGone { uid, epoch }, _) => self.confirm_gone(view, &uid, epoch).await,
            (Decision::Keep, Some(upstream)) => {
                if let Some(below) = &view.below {
                    self.report_synced(view, upstream, &below.object).await?;
                }
                finished(Outcome::Done)
            }
            (Decision::Wait, Some(upstream)) => {
                if let Some(below) = &view.below {
                    self.report_synced(view, upstream, &below.object).await?;
                }
                let now = Instant::now();
                let since = self.state().trouble(view.key, |trouble| *trouble.waits_since.get_or_insert(now));
                // Nothing tells of its end. It lasts for a moment, or until somebody does something about it.
                finished(Outcome::CheckAgainIn(since.elapsed().clamp(SHORTEST_WAIT, LONGEST_WAIT)))
            }
            (Decision::Local, Some(upstream)) => {
                self.report_local(upstream).await?;
                finished(Outcome::Done)
            }
            (Decision::Refuse(refusal), Some(upstream)) => {
                self.report_refusal(upstream, &refusal).await?;
                finished(match refusal.reason {
                    "Conflict" => Outcome::CheckAgainIn(CONFLICT_CHECK),
                    _ => Outcome::Done,
                })
            }
            (Decision::AwaitEnd, _) => self.await_end(view).await,
            (Decision::Stale, _) => finished(Outcome::CheckAgainIn(Duration::from_secs(1))),
            (Decision::Hold, _) => {
                tracing::warn!(cluster = %self.config.name, key = %view.key, "a copy stays that upstream does not account for");
                finished(Outcome::Done)
            }
            (Decision::Fenced, _) => {
                self.fence();
                finished(Outcome::Done)
            }
            // It is elsewhere: nothing of it is here, nor is to be.
            (Decision::Nothing, Some(upstream)) if self.entry(upstream).is_none() => {
                self.forget(view.key);
                self.tidy_namespace(&view.place.namespace);
                finished(Outcome::Done)
            }
            (Decision::Nothing | Decision::Projected, Some(_)) => finished(Outcome::Done),
            (_, None) => {
                self.forget(view.key);
                self.tidy_namespace(&view.place.namespace);
                finished(Outcome::Done)
            }
        }
    }

    /// Waits for the end of a copy, whose tombstone says it. That may have been missed, so now and then the API server is asked.
    async fn await_end(&self, view: &View<'_>) -> Result<Step, SyncError> {
        let now = Instant::now();
        let asked = self.state().trouble(view.key, |trouble| *trouble.end_asked_at.get_or_insert(now));
        let waiting = Ok(Step::Finished(Outcome::CheckAgainIn(END_CHECK)));
        let (Some(served), Some(known), true) = (view.served, &view.below, asked.elapsed() >= END_CHECK) else {
            return waiting;
        };
        self.state().trouble(view.key, |trouble| trouble.end_asked_at = Some(now));
        match self.read(view, served).await? {
            Some(live) if live.uid() == known.uid() => waiting,
            other => {
                view.session.mirror.remove(view.place, known.uid());
                Ok(Step::Replan(other))
            }
        }
    }

    /// Looks at a namespace downstream that may have become empty.
    pub(super) fn tidy_namespace(&self, namespace: &str) {
        self.queue.add_after(Work::Namespace(namespace.to_owned()), self.config.namespace_linger);
    }

    /// The downstream address of an upstream object.
    pub(super) fn place(&self, key: &ObjectKey) -> Result<Place, Refusal> {
        let namespace = match key.namespace() {
            None => String::new(),
            Some(namespace) => {
                let mapping = self.config.spec.namespace_mapping;
                let below = naming::downstream_namespace(mapping, self.upstream.plane(), key.cluster, namespace);
                below.map_err(|error| Refusal::not_syncable(error.to_string()))?.to_string()
            }
        };
        Ok(Place { resource: key.resource.clone(), namespace, name: key.name.to_string() })
    }

    /// The entry of this physical cluster on an object's record.
    pub(super) fn entry(&self, upstream: &UpstreamObject) -> Option<PlacedCopy> {
        PlacementRecord::of(&upstream.object)?.on(&self.config.uid).cloned()
    }

    /// An object whose namespace never goes down: nothing of it was ever made.
    async fn without_place(&self, upstream: Option<&UpstreamObject>, refusal: &Refusal) -> Result<Outcome, SyncError> {
        let Some(upstream) = upstream else { return Ok(Outcome::Done) };
        let Some(entry) = self.entry(upstream) else { return Ok(Outcome::Done) };
        match (plan::leaving(upstream, &entry), object::uid(&upstream.object)) {
            (Some(_), Some(uid)) => {
                self.upstream.confirm_gone(&upstream.key, &uid, &self.config.uid, entry.epoch).await?
            }
            _ => self.report_refusal(upstream, refusal).await?,
        }
        Ok(Outcome::Done)
    }

    /// Whether an autoscaler of ours downstream is for this object.
    pub(super) fn is_autoscaled(&self, view: &View<'_>) -> bool {
        let Some(served) = view.served else { return false };
        let scalers = GroupResource::new("autoscaling", "horizontalpodautoscalers");
        view.session.mirror.all(&scalers, view.place.namespace()).iter().any(|scaler| {
            let target = &scaler.object["spec"]["scaleTargetRef"];
            target["kind"] == *served.kind.kind && target["name"] == *view.place.name
        })
    }

    fn is_settled(&self, key: &ObjectKey, below: &Value) -> bool {
        let applied = object::annotation(below, annotations::DOWN_APPLIED).unwrap_or_default();
        let state = self.state();
        let Some((hash, made)) = state.settled.get(key) else { return false };
        hash == applied && *made == fingerprint(&without_volatile(below))
    }

    /// Remembers what an apply made of an object, so that another way of writing the same is no drift.
    pub(super) fn settle(&self, key: &ObjectKey, made: &Value) {
        let applied = object::annotation(made, annotations::DOWN_APPLIED).unwrap_or_default().to_owned();
        let made = fingerprint(&without_volatile(&Observed::new(made.clone()).object));
        self.state().settled.insert(key.clone(), (applied, made));
    }
}

/// The patch that makes what our create owns owned by an apply, so that later applies can leave fields out.
pub(super) fn ownership_patch(live: &Value) -> Option<Value> {
    let mut entries = object::metadata(live).get("managedFields")?.as_array()?.clone();
    entries
        .iter_mut()
        .filter(|entry| super::mirror::is_create_entry(entry))
        .for_each(|entry| entry["operation"] = json!("Apply"));
    Some(json!({"metadata": {
        "uid": object::meta_text(live, "uid"),
        "resourceVersion": object::meta_text(live, "resourceVersion"),
        "managedFields": entries,
    }}))
}
