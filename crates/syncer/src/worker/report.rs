//! Reports about copies.

use portolan_types::{
    ObjectKey, annotations, fingerprint,
    labels::is_subdomain,
    object,
    placement::{CopyIdentity, PlacementRecord, ProjectionSource},
    upstream::{CopyReport, CopyState, UpstreamObject},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{SyncError, Work, Worker, copies::CopyView, reflector_cache::ObjectRef, token_buckets::WRITE_RATE};
use crate::{rules::SyncRefusal, status};

impl Worker {
    /// Reports the state of a copy.
    pub(super) async fn report_synced(
        &self,
        view: &CopyView<'_>,
        upstream: &UpstreamObject,
        copy: &Value,
    ) -> Result<(), SyncError> {
        let stamp = CopyIdentity::of(copy).map_or(0, |identity| identity.generation);
        let is_current = status::is_current(&upstream.kind.group_kind(), copy);
        let scaled = upstream.wanted_in(copy).filter(|_| self.is_autoscaled(view));
        let mut status = status::bounded(copy.get("status").unwrap_or(&Value::Null));
        status::map_generations(&mut status, object::generation(copy), stamp);
        let revision = object::annotation(copy, annotations::REVISION).and_then(|text| text.parse().ok());
        let revision = revision.filter(|_| is_deployment(upstream));
        let node = copy.pointer("/spec/nodeName").and_then(Value::as_str).filter(|name| is_subdomain(name));
        self.report(upstream, CopyState::Synced { stamp, is_current, scaled, revision, status }, node).await
    }

    /// Reports that the physical cluster has its own object in the place of the copy.
    pub(super) async fn report_local(&self, upstream: &UpstreamObject) -> Result<(), SyncError> {
        let stamp = object::generation(&upstream.object);
        self.report(
            upstream,
            CopyState::Synced { stamp, is_current: true, scaled: None, revision: None, status: Value::Null },
            None,
        )
        .await
    }

    pub(super) async fn report_refusal(
        &self,
        upstream: &UpstreamObject,
        refusal: &SyncRefusal,
    ) -> Result<(), SyncError> {
        self.report_failure(upstream, refusal.reason, &refusal.message).await
    }

    pub(super) async fn report_failure(
        &self,
        upstream: &UpstreamObject,
        reason: &str,
        message: &str,
    ) -> Result<(), SyncError> {
        let generation = object::generation(&upstream.object);
        let (reason, message) = (reason.to_owned(), message.to_owned());
        self.report(upstream, CopyState::Failed { generation, reason, message }, None).await
    }

    /// Sends a report, unless this worker has sent the same one before.
    pub(super) async fn report(
        &self,
        upstream: &UpstreamObject,
        state: CopyState,
        node: Option<&str>,
    ) -> Result<(), SyncError> {
        let Some(uid) = object::uid(&upstream.object) else { return Ok(()) };
        let record = PlacementRecord::of(&upstream.object).unwrap_or_default();
        let Some(epoch) = record.on(&self.config.uid).map(|copy| copy.epoch) else { return Ok(()) };
        // Upstream merges the addresses of all copies again when others are to be published.
        let told = fingerprint(&json!([uid.as_str(), epoch, shape(&state), node, record.withdrawn]));
        if self.state().reported.get(&upstream.key) == Some(&told) {
            return Ok(());
        }
        if !self.permits_write(&upstream.key, self.work_about(upstream)) {
            return Ok(());
        }
        let report = CopyReport {
            key: upstream.key.clone(),
            uid,
            physical: self.config.uid.clone(),
            epoch,
            state,
            node: node.map(str::to_owned),
        };
        portolan_types::failpoint!("syncer/report-ready");
        self.upstream.report(report).await?;
        portolan_types::failpoint!("syncer/reported");
        self.state().reported.insert(upstream.key.clone(), told);
        Ok(())
    }
}

impl Worker {
    /// Returns the work that reconciles an object and writes about it.
    fn work_about(&self, upstream: &UpstreamObject) -> Work {
        let source = ProjectionSource::on(&upstream.object, &self.config.uid);
        let is_projected = PlacementRecord::of(&upstream.object).is_some_and(|record| record.is_projected());
        match source.filter(|_| is_projected) {
            Some(source) => Work::Projection(ObjectRef::at(&upstream.key.resource, &source)),
            None => Work::Copy(upstream.key.clone()),
        }
    }

    /// Returns true if a report about `object` may be written now. Otherwise `work` is requeued, and reports the state
    /// at that time.
    pub(super) fn permits_write(&self, object: &ObjectKey, work: Work) -> bool {
        let spent = self.state().write_rates.take(Work::Copy(object.clone()), WRITE_RATE, Instant::now());
        match spent {
            Ok(()) => true,
            Err(delay) => {
                self.queue.add_after(work, delay);
                false
            }
        }
    }
}

fn is_deployment(upstream: &UpstreamObject) -> bool {
    (&*upstream.kind.group, &*upstream.kind.kind) == ("apps", "Deployment")
}

fn shape(state: &CopyState) -> Value {
    match state {
        CopyState::Synced { stamp, is_current, scaled, revision, status } => {
            json!([stamp, is_current, scaled, revision, status])
        }
        CopyState::Failed { generation, reason, message } => json!([generation, reason, message]),
    }
}
