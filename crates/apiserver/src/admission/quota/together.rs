//! Writes of one namespace that are charged in one transaction: whoever's turn it is takes along those who wait by then, so that a
//! namespace with quotas takes as many writes as the disk does, and not one with each of its syncs.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use jiff::Timestamp;
use parking_lot::Mutex;
use portolan_machinery::quota::{Ask, Refusal, charge};
use portolan_store::{
    Committed, Expect, MAX_TRANSACTION_CONDITIONS, MAX_TRANSACTION_OBJECTS, StoreError, StoredObject, Transaction,
};
use portolan_types::{GroupResource, ObjectKey, ResourceVersion, Status};
use serde_json::Value;
use tokio::sync::oneshot;

use crate::{
    ApiServer,
    admission::{Turn, would_be::use_more},
    errors::status_for,
};

use super::{Namespace, stored, with_usage};

/// Bytes of the objects of one transaction, give or take one object.
const GROUP_BYTES: usize = 512 << 10;

/// The writes that wait to be charged. Whoever asked for one takes it out again when it leaves.
#[derive(Default)]
pub(crate) struct Together {
    waiting: Arc<Waiting>,
    asked: AtomicU64,
}

type Waiting = Mutex<HashMap<Namespace, VecDeque<Member>>>;

/// What is to be charged for, as [`Ask`]: it waits longer than what it was asked with.
pub(super) struct Asked {
    resource: GroupResource,
    subresource: String,
    object: Value,
    old: Option<Value>,
    now: Timestamp,
}

impl Asked {
    pub(super) fn of(ask: &Ask<'_>) -> Self {
        let (resource, subresource) = (ask.resource.clone(), ask.subresource.to_owned());
        Self { resource, subresource, object: ask.object.clone(), old: ask.old.cloned(), now: ask.now }
    }

    fn ask(&self) -> Ask<'_> {
        let (resource, subresource) = (&self.resource, &*self.subresource);
        Ask { resource, subresource, object: &self.object, old: self.old.as_ref(), now: self.now }
    }
}

/// What became of a write.
pub(super) enum Outcome {
    /// It is stored, at this revision.
    Stored(ResourceVersion),
    /// A quota would be exceeded.
    Refused(Refusal),
    /// The store failed, for all of them.
    Failed(Status),
    /// One of them could not be written as it was: each has to be tried by itself.
    Apart,
}

struct Member {
    id: u64,
    asked: Asked,
    transaction: Transaction,
    answer: oneshot::Sender<Outcome>,
}

/// A place among those who wait, until it is dropped.
struct Place<'a> {
    waiting: &'a Waiting,
    namespace: &'a Namespace,
    id: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut waiting = self.waiting.lock();
        if let Some(members) = waiting.get_mut(self.namespace) {
            members.retain(|member| member.id != self.id);
            if members.is_empty() {
                waiting.remove(self.namespace);
            }
        }
    }
}

impl Together {
    /// Writes what is asked for together with what its quotas are charged, and with others who wait for the same. The first write of
    /// `transaction` is the one whose revision is told.
    ///
    /// # Errors
    /// When the quotas cannot be read.
    pub(super) async fn write(
        &self,
        api: &ApiServer,
        namespace: &Namespace,
        asked: Asked,
        transaction: Transaction,
    ) -> Result<Outcome, Status> {
        let (answer, mut answered) = oneshot::channel();
        let id = self.asked.fetch_add(1, Ordering::Relaxed);
        let member = Member { id, asked, transaction, answer };
        self.waiting.lock().entry(namespace.clone()).or_default().push_back(member);
        let _place = Place { waiting: &self.waiting, namespace, id };
        loop {
            let turn = tokio::select! {
                biased;
                outcome = &mut answered => return Ok(outcome.unwrap_or(Outcome::Failed(status_for(&StoreError::Unknown)))),
                turn = api.charging.wait(namespace.clone()) => turn,
            };
            self.lead(api, namespace, turn).await?;
        }
    }

