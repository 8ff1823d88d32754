//! Reports of Ginkgo, the framework of most operators' end-to-end tests.

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

/// Characters that are shown of a failed case.
const SHOWN: usize = 600;

/// Cases that ran, by subject.
pub(super) struct Specs(Vec<CaseGroup>);

/// Cases of one outermost container, which is named after their subject.
pub(super) struct CaseGroup {
    pub(super) name: String,
    pub(super) ran: usize,
    /// Sum over all its cases, concurrent ones included.
    pub(super) seconds: f64,
    failures: Vec<String>,
}

impl Specs {
    /// Parses a JSON report. A report with fewer than `least` cases proves nothing and is an error, as is an incomplete
    /// one.
    pub(super) fn read(report: &Value, least: usize) -> Result<Self> {
        let suites = report.as_array().context("a report that is no array")?;
        let specs = suites.iter().flat_map(|suite| suite["SpecReports"].as_array().into_iter().flatten());
        let mut groups: Vec<CaseGroup> = Vec::new();
        for spec in specs {
            let state = spec["State"].as_str().context("a case without a state")?;
            if matches!(state, "skipped" | "pending") {
                continue;
            }
            let place: Vec<&str> =
                spec["ContainerHierarchyTexts"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            let is_case = spec["LeafNodeType"] == "It";
            if !is_case && state == "passed" {
                continue;
            }
            let name = place.first().copied().unwrap_or("the suite itself");
            let at = groups.iter().position(|group| group.name == name).unwrap_or_else(|| {
                groups.push(CaseGroup { name: name.to_owned(), ran: 0, seconds: 0.0, failures: Vec::new() });
                groups.len() - 1
            });
            groups[at].add(spec, &place, state);
        }
        let ran: usize = groups.iter().map(|group| group.ran).sum();
        ensure!(ran >= least, "{ran} cases ran, and not {least}");
        let failed = groups.iter().any(|group| !group.failures.is_empty());
        let reasons: Vec<&Value> = suites.iter().map(|suite| &suite["SpecialSuiteFailureReasons"]).collect();
        let succeeded = suites.iter().all(|suite| suite["SuiteSucceeded"] == true);
        ensure!(succeeded || failed, "no case failed, and the suite did: {reasons:?}");
        groups.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Self(groups))
    }

    pub(super) fn groups(&self) -> &[CaseGroup] {
        &self.0
    }
}

impl CaseGroup {
    fn add(&mut self, spec: &Value, place: &[&str], state: &str) {
        self.ran += usize::from(spec["LeafNodeType"] == "It");
        self.seconds += spec["RunTime"].as_f64().unwrap_or_default() / 1e9;
        if state != "passed" {
            let case = [place, &[spec["LeafNodeText"].as_str().unwrap_or_default()]].concat().join(" / ");
            let said: String = spec["Failure"]["Message"].as_str().unwrap_or_default().chars().take(SHOWN).collect();
            self.failures.push(format!("{case}: {state}: {said}"));
        }
    }

    /// Returns an error unless all cases passed.
    pub(super) fn outcome(&self) -> Result<()> {
        match self.failures.as_slice() {
            [] => Ok(()),
            failures => bail!("{}", failures.join("\n")),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(container: &[&str], leaf: &str, state: &str) -> Value {
        let kind = if leaf.is_empty() { "BeforeSuite" } else { "It" };
        json!({"ContainerHierarchyTexts": container, "LeafNodeType": kind, "LeafNodeText": leaf, "State": state,
               "RunTime": 1_500_000_000_u64, "Failure": {"Message": "not so"}})
    }

    #[test]
    fn cases_are_counted_by_what_they_are_about() {
        let specs = json!([{"SuiteSucceeded": false, "SpecReports": [
            spec(&["b", "deep"], "works", "passed"), spec(&["b"], "fails", "failed"), spec(&["c"], "is left", "skipped"),
            spec(&["a"], "works", "passed"), spec(&[], "", "passed"),
        ]}]);
        assert!(Specs::read(&specs, 4).is_err(), "three ran");
        let specs = Specs::read(&specs, 3).unwrap();
        let found: Vec<_> = specs.groups().iter().map(|group| (&*group.name, group.ran, group.seconds)).collect();
        assert_eq!(found, [("a", 1, 1.5), ("b", 2, 3.0)]);
        assert!(specs.groups()[0].outcome().is_ok());
        assert_eq!(specs.groups()[1].outcome().unwrap_err().to_string(), "b / fails: failed: not so");
    }

    #[test]
    fn a_run_of_nothing_is_no_success() {
        for nothing in [json!([]), json!([{"SpecReports": [spec(&["a"], "is left", "skipped")]}]), json!({})] {
            assert!(Specs::read(&nothing, 1).is_err());
        }
    }

    #[test]
    fn failures_outside_of_specs_fail_the_run() {
        let ran = [spec(&["a"], "works", "passed")];
        assert!(Specs::read(&json!([{"SuiteSucceeded": true, "SpecReports": ran}]), 1).is_ok());
        let late = json!([{"SuiteSucceeded": false, "SpecialSuiteFailureReasons": ["Timedout"], "SpecReports": ran}]);
        assert!(Specs::read(&late, 1).err().unwrap().to_string().contains("Timedout"));
        let specs = json!([{"SpecReports": [spec(&[], "", "panicked"), spec(&["a"], "works", "passed")]}]);
        let specs = Specs::read(&specs, 1).unwrap();
        assert!(specs.groups().iter().any(|group| group.name == "the suite itself" && group.outcome().is_err()));
    }
}
