//! Webhooks of the corpus, which both servers call. Each answers as the object in the review instructs it.
//!
//! A webhook at `${hooks}/KEY` looks for the annotation KEY of the object, or of the old one, and finds JSON there:
//!
//! - `{"response": …}` is the answer, with the uid of the review; a patch in it is written as JSON, and encoded before
//!   sending;
//! - `{"tell": [pointers]}` refuses with the review's values at these pointers as the message;
//! - `review` sets fields beside the response, `raw` (`status`, `body`) is another answer, `after` delays it by
//!   milliseconds.
//!
//! An object without instructions is admitted. The webhook at `${hooks}/convert` converts objects between v1, where
//! they have a size, and other versions, where they have a length. The annotation `convert` may hold `raw`, `result`,
//! and in `set` values by pointers that each converted object gets.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::time::Duration;

use anyhow::{Context, Result};
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use serde::Deserialize;
use serde_json::{Value, json};

use harness::webhook::{self, WebhookReply};

const HOST: &str = "127.0.0.1";

/// Addresses of the webhooks.
#[derive(Clone, Debug, Default)]
pub(super) struct OracleWebhooks {
    /// Address without a path.
    pub(super) url: String,
    /// Value of `caBundle`.
    pub(super) bundle: String,
}

impl OracleWebhooks {
    /// Starts the webhooks, which run until the process ends.
    pub(super) fn serve() -> Result<Self> {
        let listener = TcpListener::bind((HOST, 0)).context("cannot listen")?;
        let url = format!("https://{}", listener.local_addr()?);
        Ok(Self { url, bundle: webhook::serve_with(listener, HOST, answer)? })
    }
}

/// Instructions in an object for the webhook's answer.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct AnswerInstructions {
    response: Option<Value>,
    tell: Vec<String>,
    review: BTreeMap<String, Value>,
    raw: Option<RawInstructions>,
    after: u64,
    result: Option<Value>,
    set: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawInstructions {
    status: u16,
    body: String,
}

impl AnswerInstructions {
    /// Parses the instructions of `key`. The answer contains text that does not parse.
    fn of(object: &Value, key: &str) -> Option<Self> {
        let text = object["metadata"]["annotations"][key].as_str()?;
        let unreadable =
            |error| Self { raw: Some(RawInstructions { status: 200, body: format!("{error}") }), ..Self::default() };
        Some(serde_json::from_str(text).unwrap_or_else(unreadable))
    }

    fn reply(self, answer: impl FnOnce(&Self) -> Value) -> WebhookReply {
        let after = Duration::from_millis(self.after);
        match &self.raw {
            Some(raw) => WebhookReply { status: raw.status, body: raw.body.clone(), after },
            None => WebhookReply { status: 200, body: answer(&self).to_string(), after },
        }
    }
}

fn answer(path: &str, review: &Value) -> WebhookReply {
    let (key, request) = (path.trim_start_matches('/'), &review["request"]);
    if key == "convert" {
        return convert(review);
    }
    let said =
        [&request["object"], &request["oldObject"]].into_iter().find_map(|object| AnswerInstructions::of(object, key));
    said.unwrap_or_default().reply(|said| {
        let mut answer = json!({"apiVersion": review["apiVersion"], "kind": review["kind"]});
        answer["response"] = response(said, review);
        said.review.iter().for_each(|(field, value)| answer[field] = value.clone());
        answer
    })
}

fn response(said: &AnswerInstructions, review: &Value) -> Value {
    let mut response = match (&said.response, said.tell.as_slice()) {
        (Some(response), _) => response.clone(),
        (None, []) => json!({"allowed": true}),
        (None, pointers) => {
            let told = pointers.iter().map(|pointer| review.pointer(pointer).unwrap_or(&Value::Null).to_string());
            json!({"allowed": false, "status": {"message": told.collect::<Vec<_>>().join(" ")}})
        }
    };
    if let Some(fields) = response.as_object_mut() {
        fields.entry("uid").or_insert_with(|| review["request"]["uid"].clone());
        if let Some(patch) = fields.get_mut("patch").filter(|patch| patch.is_array()) {
            *patch = BASE64.encode(patch.to_string()).into();
        }
    }
    response
}

