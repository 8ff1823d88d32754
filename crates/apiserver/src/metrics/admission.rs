//! Metrics of admission.

use std::time::Duration;

use portolan_types::Status;
use prometheus::{HistogramVec, IntCounterVec};
use tokio::time::Instant;

use super::{MetricFactory, bounded_labels::BoundedLabels, summary::SummaryVec};

/// Buckets of the duration of admission plugins, in seconds.
const STEPS: [f64; 6] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5];
/// Time window of the quantiles of admission steps.
const AGE: Duration = Duration::from_secs(5 * 3600);
/// Buckets of webhook calls, in seconds.
const CALLS: [f64; 8] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0];
/// Distinct status codes: each webhook could return all of them.
const CODES: [u16; 15] = [400, 401, 403, 404, 405, 406, 409, 410, 413, 415, 422, 429, 500, 503, 504];
/// Code for all others; kube-apiserver's code for larger ones.
const OTHER_CODE: u16 = 600;
/// kube-apiserver's code for a webhook that cannot be called.
const UNREACHED: u16 = 503;

/// Metrics of admission.
pub(crate) struct AdmissionMetrics {
    steps: HistogramVec,
    step_summary: SummaryVec<3>,
    controllers: HistogramVec,
    webhooks: HistogramVec,
    requests: IntCounterVec,
    rejections: IntCounterVec,
    passed_over: IntCounterVec,
    bounded_labels: BoundedLabels<1>,
}

/// Labels of an admission plugin or webhook: its name, `admit` or `validating`, and the operation.
#[derive(Clone, Copy)]
pub(crate) struct AdmissionStepLabels<'a> {
    pub(crate) name: &'a str,
    pub(crate) kind: &'static str,
    pub(crate) operation: &'static str,
}

/// Outcome of a webhook call.
#[derive(Clone, Copy)]
pub(crate) enum WebhookOutcome {
    Allowed,
    /// Unreachable or no valid response, and if the request continues.
    Failed {
        ignored: bool,
    },
    /// Refused with this code.
    Denied(u16),
    /// Refused, because the webhook's patch cannot be applied.
    Broken,
}

impl AdmissionMetrics {
    pub(super) fn new(make: &MetricFactory) -> Self {
        let labels = ["name", "type", "operation", "rejected"];
        Self {
            steps: make.histogram(
                "apiserver_admission_step_admission_duration_seconds",
                "Duration of admission steps in seconds.",
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
                "Duration of Kubernetes' own admission plugins in seconds.",
                &labels,
                &STEPS,
            ),
            webhooks: make.histogram(
                "apiserver_admission_webhook_admission_duration_seconds",
                "Duration of admission webhook calls in seconds.",
                &labels,
                &CALLS,
            ),
            rejections: make.counter(
                "apiserver_admission_webhook_rejection_count",
                "Number of requests refused by webhooks, or because a webhook call failed.",
                &["name", "type", "operation", "error_type", "rejection_code"],
            ),
            requests: make.counter(
                "apiserver_admission_webhook_request_total",
                "Number of admission webhook calls by response code.",
                &["name", "type", "operation", "code", "rejected"],
            ),
            passed_over: make.counter(
                "apiserver_admission_webhook_fail_open_count",
                "Number of failed webhook calls that were ignored (failurePolicy Ignore).",
                &["name", "type"],
            ),
            bounded_labels: BoundedLabels::default(),
        }
    }

    /// Records a whole admission step.
    pub(crate) fn step(&self, kind: &'static str, operation: &'static str, rejected: bool, took: Duration) {
        let labels = [kind, operation, text(rejected)];
        self.steps.with_label_values(&labels).observe(took.as_secs_f64());
        self.step_summary.observe(labels, took.as_secs_f64());
    }

    /// Measures one of Kubernetes' own plugins.
    pub(crate) async fn controller(
        &self,
        step: AdmissionStepLabels<'static>,
        work: impl Future<Output = Result<(), Status>>,
    ) -> Result<(), Status> {
        let started = Instant::now();
        let outcome = work.await;
        let labels = [step.name, step.kind, step.operation, text(outcome.is_err())];
        self.controllers.with_label_values(&labels).observe(started.elapsed().as_secs_f64());
        outcome
    }

    /// Records a webhook call.
    pub(crate) fn webhook(&self, step: AdmissionStepLabels<'_>, called: WebhookOutcome, took: Duration) {
        let [name] = self.bounded_labels.bounded([step.name]);
        let refused = match called {
            WebhookOutcome::Allowed | WebhookOutcome::Failed { ignored: true } => None,
            WebhookOutcome::Failed { ignored: false } => Some(("calling_webhook_error", UNREACHED)),
            WebhookOutcome::Denied(code) => Some(("no_error", if CODES.contains(&code) { code } else { OTHER_CODE })),
            WebhookOutcome::Broken => Some(("apiserver_internal_error", 0)),
        };
        let code = match (refused, called) {
            (Some((_, code)), _) => code,
            (None, WebhookOutcome::Failed { .. }) => UNREACHED,
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
        if let WebhookOutcome::Failed { ignored: true } = called {
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

    use super::{super::bounded_labels::MAX_NAMES, *};

    #[test]
    fn tenants_names_create_a_bounded_number_of_series() {
        let registry = Registry::new();
        let metrics = AdmissionMetrics::new(&MetricFactory(registry.clone()));
        for n in 0..1000 {
            let name = format!("w{n}.example.com");
            let step = AdmissionStepLabels { name: &name, kind: "validating", operation: "CREATE" };
            metrics.webhook(step, WebhookOutcome::Denied(403), Duration::ZERO);
        }
        let text = TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        let series = || text.lines().filter(|line| line.starts_with("apiserver_admission_webhook_rejection_count{"));
        assert_eq!(series().count(), MAX_NAMES + 1);
        assert!(series().any(|line| line.contains("name=\"other\"") && line.ends_with(" 900")), "{text}");
    }

    #[test]
    fn call_outcomes_are_labelled_as_in_kubernetes() {
        let registry = Registry::new();
        let metrics = AdmissionMetrics::new(&MetricFactory(registry.clone()));
        let step = AdmissionStepLabels { name: "w", kind: "admit", operation: "UPDATE" };
        for called in [
            WebhookOutcome::Allowed,
            WebhookOutcome::Failed { ignored: true },
            WebhookOutcome::Failed { ignored: false },
            WebhookOutcome::Denied(999),
            WebhookOutcome::Broken,
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
