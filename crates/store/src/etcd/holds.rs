//! States that a server still reads, made known to all servers on one etcd: whichever of them compacts keeps those, too.
//!
//! A hold is a key under a lease of its own, with the revision for a value. Its end is that of the lease: revoked, or, whatever
//! becomes of that request and of a put that is still on its way, not kept alive any more. Who compacts reads all holds first. A
//! hold of the present that is made at that very moment is none too late: it stands in etcd before its first read, and a compaction
//! goes no further than to what was the present when it looked.

use std::{future::pending, sync::Arc, time::Duration};

use tokio::{sync::oneshot, time::Instant};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    Inner,
    layout::range_of,
    proto::{PutRequest, RequestOp, TxnRequest, request_op::Request},
    roles::{PATIENCE, TIME_TO_LIVE},
};
use crate::StoreError;

/// Before etcd is asked again.
const AGAIN: Duration = Duration::from_millis(500);

impl Inner {
    /// Tells all servers that a revision is held, until what is returned is dropped. Without an answer of etcd's, as when it has no
    /// room, only this server keeps it, until etcd takes it after all.
    pub(super) async fn tell_hold(self: &Arc<Self>, revision: u64) -> DropGuard {
        // Made before anything is waited for: whoever gives the hold up while it is told ends it as well. So does the store's end.
        let over = self.stopped.child_token();
        let (guard, (said, told)) = (over.clone().drop_guard(), oneshot::channel());
        let inner = self.clone();
        tokio::spawn(async move { inner.keep_hold(revision, &over, said).await });
        if !matches!(tokio::time::timeout(PATIENCE, told).await, Ok(Ok(()))) {
            tracing::warn!(revision, "other servers do not hear of it yet that a state is held, and may forget it");
        }
        guard
    }

    /// Keeps a hold in etcd until it is over, under one lease after the other should they be lost.
    async fn keep_hold(&self, revision: u64, over: &CancellationToken, said: oneshot::Sender<()>) {
        let mut said = Some(said);
        while !over.is_cancelled() {
            let asked = Instant::now();
            let granting = self.client.grant(TIME_TO_LIVE.as_secs().cast_signed(), PATIENCE);
            let Some(Ok(lease)) = over.run_until_cancelled(granting).await else {
                over.run_until_cancelled(tokio::time::sleep(AGAIN)).await;
                continue;
            };
            let held = async {
                tokio::select! {
                    () = self.keep_alive(lease, asked) => {}
                    () = self.say_hold(lease, revision, &mut said) => {}
                }
            };
            if over.run_until_cancelled(held).await.is_none() {
                // An error means that it ends by itself.
                let _ = self.client.revoke(lease, PATIENCE).await;
            }
        }
    }

    /// Puts the key of a hold under a lease, as often as it takes, and then waits for ever.
    async fn say_hold(&self, lease: i64, revision: u64, said: &mut Option<oneshot::Sender<()>>) {
        let put = PutRequest { key: self.hold_key(lease).into(), value: revision.to_string().into(), lease };
        let request = TxnRequest {
            compare: vec![self.is_same_store()],
            success: vec![RequestOp { request: Some(Request::RequestPut(put)) }],
            failure: Vec::new(),
        };
        while !matches!(self.client.write(request.clone(), PATIENCE).await, Ok(answer) if answer.succeeded) {
            tokio::time::sleep(AGAIN).await;
        }
        said.take().map(|said| said.send(()));
        pending().await
    }

    fn hold_key(&self, lease: i64) -> Vec<u8> {
        self.layout.hold(&format!("{lease:x}"))
    }

    /// How far history may be forgotten of what is asked to be, for all that servers hold.
    pub(super) async fn held(&self, upto: u64) -> Result<u64, StoreError> {
        let (from, to) = range_of(self.layout.hold(""));
        let holds = self.read(from, to, 0, 0, false).await?.kvs;
        // What is not called after its lease is no server's, and may stay for ever.
        let holds = holds.iter().filter(|kv| kv.lease != 0 && kv.key == self.hold_key(kv.lease));
        let held = holds.filter_map(|kv| std::str::from_utf8(&kv.value).ok()?.parse::<u64>().ok());
        Ok(held.min().map_or(upto, |held| upto.min(held)))
    }
}
