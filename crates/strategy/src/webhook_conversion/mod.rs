//! Reviews of conversion webhooks: the request, and the checks of the response. The permitted changes, and the errors,
//! are those of `apiextensions-apiserver/pkg/apiserver/conversion`.

mod answer;

pub use answer::Answer;

use portolan_gocompat::print::go_type;
use portolan_types::object;
use serde_json::{Map, Value, json};

use portolan_codec::decode;
use portolan_kinds::{
    custom::ConversionWebhook,
    field::{Errors, Path},
};
use portolan_validation::{annotations_at, labels_at};

/// Most bytes that an error shows of a converted object without a kind.
const MAX_SHOWN: usize = 4096;

/// Returns the `apiVersion` of an object.
fn api_version(object: &Value) -> &str {
    object.get("apiVersion").and_then(Value::as_str).unwrap_or_default()
}

fn kind(object: &Value) -> &str {
    object.get("kind").and_then(Value::as_str).unwrap_or_default()
}

/// Conversion request to a webhook: objects of one kind, all in other versions than the desired one.
#[derive(Debug)]
pub struct Review<'a> {
    is_v1: bool,
    uid: String,
    desired: &'a str,
    objects: Vec<Value>,
}

impl<'a> Review<'a> {
    /// Returns the conversion of at least one object.
    ///
    /// # Errors
    /// Fails if the webhook knows no version of reviews that we know.
    pub fn new(
        webhook: &ConversionWebhook,
        uid: String,
        desired: &'a str,
        objects: Vec<Value>,
    ) -> Result<Self, String> {
        let known = webhook.review_versions.iter().find(|version| matches!(&***version, "v1" | "v1beta1"));
        let version = known.ok_or("no supported conversion review versions")?;
        Ok(Self { is_v1: **version == *"v1", uid, desired, objects })
    }

    /// Returns the body of the request.
    pub fn question(&self) -> Value {
        json!({
            "kind": "ConversionReview",
            "apiVersion": if self.is_v1 { "apiextensions.k8s.io/v1" } else { "apiextensions.k8s.io/v1beta1" },
            "request": {"uid": self.uid, "desiredAPIVersion": self.desired, "objects": self.objects},
        })
    }

    /// Returns the error message for clients.
    pub fn failed(&self, why: &str) -> String {
        format!("conversion webhook for {} failed: {why}", self.subject())
    }

    /// Returns the objects of the answer, in their order, with their old metadata except for labels and annotations.
    ///
    /// # Errors
    /// The error in the answer, as clients see it.
    pub fn answered(self, answer: &Answer<'_>) -> Result<Vec<Value>, String> {
        let review = answer.review(if self.is_v1 { "v1" } else { "v1beta1" });
        let converted = review.and_then(|mut review| self.converted(&mut review)).map_err(|why| self.failed(&why))?;
        if converted.len() != self.objects.len() {
            let (returned, expected) = (converted.len(), self.objects.len());
            return Err(format!(
                "conversion webhook for {} returned {returned} objects, expected {expected}",
                self.subject()
            ));
        }
        let subject = self.subject();
        let checked = self.objects.iter().zip(converted).enumerate().map(|(at, (original, converted))| {
            check_kind(&converted)?;
            checked(original, converted, self.desired, at)
                .map_err(|why| format!("conversion webhook for {subject} returned {why}"))
        });
        checked.collect()
    }

    /// Returns the first object's version and kind, as Go prints them.
    fn subject(&self) -> String {
        let first = self.objects.first().unwrap_or(&Value::Null);
        format!("{}, Kind={}", api_version(first), kind(first))
    }

    fn converted(&self, answer: &mut Value) -> Result<Vec<Value>, String> {
        if self.is_v1 && (api_version(answer), kind(answer)) != ("apiextensions.k8s.io/v1", "ConversionReview") {
            let expected = "expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview";
            // Formats a version without a group as Go does.
            let slash = if api_version(answer).contains('/') { "" } else { "/" };
            return Err(format!("{expected}, got {slash}{}, Kind={}", api_version(answer), kind(answer)));
        }
        let response = answer.get_mut("response").filter(|response| !response.is_null());
        let response = response.ok_or("no response provided")?;
        let text = |pointer: &str| response.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        if self.is_v1 && text("/uid") != self.uid {
            return Err(format!("expected response.uid={:?}, got {:?}", self.uid, text("/uid")));
        }
        match (text("/result/status"), text("/result/message")) {
            ("Success", _) => {}
            (status, "") => return Err(format!("response.result.status was '{status}', not 'Success'")),
            (_, message) => return Err(message.to_owned()),
        }
        match response.get_mut("convertedObjects").map(Value::take) {
            Some(Value::Array(converted)) => Ok(converted),
            _ => Ok(Vec::new()),
        }
    }
}

/// # Errors
/// Go's error for an object without a kind.
fn check_kind(converted: &Value) -> Result<(), String> {
    // If the version has too many parts, the kind is empty too.
    if !kind(converted).is_empty() && api_version(converted).matches('/').count() < 2 {
        return Ok(());
    }
    let shown = converted.to_string();
    Err(decode::missing_kind(&shown[..shown.floor_char_boundary(MAX_SHOWN)]))
}

