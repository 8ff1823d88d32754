//! List of known differences: `e2e/corpus/differences.yaml`.
//!
//! `stay` are permanent differences, each with a reason: `at` is a pattern of the position, `in` one of `script:
//! sentence`; `*` matches anything. Each reason states in `requests` how many requests it explains. A run in which it
//! explains more fails, so that no new difference hides behind a pattern. If the number differs between runs, `varies`
//! states why, and `requests` is the maximum. `open` are differences to remove: by script and sentence, a digest of
//! each differing position. Positions may disappear but not appear, so no new difference hides behind a fixed one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::diff::AnswerDifference;
use super::replay::StepOutcome;
use super::rule::{DifferenceRule, Fit};
use super::tally::shape;
use harness::tools::repository;

/// Digests of the differing positions of one answer, by the name of its request.
type Steps = BTreeMap<String, BTreeSet<String>>;

/// List of the known differences.
#[derive(Debug, Default)]
pub(super) struct KnownDifferences {
    stay: Vec<DifferenceRule>,
    open: BTreeMap<String, Steps>,
}

/// Comparison of a run with the list.
#[derive(Debug, Default, PartialEq)]
pub(super) struct RunVerdict {
    /// Unexplained differences of the scripts that ran.
    open: BTreeMap<String, Steps>,
    /// Answers with an unlisted difference: `script: sentence`, and the positions.
    pub(super) fresh: BTreeMap<String, Vec<String>>,
    /// Number of listed answers that are now equal, or differ in fewer positions.
    pub(super) better: usize,
    /// Number of different answers that listed reasons explain completely.
    pub(super) explained: usize,
    /// Reasons that explain more requests than stated.
    pub(super) loose: Vec<String>,
    /// Reasons that explain fewer requests than stated, if the whole corpus ran.
    pub(super) tight: Vec<String>,
    /// Reasons and patterns that explain nothing, if the whole corpus ran.
    pub(super) unused: Vec<String>,
    /// Scripts with unlisted answers, or with answers that a reason explains beyond its number.
    pub(super) doubtful: BTreeSet<String>,
    /// Number of requests per reason, if the whole corpus ran.
    counts: Option<Vec<usize>>,
}

/// Answers that one reason explained in a run.
#[derive(Clone, Default)]
struct Use {
    requests: BTreeSet<String>,
    scripts: BTreeSet<String>,
    fits: Vec<Fit>,
}

impl RunVerdict {
    pub(super) fn open_now(&self) -> usize {
        self.open.values().map(BTreeMap::len).sum()
    }
}

impl KnownDifferences {
    pub(super) fn file() -> PathBuf {
        repository().join("e2e/corpus/differences.yaml")
    }

    pub(super) fn read(file: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        Self::parse(&text).with_context(|| file.display().to_string())
    }

    fn parse(text: &str) -> Result<Self> {
        let value: Value = serde_saphyr::from_str(text)?;
        let stay = value["stay"].as_array().into_iter().flatten().map(DifferenceRule::parse).collect::<Result<_>>()?;
        let open = value["open"].as_object().into_iter().flatten();
        let open = open.map(|(script, steps)| {
            let steps = steps.as_object().with_context(|| format!("{script} has no sentences"))?;
            Ok((script.clone(), steps.iter().map(|(step, places)| (step.clone(), words(places))).collect()))
        });
        let open = open.collect::<Result<_>>()?;
        Ok(Self { stay, open })
    }

    /// Compares a run with the list. `whole` is true if the whole corpus ran.
    pub(super) fn judge(&self, outcomes: &[StepOutcome], whole: bool) -> RunVerdict {
        let mut verdict = RunVerdict::default();
        let mut uses = vec![Use::default(); self.stay.len()];
        for outcome in outcomes {
            let open = verdict.open.entry(outcome.script.clone()).or_default();
            let unexplained = self.unexplained(outcome, &mut uses);
            let found: BTreeSet<String> = unexplained.iter().map(|shape| digest(shape)).collect();
            let known = self.open.get(&outcome.script).and_then(|steps| steps.get(&outcome.step));
            let is_known = |place: &String| known.is_some_and(|known| known.contains(place));
            let fresh: Vec<String> = unexplained.into_iter().filter(|shape| !is_known(&digest(shape))).collect();
            verdict.better += usize::from(known.is_some_and(|known| known.difference(&found).next().is_some()));
            verdict.explained += usize::from(found.is_empty() && !outcome.differences.is_empty());
            if !fresh.is_empty() {
                verdict.doubtful.insert(outcome.script.clone());
                verdict.fresh.insert(id(outcome), fresh);
            }
            if !found.is_empty() {
                open.insert(outcome.step.clone(), found);
            }
        }
        self.judge_reasons(&uses, whole, &mut verdict);
        verdict
    }

