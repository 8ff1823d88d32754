//! Part of one copy of a Job whose copies share its completions.

use portolan_types::{
    placement::{PlacedCopy, PlacementRecord},
    upstream::UpstreamObject,
};
use serde_json::Value;

use super::CopyContext;

/// Part of a copy.
pub(super) struct JobShare {
    /// Completions of the copy; `None` for a Job without completions.
    completions: Option<i64>,
    /// True once another part has failed: the Job has failed, and its other pods end.
    is_failed: bool,
}

/// Returns the part of a copy; `None` if the copies do not share completions. The pods that run at once are its
/// replicas.
pub(super) fn share(record: &PlacementRecord, context: &CopyContext, upstream: &UpstreamObject) -> Option<JobShare> {
    is_shared(upstream, context.entry).then(|| JobShare {
        completions: record.completions.get(context.physical).copied(),
        is_failed: is_failing(&upstream.object),
    })
}

fn is_shared(upstream: &UpstreamObject, entry: &PlacedCopy) -> bool {
    (&*upstream.kind.group, &*upstream.kind.kind) == ("batch", "Job") && entry.replicas.is_some()
}

fn is_failing(job: &Value) -> bool {
    let conditions = job.pointer("/status/conditions").and_then(Value::as_array);
    conditions
        .into_iter()
        .flatten()
        .any(|one| one["status"] == "True" && matches!(one["type"].as_str(), Some("FailureTarget" | "Failed")))
}

/// Returns true for a field that no policy yields to the physical cluster while copies share completions.
pub(super) fn is_owned(path: &str) -> bool {
    let path = path.trim_start_matches('.');
    matches!(path, "spec" | "spec.completions" | "spec.parallelism" | "spec.suspend")
}

impl JobShare {
    /// Sets the completions, and suspends the part of a Job that has failed elsewhere.
    pub(super) fn apply(&self, copy: &mut Value) {
        let Some(spec) = copy.get_mut("spec").and_then(Value::as_object_mut) else { return };
        if let Some(completions) = self.completions {
            spec.insert("completions".into(), completions.into());
        }
        if self.is_failed {
            spec.insert("suspend".into(), true.into());
        }
    }
}
