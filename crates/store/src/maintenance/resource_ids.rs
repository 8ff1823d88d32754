//! Reclaiming the ids of resources without any object. Done after a compaction, and only if many ids are assigned: it
//! takes a seek for each resource of each logical cluster.

use std::collections::HashSet;

use crate::{
    api::{StoreError, damage::Damage},
    layout::keys::{self, meta},
    maintenance::SliceProgress,
    read::{
        resources::{MAX_RESOURCES, ResourceRegistry},
        state::{backend, damaged},
    },
    write::plan::BatchPlan,
};

/// Number of ids from which unused ones are reclaimed.
const RECLAIM_THRESHOLD: usize = MAX_RESOURCES / 4 * 3;
/// Seeks of one slice.
const SLICE_SEEKS: usize = 512;

/// Search for ids that neither an object nor a superseded object has. History has no others: the entry of a deletion is
/// kept as long as the superseded object.
///
/// Objects are searched first: one that is deleted meanwhile is found later, as a superseded one.
pub(crate) struct ResourceIdReclaim {
    unused: HashSet<u32>,
    /// Letter of the searched keys: `o` for objects, then `v` for superseded ones.
    letter: u8,
    from: Vec<u8>,
}

impl ResourceIdReclaim {
    /// Begins a search, if many ids are assigned.
    pub(crate) fn if_many(resources: &ResourceRegistry) -> Option<Self> {
        (resources.len() >= RECLAIM_THRESHOLD).then(|| Self::begin(resources))
    }

    fn begin(resources: &ResourceRegistry) -> Self {
        Self { unused: resources.reclaimable(), letter: b'o', from: vec![b'o'] }
    }

    /// Removes the id of a key from the candidates.
    fn exclude(&mut self, key: &[u8]) {
        if let Some((_, resource)) = keys::beginning(key).filter(|_| is_of_object(key)) {
            self.unused.remove(&resource);
        }
    }
}

impl BatchPlan<'_> {
    /// Plans a slice of a search, and reclaims the remaining ids at its end. Must be called in every batch while the
    /// search lasts, after all writes of the batch: a write to a searched range counts too.
    pub(crate) fn reclaim(&mut self, search: &mut ResourceIdReclaim) -> Result<SliceProgress, StoreError> {
        self.batch.keys().for_each(|key| search.exclude(key));
        for _ in 0..SLICE_SEEKS {
            let cursor = self.view.scan(&search.from, &keys::end_of(&[search.letter])).map_err(backend)?;
            match (cursor.key(), search.letter) {
                (Some(key), letter) => {
                    let (cluster, resource) = keys::beginning(key).ok_or(Damage::Key).map_err(damaged)?;
                    search.unused.remove(&resource);
                    search.from =
                        keys::end_of(&keys::joined(letter, &[&keys::resource_prefix(cluster, resource, None)]));
                }
                (None, b'o') => (search.letter, search.from) = (b'v', vec![b'v']),
                (None, _) => {
                    drop(cursor);
                    search.unused.iter().for_each(|id| self.remove(meta::resource(*id)));
                    self.retired.extend(search.unused.drain());
                    return Ok(SliceProgress::Done);
                }
            }
        }
        Ok(SliceProgress::More)
    }
}

fn is_of_object(key: &[u8]) -> bool {
    matches!(key.first(), Some(b'o' | b'v'))
}

