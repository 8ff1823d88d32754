//! Transaction of one write with its checks, companion writes and post-commit actions.

mod accounts;

use std::sync::Arc;

use portolan_store::{
    AccountLimit, Committed, Durable, Expect, StoreError, StoredObject, StoredUsage, Transaction, Write,
};
use portolan_types::{
    LogicalClusterId, ObjectKey, Record, ResourceVersion, Status,
    placement::{is_plan_input, plan_fence, plan_fences},
};

use crate::{
    directory::{Directory, LogicalCluster, UncommittedCluster},
    errors::status_for,
    kinds::{DefinitionCatalog, DefinitionWriteGuard},
    storage::StorageContext,
    sync::{CommitListener, KeyedGuard},
};

pub(crate) use accounts::default_limits;
use accounts::{accounts, over_limit};

/// Context of commits.
pub(crate) struct CommitContext {
    pub(crate) storage: Arc<StorageContext>,
    /// Definitions, whose cached state a write of one invalidates.
    pub(crate) kinds: DefinitionCatalog,
    /// Caches that a commit invalidates.
    pub(crate) listeners: [Arc<dyn CommitListener>; 2],
    /// Storage limits of a workspace without its own.
    pub(crate) default_limits: StoredUsage,
}

/// Write of one object that is ready to be committed.
#[derive(Clone)]
pub(crate) struct ObjectCommit {
    pub(crate) key: ObjectKey,
    pub(crate) expect: Expect,
    /// New content; `None` removes the object.
    pub(crate) record: Option<Record>,
    /// Preconditions on other objects.
    pub(crate) checks: Vec<(ObjectKey, Expect)>,
    /// States of plan fences that the write expects.
    pub(crate) fences: Vec<(ObjectKey, Expect)>,
    /// Writes of other objects in the same transaction.
    pub(crate) companions: Vec<Write>,
    /// Directory entry among the companions. The directory is updated right after the commit.
    pub(crate) entry: Option<DirectoryEntry>,
    /// Lock on a bounded resource, held until the commit.
    pub(crate) lock: Option<Arc<KeyedGuard<ObjectKey>>>,
}

/// Directory entry that a transaction writes.
#[derive(Clone)]
pub(crate) enum DirectoryEntry {
    /// Entry of a logical cluster that the transaction creates.
    New(UncommittedCluster),
    /// New state of an existing entry.
    Changed(LogicalCluster),
}

impl DirectoryEntry {
    /// Returns the account of a logical cluster that is being created; `most` is the default limit.
    fn new_cluster_account(&self, most: StoredUsage) -> Option<AccountLimit> {
        match self {
            Self::New(newborn) => newborn.account(most),
            Self::Changed(_) => None,
        }
    }

    /// Moves the write of a new entry to the front, so that no object of the transaction is older than its logical
    /// cluster. Returns the new index of the write that was first.
    fn move_first(&self, writes: &mut [Write]) -> u64 {
        let Self::New(newborn) = self else { return 0 };
        let key = newborn.key();
        let place = (0..).zip(&*writes).find(|(_, write)| write.key == key).map_or(0, |(place, _)| place);
        writes.swap(0, place);
        place as u64
    }

    /// Returns the entry as it was committed.
    fn committed(self, committed: Committed) -> LogicalCluster {
        match self {
            Self::New(newborn) => newborn.since(committed.first),
            Self::Changed(changed) => changed,
        }
    }
}

/// Reason why a write was not committed.
#[derive(Debug)]
pub(crate) enum CommitError {
    /// Something changed concurrently: read again and decide again.
    Raced(Status),
    /// An object of that name exists.
    Exists(Status),
    /// The object exceeds the size of a stored record.
    TooLarge(Status),
    /// The write cannot succeed.
    Failed(Status),
}

