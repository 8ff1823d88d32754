//! What only one of the servers on one store may do: scheduling, the common loops, the workers of a physical cluster.
//!
//! On etcd a server has one lease, which it keeps alive; a role is a key under that lease, so that it is free again when the
//! server has been silent for the lease's time. The server counts that time itself, from when it last asked, and gives all its
//! roles up before etcd does. Every effect of a role is conditional on what it read besides (revisions, the count of syncers), so
//! that a server that slept through the end of its term does no harm when it wakes.

use std::{sync::Arc, time::Duration};

use futures::stream;
use parking_lot::Mutex;
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    Inner,
    commit::{at, delete, is_absent, is_at, look, looked},
    proto::{Compare, LeaseKeepAliveRequest, PutRequest, RequestOp, TxnRequest, TxnResponse, request_op::Request},
};

/// After this time without a word from its server a role is free, and a hold is over.
pub(super) const TIME_TO_LIVE: Duration = Duration::from_secs(9);
/// How often etcd hears that the server lives.
const BEAT: Duration = Duration::from_secs(2);
/// Before etcd lets go of a role, the server does.
const MARGIN: Duration = Duration::from_secs(2);
/// After this time a stream of beats that broke is opened again.
const PAUSE: Duration = Duration::from_millis(200);
/// How long one request may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);
/// A role that somebody has is looked at again after this time, if nothing tells that it is free.
const LOOK: Duration = Duration::from_secs(5);

/// The roles of one server.
pub struct Roles(Kind);

enum Kind {
    /// There is no other server.
    Alone,
    Etcd(Arc<Servant>),
}

/// A time in which a role is this server's: until `lost`, or until it is dropped.
pub struct Term {
    lost: CancellationToken,
    of: Option<(Arc<Servant>, String, i64)>,
}

impl Term {
    /// Cancelled when the role is somebody else's, or may soon be.
    pub fn lost(&self) -> &CancellationToken {
        &self.lost
    }
}

impl Drop for Term {
    fn drop(&mut self) {
        self.lost.cancel();
        if let Some((servant, role, at)) = self.of.take() {
            // Whoever ends in order lets others begin at once; otherwise the lease ends by itself.
            if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                runtime.spawn(async move { servant.give_up(&role, at).await });
            }
        }
    }
}

impl Roles {
    /// Of a server that has its store for itself.
    pub fn alone() -> Self {
        Self(Kind::Alone)
    }

    pub(super) fn on(servant: Arc<Servant>) -> Self {
        Self(Kind::Etcd(servant))
    }

    /// Waits until a role is this server's.
    pub async fn take(&self, role: &str) -> Term {
        match &self.0 {
            Kind::Alone => Term { lost: CancellationToken::new(), of: None },
            Kind::Etcd(servant) => servant.take(role).await,
        }
    }
}

/// A lease that etcd has given.
#[derive(Clone)]
struct Lease {
    id: i64,
    ended: CancellationToken,
}

/// A server that may have roles.
pub(super) struct Servant {
    inner: Arc<Inner>,
    lease: watch::Sender<Option<Lease>>,
    started: Mutex<bool>,
}

impl Servant {
    pub(super) fn new(inner: Arc<Inner>) -> Arc<Self> {
        Arc::new(Self { inner, lease: watch::Sender::new(None), started: Mutex::new(false) })
    }

    async fn take(self: &Arc<Self>, role: &str) -> Term {
        self.start();
        let mut leases = self.lease.subscribe();
        loop {
            // The sender is `self`.
            let Ok(lease) = leases.wait_for(Option::is_some).await.map(|lease| lease.clone()) else { continue };
            let Some(lease) = lease else { continue };
            let freed = self.inner.freed.notified();
            if let Some(at) = self.try_take(role, lease.id).await {
                let lost = lease.ended.child_token();
                tracing::info!(role, "this server has a role");
                return Term { lost, of: Some((self.clone(), role.to_owned(), at)) };
            }
            // An error means that nothing told of it.
            let _ = tokio::time::timeout(LOOK, freed).await;
        }
    }

    /// The revision at which the role was taken.
    async fn try_take(&self, role: &str, lease: i64) -> Option<i64> {
        let key = self.inner.layout.role(role);
        let answer = self.take_if(is_absent(key.clone()), &key, lease).await?;
        if answer.succeeded {
            return Some(at(&answer));
        }
        // Taken under this very lease without the answer having come, or given up a moment ago: it is written anew, so that
        // the end of that time does not end this one.
        let own = looked(answer).pop().flatten().filter(|kv| kv.lease == lease)?;
        let answer = self.take_if(is_at(key.clone(), own.mod_revision), &key, lease).await?;
        answer.succeeded.then(|| at(&answer))
    }

