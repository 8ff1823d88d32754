//! Holds on history that are announced to all servers on one etcd: whichever of them compacts keeps that history.
//!
//! A hold is a key with the revision as its value, under a lease of its own. It ends with the lease: revoked or, if
//! that request fails or a put is still in flight, expired. A compacting server reads all holds first. A new hold of
//! the latest revision is never too late: it is in etcd before its first read, and a compaction goes no further than
//! the latest revision at its start.

use std::{future::pending, sync::Arc, time::Duration};

use tokio::{sync::oneshot, time::Instant};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    EtcdCore,
    layout::range_of,
    leader_election::{REQUEST_TIMEOUT, TIME_TO_LIVE},
    proto::{PutRequest, RequestOp, TxnRequest, request_op::Request},
};
use crate::api::StoreError;

/// Pause before a request is repeated.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

impl EtcdCore {
    /// Announces to all servers that a revision is held, until the returned guard is dropped. While etcd does not
    /// answer or is full, only this server keeps the history.
    pub(super) async fn announce_hold(self: &Arc<Self>, revision: u64) -> DropGuard {
        // Created before the first await, so that dropping the hold or closing the store always ends the announcement.
        let over = self.stopped.child_token();
        let (guard, (said, told)) = (over.clone().drop_guard(), oneshot::channel());
        let inner = self.clone();
        tokio::spawn(async move { inner.maintain_hold(revision, &over, said).await });
        if !matches!(tokio::time::timeout(REQUEST_TIMEOUT, told).await, Ok(Ok(()))) {
            tracing::warn!(revision, "other servers do not know of a held revision yet, and may compact it");
        }
        guard
    }

    /// Keeps a hold in etcd until it is over; renews the lease if it is lost.
    async fn maintain_hold(&self, revision: u64, over: &CancellationToken, said: oneshot::Sender<()>) {
        let mut said = Some(said);
        while !over.is_cancelled() {
            let asked = Instant::now();
            let granting = self.client.grant(TIME_TO_LIVE.as_secs().cast_signed(), REQUEST_TIMEOUT);
            let Some(Ok(lease)) = over.run_until_cancelled(granting).await else {
                over.run_until_cancelled(tokio::time::sleep(RETRY_PAUSE)).await;
                continue;
            };
            let held = async {
                tokio::select! {
                    () = self.keep_alive(lease, asked) => {}
                    () = self.put_hold(lease, revision, &mut said) => {}
                }
            };
            if over.run_until_cancelled(held).await.is_none() {
                // On an error the lease expires by itself.
                let _ = self.client.revoke(lease, REQUEST_TIMEOUT).await;
            }
        }
    }

    /// Puts the key of a hold under a lease, retrying until it succeeds, and then waits forever.
    async fn put_hold(&self, lease: i64, revision: u64, said: &mut Option<oneshot::Sender<()>>) {
        let put = PutRequest { key: self.hold_key(lease).into(), value: revision.to_string().into(), lease };
        let request = TxnRequest {
            compare: vec![self.is_same_store()],
            success: vec![RequestOp { request: Some(Request::RequestPut(put)) }],
            failure: Vec::new(),
        };
        while !matches!(self.client.write(request.clone(), REQUEST_TIMEOUT).await, Ok(answer) if answer.succeeded) {
            tokio::time::sleep(RETRY_PAUSE).await;
        }
        said.take().map(|said| said.send(()));
        pending().await
    }

    fn hold_key(&self, lease: i64) -> Vec<u8> {
        self.layout.hold(&format!("{lease:x}"))
    }

    /// Returns the revision up to which history may be compacted, given the holds of all servers.
    pub(super) async fn held(&self, upto: u64) -> Result<u64, StoreError> {
        let (from, to) = range_of(self.layout.hold(""));
        let holds = self.read(from, to, 0, 0, false).await?.kvs;
        // A key that is not named after its lease belongs to no server, and may stay forever.
        let holds = holds.iter().filter(|kv| kv.lease != 0 && kv.key == self.hold_key(kv.lease));
        let held = holds.filter_map(|kv| std::str::from_utf8(&kv.value).ok()?.parse::<u64>().ok());
        Ok(held.min().map_or(upto, |held| upto.min(held)))
    }
}
