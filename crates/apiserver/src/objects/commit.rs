//! One write as one transaction, with whatever must happen in the same moment.

use std::sync::Arc;

use portolan_store::{Account, Committed, Durable, Expect, StoreError, StoredObject, Transaction, Usage, Write};
use portolan_types::{LogicalClusterId, ObjectKey, Record, ResourceVersion, Status};

use crate::{
    ApiServer,
    admission::Turn,
    directory::{LogicalCluster, Newborn},
    errors::status_for,
    kinds::{Catalog, Changing},
};

use super::accounts::{accounts, over_limit};

/// A write that is ready but for its commit.
#[derive(Clone)]
pub(crate) struct Commit {
    pub(crate) key: ObjectKey,
    pub(crate) expect: Expect,
    /// `None` removes the object.
    pub(crate) record: Option<Record>,
    /// What must hold beside it.
    pub(crate) checks: Vec<(ObjectKey, Expect)>,
    /// What is written with it.
    pub(crate) companions: Vec<Write>,
    /// The directory entry that is among the companions: known as soon as it is committed.
    pub(crate) entry: Option<Entry>,
    /// Nobody else decides on the same room until it is committed.
    pub(crate) turn: Option<Arc<Turn<ObjectKey>>>,
}

/// An entry of the directory.
#[derive(Clone)]
pub(crate) enum Entry {
    /// Of a logical cluster that comes to be in the transaction.
    New(Newborn),
    /// Of one that is there, as it is from now on.
    Changed(LogicalCluster),
}

impl Entry {
    /// The account of a logical cluster that comes to be, where the server allows `most`.
    pub(super) fn newborn_account(&self, most: Usage) -> Option<Account> {
        match self {
            Self::New(newborn) => newborn.account(most),
            Self::Changed(_) => None,
        }
    }

    /// Writes a new entry before all else, so that none of its transaction is from before it. The place of what was first then.
    fn come_first(&self, writes: &mut [Write]) -> u64 {
        let Self::New(newborn) = self else { return 0 };
        let key = newborn.key();
        let place = (0..).zip(&*writes).find(|(_, write)| write.key == key).map_or(0, |(place, _)| place);
        writes.swap(0, place);
        place as u64
    }

    /// As it was committed.
    fn committed(self, committed: Committed) -> LogicalCluster {
        match self {
            Self::New(newborn) => newborn.since(committed.first),
            Self::Changed(changed) => changed,
        }
    }
}

/// Why a commit did not happen.
#[derive(Debug)]
pub(crate) enum CommitError {
    /// Something was written meanwhile: read again and decide again.
    Raced(Status),
    /// There is an object of that name.
    Exists(Status),
    /// It has more bytes than can be stored at once.
    TooLarge(Status),
    /// The end.
    Failed(Status),
}

impl CommitError {
    /// The answer when it is not tried again.
    pub(crate) fn into_status(self) -> Status {
        match self {
            Self::Raced(status) | Self::Exists(status) | Self::TooLarge(status) | Self::Failed(status) => status,
        }
    }
}

impl From<Status> for CommitError {
    fn from(status: Status) -> Self {
        Self::Failed(status)
    }
}

impl Commit {
    /// A write of one object.
    pub(crate) fn new(key: ObjectKey, expect: Expect, record: Option<Record>) -> Self {
        Self { key, expect, record, checks: Vec::new(), companions: Vec::new(), entry: None, turn: None }
    }

    fn transaction(&self, api: &ApiServer) -> Transaction {
        let own = Write { key: self.key.clone(), expect: self.expect, record: self.record.clone() };
        let writes = std::iter::once(own).chain(self.companions.iter().cloned()).collect();
        let transaction = Transaction { checks: self.checks.clone(), writes, accounts: Vec::new() };
        Transaction { accounts: accounts(api, &transaction, self.entry.as_ref()), ..transaction }
    }

    /// All of it as a transaction, where nothing else follows from its being committed.
    pub(crate) fn plain(&self, api: &ApiServer) -> Option<Transaction> {
        let follows = KnownBy::of(&self.key) != KnownBy::Nobody || Catalog::is_about(&self.key);
        let is_plain = !follows && self.entry.is_none() && self.turn.is_none();
        is_plain.then(|| self.transaction(api))
    }

