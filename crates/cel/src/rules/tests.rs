use super::*;
use crate::RuleSchema;
use serde_json::{Value as Json, json};

fn messages(errors: &[RuleError]) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

fn validator(schema: &Json) -> RuleValidator {
    RuleValidator::new(&RuleSchema::from_json(schema)).expect("a schema with rules")
}

/// Removes two parts that differ by design: the random type name of `self` in kube-apiserver, and ANTLR's report.
fn comparable(text: &str) -> String {
    let text = text.split("Syntax error").next().unwrap_or_default();
    let (mut plain, mut rest) = (String::new(), text);
    while let Some(place) = rest.find("selfType") {
        let end = place + "selfType".len();
        plain += &rest[..end];
        rest = rest[end..].trim_start_matches(|character: char| character.is_ascii_digit());
    }
    plain + rest
}

/// Expressions of `e2e/codegen/celcases/expressions.txt` with the schema and the objects they are for.
struct Corpus {
    schema: Json,
    objects: Vec<Json>,
    expressions: Vec<&'static str>,
}

fn corpus() -> Corpus {
    let mut corpus = Corpus { schema: Json::Null, objects: Vec::new(), expressions: Vec::new() };
    for line in include_str!("../../../../e2e/codegen/celcases/expressions.txt").lines().map(str::trim) {
        if let Some(schema) = line.strip_prefix("schema ") {
            corpus.schema = serde_json::from_str(schema).expect("a schema");
        } else if let Some(object) = line.strip_prefix("object ") {
            corpus.objects.push(serde_json::from_str(object).expect("an object"));
        } else if !line.is_empty() && !line.starts_with('#') {
            corpus.expressions.push(line);
        }
    }
    corpus
}

fn rule(expression: &str) -> Json {
    if let Some(text) = expression.strip_prefix("message ") {
        return json!({"rule": "false", "messageExpression": text});
    }
    match expression.strip_prefix("optional ") {
        Some(text) => json!({"rule": text, "optionalOldSelf": true}),
        None => json!({"rule": expression}),
    }
}

#[test]
fn expressions_match_kube_apiserver_in_types_costs_and_results() {
    let corpus = corpus();
    let answers: Vec<Json> =
        include_str!("answers.jsonl").lines().map(|line| serde_json::from_str(line).expect("an answer")).collect();
    assert_eq!(answers.len(), corpus.expressions.len(), "one answer for each expression");
    for (expression, answer) in corpus.expressions.iter().zip(&answers) {
        let mut schema = corpus.schema.clone();
        schema["x-kubernetes-validations"] = json!([rule(expression)]);
        let schema = RuleSchema::from_json(&schema);
        let declared = crate::DeclaredType::of(&schema, true).expect("a type");
        let compiled = &compile(&schema, &schema.rules, &declared)[0];
        let problem = compiled.problem.as_ref().map_or("", |problem| &problem.0);
        let expected = &answer["rules"][0];
        assert_eq!(comparable(problem), comparable(expected["error"].as_str().unwrap_or_default()), "{expression}");
        assert_eq!(json!(compiled.max_cost.to_string()), expected["maxCost"], "the estimate of {expression}");
        let validator = RuleValidator::new(&schema).expect("a schema with rules");
        for (index, expected) in answer["objects"].as_array().expect("objects").iter().enumerate() {
            let new = index / 2;
            let old = (index % 2 == 1).then(|| &corpus.objects[(new + 1) % corpus.objects.len()]);
            let verdict = validator.validate(&corpus.objects[new], old);
            let found: Vec<String> = verdict.errors.iter().map(|error| comparable(&error.to_string())).collect();
            let wanted: Vec<String> = expected["errors"]
                .as_array()
                .expect("errors")
                .iter()
                .map(|error| comparable(error.as_str().expect("a text")))
                .collect();
            assert_eq!(found, wanted, "{expression} on object {index}");
            assert_eq!(json!(verdict.cost), expected["cost"], "the cost of {expression} on object {index}");
        }
    }
}

