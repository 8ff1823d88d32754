//! The differences that are known: `e2e/corpus/differences.yaml`.
//!
//! `stay` are those that remain, each with a reason: `at` is a pattern of the place, `in` one of `script: sentence`;
//! `*` stands for anything. `open` counts by script those that are to go; the numbers may only fall.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::diff::Difference;
use super::replay::Outcome;
use super::tally::shape;
use crate::harness::tools::repository;

/// What is known.
#[derive(Debug, Default)]
pub(super) struct Listed {
    stay: Vec<Rule>,
    open: BTreeMap<String, usize>,
}

/// A reason, and the differences that it explains.
#[derive(Debug)]
struct Rule {
    reason: String,
    at: Vec<String>,
    within: Vec<String>,
}

/// What a run says about the list.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Verdict {
    /// Different answers that nothing explains, and how many of them are listed, by script.
    pub(super) open: BTreeMap<String, (usize, usize)>,
    /// Different answers of which a reason explains all.
    pub(super) explained: usize,
    /// Reasons that explain nothing, when everything was asked.
    pub(super) unused: Vec<String>,
}

impl Verdict {
    /// Scripts with more differences than are listed.
    pub(super) fn worse(&self) -> impl Iterator<Item = (&str, usize, usize)> {
        let worse = self.open.iter().filter(|(_, (found, listed))| found > listed);
        worse.map(|(script, (found, listed))| (script.as_str(), *found, *listed))
    }

    pub(super) fn open_now(&self) -> usize {
        self.open.values().map(|(found, _)| found).sum()
    }
}

impl Listed {
    pub(super) fn file() -> PathBuf {
        repository().join("e2e/corpus/differences.yaml")
    }

    pub(super) fn read(file: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        Self::parse(&text).with_context(|| file.display().to_string())
    }

    fn parse(text: &str) -> Result<Self> {
        let value: Value = serde_saphyr::from_str(text)?;
        let stay = value["stay"].as_array().into_iter().flatten().map(Rule::parse).collect::<Result<_>>()?;
        let open = value["open"].as_object().into_iter().flatten();
        let open = open.map(|(script, count)| {
            let count = count.as_u64().with_context(|| format!("{script} has no number"))?;
            Ok((script.clone(), usize::try_from(count)?))
        });
        let open = open.collect::<Result<_>>()?;
        Ok(Self { stay, open })
    }

    /// Compares a run with the list. `whole` says that the run asked everything.
    pub(super) fn judge(&self, outcomes: &[Outcome], whole: bool) -> Verdict {
        let mut verdict = Verdict::default();
        let mut used = BTreeSet::new();
        for outcome in outcomes {
            let listed = self.open.get(&outcome.script).copied().unwrap_or_default();
            let (found, _) = verdict.open.entry(outcome.script.clone()).or_insert((0, listed));
            match (outcome.differences.len(), self.unexplained(outcome, &mut used)) {
                (0, _) => {}
                (_, 0) => verdict.explained += 1,
                (_, _) => *found += 1,
            }
        }
        if whole {
            let idle = self.stay.iter().filter(|rule| !used.contains(rule.reason.as_str()));
            verdict.unused = idle.map(|rule| rule.reason.clone()).collect();
        }
        verdict
    }

