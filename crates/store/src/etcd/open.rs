//! Opening of a store in etcd, or its creation.

use std::sync::Arc;

use parking_lot::RwLock;
use portolan_types::Seams;
use serde_json::{Value, json};
use tokio::{
    runtime::Handle,
    sync::{Notify, watch},
};
use tokio_util::sync::CancellationToken;

use super::{
    EtcdCore, EtcdHealth, EtcdStore, READ_TIMEOUT,
    accounts::{self, MissedEvents, UsageCounter},
    client::{EtcdClient, EtcdFault},
    clusters, commit,
    config::EtcdConfig,
    discarded::DiscardLog,
    feed,
    layout::{EtcdLayout, REVISIONS_PER_TRANSACTION, RevisionMapping},
    leader_election::{ElectionCandidate, LeaderElection},
    proto::{RangeRequest, TxnRequest},
    read_limiter::ReadLimiter,
    write_limiter::WriteLimiter,
};
use crate::{
    api::{DynStore, StoreError, hold::RevisionHolds},
    integrity::damage::DamageLedger,
    layout::MAX_REVISION,
    metrics::StoreMetrics,
    open::{OpenError, StoreConfig},
    read::state::StoreMarks,
    watch::{Hub, RingBudget},
};

/// Version of the layout in etcd.
pub(super) const FORMAT: u64 = 1;
/// Attempts to create a store while etcd times out.
const MAX_ATTEMPTS: usize = 5;
/// Field of the record while a snapshot is being restored.
pub(super) const RESTORING: &str = "restoring";

/// Opens the store under the configured prefix, or creates it. Only the memory limits, the write timeout and the
/// registry of `config` apply. Also returns the leader election among the servers.
///
/// # Errors
/// `Etcd` if etcd cannot be used; `NewerFormat`; `Metrics`.
pub async fn open_etcd(
    etcd: &EtcdConfig,
    config: &StoreConfig,
    seams: &Seams,
) -> Result<(DynStore, Arc<LeaderElection>), OpenError> {
    let client = EtcdClient::new(etcd).map_err(OpenError::Etcd)?;
    let layout = EtcdLayout { prefix: etcd.prefix.clone().into_bytes(), numbering: RevisionMapping { base: 0 } };
    let (founded, base) = find_or_create(&client, &layout, seams).await?;
    let layout = EtcdLayout { numbering: RevisionMapping { base }, ..layout };
    let metrics = StoreMetrics::new(config.registry.as_ref())?;
    let budget = RingBudget { each: config.ring_bytes, all: config.all_rings_bytes };
    let first = layout.numbering.boundary(founded);
    let hub = Hub::new(StoreMarks { last: first, floor: first }, budget, &metrics);
    let inner = Arc::new(EtcdCore {
        client,
        layout,
        founded,
        hub,
        holds: RevisionHolds::default(),
        damage: DamageLedger::new(metrics.damaged.clone()),
        losses: DiscardLog::default(),
        metrics,
        reached: watch::Sender::new(founded),
        nudge: Notify::new(),
        freed: Notify::new(),
        queue: WriteLimiter::new(),
        readers: ReadLimiter::new(),
        accounts: UsageCounter::default(),
        leaps: MissedEvents::default(),
        standing: RwLock::new(EtcdHealth::Open),
        stopped: CancellationToken::new(),
        patience: config.commit_timeout,
    });
    inner.begin().await.map_err(|error| OpenError::Etcd(error.to_string()))?;
    let runtime = Handle::current();
    runtime.spawn(feed::run(inner.clone()));
    runtime.spawn(clusters::sweep_all(inner.clone()));
    runtime.spawn(accounts::run(Arc::downgrade(&inner)));
    let roles = Arc::new(LeaderElection::on(ElectionCandidate::new(inner.clone())));
    Ok((Arc::new(EtcdStore { inner, runtime }), roles))
}

/// Returns the revision of the store's record and its base.
async fn find_or_create(client: &EtcdClient, layout: &EtcdLayout, seams: &Seams) -> Result<(i64, u64), OpenError> {
    let failed = |fault: EtcdFault| OpenError::Etcd(fault.with_hint());
    let key = layout.meta();
    let record = json!({"format": FORMAT, "identity": seams.uid().to_string(), "base": "0"}).to_string();
    let founding = TxnRequest {
        compare: vec![commit::is_absent(key.clone())],
        success: vec![commit::put(key.clone(), record.into())],
        failure: Vec::new(),
    };
    let request = RangeRequest { key: key.into(), ..RangeRequest::default() };
    let mut tries = MAX_ATTEMPTS;
    // An existing store opens also if etcd's database is full.
    let kv = loop {
        let found = client.range(request.clone(), READ_TIMEOUT).await.map_err(failed)?;
        if let Some(kv) = found.kvs.into_iter().next() {
            break kv;
        }
        if tries == 0 {
            return Err(OpenError::Etcd("the store's record cannot be written".into()));
        }
        tries -= 1;
        // Another server may create it at the same time: its record is as good.
        match client.write(founding.clone(), READ_TIMEOUT).await {
            Ok(_) | Err(EtcdFault::Unknown(_)) => {}
            Err(fault) => return Err(failed(fault)),
        }
    };
    Ok((kv.mod_revision, parse_base(&kv.value)?))
}

