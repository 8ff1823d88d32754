use super::*;
use serde_json::json;

fn denied(message: &str) -> PolicyDecision {
    PolicyDecision::Deny { message: message.to_owned(), reason: "Invalid".to_owned(), is_error: false }
}

fn failed(message: &str) -> PolicyDecision {
    PolicyDecision::Deny { message: message.to_owned(), reason: "Invalid".to_owned(), is_error: true }
}

/// Evaluates a policy on a Deployment with three replicas.
fn verdict(spec: &Json) -> PolicyVerdict {
    let object = json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": {"replicas": 3}});
    let request =
        json!({"operation": "CREATE", "namespace": "shop", "userInfo": {"username": "ann", "groups": ["dev"]}});
    let namespace = json!({"metadata": {"name": "shop", "labels": {"team": "a"}}});
    let params = json!({"max": 2});
    let data = [
        ("object", &object),
        ("oldObject", &Json::Null),
        ("request", &request),
        ("namespaceObject", &namespace),
        ("params", &params),
    ];
    let policy = ValidatingPolicy::new(spec);
    policy
        .validate(ReviewVariables { data: &data, ..ReviewVariables::default() }, EvaluationEffort::Full)
        .expect("all the effort that it takes")
}

#[test]
fn a_policy_decides_by_its_validations() {
    let expressions = |list: Json| json!({"paramKind": {"kind": "Limit"}, "validations": list});
    for (case, spec, expected) in [
        (
            "what holds is admitted",
            expressions(json!([{"expression": "object.spec.replicas == 3"}])),
            vec![PolicyDecision::Admit],
        ),
        (
            "a failure is reported by the expression",
            expressions(json!([{"expression": "object.spec.replicas < 3"}])),
            vec![denied("failed expression: object.spec.replicas < 3")],
        ),
        (
            "or by a message",
            expressions(json!([{"expression": "object.spec.replicas <= params.max", "message": "too many"}])),
            vec![denied("too many")],
        ),
        (
            "or by an expression of a message",
            expressions(
                json!([{"expression": "false", "message": "m", "messageExpression": "'at most ' + string(params.max)"}]),
            ),
            vec![denied("at most 2")],
        ),
        (
            "each validation decides",
            expressions(
                json!([{"expression": "request.operation == 'CREATE'"}, {"expression": "namespaceObject.metadata.labels['team'] == 'b'"}]),
            ),
            vec![PolicyDecision::Admit, denied("failed expression: namespaceObject.metadata.labels['team'] == 'b'")],
        ),
        (
            "an expression that fails refuses",
            expressions(json!([{"expression": "object.none == 1"}])),
            vec![failed("expression 'object.none == 1' resulted in error: no such key: none")],
        ),
        (
            "or does not matter",
            json!({"failurePolicy": "Ignore", "validations": [{"expression": "object.none == 1"}]}),
            vec![PolicyDecision::Admit],
        ),
        (
            "the reserved name of a field is understood",
            expressions(json!([{"expression": "request.namespace == 'shop' && oldObject == null"}])),
            vec![PolicyDecision::Admit],
        ),
    ] {
        assert_eq!(verdict(&spec).decisions, expected, "{case}");
    }
}

#[test]
fn variables_are_computed_when_they_are_needed() {
    let spec = json!({
        "variables": [
            {"name": "replicas", "expression": "object.spec.replicas"},
            {"name": "twice", "expression": "variables.replicas * 2"},
            {"name": "broken", "expression": "object.none"},
        ],
        "validations": [{"expression": "variables.twice == 6"}, {"expression": "variables.broken == 1"}],
        "auditAnnotations": [{"key": "n", "valueExpression": "'n=' + string(variables.twice)"}, {"key": "none", "valueExpression": "null"}],
    });
    let verdict = verdict(&spec);
    let message = "expression 'variables.broken == 1' resulted in error: composited variable \"broken\" fails to evaluate: no such key: none";
    assert_eq!(verdict.decisions, [PolicyDecision::Admit, failed(message)]);
    assert_eq!(verdict.annotations, [AuditAnnotation { key: "n".to_owned(), value: Ok("n=6".to_owned()) }]);
}

#[test]
fn a_policy_is_for_what_its_conditions_match() {
    for (case, conditions, expected) in [
        ("all hold", json!([{"name": "a", "expression": "object.spec.replicas == 3"}]), 1),
        (
            "one does not",
            json!([{"name": "a", "expression": "object.none"}, {"name": "b", "expression": "request.operation == 'DELETE'"}]),
            0,
        ),
    ] {
        let spec = json!({"matchConditions": conditions, "validations": [{"expression": "true"}]});
        assert_eq!(verdict(&spec).decisions.len(), expected, "{case}");
    }
    let spec = json!({"matchConditions": [{"name": "a", "expression": "object.none == 1"}], "validations": [{"expression": "true"}]});
    assert_eq!(
        verdict(&spec).decisions,
        [failed("expression 'object.none == 1' resulted in error: no such key: none")]
    );
}

#[test]
fn expression_errors_have_paths() {
    let policy = ValidatingPolicy::new(&json!({
        "variables": [{"name": "v", "expression": "1 +"}],
        "validations": [{"expression": "1", "messageExpression": "authorizer == null"}, {"expression": "variables.w"}],
        "auditAnnotations": [{"key": "k", "valueExpression": "1"}],
    }));
    let found: Vec<(String, String)> = policy
        .problems()
        .into_iter()
        .map(|(path, problem)| (path, problem.lines().next().unwrap_or_default().to_owned()))
        .collect();
    let paths: Vec<&str> = found.iter().map(|(path, _)| path.as_str()).collect();
    let expected = [
        "variables[0].expression",
        "validations[0].expression",
        "validations[0].messageExpression",
        "validations[1].expression",
        "auditAnnotations[0].valueExpression",
    ];
    assert_eq!(paths, expected);
    assert_eq!(found[1].1, "must evaluate to bool but got int");
    assert!(found[3].1.contains("undefined field 'w'"), "{}", found[3].1);
    assert_eq!(found[4].1, "must evaluate to one of [string null_type] but got int");
}

