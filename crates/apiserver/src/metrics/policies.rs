//! What policies said, and the time that expressions took.

use std::time::Duration;

use portolan_machinery::custom::RulesWatch;
use prometheus::{Histogram, HistogramOpts, HistogramVec, IntCounterVec};
use tokio::time::Instant;

use super::{Maker, names::Names};

/// Buckets of the time of checks, in seconds.
const CHECKS: [f64; 5] = [0.000_000_5, 0.001, 0.01, 0.1, 1.0];
const VALIDATING: [&str; 4] = ["policy", "policy_binding", "error_type", "enforcement_action"];

/// What is counted of policies of admission.
pub(crate) struct PolicyMetrics {
    validating: Checks,
    mutating: Checks,
    /// Policies and their bindings.
    names: Names<2>,
}

/// A policy with one of its bindings.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'p> {
    pub(crate) policy: &'p str,
    pub(crate) binding: &'p str,
}

struct Checks {
    counts: IntCounterVec,
    durations: HistogramVec,
}

impl Checks {
    fn new(make: &Maker, [counts, durations]: [&str; 2], of: &str, labels: &[&str]) -> Self {
        Self {
            counts: make.counter(counts, of, labels),
            durations: make.histogram(durations, &format!("Time of {of}"), labels, &CHECKS),
        }
    }

    fn done(&self, labels: &[&str], took: Duration) {
        self.counts.with_label_values(labels).inc();
        self.durations.with_label_values(labels).observe(took.as_secs_f64());
    }
}

impl PolicyMetrics {
    pub(super) fn new(make: &Maker) -> Self {
        Self {
            validating: Checks::new(
                make,
                [
                    "apiserver_validating_admission_policy_check_total",
                    "apiserver_validating_admission_policy_check_duration_seconds",
                ],
                "validations that do not hold, by what came of it.",
                &VALIDATING,
            ),
            mutating: Checks::new(
                make,
                [
                    "apiserver_mutating_admission_policy_check_total",
                    "apiserver_mutating_admission_policy_check_duration_seconds",
                ],
                "mutations, by what was wrong.",
                &VALIDATING[..3],
            ),
            names: Names::default(),
        }
    }

    /// A validation does not hold, for which the binding wants this: `deny`, `warn` or `audit`.
    pub(crate) fn refused(&self, asked: Asked<'_>, why: &str, action: &str, took: Duration) {
        let [policy, binding] = self.names.told([asked.policy, asked.binding]);
        self.validating.done(&[policy, binding, error(why), action], took);
    }

    /// A mutation has been made, or could not be.
    pub(crate) fn mutated(&self, asked: Asked<'_>, outcome: Result<(), &str>, took: Duration) {
        let [policy, binding] = self.names.told([asked.policy, asked.binding]);
        self.mutating.done(&[policy, binding, outcome.err().map_or("no_error", error)], took);
    }
}

/// What kube-apiserver tells from the message; it takes a validation that does not hold for an error of its own.
fn error(message: &str) -> &'static str {
    if message.starts_with("compilation") {
        "compile_error"
    } else if message.starts_with("validation failed due to running out of cost budget") {
        "out_of_budget"
    } else {
        "invalid_error"
    }
}

/// Time that expressions of policies, of conditions and of definitions took. Cheap to clone.
#[derive(Clone)]
pub(crate) struct ExpressionMetrics {
    compilations: Histogram,
    evaluations: Histogram,
}

impl ExpressionMetrics {
    pub(super) fn new(make: &Maker) -> Self {
        let histogram = |name: &str, help: &str| make.keep(Histogram::with_opts(HistogramOpts::new(name, help)));
        Self {
            compilations: histogram("apiserver_cel_compilation_duration_seconds", "CEL compilation time in seconds."),
            evaluations: histogram("apiserver_cel_evaluation_duration_seconds", "CEL evaluation time in seconds."),
        }
    }

    /// All expressions of a policy, or all conditions, have been compiled.
    pub(crate) fn compiled(&self, took: Duration) {
        self.compilations.observe(took.as_secs_f64());
    }

    /// They have been evaluated.
    pub(crate) fn evaluated(&self, took: Duration) {
        self.evaluations.observe(took.as_secs_f64());
    }
}

impl RulesWatch for ExpressionMetrics {
    fn compile(&self, work: &mut dyn FnMut()) {
        let started = Instant::now();
        work();
        self.compiled(started.elapsed());
    }

    fn evaluate(&self, work: &mut dyn FnMut()) {
        let started = Instant::now();
        work();
        self.evaluated(started.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;

    use super::{super::names::MAX_NAMES, *};

    #[test]
    fn policies_are_told_apart_up_to_a_bound_and_errors_as_upstream_tells_them() {
        let registry = Registry::new();
        let metrics = PolicyMetrics::new(&Maker(registry.clone()));
        for n in 0..1000 {
            let policy = format!("p{n}");
            metrics.refused(Asked { policy: &policy, binding: "b" }, "failed expression: x", "deny", Duration::ZERO);
        }
        let asked = Asked { policy: "p0", binding: "b" };
        for (outcome, action) in [
            ("compilation failed: x", "deny"),
            ("validation failed due to running out of cost budget, no further validation rules will be run", "warn"),
        ] {
            metrics.refused(asked, outcome, action, Duration::ZERO);
            metrics.mutated(asked, Err(outcome), Duration::ZERO);
        }
        metrics.mutated(asked, Ok(()), Duration::ZERO);
        let text = super::super::text_of(&registry).unwrap();
        let name = "apiserver_validating_admission_policy_check_total";
        let told = text.lines().filter(|line| line.starts_with(name) && line.contains("invalid_error")).count();
        assert_eq!(told, MAX_NAMES + 1);
        for line in [
            r#"apiserver_validating_admission_policy_check_total{enforcement_action="deny",error_type="compile_error",policy="p0",policy_binding="b"} 1"#,
            r#"apiserver_validating_admission_policy_check_total{enforcement_action="warn",error_type="out_of_budget",policy="p0",policy_binding="b"} 1"#,
            r#"apiserver_validating_admission_policy_check_total{enforcement_action="deny",error_type="invalid_error",policy="other",policy_binding="other"} 900"#,
            r#"apiserver_mutating_admission_policy_check_total{error_type="compile_error",policy="p0",policy_binding="b"} 1"#,
            r#"apiserver_mutating_admission_policy_check_duration_seconds_count{error_type="no_error",policy="p0",policy_binding="b"} 1"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }
}
