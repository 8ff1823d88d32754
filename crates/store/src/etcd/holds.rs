//! States that a server still reads, made known to all servers on one etcd: whichever of them compacts keeps those, too.
//!
//! A hold is a key under the lease of its server, with the revision for a value, and ends with the server at the latest. Who
//! compacts reads all of them first. A hold of the present that is made at that very moment is none too late: it stands in etcd
//! before its first read, and a compaction goes no further than to what was the present when it looked.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::sync::oneshot;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    Inner,
    commit::delete,
    layout::range_of,
    proto::{PutRequest, RequestOp, TxnRequest, request_op::Request},
    roles::{PATIENCE, Servant},
};
use crate::StoreError;

/// Before etcd is asked again.
const AGAIN: Duration = Duration::from_millis(500);

impl Servant {
    /// Tells all servers that a revision is held, until what is returned is dropped. Without an answer of etcd's, as when it has no
    /// room, only this server keeps it, until etcd takes it after all.
    pub(super) async fn tell_hold(self: &Arc<Self>, revision: u64) -> DropGuard {
        self.start();
        let (over, (said, told)) = (CancellationToken::new(), oneshot::channel());
        // Made before anything is waited for: whoever gives the hold up while it is told ends it as well.
        let guard = over.clone().drop_guard();
        let servant = self.clone();
        tokio::spawn(async move {
            let number = servant.holds.fetch_add(1, Ordering::Relaxed);
            let mut key = Vec::new();
            over.run_until_cancelled(servant.keep_hold(&mut key, number, revision, said)).await;
            let request = TxnRequest { success: vec![delete(key)], ..TxnRequest::default() };
            // An error means that the lease ends it.
            let _ = servant.inner.client.write(request, PATIENCE).await;
        });
        if !matches!(tokio::time::timeout(PATIENCE, told).await, Ok(Ok(()))) {
            tracing::warn!(revision, "other servers do not hear of it yet that a state is held, and may forget it");
        }
        guard
    }

    /// Keeps the key of a hold in etcd for ever, under whichever lease this server has.
    async fn keep_hold(&self, key: &mut Vec<u8>, number: u64, revision: u64, said: oneshot::Sender<()>) {
        let (mut leases, mut said) = (self.leases(), Some(said));
        loop {
            // The sender is `self`.
            let Ok(Some(lease)) = leases.wait_for(Option::is_some).await.map(|lease| lease.clone()) else { continue };
            *key = self.inner.layout.hold(&format!("{:x}.{number}", lease.id));
            let put = PutRequest { key: key.clone().into(), value: revision.to_string().into(), lease: lease.id };
            let request = TxnRequest {
                compare: vec![self.inner.is_same_store()],
                success: vec![RequestOp { request: Some(Request::RequestPut(put)) }],
                failure: Vec::new(),
            };
            match self.inner.client.write(request, PATIENCE).await {
                Ok(answer) if answer.succeeded => {
                    said.take().map(|said| said.send(()));
                    lease.ended.cancelled().await;
                }
                Ok(_) | Err(_) => tokio::time::sleep(AGAIN).await,
            }
        }
    }
}

impl Inner {
    /// How far history may be forgotten of what is asked to be, for all that servers hold.
    pub(super) async fn held(&self, upto: u64) -> Result<u64, StoreError> {
        let (from, to) = range_of(self.layout.hold(""));
        let holds = self.read(from, to, 0, 0, false).await?.kvs;
        // What has no lease is no server's, and would stay for ever.
        let holds = holds.iter().filter(|kv| kv.lease != 0);
        let held = holds.filter_map(|kv| std::str::from_utf8(&kv.value).ok()?.parse::<u64>().ok());
        Ok(held.min().map_or(upto, |held| upto.min(held)))
    }
}
