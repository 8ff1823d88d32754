//! Projection of a physical cluster's Events upstream.

use portolan_types::{NamespaceName, annotations, object, upstream::UpstreamObject};
use serde_json::{Map, Value, json};

/// Longest text of an Event, as Kubernetes limits notes.
const MAX_TEXT: usize = 1024;
/// Fields that are texts.
const TEXTS: [&str; 9] = [
    "action",
    "eventTime",
    "firstTimestamp",
    "lastTimestamp",
    "message",
    "reason",
    "reportingComponent",
    "reportingInstance",
    "type",
];

/// The Event upstream for one downstream about `subject`; `None` if Kubernetes would not accept it. It is an ordinary
/// object without a record: it expires by its age.
pub fn event(downstream: &Value, namespace: &NamespaceName, subject: &UpstreamObject, cluster: &str) -> Option<Value> {
    let text = |value: &Value| value.as_str().map(|text| crate::status::bounds_to(text, MAX_TEXT));
    let mut shown = Map::new();
    for field in TEXTS {
        if let Some(text) = text(&downstream[field]) {
            shown.insert(field.into(), text.into());
        }
    }
    if !matches!(downstream["type"].as_str(), Some("Normal" | "Warning")) {
        return None;
    }
    if let Some(count) = downstream["count"].as_i64() {
        shown.insert("count".into(), count.into());
    }
    for (field, parts) in [("source", ["component", "host"].as_slice()), ("series", &["lastObservedTime"])] {
        let found = parts.iter().filter_map(|part| Some(((*part).to_owned(), text(&downstream[field][*part])?.into())));
        let mut found: Map<String, Value> = found.collect();
        if let Some(count) = downstream[field]["count"].as_i64() {
            found.insert("count".into(), count.into());
        }
        if !found.is_empty() {
            shown.insert(field.into(), Value::Object(found));
        }
    }
    let mut about = json!({
        "apiVersion": subject.kind.group_version().to_string(),
        "kind": &*subject.kind.kind,
        "namespace": namespace.as_str(),
        "name": object::name(&subject.object),
        "uid": object::meta_text(&subject.object, "uid"),
    });
    if let Some(path) = text(&downstream["involvedObject"]["fieldPath"]) {
        about["fieldPath"] = path.into();
    }
    shown.insert("apiVersion".into(), "v1".into());
    shown.insert("kind".into(), "Event".into());
    shown.insert("involvedObject".into(), about);
    shown.insert(
        "metadata".into(),
        json!({
            "name": object::name(downstream),
            "namespace": namespace.as_str(),
            "labels": {(annotations::PROJECTED_FROM): cluster},
        }),
    );
    Some(Value::Object(shown))
}
