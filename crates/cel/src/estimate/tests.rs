use super::*;
use crate::check::{self, Environment, ObjectTypes};
use crate::schema::RuleSchema;
use serde_json::json;

#[test]
fn costs_follow_the_sizes_that_the_schema_allows() {
    let schema = RuleSchema::from_json(&json!({"type": "object", "properties": {
        "text": {"type": "string", "maxLength": 10},
        "list": {"type": "array", "maxItems": 5, "items": {"type": "string", "maxLength": 3}},
        "number": {"type": "integer"},
    }}));
    let declared = DeclaredType::of(&schema, false).expect("a type");
    let mut objects = ObjectTypes::new();
    let variables = [("self".into(), declared.declare("Self", &mut objects))].into();
    let environment = Environment { variables, objects, ..Environment::default() };
    for (text, min, max) in [
        ("true", 0, 0),
        ("self.number == 1", 2, 2),
        ("self.text == 'a'", 3, 3),
        ("self.text.contains('b')", 2, 6),
        ("self.list.all(x, x == 'a')", 3, 28),
        ("self.list.map(x, x)", 13, 78),
        ("[1, 2]", 10, 10),
        ("{'a': 1}", 30, 30),
        ("has(self.text) && self.text == ''", 1, 3),
    ] {
        let checked = check::compile(text, &environment).expect(text);
        let cost = estimate(&checked, Some(&declared));
        assert_eq!((cost.min, cost.max), (min, max), "{text}");
    }
}
