//! Shared parts of an embedded store: the engine, the numbers of resources, the watch hub, and the step that makes a
//! batch durable and then visible.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use portolan_types::LogicalClusterId;

use crate::{
    api::{
        BackendError, Committed, Durable, RangeScope, StoreError,
        damage::{Damage, DamagedObject},
        hold::RevisionHolds,
    },
    engine::{KvResult, KvView, OrderedKv, failed, read},
    integrity::{damage::DamageLedger, faults::FaultLog},
    metrics::StoreMetrics,
    read::{
        bookkeeping::load,
        resources::ResourceRegistry,
        state::{StoreMarks, backend, get, is_dangling},
    },
    reader_pool::{PooledReader, ReaderPool},
    watch::Hub,
    write::{
        disk_space::DiskSpace,
        gate::{GateRefusal, WriteGate, WritePurpose},
        plan::{BatchPlan, PlannedBatch},
    },
};

/// Shared parts of an embedded store.
pub(crate) struct StoreCore {
    pub(crate) kv: Arc<dyn OrderedKv>,
    pub(crate) resources: ResourceRegistry,
    pub(crate) hub: Hub,
    pub(crate) metrics: StoreMetrics,
    pub(crate) gate: WriteGate,
    pub(crate) holds: RevisionHolds,
    pub(crate) room: DiskSpace,
    pub(crate) readers: ReaderPool,
    pub(crate) damage: DamageLedger,
    pub(crate) faults: FaultLog,
    /// Bytes of all superseded objects that history keeps.
    pub(crate) superseded: AtomicU64,
}

/// Result of one transaction.
pub(crate) type CommitResult = Result<Durable<Committed>, StoreError>;

impl StoreCore {
    /// Builds the core of a store without a committer, for tests. Initializes the engine if it has no store; rings have
    /// no capacity.
    #[cfg(test)]
    pub(crate) fn on(kv: impl OrderedKv + 'static) -> Self {
        if read(&kv, load).unwrap().is_err() {
            crate::read::bookkeeping::initialize(&kv, &portolan_types::Seams::system()).unwrap();
        }
        let (found, metrics) = (read(&kv, load).unwrap().unwrap(), StoreMetrics::new(None).unwrap());
        let budget = crate::watch::RingBudget { each: 0, all: 0 };
        Self {
            hub: Hub::new(found.marks, budget, &metrics),
            resources: found.resources,
            readers: ReaderPool::new(metrics.waiting_reads.clone()),
            damage: DamageLedger::new(metrics.damaged.clone()),
            faults: FaultLog::new(metrics.faults.clone()),
            superseded: AtomicU64::new(found.superseded),
            metrics,
            gate: WriteGate::open(),
            holds: RevisionHolds::default(),
            room: DiskSpace::unlimited(),
            kv: Arc::new(kv),
        }
    }

    /// Reads one state. Views of one thread must not be nested.
    pub(crate) fn view<T>(&self, reader: impl FnOnce(&dyn KvView) -> T) -> KvResult<T> {
        read(&*self.kv, reader)
    }

    /// Notes the engine failure that ended a read, unless the store is closed.
    pub(crate) fn note_failed<T>(&self, read: &Result<T, StoreError>) {
        if read.is_err() && !self.hub.is_closed() {
            self.faults.note_failed(read);
        }
    }

    /// Notes an object that a read of `scope` found damaged, unless only an older state is damaged. Must not be called
    /// within a view.
    pub(crate) fn note(&self, found: &DamagedObject, scope: Option<&RangeScope>) {
        if !self.damage.is_new(found) || !self.is_damaged(found, scope) {
            return;
        }
        self.damage.add(found);
        // The object may have been deleted in between.
        if !self.is_damaged(found, scope) {
            self.damage.remove(&found.key);
        }
    }

    fn is_damaged(&self, found: &DamagedObject, scope: Option<&RangeScope>) -> bool {
        let now = self.view(|view| match (found.why, scope) {
            (Damage::Key, _) => Ok(true),
            (Damage::Missing, Some(scope)) => is_dangling(view, &self.resources, &found.key, scope),
            _ => Ok(matches!(get(view, &self.resources, &found.key), Err(StoreError::Damaged { .. }))),
        });
        matches!(now, Ok(Ok(true)))
    }

