//! Limits on the objects that every write to a logical cluster has to read, such as its admission policies.

use std::sync::Arc;

use portolan_store::{Expect, RangeRequest, RangeScope, StoredObject, Write};
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record, Status};
use serde_json::{Value, json};

use crate::{
    commit::{CommitError, ObjectCommit},
    errors::{damaged, status_for},
    hooks::AdmissionRequest,
    limits::Limits,
    storage::StorageContext,
    sync::KeyedMutex,
};

use super::pending_write::PendingWrite;

/// Resources that share one limit.
struct LimitedResources {
    resources: &'static [(&'static str, &'static str)],
    /// Name of all of them in messages.
    all: &'static str,
    limit: UsageLimit,
}

/// Resources that configure admission.
static SHARED_LIMITS: [LimitedResources; 2] = [
    LimitedResources {
        resources: &[
            ("admissionregistration.k8s.io", "mutatingadmissionpolicies"),
            ("admissionregistration.k8s.io", "mutatingadmissionpolicybindings"),
            ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
            ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
            ("admissionregistration.k8s.io", "validatingadmissionpolicybindings"),
            ("admissionregistration.k8s.io", "validatingwebhookconfigurations"),
        ],
        all: "the admission policies, bindings and webhook configurations of a logical cluster",
        limit: UsageLimit::Admission,
    },
    LimitedResources {
        resources: &[("", "limitranges"), ("scheduling.k8s.io", "priorityclasses")],
        all: "the LimitRanges and PriorityClasses of a logical cluster",
        limit: UsageLimit::Classes,
    },
];

fn shared_limit(request: &AdmissionRequest<'_>) -> Option<&'static LimitedResources> {
    let own = (&*request.kind.gvk.group, &*request.kind.resource);
    SHARED_LIMITS.iter().find(|sum| sum.resources.contains(&own))
}

/// Change of an object's size.
pub(super) struct SizeChange {
    old: usize,
    new: usize,
}

impl SizeChange {
    pub(super) fn of(object: &Value, old: Option<&Value>) -> Self {
        Self::by(bytes, object, old)
    }

    /// Measures a change with `measure`.
    fn by(measure: impl Fn(&Value) -> usize, object: &Value, old: Option<&Value>) -> Self {
        Self { old: old.map_or(0, &measure), new: measure(object) }
    }

    /// Returns true if the object is new or grew.
    pub(super) fn is_any(&self) -> bool {
        self.new > self.old
    }

    /// Returns true if the change raises the total over the limit. `stored` is the total before the change. An object
    /// may still shrink while the total exceeds the limit.
    pub(super) fn exceeds(&self, stored: usize, limit: usize) -> bool {
        self.is_any() && stored.saturating_sub(self.old) + self.new > limit
    }
}

fn bytes(object: &Value) -> usize {
    serde_json::to_vec(object).map_or(0, |text| text.len())
}

/// Returns true if the request writes admission configuration or its status.
pub(super) fn is_configuration(request: &AdmissionRequest<'_>) -> bool {
    shared_limit(request).is_some()
}

/// Size of admission configuration, of one object or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ConfigurationSize {
    /// Bytes without statuses, which the server writes.
    bytes: usize,
    statuses: usize,
    webhooks: usize,
}

impl ConfigurationSize {
    fn of(object: &Value) -> Self {
        let statuses = object.get("status").map_or(0, bytes);
        let webhooks = object.get("webhooks").and_then(Value::as_array).map_or(0, Vec::len);
        Self { bytes: bytes(object).saturating_sub(statuses), statuses, webhooks }
    }

    fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.statuses += other.statuses;
        self.webhooks += other.webhooks;
    }
}

/// Context of limits on the objects of a logical cluster.
pub(crate) struct LimitContext {
    pub(crate) storage: Arc<StorageContext>,
    pub(crate) limits: Limits,
    /// Locks for writes that count towards a limit.
    pub(crate) locks: KeyedMutex<ObjectKey>,
}

/// Limit that a write may count towards.
#[derive(Clone, Copy, Debug)]
pub(super) enum UsageLimit {
    /// Admission configuration.
    Admission,
    /// Limits and classes that pods take defaults from.
    Classes,
    /// Definitions of resources, and the tenant's resource names.
    Definitions,
    /// Quotas.
    Quotas,
}

impl UsageLimit {
    /// Locks this limit for `cluster` until the commit is made or dropped, so that the count stays valid. Waits up to
    /// the request's deadline. The commit also writes a record for the limit: a concurrent commit on another server
    /// conflicts with it, and is admitted again.
    ///
    /// # Errors
    /// Failure of the store.
    pub(super) async fn lock(
        self,
        context: &LimitContext,
        cluster: LogicalClusterId,
        commit: &mut ObjectCommit,
    ) -> Result<(), Status> {
        let name = match self {
            Self::Admission => "admission",
            Self::Classes => "classes",
            Self::Definitions => "definitions",
            Self::Quotas => "quotas",
        };
        let parsed = name.parse().map_err(Status::internal)?;
        let key = ObjectKey::cluster_scoped(cluster, GroupResource::new("internal.portolan.dev", "rooms"), parsed);
        commit.lock = Some(Arc::new(context.locks.lock(key.clone()).await));
        let before = context.storage.store.get(&key).await.map_err(|e| status_for(&e))?;
        let expect = before.map_or(Expect::Absent, |before| Expect::At(before.revision));
        let record = Some(Record::of(&json!({"metadata": {"name": name}})));
        commit.companions.push(Write { key, expect, record });
        Ok(())
    }
}