    /// Compares each reason with its stated number of requests.
    fn judge_reasons(&self, uses: &[Use], whole: bool, verdict: &mut RunVerdict) {
        for (rule, used) in self.stay.iter().zip(uses) {
            let DifferenceRule { reason, requests: listed, .. } = rule;
            let found = used.requests.len();
            if found > *listed {
                verdict.loose.push(format!("{found} requests, listed {listed}: {reason}"));
                verdict.doubtful.extend(used.scripts.iter().cloned());
            }
            if !whole || rule.varies.is_some() {
                continue;
            }
            if found == 0 {
                verdict.unused.push(reason.clone());
            } else if found < *listed {
                verdict.tight.push(format!("{found} requests, listed {listed}: {reason}"));
            }
            let idle = if found == 0 { Vec::new() } else { rule.idle(&used.fits) };
            verdict.unused.extend(idle.into_iter().map(|pattern| format!("{pattern} of: {reason}")));
        }
        verdict.counts = whole.then(|| uses.iter().map(|used| used.requests.len()).collect());
    }

    /// Returns the shapes of unexplained differences.
    fn unexplained(&self, outcome: &StepOutcome, uses: &mut [Use]) -> BTreeSet<String> {
        let id = id(outcome);
        let mut rest = BTreeSet::new();
        for shape in outcome.differences.iter().map(shape) {
            let explained = self.reason(&id, &shape);
            match explained.and_then(|(index, fit)| uses.get_mut(index).zip(Some(fit))) {
                Some((used, fit)) => {
                    used.requests.insert(id.clone());
                    used.scripts.insert(outcome.script.clone());
                    used.fits.push(fit);
                }
                None => drop(rest.insert(shape)),
            }
        }
        rest
    }

    /// Returns the first reason that explains a difference.
    fn reason(&self, id: &str, shape: &str) -> Option<(usize, Fit)> {
        self.stay.iter().enumerate().find_map(|(index, rule)| Some((index, rule.explains(id, shape)?)))
    }

    /// Returns the reason of this difference, if it has one.
    pub(super) fn explanation(&self, outcome: &StepOutcome, difference: &AnswerDifference) -> Option<&str> {
        let (index, _) = self.reason(&id(outcome), &shape(difference))?;
        self.stay.get(index).map(|rule| rule.reason.as_str())
    }

    /// Returns the list with the run's `open` differences; scripts that did not run keep theirs, unless the whole
    /// corpus ran.
    pub(super) fn updated(&self, verdict: &RunVerdict, whole: bool) -> Result<String> {
        let mut open = if whole { BTreeMap::new() } else { self.open.clone() };
        open.extend(verdict.open.clone());
        open.retain(|_, steps| !steps.is_empty());
        let joined = |steps: Steps| -> BTreeMap<String, String> {
            steps.into_iter().map(|(step, places)| (step, Vec::from_iter(places).join(" "))).collect()
        };
        let open: BTreeMap<_, _> = open.into_iter().map(|(script, steps)| (script, joined(steps))).collect();
        let count = |index: usize| verdict.counts.as_ref().and_then(|counts| counts.get(index).copied());
        let stay = self.stay.iter().enumerate().map(|(index, rule)| rule.to_value(count(index)));
        let stay: Vec<Value> = stay.collect();
        let (stay, open) = (json!({"stay": stay}), json!({"open": open}));
        Ok(format!("{}\n{}", serde_saphyr::to_string(&stay)?.trim_end(), serde_saphyr::to_string(&open)?))
    }

    /// Formats the reasons and the number of open differences for the documentation.
    #[cfg(test)]
    fn figures(&self) -> (Vec<&str>, usize) {
        let reasons = self.stay.iter().map(|rule| rule.reason.as_str()).collect();
        (reasons, self.open.values().map(BTreeMap::len).sum())
    }
}

fn id(outcome: &StepOutcome) -> String {
    format!("{}: {}", outcome.script, outcome.step)
}