/// # Errors
/// The forbidden change, as the end of a sentence.
fn checked(original: &Value, mut converted: Value, desired: &str, at: usize) -> Result<Value, String> {
    let invalid = |what: &str, expected: &str, got: &str| {
        format!("invalid object at index {at}: invalid {what} (expected {expected}, received {got})")
    };
    if api_version(&converted) != desired {
        return Err(invalid("groupVersion", desired, api_version(&converted)));
    }
    if kind(original) != kind(&converted) {
        return Err(invalid("kind", kind(original), kind(&converted)));
    }
    for (what, key) in [("name", "name"), ("namespace", "namespace"), ("UID", "uid")] {
        let (expected, got) = (object::meta_text(original, key), object::meta_text(&converted, key));
        if expected != got {
            return Err(format!("invalid object: must have the same {what}: {expected} != {got}"));
        }
    }
    let metadata = restored(original, &converted).map_err(|why| format!("invalid metadata: {why}"))?;
    converted["metadata"] = metadata;
    Ok(converted)
}

/// Returns the metadata of the original with the labels and annotations of the converted object.
fn restored(original: &Value, converted: &Value) -> Result<Value, String> {
    let answered = converted.get("metadata").ok_or("missing metadata in converted object")?;
    let answered = answered
        .as_object()
        .ok_or_else(|| format!("invalid metadata of type {} in converted object", go_type(answered)))?;
    let mut fields = object::metadata(original).clone();
    for part in ["labels", "annotations"] {
        match answered.get(part).filter(|own| !own.is_null()) {
            None => drop(fields.remove(part)),
            Some(Value::Object(texts)) => {
                check_texts(part, texts, fields.get(part))?;
                fields.insert(part.into(), Value::Object(texts.clone()));
            }
            Some(other) => {
                return Err(format!("invalid metadata.{part} of type {} in converted object", go_type(other)));
            }
        }
    }
    Ok(Value::Object(fields))
}

