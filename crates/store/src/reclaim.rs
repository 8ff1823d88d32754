//! Taking back the numbers of resources of which nothing is left. Done after a compaction, and only when many numbers are
//! given: it seeks once for each resource of each logical cluster.

use std::collections::HashSet;

use crate::{
    StoreError,
    keys::{self, meta},
    kv::View,
    plan::Plan,
    read::{backend, damaged},
    resources::MAX_RESOURCES,
    value::Damage,
};

/// With fewer numbers than this nothing is taken back.
const MANY: usize = MAX_RESOURCES / 4 * 3;

impl Plan<'_> {
    /// Takes numbers back when many are given.
    pub(crate) fn reclaim_if_many(&mut self) -> Result<(), StoreError> {
        match self.resources.len() >= MANY {
            true => self.reclaim(),
            false => Ok(()),
        }
    }

    /// Takes back the numbers that neither an object nor a superseded one has. History names no others: the entry of an
    /// object's deletion stays as long as the object that it superseded.
    fn reclaim(&mut self) -> Result<(), StoreError> {
        let mut unused = self.resources.reclaimable();
        // What this batch writes is in no view yet.
        for (_, resource) in self.batch.keys().filter(|key| is_of_object(key)).filter_map(|key| keys::beginning(key)) {
            unused.remove(&resource);
        }
        for letter in [b'o', b'v'] {
            strike_used(self.view, letter, &mut unused)?;
        }
        unused.iter().for_each(|id| self.remove(meta::resource(*id)));
        self.retired.extend(unused);
        Ok(())
    }
}

fn is_of_object(key: &[u8]) -> bool {
    matches!(key.first(), Some(b'o' | b'v'))
}

/// Strikes out what some logical cluster has, one seek for each resource that one has.
fn strike_used(view: &dyn View, letter: u8, unused: &mut HashSet<u32>) -> Result<(), StoreError> {
    let end = keys::end_of(&[letter]);
    let mut from = vec![letter];
    loop {
        let cursor = view.scan(&from, &end).map_err(backend)?;
        let Some(key) = cursor.key() else { return Ok(()) };
        let (cluster, resource) = keys::beginning(key).ok_or(Damage::Key).map_err(damaged)?;
        unused.remove(&resource);
        from = keys::end_of(&keys::joined(letter, &[&keys::resource_prefix(cluster, resource, None)]));
    }
}

#[cfg(test)]
mod tests {
    use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record, Seams};
    use serde_json::json;

    use crate::{
        Expect, Transaction,
        core::Core,
        gate::{Gate, Purpose, Room},
        holds::Holds,
        hub::{Hub, RingBudget},
        kv::{MemoryKv, read},
        load::load,
        metrics::Metrics,
        open::initialize,
        plan::PreparedTransaction,
    };

    fn core() -> Core {
        let kv = MemoryKv::default();
        initialize(&kv, &Seams::system()).unwrap();
        let (found, metrics) = (read(&kv, load).unwrap().unwrap(), Metrics::new(None).unwrap());
        Core {
            hub: Hub::new(found.marks, RingBudget { each: 0, all: 0 }, metrics.watchers.clone()),
            resources: found.resources,
            metrics,
            gate: Gate::open(),
            holds: Holds::default(),
            room: Room::unlimited(),
            kv: Box::new(kv),
        }
    }

    fn write(core: &Core, cluster: u64, resource: &str, is_there: bool) {
        let key = ObjectKey::cluster_scoped(
            LogicalClusterId::new(cluster),
            GroupResource::new("example.org", resource),
            "a".parse().unwrap(),
        );
        let record = is_there.then(|| Record::of(&json!({"metadata": {}})));
        let txn = PreparedTransaction::new(Transaction::one(key, Expect::Anything, record)).unwrap();
        let (answers, ()) =
            core.admit(Purpose::MakeRoom).unwrap().commit(|plan| (vec![plan.transaction(txn)], ())).unwrap();
        assert!(answers.iter().all(Result::is_ok));
    }

    fn reclaim(core: &Core) {
        core.admit(Purpose::MakeRoom).unwrap().commit(|plan| (Vec::new(), plan.reclaim())).unwrap().1.unwrap();
    }

    fn number(core: &Core, resource: &str) -> Option<u32> {
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
        core.admit(Purpose::MakeRoom).unwrap().commit(|plan| (Vec::new(), plan.compact(upto))).unwrap().1.unwrap();
        reclaim(&core);
        let after = ["kept", "gone", "elsewhere", "last"].map(|resource| number(&core, resource));
        assert_eq!(after, [before[0], None, before[2], before[3]]);
        assert_eq!(core.resources.name(before[1].unwrap()), Some(GroupResource::new("example.org", "gone")));
        let on_disk = core.view(load).unwrap().ok().unwrap().resources;
        assert_eq!((on_disk.len(), on_disk.next()), (3, core.resources.next()));

        write(&core, 1, "last", false);
        let upto = core.hub.marks().last;
        core.admit(Purpose::MakeRoom).unwrap().commit(|plan| (Vec::new(), plan.compact(upto))).unwrap().1.unwrap();
        reclaim(&core);
        assert_eq!(number(&core, "last"), before[3], "the highest number stays, so that none is given twice");
        write(&core, 1, "gone", true);
        assert!(number(&core, "gone") > before[3], "what comes again has a new number");
    }
}
