//! Semantic versions.

use super::{LibraryFunction, no_overload};
use crate::program::{CelValue, EvaluationFailure};
use std::cmp::Ordering;
use std::sync::Arc;

/// Version. Comparisons ignore its build metadata.
#[derive(Clone, Debug)]
pub(crate) struct Semver {
    numbers: [u64; 3],
    pre: Vec<SemverPart>,
}

/// Identifier of a pre-release version, such as `rc` or `1`. A number is less than a text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SemverPart {
    Number(u64),
    Text(String),
}

impl Semver {
    pub(crate) fn cmp(&self, other: &Self) -> Ordering {
        self.numbers.cmp(&other.numbers).then_with(|| match (self.pre.is_empty(), other.pre.is_empty()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) => self.pre.cmp(&other.pre),
        })
    }
}

pub(super) fn function(name: &str) -> Option<LibraryFunction> {
    Some(match name {
        "semver" => |args, _| match read(args) {
            Some(read) => read.map(|version| CelValue::Semver(Arc::new(version))).map_err(EvaluationFailure::Error),
            None => no_overload(),
        },
        "isSemver" => |args, _| read(args).map_or_else(no_overload, |read| Ok(CelValue::Bool(read.is_ok()))),
        "major" => |args, _| number(args, 0),
        "minor" => |args, _| number(args, 1),
        "patch" => |args, _| number(args, 2),
        "compareTo" => |args, _| compared(args, |order| CelValue::Int(order as i64)),
        "isGreaterThan" => |args, _| compared(args, |order| CelValue::Bool(order.is_gt())),
        "isLessThan" => |args, _| compared(args, |order| CelValue::Bool(order.is_lt())),
        _ => return None,
    })
}

fn read(args: &[CelValue<'_>]) -> Option<Result<Semver, String>> {
    match args {
        [CelValue::String(text)] | [CelValue::String(text), CelValue::Bool(false)] => Some(parse(text)),
        [CelValue::String(text), CelValue::Bool(true)] => Some(normalize(text).and_then(|text| parse(&text))),
        _ => None,
    }
}

fn number<'a>(args: &[CelValue<'a>], place: usize) -> Result<CelValue<'a>, EvaluationFailure> {
    match args {
        [CelValue::Semver(version)] => Ok(CelValue::Int(i64::try_from(version.numbers[place]).unwrap_or(i64::MAX))),
        _ => no_overload(),
    }
}

/// Compares two versions, for `compareTo`, `isLessThan` and `isGreaterThan`. Quantities have functions of the same
/// names.
fn compared<'a>(
    args: &[CelValue<'a>],
    tell: fn(Ordering) -> CelValue<'static>,
) -> Result<CelValue<'a>, EvaluationFailure> {
    match args {
        [CelValue::Semver(one), CelValue::Semver(other)] => Ok(tell(one.cmp(other))),
        [CelValue::Quantity(one), CelValue::Quantity(other)] => Ok(tell(one.quantity.cmp(&other.quantity))),
        _ => no_overload(),
    }
}

/// Normalizes a version: `v01.2` becomes `1.2.0`.
fn normalize(text: &str) -> Result<String, String> {
    let text = text.strip_prefix('v').unwrap_or(text);
    let mut parts: Vec<String> = text.splitn(3, '.').map(without_zeros).collect();
    if parts.len() < 3 && parts.last().is_some_and(|last| last.contains(['+', '-'])) {
        return Err("short version cannot contain PreRelease/Build meta data".to_owned());
    }
    parts.resize(parts.len().max(3), "0".to_owned());
    Ok(parts.join("."))
}

fn without_zeros(part: &str) -> String {
    if part.len() <= 1 {
        return part.to_owned();
    }
    let rest = part.trim_start_matches('0');
    if rest.starts_with(|first: char| first.is_ascii_digit()) { rest.to_owned() } else { format!("0{rest}") }
}

fn parse(text: &str) -> Result<Semver, String> {
    if text.is_empty() {
        return Err("Version string empty".to_owned());
    }
    let parts: Vec<&str> = text.splitn(3, '.').collect();
    let [major, minor, patch] = parts.as_slice() else { return Err("No Major.Minor.Patch elements found".to_owned()) };
    let (patch, build) = patch.split_once('+').map_or((*patch, None), |(patch, build)| (patch, Some(build)));
    let (patch, pre) = patch.split_once('-').map_or((patch, None), |(patch, pre)| (patch, Some(pre)));
    let numbers = [numeric("Major", major)?, numeric("Minor", minor)?, numeric("Patch", patch)?];
    let pre = pre.map_or(Ok(Vec::new()), |pre| pre.split('.').map(part).collect())?;
    for part in build.into_iter().flat_map(|build| build.split('.')) {
        if part.is_empty() {
            return Err("Build meta data is empty".to_owned());
        }
        if !part.bytes().all(is_identifier) {
            return Err(format!("Invalid character(s) found in build meta data {part:?}"));
        }
    }
    Ok(Semver { numbers, pre })
}

fn is_identifier(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-'
}

fn numeric(name: &str, text: &str) -> Result<u64, String> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("Invalid character(s) found in {} number {text:?}", name.to_lowercase()));
    }
    if text.len() > 1 && text.starts_with('0') {
        return Err(format!("{name} number must not contain leading zeroes {text:?}"));
    }
    text.parse().map_err(|_| format!("strconv.ParseUint: parsing {text:?}: value out of range"))
}

fn part(text: &str) -> Result<SemverPart, String> {
    if text.is_empty() {
        return Err("Prerelease is empty".to_owned());
    }
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        if text.len() > 1 && text.starts_with('0') {
            return Err(format!("Numeric PreRelease version must not contain leading zeroes {text:?}"));
        }
        return text
            .parse()
            .map(SemverPart::Number)
            .map_err(|_| format!("strconv.ParseUint: parsing {text:?}: value out of range"));
    }
    if text.bytes().all(is_identifier) {
        Ok(SemverPart::Text(text.to_owned()))
    } else {
        Err(format!("Invalid character(s) found in prerelease {text:?}"))
    }
}
