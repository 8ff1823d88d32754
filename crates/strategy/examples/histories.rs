//! Compares server-side apply with the real field manager, which is built on the published structured merge diff: reads
//! the histories that `e2e/codegen/kindtable -histories` printed, does each write, and tells where objects, owners or
//! refusals differ.
//!
//! `cargo run -p portolan-strategy --example histories -- bases.jsonl histories.jsonl found.jsonl`; ends with 1 where
//! anything differs. The writes up to there are then in `found.jsonl`, in the form of the histories that are kept.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::process::ExitCode;

use portolan_codec::decode::{FieldValidation, prune_canonical};
use portolan_kinds::{Kind, KindTable};
use portolan_merge::apply::{ApplyRequest, Conversions, UpdateRequest, apply, track_update};
use portolan_strategy::defaults;
use portolan_types::Status;
use serde_json::{Value, json};

/// Differences shown in full.
const MOST_SHOWN: usize = 30;

#[derive(Default)]
struct Counts {
    histories: usize,
    writes: usize,
    refused: usize,
    different: usize,
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let (Some(bases), Some(histories), Some(found)) = (args.next(), args.next(), args.next()) else {
        eprintln!("which bases, which histories, where to put those that differ?");
        return ExitCode::FAILURE;
    };
    let mut counts = Counts::default();
    let done = all(&bases, &histories, &found, &mut counts);
    if let Err(error) = done {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    let Counts { histories, writes, refused, different } = counts;
    println!("{histories} histories, {writes} writes, {refused} of them refused: {different} differ");
    if writes > 0 && different == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn all(bases: &str, histories: &str, found: &str, counts: &mut Counts) -> Result<(), String> {
    let bases = lines(bases)?.collect::<Result<Vec<_>, _>>()?;
    for history in lines(histories)? {
        let history = history?;
        if let Some(at) = replay(&bases, &history, counts) {
            let file = OpenOptions::new().create(true).append(true).open(found);
            file.and_then(|mut file| writeln!(file, "{}", kept_at(&history, at)))
                .map_err(|e| format!("{found}: {e}"))?;
        }
    }
    Ok(())
}

fn lines(path: &str) -> Result<impl Iterator<Item = Result<Value, String>>, String> {
    let file = File::open(path).map_err(|error| format!("{path}: {error}"))?;
    let path = path.to_owned();
    let line = move |line: std::io::Result<String>| {
        let line = line.map_err(|error| format!("{path}: {error}"))?;
        serde_json::from_str(&line).map_err(|error| format!("{path}: {error}"))
    };
    Ok(BufReader::new(file).lines().map(line))
}

/// The writes of a history up to the step `at`, without their results.
fn kept_at(history: &Value, at: usize) -> Value {
    let bare = |step: &Value| {
        let parts = ["manager", "apply", "force", "object"].into_iter().filter(|part| step.get(part).is_some());
        parts.map(|part| (part.to_owned(), step[part].clone())).collect::<Value>()
    };
    let steps: Vec<Value> = history["steps"].as_array().into_iter().flatten().take(at + 1).map(bare).collect();
    json!({"name": format!("seed {}", history["seed"]), "steps": steps})
}

/// Does the writes of one history, each to the object that the real manager made of the one before. Returns the first
/// step that differs.
fn replay(bases: &[Value], history: &Value, counts: &mut Counts) -> Option<usize> {
    counts.histories += 1;
    let name = history.get("name").unwrap_or(&history["seed"]);
    let index = history["base"].as_u64().and_then(|index| usize::try_from(index).ok()).unwrap_or_default();
    let Some(kind) = bases.get(index).and_then(kind_of) else {
        counts.different += 1;
        println!("history {name}: no such kind");
        return Some(0);
    };
    let (mut live, mut first) = (None, None);
    for (number, step) in history["steps"].as_array().into_iter().flatten().enumerate() {
        counts.writes += 1;
        let expected = match step.get("after") {
            Some(after) => readable(kind, after),
            None => refused(&step["refused"]),
        };
        let found = write(kind, live.as_ref(), step);
        counts.refused += usize::from(step.get("after").is_none());
        if expected != found {
            counts.different += 1;
            first.get_or_insert(number);
            if counts.different <= MOST_SHOWN {
                println!("{} {name} step {number}: {}", kind.gvk.kind, step["manager"]);
                show(&expected, &found, "");
                println!("  sent {} {}", if step["apply"] == true { "apply" } else { "update" }, step["object"]);
            }
        }
        if let Some(after) = step.get("after") {
            live = canonical(kind, after).ok();
        }
    }
    first
}

fn kind_of(base: &Value) -> Option<&'static Kind> {
    let version = base["object"]["apiVersion"].as_str()?;
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    KindTable::builtin().resource(group, version, base["resource"].as_str()?).map(|kind| &**kind)
}

/// Writes a step and returns the stored object, or the refusal.
fn write(kind: &Kind, live: Option<&Value>, step: &Value) -> Value {
    let text = |part: &str| step[part].as_str().unwrap_or_default();
    let (manager, now) = (text("manager"), text("now"));
    let (object, conversions) = (step["object"].clone(), &Conversions::default());
    if step["apply"] == true {
        let force = step["force"] == true;
        let request = ApplyRequest { live, applied: object, manager, force, subresource: None, now, conversions };
        return match apply(KindTable::builtin(), kind, request) {
            Ok(merged) => readable(kind, &merged),
            Err(unapplied) => refused(&Status::from(unapplied).to_value()),
        };
    }
    match canonical(kind, &object).and_then(|object| defaulted(kind, object)) {
        Ok(mut new) => {
            let request = UpdateRequest { old: live, manager, subresource: None, now, conversions };
            let tracked = track_update(KindTable::builtin(), kind, &request, &mut new);
            tracked.map_or_else(|unconverted| unconverted.to_string().into(), |()| readable(kind, &new))
        }
        Err(unfit) => unfit.into(),
    }
}

fn canonical(kind: &Kind, object: &Value) -> Result<Value, String> {
    let mut object = object.clone();
    prune_canonical(KindTable::builtin(), kind, &mut object, FieldValidation::Ignore)
        .map_err(|unfit| unfit.decoded())?;
    Ok(object)
}

fn defaulted(kind: &Kind, mut object: Value) -> Result<Value, String> {
    defaults::apply(KindTable::builtin(), kind, &mut object).map_err(|unfit| format!("{unfit:?}"))?;
    Ok(object)
}

/// An object as it comes back from the store.
fn readable(kind: &Kind, object: &Value) -> Value {
    let stored = canonical(kind, object).and_then(|object| defaulted(kind, object)).and_then(|mut object| {
        object["metadata"]["uid"] = "u".into();
        settle(&mut object);
        defaulted(kind, object)
    });
    stored.unwrap_or_else(Value::from)
}

/// The store does not tell an empty list from none; the present time is not compared.
fn settle(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(settle);
            fields.retain(|name, value| !value.is_null() && value != &json!([]) && name != "timeAdded");
        }
        Value::Array(items) => items.iter_mut().for_each(settle),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// A refusal, reduced to what clients act on. The causes of kube-apiserver have no fixed order.
fn refused(status: &Value) -> Value {
    let mut causes = status["details"]["causes"].clone();
    if let Some(causes) = causes.as_array_mut() {
        causes.sort_by_cached_key(Value::to_string);
    }
    // Nor have several errors of one object.
    let message = status["message"].as_str().unwrap_or_default();
    let (head, errors) = message.split_once("errors:\n").unwrap_or((message, ""));
    let mut errors: Vec<&str> = errors.lines().collect();
    errors.sort_unstable();
    let said = [&[head], &errors[..]].concat();
    json!({"code": status["code"], "message": said, "reason": status["reason"], "causes": causes})
}

/// The places where two trees differ.
fn show(expected: &Value, found: &Value, path: &str) {
    match (expected, found) {
        (Value::Object(a), Value::Object(b)) => {
            let missing =
                b.iter().filter(|(key, _)| !a.contains_key(*key)).map(|(key, value)| (key, &Value::Null, value));
            let shared = a.iter().map(|(key, value)| (key, value, b.get(key).unwrap_or(&Value::Null)));
            shared.chain(missing).for_each(|(key, a, b)| show(a, b, &format!("{path}/{key}")));
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            a.iter().zip(b).enumerate().for_each(|(at, (a, b))| show(a, b, &format!("{path}/{at}")));
        }
        _ if expected == found => {}
        _ => println!("  {path}\n    upstream {expected}\n    here     {found}"),
    }
}