fn check_texts(part: &str, texts: &Map<String, Value>, before: Option<&Value>) -> Result<(), String> {
    if let Some((key, value)) = texts.iter().find(|(_, value)| !value.is_string()) {
        return Err(format!("metadata.{part}[{key}] must be a string, but is {} in converted object", go_type(value)));
    }
    if before.and_then(Value::as_object) == Some(texts) {
        return Ok(());
    }
    let (mut errors, texts) = (Errors::default(), Value::Object(texts.clone()));
    match part {
        "labels" => labels_at(&Path::new("metadata.labels"), Some(&texts), &mut errors),
        // The path is kube-apiserver's.
        _ => annotations_at(&Path::new("metadata.annotation"), Some(&texts), &mut errors),
    }
    let found: Vec<String> =
        errors.into_causes().into_iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
    match found.as_slice() {
        [] => Ok(()),
        [one] => Err(one.clone()),
        more => Err(format!("[{}]", more.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_kinds::custom::Conversion;

    fn webhook(versions: &[&str]) -> ConversionWebhook {
        let crd = json!({"spec": {"group": "example.dev", "versions": [{"name": "v1"}, {"name": "v2"}], "conversion": {
            "strategy": "Webhook", "webhook": {"clientConfig": {}, "conversionReviewVersions": versions}}}});
        Conversion::of(&crd).webhook().cloned().unwrap()
    }

    fn widget(version: &str) -> Value {
        json!({"apiVersion": format!("example.dev/{version}"), "kind": "Widget", "spec": {}, "metadata": {
            "name": "a", "namespace": "n", "uid": "u", "labels": {"a": "b"}, "generation": 3}})
    }

    fn review(versions: &[&str], count: usize) -> Review<'static> {
        let objects = vec![widget("v1"); count];
        Review::new(&webhook(versions), "x".into(), "example.dev/v2", objects).unwrap()
    }

    fn converted_objects(review: Review<'_>, answer: &Value) -> Result<Vec<Value>, String> {
        review.answered(&Answer { code: 200, is_json: true, body: answer.to_string().as_bytes() })
    }

    fn answer(objects: &[Value]) -> Value {
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
            "response": {"uid": "x", "result": {"status": "Success"}, "convertedObjects": objects}})
    }

    #[test]
    fn questions_name_the_desired_version() {
        let question = review(&["v7", "v1"], 2).question();
        assert_eq!(question["apiVersion"], "apiextensions.k8s.io/v1");
        assert_eq!(question["request"]["desiredAPIVersion"], "example.dev/v2");
        assert_eq!(question["request"]["objects"], json!([widget("v1"), widget("v1")]));
        let none = Review::new(&webhook(&["v7"]), "x".into(), "example.dev/v2", vec![]);
        assert_eq!(none.unwrap_err(), "no supported conversion review versions");
    }

    #[test]
    fn only_labels_and_annotations_of_metadata_change() {
        let mut converted = widget("v2");
        converted["spec"] = json!({"n": 1});
        converted["metadata"]["generation"] = 9.into();
        converted["metadata"]["finalizers"] = json!(["x"]);
        converted["metadata"]["labels"] = json!({"c": "d"});
        converted["metadata"]["annotations"] = json!({"e": "f"});
        let got = converted_objects(review(&["v1"], 1), &answer(&[converted])).unwrap().remove(0);
        let metadata = json!({"name": "a", "namespace": "n", "uid": "u", "labels": {"c": "d"},
            "annotations": {"e": "f"}, "generation": 3});
        assert_eq!((&got["metadata"], &got["spec"]), (&metadata, &json!({"n": 1})));
        let mut converted = widget("v2");
        converted["metadata"]["labels"] = Value::Null;
        let got = converted_objects(review(&["v1"], 1), &answer(&[converted])).unwrap().remove(0);
        assert!(got["metadata"].get("labels").is_none());
    }

    #[test]
    fn answers_must_match_their_request() {
        let changed = |pointer: &str, value: Value| {
            let mut converted = widget("v2");
            *converted.pointer_mut(pointer).unwrap() = value;
            answer(&[converted])
        };
        let result = |result: Value| {
            let mut answer = answer(&[]);
            answer["response"]["result"] = result;
            answer
        };
        let mut stranger = answer(&[widget("v2")]);
        stranger["response"]["uid"] = "y".into();
        let mut other_kind = answer(&[widget("v2")]);
        other_kind["kind"] = "AdmissionReview".into();
        let mut bare = widget("v2");
        bare.as_object_mut().unwrap().remove("metadata");
        for (case, answer, expected) in [
            ("another's answer", stranger, r#"failed: expected response.uid="x", got "y""#),
            (
                "another review",
                other_kind,
                r#"failed: no kind "AdmissionReview" is registered for version "apiextensions.k8s.io/v1" in scheme "pkg/util/webhook/client.go:71""#,
            ),
            (
                "no response",
                json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview"}),
                "failed: no response provided",
            ),
            ("a failure", result(json!({"status": "Failure", "message": "no"})), "failed: no"),
            ("a mute failure", result(json!({})), "failed: response.result.status was '', not 'Success'"),
            ("too few", answer(&[]), "returned 0 objects, expected 1"),
            (
                "the version it had",
                answer(&[widget("v1")]),
                "returned invalid object at index 0: invalid groupVersion (expected example.dev/v2, received example.dev/v1)",
            ),
            (
                "another kind",
                changed("/kind", json!("Gadget")),
                "returned invalid object at index 0: invalid kind (expected Widget, received Gadget)",
            ),
            (
                "another name",
                changed("/metadata/name", json!("b")),
                "returned invalid object: must have the same name: a != b",
            ),
            (
                "another namespace",
                changed("/metadata/namespace", json!("")),
                "returned invalid object: must have the same namespace: n != ",
            ),
            (
                "another uid",
                changed("/metadata/uid", json!("v")),
                "returned invalid object: must have the same UID: u != v",
            ),
            ("no metadata", answer(&[bare]), "returned invalid object: must have the same name: a != "),
            (
                "labels that are none",
                changed("/metadata/labels", json!([])),
                "returned invalid metadata: invalid metadata.labels of type []interface {} in converted object",
            ),
            (
                "a label that is no text",
                changed("/metadata/labels/a", json!(1)),
                "returned invalid metadata: metadata.labels[a] must be a string, but is int64 in converted object",
            ),
        ] {
            let got = converted_objects(review(&["v1"], 1), &answer).unwrap_err();
            assert_eq!(got, format!("conversion webhook for example.dev/v1, Kind=Widget {expected}"), "{case}");
        }
        let long = changed("/metadata/labels/a", json!("x".repeat(64)));
        let got = converted_objects(review(&["v1"], 1), &long).unwrap_err();
        assert!(got.contains("returned invalid metadata: metadata.labels: Invalid value: "), "{got}");
        let mut old = answer(&[widget("v2")]);
        old["apiVersion"] = "apiextensions.k8s.io/v1beta1".into();
        old["response"]["uid"] = "y".into();
        assert!(converted_objects(review(&["v1beta1"], 1), &old).is_ok(), "v1beta1 is not held to much");
    }

    #[test]
    fn only_versions_of_the_definition_are_converted() {
        let crd = json!({"spec": {"group": "example.dev", "versions": [{"name": "v1"}, {"name": "v2"}]}});
        let conversion = Conversion::of(&crd);
        assert!(conversion.webhook().is_none());
        for (from, to, expected) in [
            ("example.dev/v1", "example.dev/v2", Ok(())),
            ("example.dev/v0", "example.dev/v2", Err("from an invalid group/version: example.dev/v0")),
            ("example.dev/v1", "other.dev/v2", Err("to an invalid group/version: other.dev/v2")),
        ] {
            let expected = expected.map_err(|why| format!("request to convert CR {why}"));
            assert_eq!(conversion.check(from, to), expected);
        }
    }
}
