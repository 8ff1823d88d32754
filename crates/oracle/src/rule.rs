//! Reason for permanent differences, with the differences that it explains.

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// Reason with patterns: `at` match the position of a difference, `in` match `script: sentence`.
#[derive(Debug)]
pub(super) struct DifferenceRule {
    pub(super) reason: String,
    at: Vec<String>,
    within: Vec<String>,
    /// Maximum number of requests that the reason may explain; `None` before the first count.
    pub(super) requests: usize,
    /// Reason why the number differs between runs; then `requests` is the maximum.
    pub(super) varies: Option<String>,
}

/// Indexes of the patterns by which a rule explains a difference, in `at` and `in`.
pub(super) type Fit = (usize, usize);

impl DifferenceRule {
    pub(super) fn parse(value: &Value) -> Result<Self> {
        let reason = value["reason"].as_str().context("a rule has a reason")?.to_owned();
        let all = |key: &str| value.get(key).map_or_else(|| vec!["*".to_owned()], texts);
        let requests = value["requests"].as_u64().unwrap_or_default();
        let varies = value["varies"].as_str().map(str::to_owned);
        Ok(Self { reason, at: all("at"), within: all("in"), requests: usize::try_from(requests)?, varies })
    }

    /// Formats the rule. A run lowers the number of requests, except with `varies`, and sets it for new rules.
    pub(super) fn to_value(&self, counted: Option<usize>) -> Value {
        let lowered = counted.filter(|count| self.varies.is_none() && (*count < self.requests || self.requests == 0));
        let requests = lowered.unwrap_or(self.requests);
        let mut value = json!({"reason": self.reason, "at": self.at, "in": self.within, "requests": requests});
        if let Some(varies) = &self.varies {
            value["varies"] = varies.as_str().into();
        }
        value
    }

    pub(super) fn explains(&self, id: &str, shape: &str) -> Option<Fit> {
        let fits = |patterns: &[String], text: &str| patterns.iter().position(|pattern| matches(pattern, text));
        Some((fits(&self.at, shape)?, fits(&self.within, id)?))
    }

    /// Returns the patterns that matched nothing.
    pub(super) fn idle<'r>(&'r self, used: &[Fit]) -> Vec<&'r str> {
        let unused = |patterns: &'r [String], part: fn(&Fit) -> usize| {
            patterns.iter().enumerate().filter(move |(index, _)| !used.iter().any(|fit| part(fit) == *index))
        };
        unused(&self.at, |fit| fit.0).chain(unused(&self.within, |fit| fit.1)).map(|(_, text)| text.as_str()).collect()
    }
}

/// A text, or a list of them.
fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => vec![text.clone()],
        Value::Array(items) => items.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => Vec::new(),
    }
}

/// Returns true if `text` contains the parts of `pattern` between its stars, in order.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((start, rest)) => text.strip_prefix(start).is_some_and(|text| {
            rest.is_empty() || (0..=text.len()).any(|index| text.get(index..).is_some_and(|tail| matches(rest, tail)))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_has_stars() {
        for (pattern, text, expected) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("a*", "ab", true),
            ("*b", "ab", true),
            ("a*c*e", "abcde", true),
            ("a*c*e", "abcd", false),
            ("*", "", true),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn unused_patterns_are_reported() {
        let rule = DifferenceRule::parse(&json!({"reason": "r", "at": ["/a", "/b"], "in": ["x: *", "y: *"]})).unwrap();
        assert_eq!(rule.explains("y: step", "/a"), Some((0, 1)));
        assert_eq!(rule.explains("z: step", "/a"), None);
        assert_eq!(rule.idle(&[(0, 1)]), ["/b", "x: *"]);
        assert!(rule.idle(&[(0, 1), (1, 0)]).is_empty());
    }

    #[test]
    fn a_count_is_lowered_and_never_raised() {
        let why = json!("loops do when they like");
        for (case, requests, varies, counted, expected) in [
            ("a new rule", 0, Value::Null, Some(3), 3),
            ("fewer than listed", 5, Value::Null, Some(3), 3),
            ("more than listed", 2, Value::Null, Some(3), 2),
            ("what varies keeps its bound", 5, why, Some(3), 5),
            ("not all was asked", 5, Value::Null, None, 5),
        ] {
            let rule = DifferenceRule::parse(&json!({"reason": "r", "requests": requests, "varies": varies})).unwrap();
            assert_eq!(rule.to_value(counted)["requests"], expected, "{case}");
        }
    }
}
