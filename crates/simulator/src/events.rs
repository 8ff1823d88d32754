//! Events of the simulated components, for `kubectl describe` and `kubectl get events`.

use portolan_controllers::{Plane, PlaneError};
use portolan_types::{GroupVersionKind, ObjectKey, event_draft::EventDraft, object};
use serde_json::Value;

/// Writes an Event about `object`. When it happens again, the same Event counts on.
pub(crate) async fn write(
    plane: &Plane,
    key: &ObjectKey,
    object: &Value,
    note: EventDraft<'_>,
) -> Result<(), PlaneError> {
    let Some((event_key, mut event)) = note.about(plane.seams(), key, object) else { return Ok(()) };
    let kind = plane.table().kind(&GroupVersionKind::new("", "v1", "Event")).expect("the table has core/v1");
    let again = |known: &mut Value| {
        let count = known.get("count").and_then(Value::as_i64).unwrap_or(1);
        known["count"] = count.saturating_add(1).into();
        for field in ["message", "lastTimestamp", "involvedObject"] {
            known[field] = event[field].clone();
        }
        true
    };
    if plane.force(&event_key, again).await?.is_none() {
        object::metadata_mut(&mut event).remove("uid");
        plane.create(kind, event_key.cluster, event).await?;
    }
    Ok(())
}
