//! Property names as names of an expression.

use crate::syntax::is_reserved;

const SEQUENCES: [(&str, &str); 4] =
    [("__", "__underscores__"), (".", "__dot__"), ("-", "__dash__"), ("/", "__slash__")];

/// Returns the name of a property in expressions; `None` if it has none.
#[must_use]
pub fn escape(name: &str) -> Option<String> {
    if name.is_empty() || name.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    if is_reserved(name) {
        return Some(format!("__{name}__"));
    }
    let mut escaped = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(first) = rest.chars().next() {
        if let Some((plain, sequence)) = SEQUENCES.into_iter().find(|(plain, _)| rest.starts_with(plain)) {
            escaped += sequence;
            rest = &rest[plain.len()..];
        } else if first.is_ascii_alphanumeric() || first == '_' {
            escaped.push(first);
            rest = &rest[1..];
        } else {
            return None;
        }
    }
    Some(escaped)
}

/// Returns the property that a name in an expression refers to.
#[must_use]
pub fn unescape(name: &str) -> Option<String> {
    let mut plain = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(start) = rest.find("__") {
        // Two underscores, a part without underscores, and two underscores.
        let inner = &rest[start + 2..];
        let length = inner.find('_').unwrap_or(inner.len());
        if length == 0 || !inner[length..].starts_with("__") {
            plain += &rest[..=start];
            rest = &rest[start + 1..];
            continue;
        }
        plain += &rest[..start];
        let word = &inner[..length];
        match word {
            "underscores" => plain += "__",
            "dot" => plain.push('.'),
            "dash" => plain.push('-'),
            "slash" => plain.push('/'),
            // A keyword is escaped only where it is the whole name.
            word if is_reserved(word) && name.len() == length + 4 => plain += word,
            _ => return None,
        }
        rest = &inner[length + 2..];
    }
    Some(plain + rest)
}