    fn unexplained<'l>(&'l self, outcome: &Outcome, used: &mut BTreeSet<&'l str>) -> usize {
        let id = format!("{}: {}", outcome.script, outcome.step);
        let unexplained = |difference: &&Difference| {
            let shape = shape(difference);
            let rule = self.stay.iter().find(|rule| rule.explains(&id, &shape));
            used.extend(rule.map(|rule| rule.reason.as_str()));
            rule.is_none()
        };
        outcome.differences.iter().filter(unexplained).count()
    }

    /// Whether no reason explains it.
    pub(super) fn is_open(&self, outcome: &Outcome) -> bool {
        self.unexplained(outcome, &mut BTreeSet::new()) > 0
    }

    /// The list with `open` as a run of everything found it.
    pub(super) fn updated(&self, verdict: &Verdict) -> Result<String> {
        let found = verdict.open.iter().map(|(script, (found, _))| (script, found)).filter(|(_, found)| **found > 0);
        let open: BTreeMap<&String, &usize> = found.collect();
        let stay: Vec<Value> = self.stay.iter().map(Rule::to_value).collect();
        let (stay, open) = (json!({"stay": stay}), json!({"open": open}));
        Ok(format!("{}\n{}", serde_saphyr::to_string(&stay)?.trim_end(), serde_saphyr::to_string(&open)?))
    }

    /// Reasons for good, and how many differences are open, for the page that people read.
    #[cfg(test)]
    fn figures(&self) -> (Vec<&str>, usize) {
        let reasons = self.stay.iter().map(|rule| rule.reason.as_str()).collect();
        (reasons, self.open.values().sum())
    }
}

impl Rule {
    fn parse(value: &Value) -> Result<Self> {
        let reason = value["reason"].as_str().context("a rule has a reason")?.to_owned();
        let all = |key: &str| value.get(key).map_or_else(|| vec!["*".to_owned()], texts);
        Ok(Self { reason, at: all("at"), within: all("in") })
    }

    fn to_value(&self) -> Value {
        json!({"reason": self.reason, "at": self.at, "in": self.within})
    }

    fn explains(&self, id: &str, shape: &str) -> bool {
        let fits = |patterns: &[String], text: &str| patterns.iter().any(|pattern| matches(pattern, text));
        fits(&self.at, shape) && fits(&self.within, id)
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

/// Whether `text` has the parts of `pattern` between its stars, in order.
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

    fn outcome(step: &str, at: &[&str]) -> Outcome {
        let differences = at.iter().map(|at| Difference { at: (*at).to_owned(), kube: Some(1.into()), portolan: None });
        Outcome {
            script: "core/pod".to_owned(),
            step: step.to_owned(),
            request: String::new(),
            differences: differences.collect(),
            kube: Value::Null,
            portolan: Value::Null,
        }
    }

    fn listed() -> Listed {
        let text = "stay: [{reason: no nodes, at: /body/spec/node*, in: 'core/*'}]\nopen: {core/pod: 1}\n";
        Listed::parse(text).unwrap()
    }

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
    fn differences_are_explained_or_open() {
        let late = outcome("late", &["/body/x"]);
        let half = outcome("half explained", &["/body/spec/nodeName", "/body/y"]);
        let outcomes = [outcome("equal", &[]), outcome("explained", &["/body/spec/nodeName"]), late, half];
        let verdict = listed().judge(&outcomes, true);
        assert_eq!((verdict.explained, verdict.open_now()), (1, 2));
        assert_eq!(verdict.worse().collect::<Vec<_>>(), [("core/pod", 2, 1)]);
        assert!(listed().judge(&outcomes[..3], true).worse().next().is_none());
    }

    #[test]
    fn a_reason_that_explains_nothing_is_told() {
        assert_eq!(listed().judge(&[outcome("equal", &[])], true).unused, ["no nodes"]);
        assert!(listed().judge(&[outcome("equal", &[])], false).unused.is_empty());
    }

    #[test]
    fn the_list_is_written_as_it_is_read() {
        let found = [outcome("late", &["/body/x"]), outcome("later", &["/body/y"])];
        let again = listed().updated(&listed().judge(&found, true)).unwrap();
        assert_eq!(Listed::parse(&again).unwrap().figures(), (vec!["no nodes"], 2));
    }

    #[test]
    fn the_page_says_what_the_list_says() {
        let page = std::fs::read_to_string(repository().join("docs/compatibility.md")).unwrap();
        let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
        let listed = Listed::read(&Listed::file()).unwrap();
        let (reasons, open) = listed.figures();
        for reason in reasons {
            assert!(page.contains(reason), "docs/compatibility.md lacks {reason:?}");
        }
        assert!(
            page.contains(&format!("**{open} open differences**")),
            "docs/compatibility.md says another number than {open}"
        );
    }
}
