//! The text form.

/// Text that is not a value of a selector.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum InvalidValue {
    #[error("invalid field selector: invalid escape sequence: {0}")]
    Escape(String),
    /// kube-apiserver shows the character as its number.
    #[error("invalid field selector: unescaped character in value: {}", u32::from(*.0))]
    Unescaped(char),
}

/// Splits at commas that are not escaped by a backslash.
pub(super) fn terms(text: &str) -> impl Iterator<Item = &str> {
    let mut escaped = false;
    text.split(move |c| {
        let splits = c == ',' && !escaped;
        escaped = c == '\\' && !escaped;
        splits
    })
}

/// Splits a term into the field, whether it must be equal, and the raw value.
pub(super) fn term(text: &str) -> Option<(&str, bool, &str)> {
    let starts = |at: &usize| text[*at..].starts_with('=') || text[*at..].starts_with("!=");
    let at = text.char_indices().map(|(at, _)| at).find(starts)?;
    let (field, rest) = text.split_at(at);
    let operator = ["!=", "==", "="].into_iter().find(|operator| rest.starts_with(operator))?;
    Some((field, operator != "!=", &rest[operator.len()..]))
}

/// Returns the value without its backslashes.
pub(super) fn unescape(text: &str) -> Result<String, InvalidValue> {
    let mut value = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(escaped @ ('\\' | ',' | '=')) => value.push(escaped),
                Some(other) => return Err(InvalidValue::Escape(format!("\\{other}"))),
                None => return Err(InvalidValue::Escape("\\".into())),
            },
            ',' | '=' => return Err(InvalidValue::Unescaped(c)),
            plain => value.push(plain),
        }
    }
    Ok(value)
}
