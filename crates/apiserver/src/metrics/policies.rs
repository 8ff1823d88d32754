//! Metrics of admission policies and of expressions.

use std::time::Duration;

use portolan_kinds::custom::RulesWatch;
use prometheus::{Histogram, HistogramOpts, HistogramVec, IntCounterVec};
use tokio::time::Instant;

use super::{MetricFactory, bounded_labels::BoundedLabels};

/// Buckets of the duration of checks, in seconds.
const CHECKS: [f64; 5] = [0.000_000_5, 0.001, 0.01, 0.1, 1.0];
const VALIDATING: [&str; 4] = ["policy", "policy_binding", "error_type", "enforcement_action"];

/// Metrics of admission policies.
pub(crate) struct PolicyMetrics {
    validating: CheckMetrics,
    mutating: CheckMetrics,
    /// Known pairs of policy and binding.
    bounded_labels: BoundedLabels<2>,
}

/// Labels of a policy and one of its bindings.
#[derive(Clone, Copy)]
pub(crate) struct PolicyLabels<'p> {
    pub(crate) policy: &'p str,
    pub(crate) binding: &'p str,
}

struct CheckMetrics {
    counts: IntCounterVec,
    durations: HistogramVec,
}

impl CheckMetrics {
    fn new(make: &MetricFactory, [counts, durations]: [&str; 2], of: &str, labels: &[&str]) -> Self {
        Self {
            counts: make.counter(counts, &format!("Number of {of}"), labels),
            durations: make.histogram(durations, &format!("Duration of {of}"), labels, &CHECKS),
        }
    }

    fn done(&self, labels: &[&str], took: Duration) {
        self.counts.with_label_values(labels).inc();
        self.durations.with_label_values(labels).observe(took.as_secs_f64());
    }
}

impl PolicyMetrics {
    pub(super) fn new(make: &MetricFactory) -> Self {
        Self {
            validating: CheckMetrics::new(
                make,
                [
                    "apiserver_validating_admission_policy_check_total",
                    "apiserver_validating_admission_policy_check_duration_seconds",
                ],
                "failed validations by enforcement action.",
                &VALIDATING,
            ),
            mutating: CheckMetrics::new(
                make,
                [
                    "apiserver_mutating_admission_policy_check_total",
                    "apiserver_mutating_admission_policy_check_duration_seconds",
                ],
                "mutations by error.",
                &VALIDATING[..3],
            ),
            bounded_labels: BoundedLabels::default(),
        }
    }

    /// Counts a failed validation with the action of its binding: `deny`, `warn` or `audit`.
    pub(crate) fn refused(&self, labels: PolicyLabels<'_>, why: &str, action: &str, took: Duration) {
        let [policy, binding] = self.bounded_labels.bounded([labels.policy, labels.binding]);
        self.validating.done(&[policy, binding, error(why), action], took);
    }

    /// Counts a mutation, made or failed.
    pub(crate) fn mutated(&self, labels: PolicyLabels<'_>, outcome: Result<(), &str>, took: Duration) {
        let [policy, binding] = self.bounded_labels.bounded([labels.policy, labels.binding]);
        self.mutating.done(&[policy, binding, outcome.err().map_or("no_error", error)], took);
    }
}

/// Returns the error label that kube-apiserver derives from the message; it counts a failed validation as an error.
fn error(message: &str) -> &'static str {
    if message.starts_with("compilation") {
        "compile_error"
    } else if message.starts_with("validation failed due to running out of cost budget") {
        "out_of_budget"
    } else {
        "invalid_error"
    }
}

/// Durations of expressions in policies, match conditions and definitions. Cheap to clone.
#[derive(Clone)]
pub(crate) struct ExpressionMetrics {
    compilations: Histogram,
    evaluations: Histogram,
}

impl ExpressionMetrics {
    pub(super) fn new(make: &MetricFactory) -> Self {
        let histogram = |name: &str, help: &str| make.keep(Histogram::with_opts(HistogramOpts::new(name, help)));
        Self {
            compilations: histogram("apiserver_cel_compilation_duration_seconds", "CEL compilation time in seconds."),
            evaluations: histogram("apiserver_cel_evaluation_duration_seconds", "CEL evaluation time in seconds."),
        }
    }

    /// Records the compilation of all expressions of a policy, or of all conditions.
    pub(crate) fn compiled(&self, took: Duration) {
        self.compilations.observe(took.as_secs_f64());
    }

    /// Records their evaluation.
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

    use super::{super::bounded_labels::MAX_NAMES, *};

    #[test]
    fn policy_labels_are_bounded_and_errors_classified_as_in_kubernetes() {
        let registry = Registry::new();
        let metrics = PolicyMetrics::new(&MetricFactory(registry.clone()));
        for n in 0..1000 {
            let policy = format!("p{n}");
            metrics.refused(
                PolicyLabels { policy: &policy, binding: "b" },
                "failed expression: x",
                "deny",
                Duration::ZERO,
            );
        }
        let labels = PolicyLabels { policy: "p0", binding: "b" };
        for (outcome, action) in [
            ("compilation failed: x", "deny"),
            ("validation failed due to running out of cost budget, no further validation rules will be run", "warn"),
        ] {
            metrics.refused(labels, outcome, action, Duration::ZERO);
            metrics.mutated(labels, Err(outcome), Duration::ZERO);
        }
        metrics.mutated(labels, Ok(()), Duration::ZERO);
        let text = super::super::text_of(&registry).unwrap();
        let name = "apiserver_validating_admission_policy_check_total";
        let bounded = text.lines().filter(|line| line.starts_with(name) && line.contains("invalid_error")).count();
        assert_eq!(bounded, MAX_NAMES + 1);
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
