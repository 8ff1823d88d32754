//! Answers of conversion webhooks: a body becomes a `ConversionReview`. The errors are those of Go's webhook client;
//! the only part of the body in them is its type.

use portolan_types::json_patch::go_word;
use serde_json::Value;

use portolan_codec::decode::{self, MediaType};

const GROUP: &str = "apiextensions.k8s.io";
const KIND: &str = "ConversionReview";

/// Source of the types of Go's client, as shown in messages.
const SCHEME: &str = "pkg/util/webhook/client.go:71";

/// Kinds other than reviews that the codec knows in both versions of the group.
const KNOWN: [&str; 9] = [
    "CustomResourceDefinition",
    "CustomResourceDefinitionList",
    "WatchEvent",
    "ListOptions",
    "GetOptions",
    "DeleteOptions",
    "CreateOptions",
    "UpdateOptions",
    "PatchOptions",
];
/// And in any version.
const UNVERSIONED: [&str; 5] = ["Status", "APIVersions", "APIGroupList", "APIGroup", "APIResourceList"];

/// Answer of a conversion webhook.
#[derive(Clone, Debug)]
pub struct Answer<'a> {
    /// The code of HTTP.
    pub code: u16,
    /// True if the content type is JSON or absent.
    pub is_json: bool,
    /// The body.
    pub body: &'a [u8],
}

impl Answer<'_> {
    /// Returns the review of this version: `v1` or `v1beta1`. Its own apiVersion and kind may be absent.
    ///
    /// # Errors
    /// The error in it.
    pub(super) fn review(&self, version: &str) -> Result<Value, String> {
        if self.body.is_empty() {
            let content_type = if self.is_json { "application/json" } else { "" };
            let code = self.code;
            return Err(format!("0-length response with status code: {code} and content type: {content_type}"));
        }
        // A body that is not a JSON object may be YAML.
        let is_object = self.body.trim_ascii_start().starts_with(b"{");
        let media = if is_object { MediaType::Json } else { MediaType::Yaml };
        let in_head = |why| {
            if is_object {
                return format!("couldn't get version/kind; json parse error: {why}");
            }
            // An error of the YAML parser could reveal the response.
            format!("the response is no {KIND} in JSON")
        };
        let review = decode::decode_any(media, self.body).map_err(in_head)?;
        let (api_version, kind) = decode::stated_type_meta(&review)?;
        check_type(api_version, kind, version)?;
        check_fields(&review, version)?;
        Ok(review)
    }
}

fn check_type(api_version: &str, kind: &str, version: &str) -> Result<(), String> {
    let own = format!("{GROUP}/{version}");
    let (api_version, kind) = (non_empty(api_version).unwrap_or(&own), non_empty(kind).unwrap_or(KIND));
    if (api_version, kind) == (&own, KIND) {
        return Ok(());
    }
    let (group, said) = api_version.rsplit_once('/').unwrap_or(("", api_version));
    let is_own = group == GROUP && matches!(said, "v1" | "v1beta1") && (KNOWN.contains(&kind) || kind == KIND);
    let known = if UNVERSIONED.contains(&kind) { Some("v1") } else { is_own.then_some(said) };
    Err(match known {
        Some(package) => format!("converting ({package}.{kind}) to ({version}.{KIND}): unknown conversion"),
        None => format!("no kind {kind:?} is registered for version {api_version:?} in scheme {SCHEME:?}"),
    })
}

fn non_empty(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

/// Test whether a value has the JSON type of a field.
type Fits = fn(&Value) -> bool;

/// Checks that the fields that are read have the types of Go's.
fn check_fields(review: &Value, version: &str) -> Result<(), String> {
    let response = format!("{version}.ConversionResponse");
    let fields: [(&str, &str, &str, Fits); 4] = [
        ("ConversionReview", "response", &response, Value::is_object),
        ("ConversionResponse", "response.uid", "types.UID", Value::is_string),
        ("ConversionResponse", "response.convertedObjects", "[]runtime.RawExtension", Value::is_array),
        ("ConversionResponse", "response.result", "v1.Status", Value::is_object),
    ];
    for (owner, path, wanted, fits) in fields {
        let found = review.pointer(&format!("/{}", path.replace('.', "/"))).filter(|found| !found.is_null());
        if let Some(found) = found.filter(|found| !fits(found)) {
            let found = go_word(found);
            return Err(format!("json: cannot unmarshal {found} into Go struct field {owner}.{path} of type {wanted}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_reviews_have_gos_errors() {
        let head = "couldn't get version/kind; json parse error: ";
        let text = format!(
            r#"{head}json: cannot unmarshal string into Go value of type struct {{ APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }}"#
        );
        let scheme = format!("in scheme {SCHEME:?}");
        let v1 = |rest: &str| format!(r#"{{"apiVersion":"apiextensions.k8s.io/v1","kind":"ConversionReview"{rest}}}"#);
        for (body, expected) in [
            (String::new(), "0-length response with status code: 200 and content type: application/json".into()),
            ("some text".into(), text),
            ("{".into(), format!("{head}unexpected end of JSON input")),
            (r#"{"kind":5}"#.into(), format!("{head}json: cannot unmarshal number into Go struct field .kind of type string")),
            (r#"{"apiVersion":"a/b/c"}"#.into(), "unexpected GroupVersion string: a/b/c".into()),
            (
                r#"{"apiVersion":"v1","kind":"Pod"}"#.into(),
                format!(r#"no kind "Pod" is registered for version "v1" {scheme}"#),
            ),
            (
                r#"{"apiVersion":"v1","kind":"Status","message":"a secret"}"#.into(),
                "converting (v1.Status) to (v1.ConversionReview): unknown conversion".into(),
            ),
            (
                r#"{"apiVersion":"apiextensions.k8s.io/v1beta1","kind":"ConversionReview"}"#.into(),
                "converting (v1beta1.ConversionReview) to (v1.ConversionReview): unknown conversion".into(),
            ),
            (
                v1(r#","response":[]"#),
                "json: cannot unmarshal array into Go struct field ConversionReview.response of type v1.ConversionResponse".into(),
            ),
            (
                v1(r#","response":{"uid":5}"#),
                "json: cannot unmarshal number into Go struct field ConversionResponse.response.uid of type types.UID".into(),
            ),
        ] {
            let answer = Answer { code: 200, is_json: true, body: body.as_bytes() };
            assert_eq!(answer.review("v1").unwrap_err(), expected, "{body}");
        }
    }

    #[test]
    fn reviews_may_come_in_yaml_and_without_a_type() {
        for body in ["kind: ConversionReview\nresponse: {uid: x}\n", r#" {"response":{"uid":"x"}}"#] {
            let answer = Answer { code: 200, is_json: false, body: body.as_bytes() };
            assert_eq!(answer.review("v1beta1").unwrap()["response"]["uid"], "x", "{body}");
        }
    }
}
