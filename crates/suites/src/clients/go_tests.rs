//! Selection of cases of published Go tests, and the output of `go test -v`.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail, ensure};
use serde::Deserialize;

/// Lines of an error that are shown.
const SHOWN: usize = 60;
/// Lines of one error of a test.
const ERROR_LINES: usize = 8;

/// Cases that cannot run here, as a data file has them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LeftOut {
    because: String,
    #[serde(default)]
    pub(super) cases: Vec<String>,
    /// Whole programs of them.
    #[serde(default)]
    pub(super) packages: Vec<String>,
}

impl LeftOut {
    /// Something is left out, for a reason.
    pub(super) fn check(&self) -> Result<()> {
        let is_something = !self.cases.is_empty() || !self.packages.is_empty();
        ensure!(is_something && !self.because.is_empty(), "a group of cases that is left out for nothing");
        Ok(())
    }
}

/// Returns the pattern for Go's `-skip` that matches exactly the case of this name. `*` matches any one part.
pub(super) fn pattern(case: &str) -> String {
    let exact = |part: &str| format!("^{}$", part.replace('.', "\\."));
    let parts: Vec<String> =
        case.split('/').map(|part| if part == "*" { ".".to_owned() } else { exact(part) }).collect();
    parts.join("/")
}

/// All started tests by name, with the result of those that ended: `PASS`, `FAIL` or `SKIP`.
pub(super) struct GoTests<'a> {
    verdicts: BTreeMap<&'a str, Option<&'a str>>,
    printed: &'a str,
}

impl<'a> GoTests<'a> {
    /// Parses the output.
    pub(super) fn read(printed: &'a str) -> Self {
        let mut verdicts = BTreeMap::new();
        for line in printed.lines().map(str::trim_start) {
            if let Some(name) = line.strip_prefix("=== RUN ") {
                verdicts.entry(name.trim()).or_insert(None);
            } else if let Some((word, rest)) = line.strip_prefix("--- ").and_then(|verdict| verdict.split_once(": ")) {
                verdicts.insert(rest.rsplit_once(" (").map_or(rest, |(name, _)| name), Some(word));
            }
        }
        Self { verdicts, printed }
    }

    /// The cases that passed: tests without tests in them.
    pub(super) fn cases(&self) -> usize {
        let parents = self.parents();
        let passed = self.verdicts.iter().filter(|(name, word)| **word == Some("PASS") && !parents.contains(**name));
        passed.count()
    }

    fn parents(&self) -> BTreeSet<&str> {
        self.verdicts.keys().flat_map(|name| name.match_indices('/').map(move |(at, _)| &name[..at])).collect()
    }

    /// Returns an error unless all tests passed and `cases` ran. One with subtests may be skipped: they speak for
    /// themselves.
    pub(super) fn outcome(&self, cases: usize) -> Result<()> {
        let parents = self.parents();
        let is_wrong = |name: &str, word: Option<&str>| match word {
            Some("PASS") => false,
            Some("SKIP") => !parents.contains(name),
            _ => true,
        };
        let wrong = self.verdicts.iter().filter(|(name, word)| is_wrong(name, **word));
        let wrong: Vec<String> = wrong.map(go_test_line).take(SHOWN).collect();
        if !wrong.is_empty() {
            bail!("{}\n{}", wrong.join("\n"), self.errors());
        }
        ensure!(self.cases() == cases, "{} cases passed, and not {cases}\n{}", self.cases(), self.errors());
        Ok(())
    }

    /// Returns the lines in which tests report errors, each with the lines after it.
    fn errors(&self) -> String {
        let lines: Vec<&str> = self.printed.lines().collect();
        let says = |line: &str| line.contains("_test.go:") || line.starts_with("panic:");
        let begins = (0..lines.len()).filter(|at| says(lines[*at]));
        let shown = begins.flat_map(|at| lines[at..].iter().take(ERROR_LINES));
        let shown: Vec<&str> = shown.take(SHOWN).copied().collect();
        if shown.is_empty() { lines[lines.len().saturating_sub(ERROR_LINES)..].join("\n") } else { shown.join("\n") }
    }
}

fn go_test_line((name, word): (&&str, &Option<&str>)) -> String {
    format!("{name}: {}", word.unwrap_or("it did not end"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "=== RUN   TestA\n=== RUN   TestA/x\n=== PAUSE TestA/x\n=== RUN   TestA/x_(y)\n=== RUN   TestA/x/deep\n\
                           === CONT  TestA/x\n--- PASS: TestA (1.00s)\n    --- PASS: TestA/x (0.50s)\n        \
                           --- PASS: TestA/x/deep (0.50s)\n    --- PASS: TestA/x_(y) (0.50s)\nPASS\n";

    #[test]
    fn cases_are_tests_without_tests_in_them() {
        let tests = GoTests::read(PRINTED);
        assert_eq!(tests.cases(), 2);
        assert!(tests.outcome(2).is_ok());
        assert_eq!(tests.outcome(3).unwrap_err().to_string().lines().next(), Some("2 cases passed, and not 3"));
        assert!(GoTests::read("testing: warning: no tests to run\nPASS\n").outcome(1).is_err());
    }

    #[test]
    fn failed_specs_are_reported_with_their_reason() {
        let failed = PRINTED.replace("--- PASS: TestA/x/deep", "--- FAIL: TestA/x/deep")
            + "    a_test.go:7: not so\n        because\n";
        let error = GoTests::read(&failed).outcome(2).unwrap_err().to_string();
        assert_eq!(error, "TestA/x/deep: FAIL\n    a_test.go:7: not so\n        because");
        let skipped = PRINTED.replace("--- PASS: TestA/x_(y)", "--- SKIP: TestA/x_(y)");
        assert!(GoTests::read(&skipped).outcome(1).is_err());
        let skipped = PRINTED.replace("--- PASS: TestA/x (", "--- SKIP: TestA/x (");
        assert!(GoTests::read(&skipped).outcome(2).is_ok(), "its cases passed");
        let broken_off = "=== RUN   TestA\npanic: test timed out after 1s\n";
        let error = GoTests::read(broken_off).outcome(0).unwrap_err().to_string();
        assert_eq!(error, "TestA: it did not end\npanic: test timed out after 1s");
    }

    #[test]
    fn a_case_is_left_out_by_its_whole_name() {
        assert_eq!(pattern("TestA/x/b-1.2"), "^TestA$/^x$/^b-1\\.2$");
        assert_eq!(pattern("*/b 1"), "./^b 1$");
    }
}
