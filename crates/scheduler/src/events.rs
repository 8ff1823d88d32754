//! Events about placements, for `kubectl describe`: one object per reason, overwritten when it happens again.

use portolan_store::{Expect, Write};
use portolan_types::{GroupResource, ObjectKey, Record, Seams, object};
use serde_json::{Value, json};

use crate::{commit::Change, gather::api_version};

/// Most of an object's name that goes into the Event's.
const MAX_NAME: usize = 180;

/// The Event of a change that a person should hear of: no place found, a move, an end. A first placement is no news.
pub(crate) fn event(seams: &Seams, change: &Change, before: Option<&Value>, after: &Value) -> Option<Write> {
    change.decision?;
    let placed = |placement: Option<&Value>| {
        let conditions = placement?.pointer("/status/conditions")?.as_array()?;
        let placed = conditions.iter().find(|c| c["type"] == "Placed")?;
        Some((placed["reason"].as_str()?.to_owned(), placed["message"].as_str()?.to_owned()))
    };
    let (reason, message) = placed(Some(after))?;
    let first = change.previous.clusters.is_empty() && matches!(reason.as_str(), "Placed" | "Follows");
    if first || placed(before).is_some_and(|(last, _)| last == reason) {
        return None;
    }
    let kind = if matches!(reason.as_str(), "Placed" | "Moving" | "Stopped") { "Normal" } else { "Warning" };
    let (api_version, object_kind) = api_version(change.object);
    let (uid, now) = (object::meta_text(change.object, "uid"), seams.now_text());
    let short: String = object::name(change.object).chars().take(MAX_NAME).collect();
    let name = format!("{short}.placement-{}", reason.to_lowercase());
    let namespace = object::namespace(change.object);
    let event = json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": name, "namespace": namespace, "uid": seams.uid().as_str(), "creationTimestamp": now,
            "ownerReferences": [{"apiVersion": api_version, "kind": object_kind, "name": object::name(change.object), "uid": uid}],
        },
        "involvedObject": {
            "apiVersion": api_version, "kind": object_kind, "namespace": namespace, "name": object::name(change.object), "uid": uid,
        },
        "reason": reason, "message": message, "type": kind, "count": 1, "firstTimestamp": now, "lastTimestamp": now,
        "source": {"component": "portolan-scheduler"}, "reportingComponent": "portolan-scheduler", "reportingInstance": "",
    });
    let key = ObjectKey { resource: GroupResource::new("", "events"), name: name.parse().ok()?, ..change.key.clone() };
    Some(Write { key, expect: Expect::Anything, record: Some(Record::of(&event)) })
}
