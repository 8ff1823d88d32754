//! Upstream changes: a snapshot, then a stream. Both only name the keys to reconcile.

use std::{sync::Arc, sync::atomic::Ordering, time::Duration};

use portolan_types::{
    ObjectKey, ResourceVersion, object,
    upstream::{PlacedSnapshot, UpstreamError, UpstreamObject},
};

use super::{Work, Worker, queue::jitter, state::CopyTrouble};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(10);

pub(super) async fn follow(worker: Arc<Worker>) {
    let mut pause = FIRST_PAUSE;
    loop {
        match worker.upstream.snapshot(&worker.config.uid).await {
            Ok(snapshot) => {
                pause = FIRST_PAUSE;
                let revision = snapshot.revision;
                worker.apply_snapshot(snapshot);
                follow_changes(&worker, revision).await;
            }
            Err(error) => {
                tracing::warn!(cluster = %worker.config.name, %error, "the upstream snapshot failed");
                tokio::time::sleep(jitter(&worker.seams, pause)).await;
                pause = (pause * 2).min(LAST_PAUSE);
            }
        }
    }
}

/// Returns when a new snapshot is needed.
async fn follow_changes(worker: &Worker, mut after: ResourceVersion) {
    let mut pause = FIRST_PAUSE;
    loop {
        let started = after;
        match changes(worker, &mut after).await {
            UpstreamError::Expired => return,
            error @ (UpstreamError::Conflict | UpstreamError::Failed(_)) => {
                tracing::debug!(cluster = %worker.config.name, %error, "the stream of upstream changes failed");
            }
        }
        pause = if after > started { FIRST_PAUSE } else { (pause * 2).min(LAST_PAUSE) };
        tokio::time::sleep(jitter(&worker.seams, pause)).await;
    }
}

async fn changes(worker: &Worker, after: &mut ResourceVersion) -> UpstreamError {
    let mut stream = match worker.upstream.changes(&worker.config.uid, *after).await {
        Ok(stream) => stream,
        Err(error) => return error,
    };
    loop {
        match stream.next().await {
            Ok(changes) => {
                changes.keys.into_iter().for_each(|key| worker.queue.add(Work::Copy(key)));
                *after = (*after).max(changes.revision);
            }
            Err(error) => return error,
        }
    }
}

impl Worker {
    /// Enqueues all objects of a snapshot, and all objects that were known before: an object that the snapshot lacks is
    /// read again, because its absence does not prove that it is gone.
    fn apply_snapshot(&self, snapshot: PlacedSnapshot) {
        let mut keys: Vec<ObjectKey> = self.state().known.keys().cloned().collect();
        for (key, uid) in snapshot.objects {
            if let Some(uid) = uid {
                self.state().known.insert(key.clone(), uid);
            }
            keys.push(key);
        }
        self.is_view_synced.store(true, Ordering::Release);
        keys.into_iter().for_each(|key| self.queue.add(Work::Copy(key)));
    }

    /// Records an object if it is placed here. Other objects are read because an object downstream names them. They are
    /// not recorded, because users of the physical cluster can write such names.
    pub(super) fn record_known(&self, upstream: &UpstreamObject) {
        if let Some(uid) = object::uid(&upstream.object).filter(|_| self.entry(upstream).is_some()) {
            self.state().known.insert(upstream.key.clone(), uid);
        }
    }

    /// Removes all that is known of an object.
    pub(super) fn forget(&self, key: &ObjectKey) {
        let mut state = self.state();
        state.known.remove(key);
        state.reported.remove(key);
        state.settled.remove(key);
        state.pod_tokens.remove(key);
        state.known_trouble(key, |trouble| *trouble = CopyTrouble::default());
    }
}
