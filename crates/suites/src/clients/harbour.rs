//! Third-party programs beside a logical cluster, checked through kubectl.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use harness::kubectl::Kubectl;
use harness::poll;
use harness::process::Process;
use harness::report::CheckReport;

/// Time limit for the work of a program.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Namespace and clients of a running operator.
pub(super) struct Harbour {
    /// Client of the namespace of the checks.
    pub(super) kubectl: Kubectl,
    pub(super) programs: Vec<Process>,
}

pub(super) type OperatorCheck = (&'static str, fn(&Harbour) -> Result<()>);

impl Harbour {
    /// Runs all checks in order. Each builds on those before it.
    pub(super) fn check_all(&self, report: &mut CheckReport, group: &str, checks: &[OperatorCheck]) {
        for (name, check) in checks {
            report.check(&format!("{group}: {name}"), || check(self).with_context(|| self.logs()));
        }
    }

    pub(super) fn check_alive(&self) -> Result<()> {
        self.programs.iter().try_for_each(Process::check_alive)
    }

    pub(super) fn logs(&self) -> String {
        self.programs.iter().map(Process::log_tail).collect::<Vec<_>>().join("\n")
    }

    /// Tells all programs to end, and waits for them.
    pub(super) fn stop(self) -> Result<()> {
        self.programs.iter().try_for_each(Process::terminate)
    }

    /// Returns the value at a JSONPath of an object.
    pub(super) fn seen(&self, object: &str, path: &str) -> Result<String> {
        self.kubectl.run_args(&["get", object, "-o", &format!("jsonpath={path}")])
    }

    /// Waits until that is as wanted.
    pub(super) fn becomes(&self, object: &str, path: &str, wanted: impl Fn(&str) -> bool) -> Result<String> {
        poll::until(&format!("{object} {path}"), PATIENCE, || {
            self.check_alive()?;
            let found = self.seen(object, path)?;
            ensure!(wanted(&found), "it is {found:?}");
            Ok(found)
        })
    }

    /// Waits until it is this text.
    pub(super) fn is(&self, object: &str, path: &str, expected: &str) -> Result<()> {
        let waited = self.becomes(object, path, |found| found == expected);
        waited.map(drop).with_context(|| format!("expected {expected:?}"))
    }

    /// Waits until a condition of an object is true.
    pub(super) fn is_true(&self, object: &str, condition: &str) -> Result<()> {
        self.is(object, &format!("{{.status.conditions[?(@.type==\"{condition}\")].status}}"), "True")
    }

    /// Waits until none of these objects exists.
    pub(super) fn gone(&self, objects: &str) -> Result<()> {
        poll::until(&format!("{objects} are gone"), PATIENCE, || {
            let found = self.kubectl.run(&format!("get {objects} --ignore-not-found -o name"))?;
            ensure!(found.is_empty(), "{found}");
            Ok(())
        })
    }
}
