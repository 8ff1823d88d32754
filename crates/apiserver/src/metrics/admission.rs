//! What admission took and whom it refused.

use std::time::Duration;

use portolan_types::Status;
use prometheus::{HistogramVec, IntCounterVec};
use tokio::time::Instant;

use super::{Maker, names::Names, summary::SummaryVec};

/// Buckets of the duration of steps of admission, in seconds.
const STEPS: [f64; 6] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5];
/// What the quantiles of the steps of admission are about.
const AGE: Duration = Duration::from_secs(5 * 3600);
/// Of calls of webhooks.
const CALLS: [f64; 8] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0];
/// Codes that are told apart: webhooks choose theirs, and each of a hundred may choose them all.
const CODES: [u16; 15] = [400, 401, 403, 404, 405, 406, 409, 410, 413, 415, 422, 429, 500, 503, 504];
/// What others are counted as; upstream's for those above it.
const OTHER_CODE: u16 = 600;
/// Upstream's code for what it cannot call.
const UNREACHED: u16 = 503;

/// What is counted of admission.
pub(crate) struct AdmissionMetrics {
    steps: HistogramVec,
    step_summary: SummaryVec<3>,
    controllers: HistogramVec,
    webhooks: HistogramVec,
    requests: IntCounterVec,
    rejections: IntCounterVec,
    passed_over: IntCounterVec,
    names: Names<1>,
}

/// Who looks at a request: its name, whether it may change the object (`admit`) or not, and the operation it is asked about.
#[derive(Clone, Copy)]
pub(crate) struct Step<'a> {
    pub(crate) name: &'a str,
    pub(crate) kind: &'static str,
    pub(crate) operation: &'static str,
}

/// What came of the call of a webhook.
#[derive(Clone, Copy)]
pub(crate) enum Called {
    Allowed,
    /// It was not reached or did not answer as it should, and whether the request goes on all the same.
    Failed {
        ignored: bool,
    },
    /// It refused with this code.
    Denied(u16),
    /// What it wants cannot be done.
    Broken,
}

impl AdmissionMetrics {
    pub(super) fn new(make: &Maker) -> Self {
        let labels = ["name", "type", "operation", "rejected"];
        Self {
            steps: make.histogram(
                "apiserver_admission_step_admission_duration_seconds",
                "Time of the steps of admission.",
                &labels[1..],
                &STEPS,
            ),
            step_summary: make.keep(SummaryVec::new(
                "apiserver_admission_step_admission_duration_seconds_summary",
                "[ALPHA] Admission sub-step latency summary in seconds, broken out for each operation and API resource and \
                 step type (validate or admit).",
                &["type", "operation", "rejected"],
                AGE,
            )),
            controllers: make.histogram(
                "apiserver_admission_controller_admission_duration_seconds",
                "Time of what Kubernetes itself admits by.",
                &labels,
                &STEPS,
            ),
            webhooks: make.histogram(
                "apiserver_admission_webhook_admission_duration_seconds",
                "Time of calls of webhooks.",
                &labels,
                &CALLS,
            ),
            rejections: make.counter(
                "apiserver_admission_webhook_rejection_count",
                "Requests that webhooks refused, or that were refused because calling them failed.",
                &["name", "type", "operation", "error_type", "rejection_code"],
            ),
            requests: make.counter(
                "apiserver_admission_webhook_request_total",
                "Calls of webhooks, by what was answered.",
                &["name", "type", "operation", "code", "rejected"],
            ),
            passed_over: make.counter(
                "apiserver_admission_webhook_fail_open_count",
                "Calls of webhooks that failed and may.",
                &["name", "type"],
            ),
            names: Names::default(),
        }
    }

    /// All of a step is done.
    pub(crate) fn step(&self, kind: &'static str, operation: &'static str, rejected: bool, took: Duration) {
        let labels = [kind, operation, text(rejected)];
        self.steps.with_label_values(&labels).observe(took.as_secs_f64());
        self.step_summary.observe(labels, took.as_secs_f64());
    }

    /// Measures what one of Kubernetes' own does.
    pub(crate) async fn controller(
        &self,
        step: Step<'static>,
        work: impl Future<Output = Result<(), Status>>,
    ) -> Result<(), Status> {
        let started = Instant::now();
        let outcome = work.await;
        let labels = [step.name, step.kind, step.operation, text(outcome.is_err())];
        self.controllers.with_label_values(&labels).observe(started.elapsed().as_secs_f64());
        outcome
    }

