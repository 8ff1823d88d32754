//! Writes to the physical cluster. Each is conditional on the read state, and can be repeated.

use std::{sync::Arc, sync::atomic::Ordering, time::Duration};

use portolan_types::{Uid, annotations, object, placement::CopyIdentity, upstream::UpstreamObject, work::WorkOutcome};
use serde_json::Value;

use super::{
    SyncError, Work, Worker,
    copies::{CopyView, Step, ownership_patch},
    reflector_cache::ObservedObject,
};
use crate::{
    client::{DownstreamError, ServedResource},
    plan::{self, CopyDeletion, CopyUpdate, Proof},
    project::PodChanges,
    rules::{self, SyncRefusal},
    transform::{check_ephemeral, intended_for, list_replacement},
};

/// Interval at which claims in the way of a StatefulSet are looked at again.
const LEFT_CLAIMS_CHECK: Duration = Duration::from_secs(30);
/// Delay of another check of a deleted copy, in case its tombstone does not arrive.
const TOMBSTONE_CHECK: Duration = Duration::from_secs(10);
/// Time between two looks at whether a copy fits into the share of its logical cluster.
const SHARE_CHECK: Duration = Duration::from_secs(30);

/// Returns the hash of a copy's last applied state.
fn applied_hash(copy: &Value) -> Option<&str> {
    object::annotation(copy, annotations::DOWN_APPLIED)
}

impl Worker {
    pub(super) async fn create(
        &self,
        view: &CopyView<'_>,
        upstream: &UpstreamObject,
        body: Value,
    ) -> Result<Step, SyncError> {
        let Some(served) = view.served else { return Ok(Step::Finished(WorkOutcome::Done)) };
        if let Some(wait) = self.recreation_wait(view.key) {
            return Ok(Step::Finished(WorkOutcome::RequeueAfter(wait)));
        }
        if let Some(step) = self.refuse_excess(view, upstream, &body).await? {
            return Ok(step);
        }
        if let Some(refusal) = self.ensure_namespace(view.session, view.key, view.place).await? {
            self.report_refusal(upstream, &refusal).await?;
            return Ok(Step::Finished(WorkOutcome::RequeueAfter(Duration::from_secs(30))));
        }
        // Labels of a namespace that had nothing in it were not followed.
        self.queue.add(Work::NamespaceLabels(view.place.namespace.clone()));
        // It would reuse earlier claims, with the data in their volumes.
        if &*view.key.resource.resource == "statefulsets" && self.has_owed_claims(view, upstream).await? {
            return Err(SyncError::ClaimsOwed);
        }
        if &*view.key.resource.resource == "statefulsets"
            && let Some(refusal) = self.refuse_left_claims(view, upstream).await?
        {
            self.report_refusal(upstream, &refusal).await?;
            return Ok(Step::Finished(WorkOutcome::RequeueAfter(LEFT_CLAIMS_CHECK)));
        }
        portolan_types::failpoint!("syncer/create-planned");
        match view.session.api.create(&served.path(view.place.namespace(), None), &body).await {
            Ok(made) => {
                portolan_types::failpoint!("syncer/created");
                self.counters.creates.fetch_add(1, Ordering::Relaxed);
                self.record_creation(view.key);
                self.written(view, upstream, made).await
            }
            // An object of that name exists that our watch does not show: it is not ours, or its label was removed.
            Err(error) if error.is_reason("AlreadyExists") => Ok(Step::Replan(self.read(view, served).await?)),
            Err(error) => self.write_failed(view, upstream, error).await,
        }
    }

