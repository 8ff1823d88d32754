//! AdmissionReviews: the requests to webhooks and their responses.

#[cfg(test)]
mod tests;

use base64::{DecodeError, Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use portolan_types::{Status, json_patch::go_word};
use serde_json::{Map, Value};

use super::{
    super::{
        matching::Invocation,
        review::{self, ObjectStates},
    },
    config::WebhookConfig,
};
use crate::hooks::AdmissionRequest;

const GROUP: &str = "admission.k8s.io";

/// Version of AdmissionReview that both sides support.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReviewVersion {
    V1,
    V1Beta1,
}

impl ReviewVersion {
    /// Returns the first version of the webhook that is supported.
    pub(super) fn of(webhook: &WebhookConfig) -> Option<Self> {
        webhook.versions.iter().find_map(|version| match version.as_str() {
            "v1" => Some(Self::V1),
            "v1beta1" => Some(Self::V1Beta1),
            _ => None,
        })
    }

    fn text(self) -> &'static str {
        match self {
            Self::V1 => "v1",
            Self::V1Beta1 => "v1beta1",
        }
    }
}

/// Response of a webhook, validated.
#[derive(Debug, Default)]
pub(super) struct WebhookDecision {
    pub(super) allowed: bool,
    /// JSON patch; empty for none.
    pub(super) patch: Vec<u8>,
    /// Patch type other than JSON patch.
    pub(super) other_patch: Option<String>,
    pub(super) result: Value,
    pub(super) warnings: Vec<String>,
    pub(super) audit_annotations: Map<String, Value>,
}

/// Object and old object in JSON, shared by all reviews in one version.
#[derive(Clone)]
pub(super) struct EncodedStates {
    object: Bytes,
    old: Bytes,
}

impl EncodedStates {
    pub(super) fn of(ObjectStates { object, old }: &ObjectStates<'_>) -> Self {
        let text = |state: &Value| Bytes::from(state.to_string());
        Self { object: text(object), old: text(old) }
    }
}

/// Request that is reviewed.
#[derive(Clone, Copy)]
pub(super) struct ReviewSubject<'a> {
    pub(super) request: &'a AdmissionRequest<'a>,
    pub(super) invocation: &'a Invocation,
    /// Object; for deletions the old one.
    pub(super) object: Option<&'a Value>,
}