impl CommitError {
    /// Returns the response for a write that is not retried.
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

impl ObjectCommit {
    /// Returns the write of one object alone.
    pub(crate) fn new(key: ObjectKey, expect: Expect, record: Option<Record>) -> Self {
        let (checks, companions) = (Vec::new(), Vec::new());
        Self { key, expect, record, checks, fences: Vec::new(), companions, entry: None, lock: None }
    }

    fn transaction(&self, context: &CommitContext) -> Transaction {
        let own = Write { key: self.key.clone(), expect: self.expect, record: self.record.clone() };
        let written = self.written_fences();
        let fences = written.iter().map(|key| fence_write(key, &self.fences));
        let writes = std::iter::once(own).chain(self.companions.iter().cloned()).chain(fences).collect();
        let mut checks = self.checks.clone();
        checks.extend(self.fences.iter().filter(|(key, _)| !written.contains(key)).cloned());
        let transaction = Transaction { checks, writes, accounts: Vec::new() };
        Transaction { accounts: accounts(context, &transaction, self.entry.as_ref()), ..transaction }
    }

    /// Returns the plan fences that the write moves on.
    fn written_fences(&self) -> Vec<ObjectKey> {
        let own = self.key.cluster;
        let of = [LogicalClusterId::SYSTEM, own].into_iter().take(if own == LogicalClusterId::SYSTEM { 1 } else { 2 });
        if is_plan_input(&self.key.resource) { of.map(plan_fence).collect() } else { Vec::new() }
    }

    /// Returns the transaction if nothing has to happen after its commit.
    pub(crate) fn plain(&self, context: &CommitContext) -> Option<Transaction> {
        let follows = self.evictions(context).next().is_some() || DefinitionCatalog::is_about(&self.key);
        let is_plain = !follows && self.entry.is_none() && self.lock.is_none();
        is_plain.then(|| self.transaction(context))
    }

    /// Returns the caches that depend on the written objects, each with the logical cluster to refresh.
    fn evictions<'a>(&'a self, context: &'a CommitContext) -> impl Iterator<Item = CacheEviction> + 'a {
        let keys = std::iter::once(&self.key).chain(self.companions.iter().map(|write| &write.key));
        keys.flat_map(|key| {
            let dependent = context.listeners.iter().filter(|listener| listener.depends_on(&key.resource));
            dependent.map(|listener| CacheEviction { listener: listener.clone(), cluster: key.cluster })
        })
    }

    /// Returns the object as stored at a revision; for a removal, `last` with the revision of the removal.
    pub(crate) fn stored(self, revision: ResourceVersion, last: Option<&StoredObject>) -> StoredObject {
        let created = last.map_or(revision, |last| last.created);
        let record = match (self.record, last) {
            (Some(record), _) => Arc::new(record),
            (None, Some(last)) => last.record.clone(),
            (None, None) => Arc::new(Record::of(&serde_json::Value::Null)),
        };
        StoredObject { key: self.key, revision, created, record }
    }

