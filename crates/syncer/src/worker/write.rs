//! The writes: each conditional on what was read, each safe to repeat.

use std::{sync::Arc, sync::atomic::Ordering, time::Duration};

use portolan_types::{Uid, annotations, object, placement::CopyIdentity, upstream::UpstreamObject};
use serde_json::Value;

use super::{
    SyncError, Work, Worker,
    copies::{Look, Step, ownership_patch},
    mirror::Observed,
    queue::Outcome,
};
use crate::{
    client::{DownstreamError, Served},
    plan::{self, Application, Deletion, Proof},
};

/// When to look at a deleted copy again, should its tombstone not come.
const TOMBSTONE_CHECK: Duration = Duration::from_secs(10);

impl Worker {
    pub(super) async fn create(
        &self,
        look: &Look<'_>,
        upstream: &UpstreamObject,
        body: Value,
    ) -> Result<Step, SyncError> {
        let Some(served) = look.served else { return Ok(Step::Finished(Outcome::Done)) };
        if let Some(refusal) = self.ensure_namespace(look.session, look.key, look.place).await? {
            self.report_refusal(upstream, &refusal).await?;
            return Ok(Step::Finished(Outcome::CheckAgainIn(Duration::from_secs(30))));
        }
        match look.session.api.create(&served.path(look.place.namespace(), None), &body).await {
            Ok(made) => {
                self.counters.creates.fetch_add(1, Ordering::Relaxed);
                self.written(look, upstream, made).await
            }
            // Something of the name is there, which our watch does not show: not ours, or its label was taken off.
            Err(error) if error.is_reason("AlreadyExists") => Ok(Step::Replan(self.read(look, served).await?)),
            Err(error) => self.write_failed(look, upstream, error).await,
        }
    }

    pub(super) async fn apply(
        &self,
        look: &Look<'_>,
        upstream: &UpstreamObject,
        application: Application,
    ) -> Result<Step, SyncError> {
        let Some(served) = look.served else { return Ok(Step::Finished(Outcome::Done)) };
        let path = served.path(look.place.namespace(), Some(&look.place.name));
        let mut body = application.body;
        if look.below.as_ref().is_some_and(|below| below.is_owned_by_create) {
            match self.take_ownership(look, &path, &body).await {
                Ok(Some(version)) => {
                    drop(object::metadata_mut(&mut body).insert("resourceVersion".into(), version.into()))
                }
                Ok(None) => {}
                Err(error) if error.code() == 409 => return Ok(Step::Replan(self.read(look, served).await?)),
                Err(error) => return self.write_failed(look, upstream, error).await,
            }
        }
        let is_repair = look.below.as_ref().is_some_and(|below| {
            let applied = |object| object::annotation(object, annotations::DOWN_APPLIED);
            applied(&below.object) == applied(&body)
        });
        match look.session.api.apply(&path, &body).await {
            Ok(made) => {
                self.counters.applies.fetch_add(1, Ordering::Relaxed);
                self.counters.repairs.fetch_add(u64::from(is_repair), Ordering::Relaxed);
                self.settle(look.key, &made);
                self.written(look, upstream, made).await
            }
            Err(error) if error.code() == 409 || error.is_absent(&look.place.name) => {
                Ok(Step::Replan(self.read(look, served).await?))
            }
            Err(error) => self.write_failed(look, upstream, error).await,
        }
    }

    /// Makes the fields that our create set ours by apply. Returns the resourceVersion after it.
    async fn take_ownership(
        &self,
        look: &Look<'_>,
        path: &str,
        body: &Value,
    ) -> Result<Option<String>, DownstreamError> {
        let live = look.session.api.get(path).await?;
        let is_same =
            ["uid", "resourceVersion"].iter().all(|key| object::meta_text(&live, key) == object::meta_text(body, key));
        let Some(patch) = ownership_patch(&live).filter(|_| is_same) else { return Ok(None) };
        let made = look.session.api.merge_patch(path, &patch).await?;
        Ok(Some(object::meta_text(&made, "resourceVersion").to_owned()))
    }

    pub(super) async fn delete(&self, look: &Look<'_>, deletion: Deletion) -> Result<Step, SyncError> {
        let Some(served) = look.served else { return Ok(Step::Finished(Outcome::Done)) };
        if !deletion.proof.is_firm() && !self.brake_allows(look) {
            return Ok(Step::Finished(Outcome::Done));
        }
        let path = served.path(look.place.namespace(), Some(&look.place.name));
        match look.session.api.delete(&path, &deletion, propagation(served)).await {
            Ok(_) => {
                self.counters.deletes.fetch_add(1, Ordering::Relaxed);
                tracing::info!(cluster = %self.config.name, key = %look.key, proof = ?deletion.proof, "copy deleted");
                self.queue_look_after_deletion(look);
                Ok(Step::Finished(Outcome::CheckAgainIn(TOMBSTONE_CHECK)))
            }
            Err(error) if error.is_absent(&look.place.name) => {
                look.session.mirror.remove(look.place, &deletion.uid);
                Ok(Step::Replan(None))
            }
            Err(error) if error.code() == 409 => Ok(Step::Replan(self.read(look, served).await?)),
            Err(error) => Err(error.into()),
        }
    }