    /// Charges for those who wait, as many as one transaction takes, and sends it on its way: it ends also when whoever leads leaves.
    async fn lead(&self, api: &ApiServer, namespace: &Namespace, turn: Turn<Namespace>) -> Result<(), Status> {
        let quotas = stored(api, namespace.0, &namespace.1).await?;
        let group = Group::charge(&quotas, self.take(namespace, quotas.len()));
        let (fitting, refused) = (group.fitting, group.refused);
        let committing = (!fitting.is_empty()).then(|| api.store.commit(group.transaction));
        tokio::spawn(async move {
            let committed = match committing {
                Some(committing) => committing.await.map(|committed| Some(committed.into_inner())),
                None => Ok(None),
            };
            answer(&committed, fitting, refused);
            drop(turn);
        });
        Ok(())
    }

    /// Those who waited longest, as many as go into one transaction with so many quotas.
    fn take(&self, namespace: &Namespace, quotas: usize) -> Vec<Member> {
        let mut waiting = self.waiting.lock();
        let Some(members) = waiting.get_mut(namespace) else { return Vec::new() };
        let mut size = Size::of(quotas);
        let mut taken = Vec::new();
        while members.front().is_some_and(|member| size.takes(&member.transaction) || taken.is_empty()) {
            taken.extend(members.pop_front());
        }
        if members.is_empty() {
            waiting.remove(namespace);
        }
        taken
    }
}

/// How much is in a transaction.
struct Size {
    objects: usize,
    bytes: usize,
    written: HashSet<ObjectKey>,
    checked: Vec<Check>,
}

/// What must hold of a key.
type Check = (ObjectKey, Expect);

impl Size {
    fn of(quotas: usize) -> Self {
        Self { objects: quotas, bytes: 0, written: HashSet::new(), checked: Vec::new() }
    }

    /// Adds a write where there is room for it, and where nothing that it depends on is written before it.
    fn takes(&mut self, more: &Transaction) -> bool {
        let bytes: usize =
            more.writes.iter().filter_map(|write| write.record.as_ref()).map(|record| record.body().len()).sum();
        let objects = self.objects + more.writes.len();
        let conditions =
            objects + self.checked.len() + more.checks.iter().filter(|check| !self.checked.contains(check)).count();
        let meets = |key: &ObjectKey| self.written.contains(key) || self.checked.iter().any(|(own, _)| own == key);
        // One of the conditions is that the logical cluster is there.
        let fits = objects <= MAX_TRANSACTION_OBJECTS
            && conditions < MAX_TRANSACTION_CONDITIONS
            && self.bytes + bytes <= GROUP_BYTES
            && !more.writes.iter().any(|write| meets(&write.key))
            && !more.checks.iter().any(|(key, _)| self.written.contains(key));
        if fits {
            self.objects = objects;
            self.bytes += bytes;
            self.written.extend(more.writes.iter().map(|write| write.key.clone()));
            add_checks(&mut self.checked, more.checks.iter().cloned());
        }
        fits
    }
}

/// One transaction, and whom to tell of it.
#[derive(Default)]
struct Group {
    transaction: Transaction,
    /// Each with the place of its write.
    fitting: Vec<(u64, oneshot::Sender<Outcome>)>,
    refused: Vec<(Refusal, oneshot::Sender<Outcome>)>,
}

impl Group {
    /// Charges one after the other, each for what those before it have left.
    fn charge(quotas: &[(StoredObject, Value)], members: Vec<Member>) -> Self {
        let mut group = Self::default();
        let mut trees: Vec<Value> = quotas.iter().map(|(_, tree)| tree.clone()).collect();
        for member in members {
            match charge(&trees, &member.asked.ask()) {
                Err(refusal) => group.refused.push((refusal, member.answer)),
                Ok(charged) => {
                    use_more(&mut trees, charged);
                    group.add(member.transaction, member.answer);
                }
            }
        }
        let changed = quotas.iter().zip(&trees).filter(|((_, before), after)| before != *after);
        group
            .transaction
            .writes
            .extend(changed.map(|(quota, after)| with_usage(quota, after["status"]["used"].clone())));
        group
    }

    fn add(&mut self, more: Transaction, answer: oneshot::Sender<Outcome>) {
        self.fitting.push((self.transaction.writes.len() as u64, answer));
        self.transaction.writes.extend(more.writes);
        // All are of one logical cluster.
        self.transaction.accounts = more.accounts;
        add_checks(&mut self.transaction.checks, more.checks);
    }
}

/// Most have the same, that their namespace lives: it counts once.
fn add_checks(known: &mut Vec<Check>, more: impl IntoIterator<Item = Check>) {
    for check in more {
        if !known.contains(&check) {
            known.push(check);
        }
    }
}