    /// Checks the storage limits of workspaces as the commit does, and writes nothing.
    pub(crate) async fn check_limits(&self, context: &CommitContext) -> Result<(), CommitError> {
        match context.storage.store.dry_run(self.transaction(context)).await {
            Err(StoreError::OverLimit { cluster, excess }) => {
                Err(CommitError::Failed(over_limit(&context.storage.directory, &self.key, cluster, excess)))
            }
            // The dry run itself has checked everything else.
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Commits. Returns the stored object; for a removal, `last` with the revision of the removal.
    pub(crate) async fn run(
        mut self,
        context: &CommitContext,
        last: Option<&StoredObject>,
    ) -> Result<StoredObject, CommitError> {
        let (mut transaction, storage) = (self.transaction(context), &context.storage);
        let (entry, lock) = (self.entry.take(), self.lock.take());
        let own = entry.as_ref().map_or(0, |entry| entry.move_first(&mut transaction.writes));
        portolan_types::failpoint!("api/commit-ready");
        let evictions = self.evictions(context).collect();
        let defines = DefinitionCatalog::is_about(&self.key).then(|| context.kinds.change(&self.key));
        let after = PostCommit { evictions, defines, entry, lock };
        let committed = if after.is_needed() {
            commit_with_actions(storage, transaction, after).await
        } else {
            storage.store.commit(transaction).await.map(Durable::into_inner)
        };
        if let Err(StoreError::Damaged { key, .. }) = &committed
            && key.resource == plan_fences()
        {
            return Err(Box::pin(remove_damaged_fence(storage, key.clone(), &self.key)).await);
        }
        let revision = committed.map_err(|error| raced(&storage.directory, &self.key, &error))?.first.plus(own);
        portolan_types::failpoint!("api/commit-done");
        tracing::Span::current().record("revision", revision.get());
        Ok(self.stored(revision, last))
    }
}

/// Returns the write of a plan fence beside that of an input of plans.
fn fence_write(key: &ObjectKey, expected: &[(ObjectKey, Expect)]) -> Write {
    let record = Record::of(&serde_json::json!({"metadata": {"name": "plans"}}));
    let expect = expected.iter().find(|(of, _)| of == key).map_or(Expect::Anything, |(_, expect)| *expect);
    Write { key: key.clone(), expect, record: Some(record) }
}

/// Removes a damaged plan fence. Returns the error that makes the write of `key` try again.
async fn remove_damaged_fence(storage: &StorageContext, fence: ObjectKey, key: &ObjectKey) -> CommitError {
    let removal = Transaction::one(fence, Expect::Damaged, None);
    match storage.store.commit(removal).await {
        Ok(_) => CommitError::Raced(Status::modified(&key.resource, &key.name)),
        Err(error) => raced(&storage.directory, key, &error),
    }
}

/// Actions after a commit, which run even if the client has left.
struct PostCommit {
    evictions: Vec<CacheEviction>,
    defines: Option<DefinitionWriteGuard>,
    entry: Option<DirectoryEntry>,
    lock: Option<Arc<KeyedGuard<ObjectKey>>>,
}

impl PostCommit {
    fn is_needed(&self) -> bool {
        !self.evictions.is_empty() || self.defines.is_some() || self.entry.is_some() || self.lock.is_some()
    }
}

/// Entry of a cache that a commit invalidates.
struct CacheEviction {
    listener: Arc<dyn CommitListener>,
    cluster: LogicalClusterId,
}

/// Commits in a task of its own, which runs the post-commit actions even if the client leaves.
async fn commit_with_actions(
    storage: &StorageContext,
    transaction: Transaction,
    after: PostCommit,
) -> Result<Committed, StoreError> {
    let (committing, directory) = (storage.store.commit(transaction), storage.directory.clone());
    let task = tokio::spawn(async move {
        let committed = committing.await.map(Durable::into_inner);
        portolan_types::failpoint!("api/consequences");
        after.evictions.iter().for_each(|eviction| eviction.listener.evict(eviction.cluster));
        drop(after.defines);
        if let (Some(entry), Ok(committed)) = (after.entry, &committed) {
            directory.insert(entry.committed(*committed));
        }
        drop(after.lock);
        committed
    });
    task.await.unwrap_or(Err(StoreError::Unknown))
}

fn raced(directory: &Directory, key: &ObjectKey, error: &StoreError) -> CommitError {
    let status = status_for(error);
    match error {
        StoreError::AlreadyExists { key: of } if of == key => CommitError::Exists(status),
        StoreError::AlreadyExists { .. } | StoreError::Conflict { .. } => {
            CommitError::Raced(Status::modified(&key.resource, &key.name))
        }
        StoreError::NotFound { .. } => CommitError::Raced(status),
        StoreError::TooLarge { .. } => CommitError::TooLarge(status),
        StoreError::OverLimit { cluster, excess } => CommitError::Failed(over_limit(directory, key, *cluster, *excess)),
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
