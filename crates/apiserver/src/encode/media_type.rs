//! `Content-Type` as Go's `mime.ParseMediaType` parses it.

/// Returns the media type without its parameters, in lower case; `None` if it is malformed.
pub(super) fn parse(text: &str) -> Option<String> {
    let (base, mut rest) = text.split_at(text.find(';').unwrap_or(text.len()));
    let media = base.trim().to_lowercase();
    check(&media)?;
    let mut known: Vec<(String, String)> = Vec::new();
    while !rest.trim().is_empty() {
        let Some((key, value, after)) = parameter(rest) else {
            return (rest.trim() == ";").then_some(media);
        };
        if known.iter().any(|(name, other)| *name == key && *other != value) {
            return None;
        }
        known.push((key, value));
        rest = after;
    }
    Some(media)
}

fn check(media: &str) -> Option<()> {
    let (main, sub) = media.split_once('/').unwrap_or((media, "x"));
    [main, sub].iter().all(|part| !part.is_empty() && part.chars().all(is_token)).then_some(())
}

/// Returns name and value of the first parameter, and the rest.
fn parameter(text: &str) -> Option<(String, String, &str)> {
    let text = text.trim_start().strip_prefix(';')?.trim_start();
    let (name, text) = token(text);
    let text = text.trim_start().strip_prefix('=')?.trim_start();
    let (value, rest) = match text.strip_prefix('"') {
        Some(quoted) => quoted_value(quoted)?,
        None => {
            Some(token(text)).filter(|(value, _)| !value.is_empty()).map(|(value, rest)| (value.to_owned(), rest))?
        }
    };
    (!name.is_empty()).then(|| (name.to_lowercase(), value, rest))
}

/// Returns the text before the closing quote, and the rest.
fn quoted_value(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices().peekable();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &text[at + 1..])),
            '\r' | '\n' => return None,
            '\\' if characters.peek().is_some_and(|(_, next)| SPECIAL.contains(*next)) => {
                value.extend(characters.next().map(|(_, next)| next));
            }
            other => value.push(other),
        }
    }
    None
}

fn token(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c| !is_token(c)).unwrap_or(text.len()))
}

const SPECIAL: &str = "()<>@,;:\\\"/[]?=";

fn is_token(character: char) -> bool {
    character.is_ascii_graphic() && !SPECIAL.contains(character)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_types_are_read_as_go_reads_them() {
        for (text, expected) in [
            ("application/json", Some("application/json")),
            (" Application/JSON ; charset=utf-8", Some("application/json")),
            ("application/json;", Some("application/json")),
            ("application/json; charset=\"u;tf\\\"8\" ; a=b", Some("application/json")),
            ("application/json; a=b; a=b", Some("application/json")),
            ("json", Some("json")),
            ("application/json; charset", None),
            ("application/json; charset=", None),
            ("application/json; =utf-8", None),
            ("application/json; a=b; a=c", None),
            ("application/json; a=\"b", None),
            ("application/json;;", None),
            ("application/json text", None),
            ("application/", None),
            ("/json", None),
        ] {
            assert_eq!(parse(text).as_deref(), expected, "{text}");
        }
    }
}
