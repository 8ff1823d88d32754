//! Audit: events of requests in the form of kube-apiserver (`audit.k8s.io/v1`), written to a log and a webhook.
//!
//! A policy chooses the requests and the amount of data. Events are encoded while the request is served and put into a
//! bounded queue per sink; requests never wait for a sink. Without a policy nothing of this exists.

mod event;
mod log_file;
mod metrics;
mod policy;
mod queue;
mod trail;
mod webhook;

use std::{net::IpAddr, sync::Arc, thread, time::Duration};

use bytes::Bytes;
use portolan_types::Seams;
use prometheus::Registry;
use tokio::{sync::mpsc, task::JoinSet};

use crate::{config::ConfigError, webhooks::ConfiguredWebhook};

pub use crate::config::{AuditConfig, AuditLogConfig, AuditWebhookConfig};
pub(crate) use event::AuditedRequest;
use log_file::AuditLog;
use metrics::AuditMetrics;
use policy::AuditPolicy;
use queue::{AuditQueue, QueuedEvent};
pub(crate) use trail::AuditTrail;

/// Longest time for writing queued events when the server stops.
const CLOSING: Duration = Duration::from_secs(5);

/// Default of [`AuditConfig::queue`], as kube-apiserver's buffer.
pub const AUDIT_QUEUE: usize = 10_000;

/// Address of a client, in the extensions of its requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientAddress(pub(crate) IpAddr);

/// Policy and sinks.
pub(crate) struct Auditor {
    policy: AuditPolicy,
    seams: Seams,
    metrics: Arc<AuditMetrics>,
    sinks: Vec<AuditSink>,
    _tasks: JoinSet<()>,
}

struct AuditSink {
    name: &'static str,
    queue: AuditQueue,
}

impl Auditor {
    /// Opens the sinks.
    ///
    /// # Errors
    /// A policy or kubeconfig that cannot be used, and a log that cannot be opened.
    pub(crate) fn open(config: &AuditConfig, seams: Seams, registry: &Registry) -> Result<Arc<Self>, ConfigError> {
        let policy = AuditPolicy::read(&config.policy)?;
        let metrics = Arc::new(AuditMetrics::new(registry));
        let (mut sinks, mut tasks) = (Vec::new(), JoinSet::new());
        if let Some(log) = &config.log {
            let failed = |source| ConfigError::File { path: log.path.clone(), source };
            let file = AuditLog::open(log, seams.clone()).map_err(failed)?;
            let (queue, events) = AuditQueue::new(config.queue);
            let metrics = metrics.clone();
            // A plain thread: writing to the disk may block.
            thread::Builder::new()
                .name("audit-log".into())
                .spawn(move || write_log(file, events, &metrics))
                .map_err(failed)?;
            sinks.push(AuditSink { name: "log", queue });
        }
        if let Some(webhook) = &config.webhook {
            let client = ConfiguredWebhook::open(&webhook.kubeconfig)?;
            let (queue, events) = AuditQueue::new(config.queue);
            tasks.spawn(webhook::run(webhook.clone(), client, events, metrics.clone()));
            sinks.push(AuditSink { name: "webhook", queue });
        }
        Ok(Arc::new(Self { policy, seams, metrics, sinks, _tasks: tasks }))
    }

    /// Queues the line of an event for every sink.
    fn write(&self, line: Vec<u8>) {
        let line = Bytes::from(line);
        self.metrics.written();
        for sink in &self.sinks {
            if !sink.queue.push(line.clone()) {
                self.metrics.failed(sink.name, 1);
            }
        }
    }

    /// Waits until the queued events are written, for at most [`CLOSING`].
    pub(crate) async fn flush(&self) {
        let all = futures::future::join_all(self.sinks.iter().map(|sink| sink.queue.flush()));
        if tokio::time::timeout(CLOSING, all).await.is_err() {
            tracing::warn!("audit events may be lost: a sink is too slow");
        }
    }
}

/// Writes lines until the queue is closed. Buffered lines are passed on whenever the queue is empty.
fn write_log(mut file: AuditLog, mut events: mpsc::Receiver<QueuedEvent>, metrics: &AuditMetrics) {
    let mut is_failing = false;
    while let Some(first) = events.blocking_recv() {
        let mut waiting = Vec::new();
        let mut next = Some(first);
        let (mut lines, mut result) = (0, Ok(()));
        while let Some(event) = next.take() {
            match event {
                QueuedEvent::Line(queued) => {
                    lines += 1;
                    if let Err(error) = file.write(&queued.line) {
                        metrics.failed("log", 1);
                        result = Err(error);
                    }
                }
                QueuedEvent::Flush(done) => waiting.push(done),
            }
            next = events.try_recv().ok();
        }
        if let Err(error) = file.flush() {
            metrics.failed("log", lines);
            result = Err(error);
        }
        match result {
            Ok(()) => is_failing = false,
            // Logged only once until it works again: the server's own log must not fill the disk, too.
            Err(error) if !std::mem::replace(&mut is_failing, true) => {
                tracing::error!(%error, "audit events are lost: the audit log cannot be written");
            }
            Err(_) => {}
        }
        for done in waiting {
            // A caller that has left needs no answer.
            let _ = done.send(());
        }
    }
}