#[cfg(test)]
mod tests {
    use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record};
    use serde_json::json;

    use super::{ResourceIdReclaim, SLICE_SEEKS};
    use crate::{
        api::{Expect, RangeRequest, RangeScope, Transaction, open_progress::OpenProgress},
        engine::{KvView, MemoryKv, RedbKv},
        maintenance::SliceProgress,
        read::{
            bookkeeping::load,
            range::{ReadBudget, range},
            state::get,
        },
        write::{core::StoreCore, gate::WritePurpose, transaction::PreparedTransaction},
    };

    fn core() -> StoreCore {
        StoreCore::on(MemoryKv::default())
    }

    fn write(core: &StoreCore, cluster: u64, resource: &str, is_there: bool) {
        let key = ObjectKey::cluster_scoped(
            LogicalClusterId::new(cluster),
            GroupResource::new("example.org", resource),
            "a".parse().unwrap(),
        );
        let record = is_there.then(|| Record::of(&json!({"metadata": {}})));
        let txn = PreparedTransaction::new(Transaction::one(key, Expect::Anything, record)).unwrap();
        let (answers, ()) =
            core.admit(WritePurpose::MakeRoom).unwrap().commit(|plan| (vec![plan.transaction(txn)], ())).unwrap();
        assert!(answers.iter().all(Result::is_ok));
    }

    /// Searches to the end, and calls `between` after each slice that leaves something to do.
    fn reclaim_with(core: &StoreCore, mut between: impl FnMut(&mut ResourceIdReclaim)) {
        let mut search = ResourceIdReclaim::begin(&core.resources);
        let slice = |search: &mut ResourceIdReclaim| {
            core.admit(WritePurpose::MakeRoom)?.commit(|plan| (Vec::new(), plan.reclaim(search)))?.1
        };
        while slice(&mut search).unwrap() == SliceProgress::More {
            between(&mut search);
        }
    }

    fn reclaim(core: &StoreCore) {
        reclaim_with(core, |_| panic!("there is little to search"));
    }

    fn number(core: &StoreCore, resource: &str) -> Option<u32> {
        core.resources.id(&GroupResource::new("example.org", resource))
    }

    #[test]
    fn only_numbers_of_which_nothing_is_left_are_taken_back() {
        let core = core();
        for (cluster, resource) in [(1, "kept"), (1, "gone"), (2, "elsewhere"), (1, "last")] {
            write(&core, cluster, resource, true);
        }
        let before = ["kept", "gone", "elsewhere", "last"].map(|resource| number(&core, resource));
        write(&core, 1, "gone", false);
        reclaim(&core);
        assert!(number(&core, "gone").is_some(), "its history is there");
        let upto = core.hub.marks().last;
        core.admit(WritePurpose::MakeRoom).unwrap().commit(|plan| (Vec::new(), plan.compact(upto))).unwrap().1.unwrap();
        reclaim(&core);
        let after = ["kept", "gone", "elsewhere", "last"].map(|resource| number(&core, resource));
        assert_eq!(after, [before[0], None, before[2], before[3]]);
        assert_eq!(core.resources.name(before[1].unwrap()), Some(GroupResource::new("example.org", "gone")));
        let on_disk = core.view(load).unwrap().ok().unwrap().resources;
        assert_eq!((on_disk.len(), on_disk.next()), (3, core.resources.next()));

        write(&core, 1, "last", false);
        let upto = core.hub.marks().last;
        core.admit(WritePurpose::MakeRoom).unwrap().commit(|plan| (Vec::new(), plan.compact(upto))).unwrap().1.unwrap();
        reclaim(&core);
        assert_eq!(number(&core, "last"), before[3], "the highest number stays, so that none is given twice");
        write(&core, 1, "gone", true);
        assert!(number(&core, "gone") > before[3], "what comes again has a new number");
    }

    fn compact(core: &StoreCore) {
        let upto = core.hub.marks().last;
        core.admit(WritePurpose::MakeRoom).unwrap().commit(|plan| (Vec::new(), plan.compact(upto))).unwrap().1.unwrap();
    }

    #[test]
    fn a_state_of_the_same_revision_that_has_more_history_keeps_its_numbers() {
        let disk = ::redb::backends::InMemoryBackend::new();
        let core = StoreCore::on(RedbKv::on(disk, 1 << 20, &OpenProgress::default()).unwrap());
        for (resource, is_there) in [("gone", true), ("last", true), ("gone", false)] {
            write(&core, 1, resource, is_there);
        }
        let (gone, before) = (GroupResource::new("example.org", "gone"), number(&core, "gone"));
        let seen = core.view(|view| {
            // A thread may have one view only.
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    compact(&core);
                    reclaim(&core);
                });
            });
            core.resources.id_in(view, &gone).unwrap()
        });
        assert_eq!((number(&core, "gone"), seen.unwrap()), (None, before), "its history is there in that state");
    }

    #[test]
    fn readers_of_an_older_state_still_resolve_reclaimed_ids() {
        for comes_again in [false, true] {
            let disk = ::redb::backends::InMemoryBackend::new();
            let core = StoreCore::on(RedbKv::on(disk, 1 << 20, &OpenProgress::default()).unwrap());
            (1..=3).for_each(|cluster| write(&core, cluster, "gone", true));
            write(&core, 1, "last", true);
            let gone = GroupResource::new("example.org", "gone");
            let all = RangeRequest::all(RangeScope::AllClusters(gone.clone()));
            let key = ObjectKey::cluster_scoped(LogicalClusterId::new(2), gone.clone(), "a".parse().unwrap());
            let found = |view: &dyn KvView| {
                let page = range(view, &core.resources, &all, ReadBudget::UNLIMITED).unwrap().unwrap();
                let one = get(view, &core.resources, &key).unwrap();
                (page.objects.len(), one.is_some())
            };
            assert_eq!(core.view(found).unwrap(), (3, true), "and where objects are is known from now on");
            let older = core.view(|view| {
                // A thread may have one view only.
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        (1..=3).for_each(|cluster| write(&core, cluster, "gone", false));
                        compact(&core);
                        reclaim(&core);
                        assert_eq!(number(&core, "gone"), None);
                        if comes_again {
                            write(&core, 9, "gone", true);
                        }
                    });
                });
                found(view)
            });
            assert_eq!(older.unwrap(), (3, true), "{comes_again}");
            assert_eq!(core.view(found).unwrap(), (usize::from(comes_again), false), "{comes_again}");
        }
    }

    #[test]
    fn a_write_during_the_search_keeps_its_id() {
        let core = core();
        let clusters = 3 * SLICE_SEEKS as u64;
        for resource in ["gone", "again"] {
            write(&core, 1, resource, true);
            write(&core, 1, resource, false);
        }
        (1..=clusters).for_each(|cluster| write(&core, cluster, "kept", true));
        write(&core, 1, "last", true);
        let upto = core.hub.marks().last;
        core.admit(WritePurpose::MakeRoom).unwrap().commit(|plan| (Vec::new(), plan.compact(upto))).unwrap().1.unwrap();
        let (gone, again) = (number(&core, "gone"), number(&core, "again"));
        let mut slices = 0;
        reclaim_with(&core, |search| {
            slices += 1;
            if slices == 1 {
                // The first logical cluster has been searched already.
                let key = ObjectKey::cluster_scoped(
                    LogicalClusterId::new(1),
                    GroupResource::new("example.org", "again"),
                    "a".parse().unwrap(),
                );
                let txn = Transaction::one(key, Expect::Absent, Some(Record::of(&json!({"metadata": {}}))));
                let txn = PreparedTransaction::new(txn).unwrap();
                let written = core.admit(WritePurpose::Any).unwrap().commit(|plan| {
                    let written = plan.transaction(txn);
                    (vec![written], plan.reclaim(search))
                });
                assert!(written.unwrap().0[0].is_ok());
            }
        });
        assert!(slices > 1, "{slices}");
        assert_eq!((number(&core, "gone"), number(&core, "again")), (None, again), "{gone:?}");
    }
}