    pub(super) async fn update(
        &self,
        view: &CopyView<'_>,
        upstream: &UpstreamObject,
        application: CopyUpdate,
    ) -> Result<Step, SyncError> {
        let Some(served) = view.served else { return Ok(Step::Finished(WorkOutcome::Done)) };
        let path = served.path(view.place.namespace(), Some(&view.place.name));
        let mut body = application.body;
        let is_repair =
            view.downstream.as_ref().is_some_and(|downstream| applied_hash(&downstream.object) == applied_hash(&body));
        let work = Work::Copy(view.key.clone());
        let wanted = applied_hash(&body).unwrap_or_default().to_owned();
        if let Some(wait) = self.repair_wait(&work, &wanted).filter(|_| is_repair) {
            return Ok(Step::Finished(WorkOutcome::RequeueAfter(wait)));
        }
        if let Some(step) = self.refuse_excess(view, upstream, &body).await? {
            return Ok(step);
        }
        if view.downstream.as_ref().is_some_and(|downstream| downstream.is_owned_by_create) {
            match self.take_ownership(view, &path, &body).await {
                Ok(Some(version)) => {
                    drop(object::metadata_mut(&mut body).insert("resourceVersion".into(), version.into()))
                }
                Ok(None) => {}
                Err(error) if error.code() == 409 => return Ok(Step::Replan(self.read(view, served).await?)),
                Err(error) => return self.write_failed(view, upstream, error).await,
            }
        }
        if is_repair {
            self.record_repair(work, wanted);
        }
        portolan_types::failpoint!("syncer/apply-planned");
        match view.session.api.apply(&path, &body).await {
            Ok(made) => {
                portolan_types::failpoint!("syncer/applied");
                self.counters.applies.fetch_add(1, Ordering::Relaxed);
                self.counters.repairs.fetch_add(u64::from(is_repair), Ordering::Relaxed);
                self.record_applied(view.key, &made);
                self.written(view, upstream, made).await
            }
            Err(error) if error.code() == 409 || error.is_absent(&view.place.name) => {
                Ok(Step::Replan(self.read(view, served).await?))
            }
            Err(error) => match self.replace_lists(view, &path, &body, &error).await? {
                Some(step) => Ok(step),
                None => self.write_failed(view, upstream, error).await,
            },
        }
    }

    /// Brings resources and ephemeral containers to a running pod: no apply of its copy may change them. Returns `None`
    /// when it has them.
    pub(super) async fn change_running_pod(
        &self,
        view: &CopyView<'_>,
        upstream: &UpstreamObject,
    ) -> Result<Option<Step>, SyncError> {
        let is_pod = upstream.key.resource.group.is_empty() && &*upstream.kind.kind == "Pod";
        let (Some(served), Some(live), true) = (view.served, &view.downstream, is_pod) else { return Ok(None) };
        // Without it, no copy can exist.
        let Ok(intended) = intended_for(&self.config.uid, upstream) else { return Ok(None) };
        let mut changes = PodChanges::missing_in(&live.object, &intended);
        // Upstream refuses such changes, too. If one exists nevertheless, it is skipped, and does not block others.
        changes.ephemeral.retain(|container| check_ephemeral(container).is_ok());
        let Some((part, patch)) = changes.next_patch(&live.object) else { return Ok(None) };
        let path = format!("{}{}", served.path(view.place.namespace(), Some(&view.place.name)), part.path());
        match view.session.api.patch_pod(&path, &live.object, &patch).await {
            Ok(made) => Ok(Some(Step::Replan(Some(view.session.cache.put(view.place, made))))),
            Err(error) if error.code() == 409 || error.is_absent(&view.place.name) => {
                Ok(Some(Step::Replan(self.read(view, served).await?)))
            }
            Err(error) if error.code() == 404 => {
                let message = format!("the API of the physical cluster has no {} of pods", part.path());
                self.report_refusal(upstream, &SyncRefusal::incompatible(message)).await?;
                Err(error.into())
            }
            Err(error) => self.write_failed(view, upstream, error).await.map(Some),
        }
    }

    /// Refuses a copy that would take more than the share of its logical cluster.
    async fn refuse_excess(
        &self,
        view: &CopyView<'_>,
        upstream: &UpstreamObject,
        body: &Value,
    ) -> Result<Option<Step>, SyncError> {
        let Some(excess) = view.session.cache.excess_of_copy(view.place, view.key.cluster, body) else {
            return Ok(None);
        };
        self.report_refusal(upstream, &SyncRefusal::share_exceeded(excess)).await?;
        Ok(Some(Step::Finished(WorkOutcome::RequeueAfter(SHARE_CHECK))))
    }