    /// A webhook has been called.
    pub(crate) fn webhook(&self, step: Step<'_>, called: Called, took: Duration) {
        let [name] = self.names.told([step.name]);
        let refused = match called {
            Called::Allowed | Called::Failed { ignored: true } => None,
            Called::Failed { ignored: false } => Some(("calling_webhook_error", UNREACHED)),
            Called::Denied(code) => Some(("no_error", if CODES.contains(&code) { code } else { OTHER_CODE })),
            Called::Broken => Some(("apiserver_internal_error", 0)),
        };
        let code = match (refused, called) {
            (Some((_, code)), _) => code,
            (None, Called::Failed { .. }) => UNREACHED,
            (None, _) => 200,
        };
        let labels = [name, step.kind, step.operation, text(refused.is_some())];
        self.webhooks.with_label_values(&labels).observe(took.as_secs_f64());
        let labels = [name, step.kind, step.operation, &code.to_string(), text(refused.is_some())];
        self.requests.with_label_values(&labels).inc();
        if let Some((error, code)) = refused {
            let labels = [name, step.kind, step.operation, error, &code.to_string()];
            self.rejections.with_label_values(&labels).inc();
        }
        if let Called::Failed { ignored: true } = called {
            self.passed_over.with_label_values(&[name, step.kind]).inc();
        }
    }
}

fn text(rejected: bool) -> &'static str {
    if rejected { "true" } else { "false" }
}

#[cfg(test)]
mod tests {
    use prometheus::{Registry, TextEncoder};

    use super::{super::names::MAX_NAMES, *};

    #[test]
    fn names_that_tenants_give_make_a_bounded_number_of_series() {
        let registry = Registry::new();
        let metrics = AdmissionMetrics::new(&Maker(registry.clone()));
        for n in 0..1000 {
            let name = format!("w{n}.example.com");
            let step = Step { name: &name, kind: "validating", operation: "CREATE" };
            metrics.webhook(step, Called::Denied(403), Duration::ZERO);
        }
        let text = TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        let series = || text.lines().filter(|line| line.starts_with("apiserver_admission_webhook_rejection_count{"));
        assert_eq!(series().count(), MAX_NAMES + 1);
        assert!(series().any(|line| line.contains("name=\"other\"") && line.ends_with(" 900")), "{text}");
    }

    #[test]
    fn what_came_of_a_call_is_told_as_upstream_does() {
        let registry = Registry::new();
        let metrics = AdmissionMetrics::new(&Maker(registry.clone()));
        let step = Step { name: "w", kind: "admit", operation: "UPDATE" };
        for called in [
            Called::Allowed,
            Called::Failed { ignored: true },
            Called::Failed { ignored: false },
            Called::Denied(999),
            Called::Broken,
        ] {
            metrics.webhook(step, called, Duration::ZERO);
        }
        let text = TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        for line in [
            r#"apiserver_admission_webhook_admission_duration_seconds_count{name="w",operation="UPDATE",rejected="false",type="admit"} 2"#,
            r#"apiserver_admission_webhook_admission_duration_seconds_count{name="w",operation="UPDATE",rejected="true",type="admit"} 3"#,
            r#"apiserver_admission_webhook_rejection_count{error_type="calling_webhook_error",name="w",operation="UPDATE",rejection_code="503",type="admit"} 1"#,
            r#"apiserver_admission_webhook_rejection_count{error_type="no_error",name="w",operation="UPDATE",rejection_code="600",type="admit"} 1"#,
            r#"apiserver_admission_webhook_rejection_count{error_type="apiserver_internal_error",name="w",operation="UPDATE",rejection_code="0",type="admit"} 1"#,
            r#"apiserver_admission_webhook_request_total{code="200",name="w",operation="UPDATE",rejected="false",type="admit"} 1"#,
            r#"apiserver_admission_webhook_request_total{code="503",name="w",operation="UPDATE",rejected="false",type="admit"} 1"#,
            r#"apiserver_admission_webhook_request_total{code="503",name="w",operation="UPDATE",rejected="true",type="admit"} 1"#,
            r#"apiserver_admission_webhook_request_total{code="600",name="w",operation="UPDATE",rejected="true",type="admit"} 1"#,
            r#"apiserver_admission_webhook_request_total{code="0",name="w",operation="UPDATE",rejected="true",type="admit"} 1"#,
            r#"apiserver_admission_webhook_fail_open_count{name="w",type="admit"} 1"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }
}