/// Checks the limits on admission configuration.
///
/// # Errors
/// 403 if the logical cluster has too many or too large policies, bindings and webhook configurations, too many
/// webhooks, or too many or too large LimitRanges and PriorityClasses.
pub(super) async fn check_configuration(
    context: &LimitContext,
    write: &mut PendingWrite<'_>,
) -> Result<(), CommitError> {
    let growth = |part: fn(ConfigurationSize) -> usize| {
        SizeChange::by(|object| part(ConfigurationSize::of(object)), write.object, write.old)
    };
    let (bytes, statuses, webhooks) = (growth(|m| m.bytes), growth(|m| m.statuses), growth(|m| m.webhooks));
    if ![&bytes, &statuses, &webhooks].iter().any(|growth| growth.is_any()) {
        return Ok(());
    }
    let Some(LimitedResources { resources, all, limit }) = shared_limit(write.request) else { return Ok(()) };
    let cluster = write.request.cluster.id;
    limit.lock(context, cluster, write.commit).await?;
    let Limits { admission_objects, admission_bytes: limit, admission_webhooks, .. } = context.limits;
    let (count, stored) = configured(&context.storage, cluster, resources).await?;
    let why = match write.old {
        None if count >= admission_objects => format!("{all} are at most {admission_objects}"),
        _ if bytes.exceeds(stored.bytes, limit) => format!("{all} have at most {limit} bytes"),
        _ if statuses.exceeds(stored.statuses, limit) => format!("{all} have at most {limit} bytes of statuses"),
        _ if webhooks.exceeds(stored.webhooks, admission_webhooks) => {
            format!("{all} have at most {admission_webhooks} webhooks")
        }
        _ => return Ok(()),
    };
    Err(write.forbidden(why).into())
}

/// Returns the number of stored configuration objects and their size.
async fn configured(
    storage: &StorageContext,
    cluster: LogicalClusterId,
    resources: &[(&str, &str)],
) -> Result<(usize, ConfigurationSize), Status> {
    let (mut count, mut all) = (0, ConfigurationSize::default());
    for (group, resource) in resources {
        let scope = RangeScope::Cluster(cluster, GroupResource::new(*group, *resource));
        let of_one = |stored: &StoredObject| {
            let object = stored.record.to_value(stored.revision).map_err(|e| damaged(&stored.key, &e))?;
            all.add(ConfigurationSize::of(&object));
            Ok(())
        };
        count += each(storage, scope, of_one).await?;
    }
    Ok((count, all))
}

/// Returns the number of objects in a scope and their stored bytes.
///
/// # Errors
/// Failure of the store.
pub(super) async fn stored(storage: &StorageContext, scope: RangeScope) -> Result<(usize, usize), Status> {
    let mut bytes = 0;
    let of_one = |stored: &StoredObject| {
        bytes += stored.record.body().len();
        Ok(())
    };
    let count = each(storage, scope, of_one).await?;
    Ok((count, bytes))
}

/// Calls `look` for each object of a scope, with one slice in memory at a time. Returns the number of objects. Damaged
/// objects are counted, but cause no error: other objects can still be written.
async fn each(
    storage: &StorageContext,
    scope: RangeScope,
    mut look: impl FnMut(&StoredObject) -> Result<(), Status> + Send,
) -> Result<usize, Status> {
    let (mut slice, mut count) = (RangeRequest::slices(scope).skip_damaged(), 0);
    loop {
        let page = storage.store.range(slice.clone()).await.map_err(|e| status_for(&e))?;
        count += page.objects.len() + page.damaged.len();
        page.objects.iter().try_for_each(&mut look)?;
        match slice.next(&page) {
            Some(next) => slice = next,
            None => return Ok(count),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_share_one_limit() {
        const ROOM: usize = 100_000;
        let of = |bytes: usize| json!({"metadata": {"name": "x".repeat(bytes)}});
        let (small, large) = (of(1000), of(2000));
        for (case, stored, new, old, expected) in [
            ("a new object within the limit", 0, &large, None, false),
            ("a new object beyond the limit", ROOM - 500, &small, None, true),
            ("an object that grows within the limit", ROOM - 1100, &large, Some(&small), false),
            ("an object that grows beyond the limit", ROOM - 500, &large, Some(&small), true),
            ("an object that shrinks over the limit", 2 * ROOM, &small, Some(&large), false),
        ] {
            assert_eq!(SizeChange::of(new, old).exceeds(stored, ROOM), expected, "{case}");
        }
    }
}
