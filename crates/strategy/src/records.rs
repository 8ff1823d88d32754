//! Comparison of defaults and tables with those of the real server for thousands of objects (`e2e/codegen/kindtable`,
//! `testdata/defaults.txt`, `testdata/rows.txt`).

use serde::Deserialize;
use serde_json::Value;

use crate::validation_tests::verdicts::{BASES, Base, canonical, kind_of, put, testdata};
use crate::{
    defaults,
    table::{IncludeObject, table},
};
use portolan_kinds::{Kind, KindTable};

#[derive(Deserialize)]
struct Record {
    b: usize,
    p: String,
    v: Option<Value>,
    #[serde(default)]
    m: Vec<usize>,
}

/// Moves times into the distant past, as the generator does, so that ages do not change from day to day.
fn long_ago(object: &Value) -> Value {
    serde_json::from_str(&object.to_string().replace("2026-11-21T00:00:00", "2000-01-01T00:00:00")).unwrap()
}

/// Compares results for changed bases with the recorded ones; `known` differences are allowed. `RECORDS=40` shows the
/// first 40.
fn compare(text: &str, known: usize, make: fn(&Base, &Kind, Value) -> Vec<String>) {
    let (texts, lines) = text.split_once("\n\n").unwrap();
    let texts: Vec<String> = serde_json::from_str(texts).unwrap();
    let (mut all, mut wrong) = (0, Vec::new());
    for line in lines.lines() {
        let record: Record = serde_json::from_str(line).unwrap();
        let base = &BASES[record.b];
        let kind = kind_of(base);
        let mut object = long_ago(&base.object);
        if !record.p.is_empty() {
            put(&mut object, &record.p, record.v.clone());
        }
        let ours = make(base, kind, object);
        let theirs: Vec<String> = record.m.iter().map(|number| texts[*number].clone()).collect();
        all += 1;
        if ours != theirs {
            let case = format!("{} {}{} = {:?}", record.b, kind.gvk.kind, record.p, record.v.map(|v| v.to_string()));
            let only = |these: &[String], those: &[String]| -> Vec<String> {
                these.iter().filter(|one| !those.contains(one)).cloned().collect()
            };
            wrong.push(format!("{case}\n  ours:   {:?}\n  theirs: {:?}", only(&ours, &theirs), only(&theirs, &ours)));
        }
    }
    println!("{} of {all} differ", wrong.len());
    let few = std::env::var("RECORDS").ok().and_then(|few| few.parse().ok());
    if wrong.len() > known || few.is_some() {
        wrong.truncate(few.unwrap_or(40));
        panic!("of {all} differ more than {known}:\n{}", wrong.join("\n"));
    }
}

/// Collects the differences between two trees, each with the later value.
fn filled(before: &Value, after: &Value, path: &str, out: &mut Vec<String>) {
    let below = |key: &str| format!("{path}/{}", key.replace('~', "~0").replace('/', "~1"));
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => {
            for (key, value) in after {
                filled(before.get(key).unwrap_or(&Value::Null), value, &below(key), out);
            }
            out.extend(before.keys().filter(|key| !after.contains_key(*key)).map(|key| format!("{}=", below(key))));
        }
        (Value::Array(before), Value::Array(after)) if before.len() == after.len() => {
            for (at, (before, after)) in before.iter().zip(after).enumerate() {
                filled(before, after, &format!("{path}/{at}"), out);
            }
        }
        _ if before == after => {}
        _ => out.push(format!("{path}={}", go_json(after))),
    }
}

/// Returns JSON as Go writes it.
fn go_json(value: &Value) -> String {
    portolan_gocompat::json::escaped(&value.to_string())
}

#[test]
fn every_default_is_that_of_the_real_types() {
    compare(&testdata("defaults.txt"), 0, |_, kind, object| {
        let before = canonical(kind, &object).unwrap();
        let mut after = before.clone();
        defaults::apply(KindTable::builtin(), kind, &mut after).unwrap();
        let mut out = Vec::new();
        filled(&before, &after, "", &mut out);
        out
    });
}

#[test]
fn every_row_is_that_of_the_real_printers() {
    // The only known difference is an empty list, which no stored object has.
    compare(&testdata("rows.txt"), 1, |_, kind, object| {
        let mut object = canonical(kind, &object).unwrap();
        defaults::apply(KindTable::builtin(), kind, &mut object).unwrap();
        let now = "2026-11-21T04:00:00Z".parse().unwrap();
        let table = table(kind, vec![object], Value::Null, IncludeObject::None, true, now);
        let columns = table["columnDefinitions"].as_array().unwrap();
        let cells = table["rows"][0]["cells"].as_array().unwrap().iter().enumerate();
        // Where an object runs is known here only.
        let is_known = |at: usize| columns.get(at).is_none_or(|column| column["name"] != "Clusters");
        cells.filter(|(at, _)| is_known(*at)).map(|(_, cell)| go_json(cell)).collect()
    });
}
