//! Regular expressions.

use super::{CallContext, LibraryFunction, no_overload};
use crate::program::{CelList, CelValue, EvaluationFailure};
use portolan_gocompat::regexp;
pub(crate) use portolan_gocompat::regexp::Pattern;
use std::borrow::Cow;

pub(super) fn function(name: &str) -> Option<LibraryFunction> {
    Some(match name {
        "matches" => matches,
        "find" => find,
        "findAll" => find_all,
        _ => return None,
    })
}

/// Compiles a pattern of Go's syntax.
pub(crate) fn compile(pattern: &str) -> Result<Pattern, String> {
    regexp::compile(pattern)
}

/// Returns the compiled pattern. Constant patterns were compiled with the expression.
fn pattern<'c>(text: &str, context: &'c CallContext<'_>) -> Result<Cow<'c, Pattern>, EvaluationFailure> {
    if let Some(known) = context.patterns.get(text) {
        return Ok(Cow::Borrowed(known));
    }
    context.meter.pattern(text)?;
    compile(text).map(Cow::Owned).map_err(EvaluationFailure::Error)
}

fn matches<'a>(args: &[CelValue<'a>], context: &CallContext<'_>) -> Result<CelValue<'a>, EvaluationFailure> {
    let [CelValue::String(text), CelValue::String(wanted)] = args else { return no_overload() };
    let wanted = pattern(wanted, context).map_err(|failure| prefixed(failure, "error parsing regexp"))?;
    Ok(CelValue::Bool(wanted.regex.is_match(text)))
}

fn prefixed(failure: EvaluationFailure, prefix: &str) -> EvaluationFailure {
    match failure {
        EvaluationFailure::Error(message) => EvaluationFailure::Error(format!("{prefix}: {message}")),
        cancelled @ EvaluationFailure::Cancelled(_) => cancelled,
    }
}

fn find<'a>(args: &[CelValue<'a>], context: &CallContext<'_>) -> Result<CelValue<'a>, EvaluationFailure> {
    let [CelValue::String(text), CelValue::String(wanted)] = args else { return no_overload() };
    let wanted =
        pattern(wanted, context).map_err(|failure| prefixed(failure, "Illegal regex: error parsing regexp"))?;
    context.meter.text(wanted.regex.find(text).map_or("", |found| found.as_str()).to_owned())
}

fn find_all<'a>(args: &[CelValue<'a>], context: &CallContext<'_>) -> Result<CelValue<'a>, EvaluationFailure> {
    let (text, wanted, limit) = match args {
        [CelValue::String(text), CelValue::String(wanted)] => (text, wanted, -1),
        [CelValue::String(text), CelValue::String(wanted), CelValue::Int(limit)] => (text, wanted, *limit),
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
        // Go skips an empty match right after another match.
        if part.is_empty() && end == Some(part.start()) {
            continue;
        }
        end = Some(part.end());
        context.meter.elements(1)?;
        context.meter.bytes(part.len())?;
        found.push(part.as_str().to_owned().into());
    }
    Ok(CelValue::List(CelList::owned(found)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::Meter;
    use std::collections::HashMap;

    #[test]
    fn patterns_count_by_their_length() {
        for (length, most) in [(1, 1000), (255, 1000), (256, 500), (100_000, 2), (1 << 20, 0)] {
            let context = CallContext { patterns: &HashMap::new(), meter: Meter::default() };
            // Rejected at its first character.
            let text = ")".repeat(length);
            let goes_on = |_: &usize| !matches!(pattern(&text, &context), Err(EvaluationFailure::Cancelled(_)));
            assert_eq!((0..2000).take_while(goes_on).count(), most, "of {length} bytes");
        }
    }
}