/// Parses the base in the record of a store.
///
/// # Errors
/// Fails if this version cannot use the record.
pub(super) fn parse_base(record: &[u8]) -> Result<u64, OpenError> {
    let damaged = || OpenError::Etcd("the store's record is damaged".into());
    let record: Value = serde_json::from_slice(record).map_err(|_| damaged())?;
    if record[RESTORING] == true {
        let why = "a snapshot is being restored there, or that was broken off: then delete all keys under the prefix";
        return Err(OpenError::Etcd(why.into()));
    }
    match record["format"].as_u64() {
        Some(FORMAT) => {}
        Some(found) if found > FORMAT => return Err(OpenError::NewerFormat { found, known: FORMAT }),
        Some(_) | None => return Err(damaged()),
    }
    let base = record["base"].as_str().and_then(|base| base.parse().ok());
    base.filter(|base| *base <= MAX_REVISION / REVISIONS_PER_TRANSACTION).ok_or_else(damaged)
}

impl EtcdCore {
    /// Moves the hub to the latest revision.
    async fn begin(&self) -> Result<(), StoreError> {
        let (now, compacted) = (self.current_revision().await?, self.compacted().await?);
        let numbering = self.layout.numbering;
        let floor = numbering.boundary(compacted.max(self.founded));
        self.hub.jump(StoreMarks { last: numbering.boundary(now), floor });
        self.reached.send_replace(now);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open::Engine;

    #[test]
    fn only_the_record_of_a_whole_store_of_a_known_format_is_taken() {
        for (case, record, words) in [
            ("a newer format", r#"{"format":2,"identity":"a","base":"0"}"#, "the version that wrote it"),
            ("a far newer format without a base", r#"{"format":4294967296}"#, "format 4294967296"),
            ("the known format is reported", r#"{"format":2}"#, "knows formats up to 1;"),
            ("a format that never was", r#"{"format":0,"base":"0"}"#, "is damaged"),
            ("a format that is not a number", r#"{"format":"1","base":"0"}"#, "is damaged"),
            ("no base", r#"{"format":1}"#, "is damaged"),
            ("a base beyond all numbers", r#"{"format":1,"base":"72057594037927936"}"#, "is damaged"),
            ("no record", "", "is damaged"),
            ("half a restore", r#"{"restoring":true}"#, "delete all keys under the prefix"),
        ] {
            let refused = parse_base(record.as_bytes()).expect_err(case).to_string();
            assert!(refused.contains(words), "{case}: {refused}");
        }
        assert_eq!(parse_base(br#"{"format":1,"identity":"a","base":"7"}"#).unwrap(), 7);
    }

    #[tokio::test]
    #[ignore = "needs an etcd: cargo xtask e2e --suite etcd"]
    async fn a_store_of_a_newer_format_is_refused_and_left_as_it_is() {
        let urls = std::env::var("PORTOLAN_ETCD").expect("PORTOLAN_ETCD names a running etcd");
        let mut etcd = EtcdConfig::new(urls.split(',').map(str::to_owned).collect());
        etcd.prefix = format!("/newer/{}/", Seams::system().uid());
        let config = StoreConfig::new(Engine::Memory, None);
        let (store, _) = open_etcd(&etcd, &config, &Seams::system()).await.unwrap();
        store.close().await;
        let client = EtcdClient::new(&etcd).unwrap();
        let layout = EtcdLayout { prefix: etcd.prefix.clone().into_bytes(), numbering: RevisionMapping { base: 0 } };
        let newer = json!({"format": FORMAT + 1, "identity": "a", "something": "new"}).to_string();
        let put = vec![commit::put(layout.meta(), newer.into())];
        client.write(TxnRequest { success: put, ..TxnRequest::default() }, READ_TIMEOUT).await.unwrap();
        let (from, to) = super::super::layout::range_of(layout.prefix.clone());
        let all = RangeRequest { key: from.into(), range_end: to.into(), ..RangeRequest::default() };
        let before = client.range(all.clone(), READ_TIMEOUT).await.unwrap().kvs;
        let refused = open_etcd(&etcd, &config, &Seams::system()).await.err().expect("it is newer").to_string();
        assert!(refused.contains("format 2") && refused.contains("use the version that wrote it"), "{refused}");
        assert_eq!(client.range(all, READ_TIMEOUT).await.unwrap().kvs, before);
    }
}