#[test]
fn rule_errors_have_paths_and_reasons() {
    for (case, rule, value, expected) in [
        (
            "the rule itself, without a message",
            json!({"rule": "self.x > 1"}),
            json!({"x": 1}),
            "spec: Invalid value: failed rule: self.x > 1",
        ),
        (
            "its message",
            json!({"rule": "self.x > 1", "message": " too few "}),
            json!({"x": 1}),
            "spec: Invalid value: too few",
        ),
        (
            "the message of an expression",
            json!({"rule": "self.x > 1", "messageExpression": "'only ' + string(self.x)"}),
            json!({"x": 1}),
            "spec: Invalid value: only 1",
        ),
        (
            "the message, where the expression fails",
            json!({"rule": "self.x > 1", "message": "few", "messageExpression": "string(1 / 0)"}),
            json!({"x": 1}),
            "spec: Invalid value: few",
        ),
        (
            "the field it names",
            json!({"rule": "self.x > 1", "message": "few", "fieldPath": ".x"}),
            json!({"x": 1}),
            "spec.x: Invalid value: few",
        ),
        (
            "a field that is required",
            json!({"rule": "has(self.x)", "message": "needed", "reason": "FieldValueRequired", "fieldPath": ".x"}),
            json!({}),
            "spec.x: Required value: needed",
        ),
        (
            "a field that is forbidden",
            json!({"rule": "!has(self.x)", "message": "no", "reason": "FieldValueForbidden"}),
            json!({"x": 2}),
            "spec: Forbidden: no",
        ),
        (
            "a duplicate, which has no message",
            json!({"rule": "false", "message": "no", "reason": "FieldValueDuplicate"}),
            json!({"x": 2}),
            "spec: Duplicate value",
        ),
        (
            "a rule that fails",
            json!({"rule": "self.x / 0 == 1"}),
            json!({"x": 1}),
            "spec: Invalid value: \"object\": division by zero evaluating rule: self.x / 0 == 1",
        ),
    ] {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object",
            "properties": {"x": {"type": "integer"}}, "x-kubernetes-validations": [rule]}}});
        let verdict = validator(&schema).validate(&json!({"spec": value}), None);
        assert_eq!(messages(&verdict.errors), [expected], "{case}");
    }
}

