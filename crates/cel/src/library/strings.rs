//! Functions on strings, which count in characters.

use super::format_string;
use super::{CallContext, LibraryFunction, error, no_overload};
use crate::program::{CelList, CelValue, EvaluationFailure};

pub(super) fn function(name: &str) -> Option<LibraryFunction> {
    Some(match name {
        "contains" => |args, _| test(args, |text, part| text.contains(part)),
        "startsWith" => |args, _| test(args, |text, part| text.starts_with(part)),
        "endsWith" => |args, _| test(args, |text, part| text.ends_with(part)),
        "charAt" => char_at,
        "lowerAscii" => |args, context| change(args, context, str::to_ascii_lowercase),
        "upperAscii" => |args, context| change(args, context, str::to_ascii_uppercase),
        "trim" => |args, context| change(args, context, |text| text.trim_matches(is_space).to_owned()),
        "strings.quote" => |args, context| change(args, context, quote),
        "jsonpatch.escapeKey" => {
            |args, context| change(args, context, |text| text.replace('~', "~0").replace('/', "~1"))
        }
        "replace" => replace,
        "split" => split,
        "join" => join,
        "substring" => substring,
        "format" => format,
        _ => return None,
    })
}

/// Returns true for white space as in Go's `unicode.IsSpace`.
fn is_space(character: char) -> bool {
    character.is_whitespace()
}

fn test<'a>(args: &[CelValue<'a>], holds: fn(&str, &str) -> bool) -> Result<CelValue<'a>, EvaluationFailure> {
    match args {
        [CelValue::String(text), CelValue::String(part)] => Ok(CelValue::Bool(holds(text, part))),
        _ => no_overload(),
    }
}

fn change<'a>(
    args: &[CelValue<'a>],
    context: &CallContext<'_>,
    change: fn(&str) -> String,
) -> Result<CelValue<'a>, EvaluationFailure> {
    match args {
        [CelValue::String(text)] => context.meter.text(change(text)),
        _ => no_overload(),
    }
}

fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match escape(character) {
            Some(escaped) => quoted += escaped,
            None => quoted.push(character),
        }
    }
    quoted.push('"');
    quoted
}

/// Returns the escape sequence of a character in a quoted string, if it needs one.
fn escape(character: char) -> Option<&'static str> {
    Some(match character {
        '\u{7}' => "\\a",
        '\u{8}' => "\\b",
        '\u{c}' => "\\f",
        '\n' => "\\n",
        '\r' => "\\r",
        '\t' => "\\t",
        '\u{b}' => "\\v",
        '\\' => "\\\\",
        '"' => "\\\"",
        _ => return None,
    })
}

fn char_at<'a>(args: &[CelValue<'a>], context: &CallContext<'_>) -> Result<CelValue<'a>, EvaluationFailure> {
    let [CelValue::String(text), CelValue::Int(index)] = args else { return no_overload() };
    let out_of_range = || error(format!("index out of range: {index}"));
    let Ok(place) = usize::try_from(*index) else { return out_of_range() };
    match text.chars().nth(place) {
        Some(character) => context.meter.text(character.to_string()),
        None if place == text.chars().count() => context.meter.text(String::new()),
        None => out_of_range(),
    }
}

/// Returns the first position of a substring, at `from` or later.
pub(super) fn index_of(text: &str, part: &str, from: i64) -> Result<i64, String> {
    if part.is_empty() {
        return Ok(from);
    }
    let Ok(from) = usize::try_from(from) else { return Err(format!("index out of range: {from}")) };
    let Some((start, _)) = text.char_indices().nth(from) else { return Ok(-1) };
    Ok(text[start..].find(part).map_or(-1, |found| count(&text[..start + found])))
}

/// Returns the last position of a substring, at `from` or earlier.
pub(super) fn last_index_of(text: &str, part: &str, from: Option<i64>) -> Result<i64, String> {
    let length = count(text);
    if part.is_empty() {
        return Ok(from.unwrap_or(length));
    }
    let from = match from {
        Some(from) if from < 0 => return Err(format!("index out of range: {from}")),
        Some(from) if from >= length => return Ok(-1),
        Some(from) => from,
        None if text.len() < part.len() => return Ok(-1),
        None => length - 1,
    };
    let end = usize::try_from(from).unwrap_or_default() + part.chars().count();
    let end = text.char_indices().nth(end).map_or(text.len(), |(end, _)| end);
    Ok(text[..end].rfind(part).map_or(-1, |found| count(&text[..found])))
}

