//! Limits on CustomResourceDefinitions of a logical cluster.

use portolan_kinds::custom;
use portolan_store::RangeScope;
use portolan_types::GroupResource;

use crate::{commit::CommitError, limits::Limits};

use super::{
    defined_names,
    pending_write::PendingWrite,
    usage_limits::{self, LimitContext, SizeChange, UsageLimit},
};

/// Adds the record of a new definition's name to the transaction that creates the definition. The record counts towards
/// the names that a tenant has defined.
///
/// # Errors
/// 403 if the logical cluster has too many definitions, if their schemas are too large, or if the tenant has defined
/// too many names.
pub(super) async fn add_dependent_writes(
    context: &LimitContext,
    write: &mut PendingWrite<'_>,
) -> Result<(), CommitError> {
    let growth = SizeChange::of(write.object, write.old);
    if !growth.is_any() {
        return Ok(());
    }
    let cluster = write.request.cluster;
    UsageLimit::Definitions.lock(context, context.storage.directory.tenant(cluster), write.commit).await?;
    let Limits { definitions: most, definition_bytes: most_bytes, .. } = context.limits;
    let all = RangeScope::Cluster(cluster.id, GroupResource::new(custom::GROUP, custom::RESOURCE));
    let (defined, stored) = usage_limits::stored(&context.storage, all).await?;
    let why = match write.old {
        None if defined >= most => Some(format!("a logical cluster has at most {most} definitions")),
        _ if growth.exceeds(stored, most_bytes) => {
            Some(format!("the definitions of a logical cluster have at most {most_bytes} bytes"))
        }
        None => {
            let name = write.commit.key.name.clone();
            defined_names::remember(context, write, name).await?
        }
        Some(_) => None,
    };
    why.map_or(Ok(()), |why| Err(write.forbidden(why).into()))
}
