//! What all parts of an embedded store share: the engine, the resources' numbers, the watch hub, and the one step that makes
//! a batch durable and then visible.

use std::sync::Arc;

use portolan_types::LogicalClusterId;

use crate::{
    BackendError, Committed, Durable, RangeScope, StoreError,
    blocking::Readers,
    damage::{Damaged, Ledger},
    faults::Faults,
    gate::{Gate, Purpose, Shut},
    holds::Holds,
    hub::Hub,
    kv::{KvResult, OrderedKv, View, failed, read},
    load::load,
    metrics::Metrics,
    plan::{Plan, Planned},
    read::{Marks, backend, dangles, get},
    resources::Resources,
    room::Room,
    value::Damage,
};

/// The shared part of an embedded store.
pub(crate) struct Core {
    pub(crate) kv: Arc<dyn OrderedKv>,
    pub(crate) resources: Resources,
    pub(crate) hub: Hub,
    pub(crate) metrics: Metrics,
    pub(crate) gate: Gate,
    pub(crate) holds: Holds,
    pub(crate) room: Room,
    pub(crate) readers: Readers,
    pub(crate) damage: Ledger,
    pub(crate) faults: Faults,
}

/// The answer to one transaction.
pub(crate) type Answer = Result<Durable<Committed>, StoreError>;

impl Core {
    /// Of a store without a committer, for tests: on an engine that is made a store if it is none, with rings of no room.
    #[cfg(test)]
    pub(crate) fn on(kv: impl OrderedKv + 'static) -> Self {
        if read(&kv, load).unwrap().is_err() {
            crate::open::initialize(&kv, &portolan_types::Seams::system()).unwrap();
        }
        let (found, metrics) = (read(&kv, load).unwrap().unwrap(), Metrics::new(None).unwrap());
        let budget = crate::hub::RingBudget { each: 0, all: 0 };
        Self {
            hub: Hub::new(found.marks, budget, &metrics),
            resources: found.resources,
            readers: Readers::new(metrics.waiting_reads.clone()),
            damage: Ledger::new(metrics.damaged.clone()),
            faults: Faults::new(metrics.faults.clone()),
            metrics,
            gate: Gate::open(),
            holds: Holds::default(),
            room: Room::unlimited(),
            kv: Arc::new(kv),
        }
    }

    /// Reads one state. Views of one thread must not be nested.
    pub(crate) fn view<T>(&self, reader: impl FnOnce(&dyn View) -> T) -> KvResult<T> {
        read(&*self.kv, reader)
    }

    /// Notes what kept a read from its end: damage that is met is told, whoever meets it. Not once the store is closed.
    pub(crate) fn note_failed<T>(&self, read: &Result<T, StoreError>) {
        if read.is_err() && !self.hub.is_closed() {
            self.faults.note_failed(read);
        }
    }

    /// Notes an object that a read of `scope` found damaged, unless only an older state of it is. Not within a view.
    pub(crate) fn note(&self, found: &Damaged, scope: Option<&RangeScope>) {
        if !self.damage.is_news(found) || !self.is_damaged(found, scope) {
            return;
        }
        self.damage.add(found);
        // It may have been deleted in between.
        if !self.is_damaged(found, scope) {
            self.damage.remove(&found.key);
        }
    }

    fn is_damaged(&self, found: &Damaged, scope: Option<&RangeScope>) -> bool {
        let now = self.view(|view| match (found.why, scope) {
            (Damage::Key, _) => Ok(true),
            (Damage::Missing, Some(scope)) => dangles(view, &self.resources, &found.key, scope),
            _ => Ok(matches!(get(view, &self.resources, &found.key), Err(StoreError::Damaged { .. }))),
        });
        matches!(now, Ok(Ok(true)))
    }

    /// # Errors
    /// When no write of such a purpose is taken.
    pub(crate) fn check_open(&self, purpose: Purpose) -> Result<(), StoreError> {
        self.gate.check(purpose).map_err(|shut| match shut {
            Shut::Full => StoreError::Full(self.room.shortage(purpose)),
            Shut::Stopped(why) => StoreError::Backend(why),
        })
    }

