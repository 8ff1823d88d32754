//! How much a logical cluster may have of what is looked at with each of its writes.

use std::sync::Arc;

use portolan_store::{Expect, RangeRequest, RangeScope, StoredObject, Write};
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record, Status, object};
use serde_json::{Value, json};

use crate::{
    ApiServer,
    config::Limits,
    errors::{damaged, status_for},
    objects::{Commit, CommitError},
};

use super::Request;

/// Resources whose objects have their room in common.
struct Sum {
    resources: &'static [(&'static str, &'static str)],
    /// What they are called together.
    all: &'static str,
    room: Room,
}

/// What a logical cluster configures its admission with.
static SUMS: [Sum; 2] = [
    Sum {
        resources: &[
            ("admissionregistration.k8s.io", "mutatingadmissionpolicies"),
            ("admissionregistration.k8s.io", "mutatingadmissionpolicybindings"),
            ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
            ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
            ("admissionregistration.k8s.io", "validatingadmissionpolicybindings"),
            ("admissionregistration.k8s.io", "validatingwebhookconfigurations"),
        ],
        all: "the admission policies, bindings and webhook configurations of a logical cluster",
        room: Room::Admission,
    },
    Sum {
        resources: &[("", "limitranges"), ("scheduling.k8s.io", "priorityclasses")],
        all: "the LimitRanges and PriorityClasses of a logical cluster",
        room: Room::Classes,
    },
];

fn sum_of(request: &Request<'_>) -> Option<&'static Sum> {
    let own = (&*request.kind.gvk.group, &*request.kind.resource);
    SUMS.iter().find(|sum| sum.resources.contains(&own))
}

/// How an object changes in size.
pub(super) struct Growth {
    old: usize,
    new: usize,
}

impl Growth {
    pub(super) fn of(object: &Value, old: Option<&Value>) -> Self {
        Self::by(bytes, object, old)
    }

    /// By some other measure than bytes.
    fn by(measure: impl Fn(&Value) -> usize, object: &Value, old: Option<&Value>) -> Self {
        Self { old: old.map_or(0, &measure), new: measure(object) }
    }

    /// Whether it is new or larger than it was.
    pub(super) fn is_any(&self) -> bool {
        self.new > self.old
    }

    /// Whether it takes more than there is room for beside what is stored. What is larger already may shrink.
    pub(super) fn exceeds(&self, stored: usize, room: usize) -> bool {
        self.is_any() && stored.saturating_sub(self.old) + self.new > room
    }
}

fn bytes(object: &Value) -> usize {
    serde_json::to_vec(object).map_or(0, |text| text.len())
}

/// Whether the request writes what admission is configured with, or the status of that.
pub(super) fn is_configuration(request: &Request<'_>) -> bool {
    sum_of(request).is_some()
}

/// What there is of the configuration of admission, or is in one object of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Measure {
    /// Bytes but for those of statuses, which the server writes.
    bytes: usize,
    statuses: usize,
    webhooks: usize,
}

