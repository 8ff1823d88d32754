//! Presence of the servers on one etcd. Agents keep a session with each of them, so that a stream that any server opens
//! reaches the physical cluster; they need to know how many there are.
//!
//! Each server renews a record of its own. Another one counts it as long as it sees the record change; so no clocks are
//! compared.

use std::{collections::HashMap, sync::Arc, time::Duration};

use portolan_store::{DynStore, Expect, RangeRequest, RangeScope, StoreError, Transaction};
use portolan_tunnel::gateway::TunnelGateway;
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, ObjectName, Record, ResourceVersion};
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

/// Interval of renewals.
const RENEWAL: Duration = Duration::from_secs(5);
/// Time without a renewal after which a server counts as gone.
const GONE: Duration = Duration::from_secs(20);
/// Time without a renewal after which its record is deleted.
const FORGOTTEN: Duration = Duration::from_secs(600);

/// Presence of this server, and its view of the others.
pub(crate) struct ServerPresence {
    store: DynStore,
    tunnels: Arc<TunnelGateway>,
    own: ObjectKey,
    renewals: u64,
    /// Revision of each record, and the time at which it was seen to change.
    seen: HashMap<ObjectName, (ResourceVersion, Instant)>,
}

fn resource() -> GroupResource {
    GroupResource::new("internal.portolan.dev", "servers")
}

impl ServerPresence {
    pub(crate) fn new(store: DynStore, tunnels: Arc<TunnelGateway>) -> Self {
        let name = tunnels.server().parse().expect("a uid is the name of an object");
        let own = ObjectKey::cluster_scoped(LogicalClusterId::SYSTEM, resource(), name);
        Self { store, tunnels, own, renewals: 0, seen: HashMap::new() }
    }

    /// Renews the record and counts the servers until `shutdown`; then the record is deleted.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        let mut ticks = tokio::time::interval(RENEWAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
            if let Some(Err(error)) = shutdown.run_until_cancelled(self.look()).await {
                tracing::warn!(%error, "the servers on this store are not counted");
            }
        }
        let leave = Transaction::one(self.own, Expect::Anything, None);
        if let Err(error) = self.store.commit(leave).await {
            tracing::debug!(%error, "this server counts for a while yet");
        }
    }

    async fn look(&mut self) -> Result<(), StoreError> {
        self.renewals += 1;
        let record = Record::of(&json!({"metadata": {"name": &*self.own.name}, "renewals": self.renewals}));
        self.store.commit(Transaction::one(self.own.clone(), Expect::Anything, Some(record))).await?;
        let scope = RangeScope::Cluster(LogicalClusterId::SYSTEM, resource());
        let page = self.store.range(RangeRequest::all(scope).skip_damaged()).await?;
        let now = Instant::now();
        let mut seen = HashMap::new();
        for stored in &page.objects {
            let name = stored.key.name.clone();
            let unchanged = self.seen.get(&name).filter(|(revision, _)| *revision == stored.revision);
            let since = unchanged.map_or(now, |(_, since)| *since);
            if now.duration_since(since) > FORGOTTEN {
                self.store.commit(Transaction::one(stored.key.clone(), Expect::Anything, None)).await?;
            } else {
                seen.insert(name, (stored.revision, since));
            }
        }
        let count = seen.values().filter(|(_, since)| now.duration_since(*since) < GONE).count();
        self.seen = seen;
        self.tunnels.set_servers(u32::try_from(count).unwrap_or(u32::MAX));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use portolan_tunnel::session::Keepalive;
    use portolan_types::Seams;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn servers_count_while_they_renew_their_record() {
        let store = portolan_store::memory();
        let server = || {
            let tunnels = TunnelGateway::new(Seams::system(), Keepalive::default(), CancellationToken::new());
            (ServerPresence::new(store.clone(), tunnels.clone()), tunnels)
        };
        let ((mut one, first), (mut two, second)) = (server(), server());
        one.look().await.unwrap();
        assert_eq!(first.servers(), 1);
        two.look().await.unwrap();
        one.look().await.unwrap();
        assert_eq!((first.servers(), second.servers()), (2, 2));
        // One stops without a word.
        for _ in 0..5 {
            tokio::time::sleep(RENEWAL).await;
            one.look().await.unwrap();
        }
        assert_eq!(first.servers(), 1);
        two.look().await.unwrap();
        one.look().await.unwrap();
        assert_eq!(first.servers(), 2, "it was only slow");
        let stop = CancellationToken::new();
        stop.cancel();
        two.run(stop).await;
        one.look().await.unwrap();
        assert_eq!(first.servers(), 1, "a server that stops leaves at once");
    }
}