    /// # Errors
    /// Fails if no write of this purpose is admitted.
    pub(crate) fn check_open(&self, purpose: WritePurpose) -> Result<(), StoreError> {
        self.gate.check(purpose).map_err(|shut| match shut {
            GateRefusal::Full => StoreError::Full(self.room.shortage(purpose)),
            GateRefusal::Stopped(why) => StoreError::Backend(why),
        })
    }

    /// Checks that there is disk space for a batch.
    ///
    /// # Errors
    /// Returns the errors of [`StoreCore::check_open`]; `Full` if there is no space, which is remembered until there
    /// is.
    pub(crate) fn admit(&self, purpose: WritePurpose) -> Result<AdmittedBatch<'_>, StoreError> {
        self.check_open(purpose)?;
        match (self.room.batch_budget(purpose), purpose) {
            (Ok(room), _) => return Ok(AdmittedBatch { core: self, room }),
            (Err(full), WritePurpose::Any | WritePurpose::Leave) => self.gate.narrow_for(&full),
            (Err(full), WritePurpose::MakeRoom) => self.gate.close_for(full),
        }
        Err(StoreError::Full(self.room.shortage(purpose)))
    }

    /// Stops taking writes: permanently, or until there is disk space.
    pub(crate) fn stop(&self, why: BackendError) {
        self.gate.close_for(why);
    }

    /// Notes how many bytes of superseded objects history keeps.
    pub(crate) fn note_superseded(&self, bytes: u64) {
        self.superseded.store(bytes, Ordering::Relaxed);
        self.metrics.history.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// Returns true if writes lack space, and there is history whose compaction can free some.
    pub(crate) fn must_compact(&self) -> bool {
        let marks = self.hub.marks();
        let has_history = marks.floor < marks.last && self.check_open(WritePurpose::MakeRoom).is_ok();
        has_history && self.room.batch_budget(WritePurpose::Any).is_err()
    }

    /// Returns true if only writes that free space are admitted, and there is space for all again.
    pub(crate) fn has_room_again(&self) -> bool {
        self.gate.is_short_of_room() && !self.gate.is_full() && self.room.batch_budget(WritePurpose::Any).is_ok()
    }

    /// Accepts writes again, if there is space for all writes or for those that free space. Returns the logical
    /// clusters whose deletion continues; `None` if there is no space yet, or never will be. Commits that were not
    /// acknowledged become visible now.
    pub(crate) fn recover(&self) -> Option<Vec<LogicalClusterId>> {
        let purposes =
            if self.gate.is_full() { &[WritePurpose::Any, WritePurpose::MakeRoom][..] } else { &[WritePurpose::Any] };
        let purpose = *purposes.iter().find(|purpose| self.room.batch_budget(**purpose).is_ok())?;
        // A reader that sees a key must know its resource.
        let recovered = self.kv.recover(&mut |view| {
            let found = load(view)?;
            self.resources.replace(found.resources, found.marks);
            Ok(())
        });
        let found = recovered.and_then(|()| self.view(load).and_then(|found| found.map_err(Into::into)));
        match found {
            Ok(found) => {
                self.resources.replace(found.resources, found.marks);
                self.note_superseded(found.superseded);
                self.hub.jump(found.marks);
                self.gate.reopen(purpose);
                Some(found.sweeps)
            }
            Err(error) => {
                self.stop(error);
                None
            }
        }
    }

    /// Checks that the bookkeeping equals that of the last batch. A difference is damage, and would assign revisions
    /// twice.
    fn check_marks(&self, found: StoreMarks) -> Result<(), StoreError> {
        let known = self.hub.marks();
        if found == known {
            Ok(())
        } else {
            Err(backend(failed(format!("the store is damaged: it stands at {known:?} and says {found:?}"))))
        }
    }

    fn sync(&self, planned: PlannedBatch) -> KvResult<()> {
        if planned.batch.is_empty() {
            return Ok(());
        }
        portolan_types::failpoint!("store/commit-planned");
        self.resources.cluster_index().add(&planned.batch, planned.marks.last);
        self.room.charge_batch(&planned.batch);
        self.metrics.time_sync(planned.events.len(), || self.kv.commit(planned.batch))?;
        portolan_types::failpoint!("store/commit-durable");
        self.note_superseded(planned.superseded);
        if self.kv.uses_files_again() {
            self.room.add_reusable(planned.freed);
        }
        for (resource, id) in planned.new_resources {
            self.resources.add(id, resource);
        }
        if !planned.retired.is_empty() {
            self.resources.retire(planned.retired, planned.marks);
        }
        let written = || planned.events.iter().map(|published| published.event.key.clone()).collect();
        let written: Vec<_> = if self.damage.is_empty() { Vec::new() } else { written() };
        self.hub.publish(planned.events, planned.marks, || self.kv.publish());
        written.iter().for_each(|key| self.damage.remove(key));
        portolan_types::failpoint!("store/commit-published");
        Ok(())
    }
}

