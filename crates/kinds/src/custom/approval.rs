//! Approval of definitions in groups of the Kubernetes community.

use portolan_types::object;
use serde_json::Value;

/// Annotation that holds the approval.
pub const APPROVAL: &str = "api-approved.kubernetes.io";
const RULES: &str = "see https://github.com/kubernetes/enhancements/pull/1111";

/// Approval of a definition in a protected group, for conditions and errors.
pub struct Approval {
    pub reason: &'static str,
    pub message: String,
}

const GIVEN: &str = "ApprovedAnnotation";
const WAIVED: &str = "UnapprovedAnnotation";

impl Approval {
    pub fn is_given(&self) -> bool {
        self.reason == GIVEN
    }

    pub fn is_given_or_waived(&self) -> bool {
        matches!(self.reason, GIVEN | WAIVED)
    }
}

/// Returns the approval of a definition; `None` for groups that need none.
pub fn approval(crd: &Value) -> Option<Approval> {
    let group = crd.pointer("/spec/group").and_then(Value::as_str).unwrap_or_default();
    let is_protected =
        ["k8s.io", "kubernetes.io"].iter().any(|own| group == *own || group.ends_with(&format!(".{own}")));
    is_protected.then(|| approval_in_any_group(crd)).flatten()
}

/// Returns the approval of a definition of any group.
pub fn approval_in_any_group(crd: &Value) -> Option<Approval> {
    let text = object::annotation(crd, APPROVAL).unwrap_or_default();
    let state = |reason, message: String| Some(Approval { reason, message });
    if text.is_empty() {
        let message = format!("protected groups must have approval annotation {APPROVAL:?}, {RULES}");
        return state("MissingAnnotation", message);
    }
    if text.starts_with("unapproved") {
        return state(WAIVED, format!("not approved: {text:?}"));
    }
    let is_url = text.split_once("://").is_some_and(|(scheme, rest)| {
        !scheme.is_empty()
            && scheme.bytes().all(|b| b.is_ascii_alphanumeric())
            && !rest.starts_with('/')
            && !rest.is_empty()
    });
    if is_url {
        return state(GIVEN, format!("approved in {text}"));
    }
    let message = format!(
        "protected groups must have approval annotation {APPROVAL:?} with either a URL or a reason starting with \"unapproved\", {RULES}"
    );
    state("InvalidAnnotation", message)
}
