//! `encoding/json`: the escapes of characters that could end a script in HTML.

const ESCAPES: [(char, &str); 5] =
    [('<', "\\u003c"), ('>', "\\u003e"), ('&', "\\u0026"), ('\u{2028}', "\\u2028"), ('\u{2029}', "\\u2029")];

/// Escapes JSON text as Go writes it. The escaped characters occur in JSON strings only.
pub fn escaped(json: &str) -> String {
    if !json.contains(|c| ESCAPES.iter().any(|(plain, _)| *plain == c)) {
        return json.to_owned();
    }
    ESCAPES.iter().fold(json.to_owned(), |json, (plain, escape)| json.replace(*plain, escape))
}
