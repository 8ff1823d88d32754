//! Leader election: exactly one of the servers on one store may schedule, run the common controllers, or run the
//! workers of a physical cluster.
//!
//! On etcd a server has one lease, which it keeps alive. A leadership is a key under that lease, so it is free again
//! when the server has been silent for the lease's time to live. The server measures that time itself, from its last
//! request, and steps down before the lease expires. Every effect of a leadership is also conditional on revisions that
//! were read, so that a server that was suspended past the end of its term does no harm when it resumes.

use std::{sync::Arc, time::Duration};

use futures::stream;
use parking_lot::Mutex;
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    EtcdCore,
    commit::{at, delete, is_absent, is_at, read_key, read_results},
    proto::{Compare, LeaseKeepAliveRequest, PutRequest, RequestOp, TxnRequest, TxnResponse, request_op::Request},
};

/// Time to live of a lease: a leadership or hold ends after this time of silence.
pub(super) const TIME_TO_LIVE: Duration = Duration::from_secs(9);
/// Interval of lease renewals.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(2);
/// Safety margin: the server steps down so long before the lease expires.
const SAFETY_MARGIN: Duration = Duration::from_secs(2);
/// Pause before a broken renewal stream is reopened.
const REOPEN_PAUSE: Duration = Duration::from_millis(200);
/// Time limit of one request.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);
/// Interval at which a taken leadership is checked again, if no event tells that it is free.
const RECHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Leader election of one server.
pub struct LeaderElection(ElectionBackend);

enum ElectionBackend {
    /// There is no other server.
    Alone,
    Etcd(Arc<ElectionCandidate>),
}

/// Term of a leadership: until `lost` is canceled, or until it is dropped.
pub struct LeadershipTerm {
    lost: CancellationToken,
    of: Option<(Arc<ElectionCandidate>, String, i64)>,
}

impl LeadershipTerm {
    /// Returns the token that is canceled when another server has the leadership, or may soon have it.
    pub fn lost(&self) -> &CancellationToken {
        &self.lost
    }
}

impl Drop for LeadershipTerm {
    fn drop(&mut self) {
        self.lost.cancel();
        if let Some((servant, role, at)) = self.of.take() {
            // After an orderly end another server can lead at once; otherwise the lease must expire.
            if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                runtime.spawn(async move { servant.give_up(&role, at).await });
            }
        }
    }
}

impl LeaderElection {
    /// Creates the election of a server that does not share its store.
    pub fn standalone() -> Self {
        Self(ElectionBackend::Alone)
    }

    pub(super) fn on(servant: Arc<ElectionCandidate>) -> Self {
        Self(ElectionBackend::Etcd(servant))
    }

    /// Waits until this server is the leader for a role.
    pub async fn take(&self, role: &str) -> LeadershipTerm {
        match &self.0 {
            ElectionBackend::Alone => LeadershipTerm { lost: CancellationToken::new(), of: None },
            ElectionBackend::Etcd(servant) => servant.take(role).await,
        }
    }
}

/// Granted lease.
#[derive(Clone)]
struct EtcdLease {
    id: i64,
    ended: CancellationToken,
}

/// Candidate: a server that may become leader.
pub(super) struct ElectionCandidate {
    inner: Arc<EtcdCore>,
    lease: watch::Sender<Option<EtcdLease>>,
    started: Mutex<bool>,
}

impl ElectionCandidate {
    pub(super) fn new(inner: Arc<EtcdCore>) -> Arc<Self> {
        Arc::new(Self { inner, lease: watch::Sender::new(None), started: Mutex::new(false) })
    }

    async fn take(self: &Arc<Self>, role: &str) -> LeadershipTerm {
        self.start();
        let mut leases = self.lease.subscribe();
        loop {
            // The sender is `self`.
            let Ok(lease) = leases.wait_for(Option::is_some).await.map(|lease| lease.clone()) else { continue };
            let Some(lease) = lease else { continue };
            let freed = self.inner.freed.notified();
            if let Some(at) = self.try_take(role, lease.id).await {
                let lost = lease.ended.child_token();
                tracing::info!(role, "became leader");
                return LeadershipTerm { lost, of: Some((self.clone(), role.to_owned(), at)) };
            }
            // An error means that no event reported it.
            let _ = tokio::time::timeout(RECHECK_INTERVAL, freed).await;
        }
    }

    /// Tries to become leader; returns the revision at which it succeeded.
    async fn try_take(&self, role: &str, lease: i64) -> Option<i64> {
        let key = self.inner.layout.role(role);
        let answer = self.take_if(is_absent(key.clone()), &key, lease).await?;
        if answer.succeeded {
            return Some(at(&answer));
        }
        // The key is under this server's lease: an answer was lost, or the earlier term has just ended. It is written
        // again, so that the end of that term does not end this one.
        let own = read_results(answer).pop().flatten().filter(|kv| kv.lease == lease)?;
        let answer = self.take_if(is_at(key.clone(), own.mod_revision), &key, lease).await?;
        answer.succeeded.then(|| at(&answer))
    }