    /// Looks whether there is room for a batch.
    ///
    /// # Errors
    /// As for [`Core::check_open`]; `Full` when there is no room, which is remembered until there is.
    pub(crate) fn admit(&self, purpose: Purpose) -> Result<Admitted<'_>, StoreError> {
        self.check_open(purpose)?;
        match (self.room.check(purpose), purpose) {
            (Ok(room), _) => return Ok(Admitted { core: self, room }),
            (Err(full), Purpose::Any | Purpose::Leave) => self.gate.narrow_for(&full),
            (Err(full), Purpose::MakeRoom) => self.gate.close_for(full),
        }
        Err(StoreError::Full(self.room.shortage(purpose)))
    }

    /// Takes no write any more, or none until there is room.
    pub(crate) fn stop(&self, why: BackendError) {
        self.gate.close_for(why);
    }

    /// Whether there is room for all again, and only what makes room is let in.
    pub(crate) fn has_room_again(&self) -> bool {
        self.gate.is_short_of_room() && !self.gate.is_full() && self.room.check(Purpose::Any).is_ok()
    }

    /// Takes writes again when there is room again, or those that make room, and returns the logical clusters whose deletion
    /// goes on; `None` when it is not so far, or never will be. What was committed without anybody having been told becomes
    /// visible now.
    pub(crate) fn recover(&self) -> Option<Vec<LogicalClusterId>> {
        let purposes = if self.gate.is_full() { &[Purpose::Any, Purpose::MakeRoom][..] } else { &[Purpose::Any] };
        let purpose = *purposes.iter().find(|purpose| self.room.check(**purpose).is_ok())?;
        // Whoever sees a key knows its resource.
        let recovered = self.kv.recover(&mut |view| {
            let found = load(view)?;
            self.resources.replace(found.resources, found.marks);
            Ok(())
        });
        let found = recovered.and_then(|()| self.view(load).and_then(|found| found.map_err(Into::into)));
        match found {
            Ok(found) => {
                self.resources.replace(found.resources, found.marks);
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

    /// A batch is planned on the state that the last one left: what says otherwise is damage, and would have revisions given twice.
    fn check_marks(&self, found: Marks) -> Result<(), StoreError> {
        let known = self.hub.marks();
        match found == known {
            true => Ok(()),
            false => Err(backend(failed(format!("the store is damaged: it stands at {known:?} and says {found:?}")))),
        }
    }

    fn sync(&self, planned: Planned) -> KvResult<()> {
        if planned.batch.is_empty() {
            return Ok(());
        }
        portolan_types::failpoint!("store/commit-planned");
        self.resources.spread().add(&planned.batch, planned.marks.last);
        self.room.use_for(&planned.batch);
        self.metrics.time_sync(planned.events.len(), || self.kv.commit(planned.batch))?;
        portolan_types::failpoint!("store/commit-durable");
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

/// There is room for a batch. Without that nothing is planned.
pub(crate) struct Admitted<'a> {
    core: &'a Core,
    room: u64,
}

impl Admitted<'_> {
    /// How much the transactions of the batch may write, as [`Plan::written`] counts it. See [`Room::check`].
    pub(crate) fn room(&self) -> u64 {
        self.room
    }

    /// Plans a batch, makes it durable, then makes it visible, and only then hands out the answers. Called by one thread at
    /// a time. Beside etcd's answers this is the only place where a [`Durable`] is made.
    ///
    /// After a failed sync the outcome of all that was planned is unknown, and no further write is taken.
    pub(crate) fn commit<T>(
        self,
        plan: impl FnOnce(&mut Plan<'_>) -> (Vec<Result<Committed, StoreError>>, T),
    ) -> Result<(Vec<Answer>, T), StoreError> {
        let Self { core, .. } = self;
        let (planned, answers, more) = core
            .view(|view| {
                let mut batch = Plan::new(view, &core.resources)?;
                core.check_marks(batch.before)?;
                batch.is_tight = core.room.is_tight();
                let (answers, more) = plan(&mut batch);
                Ok::<_, StoreError>((batch.finish(), answers, more))
            })
            .map_err(backend)??;
        match core.sync(planned) {
            Ok(()) => Ok((answers.into_iter().map(|answer| answer.map(Durable::after_sync)).collect(), more)),
            Err(error) => {
                match error.is_full() {
                    true => tracing::error!(error = %error, "a batch may not be durable"),
                    false => {
                        tracing::error!(error = %error, "a batch may not be durable, the store takes no write any more")
                    }
                }
                core.stop(error);
                // What was refused may have been refused for what this batch has written, which nobody can see.
                Ok((answers.into_iter().map(|_| Err(StoreError::Unknown)).collect(), more))
            }
        }
    }
}

/// The answer of a store that was closed.
pub(crate) fn closed() -> StoreError {
    backend(failed("the store is closed"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use portolan_types::{GroupResource, ObjectKey, Record};
    use serde_json::json;

    use super::*;
    use crate::{
        Expect, Transaction,
        fixtures::Shared,
        keys::meta,
        kv::{Batch, MemoryKv},
        plan::PreparedTransaction,
    };

    #[test]
    fn nothing_is_written_by_numbers_that_were_turned_back() {
        let kv = Shared(Arc::new(MemoryKv::default()));
        let core = Core::on(kv.clone());
        let write = || {
            let resource = GroupResource::new("example.org", "boats");
            let key = ObjectKey::cluster_scoped(LogicalClusterId::ROOT, resource, "a".parse().unwrap());
            let txn = Transaction::one(key, Expect::Anything, Some(Record::of(&json!({"metadata": {}}))));
            let txn = PreparedTransaction::new(txn).unwrap();
            let done = core.admit(Purpose::Any)?.commit(|plan| (vec![plan.transaction(txn)], ()))?;
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
