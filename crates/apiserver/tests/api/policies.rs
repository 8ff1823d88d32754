//! Admission policies, bound and evaluated.

use futures::future::join_all;
use portolan_apiserver::ApiServerConfig;
use portolan_types::Seams;
use serde_json::{Value, json};

use crate::common::{Client, MAPS, Plane, config_map};

const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Rules for ConfigMaps that are made or changed.
fn maps() -> Value {
    json!({"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE", "UPDATE"]}]})
}

fn with(mut object: Value, more: Value) -> Value {
    for (key, value) in more.as_object().into_iter().flatten() {
        object[key] = value.clone();
    }
    object
}

/// A policy `p` and its binding `b`; by default it denies ConfigMaps.
async fn bind(admin: &Client, policy: Value, binding: Value) {
    let spec = with(json!({"matchConstraints": maps()}), policy);
    let policy = json!({"metadata": {"name": "p"}, "spec": spec});
    admin.post(&format!("{GROUP}/validatingadmissionpolicies"), policy).await.expect(201);
    let spec = with(json!({"policyName": "p", "validationActions": ["Deny"]}), binding);
    let binding = json!({"metadata": {"name": "b"}, "spec": spec});
    admin.post(&format!("{GROUP}/validatingadmissionpolicybindings"), binding).await.expect(201);
}

async fn unbind(admin: &Client) {
    admin.delete(&format!("{GROUP}/validatingadmissionpolicybindings/b")).await.expect(200);
    admin.delete(&format!("{GROUP}/validatingadmissionpolicies/p")).await.expect(200);
}

fn validations(expression: &str) -> Value {
    json!({"validations": [{"expression": expression}]})
}