/// Encodes the review request about `object`, in parts.
pub(super) fn question(
    version: ReviewVersion,
    uid: &str,
    subject: ReviewSubject<'_>,
    texts: &EncodedStates,
) -> Vec<Bytes> {
    let ReviewSubject { request, invocation, object } = subject;
    let mut asked = review::request(request, invocation, object);
    asked["uid"] = uid.into();
    let api_version = format!("{GROUP}/{}", version.text());
    let asked = asked.to_string();
    let open = asked.strip_suffix('}').expect("an object ends with a brace");
    let head = format!(r#"{{"kind":"AdmissionReview","apiVersion":"{api_version}","request":{open},"object":"#);
    vec![head.into(), texts.object.clone(), Bytes::from_static(br#","oldObject":"#), texts.old.clone(), "}}".into()]
}

/// Response whose fields have the types that they have in Go.
#[derive(Clone, Copy)]
pub(super) struct CheckedReview<'a>(&'a Value);

impl<'a> CheckedReview<'a> {
    /// # Errors
    /// The error of Go's decoder for the first field of another type; the webhook then counts as failed.
    pub(super) fn of(review: &'a Value) -> Result<Self, String> {
        if !review.is_object() {
            return Err(format!("json: cannot unmarshal {} into Go value of type v1.AdmissionReview", go_word(review)));
        }
        let Some(response) = review.get("response").filter(|response| !response.is_null()) else {
            return Ok(Self(review));
        };
        let Some(fields) = response.as_object() else {
            return Err(mistyped(response, "AdmissionReview.response", "v1.AdmissionResponse"));
        };
        fields.iter().try_for_each(|(name, value)| check_field(name, value))?;
        Ok(Self(review))
    }
}

/// Checks one field of a response. Null is the same as absent.
fn check_field(name: &str, value: &Value) -> Result<(), String> {
    let at = |field: &str| format!("AdmissionResponse.response.{field}");
    let (fits, go_type) = match name {
        "uid" => (value.is_string(), "types.UID"),
        "allowed" => (value.is_boolean(), "bool"),
        "patch" => match value.as_str() {
            Some(encoded) => return decoded(encoded).map(drop),
            None => (false, "[]uint8"),
        },
        "patchType" => (value.is_string(), "v1.PatchType"),
        "warnings" | "auditAnnotations" => {
            let (texts, go_type): (Option<Vec<&Value>>, _) = match name {
                "warnings" => (value.as_array().map(|list| list.iter().collect()), "[]string"),
                _ => (value.as_object().map(|map| map.values().collect()), "map[string]string"),
            };
            match texts.iter().flatten().find(|text| !text.is_string() && !text.is_null()) {
                Some(other) => return Err(mistyped(other, &at(name), "string")),
                None => (texts.is_some(), go_type),
            }
        }
        "status" => match value.as_object() {
            Some(status) => return status.iter().try_for_each(|(name, value)| check_status(name, value)),
            None => (false, "v1.Status"),
        },
        _ => return Ok(()),
    };
    if fits || value.is_null() { Ok(()) } else { Err(mistyped(value, &at(name), go_type)) }
}

fn check_status(name: &str, value: &Value) -> Result<(), String> {
    let (fits, go_type) = match name {
        "status" | "message" => (value.is_string(), "string"),
        "reason" => (value.is_string(), "v1.StatusReason"),
        "code" => (value.as_i64().is_some_and(|code| i32::try_from(code).is_ok()), "int32"),
        "details" => (value.is_object(), "v1.StatusDetails"),
        _ => return Ok(()),
    };
    let at = format!("Status.response.status.{name}");
    if fits || value.is_null() { Ok(()) } else { Err(mistyped(value, &at, go_type)) }
}

fn mistyped(value: &Value, at: &str, go_type: &str) -> String {
    let converted = match value {
        Value::Number(number) => format!("number {number}"),
        other => go_word(other).to_owned(),
    };
    format!("json: cannot unmarshal {converted} into Go struct field {at} of type {go_type}")
}

fn decoded(encoded: &str) -> Result<Vec<u8>, String> {
    STANDARD.decode(encoded).map_err(|why| {
        let at = match why {
            DecodeError::InvalidByte(at, _) | DecodeError::InvalidLastSymbol(at, _) => at,
            _ => encoded.len(),
        };
        format!("illegal base64 data at input byte {at}")
    })
}

/// Validates the response.
///
/// # Errors
/// The violation, in kube-apiserver's words.
pub(super) fn verdict(
    version: ReviewVersion,
    uid: &str,
    mutates: bool,
    CheckedReview(review): CheckedReview<'_>,
) -> Result<WebhookDecision, String> {
    let response = review.get("response").filter(|response| response.is_object());
    let response = response.ok_or("webhook response was absent")?;
    let patch = response.get("patch").and_then(Value::as_str).map(decoded).transpose()?.unwrap_or_default();
    if version == ReviewVersion::V1 {
        check_v1_type(uid, review, response)?;
        check_v1_patch(response, mutates, !patch.is_empty())?;
    }
    let list = response.get("warnings").and_then(Value::as_array).into_iter().flatten();
    Ok(WebhookDecision {
        allowed: response.get("allowed") == Some(&Value::Bool(true)),
        patch: if mutates { patch } else { Vec::new() },
        other_patch: (version == ReviewVersion::V1)
            .then(|| text(response, "patchType").to_owned())
            .filter(|patch_type| !patch_type.is_empty() && patch_type != "JSONPatch"),
        result: response.get("status").cloned().unwrap_or_default(),
        warnings: list.filter_map(Value::as_str).map(str::to_owned).collect(),
        audit_annotations: response.get("auditAnnotations").and_then(Value::as_object).cloned().unwrap_or_default(),
    })
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn check_v1_type(uid: &str, review: &Value, response: &Value) -> Result<(), String> {
    let answered = text(response, "uid");
    if answered != uid {
        return Err(format!("expected response.uid={uid:?}, got {answered:?}"));
    }
    let (api_version, kind) = (text(review, "apiVersion"), text(review, "kind"));
    if api_version != "admission.k8s.io/v1" || kind != "AdmissionReview" {
        return Err(format!(
            "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got {api_version}, Kind={kind}"
        ));
    }
    Ok(())
}

fn check_v1_patch(response: &Value, mutates: bool, is_patched: bool) -> Result<(), String> {
    let patch_type = response.get("patchType").filter(|patch_type| !patch_type.is_null());
    let why = match (mutates, is_patched, patch_type) {
        (true, true, None) => "webhook returned response.patch but not response.patchType",
        (true, false, Some(_)) => "webhook returned response.patchType but not response.patch",
        (true, true, Some(patch_type)) if patch_type == "" => "webhook returned invalid response.patchType of \"\"",
        (false, true, _) => "validating webhook may not return response.patch",
        (false, false, Some(_)) => "validating webhook may not return response.patchType",
        (true, ..) | (false, false, None) => return Ok(()),
    };
    Err(why.to_owned())
}

/// Builds the refusal that the client gets.
pub(super) fn refusal(webhook: &str, result: &Value) -> Status {
    let text = |key: &str| result.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    let denied = format!("admission webhook {webhook:?} denied the request");
    let message = match text("message").or_else(|| text("reason")) {
        Some(why) => format!("{denied}: {why}"),
        None => format!("{denied} without explanation"),
    };
    let code = result.get("code").and_then(Value::as_u64).and_then(|code| u16::try_from(code).ok());
    // A refusal is never a success code.
    let code = code.filter(|code| (400..600).contains(code)).unwrap_or(400);
    let details = result.get("details").and_then(|details| serde_json::from_value(details.clone()).ok());
    Status::foreign(code, text("reason").unwrap_or_default(), message, details)
}