fn words(value: &Value) -> BTreeSet<String> {
    value.as_str().unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

/// Digest of seven letters (FNV-1a): YAML parses no such word as a number.
fn digest(shape: &str) -> String {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let mut rest = shape.bytes().fold(0xcbf2_9ce4_8422_2325, step);
    let mut letter = || {
        let letter = char::from(b'a' + u8::try_from(rest % 26).unwrap_or_default());
        rest /= 26;
        letter
    };
    (0..7).map(|_| letter()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(step: &str, at: &[&str]) -> StepOutcome {
        let differences =
            at.iter().map(|at| AnswerDifference { at: (*at).to_owned(), kube: Some(1.into()), portolan: None });
        StepOutcome {
            script: "core/pod".to_owned(),
            step: step.to_owned(),
            request: String::new(),
            differences: differences.collect(),
            kube: Value::Null,
            portolan: Value::Null,
        }
    }

    fn known_differences() -> KnownDifferences {
        let places = ["/body/x missing", "/body/z missing"].map(digest).join(" ");
        let stay = "stay: [{reason: no nodes, at: /body/spec/node*, in: 'core/*', requests: 2}]";
        KnownDifferences::parse(&format!("{stay}\nopen: {{core/pod: {{late: {places}}}}}\n")).unwrap()
    }

    #[test]
    fn differences_are_explained_or_open() {
        let late = outcome("late", &["/body/x"]);
        let half = outcome("half explained", &["/body/spec/nodeName", "/body/y"]);
        let outcomes = [outcome("equal", &[]), outcome("explained", &["/body/spec/nodeName"]), late, half];
        let verdict = known_differences().judge(&outcomes, true);
        assert_eq!((verdict.explained, verdict.open_now()), (1, 2));
        let fresh: Vec<(&String, &Vec<String>)> = verdict.fresh.iter().collect();
        assert_eq!(fresh, [(&"core/pod: half explained".to_owned(), &vec!["/body/y missing".to_owned()])]);
        assert_eq!(verdict.doubtful, ["core/pod".to_owned()].into());
        let listed_only = known_differences().judge(&outcomes[..3], true);
        assert!(listed_only.fresh.is_empty() && listed_only.doubtful.is_empty());
    }

    #[test]
    fn places_may_go_but_none_may_come() {
        for (case, places, fresh, better) in [
            ("as it was", &["/body/x", "/body/z"][..], 0, 0),
            ("one is gone", &["/body/x"], 0, 1),
            ("all are gone", &[], 0, 1),
            ("one came for one that went", &["/body/x", "/body/y"], 1, 1),
        ] {
            let verdict = known_differences().judge(&[outcome("late", places)], true);
            assert_eq!((verdict.fresh.len(), verdict.better), (fresh, better), "{case}");
        }
    }

    #[test]
    fn an_unused_reason_is_reported() {
        assert_eq!(known_differences().judge(&[outcome("equal", &[])], true).unused, ["no nodes"]);
        assert!(known_differences().judge(&[outcome("equal", &[])], false).unused.is_empty());
    }

    #[test]
    fn a_listed_reason_covers_only_its_own_differences() {
        let nodes =
            |steps: &[&str]| steps.iter().map(|step| outcome(step, &["/body/spec/nodeName"])).collect::<Vec<_>>();
        for (case, steps, loose, tight) in [
            ("as listed", &["a", "b"][..], 0, 0),
            ("more requests", &["a", "b", "c"], 1, 0),
            ("fewer requests", &["a"], 0, 1),
        ] {
            let verdict = known_differences().judge(&nodes(steps), true);
            assert_eq!((verdict.loose.len(), verdict.tight.len()), (loose, tight), "{case}");
            assert_eq!(verdict.doubtful.len(), loose, "{case}");
        }
        let some = known_differences().judge(&nodes(&["a"]), false);
        assert_eq!((some.loose.len(), some.tight.len()), (0, 0), "not all was asked");
        let fewer = known_differences().updated(&known_differences().judge(&nodes(&["a"]), true), true).unwrap();
        assert_eq!(
            KnownDifferences::parse(&fewer).unwrap().judge(&nodes(&["a", "b"]), true).loose.len(),
            1,
            "it may only fall"
        );
    }

    #[test]
    fn the_list_is_written_as_it_is_read() {
        let found = [outcome("late", &["/body/x"]), outcome("later: with a colon", &["/body/y"])];
        let again = known_differences().updated(&known_differences().judge(&found, true), true).unwrap();
        assert_eq!(KnownDifferences::parse(&again).unwrap().figures(), (vec!["no nodes"], 2));
        let none = known_differences().updated(&known_differences().judge(&[], false), false).unwrap();
        assert_eq!(KnownDifferences::parse(&none).unwrap().figures().1, 1, "what was not asked stays listed");
    }

    #[test]
    fn the_documentation_page_equals_the_list() {
        let page = std::fs::read_to_string(repository().join("docs/compatibility.md")).unwrap();
        let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
        let listed = KnownDifferences::read(&KnownDifferences::file()).unwrap();
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
