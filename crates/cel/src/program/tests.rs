use super::*;
use crate::check::{self, Environment};
use crate::types::CelType;

/// Variables of the tests.
struct Given(Vec<(&'static str, serde_json::Value)>);

impl<'a> Activation<'a> for &'a Given {
    fn resolve(&self, name: &str) -> Option<Result<CelValue<'a>, EvaluationFailure>> {
        self.0.iter().find(|(given, _)| *given == name).map(|(_, json)| Ok(free(json)))
    }
}

fn run(text: &str, given: &Given, limit: u64) -> (Result<String, EvaluationFailure>, u64) {
    let variables = given.0.iter().map(|(name, _)| ((*name).into(), CelType::Dyn)).collect();
    let checked = check::compile(text, &Environment { variables, ..Environment::default() }).expect(text);
    let program = CelProgram::new(&checked).expect(text);
    let outcome = program.evaluate(&given, limit);
    (outcome.value.map(|value| value.plain()), outcome.cost)
}

#[test]
fn an_evaluation_ends_where_its_limit_is_reached() {
    let given = Given(vec![("list", serde_json::json!([1, 2, 3, 4, 5, 6, 7, 8]))]);
    let (value, cost) = run("list.all(x, x > 0)", &given, PER_CALL_LIMIT);
    assert_eq!(value, Ok("true".to_owned()));
    assert_eq!(run("list.all(x, x > 0)", &given, cost).0, Ok("true".to_owned()));
    assert_eq!(run("list.all(x, x > 0)", &given, cost - 1).0, Err(EvaluationFailure::Cancelled(OVER_LIMIT)));
}

#[test]
fn an_error_matters_only_where_nothing_else_decides() {
    let given = Given(vec![("x", serde_json::json!({"a": 1}))]);
    for (text, expected) in [
        ("x.b == 1 || x.a == 1", Ok("true".to_owned())),
        ("x.b == 1 && x.a == 2", Ok("false".to_owned())),
        ("x.b == 1 || x.a == 2", Err(EvaluationFailure::Error("no such key: b".to_owned()))),
        ("[1, 2].exists(e, x.b == e || e == 2)", Ok("true".to_owned())),
        ("[1, 2].all(e, x.b == e)", Err(EvaluationFailure::Error("no such key: b".to_owned()))),
        ("x.a + 'a' == ''", Err(EvaluationFailure::Error("no such overload".to_owned()))),
    ] {
        assert_eq!(run(text, &given, PER_CALL_LIMIT).0, expected, "{text}");
    }
}

#[test]
fn the_deepest_expression_fits_a_small_stack() {
    let deep = [
        "(1+".repeat(120) + "1" + &")".repeat(120),
        "[".repeat(240) + "1" + &"]".repeat(240),
        "true?".to_owned() + &"true?true:".repeat(120) + "true:true",
    ];
    let thread = std::thread::Builder::new().stack_size(2 << 20);
    let handle = thread.spawn(move || {
        for text in deep {
            let given = Given(Vec::new());
            let checked = check::compile(&text, &Environment::default());
            if let Ok(checked) = checked {
                let _ = CelProgram::new(&checked).map(|program| program.evaluate(&&given, PER_CALL_LIMIT).cost);
            }
        }
    });
    assert!(handle.expect("a thread").join().is_ok());
}