fn convert(review: &Value) -> WebhookReply {
    let request = &review["request"];
    let objects = request["objects"].as_array().map_or(&[][..], Vec::as_slice);
    let said = objects.iter().find_map(|object| AnswerInstructions::of(object, "convert"));
    said.unwrap_or_default().reply(|said| {
        let converted = objects.iter().map(|object| {
            let mut object = converted(object.clone(), &request["desiredAPIVersion"]);
            said.set.iter().for_each(|(pointer, value)| set(&mut object, pointer, value.clone()));
            object
        });
        let result = said.result.clone().unwrap_or_else(|| json!({"status": "Success"}));
        let response =
            json!({"uid": request["uid"], "result": result, "convertedObjects": converted.collect::<Vec<_>>()});
        json!({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response})
    })
}

fn converted(mut object: Value, to: &Value) -> Value {
    let is_new = to.as_str().is_some_and(|version| version.ends_with("/v1"));
    let (from, into) = if is_new { ("length", "size") } else { ("size", "length") };
    object["apiVersion"] = to.clone();
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut)
        && let Some(value) = spec.remove(from)
    {
        spec.insert(into.to_owned(), value);
    }
    object
}

/// Sets a value if its parent is a map.
fn set(object: &mut Value, pointer: &str, value: Value) {
    let parent = pointer.rsplit_once('/').and_then(|(parent, key)| Some((object.pointer_mut(parent)?, key)));
    if let Some((Value::Object(parent), key)) = parent {
        parent.insert(key.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply_to(path: &str, annotation: &Value) -> Value {
        let object = json!({"metadata": {"annotations": {"answer": annotation.to_string()}}});
        let request = json!({"uid": "u", "operation": "CREATE", "object": object});
        let reply = answer(path, &json!({"apiVersion": "a/v1", "kind": "AdmissionReview", "request": request}));
        serde_json::from_str(&reply.body).unwrap_or_else(|_| json!(reply.body))
    }

    #[test]
    fn objects_match_the_response() {
        let review = |response: Value| json!({"apiVersion": "a/v1", "kind": "AdmissionReview", "response": response});
        for (path, says, expected) in [
            ("/other", json!({}), review(json!({"uid": "u", "allowed": true}))),
            ("/answer", json!({"response": {"uid": "x"}}), review(json!({"uid": "x"}))),
            ("/answer", json!({"response": {"patch": []}}), review(json!({"uid": "u", "patch": "W10="}))),
            (
                "/answer",
                json!({"tell": ["/request/operation", "/none"]}),
                review(json!({"uid": "u", "allowed": false, "status": {"message": "\"CREATE\" null"}})),
            ),
            ("/answer", json!({"raw": {"status": 200, "body": "[1]"}}), json!([1])),
            ("/answer", json!({"review": {"kind": "X", "response": null}}), {
                json!({"apiVersion": "a/v1", "kind": "X", "response": null})
            }),
        ] {
            assert_eq!(reply_to(path, &says), expected, "{path} {says}");
        }
        assert!(
            reply_to("/answer", &json!({"unknown": 1})).as_str().is_some_and(|text| text.contains("unknown field"))
        );
    }

    #[test]
    fn objects_are_converted() {
        let object = |annotation: Value| {
            let metadata = json!({"name": "a", "annotations": {"convert": annotation.to_string()}});
            json!({"apiVersion": "g/v1beta1", "metadata": metadata, "spec": {"length": 3}})
        };
        let sent = |object: Value| {
            let request = json!({"uid": "u", "desiredAPIVersion": "g/v1", "objects": [object]});
            let reply = answer("/convert", &json!({"apiVersion": "c/v1", "kind": "K", "request": request}));
            serde_json::from_str::<Value>(&reply.body).unwrap()["response"].clone()
        };
        let plain = sent(object(json!({})));
        assert_eq!((&plain["result"]["status"], &plain["uid"]), (&json!("Success"), &json!("u")));
        assert_eq!(plain["convertedObjects"][0]["spec"], json!({"size": 3}));
        let changed =
            sent(object(json!({"set": {"/metadata/name": "b", "/none/x": 1}, "result": {"status": "Failure"}})));
        assert_eq!(
            (&changed["convertedObjects"][0]["metadata"]["name"], &changed["result"]["status"]),
            (&json!("b"), &json!("Failure"))
        );
    }
}