fn transition() -> RuleValidator {
    let one =
        json!({"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "immutable"}]});
    validator(&json!({"type": "object", "properties": {
        "name": one,
        "keyed": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
            "items": {"type": "object", "properties": {"k": {"type": "string"}, "v": one}}},
        "plain": {"type": "array", "items": one},
        "map": {"type": "object", "additionalProperties": one},
        "optional": {"type": "string", "x-kubernetes-validations": [
            {"rule": "!oldSelf.hasValue() || self == oldSelf.value()", "message": "set once", "optionalOldSelf": true}]},
    }}))
}

#[test]
fn transition_rules_run_where_there_is_an_old_value_to_compare() {
    for (case, new, old, expected) in [
        ("not without an old object", json!({"name": "a"}), None, vec![]),
        ("not for a new field", json!({"name": "a"}), Some(json!({})), vec![]),
        (
            "for a field",
            json!({"name": "b"}),
            Some(json!({"name": "a"})),
            vec!["name: Invalid value: \"b\": immutable"],
        ),
        (
            "for an element with the same key",
            json!({"keyed": [{"k": "2", "v": "x"}, {"k": "1", "v": "b"}]}),
            Some(json!({"keyed": [{"k": "1", "v": "a"}]})),
            vec!["keyed[1].v: Invalid value: \"b\": immutable"],
        ),
        ("not for elements by index", json!({"plain": ["b"]}), Some(json!({"plain": ["a"]})), vec![]),
        (
            "for a key of a map",
            json!({"map": {"k": "b"}}),
            Some(json!({"map": {"k": "a"}})),
            vec!["map[k]: Invalid value: \"b\": immutable"],
        ),
        ("an optional old value may be absent", json!({"optional": "a"}), None, vec![]),
        (
            "an optional old value is compared",
            json!({"optional": "b"}),
            Some(json!({"optional": "a"})),
            vec!["optional: Invalid value: \"b\": set once"],
        ),
    ] {
        let verdict = transition().validate(&new, old.as_ref());
        assert_eq!(messages(&verdict.errors), expected, "{case}");
    }
}

#[test]
fn an_unchanged_invalid_value_only_warns() {
    let validator = validator(&json!({"type": "object", "properties": {
        "a": {"type": "integer", "x-kubernetes-validations": [{"rule": "self > 0"}]},
        "b": {"type": "integer"},
    }}));
    let verdict = validator.validate(&json!({"a": -1, "b": 2}), Some(&json!({"a": -1, "b": 1})));
    assert_eq!(
        (messages(&verdict.errors), messages(&verdict.warnings)),
        (vec![], vec!["a: Invalid value: -1: failed rule: self > 0".to_owned()])
    );
    let changed = validator.validate(&json!({"a": -2}), Some(&json!({"a": -1})));
    assert_eq!(changed.errors.len(), 1);
    let strict = validator.validate_strictly(&json!({"a": -1}), Some(&json!({"a": -1})));
    assert_eq!(strict.errors.len(), 1);
}

#[test]
fn definitions_report_rule_costs() {
    let rule = |rule: &str| json!([{"rule": rule}]);
    for (case, schema, expected) in [
        (
            "a cheap rule has no error",
            json!({"type": "object", "x-kubernetes-validations": rule("self.metadata.name != ''")}),
            vec![],
        ),
        (
            "a rule that is too expensive",
            json!({"type": "object", "properties": {"list": {"type": "array", "items": {"type": "string"},
                "x-kubernetes-validations": rule("self.all(x, self.all(y, x != y))")}}}),
            vec![
                "schema.properties[list].x-kubernetes-validations[0].rule: Forbidden: estimated rule cost exceeds budget by factor of more than 100x \
                 (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)",
                "schema.properties[list].x-kubernetes-validations[0].rule: Forbidden: contributed to estimated rule cost total exceeding cost limit \
                 for entire OpenAPIv3 schema",
                "schema: Forbidden: x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema exceeds budget by factor of more \
                 than 100x (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)",
            ],
        ),
        (
            "a rule that does not compile",
            json!({"type": "object", "x-kubernetes-validations": rule("self.nope")}),
            vec![
                "schema.x-kubernetes-validations[0].rule: Invalid value: {\"FieldPath\":\"\",\"Message\":\"\",\"MessageExpression\":\"\",\
                 \"OptionalOldSelf\":null,\"Reason\":null,\"Rule\":\"self.nope\"}: compilation failed: ERROR: <input>:1:5: undefined field 'nope'\
                 \n | self.nope\n | ....^",
            ],
        ),
        (
            "an old value that cannot be correlated",
            json!({"type": "object", "properties": {"list": {"type": "array", "maxItems": 2,
                "items": {"type": "integer", "x-kubernetes-validations": rule("self == oldSelf")}}}}),
            vec![
                "schema.properties[list].items.x-kubernetes-validations[0].rule: Invalid value: \"self == oldSelf\": oldSelf cannot be used on the \
                 uncorrelatable portion of the schema within schema.properties[list]",
            ],
        ),
        (
            "an optional old value that is not used",
            json!({"type": "object", "x-kubernetes-validations": [{"rule": "true", "optionalOldSelf": true}]}),
            vec![
                "schema.x-kubernetes-validations[0].optionalOldSelf: Invalid value: true: may not be set if oldSelf is not used in rule",
            ],
        ),
    ] {
        assert_eq!(messages(&check_definition(&RuleSchema::from_json(&schema), "schema")), expected, "{case}");
    }
}

#[test]
fn an_object_that_takes_too_much_is_refused_in_bounded_time() {
    let many: Vec<Json> = (0..3000).map(Json::from).collect();
    for (case, rule, expected) in [
        (
            "one rule",
            "self.list.all(x, self.list.all(y, x + y >= 0))",
            "no further validation rules will be run due to call cost exceeds limit for rule",
        ),
        (
            "doubling lists",
            "optional.of(self.list).optMap(a, a+a).optMap(b, b+b).optMap(c, c+c).optMap(d, d+d).optMap(e, e+e).optMap(f, f+f).optMap(g, g+g).optMap(h, h+h).optMap(i, i+i).optMap(j, j+j).optMap(k, k+k).optMap(l, l+l).value().size() > 0",
            "cost exceeds limit",
        ),
        ("a range of everything", "lists.range(9000000000000).size() > 0", "cost exceeds limit"),
        (
            "a text that grows by replacement",
            "self.list.map(x, 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa').join().replace('a', 'bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb').replace('b', 'cccccccccccccccccccccccccccccccccccccccc').replace('c', 'dddddddddddddddd').size() > 0",
            "cost exceeds limit",
        ),
    ] {
        let schema = json!({"type": "object", "properties": {"list": {"type": "array", "items": {"type": "integer"}}},
            "x-kubernetes-validations": [{"rule": rule}]});
        let verdict = validator(&schema).validate(&json!({"list": many}), None);
        assert!(
            verdict.errors.len() == 1 && verdict.errors[0].detail.contains(expected),
            "{case}: {:?}",
            messages(&verdict.errors)
        );
    }
}

#[test]
fn a_budget_is_shared_by_all_rules_of_an_object() {
    let schema = json!({"type": "object", "properties": {"list": {"type": "array", "items": {"type": "integer",
        "x-kubernetes-validations": [{"rule": "[1,2,3,4,5,6,7,8,9,10].all(a, [1,2,3,4,5,6,7,8,9,10].all(b, [1,2,3,4,5,6,7,8,9,10].all(c, a + b + c + self > 0)))"}]}}}});
    let many: Vec<Json> = (0..50).map(Json::from).collect();
    let object = json!({"list": many});
    let validator = validator(&schema);
    let verdict = validator.validate_within(100_000, &object, None, super::validator::Ratchet::default());
    let text = "validation failed due to running out of cost budget, no further validation rules will be run";
    assert!(verdict.errors.len() == 1 && verdict.errors[0].detail == text, "{:?}", messages(&verdict.errors));
    assert_eq!(verdict.cost, 100_000);
}

#[test]
fn field_paths_lead_to_fields_or_are_refused() {
    let schema = RuleSchema::from_json(&json!({"type": "object", "properties": {
        "a.b": {"type": "object", "properties": {"c": {"type": "string"}}},
        "map": {"type": "object", "additionalProperties": {"type": "string"}},
    }}));
    for (path, expected) in [
        ("['a.b'].c", Ok("a.b.c")),
        (".map['x']", Ok("map[x]")),
        (".map.x", Ok("map[x]")),
        (".none", Err("does not refer to a valid field")),
        ("map", Err("expected [ or . but got: map")),
        (".map['x'", Err("unexpected end of JSON path")),
    ] {
        assert_eq!(valid_field_path(path, &schema).as_deref().map_err(String::as_str), expected, "{path}");
    }
}
