//! Conversion between core events and `events.k8s.io/v1` events, which differ in names only.

use super::{Fields, rename};

/// Name in `events.k8s.io/v1`, name in core/v1.
const NAMES: [(&str, &str); 7] = [
    ("note", "message"),
    ("regarding", "involvedObject"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
];

pub(super) fn to_core(fields: &mut Fields) {
    NAMES.iter().for_each(|(new, core)| rename(fields, new, core));
    for name in ["reportingComponent", "reportingInstance"] {
        fields.entry(name).or_insert_with(|| "".into());
    }
}

pub(super) fn from_core(fields: &mut Fields) {
    NAMES.iter().for_each(|(new, core)| rename(fields, core, new));
    // Core events always have these two, the others leave them out when they are empty.
    for name in ["reportingController", "reportingInstance"] {
        if fields.get(name).and_then(serde_json::Value::as_str) == Some("") {
            fields.remove(name);
        }
    }
}
