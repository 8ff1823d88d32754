//! AdmissionReviews: what webhooks are asked, and what they answer.

use base64::{DecodeError, Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use portolan_types::Status;
use serde_json::{Map, Value};

use super::{
    super::{
        Request,
        matching::Invocation,
        review::{self, States},
    },
    config::Webhook,
};

const GROUP: &str = "admission.k8s.io";

/// A version of AdmissionReview that both sides know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    V1,
    V1Beta1,
}

impl Version {
    /// The first that the webhook names and we know.
    pub(super) fn of(webhook: &Webhook) -> Option<Self> {
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

/// What a webhook answered, its form checked.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    pub(super) allowed: bool,
    /// A JSON patch, empty for none.
    pub(super) patch: Vec<u8>,
    /// The type of a patch that is no JSON patch.
    pub(super) other_patch: Option<String>,
    pub(super) result: Value,
    pub(super) warnings: Vec<String>,
    pub(super) audit_annotations: Map<String, Value>,
}

/// An object and its old state in JSON, which all questions in one version share.
#[derive(Clone)]
pub(super) struct Texts {
    object: Bytes,
    old: Bytes,
}

impl Texts {
    pub(super) fn of(States { object, old }: &States<'_>) -> Self {
        let text = |state: &Value| Bytes::from(state.to_string());
        Self { object: text(object), old: text(old) }
    }
}

/// The question about `object`, in parts.
pub(super) fn question(
    version: Version,
    uid: &str,
    request: &Request<'_>,
    (invocation, object): (&Invocation, Option<&Value>),
    texts: &Texts,
) -> Vec<Bytes> {
    let mut asked = review::request(request, invocation, object);
    asked["uid"] = uid.into();
    let api_version = format!("{GROUP}/{}", version.text());
    let asked = asked.to_string();
    let open = asked.strip_suffix('}').expect("an object ends with a brace");
    let head = format!(r#"{{"kind":"AdmissionReview","apiVersion":"{api_version}","request":{open},"object":"#);
    vec![head.into(), texts.object.clone(), Bytes::from_static(br#","oldObject":"#), texts.old.clone(), "}}".into()]
}

/// An answer of which every field has the type that it has in Go.
#[derive(Clone, Copy)]
pub(super) struct Typed<'a>(&'a Value);

impl<'a> Typed<'a> {
    /// # Errors
    /// What Go's decoder says of the first field that has another type: the webhook has given no answer then.
    pub(super) fn of(review: &'a Value) -> Result<Self, String> {
        if !review.is_object() {
            return Err(format!("json: cannot unmarshal {} into Go value of type v1.AdmissionReview", type_of(review)));
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

/// One field of a response. Null stands for nothing everywhere.
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
    let shown = match value {
        Value::Number(number) => format!("number {number}"),
        other => type_of(other).to_owned(),
    };
    format!("json: cannot unmarshal {shown} into Go struct field {at} of type {go_type}")
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
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

/// The answer, its form checked.
///
/// # Errors
/// What is wrong with it, in upstream's words.
pub(super) fn verdict(version: Version, uid: &str, mutates: bool, Typed(review): Typed<'_>) -> Result<Verdict, String> {
    let response = review.get("response").filter(|response| response.is_object());
    let response = response.ok_or("webhook response was absent")?;
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let patch = response.get("patch").and_then(Value::as_str).map(decoded).transpose()?.unwrap_or_default();
    if version == Version::V1 {
        check_v1(uid, review, response, (mutates, &patch), text)?;
    }
    let list = response.get("warnings").and_then(Value::as_array).into_iter().flatten();
    Ok(Verdict {
        allowed: response.get("allowed") == Some(&Value::Bool(true)),
        patch: if mutates { patch } else { Vec::new() },
        other_patch: (version == Version::V1)
            .then(|| text(response, "patchType"))
            .filter(|patch_type| !patch_type.is_empty() && patch_type != "JSONPatch"),
        result: response.get("status").cloned().unwrap_or_default(),
        warnings: list.filter_map(Value::as_str).map(str::to_owned).collect(),
        audit_annotations: response.get("auditAnnotations").and_then(Value::as_object).cloned().unwrap_or_default(),
    })
}

fn check_v1(
    uid: &str,
    review: &Value,
    response: &Value,
    (mutates, patch): (bool, &[u8]),
    text: impl Fn(&Value, &str) -> String,
) -> Result<(), String> {
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
    let patch_type = response.get("patchType").filter(|patch_type| !patch_type.is_null());
    let why = match (mutates, patch.is_empty(), patch_type) {
        (true, false, None) => "webhook returned response.patch but not response.patchType",
        (true, true, Some(_)) => "webhook returned response.patchType but not response.patch",
        (true, false, Some(patch_type)) if patch_type == "" => "webhook returned invalid response.patchType of \"\"",
        (false, false, _) => "validating webhook may not return response.patch",
        (false, true, Some(_)) => "validating webhook may not return response.patchType",
        (true, ..) | (false, true, None) => return Ok(()),
    };
    Err(why.to_owned())
}

/// The refusal that a client gets.
pub(super) fn refusal(webhook: &str, result: &Value) -> Status {
    let text = |key: &str| result.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    let denied = format!("admission webhook {webhook:?} denied the request");
    let message = match text("message").or_else(|| text("reason")) {
        Some(why) => format!("{denied}: {why}"),
        None => format!("{denied} without explanation"),
    };
    let code = result.get("code").and_then(Value::as_u64).and_then(|code| u16::try_from(code).ok());
    // A refusal is never a success.
    let code = code.filter(|code| (400..600).contains(code)).unwrap_or(400);
    let details = result.get("details").and_then(|details| serde_json::from_value(details.clone()).ok());
    Status::foreign(code, text("reason").unwrap_or_default(), message, details)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn answers_are_held_to_their_form() {
        let v1 = |response: Value| json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
        let patch = STANDARD.encode("[]");
        for (case, mutates, review, expected) in [
            ("a yes", true, v1(json!({"uid": "u", "allowed": true})), Ok(true)),
            ("a no", false, v1(json!({"uid": "u", "allowed": false})), Ok(false)),
            ("nothing", true, json!({}), Err("webhook response was absent")),
            ("another's answer", true, v1(json!({"uid": "x"})), Err(r#"expected response.uid="u", got "x""#)),
            (
                "another version",
                true,
                json!({"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview", "response": {"uid": "u"}}),
                Err(
                    "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got admission.k8s.io/v1beta1, Kind=AdmissionReview",
                ),
            ),
            (
                "a patch of no type",
                true,
                v1(json!({"uid": "u", "patch": patch})),
                Err("webhook returned response.patch but not response.patchType"),
            ),
            (
                "a type of no patch",
                true,
                v1(json!({"uid": "u", "patchType": "JSONPatch"})),
                Err("webhook returned response.patchType but not response.patch"),
            ),
            (
                "a patch that validates",
                false,
                v1(json!({"uid": "u", "patch": patch, "patchType": "JSONPatch"})),
                Err("validating webhook may not return response.patch"),
            ),
            (
                "a patch",
                true,
                v1(json!({"uid": "u", "allowed": true, "patch": patch, "patchType": "JSONPatch"})),
                Ok(true),
            ),
        ] {
            let review = Typed::of(&review).unwrap();
            let verdict = verdict(Version::V1, "u", mutates, review).map(|verdict| verdict.allowed);
            assert_eq!(verdict, expected.map_err(str::to_owned), "{case}");
        }
        let old = json!({"response": {"allowed": true, "patch": patch}});
        assert!(
            verdict(Version::V1Beta1, "u", true, Typed::of(&old).unwrap()).unwrap().allowed,
            "v1beta1 is not held to much"
        );
    }

    #[test]
    fn fields_have_the_types_that_they_have_in_go() {
        for (response, expected) in [
            (json!(null), Ok(())),
            (json!({"allowed": null, "warnings": null, "unknown": 5}), Ok(())),
            (json!({"status": {"code": 403, "details": {}}, "warnings": ["a", null]}), Ok(())),
            (json!("yes"), Err("string into Go struct field AdmissionReview.response of type v1.AdmissionResponse")),
            (
                json!({"allowed": "yes"}),
                Err("string into Go struct field AdmissionResponse.response.allowed of type bool"),
            ),
            (
                json!({"allowed": 1}),
                Err("number 1 into Go struct field AdmissionResponse.response.allowed of type bool"),
            ),
            (json!({"uid": {}}), Err("object into Go struct field AdmissionResponse.response.uid of type types.UID")),
            (json!({"patch": [1]}), Err("array into Go struct field AdmissionResponse.response.patch of type []uint8")),
            (
                json!({"warnings": "w"}),
                Err("string into Go struct field AdmissionResponse.response.warnings of type []string"),
            ),
            (
                json!({"warnings": [true]}),
                Err("bool into Go struct field AdmissionResponse.response.warnings of type string"),
            ),
            (
                json!({"auditAnnotations": {"a": 1.5}}),
                Err("number 1.5 into Go struct field AdmissionResponse.response.auditAnnotations of type string"),
            ),
            (
                json!({"status": "no"}),
                Err("string into Go struct field AdmissionResponse.response.status of type v1.Status"),
            ),
            (
                json!({"status": {"code": "403"}}),
                Err("string into Go struct field Status.response.status.code of type int32"),
            ),
        ] {
            let review = json!({"response": response});
            let got = Typed::of(&review).map(drop);
            assert_eq!(got, expected.map_err(|why| format!("json: cannot unmarshal {why}")), "{review}");
        }
        let patch = json!({"response": {"patch": "W1*="}});
        assert_eq!(Typed::of(&patch).map(drop), Err("illegal base64 data at input byte 2".to_owned()));
    }

    #[test]
    fn refusals_say_who_refused() {
        for (result, code, reason, message) in [
            (json!(null), 400, json!(null), r#"admission webhook "w" denied the request without explanation"#),
            (
                json!({"message": "no", "code": 403, "reason": "Forbidden"}),
                403,
                json!("Forbidden"),
                r#"admission webhook "w" denied the request: no"#,
            ),
            (
                json!({"reason": "Odd", "code": 418}),
                418,
                json!("Odd"),
                r#"admission webhook "w" denied the request: Odd"#,
            ),
            (
                json!({"message": "no", "code": 200}),
                400,
                json!(null),
                r#"admission webhook "w" denied the request: no"#,
            ),
        ] {
            let status = refusal("w", &result).to_value();
            assert_eq!(
                (&status["code"], &status["reason"], &status["message"]),
                (&json!(code), &reason, &json!(message))
            );
        }
    }
}