impl PooledReader for StoreCore {
    fn pool(&self) -> &ReaderPool {
        &self.readers
    }

    fn is_in_memory(&self) -> bool {
        self.kv.is_in_memory()
    }
}

/// Permission to commit a batch, for which there is disk space. Nothing is planned without it.
pub(crate) struct AdmittedBatch<'a> {
    core: &'a StoreCore,
    room: u64,
}

impl AdmittedBatch<'_> {
    /// Returns the bytes that the transactions of the batch may write, as [`BatchPlan::written`] counts them. See
    /// [`DiskSpace::check`].
    pub(crate) fn room(&self) -> u64 {
        self.room
    }

    /// Plans a batch, makes it durable, then visible, and only then returns the answers. Called by one thread at a
    /// time. Apart from etcd's answers, this is the only place that builds a [`Durable`].
    ///
    /// After a failed sync the outcome of everything planned is unknown, and no further write is taken.
    pub(crate) fn commit<T>(
        self,
        plan: impl FnOnce(&mut BatchPlan<'_>) -> (Vec<Result<Committed, StoreError>>, T),
    ) -> Result<(Vec<CommitResult>, T), StoreError> {
        let Self { core, .. } = self;
        let (planned, answers, more) = core
            .view(|view| {
                let mut batch = BatchPlan::new(view, &core.resources)?;
                core.check_marks(batch.before)?;
                batch.is_nearly_full = core.room.is_nearly_full();
                let (answers, more) = plan(&mut batch);
                Ok::<_, StoreError>((batch.finish(), answers, more))
            })
            .map_err(backend)??;
        match core.sync(planned) {
            Ok(()) => Ok((answers.into_iter().map(|answer| answer.map(Durable::after_sync)).collect(), more)),
            Err(error) => {
                if error.is_full() {
                    tracing::error!(error = %error, "a batch may not be durable")
                } else {
                    tracing::error!(error = %error, "a batch may not be durable: the store stops taking writes")
                }
                core.stop(error);
                // A refusal may depend on writes of this batch, which no reader sees yet.
                Ok((answers.into_iter().map(|_| Err(StoreError::Unknown)).collect(), more))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use portolan_types::{GroupResource, ObjectKey, Record};
    use serde_json::json;

    use super::*;
    use crate::{
        api::{Expect, Transaction},
        engine::{Batch, MemoryKv},
        fixtures::SharedKv,
        layout::keys::meta,
        write::transaction::PreparedTransaction,
    };

    #[test]
    fn nothing_is_written_by_numbers_that_were_turned_back() {
        let kv = SharedKv(Arc::new(MemoryKv::default()));
        let core = StoreCore::on(kv.clone());
        let write = || {
            let resource = GroupResource::new("example.org", "boats");
            let key = ObjectKey::cluster_scoped(LogicalClusterId::ROOT, resource, "a".parse().unwrap());
            let txn = Transaction::one(key, Expect::Anything, Some(Record::of(&json!({"metadata": {}}))));
            let txn = PreparedTransaction::new(txn).unwrap();
            let done = core.admit(WritePurpose::Any)?.commit(|plan| (vec![plan.transaction(txn)], ()))?;
            done.0.into_iter().next().unwrap().map(|committed| committed.into_inner().last.get())
        };
        assert_eq!((write().unwrap(), write().unwrap()), (2, 3));
        for (mark, value) in [(meta::LAST, 2_u64), (meta::LAST, 9), (meta::FLOOR, 3)] {
            let before = read(&kv, |view| view.get(mark).unwrap()).unwrap();
            let put = |value: Option<Bytes>| {
                kv.commit(Batch::from([(mark.to_vec(), value)])).unwrap();
                kv.publish();
            };
            put(Some(Bytes::copy_from_slice(&value.to_le_bytes())));
            let refused = write();
            assert!(
                matches!(&refused, Err(StoreError::Backend(why)) if why.context.contains("damaged")),
                "{refused:?}"
            );
            put(before);
        }
        assert_eq!(write().unwrap(), 4);
    }
}