fn count(text: &str) -> i64 {
    i64::try_from(text.chars().count()).unwrap_or(i64::MAX)
}

fn replace<'a>(args: &[CelValue<'a>], context: &CallContext<'_>) -> Result<CelValue<'a>, EvaluationFailure> {
    let (text, old, new, limit) = match args {
        [CelValue::String(text), CelValue::String(old), CelValue::String(new)] => (text, old, new, None),
        [CelValue::String(text), CelValue::String(old), CelValue::String(new), CelValue::Int(limit)] => {
            (text, old, new, usize::try_from(*limit).ok())
        }
        _ => return no_overload(),
    };
    let found = if old.is_empty() { text.chars().count() + 1 } else { text.matches(&**old).count() };
    let times = limit.map_or(found, |limit| limit.min(found));
    context.meter.bytes(text.len().saturating_add(times.saturating_mul(new.len())))?;
    context.meter.text(text.replacen(&**old, new, times))
}

fn split<'a>(args: &[CelValue<'a>], context: &CallContext<'_>) -> Result<CelValue<'a>, EvaluationFailure> {
    let (text, separator, limit) = match args {
        [CelValue::String(text), CelValue::String(separator)] => (text, separator, None),
        [CelValue::String(text), CelValue::String(separator), CelValue::Int(limit)] => {
            (text, separator, usize::try_from(*limit).ok())
        }
        _ => return no_overload(),
    };
    let most = limit.unwrap_or(usize::MAX);
    let expected = if separator.is_empty() { text.chars().count() } else { text.matches(&**separator).count() + 1 };
    context.meter.elements(expected.min(most))?;
    context.meter.bytes(text.len())?;
    let parts: Vec<CelValue<'a>> = match (most, separator.is_empty()) {
        (0, _) => Vec::new(),
        (_, true) => characters(text, most).map(|part| part.to_owned().into()).collect(),
        (_, false) => text.splitn(most, &**separator).map(|part| part.to_owned().into()).collect(),
    };
    Ok(CelValue::List(CelList::owned(parts)))
}

/// Splits into characters. The last element holds the rest beyond the limit.
fn characters(text: &str, most: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    let mut given = 0;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        given += 1;
        let end = if given == most { rest.len() } else { first.len_utf8() };
        let (part, left) = rest.split_at(end);
        rest = left;
        Some(part)
    })
}

fn join<'a>(args: &[CelValue<'a>], context: &CallContext<'_>) -> Result<CelValue<'a>, EvaluationFailure> {
    let (list, separator) = match args {
        [CelValue::List(list)] => (list, ""),
        [CelValue::List(list), CelValue::String(separator)] => (list, &**separator),
        _ => return no_overload(),
    };
    let mut text = String::new();
    for (index, element) in list.iter().enumerate() {
        match element? {
            CelValue::String(part) => {
                let gap = if index == 0 { "" } else { separator };
                context.meter.bytes(gap.len() + part.len())?;
                text += gap;
                text += &part;
            }
            other => return error(format!("join: invalid input: {}", other.plain())),
        }
    }
    Ok(text.into())
}

fn substring<'a>(args: &[CelValue<'a>], context: &CallContext<'_>) -> Result<CelValue<'a>, EvaluationFailure> {
    let (text, start, end) = match args {
        [CelValue::String(text), CelValue::Int(start)] => (text, *start, count(text)),
        [CelValue::String(text), CelValue::Int(start), CelValue::Int(end)] => (text, *start, *end),
        _ => return no_overload(),
    };
    let length = count(text);
    if args.len() == 3 && start > end {
        return error(format!("invalid substring range. start: {start}, end: {end}"));
    }
    if let Some(wrong) = [start, end].into_iter().find(|index| *index < 0 || *index > length) {
        return error(format!("index out of range: {wrong}"));
    }
    let (skip, take) = (usize::try_from(start).unwrap_or_default(), usize::try_from(end - start).unwrap_or_default());
    context.meter.text(text.chars().skip(skip).take(take).collect())
}

fn format<'a>(args: &[CelValue<'a>], context: &CallContext<'_>) -> Result<CelValue<'a>, EvaluationFailure> {
    match args {
        [CelValue::String(text), CelValue::List(values)] => format_string::format(text, values, context),
        _ => no_overload(),
    }
}
