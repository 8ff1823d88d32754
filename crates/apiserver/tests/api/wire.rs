//! Responses on the wire: formatting, timeouts, names.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use crate::common::{Answer, Client, MAPS, Plane, config_map};
use portolan_apiserver::admission::{AdmissionPlugin, AdmissionRequest};
use portolan_types::{BoxFuture, Seams, Status, seams::Entropy};
use serde_json::{Value, json};

const CURL: (&str, &str) = ("user-agent", "curl/8.5.0");
const AGGREGATED: (&str, &str) = ("accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList");

/// Returns true for JSON indented by two spaces, as Go's `MarshalIndent` prints it. Otherwise it must be one line that
/// ends as Go's encoder ends it.
fn is_pretty(answer: &Answer) -> bool {
    let text = answer.text();
    let value: Value = serde_json::from_str(&text).unwrap();
    let indented = text.starts_with("{\n  \"") && text.ends_with("\n}");
    assert!(indented || text.find('\n') == Some(text.len() - 1), "neither in lines nor in one: {text}");
    assert_eq!(text.lines().count() > 1, indented);
    // The same lines, in any order.
    let lines = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(|line| line.trim_end_matches(',').to_owned()).collect();
        lines.sort();
        lines
    };
    assert!(!indented || lines(&text) == lines(&serde_json::to_string_pretty(&value).unwrap()), "{text}");
    indented
}

#[tokio::test]
async fn people_get_json_in_lines() {
    let admin = Plane::new().await.admin();
    admin.post(MAPS, config_map("a", json!({}))).await.expect(201);
    let one = format!("{MAPS}/a");
    let table = ("accept", "application/json;as=Table;v=v1;g=meta.k8s.io");
    for (case, path, headers, code, expected) in [
        ("an object", one.as_str(), &[][..], 200, false),
        ("an object that is asked for in lines", &format!("{one}?pretty=true"), &[], 200, true),
        ("by a number", &format!("{one}?pretty=1"), &[], 200, true),
        ("by a parameter of its type", &one, &[("accept", "application/json;pretty=1")], 200, true),
        ("curl", &one, &[CURL], 200, true),
        ("wget", &one, &[("user-agent", "Wget/1.21")], 200, true),
        ("a browser", &one, &[("user-agent", "Mozilla/5.0 (X11; Linux x86_64)")], 200, true),
        ("an older browser", &one, &[("user-agent", "Mozilla/4.0")], 200, false),
        ("curl that wants it short", &format!("{one}?pretty=false"), &[CURL], 200, false),
        ("curl that says nothing", &format!("{one}?pretty="), &[CURL], 200, true),
        ("what is no truth", &format!("{one}?pretty=maybe"), &[CURL], 200, false),
        ("a list", MAPS, &[CURL], 200, true),
        ("a page", &format!("{MAPS}?limit=1"), &[CURL], 200, true),
        ("a table", MAPS, &[CURL, table], 200, true),
        ("a failure", &format!("{MAPS}/b"), &[CURL], 404, true),
        ("a failure that is asked for in lines", &format!("{MAPS}/b?pretty=true"), &[], 404, true),
        ("a failure for a program", &format!("{MAPS}/b"), &[], 404, false),
        ("a path that is not there", "/api/nope", &[CURL], 404, true),
        ("groups", "/apis", &[CURL], 200, true),
        ("groups and resources at once", "/apis", &[AGGREGATED], 200, false),
        ("resources", "/api/v1", &[], 200, false),
        ("the version, for whomever it is", "/version", &[], 200, true),
        ("paths, for whomever they are", "/", &[], 200, true),
    ] {
        let answer = admin.send("GET", path, headers, "").await;
        assert_eq!((answer.code, is_pretty(&answer)), (code, expected), "{case}");
    }
    let written = [CURL, ("content-type", "application/json")];
    for (case, method, path, body, code) in [
        ("what is made", "POST", MAPS, config_map("b", json!({})), 201),
        ("what is changed", "PUT", &one, config_map("a", json!({"x": "y"})), 200),
        ("what is gone", "DELETE", &one, json!({}), 200),
    ] {
        assert!(is_pretty(&admin.send(method, path, &written, body.to_string()).await.expect(code)), "{case}");
    }
    let mut watch = admin.watch(&format!("{MAPS}?watch=true&pretty=true"), &[CURL]).await;
    assert_eq!(watch.seen().await, ("ADDED".into(), "b".into()), "an event is a line");
}

/// Never done with anything.
struct Endless;

