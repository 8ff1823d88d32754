//! Failures of webhook calls, and what they mean for the request.

use portolan_types::Status;

use crate::{hooks::AdmissionRequest, metrics::WebhookOutcome};

use super::WebhookConfig;

/// Failure of a webhook call.
pub(super) enum WebhookFailure {
    /// The webhook was unreachable or sent no valid response.
    Calling(String),
    /// The webhook refused the request.
    Denied(Status),
    /// The request cannot be converted for it, or its patch cannot be applied.
    Refused(Status),
}

impl WebhookFailure {
    /// Returns the outcome for metrics.
    pub(super) fn called(&self, webhook: &WebhookConfig) -> WebhookOutcome {
        match self {
            Self::Calling(_) => WebhookOutcome::Failed { ignored: webhook.fails_open },
            Self::Denied(status) => WebhookOutcome::Denied(status.code()),
            Self::Refused(_) => WebhookOutcome::Broken,
        }
    }

    /// Returns the outcome of the request, according to the failure policy.
    pub(super) fn outcome(self, request: &AdmissionRequest<'_>, webhook: &WebhookConfig) -> Result<(), Status> {
        match self {
            Self::Denied(status) | Self::Refused(status) => Err(status),
            Self::Calling(why) if webhook.fails_open => {
                let (cluster, configuration, webhook) = (&request.cluster.path, &webhook.configuration, &webhook.name);
                tracing::warn!(%cluster, configuration, webhook, why, "webhook call failed, request continues (failurePolicy Ignore)");
                request.annotate("failed-open", webhook);
                Ok(())
            }
            Self::Calling(why) => Err(Status::internal(format!("failed calling webhook {:?}: {why}", webhook.name))),
        }
    }
}
