//! Patterns.

pub(crate) use super::go_regex::Pattern;
use super::{Context, Function, go_regex, no_overload};
use crate::program::{Failure, List, Value};
use std::borrow::Cow;

pub(super) fn function(name: &str) -> Option<Function> {
    Some(match name {
        "matches" => matches,
        "find" => find,
        "findAll" => find_all,
        _ => return None,
    })
}

/// Compiles a pattern of Go's syntax.
pub(crate) fn compile(pattern: &str) -> Result<Pattern, String> {
    go_regex::compile(pattern)
}

/// The pattern, compiled before where it is a constant.
fn pattern<'c>(text: &str, context: &'c Context<'_>) -> Result<Cow<'c, Pattern>, Failure> {
    if let Some(known) = context.patterns.get(text) {
        return Ok(Cow::Borrowed(known));
    }
    context.meter.pattern(text)?;
    compile(text).map(Cow::Owned).map_err(Failure::Error)
}

fn matches<'a>(args: &[Value<'a>], context: &Context<'_>) -> Result<Value<'a>, Failure> {
    let [Value::String(text), Value::String(wanted)] = args else { return no_overload() };
    let wanted = pattern(wanted, context).map_err(|failure| prefixed(failure, "error parsing regexp"))?;
    Ok(Value::Bool(wanted.regex.is_match(text)))
}

fn prefixed(failure: Failure, prefix: &str) -> Failure {
    match failure {
        Failure::Error(message) => Failure::Error(format!("{prefix}: {message}")),
        cancelled @ Failure::Cancelled(_) => cancelled,
    }
}

fn find<'a>(args: &[Value<'a>], context: &Context<'_>) -> Result<Value<'a>, Failure> {
    let [Value::String(text), Value::String(wanted)] = args else { return no_overload() };
    let wanted =
        pattern(wanted, context).map_err(|failure| prefixed(failure, "Illegal regex: error parsing regexp"))?;
    context.meter.text(wanted.regex.find(text).map_or("", |found| found.as_str()).to_owned())
}

fn find_all<'a>(args: &[Value<'a>], context: &Context<'_>) -> Result<Value<'a>, Failure> {
    let (text, wanted, limit) = match args {
        [Value::String(text), Value::String(wanted)] => (text, wanted, -1),
        [Value::String(text), Value::String(wanted), Value::Int(limit)] => (text, wanted, *limit),
        _ => return no_overload(),
    };
    let wanted =
        pattern(wanted, context).map_err(|failure| prefixed(failure, "Illegal regex: error parsing regexp"))?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut found = Vec::new();
    let mut end = None;
    for part in wanted.regex.find_iter(text) {
        if found.len() >= limit {
            break;
        }
        // Go takes no empty match right behind another match.
        if part.is_empty() && end == Some(part.start()) {
            continue;
        }
        end = Some(part.end());
        context.meter.elements(1)?;
        context.meter.bytes(part.len())?;
        found.push(part.as_str().to_owned().into());
    }
    Ok(Value::List(List::owned(found)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::Meter;
    use std::collections::HashMap;

    #[test]
    fn patterns_count_by_their_length() {
        for (length, most) in [(1, 1000), (255, 1000), (256, 500), (100_000, 2), (1 << 20, 0)] {
            let context = Context { patterns: &HashMap::new(), meter: Meter::default() };
            // Told to be none at once.
            let text = ")".repeat(length);
            let goes_on = |_: &usize| !matches!(pattern(&text, &context), Err(Failure::Cancelled(_)));
            assert_eq!((0..2000).take_while(goes_on).count(), most, "of {length} bytes");
        }
    }
}
