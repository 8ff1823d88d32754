//! Comparison with the errors of the real registries for thousands of objects (`e2e/codegen/kindtable`,
//! `testdata/verdicts.txt`).

use std::{fs, path::Path, sync::LazyLock};

use portolan_types::{Seams, StatusCause};
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::lifecycle::{WriteContext, as_created, as_updated};
use portolan_codec::decode::{FieldValidation, prune_canonical};
use portolan_kinds::{Kind, KindTable};
use portolan_validation::{validate_create, validate_update};

#[derive(Deserialize)]
pub(crate) struct Base {
    resource: String,
    #[serde(default)]
    subresource: Option<String>,
    /// True if the object has a field that no stored object has, and is only validated as a new one.
    #[serde(default)]
    new: bool,
    pub(crate) object: Value,
}

/// Path in a base with the results of changes at it. An empty path is the whole base, unchanged.
#[derive(Deserialize)]
struct Verdict {
    b: usize,
    p: String,
    v: Vec<Case>,
}

/// Value to put at the place, or none to remove it; faults of the new object, of the update from the base to it, and
/// of the update back to the base.
#[derive(Deserialize)]
struct Case(
    Option<Value>,
    #[serde(default)] Vec<usize>,
    #[serde(default)] Vec<usize>,
    #[serde(default)] Option<Vec<usize>>,
);

pub(crate) static BASES: LazyLock<Vec<Base>> = LazyLock::new(|| {
    let text = testdata("bases.jsonl");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
});

/// Reads a file of `testdata`; these have megabytes, so they are not embedded.
pub(crate) fn testdata(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name)).unwrap()
}

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
    causes.into_iter().map(|cause| format!("{}: {} {}", cause.field, cause.reason, short(&cause.message))).collect()
}

/// Longer messages are recorded as their beginning and a hash of the whole message.
const LONGEST: usize = 256;
const BEGINNING: usize = 48;

/// Returns a message as the generator writes it down.
fn short(text: &str) -> String {
    if text.len() <= LONGEST {
        return text.to_owned();
    }
    let hash = Sha256::digest(text).iter().take(8).map(|byte| format!("{byte:02x}")).collect::<String>();
    format!("{} ... {hash}", &text[..text.floor_char_boundary(BEGINNING)])
}

fn expected(numbers: &[usize], texts: &[String]) -> Vec<String> {
    numbers.chunks(3).map(|one| format!("{}: {} {}", texts[one[0]], texts[one[1]], texts[one[2]])).collect()
}

pub(crate) fn canonical(kind: &Kind, object: &Value) -> Result<Value, String> {
    let mut object = object.clone();
    prune_canonical(KindTable::builtin(), kind, &mut object, FieldValidation::Ignore)
        .map_err(|unfit| unfit.decoded())?;
    Ok(object)
}

/// Differences that are shown of all that there are. `VERDICTS=400` shows the first 400.
const SHOWN: usize = 40;

/// Difference in one case.
struct Difference {
    base: usize,
    case: String,
    text: String,
}

type Judged = Result<Vec<StatusCause>, String>;

/// Judge of changes of one base.
struct Judge<'a> {
    base: &'a Base,
    kind: &'static Kind,
    seams: &'a Seams,
}

impl Judge<'_> {
    fn subresource(&self) -> Option<&str> {
        self.base.subresource.as_deref()
    }

    /// Runs `judge` with the context of a request that sends `object`.
    fn with<R>(&self, object: &Value, judge: impl FnOnce(&WriteContext<'_>) -> R) -> R {
        let sent = || Some(object.clone());
        judge(&WriteContext { sent: Some(&sent), ..WriteContext::new(KindTable::builtin(), self.seams) })
    }

    fn created(&self, object: &Value) -> Judged {
        let (kind, new) = (self.kind, canonical(self.kind, object)?);
        Ok(self.with(object, |ctx| match as_created(ctx, kind, new) {
            Ok(new) => ctx.causes(kind, None, &new, |new| validate_create(ctx.table, kind, new)),
            Err(status) => status.details().causes.clone(),
        }))
    }

    fn updated(&self, old: &Value, object: &Value) -> Judged {
        let (kind, sub) = (self.kind, self.subresource());
        let (old, new) = (canonical(kind, old)?, canonical(kind, object)?);
        Ok(self.with(object, |ctx| {
            let old = stored(ctx, kind, old);
            match as_updated(ctx, kind, sub, &old, new) {
                Ok(new) => ctx.causes(kind, sub, &new, |new| validate_update(ctx.table, kind, sub, &old, new)),
                Err(status) => status.details().causes.clone(),
            }
        }))
    }

    /// Returns our verdicts on a case beside the registries', with the operation of each.
    fn judge(&self, place: &str, case: &Case) -> Vec<(&'static str, Judged, Vec<usize>)> {
        let Case(value, create, update, added) = case;
        let mut object = self.base.object.clone();
        if !place.is_empty() {
            put(&mut object, place, value.clone());
        }
        let mut out = Vec::new();
        if self.subresource().is_none() {
            out.push(("create", self.created(&object), create.clone()));
        }
        if self.base.new {
            return out;
        }
        out.push(("update", self.updated(&self.base.object, &object), update.clone()));
        if let Some(added) = added {
            out.push(("add", self.updated(&object, &self.base.object), added.clone()));
        }
        out
    }
}

/// Returns the number of compared verdicts and the different ones, with the number of the base.
fn differing<'t>(lines_of: impl Iterator<Item = &'t str>, texts: &[String]) -> (usize, Vec<Difference>) {
    let seams = &Seams::seeded(7, "2026-11-21T04:00:00Z".parse().unwrap());
    let (mut all, mut wrong) = (0, Vec::new());
    for line in lines_of {
        let verdict: Verdict = serde_json::from_str(line).unwrap();
        let base = &BASES[verdict.b];
        let judge = Judge { base, kind: kind_of(base), seams };
        for case in &verdict.v {
            for (what, ours, numbers) in judge.judge(&verdict.p, case) {
                all += 1;
                let ours = ours.map(lines).unwrap_or_else(|error| vec![format!("not decoded: {error}")]);
                let theirs = expected(&numbers, texts);
                if ours != theirs {
                    let value = case.0.as_ref().map(Value::to_string);
                    let case = format!("{what} {} {}{} = {value:?}", verdict.b, base.resource, verdict.p);
                    let text = format!("  ours:   {ours:#?}\n  theirs: {theirs:#?}");
                    wrong.push(Difference { base: verdict.b, case, text });
                }
            }
        }
    }
    (all, wrong)
}

#[test]
fn every_verdict_is_that_of_the_real_registries() {
    let text = testdata("verdicts.txt");
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
    let few = std::env::var("VERDICTS").ok().and_then(|few| few.parse().ok()).unwrap_or(SHOWN);
    let shown = wrong.iter().take(few).map(|one| format!("{}\n{}", one.case, one.text));
    let shown = shown.collect::<Vec<_>>().join("\n");
    assert!(wrong.is_empty(), "{} of {all} differ, by base:\n{shown}", wrong.len());
}

/// Returns an object in its stored form, and keeps its status.
fn stored(ctx: &WriteContext<'_>, kind: &Kind, object: Value) -> Value {
    let mut object = defaulted(ctx, kind, object);
    object["metadata"]["resourceVersion"] = "1".into();
    object
}

fn defaulted(ctx: &WriteContext<'_>, kind: &Kind, mut object: Value) -> Value {
    crate::defaults::apply(ctx.table, kind, &mut object).unwrap();
    object
}
