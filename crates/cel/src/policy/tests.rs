use super::*;
use serde_json::json;

fn denied(message: &str) -> PolicyDecision {
    PolicyDecision::Deny { message: message.to_owned(), reason: "Invalid".to_owned(), is_error: false }
}

fn failed(message: &str) -> PolicyDecision {
    PolicyDecision::Deny { message: message.to_owned(), reason: "Invalid".to_owned(), is_error: true }
}

/// What a policy says of a Deployment with three replicas.
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
    policy.validate(Review { data: &data, ..Review::default() })
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
            "what does not is told by the expression",
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
fn what_is_wrong_with_expressions_is_told_with_their_paths() {
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
    assert_eq!(found[1].1, "must evaluate to bool");
    assert!(found[3].1.contains("undefined field 'w'"), "{}", found[3].1);
    assert_eq!(found[4].1, "must evaluate to one of [string null_type]");
}
