//! What answers look like on the wire.

use crate::common::{Answer, MAPS, Plane, config_map};
use serde_json::{Value, json};

const CURL: (&str, &str) = ("user-agent", "curl/8.5.0");

/// Whether a text is JSON in lines, two spaces a level, as Go's `MarshalIndent` writes it.
fn is_pretty(answer: &Answer) -> bool {
    let text = answer.text();
    let value: Value = serde_json::from_str(&text).unwrap();
    let indented = text.starts_with("{\n  \"") && text.ends_with("\n}");
    assert!(indented || !text.contains('\n'), "neither in lines nor in one: {text}");
    assert_eq!(text.lines().count() > 1, indented);
    // The same lines, in whatever order.
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
        ("a path that is not there", "/nope", &[CURL], 404, true),
        ("groups", "/apis", &[CURL], 200, true),
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
