//! What upstream is told of a copy.

use portolan_types::{
    ObjectKey, annotations, fingerprint,
    labels::is_subdomain,
    object,
    placement::{CopyIdentity, PlacementRecord, Source},
    upstream::{CopyReport, CopyState, UpstreamObject},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{SyncError, Work, Worker, copies::View, mirror::Place};
use crate::{rules::Refusal, status};

impl Worker {
    /// Tells what the physical cluster shows of a copy.
    pub(super) async fn report_synced(
        &self,
        view: &View<'_>,
        upstream: &UpstreamObject,
        copy: &Value,
    ) -> Result<(), SyncError> {
        let stamp = CopyIdentity::of(copy).map_or(0, |identity| identity.generation);
        let is_current = status::is_current(&upstream.kind.group_kind(), copy);
        let scaled = copy.pointer("/spec/replicas").and_then(Value::as_i64).filter(|_| self.is_autoscaled(view));
        let status = status::bounded(copy.get("status").unwrap_or(&Value::Null));
        let revision = object::annotation(copy, annotations::REVISION).and_then(|text| text.parse().ok());
        let revision = revision.filter(|_| is_deployment(upstream));
        let node = copy.pointer("/spec/nodeName").and_then(Value::as_str).filter(|name| is_subdomain(name));
        self.report(upstream, CopyState::Synced { stamp, is_current, scaled, revision, status }, node).await
    }

    /// Tells that the physical cluster has its own of the object.
    pub(super) async fn report_local(&self, upstream: &UpstreamObject) -> Result<(), SyncError> {
        let stamp = object::generation(&upstream.object);
        self.report(
            upstream,
            CopyState::Synced { stamp, is_current: true, scaled: None, revision: None, status: Value::Null },
            None,
        )
        .await
    }

    pub(super) async fn report_refusal(&self, upstream: &UpstreamObject, refusal: &Refusal) -> Result<(), SyncError> {
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

    /// Tells once what has been told already; a new worker tells all once more.
    pub(super) async fn report(
        &self,
        upstream: &UpstreamObject,
        state: CopyState,
        node: Option<&str>,
    ) -> Result<(), SyncError> {
        let Some(uid) = object::uid(&upstream.object) else { return Ok(()) };
        let epoch = PlacementRecord::of(&upstream.object).and_then(|r| r.on(&self.config.uid).map(|copy| copy.epoch));
        let Some(epoch) = epoch else { return Ok(()) };
        let told = fingerprint(&json!([uid.as_str(), epoch, shape(&state), node]));
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
    /// The work that looks at an object and writes about it.
    fn work_about(&self, upstream: &UpstreamObject) -> Work {
        let source = Source::on(&upstream.object, &self.config.uid);
        let is_projected = PlacementRecord::of(&upstream.object).is_some_and(|record| record.is_projected());
        match source.filter(|_| is_projected) {
            Some(source) => Work::Below(Place::at(&upstream.key.resource, &source)),
            None => Work::Copy(upstream.key.clone()),
        }
    }

    /// Returns true when `object` may be written about now. Otherwise `work` comes again when it may, and writes what holds then.
    pub(super) fn permits_write(&self, object: &ObjectKey, work: Work) -> bool {
        let spent = self.state().write_rates.spend(&Work::Copy(object.clone()), Instant::now());
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