    /// Replaces a copy as a whole if an apply is refused as invalid and other writers have changed lists with keys: an
    /// apply would keep their items beside the syncer's, and both together may be invalid. The write is atomic; the
    /// following apply removes unwanted fields.
    async fn replace_lists(
        &self,
        view: &CopyView<'_>,
        path: &str,
        body: &Value,
        error: &DownstreamError,
    ) -> Result<Option<Step>, SyncError> {
        let (422, Some(live), Some(served)) = (error.code(), &view.downstream, view.served) else { return Ok(None) };
        let Some(patch) = list_replacement(&live.object, body) else { return Ok(None) };
        match view.session.api.merge_patch(path, &patch).await {
            // Another writer there changes the lists with each write: the next apply would be refused, too.
            Ok(made) if list_replacement(&made, body).is_some() => {
                view.session.cache.put(view.place, made);
                Ok(None)
            }
            Ok(made) => {
                tracing::info!(cluster = %self.config.name, key = %view.key, "keyed lists with drift were replaced");
                self.counters.repairs.fetch_add(1, Ordering::Relaxed);
                Ok(Some(Step::Replan(Some(view.session.cache.put(view.place, made)))))
            }
            Err(error) if error.code() == 409 => Ok(Some(Step::Replan(self.read(view, served).await?))),
            Err(_) => Ok(None),
        }
    }

    /// Moves the ownership of the fields that our create set to our apply. Returns the resourceVersion after it.
    async fn take_ownership(
        &self,
        view: &CopyView<'_>,
        path: &str,
        body: &Value,
    ) -> Result<Option<String>, DownstreamError> {
        let live = view.session.api.get(path).await?;
        let is_same =
            ["uid", "resourceVersion"].iter().all(|key| object::meta_text(&live, key) == object::meta_text(body, key));
        let Some(patch) = ownership_patch(&live).filter(|_| is_same) else { return Ok(None) };
        let made = view.session.api.merge_patch(path, &patch).await?;
        portolan_types::failpoint!("syncer/ownership-taken");
        Ok(Some(object::meta_text(&made, "resourceVersion").to_owned()))
    }

    pub(super) async fn delete(&self, view: &CopyView<'_>, deletion: CopyDeletion) -> Result<Step, SyncError> {
        let Some(served) = view.served else { return Ok(Step::Finished(WorkOutcome::Done)) };
        if !deletion.proof.is_firm() && !self.brake_allows(view) {
            return Ok(Step::Finished(WorkOutcome::Done));
        }
        if let Some(step) = self.release_if_kept(view, served, &deletion).await? {
            return Ok(step);
        }
        let path = served.path(view.place.namespace(), Some(&view.place.name));
        let propagation = match (deletion.proof, view.upstream) {
            (Proof::Deleting, Some(upstream)) if plan::is_orphaning(&upstream.object) => "Orphan",
            (Proof::Deleting, Some(upstream)) if !plan::ends_with_its_pods(upstream) => "Background",
            _ => propagation(served),
        };
        portolan_types::failpoint!("syncer/delete-planned");
        match view.session.api.delete(&path, &deletion, propagation).await {
            Ok(_) => {
                portolan_types::failpoint!("syncer/deleted");
                self.counters.deletes.fetch_add(1, Ordering::Relaxed);
                tracing::info!(cluster = %self.config.name, key = %view.key, proof = ?deletion.proof, "copy deleted");
                self.enqueue_namespace_cleanup(&view.place.namespace);
                Ok(Step::Finished(WorkOutcome::RequeueAfter(TOMBSTONE_CHECK)))
            }
            Err(error) if error.is_absent(&view.place.name) => {
                view.session.cache.remove(view.place, &deletion.uid);
                Ok(Step::Replan(None))
            }
            Err(error) if error.code() == 409 => Ok(Step::Replan(self.read(view, served).await?)),
            Err(error) => Err(error.into()),
        }
    }

