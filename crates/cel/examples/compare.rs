//! Compares this crate with Kubernetes' own CEL: reads the output of `e2e/codegen/celcases` and prints the differences.
//!
//! `cargo run -p portolan-cel --example compare -- cases.jsonl`; ends with 1 where anything differs.

use portolan_cel::rules::{RuleValidator, compile};
use portolan_cel::{DeclaredType, RuleSchema};
use serde_json::Value as Json;
use std::io::{BufRead, BufReader};
use std::process::ExitCode;

#[derive(Default)]
struct Counts {
    cases: usize,
    rules: usize,
    objects: usize,
    verdicts: usize,
    texts: usize,
    costs: usize,
    errors: usize,
    spent: usize,
    shown: usize,
}

/// Differences shown in full.
const MOST_SHOWN: usize = 60;

impl Counts {
    fn show(&mut self, case: &str, what: &str, expected: &str, found: &str) {
        self.shown += 1;
        if self.shown <= MOST_SHOWN {
            println!("{case}: {what}\n  upstream: {expected}\n  here:     {found}");
        }
    }
}

fn main() -> ExitCode {
    let Some(path) = std::env::args().nth(1) else {
        eprintln!("which file?");
        return ExitCode::FAILURE;
    };
    let file = match std::fs::File::open(&path) {
        Ok(file) => file,
        Err(error) => {
            eprintln!("{path}: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut counts = Counts::default();
    for line in BufReader::new(file).lines().map_while(Result::ok) {
        match serde_json::from_str(&line) {
            Ok(case) => compare(&case, &mut counts),
            Err(error) => eprintln!("a line that is no case: {error}"),
        }
    }
    let Counts { cases, rules, objects, verdicts, texts, costs, errors, spent, .. } = counts;
    println!(
        "{cases} schemas, {rules} rules: {verdicts} verdicts differ, {texts} error texts, {costs} estimates; \
         {objects} objects: {errors} verdicts differ, {spent} costs"
    );
    // The grammar's own report is ANTLR's, and its words are not compared. The cost of iterating over a map depends on
    // its order, which is random in Go: a few results may differ.
    if cases > 0 && verdicts + texts + costs + errors == 0 && spent * 100 <= objects {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn text<'j>(json: &'j Json, name: &str) -> &'j str {
    json[name].as_str().unwrap_or_default()
}

fn compare(case: &Json, counts: &mut Counts) {
    let name = text(case, "name");
    counts.cases += 1;
    for rule in case["rules"].as_array().into_iter().flatten() {
        counts.rules += 1;
        compare_rule(name, &case["schema"], rule, counts);
    }
    let Some(validator) = RuleValidator::new(&RuleSchema::from_json(&case["schema"])) else { return };
    for (index, object) in case["objects"].as_array().into_iter().flatten().enumerate() {
        counts.objects += 1;
        compare_object(&format!("{name} on object {index}"), &validator, object, counts);
    }
}

fn compare_rule(name: &str, schema: &Json, expected: &Json, counts: &mut Counts) {
    let path = text(expected, "path");
    let node = schema.pointer(path).unwrap_or(&Json::Null);
    let node = RuleSchema::from_json(node);
    let index = usize::try_from(expected["index"].as_u64().unwrap_or_default()).unwrap_or_default();
    let Some(declared) = DeclaredType::of(&node, path.is_empty() || node.embedded) else {
        counts.verdicts += 1;
        return counts.show(name, path, "a type", "none");
    };
    let compiled = compile(&node, &node.rules, &declared);
    let Some(found) = compiled.get(index) else { return };
    let rule = &node.rules[index].rule;
    let what = format!("{path}[{index}] {rule}");
    let problem = |problem: &Option<portolan_cel::rules::RuleProblem>| {
        problem.as_ref().map_or_else(String::new, |problem| problem.0.clone())
    };
    for (expected, found) in [
        (text(expected, "error"), problem(&found.problem)),
        (text(expected, "messageError"), problem(&found.message_problem)),
    ] {
        if expected.is_empty() != found.is_empty() {
            counts.verdicts += 1;
            counts.show(name, &what, expected, &found);
        } else if without_names(expected) != without_names(&found)
            && !(expected.contains("Syntax error") && found.contains("Syntax error"))
        {
            counts.texts += 1;
            counts.show(name, &what, expected, &found);
        }
    }
    for (expected, found) in
        [(text(expected, "maxCost"), found.max_cost), (text(expected, "messageMaxCost"), found.message_max_cost)]
    {
        if expected != found.to_string() {
            counts.costs += 1;
            counts.show(name, &format!("cost of {what}"), expected, &found.to_string());
        }
    }
}

/// The name of the type of `self` holds a random number upstream.
fn without_names(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(place) = rest.find("selfType") {
        let end = place + "selfType".len();
        plain += &rest[..end];
        rest = rest[end..].trim_start_matches(|character: char| character.is_ascii_digit());
    }
    plain + rest
}

fn compare_object(name: &str, validator: &RuleValidator, object: &Json, counts: &mut Counts) {
    let old = object.get("old").filter(|old| !old.is_null());
    let verdict = validator.validate(&object["new"], old);
    let mut found: Vec<String> = verdict.errors.iter().map(ToString::to_string).collect();
    found.sort();
    let mut expected: Vec<String> =
        object["errors"].as_array().into_iter().flatten().filter_map(Json::as_str).map(str::to_owned).collect();
    for texts in [&mut found, &mut expected] {
        texts.iter_mut().for_each(|text| *text = without_names(text.split("Syntax error").next().unwrap_or_default()));
    }
    if found != expected {
        counts.errors += 1;
        let only = |one: &[String], other: &[String]| {
            one.iter().filter(|text| !other.contains(text)).cloned().collect::<Vec<_>>().join("\n    ")
        };
        counts.show(name, "errors", &only(&expected, &found), &only(&found, &expected));
    }
    if object["cost"].as_i64() != Some(verdict.cost) {
        counts.spent += 1;
        counts.show(name, "cost", &object["cost"].to_string(), &verdict.cost.to_string());
    }
}
