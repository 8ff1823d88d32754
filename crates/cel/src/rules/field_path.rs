//! `fieldPath`: `.spec['a.b'].c`, relative to the schema of the rule.

use crate::schema::RuleSchema;
use serde_json::Value as Json;

/// Resolves a path of properties and map keys in a schema, and returns it as errors show it.
///
/// # Errors
/// Returns the error of the path; `None` if it only leads nowhere.
pub fn valid_field_path(text: &str, schema: &RuleSchema) -> Result<String, String> {
    follow(text, schema, |at, name| {
        if at.has_properties {
            Some((at.properties.get(name)?, Step::Property))
        } else {
            Some((at.values.as_deref()?, Step::Key))
        }
    })
}

/// Checks that a path exists in a schema as written. Only the needed part is read.
///
/// # Errors
/// Fails as [`valid_field_path`] does.
pub fn check_field_path<'s>(text: &str, schema: &'s Json) -> Result<(), String> {
    let has_properties = |properties: &&serde_json::Map<String, Json>| !properties.is_empty();
    let below = |at: &'s Json, name: &str| match at.get("properties").and_then(Json::as_object).filter(has_properties) {
        Some(properties) => Some((properties.get(name)?, Step::Property)),
        None => Some((at.get("additionalProperties").filter(|values| values.is_object())?, Step::Key)),
    };
    follow(text, schema, below).map(drop)
}

/// Step from a schema to a nested one.
#[derive(Clone, Copy)]
enum Step {
    Property,
    Key,
}

fn follow<N: Copy>(text: &str, root: N, below: impl Fn(N, &str) -> Option<(N, Step)>) -> Result<String, String> {
    let mut path = String::new();
    let mut at = root;
    let mut tokens = tokens(text).into_iter();
    while let Some(token) = tokens.next() {
        let name = match token.as_str() {
            "." => tokens.next().ok_or("unexpected end of JSON path")?,
            "[" => {
                let token = tokens.next().ok_or("unexpected end of JSON path")?;
                let inner =
                    token.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\'')).filter(|_| token.len() >= 2);
                let name = unescape(inner.ok_or_else(|| format!("expected single quoted string but got {token}"))?)?;
                match tokens.next().ok_or("unexpected end of JSON path")?.as_str() {
                    "]" => name,
                    other => return Err(format!("expected ] but got {other}")),
                }
            }
            other => return Err(format!("expected [ or . but got: {other}")),
        };
        let step;
        (at, step) = below(at, &name).ok_or("does not refer to a valid field")?;
        path = match step {
            Step::Property => super::error::child(&path, &name),
            Step::Key => format!("{path}[{name}]"),
        };
    }
    Ok(path)
}

/// Splits into delimiters, quoted texts, and the parts between them.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens: Vec<String> = Vec::new();
    let mut current = String::new();
    let mut quoted = false;
    let mut previous = ' ';
    for character in text.chars() {
        if quoted {
            current.push(character);
            if character == '\'' && previous != '\\' {
                tokens.push(std::mem::take(&mut current));
                quoted = false;
            }
        } else if matches!(character, '.' | '[' | ']') {
            if !current.is_empty() {
                tokens.push(std::mem::take(&mut current));
            }
            tokens.push(character.to_string());
        } else {
            quoted = current.is_empty() && character == '\'';
            current.push(character);
        }
        previous = character;
    }
    if !current.is_empty() {
        tokens.push(current);
    }
    tokens
}

fn unescape(text: &str) -> Result<String, String> {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character != '\\' {
            plain.push(character);
            continue;
        }
        plain.push(match characters.next() {
            Some('a') => '\u{7}',
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('v') => '\u{b}',
            Some(same @ ('\'' | '\\')) => same,
            other => return Err(format!("invalid string literal: invalid escape char \\{}", other.unwrap_or(' '))),
        });
    }
    Ok(plain)
}
