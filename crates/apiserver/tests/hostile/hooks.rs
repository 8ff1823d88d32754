//! Malicious webhooks, by path.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::webhook_server::Reply;

/// As much as an answer may have, and a little more.
const TOO_MUCH: usize = 3 * 1024 * 1024 + 1;

/// Returns the reply of the webhook at `path`.
pub fn answer(path: &str, request: &Value) -> Reply {
    let raw = |code: u16, body: Vec<u8>| Reply::Raw(code, Vec::new(), body);
    match path {
        "/endless" => Reply::Endless,
        "/drips" => Reply::Drips,
        "/silence" => Reply::Silence,
        "/redirect" => Reply::Raw(302, vec![("location", "https://169.254.169.254/latest".to_owned())], Vec::new()),
        "/tells" => raw(500, b"a secret of the network".to_vec()),
        "/large" => raw(200, vec![b' '; TOO_MUCH]),
        "/deep" => raw(200, b"[".repeat(1 << 20)),
        "/warnings" => Reply::Response(json!({"allowed": true, "warnings": warnings()})),
        "/annotations" => Reply::Response(json!({"allowed": true, "auditAnnotations": annotations()})),
        "/refuses" => Reply::Response(json!({"allowed": false, "status": {"message": "m".repeat(1 << 20)}})),
        "/rename" => patch(json!([{"op": "replace", "path": "/metadata/name", "value": "other"}])),
        "/move" => patch(json!([{"op": "add", "path": "/metadata/namespace", "value": "kube-system"}])),
        "/uid" => patch(json!([{"op": "replace", "path": "/metadata/uid", "value": "x"}])),
        "/place" => {
            patch(json!([{"op": "add", "path": "/metadata/annotations", "value": {"portolan.dev/clusters": "east"}}]))
        }
        "/copies" => patch(copies()),
        "/huge" => patch(json!([{"op": "add", "path": "/data/k", "value": "x".repeat(2 << 20)}])),
        "/many" => patch((0..20_000).map(|n| json!({"op": "test", "path": "/x", "value": n})).collect()),
        "/nested" => raw(200, nested(request)),
        "/converts-to-others" => converted(request, |object| object["metadata"]["name"] = "other".into()),
        "/converts-to-much" => converted(request, |object| object["spec"]["k"] = "x".repeat(2 << 20).into()),
        "/converts-to-none" => Reply::Response(json!({"result": {"status": "Success"}, "convertedObjects": []})),
        _ => Reply::Response(json!({"allowed": true})),
    }
}

fn patch(operations: Value) -> Reply {
    let patch = STANDARD.encode(operations.to_string());
    Reply::Response(json!({"allowed": true, "patch": patch, "patchType": "JSONPatch"}))
}

/// Long ones, and very many that are all different.
fn warnings() -> Vec<String> {
    let different = (0..50_000).map(|n| n.to_string());
    different.chain(std::iter::repeat_n("w".repeat(1000), 1000)).collect()
}

fn annotations() -> Value {
    (0..5000).map(|n| (format!("k{n}"), json!("v".repeat(100)))).collect()
}

/// Each copies all before it.
fn copies() -> Value {
    let first = json!({"op": "add", "path": "/data", "value": {"k": "x".repeat(1000)}});
    let more = (0..40).map(|n| json!({"op": "copy", "from": "/data", "path": format!("/data/k{n}")}));
    std::iter::once(first).chain(more).collect()
}

/// An answer with a patch whose value is nested very deep.
fn nested(request: &Value) -> Vec<u8> {
    let (open, close) = ("[".repeat(100_000), "]".repeat(100_000));
    let patch = STANDARD.encode(format!(r#"[{{"op":"add","path":"/data/k","value":{open}{close}}}]"#));
    let response = json!({"uid": request["uid"], "allowed": true, "patch": patch, "patchType": "JSONPatch"});
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
        .to_string()
        .into_bytes()
}

/// The objects in the version that is asked for, changed.
fn converted(request: &Value, change: impl Fn(&mut Value)) -> Reply {
    let mut objects = request["objects"].as_array().cloned().unwrap_or_default();
    for object in &mut objects {
        object["apiVersion"] = request["desiredAPIVersion"].clone();
        change(object);
    }
    Reply::Response(json!({"result": {"status": "Success"}, "convertedObjects": objects}))
}
