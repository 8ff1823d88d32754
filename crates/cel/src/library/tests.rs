use super::*;

fn call(name: &str, args: &[CelValue<'static>]) -> Result<String, String> {
    let context = CallContext { patterns: &HashMap::new(), meter: Meter::default() };
    let run = function(name).expect(name);
    run(args, &context).map(|value| value.plain()).map_err(|failure| failure.message().to_owned())
}

#[test]
fn every_function_of_the_table_is_there() {
    let special = ["_&&_", "_||_", "_?_:_", "_==_", "_!=_", "_[_]", "_[?_]", "_?._", "or", "orValue", "cel.@mapInsert"];
    for line in include_str!("../functions.txt").lines() {
        let name = line.split(' ').next().unwrap_or_default();
        assert!(special.contains(&name) || function(name).is_some(), "{name}");
    }
}

#[test]
fn functions_refuse_wrong_argument_types() {
    for line in include_str!("../functions.txt").lines() {
        let name = line.split(' ').next().unwrap_or_default();
        let general =
            ["dyn", "type", "size", "optional.of", "optional.ofNonZeroValue", "@not_strictly_false", "optional.none"];
        if let Some(run) = function(name).filter(|_| !general.contains(&name) && !name.starts_with("format.")) {
            let context = CallContext { patterns: &HashMap::new(), meter: Meter::default() };
            assert!(
                run(&[CelValue::Null, CelValue::Null, CelValue::Null, CelValue::Null, CelValue::Null], &context)
                    .is_err(),
                "{name}"
            );
        }
    }
}

#[test]
fn keys_of_a_json_patch_are_escaped() {
    assert_eq!(call("jsonpatch.escapeKey", &["k8s.io/my~label".into()]), Ok("k8s.io~1my~0label".to_owned()));
}