    fn brake_allows(&self, view: &CopyView<'_>) -> bool {
        let copies = view.session.cache.len();
        let mut state = self.state();
        let is_first = state.held() == 0;
        let is_allowed = state.brake.allows(copies);
        state.trouble(view.key, |trouble| trouble.is_held = !is_allowed);
        if !is_allowed && is_first {
            tracing::error!(cluster = %self.config.name, "too many deletions at once without firm proof, they are held back");
        }
        is_allowed
    }

    /// Confirms upstream that the copy is gone, after the API server itself has reported it.
    pub(super) async fn confirm_gone(&self, view: &CopyView<'_>, uid: &Uid, epoch: u64) -> Result<Step, SyncError> {
        let live = match view.served {
            Some(served) => self.read(view, served).await?,
            None if rules::is_forbidden(&view.key.resource) => None,
            None if self.has_no_definition(view.session, &view.key.resource).await? => None,
            None => return Err(self.not_served(&view.key.resource)),
        };
        if let Some(live) = live.filter(|live| self.is_copy_of(view, &live.object)) {
            return Ok(Step::Replan(Some(live)));
        }
        portolan_types::failpoint!("syncer/end-seen");
        self.upstream.confirm_gone(view.key, uid, &self.config.uid, epoch).await?;
        portolan_types::failpoint!("syncer/end-confirmed");
        self.forget(view.key);
        self.enqueue_namespace_cleanup(&view.place.namespace);
        Ok(Step::Finished(WorkOutcome::Done))
    }

    fn is_copy_of(&self, view: &CopyView<'_>, live: &Value) -> bool {
        let identity: Option<CopyIdentity> = plan::copy_identity(live, &self.config.uid);
        identity.is_some_and(|identity| {
            identity.cluster == view.key.cluster.to_string()
                && identity.namespace == view.key.namespace().map_or("", |namespace| namespace.as_str())
        })
    }

