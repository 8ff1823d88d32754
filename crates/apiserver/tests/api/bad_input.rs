//! Every request to the API gets a `Status` that explains the error, and the server keeps running.

use std::sync::Arc;

use crate::common::{Answer, MAPS, Plane, config_map, user};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use portolan_apiserver::http::answer_connection;
use serde_json::{Value, json};

const JSON: (&str, &str) = ("content-type", "application/json");
const YAML: (&str, &str) = ("content-type", "application/yaml");
const JSON_PATCH: (&str, &str) = ("content-type", "application/json-patch+json");
const APPLY: (&str, &str) = ("content-type", "application/apply-patch+yaml");
const ROOT_MAPS: &str = "/clusters/root/api/v1/namespaces/default/configmaps";

/// A bad request and the expected message.
struct Row {
    case: &'static str,
    method: &'static str,
    target: String,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    code: u16,
    reason: &'static str,
    says: &'static str,
}

fn row(case: &'static str, method: &'static str, target: &str, code: u16, reason: &'static str) -> Row {
    Row { case, method, target: target.into(), headers: Vec::new(), body: Vec::new(), code, reason, says: "" }
}

impl Row {
    fn header(mut self, (name, value): (&'static str, &str)) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    fn json(self, body: &Value) -> Self {
        self.header(JSON).body(body.to_string())
    }

    fn says(mut self, text: &'static str) -> Self {
        self.says = text;
        self
    }
}

/// A server that is reached over connections, with the administrator's certificate or without one.
struct Front {
    plane: Plane,
}

impl Front {
    async fn new() -> Self {
        let plane = Plane::new().await;
        plane.admin().post(MAPS, config_map("there", json!({}))).await.expect(201);
        Self { plane }
    }

    async fn ask(&self, row: &Row, certified: bool) -> Answer {
        let admin = certified.then(|| Arc::new(user("admin", &["system:masters", "system:authenticated"])));
        let mut request = Request::builder().method(row.method).uri(&row.target);
        for (name, value) in &row.headers {
            request = request.header(*name, value);
        }
        let request = request.body(Full::new(Bytes::from(row.body.clone()))).unwrap();
        let (parts, body) = answer_connection(self.plane.api.clone(), admin, request).await.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        Answer { code: parts.status.as_u16(), headers: parts.headers, bytes }
    }