    /// What goes at once needs no second look later: reads it now, because its tombstone may be a while in coming.
    fn queue_look_after_deletion(&self, look: &Look<'_>) {
        self.queue.add_after(Work::Namespace(look.place.namespace.clone()), self.config.namespace_linger);
    }

    fn brake_allows(&self, look: &Look<'_>) -> bool {
        let copies = look.session.mirror.len();
        let (allowed, was_held) = {
            let mut state = self.state();
            let was_held = state.brake.is_held();
            (state.brake.allows(copies), was_held)
        };
        if !allowed {
            self.counters.held.fetch_add(1, Ordering::Relaxed);
            if !was_held {
                tracing::error!(cluster = %self.config.name, "too many copies to delete at once without firm proof: none is deleted");
            }
        }
        allowed
    }

    /// Tells upstream that the copy is gone, after the API server itself has said so.
    pub(super) async fn confirm_gone(&self, look: &Look<'_>, uid: &Uid, epoch: u64) -> Result<Step, SyncError> {
        if let Some(served) = look.served
            && let Some(live) = self.read(look, served).await?
            && self.is_copy_of(look, &live.object)
        {
            return Ok(Step::Replan(Some(live)));
        }
        self.upstream.confirm_gone(look.key, uid, &self.config.uid, epoch).await?;
        self.forget(look.key);
        self.queue.add_after(Work::Namespace(look.place.namespace.clone()), self.config.namespace_linger);
        Ok(Step::Finished(Outcome::Done))
    }

    fn is_copy_of(&self, look: &Look<'_>, live: &Value) -> bool {
        let identity: Option<CopyIdentity> = plan::copy_identity(live, &self.config.uid);
        identity.is_some_and(|identity| {
            identity.cluster == look.key.cluster.to_string()
                && identity.namespace == look.key.namespace().map_or("", |namespace| namespace.as_str())
        })
    }

    /// Reads the object in the copy's place. `None` is positive: the API server says that there is none.
    pub(super) async fn read(&self, look: &Look<'_>, served: &Served) -> Result<Option<Arc<Observed>>, SyncError> {
        let path = served.path(look.place.namespace(), Some(&look.place.name));
        match look.session.api.get(&path).await {
            // A success that is not about this object proves nothing.
            Ok(live) if object::name(&live) != look.place.name || object::meta_text(&live, "uid").is_empty() => {
                Err(DownstreamError::Garbled(format!("not the object {} that was asked for", look.place.name)).into())
            }
            Ok(live) => {
                let observed = Arc::new(Observed::new(live.clone()));
                if self.is_copy_of(look, &observed.object)
                    && object::label(&observed.object, annotations::DOWN_CLUSTER).is_some()
                {
                    look.session.mirror.put(look.place, live);
                }
                Ok(Some(observed))
            }
            Err(error) if error.is_absent(&look.place.name) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn written(&self, look: &Look<'_>, upstream: &UpstreamObject, made: Value) -> Result<Step, SyncError> {
        let observed = look.session.mirror.put(look.place, made);
        self.report_synced(upstream, &observed.object).await?;
        Ok(Step::Finished(Outcome::Done))
    }

    /// What the physical cluster will refuse again and again is told upstream; all else is tried again first.
    async fn write_failed(
        &self,
        look: &Look<'_>,
        upstream: &UpstreamObject,
        error: DownstreamError,
    ) -> Result<Step, SyncError> {
        if let DownstreamError::Refused(answer) = &error {
            let reason = match answer.code {
                403 if answer.message.contains("being terminated") => return Err(SyncError::NamespaceEnding),
                404 => {
                    // The namespace has gone since: what is known of it is old.
                    look.session.mirror.remove_namespace(&look.place.namespace);
                    return Err(error.into());
                }
                400 | 422 => "Invalid",
                401 | 403 => "Forbidden",
                429 => return Err(error.into()),
                _ => "Refused",
            };
            self.report_failure(upstream, reason, &answer.message).await?;
        }
        Err(error.into())
    }
}

/// A workload is gone when its pods are: what must not run twice is placed elsewhere only then.
pub(super) fn propagation(served: &Served) -> &'static str {
    let has_pods = matches!(&*served.kind.group, "apps" | "batch") || &*served.kind.kind == "ReplicationController";
    if has_pods { "Foreground" } else { "Background" }
}

impl Proof {
    /// The proof of a recorded debt, as a delete of what was read.
    pub(super) fn debt(copy: &Value) -> Deletion {
        Deletion {
            uid: object::meta_text(copy, "uid").to_owned(),
            resource_version: object::meta_text(copy, "resourceVersion").to_owned(),
            proof: Self::Debt,
            grace: None,
        }
    }
}