    /// Reads the object at the copy's address. `None` is a proof: the API server reports that there is none.
    pub(super) async fn read(
        &self,
        view: &CopyView<'_>,
        served: &ServedResource,
    ) -> Result<Option<Arc<ObservedObject>>, SyncError> {
        let path = served.path(view.place.namespace(), Some(&view.place.name));
        match view.session.api.get(&path).await {
            // A success that is not about this object proves nothing.
            Ok(live) if object::name(&live) != view.place.name || object::meta_text(&live, "uid").is_empty() => {
                Err(DownstreamError::Garbled(format!("not the object {} that was asked for", view.place.name)).into())
            }
            Ok(live) => {
                let observed = Arc::new(ObservedObject::new(live.clone()));
                if self.is_copy_of(view, &observed.object)
                    && object::label(&observed.object, annotations::DOWN_CLUSTER).is_some()
                {
                    view.session.cache.put(view.place, live);
                }
                Ok(Some(observed))
            }
            Err(error) if error.is_absent(&view.place.name) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn written(&self, view: &CopyView<'_>, upstream: &UpstreamObject, made: Value) -> Result<Step, SyncError> {
        let observed = view.session.cache.put(view.place, made);
        self.report_synced(view, upstream, &observed.object).await?;
        Ok(Step::Finished(WorkOutcome::Done))
    }

    /// Reports at once a refusal that will be repeated; other failures are retried first.
    async fn write_failed(
        &self,
        view: &CopyView<'_>,
        upstream: &UpstreamObject,
        error: DownstreamError,
    ) -> Result<Step, SyncError> {
        if let DownstreamError::Refused(answer) = &error {
            if answer.code == 403 && answer.message.contains("being terminated") {
                return Err(SyncError::NamespaceEnding);
            }
            if answer.code == 404 {
                // The namespace or the definition of the kind was deleted since: their cached state is stale.
                view.session.cache.remove_namespace(&view.place.namespace);
                if rules::is_custom(&view.key.resource) {
                    view.session.refresh.notify_one();
                }
            } else if let Some(reason) = answer.refusal() {
                self.report_failure(upstream, reason, &answer.message).await?;
            }
        }
        Err(error.into())
    }
}

/// Returns the propagation policy of a deletion. A workload is deleted together with its pods: one that must not run
/// twice may be placed elsewhere only after that.
pub(super) fn propagation(served: &ServedResource) -> &'static str {
    let has_pods = matches!(&*served.kind.group, "apps" | "batch") || &*served.kind.kind == "ReplicationController";
    if has_pods { "Foreground" } else { "Background" }
}

impl Proof {
    /// Returns the deletion of a copy that a debt was recorded for.
    pub(super) fn debt(copy: &Value) -> CopyDeletion {
        CopyDeletion {
            uid: object::meta_text(copy, "uid").to_owned(),
            resource_version: object::meta_text(copy, "resourceVersion").to_owned(),
            proof: Self::Debt,
            grace: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use portolan_types::placement::CopyPhase;
    use serde_json::json;

    use super::*;
    use crate::testing::{FakeCluster, suite::SyncStage};

    #[tokio::test(start_paused = true)]
    async fn drift_in_a_list_with_keys_is_repaired_though_apply_is_refused() {
        for is_updated_before in [false, true] {
            let cluster = FakeCluster::default();
            let stage = SyncStage::start(Arc::new(cluster.clone()), 9).await.unwrap();
            let service = |port: i64| json!({"metadata": {}, "spec": {"ports": [{"port": port, "protocol": "TCP"}]}});
            let ports =
                || cluster.all("services").first().map(|copy| copy["spec"]["ports"].clone()).unwrap_or_default();
            stage.place("services", "db", service(if is_updated_before { 1 } else { 5432 }), CopyPhase::Active);
            stage.until("the copy is there", async |_| cluster.all("services").len() == 1).await.unwrap();
            stage.place("services", "db", service(5432), CopyPhase::Active);
            stage.until("it is up to date", async |_| ports() == service(5432)["spec"]["ports"]).await.unwrap();
            let drift = json!({"spec": {"ports": [{"port": 9, "name": "x"}]}});
            stage.tamper("services", "db", &drift).await.unwrap();
            assert_eq!(ports(), drift["spec"]["ports"]);
            stage.until("drift is repaired", async |_| ports() == service(5432)["spec"]["ports"]).await.unwrap();
            assert!(stage.handle.stats().repairs >= 1);
            stage.handle.stop().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_update_of_changed_lists_is_written_as_a_whole_or_not_at_all() {
        let service = |port: i64, app: &str| json!({"metadata": {}, "spec": {"selector": {"app": app}, "ports": [{"port": port, "protocol": "TCP"}]}});
        for is_valid in [true, false] {
            let cluster = FakeCluster::default();
            let stage = SyncStage::start(Arc::new(cluster.clone()), 9).await.unwrap();
            stage.place("services", "db", service(1, "old"), CopyPhase::Active);
            stage.until("the copy is there", async |_| cluster.all("services").len() == 1).await.unwrap();
            cluster.script(move |method, path| {
                let is_refused =
                    method == "PATCH" && path.contains("/services/") && (path.contains("force=true") || !is_valid);
                let status = json!({"kind": "Status", "reason": "Invalid", "message": "no", "code": 422});
                is_refused.then_some(crate::testing::CannedAnswer::Answer(422, status))
            });
            let key = stage.place("services", "db", service(2, "new"), CopyPhase::Active);
            let told = async |s: &SyncStage| matches!(s.upstream.last_report(&key), Some(portolan_types::upstream::CopyState::Failed { reason, .. }) if reason == "Invalid");
            stage.until("the refusal is reported", told).await.unwrap();
            let spec = cluster.all("services").remove(0)["spec"].take();
            let expected = if is_valid { service(2, "new") } else { service(1, "old") };
            assert_eq!(
                (&spec["ports"], &spec["selector"]),
                (&expected["spec"]["ports"], &expected["spec"]["selector"])
            );
            stage.handle.stop().await;
        }
    }
}
