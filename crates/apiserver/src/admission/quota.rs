//! Quotas: what an object uses is charged in the transaction that writes it, so that no limit is ever exceeded.

mod together;

use portolan_machinery::quota::{Ask, charge};
use portolan_store::{Expect, StoredObject, Write};
use portolan_types::{GroupResource, LogicalClusterId, Record, Status};
use serde_json::Value;

use crate::{
    ApiServer,
    errors::status_for,
    objects::{Commit, CommitError},
};

pub(crate) use together::Together;
use together::{Asked, Outcome};

use super::{Operation, Request, forbidden, lookup, room::Room};

/// How often a charge is tried when others, such as the loop that counts anew, write the same quota.
const ATTEMPTS: usize = 16;
/// Quotas of one namespace: a write is charged to all of them in one transaction, which has room for no more than 100 objects.
const MAX_QUOTAS: usize = 64;

const QUOTAS: (&str, &str) = ("", "resourcequotas");

/// Who charges the quotas of a namespace waits for the others: of writes that raced for one quota all but one would have to
/// be tried again.
pub(crate) type Namespace = (LogicalClusterId, String);

/// Whether quotas might be charged for the write.
async fn may_charge(
    api: &ApiServer,
    request: &Request<'_>,
    object: &Value,
    old: Option<&Value>,
) -> Result<bool, Status> {
    let counts = matches!(request.operation, Operation::Create | Operation::Update) && !request.namespace.is_empty();
    if !counts || !ask(api, request, &request.kind.storage.group_resource(), object, old).may_charge() {
        return Ok(false);
    }
    let configured = api.configured.of(request.cluster.id).await?;
    Ok(configured.is_some_and(|configured| configured.with_quotas.contains(request.namespace)))
}

fn ask<'a>(
    api: &ApiServer,
    request: &Request<'a>,
    resource: &'a GroupResource,
    object: &'a Value,
    old: Option<&'a Value>,
) -> Ask<'a> {
    Ask { resource, subresource: request.subresource, object, old, now: api.seams.clock.now() }
}

/// A namespace has only so many quotas, also where several are made at once.
///
/// # Errors
/// 403 for one more.
pub(super) async fn check_count(
    api: &ApiServer,
    request: &Request<'_>,
    quota: &Value,
    commit: &mut Commit,
) -> Result<(), CommitError> {
    Room::Quotas.enter(api, request.cluster.id, commit).await?;
    let stored = lookup::stored_in_namespace(api, request.cluster.id, QUOTAS, request.namespace).await?;
    match stored.len() < MAX_QUOTAS {
        true => Ok(()),
        false => {
            let why = format!("a namespace has at most {MAX_QUOTAS} resource quotas");
            Err(forbidden(request, Some(quota), why).into())
        }
    }
}

/// The quotas as they would be written with the object.
async fn charged(
    api: &ApiServer,
    request: &Request<'_>,
    object: &Value,
    old: Option<&Value>,
) -> Result<Vec<Write>, Status> {
    let quotas = stored(api, request.cluster.id, request.namespace).await?;
    let trees: Vec<Value> = quotas.iter().map(|(_, tree)| tree.clone()).collect();
    let resource = request.kind.storage.group_resource();
    let ask = ask(api, request, &resource, object, old);
    let charged = charge(&trees, &ask).map_err(|refusal| forbidden(request, Some(object), refusal.0))?;
    Ok(charged.into_iter().map(|(at, used)| with_usage(&quotas[at], used)).collect())
}

/// The quotas of a namespace, as records and as trees.
pub(super) async fn stored(
    api: &ApiServer,
    cluster: LogicalClusterId,
    namespace: &str,
) -> Result<Vec<(StoredObject, Value)>, Status> {
    let stored = lookup::stored_in_namespace(api, cluster, QUOTAS, namespace).await?;
    stored.into_iter().map(|stored| lookup::tree(&stored).map(|tree| (stored, tree))).collect()
}

/// A quota with another usage.
pub(super) fn with_usage((stored, quota): &(StoredObject, Value), used: Value) -> Write {
    let mut quota = quota.clone();
    quota["status"]["used"] = used;
    Write { key: stored.key.clone(), expect: Expect::At(stored.revision), record: Some(Record::of(&quota)) }
}

/// Whether others have written one of the quotas.
async fn any_moved(api: &ApiServer, charges: &[Write]) -> Result<bool, Status> {
    for charge in charges {
        let stored = api.store.get(&charge.key).await.map_err(|e| status_for(&e))?;
        if stored.map(|stored| Expect::At(stored.revision)) != Some(charge.expect) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether the write fits; nothing is charged.
///
/// # Errors
/// 403 when a quota would be exceeded.
pub(crate) async fn check(
    api: &ApiServer,
    request: &Request<'_>,
    object: &Value,
    old: Option<&Value>,
) -> Result<(), Status> {
    if may_charge(api, request, object, old).await? {
        charged(api, request, object, old).await?;
    }
    Ok(())
}

/// Commits a write together with what the quotas of its namespace are charged. `object` comes with its old state.
///
/// # Errors
/// 403 when a quota would be exceeded; what the store has against it.
pub(crate) async fn commit(
    api: &ApiServer,
    request: &Request<'_>,
    (object, old): (&Value, Option<&Value>),
    commit: Commit,
    last: Option<&StoredObject>,
) -> Result<StoredObject, CommitError> {
    if !may_charge(api, request, object, old).await? {
        return commit.run(api, last).await;
    }
    let namespace = (request.cluster.id, request.namespace.to_owned());
    if let Some(transaction) = commit.plain(api) {
        let asked = Asked::of(&ask(api, request, &request.kind.storage.group_resource(), object, old));
        match api.together.write(api, &namespace, asked, transaction).await? {
            Outcome::Stored(revision) => return Ok(commit.stored(revision, last)),
            Outcome::Refused(refusal) => return Err(forbidden(request, Some(object), refusal.0).into()),
            Outcome::Failed(status) => return Err(status.into()),
            Outcome::Apart => {}
        }
    }
    let turn = api.charging.wait(namespace).await;
    for attempt in 1.. {
        let charges = charged(api, request, object, old).await?;
        if charges.is_empty() {
            drop(turn);
            return commit.run(api, last).await;
        }
        let mut with_charges = commit.clone();
        with_charges.companions.extend(charges.iter().cloned());
        match with_charges.run(api, last).await {
            // Where it is not a quota that others have written, the whole write has to be decided on again.
            Err(CommitError::Raced(_)) if attempt < ATTEMPTS && any_moved(api, &charges).await? => {}
            other => return other,
        }
    }
    Err(Status::internal("a quota was charged too often").into())
}
