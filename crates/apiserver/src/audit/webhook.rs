//! Audit sink that posts batches of events to a webhook.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{sync::mpsc, time::Instant};

use crate::{
    config::AuditWebhookConfig,
    webhooks::{ConfiguredWebhook, WebhookCallError},
};

use super::{
    metrics::AuditMetrics,
    queue::{QueuedEvent, QueuedLine},
};

/// Time for one attempt.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Attempts per batch; each pause is twice the one before.
const ATTEMPTS: u32 = 5;
const HEAD: &[u8] = br#"{"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{},"items":["#;

/// Posts events until the queue is closed.
pub(super) async fn run(
    config: AuditWebhookConfig,
    webhook: ConfiguredWebhook,
    mut events: mpsc::Receiver<QueuedEvent>,
    metrics: Arc<AuditMetrics>,
) {
    let most = config.batch_size.max(1);
    loop {
        let Some(first) = events.recv().await else { return };
        let mut batch: Vec<QueuedLine> = Vec::new();
        let mut waiting = Vec::new();
        let until = Instant::now() + config.batch_wait;
        let mut next = Some(first);
        while let Some(event) = next.take() {
            match event {
                QueuedEvent::Line(line) => batch.push(line),
                QueuedEvent::Flush(done) => {
                    waiting.push(done);
                    break;
                }
            }
            if batch.len() < most {
                next = tokio::time::timeout_at(until, events.recv()).await.ok().flatten();
            }
        }
        if !batch.is_empty()
            && let Err(error) = post(&config, &webhook, &batch).await
        {
            metrics.failed("webhook", batch.len());
            tracing::warn!(%error, events = batch.len(), "audit events are lost: the webhook does not accept them");
        }
        for done in waiting {
            // A caller that has left needs no answer.
            let _ = done.send(());
        }
    }
}

async fn post(
    config: &AuditWebhookConfig,
    webhook: &ConfiguredWebhook,
    batch: &[QueuedLine],
) -> Result<(), WebhookCallError> {
    let body = event_list(batch.iter().map(|event| &*event.line));
    let mut pause = config.initial_backoff;
    for attempt in 1.. {
        match webhook.post(body.clone(), TIMEOUT).await {
            Ok(_) => return Ok(()),
            Err(error) if attempt >= ATTEMPTS || !error.is_transient() => return Err(error),
            Err(error) => tracing::debug!(%error, attempt, "the webhook for audit events is tried again"),
        }
        tokio::time::sleep(pause).await;
        pause = pause.saturating_mul(2);
    }
    Ok(())
}

/// Encodes lines as an `EventList`.
fn event_list<'a>(lines: impl Iterator<Item = &'a [u8]>) -> Bytes {
    let mut body = HEAD.to_vec();
    for (at, line) in lines.enumerate() {
        if at > 0 {
            body.push(b',');
        }
        body.extend_from_slice(line.strip_suffix(b"\n").unwrap_or(line));
    }
    body.extend_from_slice(b"]}");
    body.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_event_lists() {
        let list = |lines: &[&[u8]]| -> serde_json::Value {
            serde_json::from_slice(&event_list(lines.iter().copied())).unwrap()
        };
        assert_eq!(list(&[])["items"], serde_json::json!([]));
        let two = list(&[b"{\"a\":1}\n", b"{}\n"]);
        assert_eq!((&two["kind"], &two["items"][0]["a"]), (&"EventList".into(), &1.into()));
    }
}
