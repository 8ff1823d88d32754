//! Answers, and the differences between two of them that are allowed.

use http::HeaderMap;
use serde_json::Value;

/// Headers that differ between any two answers.
const VARYING_HEADERS: [&str; 4] = ["audit-id", "date", "content-length", "x-request-id"];
/// Fields with a revision, a uid, a time or a token.
const VARYING_FIELDS: [&str; 9] = [
    "resourceVersion",
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "time",
    "continue",
    "token",
    "lastTransitionTime",
    "eventTime",
];
/// Characters of an id of a logical cluster.
const ID_CHARS: usize = 13;
/// Start of the name of the volume with a pod's token; the rest is random.
const TOKEN_VOLUME: &str = "kube-api-access-";
/// Start of a continue token.
const CONTINUE: &str = "eyJ2Ijoi";
/// Characters of a uid.
const UID_CHARS: usize = 36;

/// Whole answer of a server.
pub struct Answer {
    pub code: u16,
    headers: Vec<(String, String)>,
    pub text: String,
}

impl Answer {
    pub fn new(code: u16, headers: &HeaderMap, text: String) -> Self {
        let mut headers: Vec<(String, String)> = headers
            .iter()
            .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
            .filter(|(name, _)| !VARYING_HEADERS.contains(&name.as_str()))
            .collect();
        headers.sort();
        Self { code, headers, text }
    }

    pub fn of(code: u16, headers: &[(&str, &str)], text: &str) -> Self {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Self { code, headers, text: text.to_owned() }
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_default()
    }

    /// The body without the parts that may differ.
    fn shape(&self) -> Value {
        if let Ok(mut document) = serde_json::from_str(&self.text) {
            blank(&mut document);
            return document;
        }
        // A watch sends one document per line.
        let lines = self.text.lines().map(|line| {
            let mut value: Value = serde_json::from_str(line).unwrap_or_else(|_| Value::String(line.to_owned()));
            blank(&mut value);
            value
        });
        lines.collect()
    }
}

/// Describes the first difference between two answers, if there is one.
pub fn difference(alone: &Answer, shared: &Answer) -> Option<String> {
    let headers = |answer: &Answer| answer.headers.iter().map(|(name, value)| (name.clone(), masked(value))).collect();
    let (ours, theirs): (Vec<_>, Vec<_>) = (headers(alone), headers(shared));
    if alone.code != shared.code || ours != theirs || alone.shape() != shared.shape() {
        let shown = |answer: &Answer, headers| {
            format!("{} {headers:?}\n{}", answer.code, serde_json::to_string(&answer.shape()).unwrap_or_default())
        };
        return Some(format!("alone:  {}\nshared: {}", shown(alone, ours), shown(shared, theirs)));
    }
    None
}

/// Blanks the parts that may differ.
fn blank(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(blank),
        Value::Object(fields) => {
            for (name, value) in fields {
                match VARYING_FIELDS.contains(&name.as_str()) {
                    is_varying if is_varying => *value = Value::String("*".into()),
                    _ => blank(value),
                }
            }
        }
        Value::String(text) => *text = masked(text),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Masks uids and ids of logical clusters in a text, and the numbers of a sentence about revisions.
fn masked(text: &str) -> String {
    let is_of_revisions = ["resource version", "resourceVersion", "resourceversion"].iter().any(|w| text.contains(w));
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let mut masked = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let word = &rest[..end];
        masked.push_str(match word {
            word if is_uid(word) => "<uid>",
            word if is_id(word) => "<id>",
            word if word.starts_with(TOKEN_VOLUME) => TOKEN_VOLUME,
            word if word.starts_with(CONTINUE) => "<continue>",
            word if is_of_revisions && !word.is_empty() && word.chars().all(|c| c.is_ascii_digit()) => "<revision>",
            word => word,
        });
        let next = rest[end..].chars().next().map_or(0, char::len_utf8);
        masked.push_str(&rest[end..end + next]);
        rest = &rest[end + next..];
    }
    masked
}

fn is_uid(word: &str) -> bool {
    let is_dash = |at: usize| matches!(at, 8 | 13 | 18 | 23);
    word.len() == UID_CHARS
        && word.bytes().enumerate().all(|(at, byte)| if is_dash(at) { byte == b'-' } else { byte.is_ascii_hexdigit() })
}

/// Returns true for an id of a logical cluster. A word that consists of letters only is not an id.
fn is_id(word: &str) -> bool {
    word.len() == ID_CHARS
        && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        && word.bytes().any(|byte| byte.is_ascii_digit())
}