    async fn take_if(&self, free: Compare, key: &[u8], lease: i64) -> Option<TxnResponse> {
        let put = PutRequest { key: key.to_vec().into(), value: lease.to_string().into(), lease };
        let request = TxnRequest {
            compare: vec![free, self.inner.is_same_store()],
            success: vec![RequestOp { request: Some(Request::RequestPut(put)) }],
            failure: vec![read_key(key.to_vec())],
        };
        self.inner.client.write(request, REQUEST_TIMEOUT).await.ok()
    }

    async fn give_up(&self, role: &str, at: i64) {
        let key = self.inner.layout.role(role);
        let request =
            TxnRequest { compare: vec![is_at(key.clone(), at)], success: vec![delete(key)], failure: Vec::new() };
        // On an error the lease expires by itself.
        let _ = self.inner.client.write(request, REQUEST_TIMEOUT).await;
    }

    /// Requests a lease when the first leadership is wanted.
    fn start(self: &Arc<Self>) {
        let mut started = self.started.lock();
        if !*started {
            *started = true;
            tokio::spawn(self.clone().live());
        }
    }

    /// Keeps a lease, and renews it after its end, until the store is closed.
    async fn live(self: Arc<Self>) {
        let stopped = self.inner.stopped.clone();
        while !stopped.is_cancelled() {
            let (asked, ended) = (Instant::now(), CancellationToken::new());
            let granting = self.inner.client.grant(TIME_TO_LIVE.as_secs().cast_signed(), REQUEST_TIMEOUT);
            let Some(Ok(id)) = stopped.run_until_cancelled(granting).await else {
                tokio::time::sleep(Duration::from_millis(500)).await;
                continue;
            };
            self.lease.send_replace(Some(EtcdLease { id, ended: ended.clone() }));
            stopped.run_until_cancelled(self.inner.keep_alive(id, asked)).await;
            self.lease.send_replace(None);
            ended.cancel();
            if stopped.is_cancelled() {
                // On an error the lease expires by itself.
                let _ = self.inner.client.revoke(id, REQUEST_TIMEOUT).await;
            } else {
                tracing::warn!("lease not renewed in time, stepping down from all leaderships");
            }
        }
    }
}

impl EtcdCore {
    /// Keeps a lease alive as long as possible. The lease is certain until its time to live has passed since the last
    /// renewal request.
    pub(super) async fn keep_alive(&self, id: i64, asked: Instant) {
        let mut sure_until = asked + TIME_TO_LIVE - SAFETY_MARGIN;
        while Instant::now() < sure_until {
            match self.beat(id, &mut sure_until).await {
                RenewalEnd::Ended => return,
                RenewalEnd::Broken => tokio::time::sleep_until(sure_until.min(Instant::now() + REOPEN_PAUSE)).await,
            }
        }
    }

    /// Renews the lease on one stream until it breaks.
    async fn beat(&self, id: i64, sure_until: &mut Instant) -> RenewalEnd {
        let (send, receiver) = mpsc::channel(1);
        let beats = stream::unfold(receiver, |mut beats| async { beats.recv().await.map(|beat| (beat, beats)) });
        let mut asked = Instant::now();
        // The new channel has capacity for this request.
        let _ = send.try_send(LeaseKeepAliveRequest { id });
        let opening = self.client.keep_alive(beats, REQUEST_TIMEOUT);
        let Ok(Ok((mut answers, member))) = tokio::time::timeout_at(*sure_until, opening).await else {
            return RenewalEnd::Broken;
        };
        loop {
            match tokio::time::timeout_at(*sure_until, answers.message()).await {
                Ok(Ok(Some(answer))) if answer.ttl > 0 => *sure_until = asked + TIME_TO_LIVE - SAFETY_MARGIN,
                Ok(Ok(Some(_))) => return RenewalEnd::Ended,
                Ok(Ok(None) | Err(_)) | Err(_) => {
                    self.client.switch_member(member);
                    return RenewalEnd::Broken;
                }
            }
            // A server that was suspended reads old answers first.
            if Instant::now() >= *sure_until {
                return RenewalEnd::Broken;
            }
            tokio::time::sleep(RENEWAL_INTERVAL).await;
            asked = Instant::now();
            // A server that was suspended may have lost the lease, so it steps down before it renews.
            if asked >= *sure_until {
                return RenewalEnd::Broken;
            }
            if send.send(LeaseKeepAliveRequest { id }).await.is_err() {
                return RenewalEnd::Broken;
            }
        }
    }
}

/// End of a renewal stream.
enum RenewalEnd {
    /// etcd does not know the lease.
    Ended,
    Broken,
}

#[cfg(test)]
mod tests;