/// Tells everybody. Who does not listen any more has left.
fn answer(
    committed: &Result<Option<Committed>, StoreError>,
    fitting: Vec<(u64, oneshot::Sender<Outcome>)>,
    refused: Vec<(Refusal, oneshot::Sender<Outcome>)>,
) {
    let outcome = |place: u64| match committed {
        Ok(committed) => committed.map_or(Outcome::Apart, |committed| Outcome::Stored(committed.first.plus(place))),
        Err(error) if is_of_one(error) => Outcome::Apart,
        Err(error) => Outcome::Failed(status_for(error)),
    };
    for (place, answer) in fitting {
        let _ = answer.send(outcome(place));
    }
    for (refusal, answer) in refused {
        // What others were charged for has not been written: perhaps there is room.
        let _ = answer.send(if committed.is_ok() { Outcome::Refused(refusal) } else { outcome(0) });
    }
}

/// Whether a transaction failed for what one of its writes found, so that the others may do without it.
fn is_of_one(error: &StoreError) -> bool {
    match error {
        StoreError::NotFound { .. }
        | StoreError::AlreadyExists { .. }
        | StoreError::Conflict { .. }
        | StoreError::FutureRevision { .. }
        | StoreError::TooLarge { .. }
        | StoreError::OverLimit { .. }
        | StoreError::Damaged { .. }
        | StoreError::NotDamaged { .. } => true,
        StoreError::Compacted { .. }
        | StoreError::Overloaded
        | StoreError::Full(_)
        | StoreError::Unreachable { .. }
        | StoreError::ClusterGone { .. }
        | StoreError::Unknown
        | StoreError::Backend(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use portolan_types::{LogicalClusterId, Record};
    use serde_json::json;

    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey::cluster_scoped(LogicalClusterId::ROOT, GroupResource::new("", "things"), name.parse().unwrap())
    }

    fn write(name: &str, bytes: usize) -> Transaction {
        let record = Record::of(&json!({"metadata": {"name": name}, "data": "x".repeat(bytes)}));
        Transaction::one(key(name), Expect::Absent, Some(record))
    }

    #[test]
    fn a_group_takes_what_one_transaction_takes() {
        let upto = |quotas: usize, bytes: usize| {
            let mut size = Size::of(quotas);
            (0..200).take_while(|n| size.takes(&write(&n.to_string(), bytes))).count()
        };
        assert_eq!(upto(1, 10), 99);
        assert_eq!(upto(64, 10), 36);
        assert_eq!(upto(1, 100 << 10), 5);
        let mut size = Size::of(1);
        assert!(size.takes(&write("a", 10)));
        assert!(!size.takes(&write("a", 10)), "no key twice");
        let on =
            |name: &str, other: &str| Transaction { checks: vec![(key(other), Expect::Present)], ..write(name, 10) };
        assert!(!size.takes(&on("b", "a")), "no check of what is written");
        assert!(size.takes(&on("c", "d")));
        assert!(size.takes(&on("e", "d")), "the same check twice counts once");
        assert_eq!(size.checked.len(), 1);
        let other = Transaction { checks: vec![(key("d"), Expect::Anything)], ..write("f", 10) };
        assert!(size.takes(&other) && size.checked.len() == 2, "another check of the same key counts, too");
        assert!(!size.takes(&write("d", 10)), "no write of what is checked");
    }

    #[test]
    fn a_place_that_is_given_up_leaves_nothing() {
        let (together, namespace) = (Together::default(), (LogicalClusterId::ROOT, "default".to_owned()));
        let asked = Asked {
            resource: GroupResource::new("", "things"),
            subresource: String::new(),
            object: json!({}),
            old: None,
            now: Timestamp::UNIX_EPOCH,
        };
        let member = Member { id: 7, asked, transaction: write("a", 10), answer: oneshot::channel().0 };
        together.waiting.lock().entry(namespace.clone()).or_default().push_back(member);
        drop(Place { waiting: &together.waiting, namespace: &namespace, id: 8 });
        assert_eq!(together.waiting.lock()[&namespace].len(), 1, "it is another one's");
        drop(Place { waiting: &together.waiting, namespace: &namespace, id: 7 });
        assert!(together.waiting.lock().is_empty());
    }
}
