//! Label selectors, from their text form (`a=b,c in (d,e),!f`) and their object form (`matchLabels`,
//! `matchExpressions`).

mod rules;
mod text;

use std::collections::BTreeMap;

use serde::Deserialize;

pub use rules::{SUBDOMAIN_RULE, is_subdomain, key_faults, value_faults};

/// Error for a text or an object that is not a label selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidSelector(String);

/// Longest selector text that is parsed, in bytes.
const MAX_TEXT: usize = 64 * 1024;

/// Label selector; all requirements are ANDed, and none matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
}

/// One requirement of a selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    key: String,
    test: RequirementTest,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum RequirementTest {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Missing,
    Greater(i64),
    Less(i64),
}

/// Object form of a selector, as in `spec.selector` (`metav1.LabelSelector`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelectorSpec {
    /// Labels that must have these values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// Expressions that must hold.
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
    /// Returns true without any requirement.
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
            .map(|(key, value)| Ok(Requirement { key: key.clone(), test: RequirementTest::In(vec![value.clone()]) }));
        let expressions = spec.match_expressions.iter().map(Requirement::from_expression);
        Ok(Self { requirements: pairs.chain(expressions).collect::<Result<_, _>>()? })
    }
}

impl Requirement {
    fn from_expression(expression: &MatchExpression) -> Result<Self, InvalidSelector> {
        let values = || {
            if expression.values.is_empty() {
                Err(InvalidSelector(format!("operator {} needs values", expression.operator)))
            } else {
                Ok(expression.values.clone())
            }
        };
        let test = match expression.operator.as_str() {
            "In" => RequirementTest::In(values()?),
            "NotIn" => RequirementTest::NotIn(values()?),
            "Exists" => RequirementTest::Exists,
            "DoesNotExist" => RequirementTest::Missing,
            other => return Err(InvalidSelector(format!("{other:?} is not a valid label selector operator"))),
        };
        Ok(Self { key: expression.key.clone(), test })
    }

    fn matches(&self, value: Option<&str>) -> bool {
        let number = || value.and_then(|v| v.parse::<i64>().ok());
        match &self.test {
            RequirementTest::In(values) => value.is_some_and(|v| values.iter().any(|wanted| wanted == v)),
            RequirementTest::NotIn(values) => !value.is_some_and(|v| values.iter().any(|wanted| wanted == v)),
            RequirementTest::Exists => value.is_some(),
            RequirementTest::Missing => value.is_none(),
            RequirementTest::Greater(bound) => number().is_some_and(|n| n > *bound),
            RequirementTest::Less(bound) => number().is_some_and(|n| n < *bound),
        }
    }
}

impl LabelSelector {
    /// Returns the selector that matches everything.
    pub fn everything() -> Self {
        Self::default()
    }

    /// Returns true if it matches everything.
    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Parses the text form of `labelSelector=`.
    ///
    /// # Errors
    /// Names the unexpected and the expected token.
    pub fn parse(text: &str) -> Result<Self, InvalidSelector> {
        if text.len() > MAX_TEXT {
            return Err(InvalidSelector(format!("selector is longer than {MAX_TEXT} bytes")));
        }
        Ok(Self { requirements: text::parse(text)? })
    }

    /// Returns true if the values that `lookup` returns satisfy every requirement.
    pub fn matches<'a>(&self, lookup: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.requirements.iter().all(|r| r.matches(lookup(&r.key)))
    }

    /// Returns true if `labels` satisfy every requirement.
    pub fn matches_map(&self, labels: &BTreeMap<String, String>) -> bool {
        self.matches(|key| labels.get(key).map(String::as_str))
    }
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
            ("app in (web,),!other", Some(true)),
            ("app in ()", Some(false)),
            ("in in (in)", Some(false)),
            ("!app=web", None),
            ("=web", None),
            ("a b=c", None),
            ("app=we b", None),
        ] {
            let got = LabelSelector::parse(text).ok().map(|s| s.matches_map(&labels));
            assert_eq!(got, expected, "{text:?}");
        }
    }
}
