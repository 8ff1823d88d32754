//! One upstream object and its copy: reads both, plans, and does one step.

use std::{sync::Arc, sync::atomic::Ordering, time::Duration};

use portolan_types::{
    GroupResource, ObjectKey, annotations, object,
    placement::{Phase, PlacedCopy, PlacementRecord},
    upstream::{Debt, UpstreamObject},
};
use serde_json::{Value, json};

use super::{
    SyncError, Work, Worker,
    mirror::{Observed, Place},
    queue::Outcome,
    session::Session,
};
use crate::{
    client::{Served, discover},
    naming,
    plan::{self, Above, Decision, Seen, Target},
    rules::{Refusal, SyncRules},
    status,
    transform::{fingerprint, without_volatile},
};

/// How often one look may read the copy again after it turned out to have changed.
const MAX_READS: usize = 4;
/// When to look again at what nobody tells about: something foreign in the way.
const CONFLICT_CHECK: Duration = Duration::from_secs(30);

/// When to look again at what must be proven gone while its physical cluster is out of reach.
const UNPROVEN_CHECK: Duration = Duration::from_secs(30);

/// What one step led to.
pub(super) enum Step {
    Finished(Outcome),
    /// The copy is not what was thought: plan again with what was just read.
    Replan(Option<Arc<Observed>>),
}

/// One look at one object.
pub(super) struct Look<'a> {
    pub(super) session: &'a Session,
    pub(super) key: &'a ObjectKey,
    pub(super) upstream: Option<&'a UpstreamObject>,
    pub(super) place: &'a Place,
    pub(super) served: Option<&'a Served>,
    pub(super) below: Option<Arc<Observed>>,
}