    /// Each row is answered as it says, and the server answers the next request.
    async fn check(&self, rows: Vec<Row>, certified: bool) {
        for row in rows {
            let answer = self.ask(&row, certified).await;
            let (case, text) = (row.case, answer.text());
            assert_eq!(answer.code, row.code, "{case}: {text}");
            let status = answer.json();
            assert_eq!((&status["kind"], &status["code"]), (&json!("Status"), &json!(row.code)), "{case}: {text}");
            assert_eq!(status["reason"].as_str().unwrap_or_default(), row.reason, "{case}: {text}");
            assert!(answer.message().contains(row.says), "{case}: {text}");
            self.plane.admin().get(&format!("{MAPS}/there")).await.expect(200);
        }
    }
}

/// `{"a":{"a":…1}}`, so many levels deep.
fn nested(levels: usize) -> String {
    format!("{}1{}", "{\"a\":".repeat(levels), "}".repeat(levels))
}

#[tokio::test]
async fn bodies_that_are_none() {
    let front = Front::new().await;
    let create = |case, code, reason| row(case, "POST", ROOT_MAPS, code, reason);
    let bad = |case| create(case, 400, "BadRequest");
    let bomb = (1..12).fold("a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned(), |yaml, level| {
        let alias = format!("*a{}", level - 1);
        format!("{yaml}a{level}: &a{level} [{}]\n", vec![alias; 9].join(", "))
    });
    let unknown = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "u", "nmae": "x"}, "dta": {}});
    let strict = format!("{ROOT_MAPS}?fieldValidation=Strict");
    let mut rows = vec![
        row("unknown fields", "POST", &strict, 400, "BadRequest")
            .json(&unknown)
            .says(r#"strict decoding error: unknown field "dta", unknown field "metadata.nmae""#),
        row("a duplicate field", "POST", &strict, 400, "BadRequest")
            .header(JSON)
            .body(r#"{"metadata":{"name":"d"},"data":{},"data":{}}"#)
            .says(r#"duplicate field "data""#),
        row("an unknown validation", "POST", &format!("{ROOT_MAPS}?fieldValidation=Strictly"), 422, "Invalid")
            .json(&config_map("x", json!({})))
            .says(r#"supported values: "", "Ignore", "Strict", "Warn""#),
        bad("malformed JSON").header(JSON).body("{\"kind\":").says("json parse error"),
        bad("more than one document").header(JSON).body("{}{}").says("json parse error"),
        bad("bytes that are not text").header(JSON).body(b"{\"data\":{\"a\":\"\xff\"}}".to_vec()),
        bad("another kind").json(&json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}})),
        bad("an unknown kind").json(&json!({"apiVersion": "v1", "kind": "Nothing"})).says("no kind"),
        bad("another version of the API")
            .json(&json!({"apiVersion": "v2", "kind": "ConfigMap", "metadata": {"name": "x"}})),
        bad("no version of an API").json(&json!({"apiVersion": "a/b/c", "kind": "ConfigMap"})),
        bad("a value of another type").json(&json!({"metadata": {"name": "x"}, "data": {"a": 1}})),
        bad("a list instead of an object").json(&json!([])),
        bad("deep YAML").header(YAML).body(format!("q: {}{}", "[".repeat(5000), "]".repeat(5000))),
        bad("aliases of aliases").header(YAML).body(bomb.clone()),
        bad("invalid protobuf")
            .header(("content-type", "application/vnd.kubernetes.protobuf"))
            .body(b"k8s\0\xff\xff\xff\xff\xff".to_vec()),
        bad("another namespace than the URL's").json(&json!({"metadata": {"name": "x", "namespace": "kube-system"}})),
        create("a resourceVersion on what is new", 500, "")
            .json(&json!({"metadata": {"name": "x", "resourceVersion": "5"}})),
        create("no name", 422, "Invalid").json(&json!({"metadata": {}})),
        create("an impossible name", 422, "Invalid").json(&json!({"metadata": {"name": "../x"}})),
        create("a form that is not taken", 415, "UnsupportedMediaType")
            .header(("content-type", "text/xml"))
            .body("<a/>"),
        create("a compressed body", 415, "UnsupportedMediaType").header(JSON).header(("content-encoding", "gzip")),
        create("a body that is too large", 413, "RequestEntityTooLarge")
            .header(JSON)
            .body(config_map("big", json!({"x": "y".repeat(3 << 20)})).to_string()),
        create("a body that says it is too large", 413, "RequestEntityTooLarge")
            .header(JSON)
            .header(("content-length", "99999999999")),
    ];
    let revisions = "/clusters/root/apis/apps/v1/namespaces/default/controllerrevisions";
    let revision = |levels| format!(r#"{{"metadata":{{"name":"r"}},"revision":1,"data":{}}}"#, nested(levels));
    rows.push(
        row("what could not be read back", "POST", revisions, 400, "BadRequest").header(JSON).body(revision(125)),
    );
    rows.push(row("deep JSON", "POST", revisions, 400, "BadRequest").header(JSON).body(revision(100_000)));
    rows.push(row("the same as YAML", "POST", revisions, 400, "BadRequest").header(YAML).body(revision(127)));
    rows.push(
        row("options of another kind", "DELETE", &format!("{ROOT_MAPS}/there"), 400, "BadRequest")
            .json(&config_map("there", json!({})))
            .says("no kind \"ConfigMap\" is registered for version \"v1\""),
    );
    front.check(rows, true).await;

    let warned = row("unknown fields warn by default", "POST", ROOT_MAPS, 201, "").json(&unknown);
    let warned = front.ask(&warned, true).await.expect(201);
    let warnings: Vec<&str> = warned.headers.get_all("warning").iter().map(|value| value.to_str().unwrap()).collect();
    assert_eq!(
        warnings,
        [
            r#"299 - "unknown field \"dta\""#.to_owned() + "\"",
            r#"299 - "unknown field \"metadata.nmae\""#.to_owned() + "\""
        ]
    );
    assert_eq!(warned.json()["dta"], Value::Null);
}

#[tokio::test]
async fn patches_that_are_none() {
    let front = Front::new().await;
    let there = format!("{ROOT_MAPS}/there");
    let patch = |case, code, reason| row(case, "PATCH", &there, code, reason);
    let many = vec![json!({"op": "test", "path": "/nothing", "value": null}); 10_001];
    // Each copy doubles the depth: without a bound a small patch would be deeper than any stack.
    let mut doubled = format!(r#"[{{"op":"add","path":"/q","value":{}}}"#, nested(100));
    (0..12).for_each(|n| {
        let leaf = "/a".repeat(100 << n);
        doubled.push_str(&format!(r#",{{"op":"copy","from":"/q","path":"/q{leaf}"}}"#));
    });
    doubled.push(']');
    let rows = vec![
        patch("no content type", 415, "UnsupportedMediaType").body("{}"),
        patch("too many operations", 413, "RequestEntityTooLarge")
            .header(JSON_PATCH)
            .body(Value::from(many).to_string())
            .says("10000, got 10001"),
        patch("depth that doubles", 422, "Invalid").header(JSON_PATCH).body(doubled),
        patch("no list", 400, "BadRequest").header(JSON_PATCH).body("{}"),
        patch("the document replaced by nothing", 422, "Invalid")
            .header(JSON_PATCH)
            .body(r#"[{"op":"replace","path":"","value":null}]"#),
        patch("an invalid merge patch", 400, "BadRequest")
            .header(("content-type", "application/merge-patch+json"))
            .body("[1]"),
        patch("another kind", 422, "Invalid")
            .header(("content-type", "application/merge-patch+json"))
            .body(r#"{"kind":"Secret","data":null}"#)
            .says("unknown conversion"),
        patch("another kind with values that it does not have", 422, "Invalid")
            .header(("content-type", "application/merge-patch+json"))
            .body(r#"{"kind":"Secret"}"#)
            .says("illegal base64 data at input byte 0"),
        patch("another uid", 422, "Invalid")
            .header(("content-type", "application/merge-patch+json"))
            .body(r#"{"metadata":{"uid":"other"}}"#)
            .says("metadata.uid: Invalid value: \"other\": field is immutable"),
        patch("no name", 400, "BadRequest")
            .header(("content-type", "application/merge-patch+json"))
            .body(r#"{"metadata":{"name":null}}"#)
            .says("name must be provided"),
        patch("a revision that is not a number", 500, "")
            .header(("content-type", "application/merge-patch+json"))
            .body(r#"{"metadata":{"resourceVersion":"x"}}"#)
            .says("strconv.ParseUint: parsing \"x\": invalid syntax"),
        patch("a merge patch cut off", 400, "BadRequest")
            .header(("content-type", "application/merge-patch+json"))
            .body("{")
            .says("error decoding patch: unexpected end of JSON input"),
        patch("a strategic patch of a wrong type", 422, "Invalid")
            .header(("content-type", "application/strategic-merge-patch+json"))
            .body(r#"{"data":{"a":5}}"#)
            .says(r#"Invalid value: "map[data:map[a:5]]": cannot convert int64 to string"#),
        row("apply of fields that are not there", "PATCH", &format!("{there}?fieldManager=m"), 500, "")
            .header(APPLY)
            .body(r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"there"},"nope":1}"#)
            .says(".nope: field not declared in schema"),
        patch("a stale resourceVersion", 409, "Conflict")
            .header(("content-type", "application/merge-patch+json"))
            .body(r#"{"metadata":{"resourceVersion":"1"}}"#),
        patch("apply without a manager", 422, "Invalid").header(APPLY).body("{}"),
        row("apply of another kind", "PATCH", &format!("{there}?fieldManager=m"), 400, "BadRequest")
            .header(APPLY)
            .body(r#"{"apiVersion":"v1","kind":"Secret"}"#),
        row(
            "a manager's name without end",
            "PATCH",
            &format!("{there}?fieldManager={}", "m".repeat(129)),
            422,
            "Invalid",
        )
        .header(APPLY)
        .body("{}"),
    ];
    front.check(rows, true).await;
}

#[tokio::test]
async fn duplicate_keys_in_a_patch_are_reported() {
    const MERGE: &str = "application/merge-patch+json";
    const STRATEGIC: &str = "application/strategic-merge-patch+json";
    let front = Front::new().await;
    let twice = r#"{"data":{"a":"1","a":"2","a":"3"},"data":{"b":"3"}}"#;
    let operation = r#"[{"op":"add","path":"/data/c","value":"1","value":"2"}]"#;
    let told = [r#"duplicate field "data.a""#, r#"duplicate field "data""#];
    for (media, body, told) in [
        (MERGE, twice, &told[..]),
        (STRATEGIC, twice, &told[..]),
        ("application/json-patch+json", operation, &[r#"json patch duplicate field "[0].value""#][..]),
    ] {
        let patch = |validation: &str, code, reason| {
            let target = format!("{ROOT_MAPS}/there?dryRun=All&fieldValidation={validation}");
            row("keys twice", "PATCH", &target, code, reason).header(("content-type", media)).body(body)
        };
        let refused = front.ask(&patch("Strict", 422, "Invalid"), true).await.expect(422);
        assert!(
            refused.message().contains(&format!("strict decoding error: {}", told.join(", "))),
            "{}",
            refused.text()
        );
        let warned = front.ask(&patch("Warn", 200, ""), true).await.expect(200);
        let warnings: Vec<_> = warned.headers.get_all("warning").iter().map(|value| value.to_str().unwrap()).collect();
        let expected: Vec<_> = told.iter().map(|text| format!("299 - {text:?}")).collect();
        assert_eq!(warnings, expected, "{media}");
        let ignored = front.ask(&patch("Ignore", 200, ""), true).await.expect(200);
        assert!(!ignored.headers.contains_key("warning"), "{media}");
    }
    let patch = |case, media: &str, body: &str, says| {
        let target = format!("{ROOT_MAPS}/there");
        row(case, "PATCH", &target, 400, "BadRequest").header(("content-type", media)).body(body).says(says)
    };
    let rows = vec![
        patch("a number", MERGE, "5", "json: cannot unmarshal number into Go value of type map[string]interface {}"),
        patch("a text", MERGE, "\"x\"", "error decoding patch: json: cannot unmarshal string into Go value"),
        patch("nothing", MERGE, "null", "Invalid JSON Patch"),
        patch("a truth", STRATEGIC, "true", "json: cannot unmarshal bool into Go value"),
        patch("a text as operations", "application/json-patch+json", "\"x\"", "json: cannot unmarshal string"),
    ];
    front.check(rows, true).await;
}

#[tokio::test]
async fn a_replacement_names_its_object() {
    let front = Front::new().await;
    let none = "was undeterminable: name must be provided";
    let put =
        |case, target: &str, body: &Value, says| row(case, "PUT", target, 400, "BadRequest").json(body).says(says);
    let there = format!("{ROOT_MAPS}/there");
    let scale = "/clusters/root/apis/apps/v1/namespaces/default/replicasets/r/scale";
    let sets = "/apis/apps/v1/namespaces/default/replicasets";
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let spec = json!({"replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "template": template});
    front.plane.admin().post(sets, json!({"metadata": {"name": "r"}, "spec": spec})).await.expect(201);
    let sized = |metadata: Value| json!({"metadata": metadata, "spec": {"replicas": 1}});
    let mut unknown = sized(json!({"name": "r"}));
    unknown["spec"]["more"] = 1.into();
    let rows = vec![
        put("an object without a name", &there, &json!({"data": {}}), none),
        put("another name", &there, &config_map("other", json!({})), "does not match the name on the URL (there)"),
        put("a status without a name", "/clusters/root/api/v1/namespaces/default/status", &json!({}), none),
        put("a scale without a name", scale, &sized(json!({})), none),
        put("a scale of another name", scale, &sized(json!({"name": "s"})), "does not match the name on the URL (r)"),
        put(
            "a scale of another namespace",
            scale,
            &sized(json!({"name": "r", "namespace": "other"})),
            "the namespace of the provided object does not match the namespace sent on the request",
        ),
        put(
            "an object instead of its scale",
            scale,
            &json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "r"}}),
            "ReplicaSet",
        ),
        put(
            "an unknown field in a scale",
            &format!("{scale}?fieldValidation=Strict"),
            &unknown,
            r#"strict decoding error: unknown field "spec.more""#,
        ),
        row(
            "an unknown field in an eviction",
            "POST",
            "/clusters/root/api/v1/namespaces/default/pods/none/eviction?fieldValidation=Strict",
            400,
            "BadRequest",
        )
        .json(&json!({"metadata": {"name": "none"}, "more": 1}))
        .says(r#"strict decoding error: unknown field "more""#),
    ];
    front.check(rows, true).await;
    let kept = front.plane.admin().get(&format!("{sets}/r")).await.expect(200).json();
    assert_eq!(kept["spec"]["replicas"], 0);
    let warned = row("a warning", "PUT", scale, 200, "").json(&unknown);
    let warned = front.ask(&warned, true).await.expect(200);
    assert_eq!(warned.headers["warning"], r#"299 - "unknown field \"spec.more\"""#);
}

#[tokio::test]
async fn scales_that_are_none_scale_nothing() {
    let front = Front::new().await;
    let admin = front.plane.admin();
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    let labels = json!({"app": "d"});
    let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let spec = json!({"replicas": 3, "selector": {"matchLabels": labels}, "template": template});
    admin.post(deployments, json!({"metadata": {"name": "d"}, "spec": spec})).await.expect(201);
    let target = format!("/clusters/root{deployments}/d/scale");
    let merge = ("content-type", "application/merge-patch+json");
    let patch = |case, body: &str| row(case, "PATCH", &target, 422, "Invalid").header(merge).body(body);
    let apply = |case, code, reason, count: &str| {
        row(case, "PATCH", &format!("{target}?fieldManager=m&force=true"), code, reason)
            .header(APPLY)
            .body(format!(r#"{{"apiVersion":"autoscaling/v1","kind":"Scale","spec":{{"replicas":{count}}}}}"#))
    };
    let rows = vec![
        patch("a number in quotes", r#"{"spec":{"replicas":"5"}}"#),
        patch("more than 32 bits", r#"{"spec":{"replicas":4294967296}}"#),
        patch("less than nothing", r#"{"spec":{"replicas":-1}}"#),
        patch("no spec", r#"{"spec":5}"#),
        row("no object", "PATCH", &target, 422, "Invalid")
            .header(JSON_PATCH)
            .body(r#"[{"op":"replace","path":"","value":7}]"#),
        apply("applied as text", 500, "", r#""5""#),
        apply("applied as less than nothing", 422, "Invalid", "-1"),
    ];
    front.check(rows, true).await;
    let kept = admin.get(&format!("{deployments}/d")).await.expect(200).json();
    assert_eq!(kept["spec"]["replicas"], 3);
}

#[tokio::test]
async fn paths_and_parameters_that_mean_nothing() {
    let front = Front::new().await;
    let get = |case, target: &str, code, reason| row(case, "GET", target, code, reason);
    let forged = URL_SAFE_NO_PAD.encode(r#"{"v":"meta.k8s.io/v1","rv":1,"start":"default\u0000a","mac":"AAAA"}"#);
    let maps = |query: &str| format!("{ROOT_MAPS}?{query}");
    let rows = vec![
        get("an unknown path", "/clusters/root/api/v1/nowhere", 404, "NotFound"),
        get("an unknown resource", "/clusters/root/api/v1/namespaces/default/nothings", 404, "NotFound"),
        get("an unknown version", "/clusters/root/apis/apps/v9/things", 404, "NotFound"),
        get("no logical cluster", "/clusters", 404, "NotFound"),
        get("a logical cluster that is not there", "/clusters/root:nowhere/api/v1/pods", 404, "NotFound")
            .says("workspace \"root:nowhere\" not found"),
        get("dots", "/clusters/../api/v1/pods", 400, "BadRequest"),
        get("encoded dots", "/clusters/%2e%2e/api/v1/pods", 400, "BadRequest"),
        get("twice encoded dots", "/clusters/%252e%252e/api/v1/pods", 400, "BadRequest"),
        get("an encoded slash", "/clusters/root%2fapi/v1", 400, "BadRequest"),
        get("upper case", "/clusters/Root/api/v1/pods", 404, "NotFound").says("workspace \"Root\" not found"),
        get("an empty segment", "/clusters//api/v1/pods", 400, "BadRequest"),
        get("an empty part of a path", "/clusters/root::a/api/v1/pods", 404, "NotFound")
            .says("workspace \"root::a\" not found"),
        get("a zero byte", "/clusters/root%00/api", 400, "BadRequest"),
        get("another version of all logical clusters", "/clusters/*/api/v9/pods", 404, "NotFound"),
        row("a write to all logical clusters", "POST", "/clusters/*/api/v1/pods", 405, "MethodNotAllowed"),
        get("a target without end", &format!("/api/v1/{}", "a".repeat(9000)), 400, "BadRequest"),
        get("a namespace that cannot be", "/clusters/root/api/v1/namespaces/A_B/pods", 400, "BadRequest"),
        get("dots for a name", &format!("{ROOT_MAPS}/.."), 400, "BadRequest")
            .says(r#"Name parameter invalid: "..": may not be '..'"#),
        row("one dot for a name", "DELETE", &format!("{ROOT_MAPS}/%2e"), 400, "BadRequest")
            .says(r#"Name parameter invalid: ".": may not be '.'"#),
        get("a name that is encoded twice", &format!("{ROOT_MAPS}/..%252fthere"), 400, "BadRequest")
            .says(r#"Name parameter invalid: "..%2fthere": may not contain '%'"#),
        get("dots in a path", &format!("{ROOT_MAPS}/../configmaps/there"), 404, "NotFound"),
        get("dots for a namespace", "/clusters/root/api/v1/namespaces/../configmaps", 400, "BadRequest"),
        get("dots for a version", "/clusters/root/api/../v1", 404, "NotFound"),
        get("dots behind the logical cluster", "/clusters/root/../x/api/v1", 400, "BadRequest"),
        get("a resourceVersion of letters", &maps("resourceVersion=abc"), 400, "BadRequest"),
        get("a negative resourceVersion", &maps("resourceVersion=-1"), 400, "BadRequest"),
        get("a resourceVersion beyond 64 bits", &maps("resourceVersion=99999999999999999999"), 400, "BadRequest"),
        get("a match without resourceVersion", &maps("resourceVersionMatch=Exact"), 422, "Invalid"),
        get("a resourceVersion of letters on an object", &format!("{ROOT_MAPS}/there?resourceVersion=x"), 500, ""),
        get("a watch from letters", &maps("watch=1&resourceVersion=x"), 500, ""),
        get("a forged continue token", &maps(&format!("limit=1&continue={forged}")), 400, "BadRequest"),
        get("no continue token", &maps("limit=1&continue=%00"), 400, "BadRequest"),
        get("a limit that is not a number", &maps("limit=ten"), 400, "BadRequest"),
        get("a broken selector", &maps("labelSelector=a%20in%20("), 400, "BadRequest"),
        get("a field that cannot be selected", &maps("fieldSelector=data.k%3Dv"), 400, "BadRequest"),
        get("bytes that are not text", &maps("labelSelector=%ff"), 400, "BadRequest"),
        get(
            "nodes by namespace",
            "/clusters/root/api/v1/nodes?fieldSelector=metadata.namespace%3Dx",
            400,
            "BadRequest",
        )
        .says("field label not supported: metadata.namespace"),
        get("a time without end", &maps("timeout=5000000000000000h5000000000000000h&limit=ten"), 400, "BadRequest"),
        get("a limit beyond 64 bits", &maps("limit=99999999999999999999"), 400, "BadRequest")
            .says("value out of range"),
        get("seconds beyond 64 bits on a list", &maps("timeoutSeconds=99999999999999999999"), 400, "BadRequest")
            .says("value out of range"),
        get("a limit of no sense on a watch", &maps("watch=1&limit=x"), 400, "BadRequest").says("invalid syntax"),
        get("a time without a unit", &maps("timeout=5"), 400, "BadRequest").says("missing unit in duration"),
        get("an export", &format!("{ROOT_MAPS}/there?export=true"), 400, "BadRequest").says("no longer supported"),
        row("a dry run of nothing", "POST", &maps("dryRun="), 422, "Invalid").json(&config_map("x", json!({}))),
        row("a propagation of nothing", "DELETE", &format!("{ROOT_MAPS}/there?propagationPolicy="), 422, "Invalid"),
        row("a method that is not served", "PUT", ROOT_MAPS, 405, "MethodNotAllowed"),
        row(
            "a deletion of all namespaces at once",
            "DELETE",
            "/clusters/root/api/v1/configmaps",
            405,
            "MethodNotAllowed",
        ),
        row("an unknown method", "BREW", ROOT_MAPS, 405, "MethodNotAllowed"),
        row("an unknown method on nothing", "BREW", "/clusters/root/api/v1/nothing", 404, "NotFound"),
        get("a limit of nothing", &maps("limit="), 400, "BadRequest").says("invalid syntax"),
        get("a number before a selector", &maps("limit=x&labelSelector=-a-"), 400, "BadRequest").says("ParseInt"),
        get("a selector before what does not fit", &maps("fieldSelector=a&sendInitialEvents=1"), 400, "BadRequest")
            .says("can't understand"),
        get("what does not fit before a field", &maps("fieldSelector=a%3Db&sendInitialEvents=1"), 422, "Invalid"),
        get("a field before a revision", &maps("fieldSelector=a%3Db&resourceVersion=x"), 400, "BadRequest")
            .says("not a known field selector"),
        get("a revision beside a token", &maps("continue=e30&resourceVersion=x"), 400, "BadRequest")
            .says("continue key"),
        get("a name that is too long", &format!("{ROOT_MAPS}/{}", "a".repeat(254)), 404, "NotFound"),
    ];
    front.check(rows, true).await;
}

#[tokio::test(start_paused = true)]
async fn a_resource_version_of_the_future_is_waited_for_in_vain() {
    let front = Front::new().await;
    let rows = vec![
        row("a list", "GET", &format!("{ROOT_MAPS}?resourceVersion=999999"), 504, "Timeout").says("Too large"),
        row("an object", "GET", &format!("{ROOT_MAPS}/there?resourceVersion=999999"), 504, "Timeout").says("Too large"),
    ];
    front.check(rows, true).await;
    let path = format!("{MAPS}?watch=1&resourceVersion=999999&timeoutSeconds=5");
    let mut watch = front.plane.admin().watch(&path, &[]).await;
    assert_eq!(watch.next().await, None, "as upstream, a watch shows nothing until then, and ends in time");
}

#[tokio::test]
async fn claimed_identities_need_a_credential() {
    let front = Front::new().await;
    let token = a_tenants_token(&front.plane).await;
    let bearer = format!("Bearer {token}");
    let get = |case, code, reason| row(case, "GET", ROOT_MAPS, code, reason);
    let rows = vec![
        get("nobody", 403, "Forbidden").says("system:anonymous"),
        get("a front proxy's headers", 403, "Forbidden")
            .header(("x-remote-user", "admin"))
            .header(("x-remote-group", "system:masters"))
            .says("system:anonymous"),
        get("the same in another spelling", 403, "Forbidden")
            .header(("x_remote_user", "admin"))
            .header(("X-Remote-Group", "system:masters"))
            .says("system:anonymous"),
        get("nobody as somebody", 403, "Forbidden")
            .header(("impersonate-user", "admin"))
            .header(("impersonate-group", "system:masters")),
        get("a group without a user", 400, "BadRequest").header(("impersonate-group", "system:masters")),
        get("an invalid token", 401, "Unauthorized").header(("authorization", "Bearer x.y.z")),
        get("a password", 403, "Forbidden").header(("authorization", "Basic YTpi")).says("system:anonymous"),
        get("a token without end", 401, "Unauthorized")
            .header(("authorization", &format!("Bearer {}", "t".repeat(20_000)))),
        get("another tenant's token", 401, "Unauthorized").header(("authorization", &bearer)),
        get("another tenant's token as somebody", 401, "Unauthorized")
            .header(("authorization", &bearer))
            .header(("impersonate-user", "admin")),
        row("another tenant's token in nowhere", "GET", "/clusters/root:zz/api", 401, "Unauthorized")
            .header(("authorization", &bearer)),
        row("a namesake's rights in root", "GET", "/metrics", 403, "Forbidden").header(("authorization", &bearer)),
        row("a namesake's rights in root, by a path", "GET", "/clusters/root/metrics", 403, "Forbidden")
            .header(("authorization", &bearer)),
    ];
    front.check(rows, false).await;
    let home = row("at home", "GET", "/clusters/root:t/api", 200, "").header(("authorization", &bearer));
    front.ask(&home, false).await.expect(200);
    let version = row("what all may read", "GET", "/version", 200, "").header(("authorization", &bearer));
    front.ask(&version, false).await.expect(200);
}

/// A token of `root:t` whose account has the name of one in root that may read the metrics.
async fn a_tenants_token(plane: &Plane) -> String {
    const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
    let admin = plane.admin();
    let role = json!({
        "metadata": {"name": "metrics"},
        "rules": [{"verbs": ["get"], "nonResourceURLs": ["/metrics"]}],
    });
    admin.post(&format!("{RBAC}/clusterroles"), role).await.expect(201);
    let binding = json!({
        "metadata": {"name": "metrics"},
        "subjects": [
            {"kind": "ServiceAccount", "namespace": "default", "name": "bot"},
            {"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": "system:serviceaccounts"},
        ],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "metrics"},
    });
    admin.post(&format!("{RBAC}/clusterrolebindings"), binding).await.expect(201);
    admin.post("/apis/tenancy.kcp.io/v1alpha1/workspaces", json!({"metadata": {"name": "t"}})).await.expect(201);
    let inside = admin.at("root:t");
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    inside.post(accounts, json!({"metadata": {"name": "bot"}})).await.expect(201);
    let made = inside.post(&format!("{accounts}/bot/token"), json!({"spec": {}})).await.expect(201).json();
    made["status"]["token"].as_str().unwrap().to_owned()
}
