//! Leases of the syncer workers. Of several servers on one store, one runs the workers of a physical cluster.

use std::{collections::HashMap, sync::Arc};

use futures::FutureExt as _;
use parking_lot::Mutex;
use portolan_store::{LeaderElection, LeadershipTerm};
use portolan_types::Uid;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Worker leases of this server.
pub(crate) struct WorkerLeases {
    roles: Arc<LeaderElection>,
    leases: Mutex<HashMap<Uid, WorkerLease>>,
}

enum WorkerLease {
    /// Another server holds the lease; the task waits for it.
    Waiting(JoinHandle<LeadershipTerm>),
    Held(LeadershipTerm),
}

impl Drop for WorkerLease {
    fn drop(&mut self) {
        if let Self::Waiting(waiting) = self {
            waiting.abort();
        }
    }
}

impl WorkerLeases {
    pub(crate) fn new(roles: Arc<LeaderElection>) -> Self {
        Self { roles, leases: Mutex::default() }
    }

    /// Returns true if this server holds the lease of a physical cluster. The first call requests it.
    pub(crate) fn holds(&self, uid: &Uid) -> bool {
        let mut leases = self.leases.lock();
        let lease = match leases.remove(uid) {
            Some(WorkerLease::Held(ref term)) if term.lost().is_cancelled() => self.request(uid),
            Some(lease) => lease,
            None => self.request(uid),
        };
        let lease = resolved(lease);
        let is_held = matches!(lease, WorkerLease::Held(_));
        leases.insert(uid.clone(), lease);
        is_held
    }

    /// Returns a token that is cancelled at the end of the lease, or of the server; `None` without a lease.
    pub(crate) fn end_of(&self, uid: &Uid, shutdown: &CancellationToken) -> Option<CancellationToken> {
        let leases = self.leases.lock();
        let Some(WorkerLease::Held(term)) = leases.get(uid) else { return None };
        let (end, lost) = (shutdown.child_token(), term.lost().clone());
        let ending = end.clone();
        tokio::spawn(async move {
            ending.run_until_cancelled(lost.cancelled()).await;
            ending.cancel();
        });
        Some(end)
    }

    /// Releases a lease, or stops waiting for it.
    pub(crate) fn release(&self, uid: &Uid) {
        self.leases.lock().remove(uid);
    }

    fn request(&self, uid: &Uid) -> WorkerLease {
        let (roles, role) = (self.roles.clone(), format!("physical-cluster/{uid}"));
        let mut taking = Box::pin(async move { roles.take(&role).await });
        // A single server gets the lease at once.
        match taking.as_mut().now_or_never() {
            Some(term) => WorkerLease::Held(term),
            None => WorkerLease::Waiting(tokio::spawn(taking)),
        }
    }
}

/// Turns a waiting lease into a held one, if it was granted meanwhile.
fn resolved(mut lease: WorkerLease) -> WorkerLease {
    let given = match &mut lease {
        WorkerLease::Waiting(waiting) => waiting.now_or_never(),
        WorkerLease::Held(_) => None,
    };
    match given {
        Some(Ok(term)) => WorkerLease::Held(term),
        Some(Err(_)) | None => lease,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_alone_has_every_post_until_it_leaves_it() {
        let (leases, stop) = (WorkerLeases::new(Arc::new(LeaderElection::standalone())), CancellationToken::new());
        let east: Uid = "east".parse().unwrap();
        assert!(leases.end_of(&east, &stop).is_none(), "no server has requested it yet");
        assert!(leases.holds(&east));
        let end = leases.end_of(&east, &stop).unwrap();
        assert!(!end.is_cancelled());
        leases.release(&east);
        end.cancelled().await;
        assert!(leases.holds(&east), "it may come again");
        let end = leases.end_of(&east, &stop).unwrap();
        stop.cancel();
        assert!(end.is_cancelled());
    }
}