impl Measure {
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

/// What is kept in which there is only so much room.
#[derive(Clone, Copy, Debug)]
pub(super) enum Room {
    /// What admission is configured with.
    Admission,
    /// What pods take from their namespace and their class.
    Classes,
    /// Definitions of resources, and the names of those that a tenant has.
    Definitions,
    /// Quotas.
    Quotas,
}

impl Room {
    /// Waits, as long as the request may take, until nobody else decides on this room of `cluster`, and lets nobody until the
    /// commit is made or dropped: what is there is counted in between. Another server on the same store sees by a record, which
    /// each such commit writes, that it has to decide anew.
    ///
    /// # Errors
    /// When the store fails.
    pub(super) async fn enter(
        self,
        api: &ApiServer,
        cluster: LogicalClusterId,
        commit: &mut Commit,
    ) -> Result<(), Status> {
        let name = match self {
            Self::Admission => "admission",
            Self::Classes => "classes",
            Self::Definitions => "definitions",
            Self::Quotas => "quotas",
        };
        let parsed = name.parse().map_err(Status::internal)?;
        let key = ObjectKey::cluster_scoped(cluster, GroupResource::new("internal.portolan.dev", "rooms"), parsed);
        commit.turn = Some(Arc::new(api.furnishing.wait(key.clone()).await));
        let before = api.store.get(&key).await.map_err(|e| status_for(&e))?;
        let expect = before.map_or(Expect::Absent, |before| Expect::At(before.revision));
        let record = Some(Record::of(&json!({"metadata": {"name": name}})));
        commit.companions.push(Write { key, expect, record });
        Ok(())
    }
}

/// # Errors
/// 403 when the logical cluster has too many policies, bindings and configurations of webhooks, too large ones, or too many
/// webhooks in them; or too many or too large LimitRanges and PriorityClasses.
pub(super) async fn check_configuration(
    api: &ApiServer,
    request: &Request<'_>,
    object: &Value,
    old: Option<&Value>,
    commit: &mut Commit,
) -> Result<(), CommitError> {
    let growth = |part: fn(Measure) -> usize| Growth::by(|object| part(Measure::of(object)), object, old);
    let (bytes, statuses, webhooks) = (growth(|m| m.bytes), growth(|m| m.statuses), growth(|m| m.webhooks));
    if ![&bytes, &statuses, &webhooks].iter().any(|growth| growth.is_any()) {
        return Ok(());
    }
    let Some(Sum { resources, all, room }) = sum_of(request) else { return Ok(()) };
    room.enter(api, request.cluster.id, commit).await?;
    let Limits { admission_objects, admission_bytes: room, admission_webhooks, .. } = api.config.limits;
    let (count, stored) = configured(api, request.cluster.id, resources).await?;
    let why = match old {
        None if count >= admission_objects => format!("{all} are at most {admission_objects}"),
        _ if bytes.exceeds(stored.bytes, room) => format!("{all} have at most {room} bytes"),
        _ if statuses.exceeds(stored.statuses, room) => format!("{all} have at most {room} bytes of statuses"),
        _ if webhooks.exceeds(stored.webhooks, admission_webhooks) => {
            format!("{all} have at most {admission_webhooks} webhooks")
        }
        _ => return Ok(()),
    };
    Err(Status::forbidden(&request.kind.group_resource(), object::name(object), why).into())
}

/// How many there are, and what is stored in them.
async fn configured(
    api: &ApiServer,
    cluster: LogicalClusterId,
    resources: &[(&str, &str)],
) -> Result<(usize, Measure), Status> {
    let (mut count, mut all) = (0, Measure::default());
    for (group, resource) in resources {
        let scope = RangeScope::Cluster(cluster, GroupResource::new(*group, *resource));
        let of_one = |stored: &StoredObject| {
            let object = stored.record.to_value(stored.revision).map_err(|e| damaged(&stored.key, &e))?;
            all.add(Measure::of(&object));
            Ok(())
        };
        count += each(api, scope, of_one).await?;
    }
    Ok((count, all))
}

/// How many objects there are in a scope, and how many bytes of them are stored.
///
/// # Errors
/// When the store fails.
pub(super) async fn stored(api: &ApiServer, scope: RangeScope) -> Result<(usize, usize), Status> {
    let mut bytes = 0;
    let of_one = |stored: &StoredObject| {
        bytes += stored.record.body().len();
        Ok(())
    };
    let count = each(api, scope, of_one).await?;
    Ok((count, bytes))
}

/// Looks at the objects of a scope as they are stored now, of which one slice is held; how many there are, with those that are
/// damaged: others may be written beside them.
async fn each(
    api: &ApiServer,
    scope: RangeScope,
    mut look: impl FnMut(&StoredObject) -> Result<(), Status> + Send,
) -> Result<usize, Status> {
    let (mut slice, mut count) = (RangeRequest::slices(scope).past_damage(), 0);
    loop {
        let page = api.store.range(slice.clone()).await.map_err(|e| status_for(&e))?;
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
    fn objects_have_room_in_common() {
        const ROOM: usize = 100_000;
        let of = |bytes: usize| json!({"metadata": {"name": "x".repeat(bytes)}});
        let (small, large) = (of(1000), of(2000));
        for (case, stored, new, old, expected) in [
            ("there is room", 0, &large, None, false),
            ("there is none left", ROOM - 500, &small, None, true),
            ("one that grows may take all there is", ROOM - 1100, &large, Some(&small), false),
            ("but no more", ROOM - 500, &large, Some(&small), true),
            ("one that shrinks always may", 2 * ROOM, &small, Some(&large), false),
        ] {
            assert_eq!(Growth::of(new, old).exceeds(stored, ROOM), expected, "{case}");
        }
    }
}
