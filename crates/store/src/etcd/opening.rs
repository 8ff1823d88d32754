//! Finding the store in an etcd, or founding it.

use std::sync::Arc;

use parking_lot::RwLock;
use portolan_types::Seams;
use serde_json::{Value, json};
use tokio::{
    runtime::Handle,
    sync::{Notify, Semaphore, watch},
};
use tokio_util::sync::CancellationToken;

use super::{
    EtcdStore, IN_FLIGHT, Inner, READ_PATIENCE, Standing,
    client::{Client, Fault},
    clusters, commit,
    config::EtcdConfig,
    feed,
    layout::{Layout, Numbering},
    proto::{RangeRequest, TxnRequest},
    roles::Roles,
};
use crate::{
    DynStore, OpenError, StoreConfig, StoreError,
    holds::Holds,
    hub::{Hub, RingBudget},
    metrics::Metrics,
    read::Marks,
};

/// The version of the layout in etcd.
pub(super) const FORMAT: u64 = 1;
/// How often a store is founded while etcd does not answer in time.
const TRIES: usize = 5;
/// Set in the record while a store is being made of a snapshot.
pub(super) const RESTORING: &str = "restoring";

/// Opens the store under the configured prefix, or founds it. Of `config` only the bounds of memory, the time-out of a write and
/// the registry count. What only one server may do is told by the second of the two.
///
/// # Errors
/// `Etcd` when etcd cannot be used; `NewerFormat`; `Metrics`.
pub async fn open_etcd(
    etcd: &EtcdConfig,
    config: &StoreConfig,
    seams: &Seams,
) -> Result<(DynStore, Arc<Roles>), OpenError> {
    let client = Client::new(etcd).map_err(OpenError::Etcd)?;
    let layout = Layout { prefix: etcd.prefix.clone().into_bytes(), numbering: Numbering { base: 0 } };
    let (founded, base) = found(&client, &layout, seams).await?;
    let layout = Layout { numbering: Numbering { base }, ..layout };
    let metrics = Metrics::new(config.registry.as_ref())?;
    let budget = RingBudget { each: config.ring_bytes, all: config.all_rings_bytes };
    let first = layout.numbering.boundary(founded);
    let hub = Hub::new(Marks { last: first, floor: first }, budget, metrics.watchers.clone());
    let inner = Arc::new(Inner {
        client,
        layout,
        founded,
        hub,
        holds: Holds::default(),
        metrics,
        reached: watch::Sender::new(founded),
        nudge: Notify::new(),
        freed: Notify::new(),
        in_flight: Arc::new(Semaphore::new(IN_FLIGHT as usize)),
        standing: RwLock::new(Standing::Open),
        stopped: CancellationToken::new(),
        patience: config.commit_timeout,
    });
    inner.begin().await.map_err(|error| OpenError::Etcd(error.to_string()))?;
    let runtime = Handle::current();
    runtime.spawn(feed::run(inner.clone()));
    runtime.spawn(clusters::sweep_all(inner.clone()));
    let roles = Arc::new(Roles::on(inner.clone()));
    Ok((Arc::new(EtcdStore { inner, runtime }), roles))
}

/// The revision of the store's record and its base.
async fn found(client: &Client, layout: &Layout, seams: &Seams) -> Result<(i64, u64), OpenError> {
    let failed = |fault: Fault| OpenError::Etcd(fault.to_string());
    let key = layout.meta();
    let record = json!({"format": FORMAT, "identity": seams.uid().to_string(), "base": "0"}).to_string();
    let founding = TxnRequest {
        compare: vec![commit::is_absent(key.clone())],
        success: vec![commit::put(key.clone(), record.into())],
        failure: Vec::new(),
    };
    let request = RangeRequest { key: key.into(), ..RangeRequest::default() };
    let mut tries = TRIES;
    // A store that is there is opened also where etcd has no room to write.
    let kv = loop {
        let found = client.range(request.clone(), READ_PATIENCE).await.map_err(failed)?;
        if let Some(kv) = found.kvs.into_iter().next() {
            break kv;
        }
        if tries == 0 {
            return Err(OpenError::Etcd("the store's record cannot be written".into()));
        }
        tries -= 1;
        // Another server may found it at the same time: the record then stands, whoever wrote it.
        match client.write(founding.clone(), READ_PATIENCE).await {
            Ok(_) | Err(Fault::Unknown(_)) => {}
            Err(fault) => return Err(failed(fault)),
        }
    };
    let damaged = || OpenError::Etcd("the store's record is damaged".into());
    let record: Value = serde_json::from_slice(&kv.value).map_err(|_| damaged())?;
    if record[RESTORING] == true {
        let why = "a snapshot is being restored there, or that was broken off: then delete all keys under the prefix";
        return Err(OpenError::Etcd(why.into()));
    }
    match record["format"].as_u64() {
        Some(FORMAT) => {}
        Some(newer) => return Err(OpenError::NewerFormat { found: u32::try_from(newer).unwrap_or(u32::MAX) }),
        None => return Err(damaged()),
    }
    let base = record["base"].as_str().and_then(|base| base.parse().ok()).ok_or_else(damaged)?;
    Ok((kv.mod_revision, base))
}

impl Inner {
    /// Goes to the present: the hub begins there.
    async fn begin(&self) -> Result<(), StoreError> {
        let (now, compacted) = (self.fresh().await?, self.compacted().await?);
        let numbering = self.layout.numbering;
        let floor = numbering.boundary(compacted.max(self.founded));
        self.hub.jump(Marks { last: numbering.boundary(now), floor });
        self.reached.send_replace(now);
        Ok(())
    }
}