/// Applies the first mutation of a policy to a Deployment with three replicas.
fn change(kind: &str, expression: &str) -> Result<Option<MutationPatch>, String> {
    let part = if kind == "JSONPatch" { "jsonPatch" } else { "applyConfiguration" };
    let spec = json!({
        "variables": [{"name": "more", "expression": "object.spec.replicas + 1"}],
        "mutations": [{"patchType": kind, part: {"expression": expression}}],
    });
    let object = json!({"metadata": {"name": "web", "labels": {"a": "b"}}, "spec": {"replicas": 3}});
    let data = [("object", &object), ("oldObject", &Json::Null), ("request", &Json::Null)];
    let policy = MutatingPolicy::new(&spec);
    policy
        .change(0, ReviewVariables { data: &data, ..ReviewVariables::default() }, EvaluationEffort::Full)
        .expect("all the effort that it takes")
}

#[test]
fn a_mutation_makes_a_configuration_or_a_patch() {
    for (case, kind, expression, expected) in [
        (
            "an object",
            "ApplyConfiguration",
            "Object{spec: Object.spec{replicas: variables.more, paused: true}}",
            Ok(MutationPatch::Apply(json!({"spec": {"replicas": 4, "paused": true}}))),
        ),
        (
            "maps and lists",
            "ApplyConfiguration",
            r#"Object{metadata: Object.metadata{labels: {"k": "v"}, finalizers: ["a"]}, data: object.metadata.labels}"#,
            Ok(MutationPatch::Apply(
                json!({"metadata": {"labels": {"k": "v"}, "finalizers": ["a"]}, "data": {"a": "b"}}),
            )),
        ),
        (
            "a field that is there only if there is a value",
            "ApplyConfiguration",
            "Object{?spec: optional.none(), ?kind: object.?kind, apiVersion: 'v1'}",
            Ok(MutationPatch::Apply(json!({"apiVersion": "v1"}))),
        ),
        (
            "a name that does not fit its place",
            "ApplyConfiguration",
            "Object{spec: Object.status{}}",
            Err(
                r#"type mismatch: unexpected type name "Object.status", expected "Object.spec", which matches field name path from root Object type"#,
            ),
        ),
        (
            "operations",
            "JSONPatch",
            r#"[JSONPatch{op: "test", path: "/a", value: 1}, JSONPatch{op: "add", path: "/metadata/labels/" + jsonpatch.escapeKey("x/y~z"), value: Object.spec{a: [1, 2]}}, JSONPatch{op: "copy", from: "/a", path: "/b"}]"#,
            Ok(MutationPatch::Patch(vec![
                json!({"op": "test", "path": "/a", "value": 1}),
                json!({"op": "add", "path": "/metadata/labels/x~1y~0z", "value": {"a": [1, 2]}}),
                json!({"op": "copy", "from": "/a", "path": "/b"}),
            ])),
        ),
        (
            "none",
            "JSONPatch",
            r#"has(object.none) ? [JSONPatch{op: "remove", path: "/none"}] : []"#,
            Ok(MutationPatch::Patch(Vec::new())),
        ),
        ("no object", "ApplyConfiguration", "{'a': 1}", Err("must evaluate to Object but got map(string, int)")),
        ("no operations", "JSONPatch", "[1]", Err("must evaluate to list(JSONPatch) but got list(int)")),
        (
            "an operation of another type",
            "JSONPatch",
            "[JSONPatch{op: 1, path: 'a'}]",
            Err("expected type of field 'op' is 'string' but provided type is 'int'"),
        ),
        (
            "what fails",
            "JSONPatch",
            "[JSONPatch{op: 'add', path: object.none}]",
            Err("expression '[JSONPatch{op: 'add', path: object.none}]' resulted in error: no such key: none"),
        ),
    ] {
        match (change(kind, expression), expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, Some(expected), "{case}"),
            (Err(found), Err(expected)) => assert!(found.contains(expected), "{case}: {found}"),
            (found, expected) => panic!("{case}: {found:?} instead of {expected:?}"),
        }
    }
}

#[test]
fn repeated_subexpressions_have_bounded_growth() {
    let mut expression = "'x'".to_owned();
    for _ in 0..6 {
        expression = format!("cel.bind(a, {expression}, [a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a])");
    }
    let found = change("ApplyConfiguration", &format!("Object{{spec: {expression}}}"));
    assert!(found.is_err_and(|why| why.contains("too large") || why.contains("cel.bind")), "sixteen million texts");
}

#[test]
fn a_brief_evaluation_gives_up_where_it_takes_long() {
    let list = "[1,2,3,4,5,6,7,8,9,10]";
    let slow =
        format!("{list}.all(a, {list}.all(b, {list}.all(c, {list}.all(d, {list}.all(e, a + b + c + d + e > 0)))))");
    for (expression, expected) in [("true", Ok(ConditionMatch::Yes)), (slow.as_str(), Err(EvaluationTooLong))] {
        let spec = json!({"matchConditions": [{"name": "a", "expression": expression}]});
        let conditions = MatchConditions::new(&spec, false);
        assert_eq!(conditions.matches(ReviewVariables::default(), EvaluationEffort::Brief), expected, "{expression}");
        assert!(conditions.matches(ReviewVariables::default(), EvaluationEffort::Full).is_ok());
    }
}
