//! Comparison with what the real registries say of thousands of objects (`e2e/kindtable`, `testdata/verdicts.txt`).

use std::sync::LazyLock;

use portolan_types::{Seams, StatusCause};
use serde::Deserialize;
use serde_json::Value;

use super::{validate_create, validate_update};
use crate::{
    decode::{FieldValidation, prune_canonical},
    kinds::{Kind, KindTable},
    lifecycle::{WriteContext, allocate, as_created, as_updated},
};

#[derive(Deserialize)]
pub(crate) struct Base {
    resource: String,
    #[serde(default)]
    subresource: Option<String>,
    pub(crate) object: Value,
}

#[derive(Deserialize)]
struct Verdict {
    b: usize,
    p: String,
    v: Option<Value>,
    #[serde(default)]
    c: Vec<usize>,
    #[serde(default)]
    u: Vec<usize>,
}

pub(crate) static BASES: LazyLock<Vec<Base>> = LazyLock::new(|| {
    let lines = include_str!("../../testdata/bases.jsonl").lines();
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
});

pub(crate) fn kind_of(base: &Base) -> &'static Kind {
    let version = base.object["apiVersion"].as_str().unwrap();
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    KindTable::builtin().resource(group, version, &base.resource).unwrap()
}

pub(crate) fn put(object: &mut Value, pointer: &str, value: Option<Value>) {
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    let name = name.replace("~1", "/").replace("~0", "~");
    match (object.pointer_mut(parent).unwrap(), value) {
        (Value::Object(fields), Some(value)) => drop(fields.insert(name, value)),
        (Value::Object(fields), None) => drop(fields.remove(&name)),
        (Value::Array(list), Some(value)) => list[name.parse::<usize>().unwrap()] = value,
        (other, _) => panic!("{pointer} in {other}"),
    }
}

fn lines(causes: Vec<StatusCause>) -> Vec<String> {
    causes.into_iter().map(|cause| format!("{}: {} {}", cause.field, cause.reason, cause.message)).collect()
}

/// What of a message both sides must say: differences of JSON have lines of their own, and maps no order.
fn expected(numbers: &[usize], texts: &[String]) -> Vec<String> {
    numbers.chunks(3).map(|one| format!("{}: {} {}", texts[one[0]], texts[one[1]], texts[one[2]])).collect()
}

pub(crate) fn canonical(kind: &Kind, object: &Value) -> Result<Value, String> {
    let mut object = object.clone();
    prune_canonical(KindTable::builtin(), kind, &mut object, FieldValidation::Ignore)
        .map_err(|unfit| unfit.decoded())?;
    Ok(object)
}

/// Differences that are shown of all that there are.
const SHOWN: usize = 40;

/// What differs of one case.
struct Difference {
    base: usize,
    case: String,
    text: String,
}

/// The part of the verdicts with which ours do not agree: how many there were, and what differs, with the number of the base.
fn differing<'t>(lines_of: impl Iterator<Item = &'t str>, texts: &[String]) -> (usize, Vec<Difference>) {
    let seams = Seams::seeded(7, "2026-11-21T04:00:00Z".parse().unwrap());
    let (mut all, mut wrong) = (0, Vec::new());
    for line in lines_of {
        let verdict: Verdict = serde_json::from_str(line).unwrap();
        let base = &BASES[verdict.b];
        let kind = kind_of(base);
        let mut object = base.object.clone();
        put(&mut object, &verdict.p, verdict.v.clone());
        let sent = || Some(object.clone());
        let ctx = WriteContext { sent: Some(&sent), ..WriteContext::new(KindTable::builtin(), &seams) };
        let sub = base.subresource.as_deref();
        let case = format!("{} {}{} = {:?}", verdict.b, base.resource, verdict.p, verdict.v.map(|v| v.to_string()));
        let mut compare = |what: &str, ours: Result<Vec<StatusCause>, String>, numbers: &[usize]| {
            all += 1;
            let ours = ours.map(lines).unwrap_or_else(|error| vec![format!("not decoded: {error}")]);
            let theirs = expected(numbers, texts);
            if ours != theirs {
                let case = format!("{what} {case}");
                let text = format!("  ours:   {ours:#?}\n  theirs: {theirs:#?}");
                wrong.push(Difference { base: verdict.b, case, text });
            }
        };
        let new = canonical(kind, &object);
        if sub.is_none() {
            let causes = new.clone().map(|new| match allocate(kind, None, &defaulted(&ctx, kind, new.clone())) {
                Ok(()) => {
                    ctx.causes(kind, None, &as_created(&ctx, kind, new), |new| validate_create(ctx.table, kind, new))
                }
                Err(status) => status.details().causes.clone(),
            });
            compare("create", causes, &verdict.c);
        }
        let old = as_created_before(&ctx, kind, &base.object);
        let causes = new.map(|new| {
            let new = as_updated(&ctx, kind, sub, &old, new);
            match sub.map_or_else(|| allocate(kind, Some(&old), &new), |_| Ok(())) {
                Ok(()) => ctx.causes(kind, sub, &new, |new| validate_update(ctx.table, kind, sub, &old, new)),
                Err(status) => status.details().causes.clone(),
            }
        });
        compare("update", causes, &verdict.u);
    }
    (all, wrong)
}

#[test]
fn every_verdict_is_that_of_the_real_registries() {
    let text = include_str!("../../testdata/verdicts.txt");
    let (texts, rest) = text.split_once("\n\n").unwrap();
    let texts: &Vec<String> = &serde_json::from_str(texts).unwrap();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let parts = std::thread::scope(|scope| {
        let parts =
            (0..threads).map(|at| scope.spawn(move || differing(rest.lines().skip(at).step_by(threads), texts)));
        let parts: Vec<_> = parts.collect();
        parts.into_iter().map(|part| part.join().unwrap()).collect::<Vec<_>>()
    });
    let all: usize = parts.iter().map(|(all, _)| all).sum();
    let mut wrong: Vec<_> = parts.into_iter().flat_map(|(_, wrong)| wrong).collect();
    wrong.sort_by_key(|one| one.base);
    let shown = wrong.iter().take(SHOWN).map(|one| format!("{}\n{}", one.case, one.text));
    let shown = shown.collect::<Vec<_>>().join("\n");
    assert!(wrong.is_empty(), "{} of {all} differ, by base:\n{shown}", wrong.len());
}

/// The base as it is stored: with its status, as it was given.
fn as_created_before(ctx: &WriteContext<'_>, kind: &Kind, object: &Value) -> Value {
    let mut object = defaulted(ctx, kind, canonical(kind, object).unwrap());
    object["metadata"]["resourceVersion"] = "1".into();
    object
}

fn defaulted(ctx: &WriteContext<'_>, kind: &Kind, mut object: Value) -> Value {
    crate::defaults::apply(ctx.table, kind, &mut object).unwrap();
    object
}