impl Worker {
    pub(super) async fn look_at_copy(&self, key: &ObjectKey) -> Result<Outcome, SyncError> {
        let upstream = self.upstream.get(key).await?;
        let seen = self.state().known.contains_key(key);
        if let Some(upstream) = &upstream {
            self.remember(upstream);
            if self.entry(upstream).is_some_and(|entry| entry.phase == Phase::Projected) {
                return self.look_at_projected(upstream).await;
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
        let mut look =
            Look { session: &session, key, upstream: upstream.as_ref(), place: &place, served: served.as_ref(), below };
        for _ in 0..MAX_READS {
            match self.step(&look, seen).await? {
                Step::Finished(outcome) => return Ok(outcome),
                Step::Replan(below) => look.below = below,
            }
        }
        Ok(Outcome::Failed { not_before: None })
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

    async fn step(&self, look: &Look<'_>, seen: bool) -> Result<Step, SyncError> {
        let rules = &self.rules;
        let target = Target { physical: &self.config.uid, syncer_epoch: self.config.syncer_epoch, rules };
        let below = look.below.as_ref().map(|observed| &observed.object);
        let decision = plan::plan(
            &target,
            &Seen {
                key: look.key,
                above: look.upstream.map_or(Above::Removed { seen }, Above::Present),
                below,
                namespace: look.place.namespace(),
                served: look.served.map(|served| (&served.kind, served.namespaced)),
                autoscaled: self.is_autoscaled(look),
                settled: below.is_some_and(|below| self.is_settled(look.key, below)),
            },
        );
        self.act(look, decision).await
    }

    async fn act(&self, look: &Look<'_>, decision: Decision) -> Result<Step, SyncError> {
        let finished = |outcome| Ok(Step::Finished(outcome));
        match (decision, look.upstream) {
            (Decision::Create(body), Some(upstream)) => self.create(look, upstream, body).await,
            (Decision::Apply(application), Some(upstream)) => self.apply(look, upstream, application).await,
            (Decision::Delete(deletion), _) => self.delete(look, deletion).await,
            (Decision::ConfirmGone { uid, epoch }, _) => self.confirm_gone(look, &uid, epoch).await,
            (Decision::Keep, Some(upstream)) => {
                if let Some(below) = &look.below {
                    self.report_synced(upstream, &below.object).await?;
                }
                finished(Outcome::Done)
            }
            (Decision::Local, Some(upstream)) => {
                self.report_local(upstream).await?;
                finished(Outcome::Done)
            }
            (Decision::Refuse(refusal), Some(upstream)) => {
                self.report_refusal(upstream, &refusal).await?;
                finished(if refusal.reason == "Conflict" {
                    Outcome::CheckAgainIn(CONFLICT_CHECK)
                } else {
                    Outcome::Done
                })
            }
            (Decision::AwaitEnd, _) => finished(Outcome::CheckAgainIn(CONFLICT_CHECK)),
            (Decision::Stale, _) => finished(Outcome::CheckAgainIn(Duration::from_secs(1))),
            (Decision::Hold, _) => {
                tracing::warn!(cluster = %self.config.name, key = %look.key, "a copy stays that upstream does not account for");
                finished(Outcome::Done)
            }
            (Decision::Fenced, _) => {
                self.fence();
                finished(Outcome::Done)
            }
            // It is elsewhere: nothing of it is here, nor is to be.
            (Decision::Nothing, Some(upstream)) if self.entry(upstream).is_none() => {
                self.forget(look.key);
                self.queue.add_after(Work::Namespace(look.place.namespace.clone()), self.config.namespace_linger);
                finished(Outcome::Done)
            }
            (Decision::Nothing | Decision::Projected, Some(_)) => finished(Outcome::Done),
            (_, None) => {
                self.forget(look.key);
                self.queue.add_after(Work::Namespace(look.place.namespace.clone()), self.config.namespace_linger);
                finished(Outcome::Done)
            }
        }
    }

    /// The downstream address of an upstream object.
    pub(super) fn place(&self, key: &ObjectKey) -> Result<Place, Refusal> {
        let namespace = match key.namespace() {
            None => String::new(),
            Some(namespace) => naming::downstream_namespace(self.config.spec.namespace_mapping, key.cluster, namespace)
                .map_err(|error| Refusal::not_syncable(error.to_string()))?
                .to_string(),
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

    /// While the physical cluster is out of reach: says so after a while, and turns deletions into debts after a longer one.
    pub(super) async fn while_cut_off(&self, key: &ObjectKey) -> Result<Outcome, SyncError> {
        let Some(upstream) = self.upstream.get(key).await? else { return Ok(Outcome::Failed { not_before: None }) };
        let Some(entry) = self.entry(&upstream) else { return Ok(Outcome::Done) };
        let (since, uid) = (self.unreachable_for(), object::uid(&upstream.object));
        let leaves = entry.phase != Phase::Projected && plan::leaving(&upstream, &entry).is_some();
        let limit = if leaves { self.config.deletion_timeout } else { self.config.unreachable_after };
        if since < limit || since.is_zero() {
            let rest = limit.saturating_sub(since).clamp(Duration::from_millis(500), Duration::from_secs(30));
            return Ok(Outcome::CheckAgainIn(rest));
        }
        match (leaves, uid) {
            (true, Some(_)) if !plan::may_be_owed(&upstream, &self.config.uid) => {
                return Ok(Outcome::CheckAgainIn(UNPROVEN_CHECK));
            }
            (true, Some(uid)) => {
                let debt = Debt { key: key.clone(), kind: upstream.kind.clone(), uid, epoch: entry.epoch };
                self.upstream.record_debt(&self.config.uid, debt.clone()).await?;
                self.forget(key);
                // The connection may have come back, and the debts been read, just before this one was written.
                self.queue.add(Work::Debt(Box::new(debt)));
            }
            _ if entry.phase == Phase::Active => {
                self.report_failure(&upstream, status::UNREACHABLE, "the physical cluster is out of reach").await?;
            }
            _ => {}
        }
        Ok(Outcome::Done)
    }

    /// Whether an autoscaler of ours downstream is for this object.
    fn is_autoscaled(&self, look: &Look<'_>) -> bool {
        let Some(served) = look.served else { return false };
        let scalers = GroupResource::new("autoscaling", "horizontalpodautoscalers");
        look.session.mirror.all(&scalers, look.place.namespace()).iter().any(|scaler| {
            let target = &scaler.object["spec"]["scaleTargetRef"];
            target["kind"] == *served.kind.kind && target["name"] == *look.place.name
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
