//! While the physical cluster is out of reach: upstream is told after a while, and after a longer one deletions become debts.

use std::time::Duration;

use portolan_types::{
    GroupResource, ObjectKey, object,
    placement::{Phase, PlacedCopy, Source},
    upstream::{Debt, Projection, UpstreamObject},
    work::Outcome,
};
use tokio::time::Instant;

use super::{SyncError, Work, Worker, mirror::Place};
use crate::{
    plan::{self, Owing},
    project, status,
};

/// When to look again at what must be proven gone.
const UNPROVEN_CHECK: Duration = Duration::from_secs(30);

impl Worker {
    pub(super) async fn while_cut_off(&self, key: &ObjectKey) -> Result<Outcome, SyncError> {
        let Some(upstream) = self.upstream.get(key).await? else { return Err(SyncError::CutOff) };
        let Some(entry) = self.entry(&upstream) else { return Ok(Outcome::Done) };
        if let Some(rest) = self.rest_of(self.config.unreachable_after) {
            return Ok(Outcome::CheckAgainIn(rest));
        }
        let owing = match plan::leaving(&upstream, &entry) {
            Some(_) => Some(self.owing(&upstream, &entry).await?),
            None => None,
        };
        self.tell_unreachable(&upstream, &entry, owing).await?;
        match owing {
            None => Ok(Outcome::Done),
            Some(Owing::Unproven) => Ok(Outcome::CheckAgainIn(UNPROVEN_CHECK)),
            Some(Owing::WrittenOff) => self.leave_as_debt(&upstream, &entry).await,
            Some(Owing::Allowed | Owing::UnlessVolumes) => match self.rest_of(self.config.deletion_timeout) {
                Some(rest) => Ok(Outcome::CheckAgainIn(rest)),
                None => self.leave_as_debt(&upstream, &entry).await,
            },
        }
    }

    /// A resource that is not served cannot be asked about: its copies are left as debts as if nothing could be reached.
    pub(super) async fn while_not_served(&self, key: &ObjectKey) -> Result<Option<Outcome>, SyncError> {
        let Some(upstream) = self.upstream.get(key).await? else { return Ok(None) };
        let Some(entry) = self.entry(&upstream).filter(|entry| plan::leaving(&upstream, entry).is_some()) else {
            return Ok(None);
        };
        let limit = match self.owing(&upstream, &entry).await? {
            Owing::Unproven => return Ok(None),
            Owing::WrittenOff => Duration::ZERO,
            Owing::Allowed | Owing::UnlessVolumes => self.config.deletion_timeout,
        };
        let now = Instant::now();
        let since = self.state().trouble(key, |trouble| *trouble.failing_since.get_or_insert(now));
        match since.elapsed() < limit {
            true => Ok(None),
            false => self.leave_as_debt(&upstream, &entry).await.map(Some),
        }
    }

    /// How long it takes until the physical cluster has been out of reach for `limit`; `None` when it has.
    fn rest_of(&self, limit: Duration) -> Option<Duration> {
        let since = self.unreachable_for();
        let rest = limit.saturating_sub(since).clamp(Duration::from_millis(500), Duration::from_secs(30));
        (since < limit || since.is_zero()).then_some(rest)
    }

    async fn owing(&self, upstream: &UpstreamObject, entry: &PlacedCopy) -> Result<Owing, SyncError> {
        match plan::owing(upstream, entry) {
            Owing::UnlessVolumes if self.holds_volumes(upstream).await? => Ok(Owing::Unproven),
            owing => Ok(owing),
        }
    }

    /// Whether the pods of an object write to a volume that only one node can have. A claim that cannot be found may be one.
    async fn holds_volumes(&self, upstream: &UpstreamObject) -> Result<bool, SyncError> {
        for name in plan::claims_of(&upstream.object) {
            let resource = GroupResource::new("", "persistentvolumeclaims");
            let Ok(name) = name.parse() else { return Ok(true) };
            let claim = self.upstream.get(&ObjectKey { resource, name, ..upstream.key.clone() }).await?;
            if !claim.is_some_and(|claim| plan::is_shared_claim(&claim.object)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn tell_unreachable(
        &self,
        upstream: &UpstreamObject,
        entry: &PlacedCopy,
        owing: Option<Owing>,
    ) -> Result<(), SyncError> {
        let why = self.state().unreachable_why.clone();
        let mut message = format!("the physical cluster is out of reach: {why}");
        if entry.phase == Phase::Projected {
            return self.show_unreachable(upstream, &message).await;
        }
        if owing == Some(Owing::Unproven) {
            let name = &entry.name;
            message = format!(
                "{message}; until it is back nothing proves that this copy has ended: whoever knows that it has can say so \
                 by the annotation portolan.dev/write-off={name}"
            );
        }
        self.report_failure(upstream, status::UNREACHABLE, &message).await
    }

    /// Shows that nothing of a projected object can be known to be ready. A ReplicaSet has its status reported as a copy has.
    async fn show_unreachable(&self, upstream: &UpstreamObject, message: &str) -> Result<(), SyncError> {
        if &*upstream.key.resource.resource == "replicasets" {
            return self.report_failure(upstream, status::UNREACHABLE, message).await;
        }
        let now = self.seams.now_text();
        let Some(shown) = project::without_ready(&upstream.object, message, &now) else { return Ok(()) };
        let projection = Projection { put: vec![(upstream.key.clone(), shown)], ..Projection::default() };
        self.upstream.project(&self.config.uid, projection).await?;
        // What is downstream is shown again once it can be seen.
        if let Some(source) = Source::on(&upstream.object, &self.config.uid) {
            let place = Place::at(&upstream.key.resource, &source);
            if let Some(known) = self.state().shown.get_mut(&place) {
                known.fingerprint.clear();
            }
        }
        Ok(())
    }

    async fn leave_as_debt(&self, upstream: &UpstreamObject, entry: &PlacedCopy) -> Result<Outcome, SyncError> {
        let Some(uid) = object::uid(&upstream.object) else { return Ok(Outcome::Done) };
        let below = match entry.phase {
            Phase::Projected => Source::on(&upstream.object, &self.config.uid),
            Phase::Active | Phase::Leaving => None,
        };
        if let Some(source) = &below {
            self.state().shown.remove(&Place::at(&upstream.key.resource, source));
        }
        let (key, kind) = (upstream.key.clone(), upstream.kind.clone());
        let is_orphan = plan::is_orphaning(&upstream.object);
        let debt = Debt { key, below, kind, uid, epoch: entry.epoch, is_orphan };
        self.upstream.record_debt(&self.config.uid, debt.clone()).await?;
        self.forget(&upstream.key);
        // The connection may have come back, and the debts been read, just before this one was written.
        self.queue.add(Work::Debt(Box::new(debt)));
        Ok(Outcome::Done)
    }
}