impl AdmissionPlugin for Endless {
    fn validate<'a>(
        &'a self,
        request: &'a AdmissionRequest<'a>,
        _object: Option<&'a Value>,
        _old: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<(), Status>> {
        match &*request.kind.resource {
            "configmaps" => Box::pin(std::future::pending()),
            _ => Box::pin(std::future::ready(Ok(()))),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn timeouts_have_kube_apiservers_message() {
    let admin = Plane::with(|config| config.hooks.admission.push(Arc::new(Endless))).await.admin();
    let failure = |message: &str| {
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
            "reason": "Timeout", "details": {}, "code": 504})
    };
    let (read, write) = (
        "Timeout: request did not complete within the allotted timeout",
        "Timeout: request did not complete within requested timeout - context deadline exceeded",
    );
    let body = config_map("a", json!({})).to_string();
    let json = [("content-type", "application/json")];
    for (case, method, path, body, within, expected) in [
        ("a write", "POST", MAPS.to_owned(), &*body, 34, write),
        ("a write with less time", "POST", format!("{MAPS}?timeout=5s"), &body, 5, write),
        ("a write that asks for more than there is", "POST", format!("{MAPS}?timeout=1h"), &body, 34, write),
        // It waits for a state that is to come, for up to three seconds.
        ("a read", "GET", format!("{MAPS}?timeout=1s&resourceVersion=999999"), "", 1, read),
    ] {
        let started = tokio::time::Instant::now();
        let answer = admin.send(method, &path, &json, body.to_owned()).await.expect(504);
        assert_eq!(answer.json(), failure(expected), "{case}");
        assert_eq!(started.elapsed().as_secs(), within, "{case}");
    }
    admin.get(&format!("{MAPS}/a")).await.expect(404);
}

/// Gives every name the same bytes, and every uid its own.
#[derive(Default)]
struct Stuck(AtomicUsize);

impl Entropy for Stuck {
    fn fill(&self, bytes: &mut [u8]) {
        let n = self.0.fetch_add(1, Ordering::SeqCst);
        bytes.fill(7);
        if bytes.len() >= 16 {
            bytes[..8].copy_from_slice(&n.to_le_bytes());
        }
    }
}

/// Creates a ConfigMap. Returns its name, or the refusal.
async fn create_config_map(admin: &Client, metadata: Value) -> Result<String, Answer> {
    let answer = admin.post(MAPS, json!({"metadata": metadata})).await;
    match answer.code {
        201 => Ok(answer.json()["metadata"]["name"].as_str().unwrap().to_owned()),
        _ => Err(answer),
    }
}

#[tokio::test]
async fn a_name_that_cannot_be_generated_has_kube_apiservers_error() {
    let seams = Seams { entropy: Arc::new(Stuck::default()), ..Seams::system() };
    let admin = Plane::with(|config| config.seams = seams).await.admin();
    let name = create_config_map(&admin, json!({"generateName": "a-"})).await.ok().unwrap();
    for metadata in [json!({"generateName": "a-"}), json!({"name": name, "generateName": "b-"})] {
        let refused = create_config_map(&admin, metadata).await.err().unwrap().expect(409);
        let message = format!(
            "configmaps {name:?} already exists, the server was not able to generate a unique name for the object"
        );
        let details = json!({"name": name, "kind": "configmaps", "retryAfterSeconds": 1});
        let said = refused.json();
        assert_eq!(
            (&said["message"], &said["reason"], &said["details"]),
            (&json!(message), &json!("AlreadyExists"), &details)
        );
        assert_eq!(refused.headers["retry-after"], "1");
    }
    let refused = create_config_map(&admin, json!({"name": name})).await.err().unwrap().expect(409);
    assert_eq!(refused.message(), format!("configmaps {name:?} already exists"));
    create_config_map(&admin, json!({"generateName": "c-"})).await.ok().unwrap();
}

#[tokio::test]
async fn a_create_during_deletion_has_a_clear_conflict() {
    let admin = Plane::new().await.admin();
    create_config_map(&admin, json!({"name": "held", "finalizers": ["example.com/x"]})).await.ok().unwrap();
    let refused = |answer: Answer| answer.expect(409).message().to_owned();
    let again = create_config_map(&admin, json!({"name": "held"})).await.err().unwrap();
    assert_eq!(refused(again), "configmaps \"held\" already exists");
    admin.send("DELETE", &format!("{MAPS}/held"), &[], "").await.expect(200);
    for path in [MAPS.to_owned(), format!("{MAPS}?dryRun=All")] {
        let again = admin.post(&path, json!({"metadata": {"name": "held"}})).await;
        assert_eq!(refused(again), "object is being deleted: configmaps \"held\" already exists", "{path}");
    }
}
