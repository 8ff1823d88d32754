use super::*;

fn environment() -> Environment {
    let fields = [
        ("name".into(), CelType::String),
        ("__in__".into(), CelType::Int),
        ("ports".into(), CelType::list(CelType::Int)),
    ]
    .into();
    Environment {
        variables: [("self".into(), CelType::Struct("Self".into())), ("any".into(), CelType::Dyn)].into(),
        objects: [("Self".into(), fields)].into(),
        ..Environment::default()
    }
}

fn outcome(text: &str) -> String {
    match compile(text, &environment()) {
        Ok(checked) => checked.output().to_string(),
        Err(problems) => problems.lines().next().unwrap_or_default().to_owned(),
    }
}

#[test]
fn expressions_have_types_or_problems() {
    for (text, expected) in [
        ("self.name", "string"),
        ("self.in == 1", "ERROR: <input>:1:6: Syntax error: no viable alternative at input '.in'"),
        ("self.ports.map(p, string(p))", "list(string)"),
        ("self.ports[0]", "int"),
        ("{'a': [1]}", "map(string, list(int))"),
        ("[]", "list(dyn)"),
        ("any.what.ever", "dyn"),
        ("any ? 1 : 'a'", "ERROR: <input>:1:5: found no matching overload for '_?_:_' applied to '(dyn, int, string)'"),
        ("optional.of(1)", "optional_type(int)"),
        ("self.?name", "optional_type(string)"),
        ("type(1)", "type(int)"),
        ("1 + 'a'", "ERROR: <input>:1:3: found no matching overload for '_+_' applied to '(int, string)'"),
        (
            "self.name.size('a')",
            "ERROR: <input>:1:15: found no matching overload for 'size' applied to 'string.(string)'",
        ),
        ("self.none", "ERROR: <input>:1:5: undefined field 'none'"),
        ("self.name.x", "ERROR: <input>:1:10: type 'string' does not support field selection"),
        ("none", "ERROR: <input>:1:1: undeclared reference to 'none' (in container '')"),
        ("1 && true", "ERROR: <input>:1:1: expected type 'bool' but found 'int'"),
        ("[1, 'a']", "ERROR: <input>:1:5: expected type 'int' but found 'string'"),
        ("'%s %d'.format([self.name, 1])", "string"),
        (
            "'%d'.format(['a'])",
            "ERROR: <input>:1:14: error during formatting: decimal clause can only be used on integers, was given string",
        ),
        ("duration('x')", "ERROR: <input>:1:10: invalid duration argument"),
        ("'a'.matches('(')", "ERROR: <input>:1:13: invalid matches argument"),
        ("Self{name: 1}", "ERROR: <input>:1:10: expected type of field 'name' is 'string' but provided type is 'int'"),
        ("int{}", "ERROR: <input>:1:4: 'int' is not a message type"),
    ] {
        assert_eq!(outcome(text), expected, "{text}");
    }
}

#[test]
fn problems_are_in_text_order() {
    let problems = compile("b + a", &environment()).expect_err("two names that are not there");
    let lines: Vec<&str> = problems.lines().filter(|line| line.starts_with("ERROR")).collect();
    assert_eq!(lines.len(), 2);
    assert!(lines[0].contains("'b'") && lines[1].contains("'a'"), "{problems}");
}