    /// The object as it is stored at a revision; for a removal, `last` with the removal's revision.
    pub(crate) fn stored(self, revision: ResourceVersion, last: Option<&StoredObject>) -> StoredObject {
        let created = last.map_or(revision, |last| last.created);
        let record = match (self.record, last) {
            (Some(record), _) => Arc::new(record),
            (None, Some(last)) => last.record.clone(),
            (None, None) => Arc::new(Record::of(&serde_json::Value::Null)),
        };
        StoredObject { key: self.key, revision, created, record }
    }

    /// Commits. The object as it is stored then; for a removal, `last` with the removal's revision.
    pub(crate) async fn run(
        mut self,
        api: &ApiServer,
        last: Option<&StoredObject>,
    ) -> Result<StoredObject, CommitError> {
        let mut transaction = self.transaction(api);
        let (entry, turn) = (self.entry.take(), self.turn.take());
        let own = entry.as_ref().map_or(0, |entry| entry.come_first(&mut transaction.writes));
        portolan_types::failpoint!("api/commit-ready");
        let known_by = KnownBy::of(&self.key);
        let defines = Catalog::is_about(&self.key).then(|| api.kinds.change(&self.key));
        let after = Consequences { known_by, cluster: self.key.cluster, defines, entry, turn };
        let committed = match after.are_any() {
            true => with_consequences(api, transaction, after).await,
            false => api.store.commit(transaction).await.map(Durable::into_inner),
        };
        let revision = committed.map_err(|error| raced(api, &self.key, &error))?.first.plus(own);
        portolan_types::failpoint!("api/commit-done");
        Ok(self.stored(revision, last))
    }
}

/// Who keeps in memory what is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KnownBy {
    Authorization,
    Admission,
    Nobody,
}

impl KnownBy {
    fn of(key: &ObjectKey) -> Self {
        match &*key.resource.group {
            "rbac.authorization.k8s.io" => Self::Authorization,
            _ if crate::admission::Configured::follows(&key.resource) => Self::Admission,
            _ => Self::Nobody,
        }
    }
}

/// What follows from a commit, whoever waits for it.
struct Consequences {
    known_by: KnownBy,
    cluster: LogicalClusterId,
    defines: Option<Changing>,
    entry: Option<Entry>,
    turn: Option<Arc<Turn<ObjectKey>>>,
}

impl Consequences {
    fn are_any(&self) -> bool {
        self.known_by != KnownBy::Nobody || self.defines.is_some() || self.entry.is_some() || self.turn.is_some()
    }
}

/// Commits, and draws the consequences, also when the client leaves in between.
async fn with_consequences(
    api: &ApiServer,
    transaction: Transaction,
    after: Consequences,
) -> Result<Committed, StoreError> {
    let (committing, rbac, directory) = (api.store.commit(transaction), api.rbac.clone(), api.directory.clone());
    let configured = api.configured.clone();
    let task = tokio::spawn(async move {
        let committed = committing.await.map(Durable::into_inner);
        portolan_types::failpoint!("api/consequences");
        match after.known_by {
            KnownBy::Authorization => rbac.forget(after.cluster),
            KnownBy::Admission => configured.forget(after.cluster),
            KnownBy::Nobody => {}
        }
        drop(after.defines);
        if let (Some(entry), Ok(committed)) = (after.entry, &committed) {
            directory.insert(entry.committed(*committed));
        }
        drop(after.turn);
        committed
    });
    task.await.unwrap_or(Err(StoreError::Unknown))
}

fn raced(api: &ApiServer, key: &ObjectKey, error: &StoreError) -> CommitError {
    let status = status_for(error);
    match error {
        StoreError::AlreadyExists { key: of } if of == key => CommitError::Exists(status),
        StoreError::AlreadyExists { .. } | StoreError::Conflict { .. } => {
            CommitError::Raced(Status::modified(&key.resource, &key.name))
        }
        StoreError::NotFound { .. } => CommitError::Raced(status),
        StoreError::TooLarge { .. } => CommitError::TooLarge(status),
        StoreError::OverLimit { cluster, excess } => CommitError::Failed(over_limit(api, key, *cluster, *excess)),
        StoreError::Compacted { .. }
        | StoreError::FutureRevision { .. }
        | StoreError::Overloaded
        | StoreError::Full(_)
        | StoreError::Unreachable { .. }
        | StoreError::ClusterGone { .. }
        | StoreError::Unknown
        | StoreError::Damaged { .. }
        | StoreError::NotDamaged { .. }
        | StoreError::Backend(_) => CommitError::Failed(status),
    }
}