    async fn take_if(&self, free: Compare, key: &[u8], lease: i64) -> Option<TxnResponse> {
        let put = PutRequest { key: key.to_vec().into(), value: lease.to_string().into(), lease };
        let request = TxnRequest {
            compare: vec![free, self.inner.is_same_store()],
            success: vec![RequestOp { request: Some(Request::RequestPut(put)) }],
            failure: vec![look(key.to_vec())],
        };
        self.inner.client.write(request, PATIENCE).await.ok()
    }

    async fn give_up(&self, role: &str, at: i64) {
        let key = self.inner.layout.role(role);
        let request =
            TxnRequest { compare: vec![is_at(key.clone(), at)], success: vec![delete(key)], failure: Vec::new() };
        // An error means that the lease ends it.
        let _ = self.inner.client.write(request, PATIENCE).await;
    }

    /// Asks for a lease with the first role that is wanted.
    fn start(self: &Arc<Self>) {
        let mut started = self.started.lock();
        if !*started {
            *started = true;
            tokio::spawn(self.clone().live());
        }
    }

    /// Has a lease, and after its end another one, until the store is closed.
    async fn live(self: Arc<Self>) {
        let stopped = self.inner.stopped.clone();
        while !stopped.is_cancelled() {
            let (asked, ended) = (Instant::now(), CancellationToken::new());
            let granting = self.inner.client.grant(TIME_TO_LIVE.as_secs().cast_signed(), PATIENCE);
            let Some(Ok(id)) = stopped.run_until_cancelled(granting).await else {
                tokio::time::sleep(Duration::from_millis(500)).await;
                continue;
            };
            self.lease.send_replace(Some(Lease { id, ended: ended.clone() }));
            stopped.run_until_cancelled(self.inner.keep_alive(id, asked)).await;
            self.lease.send_replace(None);
            ended.cancel();
            if stopped.is_cancelled() {
                // An error means that it ends by itself.
                let _ = self.inner.client.revoke(id, PATIENCE).await;
            } else {
                tracing::warn!("etcd has not heard of this server in time: its roles are given up");
            }
        }
    }
}

impl Inner {
    /// Keeps a lease alive as long as that can be done. It is sure until its time has passed since it was last asked for.
    pub(super) async fn keep_alive(&self, id: i64, asked: Instant) {
        let mut sure_until = asked + TIME_TO_LIVE - MARGIN;
        while Instant::now() < sure_until {
            match self.beat(id, &mut sure_until).await {
                Kept::Ended => return,
                Kept::Broken => tokio::time::sleep_until(sure_until.min(Instant::now() + PAUSE)).await,
            }
        }
    }

    /// Beats on one stream until it breaks.
    async fn beat(&self, id: i64, sure_until: &mut Instant) -> Kept {
        let (send, receiver) = mpsc::channel(1);
        let beats = stream::unfold(receiver, |mut beats| async { beats.recv().await.map(|beat| (beat, beats)) });
        let mut asked = Instant::now();
        // It has room for this one.
        let _ = send.try_send(LeaseKeepAliveRequest { id });
        let opening = self.client.keep_alive(beats, PATIENCE);
        let Ok(Ok((mut answers, member))) = tokio::time::timeout_at(*sure_until, opening).await else {
            return Kept::Broken;
        };
        loop {
            match tokio::time::timeout_at(*sure_until, answers.message()).await {
                Ok(Ok(Some(answer))) if answer.ttl > 0 => *sure_until = asked + TIME_TO_LIVE - MARGIN,
                Ok(Ok(Some(_))) => return Kept::Ended,
                Ok(Ok(None) | Err(_)) | Err(_) => {
                    self.client.leave(member);
                    return Kept::Broken;
                }
            }
            // Who was stopped for a while reads old answers first.
            if Instant::now() >= *sure_until {
                return Kept::Broken;
            }
            tokio::time::sleep(BEAT).await;
            asked = Instant::now();
            // Who stood still meanwhile may have lost all of them: nothing is asked before they are given up.
            if asked >= *sure_until {
                return Kept::Broken;
            }
            if send.send(LeaseKeepAliveRequest { id }).await.is_err() {
                return Kept::Broken;
            }
        }
    }
}

/// How a stream of beats ended.
enum Kept {
    /// etcd does not know the lease any more.
    Ended,
    Broken,
}

#[cfg(test)]
mod tests;
