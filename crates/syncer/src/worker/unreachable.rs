//! Unreachable physical clusters: reported after a while; later deletions become debts.

use std::time::Duration;

use portolan_types::{
    GroupResource, ObjectKey, object,
    placement::{CopyPhase, PlacedCopy, ProjectionSource},
    upstream::{Debt, Projection, UpstreamObject, UpstreamRead},
    work::WorkOutcome,
};
use tokio::time::Instant;

use super::{SyncError, Work, Worker, reflector_cache::ObjectRef};
use crate::{
    plan::{self, DebtPermission},
    project, status,
};

/// Interval of checks of a copy whose end must be proven.
const UNPROVEN_CHECK: Duration = Duration::from_secs(30);

impl Worker {
    pub(super) async fn reconcile_unreachable(&self, key: &ObjectKey) -> Result<WorkOutcome, SyncError> {
        let upstream = match self.upstream.get(&self.config.uid, key).await? {
            UpstreamRead::Placed(upstream) => *upstream,
            UpstreamRead::NotPlaced(_) => return Ok(WorkOutcome::Done),
            UpstreamRead::Absent => return Err(SyncError::CutOff),
        };
        let Some(entry) = self.entry(&upstream) else { return Ok(WorkOutcome::Done) };
        if let Some(rest) = self.time_left(self.config.unreachable_after) {
            return Ok(WorkOutcome::RequeueAfter(rest));
        }
        let owing = match plan::deletion_proof(&upstream, &entry) {
            Some(_) => Some(self.debt_permission(&upstream, &entry).await?),
            None => None,
        };
        self.report_unreachable(&upstream, &entry, owing).await?;
        match owing {
            None => Ok(WorkOutcome::Done),
            Some(DebtPermission::Unproven) => Ok(WorkOutcome::RequeueAfter(UNPROVEN_CHECK)),
            Some(DebtPermission::WrittenOff) => self.turn_into_debt(&upstream, &entry).await,
            Some(DebtPermission::Allowed | DebtPermission::UnlessVolumes) => {
                match self.time_left(self.config.deletion_timeout) {
                    Some(rest) => Ok(WorkOutcome::RequeueAfter(rest)),
                    None => self.turn_into_debt(&upstream, &entry).await,
                }
            }
        }
    }

    /// Records debts for a resource that is not served: its copies cannot be read, as if the physical cluster were
    /// unreachable.
    pub(super) async fn reconcile_not_served(&self, key: &ObjectKey) -> Result<Option<WorkOutcome>, SyncError> {
        let Some(upstream) = self.read_placed(key).await? else { return Ok(None) };
        let Some(entry) = self.entry(&upstream).filter(|entry| plan::deletion_proof(&upstream, entry).is_some()) else {
            return Ok(None);
        };
        let limit = match self.debt_permission(&upstream, &entry).await? {
            DebtPermission::Unproven => return Ok(None),
            DebtPermission::WrittenOff => Duration::ZERO,
            DebtPermission::Allowed | DebtPermission::UnlessVolumes => self.config.deletion_timeout,
        };
        let now = Instant::now();
        let since = self.state().trouble(key, |trouble| *trouble.failing_since.get_or_insert(now));
        if since.elapsed() < limit { Ok(None) } else { self.turn_into_debt(&upstream, &entry).await.map(Some) }
    }

    /// Returns the time until the physical cluster has been unreachable for `limit`; `None` when it has.
    fn time_left(&self, limit: Duration) -> Option<Duration> {
        let since = self.unreachable_for();
        let rest = limit.saturating_sub(since).clamp(Duration::from_millis(500), Duration::from_secs(30));
        (since < limit || since.is_zero()).then_some(rest)
    }

    async fn debt_permission(
        &self,
        upstream: &UpstreamObject,
        entry: &PlacedCopy,
    ) -> Result<DebtPermission, SyncError> {
        match plan::debt_permission(upstream, entry) {
            DebtPermission::UnlessVolumes if self.holds_volumes(upstream).await? => Ok(DebtPermission::Unproven),
            owing => Ok(owing),
        }
    }

    /// Returns true when the pods of an object write to a volume that only one node can mount. A claim that cannot be
    /// found counts as one.
    async fn holds_volumes(&self, upstream: &UpstreamObject) -> Result<bool, SyncError> {
        for name in plan::claims_of(&upstream.object) {
            let resource = GroupResource::new("", "persistentvolumeclaims");
            let Ok(name) = name.parse() else { return Ok(true) };
            let claim = self.read_placed(&ObjectKey { resource, name, ..upstream.key.clone() }).await?;
            if !claim.is_some_and(|claim| plan::is_shared_claim(&claim.object)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn report_unreachable(
        &self,
        upstream: &UpstreamObject,
        entry: &PlacedCopy,
        owing: Option<DebtPermission>,
    ) -> Result<(), SyncError> {
        let why = self.state().unreachable_why.clone();
        let mut message = format!("the physical cluster is out of reach: {why}");
        if entry.phase == CopyPhase::Projected {
            return self.project_unreachable(upstream, &message).await;
        }
        if owing == Some(DebtPermission::Unproven) {
            let name = &entry.name;
            message = format!(
                "{message}; until it is back nothing proves that this copy has ended: an administrator who knows that it has can say so \
                 by the annotation portolan.dev/write-off={name}"
            );
        }
        self.report_failure(upstream, status::UNREACHABLE, &message).await
    }

    /// Shows a projected object as unknown and not ready. The status of a ReplicaSet is reported as that of a copy.
    async fn project_unreachable(&self, upstream: &UpstreamObject, message: &str) -> Result<(), SyncError> {
        if &*upstream.key.resource.resource == "replicasets" {
            return self.report_failure(upstream, status::UNREACHABLE, message).await;
        }
        let now = self.seams.now_text();
        let Some(shown) = project::without_ready(&upstream.object, message, &now) else { return Ok(()) };
        let projection = Projection { put: vec![(upstream.key.clone(), shown)], ..Projection::default() };
        self.upstream.project(&self.config.uid, projection).await?;
        // Downstream objects are projected again once they can be read.
        if let Some(source) = ProjectionSource::on(&upstream.object, &self.config.uid) {
            let place = ObjectRef::at(&upstream.key.resource, &source);
            if let Some(known) = self.state().shown.get_mut(&place) {
                known.fingerprint.clear();
            }
        }
        Ok(())
    }

    async fn turn_into_debt(&self, upstream: &UpstreamObject, entry: &PlacedCopy) -> Result<WorkOutcome, SyncError> {
        let Some(uid) = object::uid(&upstream.object) else { return Ok(WorkOutcome::Done) };
        let downstream = match entry.phase {
            CopyPhase::Projected => ProjectionSource::on(&upstream.object, &self.config.uid),
            CopyPhase::Active | CopyPhase::Leaving => None,
        };
        if let Some(source) = &downstream {
            self.state().shown.remove(&ObjectRef::at(&upstream.key.resource, source));
        }
        let (key, kind) = (upstream.key.clone(), upstream.kind.clone());
        let is_orphan = plan::is_orphaning(&upstream.object);
        let debt = Debt { key, source: downstream, kind, uid, epoch: entry.epoch, is_orphan };
        self.upstream.record_debt(&self.config.uid, debt.clone()).await?;
        self.forget(&upstream.key);
        // The connection may have returned, and the debts may have been read, just before this one was written.
        self.queue.add(Work::Debt(Box::new(debt)));
        Ok(WorkOutcome::Done)
    }
}
