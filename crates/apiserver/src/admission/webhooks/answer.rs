//! AdmissionReviews: what webhooks are asked, and what they answer.

use base64::{Engine as _, engine::general_purpose::STANDARD};
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

/// The answer, its form checked.
///
/// # Errors
/// What is wrong with it, in upstream's words.
pub(super) fn verdict(version: Version, uid: &str, mutates: bool, review: &Value) -> Result<Verdict, String> {
    let response = review.get("response").filter(|response| response.is_object());
    let response = response.ok_or("webhook response was absent")?;
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let patch = match response.get("patch").and_then(Value::as_str) {
        None => Vec::new(),
        Some(encoded) => STANDARD.decode(encoded).map_err(|e| format!("response.patch is not base64: {e}"))?,
    };
    if version == Version::V1 {
        check_v1(uid, review, response, (mutates, &patch), text)?;
    }
    let list = response.get("warnings").and_then(Value::as_array).into_iter().flatten();
    Ok(Verdict {
        allowed: response.get("allowed") == Some(&Value::Bool(true)),
        patch: if mutates { patch } else { Vec::new() },
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
        (true, false, Some(patch_type)) if patch_type != "JSONPatch" => {
            return Err(format!("unsupported patch type {patch_type}"));
        }
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
            let verdict = verdict(Version::V1, "u", mutates, &review).map(|verdict| verdict.allowed);
            assert_eq!(verdict, expected.map_err(str::to_owned), "{case}");
        }
        let old = json!({"response": {"allowed": true, "patch": patch}});
        assert!(verdict(Version::V1Beta1, "u", true, &old).unwrap().allowed, "v1beta1 is not held to much");
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