fn denied(message: &str) -> String {
    format!(r#"configmaps "m" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: {message}"#)
}

#[tokio::test]
async fn a_policy_refuses_objects_that_fail_its_expressions() {
    let admin = Plane::new().await.admin();
    admin.merge("/api/v1/namespaces/default", json!({"metadata": {"labels": {"team": "a"}}})).await.expect(200);
    for (case, policy, binding, code, message) in [
        ("what holds", validations("object.data.k == 'v'"), json!({}), 201, String::new()),
        (
            "what does not",
            validations("object.data.k == 'w'"),
            json!({}),
            422,
            denied("failed expression: object.data.k == 'w'"),
        ),
        (
            "with a message and a reason",
            json!({"validations": [{"expression": "false", "message": "no ", "reason": "Forbidden"}]}),
            json!({}),
            403,
            denied("no"),
        ),
        (
            "with an expression of a message",
            json!({
                "variables": [{"name": "k", "expression": "object.data.k"}],
                "validations": [{"expression": "variables.k == 'w'", "messageExpression": "'not ' + variables.k"}],
            }),
            json!({}),
            422,
            denied("not v"),
        ),
        (
            "what fails",
            validations("object.data.x == 'w'"),
            json!({}),
            422,
            denied("expression 'object.data.x == 'w'' resulted in error: no such key: x"),
        ),
        (
            "what fails and does not matter",
            with(validations("object.data.x == 'w'"), json!({"failurePolicy": "Ignore"})),
            json!({}),
            201,
            String::new(),
        ),
        (
            "the namespace",
            validations("namespaceObject.metadata.labels['team'] == 'b'"),
            json!({}),
            422,
            denied("failed expression: namespaceObject.metadata.labels['team'] == 'b'"),
        ),
        (
            "the request",
            validations(
                "request.operation == 'CREATE' && request.namespace == 'default' && request.kind.kind == 'ConfigMap' && request.dryRun",
            ),
            json!({}),
            201,
            String::new(),
        ),
        (
            "rights",
            validations("!authorizer.group('').resource('configmaps').namespace('default').check('delete').allowed()"),
            json!({}),
            422,
            denied(
                "failed expression: !authorizer.group('').resource('configmaps').namespace('default').check('delete').allowed()",
            ),
        ),
        (
            "conditions that do not match",
            with(
                validations("false"),
                json!({"matchConditions": [{"name": "c", "expression": "object.data.k == 'w'"}]}),
            ),
            json!({}),
            201,
            String::new(),
        ),
        (
            "a binding for others",
            validations("false"),
            json!({"matchResources": {"objectSelector": {"matchLabels": {"a": "b"}}}}),
            201,
            String::new(),
        ),
        (
            "a binding for this one",
            validations("false"),
            json!({"matchResources": {"namespaceSelector": {"matchLabels": {"team": "a"}}}}),
            422,
            denied("failed expression: false"),
        ),
        (
            "other names",
            with(
                validations("false"),
                json!({"matchConstraints": {"resourceRules": [with(maps()["resourceRules"][0].clone(), json!({"resourceNames": ["x"]}))]}}),
            ),
            json!({}),
            201,
            String::new(),
        ),
        (
            "an exception",
            with(
                validations("false"),
                json!({"matchConstraints": with(maps(), json!({"excludeResourceRules": [with(maps()["resourceRules"][0].clone(), json!({"resourceNames": ["m"]}))]}))}),
            ),
            json!({}),
            201,
            String::new(),
        ),
        (
            "an annotation that cannot be made",
            json!({"auditAnnotations": [{"key": "k", "valueExpression": "string(object.data.x)"}]}),
            json!({}),
            422,
            denied("expression 'string(object.data.x)' resulted in error: no such key: x"),
        ),
        (
            "an annotation",
            json!({"auditAnnotations": [{"key": "k", "valueExpression": "string(object.data.k)"}]}),
            json!({}),
            201,
            String::new(),
        ),
        ("who only wants to know", validations("false"), json!({"validationActions": ["Audit"]}), 201, String::new()),
    ] {
        bind(&admin, policy, binding).await;
        let map = json!({"metadata": {"name": "m"}, "data": {"k": "v"}});
        let answer = admin.post(&format!("{MAPS}?dryRun=All"), map).await;
        assert_eq!((answer.code, case), (code, case), "{}", answer.text());
        if code != 201 {
            assert_eq!(answer.message(), message, "{case}");
            let cause = message.split_once("is forbidden: ").map(|(_, cause)| cause);
            assert_eq!(answer.json()["details"]["causes"][0]["message"].as_str(), cause, "{case}");
        }
        unbind(&admin).await;
    }
}

#[tokio::test]
async fn a_policy_warns_where_its_binding_wants_no_more() {
    let admin = Plane::new().await.admin();
    bind(&admin, validations("false"), json!({"validationActions": ["Warn", "Audit"]})).await;
    let made = admin.post(MAPS, config_map("m", json!({}))).await.expect(201);
    let warning =
        r#"299 - "Validation failed for ValidatingAdmissionPolicy 'p' with binding 'b': failed expression: false""#;
    assert_eq!(made.headers["warning"], warning);
    // kube-apiserver counts a violation as an error too.
    let text = admin.get("/metrics").await.expect(200).text();
    for action in ["audit", "warn"] {
        let labels =
            format!(r#"{{enforcement_action="{action}",error_type="invalid_error",policy="p",policy_binding="b"}} 1"#);
        for name in ["check_total", "check_duration_seconds_count"] {
            let line = format!("apiserver_validating_admission_policy_{name}{labels}");
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }
    for name in ["compilation", "evaluation"] {
        let line = format!("apiserver_cel_{name}_duration_seconds_count 1");
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}

#[tokio::test]
async fn policies_are_asked_about_deletions_and_never_about_themselves() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    admin.post("/apis/tenancy.kcp.io/v1alpha1/workspaces", json!({"metadata": {"name": "a"}})).await.expect(201);
    admin.post(MAPS, config_map("m", json!({}))).await.expect(201);
    let all = json!({"matchConstraints": {"resourceRules": [{"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"], "operations": ["*"]}]}});
    bind(&admin, with(validations("object == null && oldObject.metadata.name == 'none'"), all), json!({})).await;
    let refused = admin.delete(&format!("{MAPS}/m")).await.expect(422);
    assert!(refused.message().contains("denied request: failed expression: object == null"), "{}", refused.message());
    admin.post(MAPS, config_map("n", json!({}))).await.expect(422);
    let review = json!({"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}});
    admin.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review).await.expect(201);
    admin.at("root:a").post(MAPS, config_map("n", json!({}))).await.expect(201);
    unbind(&admin).await;
    admin.delete(&format!("{MAPS}/m")).await.expect(200);
}

#[tokio::test]
async fn other_versions_are_judged_where_they_are_equivalent() {
    let admin = Plane::new().await.admin();
    let rules = json!([{"apiGroups": ["autoscaling"], "apiVersions": ["v2"], "resources": ["horizontalpodautoscalers"], "operations": ["*"]}]);
    let scaler = json!({"metadata": {"name": "s"}, "spec": {"maxReplicas": 3, "scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"}}});
    let path = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers?dryRun=All";
    let sees = "object.apiVersion != 'autoscaling/v2' || request.requestKind.version != 'v1'";
    for (policy, code) in [("Exact", 201), ("Equivalent", 422)] {
        let constraints = json!({"matchConstraints": {"resourceRules": rules, "matchPolicy": policy}});
        bind(&admin, with(validations(sees), constraints), json!({})).await;
        admin.post(path, scaler.clone()).await.expect(code);
        unbind(&admin).await;
    }
}

#[tokio::test]
async fn parameters_are_named_by_the_binding() {
    let admin = Plane::new().await.admin();
    let definition = json!({
        "metadata": {"name": "limits.example.com"},
        "spec": {
            "group": "example.com", "scope": "Cluster", "names": {"plural": "limits", "kind": "Limit"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}],
        },
    });
    let mut made = admin.post(DEFINITIONS, definition).await.expect(201).json();
    // The loop that says so is not here.
    made["status"]["acceptedNames"] = made["spec"]["names"].clone();
    made["status"]["conditions"] = json!([{"type": "Established", "status": "True", "reason": "InitialNamesAccepted", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
    admin.put(&format!("{DEFINITIONS}/limits.example.com/status"), made).await.expect(200);
    let limit = json!({"apiVersion": "example.com/v1", "kind": "Limit", "metadata": {"name": "l"}, "most": 1});
    admin.post("/apis/example.com/v1/limits", limit).await.expect(201);
    for (name, labels, most) in [("one", "x", "1"), ("two", "x", "2"), ("three", "y", "3")] {
        let map = json!({"metadata": {"name": name, "labels": {"set": labels}}, "data": {"most": most}});
        admin.post(MAPS, map).await.expect(201);
    }
    let of_maps = json!({"apiVersion": "v1", "kind": "ConfigMap"});
    let of_limits = json!({"apiVersion": "example.com/v1", "kind": "Limit"});
    let named = |name: &str| json!({"name": name, "parameterNotFoundAction": "Deny"});
    let selected =
        |set: &str, action: &str| json!({"selector": {"matchLabels": {"set": set}}, "parameterNotFoundAction": action});
    let (by_map, by_limit) = ("object.data.n <= params.data.most", "params.most == 2 && params.kind == 'Limit'");
    let missing = "failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction";
    for (case, kind, reference, expression, refused) in [
        ("an object", &of_maps, named("two"), by_map, None),
        (
            "one that is too little",
            &of_maps,
            named("one"),
            by_map,
            Some("failed expression: object.data.n <= params.data.most"),
        ),
        (
            "a custom one",
            &of_limits,
            named("l"),
            by_limit,
            Some("failed expression: params.most == 2 && params.kind == 'Limit'"),
        ),
        (
            "all of several",
            &of_maps,
            selected("x", "Deny"),
            by_map,
            Some("failed expression: object.data.n <= params.data.most"),
        ),
        ("others", &of_maps, selected("y", "Deny"), by_map, None),
        ("none", &of_maps, selected("z", "Deny"), by_map, Some(missing)),
        ("none, which does not matter", &of_maps, selected("z", "Allow"), by_map, None),
        ("none of that name", &of_maps, named("none"), by_map, Some(missing)),
        (
            "another namespace",
            &of_maps,
            json!({"name": "two", "namespace": "kube-system", "parameterNotFoundAction": "Deny"}),
            by_map,
            Some(missing),
        ),
        (
            "a namespace of what has none",
            &of_limits,
            json!({"name": "l", "namespace": "default", "parameterNotFoundAction": "Deny"}),
            by_limit,
            Some(
                "failed to configure binding: paramRef.namespace must not be provided for a cluster-scoped `paramKind`",
            ),
        ),
    ] {
        bind(&admin, with(validations(expression), json!({"paramKind": kind})), json!({"paramRef": reference})).await;
        let map = json!({"metadata": {"name": "m"}, "data": {"n": "2"}});
        let answer = admin.post(&format!("{MAPS}?dryRun=All"), map).await;
        match refused {
            Some(message) => assert_eq!(answer.expect(422).message(), denied(message), "{case}"),
            None => assert_eq!(answer.code, 201, "{case}: {}", answer.text()),
        }
        unbind(&admin).await;
    }
    bind(&admin, with(validations("params == null"), json!({"paramKind": of_limits})), json!({})).await;
    admin.post(&format!("{MAPS}?dryRun=All"), config_map("m", json!({}))).await.expect(201);
    unbind(&admin).await;
    let unknown = json!({"paramKind": {"apiVersion": "example.com/v2", "kind": "None"}});
    bind(&admin, with(validations("true"), unknown), json!({"paramRef": named("x")})).await;
    let refused = admin.post(&format!("{MAPS}?dryRun=All"), config_map("m", json!({}))).await.expect(422);
    let why =
        "failed to configure policy: failed to find resource referenced by paramKind: 'example.com/v2, Kind=None'";
    assert!(
        refused.message().ends_with(&format!("ValidatingAdmissionPolicy 'p' denied request: {why}")),
        "{}",
        refused.message()
    );
}

/// Three ConfigMaps with a label, 2.7 MB together.
async fn large(admin: &Client) -> Value {
    for name in ["one", "two", "three"] {
        let metadata = json!({"name": name, "labels": {"set": "large"}});
        admin.post(MAPS, json!({"metadata": metadata, "data": {"k": "x".repeat(900_000)}})).await.expect(201);
    }
    json!({"paramRef": {"selector": {"matchLabels": {"set": "large"}}, "parameterNotFoundAction": "Deny"}})
}

#[tokio::test]
async fn parameters_are_read_up_to_a_bound_over_all_bindings() {
    let admin = Plane::new().await.admin();
    let reference = large(&admin).await;
    let kind = json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}});
    bind(&admin, with(validations("size(params.data.k) > 0"), kind), reference.clone()).await;
    let (dry, map) = (format!("{MAPS}?dryRun=All"), config_map("m", json!({})));
    admin.post(&dry, map.clone()).await.expect(201);

    let spec = with(json!({"policyName": "p", "validationActions": ["Deny"]}), reference);
    let bindings = format!("{GROUP}/validatingadmissionpolicybindings");
    admin.post(&bindings, json!({"metadata": {"name": "c"}, "spec": spec})).await.expect(201);
    let refused = admin.post(&dry, map.clone()).await.expect(422).message();
    let why = "failed to configure binding: policies take more than 4194304 bytes of params";
    assert_eq!(refused, denied(why).replace("binding 'b'", "binding 'c'"));

    let policy = format!("{GROUP}/validatingadmissionpolicies/p");
    admin.merge(&policy, json!({"spec": {"failurePolicy": "Ignore"}})).await.expect(200);
    admin.post(&dry, map).await.expect(201);
}

#[tokio::test]
async fn admission_configurations_are_bounded_by_count_and_bytes() {
    let hook = |name: &str| json!({"metadata": {"name": name}, "webhooks": []});
    let binding =
        |name: &str| json!({"metadata": {"name": name}, "spec": {"policyName": "p", "validationActions": ["Deny"]}});
    let (hooks, bindings) = ("mutatingwebhookconfigurations", "validatingadmissionpolicybindings");
    let [hooks, bindings] = [hooks, bindings].map(|resource| format!("{GROUP}/{resource}"));

    let admin = Plane::with(|config| config.limits.admission_objects = 2).await.admin();
    admin.post(&hooks, hook("a")).await.expect(201);
    admin.post(&bindings, binding("a")).await.expect(201);
    for (path, object) in [(&bindings, binding("b")), (&hooks, hook("b"))] {
        let refused = admin.post(path, object).await.expect(403).message();
        let expected = "the admission policies, bindings and webhook configurations of a logical cluster are at most 2";
        assert!(refused.ends_with(expected), "{refused}");
    }
    admin.merge(&format!("{bindings}/a"), json!({"metadata": {"labels": {"a": "b"}}})).await.expect(200);
    admin.delete(&format!("{hooks}/a")).await.expect(200);
    admin.post(&bindings, binding("b")).await.expect(201);

    let admin = Plane::with(|config| config.limits.admission_bytes = 40_000).await.admin();
    let long = |mut object: Value, bytes: usize| {
        object["metadata"]["annotations"] = json!({"a": "x".repeat(bytes)});
        object
    };
    admin.post(&hooks, long(hook("a"), 20_000)).await.expect(201);
    let refused = admin.post(&bindings, long(binding("b"), 20_000)).await.expect(403).message();
    assert!(refused.ends_with("of a logical cluster have at most 40000 bytes"), "{refused}");
    admin.post(&bindings, long(binding("b"), 10_000)).await.expect(201);
    let of = |bytes: usize| json!({"metadata": {"annotations": {"a": "x".repeat(bytes)}}});
    admin.merge(&format!("{bindings}/b"), of(20_000)).await.expect(403);
    admin.merge(&format!("{bindings}/b"), of(1)).await.expect(200);
}

#[tokio::test]
async fn limits_and_classes_have_a_bound_in_number_and_in_bytes() {
    let class =
        |name: &str, bytes: usize| json!({"metadata": {"name": name}, "value": 1, "description": "x".repeat(bytes)});
    let range = |name: &str| json!({"metadata": {"name": name}, "spec": {"limits": []}});
    let (classes, ranges) = ("/apis/scheduling.k8s.io/v1/priorityclasses", "/api/v1/namespaces/default/limitranges");
    let admin = Plane::with(|config| config.limits.admission_objects = 2).await.admin();
    admin.post(classes, class("a", 1)).await.expect(201);
    admin.post(ranges, range("a")).await.expect(201);
    let refused = admin.post(ranges, range("b")).await.expect(403).message();
    assert!(refused.ends_with("the LimitRanges and PriorityClasses of a logical cluster are at most 2"), "{refused}");
    admin.delete(&format!("{classes}/a")).await.expect(200);
    admin.post(ranges, range("b")).await.expect(201);

    let admin = Plane::with(|config| config.limits.admission_bytes = 40_000).await.admin();
    admin.post(classes, class("a", 20_000)).await.expect(201);
    admin.post(classes, class("b", 20_000)).await.expect(403);
    admin.post(classes, class("b", 10_000)).await.expect(201);
}

/// Returns how many of twenty concurrent writes succeed; the others are refused.
async fn accepted_writes(admin: &Client, path: &str, object: impl Fn(usize) -> Value) -> usize {
    let create = |n| {
        let (admin, path, object) = (admin.clone(), path.to_owned(), object(n));
        tokio::spawn(async move { admin.post(&path, object).await.code })
    };
    let codes: Vec<u16> = join_all((0..20).map(create)).await.into_iter().map(Result::unwrap).collect();
    assert!(codes.iter().all(|code| matches!(code, 201 | 403)), "{codes:?}");
    codes.iter().filter(|code| **code == 201).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn racing_writes_respect_the_bounds_of_admission_configurations() {
    let hooks = format!("{GROUP}/mutatingwebhookconfigurations");
    let hook = |n: usize| json!({"metadata": {"name": format!("h{n}"), "annotations": {"a": "x".repeat(9000)}}, "webhooks": []});
    let admin = Plane::with(|config| config.limits.admission_objects = 3).await.admin();
    assert_eq!(accepted_writes(&admin, &hooks, hook).await, 3);
    let admin = Plane::with(|config| config.limits.admission_bytes = 50_000).await.admin();
    assert_eq!(accepted_writes(&admin, &hooks, hook).await, 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn writes_that_race_do_not_go_over_the_bounds_of_definitions() {
    let definition = |n: usize| {
        json!({
            "metadata": {"name": format!("w{n}s.example.dev"), "annotations": {"a": "x".repeat(9000)}},
            "spec": {
                "group": "example.dev", "scope": "Namespaced",
                "names": {"plural": format!("w{n}s"), "kind": format!("W{n}")},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}],
            },
        })
    };
    let admin = Plane::with(|config| config.limits.definitions = 3).await.admin();
    assert_eq!(accepted_writes(&admin, DEFINITIONS, definition).await, 3);
    let admin = Plane::with(|config| config.limits.defined_names = 4).await.admin();
    assert_eq!(accepted_writes(&admin, DEFINITIONS, definition).await, 4);
    let admin = Plane::with(|config| config.limits.definition_bytes = 50_000).await.admin();
    assert_eq!(accepted_writes(&admin, DEFINITIONS, definition).await, 5);
}

#[tokio::test]
async fn expressions_of_policies_must_compile_when_they_are_written() {
    let admin = Plane::new().await.admin();
    for (spec, says) in [
        (validations("1"), r#"spec.validations[0].expression: Invalid value: "1": must evaluate to bool but got int"#),
        (validations("params.x"), "undeclared reference to 'params' (in container '')"),
        (
            json!({"variables": [{"name": "a", "expression": "1"}], "validations": [{"expression": "variables.b == 1"}]}),
            "undefined field 'b'",
        ),
        (
            json!({"validations": [{"expression": "true", "messageExpression": "authorizer"}]}),
            "spec.validations[0].messageExpression: Invalid value: \"authorizer\": compilation failed: ",
        ),
        (
            json!({"auditAnnotations": [{"key": "k", "valueExpression": "1"}]}),
            "must evaluate to one of [string null_type] but got int",
        ),
    ] {
        let spec = with(json!({"matchConstraints": maps()}), spec);
        let policy = json!({"metadata": {"name": "p"}, "spec": spec});
        let refused = admin.post(&format!("{GROUP}/validatingadmissionpolicies"), policy).await.expect(422);
        assert!(refused.message().contains(says), "{}", refused.message());
    }
}

#[tokio::test]
async fn statuses_and_webhooks_have_bounds_of_their_own() {
    let policies = format!("{GROUP}/validatingadmissionpolicies");
    let policy = |name: &str, bytes: usize| {
        let spec = with(json!({"matchConstraints": maps()}), validations("true"));
        json!({"metadata": {"name": name, "annotations": {"a": "x".repeat(bytes)}}, "spec": spec})
    };
    let admin = Plane::with(|config| config.limits.admission_bytes = 40_000).await.admin();
    admin.post(&policies, policy("a", 0)).await.expect(201);
    let status = |bytes: usize| {
        let warning = json!({"fieldRef": "spec.validations[0].expression", "warning": "x".repeat(bytes)});
        json!({"status": {"typeChecking": {"expressionWarnings": [warning]}}})
    };
    let refused = admin.merge(&format!("{policies}/a/status"), status(50_000)).await.expect(403).message();
    assert!(refused.ends_with("have at most 40000 bytes of statuses"), "{refused}");
    admin.merge(&format!("{policies}/a/status"), status(30_000)).await.expect(200);
    admin.post(&policies, policy("b", 30_000)).await.expect(201);

    let admin = Plane::with(|config| config.limits.admission_webhooks = 3).await.admin();
    let hooks = |names: &[&str]| -> Vec<Value> {
        let hook = |name: &&str| {
            json!({"name": format!("{name}.example.com"), "sideEffects": "None",
            "clientConfig": {"url": "https://example.com"}, "admissionReviewVersions": ["v1"]})
        };
        names.iter().map(hook).collect()
    };
    let [mutating, validating] = ["mutating", "validating"].map(|kind| format!("{GROUP}/{kind}webhookconfigurations"));
    let of = |name: &str, names: &[&str]| json!({"metadata": {"name": name}, "webhooks": hooks(names)});
    admin.post(&mutating, of("m", &["a", "b"])).await.expect(201);
    let refused = admin.post(&validating, of("v", &["a", "b"])).await.expect(403).message();
    assert!(refused.ends_with("of a logical cluster have at most 3 webhooks"), "{refused}");
    admin.post(&validating, of("v", &["a"])).await.expect(201);
    admin.merge(&format!("{validating}/v"), json!({"webhooks": hooks(&["a", "b"])})).await.expect(403);
    admin.merge(&format!("{mutating}/m"), json!({"webhooks": hooks(&["a"])})).await.expect(200);
    admin.merge(&format!("{validating}/v"), json!({"webhooks": hooks(&["a", "b"])})).await.expect(200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_servers_on_one_store_do_not_go_over_the_bounds_of_definitions() {
    let store = portolan_store::memory();
    let config = || {
        let mut config = ApiServerConfig::in_memory(Seams::system());
        config.limits.definitions = 3;
        config
    };
    let (first, second) = (Plane::on(store.clone(), config()).await, Plane::on(store, config()).await);
    let create = |n: usize| {
        let admin = [&first, &second][n % 2].admin();
        let definition = json!({
            "metadata": {"name": format!("w{n}s.example.dev")},
            "spec": {
                "group": "example.dev", "scope": "Namespaced",
                "names": {"plural": format!("w{n}s"), "kind": format!("W{n}")},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}],
            },
        });
        tokio::spawn(async move { admin.post(DEFINITIONS, definition).await.code })
    };
    let codes: Vec<u16> = join_all((0..12).map(create)).await.into_iter().map(Result::unwrap).collect();
    let made = codes.iter().filter(|code| **code == 201).count();
    assert!((1..=3).contains(&made), "{codes:?}");
    let all = first.admin().get(DEFINITIONS).await.expect(200).json();
    assert_eq!(all["items"].as_array().map(Vec::len), Some(made));
}
