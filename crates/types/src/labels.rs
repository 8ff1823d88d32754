//! Label selectors, from their text form (`a=b,c in (d,e),!f`) and their object form (`matchLabels`, `matchExpressions`).

use std::collections::BTreeMap;

use serde::Deserialize;

/// Text or an object that is no label selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unable to parse requirement: {0}")]
pub struct InvalidSelector(String);

/// Longest selector text that is looked at, in bytes.
const MAX_TEXT: usize = 64 * 1024;

/// What a set of labels must hold; all requirements are ANDed, none matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
}

/// One term of a selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    key: String,
    test: Test,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Test {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Missing,
    Greater(i64),
    Less(i64),
}

/// The object form of a selector, as in `spec.selector` (`metav1.LabelSelector`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelectorSpec {
    /// Each pair must be there.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// Each expression must hold.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<MatchExpression>,
}

/// One expression of a [`LabelSelectorSpec`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(default)]
pub struct MatchExpression {
    /// Label key.
    pub key: String,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`.
    pub operator: String,
    /// Values of `In` and `NotIn`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

impl LabelSelectorSpec {
    /// Whether it has no requirement at all.
    pub fn is_empty(&self) -> bool {
        self.match_labels.is_empty() && self.match_expressions.is_empty()
    }
}

impl TryFrom<&LabelSelectorSpec> for LabelSelector {
    type Error = InvalidSelector;

    fn try_from(spec: &LabelSelectorSpec) -> Result<Self, InvalidSelector> {
        let pairs = spec
            .match_labels
            .iter()
            .map(|(key, value)| Ok(Requirement { key: key.clone(), test: Test::In(vec![value.clone()]) }));
        let expressions = spec.match_expressions.iter().map(Requirement::from_expression);
        Ok(Self { requirements: pairs.chain(expressions).collect::<Result<_, _>>()? })
    }
}

impl Requirement {
    fn from_expression(expression: &MatchExpression) -> Result<Self, InvalidSelector> {
        let values = || match expression.values.is_empty() {
            true => Err(InvalidSelector(format!("operator {} needs values", expression.operator))),
            false => Ok(expression.values.clone()),
        };
        let test = match expression.operator.as_str() {
            "In" => Test::In(values()?),
            "NotIn" => Test::NotIn(values()?),
            "Exists" => Test::Exists,
            "DoesNotExist" => Test::Missing,
            other => return Err(InvalidSelector(format!("{other:?} is not a valid label selector operator"))),
        };
        Ok(Self { key: expression.key.clone(), test })
    }

    fn matches(&self, value: Option<&str>) -> bool {
        let number = || value.and_then(|v| v.parse::<i64>().ok());
        match &self.test {
            Test::In(values) => value.is_some_and(|v| values.iter().any(|wanted| wanted == v)),
            Test::NotIn(values) => !value.is_some_and(|v| values.iter().any(|wanted| wanted == v)),
            Test::Exists => value.is_some(),
            Test::Missing => value.is_none(),
            Test::Greater(bound) => number().is_some_and(|n| n > *bound),
            Test::Less(bound) => number().is_some_and(|n| n < *bound),
        }
    }
}

impl LabelSelector {
    /// The selector that matches everything.
    pub fn everything() -> Self {
        Self::default()
    }

    /// Whether it matches everything.
    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Parses the text form of `labelSelector=`.
    ///
    /// # Errors
    /// Says what was found where something else was expected.
    pub fn parse(text: &str) -> Result<Self, InvalidSelector> {
        if text.len() > MAX_TEXT {
            return Err(InvalidSelector(format!("selector is longer than {MAX_TEXT} bytes")));
        }
        let requirements = split_terms(text)?.into_iter().map(parse_term).collect::<Result<_, _>>()?;
        Ok(Self { requirements })
    }

    /// Whether `lookup`, which gives the value of a label, satisfies every requirement.
    pub fn matches<'a>(&self, lookup: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.requirements.iter().all(|r| r.matches(lookup(&r.key)))
    }

    /// Whether `labels` satisfy every requirement.
    pub fn matches_map(&self, labels: &BTreeMap<String, String>) -> bool {
        self.matches(|key| labels.get(key).map(String::as_str))
    }
}

/// Splits at commas outside of parentheses.
fn split_terms(text: &str) -> Result<Vec<&str>, InvalidSelector> {
    let (mut terms, mut start, mut open) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        match c {
            '(' if !open => open = true,
            ')' if open => open = false,
            '(' | ')' => return Err(InvalidSelector(format!("found '{c}' out of place"))),
            ',' if !open => {
                terms.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if open {
        return Err(InvalidSelector("found '', expected: ',' or ')'".into()));
    }
    if terms.is_empty() && text.trim().is_empty() {
        return Ok(Vec::new());
    }
    terms.push(&text[start..]);
    Ok(terms)
}

fn parse_term(term: &str) -> Result<Requirement, InvalidSelector> {
    let term = term.trim();
    if let Some(key) = term.strip_prefix('!') {
        return Ok(Requirement { key: label_key(key)?, test: Test::Missing });
    }
    for (operator, negated) in [("!=", true), ("==", false), ("=", false)] {
        if let Some((key, value)) = term.split_once(operator) {
            let values = vec![label_value(value)?];
            let test = if negated { Test::NotIn(values) } else { Test::In(values) };
            return Ok(Requirement { key: label_key(key)?, test });
        }
    }
    for (operator, greater) in [('>', true), ('<', false)] {
        if let Some((key, value)) = term.split_once(operator) {
            let wrong =
                |_| InvalidSelector(format!("{value:?}: for 'Gt', 'Lt' operators, the value must be an integer"));
            let bound = value.trim().parse().map_err(wrong)?;
            let test = if greater { Test::Greater(bound) } else { Test::Less(bound) };
            return Ok(Requirement { key: label_key(key)?, test });
        }
    }
    match term.split_once(char::is_whitespace) {
        None => Ok(Requirement { key: label_key(term)?, test: Test::Exists }),
        Some((key, rest)) => parse_set(key, rest.trim()),
    }
}

fn parse_set(key: &str, rest: &str) -> Result<Requirement, InvalidSelector> {
    let (operator, list) = rest
        .split_once('(')
        .ok_or_else(|| InvalidSelector(format!("found '{rest}', expected: in, notin, =, ==, !=, gt, lt")))?;
    let inner = list.trim_end().strip_suffix(')').ok_or_else(|| InvalidSelector("expected ')'".into()))?;
    let values = inner.split(',').map(label_value).collect::<Result<_, _>>()?;
    let test = match operator.trim() {
        "in" => Test::In(values),
        "notin" => Test::NotIn(values),
        other => return Err(InvalidSelector(format!("found '{other}', expected: in, notin"))),
    };
    Ok(Requirement { key: label_key(key)?, test })
}

fn label_key(text: &str) -> Result<String, InvalidSelector> {
    let key = text.trim();
    let name = match key.rsplit_once('/') {
        Some((prefix, name)) if is_subdomain(prefix) => name,
        Some(_) => return Err(InvalidSelector(format!("invalid label key {key:?}"))),
        None => key,
    };
    match is_qualified(name) {
        true => Ok(key.into()),
        false => Err(InvalidSelector(format!("invalid label key {key:?}"))),
    }
}

fn label_value(text: &str) -> Result<String, InvalidSelector> {
    let value = text.trim();
    match value.is_empty() || is_qualified(value) {
        true => Ok(value.into()),
        false => Err(InvalidSelector(format!("invalid label value: {value:?}"))),
    }
}

/// The name part of a label key, or a label value: 1 to 63 of `[A-Za-z0-9._-]`, with alphanumeric ends.
pub fn is_qualified(text: &str) -> bool {
    let bytes = text.as_bytes();
    let ends = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    bytes.len() <= 63
        && ends(bytes.first())
        && ends(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b))
}

/// A DNS-1123 subdomain of 1 to 253 bytes: labels joined by dots (RFC 1123).
pub fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(|label| crate::names::check_dns_label(label).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_match_as_in_kubernetes() {
        let labels: BTreeMap<String, String> =
            [("app", "web"), ("tier", "front"), ("n", "5")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        for (text, expected) in [
            ("", Some(true)),
            ("app=web", Some(true)),
            ("app==web,tier!=back", Some(true)),
            ("app in (web, api),tier notin (back)", Some(true)),
            ("missing notin (x)", Some(true)),
            ("missing!=x", Some(true)),
            ("app", Some(true)),
            ("!app", Some(false)),
            ("!missing", Some(true)),
            ("n>4,n<6", Some(true)),
            ("n>5", Some(false)),
            ("example.com/a=b", Some(false)),
            ("app in (", None),
            ("app in web", None),
            ("app=web,", None),
            ("=web", None),
            ("a b=c", None),
            ("app=we b", None),
        ] {
            let got = LabelSelector::parse(text).ok().map(|s| s.matches_map(&labels));
            assert_eq!(got, expected, "{text:?}");
        }
    }
}
